//! What a changed source adds to several outputs of a product, in one pass: `outputs[j] = c[j] * (old + new)`.
//!
//! The sum is formed once and each product of it stored at once: stores are the limit, with affine maps the products
//! cost nothing beside them.
//!
//! Soundness: [`run`] checks every length before the first address is formed.
#![cfg(target_arch = "x86_64")]

use super::Tier;
use super::lanes::Lanes;

/// Outputs formed at once: their factors stay in registers.
const WIDTH: usize = 4;

/// A factor for each output, as it is and as an affine map ([`AFFINE`](super::gf256::AFFINE)).
///
/// # Panics
/// When lengths or counts differ, or the tier is the portable one or not supported.
#[inline]
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
    if outputs.len() <= WIDTH {
        // SAFETY: checked just now.
        return unsafe { group(tier, (coefficients, maps), old, new, outputs) };
    }
    let factors = coefficients.chunks(WIDTH).zip(maps.chunks(WIDTH));
    for (outputs, (coefficients, maps)) in outputs.chunks_mut(WIDTH).zip(factors) {
        // SAFETY: checked just now.
        unsafe { group(tier, (coefficients, maps), old, new, outputs) }
    }
}

/// At most [`WIDTH`] outputs.
///
/// # Safety
/// All have the bytes that `old` has, and a factor each; the tier is supported.
#[inline(always)]
unsafe fn group(
    tier: Tier,
    (coefficients, maps): (&[u8], &[u64]),
    old: &[u8],
    new: &[u8],
    outputs: &mut [&mut [u8]],
) {
    let mut dst = [core::ptr::null_mut(); WIDTH];
    for (dst, output) in dst.iter_mut().zip(outputs.iter_mut()) {
        *dst = output.as_mut_ptr();
    }
    let task = Task { coefficients, maps, old, new, dst };
    // SAFETY: the caller's promise; outputs are borrowed uniquely.
    unsafe { super::steps::differences_at(tier, &task) }
}

/// At most [`WIDTH`] outputs.
pub(super) struct Task<'a> {
    coefficients: &'a [u8],
    maps: &'a [u64],
    old: &'a [u8],
    new: &'a [u8],
    dst: [*mut u8; WIDTH],
}

/// # Safety
/// `old`, `new` and an output for each factor have so many bytes; the processor has the tier's instructions.
#[inline(always)]
pub(super) unsafe fn sized<L: Lanes>(task: &Task) {
    // SAFETY: the caller's promise.
    unsafe {
        match (task.maps.len(), task.coefficients.first()) {
            (2, Some(1)) => exact::<L, 2, true>(task),
            (1, _) => exact::<L, 1, false>(task),
            (2, _) => exact::<L, 2, false>(task),
            (3, _) => exact::<L, 3, false>(task),
            (4, _) => exact::<L, 4, false>(task),
            _ => unreachable!("groups of one to four"),
        }
    }
}

/// # Safety
/// As for [`sized`], with `M` outputs, the first with factor `ONE` where that is so.
#[inline(always)]
unsafe fn exact<L: Lanes, const M: usize, const ONE: bool>(task: &Task) {
    let len = task.old.len();
    // SAFETY: the caller's promise; offsets end at `len`, and the buffer is as long as the widest register.
    unsafe {
        let factors: [L::Factor; M] = core::array::from_fn(|at| L::factor(task.coefficients, task.maps, at));
        let dst: [*mut u8; M] = core::array::from_fn(|at| task.dst[at]);
        let [old, new] = [task.old.as_ptr(), task.new.as_ptr()];
        let mut offset = 0;
        while offset + 4 * L::BYTES <= len {
            step::<L, M, 4, ONE>(
                [old.add(offset), new.add(offset)],
                dst.map(|dst| dst.add(offset)),
                &factors,
            );
            offset += 4 * L::BYTES;
        }
        while offset + L::BYTES <= len {
            step::<L, M, 1, ONE>(
                [old.add(offset), new.add(offset)],
                dst.map(|dst| dst.add(offset)),
                &factors,
            );
            offset += L::BYTES;
        }
        let rest = len - offset;
        if rest > 0 {
            let (mut sources, mut made) = ([[0u8; 64]; 2], [[0u8; 64]; M]);
            sources[0].as_mut_ptr().copy_from_nonoverlapping(old.add(offset), rest);
            sources[1].as_mut_ptr().copy_from_nonoverlapping(new.add(offset), rest);
            let mut to = [core::ptr::null_mut(); M];
            for (to, made) in to.iter_mut().zip(&mut made) {
                *to = made.as_mut_ptr();
            }
            step::<L, M, 1, ONE>([sources[0].as_ptr(), sources[1].as_ptr()], to, &factors);
            for (dst, from) in dst.iter().zip(to) {
                dst.add(offset).copy_from_nonoverlapping(from, rest);
            }
        }
    }
}

/// `U` registers.
///
/// # Safety
/// There are so many bytes at every address; the processor has the tier's instructions.
#[inline(always)]
unsafe fn step<L: Lanes, const M: usize, const U: usize, const ONE: bool>(
    [old, new]: [*const u8; 2],
    dst: [*mut u8; M],
    factors: &[L::Factor; M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums: [L; U] = core::array::from_fn(|place| {
            let at = place * L::BYTES;
            L::load(old.add(at)).xor(L::load(new.add(at)))
        });
        let split: [L::Split; U] = core::array::from_fn(|place| sums[place].split());
        for (output, (dst, factor)) in dst.iter().zip(factors).enumerate() {
            for place in 0..U {
                let made = if ONE && output == 0 { sums[place] } else { L::times(split[place], *factor) };
                made.store(dst.add(place * L::BYTES));
            }
        }
    }
}
