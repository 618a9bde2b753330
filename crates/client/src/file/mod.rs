//! An open object that can be changed: reads and writes anywhere, within its size and behind its end, close-to-open (CodFS; PLR
//! §5.3).
//!
//! Opening looks the object up once. Writes are kept here, by segment, until a sync, a close, or until there is little room left:
//! then the ranges of the segment that was least recently used are stored, and nobody waits for that before there is none (`behind`). They
//! go in place where that can be, by the layout known here, without a word to the metadata server; a segment that is found stored anew is
//! looked up again. Whoever opens the object after a close sees what was written before it; others see some of it earlier.
//!
//! What was read is kept, too, and read again from here for a short time ([`FileOptions::fresh_for`]): what others store meanwhile shows
//! after that in a handle that was open before. Of what this one writes that is never so. Each granule (4 KiB) of a read is as it was at
//! some time, whether from here or fetched, and never of both; what this handle wrote and has not stored is laid over it.
//!
//! What is written behind the end makes the object longer when it is stored, with holes in between, which are zeros that nobody stores. That
//! goes in the order of the segments, so that none is a hole just before its bytes are stored. [`File::truncate`] is done at once. Who reads a
//! hole looks whether it is one yet: the metadata server alone knows. Where two handles
//! make an object longer at a time, both have it as long as their own bytes need, neither undoes the other's, and where they write segments of
//! their own neither makes the other begin again. Where nobody knows what
//! the object is by now (a truncate that was given up, or had no answer), it is looked up before anything else is done by it (`state`).
//!
//! A handle names an object, not a version of it: where another client puts the object anew meanwhile, reads and writes go on
//! with what is there as soon as the old segments are gone. What is stored before that goes with them, as it would in a file that
//! was unlinked while it was open. Amendments by others (updates, drains) lose nothing: they end changes of what they replace.
//!
//! Invariants: a read sees all that was written through the handle before it; of a segment no two lots of ranges are stored at a
//! time, so that what was written later lands later; what could not be stored is kept; the size is that of the object as last
//! seen, or where what is not stored ends, whichever is more; but for what was written and is not stored a read tears no granule.

mod behind;
mod cache;
mod clean;
mod runs;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod torn;

use crate::{
    AmendError, Client, ClientError, FileError, GetError, ObjectStat, get::CHANGES_MAX, reader::fetch,
    reserve::Reading, unexpected,
};
use bytes::{Bytes, BytesMut};
use cache::{Cache, Moment, Room};
use clean::Clean;
use runs::Over;
use state::State;
use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};
use steadfast_protocol::{
    IntentId,
    layout::SegmentLayout,
    message::{Change, MetaAnswer, MetaFault},
    plan::{PlanError, TooLong, Wish, file_bytes_max},
    policy::Policy,
};
use tokio::task::JoinSet;

/// Segments that one sync stores at a time. Of each some changes are under way together. Picked by eye.
const SEGMENTS_AT_A_TIME: usize = 8;
/// The smallest cache: with less, each write would be stored by itself, in small pieces.
const CACHE_BYTES_MIN: u64 = 64 << 10;
/// No put or amendment has this name: a change of its lease changes nothing, and has its place in the metadata server's queue.
const NO_INTENT: IntentId = IntentId(0);
/// Locks by which lots of ranges take turns: segments this far apart share one, which delays a lot now and then and no more.
const TURNS: usize = 64;

/// How an object is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Whether it can be written to, too: only where the bucket's policy is `parity`.
    pub write: bool,
    /// Whether an object that is not there is made, empty; only with `write`.
    pub create: bool,
    /// Whether what it has is dropped; only with `write`.
    pub truncate: bool,
    /// Memory for what was written and is not stored yet, in bytes; 64 KiB at least.
    pub cache_bytes: u64,
    /// Memory for what was read, or stored, and may be read again, in bytes; 0 for none.
    pub read_cache_bytes: u64,
    /// For how long that is read from memory, whatever others store meanwhile: zero where it is to show at once.
    pub fresh_for: Duration,
}

impl Default for FileOptions {
    /// An object that is there, for writing, with 64 MiB for either: four segments of the usual size. What was read is kept for a second, as
    /// is usual for file systems over a network.
    fn default() -> Self {
        Self {
            write: true,
            create: false,
            truncate: false,
            cache_bytes: 64 << 20,
            read_cache_bytes: 64 << 20,
            fresh_for: Duration::from_secs(1),
        }
    }
}

/// What a handle did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Bytes changed where they lie, or written behind them. Those written over before they were stored are not among them.
    pub in_place_bytes: u64,
    /// Segments stored anew.
    pub segments_anew: u64,
    /// Segments that came behind the last one.
    pub segments_added: u64,
    /// How often the ranges of a segment were stored.
    pub write_backs: u64,
    /// Those of them that made room, or were to.
    pub evictions: u64,
    /// How often the object was looked up again after it was opened, those of changes among them.
    pub lookups: u64,
    /// Reads that asked no server for anything: of what was written or read, or never written.
    pub reads_kept: u64,
}

/// An object opened for reading, and mostly for writing; may be used by several tasks at once. What was written and not synced
/// is lost when it is dropped. Where another client puts the object anew meanwhile, a sync may still change the one that was replaced, for
/// as long as its chunks are there: whoever opened it earlier sees the new one after a failed access at the latest.
#[derive(Debug)]
pub struct File {
    inner: Arc<Inner>,
    /// What is stored while nobody waits for it, which ends with the handle: the tasks share the rest of it.
    behind: Mutex<JoinSet<()>>,
}

impl From<Inner> for File {
    fn from(inner: Inner) -> Self {
        Self { inner: Arc::new(inner), behind: Mutex::default() }
    }
}

#[derive(Debug)]
struct Inner {
    client: Arc<Client>,
    bucket: String,
    key: String,
    write: bool,
    /// The most bytes that are put into the cache at once.
    piece_bytes: u64,
    /// Bytes of the segments by which the cache is divided: as the bucket's policy has them.
    segment_bytes: u64,
    /// The most bytes that the object can have.
    bytes_max: u64,
    /// How it is read, and how long a round trip takes.
    reading: Reading,
    way: Duration,
    state: Mutex<State>,
    opened: Instant,
    /// Told when something that was being stored is stored, or is dirty again, and when a task ends that was to store something.
    landed: tokio::sync::Notify,
    /// Held while a lot of a segment is being stored.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// Held while the object gets another size; taken before turns.
    sizing: tokio::sync::Mutex<()>,
    /// Held while bytes are appended: each caller's follow those of another.
    appending: tokio::sync::Mutex<()>,
    /// Held while segments are stored anew.
    anew: tokio::sync::Mutex<()>,
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
    /// As there; objects under any policy can be opened for reading alone, but then not made or emptied
    /// ([`FileError::ReadOnly`]). Of what the client wants of every access a file is read and written in its class; for a bandwidth or a
    /// latency it fails with [`PlanError::Unforeseen`].
    pub async fn open_file_with(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        options: &FileOptions,
    ) -> Result<File, FileError> {
        if (options.create || options.truncate) && !options.write {
            return Err(FileError::ReadOnly { bucket: bucket.to_owned(), key: key.to_owned() });
        }
        self.check_wishes()?;
        let start = Instant::now();
        let mut found = match self.locate(bucket, key).await {
            Err(ClientError::Refused(MetaFault::NoObject { .. })) if options.create => {
                self.create_file(bucket, key).await?;
                self.locate(bucket, key).await?
            }
            found => found?,
        };
        let way = self.metadata.way(start.elapsed());
        let sizes = match found.policy {
            Policy::Parity(policy) => (policy.segment_bytes, file_bytes_max(&policy)),
            _ if options.write => {
                return Err(FileError::Policy { bucket: bucket.to_owned(), policy: found.policy });
            }
            // Nothing is ever written.
            _ => (u64::MAX, 0),
        };
        if options.truncate && found.object.size > 0 {
            found = self.set_size((bucket, key), 0).await?.1;
        }
        Ok(Inner::new(self, (bucket, key), found, sizes, way, options).into())
    }

    /// Whether a file of a bucket whose policy is this, as long as `size` bytes, finds devices for its first segment, as far as they have
    /// told: to be asked before it is made, where what cannot be written is to leave no empty object.
    ///
    /// # Errors
    /// [`AmendError::TooLong`]; [`AmendError::Plan`] with what is missing.
    pub async fn check_room(&self, policy: &Policy, size: u64) -> Result<(), AmendError> {
        // Of other policies that is said when it is opened.
        let Policy::Parity(parity) = policy else { return Ok(()) };
        let most = file_bytes_max(parity);
        if size > most {
            return Err(TooLong { size, most }.into());
        }
        self.registry().await?;
        Ok(self.check_devices(policy, size.min(parity.segment_bytes), &Wish::default())?)
    }

    /// Refuses what no file can be promised.
    fn check_wishes(&self) -> Result<(), GetError> {
        let wished = &self.options.quality;
        let wish = match (wished.bandwidth_bytes_per_s, wished.latency) {
            (None, None) => return Ok(()),
            (Some(_), _) => "bandwidth",
            (None, Some(_)) => "latency",
        };
        let access = "an open file, of which nobody knows what will be changed";
        let instead = "open it by a client without that wish, or read it as an object";
        Err(PlanError::Unforeseen { wish, access, instead }.into())
    }

    /// Makes an empty object in a bucket that has files, unless there is one.
    async fn create_file(&self, bucket: &str, key: &str) -> Result<(), FileError> {
        self.file_policy(bucket).await?;
        let create = Change::Create { bucket: bucket.to_owned(), key: key.to_owned() };
        match self.metadata.change(create).await? {
            MetaAnswer::Committed { .. } => Ok(()),
            other => Err(unexpected("Committed", &other).into()),
        }
    }
}

impl File {
    /// Bytes in the object, those written behind its end included.
    pub fn size(&self) -> u64 {
        self.inner.state().size()
    }

    /// What was done so far.
    pub fn counts(&self) -> FileCounts {
        self.inner.state().counts
    }

    /// `length` bytes from `offset` on, what was written before included; fewer at the object's end, and none behind it. What others store may
    /// show up to [`FileOptions::fresh_for`] later, of each granule (4 KiB) all that they stored at once or nothing.
    ///
    /// # Errors
    /// When too little of it can be had now, or it was removed. The same read can be tried again.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, FileError> {
        let inner = &*self.inner;
        let mut looked = false;
        for change in 1.. {
            let began = inner.opened.elapsed();
            let (found, range, (seen, written), mark) = {
                let mut state = inner.sure().await?;
                let found = Arc::clone(state.found());
                let range = offset..offset.saturating_add(length as u64).min(state.size());
                if range.is_empty() {
                    return Ok(Bytes::new());
                }
                let written = state.cache.seen(inner.segments(&range), &range);
                let mut seen = state.clean.seen(began, &range, found.object.size);
                for (at, piece) in written.within(&range) {
                    seen.write(at, piece, Over::Replace);
                }
                (found, range, (seen, written), state.clean.mark())
            };
            let mut gaps = seen.gaps(&range);
            let missing =
                gaps.next().map(|first| first.start..gaps.last().map_or(first.end, |last| last.end));
            let Some(missing) = missing else {
                inner.state().counts.reads_kept += 1;
                let mut seen = seen;
                let (_, bytes) = seen.take().pop().expect("all of the range is there, in one piece");
                return Ok(bytes);
            };
            // Between the end of what is stored and what was written behind it there are zeros.
            let size = found.object.size;
            let missing = missing.start.min(size)..missing.end.min(size);
            let wanted = inner.state().clean.to_fetch(&missing, size);
            // No node tells of what others store there.
            if !looked && !wanted.is_empty() && inner.has_holes(&found, &wanted) {
                inner.look(&found).await?;
                looked = true;
                continue;
            }
            let fetched = match wanted.is_empty() {
                true => {
                    inner.state().counts.reads_kept += 1;
                    Ok(VecDeque::new())
                }
                false => fetch(&inner.client, &found, wanted.clone(), (&inner.reading, inner.way)).await,
            };
            if let Ok(pieces) = &fetched {
                inner.state().clean.fetched((began, mark), wanted.start, pieces.iter(), size);
            }
            let is_all = |first: &Bytes| first.len() as u64 == wanted.end - wanted.start;
            match fetched {
                Ok(pieces) if missing == range && seen.is_empty() && pieces.front().is_some_and(is_all) => {
                    let (from, to) = (range.start - wanted.start, range.end - wanted.start);
                    // Both lie within the piece.
                    return Ok(pieces[0].slice(from as usize..to as usize));
                }
                Ok(pieces) => {
                    let mut bytes = BytesMut::zeroed((range.end - range.start) as usize);
                    // All places are within the range, which was just given memory.
                    let place = |at: u64| (at - range.start) as usize;
                    let mut at = wanted.start;
                    for piece in pieces {
                        let end = at + piece.len() as u64;
                        let (from, to) = (at.max(range.start), end.min(range.end));
                        if from < to {
                            let part = &piece[(from - at) as usize..(to - at) as usize];
                            bytes[place(from)..place(to)].copy_from_slice(part);
                        }
                        at = end;
                    }
                    // What was fetched is newer than what was read before, and older than what is not stored. No granule is of both: of
                    // one that was read before nothing was missing.
                    let beside = [range.start..missing.start, missing.end..range.end];
                    let beside = beside.iter().flat_map(|part| seen.within(part));
                    for (at, piece) in beside.chain(written.within(&missing)) {
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

    /// Writes bytes from `offset` on, over those that are there and behind the end. They are kept here until a sync or until
    /// room is needed: what was written before them makes it, which is begun while there is some left. What lies between the end and
    /// `offset` is zero.
    ///
    /// # Errors
    /// [`AmendError::TooLong`] where they would end behind the last byte that a file of this bucket can have: nothing of them is
    /// taken. When there is no room and what was written before cannot be stored: it is kept, and these bytes are taken in part or
    /// not at all.
    pub async fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let inner = &*self.inner;
        inner.check_size(offset.saturating_add(bytes.len() as u64))?;
        for (segment, at, piece) in inner.pieces(offset, bytes) {
            loop {
                let taken = inner.state().cache.write(segment, at, piece);
                let Err(oldest) = taken else { break };
                self.make_room(oldest).await?;
            }
            self.store_behind();
        }
        Ok(())
    }

    /// Writes bytes behind the last one that this handle knows of, those of its other tasks included; where they begin. What
    /// other handles append at the same time may be at the same place: where that can be, give each its own.
    ///
    /// # Errors
    /// As [`File::write_at`], but bytes that fit the cache are taken whole or not at all, so that they can be appended again. Of
    /// more a part may be at the object's end: append such by themselves, and see from [`File::size`] how much it is.
    pub async fn append(&self, bytes: &[u8]) -> Result<u64, FileError> {
        let inner = &*self.inner;
        let _alone = inner.appending.lock().await;
        loop {
            let offset = inner.sure().await?.size();
            inner.check_size(offset.saturating_add(bytes.len() as u64))?;
            let pieces: Vec<_> = inner.pieces(offset, bytes).collect();
            let taken = {
                let mut state = inner.state();
                // While no room was made, or by others' writes, the end may have moved, or somebody may have begun to move it.
                if state.size() != offset || state.is_unsure() {
                    continue;
                }
                state.cache.write_all(&pieces)
            };
            match taken {
                Ok(()) => {
                    self.store_behind();
                    return Ok(offset);
                }
                Err(Room::After(oldest)) => self.make_room(oldest).await?,
                Err(Room::Never) => {
                    self.write_at(offset, bytes).await?;
                    return Ok(offset);
                }
            }
        }
    }

    /// Gives the object `size` bytes, at once and durably: what is behind them is gone, what it lacks is zero. What was written
    /// behind them and is not stored yet is forgotten.
    ///
    /// # Errors
    /// [`AmendError::TooLong`], and when it cannot be changed now: the object is what it was before, and so is what this handle
    /// keeps. After [`ClientError::Unknown`] alone the object may have its new size, or get it yet. So it may where this is dropped before its
    /// end; either way the handle looks the object up before it is used next, and what was written behind the end is kept.
    pub async fn truncate(&self, size: u64) -> Result<(), FileError> {
        let inner = &*self.inner;
        inner.check_size(size)?;
        let _alone = inner.sizing.lock().await;
        // Nothing is being stored meanwhile, which could make it longer again.
        let mut turns = Vec::with_capacity(TURNS);
        for turn in &inner.turns {
            turns.push(turn.lock().await);
        }
        let sight = inner.state().sight();
        let mut resizing = Resizing { of: inner, is_known: false };
        let resized = inner.client.set_size((&inner.bucket, &inner.key), size).await;
        resizing.is_known = !matches!(&resized, Err(AmendError::Metadata(error)) if error.leaves_unknown());
        let (_, now) = resized?;
        let mut state = inner.state();
        state.saw(now, sight);
        state.cache.cut(size);
        state.clean.cut(size);
        Ok(())
    }

    /// Returns when all that was written before is durable.
    ///
    /// # Errors
    /// When some of it cannot be stored now. It is kept, and a later sync tries again.
    pub async fn sync(&self) -> Result<(), FileError> {
        let upto = {
            let state = self.inner.state();
            if state.cache.is_empty() {
                return Ok(());
            }
            state.cache.now()
        };
        let (within, behind) = self.inner.sure().await?.unstored(upto);
        if let ([one], []) = (&within[..], &behind[..]) {
            return Ok(self.inner.write_back(*one, upto).await?);
        }
        let mut storing: JoinSet<Result<(), AmendError>> = JoinSet::new();
        let (mut waiting, mut outcome) = (within.into_iter(), Ok(()));
        if !behind.is_empty() {
            let inner = Arc::clone(&self.inner);
            storing.spawn(async move { inner.write_behind(&behind, upto).await });
        }
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
    /// Of an object as found, whose segments, and which itself, can have so many bytes.
    fn new(
        client: &Arc<Client>,
        (bucket, key): (&str, &str),
        found: ObjectStat,
        (segment_bytes, bytes_max): (u64, u64),
        way: Duration,
        options: &FileOptions,
    ) -> Self {
        let cache_bytes = options.cache_bytes.max(CACHE_BYTES_MIN);
        let clean = Clean::new(options.read_cache_bytes, options.fresh_for);
        Self {
            client: Arc::clone(client),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            write: options.write,
            piece_bytes: cache_bytes - runs::RUN_BYTES,
            segment_bytes,
            bytes_max,
            reading: client.reading(client.options.quality.class()),
            way,
            state: Mutex::new(State::new(found, Cache::new(cache_bytes), clean)),
            opened: Instant::now(),
            landed: tokio::sync::Notify::new(),
            turns: (0..TURNS).map(|_| tokio::sync::Mutex::default()).collect(),
            sizing: tokio::sync::Mutex::default(),
            appending: tokio::sync::Mutex::default(),
            anew: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("never poisoned: no panic while held")
    }

    /// The same once the object was looked up, where nobody knows what became of it.
    ///
    /// # Errors
    /// When it cannot be looked up.
    async fn sure(&self) -> Result<MutexGuard<'_, State>, ClientError> {
        loop {
            let sight = {
                let state = self.state();
                if !state.is_unsure() {
                    return Ok(state);
                }
                state.sight()
            };
            self.carried_out().await?;
            let now = self.client.locate(&self.bucket, &self.key).await?;
            self.state().saw(now, sight);
        }
    }

    /// Returns once the metadata server has carried out what it was asked for before. A commit that nobody waits for any more may be in its
    /// queue yet, and looks do not queue.
    async fn carried_out(&self) -> Result<(), ClientError> {
        match self.client.metadata.renew(NO_INTENT).await {
            Ok(_) | Err(ClientError::Refused(MetaFault::IntentOver(_))) => Ok(()),
            // Whoever hears of this has asked for no change.
            Err(ClientError::Unknown { address, waited }) => {
                let cause = format!("no answer within {} s", waited.as_secs());
                Err(ClientError::Unreachable { address, cause })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the handle may write, and the object have so many bytes.
    fn check_size(&self, size: u64) -> Result<(), FileError> {
        if !self.write {
            return Err(FileError::ReadOnly { bucket: self.bucket.clone(), key: self.key.clone() });
        }
        let most = self.bytes_max;
        if size > most {
            return Err(AmendError::from(TooLong { size, most }).into());
        }
        Ok(())
    }

    /// Bytes from `offset` on as the cache takes them: each within a segment, which is named, and no more than is kept.
    fn pieces<'b>(&self, offset: u64, bytes: &'b [u8]) -> impl Iterator<Item = (usize, u64, &'b [u8])> {
        let (mut at, end) = (offset, offset + bytes.len() as u64);
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let segment = self.segment_of(at);
            let segment_end = (segment as u64 + 1).saturating_mul(self.segment_bytes);
            let (from, to) = (at, end.min(segment_end).min(at.saturating_add(self.piece_bytes)));
            at = to;
            // Both lie within the bytes given.
            Some((segment, from, &bytes[(from - offset) as usize..(to - offset) as usize]))
        })
    }

    /// The cache's segment that byte `at` is of.
    fn segment_of(&self, at: u64) -> usize {
        // A file has some thousands of them; nothing is kept of places that it cannot have.
        usize::try_from(at / self.segment_bytes).unwrap_or(usize::MAX)
    }

    fn segments(&self, range: &Range<u64>) -> Range<usize> {
        self.segment_of(range.start)..self.segment_of(range.end - 1).saturating_add(1)
    }

    /// Stores what was written to a segment, to make room; where that makes the object longer, what was written behind its end
    /// before that segment with it.
    async fn evict(&self, segment: usize) -> Result<(), AmendError> {
        let (_, mut behind) = self.sure().await?.unstored(Moment::LAST);
        behind.retain(|&other| other <= segment);
        match behind.last() == Some(&segment) {
            true => self.write_behind(&behind, Moment::LAST).await,
            false => self.write_back(segment, Moment::LAST).await,
        }
    }

    /// Stores what of a segment was written up to a moment, unless that was done meanwhile.
    async fn write_back(&self, segment: usize, upto: Moment) -> Result<(), AmendError> {
        let _turn = self.turns[segment % TURNS].lock().await;
        self.store(&[segment], upto).await
    }

    /// As [`Inner::write_back`], of segments in order that make the object longer, in one change.
    async fn write_behind(&self, segments: &[usize], upto: Moment) -> Result<(), AmendError> {
        let _alone = self.sizing.lock().await;
        // In one order, since others take several of them too.
        let mut turns = Vec::new();
        for turn in segments.iter().map(|segment| segment % TURNS).collect::<BTreeSet<_>>() {
            turns.push(self.turns[turn].lock().await);
        }
        self.store(segments, upto).await
    }

    /// Stores what of segments was written up to a moment, whose turn it is.
    async fn store(&self, segments: &[usize], upto: Moment) -> Result<(), AmendError> {
        let (mut flights, mut ranges) = (Vec::new(), Vec::new());
        let (found, sight) = {
            let mut state = self.sure().await?;
            for &segment in segments {
                let Some(lot) = state.cache.take_off(segment, upto) else { continue };
                ranges.extend(lot);
                flights.push(Flight { of: self, segment, began: self.opened.elapsed(), stored: false });
            }
            (Arc::clone(state.found()), state.sight())
        };
        if ranges.is_empty() {
            return Ok(());
        }
        let object = (self.bucket.as_str(), self.key.as_str());
        let changed = self.client.change_ranges(object, &found, &ranges, &self.anew).await?;
        // Else it would be copied to take a growth in.
        drop(found);
        let mut state = self.state();
        state.counts.write_backs += flights.len() as u64;
        state.counts.in_place_bytes += changed.in_place_bytes;
        state.counts.segments_anew += changed.segments_anew;
        state.counts.segments_added += changed.segments_added;
        state.changed(changed.grown, changed.now, sight);
        state.behind.stored();
        drop(state);
        flights.iter_mut().for_each(|flight| flight.stored = true);
        Ok(())
    }

    /// Whether some of a range, which is not empty, lies in holes.
    fn has_holes(&self, found: &ObjectStat, range: &Range<u64>) -> bool {
        // All segments of a file but the last are of one length, and no other object has holes.
        let layouts = found.segments.iter().skip(self.segment_of(range.start));
        layouts.take(self.segments(range).len()).any(SegmentLayout::is_hole)
    }

    /// Looks whether the object is still as `before`.
    async fn look(&self, before: &ObjectStat) -> Result<(), ClientError> {
        let sight = self.state().sight();
        let now = self.client.locate(&self.bucket, &self.key).await?;
        // What is kept of one that is the same stays.
        if now.object.version != before.object.version {
            self.state().saw(now, sight);
        }
        Ok(())
    }

    /// Looks the object up after a read by `before` failed; that error where it is no other now, and lies where it lay.
    async fn look_again(&self, before: &ObjectStat, error: GetError) -> Result<(), GetError> {
        let sight = {
            let state = self.state();
            if state.found().object.version != before.object.version {
                return Ok(());
            }
            state.sight()
        };
        let holders = || before.segments.iter().flat_map(|layout| &layout.holders);
        let addresses = || holders().map(|holder| self.client.address_of(holder.device)).collect::<Vec<_>>();
        let known = addresses();
        match self.client.changed(&self.bucket, &self.key, before, None, error).await {
            Ok(now) => self.state().saw(now, sight),
            // Its servers were started again and listen elsewhere.
            Err(GetError::Read(_)) if addresses() != known => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The object's size is being changed. Where nobody knows what came of that, the object is looked up before it is used next.
struct Resizing<'a> {
    of: &'a Inner,
    is_known: bool,
}

impl Drop for Resizing<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            self.of.state().doubt();
        }
    }
}

/// Ranges that are being stored. However that ends, the cache is told.
struct Flight<'a> {
    of: &'a Inner,
    segment: usize,
    began: Duration,
    stored: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let stored = state.cache.landed(self.segment, self.stored);
        let size = state.found().object.size;
        state.clean.stored(self.began, &stored, size);
        drop(state);
        self.of.landed.notify_waiters();
    }
}
