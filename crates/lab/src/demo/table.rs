//! The demo's table, for people.

use super::{IDEAL, SCHEMES};
use crate::{overruns, report::Report};
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
    let late = report.records.iter().filter(|record| record.metric == "overruns");
    let void = late.filter_map(|record| {
        let share = record.value.filter(|&share| share > overruns::MAX)?;
        Some(format!(
            "\n{} {}: {share:.3} of operations ended late{}",
            record.experiment,
            record.case,
            overruns::warning(share)
        ))
    });
    let void: String = void.collect();
    format!(
        "{table}\n\n{written}rateless-b reads {:.0} times as fast as the stripe whose slowest disk everybody waits for{void}",
        figure("rateless-b", "bandwidth") / figure("stripe", "bandwidth"),
    )
}
