//! The cases on real directories.

use super::{
    Access, EXPERIMENT, Measured, NODES, Options, SOCKET_BYTES,
    access::{Sum, Taken, span_s, sum_of},
    parts::Parts,
    raw::{RawFiles, socket},
    scratch,
};
use crate::{
    cluster::{LocalCluster, Shape},
    cpu,
    original::Original,
    report::{Report, mean, quantile, standard_deviation},
};
use anyhow::{Result, ensure};
use std::{collections::BTreeMap, path::Path};
use steadfast_client::{Client, Ingest};

const BUCKET: &str = "bench-io";
/// N/K of the policies.
pub(super) const STORED: f64 = 1.5;
/// What devices hold of an object, in its bytes, at most: blocks beyond D where a device was late, reserves beside parity.
const HELD: u64 = 2;
/// Of each device beyond that: its index, what is held of versions before until it was freed, and that no device gets the same.
const ROOM_BYTES: u64 = 256 << 20;
/// What each device holds of an object of 256 MiB, about: the raw files' size. Of 1 GiB it holds four times as much; what a device takes
/// faster at first than for long counts for the limit alone then.
const RAW_BYTES: u64 = 64 << 20;
/// From here on an object is large: one round of a first look is enough.
const LARGE_MEBIBYTES: u64 = 1024;

/// One case on real directories.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    put: bool,
    mebibytes: u64,
    clients: usize,
    warm: bool,
    ingest: Ingest,
}

const CASES: [Case; 7] = [
    Case { put: true, mebibytes: 256, clients: 1, warm: false, ingest: Ingest::Client },
    Case { put: false, mebibytes: 256, clients: 1, warm: false, ingest: Ingest::Client },
    Case { put: false, mebibytes: 256, clients: 1, warm: true, ingest: Ingest::Client },
    Case { put: true, mebibytes: 64, clients: 4, warm: false, ingest: Ingest::Client },
    Case { put: false, mebibytes: 64, clients: 4, warm: false, ingest: Ingest::Client },
    Case { put: true, mebibytes: 64, clients: 16, warm: false, ingest: Ingest::Client },
    Case { put: false, mebibytes: 64, clients: 16, warm: false, ingest: Ingest::Client },
];

/// The cases of a bucket: where chunks are written a node may encode them, too, and an object of many segments is written in order.
pub(super) fn cases(measured: Measured) -> Vec<Case> {
    let mut cases = CASES.to_vec();
    if measured == Measured::Parity {
        let by_primary = |case: Case| Case { ingest: Ingest::Primary, ..case };
        let large = |case: Case| Case { mebibytes: LARGE_MEBIBYTES, ..case };
        let [put, cold, ..] = CASES;
        cases.insert(1, by_primary(put));
        cases.extend([large(put), by_primary(large(put)), large(cold)]);
    }
    cases
}

impl Case {
    pub(super) fn name(&self, measured: Measured) -> String {
        self.access() + measured.suffix()
    }

    fn access(&self) -> String {
        let size = match self.mebibytes {
            large if large.is_multiple_of(1024) => format!("{}GiB", large / 1024),
            mebibytes => format!("{mebibytes}MiB"),
        };
        match (self.put, self.clients, self.warm) {
            (true, 1, _) if self.ingest == Ingest::Primary => format!("put-{size} ingest=primary"),
            (true, 1, _) => format!("put-{size}"),
            (true, clients, _) => format!("put-{size} clients={clients}"),
            (false, 1, true) => format!("get-{size}-warm"),
            (false, 1, false) => format!("get-{size}-cold"),
            (false, clients, _) => format!("get-{size} clients={clients}"),
        }
    }

    /// How often it is measured.
    fn rounds(&self, quick: bool) -> usize {
        match quick {
            true if self.mebibytes >= LARGE_MEBIBYTES => 1,
            true => 3,
            false => 9,
        }
    }

    fn bytes(&self) -> u64 {
        self.mebibytes << 20
    }

    fn key(&self, client: usize) -> String {
        if self.put {
            // Each case's own: what is read back is the last of each.
            let Self { mebibytes, clients, ingest, .. } = self;
            format!("written-{mebibytes}-{ingest:?}-{clients}-{client}").to_lowercase()
        } else {
            format!("read-{}-{client}", self.mebibytes)
        }
    }

    /// Its objects, and what is stored of each at a time: one that is written stands beside the version before.
    fn stored(&self) -> impl Iterator<Item = (String, u64)> {
        let versions = if self.put { 2 } else { 1 };
        (0..self.clients).map(move |client| (self.key(client), versions * self.bytes()))
    }
}

/// How large each device has to be.
fn capacity_bytes(cases: &[Case]) -> u64 {
    let objects: BTreeMap<String, u64> = cases.iter().flat_map(Case::stored).collect();
    let held = HELD * objects.values().sum::<u64>() / u64::from(NODES);
    (held + ROOM_BYTES).next_multiple_of(ROOM_BYTES)
}

/// What one case took, over all rounds.
#[derive(Default)]
struct Figures {
    /// GB/s of objects, all clients together, round by round.
    rates: Vec<f64>,
    limits: Vec<f64>,
    /// Processor seconds per GB of the parts, round by round.
    parts: Vec<f64>,
    latencies_ms: Vec<f64>,
    overheads: Vec<f64>,
    cpu_s: f64,
    bytes: f64,
}

/// The cluster and what it is compared with.
struct Bench<'a> {
    program: &'a Path,
    cluster: LocalCluster,
    client: Client,
    raw: RawFiles,
    parts: Parts,
    servers: Vec<u32>,
    /// Checksums of what is read, by key.
    sums: BTreeMap<String, u32>,
    seed: u64,
    /// What was put last, by key.
    written: BTreeMap<String, Written>,
}

/// What a put stored.
#[derive(Clone, Copy)]
struct Written {
    bytes: u64,
    seed: u64,
}

pub(super) async fn run(
    program: &Path,
    options: &Options,
    report: &mut Report,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let seed = report.seed();
    let cases: Vec<Case> = cases(options.measured)
        .into_iter()
        .filter(|case| options.wants(&case.name(options.measured)))
        .collect();
    if cases.is_empty() {
        return Ok(());
    }
    let scratch = scratch(options, say)?;
    let capacity_bytes = capacity_bytes(&cases);
    say(&format!(
        "making {NODES} devices of {} MiB below {}",
        capacity_bytes >> 20,
        scratch.path().display()
    ));
    let mut bench = Bench::start(program, scratch.path(), options.measured, capacity_bytes, seed).await?;
    if !bench.raw.direct() {
        say("direct I/O cannot be had here: the limits are the page cache's");
    }
    let rounds = cases.iter().map(|case| case.rounds(options.quick)).max().unwrap_or(0);
    let mut figures: Vec<Figures> = cases.iter().map(|_| Figures::default()).collect();
    bench.load(&cases).await?;
    let names: Vec<String> = cases.iter().map(|case| case.name(options.measured)).collect();
    let mut ran = Ok(());
    'rounds: for round in 0..rounds {
        // Cases take turns and are complete with the last round: whoever kills the run has at least what is said of each.
        say(&format!("round {} of {rounds}", round + 1));
        let all = cases.iter().zip(&names).zip(&mut figures);
        for ((case, name), figures) in all.filter(|((case, _), _)| round < case.rounds(options.quick)) {
            ran = bench.turn(case, round, figures).await;
            if ran.is_err() {
                break 'rounds;
            }
            if let (Some(rate), Some(limit)) = (figures.rates.last(), figures.limits.last()) {
                say(&format!("  {name}: {rate:.2} GB/s of {limit:.2}"));
            }
        }
    }
    // An access that fails in the ninth round takes none of the eight before it along.
    let measured = |figures: &Figures| !figures.rates.is_empty() && !figures.limits.is_empty();
    for (name, figures) in names.iter().zip(&figures).filter(|(_, figures)| measured(figures)) {
        let rate = quantile(&figures.rates, 0.5);
        let limit = quantile(&figures.limits, 0.5);
        say(&format!("{name}: {rate:.2} GB/s of {limit:.2}"));
        let record = report.add(EXPERIMENT, name, "throughput", rate, "GB/s");
        (record.limit, record.ratio) = (Some(limit), Some(rate / limit));
        // One says nothing of how they differ.
        record.spread = (figures.rates.len() > 1)
            .then(|| (quantile(&figures.rates, 0.75) - quantile(&figures.rates, 0.25)) / rate.max(1e-9));
        let (cpu, parts) = (figures.cpu_s / (figures.bytes / 1e9), quantile(&figures.parts, 0.5));
        let record = report.add(EXPERIMENT, name, "cpu", cpu, "s/GB");
        (record.limit, record.ratio) = (Some(parts), Some(cpu / parts));
        report.add(EXPERIMENT, name, "accesses", figures.latencies_ms.len() as f64, "accesses");
        report.add(EXPERIMENT, name, "latency_mean", mean(&figures.latencies_ms), "ms");
        report.add(EXPERIMENT, name, "latency_sd", standard_deviation(&figures.latencies_ms), "ms");
        report.add(EXPERIMENT, name, "latency_p99", quantile(&figures.latencies_ms, 0.99), "ms");
        report.add(EXPERIMENT, name, "io_overhead", mean(&figures.overheads), "1");
    }
    if ran.is_ok() {
        ran = bench.read_back().await;
    }
    report.complete()?;
    ran?;
    bench.cluster.stop();
    Ok(())
}

impl<'a> Bench<'a> {
    async fn start(
        program: &'a Path,
        dir: &Path,
        measured: Measured,
        capacity_bytes: u64,
        seed: u64,
    ) -> Result<Self> {
        let shape = Shape {
            nodes: NODES,
            devices: 1,
            capacity_bytes: Some(capacity_bytes),
            thick: true,
            ..Shape::default()
        };
        let cluster = LocalCluster::start(program, dir, &shape)?;
        let client = cluster.client(steadfast_client::Options::default()).await?;
        client.create_bucket(BUCKET, measured.policy().parse()?).await?;
        let dirs: Vec<_> = (0..NODES as usize).map(|node| dir.join(format!("raw-{node}"))).collect();
        let raw = RawFiles::new(&dirs, RAW_BYTES)?;
        let servers = cluster.processes().map(|(_, process, _)| process).collect();
        let (parts, sums) = (Parts::new(measured, seed)?, BTreeMap::new());
        Ok(Self { program, cluster, client, raw, parts, servers, sums, seed, written: BTreeMap::new() })
    }

    /// Stores what is read.
    async fn load(&mut self, cases: &[Case]) -> Result<()> {
        for case in cases.iter().filter(|case| !case.put) {
            for client in 0..case.clients {
                let key = case.key(client);
                if self.client.stat(BUCKET, &key).await.is_ok() {
                    continue;
                }
                let original = original(case.bytes(), self.object_seed(client));
                self.sums.insert(key.clone(), sum_of(&original)?);
                let length = original.length();
                self.client.put(BUCKET, &key, original.source()?, Some(length)).await?;
            }
        }
        Ok(())
    }

    /// Reads, untimed, what the last puts stored.
    async fn read_back(&self) -> Result<()> {
        for (key, &Written { bytes, seed }) in &self.written {
            let sum = Sum::default();
            let got = self.client.get(BUCKET, key, None, sum.clone()).await?;
            let same = got.size == bytes && sum.value() == sum_of(&original(bytes, seed))?;
            ensure!(same, "what was put as {key} came back wrong");
        }
        Ok(())
    }

    fn object_seed(&self, client: usize) -> u64 {
        self.seed.wrapping_add(client as u64)
    }

    /// Of what a client puts: others each time, so that what is read back is known to be of the last.
    fn put_seed(&self, client: usize, round: usize) -> u64 {
        self.object_seed(client).wrapping_add((1 + round as u64) << 32)
    }

    /// The limit and one access of each client, in an order that changes with the rounds.
    async fn turn(&mut self, case: &Case, round: usize, figures: &mut Figures) -> Result<()> {
        if round.is_multiple_of(2) {
            self.limit(case, figures)?;
            self.access(case, round, figures).await
        } else {
            self.access(case, round, figures).await?;
            self.limit(case, figures)
        }
    }

    fn limit(&mut self, case: &Case, figures: &mut Figures) -> Result<()> {
        let socket = socket(SOCKET_BYTES)?;
        let (rate, cpu) = if case.put {
            let disk = self.raw.write()?;
            let parts = self.parts.put(socket, Some(disk))?;
            // On its way to the primary it passes a socket and is checked there, once more.
            let way = if case.ingest == Ingest::Primary { self.parts.get(socket, None) } else { 0.0 };
            (disk.rate / STORED, parts + way)
        } else if case.warm {
            (socket.rate, self.parts.get(socket, None))
        } else {
            let disk = self.raw.read()?;
            (disk.rate, self.parts.get(socket, Some(disk)))
        };
        figures.limits.push(rate / 1e9);
        figures.parts.push(cpu * 1e9);
        Ok(())
    }

    async fn access(&mut self, case: &Case, round: usize, figures: &mut Figures) -> Result<()> {
        if !case.put && !case.warm {
            self.drop_caches().await?;
        }
        if case.warm {
            // The read before it, which is not counted, fills the caches.
            self.clients(case, round)?;
        }
        let servers = cpu::seconds(&self.servers)?;
        let (seconds, taken) = self.clients(case, round)?;
        figures.cpu_s += cpu::seconds(&self.servers)? - servers;
        let bytes: u64 = taken.iter().map(|taken| taken.bytes).sum();
        figures.rates.push(bytes as f64 / seconds / 1e9);
        figures.bytes += bytes as f64;
        for taken in &taken {
            figures.cpu_s += taken.cpu_s;
            figures.latencies_ms.push(taken.seconds * 1e3);
            figures.overheads.push(taken.io_overhead);
        }
        Ok(())
    }

    /// One access of each client at once: seconds from when the first began until the last was done, and what each took.
    fn clients(&mut self, case: &Case, round: usize) -> Result<(f64, Vec<Taken>)> {
        let started: Result<Vec<_>> = (0..case.clients)
            .map(|client| {
                let access = Access {
                    cluster: self.cluster.address().to_owned(),
                    put: case.put,
                    ingest: case.ingest,
                    bucket: BUCKET.to_owned(),
                    key: case.key(client),
                    bytes: case.bytes(),
                    count: 1,
                    seed: self.put_seed(client, round),
                };
                access.start(self.program)
            })
            .collect();
        let mut started = started?;
        started.iter_mut().try_for_each(super::access::Started::go)?;
        let taken: Result<Vec<Vec<Taken>>> =
            started.into_iter().map(super::access::Started::finish).collect();
        let taken = taken?;
        for (client, taken) in taken.iter().enumerate() {
            let expected = if case.put { None } else { self.sums.get(&case.key(client)).copied() };
            ensure!(taken.iter().all(|taken| taken.sum == expected), "bytes came back wrong");
            if case.put {
                let written = Written { bytes: case.bytes(), seed: self.put_seed(client, round) };
                self.written.insert(case.key(client), written);
            }
        }
        let all: Vec<Taken> = taken.into_iter().flatten().collect();
        // Not the wall's time: that processes end is not the store's work.
        Ok((span_s(&all), all))
    }

    async fn drop_caches(&self) -> Result<()> {
        let registry = self.client.registry().await?;
        for (device, _) in registry.nodes.iter().flat_map(|node| &node.record.devices) {
            self.client.drop_caches(*device).await?;
        }
        Ok(())
    }
}

fn original(bytes: u64, seed: u64) -> Original {
    Original::make(usize::try_from(bytes).expect("made for machines of 64 bits"), seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_say_what_is_measured() {
        let names = |measured| -> BTreeSet<String> {
            cases(measured).iter().map(|case| case.name(measured)).collect()
        };
        let (rateless, parity) = (names(Measured::Rateless), names(Measured::Parity));
        assert_eq!((rateless.len(), parity.len()), (7, 11));
        assert!(rateless.contains("put-64MiB clients=16") && rateless.contains("get-256MiB-warm"));
        for name in ["put-1GiB parity", "put-1GiB ingest=primary parity", "get-1GiB-cold parity"] {
            assert!(parity.contains(name), "{name}: {parity:?}");
        }
    }

    #[test]
    fn no_case_writes_over_what_another_is_compared_by() {
        let cases = cases(Measured::Parity);
        let written = cases.iter().filter(|case| case.put);
        let keys: Vec<_> =
            written.flat_map(|case| (0..case.clients).map(|client| case.key(client))).collect();
        assert_eq!(keys.len(), 1 + 1 + 4 + 16 + 1 + 1);
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert_eq!(capacity_bytes(&cases), 7 << 29);
    }
}
