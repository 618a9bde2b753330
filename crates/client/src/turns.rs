//! Which segments of a put or a change are in hand at a time: taken in their order, stored side by side while they are small.
//!
//! A segment begins and ends with round trips, during which nothing of it moves, and a flush of every device: other segments
//! fill them. Over a round trip of 20 ms, 256 MiB in segments of 16 MiB took 0.73 s, one after the other 2.3 s. A large segment
//! is stored alone, as it keeps all devices busy by itself; but a put begins the next when all of it is on its way.
//!
//! Invariants: segments begin in the order of the object; a put reads one ahead of those being stored, and no more; together they
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

/// How much of one access is in hand at a time, and how much of that is stored.
struct Bounds {
    memory_bytes: u64,
    /// One after the other, whatever their size.
    alone: bool,
    /// Bytes of the segments in hand.
    in_hand: Mutex<u64>,
    freed: Notify,
    storing: Semaphore,
}

/// A segment's part of the bounds, until it is dropped.
pub(crate) struct Share<'a> {
    storing: Mutex<Option<SemaphorePermit<'a>>>,
    memory: InHand<'a>,
}

struct InHand<'a> {
    bounds: &'a Bounds,
    bytes: u64,
}

/// The segments of one put, for those who store them.
pub(crate) struct Turns<'a> {
    feed: tokio::sync::Mutex<Feed<'a>>,
    bounds: Bounds,
}

/// A segment whose turn it is, until it is dropped.
pub(crate) struct Turn<'a> {
    pub(crate) ready: Box<Ready>,
    share: Share<'a>,
}

/// Parts of a change that store a segment each, and the bytes of that, for those who do.
pub(crate) struct Parts<'a, P> {
    waiting: tokio::sync::Mutex<core::slice::Iter<'a, (u64, P)>>,
    bounds: Bounds,
}

impl<'a> Turns<'a> {
    /// The segments of `feed`, in at most `memory_bytes`; `alone`: one after the other.
    pub(crate) fn new(feed: Feed<'a>, memory_bytes: u64, alone: bool) -> Self {
        Self { feed: tokio::sync::Mutex::new(feed), bounds: Bounds::new(memory_bytes, alone) }
    }

    /// The next segment, once it may be stored; none at the end.
    ///
    /// # Errors
    /// Also that of the source in a segment before, which explains why that one cannot be written.
    pub(crate) async fn next(&'a self) -> Result<Option<Turn<'a>>, PutError> {
        // Held until the turn comes: while this one waits it is read, and no other.
        let mut feed = self.feed.lock().await;
        let mut ready = loop {
            match feed.next(self.bounds.room()).await? {
                Next::Segment(ready) => break ready,
                Next::TooLarge => self.bounds.freed.notified().await,
                Next::End => return Ok(None),
            }
        };
        let share = self.bounds.share(ready.segment.length).await;
        ready.begin();
        Ok(Some(Turn { ready, share }))
    }
}

impl Turn<'_> {
    /// All of it is on its way: the next may begin; not where bandwidth is kept, which is one segment's at a time.
    pub(crate) fn ends(&self) {
        let Share { storing, memory } = &self.share;
        if memory.bounds.alone {
            return;
        }
        storing.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl<'a, P> Parts<'a, P> {
    /// These parts, in at most `memory_bytes`; `alone`: one after the other.
    pub(crate) fn new(parts: &'a [(u64, P)], memory_bytes: u64, alone: bool) -> Self {
        Self { waiting: tokio::sync::Mutex::new(parts.iter()), bounds: Bounds::new(memory_bytes, alone) }
    }

    /// The next part, once its segment may be stored, for as long as its share is kept; none at the end.
    pub(crate) async fn next(&self) -> Option<(&'a P, Share<'_>)> {
        // Held until the turn comes: no other goes before.
        let mut waiting = self.waiting.lock().await;
        let (bytes, part) = waiting.as_slice().first()?;
        while *bytes > self.bounds.room() {
            self.bounds.freed.notified().await;
        }
        let share = self.bounds.share(*bytes).await;
        waiting.next();
        Some((part, share))
    }
}

/// Has parts stored by as many of `one` as are stored at a time, each of which takes one part after the other; what all of them give, or the
/// first error, which ends the others where they are.
pub(crate) async fn side_by_side<T, E, F>(one: impl Fn() -> F) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<Vec<T>, E>>,
{
    const _: () = assert!(SEGMENTS_AT_A_TIME == 4);
    let [first, second, third, fourth] = [0; 4].map(|_| Box::pin(one()));
    let (first, second, third, fourth) = tokio::try_join!(first, second, third, fourth)?;
    Ok([first, second, third, fourth].into_iter().flatten().collect())
}

impl Bounds {
    fn new(memory_bytes: u64, alone: bool) -> Self {
        let storing = Semaphore::new(TOGETHER_MIB as usize);
        Self { memory_bytes, alone, in_hand: Mutex::new(0), freed: Notify::new(), storing }
    }

    /// Bytes that a segment may have to be taken in hand now: any where nothing else is in memory.
    fn room(&self) -> u64 {
        match *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) {
            0 => u64::MAX,
            in_hand => self.memory_bytes.saturating_sub(in_hand),
        }
    }

    /// Takes a segment of so many bytes in hand, and waits until it may be stored: one at a time may do so.
    async fn share(&self, bytes: u64) -> Share<'_> {
        *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        let memory = InHand { bounds: self, bytes };
        let mebibytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let least = TOGETHER_MIB / SEGMENTS_AT_A_TIME as u32;
        let permits = if self.alone { TOGETHER_MIB } else { mebibytes.clamp(least, TOGETHER_MIB) };
        let storing = self.storing.acquire_many(permits).await.expect("it is never closed");
        Share { storing: Mutex::new(Some(storing)), memory }
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        *self.bounds.in_hand.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        // At most one waits, with the feed or the parts.
        self.bounds.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    /// Parts of so many MiB, numbered.
    fn parts(mebibytes: &[u64]) -> Vec<(u64, usize)> {
        mebibytes.iter().enumerate().map(|(number, mebibytes)| (mebibytes << 20, number)).collect()
    }

    /// The next part, if its turn comes at once.
    fn next<'p>(parts: &'p Parts<'_, usize>) -> Option<(usize, Share<'p>)> {
        match pin!(parts.next()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => next.map(|(number, share)| (*number, share)),
            Poll::Pending => None,
        }
    }

    /// Of these parts, the numbers of those that are stored together.
    fn together(parts: &Parts<'_, usize>) -> Vec<usize> {
        let all: Vec<_> = core::iter::from_fn(|| next(parts)).collect();
        all.into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn small_parts_are_stored_side_by_side_and_in_their_order() {
        let (small, large) = (parts(&[1; 7]), parts(&[40, 40, 16]));
        let few = Parts::new(&small, u64::MAX, false);
        let mut stored: Vec<_> = core::iter::from_fn(|| next(&few)).collect();
        assert_eq!(stored.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        stored.remove(2);
        assert_eq!(next(&few).map(|(number, _)| number), Some(4), "one is done");
        drop(stored);
        assert_eq!(together(&few), [5, 6]);
        assert!(next(&few).is_none(), "these were all");
        let few = Parts::new(&large, u64::MAX, false);
        assert_eq!([together(&few), together(&few)], [vec![0], vec![1, 2]], "by their bytes");
        let alone = Parts::new(&small, u64::MAX, true);
        assert_eq!([together(&alone), together(&alone)], [[0], [1]]);
    }

    #[test]
    fn parts_in_hand_take_no_more_memory_than_they_may() {
        let all = parts(&[10, 10, 10, 100, 1]);
        let few = Parts::new(&all, 25 << 20, false);
        assert_eq!(together(&few), [0, 1]);
        assert_eq!(together(&few), [2], "the next alone is more");
        assert_eq!(together(&few), [3], "where nothing else is in hand");
        assert_eq!(together(&few), [4]);
    }
}
