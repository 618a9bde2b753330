//! Memory for payloads: the one place where it is taken.
//!
//! A receiver allocates and frees a large buffer for every slice; the system's allocator answers that by giving
//! pages back and faulting them in again, which costs as much as receiving does (measured on loopback: 3.7 to 5.5
//! against 7.0 GB per CPU-second). So each thread remembers its last buffers by an empty handle to their tail:
//! once that handle is the only one left, the receiver is done with the buffer and it is used again.
//!
//! Invariants: a buffer is handed out only while nobody else can see its bytes; a thread retains at most
//! [`KEPT_MAX`] buffers of each size, 28 MiB in all.

use bytes::BytesMut;
use std::{cell::RefCell, collections::VecDeque};

#[cfg(test)]
mod tests;

/// Sizes of buffers that are kept; smaller payloads are the allocator's business, it does them well.
const SIZES: [usize; 3] = [64 << 10, 128 << 10, 256 << 10];
/// Payloads below this are not worth a kept buffer.
const SMALL_BYTES: usize = 16 << 10;
/// Buffers kept of each size. 64: four streams' windows of 16 slices; what exceeds it is allocated afresh. More were
/// tried (a whole segment's): reads gained nothing that could be told from noise, and a put after them had to be
/// given untouched memory.
const KEPT_MAX: usize = 64;
/// Kept buffers looked at before a fresh one is made: they come free about in the order they were used.
const LOOKED_AT: usize = 4;

thread_local! {
    static KEPT: RefCell<[VecDeque<BytesMut>; 3]> = RefCell::default();
}

/// An empty buffer with room for a payload of `len` bytes; it may have more.
pub fn payload_buffer(len: usize) -> BytesMut {
    let class = SIZES.iter().position(|&size| len <= size);
    match class {
        Some(class) if len >= SMALL_BYTES => {
            KEPT.with_borrow_mut(|kept| reuse(&mut kept[class], SIZES[class]))
        }
        _ => BytesMut::with_capacity(len),
    }
}

fn reuse(kept: &mut VecDeque<BytesMut>, size: usize) -> BytesMut {
    for _ in 0..kept.len().min(LOOKED_AT) {
        let Some(mut tail) = kept.pop_front() else { break };
        // The tail is one byte; only the whole buffer has this much room.
        if tail.try_reclaim(size + 1) {
            return keep(tail, kept, size);
        }
        kept.push_back(tail);
    }
    let fresh = BytesMut::with_capacity(size + 1);
    if kept.len() < KEPT_MAX { keep(fresh, kept, size) } else { fresh }
}

/// Splits off the tail that remembers the buffer.
fn keep(mut buffer: BytesMut, kept: &mut VecDeque<BytesMut>, size: usize) -> BytesMut {
    kept.push_back(buffer.split_off(size));
    buffer
}
