//! Six devices, one of them slow or stalled, or all of different speeds: the work on which lock-step stores take
//! seconds.
//!
//! Objects of 64 MiB under D = 0.5, f = 2 (what a 4+2 code stores and survives), on six storage servers of one
//! emulated device each: all six 100 MB/s, or one of them at 10 MB/s, or one stalled, or 30 to 150 MB/s. The speeds go
//! round; gets take turns at three objects, and every put is of an object of its own; what was put is read back and compared
//! later, untimed. Limits are the arithmetic of the drawn speeds: the any-K ideal for reads, the durability rule for writes.
//!
//! One client makes all accesses, and their times are the library's own: from the call until the last byte is ready, or the object
//! durable, without a process that starts, a connection that is made, or what a sink takes.

use crate::{
    cluster::{LocalCluster, Shape},
    cpu, disks,
    original::Original,
    overruns::{self, Begun, Late},
    report::{NotOffered, Report, mean, quantile, standard_deviation},
};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use std::{path::Path, time::Duration};
use steadfast_client::{Client, Options};
use steadfast_protocol::DeviceId;

const DEVICES: usize = 6;
const OBJECT_BYTES: usize = 64 << 20;
const ACCESSES: usize = 12;
/// Each device is the odd one once.
const ACCESSES_QUICK: usize = DEVICES;
/// Objects put that are kept until they are read back: twelve of them, and what is read, fill half of the devices.
const KEPT: usize = ACCESSES;
/// How long the cluster is left to learn that all devices are well again: heartbeats come every half second.
const RECOVERY: Duration = Duration::from_millis(1100);
const RATE: f64 = 100e6;
const BUCKET: &str = "six";

/// One kind of six devices.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Bytes per second of each device, 0 for one that stalls; they go round with the accesses.
    rates: [f64; DEVICES],
    /// What another store took for reads and writes on the same work, in ms (MinIO 2026-02 on a machine of this
    /// kind; its stalled reads took 4 to 120 s).
    other_store: (Option<f64>, Option<f64>),
}

/// The cases, in the order they run.
pub const CASES: [Case; 4] = [
    Case { name: "equal", rates: [RATE; DEVICES], other_store: (Some(167.0), Some(169.0)) },
    Case { name: "one-slow", rates: odd(10e6), other_store: (Some(1076.0), Some(1682.0)) },
    Case { name: "stalled", rates: odd(0.0), other_store: (None, Some(34_000.0)) },
    Case {
        name: "unequal",
        rates: [30e6, 60e6, 80e6, 100e6, 120e6, 150e6],
        other_store: (Some(425.0), Some(561.0)),
    },
];

/// The names in reports of all of them.
pub fn names() -> impl Iterator<Item = String> {
    CASES.iter().flat_map(|case| ["get", "put"].map(|operation| case_name(operation, case.name)))
}

/// The name in reports of `operation` (`get` or `put`) on such devices.
pub fn case_name(operation: &str, devices: &str) -> String {
    format!("{operation}-64MiB-{devices}")
}

const fn odd(rate: f64) -> [f64; DEVICES] {
    [rate, RATE, RATE, RATE, RATE, RATE]
}

/// What the accesses of one kind took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// `get` or `put`.
    pub operation: &'static str,
    /// The devices.
    pub case: Case,
    /// Milliseconds of each access.
    pub latencies_ms: Vec<f64>,
    /// What the drawn speeds allow, in milliseconds, access by access.
    pub limits_ms: Vec<f64>,
    /// Bytes sent beyond the object, as a share of it.
    pub overheads: Vec<f64>,
    /// What the emulated disks ended late, access by access.
    late: Vec<Late>,
    /// Processor seconds of all processes, this one among them, for all accesses.
    pub cpu_s: f64,
}

impl Measured {
    fn new(operation: &'static str, case: Case) -> Self {
        let (latencies_ms, limits_ms, overheads, late) = Default::default();
        Self { operation, case, latencies_ms, limits_ms, overheads, late, cpu_s: 0.0 }
    }

    /// The name of the case in reports.
    pub fn name(&self) -> String {
        case_name(self.operation, self.case.name)
    }

    /// Bytes of objects moved.
    pub fn object_bytes(&self) -> f64 {
        (self.latencies_ms.len() * OBJECT_BYTES) as f64
    }

    /// Bytes of objects moved a second, and what the drawn speeds allow.
    pub fn throughput(&self) -> (f64, f64) {
        let over = |times_ms: &[f64]| self.object_bytes() / (times_ms.iter().sum::<f64>() / 1e3);
        (over(&self.latencies_ms), over(&self.limits_ms))
    }

    /// The share of operations that the emulated disks ended late.
    pub fn overruns(&self) -> f64 {
        self.late.iter().copied().sum::<Late>().share()
    }

    /// Adds what both the experiment and the bench say of it.
    pub fn add_to(&self, report: &mut Report, experiment: &'static str) {
        let (case, mean_ms) = (self.name(), mean(&self.latencies_ms));
        let record = report.add(experiment, &case, "latency_mean", mean_ms, "ms");
        (record.limit, record.ratio) = (Some(mean(&self.limits_ms)), Some(mean_ms / mean(&self.limits_ms)));
        report.add(experiment, &case, "latency_sd", standard_deviation(&self.latencies_ms), "ms");
        report.add(experiment, &case, "latency_p99", quantile(&self.latencies_ms, 0.99), "ms");
        report.add(experiment, &case, "io_overhead", mean(&self.overheads), "1");
        report.add(experiment, &case, "accesses", self.latencies_ms.len() as f64, "accesses");
        report.add(experiment, &case, "overruns", self.overruns(), "share of operations");
    }
}

/// Runs all cases as an experiment.
///
/// # Errors
/// When the cluster cannot be run, an access fails or a byte comes back wrong.
pub async fn run(
    program: &Path,
    options: &crate::Options,
    mut report: Report,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    let seed = report.seed();
    let usual = if options.quick { ACCESSES_QUICK } else { ACCESSES };
    let accesses = options.draws.map_or(usual, |draws| draws as usize);
    let wanted = |name: &str| options.case.as_ref().is_none_or(|part| name.contains(part));
    if let Some(asked) = options.case.as_ref().filter(|_| !names().any(|name| wanted(&name))) {
        return Err(NotOffered::no_case("six-devices", asked, names()).into());
    }
    let mut add = |measured: Measured| {
        measured.add_to(&mut report, "six-devices");
        let (read, written) = measured.case.other_store;
        let other = if measured.operation == "get" { read } else { written };
        // Of another machine, and so no figure of this run.
        let record = report.records.iter_mut();
        let mut record =
            record.filter(|record| record.case == measured.name() && record.metric == "latency_mean");
        record.next().context("its mean was just added")?.paper = other;
        report.complete()
    };
    measure(program, seed, accesses, &wanted, say, &mut add).await?;
    Ok(report)
}

/// Runs the cases whose names are `wanted`, each with so many accesses, and gives each to `done` when it is complete.
///
/// # Errors
/// When the cluster cannot be run, an access fails or a byte comes back wrong; or that of `done`.
pub async fn measure(
    program: &Path,
    seed: u64,
    accesses: usize,
    wanted: &dyn Fn(&str) -> bool,
    say: &mut dyn FnMut(&str),
    done: &mut dyn FnMut(Measured) -> Result<()>,
) -> Result<()> {
    // The objects read, the one written, and what the writer pushes beyond.
    let capacity: u64 = 512 << 20;
    let scratch = crate::scratch::Scratch::new(capacity * DEVICES as u64)?;
    let shape = Shape {
        nodes: 6,
        devices: 1,
        emulate: Some("off".to_owned()),
        capacity_bytes: Some(capacity),
        thick: true,
        ..Shape::default()
    };
    let cluster = LocalCluster::start(program, scratch.path(), &shape)?;
    let client = cluster.client(Options { seed: Some(seed), ..Options::default() }).await?;
    client.create_bucket(BUCKET, "rateless:redundancy=0.5,tolerate=2".parse()?).await?;
    let devices: Vec<DeviceId> = client
        .registry()
        .await?
        .nodes
        .iter()
        .flat_map(|node| &node.record.devices)
        .map(|&(device, _)| device)
        .collect();
    ensure!(devices.len() == DEVICES, "{} devices registered", devices.len());
    let original = Original::make(OBJECT_BYTES, seed);
    let length = Some(original.length());
    // At equal speeds, so that every device holds about as much.
    recover(&client, &devices).await?;
    for object in 0..3 {
        client.put(BUCKET, &format!("read-{object}"), original.source()?, length).await?;
    }
    let processes: Vec<u32> =
        cluster.processes().map(|(_, process, _)| process).chain([std::process::id()]).collect();
    for case in CASES {
        let (mut gets, mut puts) = (Measured::new("get", case), Measured::new("put", case));
        if !wanted(&gets.name()) && !wanted(&puts.name()) {
            continue;
        }
        let mut written = Vec::new();
        for access in 0..accesses {
            let mut rates = case.rates;
            rates.rotate_right(access % DEVICES);
            let key = format!("read-{}", access % 3);
            let layouts = client.stat(BUCKET, &key).await?.segments;
            let layout = layouts.first().context("a stored object has a segment")?;
            let (k, block_bytes) = (layout.code.originals, layout.block_bytes);
            if wanted(&gets.name()) {
                recover(&client, &devices).await?;
                emulate(&client, &devices, &rates).await?;
                let begun = Begun::now(&client).await?;
                let held = layout.holders.iter().map(|holder| {
                    let at = devices.iter().position(|&device| device == holder.device);
                    (at.map_or(0.0, |at| rates[at]), holder.count())
                });
                let ideal = disks::any_k_ideal(held, block_bytes, k).context("too few blocks")?;
                gets.limits_ms.push(millis(ideal));
                let (sink, compared) = original.comparison()?;
                let before = cpu::seconds(&processes)?;
                let got = client.get(BUCKET, &key, None, sink).await?;
                gets.cpu_s += cpu::seconds(&processes)? - before;
                let whole = compared.wrong() == 0 && compared.taken() == original.length();
                ensure!(whole, "bytes came back wrong");
                gets.latencies_ms.push(millis(got.latency));
                gets.overheads.push(got.io_overhead());
                gets.late.push(begun.late(&client, &[]).await?);
            }
            if wanted(&puts.name()) {
                recover(&client, &devices).await?;
                emulate(&client, &devices, &rates).await?;
                let begun = Begun::now(&client).await?;
                let disks: Vec<(f64, usize)> = rates.iter().copied().zip(0..).collect();
                let limit = disks::write_limit(&disks, block_bytes, k + k.div_ceil(2), k, 2);
                puts.limits_ms.push(millis(limit.context("no device writes")?));
                let before = cpu::seconds(&processes)?;
                let key = format!("written-{access}");
                let put = client.put(BUCKET, &key, original.source()?, length).await?;
                puts.cpu_s += cpu::seconds(&processes)? - before;
                puts.latencies_ms.push(millis(put.latency));
                puts.overheads.push(put.sent_bytes as f64 / put.size as f64 - 1.0);
                puts.late.push(begun.late(&client, &[]).await?);
                // Not at once: what a read tells of the devices' speeds is nothing that the next access would know.
                written.push(key);
                if written.len() == KEPT {
                    read_back(&client, &devices, &original, &mut written).await?;
                }
            }
        }
        read_back(&client, &devices, &original, &mut written).await?;
        for measured in [gets, puts].into_iter().filter(|measured| !measured.latencies_ms.is_empty()) {
            let latencies = &measured.latencies_ms;
            let (mean, spread) = (mean(latencies), standard_deviation(latencies));
            let void = overruns::warning(measured.overruns());
            say(&format!("{}: {mean:.0} ms, s.d. {spread:.0}{void}", measured.name()));
            done(measured)?;
        }
    }
    cluster.stop();
    Ok(())
}

/// Reads what was put, byte for byte, and removes it.
async fn read_back(
    client: &Client,
    devices: &[DeviceId],
    original: &Original,
    written: &mut Vec<String>,
) -> Result<()> {
    emulate(client, devices, &[RATE; DEVICES]).await?;
    for key in written.drain(..) {
        let (sink, compared) = original.comparison()?;
        client.get(BUCKET, &key, None, sink).await?;
        let whole = compared.wrong() == 0 && compared.taken() == original.length();
        ensure!(whole, "what was put as {key} came back wrong");
        client.remove(BUCKET, &key).await?;
    }
    Ok(())
}

/// The device that is slow next is another one; nobody knows yet which.
async fn recover(client: &Client, devices: &[DeviceId]) -> Result<()> {
    emulate(client, devices, &[RATE; DEVICES]).await?;
    tokio::time::sleep(RECOVERY).await;
    Ok(())
}

async fn emulate(client: &Client, devices: &[DeviceId], rates: &[f64]) -> Result<()> {
    for (&device, &rate) in devices.iter().zip(rates) {
        let spec = if rate > 0.0 { format!("rate={rate}B") } else { "stall".to_owned() };
        client.emulate(device, &spec).await?;
    }
    Ok(())
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// The table, for people.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "mean ms", "s.d.", "p99", "limit ms", "times the limit", "MinIO ms", "overruns"]);
    for case in CASES {
        for operation in ["get", "put"] {
            let case = case_name(operation, case.name);
            let find = |metric| report.value("six-devices", &case, metric);
            let mean =
                report.records.iter().find(|record| record.case == case && record.metric == "latency_mean");
            if mean.is_none() {
                continue;
            }
            let show =
                |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
            let ratio =
                mean.and_then(|record| record.ratio).map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let limit = show(mean.and_then(|record| record.limit));
            table.add_row([
                case.clone(),
                show(find("latency_mean")),
                show(find("latency_sd")),
                show(find("latency_p99")),
                limit,
                ratio,
                show(mean.and_then(|record| record.paper)),
                find("overruns").map_or_else(String::new, overruns::show),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
