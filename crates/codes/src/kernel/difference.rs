//! What a changed source adds to several outputs of a product, in one pass: `outputs[j] = c[j] * (old + new)`.
//!
//! The sum is formed once and each product of it stored at once: stores are the limit, with affine maps the products
//! cost nothing beside them.
//!
//! Soundness: [`run`] checks every length before the first address is formed.
#![cfg(target_arch = "x86_64")]

use std::ops::Range;

use super::Tier;
use super::dispatch::by_tier;
use super::lanes::Lanes;

/// Outputs formed at once: their factors stay in registers.
const WIDTH: usize = 4;

/// A factor for each output, as it is and as an affine map ([`AFFINE`](super::gf256::AFFINE)).
///
/// # Panics
/// When lengths or counts differ, or the tier is the portable one or not supported.
#[inline(always)]
pub(super) fn run(
    tier: Tier,
    (coefficients, maps): (&[u8], &[u64]),
    old: &[u8],
    new: &[u8],
    outputs: &mut [&mut [u8]],
) {
    assert!(tier.is_supported() && tier != Tier::Portable, "a tier with registers");
    assert!(coefficients.len() == outputs.len() && maps.len() == outputs.len(), "a factor for each output");
    let len = old.len();
    assert!(new.len() == len && outputs.iter().all(|output| output.len() == len), "slices of one length");
    // SAFETY: checked just now; outputs are borrowed uniquely.
    unsafe { groups(tier, coefficients.as_ptr(), maps.as_ptr(), [old, new], outputs) }
}

/// Outputs, at most [`WIDTH`] at once. The arguments are what the caller has anyway, nearly all of them in registers: stores are what
/// limits a short delta, and those of a call count among them.
///
/// # Safety
/// All have the bytes that `old` has, and a factor each; the tier is supported.
#[inline(always)]
unsafe fn groups(
    tier: Tier,
    coefficients: *const u8,
    maps: *const u64,
    [old, new]: [&[u8]; 2],
    outputs: &mut [&mut [u8]],
) {
    let (len, rest) = (old.len(), old.len() % 64);
    for (group, outputs) in outputs.chunks_mut(WIDTH).enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let (coefficients, maps) = (coefficients.add(group * WIDTH), maps.add(group * WIDTH));
            let [old, new] = [old.as_ptr(), new.as_ptr()];
            sized_at(tier, coefficients, maps, old, new, len - rest, outputs);
            if rest > 0 {
                last_bytes(tier, coefficients, maps, [old, new], len - rest..len, outputs);
            }
        }
    }
}

/// The bytes past the last whole line.
///
/// # Safety
/// As for [`groups`], of one group.
#[inline(never)]
unsafe fn last_bytes(
    tier: Tier,
    coefficients: *const u8,
    maps: *const u64,
    [old, new]: [*const u8; 2],
    range: Range<usize>,
    outputs: &mut [&mut [u8]],
) {
    let (mut sources, mut made) = ([[0u8; 64]; 2], [[0u8; 64]; WIDTH]);
    // SAFETY: the caller's promise; a line has room for the rest of one.
    unsafe {
        for (line, from) in sources.iter_mut().zip([old, new]) {
            line.as_mut_ptr().copy_from_nonoverlapping(from.add(range.start), range.len());
        }
        let [old, new] = sources.each_ref().map(|line| line.as_ptr());
        let mut lines = made.each_mut().map(|line| &mut line[..]);
        sized_at(tier, coefficients, maps, old, new, 64, &mut lines[..outputs.len()]);
    }
    for (output, made) in outputs.iter_mut().zip(&made) {
        output[range.clone()].copy_from_slice(&made[..range.len()]);
    }
}

by_tier! {
    /// `len` bytes, whole lines, of at most [`WIDTH`] outputs.
    ///
    /// # Safety
    /// `len` is a multiple of 64; `old`, `new` and every output have so many bytes, and each output a factor; the tier is supported.
    unsafe fn sized_at = sized(
        coefficients: *const u8,
        maps: *const u64,
        old: *const u8,
        new: *const u8,
        len: usize,
        outputs: &mut [&mut [u8]],
    )
}

/// # Safety
/// As for [`sized_at`]; the processor has the tier's instructions.
#[inline(always)]
unsafe fn sized<L: Lanes>(
    coefficients: *const u8,
    maps: *const u64,
    old: *const u8,
    new: *const u8,
    len: usize,
    outputs: &mut [&mut [u8]],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sources = [old, new];
        match outputs.len() {
            1 if *coefficients == 1 => exact::<L, 1, true>(coefficients, maps, sources, len, outputs),
            2 if *coefficients == 1 => exact::<L, 2, true>(coefficients, maps, sources, len, outputs),
            3 if *coefficients == 1 => exact::<L, 3, true>(coefficients, maps, sources, len, outputs),
            4 if *coefficients == 1 => exact::<L, 4, true>(coefficients, maps, sources, len, outputs),
            1 => exact::<L, 1, false>(coefficients, maps, sources, len, outputs),
            2 => exact::<L, 2, false>(coefficients, maps, sources, len, outputs),
            3 => exact::<L, 3, false>(coefficients, maps, sources, len, outputs),
            4 => exact::<L, 4, false>(coefficients, maps, sources, len, outputs),
            _ => unreachable!("groups of one to four"),
        }
    }
}

/// # Safety
/// As for [`sized`], with `M` outputs, the first with factor `ONE` where that is so.
#[inline(always)]
unsafe fn exact<L: Lanes, const M: usize, const ONE: bool>(
    coefficients: *const u8,
    maps: *const u64,
    [old, new]: [*const u8; 2],
    len: usize,
    outputs: &mut [&mut [u8]],
) {
    debug_assert!(len.is_multiple_of(64), "whole lines");
    // SAFETY: the caller's promise; offsets end at `len`.
    unsafe {
        let coefficients = core::slice::from_raw_parts(coefficients, M);
        let maps = core::slice::from_raw_parts(maps, M);
        let mut factors = [L::factor(coefficients, maps, 0); M];
        let mut dst = [core::ptr::null_mut(); M];
        for (at, output) in outputs.iter_mut().enumerate().take(M) {
            (factors[at], dst[at]) = (L::factor(coefficients, maps, at), output.as_mut_ptr());
        }
        let mut offset = 0;
        while offset + 4 * L::BYTES <= len {
            step::<L, M, 4, ONE>([old.add(offset), new.add(offset)], offset, &dst, &factors);
            offset += 4 * L::BYTES;
        }
        while offset < len {
            step::<L, M, 1, ONE>([old.add(offset), new.add(offset)], offset, &dst, &factors);
            offset += L::BYTES;
        }
    }
}

/// `U` registers, to `offset` of the outputs.
///
/// # Safety
/// There are so many bytes at every address; the processor has the tier's instructions.
#[inline(always)]
unsafe fn step<L: Lanes, const M: usize, const U: usize, const ONE: bool>(
    [old, new]: [*const u8; 2],
    offset: usize,
    dst: &[*mut u8; M],
    factors: &[L::Factor; M],
) {
    // No closures: what is not inlined of them is not compiled for the tier.
    // SAFETY: the caller's promise.
    unsafe {
        for place in 0..U {
            let at = place * L::BYTES;
            let sum = L::load(old.add(at)).xor(L::load(new.add(at)));
            let split = sum.split();
            for output in 0..M {
                let made = if ONE && output == 0 { sum } else { L::times(split, factors[output]) };
                made.store(dst[output].add(offset + at));
            }
        }
    }
}
