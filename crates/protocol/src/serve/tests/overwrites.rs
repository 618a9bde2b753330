//! The order of overwrites in place, and what may be released after them.

use super::super::parity_log::{Held, Overwrite, Overwrites};

fn overwrite(chunk: u16, version: u64) -> Overwrite {
    Overwrite { chunk, version, bytes: 4096, reply: u64::from(chunk) * 100 + version, reserved: false }
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
    assert_eq!((overwrites.not_placed(), overwrites.start()), (0, None));
    overwrites.again();
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
    assert_eq!(overwrites.withdraw(1), (None, 0));
    for (chunk, version) in [(1, 1), (1, 2), (2, 1), (1, 3)] {
        overwrites.ask(overwrite(chunk, version));
    }
    assert_eq!(overwrites.start(), Some(overwrite(1, 1)));
    assert_eq!(overwrites.withdraw(1), (Some((2, 2)), 0), "one is under way");
    assert_eq!(overwrites.withdraw(1), (None, 0));
    overwrites.not_placed();
    assert_eq!(overwrites.withdraw(1), (Some((1, 1)), 0), "it is no more");
    overwrites.again();
    assert_eq!(overwrites.start(), Some(overwrite(2, 1)));
    assert_eq!((overwrites.withdraw(2), overwrites.waiting().count()), ((None, 0), 1));
}

/// Two parity nodes, each of which has an update that reaches the other one late, while a third chunk goes on: whatever that makes of the
/// bound, both have room where they come late.
#[test]
fn two_parity_chunks_do_not_fill_up_behind_what_each_lacks() {
    let mut nodes = [0; 2].map(|_| Overwrites::new(8 * 4096, []));
    let mut number = 10;
    let mut place = |node: &mut Overwrites, chunk, version| {
        node.ask(overwrite(chunk, version));
        number += 1;
        node.start().and_then(|_| node.placed(number)).map(|placed| (placed.chunk, placed.version))
    };
    // Before they are stamped.
    for chunk in [1, 2] {
        assert_eq!(nodes.each_mut().map(|node| node.reserve(chunk, 4096, 4096)), [4096; 2]);
    }
    assert_eq!(place(&mut nodes[0], 1, 1), Some((1, 1)));
    assert_eq!(place(&mut nodes[1], 2, 1), Some((2, 1)));
    // Chunk 3 is committed each time, and nothing is released behind the two.
    let made = (1..).take_while(|&version| {
        let kept = nodes.each_mut().map(|node| node.reserve(3, 4096, 4096));
        assert!(kept == [4096; 2] || kept == [0; 2], "{kept:?}");
        kept == [4096; 2]
            && nodes.each_mut().map(|node| (place(node, 3, version), node.release(3, version)))
                == [(Some((3, version)), None); 2]
    });
    assert_eq!(made.count(), 6, "as much as the bound leaves beside the two");
    assert_eq!(place(&mut nodes[0], 2, 1), Some((2, 1)));
    assert_eq!(place(&mut nodes[1], 1, 1), Some((1, 1)));
    for node in &mut nodes {
        assert!(node.release(1, 1).is_some() | node.release(2, 1).is_some());
        assert_eq!(node.reserve(3, 4096, u64::MAX), 8 * 4096, "all is released");
    }
}

#[test]
fn what_is_reserved_for_goes_past_what_waits_for_room() {
    let mut overwrites = Overwrites::new(4 * 4096, []);
    assert_eq!(overwrites.reserve(1, 4096, 2 * 4096), 2 * 4096);
    // Sent again, by a node that no room is kept for; and one of the same chunk behind it.
    overwrites.ask(overwrite(0, 1));
    overwrites.ask(overwrite(0, 2));
    assert_eq!(overwrites.start(), Some(overwrite(0, 1)));
    assert_eq!(overwrites.not_placed(), 0, "the device is full");
    assert_eq!(overwrites.reserve(2, 1, 4096), 0, "what is released is for what waits");
    overwrites.ask(overwrite(1, 1));
    let reserved = |chunk, version| Overwrite { reserved: true, ..overwrite(chunk, version) };
    assert_eq!(overwrites.start(), Some(reserved(1, 1)));
    assert!(overwrites.placed(10).is_some() && overwrites.waits_for_room());
    assert_eq!(overwrites.start(), None, "and nothing else");
    assert_eq!(overwrites.release(1, 1), Some(10));
    assert_eq!(overwrites.start(), Some(overwrite(0, 1)));
    overwrites.placed(11);
    assert_eq!(overwrites.give_back(1, u64::MAX), 4096, "once");
    assert_eq!(overwrites.start(), Some(overwrite(0, 2)));
}

#[test]
fn nothing_is_reserved_before_what_a_crash_left_is_level() {
    let mut overwrites = Overwrites::new(1 << 20, [(5, held(0, 7))]);
    assert_eq!((overwrites.reserve(1, 4096, 4096), overwrites.is_to_level()), (0, Some(0)));
    assert_eq!(overwrites.release(0, 7), Some(5));
    assert_eq!(
        (overwrites.reserve(1, u64::MAX, u64::MAX), overwrites.is_to_level()),
        (0, None),
        "no update is so large"
    );
    assert_eq!((overwrites.reserve(1, 4096, 4096), overwrites.reserved(1)), (4096, 4096));
    // A single one is never too large, where there is nothing else.
    assert_eq!(overwrites.withdraw(1), (None, 4096));
    assert_eq!(overwrites.reserve(1, 2 << 20, 4 << 20), 2 << 20);
    assert_eq!(overwrites.reserve(2, 1, 1), 0);
}
