//! What the processor says of its caches.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Ways where the processor does not say.
const USUAL: usize = 8;

/// Lines that the first-level data cache keeps of addresses a power of two apart.
pub(super) fn first_cache_ways() -> usize {
    // 0 before it was asked.
    static WAYS: AtomicUsize = AtomicUsize::new(0);
    once(&WAYS, || cache(1).map_or(USUAL, |cache| cache.ways))
}

/// Bytes of the second-level cache; 1 where the processor does not say.
pub(super) fn second_cache_bytes() -> usize {
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    once(&BYTES, || cache(2).map_or(1, |cache| cache.bytes))
}

/// Asks the processor once: a virtual machine stops for that.
fn once(known: &AtomicUsize, ask: impl FnOnce() -> usize) -> usize {
    // Relaxed: it guards nothing.
    match known.load(Ordering::Relaxed) {
        0 => {
            let asked = ask().max(1);
            known.store(asked, Ordering::Relaxed);
            asked
        }
        known => known,
    }
}

struct Cache {
    ways: usize,
    bytes: usize,
}

/// Intel's leaf 4 and AMD's of the same form, one cache a subleaf (Intel 64 and IA-32 Architectures Software Developer's Manual,
/// CPUID; AMD64 Architecture Programmer's Manual, volume 3, appendix E.4.15).
#[cfg(target_arch = "x86_64")]
#[cold]
fn cache(level: u32) -> Option<Cache> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// As many caches as no processor has.
    const CACHES_MAX: u32 = 16;
    const DATA: u32 = 1;
    const UNIFIED: u32 = 3;
    [4, 0x8000_001d].into_iter().filter(|leaf| __cpuid(leaf & 0x8000_0000).eax >= *leaf).find_map(|leaf| {
        let mut caches =
            (0..CACHES_MAX).map(|at| __cpuid_count(leaf, at)).take_while(|cache| cache.eax & 0x1f != 0);
        let found =
            caches.find(|cache| matches!(cache.eax & 0x1f, DATA | UNIFIED) && cache.eax >> 5 & 7 == level)?;
        let count = |bits: u32| bits as usize + 1;
        let (ways, partitions, line) =
            (count(found.ebx >> 22), count(found.ebx >> 12 & 0x3ff), count(found.ebx & 0xfff));
        // A hypervisor may say anything.
        let bytes = [partitions, line, count(found.ecx)].into_iter().fold(ways, usize::saturating_mul);
        Some(Cache { ways, bytes })
    })
}

#[cfg(not(target_arch = "x86_64"))]
#[cold]
fn cache(_: u32) -> Option<Cache> {
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

    #[test]
    fn the_second_cache_is_no_smaller_than_the_first_and_keeps_its_size() {
        let bytes = second_cache_bytes();
        // A hypervisor may hide it.
        let first = cache(2).and(cache(1)).map_or(1, |cache| cache.bytes);
        assert!((first..1 << 30).contains(&bytes), "{bytes} beside {first}");
        assert_eq!(second_cache_bytes(), bytes);
    }
}
