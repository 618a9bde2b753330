//! The time that leases are counted in: nanoseconds since the Unix epoch, never going back while the server runs.
//!
//! The wall clock is read once, at the start; from there the monotonic clock counts. Where the wall clock was set between two
//! runs, leases and kept answers have their whole span from the later start ([`Terms::started`](steadfast_protocol::meta::Terms)).

use std::time::{Instant, SystemTime};
use steadfast_protocol::Time;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Time,
    started: Instant,
}

impl Clock {
    /// Reads the wall clock.
    pub fn start() -> Self {
        // A wall clock before 1970 counts from there: leases only need differences.
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { anchor: Time(0) + wall, started: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.anchor + self.started.elapsed()
    }
}
