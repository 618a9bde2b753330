//! Bytes by their place, where those that touch or overlap make one run.

use bytes::{Bytes, BytesMut};
use std::{collections::BTreeMap, ops::Range};

/// What a run costs beside its bytes at most. Without it many single bytes would take far more memory than they are counted for. Single
/// bytes, a hundred thousand of them, as glibc's allocator rounds what they take: 110 each in the map (an entry in nodes that are half full,
/// the smallest buffer), 143 once they are taken, frozen and listed twice for being stored, 183 while the second list is made.
pub(super) const RUN_BYTES: u64 = 192;
/// A run this long is not copied to make one with the run before it until both are taken: written backwards, a file would be
/// copied again and again.
const JOIN_BYTES_MAX: usize = 64 << 10;

/// What of bytes that are there already becomes of those that are written to their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// They are replaced.
    Replace,
    /// They are newer and stay.
    Keep,
}

/// Bytes by where they belong. None overlaps another; no run is empty.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: BTreeMap<u64, BytesMut>,
    bytes: u64,
}

impl Runs {
    /// Memory that they take.
    pub(super) fn cost(&self) -> u64 {
        self.bytes + self.runs.len() as u64 * RUN_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Behind the last byte of them; 0 where there are none.
    pub(super) fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(start, run)| start + run.len() as u64)
    }

    /// Leaves out what is from byte `end` on.
    pub(super) fn cut(&mut self, end: u64) {
        for (start, run) in self.runs.split_off(&end) {
            debug_assert!(start >= end);
            self.bytes -= run.len() as u64;
        }
        if let Some((start, mut last)) = self.runs.pop_last() {
            let before = last.len();
            // No more than the run's length, which fits memory.
            last.truncate(usize::try_from(end - start).unwrap_or(usize::MAX));
            self.bytes -= (before - last.len()) as u64;
            self.runs.insert(start, last);
        }
    }

    /// By how much more [`Runs::cost`] may be when `range` was written.
    pub(super) fn growth(&self, range: &Range<u64>) -> u64 {
        match self.gaps(range).map(|gap| gap.end - gap.start).sum::<u64>() {
            0 => 0,
            // What follows the first gap goes on where that ends.
            missing => missing + RUN_BYTES,
        }
    }

    /// Puts bytes in their place.
    pub(super) fn write(&mut self, offset: u64, new: &[u8], over: Over) {
        let end = offset + new.len() as u64;
        // All places are below the end of `new`, which fits memory.
        let part = |from: u64, to: u64| &new[(from - offset) as usize..(to - offset) as usize];
        let mut at = offset;
        while at < end {
            let before = self.runs.range_mut(..=at).next_back();
            let before = before.map(|(start, run)| (*start, *start + run.len() as u64, run));
            match before {
                Some((start, run_end, run)) if at < run_end => {
                    let to = end.min(run_end);
                    if over == Over::Replace {
                        run[(at - start) as usize..(to - start) as usize].copy_from_slice(part(at, to));
                    }
                    at = to;
                }
                before => {
                    let touched = before.filter(|(_, run_end, _)| *run_end == at).map(|(start, ..)| start);
                    let next = self.runs.range(at..).next().map_or(u64::MAX, |(start, _)| *start);
                    let to = end.min(next);
                    let run = self.runs.entry(touched.unwrap_or(at)).or_default();
                    run.extend_from_slice(part(at, to));
                    self.bytes += to - at;
                    at = to;
                }
            }
        }
        self.join(offset, end);
    }

    /// Makes one run of those that touch each other between these places, but for long ones.
    fn join(&mut self, from: u64, to: u64) {
        let mut at = self.runs.range(..=from).next_back().map_or(from, |(start, _)| *start);
        while at < to {
            let Some(run) = self.runs.get(&at) else { return };
            let end = at + run.len() as u64;
            match self.runs.get(&end) {
                Some(next) if next.len() <= JOIN_BYTES_MAX => {
                    let next = self.runs.remove(&end).expect("it was there");
                    self.runs.get_mut(&at).expect("it was there").extend_from_slice(&next);
                }
                Some(_) => at = end,
                None => return,
            }
        }
    }

    /// All of them, in order, those that touch each other as one; none are left.
    pub(super) fn take(&mut self) -> Vec<(u64, Bytes)> {
        let mut taken: Vec<(u64, BytesMut)> = Vec::with_capacity(self.runs.len());
        for (start, run) in std::mem::take(&mut self.runs) {
            match taken.last_mut() {
                Some((first, last)) if *first + last.len() as u64 == start => last.extend_from_slice(&run),
                _ => taken.push((start, run)),
            }
        }
        self.bytes = 0;
        taken.into_iter().map(|(start, run)| (start, run.freeze())).collect()
    }

    /// What of `range` is here, in order.
    pub(super) fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let first = self.runs.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let (from, to) = (range.start, range.end);
        self.runs.range(first..to.max(first)).filter_map(move |(&start, run)| {
            let (begin, end) = (from.max(start), to.min(start + run.len() as u64));
            (begin < end).then(|| (begin, &run[(begin - start) as usize..(end - start) as usize]))
        })
    }

    /// What of `range` is not here, in order.
    pub(super) fn gaps(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (mut at, end) = (range.start, range.end);
        let ends = core::iter::once((end, end));
        let held = self.within(range).map(|(start, bytes)| (start, start + bytes.len() as u64));
        held.chain(ends).filter_map(move |(start, next)| {
            let gap = at..start;
            at = next;
            (!gap.is_empty()).then_some(gap)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    fn shape(runs: &Runs) -> Vec<Range<u64>> {
        runs.runs.iter().map(|(start, run)| *start..*start + run.len() as u64).collect()
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let mut runs = Runs::default();
        runs.write(100, &[1; 10], Over::Replace);
        runs.write(120, &[2; 10], Over::Replace);
        assert_eq!(shape(&runs), [100..110, 120..130]);
        runs.write(110, &[3; 5], Over::Replace);
        assert_eq!(shape(&runs), [100..115, 120..130], "what touches at the left");
        runs.write(90, &[4; 10], Over::Replace);
        assert_eq!(shape(&runs), [90..115, 120..130], "what touches at the right");
        runs.write(112, &[5; 10], Over::Replace);
        assert_eq!(shape(&runs), vec![90..130u64; 1], "what overlaps both");
        assert_eq!(runs.cost(), 40 + RUN_BYTES);
        runs.write(80, &[6; 60], Over::Keep);
        let taken = runs.take();
        let expected =
            [vec![6; 10], vec![4; 10], vec![1; 10], vec![3; 2], vec![5; 10], vec![2; 8], vec![6; 10]];
        assert_eq!(taken, [(80, Bytes::from(expected.concat()))]);
        assert!(runs.is_empty() && runs.cost() == 0);
    }

    #[test]
    fn long_runs_that_touch_are_joined_when_they_are_taken() {
        let mut runs = Runs::default();
        runs.write(10, &[1; JOIN_BYTES_MAX + 1], Over::Replace);
        runs.write(0, &[2; 10], Over::Replace);
        assert_eq!(shape(&runs).len(), 2, "not copied now");
        assert_eq!(runs.gaps(&(0..100)).count(), 0);
        runs.write(5, &[3; 10], Over::Replace);
        let taken = runs.take();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].1[..20], [vec![2; 5], vec![3; 10], vec![1; 5]].concat());
    }

    #[test]
    fn what_is_cut_off_is_gone() {
        let three = || {
            let mut runs = Runs::default();
            for (offset, byte) in [(10, 1), (30, 2), (50, 3)] {
                runs.write(offset, &[byte; 10], Over::Replace);
            }
            runs
        };
        for (end, left, bytes) in [
            (0, vec![], 0),
            (10, vec![], 0),
            (15, vec![(10, 15)], 5),
            (25, vec![(10, 20)], 10),
            (30, vec![(10, 20)], 10),
            (31, vec![(10, 20), (30, 31)], 11),
            (59, vec![(10, 20), (30, 40), (50, 59)], 29),
            (60, vec![(10, 20), (30, 40), (50, 60)], 30),
            (99, vec![(10, 20), (30, 40), (50, 60)], 30),
        ] {
            let mut runs = three();
            assert_eq!(runs.end(), 60);
            runs.cut(end);
            assert_eq!(runs.cost(), bytes + left.len() as u64 * RUN_BYTES, "{end}");
            assert_eq!(runs.end(), left.last().map_or(0, |last| last.1));
            let shape: Vec<_> = shape(&runs).into_iter().map(|run| (run.start, run.end)).collect();
            assert_eq!(shape, left);
        }
    }

    #[test]
    fn any_order_of_writes_is_what_a_plain_array_says() {
        const SIZE: u64 = 500;
        let mut random = Pcg64Mcg::seed_from_u64(7);
        for _ in 0..50 {
            let (mut runs, mut model) = (Runs::default(), vec![None; SIZE as usize]);
            for step in 0..60u8 {
                let offset = random.next_u64() % SIZE;
                let length = random.next_u64() % 40.min(SIZE - offset) + u64::from(offset + 40 < SIZE);
                let over = if step % 3 == 0 { Over::Keep } else { Over::Replace };
                let range = offset..offset + length;
                let most = runs.cost() + runs.growth(&range);
                runs.write(offset, &vec![step; length as usize], over);
                assert!(runs.cost() <= most);
                for place in &mut model[offset as usize..(offset + length) as usize] {
                    if over == Over::Replace || place.is_none() {
                        *place = Some(step);
                    }
                }
                let (from, to) = (random.next_u64() % SIZE, random.next_u64() % SIZE);
                let mut seen = vec![None; SIZE as usize];
                for (at, bytes) in runs.within(&(from..to)) {
                    for (place, byte) in (at as usize..).zip(bytes) {
                        seen[place] = Some(*byte);
                    }
                }
                for (place, byte) in (0..).zip(&model) {
                    let expected = byte.filter(|_| (from..to).contains(&place));
                    assert_eq!(seen[place as usize], expected, "{place} of {from}..{to}");
                }
                let missing: u64 = runs.gaps(&(0..SIZE)).map(|gap| gap.end - gap.start).sum();
                assert_eq!(missing, model.iter().filter(|byte| byte.is_none()).count() as u64);
            }
            let mut end = 0;
            for (start, run) in runs.take() {
                assert!(start > end || end == 0, "no two touch");
                end = start + run.len() as u64;
                assert!((start as usize..).zip(&run[..]).all(|(place, byte)| model[place] == Some(*byte)));
            }
        }
    }
}
