//! `reed-solomon-simd`: stripes, and objects of many blocks. It copies shards into memory of its own, which is
//! counted, and keeps its results there, which is not.

use super::{Objects, Stripes, Timer};
use anyhow::{Context, Result, ensure};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
use std::hint::black_box;

const NAME: &str = "reed-solomon-simd 3.1";

/// One stripe shape.
pub(super) struct Stripe {
    parity_shards: usize,
    encoder: ReedSolomonEncoder,
    decoder: ReedSolomonDecoder,
}

impl Stripe {
    pub(super) fn new(data_shards: usize, parity_shards: usize, shard_len: usize) -> Result<Self> {
        Ok(Self {
            parity_shards,
            encoder: ReedSolomonEncoder::new(data_shards, parity_shards, shard_len)?,
            decoder: ReedSolomonDecoder::new(data_shards, parity_shards, shard_len)?,
        })
    }
}

impl Stripes for Stripe {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn encode(&mut self, data: &[&[u8]], _parity: &mut [&mut [u8]]) -> Result<()> {
        for shard in data {
            self.encoder.add_original_shard(shard)?;
        }
        black_box(self.encoder.encode()?.recovery(0));
        Ok(())
    }

    fn rebuild(&mut self, _lost: &mut [&mut [u8]], others: &[&[u8]]) -> Result<()> {
        let left = others.len() - self.parity_shards;
        for (index, shard) in others[..left].iter().enumerate() {
            self.decoder.add_original_shard(self.parity_shards + index, shard)?;
        }
        for (index, shard) in others[left..].iter().enumerate() {
            self.decoder.add_recovery_shard(index, shard)?;
        }
        black_box(self.decoder.decode()?.restored_original(0));
        Ok(())
    }
}

/// Objects of K blocks with 3 K recovery blocks, so that N = 4 K as for the rateless codes.
pub(super) struct Object {
    originals: usize,
    block_len: usize,
    /// Index and bytes of the blocks received.
    received: Vec<(usize, Vec<u8>)>,
}

impl Object {
    pub(super) fn new(originals: usize, block_len: usize) -> Self {
        Self { originals, block_len, received: Vec::new() }
    }
}

impl Objects for Object {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn encode(&mut self, originals: &[u8], blocks: usize, seconds: Timer<'_>) -> Result<f64> {
        let mut encoder = ReedSolomonEncoder::new(self.originals, blocks, self.block_len)?;
        let mut outcome = Ok(());
        let taken = seconds(&mut || {
            outcome = (|| {
                for block in originals.chunks_exact(self.block_len) {
                    encoder.add_original_shard(block)?;
                }
                black_box(encoder.encode()?.recovery(0));
                Ok(())
            })();
        });
        outcome.map(|()| taken)
    }

    fn prepare_decode(&mut self, originals: &[u8], order: &[u32]) -> Result<()> {
        let k = self.originals;
        let mut encoder = ReedSolomonEncoder::new(k, 3 * k, self.block_len)?;
        let blocks: Vec<&[u8]> = originals.chunks_exact(self.block_len).collect();
        for block in &blocks {
            encoder.add_original_shard(block)?;
        }
        let coded = encoder.encode()?;
        self.received.clear();
        for index in order.iter().take(k).map(|index| *index as usize) {
            let block = if index < k { Some(blocks[index]) } else { coded.recovery(index - k) };
            self.received.push((index, block.context("no such recovery block")?.to_vec()));
        }
        Ok(())
    }

    fn decode(&mut self, originals: &[u8], seconds: Timer<'_>) -> Result<f64> {
        let k = self.originals;
        let mut decoder = ReedSolomonDecoder::new(k, 3 * k, self.block_len)?;
        let mut outcome = Ok(true);
        let taken = seconds(&mut || {
            outcome = (|| {
                for (index, block) in &self.received {
                    match index.checked_sub(k) {
                        None => decoder.add_original_shard(*index, block)?,
                        Some(recovery) => decoder.add_recovery_shard(recovery, block)?,
                    }
                }
                let restored = decoder.decode()?;
                let mut first = restored.restored_original_iter().take(1);
                Ok::<bool, anyhow::Error>(first.all(|(index, block)| {
                    block == &originals[index * self.block_len..(index + 1) * self.block_len]
                }))
            })();
        });
        ensure!(outcome?, "decoded wrong bytes");
        Ok(taken)
    }
}
