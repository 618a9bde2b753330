//! Segments that nobody stores: which layouts may have none of a device.

use crate::support::{World, chunked, node_record};
use steadfast_protocol::{
    layout::{CodeKind, CodeSpec, GRANULE_BYTES, ParityGeometry, SegmentLayout},
    message::{Change, Freed, MetaAnswer, MetaFault, PutBegun, Query},
    policy::{Parity, Policy},
};

const MIB: u64 = 1 << 20;

/// An empty file of segments of 1 MiB.
fn file() -> World {
    let mut world = World::empty();
    for node in 1..=7 {
        world.register(&node_record(node, &[node])).unwrap();
    }
    world.create("data", "parity:segment=1MiB").unwrap();
    world.change(Change::Create { bucket: "data".into(), key: "k".into() }).unwrap();
    world
}

fn begin(world: &mut World) -> (PutBegun, Vec<SegmentLayout>) {
    let (object, base) = world.object("k");
    (world.amend("k", object.version, 3, true).unwrap(), base)
}

fn stored(begun: &PutBegun, number: usize, length: u64) -> SegmentLayout {
    let shape = ParityGeometry::of(&Parity { segment_bytes: MIB, ..Parity::default() }, length);
    chunked(begun, begun.segments[number], shape, length)
}

fn hole(begun: &PutBegun, number: usize, length: u64) -> SegmentLayout {
    SegmentLayout { holders: Vec::new(), ..stored(begun, number, length) }
}

fn commit(world: &mut World, begun: &PutBegun, segments: &[SegmentLayout]) -> Result<Vec<Freed>, MetaFault> {
    match world.commit_layouts(begun, segments)? {
        MetaAnswer::Committed { freed, .. } => Ok(freed),
        other => panic!("{other:?}"),
    }
}

fn is_refused<T: core::fmt::Debug>(answer: Result<T, MetaFault>, part: &str) {
    match answer {
        Err(MetaFault::BadLayout(said)) => assert!(said.contains(part), "{said}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_has_holes_which_are_filled_and_go_with_it() {
    let mut world = file();
    let (begun, _) = begin(&mut world);
    let made = vec![hole(&begun, 0, MIB), stored(&begun, 1, MIB), hole(&begun, 2, 5)];
    commit(&mut world, &begun, &made).unwrap();
    let (object, now) = world.object("k");
    assert_eq!((object.size, &now), (2 * MIB + 5, &made));
    // It lacks no chunks, and nobody is to complete it.
    let policy: Policy = "parity:segment=1MiB".parse().unwrap();
    assert!(now.iter().all(|layout| layout.missing_chunks(&policy) == 0));
    let code = CodeSpec { kind: CodeKind::ReedSolomon { data: 4, parity: 1 }, ..now[0].code };
    assert_eq!(SegmentLayout { code, ..now[0].clone() }.missing_chunks(&policy), 0);
    match world.ask(&Query::Degraded { after: None, limit: 10 }) {
        Ok(MetaAnswer::ObjectsOn { held, .. }) => assert_eq!(held, []),
        other => panic!("{other:?}"),
    }
    // One is filled, another is shorter, and nothing is freed by that.
    let (begun, base) = begin(&mut world);
    let freed = commit(&mut world, &begun, &[stored(&begun, 0, MIB), base[1].clone(), hole(&begun, 1, 3)]);
    assert_eq!(freed.unwrap(), []);
    // What is stored may be a hole under another name: it is freed.
    let (begun, base) = begin(&mut world);
    let freed = commit(&mut world, &begun, &[hole(&begun, 0, MIB), base[1].clone()]).unwrap();
    assert_eq!(freed.len(), 6);
    assert!(freed.iter().all(|freed| freed.segment == base[0].segment && freed.keep.is_empty()));
    world.remove("k").unwrap();
    assert_eq!(world.records(0x30), 0);
}

#[test]
fn what_is_no_hole_is_refused_without_devices() {
    let mut world = file();
    let (begun, _) = begin(&mut world);
    is_refused(commit(&mut world, &begun, &[hole(&begun, 0, 0)]), "a hole of no bytes");
    // Of another shape than the bucket's.
    let bent = SegmentLayout { block_bytes: 1 << 19, ..hole(&begun, 0, MIB) };
    is_refused(commit(&mut world, &begun, &[bent]), "chunks");
    commit(&mut world, &begun, &[stored(&begun, 0, MIB)]).unwrap();
    // Under its own name it is not what it was.
    let (begun, base) = begin(&mut world);
    let emptied = SegmentLayout { holders: Vec::new(), epoch: begun.epoch, ..base[0].clone() };
    is_refused(commit(&mut world, &begun, &[emptied]), "listed without its devices");
    // Nor has any other object holes.
    let mut world = World::six();
    let begun = world.begin("k", 1);
    let coded = SegmentLayout {
        code: CodeSpec { kind: CodeKind::Mix, originals: 16, seed: 0 },
        block_bytes: 64 << 10,
        granule_bytes: GRANULE_BYTES,
        ..hole(&begun, 0, MIB)
    };
    is_refused(commit(&mut world, &begun, &[coded]), "N = 0");
}
