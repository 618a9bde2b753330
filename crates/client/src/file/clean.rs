//! What was read through a handle, or stored by it, and is read again from memory: a cache of what was used least recently goes first (PLR
//! §5.3), by extents of 1 MiB of the object.
//!
//! Others may change what is kept here, and nobody tells. So it is kept for a bounded time from when it was asked for, and forgotten where
//! the object is found to be another. What the handle stores itself replaces it. Long reads and large lots that are stored are not kept:
//! they would take the place of what is read again, and to copy them costs more than it may save.
//!
//! Files change by granules of 4 KiB, each at once: who reads one has it as it was at some time. Bytes of two times side by side (the head
//! of a page that was read before another client stored the page, and the rest of it; what the handle stored of a page, and what it had
//! read of the rest) are a page that never was. So granules are kept, replaced and seen whole or not at all, and fetched whole where they
//! may be kept: their nodes send no less anyway.
//!
//! Invariants: what was stored through the handle is not hidden by what it read before: bytes that were fetched are taken only where
//! nothing was stored, cut or forgotten since that began ([`Clean::mark`]); each granule is of one fetch or one store; one that ends with
//! the object is whole for as long as the object ends there; what is kept costs no more than the bound.
//!
//! Left out: what the handle wrote and has not stored. That is laid over what is seen here: it is to be read at once, whatever lies
//! beside it.

use super::runs::{Over, Runs};
use bytes::Bytes;
use core::{ops::Range, time::Duration};
use std::collections::BTreeMap;
use steadfast_protocol::layout::PARITY_GRANULE_BYTES;

/// What changes at once in a file: its granules are those of the object, since segments are whole MiB.
const GRANULE: u64 = PARITY_GRANULE_BYTES as u64;
/// Bytes that go together: where they lie, and what they cost at most.
const EXTENT_BYTES: u64 = 1 << 20;
/// What a granule costs beside its bytes: an entry of the map, in nodes that are half full, and what the allocator rounds.
const GRANULE_HEAD_BYTES: u64 = 96;
/// The longest piece that is kept. Picked by eye: what is asked for by granules and not by blocks.
const PIECE_BYTES_MAX: u64 = 256 << 10;

/// What the handle had stored when a fetch began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

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
    /// By their numbers in the object; never none.
    granules: BTreeMap<u64, Granule>,
    used: u64,
}

/// All bytes of a granule as they were at one time.
#[derive(Debug)]
struct Granule {
    /// When the fetch or the store began that they are of.
    began: Duration,
    bytes: Box<[u8]>,
}

impl Extent {
    fn cost(&self) -> u64 {
        self.granules.values().map(Granule::cost).sum()
    }
}

impl Granule {
    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + GRANULE_HEAD_BYTES
    }

    fn is_fresh(&self, now: Duration, fresh_for: Duration) -> bool {
        now.saturating_sub(self.began) < fresh_for
    }
}

/// Where the granule lies that holds byte `at`, as far as an object of `size` bytes has it.
fn granule_of(at: u64, size: u64) -> Range<u64> {
    let start = at / GRANULE * GRANULE;
    start..(start + GRANULE).min(size)
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

    /// What to fetch where bytes `missing` are wanted of an object of `size` bytes: the granules that hold them, so that they can be kept.
    /// A long read is fetched as it is.
    pub(super) fn to_fetch(&self, missing: &Range<u64>, size: u64) -> Range<u64> {
        let granules = missing.start / GRANULE * GRANULE..missing.end.next_multiple_of(GRANULE).min(size);
        let are_kept = self.bound > 0 && !missing.is_empty();
        match are_kept && granules.end.saturating_sub(granules.start) <= PIECE_BYTES_MAX {
            true => granules,
            false => missing.clone(),
        }
    }

    /// What of `range` is here and not too old, in an object of `size` bytes: granules that are here whole, as far as the range has them.
    /// That is a use of them.
    pub(super) fn seen(&mut self, now: Duration, range: &Range<u64>, size: u64) -> Runs {
        let mut seen = Runs::default();
        for number in self.held(range) {
            let extent = &self.extents[&number];
            let before = seen.cost();
            let touched = range.start / GRANULE..range.end.div_ceil(GRANULE);
            for (number, granule) in extent.granules.range(touched) {
                let at = granule_of(number * GRANULE, size);
                // The object was shorter when this was its end.
                let is_whole = at.end.saturating_sub(at.start) == granule.bytes.len() as u64;
                if !is_whole || !granule.is_fresh(now, self.fresh_for) {
                    continue;
                }
                let (from, to) = (range.start.max(at.start), range.end.min(at.end));
                if from < to {
                    // Both lie within the granule.
                    let part = &granule.bytes[(from - at.start) as usize..(to - at.start) as usize];
                    seen.write(from, part, Over::Replace);
                }
            }
            if seen.cost() > before {
                self.touch(number);
            }
        }
        seen
    }

    /// Takes bytes that were fetched from `offset` on, by a fetch that began at that time, when the object had `size` bytes.
    pub(super) fn fetched<'b>(
        &mut self,
        (began, mark): (Duration, Mark),
        offset: u64,
        pieces: impl Iterator<Item = &'b Bytes> + Clone,
        size: u64,
    ) {
        let length: u64 = pieces.clone().map(|piece| piece.len() as u64).sum();
        if mark == self.mark() && length <= PIECE_BYTES_MAX {
            self.keep(began, offset, pieces, size.max(offset + length));
        }
    }

    /// Ranges were stored through the handle, over what is here, in an object of `size` bytes now; that began at this time. What lies
    /// beside them by now, in granules that they cover in part, may be others'.
    pub(super) fn stored(&mut self, began: Duration, ranges: &[(u64, Bytes)], size: u64) {
        self.changes += 1;
        let large = ranges.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() > PIECE_BYTES_MAX;
        for (offset, bytes) in ranges {
            let end = offset + bytes.len() as u64;
            self.leave_out(&(*offset..end));
            if !large {
                self.keep(began, *offset, core::iter::once(bytes), size.max(end));
            }
        }
    }

    /// What was from byte `end` on is gone.
    pub(super) fn cut(&mut self, end: u64) {
        self.changes += 1;
        self.leave_out(&(end..u64::MAX));
    }

    /// The object is another, or lies elsewhere.
    pub(super) fn forget(&mut self) {
        self.changes += 1;
        (self.cost, self.extents, self.by_use) = Default::default();
    }

    /// Keeps the granules that lie whole in bytes from `from` on, of an object of `size` bytes, which has all of those.
    fn keep<'b>(&mut self, began: Duration, from: u64, pieces: impl Iterator<Item = &'b Bytes>, size: u64) {
        if self.bound == 0 {
            return;
        }
        // What of the granule at hand came by now: pieces end anywhere.
        let (mut at, mut whole) = (from, Vec::new());
        for piece in pieces {
            let mut left = &piece[..];
            while !left.is_empty() {
                let granule = granule_of(at, size);
                // No more than the piece's length, which fits memory.
                let (now, later) = left.split_at((granule.end - at).min(left.len() as u64) as usize);
                let length = (granule.end - granule.start) as usize;
                if at == granule.start {
                    whole = Vec::with_capacity(length);
                }
                whole.extend_from_slice(now);
                (at, left) = (at + now.len() as u64, later);
                if at == granule.end && whole.len() == length {
                    let bytes = core::mem::take(&mut whole).into_boxed_slice();
                    self.insert(granule.start / GRANULE, Granule { began, bytes });
                }
            }
        }
        // What is too old beside it takes no room from what is read.
        let fresh_for = self.fresh_for;
        for number in self.held(&(from..at)) {
            self.retain(number, |_, granule| granule.is_fresh(began, fresh_for));
        }
        while let Some((_, &oldest)) = self.by_use.first_key_value()
            && (self.cost > self.bound || self.is_old(began, oldest))
        {
            self.let_go(oldest);
        }
    }

    /// Puts a granule in its place, unless the one there is of a fetch that began later and ended earlier.
    fn insert(&mut self, number: u64, granule: Granule) {
        let of = number / (EXTENT_BYTES / GRANULE);
        let new = || Extent { granules: BTreeMap::new(), used: 0 };
        let extent = self.extents.entry(of).or_insert_with(new);
        if extent.granules.get(&number).is_some_and(|held| held.began > granule.began) {
            return;
        }
        self.cost += granule.cost();
        let replaced = extent.granules.insert(number, granule);
        self.cost -= replaced.map_or(0, |replaced| replaced.cost());
        self.touch(of);
    }

    /// Forgets granules that a range reaches into.
    fn leave_out(&mut self, range: &Range<u64>) {
        let granules = range.start / GRANULE..range.end.div_ceil(GRANULE);
        for number in self.held(range) {
            self.retain(number, |at, _| !granules.contains(&at));
        }
    }

    /// Forgets granules of an extent, by their numbers, but those that stay.
    fn retain(&mut self, number: u64, stays: impl Fn(u64, &Granule) -> bool) {
        let Some(extent) = self.extents.get_mut(&number) else { return };
        let mut gone = 0;
        extent.granules.retain(|&at, granule| {
            let is_kept = stays(at, granule);
            gone += if is_kept { 0 } else { granule.cost() };
            is_kept
        });
        self.cost -= gone;
        if extent.granules.is_empty() {
            self.let_go(number);
        }
    }

    /// Whether nothing of an extent is seen any more.
    fn is_old(&self, now: Duration, number: u64) -> bool {
        let held = self.extents.get(&number);
        held.is_some_and(|held| held.granules.values().all(|granule| !granule.is_fresh(now, self.fresh_for)))
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
            self.cost -= extent.cost();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH_FOR: Duration = Duration::from_secs(1);
    const BEGAN: Duration = Duration::from_secs(10);
    const MIB: u64 = EXTENT_BYTES;
    const SIZE: u64 = 16 * MIB;

    /// Granules, each of one byte.
    fn granules(each: &[u8]) -> Vec<u8> {
        each.iter().flat_map(|&byte| [byte; GRANULE as usize]).collect()
    }

    fn fetch_at(clean: &mut Clean, began: Duration, offset: u64, bytes: Vec<u8>) {
        let mark = clean.mark();
        clean.fetched((began, mark), offset, [Bytes::from(bytes)].iter(), SIZE);
    }

    fn fetch(clean: &mut Clean, offset: u64, bytes: Vec<u8>) {
        fetch_at(clean, BEGAN, offset, bytes);
    }

    fn seen_of(clean: &mut Clean, now: Duration, range: Range<u64>, size: u64) -> Vec<(u64, Vec<u8>)> {
        clean.seen(now, &range, size).take().into_iter().map(|(at, bytes)| (at, bytes.to_vec())).collect()
    }

    fn seen(clean: &mut Clean, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let cost: u64 = clean.extents.values().map(Extent::cost).sum();
        assert_eq!((clean.cost, clean.by_use.len()), (cost, clean.extents.len()));
        assert!(cost <= clean.bound && clean.extents.values().all(|extent| extent.cost() > 0));
        seen_of(clean, BEGAN, range, SIZE)
    }

    #[test]
    fn what_was_read_is_seen_again_for_a_while() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        let last = MIB - GRANULE;
        fetch(&mut clean, last, granules(&[1, 2]));
        assert_eq!(seen(&mut clean, 0..9 * MIB), [(last, granules(&[1, 2]))], "across extents");
        assert_eq!(seen(&mut clean, MIB - 1..MIB + 2), [(MIB - 1, vec![1, 2, 2])]);
        let almost = BEGAN + FRESH_FOR - Duration::from_nanos(1);
        assert_eq!(seen_of(&mut clean, almost, 0..9 * MIB, SIZE).len(), 1);
        assert!(seen_of(&mut clean, BEGAN + FRESH_FOR, 0..9 * MIB, SIZE).is_empty());
        // Fetched anew it is new.
        fetch_at(&mut clean, BEGAN + FRESH_FOR, last, granules(&[6]));
        let now = seen_of(&mut clean, BEGAN + FRESH_FOR, 0..9 * MIB, SIZE);
        assert_eq!(now, [(last, granules(&[6]))]);
        let mut off = Clean::new(1 << 20, Duration::ZERO);
        fetch(&mut off, 0, granules(&[1]));
        assert!(seen(&mut off, 0..1).is_empty());
    }

    /// A fetch that began long before is answered last.
    #[test]
    fn a_slow_fetch_makes_nothing_older_that_was_fetched_since() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        let (later, end) = (BEGAN + FRESH_FOR / 2, BEGAN + FRESH_FOR);
        fetch_at(&mut clean, later, 0, granules(&[1, 1]));
        fetch(&mut clean, GRANULE, granules(&[2, 2]));
        assert_eq!(seen(&mut clean, 0..MIB), [(0, granules(&[1, 1, 2]))], "it knows less");
        assert_eq!(seen_of(&mut clean, later, 0..MIB, SIZE), [(0, granules(&[1, 1, 2]))]);
        assert_eq!(seen_of(&mut clean, end, 0..MIB, SIZE), [(0, granules(&[1, 1]))]);
        assert!(seen_of(&mut clean, later + FRESH_FOR, 0..MIB, SIZE).is_empty());
    }

    #[test]
    fn what_is_too_old_makes_room_for_what_is_kept_beside_it_and_goes_with_what_nobody_looks_at() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        for extent in [0, 3] {
            fetch(&mut clean, extent * MIB, granules(&[1, 1, 1]));
        }
        let (later, end) = (BEGAN + FRESH_FOR / 2, BEGAN + FRESH_FOR);
        fetch_at(&mut clean, later, 3 * MIB, granules(&[2]));
        fetch_at(&mut clean, end, 9 * GRANULE, granules(&[3]));
        let left = |clean: &mut Clean| seen(clean, 0..SIZE).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!(left(&mut clean), [9 * GRANULE, 3 * MIB], "with one that is fresh stay those beside it");
        assert_eq!(clean.extents[&3].granules.len(), 3);
        // Now none of those is.
        fetch_at(&mut clean, later + FRESH_FOR, 10 * GRANULE, granules(&[4]));
        assert_eq!(left(&mut clean), [9 * GRANULE]);
        assert_eq!(clean.extents.len(), 1);
    }

    /// The head of a page is read, another client stores the page, and then the page is read.
    #[test]
    fn a_granule_is_kept_and_seen_whole_or_not_at_all() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        fetch(&mut clean, 0, vec![1; 64]);
        assert!(seen(&mut clean, 0..GRANULE).is_empty(), "nothing that the rest could be laid beside");
        let all = granules(&[1, 2, 3, 4]);
        fetch(&mut clean, 64, all[64..3 * GRANULE as usize + 64].to_vec());
        assert_eq!(seen(&mut clean, 0..SIZE), [(GRANULE, granules(&[2, 3]))]);
        assert_eq!(seen(&mut clean, GRANULE + 10..GRANULE + 12), [(GRANULE + 10, vec![2, 2])]);
        // Pieces end anywhere.
        let pieces = [&all[..5000], &all[5000..5001], &all[5001..]].map(Bytes::copy_from_slice);
        let mark = clean.mark();
        clean.fetched((BEGAN, mark), 4 * GRANULE, pieces.iter(), SIZE);
        assert_eq!(seen(&mut clean, 4 * GRANULE..SIZE), [(4 * GRANULE, all)]);
    }

    #[test]
    fn granules_are_fetched_whole_where_they_may_be_kept() {
        let size = 3 * MIB + 100;
        let to_fetch = |bound, missing: Range<u64>| {
            let to_fetch = Clean::new(bound, FRESH_FOR).to_fetch(&missing, size);
            (to_fetch.start, to_fetch.end)
        };
        assert_eq!(to_fetch(1, 0..64), (0, GRANULE));
        assert_eq!(to_fetch(1, GRANULE - 1..GRANULE + 1), (0, 2 * GRANULE));
        assert_eq!(to_fetch(1, GRANULE..2 * GRANULE), (GRANULE, 2 * GRANULE));
        assert_eq!(to_fetch(1, size - 10..size), (3 * MIB, size), "there is no more of it");
        assert_eq!(to_fetch(1, size..size), (size, size), "nothing");
        assert_eq!(to_fetch(0, 0..64), (0, 64), "none are kept");
        let longest = GRANULE..GRANULE + PIECE_BYTES_MAX;
        assert_eq!(to_fetch(1, longest.start + 1..longest.end - 1), (longest.start, longest.end));
        assert_eq!(to_fetch(1, 1..PIECE_BYTES_MAX + 1), (1, PIECE_BYTES_MAX + 1), "they would be too many");
    }

    #[test]
    fn the_last_granule_is_whole_while_the_object_ends_there() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        let size = GRANULE + 100;
        let (mark, both) = (clean.mark(), granules(&[1, 2])[..size as usize].to_vec());
        clean.fetched((BEGAN, mark), 0, [Bytes::from(both.clone())].iter(), size);
        let seen_now = |clean: &mut Clean, size| seen_of(clean, BEGAN, 0..2 * GRANULE, size);
        assert_eq!(seen_now(&mut clean, size), [(0, both)]);
        assert_eq!(seen_now(&mut clean, size + 1), [(0, granules(&[1]))], "others have made it longer");
        // So has the handle: with zeros in between, or right behind the end.
        for behind in [2 * GRANULE, size] {
            let longer = 2 * GRANULE + 50;
            clean.stored(BEGAN, &[(behind, Bytes::from_static(&[3; 50]))], longer);
            assert_eq!(seen_now(&mut clean, longer), [(0, granules(&[1]))]);
        }
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        clean.stored(BEGAN, &[(GRANULE, Bytes::from_static(&[4; 100]))], size);
        assert_eq!(seen_now(&mut clean, size), [(GRANULE, vec![4; 100])], "all that the object has of it");
        // What was written behind that is not stored yet.
        assert!(seen_of(&mut clean, BEGAN, size + 10..size + 20, size).is_empty());
    }

    #[test]
    fn beyond_the_bound_the_least_recently_used_extent_goes_first() {
        let mut clean = Clean::new(3 * (GRANULE + GRANULE_HEAD_BYTES), FRESH_FOR);
        for extent in [7, 3, 5] {
            fetch(&mut clean, extent * MIB, granules(&[1]));
        }
        assert_eq!(seen(&mut clean, 7 * MIB..7 * MIB + 1).len(), 1, "a use");
        fetch(&mut clean, 4 * MIB, granules(&[1]));
        assert_eq!(
            [3, 4, 5, 7].map(|extent| seen(&mut clean, extent * MIB..(extent + 1) * MIB).len()),
            [0, 1, 1, 1]
        );
        fetch(&mut clean, 9 * MIB, granules(&[1; 4]));
        assert!(seen(&mut clean, 0..10 * MIB).is_empty(), "it alone is more");
    }

    #[test]
    fn what_was_stored_is_not_hidden_by_what_was_read_before() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        fetch(&mut clean, 0, granules(&[1; 8]));
        let before = clean.mark();
        // The second granule, some of the fourth, and the sixth with some of those beside it.
        let stored = [
            (GRANULE, Bytes::from(granules(&[2]))),
            (3 * GRANULE + 5, Bytes::from_static(&[2; 3])),
            (5 * GRANULE - 1, Bytes::from(granules(&[2, 2]))),
            (20 * GRANULE, Bytes::from(granules(&[2]))),
        ];
        clean.stored(BEGAN, &stored, SIZE);
        clean.fetched((BEGAN, before), 0, [Bytes::from(granules(&[1; 30]))].iter(), SIZE);
        assert_eq!(
            seen(&mut clean, 0..30 * GRANULE),
            [
                (0, granules(&[1, 2, 1])),
                (5 * GRANULE, granules(&[2])),
                (7 * GRANULE, granules(&[1])),
                (20 * GRANULE, granules(&[2])),
            ],
            "nothing of it lies beside what was read before"
        );
        // A long run is not kept, nor what it lies over.
        let before = clean.mark();
        clean.stored(BEGAN, &[(5, Bytes::from(vec![3; PIECE_BYTES_MAX as usize + 1]))], SIZE);
        assert_ne!(clean.mark(), before);
        assert!(seen(&mut clean, 0..MIB).is_empty());
        fetch(&mut clean, 0, vec![1; PIECE_BYTES_MAX as usize + 1]);
        assert!(seen(&mut clean, 0..MIB).is_empty(), "nor a long read");
    }

    #[test]
    fn what_is_cut_or_of_another_object_is_gone() {
        let mut clean = Clean::new(1 << 20, FRESH_FOR);
        for extent in 0..3 {
            fetch(&mut clean, extent * MIB, granules(&[1, 1]));
        }
        let before = clean.mark();
        clean.cut(MIB + GRANULE + 4);
        let two = granules(&[1, 1]);
        assert_eq!(seen(&mut clean, 0..3 * MIB), [(0, two.clone()), (MIB, granules(&[1]))]);
        clean.cut(MIB);
        assert_eq!(seen(&mut clean, 0..3 * MIB), [(0, two)]);
        clean.fetched((BEGAN, before), MIB, [Bytes::from(granules(&[1]))].iter(), SIZE);
        assert_eq!(seen(&mut clean, MIB..2 * MIB), []);
        let before = clean.mark();
        clean.forget();
        clean.fetched((BEGAN, before), 0, [Bytes::from(granules(&[1]))].iter(), SIZE);
        assert!(seen(&mut clean, 0..3 * MIB).is_empty());
    }
}
