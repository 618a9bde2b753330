//! The lines that `lab run --json` prints, read again.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

/// One measured figure, as [`crate::report::Record`] writes it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Line {
    pub(super) experiment: String,
    pub(super) case: String,
    pub(super) metric: String,
    pub(super) value: Option<f64>,
    pub(super) unit: String,
    pub(super) paper: Option<f64>,
    pub(super) seed: u64,
}

/// What was read, in the order of the files.
#[derive(Clone, Debug, Default)]
pub struct Results {
    pub(super) lines: Vec<Line>,
}

/// Reads files of JSON lines, any number of experiments in each.
///
/// # Errors
/// Names the file that cannot be read, or file and line of what is no record or was there before.
pub fn read(files: &[impl AsRef<Path>]) -> Result<Results> {
    let mut results = Results::default();
    let mut seen: BTreeMap<(String, String, String), String> = BTreeMap::new();
    for file in files {
        let file = file.as_ref();
        let open = File::open(file).with_context(|| file.display().to_string())?;
        for (number, text) in BufReader::new(open).split(b'\n').enumerate() {
            let place = format!("{}:{}", file.display(), number + 1);
            let text = text.with_context(|| place.clone())?;
            if text.trim_ascii().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_slice(&text)
                .with_context(|| format!("{place}: not a record of `steadfast lab run --json`"))?;
            let key = (line.experiment.clone(), line.case.clone(), line.metric.clone());
            if let Some(before) = seen.insert(key, place.clone()) {
                bail!(
                    "{place}: {}, `{}`, `{}` was there before, at {before}: give one run of each experiment",
                    line.experiment,
                    line.case,
                    line.metric
                );
            }
            results.lines.push(line);
        }
    }
    Ok(results)
}

impl Results {
    pub(super) fn has(&self, experiment: &str) -> bool {
        self.lines.iter().any(|line| line.experiment == experiment)
    }

    /// Each name once, in the order first met.
    pub(super) fn experiments(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !names.contains(&line.experiment.as_str()) {
                names.push(&line.experiment);
            }
        }
        names
    }

    pub(super) fn of<'a>(&'a self, experiment: &'a str) -> impl Iterator<Item = &'a Line> + Clone {
        self.lines.iter().filter(move |line| line.experiment == experiment)
    }
}
