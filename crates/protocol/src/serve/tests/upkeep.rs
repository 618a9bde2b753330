//! When a log is merged without need, whom to ask where it is held up, when who waits behind that is told, and when its reserve may shrink.

use super::super::parity_log::{
    Behind, Entry, Haste, Mode, ParityAction, ParityChunk, ParityInput, ParityState, Shrinking, Upkeep,
};
use crate::{Epoch, Time, policy};
use core::time::Duration;

fn at(millis: u64) -> Time {
    Time(0) + Duration::from_millis(millis)
}

/// A log of two records of different chunks, of 6000 bytes each.
fn log() -> ParityChunk {
    let entry = |sequence, chunk| Entry { sequence, chunk, version: 1, bytes: 6000 };
    let state =
        ParityState { epoch: Epoch(1), log: vec![entry(1, 3), entry(2, 0)], log_next: 3, merged: vec![] };
    ParityChunk::new(Mode::Logged, state, 1 << 20).unwrap()
}

fn committed(core: &mut ParityChunk, chunk: u16) {
    core.handle(ParityInput::Committed { epoch: Epoch(1), chunk, through: 1 });
}

#[test]
fn a_log_is_merged_when_it_was_quiet_and_soon_when_half_full() {
    let mut upkeep = Upkeep::new(at(0), 1 << 20);
    let due = |upkeep: &Upkeep, now| upkeep.merge_due(at(now), &log(), true);
    assert_eq!((due(&upkeep, 500), due(&upkeep, 501)), (false, true));
    upkeep.appended(at(600));
    assert_eq!((due(&upkeep, 1100), due(&upkeep, 1101)), (false, true));
    assert!(!upkeep.merge_due(at(60_000), &log(), false), "others need the device");
    // Unless there is soon no room: six pages of eight.
    let merges = |pages: u64| Upkeep::new(at(0), pages * 4096).merge_due(at(0), &log(), false);
    assert_eq!((merges(8), merges(7)), (false, true));
    // Each of its records takes two pages, and may take a third.
    assert_eq!(Upkeep::new(at(0), 12 * 4096).haste(&log()), Haste::None, "just half");
    assert_eq!(Upkeep::new(at(0), 12 * 4096 - 1).haste(&log()), Haste::Soon);
}

#[test]
fn a_merge_is_needed_now_while_a_difference_waits_for_room() {
    let (upkeep, mut core) = (Upkeep::new(at(0), 1 << 20), log());
    let (epoch, session, chunk) = (Epoch(1), 1, 0);
    core.handle(ParityInput::Ask { reply: 1, epoch, session, chunk });
    core.handle(ParityInput::Difference {
        reply: 2,
        epoch,
        session,
        chunk,
        version: 2,
        bytes: 8192,
        committed: 0,
    });
    let asked: Vec<_> = core::iter::from_fn(|| core.poll()).collect();
    assert!(
        matches!(asked[..], [ParityAction::Ack { .. }, ParityAction::Append { reply: 2, .. }]),
        "{asked:?}"
    );
    assert_eq!(upkeep.haste(&core), Haste::None);
    // However little is in the log: what is left of the reserve may lie in two pieces.
    core.handle(ParityInput::Full { chunk, version: 2, reply: 2 });
    assert_eq!(upkeep.haste(&core), Haste::Now);
}

#[test]
fn who_holds_up_the_log_is_asked_once_in_a_while() {
    let (mut upkeep, mut core) = (Upkeep::new(at(0), 1 << 20), log());
    assert_eq!(upkeep.ask_to_level(at(2999), &core, false), None);
    // What comes behind it is committed, and cannot be merged before it.
    committed(&mut core, 0);
    assert_eq!(upkeep.ask_to_level(at(3000), &core, false), Some(3));
    assert_eq!(
        (upkeep.ask_to_level(at(5999), &core, false), upkeep.ask_to_level(at(6000), &core, false)),
        (None, Some(3))
    );
    // While updates come, who sends them says what is committed.
    upkeep.appended(at(8000));
    assert_eq!(
        (upkeep.ask_to_level(at(11_999), &core, false), upkeep.ask_to_level(at(12_000), &core, false)),
        (None, Some(3)),
        "ever less often"
    );
    // But those of another chunk, which fill the log behind it: they would find no room, and then wait for as long.
    let mut half_full = Upkeep::new(at(0), 24_000 - 1);
    half_full.appended(at(8000));
    assert_eq!(half_full.ask_to_level(at(8001), &core, false), Some(3));
    assert_eq!(half_full.ask_to_level(at(11_000), &core, false), None, "asked just now");
    committed(&mut core, 3);
    for upkeep in [&mut upkeep, &mut half_full] {
        assert_eq!(upkeep.ask_to_level(at(20_000), &core, false), None, "it can be merged");
    }
}

/// Who waits for a merge of what lies there since before a restart waits for that alone: nothing came since that would say more.
#[test]
fn who_holds_up_a_merge_that_somebody_waits_for_is_asked_at_once() {
    let (mut upkeep, mut core) = (Upkeep::new(at(0), 1 << 20), log());
    let asked: Vec<u64> =
        (1..1000).filter(|&millis| upkeep.ask_to_level(at(millis), &core, true) == Some(3)).collect();
    assert_eq!(asked, [10, 20, 40, 80, 160, 320, 640], "ever less often");
    committed(&mut core, 3);
    assert_eq!(upkeep.ask_to_level(at(60_000), &core, true), None, "it can be merged");
}

/// A log with so many records of one chunk, and then one of another, behind which an update waits: that is of chunk 0.
fn holding_back(versions: u64) -> ParityChunk {
    let of_one = (1..=versions).map(|version| Entry { sequence: version, chunk: 3, version, bytes: 6000 });
    let other = Entry { sequence: versions + 1, chunk: 0, version: 1, bytes: 6000 };
    let log = of_one.chain([other]).collect();
    let state = ParityState { epoch: Epoch(1), log, log_next: versions + 2, merged: vec![] };
    let core = ParityChunk::new(Mode::Logged, state, 1 << 20).unwrap();
    let mut core = core.with_bound(Behind::of(0, 0, 1));
    let (epoch, session, chunk) = (Epoch(1), 1, 0);
    core.handle(ParityInput::Ask { reply: 1, epoch, session, chunk });
    core.handle(ParityInput::Difference {
        reply: 2,
        epoch,
        session,
        chunk,
        version: 2,
        bytes: 8192,
        committed: 0,
    });
    assert!(core.is_held_back() && core.holds_back(chunk) && !core.holds_back(3));
    core
}

/// A data chunk's node that died before it said what is committed keeps others from their updates for a bounded time.
#[test]
fn who_waits_behind_a_record_whose_sender_is_gone_is_told_in_time() {
    let mut upkeep = Upkeep::new(at(0), 1 << 20);
    let told = |upkeep: &mut Upkeep, core: &ParityChunk, millis| upkeep.is_held_up(at(millis), core, false);
    let there = |upkeep: &mut Upkeep, core: &ParityChunk, millis| upkeep.is_held_up(at(millis), core, true);
    assert!(!told(&mut upkeep, &log(), 0) && !told(&mut upkeep, &log(), 60_000), "nobody waits");
    let mut core = holding_back(1);
    assert!(!told(&mut upkeep, &core, 120_000) && !told(&mut upkeep, &core, 123_000));
    let mut back = upkeep;
    assert!(told(&mut upkeep, &core, 123_001) && told(&mut upkeep, &core, 123_100));
    // It comes back for a moment.
    assert!(!there(&mut back, &core, 123_001) && !told(&mut back, &core, 123_100));
    assert!(!told(&mut back, &core, 126_000));
    // Another record is another matter.
    committed(&mut core, 3);
    assert!(core.is_held_back());
    assert!(!told(&mut upkeep, &core, 130_000) && !told(&mut upkeep, &core, 133_000));
    assert!(told(&mut upkeep, &core, 133_001));
}

/// One that is slow may take as long as it takes; one whose disk hangs gets nowhere, and keeps its connection.
#[test]
fn who_waits_behind_a_record_whose_sender_is_there_is_told_where_that_stands_still() {
    let (mut upkeep, mut core) = (Upkeep::new(at(0), 1 << 20), holding_back(12));
    let mut held_up = |core: &ParityChunk, millis| upkeep.is_held_up(at(millis), core, true);
    for version in 1..=11 {
        // Each of its changes takes as long as it may.
        let since = 60_000 + 6000 * version;
        assert!((0..=6000).step_by(100).all(|more| !held_up(&core, since + more)), "version {version}");
        core.handle(ParityInput::Committed { epoch: Epoch(1), chunk: 3, through: version });
        assert!(core.is_held_back());
    }
    assert!(!held_up(&core, 132_100) && !held_up(&core, 138_100));
    assert!(held_up(&core, 138_101) && held_up(&core, 138_200));
    // It goes on.
    core.handle(ParityInput::Committed { epoch: Epoch(1), chunk: 3, through: 12 });
    assert!(!held_up(&core, 138_300));
}

#[test]
fn an_empty_log_is_held_up_by_nobody() {
    let core = ParityChunk::new(Mode::Logged, ParityState::default(), 1 << 20).unwrap();
    assert_eq!(Upkeep::new(at(0), 24_000).ask_to_level(at(60_000), &core, true), None);
}

#[test]
fn a_reserve_shrinks_when_its_log_is_empty_and_quiet_and_keeps_what_any_change_takes() {
    let mut upkeep = Upkeep::new(at(0), 1 << 20);
    let empty = ParityChunk::new(Mode::Logged, ParityState::default(), 1 << 20).unwrap();
    // Of a segment that is never updated a host begins for that alone.
    assert_eq!(
        upkeep.shrink(at(0), &empty, false, false, 4, 0),
        Shrinking::Now,
        "nobody can have sent anything"
    );
    upkeep.appended(at(1000));
    assert_eq!(upkeep.shrink(at(1500), &empty, false, true, 4, 0), Shrinking::Later, "not quiet for long");
    for used in [false, true] {
        assert_eq!(upkeep.shrink(at(1501), &empty, true, used, 4, 0), Shrinking::Later, "written to");
        let logged = upkeep.shrink(at(60_000), &log(), false, used, 4, 0);
        assert_eq!(logged, Shrinking::Later, "records lie there");
    }
    assert_eq!(upkeep.shrink(at(1501), &empty, false, true, 4, 0), Shrinking::Now);
    let least_bytes = policy::reserve_least_bytes(4);
    assert_eq!(upkeep.shrink(at(1501), &empty, false, true, 4, least_bytes), Shrinking::Now);
    // However busy it is: it would never do.
    for (now, core) in [(1501, &empty), (1200, &log())] {
        let too_small = upkeep.shrink(at(now), core, false, true, 4, least_bytes - 1);
        assert_eq!(too_small, Shrinking::TooSmall { least_bytes });
    }
}
