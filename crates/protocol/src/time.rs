//! The cores' own time: a number that a driver passes in, because the standard library's cannot be made from one.

use core::{ops, time::Duration};
use serde::{Deserialize, Serialize};

/// Nanoseconds since an origin of the driver's choice (a run's start; the Unix epoch for the metadata cores).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The span from `earlier` to `self`; zero where `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Seconds from `earlier` to `self`; negative where `earlier` is later.
    pub fn seconds_since(self, earlier: Time) -> f64 {
        // The difference of two times of one origin fits.
        self.0.wrapping_sub(earlier.0).cast_signed() as f64 * 1e-9
    }
}

impl ops::Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}
