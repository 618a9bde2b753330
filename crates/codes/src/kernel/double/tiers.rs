//! Two parities at once at a tier. Apart from the other kernels: both take the compiler minutes, and so it does them side by side.
#![cfg(target_arch = "x86_64")]

use super::{
    super::{
        Tier,
        lanes::{Shuffle256, Shuffle512},
        register::Plain,
        steps::fence,
    },
    Job,
    blocks::body,
};

/// XORs alone, so that only the registers' width counts.
///
/// # Safety
/// As for [`body`]; the tier is supported.
pub(super) unsafe fn run_at(tier: Tier, job: &Job) {
    #[target_feature(enable = "avx2")]
    unsafe fn avx2(job: &Job) {
        // SAFETY: the caller's promise; the tier is this function's.
        unsafe { body::<Shuffle256>(job) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn avx512(job: &Job) {
        // SAFETY: as above.
        unsafe { body::<Shuffle512>(job) }
    }
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match tier {
            Tier::Portable | Tier::Ssse3 => body::<Plain>(job),
            Tier::Avx2 | Tier::Avx2Gfni => avx2(job),
            Tier::Avx512 | Tier::Avx512Gfni => avx512(job),
        }
    }
    if job.stream {
        fence();
    }
}
