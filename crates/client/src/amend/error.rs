//! Why an object could not be changed where it is.

use crate::{Busy, ClientError, GetError};
use std::io;
use steadfast_protocol::{
    DeviceId, SegmentId,
    message::MetaFault,
    plan::{PlanError, TooLong, TrimError, Unmade},
    write::WriteError,
};

/// Why an object could not be changed; it is what it was before, but for parts of a change in place (policy `parity`) that were
/// made before it failed. After [`ClientError::Unknown`] the change may have been made, or be made yet: look the object up.
#[derive(Debug, thiserror::Error)]
pub enum AmendError {
    /// The metadata server could not be asked, or refused.
    #[error(transparent)]
    Metadata(#[from] ClientError),
    /// What is there could not be read.
    #[error(transparent)]
    Read(#[from] GetError),
    /// No set of devices can hold it under the bucket's policy.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The bandwidth wished for is not to be had now.
    #[error("the wish cannot be met now: {0}")]
    Busy(Busy),
    /// A wish that a change cannot grant.
    #[error(
        "a change of some bytes leaves an object on the devices where it lies: a wish for {wish} is granted when it is put \
         whole"
    )]
    Spread {
        /// `devices` or `sites`.
        wish: &'static str,
    },
    /// The devices could not take enough of it.
    #[error("cannot change the object now: {0}")]
    Write(#[from] WriteError),
    /// The caller's source failed, or became shorter while it was read.
    #[error("cannot read what is to be stored: {0}")]
    Source(io::Error),
    /// The bytes would end behind the object's end.
    #[error(
        "bytes {offset} to {} do not lie within the object's {size}: an update changes bytes that are there. Put the whole \
         object to make it longer; one in a bucket of policy `parity` is made longer by `steadfast write`",
        offset.saturating_add(length.saturating_sub(1))
    )]
    Extends {
        /// First byte to change.
        offset: u64,
        /// Bytes to change.
        length: u64,
        /// Bytes in the object.
        size: u64,
    },
    /// More bytes than a file can have: nothing was stored.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// Each time another writer was there first.
    #[error("others changed the object {attempts} times while this change was made; try again")]
    Contended {
        /// How often it was begun.
        attempts: u32,
    },
    /// The metadata server did not hear of it for as long as its lease, again and again; of a change in place any part may have been
    /// made.
    #[error("the lease of this change ended before it was made; try again")]
    LeaseOver,
    /// Too few of the nodes that have a segment answer.
    #[error(
        "so few nodes of segment {segment} answer that others could still change it in place: `steadfast status` shows which \
         servers are missing"
    )]
    Unfenced {
        /// The segment.
        segment: SegmentId,
    },
    /// Chunks of a segment lack changes, and those that may make up for it, or have them, do not answer: stored anew now, it would lack the
    /// changes for good.
    #[error(
        "disks may have lost changes of segment {segment}, and devices that may make up for that do not answer ({}): `steadfast status` \
         shows which servers are missing. `steadfast device remove --lost DEVICE` says of a dead disk that nobody is to wait for it",
        named(awaited)
    )]
    LacksChanges {
        /// The segment.
        segment: SegmentId,
        /// Devices that do not answer.
        awaited: Vec<DeviceId>,
    },
    /// So few blocks would not survive what the bucket, or the object, promises.
    #[error("refused: {0}")]
    Trim(#[from] TrimError),
    /// Not a redundancy.
    #[error("a redundancy of {asked} is out of range: it takes 0 to {most}")]
    Redundancy {
        /// As given.
        asked: f64,
        /// The largest that is allowed.
        most: f64,
    },
    /// Copies and stripes have no redundancy to choose.
    #[error(
        "the object is stored as {what}, of which there are as many as its bucket's policy says: only coded objects can be \
         tuned"
    )]
    NotCoded {
        /// `copies` or `a stripe`.
        what: &'static str,
    },
    /// A fixed code has no redundancy to choose.
    #[error(
        "the object is stored as {chunks} chunks, any {data} of which give it: a bucket of policy `parity` has one code for \
         all its objects; put the object into a bucket of another policy for another redundancy"
    )]
    Fixed {
        /// n.
        chunks: u32,
        /// k.
        data: u32,
    },
}

impl AmendError {
    /// Whether another writer was first: begun again on the new version it may succeed.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, AmendError::Metadata(ClientError::Refused(MetaFault::Conflict { .. })))
    }

    /// The error by what is to be done about it, where a device stalls or none does: one that was planned for without enough of the others
    /// may serve again soon.
    pub(super) fn unmade(&self, any_stalls: bool) -> Unmade {
        match self {
            AmendError::LeaseOver => Unmade::LeaseOver,
            AmendError::LacksChanges { .. } => Unmade::LacksChanges,
            AmendError::Plan(PlanError::Unmet { .. }) => Unmade::LacksDevices { stalled: any_stalls },
            // A cluster may be full, and take changes that need no room.
            AmendError::Plan(PlanError::Room { .. } | PlanError::Space { .. })
            | AmendError::Write(
                WriteError::NotEnoughDomains { .. } | WriteError::NoPlace { .. } | WriteError::Full { .. },
            ) => Unmade::LacksDevices { stalled: false },
            error if error.is_conflict() => Unmade::Overtaken,
            _ => Unmade::Other,
        }
    }
}

fn named(devices: &[DeviceId]) -> String {
    devices.iter().map(DeviceId::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::Version;

    #[test]
    fn an_error_is_known_by_what_is_to_be_done_about_it() {
        let (bucket, key) = ("data".to_owned(), "object".to_owned());
        let conflict = MetaFault::Conflict { bucket, key, base: Version(1), current: None };
        let lacks = AmendError::LacksChanges { segment: SegmentId(1), awaited: Vec::new() };
        let unmet = || AmendError::Plan(PlanError::Unmet { domain: "nodes", needed: 3, available: 2 });
        let few = WriteError::NotEnoughDomains { available: 2, needed: 3, failed: 1, devices: 3 };
        let room = PlanError::Room { domain: "nodes", needed: 3, available: 2, bytes: 4096 };
        let space = PlanError::Space { needed_bytes: 8192, free_bytes: 4096 };
        let full = WriteError::Full { full: 1, devices: 3, confirmed: 0, needed: 3, block_bytes: 4096 };
        let too_few = PlanError::TooFew { wish: "sites", wanted: 3, available: 2 };
        let no_place = WriteError::NoPlace { needed: 3, available: 2, lost: None, failed: Vec::new() };
        let [stalled, gone] = [true, false].map(|stalled| Unmade::LacksDevices { stalled });
        for (error, any_stalls, why) in [
            (AmendError::Metadata(ClientError::Refused(conflict)), true, Unmade::Overtaken),
            (AmendError::LeaseOver, true, Unmade::LeaseOver),
            (lacks, true, Unmade::LacksChanges),
            (unmet(), true, stalled),
            (unmet(), false, gone),
            // Those were planned for and failed meanwhile, whatever the others do.
            (AmendError::Write(few), true, gone),
            (AmendError::Write(no_place), true, gone),
            // What is there may be changed where it lies.
            (AmendError::Plan(room), true, gone),
            (AmendError::Plan(space), true, gone),
            (AmendError::Write(full), true, gone),
            (AmendError::Plan(too_few), true, Unmade::Other),
            (AmendError::Contended { attempts: 1 }, true, Unmade::Other),
        ] {
            assert_eq!(error.unmade(any_stalls), why, "{error}");
        }
    }

    #[test]
    fn who_is_awaited_is_named() {
        let awaited = vec![DeviceId(10), DeviceId(11)];
        let said = AmendError::LacksChanges { segment: SegmentId(1), awaited: awaited.clone() }.to_string();
        assert!(said.contains(&format!("({}, {})", awaited[0], awaited[1])), "{said}");
    }

    #[test]
    fn bytes_behind_all_numbers_are_named() {
        let (offset, length, size) = (u64::MAX - 1, 5, 7);
        let said = AmendError::Extends { offset, length, size }.to_string();
        assert!(said.starts_with("bytes 18446744073709551614 to 18446744073709551615 do not lie"), "{said}");
    }
}
