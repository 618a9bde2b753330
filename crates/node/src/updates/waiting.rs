//! Updates that are not answered: how many of a device there may be, and what their bytes may take together.
//!
//! A host that begins waits for the metadata server and for its device, and one that serves for all devices with parity; whoever asks
//! may give up long before. Each update has a place among the node's streams until then. Each device has a part of its own, so that one
//! that stands still costs the others nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use steadfast_protocol::{
    DeviceId,
    message::{Fault, RefusalReason, UPDATE_BYTES_MAX},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Updates of one device that may wait: a quarter of a node's streams ([`Limits`](steadfast_protocol::serve::Limits)), more than keep a
/// device busy, and 16 MiB of the largest.
const UPDATES_MAX: usize = 256;
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
    /// [`Fault::Refused`] while too much of the device is not answered.
    pub(super) fn room(&self, device: DeviceId, bytes: usize) -> Result<Room, Fault> {
        let room = {
            let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            devices.entry(device).or_insert_with(|| Arc::new(Semaphore::new(UPDATES_MAX))).clone()
        };
        let overloaded = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: RETRY_AFTER_MS };
        // One that is too large is refused by its host; until then it takes the place of several.
        let places = bytes.div_ceil(UPDATE_BYTES_MAX as usize).clamp(1, UPDATES_MAX);
        room.try_acquire_many_owned(places as u32).map(Room).map_err(|_| overloaded)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;
    use steadfast_protocol::serve::Limits;

    #[test]
    fn what_waits_for_a_device_is_bounded_and_no_others_concern() {
        let waiting = Waiting::default();
        for bytes in [1, UPDATE_BYTES_MAX as usize] {
            let mut rooms = Vec::new();
            while let Ok(room) = waiting.room(DeviceId(1), bytes) {
                rooms.push(room);
            }
            assert_eq!(rooms.len() as u32, Limits::default().streams_max / 4);
            waiting.room(DeviceId(2), bytes).unwrap();
            rooms.pop();
            waiting.room(DeviceId(1), bytes).unwrap();
        }
    }
}
