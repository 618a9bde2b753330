//! The host of a data chunk: drives [`DataChunk`] with the device's lane below it and a link to each parity node beside.

use super::{Chunk, IDLE_MAX, Updates, ask, link, link::LinkEvent, not_in_place, parity::settle};
use crate::{devices::ServedDevice, fault::fault};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use steadfast_disk::{
    Op, OpError, OpOutput, Priority as LanePriority, checksum,
    device::{Staged, UpdateError},
};
use steadfast_protocol::{
    Epoch, SegmentId,
    layout::PARITY_GRANULE_BYTES,
    message::{Fault, LogEvent, LogPush, NodeFault, UPDATE_BYTES_MAX},
    serve::parity_log::{ChunkNumber, DataAction, DataChunk, DataInput, Difference, Medium, ParityNumber},
};
use tokio::sync::{mpsc, oneshot};

/// How often parity nodes that were not told yet hear what is committed, and updates that found no room are tried again.
const TICK: Duration = Duration::from_millis(20);
/// A parity node that cannot be reached for so long holds up nobody any longer: whoever waits is told that the chunk cannot be
/// changed in place now. Picked by eye: a process that is started again is back sooner.
const PATIENCE: Duration = Duration::from_secs(1);
/// No chunk is changed so often.
const VERSION_MAX: u64 = u64::MAX / 2;
/// Bytes that a record takes in a log beyond its granules: its head, and the rest of its last page.
const RECORD_OVERHEAD: u64 = 2 * PARITY_GRANULE_BYTES as u64;

/// What a host hears.
pub(super) enum Event {
    /// Change bytes.
    Update { epoch: Epoch, offset: u64, bytes: Bytes, reply: oneshot::Sender<Result<u64, Fault>> },
    /// Level what the device holds.
    Begin,
    /// The lane answered.
    Lane(Asked, Result<OpOutput, OpError>),
    /// Something about the link to a parity node.
    Link { parity: ParityNumber, event: LinkEvent },
}

/// What the lane was asked.
pub(super) enum Asked {
    Stage { request: u64 },
    Barrier,
    Base { version: u64 },
    Adopt { version: u64 },
    Release,
}

/// Serves a data chunk until nothing is to be done.
pub(super) async fn run(
    updates: Arc<Updates>,
    device: Arc<ServedDevice>,
    segment: SegmentId,
    mut events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
) {
    let id = device.id;
    let ended = match Host::begin(&updates, device, segment, sender).await {
        Ok(mut host) => match host.serve(&updates, &mut events).await {
            None => return,
            Some(why) => {
                host.fail_all(&why);
                why
            }
        },
        Err(fault) => fault,
    };
    tracing::debug!(device = %id, %segment, %ended, "a data chunk is not changed in place any more");
    updates.data.remove(id, segment, &mut events);
    while let Ok(event) = events.try_recv() {
        if let Event::Update { reply, .. } = event {
            // Nobody waits any more: the answer is not needed.
            let _ = reply.send(Err(ended.clone()));
        }
    }
}

struct Wanted {
    offset: u64,
    bytes: Bytes,
    reply: oneshot::Sender<Result<u64, Fault>>,
}

struct Host {
    chunk: Chunk,
    core: DataChunk,
    sender: mpsc::UnboundedSender<Event>,
    links: Vec<mpsc::UnboundedSender<link::Command>>,
    /// What each log leaves this chunk, where its node is connected.
    windows: Vec<Option<u64>>,
    /// Since when a link is down.
    down: Vec<Option<Instant>>,
    lane_stream: u64,
    /// This life, as parity nodes know it.
    session: u64,
    wanted: BTreeMap<u64, Wanted>,
    /// Not given to the core yet, in the order they came: the window is full, or the device holds too much.
    queue: BTreeSet<u64>,
    /// The record that was asked for, and of whom.
    fetching: Option<(ParityNumber, u64)>,
    /// Given to the core and not staged: what each takes of the window.
    staging: BTreeMap<u64, u64>,
    /// Records of versions that are not committed.
    kept: BTreeMap<u64, Bytes>,
    kept_bytes: u64,
    next_request: u64,
    /// Why it cannot go on.
    over: Option<Fault>,
}

impl Host {
    async fn begin(
        updates: &Arc<Updates>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        sender: mpsc::UnboundedSender<Event>,
    ) -> Result<Self, Fault> {
        let chunk = updates.chunk(device, segment).await?;
        if chunk.number >= chunk.shape.data {
            return Err(not_in_place(segment, "this device has a parity chunk of it"));
        }
        let (device, lane_stream) = (&*chunk.device, updates.number());
        let failed = |error| Fault::Node(fault(device.id, error));
        settle(device, lane_stream).await?;
        let ask = |op| ask(device, lane_stream, LanePriority::Normal, op);
        let version = match ask(Op::DescribeUpdates { segment }).await.map_err(failed)? {
            OpOutput::Updates(info) => info.version,
            other => unreachable!("a description answers a description, not {other:?}"),
        };
        let held = match ask(Op::Held { segment: Some(segment) }).await.map_err(failed)? {
            OpOutput::Held(held) => held,
            other => unreachable!("what is held is answered by what is held, not {other:?}"),
        };
        let number = chunk.number as ChunkNumber;
        let kept: BTreeMap<u64, Bytes> =
            held.into_iter().map(|staged| (staged.version, record(number, staged))).collect();
        // Those that end at the present version without a gap.
        let mut kept_from = version + 1;
        while kept_from > 1 && kept.contains_key(&(kept_from - 1)) {
            kept_from -= 1;
        }
        // A clock that was set back makes a life that parity nodes do not take: the segment is stored anew then.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let session = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let mut core = DataChunk::new(Medium::Own, session, version, kept_from);
        let parities = chunk.shape.parity() as ParityNumber;
        core.handle(DataInput::Configure { epoch: chunk.epoch, parities: (0..parities).collect() });
        let links = (0..parities).map(|parity| {
            let (commands, asked) = mpsc::unbounded_channel();
            let target = link::Target {
                device: chunk.holders[(chunk.shape.data + u32::from(parity)) as usize],
                segment,
                epoch: chunk.epoch,
                chunk: number,
                parity,
            };
            updates.spawn(link::run(updates.clone(), target, asked, sender.clone()));
            commands
        });
        let links: Vec<_> = links.collect();
        Ok(Self {
            windows: vec![None; links.len()],
            down: vec![Some(Instant::now()); links.len()],
            links,
            kept_bytes: kept.values().map(size).sum(),
            kept,
            core,
            sender,
            lane_stream,
            session,
            wanted: BTreeMap::new(),
            queue: BTreeSet::new(),
            fetching: None,
            staging: BTreeMap::new(),
            next_request: 1,
            over: None,
            chunk,
        })
    }

    /// Serves until nothing is to be done (`None`) or it cannot go on.
    async fn serve(
        &mut self,
        updates: &Arc<Updates>,
        events: &mut mpsc::UnboundedReceiver<Event>,
    ) -> Option<Fault> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut busy_at = Instant::now();
        loop {
            self.carry_out();
            if let Some(why) = self.over.take() {
                return Some(why);
            }
            // Where parity is out of reach for long, the device keeps what is not level yet.
            let idle = self.wanted.is_empty()
                && (self.core.is_idle() && self.core.is_serving() || busy_at.elapsed() > IDLE_MAX);
            let rest = IDLE_MAX.saturating_sub(busy_at.elapsed());
            tokio::select! {
                biased;
                Some(event) = events.recv() => {
                    let mut next = Some(event);
                    while let Some(event) = next {
                        if !matches!(event, Event::Link { event: LinkEvent::Lost, .. }) {
                            busy_at = Instant::now();
                        }
                        self.heard(event);
                        next = events.try_recv().ok();
                    }
                }
                _ = ticks.tick(), if !idle => self.tick(),
                () = tokio::time::sleep(rest), if idle => {
                    if updates.data.leave(self.chunk.device.id, self.chunk.segment, events) {
                        return None;
                    }
                }
            }
        }
    }

    fn heard(&mut self, event: Event) {
        match event {
            Event::Update { epoch, offset, bytes, reply } => match self.check(epoch, offset, &bytes) {
                Ok(()) => {
                    let request = self.next_request;
                    self.next_request += 1;
                    self.wanted.insert(request, Wanted { offset, bytes, reply });
                    self.queue.insert(request);
                    self.admit();
                }
                // Nobody waits any more: the answer is not needed.
                Err(fault) => drop(reply.send(Err(fault))),
            },
            Event::Begin => {}
            Event::Lane(asked, answer) => self.answered(asked, answer),
            Event::Link { parity, event } => self.link(parity, event),
        }
    }

    fn check(&mut self, epoch: Epoch, offset: u64, bytes: &Bytes) -> Result<(), Fault> {
        let (held, chunk_bytes) = (self.chunk.epoch, self.chunk.shape.chunk_bytes());
        if epoch > held {
            // The layout changed, and so did who takes part.
            self.over = Some(not_in_place(self.chunk.segment, "its layout changed"));
        }
        if epoch != held {
            return Err(Fault::Node(NodeFault::StaleEpoch {
                given: epoch.0.min(held.0),
                current: epoch.0.max(held.0),
            }));
        }
        let end = offset.checked_add(bytes.len() as u64);
        if bytes.is_empty()
            || bytes.len() > UPDATE_BYTES_MAX as usize
            || end.is_none_or(|end| end > chunk_bytes)
        {
            let length = bytes.len();
            return Err(Fault::Node(NodeFault::Invalid(format!(
                "a change of {length} bytes at {offset} of a chunk of {chunk_bytes}: 1 to {UPDATE_BYTES_MAX} within it are \
                 allowed"
            ))));
        }
        Ok(())
    }

    /// Gives the core what the window has room for: by the smallest of the logs, so that what is uncommitted fits each.
    fn admit(&mut self) {
        let window = self.windows.iter().copied().min().flatten();
        let Some(window) = window else { return };
        while let Some(request) = self.queue.first().copied() {
            // Who gave up has done otherwise by now, and this must not come after it.
            self.wanted.retain(|other, wanted| *other != request || !wanted.reply.is_closed());
            let Some(wanted) = self.wanted.get(&request) else {
                self.queue.pop_first();
                continue;
            };
            let bytes = spread(wanted.offset, &wanted.bytes) + RECORD_OVERHEAD;
            if bytes > window {
                self.queue.pop_first();
                let segment = self.chunk.segment;
                self.answer(
                    request,
                    Err(not_in_place(segment, "its log has no room for a change of this size")),
                );
                continue;
            }
            if self.kept_bytes + self.staging.values().sum::<u64>() + bytes > window {
                return;
            }
            self.queue.pop_first();
            self.staging.insert(request, bytes);
            self.core.handle(DataInput::Update { request });
        }
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.core.poll() {
            let session = self.session;
            match action {
                DataAction::Ask { parity, epoch, session } => {
                    self.push(parity, LogPush::Ask { epoch, session }, Bytes::new());
                }
                DataAction::Send { parity, version, epoch, committed } => {
                    let record = self.kept.get(&version).cloned().expect("what is not committed is kept");
                    self.push(parity, LogPush::Difference { epoch, session, version, committed }, record);
                }
                DataAction::Tell { parity, epoch, committed } => {
                    self.push(parity, LogPush::Committed { epoch, through: committed }, Bytes::new());
                }
                DataAction::Fetch { parity, version } => {
                    self.fetching = Some((parity, version));
                    self.push(parity, LogPush::Fetch { version }, Bytes::new());
                }
                DataAction::Stage { request } => self.stage(request),
                DataAction::Adopt { version } => self.read_base(version),
                DataAction::Release { through } => {
                    while let Some(first) = self.kept.first_entry().filter(|first| *first.key() <= through) {
                        self.kept_bytes -= size(&first.remove());
                    }
                    let segment = self.chunk.segment;
                    self.ask(Asked::Release, Op::Release { segment, through_version: through });
                    self.admit();
                }
                DataAction::Answer { request, version } => self.answer(request, Ok(version)),
                DataAction::Unknown { request } => {
                    let segment = self.chunk.segment;
                    self.answer(request, Err(not_in_place(segment, "its layout changed meanwhile")));
                }
                DataAction::Behind { .. } => {
                    self.over = Some(not_in_place(self.chunk.segment, "a parity chunk lacks changes"));
                }
                DataAction::Outdated => {
                    self.over = Some(not_in_place(self.chunk.segment, "the chunk lacks changes"));
                }
            }
        }
        if self.core.is_fenced() && self.over.is_none() {
            self.over = Some(not_in_place(self.chunk.segment, "its layout changed"));
        }
    }

    fn push(&self, parity: ParityNumber, push: LogPush, payload: Bytes) {
        // A link that ended has said so.
        let _ = self.links[usize::from(parity)].send((push, payload));
    }

    fn stage(&mut self, request: u64) {
        let segment = self.chunk.segment;
        let wanted = self.wanted.get(&request).filter(|wanted| !wanted.reply.is_closed());
        let (offset, new) = match wanted {
            Some(wanted) => (wanted.offset, wanted.bytes.clone()),
            None => {
                // Whoever asked was told that it is not done.
                self.staging.remove(&request);
                return self.core.handle(DataInput::NotStaged { request });
            }
        };
        self.ask(Asked::Stage { request }, Op::Stage { segment, epoch: self.chunk.epoch, offset, new });
        self.ask(Asked::Barrier, Op::Barrier);
    }

    fn ask(&self, asked: Asked, op: Op) {
        let sender = self.sender.clone();
        // The host is gone: nobody needs the answer.
        let reply = Box::new(move |result| drop(sender.send(Event::Lane(asked, result))));
        self.chunk.device.lane.submit(self.lane_stream, LanePriority::Normal, op, reply);
    }

    fn answered(&mut self, asked: Asked, answer: Result<OpOutput, OpError>) {
        let segment = self.chunk.segment;
        match (asked, answer) {
            (Asked::Stage { request }, Ok(OpOutput::Staged(staged))) => {
                self.staging.remove(&request);
                let version = staged.version;
                let record = record(self.chunk.number as ChunkNumber, staged);
                self.kept_bytes += size(&record);
                self.kept.insert(version, record);
                self.core.handle(DataInput::Staged { request, version });
            }
            (Asked::Stage { request }, Err(OpError::Update(UpdateError::Held { .. }))) => {
                // Tried again when something was released.
                self.staging.remove(&request);
                self.core.handle(DataInput::NotStaged { request });
                self.queue.insert(request);
            }
            (Asked::Stage { request }, Err(error)) => {
                self.staging.remove(&request);
                self.core.handle(DataInput::NotStaged { request });
                let fault = Fault::Node(fault(self.chunk.device.id, error));
                if matches!(fault, Fault::Node(NodeFault::StaleEpoch { .. })) {
                    self.over = Some(not_in_place(segment, "its layout changed"));
                }
                self.answer(request, Err(fault));
            }
            (Asked::Barrier, Ok(_)) => self.core.handle(DataInput::Durable { through: self.core.staged() }),
            (Asked::Base { version }, Ok(OpOutput::Chunk { data, .. })) => self.adopt(version, &data),
            (Asked::Adopt { version }, Ok(_)) => self.core.handle(DataInput::Adopted { version }),
            (Asked::Release, Ok(_)) => {}
            (_, Ok(other)) => unreachable!("the lane answers what it was asked, not {other:?}"),
            (_, Err(error)) => self.over = Some(Fault::Node(fault(self.chunk.device.id, error))),
        }
    }

    /// Reads what a fetched difference is to be XORed to.
    fn read_base(&mut self, version: u64) {
        let segment = self.chunk.segment;
        let number = self.chunk.number as ChunkNumber;
        let difference = self.kept.get(&version).and_then(|record| Difference::decode(record).ok());
        let Some(difference) = difference.filter(|it| (it.chunk, it.version) == (number, version)) else {
            self.over = Some(not_in_place(segment, "a record of its log is damaged"));
            return;
        };
        let len = u32::try_from(difference.bytes.len()).expect("a record fits a frame");
        self.ask(Asked::Base { version }, Op::ReadChunk { segment, offset: difference.offset, len });
    }

    fn adopt(&mut self, version: u64, base: &Bytes) {
        let (segment, epoch) = (self.chunk.segment, self.chunk.epoch);
        let difference = self.kept.get(&version).and_then(|record| Difference::decode(record).ok());
        let Some(new) =
            difference.as_ref().and_then(|difference| brought_forward(&self.chunk, difference, base))
        else {
            self.over = Some(not_in_place(segment, "a change from a log does not come out right"));
            return;
        };
        let patches = vec![(difference.map_or(0, |difference| difference.offset), new)];
        self.ask(Asked::Adopt { version }, Op::Adopt { segment, epoch, version, patches });
    }

    fn link(&mut self, parity: ParityNumber, event: LinkEvent) {
        let place = usize::from(parity);
        match event {
            LinkEvent::Heard(LogEvent::Welcome { window_bytes }, _) => {
                (self.windows[place], self.down[place]) = (Some(window_bytes), None);
                self.core.handle(DataInput::Connected { parity });
                self.admit();
            }
            LinkEvent::Heard(LogEvent::Versions { received, .. }, _) if received > VERSION_MAX => {
                self.over =
                    Some(not_in_place(self.chunk.segment, "a parity node names a version that cannot be"));
            }
            LinkEvent::Heard(LogEvent::Versions { epoch, received }, _) => {
                self.core.handle(DataInput::Versions { parity, epoch, received });
            }
            LinkEvent::Heard(LogEvent::Acked { through }, _) => {
                self.core.handle(DataInput::Acked { parity, through });
            }
            LinkEvent::Heard(LogEvent::Refused { reason }, _) => {
                self.core.handle(DataInput::Refused { parity, reason });
            }
            LinkEvent::Heard(LogEvent::Record { version }, record)
                if self.fetching == Some((parity, version)) =>
            {
                self.fetching = None;
                if let Some(before) = self.kept.insert(version, record.clone()) {
                    self.kept_bytes -= size(&before);
                }
                self.kept_bytes += size(&record);
                self.core.handle(DataInput::Fetched { version });
            }
            // Nobody asked for it.
            LinkEvent::Heard(LogEvent::Record { .. }, _) => {}
            LinkEvent::Heard(LogEvent::NotHeld { version }, _) => {
                self.core.handle(DataInput::NotFetched { version });
            }
            LinkEvent::Lost => {
                self.windows[place] = None;
                self.down[place].get_or_insert_with(Instant::now);
                self.core.handle(DataInput::Lost { parity });
            }
        }
    }

    fn tick(&mut self) {
        self.core.handle(DataInput::Tick);
        self.admit();
        let lost = (0..self.down.len())
            .find(|place| self.down[*place].is_some_and(|since| since.elapsed() > PATIENCE));
        if let Some(place) = lost
            && !self.wanted.is_empty()
        {
            let device = self.chunk.holders[self.chunk.shape.data as usize + place];
            let why =
                not_in_place(self.chunk.segment, format_args!("device {device} with parity is out of reach"));
            self.fail_all(&why);
        }
    }

    fn answer(&mut self, request: u64, answer: Result<u64, Fault>) {
        if let Some(wanted) = self.wanted.remove(&request) {
            // Nobody waits any more: the answer is not needed.
            let _ = wanted.reply.send(answer);
        }
    }

    fn fail_all(&mut self, why: &Fault) {
        self.queue.clear();
        for (_, wanted) in std::mem::take(&mut self.wanted) {
            let _ = wanted.reply.send(Err(why.clone()));
        }
    }
}

/// Bytes of the granules that an update touches.
fn spread(offset: u64, bytes: &Bytes) -> u64 {
    let granule = u64::from(PARITY_GRANULE_BYTES);
    (offset + bytes.len() as u64).next_multiple_of(granule) - offset / granule * granule
}

/// Bytes that a record takes in a log.
fn size(record: &Bytes) -> u64 {
    (record.len() as u64).next_multiple_of(PARITY_GRANULE_BYTES.into()) + u64::from(PARITY_GRANULE_BYTES)
}

fn record(chunk: ChunkNumber, staged: Staged) -> Bytes {
    let Staged { version, offset, difference: bytes, sums, .. } = staged;
    Difference { chunk, version, offset, sums, bytes }.encode()
}

/// The bytes of a chunk after a difference; none where they are not what was logged.
fn brought_forward(chunk: &Chunk, difference: &Difference, base: &Bytes) -> Option<Bytes> {
    if base.len() != difference.bytes.len() {
        return None;
    }
    let new: Bytes = base.iter().zip(&difference.bytes).map(|(old, changed)| old ^ changed).collect();
    if difference.sums.iter().all(|sum| *sum == 0) {
        return Some(new);
    }
    let granule = PARITY_GRANULE_BYTES as usize;
    let block_bytes = u64::from(chunk.shape.block_bytes);
    let first = chunk.shape.blocks_of(chunk.number).start;
    let mut at = difference.offset;
    for (bytes, sum) in new.chunks(granule).zip(&difference.sums) {
        let tag = checksum::Tag {
            segment: chunk.segment,
            version: chunk.version,
            index: first + u32::try_from(at / block_bytes).ok()?,
            granule_number: (at % block_bytes) as u32 / PARITY_GRANULE_BYTES,
        };
        if checksum::sum(bytes, &tag) != *sum {
            return None;
        }
        at += granule as u64;
    }
    Some(new)
}
