//! Encoding with a CRC-32C of every shard: strip by strip while the bytes are near, or in a second pass.

use super::stripe::Ours;
use crate::rivals::Stripes;
use anyhow::{Result, bail, ensure};
use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};
use steadfast_codes::mds::{Code, Kind};

/// When checksums are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum When {
    /// Of each strip, right after it was encoded.
    Strips,
    /// Of all shards, once all is encoded.
    After,
}

/// Reed-Solomon that takes a checksum of every data and parity shard.
pub(super) struct Checked {
    code: Code,
    when: When,
    digests: Vec<Digest>,
}

impl Checked {
    pub(super) fn new(k: usize, m: usize, when: When) -> Result<Self> {
        let digests = (0..k + m).map(|_| Digest::new(Crc32Iscsi)).collect();
        Ok(Self { code: Code::new(Kind::ReedSolomon, k, m)?, when, digests })
    }

    /// The checksums of the last stripe, data first.
    fn sums(&self) -> Vec<u64> {
        self.digests.iter().map(Digest::finalize).collect()
    }
}

impl Stripes for Checked {
    fn name(&self) -> String {
        match self.when {
            When::Strips => "steadfast rs, CRC-32C strip by strip",
            When::After => "steadfast rs, then CRC-32C",
        }
        .to_owned()
    }

    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<()> {
        self.digests.iter_mut().for_each(Digest::reset);
        let digests = &mut self.digests;
        match self.when {
            When::Strips => self.code.encode_strips(data, parity, |_, data, parity| {
                let shards = data.iter().copied().chain(parity.iter().map(|shard| &**shard));
                digests.iter_mut().zip(shards).for_each(|(digest, shard)| digest.update(shard));
            })?,
            When::After => {
                self.code.encode(data, parity)?;
                let shards = data.iter().copied().chain(parity.iter().map(|shard| &**shard));
                digests.iter_mut().zip(shards).for_each(|(digest, shard)| digest.update(shard));
            }
        }
        Ok(())
    }

    fn rebuilds(&self) -> bool {
        false
    }

    fn rebuild(&mut self, _: &mut [&mut [u8]], _: &[&[u8]]) -> Result<()> {
        bail!("checksums are taken while encoding")
    }
}

/// Both ways make the parity and the checksums that every other way makes.
pub(super) fn verify(k: usize, m: usize, shard_len: usize) -> Result<()> {
    let data: Vec<Vec<u8>> = (0..k).map(|shard| vec![shard as u8 * 3 + 1; shard_len]).collect();
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let encode = |code: &mut dyn Stripes| -> Result<Vec<Vec<u8>>> {
        let mut parity = vec![vec![0xee; shard_len]; m];
        code.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())?;
        Ok(parity)
    };
    let plain = encode(&mut Ours::new(Kind::ReedSolomon, k, m)?)?;
    let shards = data.iter().copied().chain(plain.iter().map(Vec::as_slice));
    let sums: Vec<u64> = shards.map(|shard| crc_fast::checksum(Crc32Iscsi, shard)).collect();
    for when in [When::Strips, When::After] {
        let mut checked = Checked::new(k, m, when)?;
        ensure!(encode(&mut checked)? == plain, "{when:?}: other parity");
        ensure!(checked.sums() == sums, "{when:?}: other checksums");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_have_the_checksums_of_whole_shards() {
        verify(3, 2, 40_001).unwrap();
        verify(10, 4, 1000).unwrap();
    }
}
