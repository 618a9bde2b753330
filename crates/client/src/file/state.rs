//! What a handle knows of its object and keeps of it; which of two looks at the object counts.
//!
//! Tasks of a handle look the object up side by side, and make it longer meanwhile, so an answer may be older than what is known when it
//! comes. Taken all the same it would take back what was acknowledged since: the next append would go over that. Dropped although it is
//! newer it would do the same.
//!
//! Who looked while nothing became known here saw what is known, or what came after it. Else the object itself says which came first,
//! where it can ([`State::order`]). Where it cannot nothing is guessed: the object is looked up once more before anything is done by what
//! is known. So it is where a change of its size ended so that nobody knows what came of it.

use super::{
    FileCounts,
    behind::Behind,
    cache::{Cache, Moment},
    clean::Clean,
};
use crate::{ObjectStat, amend::Grown};
use std::{cmp::Ordering, sync::Arc};

#[derive(Debug)]
pub(super) struct State {
    /// The object as last seen.
    found: Arc<ObjectStat>,
    /// Whether it has grown here since: nobody said when that was, and its version was named then.
    grown: bool,
    /// How often anything else became known of it.
    sights: u64,
    /// Whether it is to be looked up before anything is done by it.
    unsure: bool,
    pub(super) cache: Cache,
    pub(super) clean: Clean,
    /// What is being stored while nobody waits for it.
    pub(super) behind: Behind,
    pub(super) counts: FileCounts,
}

impl State {
    pub(super) fn new(found: ObjectStat, cache: Cache, clean: Clean) -> Self {
        let (grown, sights, unsure, behind, counts) = Default::default();
        Self { found: Arc::new(found), grown, sights, unsure, cache, clean, behind, counts }
    }

    /// The object as last seen.
    pub(super) fn found(&self) -> &Arc<ObjectStat> {
        &self.found
    }

    /// Which sight of the object that is: to be taken before it is looked up, or changed.
    pub(super) fn sight(&self) -> u64 {
        self.sights
    }

    /// Whether it is to be looked up before anything is done by it.
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Bytes in the object, those behind its end that are not stored included.
    pub(super) fn size(&self) -> u64 {
        self.found.object.size.max(self.cache.end())
    }

    /// Segments with something that was written up to a moment and is not stored: those that lie within the object as last
    /// seen, and those that end behind it.
    pub(super) fn unstored(&self, upto: Moment) -> (Vec<usize>, Vec<usize>) {
        let size = self.found.object.size;
        self.cache.unstored(upto).into_iter().partition(|&segment| self.cache.end_of(segment) <= size)
    }

    /// The object may be another: no look that began before says which.
    pub(super) fn doubt(&mut self) {
        self.sights += 1;
        self.unsure = true;
    }

    /// A change was made by the object as it was known at that sight: how it grew in place by that, and how it was found in the end, where it
    /// was looked up.
    pub(super) fn changed(&mut self, grown: Option<Grown>, now: Option<ObjectStat>, sight: u64) {
        match (now, grown) {
            // It has what had grown before: it was looked up after that.
            (Some(now), _) => self.saw(now, sight),
            (None, Some(grown)) => self.grew(&grown),
            (None, None) => {}
        }
    }

    /// Takes a growth in place in. What is another version by now is later, and had it.
    fn grew(&mut self, grown: &Grown) {
        if self.found.object.version == grown.base {
            self.sights += 1;
            self.grown = true;
            Arc::make_mut(&mut self.found).grow(grown);
        }
    }

    /// Takes what was found by a look, or a change, that began at this sight.
    pub(super) fn saw(&mut self, now: ObjectStat, sight: u64) {
        self.counts.lookups += 1;
        match self.order(&now) {
            _ if sight == self.sights => self.unsure = false,
            Some(Ordering::Greater) => {}
            Some(_) => return,
            None => return self.doubt(),
        }
        self.sights += 1;
        self.grown = false;
        self.found = Arc::new(now);
        self.clean.forget();
    }

    /// Whether a look saw the object later or earlier than it is known here, where that can be told. Versions are named in order and once,
    /// but that of a put or an amendment when it began, which may be before what it replaces. Clocks go up, but the metadata server's may
    /// have been set back; and of what was grown here they say nothing. Of one segment the longer is later: what is cut has another.
    fn order(&self, now: &ObjectStat) -> Option<Ordering> {
        let before = &self.found;
        let by_version = now.object.version.cmp(&before.object.version);
        if by_version.is_eq() {
            return Some(by_version);
        }
        let lasts = now.segments.last().zip(before.segments.last());
        let same = lasts.filter(|(now, before)| now.segment == before.segment);
        let by_length = same.map_or(Ordering::Equal, |(now, before)| now.length.cmp(&before.length));
        if by_length.is_ne() {
            return Some(by_length);
        }
        if self.grown {
            // What has a later version was committed after that one was named.
            return Some(by_version).filter(|order| order.is_gt());
        }
        // What was changed by this handle has the time of what it was made of.
        let by_time = now.object.committed.cmp(&before.object.committed);
        Some(by_version).filter(|order| by_time.is_eq() || by_time == *order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{amend::found as file, file::CACHE_BYTES_MIN};
    use std::time::Duration;
    use steadfast_protocol::{SegmentId, Time, Version, message::ObjectRecord};

    fn state(found: ObjectStat) -> State {
        State::new(found, Cache::new(CACHE_BYTES_MIN), Clean::new(0, Duration::ZERO))
    }

    fn found(committed: u64, version: u64) -> ObjectStat {
        let mut found = file(&[]);
        (found.object.committed, found.object.version) = (Time(committed), Version(version));
        found
    }

    /// The same object when it had these segments, of which the last has this name.
    fn later(before: &ObjectStat, lengths: &[u64], last: u64, version: u64, committed: u64) -> ObjectStat {
        let mut later = file(lengths);
        later.segments.last_mut().unwrap().segment = SegmentId(last);
        (later.object.version, later.object.committed) = (Version(version), Time(committed));
        ObjectStat { policy: before.policy, ..later }
    }

    fn known(state: &State) -> (u64, Version, bool) {
        (state.size(), state.found.object.version, state.unsure)
    }

    #[test]
    fn of_two_looks_at_a_time_the_later_commit_counts() {
        let mut state = state(found(10, 5));
        // A put that began before version 5 did, committed after it.
        state.saw(found(20, 4), 0);
        assert!(!state.unsure);
        state.saw(found(10, 5), 0);
        assert_eq!(
            known(&state),
            (0, Version(4), true),
            "what it replaced came late, and may be what replaced it"
        );
        let sight = state.sights;
        state.saw(found(20, 4), sight);
        assert_eq!(known(&state), (0, Version(4), false), "which a look tells");
        state.saw(found(20, 6), 0);
        assert_eq!(known(&state), (0, Version(6), false));
        state.saw(found(10, 5), 0);
        assert_eq!(known(&state), (0, Version(6), false), "earlier by both");
        // The server was started again with its clock set back.
        let sight = state.sights;
        state.saw(found(3, 7), sight);
        assert_eq!(known(&state), (0, Version(7), false));
    }

    #[test]
    fn a_late_look_does_not_take_back_what_was_grown_since() {
        let before = file(&[100, 50]);
        let base = before.object.version;
        let [sixth, seventh, eighth] = [6, 7, 8].map(Version);
        let mut state = state(before.clone());
        state.grew(&Grown { base, version: sixth, size: 160 });
        // Another change of the handle looks the object up, as the metadata server counted that in: later than it was committed.
        let (sight, mut look) = (state.sights, (*state.found).clone());
        look.object.committed = Time(before.object.committed.0 + 60);
        // Two appends land before it is done.
        state.grew(&Grown { base: sixth, version: seventh, size: 170 });
        state.grew(&Grown { base: seventh, version: eighth, size: 180 });
        state.saw(look.clone(), sight);
        assert_eq!(known(&state), (180, eighth, false), "the next append goes behind them");
        // One that saw more of the segment did so after them, whatever the clock.
        let mut longer = look.clone();
        longer.object.committed = Time(0);
        longer.grow(&Grown { base: sixth, version: Version(9), size: 190 });
        state.saw(longer, sight);
        assert_eq!(known(&state), (190, Version(9), false));
        // What was cut has another segment.
        let mut cut = look;
        cut.object = ObjectRecord { size: 120, version: Version(10), ..cut.object };
        let last = cut.segments.last_mut().unwrap();
        (last.segment, last.length) = (SegmentId(77), 20);
        state.saw(cut, sight);
        assert_eq!(known(&state), (120, Version(10), false));
    }

    /// The metadata server was started again, and its clock is behind that of the last commit.
    #[test]
    fn an_append_across_the_end_of_a_segment_is_known_whatever_the_clock() {
        let mut before = file(&[100, 50]);
        before.object.committed = Time(1000);
        let base = before.object.version;
        let mut state = state(before.clone());
        let sight = state.sight();
        // The last segment was filled in place, and another one came behind it.
        let grown = Some(Grown { base, version: Version(6), size: 200 });
        let now = Some(later(&before, &[100, 100, 30], 2, 7, 10));
        state.changed(grown, now, sight);
        assert_eq!(known(&state), (230, Version(7), false));
    }

    /// The clock is behind again.
    #[test]
    fn what_one_task_made_longer_does_not_hide_what_another_stored_anew_nor_the_other_way_round() {
        let mut before = file(&[100, 50]);
        before.object.committed = Time(1000);
        let base = before.object.version;
        let grown = Grown { base, version: Version(6), size: 160 };
        // A second one stored the last segment anew after the first one's growth, which is told first.
        let anew = later(&before, &[100, 90], 2, 7, 10);
        let mut first = state(before.clone());
        let sight = first.sight();
        first.grew(&grown);
        first.changed(None, Some(anew.clone()), sight);
        assert_eq!(known(&first), (190, Version(7), false));
        // Or last: it is in there.
        let mut last = state(before.clone());
        last.changed(None, Some(anew.clone()), 0);
        let sight = last.sight();
        last.grew(&grown);
        assert_eq!((known(&last), last.sight()), ((190, Version(7), false), sight));
        // The second one's was first, and then grew; somebody's look before both comes late.
        last.grew(&Grown { base: Version(7), version: Version(8), size: 195 });
        last.saw(before.clone(), 0);
        assert_eq!(known(&last), (195, Version(8), true), "no put that began earlier, but it could be one");
        let mut put = later(&before, &[100], 9, 5, 2000);
        last.saw(put.clone(), sight);
        assert_eq!(known(&last), (195, Version(8), true), "this is one");
        // Nothing was done by it before it was looked up.
        put.object.committed = Time(0);
        let sight = last.sight();
        last.saw(put, sight);
        assert_eq!(known(&last), (100, Version(5), false));
    }

    #[test]
    fn only_a_look_that_began_after_a_doubt_ends_it() {
        let before = file(&[100, 50]);
        let mut state = state(before.clone());
        let sight = state.sight();
        state.doubt();
        state.saw(before.clone(), sight);
        assert!(state.is_unsure());
        // Nor does a later commit, which a change of this handle may have made of what it knew before.
        state.saw(later(&before, &[100, 20], 2, 7, 10), sight);
        assert_eq!(known(&state), (120, Version(7), true));
        let sight = state.sight();
        state.saw(later(&before, &[100, 10], 3, 8, 20), sight);
        assert_eq!(known(&state), (110, Version(8), false));
    }
}
