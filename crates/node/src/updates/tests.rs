//! The hosts of a segment's chunks on media that lose what was not flushed: an update that is answered is there after a power loss at
//! that moment, at its data chunk and at every parity chunk; and what comes back after power losses is level.
//!
//! One server has all devices, and speaks to itself over loopback. In each of its lives the flushes of another device take long, so
//! that whoever does not wait for them is seen to.

mod ends;
mod fences;
mod logs;
mod merges;
mod reserves;
mod returned;
mod room;
mod turns;

use super::Updates as Hosts;
use crate::{
    devices::ServedDevice,
    membership::{Meta, hello},
    node::connection,
    roster::Roster,
    served::Served,
    service::Service,
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    io::IoSlice,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, RwLock},
    time::Duration,
};
use steadfast_disk::{
    AlignedBuf, Device, ExtentSpec, FormatOptions, Granule, Lane, LaneConfig, Medium, Op, OpError, OpOutput,
    Priority, Updates, checksum,
    media::{Counters, CrashMedium, MediumError},
};
use steadfast_net::{Options, Pool, Server};
use steadfast_protocol::{
    ClusterId, DeviceId, Epoch, NodeId, SegmentId, Version,
    layout::{CodeKind, CodeSpec, Holder, PARITY_GRANULE_BYTES, ParityGeometry, SegmentLayout},
    message::{
        self, Fault, MetaAnswer, MetaRequest, NodeActivity, NodeRecord, NodeState, Query, RefusalReason,
        Registry, Role,
    },
    serve::{
        AdmissionPolicy, Limits,
        parity_log::{Difference, Fold, Haste, ParityOf},
    },
};
use tokio::{sync::mpsc, task::JoinHandle, task::JoinSet};

const SEGMENT: SegmentId = SegmentId(7);
/// Another one, whose data lies where the first has parity, and the other way round.
const CROSSED: SegmentId = SegmentId(8);
/// One of which a data chunk was moved alone, and so not as it was stored.
const MOVED: SegmentId = SegmentId(9);
const VERSION: Version = Version(1);
const EPOCH: Epoch = Epoch(1);
const CLUSTER: ClusterId = ClusterId(1);
const NODE: NodeId = NodeId(1);
const SHAPE: ParityGeometry = ParityGeometry { chunks: 4, data: 2, blocks: 4, block_bytes: 16 << 10 };
/// The smallest journal that takes updates.
const JOURNAL_BYTES: u64 = 512 << 10;
const CAPACITY: u64 = 2 << 20;
/// A log that is full after about ten records.
const RESERVE_BYTES: u64 = 128 << 10;
const UPDATE_BYTES_MAX: u64 = 6000;
/// Updates of one life of the server that are waited for; and more, that a power loss comes before.
const AWAITED: u64 = 24;
const LEFT: u64 = 6;
const PARALLEL: usize = 6;
/// One for each device.
const LIVES: u32 = SHAPE.chunks;
/// Many times what an update takes besides.
const SLOW_FLUSH: Duration = Duration::from_millis(20);

/// SplitMix64: numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// A medium whose flushes may take long, and a part of which may not be read. While somebody has the power switch it does nothing.
struct Slow {
    memory: Arc<CrashMedium>,
    power: Arc<RwLock<()>>,
    flush_takes: Duration,
    unreadable: Arc<Mutex<Range<u64>>>,
}

impl Slow {
    fn on<R>(&self, operation: impl FnOnce(&CrashMedium) -> R) -> R {
        let _on = self.power.read().unwrap();
        operation(&self.memory)
    }
}

impl Medium for Slow {
    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let unreadable = self.unreadable.lock().unwrap().clone();
        if offset < unreadable.end && unreadable.start < offset + buf.len() as u64 {
            return Err(MediumError::Io { kind: std::io::ErrorKind::Other, offset });
        }
        self.on(|memory| memory.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.on(|memory| memory.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        self.on(|memory| memory.write_vectored_at(offset, bufs))
    }

    fn flush(&self) -> Result<(), MediumError> {
        std::thread::sleep(self.flush_takes);
        self.on(CrashMedium::flush)
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.on(|memory| memory.allocate(range))
    }

    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.on(|memory| memory.prepare(range))
    }

    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.on(|memory| memory.trim(range))
    }

    fn counters(&self) -> Counters {
        self.memory.counters()
    }

    fn describe(&self) -> String {
        self.memory.describe()
    }
}

fn device_of(chunk: u32) -> DeviceId {
    DeviceId(10 + u128::from(chunk))
}

/// The chunk of a segment that lies on the device of a chunk of [`SEGMENT`], and where that of it does.
fn crossed(segment: SegmentId, chunk: u32) -> u32 {
    if segment == CROSSED { (chunk + SHAPE.data) % SHAPE.chunks } else { chunk }
}

fn layout(segment: SegmentId) -> SegmentLayout {
    let holder = |chunk| {
        let device = device_of(crossed(segment, chunk));
        Holder::whole(device, segment, VERSION, SHAPE.blocks_of(chunk).into())
    };
    let mut layout = SegmentLayout {
        segment,
        version: VERSION,
        epoch: EPOCH,
        length: SHAPE.capacity_bytes(),
        code: CodeSpec {
            kind: CodeKind::ReedSolomon { data: SHAPE.data, parity: SHAPE.parity() },
            originals: SHAPE.originals(),
            seed: 0,
        },
        block_bytes: SHAPE.block_bytes,
        granule_bytes: PARITY_GRANULE_BYTES,
        holders: (0..SHAPE.chunks).map(holder).collect(),
    };
    if segment == MOVED {
        let piece = &mut layout.holders[0].pieces[0];
        (piece.segment, piece.version) = (SegmentId(MOVED.0 + 1), Version(VERSION.0 + 1));
    }
    layout
}

/// A device with a chunk of zeros, as a power loss after the put leaves it.
fn stored(chunk: u32, reserve_bytes: u64) -> Vec<u8> {
    let medium = Arc::new(CrashMedium::new(CAPACITY));
    let options = FormatOptions {
        checkpoint_bytes: Some(JOURNAL_BYTES),
        journal_bytes: Some(JOURNAL_BYTES),
        ..FormatOptions::new(CLUSTER, device_of(chunk))
    };
    Device::format(&*medium, options).unwrap();
    let mut device = Device::open(medium.clone(), None).unwrap();
    store(&mut device, SEGMENT, chunk, reserve_bytes);
    drop(device);
    medium.image()
}

/// A chunk of zeros.
fn store(device: &mut Device, segment: SegmentId, chunk: u32, reserve_bytes: u64) {
    let reserve_bytes = if chunk < SHAPE.data { 0 } else { reserve_bytes };
    let spec = ExtentSpec {
        segment,
        version: VERSION,
        epoch: EPOCH,
        block_bytes: SHAPE.block_bytes,
        granule: Granule::KIB_4,
        expected_blocks: SHAPE.blocks,
        updates: Some(Updates { reserve_bytes }),
    };
    device.create_extent(spec).unwrap();
    let block = vec![0; SHAPE.block_bytes as usize];
    for index in SHAPE.blocks_of(chunk) {
        let sums = checksum::sums(&block, Granule::KIB_4, segment, VERSION, index);
        device.write_block(segment, EPOCH, index, &block, &sums).unwrap();
    }
    device.flush().unwrap();
}

/// A metadata server that knows all segments and one server.
async fn metadata(address: String) -> (String, JoinHandle<()>) {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let own = server.local_addr().unwrap().to_string();
    let answer = move |body: &[u8]| match message::decode::<MetaRequest>(body).unwrap() {
        MetaRequest::Ask(Query::Layout { segment }) => MetaAnswer::Layout(Some(layout(segment))),
        MetaRequest::Ask(Query::Registry) => {
            let record = NodeRecord {
                node: NODE,
                cluster: Some(CLUSTER),
                address: address.clone(),
                site: String::new(),
                devices: (0..SHAPE.chunks).map(|chunk| (device_of(chunk), CAPACITY)).collect(),
            };
            let (devices, activity) = (Vec::new(), NodeActivity::default());
            let nodes = vec![NodeState { record, alive: true, silent_ms: Some(0), devices, activity }];
            MetaAnswer::Registry(Registry { nodes, ..Registry::default() })
        }
        other => panic!("a host does not ask this: {other:?}"),
    };
    let answer = Arc::new(answer);
    let serving = server.serve(hello(Role::Meta, Some(CLUSTER)), Options::default(), move |connected| {
        let answer = answer.clone();
        async move {
            let mut incoming = connected.incoming;
            while let Some((opened, stream)) = incoming.next().await {
                // One that was lost needs no answer.
                let _ = stream.end(message::encode(&answer(&opened.body)));
            }
        }
    });
    (own, tokio::spawn(serving))
}

/// A server with all devices, until it is dropped or loses power.
struct Life {
    media: Vec<Arc<CrashMedium>>,
    power: Arc<RwLock<()>>,
    service: Arc<Service>,
    tasks: Vec<JoinHandle<()>>,
}

impl Life {
    /// From these images; the flushes of the device of chunk `slow` take long.
    async fn begin(images: Vec<Vec<u8>>, slow: u32) -> Self {
        let (power, mut media, mut devices): (Arc<RwLock<()>>, Vec<_>, Vec<_>) = Default::default();
        for (image, chunk) in images.into_iter().zip(0..) {
            let memory = Arc::new(CrashMedium::from_image(image));
            let flush_takes = if chunk == slow { SLOW_FLUSH } else { Duration::ZERO };
            let (power, unreadable) = (power.clone(), Arc::default());
            let medium = Slow { memory: memory.clone(), power, flush_takes, unreadable };
            let device = Device::open(Arc::new(medium), Some(CLUSTER)).unwrap();
            let lane = Lane::spawn(device, LaneConfig::default()).unwrap();
            let (id, policy) = (device_of(chunk), AdmissionPolicy::default());
            devices.push(ServedDevice::new(id, PathBuf::new(), lane, None, policy));
            media.push(memory);
        }
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let (address, metadata) = metadata(server.local_addr().unwrap().to_string()).await;
        let meta = Arc::new(Meta::new(&address, NODE, CLUSTER, &Options::default(), 1));
        let pool = Pool::new(hello(Role::Node(NODE), Some(CLUSTER)), Options::default());
        let hosts = Arc::new(Hosts::new(meta, pool));
        let (wish, _) = mpsc::channel(1);
        let served = Served::new(devices, Arc::new(Roster::new(&[])), Duration::ZERO);
        let service = Arc::new(Service::new(served, hosts, wish, Limits::default(), (32 << 20, 0)));
        let serving = {
            let service = service.clone();
            let greeting = hello(Role::Node(NODE), Some(CLUSTER));
            let serving = server
                .serve(greeting, Options::default(), move |connected| connection(service.clone(), connected));
            tokio::spawn(serving)
        };
        Self { media, power, service, tasks: vec![serving, metadata] }
    }

    fn device(&self, chunk: u32) -> Arc<ServedDevice> {
        self.service.device(device_of(chunk)).unwrap()
    }

    /// What each medium has if power is lost now: what was flushed, and of the rest the sectors that `survives` says, by chunk.
    fn power_loss(&self, mut survives: impl FnMut(usize) -> bool) -> Vec<Vec<u8>> {
        let _off = self.power.write().unwrap();
        let media = self.media.iter().enumerate();
        media.map(|(chunk, medium)| medium.crash_image(medium.len(), |_, _| survives(chunk))).collect()
    }

    async fn end(self) {
        self.service.updates.stop().await;
        self.tasks.iter().for_each(JoinHandle::abort);
        let service = self.service.clone();
        let closed = tokio::task::spawn_blocking(move || {
            for device in service.devices.all() {
                device.lane.shutdown();
            }
        });
        closed.await.unwrap();
    }
}

/// An update, and its version where it was answered.
#[derive(Clone)]
struct Update {
    chunk: u32,
    offset: u64,
    bytes: Bytes,
    version: Option<u64>,
}

fn drawn(numbers: &mut Numbers) -> Update {
    let chunk = numbers.below(SHAPE.data.into()) as u32;
    // Half of them in the first granules, so that they meet.
    let span = [SHAPE.chunk_bytes(), 3 * u64::from(PARITY_GRANULE_BYTES)][numbers.below(2) as usize];
    let offset = numbers.below(span);
    let length = 1 + numbers.below(UPDATE_BYTES_MAX.min(SHAPE.chunk_bytes() - offset));
    let bytes = (0..length).map(|_| numbers.below(256) as u8).collect();
    Update { chunk, offset, bytes, version: None }
}

async fn make(life: &Life, update: &Update) -> Result<u64, Fault> {
    let (device, bytes) = (life.device(update.chunk), update.bytes.clone());
    life.service.updates.update(device, SEGMENT, EPOCH, update.offset, bytes).await
}

/// An opened device.
struct Opened(Device);

impl Opened {
    fn of(image: Vec<u8>) -> Self {
        Self(Device::open(Arc::new(CrashMedium::from_image(image)), Some(CLUSTER)).unwrap())
    }

    fn content(&mut self) -> Vec<u8> {
        let mut buffer = AlignedBuf::zeroed(0);
        self.0.read_chunk(SEGMENT, 0..SHAPE.chunk_bytes(), &mut buffer).unwrap();
        buffer.to_vec()
    }

    /// The records of its log.
    fn log(&mut self) -> Vec<Difference> {
        let info = self.0.updates(SEGMENT).unwrap();
        assert!(!info.damaged, "a log lost records that were flushed");
        let record = |sequence| self.0.log_read(SEGMENT, sequence).unwrap();
        let records: Vec<_> = info.log.iter().map(|entry| entry.sequence).map(record).collect();
        records.into_iter().map(|record| Difference::decode(&record).unwrap()).collect()
    }

    /// The last version of each data chunk in a parity chunk or its log.
    fn held(&mut self) -> BTreeMap<u16, u64> {
        let mut held: BTreeMap<u16, u64> = self.0.updates(SEGMENT).unwrap().merged.into_iter().collect();
        held.extend(self.log().iter().map(|difference| (difference.chunk, difference.version)));
        held
    }
}

/// Whether a version would be there everywhere if power were lost now, and nothing kept that was not flushed.
fn assert_durable(life: &Life, chunk: u32, version: u64, when: &str) {
    let mut images = life.power_loss(|_| false);
    let parities = images.split_off(SHAPE.data as usize);
    let data = Opened::of(images.swap_remove(chunk as usize)).0.updates(SEGMENT).unwrap().version;
    assert!(data >= version, "{when}: version {version} of chunk {chunk} is answered, its device has {data}");
    for (number, image) in parities.into_iter().enumerate() {
        let held = Opened::of(image).held().get(&(chunk as u16)).copied().unwrap_or(0);
        assert!(
            held >= version,
            "{when}: version {version} of chunk {chunk} is answered, parity {number} has {held}"
        );
    }
}

/// Every byte is what the last answered update left there, or what one that nobody heard of would have; and parity is of just that.
fn assert_level(images: Vec<Vec<u8>>, updates: &[Update], when: &str) {
    let mut devices: Vec<Opened> = images.into_iter().map(Opened::of).collect();
    let mut all = Fold::default();
    for chunk in 0..SHAPE.data {
        let content = devices[chunk as usize].content();
        for (at, byte) in content.iter().enumerate() {
            let there = |update: &&Update| {
                let end = update.offset as usize + update.bytes.len();
                update.chunk == chunk && (update.offset as usize..end).contains(&at)
            };
            let byte_of = |update: &Update| update.bytes[at - update.offset as usize];
            let last = updates.iter().filter(there).max_by_key(|update| update.version);
            let last = last.filter(|update| update.version.is_some()).map_or(0, byte_of);
            let unheard = || updates.iter().filter(there).filter(|update| update.version.is_none());
            assert!(
                *byte == last || unheard().any(|update| byte_of(update) == *byte),
                "{when}: byte {at} of chunk {chunk} is {byte}, not {last}"
            );
        }
        let (chunk, sums) = (chunk as u16, Vec::new());
        all.add(&Difference { chunk, version: 1, offset: 0, sums, bytes: content.into() });
    }
    for number in 0..SHAPE.parity() {
        let (data, parity) = (SHAPE.data as u16, SHAPE.parity() as u16);
        let of = ParityOf::new(data, parity, number as u16, SHAPE.chunk_bytes()).unwrap();
        let device = &mut devices[(SHAPE.data + number) as usize];
        let (mut content, log) = (device.content(), device.log());
        let mut logged = Fold::default();
        log.iter().for_each(|difference| logged.add(difference));
        of.add(&logged, 0, &mut content).unwrap();
        let mut expected = vec![0; content.len()];
        of.add(&all, 0, &mut expected).unwrap();
        assert!(content == expected, "{when}: parity {number} is not that of the data");
    }
}

/// Lives of a server, each ended by a power loss with updates under way; the last ends in peace.
async fn lives(name: &str, reserve_bytes: u64, seed: u64) {
    let numbers = &mut Numbers(seed);
    let mut images: Vec<Vec<u8>> = (0..SHAPE.chunks).map(|chunk| stored(chunk, reserve_bytes)).collect();
    let mut updates: Vec<Update> = Vec::new();
    for number in 0..LIVES {
        let (when, peace) = (format!("{name}, seed {seed}, life {number}"), number + 1 == LIVES);
        let life = Arc::new(Life::begin(std::mem::take(&mut images), number).await);
        for chunk in 0..SHAPE.data {
            life.service.updates.begin(life.device(chunk), SEGMENT);
        }
        let mut under_way: JoinSet<(usize, Result<u64, Fault>)> = JoinSet::new();
        for begun in 0..AWAITED + LEFT {
            if begun < AWAITED {
                while under_way.len() >= PARALLEL {
                    let (place, made) = under_way.join_next().await.unwrap().unwrap();
                    updates[place].version = Some(made.unwrap());
                }
            }
            let (place, update, when) = (updates.len(), drawn(numbers), when.clone());
            updates.push(update.clone());
            let life = life.clone();
            under_way.spawn(async move {
                let made = make(&life, &update).await;
                if let Ok(version) = made {
                    assert_durable(&life, update.chunk, version, &when);
                }
                (place, made)
            });
        }
        if !peace {
            tokio::time::sleep(Duration::from_millis(numbers.below(25))).await;
            // A killed process, a careful disk, a torn one.
            let kept = [0; SHAPE.chunks as usize].map(|_| numbers.below(3));
            images = life.power_loss(|chunk| match kept[chunk] {
                0 => true,
                1 => false,
                _ => numbers.below(2) == 0,
            });
            // What was answered by then was answered before.
            while let Some(ended) = under_way.try_join_next() {
                let (place, made) = ended.unwrap();
                updates[place].version = Some(made.unwrap());
            }
            under_way.abort_all();
        }
        while let Some(ended) = under_way.join_next().await {
            match ended {
                Ok((place, made)) if peace => updates[place].version = Some(made.unwrap()),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Ok(_) | Err(_) => {}
            }
        }
        let media = life.media.clone();
        let life = Arc::into_inner(life).expect("all updates ended");
        life.end().await;
        if peace {
            images = media.iter().map(|medium| medium.image()).collect();
        }
    }
    assert_level(images, &updates, &format!("{name}, seed {seed}, in the end"));
}

#[tokio::test]
async fn what_is_answered_is_durable_and_power_losses_leave_logged_parity_level() {
    for seed in [1, 2] {
        lives("plr", RESERVE_BYTES, seed).await;
    }
}

#[tokio::test]
async fn what_is_answered_is_durable_and_power_losses_leave_overwritten_parity_level() {
    for seed in [3, 4] {
        lives("fo", 0, seed).await;
    }
}

#[tokio::test]
async fn a_host_that_cannot_go_on_leaves_nothing_held_that_is_committed() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    let device = life.device(0);
    let update = |epoch| {
        let bytes = Bytes::from_static(b"new");
        life.service.updates.update(device.clone(), SEGMENT, epoch, 0, bytes)
    };
    assert_eq!(update(EPOCH).await.unwrap(), 1);
    // A later layout ends the host, before it told the device what it need not hold.
    assert!(update(Epoch(EPOCH.0 + 1)).await.is_err());
    let lane = (life.service.lane_stream(), Priority::Normal);
    let mut held = Vec::new();
    for _ in 0..6000 {
        let answer = super::medium::ask(&device, lane, Op::Held { segment: None }).await;
        let Ok(OpOutput::HeldSegments(segments)) = answer else { panic!("{answer:?}") };
        held = segments;
        if held.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(held, [], "nobody would release it");
    life.end().await;
}

#[tokio::test]
async fn changes_of_what_damaged_parity_cannot_follow_are_refused_at_once() {
    // Logged, what is damaged is met by the merge; overwritten, by the change.
    for (reserve_bytes, most) in [(RESERVE_BYTES, 200), (0, 1)] {
        let images: Vec<Vec<u8>> = (0..SHAPE.chunks).map(|chunk| stored(chunk, reserve_bytes)).collect();
        let parity = SHAPE.data as usize;
        let granule = Opened::of(images[parity].clone()).0.locate_chunk(SEGMENT, 0).unwrap();
        let life = Life::begin(images, SHAPE.chunks).await;
        life.media[parity].write_at(granule, &[1]).unwrap();
        for round in 0..2 {
            let mut made = 0;
            let refused = loop {
                let bytes = Bytes::from(vec![made as u8; UPDATE_BYTES_MAX as usize]);
                let update = Update { chunk: 1, offset: 5, bytes, version: None };
                // Its client's patience ends after ten seconds.
                let answer = tokio::time::timeout(Duration::from_secs(10), make(&life, &update)).await;
                match answer.expect("the update is answered") {
                    Ok(_) => made += 1,
                    Err(refused) => break refused,
                }
                assert!(made < most, "round {round}: {made} were made");
            };
            let said = refused.to_string();
            assert!(said.contains("damaged") && said.contains("store the segment anew"), "{round}: {said}");
        }
        life.end().await;
    }
}

#[test]
fn a_device_leaves_room_for_the_hosts_of_others() {
    let hosts = super::Hosts::<()>(std::sync::Mutex::default());
    let running = std::cell::RefCell::new(Vec::new());
    let begin = |device, segment| {
        let begin = |events, _| running.borrow_mut().push(events);
        hosts.tell(DeviceId(device), SegmentId(segment), (), begin).map(drop)
    };
    let refused = (0..).find(|&segment| begin(1, segment).is_err()).unwrap();
    assert_eq!(refused, super::HOSTS_MAX as u64 / 2);
    assert_eq!(begin(2, 0), Ok(()));
    // One that is there is told all the same.
    assert_eq!(begin(1, 0), Ok(()));
}

#[test]
fn hosts_are_many_by_the_device_that_would_refuse_one_more() {
    let hosts = super::Hosts::<()>(std::sync::Mutex::default());
    let running = std::cell::RefCell::new(Vec::new());
    let begin = |device, segments: Range<usize>| {
        for segment in segments {
            let begin = |events, _| running.borrow_mut().push(events);
            hosts.tell(DeviceId(device), SegmentId(segment as u64), (), begin).unwrap();
        }
    };
    let many = |device, others| hosts.are_many(DeviceId(device), others);
    begin(1, 0..super::HOSTS_MAX / 4 - 1);
    assert_eq!((many(1, 1), many(1, 2), many(2, 1)), (false, true, false));
    begin(1, super::HOSTS_MAX / 4 - 1..super::HOSTS_MAX / 4);
    assert_eq!((many(1, 1), many(2, 1), many(2, 2)), (true, false, true));
}

#[tokio::test]
async fn hosts_that_rest_leave_soon_where_there_are_many() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    let updates = &life.service.updates;
    let update = Update { chunk: 0, offset: 0, bytes: Bytes::from_static(b"new"), version: None };
    make(&life, &update).await.unwrap();
    let parities = SHAPE.data..SHAPE.chunks;
    let (mut data, mut parity) = (Vec::new(), Vec::new());
    for segment in (100..).take(super::HOSTS_MAX / 4).map(SegmentId) {
        let [first, second] = [device_of(0), device_of(SHAPE.data)];
        updates.data.tell(first, segment, super::data::Event::Begin, |events, _| data.push(events)).unwrap();
        let closed = super::parity::Event::Closed { stream: 0 };
        updates.parity.tell(second, segment, closed, |events, _| parity.push(events)).unwrap();
    }
    let there = || {
        let data = updates.data.lock().contains_key(&(device_of(0), SEGMENT));
        let parity = updates.parity.lock();
        (data, parities.clone().map(|chunk| parity.contains_key(&(device_of(chunk), SEGMENT))).collect())
    };
    assert_eq!(there(), (true, vec![true, true]));
    let half = super::IDLE_MAX / 2;
    let left = tokio::time::timeout(half, async {
        // The other parity chunk's device has few.
        while there() != (false, vec![false, true]) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(left.await.is_ok(), "{:?} are there after {half:?}", there());
    drop(data);
    drop(parity);
    assert_eq!(make(&life, &update).await.unwrap(), 2);
    life.end().await;
}

#[tokio::test]
async fn updates_of_one_device_that_nobody_answers_leave_streams_for_the_others() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Arc::new(Life::begin(images, SHAPE.chunks).await);
    let update = |chunk| Update { chunk, offset: 0, bytes: Bytes::from_static(b"new"), version: None };
    for chunk in 0..SHAPE.data {
        make(&life, &update(chunk)).await.unwrap();
    }
    // A parity chunk's device stands still.
    let lane = &life.device(SHAPE.data).lane;
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let standing = Box::new(move |_: Result<OpOutput, OpError>| assert!(waits.recv().is_err()));
    lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, standing);
    let mut waiting = JoinSet::new();
    // As many as one segment may have.
    let waiters = Limits::default().streams_max / 16;
    for _ in 0..waiters {
        let (life, update) = (life.clone(), update(0));
        waiting.spawn(async move { make(&life, &update).await });
    }
    // All are heard by their host, which has none of them answered.
    let early = tokio::time::timeout(Duration::from_millis(500), waiting.join_next()).await;
    assert!(early.is_err(), "{early:?}");
    let more = tokio::time::timeout(Duration::from_millis(500), make(&life, &update(0))).await;
    assert!(matches!(more, Ok(Err(Fault::Refused { .. }))), "{more:?}");
    // It waits, too, and is not refused.
    let other = tokio::time::timeout(Duration::from_millis(100), make(&life, &update(1))).await;
    assert!(other.is_err(), "{other:?}");
    drop(go_on);
    while let Some(made) = waiting.join_next().await {
        made.unwrap().unwrap();
    }
    make(&life, &update(0)).await.unwrap();
    Arc::into_inner(life).expect("all updates ended").end().await;
}

/// Of a parity node that takes no streams for now who waits is told, so that it asks again; not who is stamped: that is made yet.
#[tokio::test]
async fn what_is_stamped_is_not_refused_beside_a_parity_node_that_takes_no_streams() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Arc::new(Life::begin(images, SHAPE.chunks).await);
    let bytes = Bytes::from(vec![1; UPDATE_BYTES_MAX as usize]);
    let update = Update { chunk: 0, offset: 0, bytes, version: None };
    make(&life, &update).await.unwrap();
    let lane = &life.device(SHAPE.data).lane;
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let standing = Box::new(move |_: Result<OpOutput, OpError>| assert!(waits.recv().is_err()));
    lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, standing);
    let making = || {
        let (life, update) = (life.clone(), update.clone());
        tokio::spawn(async move { make(&life, &update).await })
    };
    // Two of them are all that may be uncommitted.
    let stamped = [making(), making()];
    let device = life.device(0);
    let is_stamped = async {
        let asking = (life.service.lane_stream(), Priority::Normal);
        while super::medium::describe(&device, asking, SEGMENT).await.unwrap().version < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_stamped).await.expect("both are stamped");
    let waiting = making();
    let is_told = async {
        while !waiting.is_finished() {
            let fault = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1 };
            let event = super::link::LinkEvent::Failed(fault);
            let event = super::data::Event::Link { parity: 0, event };
            let data = &life.service.updates.data;
            data.tell(device.id, SEGMENT, event, |_, _| panic!("it is there")).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_told).await.expect("it is told");
    let told = waiting.await.unwrap();
    assert!(matches!(told, Err(Fault::Refused { .. })), "{told:?}");
    assert!(stamped.iter().all(|making| !making.is_finished()));
    drop(go_on);
    let mut versions = Vec::new();
    for making in stamped {
        versions.push(making.await.unwrap().unwrap());
    }
    versions.sort_unstable();
    assert_eq!(versions, [2, 3]);
    Arc::into_inner(life).expect("all updates ended").end().await;
}
