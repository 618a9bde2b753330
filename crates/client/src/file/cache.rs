//! What was written through a handle and is not stored yet, by segment: dirty ranges, and those that are being stored.
//!
//! ```text
//!   write ─▶ dirty ─ take_off ─▶ flying ─ landed ─▶ gone
//!              ▲                    │ failed
//!              └────────────────────┘ below what was written meanwhile
//! ```
//!
//! Invariants: the newest byte written to a place is dirty, flying or stored; of one segment no more than one lot flies at a
//! time; what is held costs no more than the bound, unless a single write alone does.

use super::runs::{Over, RUN_BYTES, Runs};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// A moment of a handle: each write is one later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

impl Moment {
    /// After all writes.
    pub(super) const LAST: Self = Self(u64::MAX);
}

/// When there is room for pieces that are to be taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// When this segment is stored, or others too.
    After(usize),
    /// They are more than is ever kept.
    Never,
}

/// Dirty ranges of segments, the least recently used first to go.
#[derive(Debug)]
pub(super) struct Cache {
    bound: u64,
    cost: u64,
    /// Of that, what flies.
    flying_cost: u64,
    now: Moment,
    segments: BTreeMap<usize, Segment>,
    /// Segments by when they were last used.
    by_use: BTreeMap<Moment, usize>,
}

#[derive(Debug, Default)]
struct Segment {
    dirty: Runs,
    /// When the first of them was written.
    dirty_since: Moment,
    /// In order, none overlapping another.
    flying: Vec<(u64, Bytes)>,
    /// What those cost. Each write and read asks, and there may be very many of them.
    flying_cost: u64,
    flying_since: Moment,
    used: Moment,
}

impl Segment {
    fn cost(&self) -> u64 {
        self.dirty.cost() + self.flying_cost
    }

    /// What of `range` flies, in order.
    fn flying_within(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let (from, to) = (range.start, range.end);
        let first = self.flying.partition_point(|(offset, bytes)| offset + bytes.len() as u64 <= from);
        let touched = self.flying[first..].iter().take_while(move |(offset, _)| *offset < to);
        touched.map(move |(offset, bytes)| {
            let (begin, end) = (from.max(*offset), to.min(offset + bytes.len() as u64));
            // Both lie within the bytes that fly.
            (begin, &bytes[(begin - offset) as usize..(end - offset) as usize])
        })
    }

    fn flying_end(&self) -> u64 {
        self.flying.last().map_or(0, |(offset, bytes)| offset + bytes.len() as u64)
    }

    fn end(&self) -> u64 {
        self.dirty.end().max(self.flying_end())
    }
}

impl Cache {
    /// A cache of at most `bound` bytes.
    pub(super) fn new(bound: u64) -> Self {
        let (cost, flying_cost, now, segments, by_use) = Default::default();
        Self { bound, cost, flying_cost, now, segments, by_use }
    }

    /// The last write's moment.
    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// Takes bytes, which all lie in one segment, where there is room for them; else the segment to be stored first.
    pub(super) fn write(&mut self, segment: usize, offset: u64, new: &[u8]) -> Result<(), usize> {
        let range = offset..offset + new.len() as u64;
        let growth = match self.segments.get(&segment) {
            Some(held) => held.dirty.growth(&range),
            None => Runs::default().growth(&range),
        };
        if self.cost + growth > self.bound
            && let Some(&oldest) = self.by_use.values().next()
        {
            return Err(oldest);
        }
        self.now.0 += 1;
        let now = self.now;
        let held = self.segments.entry(segment).or_default();
        let before = held.cost();
        if held.dirty.is_empty() {
            held.dirty_since = now;
        }
        held.dirty.write(offset, new, Over::Replace);
        self.cost = self.cost - before + held.cost();
        self.touch(segment);
        Ok(())
    }

    /// Takes pieces of different segments, all of them where there is room, none where a segment is to be stored first. More
    /// than the bound is never taken so.
    pub(super) fn write_all(&mut self, pieces: &[(usize, u64, &[u8])]) -> Result<(), Room> {
        let cost = |(_, _, new): &(usize, u64, &[u8])| new.len() as u64 + RUN_BYTES;
        let growth: u64 = pieces.iter().map(cost).sum();
        if growth > self.bound {
            return Err(Room::Never);
        }
        if self.cost + growth > self.bound
            && let Some(&oldest) = self.by_use.values().next()
        {
            return Err(Room::After(oldest));
        }
        for &(segment, offset, new) in pieces {
            self.write(segment, offset, new).expect("there is room for all of them");
        }
        Ok(())
    }

    /// Whether all that was written is stored.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether anything is being stored.
    pub(super) fn is_flying(&self) -> bool {
        self.flying_cost > 0
    }

    /// Whether more than half of what may be held is dirty, and nobody stores it yet.
    pub(super) fn is_half_dirty(&self) -> bool {
        self.cost - self.flying_cost > self.bound / 2
    }

    /// Of the segments of which something is dirty and nothing flies the least recently used one, but for the last that was used at all, and
    /// `others`.
    pub(super) fn oldest_dirty(&self, others: &BTreeSet<usize>) -> Option<usize> {
        let mut by_use = self.by_use.values().copied();
        by_use.next_back();
        by_use.find(|segment| {
            let held = &self.segments[segment];
            held.flying.is_empty() && !held.dirty.is_empty() && !others.contains(segment)
        })
    }

    /// Behind the last byte that is not stored; 0 where all are.
    pub(super) fn end(&self) -> u64 {
        self.segments.last_key_value().map_or(0, |(_, held)| held.end())
    }

    /// Behind the last byte of a segment that is not stored.
    pub(super) fn end_of(&self, segment: usize) -> u64 {
        self.segments.get(&segment).map_or(0, Segment::end)
    }

    /// Forgets what was written from byte `end` on.
    ///
    /// # Panics
    /// When some of it flies.
    pub(super) fn cut(&mut self, end: u64) {
        self.segments.retain(|_, held| {
            let before = held.cost();
            held.dirty.cut(end);
            assert!(held.flying_end() <= end, "what is cut off does not fly");
            self.cost = self.cost - before + held.cost();
            if held.cost() == 0 {
                self.by_use.remove(&held.used);
            }
            held.cost() > 0
        });
    }

    /// Segments that have something written up to a moment.
    pub(super) fn unstored(&self, upto: Moment) -> Vec<usize> {
        let old = |held: &Segment| {
            !held.flying.is_empty() && held.flying_since <= upto
                || !held.dirty.is_empty() && held.dirty_since <= upto
        };
        self.segments.iter().filter(|(_, held)| old(held)).map(|(segment, _)| *segment).collect()
    }

    /// What is dirty of a segment, to be stored now; none where all that was written up to that moment is stored.
    ///
    /// # Panics
    /// When some of the segment flies.
    pub(super) fn take_off(&mut self, segment: usize, upto: Moment) -> Option<Vec<(u64, Bytes)>> {
        let held = self.segments.get_mut(&segment)?;
        assert!(held.flying.is_empty(), "one lot of a segment at a time");
        if held.dirty.is_empty() || held.dirty_since > upto {
            return None;
        }
        let before = held.cost();
        held.flying = held.dirty.take();
        held.flying_cost = held.flying.iter().map(|(_, bytes)| bytes.len() as u64 + RUN_BYTES).sum();
        held.flying_since = held.dirty_since;
        self.flying_cost += held.flying_cost;
        self.cost = self.cost - before + held.cost();
        Some(held.flying.clone())
    }

    /// What flew of a segment is stored, which is given back, or is dirty again.
    pub(super) fn landed(&mut self, segment: usize, stored: bool) -> Vec<(u64, Bytes)> {
        let Some(held) = self.segments.get_mut(&segment) else { return Vec::new() };
        let before = held.cost();
        let mut flown = std::mem::take(&mut held.flying);
        self.flying_cost -= std::mem::take(&mut held.flying_cost);
        if !stored {
            for (offset, bytes) in flown.drain(..) {
                held.dirty.write(offset, &bytes, Over::Keep);
                held.dirty_since = held.flying_since;
            }
        }
        self.cost = self.cost - before + held.cost();
        if held.dirty.is_empty() {
            self.by_use.remove(&held.used);
            self.segments.remove(&segment);
        }
        flown
    }

    /// What of `range`, which lies in `segments`, was written and is not stored. That is a use of them.
    pub(super) fn seen(&mut self, segments: Range<usize>, range: &Range<u64>) -> Runs {
        let mut seen = Runs::default();
        let numbers: Vec<usize> = self.segments.range(segments).map(|(number, _)| *number).collect();
        for number in numbers {
            let (held, before) = (&self.segments[&number], seen.cost());
            for (offset, bytes) in held.flying_within(range).chain(held.dirty.within(range)) {
                seen.write(offset, bytes, Over::Replace);
            }
            if seen.cost() > before {
                self.now.0 += 1;
                self.touch(number);
            }
        }
        seen
    }

    fn touch(&mut self, segment: usize) {
        let held = self.segments.get_mut(&segment).expect("only what is held is touched");
        self.by_use.remove(&held.used);
        held.used = self.now;
        self.by_use.insert(self.now, segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirty(cache: &Cache) -> Vec<usize> {
        cache.unstored(cache.now())
    }

    /// Stores a segment as far as the cache knows.
    fn store(cache: &mut Cache, segment: usize) -> Vec<(u64, Bytes)> {
        let taken = cache.take_off(segment, cache.now()).unwrap();
        cache.landed(segment, true);
        taken
    }

    fn cost(cache: &Cache) -> u64 {
        let flying =
            |held: &Segment| held.flying.iter().map(|(_, bytes)| bytes.len() as u64 + RUN_BYTES).sum::<u64>();
        assert!(cache.segments.values().all(|held| held.flying_cost == flying(held)));
        assert_eq!(cache.flying_cost, cache.segments.values().map(flying).sum::<u64>());
        let cost = cache.segments.values().map(Segment::cost).sum();
        assert_eq!(cache.cost, cost);
        cost
    }

    #[test]
    fn beyond_the_bound_the_least_recently_used_segment_goes_first() {
        let room = 3 * (100 + RUN_BYTES);
        let mut cache = Cache::new(room);
        for segment in [7, 3, 5] {
            cache.write(segment, segment as u64 * 1000, &[1; 100]).unwrap();
        }
        assert_eq!(cost(&cache), room);
        assert_eq!(cache.write(4, 4000, &[1; 100]), Err(7), "the first that was written");
        cache.write(7, 7000, &[2; 36]).unwrap();
        assert_eq!(cache.write(4, 4000, &[1; 100]), Err(3), "7 was written again, which takes no room");
        store(&mut cache, 3);
        assert_eq!(cache.write(4, 4000, &[1; 200]), Err(5));
        assert_eq!(cache.seen(0..10, &(5050..5060)).within(&(0..9000)).count(), 1);
        assert_eq!(cache.write(4, 4000, &[1; 200]), Err(7), "5 was read");
        assert_eq!(store(&mut cache, 7), [(7000, [[2; 36].as_slice(), &[1; 64]].concat().into())]);
        cache.write(4, 4000, &[1; 200]).unwrap();
        assert_eq!(dirty(&cache), [4, 5]);
        assert!(cost(&cache) <= room);
    }

    #[test]
    fn a_write_larger_than_the_bound_is_taken_alone() {
        let mut cache = Cache::new(100);
        cache.write(0, 0, &[1; 10]).unwrap();
        assert_eq!(cache.write(1, 1000, &[1; 500]), Err(0));
        store(&mut cache, 0);
        cache.write(1, 1000, &[1; 500]).unwrap();
        assert_eq!(cache.write(2, 2000, &[1]), Err(1));
        store(&mut cache, 1);
        assert_eq!((cost(&cache), cache.by_use.len()), (0, 0));
    }

    #[test]
    fn pieces_are_taken_together_or_not_at_all() {
        let mut cache = Cache::new(1000 + 2 * RUN_BYTES);
        cache.write(3, 3000, &[1; 300]).unwrap();
        let before = cost(&cache);
        let (first, second) = ([2; 400], [3; 250]);
        let pieces = [(4, 4600, &first[..]), (5, 5000, &second[..])];
        assert_eq!(cache.write_all(&pieces), Err(Room::After(3)));
        assert_eq!((cost(&cache), cache.end(), dirty(&cache)), (before, 3300, vec![3]), "none of them");
        store(&mut cache, 3);
        assert_eq!(cache.write_all(&pieces), Ok(()));
        assert_eq!((cache.end(), dirty(&cache)), (5250, vec![4, 5]));
        let large = [4; 1001];
        let halves = large.split_at(500);
        assert_eq!(cache.write_all(&[(6, 6000, halves.0), (6, 6500, halves.1)]), Err(Room::Never));
        assert_eq!(cache.end(), 5250);
    }

    #[test]
    fn what_flies_is_seen_below_what_was_written_meanwhile_and_comes_back_where_it_was_not_stored() {
        let mut cache = Cache::new(10_000);
        cache.write(0, 0, &[1; 100]).unwrap();
        let taken = cache.take_off(0, cache.now()).unwrap();
        assert_eq!(taken, [(0, Bytes::from(vec![1; 100]))]);
        cache.write(0, 50, &[2; 100]).unwrap();
        let expected: Vec<u8> = [[1; 50].as_slice(), &[2; 100]].concat();
        let seen = |cache: &mut Cache| cache.seen(0..1, &(0..200)).take();
        assert_eq!(seen(&mut cache), [(0, expected.clone().into())]);
        cache.landed(0, false);
        assert_eq!(seen(&mut cache), [(0, expected.clone().into())]);
        assert_eq!(store(&mut cache, 0), [(0, expected.into())]);
        assert!(dirty(&cache).is_empty());
        assert_eq!(cost(&cache), 0);
    }

    /// With steps for each of what flies it would take minutes.
    #[test]
    fn what_flies_costs_writes_and_reads_nothing_however_much_it_is() {
        const RUNS: u64 = 100_000;
        let mut cache = Cache::new(RUNS * 4 * (1 + RUN_BYTES));
        let write = |cache: &mut Cache, at: u64| cache.write(0, at, &[1]).unwrap();
        (0..RUNS).for_each(|run| write(&mut cache, 2 * run));
        assert_eq!(cache.take_off(0, Moment::LAST).unwrap().len() as u64, RUNS);
        for run in 0..RUNS {
            write(&mut cache, 2 * (RUNS + run));
            let at = 2 * (run * 7 % RUNS);
            assert_eq!(cache.seen(0..1, &(at..at + 2)).take(), [(at, Bytes::from_static(&[1]))]);
        }
        assert_eq!(cost(&cache), 2 * RUNS * (1 + RUN_BYTES));
        cache.landed(0, false);
        assert_eq!(cost(&cache), 2 * RUNS * (1 + RUN_BYTES));
    }

    #[test]
    fn what_is_cut_off_is_forgotten() {
        let mut cache = Cache::new(10_000);
        assert_eq!(cache.end(), 0);
        for segment in [0, 1, 2] {
            cache.write(segment, segment as u64 * 1000 + 100, &[1; 100]).unwrap();
        }
        assert_eq!((cache.end(), cache.end_of(1), cache.end_of(7)), (2200, 1200, 0));
        cache.take_off(0, Moment::LAST).unwrap();
        cache.cut(1150);
        assert_eq!((cache.end(), dirty(&cache)), (1150, vec![0, 1]));
        assert_eq!((cost(&cache), cache.by_use.len()), (150 + 2 * RUN_BYTES, 2));
        cache.cut(1100);
        assert_eq!((cache.end(), cache.by_use.len()), (200, 1), "what flies is seen");
        cache.landed(0, true);
        assert_eq!((cache.end(), cost(&cache), cache.by_use.len()), (0, 0, 0));
        cache.write(0, 5, &[1; 10]).unwrap();
        cache.cut(0);
        assert_eq!((cost(&cache), cache.by_use.len()), (0, 0));
    }

    #[test]
    fn what_was_written_after_a_moment_is_not_waited_for() {
        let mut cache = Cache::new(10_000);
        cache.write(0, 0, &[1; 10]).unwrap();
        let first = cache.now();
        cache.take_off(0, first).unwrap();
        cache.write(0, 5, &[2; 10]).unwrap();
        cache.write(1, 1000, &[2; 10]).unwrap();
        assert_eq!(cache.unstored(first), [0], "it flies");
        cache.landed(0, true);
        assert!(cache.unstored(first).is_empty());
        assert_eq!(cache.take_off(0, first), None);
        assert_eq!(dirty(&cache), [0, 1]);
        // What flew and failed is as old as it was.
        cache.take_off(0, cache.now()).unwrap();
        cache.landed(0, false);
        assert_eq!(cache.unstored(first), [] as [usize; 0]);
        assert_eq!(cache.take_off(0, cache.now()).unwrap(), [(5, Bytes::from(vec![2; 10]))]);
    }
}
