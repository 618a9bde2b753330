//! Which segments of a put are in hand at a time: read in their order, stored side by side while they are small.
//!
//! A segment begins and ends with round trips, during which nothing of it moves, and a flush of every device: other segments
//! fill them. Over a round trip of 20 ms, 256 MiB in segments of 16 MiB took 0.73 s, one after the other 2.3 s. A large segment
//! is stored alone, as it keeps all devices busy by itself; but the next begins when all of it is on its way.
//!
//! Invariants: segments begin in the order of the object; one is read ahead of those being stored, and no more; together they
//! take no more memory than they may, unless it is one alone.

use crate::{
    PutError,
    feed::{Feed, Next, Ready},
};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Most segments stored at a time. Picked by eye, as the next.
const SEGMENTS_AT_A_TIME: usize = 4;
/// And most of their bytes, in MiB.
const TOGETHER_MIB: u32 = 64;

/// The segments of one put, for those who store them.
pub(crate) struct Turns<'a> {
    feed: tokio::sync::Mutex<Feed<'a>>,
    memory_bytes: u64,
    /// One after the other, whatever their size.
    alone: bool,
    /// Bytes of the segments in hand.
    in_hand: Mutex<u64>,
    freed: Notify,
    storing: Semaphore,
}

/// A segment whose turn it is, until it is dropped.
pub(crate) struct Turn<'a> {
    pub(crate) ready: Box<Ready>,
    storing: Mutex<Option<SemaphorePermit<'a>>>,
    memory: InHand<'a>,
}

struct InHand<'a> {
    turns: &'a Turns<'a>,
    bytes: u64,
}

impl<'a> Turns<'a> {
    /// The segments of `feed`, in at most `memory_bytes`; `alone`: one after the other.
    pub(crate) fn new(feed: Feed<'a>, memory_bytes: u64, alone: bool) -> Self {
        Self {
            feed: tokio::sync::Mutex::new(feed),
            memory_bytes,
            alone,
            in_hand: Mutex::new(0),
            freed: Notify::new(),
            storing: Semaphore::new(TOGETHER_MIB as usize),
        }
    }

    /// The next segment, once it may be stored; none at the end.
    ///
    /// # Errors
    /// Also that of the source in a segment before, which explains why that one cannot be written.
    pub(crate) async fn next(&'a self) -> Result<Option<Turn<'a>>, PutError> {
        // Held until the turn comes: while this one waits it is read, and no other.
        let mut feed = self.feed.lock().await;
        let mut ready = loop {
            let in_hand = *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
            // Whatever it takes where nothing else is in memory.
            let room = if in_hand == 0 { u64::MAX } else { self.memory_bytes.saturating_sub(in_hand) };
            match feed.next(room).await? {
                Next::Segment(ready) => break ready,
                Next::TooLarge => self.freed.notified().await,
                Next::End => return Ok(None),
            }
        };
        let memory = self.take(ready.segment.length);
        let mebibytes = u32::try_from(ready.segment.length >> 20).unwrap_or(u32::MAX);
        let share = TOGETHER_MIB / SEGMENTS_AT_A_TIME as u32;
        let share = if self.alone { TOGETHER_MIB } else { mebibytes.clamp(share, TOGETHER_MIB) };
        let storing = self.storing.acquire_many(share).await.expect("it is never closed");
        ready.begin();
        Ok(Some(Turn { ready, storing: Mutex::new(Some(storing)), memory }))
    }

    fn take(&'a self, bytes: u64) -> InHand<'a> {
        *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        InHand { turns: self, bytes }
    }
}

impl Turn<'_> {
    /// All of it is on its way: the next may begin; not where bandwidth is kept, which is one segment's at a time.
    pub(crate) fn ends(&self) {
        if self.memory.turns.alone {
            return;
        }
        self.storing.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        *self.turns.in_hand.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        // At most one waits, with the feed.
        self.turns.freed.notify_one();
    }
}
