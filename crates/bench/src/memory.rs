//! The bytes worked on: stripes of k + m shards, one after the other, filled and touched before anything is timed.
//!
//! They lie in large pages where the system gives them, as the client's segments do (`steadfast_net::huge_pages`): ours,
//! the rivals and the memory limit work on the same bytes.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_net::{HUGE_PAGE_BYTES, huge_pages};

/// A stretch of memory that begins at a large page.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    cursor: usize,
}

impl Memory {
    /// `len` bytes made from `seed`.
    pub(crate) fn new(len: usize, seed: u64) -> Self {
        // What is short lies in one large page too: small ones are scattered over the places of a cache, each run otherwise.
        let mut bytes = Vec::with_capacity(len.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES);
        huge_pages(bytes.spare_capacity_mut());
        bytes.resize(bytes.capacity(), 0);
        let start = bytes.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // What lies there is told by the seed alone, not by where the allocator put it.
        Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes[start..start + len]);
        Self { bytes, start, len, cursor: 0 }
    }

    /// All of it.
    pub(crate) fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// All of it, to read.
    pub(crate) fn view(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The next `count` stretches of `len` bytes, from the beginning again after the last that fits: what was
    /// worked on longest ago.
    ///
    /// # Panics
    /// When one stretch is longer than the memory.
    pub(crate) fn next(&mut self, count: usize, len: usize, mut work: impl FnMut(&mut [u8])) {
        assert!(len <= self.len, "a stretch longer than the memory");
        for _ in 0..count {
            if self.cursor + len > self.len {
                self.cursor = 0;
            }
            let from = self.start + self.cursor;
            self.cursor += len;
            work(&mut self.bytes[from..from + len]);
        }
    }
}

/// More shards than any case has.
const SHARDS_MAX: usize = 64;

/// Calls `work` with the `data_shards` first shards of a stripe and with the others. Allocates nothing.
///
/// # Panics
/// When the stripe has more than 64 data or parity shards.
pub(crate) fn split<T>(
    stripe: &mut [u8],
    shard_len: usize,
    data_shards: usize,
    work: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> T,
) -> T {
    let (data, parity) = stripe.split_at_mut(data_shards * shard_len);
    let mut views = [&[][..]; SHARDS_MAX];
    for (view, shard) in views.iter_mut().zip(data.chunks_exact(shard_len)) {
        *view = shard;
    }
    let mut outs: [&mut [u8]; SHARDS_MAX] = std::array::from_fn(|_| Default::default());
    let mut count = 0;
    for (out, shard) in outs.iter_mut().zip(parity.chunks_exact_mut(shard_len)) {
        *out = shard;
        count += 1;
    }
    work(&views[..data_shards], &mut outs[..count])
}

/// Calls `work` with the `lost_shards` first shards of a stripe, to be written, and with the others. Allocates
/// nothing.
///
/// # Panics
/// When the stripe has more than 64 lost or other shards.
pub(crate) fn split_lost<T>(
    stripe: &mut [u8],
    shard_len: usize,
    lost_shards: usize,
    work: impl FnOnce(&mut [&mut [u8]], &[&[u8]]) -> T,
) -> T {
    let (lost, others) = stripe.split_at_mut(lost_shards * shard_len);
    let mut outs: [&mut [u8]; SHARDS_MAX] = std::array::from_fn(|_| Default::default());
    for (out, shard) in outs.iter_mut().zip(lost.chunks_exact_mut(shard_len)) {
        *out = shard;
    }
    let mut views = [&[][..]; SHARDS_MAX];
    let mut count = 0;
    for (view, shard) in views.iter_mut().zip(others.chunks_exact(shard_len)) {
        *view = shard;
        count += 1;
    }
    work(&mut outs[..lost_shards], &views[..count])
}

/// Gives `work` all shards of a stripe.
pub(crate) fn split_writable<T>(
    stripe: &mut [u8],
    shard_len: usize,
    work: impl FnOnce(&mut [&mut [u8]]) -> T,
) -> T {
    let mut outs: [&mut [u8]; SHARDS_MAX] = std::array::from_fn(|_| Default::default());
    let mut count = 0;
    for (out, shard) in outs.iter_mut().zip(stripe.chunks_exact_mut(shard_len)) {
        *out = shard;
        count += 1;
    }
    work(&mut outs[..count])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn stretches_go_round_and_start_at_pages() {
        let mut memory = Memory::new(3 * PAGE, 1);
        assert_eq!(memory.view().as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
        let others: Vec<Memory> = (0..3).map(|_| Memory::new(3 * PAGE, 1)).collect();
        assert!(others.iter().all(|other| other.view() == memory.view()));
        let first = memory.view()[0];
        let mut starts = Vec::new();
        memory.next(4, PAGE + 8, |stretch| {
            starts.push(stretch[0]);
            stretch[0] ^= 1;
        });
        assert_eq!([starts[0], starts[2]], [first, first ^ 1]);
    }

    #[test]
    fn a_stripe_is_data_then_parity() {
        let mut stripe: Vec<u8> = (0..12).collect();
        split(&mut stripe, 3, 3, |data, parity| {
            assert_eq!(data, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]);
            assert_eq!(parity, [[9, 10, 11]]);
        });
        split_lost(&mut stripe, 3, 2, |lost, others| {
            assert_eq!(lost, [[0, 1, 2], [3, 4, 5]]);
            assert_eq!(others, [[6, 7, 8], [9, 10, 11]]);
        });
    }
}
