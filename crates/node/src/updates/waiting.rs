//! Updates that no host has heard yet: what their bytes may take together.
//!
//! A host that begins waits for the metadata server and for its device, and whoever asks meanwhile may give up long before it has
//! begun. Each device has a part of its own, so that one that stands still costs the others nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use steadfast_protocol::{
    DeviceId,
    message::{Fault, RefusalReason},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of updates that may wait for the hosts of one device. 8 MiB: thousands of small ones, and a hundred of the largest.
const DEVICE_BYTES_MAX: usize = 8 << 20;
/// What an update costs beside its bytes, rounded up.
const UPDATE_BYTES: usize = 256;
/// When to come back. 100 ms: a host begins in some milliseconds, unless its device stands still. Picked by eye.
const RETRY_AFTER_MS: u32 = 100;

/// The room of each device.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<BTreeMap<DeviceId, Arc<Semaphore>>>);

/// Room for one update, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

impl Waiting {
    /// Room for an update of so many bytes.
    ///
    /// # Errors
    /// [`Fault::Refused`] while too much waits for the device's hosts.
    pub(super) fn room(&self, device: DeviceId, bytes: usize) -> Result<Room, Fault> {
        let room = {
            let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            devices.entry(device).or_insert_with(|| Arc::new(Semaphore::new(DEVICE_BYTES_MAX))).clone()
        };
        let overloaded = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: RETRY_AFTER_MS };
        let bytes = u32::try_from(bytes + UPDATE_BYTES).map_err(|_| overloaded.clone())?;
        room.try_acquire_many_owned(bytes).map(Room).map_err(|_| overloaded)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;

    #[test]
    fn what_waits_for_a_device_is_bounded_and_no_others_concern() {
        let waiting = Waiting::default();
        let mut rooms = Vec::new();
        while let Ok(room) = waiting.room(DeviceId(1), 64 << 10) {
            rooms.push(room);
        }
        assert_eq!(rooms.len(), 127);
        waiting.room(DeviceId(2), 64 << 10).unwrap();
        rooms.pop();
        waiting.room(DeviceId(1), 64 << 10).unwrap();
    }
}
