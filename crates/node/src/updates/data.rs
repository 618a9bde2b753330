//! The host of a data chunk: drives [`DataChunk`] with the device's lane below it and a link to each parity node beside.

use super::{
    CROWDED_IDLE_MAX, Chunk, Hosts, IDLE_MAX, Updates,
    device_room::DeviceRoom,
    host,
    host::{Lane, Running},
    link::{self, Link, LinkEvent},
    medium, not_in_place,
    waiting::Room,
};
use crate::{devices::ServedDevice, fault::fault};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use steadfast_disk::{
    Op, OpError, OpOutput, Priority as LanePriority, checksum,
    device::{Staged, UpdateError},
};
use steadfast_protocol::{
    Epoch, SegmentId, Time,
    layout::PARITY_GRANULE_BYTES,
    message::{Fault, LogEvent, LogPush, NodeFault, RefusalReason, UPDATE_BYTES_MAX},
    serve::parity_log::{
        Admission, ChunkNumber, DataAction, DataChunk, DataInput, Difference, Medium, ParityNumber, Refusal,
        UpdateWindow, Why, kept_from,
    },
};
use tokio::sync::{mpsc, oneshot};

/// How often updates that found no room are tried again, and a version of a log that is to be brought forward: while that waits nobody
/// reserves any, and other updates of data chunks find some no sooner.
const TICK: Duration = Duration::from_millis(20);
/// How often parity nodes that were not told yet hear what is committed, and the device what it need not hold. The next update
/// of the chunk says both, too; more often, hosts that are between two updates would wake each other's nodes for nothing.
const TELL: Duration = Duration::from_millis(100);
/// How long a host that nobody waits for tries to reach parity where there are many: what it does not level, the next one does. Picked by
/// eye: long enough for a parity node that reads its log first.
const CROWDED_LEVELLING_MAX: Duration = Duration::from_secs(3);
/// No chunk is changed so often.
const VERSION_MAX: u64 = u64::MAX / 2;

/// What a host hears.
pub(super) enum Event {
    /// Change bytes.
    Update {
        epoch: Epoch,
        offset: u64,
        bytes: Bytes,
        reply: oneshot::Sender<Result<u64, Fault>>,
        /// Until it is answered.
        room: Room,
    },
    /// Level what the device holds.
    Begin,
    /// Something about the link to a parity node.
    Link { parity: ParityNumber, event: LinkEvent },
}

/// What the lane was asked.
pub(super) enum Asked {
    Stage {
        request: u64,
    },
    Barrier,
    Base {
        version: u64,
    },
    /// A version of a log, brought forward as if it were staged here.
    Adopt {
        version: u64,
        offset: u64,
        new: Bytes,
    },
    Adopted {
        version: u64,
    },
    Release,
}

struct Wanted {
    offset: u64,
    bytes: Bytes,
    reply: oneshot::Sender<Result<u64, Fault>>,
    _room: Room,
}

/// Serves a data chunk.
pub(super) struct Host {
    chunk: Chunk,
    core: DataChunk,
    /// Which updates the core is given, and when.
    window: UpdateWindow,
    started: Instant,
    links: Vec<Link>,
    lane: Lane<Self>,
    lane_stream: u64,
    /// When it last heard something.
    busy_at: Instant,
    /// This life, as parity nodes know it.
    session: u64,
    wanted: BTreeMap<u64, Wanted>,
    /// The record that was asked for, and of whom.
    fetching: Option<(ParityNumber, u64)>,
    /// What the device is to be told when it is next asked for something: nobody waits for that, and telling it wakes its lane
    /// while the answer to the update is to be sent.
    release: Option<u64>,
    /// A version that is to be brought forward once the device has room to hold it: with where it changes the chunk, and its bytes there.
    to_adopt: Option<(u64, u64, Bytes)>,
    /// Through which such a version keeps others from reserving what it waits for. Updates have no part in it: they are stamped where
    /// there is room, and one that waited here would have room elsewhere that it does not use.
    device_room: DeviceRoom,
    /// Whether it was its device, and no parity node, that found no room last.
    is_device_full: bool,
    /// Records of versions that are not committed.
    kept: BTreeMap<u64, Bytes>,
    next_request: u64,
    /// Whether readers know that the chunk is level.
    is_level_told: bool,
    /// Why it cannot go on.
    over: Option<Fault>,
}

impl host::Host for Host {
    type Event = Event;
    type Asked = Asked;

    const ENDS: &'static str = "a data chunk is not changed in place any more";

    fn hosts(updates: &Updates) -> &Hosts<Event> {
        &updates.data
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
        let (chunk, info, held) = tokio::join!(
            host::chunk(updates, &device, segment, false, asking),
            medium::describe(&device, asking, segment),
            medium::held(&device, asking, segment),
        );
        let (chunk, version, held) = (chunk?, info?.version, held?);
        let number = chunk.number as ChunkNumber;
        let kept: BTreeMap<u64, Bytes> =
            held.into_iter().map(|staged| (staged.version, record(number, staged))).collect();
        let kept_from = kept_from(version, |version| kept.contains_key(&version));
        // A clock that was set back makes a life that parity nodes do not take: the segment is stored anew then.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let session = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let mut core = DataChunk::new(Medium::Own, session, version, kept_from);
        let parities = chunk.shape.parity() as ParityNumber;
        core.handle(DataInput::Configure { epoch: chunk.epoch, parities: (0..parities).collect() });
        let links = (0..parities).map(|parity| {
            let target = link::Target {
                device: chunk.holders[(chunk.shape.data + u32::from(parity)) as usize],
                segment,
                epoch: chunk.epoch,
                chunk: number,
                parity,
            };
            Link::to(target, updates, sender.clone())
        });
        Ok(Self {
            links: links.collect(),
            window: UpdateWindow::new(
                Time(0),
                parities,
                kept.iter().map(|(version, record)| (*version, record.len())),
            )
            .with_seed(session),
            started: Instant::now(),
            release: None,
            to_adopt: None,
            is_device_full: false,
            device_room: DeviceRoom::new(lane_stream, chunk.device.lane.clone()),
            kept,
            core,
            lane,
            lane_stream,
            busy_at: Instant::now(),
            session,
            wanted: BTreeMap::new(),
            fetching: None,
            next_request: 1,
            is_level_told: false,
            over: None,
            chunk,
        })
    }

    fn answered(&mut self, asked: Asked, answer: Result<OpOutput, OpError>) {
        // What is not done for want of room is no work.
        if !matches!(answer, Err(OpError::Update(UpdateError::Held { .. }))) {
            self.busy_at = Instant::now();
        }
        self.heard_of_lane(asked, answer);
    }

    fn carry_out(&mut self, _: &Arc<Updates>) {
        self.act();
    }

    fn is_over(&self) -> bool {
        self.over.is_some()
    }

    async fn serve(running: &Running<Self>, events: &mut mpsc::UnboundedReceiver<Event>) -> Option<Fault> {
        let [mut ticks, mut tells] = [TICK, TELL].map(tokio::time::interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tells.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let updates = &running.updates;
        let (device, segment) = running.with(|host| (host.chunk.device.id, host.chunk.segment));
        loop {
            let now = running.with(|host| host.now_is(updates));
            if let Some(why) = now.over {
                return Some(why);
            }
            tokio::select! {
                biased;
                Some(event) = events.recv() => running.with(|host| {
                    let mut next = Some(event);
                    while let Some(event) = next {
                        host.heard(event);
                        next = events.try_recv().ok();
                    }
                }),
                () = running.over.notified() => {}
                _ = ticks.tick(), if now.is_waited_for => running.with(Host::tick),
                _ = tells.tick(), if !now.is_idle => running.with(|host| {
                    host.release();
                    host.core.handle(DataInput::Tick);
                }),
                () = tokio::time::sleep(now.rest), if now.is_idle => {
                    // Whatever was answered since may be news to the device.
                    if running.with(|host| host.may_leave(updates) && updates.data.leave(device, segment, events)) {
                        return None;
                    }
                }
            }
        }
    }

    async fn end(mut self, why: &Fault, _: &mut mpsc::UnboundedReceiver<Event>) {
        // What is committed is to be held no longer, whatever comes after.
        self.release();
        self.fail_all(why);
    }

    fn turn_away(event: Event, why: &Fault) {
        if let Event::Update { reply, .. } = event {
            // Nobody waits any more: the answer is not needed.
            let _ = reply.send(Err(why.clone()));
        }
    }
}

/// How things stand with a host.
struct Now {
    /// Why it cannot go on.
    over: Option<Fault>,
    /// Whether clients wait for it, or what was not done for want of room; or others for room that is kept for it.
    is_waited_for: bool,
    is_idle: bool,
    /// When it may be that it is to leave, if nothing happens.
    rest: Duration,
}

impl Host {
    fn now_is(&mut self, updates: &Updates) -> Now {
        // What is to be done may show that it cannot go on.
        self.act();
        let quiet = self.busy_at.elapsed();
        Now {
            over: self.over.take(),
            is_waited_for: !self.wanted.is_empty() || self.to_adopt.is_some() || self.window.has_room(),
            is_idle: self.has_nobody() && (self.is_level() || self.may_leave(updates)),
            rest: match CROWDED_IDLE_MAX.checked_sub(quiet) {
                Some(rest) => rest,
                // There may be many by then.
                None => CROWDED_IDLE_MAX.min(IDLE_MAX.saturating_sub(quiet)),
            },
        }
    }

    fn has_nobody(&self) -> bool {
        self.wanted.is_empty() && self.release.is_none()
    }

    fn is_level(&self) -> bool {
        self.core.is_idle() && self.core.is_serving()
    }

    /// Whether nothing has happened for so long that it is to leave. Where parity is out of reach for long, the device keeps what is
    /// not level yet.
    fn may_leave(&self, updates: &Updates) -> bool {
        let (quiet, chunk) = (self.busy_at.elapsed(), &self.chunk);
        let crowded_max = if self.is_level() { CROWDED_IDLE_MAX } else { CROWDED_LEVELLING_MAX };
        let crowded = || updates.data.are_many(chunk.device.id, chunk.shape.parity() as usize);
        self.has_nobody() && (quiet >= IDLE_MAX || quiet >= crowded_max && crowded())
    }

    fn heard(&mut self, event: Event) {
        // A stream that is opened and ended again and again is no work: the segment may be gone, or a parity chunk unable. Nor is what
        // may never be done, however often it is asked for: while it stays its streams do, and who waits behind its changes waits for it.
        let is_in_vain = matches!(event, Event::Begin) && !self.is_level();
        let idle = matches!(
            event,
            Event::Link {
                event: LinkEvent::Reached
                    | LinkEvent::Heard(
                        LogEvent::Welcome { .. } | LogEvent::Versions { .. } | LogEvent::HeldUp,
                        _
                    )
                    | LinkEvent::Lost
                    | LinkEvent::Failed(_),
                ..
            }
        );
        if !(idle || is_in_vain) {
            self.busy_at = Instant::now();
        }
        match event {
            Event::Update { epoch, offset, bytes, reply, room } => match self.check(epoch, offset, &bytes) {
                Ok(()) => {
                    let request = self.next_request;
                    self.next_request += 1;
                    self.window.ask(request, offset, bytes.len() as u64);
                    self.wanted.insert(request, Wanted { offset, bytes, reply, _room: room });
                    self.admit();
                }
                // Nobody waits any more: the answer is not needed.
                Err(fault) => drop(reply.send(Err(fault))),
            },
            // Parity may wait to hear what is committed, readers whether the chunk is level.
            Event::Begin => {
                self.is_level_told = false;
                self.core.handle(DataInput::Tick);
            }
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

    fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    /// Gives the core what the window has room for; whether it gave it anything.
    fn admit(&mut self) -> bool {
        // Before it serves an update might wait for others to make room, with what is kept for it.
        if self.window.needs_room() && !self.core.is_serving() {
            self.window.is_not_level();
            return false;
        }
        let mut gave = false;
        loop {
            while let Some(request) = self.window.first()
                && !self.is_wanted(request)
            {
                self.wanted.remove(&request);
                self.window.forget(request);
            }
            match self.window.poll() {
                Some(Admission::Update { request }) => {
                    self.core.handle(DataInput::Update { request });
                    gave = true;
                }
                Some(Admission::TooLarge { request }) => {
                    let why = "its log has no room for a change of this size";
                    self.answer(request, Err(not_in_place(self.chunk.segment, why)));
                }
                Some(Admission::Reserve { parity, least, bytes }) => {
                    self.push(parity, LogPush::Reserve { least, bytes }, Bytes::new());
                }
                Some(Admission::GiveBack { parity, bytes }) => {
                    self.push(parity, LogPush::GiveBack { bytes }, Bytes::new());
                }
                None => return gave,
            }
        }
    }

    /// Whether somebody waits for it still.
    fn is_wanted(&self, request: u64) -> bool {
        self.wanted.get(&request).is_some_and(|wanted| !wanted.reply.is_closed())
    }

    fn act(&mut self) {
        self.act_on_core();
        // What was just done may be what updates waited for.
        while self.window.needs_room() && self.admit() {
            self.act_on_core();
        }
    }

    fn act_on_core(&mut self) {
        if self.core.is_serving() && !std::mem::replace(&mut self.is_level_told, true) {
            // Before anything is stamped: what parity has of that would be taken for what the chunk lacks.
            self.chunk.device.returned.level(self.chunk.segment);
        }
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
                    self.kept = self.kept.split_off(&through.saturating_add(1));
                    self.window.released(through);
                    self.release = Some(through);
                    self.admit();
                }
                DataAction::Answer { request, version } => self.answer(request, Ok(version)),
                DataAction::Unknown { request } => {
                    let why = self.core.fenced().map_or("its layout changed meanwhile", why);
                    self.answer(request, Err(not_in_place(self.chunk.segment, why)));
                }
                DataAction::Behind { .. } => {
                    self.over = Some(not_in_place(self.chunk.segment, "a parity chunk lacks changes"));
                }
                DataAction::Outdated => {
                    self.chunk.device.returned.outdated(&self.chunk);
                    self.over = Some(not_in_place(self.chunk.segment, why(Why::Outdated)));
                }
            }
        }
        if let Some(fenced) = self.core.fenced()
            && self.over.is_none()
        {
            self.over = Some(not_in_place(self.chunk.segment, why(fenced)));
        }
    }

    fn push(&self, parity: ParityNumber, push: LogPush, payload: Bytes) {
        self.links[usize::from(parity)].push((push, payload));
    }

    fn stage(&mut self, request: u64) {
        let segment = self.chunk.segment;
        let wanted = self.wanted.get(&request).filter(|wanted| !wanted.reply.is_closed());
        let (offset, new) = match wanted {
            Some(wanted) => (wanted.offset, wanted.bytes.clone()),
            None => {
                // Whoever asked was told that it is not done.
                self.window.forget(request);
                self.wanted.remove(&request);
                return self.core.handle(DataInput::NotStaged { request });
            }
        };
        self.release();
        self.ask(
            Asked::Stage { request },
            Op::Stage { segment, epoch: self.chunk.epoch, offset, new, spend: None },
        );
        self.ask(Asked::Barrier, Op::Barrier);
    }

    /// Tells the device what it need not hold any more.
    fn release(&mut self) {
        if let Some(through_version) = self.release.take() {
            self.ask(Asked::Release, Op::Release { segment: self.chunk.segment, through_version });
        }
    }

    fn ask(&self, asked: Asked, op: Op) {
        self.lane.ask(self.lane_stream, asked, op);
    }

    fn heard_of_lane(&mut self, asked: Asked, answer: Result<OpOutput, OpError>) {
        let segment = self.chunk.segment;
        match (asked, answer) {
            (Asked::Stage { request }, Ok(OpOutput::Staged(staged))) => {
                self.is_device_full = false;
                let version = staged.version;
                let record = record(self.chunk.number as ChunkNumber, staged);
                self.window.staged(request, version, record.len());
                self.kept.insert(version, record);
                self.core.handle(DataInput::Staged { request, version });
            }
            (Asked::Stage { request }, Err(OpError::Update(UpdateError::Held { .. }))) => {
                // Tried again when something was released.
                self.is_device_full = true;
                self.core.handle(DataInput::NotStaged { request });
                self.window.again(request);
            }
            (Asked::Stage { request }, Err(error)) => {
                self.window.forget(request);
                self.core.handle(DataInput::NotStaged { request });
                let fault = Fault::Node(fault(self.chunk.device.id, error));
                if matches!(fault, Fault::Node(NodeFault::StaleEpoch { .. })) {
                    self.over = Some(not_in_place(segment, "its layout changed"));
                }
                self.answer(request, Err(fault));
            }
            (Asked::Barrier, Ok(_)) => self.core.handle(DataInput::Durable { through: self.core.staged() }),
            (Asked::Base { version }, Ok(OpOutput::Chunk { data, .. })) => self.adopt(version, &data),
            (Asked::Adopt { version, .. }, Ok(OpOutput::Staged(staged))) => {
                assert_eq!(staged.version, version, "the core brings it forward by one version at a time");
                self.is_device_full = false;
                self.ask(Asked::Adopted { version }, Op::Barrier);
            }
            // Others' updates are held, which may be for long.
            (Asked::Adopt { version, offset, new }, Err(OpError::Update(UpdateError::Held { .. }))) => {
                self.is_device_full = true;
                self.to_adopt = Some((version, offset, new));
            }
            (Asked::Adopted { version }, Ok(_)) => self.core.handle(DataInput::Adopted { version }),
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
        let segment = self.chunk.segment;
        let difference = self.kept.get(&version).and_then(|record| Difference::decode(record).ok());
        let brought = difference.as_ref().and_then(|difference| {
            let new = difference.brought_forward(base, |at| tag(&self.chunk, at))?;
            Some((difference.offset, new))
        });
        let Some(patch) = brought else {
            self.over = Some(not_in_place(segment, "a change from a log does not come out right"));
            return;
        };
        let (offset, new) = patch;
        self.bring_forward(version, offset, new);
    }

    /// Held as any update until all logs have it: whoever decodes others by a log that lacks it takes it back.
    fn bring_forward(&mut self, version: u64, offset: u64, new: Bytes) {
        let (segment, epoch) = (self.chunk.segment, self.chunk.epoch);
        let asked = Asked::Adopt { version, offset, new: new.clone() };
        let spend = Some(self.device_room.spend(0));
        self.ask(asked, Op::Stage { segment, epoch, offset, new, spend });
    }

    fn link(&mut self, parity: ParityNumber, event: LinkEvent) {
        match event {
            LinkEvent::Heard(LogEvent::Welcome { window_bytes, in_place }, _) => {
                self.window.connected(parity, window_bytes);
                if in_place {
                    self.window.asks_in_place(parity);
                }
                self.core.handle(DataInput::Connected { parity });
                self.admit();
            }
            LinkEvent::Heard(LogEvent::Versions { received, .. }, _) if received > VERSION_MAX => {
                self.over =
                    Some(not_in_place(self.chunk.segment, "a parity node names a version that cannot be"));
            }
            LinkEvent::Heard(LogEvent::Versions { epoch, received }, _) => {
                self.window.answered(parity);
                self.core.handle(DataInput::Versions { parity, epoch, received });
            }
            LinkEvent::Heard(LogEvent::Acked { through }, _) => {
                self.window.took(parity);
                self.core.handle(DataInput::Acked { parity, through });
            }
            LinkEvent::Heard(LogEvent::Reserved { bytes }, _) => {
                self.window.reserved(parity, bytes);
                self.is_device_full &= bytes > 0;
                self.admit();
            }
            LinkEvent::Heard(LogEvent::Refused { reason }, _) => {
                if reason == Refusal::Gap && self.window.needs_room_at(parity) {
                    self.window.asks_in_place(parity);
                }
                self.core.handle(DataInput::Refused { parity, reason });
            }
            LinkEvent::Heard(LogEvent::Record { version }, record)
                if self.fetching == Some((parity, version)) =>
            {
                self.fetching = None;
                self.window.keep(version, record.len());
                self.kept.insert(version, record);
                self.core.handle(DataInput::Fetched { version });
            }
            LinkEvent::Heard(LogEvent::NotHeld { version }, _)
                if self.fetching == Some((parity, version)) =>
            {
                self.fetching = None;
                self.core.handle(DataInput::NotFetched { version });
            }
            // Nobody asked for it.
            LinkEvent::Heard(LogEvent::Record { .. } | LogEvent::NotHeld { .. }, _) => {}
            // Also what is stamped: it may never be committed, and storing the segment anew begins with a fence.
            LinkEvent::Heard(LogEvent::HeldUp, _) => {
                let why = "changes of another chunk hold up its log, and whoever made those is gone or stands still";
                self.fail_all(&not_in_place(self.chunk.segment, why));
            }
            LinkEvent::Reached => self.window.reached(parity),
            LinkEvent::Failed(Fault::Node(fault @ NodeFault::DamagedParity { .. })) => {
                // No stream changes that: who stores the segment anew mends it.
                self.over = Some(not_in_place(self.chunk.segment, fault));
            }
            // They may wait for longer than it takes to have room: whoever asked asks again. Not what is stamped: that may be made yet, and
            // made again it could undo what others wrote since.
            LinkEvent::Failed(fault @ Fault::Refused { reason, .. }) => {
                if reason == RefusalReason::NotReady {
                    self.window.not_ready(self.now(), parity);
                }
                for request in self.window.take_waiting() {
                    self.answer(request, Err(fault.clone()));
                }
            }
            // It moved: the next stream leads to where it is.
            LinkEvent::Failed(Fault::Node(NodeFault::UnknownDevice(_))) => {}
            // The next stream tells, unless none does: who stores the segment anew goes on.
            LinkEvent::Failed(fault) => {
                if self.window.ended(parity) {
                    self.over = Some(not_in_place(self.chunk.segment, fault));
                }
            }
            LinkEvent::Lost => {
                self.window.lost(self.now(), parity);
                self.core.handle(DataInput::Lost { parity });
            }
        }
    }

    fn tick(&mut self) {
        // What the core has of them it goes on with; nobody waits for an answer, and a host without other work may end.
        self.wanted.retain(|_, wanted| !wanted.reply.is_closed());
        if self.window.tick(self.now()) && !self.wanted.is_empty() {
            let why = match self.is_device_full {
                true => "its device has no room for changes",
                false => "devices with its parity have no room for changes",
            };
            self.fail_all(&not_in_place(self.chunk.segment, why));
        }
        self.admit();
        // Nothing else changes the chunk meanwhile.
        if let Some((version, offset, new)) = self.to_adopt.take() {
            self.bring_forward(version, offset, new);
        }
        if let Some(parity) = self.window.out_of_reach(self.now())
            && !self.wanted.is_empty()
        {
            let device = self.chunk.holders[self.chunk.shape.data as usize + usize::from(parity)];
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
        // Their answer is the one below.
        let _ = self.window.take_waiting();
        for (_, wanted) in std::mem::take(&mut self.wanted) {
            let _ = wanted.reply.send(Err(why.clone()));
        }
    }
}

/// Why a core serves no more, for whoever asked.
fn why(fenced: Why) -> &'static str {
    match fenced {
        Why::LaterEpoch => "its layout changed",
        // Of the same layout: its own node again, unless its device is served twice.
        Why::LaterLife => {
            "a later start of its node serves the chunk, or one before the node's clock was set back"
        }
        Why::Outdated => "the chunk lacks changes",
        Why::NeverStamped => "a device with its parity names changes that were never made",
    }
}

fn record(chunk: ChunkNumber, staged: Staged) -> Bytes {
    let Staged { version, offset, difference: bytes, sums, .. } = staged;
    Difference { chunk, version, offset, sums, bytes }.encode()
}

/// What the checksum of the granule at a byte of a chunk is seeded with.
fn tag(chunk: &Chunk, at: u64) -> Option<checksum::Tag> {
    let block_bytes = u64::from(chunk.shape.block_bytes);
    let first = chunk.shape.blocks_of(chunk.number).start;
    Some(checksum::Tag {
        segment: chunk.segment,
        version: chunk.version,
        index: first + u32::try_from(at / block_bytes).ok()?,
        granule_number: (at % block_bytes) as u32 / PARITY_GRANULE_BYTES,
    })
}
