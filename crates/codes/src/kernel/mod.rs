//! The byte loops everything else is built from: [`xor`], [`gf256`], [`matrix`], and `sums`, `product` and `packets`,
//! which run whole programs of them.
//!
//! Slices that a loop takes together are of one length, and it panics where they are not, as the standard library's `copy_from_slice`
//! does: whoever has two slices knows both. What others send or store comes in through the codes, which answer with typed errors.
//!
//! One body each, compiled for registers of every width and chosen at run time. This folder is the only place in
//! the crate with `unsafe`: the calls into the wider copies, each behind the check that the processor has them; the
//! registers themselves (`register`, `lanes`, `double::field`); raw slots and strips of programs and products (`sums`, `weighted`,
//! `product`, `packets`, `steps`, `accumulate`, `groups`, `difference`, `xor`, `double`); the question where bytes lie (`near`); and in
//! tests a counting allocator. Every tier is tested against a naive twin.

mod accumulate;
pub(crate) mod bits;
mod caches;
#[cfg(test)]
pub(crate) mod counting;
mod difference;
mod dispatch;
pub(crate) mod double;
mod force;
pub mod gf256;
mod groups;
mod lanes;
pub mod matrix;
mod near;
pub(crate) mod packets;
pub(crate) mod product;
pub mod read;
mod register;
mod steps;
pub(crate) mod sums;
mod weighted;
pub mod xor;

pub use force::TierError;

use caches::{first_cache_ways, second_cache_bytes};
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes touched from which what is only written goes past the caches: twice a second-level cache of 1 MiB. From memory that gives a
/// tenth to a half, from such a cache it costs a third.
pub(crate) const STREAM_FROM: usize = 2 * 1024 * 1024;

/// Instruction sets the kernels are compiled for, narrowest first. XOR has one body for each register width; GF(2^8)
/// multiplication has one for each way to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// What the target guarantees.
    Portable,
    /// 128-bit registers with byte shuffles.
    Ssse3,
    /// 256-bit integer registers, byte shuffles among them.
    Avx2,
    /// 256-bit registers with affine maps of bytes over GF(2).
    Avx2Gfni,
    /// 512-bit registers with byte operations (F, BW and VL).
    Avx512,
    /// 512-bit registers with affine maps of bytes over GF(2).
    Avx512Gfni,
}

impl Tier {
    /// All tiers, narrowest first.
    const ALL: [Tier; 6] =
        [Tier::Portable, Tier::Ssse3, Tier::Avx2, Tier::Avx2Gfni, Tier::Avx512, Tier::Avx512Gfni];

    /// Whether this processor has the tier's instructions. It is asked once: a short delta would spend a tenth of its time
    /// on asking for each instruction set again.
    #[inline(always)]
    pub fn is_supported(self) -> bool {
        // A bit for each tier, the portable one's always set; 0 before it was asked. Relaxed: it guards nothing.
        static SUPPORTED: AtomicU8 = AtomicU8::new(0);
        let mut known = SUPPORTED.load(Ordering::Relaxed);
        if known == 0 {
            known = Tier::ask();
            SUPPORTED.store(known, Ordering::Relaxed);
        }
        known >> self as u8 & 1 != 0
    }

    #[cold]
    fn ask() -> u8 {
        let supported = Tier::ALL.into_iter().filter(|tier| tier.has_instructions());
        supported.fold(0, |known, tier| known | 1 << tier as u8)
    }

    fn has_instructions(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx512 = || has!("avx512f") && has!("avx512bw") && has!("avx512vl");
            match self {
                Tier::Portable => true,
                Tier::Ssse3 => has!("ssse3"),
                Tier::Avx2 => has!("avx2"),
                Tier::Avx2Gfni => has!("avx2") && has!("gfni"),
                Tier::Avx512 => avx512(),
                Tier::Avx512Gfni => avx512() && has!("gfni"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Tier::Portable
        }
    }

    /// The widest tier this processor has, or the one that was forced ([`Tier::force`]).
    #[inline(always)]
    pub fn detect() -> Tier {
        Tier::forced().unwrap_or_else(|| Tier::Avx512Gfni.supported())
    }

    /// This tier, or the widest below it where the processor does not have it.
    #[inline(always)]
    fn supported(self) -> Tier {
        let mut tier = self;
        while !tier.is_supported() {
            tier = Tier::ALL[tier as usize - 1];
        }
        tier
    }

    /// All tiers this processor can run, narrowest first; tests force each.
    pub fn available() -> &'static [Tier] {
        static AVAILABLE: std::sync::LazyLock<Vec<Tier>> =
            std::sync::LazyLock::new(|| Tier::ALL.into_iter().filter(|tier| tier.is_supported()).collect());
        &AVAILABLE
    }
}

#[cfg(test)]
mod end_tests;
#[cfg(test)]
mod matrix_tests;
#[cfg(test)]
mod tests;
