//! What the machine gives without a store: direct writing and reading of plain files, and one loopback socket.

use super::parts::{Cost, Stopwatch};
use anyhow::{Context, Result};
use rand_core::Rng;
use rustix::fs::OFlags;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Barrier, mpsc},
    time::Instant,
};
use steadfast_disk::AlignedBuf;
use steadfast_net::Pacing;

/// Bytes of one request: larger ones gain nothing on the disks we know.
const REQUEST_BYTES: usize = 1 << 20;
const SOCKET_BYTES: usize = 256 << 10;

/// Files of the same size as the devices' parts of an object, in their directories.
pub(super) struct RawFiles {
    files: Vec<File>,
    bytes_each: u64,
    direct: bool,
}

impl RawFiles {
    /// Makes them and writes them once, so that no write is a first one.
    pub(super) fn new(dirs: &[PathBuf], bytes_each: u64) -> Result<Self> {
        let bytes_each = bytes_each.next_multiple_of(REQUEST_BYTES as u64);
        let mut direct = true;
        let files: Result<Vec<File>> = dirs
            .iter()
            .map(|dir| {
                let path = dir.join("raw");
                let made = fs::create_dir_all(dir).and_then(|()| open(&path));
                let (file, passes_cache_by) =
                    made.with_context(|| format!("cannot make {}", path.display()))?;
                direct &= passes_cache_by;
                Ok(file)
            })
            .collect();
        let files = Self { files: files?, bytes_each, direct };
        files.write()?;
        Ok(files)
    }

    /// Whether the files pass the page cache by; if not, their figures are the memory's.
    pub(super) fn direct(&self) -> bool {
        self.direct
    }

    /// Writes all of them at once, each from its own thread, and flushes.
    pub(super) fn write(&self) -> Result<Cost> {
        self.all(|file, buffer, at| file.write_all_at(buffer, at), File::sync_data)
    }

    /// Reads all of them at once.
    pub(super) fn read(&self) -> Result<Cost> {
        self.all(|file, buffer, at| file.read_exact_at(buffer, at), |_| Ok(()))
    }

    fn all(
        &self,
        request: impl Fn(&File, &mut [u8], u64) -> io::Result<()> + Sync,
        end: impl Fn(&File) -> io::Result<()> + Sync,
    ) -> Result<Cost> {
        // Buffers are touched before the clock runs.
        let ready = Barrier::new(self.files.len() + 1);
        let work = |file: &File| -> io::Result<()> {
            let mut buffer = AlignedBuf::zeroed(REQUEST_BYTES);
            buffer.fill(0x5a);
            ready.wait();
            for at in (0..self.bytes_each).step_by(REQUEST_BYTES) {
                request(file, &mut buffer, at)?;
            }
            end(file)
        };
        std::thread::scope(|scope| -> Result<Cost> {
            let work = &work;
            let threads: Vec<_> = self.files.iter().map(|file| scope.spawn(move || work(file))).collect();
            ready.wait();
            let watch = Stopwatch::start();
            for thread in threads {
                thread.join().expect("plain reading and writing does not panic")?;
            }
            Ok(watch.cost(self.bytes_each * self.files.len() as u64))
        })
    }
}

/// Opens a file for direct reading and writing where the filesystem takes that, else through the page cache.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    match options.clone().custom_flags(flags).open(path) {
        Ok(file) if !in_memory(path) => Ok((file, true)),
        _ => options.open(path).map(|file| (file, false)),
    }
}

/// Two plain files, one of which is overwritten at random places: what that leaves to a reader without a store.
pub(super) struct PlainPair {
    files: [File; 2],
    bytes: u64,
}

impl PlainPair {
    /// Of `bytes` each, written once.
    pub(super) fn new(dir: &Path, bytes: u64) -> Result<Self> {
        let dirs = ["overwritten", "untouched"].map(|name| dir.join(name));
        drop(RawFiles::new(&dirs, bytes)?);
        let [overwritten, untouched] = dirs.map(|dir| open(&dir.join("raw")).map(|(file, _)| file));
        Ok(Self { files: [overwritten?, untouched?], bytes })
    }

    /// So many writes of `length` bytes at places that `random` draws, synced once.
    pub(super) fn overwrite(&self, count: usize, length: u64, random: &mut impl Rng) -> Result<()> {
        let mut buffer = AlignedBuf::zeroed(usize::try_from(length)?);
        buffer.fill(0xa5);
        for _ in 0..count {
            self.files[0].write_all_at(&buffer, random.next_u64() % (self.bytes / length) * length)?;
        }
        Ok(self.files[0].sync_data()?)
    }

    /// How fast the overwritten one is read, over the other: the quotients of so many rounds.
    pub(super) fn read(&self, rounds: usize) -> Result<Vec<f64>> {
        let mut buffer = AlignedBuf::zeroed(REQUEST_BYTES);
        let mut quotients = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let mut seconds = [0.0; 2];
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let start = Instant::now();
                for at in (0..self.bytes).step_by(REQUEST_BYTES) {
                    self.files[which].read_exact_at(&mut buffer, at)?;
                }
                seconds[which] = start.elapsed().as_secs_f64();
            }
            quotients.push(seconds[1] / seconds[0]);
        }
        Ok(quotients)
    }
}

/// Small synced writes of several files at once: what an update that reaches so many devices takes at least.
pub(super) struct ParallelWrites {
    places: u64,
    writers: Vec<Writer>,
}

/// A thread that writes where it is told and says when that is durable.
struct Writer {
    write: mpsc::Sender<u64>,
    written: mpsc::Receiver<io::Result<()>>,
}

impl ParallelWrites {
    /// One file of `bytes_each` in each directory, written once; each write has `length` bytes.
    pub(super) fn new(dirs: &[PathBuf], bytes_each: u64, length: usize) -> Result<Self> {
        drop(RawFiles::new(dirs, bytes_each)?);
        let writers: Result<Vec<Writer>> = dirs
            .iter()
            .map(|dir| {
                let (file, _) = open(&dir.join("raw"))?;
                let (write, told) = mpsc::channel::<u64>();
                let (say, written) = mpsc::channel();
                std::thread::spawn(move || {
                    let mut buffer = AlignedBuf::zeroed(length);
                    buffer.fill(0x5a);
                    while let Ok(at) = told.recv() {
                        let done = file.write_all_at(&buffer, at).and_then(|()| file.sync_data());
                        if say.send(done).is_err() {
                            return;
                        }
                    }
                });
                Ok(Writer { write, written })
            })
            .collect();
        Ok(Self { places: bytes_each / length as u64, writers: writers? })
    }

    /// One write of each, at a place drawn: seconds until all are durable.
    pub(super) fn turn(&self, drawn: u64, length: u64) -> Result<f64> {
        self.turn_of(0..self.writers.len(), drawn, length)
    }

    /// The same of `count` of them, drawn too.
    pub(super) fn turn_of_some(&self, count: usize, drawn: u64, length: u64) -> Result<f64> {
        let first = (drawn >> 32) as usize % self.writers.len();
        let some = (first..first + count).map(|number| number % self.writers.len());
        self.write(some, drawn, length)
    }

    /// The same of some of them.
    pub(super) fn turn_of(&self, some: Range<usize>, drawn: u64, length: u64) -> Result<f64> {
        self.write(some, drawn, length)
    }

    fn write(&self, some: impl Iterator<Item = usize> + Clone, drawn: u64, length: u64) -> Result<f64> {
        let start = Instant::now();
        for number in some.clone() {
            let told = self.writers[number].write.send(drawn % self.places * length);
            told.context("a writing thread ended")?;
        }
        for number in some {
            self.writers[number].written.recv().context("a writing thread ended")??;
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// One plain loopback socket, a thread at each end.
pub(super) fn socket(bytes: u64) -> Result<Cost> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no loopback socket")?;
    let address = listener.local_addr()?;
    // As the store's own are.
    Pacing::off(&listener);
    let rounds = bytes.div_ceil(SOCKET_BYTES as u64);
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let buffer = vec![0x5a; SOCKET_BYTES];
        (0..rounds).try_for_each(|_| stream.write_all(&buffer))
    });
    let mut stream = TcpStream::connect(address)?;
    let mut buffer = vec![0; SOCKET_BYTES];
    let watch = Stopwatch::start();
    let mut received = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            more => received += more as u64,
        }
    }
    let cost = watch.cost(received);
    sender.join().expect("sending does not panic")?;
    Ok(cost)
}

/// Whether `dir` lies in memory, where direct I/O cannot be had.
pub(super) fn in_memory(dir: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::statfs(dir).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS_MAGIC))
}
