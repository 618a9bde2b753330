//! A medium in one large file, `space`, in a directory of its own.
//!
//! Writes are direct where the filesystem takes that: the page cache would cost a copy, let dirty pages pile up and
//! hide what the disk does. Where it does not (or keeps files in memory anyway), buffered. Reads go through the page
//! cache: what is read again, or by several readers at once, comes from memory; a direct write drops the pages it replaces. What
//! will be read next is fetched where the reader says so ([`Medium::prefetch`]): the system, which knows no extents, reads nothing
//! ahead. The file is locked while it is open, so two processes on one directory cannot both own it.
//!
//! On a filesystem that takes no writes any more (a drive at its end, an error that the system answered by mounting it anew) it is opened
//! for reading alone: what is there may be all that is left of it.
//!
//! On a filesystem in memory (tmpfs) nothing is reserved ahead but a few pages that must not run out of space: a reservation
//! would take real memory at once and saves nothing, since there are no unwritten ranges to convert.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, IoSlice},
    num::NonZeroU64,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};

use super::{BLOCK_BYTES, CounterCell, Counters, Made, Medium, MediumError, check_range, check_span};
use crate::buffer::{ALIGNMENT, AlignedBuf};

/// Name of the file inside the directory.
const SPACE: &str = "space";
/// `f_type` of tmpfs (`TMPFS_MAGIC`, statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Reservations below this are left to the first write: one system call for each small object would cost more
/// than the fragment it avoids. Picked by eye: eight of the largest small objects.
const ALLOCATE_MIN_BYTES: u64 = 1 << 20;
/// Zeros are written, and misaligned data is gathered, in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Unit of `st_blocks` (stat(3type)).
const STAT_BLOCK_BYTES: u64 = 512;
/// Pieces that one call takes (`UIO_MAXIOV`, readv(2)).
const IOV_MAX: usize = 1024;

/// Why a directory could not be opened as a medium.
#[derive(Debug, thiserror::Error)]
pub enum OpenFileError {
    /// Another process, or another part of this one, has it open.
    #[error("{} is in use by another process; stop it or choose another directory", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// There is no device in this directory.
    #[error("{} does not exist; format the device first", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// There is one already, and it is not overwritten.
    #[error("{} already exists; open it, or remove it first", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot open {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// One file as a linear space.
pub struct FileMedium {
    /// What is written to and flushed.
    file: File,
    /// What is read from: the same file, through the page cache.
    cached: File,
    path: PathBuf,
    capacity: u64,
    /// Whether writes pass the page cache by.
    direct: bool,
    /// Whether its filesystem takes no writes.
    read_only: bool,
    in_memory: bool,
    rotational: bool,
    counters: CounterCell,
    /// Where misaligned data is gathered for direct I/O.
    bounce: Mutex<AlignedBuf>,
}

impl FileMedium {
    /// Makes the directory if needed and in it a space of `capacity` bytes (rounded down to 4 KiB), sparse. Where that
    /// fails, what it made is removed again.
    pub fn create(directory: &Path, capacity: u64) -> Result<FileMedium, OpenFileError> {
        let path = directory.join(SPACE);
        let fail = |source| OpenFileError::Io { path: path.clone(), source };
        let mut made = Made::default();
        made.directory(directory).map_err(fail)?;
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(|source| {
                match source.kind() {
                    io::ErrorKind::AlreadyExists => OpenFileError::Exists { path: path.clone() },
                    _ => fail(source),
                }
            })?;
        lock(&file, &path)?;
        // Only now: one that another process has locked is that one's.
        made.file(path.clone());
        set_capacity(&file, capacity).map_err(fail)?;
        // The new name must survive a power loss too.
        File::open(directory).and_then(|d| d.sync_all()).map_err(fail)?;
        drop(file);
        let medium = FileMedium::open(directory);
        if matches!(medium, Ok(_) | Err(OpenFileError::Locked { .. })) {
            made.keep();
        }
        medium
    }

    /// Gives the space another capacity (rounded down to 4 KiB); what lies behind it is lost.
    pub fn resize(&mut self, capacity: u64) -> Result<(), OpenFileError> {
        set_capacity(&self.file, capacity)
            .map_err(|source| OpenFileError::Io { path: self.path.clone(), source })?;
        self.capacity = capacity / BLOCK_BYTES * BLOCK_BYTES;
        Ok(())
    }

    /// Opens the space in this directory and locks it; for reading alone where its filesystem takes no writes.
    pub fn open(directory: &Path) -> Result<FileMedium, OpenFileError> {
        let path = directory.join(SPACE);
        let fail = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OpenFileError::Missing { path: path.clone() },
            _ => OpenFileError::Io { path: path.clone(), source },
        };
        let (buffered, read_only) = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                (File::open(&path).map_err(fail)?, true)
            }
            opened => (opened.map_err(fail)?, false),
        };
        let in_memory =
            rustix::fs::fstatfs(&buffered).is_ok_and(|s| u64::try_from(s.f_type) == Ok(TMPFS_MAGIC));
        let direct = if in_memory { None } else { open_direct(&path, !read_only) };
        let (file, direct) = match direct {
            Some(file) => (file, true),
            None => (buffered.try_clone().map_err(fail)?, false),
        };
        lock(&file, &path)?;
        // The system would read ahead beyond the end of an extent, 16 MiB on some machines.
        let _ = rustix::fs::fadvise(&buffered, 0, None, rustix::fs::Advice::Random);
        let metadata = file.metadata().map_err(fail)?;
        let capacity = metadata.len() / BLOCK_BYTES * BLOCK_BYTES;
        let rotational = is_rotational(metadata.dev());
        Ok(FileMedium {
            file,
            cached: buffered,
            path,
            capacity,
            direct,
            read_only,
            in_memory,
            rotational,
            counters: CounterCell::default(),
            bounce: Mutex::new(AlignedBuf::zeroed(0)),
        })
    }

    /// Writes zeros over the whole space, so that all of it is taken from the filesystem now and no write pays for
    /// being the first (findings: an unwritten range doubles a flush; untouched memory of a virtual machine is ten
    /// times as slow).
    pub fn fill(&self) -> Result<(), MediumError> {
        self.write_zeros(0..self.capacity)
    }

    /// Whether writes pass the page cache by.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), MediumError> {
        check_range(offset, len, self.capacity)?;
        if self.direct && (!offset.is_multiple_of(BLOCK_BYTES) || !len.is_multiple_of(BLOCK_BYTES)) {
            return Err(MediumError::Misaligned { offset, len });
        }
        Ok(())
    }

    fn check_writable(&self, offset: u64) -> Result<(), MediumError> {
        if self.read_only {
            return Err(MediumError::Io { kind: io::ErrorKind::ReadOnlyFilesystem, offset });
        }
        Ok(())
    }

    fn fallocate(&self, flags: FallocateFlags, range: &Range<u64>) -> Result<bool, MediumError> {
        self.check_writable(range.start)?;
        let bytes = range.end - range.start;
        // A large range takes long enough for a signal to come.
        let asked =
            rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, range.start, bytes));
        match asked {
            Ok(()) => Ok(true),
            Err(error) if error == rustix::io::Errno::OPNOTSUPP => Ok(false),
            Err(error) => Err(MediumError::from_io(&error.into(), range.start)),
        }
    }

    /// One call, which a signal may end before it has begun, as on a filesystem of the network.
    fn pwritev(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::pwritev(&self.file, bufs, offset))?)
    }

    fn write_zeros(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.check_writable(range.start)?;
        let zeros = AlignedBuf::zeroed(PIECE_BYTES.min((range.end - range.start) as usize));
        let mut at = range.start;
        while at < range.end {
            let len = zeros.len().min((range.end - at) as usize);
            self.file.write_all_at(&zeros[..len], at).map_err(|e| MediumError::from_io(&e, at))?;
            at += len as u64;
        }
        Ok(())
    }
}

fn set_capacity(file: &File, capacity: u64) -> io::Result<()> {
    file.set_len(capacity / BLOCK_BYTES * BLOCK_BYTES)?;
    file.sync_all()
}

/// Opens for direct I/O and tries one read: some filesystems accept the flag and refuse its use.
fn open_direct(path: &Path, write: bool) -> Option<File> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).ok()?;
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path).ok()?;
    let mut probe = AlignedBuf::zeroed(BLOCK_BYTES as usize);
    file.read_at(&mut probe, 0).ok().map(|_| file)
}

/// Whether the disk below a filesystem rotates, as far as the system knows: of a partition the disk's directory says so.
fn is_rotational(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let of = |queue| fs::read(format!("/sys/dev/block/{major}:{minor}/{queue}/rotational"));
    of("queue").or_else(|_| of("../queue")).is_ok_and(|said| said.starts_with(b"1"))
}

fn lock(file: &File, path: &Path) -> Result<(), OpenFileError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
            Err(OpenFileError::Locked { path: path.to_owned() })
        }
        Err(error) => Err(OpenFileError::Io { path: path.to_owned(), source: error.into() }),
    }
}

fn is_aligned(buf: &[u8]) -> bool {
    (buf.as_ptr() as usize).is_multiple_of(ALIGNMENT) && buf.len().is_multiple_of(BLOCK_BYTES as usize)
}

impl Medium for FileMedium {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.check(offset, buf.len() as u64)?;
        self.counters.read(buf.len());
        self.cached.read_exact_at(buf, offset).map_err(|e| MediumError::from_io(&e, offset))
    }

    fn probe(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.check(offset, buf.len() as u64)?;
        self.counters.read(buf.len());
        self.file.read_exact_at(buf, offset).map_err(|e| MediumError::from_io(&e, offset))
    }

    fn prefetch(&self, range: Range<u64>) {
        // Advice: where it is not taken, reads come from the medium as before.
        let length = NonZeroU64::new(range.end.saturating_sub(range.start));
        let _ = rustix::fs::fadvise(&self.cached, range.start, length, rustix::fs::Advice::WillNeed);
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.write_vectored_at(offset, &[IoSlice::new(buf)])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        let len = bufs.iter().map(|b| b.len()).sum::<usize>();
        self.check(offset, len as u64)?;
        self.check_writable(offset)?;
        self.counters.write(len);
        let fail = |e: io::Error| MediumError::from_io(&e, offset);
        if let [one] = bufs
            && (!self.direct || is_aligned(one))
        {
            return self.file.write_all_at(one, offset).map_err(fail);
        }
        if !self.direct {
            return match self.pwritev(bufs, offset) {
                Ok(written) if written == len => Ok(()),
                // A short write: finish piece by piece.
                Ok(mut written) => {
                    let mut at = offset;
                    for buf in bufs {
                        let skip = written.min(buf.len());
                        written -= skip;
                        self.file.write_all_at(&buf[skip..], at + skip as u64).map_err(fail)?;
                        at += buf.len() as u64;
                    }
                    Ok(())
                }
                Err(error) => Err(fail(error)),
            };
        }
        if bufs.len() <= IOV_MAX && bufs.iter().all(|buf| is_aligned(buf)) {
            match self.pwritev(bufs, offset) {
                Ok(written) if written == len => return Ok(()),
                // A short write may end anywhere: once more as a whole, piece by piece.
                Ok(_) => {}
                Err(error) => return Err(fail(error)),
            }
        }
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        bounce.resize(len.min(PIECE_BYTES));
        let mut filled = 0;
        let mut at = offset;
        for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                let take = rest.len().min(bounce.len() - filled);
                bounce[filled..filled + take].copy_from_slice(&rest[..take]);
                rest = &rest[take..];
                filled += take;
                if filled == bounce.len() {
                    self.file.write_all_at(&bounce, at).map_err(fail)?;
                    at += filled as u64;
                    filled = 0;
                }
            }
        }
        self.file.write_all_at(&bounce[..filled], at).map_err(fail)
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.counters.flush();
        self.file.sync_data().map_err(|e| MediumError::from_io(&e, 0))
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        check_span(&range, self.capacity)?;
        if self.in_memory || range.end.saturating_sub(range.start) < ALLOCATE_MIN_BYTES {
            return Ok(());
        }
        self.fallocate(FallocateFlags::KEEP_SIZE, &range).map(|_| ())
    }

    fn guarantee(&self, range: Range<u64>) -> Result<(), MediumError> {
        check_span(&range, self.capacity)?;
        let bytes = range.end.saturating_sub(range.start);
        if self.in_memory && bytes >= ALLOCATE_MIN_BYTES {
            // That is the room of an index that is full, of memory that everybody shares.
            return Ok(());
        }
        if !range.is_empty() && !self.fallocate(FallocateFlags::KEEP_SIZE, &range)? {
            self.write_zeros(range)?;
        }
        Ok(())
    }

    fn fill_holes(&self, range: Range<u64>) -> Result<u64, MediumError> {
        check_span(&range, self.capacity)?;
        let bytes = range.end.saturating_sub(range.start);
        if bytes == 0 || self.in_memory && bytes >= ALLOCATE_MIN_BYTES {
            return Ok(0);
        }
        let taken = || match self.file.metadata() {
            Ok(metadata) => Ok(metadata.blocks() * STAT_BLOCK_BYTES),
            Err(error) => Err(MediumError::from_io(&error, range.start)),
        };
        let before = taken()?;
        // Where the filesystem reserves nothing, the first write finds out.
        self.fallocate(FallocateFlags::KEEP_SIZE, &range)?;
        Ok(taken()?.saturating_sub(before))
    }

    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        check_span(&range, self.capacity)?;
        self.write_zeros(range)
    }

    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
        check_span(&range, self.capacity)?;
        if range.is_empty() {
            return Ok(());
        }
        if !self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, &range)? {
            self.write_zeros(range)?;
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        self.rotational
    }

    fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn describe(&self) -> String {
        let how = if self.direct { "direct" } else { "buffered" };
        let read_only = if self.read_only { ", read-only" } else { "" };
        format!("{} ({how}{read_only}, {} bytes)", self.path.display(), self.capacity)
    }
}
