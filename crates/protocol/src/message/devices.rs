//! What is said of devices that come and go.

use crate::{DeviceId, SegmentId};
use serde::{Deserialize, Serialize};

/// The most entries of one page of [`Query::ObjectsOn`](super::Query::ObjectsOn).
pub const OBJECTS_ON_PAGE_MAX: u32 = 1000;

/// Whether a device is to hold data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceState {
    /// It takes new data.
    #[default]
    Active,
    /// It takes no new data and serves what it has, until that lies elsewhere.
    Draining,
    /// It left the cluster for good: it is not registered again under this name.
    Removed,
}

/// A device that is draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The device.
    pub device: DeviceId,
    /// Puts that had chosen it before it was draining and have committed blocks on it since, and how often it took data again: the number
    /// only grows, and whoever looked at what it holds before it last did looks again.
    pub arrivals: u64,
}

/// A segment that has blocks on a device that was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Bucket of the object that has it.
    pub bucket: String,
    /// Key of that object.
    pub key: String,
    /// The segment.
    pub segment: SegmentId,
    /// Bytes of the object that the segment holds: what moving it takes of memory.
    pub length: u64,
    /// Blocks on the devices asked about.
    pub blocks: u32,
    /// Bytes of those.
    pub bytes: u64,
}

/// What one device holds of committed segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The device.
    pub device: DeviceId,
    /// Segments with blocks on it.
    pub segments: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// How far a drain, or the repair after a loss, is, as the client that moves the objects says it. For whoever watches; all that is decided
/// on it is that nobody waits any more for what `lost` devices had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainProgress {
    /// The devices that are emptied together.
    pub devices: Vec<DeviceId>,
    /// Whether they are gone for good, and what they held is made anew from others.
    pub lost: bool,
    /// What is done now.
    pub phase: DrainPhase,
    /// Blocks on the devices when it began.
    pub blocks_before: u64,
    /// Bytes of those.
    pub bytes_before: u64,
    /// Objects moved since.
    pub objects: u64,
    /// Their blocks on the devices.
    pub blocks: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Objects that cannot be moved.
    pub stuck: u64,
}

/// What a drain does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainPhase {
    /// It moves objects.
    #[default]
    Moving,
    /// It waits for puts that had chosen the devices before.
    Settling,
    /// It is over: no object has blocks on the devices, unless [`DrainProgress::stuck`] says otherwise.
    Over,
}

/// A drain and when it was last heard of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainState {
    /// As its client said last.
    pub progress: DrainProgress,
    /// Milliseconds since then.
    pub silent_ms: u64,
}

impl DrainProgress {
    /// The share of the devices' bytes that lies elsewhere by now, from 0 to 1. Puts that were under way may bring more
    /// than there was at first.
    pub fn share(&self) -> f64 {
        if self.phase == DrainPhase::Over && self.stuck == 0 {
            return 1.0;
        }
        // Nothing there, or nothing known: not begun.
        self.bytes as f64 / self.bytes_before.max(self.bytes).max(1) as f64
    }
}
