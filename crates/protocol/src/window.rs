//! How much a consumer lets a stream have on the way (design.md, decision 10): rate times delay, never more than a
//! small share of what the stream is for.
//!
//! The window is twice the measured pace times the measured delay, so it doubles each round trip while it is what
//! limits the pace, and rests at twice the pipe's content once the device or the link does. Invariants: it stays
//! between floor and ceiling, and within a factor of two of its last value at each step. It knows no milliseconds:
//! both factors are measured. Sharing one budget among streams is [`crate::serve::Budget`]'s work.

use crate::Time;
use core::time::Duration;

/// Twice the content of the pipe: what keeps it full while a grant travels, and what lets a window grow that is
/// itself the limit.
const GAIN: f64 = 2.0;

/// One stream's window in payload bytes.
#[derive(Clone, Debug)]
pub struct Window {
    floor_bytes: u64,
    ceiling_bytes: u64,
    bytes: u64,
    delay: Option<Duration>,
    pace_bytes_per_s: f64,
    since: Option<Time>,
    arrived_bytes: u64,
}

impl Window {
    /// A window that begins at `bytes` and stays from `floor_bytes` to `ceiling_bytes`; a ceiling below the floor
    /// is raised to it.
    pub fn new(floor_bytes: u64, bytes: u64, ceiling_bytes: u64) -> Self {
        let ceiling_bytes = ceiling_bytes.max(floor_bytes);
        Self {
            floor_bytes,
            ceiling_bytes,
            bytes: bytes.clamp(floor_bytes, ceiling_bytes),
            delay: None,
            pace_bytes_per_s: 0.0,
            since: None,
            arrived_bytes: 0,
        }
    }

    /// Bytes that may be on the way now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Measured pace in bytes per second; 0 before the first window has passed.
    pub fn pace_bytes_per_s(&self) -> f64 {
        self.pace_bytes_per_s
    }

    /// The delay was measured: from asking to the first byte, or from a byte's arrival to its being done with.
    pub fn delayed(&mut self, delay: Duration) {
        self.delay = Some(delay);
    }

    /// `bytes` went through at `now`. The first call starts the measurement.
    pub fn passed(&mut self, now: Time, bytes: u64) {
        let Some(since) = self.since else {
            self.since = Some(now);
            return;
        };
        self.arrived_bytes += bytes;
        let span = now.since(since).as_secs_f64();
        // A whole window per step: shorter spans measure bursts.
        if self.arrived_bytes < self.bytes || span <= 0.0 {
            return;
        }
        self.pace_bytes_per_s = self.arrived_bytes as f64 / span;
        (self.since, self.arrived_bytes) = (Some(now), 0);
        if let Some(delay) = self.delay {
            let target = (GAIN * self.pace_bytes_per_s * delay.as_secs_f64()) as u64;
            let step = target.clamp(self.bytes / 2, self.bytes.saturating_mul(2));
            self.bytes = step.clamp(self.floor_bytes, self.ceiling_bytes);
        }
    }
}
