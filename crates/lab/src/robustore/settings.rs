//! What the experiments on parts alone (a disk, a code) read from their files, and how many draws they make.

use super::verdict::{Figure, Verdict};
use crate::{
    Options,
    report::{NotOffered, Report},
};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, ops::Range};

/// Draws of a case, at most: seeds of two runs do not overlap below it.
pub const DRAWS_MAX: u32 = 1 << 20;

/// What an experiment says of itself.
#[derive(Clone, Debug)]
pub struct About {
    /// The figures of the dissertation that it makes.
    pub figures: String,
    /// What it shows.
    pub shows: String,
    /// Axes that are logarithmic: `x`, and metrics.
    pub log: Vec<String>,
    /// Where and why it differs, by metric; `all` is of the whole.
    pub notes: BTreeMap<String, String>,
}

/// One line of a list.
pub fn line(shows: &str, figures: &str) -> String {
    match figures.starts_with(NO_FIGURE) {
        true => format!("{shows} (no figure of the dissertation)"),
        false => format!("{shows} (figures {figures})"),
    }
}

/// What `figures` begins with where the experiment makes none of the dissertation's.
pub const NO_FIGURE: &str = "none";

/// How many draws.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// When nothing else is asked.
    pub usual: u32,
    /// Of a quick run.
    pub quick: u32,
}

impl Draws {
    /// As many as `options` ask for.
    ///
    /// # Errors
    /// Names the range.
    pub fn count(self, options: &Options) -> Result<u32> {
        let count = options.draws.unwrap_or(if options.quick { self.quick } else { self.usual });
        if !(1..=DRAWS_MAX).contains(&count) {
            return Err(NotOffered(format!("{count} draws: there can be 1 to {DRAWS_MAX}")).into());
        }
        Ok(count)
    }

    /// A seed for each draw.
    ///
    /// # Errors
    /// As [`Draws::count`].
    pub fn seeds(self, options: &Options, seed: u64) -> Result<Range<u64>> {
        let first = stream(seed, 0);
        // The first is a multiple of the most there can be, so the last is a number too, except behind the very last.
        let last = first.saturating_add(self.count(options)?.into());
        Ok(first..last)
    }
}

/// Refuses a run of which nothing was asked for.
///
/// # Errors
/// Names the experiment.
pub fn some(name: &str, report: &Report) -> Result<(), NotOffered> {
    if report.records.is_empty() { Err(no_case(name)) } else { Ok(()) }
}

/// That an experiment has no case of the name asked for.
pub fn no_case(name: &str) -> NotOffered {
    NotOffered(format!("{name} has no case of that name"))
}

/// The seed of draw `number` of a run: of neighbouring runs none is the same, up to [`DRAWS_MAX`] draws.
pub fn stream(seed: u64, number: u64) -> u64 {
    seed.wrapping_mul(DRAWS_MAX.into()).wrapping_add(number)
}

/// A file's settings.
///
/// # Errors
/// Names the experiment and what its file says wrong.
pub fn read<T: DeserializeOwned>(name: &str, text: &str) -> Result<T> {
    toml::from_str(text).with_context(|| format!("the parameters of {name}"))
}

/// # Errors
/// Names the value that is out of its range.
pub fn within(name: &str, what: &str, value: f64, low: f64, high: f64) -> Result<()> {
    ensure!((low..=high).contains(&value), "{name}: `{what}` is {value}: it can be {low} to {high}");
    Ok(())
}

/// Their reports as a table for people.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "", "", "", "paper", "ratio", ""]);
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    for record in &report.records {
        let figure = Figure::from(record);
        table.add_row([
            record.case.clone(),
            record.metric.to_string(),
            number(record.value),
            record.unit.to_owned(),
            number(record.paper),
            figure.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            Verdict::of(&figure).map_or_else(String::new, |verdict| verdict.text().to_owned()),
        ]);
    }
    for column in [2, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}
