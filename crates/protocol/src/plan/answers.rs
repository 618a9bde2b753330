//! How long devices are waited for that an access has asked to keep bandwidth (§5.4).
//!
//! Reserving is no work for a disk: devices answer within a round trip or so, unless their server is busy, or gone. So one that is
//! silent is waited for several times as long as the slowest of those that answered; the first time for a part of all the time that the
//! access is to take, too, which costs it little. Then it counts as one that refused, and the access is planned without it. Only where the
//! others do not suffice it is waited for longer ([`Answers::at_most`]): a server that is slow to answer is better than none. At least
//! half of what a wish for a latency leaves is left to the access itself.
//!
//! All of this goes by the time and the round trip of the whole access: a device is no nearer, and no faster to answer, to one that is
//! made in many parts.
//!
//! Who was silent is not asked again for a while, so that of an object of many segments not each waits for it. What an access has lost to
//! silence counts against its latency ([`Answers::left`]).

use super::{HEADROOM, Quality, Wish};
use crate::{DeviceId, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// As [`crate::read::Hedge`] takes a node for late.
const FACTOR: u32 = 8;
/// A device that was not silent before may cost this part of the access's time: less than what is reserved beyond the wish makes good
/// for ([`super::HEADROOM`]).
const SHARE: u32 = 16;
/// A device that was silent several times is not asked again for up to so many times [`Answers::RETRY`]. Picked by eye.
const RETRIES_MAX: u32 = 32;

/// The devices that one access has asked, and which of them answer.
#[derive(Clone, Debug)]
pub struct Answers {
    /// What the whole access is to take by what is wished for.
    span: Duration,
    /// The latency that is wished for all of it.
    latency: Option<Duration>,
    /// A round trip in the cluster.
    round_trip: Duration,
    /// When the last ones were asked, all at once, ...
    asked: Time,
    /// ... who of them has not answered, ...
    missing: BTreeSet<DeviceId>,
    /// ... how long the slowest took, a round trip at least, ...
    slowest: Duration,
    /// ... and how long they may take at most.
    at_most: Duration,
    silent: BTreeMap<DeviceId, Silence>,
    /// Time in which the access did not get on.
    lost: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Silence {
    times: u32,
    /// When it may be asked again.
    until: Time,
}

impl Answers {
    /// How long a device may take to answer before it counts as one that refused, whatever the others take. Reserving is no work for a
    /// disk.
    pub const WITHIN: Duration = Duration::from_secs(2);
    /// When devices that did not answer may be asked again.
    pub const RETRY: Duration = Duration::from_secs(1);

    /// Of an access of `length` bytes, with these wishes for all of it, in a cluster in which a round trip takes so long.
    pub fn new(quality: &Quality, length: u64, round_trip: Duration) -> Self {
        let by_bandwidth = quality.bandwidth_bytes_per_s.map(|rate| length as f64 / rate.max(1) as f64);
        let by_bandwidth =
            by_bandwidth.map(|span| Duration::try_from_secs_f64(span).unwrap_or(Duration::MAX));
        let span = by_bandwidth.into_iter().chain(quality.latency).min().unwrap_or(Duration::MAX);
        let (missing, silent) = Default::default();
        Self {
            span,
            latency: quality.latency,
            round_trip,
            asked: Time(0),
            missing,
            slowest: Duration::ZERO,
            at_most: Self::WITHIN,
            silent,
            lost: Duration::ZERO,
        }
    }

    /// These are asked now, the farthest of them so long a round trip away as far as is known, once so much time has passed `since` the
    /// part of the access was planned that they are asked for.
    pub fn ask(
        &mut self,
        now: Time,
        devices: impl IntoIterator<Item = DeviceId>,
        round_trip: Duration,
        since: Duration,
    ) {
        self.asked = now;
        self.missing = devices.into_iter().collect();
        self.slowest = self.round_trip.max(round_trip);
        let gone = self.lost.saturating_add(since);
        let half = self.latency.map(|latency| latency.saturating_sub(gone) / 2);
        self.at_most = half.map_or(Self::WITHIN, |half| Self::WITHIN.min(half));
    }

    /// One has answered, whatever it said.
    pub fn answered(&mut self, now: Time, device: DeviceId) {
        self.silent.remove(&device);
        if self.missing.remove(&device) {
            self.slowest = self.slowest.max(now.since(self.asked));
        }
    }

    /// Until when those that have not answered are waited for; none where all have.
    pub fn wait_until(&self) -> Option<Time> {
        let is_new = self.missing.iter().any(|device| !self.silent.contains_key(device));
        let share = if is_new { self.span / SHARE } else { Duration::ZERO };
        let wait = self.slowest.saturating_mul(FACTOR).max(share).min(self.at_most);
        (!self.missing.is_empty()).then(|| self.asked + wait)
    }

    /// Those that have not answered are not waited for any more: who they are.
    pub fn give_up(&mut self, now: Time) -> BTreeSet<DeviceId> {
        let given_up = core::mem::take(&mut self.missing);
        for &device in &given_up {
            let times = self.silent.get(&device).map_or(0, |silence| silence.times).saturating_add(1);
            let retry = Self::RETRY * 2u32.saturating_pow(times - 1).min(RETRIES_MAX);
            self.silent.insert(device, Silence { times, until: now + retry });
        }
        given_up
    }

    /// Until when one that was given up is waited for, where the others do not suffice.
    pub fn at_most(&self) -> Time {
        self.asked + self.at_most
    }

    /// Devices that are not asked at `now`, and for how long.
    pub fn silent(&self, now: Time) -> BTreeMap<DeviceId, Duration> {
        let silent = self.silent.iter().filter(|(_, silence)| silence.until > now);
        silent.map(|(&device, silence)| (device, silence.until.since(now))).collect()
    }

    /// Whether what is reserved beyond the wish makes good for answers that were so `late`: took longer than the round trip that plans
    /// count. It is reserved in every part of the access.
    pub fn makes_good(&self, late: Duration) -> bool {
        // At a pace that is so much higher so much less time is needed.
        self.latency.is_none_or(|latency| late <= latency.mul_f64(HEADROOM / (1.0 + HEADROOM)))
    }

    /// The access did not get on for so long.
    pub fn lose(&mut self, span: Duration) {
        self.lost = self.lost.saturating_add(span);
    }

    /// What is left of the wish for a part of the access, once so much of its time has passed `since` that was planned and more was lost
    /// before; and how much that takes from it. All parts make good for what one has lost, each by its share of all the time, not of what
    /// remains of it: what falls on those that are done is not made good for.
    pub fn left(&self, wish: &Wish, since: Duration) -> (Wish, Duration) {
        let Some((part, whole)) = wish.quality.latency.zip(self.latency) else {
            return (*wish, Duration::ZERO);
        };
        let share = part.as_secs_f64() / whole.max(part).as_secs_f64().max(f64::MIN_POSITIVE);
        let spent = self.lost.saturating_add(since).mul_f64(share);
        (wish.after(spent), spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn wish(text: &str, round_trip_ms: u64) -> Wish {
        Wish { quality: text.parse().unwrap(), round_trip: Duration::from_millis(round_trip_ms) }
    }

    fn devices(names: impl IntoIterator<Item = u128>) -> BTreeSet<DeviceId> {
        names.into_iter().map(DeviceId).collect()
    }

    /// Six are asked for an access with this wish for 16 MB; five answer within so many milliseconds. How long the last is waited for.
    fn waited(text: &str, round_trip_ms: u64, slowest_ms: u64) -> Duration {
        let wish = wish(text, round_trip_ms);
        let mut answers = Answers::new(&wish.quality, 16_000_000, Duration::ZERO);
        answers.ask(at(1000), devices(1..=6), wish.round_trip, Duration::ZERO);
        (1..=5).for_each(|device| answers.answered(at(1000 + slowest_ms), DeviceId(device)));
        let until = answers.wait_until().unwrap();
        answers.answered(until, DeviceId(6));
        assert_eq!(answers.wait_until(), None);
        until.since(at(1000))
    }

    #[test]
    fn the_silent_are_waited_for_by_what_the_others_took_and_the_wish_leaves() {
        let ms = Duration::from_millis;
        // A sixteenth of 160 ms, of 1.6 s; eight times what the slowest took, or the way takes; two seconds.
        for (text, round_trip, slowest, expected) in [
            ("bandwidth=100MB", 0, 0, 10),
            ("bandwidth=10MB", 0, 1, 100),
            ("bandwidth=100MB", 1, 3, 24),
            ("bandwidth=100MB", 100, 3, 800),
            ("bandwidth=100MB", 100, 700, 2000),
            ("bandwidth=100kB", 1, 3, 2000),
            // The sharper wish; never more than half of what there is.
            ("bandwidth=10MB,latency=320ms", 1, 1, 20),
            ("latency=320ms", 1, 15, 120),
            ("latency=320ms", 1, 30, 160),
            ("latency=320ms", 100, 3, 160),
        ] {
            assert_eq!(waited(text, round_trip, slowest), ms(expected), "{text} {round_trip} {slowest}");
        }
    }

    #[test]
    fn who_was_silent_is_not_asked_for_a_while_and_costs_little_then() {
        let wish = wish("bandwidth=1MB", 1);
        let mut answers = Answers::new(&wish.quality, 16_000_000, Duration::ZERO);
        answers.ask(at(0), devices([1, 2]), wish.round_trip, Duration::ZERO);
        answers.answered(at(2), DeviceId(1));
        assert_eq!(answers.wait_until(), Some(at(1000)));
        assert_eq!(answers.give_up(at(1000)), devices([2]));
        assert_eq!((answers.wait_until(), answers.at_most()), (None, at(2000)));
        assert_eq!(answers.silent(at(1400)), [(DeviceId(2), Duration::from_millis(600))].into());
        assert!(answers.silent(at(2000)).is_empty());
        // Not for a part of the access once more, and for twice as long nothing is asked of it.
        answers.ask(at(3000), devices([1, 2]), wish.round_trip, Duration::ZERO);
        answers.answered(at(3002), DeviceId(1));
        assert_eq!(answers.wait_until(), Some(at(3016)));
        answers.give_up(at(3016));
        assert!(answers.silent(at(5015)).contains_key(&DeviceId(2)) && answers.silent(at(5016)).is_empty());
        // However often.
        for _ in 0..100 {
            answers.ask(at(6000), devices([2]), wish.round_trip, Duration::ZERO);
            answers.give_up(at(6000));
        }
        assert_eq!(answers.silent(at(6000)), [(DeviceId(2), Duration::from_secs(32))].into());
        // It answers after all.
        answers.answered(at(6001), DeviceId(2));
        assert!(answers.silent(at(6001)).is_empty());
    }

    /// Of an object of a hundred segments.
    #[test]
    fn devices_are_waited_for_by_the_time_and_the_way_of_the_whole_access() {
        let (whole, ms) = (wish("latency=1s", 4), Duration::from_millis);
        let part = whole.part(1, 100);
        let mut answers = Answers::new(&whole.quality, 1000, whole.round_trip);
        answers.ask(at(0), devices([1, 2]), part.round_trip, ms(0));
        // A sixteenth of a second; half of it where the others do not suffice.
        assert_eq!(answers.wait_until(), Some(Time(62_500_000)));
        assert_eq!(answers.at_most(), at(500));
        answers.answered(at(6), DeviceId(1));
        assert_eq!(answers.give_up(at(63)), devices([2]));
        // It is asked alone: eight times the way, as long as half of what is left is not less.
        answers.lose(ms(200));
        answers.ask(at(2000), devices([2]), part.round_trip, ms(100));
        assert_eq!((answers.wait_until(), answers.at_most()), (Some(at(2032)), at(2350)));
        // It is further away than the others.
        answers.ask(at(2000), devices([2]), ms(10), ms(100));
        assert_eq!(answers.wait_until(), Some(at(2080)));
        answers.ask(at(2000), devices([2]), ms(10), ms(700));
        assert_eq!(answers.wait_until(), Some(at(2050)));
        answers.ask(at(2000), devices([2]), ms(10), ms(900));
        assert_eq!(answers.wait_until(), Some(at(2000)), "no time is left");
    }

    #[test]
    fn what_is_reserved_beyond_the_wish_makes_good_for_a_little() {
        let makes_good = |text: &str, late_ms| {
            let answers = Answers::new(&wish(text, 1).quality, 1000, Duration::ZERO);
            answers.makes_good(Duration::from_millis(late_ms))
        };
        assert!(makes_good("latency=1100ms", 0) && makes_good("latency=1100ms", 99));
        assert!(!makes_good("latency=1100ms", 101));
        assert!(makes_good("bandwidth=1MB", 1_000_000));
    }

    #[test]
    fn what_is_lost_counts_against_the_latency_of_all_parts() {
        let (whole, ms) = (wish("latency=800ms", 4), Duration::from_millis);
        let left = |answers: &Answers, wish: &Wish, since| {
            let (left, spent) = answers.left(wish, ms(since));
            (left.quality.latency.unwrap(), spent)
        };
        let mut answers = Answers::new(&whole.quality, 1000, whole.round_trip);
        assert_eq!(left(&answers, &whole, 100), (ms(700), ms(100)));
        assert_eq!(left(&answers, &whole, 1000), (ms(0), ms(1000)));
        let part = whole.part(1, 4);
        assert_eq!(left(&answers, &part, 40), (ms(190), ms(10)));
        answers.lose(ms(200));
        assert_eq!(left(&answers, &part, 40), (ms(140), ms(60)));
        assert_eq!(left(&answers, &whole, 0), (ms(600), ms(200)));
        // Nobody wishes for a bandwidth in any time.
        let pace = wish("bandwidth=1MB", 4);
        assert_eq!(answers.left(&pace, ms(500)), (pace, ms(0)));
    }
}
