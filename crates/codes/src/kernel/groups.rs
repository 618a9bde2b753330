//! A group of sources into the sums of a block, line by line: what products of many sources from memory are made of.
//!
//! Processors recognise a stream by the instruction that reads it (Zen 4: a stride for each address of a load). So each
//! source of a group has its own copy of the loop's body, one register is taken at a time, and its bytes are fetched
//! [`AHEAD`] of that into the second-level cache. GB/s of data from memory, 1 MiB slices, of one loop for all sources of
//! a group, with a body for each, and fetched ahead too: 16 + 4: 13.8, 16.5, 17.7; 32 + 8: 10.0, 12.2, 16.3 (medians of
//! turns on a busy machine that read 24.5).
#![cfg(target_arch = "x86_64")]

use std::ops::Range;

use super::Tier;
use super::dispatch::by_tier;
use super::gf256::AFFINE;
use super::lanes::Lanes;
use super::steps::{Row, WIDTH_MAX};

/// Sources in a group at most: as many bodies as the loop has.
pub(super) const GROUP: usize = 8;
/// Bytes that sources are fetched ahead; 1024 and 3072 gave the same, 512 less.
const AHEAD: usize = 2048;

/// A group of sources and where their products go.
pub(super) struct Task<'a> {
    /// `stride` for each source, one of them for each output.
    pub(super) coefficients: &'a [u8],
    /// The same as affine maps ([`AFFINE`]).
    pub(super) maps: &'a [u64],
    pub(super) stride: usize,
    /// Number of the first output.
    pub(super) first: usize,
    pub(super) row: Row,
    /// From one to [`GROUP`].
    pub(super) sources: &'a [&'a [u8]],
    /// Whole lines.
    pub(super) range: Range<usize>,
    pub(super) outputs: usize,
    /// Sums of the groups before: read at the range's bytes where there are any.
    pub(super) before: Option<[*const u8; WIDTH_MAX]>,
    /// Written at the range's bytes.
    pub(super) after: [*mut u8; WIDTH_MAX],
    /// Written past the caches.
    pub(super) stream: bool,
}

/// # Safety
/// Sources reach the range's end, and so do the addresses, at lines, of the sums and of as many outputs, of which nobody
/// else writes; there are coefficients for every source; the tier is supported and multiplies at once: others do better side by side.
pub(super) unsafe fn run(tier: Tier, task: &Task) {
    // SAFETY: the caller's promise.
    unsafe {
        match task.outputs {
            0 => {}
            1 => exact_at::<1>(tier, task),
            2 => exact_at::<2>(tier, task),
            3 => exact_at::<3>(tier, task),
            4 => exact_at::<4>(tier, task),
            5 => exact_at::<5>(tier, task),
            6 => exact_at::<6>(tier, task),
            7 => exact_at::<7>(tier, task),
            8 => exact_at::<8>(tier, task),
            _ => unreachable!("at most eight outputs at once"),
        }
    }
}

by_tier! {
    /// # Safety
    /// As for [`run`], with `M` outputs.
    unsafe fn exact_at = exact [const M: usize] [M] (task: &Task)
}

/// How the first output's sum takes the sources: times their coefficients, as they are, not at all, or the first ones as
/// they are and the others not at all.
const PRODUCT: u8 = 0;
const PLAIN: u8 = 1;
const NOTHING: u8 = 2;
const SPLIT: u8 = 3;

/// # Safety
/// As for [`run`], with `M` outputs; the processor has the tier's instructions.
#[inline(always)]
unsafe fn exact<L: Lanes, const M: usize>(task: &Task) {
    if const { !L::AFFINE } {
        unreachable!("blocks are for tiers that multiply at once");
    }
    // SAFETY: the caller's promise.
    unsafe {
        match task.row {
            Row::Plain(ones) | Row::Complement(ones) if L::PAIRS && task.first == 0 => match ones {
                0 => lines::<L, M, NOTHING>(task, 0),
                _ if ones == task.sources.len() => lines::<L, M, PLAIN>(task, ones),
                _ => lines::<L, M, SPLIT>(task, ones),
            },
            _ => lines::<L, M, PRODUCT>(task, 0),
        }
    }
}

/// # Safety
/// As for [`run`], with `M` outputs.
#[inline(always)]
unsafe fn lines<L: Lanes, const M: usize, const FIRST: u8>(task: &Task, ones: usize) {
    let count = task.sources.len();
    assert!((1..=GROUP).contains(&count), "a group of sources");
    let sources: [*const u8; GROUP] = core::array::from_fn(|at| task.sources[at.min(count - 1)].as_ptr());
    // SAFETY: the caller's promise; offsets are below the range's end, which is whole lines away; a prefetch faults at
    // no address.
    unsafe {
        let factor = |source: usize, output: usize| {
            if FIRST == SPLIT && output == 0 {
                L::factor(&[0, 1], &[AFFINE[0], AFFINE[1]], usize::from(source < ones))
            } else {
                L::factor(task.coefficients, task.maps, source * task.stride + task.first + output)
            }
        };
        for offset in task.range.clone().step_by(L::BYTES) {
            let mut sums = [L::zero(); M];
            if let Some(before) = &task.before {
                for (sum, before) in sums.iter_mut().zip(before) {
                    *sum = L::load(before.wrapping_add(offset));
                }
            }
            let source = |at: usize| {
                let from = sources[at].wrapping_add(offset);
                if L::BYTES == 64 || offset.is_multiple_of(64) {
                    use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(AHEAD).cast());
                }
                L::load(from)
            };
            macro_rules! pair {
                ($at:literal) => {
                    if $at + 1 < count {
                        let [a, b] = [source($at), source($at + 1)];
                        let [split_a, split_b] = [a.split(), b.split()];
                        for (output, sum) in sums.iter_mut().enumerate() {
                            if output > 0 || FIRST == PRODUCT || FIRST == SPLIT {
                                let product = L::times(split_a, factor($at, output));
                                *sum = sum.xor3(product, L::times(split_b, factor($at + 1, output)));
                            } else if FIRST == PLAIN {
                                *sum = sum.xor3(a, b);
                            }
                        }
                    } else if $at < count {
                        let a = source($at);
                        let split = a.split();
                        for (output, sum) in sums.iter_mut().enumerate() {
                            if output > 0 || FIRST == PRODUCT || FIRST == SPLIT {
                                *sum = sum.xor(L::times(split, factor($at, output)));
                            } else if FIRST == PLAIN {
                                *sum = sum.xor(a);
                            }
                        }
                    }
                };
            }
            pair!(0);
            pair!(2);
            pair!(4);
            pair!(6);
            if let (Row::Complement(_), true, [complement, others @ ..]) =
                (task.row, FIRST != PRODUCT, &mut sums[..])
            {
                others.iter().for_each(|other| *complement = complement.xor(*other));
            }
            for (sum, after) in sums.iter().zip(task.after) {
                let to = after.wrapping_add(offset);
                if task.stream { sum.stream(to) } else { sum.store(to) }
            }
        }
    }
}
