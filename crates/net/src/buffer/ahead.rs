//! Slabs touched before they are needed, by a thread of their own.
//!
//! The first touch of a large page clears it, and where a host takes free memory back from its machines, that is when the machine gets
//! it again: 0.1 to 1.9 s/GB here, in the thread that takes bytes from the socket. A get of 256 MiB from the page cache went 0.98
//! GB/s where memory had lain free for 3 s (2.20 where it had not), with two slabs ahead 1.54; a put 0.46 and 0.56. Four and eight
//! slabs ahead did no better, and what is ahead at the end was touched in vain.
//!
//! ```text
//!   idle ──keep_buffers──▶ touching ──▶ all ahead that is wanted ──a slab is taken──▶ touching
//!     ▲                                        └──nobody takes any for a while──┐
//!     └─────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: what is ahead and what is kept together take no more than may be kept.

use super::{Kept, kept, slabs};
use bytes::BytesMut;
use std::{
    sync::{Condvar, PoisonError},
    thread,
    time::Duration,
};

/// Slabs ahead of their use.
const SLABS_AHEAD: usize = 2;
/// How long the thread waits for the next to be taken: as long as a client keeps its buffers, so that a slow source or a long way does not
/// end it.
const IDLE: Duration = Duration::from_secs(10);
/// Told, under the lock of what is kept, when a slab was taken.
static TAKEN: Condvar = Condvar::new();

/// What is ahead.
pub(super) struct Ahead {
    ready: Vec<BytesMut>,
    /// Slabs are about to be taken.
    wanted: bool,
    /// The thread runs.
    runs: bool,
}

impl Ahead {
    /// Nothing, and no thread.
    pub(super) const fn new() -> Self {
        Self { ready: Vec::new(), wanted: false, runs: false }
    }

    /// Memory for a slab; none where the thread is behind, or does not run.
    pub(super) fn take(&mut self) -> Option<BytesMut> {
        let memory = self.ready.pop();
        if self.runs {
            TAKEN.notify_one();
        }
        memory
    }

    /// One more slab is ahead, of which this is the memory.
    pub(super) fn add(&mut self, memory: BytesMut) {
        self.ready.push(memory);
    }

    /// Bytes of what is ahead.
    pub(super) fn bytes(&self) -> usize {
        self.ready.len() * slabs::SLAB_BYTES
    }

    /// Many slabs will be taken from now on.
    pub(super) fn begin(&mut self) {
        self.wanted = true;
        if self.runs {
            TAKEN.notify_one();
        } else {
            // Where there is no thread to be had, slabs are touched by who takes them.
            self.runs = thread::Builder::new().name("buffers".to_owned()).spawn(run).is_ok();
        }
    }

    /// Gives up what is ahead: no more is wanted.
    pub(super) fn release(&mut self) {
        self.wanted = false;
        self.ready.drain(..).for_each(slabs::give_back);
    }
}

impl Kept {
    /// Whether another slab is to be touched.
    fn lacks_ahead(&self) -> bool {
        let taken = self.bytes + self.batch.bytes() + self.ahead.bytes();
        self.ahead.wanted
            && self.ahead.ready.len() < SLABS_AHEAD
            && taken + slabs::SLAB_BYTES <= self.bytes_max
    }
}

fn run() {
    loop {
        let mut kept = kept();
        while !kept.lacks_ahead() {
            let (again, waited) = TAKEN.wait_timeout(kept, IDLE).unwrap_or_else(PoisonError::into_inner);
            kept = again;
            if waited.timed_out() {
                kept.ahead.runs = false;
                return;
            }
        }
        // Whoever takes buffers meanwhile does not wait for this.
        drop(kept);
        let mut memory = slabs::fresh();
        slabs::touch(&mut memory);
        let mut kept = self::kept();
        if kept.lacks_ahead() {
            kept.ahead.add(memory);
        } else {
            slabs::give_back(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{SIZES, tests::pool};

    #[test]
    fn slabs_ahead_are_taken_first_and_stay_within_what_may_be_kept() {
        let mut pool = pool(3 * slabs::SLAB_BYTES);
        assert!(!pool.lacks_ahead(), "nobody asked for it");
        pool.ahead.wanted = true;
        let mut places = Vec::new();
        while pool.lacks_ahead() {
            let mut memory = slabs::fresh();
            slabs::touch(&mut memory);
            places.push(memory.as_ptr());
            pool.ahead.ready.push(memory);
        }
        assert_eq!(places.len(), SLABS_AHEAD);
        let within = |buffer: &BytesMut, place: &*const u8| {
            (place.addr()..place.addr() + 2 * slabs::SLAB_BYTES).contains(&buffer.as_ptr().addr())
        };
        let largest = SIZES.len() - 1;
        let each = slabs::SLAB_BYTES / SIZES[largest];
        let held: Vec<_> = (0..2 * each).map(|_| pool.take(largest)).collect();
        assert!(held.iter().all(|buffer| places.iter().any(|place| within(buffer, place))));
        assert!(pool.ahead.ready.is_empty() && pool.lacks_ahead());
        // One more may be kept: two ahead would be beyond that.
        pool.ahead.ready.push(slabs::fresh());
        assert!(!pool.lacks_ahead());
        let last: Vec<_> = (0..each).map(|_| pool.take(largest)).collect();
        assert!(!pool.lacks_ahead() && pool.bytes == 3 * slabs::SLAB_BYTES);
        pool.ahead.ready.push(slabs::fresh());
        pool.ahead.release();
        assert!(pool.ahead.ready.is_empty());
        drop((held, last));
    }
}
