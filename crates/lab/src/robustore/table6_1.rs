//! `robustore/table6-1`: the bandwidths of one modelled disk beside Table 6-1.
//!
//! | case | what |
//! |---|---|
//! | `blocking_factor= sequential=` | a cell, as all other experiments draw their disks |
//! | `blocking_factor= sequential= variant=` | the same cell with one assumption changed |
//! | `mean` | of the sixteen cells |
//!
//! The metric is `bandwidth`, MB/s.

use super::settings::{self, Draws};
use crate::{Options, report::Report};
use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use steadfast_disk::model::measure::{
    BLOCKING_FACTORS, TABLE_6_1, TABLE_6_1_MEAN, Variant, layout_bandwidth,
};

/// The experiment's name.
pub const NAME: &str = "robustore/table6-1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    figures: String,
    shows: String,
    draws: u32,
    quick_draws: u32,
    log: Vec<String>,
    confined: Vec<f64>,
    notes: BTreeMap<String, String>,
}

fn settings() -> Result<Settings> {
    let settings: Settings = settings::read(NAME, include_str!("parameters/table6-1.toml"))?;
    for span in &settings.confined {
        settings::within(NAME, "confined", *span, 0.01, 1.0)?;
    }
    Ok(settings)
}

/// What it shows, and on which figure.
///
/// # Errors
/// When its file says something impossible.
pub fn about() -> Result<settings::About> {
    let Settings { figures, shows, log, notes, .. } = settings()?;
    Ok(settings::About { figures, shows, log, notes })
}

/// The assumptions, by the name that a case has for them; the first is the one the other experiments make.
fn variants(confined: &[f64]) -> Vec<(String, Variant)> {
    let mut variants = vec![
        (String::new(), Variant::Queued),
        (" variant=one-at-a-time".to_owned(), Variant::Plain),
        (" variant=no-read-ahead".to_owned(), Variant::NoReadAhead),
        (" variant=no-hit-overhead".to_owned(), Variant::NoOverhead),
    ];
    variants.extend(
        confined.iter().map(|span| (format!(" variant=confined-to-{span}"), Variant::Confined(*span))),
    );
    variants
}

/// Runs it.
///
/// # Errors
/// When no case has the name asked for, or the number of draws is out of its range.
pub fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let seed = report.seed();
    let settings = settings()?;
    let draws = Draws { usual: settings.draws, quick: settings.quick_draws };
    let seeds = draws.seeds(options, seed)?;
    let asked = |case: &str| options.case.as_ref().is_none_or(|part| case.contains(part));
    for (suffix, variant) in variants(&settings.confined) {
        let mut cells = Vec::new();
        for (row, sequential) in [0.0, 1.0].into_iter().enumerate() {
            for (column, factor) in BLOCKING_FACTORS.into_iter().enumerate() {
                let case = format!("blocking_factor={factor} sequential={sequential}{suffix}");
                if asked(&case) {
                    let cell = layout_bandwidth(variant, factor, sequential, seeds.clone());
                    cells.push(cell);
                    report.add(NAME, &case, "bandwidth", cell, "MB/s").paper = Some(TABLE_6_1[row][column]);
                }
            }
        }
        if variant == Variant::Queued && cells.len() == 16 {
            let mean = cells.iter().sum::<f64>() / 16.0;
            report.add(NAME, "mean", "bandwidth", mean, "MB/s").paper = Some(TABLE_6_1_MEAN);
            report.add(NAME, "mean", "draws", (seeds.end - seeds.start) as f64, "layouts of each cell");
        }
        report.complete()?;
        say(&format!("{NAME}: {}", suffix.trim_start().replace("variant=", "")));
    }
    settings::some(NAME, &report)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::{super::verdict::Verdict, *};

    fn met(report: &Report, suffix: &str) -> (usize, usize) {
        let cells = report.records.iter().filter(|record| {
            record.metric == "bandwidth"
                && match record.case.split_once(" variant=") {
                    Some((_, variant)) => variant == suffix,
                    None => suffix.is_empty(),
                }
        });
        let verdicts: Vec<Verdict> = cells.filter_map(|record| Verdict::of(&record.into())).collect();
        (verdicts.iter().filter(|verdict| **verdict == Verdict::Within).count(), verdicts.len())
    }

    #[test]
    fn every_cell_is_met_and_no_broken_disk_meets_them() {
        let report = run(&Options::default(), Report::new(1), &mut |_| ()).unwrap();
        assert_eq!(met(&report, ""), (17, 17), "sixteen cells and their mean");
        assert_eq!(met(&report, "one-at-a-time"), (14, 16));
        for broken in ["no-read-ahead", "no-hit-overhead"] {
            let (within, of) = met(&report, broken);
            assert!(within <= 12 && of == 16, "{broken}: {within} of {of}");
        }
        // Neither part of the disk explains both of the cells that are missed one at a time.
        for span in ["confined-to-0.13", "confined-to-0.53"] {
            assert!(met(&report, span).0 < 16, "{span}");
        }
    }

    #[test]
    fn the_seed_chooses_the_layouts_and_a_case_can_be_chosen() {
        let options = Options {
            draws: Some(3),
            case: Some("blocking_factor=64 sequential=0".to_owned()),
            ..Options::default()
        };
        let first = run(&options, Report::new(1), &mut |_| ()).unwrap();
        assert_eq!(first.records.len(), 6);
        assert_eq!(first.records, run(&options, Report::new(1), &mut |_| ()).unwrap().records);
        assert_ne!(
            first.records[0].value,
            run(&options, Report::new(2), &mut |_| ()).unwrap().records[0].value
        );
        let none = Options { case: Some("blocking_factor=9".to_owned()), ..Options::default() };
        assert!(run(&none, Report::new(1), &mut |_| ()).is_err());
        let none = Options { draws: Some(0), ..Options::default() };
        assert!(run(&none, Report::new(1), &mut |_| ()).unwrap_err().to_string().contains("1 to"));
    }
}
