//! The evaluation of the dissertation's chapter 6, from the cores that serve data, under the simulator.
//!
//! Each experiment is a file of parameters beside the paper's values (`parameters/`), and everything else is the same for
//! all of them:
//!
//! | room | what lives there |
//! |---|---|
//! | [`parameters`] | what an experiment varies, and the figures of the paper |
//! | [`scheme`] | the four schemes of the paper, and ours |
//! | [`draw`] | which disks an access uses and how they are: the same for all schemes |
//! | [`access`] | one access in a world of its own |
//! | [`sequence`] | accesses that follow one another in one world |
//! | [`many`] | many clients at once: an experiment of its own |
//! | [`real`] | the same on real processes: an experiment of its own |
//! | [`replay`] | one access again, with its trace |
//! | [`spread`] | units of work on all cores, and the file that an interrupted run goes on from |
//! | [`ideal`] | what the same disks allow |
//! | [`sweep`] | all accesses of an experiment, on all cores, and what they come to |
//! | [`fig4_1`], [`table6_1`], [`fig6_5`] | the figures on parts alone: codes, a disk, a disk shared; [`settings`] reads their files |
//! | [`verdict`] | when a figure of the paper counts as reproduced |

pub mod access;
pub mod draw;
pub mod fig4_1;
pub mod fig6_5;
pub mod ideal;
pub mod many;
pub mod parameters;
pub mod real;
pub mod replay;
pub mod scheme;
pub mod sequence;
pub mod settings;
pub mod spread;
pub mod sweep;
pub mod table6_1;
pub mod verdict;

use crate::{Options, report::Report};
use anyhow::Result;
use parameters::Experiment;

/// All experiments, in the order of the dissertation: name, and what each shows.
pub fn list() -> impl Iterator<Item = (&'static str, String)> {
    let parts = [
        (fig4_1::NAME, fig4_1::about()),
        (table6_1::NAME, table6_1::about()),
        (fig6_5::NAME, fig6_5::about()),
    ];
    let parts = parts.into_iter().map(|(name, about)| {
        let about = about.expect("the program's own files are good: a test reads them all");
        (name, settings::line(&about.shows, &about.figures))
    });
    parts.chain(parameters::list())
}

/// Runs an experiment.
///
/// # Errors
/// When an access fails, which is a finding, or the file to resume from cannot be used.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    report: Report,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    match experiment.name {
        many::NAME => many::run(experiment, options, report, say),
        _ => sweep::run(experiment, options, report, say),
    }
}

/// The report as a table for people.
pub fn show(report: &Report) -> String {
    match report.records.first() {
        Some(record) if record.experiment == many::NAME => many::show(report),
        Some(record) if record.experiment == real::NAME => real::show(report),
        _ => sweep::show(report),
    }
}

/// What the experiment of that name says of itself; none of another.
///
/// # Errors
/// When its file says something impossible.
pub fn about(name: &str) -> Option<Result<settings::About>> {
    match name {
        fig4_1::NAME => Some(fig4_1::about()),
        table6_1::NAME => Some(table6_1::about()),
        fig6_5::NAME => Some(fig6_5::about()),
        _ => parameters::find(name).map(|experiment| {
            let parameters::Experiment { figures, shows, log, notes, .. } = experiment?;
            Ok(settings::About { figures, shows, log, notes })
        }),
    }
}
