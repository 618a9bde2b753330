//! What an experiment prints: one JSON object a line for machines, one table for people, the same names in both.

use serde::Serialize;
use std::{borrow::Cow, fmt};

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

impl Record {
    /// As one line of JSON, without its end.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain data serialises")
    }
}

/// Takes records whose cases are complete.
type Sink = Box<dyn FnMut(&[Record]) -> anyhow::Result<()> + Send>;

/// What was asked for is not to be had: there is no experiment, case or scheme of that name, or no choice in what an option says. Another
/// command has to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotOffered(pub String);

impl NotOffered {
    /// No case of `experiment` has `asked` in its name, but `known` there are.
    pub fn no_case(experiment: &str, asked: &str, known: impl IntoIterator<Item = String>) -> Self {
        let known: Vec<String> = known.into_iter().collect();
        Self(format!("no case of {experiment} has `{asked}` in its name: there are {}", known.join(", ")))
    }
}

impl fmt::Display for NotOffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotOffered {}

/// The records of one run.
///
/// A run may take an hour, and end before its time: it says after each case that it is complete ([`Report::complete`]), and whoever
/// began the report ([`Report::telling`]) has the case's figures from then on, whatever becomes of the run.
pub struct Report {
    seed: u64,
    /// Every figure, in the order measured.
    pub records: Vec<Record>,
    /// How many of them were told.
    told: usize,
    sink: Option<Sink>,
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, records, told, sink: _ } = self;
        let mut shown = f.debug_struct("Report");
        shown.field("seed", seed).field("records", records).field("told", told).finish_non_exhaustive()
    }
}

impl Report {
    /// An empty report of a run from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, records: Vec::new(), told: 0, sink: None }
    }

    /// The same, which hands the records of complete cases to `sink`, each once.
    pub fn telling(seed: u64, sink: impl FnMut(&[Record]) -> anyhow::Result<()> + Send + 'static) -> Self {
        Self { sink: Some(Box::new(sink)), ..Self::new(seed) }
    }

    /// The run's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// All that was added is of complete cases, and is changed no more.
    ///
    /// # Errors
    /// Where nobody takes it: the run is then for nothing.
    pub fn complete(&mut self) -> anyhow::Result<()> {
        let from = std::mem::replace(&mut self.told, self.records.len());
        match &mut self.sink {
            Some(sink) if from < self.records.len() => sink(&self.records[from..]),
            _ => Ok(()),
        }
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
        self.records.iter().map(Record::json)
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
    fn a_case_is_told_once_and_when_it_is_complete() {
        let (tell, told) = std::sync::mpsc::channel();
        let mut report = Report::telling(7, move |records| {
            let cases = records.iter().map(|record| record.case.clone()).collect::<Vec<_>>();
            Ok(tell.send(cases)?)
        });
        report.add("some", "first", "time", 1.0, "s");
        report.add("some", "first", "rate", 1.0, "1/s");
        assert!(told.try_recv().is_err(), "it may be changed still");
        report.complete().unwrap();
        report.complete().unwrap();
        report.add("some", "second", "time", 1.0, "s");
        report.complete().unwrap();
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [vec!["first"; 2], vec!["second"]]);
        drop(told);
        report.add("some", "third", "time", 1.0, "s");
        assert!(report.complete().is_err(), "nobody has it");
        assert_eq!((report.records.len(), report.seed()), (4, 7));
    }

    #[test]
    fn quantiles_lie_between_samples() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0], 0.75), 2.5);
        assert_eq!(quantile(&[1.0, 2.0], 1.0), 2.0);
    }
}
