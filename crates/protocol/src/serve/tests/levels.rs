//! What is known of data chunks before they are read.

use super::super::parity_log::{Asked, BeforeRead, Levels};
use crate::{DeviceId, SegmentId, Time};
use core::time::Duration;

const CHUNK: SegmentId = SegmentId(7);

fn at(millis: u64) -> Time {
    Time(0) + Duration::from_millis(millis)
}

/// Asked for at 0 ms: waited for until 1 s.
fn asked() -> Levels {
    let mut levels = Levels::default();
    assert_eq!(levels.before_read(at(0), CHUNK), BeforeRead::Ask);
    levels.begun(at(0), CHUNK);
    assert_eq!(levels.before_read(at(10), CHUNK), BeforeRead::Wait { until: at(1000) }, "it is asked once");
    assert_eq!(levels.before_read(at(10), SegmentId(8)), BeforeRead::Ask, "others are others");
    levels
}

/// Many others are asked about before it.
#[test]
fn a_chunk_whose_turn_is_late_is_not_read_before_anybody_was_asked() {
    let mut levels = Levels::default();
    assert_eq!(levels.before_read(at(0), CHUNK), BeforeRead::Ask);
    assert_eq!(levels.before_read(at(1500), CHUNK), BeforeRead::Wait { until: at(5000) });
    // What a question before this one comes to, in which nobody has answered, is no answer.
    assert!(!levels.answered(at(1550), CHUNK, 4, [None, None]));
    let (mut forgotten, mut before) = (levels.clone(), levels.clone());
    levels.begun(at(1600), CHUNK);
    assert_eq!(levels.before_read(at(1600), CHUNK), BeforeRead::Wait { until: at(2600) });
    assert_eq!(levels.before_read(at(2600), CHUNK), BeforeRead::Serve, "nobody has answered");
    // One that comes to more does.
    assert!(before.answered(at(1550), CHUNK, 4, [None, Some(5)]));
    assert_eq!(before.before_read(at(1550), CHUNK), BeforeRead::Wait { until: at(2550) });
    // Whoever was to ask has given up.
    assert_eq!(forgotten.before_read(at(4999), CHUNK), BeforeRead::Wait { until: at(5000) });
    assert_eq!(forgotten.before_read(at(5000), CHUNK), BeforeRead::Ask);
    assert_eq!(forgotten.before_read(at(5000), CHUNK), BeforeRead::Wait { until: at(10_000) });
}

#[test]
fn a_chunk_that_parity_has_no_more_of_is_read_from_then_on() {
    let mut levels = asked();
    // One of them lacks changes itself.
    assert!(!levels.answered(at(20), CHUNK, 4, [Some(4), Some(3), Some(4)]));
    for now in [20, 1_000_000] {
        assert_eq!(levels.before_read(at(now), CHUNK), BeforeRead::Serve);
    }
}

/// Another may have lost the same, and one that says nothing yet have it.
#[test]
fn what_only_some_have_answered_for_is_read_and_asked_for_again_ever_less_often() {
    let mut levels = asked();
    assert!(!levels.answered(at(20), CHUNK, 4, [None, Some(4)]));
    assert_eq!(levels.before_read(at(20), CHUNK), BeforeRead::Serve);
    let mut later = levels.clone();
    assert_eq!(levels.before_read(at(5019), CHUNK), BeforeRead::Serve);
    assert_eq!(levels.before_read(at(6000), CHUNK), BeforeRead::Ask);
    assert_eq!(levels.before_read(at(6000), CHUNK), BeforeRead::Serve, "nobody waits for that");
    assert!(!levels.answered(at(6010), CHUNK, 4, [None, None]), "no more of them than before");
    assert_eq!(levels.before_read(at(16_009), CHUNK), BeforeRead::Serve);
    assert_eq!(levels.before_read(at(16_010), CHUNK), BeforeRead::Ask);
    // It says so when nobody waits for it any more.
    assert!(later.answered(at(70), CHUNK, 4, [Some(5), Some(4)]), "its host begins");
    assert!(!later.answered(at(80), CHUNK, 4, [Some(4), Some(4)]), "which is asked as well");
    assert_eq!(later.before_read(at(80), CHUNK), BeforeRead::Refuse);
}

#[test]
fn an_answer_counts_that_comes_when_nobody_waits_for_it() {
    let mut levels = asked();
    assert!(!levels.answered(at(1000), CHUNK, 4, [None, None]));
    assert_eq!(levels.before_read(at(1000), CHUNK), BeforeRead::Serve);
    let mut level = levels.clone();
    assert!(levels.answered(at(1200), CHUNK, 4, [None, Some(5)]));
    assert_eq!(levels.before_read(at(1200), CHUNK), BeforeRead::Refuse);
    assert!(!level.answered(at(1200), CHUNK, 4, [Some(4), Some(4)]));
    assert_eq!(level.before_read(at(1_000_000), CHUNK), BeforeRead::Serve);
}

#[test]
fn what_was_read_without_those_that_are_back_is_asked_for_again() {
    let parity = Asked::Chunk(DeviceId(1));
    for held in [[None, None], [None, Some(4)]] {
        let mut levels = asked();
        levels.told(at(1000), parity, false);
        assert!(!levels.answered(at(1000), CHUNK, 4, held));
        assert_eq!(levels.before_read(at(1100), CHUNK), BeforeRead::Serve);
        levels.told(at(1200), parity, true);
        assert_eq!(levels.before_read(at(1200), CHUNK), BeforeRead::Ask, "{held:?}");
        levels.begun(at(1200), CHUNK);
        // That it answers from then on is no news.
        assert!(!levels.answered(at(1210), CHUNK, 4, held));
        levels.told(at(1210), parity, true);
        assert_eq!(levels.before_read(at(1220), CHUNK), BeforeRead::Serve, "{held:?}");
    }
}

#[test]
fn one_that_nobody_says_anything_of_is_read_after_a_bounded_time_and_asked_for_again() {
    let mut levels = asked();
    let mut silent = levels.clone();
    assert!(!levels.answered(at(20), CHUNK, 4, [None, None]));
    assert_eq!(levels.before_read(at(20), CHUNK), BeforeRead::Serve);
    assert_eq!(levels.before_read(at(5019), CHUNK), BeforeRead::Serve);
    assert_eq!(levels.before_read(at(5020), CHUNK), BeforeRead::Ask);
    // Where not even that is said.
    assert_eq!(silent.before_read(at(999), CHUNK), BeforeRead::Wait { until: at(1000) });
    assert_eq!(silent.before_read(at(1000), CHUNK), BeforeRead::Serve);
    assert_eq!(silent.before_read(at(6000), CHUNK), BeforeRead::Ask);
}

#[test]
fn one_that_lacks_changes_is_waited_for_then_refused_and_read_once_it_has_them() {
    let mut levels = asked();
    assert!(levels.answered(at(20), CHUNK, 4, [None, Some(5), Some(4)]), "its host begins");
    assert_eq!(levels.before_read(at(20), CHUNK), BeforeRead::Wait { until: at(1000) });
    let mut brought = levels.clone();
    brought.level(CHUNK);
    assert_eq!(brought.before_read(at(30), CHUNK), BeforeRead::Serve);
    for now in [1000, 5999] {
        assert_eq!(levels.before_read(at(now), CHUNK), BeforeRead::Refuse);
    }
    // Who names more may be gone by then: what is there is all there is.
    assert_eq!(levels.before_read(at(6000), CHUNK), BeforeRead::Ask);
    levels.begun(at(6000), CHUNK);
    assert!(!levels.answered(at(6010), CHUNK, 4, [None, None]));
    assert_eq!(levels.before_read(at(6010), CHUNK), BeforeRead::Serve);
}

/// Nobody says when it is brought forward, or whether.
#[test]
fn parity_that_lacks_changes_is_refused_at_once_and_also_while_it_is_asked_for_again() {
    let mut levels = asked();
    levels.lags(at(500), CHUNK);
    for now in [500, 1499] {
        assert_eq!(levels.before_read(at(now), CHUNK), BeforeRead::Refuse);
    }
    assert_eq!(levels.before_read(at(1500), CHUNK), BeforeRead::Ask);
    assert_eq!(levels.before_read(at(1500), CHUNK), BeforeRead::Refuse, "nobody waits for that");
    let (mut brought, mut alone) = (levels.clone(), levels.clone());
    levels.lags(at(2000), CHUNK);
    // Brought forward long ago, as far as anybody knows.
    let mut later = levels.clone();
    assert_eq!(later.before_read(at(3_600_000), CHUNK), BeforeRead::Ask);
    assert!(matches!(later.before_read(at(3_600_000), CHUNK), BeforeRead::Wait { .. }));
    assert!(!later.answered(at(3_600_010), CHUNK, 0, [Some(0)]));
    assert_eq!(later.before_read(at(3_600_010), CHUNK), BeforeRead::Serve);
    assert_eq!(levels.before_read(at(2999), CHUNK), BeforeRead::Refuse);
    assert_eq!(levels.before_read(at(3000), CHUNK), BeforeRead::Ask);
    assert!(!brought.answered(at(1600), CHUNK, 0, [Some(0)]));
    assert_eq!(brought.before_read(at(1_000_000), CHUNK), BeforeRead::Serve);
    // Who has more may be gone, which is no reason to read it. What was not read for long is asked about as if nothing were known.
    assert!(!alone.answered(at(2500), CHUNK, 0, [None]));
    assert_eq!(alone.before_read(at(2500), CHUNK), BeforeRead::Refuse);
    assert_eq!(alone.before_read(at(3_600_000), CHUNK), BeforeRead::Ask);
    alone.begun(at(3_600_000), CHUNK);
    assert!(!alone.answered(at(3_600_010), CHUNK, 0, [None]));
    assert_eq!(alone.before_read(at(3_600_010), CHUNK), BeforeRead::Serve);
}

#[test]
fn one_that_nobody_keeps_the_changes_of_is_refused_until_its_host_says_otherwise() {
    let mut levels = asked();
    levels.outdated(CHUNK);
    assert!(!levels.answered(at(20), CHUNK, 4, [Some(4), Some(4)]), "its host knows better");
    for now in [20, 1_000_000] {
        assert_eq!(levels.before_read(at(now), CHUNK), BeforeRead::Refuse);
    }
    levels.level(CHUNK);
    assert_eq!(levels.before_read(at(1_000_000), CHUNK), BeforeRead::Serve);
}

#[test]
fn what_a_host_stamped_while_parity_was_asked_is_nothing_that_the_chunk_lacks() {
    let mut levels = asked();
    levels.level(CHUNK);
    assert!(!levels.answered(at(20), CHUNK, 4, [Some(5), Some(5)]));
    assert_eq!(levels.before_read(at(20), CHUNK), BeforeRead::Serve);
}

#[test]
fn who_was_waited_for_in_vain_is_not_waited_for_with_other_chunks_but_by_one_a_while_later() {
    let [still, gone, there] = [1, 2, 3].map(|device| Asked::Chunk(DeviceId(device)));
    let mut levels = Levels::default();
    assert!(!levels.are_silent(at(0), &[still, gone]), "nothing is known of them");
    levels.told(at(20), still, false);
    assert!(!levels.are_silent(at(30), &[still, gone]), "one of them may answer");
    levels.told(at(20), gone, false);
    assert!(levels.are_silent(at(30), &[still, gone]));
    assert!(levels.are_silent(at(5019), &[still, gone]));
    assert!(!levels.are_silent(at(30), &[still, there]), "others answer for that one");
    // One asks for all.
    assert!(!levels.are_silent(at(5020), &[still, gone]));
    assert!(levels.are_silent(at(5021), &[still, gone]));
    levels.told(at(5030), gone, true);
    assert!(!levels.are_silent(at(5031), &[still, gone]));
    assert!(levels.are_silent(at(5031), &[still]));
}
