//! Power loss during seeded sequences of updates in place, and during the recovery from it.
//!
//! At each event of a sequence some subsets of the unflushed writes survive, torn at 512 bytes. After each: what was
//! flushed is there; an update is whole or absent, and none without those before it; patches, merged versions and the
//! log's start of one change are there together; held differences are right; nothing fails its checksum.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{collections::BTreeMap, sync::Arc};

use common::*;
use rand_pcg::Pcg64;
use steadfast_disk::{
    Device, Epoch, SegmentId,
    device::{Apply, CreateError, LogError, UpdateError},
    media::CrashMedium,
};

const CAPACITY: u64 = 1216 << 10;
const DATA: SegmentId = SegmentId(0xda);
const PARITY: SegmentId = SegmentId(0xba);
const BLOCKS: u32 = 3;
const CHUNK: u64 = 3 * (8 << 10);
/// Two or three records, so that the log wraps often.
const RESERVE: u64 = 24 << 10;

/// A content of the data chunk.
#[derive(Clone)]
struct DataState {
    version: u64,
    /// Where it was staged; `None`: at first.
    staged: Option<u64>,
    /// How many of its updates came as products of another chunk's.
    overwritten: u64,
    content: Vec<u8>,
}

/// A content of the parity chunk: number k has merged version k.
#[derive(Clone)]
struct ParityState {
    content: Vec<u8>,
    log_start: u64,
}

/// What held once so many events had happened.
#[derive(Clone, Copy, Debug, Default)]
struct Promise {
    events: usize,
    /// Durable states.
    data: usize,
    parity: usize,
    /// The next log record behind the durable ones.
    log_next: u64,
    /// Staged versions up to here may have lost their differences.
    released: u64,
}

struct Script {
    device: Device,
    medium: Arc<CrashMedium>,
    random: Pcg64,
    data: Vec<DataState>,
    parity: Vec<ParityState>,
    log: BTreeMap<u64, Vec<u8>>,
    promises: Vec<Promise>,
    promise: Promise,
    others: u64,
    epoch: u64,
}

impl Script {
    fn new(seed: u64) -> Script {
        let medium = CrashMedium::new(CAPACITY);
        updatable(&medium, seed.is_multiple_of(2));
        let medium = Arc::new(medium);
        let mut device = open(medium.clone());
        let content = chunk(&mut device, DATA, BLOCKS, 0);
        let data = vec![DataState { version: 0, staged: None, overwritten: 0, content }];
        let content = chunk(&mut device, PARITY, BLOCKS, RESERVE);
        let parity = vec![ParityState { content, log_start: 1 }];
        drop(device);
        let medium = Arc::new(CrashMedium::from_image(medium.image()));
        medium.set_positions((seed / 2).is_multiple_of(2));
        let device = open(medium.clone());
        let promise = Promise { log_next: 1, ..Promise::default() };
        let mut script = Script {
            device,
            medium,
            random: random(seed),
            data,
            parity,
            log: BTreeMap::new(),
            promises: vec![promise],
            promise,
            others: 0,
            epoch: 1,
        };
        // The ring is nearly full, so that the sequence meets a checkpoint.
        for _ in 0..92 + below(&mut script.random, 36) {
            script.other_group();
        }
        script
    }

    fn promise(&mut self, change: impl FnOnce(&mut Promise)) {
        change(&mut self.promise);
        self.promise.events = self.medium.len();
        self.promises.push(self.promise);
    }

    fn other_group(&mut self) {
        self.epoch += 1;
        self.device.fence(SegmentId(0xfe), Epoch(self.epoch)).unwrap();
        self.flush();
    }

    fn flush(&mut self) {
        self.device.flush().unwrap();
        let (data, parity) = (self.data.len() - 1, self.parity.len() - 1);
        let log_next = self.log.keys().next_back().map_or(1, |last| last + 1);
        self.promise(|p| (p.data, p.parity, p.log_next) = (data, parity, log_next));
        self.device.ease().unwrap();
        self.device.self_check();
    }

    fn patch(&mut self) -> (u64, Vec<u8>) {
        let granules = 1 + below(&mut self.random, 2);
        let offset = below(&mut self.random, CHUNK / 4096 - granules + 1) * 4096;
        (offset, random_bytes(&mut self.random, (granules * 4096) as usize))
    }

    fn release(&mut self) {
        let last = self.data.last().unwrap().version;
        let through = last - below(&mut self.random, 3).min(last);
        self.promise(|p| p.released = p.released.max(through));
        self.device.release(DATA, through).unwrap();
    }

    fn stage(&mut self) {
        let offset = below(&mut self.random, CHUNK - 6000);
        let len = 1 + below(&mut self.random, 6000) as usize;
        let new = random_bytes(&mut self.random, len);
        let last = self.data.last().unwrap();
        let (version, mut content, mut overwritten) =
            (last.version + 1, last.content.clone(), last.overwritten);
        let staged = if below(&mut self.random, 3) == 0 {
            overwritten += 1;
            let at = offset as usize..offset as usize + len;
            content[at.clone()].copy_from_slice(&xor(&last.content[at], &new));
            self.device.overwrite(DATA, EPOCH, offset, &new, (9, overwritten))
        } else {
            content[offset as usize..][..len].copy_from_slice(&new);
            self.device.stage(DATA, EPOCH, offset, &new)
        };
        match staged {
            Ok(staged) => {
                let range = staged.offset as usize..staged.offset as usize + staged.difference.len();
                assert_eq!(staged.version, version);
                assert_eq!(staged.difference[..], xor(&last.content[range.clone()], &content[range])[..]);
                self.data.push(DataState { version, staged: Some(staged.offset), overwritten, content });
            }
            Err(UpdateError::Held { .. }) => self.release(),
            Err(error) => panic!("{error}"),
        }
    }

    fn apply(&mut self) {
        let mut state = self.parity.last().unwrap().clone();
        let mut patches = Vec::new();
        for _ in 0..below(&mut self.random, 3) {
            let (offset, bytes) = self.patch();
            state.content[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            patches.push((offset, bytes.into()));
        }
        let next = self.log.keys().next_back().map_or(1, |last| last + 1);
        let consumed = below(&mut self.random, next - state.log_start + 1);
        let moves = below(&mut self.random, 2) == 0;
        let log_start = moves.then_some(state.log_start + consumed);
        state.log_start = log_start.unwrap_or(state.log_start);
        // What stays is given too, sometimes as it is not.
        let mut between = Vec::new();
        for _ in 0..below(&mut self.random, 3) {
            let (offset, wrong) = self.patch();
            let there = state.content[offset as usize..][..wrong.len()].to_vec();
            between.push((offset, if below(&mut self.random, 4) == 0 { wrong } else { there }.into()));
        }
        let merged = vec![(7, self.parity.len() as u64)];
        let apply = Apply { patches, merged, log_start, between };
        self.device.apply(PARITY, EPOCH, apply).unwrap();
        self.parity.push(state);
    }

    fn append(&mut self) {
        // Few are larger than what the journal takes of a log.
        let most = if below(&mut self.random, 12) == 0 { 20_000 } else { 9000 };
        let len = below(&mut self.random, most) as usize;
        let payload = random_bytes(&mut self.random, len);
        match self.device.log_append(PARITY, EPOCH, &payload) {
            Ok(sequence) => {
                assert_eq!(sequence, self.log.keys().next_back().map_or(1, |last| last + 1));
                self.log.insert(sequence, payload);
            }
            Err(LogError::Full { needed, free }) => assert!(free < needed),
            Err(error) => panic!("{error}"),
        }
    }

    /// Another chunk comes, changes and goes: the next one has its space.
    fn replace(&mut self) {
        let old = SegmentId(0x1000 + self.others);
        if self.device.extent(old).is_some() {
            self.device.delete(old, EPOCH).unwrap();
            if below(&mut self.random, 2) == 0 {
                self.flush();
            }
        }
        self.others += 1;
        let segment = SegmentId(0x1000 + self.others);
        let updates = Some(steadfast_disk::Updates { reserve_bytes: 16 << 10 });
        let spec = steadfast_disk::ExtentSpec { updates, ..spec(segment, 8 << 10, 2) };
        match self.device.create_extent(spec) {
            Ok(_) => {}
            Err(CreateError::Full { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        write(&mut self.device, segment, 0).unwrap();
        write(&mut self.device, segment, 1).unwrap();
        match self.device.stage(segment, EPOCH, 5000, &[7; 100]) {
            Ok(_) | Err(UpdateError::Held { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.device.log_append(segment, EPOCH, &[9; 100]).unwrap();
        if below(&mut self.random, 2) == 0 {
            self.device.release(segment, 1).unwrap();
        }
    }

    fn step(&mut self) {
        match below(&mut self.random, 24) {
            0..6 => self.stage(),
            6..10 => self.apply(),
            10..13 => self.append(),
            13..15 => self.release(),
            15..18 => self.flush(),
            18..20 => {
                let max = below(&mut self.random, 5) * 8192;
                self.device.write_back(max).unwrap();
            }
            20 => {
                // Into the space of what the change just consumed.
                self.apply();
                self.append();
                self.stage();
            }
            21 => self.replace(),
            22 => {
                // Its emulation may change while it is used.
                let positions = below(&mut self.random, 2) == 0;
                self.medium.set_positions(positions);
            }
            _ => self.other_group(),
        }
    }

    fn promise_at(&self, events: usize) -> Promise {
        self.promises[self.promises.partition_point(|p| p.events <= events) - 1]
    }

    /// Opens a crash image and checks everything that must hold. Returns the medium it was opened on.
    fn check(&self, image: Vec<u8>, promise: Promise) -> Arc<CrashMedium> {
        let medium = Arc::new(CrashMedium::from_image(image));
        medium.set_positions(promise.events.is_multiple_of(2));
        let mut device = open(medium.clone());
        self.check_data(&mut device, promise);
        self.check_parity(&mut device, promise);
        for info in device.extents().collect::<Vec<_>>() {
            if info.segment.0 >= 0x1000 && info.block_count() > 0 {
                chunk_content(&mut device, info.segment).unwrap();
                device.held(info.segment).unwrap();
                device.log_entries(info.segment).unwrap();
            }
        }
        device.self_check();
        medium
    }

    fn check_data(&self, device: &mut Device, promise: Promise) {
        let info = device.updates(DATA).unwrap();
        let version = info.version;
        let at = self.data.iter().position(|s| s.version == version).expect("a version there was");
        assert!(at >= promise.data, "{version} is older than what was flushed");
        assert!(chunk_content(device, DATA).unwrap() == self.data[at].content, "version {version} is torn");
        let overwritten = self.data[at].overwritten;
        assert_eq!(info.merged, Vec::from_iter((overwritten > 0).then_some((9, overwritten))));
        let held = device.held(DATA).unwrap();
        let mut must: Vec<u64> = self.data[..=at]
            .iter()
            .filter(|s| s.staged.is_some() && s.version > promise.released)
            .map(|s| s.version)
            .collect();
        for staged in held {
            let number = self.data.iter().position(|s| s.version == staged.version).expect("was staged");
            let (before, after) = (&self.data[number - 1].content, &self.data[number].content);
            let range = staged.offset as usize..staged.offset as usize + staged.difference.len();
            assert_eq!(self.data[number].staged, Some(staged.offset));
            assert!(
                staged.difference[..] == xor(&before[range.clone()], &after[range])[..],
                "wrong difference"
            );
            must.retain(|v| *v != staged.version);
        }
        assert!(must.is_empty(), "{must:?} were staged and are not held");
    }

    fn check_parity(&self, device: &mut Device, promise: Promise) {
        let info = device.updates(PARITY).unwrap();
        let at = info.merged.first().map_or(0, |(_, version)| *version as usize);
        assert!(at >= promise.parity, "{at} is older than what was flushed: {}", promise.parity);
        let state = &self.parity[at];
        assert!(chunk_content(device, PARITY).unwrap() == state.content, "change {at} is torn");
        assert!(!info.damaged, "a crash is no damage");
        let next = info.log.last().map_or(state.log_start, |e| e.sequence + 1);
        assert!(next >= promise.log_next, "records from {next} on are lost");
        for (number, entry) in info.log.iter().enumerate() {
            assert_eq!(entry.sequence, state.log_start + number as u64);
            assert_eq!(device.log_read(PARITY, entry.sequence).unwrap(), self.log[&entry.sequence]);
        }
    }
}

/// Some images at one point: with all, none, and torn parts of what was not flushed.
fn images(medium: &CrashMedium, at: usize, random: &mut Pcg64, torn: u64, mut each: impl FnMut(Vec<u8>)) {
    let open = medium.unflushed(at);
    each(medium.crash_image(at, |_, _| true));
    if open.is_empty() {
        return;
    }
    let seed = below(random, u64::MAX);
    let mut whole = common::random(seed);
    let subset = below(&mut whole, 1 << open.len().min(40));
    each(medium.crash_image(at, |event, _| subset >> ((event - open.start) % 40) & 1 == 1));
    for _ in 0..torn {
        let seed = below(random, u64::MAX);
        let mut sectors = common::random(seed);
        let share = 1 + below(&mut sectors, 15);
        each(medium.crash_image(at, |_, _| below(&mut sectors, 16) < share));
    }
}

/// After any crash the device works on, and what it does then is durable as ever.
fn works_on(medium: &Arc<CrashMedium>) {
    let mut device = open(medium.clone());
    let version = device.updates(DATA).unwrap().version;
    let staged = device.stage(DATA, EPOCH, 4000, &[0xee; 200]);
    let staged = match staged {
        Err(UpdateError::Held { .. }) => {
            device.release(DATA, version).unwrap();
            device.stage(DATA, EPOCH, 4000, &[0xee; 200]).unwrap()
        }
        other => other.unwrap(),
    };
    assert_eq!(staged.version, version + 1);
    let next = device.log_entries(PARITY).unwrap().last().map(|e| e.sequence + 1);
    let info = device.updates(PARITY).unwrap();
    let apply = Apply { merged: vec![(8, 1)], log_start: next, ..Apply::default() };
    device.apply(PARITY, EPOCH, apply).unwrap();
    let sequence = device.log_append(PARITY, EPOCH, &[3; 5000]).unwrap();
    assert!(next.is_none_or(|next| next == sequence));
    device.flush().unwrap();
    device.write_back(u64::MAX).unwrap();
    device.release(DATA, version + 1).unwrap();
    device.flush().unwrap();
    device.write_back(u64::MAX).unwrap();
    drop(device);
    let mut device = open(medium.clone());
    assert_eq!(device.updates(DATA).unwrap().version, version + 1);
    assert_eq!(chunk_content(&mut device, DATA).unwrap()[4000..4200], [0xee; 200]);
    assert!(device.held_segments().iter().all(|(s, _)| *s != DATA));
    let after = device.updates(PARITY).unwrap();
    assert_eq!(after.log.iter().map(|e| e.sequence).collect::<Vec<_>>(), [sequence]);
    assert_eq!(after.merged.len(), info.merged.iter().filter(|m| m.0 != 8).count() + 1);
    assert_eq!(device.log_read(PARITY, sequence).unwrap(), &[3; 5000][..]);
}

#[test]
fn every_event_of_seeded_sequences() {
    let seed = seed();
    let mut random = random(seed);
    let (mut count, mut checkpoints) = (0, 0);
    for number in 0..16u64 {
        let mut script = Script::new(seed.wrapping_add(number));
        let start = script.medium.len();
        for _ in 0..36 {
            script.step();
        }
        let end = script.medium.len();
        let events = script.medium.events();
        let slots = 4096..4096 + 2 * (128 << 10);
        checkpoints += events[start..]
            .iter()
            .filter(
                |e| matches!(e, steadfast_disk::media::Event::Write { offset, .. } if slots.contains(offset)),
            )
            .count();
        for at in start..=end {
            let promise = script.promise_at(at);
            let mut last = None;
            images(&script.medium, at, &mut random, 1, |image| {
                count += 1;
                last = Some(script.check(image, promise));
            });
            if at % 7 == 0 {
                works_on(&last.expect("one image at least"));
            }
        }
    }
    println!("{count} images, {checkpoints} writes of checkpoints");
    assert!(
        count > 1000 && checkpoints >= 8,
        "coverage shrank: {count} images, {checkpoints} checkpoint writes"
    );
}

/// So many other records follow a redo in its group that the journal cannot take them all.
#[test]
fn a_group_longer_than_the_journal() {
    let seed = seed();
    let mut random = random(seed);
    let mut script = Script::new(seed);
    let start = script.medium.len();
    let mut fences = 0;
    let mut many_others = |script: &mut Script| {
        for _ in 0..(512 << 10) / 17 + 100 {
            fences += 1;
            script.device.fence(SegmentId(1 << 32 | fences), EPOCH).unwrap();
        }
        script.flush();
    };
    for _ in 0..4 {
        script.stage();
        script.apply();
    }
    script.append();
    many_others(&mut script);
    // A release alone.
    let last = script.data.last().unwrap().version;
    script.promise(|p| p.released = last);
    script.device.release(DATA, last).unwrap();
    many_others(&mut script);
    script.stage();
    script.flush();
    for at in start..=script.medium.len() {
        let promise = script.promise_at(at);
        images(&script.medium, at, &mut random, 3, |image| {
            works_on(&script.check(image, promise));
        });
    }
}

#[test]
fn a_crash_during_recovery() {
    let seed = seed();
    let mut random = random(seed);
    let mut count = 0;
    for number in 100..106u64 {
        let mut script = Script::new(seed.wrapping_add(number));
        let start = script.medium.len();
        for _ in 0..40 {
            script.step();
        }
        let end = script.medium.len();
        for at in (start..=end).rev().step_by(5).take(8) {
            let promise = script.promise_at(at);
            let mut crashed = Vec::new();
            images(&script.medium, at, &mut random, 1, |image| crashed.push(image));
            for image in crashed {
                let medium = Arc::new(CrashMedium::from_image(image));
                drop(open(medium.clone()));
                for cut in 0..=medium.len() {
                    images(&medium, cut, &mut random, 1, |image| {
                        count += 1;
                        script.check(image, promise);
                    });
                }
            }
        }
    }
    println!("{count} images of recoveries");
    assert!(count > 300, "coverage shrank to {count} images");
}

/// Whoever had it open wrote it, and may have ended before it was flushed. Of what is not, no version may be named.
#[test]
fn what_an_open_finds_and_cannot_flush_is_not_durable() {
    let segments = [69, 70, 71, 72].map(SegmentId);
    let [flushed, changed, logged, _] = segments;
    for positions in [false, true] {
        let medium = Arc::new(CrashMedium::new(4 << 20));
        updatable(&*medium, false);
        medium.set_positions(positions);
        let mut device = open(medium.clone());
        segments.into_iter().for_each(|segment| drop(chunk(&mut device, segment, 2, 16 << 10)));
        device.stage(flushed, EPOCH, 0, &[1]).unwrap();
        device.flush().unwrap();
        device.stage(changed, EPOCH, 0, &[2]).unwrap();
        device.log_append(logged, EPOCH, &[3; 100]).unwrap();
        medium.fail_flushes(true);
        assert!(device.flush().is_err());
        drop(device);
        for fails in [true, true, false] {
            medium.fail_flushes(fails);
            let mut device = open(medium.clone());
            assert_eq!(device.failed().is_some(), fails);
            // All of it is there to be read.
            assert_eq!([flushed, changed].map(|segment| device.updates(segment).unwrap().version), [1, 1]);
            assert_eq!(device.log_read(logged, 1).unwrap(), &[3; 100][..]);
            let durable = [true, !fails, !fails, true];
            assert_eq!(segments.map(|segment| device.updates(segment).unwrap().durable), durable);
            assert_eq!(segments.map(|segment| device.is_durable(segment)), durable);
        }
    }
}
