//! Parts of a device's own area that cannot be read, or are not what was written: the second copy serves as far as it has all
//! that was acknowledged, and no further.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{
    io::{self, IoSlice},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use common::*;
use steadfast_disk::{
    Device, Epoch, FormatOptions, Medium, MemoryMedium, SegmentId,
    device::OpenError,
    media::{Counters, MediumError},
};

const S: SegmentId = SegmentId(5);
const CAPACITY: u64 = 4 << 20;
/// Slots of a device that was formatted small.
const SLOTS: [u64; 2] = [4096, 4096 + (16 << 10)];

/// Memory of which one page cannot be read.
struct OnePage {
    below: MemoryMedium,
    /// Its first byte.
    unreadable: AtomicU64,
}

impl OnePage {
    fn new(image: Vec<u8>) -> Arc<OnePage> {
        Arc::new(OnePage { below: MemoryMedium::from_image(image), unreadable: AtomicU64::new(u64::MAX) })
    }

    /// The same content, with this page unreadable.
    fn without(&self, page: u64) -> Arc<OnePage> {
        let copy = OnePage::new(self.below.image());
        copy.unreadable.store(page, Ordering::Relaxed);
        copy
    }
}

impl Medium for OnePage {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if (offset..offset + buf.len() as u64).contains(&self.unreadable.load(Ordering::Relaxed)) {
            return Err(MediumError::Io { kind: io::ErrorKind::Other, offset });
        }
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.below.write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        self.below.write_vectored_at(offset, bufs)
    }
    fn flush(&self) -> Result<(), MediumError> {
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

/// A small device with two blocks.
fn device() -> (Device, Arc<OnePage>) {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    small(&*medium);
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 4096, 4)).unwrap();
    for index in 0..2 {
        write(&mut device, S, index).unwrap();
        device.flush().unwrap();
    }
    (device, medium)
}

fn reads_both(medium: Arc<OnePage>) {
    let mut device = open(medium);
    for index in 0..2 {
        assert_eq!(read(&mut device, S, index), Ok(()));
    }
}

/// The slot of the newest checkpoint, by the numbers in the headers.
fn newest(medium: &OnePage) -> u64 {
    let image = medium.below.image();
    let number = |slot: &u64| u64::from_le_bytes(image[*slot as usize + 32..][..8].try_into().unwrap());
    SLOTS.into_iter().max_by_key(number).unwrap()
}

#[test]
fn either_superblock_is_enough() {
    let (device, medium) = device();
    drop(device);
    for page in [0, CAPACITY - 4096] {
        reads_both(medium.without(page));
    }
    // It is not blank, and no other device's, as long as nobody knows.
    let blank = OnePage::new(vec![0; CAPACITY as usize]);
    for page in [0, CAPACITY - 4096] {
        let error = Device::open(blank.without(page), None).err();
        assert!(matches!(error, Some(OpenError::Medium(_))), "{error:?}");
    }
    let overwrite = FormatOptions { overwrite: true, ..FormatOptions::new(CLUSTER, DEVICE) };
    assert_eq!(Device::format(&*blank.without(0), overwrite), Ok(()));
}

#[test]
fn either_checkpoint_is_enough_while_nothing_was_written_behind_it() {
    let (device, medium) = device();
    drop(device);
    drop(open(medium.clone()));
    for page in SLOTS.into_iter().flat_map(|slot| [slot, slot + 4096]) {
        reads_both(medium.without(page));
    }
    // What is written behind the newest one may need it.
    let mut device = open(medium.clone());
    device.fence(SegmentId(99), EPOCH).unwrap();
    device.flush().unwrap();
    drop(device);
    for page in SLOTS.into_iter().flat_map(|slot| [slot, slot + 4096]) {
        let copy = medium.without(page);
        if (newest(&copy)..newest(&copy) + 8192).contains(&page) {
            let error = Device::open(copy, None).err();
            assert!(matches!(error, Some(OpenError::IndexDamaged { .. })), "{error:?}");
        } else {
            reads_both(copy);
        }
    }
}

/// Where the journal is full, what is pending goes to the checkpoint, and to nothing else.
#[test]
fn a_group_that_a_lost_checkpoint_alone_had_is_missed() {
    for commits_behind in 0..3 {
        let (mut device, medium) = device();
        let before = newest(&medium);
        let mut epoch = 1;
        while newest(&medium) == before {
            epoch += 1;
            device.fence(S, Epoch(epoch)).unwrap();
            device.flush().unwrap();
        }
        for _ in 0..commits_behind {
            device.fence(SegmentId(99), Epoch(epoch)).unwrap();
            device.flush().unwrap();
            epoch += 1;
        }
        assert_ne!(newest(&medium), before, "these fit the journal");
        drop(device);
        let mut image = medium.below.image();
        image[newest(&medium) as usize + 4096 + 20] ^= 1;
        let error = Device::open(OnePage::new(image), None).err();
        assert!(matches!(error, Some(OpenError::IndexDamaged { .. })), "{commits_behind}: {error:?}");
        // As it is where it cannot be read.
        let error = Device::open(medium.without(newest(&medium) + 4096), None).err();
        assert!(matches!(error, Some(OpenError::IndexDamaged { .. })), "{commits_behind}: {error:?}");
    }
}
