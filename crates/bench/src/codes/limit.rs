//! What memory gives: every byte read once, in the way that this machine does fastest.
//!
//! One stream is not the fastest way to read memory: the processor's prefetchers stop at every page, and several
//! streams side by side hide that from one another (a fifth more here). A code reads k shards side by side, so a
//! limit of one stream would flatter it.

use crate::measure::Clock;
use std::hint::black_box;
use steadfast_codes::kernel::{Tier, read};

/// Widths worth trying; the other tiers load with one of these.
const TIERS: [Tier; 3] = [Tier::Portable, Tier::Avx2, Tier::Avx512];
const STREAMS: [usize; 4] = [1, 2, 4, 8];
/// Bytes taken from a stream before the next one's turn.
const PIECE: usize = 2048;
/// The fastest of this many trials counts.
const TRIALS: usize = 5;
/// Bytes read in one trial, and of large memories no more than these.
const TRIAL_LEN: usize = 64 << 20;

/// A way to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    tier: Tier,
    streams: usize,
}

impl Reader {
    /// The one that reads this memory fastest: stretches of `len` bytes, or all of it again and again.
    pub(super) fn fastest(memory: &[u8], len: usize) -> Self {
        let stretch = &memory[..len.min(memory.len())];
        let area = &memory[..memory.len().min(TRIAL_LEN)];
        let repeats = (TRIAL_LEN / area.len()).clamp(1, 64);
        let available = Tier::available();
        let ways = TIERS.into_iter().filter(|tier| available.contains(tier));
        let ways = ways.flat_map(|tier| STREAMS.map(|streams| Reader { tier, streams }));
        let timed = ways.map(|reader| {
            let once = || {
                let (seconds, ()) = Clock::Thread.seconds(|| {
                    for _ in 0..repeats {
                        area.chunks_exact(stretch.len().min(area.len())).for_each(|part| reader.read(part));
                    }
                });
                seconds
            };
            ((0..TRIALS).map(|_| once()).fold(f64::MAX, f64::min), reader)
        });
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).expect("the portable tier is always there").1
    }

    /// Reads every byte.
    pub(super) fn read(self, bytes: &[u8]) {
        let part = (bytes.len() / self.streams).next_multiple_of(PIECE);
        if self.streams == 1 || part == 0 {
            black_box(read::fold_at(self.tier, black_box(bytes)));
            return;
        }
        let mut sum = 0;
        for at in (0..part).step_by(PIECE) {
            for start in (at..bytes.len()).step_by(part) {
                let end = bytes.len().min(start + PIECE);
                sum ^= read::fold_at(self.tier, black_box(&bytes[start..end]));
            }
        }
        black_box(sum);
    }
}
