//! Who is late with a few bytes.

use crate::{DeviceId, Time, read::Hedge};
use core::time::Duration;

const SLOW: DeviceId = DeviceId(9);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn used_to(took: Duration) -> Hedge {
    let mut hedge = Hedge::default();
    (0..40).for_each(|n| hedge.answered(DeviceId(n % 5), took));
    hedge
}

#[test]
fn the_wait_follows_what_is_usual_within_bounds() {
    let wait = |hedge: &Hedge| hedge.wait(Time(0), SLOW, None);
    assert_eq!(wait(&Hedge::default()), ms(50));
    assert_eq!(wait(&used_to(ms(1))), ms(8));
    assert_eq!(wait(&used_to(Duration::from_micros(10))), ms(2));
    assert_eq!(wait(&used_to(ms(100))), ms(250));
    // Less than what is usual would make every node late.
    assert_eq!(wait(&used_to(ms(900))), ms(1800));
    // A few that take long change nothing; when most do, it is usual.
    let mut hedge = used_to(ms(1));
    (0..20).for_each(|_| hedge.answered(SLOW, ms(30)));
    assert_eq!(hedge.wait(Time(0), DeviceId(1), None), ms(8));
    (0..40).for_each(|n| hedge.answered(DeviceId(n % 5), ms(5)));
    assert_eq!(hedge.wait(Time(0), DeviceId(1), None), ms(40));
}

#[test]
fn as_long_as_nothing_is_known_a_long_way_is_waited_for() {
    let wait = |way: u64| Hedge::default().wait(Time(0), SLOW, Some(ms(way)));
    assert_eq!([1, 100].map(wait), [ms(50), ms(800)]);
    // What is known says more.
    assert_eq!(used_to(ms(1)).wait(Time(0), SLOW, Some(ms(100))), ms(8));
    // The first that answer say something.
    let mut hedge = Hedge::default();
    hedge.answered(DeviceId(1), ms(300));
    assert_eq!(hedge.wait(Time(0), SLOW, None), ms(600));
}

/// All disks are overloaded, or all are far away: whoever answers as all do is in time again, and others are not asked as well.
#[test]
fn where_all_take_long_nobody_stays_late() {
    for usual in [300, 900] {
        let mut hedge = used_to(ms(usual));
        hedge.late(Time(0), SLOW);
        assert_eq!(hedge.wait(Time(0), SLOW, None), Duration::ZERO);
        hedge.answered(SLOW, ms(usual));
        assert_eq!(hedge.wait(Time(0), SLOW, None), ms(2 * usual));
    }
}

#[test]
fn who_was_late_is_not_waited_for_until_it_is_in_time_or_a_second_later() {
    let mut hedge = used_to(ms(1));
    let now = Time(0) + ms(500);
    hedge.late(now, SLOW);
    let wait = |hedge: &Hedge, at, device| hedge.wait(at, device, None);
    assert_eq!(wait(&hedge, now + ms(999), SLOW), Duration::ZERO);
    assert_eq!(wait(&hedge, now + ms(999), DeviceId(1)), ms(8));
    assert_eq!(wait(&hedge, now + ms(1000), SLOW), ms(8));
    hedge.answered(SLOW, ms(30));
    assert_eq!(wait(&hedge, now, SLOW), Duration::ZERO, "an answer that is late changes nothing");
    hedge.answered(SLOW, ms(3));
    assert_eq!(wait(&hedge, now, SLOW), ms(8));
}
