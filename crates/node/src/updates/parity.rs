//! The host of a parity chunk: drives [`ParityChunk`] with the device's lane below it and the streams of data nodes beside.

mod held_up;
mod in_place;
mod inflow;
mod records;
mod reserve;

pub(super) use inflow::forward;
pub(crate) use reserve::Shrunk;

use super::{
    CROWDED_IDLE_MAX, Chunk, Hosts, IDLE_MAX, Updates, damaged_parity,
    device_room::DeviceRoom,
    host,
    host::{Lane, Running},
    medium,
    merge::Merge,
    not_in_place, returned,
};
use crate::devices::ServedDevice;
use bytes::Bytes;
use reserve::ToShrink;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_disk::{
    Op, OpError, OpOutput, Priority as LanePriority, SegmentId,
    device::{LogError, UpdateError},
};
use steadfast_net::StreamSender;
use steadfast_protocol::{
    Epoch, Time,
    layout::PARITY_GRANULE_BYTES,
    message::{self, Fault, LogEvent, LogPush, NodeEvent},
    policy,
    serve::parity_log::{
        Behind, ChunkNumber, Difference, Entry, Haste, Held, Mode, Overwrite, Overwrites, ParityAction,
        ParityChunk, ParityInput, ParityOf, ParityState, Upkeep, held_bytes,
    },
};
use tokio::sync::{mpsc, oneshot, watch};

/// When others are asked about a chunk that changes come to, before anybody reads it. Picked by eye: its first changes are through by then.
const LOOKS_AHEAD_AFTER: Duration = Duration::from_secs(1);
/// How often it is looked at whether a log is quiet, or held up.
const TICK: Duration = Duration::from_millis(100);
/// And how often where nothing has happened for [`CALM`], of which there may be thousands: often enough for
/// [`Lull`](steadfast_protocol::serve::Lull).
const CALM_TICK: Duration = Duration::from_secs(1);
/// Long enough that what was going on is over, well within that a log counts as quiet.
const CALM: Duration = Duration::from_secs(3);
/// So many segments that data nodes died of may hold what they may have of a device's room at least, before it is all of it.
const SEGMENTS_LEAST: u64 = 4;
/// Answers that a stream may wait for at least, however little may be uncommitted. Picked by eye.
const ANSWERS_LEAST: usize = 1024;

/// What a host hears.
pub(super) enum Event {
    /// A data chunk's node opened a stream; `welcome` is told once that is taken.
    Opened { stream: u64, chunk: ChunkNumber, sender: StreamSender, welcome: oneshot::Sender<()> },
    /// It said this on it, but for what it fetches.
    Push { stream: u64, push: LogPush, payload: Bytes },
    /// It takes a record now; `sent` is told how many bytes it has.
    Fetch { stream: u64, version: u64, sent: oneshot::Sender<u64> },
    /// The stream is over.
    Closed { stream: u64 },
    /// A merge was made, or not.
    Merged(Result<(), Fault>),
    /// Somebody waits for a merge of what is committed; told how many bytes the log takes then.
    Merge { left_bytes: oneshot::Sender<u64> },
    /// The reserve is to have only so many bytes.
    Shrink { reserve_bytes: u64, shrunk: oneshot::Sender<Shrunk> },
}

/// What the lane was asked.
pub(super) enum Asked {
    Append {
        number: u64,
    },
    Overwrite {
        chunk: ChunkNumber,
        version: u64,
    },
    Barrier {
        chunk: ChunkNumber,
        version: u64,
    },
    Held {
        stream: u64,
        version: u64,
        sent: oneshot::Sender<u64>,
    },
    Release,
    /// Room for a data chunk, of which the segment has so much.
    Reserve {
        stream: u64,
        bytes: u64,
    },
    Unreserve,
    Fence {
        epoch: Epoch,
    },
    Record {
        stream: u64,
        version: u64,
        sent: oneshot::Sender<u64>,
    },
    Shrink {
        shrunk: oneshot::Sender<Shrunk>,
    },
}

struct Link {
    chunk: ChunkNumber,
    sender: StreamSender,
    /// The life of its sender that asked last, and under which epoch.
    life: Option<(Epoch, u64)>,
    /// Bytes that were taken and not granted anew.
    taken: u64,
    /// Answers that are due, but for those about room.
    replies: usize,
    /// Answers of the lane about room that it does not get any more: it was asked for what it has since.
    stale_reserves: usize,
    /// Answers about room that are due.
    reserves: usize,
    /// Bytes that the segment has for those, and the device is still to keep.
    reserving: u64,
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

/// Serves a parity chunk.
pub(super) struct Host {
    chunk: Arc<Chunk>,
    of: Arc<ParityOf>,
    core: ParityChunk,
    sender: mpsc::UnboundedSender<Event>,
    links: BTreeMap<u64, Link>,
    lane: Lane<Self>,
    lane_stream: u64,
    /// Questions that the lane has not answered.
    asked: usize,
    /// When it last heard something.
    busy_at: Instant,
    /// The lane's stream of merges.
    merge_stream: u64,
    /// Whether a merge was begun that has not said how it went.
    merging: bool,
    /// Tells a merge whether somebody waits for it, or soon will.
    haste: watch::Sender<Haste>,
    /// Who waits for a merge that need not hurry, and since when.
    asked_to_merge: Vec<(Time, oneshot::Sender<u64>)>,
    asked_to_shrink: Option<ToShrink>,
    /// What one data chunk may have uncommitted.
    window_bytes: u64,
    /// Answers that a stream may wait for.
    answers_max: usize,
    upkeep: Upkeep,
    started: Instant,
    /// Whether changes came to its log, and others are to be asked about it for that.
    is_changed: bool,
    is_to_look_ahead: bool,
    replies: BTreeMap<u64, (u64, Waiter)>,
    arrived: BTreeMap<u64, Arrived>,
    appending: VecDeque<Appending>,
    overwrites: Overwrites,
    /// What the device keeps for those.
    room: DeviceRoom,
    /// Somebody was refused room because of what is held from before.
    has_to_level: bool,
    /// When that was asked for last.
    levelled_at: Option<Instant>,
    in_place: bool,
    next: u64,
    over: Option<Fault>,
}

impl host::Host for Host {
    type Event = Event;
    type Asked = Asked;

    const ENDS: &'static str = "a parity chunk takes no more differences";

    fn hosts(updates: &Updates) -> &Hosts<Event> {
        &updates.parity
    }

    async fn begin(
        updates: &Arc<Updates>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        sender: mpsc::UnboundedSender<Event>,
        lane: Lane<Self>,
    ) -> Result<Self, Fault> {
        let lane_stream = updates.number();
        let asking = (lane_stream, LanePriority::Normal);
        let (chunk, log, held) = tokio::join!(
            host::chunk(updates, &device, segment, true, asking),
            // Thousands may begin at once: the bytes of their logs are for who merges them.
            medium::log(&device, asking, segment, |difference| (difference.chunk, difference.version)),
            medium::held(&device, asking, segment),
        );
        let (chunk, (info, log), held) = (chunk?, log?, held?);
        let entries = log.into_iter().zip(&info.log).map(|((chunk, version), entry)| Entry {
            sequence: entry.sequence,
            chunk,
            version,
            bytes: entry.bytes,
        });
        let state = ParityState {
            epoch: info.epoch,
            merged: info.merged.clone(),
            log: entries.collect(),
            log_next: info.log_next,
        };
        let shape = chunk.shape;
        let mode = if info.reserve_bytes == 0 { Mode::InPlace } else { Mode::Logged };
        // What a merge changes is one record, and no more than the records of the log that it takes.
        let core = ParityChunk::new(mode, state, info.update_bytes_max)
            .map_err(|broken| damaged_parity(chunk.device.id, segment, broken))?;
        let window_bytes = policy::window_bytes(info.reserve_bytes, shape.data);
        // One for each granule, and as many again: those from before a question may be answered beside those from after it.
        let answers = 2 * window_bytes / u64::from(PARITY_GRANULE_BYTES);
        let core = core.with_bound(Behind::of(info.reserve_bytes, window_bytes, shape.data));
        let held = held.into_iter().filter_map(|staged| {
            let ((chunk, version), bytes) = (staged.of?, held_bytes(staged.difference.len()));
            Some((staged.version, Held { chunk, version, bytes }))
        });
        // At most 255 chunks.
        let (data, parity, number) =
            (shape.data as u16, shape.parity() as u16, (chunk.number - shape.data) as u16);
        let of = ParityOf::new(data, parity, number, shape.chunk_bytes());
        let of = of.map_err(|error| not_in_place(segment, error))?;
        let (haste, _) = watch::channel(Haste::None);
        Ok(Self {
            merge_stream: updates.number(),
            merging: false,
            haste,
            asked_to_merge: Vec::new(),
            asked_to_shrink: None,
            window_bytes,
            answers_max: usize::try_from(answers).unwrap_or(usize::MAX).max(ANSWERS_LEAST),
            upkeep: Upkeep::new(Time(0), info.reserve_bytes),
            started: Instant::now(),
            is_changed: false,
            is_to_look_ahead: false,
            overwrites: Overwrites::new(
                (u64::from(shape.data) * window_bytes).min(info.held_bytes_max / SEGMENTS_LEAST),
                held,
            ),
            room: DeviceRoom::new(lane_stream, chunk.device.lane.clone()),
            has_to_level: false,
            levelled_at: None,
            in_place: mode == Mode::InPlace,
            chunk: Arc::new(chunk),
            of: Arc::new(of),
            core,
            sender,
            links: BTreeMap::new(),
            lane,
            lane_stream,
            asked: 0,
            busy_at: Instant::now(),
            replies: BTreeMap::new(),
            arrived: BTreeMap::new(),
            appending: VecDeque::new(),
            next: 1,
            over: None,
        })
    }

    fn answered(&mut self, asked: Asked, answer: Result<OpOutput, OpError>) {
        self.asked -= 1;
        self.busy_at = Instant::now();
        // Its task is about to end it: whoever comes next finds on the device what became of it.
        if self.over.is_none() {
            self.heard_of_lane(asked, answer);
        }
    }

    fn carry_out(&mut self, updates: &Arc<Updates>) {
        self.act(updates);
        self.hurry();
        if self.core.is_held_back() {
            self.unblock(updates);
        }
    }

    fn is_over(&self) -> bool {
        self.over.is_some()
    }

    async fn serve(running: &Running<Self>, events: &mut mpsc::UnboundedReceiver<Event>) -> Option<Fault> {
        let updates = &running.updates;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (device, segment) = running.with(|host| (host.chunk.device.id, host.chunk.segment));
        let mut calm = false;
        loop {
            let (over, ticking) = running.with(|host| (host.over.take(), host.is_ticking()));
            if let Some(why) = over {
                return Some(why);
            }
            tokio::select! {
                biased;
                Some(event) = events.recv() => {
                    if std::mem::take(&mut calm) {
                        ticks.reset_after(TICK);
                    }
                    let mut next = Some(event);
                    while let Some(event) = next {
                        // What is to be done at once: a question forgets differences that the core did not ask to append.
                        running.with(|host| host.heard(event));
                        next = events.try_recv().ok();
                    }
                }
                () = running.over.notified() => {}
                _ = ticks.tick(), if ticking => {
                    let (leaves, left);
                    (leaves, calm, left) = running.with(|host| {
                        let calm = host.busy_at.elapsed() > CALM && !host.core.is_held_back();
                        (host.tick(updates), calm, host.core.mergeable_bytes() > 0)
                    });
                    if leaves && updates.parity.leave(device, segment, events) {
                        if left {
                            running.with(|host| host.chunk.device.merges.leave(segment));
                        }
                        return None;
                    }
                    running.with(|host| host.look_ahead(updates));
                    if calm {
                        ticks.reset_after(CALM_TICK);
                    }
                }
            }
        }
    }

    async fn end(mut self, why: &Fault, events: &mut mpsc::UnboundedReceiver<Event>) {
        for link in self.links.values() {
            link.sender.fail(why);
        }
        // A merge that is under way is this host's: another must not begin on what it is about to change. Who comes waits.
        self.haste.send_replace(Haste::Now);
        while self.merging {
            match events.recv().await {
                Some(Event::Merged(_)) | None => self.merging = false,
                Some(event) => Self::turn_away(event, why),
            }
        }
    }

    fn turn_away(event: Event, why: &Fault) {
        if let Event::Opened { sender, .. } = event {
            sender.fail(why);
        }
    }
}

impl Host {
    fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    /// Has others asked about the chunk, once changes came to it for a while.
    fn look_ahead(&mut self, updates: &Arc<Updates>) {
        if self.is_to_look_ahead && self.started.elapsed() > LOOKS_AHEAD_AFTER {
            let looks = returned::look_ahead(updates, &self.chunk.device, self.chunk.segment);
            self.is_to_look_ahead = !looks;
        }
    }

    /// Whether time may ask something of it. What the lane is about to answer may be logged, or may not have had room.
    fn is_ticking(&self) -> bool {
        let waited_for =
            self.asked > 0 || self.asked_to_shrink.is_some() || self.overwrites.waits() || self.has_to_level;
        waited_for || self.is_to_look_ahead || self.core.log().len() > 0 || self.links.is_empty()
    }

    /// Does what is due; whether nothing was for long.
    fn tick(&mut self, updates: &Arc<Updates>) -> bool {
        self.asked_to_merge.retain(|(_, asked)| !asked.is_closed());
        let device = &self.chunk.device;
        let due = self.upkeep.merge_due(self.now(), &self.core, device.merges.may_begin(&device.lane));
        if due || !self.asked_to_merge.is_empty() {
            self.core.handle(ParityInput::MergeDue);
        }
        self.give_up_merging();
        self.shrink();
        self.overwrites.again();
        self.overwrite();
        self.unblock(updates);
        self.tell_held_up();
        let idle = self.links.is_empty() && !self.core.is_merging() && self.asked == 0;
        // One whose log is merged as soon as its device rests stays: the next would have to read the log.
        let (quiet, device) = (self.busy_at.elapsed(), self.chunk.device.id);
        idle && (quiet > IDLE_MAX && self.core.mergeable_bytes() == 0
            || quiet > CROWDED_IDLE_MAX && !self.is_asked_for() && updates.parity.are_many(device, 1))
    }

    fn heard(&mut self, event: Event) {
        self.busy_at = Instant::now();
        match event {
            Event::Opened { stream, chunk, sender, welcome } => self.opened(stream, chunk, sender, welcome),
            Event::Push { stream, push, payload } => self.pushed(stream, push, payload),
            Event::Fetch { stream, version, sent } => self.fetch(stream, version, sent),
            Event::Closed { stream } => self.closed(stream),
            Event::Merged(made) => {
                self.merging = false;
                match made {
                    Ok(()) => {
                        self.core.handle(ParityInput::Merged);
                        self.tell_merged();
                    }
                    Err(fault) => self.over = Some(fault),
                }
            }
            Event::Merge { left_bytes } => {
                self.asked_to_merge.push((self.now(), left_bytes));
                if self.core.log().len() == 0 {
                    self.tell_merged();
                }
            }
            Event::Shrink { reserve_bytes, shrunk } => {
                self.asked_to_shrink = Some(ToShrink { reserve_bytes, since: self.now(), shrunk });
                self.shrink();
            }
        }
    }

    /// A stream is over, or nothing more is taken from it.
    fn closed(&mut self, stream: u64) {
        self.replies.retain(|_, (to, _)| *to != stream);
        if let Some(gone) = self.links.remove(&stream) {
            let is_back = self.links.values().any(|link| link.chunk == gone.chunk);
            // What it did not spend nobody will, unless it is back already.
            let bytes = if is_back { gone.reserving } else { u64::MAX };
            let bytes = self.overwrites.give_back(gone.chunk, bytes).saturating_sub(gone.reserving);
            self.unreserve(bytes);
        }
    }

    fn heard_of_lane(&mut self, asked: Asked, answer: Result<OpOutput, OpError>) {
        match (asked, answer) {
            (Asked::Append { number }, answer) => self.appended(number, answer),
            (Asked::Fence { epoch }, answer) => match answer {
                Ok(_) => self.core.handle(ParityInput::Fenced { epoch }),
                Err(error) => self.over = Some(self.failed(error)),
            },
            (Asked::Record { stream, version, sent }, answer) => match answer {
                Ok(OpOutput::LogRecord(record)) => self.give(stream, version, Some(record), sent),
                // Merged meanwhile.
                Err(OpError::Update(UpdateError::Log(LogError::NoRecord { .. }))) => {
                    self.give(stream, version, None, sent);
                }
                Ok(other) => unreachable!("a record is answered by a record, not {other:?}"),
                // It cannot be merged either.
                Err(error) => self.over = Some(self.failed(error)),
            },
            (Asked::Overwrite { chunk, version }, answer) => self.overwritten(chunk, version, answer),
            (Asked::Barrier { chunk, version }, answer) => match answer {
                Ok(_) => self.core.handle(ParityInput::Overwritten { chunk, version }),
                Err(error) => self.over = Some(self.failed(error)),
            },
            (Asked::Held { .. }, Err(error)) => self.over = Some(self.failed(error)),
            (Asked::Held { stream, version, sent }, answer) => self.held(stream, version, answer, sent),
            (Asked::Release, answer) => {
                if let Err(error) = answer {
                    self.over = Some(self.failed(error));
                }
            }
            (Asked::Reserve { stream, bytes }, answer) => match answer {
                Ok(OpOutput::Reserved { bytes: kept }) => self.reserved(stream, bytes, kept),
                Ok(other) => unreachable!("a reservation is answered as such, not {other:?}"),
                Err(error) => self.over = Some(self.failed(error)),
            },
            (Asked::Unreserve, _) => {}
            (Asked::Shrink { shrunk }, answer) => {
                if answer.is_ok() {
                    // Window and mode follow from the reserve: the next host finds them, as after a restart.
                    self.over = Some(not_in_place(self.chunk.segment, "its reserve was given back"));
                }
                // Nobody waits any more: the next look at reserves finds it.
                let _ = shrunk.send(if answer.is_ok() { Shrunk::Done } else { Shrunk::NotNow });
            }
        }
    }

    fn opened(
        &mut self,
        stream: u64,
        chunk: ChunkNumber,
        sender: StreamSender,
        welcome: oneshot::Sender<()>,
    ) {
        if u32::from(chunk) >= self.chunk.shape.data {
            return sender
                .fail(&Fault::Protocol(format!("a segment of {} data chunks", self.chunk.shape.data)));
        }
        let window_bytes = self.window_bytes;
        // Twice, as what was sent before a stream was lost is sent again.
        sender.grant(u32::try_from(2 * window_bytes).unwrap_or(u32::MAX));
        let (taken, replies, stale_reserves, reserves, reserving) = Default::default();
        let link = Link { chunk, sender, life: None, taken, replies, stale_reserves, reserves, reserving };
        self.links.insert(stream, link);
        let in_place = self.in_place;
        self.say(stream, &LogEvent::Welcome { window_bytes, in_place }, Bytes::new());
        // Its stream is over already.
        let _ = welcome.send(());
    }

    fn say(&self, stream: u64, event: &LogEvent, payload: Bytes) {
        if let Some(link) = self.links.get(&stream) {
            // Lost: the stream's end says so.
            let _ = link.sender.send_now(message::encode(&NodeEvent::Log(event.clone())), payload);
        }
    }

    fn pushed(&mut self, stream: u64, push: LogPush, payload: Bytes) {
        let Some(link) = self.links.get_mut(&stream) else { return };
        if link.replies + link.reserves >= self.answers_max {
            link.sender.fail(&Fault::Protocol(format!("more than {} answers are due", self.answers_max)));
            return self.closed(stream);
        }
        let chunk = link.chunk;
        link.taken += payload.len() as u64;
        // Not each time: that would be a frame and a wake-up for every difference, and what was granted is far more.
        if link.taken >= self.window_bytes / 2 {
            link.sender.grant(u32::try_from(link.taken).unwrap_or(0));
            link.taken = 0;
        }
        let reply = self.next;
        self.next += 1;
        match push {
            LogPush::Ask { epoch, session } => {
                link.replies += 1;
                self.replies.insert(reply, (stream, Waiter::Ask { epoch }));
                self.core.handle(ParityInput::Ask { reply, epoch, session, chunk });
                if self.core.is_latest(chunk, epoch, session) {
                    link.life = Some((epoch, session));
                    // What was not taken of its earlier life is forgotten by the core, too.
                    self.forget(chunk);
                }
            }
            LogPush::Difference { epoch, session, version, committed } => {
                let chunk_bytes = self.chunk.shape.chunk_bytes();
                let sound = Difference::decode(&payload)
                    .is_ok_and(|difference| difference.is_of(chunk, version, chunk_bytes));
                if !sound {
                    let said = Fault::Protocol("a record that is not of the difference announced".to_owned());
                    link.sender.fail(&said);
                    return self.closed(stream);
                }
                link.replies += 1;
                self.replies.insert(reply, (stream, Waiter::Difference));
                let bytes = u32::try_from(payload.len()).expect("a record fits a frame");
                self.arrived.insert(reply, Arrived { chunk, record: payload });
                self.core.handle(ParityInput::Difference {
                    reply,
                    epoch,
                    session,
                    chunk,
                    version,
                    bytes,
                    committed,
                });
            }
            LogPush::Reserve { least, bytes } => {
                let bytes = if self.in_place { self.overwrites.reserve(chunk, least, bytes) } else { 0 };
                if bytes == 0 {
                    self.has_to_level |= self.overwrites.is_to_level().is_some();
                    return self.say(stream, &LogEvent::Reserved { bytes }, Bytes::new());
                }
                link.reserves += 1;
                link.reserving += bytes;
                let op = self.room.reserve(least, bytes);
                self.ask(Asked::Reserve { stream, bytes }, op);
            }
            LogPush::GiveBack { bytes } => {
                // But for what the device has yet to say.
                let asked: u64 =
                    self.links.values().filter(|link| link.chunk == chunk).map(|link| link.reserving).sum();
                let granted = self.overwrites.reserved(chunk).saturating_sub(asked);
                let bytes = self.overwrites.give_back(chunk, bytes.min(granted));
                self.unreserve(bytes);
            }
            LogPush::Committed { epoch, through } => {
                self.core.handle(ParityInput::Committed { epoch, chunk, through });
            }
            LogPush::Fetch { .. } => unreachable!("it comes as an event of its own"),
        }
    }

    /// Who waits for this answer, which is due no more.
    fn answer_to(&mut self, reply: u64) -> Option<(u64, Waiter)> {
        let (stream, waiter) = self.replies.remove(&reply)?;
        if let Some(link) = self.links.get_mut(&stream) {
            link.replies -= 1;
        }
        Some((stream, waiter))
    }

    /// Drops what arrived of a data chunk and is not on its way to the device: whoever asked what is here of it sends that again.
    fn forget(&mut self, chunk: ChunkNumber) {
        let appending = self.appending.iter().map(|append| append.reply);
        let overwriting = self.overwrites.waiting().map(|overwrite| overwrite.reply);
        let under_way: Vec<u64> = appending.chain(overwriting).collect();
        self.arrived.retain(|reply, arrived| arrived.chunk != chunk || under_way.contains(reply));
        self.withdraw(chunk);
    }

    fn act(&mut self, updates: &Arc<Updates>) {
        while let Some(action) = self.core.poll() {
            match action {
                ParityAction::Append { chunk, version, sequence, reply } => {
                    self.append(chunk, version, sequence, reply);
                }
                ParityAction::Merge { sequences, merged, log_start } => {
                    self.merging = true;
                    self.hurry();
                    let (chunk, of, sender) = (self.chunk.clone(), self.of.clone(), self.sender.clone());
                    let merge = Merge::new(chunk, of, self.merge_stream, self.haste.subscribe());
                    updates.spawn(async move {
                        let made = merge.make(&sequences, merged, log_start).await;
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
                    match self.answer_to(reply) {
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
                    if let Some((stream, _)) = self.answer_to(reply) {
                        self.say(stream, &LogEvent::Refused { reason }, Bytes::new());
                    }
                }
                ParityAction::Overwrite { chunk, version, reply } => {
                    let record = self.arrived.get(&reply).map(|arrived| arrived.record.len());
                    let bytes = held_bytes(record.unwrap_or(0));
                    self.overwrites.ask(Overwrite { chunk, version, bytes, reply, reserved: false });
                    self.overwrite();
                }
                ParityAction::Release { chunk, through } => {
                    if let Some(through_version) = self.overwrites.release(chunk, through) {
                        let segment = self.chunk.segment;
                        self.ask(Asked::Release, Op::Release { segment, through_version });
                    }
                    self.overwrite();
                }
            }
        }
    }

    /// Tells the merge under way whether somebody waits for it now: one that began in quiet would let all others go first.
    fn hurry(&self) {
        let haste = if self.merging { self.upkeep.haste(&self.core) } else { Haste::None };
        self.haste.send_if_modified(|told| std::mem::replace(told, haste) != haste);
    }

    fn append(&mut self, chunk: ChunkNumber, version: u64, sequence: u64, reply: u64) {
        let Some(arrived) = self.arrived.get(&reply) else {
            let why = format_args!("version {version} of chunk {chunk} is to be logged and is not here");
            self.over = Some(not_in_place(self.chunk.segment, why));
            return;
        };
        let (payload, number) = (arrived.record.clone(), self.next);
        self.next += 1;
        self.upkeep.appended(self.now());
        self.is_to_look_ahead |= !std::mem::replace(&mut self.is_changed, true);
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

    fn ask(&mut self, asked: Asked, op: Op) {
        self.asked += 1;
        self.lane.ask(self.lane_stream, asked, op);
    }

    fn failed(&self, error: OpError) -> Fault {
        medium::not_changed(self.chunk.device.id, self.chunk.segment, error)
    }
}
