//! The host of a parity chunk: drives [`ParityChunk`] with the device's lane below it and the streams of data nodes beside.

use super::{Chunk, IDLE_MAX, Updates, ask, not_in_place, recover};
use crate::{devices::ServedDevice, fault::fault};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_disk::{
    DeviceId, Op, OpError, OpOutput, Priority as LanePriority, SegmentId,
    device::{Apply, LogError, UpdateError, UpdatesInfo},
};
use steadfast_net::{Event as NetEvent, Stream, StreamSender};
use steadfast_protocol::{
    Epoch,
    layout::PARITY_GRANULE_BYTES,
    message::{self, Fault, LogEvent, LogPush, NodeEvent, NodeFault, NodePush},
    policy::IN_PLACE_WINDOW_BYTES,
    serve::parity_log::{
        ChunkNumber, Difference, Entry, Fold, Mode, ParityAction, ParityChunk, ParityInput, ParityOf,
        ParityState,
    },
};
use tokio::sync::mpsc;

/// A log that was not appended to for so long is merged as far as it is committed. Picked by eye: long enough that a burst of
/// updates is over.
const QUIET: Duration = Duration::from_millis(500);
/// How often that is looked at.
const TICK: Duration = Duration::from_millis(100);
/// A record at the log's begin that is not known to be committed for so long is asked about. Picked by eye: far longer than
/// an update takes.
const LEVEL_AFTER: Duration = Duration::from_secs(3);

/// Bytes that a merge reads at once: 10 ms of a disk of 100 MB/s is what others wait.
const MERGE_READ_BYTES: u64 = 1 << 20;
/// What is not changed between two rows is read with them up to so many bytes: a disk passes over them in half the time that it
/// takes to position.
const MERGE_GAP_BYTES: u64 = 128 << 10;

/// What a host hears.
pub(super) enum Event {
    /// A data chunk's node opened a stream.
    Opened { stream: u64, chunk: ChunkNumber, sender: StreamSender },
    /// It said this on it.
    Push { stream: u64, push: LogPush, payload: Bytes },
    /// The stream is over.
    Closed { stream: u64 },
    /// The lane answered.
    Lane(Asked, Result<OpOutput, OpError>),
    /// A merge was made, or not.
    Merged(Result<(), Fault>),
}

/// What the lane was asked.
pub(super) enum Asked {
    Append { number: u64 },
    Overwrite { chunk: ChunkNumber, version: u64 },
    Barrier { chunk: ChunkNumber, version: u64 },
    Held { stream: u64, version: u64 },
    Release,
    Fence { epoch: Epoch },
    Record { stream: u64, version: u64 },
}

/// Gives a stream's messages to its host until either is over.
pub(super) async fn forward(number: u64, stream: &mut Stream, host: &mpsc::UnboundedSender<Event>) {
    loop {
        let event = tokio::select! {
            event = stream.recv() => event,
            () = host.closed() => break,
        };
        match event {
            Some(NetEvent::Data { body, payload }) => match message::decode(&body) {
                Ok(NodePush::Log(push)) => {
                    let push = Event::Push { stream: number, push, payload: payload.freeze() };
                    if host.send(push).is_err() {
                        break;
                    }
                }
                _ => {
                    stream.fail(&Fault::Protocol("a stream of differences takes nothing else".to_owned()));
                    break;
                }
            },
            Some(NetEvent::Credit(_)) => {}
            Some(NetEvent::Cancelled) => {
                stream.fail(&Fault::Cancelled);
                break;
            }
            Some(NetEvent::Lost(_) | NetEvent::End(_) | NetEvent::Failed(_)) | None => break,
        }
    }
    let _ = host.send(Event::Closed { stream: number });
}

/// Serves a parity chunk until nothing is to be done.
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
                for link in host.links.values() {
                    link.sender.fail(&why);
                }
                // A merge that is under way is this host's: another must not begin on what it is about to change.
                while host.merging {
                    match events.recv().await {
                        Some(Event::Merged(_)) | None => host.merging = false,
                        Some(_) => {}
                    }
                }
                why
            }
        },
        Err(fault) => fault,
    };
    tracing::debug!(device = %id, %segment, %ended, "a parity chunk takes no more differences");
    updates.parity.remove(id, segment, &mut events);
    while let Ok(event) = events.try_recv() {
        if let Event::Opened { sender, .. } = event {
            sender.fail(&ended);
        }
    }
}

struct Link {
    chunk: ChunkNumber,
    sender: StreamSender,
}

/// A difference that is not answered.
struct Arrived {
    chunk: ChunkNumber,
    record: Bytes,
}

/// An append that was asked for; the core hears of them in their order.
struct Appending {
    number: u64,
    chunk: ChunkNumber,
    version: u64,
    reply: u64,
    bytes: u32,
    answer: Option<Result<u64, OpError>>,
}

#[derive(Clone, Copy)]
enum Waiter {
    Ask { epoch: Epoch },
    Difference,
}

/// Differences that go into the chunk at once (FO).
#[derive(Default)]
struct InPlace {
    /// In the order asked; the first may be under way.
    waiting: VecDeque<(ChunkNumber, u64, u64)>,
    under_way: bool,
    /// Overwritten and not released: the device's number of each, and which version of which data chunk it is.
    held: BTreeMap<u64, (ChunkNumber, u64)>,
    /// Committed, by data chunk.
    committed: BTreeMap<ChunkNumber, u64>,
}

impl InPlace {
    async fn begin(device: &ServedDevice, stream: u64, segment: SegmentId) -> Result<Self, Fault> {
        let op = Op::Held { segment: Some(segment) };
        let held = match ask(device, stream, LanePriority::Normal, op).await {
            Ok(OpOutput::Held(held)) => held,
            Ok(other) => unreachable!("what is held is answered by what is held, not {other:?}"),
            Err(error) => return Err(Fault::Node(fault(device.id, error))),
        };
        let held = held.into_iter().filter_map(|staged| Some((staged.version, staged.of?))).collect();
        Ok(Self { held, ..Self::default() })
    }

    fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.held.is_empty()
    }

    /// A data chunk's versions are committed: up to which of the device's numbers all are. It releases in its own order.
    fn release(&mut self, chunk: ChunkNumber, through: u64) -> Option<u64> {
        let committed = self.committed.entry(chunk).or_default();
        *committed = (*committed).max(through);
        let mut released = None;
        while let Some(first) = self.held.first_entry() {
            let (chunk, version) = *first.get();
            if version > self.committed.get(&chunk).copied().unwrap_or(0) {
                break;
            }
            released = Some(first.remove_entry().0);
        }
        released
    }
}

struct Host {
    chunk: Arc<Chunk>,
    of: Arc<ParityOf>,
    core: ParityChunk,
    sender: mpsc::UnboundedSender<Event>,
    links: BTreeMap<u64, Link>,
    lane_stream: u64,
    /// Whether a merge was begun that has not said how it went.
    merging: bool,
    /// What one data chunk may have uncommitted.
    window_bytes: u64,
    reserve_bytes: u64,
    /// When a data chunk that holds up the log was last asked to level.
    asked_at: Instant,
    replies: BTreeMap<u64, (u64, Waiter)>,
    arrived: BTreeMap<u64, Arrived>,
    appending: VecDeque<Appending>,
    in_place: InPlace,
    next: u64,
    appended_at: Instant,
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
        let Some(number) = chunk.number.checked_sub(chunk.shape.data) else {
            return Err(not_in_place(segment, "this device has a data chunk of it"));
        };
        let lane_stream = updates.number();
        settle(&chunk.device, lane_stream).await?;
        let (info, log) = log(&chunk.device, lane_stream, LanePriority::Normal, segment).await?;
        let entries = log.iter().zip(&info.log).map(|(difference, entry)| Entry {
            sequence: entry.sequence,
            chunk: difference.chunk,
            version: difference.version,
            bytes: entry.bytes,
        });
        let state = ParityState {
            epoch: info.epoch,
            merged: info.merged.clone(),
            log: entries.collect(),
            log_next: info.log_next,
        };
        // What a merge changes is one record, and no more than the records of the log that it takes.
        let (mode, window_bytes) = match info.reserve_bytes {
            0 => (Mode::InPlace, IN_PLACE_WINDOW_BYTES),
            reserve => (Mode::Logged, reserve / 2 / u64::from(chunk.shape.data)),
        };
        let core = ParityChunk::new(mode, state, info.update_bytes_max)
            .map_err(|broken| not_in_place(segment, broken))?;
        let in_place = InPlace::begin(&chunk.device, lane_stream, segment).await?;
        let shape = chunk.shape;
        // At most 255 chunks.
        let of = ParityOf::new(shape.data as u16, shape.parity() as u16, number as u16, shape.chunk_bytes());
        let of = of.map_err(|error| not_in_place(segment, error))?;
        Ok(Self {
            merging: false,
            window_bytes,
            reserve_bytes: info.reserve_bytes,
            asked_at: Instant::now(),
            in_place,
            chunk: Arc::new(chunk),
            of: Arc::new(of),
            core,
            sender,
            links: BTreeMap::new(),
            lane_stream,
            replies: BTreeMap::new(),
            arrived: BTreeMap::new(),
            appending: VecDeque::new(),
            next: 1,
            appended_at: Instant::now(),
            over: None,
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
            self.carry_out(updates);
            if let Some(why) = self.over.take() {
                return Some(why);
            }
            tokio::select! {
                biased;
                Some(event) = events.recv() => {
                    busy_at = Instant::now();
                    let mut next = Some(event);
                    while let Some(event) = next {
                        self.heard(event);
                        // At once: a question forgets differences that the core did not ask to append.
                        self.carry_out(updates);
                        next = events.try_recv().ok();
                    }
                }
                _ = ticks.tick(), if self.core.log().len() > 0 || self.links.is_empty() || self.in_place.waits() => {
                    if self.appended_at.elapsed() > QUIET {
                        self.core.handle(ParityInput::MergeDue);
                    }
                    self.overwrite();
                    self.unblock(updates);
                    let idle = self.links.is_empty() && !self.core.is_merging() && self.appending.is_empty();
                    if idle
                        && busy_at.elapsed() > IDLE_MAX
                        && updates.parity.leave(self.chunk.device.id, self.chunk.segment, events)
                    {
                        return None;
                    }
                }
            }
        }
    }

    fn heard(&mut self, event: Event) {
        match event {
            Event::Opened { stream, chunk, sender } => self.opened(stream, chunk, sender),
            Event::Push { stream, push, payload } => self.pushed(stream, push, payload),
            Event::Closed { stream } => drop(self.links.remove(&stream)),
            Event::Lane(Asked::Append { number }, answer) => self.appended(number, answer),
            Event::Lane(Asked::Fence { epoch }, answer) => match answer {
                Ok(_) => self.core.handle(ParityInput::Fenced { epoch }),
                Err(error) => self.over = Some(self.failed(error)),
            },
            Event::Lane(Asked::Record { stream, version }, answer) => match answer {
                Ok(OpOutput::LogRecord(record)) => self.say(stream, &LogEvent::Record { version }, record),
                _ => self.say(stream, &LogEvent::NotHeld { version }, Bytes::new()),
            },
            Event::Lane(Asked::Overwrite { chunk, version }, answer) => {
                self.overwritten(chunk, version, answer)
            }
            Event::Lane(Asked::Barrier { chunk, version }, answer) => match answer {
                Ok(_) => self.core.handle(ParityInput::Overwritten { chunk, version }),
                Err(error) => self.over = Some(self.failed(error)),
            },
            Event::Lane(Asked::Held { stream, version }, answer) => self.held(stream, version, answer),
            Event::Lane(Asked::Release, answer) => {
                if let Err(error) = answer {
                    self.over = Some(self.failed(error));
                }
            }
            Event::Merged(made) => {
                self.merging = false;
                match made {
                    Ok(()) => self.core.handle(ParityInput::Merged),
                    Err(fault) => self.over = Some(fault),
                }
            }
        }
    }

    fn opened(&mut self, stream: u64, chunk: ChunkNumber, sender: StreamSender) {
        if u32::from(chunk) >= self.chunk.shape.data {
            return sender
                .fail(&Fault::Protocol(format!("a segment of {} data chunks", self.chunk.shape.data)));
        }
        let window_bytes = self.window_bytes;
        // Twice, as what was sent before a stream was lost is sent again.
        sender.grant(u32::try_from(2 * window_bytes).unwrap_or(u32::MAX));
        self.links.insert(stream, Link { chunk, sender });
        self.say(stream, &LogEvent::Welcome { window_bytes }, Bytes::new());
    }

    fn say(&self, stream: u64, event: &LogEvent, payload: Bytes) {
        if let Some(link) = self.links.get(&stream) {
            // Lost: the stream's end says so.
            let _ = link.sender.send_now(message::encode(&NodeEvent::Log(event.clone())), payload);
        }
    }

    fn pushed(&mut self, stream: u64, push: LogPush, payload: Bytes) {
        let Some(link) = self.links.get(&stream) else { return };
        let chunk = link.chunk;
        link.sender.grant(u32::try_from(payload.len()).unwrap_or(0));
        let reply = self.next;
        self.next += 1;
        match push {
            LogPush::Ask { epoch, session } => {
                // What was not taken of its earlier life is forgotten by the core, too.
                let appending = self.appending.iter().map(|append| append.reply);
                let overwriting = self.in_place.waiting.iter().map(|(_, _, reply)| *reply);
                let under_way: Vec<u64> = appending.chain(overwriting).collect();
                self.arrived.retain(|reply, arrived| arrived.chunk != chunk || under_way.contains(reply));
                self.replies.insert(reply, (stream, Waiter::Ask { epoch }));
                self.core.handle(ParityInput::Ask { reply, epoch, session, chunk });
            }
            LogPush::Difference { epoch, session, version, committed } => {
                let sound = Difference::decode(&payload).is_ok_and(|difference| {
                    let end = difference.offset.saturating_add(difference.bytes.len() as u64);
                    let granule = u64::from(PARITY_GRANULE_BYTES);
                    (difference.chunk, difference.version) == (chunk, version)
                        && end <= self.chunk.shape.chunk_bytes()
                        && difference.offset.is_multiple_of(granule)
                        && difference.bytes.len() as u64 == difference.sums.len() as u64 * granule
                });
                if !sound {
                    let said = Fault::Protocol("a record that is not of the difference announced".to_owned());
                    link.sender.fail(&said);
                    self.links.remove(&stream);
                    return;
                }
                self.replies.insert(reply, (stream, Waiter::Difference));
                self.arrived.insert(reply, Arrived { chunk, record: payload });
                self.core.handle(ParityInput::Difference {
                    reply,
                    epoch,
                    session,
                    chunk,
                    version,
                    committed,
                });
            }
            LogPush::Committed { epoch, through } => {
                self.core.handle(ParityInput::Committed { epoch, chunk, through });
            }
            LogPush::Fetch { version } => {
                let entry = self.core.log().find(|entry| (entry.chunk, entry.version) == (chunk, version));
                match entry.map(|entry| entry.sequence) {
                    Some(sequence) => {
                        let segment = self.chunk.segment;
                        self.ask(Asked::Record { stream, version }, Op::LogRead { segment, sequence });
                    }
                    // Overwritten in place it may be held still.
                    None => self
                        .ask(Asked::Held { stream, version }, Op::Held { segment: Some(self.chunk.segment) }),
                }
            }
        }
    }

    fn carry_out(&mut self, updates: &Arc<Updates>) {
        while let Some(action) = self.core.poll() {
            match action {
                ParityAction::Append { chunk, version, sequence, reply } => {
                    self.append(chunk, version, sequence, reply);
                }
                ParityAction::Merge { sequences, merged, log_start } => {
                    let (chunk, of, sender) = (self.chunk.clone(), self.of.clone(), self.sender.clone());
                    // Updates wait for a merge where the log is rather full.
                    let log_bytes: u64 = self.core.log().map(|entry| u64::from(entry.bytes)).sum();
                    let full = 2 * log_bytes > self.reserve_bytes;
                    let class = if full { LanePriority::Normal } else { LanePriority::Background };
                    let lane = (self.lane_stream, class);
                    self.merging = true;
                    updates.spawn(async move {
                        let made = merge(&chunk, &of, lane, &sequences, merged, log_start).await;
                        // The host is gone: another finds the log as it is.
                        let _ = sender.send(Event::Merged(made));
                    });
                }
                ParityAction::Fence { epoch } => {
                    let segment = self.chunk.segment;
                    self.ask(Asked::Fence { epoch }, Op::Fence { segment, epoch });
                }
                ParityAction::Ack { reply, through, .. } => {
                    self.arrived.remove(&reply);
                    match self.replies.remove(&reply) {
                        Some((stream, Waiter::Ask { epoch })) => {
                            self.say(stream, &LogEvent::Versions { epoch, received: through }, Bytes::new());
                        }
                        Some((stream, Waiter::Difference)) => {
                            self.say(stream, &LogEvent::Acked { through }, Bytes::new());
                        }
                        None => {}
                    }
                }
                ParityAction::Refuse { reply, reason } => {
                    self.arrived.remove(&reply);
                    if let Some((stream, _)) = self.replies.remove(&reply) {
                        self.say(stream, &LogEvent::Refused { reason }, Bytes::new());
                    }
                }
                ParityAction::Overwrite { chunk, version, reply } => {
                    self.in_place.waiting.push_back((chunk, version, reply));
                    self.overwrite();
                }
                ParityAction::Release { chunk, through } => {
                    if let Some(through_version) = self.in_place.release(chunk, through) {
                        let segment = self.chunk.segment;
                        self.ask(Asked::Release, Op::Release { segment, through_version });
                    }
                    self.overwrite();
                }
            }
        }
    }

    fn append(&mut self, chunk: ChunkNumber, version: u64, sequence: u64, reply: u64) {
        let Some(arrived) = self.arrived.get(&reply) else {
            let why = format_args!("version {version} of chunk {chunk} is to be logged and is not here");
            self.over = Some(not_in_place(self.chunk.segment, why));
            return;
        };
        let (payload, number) = (arrived.record.clone(), self.next);
        self.next += 1;
        self.appended_at = Instant::now();
        let bytes = u32::try_from(payload.len()).expect("a record fits a frame");
        self.appending.push_back(Appending { number, chunk, version, reply, bytes, answer: None });
        // Under the epoch that the core knows: what was fenced since is refused by the device.
        let (segment, epoch) = (self.chunk.segment, self.core.epoch());
        self.ask(
            Asked::Append { number },
            Op::LogAppend { segment, epoch, sequence: Some(sequence), payload },
        );
    }

    fn appended(&mut self, number: u64, answer: Result<OpOutput, OpError>) {
        let answer = answer.map(|output| match output {
            OpOutput::Logged { sequence } => sequence,
            other => unreachable!("an append is answered by its number, not {other:?}"),
        });
        if let Some(append) = self.appending.iter_mut().find(|append| append.number == number) {
            append.answer = Some(answer);
        }
        while let Some(append) = self.appending.front()
            && append.answer.is_some()
        {
            let Some(Appending { chunk, version, reply, bytes, answer: Some(answer), .. }) =
                self.appending.pop_front()
            else {
                unreachable!("just looked at");
            };
            match answer {
                Ok(sequence) => {
                    self.arrived.remove(&reply);
                    self.core.handle(ParityInput::Appended { chunk, version, sequence, bytes });
                }
                Err(OpError::Update(UpdateError::Log(
                    LogError::Full { .. } | LogError::OutOfTurn { .. },
                ))) => {
                    self.core.handle(ParityInput::Full { chunk, version, reply });
                }
                Err(error) => {
                    self.over = Some(self.failed(error));
                    return;
                }
            }
        }
    }

    /// The log's first record is not known to be committed, and nothing of it is merged: its chunk may be level and quiet, and
    /// only this node has not heard. It is asked to say so.
    fn unblock(&mut self, updates: &Arc<Updates>) {
        let Some(first) = self.core.log().next().filter(|_| self.core.mergeable_bytes() == 0) else { return };
        if self.appended_at.elapsed() < LEVEL_AFTER || self.asked_at.elapsed() < LEVEL_AFTER {
            return;
        }
        self.asked_at = Instant::now();
        let (chunk, number, asking) = (self.chunk.clone(), usize::from(first.chunk), updates.clone());
        if let Some(&holder) = chunk.holders.get(number) {
            updates.spawn(
                async move { recover::ask_to_level(&asking, holder, chunk.segment, chunk.epoch).await },
            );
        }
    }

    /// Overwrites with the next difference, once the one before it has its place: none goes in before an earlier one.
    fn overwrite(&mut self) {
        if self.in_place.under_way {
            return;
        }
        let Some(&(chunk, version, reply)) = self.in_place.waiting.front() else { return };
        let segment = self.chunk.segment;
        let difference =
            self.arrived.get(&reply).and_then(|arrived| Difference::decode(&arrived.record).ok());
        let product = difference.as_ref().and_then(|difference| self.of.product(difference).ok());
        let Some((difference, product)) = difference.zip(product) else {
            let why =
                format_args!("version {version} of chunk {chunk} is to be overwritten with and is not here");
            self.over = Some(not_in_place(segment, why));
            return;
        };
        self.in_place.under_way = true;
        let (epoch, offset) = (self.core.epoch(), difference.offset);
        let op = Op::Overwrite { segment, epoch, offset, product: product.into(), of: (chunk, version) };
        self.ask(Asked::Overwrite { chunk, version }, op);
    }

    fn overwritten(&mut self, chunk: ChunkNumber, version: u64, answer: Result<OpOutput, OpError>) {
        self.in_place.under_way = false;
        match answer {
            Ok(OpOutput::Staged(staged)) => {
                if let Some((_, _, reply)) = self.in_place.waiting.pop_front() {
                    self.arrived.remove(&reply);
                }
                self.in_place.held.insert(staged.version, (chunk, version));
                self.ask(Asked::Barrier { chunk, version }, Op::Barrier);
                self.overwrite();
            }
            Ok(other) => unreachable!("an overwrite is answered as staged, not {other:?}"),
            // Tried again when something was released, here or of another segment.
            Err(OpError::Update(UpdateError::Held { .. })) => {}
            Err(error) => self.over = Some(self.failed(error)),
        }
    }

    /// Sends a difference that is held where it was overwritten with.
    fn held(&self, stream: u64, version: u64, answer: Result<OpOutput, OpError>) {
        let chunk = self.links.get(&stream).map(|link| link.chunk);
        let staged = match answer {
            Ok(OpOutput::Held(held)) => held
                .into_iter()
                .find(|staged| staged.of.is_some() && staged.of == chunk.map(|chunk| (chunk, version))),
            _ => None,
        };
        let record = staged.zip(chunk).and_then(|(staged, chunk)| {
            let bytes = self.of.difference(chunk, &staged.difference).ok()?;
            let (offset, sums) = (staged.offset, vec![0; staged.sums.len()]);
            Some(Difference { chunk, version, offset, sums, bytes: bytes.into() }.encode())
        });
        match record {
            Some(record) => self.say(stream, &LogEvent::Record { version }, record),
            None => self.say(stream, &LogEvent::NotHeld { version }, Bytes::new()),
        }
    }

    fn ask(&self, asked: Asked, op: Op) {
        let sender = self.sender.clone();
        // The host is gone: nobody needs the answer.
        let reply = Box::new(move |result| drop(sender.send(Event::Lane(asked, result))));
        self.chunk.device.lane.submit(self.lane_stream, LanePriority::Normal, op, reply);
    }

    fn failed(&self, error: OpError) -> Fault {
        Fault::Node(fault(self.chunk.device.id, error))
    }
}

/// What a device says of a parity chunk, and the records of its log. One that is taken out meanwhile makes it begin again.
pub(super) async fn log(
    device: &ServedDevice,
    stream: u64,
    class: LanePriority,
    segment: SegmentId,
) -> Result<(UpdatesInfo, Vec<Difference>), Fault> {
    const ATTEMPTS: u32 = 8;
    let failed = |error| Fault::Node(fault(device.id, error));
    'again: for _ in 0..ATTEMPTS {
        let info = match ask(device, stream, class, Op::DescribeUpdates { segment }).await.map_err(failed)? {
            OpOutput::Updates(info) => info,
            other => unreachable!("a description answers a description, not {other:?}"),
        };
        if info.damaged {
            return Err(not_in_place(segment, "the log of its parity lost records"));
        }
        let mut log = Vec::with_capacity(info.log.len());
        for entry in &info.log {
            let op = Op::LogRead { segment, sequence: entry.sequence };
            match ask(device, stream, class, op).await {
                Ok(OpOutput::LogRecord(record)) => {
                    let decoded = Difference::decode(&record);
                    log.push(decoded.map_err(|malformed| not_in_place(segment, malformed))?);
                }
                Ok(other) => unreachable!("a record is answered by a record, not {other:?}"),
                Err(OpError::Update(UpdateError::Log(LogError::NoRecord { .. }))) => continue 'again,
                Err(error) => return Err(failed(error)),
            }
        }
        return Ok((info, log));
    }
    Err(overtaken(device.id, segment))
}

/// Waits until what a host before this one did to the device is durable: what it finds there counts as that.
pub(super) async fn settle(device: &ServedDevice, stream: u64) -> Result<(), Fault> {
    match ask(device, stream, LanePriority::Normal, Op::Barrier).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Fault::Node(fault(device.id, error))),
    }
}

pub(super) fn overtaken(device: DeviceId, segment: SegmentId) -> Fault {
    Fault::Node(NodeFault::Overtaken { device, segment })
}

/// Folds records into the chunk, durably.
async fn merge(
    chunk: &Chunk,
    of: &ParityOf,
    (stream, class): (u64, LanePriority),
    sequences: &[u64],
    merged: Vec<(ChunkNumber, u64)>,
    log_start: u64,
) -> Result<(), Fault> {
    let (device, segment) = (&*chunk.device, chunk.segment);
    let failed = |error| Fault::Node(fault(device.id, error));
    let before = match ask(device, stream, class, Op::DescribeUpdates { segment }).await.map_err(failed)? {
        OpOutput::Updates(info) => info,
        other => unreachable!("a description answers a description, not {other:?}"),
    };
    let interfered = || not_in_place(segment, "somebody else merges its log");
    if before.log.first().map(|entry| entry.sequence) != sequences.first().copied() {
        return Err(interfered());
    }
    let mut fold = Fold::default();
    let mut next = sequences.first().copied().unwrap_or(log_start);
    while next < log_start {
        let op = Op::LogReadRun { segment, first: next, bytes_max: MERGE_READ_BYTES };
        match ask(device, stream, class, op).await.map_err(failed)? {
            OpOutput::LogRecords(records) => {
                let wanted = usize::try_from(log_start - next).unwrap_or(usize::MAX);
                for record in records.iter().take(wanted) {
                    let record = Difference::decode(record);
                    fold.add(&record.map_err(|malformed| not_in_place(segment, malformed))?);
                }
                next += records.len() as u64;
            }
            other => unreachable!("records are answered by records, not {other:?}"),
        }
    }
    let mut patches = Vec::new();
    for span in fold.spans(MERGE_GAP_BYTES, MERGE_READ_BYTES) {
        let len = u32::try_from(span.range.end - span.range.start).expect("a merge is bounded");
        let op = Op::ReadChunk { segment, offset: span.range.start, len };
        let bytes = match ask(device, stream, class, op).await.map_err(failed)? {
            // Of rows that have the fold already it would be taken out again.
            OpOutput::Chunk { state, .. } if state.merged != before.merged => return Err(interfered()),
            OpOutput::Chunk { data, .. } => data,
            other => unreachable!("rows are answered by rows, not {other:?}"),
        };
        for row in span.rows {
            let [from, to] = [row.start, row.end].map(|at| (at - span.range.start) as usize);
            let mut bytes = bytes[from..to].to_vec();
            of.add(&fold, row.start, &mut bytes).map_err(|error| not_in_place(segment, error))?;
            patches.push((row.start, Bytes::from(bytes)));
        }
    }
    let apply = Apply { patches, merged, log_start: Some(log_start) };
    // A merge is of what was committed, under whichever epoch: also where a later one is in force by now.
    let epoch = before.epoch;
    match ask(device, stream, class, Op::Apply { segment, epoch, apply }).await {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}
