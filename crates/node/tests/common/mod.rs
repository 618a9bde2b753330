//! A metadata server of a few lines, a client of a few lines, and a node to talk to.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

use bytes::Bytes;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use steadfast_disk::{Granule, checksum};
use steadfast_net::{CallError, Connection, Event, Open, Options, Server, Stream, connect};
use steadfast_node::{Node, NodeOptions};
use steadfast_protocol::{
    BlockIndex, ClusterId, DeviceId, Epoch, IndexRanges, IntentId, NodeId, SegmentId, Version,
    message::{
        self, Change, Fault, Heartbeat, Hello, MetaAnswer, MetaFault, MetaRequest, NodeActivity, NodeAnswer,
        NodeEvent, NodePush, NodeRecord, NodeRequest, NodeState, NodeStatus, Query, ReadDone, ReadPiece,
        Registry, Role, SegmentState, Slice, VERSION, Want, WriteOpen,
    },
    serve::SweepOptions,
};
use tokio::{sync::watch, task::JoinHandle};

/// How long something may take that is soon done: much longer than a busy machine holds anybody up.
pub const WITHIN: Duration = Duration::from_secs(60);

/// A node that has what is `taken`.
pub const OTHER: NodeId = NodeId(9);

/// What the metadata server was told, and what it answers.
#[derive(Default)]
pub struct Told {
    pub records: Vec<NodeRecord>,
    pub known: bool,
    pub last: Option<Heartbeat>,
    pub states: BTreeMap<SegmentId, SegmentState>,
    pub refuses: Option<Fault>,
    /// A device that it registers no more.
    pub removed: Option<DeviceId>,
    /// Devices that another node has, which is alive.
    pub taken: Vec<DeviceId>,
    /// Of those, how often one was asked for.
    pub refused_as_taken: u64,
    /// Devices that were not removed from the cluster, where it is asked about them.
    pub missing: Vec<DeviceId>,
    pub asked: u64,
}

pub struct FakeMeta {
    pub address: String,
    pub told: Arc<Mutex<Told>>,
    pub beats: watch::Receiver<u64>,
    server: JoinHandle<()>,
}

impl Drop for FakeMeta {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeMeta {
    pub async fn start(cluster: u128) -> Self {
        Self::start_at("127.0.0.1:0", cluster).await
    }

    pub async fn start_at(address: &str, cluster: u128) -> Self {
        let server = Server::bind(address).await.unwrap();
        let address = server.local_addr().unwrap().to_string();
        let told = Arc::new(Mutex::new(Told::default()));
        let (beat, beats) = watch::channel(0u64);
        let beat = Arc::new(beat);
        let hello =
            Hello { version: VERSION, features: 0, role: Role::Meta, cluster: Some(ClusterId(cluster)) };
        let handler = {
            let told = told.clone();
            move |connected: steadfast_net::Connected| {
                let (told, beat) = (told.clone(), beat.clone());
                async move {
                    let mut incoming = connected.incoming;
                    while let Some((opened, stream)) = incoming.next().await {
                        match answer(&told, &beat, &opened.body) {
                            Ok(answer) => stream.end(message::encode(&answer)).unwrap(),
                            Err(fault) => stream.fail(&fault),
                        }
                    }
                }
            }
        };
        let server = tokio::spawn(server.serve(hello, Options::default(), handler));
        Self { address, told, beats, server }
    }

    pub fn set(&self, segment: u64, state: SegmentState) {
        self.told.lock().unwrap().states.insert(SegmentId(segment), state);
    }
}

fn answer(told: &Mutex<Told>, beat: &watch::Sender<u64>, body: &[u8]) -> Result<MetaAnswer, Fault> {
    let mut told = told.lock().unwrap();
    match message::decode::<MetaRequest>(body).unwrap() {
        MetaRequest::Change { change: Change::RegisterNode(record), .. } => {
            if let Some(fault) = told.refuses.clone() {
                return Err(fault);
            }
            if let Some(device) = told.removed
                && record.devices.iter().any(|entry| entry.0 == device)
            {
                return Err(Fault::Meta(MetaFault::DeviceRemoved(device)));
            }
            let of_other = |device: &DeviceId| record.devices.iter().any(|entry| entry.0 == *device);
            if let Some(device) = told.taken.iter().copied().find(of_other) {
                told.refused_as_taken += 1;
                return Err(Fault::Meta(MetaFault::DeviceTaken { device, node: OTHER }));
            }
            told.records.push(record);
            told.known = true;
            Ok(MetaAnswer::Done)
        }
        MetaRequest::Heartbeat(heartbeat) => {
            told.last = Some(heartbeat);
            beat.send_modify(|count| *count += 1);
            Ok(MetaAnswer::Heard { registered: told.known })
        }
        MetaRequest::Ask(Query::SegmentStates { segments, .. }) => {
            told.asked += 1;
            let states: Option<Vec<_>> =
                segments.iter().map(|segment| told.states.get(segment).cloned()).collect();
            states.map(MetaAnswer::SegmentStates).ok_or(Fault::Protocol("it does not know".to_owned()))
        }
        MetaRequest::Ask(Query::Registry) => {
            let state = |record: &NodeRecord| NodeState {
                record: record.clone(),
                alive: true,
                silent_ms: None,
                devices: Vec::new(),
                activity: NodeActivity::default(),
            };
            let other = NodeRecord {
                node: OTHER,
                cluster: None,
                address: "elsewhere:1".to_owned(),
                site: String::new(),
                devices: told.taken.iter().map(|&device| (device, 1 << 30)).collect(),
            };
            let nodes = told.records.last().into_iter().chain([&other]).map(state).collect();
            Ok(MetaAnswer::Registry(Registry { nodes, ..Registry::default() }))
        }
        MetaRequest::Ask(Query::RemovedDevices { mut devices }) => {
            devices.retain(|device| !told.missing.contains(device));
            Ok(MetaAnswer::RemovedDevices(devices))
        }
        other => panic!("a node does not ask this: {other:?}"),
    }
}

pub struct Cluster {
    pub meta: FakeMeta,
    pub dir: tempfile::TempDir,
}

impl Cluster {
    pub async fn start() -> Self {
        Self { meta: FakeMeta::start(77).await, dir: tempfile::tempdir().unwrap() }
    }

    pub fn dirs(&self, count: usize) -> Vec<PathBuf> {
        (0..count).map(|n| self.dir.path().join(format!("d{n}"))).collect()
    }

    pub fn options(&self, devices: usize) -> NodeOptions {
        let mut options =
            NodeOptions::new(self.dirs(devices), &self.meta.address, "127.0.0.1:0".parse().unwrap());
        options.capacity_bytes = Some(64 << 20);
        options.heartbeat = Duration::from_millis(20);
        // Off, unless a test shortens it.
        options.sweep =
            SweepOptions { interval: Duration::from_secs(3600), age_min: Duration::from_secs(3600) };
        options
    }
}

pub struct Client {
    pub connection: Connection,
    stopped: AtomicBool,
}

pub type Blocks = BTreeMap<BlockIndex, Vec<u8>>;

/// A write as its opener sees it.
pub struct Writer {
    pub stream: Stream,
    pub open: WriteOpen,
    pub credit: u64,
    pub confirmed: IndexRanges,
}

/// All or some blocks of a segment as the tests write it.
pub fn piece(segment: u64, want: Want) -> ReadPiece {
    ReadPiece { segment: SegmentId(segment), version: Version(9), want }
}

impl Client {
    pub async fn to(node: &Node) -> Self {
        let hello =
            Hello { version: VERSION, features: 0, role: Role::Client, cluster: Some(node.cluster()) };
        let connected = connect(&node.address().to_string(), hello, &Options::default()).await.unwrap();
        Self { connection: connected.connection, stopped: AtomicBool::new(false) }
    }

    pub async fn call(&self, request: &NodeRequest, epoch: u64) -> Result<NodeAnswer, Fault> {
        let open = Open {
            body: message::encode(request),
            epoch: Epoch(epoch),
            deadline: Some(WITHIN),
            ..Open::default()
        };
        match self.connection.call(open).await {
            Ok((body, _)) => Ok(message::decode(&body).unwrap()),
            Err(CallError::Fault(fault)) => Err(fault),
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn status(&self) -> NodeStatus {
        match self.call(&NodeRequest::Status, 0).await {
            Ok(NodeAnswer::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for the status until it is as wanted.
    pub async fn status_when(&self, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        let until = async {
            loop {
                let status = self.status().await;
                if wanted(&status) {
                    return status;
                }
            }
        };
        tokio::time::timeout(WITHIN, until).await.unwrap_or_else(|_| panic!("never {what}"))
    }

    pub async fn emulate(&self, device: DeviceId, spec: &str) -> Result<NodeAnswer, Fault> {
        self.call(&NodeRequest::Emulate { device, spec: spec.to_owned() }, 0).await
    }

    pub async fn describe(&self, device: DeviceId, segment: u64) -> Result<(IndexRanges, bool), Fault> {
        match self.call(&NodeRequest::Describe { device, segment: SegmentId(segment) }, 0).await? {
            NodeAnswer::Described { blocks, sealed } => Ok((blocks, sealed)),
            other => panic!("{other:?}"),
        }
    }

    pub async fn writer(&self, open: WriteOpen) -> Writer {
        let body = message::encode(&NodeRequest::Write(open.clone()));
        let stream = self.connection.open(Open { body, epoch: Epoch(1), ..Open::default() }).unwrap();
        Writer { stream, open, credit: 0, confirmed: IndexRanges::new() }
    }

    /// Writes blocks and gives what the node says is durable.
    pub async fn write(&self, open: WriteOpen, blocks: &Blocks) -> Result<IndexRanges, Fault> {
        let mut writer = self.writer(open).await;
        for (&index, block) in blocks {
            writer.push(index, block).await?;
        }
        writer.finish().await
    }

    pub fn open_read(&self, device: DeviceId, segment: u64, want: Want, credit: u32) -> Stream {
        self.open_read_pieces(device, vec![piece(segment, want)], credit)
    }

    pub fn open_read_pieces(&self, device: DeviceId, pieces: Vec<ReadPiece>, credit: u32) -> Stream {
        let body = message::encode(&NodeRequest::Read { device, pieces });
        self.connection.open(Open { body, credit, ..Open::default() }).unwrap()
    }

    /// A stream for any request.
    pub fn open_request(&self, request: &NodeRequest, credit: u32) -> Stream {
        let body = message::encode(request);
        self.connection.open(Open { body, credit, ..Open::default() }).unwrap()
    }

    /// Takes all that a stream sends; how many payload bytes.
    pub async fn drain(&self, stream: &mut Stream) -> Result<u64, Fault> {
        let mut bytes = 0;
        loop {
            match stream.recv().await.unwrap() {
                Event::Data { payload, .. } => bytes += payload.len() as u64,
                Event::End(_) => return Ok(bytes),
                Event::Failed(fault) => return Err(fault),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Tells those who ask with [`Client::enough`] to stop.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub fn enough(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Reads blocks, checking order and checksums of every slice.
    pub async fn read(
        &self,
        device: DeviceId,
        segment: u64,
        want: Want,
        granule: Granule,
    ) -> Result<(Blocks, ReadDone), Fault> {
        self.read_pieces(device, vec![piece(segment, want)], granule, |_| segment).await
    }

    /// The same of several pieces; `segment_of` says under which a block is stored.
    pub async fn read_pieces(
        &self,
        device: DeviceId,
        pieces: Vec<ReadPiece>,
        granule: Granule,
        segment_of: impl Fn(BlockIndex) -> u64,
    ) -> Result<(Blocks, ReadDone), Fault> {
        let mut stream = self.open_read_pieces(device, pieces, 300 << 10);
        let mut blocks = Blocks::new();
        loop {
            match stream.recv().await.unwrap() {
                Event::Data { body, payload } => {
                    let NodeEvent::Slice(slice) = message::decode(&body).unwrap() else { panic!() };
                    let block = blocks.entry(slice.index).or_default();
                    assert_eq!(block.len(), slice.offset as usize, "slices of a block come in order");
                    let first = slice.offset / granule.bytes();
                    let (segment, version) = (SegmentId(segment_of(slice.index)), Version(9));
                    checksum::verify(&payload, granule, segment, version, slice.index, first, &slice.sums)
                        .unwrap();
                    block.extend_from_slice(&payload);
                    stream.grant(payload.len() as u32);
                }
                Event::End(body) => {
                    let NodeAnswer::Read(done) = message::decode(&body).unwrap() else { panic!() };
                    return Ok((blocks, done));
                }
                Event::Failed(fault) => return Err(fault),
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Writer {
    /// Takes one event; the answer, when it is the last.
    pub async fn event(&mut self) -> Option<Result<IndexRanges, Fault>> {
        let event = tokio::time::timeout(WITHIN, self.stream.recv());
        match event.await.expect("an answer in time").unwrap() {
            Event::Credit(bytes) => self.credit += u64::from(bytes),
            Event::Data { body, .. } => {
                let NodeEvent::Confirmed { blocks } = message::decode(&body).unwrap() else { panic!() };
                for index in blocks.iter() {
                    assert!(self.confirmed.insert(index), "block {index} was confirmed twice");
                }
            }
            Event::End(body) => {
                let NodeAnswer::Written { blocks } = message::decode(&body).unwrap() else { panic!() };
                assert_eq!(blocks, self.confirmed);
                return Some(Ok(blocks));
            }
            Event::Failed(fault) => return Some(Err(fault)),
            other => panic!("{other:?}"),
        }
        None
    }

    pub async fn push(&mut self, index: BlockIndex, block: &[u8]) -> Result<(), Fault> {
        let granule = Granule::new(self.open.granule_bytes).unwrap();
        let sums = checksum::sums(block, granule, self.open.segment, self.open.version, index);
        let slice_bytes = 256 << 10;
        for (position, payload) in block.chunks(slice_bytes).enumerate() {
            let offset = position * slice_bytes;
            let first = offset / granule.bytes() as usize;
            let count = payload.len().div_ceil(granule.bytes() as usize);
            self.slice(index, offset as u32, payload, sums[first..first + count].to_vec()).await?;
        }
        Ok(())
    }

    pub async fn slice(
        &mut self,
        index: BlockIndex,
        offset: u32,
        payload: &[u8],
        sums: Vec<u32>,
    ) -> Result<(), Fault> {
        while self.credit < payload.len() as u64 {
            if let Some(answer) = self.event().await {
                return Err(answer.expect_err("it ends only after Finish"));
            }
        }
        self.credit -= payload.len() as u64;
        let body = message::encode(&NodePush::Slice(Slice { index, offset, sums }));
        self.stream.send(body, Bytes::copy_from_slice(payload)).await.unwrap();
        Ok(())
    }

    pub async fn finish(&mut self) -> Result<IndexRanges, Fault> {
        self.stream.send(message::encode(&NodePush::Finish), Bytes::new()).await.unwrap();
        self.answer().await
    }

    pub async fn answer(&mut self) -> Result<IndexRanges, Fault> {
        loop {
            if let Some(answer) = self.event().await {
                return answer;
            }
        }
    }
}

pub fn open(device: DeviceId, segment: u64, block_bytes: u32, granule: Granule) -> WriteOpen {
    WriteOpen {
        device,
        segment: SegmentId(segment),
        version: Version(9),
        intent: IntentId(1),
        block_bytes,
        granule_bytes: granule.bytes(),
        expected_blocks: 16,
        reserve_bytes: None,
    }
}

/// Blocks whose bytes tell segment and index.
pub fn blocks(segment: u64, indices: impl IntoIterator<Item = BlockIndex>, bytes: usize) -> Blocks {
    // SplitMix64's mixing, so that no two places hold the same bytes.
    let word = |index: u32, at: u64| {
        let mut z = (segment << 48 | u64::from(index) << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ z >> 27
    };
    let byte = |index: u32, at: usize| (word(index, at as u64 / 8) >> (at % 8 * 8)) as u8;
    indices.into_iter().map(|index| (index, (0..bytes).map(|at| byte(index, at)).collect())).collect()
}

/// Waits for a condition that the metadata server sees at heartbeats.
pub async fn told_when(meta: &FakeMeta, what: &str, wanted: impl Fn(&Told) -> bool) {
    let mut beats = meta.beats.clone();
    let until = async {
        loop {
            if wanted(&meta.told.lock().unwrap()) {
                return;
            }
            beats.changed().await.unwrap();
        }
    };
    tokio::time::timeout(WITHIN, until).await.unwrap_or_else(|_| panic!("never {what}"));
}
