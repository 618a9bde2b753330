//! Exit codes that mean something, and errors that say what to do next.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | something else failed |
//! | 2 | the command line or the configuration file is wrong |
//! | 3 | no such bucket, object, device or storage server |
//! | 4 | the cluster cannot be reached |
//! | 5 | too little of the data can be reached now |
//! | 6 | no room, or too few devices or blocks for the policy |
//! | 7 | exists already |
//! | 8 | it changed meanwhile: run the command again |
//! | 9 | what was wished for is not to be had now: try again in a while |
//! | 130 | a get, demo, experiment or bench that was told to stop before its end |

use crate::{config::Problems, harmless::harmless};
use std::{io, process::ExitCode};
use steadfast_client::{
    AmendError, ClientError, DrainError, FileError, GetError, PutError, RemoveError, RepairError,
};
use steadfast_lab::{cluster::OtherShape, report::NotOffered};
use steadfast_protocol::{
    drain::{StuckKind, Totals},
    message::MetaFault,
    plan::{PlanError, TrimError},
    read::ReadError,
};

/// What comes before the cause where what a command has to say cannot be written: `No space left on device` by itself
/// could be the cluster's.
pub(crate) const UNSAID: &str = "cannot write to standard output";

/// Something else failed.
const FAILED: u8 = 1;
/// The command line or the configuration file is wrong; `clap` says the former by itself.
pub(crate) const WRONG_COMMAND: u8 = 2;
/// What the command names is not there.
const MISSING: u8 = 3;
/// The cluster cannot be reached.
const UNREACHABLE: u8 = 4;
/// Too little of the data can be reached now.
const OUT_OF_REACH: u8 = 5;
/// No room, or too few devices or blocks for the policy.
const NO_ROOM: u8 = 6;
/// What is to be made is there already.
const EXISTS: u8 = 7;
/// Another writer was first, or changed what was read.
const CHANGED: u8 = 8;
/// Others have what was wished for, or the time for it is over.
const BUSY: u8 = 9;

/// Told to stop before its end: as a shell says of a program that SIGINT ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// It was told to stop before its end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped before its end")]
pub(crate) struct Interrupted;

/// What a command refuses by itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The command line does not fit what is there.
    #[error("{0}")]
    Wrong(String),
    /// What it names is not there.
    #[error("{0}")]
    Missing(String),
    /// Another writer was first.
    #[error("{0}")]
    Changed(String),
}

/// Whether a device can take its whole capacity at once: what that is must be said, by a flag or by the configuration file.
///
/// # Errors
/// When it is not.
pub(crate) fn check_thick(thick: bool, capacity: Option<u64>) -> Result<(), Refusal> {
    match thick && capacity.is_none() {
        true => Err(Refusal::Wrong(
            "`--thick` takes a new device's whole capacity at once: say with `--capacity` what that is"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// Prints the error with its causes and gives the code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_read_no_more(error) {
        return ExitCode::SUCCESS;
    }
    tell!("steadfast: {}", said(error));
    ExitCode::from(code(error))
}

/// Whether the reader of our output has seen enough and closed it. Another pipe that broke is a failure, such as that to a process
/// of our own.
fn is_read_no_more(error: &anyhow::Error) -> bool {
    let unsaid = || error.chain().any(|cause| cause.to_string() == UNSAID);
    let written = match error.downcast_ref() {
        Some(GetError::Sink(error)) => Some(error),
        _ => error.downcast_ref::<io::Error>().filter(|_| unsaid()),
    };
    written.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes in one line, without those that it says itself; others may have chosen the names in it.
pub(crate) fn said(error: &anyhow::Error) -> String {
    let said = error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        if said.is_empty() {
            cause
        } else if said.contains(&cause) {
            said
        } else {
            format!("{said}: {cause}")
        }
    });
    // Its lines are one for each problem.
    if error.is::<Problems>() {
        return said.lines().map(harmless).collect::<Vec<_>>().join("\n");
    }
    harmless(&said).into_owned()
}

fn code(error: &anyhow::Error) -> u8 {
    if error.is::<Problems>() || error.is::<NotOffered>() || error.is::<OtherShape>() {
        return WRONG_COMMAND;
    }
    if error.is::<Interrupted>() {
        return INTERRUPTED;
    }
    let of_refusal = |refusal: &Refusal| match refusal {
        Refusal::Wrong(_) => WRONG_COMMAND,
        Refusal::Missing(_) => MISSING,
        Refusal::Changed(_) => CHANGED,
    };
    let of_drain = |error: &DrainError| match error {
        DrainError::Metadata(error) => of_client(error),
        DrainError::Refused(_) => NO_ROOM,
        DrainError::Stuck { totals, .. } => of_stuck(totals),
    };
    let of_repair = |error: &RepairError| match error {
        RepairError::Metadata(error) => of_client(error),
        RepairError::Stuck(totals) => of_stuck(totals),
    };
    let of_removal = |error: &RemoveError| match error {
        RemoveError::Metadata(error) | RemoveError::Draining { error, .. } => of_client(error),
        RemoveError::Unsettled { .. } => BUSY,
        RemoveError::Holds(_) => FAILED,
    };
    let found = error.downcast_ref().map(of_refusal);
    let found = found.or_else(|| error.downcast_ref().map(of_client));
    let found = found.or_else(|| error.downcast_ref().map(of_get));
    let found = found.or_else(|| error.downcast_ref().map(of_put));
    let found = found.or_else(|| error.downcast_ref().map(of_amend));
    let found = found.or_else(|| error.downcast_ref().map(of_file));
    let found = found.or_else(|| error.downcast_ref().map(of_drain));
    let found = found.or_else(|| error.downcast_ref().map(of_repair));
    found.or_else(|| error.downcast_ref().map(of_removal)).unwrap_or(FAILED)
}

/// By the object that is named.
fn of_stuck(totals: &Totals) -> u8 {
    match totals.stuck.first_key_value().map(|(_, stuck)| stuck.kind) {
        Some(StuckKind::Busy) => BUSY,
        Some(StuckKind::Unreadable) => OUT_OF_REACH,
        Some(StuckKind::NoRoom) => NO_ROOM,
        Some(StuckKind::Other) | None => FAILED,
    }
}

fn of_client(error: &ClientError) -> u8 {
    match error {
        ClientError::Unreachable { .. } | ClientError::NotMeta { .. } | ClientError::Unknown { .. } => {
            UNREACHABLE
        }
        ClientError::Refused(MetaFault::BadName { .. }) | ClientError::NotAdded { .. } => WRONG_COMMAND,
        ClientError::UnknownDevice(_) | ClientError::Refused(MetaFault::NoDevice(_)) => MISSING,
        ClientError::Refused(MetaFault::NoBucket(_) | MetaFault::NoObject { .. }) => MISSING,
        ClientError::Refused(MetaFault::PolicyUnmet { .. }) => NO_ROOM,
        ClientError::Refused(MetaFault::BucketExists(_)) => EXISTS,
        ClientError::Refused(MetaFault::Conflict { .. }) => CHANGED,
        ClientError::Refused(
            MetaFault::BucketInUse(_) | MetaFault::DeviceTook { .. } | MetaFault::IntentOver(_),
        ) => BUSY,
        _ => FAILED,
    }
}

fn of_plan(error: &PlanError) -> u8 {
    match error {
        // Whatever the devices: another wish is to be made.
        PlanError::BelowBucket { .. }
        | PlanError::Unsupported { .. }
        | PlanError::FewDevices { .. }
        | PlanError::FewCopies { .. }
        | PlanError::Unforeseen { .. } => WRONG_COMMAND,
        error if error.is_reserved_by_others() => BUSY,
        _ => NO_ROOM,
    }
}

fn of_get(error: &GetError) -> u8 {
    match error {
        GetError::Metadata(error) => of_client(error),
        GetError::Busy(_) => BUSY,
        GetError::Plan(error) => of_plan(error),
        GetError::Read(ReadError::Unsettled { .. }) => BUSY,
        GetError::Read(_) => OUT_OF_REACH,
        GetError::Range { .. } => WRONG_COMMAND,
        GetError::Changed { .. } => CHANGED,
        _ => FAILED,
    }
}

fn of_put(error: &PutError) -> u8 {
    match error {
        PutError::Metadata(error) => of_client(error),
        PutError::Busy(_) => BUSY,
        PutError::Plan(error) => of_plan(error),
        PutError::Write(_) => NO_ROOM,
        PutError::TooLong(_) | PutError::Size { .. } | PutError::Layouts { .. } => WRONG_COMMAND,
        _ => FAILED,
    }
}

fn of_amend(error: &AmendError) -> u8 {
    match error {
        AmendError::Metadata(error) => of_client(error),
        AmendError::Read(error) => of_get(error),
        AmendError::Unfenced { .. } | AmendError::LacksChanges { .. } => OUT_OF_REACH,
        AmendError::Busy(_) | AmendError::LeaseOver => BUSY,
        AmendError::Plan(error) => of_plan(error),
        // Another redundancy is to be asked for, unless all of its devices would do with this one.
        AmendError::Trim(TrimError::BelowTolerance { out_of_reach: 0, .. }) => WRONG_COMMAND,
        AmendError::Write(_) | AmendError::Trim(_) => NO_ROOM,
        AmendError::Spread { .. } | AmendError::TooLong(_) => WRONG_COMMAND,
        AmendError::Extends { .. } | AmendError::Redundancy { .. } => WRONG_COMMAND,
        AmendError::NotCoded { .. } | AmendError::Fixed { .. } => WRONG_COMMAND,
        AmendError::Contended { .. } => CHANGED,
        _ => FAILED,
    }
}

fn of_file(error: &FileError) -> u8 {
    match error {
        FileError::Metadata(error) => of_client(error),
        FileError::Read(error) => of_get(error),
        FileError::Write(error) => of_amend(error),
        FileError::Policy { .. } => WRONG_COMMAND,
        FileError::ReadOnly { .. } => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::{
        DeviceId, IntentId, SegmentId,
        drain::{ObjectName, Stuck},
        durability::Shortfall,
    };

    #[test]
    fn an_error_has_its_code_wherever_it_comes_from() {
        let unfenced = || AmendError::Unfenced { segment: SegmentId(1) };
        let gone = || ClientError::Refused(MetaFault::NoBucket("photos".to_owned()));
        let over = || ClientError::Refused(MetaFault::IntentOver(IntentId(1)));
        let below = |out_of_reach| {
            let (asked, smallest, tolerate) = (0.1, 0.37, 2);
            TrimError::BelowTolerance { asked, smallest, tolerate, out_of_reach }
        };
        let unmet = || TrimError::Unmet { blocks: 3, why: Shortfall::Redundancy { confirmed: 5, needed: 8 } };
        let address = || "here:1".to_owned();
        let not_added = || {
            let (dir, detail) = ("/disk".to_owned(), "it is another's".to_owned());
            ClientError::NotAdded { address: address(), dir, detail }
        };
        let unreached = || ClientError::Node { address: address(), cause: "it hung up".to_owned() };
        for (error, expected) in [
            (anyhow::Error::from(unfenced()), OUT_OF_REACH),
            (FileError::from(unfenced()).into(), OUT_OF_REACH),
            (AmendError::LacksChanges { segment: SegmentId(1), awaited: Vec::new() }.into(), OUT_OF_REACH),
            (gone().into(), MISSING),
            (GetError::from(gone()).into(), MISSING),
            (FileError::from(AmendError::from(GetError::from(gone()))).into(), MISSING),
            (DrainError::from(gone()).into(), MISSING),
            (over().into(), BUSY),
            (PutError::from(over()).into(), BUSY),
            (FileError::from(AmendError::from(over())).into(), BUSY),
            (GetError::from(ReadError::NoHolder { blocks: 1, first: 0 }).into(), OUT_OF_REACH),
            (GetError::from(ReadError::Unsettled { attempts: 16 }).into(), BUSY),
            (AmendError::Fixed { chunks: 6, data: 4 }.into(), WRONG_COMMAND),
            (AmendError::from(below(0)).into(), WRONG_COMMAND),
            (AmendError::from(below(133)).into(), NO_ROOM),
            (AmendError::from(unmet()).into(), NO_ROOM),
            (not_added().into(), WRONG_COMMAND),
            (unreached().into(), FAILED),
            (Refusal::Wrong("no".to_owned()).into(), WRONG_COMMAND),
            (NotOffered("no".to_owned()).into(), WRONG_COMMAND),
            (OtherShape { dir: "/cluster".into(), nodes: 3, devices: 1 }.into(), WRONG_COMMAND),
            (Interrupted.into(), INTERRUPTED),
            (anyhow::anyhow!("no"), FAILED),
        ] {
            assert_eq!(code(&error.context("while trying")), expected);
        }
    }

    #[test]
    fn what_stays_on_a_device_says_why_by_its_code() {
        for (kind, expected) in [
            (StuckKind::Busy, BUSY),
            (StuckKind::Unreadable, OUT_OF_REACH),
            (StuckKind::NoRoom, NO_ROOM),
            (StuckKind::Other, FAILED),
        ] {
            let object = |key: &str| ObjectName { bucket: "photos".to_owned(), key: key.to_owned() };
            let stuck = |kind| Stuck { kind, why: "so it is".to_owned() };
            // The first one is told.
            let all = [(object("a"), stuck(kind)), (object("b"), stuck(StuckKind::Other))];
            let totals = Totals { stuck: all.into(), ..Totals::default() };
            assert_eq!(code(&RepairError::Stuck(totals.clone()).into()), expected);
            assert_eq!(code(&DrainError::Stuck { totals, restored: false }.into()), expected);
        }
        let device = DeviceId(1);
        let took = || ClientError::Refused(MetaFault::DeviceTook { device, arrivals: 1 });
        assert_eq!(code(&RemoveError::Draining { device, error: took() }.into()), BUSY);
        assert_eq!(code(&RemoveError::Unsettled { device, extents: None }.into()), BUSY);
    }

    #[test]
    fn output_that_nobody_reads_is_no_failure() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for (error, expected) in [
            (anyhow::Error::from(broken()).context("a client ended before it began"), false),
            (anyhow::Error::from(broken()).context(UNSAID), true),
            (GetError::Sink(broken()).into(), true),
            (anyhow::Error::from(full()).context(UNSAID), false),
            (GetError::Sink(full()).into(), false),
            // That one was to be stored.
            (PutError::Source(broken()).into(), false),
        ] {
            assert_eq!(is_read_no_more(&error), expected, "{error:?}");
        }
    }

    #[test]
    fn an_error_tells_a_terminal_no_commands() {
        let object =
            ObjectName { bucket: "photos".to_owned(), key: "a\u{1b}]0;b\u{7}\nsteadfast: c".to_owned() };
        let stuck = Stuck { kind: StuckKind::Other, why: "so it is".to_owned() };
        let totals = Totals { stuck: [(object, stuck)].into(), ..Totals::default() };
        let error = anyhow::Error::from(RepairError::Stuck(totals)).context("the last look");
        let said = said(&error);
        let shown =
            "the last look: photos/a\\u{1b}]0;b\\u{7}\\nsteadfast: c cannot be completed now: so it is";
        assert_eq!(said, shown);
        // What is wrong with a file is a line each.
        let problems = crate::config::check("a.toml".as_ref(), "[client]\nb = 1\nc = 2\n").unwrap_err();
        assert_eq!(super::said(&problems.into()).lines().count(), 2);
    }

    #[test]
    fn a_cause_is_said_once() {
        let trim = TrimError::BelowTolerance { asked: 0.1, smallest: 0.37, tolerate: 2, out_of_reach: 0 };
        let error = anyhow::Error::from(AmendError::from(trim));
        assert_eq!(said(&error), error.to_string());
        assert_eq!(
            said(&anyhow::anyhow!("no such file").context("cannot read a")),
            "cannot read a: no such file"
        );
    }
}
