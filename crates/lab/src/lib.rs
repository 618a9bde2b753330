//! Experiments: the papers' and ours, on the simulator, on real local clusters, and on the codes alone.
//!
//! | room | what lives there |
//! |---|---|
//! | [`cluster`] | processes: started by running the program again, killed, restarted, stopped |
//! | [`disks`] | speeds as the dissertation draws them; the any-K ideal and the write limit |
//! | [`demo`], [`six_devices`], [`requests`] | the experiments on clusters |
//! | [`codes`] | the experiments on the codes alone |
//! | [`robustore`] | the dissertation's evaluation, under the simulator |
//! | [`codfs`] | the evaluation of parity logging with reserved space |
//! | [`io`] | `bench io`: the whole store beside the machine's limits |
//! | [`cpu`] | processor time of processes |
//! | [`original`] | the bytes stored and compared |
//! | [`trace`] | recorded requests of real systems: readers, what they come to, where they lie in one small file |
//! | [`replay`] | such requests made of a store |
//! | [`page`] | what `lab run --json` printed, as one page with charts |
//! | [`report`] | the figures printed, a crate of its own |

pub mod cluster;
pub mod codes;
pub mod codfs;
pub mod cpu;
pub mod demo;
pub mod disks;
pub mod io;
pub mod original;
mod overruns;
pub mod page;
pub mod replay;
pub mod requests;
pub mod robustore;
mod scratch;
pub mod six_devices;
pub mod trace;

pub use scratch::remove_all as remove_scratch;
pub use steadfast_report as report;

use anyhow::Result;
use report::{NotOffered, Report};
use std::path::{Path, PathBuf};

/// What a server prints once it serves, followed by its address.
pub const LISTENING: &str = "listening on ";

/// What a server with an admin port prints before that, followed by the port's address.
pub const ADMIN: &str = "admin port at ";

/// The experiments beside the dissertation's, by name, and what each shows.
const EXPERIMENTS: [(&str, &str); 7] = [
    (codes::overhead::NAME, "blocks needed beyond K, every code and arrival, beside the paper's figures"),
    (
        codfs::checker::NAME,
        "every order of events of two updates, crashes included, up to a bound, and four planted bugs",
    ),
    (
        codfs::reserve::NAME,
        "space reserved for parity deltas and the merges it saves, over 41 days of a generated trace",
    ),
    (
        codfs::storm::NAME,
        "updates of erasure-coded chunks on devices that lose power, every synced byte compared",
    ),
    ("demo", "64 unequal disks, five schemes, then failures and a speculative write"),
    ("requests", "asking for all against asking adaptively: 1, 4 and 16 clients, 1 ms and 100 ms away"),
    ("six-devices", "64 MiB objects on six devices: equal, one slow, one stalled, all unequal"),
];

/// How much of an experiment to run, where it has a choice; what it has none in is refused.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Draws of each case, accesses of each point; the experiment's own number when absent. Of [`requests`] rounds, one more where
    /// they are odd in number.
    pub draws: Option<u32>,
    /// Only cases whose name contains this.
    pub case: Option<String>,
    /// Fewer accesses a point.
    pub quick: bool,
    /// A file of what is done: a run that was interrupted goes on from there, to the same figures.
    pub resume: Option<PathBuf>,
}

impl Options {
    /// Those that were given, as the command line has them.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("--draws", self.draws.is_some()),
            ("--case", self.case.is_some()),
            ("--quick", self.quick),
            ("--resume", self.resume.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Refuses what the experiment of that name has no choice in: the run would be another than was asked for.
    ///
    /// # Errors
    /// With what it takes.
    pub fn check(&self, name: &str) -> Result<(), NotOffered> {
        let heeded: &[&str] = match name {
            "demo" => &[],
            "requests" | "six-devices" => &["--draws", "--case", "--quick"],
            codfs::storm::NAME => &["--draws", "--case", "--quick"],
            codes::overhead::NAME => &["--draws", "--case"],
            codfs::checker::NAME | codfs::reserve::NAME => &["--case", "--quick"],
            robustore::real::NAME
            | robustore::fig4_1::NAME
            | robustore::table6_1::NAME
            | robustore::fig6_5::NAME => &["--draws", "--case", "--quick"],
            _ => &["--draws", "--case", "--quick", "--resume"],
        };
        let takes = if heeded.is_empty() { "no options".to_owned() } else { heeded.join(", ") };
        match self.given().find(|option| !heeded.contains(option)) {
            Some(option) => Err(NotOffered(format!("`{name}` takes no {option}: it takes {takes}"))),
            None => Ok(()),
        }
    }
}

/// All experiments, by name, and what each shows.
pub fn list() -> Vec<(&'static str, String)> {
    let real = EXPERIMENTS.iter().map(|&(name, shows)| (name, shows.to_owned()));
    real.chain(robustore::list()).collect()
}

/// Runs the experiment of that name with `program` as the servers' executable, from the report's seed, and tells each case to the
/// report as it is complete.
///
/// # Errors
/// When there is no such experiment or it fails.
pub async fn run(
    name: &str,
    program: &Path,
    report: Report,
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    known(name)?;
    options.check(name)?;
    let mut report = match name {
        "demo" => demo::Demo { program: program.to_owned(), file: None, keep: None }.run(report, say).await,
        "requests" => requests::run(program, options, report, say).await,
        "six-devices" => six_devices::run(program, options, report, say).await,
        codes::overhead::NAME => codes::overhead::run(options, report, say).await,
        codfs::checker::NAME => codfs::checker::run(options, report, say),
        codfs::storm::NAME => codfs::storm::run(options, report, say),
        codfs::reserve::NAME => codfs::reserve::run(options, report, say),
        robustore::fig4_1::NAME => robustore::fig4_1::run(options, report, say),
        robustore::table6_1::NAME => robustore::table6_1::run(options, report, say),
        robustore::fig6_5::NAME => robustore::fig6_5::run(options, report, say),
        robustore::real::NAME => robustore::real::run(program, options, report, say).await,
        _ => match robustore::parameters::find(name) {
            Some(experiment) => robustore::run(&experiment?, options, report, say),
            None => return Err(NotOffered(format!("{name} is listed and cannot be run")).into()),
        },
    }?;
    // Of those whose cases are all complete at their end.
    report.complete()?;
    Ok(report)
}

/// Refuses what is no experiment.
///
/// # Errors
/// Says how to find those there are.
pub fn known(name: &str) -> Result<(), NotOffered> {
    if list().iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    Err(NotOffered(format!("no experiment named `{name}`; `steadfast lab list` names them")))
}

/// An experiment's report as a table for people.
pub fn show(name: &str, report: &Report) -> String {
    match name {
        "demo" => demo::show(report),
        "requests" => requests::show(report),
        "six-devices" => six_devices::show(report),
        codes::overhead::NAME => codes::overhead::show(report),
        codfs::checker::NAME => codfs::checker::show(report),
        codfs::storm::NAME => codfs::storm::show(report),
        codfs::reserve::NAME => codfs::reserve::show(report),
        robustore::fig4_1::NAME | robustore::table6_1::NAME | robustore::fig6_5::NAME => {
            robustore::settings::show(report)
        }
        _ => robustore::show(report),
    }
}

/// Whether an experiment has a picture.
///
/// # Errors
/// When it has none.
pub fn has_picture(name: &str) -> Result<(), NotOffered> {
    let only = codes::overhead::NAME;
    if name == only {
        return Ok(());
    }
    Err(NotOffered(format!("`{name}` has no picture: only `{only}` has")))
}

/// An experiment's report as an SVG document.
///
/// # Errors
/// When the experiment has no picture, or what was run of it is too little for one.
pub fn picture(name: &str, report: &Report) -> Result<String> {
    has_picture(name)?;
    codes::plot::svg(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_says_where_there_is_no_figure() {
        let of = |name: &str| {
            list().into_iter().find_map(|(known, shows)| (known == name).then_some(shows)).unwrap()
        };
        assert!(of(robustore::real::NAME).ends_with("(no figure of the dissertation)"));
        assert!(of("robustore/disks").contains("(figures 6-6"));
        assert!(list().iter().all(|(_, shows)| !shows.contains("figures none")));
    }

    #[test]
    fn what_an_experiment_has_no_choice_in_is_refused() {
        let check = |name: &str, options: &Options| options.check(name).map_err(|error| error.to_string());
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(check("demo", &Options::default()), Ok(()));
        assert_eq!(check("demo", &quick), Err("`demo` takes no --quick: it takes no options".to_owned()));
        assert_eq!(check("six-devices", &quick), Ok(()));
        let resumed = Options { resume: Some("done".into()), ..Options::default() };
        assert_eq!(check("robustore/disks", &resumed), Ok(()));
        let refused = check(codes::overhead::NAME, &resumed).unwrap_err();
        assert!(refused.ends_with("takes no --resume: it takes --draws, --case"), "{refused}");
        // Of all of them those take everything that run under the simulator.
        let all = Options { draws: Some(1), case: Some(String::new()), ..resumed };
        let takes_all = |name: &str| check(name, &all).is_ok();
        assert!(
            list().iter().all(|(name, _)| !takes_all(name) || robustore::parameters::find(name).is_some())
        );
    }
}
