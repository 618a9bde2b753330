//! The byte loops everything else is built from: [`xor`] and [`gf256`].
//!
//! One portable body each, compiled once more for wider registers and chosen at run time. This folder is
//! the only place in the crate with `unsafe`: the calls into those wider copies, each behind the check that
//! the processor has them. Every tier is tested against a naive twin. Leaves out hand-written intrinsics.

pub mod bits;
pub mod gf256;
pub mod xor;

/// Instruction sets a kernel's portable body is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// What the target guarantees.
    Portable,
    /// 256-bit integer registers.
    Avx2,
    /// 512-bit registers with byte operations (F and BW).
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
            {
                return Tier::Avx512;
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                return Tier::Avx2;
            }
        }
        Tier::Portable
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
                if tier != $crate::kernel::Tier::Portable {
                    if tier == $crate::kernel::Tier::Avx512
                        && std::arch::is_x86_feature_detected!("avx512f")
                        && std::arch::is_x86_feature_detected!("avx512bw")
                        && std::arch::is_x86_feature_detected!("avx512vl")
                    {
                        // SAFETY: the three features were just found on this processor.
                        return unsafe { avx512 $(::<$($use_generic)*>)? ($($arg),*) };
                    }
                    if std::arch::is_x86_feature_detected!("avx2") {
                        // SAFETY: AVX2 was just found on this processor.
                        return unsafe { avx2 $(::<$($use_generic)*>)? ($($arg),*) };
                    }
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
