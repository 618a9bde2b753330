//! The report as a person reads it: a case a row, a rival a column.

use super::{EXPERIMENT, THROUGHPUT, remarks};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use steadfast_report::{Record, Report};

/// The table, the figures that are no rates, and what a reader should know of this machine and run.
pub fn show(report: &Report) -> String {
    let records: Vec<&Record> = report.records.iter().filter(|r| r.experiment == EXPERIMENT).collect();
    let rivals = in_order(records.iter().filter_map(|record| rival(record)));
    let mut table = Table::new();
    // Sixty rows: a line below each would double them.
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    let head = ["GB/s", "ours", "±", "limit", "of limit"];
    // A name above its version.
    let rival_heads = rivals.iter().map(|name| name.replacen(' ', "\n", 1));
    table.set_header(head.into_iter().map(str::to_owned).chain(rival_heads));
    for case in in_order(records.iter().map(|record| record.case.as_str())) {
        let of_case: Vec<&Record> = records.iter().copied().filter(|record| record.case == case).collect();
        let Some(ours) = of_case.iter().find(|record| record.metric == THROUGHPUT) else { continue };
        let mut row = vec![
            case.to_owned(),
            number(ours.value),
            ours.spread.map_or(String::new(), |spread| format!("{:.0} %", 100.0 * spread)),
            number(ours.limit),
            ours.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
        ];
        row.extend(rivals.iter().map(|name| {
            let theirs = of_case.iter().find(|record| rival(record) == Some(*name));
            theirs.map_or(String::new(), |record| number(record.value))
        }));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.to_string();
    for record in records.iter().filter(|record| !record.metric.starts_with(THROUGHPUT)) {
        let value = shown(record.value, record.unit);
        text.push_str(&format!("\n{}, {}: {value}", record.case, record.metric));
        if let (Some(limit), Some(ratio)) = (record.limit, record.ratio) {
            text.push_str(&format!(", {ratio:.2} of {}", shown(Some(limit), record.unit)));
        }
    }
    for remark in remarks() {
        text.push('\n');
        text.push_str(&remark);
    }
    text
}

/// A figure in the unit that a person reads it in.
fn shown(value: Option<f64>, unit: &str) -> String {
    match (unit, value) {
        ("s", Some(seconds)) if seconds < 1e-6 => format!("{:.1} ns", seconds * 1e9),
        ("s", Some(seconds)) if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        ("s", Some(seconds)) => format!("{:.2} ms", seconds * 1e3),
        ("share of K", Some(share)) => format!("{:.3} % of K", share * 100.0),
        ("blocks", Some(blocks)) => format!("{blocks} {}", if blocks == 1.0 { "block" } else { "blocks" }),
        (unit, value) => format!("{} {unit}", number(value)),
    }
}

/// The rival whose rate this is.
fn rival(record: &Record) -> Option<&str> {
    record.metric.strip_prefix(THROUGHPUT)?.strip_prefix(' ')
}

/// Each name once, in the order of first mention.
fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}
