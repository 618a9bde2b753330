//! Reads of a few bytes, each from the one node that has them: when others are asked to stand in. The rule of the adaptive reads
//! (a little extra, where it gains time) for what is too small to be forecast.
//!
//! A node is late when it takes eight times as long as such reads usually take, all nodes together: so where all are busy none is,
//! and a read costs no more than it must. One that was late is not waited for again for a second; asked it still is, and what it
//! answers in time ends that.
//!
//! Left out: what stands in, and what it costs.

use crate::{DeviceId, Time};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Reads that say what is usual: few enough to follow a load that changes within a tenth of a second.
const REMEMBERED: usize = 64;
/// Of fewer than so many nothing is known.
const KNOWN: usize = 8;
/// As the write cores, which take a lane for late by the same factor.
const FACTOR: u32 = 8;
/// Bounds on what is waited for. Picked by eye: what a scheduler adds to a read, and what a person notices.
const WAIT_MIN: Duration = Duration::from_millis(2);
const WAIT_MAX: Duration = Duration::from_millis(250);
/// While nothing is known: several times what a disk takes to position.
const WAIT_UNKNOWN: Duration = Duration::from_millis(50);
/// How long a node that was late is not waited for. Picked by eye: a device that others load is late for longer.
const LATE_FOR: Duration = Duration::from_secs(1);

/// What is known of such reads, and of who is late; of one client.
#[derive(Clone, Debug, Default)]
pub struct Hedge {
    took: VecDeque<Duration>,
    late: BTreeMap<DeviceId, Time>,
}

impl Hedge {
    /// How long to wait for a device before others are asked, too.
    pub fn wait(&self, now: Time, device: DeviceId) -> Duration {
        if self.late.get(&device).is_some_and(|&since| now.since(since) < LATE_FOR) {
            return Duration::ZERO;
        }
        if self.took.len() < KNOWN {
            return WAIT_UNKNOWN;
        }
        let mut took: Vec<Duration> = self.took.iter().copied().collect();
        let middle = took.len() / 2;
        let (_, &mut usual, _) = took.select_nth_unstable(middle);
        (usual * FACTOR).clamp(WAIT_MIN, WAIT_MAX)
    }

    /// A device has answered, after so long.
    pub fn answered(&mut self, device: DeviceId, took: Duration) {
        self.took.push_back(took);
        if self.took.len() > REMEMBERED {
            self.took.pop_front();
        }
        // Whether it was in time is seen by what is usual, not by what was waited for: of one that was late that is nothing.
        if took <= self.wait(Time(u64::MAX), device) {
            self.late.remove(&device);
        }
    }

    /// A device did not answer within what was waited for, or failed.
    pub fn late(&mut self, now: Time, device: DeviceId) {
        self.late.insert(device, now);
    }
}
