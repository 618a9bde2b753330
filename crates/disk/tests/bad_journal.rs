//! Pages of the journal that take no writes: they cost checkpoints, and nothing that was answered or is to come; wherever the power is
//! lost meanwhile.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{
    io::{self, IoSlice},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use common::*;
use steadfast_disk::{
    Device, Epoch, FormatOptions, Medium, SegmentId,
    device::{Apply, DeviceError, OpenError},
    media::{Counters, CrashMedium, Event, MediumError},
};

const S: SegmentId = SegmentId(5);
const FENCED: SegmentId = SegmentId(7);
const CAPACITY: u64 = 1216 << 10;
const JOURNAL: u64 = 4096 + 2 * (128 << 10);
const PAGES: u64 = 128;

/// A crash image some pages of whose journal take no writes.
struct Flawed {
    below: CrashMedium,
    journal: u64,
    /// By their numbers in it.
    bad: Vec<u64>,
    /// Whether such a write, of which nobody knows, did what it was to do.
    written_all_the_same: bool,
    /// Whether they cannot be read either.
    unreadable: bool,
    /// Writes that failed.
    failed: AtomicU64,
    /// So many flushes do not fail.
    flushes: AtomicU64,
    healed: AtomicBool,
}

impl Flawed {
    fn new(image: Vec<u8>, bad: Vec<u64>) -> Flawed {
        Flawed {
            below: CrashMedium::from_image(image),
            journal: JOURNAL,
            bad,
            written_all_the_same: false,
            unreadable: false,
            failed: AtomicU64::new(0),
            flushes: AtomicU64::new(u64::MAX),
            healed: AtomicBool::new(false),
        }
    }

    fn touches(&self, offset: u64, len: usize) -> bool {
        let within = |page: &u64| {
            let start = self.journal + page * 4096;
            offset < start + 4096 && start < offset + len as u64
        };
        !self.healed.load(Ordering::Relaxed) && self.bad.iter().any(within)
    }
}

fn failed<T>(offset: u64) -> Result<T, MediumError> {
    Err(MediumError::Io { kind: io::ErrorKind::Other, offset })
}

impl Medium for Flawed {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if self.unreadable && self.touches(offset, buf.len()) {
            return failed(offset);
        }
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.write_vectored_at(offset, &[IoSlice::new(buf)])
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        let fails = self.touches(offset, bufs.iter().map(|buf| buf.len()).sum());
        if !fails || self.written_all_the_same {
            self.below.write_vectored_at(offset, bufs)?;
        }
        if fails {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return failed(offset);
        }
        Ok(())
    }
    fn flush(&self) -> Result<(), MediumError> {
        if self
            .flushes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_err()
        {
            return failed(0);
        }
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
    fn positions(&self) -> bool {
        self.below.positions()
    }
    fn counters(&self) -> Counters {
        self.below.counters()
    }
    fn describe(&self) -> String {
        self.below.describe()
    }
}

/// A device with a chunk in its states: number k has the epoch k, a log that begins with its record k, and changes 1 to k.
struct Script {
    device: Device,
    medium: Arc<Flawed>,
    contents: Vec<Vec<u8>>,
    /// How many events there were when it was answered.
    answered: Vec<usize>,
}

impl Script {
    fn new(bad: Vec<u64>, flaw: impl FnOnce(&mut Flawed)) -> Script {
        let mut medium = Flawed::new(vec![0; CAPACITY as usize], bad);
        flaw(&mut medium);
        let medium = Arc::new(medium);
        // What cannot be read keeps nobody from formatting.
        updatable(&*medium, false);
        let mut device = open(medium.clone());
        let content = chunk(&mut device, S, 3, 64 << 10);
        let answered = vec![medium.below.len()];
        Script { device, medium, contents: vec![content], answered }
    }

    fn record(state: u64) -> [u8; 100] {
        [state as u8; 100]
    }

    /// One frame, of one page or two.
    fn step(device: &mut Device, state: u64, content: &mut [u8]) -> Result<(), DeviceError> {
        let mut apply = Apply { log_start: Some(state), ..Apply::default() };
        if !state.is_multiple_of(3) {
            let granule = (state % 6) as usize;
            content[granule << 12..(granule + 1) << 12].fill(state as u8);
            apply.patches.push(((granule as u64) << 12, vec![state as u8; 4096].into()));
        }
        device.apply(S, EPOCH, apply).unwrap();
        device.log_append(S, EPOCH, &Self::record(state)).unwrap();
        device.fence(FENCED, Epoch(state)).unwrap();
        device.flush().map(|_| ())
    }

    fn go_on(&mut self) -> Result<(), DeviceError> {
        let mut content = self.contents.last().unwrap().clone();
        let outcome = Self::step(&mut self.device, self.contents.len() as u64, &mut content);
        self.contents.push(content);
        if outcome.is_ok() {
            self.answered.push(self.medium.below.len());
        }
        outcome
    }

    fn failed_writes(&self) -> u64 {
        self.medium.failed.load(Ordering::Relaxed)
    }

    /// The state of a device, whole; which it is.
    fn state(&self, device: &mut Device) -> u64 {
        let state = device.epoch(FENCED).map_or(0, |epoch| epoch.0);
        assert!(chunk_content(device, S).unwrap() == self.contents[state as usize], "{state}");
        let log: Vec<u64> = device.log_entries(S).unwrap().iter().map(|entry| entry.sequence).collect();
        assert_eq!(log, (state.max(1)..=state).collect::<Vec<_>>());
        if state > 0 {
            assert_eq!(device.log_read(S, state).unwrap(), Script::record(state)[..]);
        }
        device.self_check();
        state
    }

    /// After a power loss behind each of these events.
    fn survives(&self, events: Range<usize>) {
        for at in events {
            let answered = self.answered.iter().rposition(|events| *events <= at).unwrap() as u64;
            for part in 0..4 {
                let image = self.medium.below.crash_image(at, |event, sector| match part {
                    0 => true,
                    1 => (event + sector).is_multiple_of(2),
                    // The last write alone, and all but it.
                    2 => event + 1 == at,
                    _ => event + 1 < at,
                });
                let flawed = Arc::new(Flawed::new(image, self.medium.bad.clone()));
                let mut device = open(flawed.clone());
                let mut state = self.state(&mut device);
                assert!((answered..=answered + 1).contains(&state), "{state} at {at}, part {part}");
                // It goes on from there, past the same page, and what was lost does not come back.
                let mut content = self.contents[state as usize].clone();
                for _ in 0..3 {
                    state += 1;
                    Self::step(&mut device, state, &mut content).unwrap();
                    assert_eq!(device.failed(), None);
                }
                drop(device);
                let mut device = open(flawed);
                assert_eq!(device.epoch(FENCED), Some(Epoch(state)));
                assert!(chunk_content(&mut device, S).unwrap() == content);
                assert_eq!(device.log_read(S, state).unwrap(), Script::record(state)[..]);
            }
        }
    }
}

/// The frame that meets it has one page or two, of which it is the first or the last.
#[test]
fn what_meets_a_page_that_takes_no_writes_is_durable_wherever_the_power_is_lost() {
    let mut met = Vec::new();
    for written_all_the_same in [false, true] {
        for bad in 9..13 {
            let mut script =
                Script::new(vec![bad], |medium| medium.written_all_the_same = written_all_the_same);
            let mut before = 0;
            while script.failed_writes() == 0 {
                before = script.medium.below.len();
                script.go_on().unwrap();
                assert!(script.contents.len() < 20);
            }
            met.push(script.failed_writes());
            for _ in 0..2 {
                script.go_on().unwrap();
            }
            script.survives(before..script.medium.below.len() + 1);
            // The ring goes round, and the page is known.
            for _ in 0..150 {
                script.go_on().unwrap();
            }
            assert_eq!(script.failed_writes(), *met.last().unwrap());
            let end = script.medium.below.len();
            script.survives(end - 12..end + 1);
        }
    }
    // Of several pages each is tried.
    met.sort_unstable();
    assert_eq!((met.first(), met.last()), (Some(&1), Some(&2)), "{met:?}");
}

/// An open meets what is left there as well: the page before it is the last that frames come to.
#[test]
fn a_page_that_cannot_be_read_either_is_not_where_frames_end() {
    for bad in 9..13 {
        let mut script = Script::new(vec![bad], |medium| medium.unreadable = true);
        for _ in 0..300 {
            script.go_on().unwrap();
            // As it is found, and with a ring that begins where it ended.
            let image = script.medium.below.image();
            let mut flawed = Flawed::new(image, script.medium.bad.clone());
            flawed.unreadable = true;
            let opened = Device::open(Arc::new(flawed), Some(CLUSTER));
            match opened {
                Ok(mut device) => assert_eq!(script.state(&mut device) as usize, script.contents.len() - 1),
                // Before it was met nobody could know.
                Err(OpenError::Medium(_)) => assert_eq!(script.failed_writes(), 0),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(script.failed_writes() > 0);
    }
}

/// A page each, as a scratch is.
#[test]
fn a_journal_with_many_pages_that_take_no_writes_goes_on_and_one_with_too_many_has_failed() {
    for (bad, goes_on) in
        [(0..1, true), (0..20, true), (PAGES - 20..PAGES, true), (20..60, true), (20..90, false)]
    {
        let count = bad.end - bad.start;
        let mut medium = Flawed::new(vec![0; CAPACITY as usize], bad.clone().collect());
        medium.healed = AtomicBool::new(true);
        let medium = Arc::new(medium);
        updatable(&*medium, false);
        let mut device = open(medium.clone());
        chunk(&mut device, S, 2, 0);
        medium.healed.store(false, Ordering::Relaxed);
        let mut fence = |epoch| device.fence(FENCED, Epoch(epoch)).is_ok() && device.flush().is_ok();
        let answered = (1..=400).take_while(|&epoch| fence(epoch)).last().unwrap();
        assert_eq!(answered == 400, goes_on, "{bad:?}: {answered}");
        let failed = medium.failed.load(Ordering::Relaxed);
        assert!(if goes_on { failed <= count } else { failed > 64 }, "{bad:?}: {failed}");
        let device = reopen(device);
        assert!(device.epoch(FENCED).unwrap() >= Epoch(answered), "{bad:?}");
    }
}

/// Between them no update of the largest size has room: checkpoints have it.
#[test]
fn an_update_that_has_no_room_between_pages_that_take_no_writes_is_durable() {
    const BYTES: usize = 128 << 10;
    let slots = 1 << 20;
    let mut medium = Flawed::new(vec![0; 8 << 20], vec![25, 51, 77, 103]);
    medium.journal = 4096 + 2 * slots;
    let medium = Arc::new(medium);
    let (checkpoint_bytes, journal_bytes) = (Some(slots), Some(PAGES * 4096));
    let options = FormatOptions { checkpoint_bytes, journal_bytes, ..FormatOptions::new(CLUSTER, DEVICE) };
    Device::format(&*medium, options).unwrap();
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 2 * BYTES as u32 / (8 << 10), 0);
    assert_eq!(device.update_bytes_max(), BYTES as u64);
    for round in 0..3 {
        for fill in 0..20 {
            let at = (fill as usize % 2) * BYTES;
            content[at..at + BYTES].fill(fill);
            let patches = vec![(at as u64, vec![fill; BYTES].into())];
            device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
            device.fence(FENCED, Epoch(20 * round + u64::from(fill))).unwrap();
            device.flush().unwrap();
            let mut again = open(Arc::new(CrashMedium::from_image(medium.below.image())));
            assert!(chunk_content(&mut again, S).unwrap() == content, "{round} {fill}");
        }
        device.write_back(u64::MAX).unwrap();
        device = reopen(device);
        assert!(chunk_content(&mut device, S).unwrap() == content);
        assert_eq!(device.epoch(FENCED), Some(Epoch(20 * round + 19)));
    }
    assert!(medium.failed.load(Ordering::Relaxed) >= 4);
}

/// What a frame has no room for behind a redo goes to a checkpoint. Where the redo does as well, that has all of it, and no frame has any
/// of it once more.
#[test]
fn what_follows_a_redo_that_meets_a_page_that_takes_no_writes_is_recorded_once() {
    const OTHER: SegmentId = SegmentId(6);
    const MANY: SegmentId = SegmentId(8);
    let run = |bad: Vec<u64>| {
        let mut script = Script::new(bad, |_| ());
        // The ring is nearly full, so that half of it has no room any more before a checkpoint.
        for _ in 0..60 {
            script.go_on().unwrap();
        }
        let events = script.medium.below.len();
        let mut content = script.contents[60].clone();
        content[..4096].fill(1);
        let patches = vec![(0, vec![1; 4096].into())];
        script.device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
        for epoch in 1..=14_000 {
            script.device.fence(MANY, Epoch(epoch)).unwrap();
        }
        script.device.create_extent(spec(OTHER, 4096, 2)).unwrap();
        write(&mut script.device, OTHER, 0).unwrap();
        script.device.flush().unwrap();
        (script, content, events)
    };
    let (script, _, events) = run(Vec::new());
    let page_of = |event: &Event| match event {
        Event::Write { offset, .. } => offset.checked_sub(JOURNAL).map(|at| at / 4096),
        _ => None,
    };
    let events = &script.medium.below.events()[events..];
    let redo = events.iter().filter_map(page_of).find(|page| *page < PAGES).unwrap();
    assert!(redo > 90, "{redo}");
    for bad in [vec![], vec![redo], vec![redo + 1]] {
        let is_bad = !bad.is_empty();
        let (script, content, _) = run(bad);
        assert_eq!(script.failed_writes() > 0, is_bad);
        let mut device = reopen(script.device);
        assert_eq!((device.epoch(MANY), read(&mut device, OTHER, 0)), (Some(Epoch(14_000)), Ok(())));
        assert!(chunk_content(&mut device, S).unwrap() == content);
    }
}

/// Redo that a checkpoint alone has is not durable before that was flushed, and no version of it may be named.
#[test]
fn what_a_checkpoint_alone_has_is_not_durable_before_that_is_flushed() {
    let script = |steps: usize| {
        let mut script = Script::new(vec![9], |_| ());
        while script.failed_writes() == 0 && script.contents.len() <= steps {
            script.go_on().unwrap();
        }
        script
    };
    let meets = script(20).contents.len() - 1;
    // What comes before the checkpoint, the checkpoint, and the frame that tells of it.
    for (flushes, is_durable) in [(0, false), (1, false), (2, true)] {
        let mut script = script(meets - 1);
        script.medium.flushes.store(flushes, Ordering::Relaxed);
        assert!(script.go_on().is_err());
        assert!(script.failed_writes() > 0 && !script.device.is_durable(S));
        let Script { device, medium, .. } = script;
        drop(device);
        let mut device = open(medium.clone());
        assert!(device.failed().is_some());
        assert_eq!(device.updates(S).unwrap().durable, is_durable, "{flushes} flushes");
        medium.flushes.store(u64::MAX, Ordering::Relaxed);
        assert!(open(medium).updates(S).unwrap().durable);
    }
}
