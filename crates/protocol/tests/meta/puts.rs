//! Puts: leases, commits, what a layout must be, what becomes of segments.

use crate::support::{World, all_freed, commit_of, holder, layout};
use core::time::Duration;
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, IntentId, SegmentId, Version,
    layout::{CodeKind, CodeSpec, ParityGeometry, SegmentLayout},
    message::{Change, MetaAnswer, MetaFault, SegmentState},
    meta::{SEGMENTS_PER_PUT_MAX, SEGMENTS_PER_REQUEST_MAX},
    policy::{Pledge, Policy},
};

const MIB: u64 = 1 << 20;

fn over<T>(intent: IntentId) -> Result<T, MetaFault> {
    Err(MetaFault::IntentOver(intent))
}

#[test]
fn a_put_is_invisible_until_it_commits_and_then_whole() {
    let mut world = World::six();
    let begun = world.begin("k", 2);
    assert_eq!(begun.segments, [SegmentId(1), SegmentId(2)]);
    assert_eq!((begun.version, begun.epoch, begun.lease_ms), (Version(1), Epoch(1), 30_000));
    assert!(matches!(world.lookup("k"), Err(MetaFault::NoObject { .. })));
    assert_eq!(world.states(&begun.segments, 1), [SegmentState::Pending, SegmentState::Pending]);
    let committed = world.commit(&begun, &[64 * MIB, 5 * MIB]).unwrap();
    assert_eq!(committed, MetaAnswer::Committed { version: Version(1), freed: vec![] });
    let MetaAnswer::Object { object, segments, .. } = world.lookup("k").unwrap() else { panic!() };
    assert_eq!((object.size, object.version, object.committed), (69 * MIB, Version(1), world.now));
    assert_eq!(object.segments, begun.segments);
    assert_eq!(segments[1], layout(&begun, SegmentId(2), 5 * MIB));
    let keep = segments[0].holders[3].blocks();
    assert_eq!(world.states(&begun.segments, 4)[0], SegmentState::Committed { keep, epoch: begun.epoch });
    let none = IndexRanges::new();
    assert_eq!(
        world.states(&begun.segments, 99)[1],
        SegmentState::Committed { keep: none, epoch: begun.epoch }
    );
}

#[test]
fn a_commit_replaces_the_version_before_and_its_segments_are_gone() {
    let mut world = World::six();
    let first = world.put("k", 2 * MIB);
    let second = world.begin("k", 1);
    let answer = world.commit(&second, &[3 * MIB]).unwrap();
    let freed = all_freed(&[layout(&first, first.segments[0], 2 * MIB)], second.epoch);
    assert_eq!(answer, MetaAnswer::Committed { version: second.version, freed });
    assert_eq!(world.states(&first.segments, 1), [SegmentState::Gone]);
    assert_eq!(world.records(0x30), 1);
    let freed = all_freed(&[layout(&second, second.segments[0], 3 * MIB)], second.epoch);
    assert_eq!(world.remove("k"), Ok(MetaAnswer::Removed { freed }));
    assert_eq!(world.states(&second.segments, 1), [SegmentState::Gone]);
    assert_eq!((world.records(0x20), world.records(0x30)), (0, 0));
}

#[test]
fn of_two_writers_of_a_key_the_last_commit_wins_whole() {
    let mut world = World::six();
    let (early, late) = (world.begin("k", 1), world.begin("k", 1));
    world.commit(&late, &[MIB]).unwrap();
    let MetaAnswer::Committed { freed, .. } = world.commit(&early, &[2 * MIB]).unwrap() else { panic!() };
    // Under the later epoch: devices refuse the earlier one.
    assert_eq!(freed, all_freed(&[layout(&late, late.segments[0], MIB)], late.epoch));
    let MetaAnswer::Object { object, .. } = world.lookup("k").unwrap() else { panic!() };
    assert_eq!((object.version, object.segments), (early.version, early.segments));
}

#[test]
fn a_put_whose_lease_ended_is_over_even_before_it_is_reclaimed() {
    let mut world = World::six();
    let begun = world.begin("k", 1);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.commit(&begun, &[1]), over(begun.intent));
    assert_eq!(world.change(Change::Renew { intent: begun.intent }), over(begun.intent));
    assert_eq!(world.change(Change::MoreSegments { intent: begun.intent, segments: 1 }), over(begun.intent));
    // Not reclaimed yet: a sweep must wait.
    assert_eq!(world.states(&begun.segments, 1), [SegmentState::Pending]);
    assert_eq!(world.expire().intents, 1);
    assert_eq!(world.states(&begun.segments, 1), [SegmentState::Gone]);
    assert_eq!(world.commit(&begun, &[1]), over(begun.intent));
    assert_eq!([0x40, 0x41, 0x42].map(|tag| world.records(tag)), [0, 0, 0]);
}

#[test]
fn renewal_keeps_a_put_alive_for_a_lease_from_then() {
    let mut world = World::six();
    let begun = world.begin("k", 1);
    for _ in 0..4 {
        world.pass(Duration::from_secs(29));
        assert_eq!(world.expire().intents, 0);
        assert_eq!(world.change(Change::Renew { intent: begun.intent }), Ok(MetaAnswer::Done));
    }
    assert_eq!(world.records(0x41), 1);
    assert!(world.commit(&begun, &[1]).is_ok());
    world.pass(Duration::from_secs(60));
    assert_eq!(world.expire().intents, 0);
}

#[test]
fn an_aborted_put_leaves_nothing() {
    let mut world = World::six();
    let begun = world.begin("k", 3);
    let more = world.change(Change::MoreSegments { intent: begun.intent, segments: 2 });
    assert_eq!(more, Ok(MetaAnswer::Segments(vec![SegmentId(4), SegmentId(5)])));
    assert_eq!(world.change(Change::Abort { intent: begun.intent }), Ok(MetaAnswer::Done));
    assert_eq!(world.states(&[SegmentId(1), SegmentId(5)], 1), [SegmentState::Gone, SegmentState::Gone]);
    assert_eq!([0x20, 0x30, 0x40, 0x41, 0x42].map(|tag| world.records(tag)), [0; 5]);
    assert_eq!(world.change(Change::Abort { intent: begun.intent }), over(begun.intent));
    assert_eq!(world.commit(&begun, &[1]), over(begun.intent));
    assert_eq!(world.change(Change::Abort { intent: IntentId(999) }), over(IntentId(999)));
}

#[test]
fn segments_never_named_here_are_pending_and_unused_ones_of_a_commit_gone() {
    let mut world = World::six();
    let begun = world.begin("k", 3);
    let other = world.begin("other", 1);
    world.commit(&begun, &[MIB]).unwrap();
    let asked = [1, 2, 3, 4, 5, 0, u64::MAX].map(SegmentId);
    let states = world.states(&asked, 1);
    assert!(matches!(states[0], SegmentState::Committed { .. }));
    use SegmentState::{Gone, Pending};
    assert_eq!(states[1..], [Gone, Gone, Pending, Pending, Pending, Pending]);
    world.change(Change::Abort { intent: other.intent }).unwrap();
    assert_eq!(world.states(&asked[3..4], 1), [Gone]);
}

#[test]
fn a_put_names_segments_within_bounds() {
    let mut world = World::six();
    let too_many =
        Change::BeginPut { bucket: "data".into(), key: "k".into(), segments: SEGMENTS_PER_REQUEST_MAX + 1 };
    assert!(matches!(world.change(too_many), Err(MetaFault::Invalid(_))));
    let begun = world.begin("k", 0);
    assert!(begun.segments.is_empty());
    let more = |segments| Change::MoreSegments { intent: begun.intent, segments };
    for _ in 0..SEGMENTS_PER_PUT_MAX / SEGMENTS_PER_REQUEST_MAX {
        assert!(world.change(more(SEGMENTS_PER_REQUEST_MAX)).is_ok());
    }
    assert!(matches!(world.change(more(1)), Err(MetaFault::Invalid(_))));
    assert!(matches!(world.change(more(u32::MAX)), Err(MetaFault::Invalid(_))));
}

#[test]
fn expiry_goes_in_bounded_steps() {
    let mut world = World::six();
    for put in 0..600 {
        world.begin(&format!("k{put}"), 1);
    }
    world.pass(Duration::from_secs(31));
    let steps: Vec<(usize, bool)> =
        (0..3).map(|_| world.expire()).map(|step| (step.intents, step.more)).collect();
    assert_eq!(steps, [(256, true), (256, true), (88, false)]);
}

/// Commits one segment of 4 MiB (K = 64, blocks of 64 KiB) after `bend` and gives the refusal's words.
fn refused(bend: impl Fn(&mut SegmentLayout)) -> String {
    let mut world = World::six();
    let begun = world.begin("k", 1);
    let mut bent = layout(&begun, begun.segments[0], 4 * MIB);
    bend(&mut bent);
    let commit = Change::Commit {
        intent: begun.intent,
        size: 4 * MIB,
        segments: vec![bent],
        pledge: Pledge::default(),
        base: None,
    };
    let before = [0x20, 0x30, 0x40].map(|tag| world.records(tag));
    let Err(MetaFault::BadLayout(reason)) = world.change(commit) else {
        panic!("a bent layout was committed")
    };
    assert_eq!(before, [0x20, 0x30, 0x40].map(|tag| world.records(tag)));
    // The put goes on: a right layout still commits.
    assert!(world.commit(&begun, &[4 * MIB]).is_ok());
    reason
}

#[test]
fn a_layout_that_a_reader_could_not_rely_on_is_refused() {
    let mut whole = World::six();
    let begun = whole.begin("k", 1);
    assert!(whole.commit(&begun, &[4 * MIB]).is_ok());

    assert!(refused(|it| it.segment = SegmentId(77)).contains("not named"));
    assert!(refused(|it| it.version = Version(77)).contains("version 000000000000004d"));
    assert!(refused(|it| it.epoch = Epoch(77)).contains("epoch 000000000000004d"));
    assert!(refused(|it| it.length -= 1).contains("make an object of"));
    assert!(refused(|it| it.length = u64::MAX).contains("holds at most"));
    assert!(refused(|it| it.length = 0).contains("no bytes"));
    assert!(refused(|it| it.code.originals = 63).contains("K = 63"));
    assert!(refused(|it| it.code.originals = 0).contains("K = 0"));
    assert!(refused(|it| it.block_bytes = 0).contains("blocks of 0"));
    assert!(refused(|it| it.block_bytes = 2 << 20).contains("blocks of 2097152"));
    assert!(refused(|it| it.granule_bytes = 0).contains("granules of 0"));
    assert!(refused(|it| it.granule_bytes = 5000).contains("granules of 5000"));
    assert!(refused(|it| it.granule_bytes = 1 << 17).contains("granules of 131072"));
    assert!(refused(|it| it.code.kind = CodeKind::Replicated).contains("policy"));
    assert!(refused(|it| it.code.kind = CodeKind::Lt { c: 1.0, delta: 0.5 }).contains("policy"));
    assert!(refused(|it| it.holders[1].device = it.holders[0].device).contains("listed twice"));
    assert!(refused(|it| it.holders[0].device = DeviceId(99)).contains("not registered"));
    assert!(refused(|it| it.holders[0].pieces[0].blocks = IndexRanges::new()).contains("without blocks"));
    assert!(refused(|it| it.holders[0].pieces.clear()).contains("without blocks"));
    assert!(
        refused(|it| it.holders[0].pieces = it.holders[1].pieces.clone()).contains("block 1 is listed twice")
    );
    assert!(refused(|it| it.holders.truncate(2)).contains("N = 32"));
    assert!(refused(|it| it.holders.clear()).contains("N = 0"));
    assert!(
        refused(|it| it.holders[0].pieces[0].blocks = IndexRanges::from(1000..u32::MAX))
            .contains("blocks stored")
    );
}

#[test]
fn chunks_lie_whole_on_a_device_each_and_fit_their_policy() {
    let mut world = World::six();
    world.create("chunked", "parity:code=rs(4,2),segment=4MiB").unwrap();
    let mut commit = |length: u64, spoil: &dyn Fn(&mut SegmentLayout)| {
        let begin = Change::BeginPut { bucket: "chunked".into(), key: "k".into(), segments: 1 };
        let Ok(MetaAnswer::Begun(begun)) = world.change(begin) else { panic!() };
        let Policy::Parity(policy) = begun.policy else { panic!() };
        let shape = ParityGeometry::of(&policy, length);
        let geometry = shape.geometry();
        let chunk = |chunk| holder(&begun, begun.segments[0], chunk, shape.blocks_of(chunk).into());
        let mut layout = SegmentLayout {
            code: CodeSpec { kind: shape.code(), originals: geometry.originals, seed: 1 },
            block_bytes: geometry.block_bytes,
            granule_bytes: geometry.granule_bytes,
            holders: (0..4).map(chunk).collect(),
            ..layout(&begun, begun.segments[0], length)
        };
        spoil(&mut layout);
        let commit = Change::Commit {
            intent: begun.intent,
            size: length,
            segments: vec![layout],
            pledge: Pledge::default(),
            base: None,
        };
        world.change(commit).map_err(|fault| fault.to_string())
    };
    for length in [0, 1, 300_000, 4 * MIB] {
        assert!(commit(length, &|_| {}).is_ok(), "{length}");
    }
    // A file that has grown before keeps its chunks.
    assert!(
        commit(5, &|it| {
            let grown = |chunk: u32| IndexRanges::from(chunk * 2..chunk * 2 + 2);
            (it.block_bytes, it.code.originals) = (MIB as u32, 4);
            (0..).zip(&mut it.holders).for_each(|(chunk, holder)| holder.pieces[0].blocks = grown(chunk));
        })
        .is_ok()
    );
    let mut refused = |spoil: &dyn Fn(&mut SegmentLayout)| commit(4 * MIB, spoil).unwrap_err();
    let kind = |data, parity| CodeKind::ReedSolomon { data, parity };
    assert!(refused(&|it| it.code.kind = kind(1, 3)).contains("is not the one of"));
    assert!(refused(&|it| it.code.kind = CodeKind::Mix).contains("no chunks"));
    assert!(refused(&|it| it.code.kind = kind(0, 4)).contains("no chunks"));
    assert!(refused(&|it| it.code.kind = kind(u32::MAX, 4)).contains("no chunks"));
    assert!(refused(&|it| it.code.originals = 5).contains("no chunks"));
    assert!(refused(&|it| it.code.originals = 2).contains("in chunks of"));
    assert!(refused(&|it| it.code.originals = 8).contains("in chunks of"));
    assert!(refused(&|it| it.granule_bytes = 65_536).contains("no chunks"));
    assert!(refused(&|it| it.block_bytes -= 1).contains("no chunks"));
    assert!(refused(&|it| it.holders.truncate(3)).contains("do not lie whole"));
    let split = |it: &mut SegmentLayout| {
        it.holders[0].pieces[0].blocks = [0, 2].into_iter().collect();
        it.holders[1].pieces[0].blocks = [1, 3].into_iter().collect();
    };
    assert!(refused(&split).contains("do not lie whole"));
    let beside = |it: &mut SegmentLayout| {
        it.holders[0].pieces[0].blocks = IndexRanges::from(0..4);
        it.holders.remove(1);
    };
    assert!(refused(&beside).contains("do not lie whole"));
}

#[test]
fn a_segment_is_committed_once() {
    let mut world = World::six();
    let begun = world.begin("k", 2);
    let twice = layout(&begun, begun.segments[0], MIB);
    let commit = Change::Commit {
        intent: begun.intent,
        size: 2 * MIB,
        segments: vec![twice.clone(), twice],
        pledge: Pledge::default(),
        base: None,
    };
    assert!(
        matches!(world.change(commit), Err(MetaFault::BadLayout(reason)) if reason.contains("listed twice"))
    );
    let other = world.begin("other", 1);
    let foreign = layout(&begun, other.segments[0], MIB);
    let commit = Change::Commit {
        intent: begun.intent,
        size: MIB,
        segments: vec![foreign],
        pledge: Pledge::default(),
        base: None,
    };
    assert!(
        matches!(world.change(commit), Err(MetaFault::BadLayout(reason)) if reason.contains("not named"))
    );
}

#[test]
fn a_stripe_holds_every_original_and_an_empty_object_is_an_object() {
    let mut world = World::six();
    world.create("striped", "stripe").unwrap();
    let begin = Change::BeginPut { bucket: "striped".into(), key: "k".into(), segments: 1 };
    let Ok(MetaAnswer::Begun(begun)) = world.change(begin) else { panic!() };
    let mut striped = layout(&begun, begun.segments[0], 4 * MIB);
    striped.code.kind = CodeKind::Replicated;
    // As many blocks as originals, but 0 twice and 63 never.
    striped.holders = vec![holder(&begun, striped.segment, 0, (0..63).chain([64]).collect())];
    let commit = |segments| Change::Commit {
        intent: begun.intent,
        size: 4 * MIB,
        segments,
        pledge: Pledge::default(),
        base: None,
    };
    let refusal = world.change(commit(vec![striped.clone()]));
    assert!(matches!(refusal, Err(MetaFault::BadLayout(reason)) if reason.contains("original 63")));
    striped.holders[0].pieces[0].blocks = IndexRanges::from(0..64);
    assert!(world.change(commit(vec![striped])).is_ok());

    for (key, lengths) in [("one-segment", &[0][..]), ("none", &[])] {
        let begun = world.begin(key, 1);
        assert!(world.commit(&begun, lengths).is_ok(), "{key}");
    }
}

#[test]
fn layouts_that_no_answer_could_carry_are_refused() {
    let mut world = World::six();
    let put = |world: &mut World, segments: u64| {
        let begun = world.begin("k", segments as u32);
        let lengths = vec![1 << 30; begun.segments.len()];
        let Change::Commit { intent, size, mut segments, pledge, base } = commit_of(&begun, &lengths) else {
            panic!()
        };
        for layout in &mut segments {
            // No two neighbours on one device: a range of several bytes for each of 64 K blocks.
            let indices = |device: u32| (0..65_536u32).filter(move |index| index % 6 == device).collect();
            let segment = layout.segment;
            layout.holders =
                (0..6u32).map(|device| holder(&begun, segment, device, indices(device))).collect();
        }
        world.change(Change::Commit { intent, size, segments, pledge, base })
    };
    assert!(put(&mut world, 4).is_ok());
    let refusal = put(&mut world, 12);
    assert!(matches!(refusal, Err(MetaFault::BadLayout(reason)) if reason.contains("fit into an answer")));
}
