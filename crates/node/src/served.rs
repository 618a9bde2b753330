//! The devices that a node serves now: they come and go while it runs.
//!
//! ```text
//!                ┌──────────── served ◀───────────────────────┐
//!                ▼                │                           │ joins again
//!   removed from the cluster      └─▶ another server has it: contested ──for long──▶ left alone
//! ```
//!
//! A contested device may be a disk whose old server counts as alive still: it joins once that one does not. Or it is a copy of the
//! other server's disk, which may be out of date and must not take its place whenever that server is down: after a while it waits until a
//! person has it added, or this server starts again. Nothing is done to it, and the node's other devices are served meanwhile.

use crate::{
    devices::ServedDevice,
    identity,
    roster::{Roster, resolve},
};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};
use steadfast_protocol::DeviceId;
use tokio::task::AbortHandle;

/// How long a device is waited for that is to be closed. Picked by eye: more than its lane takes to close
/// ([`steadfast_disk::LaneConfig::shutdown_wait_max`]), less than a node may be silent.
const LETTING_GO: Duration = Duration::from_secs(3);

/// The devices of a node. Whoever uses one holds it on, so that one that is taken out ends when nobody does.
pub(crate) struct Served {
    devices: RwLock<BTreeMap<DeviceId, Arc<ServedDevice>>>,
    /// What is done for them while nobody asks: it holds them too.
    chores: Mutex<BTreeMap<DeviceId, Vec<AbortHandle>>>,
    contested: Mutex<BTreeMap<DeviceId, Contested>>,
    roster: Arc<Roster>,
}

/// A device that another server has: it is closed here.
struct Contested {
    dir: PathBuf,
    /// Until when it is asked for again; none: no more.
    until: Option<Instant>,
}

impl Served {
    pub(crate) fn new(devices: Vec<ServedDevice>, roster: Arc<Roster>) -> Self {
        let devices = devices.into_iter().map(|device| (device.id, Arc::new(device))).collect();
        Self { devices: RwLock::new(devices), chores: Mutex::default(), contested: Mutex::default(), roster }
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
        self.contested_now().remove(&device.id);
        self.devices.write().unwrap_or_else(PoisonError::into_inner).insert(device.id, device);
    }

    /// How many devices another server has that lie here.
    pub(crate) fn contested(&self) -> u64 {
        self.contested_now().len() as u64
    }

    /// Those that are to be asked for again, and where they lie; says once of which that is over.
    pub(crate) fn to_ask_for(&self) -> BTreeMap<DeviceId, PathBuf> {
        let mut contested = self.contested_now();
        for (device, Contested { dir, until }) in contested.iter_mut() {
            if until.take_if(|until| *until <= Instant::now()).is_some() {
                let dir = dir.display();
                tracing::error!(%device, %dir, "another server keeps this device: it is left alone until it is added here again");
            }
        }
        let still = contested.iter().filter(|(_, contested)| contested.until.is_some());
        still.map(|(&device, contested)| (device, contested.dir.clone())).collect()
    }

    fn contested_now(&self) -> MutexGuard<'_, BTreeMap<DeviceId, Contested>> {
        self.contested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device's chores run: they end with the device.
    pub(crate) fn attended(&self, device: DeviceId, chores: Vec<AbortHandle>) {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner).insert(device, chores);
    }

    /// Serves a device no more: it was removed from the cluster. What it was asked for ends, and its directory is free.
    pub(crate) async fn dismiss(&self, device: DeviceId) {
        let Some(gone) = self.take(device) else { return };
        let roster = self.roster.clone();
        let after = move |gone: &ServedDevice| {
            let dir = gone.dir.display();
            // The list first, which lies on other disks: this one may be the reason why it was removed.
            if let Err(error) = roster.remove(device) {
                tracing::error!(%device, %dir, %error, "the device is still listed");
            }
            if let Err(error) = identity::retire(&gone.dir, device) {
                tracing::error!(%device, %dir, %error, "nothing in its directory says that it was removed");
            }
            tracing::warn!(%device, %dir, "the device was removed from the cluster and is served no more");
        };
        let_go(gone, after).await;
    }

    /// Closes a device that another server has; for so long it is asked for again.
    pub(crate) async fn set_aside(&self, device: DeviceId, asked_for: Duration) {
        let Some(taken) = self.take(device) else { return };
        let contested = Contested { dir: resolve(&taken.dir), until: Some(Instant::now() + asked_for) };
        self.contested_now().insert(device, contested);
        let_go(taken, |_| {}).await;
    }

    /// Takes a device out, and ends its chores.
    fn take(&self, device: DeviceId) -> Option<Arc<ServedDevice>> {
        let taken = self.devices.write().unwrap_or_else(PoisonError::into_inner).remove(&device)?;
        let chores = self.chores.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
        chores.into_iter().flatten().for_each(|chore| chore.abort());
        Some(taken)
    }
}

/// Closes a device that is served no more; then does what is left to do.
async fn let_go(gone: Arc<ServedDevice>, after: impl FnOnce(&ServedDevice) + Send + 'static) {
    let device = gone.id;
    let closing = tokio::task::spawn_blocking(move || {
        close(&gone);
        after(&gone);
    });
    // The others are not to wait for a disk that does not answer.
    match tokio::time::timeout(LETTING_GO, closing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%device, %error, "the device was not closed"),
        Err(_) => {
            tracing::error!(%device, "the disk of a device that is to be closed does not answer: left behind")
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
