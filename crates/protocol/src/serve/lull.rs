//! Whether a device has time for what nobody waits for.
//!
//! Merging a log costs four positionings however few records it has, so on a busy device it must not begin before the log needs it
//! (PLR §4.2.2 merges when the reserve is full, or the system idle). A log that nobody appended to for a while says little of
//! that: of updates that are spread over many segments each log gets one now and then, all the time. What says it is how long the
//! device worked for others just now.

use crate::Time;
use core::time::Duration;

/// Time over which a device's work is looked at. Picked by eye: longer than a stall of a disk, and soon over.
const WINDOW: Duration = Duration::from_millis(500);
/// A device rests that worked for less than this part of it. Picked by eye: whoever comes then waits for something else one time
/// in sixteen more, and a device that a few read from all day has its logs merged all the same.
const WORKED: u32 = 16;

/// The work of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lull {
    /// When the present window began, and how long the device had worked by then.
    since: Option<(Time, Duration)>,
    rests: bool,
}

impl Lull {
    /// Whether the device rests; `worked` is how long it has worked so far on what somebody waits for. Not known before one window
    /// was seen: never, where nobody looks at least once in four.
    pub fn look(&mut self, now: Time, worked: Duration) -> bool {
        let Some((since, before)) = self.since else {
            self.since = Some((now, worked));
            return false;
        };
        let window = now.since(since);
        if window >= WINDOW {
            // Much may have come at the end of a long one.
            self.rests = window < 4 * WINDOW && WORKED * worked.saturating_sub(before) < window;
            self.since = Some((now, worked));
        }
        self.rests
    }
}
