//! Six devices of 100 MB/s, one of them slow or stalled: the work on which lock-step stores take seconds.
//!
//! Objects of 64 MiB under D = 0.5, f = 2 (what a 4+2 code stores and survives), on six storage servers of one
//! emulated device each, all six 100 MB/s, or one of them at 10 MB/s, or one stalled. The device that is slow goes
//! round, and every access is of an object of its own. Limits are the arithmetic of the drawn speeds: the any-K
//! ideal for reads, the durability rule for writes.

use crate::{
    cluster::{LocalCluster, Shape},
    disks,
    original::Original,
    report::{Report, mean, standard_deviation},
};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use std::{path::Path, time::Duration};
use steadfast_client::{Client, Options};
use steadfast_protocol::DeviceId;

const DEVICES: usize = 6;
const OBJECT_BYTES: usize = 64 << 20;
const ACCESSES: usize = 12;
/// How long the cluster is left to learn that all devices are well again: heartbeats come every half second.
const RECOVERY: Duration = Duration::from_millis(1100);
const RATE: f64 = 100e6;
const BUCKET: &str = "six";

/// Cases: name, the odd device's rate in bytes per second, and what another store took for reads and writes on the
/// same work, in ms (MinIO 2026-02 on a machine of this kind; its stalled reads took 4 to 120 s).
const CASES: [(&str, f64, Option<f64>, Option<f64>); 3] = [
    ("equal", RATE, Some(167.0), Some(169.0)),
    ("one-slow", 10e6, Some(1076.0), Some(1682.0)),
    ("stalled", 0.0, None, Some(34_000.0)),
];

/// Runs the six cases.
///
/// # Errors
/// When the cluster cannot be run, an access fails or a byte comes back wrong.
pub async fn run(program: &Path, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut report = Report::new(seed);
    // The objects read, the one written, and what the writer pushes beyond.
    let capacity: u64 = 512 << 20;
    let scratch = crate::Scratch::new(capacity * DEVICES as u64)?;
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
        client.put(BUCKET, &format!("read-{object}"), original.reader()?, length).await?;
    }
    for (case, odd, others_read, others_write) in CASES {
        let (mut reads, mut writes, mut ideals, mut limits, mut overheads) =
            (vec![], vec![], vec![], vec![], vec![]);
        for access in 0..ACCESSES {
            let rates: Vec<f64> =
                (0..DEVICES).map(|device| if device == access % DEVICES { odd } else { RATE }).collect();
            recover(&client, &devices).await?;
            emulate(&client, &devices, &rates).await?;
            let key = format!("read-{}", access % 3);
            let layouts = client.stat(BUCKET, &key).await?.segments;
            let layout = layouts.first().context("a stored object has a segment")?;
            let held = layout.holders.iter().map(|holder| {
                let at = devices.iter().position(|&device| device == holder.device);
                (at.map_or(0.0, |at| rates[at]), holder.count())
            });
            let k = layout.code.originals;
            ideals.push(millis(disks::any_k_ideal(held, layout.block_bytes, k).context("too few blocks")?));
            let (sink, compared) = original.comparison()?;
            let got = client.get(BUCKET, &key, None, sink).await?;
            ensure!(compared.wrong() == 0 && compared.taken() == original.length(), "bytes came back wrong");
            reads.push(millis(got.latency));
            overheads.push(got.io_overhead());

            recover(&client, &devices).await?;
            emulate(&client, &devices, &rates).await?;
            let disks: Vec<(f64, usize)> = rates.iter().copied().zip(0..).collect();
            let limit = disks::write_limit(&disks, layout.block_bytes, k + k.div_ceil(2), k, 2);
            limits.push(millis(limit.context("no device writes")?));
            writes.push(millis(client.put(BUCKET, "written", original.reader()?, length).await?.latency));
            client.remove(BUCKET, "written").await?;
        }
        for (operation, latencies, limits, other) in
            [("get", &reads, &ideals, others_read), ("put", &writes, &limits, others_write)]
        {
            let case = format!("{operation}-64MiB-{case}");
            say(&format!("{case}: {:.0} ms, s.d. {:.0}", mean(latencies), standard_deviation(latencies)));
            let record = report.add("six-devices", &case, "latency_mean", mean(latencies), "ms");
            (record.limit, record.ratio) = (Some(mean(limits)), Some(mean(limits) / mean(latencies)));
            report.add("six-devices", &case, "latency_sd", standard_deviation(latencies), "ms");
            report.add("six-devices", &case, "latency_max", latencies.iter().copied().reduce(f64::max), "ms");
            report.add("six-devices", &case, "latency_other_store", other, "ms");
        }
        report.add("six-devices", &format!("get-64MiB-{case}"), "io_overhead", mean(&overheads), "1");
    }
    cluster.stop();
    Ok(report)
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
    table.set_header(["", "mean ms", "s.d.", "max", "limit ms", "of limit", "MinIO ms"]);
    for (case, ..) in CASES {
        for operation in ["get", "put"] {
            let case = format!("{operation}-64MiB-{case}");
            let find = |metric| report.value("six-devices", &case, metric);
            let mean =
                report.records.iter().find(|record| record.case == case && record.metric == "latency_mean");
            let show =
                |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
            let ratio =
                mean.and_then(|record| record.ratio).map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let limit = show(mean.and_then(|record| record.limit));
            table.add_row([
                case.clone(),
                show(find("latency_mean")),
                show(find("latency_sd")),
                show(find("latency_max")),
                limit,
                ratio,
                show(find("latency_other_store")),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
