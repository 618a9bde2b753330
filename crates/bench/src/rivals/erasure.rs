//! `reed-solomon-erasure`, with its C loops for the instruction set of the machine that compiled it.

use super::Stripes;
use anyhow::Result;
use reed_solomon_erasure::galois_8::ReedSolomon;

/// One stripe shape.
pub(super) struct Stripe {
    code: ReedSolomon,
}

impl Stripe {
    pub(super) fn new(data_shards: usize, parity_shards: usize) -> Result<Self> {
        Ok(Self { code: ReedSolomon::new(data_shards, parity_shards)? })
    }
}

impl Stripes for Stripe {
    fn name(&self) -> String {
        "reed-solomon-erasure 6.0".to_owned()
    }

    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<()> {
        Ok(self.code.encode_sep(data, parity)?)
    }

    fn rebuild(&mut self, _lost: &mut [&mut [u8]], _others: &[&[u8]]) -> Result<()> {
        anyhow::bail!("reed-solomon-erasure rebuilds within writable shards only")
    }

    fn wants_writable(&self) -> bool {
        true
    }

    // It keeps the inverted matrices of the last patterns: the timing is of the products alone, as with the others.
    fn rebuild_writable(&mut self, shards: &mut [&mut [u8]], lost_shards: usize) -> Result<()> {
        let mut shards: Vec<(&mut [u8], bool)> = shards
            .iter_mut()
            .enumerate()
            .map(|(place, shard)| (&mut **shard, place >= lost_shards))
            .collect();
        Ok(self.code.reconstruct_data(&mut shards)?)
    }
}
