//! What was read through a handle, or stored by it, and is read again from memory: a cache of what was used least recently goes first (PLR
//! §5.3), by extents of 1 MiB of the object.
//!
//! Others may change what is kept here, and nobody tells. So it is kept for a bounded time from when it was asked for, and forgotten where the
//! object is found to be another. What the handle stores itself replaces it. Long reads and large lots that are stored are not kept: they
//! would take the place of what is read again, and to copy them costs more than it may save.
//!
//! Invariants: what was stored through the handle is not hidden by what it read before: bytes that were fetched are taken only where nothing
//! was stored, cut or forgotten since that began ([`Clean::mark`]); what is kept costs no more than the bound.

use super::runs::{Over, Runs};
use bytes::Bytes;
use core::{ops::Range, time::Duration};
use std::collections::BTreeMap;

/// Bytes that go together: where they lie, and what they cost at most.
const EXTENT_BYTES: u64 = 1 << 20;
/// The longest piece that is kept. Picked by eye: what is asked for by granules and not by blocks.
const PIECE_BYTES_MAX: u64 = 256 << 10;

/// What the handle had stored when a fetch began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Fetched,
    /// By the handle itself.
    Stored,
}

/// Clean bytes by extents, the least recently used first to go.
#[derive(Debug)]
pub(super) struct Clean {
    bound: u64,
    fresh_for: Duration,
    cost: u64,
    changes: u64,
    uses: u64,
    extents: BTreeMap<u64, Extent>,
    /// Extents by when they were last used.
    by_use: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Extent {
    runs: Runs,
    /// When the oldest of them was asked for, and the newest.
    since: Duration,
    newest: Duration,
    used: u64,
}

impl Clean {
    /// Keeps at most `bound` bytes, each for so long.
    pub(super) fn new(bound: u64, fresh_for: Duration) -> Self {
        let (cost, changes, uses, extents, by_use) = Default::default();
        let bound = if fresh_for.is_zero() { 0 } else { bound };
        Self { bound, fresh_for, cost, changes, uses, extents, by_use }
    }

    /// To be taken before bytes are fetched.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.changes)
    }

    /// What of `range` is here and not too old. That is a use of it.
    pub(super) fn seen(&mut self, now: Duration, range: &Range<u64>) -> Runs {
        let mut seen = Runs::default();
        for number in self.held(range) {
            if self.is_old(now, number) {
                self.let_go(number);
                continue;
            }
            let extent = &self.extents[&number];
            let before = seen.cost();
            for (offset, bytes) in extent.runs.within(range) {
                seen.write(offset, bytes, Over::Replace);
            }
            if seen.cost() > before {
                self.touch(number);
            }
        }
        seen
    }

    /// Takes bytes that were fetched from `offset` on, by a fetch that began at that time.
    pub(super) fn fetched<'b>(
        &mut self,
        (began, mark): (Duration, Mark),
        mut offset: u64,
        pieces: impl Iterator<Item = &'b Bytes> + Clone,
    ) {
        let length: u64 = pieces.clone().map(|piece| piece.len() as u64).sum();
        if mark != self.mark() || length > PIECE_BYTES_MAX {
            return;
        }
        for piece in pieces {
            self.put(began, offset, piece, Put::Fetched);
            offset += piece.len() as u64;
        }
    }

    /// Ranges were stored through the handle, over what is here; that began at this time.
    pub(super) fn stored(&mut self, began: Duration, ranges: &[(u64, Bytes)]) {
        self.changes += 1;
        let large = ranges.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() > PIECE_BYTES_MAX;
        for (offset, bytes) in ranges {
            match large {
                true => {
                    for number in self.held(&(*offset..offset + bytes.len() as u64)) {
                        self.let_go(number);
                    }
                }
                false => self.put(began, *offset, bytes, Put::Stored),
            }
        }
    }

    /// What was from byte `end` on is gone.
    pub(super) fn cut(&mut self, end: u64) {
        self.changes += 1;
        for number in self.held(&(end..u64::MAX)) {
            let extent = self.extents.get_mut(&number).expect("it is held");
            let before = extent.runs.cost();
            extent.runs.cut(end);
            self.cost = self.cost - before + extent.runs.cost();
            if extent.runs.is_empty() {
                self.let_go(number);
            }
        }
    }

    /// The object is another, or lies elsewhere.
    pub(super) fn forget(&mut self) {
        self.changes += 1;
        (self.cost, self.extents, self.by_use) = Default::default();
    }

    fn put(&mut self, began: Duration, offset: u64, bytes: &[u8], put: Put) {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end && self.bound > 0 {
            let number = at / EXTENT_BYTES;
            let to = end.min((number + 1) * EXTENT_BYTES);
            if self.is_old(began, number) {
                self.let_go(number);
            }
            let new = || Extent { runs: Runs::default(), since: began, newest: began, used: 0 };
            let extent = self.extents.entry(number).or_insert_with(new);
            // A fetch that began before another one and ended after it.
            let is_older = put == Put::Fetched && began < extent.newest;
            let over = if is_older { Over::Keep } else { Over::Replace };
            (extent.since, extent.newest) = (extent.since.min(began), extent.newest.max(began));
            let before = extent.runs.cost();
            // Both lie within the bytes given.
            let part = &bytes[(at - offset) as usize..(to - offset) as usize];
            extent.runs.write(at, part, over);
            self.cost = self.cost - before + extent.runs.cost();
            self.touch(number);
            at = to;
        }
        while let Some((_, &oldest)) = self.by_use.first_key_value()
            && (self.cost > self.bound || self.is_old(began, oldest))
        {
            self.let_go(oldest);
        }
    }

    fn is_old(&self, now: Duration, number: u64) -> bool {
        let held = self.extents.get(&number);
        held.is_some_and(|held| now.saturating_sub(held.since) >= self.fresh_for)
    }

    /// Extents with bytes that reach into a range.
    fn held(&self, range: &Range<u64>) -> Vec<u64> {
        let (first, last) = (range.start / EXTENT_BYTES, range.end.div_ceil(EXTENT_BYTES));
        self.extents.range(first..last.max(first)).map(|(number, _)| *number).collect()
    }

    fn touch(&mut self, number: u64) {
        self.uses += 1;
        let extent = self.extents.get_mut(&number).expect("only what is held is touched");
        self.by_use.remove(&extent.used);
        extent.used = self.uses;
        self.by_use.insert(self.uses, number);
    }

    fn let_go(&mut self, number: u64) {
        if let Some(extent) = self.extents.remove(&number) {
            self.by_use.remove(&extent.used);
            self.cost -= extent.runs.cost();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::runs::RUN_BYTES;

    const FRESH_FOR: Duration = Duration::from_secs(1);
    const BEGAN: Duration = Duration::from_secs(10);
    const MIB: u64 = EXTENT_BYTES;

    fn fetch(clean: &mut Clean, offset: u64, bytes: &[u8]) {
        let mark = clean.mark();
        clean.fetched((BEGAN, mark), offset, [Bytes::copy_from_slice(bytes)].iter());
    }

    fn seen(clean: &mut Clean, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let cost: u64 = clean.extents.values().map(|extent| extent.runs.cost()).sum();
        assert_eq!((clean.cost, clean.by_use.len()), (cost, clean.extents.len()));
        assert!(cost <= clean.bound);
        clean.seen(BEGAN, &range).take().into_iter().map(|(at, bytes)| (at, bytes.to_vec())).collect()
    }

    #[test]
    fn what_was_read_is_seen_again_for_a_while() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        fetch(&mut clean, MIB - 2, &[1, 2, 3, 4]);
        assert_eq!(seen(&mut clean, 0..9 * MIB), [(MIB - 2, vec![1, 2, 3, 4])], "across extents");
        assert_eq!(seen(&mut clean, MIB - 1..MIB + 1), [(MIB - 1, vec![2, 3])]);
        // What is beside older bytes is as old.
        let mark = clean.mark();
        let later = BEGAN + FRESH_FOR / 2;
        clean.fetched((later, mark), MIB + 10, [Bytes::from_static(&[5])].iter());
        let almost = BEGAN + FRESH_FOR - Duration::from_nanos(1);
        assert!(!clean.seen(almost, &(MIB..MIB + 20)).is_empty());
        assert!(clean.seen(BEGAN + FRESH_FOR, &(MIB..MIB + 20)).is_empty());
        assert_eq!(
            seen(&mut clean, 0..9 * MIB),
            [(MIB - 2, vec![1, 2])],
            "what was not looked at is here yet"
        );
        // Fetched anew it is new, whatever was beside it; what nobody looks at goes with time.
        fetch(&mut clean, 3 * MIB, &[1]);

        let mark = clean.mark();
        clean.fetched((BEGAN + FRESH_FOR, mark), 5, [Bytes::from_static(&[6])].iter());
        let now = clean.seen(BEGAN + FRESH_FOR * 3 / 2, &(0..MIB)).take();
        assert_eq!(now, [(5, Bytes::from_static(&[6]))]);
        assert_eq!(clean.extents.len(), 1);
        // A fetch that took longer than another one knows less.
        let mark = clean.mark();
        clean.fetched((BEGAN + FRESH_FOR / 2, mark), 4, [Bytes::from_static(&[7; 3])].iter());
        let now = clean.seen(BEGAN + FRESH_FOR, &(0..MIB)).take();
        assert_eq!(now, [(4, Bytes::from_static(&[7, 6, 7]))]);
        let mut off = Clean::new(1 << 20, Duration::ZERO);
        fetch(&mut off, 0, &[1]);
        assert!(seen(&mut off, 0..1).is_empty());
    }

    #[test]
    fn beyond_the_bound_the_least_recently_used_extent_goes_first() {
        let mut clean = Clean::new(3 * (100 + RUN_BYTES), FRESH_FOR);
        for extent in [7, 3, 5] {
            fetch(&mut clean, extent * MIB, &[1; 100]);
        }
        assert_eq!(seen(&mut clean, 7 * MIB..7 * MIB + 1).len(), 1, "a use");
        fetch(&mut clean, 4 * MIB, &[1; 100]);
        assert_eq!(
            [3, 4, 5, 7].map(|extent| seen(&mut clean, extent * MIB..(extent + 1) * MIB).len()),
            [0, 1, 1, 1]
        );
        fetch(&mut clean, 9 * MIB, &[1; 1000]);
        assert!(seen(&mut clean, 0..10 * MIB).is_empty(), "it alone is more");
    }

    #[test]
    fn what_was_stored_is_not_hidden_by_what_was_read_before() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        fetch(&mut clean, 0, &[1; 10]);
        let before = clean.mark();
        clean.stored(BEGAN, &[(2, Bytes::from_static(&[2; 3])), (20, Bytes::from_static(&[2]))]);
        clean.fetched((BEGAN, before), 0, [Bytes::from_static(&[1; 30])].iter());
        let expected = [[1; 2].as_slice(), &[2; 3], &[1; 5]].concat();
        assert_eq!(seen(&mut clean, 0..30), [(0, expected), (20, vec![2])]);
        // A long run is not kept, nor what it lies over.
        let before = clean.mark();
        clean.stored(BEGAN, &[(5, Bytes::from(vec![3; PIECE_BYTES_MAX as usize + 1]))]);
        assert_ne!(clean.mark(), before);
        assert!(seen(&mut clean, 0..MIB).is_empty());
        fetch(&mut clean, 0, &vec![1; PIECE_BYTES_MAX as usize + 1]);
        assert!(seen(&mut clean, 0..MIB).is_empty(), "nor a long read");
    }

    #[test]
    fn what_is_cut_or_of_another_object_is_gone() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        for extent in 0..3 {
            fetch(&mut clean, extent * MIB, &[1; 10]);
        }
        let before = clean.mark();
        clean.cut(MIB + 4);
        assert_eq!(seen(&mut clean, 0..3 * MIB), [(0, vec![1; 10]), (MIB, vec![1; 4])]);
        clean.cut(MIB);
        assert_eq!(seen(&mut clean, 0..3 * MIB), [(0, vec![1; 10])]);
        clean.fetched((BEGAN, before), MIB, [Bytes::from_static(&[1])].iter());
        assert_eq!(seen(&mut clean, MIB..2 * MIB), []);
        let before = clean.mark();
        clean.forget();
        clean.fetched((BEGAN, before), 0, [Bytes::from_static(&[1])].iter());
        assert!(seen(&mut clean, 0..3 * MIB).is_empty());
    }
}
