//! The figures as a table, for people.

use super::{EXPERIMENT, names};
use crate::report::Report;
use comfy_table::{CellAlignment, Table, presets};

/// The table.
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
        "I/O overhead",
    ]);
    for case in names() {
        let find = |metric: &str| {
            report.records.iter().find(|record| record.case == case && record.metric == metric)
        };
        let Some(throughput) = find("throughput") else { continue };
        let mean = find("latency_mean");
        let ratio = throughput.ratio.or(mean.and_then(|record| record.ratio));
        let show = |value: Option<f64>, digits: usize| {
            value.map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let figure = |metric: &str| report.value(EXPERIMENT, &case, metric);
        table.add_row([
            case.clone(),
            show(throughput.value, 2),
            show(throughput.limit, 2),
            show(ratio, 2),
            show(figure("cpu"), 2),
            show(find("cpu").and_then(|record| record.limit), 2),
            show(figure("latency_mean"), 0),
            show(figure("latency_sd"), 0),
            show(figure("latency_p99"), 0),
            show(mean.and_then(|record| record.limit), 0),
            show(figure("io_overhead"), 3),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
