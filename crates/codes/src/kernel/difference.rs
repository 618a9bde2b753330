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
    let factors = coefficients.chunks(WIDTH).zip(maps.chunks(WIDTH));
    for (outputs, (coefficients, maps)) in outputs.chunks_mut(WIDTH).zip(factors) {
        let mut dst = [core::ptr::null_mut(); WIDTH];
        for (dst, output) in dst.iter_mut().zip(outputs.iter_mut()) {
            *dst = output.as_mut_ptr();
        }
        let task = Task { coefficients, maps, old, new, dst };
        // SAFETY: all have `len` bytes, checked just now; outputs are borrowed uniquely; the tier is supported.
        unsafe { super::steps::differences_at(tier, &task) }
    }
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
        match task.maps.len() {
            1 => exact::<L, 1>(task),
            2 => exact::<L, 2>(task),
            3 => exact::<L, 3>(task),
            4 => exact::<L, 4>(task),
            _ => unreachable!("groups of one to four"),
        }
    }
}

/// # Safety
/// As for [`sized`], with `M` outputs.
#[inline(always)]
unsafe fn exact<L: Lanes, const M: usize>(task: &Task) {
    let len = task.old.len();
    // SAFETY: the caller's promise; offsets end at `len`, and the buffer is as long as the widest register.
    unsafe {
        let factors: [L::Factor; M] = core::array::from_fn(|at| L::factor(task.coefficients, task.maps, at));
        let dst: [*mut u8; M] = core::array::from_fn(|at| task.dst[at]);
        let [old, new] = [task.old.as_ptr(), task.new.as_ptr()];
        let mut offset = 0;
        while offset + 4 * L::BYTES <= len {
            step::<L, M, 4>([old.add(offset), new.add(offset)], dst.map(|dst| dst.add(offset)), &factors);
            offset += 4 * L::BYTES;
        }
        while offset + L::BYTES <= len {
            step::<L, M, 1>([old.add(offset), new.add(offset)], dst.map(|dst| dst.add(offset)), &factors);
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
            step::<L, M, 1>([sources[0].as_ptr(), sources[1].as_ptr()], to, &factors);
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
unsafe fn step<L: Lanes, const M: usize, const U: usize>(
    [old, new]: [*const u8; 2],
    dst: [*mut u8; M],
    factors: &[L::Factor; M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums: [L::Split; U] = core::array::from_fn(|place| {
            let at = place * L::BYTES;
            L::load(old.add(at)).xor(L::load(new.add(at))).split()
        });
        for (dst, factor) in dst.iter().zip(factors) {
            for (place, sum) in sums.iter().enumerate() {
                L::times(*sum, *factor).store(dst.add(place * L::BYTES));
            }
        }
    }
}
