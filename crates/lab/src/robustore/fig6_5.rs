//! `robustore/fig6-5`: what the requests of others leave of a modelled disk beside Figure 6-5's text.
//!
//! | case | what |
//! |---|---|
//! | `interval_ms=` | background requests about every so many milliseconds |
//! | `interval_ms= variant=whole-disk` | the same with requests anywhere on the disk |
//! | `drawn` | intervals drawn evenly from 6 to 200 ms |
//!
//! Metrics: `bandwidth`, MB/s of the foreground; `background_share` of the disk's time.

use super::settings::{self, Draws};
use crate::{Options, report::Report};
use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use steadfast_disk::model::{
    background::REGION_BYTES,
    measure::{FIGURE_6_5, FIGURE_6_5_BUSY, drawn_background_bandwidth, shared_bandwidth},
};

/// The experiment's name.
pub const NAME: &str = "robustore/fig6-5";

/// Disks drawn for the mean over all intervals, for each run of one interval: they are more unequal.
const DRAWN_DISKS: u64 = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    figures: String,
    shows: String,
    draws: u32,
    quick_draws: u32,
    log: Vec<String>,
    intervals_ms: Vec<u32>,
    notes: BTreeMap<String, String>,
}

fn settings() -> Result<Settings> {
    let settings: Settings = settings::read(NAME, include_str!("parameters/fig6-5.toml"))?;
    for interval in &settings.intervals_ms {
        settings::within(NAME, "intervals_ms", (*interval).into(), 1.0, 1e6)?;
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
    for (suffix, region) in [("", REGION_BYTES), (" variant=whole-disk", u64::MAX)] {
        for interval in &settings.intervals_ms {
            let case = format!("interval_ms={interval}{suffix}");
            if !asked(&case) {
                continue;
            }
            let point = shared_bandwidth(u64::from(*interval) * 1_000_000, region, seeds.clone());
            let (bandwidth, share) = match interval {
                6 => (Some(FIGURE_6_5[0]), Some(FIGURE_6_5_BUSY)),
                200 => (Some(FIGURE_6_5[1]), None),
                _ => (None, None),
            };
            report.add(NAME, &case, "bandwidth", point.foreground_mb_per_s, "MB/s").paper = bandwidth;
            report.add(NAME, &case, "background_share", point.background_share, "share of the time").paper =
                share;
            report.complete()?;
        }
        say(&format!("{NAME}: {} intervals", settings.intervals_ms.len()));
    }
    if asked("drawn") {
        let many = seeds.start..seeds.start.saturating_add((seeds.end - seeds.start) * DRAWN_DISKS);
        let mean = drawn_background_bandwidth(many);
        report.add(NAME, "drawn", "bandwidth", mean, "MB/s").paper = Some(FIGURE_6_5[2]);
        report.add(NAME, "drawn", "draws", (seeds.end - seeds.start) as f64, "runs of each interval");
    }
    settings::some(NAME, &report)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::{
        super::verdict::{Figure, Verdict},
        *,
    };

    #[test]
    fn the_text_is_met_and_a_background_over_the_whole_disk_does_not_meet_it() {
        let report = run(&Options::default(), Report::new(1), &mut |_| ()).unwrap();
        let verdict = |case: &str, metric: &str| {
            let record = report.records.iter().find(|record| record.case == case && record.metric == metric);
            Verdict::of(&Figure::from(record.unwrap()))
        };
        for (case, metric) in [
            ("interval_ms=6", "bandwidth"),
            ("interval_ms=6", "background_share"),
            ("interval_ms=200", "bandwidth"),
            ("drawn", "bandwidth"),
        ] {
            assert_eq!(verdict(case, metric), Some(Verdict::Within), "{case} {metric}");
        }
        // That it is a variant excuses it; it is outside all the same.
        assert_eq!(verdict("interval_ms=6 variant=whole-disk", "bandwidth"), Some(Verdict::Excused));
        // Less load leaves more.
        let bandwidths: Vec<f64> = report
            .records
            .iter()
            .filter(|record| record.metric == "bandwidth" && !record.case.contains("variant="))
            .filter(|record| record.case != "drawn")
            .filter_map(|record| record.value)
            .collect();
        assert!(bandwidths.len() == 11 && bandwidths.is_sorted(), "{bandwidths:?}");
    }
}
