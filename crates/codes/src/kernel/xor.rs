//! XOR of whole slices. A fused XOR of several sources reads each once and writes the destination once; from
//! memory that is 1.1 to 2.8 times pairwise XOR, because the bytes touched are the limit, not the additions.
//!
//! A destination that is only written goes past the caches where it would not stay there; it would be read first
//! otherwise. More sources than are fused go block by block, the sum in the first-level cache meanwhile.
//!
//! Soundness: [`fused`] and [`set_all`] check every length before the first address is formed.

use super::register::{Plain, Register};
use super::{STREAM_FROM, Tier};

/// Sources fused into one pass.
pub const FUSED_MAX: usize = 8;
/// Bytes of a block where there are more sources than are fused.
const BLOCK: usize = 4096;
/// Bytes that sources are fetched ahead.
const AHEAD: usize = 1024;
/// Sources from which they are fetched by instructions; fewer the processor's prefetcher follows by itself.
const FETCH_FROM: usize = 4;

/// `dst ^= src`.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn xor(dst: &mut [u8], src: &[u8]) {
    fused(Tier::detect(), dst, &[src], false);
}

/// `dst ^= sources[0] ^ sources[1] ^ ..`; nothing happens when there is none.
///
/// # Panics
/// When a source's length is not the destination's.
#[inline]
pub fn xor_many(dst: &mut [u8], sources: &[&[u8]]) {
    fused(Tier::detect(), dst, sources, false);
}

/// `dst = sources[0] ^ sources[1] ^ ..`; zeroes when there is none. The destination is not read.
///
/// # Panics
/// When a source's length is not the destination's.
#[inline]
pub fn set_xor(dst: &mut [u8], sources: &[&[u8]]) {
    fused(Tier::detect(), dst, sources, true);
}

/// Every destination becomes `a ^ b`, which are read once.
///
/// # Panics
/// When the lengths differ.
pub fn set_all(dsts: &mut [&mut [u8]], a: &[u8], b: &[u8]) {
    assert!(a.len() == b.len(), "XOR of slices of different lengths");
    assert!(dsts.iter().all(|dst| dst.len() == a.len()), "XOR of slices of different lengths");
    let tier = Tier::detect();
    let mut pairs = dsts.chunks_exact_mut(2);
    for pair in &mut pairs {
        if let [first, second] = pair {
            let task =
                Task::new([first.as_mut_ptr(), second.as_mut_ptr()], [a.as_ptr(), b.as_ptr()], a.len());
            // SAFETY: all have so many bytes, the destinations borrowed uniquely; nothing is streamed.
            unsafe { run(tier, &task) };
        }
    }
    for dst in pairs.into_remainder() {
        fused(tier, dst, &[a, b], true);
    }
}

/// [`xor_many`] (or [`set_xor`] when `set`) at a given tier; tests and hot loops that detected already use it.
///
/// # Panics
/// When a source's length is not the destination's.
pub(crate) fn fused(tier: Tier, dst: &mut [u8], sources: &[&[u8]], set: bool) {
    let len = dst.len();
    for source in sources {
        assert_eq!(source.len(), len, "XOR of slices of different lengths");
    }
    match sources {
        [] if set => dst.fill(0),
        [] => {}
        _ if sources.len() <= FUSED_MAX => {
            let stream = set && (sources.len() + 1) * len >= STREAM_FROM;
            // Whole lines, whatever the register: half a line past the caches waits for the other half.
            let head = if stream { dst.as_ptr().align_offset(64).min(len) } else { 0 };
            // SAFETY: all have `len` bytes, the destination borrowed uniquely; it is at a line where streamed.
            unsafe {
                if head > 0 {
                    group(tier, dst.as_mut_ptr(), sources, 0, head, set, false);
                }
                group(tier, dst.as_mut_ptr(), sources, head, len - head, set, stream);
            }
        }
        _ => {
            for start in (0..len).step_by(BLOCK) {
                let (mut set, piece) = (set, BLOCK.min(len - start));
                for sources in sources.chunks(FUSED_MAX) {
                    // SAFETY: all have `len` bytes, the destination borrowed uniquely; nothing is streamed.
                    unsafe { group(tier, dst.as_mut_ptr(), sources, start, piece, set, false) };
                    set = false;
                }
            }
        }
    }
}

/// At most [`FUSED_MAX`] sources into one destination, `len` bytes from `start` on.
///
/// # Safety
/// Slices and destination have those bytes, which nobody else uses; where `stream`, the first is at a line.
unsafe fn group(
    tier: Tier,
    dst: *mut u8,
    sources: &[&[u8]],
    start: usize,
    len: usize,
    set: bool,
    stream: bool,
) {
    macro_rules! exactly {
        ($count:literal) => {{
            let sources: [*const u8; $count] = core::array::from_fn(|at| sources[at][start..].as_ptr());
            let task = Task { set, stream, ..Task::new([dst.wrapping_add(start)], sources, len) };
            // SAFETY: the caller's promise.
            unsafe { run(tier, &task) }
        }};
    }
    match sources.len() {
        1 => exactly!(1),
        2 => exactly!(2),
        3 => exactly!(3),
        4 => exactly!(4),
        5 => exactly!(5),
        6 => exactly!(6),
        7 => exactly!(7),
        8 => exactly!(8),
        _ => unreachable!("from one to FUSED_MAX"),
    }
}

/// Addresses of `len` bytes each.
struct Task<const M: usize, const N: usize> {
    dsts: [*mut u8; M],
    sources: [*const u8; N],
    len: usize,
    /// Destinations are not read.
    set: bool,
    /// Destinations go past the caches.
    stream: bool,
}

impl<const M: usize, const N: usize> Task<M, N> {
    fn new(dsts: [*mut u8; M], sources: [*const u8; N], len: usize) -> Self {
        Self { dsts, sources, len, set: true, stream: false }
    }
}

/// # Safety
/// The task's addresses have so many bytes each, which nobody else uses; destinations are at lines where streamed.
unsafe fn run<const M: usize, const N: usize>(tier: Tier, task: &Task<M, N>) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::lanes::{Shuffle256, Shuffle512};
        #[target_feature(enable = "avx2")]
        unsafe fn avx2<const M: usize, const N: usize>(task: &Task<M, N>) {
            // SAFETY: the caller's promise; the tier is this function's.
            unsafe { body::<Shuffle256, M, N>(task) }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn avx512<const M: usize, const N: usize>(task: &Task<M, N>) {
            // SAFETY: as above.
            unsafe { body::<Shuffle512, M, N>(task) }
        }
        // SAFETY: the caller's promise; `supported` gives only tiers whose instructions this processor has.
        unsafe {
            match tier.supported() {
                Tier::Portable | Tier::Ssse3 => body::<Plain, M, N>(task),
                Tier::Avx2 | Tier::Avx2Gfni => avx2(task),
                Tier::Avx512 | Tier::Avx512Gfni => avx512(task),
            }
            if task.stream {
                super::steps::fence();
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = tier;
        // SAFETY: the caller's promise.
        unsafe { body::<Plain, M, N>(task) }
    }
}

/// # Safety
/// As for [`run`]; the processor has the tier's instructions.
#[inline(always)]
unsafe fn body<R: Register, const M: usize, const N: usize>(task: &Task<M, N>) {
    let mut offset = 0;
    // SAFETY: the caller's promise; each call stays within `len`.
    unsafe {
        while offset + 4 * R::BYTES <= task.len {
            add::<R, M, N, 4>(task, offset);
            offset += 4 * R::BYTES;
        }
        while offset + R::BYTES <= task.len {
            add::<R, M, N, 1>(task, offset);
            offset += R::BYTES;
        }
        for offset in offset..task.len {
            let sum = task.sources.iter().fold(0, |sum, source| sum ^ *source.wrapping_add(offset));
            for dst in task.dsts.map(|dst| dst.wrapping_add(offset)) {
                *dst = if task.set { sum } else { *dst ^ sum };
            }
        }
    }
}

/// `U` registers at `offset`.
///
/// # Safety
/// As for [`body`]; there are so many bytes.
#[inline(always)]
unsafe fn add<R: Register, const M: usize, const N: usize, const U: usize>(task: &Task<M, N>, offset: usize) {
    // SAFETY: the caller's promise; a prefetch faults at no address.
    unsafe {
        let mut sums = [R::zero(); U];
        for source in task.sources {
            let from = source.wrapping_add(offset);
            if N >= FETCH_FROM {
                for line in (0..U * R::BYTES).step_by(64) {
                    fetch(from.wrapping_add(AHEAD + line));
                }
            }
            for (place, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(R::load(from.wrapping_add(place * R::BYTES)));
            }
        }
        for dst in task.dsts {
            for (place, sum) in sums.iter().enumerate() {
                let to = dst.wrapping_add(offset + place * R::BYTES);
                if !task.set {
                    sum.xor(R::load(to)).store(to);
                } else if task.stream {
                    sum.stream(to);
                } else {
                    sum.store(to);
                }
            }
        }
    }
}

/// Asks for a line before it is needed.
#[inline(always)]
pub(super) fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which faults at no address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    let _ = at;
}
