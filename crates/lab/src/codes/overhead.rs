//! `codes/overhead`: blocks needed beyond K, as a share of K, for every code and arrival; each draw is a new graph and
//! a new arrival. Beside it what dissertation §5.2.4 prints of Figures 5-1 and 5-3 (the curves themselves are not in
//! the text; Figure 5-2's edges are K times the mean degree).

use super::arrival::{Arrival, STORED};
use crate::report::{Report, mean, standard_deviation};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, CodeError, Kind, RankTracker};

/// The experiment's name.
pub const NAME: &str = "codes/overhead";
/// Draws of a case when nothing else is asked: all cases together take about a minute on two cores.
pub const DRAWS: u32 = 2000;
/// Bins of the histogram, shares of K: each holds draws above its lower edge, up to its upper edge.
const EDGES: [f64; 13] = [-1.0, 0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0];

/// What of the experiment is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Draws of each case; [`DRAWS`] when absent.
    pub draws: Option<u32>,
    /// Only cases whose name contains this.
    pub case: Option<String>,
}

/// One code, K and arrival.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    k: u32,
    arrival: Arrival,
}

/// What the dissertation's text gives: mean overhead and its deviation, shares of K.
fn paper(case: Case) -> (Option<f64>, Option<f64>) {
    match case {
        // "about 0.5 and the corresponding standard deviation is about 0.08".
        Case { kind: Kind::Lt { c: 1.0, delta: 0.1 }, k: 1024, arrival: Arrival::Random } => {
            (Some(0.5), Some(0.08))
        }
        // "the reception overhead is about 136%".
        Case { kind: Kind::Lt { c: 2.0, delta: 0.01 }, k: 1024, arrival: Arrival::Random } => {
            (Some(1.36), None)
        }
        _ => (None, None),
    }
}

fn cases() -> Vec<Case> {
    let lt = [(1.0, 0.1), (1.0, 0.5), (2.0, 0.01)].map(|(c, delta)| Kind::Lt { c, delta });
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

impl Case {
    fn name(self) -> String {
        let kind = match self.kind {
            Kind::Lt { c, delta } => format!("lt C={c} delta={delta}"),
            Kind::MixA => "mix-a".to_owned(),
            Kind::MixC => "mix-c".to_owned(),
            Kind::Mix => "mix-b".to_owned(),
            Kind::Replicated => "replicated".to_owned(),
        };
        format!("{kind} K={} arrival={}", self.k, self.arrival.name())
    }

    /// The overhead of one draw.
    fn draw(self, random: &mut Pcg64Mcg) -> Result<f64, CodeError> {
        let n = STORED * self.k;
        let code = loop {
            let seed = random.next_u64();
            // LT's graphs are checked when they are made (§5.2.3 (1)); mix's are not worth it.
            let made = if self.kind.is_mix() {
                Code::new(self.kind, self.k, seed)
            } else {
                Code::checked(self.kind, self.k, seed, n)
            };
            match made {
                Err(CodeError::Graph { .. }) => continue,
                other => break other?,
            }
        };
        let mut tracker = RankTracker::new(&code);
        let mut taken = 0;
        for index in self.arrival.draw(self.k, random) {
            tracker.push(index);
            taken += 1;
            if tracker.missing() == 0 {
                return Ok(f64::from(taken - self.k) / f64::from(self.k));
            }
        }
        Err(CodeError::Undecodable { k: self.k, n: taken, seeds: 1 })
    }

    /// Overheads of `draws` draws, ascending. Draw i is the same on any number of threads.
    fn draws(self, draws: u32, seed: u64) -> Result<Vec<f64>> {
        let name = self.name();
        let case =
            name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = |thread: usize| -> Result<Vec<f64>> {
            (0..draws)
                .skip(thread)
                .step_by(threads)
                .map(|draw| {
                    let seed = case ^ u64::from(draw).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let overhead = self.draw(&mut Pcg64Mcg::seed_from_u64(seed));
                    overhead.with_context(|| format!("{name}, draw {draw}"))
                })
                .collect()
        };
        let mut all = Vec::with_capacity(draws as usize);
        std::thread::scope(|scope| -> Result<()> {
            let part = &part;
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
            for thread in threads {
                all.extend(thread.join().expect("a draw does not panic")?);
            }
            Ok(())
        })?;
        all.sort_unstable_by(f64::total_cmp);
        Ok(all)
    }

    /// For missing originals: the mean overhead if every repair block held each original with the same probability,
    /// independent of the others, and nothing but holding it counted: the limit (1 - u/N)^r of findings §1.
    fn limit(self) -> Option<f64> {
        let Arrival::Missing { originals, ascending } = self.arrival else { return None };
        let code = Code::new(self.kind, self.k, 1).ok()?;
        let rows = if ascending { self.k..self.k * 3 / 2 } else { self.k..STORED * self.k };
        let sampled = (0..self.k).step_by(16);
        let touched: usize =
            sampled.clone().map(|original| code.touched_by(original, rows.clone()).len()).sum();
        let share = touched as f64 / sampled.count() as f64 / f64::from(rows.end - rows.start);
        let most = f64::from(originals);
        // The mean of the largest of m geometric counts, less the m blocks that are needed anyway.
        let mean: f64 = (0..100_000)
            .map(|r| 1.0 - (1.0 - (1.0 - share).powi(r)).powf(most))
            .enumerate()
            .map(|(r, unseen)| if (r as f64) < most { 1.0 } else { unseen })
            .sum();
        Some((mean - most) / f64::from(self.k))
    }
}

/// Runs every case that `options` asks for.
///
/// # Errors
/// When no case has that name or a draw's blocks do not decode.
pub async fn run(options: &Options, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut report = Report::new(seed);
    let draws = options.draws.unwrap_or(DRAWS).max(1);
    for case in cases() {
        let name = case.name();
        if options.case.as_ref().is_some_and(|wanted| !name.contains(wanted)) {
            continue;
        }
        let overheads = tokio::task::spawn_blocking(move || case.draws(draws, seed)).await??;
        add(&mut report, case, &overheads);
        say(&format!("{name}: mean {:.3} %", 100.0 * mean(&overheads)));
    }
    ensure!(
        !report.records.is_empty(),
        "no case of {NAME} contains `{}`",
        options.case.as_deref().unwrap_or("")
    );
    Ok(report)
}

fn add(report: &mut Report, case: Case, overheads: &[f64]) {
    let (name, unit) = (case.name(), "share of K");
    let (paper_mean, paper_deviation) = paper(case);
    let last = overheads.len() - 1;
    let quantile =
        |share: f64| overheads[((overheads.len() as f64 * share).ceil() as usize).clamp(1, last + 1) - 1];
    let record = report.add(NAME, &name, "mean", mean(overheads), unit);
    record.paper = paper_mean;
    record.limit = case.limit();
    report.add(NAME, &name, "sd", standard_deviation(overheads), unit).paper = paper_deviation;
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
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["overhead, % of K", "mean", "paper", "s.d.", "p99", "worst", "above 2 %", "draws"]);
    for record in report.records.iter().filter(|record| record.metric == "mean") {
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
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn figures_repeat_and_bins_add_up() {
        let options = Options { draws: Some(20), case: Some("mix-b K=128".to_owned()) };
        let first = run(&options, 7, &mut |_| {}).await.unwrap();
        let again = run(&options, 7, &mut |_| {}).await.unwrap();
        assert_eq!(first.records, again.records);
        let other = run(&options, 8, &mut |_| {}).await.unwrap();
        assert_ne!(first.records, other.records);
        for arrival in ["random", "disks"] {
            let case = format!("mix-b K=128 arrival={arrival}");
            let bins =
                first.records.iter().filter(|bin| bin.metric == "histogram" && bin.case.starts_with(&case));
            let sum: f64 = bins.filter_map(|bin| bin.value).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{case}: {sum}");
            let value = |metric| first.value(NAME, &case, metric).unwrap();
            assert!(value("mean") <= value("p99") && value("p99") <= value("worst"));
        }
        let none = Options { draws: Some(1), case: Some("no such case".to_owned()) };
        assert!(run(&none, 1, &mut |_| {}).await.is_err());
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
