//! How late a chunk must be before parity is asked for in its place, and which devices are asked for nothing: both learned from what
//! stood in before, and whether it came first.
//!
//! By pace alone a device is late that pauses for longer than a decode would take. Where many share a processor or a disk all pause in
//! turn, and what stands in comes beside what it stood in for. So each read says how many of the blocks that were asked for because
//! others were late came before those: where they seldom do, more is waited for, where they do, or after a while, less again. A device
//! that is slow indeed teaches nothing but haste: reads that begin within a second ask nothing of it, where a decode can do without it;
//! those after that try it again. One that is known to be slow from what its server says ([`crate::straggler`]) is asked by one read in
//! sixteen: what nobody asks stays as slow as it was. Where chunks change meanwhile a decode may not fit together, and was for nothing whoever came
//! first: then all are asked for a second.

use super::ReadDone;
use crate::{DeviceId, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Times a decode's time that are waited for at least: once would begin one for ordinary jitter, where all is fast.
pub(super) const LATE_FACTOR: u32 = 2;
/// And at most. Picked by eye: a device that has stopped costs this many decodes of one segment, and half as many of the next.
const LATE_FACTOR_MAX: u32 = 16;
/// Of so many reads one asks those that are known to be slow. Picked by eye.
const TRIED_ONCE_IN: u64 = 16;
/// After so long without a lesson half as much is waited for. Picked by eye: a crowd lasts for longer.
const FORGETS_AFTER: Duration = Duration::from_secs(10);
/// How long a device that was late is done without. As for [`super::Hedge`].
const LATE_FOR: Duration = Duration::from_secs(1);

/// What a read of chunks goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// How many times the time of a decode a device may keep it waiting.
    pub factor: u32,
    /// Devices that were late a moment ago: not asked for anything where a decode can do without them.
    pub devices: BTreeSet<DeviceId>,
    /// Whether those that are known to be slow are asked all the same.
    pub tries: bool,
}

impl Default for Late {
    fn default() -> Self {
        Self { factor: LATE_FACTOR, devices: BTreeSet::new(), tries: false }
    }
}

/// What reads of chunks have learned; of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caution {
    factor: u32,
    /// When that was learned.
    learned: Time,
    late: BTreeMap<DeviceId, Time>,
    /// When chunks were last found not to fit together.
    mixed: Option<Time>,
    /// Reads begun, from any number on.
    reads: u64,
}

impl Default for Caution {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Caution {
    /// Nothing is known; `seed` says which reads try the slow, so that of clients with few reads some do.
    pub fn new(seed: u64) -> Self {
        Self { factor: LATE_FACTOR, learned: Time(0), late: BTreeMap::new(), mixed: None, reads: seed }
    }

    /// A read begins at `now`: what it goes by.
    pub fn begin(&mut self, now: Time) -> Late {
        self.reads = self.reads.wrapping_add(1);
        let mixed = self.mixed.is_some_and(|mixed| now.since(mixed) < LATE_FOR);
        Late { tries: mixed || self.reads.is_multiple_of(TRIED_ONCE_IN), ..self.late(now) }
    }

    /// What is known at `now`.
    pub fn late(&self, now: Time) -> Late {
        let late = self.late.iter().filter(|(_, since)| now.since(**since) < LATE_FOR);
        Late { factor: self.factor(now), devices: late.map(|(&device, _)| device).collect(), tries: false }
    }

    fn factor(&self, now: Time) -> u32 {
        let halvings = now.since(self.learned).as_secs() / FORGETS_AFTER.as_secs();
        (self.factor >> halvings.min(31)).max(LATE_FACTOR)
    }

    /// A read has ended so, and these still owed something that others had been asked for in their place
    /// ([`super::ReadCore::late`]).
    pub fn learn(&mut self, now: Time, read: &ReadDone, late: &[DeviceId]) {
        if read.extra_blocks == 0 {
            return;
        }
        self.late.retain(|_, since| now.since(*since) < LATE_FOR);
        let won = 2 * u64::from(read.extra_won) >= u64::from(read.extra_blocks);
        self.change(now, won);
        if won {
            self.late.extend(late.iter().map(|&device| (device, now)));
        }
    }

    /// What a read brought did not fit together, as chunks changed meanwhile: for a while all are asked, and what stood in was for
    /// nothing.
    pub fn mixed(&mut self, now: Time, read: &ReadDone) {
        self.late.clear();
        self.mixed = Some(now);
        if read.extra_blocks > 0 {
            self.change(now, false);
        }
    }

    fn change(&mut self, now: Time, won: bool) {
        let factor = self.factor(now);
        self.factor = if won { factor / 2 } else { factor * 2 }.clamp(LATE_FACTOR, LATE_FACTOR_MAX);
        self.learned = now;
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

    #[test]
    fn caution_is_forgotten_and_chunks_that_change_end_it_and_raise_it() {
        let mut caution = Caution::default();
        let seconds = |seconds: u64| Time(seconds * 1_000_000_000);
        (0..3).for_each(|_| caution.learn(seconds(1), &read(16, 0), &[]));
        assert_eq!(
            [1, 10, 11, 21, 31, 10_000].map(|at| caution.late(seconds(at)).factor),
            [16, 16, 8, 4, 2, 2]
        );
        caution.learn(seconds(21), &read(16, 0), &[]);
        assert_eq!(caution.late(seconds(21)).factor, 8);
        caution.learn(seconds(21), &read(16, 16), &[DeviceId(1)]);
        caution.mixed(seconds(21), &read(4, 4));
        assert_eq!(caution.late(seconds(21)), Late { factor: 8, ..Late::default() });
        // The lost stood in for by others teach nothing about the late. Of the slow all are asked for a second.
        caution.mixed(seconds(21), &read(0, 0));
        assert_eq!([21, 22].map(|at| caution.begin(seconds(at)).tries), [true, false]);
        assert_eq!(caution.late(seconds(21)).factor, 8);
    }

    #[test]
    fn one_read_in_sixteen_tries_the_slow() {
        let mut caution = Caution::new(5);
        let tries: Vec<u32> = (0..48).filter(|_| caution.begin(Time(0)).tries).collect();
        assert_eq!(tries, [10, 26, 42]);
    }
}
