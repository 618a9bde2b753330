//! Updates that are not answered: how many of a device there may be, and what their bytes may take together.
//!
//! A host that begins waits for the metadata server and for its device, and one that serves for all devices with parity; whoever asks
//! may give up long before. Each update has a place among the node's streams until then. Each device has a part of its own, so that one
//! that stands still costs the others nothing; and a segment no more than a part of that, so that where a device with its parity stands
//! still there are places for other segments, whose parity is elsewhere.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use steadfast_protocol::{
    DeviceId, SegmentId,
    message::{Fault, RefusalReason, UPDATE_BYTES_MAX},
};

/// Updates of one device that may wait: a quarter of a node's streams ([`Limits`](steadfast_protocol::serve::Limits)), more than keep a
/// device busy, and 16 MiB of the largest.
const UPDATES_MAX: usize = 256;
/// Those of one segment. Picked by eye: more than its host has under way in a flush or two.
const SEGMENT_UPDATES_MAX: usize = UPDATES_MAX / 4;
/// When to come back. 100 ms: a host begins in some milliseconds, unless its device stands still. Picked by eye.
const RETRY_AFTER_MS: u32 = 100;

/// Places that are taken, of each device that has any.
type Taken = BTreeMap<DeviceId, BTreeMap<SegmentId, usize>>;

/// The room of each device.
#[derive(Debug, Default)]
pub(super) struct Waiting(Arc<Mutex<Taken>>);

/// Room for one update, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    taken: Arc<Mutex<Taken>>,
    device: DeviceId,
    segment: SegmentId,
    places: usize,
}

impl Waiting {
    /// Room for an update of so many bytes.
    ///
    /// # Errors
    /// [`Fault::Refused`] while too much of the device, or of the segment there, is not answered.
    pub(super) fn room(&self, device: DeviceId, segment: SegmentId, bytes: usize) -> Result<Room, Fault> {
        // One that is too large is refused by its host; until then it takes the place of several.
        let places = bytes.div_ceil(UPDATE_BYTES_MAX as usize).clamp(1, SEGMENT_UPDATES_MAX);
        let mut taken = lock(&self.0);
        let of_device = taken.entry(device).or_default();
        let all = of_device.values().sum::<usize>() + places;
        let of_segment = of_device.get(&segment).copied().unwrap_or(0) + places;
        if all > UPDATES_MAX || of_segment > SEGMENT_UPDATES_MAX {
            return Err(Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: RETRY_AFTER_MS });
        }
        of_device.insert(segment, of_segment);
        Ok(Room { taken: Arc::clone(&self.0), device, segment, places })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        let Some(of_device) = taken.get_mut(&self.device) else { return };
        if let Some(of_segment) = of_device.get_mut(&self.segment) {
            *of_segment -= self.places;
        }
        of_device.retain(|_, places| *places > 0);
        if of_device.is_empty() {
            taken.remove(&self.device);
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;
    use steadfast_protocol::serve::Limits;

    const DEVICE: DeviceId = DeviceId(1);
    const SEGMENTS: [SegmentId; 4] = [SegmentId(1), SegmentId(2), SegmentId(3), SegmentId(4)];

    /// All the room that there is for one of the segments.
    fn all_of(waiting: &Waiting, segment: SegmentId, bytes: usize) -> Vec<Room> {
        core::iter::from_fn(|| waiting.room(DEVICE, segment, bytes).ok()).collect()
    }

    #[test]
    fn what_waits_for_a_device_is_bounded_and_no_others_concern() {
        let waiting = Waiting::default();
        for bytes in [1, UPDATE_BYTES_MAX as usize] {
            let mut rooms: Vec<Room> =
                SEGMENTS.into_iter().flat_map(|segment| all_of(&waiting, segment, bytes)).collect();
            assert_eq!(rooms.len() as u32, Limits::default().streams_max / 4);
            let fifth = SegmentId(5);
            waiting.room(DEVICE, fifth, bytes).unwrap_err();
            waiting.room(DeviceId(2), fifth, bytes).unwrap();
            rooms.pop();
            waiting.room(DEVICE, fifth, bytes).unwrap();
        }
    }

    #[test]
    fn a_segment_that_stands_still_leaves_places_for_others_of_its_device() {
        let waiting = Waiting::default();
        let mut rooms = all_of(&waiting, SEGMENTS[0], 1);
        assert_eq!(rooms.len(), UPDATES_MAX / 4);
        let large = waiting.room(DEVICE, SEGMENTS[1], usize::MAX).unwrap();
        waiting.room(DEVICE, SEGMENTS[1], 1).unwrap_err();
        assert_eq!(all_of(&waiting, SEGMENTS[2], 1).len(), UPDATES_MAX / 4);
        rooms.pop();
        assert_eq!(all_of(&waiting, SEGMENTS[0], 1).len(), 1);
        drop((large, rooms));
        assert!(lock(&waiting.0).is_empty(), "what is given back leaves nothing behind");
    }
}
