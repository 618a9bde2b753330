//! The dissertation's Figures 5-1, 5-2 and 5-3 (§5.2.4), from our LT code with the paper's construction: degrees of the
//! robust soliton, neighbours walked from permutations, graphs checked, peeling.
//!
//! | case | metrics | the figure |
//! |---|---|---|
//! | `figure5-1 K= C= delta=` | `mean`, `sd`: reception overhead, shares of K; `relative_sd`: the deviation as a share of the blocks received | left plots, and right plots (`relative_sd`), top to bottom K = 128, 512, 1024 |
//! | `figure5-2 C= delta=` | `edges`: K times the mean degree; `edges_used`, `sd`: blocks read by one decoding, and their deviation as a share of the mean | left and right plots, K = 1024 |
//! | `figure5-3 C= delta=` | `overhead`, a share of K; `bandwidth`, MB/s of the object a second of one core | decoding bandwidth, K = 1024 |
//!
//! `paper` is what the text prints of a figure. The plots themselves are not in the text we have, nor are their axes: the
//! grid of C and delta is ours, around the values the text names. A share of a cell's graphs that no seed makes decode
//! within N = 4 K leaves the figure empty.

use super::overhead::{NAME, RELATIVE, relative_sd};
use crate::Options;
use crate::report::{Report, mean, standard_deviation};
use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;
use steadfast_bench::{
    Clock,
    arrival::{Arrival, STORED},
    reception::Case,
};
use steadfast_codes::rateless::{Code, CodeError, Decoder, Kind, RankTracker};

/// Heights of the soliton's spike: the text names 1 and 2, appendix A.2 1.1.
const C: [f64; 6] = [0.1, 0.5, 1.0, 1.1, 1.5, 2.0];
/// Bounds on failure: the text names 0.01, 0.1 and 0.5.
const DELTA: [f64; 3] = [0.01, 0.1, 0.5];
/// The plots of Figure 5-1, top to bottom.
const K: [u32; 3] = [128, 512, 1024];
/// One cell takes this part of the draws of a case: 54 cells.
const DRAWS_SHARE: u32 = 10;
/// Graphs whose edges are counted.
const GRAPHS: u32 = 8;
/// Bytes in each block of Figure 5-3: the object is 64 MiB.
const BLOCK_LEN: usize = 64 << 10;
/// Decodings timed; the median counts.
const TIMED: u32 = 3;

#[derive(Clone, Copy)]
struct Cell {
    k: u32,
    c: f64,
    delta: f64,
}

impl Cell {
    fn case(self) -> Case {
        Case { kind: Kind::Lt { c: self.c, delta: self.delta }, k: self.k, arrival: Arrival::Random }
    }

    fn name(self, figure: u32) -> String {
        let Cell { k, c, delta } = self;
        if figure == 1 {
            format!("figure5-1 K={k} C={c} delta={delta}")
        } else {
            format!("figure5-{figure} C={c} delta={delta}")
        }
    }

    /// What the text of §5.2.4 says of this cell: overhead and its deviation, shares of K, the deviation as a share of the blocks
    /// received, and MB/s.
    fn paper(self) -> [Option<f64>; 4] {
        match (self.k, self.c, self.delta) {
            (1024, 1.0, 0.1) => [Some(0.5), Some(0.08), Some(0.05), Some(394.0)],
            (1024, 2.0, 0.01) => [Some(1.36), None, None, Some(550.0)],
            _ => [None; 4],
        }
    }
}

fn cells(sizes: &[u32]) -> impl Iterator<Item = Cell> {
    sizes.iter().flat_map(|&k| C.into_iter().flat_map(move |c| DELTA.map(|delta| Cell { k, c, delta })))
}

/// The names of all cells.
pub(super) fn names() -> impl Iterator<Item = String> {
    let first = cells(&K).map(|cell| cell.name(1));
    first.chain(cells(&[1024]).flat_map(|cell| [cell.name(2), cell.name(3)]))
}

/// Runs the cells that `options` asks for; `draws` are those of a whole case.
pub(super) async fn run(
    options: &Options,
    draws: u32,
    report: &mut Report,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let seed = report.seed();
    let draws = draws.div_ceil(DRAWS_SHARE);
    let asked = |name: &str| options.case.as_ref().is_none_or(|wanted| name.contains(wanted));
    for cell in cells(&K).filter(|cell| asked(&cell.name(1))) {
        let name = cell.name(1);
        let [paper_mean, paper_deviation, paper_relative, _] = cell.paper();
        let overheads =
            unless_no_graph(tokio::task::spawn_blocking(move || cell.case().draws(draws, seed)).await?)?;
        let of = |figure: fn(&[f64]) -> f64| overheads.as_deref().map(figure);
        report.add(NAME, &name, "mean", of(mean), "share of K").paper = paper_mean;
        report.add(NAME, &name, "sd", of(standard_deviation), "share of K").paper = paper_deviation;
        report.add(NAME, &name, "relative_sd", of(relative_sd), RELATIVE).paper = paper_relative;
        report.complete()?;
    }
    for cell in cells(&[1024]).filter(|cell| asked(&cell.name(2))) {
        let edges = unless_no_graph(tokio::task::spawn_blocking(move || edges(cell, seed)).await?)?;
        let name = cell.name(2);
        report.add(NAME, &name, "edges", edges.map(|edges| edges.0), "edges");
        report.add(NAME, &name, "edges_used", edges.map(|edges| edges.1), "edges");
        report.add(NAME, &name, "sd", edges.map(|edges| edges.2), "share of edges_used");
        report.complete()?;
    }
    for cell in cells(&[1024]).filter(|cell| asked(&cell.name(3))) {
        let name = cell.name(3);
        let [paper_overhead, .., paper_bandwidth] = cell.paper();
        let timed = unless_no_graph(tokio::task::spawn_blocking(move || decoding(cell, seed)).await?)?;
        report.add(NAME, &name, "overhead", timed.map(|timed| timed.0), "share of K").paper = paper_overhead;
        report.add(NAME, &name, "bandwidth", timed.map(|timed| timed.1), "MB/s").paper = paper_bandwidth;
        report.complete()?;
        if let Some((overhead, rate)) = timed {
            say(&format!("{name}: {rate:.0} MB/s at {:.0} % of overhead", 100.0 * overhead));
        }
    }
    Ok(())
}

/// What came of a cell; none where its parameters have no graph that decodes, which is part of the figure and not a failure of the run.
fn unless_no_graph<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error)
            if matches!(
                error.downcast_ref(),
                Some(CodeError::Graph { .. } | CodeError::Undecodable { .. })
            ) =>
        {
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// The blocks of one draw in order of arrival, up to the last that is needed.
fn received(code: &Code, random: &mut Pcg64Mcg) -> Vec<u32> {
    let mut tracker = RankTracker::new(code);
    let mut taken = Vec::new();
    for index in Arrival::Random.draw(code.k(), random) {
        taken.push(index);
        tracker.push(index);
        if tracker.missing() == 0 {
            break;
        }
    }
    taken
}

/// K times the mean degree over N blocks; blocks read by a decoding, mean and relative deviation.
fn edges(cell: Cell, seed: u64) -> Result<(f64, f64, f64)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let (mut degrees, mut used) = (0.0, Vec::new());
    for _ in 0..GRAPHS {
        let code = cell.case().code(&mut random)?;
        // An edge is counted from its original's side: how many of the N blocks have it.
        let sampled = (0..cell.k).step_by(16);
        let originals = sampled.len();
        let touched: usize =
            sampled.map(|original| code.touched_by(original, 0..STORED * cell.k).len()).sum();
        degrees += touched as f64 / originals as f64 / f64::from(STORED);
        for _ in 0..4 {
            let mut decoder = Decoder::new(&code, 1);
            for index in received(&code, &mut random) {
                decoder.push(index, vec![0])?;
            }
            used.extend(decoder.cost().map(|(_, read, _)| read as f64));
        }
    }
    if used.is_empty() {
        return Err(CodeError::Undecodable { k: cell.k, n: STORED * cell.k, seeds: GRAPHS }.into());
    }
    let average = mean(&used);
    Ok((f64::from(cell.k) * degrees / f64::from(GRAPHS), average, standard_deviation(&used) / average))
}

/// Mean overhead, a share of K, and the median rate of decoding, MB/s of the object in a second of the processor.
fn decoding(cell: Cell, seed: u64) -> Result<(f64, f64)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let k = cell.k as usize;
    let object: Vec<u8> = (0..k * BLOCK_LEN).map(|at| (at * 131 % 251) as u8).collect();
    let originals: Vec<&[u8]> = object.chunks_exact(BLOCK_LEN).collect();
    let (mut overheads, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..TIMED {
        let code = cell.case().code(&mut random)?;
        let indices = received(&code, &mut random);
        let mut blocks = vec![vec![0; BLOCK_LEN]; indices.len()];
        let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&indices, &originals, &mut out)?;
        overheads.push((indices.len() - k) as f64 / k as f64);
        let (seconds, solved) = Clock::Thread.seconds(|| {
            let mut decoder = Decoder::new(&code, BLOCK_LEN);
            for (index, block) in indices.iter().zip(blocks) {
                decoder.push(*index, block)?;
            }
            decoder.solve(1)
        });
        ensure!(solved? == originals, "decoded wrong bytes");
        rates.push(object.len() as f64 / seconds / 1e6);
    }
    rates.sort_unstable_by(f64::total_cmp);
    Ok((mean(&overheads), rates[rates.len() / 2]))
}

/// The figures as tables: C down, delta across.
pub(super) fn show(report: &Report) -> String {
    let mut text = String::new();
    for size in K {
        let title = format!("Figure 5-1, K = {size}: overhead ± s.d., % of K (s.d., % of blocks received)");
        text += &grid(&title, |c, delta| {
            let case = format!("figure5-1 K={size} C={c} delta={delta}");
            let percent = |metric| report.value(NAME, &case, metric).map(|value| 100.0 * value);
            Some(format!("{:.0} ± {:.0} ({:.0})", percent("mean")?, percent("sd")?, percent("relative_sd")?))
        });
    }
    text += &grid(
        "Figure 5-2, K = 1024: edges, K times the mean degree (read by decoding ± s.d.)",
        |c, delta| {
            let case = format!("figure5-2 C={c} delta={delta}");
            let value = |metric| report.value(NAME, &case, metric);
            Some(format!(
                "{:.0} ({:.0} ± {:.0} %)",
                value("edges")?,
                value("edges_used")?,
                100.0 * value("sd")?
            ))
        },
    );
    text +=
        &grid("Figure 5-3, K = 1024: decoding bandwidth, MB/s on one core (overhead, % of K)", |c, delta| {
            let case = format!("figure5-3 C={c} delta={delta}");
            let value = |metric| report.value(NAME, &case, metric);
            Some(format!("{:.0} ({:.0})", value("bandwidth")?, 100.0 * value("overhead")?))
        });
    let printed = report.records.iter().filter(|record| record.case.starts_with("figure5-"));
    for record in printed {
        if let (Some(paper), Some(value)) = (record.paper, record.value) {
            text += &format!(
                "\n{}, {}: {value:.2}, the paper {paper} {}",
                record.case, record.metric, record.unit
            );
        }
    }
    text
}

/// A table of one figure; nothing when none of its cells was run.
fn grid(title: &str, cell: impl Fn(f64, f64) -> Option<String>) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_header(["C".to_owned()].into_iter().chain(DELTA.map(|delta| format!("delta = {delta}"))));
    let mut any = false;
    for c in C {
        let row: Vec<Option<String>> = DELTA.iter().map(|delta| cell(c, *delta)).collect();
        any |= row.iter().any(Option::is_some);
        table.add_row(
            [c.to_string()].into_iter().chain(row.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into()))),
        );
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if any { format!("\n{title}\n{table}\n") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §5.2.4: "small delta and large C cause less CPU overhead, but more communication overhead".
    #[test]
    fn fewer_edges_cost_more_blocks() {
        let few = Cell { k: 1024, c: 2.0, delta: 0.01 };
        let many = Cell { k: 1024, c: 0.5, delta: 0.5 };
        let overhead = |cell: Cell| mean(&cell.case().draws(12, 3).unwrap());
        assert!(overhead(few) > 2.0 * overhead(many));
        let (few, many) = (edges(few, 3).unwrap(), edges(many, 3).unwrap());
        assert!(few.0 < many.0 && few.1 < many.1, "{few:?} {many:?}");
        // Decoding reads only the rows that resolve an original: fewer edges than K average rows have.
        assert!(many.1 < many.0, "{many:?}");
    }

    #[tokio::test]
    async fn the_text_of_the_paper_stands_beside_its_cells() {
        let options = Options {
            draws: Some(40),
            case: Some("figure5-1 K=1024 C=1 delta=0.1".to_owned()),
            ..Options::default()
        };
        let mut report = Report::new(1);
        run(&options, 40, &mut report, &mut |_| {}).await.unwrap();
        let metrics: Vec<_> =
            report.records.iter().map(|record| (record.metric.as_ref(), record.paper)).collect();
        assert_eq!(metrics, [("mean", Some(0.5)), ("sd", Some(0.08)), ("relative_sd", Some(0.05))]);
        // The paper's own figures: 0.08 of K over 1.5 K received.
        let name = "figure5-1 K=1024 C=1 delta=0.1";
        let value = |metric| report.value(NAME, name, metric).unwrap();
        assert!((value("relative_sd") - value("sd") / (1.0 + value("mean"))).abs() < 1e-12);
        assert!(show(&report).contains("the paper 0.5 share of K"), "{}", show(&report));
        assert!(show(&report).contains("the paper 0.05 share of blocks received"), "{}", show(&report));
    }

    /// "With parameter of C=1.1 and δ=0.5, the average output-node degree in the LT coding graph is about 5."
    #[test]
    fn appendix_a_has_its_row() {
        let cell = Cell { k: 1024, c: 1.1, delta: 0.5 };
        assert!(names().any(|name| name == cell.name(1)) && names().any(|name| name == cell.name(2)));
        let degree = edges(cell, 3).unwrap().0 / 1024.0;
        assert!((3.5..6.0).contains(&degree), "{degree}");
    }
}
