//! Files: made empty, and made longer in place.

use crate::support::{World, chunked, node_record};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_protocol::{
    DeviceId, RequestId, SegmentId, Version,
    layout::{Holder, ParityGeometry, SegmentLayout},
    message::{Change, MetaAnswer, MetaFault, PutBegun, Query, SegmentState},
    policy::{Parity, Policy},
};

const MIB: u64 = 1 << 20;

/// Six nodes and a bucket `data` of files.
fn files() -> World {
    let mut world = World::empty();
    for node in 1..=6 {
        world.register(&node_record(node, &[node])).unwrap();
    }
    world.create("data", "parity:segment=1MiB").unwrap();
    world
}

fn create(world: &mut World, key: &str) -> Result<Version, MetaFault> {
    match world.change(Change::Create { bucket: "data".into(), key: key.into() })? {
        MetaAnswer::Committed { version, freed } if freed.is_empty() => Ok(version),
        other => panic!("{other:?}"),
    }
}

fn grow_of(key: &str, base: Version, size: u64) -> Change {
    Change::Grow { bucket: "data".into(), key: key.into(), base, size }
}

fn grow(world: &mut World, base: Version, size: u64) -> Result<Version, MetaFault> {
    match world.change(grow_of("k", base, size))? {
        MetaAnswer::Committed { version, freed } if freed.is_empty() => Ok(version),
        other => panic!("{other:?}"),
    }
}

/// A segment of a writer, with chunks of so many bytes on devices 1 to 6.
fn chunks(begun: &PutBegun, segment: SegmentId, length: u64, chunk_bytes: u64) -> SegmentLayout {
    let policy = Parity { segment_bytes: 4 * chunk_bytes.max(MIB / 4), ..Parity::default() };
    let shape = ParityGeometry::of(&policy, 4 * chunk_bytes);
    assert_eq!(shape.chunk_bytes(), chunk_bytes);
    chunked(begun, segment, shape, length)
}

/// Puts `k`: whole segments, and a last one in chunks of so many bytes.
fn put(world: &mut World, lengths: &[u64], chunk_bytes: u64) -> PutBegun {
    let begun = world.begin("k", lengths.len() as u32);
    let (last, whole) = lengths.split_last().unwrap();
    let mut segments: Vec<SegmentLayout> = begun.segments[..whole.len()]
        .iter()
        .zip(whole)
        .map(|(&name, &length)| chunks(&begun, name, length, MIB / 4))
        .collect();
    segments.push(chunks(&begun, *begun.segments.last().unwrap(), *last, chunk_bytes));
    world.commit_layouts(&begun, &segments).unwrap();
    begun
}

#[test]
fn an_empty_file_is_made_once() {
    let mut world = files();
    let first = create(&mut world, "k").unwrap();
    let (object, segments) = world.object("k");
    assert_eq!((object.version, object.contents, object.size), (first, first, 0));
    assert!(segments.is_empty() && object.segments.is_empty());
    assert_eq!(create(&mut world, "k"), Ok(first), "what is there stays");
    // Whatever it is by then.
    let put = put(&mut world, &[5], 4096);
    assert_eq!(create(&mut world, "k"), Ok(put.version));
    assert_eq!(world.object("k").0.size, 5);
    assert!(put.version > first, "versions are given once");
    world.create("other", "rateless").unwrap();
    let refused = world.change(Change::Create { bucket: "other".into(), key: "k".into() }).unwrap_err();
    assert!(matches!(&refused, MetaFault::Invalid(said) if said.contains("`rateless:")), "{refused}");
    assert!(matches!(create(&mut world, ""), Err(MetaFault::BadName { .. })));
    let nowhere = world.change(Change::Create { bucket: "none".into(), key: "k".into() });
    assert!(matches!(nowhere, Err(MetaFault::NoBucket(_))));
}

#[test]
fn bytes_behind_the_end_are_counted_in_under_the_same_layout() {
    let mut world = files();
    let begun = put(&mut world, &[MIB, 1000], 8192);
    let (_, before) = world.object("k");
    let records = world.records(0x30);
    let longer = grow(&mut world, begun.version, MIB + 4 * 8192).unwrap();
    let (object, after) = world.object("k");
    assert!(longer > begun.version);
    // What was there reads as before.
    assert_eq!((object.version, object.contents, object.size), (longer, begun.version, MIB + 4 * 8192));
    assert_eq!(after[0], before[0]);
    // The same name, version, epoch and chunks: who changes it in place by the old layout goes on.
    assert_eq!(after[1], SegmentLayout { length: 4 * 8192, ..before[1].clone() });
    assert_eq!(world.ask(&Query::Layout { segment: after[1].segment }), {
        Ok(MetaAnswer::Layout(Some(after[1].clone())))
    });
    let keep = after[1].holders[2].blocks();
    let state = SegmentState::Committed { keep, epoch: begun.epoch };
    assert_eq!(world.states(&[after[1].segment], 3), [state]);
    assert_eq!(world.records(0x30), records);
    // And it goes as a whole.
    assert!(matches!(world.remove("k"), Ok(MetaAnswer::Removed { freed }) if freed.len() == 12));
    assert_eq!(world.records(0x30), 0);
}

#[test]
fn what_has_no_room_or_was_changed_since_is_not_made_longer() {
    let mut world = files();
    let begun = put(&mut world, &[MIB, 1000], 8192);
    let version = begun.version;
    let before = world.object("k");
    for (base, size, said) in [
        (version, MIB + 1000, "not more than"),
        (version, 5, "not more than"),
        (version, MIB + 4 * 8192 + 1, "room for 32768"),
        (version, u64::MAX, "room for 32768"),
        (Version(version.0 + 1), MIB + 1001, "changed since"),
        (Version(0), MIB + 1001, "changed since"),
    ] {
        let refused = grow(&mut world, base, size).unwrap_err();
        assert!(refused.to_string().contains(said), "{size}: {refused}");
        assert_eq!(world.object("k"), before);
    }
    // Of two that know the same version the first is in time.
    let first = grow(&mut world, version, MIB + 2000).unwrap();
    assert!(matches!(
        grow(&mut world, version, MIB + 3000),
        Err(MetaFault::Conflict { current: Some(current), .. }) if current == first
    ));
    // So is one of a writer that stores it anew, whichever comes first.
    let anew = world.amend("k", first, 1, true).unwrap();
    let second = grow(&mut world, first, MIB + 2500).unwrap();
    let (_, mut segments) = world.object("k");
    segments[1] = chunks(&anew, anew.segments[0], 2000, 8192);
    let late = world.commit_layouts(&anew, &segments);
    assert!(matches!(late, Err(MetaFault::Conflict { current: Some(current), .. }) if current == second));
    let anew = world.amend("k", second, 1, true).unwrap();
    segments[1] = chunks(&anew, anew.segments[0], 300, 4096);
    world.commit_layouts(&anew, &segments).unwrap();
    assert!(matches!(grow(&mut world, second, MIB + 2600), Err(MetaFault::Conflict { .. })));
    // A segment ends where the policy says, whatever its chunks hold; what is empty, or no file, has no room.
    let full = put(&mut world, &[MIB], MIB / 4);
    assert!(matches!(grow(&mut world, full.version, MIB + 1), Err(MetaFault::BadLayout(_))));
    world.remove("k").unwrap();
    assert!(matches!(grow(&mut world, full.version, 1), Err(MetaFault::NoObject { .. })));
    let empty = create(&mut world, "k").unwrap();
    assert!(matches!(grow(&mut world, empty, 1), Err(MetaFault::BadLayout(_))));
    assert!("parity:segment=1MiB".parse::<Policy>().is_ok());
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut world = files();
    let begun = put(&mut world, &[1000], 8192);
    let change = grow_of("k", begun.version, 3000);
    let id = RequestId { client: 9, count: 1 };
    let first = world.change_as(id, &change).unwrap();
    assert_eq!(world.change_as(id, &change), Ok(first), "and is not a conflict with itself");
    assert_eq!(world.object("k").0.size, 3000);
}

#[test]
fn an_amendment_makes_a_file_shorter_and_frees_the_rest() {
    let mut world = files();
    let begun = put(&mut world, &[MIB, MIB, 1000], 4096);
    let (_, before) = world.object("k");
    let anew = world.amend("k", begun.version, 1, true).unwrap();
    let short = [before[0].clone(), chunks(&anew, anew.segments[0], 500, 4096)];
    let Ok(MetaAnswer::Committed { freed, .. }) = world.commit_layouts(&anew, &short) else { panic!() };
    assert_eq!(freed.len(), 12, "six chunks of two segments");
    assert!(freed.iter().all(|freed| freed.keep.is_empty()));
    assert_eq!(world.object("k").0.size, MIB + 500);
    assert_eq!(world.states(&begun.segments[1..], 1), [SegmentState::Gone, SegmentState::Gone]);
    // To nothing.
    let none = world.amend("k", anew.version, 0, true).unwrap();
    let Ok(MetaAnswer::Committed { freed, .. }) = world.commit_layouts(&none, &[]) else { panic!() };
    assert_eq!((freed.len(), world.records(0x30)), (12, 0));
    let (object, segments) = world.object("k");
    assert_eq!((object.size, segments.len()), (0, 0));
}

/// The chunk on device 1 of a segment written elsewhere, on device `to`.
fn moved(layout: &SegmentLayout, begun: &PutBegun, name: SegmentId, to: u128) -> SegmentLayout {
    let mut layout = SegmentLayout { epoch: begun.epoch, ..layout.clone() };
    let left = layout.holders.remove(0);
    let holder = Holder::whole(DeviceId(to), name, begun.version, left.blocks());
    layout.holders.insert(0, holder);
    layout
}

/// A file that is appended to all the time is drained nevertheless.
#[test]
fn growth_in_place_does_not_overtake_an_amendment_of_other_segments() {
    let mut world = files();
    world.register(&node_record(7, &[7])).unwrap();
    let begun = put(&mut world, &[MIB, MIB, 1000], 8192);
    let (_, before) = world.object("k");
    let late = world.amend("k", begun.version, 2, false).unwrap();
    let first = grow(&mut world, begun.version, 2 * MIB + 2000).unwrap();
    let second = grow(&mut world, first, 2 * MIB + 2500).unwrap();
    // Whichever of its versions the amendment begins from, and however late that is.
    let segments = [before[0].clone(), moved(&before[1], &late, late.segments[0], 7), before[2].clone()];
    let third = grow(&mut world, second, 2 * MIB + 3000).unwrap();
    let Ok(MetaAnswer::Committed { version, freed }) = world.commit_layouts(&late, &segments) else {
        panic!()
    };
    assert!(version > third && freed.len() == 1);
    let (object, after) = world.object("k");
    assert_eq!((object.version, object.contents, object.size), (version, begun.version, 2 * MIB + 3000));
    assert_eq!(after[..2], segments[..2]);
    assert_eq!(after[2], SegmentLayout { length: 3000, ..before[2].clone() }, "nothing gained is lost");
    // That is a new layout: who counts on one from before it looks again.
    assert!(matches!(grow(&mut world, third, 2 * MIB + 3500), Err(MetaFault::Conflict { .. })));
    assert!(matches!(world.amend("k", begun.version, 1, false), Err(MetaFault::Conflict { .. })));
    assert!(matches!(world.amend("k", third, 1, false), Err(MetaFault::Conflict { .. })));
    // One that changes bytes of another segment keeps the growth, too, and one begins from a version that is over.
    let fourth = grow(&mut world, version, 2 * MIB + 4000).unwrap();
    let rewrite = world.amend("k", version, 1, true).unwrap();
    let (_, mut segments) = world.object("k");
    grow(&mut world, fourth, 2 * MIB + 4500).unwrap();
    segments[0] = chunks(&rewrite, rewrite.segments[0], MIB, MIB / 4);
    world.commit_layouts(&rewrite, &segments).unwrap();
    let (object, after) = world.object("k");
    assert_eq!((object.contents, object.size), (object.version, 2 * MIB + 4500));
    assert_eq!((&after[0], after[2].length), (&segments[0], 4500));
}

/// What it has stored of the last segment may lack bytes that were counted in later.
#[test]
fn an_amendment_of_the_segment_that_grew_is_overtaken() {
    let mut world = files();
    world.register(&node_record(7, &[7])).unwrap();
    let mut version = put(&mut world, &[MIB, 1000], 8192).version;
    for case in 0..6 {
        let (object, before) = world.object("k");
        let late = world.amend("k", version, 2, case == 1).unwrap();
        let grown = grow(&mut world, version, object.size + 100).unwrap();
        let (_, now) = world.object("k");
        let mut segments = before.clone();
        match case {
            0 => segments[1] = moved(&before[1], &late, late.segments[0], 7),
            1 => segments[1] = chunks(&late, late.segments[0], before[1].length, 8192),
            2 => segments[1].epoch = late.epoch,
            // As if it had known that.
            3 => segments[1] = moved(&now[1], &late, late.segments[0], 7),
            4 => drop(segments.pop()),
            _ => segments.push(chunks(&late, late.segments[0], 5, 4096)),
        }
        let refused = world.commit_layouts(&late, &segments).unwrap_err();
        let of = |current: &Option<Version>| *current == Some(grown);
        assert!(matches!(&refused, MetaFault::Conflict { current, .. } if of(current)), "{case}: {refused}");
        assert_eq!(world.object("k").1, now);
        version = grown;
    }
    // A put between is another object.
    let late = world.amend("k", version, 2, false).unwrap();
    let (_, mut segments) = world.object("k");
    segments[0] = moved(&segments[0], &late, late.segments[0], 7);
    grow(&mut world, version, MIB + 5000).unwrap();
    put(&mut world, &[MIB, 1000], 8192);
    assert!(matches!(world.commit_layouts(&late, &segments), Err(MetaFault::Conflict { .. })));
}

/// Puts, growth and amendments of any age against what a plain list of versions says.
#[test]
fn any_order_of_growth_and_amendments_keeps_what_was_counted_in() {
    let mut random = Pcg64Mcg::seed_from_u64(0x610);
    let mut below = move |most: usize| random.next_u32() as usize % most;
    let (mut kept, mut overtaken) = (0, 0);
    for _ in 0..10 {
        let mut world = files();
        world.register(&node_record(7, &[7])).unwrap();
        // Versions that the object had since its layout was last another.
        let mut since = vec![put(&mut world, &[MIB, MIB, 100], MIB / 4).version];
        let mut open: Vec<(PutBegun, Version, Vec<SegmentLayout>)> = Vec::new();
        // A put that commits when others have been made has a version from before them.
        let mut begun = world.begin("k", 3);
        for _ in 0..100 {
            let (object, now) = world.object("k");
            let current = *since.last().unwrap();
            assert_eq!(object.version, current);
            match below(8) {
                0..3 => since.push(grow(&mut world, current, object.size + 1 + below(500) as u64).unwrap()),
                3 | 4 => open.push((world.amend("k", current, 1, false).unwrap(), current, now)),
                5 if below(6) == 0 => {
                    let lengths = [MIB, MIB, 1 + below(100) as u64];
                    let layouts: Vec<_> = begun.segments.iter().zip(lengths).collect();
                    let layouts: Vec<_> = layouts
                        .into_iter()
                        .map(|(&name, length)| chunks(&begun, name, length, MIB / 4))
                        .collect();
                    world.commit_layouts(&begun, &layouts).unwrap();
                    since = vec![begun.version];
                    begun = world.begin("k", 3);
                }
                _ if !open.is_empty() => {
                    let (amend, base, mut layouts) = open.swap_remove(below(open.len()));
                    let at = below(3);
                    let was = layouts[at].clone();
                    let from = was.holders[0].device;
                    let to = if from == DeviceId(7) { 1 } else { 7 };
                    layouts[at] = moved(&layouts[at], &amend, amend.segments[0], to);
                    let committed = world.commit_layouts(&amend, &layouts);
                    let anew = layouts[at].clone();
                    let may = current == base || now[at] == was;
                    assert_eq!(committed.is_ok(), may, "{at} of {base} in {since:?}: {committed:?}");
                    if may {
                        let mut all = now;
                        all[at] = anew;
                        let (object, layouts) = world.object("k");
                        assert_eq!(layouts, all);
                        kept += usize::from(current != base);
                        since = vec![object.version];
                    } else {
                        assert!(matches!(committed, Err(MetaFault::Conflict { .. })));
                        overtaken += 1;
                    }
                }
                _ => {}
            }
        }
    }
    assert!(kept > 20 && overtaken > 20, "hardly visited: {kept}, {overtaken}");
}
