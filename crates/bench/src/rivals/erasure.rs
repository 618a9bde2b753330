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

    // It asks for every shard to be writable, lost or not, which this interface does not give.
    fn rebuilds(&self) -> bool {
        false
    }

    fn rebuild(&mut self, _lost: &mut [&mut [u8]], _others: &[&[u8]]) -> Result<()> {
        anyhow::bail!("reed-solomon-erasure is measured encoding only")
    }
}
