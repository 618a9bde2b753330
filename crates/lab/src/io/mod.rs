//! `steadfast bench io`: the whole store on this machine, each figure beside a limit taken in the same run.
//!
//! Six storage servers of one device each, D = 0.5, f = 2.
//!
//! | cases | devices | limit |
//! |---|---|---|
//! | `put-256MiB`, `put-64MiB clients=N` | real directories | raw direct writing to the same directories, times K/N |
//! | `put-256MiB ingest=primary`, `put-1GiB`, `put-1GiB ingest=primary`, with the policy `parity` | real directories | the same |
//! | `get-256MiB-cold`, `get-64MiB clients=N`, with the policy `parity` `get-1GiB-cold` | real directories, caches dropped | raw direct reading of the same files |
//! | `get-256MiB-warm` | real directories, read just before | one loopback socket |
//! | `get-64MiB-KIND`, `put-64MiB-KIND` | emulated, see [`crate::six_devices`] | arithmetic of the speeds |
//!
//! With the policy `parity` the same cases on real directories, and small updates: beside synced writes ([`updates`]), on rotating
//! disks ([`rotating`]), what they leave to a sequential reader ([`sequential`]), and the order of their flushes ([`flushes`]).
//!
//! Beside the processor's time stands what the parts cost alone ([`parts`]; of emulated disks without any of a disk). Latencies are of two kinds: on real directories from when a
//! process's client connects until the last byte is durable or summed, on emulated disks the library's own, of a client that is
//! connected, without what its sink takes.
//!
//! Every access to real directories is made by a process of its own, started again for each: nothing is in its memory,
//! and what it reads goes to a null sink with a checksum that is compared; what it puts is in its memory before, and is stored from
//! where it lies. Limits and accesses take turns.

mod access;
mod bed;
mod flushes;
mod parts;
mod raw;
mod real;
mod rotating;
mod sequential;
mod table;
mod updates;

pub use access::Access;
pub use table::{show, show_comparisons, show_updates};

use crate::{
    report::{NotOffered, Report},
    scratch::Scratch,
    six_devices,
};
use anyhow::Result;
use parts::Parts;
use std::path::{Path, PathBuf};

/// The name under which figures are printed.
pub const EXPERIMENT: &str = "io";

const NODES: u32 = 6;
/// What is sent through the socket that sets limits.
const SOCKET_BYTES: u64 = 512 << 20;

/// The bucket that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measured {
    /// D = 0.5, f = 2.
    #[default]
    Rateless,
    /// (6, 4) chunks: whole objects on real directories, and small updates.
    Parity,
}

impl Measured {
    /// The policy in its text form.
    fn policy(self) -> &'static str {
        match self {
            Self::Rateless => "rateless:redundancy=0.5,tolerate=2",
            Self::Parity => "parity:code=rs(6,4)",
        }
    }

    /// What cases have behind their names.
    fn suffix(self) -> &'static str {
        match self {
            Self::Rateless => "",
            Self::Parity => " parity",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// In which bucket.
    pub measured: Measured,
    /// Few rounds, for a first look.
    pub quick: bool,
    /// Only the cases that have this in their name.
    pub only: Option<String>,
    /// Where the real directories are made; the system's place for temporary files when absent.
    pub dir: Option<PathBuf>,
}

impl Options {
    fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|only| case.contains(only.as_str()))
    }
}

/// Runs the cases with `program` as the servers' and clients' executable, from the report's seed.
///
/// # Errors
/// When no case has the wanted name, the cluster cannot be run, an access fails or a byte comes back wrong. What was measured until
/// then was told to the report.
pub async fn run(
    program: &Path,
    options: &Options,
    mut report: Report,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    real::run(program, options, &mut report, say).await?;
    if options.measured == Measured::Parity {
        updates::run(program, options, &mut report, say).await?;
        rotating::run(program, options, &mut report, say).await?;
        sequential::run(program, options, &mut report, say).await?;
        report.complete()?;
        flushes::run(options, &mut report, say)?;
        report.complete()?;
        some(&report, options)?;
        return Ok(report);
    }
    let accesses = if options.quick { 6 } else { 12 };
    let wanted = |case: &str| options.wants(case);
    if six_devices::names().any(|name| wanted(&name)) {
        let seed = report.seed();
        let mut parts = Parts::new(options.measured, seed)?;
        let mut add = |measured: six_devices::Measured| {
            let (rate, limit) = measured.throughput();
            let record = report.add(EXPERIMENT, &measured.name(), "throughput", rate / 1e9, "GB/s");
            (record.limit, record.ratio) = (Some(limit / 1e9), Some(rate / limit));
            // What emulated devices do themselves is no disk's work.
            let socket = raw::socket(SOCKET_BYTES)?;
            let limit = match measured.operation {
                "put" => parts.put(socket, None)?,
                _ => parts.get(socket, None),
            };
            let cpu = measured.cpu_s / measured.object_bytes();
            let record = report.add(EXPERIMENT, &measured.name(), "cpu", cpu * 1e9, "s/GB");
            (record.limit, record.ratio) = (Some(limit * 1e9), Some(cpu / limit));
            measured.add_to(&mut report, EXPERIMENT);
            report.complete()
        };
        six_devices::measure(program, seed, accesses, &wanted, say, &mut add).await?;
    }
    some(&report, options)?;
    Ok(report)
}

/// Where the directories of a run lie; removed when dropped.
fn scratch(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Scratch> {
    let scratch = Scratch::within(options.dir.as_deref())?;
    if raw::in_memory(scratch.path()) {
        say("this place is in memory: its limits are the memory's, not a disk's (choose another with --dir)");
    }
    Ok(scratch)
}

/// Whether anything was measured.
fn some(report: &Report, options: &Options) -> Result<()> {
    match &options.only {
        Some(asked) if report.records.is_empty() => {
            Err(NotOffered::no_case("bench io", asked, names(options.measured)).into())
        }
        _ => Ok(()),
    }
}

/// The buckets that these cases are of, as the command line names them.
pub(crate) fn policies<'a>(
    cases: impl Iterator<Item = &'a str> + Clone,
) -> impl Iterator<Item = &'static str> {
    let of = [(Measured::Rateless, "rateless"), (Measured::Parity, "parity")];
    let measured = move |which| {
        let names = names(which);
        // Of cases that this build does not know nobody can tell.
        cases.clone().any(|case| names.iter().any(|name| name == case))
    };
    of.into_iter().filter(move |&(which, _)| measured(which)).map(|(_, name)| name)
}

/// The names of all cases.
fn names(measured: Measured) -> Vec<String> {
    let real = real::cases(measured).into_iter().map(move |case| case.name(measured));
    match measured {
        Measured::Rateless => real.chain(six_devices::names()).collect(),
        Measured::Parity => real
            .chain(updates::CASES.iter().map(updates::Case::name))
            .chain(rotating::names())
            .chain([sequential::CASE.to_owned()])
            .chain(flushes::ORDERS.map(|order| order.name().to_owned()))
            .collect(),
    }
}
