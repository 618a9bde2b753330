//! All hosts together, and the loop that runs them.

use crate::{
    ask::{GetAccess, PutAccess},
    cache::{Cache, NodeCache},
    client::{AccessId, ClientHost, Outcome, ReadAccess, WriteAccess},
    device::{Contents, Device, Done, Job, Medium},
    engine::Engine,
    fault::Fault,
    message::{Message, StreamId, flip},
    meta::MetaHost,
    network::{HostId, Link, Network},
    node::NodeHost,
    trace::{Damage, Trace},
};
use core::time::Duration;
use std::collections::BTreeMap;
use steadfast_protocol::{
    ClusterId, DeviceId, NodeId, RequestId, Time,
    layout::SegmentLayout,
    message::{Change, MetaAnswer, MetaFault, MetaRequest, NodeRecord, PAYLOAD_BYTES_MAX, Query},
    policy::Policy,
};

/// Bytes that all write streams of a storage server may have granted or resident, as the real one has it.
const WRITE_BUDGET_BYTES: u64 = 32 << 20;

/// What every device is registered with: nothing here fills one.
const CAPACITY_BYTES: u64 = 1 << 40;

/// What a world begins with.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Everything random is drawn from it.
    pub seed: u64,
    /// How all hosts are linked.
    pub link: Link,
    /// The largest payload of a message: [`PAYLOAD_BYTES_MAX`] as on the wire, or more where it is one event for a whole
    /// block that counts.
    pub payload_bytes_max: u32,
    /// Whether the trace keeps its records.
    pub keep_trace: bool,
}

impl Setup {
    /// Messages as on the wire, and a trace that is hashed and not kept.
    pub fn new(seed: u64, link: Link) -> Self {
        Self { seed, link, payload_bytes_max: PAYLOAD_BYTES_MAX, keep_trace: false }
    }
}

/// What happens.
#[derive(Debug)]
pub(crate) enum Event {
    Begin { client: u32, access: AccessId },
    Wake { client: u32, access: AccessId },
    Silent { client: u32, stream: StreamId },
    Governed { turn: u64 },
    Arrived { from: HostId, to: HostId, stream: StreamId, message: Message },
    Served { node: u32, device: DeviceId, turn: u64 },
    Given { node: u32, device: DeviceId, job: Job },
    Fault(Fault),
}

/// Time, network and trace: what every host uses.
pub(crate) struct Wire {
    engine: Engine<Event>,
    network: Network,
    trace: Trace,
    streams: StreamId,
    payload_bytes_max: u32,
    servers: BTreeMap<DeviceId, u32>,
    /// The message of which a byte is changed, the first being 1; and what that did.
    flip: Option<u64>,
    damage: Damage,
}

impl Wire {
    pub(crate) fn now(&self) -> Time {
        self.engine.now()
    }

    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.engine.at(at, event);
    }

    pub(crate) fn new_stream(&mut self) -> StreamId {
        self.streams += 1;
        self.streams
    }

    pub(crate) fn payload_bytes_max(&self) -> u32 {
        self.payload_bytes_max
    }

    /// The storage server of a device.
    pub(crate) fn server_of(&self, device: DeviceId) -> HostId {
        HostId::Node(self.servers[&device])
    }

    pub(crate) fn send(&mut self, from: HostId, to: HostId, stream: StreamId, mut message: Message) {
        let now = self.engine.now();
        let mut damage = Damage::None;
        if self.flip == Some(self.trace.messages() + 1) {
            damage = if flip(&mut message) { Damage::Payload } else { Damage::Body };
            self.damage = damage;
        }
        self.trace.sent(now, from, to, stream, &message, damage);
        if damage == Damage::Body {
            message = Message::Damaged;
        }
        if let Some(at) = self.network.deliver(now, from, to, message.payload_bytes()) {
            self.engine.at(at, Event::Arrived { from, to, stream, message });
        }
    }
}

/// A cluster and its clients.
pub struct World {
    wire: Wire,
    nodes: Vec<NodeHost>,
    meta: Option<MetaHost>,
    clients: Vec<ClientHost>,
    accesses: Vec<u32>,
    /// Changes made to the metadata from outside.
    governed: u64,
}

impl World {
    /// An empty one.
    pub fn new(setup: Setup) -> Self {
        let wire = Wire {
            engine: Engine::default(),
            network: Network::new(setup.seed, setup.link),
            trace: Trace::new(setup.keep_trace),
            streams: 0,
            payload_bytes_max: setup.payload_bytes_max,
            servers: BTreeMap::new(),
            flip: None,
            damage: Damage::None,
        };
        let (nodes, meta, clients, accesses) = Default::default();
        Self { wire, nodes, meta, clients, accesses, governed: 0 }
    }

    /// A further storage server: its number.
    pub fn add_node(&mut self) -> u32 {
        let number = number(self.nodes.len());
        self.nodes.push(NodeHost::new(number, WRITE_BUDGET_BYTES, self.wire.payload_bytes_max()));
        number
    }

    /// A further device of a storage server.
    ///
    /// # Panics
    /// When there is no such server, or a device of this name.
    pub fn add_device(&mut self, node: u32, device: DeviceId, medium: impl Medium + 'static) {
        let devices = &mut self.nodes[node as usize].devices;
        let before = self.wire.servers.insert(device, node);
        assert!(before.is_none(), "device {device} is there twice");
        let number = u16::try_from(devices.len()).expect("a server has fewer than 2^16 devices");
        devices.insert(device, Device::new(number, Box::new(medium)));
    }

    /// The device is another disk from now on, whose speed nobody has seen, with the same bytes in the same places.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn set_medium(&mut self, device: DeviceId, medium: impl Medium + 'static) {
        self.disk(device).replace(Box::new(medium));
    }

    /// A storage server has a cache from now on, an empty one.
    ///
    /// # Panics
    /// When there is no such server.
    pub fn set_cache(&mut self, node: u32, cache: Cache) {
        self.nodes[node as usize].cache = Some(NodeCache::new(cache));
    }

    /// A further client: its number.
    pub fn add_client(&mut self) -> u32 {
        let number = number(self.clients.len());
        self.clients.push(ClientHost::new(number));
        number
    }

    /// The network, to be changed before the run.
    pub fn network(&mut self) -> &mut Network {
        &mut self.wire.network
    }

    /// Puts a segment's blocks, made from `contents`, where its layout says, without a transfer.
    ///
    /// # Panics
    /// When the layout names a device that is not there.
    pub fn preload(&mut self, layout: &SegmentLayout, contents: u64) {
        for (device, piece) in layout.pieces() {
            let node = self.wire.servers[&device] as usize;
            let disk = self.nodes[node].devices.get_mut(&device).expect("servers have their devices");
            let contents = Contents::Of(contents);
            let count = piece.blocks.count();
            disk.create(piece.segment, piece.version, layout.block_bytes, contents, count);
            disk.hold(piece.segment, &piece.blocks);
        }
    }

    /// A metadata server that works `service` on each request, and knows all storage servers and devices there are.
    ///
    /// # Errors
    /// What stands against a registration.
    pub fn add_meta(&mut self, service: Duration) -> Result<(), MetaFault> {
        self.meta = Some(MetaHost::new(ClusterId(1), service));
        for (node, host) in (0..).zip(&self.nodes) {
            let devices = host.devices.keys().map(|device| (*device, CAPACITY_BYTES)).collect();
            let (name, site) = (NodeId(node), String::new());
            let address = format!("node-{node}:1");
            let record = NodeRecord { node: name, cluster: None, address, site, devices };
            let meta = self.meta.as_mut().expect("made above");
            let id = RequestId { client: 0, count: 1 << 32 | u64::try_from(node).expect("few nodes") };
            let change = Change::RegisterNode(record);
            meta.govern(Time(0), MetaRequest::Change { id, change })?;
        }
        Ok(())
    }

    /// Asks the metadata server without a message: what an experiment begins with, and looks at in the end.
    ///
    /// # Errors
    /// What stands against the request.
    ///
    /// # Panics
    /// When there is no metadata server.
    pub fn govern(&mut self, change: Change) -> Result<MetaAnswer, MetaFault> {
        self.governed += 1;
        let id = RequestId { client: 0, count: self.governed };
        let now = self.wire.now();
        self.governor().govern(now, MetaRequest::Change { id, change })
    }

    /// Looks at the metadata without a message.
    ///
    /// # Errors
    /// What stands against the query.
    ///
    /// # Panics
    /// When there is no metadata server.
    pub fn ask(&mut self, query: Query) -> Result<MetaAnswer, MetaFault> {
        let now = self.wire.now();
        self.governor().govern(now, MetaRequest::Ask(query))
    }

    /// Makes a bucket, without a message.
    ///
    /// # Errors
    /// When its policy cannot be met here.
    ///
    /// # Panics
    /// When there is no metadata server.
    pub fn create_bucket(&mut self, bucket: &str, policy: Policy) -> Result<(), MetaFault> {
        self.govern(Change::CreateBucket { bucket: bucket.to_owned(), policy }).map(|_| ())
    }

    fn governor(&mut self) -> &mut MetaHost {
        self.meta.as_mut().expect("the world has a metadata server")
    }

    /// `client` begins to read an object at `at`.
    pub fn get(&mut self, client: u32, at: Time, access: GetAccess) -> AccessId {
        let id = self.accesses.len() as AccessId;
        self.accesses.push(client);
        self.wire.at(at, Event::Begin { client, access: id });
        self.clients[client as usize].get(id, at, access);
        id
    }

    /// `client` begins to write an object at `at`.
    pub fn put(&mut self, client: u32, at: Time, access: PutAccess) -> AccessId {
        let id = self.accesses.len() as AccessId;
        self.accesses.push(client);
        self.wire.at(at, Event::Begin { client, access: id });
        self.clients[client as usize].put(id, at, access);
        id
    }

    /// `client` begins to read a segment at `at`.
    pub fn read(&mut self, client: u32, at: Time, access: ReadAccess) -> AccessId {
        let id = self.accesses.len() as AccessId;
        self.accesses.push(client);
        self.wire.at(at + access.opening, Event::Begin { client, access: id });
        self.clients[client as usize].read(id, at, access);
        id
    }

    /// `client` begins to write a segment at `at`.
    pub fn write(&mut self, client: u32, at: Time, access: WriteAccess) -> AccessId {
        let id = self.accesses.len() as AccessId;
        self.accesses.push(client);
        self.wire.at(at + access.opening, Event::Begin { client, access: id });
        self.clients[client as usize].write(id, at, access);
        id
    }

    /// A fault at `at`.
    pub fn inject(&mut self, at: Time, fault: Fault) {
        self.wire.at(at, Event::Fault(fault));
    }

    /// One byte of message `number`, the first being 1, changes on the way: of its payload where it has one, else of its
    /// body.
    pub fn flip(&mut self, number: u64) {
        self.wire.flip = Some(number);
    }

    /// What that did; nothing where the run has fewer messages.
    pub fn damage(&self) -> Damage {
        self.wire.damage
    }

    /// Runs until nothing is left to happen: all accesses are over, and what they left on the way has arrived.
    pub fn run(&mut self) {
        while let Some(event) = self.wire.engine.take() {
            self.handle(event);
        }
    }

    /// What became of an access.
    ///
    /// # Panics
    /// When there is none of this name.
    pub fn outcome(&self, access: AccessId) -> &Outcome {
        let client = self.accesses[usize::try_from(access).expect("accesses are counted in memory")];
        &self.clients[client as usize].outcomes[&access]
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.wire.servers.keys().copied()
    }

    /// What a device has done.
    pub fn done(&self, device: DeviceId) -> Done {
        let node = self.wire.servers[&device] as usize;
        self.nodes[node].devices[&device].done
    }

    /// Requests that all devices' media modelled, those of background loads included.
    pub fn modelled_requests(&self) -> u64 {
        self.nodes.iter().flat_map(|node| node.devices.values()).map(Device::modelled_requests).sum()
    }

    /// How fast its server has seen a device read, in bytes per second, as it tells others; 0 where it has not.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn read_bytes_per_s(&self, device: DeviceId) -> u64 {
        let node = self.wire.servers[&device] as usize;
        self.nodes[node].devices[&device].bytes_per_s(false)
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.wire.now()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.wire.engine.scheduled()
    }

    /// Every message sent.
    pub fn trace(&self) -> &Trace {
        &self.wire.trace
    }

    fn handle(&mut self, event: Event) {
        let wire = &mut self.wire;
        match event {
            Event::Begin { client, access } => self.clients[client as usize].begin(wire, access),
            Event::Wake { client, access } => self.clients[client as usize].wake(wire, access),
            Event::Silent { client, stream } => self.clients[client as usize].unanswered(wire, stream),
            Event::Governed { turn } => {
                self.meta.as_mut().expect("it is there that asked for it").governed(wire, turn);
            }
            Event::Arrived { from, to: HostId::Meta, stream, message } => match &mut self.meta {
                Some(meta) => meta.heard(wire, from, stream, message),
                None => wire.send(HostId::Meta, from, stream, Message::Lost),
            },
            Event::Arrived { to: HostId::Client(client), stream, message, .. } => {
                self.clients[client as usize].heard(wire, stream, message);
            }
            Event::Arrived { from, to: HostId::Node(node), stream, message } => {
                self.nodes[node as usize].heard(wire, from, stream, message);
            }
            Event::Served { node, device, turn } => self.nodes[node as usize].served(wire, device, turn),
            Event::Given { node, device, job } => self.nodes[node as usize].given(wire, device, job),
            Event::Fault(fault) => self.fault(fault),
        }
    }

    fn fault(&mut self, fault: Fault) {
        let now = self.wire.now();
        match fault {
            Fault::Crash { node } => self.nodes[node as usize].crash(&mut self.wire),
            Fault::Restart { node } => self.nodes[node as usize].alive = true,
            Fault::CrashMeta => self.meta.iter_mut().for_each(|meta| meta.crash(&mut self.wire)),
            Fault::RestartMeta => self.meta.iter_mut().for_each(|meta| meta.restart(now)),
            Fault::Stall { device } => self.disk(device).stall(now),
            Fault::Resume { device } => {
                let disk = self.disk(device);
                let ends = disk.resume(now);
                let turn = disk.turn;
                let node = self.wire.servers[&device];
                match ends {
                    Some(ends) => self.wire.at(ends, Event::Served { node, device, turn }),
                    None => self.nodes[node as usize].start(&mut self.wire, device),
                }
            }
            Fault::Slow { device, factor } => self.disk(device).slow(factor),
            Fault::Corrupt { device, segment, index } => {
                let node = self.wire.servers[&device] as usize;
                self.nodes[node].corrupt(device, segment, index);
            }
            Fault::Cut { one, other } => self.wire.network.set_cut(one, other, true),
            Fault::Mend { one, other } => self.wire.network.set_cut(one, other, false),
        }
    }

    fn disk(&mut self, device: DeviceId) -> &mut Device {
        let node = self.wire.servers[&device] as usize;
        self.nodes[node].devices.get_mut(&device).expect("servers have their devices")
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a world has fewer than 2^32 hosts")
}
