//! All accesses of an experiment, on all cores, and what they come to. An access is a function of the seed, its point, its
//! scheme and its number, so the figures do not depend on which thread did what, nor on how often a run was interrupted.

use super::{
    access::{self, Sample},
    draw::Draw,
    ideal::{self, Ideal},
    parameters::{Access, Experiment, Parameters},
    scheme::{SCHEMES, Scheme},
    sequence,
    spread::{self, Task},
};
use crate::{
    Options, cpu,
    report::{Report, mean, standard_deviation},
};
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

/// The name of what no scheme can beat.
const IDEAL: &str = "any-k-ideal";

/// One unit of work: an access of one scheme, or of none: the ideal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Unit {
    point: usize,
    scheme: Option<Scheme>,
    number: u32,
}

/// Runs an experiment.
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
    let units = units(experiment, options)?;
    let name = |unit: Unit| (case(experiment, unit), unit.number);
    let task = Task { experiment: experiment.name, seed, options, name: &name };
    let requests = AtomicU64::new(0);
    let work = |group: &[Unit]| {
        let samples = several(experiment, group, seed)?;
        requests.fetch_add(samples.iter().map(|sample| sample.requests).sum(), Ordering::Relaxed);
        Ok(samples)
    };
    let process = [std::process::id()];
    let before = cpu::seconds(&process)?;
    let done = spread::run(&task, &groups(experiment, &units), work, say)?;
    let (seconds, requests) = (cpu::seconds(&process)? - before, requests.into_inner() as f64 / 1e6);
    say(&format!(
        "{}: {requests:.1} million modelled disk requests in {seconds:.1} s of processor time, {:.2} million a second",
        experiment.name,
        requests / seconds.max(0.01)
    ));
    Ok(add(report, experiment, &done))
}

fn units(experiment: &Experiment, options: &Options) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    for (point, (_, parameters)) in experiment.points.iter().enumerate() {
        let accesses = parameters.draws().count(options)?;
        let chosen = |scheme: &Scheme| {
            let named = case(experiment, Unit { point, scheme: Some(*scheme), number: 0 });
            scheme.fits(parameters) && options.case.as_ref().is_none_or(|part| named.contains(part))
        };
        let mut schemes: Vec<Option<Scheme>> = SCHEMES.into_iter().filter(chosen).map(Some).collect();
        if !schemes.is_empty() {
            // What shares are taken of.
            schemes.push(None);
        }
        for scheme in schemes {
            units.extend((0..accesses).map(|number| Unit { point, scheme, number }));
        }
    }
    // The points with most work are among the last: what is left over at the end is then short.
    units.sort_by_key(|unit| (unit.number, unit.point, unit.scheme));
    if units.is_empty() {
        return Err(super::settings::no_case(experiment.name).into());
    }
    Ok(units)
}

/// Those that share a world, in the order of their first units.
fn groups(experiment: &Experiment, units: &[Unit]) -> Vec<Vec<Unit>> {
    let mut places: BTreeMap<(usize, Option<Scheme>, u32), usize> = BTreeMap::new();
    let mut groups: Vec<Vec<Unit>> = Vec::new();
    for &unit in units {
        let sequence = unit.number / experiment.points[unit.point].1.sequence;
        let place = *places.entry((unit.point, unit.scheme, sequence)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(unit);
    }
    groups
}

/// The samples of a group's units.
fn several(experiment: &Experiment, group: &[Unit], seed: u64) -> Result<Vec<Sample>> {
    let (first, last) = (group[0], group[group.len() - 1]);
    let parameters = &experiment.points[first.point].1;
    match first.scheme {
        Some(scheme) if parameters.sequence > 1 => {
            sequence::run(parameters, scheme, seed, first.number..last.number + 1)
        }
        _ => group.iter().map(|&unit| one(experiment, unit, seed)).collect(),
    }
}

fn one(experiment: &Experiment, unit: Unit, seed: u64) -> Result<Sample> {
    let parameters = &experiment.points[unit.point].1;
    match unit.scheme {
        Some(scheme) => access::run(parameters, scheme, seed, unit.number),
        None => {
            let Ideal { latency, requests } = best(parameters, seed, unit.number)?;
            let latency = latency.as_secs_f64();
            let (io_overhead, medium_overhead, cached) = (0.0, 0.0, 0.0);
            Ok(Sample { latency, io_overhead, medium_overhead, cached, events: 0, requests, hash: 0 })
        }
    }
}

fn best(parameters: &Parameters, seed: u64, number: u32) -> Result<Ideal> {
    match parameters.access {
        Access::Read => ideal::read(parameters, &Draw::new(parameters, seed, number, 0)),
        Access::Reread => ideal::read(parameters, &Draw::new(parameters, seed, number, 1)),
        Access::Write => ideal::write(parameters, &Draw::new(parameters, seed, number, 0), Scheme::RatelessB),
    }
}

fn case(experiment: &Experiment, unit: Unit) -> String {
    let scheme = unit.scheme.map_or(IDEAL, Scheme::name);
    format!("{} scheme={scheme}", experiment.points[unit.point].0)
}

fn add(mut report: Report, experiment: &Experiment, done: &BTreeMap<Unit, Sample>) -> Report {
    for (point, (_, parameters)) in experiment.points.iter().enumerate() {
        let of = |scheme: Option<Scheme>| -> Vec<Sample> {
            let from = Unit { point, scheme, number: 0 };
            let to = Unit { point, scheme, number: u32::MAX };
            done.range(from..=to).map(|(_, sample)| *sample).collect()
        };
        let megabytes = parameters.object_bytes() as f64 / 1e6;
        let bandwidths = |samples: &[Sample]| -> Vec<f64> {
            samples.iter().map(|sample| megabytes / sample.latency).collect()
        };
        let ideal = mean(&bandwidths(&of(None)));
        for scheme in SCHEMES.into_iter().map(Some).chain([None]) {
            let samples = of(scheme);
            if samples.is_empty() {
                continue;
            }
            let case = case(experiment, Unit { point, scheme, number: 0 });
            let latencies: Vec<f64> = samples.iter().map(|sample| sample.latency).collect();
            let bandwidths = bandwidths(&samples);
            let n = samples.len() as f64;
            // Of the normal distribution, two-sided: 95 %.
            let confidence = 1.96 * standard_deviation(&bandwidths) / n.sqrt();
            let bandwidth = mean(&bandwidths);
            let share = |part: fn(&Sample) -> f64| mean(&samples.iter().map(part).collect::<Vec<f64>>());
            let mut add = |metric: &'static str, value: f64, unit: &'static str| {
                let paper = experiment.paper(&case, metric);
                report.add(experiment.name, &case, metric, value, unit).paper = paper;
            };
            add("bandwidth", bandwidth, "MB/s");
            add("bandwidth_confidence", confidence, "MB/s");
            add("accesses", n, "accesses");
            add("latency_mean", mean(&latencies), "s");
            add("latency_sd", standard_deviation(&latencies), "s");
            if scheme.is_some() {
                add("io_overhead", share(|sample| sample.io_overhead), "share of the object");
                add("medium_overhead", share(|sample| sample.medium_overhead), "share of the object");
                add("share_of_ideal", bandwidth / ideal, "share");
                if parameters.cache_mib > 0 {
                    add("cached", share(|sample| sample.cached), "share of the object");
                }
            }
        }
    }
    report
}

/// The report as a table for people.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "", "MB/s", "±", "paper", "mean s", "s.d. s", "paper", "sent", "paper", "read", "of ideal",
    ]);
    let mut cases: Vec<(&'static str, &str)> = Vec::new();
    for record in &report.records {
        if cases.last() != Some(&(record.experiment, record.case.as_str())) {
            cases.push((record.experiment, &record.case));
        }
    }
    for (experiment, case) in cases {
        let find = |metric: &str| {
            report.records.iter().find(|record| {
                (record.experiment, record.case.as_str(), &*record.metric) == (experiment, case, metric)
            })
        };
        let number = |value: Option<f64>| match value {
            None => String::new(),
            Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
            Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
            Some(value) => format!("{value:.3}"),
        };
        let value = |metric: &str| number(find(metric).and_then(|record| record.value));
        let paper = |metric: &str| number(find(metric).and_then(|record| record.paper));
        table.add_row([
            case.to_owned(),
            value("bandwidth"),
            value("bandwidth_confidence"),
            paper("bandwidth"),
            value("latency_mean"),
            value("latency_sd"),
            paper("latency_sd"),
            value("io_overhead"),
            paper("io_overhead"),
            value("medium_overhead"),
            value("share_of_ideal"),
        ]);
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

    /// Two disks of 128, two accesses.
    fn small() -> Experiment {
        let mut experiment = parameters::find("robustore/disks").unwrap().unwrap();
        experiment.points.truncate(3);
        for (_, parameters) in &mut experiment.points {
            parameters.object_mib = 32;
            parameters.block_kib = 256;
            parameters.quick_accesses = 2;
        }
        experiment
    }

    #[test]
    fn more_accesses_than_there_are_seeds_are_refused() {
        let options = Options { draws: Some(DRAWS_MAX + 1), ..Options::default() };
        let refused = units(&small(), &options).unwrap_err().to_string();
        assert!(refused.contains("there can be 1 to 1048576"), "{refused}");
    }

    #[test]
    fn an_interrupted_run_comes_to_the_same() {
        let experiment = small();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("done");
        let mut options = Options { quick: true, ..Options::default() };
        let whole = run(&experiment, &options, Report::new(3), &mut |_| ()).unwrap();
        options.resume = Some(file.clone());
        let first = run(&experiment, &options, Report::new(3), &mut |_| ()).unwrap();
        assert_eq!(whole.records, first.records);
        // Cut in the middle of a line, as a kill leaves it.
        let text = std::fs::read_to_string(&file).unwrap();
        let cut = text.len() / 2;
        std::fs::write(&file, &text[..cut]).unwrap();
        let mut said = Vec::new();
        let again =
            run(&experiment, &options, Report::new(3), &mut |text| said.push(text.to_owned())).unwrap();
        assert_eq!(whole.records, again.records);
        assert!(said[0].contains("were done before"), "{said:?}");
        // All is there now, also what came behind the line that was cut.
        let after = std::fs::read_to_string(&file).unwrap();
        let uncut = after.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
        assert_eq!(uncut.count(), text.lines().count());
        let other = run(&experiment, &options, Report::new(4), &mut |_| ()).unwrap();
        assert_ne!(whole.records, other.records, "another seed is another run");
        // Another build may do otherwise.
        let mut line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        line["build"] = 1.into();
        std::fs::write(&file, format!("{line}\n")).unwrap();
        let refused = run(&experiment, &options, Report::new(3), &mut |_| ()).unwrap_err().to_string();
        assert!(refused.contains("another build"), "{refused}");
    }
}
