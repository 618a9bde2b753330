//! A sum whose sources have coefficients: held in registers over all of them and written once, past the caches where it leaves them.
//! One source after the other, each adding to memory, took three times as many accesses to the first cache and read what was written
//! from memory first: 64 MiB of K = 256 into 192 blocks of 256 KiB, 24 ms on a Zen 4.
#![cfg(target_arch = "x86_64")]

use super::dispatch::by_tier;
use super::gf256::{self, AFFINE};
use super::lanes::Lanes;

/// Registers held at once: of 32 a quarter, of 16 a half with what products need.
const HELD: usize = 4;

/// `dst, out = sum of ones + sum of coefficient * other`, `len` bytes of each. Destinations may be sources.
pub(super) struct Weighted<'a> {
    pub(super) slots: &'a [*mut u8],
    pub(super) ones: &'a [u32],
    pub(super) others: &'a [u32],
    /// One for each of the others.
    pub(super) coefficients: &'a [u8],
    pub(super) dst: *mut u8,
    pub(super) out: Option<*mut u8>,
    pub(super) len: usize,
    /// `out` goes past the caches: it begins at a line.
    pub(super) stream: bool,
}

impl Weighted<'_> {
    /// # Safety
    /// Its slot is one of those there are.
    #[inline(always)]
    unsafe fn source(&self, slot: u32, offset: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.slots.get_unchecked(slot as usize).wrapping_add(offset) }
    }
}

by_tier! {
    /// # Safety
    /// All slots named are there, they and the destinations have `len` bytes, there is a coefficient for each of the others; the tier is
    /// supported. Where it streams, `out` is at a multiple of a line, and a fence follows.
    pub(super) unsafe fn run_at = body(task: &Weighted)
}

/// # Safety
/// As for [`run_at`]; the processor has the tier's instructions.
#[inline(always)]
unsafe fn body<L: Lanes>(task: &Weighted) {
    let (mut offset, wide) = (0, HELD * L::BYTES);
    // SAFETY: the caller's promise; every offset ends within `len`.
    unsafe {
        while offset + wide <= task.len {
            part::<L, HELD>(task, offset);
            offset += wide;
        }
        while offset + L::BYTES <= task.len {
            part::<L, 1>(task, offset);
            offset += L::BYTES;
        }
        for offset in offset..task.len {
            let ones = task.ones.iter().fold(0, |sum, slot| sum ^ *task.source(*slot, offset));
            let others = task.others.iter().zip(task.coefficients);
            let products = others.map(|(slot, c)| gf256::mul(*task.source(*slot, offset), *c));
            let sum = products.fold(ones, |sum, product| sum ^ product);
            task.out.into_iter().chain([task.dst]).for_each(|to| *to.add(offset) = sum);
        }
    }
}

/// `N` registers at `offset`.
///
/// # Safety
/// As for [`body`]; so many bytes are there.
#[inline(always)]
unsafe fn part<L: Lanes, const N: usize>(task: &Weighted, offset: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [L::zero(); N];
        for slot in task.ones {
            let source = task.source(*slot, offset);
            for (place, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(L::load(source.wrapping_add(place * L::BYTES)));
            }
        }
        for (slot, coefficient) in task.others.iter().zip(task.coefficients) {
            let source = task.source(*slot, offset);
            let factor = L::factor(&[*coefficient], &[AFFINE[usize::from(*coefficient)]], 0);
            for (place, sum) in sums.iter_mut().enumerate() {
                let loaded = L::load(source.wrapping_add(place * L::BYTES));
                *sum = sum.xor(L::times(loaded.split(), factor));
            }
        }
        for (place, sum) in sums.into_iter().enumerate() {
            let at = offset + place * L::BYTES;
            sum.store(task.dst.wrapping_add(at));
            if let Some(out) = task.out {
                let out = out.wrapping_add(at);
                if task.stream { sum.stream(out) } else { sum.store(out) }
            }
        }
    }
}
