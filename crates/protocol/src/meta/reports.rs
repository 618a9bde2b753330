//! What clients say that they do: accesses, and drains that go on. For whoever watches: the metadata server decides nothing by it, and
//! clients only for whom they wait no more. It is kept in memory only, and apart from what is, so that it is taken whatever else is under
//! way.

use super::registry::DEVICES_MAX;
use crate::{
    DeviceId, Time,
    message::{AccessTotals, DrainPhase, DrainProgress, DrainState, MetaAnswer, MetaFault, Standing},
};
use std::collections::BTreeSet;

/// What clients have said since the server started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientReports {
    accesses: AccessTotals,
    /// What clients said of drains; the latest last. No device is in two of them.
    drains: Vec<Told>,
}

/// What a client said of a drain.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    at: Time,
    progress: DrainProgress,
    /// How its devices stood when it was over, as far as is known: what arrived on them since is not moved.
    over: Vec<Standing>,
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

    /// Takes what a client says of a drain, in place of what was said of its devices before; `standings`: of those that are draining
    /// now, as far as is known.
    ///
    /// # Errors
    /// For no devices, or more than a cluster can have.
    pub fn drain(
        &mut self,
        now: Time,
        progress: DrainProgress,
        standings: &[Standing],
    ) -> Result<MetaAnswer, MetaFault> {
        let devices: BTreeSet<DeviceId> = progress.devices.iter().copied().collect();
        if devices.is_empty() || progress.devices.len() > DEVICES_MAX {
            return Err(MetaFault::Invalid(format!(
                "a drain of {} devices, 1 to {DEVICES_MAX} are possible",
                progress.devices.len()
            )));
        }
        self.drains.retain(|told| !told.progress.devices.iter().any(|device| devices.contains(device)));
        let is_over = progress.phase == DrainPhase::Over;
        let left = standings.iter().filter(|standing| is_over && devices.contains(&standing.device));
        let over = left.copied().collect();
        let progress = DrainProgress { devices: devices.into_iter().collect(), ..progress };
        self.drains.push(Told { at: now, progress, over });
        // Of devices that nobody has, the oldest word goes.
        let named =
            |drains: &[Told]| -> usize { drains.iter().map(|told| told.progress.devices.len()).sum() };
        while named(&self.drains) > DEVICES_MAX {
            self.drains.remove(0);
        }
        Ok(MetaAnswer::Done)
    }

    /// A device takes data again: what was said of its drain is not true of another one.
    pub fn takes_data(&mut self, device: DeviceId) {
        for told in &mut self.drains {
            told.progress.devices.retain(|&drained| drained != device);
            told.over.retain(|standing| standing.device != device);
        }
        self.drains.retain(|told| !told.progress.devices.is_empty());
    }

    /// Devices are served: who repaired them said that they are lost, which they are not, or not any more.
    pub fn are_back(&mut self, devices: &[(DeviceId, u64)]) {
        for told in self.drains.iter_mut().filter(|told| told.progress.lost) {
            told.progress.devices.retain(|lost| devices.iter().all(|(device, _)| device != lost));
        }
        self.drains.retain(|told| !told.progress.devices.is_empty());
    }

    /// What was said of drains of devices that are `draining`. One on whose devices puts have committed since it was over is not: somebody
    /// is to go on with it.
    pub(super) fn drains(&self, now: Time, draining: &[Standing]) -> Vec<DrainState> {
        let goes_on = |device: &DeviceId| draining.iter().any(|standing| standing.device == *device);
        let took = |over: &Standing| {
            let now = draining.iter().find(|standing| standing.device == over.device);
            now.is_some_and(|now| now.arrivals != over.arrivals)
        };
        let told = self.drains.iter().filter_map(|Told { at, progress, over }| {
            let devices: Vec<DeviceId> = progress.devices.iter().copied().filter(goes_on).collect();
            let silent_ms = u64::try_from(now.since(*at).as_millis()).unwrap_or(u64::MAX);
            let phase = if over.iter().any(took) { DrainPhase::Moving } else { progress.phase };
            let progress = DrainProgress { devices, phase, ..progress.clone() };
            (!progress.devices.is_empty()).then_some(DrainState { progress, silent_ms })
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_not_over_once_a_late_put_has_committed_on_its_devices() {
        let standing = |device, arrivals| Standing { device: DeviceId(device), arrivals };
        let over = DrainProgress {
            devices: vec![DeviceId(1), DeviceId(2)],
            phase: DrainPhase::Over,
            ..DrainProgress::default()
        };
        let mut reports = ClientReports::default();
        let standings = [standing(1, 4), standing(2, 0), standing(3, 9)];
        reports.drain(Time(5), over.clone(), &standings).unwrap();
        let phase = |reports: &ClientReports, draining: &[Standing]| {
            let drains = reports.drains(Time(5), draining);
            assert_eq!(drains.len(), 1);
            drains[0].progress.phase
        };
        assert_eq!(phase(&reports, &standings), DrainPhase::Over);
        // One of them took no more and was removed, and what others take is theirs.
        assert_eq!(phase(&reports, &[standing(1, 4), standing(3, 10)]), DrainPhase::Over);
        assert_eq!(phase(&reports, &[standing(1, 4), standing(2, 1)]), DrainPhase::Moving);
        // Who goes on with it says so, and that it is over with that, too.
        let late = [standing(1, 4), standing(2, 1)];
        reports.drain(Time(5), DrainProgress { phase: DrainPhase::Settling, ..over.clone() }, &late).unwrap();
        assert_eq!(phase(&reports, &[standing(1, 4), standing(2, 2)]), DrainPhase::Settling);
        reports.drain(Time(5), over, &late).unwrap();
        assert_eq!(phase(&reports, &late), DrainPhase::Over);
    }
}
