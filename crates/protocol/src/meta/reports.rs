//! What clients say that they do: accesses, and drains that go on. For whoever watches: nothing is decided by it, it is kept in
//! memory only, and apart from what is, so that it is taken whatever else is under way.

use super::registry::DEVICES_MAX;
use crate::{
    DeviceId, Time,
    message::{AccessTotals, DrainProgress, DrainState, MetaAnswer, MetaFault, Standing},
};
use std::collections::BTreeSet;

/// What clients have said since the server started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientReports {
    accesses: AccessTotals,
    /// What clients said of drains, and when; the latest last. No device is in two of them.
    drains: Vec<(Time, DrainProgress)>,
}

impl ClientReports {
    /// Adds what a client says that it did.
    pub fn account(&mut self, accesses: &AccessTotals) {
        self.accesses.add(accesses);
    }

    /// What clients did, as far as they said.
    pub fn accesses(&self) -> &AccessTotals {
        &self.accesses
    }

    /// Takes what a client says of a drain, in place of what was said of its devices before.
    ///
    /// # Errors
    /// For no devices, or more than a cluster can have.
    pub fn drain(&mut self, now: Time, progress: DrainProgress) -> Result<MetaAnswer, MetaFault> {
        let devices: BTreeSet<DeviceId> = progress.devices.iter().copied().collect();
        if devices.is_empty() || progress.devices.len() > DEVICES_MAX {
            return Err(MetaFault::Invalid(format!(
                "a drain of {} devices, 1 to {DEVICES_MAX} are possible",
                progress.devices.len()
            )));
        }
        self.drains.retain(|(_, other)| !other.devices.iter().any(|device| devices.contains(device)));
        self.drains.push((now, DrainProgress { devices: devices.into_iter().collect(), ..progress }));
        // Of devices that nobody has, the oldest word goes.
        let named = |drains: &[(Time, DrainProgress)]| -> usize {
            drains.iter().map(|(_, drain)| drain.devices.len()).sum()
        };
        while named(&self.drains) > DEVICES_MAX {
            self.drains.remove(0);
        }
        Ok(MetaAnswer::Done)
    }

    /// What was said of drains of devices that are `draining`.
    pub(super) fn drains(&self, now: Time, draining: &[Standing]) -> Vec<DrainState> {
        let goes_on = |device: &DeviceId| draining.iter().any(|standing| standing.device == *device);
        let told = self.drains.iter().filter_map(|(at, progress)| {
            let devices: Vec<DeviceId> = progress.devices.iter().copied().filter(goes_on).collect();
            let silent_ms = u64::try_from(now.since(*at).as_millis()).unwrap_or(u64::MAX);
            let progress = DrainProgress { devices, ..progress.clone() };
            (!progress.devices.is_empty()).then_some(DrainState { progress, silent_ms })
        });
        told.collect()
    }
}
