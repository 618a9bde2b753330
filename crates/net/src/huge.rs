//! Pages of 2 MiB for memory that is worked on as a whole.
//!
//! The processor finds an address through a table of pages, and a segment of 64 MiB takes 16,384 small ones, more than
//! it remembers: coding such a segment went 14 to 25 % faster on large pages. Where the system gives those only to who asks
//! (`madvise`, the usual setting), this asks. The one system call here that `rustix` cannot make safe.

use rustix::mm::{Advice, madvise};
use std::mem::MaybeUninit;

/// A large page, bytes.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Asks for large pages where they fit into `memory`; pages that were touched before stay as they are. Says whether the
/// system took notice: without, nothing changes.
pub fn huge_pages(memory: &mut [MaybeUninit<u8>]) -> bool {
    advise(memory, Advice::LinuxHugepage)
}

/// The same for memory that has something in it.
pub(crate) fn huge_pages_of(memory: &mut [u8]) -> bool {
    advise(memory, Advice::LinuxHugepage)
}

/// Gives the large pages within `memory` back to the system, and with them what was written there: they are zero from then on. The allocator,
/// to which such memory returns, may keep it.
pub(crate) fn discard(memory: &mut [impl Byte]) {
    advise(memory, Advice::LinuxDontNeed);
}

/// A byte that may be zero.
pub(crate) trait Byte {}
impl Byte for u8 {}
impl Byte for MaybeUninit<u8> {}

fn advise(memory: &mut [impl Byte], advice: Advice) -> bool {
    let offset = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
    let Some(fits) = memory.len().checked_sub(offset) else { return false };
    let len = fits - fits % HUGE_PAGE_BYTES;
    if len == 0 {
        return false;
    }
    let start = memory[offset..].as_mut_ptr();
    // SAFETY: the pages lie within memory that the caller holds alone, of bytes that may be zero. The one advice changes none of them, the
    // other makes them zero.
    unsafe { madvise(start.cast(), len, advice) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_its_bytes_and_what_is_too_small_is_left_alone() {
        let mut memory: Vec<MaybeUninit<u8>> = (0..HUGE_PAGE_BYTES).map(|_| MaybeUninit::new(7)).collect();
        let aligned = memory.as_ptr().align_offset(HUGE_PAGE_BYTES) == 0;
        assert!(aligned || !huge_pages(&mut memory));
        assert!(!huge_pages(&mut []));
        memory.resize(3 * HUGE_PAGE_BYTES, MaybeUninit::new(9));
        // A system without large pages refuses; the bytes are the same all the same.
        huge_pages(&mut memory);
        let (first, rest) = memory.split_at(HUGE_PAGE_BYTES);
        // SAFETY: every byte was written above.
        assert!(first.iter().all(|byte| unsafe { byte.assume_init() } == 7));
        // SAFETY: as above.
        assert!(rest.iter().all(|byte| unsafe { byte.assume_init() } == 9));
    }
}
