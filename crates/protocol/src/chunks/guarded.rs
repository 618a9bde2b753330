//! How often, and how, a part is read at one state ([`Gather`](super::Gather)), where some chunks are late and some parity lacks changes.
//!
//! ```text
//!   without the late ones ──▶ with them ──▶ parity as it is ──▶ it cannot be had
//!                               │     ▲
//!                               └─────┘ parity lacks changes: for a while
//! ```
//!
//! Devices that the read has waited for in vain are asked only where the others do not suffice. Parity that lacks changes, as its node says,
//! would stand in for a chunk that is only late: where the others do not suffice the read waits for both, and takes then what is there. Not
//! so where changes were ended for this read: what each chunk lacks is known.

use crate::{DeviceId, Time, read::ReadError};
use core::time::Duration;
use std::collections::BTreeSet;

/// Between two looks at chunks of which some lack changes. Picked by eye: they are brought forward in some milliseconds.
const PAUSE: Duration = Duration::from_millis(100);
/// So long they are looked at, unless the caller has less patience. Who is late answers each time for as long as the caller waits for it; one
/// that says nothing at all in that time is lost.
const LOOKS_FOR: Duration = Duration::from_secs(2);

/// The reads of one part; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    spares: bool,
    is_level: bool,
    looks_until: Time,
}

impl Guarded {
    /// Of a caller with so much patience; `spares` where some devices are late, `ended` where changes were ended for it.
    pub fn new(now: Time, patience: Duration, spares: bool, ended: bool) -> Self {
        Self { spares, is_level: !ended, looks_until: now + LOOKS_FOR.min(patience) }
    }

    /// Whether it is read without devices that are late.
    pub fn spares(&self) -> bool {
        self.spares
    }

    /// Whether parity that lacks changes, as its node says, is not read.
    pub fn is_level(&self) -> bool {
        self.is_level
    }

    /// It failed by this error: the pause until it is read once more, which may be none, or nothing where it cannot be had. `parity` are the
    /// devices of parity chunks.
    pub fn failed(&mut self, now: Time, error: &ReadError, parity: &BTreeSet<DeviceId>) -> Option<Duration> {
        if core::mem::replace(&mut self.spares, false) {
            return Some(Duration::ZERO);
        }
        let any_lacks = any_lacks(error, parity);
        if self.is_level && any_lacks && now < self.looks_until {
            return Some(PAUSE);
        }
        let may_help = any_lacks || matches!(error, ReadError::Unsettled { .. });
        (core::mem::replace(&mut self.is_level, false) && may_help).then_some(Duration::ZERO)
    }
}

/// Whether it may be because some of this parity was not read.
fn any_lacks(error: &ReadError, parity: &BTreeSet<DeviceId>) -> bool {
    let ReadError::NotEnough { failed, .. } = error else { return false };
    failed.iter().any(|(device, cause)| cause.lacks_changes() && parity.contains(device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        SegmentId,
        message::{Fault, NodeFault},
        read::Cause,
    };

    const DATA: DeviceId = DeviceId(1);
    const PARITY: DeviceId = DeviceId(2);
    const PATIENCE: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Time {
        Time(0) + Duration::from_millis(millis)
    }

    fn not_enough(device: DeviceId, lacks: bool) -> ReadError {
        let lacks_changes = NodeFault::LacksChanges { device, segment: SegmentId(1) };
        let gone = NodeFault::UnknownDevice(device);
        let cause = Cause::Fault(Fault::Node(if lacks { lacks_changes } else { gone }));
        ReadError::NotEnough {
            missing: 1,
            originals: 2,
            reachable: 0,
            devices: 3,
            failed: vec![(device, cause)],
        }
    }

    fn failed(guarded: &mut Guarded, millis: u64, error: &ReadError) -> Option<Duration> {
        guarded.failed(at(millis), error, &BTreeSet::from([PARITY]))
    }

    #[test]
    fn parity_that_lacks_changes_is_waited_for_before_it_is_taken_as_it_is() {
        for (patience, until) in [(PATIENCE, 2000), (Duration::from_millis(300), 300)] {
            let mut guarded = Guarded::new(at(0), patience, true, false);
            let lacks = not_enough(PARITY, true);
            assert!(guarded.spares() && guarded.is_level());
            assert_eq!(failed(&mut guarded, 10, &lacks), Some(Duration::ZERO), "with those that are late");
            for now in [10, until - 1] {
                assert!(!guarded.spares() && guarded.is_level());
                assert_eq!(failed(&mut guarded, now, &lacks), Some(PAUSE));
            }
            assert_eq!(failed(&mut guarded, until, &lacks), Some(Duration::ZERO));
            assert!(!guarded.is_level());
            assert_eq!(failed(&mut guarded, until, &lacks), None);
        }
    }

    #[test]
    fn what_no_parity_would_help_fails_at_once() {
        for error in [not_enough(PARITY, false), not_enough(DATA, true)] {
            let mut guarded = Guarded::new(at(0), PATIENCE, false, false);
            assert_eq!(failed(&mut guarded, 0, &error), None, "{error}");
        }
        // It may be for what was not read.
        let mut guarded = Guarded::new(at(0), PATIENCE, false, false);
        let unsettled = ReadError::Unsettled { attempts: 16 };
        assert_eq!(failed(&mut guarded, 0, &unsettled), Some(Duration::ZERO));
        assert_eq!((guarded.is_level(), failed(&mut guarded, 0, &unsettled)), (false, None));
        // Who has ended its changes has read it as it is.
        let mut guarded = Guarded::new(at(0), PATIENCE, false, true);
        assert!(!guarded.is_level());
        assert_eq!(failed(&mut guarded, 0, &not_enough(PARITY, true)), None);
    }
}
