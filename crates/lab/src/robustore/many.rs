//! Many clients that read at once from the same disks (§7.3, ours): what each gets, how evenly, and what it costs all of them.

use super::{
    access::{self, Watch},
    draw::Draw,
    parameters::{Experiment, Parameters},
    scheme::Scheme,
    spread::{self, Task},
};
use crate::{
    Options,
    report::{Report, mean, standard_deviation},
};
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use steadfast_protocol::{DeviceId, SegmentId, read::RequestRule};

/// The experiment's name.
pub const NAME: &str = "robustore/many-clients";

/// The scheme that is read.
const SCHEME: Scheme = Scheme::RatelessB;

const RULES: [(&str, RequestRule); 2] = [("all", RequestRule::All), ("adaptive", RequestRule::ADAPTIVE)];

/// One way to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    /// Which of the rules.
    rule: usize,
    /// Whether the disks have been read from before.
    known: bool,
    /// Whether each client reads an object of its own.
    own: bool,
}

/// One draw of disks, one way to read, as many clients as the point says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Unit {
    point: usize,
    way: Way,
    number: u32,
}

/// What all clients of one draw got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Of each client, in seconds.
    pub latencies: Vec<f64>,
    /// Bytes that all of them were sent.
    pub sent_bytes: u64,
    /// Bytes read from media for all of them.
    pub medium_bytes: u64,
    /// The hash of its trace.
    pub hash: u64,
}

/// Runs the experiment.
///
/// # Errors
/// When an access fails, which is a finding, or the file to resume from cannot be used.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    report: Report,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    let seed = report.seed();
    let groups: Vec<Vec<Unit>> = units(experiment, options)?.into_iter().map(|unit| vec![unit]).collect();
    let name = |unit: Unit| (case(experiment, unit), unit.number);
    let task = Task { experiment: NAME, seed, options, name: &name };
    let work = |group: &[Unit]| {
        let one = |unit: &Unit| at_once(&experiment.points[unit.point].1, unit.way, seed, unit.number);
        group.iter().map(one).collect()
    };
    let done = spread::run(&task, &groups, work, say)?;
    Ok(add(report, experiment, &done))
}

fn case(experiment: &Experiment, unit: Unit) -> String {
    let Way { rule, known, own } = unit.way;
    format!(
        "{} rule={} speeds={} objects={}",
        experiment.points[unit.point].0,
        RULES[rule].0,
        if known { "known" } else { "unknown" },
        if own { "own" } else { "same" },
    )
}

fn units(experiment: &Experiment, options: &Options) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    for (point, (_, parameters)) in experiment.points.iter().enumerate() {
        let draws = parameters.draws().count(options)?;
        for way in 0..8 {
            let way = Way { rule: way & 1, known: way & 2 != 0, own: way & 4 != 0 };
            let named = case(experiment, Unit { point, way, number: 0 });
            if options.case.as_ref().is_none_or(|part| named.contains(part)) {
                units.extend((0..draws).map(|number| Unit { point, way, number }));
            }
        }
    }
    if units.is_empty() {
        return Err(super::settings::no_case(NAME).into());
    }
    // Those with most clients first: what is left over at the end is then short.
    units.sort_by_key(|unit| (usize::MAX - unit.point, unit.number, unit.way));
    Ok(units)
}

/// One draw: all clients begin to read at the same time.
fn at_once(parameters: &Parameters, way: Way, seed: u64, number: u32) -> Result<Sample> {
    let parameters = &SCHEME.parameters(parameters);
    let draw = Draw::new(parameters, seed, number, 0);
    let (spec, code) = SCHEME.code(parameters, draw.code_seed)?;
    let (mut world, first) = access::world(parameters, &draw, Watch::default());
    let objects = if way.own { parameters.clients } else { 1 };
    let mut layouts = Vec::new();
    for object in 0..objects {
        let segment = SegmentId(u64::from(object) + 1);
        let holders = access::holders(parameters, SCHEME, &draw, segment)?;
        let layout = access::layout(parameters, segment, spec, holders);
        world.preload(&layout, draw.seed);
        layouts.push(layout);
    }
    let rule = RULES[way.rule].1;
    let read = |layout, seen: &dyn Fn(DeviceId) -> u64| {
        access::reading(parameters, SCHEME, rule, layout, code.clone(), draw.seed, seen)
    };
    if way.known {
        let now = world.now();
        let before = world.read(first, now, read(&layouts[0], &|_| 0));
        world.run();
        access::succeeded(&world, before, SCHEME)?;
    }
    let speeds: BTreeMap<DeviceId, u64> = if way.known {
        draw.disks.iter().map(|disk| (disk.device(), world.read_bytes_per_s(disk.device()))).collect()
    } else {
        BTreeMap::new()
    };
    let seen = |device: DeviceId| speeds.get(&device).copied().unwrap_or(0);
    let now = world.now();
    let clients = (0..parameters.clients).map(|number| if number == 0 { first } else { world.add_client() });
    let clients: Vec<u32> = clients.collect();
    let turns = clients.iter().zip(layouts.iter().cycle());
    let reads: Vec<_> = turns.map(|(&client, layout)| world.read(client, now, read(layout, &seen))).collect();
    world.run();
    let mut sample = Sample { latencies: Vec::new(), sent_bytes: 0, medium_bytes: 0, hash: 0 };
    for id in reads {
        let outcome = access::succeeded(&world, id, SCHEME)?;
        sample.latencies.extend(outcome.latency().map(|latency| latency.as_secs_f64()));
        sample.sent_bytes += outcome.sent_bytes;
        sample.medium_bytes += outcome.medium_bytes;
    }
    sample.hash = world.trace().hash();
    Ok(sample)
}

/// Jain's index of what each gets: 1 where all get the same, 1/n where one gets everything (Jain, Chiu, Hawe 1984).
fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

fn add(mut report: Report, experiment: &Experiment, done: &BTreeMap<Unit, Sample>) -> Report {
    let mut cases: BTreeMap<(usize, Way), Vec<&Sample>> = BTreeMap::new();
    for (unit, sample) in done {
        cases.entry((unit.point, unit.way)).or_default().push(sample);
    }
    for ((point, way), samples) in cases {
        let parameters = &experiment.points[point].1;
        let case = case(experiment, Unit { point, way, number: 0 });
        let megabytes = parameters.object_bytes() as f64 / 1e6;
        let asked = parameters.object_bytes() as f64 * f64::from(parameters.clients);
        let each: Vec<f64> = samples.iter().flat_map(|sample| sample.latencies.iter().copied()).collect();
        let bandwidths: Vec<f64> = each.iter().map(|latency| megabytes / latency).collect();
        let of = |part: &dyn Fn(&Sample) -> f64| -> f64 {
            mean(&samples.iter().map(|sample| part(sample)).collect::<Vec<f64>>())
        };
        let last = |sample: &Sample| sample.latencies.iter().copied().fold(0.0, f64::max);
        let mut add = |metric: &'static str, value: f64, unit: &'static str| {
            report.add(NAME, &case, metric, value, unit);
        };
        add("bandwidth", mean(&bandwidths), "MB/s");
        add("bandwidth_total", of(&|sample| asked / 1e6 / last(sample)), "MB/s");
        add("latency_mean", mean(&each), "s");
        add("latency_sd", standard_deviation(&each), "s");
        add("latency_sd_among_clients", of(&|sample| standard_deviation(&sample.latencies)), "s");
        let fair = |sample: &Sample| {
            fairness(&sample.latencies.iter().map(|latency| 1.0 / latency).collect::<Vec<f64>>())
        };
        add("fairness", of(&fair), "Jain's index");
        add("io_overhead", of(&|sample| sample.sent_bytes as f64 / asked - 1.0), "share of what was asked");
        add(
            "medium_overhead",
            of(&|sample| sample.medium_bytes as f64 / asked - 1.0),
            "share of what was asked",
        );
    }
    report
}

/// The report as a table for people.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let metrics = [
        "bandwidth",
        "bandwidth_total",
        "latency_mean",
        "latency_sd",
        "latency_sd_among_clients",
        "fairness",
        "io_overhead",
        "medium_overhead",
    ];
    table.set_header([
        "",
        "MB/s each",
        "MB/s all",
        "mean s",
        "s.d. s",
        "among clients",
        "fairness",
        "sent beyond",
        "read beyond",
    ]);
    for first in report.records.iter().filter(|record| record.metric == metrics[0]) {
        let number = |metric: &&str| {
            let value = report.value(first.experiment, &first.case, metric).unwrap_or(0.0);
            if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
        };
        table.add_row([first.case.clone()].into_iter().chain(metrics.iter().map(number)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{parameters, settings::DRAWS_MAX},
        *,
    };

    fn small() -> Experiment {
        let mut experiment = parameters::find(NAME).unwrap().unwrap();
        experiment.points.truncate(3);
        for (_, parameters) in &mut experiment.points {
            parameters.disks = 8;
            parameters.object_mib = 32;
            parameters.block_kib = 64;
        }
        experiment
    }

    #[test]
    fn more_draws_than_there_are_seeds_are_refused() {
        let options = Options { draws: Some(DRAWS_MAX + 1), ..Options::default() };
        let refused = units(&small(), &options).unwrap_err().to_string();
        assert!(refused.contains("there can be 1 to 1048576"), "{refused}");
    }

    #[test]
    fn fairness_is_jains() {
        assert_eq!(fairness(&[3.0; 4]), 1.0);
        assert_eq!(fairness(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn more_clients_get_less_each_and_about_the_same_together() {
        let experiment = small();
        let options = Options { quick: true, ..Options::default() };
        let report = run(&experiment, &options, Report::new(3), &mut |_| ()).unwrap();
        for way in 0..8 {
            let way = Way { rule: way & 1, known: way & 2 != 0, own: way & 4 != 0 };
            let value = |point: usize, metric: &str| {
                report.value(NAME, &case(&experiment, Unit { point, way, number: 0 }), metric).unwrap()
            };
            let (one, four) = (value(0, "bandwidth"), value(2, "bandwidth"));
            assert!(four < one * 0.5 && four > one / 10.0, "{way:?}: {one} and {four} MB/s");
            assert!(value(2, "bandwidth_total") > one * 0.6, "{way:?}");
            assert!((0.25..=1.0).contains(&value(2, "fairness")), "{way:?}");
            assert!((value(0, "fairness") - 1.0).abs() < 1e-9, "one alone is treated fairly");
            assert!(value(2, "medium_overhead") >= value(2, "io_overhead"), "{way:?}");
        }
        assert_eq!(run(&experiment, &options, Report::new(3), &mut |_| ()).unwrap().records, report.records);
    }
}
