//! Media: what a device stands on. One linear space of bytes with reads, writes and a flush.
//!
//! - [`FileMedium`]: one large file in a directory, by direct I/O where the filesystem takes it;
//! - [`MemoryMedium`]: anonymous memory;
//! - [`EmulatedMedium`]: any medium, made as slow, stalled, faulty or full as a model says;
//! - [`CrashMedium`]: memory that remembers every write and gives the images a power loss may leave.
//!
//! Contract, held by [`crate::conformance`]: a read gives what was written last, zeros where nothing was; a
//! write is durable after the next successful [`Medium::flush`] and may be lost, kept or torn at 512-byte
//! sectors before; a range reads as zeros after [`Medium::trim`] or [`Medium::prepare`]; whatever leaves the
//! capacity is refused without effect. Offsets and lengths that are multiples of [`BLOCK_BYTES`] are the fast
//! path; a medium may refuse others as [`MediumError::Misaligned`].

mod crash;
mod emulated;
mod file;
mod made;
mod memory;
mod salvage;
mod spec;

use std::{
    io::{self, IoSlice},
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

pub use crash::{CrashMedium, Event, SECTOR_BYTES};
pub use emulated::{EmulatedMedium, EmulationControl, EmulationReport};
pub use file::{FileMedium, OpenFileError};
pub use made::Made;
pub use memory::MemoryMedium;
pub(crate) use salvage::{Missing, read_what_is_there};
pub(crate) use spec::parse_time_ns;
pub use spec::{EmulationSpec, ParseSpecError};

/// Unit of alignment of offsets and lengths.
pub const BLOCK_BYTES: u64 = 4096;

/// What a medium has done since it was opened. Counted when an operation starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes asked of reads.
    pub bytes_read: u64,
    /// Bytes given to writes.
    pub bytes_written: u64,
    /// Flushes.
    pub flushes: u64,
}

/// Why a medium did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediumError {
    /// No space is left behind the medium; nothing was written.
    #[error("no space left on the medium")]
    Full,
    /// The operating system or the device reported an error.
    #[error("input/output error at byte {offset}: {kind}")]
    Io {
        /// Its kind.
        kind: io::ErrorKind,
        /// Where the operation started.
        offset: u64,
    },
    /// The operation leaves the medium's capacity.
    #[error("{len} bytes at {offset} leave the capacity of {capacity} bytes")]
    OutOfRange {
        /// Start of the operation.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The medium's capacity in bytes.
        capacity: u64,
    },
    /// Offset or length is not a multiple of [`BLOCK_BYTES`] and this medium needs it.
    #[error("{len} bytes at {offset} are not aligned to {BLOCK_BYTES}")]
    Misaligned {
        /// Start of the operation.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The medium does not answer and gave the operation up.
    #[error("the medium does not answer")]
    Stalled,
}

impl MediumError {
    /// The error of the operating system at `offset`.
    pub fn from_io(error: &io::Error, offset: u64) -> MediumError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => MediumError::Full,
            kind => MediumError::Io { kind, offset },
        }
    }
}

/// One linear space of bytes. Calls block; several threads may call at once.
pub trait Medium: Send + Sync {
    /// Size of the space in bytes.
    fn capacity(&self) -> u64;

    /// Fills `buf` from `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError>;

    /// The same from the medium itself, where the system keeps parts of it in memory.
    fn probe(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.read_at(offset, buf)
    }

    /// Has the system fetch a range into its memory, if it keeps any of the medium there, and does not wait for that.
    fn prefetch(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Writes `buf` at `offset`; durable after the next flush.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError>;

    /// Writes the concatenation of `bufs` at `offset`, as one operation where the medium can.
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        let mut at = offset;
        for buf in bufs {
            self.write_at(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// Makes all writes that returned before durable. After an error nothing may be assumed of any write since
    /// the last success, and a later success proves nothing: the error is final.
    fn flush(&self) -> Result<(), MediumError>;

    /// Reserves real space for a byte range, keeping its content. A medium may leave that to the first write where it is not worth its
    /// cost: see [`Medium::guarantee`].
    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError>;

    /// Takes real space for a byte range now, however short it is: no later write to it finds the medium full. What it holds is not
    /// needed any more, and may be zeros afterwards.
    ///
    /// # Errors
    /// [`MediumError::Full`] where there is no space for all of it.
    fn guarantee(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.allocate(range)
    }

    /// Takes real space for whatever of a byte range has none, however short it is, and keeps what it holds: how many bytes that were,
    /// as far as the medium knows. A copy of a sparse file has holes where its original had zeros.
    ///
    /// # Errors
    /// [`MediumError::Full`] where there is no space for all of it.
    fn fill_holes(&self, range: Range<u64>) -> Result<u64, MediumError> {
        let _ = range;
        Ok(0)
    }

    /// Makes a range read as zeros and cheap to write to: no first-write cost is left for the flush.
    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError>;

    /// Gives a range's real space back; it reads as zeros.
    fn trim(&self, range: Range<u64>) -> Result<(), MediumError>;

    /// Whether it positions, as a rotating disk does: passing over some hundred KiB takes less than an operation of its own behind
    /// them.
    fn positions(&self) -> bool {
        false
    }

    /// What was done so far.
    fn counters(&self) -> Counters;

    /// What it is, for people: kind and place.
    fn describe(&self) -> String;

    /// Tells when the request that is served next entered its queue. A medium that models time starts it then
    /// if it was idle; all others ignore it.
    fn note_queued(&self, at: Instant) {
        let _ = at;
    }
}

/// [`Counters`] that many threads can add to.
#[derive(Debug, Default)]
pub(crate) struct CounterCell {
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    flushes: AtomicU64,
}

impl CounterCell {
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Counters {
        Counters {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
        }
    }
}

/// Refuses what leaves the capacity, without overflow.
pub(crate) fn check_range(offset: u64, len: u64, capacity: u64) -> Result<(), MediumError> {
    match offset.checked_add(len) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(MediumError::OutOfRange { offset, len, capacity }),
    }
}

/// As [`check_range`], for a range of bytes.
pub(crate) fn check_span(range: &Range<u64>, capacity: u64) -> Result<(), MediumError> {
    check_range(range.start, range.end.saturating_sub(range.start), capacity)
}
