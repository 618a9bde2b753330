//! The free map of the linear space, in units of 4 KiB. No I/O: ranges in, ranges out.
//!
//! Devices want few, long ranges: a request takes the smallest free run that holds it whole (best fit: long
//! runs stay whole for large extents), growth goes right behind the extent's last range when that is free, and
//! a fragmented map gives its longest run. Freed neighbours merge at once, so the number of free
//! runs *is* the number of fragments. Units that were given up are not free once they are released.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Bytes of one unit.
pub const UNIT_BYTES: u64 = 4096;

/// Which units are free.
#[derive(Debug, Clone)]
pub struct Allocator {
    /// Free runs: start to length. Never empty, never touching.
    by_start: BTreeMap<u64, u64>,
    /// The same as (length, start).
    by_length: BTreeSet<(u64, u64)>,
    /// Few ranges, which do not overlap.
    given_up: Vec<Range<u64>>,
    space: Range<u64>,
    free: u64,
}

impl Allocator {
    /// All units of `space` are free.
    pub fn new(space: Range<u64>) -> Allocator {
        let (by_start, by_length, given_up) = Default::default();
        let mut this = Allocator { by_start, by_length, given_up, free: 0, space };
        if !this.space.is_empty() {
            this.add_run(this.space.start, this.space.end - this.space.start);
            this.free = this.space.end - this.space.start;
        }
        this
    }

    /// Units that are free.
    pub fn free_units(&self) -> u64 {
        self.free
    }

    /// Units altogether.
    pub fn capacity_units(&self) -> u64 {
        self.space.end - self.space.start
    }

    /// Number of separate free runs.
    pub fn fragments(&self) -> usize {
        self.by_start.len()
    }

    /// Length of the longest free run.
    pub fn longest(&self) -> u64 {
        self.by_length.last().map_or(0, |&(length, _)| length)
    }

    /// Takes one range of `wanted` units, or as many as one run has but at least `least` (both at least one).
    /// `after`: where the range would best start. `None`: no free run has `least` units; nothing changed.
    pub fn take(&mut self, wanted: u64, least: u64, after: Option<u64>) -> Option<Range<u64>> {
        assert!(least >= 1 && wanted >= least, "least {least}, wanted {wanted}");
        let near = after.and_then(|at| self.by_start.get(&at).map(|&length| (at, length)));
        let (start, length) = match near {
            Some(run) if run.1 >= wanted => run,
            _ => match self.by_length.range((wanted, 0)..).next() {
                Some(&(length, start)) => (start, length),
                None => {
                    let longest = self.by_length.last().map(|&(length, start)| (start, length))?;
                    // Neither holds it whole: the neighbour saves a seek unless the longest is longer.
                    near.filter(|run| run.1 >= longest.1).unwrap_or(longest)
                }
            },
        };
        if length < least {
            return None;
        }
        let taken = length.min(wanted);
        self.remove_run(start, length);
        if taken < length {
            self.add_run(start + taken, length - taken);
        }
        self.free -= taken;
        Some(start..start + taken)
    }

    /// Marks exactly these units as used. `false`, and no change, where one of them is not free.
    pub fn reserve(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let Some((&start, &length)) = self.by_start.range(..=range.start).next_back() else { return false };
        if range.end > start + length {
            return false;
        }
        self.remove_run(start, length);
        if start < range.start {
            self.add_run(start, range.start - start);
        }
        if range.end < start + length {
            self.add_run(range.end, start + length - range.end);
        }
        self.free -= range.end - range.start;
        true
    }

    /// These units, which are in use, are given to nobody else once they are released.
    pub fn give_up(&mut self, range: Range<u64>) {
        self.given_up.push(range);
    }

    /// What was given up, each time as one range.
    pub fn given_up(&self) -> &[Range<u64>] {
        &self.given_up
    }

    /// Whether any of these units was given up.
    pub fn is_given_up(&self, range: &Range<u64>) -> bool {
        self.given_up.iter().any(|given_up| given_up.start < range.end && range.start < given_up.end)
    }

    /// Gives units back.
    ///
    /// # Panics
    /// Where one of them is free already or outside the space: the caller's map is wrong.
    pub fn release(&mut self, range: Range<u64>) {
        let mut parts = vec![range];
        for given_up in &self.given_up {
            let beside = |part: Range<u64>| {
                [part.start..part.end.min(given_up.start), part.start.max(given_up.end)..part.end]
            };
            parts = parts.into_iter().flat_map(beside).filter(|part| !part.is_empty()).collect();
        }
        for part in parts {
            self.release_run(part);
        }
    }

    fn release_run(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        assert!(self.space.start <= range.start && range.end <= self.space.end, "{range:?} is outside");
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &length)) = self.by_start.range(..range.end).next_back() {
            assert!(before + length <= range.start, "{range:?} is partly free already");
            if before + length == range.start {
                self.remove_run(before, length);
                start = before;
            }
        }
        if let Some(&length) = self.by_start.get(&range.end) {
            self.remove_run(range.end, length);
            end += length;
        }
        self.add_run(start, end - start);
        self.free += range.end - range.start;
    }

    /// The free runs in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_start.iter().map(|(&start, &length)| start..start + length)
    }

    fn add_run(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove_run(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}
