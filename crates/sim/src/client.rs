//! A client: drives the cores that read and write a segment, as the real one does. Decoding is the decoder's rank: the cores
//! hear how many blocks are missing, and the bytes' fingerprints are compared with what was stored.

use crate::{
    ask::{Asking, Commit, GetAccess, PutAccess, Refused, Then, only, unexpected},
    message::{Message, Payload, StreamId, fingerprint},
    network::HostId,
    world::{Event, Wire},
};
use core::{ops::Range, time::Duration};
use std::collections::BTreeMap;
use steadfast_codes::rateless::{Code, RankTracker};
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch, IntentId, SegmentId, Time, Version,
    layout::{Piece, SegmentLayout},
    message::{
        Fault, MetaAnswer, MetaFault, NodeAnswer, NodeEvent, NodePush, NodeRequest, Priority, ReadPiece,
        Slice, WriteOpen,
    },
    policy::Policy,
    question::{ATTEMPT, Next, Question},
    read::{self, Cause, ReadCore, ReadDone, ReadError},
    write::{self, FailureKind, WriteDone, WriteError, WriteSpec, Writer},
};

/// Names an access of a world; counts up.
pub type AccessId = u64;

/// Makes the core that reads, when the access begins.
pub type MakeRead = Box<dyn FnOnce(Time) -> Box<dyn ReadCore + Send>>;

/// The same of a segment that was looked up.
pub type MakeNamed = Box<dyn FnOnce(Time, &SegmentLayout, &Policy) -> Box<dyn ReadCore + Send>>;

/// The read of a segment.
pub struct ReadAccess {
    /// Where it lies.
    pub layout: SegmentLayout,
    /// Its code: that of the layout, made once for many reads.
    pub code: Code,
    /// What its bytes are made from; see [`fingerprint`].
    pub contents: u64,
    /// The core.
    pub core: MakeRead,
    /// From the access's begin until the core starts: metadata, connections.
    pub opening: Duration,
    /// From the last block needed until the bytes are there.
    pub decoding: Duration,
}

/// The write of a segment.
pub struct WriteAccess {
    /// What is written, and where to.
    pub spec: WriteSpec,
    /// The name it is stored under.
    pub segment: SegmentId,
    /// Its version.
    pub version: Version,
    /// Bytes under one checksum.
    pub granule_bytes: u32,
    /// What its bytes are made from; see [`fingerprint`].
    pub contents: u64,
    /// From the access's begin until the core starts: metadata, connections.
    pub opening: Duration,
}

/// A segment that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// What the core says of it.
    pub done: WriteDone,
}

/// What became of an access.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// When it began.
    pub began: Time,
    /// When its bytes were there, or acknowledged; or when it failed.
    pub ended: Option<Time>,
    /// What the reading core counted until then.
    pub read: Option<Result<ReadDone, ReadError>>,
    /// What the writing core gave.
    pub written: Option<Result<Stored, WriteError>>,
    /// Why an access by name came to nothing, where that was not the blocks' doing.
    pub refused: Option<Refused>,
    /// The version that a put by name made.
    pub committed: Option<Version>,
    /// Payload bytes that devices read for it, all in all.
    pub medium_bytes: u64,
    /// Payload bytes that storage servers sent it, or it sent to them.
    pub sent_bytes: u64,
    /// Payload bytes that reached it, or that storage servers confirmed.
    pub received_bytes: u64,
    /// Slices that came with other bytes than were stored, and were found out.
    pub corrupt_slices: u64,
}

impl Outcome {
    /// How long it took.
    pub fn latency(&self) -> Option<Duration> {
        Some(self.ended?.since(self.began))
    }
}

/// One client.
pub(crate) struct ClientHost {
    number: u32,
    /// Boxed, since each step takes one out and puts it back.
    accesses: BTreeMap<AccessId, Box<Access>>,
    streams: BTreeMap<StreamId, (AccessId, DeviceId)>,
    /// Requests to the metadata server without an answer.
    asked: BTreeMap<StreamId, AccessId>,
    pub(crate) outcomes: BTreeMap<AccessId, Outcome>,
}

struct Access {
    id: AccessId,
    kind: Kind,
    /// The stream that is open at each device.
    open: BTreeMap<DeviceId, StreamId>,
    /// When it is woken next.
    wakes: Option<Time>,
    over: bool,
}

#[allow(clippy::large_enum_variant, reason = "accesses are few, and stay where they are")]
enum Kind {
    Asking(Asking),
    Reading(Reading),
    Writing(Writing),
}

struct Reading {
    start: Option<MakeRead>,
    core: Option<Box<dyn ReadCore + Send>>,
    layout: SegmentLayout,
    contents: u64,
    rank: RankTracker,
    /// Bytes of blocks of which slices have come.
    partial: BTreeMap<(DeviceId, BlockIndex), u32>,
    decoding: Duration,
}

struct Writing {
    start: Option<WriteSpec>,
    core: Option<Writer>,
    segment: SegmentId,
    version: Version,
    block_bytes: u32,
    granule_bytes: u32,
    contents: u64,
    /// Whose put it is.
    intent: IntentId,
    /// What it is committed with, where it was begun by name.
    commit: Option<Commit>,
}

impl ClientHost {
    pub(crate) fn new(number: u32) -> Self {
        let (accesses, streams, asked, outcomes) = Default::default();
        Self { number, accesses, streams, asked, outcomes }
    }

    pub(crate) fn read(&mut self, id: AccessId, began: Time, access: ReadAccess) {
        let ReadAccess { layout, code, contents, core, decoding, .. } = access;
        let mut reading = Reading::new(layout, &code, contents, decoding);
        reading.start = Some(core);
        self.add(id, began, Kind::Reading(reading));
    }

    pub(crate) fn get(&mut self, id: AccessId, began: Time, access: GetAccess) {
        self.add(id, began, Kind::Asking(Asking::get(access)));
    }

    pub(crate) fn put(&mut self, id: AccessId, began: Time, access: PutAccess) {
        let number = u64::from(self.number) << 32 | id;
        self.add(id, began, Kind::Asking(Asking::put(number, access)));
    }

    pub(crate) fn write(&mut self, id: AccessId, began: Time, access: WriteAccess) {
        let WriteAccess { spec, segment, version, granule_bytes, contents, .. } = access;
        let writing = Writing {
            block_bytes: spec.block_bytes,
            start: Some(spec),
            core: None,
            segment,
            version,
            granule_bytes,
            contents,
            intent: IntentId(id),
            commit: None,
        };
        self.add(id, began, Kind::Writing(writing));
    }

    fn add(&mut self, id: AccessId, began: Time, kind: Kind) {
        self.outcomes.insert(id, Outcome { began, ..Outcome::default() });
        let (open, wakes, over) = Default::default();
        self.accesses.insert(id, Box::new(Access { id, kind, open, wakes, over }));
    }

    /// The access is open: its core starts.
    pub(crate) fn begin(&mut self, wire: &mut Wire, id: AccessId) {
        let now = wire.now();
        let Some(access) = self.accesses.get_mut(&id) else { return };
        match &mut access.kind {
            Kind::Reading(reading) => reading.core = reading.start.take().map(|make| make(now)),
            Kind::Writing(writing) => writing.core = writing.start.take().map(|spec| Writer::new(spec, now)),
            Kind::Asking(asking) => {
                asking.question.get_or_insert_with(|| Question::new(now));
                let (stream, request) = (wire.new_stream(), asking.request.clone());
                asking.stream = Some(stream);
                self.asked.insert(stream, id);
                wire.send(HostId::Client(self.number), HostId::Meta, stream, Message::Ask(Box::new(request)));
                wire.at(now + ATTEMPT, Event::Silent { client: self.number, stream });
            }
        }
        self.step(wire, id);
    }

    /// An attempt to ask has failed: its connection was lost, or nothing came for as long as one may take.
    pub(crate) fn unanswered(&mut self, wire: &mut Wire, stream: StreamId) {
        let Some(id) = self.asked.remove(&stream) else { return };
        let Some(access) = self.accesses.get_mut(&id) else { return };
        let Kind::Asking(asking) = &mut access.kind else { return };
        let Some(question) = asking.question.filter(|_| asking.stream.take() == Some(stream)) else { return };
        match question.failed(wire.now(), None) {
            Next::Again(pause) => {
                wire.at(wire.now() + pause, Event::Begin { client: self.number, access: id });
            }
            Next::GiveUp(_) => self.refused(wire, id, Refused::Unanswered),
        }
    }

    /// The metadata server has answered.
    fn answered(&mut self, wire: &mut Wire, id: AccessId, answer: Result<MetaAnswer, MetaFault>) {
        let Some(access) = self.accesses.get_mut(&id) else { return };
        let Kind::Asking(asking) = &mut access.kind else { return };
        let then = core::mem::replace(&mut asking.then, Then::Over);
        let next = match (answer, then) {
            (Ok(MetaAnswer::Object { segments, policy, .. }), Then::Get(get)) => {
                Reading::named(wire.now(), get, segments, &policy).map(Kind::Reading)
            }
            (Ok(MetaAnswer::Begun(begun)), Then::Put(put)) => {
                Commit::of(&begun, &put).map(|commit| Kind::Writing(Writing::named(wire.now(), *put, commit)))
            }
            (Ok(MetaAnswer::Committed { version, .. }), Then::Committed(segment, done)) => {
                access.over = true;
                let outcome = self.outcomes.get_mut(&id).expect("every access has an outcome");
                outcome.ended = Some(wire.now());
                outcome.committed = Some(version);
                self.seal(wire, segment, &done);
                let outcome = self.outcomes.get_mut(&id).expect("every access has an outcome");
                outcome.written = Some(Ok(Stored { done }));
                return self.step(wire, id);
            }
            (Ok(answer), _) => Err(unexpected(&answer)),
            (Err(fault), _) => Err(Refused::Fault(fault)),
        };
        match next {
            Ok(kind) => {
                access.kind = kind;
                self.step(wire, id);
            }
            Err(refused) => self.refused(wire, id, refused),
        }
    }

    fn refused(&mut self, wire: &mut Wire, id: AccessId, refused: Refused) {
        let Some(access) = self.accesses.get_mut(&id) else { return };
        access.over = true;
        let outcome = self.outcomes.get_mut(&id).expect("every access has an outcome");
        outcome.ended = Some(wire.now());
        outcome.refused = Some(refused);
        self.step(wire, id);
    }

    /// The time has come that a core asked for, unless it asked for a later one since.
    pub(crate) fn wake(&mut self, wire: &mut Wire, id: AccessId) {
        let now = wire.now();
        let Some(access) = self.accesses.get_mut(&id) else { return };
        if access.wakes != Some(now) {
            return;
        }
        access.wakes = None;
        if access.wake_at().is_some_and(|at| at <= now) {
            match &mut access.kind {
                Kind::Reading(Reading { core: Some(core), .. }) => core.handle(now, read::Input::Tick),
                Kind::Writing(Writing { core: Some(core), .. }) => core.handle(now, write::Input::Tick),
                _ => {}
            }
        }
        self.step(wire, id);
    }

    /// A message has come.
    pub(crate) fn heard(&mut self, wire: &mut Wire, stream: StreamId, message: Message) {
        if let Some(&id) = self.asked.get(&stream) {
            return match message {
                Message::Answer(answer) => {
                    self.asked.remove(&stream);
                    self.answered(wire, id, *answer);
                }
                // Nobody knows whether the request arrived.
                _ => self.unanswered(wire, stream),
            };
        }
        let Some(&(id, device)) = self.streams.get(&stream) else { return };
        let message = match message {
            Message::Damaged => {
                self.send(wire, device, stream, Message::Lost);
                Message::Lost
            }
            whole => whole,
        };
        let Some(access) = self.accesses.get_mut(&id) else { return };
        let outcome = self.outcomes.get_mut(&id).expect("every access has an outcome");
        let last = matches!(message, Message::End(_) | Message::Fail(_) | Message::Lost);
        let current = access.open.get(&device) == Some(&stream);
        let next = match &mut access.kind {
            Kind::Reading(reading) => reading.heard(wire.now(), device, current, message, outcome),
            Kind::Writing(writing) => {
                writing.heard(wire.now(), device, current, message, outcome);
                None
            }
            // Its blocks are written: what devices still say is for nobody.
            Kind::Asking(_) => None,
        };
        if last {
            self.streams.remove(&stream);
            if current {
                access.open.remove(&device);
            }
        }
        self.step(wire, id);
        // One thing at a time: what a slice asks for is done before its block is told of.
        if let Some(input) = next
            && let Some(Access { kind: Kind::Reading(Reading { core: Some(core), .. }), .. }) =
                self.accesses.get_mut(&id).map(Box::as_mut)
        {
            core.handle(wire.now(), input);
            self.step(wire, id);
        }
    }

    /// Carries out what an access's core asks.
    fn step(&mut self, wire: &mut Wire, id: AccessId) {
        let Some(mut access) = self.accesses.remove(&id) else { return };
        match &mut access.kind {
            Kind::Reading(_) => self.step_read(wire, &mut access),
            Kind::Writing(_) => self.step_write(wire, &mut access),
            Kind::Asking(_) => {}
        }
        if access.over && access.open.is_empty() {
            return;
        }
        if let Some(at) = access.wake_at()
            && access.wakes.is_none_or(|wakes| at < wakes)
        {
            let at = at.max(wire.now());
            access.wakes = Some(at);
            wire.at(at, Event::Wake { client: self.number, access: id });
        }
        self.accesses.insert(id, access);
    }

    fn send(&self, wire: &mut Wire, device: DeviceId, stream: StreamId, message: Message) {
        wire.send(HostId::Client(self.number), wire.server_of(device), stream, message);
    }

    fn open(
        &mut self,
        wire: &mut Wire,
        access: &mut Access,
        device: DeviceId,
        request: NodeRequest,
        epoch: Epoch,
        credit_bytes: u32,
    ) {
        let stream = wire.new_stream();
        self.streams.insert(stream, (access.id, device));
        access.open.insert(device, stream);
        let (request, priority) = (Box::new(request), Priority::Foreground);
        self.send(wire, device, stream, Message::Open { request, priority, epoch, credit_bytes });
    }

    fn step_read(&mut self, wire: &mut Wire, access: &mut Access) {
        loop {
            let Kind::Reading(reading) = &mut access.kind else { return };
            let Some(action) = reading.core.as_mut().and_then(|core| core.poll()) else { return };
            let outcome = self.outcomes.get_mut(&access.id).expect("every access has an outcome");
            match action {
                read::Action::Open { device, want, credit_bytes } => {
                    let holder = reading.layout.holder(device).expect("the core opens devices of the layout");
                    let pieces = ReadPiece::wanted(holder, &want);
                    let epoch = reading.layout.epoch;
                    let request = NodeRequest::Read { device, pieces };
                    self.open(wire, access, device, request, epoch, credit_bytes);
                    if let Kind::Reading(Reading { core: Some(core), .. }) = &mut access.kind {
                        core.handle(wire.now(), read::Input::Opened { device });
                    }
                }
                read::Action::Grant { device, bytes } => {
                    if let Some(&stream) = access.open.get(&device) {
                        self.send(wire, device, stream, Message::Credit(bytes));
                    }
                }
                read::Action::Finish { device } => {
                    if let Some(&stream) = access.open.get(&device) {
                        let finish = Message::Push(NodePush::Finish, Payload::default());
                        self.send(wire, device, stream, finish);
                    }
                }
                read::Action::Cancel { device } => {
                    if let Some(&stream) = access.open.get(&device) {
                        self.send(wire, device, stream, Message::Cancel);
                    }
                }
                read::Action::Done(done) => {
                    outcome.ended = Some(wire.now() + reading.decoding);
                    outcome.read = Some(Ok(done));
                    access.over = true;
                }
                read::Action::Failed(error) => {
                    outcome.ended = Some(wire.now());
                    outcome.read = Some(Err(error));
                    access.over = true;
                }
            }
        }
    }

    fn step_write(&mut self, wire: &mut Wire, access: &mut Access) {
        loop {
            let Kind::Writing(writing) = &mut access.kind else { return };
            let Some(action) = writing.core.as_mut().and_then(Writer::poll) else { return };
            match action {
                write::Action::Open { device, expected_blocks, .. } => {
                    let request = NodeRequest::Write(WriteOpen {
                        device,
                        segment: writing.segment,
                        version: writing.version,
                        intent: writing.intent,
                        block_bytes: writing.block_bytes,
                        granule_bytes: writing.granule_bytes,
                        expected_blocks,
                        // A model of a device keeps no bytes that could change.
                        reserve_bytes: None,
                    });
                    let epoch = writing.commit.as_ref().map_or(Epoch(1), |commit| commit.segment().2);
                    self.open(wire, access, device, request, epoch, 0);
                }
                write::Action::Push { device, indices } => {
                    let Some(&stream) = access.open.get(&device) else { continue };
                    let slices: Vec<Message> = writing.slices(indices, wire.payload_bytes_max()).collect();
                    let bytes: u64 = slices.iter().map(|slice| u64::from(slice.payload_bytes())).sum();
                    let outcome = self.outcomes.get_mut(&access.id).expect("every access has an outcome");
                    outcome.sent_bytes += bytes;
                    for slice in slices {
                        self.send(wire, device, stream, slice);
                    }
                }
                write::Action::Finish { device } => {
                    if let Some(&stream) = access.open.get(&device) {
                        let finish = Message::Push(NodePush::Finish, Payload::default());
                        self.send(wire, device, stream, finish);
                    }
                }
                write::Action::Cancel { device } => {
                    if let Some(&stream) = access.open.get(&device) {
                        self.send(wire, device, stream, Message::Cancel);
                    }
                }
                write::Action::Done(done) if writing.commit.is_some() => {
                    let commit = writing.commit.take().expect("there is one");
                    let number = u64::from(self.number) << 32 | access.id;
                    access.kind = Kind::Asking(Asking::commit(number, &commit, done));
                    wire.at(wire.now(), Event::Begin { client: self.number, access: access.id });
                }
                write::Action::Done(done) => {
                    self.seal(wire, writing.segment, &done);
                    let outcome = self.outcomes.get_mut(&access.id).expect("every access has an outcome");
                    outcome.ended = Some(wire.now());
                    outcome.written = Some(Ok(Stored { done }));
                    access.over = true;
                }
                write::Action::Failed(error) => {
                    let outcome = self.outcomes.get_mut(&access.id).expect("every access has an outcome");
                    outcome.ended = Some(wire.now());
                    outcome.written = Some(Err(error));
                    access.over = true;
                }
            }
        }
    }

    /// Tells every device what to keep; nobody waits for their answers.
    fn seal(&self, wire: &mut Wire, segment: SegmentId, done: &WriteDone) {
        for share in &done.holders {
            let (device, keep) = (share.device, share.blocks.clone());
            let request = NodeRequest::Seal { device, segment, keep };
            self.tell(wire, device, request);
        }
        for &device in &done.abandoned {
            self.tell(wire, device, NodeRequest::Delete { device, segment });
        }
    }

    fn tell(&self, wire: &mut Wire, device: DeviceId, request: NodeRequest) {
        let stream = wire.new_stream();
        let (request, priority) = (Box::new(request), Priority::Control);
        let (epoch, credit_bytes) = (Epoch(1), 0);
        self.send(wire, device, stream, Message::Open { request, priority, epoch, credit_bytes });
    }
}

impl Access {
    fn wake_at(&self) -> Option<Time> {
        match &self.kind {
            Kind::Reading(reading) => reading.core.as_ref()?.wake_at(),
            Kind::Writing(writing) => writing.core.as_ref()?.wake_at(),
            Kind::Asking(_) => None,
        }
    }
}

impl Reading {
    fn new(layout: SegmentLayout, code: &Code, contents: u64, decoding: Duration) -> Self {
        let (start, core, partial) = Default::default();
        Self { start, core, layout, contents, rank: RankTracker::new(code), partial, decoding }
    }

    /// The read of an object that was looked up.
    fn named(
        now: Time,
        get: GetAccess,
        segments: Vec<SegmentLayout>,
        policy: &Policy,
    ) -> Result<Self, Refused> {
        let layout = only(segments)?;
        let code = layout.code.code().map_err(|error| Refused::Unusable(error.to_string()))?;
        let mut reading = Self::new(layout, &code, get.contents, get.decoding);
        reading.core = Some((get.core)(now, &reading.layout, policy));
        Ok(reading)
    }

    /// Tells the core of a message; gives what is to be told of it after that.
    fn heard(
        &mut self,
        now: Time,
        device: DeviceId,
        current: bool,
        message: Message,
        outcome: &mut Outcome,
    ) -> Option<read::Input> {
        let core = self.core.as_mut()?;
        let input = match message {
            Message::Event(NodeEvent::Slice(Slice { index, offset, .. }), payload) => {
                outcome.received_bytes += u64::from(payload.bytes);
                if !current {
                    return None;
                }
                core.handle(now, read::Input::Slice { device, index, bytes: payload.bytes });
                let arrived = self.partial.entry((device, index)).or_default();
                // A stream that ended within a block is followed by one that begins it anew.
                *arrived = if offset == 0 { payload.bytes } else { *arrived + payload.bytes };
                let whole = *arrived == self.layout.block_bytes;
                let holder = self.layout.holder(device);
                let piece = holder.and_then(|holder| holder.piece_of(index));
                let expected = piece.map(|Piece { segment, version, .. }| {
                    fingerprint(self.contents, *segment, *version, index, offset, payload.bytes)
                });
                if expected != Some(payload.fingerprint) {
                    outcome.corrupt_slices += 1;
                    self.partial.remove(&(device, index));
                    return Some(read::Input::Corrupt { device, index });
                }
                if !whole {
                    return None;
                }
                self.partial.remove(&(device, index));
                self.rank.push(index);
                return Some(read::Input::Block { device, index, missing: self.rank.missing() });
            }
            Message::End(answer) => {
                if let NodeAnswer::Read(done) = &answer {
                    outcome.medium_bytes += done.medium_bytes;
                    outcome.sent_bytes += done.sent_bytes;
                }
                match answer {
                    NodeAnswer::Read(_) => read::Input::Ended { device },
                    other => {
                        let cause = Cause::Fault(Fault::Protocol(format!("{other:?} to a read")));
                        read::Input::Failed { device, cause }
                    }
                }
            }
            Message::Fail(fault) => read::Input::Failed { device, cause: Cause::Fault(fault) },
            Message::Lost => {
                let cause = Cause::Unreachable("the connection was lost".to_owned());
                read::Input::Failed { device, cause }
            }
            other => panic!("a storage server sent {other:?} to a read"),
        };
        if current {
            core.handle(now, input);
        }
        None
    }
}

impl Writing {
    /// The write of an object whose put was begun.
    fn named(now: Time, put: PutAccess, commit: Commit) -> Self {
        let PutAccess { spec, granule_bytes, contents, .. } = put;
        let (segment, version, _) = commit.segment();
        Self {
            block_bytes: spec.block_bytes,
            start: None,
            core: Some(Writer::new(spec, now)),
            segment,
            version,
            granule_bytes,
            contents,
            intent: commit.intent,
            commit: Some(commit),
        }
    }

    /// The slices of these blocks, in order.
    fn slices(&self, indices: Range<BlockIndex>, bytes_max: u32) -> impl Iterator<Item = Message> {
        let (segment, version, contents) = (self.segment, self.version, self.contents);
        let block_bytes = self.block_bytes;
        indices.flat_map(move |index| {
            (0..block_bytes).step_by(bytes_max as usize).map(move |offset| {
                let bytes = bytes_max.min(block_bytes - offset);
                let fingerprint = fingerprint(contents, segment, version, index, offset, bytes);
                let push = NodePush::Slice(Slice { index, offset, sums: Vec::new() });
                Message::Push(push, Payload { bytes, fingerprint })
            })
        })
    }

    fn heard(&mut self, now: Time, device: DeviceId, current: bool, message: Message, outcome: &mut Outcome) {
        let input = match message {
            Message::Credit(bytes) => write::Input::Credit { device, bytes: bytes.into() },
            Message::Event(NodeEvent::Confirmed { blocks }, _) => {
                outcome.received_bytes += u64::from(blocks.count()) * u64::from(self.block_bytes);
                write::Input::Confirmed { device, blocks }
            }
            Message::End(NodeAnswer::Written { blocks }) => write::Input::Confirmed { device, blocks },
            Message::End(_) => write::Input::Failed { device, cause: FailureKind::Protocol },
            Message::Fail(fault) => write::Input::Failed { device, cause: FailureKind::from(&fault) },
            Message::Lost => write::Input::Failed { device, cause: FailureKind::Unreachable },
            other => panic!("a storage server sent {other:?} to a write"),
        };
        if let Some(core) = self.core.as_mut()
            && current
        {
            core.handle(now, input);
        }
    }
}
