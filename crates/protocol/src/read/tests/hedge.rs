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
    assert_eq!(Hedge::default().wait(Time(0), SLOW), ms(50));
    assert_eq!(used_to(ms(1)).wait(Time(0), SLOW), ms(8));
    assert_eq!(used_to(Duration::from_micros(10)).wait(Time(0), SLOW), ms(2));
    assert_eq!(used_to(ms(900)).wait(Time(0), SLOW), ms(250));
    // A few that take long change nothing; when most do, it is usual.
    let mut hedge = used_to(ms(1));
    (0..20).for_each(|_| hedge.answered(SLOW, ms(30)));
    assert_eq!(hedge.wait(Time(0), DeviceId(1)), ms(8));
    (0..40).for_each(|n| hedge.answered(DeviceId(n % 5), ms(5)));
    assert_eq!(hedge.wait(Time(0), DeviceId(1)), ms(40));
}

#[test]
fn who_was_late_is_not_waited_for_until_it_is_in_time_or_a_second_later() {
    let mut hedge = used_to(ms(1));
    let now = Time(0) + ms(500);
    hedge.late(now, SLOW);
    assert_eq!(hedge.wait(now + ms(999), SLOW), Duration::ZERO);
    assert_eq!(hedge.wait(now + ms(999), DeviceId(1)), ms(8));
    assert_eq!(hedge.wait(now + ms(1000), SLOW), ms(8));
    hedge.answered(SLOW, ms(30));
    assert_eq!(hedge.wait(now, SLOW), Duration::ZERO, "an answer that is late changes nothing");
    hedge.answered(SLOW, ms(3));
    assert_eq!(hedge.wait(now, SLOW), ms(8));
}
