//! Reads of a few bytes, each from the one node that has them: when others are asked to stand in. The rule of the adaptive reads
//! (a little extra, where it gains time) for what is too small to be forecast.
//!
//! A node is late when it takes eight times as long as such reads usually take, all nodes together; twice as long where that is more
//! than a person would wait for. So where all are busy, or far away, none is, and a read costs no more than it must. One that was late
//! is not waited for again for a second; asked it still is, and what it answers in time ends that. As long as nothing is known, the way
//! there stands for what is usual.
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
/// Where that takes long, as [`super::Caution`]: less would take what is usual for late, and each read ask others, too, whom that makes
/// slower still.
const FACTOR_MIN: u32 = 2;
/// Bounds on what is waited for, as long as that is [`FACTOR_MIN`] times what is usual. Picked by eye: what a scheduler adds to a read,
/// and what a person notices.
const WAIT_MIN: Duration = Duration::from_millis(2);
const WAIT_MAX: Duration = Duration::from_millis(250);
/// While nothing is known and the way is short: several times what a disk takes to position.
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
    /// How long to wait for a device before others are asked, too. A request and its answer take as long as `way` between here and there,
    /// where that is known.
    pub fn wait(&self, now: Time, device: DeviceId, way: Option<Duration>) -> Duration {
        if self.is_late(now, device) { Duration::ZERO } else { self.in_time(way) }
    }

    /// Whether a device is not waited for.
    pub fn is_late(&self, now: Time, device: DeviceId) -> bool {
        self.late.get(&device).is_some_and(|&since| now.since(since) < LATE_FOR)
    }

    /// What an answer may take.
    fn in_time(&self, way: Option<Duration>) -> Duration {
        let mut took: Vec<Duration> = self.took.iter().copied().collect();
        let middle = took.len() / 2;
        let usual = if took.is_empty() { Duration::ZERO } else { *took.select_nth_unstable(middle).1 };
        let least = usual.saturating_mul(FACTOR_MIN);
        if took.len() < KNOWN {
            // The first read of a node may have to connect to it, which are several such ways.
            return way.unwrap_or_default().saturating_mul(FACTOR).max(WAIT_UNKNOWN).max(least);
        }
        usual.saturating_mul(FACTOR).clamp(WAIT_MIN, WAIT_MAX.max(least))
    }

    /// A device has answered, after so long.
    pub fn answered(&mut self, device: DeviceId, took: Duration) {
        self.took.push_back(took);
        if self.took.len() > REMEMBERED {
            self.took.pop_front();
        }
        // Whether it was in time is seen by what is usual, not by what was waited for: of one that was late that is nothing.
        if took <= self.in_time(None) {
            self.late.remove(&device);
        }
    }

    /// A device did not answer within what was waited for, or failed.
    pub fn late(&mut self, now: Time, device: DeviceId) {
        self.late.insert(device, now);
    }
}
