//! `codes/overhead`: blocks needed beyond K, as a share of K, for every code and arrival; each draw is a new graph and
//! a new arrival. At K = 1024 also what decoding and an update cost. Then the dissertation's figures ([`super::figures`]).

use super::figures;
use crate::{
    Options,
    report::{NotOffered, Report, mean, standard_deviation},
    robustore::settings::Draws,
};
use anyhow::Result;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use steadfast_bench::{
    arrival::{Arrival, STORED},
    reception::Case,
};
use steadfast_codes::rateless::{Code, Kind};

/// The experiment's name.
pub const NAME: &str = "codes/overhead";
/// Draws of a case when nothing else is asked: all cases and figures together take about a minute on two cores.
pub const DRAWS: u32 = 1000;
/// The unit of [`relative_sd`].
pub(super) const RELATIVE: &str = "share of blocks received";
/// Draws whose costs are counted, at most: the spread of a cost is a few per cent.
const COST_DRAWS: u32 = 32;
/// Bins of the histogram, shares of K: each holds draws above its lower edge, up to its upper edge.
const EDGES: [f64; 13] = [-1.0, 0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0];

/// What the dissertation's text gives: mean overhead and its deviation, shares of K, and the deviation as [`relative_sd`] has it.
fn paper(case: Case) -> [Option<f64>; 3] {
    match case {
        // "about 0.5 and the corresponding standard deviation is about 0.08 which is about 5% of the total received blocks".
        Case { kind: Kind::Lt { c: 1.0, delta: 0.1 }, k: 1024, arrival: Arrival::Random } => {
            [Some(0.5), Some(0.08), Some(0.05)]
        }
        // "the reception overhead is about 136%".
        Case { kind: Kind::Lt { c: 2.0, delta: 0.01 }, k: 1024, arrival: Arrival::Random } => {
            [Some(1.36), None, None]
        }
        _ => [None; 3],
    }
}

/// The standard deviation of the blocks received as a share of their mean: the right plots of Figure 5-1. A reader receives K and
/// the overhead, so that it is less than the deviation as a share of K.
pub(super) fn relative_sd(overheads: &[f64]) -> f64 {
    standard_deviation(overheads) / (1.0 + mean(overheads))
}

/// The case's name in records.
fn name(case: Case) -> String {
    format!("overhead {}", case.name())
}

fn cases() -> Vec<Case> {
    // §5.2.4, chapter 6, the larger overhead of §5.2.4, the least that we find, appendix A.2.
    let lt = [(1.0, 0.1), (1.0, 0.5), (2.0, 0.01), (0.1, 0.5), (1.1, 0.5)];
    let lt = lt.map(|(c, delta)| Kind::Lt { c, delta });
    let mut cases = Vec::new();
    for (kind, k) in lt
        .into_iter()
        .chain([Kind::MixA, Kind::Mix, Kind::MixC])
        .map(|kind| (kind, 1024))
        .chain([16, 64, 128, 256, 512].map(|k| (Kind::Mix, k)))
    {
        cases.extend([Arrival::Random, Arrival::Disks].map(|arrival| Case { kind, k, arrival }));
        if kind.is_mix() && k == 1024 {
            cases.push(Case { kind, k, arrival: Arrival::Striped });
        }
    }
    for originals in [1, 8, 64] {
        for ascending in [false, true] {
            let arrival = Arrival::Missing { originals, ascending };
            cases.push(Case { kind: Kind::Mix, k: 1024, arrival });
        }
    }
    cases
}

/// For missing originals: the mean overhead if every repair block held each original with the same probability,
/// independent of the others, and nothing but holding it counted: the limit (1 - u/N)^r of findings §1.
fn limit(case: Case) -> Option<f64> {
    let Arrival::Missing { originals, ascending } = case.arrival else { return None };
    let code = Code::new(case.kind, case.k, 1).ok()?;
    let rows = if ascending { case.k..case.k * 3 / 2 } else { case.k..STORED * case.k };
    let sampled = (0..case.k).step_by(16);
    let touched: usize = sampled.clone().map(|original| code.touched_by(original, rows.clone()).len()).sum();
    let share = touched as f64 / sampled.count() as f64 / f64::from(rows.end - rows.start);
    let most = f64::from(originals);
    // The mean of the largest of m geometric counts, less the m blocks that are needed anyway.
    let mean: f64 = (0..100_000)
        .map(|r| 1.0 - (1.0 - (1.0 - share).powi(r)).powf(most))
        .enumerate()
        .map(|(r, unseen)| if (r as f64) < most { 1.0 } else { unseen })
        .sum();
    Some((mean - most) / f64::from(case.k))
}

/// Runs every case that `options` asks for.
///
/// # Errors
/// When no case has that name, there cannot be so many draws, or a draw's blocks do not decode.
pub async fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let seed = report.seed();
    let draws = Draws { usual: DRAWS, quick: DRAWS }.count(options)?;
    for case in cases() {
        let name = name(case);
        if options.case.as_ref().is_some_and(|wanted| !name.contains(wanted)) {
            continue;
        }
        let overheads = tokio::task::spawn_blocking(move || case.draws(draws, seed)).await??;
        add(&mut report, case, &overheads);
        say(&format!("{name}: mean {:.3} %", 100.0 * mean(&overheads)));
        if case.k == 1024 && matches!(case.arrival, Arrival::Random | Arrival::Disks) {
            let cost = tokio::task::spawn_blocking(move || case.cost(draws.min(COST_DRAWS), seed)).await??;
            report.add(NAME, &name, "xors", cost.xors, "blocks read / K");
            report.add(NAME, &name, "update", cost.update, "blocks");
        }
        report.complete()?;
    }
    figures::run(options, draws, &mut report, say).await?;
    if let Some(asked) = options.case.as_ref().filter(|_| report.records.is_empty()) {
        let known = cases().into_iter().map(name).chain(figures::names());
        return Err(NotOffered::no_case(NAME, asked, known).into());
    }
    Ok(report)
}

fn add(report: &mut Report, case: Case, overheads: &[f64]) {
    let (name, unit) = (name(case), "share of K");
    let [paper_mean, paper_deviation, paper_relative] = paper(case);
    let last = overheads.len() - 1;
    let quantile =
        |share: f64| overheads[((overheads.len() as f64 * share).ceil() as usize).clamp(1, last + 1) - 1];
    let record = report.add(NAME, &name, "mean", mean(overheads), unit);
    record.paper = paper_mean;
    record.limit = limit(case);
    report.add(NAME, &name, "sd", standard_deviation(overheads), unit).paper = paper_deviation;
    report.add(NAME, &name, "relative_sd", relative_sd(overheads), RELATIVE).paper = paper_relative;
    report.add(NAME, &name, "p99", quantile(0.99), unit);
    report.add(NAME, &name, "worst", overheads[last], unit);
    report.add(NAME, &name, "draws", overheads.len() as f64, "1");
    for bin in EDGES.windows(2) {
        let within =
            overheads.iter().filter(|overhead| (bin[0]..bin[1]).contains(&(**overhead - f64::EPSILON)));
        let case = format!("{name} above={} to={}", bin[0].max(0.0), bin[1]);
        let case = if bin[0] < 0.0 { format!("{name} to=0") } else { case };
        let share = within.count() as f64 / overheads.len() as f64;
        report.add(NAME, &case, "histogram", share, "share of draws");
    }
}

/// The table, for people.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    // Forty rows: a line below each would double them.
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_header([
        "% of K",
        "mean",
        "paper",
        "s.d.",
        "p99",
        "worst",
        "above 2 %",
        "draws",
        "XORs/K",
        "update",
    ]);
    let ours = report.records.iter().filter(|record| record.case.starts_with("overhead "));
    for record in ours.filter(|record| record.metric == "mean") {
        let percent =
            |value: Option<f64>| value.map_or_else(String::new, |value| format!("{:.2}", 100.0 * value));
        let find = |metric| report.value(NAME, &record.case, metric);
        let above = report.records.iter().filter(|bin| {
            let rest = bin.case.strip_prefix(&record.case);
            let above =
                rest.and_then(|rest| rest.strip_prefix(" above=")).and_then(|rest| rest.split(' ').next());
            bin.metric == "histogram"
                && above.and_then(|above| above.parse().ok()).is_some_and(|edge: f64| edge >= 0.02)
        });
        table.add_row([
            record.case.clone(),
            percent(record.value),
            percent(record.paper),
            percent(find("sd")),
            percent(find("p99")),
            percent(find("worst")),
            percent(Some(above.filter_map(|bin| bin.value).sum())),
            find("draws").map_or_else(String::new, |draws| format!("{draws}")),
            find("xors").map_or_else(String::new, |xors| format!("{xors:.1}")),
            find("update").map_or_else(String::new, |update| format!("{update:.0}")),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n{}", figures::show(report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn figures_repeat_and_bins_add_up() {
        let options =
            Options { draws: Some(20), case: Some("overhead mix-b K=128".to_owned()), ..Options::default() };
        let first = run(&options, Report::new(7), &mut |_| {}).await.unwrap();
        let again = run(&options, Report::new(7), &mut |_| {}).await.unwrap();
        assert_eq!(first.records, again.records);
        let other = run(&options, Report::new(8), &mut |_| {}).await.unwrap();
        assert_ne!(first.records, other.records);
        for arrival in ["random", "disks"] {
            let case = format!("overhead mix-b K=128 arrival={arrival}");
            let bins =
                first.records.iter().filter(|bin| bin.metric == "histogram" && bin.case.starts_with(&case));
            let sum: f64 = bins.filter_map(|bin| bin.value).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{case}: {sum}");
            let value = |metric| first.value(NAME, &case, metric).unwrap();
            assert!(value("mean") <= value("p99") && value("p99") <= value("worst"));
        }
        let none = Options { draws: Some(1), case: Some("no such case".to_owned()), ..Options::default() };
        assert!(run(&none, Report::new(1), &mut |_| {}).await.is_err());
        let many = Options { draws: Some(u32::MAX), ..Options::default() };
        let refused = run(&many, Report::new(1), &mut |_| {}).await.unwrap_err().to_string();
        assert!(refused.contains("there can be 1 to"), "{refused}");
    }

    /// Findings §1 and §5.2.4 at few draws: the order of the variants and the paper's half of K.
    #[test]
    fn variants_are_in_the_order_measured() {
        let mean_of = |kind, arrival| mean(&Case { kind, k: 1024, arrival }.draws(24, 5).unwrap());
        let lt = mean_of(Kind::Lt { c: 1.0, delta: 0.1 }, Arrival::Random);
        assert!((0.4..0.66).contains(&lt), "{lt}");
        let (a, b) = (mean_of(Kind::MixA, Arrival::Disks), mean_of(Kind::Mix, Arrival::Disks));
        assert!(b < 0.02 && a > b, "A {a}, B {b}");
    }
}
