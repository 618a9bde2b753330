//! What a lane tells about itself.

use std::time::Duration;

use super::Reads;
use crate::{
    device::{Device, DeviceError, Usage},
    media::Counters,
};

/// A lane at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneStatus {
    /// Operations that wait.
    pub queued: usize,
    /// Their bytes.
    pub queued_bytes: u64,
    /// How long the device has been at its present operation; long means stalled.
    pub in_flight_age: Option<Duration>,
    /// Whether that is a flush, or may end in one.
    pub flushing: bool,
    /// Measured speed of reads while busy.
    pub read_bytes_per_s: Option<f64>,
    /// Measured speed of writes while busy, their flushes included.
    pub write_bytes_per_s: Option<f64>,
    /// Smoothed time one read, write or other change takes the device.
    pub service_time: Option<Duration>,
    /// Smoothed time of a flush.
    pub flush_time: Option<Duration>,
    /// Reads, writes and other changes done.
    pub completed: u64,
    /// Bytes of blocks written but not flushed.
    pub unflushed_bytes: u64,
    /// Why the device only reads.
    pub failed: Option<DeviceError>,
    /// How reads of the medium go.
    pub reads: Reads,
    /// Corrupt blocks found by reads.
    pub corrupt_blocks: u64,
    /// How full the device is.
    pub usage: Usage,
    /// What its medium did.
    pub counters: Counters,
}

/// The part of it that only the lane's thread can see.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) unflushed_bytes: u64,
    pub(super) failed: Option<DeviceError>,
    pub(super) reads: Reads,
    pub(super) corrupt_blocks: u64,
    pub(super) usage: Usage,
    pub(super) counters: Counters,
}

impl Snapshot {
    pub(super) fn of(device: &Device, reads: &Reads, unflushed_bytes: u64) -> Snapshot {
        Snapshot {
            unflushed_bytes,
            failed: device.failed().cloned(),
            reads: reads.clone(),
            corrupt_blocks: device.corrupt_blocks(),
            usage: device.usage(),
            counters: device.medium().counters(),
        }
    }
}
