//! The I/O lane: one thread that owns a device and serves its queue.
//!
//! Anyone may submit; the answer comes by a callback on the lane's thread, which must not block. A handle never
//! waits for the medium: [`LaneHandle::status`] and [`LaneHandle::cancel`] answer while the device stalls.
//!
//! - **Group commit.** Blocks, seals and deletes are answered after a flush. The lane flushes when no further
//!   change is queued, or none that somebody waits for while somebody waits for the flush (where others are likely to follow the last
//!   block, a few times as late as a flush takes), when [`LaneConfig::group_bytes_max`] are unflushed, or when the oldest unflushed change
//!   is [`LaneConfig::group_age_max`] old, so that a long run of writes to a slow device is confirmed as it goes.
//! - **Coalescing.** Queued blocks of one segment are written together, up to [`LaneConfig::batch_bytes_max`].
//! - **Updates in place.** A staged update is answered at once, so that others can follow it while a [`Op::Barrier`] behind
//!   it makes it durable. Once the lane was idle for a while it writes back what was released, in small steps.
//! - **Cancel is a promise.** After [`LaneHandle::cancel`] returns, no further operation of that stream is started;
//!   one that the lane had begun already may still finish.
//! - **A failing device** answers; it is never retried.

mod answer;
mod reads;
mod speed;
mod status;
mod worker;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;

use self::{answer::Answer, speed::Meters, worker::Worker};
pub use self::{reads::Reads, speed::Speed, status::LaneStatus};
use crate::{
    device::{
        Apply, ChangeError, ChunkState, CreateError, Device, ExtentInfo, ExtentSpec, ReadError, ReservePage,
        Sealed, Spend, Staged, UpdateError, UpdatesInfo, Usage, WriteError,
    },
    ids::{BlockIndex, ClusterId, DeviceId, Epoch, SegmentId, Version},
    queue::{Kind, Priority, Queue, RequestId},
};

/// What a lane can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Create an extent; answered at once, durable with its first block.
    CreateExtent(ExtentSpec),
    /// Write one block; answered when it is durable.
    WriteBlock {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// Its index.
        index: BlockIndex,
        /// Its bytes, in pieces as [`crate::device::NewBlock`] takes them.
        pieces: Vec<Bytes>,
        /// One checksum a granule.
        sums: Vec<u32>,
        /// As [`crate::device::NewBlock`] has it.
        checked: Option<Version>,
        /// Others of its stream are likely to come soon: its flush waits a little for them.
        more: bool,
    },
    /// Read a part of a block, widened to whole granules.
    ReadSlice {
        /// Its segment.
        segment: SegmentId,
        /// Its index.
        index: BlockIndex,
        /// First byte.
        offset: u32,
        /// Bytes.
        len: u32,
        /// Bytes behind it that will be read next: the medium fetches them meanwhile.
        ahead: u32,
    },
    /// Make an extent final; answered when that is durable.
    Seal {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// Ranges of indices to keep.
        keep: Vec<Range<u32>>,
    },
    /// Delete an extent; answered when that is durable.
    Delete {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
    },
    /// Refuse older epochs of a segment from now on; answered when that is durable.
    Fence {
        /// The segment.
        segment: SegmentId,
        /// The epoch.
        epoch: Epoch,
    },
    /// What the device holds of a segment.
    Describe {
        /// The segment.
        segment: SegmentId,
    },
    /// Extents in the order of segments.
    List {
        /// Only those after this one.
        after: Option<SegmentId>,
        /// At most so many.
        limit: usize,
    },
    /// How full the device is.
    Usage,
    /// Change bytes of a data chunk; answered at once, not durable before an [`Op::Barrier`] behind it in the same class.
    Stage {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// First byte in the chunk.
        offset: u64,
        /// The new bytes.
        new: Bytes,
        /// What of a reservation it takes; where that is none, it leaves no mark when it finds no room.
        spend: Option<Spend>,
    },
    /// XOR a product into a parity chunk, as a version of a data chunk: answered like [`Op::Stage`].
    Overwrite {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// First byte in the chunk.
        offset: u64,
        /// What is XORed.
        product: Bytes,
        /// The data chunk and its version.
        of: (u16, u64),
        /// What of a reservation it takes.
        spend: Spend,
    },
    /// Keep room for overwrites, as [`Device::reserve`]; answered at once.
    Reserve {
        /// Whose.
        owner: u64,
        /// How much more, at least.
        least: u64,
        /// And at most.
        bytes: u64,
    },
    /// Give it back, as [`Device::unreserve`]; answered at once.
    Unreserve {
        /// Whose.
        owner: u64,
        /// How much.
        bytes: u64,
    },
    /// Answered when everything served before it is durable.
    Barrier,
    /// Change a parity chunk; answered when that is durable.
    Apply {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// The change.
        apply: Apply,
    },
    /// Let staged updates go in place; answered at once.
    Release {
        /// Their segment.
        segment: SegmentId,
        /// The last of them.
        through_version: u64,
    },
    /// Staged updates that were not released.
    Held {
        /// Their segment; `None`: which segments have some.
        segment: Option<SegmentId>,
    },
    /// Read bytes of a chunk, widened to whole granules.
    ReadChunk {
        /// Its segment.
        segment: SegmentId,
        /// First byte.
        offset: u64,
        /// Bytes: less than 4 GiB, as one answer holds them.
        len: u32,
    },
    /// Append a record to the log in a reserve; answered when it is durable.
    LogAppend {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// The number that it must get, if it must: refused otherwise.
        sequence: Option<u64>,
        /// What it holds.
        payload: Bytes,
    },
    /// Read a record of the log in a reserve.
    LogRead {
        /// Its segment.
        segment: SegmentId,
        /// Its number.
        sequence: u64,
    },
    /// Read the first of these records of the log in a reserve and those of them that lie behind it, by one read of the medium.
    LogReadRun {
        /// Its segment.
        segment: SegmentId,
        /// Their numbers.
        sequences: Range<u64>,
        /// Bytes to read at most, where one record does not need more.
        bytes_max: u64,
    },
    /// Versions, log and sizes of an updatable extent.
    DescribeUpdates {
        /// Its segment.
        segment: SegmentId,
    },
    /// Reserves in the order of segments, as [`Device::reserves_after`].
    ListReserves {
        /// Only those of extents after this one.
        after: Option<SegmentId>,
        /// Looks at so many extents.
        limit: usize,
    },
    /// Free the tail of a reserve; answered when that is durable.
    ShrinkReserve {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// Bytes that are left.
        reserve_bytes: u64,
    },
}

impl Op {
    fn kind(&self) -> Kind {
        match self {
            Op::ReadSlice { .. } | Op::ReadChunk { .. } | Op::LogRead { .. } | Op::LogReadRun { .. } => {
                Kind::Read
            }
            // All that needs a flush counts as a write: the group waits for it.
            Op::WriteBlock { .. }
            | Op::Seal { .. }
            | Op::Delete { .. }
            | Op::Fence { .. }
            | Op::Stage { .. }
            | Op::Overwrite { .. }
            | Op::Barrier
            | Op::Apply { .. }
            | Op::LogAppend { .. }
            | Op::ShrinkReserve { .. } => Kind::Write,
            Op::CreateExtent(_)
            | Op::Describe { .. }
            | Op::List { .. }
            | Op::Usage
            | Op::Release { .. }
            | Op::Reserve { .. }
            | Op::Unreserve { .. }
            | Op::Held { .. }
            | Op::DescribeUpdates { .. }
            | Op::ListReserves { .. } => Kind::Control,
        }
    }

    /// Whether it is answered after a flush.
    fn joins_group(&self) -> bool {
        self.kind() == Kind::Write && !matches!(self, Op::Stage { .. } | Op::Overwrite { .. })
    }

    /// Whether it may flush by itself: to make room in the journal, or for a frame of its own.
    fn may_flush(&self) -> bool {
        let writes = self.kind() == Kind::Write && !matches!(self, Op::WriteBlock { .. });
        writes || matches!(self, Op::Release { .. })
    }

    /// Whether it is one of the operations on chunks that change in place.
    fn is_update(&self) -> bool {
        matches!(self, Op::Barrier | Op::Apply { .. } | Op::LogAppend { .. } | Op::ShrinkReserve { .. })
    }

    fn bytes(&self) -> u64 {
        match self {
            Op::WriteBlock { pieces, .. } => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Op::ReadSlice { len, .. } | Op::ReadChunk { len, .. } => u64::from(*len),
            Op::Stage { new, .. } => new.len() as u64,
            Op::Overwrite { product, .. } => product.len() as u64,
            Op::Apply { apply: Apply { patches, .. }, .. } => {
                patches.iter().map(|(_, bytes)| bytes.len() as u64).sum()
            }
            Op::LogAppend { payload, .. } => payload.len() as u64,
            _ => 0,
        }
    }
}

/// What a lane answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpOutput {
    /// The extent, as it is now.
    Created(ExtentInfo),
    /// The block is durable.
    Written,
    /// The bytes, widened to whole granules and verified.
    Slice {
        /// Where they start in the block.
        offset: u32,
        /// The bytes.
        data: Bytes,
        /// Their checksums, one a granule.
        sums: Vec<u32>,
        /// What the extent held then, where it may be updated.
        state: Option<ChunkState>,
        /// Whether that was durable.
        durable: bool,
    },
    /// The extent is final, durably.
    Sealed(Sealed),
    /// The extent is gone, durably.
    Deleted {
        /// Whether there was one.
        found: bool,
    },
    /// Older epochs are refused, durably.
    Fenced,
    /// The extent, if there is one.
    Described(Option<ExtentInfo>),
    /// Some extents.
    List(Vec<ExtentInfo>),
    /// How full the device is.
    Usage(Usage),
    /// The update is recorded, and not durable yet.
    Staged(Staged),
    /// Everything before is durable.
    Durable,
    /// The chunk is changed, durably.
    Applied,
    /// The updates may go in place.
    Released,
    /// So much more is reserved.
    Reserved {
        /// As much as there is of what was asked for; 0 where that is too little.
        bytes: u64,
    },
    /// It is not reserved any more.
    Unreserved,
    /// Staged updates in the order of their versions.
    Held(Vec<Staged>),
    /// Segments with staged updates, and the lowest version of those.
    HeldSegments(Vec<(SegmentId, u64)>),
    /// The bytes of the chunk, widened to whole granules and verified.
    Chunk {
        /// Where they start in the chunk.
        offset: u64,
        /// The bytes.
        data: Bytes,
        /// Their checksums, one a granule.
        sums: Vec<u32>,
        /// What the extent held then.
        state: ChunkState,
        /// Whether that was durable.
        durable: bool,
    },
    /// The record is durable.
    Logged {
        /// Its number.
        sequence: u64,
    },
    /// The payload of the record, verified.
    LogRecord(Bytes),
    /// The payloads of the records, in order, verified; one at least.
    LogRecords(Vec<Bytes>),
    /// The updatable extent.
    Updates(UpdatesInfo),
    /// Some reserves.
    Reserves(ReservePage),
    /// The reserve is smaller, durably.
    Shrunk,
}

/// Why a lane did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The stream was cancelled before the operation began.
    #[error("cancelled")]
    Cancelled,
    /// The lane was shut down before the operation began, or its thread ended with the operation in its hands: then it may or may not
    /// be done.
    #[error("the device is closed")]
    Closed,
    /// An extent was not created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A block was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A block was not read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An extent was not sealed, deleted or fenced.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A chunk was not read or changed in place.
    #[error(transparent)]
    Update(#[from] UpdateError),
}

/// Takes the answer, on the lane's thread; must not block.
pub type Reply = Box<dyn FnOnce(Result<OpOutput, OpError>) + Send>;

/// How a lane groups its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneConfig {
    /// Unflushed bytes that force a flush. 8 MiB: a flush of 1.5 ms is then 1/50 of the transfer at 100 MB/s.
    pub group_bytes_max: u64,
    /// Age of the oldest unflushed change that forces a flush. 8 ms: a dozen blocks of 64 KiB at 100 MB/s, so that a
    /// writer's last confirmation is not a large part of its time, and still several times a flush.
    pub group_age_max: Duration,
    /// Bytes of one coalesced write.
    pub batch_bytes_max: u64,
    /// How long a shutdown waits for the operation in hand before it leaves the thread behind.
    pub shutdown_wait_max: Duration,
    /// How often a lane looks whether a medium that failed a read gives anything.
    pub look_every: Duration,
}

impl Default for LaneConfig {
    fn default() -> Self {
        LaneConfig {
            group_bytes_max: 8 << 20,
            group_age_max: Duration::from_millis(8),
            batch_bytes_max: 1 << 20,
            shutdown_wait_max: Duration::from_secs(2),
            // Picked by eye: a disk that gives nothing is found, and one that is back serves, within a few heartbeats.
            look_every: Duration::from_secs(1),
        }
    }
}

/// How a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// The thread ended; the medium is closed.
    Joined,
    /// The medium did not answer in time: the thread was left behind, and ends with the process or the stall.
    Detached,
}

struct Pending {
    op: Op,
    class: Priority,
    reply: Answer,
    queued_at: Instant,
}

struct InFlight {
    since: Instant,
    /// Whether somebody waits for it.
    foreground: bool,
    /// It may end in a flush.
    flush: bool,
}

impl InFlight {
    fn operation(since: Instant, foreground: bool) -> Self {
        Self { since, foreground, flush: false }
    }

    fn serving(since: Instant, pending: &Pending) -> Self {
        let foreground = worker::in_foreground(pending.class);
        Self { since, foreground, flush: pending.op.may_flush() }
    }

    fn flush(foreground: bool) -> Self {
        Self { since: Instant::now(), foreground, flush: true }
    }
}

struct State {
    /// Submitted, not yet in the queue: only the lane knows where blocks lie.
    inbox: Vec<(RequestId, u64)>,
    queue: Queue,
    pending: BTreeMap<RequestId, Pending>,
    in_flight: Option<InFlight>,
    /// The stream of what is or was served last; `None` once it was cancelled.
    serving: Option<u64>,
    /// The lane's thread sleeps, and nobody has woken it.
    asleep: bool,
    meters: Meters,
    /// What the device looked like after the last operation.
    snapshot: status::Snapshot,
    closing: bool,
    ended: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
    next_id: AtomicU64,
    started: Instant,
    thread: Mutex<Option<JoinHandle<()>>>,
    config: LaneConfig,
    cluster: ClusterId,
    device: DeviceId,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> Vec<Pending> {
        let mut state = self.state();
        state.closing = true;
        state.inbox.clear();
        state.queue = Queue::new();
        let dropped = std::mem::take(&mut state.pending);
        self.work.notify_all();
        dropped.into_values().collect()
    }
}

/// Ends the lane when the last handle is gone.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        for pending in self.0.close() {
            pending.reply.give(Err(OpError::Closed));
        }
    }
}

/// Starts lanes.
pub struct Lane;

impl Lane {
    /// Gives a device a thread of its own.
    ///
    /// # Errors
    /// Where the operating system has no thread left.
    pub fn spawn(device: Device, config: LaneConfig) -> std::io::Result<LaneHandle> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                inbox: Vec::new(),
                queue: Queue::new(),
                pending: BTreeMap::new(),
                in_flight: None,
                serving: None,
                asleep: false,
                meters: Meters::default(),
                snapshot: status::Snapshot::of(&device, &Reads::default(), 0),
                closing: false,
                ended: false,
            }),
            work: Condvar::new(),
            ended: Condvar::new(),
            next_id: AtomicU64::new(1),
            started: Instant::now(),
            thread: Mutex::new(None),
            config,
            cluster: device.cluster(),
            device: device.id(),
        });
        let worker = Worker::new(shared.clone(), device);
        let thread = thread::Builder::new().name("disk-lane".to_owned()).spawn(move || worker.run())?;
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(LaneHandle { shared: shared.clone(), _guard: Arc::new(Guard(shared)) })
    }
}

/// Access to a lane. Cheap to clone; the lane ends with the last one.
#[derive(Clone)]
pub struct LaneHandle {
    shared: Arc<Shared>,
    _guard: Arc<Guard>,
}

impl LaneHandle {
    /// The device's cluster.
    pub fn cluster(&self) -> ClusterId {
        self.shared.cluster
    }

    /// The device's name.
    pub fn device(&self) -> DeviceId {
        self.shared.device
    }

    /// Queues an operation for a stream. The reply is called exactly once.
    pub fn submit(&self, stream: u64, class: Priority, op: Op, reply: Reply) -> RequestId {
        let id = RequestId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let mut state = self.shared.state();
        if state.closing {
            drop(state);
            reply(Err(OpError::Closed));
            return id;
        }
        state.pending.insert(id, Pending { op, class, reply: Answer::new(reply), queued_at: Instant::now() });
        state.inbox.push((id, stream));
        // Once, and not while it would wait for the lock: each is a system call on the way of an update.
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.shared.work.notify_one();
        }
        id
    }

    /// Drops everything of a stream that has not begun; those replies get [`OpError::Cancelled`]. After it returns
    /// no further disk I/O starts for operations of the stream submitted before. Returns how many were dropped.
    pub fn cancel(&self, stream: u64) -> usize {
        let mut dropped = Vec::new();
        {
            let mut state = self.shared.state();
            let State { inbox, queue, pending, serving, .. } = &mut *state;
            serving.take_if(|serving| *serving == stream);
            for id in queue.cancel_stream(stream) {
                dropped.extend(pending.remove(&id));
            }
            inbox.retain(|(id, of)| {
                if *of == stream {
                    dropped.extend(pending.remove(id));
                }
                *of != stream
            });
        }
        let count = dropped.len();
        for pending in dropped {
            pending.reply.give(Err(OpError::Cancelled));
        }
        count
    }

    /// The medium is another one from now on: how fast the one before was says nothing of it.
    pub fn forget_speed(&self) {
        self.shared.state().meters.forget();
    }

    /// How long the device has worked so far on what somebody waits for: on all classes but [`Priority::Background`].
    pub fn foreground(&self) -> Duration {
        let state = self.shared.state();
        let present = state.in_flight.as_ref().filter(|present| present.foreground);
        state.meters.foreground + present.map_or(Duration::ZERO, |present| present.since.elapsed())
    }

    /// What the lane is doing; never waits for the medium.
    pub fn status(&self) -> LaneStatus {
        let state = self.shared.state();
        let queued_bytes = state.pending.values().map(|p| p.op.bytes()).sum();
        LaneStatus {
            queued: state.pending.len(),
            queued_bytes,
            in_flight_age: state.in_flight.as_ref().map(|f| f.since.elapsed()),
            flushing: state.in_flight.as_ref().is_some_and(|f| f.flush),
            read_bytes_per_s: state.meters.read.bytes_per_s(),
            write_bytes_per_s: state.meters.write.bytes_per_s(),
            service_time: state.meters.service_time(),
            flush_time: state.meters.flush_time(),
            completed: state.meters.completed,
            unflushed_bytes: state.snapshot.unflushed_bytes,
            failed: state.snapshot.failed.clone(),
            reads: state.snapshot.reads.clone(),
            corrupt_blocks: state.snapshot.corrupt_blocks,
            usage: state.snapshot.usage,
            counters: state.snapshot.counters,
        }
    }

    /// Ends the lane: queued operations get [`OpError::Closed`], what was written is flushed and answered.
    pub fn shutdown(&self) -> Shutdown {
        for pending in self.shared.close() {
            pending.reply.give(Err(OpError::Closed));
        }
        let deadline = Instant::now() + self.shared.config.shutdown_wait_max;
        let mut state = self.shared.state();
        while !state.ended {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) else {
                return Shutdown::Detached;
            };
            state = self.shared.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(device = %self.shared.device, "the lane's thread panicked");
        }
        Shutdown::Joined
    }
}

#[cfg(test)]
mod tests;
