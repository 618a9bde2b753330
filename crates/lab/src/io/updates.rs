//! Small synced updates of a parity bucket on real directories, beside what the devices take for as many synced writes.
//!
//! | figure | what |
//! |---|---|
//! | `latency_p50`, `latency_p99` | of one update, in ms; limit: 1 + m direct writes of as many bytes with `fdatasync`, side by side |
//! | `rate` | updates per second |
//! | `cpu_ms` | processor time of all processes for one, this one among them |
//! | `reads`, `writes`, `flushes` | of all media for one, while updates go on; paper: PLR and FO (§3.2) |
//! | `reads_after`, `writes_after` | the same with merges and writing in place, once all is quiet |
//!
//! Updates and the limit take turns: some hundred of each, round by round.

use super::{
    EXPERIMENT, Options,
    parts::process_seconds,
    raw::{ParallelWrites, in_memory},
};
use crate::{
    cluster::{LocalCluster, Shape},
    cpu,
    original::Original,
    report::{Report, quantile},
};
use anyhow::{Context, Result};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_client::Client;

const NODES: u32 = 6;
/// n - k of the policy's code.
const PARITY: usize = 2;
const KEY: &str = "file";
const FILE_BYTES: u64 = 64 << 20;
const CAPACITY: u64 = 1 << 30;
const RAW_BYTES: u64 = 64 << 20;
/// After so long without an update logs are merged and chunks written in place.
const QUIET: Duration = Duration::from_secs(3);

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
const SCHEMES: [&str; 2] = ["plr", "fo"];

impl Case {
    pub(super) fn name(&self) -> String {
        format!("update-{}KiB {} depth={}", self.kibibytes, self.scheme, self.depth)
    }

    fn bucket(&self) -> String {
        format!("updates-{}", self.scheme)
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
    seconds: f64,
    cpu_s: f64,
    updates: f64,
    on_path: Counts,
    after: Counts,
}

/// Operations of all media.
#[derive(Clone, Copy, Default)]
struct Counts {
    reads: f64,
    writes: f64,
    flushes: f64,
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
        }
    }

    fn add(&mut self, other: Self) {
        (self.reads, self.writes, self.flushes) =
            (self.reads + other.reads, self.writes + other.writes, self.flushes + other.flushes);
    }
}

struct Bench {
    cluster: LocalCluster,
    client: Arc<Client>,
    servers: Vec<u32>,
    random: Pcg64Mcg,
}

pub(super) async fn run(
    program: &Path,
    options: &Options,
    report: &mut Report,
    seed: u64,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let cases: Vec<Case> = CASES.into_iter().filter(|case| options.wants(&case.name())).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let scratch = match &options.dir {
        Some(dir) => tempfile::Builder::new().prefix("steadfast-").tempdir_in(dir)?,
        None => tempfile::Builder::new().prefix("steadfast-").tempdir()?,
    };
    if in_memory(scratch.path()) {
        say("this place is in memory: its limits are the memory's, not a disk's (choose another with --dir)");
    }
    let mut bench = Bench::start(program, scratch.path(), seed).await?;
    let dirs: Vec<_> = (0..=PARITY).map(|number| scratch.path().join(format!("raw-{number}"))).collect();
    let (rounds, turns) = if options.quick { (3, 100) } else { (10, 300) };
    for case in &cases {
        let raw = ParallelWrites::new(&dirs, RAW_BYTES, case.bytes() as usize)?;
        let mut figures = Figures::default();
        // What is first is not counted: hosts begin, tables are read.
        bench.updates(case, 4 * case.depth, &mut Figures::default()).await?;
        for _ in 0..rounds {
            let before = bench.counts().await?;
            bench.updates(case, turns, &mut figures).await?;
            figures.on_path.add(bench.counts().await?.since(before));
            for _ in 0..turns {
                let drawn = bench.random.next_u64();
                figures.limits_ms.push(raw.turn(drawn, case.bytes())? * 1e3);
            }
            tokio::time::sleep(QUIET).await;
            figures.after.add(bench.counts().await?.since(before));
        }
        figures.add_to(report, case, say);
    }
    bench.cluster.stop();
    Ok(())
}

impl Bench {
    async fn start(program: &Path, dir: &Path, seed: u64) -> Result<Self> {
        let shape = Shape {
            nodes: NODES,
            devices: 1,
            capacity_bytes: Some(CAPACITY),
            thick: true,
            ..Shape::default()
        };
        let cluster = LocalCluster::start(program, dir, &shape)?;
        let client = Arc::new(cluster.client(steadfast_client::Options::default()).await?);
        let original = Original::make(FILE_BYTES as usize, seed);
        for scheme in SCHEMES {
            let bucket = format!("updates-{scheme}");
            client.create_bucket(&bucket, format!("parity:code=rs(6,4),update={scheme}").parse()?).await?;
            client.put(&bucket, KEY, original.reader()?, Some(FILE_BYTES)).await?;
        }
        let servers = cluster.processes().map(|(_, process, _)| process).collect();
        Ok(Self { cluster, client, servers, random: Pcg64Mcg::seed_from_u64(seed) })
    }

    /// `count` updates, as many under way at a time as the case says.
    async fn updates(&mut self, case: &Case, count: usize, figures: &mut Figures) -> Result<()> {
        let (servers, own, start) = (cpu::seconds(&self.servers)?, process_seconds(), Instant::now());
        let (local, mut tasks) = (tokio::task::LocalSet::new(), Vec::new());
        for task in 0..case.depth {
            let (client, bytes, bucket) = (self.client.clone(), case.bytes(), case.bucket());
            let mut random = Pcg64Mcg::seed_from_u64(self.random.next_u64() ^ task as u64);
            let share = count / case.depth;
            tasks.push(local.spawn_local(async move {
                let file = client.open_file(&bucket, KEY).await.context("open")?;
                let mut latencies = Vec::with_capacity(share);
                for _ in 0..share {
                    let at = random.next_u64() % (FILE_BYTES / bytes) * bytes;
                    let mut new = vec![0; bytes as usize];
                    random.fill_bytes(&mut new);
                    let start = Instant::now();
                    file.write_at(at, &new).await?;
                    file.sync().await?;
                    latencies.push(start.elapsed().as_secs_f64() * 1e3);
                }
                anyhow::Ok(latencies)
            }));
        }
        local.await;
        for task in tasks {
            let latencies = task.await??;
            figures.updates += latencies.len() as f64;
            figures.latencies_ms.extend(latencies);
        }
        figures.seconds += start.elapsed().as_secs_f64();
        figures.cpu_s += cpu::seconds(&self.servers)? - servers + process_seconds() - own;
        Ok(())
    }

    /// What all media have done so far.
    async fn counts(&self) -> Result<Counts> {
        let mut counts = Counts::default();
        for node in self.client.registry().await?.nodes {
            for device in self.client.node_status(&node.record.address).await?.devices {
                counts.reads += device.activity.medium_reads as f64;
                counts.writes += device.activity.medium_writes as f64;
                counts.flushes += device.activity.flushes as f64;
            }
        }
        Ok(counts)
    }
}

impl Figures {
    fn add_to(&self, report: &mut Report, case: &Case, say: &mut dyn FnMut(&str)) {
        let name = case.name();
        for (metric, share) in [("latency_p50", 0.5), ("latency_p99", 0.99)] {
            let (value, limit) = (quantile(&self.latencies_ms, share), quantile(&self.limits_ms, share));
            let record = report.add(EXPERIMENT, &name, metric, value, "ms");
            (record.limit, record.ratio) = (Some(limit), Some(value / limit));
            say(&format!("{name}: {metric} {value:.3} ms, {:.2} of {limit:.3}", value / limit));
        }
        report.add(EXPERIMENT, &name, "rate", self.updates / self.seconds, "1/s");
        report.add(EXPERIMENT, &name, "cpu_ms", self.cpu_s * 1e3 / self.updates, "ms");
        for (metric, value, paper) in [
            ("reads", self.on_path.reads, Some(case.paper.0)),
            ("writes", self.on_path.writes, Some(case.paper.1)),
            ("flushes", self.on_path.flushes, None),
            ("reads_after", self.after.reads, None),
            ("writes_after", self.after.writes, None),
        ] {
            report.add(EXPERIMENT, &name, metric, value / self.updates, "1").paper = paper;
        }
    }
}
