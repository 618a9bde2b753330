//! What a host has of a device's room for changes that are held ([`steadfast_disk::device::Device::reserve`]).

use steadfast_disk::{LaneHandle, Op, Priority, device::Spend};

/// A host's part of it; dropped, nothing is left reserved, and nobody kept from reserving.
pub(super) struct DeviceRoom {
    owner: u64,
    lane: LaneHandle,
    /// Whether the device was ever asked for any, or found too little.
    used: bool,
    /// Whether the device keeps others from reserving, as this one found too little.
    waits: bool,
}

impl DeviceRoom {
    /// `owner` is the host's stream at the lane, which no other has.
    pub(super) fn new(owner: u64, lane: LaneHandle) -> Self {
        Self { owner, lane, used: false, waits: false }
    }

    pub(super) fn reserve(&mut self, least: u64, bytes: u64) -> Op {
        self.used = true;
        Op::Reserve { owner: self.owner, least, bytes }
    }

    /// What a change is to have of it; one that finds too little leaves a mark at the device.
    pub(super) fn spend(&mut self, bytes: u64) -> Spend {
        self.used = true;
        Spend { owner: self.owner, bytes }
    }

    /// A change found too little.
    pub(super) fn waits(&mut self) {
        self.waits = true;
    }

    /// So much is not needed, and others wait still, or not.
    pub(super) fn give_back(&mut self, bytes: u64, others_wait: bool) -> Option<Op> {
        let is_over = self.waits && !others_wait;
        self.waits &= others_wait;
        (bytes > 0 || is_over).then_some(Op::Unreserve { owner: self.owner, bytes })
    }
}

impl Drop for DeviceRoom {
    fn drop(&mut self) {
        if self.used {
            let op = Op::Unreserve { owner: self.owner, bytes: u64::MAX };
            self.lane.submit(self.owner, Priority::Normal, op, Box::new(drop));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use steadfast_disk::{ClusterId, Device, DeviceId, FormatOptions, Lane, LaneConfig, media::CrashMedium};

    /// The device is told that nobody waits once, when the last that did does not.
    #[test]
    fn a_mark_is_taken_back_once() {
        let medium = Arc::new(CrashMedium::new(2 << 20));
        Device::format(&*medium, FormatOptions::new(ClusterId(1), DeviceId(2))).unwrap();
        let lane = Lane::spawn(Device::open(medium, None).unwrap(), LaneConfig::default()).unwrap();
        let mut room = DeviceRoom::new(3, lane);
        let told = |op: Option<Op>| op.map(|op| matches!(op, Op::Unreserve { owner: 3, bytes: 0 }));
        assert_eq!(told(room.give_back(0, false)), None, "nothing waited");
        room.waits();
        assert_eq!(told(room.give_back(0, true)), None, "others wait still");
        assert_eq!(told(room.give_back(0, false)), Some(true));
        assert_eq!(told(room.give_back(0, false)), None);
        assert_eq!(told(room.give_back(8, true)), Some(false), "room is given back whoever waits");
    }
}
