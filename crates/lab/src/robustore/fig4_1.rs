//! `robustore/fig4-1`: the probability that M of 4 K blocks, in random order, give the K originals back: the formulas of
//! appendix A, and our codes measured.
//!
//! | case | what |
//! |---|---|
//! | `blocks=M scheme=replicated source=formula` | (A.1): one of four copies of each |
//! | `blocks=M scheme=replicated source=measured` | copies drawn |
//! | `blocks=M scheme=rateless-lt source=formula` | A2: five neighbours a block, drawn with replacement, cover all |
//! | `blocks=M scheme=rateless-lt source=measured` | the LT code of appendix A, peeled |
//! | `blocks=M scheme=rateless-lt variant=coverage` | the same graphs and orders, until all originals are covered |
//! | `blocks=M scheme=rateless-b source=measured` | our code |
//! | `blocks=M scheme=any-k-ideal source=formula` | any K are enough |
//!
//! The metric is `probability`; the same cases without `blocks=` have `blocks_needed`, the median as a multiple of K.
//!
//! The alternating sums of the appendix cancel beyond all precision at K = 1024. Here they are summed without a
//! minus: (A.1)'s F_M(K) is the coefficient of x^M in ((1 + x)^4 - 1)^K, so P(M) is the chance that K colours, each
//! with at least one of four balls, have M together; and A2's is where a walk over the number of covered originals
//! stands after 5 M steps. Tests compare both with the sums as printed, at a K where those can be summed.

use super::settings::{self, Draws};
use crate::{
    Options,
    report::{Report, quantile},
};
use anyhow::{Result, ensure};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde::Deserialize;
use std::collections::BTreeMap;
use steadfast_bench::{
    arrival::{Arrival, STORED},
    reception::Case,
};
use steadfast_codes::rateless::Kind;

/// The experiment's name.
pub const NAME: &str = "robustore/fig4-1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    figures: String,
    shows: String,
    draws: u32,
    quick_draws: u32,
    log: Vec<String>,
    originals: u32,
    c: f64,
    delta: f64,
    degree: u32,
    blocks: Vec<f64>,
    paper: BTreeMap<String, f64>,
    notes: BTreeMap<String, String>,
}

fn settings() -> Result<Settings> {
    let settings: Settings = settings::read(NAME, include_str!("parameters/fig4-1.toml"))?;
    settings::within(NAME, "originals", settings.originals.into(), 16.0, 4096.0)?;
    settings::within(NAME, "c", settings.c, 0.01, 10.0)?;
    settings::within(NAME, "delta", settings.delta, 0.001, 0.999)?;
    settings::within(NAME, "degree", settings.degree.into(), 1.0, 64.0)?;
    for blocks in &settings.blocks {
        settings::within(NAME, "blocks", *blocks, 0.0, STORED.into())?;
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

/// K.
///
/// # Errors
/// When its file says something impossible.
pub fn originals() -> Result<u32> {
    Ok(settings()?.originals)
}

/// Runs it.
///
/// # Errors
/// When no case has the name asked for, the number of draws is out of its range, or a code fails.
pub fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let seed = report.seed();
    let settings = settings()?;
    let draws = Draws { usual: settings.draws, quick: settings.quick_draws }.count(options)?;
    let k = settings.originals;
    let lt = Kind::Lt { c: settings.c, delta: settings.delta };
    let grid: Vec<u32> = settings.blocks.iter().map(|share| (share * f64::from(k)).round() as u32).collect();
    let named = |blocks: u32, line: &str| format!("blocks={blocks} {line}");
    let mut add = |line: &str, probability: &dyn Fn(u32) -> f64, half: f64, measured: bool| -> Result<()> {
        let mut any = false;
        for &blocks in &grid {
            let case = named(blocks, line);
            if options.case.as_ref().is_none_or(|part| case.contains(part)) {
                report.add(NAME, &case, "probability", probability(blocks), "probability");
                any = true;
            }
        }
        if any {
            let scheme = line.split(' ').next().and_then(|part| part.strip_prefix("scheme="));
            let paper = scheme.and_then(|scheme| settings.paper.get(scheme)).copied();
            report.add(NAME, line, "blocks_needed", half, "multiples of K").paper = paper;
            if measured {
                report.add(NAME, line, "draws", f64::from(draws), "graphs and orders");
            }
        }
        report.complete()
    };
    // What is not asked for is not measured.
    let asked = |line: &str| {
        let wanted = |part: &String| grid.iter().any(|&blocks| named(blocks, line).contains(part));
        options.case.as_ref().is_none_or(wanted)
    };
    let formulas: [(&str, Vec<f64>); 3] = [
        ("scheme=replicated source=formula", replicated(k)),
        ("scheme=rateless-lt source=formula", covered(k, settings.degree)),
        ("scheme=any-k-ideal source=formula", (0..=STORED * k).map(|m| f64::from(m >= k)).collect()),
    ];
    for (line, probability) in &formulas {
        let half = probability.partition_point(|probability| *probability < 0.5);
        add(line, &|m| probability[m as usize], half as f64 / f64::from(k), false)?;
    }
    type Measure<'a> = Box<dyn Fn() -> Result<Vec<f64>> + 'a>;
    let needed = |kind: Kind| -> Measure<'_> {
        let case = Case { kind, k, arrival: Arrival::Random };
        // Overheads, shares of K.
        Box::new(move || Ok(case.draws(draws, seed)?.into_iter().map(|overhead| 1.0 + overhead).collect()))
    };
    let measured: [(&str, Measure<'_>); 4] = [
        ("scheme=replicated source=measured", needed(Kind::Replicated)),
        ("scheme=rateless-lt source=measured", needed(lt)),
        ("scheme=rateless-lt variant=coverage", Box::new(|| coverage(lt, k, draws, seed))),
        ("scheme=rateless-b source=measured", needed(Kind::Mix)),
    ];
    for (line, measure) in measured {
        if !asked(line) {
            continue;
        }
        let needed = measure()?;
        let probability = |m: u32| {
            let share = f64::from(m) / f64::from(k) + 1e-9;
            needed.iter().filter(|needed| **needed <= share).count() as f64 / needed.len() as f64
        };
        let half = quantile(&needed, 0.5);
        say(&format!("{NAME}: {line}: half of the draws need {half:.3} K blocks or fewer"));
        add(line, &probability, half, true)?;
    }
    settings::some(NAME, &report)?;
    Ok(report)
}

/// P(M) of (A.1), by M from 0 to 4 K.
fn replicated(k: u32) -> Vec<f64> {
    let all = STORED * k;
    let logs: Vec<f64> = std::iter::once(0.0)
        .chain((1..=all).scan(0.0, |sum, n| {
            *sum += f64::from(n).ln();
            Some(*sum)
        }))
        .collect();
    let choose = |n: u32, m: u32| logs[n as usize] - logs[m as usize] - logs[(n - m) as usize];
    // K colours with one to four balls each, by their sum. Weights of one colour times a power of x chosen so that the
    // sums around the middle of the curve are neither tiny nor huge; each step is brought back to a sum of 1.
    let tilt = 4.0f64;
    let weights: [f64; 4] = std::array::from_fn(|at| {
        let balls = at as u32 + 1;
        choose(4, balls).exp() * tilt.powi(balls as i32)
    });
    let total: f64 = weights.iter().sum();
    let mut sums = vec![0.0; all as usize + 1];
    sums[0] = 1.0;
    for colour in 1..=k as usize {
        for sum in (0..=4 * colour).rev() {
            sums[sum] = (1..=4.min(sum)).map(|balls| weights[balls - 1] / total * sums[sum - balls]).sum();
        }
    }
    let scale = f64::from(k) * total.ln();
    // Behind the curve's end the sums are too small for a number; more blocks are never worse.
    let mut most = 0.0f64;
    (0..=all)
        .map(|m| {
            let sum = sums[m as usize];
            if sum > 0.0 {
                let chance = (sum.ln() + scale - f64::from(m) * tilt.ln() - choose(all, m)).exp();
                most = most.max(chance.min(1.0));
            }
            most
        })
        .collect()
}

/// P_c(M) of A2, by M from 0 to 4 K: `degree` times M draws with replacement cover all K.
fn covered(k: u32, degree: u32) -> Vec<f64> {
    // By the number of originals covered.
    let mut chance = vec![0.0; k as usize + 1];
    chance[0] = 1.0;
    let mut all = vec![0.0];
    for draw in 1..=STORED * k * degree {
        for covered in (1..=k as usize).rev() {
            let share = covered as f64 / f64::from(k);
            let next = (covered - 1) as f64 / f64::from(k);
            chance[covered] = chance[covered] * share + chance[covered - 1] * (1.0 - next);
        }
        chance[0] = 0.0;
        if draw % degree == 0 {
            all.push(chance[k as usize]);
        }
    }
    all
}

/// Blocks, as multiples of K, until every original is a neighbour of one of them; ascending.
fn coverage(kind: Kind, k: u32, draws: u32, seed: u64) -> Result<Vec<f64>> {
    let case = Case { kind, k, arrival: Arrival::Random };
    let mut needed = Vec::with_capacity(draws as usize);
    for draw in 0..draws {
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ u64::from(draw).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let code = case.code(&mut random)?;
        let (mut seen, mut left, mut blocks) = (vec![false; k as usize], k, 0);
        for index in case.arrival.draw(k, &mut random) {
            blocks += 1;
            for (seen, _) in
                seen.iter_mut().zip(code.generator_row(index)).filter(|(_, coefficient)| *coefficient != 0)
            {
                left -= u32::from(!std::mem::replace(seen, true));
            }
            if left == 0 {
                break;
            }
        }
        ensure!(left == 0, "no block of the code has {left} of the originals");
        needed.push(f64::from(blocks) / f64::from(k));
    }
    needed.sort_unstable_by(f64::total_cmp);
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::{
        super::verdict::{Figure, Verdict},
        *,
    };
    use rand_core::Rng;

    fn choose(n: u32, m: u32) -> f64 {
        if m > n { 0.0 } else { (0..m).map(|i| f64::from(n - i) / f64::from(i + 1)).product() }
    }

    /// The sums as the appendix prints them.
    #[test]
    fn formulas_are_the_printed_sums() {
        let k = 8;
        let (ours, ours_coded) = (replicated(k), covered(k, 5));
        for m in 1..=4 * k {
            let sign = |i: u32| if (k - i).is_multiple_of(2) { 1.0 } else { -1.0 };
            let printed: f64 =
                (1..=k).map(|i| sign(i) * choose(k, i) * choose(4 * i, m)).sum::<f64>() / choose(4 * k, m);
            assert!((printed - ours[m as usize]).abs() < 1e-9, "M = {m}: {printed} {}", ours[m as usize]);
            let share = |i: u32| (f64::from(i) / f64::from(k)).powi(5 * m as i32);
            let printed: f64 = (1..=k).map(|i| sign(i) * choose(k, i) * share(i)).sum();
            let ours = ours_coded[m as usize];
            assert!((printed - ours).abs() < 1e-9, "M = {m}: {printed} {ours}");
        }
    }

    #[test]
    fn what_is_measured_is_what_the_formula_says_and_the_text() {
        let options = Options { draws: Some(200), ..Options::default() };
        let report = run(&options, Report::new(3), &mut |_| ()).unwrap();
        let value = |case: &str, metric: &str| report.value(NAME, case, metric).unwrap();
        // 200 draws: three deviations of a share are at most 10.6 %.
        for blocks in [3277, 3379, 3482, 3584, 3686] {
            let formula = value(&format!("blocks={blocks} scheme=replicated source=formula"), "probability");
            let measured =
                value(&format!("blocks={blocks} scheme=replicated source=measured"), "probability");
            assert!((formula - measured).abs() < 0.106, "{blocks}: {formula} {measured}");
        }
        let compared = report.records.iter().filter(|record| record.paper.is_some());
        let verdicts: Vec<_> = compared
            .map(|record| (record.case.clone(), record.value, Verdict::of(&Figure::from(record))))
            .collect();
        assert_eq!(verdicts.len(), 5);
        for (case, value, verdict) in &verdicts {
            assert_eq!(*verdict, Some(Verdict::Within), "{case} {value:?}");
        }
        // A code that needs half again as much, or hardly any, is not the paper's.
        for ours in [1.85, value("scheme=rateless-b source=measured", "blocks_needed")] {
            let case = "scheme=rateless-lt source=measured";
            let figure = Figure {
                experiment: NAME,
                case,
                metric: "blocks_needed",
                ours: Some(ours),
                paper: Some(1.5),
            };
            assert_eq!(Verdict::of(&figure), Some(Verdict::Outside), "{ours}");
        }
        let formula: Vec<f64> = replicated(1024);
        assert!(formula.is_sorted() && formula[1024] == 0.0, "more blocks are never worse");
        assert!((1.0 - formula[4090]).abs() < 1e-9 && (1.0 - formula[4096]).abs() < 1e-9);
        assert!(value("scheme=rateless-b source=measured", "blocks_needed") < 1.005);
        assert_eq!(value("blocks=1024 scheme=any-k-ideal source=formula", "probability"), 1.0);
    }

    #[test]
    fn drawing_with_replacement_is_what_the_formula_for_coded_blocks_says() {
        // 2000 times five neighbours a block until all of 64 are covered.
        let (k, degree) = (64u32, 5);
        let formula = covered(k, degree);
        let mut random = Pcg64Mcg::seed_from_u64(5);
        let mut needed = Vec::new();
        for _ in 0..2000 {
            let (mut seen, mut left, mut blocks) = (vec![false; k as usize], k, 0usize);
            while left > 0 {
                blocks += 1;
                for _ in 0..degree {
                    let at = (u64::from(random.next_u32()) * u64::from(k)) >> 32;
                    left -= u32::from(!std::mem::replace(&mut seen[at as usize], true));
                }
            }
            needed.push(blocks);
        }
        for m in [48, 56, 64, 80, 96] {
            let share = needed.iter().filter(|needed| **needed <= m).count() as f64 / 2000.0;
            assert!((share - formula[m]).abs() < 0.04, "{m}: {share} {}", formula[m]);
        }
    }
}
