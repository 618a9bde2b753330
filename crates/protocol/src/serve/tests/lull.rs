//! When a device has time for what nobody waits for.

use super::super::Lull;
use crate::Time;
use core::time::Duration;

/// Looks every 100 ms for `seconds` at a device that works so many ms of each; how often it rested.
fn rested(lull: &mut Lull, from: &mut (u64, u64), seconds: u64, works: u64) -> usize {
    let mut rested = 0;
    for _ in 0..10 * seconds {
        *from = (from.0 + 100, from.1 + works);
        let (now, worked) = (Duration::from_millis(from.0), Duration::from_millis(from.1));
        rested += usize::from(lull.look(Time(0) + now, worked));
    }
    rested
}

#[test]
fn a_device_rests_that_hardly_works_and_not_one_that_works_now_and_then_all_the_time() {
    let (mut lull, mut at) = (Lull::default(), (0, 0));
    assert_eq!(rested(&mut lull, &mut at, 5, 10), 0, "a tenth of the time");
    // Half a second of the first window was without work; it ended with the next.
    assert_eq!(rested(&mut lull, &mut at, 5, 6), 50 - 5);
    assert_eq!(rested(&mut lull, &mut at, 5, 0), 50);
    // Known at the end of the window.
    let after = rested(&mut lull, &mut at, 5, 100);
    assert!(after < 5, "{after}");
    let after = rested(&mut lull, &mut at, 5, 0);
    assert!((40..50).contains(&after), "{after}");
}

#[test]
fn nothing_is_known_of_a_time_in_which_nobody_looked() {
    let mut lull = Lull::default();
    let at = |millis| Time(0) + Duration::from_millis(millis);
    let busy = Duration::from_millis(10);
    assert!(!lull.look(at(0), busy));
    assert!(lull.look(at(600), busy));
    assert!(!lull.look(at(60_000), 2 * busy), "its work may have begun just now");
    assert!(!lull.look(at(60_499), 2 * busy));
    assert!(lull.look(at(60_500), 2 * busy));
}
