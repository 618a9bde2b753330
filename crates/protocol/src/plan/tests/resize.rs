//! Files that grow and shrink: what becomes of their segments.

use super::*;
use crate::{
    Epoch, SegmentId, Version,
    layout::{CodeSpec, PARITY_GRANULE_BYTES, ParityGeometry, SegmentLayout},
    policy::Parity,
};

fn parity(text: &str) -> Parity {
    match policy(text) {
        Policy::Parity(parity) => parity,
        other => panic!("{other}"),
    }
}

/// A segment as these plans store it.
fn stored(plan: &SegmentPlan) -> SegmentLayout {
    SegmentLayout {
        segment: SegmentId(1),
        version: Version(1),
        epoch: Epoch(1),
        length: plan.length,
        code: CodeSpec { kind: plan.code, originals: plan.geometry.originals, seed: 0 },
        block_bytes: plan.geometry.block_bytes,
        granule_bytes: plan.geometry.granule_bytes,
        holders: Vec::new(),
    }
}

fn put(policy: &Parity, size: u64) -> Vec<SegmentLayout> {
    segments(size, &Policy::Parity(*policy)).iter().map(stored).collect()
}

/// The segments after this growth, the last one in place where it has room; bytes written for it.
fn grown(policy: &Parity, mut segments: Vec<SegmentLayout>, size: u64) -> (Vec<SegmentLayout>, u64) {
    let growth = growth(policy, &segments, size).unwrap();
    let mut written = 0;
    if let Some(last) = growth.last {
        let layout = segments.last_mut().unwrap();
        assert_eq!(last.from, layout.length);
        assert!(last.anew.length > last.from && last.anew.length <= policy.segment_bytes);
        if last.has_room {
            written += last.anew.length - last.from;
            layout.length = last.anew.length;
        } else {
            written += last.anew.length;
            *layout = stored(&last.anew);
        }
    }
    written += growth.more.iter().map(|plan| plan.length).sum::<u64>();
    segments.extend(growth.more.iter().map(stored));
    (segments, written)
}

fn lengths(segments: &[SegmentLayout]) -> Vec<u64> {
    segments.iter().map(|layout| layout.length).collect()
}

#[test]
fn a_file_grows_by_its_last_segment_and_by_whole_ones() {
    let policy = parity("parity:segment=1MiB");
    let none = growth(&policy, &[], 0).unwrap();
    assert_eq!((none.last, none.more.len()), (None, 0));
    let first = growth(&policy, &[], 2 * MIB + 5).unwrap();
    assert_eq!(first.last, None);
    let more: Vec<(u64, u64)> = first.more.iter().map(|plan| (plan.offset, plan.length)).collect();
    assert_eq!(more, [(0, MIB), (MIB, MIB), (2 * MIB, 5)]);
    // As a put of the same bytes has them.
    assert_eq!(first.more, segments(2 * MIB + 5, &Policy::Parity(policy)));
    let file: Vec<SegmentLayout> = first.more.iter().map(stored).collect();
    let within = growth(&policy, &file, 2 * MIB + 16_384).unwrap();
    let last = within.last.unwrap();
    assert_eq!((last.from, last.anew.offset, last.anew.length), (5, 2 * MIB, 16_384));
    assert!(last.has_room && within.more.is_empty());
    let beyond = growth(&policy, &file, 4 * MIB + 1).unwrap();
    let last = beyond.last.unwrap();
    assert!(!last.has_room && last.anew.length == MIB);
    assert_eq!(beyond.more.iter().map(|plan| plan.length).collect::<Vec<_>>(), [MIB, 1]);
    // A full last segment stays.
    let full = put(&policy, 2 * MIB);
    let behind = growth(&policy, &full, 2 * MIB + 1).unwrap();
    assert_eq!((behind.last, behind.more.len()), (None, 1));
    assert_eq!(growth(&policy, &full, 2 * MIB).unwrap(), Growth { last: None, more: Vec::new() });
}

#[test]
fn bytes_appended_cost_a_few_bytes_each_however_they_come() {
    for text in ["parity", "parity:update=fo", "parity:code=rs(9,6),segment=4MiB", "parity:reserve=0"] {
        let policy = parity(text);
        for step in [100, 5000, 300_000] {
            let size = policy.segment_bytes * 2 + 777;
            let (mut segments, mut written, mut anew) = (Vec::new(), 0, 0);
            let mut at = 0;
            while at < size {
                at = size.min(at + step);
                let before: Vec<ParityGeometry> =
                    segments.iter().filter_map(ParityGeometry::of_layout).collect();
                let bytes;
                (segments, bytes) = grown(&policy, segments, at);
                written += bytes;
                let after = segments.iter().filter_map(ParityGeometry::of_layout);
                anew += after.zip(&before).filter(|(after, before)| after != *before).count();
                let (last, full) = segments.split_last().unwrap();
                assert!(full.iter().all(|layout| layout.length == policy.segment_bytes));
                assert!(ParityGeometry::of_layout(last).unwrap().capacity_bytes() >= last.length);
            }
            assert_eq!(lengths(&segments).iter().sum::<u64>(), size);
            assert!(written < 3 * size, "{text}, {step} at a time: {written} written for {size}");
            // 4 KiB to 4 MiB are ten doublings, in each of three segments.
            assert!(anew <= 30, "{text}, {step} at a time: {anew} stored anew");
        }
    }
}

#[test]
fn a_segment_that_has_grown_once_can_grow_in_place() {
    let default = parity("parity");
    let small = put(&default, 100);
    let (again, _) = grown(&default, small.clone(), 20_000);
    let shape = ParityGeometry::of_layout(&again[0]).unwrap();
    // 256 KiB: half a reserve of that for four data chunks is 32 KiB each, 16 of them overhead.
    assert_eq!(shape.chunk_bytes(), 256 << 10);
    assert!(default.update_bytes_max(shape.chunk_bytes()).is_some());
    assert!(default.update_bytes_max(shape.chunk_bytes() / 2).is_none());
    // What was empty is as a put stores it, and a policy without changes in place has the smallest chunks.
    for (text, from, size, chunk_bytes) in [
        ("parity", 0, 20_000, 8192),
        ("parity:reserve=0", 100, 20_000, 8192),
        ("parity:reserve=4MiB", 100, 20_000, 8192),
        ("parity:reserve=8KiB,segment=1MiB", 100, MIB, 256 << 10),
    ] {
        let policy = parity(text);
        let last = growth(&policy, &put(&policy, from), size).unwrap().last.unwrap();
        assert_eq!(stored_bytes(&last.anew) / 4, chunk_bytes, "{text}");
    }
}

#[test]
fn only_what_is_written_without_a_gap_grows_in_place() {
    let policy = parity("parity:segment=1MiB");
    let last = |from, size| growth(&policy, &put(&policy, from), size).unwrap().last.unwrap();
    let longer = last(1000, 2000);
    for (ranges, in_place) in [
        (&[(1000, 2000)][..], true),
        (&[(0, 10), (900, 1500), (1500, 2000)], true),
        (&[(900, 1800), (1000, 1200), (1800, 2000)], true),
        (&[(1001, 2000)], false),
        (&[(1000, 1999)], false),
        (&[(1000, 1500), (1501, 2000)], false),
        (&[(0, 10)], false),
        (&[], false),
    ] {
        let ranges: Vec<_> = ranges.iter().map(|&(from, to)| from..to).collect();
        assert_eq!(longer.in_place(&ranges), in_place, "{ranges:?}");
    }
    let without_room = last(1000, 20_000);
    let all = core::iter::once(1000..20_000).collect::<Vec<_>>();
    assert!(!without_room.has_room && !without_room.in_place(&all));
}

fn stored_bytes(plan: &SegmentPlan) -> u64 {
    u64::from(plan.geometry.block_bytes) * u64::from(plan.geometry.originals)
}

#[test]
fn a_file_is_cut_where_it_is_to_end() {
    let policy = parity("parity:segment=1MiB");
    let file = put(&policy, 3 * MIB + 100);
    for (size, kept, left) in [
        (0, 0, None),
        (1, 0, Some((0, 1))),
        (MIB - 1, 0, Some((0, MIB - 1))),
        (MIB, 1, None),
        (2 * MIB + 70_000, 2, Some((2 * MIB, 70_000))),
        (3 * MIB, 3, None),
        (3 * MIB + 99, 3, Some((3 * MIB, 99))),
        (3 * MIB + 100, 4, None),
    ] {
        let cut = cut(&policy, &file, size);
        let last = cut.last.map(|plan| (plan.offset, plan.length));
        assert_eq!((cut.kept, last), (kept, left), "{size}");
        if let Some(plan) = cut.last {
            // As small as a put would store it.
            assert_eq!(plan.geometry, segments(plan.length, &Policy::Parity(policy))[0].geometry);
        }
    }
    assert_eq!(cut(&policy, &[], 0), Cut { kept: 0, last: None });
}

#[test]
fn a_file_of_too_many_segments_is_refused_before_anything_is_stored() {
    for text in ["parity", "parity:segment=1MiB", "parity:code=rs(32,16),segment=64MiB"] {
        let policy = parity(text);
        let most = file_bytes_max(&policy);
        assert!(
            most >= 3000 * policy.segment_bytes && most.is_multiple_of(policy.segment_bytes),
            "{text}: {most}"
        );
        assert_eq!(growth(&policy, &[], most).unwrap().more.len() as u64, most / policy.segment_bytes);
        for size in [most + 1, u64::MAX] {
            assert_eq!(growth(&policy, &[], size), Err(TooLong { size, most }), "{text}");
        }
    }
    let said = TooLong { size: 1 << 50, most: 1 << 38 }.to_string();
    assert!(said.contains("larger segments"), "{said}");
    assert_eq!(u64::from(PARITY_GRANULE_BYTES), stored_bytes(&segments(0, &policy("parity"))[0]) / 4);
}
