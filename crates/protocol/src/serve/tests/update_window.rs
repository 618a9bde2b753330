//! The window of a data chunk: scripts, and random ones against what it promises.

use super::super::parity_log::{Admission, LOG_RECORD_OVERHEAD_BYTES, UpdateWindow};
use super::rng;
use crate::{
    Time,
    policy::{Parity, window_bytes},
};
use core::time::Duration;
use rand_core::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const GRANULE: u64 = 4096;
/// What one change of a granule takes.
const SMALLEST: u64 = GRANULE + LOG_RECORD_OVERHEAD_BYTES;

fn admitted(window: &mut UpdateWindow) -> Vec<Admission> {
    core::iter::from_fn(|| window.poll()).collect()
}

fn update(request: u64) -> Admission {
    Admission::Update { request }
}

/// Two logs that leave it so much.
fn connected(bytes: [u64; 2]) -> UpdateWindow {
    let mut window = UpdateWindow::new(Time(0), 2, []);
    window.connected(0, bytes[0]);
    window.connected(1, bytes[1]);
    window
}

#[test]
fn nothing_is_admitted_while_a_log_is_out_of_reach() {
    let mut window = UpdateWindow::new(Time(0), 2, []);
    window.ask(1, 0, 10);
    window.connected(1, 1 << 20);
    assert_eq!(admitted(&mut window), []);
    window.connected(0, 1 << 20);
    assert_eq!(admitted(&mut window), [update(1)]);
    window.lost(Time(5), 1);
    window.ask(2, 0, 10);
    assert_eq!((admitted(&mut window), window.first()), (vec![], Some(2)));
}

#[test]
fn the_smallest_log_decides_and_what_is_released_makes_room() {
    let mut window = connected([2 * SMALLEST, 100 * SMALLEST]);
    for request in 1..=4 {
        // Within one granule, whatever its offset.
        window.ask(request, request * 1000, 96);
    }
    assert_eq!(admitted(&mut window), [update(1), update(2)]);
    // Staged it is kept until it is committed; the record has a head beside its granule.
    window.staged(1, 1, GRANULE as usize + 28);
    assert_eq!((window.uncommitted_bytes(), admitted(&mut window)), (2 * SMALLEST, vec![]));
    window.released(1);
    assert_eq!(admitted(&mut window), [update(3)]);
    window.forget(2);
    assert_eq!(admitted(&mut window), [update(4)]);
}

#[test]
fn bytes_over_a_granules_end_take_two() {
    for (offset, length, fits) in [(0, 4096, true), (1, 4095, true), (1, 4096, false), (4095, 2, false)] {
        let mut window = connected([SMALLEST; 2]);
        window.ask(1, offset, length);
        let expected = if fits { update(1) } else { Admission::TooLarge { request: 1 } };
        assert_eq!(admitted(&mut window), [expected], "{length} bytes at {offset}");
    }
}

#[test]
fn the_largest_update_of_a_policy_fits_its_window() {
    for text in ["parity", "parity:reserve=1MiB", "parity:update=fo", "parity:code=rs(16,12),reserve=480KiB"]
    {
        let parity: Parity = match text.parse().unwrap() {
            crate::policy::Policy::Parity(parity) => parity,
            other => panic!("{other}"),
        };
        let chunk_bytes = 1 << 20;
        let largest = u64::from(parity.update_bytes_max(chunk_bytes).unwrap());
        // The host of the parity chunk says what its log leaves, of the reserve that lies there.
        let bytes = window_bytes(parity.reserve_of(chunk_bytes), parity.data());
        let mut window = connected([bytes; 2]);
        window.ask(1, 4095, largest);
        assert_eq!(admitted(&mut window), [update(1)], "{text}: {largest} bytes");
    }
}

#[test]
fn one_that_the_device_has_no_room_for_comes_again_before_those_behind_it() {
    let mut window = connected([3 * SMALLEST; 2]);
    (1..=4).for_each(|request| window.ask(request, 0, 1));
    assert_eq!(admitted(&mut window), [update(1), update(2), update(3)]);
    window.again(2);
    window.again(1);
    assert_eq!(admitted(&mut window), [update(1), update(2)]);
    // It is not asked for any more, so that it does not come back.
    window.forget(3);
    window.again(3);
    assert_eq!(admitted(&mut window), [update(4)]);
}

#[test]
fn what_a_device_holds_from_before_counts() {
    let mut window = UpdateWindow::new(Time(0), 1, [(7, GRANULE as usize + 28), (8, GRANULE as usize + 28)]);
    window.connected(0, 3 * SMALLEST);
    assert_eq!(window.uncommitted_bytes(), 2 * SMALLEST);
    (1..=2).for_each(|request| window.ask(request, 0, 1));
    assert_eq!(admitted(&mut window), [update(1)]);
    // A log brings the same back: it is kept once.
    window.keep(8, GRANULE as usize + 28);
    assert_eq!(window.uncommitted_bytes(), 3 * SMALLEST);
    window.released(8);
    assert_eq!(admitted(&mut window), [update(2)]);
}

#[test]
fn a_node_is_waited_for_from_when_it_was_lost() {
    let at = |millis: u64| Time(0) + Duration::from_millis(millis);
    let mut window = UpdateWindow::new(at(0), 2, []);
    assert_eq!((window.out_of_reach(at(1000)), window.out_of_reach(at(1001))), (None, Some(0)));
    window.connected(0, 1 << 20);
    window.connected(1, 1 << 20);
    assert_eq!(window.out_of_reach(at(9000)), None);
    window.lost(at(5000), 1);
    // Each attempt that fails says so again.
    window.lost(at(5900), 1);
    assert_eq!((window.out_of_reach(at(6000)), window.out_of_reach(at(6001))), (None, Some(1)));
}

#[test]
fn a_node_that_was_reached_has_longer_to_say_what_fits() {
    let at = |millis: u64| Time(0) + Duration::from_millis(millis);
    let mut window = UpdateWindow::new(at(0), 1, []);
    window.reached(0);
    assert_eq!((window.out_of_reach(at(3000)), window.out_of_reach(at(3001))), (None, Some(0)));
    // A stream that is lost again and again counts from the first.
    window.lost(at(900), 0);
    assert_eq!(window.out_of_reach(at(1001)), Some(0));
    window.reached(0);
    assert_eq!(window.out_of_reach(at(1500)), None);
    window.connected(0, 1 << 20);
    window.lost(at(5000), 0);
    window.reached(0);
    assert_eq!((window.out_of_reach(at(8000)), window.out_of_reach(at(8001))), (None, Some(0)));
    assert_eq!(window.poll(), None, "it has not said how much fits");
}

#[test]
fn whatever_happens_it_is_never_overdrawn_and_all_are_admitted_in_order() {
    for case in 0..200 {
        let mut random = rng(case);
        let mut below = |bound: u64| random.next_u64() % bound;
        let most = (2 + below(8)) * SMALLEST;
        let mut window = connected([most, most + below(SMALLEST)]);
        let (mut next, mut version, mut released) = (1, 0, 0);
        let mut asked: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut in_core: BTreeSet<u64> = BTreeSet::new();
        let mut last = 0;
        for step in 0..400 {
            match below(6) {
                0..=1 if step < 300 => {
                    let (offset, length) = (below(20_000), 1 + below(6000));
                    window.ask(next, offset, length);
                    asked.insert(next, (offset, length));
                    next += 1;
                }
                2 => match in_core.pop_first() {
                    // One that comes again is admitted again, before all others.
                    Some(request) if below(4) == 0 => {
                        window.again(request);
                        in_core.iter().for_each(|later| window.again(*later));
                        in_core.clear();
                        last = request - 1;
                    }
                    Some(request) => {
                        version += 1;
                        let (offset, length) = asked.remove(&request).unwrap();
                        let granules = (offset + length).div_ceil(GRANULE) - offset / GRANULE;
                        window.staged(request, version, (24 + granules * (4 + GRANULE)) as usize);
                    }
                    None => {}
                },
                3 if released < version => {
                    released += 1 + below(version - released);
                    window.released(released);
                }
                4 if step < 300 => {
                    window.lost(Time(step), 1);
                    assert_eq!(window.poll(), None);
                    window.connected(1, most);
                }
                _ => {}
            }
            for admission in admitted(&mut window) {
                let (Admission::Update { request } | Admission::TooLarge { request }) = admission else {
                    panic!("logs need no room: {admission:?}");
                };
                assert!(request > last, "case {case}: {request} after {last}");
                last = request;
                if admission == update(request) {
                    in_core.insert(request);
                } else {
                    let (offset, length) = asked.remove(&request).unwrap();
                    assert!(length + (offset % GRANULE) + LOG_RECORD_OVERHEAD_BYTES > most - GRANULE);
                }
            }
            assert!(window.uncommitted_bytes() <= most, "case {case}");
        }
        // What is committed makes room for all.
        while window.first().is_some() || !in_core.is_empty() {
            let staged = std::mem::take(&mut in_core);
            assert!(!staged.is_empty() || released < version, "case {case}: nothing moves");
            for request in staged {
                version += 1;
                window.staged(request, version, GRANULE as usize);
            }
            released = version;
            window.released(released);
            in_core.extend(admitted(&mut window).into_iter().filter_map(|admission| match admission {
                Admission::Update { request } => Some(request),
                _ => None,
            }));
        }
        assert_eq!(window.uncommitted_bytes(), 0);
    }
}

#[test]
fn a_parity_node_that_ends_every_stream_is_given_up_unless_it_takes_something_between() {
    let mut window = UpdateWindow::new(Time(0), 2, []);
    assert_eq!([(); 3].map(|()| window.ended(1)), [false; 3]);
    window.took(0);
    assert!(!window.ended(0) && window.ended(1), "each by itself");
    window.took(1);
    assert_eq!([(); 4].map(|()| window.ended(1)), [false, false, false, true]);
    assert!(!window.ended(7), "there is none");
    window.took(7);
}

/// A log, and a parity node that overwrites in place and has said what it has.
fn in_place() -> UpdateWindow {
    let mut window = connected([1 << 20; 2]);
    window.asks_in_place(1);
    window.ask(1, 0, 4096);
    assert_eq!(admitted(&mut window), [], "it may lack what was sent before");
    window.answered(1);
    window
}

/// What the record of a change of one granule takes where it is held.
const HELD: u64 = 24 + 4 + GRANULE + 128;

fn reserve(parity: u16, least: u64, bytes: u64) -> Admission {
    Admission::Reserve { parity, least, bytes }
}

fn give_back(parity: u16, bytes: u64) -> Admission {
    Admission::GiveBack { parity, bytes }
}

#[test]
fn nothing_is_stamped_before_its_room_is_kept() {
    let mut window = in_place();
    window.ask(2, 4096, 4096);
    assert_eq!(admitted(&mut window), [reserve(1, HELD, 2 * HELD)], "of who needs it, for all that waits");
    window.reserved(1, HELD);
    assert_eq!(admitted(&mut window), [update(1), reserve(1, HELD, HELD)]);
    window.staged(1, 1, (24 + 4 + GRANULE) as usize);
    window.reserved(1, HELD);
    assert_eq!(admitted(&mut window), [update(2)]);
    // It is not made: the room is another's, and goes back when there is none.
    window.forget(2);
    let later = |ms| Time(0) + Duration::from_millis(ms);
    assert!(window.has_room() && !window.tick(later(0)));
    assert_eq!(admitted(&mut window), [reserve(1, 0, 3 * HELD)], "who made two goes on");
    window.reserved(1, 0);
    assert_eq!(admitted(&mut window), [], "there is less, and that is not asked for again at once");
    assert!(!window.tick(later(100)));
    assert_eq!(admitted(&mut window), [], "one is enough for who makes none");
    assert!(!window.tick(later(500)));
    assert_eq!(admitted(&mut window), [give_back(1, HELD)]);
    assert!(!window.has_room());
}

#[test]
fn a_peer_grants_no_more_than_it_was_asked_for() {
    let mut window = in_place();
    assert_eq!(admitted(&mut window), [reserve(1, HELD, HELD)]);
    window.reserved(1, u64::MAX);
    window.reserved(1, u64::MAX);
    assert_eq!(admitted(&mut window), [update(1)]);
    window.again(1);
    assert_eq!(admitted(&mut window), [give_back(1, HELD)]);
}

#[test]
fn patience_for_room_ends_with_a_stamped_update_and_not_with_an_attempt() {
    let mut window = in_place();
    let at = |ms| Time(0) + Duration::from_millis(ms);
    // Parity has room each time, and the own device has none.
    for ms in (0..3000).step_by(20) {
        if admitted(&mut window).contains(&reserve(1, HELD, HELD)) {
            window.reserved(1, HELD);
            assert_eq!(admitted(&mut window), [update(1)]);
            assert!(!window.tick(at(ms)));
            window.again(1);
        }
        assert!(!window.tick(at(ms)), "at {ms}");
    }
    assert!(window.tick(at(3100)), "it is made otherwise");
}

#[test]
fn nobody_keeps_room_who_waits_for_more() {
    let mut window = connected([1 << 20; 2]);
    for parity in [0, 1] {
        window.asks_in_place(parity);
        window.answered(parity);
    }
    window.ask(1, 0, 4096);
    assert_eq!(admitted(&mut window), [reserve(0, HELD, HELD), reserve(1, HELD, HELD)]);
    window.reserved(0, HELD);
    assert_eq!(admitted(&mut window), []);
    window.reserved(1, 0);
    assert_eq!(admitted(&mut window), [give_back(0, HELD)]);
    let again = (0..4).find_map(|_| {
        window.tick(Time(0));
        Some(admitted(&mut window)).filter(|admitted| !admitted.is_empty())
    });
    assert_eq!(again, Some(vec![reserve(0, HELD, HELD), reserve(1, HELD, HELD)]));
    (0..2).for_each(|parity| window.reserved(parity, HELD));
    assert_eq!(admitted(&mut window), [update(1)]);
    // Its own device has no room.
    window.again(1);
    assert_eq!(admitted(&mut window), [give_back(0, HELD), give_back(1, HELD)]);
    // One that waits for an answer when a node is lost keeps nothing at the others.
    (0..4).for_each(|_| assert!(!window.tick(Time(0))));
    assert_eq!(admitted(&mut window).len(), 2);
    window.reserved(1, HELD);
    window.lost(Time(0), 0);
    assert_eq!(admitted(&mut window), [give_back(1, HELD)]);
}

#[test]
fn what_may_come_without_room_is_committed_before_any_is_asked_for() {
    let mut window = in_place();
    assert_eq!(admitted(&mut window), [reserve(1, HELD, HELD)]);
    window.reserved(1, HELD);
    assert_eq!(admitted(&mut window), [update(1)]);
    // Its stream is lost while it is staged, and comes again: what was kept for it is not any more.
    window.lost(Time(0), 1);
    window.connected(1, 1 << 20);
    window.asks_in_place(1);
    window.answered(1);
    window.staged(1, 1, (24 + 4 + GRANULE) as usize);
    window.ask(2, 0, 4096);
    assert_eq!(admitted(&mut window), []);
    window.released(1);
    assert_eq!(admitted(&mut window), [reserve(1, HELD, HELD)]);
}

#[test]
fn updates_for_which_there_is_no_room_for_long_are_made_otherwise() {
    let at = |millis| Time(0) + Duration::from_millis(millis);
    let mut window = in_place();
    let mut over = None;
    for tick in 1..400 {
        for admission in admitted(&mut window) {
            assert!(matches!(admission, Admission::Reserve { .. }), "{admission:?}");
            window.reserved(1, 0);
        }
        admitted(&mut window);
        if window.tick(at(20 * tick)) {
            over = Some(tick);
            break;
        }
    }
    assert!(over.is_some_and(|tick| (150..160).contains(&tick)), "{over:?}");
    window.take_waiting();
    assert_eq!(admitted(&mut window), []);
    assert!(!window.tick(at(20_000)));
}

#[test]
fn a_steady_writer_has_its_room_before_it_asks() {
    let mut window = in_place();
    let mut waited = 0;
    for request in 1..=60 {
        if request > 1 {
            window.ask(request, 0, 4096);
        }
        let mut made = admitted(&mut window);
        if !made.contains(&update(request)) {
            waited += 1;
        }
        // Its answers come while the update is made.
        while let Some(Admission::Reserve { bytes, .. }) = made.pop() {
            window.reserved(1, bytes);
            made.extend(admitted(&mut window));
        }
        window.staged(request, request, (24 + 4 + GRANULE) as usize);
        window.released(request);
        if request % 3 == 0 {
            window.tick(Time(request));
        }
    }
    assert!(waited <= 7, "{waited} waited for a round trip");
}

/// Room is kept ahead for twice as many updates as were made from one tick to the next, two at least and sixteen at most.
#[test]
fn a_writer_of_many_updates_a_tick_keeps_room_for_sixteen_and_no_more() {
    const EACH_TICK: u64 = 16;
    let mut window = in_place();
    let (mut kept, mut most, mut waited) = (0, 0, 0);
    for request in 1..=4 * EACH_TICK {
        if request > 1 {
            window.ask(request, 0, 4096);
        }
        let mut made: VecDeque<Admission> = admitted(&mut window).into();
        if !made.contains(&update(request)) {
            waited += 1;
        }
        // Its answers come while the update is made.
        while let Some(admission) = made.pop_front() {
            match admission {
                Admission::Reserve { bytes, .. } => {
                    window.reserved(1, bytes);
                    kept += bytes;
                    made.extend(admitted(&mut window));
                }
                Admission::Update { .. } => kept -= HELD,
                other => panic!("{other:?}"),
            }
            most = most.max(kept);
        }
        window.staged(request, request, (24 + 4 + GRANULE) as usize);
        window.released(request);
        if request % EACH_TICK == 0 {
            window.tick(Time(request));
            let expected = if request == EACH_TICK { 2 } else { 16 };
            assert_eq!(most, expected * HELD, "{request} were made");
        }
    }
    assert_eq!(waited, 2, "until it is known to go on");
}

/// A writer that has stopped, and was given less ahead than one update takes, asks on for more; that there is none is no reason to keep that.
#[test]
fn who_asks_ahead_in_vain_gives_back_what_it_has() {
    let mut window = in_place();
    for request in 1..=3 {
        if request > 1 {
            window.ask(request, 0, 4096);
        }
        let mut made = admitted(&mut window);
        while let Some(admission) = made.pop() {
            if let Admission::Reserve { least, .. } = admission {
                window.reserved(1, if least > 0 { least } else { HELD / 2 });
                made.extend(admitted(&mut window));
            }
        }
        window.staged(request, request, (24 + 4 + GRANULE) as usize);
        window.released(request);
    }
    let (mut asked, mut given_back, mut left) = (0, 0, HELD / 2);
    for tick in 1..=30 {
        window.tick(Time(0) + Duration::from_millis(20 * tick));
        let mut made = admitted(&mut window);
        while let Some(admission) = made.pop() {
            match admission {
                Admission::Reserve { .. } => {
                    window.reserved(1, core::mem::take(&mut left));
                    asked += 1;
                    made.extend(admitted(&mut window));
                }
                Admission::GiveBack { bytes, .. } => given_back += bytes,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(asked > 1, "it has as much as it wants");
    assert_eq!(given_back, HELD / 2);
}

#[test]
fn a_parity_node_that_is_not_ready_is_waited_for_anew() {
    let at = |millis| Time(0) + Duration::from_millis(millis);
    let mut window = UpdateWindow::new(Time(0), 1, []);
    window.reached(0);
    window.not_ready(at(2_500), 0);
    window.lost(at(2_500), 0);
    assert_eq!(window.out_of_reach(at(3_400)), None);
    window.reached(0);
    assert_eq!(window.out_of_reach(at(5_400)), None);
    assert_eq!(window.out_of_reach(at(5_600)), Some(0), "it never is");
}

#[test]
fn who_waits_for_what_is_not_level_is_told_in_time() {
    let mut window = in_place();
    let late = Time(0) + Duration::from_secs(4);
    window.is_not_level();
    assert!(!window.tick(Time(0)) && window.tick(late));
    window.take_waiting();
    window.is_not_level();
    assert!(!window.tick(late), "nobody waits");
}

/// Whose wait ended without room, and without a tick, leaves nothing of its patience to the next.
#[test]
fn the_next_to_wait_for_room_has_all_of_its_patience() {
    let at = |millis| Time(0) + Duration::from_millis(millis);
    let mut window = in_place();
    admitted(&mut window);
    window.reserved(1, 0);
    admitted(&mut window);
    assert!(!window.tick(at(0)) && window.tick(at(3_100)), "nobody has room for the first");
    assert_eq!(window.take_waiting(), [1], "it is made otherwise");
    assert_eq!(admitted(&mut window), []);
    window.ask(2, 0, 4096);
    admitted(&mut window);
    assert!(!window.tick(at(20_000)), "it came only now");
    assert!(!window.tick(at(22_900)) && window.tick(at(23_100)));
}

/// A full window of what was stamped before room was reserved, and finds none, is a wait for room.
#[test]
fn waiting_behind_what_has_no_room_ends_as_waiting_for_room_does() {
    let at = |millis| Time(0) + Duration::from_millis(millis);
    let kept = 64 << 10;
    let mut window = UpdateWindow::new(Time(0), 1, [(1, kept), (2, kept), (3, kept)]);
    window.connected(0, 256 << 10);
    window.asks_in_place(0);
    window.answered(0);
    window.ask(1, 0, kept as u64);
    assert_eq!(admitted(&mut window), []);
    assert!(!window.tick(at(0)) && window.tick(at(3_100)));
}
