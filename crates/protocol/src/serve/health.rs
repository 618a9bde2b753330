//! How a device is, judged from what its lane and its last refusals say (traps 14: by measured pace, not by a fixed
//! time-out, which would punish an honest slow disk).

use crate::message::DeviceHealth;
use core::time::Duration;

/// A request on the medium for this many times longer than others took means that the device is stalled: more
/// than seeks, retries within the drive and a flush add up to. Picked by eye.
const STALL_FACTOR: u32 = 16;
/// Nothing shorter is called a stall, however fast the device usually is: heartbeats could not tell it in time.
const STALL_MIN: Duration = Duration::from_millis(250);
/// The same of a flush: it takes along what other files of the same disk have to write. Six busy devices on one disk had flushes of 0.3
/// to 0.6 s among those of 20 ms, and four of them were called stalled at a time.
const FLUSH_STALL_MIN: Duration = Duration::from_secs(2);
/// What counts as usual before anything was measured: the positioning of a slow disk and 1 MiB at 10 MB/s.
const SERVICE_UNMEASURED: Duration = Duration::from_millis(120);
/// A device that refused a block for want of space is reported full for this long, unless space came back: no
/// writer should run into it again at once, and nobody else would ever find out that it has room.
const FULL_FOR: Duration = Duration::from_secs(5);

/// What is known of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthFacts {
    /// Whether a write or flush failed for good.
    pub failed: bool,
    /// Whether reads of it fail, one after the other.
    pub reads_fail: bool,
    /// How long the device has been at its present request.
    pub in_flight: Option<Duration>,
    /// Whether that is a flush, or may end in one.
    pub flushing: bool,
    /// How long a request usually takes it.
    pub service_time: Option<Duration>,
    /// How long a flush usually takes it.
    pub flush_time: Option<Duration>,
    /// The longest free run in bytes.
    pub longest_free_bytes: u64,
    /// Since it last refused a block for want of space; absent when it took one later.
    pub refused_as_full: Option<Duration>,
}

/// The health that these facts mean; the worst of them counts.
pub fn health(facts: &HealthFacts) -> DeviceHealth {
    let (usual, least) =
        if facts.flushing { (facts.flush_time, FLUSH_STALL_MIN) } else { (facts.service_time, STALL_MIN) };
    let stalled_after = usual.unwrap_or(SERVICE_UNMEASURED).saturating_mul(STALL_FACTOR).max(least);
    if facts.failed || facts.reads_fail {
        DeviceHealth::Failed
    } else if facts.in_flight.is_some_and(|age| age > stalled_after) {
        DeviceHealth::Stalled
    } else if facts.longest_free_bytes < u64::from(crate::layout::BLOCK_BYTES_MAX)
        || facts.refused_as_full.is_some_and(|since| since < FULL_FOR)
    {
        DeviceHealth::Full
    } else {
        DeviceHealth::Ok
    }
}
