//! The plain sum of two parities formed apart from the weighted one, a few lines of all columns at a time.
//!
//! ```text
//!   run of blocks    column 0    | lines 0 .. 3 | lines 4 .. 7 | ..         a step: the same lines of all columns,
//!                    column 1    | lines 0 .. 3 | lines 4 .. 7 | ..         their sum kept in the first cache
//! ```
//!
//! Whatever a code's packets, row r of the plain sum is that of all rows r: it can be walked as Reed-Solomon walks its
//! sources (`steps`), which is how processors follow streams from memory best. On Zen 5 Cauchy's 4 + 2 and 10 + 2 have 0.83 to
//! 0.87 and 0.89 to 0.93 of reading speed by steps of four lines, 0.78 and 0.75 by whole blocks of eight.
//!
//! Soundness: callers give addresses that [`Double::run`](super::Double::run) has checked.

use core::mem::MaybeUninit;
use std::ops::Range;

use super::super::register::Register;
use super::super::xor::fetch;
use super::{Column, PACKET};

/// Columns added at once: each has a copy of the loop's body, since processors recognise a stream by the instruction that
/// reads it.
pub(super) const GROUP: usize = 12;
const _: () = assert!(GROUP == 12, "as many bodies as `step` has");
/// Registers of a column in a step.
const STEP: usize = 4;
/// Bytes that columns are fetched ahead: 2048 gave less for 4 + 2.
const AHEAD: usize = 1024;
/// Bytes of a run at most: two blocks of 10 packets.
const RUN_MAX: usize = 2 * 10 * PACKET;

/// The first `whole` bytes, blocks of `N` packets, in runs of whole steps; the last may be shorter.
pub(super) fn runs<const N: usize>(whole: usize) -> impl Iterator<Item = Range<usize>> {
    let run = const {
        let run = N * PACKET * if N.is_multiple_of(STEP) { 1 } else { 2 };
        assert!(run <= RUN_MAX, "there is room for its sum");
        run
    };
    (0..whole).step_by(run).map(move |start| start..whole.min(start + run))
}

/// The plain sum of a run.
#[repr(align(64))]
pub(super) struct RowSums(MaybeUninit<[u8; RUN_MAX]>);

impl RowSums {
    pub(super) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Sums bytes `run` of all columns, which are fetched ahead if they come from memory.
    ///
    /// # Safety
    /// There are columns, and all have those bytes, which are one of [`runs`]; the processor has the tier's instructions.
    #[inline(always)]
    pub(super) unsafe fn form<R: Register, const FETCH: bool>(
        &mut self,
        sources: &[&[u8]],
        columns: &[Column],
        run: Range<usize>,
    ) {
        debug_assert!(run.len() <= RUN_MAX && run.len().is_multiple_of(PACKET), "one of the runs");
        // SAFETY: the caller's promise; steps end with the run.
        unsafe {
            let to = self.0.as_mut_ptr().cast::<u8>().wrapping_sub(run.start);
            for (group, columns) in columns.chunks(GROUP).enumerate() {
                let mut offset = run.start;
                while offset + STEP * R::BYTES <= run.end {
                    step::<R, STEP, FETCH>(sources, columns, offset, to, group > 0);
                    offset += STEP * R::BYTES;
                }
                while offset < run.end {
                    step::<R, 1, FETCH>(sources, columns, offset, to, group > 0);
                    offset += R::BYTES;
                }
            }
        }
    }

    /// Where the sum of the run's byte `offset` is.
    pub(super) fn at(&self, offset: usize) -> *const u8 {
        debug_assert!(offset < RUN_MAX, "a byte of a run");
        self.0.as_ptr().cast::<u8>().wrapping_add(offset)
    }
}

/// `U` registers of every column, [`GROUP`] at most, summed at `to`; what is there counts if there is `more`.
///
/// # Safety
/// As for [`RowSums::form`]; `to` has those bytes at `offset`.
#[inline(always)]
unsafe fn step<R: Register, const U: usize, const FETCH: bool>(
    sources: &[&[u8]],
    columns: &[Column],
    offset: usize,
    to: *mut u8,
    more: bool,
) {
    // SAFETY: the caller's promise; `Double::run` has looked every source up.
    unsafe {
        let to = to.wrapping_add(offset);
        let mut sums = [R::zero(); U];
        if more {
            for (at, sum) in sums.iter_mut().enumerate() {
                *sum = R::load(to.add(at * R::BYTES));
            }
        }
        macro_rules! bodies {
            ($($at:literal)*) => {$(
                if let Some(column) = columns.get($at) {
                    let from = sources.get_unchecked(column.source).as_ptr().add(offset);
                    for (at, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.xor(R::load(from.add(at * R::BYTES)));
                    }
                    if FETCH {
                        for line in (0..U * R::BYTES).step_by(PACKET) {
                            fetch(from.wrapping_add(AHEAD + line));
                        }
                    }
                }
            )*};
        }
        bodies!(0 1 2 3 4 5 6 7 8 9 10 11);
        for (at, sum) in sums.into_iter().enumerate() {
            sum.store(to.add(at * R::BYTES));
        }
    }
}
