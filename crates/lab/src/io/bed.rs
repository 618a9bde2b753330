//! A cluster with files of parity buckets that are updated, and what its devices were asked.

use super::{EXPERIMENT, NODES, access::Sum, parts::process_seconds};
use crate::{
    cluster::{LocalCluster, Shape},
    cpu,
    original::Original,
    report::{Report, quantile},
};
use anyhow::{Context, Result, bail, ensure};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_client::{Client, File};
use steadfast_protocol::DeviceId;

/// n - k of the policies' code.
pub(super) const PARITY: usize = 2;
/// How parity follows, as a policy names it.
pub(super) const SCHEMES: [&str; 2] = ["plr", "fo"];

/// How often it is looked whether devices are quiet.
const LOOK: Duration = Duration::from_millis(50);
/// Devices that did nothing for so long are quiet: about twice what parity nodes wait after the last update before they merge.
const QUIET: Duration = Duration::from_millis(2500);
/// Devices that are not quiet by then never are.
const QUIET_WITHIN: Duration = Duration::from_secs(300);

/// The cluster.
pub(super) struct Bed {
    pub(super) cluster: LocalCluster,
    pub(super) client: Arc<Client>,
    pub(super) random: Pcg64Mcg,
    servers: Vec<u32>,
}

/// Random updates of one file, each synced before the same task makes its next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Updates<'a> {
    pub(super) bucket: &'a str,
    pub(super) key: &'a str,
    pub(super) file_bytes: u64,
    /// Bytes of each; they lie at multiples of that.
    pub(super) bytes: u64,
    /// How many are under way at a time.
    pub(super) depth: usize,
}

/// One update that was made: where, how long, and the seed of its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    at: u64,
    bytes: u64,
    seed: u64,
}

impl Written {
    /// Makes it in a copy of the file.
    pub(super) fn apply(&self, content: &mut [u8]) {
        let from = self.at as usize;
        Pcg64Mcg::seed_from_u64(self.seed).fill_bytes(&mut content[from..from + self.bytes as usize]);
    }
}

/// What updates took.
#[derive(Default)]
pub(super) struct Ran {
    pub(super) latencies_ms: Vec<f64>,
    pub(super) seconds: f64,
    /// Processor seconds of all processes, this one among them.
    pub(super) cpu_s: f64,
    /// Those that reach the same place are in the order in which they were made.
    pub(super) written: Vec<Written>,
}

/// Operations of all media.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) flushes: f64,
}

impl Counts {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        (self.reads, self.writes, self.flushes) =
            (self.reads + other.reads, self.writes + other.writes, self.flushes + other.flushes);
    }
}

/// Devices that are quiet: what they, and their servers, came to when they last did something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiet {
    /// When that was.
    pub(super) since: Instant,
    /// What they had done by then.
    pub(super) counts: Counts,
    /// Processor seconds of the servers until then.
    pub(super) servers_s: f64,
}

/// Who makes updates one after the other.
struct Task {
    file: File,
    /// Updates lie at `first`, and at multiples of `step` from there.
    first: u64,
    step: u64,
    places: u64,
    bytes: u64,
    count: usize,
    random: Pcg64Mcg,
}

impl Task {
    /// Makes them, and calls `after` each.
    async fn run(mut self, mut after: impl FnMut() -> Result<()>) -> Result<Ran> {
        let mut ran = Ran::default();
        for _ in 0..self.count {
            let at = self.first + self.random.next_u64() % self.places * self.step;
            let written = Written { at, bytes: self.bytes, seed: self.random.next_u64() };
            let mut new = vec![0; self.bytes as usize];
            Written { at: 0, ..written }.apply(&mut new);
            let start = Instant::now();
            self.file.write_at(at, &new).await?;
            self.file.sync().await?;
            ran.latencies_ms.push(start.elapsed().as_secs_f64() * 1e3);
            ran.written.push(written);
            after()?;
        }
        Ok(ran)
    }
}

impl Bed {
    /// Six servers of one device each below `dir`.
    pub(super) async fn start(program: &Path, dir: &Path, shape: &Shape, seed: u64) -> Result<Self> {
        let shape = Shape { nodes: NODES, devices: 1, ..shape.clone() };
        let cluster = LocalCluster::start(program, dir, &shape)?;
        let client = Arc::new(cluster.client(steadfast_client::Options::default()).await?);
        let servers = cluster.processes().map(|(_, process, _)| process).collect();
        Ok(Self { cluster, client, servers, random: Pcg64Mcg::seed_from_u64(seed) })
    }

    /// A bucket of (6, 4) chunks whose parity follows as `scheme` says.
    pub(super) async fn bucket(&self, name: &str, scheme: &str) -> Result<()> {
        self.client.create_bucket(name, format!("parity:code=rs(6,4),update={scheme}").parse()?).await?;
        Ok(())
    }

    /// Stores a file.
    pub(super) async fn put(&self, bucket: &str, key: &str, original: &Original) -> Result<()> {
        self.client.put(bucket, key, original.source()?, Some(original.length())).await?;
        Ok(())
    }

    /// Reads a file whole, untimed: it has to be what was written.
    pub(super) async fn compare(&self, bucket: &str, key: &str, expected: &[u8]) -> Result<()> {
        let sum = Sum::default();
        let got = self.client.get(bucket, key, None, sum.clone()).await?;
        let same =
            got.size == expected.len() as u64 && sum.value() == steadfast_disk::checksum::crc32c(expected);
        ensure!(same, "bytes of {bucket}/{key} came back wrong after its updates");
        Ok(())
    }

    /// Makes `count` updates.
    pub(super) async fn updates(&mut self, updates: Updates<'_>, count: usize) -> Result<Ran> {
        let mut ready = Vec::new();
        for number in 0..updates.depth {
            ready.push(self.task(&updates, number, count / updates.depth).await?);
        }
        let (servers, own, start) = (self.servers_s()?, process_seconds(), Instant::now());
        let (local, mut tasks) = (tokio::task::LocalSet::new(), Vec::new());
        for task in ready {
            tasks.push(local.spawn_local(task.run(|| Ok(()))));
        }
        local.await;
        let mut all = Ran { seconds: start.elapsed().as_secs_f64(), ..Ran::default() };
        for task in tasks {
            let ran = task.await??;
            all.latencies_ms.extend(ran.latencies_ms);
            all.written.extend(ran.written);
        }
        all.cpu_s = self.servers_s()? - servers + process_seconds() - own;
        Ok(all)
    }

    /// Makes `count` updates one after the other, and something else after each, which counts neither as time nor as processor time.
    pub(super) async fn updates_in_turn(
        &mut self,
        updates: Updates<'_>,
        count: usize,
        mut other: impl FnMut() -> Result<()>,
    ) -> Result<Ran> {
        let task = self.task(&Updates { depth: 1, ..updates }, 0, count).await?;
        let (servers, own) = (self.servers_s()?, process_seconds());
        let mut other_s = 0.0;
        let other = || {
            let before = process_seconds();
            other()?;
            other_s += process_seconds() - before;
            Ok(())
        };
        let mut ran = task.run(other).await?;
        ran.seconds = ran.latencies_ms.iter().sum::<f64>() / 1e3;
        ran.cpu_s = self.servers_s()? - servers + process_seconds() - own - other_s;
        Ok(ran)
    }

    async fn task(&mut self, updates: &Updates<'_>, number: usize, count: usize) -> Result<Task> {
        Ok(Task {
            file: self.client.open_file(updates.bucket, updates.key).await.context("open")?,
            // No two tasks reach the same place: what is there in the end is known.
            first: number as u64 * updates.bytes,
            step: updates.depth as u64 * updates.bytes,
            places: updates.file_bytes / updates.bytes / updates.depth as u64,
            bytes: updates.bytes,
            count,
            random: Pcg64Mcg::seed_from_u64(self.random.next_u64() ^ number as u64),
        })
    }

    /// What all media have done so far.
    pub(super) async fn counts(&self) -> Result<Counts> {
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

    /// Processor seconds of all servers so far.
    pub(super) fn servers_s(&self) -> Result<f64> {
        cpu::seconds(&self.servers)
    }

    /// What was done by now.
    async fn now(&self) -> Result<Quiet> {
        let counts = self.counts().await?;
        Ok(Quiet { since: Instant::now(), counts, servers_s: self.servers_s()? })
    }

    /// Waits until logs are merged and chunks written in place: until devices do nothing.
    pub(super) async fn quiet(&self) -> Result<Quiet> {
        let begun = Instant::now();
        let mut last = self.now().await?;
        while last.since.elapsed() < QUIET {
            if begun.elapsed() > QUIET_WITHIN {
                bail!("the devices are still at work {} s after the last update", QUIET_WITHIN.as_secs());
            }
            tokio::time::sleep(LOOK).await;
            let now = self.now().await?;
            if now.counts != last.counts {
                last = now;
            }
        }
        Ok(last)
    }

    /// All devices.
    pub(super) async fn devices(&self) -> Result<Vec<DeviceId>> {
        let nodes = self.client.registry().await?.nodes;
        Ok(nodes.iter().flat_map(|node| &node.record.devices).map(|&(device, _)| device).collect())
    }
}

/// Adds the middle and the tail of latencies, each beside the same of its limits.
pub(super) fn add_latencies(
    report: &mut Report,
    case: &str,
    (latencies_ms, limits_ms): (&[f64], &[f64]),
    say: &mut dyn FnMut(&str),
) {
    for (metric, share) in [("latency_p50", 0.5), ("latency_p99", 0.99)] {
        let (value, limit) = (quantile(latencies_ms, share), quantile(limits_ms, share));
        let record = report.add(EXPERIMENT, case, metric, value, "ms");
        (record.limit, record.ratio) = (Some(limit), Some(value / limit));
        say(&format!("{case}: {metric} {value:.3} ms, {:.2} of {limit:.3}", value / limit));
    }
}
