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

/// One sweep of a device that holds the sealed extents `1..=sealed` and one that grows; what it asked about.
fn asked_of(sweep: &mut Sweep, sealed: u64) -> Vec<u64> {
    let now = sweep.wake_at().expect("it rests");
    sweep.handle(now, SweepInput::Tick);
    assert_eq!(sweep.poll(), Some(SweepAction::List));
    let mut extents: Vec<_> = (1..=sealed).map(|segment| extent(segment, true, 0..10, 100)).collect();
    extents.push(extent(1000, false, 0..10, 100));
    sweep.handle(now, SweepInput::Extents(Some(extents)));
    let mut asked = Vec::new();
    while let Some(SweepAction::Ask { segments }) = sweep.poll() {
        let state = |segment: &SegmentId| match segment.0 {
            1000 => SegmentState::Pending,
            // Blocks of it are lost.
            7 => committed(0..11, 5),
            _ => committed(0..10, 5),
        };
        sweep.handle(now, SweepInput::States(Some(segments.iter().map(state).collect())));
        asked.extend(segments.iter().map(|segment| segment.0));
    }
    asked
}

#[test]
fn what_is_in_place_is_asked_about_once_in_many_sweeps_and_the_rest_in_each() {
    // A sweep a minute: once in ten of them.
    let mut sweep = Sweep::new(Time(0), options());
    assert_eq!(asked_of(&mut sweep, 50).len(), 51);
    let mut times = [0; 51];
    for _ in 0..20 {
        let asked = asked_of(&mut sweep, 50);
        assert!(asked.contains(&7) && asked.contains(&1000), "{asked:?}");
        assert!(asked.len() <= 2 + 5, "some in every sweep, and never all: {asked:?}");
        asked.iter().filter(|&&segment| segment < 1000).for_each(|&segment| times[segment as usize] += 1);
        assert_eq!(sweep.totals().blocks_lost, 1, "what was not asked about is not found again");
    }
    assert!((1..=50).filter(|&segment| segment != 7).all(|segment| times[segment] == 2), "{times:?}");
    // What is new is asked about at once.
    assert!(asked_of(&mut sweep, 53).ends_with(&[51, 52, 53, 1000]));
    assert!(asked_of(&mut sweep, 53).len() <= 2 + 6);
    // A sweep a second: once in twenty, though those are less than ten minutes. One in ten minutes: in each.
    for (interval_s, most) in [(1, 2 + 3), (600, 51), (3600, 51)] {
        let interval = Duration::from_secs(interval_s);
        let mut sweep = Sweep::new(Time(0), SweepOptions { interval, ..options() });
        assert_eq!(asked_of(&mut sweep, 50).len(), 51);
        let asked = asked_of(&mut sweep, 50).len();
        assert!(asked <= most && (most < 51 || asked == 51), "{asked} after {interval:?}");
    }
}

#[test]
fn a_sweep_that_had_no_answer_is_gone_on_with_where_it_was() {
    let batch = SEGMENT_STATES_MAX as u64;
    let extents = || (0..2 * batch + 5).map(|segment| extent(segment, false, 0..1, 100)).collect::<Vec<_>>();
    let begun = |sweep: &mut Sweep| {
        let now = sweep.wake_at().expect("it rests");
        sweep.handle(now, SweepInput::Tick);
        assert_eq!(sweep.poll(), Some(SweepAction::List));
        sweep.handle(now, SweepInput::Extents(Some(extents())));
    };
    let first_asked = |sweep: &mut Sweep, answered: bool| match sweep.poll() {
        Some(SweepAction::Ask { segments }) => {
            let states = vec![SegmentState::Pending; segments.len()];
            sweep.handle(Time(0), SweepInput::States(answered.then_some(states)));
            segments[0].0
        }
        other => panic!("{other:?}"),
    };
    let mut sweep = Sweep::new(Time(0), options());
    begun(&mut sweep);
    assert_eq!((first_asked(&mut sweep, true), first_asked(&mut sweep, false)), (0, batch));
    // Nothing was answered: from there again.
    begun(&mut sweep);
    assert_eq!(first_asked(&mut sweep, false), batch);
    // The last ones, and then those that had their turn before.
    begun(&mut sweep);
    let begins = [(); 3].map(|()| first_asked(&mut sweep, true));
    assert_eq!((begins, sweep.poll()), ([batch, 2 * batch, batch - 5], None));
    assert_eq!((sweep.totals().sweeps, sweep.totals().failed), (1, 2));
    // It went through: from the lowest.
    begun(&mut sweep);
    assert_eq!(first_asked(&mut sweep, true), 0);
}
