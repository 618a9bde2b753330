//! What devices can be expected to give an access, and with which spread.
//!
//! A device may be promised to the access with what is left of its time: what its measured speed is worth when the wished
//! number of accesses share it (§5.4), less what is reserved, less the part that is never reserved; nothing of one that stalls,
//! has failed or is away, however fast it was. How much of that
//! arrives is uncertain by what waits in its queue: between the whole, and what is left when all of that goes first. The
//! sum over many devices is far less uncertain than each (the dissertation's point, §4.1): hence expected time *and* spread.

use super::Candidate;
use crate::{
    message::Access,
    serve::{BEST_EFFORT_SHARE, efficiency},
};
use core::time::Duration;

/// The least relative standard deviation of a device's speed: what repeated reads of one quiet disk show. Picked by eye.
const SPREAD_MIN: f64 = 0.05;
/// Requests in a queue that halve what a newcomer gets; as the ranking of devices counts load.
const QUEUE_HALVES: f64 = 4.0;
/// A wish for a latency is judged by the time at this many standard deviations: 2.3 % of normal draws lie beyond.
const DEVIATIONS: f64 = 2.0;

/// What one device, or several together, give in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pace {
    /// What can be promised.
    pub(super) promised: f64,
    /// What more could be if nobody had reserved anything.
    pub(super) reserved: f64,
    mean: f64,
    variance: f64,
}

/// When an access is expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// In the mean.
    pub mean: Duration,
    /// At two standard deviations of the devices' speeds.
    pub late: Duration,
}

impl Expected {
    /// No device does it.
    pub(super) const NEVER: Self = Self { mean: Duration::MAX, late: Duration::MAX };
}

impl Pace {
    /// What `candidate`, whose speed is `bytes_per_s`, gives to `accesses` accesses together.
    pub(super) fn of(candidate: &Candidate, accesses: u32, bytes_per_s: f64) -> Self {
        let part = |reserved: u64, speed: u64| reserved as f64 / (speed.max(1)) as f64;
        let reserved = part(candidate.reserved_read_bytes_per_s, speed_of(candidate, Access::Read))
            + part(candidate.reserved_write_bytes_per_s, speed_of(candidate, Access::Write));
        let shared = (efficiency(&candidate.sharing_ppm, accesses as usize) - BEST_EFFORT_SHARE).max(0.0);
        let whole = if candidate.serves() { shared } else { 0.0 };
        let free = if candidate.refused { 0.0 } else { (whole - reserved).max(0.0) };
        let promised = bytes_per_s * free;
        let behind_queue = promised / (1.0 + f64::from(candidate.queue_length) / QUEUE_HALVES);
        let (mean, width) = ((promised + behind_queue) / 2.0, promised - behind_queue);
        // Uniform between the two.
        let deviation = (width / 12f64.sqrt()).max(mean * SPREAD_MIN);
        Self { promised, reserved: bytes_per_s * (whole - free), mean, variance: deviation * deviation }
    }

    /// All of them at once.
    pub(super) fn together(paces: impl Iterator<Item = Pace>) -> Self {
        let mut together = Together::default();
        paces.for_each(|pace| together.add(pace));
        together.at_once()
    }

    /// When `bytes` have moved, `before` counted in.
    pub(super) fn expected(&self, bytes: f64, before: Duration) -> Expected {
        let at = |rate: f64| {
            let seconds = if rate > 0.0 { bytes / rate } else { f64::INFINITY };
            before.saturating_add(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
        };
        Expected { mean: at(self.mean), late: at(self.mean - DEVIATIONS * self.variance.sqrt()) }
    }
}

/// What several devices give together, counted in one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Together {
    sum: Pace,
    slowest: Option<Pace>,
    count: f64,
}

impl Together {
    /// One more.
    pub(super) fn add(&mut self, pace: Pace) {
        self.sum = Pace {
            promised: self.sum.promised + pace.promised,
            reserved: self.sum.reserved + pace.reserved,
            mean: self.sum.mean + pace.mean,
            variance: self.sum.variance + pace.variance,
        };
        self.slowest = Some(self.slowest.filter(|least| least.promised <= pace.promised).unwrap_or(pace));
        self.count += 1.0;
    }

    /// All of them at once.
    pub(super) fn at_once(&self) -> Pace {
        self.sum
    }

    /// All of them with the same share each, as a stripe needs: as many times the slowest.
    pub(super) fn in_step(&self) -> Pace {
        let (slowest, count) = (self.slowest.unwrap_or_default(), self.count);
        Pace {
            promised: slowest.promised * count,
            reserved: slowest.reserved * count,
            mean: slowest.mean * count,
            variance: slowest.variance * count * count,
        }
    }
}

/// The measured speed for `access`, that of the other kind where only it is known; 0 where neither is.
pub(super) fn speed_of(candidate: &Candidate, access: Access) -> u64 {
    let (own, other) = match access {
        Access::Read => (candidate.read_bytes_per_s, candidate.write_bytes_per_s),
        Access::Write => (candidate.write_bytes_per_s, candidate.read_bytes_per_s),
    };
    if own > 0 { own } else { other }
}

/// The median of the known speeds, which stands in where none was measured; none where none was.
pub(super) fn median(candidates: &[&Candidate], access: Access) -> Option<f64> {
    let mut known: Vec<u64> =
        candidates.iter().map(|candidate| speed_of(candidate, access)).filter(|&speed| speed > 0).collect();
    known.sort_unstable();
    known.get(known.len() / 2).map(|&speed| speed as f64)
}
