//! The demo: 64 unequal disks, one file under five schemes, read cold, read broken, written again.
//!
//! A metadata server and 16 storage servers of 4 emulated disks each run as processes of their own. The file is
//! loaded with emulation off; then each round draws every disk's speed from the dissertation's Table 6-1, and every
//! scheme reads on the same draw. The any-K ideal is computed from the same draw and the blocks each disk holds.

mod table;

use crate::{
    cluster::{self, LocalCluster, Shape},
    disks,
    original::Original,
    overruns::{self, Begun, Late},
    report::{NotOffered, Report, mean, standard_deviation},
    robustore::settings::stream,
};
use anyhow::{Context, Result, ensure};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use steadfast_client::{Client, GetError, GetReport, Options, PutReport, RequestRule};
use steadfast_protocol::{
    DeviceId,
    layout::{REPLICATED_BELOW_BYTES, SegmentLayout},
    words::counted,
};

pub use table::show;

const NODES: u32 = 16;
const DEVICES_PER_NODE: u32 = 4;
/// Rounds of reads, each on a new draw.
pub const ROUNDS: u64 = 4;
/// Rounds of reads of the broken cluster, all on the last draw.
const BROKEN_ROUNDS: u64 = 3;
/// A read of the broken cluster that took longer is made once: the demo is to end.
const READ_AGAIN_WITHIN_S: f64 = 5.0;
/// What is stored when no file is named.
const MADE_BYTES: usize = 256 << 20;
/// D of the coded buckets: N = 4K, as in the dissertation's baseline (§6.2.7).
const REDUNDANCY: u32 = 3;
/// f of the coded buckets, in nodes.
const TOLERATE: usize = 2;
/// A read that has had no byte for this long is given up; the slowest disk of the table needs half a second a block.
const PATIENCE: Duration = Duration::from_secs(20);

/// A scheme that is shown.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Its name in table and records.
    pub name: &'static str,
    /// The bucket that it reads.
    pub bucket: &'static str,
    /// How much it asks for.
    pub request: RequestRule,
}

/// The buckets that are loaded, and their policies.
const BUCKETS: [(&str, &str); 4] = [
    ("stripe", "stripe:devices=64"),
    ("replicated", "replicated:copies=4,read=adaptive,devices=64"),
    ("rateless-lt", "rateless:code=lt,c=1,delta=0.5,redundancy=3,tolerate=2,devices=64"),
    ("rateless-b", "rateless:redundancy=3,tolerate=2,devices=64"),
];

const fn scheme(name: &'static str, bucket: &'static str, request: RequestRule) -> Scheme {
    Scheme { name, bucket, request }
}

/// The schemes shown. The paper's ask for everything (dissertation §4.1.2), but for RRAID-A, which adapts; ours asks
/// adaptively. One object of four copies is read both as RRAID-S and as RRAID-A.
pub const SCHEMES: [Scheme; 5] = [
    scheme("stripe", "stripe", RequestRule::All),
    scheme("replicated-speculative", "replicated", RequestRule::All),
    scheme("replicated-adaptive", "replicated", RequestRule::ADAPTIVE),
    scheme("rateless-lt", "rateless-lt", RequestRule::All),
    scheme("rateless-b", "rateless-b", RequestRule::ADAPTIVE),
];
const IDEAL: &str = "any-k-ideal";
/// Bytes of the object that the paper's bandwidths are of.
const PAPER_BYTES: u64 = 1 << 30;
/// The paper's bandwidths for so large an object from 64 such disks (dissertation §6.3.1), in MB/s.
const PAPER_BANDWIDTH: [(&str, f64); 4] = [
    ("stripe", 31.0),
    ("replicated-speculative", 117.0),
    ("replicated-adaptive", 228.0),
    ("rateless-lt", 459.0),
];

/// What to show.
#[derive(Clone, Debug)]
pub struct Demo {
    /// The `steadfast` executable.
    pub program: PathBuf,
    /// The file to store; made from the seed when absent.
    pub file: Option<PathBuf>,
    /// Where the cluster is kept; in memory and removed when absent.
    pub keep: Option<PathBuf>,
}

/// A device of the running demo.
struct Disk {
    device: DeviceId,
    node: usize,
    rate: disks::Rate,
}

impl Demo {
    /// Runs it, telling `say` what happens meanwhile. The report's seed makes disks and data.
    ///
    /// # Errors
    /// When the file is too small, the cluster cannot be run, or a scheme that must survive does not.
    pub async fn run(&self, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
        let seed = report.seed();
        if let Some(dir) = self.keep.as_ref().filter(|dir| dir.join(cluster::RECORD).exists()) {
            return Err(NotOffered(format!(
                "{} holds a cluster already: name a new directory to keep this demo's, or continue that one with `steadfast up --dir`",
                dir.display()
            ))
            .into());
        }
        let original = match &self.file {
            Some(path) => Original::file(path)?,
            None => Original::make(MADE_BYTES, seed),
        };
        if original.length() < REPLICATED_BELOW_BYTES {
            return Err(NotOffered(format!(
                "a file of {} is kept as whole copies, of which no code and no disk's speed shows anything: the demo takes one of \
                 1 MiB at least",
                counted(original.length(), "byte")
            ))
            .into());
        }
        // A disk gets thirteen 64ths of the file in the four loads, and the last write, before which eight of them are
        // removed again, gives the fastest four shares of four 64ths more.
        let capacity = (original.length() / 2).max(32 << 20);
        let total = capacity * u64::from(NODES * DEVICES_PER_NODE);
        let scratch = match &self.keep {
            Some(_) => None,
            None => Some(crate::scratch::Scratch::new(total)?),
        };
        let dir = self
            .keep
            .as_deref()
            .or(scratch.as_ref().map(crate::scratch::Scratch::path))
            .expect("one of the two");
        // A first write to memory, or to a file, would be timed instead of the emulated disks.
        let thick = scratch.as_ref().is_some_and(crate::scratch::Scratch::in_memory);
        say(&format!("starting {NODES} storage servers of {DEVICES_PER_NODE} disks each"));
        let shape = Shape {
            nodes: NODES,
            devices: DEVICES_PER_NODE,
            emulate: Some("off".to_owned()),
            capacity_bytes: Some(if thick { capacity } else { 4 * capacity }),
            thick,
            ..Shape::default()
        };
        let cluster = LocalCluster::start(&self.program, dir, &shape)?;
        // One segment, of K = 1024 as in the dissertation.
        let segment_bytes = 256 << 20;
        let options = Options { seed: Some(seed), patience: PATIENCE, segment_bytes, ..Options::default() };
        let all = Options { request: RequestRule::All, ..options.clone() };
        let (client, asks_all) = (cluster.client(options).await?, cluster.client(all).await?);
        let mut stage =
            Stage { cluster, client, asks_all, disks: Vec::new(), dead: Vec::new(), original, seed };
        stage.find_disks().await?;
        stage.load(say).await?;
        stage.rounds(&mut report, say).await?;
        report.complete()?;
        stage.degraded(&mut report, say).await?;
        report.complete()?;
        stage.write(&mut report, say).await?;
        report.complete()?;
        stage.cluster.stop();
        Ok(report)
    }
}

/// The running demo.
struct Stage {
    cluster: LocalCluster,
    client: Client,
    /// One that asks for everything.
    asks_all: Client,
    disks: Vec<Disk>,
    /// Addresses of the servers that were killed.
    dead: Vec<String>,
    original: Original,
    seed: u64,
}

impl Stage {
    async fn find_disks(&mut self) -> Result<()> {
        let registry = self.client.registry().await?;
        for node in 0..NODES as usize {
            let address = self.cluster.node_address(node);
            let state = registry.nodes.iter().find(|state| state.record.address == address);
            let state = state.with_context(|| format!("storage server at {address} did not register"))?;
            let devices = state.record.devices.iter();
            self.disks.extend(devices.map(|&(device, _)| Disk { device, node, rate: f64::INFINITY }));
        }
        Ok(())
    }

    async fn load(&mut self, say: &mut dyn FnMut(&str)) -> Result<()> {
        for (scheme, policy) in BUCKETS {
            let start = Instant::now();
            self.client.create_bucket(scheme, policy.parse()?).await?;
            let stored = self.put(scheme, "object").await?;
            say(&format!(
                "loaded {scheme}: {:.0} MiB as {:.0} MiB in {:.1} s",
                mib(self.original.length()),
                mib(stored.stored_bytes),
                start.elapsed().as_secs_f64()
            ));
        }
        Ok(())
    }

    async fn put(&self, bucket: &str, key: &str) -> Result<PutReport> {
        let length = self.original.length();
        Ok(self.client.put(bucket, key, self.original.source()?, Some(length)).await?)
    }

    /// Gives every disk its drawn speed; also wakes whatever an earlier read left waiting.
    async fn emulate(&self) -> Result<()> {
        for disk in &self.disks {
            let spec = if disk.rate > 0.0 { format!("rate={}B", disk.rate) } else { "stall".to_owned() };
            if self.client.emulate(disk.device, &spec).await.is_err() && disk.rate > 0.0 {
                anyhow::bail!("device {} does not take its speed", disk.device);
            }
        }
        Ok(())
    }

    fn draw(&mut self, seed: u64) {
        for (disk, rate) in self.disks.iter_mut().zip(disks::draw((NODES * DEVICES_PER_NODE) as usize, seed))
        {
            disk.rate = rate;
        }
    }

    /// The any-K ideal of one object on the disks as they are now; segments are read one after the other.
    async fn ideal(&self, bucket: &str) -> Result<Option<Duration>> {
        let layouts = self.client.stat(bucket, "object").await?.segments;
        Ok(layouts.iter().map(|layout| self.segment_ideal(layout)).sum())
    }

    fn segment_ideal(&self, layout: &SegmentLayout) -> Option<Duration> {
        let held = layout.holders.iter().map(|holder| {
            let rate =
                self.disks.iter().find(|disk| disk.device == holder.device).map_or(0.0, |disk| disk.rate);
            (rate, holder.count())
        });
        disks::any_k_ideal(held, layout.block_bytes, layout.code.originals)
    }

    /// Reads one object back against the original: what the read reports, and the bytes that were wrong.
    async fn get(
        &self,
        bucket: &str,
        key: &str,
        request: RequestRule,
    ) -> Result<(Result<GetReport, steadfast_client::GetError>, u64)> {
        let (sink, compared) = self.original.comparison()?;
        let client = if request == RequestRule::All { &self.asks_all } else { &self.client };
        let got = client.get(bucket, key, None, sink).await;
        let missing = if got.is_ok() { self.original.length() - compared.taken() } else { 0 };
        Ok((got, compared.wrong() + missing))
    }

    /// Every disk as it is drawn, and nothing in the caches.
    async fn before_read(&self) -> Result<Begun> {
        self.emulate().await?;
        for disk in self.disks.iter().filter(|disk| disk.rate > 0.0) {
            self.client.drop_caches(disk.device).await?;
        }
        Begun::without(&self.client, &self.dead).await
    }

    /// What disks ended late since then.
    async fn late(&self, begun: &Begun) -> Result<Late> {
        begun.late(&self.client, &self.dead).await
    }

    async fn rounds(&mut self, report: &mut Report, say: &mut dyn FnMut(&str)) -> Result<()> {
        let length = self.original.length() as f64;
        let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); SCHEMES.len()];
        let mut overheads: Vec<Vec<f64>> = vec![Vec::new(); SCHEMES.len()];
        let mut late: Vec<Vec<Late>> = vec![Vec::new(); SCHEMES.len()];
        let mut ideals = Vec::new();
        for round in 0..ROUNDS {
            self.draw(stream(self.seed, round));
            // None is always the one that comes when the disks' speeds were measured by others, or the one that does not.
            for case in turns(self.seed, round) {
                let Scheme { name, bucket, request } = &SCHEMES[case];
                let begun = self.before_read().await?;
                let (got, wrong) = self.get(bucket, "object", *request).await?;
                let got = got.with_context(|| format!("reading {name} in round {round}"))?;
                anyhow::ensure!(wrong == 0, "{name}: {wrong} bytes came back wrong in round {round}");
                latencies[case].push(got.latency.as_secs_f64());
                overheads[case].push(got.io_overhead());
                late[case].push(self.late(&begun).await?);
            }
            let ideal = self.ideal("rateless-b").await?.context("the ideal needs K blocks")?;
            ideals.push(ideal.as_secs_f64());
            let read: Vec<String> = SCHEMES
                .iter()
                .zip(&latencies)
                .filter_map(|(scheme, latencies)| Some(format!("{} {:.2} s", scheme.name, latencies.last()?)))
                .collect();
            say(&format!(
                "round {}: {}, {IDEAL} {:.2} s",
                round + 1,
                read.join(", "),
                ideals[ideals.len() - 1],
            ));
        }
        let bandwidth = |latencies: &[f64]| {
            mean(&latencies.iter().map(|latency| length / 1e6 / latency).collect::<Vec<_>>())
        };
        let ideal_bandwidth = bandwidth(&ideals);
        let cases = SCHEMES.iter().map(|scheme| scheme.name).zip(latencies.iter().zip(&overheads));
        let no_overhead = vec![0.0];
        for (case, (latencies, overheads)) in cases.chain([(IDEAL, (&ideals, &no_overhead))]) {
            let paper = paper_bandwidth(case, self.original.length());
            report.add("demo", case, "bandwidth", bandwidth(latencies), "MB/s").paper = paper;
            report.add("demo", case, "latency_mean", mean(latencies), "s");
            report.add("demo", case, "latency_sd", standard_deviation(latencies), "s");
            report.add("demo", case, "io_overhead", mean(overheads), "1");
            report.add("demo", case, "share_of_ideal", bandwidth(latencies) / ideal_bandwidth, "1");
        }
        for (scheme, late) in SCHEMES.iter().zip(&late) {
            add_late(report, "demo", scheme.name, late, say);
        }
        Ok(())
    }

    /// Two nodes die, one disk each of two others stalls; everything is read again and compared.
    async fn degraded(&mut self, report: &mut Report, say: &mut dyn FnMut(&str)) -> Result<()> {
        let broken = [3, 11];
        let stalled = [5, 14];
        for node in broken {
            self.dead.push(self.cluster.node_address(node).to_owned());
            self.cluster.kill_node(node)?;
        }
        for disk in &mut self.disks {
            if broken.contains(&disk.node) {
                disk.rate = 0.0;
            }
        }
        for node in stalled {
            if let Some(disk) = self.disks.iter_mut().find(|disk| disk.node == node) {
                disk.rate = 0.0;
            }
        }
        say("killed 2 storage servers (SIGKILL) and stalled 2 disks of others; reading everything again");
        let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); SCHEMES.len()];
        let mut late: Vec<Vec<Late>> = vec![Vec::new(); SCHEMES.len()];
        let mut lost = [false; SCHEMES.len()];
        for round in 0..BROKEN_ROUNDS {
            for case in turns(self.seed, round) {
                let Scheme { name: scheme, bucket, request } = SCHEMES[case];
                if lost[case] || latencies[case].iter().any(|&latency| latency > READ_AGAIN_WITHIN_S) {
                    continue;
                }
                let begun = self.before_read().await?;
                let (got, wrong) = self.get(bucket, "object", request).await?;
                ensure!(wrong == 0, "{scheme}: {wrong} bytes came back wrong on the broken cluster");
                match got {
                    Ok(got) => latencies[case].push(got.latency.as_secs_f64()),
                    // Copies may all lie on what is gone; that many blocks do not.
                    Err(error) if is_lost(&error) && !scheme.starts_with("rateless") => {
                        say(&format!("{scheme}: {error}"));
                        lost[case] = true;
                    }
                    Err(error) => {
                        return Err(error).with_context(|| format!("reading {scheme} on the broken cluster"));
                    }
                }
                late[case].push(self.late(&begun).await?);
            }
        }
        for (case, Scheme { name: scheme, .. }) in SCHEMES.iter().enumerate() {
            let latency = (!lost[case]).then(|| mean(&latencies[case]));
            let unavailable = if lost[case] { self.original.length() } else { 0 };
            report.add("demo-degraded", scheme, "bytes_wrong", 0.0, "B");
            report.add("demo-degraded", scheme, "bytes_unavailable", unavailable as f64, "B");
            report.add("demo-degraded", scheme, "latency_mean", latency, "s");
            report.add("demo-degraded", scheme, "reads", latencies[case].len() as f64, "1");
            add_late(report, "demo-degraded", scheme, &late[case], say);
        }
        let ideal = self.ideal("rateless-b").await?.map(|ideal| ideal.as_secs_f64());
        report.add("demo-degraded", IDEAL, "latency_mean", ideal, "s");
        Ok(())
    }

    /// A speculative put on what is left of the cluster, against what those disks' drawn speeds allow.
    async fn write(&mut self, report: &mut Report, say: &mut dyn FnMut(&str)) -> Result<()> {
        for bucket in ["replicated", "rateless-lt"] {
            self.client.remove(bucket, "object").await?;
        }
        self.emulate().await?;
        self.client.tidy().await;
        let begun = Begun::without(&self.client, &self.dead).await?;
        let stored = self.put("rateless-b", "written-degraded").await?;
        let layouts = self.client.stat("rateless-b", "written-degraded").await?.segments;
        let rates: Vec<(disks::Rate, usize)> = self.disks.iter().map(|disk| (disk.rate, disk.node)).collect();
        let limit: Option<Duration> = layouts
            .iter()
            .map(|layout| {
                let k = layout.code.originals;
                disks::write_limit(&rates, layout.block_bytes, k * (1 + REDUNDANCY), k, TOLERATE)
            })
            .sum();
        let limit = limit.context("no live disk to write to")?.as_secs_f64();
        let latency = stored.latency.as_secs_f64();
        add_late(report, "demo-write", "rateless-b", &[self.late(&begun).await?], say);
        add_written(report, self.original.length(), latency, limit);
        let (got, wrong) = self.get("rateless-b", "written-degraded", RequestRule::ADAPTIVE).await?;
        got.context("reading back what was written on the broken cluster")?;
        anyhow::ensure!(
            wrong == 0,
            "{wrong} bytes of what was written on the broken cluster came back wrong"
        );
        report.add("demo-write", "rateless-b", "bytes_wrong", wrong as f64, "B");
        say(&format!(
            "wrote it once more on the broken cluster in {latency:.2} s; the disks allow {limit:.2} s"
        ));
        Ok(())
    }
}

/// The order in which schemes are read in a round: by turns none is always the one that comes after the same other, and which is
/// first in the first is the seed's.
fn turns(seed: u64, round: u64) -> impl Iterator<Item = usize> {
    let schemes = SCHEMES.len() as u64;
    let first = seed % schemes + round % schemes;
    (0..schemes).map(move |turn| ((first + turn) % schemes) as usize)
}

/// What the paper has of a scheme; nothing where it read an object of another size.
fn paper_bandwidth(scheme: &str, bytes: u64) -> Option<f64> {
    let mut known = PAPER_BANDWIDTH.iter().filter(|_| bytes == PAPER_BYTES);
    known.find(|(of, _)| *of == scheme).map(|&(_, figure)| figure)
}

/// Whether the object cannot be read; another failure is the demo's.
fn is_lost(error: &GetError) -> bool {
    matches!(error, GetError::Read(_))
}

/// What was written in so many seconds, beside the seconds that the disks' speeds allow.
fn add_written(report: &mut Report, bytes: u64, latency_s: f64, limit_s: f64) {
    let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
    let share = limit_s / latency_s;
    let record = report.add("demo-write", "rateless-b", "bandwidth", rate(latency_s), "MB/s");
    (record.limit, record.ratio) = (Some(rate(limit_s)), Some(share));
    report.add("demo-write", "rateless-b", "share_of_limit", share, "1");
}

/// How many of the disks' operations ended late; said where they are too many.
fn add_late(
    report: &mut Report,
    experiment: &'static str,
    case: &str,
    late: &[Late],
    say: &mut dyn FnMut(&str),
) {
    let late = late.iter().copied().sum::<Late>().share();
    report.add(experiment, case, "overruns", late, "share of operations");
    if late > overruns::MAX {
        say(&format!("{experiment} {case}: {late:.3} of operations ended late{}", overruns::warning(late)));
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scheme_is_read_in_each_round_and_none_is_always_first() {
        let order = |seed, round| turns(seed, round).collect::<Vec<_>>();
        assert_eq!(order(1, 0), [1, 2, 3, 4, 0]);
        let first: BTreeSet<usize> = (0..BROKEN_ROUNDS).map(|round| order(7, round)[0]).collect();
        assert_eq!(first.len(), 3);
        assert_eq!(order(u64::MAX, u64::MAX).iter().collect::<BTreeSet<_>>().len(), SCHEMES.len());
    }

    #[test]
    fn a_ratio_is_of_a_figure_and_its_own_limit() {
        let mut report = Report::new(1);
        add_written(&mut report, 200_000_000, 2.0, 1.0);
        let figures = report.records.iter().map(|record| (record.value, record.limit, record.ratio));
        assert_eq!(
            figures.collect::<Vec<_>>(),
            [(Some(100.0), Some(200.0), Some(0.5)), (Some(0.5), None, None)]
        );
    }

    #[test]
    fn the_papers_figures_are_of_its_own_size() {
        assert_eq!(paper_bandwidth("stripe", PAPER_BYTES), Some(31.0));
        assert_eq!(paper_bandwidth("stripe", MADE_BYTES as u64), None);
        assert_eq!(paper_bandwidth(IDEAL, PAPER_BYTES), None);
    }

    #[test]
    fn only_what_cannot_be_read_is_lost() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(!is_lost(&GetError::Sink(full)));
    }

    #[tokio::test]
    async fn what_cannot_be_run_is_refused_before_a_server_starts() {
        let dir = tempfile::tempdir().unwrap();
        let run = async |file: Option<PathBuf>, keep: Option<PathBuf>| {
            let demo = Demo { program: "no such program".into(), file, keep };
            let mut said = Vec::new();
            let refused = demo.run(Report::new(1), &mut |text| said.push(text.to_owned())).await.unwrap_err();
            assert!(said.is_empty(), "{said:?}");
            format!("{refused:#}")
        };
        let kept = dir.path().to_owned();
        assert!(run(Some(kept.clone()), None).await.contains("no regular file"));
        assert!(run(Some(kept.join("missing")), None).await.contains("missing"));
        for (length, said) in [(0, "0 bytes"), (1, "1 byte "), (REPLICATED_BELOW_BYTES - 1, "1 MiB at least")]
        {
            let small = kept.join("small");
            std::fs::File::create(&small).unwrap().set_len(length).unwrap();
            let refused = run(Some(small), None).await;
            assert!(refused.contains(said), "{refused}");
        }
        std::fs::write(kept.join(cluster::RECORD), "{}").unwrap();
        assert!(run(None, Some(kept)).await.contains("holds a cluster already"));
    }
}
