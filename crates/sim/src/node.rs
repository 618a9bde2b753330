//! A storage server: drives the cores that serve streams, as the real one does, over simulated devices.
//!
//! Left out: reservations (no one reserves), and flushes (a transfer that has ended is durable).

use crate::{
    cache::NodeCache,
    device::{Contents, Device, Job, Part, What},
    message::{Message, Payload, StreamId},
    network::HostId,
    world::{Event, Wire},
};
use std::collections::BTreeMap;
use steadfast_disk::Priority as LanePriority;
use steadfast_protocol::{
    BlockIndex, DeviceId, IndexRanges, SegmentId,
    message::{
        Fault, NodeAnswer, NodeEvent, NodeFault, NodePush, NodeRequest, PAYLOAD_BYTES_MAX, Priority,
        ReadPiece, Slice, Want, WriteOpen,
    },
    serve::{
        Admission, Budget, Limits, Load, ReadAction, ReadInput, ReadResult, ReadStream, ReadTicket, ReaderId,
        SliceId, WriteAction, WriteInput, WriteStream,
    },
};

/// One storage server.
pub(crate) struct NodeHost {
    number: u32,
    pub(crate) alive: bool,
    limits: Limits,
    admission: Admission,
    budget: Budget,
    budget_bytes: u64,
    pub(crate) devices: BTreeMap<DeviceId, Device>,
    pub(crate) cache: Option<NodeCache>,
    /// Boxed, since each step takes one out and puts it back.
    streams: BTreeMap<StreamId, Box<Served>>,
}

/// A stream that is served.
struct Served {
    client: HostId,
    device: DeviceId,
    class: LanePriority,
    core: Core,
}

enum Core {
    Read {
        core: Box<ReadStream>,
        ticket: ReadTicket,
        places: Vec<(IndexRanges, SegmentId)>,
        /// Bytes of the slices that are being read or wait for their turn.
        charged: BTreeMap<SliceId, u32>,
        held: BTreeMap<SliceId, Payload>,
    },
    Write {
        core: Box<WriteStream>,
        open: WriteOpen,
    },
}

impl NodeHost {
    /// Of a network whose frames hold `payload_bytes_max`: a slice is as large, and there is room for as many as ever.
    pub(crate) fn new(number: u32, budget_bytes: u64, payload_bytes_max: u32) -> Self {
        let limits = Limits::default();
        let slices_max = limits.reading_bytes_max / u64::from(PAYLOAD_BYTES_MAX);
        let limits = Limits { reading_bytes_max: slices_max * u64::from(payload_bytes_max), ..limits };
        Self {
            number,
            alive: true,
            limits,
            admission: Admission::new(limits),
            budget: Budget::new(budget_bytes),
            budget_bytes,
            devices: BTreeMap::new(),
            cache: None,
            streams: BTreeMap::new(),
        }
    }

    /// Its process ends: whoever is connected hears so.
    pub(crate) fn crash(&mut self, wire: &mut Wire) {
        self.alive = false;
        for (stream, served) in std::mem::take(&mut self.streams) {
            wire.send(self.host(), served.client, stream, Message::Lost);
        }
        self.admission = Admission::new(self.limits);
        self.budget = Budget::new(self.budget_bytes);
        self.devices.values_mut().for_each(Device::reset);
        if let Some(cache) = &mut self.cache {
            cache.clear();
        }
    }

    /// A message has come.
    pub(crate) fn heard(&mut self, wire: &mut Wire, from: HostId, stream: StreamId, message: Message) {
        if !self.alive {
            // Nobody listens at its address.
            return wire.send(self.host(), from, stream, Message::Lost);
        }
        match message {
            Message::Open { request, priority, credit_bytes, .. } => {
                if let Err(fault) = self.open(wire, from, stream, *request, priority, credit_bytes) {
                    wire.send(self.host(), from, stream, Message::Fail(fault));
                    self.ask_back(wire);
                }
            }
            Message::Damaged => {
                wire.send(self.host(), from, stream, Message::Lost);
                self.tell(wire, stream, Message::Lost);
            }
            other => self.tell(wire, stream, other),
        }
        self.step(wire, stream);
    }

    /// The device's operation has ended.
    pub(crate) fn served(&mut self, wire: &mut Wire, device: DeviceId, turn: u64) {
        let now = wire.now();
        let Some(disk) = self.devices.get_mut(&device) else { return };
        let Some(job) = disk.finish(now, turn) else { return };
        if let Some(cache) = &mut self.cache {
            match job.what {
                What::Read { .. } => cache.keep(disk.number, disk.bytes_of(&job)),
                What::Write { .. } => cache.forget(disk.number, disk.bytes_of(&job)),
            }
        }
        // The device goes on before its answer is looked at, as a lane does.
        self.start(wire, device);
        self.answered(wire, device, job);
        self.step(wire, job.stream);
    }

    /// The cache has given what was asked of the device.
    pub(crate) fn given(&mut self, wire: &mut Wire, device: DeviceId, job: Job) {
        self.answered(wire, device, job);
        self.step(wire, job.stream);
    }

    /// A block's bytes on the medium are wrong from now on; what the cache has of it is gone, for the fault to show.
    pub(crate) fn corrupt(&mut self, device: DeviceId, segment: SegmentId, index: BlockIndex) {
        let Some(disk) = self.devices.get_mut(&device) else { return };
        disk.corrupt(segment, index);
        if let (Some(cache), Some(bytes)) = (&mut self.cache, disk.bytes_of_block(segment, index)) {
            cache.forget(disk.number, bytes);
        }
    }

    /// Starts the device's next operation, if there is one.
    pub(crate) fn start(&mut self, wire: &mut Wire, device: DeviceId) {
        let now = wire.now();
        if let Some(disk) = self.devices.get_mut(&device)
            && let Some(ends) = disk.start(now, self.cache.as_ref())
        {
            wire.at(ends, Event::Served { node: self.number, device, turn: disk.turn });
        }
    }

    fn host(&self) -> HostId {
        HostId::Node(self.number)
    }

    fn open(
        &mut self,
        wire: &mut Wire,
        client: HostId,
        stream: StreamId,
        request: NodeRequest,
        priority: Priority,
        credit_bytes: u32,
    ) -> Result<(), Fault> {
        let class = match priority {
            Priority::Control => LanePriority::Interactive,
            Priority::Foreground => LanePriority::Normal,
            Priority::Background => LanePriority::Background,
        };
        let (device, core) = match request {
            NodeRequest::Read { device, pieces } => {
                (device, self.read(wire, client, device, &pieces, priority, credit_bytes)?)
            }
            NodeRequest::Write(open) => (open.device, self.write(wire, open, priority)?),
            NodeRequest::Seal { device, segment, keep } => {
                self.device(device)?.keep(segment, &keep);
                wire.send(self.host(), client, stream, Message::End(NodeAnswer::Done));
                return Ok(());
            }
            NodeRequest::Delete { device, segment } => {
                self.device(device)?.extents.remove(&segment);
                wire.send(self.host(), client, stream, Message::End(NodeAnswer::Done));
                return Ok(());
            }
            other => return Err(Fault::Protocol(format!("not simulated: {other:?}"))),
        };
        self.streams.insert(stream, Box::new(Served { client, device, class, core }));
        Ok(())
    }

    fn device(&mut self, device: DeviceId) -> Result<&mut Device, Fault> {
        self.devices.get_mut(&device).ok_or(Fault::Node(NodeFault::UnknownDevice(device)))
    }

    fn load(&mut self, device: DeviceId, writes: bool) -> Result<Load, Fault> {
        let disk = self.device(device)?;
        Ok(Load { queued_bytes: disk.queued_bytes(), bytes_per_s: disk.bytes_per_s(writes), reserved: false })
    }

    fn read(
        &mut self,
        wire: &Wire,
        client: HostId,
        device: DeviceId,
        pieces: &[ReadPiece],
        priority: Priority,
        credit_bytes: u32,
    ) -> Result<Core, Fault> {
        let load = self.load(device, false)?;
        let extents = &self.device(device)?.extents;
        let (mut blocks, mut places) = (Vec::new(), Vec::new());
        let mut block_bytes = None;
        for piece in pieces {
            let found = extents.get(&piece.segment).filter(|extent| extent.version == piece.version);
            let Some(extent) = found else { continue };
            let wanted = extent.wanted(wants(&piece.want));
            block_bytes = Some(extent.block_bytes);
            places.push((wanted.iter().copied().collect::<IndexRanges>(), piece.segment));
            blocks.extend(wanted);
        }
        let Some(block_bytes) = block_bytes else {
            let segment = pieces.first().map_or(SegmentId(0), |piece| piece.segment);
            return Err(Fault::Node(NodeFault::UnknownSegment { device, segment }));
        };
        let slice_bytes = block_bytes.min(wire.payload_bytes_max());
        // A host's streams are those of one connection.
        let reader = match client {
            HostId::Client(number) => ReaderId::from(number),
            HostId::Node(_) | HostId::Meta => unreachable!("only clients read"),
        };
        let ticket = self.admission.admit_read_of(reader, priority, load, slice_bytes)?;
        let core = ReadStream::new(blocks, block_bytes, slice_bytes, ticket.slices_max, credit_bytes);
        let (charged, held) = Default::default();
        Ok(Core::Read { core: Box::new(core), ticket, places, charged, held })
    }

    fn write(&mut self, wire: &Wire, open: WriteOpen, priority: Priority) -> Result<Core, Fault> {
        let load = self.load(open.device, true)?;
        self.admission.admit(priority, load)?;
        let disk = self.device(open.device)?;
        let contents = Contents::Slices(BTreeMap::new());
        let extent =
            disk.create(open.segment, open.version, open.block_bytes, contents, open.expected_blocks);
        let held = extent.blocks();
        match WriteStream::new(wire.now(), &open, held, load.bytes_per_s, &mut self.budget) {
            Ok(core) => Ok(Core::Write { core: Box::new(core), open }),
            Err(fault) => {
                self.admission.closed();
                Err(fault)
            }
        }
    }

    /// Tells a stream's core what came from its opener.
    fn tell(&mut self, wire: &Wire, stream: StreamId, message: Message) {
        let now = wire.now();
        let Some(served) = self.streams.get_mut(&stream) else { return };
        match (&mut served.core, message) {
            (Core::Read { core, .. }, Message::Credit(bytes)) => core.handle(now, ReadInput::Credit(bytes)),
            (Core::Read { core, .. }, Message::Push(NodePush::Finish, _)) => {
                core.handle(now, ReadInput::Finish)
            }
            // Who is gone wants no more.
            (Core::Read { core, .. }, Message::Cancel | Message::Lost) => core.handle(now, ReadInput::Cancel),
            (Core::Write { core, .. }, Message::Cancel | Message::Lost) => {
                core.handle(now, WriteInput::Cancel, &mut self.budget);
            }
            (Core::Write { core, open }, Message::Push(push, payload)) => {
                let input = match push {
                    NodePush::Slice(Slice { index, offset, .. }) => {
                        let extent = self.devices.get_mut(&open.device);
                        let extent = extent.and_then(|disk| disk.extents.get_mut(&open.segment));
                        if let Some(extent) = extent {
                            extent.take(index, offset, payload.fingerprint);
                        }
                        // The fingerprint stands for the checksums.
                        let sums = payload.bytes.div_ceil(open.granule_bytes);
                        WriteInput::Slice { index, offset, bytes: payload.bytes, sums }
                    }
                    NodePush::Finish => WriteInput::Finish,
                    NodePush::Log(push) => panic!("a write takes no {push:?}"),
                };
                core.handle(now, input, &mut self.budget);
            }
            (_, other) => panic!("a client sent {other:?} on stream {stream}"),
        }
    }

    /// Tells a stream's core what its device did.
    fn answered(&mut self, wire: &Wire, device: DeviceId, job: Job) {
        let now = wire.now();
        let Some(served) = self.streams.get_mut(&job.stream) else { return };
        match (&mut served.core, job.what) {
            (Core::Read { core, ticket, charged, held, .. }, What::Read { slice, offset, bytes }) => {
                let extent = self.devices[&device].extents.get(&job.segment);
                let part = extent.and_then(|extent| extent.read(job.segment, job.index, offset, bytes));
                let result = match part {
                    Some(Part::Good(fingerprint)) => {
                        held.insert(slice, Payload { bytes, fingerprint });
                        ReadResult::Good
                    }
                    Some(Part::Corrupt) => ReadResult::Corrupt,
                    None => ReadResult::Gone,
                };
                if result != ReadResult::Good {
                    left(&mut self.admission, ticket, charged, slice);
                }
                core.handle(now, ReadInput::ReadDone { slice, result });
            }
            (Core::Write { core, .. }, What::Write { .. }) => {
                core.handle(now, WriteInput::Written { index: job.index, result: Ok(()) }, &mut self.budget);
            }
            _ => unreachable!("a stream gets the answers to its own requests"),
        }
    }

    /// Carries out what a stream's core asks.
    fn step(&mut self, wire: &mut Wire, stream: StreamId) {
        let Self { number, streams, devices, cache, budget, admission, .. } = self;
        let Some(served) = streams.get_mut(&stream) else { return };
        let device = served.device;
        let disk = devices.get_mut(&device).expect("a stream is opened at a device that is there");
        let used = budget.used_bytes();
        let over = match &mut served.core {
            Core::Read { .. } => served.step_read(wire, *number, stream, disk, cache.as_mut(), admission),
            Core::Write { .. } => served.step_write(wire, *number, stream, disk, budget),
        };
        let wrote = matches!(served.core, Core::Write { .. });
        let freed = budget.used_bytes() < used;
        self.start(wire, device);
        if over && let Some(served) = self.streams.remove(&stream) {
            match &served.core {
                Core::Read { ticket, .. } => self.admission.read_closed(*ticket),
                Core::Write { .. } => self.admission.closed(),
            }
        }
        if wrote && (over || freed) {
            self.feed_starved(wire);
        }
    }

    /// A stream may have found no room: those that write nothing, or are granted nothing, are asked for what they have.
    fn ask_back(&mut self, wire: &mut Wire) {
        let could_yield = |served: &Served| match &served.core {
            Core::Read { core, .. } => core.could_yield(),
            Core::Write { core, .. } => core.could_yield(),
        };
        let idle: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, served)| could_yield(served))
            .map(|(&stream, _)| stream)
            .collect();
        for stream in idle {
            let now = wire.now();
            match self.streams.get_mut(&stream).map(|served| &mut served.core) {
                Some(Core::Read { core, .. }) if self.admission.is_wanted() => {
                    core.handle(now, ReadInput::Wanted);
                }
                Some(Core::Write { core, .. }) => core.handle(now, WriteInput::Tick, &mut self.budget),
                Some(Core::Read { .. }) | None => continue,
            }
            self.step(wire, stream);
        }
    }

    /// Budget came back: streams that wait for it are asked again.
    fn feed_starved(&mut self, wire: &mut Wire) {
        let Self { number, streams, devices, budget, .. } = self;
        let mut over = Vec::new();
        for (&stream, served) in streams {
            let disk = devices.get_mut(&served.device).expect("a stream is opened at a device that is there");
            match &mut served.core {
                Core::Write { core, .. } if core.is_starved() => {
                    core.handle(wire.now(), WriteInput::Tick, budget);
                }
                _ => continue,
            }
            // One that got credit does not end; one that is silent may, others lacking room.
            if served.step_write(wire, *number, stream, disk, budget) {
                over.push(stream);
            }
        }
        for stream in over {
            self.streams.remove(&stream);
            self.admission.closed();
        }
    }
}

impl Served {
    /// Whether the stream is over.
    fn step_read(
        &mut self,
        wire: &mut Wire,
        node: u32,
        stream: StreamId,
        disk: &mut Device,
        mut cache: Option<&mut NodeCache>,
        admission: &mut Admission,
    ) -> bool {
        let Served { client, device, class, core } = self;
        let Core::Read { core, ticket, places, charged, held } = core else { return false };
        let now = wire.now();
        let me = HostId::Node(node);
        let segment_of = |index: BlockIndex| {
            let place = places.iter().find(|(blocks, _)| blocks.contains(index));
            place.expect("the stream has only blocks that were found").1
        };
        // Reads for which there is no room wait for a slice of this stream to leave.
        let next = |core: &mut ReadStream, admission: &mut Admission, ticket: &mut ReadTicket| {
            if let Some(action) = core.poll_but_reads() {
                return Some(action);
            }
            let bytes = core.next_read_bytes()?;
            admission.slice_read(ticket, bytes).then(|| core.poll())?
        };
        while let Some(action) = next(core, admission, ticket) {
            match action {
                ReadAction::Read { slice, index, offset, length, ahead: _ } => {
                    charged.insert(slice, length);
                    let what = What::Read { slice, offset, bytes: length };
                    let job = Job { stream, segment: segment_of(index), index, what };
                    let given = cache.as_mut().and_then(|c| c.give(now, disk.number, disk.bytes_of(&job)));
                    match given {
                        Some(at) => {
                            disk.done.cached_bytes += u64::from(length);
                            wire.at(at, Event::Given { node, device: *device, job });
                        }
                        None => disk.submit(now, *class, job),
                    }
                }
                ReadAction::Send { slice, index, offset } => {
                    let payload = held.remove(&slice).expect("a slice that was read is held");
                    let body = NodeEvent::Slice(Slice { index, offset, sums: Vec::new() });
                    wire.send(me, *client, stream, Message::Event(body, payload));
                    // The interface takes it at its own speed; no kernel buffer is simulated.
                    left(admission, ticket, charged, slice);
                    core.handle(now, ReadInput::Sent { slice });
                }
                ReadAction::Discard { slice } => {
                    held.remove(&slice);
                    left(admission, ticket, charged, slice);
                }
                ReadAction::Withdraw => {
                    for job in disk.withdraw(stream) {
                        if let What::Read { slice, .. } = job.what {
                            left(admission, ticket, charged, slice);
                            let result = ReadResult::Withdrawn;
                            core.handle(now, ReadInput::ReadDone { slice, result });
                        }
                    }
                }
                ReadAction::End(done) => {
                    wire.send(me, *client, stream, Message::End(NodeAnswer::Read(done)));
                    return true;
                }
                ReadAction::Fail(fault) => {
                    wire.send(me, *client, stream, Message::Fail(fault));
                    return true;
                }
            }
        }
        false
    }

    /// Whether the stream is over.
    fn step_write(
        &mut self,
        wire: &mut Wire,
        node: u32,
        stream: StreamId,
        disk: &mut Device,
        budget: &mut Budget,
    ) -> bool {
        let Served { client, class, core: Core::Write { core, open }, .. } = self else { return false };
        let now = wire.now();
        let me = HostId::Node(node);
        while let Some(action) = core.poll() {
            match action {
                WriteAction::Grant(bytes) => wire.send(me, *client, stream, Message::Credit(bytes)),
                WriteAction::Write { index } => {
                    let what = What::Write { bytes: open.block_bytes };
                    disk.submit(now, *class, Job { stream, segment: open.segment, index, what });
                }
                WriteAction::Confirm { blocks } => {
                    let body = NodeEvent::Confirmed { blocks };
                    wire.send(me, *client, stream, Message::Event(body, Payload::default()));
                }
                WriteAction::Withdraw => {
                    for job in disk.withdraw(stream) {
                        let fault = NodeFault::Invalid("withdrawn".to_owned());
                        let input = WriteInput::Written { index: job.index, result: Err(fault) };
                        core.handle(now, input, budget);
                    }
                }
                WriteAction::End { blocks } => {
                    wire.send(me, *client, stream, Message::End(NodeAnswer::Written { blocks }));
                    return true;
                }
                WriteAction::Fail(fault) => {
                    wire.send(me, *client, stream, Message::Fail(fault));
                    return true;
                }
            }
        }
        false
    }
}

/// A slice is not held any more.
fn left(
    admission: &mut Admission,
    ticket: &mut ReadTicket,
    charged: &mut BTreeMap<SliceId, u32>,
    slice: SliceId,
) {
    if let Some(bytes) = charged.remove(&slice) {
        admission.slice_left(ticket, bytes);
    }
}

/// The part of what a piece holds that is wanted; all of it where none is named.
fn wants(want: &Want) -> Option<&IndexRanges> {
    match want {
        Want::All => None,
        Want::Blocks(blocks) => Some(blocks),
    }
}
