//! One test a claim of PLR §4.2.2 and §6.3.2, then schedules of any kind against the paper's formula.

use super::super::parity_log::Mode;
use super::super::*;
use super::rng;
use crate::{SegmentId, Time};
use core::time::Duration;
use rand_core::Rng;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
/// 16 MiB in eight data chunks (§6.3.2).
const CHUNK: u32 = 2 << 20;
const EIGHT: u64 = 8 * CHUNK as u64;

fn parity(segment: u64) -> ReservedChunk {
    ReservedChunk { segment: SegmentId(segment), index: 8 }
}

fn at(periods: u64) -> Time {
    Time(0) + PERIOD * u32::try_from(periods).unwrap()
}

/// The paper's formula as printed, with a first utility of its own.
fn printed(utility_first: f64) -> ReserveOptions {
    ReserveOptions { utility_first, delta_bytes_min: 0, ..ReserveOptions::default() }
}

fn with_one(options: ReserveOptions) -> Reserve {
    let mut reserve = Reserve::new(Time(0), options).unwrap();
    reserve.handle(Time(0), ReserveInput::Created { chunk: parity(1), chunk_bytes: CHUNK }).unwrap();
    reserve
}

/// One that has a reserve of its own size and an empty log.
fn found(chunk: ReservedChunk, chunk_bytes: u32, before: Option<ReserveUse>) -> ReserveInput {
    ReserveInput::Found { chunk, chunk_bytes, reserved_bytes: chunk_bytes.into(), held_bytes: 0, before }
}

fn append(reserve: &mut Reserve, chunk: ReservedChunk, bytes: u64) {
    let input = ReserveInput::Appended { chunk, bytes: u32::try_from(bytes).unwrap() };
    reserve.handle(Time(0), input).unwrap();
}

/// Ends a period; every action is carried out at once.
fn end(reserve: &mut Reserve, period: u64) -> Vec<ReserveAction> {
    reserve.handle(at(period), ReserveInput::Tick).unwrap();
    let mut done = Vec::new();
    loop {
        while let Some(action) = reserve.poll() {
            done.push(action);
            let answer = match action {
                ReserveAction::Merge { chunk } => ReserveInput::Merged { chunk, left_bytes: 0 },
                ReserveAction::Shrink { chunk, .. } => ReserveInput::Shrunk { chunk },
            };
            reserve.handle(at(period), answer).unwrap();
        }
        if reserve.wake_at().is_none_or(|wake| wake > at(period)) {
            return done;
        }
        reserve.handle(at(period), ReserveInput::Tick).unwrap();
    }
}

/// §4.2.2: "Initially, we set a default reserved space size"; "the reserved space size and the shrinking size be of
/// multiples of the chunk size".
#[test]
fn the_default_is_the_nearest_multiple_of_the_chunk() {
    for (chunk_bytes, reserved) in
        [(2 << 20, 16), (3 << 20, 15), (5 << 20, 15), (16 << 20, 16), (64 << 20, 64)]
    {
        let mut reserve = Reserve::new(Time(0), ReserveOptions::default()).unwrap();
        reserve.handle(Time(0), ReserveInput::Created { chunk: parity(1), chunk_bytes }).unwrap();
        assert_eq!(reserve.reserved_bytes(parity(1)), reserved * MIB, "chunks of {chunk_bytes}");
        assert_eq!((reserve.total_bytes(), reserve.chunks()), (reserved * MIB, 1));
        assert_eq!(reserve.mode(parity(1)), Mode::Logged);
    }
}

/// §4.2.2: u = α·use/r + (1 − α)·u', α = 0.3.
#[test]
fn utility_is_the_smoothed_share_of_the_reserve_that_was_used() {
    let mut reserve = with_one(printed(0.0));
    append(&mut reserve, parity(1), 12 * MIB);
    end(&mut reserve, 1);
    // 0.3 · 12/16; 0.775 of eight chunks are not needed.
    assert_eq!(reserve.utility(parity(1)), Some(0.225));
    assert_eq!(reserve.reserved_bytes(parity(1)), 4 * MIB);
    append(&mut reserve, parity(1), 2 * MIB);
    end(&mut reserve, 2);
    // 0.3 · 2/4 + 0.7 · 0.225.
    assert_eq!(reserve.utility(parity(1)), Some(0.3075));
}

/// §4.2.2: c = ⌊(1 − u)·r / chunk⌋·chunk, and r − c stays. With nothing used u is 0.7, 0.49, 0.343, 0.2401.
#[test]
fn all_unused_space_is_shrunk_in_whole_chunks() {
    let mut reserve = with_one(printed(1.0));
    let sizes: Vec<u64> = (1..=6)
        .map(|period| {
            end(&mut reserve, period);
            reserve.reserved_bytes(parity(1)) / u64::from(CHUNK)
        })
        .collect();
    assert_eq!(sizes, [6, 3, 2, 1, 1, 1]);
}

/// α = 0.3 is 0.3: of ten chunks used whole in one period, nothing before, exactly seven are not needed.
#[test]
fn a_decimal_share_is_not_rounded_away() {
    let mut reserve = Reserve::new(Time(0), printed(0.0)).unwrap();
    let reserved_bytes = 10 * u64::from(CHUNK);
    let found = ReserveInput::Found {
        chunk: parity(1),
        chunk_bytes: CHUNK,
        reserved_bytes,
        held_bytes: reserved_bytes,
        before: None,
    };
    reserve.handle(Time(0), found).unwrap();
    end(&mut reserve, 1);
    assert_eq!(reserve.reserved_bytes(parity(1)), 3 * u64::from(CHUNK));
}

/// §4.2.2: "If a chunk has no more reserved space after shrinking, any subsequent update requests to this chunk are
/// applied in-place as in FO."
#[test]
fn a_chunk_without_reserve_is_updated_in_place() {
    let mut reserve = with_one(printed(0.0));
    assert_eq!(end(&mut reserve, 1), [ReserveAction::Shrink { chunk: parity(1), to_bytes: 0 }]);
    assert_eq!(reserve.mode(parity(1)), Mode::InPlace);
    assert_eq!((reserve.total_bytes(), reserve.chunks(), reserve.utility(parity(1))), (0, 0, None));
    let refused = reserve.handle(at(1), ReserveInput::Appended { chunk: parity(1), bytes: 1 });
    assert_eq!(refused, Err(ReserveError::NoRoom { chunk: parity(1), bytes: 1, room_bytes: 0 }));
}

/// §4.2.2: the merge "resets use(p) to zero. Hence we free the parity chunk from carrying any deltas to the next time
/// interval"; Algorithm 1 merges every chunk, shrunk or not.
#[test]
fn every_log_is_merged_when_a_period_ends_and_the_next_begins_at_zero() {
    let mut reserve = with_one(printed(1.0));
    append(&mut reserve, parity(1), EIGHT);
    // All was used: nothing to give back, and merged nevertheless.
    assert_eq!(end(&mut reserve, 1), [ReserveAction::Merge { chunk: parity(1) }]);
    assert_eq!(reserve.room_bytes(parity(1)), EIGHT);
    // Nothing in the log: no merge, and none of the last period's use counts.
    assert_eq!(end(&mut reserve, 2), [ReserveAction::Shrink { chunk: parity(1), to_bytes: 12 * MIB }]);
    assert_eq!(reserve.utility(parity(1)), Some(0.7));
}

/// Ours: merged before shrunk, so that a log in use is never cut; size and empty log are as the paper's order leaves them.
#[test]
fn a_log_that_is_looked_at_now_and_then_counts_like_one_of_which_every_delta_is_told() {
    let (mut told, mut seen) = (with_one(printed(0.0)), with_one(printed(0.0)));
    for (period, logged) in [(1, 12), (2, 3), (3, 0)] {
        if logged > 0 {
            append(&mut told, parity(1), logged * MIB);
        }
        let chunk = parity(1);
        let input = |held_bytes| ReserveInput::Seen { chunk, logged_bytes: logged * MIB, held_bytes };
        assert!(matches!(seen.handle(at(period - 1), input(17 * MIB)), Err(ReserveError::Size { .. })));
        seen.handle(at(period - 1), input(logged * MIB)).unwrap();
        assert_eq!(end(&mut told, period), end(&mut seen, period));
        assert!(seen.is_resting());
        assert_eq!(told.utility(chunk), seen.utility(chunk));
    }
    let gone = ReserveInput::Seen { chunk: parity(2), logged_bytes: 1, held_bytes: 1 };
    assert_eq!((seen.handle(at(4), gone), seen.utility(parity(2))), (Ok(()), None));
}

#[test]
fn a_reserve_that_is_of_no_use_when_smaller_keeps_its_least_or_nothing() {
    let mut reserve = with_one(ReserveOptions { utility_first: 0.3, ..ReserveOptions::default() });
    append(&mut reserve, parity(1), 1 << 20);
    reserve.handle(at(1), ReserveInput::Tick).unwrap();
    assert_eq!(reserve.poll(), Some(ReserveAction::Merge { chunk: parity(1) }));
    reserve.handle(at(1), ReserveInput::Merged { chunk: parity(1), left_bytes: 0 }).unwrap();
    let to_bytes = 4 * MIB;
    assert_eq!(reserve.poll(), Some(ReserveAction::Shrink { chunk: parity(1), to_bytes }));
    // Two chunks and a half are the least: three.
    let least = ReserveInput::Least { chunk: parity(1), least_bytes: 5 * MIB };
    reserve.handle(at(1), least).unwrap();
    assert_eq!((reserve.poll(), reserve.reserved_bytes(parity(1))), (None, EIGHT));
    let shrunk = |action: &ReserveAction| match *action {
        ReserveAction::Shrink { to_bytes, .. } => Some(to_bytes),
        ReserveAction::Merge { .. } => None,
    };
    let steps: Vec<u64> =
        (2..60).flat_map(|period| end(&mut reserve, period)).filter_map(|it| shrunk(&it)).collect();
    assert_eq!(steps, [6 * MIB, 0]);
}

#[test]
fn a_log_is_merged_before_its_space_is_given_back() {
    let mut reserve = with_one(printed(0.0));
    append(&mut reserve, parity(1), 15 * MIB);
    // Algorithm 1: u = 0.3 · 15/16 = 0.28125, c = 5 chunks, 6 MiB stay of which 15 were in use.
    let done = end(&mut reserve, 1);
    assert_eq!(
        done,
        [
            ReserveAction::Merge { chunk: parity(1) },
            ReserveAction::Shrink { chunk: parity(1), to_bytes: 6 * MIB }
        ]
    );
    assert_eq!(reserve.room_bytes(parity(1)), 6 * MIB);
}

/// Ours: deltas that come while the log is merged keep their room, and count in the period that has begun.
#[test]
fn what_is_logged_meanwhile_is_not_cut() {
    let mut reserve = with_one(printed(0.0));
    append(&mut reserve, parity(1), MIB);
    reserve.handle(at(1), ReserveInput::Tick).unwrap();
    assert_eq!(reserve.poll(), Some(ReserveAction::Merge { chunk: parity(1) }));
    assert_eq!((reserve.poll(), reserve.wake_at()), (None, None), "one action at a time");
    append(&mut reserve, parity(1), 5 * MIB);
    reserve.handle(at(1), ReserveInput::Merged { chunk: parity(1), left_bytes: 5 * MIB }).unwrap();
    // One chunk would do by the formula; the log holds two and a half.
    assert_eq!(reserve.poll(), Some(ReserveAction::Shrink { chunk: parity(1), to_bytes: 6 * MIB }));
    assert_eq!(reserve.room_bytes(parity(1)), MIB, "no delta may go where space is being given back");
    reserve.handle(at(1), ReserveInput::Shrunk { chunk: parity(1) }).unwrap();
    assert_eq!((reserve.poll(), reserve.wake_at()), (None, Some(at(2))));
    end(&mut reserve, 2);
    let before = 0.3 / 16.0;
    assert!((reserve.utility(parity(1)).unwrap() - (0.3 * 5.0 / 6.0 + 0.7 * before)).abs() < 3e-9);
}

/// §4.2.2: the utility is "the fraction of reserved space being used": merges on the way do not raise it beyond 1, and a
/// log that was merged a moment ago was used.
#[test]
fn merges_on_the_way_of_updates_count_as_use_and_never_beyond_the_whole() {
    let mut reserve = with_one(printed(0.0));
    for _ in 0..5 {
        append(&mut reserve, parity(1), EIGHT);
        reserve.handle(Time(1), ReserveInput::Merged { chunk: parity(1), left_bytes: 0 }).unwrap();
    }
    end(&mut reserve, 1);
    assert_eq!(reserve.utility(parity(1)), Some(0.3));
}

/// §6.3.2: shrink only "does not free the space occupied by the parity deltas": they stay in use, and in the way.
#[test]
fn shrink_only_keeps_what_the_log_holds() {
    let mut reserve = with_one(ReserveOptions { policy: ReservePolicy::ShrinkOnly, ..printed(0.0) });
    append(&mut reserve, parity(1), 9 * MIB);
    assert_eq!(end(&mut reserve, 1), [ReserveAction::Shrink { chunk: parity(1), to_bytes: 10 * MIB }]);
    assert_eq!(reserve.room_bytes(parity(1)), MIB);
    for period in 2..60 {
        assert_eq!(end(&mut reserve, period), []);
    }
    // What is carried over is in use in every period.
    assert!((reserve.utility(parity(1)).unwrap() - 0.9).abs() < 1e-6);
}

/// §6.3.2: the baselines "fix the reserved space size without any adjustment".
#[test]
fn a_fixed_reserve_never_changes() {
    let mut reserve = with_one(ReserveOptions { policy: ReservePolicy::Fixed, ..ReserveOptions::default() });
    append(&mut reserve, parity(1), MIB);
    assert_eq!((end(&mut reserve, 100), reserve.wake_at()), (Vec::new(), None));
    assert_eq!((reserve.total_bytes(), reserve.room_bytes(parity(1))), (EIGHT, EIGHT - MIB));
}

/// Ours: as printed the last chunk is kept for ever once u was above zero; where less than one delta is predicted it goes. Of a
/// reserve that is not used nothing but the first utility speaks, and that for less than four periods: two days.
#[test]
fn the_last_chunk_goes_when_no_delta_is_predicted() {
    let mut as_printed = with_one(printed(1.0));
    let mut eight = with_one(ReserveOptions::default());
    // A bucket's default: as much as the chunk, of which the formula can give nothing back.
    let mut one = Reserve::new(Time(0), ReserveOptions::default()).unwrap();
    one.handle(Time(0), found(parity(1), 4 << 20, None)).unwrap();
    for period in 1..=3 {
        end(&mut eight, period);
        assert_eq!(end(&mut one, period), [], "period {period}");
        assert!(eight.reserved_bytes(parity(1)) > 0, "period {period}");
    }
    for reserve in [&mut eight, &mut one] {
        assert_eq!(end(reserve, 4), [ReserveAction::Shrink { chunk: parity(1), to_bytes: 0 }]);
        assert_eq!(reserve.mode(parity(1)), Mode::InPlace);
    }
    (1..=500).for_each(|period| drop(end(&mut as_printed, period)));
    assert_eq!(as_printed.reserved_bytes(parity(1)), u64::from(CHUNK));
}

/// Ours: what was measured is predicted to go on, however little that is, and however much of the first utility is left in u.
#[test]
fn what_is_used_a_little_keeps_its_last_chunk_as_long_as_a_delta_is_predicted() {
    let mut reserve = Reserve::new(Time(0), ReserveOptions::default()).unwrap();
    reserve.handle(Time(0), found(parity(1), 4 << 20, None)).unwrap();
    for period in 1..=50 {
        append(&mut reserve, parity(1), 2 * u64::from(DELTA_BYTES_MIN));
        assert_eq!(end(&mut reserve, period), [ReserveAction::Merge { chunk: parity(1) }]);
    }
    // Of two deltas a period 0.7, then 0.49 are left.
    assert_eq!(end(&mut reserve, 51), []);
    assert_eq!(end(&mut reserve, 52), [ReserveAction::Shrink { chunk: parity(1), to_bytes: 0 }]);
    // What was used whole in the first period and never again: 0.3 · 0.7^17 of 4 MiB is less than a delta.
    let mut once = Reserve::new(Time(0), ReserveOptions::default()).unwrap();
    once.handle(Time(0), found(parity(1), 4 << 20, None)).unwrap();
    append(&mut once, parity(1), 4 << 20);
    assert_eq!(end(&mut once, 1), [ReserveAction::Merge { chunk: parity(1) }]);
    (2..=17).for_each(|period| assert_eq!(end(&mut once, period), [], "period {period}"));
    assert_eq!(end(&mut once, 18).len(), 1);
}

/// Ours: a driver that is away now and then, its node restarted, decides what one does that stays.
#[test]
fn use_and_period_are_taken_up_where_they_were() {
    let chunk = parity(1);
    let mut stays = with_one(printed(1.0));
    let mut away = stays.clone();
    let logged = [9, 0, 3, 0, 0, 1, 2, 0].map(|mib| mib * MIB);
    for (period, logged) in (1..).zip(logged) {
        for reserve in [&mut stays, &mut away] {
            let seen = ReserveInput::Seen { chunk, logged_bytes: logged, held_bytes: 0 };
            reserve.handle(at(period - 1), seen).unwrap();
        }
        // A third of the period later.
        let now = at(period - 1) + PERIOD / 3;
        let (before, left) = (away.use_of(chunk), away.left(now));
        assert_eq!((before.is_some(), left), (true, at(period).since(now)));
        let reserved_bytes = away.reserved_bytes(chunk);
        away = Reserve::new(now, printed(1.0)).unwrap().resumed(left);
        let back = ReserveInput::Found { chunk, chunk_bytes: CHUNK, reserved_bytes, held_bytes: 0, before };
        away.handle(now, back).unwrap();
        assert_eq!(away.wake_at(), stays.wake_at());
        assert_eq!(end(&mut away, period), end(&mut stays, period), "period {period}");
        assert_eq!((away.utility(chunk), away.use_of(chunk)), (stays.utility(chunk), stays.use_of(chunk)));
    }
    assert_eq!(away.use_of(parity(2)), None);
    // One that was kept under another period does not make this one longer.
    let away = Reserve::new(at(1), ReserveOptions::default()).unwrap().resumed(Duration::MAX);
    assert_eq!((away.wake_at(), away.left(at(1))), (Some(at(2)), PERIOD));
}

/// What was kept comes from a disk: numbers that make no sense count as the largest that do.
#[test]
fn use_that_makes_no_sense_is_bounded() {
    let nonsense = postcard::to_stdvec(&(u32::MAX, u32::MAX, u32::MAX)).unwrap();
    let before: ReserveUse = postcard::from_bytes(&nonsense).unwrap();
    let mut reserve = Reserve::new(Time(0), ReserveOptions::default()).unwrap();
    reserve.handle(Time(0), found(parity(1), u32::MAX, Some(before))).unwrap();
    assert_eq!(reserve.utility(parity(1)), Some(1.0));
    assert_eq!((end(&mut reserve, 1), reserve.utility(parity(1))), (vec![], Some(1.0)));
    // What the log holds was used, whoever kept count.
    let mut reserve = Reserve::new(Time(0), printed(0.0)).unwrap();
    reserve.handle(Time(0), found(parity(1), CHUNK, None)).unwrap();
    let (unused, reserved_bytes) = (reserve.use_of(parity(1)), u64::from(CHUNK));
    let (chunk, chunk_bytes) = (parity(2), CHUNK);
    let held = ReserveInput::Found { chunk, chunk_bytes, reserved_bytes, held_bytes: MIB, before: unused };
    reserve.handle(Time(0), held).unwrap();
    end(&mut reserve, 1);
    assert_eq!(reserve.utility(chunk), Some(0.15));
}

#[test]
fn what_failed_is_looked_at_again_and_nothing_is_lost() {
    let mut reserve = with_one(printed(0.0));
    append(&mut reserve, parity(1), 12 * MIB);
    reserve.handle(at(1), ReserveInput::Tick).unwrap();
    assert_eq!(reserve.poll(), Some(ReserveAction::Merge { chunk: parity(1) }));
    // An answer to something else is none.
    reserve.handle(at(1), ReserveInput::Failed { chunk: parity(2) }).unwrap();
    reserve.handle(at(1), ReserveInput::Shrunk { chunk: parity(1) }).unwrap();
    assert_eq!((reserve.poll(), reserve.wake_at()), (None, None));
    reserve.handle(at(1), ReserveInput::Failed { chunk: parity(1) }).unwrap();
    assert_eq!((reserve.poll(), reserve.wake_at()), (None, Some(at(2))));
    assert_eq!(reserve.room_bytes(parity(1)), 4 * MIB);
    // It is merged at the next end, having been in use all the time.
    reserve.handle(at(2), ReserveInput::Tick).unwrap();
    assert_eq!(reserve.poll(), Some(ReserveAction::Merge { chunk: parity(1) }));
    reserve.handle(at(2), ReserveInput::Merged { chunk: parity(1), left_bytes: 0 }).unwrap();
    assert_eq!(reserve.utility(parity(1)), Some(0.3825));
    assert_eq!(reserve.poll(), Some(ReserveAction::Shrink { chunk: parity(1), to_bytes: 8 * MIB }));
    reserve.handle(at(2), ReserveInput::Failed { chunk: parity(1) }).unwrap();
    assert_eq!((reserve.total_bytes(), reserve.room_bytes(parity(1))), (EIGHT, EIGHT));
}

#[test]
fn a_chunk_that_is_deleted_ends_what_is_under_way_for_it() {
    let mut reserve = with_one(printed(0.0));
    reserve.handle(Time(0), ReserveInput::Created { chunk: parity(2), chunk_bytes: CHUNK }).unwrap();
    append(&mut reserve, parity(1), MIB);
    reserve.handle(at(1), ReserveInput::Tick).unwrap();
    assert_eq!(reserve.poll(), Some(ReserveAction::Merge { chunk: parity(1) }));
    reserve.handle(at(1), ReserveInput::Deleted { chunk: parity(1) }).unwrap();
    assert_eq!(reserve.poll(), Some(ReserveAction::Shrink { chunk: parity(2), to_bytes: 0 }));
    reserve.handle(at(1), ReserveInput::Deleted { chunk: parity(2) }).unwrap();
    // The answers come late.
    reserve.handle(at(1), ReserveInput::Merged { chunk: parity(1), left_bytes: 0 }).unwrap();
    reserve.handle(at(1), ReserveInput::Shrunk { chunk: parity(2) }).unwrap();
    assert_eq!((reserve.poll(), reserve.total_bytes(), reserve.chunks()), (None, 0, 0));
    assert_eq!(reserve.wake_at(), Some(at(2)));
}

#[test]
fn what_is_impossible_is_refused_and_changes_nothing() {
    let wrong = |change: fn(&mut ReserveOptions)| {
        let mut options = ReserveOptions::default();
        change(&mut options);
        Reserve::new(Time(0), options).unwrap_err().to_string()
    };
    assert!(wrong(|options| options.smoothing = 0.0).contains("smoothing is 0"));
    assert!(wrong(|options| options.smoothing = f64::NAN).contains("smoothing"));
    assert!(wrong(|options| options.utility_first = 1.5).contains("utility_first is 1.5"));
    assert!(wrong(|options| options.period = Duration::ZERO).contains("period"));
    let mut reserve = with_one(ReserveOptions::default());
    let found = |chunk_bytes, reserved_bytes, held_bytes| ReserveInput::Found {
        chunk: parity(2),
        chunk_bytes,
        reserved_bytes,
        held_bytes,
        before: None,
    };
    for input in [
        ReserveInput::Created { chunk: parity(1), chunk_bytes: CHUNK },
        ReserveInput::Created { chunk: parity(2), chunk_bytes: 0 },
        found(CHUNK, 3 * MIB, 0),
        found(CHUNK, 4 * MIB, 4 * MIB + 1),
        found(1 << 31, 1 << 32, 0),
        ReserveInput::Merged { chunk: parity(1), left_bytes: EIGHT + 1 },
        ReserveInput::Appended { chunk: parity(1), bytes: 16 * (1 << 20) + 1 },
        ReserveInput::Appended { chunk: parity(2), bytes: 1 },
    ] {
        let refused = reserve.handle(Time(0), input).unwrap_err();
        assert!(!refused.to_string().is_empty(), "{input:?}");
    }
    assert_eq!((reserve.total_bytes(), reserve.room_bytes(parity(1))), (EIGHT, EIGHT));
    // Found without reserve: known to nobody, and in place.
    reserve.handle(Time(0), found(CHUNK, 0, 0)).unwrap();
    assert_eq!((reserve.mode(parity(2)), reserve.chunks()), (Mode::InPlace, 1));
}

/// A period's end is many short steps, and other inputs go in between.
#[test]
fn a_call_looks_at_a_bounded_number_of_chunks() {
    let mut reserve = Reserve::new(Time(0), printed(1.0)).unwrap();
    let count = 10 * LOOK_MAX as u64 + 7;
    for segment in 0..count {
        let chunk = parity(segment);
        reserve.handle(Time(0), found(chunk, CHUNK, None)).unwrap();
    }
    let looked = |reserve: &Reserve| {
        (0..count).filter(|&segment| reserve.utility(parity(segment)) == Some(0.7)).count()
    };
    reserve.handle(at(1), ReserveInput::Tick).unwrap();
    for turn in 1..=10 {
        assert_eq!((reserve.poll(), looked(&reserve)), (None, turn * LOOK_MAX));
        assert_eq!(reserve.wake_at(), Some(at(1)), "there is more to do");
        reserve.handle(at(1), ReserveInput::Tick).unwrap();
    }
    assert_eq!((reserve.poll(), looked(&reserve)), (None, count as usize));
    assert_eq!(reserve.wake_at(), Some(at(2)));
}

/// A driver that was busy, or stopped, for long looks once, not once for each period that passed.
#[test]
fn ends_that_were_missed_are_not_made_up_for() {
    let mut reserve = with_one(printed(1.0));
    assert_eq!(end(&mut reserve, 7).len(), 1);
    assert_eq!(reserve.utility(parity(1)), Some(0.7));
    assert_eq!(reserve.wake_at(), Some(at(8)));
}

/// What the paper's text and ours say of one chunk, in whole numbers of 10^-9; those that are smoothed are never rounded down.
struct Twin {
    reserved: u64,
    held: u64,
    used: u64,
    utility: u64,
    /// What it began at, and what that weighs.
    first: u64,
    weight: u64,
}

impl Twin {
    fn end(&mut self, policy: ReservePolicy, delta_bytes_min: u64) {
        const ONE: u128 = 1_000_000_000;
        let share = (u128::from(self.used.min(self.reserved)) * ONE).div_ceil(self.reserved.into());
        self.utility = (3 * share + 7 * u128::from(self.utility)).div_ceil(10) as u64;
        self.weight = (7 * self.weight).div_ceil(10);
        let needed = u128::from(self.utility) * u128::from(self.reserved);
        let chunk = u128::from(CHUNK);
        let mut left = needed.div_ceil(ONE * chunk) * chunk;
        let weight = u128::from(self.weight);
        let (mut predicted, mut parts) = (u128::from(self.utility), ONE);
        if 4 * weight < ONE {
            predicted = predicted.saturating_sub(weight * u128::from(self.first) / ONE);
            parts = ONE - weight;
        }
        if predicted * u128::from(self.reserved) < u128::from(delta_bytes_min) * parts {
            left = 0;
        }
        if policy == ReservePolicy::ShrinkAndMerge {
            self.held = 0;
        }
        self.reserved = (left as u64).max(self.held.div_ceil(CHUNK.into()) * u64::from(CHUNK));
        self.used = self.held;
    }
}

/// Any schedule of deltas, merges, deletions and periods: sizes are the formula's, nothing grows, nothing in use is cut.
#[test]
fn any_schedule_follows_the_formula() {
    let mut shrunk = 0;
    let mut emptied = 0;
    for case in 0..200 {
        let mut random = rng(case);
        let mut draw = |n: u64| random.next_u64() % n;
        let policy = [ReservePolicy::ShrinkAndMerge, ReservePolicy::ShrinkOnly][draw(2) as usize];
        let options = ReserveOptions {
            policy,
            utility_first: draw(11) as f64 / 10.0,
            delta_bytes_min: [0, DELTA_BYTES_MIN][draw(2) as usize],
            ..ReserveOptions::default()
        };
        let mut reserve = Reserve::new(Time(0), options).unwrap();
        let mut twins: BTreeMap<ReservedChunk, Twin> = BTreeMap::new();
        for period in 1..=30 {
            for _ in 0..draw(60) {
                let chunk = parity(draw(12));
                let Some(twin) = twins.get_mut(&chunk) else {
                    if reserve.handle(Time(0), ReserveInput::Created { chunk, chunk_bytes: CHUNK }).is_ok() {
                        let first = (options.utility_first * 1e9).round() as u64;
                        let (utility, weight) = (first, 1_000_000_000);
                        let twin = Twin { reserved: EIGHT, held: 0, used: 0, utility, first, weight };
                        twins.insert(chunk, twin);
                    }
                    continue;
                };
                if draw(40) == 0 {
                    reserve.handle(Time(0), ReserveInput::Deleted { chunk }).unwrap();
                    twins.remove(&chunk);
                    continue;
                }
                let bytes = 1 + draw(3 * MIB);
                if bytes > twin.reserved {
                    continue;
                }
                if bytes > reserve.room_bytes(chunk) {
                    reserve.handle(Time(0), ReserveInput::Merged { chunk, left_bytes: 0 }).unwrap();
                    twin.held = 0;
                }
                append(&mut reserve, chunk, bytes);
                twin.held += bytes;
                twin.used += bytes;
            }
            let before: BTreeMap<ReservedChunk, u64> =
                twins.iter().map(|(&chunk, twin)| (chunk, twin.reserved)).collect();
            let done = end(&mut reserve, period);
            shrunk += done.iter().filter(|action| matches!(action, ReserveAction::Shrink { .. })).count();
            for (chunk, twin) in &mut twins {
                if twin.reserved > 0 {
                    twin.end(policy, options.delta_bytes_min.into());
                }
                let ours = reserve.reserved_bytes(*chunk);
                assert_eq!(ours, twin.reserved, "case {case}, period {period}, {chunk:?}");
                assert!(ours <= before[chunk] && ours.is_multiple_of(CHUNK.into()));
                assert_eq!(reserve.room_bytes(*chunk), twin.reserved - twin.held);
                emptied += usize::from(ours == 0 && before[chunk] > 0);
            }
            assert_eq!(reserve.total_bytes(), twins.values().map(|twin| twin.reserved).sum::<u64>());
            assert_eq!(reserve.chunks(), twins.values().filter(|twin| twin.reserved > 0).count());
        }
    }
    // The schedules visit what they are there to test.
    assert!(shrunk > 1000 && emptied > 50, "{shrunk} shrunk, {emptied} to nothing");
}
