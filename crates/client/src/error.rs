//! Errors of the client library, one enum for each operation, said from the caller's side.

use crate::{AmendError, Busy};
use std::{io, time::Duration};
use steadfast_protocol::{
    DeviceId,
    layout::SegmentLayout,
    message::{Fault, MetaFault},
    plan::{PlanError, TooLong},
    policy::Policy,
    read::ReadError,
    write::WriteError,
};

/// Why the cluster's metadata could not be asked or changed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The metadata server cannot be reached: nothing was changed.
    #[error("cannot reach the cluster at {address}: {cause}. Is it running, and is the address right?")]
    Unreachable {
        /// Where it was sought.
        address: String,
        /// What went wrong last.
        cause: String,
    },
    /// A server answers there that is not the metadata server: nothing was changed.
    #[error("a storage server answers at {address}, not the metadata server: give the address of that")]
    NotMeta {
        /// Where it was sought.
        address: String,
    },
    /// The metadata server stopped answering: whether the change was made is unknown. Asking again is safe.
    #[error("the cluster at {address} did not answer for {} s; the change may or may not have been made", waited.as_secs())]
    Unknown {
        /// Where it was asked.
        address: String,
        /// For how long.
        waited: Duration,
    },
    /// The metadata server refused.
    #[error(transparent)]
    Refused(MetaFault),
    /// More than one message to the metadata server holds: nothing was changed.
    #[error(
        "{bytes} bytes of layouts do not fit one message to the metadata server: store less in one object"
    )]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
    },
    /// The metadata server answered with something else than was asked for.
    #[error("the metadata server broke the protocol: {0}")]
    Protocol(String),
    /// No registered device has this name.
    #[error("no device {0} in this cluster; `steadfast status` names them")]
    UnknownDevice(DeviceId),
    /// A storage server does not take a directory of its machine for a device, or not with that capacity: another is to be named.
    #[error("storage server {address}: no device was added in {dir}: {detail}")]
    NotAdded {
        /// Which.
        address: String,
        /// The directory.
        dir: String,
        /// Why.
        detail: String,
    },
    /// A storage server could not be reached or could not do what was asked.
    #[error("storage server {address}: {cause}")]
    Node {
        /// Which.
        address: String,
        /// Why.
        cause: String,
    },
}

impl ClientError {
    /// Whether a change that failed so may have been made all the same: nobody answered, nobody understood the answer, or the store
    /// failed while it wrote.
    pub(crate) fn leaves_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Protocol(_) | Self::Refused(MetaFault::Store(_)))
    }
}

/// Why an object could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// Where it lies could not be found out.
    #[error(transparent)]
    Metadata(#[from] ClientError),
    /// Too little of it can be had now. It is not lost for that: try again when servers have returned.
    #[error("cannot read the object now: {}{}", .0, where_to_look(.0))]
    Read(#[from] ReadError),
    /// The devices that hold it cannot serve it as wished.
    #[error("the wish cannot be met: {0}")]
    Plan(#[from] PlanError),
    /// The bandwidth wished for is not to be had now.
    #[error("the wish cannot be met now: {0}")]
    Busy(Busy),
    /// The layout says something impossible.
    #[error("the layout of segment {} cannot be used: {detail}", segment.segment)]
    Layout {
        /// The layout.
        segment: Box<SegmentLayout>,
        /// What is wrong.
        detail: String,
    },
    /// The wanted range begins behind the object's end.
    #[error("the range begins at byte {first}, but the object has {size} bytes")]
    Range {
        /// First byte wanted.
        first: u64,
        /// Bytes in the object.
        size: u64,
    },
    /// The object was replaced or removed while it was read: the rest of the version that was begun is gone. Or it was
    /// replaced again and again, each time before any of it could be read.
    #[error("{bucket}/{key} changed {}: read it again", when(*handed))]
    Changed {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// Bytes that the sink was given; 0 where there is none, as of an object that was opened.
        handed: u64,
    },
    /// The caller's sink failed.
    #[error("cannot write what was fetched: {0}")]
    Sink(io::Error),
}

/// Where to look for what a read lacked; nowhere, where nothing was missing.
fn where_to_look(error: &ReadError) -> &'static str {
    match error {
        ReadError::Unsettled { .. } => "",
        _ => ". `steadfast status` shows which servers are missing",
    }
}

fn when(handed: u64) -> String {
    match handed {
        0 => "while it was read".to_owned(),
        handed => format!("after {handed} bytes of it had been read"),
    }
}

/// Why an object could not be stored; nothing of it is visible, unless it is the commit that has no answer ([`ClientError::Unknown`]).
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The metadata server could not be asked, or refused.
    #[error(transparent)]
    Metadata(#[from] ClientError),
    /// No set of devices can hold it under the bucket's policy.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The bandwidth wished for is not to be had now.
    #[error("the wish cannot be met now: {0}")]
    Busy(Busy),
    /// The devices could not take enough of it.
    #[error("cannot store the object now: {0}")]
    Write(#[from] WriteError),
    /// The caller's source failed.
    #[error("cannot read what is to be stored: {0}")]
    Source(io::Error),
    /// The source gave fewer bytes than were announced: it changed meanwhile. Of one that has more nothing is read behind them; the program
    /// says so of files that have grown.
    #[error("announced {announced} bytes, but the source gave {given}; it changed while it was read")]
    SourceLength {
        /// As announced.
        announced: u64,
        /// As read.
        given: u64,
    },
    /// More bytes than an object of this bucket can have.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The same, whatever the bucket.
    #[error("{size} bytes are more than an object can have, which is {most}: store them as several objects")]
    Size {
        /// Bytes that were to be stored.
        size: u64,
        /// Bytes it can have.
        most: u64,
    },
    /// Where its blocks lie takes more than the metadata server keeps of one object.
    #[error(
        "where the blocks of {size} bytes lie takes {bytes} bytes of layouts, and an object may have {most}: store it as several \
         objects, or in a bucket on fewer devices (`devices=N`)"
    )]
    Layouts {
        /// Bytes of the object.
        size: u64,
        /// Bytes of its layouts, as far as they are known or by what the first ones took.
        bytes: u64,
        /// The most that they may take.
        most: u64,
    },
}

/// Why an open object could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Where it lies could not be found out.
    #[error(transparent)]
    Metadata(#[from] ClientError),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] GetError),
    /// It could not be changed. What was written and is not stored is kept for the next sync.
    #[error(transparent)]
    Write(#[from] AmendError),
    /// Objects of this bucket are not opened for writing, and keep their length.
    #[error(
        "objects in bucket `{bucket}`, whose policy is `{policy}`, keep their length, and are opened for reading only: \
         `steadfast put` stores one anew, and `put --range` changes bytes that it has. For files that grow, shrink and change \
         choose policy `parity` (`steadfast bucket create NAME --policy parity`)"
    )]
    Policy {
        /// The bucket.
        bucket: String,
        /// Its policy.
        policy: Policy,
    },
    /// A write through a handle that was opened for reading.
    #[error("{bucket}/{key} was opened for reading alone: open it for writing")]
    ReadOnly {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
}

impl From<Fault> for ClientError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Meta(fault) => Self::Refused(fault),
            other => Self::Protocol(other.to_string()),
        }
    }
}
