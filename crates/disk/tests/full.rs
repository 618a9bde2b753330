//! A medium with less space behind it than its capacity: what needs more is refused, and everything else goes on.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{
    collections::BTreeSet,
    io::IoSlice,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use common::*;
use steadfast_disk::{
    Device, ExtentSpec, FormatOptions, Granule, Medium, MemoryMedium, SegmentId, Updates, checksum,
    device::{CreateError, LogError, WriteError},
    media::{Counters, MediumError},
};

const PAGE: u64 = 4096;
/// As a filesystem's: see `media::file`.
const ALLOCATE_MIN_BYTES: u64 = 1 << 20;

/// A sparse file on a filesystem with little space: each page takes some once it is written or reserved.
struct Sparse {
    below: MemoryMedium,
    /// Pages that have space, and how many there can be.
    taken: Mutex<(BTreeSet<u64>, usize)>,
    positions: AtomicBool,
    /// Whether what asks for too much is given what there is, and then refused.
    keeps: AtomicBool,
}

impl Sparse {
    fn new(capacity: u64, positions: bool) -> Arc<Sparse> {
        let taken = Mutex::new((BTreeSet::new(), usize::MAX));
        let positions = AtomicBool::new(positions);
        Arc::new(Sparse {
            below: MemoryMedium::new(capacity),
            taken,
            positions,
            keeps: AtomicBool::new(false),
        })
    }

    /// So many pages are left from now on.
    fn leave(&self, pages: usize) {
        let mut taken = self.taken.lock().unwrap();
        taken.1 = taken.0.len() + pages;
    }

    /// The pages that have space.
    fn pages(&self) -> BTreeSet<u64> {
        self.taken.lock().unwrap().0.clone()
    }

    /// Becomes its own sparse copy: pages of zeros have no space any more.
    fn copy(&self) {
        let image = self.below.image();
        let of = |page: u64| &image[(page * PAGE) as usize..][..PAGE as usize];
        self.taken.lock().unwrap().0.retain(|&page| of(page).iter().any(|&byte| byte != 0));
    }

    fn take(&self, range: Range<u64>) -> Result<(), MediumError> {
        let mut taken = self.taken.lock().unwrap();
        let (pages, max) = &mut *taken;
        let new: Vec<u64> =
            (range.start / PAGE..range.end.div_ceil(PAGE)).filter(|page| !pages.contains(page)).collect();
        if pages.len() + new.len() > *max {
            if self.keeps.load(Ordering::Relaxed) {
                let left = *max - pages.len();
                pages.extend(new.into_iter().take(left));
            }
            return Err(MediumError::Full);
        }
        pages.extend(new);
        Ok(())
    }
}

impl Medium for Sparse {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.write_vectored_at(offset, &[IoSlice::new(buf)])
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        self.take(offset..offset + bufs.iter().map(|buf| buf.len() as u64).sum::<u64>())?;
        self.below.write_vectored_at(offset, bufs)
    }
    fn flush(&self) -> Result<(), MediumError> {
        self.below.flush()
    }
    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        if range.end - range.start < ALLOCATE_MIN_BYTES { Ok(()) } else { self.take(range) }
    }
    fn guarantee(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.take(range)
    }
    fn fill_holes(&self, range: Range<u64>) -> Result<u64, MediumError> {
        let before = self.pages().len();
        self.take(range)?;
        Ok((self.pages().len() - before) as u64 * PAGE)
    }
    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.take(range.clone())?;
        self.below.prepare(range)
    }
    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.taken.lock().unwrap().0.retain(|page| !range.contains(&(page * PAGE)));
        self.below.trim(range)
    }
    fn positions(&self) -> bool {
        self.positions.load(Ordering::Relaxed)
    }
    fn counters(&self) -> Counters {
        self.below.counters()
    }
    fn describe(&self) -> String {
        self.below.describe()
    }
}

/// Whatever else is refused: what frees works, and is durable, through a checkpoint, too.
fn still_works(mut device: Device) {
    for segment in device.extents().map(|info| info.segment).collect::<Vec<_>>() {
        assert_eq!(device.delete(segment, EPOCH), Ok(true));
        device.flush().unwrap();
    }
    assert_eq!(device.failed(), None);
    let mut device = reopen(device);
    assert_eq!(device.usage().free, device.usage().capacity);
    device.create_extent(spec(SegmentId(1 << 20), 4096, 1)).unwrap();
    write(&mut device, SegmentId(1 << 20), 0).unwrap();
    device.flush().unwrap();
    let mut device = reopen(device);
    assert_eq!(read(&mut device, SegmentId(1 << 20), 0), Ok(()));
}

#[test]
fn a_filesystem_that_runs_full_refuses_blocks_and_nothing_else() {
    // It runs full with the table of an extent, with its block, and before its checkpoint slots were written.
    for left in 20..26 {
        let medium = Sparse::new(4 << 20, false);
        Device::format(&*medium, FormatOptions::new(CLUSTER, DEVICE)).unwrap();
        let mut device = open(medium.clone());
        // Their index takes several pages of a checkpoint that was not written yet.
        for number in 1000..1200 {
            device.create_extent(spec(SegmentId(number), 100, 1)).unwrap();
            write(&mut device, SegmentId(number), 0).unwrap();
        }
        device.flush().unwrap();
        medium.leave(left);
        let mut written = Vec::new();
        for number in 0.. {
            let segment = SegmentId(number);
            match device.create_extent(spec(segment, 8192, 1)) {
                Ok(_) => {}
                Err(CreateError::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            let block = write(&mut device, segment, 0);
            device.flush().unwrap_or_else(|error| panic!("{left}, after {number}: {error}"));
            match block {
                Ok(()) => written.push(segment),
                Err(WriteError::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        device.flush().unwrap();
        assert_eq!((device.failed(), written.len()), (None, left / 3), "{left}");
        let mut device = reopen(device);
        for segment in written {
            assert_eq!(read(&mut device, segment, 0), Ok(()));
        }
        still_works(device);
    }
}

/// Its space was taken when it was made; each time it asks again the flush behind that waits for the filesystem's journal.
#[test]
fn a_thick_device_asks_for_no_space_and_a_thin_one_does() {
    for thick in [false, true] {
        let medium = Sparse::new(8 << 20, false);
        Device::format(&*medium, FormatOptions { thick, ..FormatOptions::new(CLUSTER, DEVICE) }).unwrap();
        let mut device = open(medium.clone());
        medium.leave(0);
        let created =
            device.create_extent(spec(SegmentId(1), 64 << 10, ALLOCATE_MIN_BYTES as u32 / (64 << 10)));
        assert_eq!(created.is_ok(), thick, "{created:?}");
    }
}

/// Or its last space is nobody's.
#[test]
fn what_a_filesystem_gave_of_too_much_is_given_back() {
    const BLOCK: u32 = 64 << 10;
    for positions in [false, true] {
        let medium = Sparse::new(32 << 20, positions);
        updatable(&*medium, false);
        let mut device = open(medium.clone());
        medium.keeps.store(true, Ordering::Relaxed);
        medium.leave(300);
        let had = medium.pages();
        // Its blocks find no room, or its reserve, of a medium that positions, behind them.
        for (blocks, reserve_bytes) in [(32, 0), (8, 4 << 20)] {
            let updates = Some(Updates { reserve_bytes });
            let refused = device.create_extent(ExtentSpec { updates, ..spec(SegmentId(1), BLOCK, blocks) });
            assert!(matches!(refused, Err(CreateError::Full { .. })), "{refused:?}");
            assert!(medium.pages() == had);
        }
        // One that may grow has its first block, as many as are asked for at a time, and another: 17, 257, and 17 pages.
        device.create_extent(spec(SegmentId(1), BLOCK, 32)).unwrap();
        let written = (0..).take_while(|&index| write(&mut device, SegmentId(1), index) == Ok(())).count();
        assert_eq!(written, 18);
        device.flush().unwrap();
        device.self_check();
        medium.keeps.store(false, Ordering::Relaxed);
        let mut device = reopen(device);
        (0..18).for_each(|index| assert_eq!(read(&mut device, SegmentId(1), index), Ok(())));
        still_works(device);
    }
}

#[test]
fn a_log_that_was_taken_has_space_in_its_reserve_where_it_goes_there_later() {
    let medium = Sparse::new(4 << 20, true);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, SegmentId(1), 2, 160 << 10);
    medium.leave(0);
    for fill in 0..20 {
        device.log_append(SegmentId(1), EPOCH, &[fill; 5000]).unwrap();
    }
    device.flush().unwrap();
    assert_eq!(device.write_back(u64::MAX), Ok(20 * 8192));
    assert_eq!(device.failed(), None);
    let mut device = reopen(device);
    assert_eq!(device.log_read(SegmentId(1), 20).unwrap(), &[19; 5000][..]);
    still_works(device);
}

#[test]
fn a_log_whose_reserve_finds_no_space_refuses_records() {
    let medium = Sparse::new(4 << 20, false);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, SegmentId(1), 2, 600 << 10);
    device.log_append(SegmentId(1), EPOCH, &[1; 5000]).unwrap();
    device.flush().unwrap();
    medium.leave(0);
    // Zeroing ahead of the head can wait.
    while device.has_to_prepare() {
        device.prepare_ahead().unwrap();
    }
    let mut taken = 1;
    let refused = loop {
        match device.log_append(SegmentId(1), EPOCH, &[1; 5000]) {
            Ok(sequence) => taken = sequence,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, LogError::Medium(MediumError::Full)), "{refused}");
    device.flush().unwrap();
    assert_eq!(device.failed(), None);
    let mut device = reopen(device);
    assert_eq!(device.log_entries(SegmentId(1)).unwrap().len() as u64, taken);
    still_works(device);
}

/// There is room for the front of a sparse copy, and not for what commits rely on in its extents. Where there is more, the next open takes
/// that, though the front lacks nothing any more; and nothing else.
#[test]
fn a_sparse_copy_that_found_too_little_room_takes_the_rest_when_it_is_opened_again() {
    // Superblock, checkpoints, journal.
    const FRONT_BYTES: u64 = 4096 + 2 * (128 << 10) + (512 << 10);
    for positions in [false, true] {
        let medium = Sparse::new(4 << 20, positions);
        updatable(&*medium, false);
        let mut device = open(medium.clone());
        chunk(&mut device, SegmentId(1), 2, 160 << 10);
        // A block of zeros that may change, and place for another.
        let updates = Some(Updates { reserve_bytes: 0 });
        device.create_extent(ExtentSpec { updates, ..spec(SegmentId(2), 8 << 10, 2) }).unwrap();
        let zeros = vec![0; 8 << 10];
        let sums = checksum::sums(&zeros, Granule::KIB_4, SegmentId(2), VERSION, 0);
        device.write_block(SegmentId(2), EPOCH, 0, &zeros, &sums).unwrap();
        // Nothing but a table.
        device.create_extent(spec(SegmentId(3), 4096, 10)).unwrap();
        device.flush().unwrap();
        drop(device);
        let had = medium.pages();
        medium.copy();
        let copied = medium.pages();
        let missing = (0..FRONT_BYTES / PAGE).filter(|page| !copied.contains(page)).count();
        medium.leave(missing + 1);
        assert_eq!(open(medium.clone()).failed(), None);
        assert!(medium.pages().len() < had.len());
        medium.leave(usize::MAX / 2);
        assert_eq!(open(medium.clone()).failed(), None);
        assert!(medium.pages() == had, "positions: {positions}");
    }
}

/// Counts what is said to whoever keeps the device.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// How many warnings an open gives.
fn warnings(medium: &Arc<Sparse>) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    // With a single subscriber the thread that comes to a place first says whether any event of it counts: another test's has none.
    let _second = tracing::Dispatch::new(Warnings(Arc::default()));
    tracing::subscriber::with_default(Warnings(count.clone()), || drop(open(medium.clone())));
    count.load(Ordering::Relaxed)
}

/// A reserve has no room before it is used where the medium does not position. Where it does from the next start on it gets some, and
/// nobody copied anything.
#[test]
fn only_a_sparse_copy_is_called_one() {
    let medium = Sparse::new(4 << 20, false);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, SegmentId(1), 2, 128 << 10);
    drop(device);
    let had = medium.pages().len();
    assert_eq!((warnings(&medium), medium.pages().len()), (0, had));
    medium.positions.store(true, Ordering::Relaxed);
    assert_eq!((warnings(&medium), medium.pages().len()), (0, had + 32));
    medium.copy();
    assert_eq!((warnings(&medium), medium.pages().len()), (1, had + 32));
    assert_eq!(warnings(&medium), 0);
}
