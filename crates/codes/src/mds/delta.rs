//! What a small write changes in a parity chunk, as bytes to XOR into it.
//!
//! A delta is a list of ranges of the parity chunk and the bytes for them, one range after the other. Deltas of one
//! parity chunk add: applying two in any order, or their [`fold`] once, is the same. Applying one twice is
//! corruption; keeping track of which were applied is the caller's.

use std::ops::Range;

use super::MdsError;
use crate::kernel::xor;

/// Ascending, disjoint, non-empty ranges of a parity chunk that a delta changes.
#[derive(Clone)]
pub struct DeltaRanges(Ranges);

impl std::fmt::Debug for DeltaRanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DeltaRanges").field(&self.as_slice()).finish()
    }
}

impl PartialEq for DeltaRanges {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for DeltaRanges {}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a small write allocates nothing")]
enum Ranges {
    /// What Reed-Solomon and a sum of rows need.
    One(Range<usize>),
    /// The first so many, without an allocation: what a small write makes of a code with packets of one line.
    Few([Range<usize>; FEW], usize),
    Many(Vec<Range<usize>>),
}

/// Ranges kept without an allocation. A write of whole blocks makes one, and each end of one within a block up to half as
/// many as a block has packets.
const FEW: usize = 17;
const NONE: Range<usize> = 0..0;

/// Collects ranges in any order; such as overlap or touch become one.
pub(super) struct Union {
    few: [Range<usize>; FEW],
    count: usize,
    /// All of them, in any order, once they are too many.
    many: Vec<Range<usize>>,
}

impl Default for Union {
    fn default() -> Self {
        Self { few: [NONE; FEW], count: 0, many: Vec::new() }
    }
}

impl Union {
    pub(super) fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        if !self.many.is_empty() {
            return self.many.push(range);
        }
        let few = &self.few[..self.count];
        let from = few.partition_point(|other| other.end < range.start);
        let to = few.partition_point(|other| other.start <= range.end);
        if from == to && self.count == FEW {
            self.many.extend(self.few.iter().cloned());
            self.many.push(range);
        } else if from == to {
            self.few[from..=self.count].rotate_right(1);
            self.few[from] = range;
            self.count += 1;
        } else {
            let merged = self.few[from].start.min(range.start)..self.few[to - 1].end.max(range.end);
            self.few[from] = merged;
            self.few[from + 1..self.count].rotate_left(to - from - 1);
            self.count -= to - from - 1;
        }
    }

    pub(super) fn into_ranges(self) -> DeltaRanges {
        if self.many.is_empty() {
            DeltaRanges(Ranges::Few(self.few, self.count))
        } else {
            DeltaRanges::merged(self.many)
        }
    }
}

impl DeltaRanges {
    /// One range, or none where it is empty.
    pub(super) fn one(range: Range<usize>) -> Self {
        Self(if range.is_empty() { Ranges::Many(Vec::new()) } else { Ranges::One(range) })
    }

    /// Ranges that came from elsewhere.
    ///
    /// # Errors
    /// A range that is empty or reversed, starts before the end of the one before it, or ends after `chunk_len`.
    pub fn new(ranges: Vec<Range<usize>>, chunk_len: usize) -> Result<Self, MdsError> {
        let mut reached = 0;
        for range in &ranges {
            if range.is_empty() || range.end > chunk_len {
                return Err(MdsError::Range { start: range.start, end: range.end, length: chunk_len });
            }
            if range.start < reached {
                return Err(MdsError::Overlap { at: range.start });
            }
            reached = range.end;
        }
        Ok(Self(Ranges::Many(ranges)))
    }

    /// The union of ranges in any order; such as overlap or touch become one.
    pub(super) fn merged(mut ranges: Vec<Range<usize>>) -> Self {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self(Ranges::Many(merged))
    }

    /// Where in the delta's bytes a byte of the parity chunk is.
    pub(super) fn offset_of(&self, byte: usize) -> Option<usize> {
        let ranges = self.as_slice();
        let at = ranges.iter().position(|range| range.contains(&byte))?;
        Some(ranges[..at].iter().map(ExactSizeIterator::len).sum::<usize>() + byte - ranges[at].start)
    }

    /// The ranges, ascending.
    pub fn as_slice(&self) -> &[Range<usize>] {
        match &self.0 {
            Ranges::One(range) => std::slice::from_ref(range),
            Ranges::Few(ranges, count) => &ranges[..*count],
            Ranges::Many(ranges) => ranges,
        }
    }

    /// Bytes in all ranges: the length of the delta.
    pub fn total(&self) -> usize {
        self.as_slice().iter().map(ExactSizeIterator::len).sum()
    }
}

/// XORs a delta into its parity chunk.
///
/// # Errors
/// `delta` not as long as its ranges, or a range that leaves the chunk; the chunk is unchanged then.
pub fn apply(ranges: &DeltaRanges, delta: &[u8], parity: &mut [u8]) -> Result<(), MdsError> {
    if delta.len() != ranges.total() {
        return Err(MdsError::Length { given: delta.len(), expected: ranges.total() });
    }
    if let Some(last) = ranges.as_slice().last().filter(|last| last.end > parity.len()) {
        return Err(MdsError::Range { start: last.start, end: last.end, length: parity.len() });
    }
    let mut rest = delta;
    for range in ranges.as_slice() {
        let (bytes, after) = rest.split_at(range.len());
        xor::xor(&mut parity[range.clone()], bytes);
        rest = after;
    }
    Ok(())
}

/// One delta that does what all of these together do to the same parity chunk, over ranges that touch no more.
///
/// # Errors
/// A delta not as long as its ranges.
pub fn fold(deltas: &[(&DeltaRanges, &[u8])]) -> Result<(DeltaRanges, Vec<u8>), MdsError> {
    let mut bytes = Vec::new();
    Ok((fold_into(deltas, &mut bytes)?, bytes))
}

/// [`fold`] into a buffer of the caller's, whatever it held before. Allocates nothing where that has room for the bytes
/// and there are no more than 17 ranges.
///
/// # Errors
/// A delta not as long as its ranges; the buffer is unchanged then.
pub fn fold_into(deltas: &[(&DeltaRanges, &[u8])], bytes: &mut Vec<u8>) -> Result<DeltaRanges, MdsError> {
    let mut union = Union::default();
    for (ranges, delta) in deltas {
        if delta.len() != ranges.total() {
            return Err(MdsError::Length { given: delta.len(), expected: ranges.total() });
        }
        ranges.as_slice().iter().cloned().for_each(|range| union.add(range));
    }
    let merged = union.into_ranges();
    bytes.clear();
    bytes.resize(merged.total(), 0);
    for (ranges, delta) in deltas {
        let mut rest = *delta;
        // Both ascend: each of the merged ranges is passed once.
        let (mut within, mut before) = (merged.as_slice(), 0);
        for range in ranges.as_slice() {
            let (part, after) = rest.split_at(range.len());
            while within[0].end < range.end {
                before += within[0].len();
                within = &within[1..];
            }
            let start = before + range.start - within[0].start;
            xor::xor(&mut bytes[start..start + part.len()], part);
            rest = after;
        }
    }
    Ok(merged)
}
