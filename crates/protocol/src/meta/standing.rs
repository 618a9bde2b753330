//! Devices that leave: draining ones take no new data, removed ones are gone for good.
//!
//! ```text
//!   Active ──set(Draining)──▶ Draining ──set(Removed), holds nothing──▶ Removed, for good
//!     ▲                          │
//!     └────────set(Active)───────┘
//! ```
//!
//! Whether a device holds nothing takes a look at every segment, far more than one transaction may do. So the asker looks
//! (`holdings`), and each commit that still stores on a draining device is counted: a removal names the count from before
//! the look, and is refused where the count has moved. What is stored on a device while it is active is not counted, so the
//! count moves when it becomes active, and goes on from there when it drains again: whoever looked before is refused.
//!
//! A device that its server names no more, for its disk is dead, is known until it is removed: what it held is repaired first,
//! in whatever order the operator goes about it.
//!
//! Invariants: a device has one record here at most; its count only grows; a removed one is not registered, so that no layout
//! can list it anew. A device whose record is damaged drains, and its count is above all that anybody has looked at.

use super::{
    keys, registry,
    view::{Txn, View, ViewError},
};
use crate::{
    DeviceId,
    message::{DeviceState, MetaAnswer, MetaFault, REMOVED_MAX, Standing},
};
use std::collections::BTreeSet;

/// Arrivals of a device that nobody has counted: more than there ever were, and room for those to come, of all devices together.
const UNCOUNTED: u64 = 1 << 48;

/// Makes a device what it is to be. Saying again what it is succeeds.
pub(super) fn set(
    txn: &mut Txn<'_>,
    device: DeviceId,
    state: DeviceState,
    arrivals: u64,
) -> Result<MetaAnswer, MetaFault> {
    if is_removed(txn, device)? {
        let again = state == DeviceState::Removed;
        return if again { Ok(MetaAnswer::Done) } else { Err(MetaFault::DeviceRemoved(device)) };
    }
    if !registry::is_known(txn, device)? {
        return Err(MetaFault::NoDevice(device));
    }
    let before = read(txn, device, &keys::draining(device))?;
    match (before, state) {
        (None, DeviceState::Active) => {}
        (Some(before), DeviceState::Active) => {
            let next = Standing { arrivals: before.arrivals + 1, ..before };
            txn.delete(keys::draining(device));
            keys::write(txn, keys::returned(device), &next);
        }
        (None, DeviceState::Draining) => {
            let goes_on = read(txn, device, &keys::returned(device))?;
            txn.delete(keys::returned(device));
            let standing = goes_on.unwrap_or(Standing { device, arrivals: 0 });
            keys::write(txn, keys::draining(device), &standing);
        }
        (Some(_), DeviceState::Draining) => {}
        (None, DeviceState::Removed) => return Err(MetaFault::DeviceActive(device)),
        (Some(before), DeviceState::Removed) if before.arrivals != arrivals => {
            return Err(MetaFault::DeviceTook { device, arrivals: before.arrivals });
        }
        (Some(_), DeviceState::Removed) => {
            registry::remove(txn, device)?;
            txn.delete(keys::draining(device));
            keys::write(txn, keys::removed(device), &());
        }
    }
    Ok(MetaAnswer::Done)
}

/// Whether a device may be registered.
pub(super) fn check_here(view: &dyn View, device: DeviceId) -> Result<(), MetaFault> {
    if is_removed(view, device)? { Err(MetaFault::DeviceRemoved(device)) } else { Ok(()) }
}

/// Those of these devices that were removed.
pub(super) fn removed_of(view: &dyn View, devices: &[DeviceId]) -> Result<MetaAnswer, MetaFault> {
    if devices.len() > REMOVED_MAX {
        let given = devices.len();
        return Err(MetaFault::Invalid(format!(
            "{given} devices asked about, at most {REMOVED_MAX} are allowed"
        )));
    }
    let mut removed = Vec::new();
    for &device in devices {
        if is_removed(view, device)? {
            removed.push(device);
        }
    }
    Ok(MetaAnswer::RemovedDevices(removed))
}

/// Known devices that are draining.
pub(super) fn draining(view: &dyn View) -> Result<Vec<Standing>, ViewError> {
    let (from, to) = keys::all_draining();
    let entries = view.scan(&from, &to, registry::KNOWN_MAX)?;
    entries.iter().map(|(key, value)| Ok(stored(view, keys::device_of(key)?, key, value))).collect()
}

fn read(view: &dyn View, device: DeviceId, key: &[u8]) -> Result<Option<Standing>, ViewError> {
    Ok(view.get(key)?.map(|value| stored(view, device, key, &value)))
}

fn stored(view: &dyn View, device: DeviceId, key: &[u8], value: &[u8]) -> Standing {
    keys::whole(view, "standing", key, value).unwrap_or(Standing { device, arrivals: UNCOUNTED })
}

/// A commit stores new blocks on these devices: those that are draining count it.
pub(super) fn arrived(txn: &mut Txn<'_>, devices: impl Iterator<Item = DeviceId>) -> Result<(), ViewError> {
    let leaving = draining(txn)?;
    if leaving.is_empty() {
        return Ok(());
    }
    let devices: BTreeSet<DeviceId> = devices.collect();
    for standing in leaving.into_iter().filter(|standing| devices.contains(&standing.device)) {
        let counted = Standing { arrivals: standing.arrivals + 1, ..standing };
        keys::write(txn, keys::draining(standing.device), &counted);
    }
    Ok(())
}

fn is_removed(view: &dyn View, device: DeviceId) -> Result<bool, ViewError> {
    Ok(view.get(&keys::removed(device))?.is_some())
}
