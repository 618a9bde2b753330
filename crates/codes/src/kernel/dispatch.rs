//! One body, compiled for each tier and chosen at run time: [`tiered`] for loops in plain Rust, [`by_width`] for those over registers that
//! are only added, [`by_tier`] for those that multiply.
//!
//! Each copy is a function of its own, and so is each value of a body's parameters. The compiler takes more than twice as long for a
//! function of twice the length: with all counts of outputs in one function a tier, products alone kept it busy for more than six minutes.

/// Defines `$name(tier, args)` that runs `$body` over the tier's registers, with parameters `$generic` where there are such.
#[cfg(target_arch = "x86_64")]
macro_rules! by_tier {
    ($(#[$doc:meta])* $visible:vis unsafe fn $name:ident = $body:ident
     $([$($generic:tt)*] [$($use_generic:tt)*])? ($($arg:ident: $ty:ty),* $(,)?)) => {
        $(#[$doc])*
        $visible unsafe fn $name $(<$($generic)*>)? (tier: $crate::kernel::Tier, $($arg: $ty),*) {
            use $crate::kernel::{Tier, lanes};
            #[target_feature(enable = "ssse3")]
            unsafe fn ssse3 $(<$($generic)*>)? ($($arg: $ty),*) {
                // SAFETY: the caller's promise, passed on; the tier is this function's.
                unsafe { $body::<lanes::Shuffle128 $(, $($use_generic)*)?>($($arg),*) }
            }
            #[target_feature(enable = "avx2")]
            unsafe fn avx2 $(<$($generic)*>)? ($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $body::<lanes::Shuffle256 $(, $($use_generic)*)?>($($arg),*) }
            }
            #[target_feature(enable = "avx2,gfni")]
            unsafe fn avx2_gfni $(<$($generic)*>)? ($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $body::<lanes::Affine256 $(, $($use_generic)*)?>($($arg),*) }
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
            unsafe fn avx512 $(<$($generic)*>)? ($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $body::<lanes::Shuffle512 $(, $($use_generic)*)?>($($arg),*) }
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
            unsafe fn avx512_gfni $(<$($generic)*>)? ($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $body::<lanes::Affine512 $(, $($use_generic)*)?>($($arg),*) }
            }
            // SAFETY: the caller's promise, passed on: the tier is supported.
            unsafe {
                match tier {
                    Tier::Portable => unreachable!("the portable tier has its own loops"),
                    Tier::Ssse3 => ssse3 $(::<$($use_generic)*>)? ($($arg),*),
                    Tier::Avx2 => avx2 $(::<$($use_generic)*>)? ($($arg),*),
                    Tier::Avx2Gfni => avx2_gfni $(::<$($use_generic)*>)? ($($arg),*),
                    Tier::Avx512 => avx512 $(::<$($use_generic)*>)? ($($arg),*),
                    Tier::Avx512Gfni => avx512_gfni $(::<$($use_generic)*>)? ($($arg),*),
                }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use by_tier;

/// Defines `$name(tier, args)` that runs `$body` over registers of the tier's width, with the parameters `$generic`.
macro_rules! by_width {
    ($(#[$doc:meta])* $visible:vis unsafe fn $name:ident = $body:ident
     [$($generic:tt)*] [$($use_generic:tt)*] ($($arg:ident: $ty:ty),* $(,)?)) => {
        $(#[$doc])*
        $visible unsafe fn $name<$($generic)*>(tier: $crate::kernel::Tier, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::kernel::{Tier, lanes};
                #[target_feature(enable = "avx2")]
                unsafe fn avx2<$($generic)*>($($arg: $ty),*) {
                    // SAFETY: the caller's promise, passed on; the tier is this function's.
                    unsafe { $body::<lanes::Shuffle256, $($use_generic)*>($($arg),*) }
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
                unsafe fn avx512<$($generic)*>($($arg: $ty),*) {
                    // SAFETY: as above.
                    unsafe { $body::<lanes::Shuffle512, $($use_generic)*>($($arg),*) }
                }
                match tier {
                    // SAFETY: the caller's promise, passed on: the tier is supported.
                    Tier::Avx512 | Tier::Avx512Gfni => return unsafe { avx512::<$($use_generic)*>($($arg),*) },
                    // SAFETY: as above.
                    Tier::Avx2 | Tier::Avx2Gfni => return unsafe { avx2::<$($use_generic)*>($($arg),*) },
                    Tier::Ssse3 | Tier::Portable => {}
                }
            }
            let _ = tier;
            // SAFETY: the caller's promise; every processor has these.
            unsafe { $body::<$crate::kernel::register::Plain, $($use_generic)*>($($arg),*) }
        }
    };
}
pub(crate) use by_width;

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
                    $crate::kernel::Tier::Avx512 | $crate::kernel::Tier::Avx512Gfni => {
                        // SAFETY: `supported` gives only tiers whose instructions this processor has.
                        return unsafe { avx512 $(::<$($use_generic)*>)? ($($arg),*) };
                    }
                    $crate::kernel::Tier::Avx2 | $crate::kernel::Tier::Avx2Gfni => {
                        // SAFETY: as above.
                        return unsafe { avx2 $(::<$($use_generic)*>)? ($($arg),*) };
                    }
                    $crate::kernel::Tier::Ssse3 | $crate::kernel::Tier::Portable => {}
                }
            }
            let _ = tier;
            $body $(::<$($use_generic)*>)? ($($arg),*)
        }
    };
}
pub(crate) use tiered;
