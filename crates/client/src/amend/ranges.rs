//! Changing many places of an object at once, for an open file: in place by a layout that is known, without a word to the
//! metadata server; where that fails by the object's own layout, found anew, and what cannot be changed in place even so is
//! stored anew, all places of a segment at once.

use super::{ATTEMPTS_MAX, AmendError, in_place, session::Amendment, update::anew_of};
use crate::{Client, ObjectStat, source::Originals};
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use std::{collections::BTreeSet, time::Instant};
use steadfast_protocol::{
    layout::SegmentLayout,
    plan::{self, Wish},
};

/// New bytes by where in the object they belong: in order, none empty, none overlapping another.
pub(crate) type Ranges = [(u64, Bytes)];

/// What became of a change of many places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    /// Bytes changed where they lie.
    pub(crate) in_place_bytes: u64,
    /// Segments that were stored anew.
    pub(crate) segments_anew: u64,
    /// The object as it was found in the end, where that was not by the layout known before.
    pub(crate) now: Option<ObjectStat>,
}

/// What of a change falls into one segment.
struct Part {
    /// Which segment.
    position: usize,
    /// Where in the object it begins.
    at: u64,
    /// Bytes of it.
    ranges: Vec<Range<u64>>,
}

impl Part {
    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// A segment's layout, and where its devices' servers listen.
type Known = (SegmentLayout, Vec<Option<String>>);

impl Client {
    /// Changes bytes of an object of which `known` is what was last seen.
    ///
    /// # Errors
    /// What is stored is in part as it was, and in part as it was to be.
    pub(crate) async fn change_ranges(
        &self,
        (bucket, key): (&str, &str),
        known: &ObjectStat,
        ranges: &Ranges,
        one_at_a_time: &tokio::sync::Mutex<()>,
    ) -> Result<Changed, AmendError> {
        let mut changed = Changed::default();
        let (mut left, mut tried) = (false, Vec::new());
        for part in parts(known, ranges)? {
            let layout = &known.segments[part.position];
            match self.part_in_place(known, &part, ranges).await? {
                Some(sent) => changed.in_place_bytes += sent,
                None => {
                    tried.push(self.known(layout));
                    left = true;
                }
            }
        }
        if !left {
            return Ok(changed);
        }
        // Each is a new version of the object: two at a time would have one of them made again.
        let _alone = one_at_a_time.lock().await;
        self.change_found((bucket, key), ranges, &tried, changed).await
    }

    /// Changes bytes of an object as it is found now; not in place what was `tried` so.
    async fn change_found(
        &self,
        (bucket, key): (&str, &str),
        ranges: &Ranges,
        tried: &[Known],
        mut changed: Changed,
    ) -> Result<Changed, AmendError> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.to_amend(bucket, key).await?;
            let base = found.object.version;
            let attempt = self.attempt((bucket, key), found, ranges, tried, &mut changed).await;
            match self.unless_overtaken((bucket, key), base, attempt).await {
                None => {}
                Some(Ok(Some(now))) => return Ok(Changed { now: Some(now), ..changed }),
                Some(Ok(None)) => {
                    let now = self.locate(bucket, key).await?;
                    return Ok(Changed { now: Some(now), ..changed });
                }
                Some(Err(error)) => return Err(error),
            }
        }
        Err(AmendError::Contended { attempts: ATTEMPTS_MAX })
    }

    /// Makes the change once; the object as found where all of it could be made in place, none where it is another now.
    async fn attempt(
        &self,
        object: (&str, &str),
        found: ObjectStat,
        ranges: &Ranges,
        tried: &[Known],
        changed: &mut Changed,
    ) -> Result<Option<ObjectStat>, AmendError> {
        let start = Instant::now();
        let mut left = Vec::new();
        for part in parts(&found, ranges)? {
            let sent = match tried.contains(&self.known(&found.segments[part.position])) {
                true => None,
                false => self.part_in_place(&found, &part, ranges).await?,
            };
            match sent {
                Some(sent) => changed.in_place_bytes += sent,
                None => left.push(part),
            }
        }
        if left.is_empty() {
            return Ok(Some(found));
        }
        let bytes = left.iter().map(Part::bytes).sum();
        let (of, wish, segments) = ((left.len(), true), Wish::default(), left.len() as u64);
        let mut amendment = Amendment::begin(self, object, found, of, (wish, bytes)).await?;
        let kept = amendment.kept();
        let committing = async {
            amendment.take_policy()?;
            for part in left {
                let layout = amendment.layouts[part.position].clone();
                let _memory = self.memory.hold(layout.length);
                let originals = anew_of(&mut amendment, &layout, part.bytes() == layout.length).await?;
                let blocks = over(&layout, part.at, originals, ranges).into_iter().map(BytesMut::freeze);
                let originals = Originals::whole(blocks.collect(), layout.block_bytes, layout.code.originals);
                let stored =
                    amendment.store_anew(&layout, part.at, originals, &wish, &BTreeSet::new()).await?;
                amendment.layouts[part.position] = stored;
            }
            amendment.commit().await.map(Some)
        };
        let committed = kept.during(committing).await;
        amendment.end(start, committed).await?;
        changed.segments_anew += segments;
        Ok(None)
    }

    /// Changes one segment in place; the bytes sent, or none where that cannot be.
    async fn part_in_place(
        &self,
        found: &ObjectStat,
        part: &Part,
        ranges: &Ranges,
    ) -> Result<Option<u64>, AmendError> {
        let layout = &found.segments[part.position];
        let Some(changes) = plan::in_place(&found.policy, layout, &part.ranges) else { return Ok(None) };
        let read = |at: u64, length: usize| Ok(slice(ranges, at, length));
        in_place::change(self, layout, part.at, changes, read).await.map_err(AmendError::Source)
    }

    fn known(&self, layout: &SegmentLayout) -> Known {
        let addresses = layout.holders.iter().map(|holder| self.address_of(holder.device));
        (layout.clone(), addresses.collect())
    }
}

/// What of the ranges falls into which segment.
fn parts(found: &ObjectStat, ranges: &Ranges) -> Result<Vec<Part>, AmendError> {
    let size = found.object.size;
    if let Some((offset, bytes)) = ranges.last()
        && offset.checked_add(bytes.len() as u64).is_none_or(|end| end > size)
    {
        return Err(AmendError::Extends { offset: *offset, length: bytes.len() as u64, size });
    }
    let mut parts = Vec::new();
    let mut at = 0u64;
    for (position, layout) in found.segments.iter().enumerate() {
        let end = at + layout.length;
        let first = ranges.partition_point(|(offset, bytes)| offset + bytes.len() as u64 <= at);
        let within = ranges[first..].iter().take_while(|(offset, _)| *offset < end);
        let ranges: Vec<Range<u64>> = within
            .map(|(offset, bytes)| (*offset).max(at) - at..(offset + bytes.len() as u64).min(end) - at)
            .collect();
        if !ranges.is_empty() {
            parts.push(Part { position, at, ranges });
        }
        at = end;
    }
    Ok(parts)
}

/// `length` new bytes, those for byte `at` of the object on, which lie in one range.
fn slice(ranges: &Ranges, at: u64, length: usize) -> Bytes {
    let (offset, bytes) = &ranges[ranges.partition_point(|(offset, _)| *offset <= at) - 1];
    // Below the range's length, which fits memory.
    let from = (at - offset) as usize;
    bytes.slice(from..from + length)
}

/// The originals of a segment that begins at `at`, with the new bytes over them.
fn over(layout: &SegmentLayout, at: u64, mut originals: Vec<BytesMut>, ranges: &Ranges) -> Vec<BytesMut> {
    let block_bytes = u64::from(layout.block_bytes);
    for (offset, bytes) in ranges {
        let (mut from, end) = ((*offset).max(at), (offset + bytes.len() as u64).min(at + layout.length));
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
mod tests {
    use super::*;
    use steadfast_protocol::{
        Epoch, SegmentId, Time, Version,
        layout::{CodeKind, CodeSpec},
        message::ObjectRecord,
        policy::Policy,
    };

    const BLOCK: u64 = 4096;

    fn found(lengths: &[u64]) -> ObjectStat {
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
        let parts = parts(&found, &ranges).unwrap();
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
            let patched: Vec<u8> = over(layout, part.at, zeros, &ranges).concat();
            let (length, at) = (layout.length as usize, part.at as usize);
            assert!(patched[..length] == model[at..at + length], "segment {}", part.position);
            assert!(patched[length..].iter().all(|byte| *byte == 0), "nothing behind its end");
        }
    }

    #[test]
    fn what_ends_behind_the_object_is_refused() {
        let found = found(&[20_000]);
        for offset in [19_991, 20_000, u64::MAX] {
            let ranges = [(0, Bytes::from_static(b"begin")), (offset, Bytes::from_static(b"ten bytes."))];
            assert!(matches!(parts(&found, &ranges), Err(AmendError::Extends { .. })), "{offset}");
        }
        assert!(parts(&found, &[]).unwrap().is_empty());
    }
}
