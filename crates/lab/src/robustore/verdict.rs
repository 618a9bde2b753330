//! When a figure of the dissertation counts as reproduced: the bounds, in one place for tests and pages.

use super::{fig4_1, fig6_5, table6_1};
use crate::report::Record;

/// A figure of ours beside the paper's.
#[derive(Clone, Copy, Debug)]
pub struct Figure<'a> {
    /// The experiment.
    pub experiment: &'a str,
    /// Its case.
    pub case: &'a str,
    /// What was measured.
    pub metric: &'a str,
    /// What was found.
    pub ours: Option<f64>,
    /// What the paper has.
    pub paper: Option<f64>,
}

impl<'a> From<&'a Record> for Figure<'a> {
    fn from(record: &'a Record) -> Figure<'a> {
        Figure {
            experiment: record.experiment,
            case: &record.case,
            metric: &record.metric,
            ours: record.value,
            paper: record.paper,
        }
    }
}

/// What comes of comparing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the bound.
    Within,
    /// Not.
    Outside,
    /// Not, where it is not asked for.
    Excused,
    /// Neither: the machine was too busy to be what was measured.
    Void,
}

/// A part of a disk is met within 15 %.
const PART: (f64, f64) = (0.85, 1.15);
/// A bandwidth is met within 20 %.
const BANDWIDTH: (f64, f64) = (0.8, 1.2);
/// RRAID-S within 25 %.
const SPECULATIVE: (f64, f64) = (0.75, 1.25);
/// A standard deviation within a factor of two.
const DEVIATION: (f64, f64) = (0.5, 2.0);

impl Figure<'_> {
    /// Ours as a multiple of the paper's, where there are both.
    pub fn ratio(&self) -> Option<f64> {
        let (ours, paper) = (self.ours?, self.paper?);
        (paper > 0.0).then(|| ours / paper)
    }

    /// What the ratio has to lie within; none where nothing is asked.
    fn bound(&self) -> Option<(f64, f64)> {
        match (self.experiment, self.metric) {
            (table6_1::NAME, "bandwidth") | (fig6_5::NAME, "bandwidth" | "background_share") => Some(PART),
            (fig4_1::NAME, "blocks_needed") => Some(BANDWIDTH),
            // It shows what four draws come to on the machine that it is run on.
            ("demo", _) => None,
            (_, "bandwidth") if self.scheme() == Some("replicated-speculative") => Some(SPECULATIVE),
            (_, "bandwidth") => Some(BANDWIDTH),
            (_, "latency_sd") => Some(DEVIATION),
            _ => None,
        }
    }

    fn scheme(&self) -> Option<&str> {
        self.case.split(' ').find_map(|part| part.strip_prefix("scheme="))
    }

    /// Whether it is asked for at all: RAID-0's deviation hangs on whether the slowest kind of disk is drawn, and a
    /// changed assumption is there to differ.
    fn asked(&self) -> bool {
        !(self.metric == "latency_sd" && self.scheme() == Some("stripe") || self.case.contains("variant="))
    }
}

impl Verdict {
    /// None where there is nothing to compare.
    pub fn of(figure: &Figure<'_>) -> Option<Verdict> {
        let ((low, high), ratio) = (figure.bound()?, figure.ratio()?);
        Some(match (low..=high).contains(&ratio) {
            true => Verdict::Within,
            false if figure.asked() => Verdict::Outside,
            false => Verdict::Excused,
        })
    }

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Within => "within",
            Verdict::Outside => "outside",
            Verdict::Excused => "outside, not asked",
            Verdict::Void => "void: too busy a machine",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_asked_for() {
        fn verdict(experiment: &str, case: &str, metric: &str, ours: f64, paper: f64) -> Option<Verdict> {
            Verdict::of(&Figure { experiment, case, metric, ours: Some(ours), paper: Some(paper) })
        }
        let disks = |scheme: &str, metric, ours, paper| {
            verdict("robustore/disks", &format!("disks=64 scheme={scheme}"), metric, ours, paper)
        };
        use Verdict::{Excused, Outside, Within};
        assert_eq!(disks("rateless-lt", "bandwidth", 459.0 * 1.19, 459.0), Some(Within));
        assert_eq!(disks("rateless-lt", "bandwidth", 459.0 * 1.21, 459.0), Some(Outside));
        assert_eq!(disks("replicated-speculative", "bandwidth", 117.0 * 0.76, 117.0), Some(Within));
        assert_eq!(disks("replicated-speculative", "bandwidth", 117.0 * 0.74, 117.0), Some(Outside));
        assert_eq!(disks("rateless-lt", "latency_sd", 0.26, 0.5), Some(Within));
        assert_eq!(disks("rateless-lt", "latency_sd", 0.24, 0.5), Some(Outside));
        assert_eq!(disks("stripe", "latency_sd", 9.0, 1.9), Some(Excused));
        assert_eq!(disks("stripe", "io_overhead", 0.0, 0.0), None);
        assert_eq!(disks("stripe", "bandwidth", f64::NAN, 31.0), Some(Outside));
        assert_eq!(verdict("demo", "stripe", "bandwidth", 33.0, 31.0), None);
        let cell = "blocking_factor=8 sequential=0";
        assert_eq!(verdict(table6_1::NAME, cell, "bandwidth", 0.52 * 1.16, 0.52), Some(Outside));
        let variant = format!("{cell} variant=one-at-a-time");
        assert_eq!(verdict(table6_1::NAME, &variant, "bandwidth", 0.32, 0.52), Some(Excused));
    }
}
