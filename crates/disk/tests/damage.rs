//! Parts of a device's own area that cannot be read, or are not what was written: the second copy serves as far as it has all
//! that was acknowledged, and no further.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use common::{one_page::OnePage, *};
use steadfast_disk::{
    AlignedBuf, Device, Epoch, FormatOptions, Medium, MemoryMedium, SegmentId,
    device::{Apply, DeviceError, LogError, OpenError, ReadError, UpdateError, WriteError},
    media::{Counters, MediumError},
};

const S: SegmentId = SegmentId(5);
const CAPACITY: u64 = 4 << 20;
/// Slots of a device that was formatted small.
const SLOTS: [u64; 2] = [4096, 4096 + (16 << 10)];

/// Memory that takes nothing.
struct ReadOnly {
    below: MemoryMedium,
    flushes: bool,
}

fn refused(offset: u64) -> Result<(), MediumError> {
    Err(MediumError::Io { kind: io::ErrorKind::ReadOnlyFilesystem, offset })
}

impl Medium for ReadOnly {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, _: &[u8]) -> Result<(), MediumError> {
        refused(offset)
    }
    fn flush(&self) -> Result<(), MediumError> {
        if self.flushes { Ok(()) } else { refused(0) }
    }
    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        refused(range.start)
    }
    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        refused(range.start)
    }
    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
        refused(range.start)
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
        // The header is there twice; these slots have no room for what mends a body.
        if page == newest(&copy) + 4096 {
            let error = Device::open(copy, None).err();
            assert!(matches!(error, Some(OpenError::IndexDamaged { .. })), "{error:?}");
        } else {
            reads_both(copy);
        }
    }
}

/// A bad sector of the newest one would else end a device whose data is whole.
#[test]
fn any_page_of_a_checkpoint_may_be_lost() {
    let slot = 64 << 10;
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    let options = FormatOptions { checkpoint_bytes: Some(slot), ..FormatOptions::new(CLUSTER, DEVICE) };
    Device::format(&*medium, options).unwrap();
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 4096, 4)).unwrap();
    for index in 0..2 {
        write(&mut device, S, index).unwrap();
        device.flush().unwrap();
    }
    // Some pages of fences; the journal has what follows.
    for segment in 100..400 {
        device.fence(SegmentId(segment), EPOCH).unwrap();
    }
    device.flush().unwrap();
    drop(device);
    drop(open(medium.clone()));
    let mut device = open(medium.clone());
    device.fence(S, Epoch(9)).unwrap();
    device.flush().unwrap();
    drop(device);
    for page in (4096..4096 + 2 * slot).step_by(4096) {
        let mut image = medium.below.image();
        image[page as usize + 77] ^= 4;
        for lossy in [medium.without(page), OnePage::new(image)] {
            let mut device = open(lossy);
            assert_eq!(device.epoch(S), Some(Epoch(9)), "{page}");
            assert!((100..400).all(|segment| device.epoch(SegmentId(segment)) == Some(EPOCH)));
            assert_eq!(read(&mut device, S, 1), Ok(()));
            device.self_check();
        }
    }
    // Where it takes no writes that is no reason to refuse what is to be written.
    for page in (4096..4096 + 2 * slot).step_by(4096) {
        let copy = OnePage::new(medium.below.image());
        copy.unwritable.store(page, Ordering::Relaxed);
        let is_needed = Device::open(copy.clone(), None).unwrap().failed().is_some();
        let written = (page - 4096) % slot / 4096;
        assert!(!is_needed || written < 5, "{page}");
        copy.unwritable.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(open(copy).epoch(S), Some(Epoch(9)));
    }
    // But not all of the newest one, behind which something was written.
    let lost = [0, slot].map(|slot_at| {
        let copy = OnePage::new(medium.below.image());
        copy.lose(4096 + slot_at..4096 + slot_at + slot);
        Device::open(copy, None).map(drop)
    });
    assert_eq!(lost.iter().filter(|opened| opened.is_ok()).count(), 1, "{lost:?}");
    let damaged = |opened: &Result<(), OpenError>| {
        matches!(opened, Err(OpenError::IndexDamaged { .. } | OpenError::Medium(_)))
    };
    assert!(lost.iter().any(damaged), "{lost:?}");
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

/// Of a copy that was lost nothing may show before the other is, years later.
#[test]
fn a_superblock_with_one_bad_copy_is_written_again() {
    for page in [0, CAPACITY - 4096] {
        let (device, medium) = device();
        drop(device);
        let mut image = medium.below.image();
        image[page as usize + 20] ^= 1;
        let medium = OnePage::new(image);
        drop(open(medium.clone()));
        // Either is enough again.
        for lost in [0, CAPACITY - 4096] {
            reads_both(medium.without(lost));
        }
    }
}

/// What a sector has that was written long ago, and that nobody needs, must not keep a device from its data.
#[test]
fn a_bad_page_of_the_journal_hurts_only_where_the_next_frame_may_be() {
    const START: u64 = 4096 + 2 * (16 << 10);
    const PAGES: u64 = 16;
    let (mut survived, mut failed) = (0, 0);
    for commits in [0, 1, 5, 12, 13, 14, 20, 30] {
        let medium = OnePage::new(vec![0; CAPACITY as usize]);
        let (checkpoint_bytes, journal_bytes) = (Some(16 << 10), Some(PAGES * 4096));
        let options =
            FormatOptions { checkpoint_bytes, journal_bytes, ..FormatOptions::new(CLUSTER, DEVICE) };
        Device::format(&*medium, options).unwrap();
        let mut device = open(medium.clone());
        device.create_extent(spec(S, 4096, 4)).unwrap();
        for index in 0..2 {
            write(&mut device, S, index).unwrap();
            device.flush().unwrap();
        }
        for epoch in 0..commits {
            device.fence(S, Epoch(2 + epoch)).unwrap();
            device.flush().unwrap();
        }
        drop(device);
        let reached = Epoch(1 + commits).max(EPOCH);
        for page in 0..PAGES {
            match Device::open(medium.without(START + page * 4096), Some(CLUSTER)) {
                // Nothing of it was forgotten.
                Ok(mut device) => {
                    survived += 1;
                    device.self_check();
                    for index in 0..2 {
                        assert_eq!(read(&mut device, S, index), Ok(()), "{commits} {page}");
                    }
                    let held = device.extent(S).unwrap().epoch;
                    assert_eq!(held, reached, "{commits} {page}");
                }
                Err(error) => {
                    let OpenError::Medium(MediumError::Io { offset, .. }) = error else {
                        panic!("{commits} {page}: {error}")
                    };
                    assert_eq!(offset, START + page * 4096);
                    failed += 1;
                }
            }
        }
    }
    // Page 0, the next one, and those in force.
    assert!(survived >= 30 && failed >= 16, "{survived} survived, {failed} failed");
}

/// A log of which a page cannot be read is all there, or damaged; and what nobody needs of its reserve does not count.
#[test]
fn a_bad_page_of_a_reserve_hurts_only_where_the_next_record_may_be() {
    const RESERVE_PAGES: u64 = 8;
    let (mut sound, mut damaged) = (0, 0);
    for (records, kept) in [(0, 3), (1, 3), (3, 3), (6, 2), (9, 3), (12, 4)] {
        let medium = OnePage::new(vec![0; 8 << 20]);
        updatable(&*medium, false);
        let mut device = open(medium.clone());
        let content = chunk(&mut device, S, 2, RESERVE_PAGES * 4096);
        for number in 1..=records {
            device.log_append(S, EPOCH, &[number as u8; 3000]).unwrap();
            device.flush().unwrap();
            device.write_back(u64::MAX).unwrap();
            if number > kept {
                let log_start = Some(number - kept + 1);
                device.apply(S, EPOCH, Apply { log_start, ..Apply::default() }).unwrap();
                device.flush().unwrap();
            }
        }
        let entries = device.log_entries(S).unwrap();
        assert_eq!(entries.len() as u64, records.min(kept));
        // All of it in place: the journal has none of it.
        let medium = OnePage::new({
            drop(reopen(device));
            medium.below.image()
        });
        let reserve = content_start(&medium.below.image(), &content) + content.len() as u64;
        for page in 0..RESERVE_PAGES {
            let mut device = open(medium.without(reserve + page * 4096));
            assert_eq!(chunk_content(&mut device, S).unwrap(), content);
            match device.log_entries(S) {
                Ok(found) => {
                    sound += 1;
                    assert_eq!(found, entries, "{records} {kept} {page}");
                    let free = device.log_free(S).unwrap();
                    assert!(free > 0 || found.len() as u64 == RESERVE_PAGES);
                }
                Err(LogError::Damaged { .. }) => damaged += 1,
                Err(error) => panic!("{records} {kept} {page}: {error}"),
            }
        }
    }
    assert!(sound >= 20 && damaged >= 6, "{sound} sound, {damaged} damaged");
}

/// Each read that fails costs a disk seconds, and everything else it has waits.
#[test]
fn a_reserve_that_cannot_be_read_is_searched_once() {
    const RESERVE: u64 = 256 << 10;
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let content = chunk(&mut device, S, 2, RESERVE);
    device.log_append(S, EPOCH, &[1; 3000]).unwrap();
    device.flush().unwrap();
    let reserve = content_start(&medium.below.image(), &content) + content.len() as u64;
    let mut device = reopen(device);
    medium.lose(reserve..reserve + RESERVE);
    let failed = || medium.failed.load(Ordering::Relaxed);
    // It may have records, which what is read does not show.
    assert!(device.chunk_state(S).unwrap().logged);
    let searched = failed();
    assert!(searched > 0);
    assert!(device.chunk_state(S).unwrap().logged);
    assert!(device.updates(S).unwrap().damaged);
    let lost = device.log_entries(S);
    assert!(matches!(lost, Err(LogError::Damaged { .. })), "{lost:?}");
    assert_eq!(failed(), searched);
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);

    // Of a medium that gives nothing at all what the reserve has is there when the medium is back.
    let mut device = reopen(device);
    medium.lose(0..CAPACITY);
    let unread = device.log_entries(S);
    assert!(matches!(unread, Err(LogError::Medium(_))), "{unread:?}");
    medium.lose(0..0);
    assert_eq!(device.log_entries(S).unwrap().len(), 1);
}

/// A change is put in place long after it was answered: what is met there must not end the changes of all others.
#[test]
fn a_bad_page_of_checksums_costs_its_granules_and_not_the_device() {
    const OTHER: SegmentId = SegmentId(6);
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 4, 0);
    let mut content = chunk(&mut device, OTHER, 4, 0);
    // The one page of its table lies before its first block.
    let table = device.locate(S, 3).unwrap() - 4096;
    device.stage(S, EPOCH, 4096, &[1; 4096]).unwrap();
    device.release(S, 1).unwrap();
    device.flush().unwrap();
    drop(device);

    let mut device = open(medium.without(table));
    assert_eq!(device.write_back(u64::MAX).unwrap(), 4096);
    let mut buf = AlignedBuf::zeroed(0);
    device.read_chunk(S, 4096..8192, &mut buf).unwrap();
    assert_eq!(buf[..], [1; 4096]);
    for other in [0, 8192] {
        let error = device.read_chunk(S, other..other + 4096, &mut buf).unwrap_err();
        assert!(matches!(error, UpdateError::Read(ReadError::Corrupt { .. })), "{error:?}");
    }
    device.stage(OTHER, EPOCH, 0, &[2; 100]).unwrap();
    device.release(OTHER, 1).unwrap();
    device.flush().unwrap();
    assert_eq!(device.write_back(u64::MAX).unwrap(), 4096);
    content[..100].fill(2);
    assert_eq!(chunk_content(&mut device, OTHER).unwrap(), content);
}

/// A drive at its end, a filesystem that was mounted anew: what it has may be all that is left of it.
#[test]
fn a_device_whose_medium_takes_no_writes_gives_what_it_has() {
    const OTHER: SegmentId = SegmentId(6);
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    device.create_extent(spec(OTHER, 4096, 4)).unwrap();
    write(&mut device, OTHER, 0).unwrap();
    let mut content = chunk(&mut device, S, 4, 16 << 10);
    // One change that is to be put in place, and one that is held.
    for (version, offset) in [(1u8, 0), (2, 4096)] {
        device.stage(S, EPOCH, offset, &[version; 100]).unwrap();
        content[offset as usize..][..100].fill(version);
    }
    device.release(S, 1).unwrap();
    device.log_append(S, EPOCH, &[7; 100]).unwrap();
    device.flush().unwrap();
    drop(device);

    for flushes in [true, false] {
        let below = MemoryMedium::from_image(medium.below.image());
        let mut device = Device::open(Arc::new(ReadOnly { below, flushes }), Some(CLUSTER)).unwrap();
        device.self_check();
        assert!(matches!(device.failed(), Some(DeviceError::Failed { .. })), "{:?}", device.failed());
        assert_eq!(read(&mut device, OTHER, 0), Ok(()));
        assert_eq!(chunk_content(&mut device, S).unwrap(), content);
        assert_eq!(device.updates(S).unwrap().version, 2);
        assert_eq!(device.log_read(S, 1).unwrap(), &[7; 100][..]);
        let written = write(&mut device, OTHER, 1);
        assert!(matches!(written, Err(WriteError::Device(DeviceError::Failed { .. }))), "{written:?}");
        assert!(matches!(device.stage(S, EPOCH, 0, &[3]), Err(UpdateError::Device(_))));
    }
    // One that takes them again goes on from there.
    let mut device = open(medium);
    assert_eq!(device.failed(), None);
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
}

/// Where a chunk's first byte lies.
fn content_start(image: &[u8], content: &[u8]) -> u64 {
    let found = image.chunks(4096).position(|page| page == &content[..4096]);
    found.unwrap() as u64 * 4096
}

/// A scratch is many pages, and each that is looked at costs a disk seconds.
#[test]
fn a_scratch_in_the_journal_hurts_only_where_the_next_frame_may_be() {
    const START: u64 = 4096 + 2 * (16 << 10);
    const PAGES: u64 = 64;
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    let (checkpoint_bytes, journal_bytes) = (Some(16 << 10), Some(PAGES * 4096));
    let options = FormatOptions { checkpoint_bytes, journal_bytes, ..FormatOptions::new(CLUSTER, DEVICE) };
    Device::format(&*medium, options).unwrap();
    let mut device = open(medium.clone());
    device.fence(S, Epoch(7)).unwrap();
    device.flush().unwrap();
    drop(device);
    let scratched = |image: Vec<u8>, pages: Range<u64>| {
        let medium = OnePage::new(image);
        medium.lose(START + pages.start * 4096..START + pages.end * 4096);
        let opened = Device::open(medium.clone(), Some(CLUSTER)).map(|device| device.epoch(S));
        assert!(medium.failed.load(Ordering::Relaxed) <= 2 * 33);
        opened
    };
    let image = medium.below.image();
    for pages in [32..50, 2..64, 20..64] {
        assert_eq!(scratched(image.clone(), pages.clone()), Ok(Some(Epoch(7))), "{pages:?}");
    }
    // Where the frame is, and where one may be that follows it.
    for pages in [0..50, 1..40] {
        let lost = scratched(image.clone(), pages.clone());
        assert!(matches!(lost, Err(OpenError::Medium(MediumError::Io { .. }))), "{pages:?}: {lost:?}");
    }
    // In the ring's first part, while frames go on in the second.
    let mut device = open(OnePage::new(image));
    for epoch in 8..48 {
        device.fence(S, Epoch(epoch)).unwrap();
        device.flush().unwrap();
    }
    let medium = device.medium().clone();
    drop(device);
    drop(open(medium.clone()));
    let mut device = open(medium.clone());
    device.fence(S, Epoch(48)).unwrap();
    device.flush().unwrap();
    drop(device);
    let mut image = vec![0; CAPACITY as usize];
    medium.read_at(0, &mut image).unwrap();
    assert_eq!(scratched(image.clone(), 1..40), Ok(Some(Epoch(48))));
    // A newer checkpoint may be lost, as far as is known, and only frames that cannot be read may say so.
    drop(open(medium.clone()));
    medium.read_at(0, &mut image).unwrap();
    let number = |slot: &u64| u64::from_le_bytes(image[*slot as usize + 32..][..8].try_into().unwrap());
    let newest = SLOTS.into_iter().max_by_key(number).unwrap();
    // Its header is there twice.
    [0, 12 << 10].into_iter().for_each(|copy| image[newest as usize + copy + 20] ^= 1);
    assert_eq!(scratched(image.clone(), 0..0), Ok(Some(Epoch(48))));
    let lost = scratched(image, 1..40);
    assert!(matches!(lost, Err(OpenError::Medium(MediumError::Io { .. }))), "{lost:?}");
}
