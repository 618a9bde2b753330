//! How much to ask for: everything (dissertation §4.1.2) against the adaptive rule, by 1, 4 and 16 clients at once, 1 ms
//! and 100 ms away, on eight unequal devices.
//!
//! Each client reads the same object of 32 MiB (D = 1, f = 2) at the same time as the others. The two rules take turns on
//! the same draw of speeds, which the devices had not had before. Who is second reads devices whose speeds the first has
//! made known, so each is first in every other round, and rounds are even in number. Meanwhile another reader gets a
//! small object again and again, with neither rule: how long it takes is the harm done to others.
//! The clients' link delays what they send by the whole round trip; to a reader that is the same as half each way.

use crate::{
    cluster::{LocalCluster, Shape},
    original::Original,
    overruns::{self, Begun, Late},
    report::{NotOffered, Report, mean, standard_deviation},
};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use steadfast_client::{Client, GetReport, Options, RequestRule};
use steadfast_protocol::DeviceId;

const EXPERIMENT: &str = "requests";
const NODES: u32 = 8;
const OBJECT_BYTES: usize = 32 << 20;
const SMALL_BYTES: usize = 4 << 20;
const BUCKET: &str = "requests";
/// Megabytes per second; the draw goes round by one device each round.
const RATES: [f64; NODES as usize] = [8.0, 12.0, 16.0, 20.0, 25.0, 30.0, 36.0, 45.0];
/// Round trips in milliseconds.
const ROUND_TRIPS: [u64; 2] = [1, 100];
/// Clients at once, and rounds, even in number: fewer where each round has many reads.
const CLIENTS: [(usize, usize); 3] = [(1, 8), (4, 4), (16, 4)];
const RULES: [(&str, RequestRule); 2] = [("all", RequestRule::All), ("adaptive", RequestRule::ADAPTIVE)];

/// What was measured of one rule.
#[derive(Default)]
struct Seen {
    latencies: Vec<f64>,
    reports: Vec<GetReport>,
    others: Vec<f64>,
    late: Vec<Late>,
}

/// Runs all cases.
///
/// # Errors
/// When the cluster cannot be run, a read fails or a byte comes back wrong.
pub async fn run(
    program: &Path,
    options: &crate::Options,
    mut report: Report,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    let seed = report.seed();
    let points = points(options);
    if let Some(asked) = options.case.as_ref().filter(|_| points.is_empty()) {
        let known = self::points(&crate::Options::default())
            .into_iter()
            .flat_map(|point| RULES.map(|(rule, _)| case(rule, point.round_trip, point.clients)));
        return Err(NotOffered::no_case(EXPERIMENT, asked, known).into());
    }
    let capacity: u64 = 256 << 20;
    let scratch = crate::scratch::Scratch::new(capacity * u64::from(NODES))?;
    let shape = Shape {
        nodes: NODES,
        devices: 1,
        emulate: Some("off".to_owned()),
        capacity_bytes: Some(capacity),
        thick: true,
        ..Shape::default()
    };
    let cluster = LocalCluster::start(program, scratch.path(), &shape)?;
    let other =
        cluster.client(Options { seed: Some(seed), request: RequestRule::KPlus(0), ..Options::default() });
    let other = Arc::new(other.await?);
    other.create_bucket(BUCKET, "rateless:redundancy=1,tolerate=2".parse()?).await?;
    let registry = other.registry().await?;
    let devices: Vec<DeviceId> =
        registry.nodes.iter().flat_map(|node| &node.record.devices).map(|&(device, _)| device).collect();
    ensure!(devices.len() == RATES.len(), "{} devices registered", devices.len());
    let original = Arc::new(Original::make(OBJECT_BYTES, seed));
    let small = Arc::new(Original::make(SMALL_BYTES, seed ^ 1));
    for (key, original) in [("large", &original), ("small", &small)] {
        // At equal speeds, so that every device holds about as much.
        for &device in &devices {
            other.emulate(device, "rate=200MB").await?;
        }
        other.put(BUCKET, key, original.source()?, Some(original.length())).await?;
    }
    for Point { round_trip, clients, rounds } in points {
        let mut seen: [Seen; 2] = Default::default();
        let mut readers: [Vec<Client>; 2] = Default::default();
        for (readers, (_, request)) in readers.iter_mut().zip(RULES) {
            for reader in 0..clients {
                let seed = Some(seed.wrapping_add(reader as u64));
                let mut options = Options { seed, request, ..Options::default() };
                options.net.link.delay = Duration::from_millis(round_trip);
                readers.push(cluster.client(options).await?);
            }
        }
        // Once through, so that no connection is made while the clock runs.
        emulate(&other, &devices, 0).await?;
        for readers in &readers {
            at_once(readers, &original, &other, &small).await?;
        }
        for round in 0..rounds {
            for turn in 0..2 {
                let rule = (round + turn) % 2;
                emulate(&other, &devices, 1 + round).await?;
                let begun = Begun::now(&other).await?;
                let got = at_once(&readers[rule], &original, &other, &small).await?;
                seen[rule].latencies.extend(got.reports.iter().map(|got| millis(got.latency)));
                seen[rule].reports.extend(got.reports);
                seen[rule].others.extend(got.others);
                seen[rule].late.push(begun.late(&other, &[]).await?);
            }
        }
        for ((rule, _), seen) in RULES.iter().zip(seen) {
            add(&mut report, &case(rule, round_trip, clients), &seen, say);
        }
        report.complete()?;
    }
    cluster.stop();
    Ok(report)
}

/// So many clients at once, so far away.
struct Point {
    round_trip: u64,
    clients: usize,
    rounds: usize,
}

/// Those that are asked for, both rules of each: one alone says nothing.
fn points(options: &crate::Options) -> Vec<Point> {
    let mut points = Vec::new();
    for round_trip in ROUND_TRIPS {
        for (clients, usual) in CLIENTS {
            let wanted = |rule: &str| {
                options.case.as_ref().is_none_or(|part| case(rule, round_trip, clients).contains(part))
            };
            if RULES.iter().any(|(rule, _)| wanted(rule)) {
                let usual = if options.quick { 2 } else { usual };
                // Each rule is first in half of them.
                let rounds = options.draws.map_or(usual, |draws| draws as usize).next_multiple_of(2);
                points.push(Point { round_trip, clients, rounds });
            }
        }
    }
    points
}

fn case(rule: &str, round_trip: u64, clients: usize) -> String {
    format!("{rule}-{round_trip}ms-{clients}")
}

/// All readers get the object at the same time.
async fn at_once(
    readers: &[Client],
    original: &Arc<Original>,
    other: &Arc<Client>,
    small: &Arc<Original>,
) -> Result<Seen> {
    let over = Arc::new(AtomicBool::new(false));
    let background = tokio::spawn({
        let (over, other, small) = (over.clone(), other.clone(), small.clone());
        async move {
            let mut latencies = Vec::new();
            while !over.load(Ordering::Relaxed) {
                latencies.push(millis(get(&other, "small", &small).await?.latency));
            }
            anyhow::Ok(latencies)
        }
    });
    let reads = readers.iter().map(|reader| get(reader, "large", original));
    let reports = join_all(reads).await;
    over.store(true, Ordering::Relaxed);
    let others = background.await.context("the other reader panicked")??;
    Ok(Seen { reports: reports?, others, ..Seen::default() })
}

/// Polls all of them until each is done; the first error is told.
async fn join_all<T>(reads: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    let mut reads: Vec<_> = reads.map(Box::pin).collect();
    let mut done: Vec<Option<Result<T>>> = reads.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (read, done) in reads.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(result) = read.as_mut().poll(context) {
                *done = Some(result);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

async fn get(client: &Client, key: &str, original: &Original) -> Result<GetReport> {
    let (sink, compared) = original.comparison()?;
    let got = client.get(BUCKET, key, None, sink).await?;
    ensure!(compared.wrong() == 0 && compared.taken() == original.length(), "{key} came back wrong");
    Ok(got)
}

async fn emulate(client: &Client, devices: &[DeviceId], round: usize) -> Result<()> {
    for (position, &device) in devices.iter().enumerate() {
        let rate = RATES[(position + 3 * round) % RATES.len()];
        client.emulate(device, &format!("rate={rate}MB")).await?;
    }
    Ok(())
}

fn add(report: &mut Report, case: &str, seen: &Seen, say: &mut dyn FnMut(&str)) {
    let sum = |of: fn(&GetReport) -> u64| seen.reports.iter().map(of).sum::<u64>() as f64;
    let (segments, used) = (sum(|got| got.segment_bytes), sum(|got| got.used_bytes));
    let overheads: Vec<f64> = seen.reports.iter().map(GetReport::io_overhead).collect();
    let mut sorted = seen.latencies.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let overruns = seen.late.iter().copied().sum::<Late>().share();
    // Of few samples it is the worst.
    let p99 = sorted.get((sorted.len() * 99).div_ceil(100).saturating_sub(1)).copied();
    say(&format!(
        "{case}: {:.0} ms, s.d. {:.0}, I/O overhead {:.3}{}",
        mean(&seen.latencies),
        standard_deviation(&seen.latencies),
        mean(&overheads),
        overruns::warning(overruns)
    ));
    report.add(EXPERIMENT, case, "latency_mean", mean(&seen.latencies), "ms");
    report.add(EXPERIMENT, case, "latency_sd", standard_deviation(&seen.latencies), "ms");
    report.add(EXPERIMENT, case, "latency_p99", p99, "ms");
    report.add(EXPERIMENT, case, "io_overhead", mean(&overheads), "1");
    report.add(EXPERIMENT, case, "io_overhead_max", overheads.iter().copied().reduce(f64::max), "1");
    report.add(EXPERIMENT, case, "medium_overhead", sum(|got| got.medium_bytes) / segments - 1.0, "1");
    report.add(EXPERIMENT, case, "waste", sum(|got| got.sent_bytes.max(got.received_bytes)) - used, "B");
    report.add(EXPERIMENT, case, "requested_blocks", sum(|got| got.requested_blocks.into()), "1");
    report.add(EXPERIMENT, case, "extra_blocks", sum(|got| got.extra_blocks.into()), "1");
    report.add(EXPERIMENT, case, "extra_won", sum(|got| got.extra_won.into()), "1");
    report.add(EXPERIMENT, case, "others_latency_mean", mean(&seen.others), "ms");
    report.add(EXPERIMENT, case, "overruns", overruns, "share of operations");
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// The table, for people.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "round trip",
        "clients",
        "asks",
        "mean ms",
        "s.d.",
        "p99",
        "I/O overhead",
        "from media",
        "waste MB",
        "extras won",
        "others ms",
        "overruns",
    ]);
    for round_trip in ROUND_TRIPS {
        for (clients, _) in CLIENTS {
            for (rule, _) in RULES {
                let case = case(rule, round_trip, clients);
                if report.value(EXPERIMENT, &case, "latency_mean").is_none() {
                    continue;
                }
                let figure = |metric| report.value(EXPERIMENT, &case, metric).unwrap_or(f64::NAN);
                table.add_row([
                    format!("{round_trip} ms"),
                    clients.to_string(),
                    rule.to_owned(),
                    format!("{:.0}", figure("latency_mean")),
                    format!("{:.0}", figure("latency_sd")),
                    format!("{:.0}", figure("latency_p99")),
                    format!("{:.3}", figure("io_overhead")),
                    format!("{:.3}", figure("medium_overhead")),
                    format!("{:.1}", figure("waste") / 1e6),
                    format!("{:.0} of {:.0}", figure("extra_won"), figure("extra_blocks")),
                    format!("{:.0}", figure("others_latency_mean")),
                    overruns::show(figure("overruns")),
                ]);
            }
        }
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_rule_is_first_more_often_than_the_other() {
        let rounds = |draws: Option<u32>, quick: bool| -> Vec<usize> {
            let options = crate::Options { draws, quick, ..crate::Options::default() };
            points(&options).into_iter().map(|point| point.rounds).collect()
        };
        assert_eq!(rounds(None, false), [8, 4, 4, 8, 4, 4]);
        assert_eq!(rounds(None, true), [2; 6]);
        for (draws, expected) in [(1, 2), (2, 2), (7, 8)] {
            assert_eq!(rounds(Some(draws), false), [expected; 6], "{draws}");
        }
    }
}
