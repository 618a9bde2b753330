//! The byte loops everything else is built from: [`xor`], [`gf256`], and `sums`, which runs whole programs of them.
//!
//! One body each, compiled for registers of every width and chosen at run time. This folder is the only place in
//! the crate with `unsafe`: the calls into the wider copies, each behind the check that the processor has them, and
//! the raw slots of `sums`. Every tier is tested against a naive twin.

pub mod bits;
pub mod gf256;
pub(crate) mod sums;
pub mod xor;

/// Instruction sets a kernel's portable body is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// What the target guarantees.
    Portable,
    /// 256-bit integer registers.
    Avx2,
    /// 512-bit registers with byte operations (F, BW and VL).
    Avx512,
}

impl Tier {
    /// The widest tier this processor has. The standard library detects once and remembers.
    #[inline]
    pub fn detect() -> Tier {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512vl")
            {
                return Tier::Avx512;
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                return Tier::Avx2;
            }
        }
        Tier::Portable
    }

    /// This tier, or the widest one this processor has where that is narrower.
    #[inline]
    fn supported(self) -> Tier {
        let widest = Tier::detect();
        if widest < self { widest } else { self }
    }

    /// All tiers this processor can run, narrowest first; tests force each.
    pub fn available() -> &'static [Tier] {
        match Tier::detect() {
            Tier::Portable => &[Tier::Portable],
            Tier::Avx2 => &[Tier::Portable, Tier::Avx2],
            Tier::Avx512 => &[Tier::Portable, Tier::Avx2, Tier::Avx512],
        }
    }
}

/// Defines `$name(tier, args)` that runs `$body(args)` compiled for the tier, or for the widest one the
/// processor has where that is narrower.
macro_rules! tiered {
    ($(#[$doc:meta])* fn $name:ident = $body:ident $([$($generic:tt)*] [$($use_generic:tt)*])? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$doc])*
        #[inline]
        fn $name $(<$($generic)*>)? (tier: $crate::kernel::Tier, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2 $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                    $body $(::<$($use_generic)*>)? ($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
                fn avx512 $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                    $body $(::<$($use_generic)*>)? ($($arg),*)
                }
                match tier.supported() {
                    $crate::kernel::Tier::Avx512 => {
                        // SAFETY: `supported` gives only tiers whose instructions this processor has.
                        return unsafe { avx512 $(::<$($use_generic)*>)? ($($arg),*) };
                    }
                    // SAFETY: as above.
                    $crate::kernel::Tier::Avx2 => return unsafe { avx2 $(::<$($use_generic)*>)? ($($arg),*) },
                    $crate::kernel::Tier::Portable => {}
                }
            }
            let _ = tier;
            $body $(::<$($use_generic)*>)? ($($arg),*)
        }
    };
}
pub(crate) use tiered;

#[cfg(test)]
mod tests;
