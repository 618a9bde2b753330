//! The figures as a table, for people.

use super::{EXPERIMENT, Measured, flushes, names, rotating, sequential, updates};
use crate::{overruns, report::Report};
use comfy_table::{CellAlignment, Table, presets};

/// The table of whole objects; empty where there were none.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "",
        "GB/s",
        "limit",
        "of limit",
        "CPU s/GB",
        "its parts",
        "mean ms",
        "s.d.",
        "p99",
        "limit ms",
        "times it",
        "I/O overhead",
        "overruns",
    ]);
    for case in names(Measured::Rateless).into_iter().chain(names(Measured::Parity)) {
        let find = |metric: &str| {
            report.records.iter().find(|record| record.case == case && record.metric == metric)
        };
        let Some(throughput) = find("throughput") else { continue };
        let mean = find("latency_mean");
        let show = |value: Option<f64>, digits: usize| {
            value.map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let figure = |metric: &str| report.value(EXPERIMENT, &case, metric);
        table.add_row([
            case.clone(),
            show(throughput.value, 2),
            show(throughput.limit, 2),
            show(throughput.ratio, 2),
            show(figure("cpu"), 2),
            show(find("cpu").and_then(|record| record.limit), 2),
            show(figure("latency_mean"), 0),
            show(figure("latency_sd"), 0),
            show(figure("latency_p99"), 0),
            show(mean.and_then(|record| record.limit), 0),
            show(mean.and_then(|record| record.ratio), 2),
            show(figure("io_overhead"), 3),
            figure("overruns").map_or_else(String::new, overruns::show),
        ]);
    }
    if table.row_count() == 0 {
        return String::new();
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string() + "\n"
}

/// The updates' figures as a table of their own; empty where there were none.
pub fn show_updates(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "",
        "p50 ms",
        "limit",
        "of limit",
        "p99 ms",
        "limit",
        "of limit",
        "updates/s",
        "of depth 1",
        "CPU ms",
        "limit",
        "reads (paper)",
        "writes (paper)",
        "flushes",
        "with merges",
    ]);
    for case in updates::CASES {
        let case = case.name();
        let find = |metric: &str| {
            report.records.iter().find(|record| record.case == case && record.metric == metric)
        };
        let Some((p50, p99)) = find("latency_p50").zip(find("latency_p99")) else { continue };
        let show = |value: Option<f64>, digits: usize| {
            value.map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let figure = |metric: &str| report.value(EXPERIMENT, &case, metric);
        let beside = |metric: &str| {
            let paper = find(metric).and_then(|record| record.paper);
            format!("{} ({})", show(figure(metric), 2), show(paper, 0))
        };
        table.add_row([
            case.clone(),
            show(p50.value, 3),
            show(p50.limit, 3),
            show(p50.ratio, 2),
            show(p99.value, 3),
            show(p99.limit, 3),
            show(p99.ratio, 2),
            show(figure("rate"), 0),
            show(figure("rate_of_depth_1"), 1),
            show(figure("cpu_ms"), 2),
            show(find("cpu_ms").and_then(|record| record.limit), 2),
            beside("reads"),
            beside("writes"),
            show(figure("flushes"), 2),
            format!(
                "{} r {} w {} ms",
                show(figure("reads_after"), 2),
                show(figure("writes_after"), 2),
                show(figure("cpu_ms_after"), 2)
            ),
        ]);
    }
    if table.row_count() == 0 {
        return String::new();
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string() + "\n"
}

/// What is compared of updates, figure by figure: on rotating disks, for who reads after them, in the order of their flushes; empty
/// where there were none.
pub fn show_comparisons(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "figure", "", "unit", "limit", "of limit", "paper"]);
    let flushes = flushes::ORDERS.map(|order| order.name().to_owned());
    let cases = rotating::names().chain([sequential::CASE.to_owned()]).chain(flushes);
    for case in cases {
        for record in report.records.iter().filter(|record| record.case == case) {
            let show = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
            table.add_row([
                case.clone(),
                record.metric.to_string(),
                show(record.value),
                record.unit.to_owned(),
                show(record.limit),
                show(record.ratio),
                show(record.paper),
            ]);
        }
    }
    if table.row_count() == 0 {
        return String::new();
    }
    for column in [2, 4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string() + "\n"
}
