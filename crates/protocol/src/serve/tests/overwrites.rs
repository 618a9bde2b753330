//! The order of overwrites in place, and what may be released after them.

use super::super::parity_log::{Held, Overwrite, Overwrites};

fn overwrite(chunk: u16, version: u64) -> Overwrite {
    Overwrite { chunk, version, bytes: 4096, reply: u64::from(chunk) * 100 + version }
}

fn held(chunk: u16, version: u64) -> Held {
    Held { chunk, version, bytes: 4096 }
}

#[test]
fn one_is_under_way_at_a_time_in_the_order_asked() {
    let mut overwrites = Overwrites::new(1 << 20, []);
    assert_eq!((overwrites.start(), overwrites.waits()), (None, false));
    for (chunk, version) in [(1, 1), (0, 1), (1, 2)] {
        overwrites.ask(overwrite(chunk, version));
    }
    assert_eq!((overwrites.start(), overwrites.start()), (Some(overwrite(1, 1)), None));
    // The device holds too much: the same one again, not the next.
    overwrites.not_placed();
    assert_eq!((overwrites.start(), overwrites.waiting().count()), (Some(overwrite(1, 1)), 3));
    assert_eq!(overwrites.placed(10), Some(overwrite(1, 1)));
    assert_eq!(overwrites.placed(10), None, "none is under way");
    assert_eq!(overwrites.start(), Some(overwrite(0, 1)));
    assert_eq!(overwrites.waiting().copied().collect::<Vec<_>>(), [overwrite(0, 1), overwrite(1, 2)]);
}

#[test]
fn the_device_releases_up_to_the_first_that_is_not_committed() {
    let mut overwrites = Overwrites::new(1 << 20, []);
    for (number, (chunk, version)) in (10..).zip([(0, 1), (1, 1), (0, 2), (1, 2)]) {
        overwrites.ask(overwrite(chunk, version));
        assert!(overwrites.start().is_some() && overwrites.placed(number).is_some());
    }
    assert_eq!(overwrites.release(1, 1), None, "the device's first is of another chunk");
    assert_eq!(overwrites.release(0, 1), Some(11), "and with it goes what was committed behind it");
    assert_eq!(overwrites.release(0, 1), None, "once");
    assert_eq!(overwrites.release(1, 2), None);
    assert_eq!((overwrites.waits(), overwrites.release(0, 2)), (true, Some(13)));
    assert!(!overwrites.waits());
}

#[test]
fn what_is_held_from_before_a_restart_is_released_when_somebody_says_so() {
    let mut overwrites = Overwrites::new(1 << 20, [(5, held(0, 7)), (6, held(2, 3))]);
    assert!(overwrites.waits());
    // An earlier version of the same chunk is not what is held.
    assert_eq!(overwrites.release(0, 6), None);
    assert_eq!(overwrites.release(0, 7), Some(5));
    // What is said of a chunk that nothing is held of is remembered: it may be placed after.
    assert_eq!(overwrites.release(1, 4), None);
    overwrites.ask(overwrite(1, 4));
    assert!(overwrites.start().is_some() && overwrites.placed(7).is_some());
    assert_eq!(overwrites.release(2, 3), Some(7));
}

#[test]
fn a_data_chunk_that_is_never_committed_takes_no_more_than_the_bound() {
    let mut overwrites = Overwrites::new(3 * 4096, []);
    // Its node died; the others' are committed one after the other.
    overwrites.ask(overwrite(0, 1));
    assert!(overwrites.start().is_some() && overwrites.placed(10).is_some());
    for version in 1..=5 {
        overwrites.ask(overwrite(1, version));
    }
    for version in 1..=2 {
        assert!(overwrites.start().is_some() && overwrites.placed(10 + version).is_some());
        assert_eq!(overwrites.release(1, version), None);
    }
    assert_eq!((overwrites.start(), overwrites.waits()), (None, true), "as much as may be held");
    // It was there after all, and says so.
    assert_eq!(overwrites.release(0, 1), Some(12));
    assert_eq!(overwrites.start(), Some(overwrite(1, 3)));
}

#[test]
fn more_than_the_bound_from_before_a_restart_goes_first_and_a_single_large_one_has_room() {
    let mut overwrites = Overwrites::new(4096, [(5, held(0, 7)), (6, held(2, 3))]);
    overwrites.ask(Overwrite { bytes: 8192, ..overwrite(1, 1) });
    assert_eq!((overwrites.start(), overwrites.release(0, 7), overwrites.start()), (None, Some(5), None));
    assert_eq!(overwrites.release(2, 3), Some(6));
    assert_eq!(overwrites.start().map(|overwrite| overwrite.bytes), Some(8192));
}

#[test]
fn what_was_not_begun_of_a_chunk_is_given_up() {
    let mut overwrites = Overwrites::new(1 << 20, []);
    assert_eq!(overwrites.withdraw(1), None);
    for (chunk, version) in [(1, 1), (1, 2), (2, 1), (1, 3)] {
        overwrites.ask(overwrite(chunk, version));
    }
    assert_eq!(overwrites.start(), Some(overwrite(1, 1)));
    assert_eq!(overwrites.withdraw(1), Some((2, 2)), "one is under way");
    assert_eq!(overwrites.withdraw(1), None);
    overwrites.not_placed();
    assert_eq!(overwrites.withdraw(1), Some((1, 1)), "it is no more");
    assert_eq!(overwrites.start(), Some(overwrite(2, 1)));
    assert_eq!((overwrites.withdraw(2), overwrites.waiting().count()), (None, 1));
}
