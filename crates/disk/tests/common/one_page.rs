//! A medium with one bad place.

use std::{
    io::{self, IoSlice},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use steadfast_disk::{
    Medium, MemoryMedium,
    media::{Counters, MediumError},
};

/// Memory of which one page cannot be read, or more, and one not written.
pub struct OnePage {
    pub below: MemoryMedium,
    /// Its first byte.
    pub unreadable: AtomicU64,
    /// How many bytes from there on fail a read that wants any of them.
    pub unreadable_bytes: AtomicU64,
    /// Reads that failed.
    pub failed: AtomicU64,
    /// First byte of the page that takes no writes.
    pub unwritable: AtomicU64,
    /// Writes that failed.
    pub unwritten: AtomicU64,
    /// Whether such a write, of which nobody knows, did what it was to do.
    pub written_all_the_same: AtomicBool,
    /// Whether it says that it positions.
    pub positions: AtomicBool,
}

impl OnePage {
    pub fn new(image: Vec<u8>) -> Arc<OnePage> {
        let below = MemoryMedium::from_image(image);
        let [unreadable, unreadable_bytes, failed, unwritable, unwritten] =
            [u64::MAX, 1, 0, u64::MAX, 0].map(AtomicU64::new);
        let [positions, written_all_the_same] = [false; 2].map(AtomicBool::new);
        Arc::new(OnePage {
            below,
            unreadable,
            unreadable_bytes,
            failed,
            unwritable,
            unwritten,
            written_all_the_same,
            positions,
        })
    }

    /// The same content, with this page unreadable.
    pub fn without(&self, page: u64) -> Arc<OnePage> {
        let copy = OnePage::new(self.below.image());
        copy.unreadable.store(page, Ordering::Relaxed);
        copy
    }

    pub fn lose(&self, part: Range<u64>) {
        self.unreadable.store(part.start, Ordering::Relaxed);
        self.unreadable_bytes.store(part.end - part.start, Ordering::Relaxed);
    }

    fn check_writable(&self, bytes: Range<u64>) -> Result<(), MediumError> {
        if bytes.contains(&self.unwritable.load(Ordering::Relaxed)) {
            self.unwritten.fetch_add(1, Ordering::Relaxed);
            return Err(MediumError::Io { kind: io::ErrorKind::Other, offset: bytes.start });
        }
        Ok(())
    }
}

impl Medium for OnePage {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let start = self.unreadable.load(Ordering::Relaxed);
        let end = start.saturating_add(self.unreadable_bytes.load(Ordering::Relaxed));
        if offset < end && start < offset + buf.len() as u64 {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(MediumError::Io { kind: io::ErrorKind::Other, offset });
        }
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.write_vectored_at(offset, &[IoSlice::new(buf)])
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        let bytes = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        let checked = self.check_writable(offset..offset + bytes);
        if checked.is_ok() || self.written_all_the_same.load(Ordering::Relaxed) {
            self.below.write_vectored_at(offset, bufs)?;
        }
        checked
    }
    fn flush(&self) -> Result<(), MediumError> {
        self.below.flush()
    }
    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.below.allocate(range)
    }
    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.check_writable(range.clone())?;
        self.below.prepare(range)
    }
    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
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
