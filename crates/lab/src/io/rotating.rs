//! Updates on rotating disks: parity logging (PLR) against full overwrite (FO), on six devices that take the times of a
//! modelled disk ([`steadfast_disk::model::ATA_7200`]).
//!
//! What a disk takes for an update is positionings. With m parity chunks, for each update:
//!
//! | device of | while updates go on | later |
//! |---|---|---|
//! | the data chunk | read the old bytes, write the redo record: 2 | write them in place: 1 |
//! | a parity chunk, FO | read the old bytes, write the redo record: 2 | its share of a sweep that writes in place |
//! | a parity chunk, PLR | write the log record: 1 | its share of a write into the reserve, and of a merge |
//!
//! Where one update waits for the other, what lies one behind the other counts: 3 for FO, 2 for PLR.
//!
//! Where devices are never idle, three things come to that. What is written in place is bounded: 8 MiB wait, and over a file of 1 GiB
//! one of them lies so far from the next that the disk positions for each, FO for data and m parity chunks, PLR for data alone. Redo
//! records of several updates share a frame of the journal, and so do PLR's records of logs; of these half of what waits may wait for
//! others of their log, and those of one log are written into its reserve at once. And PLR's merges are sweeps for all records of a log,
//! which the node still has in memory: the chunk is read, a redo record of the rows that change is written, and they are written in
//! place together with what lies between them. [`predicted`] adds that up.
//!
//! As in the paper (FAST'14, §6.2.2: random records of 128 KiB, so many that each log is merged several times) the logs run full in each
//! round, and it ends when all is merged and in place. The paper's FO has more to lose: it writes parity in place at once, with no redo
//! record from which it can be done later.
//!
//! | figure | what |
//! |---|---|
//! | `rate` | updates per second while they go on, merges of full logs among it: the median of the rounds |
//! | `rate_with_merges` | the same to the time when all logs are merged and chunks written in place, the wait until the devices rest among it |
//! | `latency_p50` | of one update, in ms |
//! | `positionings`, `positionings_with_merges` | reads and writes of all media for one, most of which position; limit: 2 + m, or 2 + 2m, as counted above |
//! | `rate_of_fo`, `rate_with_merges_of_fo` | of PLR: its rate over that of FO, the median of the rounds' quotients; limit: what is predicted |
//! | `overruns` | the share of operations that took longer than the model: above 0.01 the run says nothing |
//!
//! After each case both files are read whole, and have to be what the updates made of them.
//!
//! PLR and FO take turns, round by round, on files of their own on the same devices; an update of 128 KiB is two of 64 KiB.

use super::{
    EXPERIMENT, NODES, Options,
    bed::{Bed, Counts, PARITY, SCHEMES, Updates, Written},
    scratch,
};
use crate::{
    cluster::Shape,
    original::{Original, made},
    overruns::{self, Begun},
    report::{Report, quantile},
};
use anyhow::Result;
use std::{path::Path, time::Instant};

const KEY: &str = "file";
/// 64 segments: many times what waits to be written in place.
const FILE_BYTES: u64 = 1 << 30;
/// For a first look.
const QUICK_FILE_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 16 << 20;
/// Bytes of a data or parity chunk, and of a log: a quarter of a segment.
const CHUNK_BYTES: f64 = (4 << 20) as f64;
/// Sparse; large enough for the largest journal.
const CAPACITY: u64 = 4 << 30;
const DRIVE: &str = "drive=ata7200";

/// Of the disk: 0.2 ms from a command to a seek, 1.3 ms for one within the first GiB, half a revolution.
const POSITIONING_S: f64 = 5.7e-3;
/// Of the disk where it is fastest, switches of heads among it.
const BYTES_PER_S: f64 = 65e6;
/// What waits for its place at a device.
const WAITING_BYTES: f64 = (8 << 20) as f64;
/// A chunk is written in pieces of so many bytes, between which the disk does other things.
const SWEEP_BYTES: f64 = (1 << 20) as f64;
/// What a record takes beyond its bytes: the page that its head reaches into.
const RECORD_OVERHEAD: f64 = 4096.0;
/// Larger updates are made in such pieces: what may be uncommitted of one data chunk.
const PIECE_BYTES: u64 = 64 << 10;
/// Logs are merged when so much of them is full.
const FULL: f64 = 0.75;

/// Updates of one size, under both schemes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    kibibytes: u64,
    depth: usize,
    /// Updates of one round.
    count: usize,
}

/// At depth 16 each log runs full once or twice in a round, at depth 1 none.
pub(super) const CASES: [Case; 4] = [
    Case { kibibytes: 16, depth: 16, count: 16_384 },
    Case { kibibytes: 128, depth: 16, count: 4096 },
    Case { kibibytes: 16, depth: 1, count: 300 },
    Case { kibibytes: 128, depth: 1, count: 300 },
];
/// Of each scheme: as few as have a middle one.
const ROUNDS: usize = 3;
/// Updates of the one round of a quick run, for each that is under way at a time.
const QUICK: usize = 5;

impl Case {
    fn name(&self, scheme: &str) -> String {
        let name = format!("update-{}KiB {scheme} rotating", self.kibibytes);
        if self.depth == 1 { name + " depth=1" } else { name }
    }

    fn bytes(&self) -> u64 {
        self.kibibytes << 10
    }

    fn updates<'a>(&self, bucket: &'a str, file_bytes: u64) -> Updates<'a> {
        Updates { bucket, key: KEY, file_bytes, bytes: self.bytes(), depth: self.depth }
    }
}

/// The names under both schemes.
pub(super) fn names() -> impl Iterator<Item = String> {
    CASES.into_iter().flat_map(|case| SCHEMES.map(|scheme| case.name(scheme)))
}

/// Reads and writes that position for one update while updates go on.
fn positionings(scheme: &str) -> f64 {
    let m = PARITY as f64;
    if scheme == "plr" { 2.0 + m } else { 2.0 + 2.0 * m }
}

/// How many updates PLR should make in the time of one of FO; see the module's doc.
fn predicted(case: &Case, file_bytes: u64) -> f64 {
    if case.depth == 1 {
        return 3.0 / 2.0;
    }
    let (m, bytes) = (PARITY as f64, case.bytes().min(PIECE_BYTES) as f64);
    let under_way = case.depth as f64 * case.bytes() as f64 / bytes;
    let operation = |bytes: f64| POSITIONING_S + bytes / BYTES_PER_S;
    // Redo records that wait at a device are one frame. It is one of so many stages of an update.
    let redo = |records: f64, stages: f64| {
        let waiting = under_way * records / stages / f64::from(NODES);
        records * (POSITIONING_S / waiting.max(1.0) + bytes / BYTES_PER_S)
    };
    let records = FULL * CHUNK_BYTES / (bytes + RECORD_OVERHEAD);
    // Rows that so many random records of all data chunks reach.
    let rows = CHUNK_BYTES / bytes;
    let reached = rows * (1.0 - (1.0 - 1.0 / rows).powf(records));
    let merge = operation(CHUNK_BYTES)
        + operation(reached * bytes)
        + CHUNK_BYTES / SWEEP_BYTES * operation(SWEEP_BYTES);
    let fo = 2.0 * (1.0 + m) * operation(bytes) + redo(1.0 + m, 3.0);
    let logs = (file_bytes / SEGMENT_BYTES) as f64 * m / f64::from(NODES);
    let together = (WAITING_BYTES / 2.0 / logs / (bytes + RECORD_OVERHEAD)).max(1.0);
    let reserve = operation(together * (bytes + RECORD_OVERHEAD)) / together;
    let plr = 2.0 * operation(bytes) + redo(1.0 + m, 2.0) + m * (reserve + merge / records);
    fo / plr
}

/// What one scheme did in a case.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    rates_with_merges: Vec<f64>,
    latencies_ms: Vec<f64>,
    updates: f64,
    on_path: Counts,
    with_merges: Counts,
}

pub(super) async fn run(
    program: &Path,
    options: &Options,
    report: &mut Report,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let seed = report.seed();
    let wanted = |case: &Case| SCHEMES.iter().any(|scheme| options.wants(&case.name(scheme)));
    let cases: Vec<Case> = CASES.into_iter().filter(wanted).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let scratch = scratch(options, say)?;
    let emulate = Some("off".to_owned());
    let shape = Shape { capacity_bytes: Some(CAPACITY), emulate, ..Shape::default() };
    let mut bed = Bed::start(program, scratch.path(), &shape, seed).await?;
    let file_bytes = if options.quick { QUICK_FILE_BYTES } else { FILE_BYTES };
    let original = Original::make(file_bytes as usize, seed);
    for scheme in SCHEMES {
        bed.bucket(&bucket(scheme), scheme).await?;
        bed.put(&bucket(scheme), KEY, &original).await?;
    }
    // Made again when it is compared: what is kept meanwhile are the updates.
    drop(original);
    let mut written = SCHEMES.map(|_| Vec::new());
    let (devices, buckets) = (bed.devices().await?, SCHEMES.map(bucket));
    for case in &cases {
        // Anew: each case's overruns are its own.
        for device in &devices {
            bed.client.emulate(*device, DRIVE).await?;
        }
        let begun = Begun::now(&bed.client).await?;
        let mut figures = SCHEMES.map(|_| Figures::default());
        // What is first is not counted: hosts begin, tables are read.
        for (bucket, written) in buckets.iter().zip(&mut written) {
            written.extend(bed.updates(case.updates(bucket, file_bytes), 2 * case.depth).await?.written);
        }
        bed.quiet().await?;
        let (rounds, count) = if options.quick { (1, QUICK * case.depth) } else { (ROUNDS, case.count) };
        for number in 0..rounds {
            for turn in 0..SCHEMES.len() {
                let which = (number + turn) % SCHEMES.len();
                let updates = case.updates(&buckets[which], file_bytes);
                written[which].extend(round(&mut bed, updates, count, &mut figures[which]).await?);
            }
        }
        let late = begun.late(&bed.client, &[]).await?.share();
        for device in &devices {
            bed.client.emulate(*device, "off").await?;
        }
        for (bucket, written) in buckets.iter().zip(&written) {
            let mut content = made(file_bytes as usize, seed);
            written.iter().for_each(|written: &Written| written.apply(&mut content));
            bed.compare(bucket, KEY, &content).await?;
        }
        for (scheme, figures) in SCHEMES.into_iter().zip(&figures) {
            figures.add_to(report, &case.name(scheme), positionings(scheme), say);
            report.add(EXPERIMENT, &case.name(scheme), "overruns", late, "1");
        }
        let limit = predicted(case, file_bytes);
        let [plr, fo] = &figures;
        let name = case.name(SCHEMES[0]);
        let of_fo = [
            ("rate_of_fo", &plr.rates, &fo.rates),
            ("rate_with_merges_of_fo", &plr.rates_with_merges, &fo.rates_with_merges),
        ];
        // Logs that took few records each are merged by devices that have time for it.
        let told = if case.depth == 1 { &of_fo[..1] } else { &of_fo[..] };
        for &(metric, plr, fo) in told {
            let quotients: Vec<f64> = plr.iter().zip(fo).map(|(plr, fo)| plr / fo).collect();
            let value = quantile(&quotients, 0.5);
            let record = report.add(EXPERIMENT, &name, metric, value, "1");
            (record.limit, record.ratio) = (Some(limit), Some(value / limit));
            record.spread = Some((quantile(&quotients, 0.75) - quantile(&quotients, 0.25)) / value);
            say(&format!("{name}: {metric} {value:.2}, predicted {limit:.2}"));
        }
        if late > overruns::MAX {
            say(&format!(
                "{name}: this machine is too busy, {late:.3} of operations took longer than the disk"
            ));
        }
        report.complete()?;
    }
    bed.cluster.stop();
    Ok(())
}

/// So many updates, then the wait until all is in its place. What was written.
async fn round(
    bed: &mut Bed,
    updates: Updates<'_>,
    count: usize,
    figures: &mut Figures,
) -> Result<Vec<Written>> {
    let (before, start) = (bed.counts().await?, Instant::now());
    let ran = bed.updates(updates, count).await?;
    figures.on_path.add(bed.counts().await?.since(before));
    let quiet = bed.quiet().await?;
    figures.with_merges.add(quiet.counts.since(before));
    let count = ran.latencies_ms.len() as f64;
    figures.updates += count;
    figures.rates.push(count / ran.seconds);
    figures.rates_with_merges.push(count / (quiet.since - start).as_secs_f64());
    figures.latencies_ms.extend(ran.latencies_ms);
    Ok(ran.written)
}

fn bucket(scheme: &str) -> String {
    format!("rotating-{scheme}")
}

impl Figures {
    fn add_to(&self, report: &mut Report, name: &str, limit: f64, say: &mut dyn FnMut(&str)) {
        let (rate, with_merges) = (quantile(&self.rates, 0.5), quantile(&self.rates_with_merges, 0.5));
        say(&format!("{name}: {rate:.0} updates/s, {with_merges:.0} with merges"));
        report.add(EXPERIMENT, name, "rate", rate, "1/s");
        report.add(EXPERIMENT, name, "rate_with_merges", with_merges, "1/s");
        report.add(EXPERIMENT, name, "latency_p50", quantile(&self.latencies_ms, 0.5), "ms");
        let operations = |counts: Counts| (counts.reads + counts.writes) / self.updates;
        let on_path = operations(self.on_path);
        let record = report.add(EXPERIMENT, name, "positionings", on_path, "1");
        (record.limit, record.ratio) = (Some(limit), Some(on_path / limit));
        report.add(EXPERIMENT, name, "positionings_with_merges", operations(self.with_merges), "1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prediction_is_that_of_positionings_less_what_shares_frames_and_merges() {
        assert_eq!((positionings("plr"), positionings("fo")), (4.0, 6.0));
        let [small, large, one_small, one_large] = CASES.map(|case| predicted(&case, FILE_BYTES));
        assert_eq!((one_small, one_large), (1.5, 1.5));
        // Of nine positionings and five, later ones among them, were nothing shared and no merge made.
        assert!(large > 1.2 && small < 9.0 / 4.0, "{small} {large}");
        assert!(small > large, "{small} {large}: transfers are not saved");
    }

    #[test]
    fn every_log_runs_full_where_devices_are_busy() {
        for case in CASES.iter().filter(|case| case.depth > 1) {
            let bytes = case.count as f64 * case.bytes() as f64 / (FILE_BYTES / SEGMENT_BYTES) as f64;
            assert!(bytes >= CHUNK_BYTES, "{case:?}");
        }
    }
}
