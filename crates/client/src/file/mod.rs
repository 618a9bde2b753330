//! An open object that can be changed: reads and writes anywhere within its size, close-to-open (CodFS; PLR §5.3).
//!
//! Opening looks the object up once. Writes are kept here, by segment, until a sync, a close, or until there is no more room:
//! then the ranges of the segment that was least recently used are stored. They go in place where that can be, by the
//! layout known here, without a word to the metadata server; a segment that is found stored anew is looked up again. Whoever
//! opens the object after a close sees what was written before it; others see some of it earlier.
//!
//! A handle names an object, not a version of it: where another client puts the object anew meanwhile, reads and writes go on
//! with what is there as soon as the old segments are gone. What is stored before that goes with them, as it would in a file that
//! was unlinked while it was open. Amendments by others (updates, drains) lose nothing: they end changes of what they replace.
//!
//! Invariants: a read sees all that was written through the handle before it; of a segment no two lots of ranges are stored at a
//! time, so that what was written later lands later; what could not be stored is kept.

mod cache;
mod runs;

use crate::{AmendError, Client, FileError, GetError, ObjectStat, get::CHANGES_MAX, reader::fetch};
use bytes::{Bytes, BytesMut};
use cache::{Cache, Moment};
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};
use steadfast_protocol::policy::Policy;
use tokio::task::JoinSet;

/// Segments that one sync stores at a time. Of each some changes are under way together. Picked by eye.
const SEGMENTS_AT_A_TIME: usize = 8;
/// The smallest cache: with less, each write would be stored by itself, in small pieces.
const CACHE_BYTES_MIN: u64 = 64 << 10;

/// How an object is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Whether it can be written to, too: only where the bucket's policy is `parity`.
    pub write: bool,
    /// Memory for what was written and is not stored yet, in bytes; 64 KiB at least.
    pub cache_bytes: u64,
}

impl Default for FileOptions {
    /// For writing, with 64 MiB: four segments of the usual size.
    fn default() -> Self {
        Self { write: true, cache_bytes: 64 << 20 }
    }
}

/// What a handle did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Bytes changed where they lie. Those written over before they were stored are not among them.
    pub in_place_bytes: u64,
    /// Segments stored anew.
    pub segments_anew: u64,
    /// How often the ranges of a segment were stored.
    pub write_backs: u64,
    /// Those of them that made room.
    pub evictions: u64,
    /// How often the object was looked up again after it was opened.
    pub lookups: u64,
}

/// An object opened for reading, and mostly for writing; may be used by several tasks at once. What was written and not synced
/// is lost when it is dropped.
#[derive(Debug)]
pub struct File {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Arc<Client>,
    bucket: String,
    key: String,
    write: bool,
    /// The most bytes that are put into the cache at once.
    piece_bytes: u64,
    /// Where the segments end by which the cache is divided: those found when the object was opened.
    ends: Vec<u64>,
    state: Mutex<State>,
    /// By segment: held while a lot of it is being stored.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// Held while segments are stored anew.
    anew: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// The object as last seen.
    found: Arc<ObjectStat>,
    cache: Cache,
    counts: FileCounts,
}

impl Client {
    /// Opens an object for reading and writing.
    ///
    /// # Errors
    /// When there is no such object, and [`FileError::Policy`] where its bucket's policy is not `parity`.
    pub async fn open_file(self: &Arc<Self>, bucket: &str, key: &str) -> Result<File, FileError> {
        self.open_file_with(bucket, key, &FileOptions::default()).await
    }

    /// As [`Client::open_file`], with options of its own.
    ///
    /// # Errors
    /// As there; objects under any policy can be opened for reading alone.
    pub async fn open_file_with(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        options: &FileOptions,
    ) -> Result<File, FileError> {
        let found = self.locate(bucket, key).await?;
        if options.write && !matches!(found.policy, Policy::Parity(_)) {
            return Err(FileError::Policy { bucket: bucket.to_owned(), policy: found.policy });
        }
        let mut end = 0;
        let ends: Vec<u64> = found
            .segments
            .iter()
            .map(|layout| {
                end += layout.length;
                end
            })
            .collect();
        let cache_bytes = options.cache_bytes.max(CACHE_BYTES_MIN);
        let inner = Inner {
            client: Arc::clone(self),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            write: options.write,
            piece_bytes: cache_bytes - runs::RUN_BYTES,
            turns: (0..ends.len().max(1)).map(|_| tokio::sync::Mutex::default()).collect(),
            ends,
            state: Mutex::new(State {
                found: Arc::new(found),
                cache: Cache::new(cache_bytes),
                counts: FileCounts::default(),
            }),
            anew: tokio::sync::Mutex::default(),
        };
        Ok(File { inner: Arc::new(inner) })
    }
}

impl File {
    /// Bytes in the object.
    pub fn size(&self) -> u64 {
        self.inner.state().found.object.size
    }

    /// What was done so far.
    pub fn counts(&self) -> FileCounts {
        self.inner.state().counts
    }

    /// `length` bytes from `offset` on, what was written before included; fewer at the object's end, and none behind it.
    ///
    /// # Errors
    /// When too little of it can be had now, or it was removed. The same read can be tried again.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, FileError> {
        let inner = &*self.inner;
        for change in 1.. {
            let (found, range, seen) = {
                let mut state = inner.state();
                let found = Arc::clone(&state.found);
                let range = offset..offset.saturating_add(length as u64).min(found.object.size);
                if range.is_empty() {
                    return Ok(Bytes::new());
                }
                let seen = state.cache.seen(inner.segments(&range), &range);
                (found, range, seen)
            };
            let mut gaps = seen.gaps(&range);
            let missing =
                gaps.next().map(|first| first.start..gaps.last().map_or(first.end, |last| last.end));
            let Some(missing) = missing else {
                let mut seen = seen;
                let (_, bytes) = seen.take().pop().expect("all of the range is there, in one piece");
                return Ok(bytes);
            };
            match fetch(&inner.client, &found, missing.clone()).await {
                Ok(mut pieces) if missing == range && pieces.len() == 1 && seen.is_empty() => {
                    return Ok(pieces.pop_front().expect("there is one"));
                }
                Ok(pieces) => {
                    let mut bytes = BytesMut::zeroed((range.end - range.start) as usize);
                    // All places are within the range, which was just given memory.
                    let place = |at: u64| (at - range.start) as usize;
                    let mut at = place(missing.start);
                    for piece in pieces {
                        bytes[at..at + piece.len()].copy_from_slice(&piece);
                        at += piece.len();
                    }
                    for (at, piece) in seen.within(&range) {
                        bytes[place(at)..place(at) + piece.len()].copy_from_slice(piece);
                    }
                    return Ok(bytes.freeze());
                }
                // Its segments may have been stored anew.
                Err(error @ GetError::Read(_)) if change <= CHANGES_MAX => {
                    inner.look_again(&found, error).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        unreachable!("it returns at the last change")
    }

    /// Replaces bytes from `offset` on. They are kept here until a sync or until room is needed; then some that were
    /// written before are stored first.
    ///
    /// # Errors
    /// [`AmendError::Extends`] where they would end behind the object's end: nothing of them is taken. When there is no room and
    /// what was written before cannot be stored: it is kept, and these bytes are taken in part or not at all.
    pub async fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let inner = &*self.inner;
        if !inner.write {
            return Err(FileError::ReadOnly { bucket: inner.bucket.clone(), key: inner.key.clone() });
        }
        let (length, size) = (bytes.len() as u64, self.size());
        let Some(end) = offset.checked_add(length).filter(|end| *end <= size) else {
            return Err(AmendError::Extends { offset, length, size }.into());
        };
        let mut at = offset;
        while at < end {
            let segment = inner.segment_of(at);
            // The object may have become longer since it was opened: that is kept with its last segment.
            let segment_end = match inner.ends.get(segment + 1) {
                Some(_) => inner.ends[segment],
                None => u64::MAX,
            };
            let to = end.min(segment_end).min(at + inner.piece_bytes);
            // Both lie within the bytes given.
            let piece = &bytes[(at - offset) as usize..(to - offset) as usize];
            loop {
                let taken = inner.state().cache.write(segment, at, piece);
                let Err(oldest) = taken else { break };
                inner.state().counts.evictions += 1;
                inner.write_back(oldest, Moment::LAST).await?;
            }
            at = to;
        }
        Ok(())
    }

    /// Returns when all that was written before is durable.
    ///
    /// # Errors
    /// When some of it cannot be stored now. It is kept, and a later sync tries again.
    pub async fn sync(&self) -> Result<(), FileError> {
        let (upto, segments) = {
            let state = self.inner.state();
            let upto = state.cache.now();
            (upto, state.cache.unstored(upto))
        };
        if let [one] = segments[..] {
            return Ok(self.inner.write_back(one, upto).await?);
        }
        let mut storing: JoinSet<Result<(), AmendError>> = JoinSet::new();
        let (mut waiting, mut outcome) = (segments.into_iter(), Ok(()));
        loop {
            while storing.len() < SEGMENTS_AT_A_TIME
                && let Some(segment) = waiting.next()
            {
                let inner = Arc::clone(&self.inner);
                storing.spawn(async move { inner.write_back(segment, upto).await });
            }
            match storing.join_next().await {
                None => return Ok(outcome?),
                // What is left is tried nevertheless.
                Some(stored) => outcome = outcome.and(stored.expect("storing does not panic")),
            }
        }
    }

    /// Syncs and ends the handle: whoever opens the object from now on sees all that was written.
    ///
    /// # Errors
    /// As [`File::sync`]; what could not be stored is lost with the handle. To keep it, sync first.
    pub async fn close(self) -> Result<(), FileError> {
        self.sync().await
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("never poisoned: no panic while held")
    }

    /// The cache's segment that byte `at` is of.
    fn segment_of(&self, at: u64) -> usize {
        self.ends.partition_point(|end| *end <= at).min(self.ends.len().saturating_sub(1))
    }

    fn segments(&self, range: &Range<u64>) -> Range<usize> {
        self.segment_of(range.start)..self.segment_of(range.end - 1) + 1
    }

    /// Stores what of a segment was written up to a moment, unless that was done meanwhile.
    async fn write_back(&self, segment: usize, upto: Moment) -> Result<(), AmendError> {
        let _turn = self.turns[segment].lock().await;
        let (ranges, found) = {
            let mut state = self.state();
            let Some(ranges) = state.cache.take_off(segment, upto) else { return Ok(()) };
            (ranges, Arc::clone(&state.found))
        };
        let mut flight = Flight { of: self, segment, stored: false };
        let object = (self.bucket.as_str(), self.key.as_str());
        let changed = self.client.change_ranges(object, &found, &ranges, &self.anew).await?;
        let mut state = self.state();
        state.counts.write_backs += 1;
        state.counts.in_place_bytes += changed.in_place_bytes;
        state.counts.segments_anew += changed.segments_anew;
        if let Some(now) = changed.now {
            state.saw(now);
        }
        drop(state);
        flight.stored = true;
        Ok(())
    }

    /// Looks the object up after a read by `before` failed; that error where it is no other now.
    async fn look_again(&self, before: &ObjectStat, error: GetError) -> Result<(), GetError> {
        if self.state().found.object.version != before.object.version {
            return Ok(());
        }
        let now = self.client.changed(&self.bucket, &self.key, before, 0, error).await?;
        self.state().saw(now);
        Ok(())
    }
}

impl State {
    fn saw(&mut self, now: ObjectStat) {
        self.counts.lookups += 1;
        // Of two that were looked up at about the same time the later one counts.
        if now.object.version > self.found.object.version {
            self.found = Arc::new(now);
        }
    }
}

/// Ranges that are being stored. However that ends, the cache is told.
struct Flight<'a> {
    of: &'a Inner,
    segment: usize,
    stored: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.of.state().cache.landed(self.segment, self.stored);
    }
}
