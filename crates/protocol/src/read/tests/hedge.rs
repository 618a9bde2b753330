//! Who is late with a few bytes, and when others are asked for them.

use crate::{
    DeviceId, Time,
    read::{Hedge, RequestRule, hedge::BUDGET_BYTES},
};
use core::time::Duration;

const SLOW: DeviceId = DeviceId(9);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn used_to(took: Duration) -> Hedge {
    used_to_under(RequestRule::ADAPTIVE, took)
}

fn used_to_under(rule: RequestRule, took: Duration) -> Hedge {
    let mut hedge = Hedge::new(rule);
    (0..40).for_each(|n| hedge.answered(DeviceId(n % 5), took));
    hedge
}

/// How long a device is waited for that is asked now, at the most until it fails.
fn wait(hedge: &Hedge, now: Time, device: DeviceId) -> Option<Duration> {
    hedge.wait(now, device, now, None)
}

/// Others stood in for a device, and so many bytes of that were in vain.
fn stood_in(hedge: &mut Hedge, bytes: u64, in_vain: u64) {
    hedge.asked(bytes);
    hedge.ended(bytes, in_vain);
}

#[test]
fn the_wait_follows_what_is_usual_within_bounds() {
    let wait_for = |hedge: &Hedge, device| wait(hedge, Time(0), device).unwrap();
    assert_eq!(wait_for(&Hedge::default(), SLOW), ms(50));
    assert_eq!(wait_for(&used_to(ms(1)), SLOW), ms(8));
    assert_eq!(wait_for(&used_to(Duration::from_micros(10)), SLOW), ms(2));
    assert_eq!(wait_for(&used_to(ms(100)), SLOW), ms(250));
    // Less than what is usual would make every node late.
    assert_eq!(wait_for(&used_to(ms(900)), SLOW), ms(1800));
    // A few that take long change nothing; when most do, it is usual.
    let mut hedge = used_to(ms(1));
    (0..20).for_each(|_| hedge.answered(SLOW, ms(30)));
    assert_eq!(wait_for(&hedge, DeviceId(1)), ms(8));
    (0..40).for_each(|n| hedge.answered(DeviceId(n % 5), ms(5)));
    assert_eq!(wait_for(&hedge, DeviceId(1)), ms(40));
    // What was waited already counts.
    let waited = |ms: u64| hedge.wait(Time(ms * 1_000_000), DeviceId(1), Time(0), None);
    assert_eq!([0, 15, 40, 41].map(waited), [40, 25, 0, 0].map(|left| Some(ms(left))));
}

#[test]
fn as_long_as_nothing_is_known_a_long_way_is_waited_for() {
    let over = |hedge: &Hedge, way: u64| hedge.wait(Time(0), SLOW, Time(0), Some(ms(way))).unwrap();
    assert_eq!([1, 100].map(|way| over(&Hedge::default(), way)), [ms(50), ms(800)]);
    // What is known says more.
    assert_eq!(over(&used_to(ms(1)), 100), ms(8));
    // The first that answer say something.
    let mut hedge = Hedge::default();
    hedge.answered(DeviceId(1), ms(300));
    assert_eq!(wait(&hedge, Time(0), SLOW), Some(ms(600)));
}

/// All disks are overloaded, or all are far away: whoever answers as all do is in time again, and others are not asked as well.
#[test]
fn where_all_take_long_nobody_stays_late() {
    for usual in [300, 900] {
        let mut hedge = used_to(ms(usual));
        hedge.late(Time(0), SLOW);
        assert_eq!(wait(&hedge, Time(0), SLOW), Some(Duration::ZERO));
        hedge.answered(SLOW, ms(usual));
        assert_eq!(wait(&hedge, Time(0), SLOW), Some(ms(2 * usual)));
    }
}

#[test]
fn who_was_late_is_not_waited_for_until_it_is_in_time_or_a_second_later() {
    let mut hedge = used_to(ms(1));
    let now = Time(0) + ms(500);
    hedge.late(now, SLOW);
    let wait = |hedge: &Hedge, at, device| wait(hedge, at, device).unwrap();
    assert_eq!(wait(&hedge, now + ms(999), SLOW), Duration::ZERO);
    assert_eq!(wait(&hedge, now + ms(999), DeviceId(1)), ms(8));
    assert_eq!(wait(&hedge, now + ms(1000), SLOW), ms(8));
    hedge.answered(SLOW, ms(30));
    assert_eq!(wait(&hedge, now, SLOW), Duration::ZERO, "an answer that is late changes nothing");
    hedge.answered(SLOW, ms(3));
    assert_eq!(wait(&hedge, now, SLOW), ms(8));
    // Nor is it late enough where others are no sooner.
    hedge.late(now, SLOW);
    hedge.answered(SLOW, ms(30));
    hedge.came_first(SLOW);
    assert_eq!(wait(&hedge, now, SLOW), ms(8));
}

#[test]
fn what_was_in_vain_is_paid_by_what_is_read_and_bounded() {
    let wait = |hedge: &Hedge| wait(hedge, Time(0), SLOW).unwrap();
    let mut hedge = used_to(ms(1));
    // A first straggler is not waited for, and what was first costs nothing.
    (0..1000).for_each(|_| stood_in(&mut hedge, BUDGET_BYTES, 0));
    stood_in(&mut hedge, BUDGET_BYTES, BUDGET_BYTES - 1);
    assert_eq!(wait(&hedge), ms(8));
    stood_in(&mut hedge, 1, 1);
    assert_eq!(wait(&hedge), ms(250), "all is spent, and it is not waited for without end");
    // Of a hundred bytes five.
    hedge.brought(19);
    assert_eq!(wait(&hedge), ms(250));
    hedge.brought(20);
    assert_eq!(wait(&hedge), ms(8));
    // However much was read before, a burst can spend no more than at first.
    hedge.brought(1 << 40);
    stood_in(&mut hedge, BUDGET_BYTES, BUDGET_BYTES);
    assert_eq!(wait(&hedge), ms(250));
    // What is asked for all the same is for the silent, and adds no debt.
    (0..1000).for_each(|_| stood_in(&mut hedge, BUDGET_BYTES, BUDGET_BYTES));
    hedge.brought(20);
    assert_eq!(wait(&hedge), ms(8));
    // Where that is usual the wait is longer, too.
    let mut busy = used_to(ms(300));
    assert_eq!(wait(&busy), ms(600));
    stood_in(&mut busy, BUDGET_BYTES, BUDGET_BYTES);
    assert_eq!(wait(&busy), ms(1200));
}

/// Those that begin at once are to learn from the first what they would pay for together.
#[test]
fn what_is_under_way_counts_as_in_vain_to_other_reads() {
    let wait = |hedge: &Hedge| wait(hedge, Time(0), SLOW).unwrap();
    let mut hedge = used_to(ms(1));
    hedge.asked(BUDGET_BYTES - 1);
    assert_eq!(wait(&hedge), ms(8));
    hedge.asked(1);
    assert_eq!(wait(&hedge), ms(250));
    hedge.ended(1, 0);
    assert_eq!(wait(&hedge), ms(8));
}

#[test]
fn who_failed_or_is_known_as_late_is_stood_in_for_whatever_was_spent() {
    let [failed, late] = [1, 2].map(DeviceId);
    let mut hedge = used_to(ms(1));
    stood_in(&mut hedge, BUDGET_BYTES, BUDGET_BYTES);
    hedge.failed(Time(0), failed);
    hedge.late(Time(0), late);
    let waits = |hedge: &Hedge| [failed, late, SLOW].map(|device| wait(hedge, Time(0), device).unwrap());
    assert_eq!(waits(&hedge), [ms(0), ms(0), ms(250)]);
    // That others were no sooner ends that.
    hedge.came_first(late);
    assert_eq!(waits(&hedge), [ms(0), ms(250), ms(250)]);
}

#[test]
fn where_a_node_is_overloaded_nobody_stands_in_for_a_second_but_for_those_that_failed() {
    let [failed, late] = [1, 2].map(DeviceId);
    // Who asks for everything does not add to it either.
    for rule in [RequestRule::ADAPTIVE, RequestRule::All] {
        let mut hedge = used_to_under(rule, ms(1));
        let begun = Time(0) + ms(500);
        hedge.failed(begun, failed);
        hedge.late(begun, late);
        hedge.overloaded(begun);
        let waits = |hedge: &Hedge, at| [failed, late, SLOW].map(|device| wait(hedge, at, device).unwrap());
        assert_eq!(waits(&hedge, begun), [ms(0), ms(1000), ms(1000)]);
        // Both are late again; of these the one that failed has not answered since.
        let at = begun + ms(995);
        [failed, late].iter().for_each(|&device| hedge.late(at, device));
        assert_eq!(waits(&hedge, at), [ms(0), ms(5), ms(8)]);
        // One that was asked in the meantime is late by the end of it.
        assert_eq!(hedge.wait(at, SLOW, begun, None), Some(ms(5)));
        assert_eq!(waits(&hedge, begun + ms(1000)), [ms(0), ms(0), ms(8)]);
        // Who answers, if late, has not failed any more.
        hedge.overloaded(at);
        hedge.answered(failed, ms(30));
        assert_eq!(waits(&hedge, at), [ms(1000); 3]);
    }
}

/// As [`crate::read::Caution`] takes the rules.
#[test]
fn the_rule_says_what_may_be_in_vain() {
    let spent = |rule, reads_bytes| {
        let mut hedge = used_to_under(rule, ms(1));
        stood_in(&mut hedge, BUDGET_BYTES, BUDGET_BYTES);
        hedge.brought(reads_bytes);
        wait(&hedge, Time(0), SLOW)
    };
    let adaptive = |waste_percent| RequestRule::Adaptive { waste_percent };
    for rule in [RequestRule::All, RequestRule::AllAtOnce, RequestRule::KPlus(0), RequestRule::KPlus(3)] {
        assert_eq!(spent(rule, 0), Some(ms(8)), "{rule:?}");
    }
    // One percent, and no more than five.
    assert_eq!([99, 100].map(|bytes| spent(adaptive(1), bytes)), [250, 8].map(|wait| Some(ms(wait))));
    assert_eq!([19, 20].map(|bytes| spent(adaptive(100), bytes)), [250, 8].map(|wait| Some(ms(wait))));
    // Where nothing may be nobody stands in, unless a device failed.
    let mut hedge = used_to_under(adaptive(0), ms(1));
    assert_eq!(wait(&hedge, Time(0), SLOW), None);
    hedge.failed(Time(0), SLOW);
    assert_eq!(wait(&hedge, Time(0), SLOW), Some(Duration::ZERO));
}
