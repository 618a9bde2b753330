//! What a storage server does when it is refused because another has its name or a device of its: that may be over soon, as one that has ended
//! counts as alive for a while, and all that are known do when the metadata server starts.
//!
//! ```text
//!   refused ──a device, and there are others──▶ set aside ──joined──▶ served
//!      │                                            └──for long──▶ left alone, until it is added again
//!      └──else──▶ again ──for long──▶ the server ends
//! ```
//!
//! A device that is set aside may be a disk that has moved here: it joins once its old server does not count as alive. Or it is a copy of the
//! other server's disk, which may be out of date and must not take its place whenever that server is down. Nothing here tells the one
//! from the other but time.
//!
//! Left out: how it is learnt whether another server still has a device.

use crate::{DeviceId, Time, message::MetaFault};
use core::time::Duration;
use std::collections::BTreeMap;

/// See the module's head.
#[derive(Debug)]
pub struct Taken {
    taken_for: Duration,
    /// Since when the server as a whole is refused.
    refused_since: Option<Time>,
    /// Devices that were set aside, and when; none: left alone.
    aside: BTreeMap<DeviceId, Option<Time>>,
}

/// What is to be done about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefusal {
    /// Close this device, and register without it.
    SetAside(DeviceId),
    /// Register again after a pause.
    Again {
        /// Whether it is the first such refusal since the last registration.
        first: bool,
    },
    /// It will not be over.
    End,
}

impl Taken {
    /// For a server that was not refused yet: another may have what is its own for `taken_for`, before it is taken to keep it.
    pub fn new(taken_for: Duration) -> Self {
        Self { taken_for, refused_since: None, aside: BTreeMap::new() }
    }

    /// The server was registered.
    pub fn registered(&mut self) {
        self.refused_since = None;
    }

    /// It was refused at `now`, with these devices.
    pub fn refused(&mut self, now: Time, fault: &MetaFault, devices: &[DeviceId]) -> OnRefusal {
        match *fault {
            // The others are not to wait for it.
            MetaFault::DeviceTaken { device, .. } if devices.len() > 1 && devices.contains(&device) => {
                self.aside.insert(device, Some(now));
                OnRefusal::SetAside(device)
            }
            MetaFault::DeviceTaken { .. } | MetaFault::NodeTaken { .. } => {
                let first = self.refused_since.is_none();
                let since = *self.refused_since.get_or_insert(now);
                if now.since(since) > self.taken_for { OnRefusal::End } else { OnRefusal::Again { first } }
            }
            _ => OnRefusal::End,
        }
    }

    /// A device is served, whoever wanted that.
    pub fn joined(&mut self, device: DeviceId) {
        self.aside.remove(&device);
    }

    /// Devices that are set aside, or left alone since.
    pub fn aside(&self) -> usize {
        self.aside.len()
    }

    /// Those of them that are left alone from `now` on; each is told once.
    pub fn left_alone(&mut self, now: Time) -> Vec<DeviceId> {
        let over = |since: &mut Time| now.since(*since) > self.taken_for;
        let left = self.aside.iter_mut().filter_map(|(&device, since)| since.take_if(over).map(|_| device));
        left.collect()
    }

    /// Those that are to be served once no other server that is alive has them.
    pub fn to_ask_for(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.aside.iter().filter(|(_, since)| since.is_some()).map(|(&device, _)| device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    const S: u64 = 1_000_000_000;
    const OURS: [DeviceId; 2] = [DeviceId(1), DeviceId(2)];

    fn device_taken(device: u128) -> MetaFault {
        MetaFault::DeviceTaken { device: DeviceId(device), node: NodeId(9) }
    }

    fn taken() -> Taken {
        Taken::new(Duration::from_secs(30))
    }

    fn asked_for(taken: &Taken) -> Vec<DeviceId> {
        taken.to_ask_for().collect()
    }

    #[test]
    fn one_of_several_is_set_aside_asked_for_and_left_alone_in_the_end() {
        let mut taken = taken();
        let set_aside = OnRefusal::SetAside(DeviceId(2));
        assert_eq!(taken.refused(Time(5 * S), &device_taken(2), &OURS), set_aside);
        taken.registered();
        assert_eq!((asked_for(&taken), taken.left_alone(Time(35 * S))), (vec![DeviceId(2)], vec![]));
        assert_eq!(taken.left_alone(Time(35 * S + 1)), [DeviceId(2)]);
        assert_eq!((asked_for(&taken), taken.left_alone(Time(99 * S)), taken.aside()), (vec![], vec![], 1));
        // A person has it added; when another has it then, all begins anew.
        taken.joined(DeviceId(2));
        assert_eq!(taken.aside(), 0);
        assert_eq!(taken.refused(Time(100 * S), &device_taken(2), &OURS), set_aside);
        assert_eq!((asked_for(&taken), taken.left_alone(Time(130 * S))), (vec![DeviceId(2)], vec![]));
        taken.joined(DeviceId(2));
        assert_eq!((asked_for(&taken), taken.aside()), (vec![], 0));
    }

    #[test]
    fn the_last_device_and_the_name_are_waited_for() {
        let name =
            MetaFault::NodeTaken { node: NodeId(1), address: "elsewhere:1".to_owned(), device: DeviceId(1) };
        for (fault, devices) in [(device_taken(1), &OURS[..1]), (device_taken(7), &OURS), (name, &OURS)] {
            let mut taken = taken();
            let mut refused = |at: u64| taken.refused(Time(at), &fault, devices);
            assert_eq!(refused(S), OnRefusal::Again { first: true });
            assert_eq!(refused(31 * S), OnRefusal::Again { first: false });
            assert_eq!(refused(31 * S + 1), OnRefusal::End);
            // A registration in between is the end of that wait.
            taken.registered();
            assert_eq!(taken.refused(Time(90 * S), &fault, devices), OnRefusal::Again { first: true });
            assert_eq!(taken.aside(), 0);
        }
        assert_eq!(taken().refused(Time(0), &MetaFault::Invalid(String::new()), &OURS), OnRefusal::End);
    }
}
