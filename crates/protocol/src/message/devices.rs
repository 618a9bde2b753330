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
    /// Puts that had chosen it before it was draining and have committed blocks on it since: whoever looked at what it
    /// holds before the last of them looks again.
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
