//! Files: made empty, and made longer in place.

use crate::support::{World, node_record};
use steadfast_protocol::{
    DeviceId, RequestId, SegmentId, Version,
    layout::{CodeSpec, Holder, ParityGeometry, SegmentLayout},
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
    let holder = |chunk: u32| {
        let device = DeviceId(u128::from(chunk) + 1);
        Holder::whole(device, segment, begun.version, shape.blocks_of(chunk).into())
    };
    SegmentLayout {
        segment,
        version: begun.version,
        epoch: begun.epoch,
        length,
        code: CodeSpec { kind: shape.code(), originals: shape.originals(), seed: 0 },
        block_bytes: shape.geometry().block_bytes,
        granule_bytes: shape.geometry().granule_bytes,
        holders: (0..6).map(holder).collect(),
    }
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
    assert_eq!((object.version, object.contents, object.size), (longer, longer, MIB + 4 * 8192));
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
