//! What the kernels of both rings work on: one register of each packet of a block.

use super::super::register::Register;
use super::diagonals::PRIME_MAX;
use super::{Finish, Job, PACKET};

/// Where each column begins, by its weight; null where there is none.
pub(super) type Columns = [*const u8; PRIME_MAX + 1];

/// Of kernels that do not look columns up by their weights.
pub(super) const NONE: Columns = [core::ptr::null(); PRIME_MAX + 1];

/// Bytes that columns are fetched ahead: on Zen 4 512 to 1536 gave the same, more gave less.
const AHEAD: usize = 1024;

/// Asks for what comes later of a column: into the second cache, since lines of more columns than the first has ways, a power of two
/// apart, would push each other out of it before they are read (10 + 2 on Zen 4: RDP 1.0 of Reed-Solomon's speed, 0.72 by way of the first).
#[inline(always)]
pub(super) fn fetch_ahead(at: *const u8) {
    let at = at.wrapping_add(AHEAD);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which faults at no address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    let _ = at;
}

/// How both sums are formed: at once.
pub(super) const HELD: u8 = 0;
/// At once, what comes later asked for meanwhile: many columns from memory (16 + 2 on Zen 5: 0.60 of reading speed, 0.54 without).
pub(super) const FETCHED: u8 = 1;
/// The plain one apart ([`rows`](super::rows)), the first cache keeping what the other needs: where both do not fit the registers, and
/// few columns from memory (on Zen 5 4 + 2: 0.83 of reading speed, 10 + 2: 0.93; at once 0.58 and 0.64).
pub(super) const APART: u8 = 2;

/// A ring with blocks of `N` packets in columns and `T` in the weighted sum.
///
/// # Safety
/// Every method: the strip's promises hold, the processor has the tier's instructions.
pub(super) trait Weigh<R: Register, const N: usize, const T: usize> {
    /// Carries out a finish that needs no weighted sum; `false` where this is none.
    unsafe fn change(strip: &Strip) -> bool;
    /// Adds all columns to the weighted sum and, but where it was formed [`APART`], to the plain one.
    unsafe fn add<const WAY: u8>(strip: &Strip, plain: &mut [R; N], weighted: &mut [R; T]);
    /// Makes the outputs of both sums.
    unsafe fn finish(strip: &Strip, plain: &[R; N], weighted: &[R; T]);
}

/// One register of each packet, the first at `start` of every chunk, packets `stride` apart.
///
/// Whoever makes one promises that [`Double::run`](super::Double::run) has looked every source up, and that all chunks have those
/// bytes.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a> {
    pub(super) job: &'a Job<'a>,
    /// Of a cyclic ring.
    pub(super) columns: &'a Columns,
    pub(super) start: usize,
    pub(super) stride: usize,
}

impl Strip<'_> {
    pub(super) fn finish(&self) -> Finish {
        self.job.double.finish
    }

    /// Where the source at this place of the list has its first packet.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    pub(super) unsafe fn source(&self, place: usize) -> *const u8 {
        // SAFETY: the caller's promise, and the strip's.
        unsafe { self.job.sources.get_unchecked(place).as_ptr().add(self.start) }
    }

    /// Adds the source at this place to the sum.
    ///
    /// # Safety
    /// There is one; the processor has the tier's instructions.
    #[inline(always)]
    pub(super) unsafe fn add_to<R: Register>(&self, sum: &mut [R], place: usize) {
        // SAFETY: the caller's promise; a sum is no longer than the source's packets are many.
        unsafe {
            let from = self.source(place);
            for (row, sum) in sum.iter_mut().enumerate() {
                *sum = sum.xor(R::load(from.add(row * self.stride)));
            }
        }
    }

    pub(super) fn out(&self) -> Out {
        let to = self.job.to.map(|to| to.map(|to| to.wrapping_add(self.start)));
        Out { to, stride: self.stride, stream: self.job.stream }
    }
}

/// Where a strip's packets go.
pub(super) struct Out {
    pub(super) to: [Option<*mut u8>; 2],
    stride: usize,
    stream: bool,
}

impl Out {
    /// # Safety
    /// The output has a packet `row`; the processor has the tier's instructions.
    #[inline(always)]
    pub(super) unsafe fn write<R: Register>(&self, output: usize, row: usize, packet: R) {
        let Some(to) = self.to[output] else { return };
        // SAFETY: the caller's promise; whole blocks that begin at a line have packets that do. Narrower registers
        // would send each line in parts.
        unsafe {
            let to = to.add(row * self.stride);
            if self.stream && R::BYTES == PACKET && self.stride == PACKET {
                packet.stream(to);
            } else {
                packet.store(to);
            }
        }
    }
}
