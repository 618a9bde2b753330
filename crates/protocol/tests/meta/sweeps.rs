//! What the sweep of a storage server asks: an answer is bounded, and a sweep comes to its end all the same.

use crate::support::{World, layout};
use core::time::Duration;
use std::collections::BTreeSet;
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, SegmentId,
    layout::SegmentLayout,
    message::{
        BODY_BYTES_MAX, MetaAnswer, MetaFault, PutBegun, Query, SEGMENT_STATES_BYTES_MAX, SEGMENT_STATES_MAX,
        SegmentState, encode,
    },
    serve::{ExtentFacts, Sweep, SweepAction, SweepInput, SweepOptions},
};

/// No two neighbours on one device: a range of several bytes for each of 64 K blocks.
fn scattered(begun: &PutBegun, segment: SegmentId) -> SegmentLayout {
    let mut layout = layout(begun, segment, 1 << 30);
    for (device, holder) in (0..).zip(&mut layout.holders) {
        holder.pieces[0].blocks = (0..65_536).filter(|index| index % 6 == device).collect();
    }
    layout
}

/// Objects whose segments are too large for one answer.
fn large(world: &mut World) -> Vec<SegmentId> {
    let mut all = Vec::new();
    for key in ["one", "two"] {
        let begun = world.begin(key, 6);
        let layouts: Vec<_> = begun.segments.iter().map(|&segment| scattered(&begun, segment)).collect();
        world.commit_layouts(&begun, &layouts).unwrap();
        all.extend(begun.segments);
    }
    all
}

#[test]
fn an_answer_has_room_for_what_it_says_and_frees_nothing_beyond() {
    let mut world = World::six();
    let all = large(&mut world);
    let mut many = all.clone();
    // Of these the first are gone, which is said of none for want of room.
    many.extend(world.put("gone", 100).segments);
    world.remove("gone").unwrap();
    let states = world.states(&many, 1);
    let said = states.iter().filter(|state| matches!(state, SegmentState::Committed { .. })).count();
    assert!(said > 1 && said < all.len(), "{said}");
    assert!(states[said..].iter().all(|state| *state == SegmentState::Pending));
    let bytes = encode(&MetaAnswer::SegmentStates(states)).len();
    assert!(bytes < 2 * SEGMENT_STATES_BYTES_MAX && bytes < BODY_BYTES_MAX as usize, "{bytes}");
    // The same one again and again, which no sweep asks.
    let same = Query::SegmentStates { segments: vec![all[0]; SEGMENT_STATES_MAX], device: DeviceId(1) };
    assert!(matches!(world.ask(&same), Err(MetaFault::Invalid(why)) if why.contains("twice")));
}

#[test]
fn a_sweep_asks_again_about_what_an_answer_had_no_room_for() {
    let mut world = World::six();
    let all = large(&mut world);
    let pending = world.begin("pending", 1).segments;
    let options = SweepOptions { interval: Duration::from_secs(1), age_min: Duration::ZERO };
    let mut sweep = Sweep::new(world.now, options);
    world.pass(options.interval);
    sweep.handle(world.now, SweepInput::Tick);
    let fact = |&segment: &SegmentId| ExtentFacts {
        segment,
        sealed: false,
        blocks: IndexRanges::new(),
        epoch: Epoch::default(),
        age: Duration::from_secs(60),
    };
    let (mut questions, mut sealed) = (0, BTreeSet::new());
    while let Some(action) = sweep.poll() {
        let input = match action {
            SweepAction::List => SweepInput::Extents(Some(all.iter().chain(&pending).map(fact).collect())),
            SweepAction::Ask { segments } => {
                questions += 1;
                SweepInput::States(Some(world.states(&segments, 1)))
            }
            SweepAction::Seal { segment, .. } => {
                sealed.insert(segment);
                SweepInput::Carried { well: true }
            }
            SweepAction::Delete { segment, .. } => panic!("segment {segment} is nobody's to free"),
        };
        sweep.handle(world.now, input);
    }
    assert_eq!(sealed, all.iter().copied().collect());
    assert!(questions > 1 && questions <= all.len() + 1, "{questions}");
    assert_eq!((sweep.totals().sweeps, sweep.totals().failed), (1, 0));
}
