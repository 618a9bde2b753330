//! Memory for payloads and blocks: the one place where it is taken.
//!
//! A receiver allocates and frees a large buffer for every slice; the system's allocator answers that by giving
//! pages back and faulting them in again, which costs as much as receiving does (measured on loopback: 3.7 to 5.5
//! against 7.0 GB per CPU-second), and in a virtual machine whose host takes free pages back several times as much:
//! 0.5 to 1 GB/s. So the process keeps its memory and cuts buffers from it: once whoever had those of one large page ([`slabs`]) is
//! done with all, that page is used again.
//!
//! These are large pages: coding goes faster in them, and what a device writes from one is one piece of memory. Small pages made two
//! requests of every MiB, the second of 8 KiB, since a request takes 254 pieces: puts into six devices of one machine went 1.15 times
//! as fast without, at 0.88 of the servers' processor time.
//!
//! Invariants: a buffer is handed out only while nobody else can see its bytes; what is kept takes at most [`KEPT_BYTES`], or what
//! [`keep_buffers`] asked for since the last [`release_buffers`], those in use then, and blocks in use that were made at once ([`Batch`]),
//! not counted. A buffer that is held for long
//! holds its page, of what may be kept; where nothing is left of that, buffers are allocated one by one.

use bytes::BytesMut;
use std::sync::{Mutex, MutexGuard};

mod ahead;
mod batch;
mod slabs;
#[cfg(test)]
mod tests;

use ahead::Ahead;
pub use batch::Batch;
use batch::Pieces;
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
static KEPT: Mutex<Kept> = Mutex::new(Kept::new(KEPT_BYTES));

/// Slabs by the size of their buffers.
struct Kept {
    slabs: [Slabs; SIZES.len()],
    bytes: usize,
    bytes_max: usize,
    ahead: Ahead,
    batch: Pieces,
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

/// Buffers of up to so many bytes in all stay with the process when they are dropped. They are about to be taken: some memory is touched
/// ahead.
pub fn keep_buffers(bytes: usize) {
    let mut kept = kept();
    kept.keep_more(bytes);
    kept.ahead.begin();
}

/// Gives back what nobody uses, and keeps [`KEPT_BYTES`] from now on.
pub fn release_buffers() {
    let mut kept = kept();
    kept.bytes_max = KEPT_BYTES;
    kept.bytes = 0;
    kept.slabs.iter_mut().for_each(Slabs::release);
    kept.ahead.release();
    kept.batch.release();
}

/// A buffer that is not kept.
fn alone(size: usize) -> BytesMut {
    let mut memory = BytesMut::with_capacity(size + ALIGNMENT);
    let before = memory.as_ptr().align_offset(ALIGNMENT);
    memory.split_off(before)
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().expect("never poisoned: no panic while held")
}

impl Kept {
    const fn new(bytes_max: usize) -> Self {
        Self {
            slabs: [const { Slabs::new() }; SIZES.len()],
            bytes: 0,
            bytes_max,
            ahead: Ahead::new(),
            batch: Pieces::new(),
        }
    }

    fn keep_more(&mut self, bytes: usize) {
        self.bytes_max = self.bytes_max.max(bytes);
    }

    fn take(&mut self, class: usize) -> BytesMut {
        // Past what may be kept, a buffer of its own.
        self.take_from_slab(class).unwrap_or_else(|| alone(SIZES[class]))
    }

    fn take_from_slab(&mut self, class: usize) -> Option<BytesMut> {
        if let Some(buffer) = self.slabs[class].take(SIZES[class]) {
            return Some(buffer);
        }
        while self.bytes + self.batch.bytes() + SLAB_BYTES > self.bytes_max && self.batch.give_one_back() {}
        if self.bytes + SLAB_BYTES > self.bytes_max {
            // One of another size; at last also one that is being cut, of a size that is not asked for any more.
            let others = || (0..SIZES.len()).filter(|&other| other != class);
            let free = others().find_map(|other| self.slabs[other].free());
            let free = free.or_else(|| others().find_map(|other| self.slabs[other].give_up()));
            self.slabs[class].cut(free?);
        } else {
            self.bytes += SLAB_BYTES;
            let memory = self.ahead.take().unwrap_or_else(slabs::fresh);
            self.slabs[class].cut(memory);
        }
        self.slabs[class].take(SIZES[class])
    }
}
