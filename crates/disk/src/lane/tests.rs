//! The lane on emulated media: order of answers, the cancel promise, stalls, failure.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one range is what is meant")]

use std::{
    io::IoSlice,
    sync::mpsc::{Receiver, channel},
};

use super::*;
use crate::{
    checksum::{self, Granule},
    device::{DeviceError, FormatOptions, LogError},
    ids::Version,
    media::{
        Counters, CrashMedium, EmulatedMedium, EmulationControl, EmulationSpec, Medium, MediumError,
        MemoryMedium,
    },
};

const S: SegmentId = SegmentId(3);
const BLOCK: u32 = 16 << 10;
const WAIT: Duration = Duration::from_secs(60);

/// Its thread may be held up.
fn patient() -> LaneConfig {
    LaneConfig { shutdown_wait_max: WAIT, look_every: WAIT, ..LaneConfig::default() }
}

fn emulated(config: LaneConfig) -> (LaneHandle, EmulationControl, Arc<dyn Medium>) {
    let medium = Arc::new(EmulatedMedium::new(Arc::new(MemoryMedium::new(8 << 20)), EmulationSpec::OFF));
    let control = medium.control();
    (start(medium.clone(), config), control, medium)
}

fn start(medium: Arc<dyn Medium>, config: LaneConfig) -> LaneHandle {
    Device::format(&*medium, FormatOptions::new(ClusterId(1), DeviceId(1))).unwrap();
    Lane::spawn(Device::open(medium, None).unwrap(), config).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Read,
    Prefetch,
    Write,
    Flush,
}

/// Memory that does something of its own before each of these.
struct First {
    below: MemoryMedium,
    first: Box<dyn Fn(Doing) + Send + Sync>,
    /// Where it was read last.
    read_at: AtomicU64,
    /// Dead where this is set: of what is before it the system has a copy.
    lost_from: AtomicU64,
}

impl First {
    fn new(first: impl Fn(Doing) + Send + Sync + 'static) -> Arc<First> {
        Arc::new(First {
            below: MemoryMedium::new(8 << 20),
            first: Box::new(first),
            read_at: AtomicU64::new(0),
            lost_from: AtomicU64::new(u64::MAX),
        })
    }

    fn read_from(&self, from: u64, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        (self.first)(Doing::Read);
        if from >= self.lost_from.load(Ordering::Relaxed) {
            return Err(MediumError::Io { kind: std::io::ErrorKind::Other, offset });
        }
        self.read_at.store(offset, Ordering::Relaxed);
        self.below.read_at(offset, buf)
    }
}

impl Medium for First {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.read_from(offset, offset, buf)
    }
    fn probe(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.read_from(u64::MAX - 1, offset, buf)
    }
    fn prefetch(&self, range: Range<u64>) {
        (self.first)(Doing::Prefetch);
        self.below.prefetch(range);
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        (self.first)(Doing::Write);
        self.below.write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        (self.first)(Doing::Write);
        self.below.write_vectored_at(offset, bufs)
    }
    fn flush(&self) -> Result<(), MediumError> {
        (self.first)(Doing::Flush);
        self.below.flush()
    }
    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.below.allocate(range)
    }
    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.below.prepare(range)
    }
    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.below.trim(range)
    }
    fn counters(&self) -> Counters {
        self.below.counters()
    }
    fn describe(&self) -> String {
        self.below.describe()
    }
}

/// Its journal takes updates.
fn start_updatable(medium: Arc<dyn Medium>) -> LaneHandle {
    let journal_bytes = Some(crate::index::UPDATES_JOURNAL_MIN);
    let options = FormatOptions { journal_bytes, ..FormatOptions::new(ClusterId(1), DeviceId(1)) };
    Device::format(&*medium, options).unwrap();
    Lane::spawn(Device::open(medium, None).unwrap(), patient()).unwrap()
}

fn create_updatable(lane: &LaneHandle, segment: SegmentId) {
    let updates = Some(crate::device::Updates { reserve_bytes: 64 << 10 });
    let spec = ExtentSpec { segment, expected_blocks: 1, updates, ..spec() };
    assert!(matches!(call(lane, Op::CreateExtent(spec)), Ok(OpOutput::Created(_))));
}

fn submit(lane: &LaneHandle, stream: u64, op: Op) -> Receiver<Result<OpOutput, OpError>> {
    let (sender, receiver) = channel();
    lane.submit(stream, Priority::Normal, op, Box::new(move |result| drop(sender.send(result))));
    receiver
}

fn call(lane: &LaneHandle, op: Op) -> Result<OpOutput, OpError> {
    submit(lane, 0, op).recv_timeout(WAIT).expect("an answer")
}

fn spec() -> ExtentSpec {
    ExtentSpec {
        segment: S,
        version: Version(1),
        epoch: Epoch(1),
        block_bytes: BLOCK,
        granule: Granule::KIB_4,
        expected_blocks: 64,
        updates: None,
    }
}

fn create(lane: &LaneHandle) {
    assert!(matches!(call(lane, Op::CreateExtent(spec())), Ok(OpOutput::Created(_))));
}

fn write(index: u32) -> Op {
    let data = Bytes::from(vec![index as u8; BLOCK as usize]);
    let sums = checksum::sums(&data, Granule::KIB_4, S, Version(1), index);
    Op::WriteBlock {
        segment: S,
        epoch: Epoch(1),
        index,
        pieces: vec![data],
        sums,
        checked: None,
        more: false,
    }
}

fn read(index: u32) -> Op {
    Op::ReadSlice { segment: S, index, offset: 0, len: BLOCK, ahead: 0 }
}

/// Waits until the lane has something in hand.
fn until_busy(lane: &LaneHandle) {
    let deadline = Instant::now() + WAIT;
    while lane.status().in_flight_age.is_none() {
        assert!(Instant::now() < deadline, "the lane never began");
        thread::yield_now();
    }
}

#[test]
fn writes_are_grouped_and_read_back() {
    // No group is ended by its age, however long this takes.
    let config = LaneConfig { group_age_max: Duration::from_secs(3600), ..patient() };
    let (lane, control, medium) = emulated(config);
    create(&lane);
    // Stalled while they are queued, so that they meet in the queue.
    control.redraw("stall".parse().unwrap());
    let before = medium.counters();
    let answers: Vec<_> = (0..33).map(|index| submit(&lane, 1, write(index))).collect();
    until_busy(&lane);
    control.redraw(EmulationSpec::OFF);
    for answer in answers {
        assert_eq!(answer.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Written));
    }
    let after = medium.counters();
    assert!(after.flushes - before.flushes <= 3, "{} flushes", after.flushes - before.flushes);
    assert!(after.writes - before.writes <= 16, "{} writes", after.writes - before.writes);
    for index in 0..33 {
        let Ok(OpOutput::Slice { offset: 0, data, sums, .. }) = call(&lane, read(index)) else { panic!() };
        assert!(data.iter().all(|&b| b == index as u8) && data.len() == BLOCK as usize && sums.len() == 4);
    }
    let status = lane.status();
    assert!(status.read_bytes_per_s.is_some() && status.write_bytes_per_s.is_some());
    lane.forget_speed();
    let forgotten = lane.status();
    assert_eq!(
        (forgotten.read_bytes_per_s, forgotten.write_bytes_per_s, forgotten.service_time),
        (None, None, None)
    );
    assert_eq!(forgotten.completed, status.completed);
    assert_eq!((status.queued, status.unflushed_bytes, status.usage.extents), (0, 0, 1));
    assert_eq!(lane.shutdown(), Shutdown::Joined);
    assert_eq!(call(&lane, Op::Usage), Err(OpError::Closed));
}

#[test]
fn after_a_cancel_no_further_io_starts() {
    let (lane, control, medium) = emulated(patient());
    create(&lane);
    for index in 0..8 {
        assert_eq!(call(&lane, write(index)), Ok(OpOutput::Written));
    }
    control.redraw("stall".parse().unwrap());
    let before = medium.counters();
    let answers: Vec<_> = (0..8).map(|index| submit(&lane, 7, read(index))).collect();
    let other = submit(&lane, 8, read(3));
    until_busy(&lane);
    let dropped = lane.cancel(7);
    assert_eq!(dropped, 7, "one had begun");
    control.redraw(EmulationSpec::OFF);
    assert!(matches!(other.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Slice { .. })));
    let results: Vec<_> = answers.into_iter().map(|a| a.recv_timeout(WAIT).unwrap()).collect();
    assert_eq!(results.iter().filter(|r| **r == Err(OpError::Cancelled)).count(), 7);
    let after = medium.counters();
    assert_eq!(
        after.bytes_read - before.bytes_read,
        2 * u64::from(BLOCK),
        "the one begun and the other stream's"
    );
}

#[test]
fn a_block_that_others_follow_is_flushed_with_them_and_not_much_later() {
    const FLUSH: Duration = Duration::from_millis(300);
    let flushes = Arc::new(AtomicU64::new(0));
    let counted = flushes.clone();
    let medium = First::new(move |doing| {
        if doing == Doing::Flush {
            std::thread::sleep(FLUSH);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let lane = start(medium, LaneConfig { group_age_max: WAIT, ..patient() });
    create(&lane);
    let followed = |index| {
        let Op::WriteBlock { segment, epoch, index, pieces, sums, .. } = write(index) else { unreachable!() };
        Op::WriteBlock { segment, epoch, index, pieces, sums, checked: None, more: true }
    };
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    let before = flushes.load(Ordering::Relaxed);
    // Long enough for a lane that does not wait to begin a flush, far shorter than three of them.
    let answers = [1, 2].map(|index| {
        let answer = submit(&lane, 7, followed(index));
        std::thread::sleep(Duration::from_millis(20));
        answer
    });
    assert_eq!(call(&lane, write(3)), Ok(OpOutput::Written));
    assert!(answers.iter().all(|answer| answer.recv_timeout(WAIT).unwrap() == Ok(OpOutput::Written)));
    assert_eq!(flushes.load(Ordering::Relaxed), before + 1);
    // None comes.
    assert_eq!(call(&lane, followed(4)), Ok(OpOutput::Written));
    // A change is not put off by a block.
    let (answer, since) = (submit(&lane, 7, followed(5)), Instant::now());
    let sealed = call(&lane, Op::Seal { segment: S, epoch: Epoch(1), keep: vec![0..6] });
    assert!(sealed.is_ok() && since.elapsed() < 3 * FLUSH, "{sealed:?} after {:?}", since.elapsed());
    assert_eq!(answer.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Written));
}

#[test]
fn what_somebody_waits_for_is_flushed_before_what_nobody_does() {
    // No group is ended by its age, however long this takes.
    let config = LaneConfig { group_age_max: Duration::from_secs(3600), ..patient() };
    let (lane, control, _) = emulated(config);
    create(&lane);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    // Stalled while they are queued, so that they meet in the queue.
    control.redraw("stall".parse().unwrap());
    let held = submit(&lane, 1, read(0));
    until_busy(&lane);
    let background = |index| {
        let (sender, receiver) = channel();
        let reply = Box::new(move |result| drop(sender.send(result)));
        lane.submit(2, Priority::Background, write(index), reply);
        receiver
    };
    let answers: Vec<_> = (1..9).map(background).collect();
    let (sender, barrier) = channel();
    let handle = lane.clone();
    let reply = move |result| drop(sender.send((result, handle.status().queued)));
    lane.submit(3, Priority::Normal, Op::Barrier, Box::new(reply));
    control.redraw(EmulationSpec::OFF);
    let (result, queued) = barrier.recv_timeout(WAIT).unwrap();
    // Where this took long, one may have been put off for long enough.
    assert!(result == Ok(OpOutput::Durable) && queued > 4, "{result:?} with {queued} of 8 queued");
    assert!(matches!(held.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Slice { .. })));
    for answer in answers {
        assert_eq!(answer.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Written));
    }
}

/// What a stream will read next is fetched behind each read, unless it was cancelled while that was on the medium.
#[test]
fn after_a_cancel_nothing_is_fetched_for_what_would_have_come_next() {
    let (fetched, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(())));
    let (fetches, passes) = (fetched.clone(), gate.clone());
    let medium = First::new(move |doing| match doing {
        Doing::Read => drop(passes.lock().unwrap_or_else(PoisonError::into_inner)),
        Doing::Prefetch => drop(fetches.fetch_add(1, Ordering::Relaxed)),
        Doing::Write | Doing::Flush => {}
    });
    let lane = start(medium, patient());
    create(&lane);
    (0..4).for_each(|index| assert_eq!(call(&lane, write(index)), Ok(OpOutput::Written)));
    let ahead = || Op::ReadSlice { segment: S, index: 0, offset: 0, len: BLOCK, ahead: 2 * BLOCK };
    for (cancelled, expected) in [(8, 1), (7, 1), (9, 2)] {
        let held = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = submit(&lane, 7, ahead());
        until_busy(&lane);
        assert_eq!(lane.cancel(cancelled), 0, "it has begun");
        drop(held);
        assert!(matches!(answer.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Slice { .. })));
        assert_eq!(fetched.load(Ordering::Relaxed), expected, "{cancelled}");
    }
}

#[test]
fn a_stalled_device_answers_questions_and_lets_go() {
    let config = LaneConfig { shutdown_wait_max: Duration::from_millis(200), ..patient() };
    let (lane, control, _) = emulated(config);
    create(&lane);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    control.redraw("stall".parse().unwrap());
    let stuck = submit(&lane, 1, read(0));
    let queued = submit(&lane, 1, read(0));
    until_busy(&lane);
    let status = lane.status();
    assert!(status.in_flight_age.is_some() && !status.flushing, "a read");
    assert!(status.flush_time.is_some(), "the write was flushed");
    assert_eq!(status.queued, 1);
    assert_eq!(lane.shutdown(), Shutdown::Detached);
    assert_eq!(queued.recv_timeout(WAIT).unwrap(), Err(OpError::Closed));
    control.redraw(EmulationSpec::OFF);
    assert!(matches!(stuck.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Slice { .. })));
}

/// How long it may take without being called a stall depends on that.
#[test]
fn an_operation_that_may_flush_by_itself_says_so() {
    let medium = Arc::new(EmulatedMedium::new(Arc::new(MemoryMedium::new(8 << 20)), EmulationSpec::OFF));
    let control = medium.control();
    let lane = start_updatable(medium);
    create_updatable(&lane, S);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    let new = Bytes::from_static(&[1; 4096]);
    let stage = Op::Stage { segment: S, epoch: Epoch(1), offset: 0, new, spend: None };
    control.redraw("stall".parse().unwrap());
    let answer = submit(&lane, 1, stage);
    until_busy(&lane);
    assert!(lane.status().flushing);
    control.redraw(EmulationSpec::OFF);
    assert!(matches!(answer.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Staged(_))));
}

#[test]
fn a_run_of_writes_to_a_slow_device_is_confirmed_as_it_goes() {
    let (lane, control, medium) = emulated(patient());
    create(&lane);
    // 16 KiB take 10 ms, and groups are at most 8 ms old.
    let rate = f64::from(BLOCK) / 0.010;
    control.redraw(EmulationSpec::rate(rate));
    for index in 0..20 {
        assert_eq!(call(&lane, write(index)), Ok(OpOutput::Written));
    }
    let speed = lane.status().write_bytes_per_s.unwrap();
    assert!((0.5..2.0).contains(&(speed / rate)), "{speed}");
    // Stalled while they are queued, so that all are there when the first is confirmed.
    control.redraw("stall".parse().unwrap());
    let before = medium.counters().flushes;
    let (sender, first) = channel();
    let handle = lane.clone();
    let reply = move |result| drop(sender.send((result, handle.status().queued)));
    lane.submit(1, Priority::Normal, write(20), Box::new(reply));
    let answers: Vec<_> = (21..60).map(|index| submit(&lane, 1, write(index))).collect();
    until_busy(&lane);
    control.redraw(EmulationSpec::rate(rate));
    let (result, queued) = first.recv_timeout(WAIT).unwrap();
    assert_eq!(result, Ok(OpOutput::Written));
    assert!(queued > 20, "{queued} of 39 were queued when the first was confirmed");
    for answer in answers {
        assert_eq!(answer.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Written));
    }
    let flushes = medium.counters().flushes - before;
    assert!(flushes >= 10, "{flushes} flushes of 40 writes");
}

#[test]
fn a_failed_flush_is_told_to_the_whole_group_and_is_final() {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    let lane = start(medium.clone(), patient());
    create(&lane);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    medium.fail_flushes(true);
    assert!(matches!(call(&lane, write(1)), Err(OpError::Write(WriteError::Device(_)))));
    medium.fail_flushes(false);
    assert!(matches!(call(&lane, write(2)), Err(OpError::Write(WriteError::Device(_)))));
    let delete = Op::Delete { segment: S, epoch: Epoch(1) };
    assert!(matches!(call(&lane, delete), Err(OpError::Change(ChangeError::Device(_)))));
    assert!(matches!(call(&lane, read(0)), Ok(OpOutput::Slice { .. })));
    assert!(lane.status().failed.is_some());
}

/// Nothing is confirmed of it, so nothing else asks for the flush that tells.
#[test]
fn a_medium_that_takes_no_block_is_found_by_the_index() {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    let lane = start(medium.clone(), patient());
    create(&lane);
    medium.fail_writes(true);
    assert!(matches!(call(&lane, write(0)), Err(OpError::Write(WriteError::Medium(MediumError::Io { .. })))));
    let since = Instant::now();
    while lane.status().failed.is_none() {
        assert!(since.elapsed() < WAIT);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(call(&lane, write(1)), Err(OpError::Write(WriteError::Device(_)))));
}

#[test]
fn reads_that_fail_are_counted_and_one_bad_place_is_one() {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    let lane = start(medium.clone(), patient());
    create(&lane);
    (0..8).for_each(|index| assert_eq!(call(&lane, write(index)), Ok(OpOutput::Written)));
    assert!(matches!(call(&lane, read(0)), Ok(OpOutput::Slice { .. })));
    medium.fail_reads(true);
    let fails = |index| assert!(matches!(call(&lane, read(index)), Err(OpError::Read(ReadError::Medium(_)))));
    let counts = || (lane.status().reads.failed, lane.status().reads.failed_in_a_row());
    (0..3).for_each(|_| fails(1));
    assert_eq!(counts(), (3, 1));
    // Two bad places in turn are two.
    [2, 1, 3].into_iter().for_each(fails);
    assert_eq!(counts(), (6, 3));
    // What the device refuses by itself is no failure of its medium, nor is a write that goes well a read that does.
    assert!(matches!(call(&lane, read(99)), Err(OpError::Read(ReadError::NoBlock { .. }))));
    assert_eq!(call(&lane, write(8)), Ok(OpOutput::Written));
    assert_eq!(counts(), (6, 3));
    // What is read may come from the system's memory.
    medium.fail_reads(false);
    assert!(matches!(call(&lane, read(2)), Ok(OpOutput::Slice { .. })));
    assert_eq!(counts(), (6, 3));
    medium.fail_reads(true);
    (0..8).for_each(fails);
    assert!(lane.status().reads.give_nothing());
    assert_eq!(counts(), (14, 8));
}

#[test]
fn an_append_that_fails_is_no_read_that_does() {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    medium.set_positions(false);
    let lane = start_updatable(medium.clone());
    create_updatable(&lane, S);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    medium.fail_writes(true);
    let payload = Bytes::from_static(b"a delta");
    let append = Op::LogAppend { segment: S, epoch: Epoch(1), sequence: None, payload };
    assert!(matches!(call(&lane, append), Err(OpError::Update(UpdateError::Log(_)))));
    assert_eq!((lane.status().reads, lane.status().failed), (Reads::default(), None));
}

/// The log is read back by the first one.
#[test]
fn an_append_that_cannot_read_its_log_is_a_read_that_fails() {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    let lane = start_updatable(medium.clone());
    create_updatable(&lane, S);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    assert_eq!(lane.shutdown(), Shutdown::Joined);
    let lane = Lane::spawn(Device::open(medium.clone(), None).unwrap(), patient()).unwrap();
    medium.fail_reads(true);
    let payload = Bytes::from_static(b"a delta");
    let append = Op::LogAppend { segment: S, epoch: Epoch(1), sequence: None, payload };
    let refused = call(&lane, append.clone());
    assert!(matches!(refused, Err(OpError::Update(UpdateError::Log(LogError::Medium(_))))), "{refused:?}");
    assert_eq!(lane.status().reads.failed, 1);
    medium.fail_reads(false);
    assert_eq!(call(&lane, append), Ok(OpOutput::Logged { sequence: 1 }));
}

/// A lane of one object, which looks all the time.
fn that_looks(blocks: u32) -> (LaneHandle, Arc<CrashMedium>) {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    let lane = start(medium.clone(), LaneConfig { look_every: Duration::from_millis(1), ..patient() });
    create(&lane);
    (0..blocks).for_each(|index| assert_eq!(call(&lane, write(index)), Ok(OpOutput::Written)));
    (lane, medium)
}

fn until(lane: &LaneHandle, holds: impl Fn(&Reads) -> bool) {
    let since = Instant::now();
    while !holds(&lane.status().reads) {
        assert!(since.elapsed() < WAIT, "{:?}", lane.status());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_medium_that_gives_nothing_is_found_by_one_read_and_so_is_one_that_does_again() {
    // The least has as many places as are needed.
    for blocks in [2, 3, 20] {
        let (lane, medium) = that_looks(blocks);
        medium.fail_reads(true);
        assert!(matches!(call(&lane, read(0)), Err(OpError::Read(ReadError::Medium(_)))));
        until(&lane, Reads::give_nothing);
        assert_eq!(lane.status().reads.failed, 1, "what was asked for");
        medium.fail_reads(false);
        until(&lane, |reads| reads.failed_in_a_row() == 0);
        assert_eq!(lane.status().reads.error, None);
    }
}

#[test]
fn a_dead_medium_is_found_while_it_is_busy_with_what_is_in_memory() {
    let medium = First::new(|_| {});
    let lane = start(medium.clone(), LaneConfig { look_every: Duration::from_millis(1), ..patient() });
    create(&lane);
    (0..8).for_each(|index| assert_eq!(call(&lane, write(index)), Ok(OpOutput::Written)));
    assert!(matches!(call(&lane, read(0)), Ok(OpOutput::Slice { .. })));
    let hot = medium.read_at.load(Ordering::Relaxed);
    medium.lost_from.store(hot + u64::from(BLOCK), Ordering::Relaxed);
    assert!(matches!(call(&lane, read(1)), Err(OpError::Read(ReadError::Medium(_)))));
    let since = Instant::now();
    let mut before = submit(&lane, 1, read(0));
    while !lane.status().reads.give_nothing() {
        assert!(since.elapsed() < WAIT, "{:?}", lane.status());
        let next = submit(&lane, 1, read(0));
        assert!(matches!(before.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Slice { .. })));
        before = next;
    }
    medium.lost_from.store(u64::MAX, Ordering::Relaxed);
    until(&lane, |reads| reads.failed_in_a_row() == 0);
}

#[test]
fn one_bad_place_of_a_medium_that_gives_the_others_is_no_row() {
    let (lane, medium) = that_looks(20);
    medium.fail_reads(true);
    let fails = call(&lane, read(3));
    medium.fail_reads(false);
    assert!(matches!(fails, Err(OpError::Read(ReadError::Medium(_)))));
    until(&lane, |reads| reads.failed_in_a_row() == 0);
}

#[test]
fn a_lane_whose_thread_ended_by_a_fault_has_failed() {
    let faulty = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let fault = faulty.clone();
    let medium = First::new(move |_| assert!(!fault.load(std::sync::atomic::Ordering::Relaxed), "planted"));
    let lane = start(medium, patient());
    create(&lane);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    assert_eq!(lane.status().failed, None);
    faulty.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(call(&lane, write(1)), Err(OpError::Closed));
    let since = Instant::now();
    while lane.status().failed.is_none() {
        assert!(since.elapsed() < WAIT);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lane.status().failed, Some(DeviceError::Ended));
    assert_eq!(call(&lane, read(0)), Err(OpError::Closed));
}

#[test]
fn control_operations_answer() {
    let (lane, _, _) = emulated(patient());
    create(&lane);
    assert_eq!(call(&lane, write(4)), Ok(OpOutput::Written));
    let Ok(OpOutput::Described(Some(info))) = call(&lane, Op::Describe { segment: S }) else { panic!() };
    assert_eq!(info.blocks, [4..5]);
    assert_eq!(call(&lane, Op::Describe { segment: SegmentId(9) }), Ok(OpOutput::Described(None)));
    let list = |after, limit| call(&lane, Op::List { after, limit });
    assert_eq!(list(None, 10), Ok(OpOutput::List(vec![info])));
    assert_eq!(list(Some(S), 10), Ok(OpOutput::List(vec![])));
    let seal = Op::Seal { segment: S, epoch: Epoch(2), keep: vec![0..8] };
    assert!(matches!(call(&lane, seal), Ok(OpOutput::Sealed(s)) if s.kept == 1));
    assert_eq!(call(&lane, Op::Fence { segment: S, epoch: Epoch(3) }), Ok(OpOutput::Fenced));
    let delete = |epoch| call(&lane, Op::Delete { segment: S, epoch });
    assert!(matches!(delete(Epoch(2)), Err(OpError::Change(ChangeError::StaleEpoch { .. }))));
    assert_eq!(delete(Epoch(3)), Ok(OpOutput::Deleted { found: true }));
    let Ok(OpOutput::Usage(usage)) = call(&lane, Op::Usage) else { panic!() };
    assert_eq!((usage.free, usage.extents), (usage.capacity, 0));
}

#[test]
fn the_last_handle_closes_the_lane_and_the_medium() {
    let (lane, _, medium) = emulated(patient());
    create(&lane);
    let answer = submit(&lane, 1, write(0));
    assert_eq!(answer.recv_timeout(WAIT).unwrap(), Ok(OpOutput::Written));
    drop(lane.clone());
    assert!(matches!(call(&lane, read(0)), Ok(OpOutput::Slice { .. })), "a handle is left");
    assert_eq!(lane.shutdown(), Shutdown::Joined);
    assert_eq!(Arc::strong_count(&medium), 1, "the lane holds the medium no longer");
}

#[test]
fn flushes_count_as_writing_where_they_are_of_blocks() {
    const FLUSH: Duration = Duration::from_millis(20);
    let medium = First::new(|doing| {
        if doing == Doing::Flush {
            thread::sleep(FLUSH);
        }
    });
    let lane = start_updatable(medium);
    create(&lane);
    for index in 0..4 {
        assert_eq!(call(&lane, write(index)), Ok(OpOutput::Written));
    }
    let speed = lane.status().write_bytes_per_s;
    let most = f64::from(BLOCK) / FLUSH.as_secs_f64();
    assert!(speed.is_some_and(|speed| speed < 1.1 * most), "{speed:?}, and it is below {most}");
    // Records of a log have bytes of their own; a fence has none.
    let log = SegmentId(4);
    create_updatable(&lane, log);
    for sequence in 1..=8 {
        let payload = Bytes::from_static(&[1; 100]);
        let append = Op::LogAppend { segment: log, epoch: Epoch(1), sequence: None, payload };
        assert_eq!(call(&lane, append), Ok(OpOutput::Logged { sequence }));
    }
    assert_eq!(lane.status().write_bytes_per_s, speed);
}

#[test]
fn whatever_the_lane_has_in_its_hands_when_it_panics_is_answered() {
    for fatal in [Doing::Write, Doing::Flush] {
        // The first write waits here until all are queued.
        let (armed, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(())));
        let (is_armed, passes) = (armed.clone(), gate.clone());
        let medium = First::new(move |doing| {
            if is_armed.load(Ordering::Acquire) > 0 {
                drop(passes.lock().unwrap_or_else(PoisonError::into_inner));
                assert!(doing != fatal, "this medium is meant to panic");
            }
        });
        let lane = start(medium, patient());
        create(&lane);
        let held = gate.lock().unwrap_or_else(PoisonError::into_inner);
        armed.store(1, Ordering::Release);
        let mut answers: Vec<_> = (0..8).map(|index| submit(&lane, 1, write(index))).collect();
        answers.push(submit(&lane, 1, Op::Fence { segment: S, epoch: Epoch(2) }));
        until_busy(&lane);
        drop(held);
        for answer in answers {
            assert_eq!(answer.recv_timeout(WAIT), Ok(Err(OpError::Closed)));
        }
        assert_eq!(lane.shutdown(), Shutdown::Joined);
        assert_eq!(call(&lane, Op::Usage), Err(OpError::Closed));
    }
}

/// A release needs no medium; what it was queued for does not begin with it.
#[test]
fn writing_back_takes_its_own_model_time() {
    const WRITE: Duration = Duration::from_millis(90);
    let below = Arc::new(MemoryMedium::new(8 << 20));
    let medium = Arc::new(EmulatedMedium::new(below, EmulationSpec::OFF));
    let control = medium.control();
    let lane = start_updatable(medium.clone());
    create_updatable(&lane, S);
    assert_eq!(call(&lane, write(0)), Ok(OpOutput::Written));
    let new = Bytes::from_static(&[1; 4096]);
    let stage = Op::Stage { segment: S, epoch: Epoch(1), offset: 0, new, spend: None };
    assert!(matches!(call(&lane, stage), Ok(OpOutput::Staged(_))));
    assert_eq!(call(&lane, Op::Barrier), Ok(OpOutput::Durable));
    control.redraw(EmulationSpec::rate(4096.0 / WRITE.as_secs_f64()));
    let before = medium.counters().writes;
    assert_eq!(call(&lane, Op::Release { segment: S, through_version: 1 }), Ok(OpOutput::Released));
    // The release's frame, and the granule.
    let mut none = Instant::now();
    let deadline = none + WAIT;
    while medium.counters().writes < before + 2 {
        if medium.counters().writes == before {
            none = Instant::now();
        }
        assert!(Instant::now() < deadline, "the lane never wrote back");
        thread::yield_now();
    }
    assert!(matches!(call(&lane, Op::Usage), Ok(OpOutput::Usage(_))));
    assert!(none.elapsed() >= 2 * WRITE, "{:?}", none.elapsed());
    assert_eq!(control.report().operations, 2);
}
