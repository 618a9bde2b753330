//! Power loss at every write point of scripts of up to two operations, and during recovery.
//!
//! At each point any subset of the unflushed writes may survive, each torn at 512 bytes: all subsets of
//! whole writes when there are few, and seeded torn ones. After each: what was acknowledged reads byte-exact,
//! nothing reads wrong, no two extents overlap, free and used space add up, and the device works on.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one range is what is meant")]
#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use common::*;
use rand_pcg::Pcg64;
use steadfast_disk::{
    Device, DeviceId, Epoch, FormatOptions, SegmentId,
    device::{CreateError, OpenError, WriteError},
    media::{CrashMedium, Event, Medium},
};

const CAPACITY: u64 = 320 << 10;
const A: SegmentId = SegmentId(0xa);
const B: SegmentId = SegmentId(0xb);
/// Odd on purpose: padding, and a short last granule.
const BLOCK_BYTES: u32 = 5000;

#[derive(Debug, Clone, Copy)]
enum Step {
    Create(SegmentId),
    /// Two blocks and a flush.
    Write(SegmentId),
    /// Enough blocks to outgrow the reservation.
    Grow(SegmentId),
    Seal(SegmentId),
    Delete(SegmentId),
    /// Empty commits until the journal is full and a checkpoint is written.
    Checkpoint,
    /// Deletes A, then fills B.
    Replace,
    /// The same in one group: the space of A must not be B's before the group is flushed.
    ReplaceAtOnce,
}

/// What must hold: blocks by segment, and which segments may be in either state.
#[derive(Clone, Default, Debug, PartialEq)]
struct Expected {
    /// Acknowledged blocks; `None`: the segment is durably gone.
    extents: BTreeMap<SegmentId, Option<Vec<u32>>>,
    /// Segments that a change in flight deletes: gone, or still there with all these blocks.
    either: BTreeMap<SegmentId, Vec<u32>>,
}

struct Script {
    device: Device,
    medium: Arc<CrashMedium>,
    /// What held once so many events had happened.
    milestones: Vec<(usize, Expected)>,
    expected: Expected,
    next_index: u32,
}

impl Script {
    fn new(image: Vec<u8>, expected: Expected) -> Script {
        let medium = Arc::new(CrashMedium::from_image(image));
        let device = open(medium.clone());
        let milestones = vec![(0, expected.clone())];
        let next_index = if expected.extents.is_empty() { 100 } else { 200 };
        Script { device, medium, milestones, expected, next_index }
    }

    fn acknowledge(&mut self, change: impl FnOnce(&mut Expected)) {
        self.device.flush().unwrap();
        change(&mut self.expected);
        self.milestones.push((self.medium.len(), self.expected.clone()));
        self.device.self_check();
    }

    /// From here on a change may or may not survive: what it touches is no longer promised.
    fn unpromise(&mut self, change: impl FnOnce(&mut Expected)) {
        let mut weaker = self.expected.clone();
        change(&mut weaker);
        self.milestones.push((self.medium.len(), weaker));
    }

    fn unpromise_delete(&mut self, segment: SegmentId) {
        self.unpromise(|e| {
            if let Some(Some(blocks)) = e.extents.remove(&segment) {
                e.either.insert(segment, blocks);
            }
        });
    }

    fn write_some(&mut self, segment: SegmentId, count: u32) {
        if self.device.extent(segment).is_none_or(|e| e.sealed) {
            return;
        }
        let mut indices: Vec<u32> = (self.next_index..self.next_index + count).collect();
        self.next_index += count + 3;
        indices.retain(|&index| match write(&mut self.device, segment, index) {
            Ok(()) => true,
            Err(WriteError::Full { .. }) => false,
            Err(error) => panic!("{error}"),
        });
        self.acknowledge(|e| {
            e.extents.entry(segment).or_default().get_or_insert_default().extend(&indices);
        });
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Create(segment) => {
                if self.device.extent(segment).is_none() {
                    self.unpromise(|e| drop(e.extents.remove(&segment)));
                    match self.device.create_extent(spec(segment, BLOCK_BYTES, 3)) {
                        Ok(_) => {}
                        Err(CreateError::Full { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                    self.acknowledge(|e| drop(e.extents.insert(segment, Some(Vec::new()))));
                }
            }
            Step::Write(segment) => self.write_some(segment, 2),
            Step::Grow(segment) => self.write_some(segment, 5),
            Step::Seal(segment) => {
                let Some(Some(blocks)) = self.expected.extents.get(&segment).cloned() else { return };
                let kept: Vec<u32> = blocks.iter().copied().filter(|b| b % 2 == 1).collect();
                let keep: Vec<Range<u32>> = kept.iter().map(|&b| b..b + 1).collect();
                self.unpromise(|e| drop(e.extents.insert(segment, Some(kept.clone()))));
                self.device.seal(segment, EPOCH, &keep).unwrap();
                self.acknowledge(|e| drop(e.extents.insert(segment, Some(kept))));
            }
            Step::Delete(segment) => {
                self.unpromise_delete(segment);
                self.device.delete(segment, EPOCH).unwrap();
                self.acknowledge(|e| drop(e.extents.insert(segment, None)));
            }
            Step::Checkpoint => {
                for round in 0..4 {
                    self.device.fence(SegmentId(0xfe), Epoch(u64::from(self.next_index) + round)).unwrap();
                    self.acknowledge(|_| {});
                }
                self.next_index += 10;
            }
            Step::ReplaceAtOnce => {
                if self.device.extent(B).is_some() || self.device.extent(A).is_none() {
                    return;
                }
                self.unpromise_delete(A);
                self.device.delete(A, EPOCH).unwrap();
                self.device.create_extent(spec(B, BLOCK_BYTES, 64)).unwrap();
                let first = self.next_index;
                while write(&mut self.device, B, self.next_index).is_ok() {
                    self.next_index += 1;
                }
                let blocks = (first..self.next_index).collect();
                self.acknowledge(|e| {
                    e.extents.insert(A, None);
                    e.extents.insert(B, Some(blocks));
                });
            }
            Step::Replace => {
                self.run(Step::Delete(A));
                self.run(Step::Create(B));
                self.run(Step::Grow(B));
            }
        }
    }

    fn expected_at(&self, events: usize) -> &Expected {
        let at = self.milestones.partition_point(|(number, _)| *number <= events);
        &self.milestones[at - 1].1
    }
}

/// Opens a crash image and checks everything that must hold.
fn check(image: Vec<u8>, expected: &Expected) -> Arc<CrashMedium> {
    let medium = Arc::new(CrashMedium::from_image(image));
    let mut device = open(medium.clone());
    for (segment, blocks) in &expected.extents {
        match blocks {
            None => assert!(device.extent(*segment).is_none(), "{segment} is back"),
            Some(blocks) => {
                assert!(device.extent(*segment).is_some(), "{segment} is lost");
                for &index in blocks {
                    assert_eq!(
                        read(&mut device, *segment, index),
                        Ok(()),
                        "{segment} {index} of {expected:?}"
                    );
                }
            }
        }
    }
    for (segment, blocks) in &expected.either {
        let present = device.extent(*segment).is_some();
        for &index in blocks.iter().filter(|_| present) {
            assert_eq!(read(&mut device, *segment, index), Ok(()), "{segment} {index} half deleted");
        }
    }
    // Whatever else is listed reads right: blocks that did not survive whole are not listed. (A listed but
    // corrupt one would let a repeated write of it succeed without writing anything.)
    for info in device.extents().collect::<Vec<_>>() {
        for index in info.blocks.into_iter().flatten() {
            assert_eq!(read(&mut device, info.segment, index), Ok(()), "{} {index}", info.segment);
        }
    }
    // And it works on, in the space that is free.
    let fresh = SegmentId(0xffff);
    match device.create_extent(spec(fresh, BLOCK_BYTES, 1)) {
        Ok(_) => {}
        Err(CreateError::Full { longest, .. }) if longest < 12 << 10 => {
            // Nothing is free: delete something first.
            let victim = device.extents().next().expect("a full device holds something").segment;
            device.delete(victim, EPOCH).unwrap();
            device.flush().unwrap();
            device.create_extent(spec(fresh, BLOCK_BYTES, 1)).unwrap();
            write(&mut device, fresh, 1).unwrap();
            device.flush().unwrap();
            device.self_check();
            return medium;
        }
        Err(error) => panic!("{error}"),
    }
    write(&mut device, fresh, 1).unwrap();
    device.flush().unwrap();
    device.self_check();
    for (segment, blocks) in &expected.extents {
        for &index in blocks.iter().flatten() {
            assert_eq!(read(&mut device, *segment, index), Ok(()));
        }
    }
    drop(device);
    let mut device = open(medium.clone());
    assert_eq!(read(&mut device, fresh, 1), Ok(()));
    drop(device);
    medium
}

/// The crash images at one point: every subset of whole writes when there are at most `exhaustive`, and torn ones.
fn images(
    medium: &CrashMedium,
    at: usize,
    exhaustive: u32,
    torn: usize,
    random: &mut Pcg64,
    mut each: impl FnMut(Vec<u8>, &mut Pcg64),
) {
    let open: Vec<usize> = medium.unflushed(at).collect();
    if open.len() as u32 <= exhaustive {
        for subset in 0..1u64 << open.len() {
            each(medium.crash_image(at, |event, _| subset >> (event - open[0]) & 1 == 1), random);
        }
    }
    if open.is_empty() {
        return;
    }
    for _ in 0..torn {
        let seed = below(random, u64::MAX);
        // Sectors survive independently; how likely is drawn too, so that nearly whole writes occur.
        let mut sectors = common::random(seed);
        let share = 1 + below(&mut sectors, 15);
        each(medium.crash_image(at, |_, _| below(&mut sectors, 16) < share), random);
    }
}

fn base() -> (Vec<u8>, Expected) {
    let medium = CrashMedium::new(CAPACITY);
    small(&medium);
    (medium.image(), Expected::default())
}

fn run_script(steps: &[Step], random: &mut Pcg64) -> usize {
    let (image, expected) = base();
    // A start with some history: one extent with blocks.
    let mut before = Script::new(image, expected);
    before.run(Step::Create(A));
    before.run(Step::Write(A));
    let (image, expected) = (before.medium.image(), before.expected.clone());
    let mut script = Script::new(image, expected);
    for &step in steps {
        script.run(step);
    }
    let mut count = 0;
    for at in 0..=script.medium.len() {
        let expected = script.expected_at(at).clone();
        images(&script.medium, at, 4, 3, random, |image, _| {
            count += 1;
            check(image, &expected);
        });
    }
    count
}

#[test]
fn every_write_point_of_scripts_of_two_operations() {
    let mut random = random(seed());
    let steps = [
        Step::Create(B),
        Step::Write(A),
        Step::Grow(A),
        Step::Seal(A),
        Step::Delete(A),
        Step::Checkpoint,
        Step::Replace,
        Step::ReplaceAtOnce,
    ];
    let mut images = 0;
    for first in steps {
        for second in steps {
            let second = match second {
                Step::Write(_) if matches!(first, Step::Create(_)) => Step::Write(B),
                other => other,
            };
            images += run_script(&[first, second], &mut random);
        }
    }
    println!("{images} crash images");
    assert!(images > 2000, "coverage shrank to {images} images");
}

/// The recovery of a crash image is cut itself, at every write point of it.
#[test]
fn a_crash_during_recovery() {
    let mut random = random(seed());
    let (image, expected) = base();
    let mut script = Script::new(image, expected);
    for step in [Step::Create(A), Step::Grow(A), Step::Write(A), Step::Checkpoint, Step::Write(A)] {
        script.run(step);
    }
    let mut count = 0;
    for at in (0..=script.medium.len()).rev().take(24) {
        let expected = script.expected_at(at).clone();
        images(&script.medium, at, 2, 2, &mut random, |image, random| {
            let medium = Arc::new(CrashMedium::from_image(image));
            drop(open(medium.clone()));
            for cut in 0..=medium.len() {
                images(&medium, cut, 3, 1, random, |image, _| {
                    count += 1;
                    check(image, &expected);
                });
            }
        });
    }
    println!("{count} images of recoveries");
    assert!(count > 300, "coverage shrank to {count} images");
}

/// Whoever had the device ends between a write and its flush, and the power is lost while it is opened again, on the same medium: what
/// the open found there may not have been durable.
#[test]
fn a_crash_while_what_was_not_flushed_is_opened() {
    let mut random = random(seed());
    let mut count = 0;
    for change in [Step::Write(A), Step::Seal(A), Step::Delete(A)] {
        let (image, expected) = base();
        let mut script = Script::new(image, expected);
        // One page of the journal is left.
        for step in [Step::Create(A), Step::Write(A)] {
            script.run(step);
        }
        let Script { mut device, medium, mut expected, .. } = script;
        let start = medium.len();
        medium.fail_flushes(true);
        match change {
            Step::Write(_) => (900..903).for_each(|index| write(&mut device, A, index).unwrap()),
            Step::Seal(_) => {
                // All that was kept is there either way.
                device.seal(A, EPOCH, &[100..101]).unwrap();
                expected.extents.insert(A, Some(vec![100]));
            }
            _ => {
                device.delete(A, EPOCH).unwrap();
                let blocks = expected.extents.remove(&A).unwrap().unwrap();
                expected.either.insert(A, blocks);
            }
        }
        device.flush().unwrap_err();
        drop(device);
        medium.fail_flushes(false);
        drop(open(medium.clone()));
        for at in start..=medium.len() {
            images(&medium, at, 8, 3, &mut random, |image, _| {
                count += 1;
                check(image, &expected);
            });
        }
    }
    println!("{count} images");
    assert!(count > 80, "coverage shrank to {count} images");
}

/// Blocks of a group that was never acknowledged: the record may survive without the data, and is then forgotten.
#[test]
fn a_record_without_its_data_is_forgotten() {
    let (image, expected) = base();
    let mut script = Script::new(image, expected);
    script.run(Step::Create(A));
    let start = script.medium.len();
    script.run(Step::Write(A));
    let events = script.medium.events();
    assert!(matches!(events.last(), Some(Event::Flush)));
    // Events of the group: two blocks, the table page, the frame. Only the frame survives.
    let frame = events.len() - 2;
    let image = script.medium.crash_image(events.len() - 1, |event, _| event == frame);
    let mut device = open(Arc::new(CrashMedium::from_image(image)));
    assert_eq!(device.extent(A).unwrap().block_count(), 0);
    // The same indices can be written again.
    write(&mut device, A, 100).unwrap();
    device.flush().unwrap();
    assert_eq!(read(&mut device, A, 100), Ok(()));
    assert!(frame > start);
}

/// An interrupted format leaves what was there, or no device, or a whole empty one; whatever it left can be formatted.
#[test]
fn format_is_all_or_nothing() {
    const NEW: DeviceId = DeviceId(0xd2);
    let overwrite = FormatOptions {
        overwrite: true,
        checkpoint_bytes: Some(16 << 10),
        journal_bytes: Some(12 << 10),
        ..FormatOptions::new(CLUSTER, NEW)
    };
    let mut random = random(seed());
    let (image, expected) = base();
    let mut script = Script::new(image, expected);
    script.run(Step::Create(A));
    script.run(Step::Write(A));
    let there = (script.medium.image(), script.expected.clone());
    let (mut old, mut new, mut none) = (0, 0, 0);
    for (image, expected) in [(vec![0; CAPACITY as usize], Expected::default()), there] {
        let medium = CrashMedium::from_image(image);
        Device::format(&medium, overwrite).unwrap();
        for at in 0..=medium.len() {
            images(&medium, at, 4, 4, &mut random, |image, _| {
                let opened = Device::open(Arc::new(CrashMedium::from_image(image.clone())), Some(CLUSTER));
                let medium = match opened.map(|device| (device.id(), device.usage().extents)) {
                    Ok((DEVICE, _)) => {
                        old += 1;
                        check(image, &expected)
                    }
                    Ok((NEW, 0)) => {
                        new += 1;
                        check(image, &Expected::default())
                    }
                    Err(OpenError::Blank | OpenError::SuperblockDamaged) => {
                        none += 1;
                        Arc::new(CrashMedium::from_image(image))
                    }
                    other => panic!("after {at} events: {other:?}"),
                };
                Device::format(&*medium, overwrite).unwrap();
                let device = open(medium);
                assert_eq!((device.id(), device.usage().extents), (NEW, 0));
            });
        }
    }
    println!("{old} images of the old device, {new} of the new one, {none} of none");
    assert!(old > 3 && new > 3 && none > 20, "coverage shrank: {old}, {new}, {none}");
}

/// Records that were acknowledged and are gone later are damage, not a shorter history.
#[test]
fn lost_acknowledged_frames_are_damage() {
    let (image, expected) = base();
    let mut script = Script::new(image, expected);
    for step in [Step::Create(A), Step::Write(A)] {
        script.run(step);
    }
    let mut image = script.medium.image();
    // Destroy the frame that created A; a later frame says that it was flushed.
    let journal = 4096 + 2 * (16 << 10);
    let first = (journal..journal + (12 << 10))
        .step_by(4096)
        .filter(|&at| image[at..at + 4] == *b"SFJ1")
        .min_by_key(|&at| image[at + 24])
        .unwrap();
    image[first + 70] ^= 1;
    let medium: Arc<dyn Medium> = Arc::new(CrashMedium::from_image(image));
    let error = Device::open(medium, None).err().expect("damage is an error");
    assert!(matches!(error, OpenError::IndexDamaged { .. }), "{error}");
}
