//! Walks the blocks of chunks, a [`Strip`] at a time, in the way that fits.

use super::super::{
    Tier,
    dispatch::by_width,
    register::{Byte, Register},
};
use super::cyclic::{self, Cyclic};
use super::field::Field;
use super::rows::{self, RowSums};
use super::strip::{APART, FETCHED, HELD, Strip, Weigh};
use super::{Job, PACKET, Ring};

/// All whole blocks.
///
/// # Safety
/// As [`Double::run`](super::Double::run) has checked; the tier is supported.
pub(super) unsafe fn run(tier: Tier, job: &Job) {
    // SAFETY: the caller's promise.
    unsafe {
        match job.double.ring {
            Ring::Field => ring_at::<FIELD>(tier, job),
            Ring::Cyclic(3) => ring_at::<3>(tier, job),
            Ring::Cyclic(5) => ring_at::<5>(tier, job),
            Ring::Cyclic(7) => ring_at::<7>(tier, job),
            Ring::Cyclic(11) => ring_at::<11>(tier, job),
            Ring::Cyclic(13) => ring_at::<13>(tier, job),
            Ring::Cyclic(17) => ring_at::<17>(tier, job),
            Ring::Cyclic(_) => unreachable!("`Double::new` takes only primes that have a kernel"),
        }
    }
}

/// Stands for [`Ring::Field`] where a cyclic ring has its prime.
const FIELD: usize = 0;

by_width! {
    /// All whole blocks of one ring.
    ///
    /// # Safety
    /// As for [`run`]; the job's ring is the one of `RING`.
    unsafe fn ring_at = ring [const RING: usize] [RING] (job: &Job)
}

/// # Safety
/// As for [`ring_at`]; the processor has the tier's instructions.
#[inline(always)]
unsafe fn ring<R: Register, const RING: usize>(job: &Job) {
    // SAFETY: the caller's promise; `N` packets are the ring's.
    unsafe {
        match RING {
            FIELD => blocks::<R, Field, 8, 8>(job),
            3 => blocks::<R, Cyclic, 2, 3>(job),
            5 => blocks::<R, Cyclic, 4, 5>(job),
            7 => blocks::<R, Cyclic, 6, 7>(job),
            11 if job.large && !fit::<R, 10, 11>() => cyclic::spilled::<R, 10, 11>(job),
            11 => blocks::<R, Cyclic, 10, 11>(job),
            13 if job.large && !fit::<R, 12, 13>() => cyclic::spilled::<R, 12, 13>(job),
            13 => blocks::<R, Cyclic, 12, 13>(job),
            _ => cyclic::spilled::<R, 16, 17>(job),
        }
    }
}

/// Whether both sums and two packets fit the registers.
fn fit<R: Register, const N: usize, const T: usize>() -> bool {
    R::REGISTERS >= N + T + 2
}

/// All whole blocks.
///
/// # Safety
/// As for [`ring`]; the ring has `N` packets and `T` coefficients.
#[inline(always)]
unsafe fn blocks<R: Register, X: Weigh<R, N, T>, const N: usize, const T: usize>(job: &Job) {
    // SAFETY: the caller's promise.
    unsafe {
        if job.apart(fit::<R, N, T>()) {
            strips::<R, X, N, T, APART>(job);
        } else if job.large {
            strips::<R, X, N, T, FETCHED>(job);
        } else {
            strips::<R, X, N, T, HELD>(job);
        }
    }
}

/// All whole blocks, one `WAY`.
///
/// # Safety
/// As for [`blocks`].
#[inline(always)]
unsafe fn strips<R: Register, X: Weigh<R, N, T>, const N: usize, const T: usize, const WAY: u8>(job: &Job) {
    // SAFETY: the caller's promise; runs of blocks end at `len`.
    unsafe {
        let whole = job.len / (N * PACKET) * (N * PACKET);
        let (mut plain, columns) = (RowSums::new(), job.columns());
        for run in rows::runs::<N>(whole) {
            if WAY == APART {
                let (sources, columns) = (job.sources, &job.double.columns[..]);
                if job.large {
                    plain.form::<R, true>(sources, columns, run.clone());
                } else {
                    plain.form::<R, false>(sources, columns, run.clone());
                }
            }
            for block in run.clone().step_by(N * PACKET) {
                for offset in (0..PACKET).step_by(R::BYTES) {
                    let sum = plain.at(block + offset - run.start);
                    let start = block + offset;
                    both::<R, X, N, T, WAY>(Strip { job, columns: &columns, start, stride: PACKET }, sum);
                }
            }
        }
    }
}

/// The last block, whose packets are shorter than a line.
///
/// # Safety
/// As [`Double::run`](super::Double::run) has checked.
pub(super) unsafe fn rest(job: &Job) {
    let count = job.double.ring.packets();
    let start = job.len / (count * PACKET) * (count * PACKET);
    let (packet, columns) = ((job.len - start) / count, job.columns());
    for offset in start..start + packet {
        let strip = Strip { job, columns: &columns, start: offset, stride: packet };
        // SAFETY: the caller's promise; every processor has bytes.
        unsafe {
            match job.double.ring {
                Ring::Field => bytes::<Field, 8, 8>(strip),
                Ring::Cyclic(3) => bytes::<Cyclic, 2, 3>(strip),
                Ring::Cyclic(5) => bytes::<Cyclic, 4, 5>(strip),
                Ring::Cyclic(7) => bytes::<Cyclic, 6, 7>(strip),
                Ring::Cyclic(11) => bytes::<Cyclic, 10, 11>(strip),
                Ring::Cyclic(13) => bytes::<Cyclic, 12, 13>(strip),
                Ring::Cyclic(17) => bytes::<Cyclic, 16, 17>(strip),
                Ring::Cyclic(_) => unreachable!("`Double::new` takes only primes that have a kernel"),
            }
        }
    }
}

/// One byte of each packet.
///
/// # Safety
/// The strip's promises hold.
unsafe fn bytes<X: Weigh<Byte, N, T>, const N: usize, const T: usize>(strip: Strip) {
    // SAFETY: the caller's promise; nothing lies apart.
    unsafe { both::<Byte, X, N, T, HELD>(strip, core::ptr::null()) }
}

/// Both sums of a strip, in registers, and what is made of them. The plain sum of the columns, where it was formed [`APART`], lies
/// at `plain` alike.
///
/// # Safety
/// The strip's promises hold, and `plain` has those bytes in that `WAY`; the processor has the tier's instructions.
#[inline(always)]
unsafe fn both<R: Register, X: Weigh<R, N, T>, const N: usize, const T: usize, const WAY: u8>(
    strip: Strip,
    plain: *const u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if X::change(&strip) {
            return;
        }
        let (mut sum, mut weighted) = ([R::zero(); N], [R::zero(); T]);
        X::add::<WAY>(&strip, &mut sum, &mut weighted);
        if WAY == APART {
            for (row, sum) in sum.iter_mut().enumerate() {
                *sum = R::load(plain.add(row * strip.stride));
            }
        }
        let [in_sum, in_weighted] = strip.job.double.others;
        if let Some(place) = in_sum {
            strip.add_to(&mut sum, place);
        }
        if let Some(place) = in_weighted {
            strip.add_to(&mut weighted[..N], place);
        }
        X::finish(&strip, &sum, &weighted);
    }
}
