//! The lane's thread.
//!
//! ```text
//!          ┌───────────────── answer ─────────────────┐
//!          v                                          │
//! wait ─> admit inbox ─> flush due? ── no ─> look due? ── no ─> select ─> serve (one read, or a batch of blocks)
//!                           └─ yes ─> flush,    └─ yes ─> read one place of a medium that failed a read
//!                                     answer the group
//! ```

use std::{
    sync::{Arc, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    InFlight, Op, OpError, OpOutput, Pending, Reads, Shared, State, answer::Answer, status::Snapshot,
};
use crate::{
    device::{ChangeError, Device, DeviceError, LogError, NewBlock, UpdateError, WriteError},
    ids::{Epoch, SegmentId},
    media::MediumError,
    queue::{Kind, NoEstimate, Priority, Request, RequestId},
};

pub(super) struct Worker {
    shared: Arc<Shared>,
    device: Device,
    reads: Reads,
    /// When to look whether the medium gives anything; `None`: nothing says that it does not.
    look_at: Option<Instant>,
    group: Group,
    /// When it last served or was idle too short to write back; `None`: it writes back, and nothing came since.
    busy_until: Option<Instant>,
}

/// Changes that wait for the flush, with the answer each gets after it.
#[derive(Default)]
struct Group {
    waiting: Vec<(Waiting, Answer)>,
    bytes: u64,
    /// Those of blocks: the others are no measure of how fast blocks are written.
    block_bytes: u64,
    since: Option<Instant>,
    /// Whether somebody waits for any of them.
    foreground: bool,
    /// Whether all are blocks, and others are likely to follow the last of them.
    more: bool,
    /// Whether anything waits that nothing is likely to follow.
    hurried: bool,
}

enum Waiting {
    Block,
    Change(OpOutput),
    Update(OpOutput),
}

/// How long a lane with nothing to do waits before it writes back: many times the pause of somebody who sends one update
/// after the other to one of several devices, who would else find the device busy. After 10 ms every second granule was
/// written between two updates, each with its checksum in writes of their own (six nodes, one update after the other).
const IDLE_BEFORE_WRITE_BACK: Duration = Duration::from_millis(100);
/// How long blocks wait for others that are likely to follow, in times of what a flush takes: the flushes of a writer that is no faster
/// than its device are then a quarter of that one's time at the most, and each has several blocks.
const FLUSHES_PATIENT: u32 = 3;
/// The pause after the lane has looked whether a medium gives anything, in times of what that took.
const LOOK_PAUSES: u32 = 20;
/// Bytes of one step of writing back, which is one place on the medium: a positioning and 2.5 ms of a disk of 100 MB/s is what
/// a new request waits.
const WRITE_BACK_BYTES: u64 = 256 << 10;

/// Marks the lane as ended however its thread ends, and answers whoever still waits. One that nobody closed has failed: it serves
/// nothing any more.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let told_to = self.0.state().closing;
        for pending in self.0.close() {
            pending.reply.give(Err(OpError::Closed));
        }
        let mut state = self.0.state();
        if !told_to {
            state.snapshot.failed.get_or_insert(DeviceError::Ended);
        }
        state.ended = true;
        state.in_flight = None;
        self.0.ended.notify_all();
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, device: Device) -> Worker {
        Worker {
            shared,
            device,
            reads: Reads::default(),
            look_at: None,
            group: Group::default(),
            busy_until: Some(Instant::now()),
        }
    }

    pub(super) fn run(self) {
        let ending = Ending(self.shared.clone());
        let mut this = self;
        while this.step() {}
        // The medium is closed before anyone learns that the lane ended: it may be opened again at once.
        drop(this);
        drop(ending);
    }

    /// Serves one operation, one batch or one flush. `false`: closed and nothing left.
    fn step(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut state = shared.state();
        loop {
            self.admit(&mut state);
            let until_flush = self.until_flush(&state);
            if until_flush == Some(Duration::ZERO) {
                state.in_flight = Some(InFlight::flush(self.group.foreground));
                drop(state);
                self.flush();
                self.busy_until = Some(Instant::now());
                return true;
            }
            // Also of a device that is never idle: what it serves may come from the system's memory.
            let until_look = self.look_at.map(|at| at.saturating_duration_since(Instant::now()));
            if until_look == Some(Duration::ZERO) && !state.closing {
                state.in_flight = Some(InFlight::operation(Instant::now(), false));
                drop(state);
                self.look();
                return true;
            }
            let now_ns = nanos(self.shared.started.elapsed());
            if let Some(id) = state.queue.select(now_ns, &NoEstimate) {
                self.serve(state, id);
                self.busy_until = Some(Instant::now());
                return true;
            }
            if state.closing {
                return false;
            }
            if self.device.has_to_fetch() {
                state.in_flight = Some(InFlight::operation(Instant::now(), false));
                drop(state);
                self.device.fetch_piece();
                self.finish(0, Duration::ZERO, |_| {});
                return true;
            }
            let rest = self.rest();
            if rest == Some(Duration::ZERO) {
                state.in_flight = Some(InFlight::flush(false));
                drop(state);
                self.write_back();
                return true;
            }
            let until = until_flush.into_iter().chain(rest).chain(until_look).min();
            state = self.wait(&shared, state, now_ns, until);
        }
    }

    fn wait<'a>(
        &self,
        shared: &'a Shared,
        mut state: MutexGuard<'a, State>,
        now_ns: u64,
        rest: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        let ready = state.queue.next_ready_ns();
        let ready = ready.map(|at| Duration::from_nanos(at.saturating_sub(now_ns).max(1)));
        state.asleep = true;
        let mut state = match ready.into_iter().chain(rest).min() {
            Some(wait) => shared.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
            None => shared.work.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        state.asleep = false;
        state
    }

    /// How long the lane still rests before it writes back; `None`: there is nothing to write back.
    fn rest(&self) -> Option<Duration> {
        if self.device.failed().is_some() || self.device.to_write_back() == 0 && !self.device.has_to_prepare()
        {
            return None;
        }
        let rested = self.busy_until.map_or(IDLE_BEFORE_WRITE_BACK, |until| until.elapsed());
        Some(IDLE_BEFORE_WRITE_BACK.saturating_sub(rested))
    }

    /// Looks whether a medium that failed a read gives anything.
    fn look(&mut self) {
        let since = self.begin();
        if let Some(place) = self.reads.place_to_look(|part, of| self.device.data_at(part, of)) {
            self.reads.looked(self.device.can_read(place));
        }
        let took = since.elapsed();
        // A drive may take long to find that it cannot.
        let pause = self.shared.config.look_every.max(took * LOOK_PAUSES);
        self.look_at = self.reads.has_to_look().then(|| Instant::now() + pause);
        self.finish(0, took, |_| {});
    }

    /// One step of what a device does when nobody asks: a flush of what writing back waits for, some of it in place, or
    /// a part of a reserve zeroed. An error is told by the next operation: the device only reads.
    fn write_back(&mut self) {
        self.busy_until = None;
        let since = self.begin();
        let outcome = match self.device.write_back_run(WRITE_BACK_BYTES) {
            Ok(0) if self.device.to_write_back() > 0 => self.device.flush().map(|_| ()),
            Ok(0) => self.device.prepare_ahead().map(|_| ()),
            other => other.map(|_| ()),
        };
        if let Err(error) = outcome {
            tracing::error!(device = %self.device.id(), %error, "writing back failed");
        }
        self.finish(0, since.elapsed(), |_| {});
    }

    /// The lane turns to something that nobody asked for: it was not queued before now, whatever was, and needed no medium.
    fn begin(&self) -> Instant {
        let now = Instant::now();
        self.device.medium().note_queued(now);
        now
    }

    /// Moves what was submitted into the queue, now that it is known where blocks lie.
    fn admit(&self, state: &mut State) {
        for (id, stream) in std::mem::take(&mut state.inbox) {
            let Some(pending) = state.pending.get(&id) else { continue };
            let offset = match &pending.op {
                Op::ReadSlice { segment, index, offset, .. } => {
                    self.device.locate(*segment, *index).unwrap_or(0) + u64::from(*offset)
                }
                Op::ReadChunk { segment, offset, .. } => {
                    self.device.locate_chunk(*segment, *offset).unwrap_or(0)
                }
                _ => 0,
            };
            let queued_at = pending.queued_at.saturating_duration_since(self.shared.started);
            state.queue.add(Request {
                id,
                stream,
                class: pending.class,
                kind: pending.op.kind(),
                offset,
                bytes: pending.op.bytes(),
                queued_at_ns: nanos(queued_at),
            });
        }
    }

    /// When the group is to be flushed; `None`: nothing waits for it.
    fn until_flush(&self, state: &State) -> Option<Duration> {
        let waited = self.group.since?.elapsed();
        let config = &self.shared.config;
        if self.group.bytes >= config.group_bytes_max || state.closing {
            return Some(Duration::ZERO);
        }
        // What nobody waits for keeps nobody waiting who does: it may take as long as a group may, and be more than one holds.
        let heeded = if self.group.foreground { Priority::Speculative } else { Priority::Background };
        let patience = if state.queue.writes(heeded) > 0 {
            config.group_age_max
        } else if self.group.more {
            let flush = state.meters.flush_time().unwrap_or_default();
            config.group_age_max.min(flush * FLUSHES_PATIENT)
        } else {
            Duration::ZERO
        };
        Some(patience.saturating_sub(waited))
    }

    fn serve(&mut self, mut state: MutexGuard<'_, State>, id: RequestId) {
        let Some(pending) = take(&mut state, id) else { return };
        let since = Instant::now();
        state.in_flight = Some(InFlight::serving(since, &pending));
        match pending.op {
            Op::WriteBlock { segment, epoch, .. } => {
                let batch = self.batch(&mut state, pending, segment, epoch);
                drop(state);
                self.write(segment, epoch, batch, since);
            }
            _ => {
                drop(state);
                self.device.medium().note_queued(pending.queued_at);
                self.single(pending, since);
            }
        }
    }

    /// Takes the blocks of the same segment that would be served next anyway.
    fn batch(&self, state: &mut State, first: Pending, segment: SegmentId, epoch: Epoch) -> Vec<Pending> {
        // A batch on a slow device is short, so that it is not itself what keeps a group from its flush; one
        // whose speed is not known yet starts with a single block.
        let config = &self.shared.config;
        let speed = state.meters.write.bytes_per_s().unwrap_or(0.0);
        let paced = (speed * config.group_age_max.as_secs_f64()) as u64;
        let bytes_max = config.batch_bytes_max.min(paced);
        let mut bytes = first.op.bytes();
        let mut batch = vec![first];
        let now_ns = nanos(self.shared.started.elapsed());
        while let Some(id) = state.queue.select(now_ns, &NoEstimate) {
            let Some(next) = state.pending.get(&id) else { break };
            let same = matches!(&next.op, Op::WriteBlock { segment: s, epoch: e, .. }
                if (*s, *e) == (segment, epoch));
            bytes += next.op.bytes();
            if !same || bytes > bytes_max {
                break;
            }
            batch.extend(take(state, id));
        }
        batch
    }

    fn write(&mut self, segment: SegmentId, epoch: Epoch, batch: Vec<Pending>, since: Instant) {
        self.device.medium().note_queued(batch[0].queued_at);
        let blocks: Vec<NewBlock<'_>> = batch
            .iter()
            .filter_map(|pending| match &pending.op {
                Op::WriteBlock { index, pieces, sums, checked, .. } => Some(NewBlock {
                    index: *index,
                    pieces: pieces.iter().map(|piece| &piece[..]).collect(),
                    sums,
                    checked: *checked,
                }),
                _ => None,
            })
            .collect();
        let answers = self.device.write_blocks(segment, epoch, &blocks);
        drop(blocks);
        let busy = since.elapsed();
        let operations = batch.len() as u64;
        let foreground = batch.iter().any(|pending| in_foreground(pending.class));
        let hurried = batch.iter().any(|pending| matches!(pending.op, Op::WriteBlock { more: false, .. }));
        let mut refused = Vec::new();
        let mut written = 0;
        for (pending, answer) in batch.into_iter().zip(answers) {
            match answer {
                Ok(()) => {
                    written += pending.op.bytes();
                    self.group.add(Waiting::Block, pending.reply, since, foreground);
                }
                Err(error) => {
                    // A medium that takes nothing is found by the index, which would wait for a block that it takes.
                    if matches!(error, WriteError::Medium(MediumError::Io { .. })) {
                        self.group.since.get_or_insert(since);
                    }
                    refused.push((pending.reply, error));
                }
            }
        }
        self.group.bytes += written;
        self.group.block_bytes += written;
        self.group.hurried |= hurried;
        self.group.more = !self.group.hurried;
        self.finish(operations, busy, |meters| {
            meters.in_foreground(foreground, busy);
            if written > 0 {
                meters.write.observe(written, busy);
            }
        });
        for (reply, error) in refused {
            reply.give(Err(error.into()));
        }
    }

    fn single(&mut self, pending: Pending, since: Instant) {
        let Pending { op, class, reply, .. } = pending;
        let (kind, joins_group, is_update) = (op.kind(), op.joins_group(), op.is_update());
        let bytes = op.bytes();
        let (result, reads) = match op {
            // It reads its log back, where that was not done. What it meets behind that is a place that takes no writes.
            Op::LogAppend { segment, .. } if self.device.failed().is_none() => {
                match self.device.log_free(segment) {
                    Err(error @ LogError::Medium(MediumError::Io { .. })) => {
                        (Err(UpdateError::from(error).into()), true)
                    }
                    _ => (self.execute(op), false),
                }
            }
            _ => (self.execute(op), true),
        };
        let busy = since.elapsed();
        if reads {
            self.reads.note(&result);
        }
        self.look_at = match self.reads.has_to_look() {
            true => self.look_at.or(Some(Instant::now() + self.shared.config.look_every)),
            false => None,
        };
        let read_bytes = match &result {
            Ok(OpOutput::Slice { data, .. } | OpOutput::Chunk { data, .. }) => data.len() as u64,
            _ => 0,
        };
        // What needs no medium would make the device look faster than it is.
        self.finish(u64::from(kind != Kind::Control), busy, |meters| {
            meters.in_foreground(in_foreground(class), busy);
            if read_bytes > 0 {
                meters.read.observe(read_bytes, busy);
            }
        });
        match result {
            Ok(output) if joins_group => {
                let waiting = if is_update { Waiting::Update(output) } else { Waiting::Change(output) };
                self.group.bytes += bytes;
                self.group.add(waiting, reply, since, in_foreground(class));
            }
            result => reply.give(result),
        }
    }

    fn execute(&mut self, op: Op) -> Result<OpOutput, OpError> {
        Ok(match op {
            Op::CreateExtent(spec) => OpOutput::Created(self.device.create_extent(spec)?),
            Op::WriteBlock { .. } => unreachable!("blocks are written in batches"),
            Op::ReadSlice { segment, index, offset, len, ahead } => {
                let mut buf = self.device.pool().take(0);
                let end = offset.saturating_add(len);
                let read = self.device.read_block(segment, index, offset..end, &mut buf)?;
                // After it: what comes first should not wait for what comes next, and that may not be wanted any more.
                if ahead > 0 && self.shared.state().serving.is_some() {
                    self.device.fetch_behind(segment, index, end, ahead);
                }
                let state = self.device.chunk_state(segment);
                let durable = self.device.is_durable(segment);
                let (offset, data) = (read.range.start, buf.into_bytes());
                OpOutput::Slice { offset, data, sums: read.sums, state, durable }
            }
            Op::Seal { segment, epoch, keep } => OpOutput::Sealed(self.device.seal(segment, epoch, &keep)?),
            Op::Delete { segment, epoch } => OpOutput::Deleted { found: self.device.delete(segment, epoch)? },
            Op::Fence { segment, epoch } => {
                self.device.fence(segment, epoch)?;
                OpOutput::Fenced
            }
            Op::Describe { segment } => OpOutput::Described(self.device.extent(segment)),
            Op::List { after, limit } => {
                OpOutput::List(self.device.extents_after(after).take(limit).collect())
            }
            Op::Usage => OpOutput::Usage(self.device.usage()),
            Op::Stage { segment, epoch, offset, new, spend } => {
                OpOutput::Staged(self.device.stage_from(segment, epoch, (offset, &new), spend)?)
            }
            Op::Overwrite { segment, epoch, offset, product, of, spend } => {
                let change = (offset, &product[..]);
                OpOutput::Staged(self.device.overwrite_from(segment, epoch, change, of, Some(spend))?)
            }
            Op::Reserve { owner, least, bytes } => {
                OpOutput::Reserved { bytes: self.device.reserve(owner, least, bytes) }
            }
            Op::Unreserve { owner, bytes } => {
                self.device.unreserve(owner, bytes);
                OpOutput::Unreserved
            }
            Op::Barrier => OpOutput::Durable,
            Op::Apply { segment, epoch, apply } => {
                self.device.apply(segment, epoch, apply)?;
                OpOutput::Applied
            }
            Op::Release { segment, through_version } => {
                self.device.release(segment, through_version)?;
                OpOutput::Released
            }
            Op::Held { segment: Some(segment) } => OpOutput::Held(self.device.held(segment)?),
            Op::Held { segment: None } => OpOutput::HeldSegments(self.device.held_segments()),
            Op::ReadChunk { segment, offset, len } => {
                let mut buf = self.device.pool().take(0);
                let range = offset..offset.saturating_add(u64::from(len));
                let read = self.device.read_chunk(segment, range, &mut buf)?;
                let state = self.device.chunk_state(segment).unwrap_or_default();
                let durable = self.device.is_durable(segment);
                let (offset, data) = (read.range.start, buf.into_bytes());
                OpOutput::Chunk { offset, data, sums: read.sums, state, durable }
            }
            Op::LogAppend { segment, epoch, sequence, payload } => {
                let appended = match sequence {
                    Some(sequence) => self.device.log_append_at(segment, epoch, sequence, &payload),
                    None => self.device.log_append(segment, epoch, &payload),
                };
                OpOutput::Logged { sequence: appended.map_err(UpdateError::from)? }
            }
            Op::LogRead { segment, sequence } => {
                let payload = self.device.log_read(segment, sequence).map_err(UpdateError::from)?;
                OpOutput::LogRecord(payload)
            }
            Op::LogReadRun { segment, sequences, bytes_max } => {
                let payloads =
                    self.device.log_read_run(segment, sequences, bytes_max).map_err(UpdateError::from)?;
                OpOutput::LogRecords(payloads)
            }
            Op::DescribeUpdates { segment } => OpOutput::Updates(self.device.updates(segment)?),
            Op::ListReserves { after, limit } => OpOutput::Reserves(self.device.reserves_after(after, limit)),
            Op::ShrinkReserve { segment, epoch, reserve_bytes } => {
                self.device.shrink_reserve(segment, epoch, reserve_bytes)?;
                OpOutput::Shrunk
            }
        })
    }

    /// Flushes the group and answers it.
    fn flush(&mut self) {
        let group = std::mem::take(&mut self.group);
        let since = Instant::now();
        let outcome = self.device.flush();
        let flushing = since.elapsed();
        self.finish(0, flushing, |meters| {
            meters.in_foreground(group.foreground, flushing);
            meters.flushed(group.block_bytes, flushing);
        });
        for (waiting, reply) in group.waiting {
            reply.give(match (&outcome, waiting) {
                (Ok(_), Waiting::Block) => Ok(OpOutput::Written),
                (Ok(_), Waiting::Change(output) | Waiting::Update(output)) => Ok(output),
                (Err(error), waiting) => Err(failed(error, &waiting)),
            });
        }
        if outcome.is_ok() && self.device.has_to_ease() {
            self.ease(group.foreground);
        }
    }

    /// What a flush leaves to be done, of which nobody waits for anything. An error is told by the next operation.
    fn ease(&mut self, foreground: bool) {
        self.shared.state().in_flight = Some(InFlight::flush(foreground));
        let since = self.begin();
        if let Err(error) = self.device.ease() {
            tracing::error!(device = %self.device.id(), %error, "writing in place failed");
        }
        let easing = since.elapsed();
        self.finish(0, easing, |meters| meters.in_foreground(foreground, easing));
    }

    /// Shows the device's new state to the handles.
    fn finish(&self, operations: u64, busy: Duration, observe: impl FnOnce(&mut super::Meters)) {
        let snapshot = Snapshot::of(&self.device, &self.reads, self.group.bytes);
        let mut state = self.shared.state();
        state.snapshot = snapshot;
        state.in_flight = None;
        if operations > 0 {
            state.meters.served(operations, busy);
        }
        observe(&mut state.meters);
    }
}

impl Group {
    fn add(&mut self, waiting: Waiting, reply: Answer, since: Instant, foreground: bool) {
        self.since.get_or_insert(since);
        self.foreground |= foreground;
        if !matches!(waiting, Waiting::Block) {
            (self.more, self.hurried) = (false, true);
        }
        self.waiting.push((waiting, reply));
    }
}

fn failed(error: &DeviceError, waiting: &Waiting) -> OpError {
    match waiting {
        Waiting::Block => WriteError::Device(error.clone()).into(),
        Waiting::Change(_) => ChangeError::Device(error.clone()).into(),
        Waiting::Update(_) => UpdateError::Device(error.clone()).into(),
    }
}

/// Whether somebody waits for operations of this class.
pub(super) fn in_foreground(class: Priority) -> bool {
    class != Priority::Background
}

fn take(state: &mut State, id: RequestId) -> Option<Pending> {
    state.serving = state.queue.dispatch(id).map(|request| request.stream);
    state.pending.remove(&id)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
