//! Reads of a few bytes, each from the one node that has them: when others are asked to stand in. The rule of the adaptive reads
//! (a little extra, where it gains time) for what is too small to be forecast.
//!
//! A node is late when it takes eight times as long as such reads usually take, all nodes together; twice as long where that is more
//! than a person would wait for. So where all are busy, or far away, none is, and a read costs no more than it must. One that was late
//! is not waited for again for a second; asked it still is, and what it answers in time, or before those that stand in for it, ends
//! that. As long as nothing is known, the way there stands for what is usual.
//!
//! What others were asked for is in vain where that node answers first. As with [`super::Caution`] it is a debt, of bytes, that reads
//! pay off with a share of what they bring, and what is under way counts as one to the other reads. Once it is as large as the budget,
//! a node is late by what a person notices, not before. Where one refuses because it is overloaded nobody else is asked for a second
//! because a node is slow: that would load all the more. A node that failed is stood in for whatever was spent and whoever is overloaded:
//! that is no waste, as nothing else would do.
//!
//! Left out: what stands in, and what of it was sent.

use super::RequestRule;
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

/// Once the budget is spent a node may take so many times what is in time, at least [`WAIT_MAX`]. Picked by eye: a stall is longer, the
/// tail of a busy disk is not.
const SPENT_FACTOR: u32 = 2;
/// What may be asked for in vain, in hundredths of what is read. As [`super::Caution`].
const WASTE_PERCENT_MAX: u8 = 5;
/// Debt from which on the budget is spent, of any rule that has one: what a client may waste before its reads have paid for it, and
/// after a quiet time. Picked by eye: some dozens of stand-ins for one granule, one or two of those for many.
pub(super) const BUDGET_BYTES: u64 = 1 << 20;

/// A node that is not waited for.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    since: Time,
    /// Whether it has not answered at all since it failed.
    failed: bool,
}

/// What is known of such reads, of who is late, and of what was in vain; of one client.
#[derive(Clone, Debug)]
pub struct Hedge {
    took: VecDeque<Duration>,
    late: BTreeMap<DeviceId, Lateness>,
    /// When a node last refused because it was overloaded.
    overloaded: Option<Time>,
    /// Hundredths of what is read that may be in vain; `None`: any.
    waste_percent: Option<u8>,
    /// Bytes in vain that reads have not paid for.
    debt_bytes: u64,
    /// Bytes that others may be sending for nodes that are only late.
    under_way_bytes: u64,
}

impl Default for Hedge {
    fn default() -> Self {
        Self::new(RequestRule::ADAPTIVE)
    }
}

impl Hedge {
    /// Nothing is known. `rule`: what may be in vain.
    pub fn new(rule: RequestRule) -> Self {
        let waste_percent = match rule {
            RequestRule::Adaptive { waste_percent } => Some(waste_percent.min(WASTE_PERCENT_MAX)),
            RequestRule::All | RequestRule::AllAtOnce | RequestRule::KPlus(_) => None,
        };
        Self {
            took: VecDeque::new(),
            late: BTreeMap::new(),
            overloaded: None,
            waste_percent,
            debt_bytes: 0,
            under_way_bytes: 0,
        }
    }

    /// How much longer to wait at `now` for a device that was asked at `asked` before others are, too; `None`: until it fails. A request
    /// and its answer take as long as `way` between here and there, where that is known. Other reads change it meanwhile.
    pub fn wait(&self, now: Time, device: DeviceId, asked: Time, way: Option<Duration>) -> Option<Duration> {
        if self.lateness(now, device).is_some_and(|late| late.failed) {
            return Some(Duration::ZERO);
        }
        let may_take = match self.budget_bytes() {
            Some(0) => return None,
            _ if self.is_late(now, device) => Duration::ZERO,
            Some(budget) if self.debt_bytes + self.under_way_bytes >= budget => {
                self.in_time(way).saturating_mul(SPENT_FACTOR).max(WAIT_MAX)
            }
            _ => self.in_time(way),
        };
        let overload = self.overloaded.map_or(Duration::ZERO, |since| (since + LATE_FOR).since(now));
        Some((asked + may_take).since(now).max(overload))
    }

    /// Whether a device is late by what is known of it.
    pub fn is_late(&self, now: Time, device: DeviceId) -> bool {
        self.lateness(now, device).is_some()
    }

    fn lateness(&self, now: Time, device: DeviceId) -> Option<&Lateness> {
        self.late.get(&device).filter(|late| now.since(late.since) < LATE_FOR)
    }

    /// What may be in vain before others are asked later; `None`: anything.
    fn budget_bytes(&self) -> Option<u64> {
        self.waste_percent.map(|percent| if percent == 0 { 0 } else { BUDGET_BYTES })
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
        } else if let Some(late) = self.late.get_mut(&device) {
            late.failed = false;
        }
    }

    /// It did so before those that stood in for it: to ask them at once gains nothing.
    pub fn came_first(&mut self, device: DeviceId) {
        self.late.remove(&device);
    }

    /// A device did not answer within what was waited for.
    pub fn late(&mut self, now: Time, device: DeviceId) {
        let failed = self.lateness(now, device).is_some_and(|late| late.failed);
        self.late.insert(device, Lateness { since: now, failed });
    }

    /// A device has failed.
    pub fn failed(&mut self, now: Time, device: DeviceId) {
        self.late.insert(device, Lateness { since: now, failed: true });
    }

    /// A node, whoever's, refused because it is overloaded.
    pub fn overloaded(&mut self, now: Time) {
        self.overloaded = Some(now);
    }

    /// Others stand in for a device that has not failed, which may make them send so many bytes.
    pub fn asked(&mut self, bytes: u64) {
        self.under_way_bytes += bytes;
    }

    /// They do so no more; so many bytes that they were made to send were in vain: none where they were first.
    pub fn ended(&mut self, bytes: u64, in_vain: u64) {
        self.under_way_bytes = self.under_way_bytes.checked_sub(bytes).expect("what ends was asked for");
        // What is asked for once all is spent is so for devices that keep silent: reads need not pay for it.
        if self.debt_bytes < BUDGET_BYTES {
            self.debt_bytes += in_vain;
        }
    }

    /// A read has brought so many bytes, and pays with a share of them.
    pub fn brought(&mut self, bytes: u64) {
        let paid = bytes * u64::from(self.waste_percent.unwrap_or_default()) / 100;
        self.debt_bytes = self.debt_bytes.saturating_sub(paid);
    }
}
