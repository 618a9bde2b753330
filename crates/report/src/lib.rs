//! What an experiment prints: one JSON object a line for machines, one table for people, the same names in both.

use serde::Serialize;
use std::borrow::Cow;

/// One measured figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// The experiment.
    pub experiment: &'static str,
    /// Which of its cases.
    pub case: String,
    /// What was measured.
    pub metric: Cow<'static, str>,
    /// The figure; absent where the case has none (a read that must fail has no latency).
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// The paper's figure, or another system's that was measured elsewhere, where there is one.
    pub paper: Option<f64>,
    /// The seed of the run.
    pub seed: u64,
    /// What the hardware or arithmetic allowed in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// The figure divided by the limit: of a rate the share that was reached, of a time how many times as long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// How far repetitions lay apart: the distance between the quartiles as a share of the figure, their median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

/// The records of one run.
#[derive(Clone, Debug)]
pub struct Report {
    seed: u64,
    /// Every figure, in the order measured.
    pub records: Vec<Record>,
}

impl Report {
    /// An empty report of a run from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, records: Vec::new() }
    }

    /// Adds a figure.
    pub fn add(
        &mut self,
        experiment: &'static str,
        case: &str,
        metric: impl Into<Cow<'static, str>>,
        value: impl Into<Option<f64>>,
        unit: &'static str,
    ) -> &mut Record {
        self.records.push(Record {
            experiment,
            case: case.to_owned(),
            metric: metric.into(),
            value: value.into(),
            unit,
            paper: None,
            seed: self.seed,
            limit: None,
            ratio: None,
            spread: None,
        });
        self.records.last_mut().expect("just pushed")
    }

    /// A figure added before.
    pub fn value(&self, experiment: &str, case: &str, metric: &str) -> Option<f64> {
        self.records
            .iter()
            .find(|record| {
                (record.experiment, record.case.as_str(), record.metric.as_ref())
                    == (experiment, case, metric)
            })
            .and_then(|record| record.value)
    }

    /// One JSON object a line.
    pub fn json_lines(&self) -> impl Iterator<Item = String> + '_ {
        self.records.iter().map(|record| serde_json::to_string(record).expect("plain data serialises"))
    }
}

/// Mean of samples; zero of none.
pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// Standard deviation of samples (n - 1 in the denominator); zero of fewer than two.
pub fn standard_deviation(samples: &[f64]) -> f64 {
    if samples.len() < 2 {
        return 0.0;
    }
    let mean = mean(samples);
    (samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (samples.len() - 1) as f64).sqrt()
}

/// The `share` quantile of samples (0.99: what one in a hundred exceeds), between the two nearest; zero of none.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_samples() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0], 0.75), 2.5);
        assert_eq!(quantile(&[1.0, 2.0], 1.0), 2.0);
    }
}
