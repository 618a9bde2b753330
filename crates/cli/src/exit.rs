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

use std::process::ExitCode;
use steadfast_client::{AmendError, ClientError, DrainError, FileError, GetError, PutError, RemoveError};
use steadfast_protocol::message::MetaFault;

/// The command line or the configuration file is wrong; `clap` says the former by itself.
pub(crate) const WRONG_COMMAND: u8 = 2;
/// What the command names is not there.
const MISSING: u8 = 3;

/// What a command refuses by itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The command line does not fit what is there.
    #[error("{0}")]
    Wrong(String),
    /// What it names is not there.
    #[error("{0}")]
    Missing(String),
}

/// Prints the error with its causes and gives the code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(broken) = error.downcast_ref::<std::io::Error>()
        && broken.kind() == std::io::ErrorKind::BrokenPipe
    {
        // The reader of our output has seen enough.
        return ExitCode::SUCCESS;
    }
    eprintln!("steadfast: {}", said(error));
    ExitCode::from(code(error))
}

/// The error and its causes in one line, without those that it says itself.
pub(crate) fn said(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        if said.is_empty() {
            cause
        } else if said.contains(&cause) {
            said
        } else {
            format!("{said}: {cause}")
        }
    })
}

fn code(error: &anyhow::Error) -> u8 {
    if error.is::<crate::config::Problems>() {
        return WRONG_COMMAND;
    }
    if matches!(error.downcast_ref::<FileError>(), Some(FileError::Policy { .. })) {
        return WRONG_COMMAND;
    }
    match error.downcast_ref::<Refusal>() {
        Some(Refusal::Wrong(_)) => return WRONG_COMMAND,
        Some(Refusal::Missing(_)) => return MISSING,
        None => {}
    }
    let client = error
        .downcast_ref::<ClientError>()
        .or_else(|| match error.downcast_ref::<GetError>() {
            Some(GetError::Metadata(error)) => Some(error),
            _ => None,
        })
        .or_else(|| match error.downcast_ref::<PutError>() {
            Some(PutError::Metadata(error)) => Some(error),
            _ => None,
        })
        .or_else(|| match error.downcast_ref::<AmendError>() {
            Some(AmendError::Metadata(error) | AmendError::Read(GetError::Metadata(error))) => Some(error),
            _ => None,
        })
        .or_else(|| match (error.downcast_ref::<DrainError>(), error.downcast_ref::<RemoveError>()) {
            (Some(DrainError::Metadata(error)), _) | (_, Some(RemoveError::Metadata(error))) => Some(error),
            _ => None,
        });
    if let Some(client) = client {
        return match client {
            ClientError::Unreachable { .. } | ClientError::NotMeta { .. } | ClientError::Unknown { .. } => 4,
            ClientError::Refused(MetaFault::BadName { .. }) => WRONG_COMMAND,
            ClientError::UnknownDevice(_) | ClientError::Refused(MetaFault::NoDevice(_)) => MISSING,
            ClientError::Refused(MetaFault::NoBucket(_) | MetaFault::NoObject { .. }) => MISSING,
            ClientError::Refused(MetaFault::PolicyUnmet { .. }) => 6,
            ClientError::Refused(MetaFault::BucketExists(_)) => 7,
            ClientError::Refused(MetaFault::Conflict { .. }) => 8,
            _ => 1,
        };
    }
    if error.downcast_ref::<DrainError>().is_some() {
        return 6;
    }
    if let Some(amend) = error.downcast_ref::<AmendError>() {
        return match amend {
            AmendError::Read(GetError::Read(_)) | AmendError::Unfenced { .. } => 5,
            AmendError::Busy(_) => 9,
            AmendError::Plan(plan) if plan.is_reserved_by_others() => 9,
            AmendError::Spread { .. } | AmendError::TooLong(_) => WRONG_COMMAND,
            AmendError::Extends { .. } | AmendError::Redundancy { .. } => WRONG_COMMAND,
            AmendError::Read(GetError::Range { .. }) => WRONG_COMMAND,
            AmendError::Plan(_) | AmendError::Write(_) | AmendError::Trim(_) => 6,
            AmendError::Contended { .. } => 8,
            _ => 1,
        };
    }
    match (error.downcast_ref::<GetError>(), error.downcast_ref::<PutError>()) {
        (Some(GetError::Busy(_)), _) | (_, Some(PutError::Busy(_))) => 9,
        (Some(GetError::Plan(plan)), _) | (_, Some(PutError::Plan(plan))) if plan.is_reserved_by_others() => {
            9
        }
        (Some(GetError::Plan(_)), _) => 6,
        (Some(GetError::Read(_)), _) => 5,
        (Some(GetError::Range { .. }), _) => WRONG_COMMAND,
        (Some(GetError::Changed { .. }), _) => 8,
        (_, Some(PutError::Plan(_) | PutError::Write(_))) => 6,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::plan::TrimError;

    #[test]
    fn a_cause_is_said_once() {
        let trim = TrimError::BelowTolerance { asked: 0.1, smallest: 0.37, tolerate: 2 };
        let error = anyhow::Error::from(AmendError::from(trim));
        assert_eq!(said(&error), error.to_string());
        assert_eq!(
            said(&anyhow::anyhow!("no such file").context("cannot read a")),
            "cannot read a: no such file"
        );
    }
}
