//! Devices that did not take their chunk a moment ago, so that a segment is planned without them.
//!
//! A parity segment's chunks have one device each, and where no spare is left one device that fails or falls silent ends the write of all.
//! It is planned again without that device, with fewer chunks where it must be ([`super::choose_for`]). What was learned holds for the
//! segments that follow, or each would wait for the same silence, as long as they can do without; and not for long, or a device that was late once would leave
//! a long put's segments with fewer chunks than they could have.

use crate::{DeviceId, Time, write::WriteError};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// So long a device is left out. Picked by eye: of a long put that meets a device that stalls a fifth of the time is waiting
/// ([`super::Plan::fewer`]).
const LEFT_OUT_FOR: Duration = Duration::from_secs(10);

/// Who is left out, and until when.
#[derive(Clone, Debug, Default)]
pub struct Unserved {
    until: BTreeMap<DeviceId, Time>,
}

impl Unserved {
    /// A write failed at `now`: whether it may go well without devices that it was not `tried` without before; it has been from now on.
    pub fn learn(&mut self, now: Time, error: &WriteError, tried: &mut BTreeSet<DeviceId>) -> bool {
        self.until.retain(|_, until| *until > now);
        let (devices, before) = (error.unserved(), tried.len());
        self.until.extend(devices.iter().map(|&device| (device, now + LEFT_OUT_FOR)));
        tried.extend(devices);
        tried.len() > before
    }

    /// Who is left out at `now`.
    pub fn left_out(&self, now: Time) -> BTreeSet<DeviceId> {
        self.until.iter().filter(|(_, until)| **until > now).map(|(device, _)| *device).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::FailureKind;

    fn no_place(device: u128, cause: FailureKind) -> WriteError {
        WriteError::NoPlace {
            needed: 6,
            available: 5,
            lost: Some((DeviceId(device), cause)),
            failed: vec![DeviceId(device)],
        }
    }

    #[test]
    fn each_device_is_worth_one_more_try_and_is_forgotten_again() {
        let (mut unserved, mut tried) = (Unserved::default(), BTreeSet::new());
        let seconds = |seconds| Time(0) + Duration::from_secs(seconds);
        assert!(unserved.learn(seconds(0), &no_place(7, FailureKind::Unreachable), &mut tried));
        assert!(!unserved.learn(seconds(1), &no_place(7, FailureKind::Unreachable), &mut tried), "again");
        assert!(unserved.learn(seconds(2), &no_place(8, FailureKind::Medium), &mut tried));
        // Another segment that failed for the same device is tried without it, too.
        assert!(unserved.learn(seconds(2), &no_place(8, FailureKind::Medium), &mut BTreeSet::new()));
        assert_eq!(unserved.left_out(seconds(3)), [7, 8].map(DeviceId).into());
        // From when it failed last.
        assert_eq!(unserved.left_out(seconds(11)), [8].map(DeviceId).into());
        assert!(unserved.left_out(seconds(12)).is_empty());
    }

    #[test]
    fn what_no_other_plan_mends_is_not_tried_again() {
        let (mut unserved, mut tried) = (Unserved::default(), BTreeSet::new());
        let none = WriteError::NoPlace { needed: 6, available: 5, lost: None, failed: Vec::new() };
        assert!(!unserved.learn(Time(0), &none, &mut tried));
        let silent = vec![DeviceId(1), DeviceId(2)];
        let stalled =
            WriteError::Stalled { confirmed: 4, needed: 6, patience: Duration::from_secs(1), silent };
        assert!(unserved.learn(Time(0), &stalled, &mut tried));
        assert_eq!(unserved.left_out(Time(1)).len(), 2);
    }
}
