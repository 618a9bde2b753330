//! How late a chunk must be before parity is asked for in its place, and whose chunks are not asked for at all: learned from how often
//! what stood in was for nothing, and for whom it was not.
//!
//! By pace alone a device is late that pauses for longer than a decode would take. Where many share a processor or a disk all pause in
//! turn, and what stands in comes beside what it stood in for. So each read says how many of the blocks that were asked for because
//! others were late came before those: where they seldom do, more is waited for, where they do, less again. A device that is slow
//! indeed teaches nothing but haste: of the segments that follow, for a second, nothing is asked of it where a decode can do without
//! it. The first read after that tries it again.

use super::ReadDone;
use crate::{DeviceId, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Times a decode's time that are waited for at least: once would begin one for ordinary jitter, where all is fast.
const LATE_FACTOR: u32 = 2;
/// And at most. Picked by eye: a device that has stopped costs this many decodes of one segment, and half as many of the next.
const LATE_FACTOR_MAX: u32 = 16;
/// How long a device that was late is done without. As for [`super::Hedge`].
const LATE_FOR: Duration = Duration::from_secs(1);

/// What a read of chunks goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// How many times the time of a decode a device may keep it waiting.
    pub factor: u32,
    /// Devices that were late a moment ago: not asked for anything where a decode can do without them.
    pub devices: BTreeSet<DeviceId>,
}

impl Default for Late {
    fn default() -> Self {
        Self { factor: LATE_FACTOR, devices: BTreeSet::new() }
    }
}

/// What reads of chunks have learned; of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caution {
    factor: u32,
    late: BTreeMap<DeviceId, Time>,
}

impl Default for Caution {
    fn default() -> Self {
        Self { factor: LATE_FACTOR, late: BTreeMap::new() }
    }
}

impl Caution {
    /// What a read that begins at `now` goes by.
    pub fn late(&self, now: Time) -> Late {
        let late = self.late.iter().filter(|(_, since)| now.since(**since) < LATE_FOR);
        Late { factor: self.factor, devices: late.map(|(&device, _)| device).collect() }
    }

    /// A read has ended so, and these still owed something that others had been asked for in their place
    /// ([`super::ReadCore::late`]).
    pub fn learn(&mut self, now: Time, read: &ReadDone, late: &[DeviceId]) {
        self.late.retain(|_, since| now.since(*since) < LATE_FOR);
        if read.extra_blocks == 0 {
            return;
        }
        let won = 2 * u64::from(read.extra_won) >= u64::from(read.extra_blocks);
        let factor = if won { self.factor / 2 } else { self.factor * 2 };
        self.factor = factor.clamp(LATE_FACTOR, LATE_FACTOR_MAX);
        if won {
            self.late.extend(late.iter().map(|&device| (device, now)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(extra_blocks: u32, extra_won: u32) -> ReadDone {
        ReadDone { extra_blocks, extra_won, ..ReadDone::default() }
    }

    #[test]
    fn what_was_for_nothing_makes_it_wait_and_what_was_not_makes_it_hurry() {
        let mut caution = Caution::default();
        let mut after = |(extra, won)| {
            caution.learn(Time(0), &read(extra, won), &[]);
            caution.late(Time(0)).factor
        };
        let heard = [
            (0, 0),
            (16, 7),
            (16, 8),
            (16, 0),
            (16, 0),
            (0, 0),
            (4, 1),
            (4, 0),
            (4, 4),
            (1, 1),
            (1, 1),
            (9, 9),
        ];
        assert_eq!(heard.map(&mut after), [2, 4, 2, 4, 8, 8, 16, 16, 8, 4, 2, 2]);
    }

    #[test]
    fn who_was_late_is_done_without_for_a_second() {
        let [slow, hasty] = [1, 2].map(DeviceId);
        let mut caution = Caution::default();
        caution.learn(Time(5), &read(16, 3), &[hasty]);
        caution.learn(Time(5), &read(16, 16), &[slow]);
        let late = |caution: &Caution, ms: u64| caution.late(Time(5 + ms * 1_000_000)).devices;
        assert_eq!(late(&caution, 0), BTreeSet::from([slow]));
        assert_eq!(late(&caution, 999), BTreeSet::from([slow]));
        assert_eq!(late(&caution, 1000), BTreeSet::new());
        // It is late again.
        caution.learn(Time(1_000_000_005), &read(4, 4), &[slow]);
        assert_eq!(late(&caution, 1999), BTreeSet::from([slow]));
    }
}
