//! What the processor says of its caches.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Ways where the processor does not say.
const USUAL: usize = 8;

/// Lines that the first-level data cache keeps of addresses a power of two apart. The processor is asked once: a virtual machine stops
/// for that.
pub(super) fn first_cache_ways() -> usize {
    // 0 before it was asked. Relaxed: it guards nothing.
    static WAYS: AtomicUsize = AtomicUsize::new(0);
    match WAYS.load(Ordering::Relaxed) {
        0 => {
            let ways = ask().filter(|ways| *ways > 0).unwrap_or(USUAL);
            WAYS.store(ways, Ordering::Relaxed);
            ways
        }
        ways => ways,
    }
}

/// Intel's leaf 4 and AMD's of the same form, one cache a subleaf (Intel 64 and IA-32 Architectures Software Developer's Manual,
/// CPUID; AMD64 Architecture Programmer's Manual, volume 3, appendix E.4.15).
#[cfg(target_arch = "x86_64")]
#[cold]
fn ask() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// As many caches as no processor has.
    const CACHES_MAX: u32 = 16;
    const DATA: u32 = 1;
    const UNIFIED: u32 = 3;
    [4, 0x8000_001d].into_iter().filter(|leaf| __cpuid(leaf & 0x8000_0000).eax >= *leaf).find_map(|leaf| {
        let caches =
            (0..CACHES_MAX).map(|at| __cpuid_count(leaf, at)).take_while(|cache| cache.eax & 0x1f != 0);
        let mut first =
            caches.filter(|cache| matches!(cache.eax & 0x1f, DATA | UNIFIED) && cache.eax >> 5 & 7 == 1);
        first.next().map(|cache| (cache.ebx >> 22) as usize + 1)
    })
}

#[cfg(not(target_arch = "x86_64"))]
#[cold]
fn ask() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cache_has_a_few_ways_and_keeps_them() {
        let ways = first_cache_ways();
        assert!((1..=64).contains(&ways), "{ways}");
        assert_eq!(first_cache_ways(), ways);
    }
}
