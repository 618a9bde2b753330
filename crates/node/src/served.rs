//! The devices that a node serves now: they come and go while it runs.

use crate::{devices::ServedDevice, identity, roster::Roster};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};
use steadfast_protocol::DeviceId;
use tokio::task::AbortHandle;

/// How long a removed device is waited for. Picked by eye: more than its lane takes to close
/// ([`steadfast_disk::LaneConfig::shutdown_wait_max`]), less than a node may be silent.
const LETTING_GO: Duration = Duration::from_secs(3);

/// The devices of a node. Whoever uses one holds it on, so that one that is dismissed ends when nobody does.
pub(crate) struct Served {
    devices: RwLock<BTreeMap<DeviceId, Arc<ServedDevice>>>,
    /// What is done for them while nobody asks: it holds them too.
    chores: Mutex<BTreeMap<DeviceId, Vec<AbortHandle>>>,
    roster: Arc<Roster>,
}

impl Served {
    pub(crate) fn new(devices: Vec<ServedDevice>, roster: Arc<Roster>) -> Self {
        let devices = devices.into_iter().map(|device| (device.id, Arc::new(device))).collect();
        Self { devices: RwLock::new(devices), chores: Mutex::default(), roster }
    }

    pub(crate) fn get(&self, device: DeviceId) -> Option<Arc<ServedDevice>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).get(&device).cloned()
    }

    /// All of them as they are now.
    pub(crate) fn all(&self) -> Vec<Arc<ServedDevice>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Their names and capacities in bytes, as they are registered.
    pub(crate) fn record(&self) -> Vec<(DeviceId, u64)> {
        self.all().iter().map(|device| entry(device)).collect()
    }

    pub(crate) fn insert(&self, device: Arc<ServedDevice>) {
        self.devices.write().unwrap_or_else(PoisonError::into_inner).insert(device.id, device);
    }

    /// A device's chores run: they end with the device.
    pub(crate) fn attended(&self, device: DeviceId, chores: Vec<AbortHandle>) {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner).insert(device, chores);
    }

    /// Serves a device no more: it was removed from the cluster. What it was asked for ends, and its directory is free.
    pub(crate) async fn dismiss(&self, device: DeviceId) {
        let gone = self.devices.write().unwrap_or_else(PoisonError::into_inner).remove(&device);
        let Some(gone) = gone else { return };
        let chores = self.chores.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
        chores.into_iter().flatten().for_each(|chore| chore.abort());
        let roster = self.roster.clone();
        let closing = tokio::task::spawn_blocking(move || {
            close(&gone);
            let dir = gone.dir.display();
            // The list first, which lies on other disks: this one may be the reason why it was removed.
            if let Err(error) = roster.remove(device) {
                tracing::error!(%device, %dir, %error, "the device is still listed");
            }
            if let Err(error) = identity::retire(&gone.dir, device) {
                tracing::error!(%device, %dir, %error, "nothing in its directory says that it was removed");
            }
            tracing::warn!(%device, %dir, "the device was removed from the cluster and is served no more");
        });
        // The others are not to wait for a disk that does not answer.
        match tokio::time::timeout(LETTING_GO, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%device, %error, "the device was not closed"),
            Err(_) => tracing::error!(%device, "the disk of a removed device does not answer: left behind"),
        }
    }
}

/// As a device is registered.
pub(crate) fn entry(device: &ServedDevice) -> (DeviceId, u64) {
    (device.id, device.lane.status().usage.capacity)
}

/// Flushes and closes a device. Blocks.
pub(crate) fn close(device: &ServedDevice) {
    // An emulated stall ends with it, so that its thread and its lock do.
    if let Some(control) = &device.emulation {
        control.redraw(steadfast_disk::EmulationSpec::OFF);
    }
    device.lane.shutdown();
}
