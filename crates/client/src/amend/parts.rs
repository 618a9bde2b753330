//! Which bytes of a change fall into which segment of an object, and what becomes of that.

use super::AmendError;
use crate::ObjectStat;
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use steadfast_protocol::{
    plan::{Growth, Longer, SegmentPlan, growth},
    policy::Policy,
};

/// New bytes by where in the object they belong: in order, none empty, none overlapping another.
pub(crate) type Ranges = [(u64, Bytes)];

/// What of a change falls into one segment.
#[derive(Debug)]
pub(super) struct Part {
    /// Which segment.
    pub(super) position: usize,
    /// Where in the object it begins.
    pub(super) at: u64,
    /// Bytes of it.
    pub(super) ranges: Vec<Range<u64>>,
    /// Whether nothing is stored of it yet.
    pub(super) is_hole: bool,
    /// What becomes of it.
    pub(super) becomes: Becomes,
}

/// What becomes of a segment.
#[derive(Debug, PartialEq)]
pub(super) enum Becomes {
    /// It has the bytes that it had.
    Same,
    /// It gains some behind them.
    Longer(Longer),
    /// There is none yet.
    New(SegmentPlan),
}

impl Part {
    /// The hole that it becomes where nothing of it is stored, now or before: it is there only because something is written behind it, or
    /// the object is to have so many bytes.
    pub(super) fn hole(&self) -> Option<&SegmentPlan> {
        match &self.becomes {
            Becomes::Longer(Longer { anew: plan, .. }) | Becomes::New(plan)
                if self.is_hole && self.ranges.is_empty() =>
            {
                Some(plan)
            }
            _ => None,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Those of the bytes that fall into it.
    pub(super) fn of(&self, ranges: &Ranges) -> Vec<(u64, Bytes)> {
        let bytes = |range: &Range<u64>| {
            let (at, length) = (self.at + range.start, (range.end - range.start) as usize);
            (at, slice(ranges, at, length))
        };
        self.ranges.iter().map(bytes).collect()
    }
}

/// What of the ranges falls into which segment, where the object is to have `size_min` bytes at least, and how many it will
/// have.
pub(super) fn parts(
    found: &ObjectStat,
    ranges: &Ranges,
    size_min: u64,
) -> Result<(Vec<Part>, u64), AmendError> {
    let size = found.object.size.max(size_min);
    let size = match ranges.last() {
        None => size,
        Some((offset, bytes)) => {
            let (offset, length) = (*offset, bytes.len() as u64);
            let end = offset.checked_add(length);
            size.max(end.ok_or(AmendError::Extends { offset, length, size })?)
        }
    };
    let grown = match &found.policy {
        Policy::Parity(policy) => growth(policy, &found.segments, size)?,
        _ if size == found.object.size => Growth { last: None, more: Vec::new() },
        _ => {
            let (offset, size) = (found.object.size, found.object.size);
            return Err(AmendError::Extends { offset, length: size_min.max(offset) - offset, size });
        }
    };
    let (mut longer, last) = (grown.last, found.segments.len().saturating_sub(1));
    let there = found.segments.iter().enumerate().map(|(position, layout)| {
        let longer = if position == last { longer.take() } else { None };
        match longer {
            Some(longer) => (longer.anew.length, layout.is_hole(), Becomes::Longer(longer)),
            None => (layout.length, layout.is_hole(), Becomes::Same),
        }
    });
    let more = grown.more.into_iter().map(|plan| (plan.length, true, Becomes::New(plan)));
    let (mut parts, mut at) = (Vec::new(), 0u64);
    for (position, (length, is_hole, becomes)) in there.chain(more).enumerate() {
        let end = at + length;
        let first = ranges.partition_point(|(offset, bytes)| offset + bytes.len() as u64 <= at);
        let within = ranges[first..].iter().take_while(|(offset, _)| *offset < end);
        let ranges: Vec<Range<u64>> = within
            .map(|(offset, bytes)| (*offset).max(at) - at..(offset + bytes.len() as u64).min(end) - at)
            .collect();
        if !ranges.is_empty() || becomes != Becomes::Same {
            parts.push(Part { position, at, ranges, is_hole, becomes });
        }
        at = end;
    }
    Ok((parts, size))
}

/// `length` new bytes, those for byte `at` of the object on, which lie in one range.
pub(super) fn slice(ranges: &Ranges, at: u64, length: usize) -> Bytes {
    let (offset, bytes) = &ranges[ranges.partition_point(|(offset, _)| *offset <= at) - 1];
    // Below the range's length, which fits memory.
    let from = (at - offset) as usize;
    bytes.slice(from..from + length)
}

/// The first `kept` bytes of a segment's originals in blocks of another size, with zeros behind them up to `length`.
pub(super) fn recut(there: &[BytesMut], kept: u64, block_bytes: u32, length: u64) -> Vec<BytesMut> {
    let blocks = length.div_ceil(block_bytes.into());
    let mut cut: Vec<BytesMut> = (0..blocks).map(|_| BytesMut::zeroed(block_bytes as usize)).collect();
    let (mut at, size) = (0u64, u64::from(block_bytes));
    for block in there {
        let mut from = 0;
        while from < block.len() && at < kept {
            // All of it lies within blocks, which fit memory.
            let within = (at % size) as usize;
            let take = (block.len() - from).min(block_bytes as usize - within);
            let take = take.min(usize::try_from(kept - at).unwrap_or(usize::MAX));
            cut[(at / size) as usize][within..within + take].copy_from_slice(&block[from..from + take]);
            from += take;
            at += take as u64;
        }
    }
    cut
}

/// The originals of a segment of `length` bytes that begins at `at`, with the new bytes over them.
pub(super) fn over(
    mut originals: Vec<BytesMut>,
    block_bytes: u32,
    (at, length): (u64, u64),
    ranges: &Ranges,
) -> Vec<BytesMut> {
    let block_bytes = u64::from(block_bytes);
    for (offset, bytes) in ranges {
        let (mut from, end) = ((*offset).max(at), (offset + bytes.len() as u64).min(at + length));
        while from < end {
            let (block, within) = ((from - at) / block_bytes, (from - at) % block_bytes);
            let to = end.min(from + block_bytes - within);
            // All of it lies within one block and within the range, which fit memory.
            let (within, length, skipped) = (within as usize, (to - from) as usize, (from - offset) as usize);
            originals[block as usize][within..within + length]
                .copy_from_slice(&bytes[skipped..skipped + length]);
            from = to;
        }
    }
    originals
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use steadfast_protocol::{
        DeviceId, Epoch, SegmentId, Time, Version,
        layout::{CodeKind, CodeSpec, Holder, SegmentLayout},
        message::ObjectRecord,
        policy::Pledge,
    };

    const BLOCK: u64 = 4096;

    pub(crate) fn found(lengths: &[u64]) -> ObjectStat {
        let segment = |&length: &u64| SegmentLayout {
            segment: SegmentId(1),
            version: Version(1),
            epoch: Epoch(1),
            length,
            block_bytes: BLOCK as u32,
            granule_bytes: BLOCK as u32,
            code: CodeSpec {
                kind: CodeKind::ReedSolomon { data: 4, parity: 2 },
                originals: length.div_ceil(4 * BLOCK) as u32 * 4,
                seed: 0,
            },
            holders: Vec::new(),
        };
        let object = ObjectRecord {
            key: "object".to_owned(),
            size: lengths.iter().sum(),
            version: Version(1),
            contents: Version(1),
            committed: Time(0),
            segments: Vec::new(),
            pledge: Pledge::default(),
        };
        let policy: Policy = "parity".parse().unwrap();
        ObjectStat { object, segments: lengths.iter().map(segment).collect(), policy }
    }

    #[test]
    fn ranges_fall_into_segments_whatever_their_ends() {
        let found = found(&[20_000, 20_000, 20_000, 5000]);
        let bytes = |length: usize, byte: u8| Bytes::from(vec![byte; length]);
        let ranges = [
            (10, bytes(5, 1)),
            (100, bytes(25_000, 2)),
            (39_999, bytes(20_002, 3)),
            (64_000, bytes(1000, 4)),
        ];
        let (parts, size) = parts(&found, &ranges, 0).unwrap();
        assert_eq!(size, found.object.size);
        let seen: Vec<_> = parts.iter().map(|part| (part.position, part.at, part.ranges.clone())).collect();
        let expected: [(usize, u64, Vec<Range<u64>>); 4] = [
            (0, 0, vec![10..15, 100..20_000]),
            (1, 20_000, vec![0..5100, 19_999..20_000]),
            (2, 40_000, core::iter::once(0..20_000).collect()),
            (3, 60_000, vec![0..1, 4000..5000]),
        ];
        assert_eq!(seen, expected);
        assert_eq!(parts[2].bytes(), 20_000);
        assert_eq!(slice(&ranges, 20_000, 5100), bytes(5100, 2));
        assert_eq!(slice(&ranges, 60_000, 1), bytes(1, 3));
        // The originals of each with the ranges over them, as a plain array has them.
        let mut model = vec![0; 65_000];
        for (offset, bytes) in &ranges {
            model[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
        }
        for part in &parts {
            let layout = &found.segments[part.position];
            let zeros = (0..layout.code.originals).map(|_| BytesMut::zeroed(BLOCK as usize)).collect();
            let patched = over(zeros, BLOCK as u32, (part.at, layout.length), &ranges).concat();
            let (length, at) = (layout.length as usize, part.at as usize);
            assert!(patched[..length] == model[at..at + length], "segment {}", part.position);
            assert!(patched[length..].iter().all(|byte| *byte == 0), "nothing behind its end");
        }
    }

    #[test]
    fn whole_segments_that_nobody_writes_to_become_holes() {
        let mib = 1 << 20;
        let ranges = [(10, Bytes::from_static(&[7; 5])), (5 * mib + 3, Bytes::from_static(&[7; 100]))];
        for is_stored in [false, true] {
            let mut found = found(&[mib, 20_000]);
            found.policy = "parity:segment=1MiB".parse().unwrap();
            let device = DeviceId(1);
            let holder = || Holder::whole(device, SegmentId(1), Version(1), (0..1).into());
            found.segments.iter_mut().filter(|_| is_stored).for_each(|layout| layout.holders.push(holder()));
            let holes = |ranges, size_min| -> Vec<(usize, Option<u64>)> {
                let (parts, _) = parts(&found, ranges, size_min).unwrap();
                parts.iter().map(|part| (part.position, part.hole().map(|plan| plan.length))).collect()
            };
            // The last one as far as nothing was there, and those before what is written.
            let last = (1, (!is_stored).then_some(mib));
            let between = [(2, Some(mib)), (3, Some(mib)), (4, Some(mib))];
            assert_eq!(holes(&ranges, 0), [&[(0, None), last][..], &between, &[(5, None)]].concat());
            assert_eq!(holes(&[], 2 * mib + 9), [last, (2, Some(9))]);
            assert_eq!(holes(&[], 30_000), []);
        }
    }

    #[test]
    fn what_ends_behind_the_object_makes_it_longer() {
        let mib = 1 << 20;
        let mut found = found(&[mib, mib, 20_000]);
        found.policy = "parity:segment=1MiB".parse().unwrap();
        let bytes = |length: usize| Bytes::from(vec![7; length]);
        let last = 2 * mib;
        let seen = |ranges: &Ranges, size_min| {
            let (parts, size) = parts(&found, ranges, size_min).unwrap();
            let shown = parts.into_iter().map(|part| {
                let to = match part.becomes {
                    Becomes::Same => 0,
                    Becomes::Longer(longer) => longer.anew.length,
                    Becomes::New(plan) => plan.length,
                };
                (part.position, part.ranges, to)
            });
            (shown.collect::<Vec<_>>(), size)
        };
        let one = |range| Vec::from([range]);
        assert_eq!(
            seen(&[(5, bytes(5)), (last + 20_000, bytes(7000))], 0),
            (vec![(0, one(5..10), 0), (2, one(20_000..27_000), 27_000)], last + 27_000)
        );
        // Over the end of the segment, and behind a gap: what has no bytes of the change is there all the same.
        assert_eq!(
            seen(&[(3 * mib - 10, bytes(30))], 0),
            (vec![(2, one(mib - 10..mib), mib), (3, one(0..20), 20)], 3 * mib + 20)
        );
        assert_eq!(
            seen(&[(4 * mib + 1, bytes(1))], 0),
            (vec![(2, vec![], mib), (3, vec![], mib), (4, one(1..2), 2)], 4 * mib + 2)
        );
        assert_eq!(seen(&[], last + 30_000), (vec![(2, vec![], 30_000)], last + 30_000));
        assert_eq!(seen(&[], 5), (vec![], last + 20_000));
        let too_long = parts(&found, &[(1 << 60, bytes(1))], 0).unwrap_err();
        assert!(matches!(too_long, AmendError::TooLong(_)), "{too_long}");
        assert!(matches!(parts(&found, &[(u64::MAX, bytes(1))], 0), Err(AmendError::Extends { .. })));
        found.policy = "rateless".parse().unwrap();
        assert!(matches!(parts(&found, &[], 4 * mib), Err(AmendError::Extends { .. })));
        assert!(parts(&found, &[(9, bytes(9))], 0).is_ok());
    }

    #[test]
    fn parts_know_what_is_theirs() {
        let found = found(&[20_000, 20_000]);
        let ranges = [(0, Bytes::from(vec![1; 25_000])), (30_000, Bytes::from(vec![2; 10]))];
        let (parts, _) = parts(&found, &ranges, 0).unwrap();
        let rest = parts[1].of(&ranges);
        assert_eq!(rest, [(20_000, Bytes::from(vec![1; 5000])), (30_000, Bytes::from(vec![2; 10]))]);
    }

    #[test]
    fn blocks_are_cut_anew_and_what_lay_behind_the_end_is_zero() {
        let there: Vec<BytesMut> = (0..3u8).map(|block| BytesMut::from(&[block + 1; 100][..])).collect();
        let whole: Vec<u8> = there.concat();
        for (kept, block_bytes, length) in [(250, 64, 400), (250, 100, 300), (1, 4096, 2), (300, 7, 300)] {
            let cut = recut(&there, kept, block_bytes, length);
            assert_eq!(cut.len() as u64, length.div_ceil(block_bytes.into()));
            let cut: Vec<u8> = cut.concat();
            assert!(cut[..kept as usize] == whole[..kept as usize]);
            assert!(cut[kept as usize..].iter().all(|byte| *byte == 0), "{kept} {block_bytes} {length}");
        }
        assert_eq!(recut(&[], 0, 4096, 5000).concat(), vec![0; 8192]);
    }
}
