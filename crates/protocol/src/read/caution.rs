//! How late a chunk must be before parity is asked for in its place, and which devices are asked for nothing: both learned from what
//! stood in before, and whether it came first.
//!
//! By pace alone a device is late that pauses for longer than a decode would take. Where many share a processor or a disk all pause in
//! turn, and what stands in comes beside what it stood in for. So each read says how many of the blocks that were asked for because
//! others were late came before those: where they seldom do, more is waited for, where they do, or after a while, less again. A device
//! that is slow indeed teaches nothing but haste: reads that begin within a second ask nothing of it, where a decode can do without it;
//! those after that try it again. One that is known to be slow from what its server says ([`crate::straggler`]) is asked by one read in
//! sixteen: what nobody asks stays as slow as it was.
//!
//! What was for nothing is a debt, of bytes, that reads pay off with a share of what they bring: while there is one all that can be is
//! waited for. So of what is read in the long run no larger share is sent in vain, whatever the times say. What stood in and came first
//! halves it, and it is forgiven with the caution. While nobody knows yet what comes first, what was asked for counts as a debt to the
//! other reads: a client that begins with several at once is to learn from the first what it would pay for with all.
//!
//! Where chunks change meanwhile a decode may not fit together, and was for nothing whoever came
//! first: then all are asked for a second.

use super::{ReadDone, RequestRule};
use crate::{DeviceId, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Times a decode's time that are waited for at least: once would begin one for ordinary jitter, where all is fast.
pub(super) const LATE_FACTOR: u32 = 2;
/// And at most. Picked by eye: a device that has stopped costs this many decodes of one segment, and half as many of the next.
pub(super) const LATE_FACTOR_MAX: u32 = 16;
/// Of so many reads one asks those that are known to be slow. Picked by eye.
const TRIED_ONCE_IN: u64 = 16;
/// After so long without a lesson half as much is waited for. Picked by eye: a crowd lasts for longer.
const FORGETS_AFTER: Duration = Duration::from_secs(10);
/// What may be asked for in vain, in hundredths of what is read: what a read may waste a millisecond away. Over a long way the rule's
/// budget is larger, for what is on its way there.
const WASTE_PERCENT_MAX: u8 = 5;
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
    /// Hundredths of what is read that may be in vain; `None`: any.
    waste_percent: Option<u8>,
    /// Bytes in vain beyond that.
    debt_bytes: u64,
    /// Bytes that stand in for what is late, of reads that have not ended.
    under_way_bytes: u64,
}

impl Default for Caution {
    fn default() -> Self {
        Self::new(0, RequestRule::ADAPTIVE)
    }
}

impl Caution {
    /// Nothing is known; `seed` says which reads try the slow, so that of clients with few reads some do. `rule`: what may be in vain.
    pub fn new(seed: u64, rule: RequestRule) -> Self {
        let waste_percent = match rule {
            RequestRule::Adaptive { waste_percent } => Some(waste_percent.min(WASTE_PERCENT_MAX)),
            RequestRule::All | RequestRule::AllAtOnce | RequestRule::KPlus(_) => None,
        };
        Self {
            factor: LATE_FACTOR,
            learned: Time(0),
            late: BTreeMap::new(),
            mixed: None,
            reads: seed,
            waste_percent,
            debt_bytes: 0,
            under_way_bytes: 0,
        }
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
        let devices = late.map(|(&device, _)| device).collect();
        Late { factor: self.factor_beside(now, 0), devices, tries: false }
    }

    /// How late is late at `now` to a read that has so many bytes itself that stand in for others.
    pub fn factor_beside(&self, now: Time, own_bytes: u64) -> u32 {
        let others = self.waste_percent.map_or(0, |_| self.under_way_bytes.saturating_sub(own_bytes));
        if self.debt(now) + others > 0 { LATE_FACTOR_MAX } else { self.factor(now) }
    }

    /// A read has asked for so many more bytes that stand in for what is late.
    pub fn asked(&mut self, bytes: u64) {
        self.under_way_bytes += bytes;
    }

    /// A read that had asked for so many has ended, whatever came of it.
    pub fn ended(&mut self, bytes: u64) {
        self.under_way_bytes = self.under_way_bytes.checked_sub(bytes).expect("what ends was asked for");
    }

    fn debt(&self, now: Time) -> u64 {
        if now.since(self.learned) < FORGETS_AFTER { self.debt_bytes } else { 0 }
    }

    fn factor(&self, now: Time) -> u32 {
        let halvings = now.since(self.learned).as_secs() / FORGETS_AFTER.as_secs();
        (self.factor >> halvings.min(31)).max(LATE_FACTOR)
    }

    /// A read of blocks of so many bytes has ended so, and these still owed something that others had been asked for in their place
    /// ([`super::ReadCore::late`]).
    pub fn learn(&mut self, now: Time, read: &ReadDone, block_bytes: u32, late: &[DeviceId]) {
        self.account(now, read, block_bytes, read.extra_won);
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
    pub fn mixed(&mut self, now: Time, read: &ReadDone, block_bytes: u32) {
        self.account(now, read, block_bytes, 0);
        self.late.clear();
        self.mixed = Some(now);
        if read.extra_blocks > 0 {
            self.change(now, false);
        }
    }

    /// What was in vain, less what this read pays.
    fn account(&mut self, now: Time, read: &ReadDone, block_bytes: u32, won: u32) {
        let Some(percent) = self.waste_percent else { return };
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(block_bytes);
        let in_vain = bytes(read.extra_blocks.saturating_sub(won));
        let paid = bytes(read.useful_blocks) * u64::from(percent) / 100;
        self.debt_bytes = (self.debt(now) + in_vain).saturating_sub(paid);
    }

    fn change(&mut self, now: Time, won: bool) {
        let factor = self.factor(now);
        self.factor = if won { factor / 2 } else { factor * 2 }.clamp(LATE_FACTOR, LATE_FACTOR_MAX);
        if won {
            // Whoever is late now is late indeed.
            self.debt_bytes /= 2;
        }
        self.learned = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 1000;

    /// Of a read that is large enough to pay for what it had in vain.
    fn read(extra_blocks: u32, extra_won: u32) -> ReadDone {
        ReadDone { extra_blocks, extra_won, useful_blocks: 20 * extra_blocks, ..ReadDone::default() }
    }

    #[test]
    fn what_was_for_nothing_is_paid_off_by_what_is_read() {
        let factor_after = |caution: &mut Caution, at: u64, extra_blocks, extra_won, useful_blocks| {
            let read = ReadDone { extra_blocks, extra_won, useful_blocks, ..ReadDone::default() };
            caution.learn(Time(at), &read, BLOCK, &[]);
            caution.late(Time(at)).factor
        };
        let mut caution = Caution::default();
        // 16 blocks in vain, and 64 that pay for 3.2 of them.
        assert_eq!(factor_after(&mut caution, 0, 16, 0, 64), LATE_FACTOR_MAX);
        assert_eq!([255, 1].map(|read| factor_after(&mut caution, 0, 0, 0, read)), [LATE_FACTOR_MAX, 4]);
        // What came first costs nothing.
        assert_eq!(factor_after(&mut caution, 0, 16, 16, 16), 2);
        // Nobody pays, and the debt ends all the same.
        assert_eq!(factor_after(&mut caution, 0, 100, 99, 0), LATE_FACTOR_MAX);
        let later = Time(FORGETS_AFTER.as_nanos() as u64);
        assert_eq!(caution.late(later).factor, 2);
        assert_eq!(factor_after(&mut caution, later.0, 0, 0, 1), 2);
        // Lessons that were won halve a debt, and do not keep it alive for ever.
        let mut caution = Caution::default();
        assert_eq!(factor_after(&mut caution, 0, 40, 0, 0), LATE_FACTOR_MAX);
        let won = (0..20).take_while(|_| factor_after(&mut caution, 1, 1, 1, 0) == LATE_FACTOR_MAX).count();
        assert_eq!(won, 15, "of 40,000 bytes");
        // Where chunks changed all was in vain; who asks for everything has no budget.
        let of_mixed = |mut caution: Caution| {
            caution.mixed(Time(0), &ReadDone { extra_blocks: 4, extra_won: 4, ..ReadDone::default() }, BLOCK);
            caution.late(Time(0)).factor
        };
        assert_eq!(of_mixed(Caution::default()), LATE_FACTOR_MAX);
        assert_eq!(of_mixed(Caution::new(0, RequestRule::All)), 4);
        assert_eq!(of_mixed(Caution::new(0, RequestRule::Adaptive { waste_percent: 0 })), LATE_FACTOR_MAX);
    }

    #[test]
    fn what_was_for_nothing_makes_it_wait_and_what_was_not_makes_it_hurry() {
        let mut caution = Caution::default();
        let mut after = |(extra, won)| {
            caution.learn(Time(0), &read(extra, won), BLOCK, &[]);
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
        caution.learn(Time(5), &read(16, 3), BLOCK, &[hasty]);
        caution.learn(Time(5), &read(16, 16), BLOCK, &[slow]);
        let late = |caution: &Caution, ms: u64| caution.late(Time(5 + ms * 1_000_000)).devices;
        assert_eq!(late(&caution, 0), BTreeSet::from([slow]));
        assert_eq!(late(&caution, 999), BTreeSet::from([slow]));
        assert_eq!(late(&caution, 1000), BTreeSet::new());
        // It is late again.
        caution.learn(Time(1_000_000_005), &read(4, 4), BLOCK, &[slow]);
        assert_eq!(late(&caution, 1999), BTreeSet::from([slow]));
    }

    #[test]
    fn caution_is_forgotten_and_chunks_that_change_end_it_and_raise_it() {
        let mut caution = Caution::default();
        let seconds = |seconds: u64| Time(seconds * 1_000_000_000);
        (0..3).for_each(|_| caution.learn(seconds(1), &read(16, 0), BLOCK, &[]));
        assert_eq!(
            [1, 10, 11, 21, 31, 10_000].map(|at| caution.late(seconds(at)).factor),
            [16, 16, 8, 4, 2, 2]
        );
        caution.learn(seconds(21), &read(16, 0), BLOCK, &[]);
        assert_eq!(caution.late(seconds(21)).factor, 8);
        caution.learn(seconds(21), &read(16, 16), BLOCK, &[DeviceId(1)]);
        caution.mixed(seconds(21), &read(4, 4), BLOCK);
        assert_eq!(caution.late(seconds(21)), Late { factor: 8, ..Late::default() });
        // The lost stood in for by others teach nothing about the late. Of the slow all are asked for a second.
        caution.mixed(seconds(21), &read(0, 0), BLOCK);
        assert_eq!([21, 22].map(|at| caution.begin(seconds(at)).tries), [true, false]);
        assert_eq!(caution.late(seconds(21)).factor, 8);
    }

    #[test]
    fn one_read_in_sixteen_tries_the_slow() {
        let mut caution = Caution::new(5, RequestRule::ADAPTIVE);
        let tries: Vec<u32> = (0..48).filter(|_| caution.begin(Time(0)).tries).collect();
        assert_eq!(tries, [10, 26, 42]);
    }

    #[test]
    fn what_stands_in_is_a_debt_to_others_until_it_is_known_who_was_first() {
        let mut caution = Caution::default();
        let factors = |caution: &Caution| [0, 3000].map(|own| caution.factor_beside(Time(0), own));
        caution.asked(3000);
        assert_eq!(factors(&caution), [LATE_FACTOR_MAX, LATE_FACTOR]);
        caution.asked(1000);
        assert_eq!(factors(&caution), [LATE_FACTOR_MAX; 2], "two wait for each other's lesson");
        caution.ended(1000);
        caution.ended(3000);
        assert_eq!(factors(&caution), [LATE_FACTOR; 2]);
        // Who asks for everything has no budget.
        let mut all = Caution::new(0, RequestRule::All);
        all.asked(3000);
        assert_eq!(factors(&all), [LATE_FACTOR; 2]);
    }
}
