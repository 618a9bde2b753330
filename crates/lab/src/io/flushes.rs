//! Whether data and differences become durable side by side or one after the other.
//!
//! Of an update of one data chunk and m parity chunks:
//!
//! | case | what |
//! |---|---|
//! | `update-4KiB one-flush` | what the store does: the data device flushes its redo record while parity devices flush their log records |
//! | `update-4KiB two-flushes` | differences first (the order in which a primary of PLR §4.2 would have it): parity devices flush their log records, then the data device flushes its redo record |
//!
//! The devices are the store's own ([`Device`]), each in a directory and with a thread of its own, without the network between:
//! what a round trip adds, it adds to both. Rounds of both take turns, and of their limits: raw synced writes in the same order.
//!
//! | figure | what |
//! |---|---|
//! | `latency_p50`, `latency_p99` | from the read of the old bytes to the last flush, in ms; limit: 1 + m direct writes with `fdatasync` side by side, or m side by side and then one |
//! | `write_back_ms` | what the data device takes to write an update in place later, where nobody waits |
//! | `latency_of_one_flush` | of `two-flushes`: its median over that of `one-flush` |
//!
//! With the differences durable first, the redo record could be left away and the data be written in place at once, which would
//! spare `write_back_ms`, but no flush. It cannot: a granule and its checksum are two writes, a crash tears either, and what
//! was torn cannot be brought forward by a difference, which is relative to the bytes that are gone; a decode of the other
//! chunks would have to heal it, after every crash and with one loss less to spare.

use super::{
    EXPERIMENT, Options,
    bed::{PARITY, add_latencies},
    raw::ParallelWrites,
    scratch,
};
use crate::report::{Report, mean, quantile};
use anyhow::{Context, Result};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Instant,
};
use steadfast_disk::{
    ClusterId, Device, DeviceId, Epoch, ExtentSpec, FileMedium, FormatOptions, Granule, SegmentId, Version,
    checksum,
    device::{Apply, Staged},
};
use steadfast_protocol::serve::parity_log::Difference;

const UPDATE_BYTES: u64 = 4 << 10;
const CHUNK_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: u32 = 64 << 10;
const CAPACITY: u64 = 64 << 20;
/// As a device of 4 GiB and more has it: rounds are not interrupted by checkpoints that such a device would not make.
const JOURNAL_BYTES: u64 = 16 << 20;
const RAW_BYTES: u64 = 16 << 20;
const SEGMENT: SegmentId = SegmentId(1);
const EPOCH: Epoch = Epoch(1);

/// The order of flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Together,
    DifferencesFirst,
}

pub(super) const ORDERS: [Order; 2] = [Order::Together, Order::DifferencesFirst];

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Together => "update-4KiB one-flush",
            Self::DifferencesFirst => "update-4KiB two-flushes",
        }
    }
}

#[derive(Default)]
struct Figures {
    latencies_ms: Vec<f64>,
    limits_ms: Vec<f64>,
    /// Of one update each, round by round.
    write_back_ms: Vec<f64>,
}

pub(super) fn run(options: &Options, report: &mut Report, say: &mut dyn FnMut(&str)) -> Result<()> {
    let seed = report.seed();
    if !ORDERS.iter().any(|order| options.wants(order.name())) {
        return Ok(());
    }
    let scratch = scratch(options, say)?;
    let dirs = |kind: &str| -> Vec<PathBuf> {
        (0..=PARITY).map(|number| scratch.path().join(format!("{kind}-{number}"))).collect()
    };
    let raw = ParallelWrites::new(&dirs("raw"), RAW_BYTES, UPDATE_BYTES as usize)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut chunks = Chunks::new(&dirs("device"), &mut random)?;
    let (rounds, turns) = if options.quick { (4, 50) } else { (40, 200) };
    let mut figures = ORDERS.map(|_| Figures::default());
    // What is first is not counted: tables are read.
    chunks.round(Order::Together, turns, &mut random, &mut Figures::default())?;
    for round in 0..rounds {
        for turn in 0..ORDERS.len() {
            let which = (round + turn) % ORDERS.len();
            let (order, figures) = (ORDERS[which], &mut figures[which]);
            chunks.round(order, turns, &mut random, figures)?;
            for _ in 0..turns {
                let drawn = random.next_u64();
                let seconds = match order {
                    Order::Together => raw.turn(drawn, UPDATE_BYTES)?,
                    Order::DifferencesFirst => {
                        raw.turn_of(1..1 + PARITY, drawn, UPDATE_BYTES)?
                            + raw.turn_of(0..1, drawn, UPDATE_BYTES)?
                    }
                };
                figures.limits_ms.push(seconds * 1e3);
            }
        }
    }
    for (order, figures) in ORDERS.into_iter().zip(&figures) {
        let name = order.name();
        add_latencies(report, name, (&figures.latencies_ms, &figures.limits_ms), say);
        report.add(EXPERIMENT, name, "write_back_ms", mean(&figures.write_back_ms), "ms");
    }
    let [together, first] = figures.map(|figures| quantile(&figures.latencies_ms, 0.5));
    let name = Order::DifferencesFirst.name();
    report.add(EXPERIMENT, name, "latency_of_one_flush", first / together, "1");
    say(&format!("{name}: {:.2} times the latency of one flush", first / together));
    Ok(())
}

/// A data chunk and its parity chunks, each on a device.
struct Chunks {
    data: Worker,
    parities: Vec<Worker>,
}

impl Chunks {
    fn new(dirs: &[PathBuf], random: &mut Pcg64Mcg) -> Result<Self> {
        let reserves = core::iter::once(0).chain(core::iter::repeat(CHUNK_BYTES));
        let mut workers = Vec::new();
        for (number, (dir, reserve_bytes)) in (1..).zip(dirs.iter().zip(reserves)) {
            workers.push(Worker::start(chunk(dir, DeviceId(number), reserve_bytes, random)?));
        }
        let data = workers.remove(0);
        Ok(Self { data, parities: workers })
    }

    /// So many updates, one after the other; then everything is written in place and the logs are empty.
    fn round(
        &mut self,
        order: Order,
        count: usize,
        random: &mut Pcg64Mcg,
        figures: &mut Figures,
    ) -> Result<()> {
        for _ in 0..count {
            let offset = random.next_u64() % (CHUNK_BYTES / UPDATE_BYTES) * UPDATE_BYTES;
            let mut new = vec![0; UPDATE_BYTES as usize];
            random.fill_bytes(&mut new);
            let start = Instant::now();
            self.update(order, offset, new)?;
            figures.latencies_ms.push(start.elapsed().as_secs_f64() * 1e3);
            self.data.ask(Ask::Release)?;
            self.data.done()?;
        }
        for parity in &self.parities {
            parity.ask(Ask::Forget)?;
        }
        for parity in &self.parities {
            parity.done()?;
        }
        self.data.ask(Ask::WriteBack)?;
        match self.data.answer()? {
            Answer::WroteBack { seconds } => figures.write_back_ms.push(seconds * 1e3 / count as f64),
            other => unreachable!("writing back is answered by its time, not {other:?}"),
        }
        Ok(())
    }

    fn update(&self, order: Order, offset: u64, new: Vec<u8>) -> Result<()> {
        self.data.ask(Ask::Stage { offset, new })?;
        if order == Order::Together {
            self.data.ask(Ask::Flush)?;
        }
        let staged = match self.data.answer()? {
            Answer::Staged(staged) => staged,
            other => unreachable!("an update is answered as staged, not {other:?}"),
        };
        let Staged { version, offset, difference: bytes, sums, .. } = staged;
        let record = Difference { chunk: 0, version, offset, sums, bytes }.encode();
        for parity in &self.parities {
            parity.ask(Ask::Log(record.to_vec()))?;
        }
        for parity in &self.parities {
            parity.done()?;
        }
        if order == Order::DifferencesFirst {
            self.data.ask(Ask::Flush)?;
        }
        self.data.done()
    }
}

/// A device with one chunk.
fn chunk(dir: &Path, id: DeviceId, reserve_bytes: u64, random: &mut Pcg64Mcg) -> Result<Device> {
    let medium = Arc::new(FileMedium::create(dir, CAPACITY)?);
    let options =
        FormatOptions { journal_bytes: Some(JOURNAL_BYTES), ..FormatOptions::new(ClusterId(1), id) };
    Device::format(&*medium, options)?;
    let mut device = Device::open(medium, None)?;
    let version = Version(1);
    device.create_extent(ExtentSpec {
        segment: SEGMENT,
        version,
        epoch: EPOCH,
        block_bytes: BLOCK_BYTES,
        granule: Granule::KIB_4,
        expected_blocks: (CHUNK_BYTES / u64::from(BLOCK_BYTES)) as u32,
        updates: Some(steadfast_disk::Updates { reserve_bytes }),
    })?;
    let mut block = vec![0; BLOCK_BYTES as usize];
    for index in 0..(CHUNK_BYTES / u64::from(BLOCK_BYTES)) as u32 {
        random.fill_bytes(&mut block);
        let sums = checksum::sums(&block, Granule::KIB_4, SEGMENT, version, index);
        device.write_block(SEGMENT, EPOCH, index, &block, &sums)?;
    }
    device.flush()?;
    Ok(device)
}

/// A thread that owns a device, as a lane does, and does what it is told in that order.
struct Worker {
    asked: mpsc::Sender<Ask>,
    answers: mpsc::Receiver<Result<Answer>>,
}

enum Ask {
    /// Change bytes of the data chunk.
    Stage {
        offset: u64,
        new: Vec<u8>,
    },
    Flush,
    /// Append to the parity chunk's log, durably.
    Log(Vec<u8>),
    /// All updates so far are committed; nobody waits until that is durable.
    Release,
    /// Let the log begin anew, as after a merge.
    Forget,
    /// Write all in place.
    WriteBack,
}

#[derive(Debug)]
enum Answer {
    Staged(Staged),
    Done,
    WroteBack { seconds: f64 },
}

impl Worker {
    fn start(mut device: Device) -> Self {
        let (asked, told) = mpsc::channel::<Ask>();
        let (say, answers) = mpsc::channel();
        std::thread::spawn(move || {
            while let Ok(ask) = told.recv() {
                if say.send(ask.carry_out(&mut device)).is_err() {
                    return;
                }
            }
        });
        Self { asked, answers }
    }

    fn ask(&self, ask: Ask) -> Result<()> {
        self.asked.send(ask).ok().context("a device's thread ended")
    }

    fn answer(&self) -> Result<Answer> {
        self.answers.recv().context("a device's thread ended")?
    }

    fn done(&self) -> Result<()> {
        match self.answer()? {
            Answer::Done => Ok(()),
            other => unreachable!("a flush is answered by nothing more than that, not {other:?}"),
        }
    }
}

impl Ask {
    fn carry_out(self, device: &mut Device) -> Result<Answer> {
        match self {
            Self::Stage { offset, new } => {
                return Ok(Answer::Staged(device.stage(SEGMENT, EPOCH, offset, &new)?));
            }
            Self::Flush => drop(device.flush()?),
            Self::Log(record) => {
                device.log_append(SEGMENT, EPOCH, &record)?;
                device.flush()?;
            }
            Self::Forget => {
                let log_start = Some(device.updates(SEGMENT)?.log_next);
                device.apply(SEGMENT, EPOCH, Apply { log_start, ..Apply::default() })?;
                device.flush()?;
            }
            Self::Release => {
                let version = device.updates(SEGMENT)?.version;
                device.release(SEGMENT, version)?;
            }
            Self::WriteBack => {
                device.flush()?;
                let start = Instant::now();
                device.write_back(u64::MAX)?;
                return Ok(Answer::WroteBack { seconds: start.elapsed().as_secs_f64() });
            }
        }
        Ok(Answer::Done)
    }
}
