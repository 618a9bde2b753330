//! Which segments of a put are in hand at a time: read in their order, stored side by side while they are small.
//!
//! A segment begins and ends with round trips, during which nothing of it moves, and a flush of every device: other segments
//! fill them, as many as that takes ([`at_a_time`]). Over a round trip of 20 ms, 256 MiB in segments of 16 MiB took 0.73 s, one after
//! the other 2.3 s. On one machine more than two at a time are no faster, and what they lie in is memory that the system must find
//! first: 108 MiB for four, 76 for two, of which a virtual machine may have none left and gets it at 0.5 GB/s. A large segment is
//! stored alone, as it keeps all devices busy by itself.
//!
//! Invariants: segments begin in the order of the object; one is read ahead of those being stored, and no more; together they
//! take no more memory than they may, unless it is one alone.

use crate::{
    PutError,
    feed::{Feed, Next, Ready},
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Least segments stored at a time, where there is memory for them: one begins or ends while the other is sent.
const AT_A_TIME_MIN: usize = 2;
/// And most. Picked by eye, as the next.
const AT_A_TIME_MAX: usize = 4;
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
    /// So many MiB.
    storing: Semaphore,
    /// And so many segments as are wanted now.
    stored: Semaphore,
    wanted: Mutex<usize>,
}

/// A segment whose turn it is, until it is dropped.
pub(crate) struct Turn<'a> {
    pub(crate) ready: Box<Ready>,
    turns: &'a Turns<'a>,
    _storing: SemaphorePermit<'a>,
    stored: Option<SemaphorePermit<'a>>,
    /// How long its devices took to answer at first, and it to be sent.
    took: Mutex<Option<(Duration, Duration)>>,
    _memory: InHand<'a>,
}

struct InHand<'a> {
    turns: &'a Turns<'a>,
    bytes: u64,
}

impl<'a> Turns<'a> {
    /// The segments of `feed`, in at most `memory_bytes`; `alone`: one after the other; `offloads`: nodes send what there is to
    /// send, and this client does not see how they get on.
    pub(crate) fn new(feed: Feed<'a>, memory_bytes: u64, alone: bool, offloads: bool) -> Self {
        let wanted = if offloads { AT_A_TIME_MAX } else { AT_A_TIME_MIN };
        Self {
            feed: tokio::sync::Mutex::new(feed),
            memory_bytes,
            alone,
            in_hand: Mutex::new(0),
            freed: Notify::new(),
            storing: Semaphore::new(TOGETHER_MIB as usize),
            stored: Semaphore::new(wanted),
            wanted: Mutex::new(wanted),
        }
    }

    /// The next segment, once it may be stored; none at the end.
    ///
    /// # Errors
    /// Also that of the source in a segment before, which explains why that one cannot be written.
    pub(crate) async fn next(&'a self) -> Result<Option<Turn<'a>>, PutError> {
        // Held until the turn comes: while this one waits it is read, and no other.
        let mut feed = self.feed.lock().await;
        let ready = loop {
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
        let share = TOGETHER_MIB / AT_A_TIME_MAX as u32;
        let share = if self.alone { TOGETHER_MIB } else { mebibytes.clamp(share, TOGETHER_MIB) };
        let storing = self.storing.acquire_many(share).await.expect("it is never closed");
        let stored = Some(self.stored.acquire().await.expect("it is never closed"));
        let took = Mutex::new(None);
        Ok(Some(Turn { ready, turns: self, _storing: storing, stored, took, _memory: memory }))
    }

    fn wanted(&self) -> MutexGuard<'_, usize> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&'a self, bytes: u64) -> InHand<'a> {
        *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        InHand { turns: self, bytes }
    }
}

impl<'a> Turn<'a> {
    /// To be told how the segment gets on, of which `blocks` blocks are to be sent.
    pub(crate) fn sending(&self, blocks: u32) -> Sending<'_, 'a> {
        Sending { turn: self, blocks, began: Instant::now(), taken: None }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let took = *self.took.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some((answer, sending)), Some(stored)) = (took, self.stored.take()) else { return };
        let mut now = self.turns.wanted();
        let beside = now.saturating_sub(self.turns.stored.available_permits()).max(1);
        let wanted = at_a_time(answer, sending / u32::try_from(beside).expect("few"));
        if wanted < *now {
            stored.forget();
            *now -= 1;
        } else {
            self.turns.stored.add_permits(wanted - *now);
            *now = wanted;
        }
    }
}

/// A segment that is being sent.
pub(crate) struct Sending<'t, 'a> {
    turn: &'t Turn<'a>,
    /// Those that were not sent yet.
    blocks: u32,
    began: Instant,
    /// When a device first took any.
    taken: Option<Instant>,
}

impl Sending<'_, '_> {
    /// A device takes more.
    pub(crate) fn credit(&mut self) {
        self.taken.get_or_insert_with(Instant::now);
    }

    /// So many blocks more are on their way.
    pub(crate) fn sent(&mut self, blocks: u32) {
        self.blocks = self.blocks.saturating_sub(blocks);
        let mut took = self.turn.took.lock().unwrap_or_else(PoisonError::into_inner);
        if let (0, None, Some(taken)) = (self.blocks, *took, self.taken) {
            *took = Some((taken - self.began, taken.elapsed()));
        }
    }
}

/// How many segments are to be stored at a time where a device takes so long to answer, and a segment alone so long to be sent
/// (`sending`): one waits for a first answer and for a last one, and meanwhile the others are sent.
fn at_a_time(answer: Duration, sending: Duration) -> usize {
    let others = 2.0 * answer.as_secs_f64() / sending.as_secs_f64().max(f64::MIN_POSITIVE);
    // A float beyond the integers becomes the last of them.
    (others.ceil() as usize).saturating_add(1).clamp(AT_A_TIME_MIN, AT_A_TIME_MAX)
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        *self.turns.in_hand.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        // At most one waits, with the feed.
        self.turns.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_sent_while_a_segment_waits() {
        let of = |answer, sending| at_a_time(Duration::from_millis(answer), Duration::from_millis(sending));
        assert_eq!((of(0, 12), of(2, 12), of(6, 12)), (2, 2, 2));
        assert_eq!((of(10, 12), of(20, 12), of(100, 12)), (3, 4, 4));
        assert_eq!((of(0, 0), of(1, 0)), (2, 4));
    }
}
