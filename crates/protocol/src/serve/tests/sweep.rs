use super::super::*;
use crate::{
    Epoch, IndexRanges, SegmentId, Time,
    message::{SEGMENT_STATES_MAX, SegmentState},
};
use core::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn options() -> SweepOptions {
    SweepOptions { interval: Duration::from_secs(60), age_min: Duration::from_secs(30) }
}

fn extent(segment: u64, sealed: bool, blocks: core::ops::Range<u32>, age_s: u64) -> ExtentFacts {
    ExtentFacts {
        segment: SegmentId(segment),
        sealed,
        blocks: IndexRanges::from(blocks),
        epoch: Epoch(5),
        age: Duration::from_secs(age_s),
    }
}

fn committed(keep: core::ops::Range<u32>, epoch: u64) -> SegmentState {
    SegmentState::Committed { keep: IndexRanges::from(keep), epoch: Epoch(epoch) }
}

/// A sweep that has just been given `extents`.
fn listed(extents: Vec<ExtentFacts>) -> Sweep {
    let mut sweep = Sweep::new(Time(0), options());
    assert_eq!(sweep.wake_at(), Some(Time(60 * SECOND)));
    sweep.handle(Time(59 * SECOND), SweepInput::Tick);
    assert_eq!(sweep.poll(), None);
    sweep.handle(Time(60 * SECOND), SweepInput::Tick);
    assert_eq!(sweep.poll(), Some(SweepAction::List));
    sweep.handle(Time(60 * SECOND), SweepInput::Extents(Some(extents)));
    sweep
}

#[test]
fn each_state_has_its_consequence() {
    let mut sweep = listed(vec![
        extent(1, false, 0..10, 100),
        extent(2, false, 0..10, 100),
        extent(3, false, 0..10, 100),
        extent(4, true, 0..10, 100),
        extent(5, true, 0..10, 100),
        extent(6, true, 0..10, 100),
        extent(7, false, 0..10, 100),
        extent(8, false, 0..10, 29),
    ]);
    let asked = (1..8).map(SegmentId).collect();
    assert_eq!(sweep.poll(), Some(SweepAction::Ask { segments: asked }));
    let states = vec![
        SegmentState::Pending,
        SegmentState::Gone,
        committed(0..8, 5),
        committed(0..10, 5),
        committed(0..8, 6),
        SegmentState::Gone,
        committed(0..8, 4),
    ];
    sweep.handle(Time(61 * SECOND), SweepInput::States(Some(states)));
    let keep = IndexRanges::from(0..8);
    let expected = [
        SweepAction::Delete { segment: SegmentId(2), epoch: Epoch(5) },
        SweepAction::Seal { segment: SegmentId(3), keep: keep.clone(), epoch: Epoch(5) },
        SweepAction::Seal { segment: SegmentId(5), keep, epoch: Epoch(6) },
        SweepAction::Delete { segment: SegmentId(6), epoch: Epoch(5) },
    ];
    for (position, action) in expected.into_iter().enumerate() {
        assert_eq!(sweep.poll(), Some(action));
        assert_eq!(sweep.poll(), None);
        sweep.handle(Time(62 * SECOND), SweepInput::Carried { well: position != 1 });
    }
    assert_eq!(sweep.wake_at(), Some(Time(122 * SECOND)));
    let totals = SweepTotals { sweeps: 1, sealed: 2, deleted: 2, blocks_lost: 0, failed: 1 };
    assert_eq!(sweep.totals(), totals);
}

#[test]
fn blocks_that_no_layout_lists_here_are_freed_and_lost_ones_counted() {
    let mut sweep = listed(vec![extent(1, false, 0..10, 100), extent(2, true, 0..10, 100)]);
    sweep.poll();
    sweep.handle(Time(61 * SECOND), SweepInput::States(Some(vec![committed(0..0, 5), committed(0..12, 5)])));
    assert_eq!(sweep.poll(), Some(SweepAction::Delete { segment: SegmentId(1), epoch: Epoch(5) }));
    sweep.handle(Time(61 * SECOND), SweepInput::Carried { well: true });
    assert_eq!(sweep.poll(), None);
    assert_eq!(sweep.totals().blocks_lost, 2);
    // What is still lost at the next is not lost twice, and what was made anew since is not lost.
    for held in [10, 12] {
        sweep.handle(sweep.wake_at().unwrap(), SweepInput::Tick);
        assert_eq!(sweep.poll(), Some(SweepAction::List));
        sweep.handle(Time(200 * SECOND), SweepInput::Extents(Some(vec![extent(2, true, 0..held, 100)])));
        sweep.poll();
        sweep.handle(Time(200 * SECOND), SweepInput::States(Some(vec![committed(0..12, 5)])));
        assert_eq!((sweep.poll(), sweep.totals().blocks_lost), (None, 12 - u64::from(held)));
    }
}

#[test]
fn no_answer_and_a_short_answer_free_nothing() {
    for answer in [None, Some(vec![]), Some(vec![SegmentState::Gone]), Some(vec![SegmentState::Gone; 3])] {
        let mut sweep = listed(vec![extent(1, false, 0..10, 100), extent(2, false, 0..10, 100)]);
        assert!(matches!(sweep.poll(), Some(SweepAction::Ask { .. })));
        sweep.handle(Time(70 * SECOND), SweepInput::States(answer));
        assert_eq!(sweep.poll(), None);
        assert_eq!(sweep.wake_at(), Some(Time(130 * SECOND)));
        assert_eq!(sweep.totals().failed, 1);
        // A late answer finds nobody who asked.
        sweep.handle(Time(71 * SECOND), SweepInput::States(Some(vec![SegmentState::Gone; 2])));
        assert_eq!(sweep.poll(), None);
    }
}

#[test]
fn many_extents_are_asked_about_in_batches() {
    let count = 2 * SEGMENT_STATES_MAX + 5;
    let mut sweep = listed((0..count as u64).map(|segment| extent(segment, false, 0..1, 100)).collect());
    let mut sizes = Vec::new();
    while let Some(SweepAction::Ask { segments }) = sweep.poll() {
        sizes.push(segments.len());
        let states = vec![SegmentState::Pending; segments.len()];
        sweep.handle(Time(61 * SECOND), SweepInput::States(Some(states)));
    }
    assert_eq!(sizes, [SEGMENT_STATES_MAX, SEGMENT_STATES_MAX, 5]);
    assert_eq!(sweep.totals().sweeps, 1);
}
