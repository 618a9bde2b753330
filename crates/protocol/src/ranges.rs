//! Sets of block indices, kept as few ranges: writers hand indices out in runs, so a layout stays short.

use crate::BlockIndex;
use core::{fmt, ops::Range};
use serde::{Deserialize, Serialize};

/// A set of block indices as sorted, disjoint, non-adjacent half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(BlockIndex, BlockIndex)>", into = "Vec<(BlockIndex, BlockIndex)>")]
pub struct IndexRanges {
    ranges: Vec<Range<BlockIndex>>,
    /// How many indices all of them hold: readers ask for it at every block that arrives.
    count: u32,
}

/// The ranges received are not sorted, disjoint and non-empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block ranges out of order at {at}: a layout lists sorted, disjoint, non-empty ranges")]
pub struct RangesOutOfOrder {
    /// Start of the first offending range.
    pub at: BlockIndex,
}

impl IndexRanges {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of sorted, disjoint, non-adjacent ranges.
    fn of(ranges: Vec<Range<BlockIndex>>) -> Self {
        let count = ranges.iter().map(|range| range.end - range.start).sum();
        Self { ranges, count }
    }

    /// How many indices are in the set.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the set holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether `index` is in the set.
    #[inline]
    pub fn contains(&self, index: BlockIndex) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= index);
        after > 0 && index < self.ranges[after - 1].end
    }

    /// Adds one index; `false` if it was there, or is the largest number, which no block has and no range can end behind.
    pub fn insert(&mut self, index: BlockIndex) -> bool {
        if index == BlockIndex::MAX {
            return false;
        }
        let after = self.ranges.partition_point(|range| range.start <= index);
        if after > 0 && index < self.ranges[after - 1].end {
            return false;
        }
        self.count += 1;
        let joins_before = after > 0 && self.ranges[after - 1].end == index;
        let joins_after = after < self.ranges.len() && self.ranges[after].start == index + 1;
        match (joins_before, joins_after) {
            (true, true) => {
                self.ranges[after - 1].end = self.ranges[after].end;
                self.ranges.remove(after);
            }
            (true, false) => self.ranges[after - 1].end = index + 1,
            (false, true) => self.ranges[after].start = index,
            (false, false) => self.ranges.insert(after, index..index + 1),
        }
        true
    }

    /// Adds every index of `range`.
    pub fn insert_range(&mut self, range: Range<BlockIndex>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|held| held.end < range.start);
        let last = self.ranges.partition_point(|held| held.start <= range.end);
        let mut merged = range;
        if first < last {
            merged.start = merged.start.min(self.ranges[first].start);
            merged.end = merged.end.max(self.ranges[last - 1].end);
        }
        let before: u32 = self.ranges[first..last].iter().map(|held| held.end - held.start).sum();
        self.count += merged.end - merged.start - before;
        self.ranges.splice(first..last, [merged]);
    }

    /// Adds every index of `other`.
    pub fn insert_all(&mut self, other: &IndexRanges) {
        other.ranges.iter().for_each(|range| self.insert_range(range.clone()));
    }

    /// The indices that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &IndexRanges) -> Self {
        let (mut both, mut ours, mut theirs) = (Vec::new(), 0, 0);
        while let (Some(a), Some(b)) = (self.ranges.get(ours), other.ranges.get(theirs)) {
            let common = a.start.max(b.start)..a.end.min(b.end);
            if !common.is_empty() {
                both.push(common);
            }
            if a.end <= b.end {
                ours += 1;
            } else {
                theirs += 1;
            }
        }
        // Ranges of one set do not touch, so those of the intersection do not either.
        Self::of(both)
    }

    /// The indices that are in this set and not in `other`.
    #[must_use]
    pub fn difference(&self, other: &IndexRanges) -> Self {
        let (mut rest, mut theirs) = (Vec::new(), 0);
        for range in &self.ranges {
            let mut start = range.start;
            while let Some(b) = other.ranges.get(theirs).filter(|b| b.start < range.end) {
                if start < b.start {
                    rest.push(start..b.start);
                }
                start = start.max(b.end);
                if b.end > range.end {
                    break;
                }
                theirs += 1;
            }
            if start < range.end {
                rest.push(start..range.end);
            }
        }
        Self::of(rest)
    }

    /// Whether every index is in `other` too.
    pub fn is_subset_of(&self, other: &IndexRanges) -> bool {
        self.ranges.iter().all(|range| {
            let after = other.ranges.partition_point(|held| held.start <= range.start);
            after > 0 && range.end <= other.ranges[after - 1].end
        })
    }

    /// Takes one index out; `false` if it was not there.
    pub fn remove(&mut self, index: BlockIndex) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= index);
        if after == 0 || index >= self.ranges[after - 1].end {
            return false;
        }
        self.count -= 1;
        let held = self.ranges[after - 1].clone();
        let rest = [held.start..index, index + 1..held.end];
        self.ranges.splice(after - 1..after, rest.into_iter().filter(|part| !part.is_empty()));
        true
    }

    /// The ranges in ascending order.
    pub fn ranges(&self) -> &[Range<BlockIndex>] {
        &self.ranges
    }

    /// Every index in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = BlockIndex> + '_ {
        self.ranges.iter().flat_map(Clone::clone)
    }
}

impl FromIterator<BlockIndex> for IndexRanges {
    fn from_iter<I: IntoIterator<Item = BlockIndex>>(indices: I) -> Self {
        let mut set = Self::new();
        for index in indices {
            set.insert(index);
        }
        set
    }
}

impl From<Range<BlockIndex>> for IndexRanges {
    fn from(range: Range<BlockIndex>) -> Self {
        let mut set = Self::new();
        set.insert_range(range);
        set
    }
}

impl From<IndexRanges> for Vec<(BlockIndex, BlockIndex)> {
    fn from(set: IndexRanges) -> Self {
        set.ranges.into_iter().map(|range| (range.start, range.end)).collect()
    }
}

impl TryFrom<Vec<(BlockIndex, BlockIndex)>> for IndexRanges {
    type Error = RangesOutOfOrder;
    fn try_from(pairs: Vec<(BlockIndex, BlockIndex)>) -> Result<Self, RangesOutOfOrder> {
        let mut free_from = 0;
        for (position, &(start, end)) in pairs.iter().enumerate() {
            if start >= end || (position > 0 && start <= free_from) {
                return Err(RangesOutOfOrder { at: start });
            }
            free_from = end;
        }
        Ok(Self::of(pairs.into_iter().map(|(start, end)| start..end).collect()))
    }
}

impl fmt::Display for IndexRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, range) in self.ranges.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            write!(f, "{comma}{}-{}", range.start, range.end - 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::IndexRanges;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_plain_set(steps in prop::collection::vec((0u8..3, 0u32..60, 0u32..8), 0..80)) {
            let mut ranges = IndexRanges::new();
            let mut plain = BTreeSet::new();
            for (what, at, length) in steps {
                match what {
                    0 => prop_assert_eq!(ranges.insert(at), plain.insert(at)),
                    1 => prop_assert_eq!(ranges.remove(at), plain.remove(&at)),
                    _ => {
                        ranges.insert_range(at..at + length);
                        plain.extend(at..at + length);
                    }
                }
                prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), plain.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.count() as usize, plain.len());
                let pairs: Vec<(u32, u32)> = ranges.clone().into();
                prop_assert_eq!(&IndexRanges::try_from(pairs).unwrap(), &ranges);
            }
        }
    }

    #[test]
    fn the_largest_number_is_no_index() {
        let mut ranges = IndexRanges::from(u32::MAX - 2..u32::MAX);
        assert!(!ranges.insert(u32::MAX) && !ranges.contains(u32::MAX) && ranges.count() == 2);
    }

    fn sets() -> impl Strategy<Value = BTreeSet<u32>> {
        prop::collection::btree_set(0u32..40, 0..40)
    }

    proptest! {
        #[test]
        fn two_sets_meet_like_plain_ones(a in sets(), b in sets()) {
            let ranges = |set: &BTreeSet<u32>| set.iter().copied().collect::<IndexRanges>();
            let (left, right) = (ranges(&a), ranges(&b));
            prop_assert_eq!(left.intersection(&right), ranges(&(&a & &b)));
            prop_assert_eq!(left.difference(&right), ranges(&(&a - &b)));
            prop_assert_eq!(left.is_subset_of(&right), a.is_subset(&b));
            let mut all = left.clone();
            all.insert_all(&right);
            prop_assert_eq!(all, ranges(&(&a | &b)));
        }
    }

    #[test]
    fn refuses_ranges_that_no_writer_makes() {
        for pairs in
            [vec![(3, 3)], vec![(5, 4)], vec![(0, 4), (2, 6)], vec![(0, 4), (4, 6)], vec![(8, 9), (1, 2)]]
        {
            assert!(IndexRanges::try_from(pairs).is_err());
        }
    }
}
