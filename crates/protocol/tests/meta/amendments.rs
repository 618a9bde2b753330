//! Amendments: what may stay, what may come, who wins, and what is free afterwards.

use crate::support::{World, add_block, all_freed, chunked, commit_of, drop_block, layout, node_record};
use core::time::Duration;
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, SegmentId, Version,
    layout::{Holder, PIECES_PER_HOLDER_MAX, ParityGeometry, Piece, SegmentLayout},
    message::{BODY_BYTES_MAX, Change, Freed, MetaAnswer, MetaFault, PutBegun, SegmentState, encode},
    meta::SEGMENTS_PER_REQUEST_MAX,
    policy::{Parity, Pledge},
};

const MIB: u64 = 1 << 20;

fn ranges(indices: impl IntoIterator<Item = u32>) -> IndexRanges {
    indices.into_iter().collect()
}

/// The base of an amendment with its epoch.
fn draft(world: &World, key: &str, begun: &PutBegun) -> Vec<SegmentLayout> {
    let (_, mut segments) = world.object(key);
    segments.iter_mut().for_each(|layout| layout.epoch = begun.epoch);
    segments
}

#[test]
fn an_amendment_keeps_drops_and_adds_blocks_in_one_version() {
    let mut world = World::six();
    // K = 64, N = 96: block i on device i % 6 + 1.
    let put = world.put("k", 4 * MIB);
    let begun = world.amend("k", put.version, 1, true).unwrap();
    assert!(begun.version > put.version && begun.epoch > put.epoch);
    let (old, new) = (put.segments[0], begun.segments[0]);
    let mut amended = draft(&world, "k", &begun);
    // New contents of block 5, and device 4 is drained: its blocks are minted on device 1.
    drop_block(&mut amended[0], 5);
    add_block(&mut amended[0], &begun, new, 6, 5);
    for step in 0..16 {
        drop_block(&mut amended[0], 3 + 6 * step);
        add_block(&mut amended[0], &begun, new, 1, 96 + step);
    }
    assert_eq!(world.object("k").0.version, put.version, "nothing is visible before the commit");
    assert_eq!(world.states(&[old, new], 6)[1], SegmentState::Pending);
    let fifth = || (0..16).map(|step| 5 + 6 * step);
    let freed = |device, keep| Freed { device: DeviceId(device), segment: old, keep, epoch: begun.epoch };
    let committed = MetaAnswer::Committed {
        version: begun.version,
        freed: vec![freed(4, IndexRanges::new()), freed(6, ranges(fifth().skip(1)))],
    };
    assert_eq!(world.commit_layouts(&begun, &amended), Ok(committed));

    let (object, segments) = world.object("k");
    assert_eq!((object.version, object.contents), (begun.version, begun.version));
    assert_eq!(segments, amended);
    assert_eq!((segments[0].segment, segments[0].version), (old, put.version));
    assert_eq!(segments[0].holder_of(5), Some(DeviceId(6)));
    assert_eq!(segments[0].holder(DeviceId(6)).unwrap().blocks(), ranges(fifth()));
    let state = |keep| SegmentState::Committed { keep, epoch: begun.epoch };
    let of = |device: u32| ranges((0..16).map(move |step| device - 1 + 6 * step));
    for (device, kept, added) in [
        (1, of(1), ranges(96..112)),
        (2, of(2), IndexRanges::new()),
        (4, IndexRanges::new(), IndexRanges::new()),
        (6, ranges(fifth().skip(1)), ranges([5])),
    ] {
        assert_eq!(world.states(&[old, new], device), [state(kept), state(added)], "device {device}");
    }
    assert_eq!((world.records(0x30), world.records(0x42)), (2, 0));

    // All of it goes with the object.
    assert_eq!(world.remove("k"), Ok(MetaAnswer::Removed { freed: all_freed(&amended, begun.epoch) }));
    assert_eq!(world.states(&[old, new], 6), [SegmentState::Gone, SegmentState::Gone]);
    assert_eq!(world.records(0x30), 0);
}

#[test]
fn the_first_piece_may_leave_and_its_name_stays() {
    let mut world = World::six();
    let put = world.put("k", 4 * MIB);
    let mut all: Vec<SegmentId> = put.segments.clone();
    let mut base = put.version;
    for device in 1..=6 {
        let begun = world.amend("k", base, 1, false).unwrap();
        let mut amended = draft(&world, "k", &begun);
        for index in (0..16).map(|step| device - 1 + 6 * step) {
            drop_block(&mut amended[0], index);
            add_block(&mut amended[0], &begun, begun.segments[0], u128::from(device % 6 + 1), index);
        }
        world.commit_layouts(&begun, &amended).unwrap();
        all.extend(&begun.segments);
        base = begun.version;
    }
    let (object, segments) = world.object("k");
    assert_eq!(segments[0].segment, put.segments[0]);
    assert!(segments[0].pieces().all(|(_, piece)| piece.segment != put.segments[0]));
    assert_eq!((object.version, object.contents), (base, put.version), "the bytes are those of the put");
    assert_eq!(world.records(0x30), all.len());
    let put = world.put("k", MIB);
    assert_eq!(world.states(&all, 3), vec![SegmentState::Gone; all.len()]);
    assert_eq!((world.records(0x30), world.object("k").0.contents), (1, put.version));
}

#[test]
fn an_amendment_of_what_changed_since_is_refused() {
    let conflict = |answer: Result<PutBegun, MetaFault>, now| match answer {
        Err(MetaFault::Conflict { current, .. }) => assert_eq!(current, now),
        other => panic!("{other:?}"),
    };
    let mut world = World::six();
    assert!(matches!(world.amend("k", Version(1), 1, true), Err(MetaFault::NoObject { .. })));
    let put = world.put("k", 4 * MIB);
    conflict(world.amend("k", Version(put.version.0 + 1), 1, true), Some(put.version));

    // Two amendments of one version: the first wins whole.
    let (late, early) = (0..2).map(|_| world.amend("k", put.version, 1, true).unwrap()).fold(
        (None, None),
        |(late, _), begun| if late.is_none() { (Some(begun), None) } else { (late, Some(begun)) },
    );
    let (late, early) = (late.unwrap(), early.unwrap());
    let amended = |world: &World, begun: &PutBegun| {
        let mut amended = draft(world, "k", begun);
        drop_block(&mut amended[0], 7);
        add_block(&mut amended[0], begun, begun.segments[0], 2, 7);
        amended
    };
    let (by_early, by_late) = (amended(&world, &early), amended(&world, &late));
    world.commit_layouts(&early, &by_early).unwrap();
    let refused = |world: &mut World, begun: &PutBegun, segments: &[SegmentLayout], now| {
        let before = [0x20, 0x30, 0x40].map(|tag| world.records(tag));
        conflict(world.commit_layouts(begun, segments).map(|_| unreachable!("it was committed")), now);
        assert_eq!(before, [0x20, 0x30, 0x40].map(|tag| world.records(tag)));
    };
    refused(&mut world, &late, &by_late, Some(early.version));
    assert_eq!(world.object("k").1, by_early);
    // Its pieces are kept until it says that it gives up.
    assert_eq!(world.states(&late.segments, 2), [SegmentState::Pending]);
    world.change(Change::Abort { intent: late.intent }).unwrap();
    assert_eq!(world.states(&late.segments, 2), [SegmentState::Gone]);

    // A put in between, and a removal.
    let begun = world.amend("k", early.version, 1, true).unwrap();
    let by_begun = amended(&world, &begun);
    let second = world.put("k", 4 * MIB);
    refused(&mut world, &begun, &by_begun, Some(second.version));
    let begun = world.amend("k", second.version, 1, true).unwrap();
    let by_begun = amended(&world, &begun);
    world.remove("k").unwrap();
    refused(&mut world, &begun, &by_begun, None);
}

#[test]
fn what_an_object_promises_is_kept_by_amendments_and_goes_with_the_next_put() {
    let mut world = World::six();
    let pledge = |tolerate, sites| Pledge { tolerate, sites };
    let begun = world.begin("k", 1);
    let Change::Commit { intent, size, segments, .. } = commit_of(&begun, &[4 * MIB]) else { panic!() };
    let commit = |pledge| Change::Commit { intent, size, segments: segments.clone(), pledge, base: None };
    // Less than the bucket's, and more than there are.
    for unfit in [pledge(1, 0), pledge(17, 0), pledge(0, 1025)] {
        assert!(matches!(world.change(commit(unfit)), Err(MetaFault::Invalid(_))), "{unfit:?}");
    }
    world.change(commit(pledge(3, 0))).unwrap();
    let mut version = begun.version;
    for (added, now) in
        [(pledge(0, 0), pledge(3, 0)), (pledge(2, 2), pledge(3, 2)), (pledge(4, 1), pledge(4, 2))]
    {
        let begun = world.amend("k", version, 1, false).unwrap();
        let segments = draft(&world, "k", &begun);
        let (intent, pledge) = (begun.intent, added);
        world.change(Change::Commit { intent, size, segments, pledge, base: None }).unwrap();
        assert_eq!(world.object("k").0.pledge, now);
        version = begun.version;
    }
    world.put("k", MIB);
    assert_eq!(world.object("k").0.pledge, Pledge::default());
}

#[test]
fn a_put_under_way_replaces_whatever_was_amended_meanwhile() {
    let mut world = World::six();
    let put = world.put("k", 4 * MIB);
    let early = world.begin("k", 1);
    let begun = world.amend("k", put.version, 1, true).unwrap();
    let mut amended = draft(&world, "k", &begun);
    drop_block(&mut amended[0], 7);
    add_block(&mut amended[0], &begun, begun.segments[0], 2, 7);
    world.commit_layouts(&begun, &amended).unwrap();
    let answer = world.commit(&early, &[MIB]).unwrap();
    let freed = all_freed(&amended, begun.epoch);
    assert_eq!(answer, MetaAnswer::Committed { version: early.version, freed });
    assert_eq!(world.object("k").1, [layout(&early, early.segments[0], MIB)]);
}

#[test]
fn an_amendment_that_dies_leaves_the_object_as_it_was() {
    let mut world = World::six();
    let put = world.put("k", 4 * MIB);
    let before = world.object("k");
    let begun = world.amend("k", put.version, 2, true).unwrap();
    let more = world.change(Change::MoreSegments { intent: begun.intent, segments: 1 });
    let Ok(MetaAnswer::Segments(more)) = more else { panic!("{more:?}") };
    world.pass(Duration::from_secs(29));
    world.change(Change::Renew { intent: begun.intent }).unwrap();
    world.pass(Duration::from_secs(29));
    assert_eq!(world.expire().intents, 0);
    assert_eq!(
        world.states(&[begun.segments[1], more[0]], 1),
        [SegmentState::Pending, SegmentState::Pending]
    );
    world.pass(Duration::from_secs(1));
    let amended = draft(&world, "k", &begun);
    assert_eq!(world.commit_layouts(&begun, &amended), Err(MetaFault::IntentOver(begun.intent)));
    assert_eq!(world.expire().intents, 1);
    assert_eq!(world.states(&[begun.segments[1], more[0]], 1), [SegmentState::Gone, SegmentState::Gone]);
    assert_eq!(world.object("k"), before);
    let keep = before.1[0].holders[0].blocks();
    assert_eq!(world.states(&put.segments, 1), [SegmentState::Committed { keep, epoch: put.epoch }]);
    assert_eq!([0x40, 0x41, 0x42].map(|tag| world.records(tag)), [0, 0, 0]);
}

/// A segment in chunks that have room for 1 MiB.
fn in_chunks(begun: &PutBegun, segment: SegmentId, length: u64) -> SegmentLayout {
    let policy = Parity { segment_bytes: MIB, ..Parity::default() };
    chunked(begun, segment, ParityGeometry::of(&policy, MIB), length)
}

/// Six nodes, and a file `k` of two segments.
fn file() -> (World, PutBegun) {
    let mut world = World::empty();
    for node in 1..=6 {
        world.register(&node_record(node, &[node])).unwrap();
    }
    world.create("data", "parity:segment=1MiB").unwrap();
    let put = world.begin("k", 2);
    let segments = [in_chunks(&put, put.segments[0], MIB), in_chunks(&put, put.segments[1], 1000)];
    world.commit_layouts(&put, &segments).unwrap();
    (world, put)
}

fn grow_of(base: Version, size: u64) -> Change {
    Change::Grow { bucket: "data".into(), key: "k".into(), base, size }
}

/// Its lease ends, or it is given up, which may say what it has fenced.
#[test]
fn what_an_amendment_has_fenced_is_listed_under_its_epoch_when_it_is_over() {
    for case in 0..3 {
        let (mut world, put) = file();
        let (object, segments) = world.object("k");
        let first = world.amend("k", put.version, 1, true).unwrap();
        let second = world.amend("k", put.version, 1, false).unwrap();
        match case {
            0 => {
                world.pass(Duration::from_secs(20));
                world.change(Change::Renew { intent: first.intent }).unwrap();
                world.pass(Duration::from_secs(10));
                assert_eq!(world.expire().intents, 1);
            }
            1 => {
                world.change(Change::Abort { intent: second.intent }).unwrap();
            }
            _ => {
                let fenced = vec![put.segments[1], SegmentId(77)];
                world.change(Change::GiveUp { intent: second.intent, fenced }).unwrap();
            }
        }
        let (now, listed) = world.object("k");
        assert_eq!((now.version, now.committed), (second.version, world.now), "{case}");
        assert_eq!((now.contents, now.size, &now.segments), (put.version, object.size, &object.segments));
        let mut expected = segments.clone();
        expected[1].epoch = second.epoch;
        if case < 2 {
            expected[0].epoch = second.epoch;
        }
        assert_eq!(listed, expected, "{case}");
        let keep = listed[1].holders[2].blocks();
        let state = SegmentState::Committed { keep, epoch: second.epoch };
        assert_eq!(world.states(&put.segments[1..], 3), [state]);

        // Who began there too may have read what is changed in place by now; who made it longer counts on another layout.
        let mut anew = segments.clone();
        anew[1] = in_chunks(&first, first.segments[0], 1000);
        let late = world.commit_layouts(&first, &anew);
        let overtaken = |answer: &Result<MetaAnswer, MetaFault>| {
            let Err(MetaFault::Conflict { current, .. }) = answer else { return false };
            *current == Some(second.version)
        };
        assert!(overtaken(&late), "{case}: {late:?}");
        let late = world.change(grow_of(put.version, MIB + 2000));
        assert!(overtaken(&late), "{case}: {late:?}");
        // It was overtaken, and overtakes nobody for that.
        world.change(Change::Abort { intent: first.intent }).unwrap();
        assert_eq!(world.object("k"), (now, listed.clone()));

        let third = world.amend("k", second.version, 1, true).unwrap();
        let mut anew = listed;
        anew[0] = in_chunks(&third, third.segments[0], MIB);
        world.commit_layouts(&third, &anew).unwrap();
        assert_eq!(world.object("k").1, anew);
        let Ok(MetaAnswer::Removed { freed }) = world.remove("k") else { panic!() };
        assert!(freed.iter().all(|freed| freed.epoch >= second.epoch), "devices refuse what is older");
        assert_eq!([0x20, 0x30, 0x40, 0x41, 0x42].map(|tag| world.records(tag)), [0; 5]);
    }
}

/// It begins again no more, so that it cannot make others begin again for ever; and nobody else knows what it has fenced.
#[test]
fn what_a_writer_had_fenced_that_was_overtaken_and_died_is_listed_under_its_epoch() {
    let (mut world, put) = file();
    let dead = world.amend("k", put.version, 1, false).unwrap();
    let other = world.amend("k", put.version, 1, true).unwrap();
    let (_, mut layouts) = world.object("k");
    layouts[1] = in_chunks(&other, other.segments[0], 1000);
    world.commit_layouts(&other, &layouts).unwrap();
    let late = world.amend("k", other.version, 1, true).unwrap();
    world.pass(Duration::from_secs(20));
    world.change(Change::Renew { intent: late.intent }).unwrap();
    assert_eq!(world.object("k").1, layouts, "it may yet begin again");
    world.pass(Duration::from_secs(10));
    assert_eq!(world.expire().intents, 1);
    let (object, listed) = world.object("k");
    // The other segment is somebody's who began later, and whose epoch is above.
    let mut expected = layouts;
    expected[0].epoch = dead.epoch;
    assert_eq!(listed, expected);
    assert_eq!((object.contents, object.size), (other.version, MIB + 1000));
    assert!(object.version > late.version, "versions go up");
    // Who began since may have read it before it was open.
    let mut anew = listed.clone();
    anew[0] = in_chunks(&late, late.segments[0], MIB);
    let Err(MetaFault::Conflict { current, .. }) = world.commit_layouts(&late, &anew) else { panic!() };
    assert_eq!(current, Some(object.version));
    world.change(Change::Abort { intent: late.intent }).unwrap();
    assert_eq!(world.object("k"), (object, listed));
    assert_eq!(world.states(&dead.segments, 1), [SegmentState::Gone]);
}

#[test]
fn what_was_fenced_is_opened_again_though_the_file_has_grown() {
    let (mut world, put) = file();
    let begun = world.amend("k", put.version, 1, true).unwrap();
    let grown = world.change(grow_of(put.version, MIB + 2000));
    let Ok(MetaAnswer::Committed { version: grown, .. }) = grown else { panic!("{grown:?}") };
    world.change(Change::GiveUp { intent: begun.intent, fenced: vec![put.segments[1]] }).unwrap();
    let (object, segments) = world.object("k");
    assert_eq!((object.version, object.contents, object.size), (begun.version, put.version, MIB + 2000));
    assert_eq!(segments.iter().map(|layout| layout.epoch).collect::<Vec<_>>(), [put.epoch, begun.epoch]);
    assert_eq!(segments[1].length, 2000);
    assert!(matches!(world.change(grow_of(grown, MIB + 3000)), Err(MetaFault::Conflict { .. })));
    world.change(grow_of(begun.version, MIB + 3000)).unwrap();
}

#[test]
fn what_nobody_has_fenced_stays_as_it_is() {
    // Coded blocks are not changed in place.
    let mut world = World::six();
    let put = world.put("k", 4 * MIB);
    let before = world.object("k");
    let begun = world.amend("k", put.version, 1, true).unwrap();
    world.change(Change::Abort { intent: begun.intent }).unwrap();
    assert_eq!(world.object("k"), before);

    let (mut world, put) = file();
    let before = world.object("k");
    for fenced in [vec![], vec![SegmentId(77)]] {
        let begun = world.amend("k", put.version, 1, true).unwrap();
        world.change(Change::GiveUp { intent: begun.intent, fenced }).unwrap();
        assert_eq!(world.object("k"), before);
    }
    let begun = world.begin("k", 1);
    world.change(Change::Abort { intent: begun.intent }).unwrap();
    assert_eq!(world.object("k"), before, "a put fences nothing");

    // Nor are chunks that were moved.
    world.register(&node_record(7, &[7])).unwrap();
    let moving = world.amend("k", put.version, 2, false).unwrap();
    let mut moved = draft(&world, "k", &moving);
    for (layout, &name) in moved.iter_mut().zip(&moving.segments) {
        let blocks = layout.holders[0].blocks();
        layout.holders[0] = Holder::whole(DeviceId(7), name, moving.version, blocks);
    }
    world.commit_layouts(&moving, &moved).unwrap();
    let before = world.object("k");
    let begun = world.amend("k", moving.version, 1, true).unwrap();
    world.change(Change::Abort { intent: begun.intent }).unwrap();
    assert_eq!(world.object("k"), before);
}

#[test]
fn a_step_of_expiry_is_bounded_by_the_layouts_that_it_looks_at() {
    let (mut world, _) = file();
    let begun = ["a", "b"].map(|key| {
        let put = world.begin(key, SEGMENTS_PER_REQUEST_MAX);
        let segments: Vec<_> = put.segments.iter().map(|&segment| in_chunks(&put, segment, 5)).collect();
        world.commit_layouts(&put, &segments).unwrap();
        (key, world.amend(key, put.version, 1, true).unwrap())
    });
    world.pass(Duration::from_secs(30));
    let steps = [world.expire(), world.expire(), world.expire()];
    assert_eq!(steps.map(|step| (step.intents, step.more)), [(1, true), (1, false), (0, false)]);
    for (key, amend) in begun {
        let (object, segments) = world.object(key);
        assert_eq!(object.version, amend.version);
        assert!(segments.iter().all(|layout| layout.epoch == amend.epoch));
    }
}

/// Bytes that were changed in place are of the same contents, too: who reads goes on wherever nothing lies elsewhere.
#[test]
fn other_epochs_are_no_other_contents() {
    let (mut world, put) = file();
    let begun = world.amend("k", put.version, 0, true).unwrap();
    let raised = draft(&world, "k", &begun);
    world.commit_layouts(&begun, &raised).unwrap();
    let (object, segments) = world.object("k");
    assert_eq!((object.version, object.contents), (begun.version, put.version));
    assert_eq!(segments, raised);
    let begun = world.amend("k", object.version, 1, true).unwrap();
    let mut anew = segments;
    anew[1] = in_chunks(&begun, begun.segments[0], 1000);
    world.commit_layouts(&begun, &anew).unwrap();
    assert_eq!(world.object("k").0.contents, begun.version);
}

#[test]
fn an_amendment_asked_twice_is_made_once() {
    let mut world = World::six();
    let put = world.put("k", 4 * MIB);
    let (first, second) = (world.next_id(), world.next_id());
    let begin = Change::BeginAmend {
        bucket: "data".into(),
        key: "k".into(),
        base: put.version,
        segments: 1,
        rewrites: true,
    };
    let answer = world.change_as(first, &begin);
    let Ok(MetaAnswer::Begun(begun)) = &answer else { panic!("{answer:?}") };
    let mut segments = draft(&world, "k", begun);
    drop_block(&mut segments[0], 7);
    add_block(&mut segments[0], begun, begun.segments[0], 2, 7);
    let (intent, size, pledge) = (begun.intent, 4 * MIB, Pledge::default());
    let commit = Change::Commit { intent, size, segments, pledge, base: None };
    let committed = world.change_as(second, &commit);
    assert!(matches!(committed, Ok(MetaAnswer::Committed { .. })));
    let store = world.store.clone();
    // The base is replaced by then, yet the answers stand.
    assert_eq!(world.change_as(first, &begin), answer);
    assert_eq!(world.change_as(second, &commit), committed);
    assert_eq!(world.store, store);
}

#[test]
fn segments_that_stay_keep_their_records_and_others_may_come_and_go() {
    let mut world = World::six();
    let put = world.begin("k", 3);
    world.commit(&put, &[4 * MIB, 2 * MIB, MIB]).unwrap();
    let (_, base) = world.object("k");
    let begun = world.amend("k", put.version, 2, true).unwrap();
    // The first stays, the second has a block elsewhere, the third goes, a new one comes.
    let mut second = SegmentLayout { epoch: begun.epoch, ..base[1].clone() };
    drop_block(&mut second, 1);
    add_block(&mut second, &begun, begun.segments[0], 5, 1);
    let fourth = layout(&begun, begun.segments[1], 3 * MIB);
    let amended = [base[0].clone(), second, fourth];
    let MetaAnswer::Committed { freed, .. } = world.commit_layouts(&begun, &amended).unwrap() else {
        panic!()
    };
    assert_eq!(freed.len(), 1 + base[2].holders.len());
    let (object, segments) = world.object("k");
    assert_eq!((object.size, &segments[..]), (9 * MIB, &amended[..]));
    assert_eq!(segments[0].epoch, put.epoch);
    assert_eq!(world.states(&put.segments[2..], 1), [SegmentState::Gone]);
    assert_eq!(world.records(0x30), 4);

    // One that says to keep the bytes keeps their number and the segments in order.
    let begun = world.amend("k", object.version, 1, false).unwrap();
    let (mut swapped, mut fewer) = (segments.clone(), segments.clone());
    swapped.swap(0, 1);
    fewer.pop();
    for wrong in [swapped, fewer] {
        let refusal = world.commit_layouts(&begun, &wrong);
        assert!(matches!(refusal, Err(MetaFault::BadLayout(reason)) if reason.contains("keeps its size")));
    }
    // Nothing changed at all: a version, and nothing to free.
    let committed = MetaAnswer::Committed { version: begun.version, freed: Vec::new() };
    assert_eq!(world.commit_layouts(&begun, &segments), Ok(committed));
    assert_eq!(world.object("k").0.contents, object.contents);
}

/// Commits an amendment of one segment after `bend`, and gives the refusal's words.
fn refused(bend: impl Fn(&mut SegmentLayout, &PutBegun)) -> String {
    let mut world = World::six();
    let put = world.put("k", 4 * MIB);
    // Block 0 of device 1 was dropped by an amendment before.
    let first = world.amend("k", put.version, 1, false).unwrap();
    let mut amended = draft(&world, "k", &first);
    drop_block(&mut amended[0], 0);
    world.commit_layouts(&first, &amended).unwrap();

    let begun = world.amend("k", first.version, 2, true).unwrap();
    let mut right = draft(&world, "k", &begun);
    drop_block(&mut right[0], 6);
    add_block(&mut right[0], &begun, begun.segments[0], 1, 6);
    let mut bent = right.clone();
    bend(&mut bent[0], &begun);
    let before = world.object("k");
    let Err(MetaFault::BadLayout(reason)) = world.commit_layouts(&begun, &bent) else {
        panic!("a bent amendment was committed")
    };
    assert_eq!(world.object("k"), before);
    // The amendment goes on.
    world.commit_layouts(&begun, &right).unwrap();
    reason
}

#[test]
fn an_amendment_that_a_reader_could_not_rely_on_is_refused() {
    let piece = |begun: &PutBegun, name: usize, blocks: core::ops::Range<u32>| Piece {
        segment: begun.segments[name],
        version: begun.version,
        blocks: blocks.into(),
    };
    // What was dropped may be freed.
    let again = refused(|it, _| assert!(it.holders[0].pieces[0].blocks.insert(0)));
    assert!(again.contains("had not before"), "{again}");
    assert!(refused(|it, _| it.holders[0].pieces[0].blocks = ranges([200])).contains("had not before"));
    assert!(refused(|it, begun| it.holders[0].pieces[0].version = begun.version).contains("has version"));
    assert!(refused(|it, _| it.holders[0].pieces[1].version = it.version).contains("nor named"));
    assert!(refused(|it, _| it.holders[0].pieces[1].segment = SegmentId(77)).contains("nor named"));
    // A piece does not move: its blocks are written anew under another name.
    assert!(refused(|it, _| it.holders[0].pieces[1].segment = it.segment).contains("listed twice"));
    let moved = |it: &mut SegmentLayout, _: &PutBegun| {
        let first = it.holders.remove(0);
        it.holders[0].pieces[0] = first.pieces[0].clone();
    };
    assert!(refused(moved).contains("had not before"));
    assert!(
        refused(|it, begun| it.holders[0].pieces.push(piece(begun, 1, 6..7))).contains("block 6 is listed")
    );
    assert!(
        refused(|it, begun| it.holders[1].pieces.push(piece(begun, 1, 6..7))).contains("block 6 is listed")
    );
    assert!(refused(|it, begun| it.holders[1].pieces.push(piece(begun, 1, 0..0))).contains("without blocks"));
    assert!(refused(|it, _| it.holders[2].device = DeviceId(99)).contains("nor named"));
    assert!(
        refused(|it, begun| {
            it.holders[2].device = DeviceId(99);
            it.holders[2].pieces = vec![piece(begun, 1, 500..516)];
        })
        .contains("not registered")
    );
    let many = |it: &mut SegmentLayout, begun: &PutBegun| {
        let count = PIECES_PER_HOLDER_MAX as u32;
        let more = (0..count).map(|at| Piece {
            segment: SegmentId(1000 + u64::from(at)),
            ..piece(begun, 1, 500 + at..501 + at)
        });
        it.holders[2].pieces.extend(more);
    };
    assert!(refused(many).contains("store the segment anew"));
    assert!(refused(|it, _| it.holders.truncate(3)).contains("N ="));
    // It is the segment that it was, under the amendment's epoch.
    assert!(refused(|it, begun| it.version = begun.version).contains("it has version"));
    assert!(refused(|it, _| it.epoch = Epoch(it.epoch.0 - 1)).contains("epoch"));
    assert!(refused(|it, _| it.code.seed += 1).contains("keeps length, code"));
    assert!(refused(|it, _| it.granule_bytes /= 2).contains("keeps length, code"));
    assert!(refused(|it, begun| it.segment = begun.segments[1]).contains("version"));
    assert!(refused(|it, _| it.segment = SegmentId(77)).contains("not one of the version amended"));
}

#[test]
fn a_name_holds_pieces_of_one_segment() {
    let mut world = World::six();
    let put = world.begin("k", 2);
    world.commit(&put, &[4 * MIB, 4 * MIB]).unwrap();
    let begun = world.amend("k", put.version, 2, true).unwrap();
    let amended = |world: &World, names: [usize; 2]| {
        let mut amended = draft(world, "k", &begun);
        for (layout, name) in amended.iter_mut().zip(names) {
            drop_block(layout, 6);
            add_block(layout, &begun, begun.segments[name], 1, 6);
        }
        amended
    };
    let shared = amended(&world, [0, 0]);
    let refusal = world.commit_layouts(&begun, &shared);
    assert!(matches!(refusal, Err(MetaFault::BadLayout(reason)) if reason.contains("too")));
    // Nor pieces of one segment beside another coded one.
    let mut own = amended(&world, [0, 1]);
    own[1] = layout(&begun, begun.segments[0], 4 * MIB);
    assert!(matches!(world.commit_layouts(&begun, &own), Err(MetaFault::BadLayout(_))));
    let apart = amended(&world, [0, 1]);
    world.commit_layouts(&begun, &apart).unwrap();
}

#[test]
fn a_coded_segments_name_holds_pieces_of_no_other() {
    let mut world = World::six();
    let put = world.begin("k", 3);
    let [first, second, third] = put.segments[..] else { panic!() };
    let named = |segment, name| {
        let mut layout = layout(&put, segment, 4 * MIB);
        layout.holders.iter_mut().for_each(|holder| holder.pieces[0].segment = name);
        layout
    };
    // The first lies under another name, so that its own seems free.
    for (ours, theirs) in [((first, third), (second, first)), ((second, first), (first, third))] {
        let crossed = [named(ours.0, ours.1), named(theirs.0, theirs.1)];
        let refusal = world.commit_layouts(&put, &crossed);
        assert!(matches!(&refusal, Err(MetaFault::BadLayout(why)) if why.contains("too")), "{refusal:?}");
    }
    // Names that nobody else has are fine, and what is committed so is read, replaced and removed.
    let apart = [named(first, third), named(second, second)];
    world.commit_layouts(&put, &apart).unwrap();
    assert_eq!(world.object("k").1, apart);
    world.put("k", MIB);
    world.remove("k").unwrap();
    assert_eq!(world.records(0x30), 0);
}

#[test]
fn what_is_freed_fits_into_the_answer() {
    let mut world = World::six();
    let put = world.begin("k", 8);
    let alternating = |begun: &PutBegun, segment: SegmentId| {
        let mut layout = layout(begun, segment, 1 << 30);
        for (device, holder) in (0..).zip(&mut layout.holders) {
            // No two neighbours on one device: a range of several bytes for each of 64 K blocks.
            holder.pieces[0].blocks = (0..65_536).filter(|index| index % 6 == device).collect();
        }
        layout
    };
    let layouts: Vec<_> = put.segments.iter().map(|&segment| alternating(&put, segment)).collect();
    world.commit_layouts(&put, &layouts).unwrap();
    let begun = world.amend("k", put.version, 0, false).unwrap();
    let mut amended = draft(&world, "k", &begun);
    amended.iter_mut().for_each(|layout| (0..6).for_each(|index| drop_block(layout, index)));
    let answer = world.commit_layouts(&begun, &amended).unwrap();
    assert!(encode(&answer).len() < BODY_BYTES_MAX as usize / 2 + (64 << 10));
    let MetaAnswer::Committed { freed, .. } = answer else { panic!() };
    assert!(!freed.is_empty() && freed.len() < 48, "{} freed", freed.len());
    // The sweep asks for the rest.
    let keep = amended[7].holders[5].blocks();
    let epoch = begun.epoch;
    assert_eq!(world.states(&put.segments[7..], 6), [SegmentState::Committed { keep, epoch }]);
}
