//! The demo's table, for people.

use super::{IDEAL, SCHEMES};
use crate::{
    overruns,
    report::{Record, Report},
};
use comfy_table::{CellAlignment, Table, presets};

/// The table, and what it says in words.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "",
        "bandwidth",
        "latency",
        "s.d.",
        "I/O overhead",
        "of ideal",
        "2 nodes dead, 2 disks stalled",
    ]);
    let figure = |case: &str, metric: &str| report.value("demo", case, metric).unwrap_or(f64::NAN);
    let broken_was_read = |case: &str| {
        report.records.iter().any(|record| (record.experiment, &*record.case) == ("demo-degraded", case))
    };
    for case in SCHEMES.map(|scheme| scheme.name).into_iter().chain([IDEAL]) {
        let wrong = report.value("demo-degraded", case, "bytes_wrong").unwrap_or(f64::NAN);
        let unavailable = report.value("demo-degraded", case, "bytes_unavailable").unwrap_or(f64::NAN);
        let broken = match report.value("demo-degraded", case, "latency_mean") {
            Some(latency) if case == IDEAL => format!("{latency:.2} s"),
            Some(latency) => format!("{latency:.2} s, {wrong:.0} bytes wrong"),
            // The run ended before.
            None if !broken_was_read(case) => String::new(),
            None => format!("lost: {:.0} MB out of reach", unavailable / 1e6),
        };
        table.add_row([
            case.to_owned(),
            format!("{:.0} MB/s", figure(case, "bandwidth")),
            format!("{:.2} s", figure(case, "latency_mean")),
            format!("{:.2} s", figure(case, "latency_sd")),
            format!("{:.3}", figure(case, "io_overhead")),
            format!("{:.2}", figure(case, "share_of_ideal")),
            broken,
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let write = |metric| report.value("demo-write", "rateless-b", metric);
    let written = match (write("bandwidth"), write("share_of_limit")) {
        (Some(bandwidth), Some(share)) => format!(
            "speculative put on the broken cluster: {bandwidth:.0} MB/s of data at D = 3, {share:.2} of what the disks left allow\n"
        ),
        _ => String::new(),
    };
    let late: Vec<&Record> = report.records.iter().filter(|record| record.metric == "overruns").collect();
    let void = late.iter().filter(|record| record.value.is_some_and(|share| share > overruns::MAX));
    let worst = late.iter().max_by(|a, b| a.value.unwrap_or(0.0).total_cmp(&b.value.unwrap_or(0.0)));
    let void = match (void.count(), worst) {
        (0, _) | (_, None) => String::new(),
        (count, Some(worst)) => format!(
            "\n{count} of {} cases are void: this machine was too busy to emulate the disks ({:.3} of operations ended late in {} \
             {})",
            late.len(),
            worst.value.unwrap_or(0.0),
            worst.experiment,
            worst.case
        ),
    };
    format!(
        "{table}\n\n{written}rateless-b reads {:.0} times as fast as the stripe whose slowest disk everybody waits for{void}",
        figure("rateless-b", "bandwidth") / figure("stripe", "bandwidth"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_told_once() {
        let mut report = Report::new(1);
        let overruns = |report: &mut Report, case: &str, share: f64| {
            report.add("demo", case, "overruns", share, "share of operations");
        };
        overruns(&mut report, "stripe", 0.01);
        assert!(!show(&report).contains("void"));
        overruns(&mut report, "rateless-lt", 0.03);
        overruns(&mut report, "rateless-b", 0.02);
        let shown = show(&report);
        assert!(shown.contains("2 of 3 cases are void") && shown.contains("(0.030 of"), "{shown}");
        assert!(shown.ends_with("ended late in demo rateless-lt)"), "{shown}");
    }
}
