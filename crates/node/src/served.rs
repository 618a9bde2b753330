//! The devices that a node serves now: they come and go while it runs.
//!
//! ```text
//!                ┌─────────── served ◀────────────────┐
//!                ▼               │                    │ joins again
//!   removed from the cluster     └─▶ set aside: closed, as another server has it
//! ```
//!
//! What is done about a device that another server has is the core's to say ([`Taken`]).

use crate::{
    devices::ServedDevice,
    identity,
    roster::{Places, Roster, resolve},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};
use steadfast_protocol::{
    DeviceId, Time,
    message::MetaFault,
    serve::{OnRefusal, Taken},
};
use tokio::task::AbortHandle;

/// How long a device is waited for that is to be closed. Picked by eye: more than its lane takes to close
/// ([`steadfast_disk::LaneConfig::shutdown_wait_max`]), less than a node may be silent.
const LETTING_GO: Duration = Duration::from_secs(3);

/// The devices of a node. Whoever uses one holds it on, so that one that is taken out ends when nobody does.
pub(crate) struct Served {
    devices: RwLock<BTreeMap<DeviceId, Arc<ServedDevice>>>,
    /// What is done for them while nobody asks: it holds them too.
    chores: Mutex<BTreeMap<DeviceId, Vec<AbortHandle>>>,
    aside: Mutex<Aside>,
    roster: Arc<Roster>,
}

/// Devices that another server has.
struct Aside {
    taken: Taken,
    /// Where they lie.
    dirs: Places,
}

impl Served {
    /// These; another server may have one of them, or the node's name, for `taken_for`.
    pub(crate) fn new(devices: Vec<ServedDevice>, roster: Arc<Roster>, taken_for: Duration) -> Self {
        let devices = devices.into_iter().map(|device| (device.id, Arc::new(device))).collect();
        let aside = Aside { taken: Taken::new(taken_for), dirs: Places::new() };
        Self { devices: RwLock::new(devices), chores: Mutex::default(), aside: Mutex::new(aside), roster }
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
        let mut aside = self.aside();
        aside.taken.joined(device.id);
        aside.dirs.remove(&device.id);
        drop(aside);
        self.devices.write().unwrap_or_else(PoisonError::into_inner).insert(device.id, device);
    }

    /// The node was registered.
    pub(crate) fn registered(&self) {
        self.aside().taken.registered();
    }

    /// The node was refused with these devices: what is to be done.
    pub(crate) fn refused(&self, now: Time, fault: &MetaFault, devices: &[DeviceId]) -> OnRefusal {
        self.aside().taken.refused(now, fault, devices)
    }

    /// How many devices another server has that lie here.
    pub(crate) fn contested(&self) -> u64 {
        self.aside().taken.aside() as u64
    }

    /// Those that are to be asked for again, and where they lie; says once of which that is over.
    pub(crate) fn to_ask_for(&self, now: Time) -> Places {
        let mut aside = self.aside();
        for device in aside.taken.left_alone(now) {
            let dir = aside.dirs.get(&device);
            tracing::error!(%device, ?dir, "another server keeps this device: it is left alone until it is added here again");
        }
        let place = |device| Some((device, aside.dirs.get(&device)?.clone()));
        aside.taken.to_ask_for().filter_map(place).collect()
    }

    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Closes a device that another server has, and remembers where it lies.
    pub(crate) async fn set_aside(&self, device: DeviceId) {
        let Some(taken) = self.take(device) else { return };
        self.aside().dirs.insert(device, resolve(&taken.dir));
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
