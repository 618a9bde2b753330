//! A disk: what it holds, the lane's queue of requests, and a medium that says how long each takes.
//!
//! One request is on the medium at a time, as in the lane of a real device; the queue is the same one.

use core::{ops::Range, time::Duration};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use steadfast_disk::{
    Priority, RequestId,
    lane::Speed,
    queue::{Kind, NoEstimate, Queue, Request},
};
use steadfast_protocol::{BlockIndex, IndexRanges, SegmentId, Time, Version, serve::SliceId};

use crate::{
    cache::NodeCache,
    message::{StreamId, fingerprint},
};

/// How long a device takes for what.
pub trait Medium: Send {
    /// A transfer of `bytes` bytes at `offset` is started at `start`; when it ends, not before that.
    fn transfer(&mut self, start: Time, offset: u64, bytes: u64, writes: bool) -> Time;

    /// Requests of the disk that it has modelled, where it models a disk.
    fn requests(&self) -> u64 {
        0
    }
}

/// A medium of one speed for reads and one for writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Bytes per second.
    pub read_bytes_per_s: f64,
    /// Bytes per second.
    pub write_bytes_per_s: f64,
    /// Before each transfer.
    pub latency: Duration,
}

impl Steady {
    /// One speed for both, without latency.
    pub fn of(bytes_per_s: f64) -> Self {
        Self { read_bytes_per_s: bytes_per_s, write_bytes_per_s: bytes_per_s, latency: Duration::ZERO }
    }
}

impl Medium for Steady {
    fn transfer(&mut self, start: Time, _offset: u64, bytes: u64, writes: bool) -> Time {
        let speed = if writes { self.write_bytes_per_s } else { self.read_bytes_per_s };
        start + self.latency + Duration::from_secs_f64(bytes as f64 / speed)
    }
}

/// Part of a block to be read, or a block to be written, for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) stream: StreamId,
    pub(crate) segment: SegmentId,
    pub(crate) index: BlockIndex,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Read { slice: SliceId, offset: u32, bytes: u32 },
    Write { bytes: u32 },
}

/// What the bytes of an extent are.
#[derive(Clone, Debug)]
pub(crate) enum Contents {
    /// Made from this; see [`fingerprint`].
    Of(u64),
    /// As they came: the fingerprint of each slice, by block and offset.
    Slices(BTreeMap<(BlockIndex, u32), u64>),
}

/// One segment's blocks.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) version: Version,
    pub(crate) block_bytes: u32,
    contents: Contents,
    /// Where it begins on the medium.
    begin: u64,
    /// Blocks in the order they lie, gone ones too.
    order: Vec<BlockIndex>,
    /// Where in `order` those that are held are, by their index.
    places: Vec<(BlockIndex, u32)>,
    corrupt: BTreeSet<BlockIndex>,
}

impl Extent {
    /// Those of the blocks held that `wanted` names, as they lie.
    pub(crate) fn wanted(&self, wanted: Option<&IndexRanges>) -> Vec<BlockIndex> {
        let whole = self.places.len() == self.order.len();
        let held = |index: &BlockIndex| whole || self.place_of(*index).is_some();
        let named = |index: &BlockIndex| wanted.is_none_or(|wanted| wanted.contains(*index));
        self.order.iter().copied().filter(|index| held(index) && named(index)).collect()
    }

    pub(crate) fn blocks(&self) -> IndexRanges {
        self.places.iter().map(|&(index, _)| index).collect()
    }

    /// Where in the extent a block is.
    fn place_of(&self, index: BlockIndex) -> Option<u64> {
        let at = self.places.binary_search_by_key(&index, |&(index, _)| index).ok()?;
        Some(self.places[at].1.into())
    }

    fn place(&mut self, index: BlockIndex) {
        if let Err(at) = self.places.binary_search_by_key(&index, |&(index, _)| index) {
            let last = u32::try_from(self.order.len()).expect("fewer blocks than indices");
            self.places.insert(at, (index, last));
            self.order.push(index);
        }
    }

    /// The fingerprint of part of a block; `None` where the block is gone.
    pub(crate) fn read(
        &self,
        segment: SegmentId,
        index: BlockIndex,
        offset: u32,
        bytes: u32,
    ) -> Option<Part> {
        self.place_of(index)?;
        if self.corrupt.contains(&index) {
            return Some(Part::Corrupt);
        }
        Some(match &self.contents {
            Contents::Of(contents) => {
                Part::Good(fingerprint(*contents, segment, self.version, index, offset, bytes))
            }
            Contents::Slices(slices) => {
                slices.get(&(index, offset)).map_or(Part::Corrupt, |fingerprint| Part::Good(*fingerprint))
            }
        })
    }

    /// Takes part of a block that is going to be written.
    pub(crate) fn take(&mut self, index: BlockIndex, offset: u32, fingerprint: u64) {
        if let Contents::Slices(slices) = &mut self.contents {
            slices.insert((index, offset), fingerprint);
        }
    }
}

/// What reading part of a block gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Good(u64),
    Corrupt,
}

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Payload bytes read from the medium.
    pub read_bytes: u64,
    /// Payload bytes that its server's cache gave instead.
    pub cached_bytes: u64,
    /// Payload bytes written to it.
    pub written_bytes: u64,
    /// Transfers.
    pub transfers: u64,
    /// How long it was busy.
    pub busy: Duration,
}

/// What the queue's requests are for. They are numbered as they come, and go about as they came.
#[derive(Default)]
struct Jobs {
    /// Of the first in `jobs`.
    first: u64,
    jobs: VecDeque<Option<Job>>,
}

impl Jobs {
    fn add(&mut self, job: Job) -> RequestId {
        self.jobs.push_back(Some(job));
        RequestId(self.first + self.jobs.len() as u64 - 1)
    }

    fn take(&mut self, id: RequestId) -> Option<Job> {
        let place = usize::try_from(id.0.checked_sub(self.first)?).ok()?;
        let job = self.jobs.get_mut(place)?.take();
        while let Some(None) = self.jobs.front() {
            self.jobs.pop_front();
            self.first += 1;
        }
        job
    }

    /// Of none any more; their numbers are not given again.
    fn clear(&mut self) {
        self.first += self.jobs.len() as u64;
        self.jobs.clear();
    }
}

/// One device of a storage server.
pub(crate) struct Device {
    /// Its name in the server's cache.
    pub(crate) number: u16,
    medium: Box<dyn Medium>,
    queue: Queue,
    jobs: Jobs,
    serving: Option<Serving>,
    /// Names the operation under way, so that the end of one that was stalled is not taken for another's.
    pub(crate) turn: u64,
    stalled: bool,
    factor: f64,
    end_bytes: u64,
    read: Speed,
    write: Speed,
    pub(crate) extents: BTreeMap<SegmentId, Extent>,
    pub(crate) done: Done,
}

struct Serving {
    job: Job,
    since: Time,
    /// What the medium moves: not all of it where the server's cache has a part.
    moved_bytes: u64,
    /// When it ends; how long it would go on, while stalled.
    ends: Result<Time, Duration>,
}

impl Device {
    pub(crate) fn new(number: u16, medium: Box<dyn Medium>) -> Self {
        Self {
            number,
            medium,
            queue: Queue::new(),
            jobs: Jobs::default(),
            serving: None,
            turn: 0,
            stalled: false,
            factor: 1.0,
            end_bytes: 0,
            read: Speed::default(),
            write: Speed::default(),
            extents: BTreeMap::new(),
            done: Done::default(),
        }
    }

    /// A new extent, with room for `expected` blocks before what comes next; one that is there stays as it is.
    pub(crate) fn create(
        &mut self,
        segment: SegmentId,
        version: Version,
        block_bytes: u32,
        contents: Contents,
        expected: u32,
    ) -> &mut Extent {
        let begin = self.end_bytes;
        let end = &mut self.end_bytes;
        self.extents.entry(segment).or_insert_with(|| {
            *end += u64::from(block_bytes) * u64::from(expected.max(1));
            let (order, places, corrupt) = Default::default();
            Extent { version, block_bytes, contents, begin, order, places, corrupt }
        })
    }

    /// Puts blocks there without a transfer.
    pub(crate) fn hold(&mut self, segment: SegmentId, blocks: &IndexRanges) {
        if let Some(extent) = self.extents.get_mut(&segment) {
            blocks.iter().for_each(|index| extent.place(index));
        }
    }

    /// Keeps only these.
    pub(crate) fn keep(&mut self, segment: SegmentId, blocks: &IndexRanges) {
        if let Some(extent) = self.extents.get_mut(&segment) {
            extent.places.retain(|&(index, _)| blocks.contains(index));
        }
    }

    pub(crate) fn corrupt(&mut self, segment: SegmentId, index: BlockIndex) {
        if let Some(extent) = self.extents.get_mut(&segment) {
            extent.corrupt.insert(index);
        }
    }

    /// It is another disk from now on, with the same bytes on it.
    pub(crate) fn replace(&mut self, medium: Box<dyn Medium>) {
        self.medium = medium;
        (self.read, self.write) = Default::default();
    }

    /// Takes a request into the queue.
    pub(crate) fn submit(&mut self, now: Time, class: Priority, job: Job) {
        let id = self.jobs.add(job);
        let (kind, offset, bytes) = match job.what {
            What::Read { offset, bytes, .. } => (Kind::Read, self.offset(&job) + u64::from(offset), bytes),
            What::Write { bytes } => (Kind::Write, 0, bytes),
        };
        let (bytes, stream) = (u64::from(bytes), job.stream);
        self.queue.add(Request { id, stream, class, kind, offset, bytes, queued_at_ns: now.0 });
    }

    /// Drops what a stream has in the queue.
    pub(crate) fn withdraw(&mut self, stream: StreamId) -> Vec<Job> {
        let ids = self.queue.cancel_stream(stream);
        ids.iter().filter_map(|id| self.jobs.take(*id)).collect()
    }

    /// Starts the next request, if the medium is idle: when it ends.
    ///
    /// Of a read, only what is not in the server's cache by now is moved.
    pub(crate) fn start(&mut self, now: Time, cache: Option<&NodeCache>) -> Option<Time> {
        if self.serving.is_some() || self.stalled {
            return None;
        }
        let id = self.queue.select(now.0, &NoEstimate)?;
        let request = self.queue.dispatch(id).expect("what was selected is queued");
        let job = self.jobs.take(id).expect("what is queued is a job");
        let (offset, bytes, writes) = match job.what {
            What::Read { .. } => (request.offset, request.bytes, false),
            What::Write { .. } => {
                let extent = self.extents.get_mut(&job.segment);
                extent.into_iter().for_each(|extent| extent.place(job.index));
                (self.offset(&job), request.bytes, true)
            }
        };
        let (mut at, mut moved_bytes) = (now, 0);
        let mut transfer = |part: Range<u64>| {
            let bytes = part.end - part.start;
            at = self.medium.transfer(at, part.start, bytes, writes);
            moved_bytes += bytes;
        };
        let whole = offset..offset + bytes;
        match cache {
            Some(cache) if !writes => cache.missing(self.number, whole).into_iter().for_each(transfer),
            _ => transfer(whole),
        }
        let ends = now + at.since(now).mul_f64(self.factor);
        self.serving = Some(Serving { job, since: now, moved_bytes, ends: Ok(ends) });
        self.turn += 1;
        Some(ends)
    }

    /// The request under way has ended, if `turn` is its: what it was.
    pub(crate) fn finish(&mut self, now: Time, turn: u64) -> Option<Job> {
        if turn != self.turn || self.stalled {
            return None;
        }
        let Serving { job, since, moved_bytes, .. } = self.serving.take()?;
        let busy = now.since(since);
        self.done.busy += busy;
        self.done.transfers += u64::from(moved_bytes > 0);
        match job.what {
            What::Read { bytes, .. } => {
                if moved_bytes > 0 {
                    self.read.observe(moved_bytes, busy);
                }
                self.done.read_bytes += moved_bytes;
                self.done.cached_bytes += u64::from(bytes) - moved_bytes;
            }
            What::Write { .. } => {
                self.write.observe(moved_bytes, busy);
                self.done.written_bytes += moved_bytes;
            }
        }
        Some(job)
    }

    /// What is under way stops, and nothing begins.
    pub(crate) fn stall(&mut self, now: Time) {
        self.stalled = true;
        if let Some(serving) = &mut self.serving
            && let Ok(ends) = serving.ends
        {
            serving.ends = Err(ends.since(now));
        }
    }

    /// It goes on: when what is under way ends.
    pub(crate) fn resume(&mut self, now: Time) -> Option<Time> {
        self.stalled = false;
        let serving = self.serving.as_mut()?;
        let ends = match serving.ends {
            Ok(ends) => ends,
            Err(left) => now + left,
        };
        serving.ends = Ok(ends);
        self.turn += 1;
        Some(ends)
    }

    pub(crate) fn slow(&mut self, factor: f64) {
        self.factor = factor;
    }

    /// Forgets all that is queued or under way: its server has gone.
    pub(crate) fn reset(&mut self) {
        self.queue = Queue::new();
        self.jobs.clear();
        self.serving = None;
        self.turn += 1;
    }

    pub(crate) fn modelled_requests(&self) -> u64 {
        self.medium.requests()
    }

    /// Bytes that wait.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// Its measured speed; 0 where unknown.
    pub(crate) fn bytes_per_s(&self, writes: bool) -> u64 {
        let speed = if writes { &self.write } else { &self.read };
        speed.bytes_per_s().unwrap_or(0.0) as u64
    }

    /// The bytes on the medium that a job is about.
    pub(crate) fn bytes_of(&self, job: &Job) -> Range<u64> {
        let (offset, bytes) = match job.what {
            What::Read { offset, bytes, .. } => (offset, bytes),
            What::Write { bytes } => (0, bytes),
        };
        let start = self.offset(job) + u64::from(offset);
        start..start + u64::from(bytes)
    }

    /// The bytes on the medium of a block; none of one that is not there.
    pub(crate) fn bytes_of_block(&self, segment: SegmentId, index: BlockIndex) -> Option<Range<u64>> {
        let extent = self.extents.get(&segment)?;
        let start = extent.begin + extent.place_of(index)? * u64::from(extent.block_bytes);
        Some(start..start + u64::from(extent.block_bytes))
    }

    /// Where the job's block begins on the medium; its extent's begin where it has no place.
    fn offset(&self, job: &Job) -> u64 {
        let Some(extent) = self.extents.get(&job.segment) else { return 0 };
        extent.begin + extent.place_of(job.index).unwrap_or(0) * u64::from(extent.block_bytes)
    }
}
