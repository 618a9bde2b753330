//! Segments that are stored with fewer chunks than their bucket promises: found, and found no more once they are complete.

use crate::support::{World, chunked, node_record};
use steadfast_protocol::{
    SegmentId,
    layout::{ParityGeometry, SegmentLayout},
    message::{Held, MetaAnswer, MetaFault, PutBegun, Query},
    policy::Parity,
};

const MIB: u64 = 1 << 20;
/// Records that name a degraded segment.
const INDEX: u8 = 0x31;

fn parity() -> Parity {
    Parity { segment_bytes: MIB, ..Parity::default() }
}

/// Six nodes, and a bucket `data` of segments with five chunks at least.
fn files() -> World {
    under("parity:segment=1MiB,least=5")
}

fn under(policy: &str) -> World {
    let mut world = World::empty();
    for node in 1..=6 {
        world.register(&node_record(node, &[node])).unwrap();
    }
    world.create("data", policy).unwrap();
    world
}

/// A whole segment in so many chunks, on devices from 1 on.
fn chunks(begun: &PutBegun, segment: SegmentId, (chunks, data): (u32, u32)) -> SegmentLayout {
    let full = ParityGeometry::of(&parity(), MIB);
    let shape = ParityGeometry { chunks, data, blocks: full.blocks * full.data / data, ..full };
    chunked(begun, segment, shape, MIB)
}

/// Puts an object with a segment for each of these numbers of chunks.
fn put(world: &mut World, key: &str, numbers: &[u32]) -> (PutBegun, Vec<SegmentLayout>) {
    let begun = world.begin(key, numbers.len() as u32);
    let layouts = begun.segments.iter().zip(numbers);
    let layouts: Vec<SegmentLayout> =
        layouts.map(|(&segment, &number)| chunks(&begun, segment, (number, 4))).collect();
    world.commit_layouts(&begun, &layouts).unwrap();
    (begun, layouts)
}

/// All that is degraded, in pages of so many.
fn degraded(world: &World, limit: u32) -> Vec<Held> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        match world.ask(&Query::Degraded { after, limit }).unwrap() {
            MetaAnswer::ObjectsOn { held, next } => {
                assert!(held.len() <= limit as usize);
                all.extend(held);
                match next {
                    Some(_) => after = next,
                    None => return all,
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn named(world: &World) -> Vec<(String, SegmentId)> {
    let all = degraded(world, 100);
    assert_eq!(all.len(), world.records(INDEX));
    all.into_iter().map(|held| (held.key, held.segment)).collect()
}

#[test]
fn as_many_chunks_as_the_policy_wants_at_least_and_all_data() {
    for (policy, least) in [("parity:segment=1MiB", 6), ("parity:segment=1MiB,least=5", 5)] {
        let mut world = under(policy);
        let begun = world.begin("k", 1);
        let segment = begun.segments[0];
        for wrong in [(4, 4), (least - 1, 4), (7, 4), (6, 2), (5, 2), (3, 2)] {
            let refused = world.commit_layouts(&begun, &[chunks(&begun, segment, wrong)]);
            assert!(matches!(refused, Err(MetaFault::BadLayout(_))), "{wrong:?}: {refused:?}");
        }
        world.commit_layouts(&begun, &[chunks(&begun, segment, (least, 4))]).unwrap();
        assert_eq!(world.object("k").1[0].holders.len(), least as usize);
    }
}

#[test]
fn what_lacks_chunks_is_found_page_by_page() {
    let mut world = files();
    put(&mut world, "whole", &[6, 6]);
    assert_eq!(degraded(&world, 1), []);
    let (some, _) = put(&mut world, "some", &[6, 5, 5]);
    let (last, _) = put(&mut world, "last", &[5]);
    let block_bytes = u64::from(ParityGeometry::of(&parity(), MIB).block_bytes);
    let held = |key: &str, segment| Held {
        bucket: "data".to_owned(),
        key: key.to_owned(),
        segment,
        length: MIB,
        blocks: 1,
        bytes: block_bytes,
    };
    let expected =
        [held("some", some.segments[1]), held("some", some.segments[2]), held("last", last.segments[0])];
    for limit in [1, 2, 3, 100] {
        assert_eq!(degraded(&world, limit), expected, "{limit}");
    }
    let refused = world.ask(&Query::Degraded { after: None, limit: 0 });
    assert!(matches!(refused, Err(MetaFault::Invalid(_))), "{refused:?}");
}

#[test]
fn what_is_complete_replaced_or_removed_is_found_no_more() {
    let mut world = files();
    let (begun, mut layouts) = put(&mut world, "k", &[5, 5, 6]);
    // A change that keeps the bytes stores one of them anew, with another number of parity chunks.
    let amendment = world.amend("k", begun.version, 1, false).unwrap();
    layouts[0] = chunks(&amendment, amendment.segments[0], (6, 4));
    world.commit_layouts(&amendment, &layouts).unwrap();
    assert_eq!(named(&world), [("k".to_owned(), begun.segments[1])]);
    assert_eq!(world.object("k").0.contents, begun.version, "readers go on");
    // And the other way round, which a change of bytes does while a server is down.
    let amendment = world.amend("k", amendment.version, 1, true).unwrap();
    layouts[2] = chunks(&amendment, amendment.segments[0], (5, 4));
    world.commit_layouts(&amendment, &layouts).unwrap();
    let expected = [begun.segments[1], amendment.segments[0]].map(|segment| ("k".to_owned(), segment));
    assert_eq!(named(&world), expected);
    let (replaced, _) = put(&mut world, "k", &[6, 5]);
    assert_eq!(named(&world), [("k".to_owned(), replaced.segments[1])]);
    world.remove("k").unwrap();
    assert_eq!(named(&world), []);
}

/// The storage servers look for one, and complete it.
#[test]
fn a_degraded_segment_whose_record_is_damaged_hides_no_other() {
    let mut world = files();
    let (first, _) = put(&mut world, "first", &[5]);
    let (second, _) = put(&mut world, "second", &[5]);
    world.spoil(&[&[0x30], &first.segments[0].0.to_be_bytes()[..]].concat());
    for limit in [1, 2, 10] {
        let found: Vec<SegmentId> = degraded(&world, limit).into_iter().map(|held| held.segment).collect();
        assert_eq!(found, second.segments, "{limit}");
    }
}
