//! Buffers cut from slabs of one large page.
//!
//! ```text
//!   allocation   [ up to a large page, never touched | slab: buffer, buffer, .. | tail: one byte ]
//! ```
//!
//! A slab is used again once all its buffers were dropped: they come and go with their segment or with the stream that they arrived
//! on, so that few slabs wait for a last one (nodes that sixteen clients wrote to held 92 MiB, with buffers allocated one by one
//! 107).

use super::ALIGNMENT;
use crate::huge::{HUGE_PAGE_BYTES, discard, huge_pages};
use bytes::BytesMut;
use std::{collections::VecDeque, mem::MaybeUninit};

/// Bytes of a slab: one page, so that little is held for a buffer that stays.
pub(super) const SLAB_BYTES: usize = HUGE_PAGE_BYTES;
/// What a slab is cut from: wherever it begins, there is a whole large page in it, and a byte behind.
const ALLOCATION_BYTES: usize = HUGE_PAGE_BYTES + SLAB_BYTES + 1;
/// Kept slabs looked at before a fresh one is made.
const LOOKED_AT: usize = 64;

/// The allocation of a slab. Not zeros: of what the allocator had before it would clear all of it, also what is never touched.
pub(super) fn fresh() -> BytesMut {
    let mut memory = BytesMut::with_capacity(ALLOCATION_BYTES);
    huge_pages(memory.spare_capacity_mut());
    memory
}

/// Touches each page of the slab in an allocation.
pub(super) fn touch(memory: &mut BytesMut) {
    let before = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
    let slab = &mut memory.spare_capacity_mut()[before..][..SLAB_BYTES];
    slab.iter_mut().step_by(ALIGNMENT).for_each(|byte| *byte = MaybeUninit::new(0));
}

/// Gives an allocation that nobody uses back to the system.
pub(super) fn give_back(mut memory: BytesMut) {
    discard(memory.spare_capacity_mut());
}

/// Slabs cut into buffers of one size.
pub(super) struct Slabs {
    /// What is left of the slab that is being cut, if any is.
    rest: Option<BytesMut>,
    /// Tails of slabs, the one cut longest ago first.
    tails: VecDeque<BytesMut>,
}

impl Slabs {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self { rest: None, tails: VecDeque::new() }
    }

    /// The next buffer of a slab at hand.
    pub(super) fn take(&mut self, size: usize) -> Option<BytesMut> {
        if self.rest.is_none() {
            let free = self.free()?;
            self.cut(free);
        }
        let mut buffer = self.rest.take()?;
        let rest = buffer.split_off(size);
        // An empty rest would hold on to its slab.
        self.rest = (rest.capacity() >= size).then_some(rest);
        Some(buffer)
    }

    /// As [`Slabs::free`], also the one being cut; if it is in use, it is cut no further all the same.
    pub(super) fn give_up(&mut self) -> Option<BytesMut> {
        self.rest = None;
        self.free()
    }

    /// Takes out a slab of which nobody holds a part, and which is not being cut.
    pub(super) fn free(&mut self) -> Option<BytesMut> {
        for _ in 0..self.tails.len().min(LOOKED_AT) {
            let mut tail = self.tails.pop_front()?;
            // Only the whole allocation has this much room.
            if tail.try_reclaim(ALLOCATION_BYTES) {
                return Some(tail);
            }
            self.tails.push_back(tail);
        }
        None
    }

    /// Gives memory back that nobody uses. Slabs still in use go to the allocator with their last buffer.
    pub(super) fn release(&mut self) {
        self.rest = None;
        for mut slab in self.tails.drain(..) {
            if slab.try_reclaim(ALLOCATION_BYTES) {
                give_back(slab);
            }
        }
    }

    /// Begins to cut the allocation of a slab.
    pub(super) fn cut(&mut self, mut memory: BytesMut) {
        let mut slab = memory.split_off(memory.as_ptr().align_offset(HUGE_PAGE_BYTES));
        self.tails.push_back(slab.split_off(SLAB_BYTES));
        self.rest = Some(slab);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tails.len()
    }
}
