//! Buffers cut from slabs of one large page, for the memory of segments.
//!
//! ```text
//!   allocation   [ up to a large page, never touched | slab: buffer, buffer, .. | tail: one byte ]
//! ```
//!
//! A slab is used again once all its buffers were dropped: they come and go with their segment, so that few slabs wait
//! for a last one. Where that matters more than speed (a node's few windows) buffers are allocated one by one.

use crate::huge::{HUGE_PAGE_BYTES, discard, huge_pages};
use bytes::BytesMut;
use std::collections::VecDeque;

/// Bytes of a slab: one page, so that little is held for a buffer that stays.
pub(super) const SLAB_BYTES: usize = HUGE_PAGE_BYTES;
/// Kept slabs looked at before a fresh one is made.
const LOOKED_AT: usize = 64;

/// Slabs cut into buffers of one size.
#[derive(Default)]
pub(super) struct Slabs {
    /// What is left of the slab that is being cut.
    rest: BytesMut,
    /// Tails of slabs, the one cut longest ago first.
    tails: VecDeque<BytesMut>,
}

impl Slabs {
    /// The next buffer of a slab at hand.
    pub(super) fn take(&mut self, size: usize) -> Option<BytesMut> {
        if self.rest.capacity() < size {
            let free = self.free()?;
            self.cut(free);
        }
        let after = self.rest.split_off(size);
        // An empty rest would hold on to its slab.
        let after = if after.capacity() < size { BytesMut::new() } else { after };
        Some(std::mem::replace(&mut self.rest, after))
    }

    /// A slab more.
    pub(super) fn grow(&mut self) {
        self.cut(BytesMut::with_capacity(HUGE_PAGE_BYTES + SLAB_BYTES + 1));
    }

    /// Takes out a slab of which nobody holds a part; the caller sees to the count of bytes.
    pub(super) fn free(&mut self) -> Option<BytesMut> {
        for _ in 0..self.tails.len().min(LOOKED_AT) {
            let mut tail = self.tails.pop_front()?;
            // Only the whole allocation has this much room.
            if tail.try_reclaim(HUGE_PAGE_BYTES + SLAB_BYTES + 1) {
                return Some(tail);
            }
            self.tails.push_back(tail);
        }
        None
    }

    /// Gives memory back that nobody uses. Slabs still in use go to the allocator with their last buffer.
    pub(super) fn release(&mut self) {
        self.rest = BytesMut::new();
        for mut slab in self.tails.drain(..) {
            if slab.try_reclaim(HUGE_PAGE_BYTES + SLAB_BYTES + 1) {
                discard(slab.spare_capacity_mut());
            }
        }
    }

    /// Begins to cut an allocation.
    fn cut(&mut self, mut memory: BytesMut) {
        let mut slab = memory.split_off(memory.as_ptr().align_offset(HUGE_PAGE_BYTES));
        self.tails.push_back(slab.split_off(SLAB_BYTES));
        huge_pages(slab.spare_capacity_mut());
        self.rest = slab;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tails.len()
    }
}
