//! Small synced updates of a parity bucket on real directories, beside what the devices take for as many synced writes.
//!
//! | figure | what |
//! |---|---|
//! | `latency_p50`, `latency_p99` | of one update, in ms; limit: 1 + m direct writes of as many bytes with `fdatasync`, side by side |
//! | `rate` | updates per second; limit of one after the other: such writes one after the other |
//! | `rate_of_depth_1` | that over the rate of the same scheme at depth 1, where both were measured; limit: what is wanted, 3 |
//! | `cpu_ms` | processor time of all processes for one, this one among them, until the last is answered; limit: of such writes |
//! | `reads`, `writes`, `flushes` | of all media for one until then, with the merges that come meanwhile; limit and paper: PLR and FO (§3.2), which count none |
//! | `reads_after`, `writes_after`, `cpu_ms_after` | the same with all merges and writing in place, once all is quiet; nobody's processor time counts from then on, and until then not what this process takes to look, but what servers take to answer it |
//!
//! After each case the file is read whole, and has to be what the updates made of it.
//!
//! Updates and the limit take turns. At depth 1 that is one by one, so that both meet the same merges. At other depths it is some
//! hundred of each: the limit while the devices are quiet, which so meets none, before the updates in every other round and
//! behind them in the others. The limit's files are as many as there are
//! devices, and each turn writes to other ones, as updates do: ext4 without a journal has a flush write the inode, too, once for
//! every tick of the clock in which the file was written to. Three files that are flushed all the time pay that at one flush in
//! twenty, six that are as often between them at one in three.

use super::{
    EXPERIMENT, NODES, Options,
    bed::{Bed, Counts, PARITY, Ran, SCHEMES, Updates, add_latencies},
    parts::process_seconds,
    raw::ParallelWrites,
    scratch,
};
use crate::{
    cluster::Shape,
    original::{Original, made},
    report::{Report, mean},
};
use anyhow::Result;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::path::Path;

const KEY: &str = "file";
const FILE_BYTES: u64 = 64 << 20;
const CAPACITY: u64 = 1 << 30;
const RAW_BYTES: u64 = 64 << 20;
/// How many times as many updates a second sixteen at a time are to be as one.
const DEEPER_WANTED: f64 = 3.0;

/// One case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// How parity follows: as the policy names it.
    scheme: &'static str,
    kibibytes: u64,
    depth: usize,
    /// Reads and writes of the devices for one update as the paper counts them (§3.2): 1 and 1 + m logged, 1 + m and 1 + m in
    /// place.
    paper: (f64, f64),
}

const LOGGED: (f64, f64) = (1.0, 1.0 + PARITY as f64);
const OVERWRITTEN: (f64, f64) = (1.0 + PARITY as f64, 1.0 + PARITY as f64);

pub(super) const CASES: [Case; 4] = [
    Case { scheme: "plr", kibibytes: 4, depth: 1, paper: LOGGED },
    Case { scheme: "fo", kibibytes: 4, depth: 1, paper: OVERWRITTEN },
    Case { scheme: "plr", kibibytes: 4, depth: 16, paper: LOGGED },
    Case { scheme: "fo", kibibytes: 4, depth: 16, paper: OVERWRITTEN },
];

impl Case {
    pub(super) fn name(&self) -> String {
        format!("update-{}KiB {} depth={}", self.kibibytes, self.scheme, self.depth)
    }

    /// The same one update at a time, if it is not this one.
    fn one_at_a_time(&self) -> Option<Self> {
        (self.depth > 1).then_some(Self { depth: 1, ..*self })
    }

    fn bytes(&self) -> u64 {
        self.kibibytes << 10
    }
}

/// What one case took.
#[derive(Default)]
struct Figures {
    latencies_ms: Vec<f64>,
    limits_ms: Vec<f64>,
    limit_cpu_s: f64,
    seconds: f64,
    cpu_s: f64,
    cpu_after_s: f64,
    updates: f64,
    on_path: Counts,
    after: Counts,
}

pub(super) async fn run(
    program: &Path,
    options: &Options,
    report: &mut Report,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let seed = report.seed();
    let cases: Vec<Case> = CASES.into_iter().filter(|case| options.wants(&case.name())).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let scratch = scratch(options, say)?;
    let shape = Shape { capacity_bytes: Some(CAPACITY), thick: true, ..Shape::default() };
    let mut bed = Bed::start(program, scratch.path(), &shape, seed).await?;
    let original = Original::make(FILE_BYTES as usize, seed);
    for scheme in SCHEMES {
        bed.bucket(&bucket(scheme), scheme).await?;
        bed.put(&bucket(scheme), KEY, &original).await?;
    }
    // What the files are to be.
    let mut contents = SCHEMES.map(|scheme| (scheme, made(FILE_BYTES as usize, seed)));
    let dirs: Vec<_> = (0..NODES).map(|number| scratch.path().join(format!("raw-{number}"))).collect();
    // Rounds are even in number: what is first in one is second in the next.
    let (rounds, turns) = if options.quick { (4, 100) } else { (10, 300) };
    let mut random = Pcg64Mcg::seed_from_u64(bed.random.next_u64());
    for case in &cases {
        let raw = ParallelWrites::new(&dirs, RAW_BYTES, case.bytes() as usize)?;
        let mut figures = Figures::default();
        let content = contents.iter_mut().find(|(scheme, _)| *scheme == case.scheme);
        let (_, content) = content.expect("cases are of one of the schemes");
        let mut apply = |ran: &Ran| ran.written.iter().for_each(|written| written.apply(content));
        let (bucket, bytes, depth) = (bucket(case.scheme), case.bytes(), case.depth);
        let updates = Updates { bucket: &bucket, key: KEY, file_bytes: FILE_BYTES, bytes, depth };
        // What is first is not counted: hosts begin, tables are read.
        apply(&bed.updates(updates, 4 * depth).await?);
        bed.quiet().await?;
        let (mut limits_ms, mut limit_cpu_s) = (Vec::new(), 0.0);
        let mut limit = || -> Result<()> {
            let before = process_seconds();
            limits_ms.push(raw.turn_of_some(1 + PARITY, random.next_u64(), bytes)? * 1e3);
            limit_cpu_s += process_seconds() - before;
            Ok(())
        };
        let one_by_one = depth == 1;
        for round in 0..rounds {
            let limit_first = round % 2 == 0;
            if !one_by_one && limit_first {
                (0..turns).try_for_each(|_| limit())?;
            }
            let before = bed.counts().await?;
            let ran = match one_by_one {
                true => bed.updates_in_turn(updates, turns, &mut limit).await?,
                // Twice as many: in the end some have nothing left to do while others go on.
                false => bed.updates(updates, 2 * turns).await?,
            };
            let (answered, servers_s) = (bed.counts().await?, bed.servers_s()?);
            let quiet = bed.quiet().await?;
            if !one_by_one && !limit_first {
                (0..turns).try_for_each(|_| limit())?;
            }
            apply(&ran);
            figures.on_path.add(answered.since(before));
            figures.after.add(quiet.counts.since(before));
            figures.updates += ran.latencies_ms.len() as f64;
            figures.latencies_ms.extend(ran.latencies_ms);
            figures.seconds += ran.seconds;
            figures.cpu_s += ran.cpu_s;
            figures.cpu_after_s += ran.cpu_s + quiet.servers_s - servers_s;
        }
        (figures.limits_ms, figures.limit_cpu_s) = (limits_ms, limit_cpu_s);
        bed.compare(&bucket, KEY, content).await?;
        figures.add_to(report, case, say);
        report.complete()?;
    }
    bed.cluster.stop();
    Ok(())
}

fn bucket(scheme: &str) -> String {
    format!("updates-{scheme}")
}

impl Figures {
    fn add_to(&self, report: &mut Report, case: &Case, say: &mut dyn FnMut(&str)) {
        let name = case.name();
        add_latencies(report, &name, (&self.latencies_ms, &self.limits_ms), say);
        let limits = self.limits_ms.len() as f64;
        let beside =
            |report: &mut Report, metric: &'static str, value: f64, unit: &'static str, limit: f64| {
                let record = report.add(EXPERIMENT, &name, metric, value, unit);
                (record.limit, record.ratio) = (Some(limit), Some(value / limit));
            };
        let rate = self.updates / self.seconds;
        if case.depth == 1 {
            beside(report, "rate", rate, "1/s", 1e3 / mean(&self.limits_ms));
        } else {
            report.add(EXPERIMENT, &name, "rate", rate, "1/s");
        }
        let shallow = case.one_at_a_time().and_then(|case| report.value(EXPERIMENT, &case.name(), "rate"));
        if let Some(shallow) = shallow {
            beside(report, "rate_of_depth_1", rate / shallow, "1", DEEPER_WANTED);
        }
        beside(report, "cpu_ms", self.cpu_s * 1e3 / self.updates, "ms", self.limit_cpu_s * 1e3 / limits);
        report.add(EXPERIMENT, &name, "cpu_ms_after", self.cpu_after_s * 1e3 / self.updates, "ms");
        for (metric, value, paper) in [
            ("reads", self.on_path.reads, Some(case.paper.0)),
            ("writes", self.on_path.writes, Some(case.paper.1)),
            ("flushes", self.on_path.flushes, None),
            ("reads_after", self.after.reads, None),
            ("writes_after", self.after.writes, None),
        ] {
            let record = report.add(EXPERIMENT, &name, metric, value / self.updates, "1");
            (record.limit, record.paper) = (paper, paper);
            record.ratio = paper.map(|paper| value / self.updates / paper);
        }
    }
}
