//! Memory for payloads and blocks: the one place where it is taken.
//!
//! A receiver allocates and frees a large buffer for every slice; the system's allocator answers that by giving
//! pages back and faulting them in again, which costs as much as receiving does (measured on loopback: 3.7 to 5.5
//! against 7.0 GB per CPU-second), and in a virtual machine whose host takes free pages back several times as much:
//! 0.5 to 1 GB/s. So the process remembers its buffers by an empty handle to their tail: once that handle is the
//! only one left, whoever had the buffer is done with it and it is used again.
//!
//! Whoever works on whole segments says so by [`keep_buffers`]; from then on, until [`release_buffers`], buffers are cut
//! from large pages ([`slabs`]).
//!
//! Invariants: a buffer is handed out only while nobody else can see its bytes; what is remembered takes at most
//! [`KEPT_BYTES`], or what [`keep_buffers`] asked for since the last [`release_buffers`].

use bytes::BytesMut;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

mod slabs;
#[cfg(test)]
mod tests;

use slabs::{SLAB_BYTES, Slabs};

/// Sizes of buffers that are kept, up to the largest block; smaller ones are the allocator's business, it does them
/// well.
const SIZES: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Buffers below this are not worth keeping.
const SMALL_BYTES: usize = 16 << 10;
/// Kept without being asked to: a storage server's streams need their windows, eight of sixteen slices here.
const KEPT_BYTES: usize = 32 << 20;
/// Buffers begin with a page, as direct I/O wants them.
const ALIGNMENT: usize = 4 << 10;
/// Kept buffers looked at before a fresh one is made. They come free about in the order they were used, but a segment
/// may hold a thousand of one size while a few dozen others come and go: looking at four found none of these.
const LOOKED_AT: usize = 64;

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    shelves: [const { VecDeque::new() }; SIZES.len()],
    slabs: None,
    bytes: 0,
    bytes_max: KEPT_BYTES,
});

/// Tails of buffers, by size; the one handed out longest ago first.
struct Kept {
    shelves: [VecDeque<BytesMut>; SIZES.len()],
    /// Takes the shelves' place while segments are worked on.
    slabs: Option<[Slabs; SIZES.len()]>,
    bytes: usize,
    bytes_max: usize,
}

/// An empty buffer with room for `len` bytes; it may have more. From 16 KiB on it begins with a page.
pub fn payload_buffer(len: usize) -> BytesMut {
    let class = SIZES.iter().position(|&size| len <= size);
    match class {
        Some(class) if len >= SMALL_BYTES => kept().take(class),
        _ => BytesMut::with_capacity(len),
    }
}

/// A buffer of `len` zero bytes.
pub fn zeroed_buffer(len: usize) -> BytesMut {
    let mut buffer = payload_buffer(len);
    buffer.resize(len, 0);
    buffer
}

/// Buffers of up to so many bytes in all stay with the process when they are dropped.
pub fn keep_buffers(bytes: usize) {
    kept().keep_more(bytes);
}

/// Gives back what nobody uses, and keeps little from now on.
pub fn release_buffers() {
    let mut kept = kept();
    kept.bytes_max = KEPT_BYTES;
    kept.bytes = 0;
    kept.shelves = Default::default();
    kept.slabs.take().into_iter().flatten().for_each(|mut slabs| slabs.release());
}

/// What is allocated for a buffer of `size` bytes: with its tail, wherever the allocation begins.
const fn whole(size: usize) -> usize {
    size + ALIGNMENT + 1
}

/// The part of an empty allocation from its first page on.
fn aligned(mut memory: BytesMut) -> BytesMut {
    let before = memory.as_ptr().align_offset(ALIGNMENT);
    memory.split_off(before)
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().expect("never poisoned: no panic while held")
}

impl Kept {
    fn keep_more(&mut self, bytes: usize) {
        if bytes <= self.bytes_max {
            return;
        }
        self.bytes_max = bytes;
        if self.slabs.is_none() {
            self.shelves = Default::default();
            self.bytes = 0;
            self.slabs = Some(Default::default());
        }
    }

    fn take(&mut self, class: usize) -> BytesMut {
        let size = SIZES[class];
        if self.slabs.is_some() {
            // Past what may be kept, a buffer of its own.
            return self
                .take_from_slab(class)
                .unwrap_or_else(|| aligned(BytesMut::with_capacity(whole(size))));
        }
        if let Some(free) = self.free(class) {
            return self.keep(class, free);
        }
        let fresh = BytesMut::with_capacity(whole(size));
        // Buffers of a size that is not asked for any more make room.
        while self.bytes + size > self.bytes_max {
            let others = (0..SIZES.len()).filter(|&other| other != class);
            let Some(other) = others.into_iter().find(|&other| self.free(other).is_some()) else {
                return aligned(fresh);
            };
            self.bytes -= SIZES[other];
        }
        self.bytes += size;
        self.keep(class, fresh)
    }

    fn take_from_slab(&mut self, class: usize) -> Option<BytesMut> {
        let slabs = self.slabs.as_mut()?;
        if let Some(buffer) = slabs[class].take(SIZES[class]) {
            return Some(buffer);
        }
        while self.bytes + SLAB_BYTES > self.bytes_max {
            let mut others = (0..SIZES.len()).filter(|&other| other != class);
            others.find_map(|other| slabs[other].free())?;
            self.bytes -= SLAB_BYTES;
        }
        self.bytes += SLAB_BYTES;
        slabs[class].grow();
        slabs[class].take(SIZES[class])
    }

    /// Takes a buffer of which nobody holds a part out of its shelf; the caller sees to `bytes`.
    fn free(&mut self, class: usize) -> Option<BytesMut> {
        let shelf = &mut self.shelves[class];
        for _ in 0..shelf.len().min(LOOKED_AT) {
            let mut tail = shelf.pop_front()?;
            // The tail is one byte; only the whole allocation has this much room.
            if tail.try_reclaim(whole(SIZES[class])) {
                return Some(tail);
            }
            shelf.push_back(tail);
        }
        None
    }

    /// Splits off the tail that remembers the buffer.
    fn keep(&mut self, class: usize, memory: BytesMut) -> BytesMut {
        let mut buffer = aligned(memory);
        self.shelves[class].push_back(buffer.split_off(SIZES[class]));
        buffer
    }
}
