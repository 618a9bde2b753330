//! A recorded trace's reads and writes, made of a store: through a file handle, into one object of a parity bucket that has
//! room for all regions that the trace touches ([`CompactingMap`]).
//!
//! The loop is closed: so many requests are outstanding at a time, and each that ends lets the next begin, in the trace's
//! order; its times count only where that is asked for. The bytes written are made up, as no trace has them.

use crate::{
    report::{NotOffered, quantile},
    trace::{CompactingMap, FilePiece, REGION_BYTES, Trace},
};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use core::{str::FromStr, time::Duration};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use std::{
    io::{self, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};
use steadfast_client::{Client, ClientError, File, FileError, FileOptions};
use steadfast_protocol::{message::MetaFault, policy::Policy};
use tokio::task::JoinSet;

/// Longer pieces are read and written one part after the other, so that a request of 4 GiB does not take as much memory.
const PIECE_BYTES_MAX: u32 = 4 << 20;
/// Of all requests, in memory: a gigabyte.
const PIECES_MAX: usize = 1 << 26;
/// How far apart the places are from which two writes in a row take their bytes, and how many such places there are: what is
/// written to one place twice differs.
const NOISE_STEP: usize = 61;
const NOISE_PLACES: usize = 1021;

/// When what was written is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRule {
    /// After so many writes, each time; a sync is part of the write that it follows.
    Every(u64),
    /// When all requests are done.
    End,
}

impl FromStr for SyncRule {
    type Err = String;

    /// Reads `write`, a number of writes, or `end`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "write" => Ok(Self::Every(1)),
            "end" => Ok(Self::End),
            _ => match text.parse() {
                Ok(writes) if writes > 0 => Ok(Self::Every(writes)),
                _ => Err(format!(
                    "`{text}` does not say when to sync: write `write` (after each), a number of writes, or `end`"
                )),
            },
        }
    }
}

/// How requests are made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where: a bucket of policy `parity`.
    pub bucket: String,
    /// The object; stored first where it is not there.
    pub key: String,
    /// Bytes to store then; as many as the trace needs when absent.
    pub size: Option<u64>,
    /// Requests outstanding.
    pub depth: usize,
    /// When what was written is made durable.
    pub sync: SyncRule,
    /// Whether no request begins before its time.
    pub paced: bool,
    /// Memory for what was written and is not stored yet.
    pub cache_bytes: u64,
    /// Repeats the same bytes.
    pub seed: u64,
}

/// One request, where it lies in the object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    at: Option<Duration>,
    write: bool,
    pieces: Vec<FilePiece>,
}

impl Request {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
    }
}

/// The requests of a trace as they are made of one object.
#[derive(Debug)]
pub struct Requests {
    list: Vec<Request>,
    /// The size of the object that has room for all of them.
    pub object_bytes: u64,
    /// Regions of the trace that share their place with others, as the object is too small for all.
    pub folded_regions: u64,
}

impl Requests {
    /// Reads a trace, or its first `limit` requests, for an object of at most `size` bytes.
    ///
    /// # Errors
    /// When it cannot be read, has no requests, or that is no room.
    pub fn read(trace: &Path, limit: Option<u64>, size: Option<u64>) -> Result<Self> {
        let cannot = || format!("cannot replay {}", trace.display());
        let requests = Trace::open(trace).with_context(cannot)?;
        Self::of(requests, limit, size).with_context(cannot)
    }

    fn of(requests: Trace, limit: Option<u64>, size: Option<u64>) -> Result<Self> {
        let size = size.unwrap_or(u64::MAX);
        if size < REGION_BYTES {
            let why = format!("an object of {size} bytes is too small: a trace needs 1 MiB at least");
            return Err(NotOffered(why).into());
        }
        let mut map = CompactingMap::new(size);
        let (mut list, mut pieces_in_all) = (Vec::new(), 0);
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        for request in requests.take(limit) {
            let request = request?;
            if map.is_full() || pieces_in_all > PIECES_MAX {
                let taken = list.len();
                let why = format!(
                    "it touches too much to be held in memory: `--limit {taken}` takes what comes before"
                );
                return Err(NotOffered(why).into());
            }
            let pieces: Vec<_> = map.pieces(&request).into_iter().flat_map(parts).collect();
            pieces_in_all += pieces.len();
            list.push(Request { at: request.at, write: request.write, pieces });
        }
        ensure!(!list.is_empty(), "it has no requests");
        let object_bytes = map.file_bytes();
        let folded_regions = map.regions() - object_bytes / REGION_BYTES;
        Ok(Self { list, object_bytes, folded_regions })
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.list.len() as u64
    }
}

fn parts(piece: FilePiece) -> impl Iterator<Item = FilePiece> {
    (0..piece.bytes).step_by(PIECE_BYTES_MAX as usize).map(move |from| FilePiece {
        offset_bytes: piece.offset_bytes + u64::from(from),
        bytes: PIECE_BYTES_MAX.min(piece.bytes - from),
    })
}

/// How long requests took, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Half of them no longer than this.
    pub p50_ms: f64,
    /// 95 of 100.
    pub p95_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Latency {
    /// None of no requests.
    fn of(samples: &[f64]) -> Option<Self> {
        let at = |share| quantile(samples, share);
        let all = || Self { p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99), max_ms: at(1.0) };
        (!samples.is_empty()).then(all)
    }
}

/// What a replay came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Bytes of the object.
    pub object_bytes: u64,
    /// Whether it was stored first.
    pub stored: bool,
    /// Regions of the trace that share their place with others.
    pub folded_regions: u64,
    /// Requests made.
    pub requests: u64,
    /// From the first request until the last was done and all was durable.
    pub seconds: f64,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Those that read.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// How long they took.
    pub read_latency: Option<Latency>,
    /// Those that wrote.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// How long they took, with the syncs that followed them.
    pub write_latency: Option<Latency>,
    /// Syncs, the last one included.
    pub syncs: u64,
    /// Bytes changed where they lie: what was written twice before a sync is stored once.
    pub in_place_bytes: u64,
    /// Segments stored anew.
    pub segments_anew: u64,
    /// How often ranges of a segment were stored to make room.
    pub evictions: u64,
    /// How often the object was looked up again after it was opened.
    pub lookups: u64,
    /// Pieces of reads that asked no server for anything: of what was written or read before, or never written.
    pub reads_kept: u64,
}

/// What is told while a replay goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The object is stored first, so many bytes.
    Storing(u64),
    /// One more request is done.
    Request,
}

/// What the requests under way share.
struct Shared {
    file: File,
    list: Vec<Request>,
    next: AtomicUsize,
    writes: AtomicU64,
    syncs: AtomicU64,
    noise: Bytes,
    options: Options,
    start: Instant,
}

/// Latencies by one of those who make requests.
#[derive(Default)]
struct Seen {
    reads_ms: Vec<f64>,
    writes_ms: Vec<f64>,
    read_bytes: u64,
    written_bytes: u64,
}

/// Makes all requests; stores the object before where it is not there.
///
/// # Errors
/// When the bucket's policy is not `parity`, the object is too small, the trace has no times to pace it by, or a request fails.
pub async fn run(
    client: &Arc<Client>,
    requests: Requests,
    options: Options,
    step: impl Fn(Step) + Send + Sync + 'static,
) -> Result<Outcome> {
    ensure!(options.depth > 0, "no requests are made with none outstanding");
    if options.paced && requests.list.iter().any(|request| request.at.is_none()) {
        let why = "this trace's times are not to be used: leave out `--paced`";
        return Err(NotOffered(why.to_owned()).into());
    }
    let stored = store(client, &requests, &options, &step).await?;
    let cache_bytes = options.cache_bytes;
    let file_options = FileOptions { cache_bytes, read_cache_bytes: cache_bytes, ..FileOptions::default() };
    let opened = client.open_file_with(&options.bucket, &options.key, &file_options).await;
    let file = opened.map_err(plain)?;
    let (object_bytes, needed) = (file.size(), requests.object_bytes);
    if object_bytes < needed {
        let why = format!(
            "{}/{} is there with {object_bytes} bytes, and these requests need {needed}: `--size {object_bytes}` maps them into \
             that, `--key` names another object",
            options.bucket, options.key
        );
        return Err(NotOffered(why).into());
    }
    let (count, folded_regions) = (requests.count(), requests.folded_regions);
    let longest = requests.list.iter().flat_map(|request| &request.pieces).map(|piece| piece.bytes).max();
    let mut noise = vec![0; longest.unwrap_or(0) as usize + NOISE_STEP * NOISE_PLACES];
    Pcg64Mcg::seed_from_u64(options.seed).fill_bytes(&mut noise);
    let depth = options.depth.min(requests.list.len());
    let (next, writes, syncs) = Default::default();
    let noise = noise.into();
    let start = Instant::now();
    let shared = Arc::new(Shared { file, list: requests.list, next, writes, syncs, noise, options, start });
    let step = Arc::new(step);
    let mut making: JoinSet<Result<Seen>> = JoinSet::new();
    for _ in 0..depth {
        making.spawn(make(Arc::clone(&shared), Arc::clone(&step)));
    }
    let mut all = Seen::default();
    while let Some(made) = making.join_next().await {
        let seen = made.context("a request panicked")??;
        all.reads_ms.extend(seen.reads_ms);
        all.writes_ms.extend(seen.writes_ms);
        all.read_bytes += seen.read_bytes;
        all.written_bytes += seen.written_bytes;
    }
    shared.sync().await.map_err(plain).context("the last sync")?;
    let seconds = start.elapsed().as_secs_f64();
    let counts = shared.file.counts();
    Ok(Outcome {
        object_bytes,
        stored,
        folded_regions,
        requests: count,
        seconds,
        requests_per_s: count as f64 / seconds.max(1e-9),
        reads: all.reads_ms.len() as u64,
        read_bytes: all.read_bytes,
        read_latency: Latency::of(&all.reads_ms),
        writes: all.writes_ms.len() as u64,
        written_bytes: all.written_bytes,
        write_latency: Latency::of(&all.writes_ms),
        syncs: shared.syncs.load(Ordering::Relaxed),
        in_place_bytes: counts.in_place_bytes,
        segments_anew: counts.segments_anew,
        evictions: counts.evictions,
        lookups: counts.lookups,
        reads_kept: counts.reads_kept,
    })
}

/// Stores the object where it is not there; whether that was so.
async fn store(
    client: &Client,
    requests: &Requests,
    options: &Options,
    step: &impl Fn(Step),
) -> Result<bool> {
    match client.stat(&options.bucket, &options.key).await {
        Ok(_) => return Ok(false),
        Err(ClientError::Refused(MetaFault::NoObject { .. })) => {}
        Err(error) => return Err(error.into()),
    }
    // Before anything is stored that cannot be written to.
    let bucket = client.buckets().await?.into_iter().find(|bucket| bucket.name == options.bucket);
    if let Some(bucket) = bucket.filter(|bucket| !matches!(bucket.policy, Policy::Parity(_))) {
        return Err(FileError::Policy { bucket: bucket.name, policy: bucket.policy }.into());
    }
    let size = options.size.unwrap_or(requests.object_bytes);
    step(Step::Storing(size));
    let source = Noise(Pcg64Mcg::seed_from_u64(options.seed)).take(size);
    client.put(&options.bucket, &options.key, source, Some(size)).await?;
    Ok(true)
}

/// Makes requests, one after the other, until none is left.
async fn make(shared: Arc<Shared>, step: Arc<impl Fn(Step)>) -> Result<Seen> {
    let mut seen = Seen::default();
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(request) = shared.list.get(number) else { return Ok(seen) };
        let mut begun = Instant::now();
        if shared.options.paced
            && let (Some(at), Some(first)) = (request.at, shared.list[0].at)
        {
            // Who comes late because all of its turns were taken has waited since then. Of a trace's times none is too far for a clock.
            begun = shared.start + at.saturating_sub(first);
            tokio::time::sleep_until(begun.into()).await;
        }
        let made =
            if request.write { shared.write(number, request).await } else { shared.read(request).await };
        made.map_err(plain).with_context(|| format!("request {} of the trace", number + 1))?;
        let took_ms = begun.elapsed().as_secs_f64() * 1e3;
        if request.write {
            seen.writes_ms.push(took_ms);
            seen.written_bytes += request.bytes();
        } else {
            seen.reads_ms.push(took_ms);
            seen.read_bytes += request.bytes();
        }
        step(Step::Request);
    }
}

impl Shared {
    async fn read(&self, request: &Request) -> Result<(), FileError> {
        for piece in &request.pieces {
            self.file.read_at(piece.offset_bytes, piece.bytes as usize).await?;
        }
        Ok(())
    }

    async fn write(&self, number: usize, request: &Request) -> Result<(), FileError> {
        let from = number % NOISE_PLACES * NOISE_STEP;
        for piece in &request.pieces {
            let bytes = &self.noise[from..from + piece.bytes as usize];
            self.file.write_at(piece.offset_bytes, bytes).await?;
        }
        let writes = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        match self.options.sync {
            SyncRule::Every(each) if writes.is_multiple_of(each) => self.sync().await,
            _ => Ok(()),
        }
    }

    async fn sync(&self) -> Result<(), FileError> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.sync().await
    }
}

/// The error within, whose kind says more.
fn plain(error: FileError) -> anyhow::Error {
    match error {
        FileError::Metadata(error) => error.into(),
        FileError::Read(error) => error.into(),
        FileError::Write(error) => error.into(),
        other => other.into(),
    }
}

/// Bytes without end.
struct Noise(Pcg64Mcg);

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.fill_bytes(buffer);
        Ok(buffer.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0 0 0 16 0\n1000 0 2097152 10 1\n2000 1 0 20000 0\n3000 0 8 8 1\n";

    fn requests(size: Option<u64>, limit: Option<u64>) -> Result<Requests> {
        Requests::of(Trace::new(TRACE.as_bytes()).unwrap(), limit, size)
    }

    #[test]
    fn a_trace_becomes_requests_of_one_small_object() {
        let all = requests(None, None).unwrap();
        // One region each for the first two, and ten for 20000 sectors.
        assert_eq!((all.count(), all.object_bytes, all.folded_regions), (4, 12 * REGION_BYTES, 0));
        let pieces = |number: usize| -> Vec<(u64, u32)> {
            all.list[number].pieces.iter().map(|piece| (piece.offset_bytes, piece.bytes)).collect()
        };
        assert_eq!(pieces(0), [(0, 8192)]);
        assert_eq!(pieces(1), [(REGION_BYTES, 5120)]);
        let (mib, long) = (REGION_BYTES, 4 << 20);
        assert_eq!(pieces(2), [(2 * mib, long), (6 * mib, long), (10 * mib, 20_000 * 512 - 2 * long)]);
        assert_eq!(pieces(3), [(4096, 4096)]);
        assert_eq!(
            all.list.iter().map(|request| request.write).collect::<Vec<_>>(),
            [true, false, true, false]
        );
        let first = requests(None, Some(2)).unwrap();
        assert_eq!((first.count(), first.object_bytes), (2, 2 * REGION_BYTES));
        let small = requests(Some(3 * REGION_BYTES + 5), None).unwrap();
        assert_eq!((small.object_bytes, small.folded_regions), (3 * REGION_BYTES, 9));
        assert!(requests(Some(1000), None).unwrap_err().to_string().contains("1 MiB"));
        assert!(requests(None, Some(0)).unwrap_err().to_string().contains("no requests"));
    }

    /// Each line of 30 bytes asks for 4 GiB elsewhere.
    #[test]
    fn a_trace_that_touches_more_than_fits_memory_is_refused() {
        let line = |number: u64| format!("{number} 0 {} 8388600 1\n", number * 8_388_608);
        let trace: String = (0..300).map(line).collect();
        let of = |limit| Requests::of(Trace::new(io::Cursor::new(trace.clone())).unwrap(), limit, None);
        let error = of(None).unwrap_err();
        assert!(error.is::<NotOffered>() && error.to_string().contains("`--limit 256`"), "{error}");
        assert_eq!(of(Some(256)).unwrap().count(), 256);
    }

    #[test]
    fn rules_of_syncing() {
        assert_eq!("write".parse(), Ok(SyncRule::Every(1)));
        assert_eq!("16".parse(), Ok(SyncRule::Every(16)));
        assert_eq!("end".parse(), Ok(SyncRule::End));
        for bad in ["", "0", "-1", "never"] {
            assert!(bad.parse::<SyncRule>().unwrap_err().contains("`end`"), "{bad}");
        }
    }
}
