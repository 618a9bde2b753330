//! The filer's cache of file data: least recently used, four-way set-associative, lines of 4 KiB (§6.2.6).
//!
//! A filer keeps one of 2 GB for its eight disks. Only reads are cached; writes go through and leave nothing
//! behind (§6.3.3), so a driver calls [`FileCache::forget`] for what it writes. No data is kept, only which
//! lines are there: eight bytes a line, 4 MiB for 2 GiB.

/// Bytes of a line.
pub const LINE_BYTES: u64 = 4096;

/// Lines that compete for a place.
pub const WAYS: usize = 4;

/// Size of a filer's cache in the dissertation.
pub const FILER_BYTES: u64 = 2 << 30;

/// Which lines of which devices are cached.
#[derive(Debug, Clone)]
pub struct FileCache {
    /// Tags by set, the most recently used first; 0: nothing.
    tags: Vec<u64>,
    sets: u64,
    hits: u64,
    misses: u64,
}

/// Lines of a device are numbered up to here: 2^48 lines are a zettabyte.
const LINE_BITS: u32 = 48;

impl FileCache {
    /// An empty cache of so many bytes, rounded down to whole sets of 16 KiB, at least one.
    pub fn new(bytes: u64) -> FileCache {
        let sets = (bytes / (LINE_BYTES * WAYS as u64)).max(1);
        FileCache { tags: vec![0; sets as usize * WAYS], sets, hits: 0, misses: 0 }
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> u64 {
        self.tags.len() as u64 * LINE_BYTES
    }

    /// The ranges of whole lines that [`FileCache::read`] would give; nothing changes, neither which lines are there nor the
    /// order of their use.
    pub fn missing(&self, device: u16, offset: u64, bytes: u64) -> Vec<std::ops::Range<u64>> {
        let mut missing = Vec::new();
        for line in lines(offset, bytes) {
            let (tag, set) = self.place(device, line);
            let first = set as usize * WAYS;
            if !self.tags[first..first + WAYS].contains(&tag) {
                join(&mut missing, line);
            }
        }
        missing
    }

    /// Reads bytes of a device: gives the ranges of whole lines that are not there, in order and joined where
    /// they touch, and keeps all lines from now on.
    pub fn read(&mut self, device: u16, offset: u64, bytes: u64) -> Vec<std::ops::Range<u64>> {
        let mut missing: Vec<std::ops::Range<u64>> = Vec::new();
        for line in lines(offset, bytes) {
            if self.touch(device, line) {
                self.hits += 1;
                continue;
            }
            self.misses += 1;
            join(&mut missing, line);
        }
        missing
    }

    /// Drops the lines that the bytes touch.
    pub fn forget(&mut self, device: u16, offset: u64, bytes: u64) {
        for line in lines(offset, bytes) {
            let (tag, set) = self.place(device, line);
            let ways = self.ways(set);
            if let Some(way) = ways.iter().position(|t| *t == tag) {
                ways[way..].rotate_left(1);
                ways[WAYS - 1] = 0;
            }
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.tags.fill(0);
    }

    /// Lines found and lines missed so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// Makes a line the most recently used of its set; whether it was there.
    fn touch(&mut self, device: u16, line: u64) -> bool {
        let (tag, set) = self.place(device, line);
        let ways = self.ways(set);
        let found = ways.iter().position(|t| *t == tag);
        ways[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        ways[0] = tag;
        found.is_some()
    }

    fn ways(&mut self, set: u64) -> &mut [u64] {
        let first = set as usize * WAYS;
        &mut self.tags[first..first + WAYS]
    }

    /// Neighbouring lines go to neighbouring sets; each device starts elsewhere.
    fn place(&self, device: u16, line: u64) -> (u64, u64) {
        let line = line & ((1 << LINE_BITS) - 1);
        let start = super::scale(super::mix(0, u64::from(device)), self.sets);
        ((u64::from(device) << LINE_BITS | line).wrapping_add(1), (line + start) % self.sets)
    }
}

/// Adds a line to ranges that end before it.
fn join(ranges: &mut Vec<std::ops::Range<u64>>, line: u64) {
    let start = line * LINE_BYTES;
    match ranges.last_mut() {
        Some(last) if last.end == start => last.end = start + LINE_BYTES,
        _ => ranges.push(start..start + LINE_BYTES),
    }
}

fn lines(offset: u64, bytes: u64) -> std::ops::Range<u64> {
    offset / LINE_BYTES..if bytes == 0 { 0 } else { offset.saturating_add(bytes).div_ceil(LINE_BYTES) }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of missing ranges that has one")]
mod tests {
    use std::collections::BTreeMap;

    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;

    /// Plainly correct: each line's time of last use by set.
    #[derive(Default)]
    struct Naive {
        sets: BTreeMap<u64, Vec<(u64, u64)>>,
        clock: u64,
    }

    impl Naive {
        fn touch(&mut self, set: u64, tag: u64) -> bool {
            self.clock += 1;
            let lines = self.sets.entry(set).or_default();
            if let Some(line) = lines.iter_mut().find(|l| l.1 == tag) {
                line.0 = self.clock;
                return true;
            }
            if lines.len() == WAYS {
                let oldest = lines.iter().min().copied();
                lines.retain(|l| Some(*l) != oldest);
            }
            lines.push((self.clock, tag));
            false
        }
    }

    #[test]
    fn it_finds_what_a_naive_twin_finds() {
        let mut random = Pcg64::seed_from_u64(11);
        let mut cache = FileCache::new(16 * WAYS as u64 * LINE_BYTES + 5000);
        assert_eq!(cache.capacity(), 64 * LINE_BYTES);
        let mut naive = Naive::default();
        let mut found = 0;
        for _ in 0..20_000 {
            let device = (random.next_u64() % 3) as u16;
            let offset = random.next_u64() % (60 * LINE_BYTES);
            let bytes = random.next_u64() % (5 * LINE_BYTES);
            if random.next_u64() % 8 == 0 {
                cache.forget(device, offset, bytes);
                for line in lines(offset, bytes) {
                    let (tag, set) = cache.place(device, line);
                    naive.sets.entry(set).or_default().retain(|l| l.1 != tag);
                }
                continue;
            }
            let mut missing = Vec::new();
            for line in lines(offset, bytes) {
                let (tag, set) = cache.place(device, line);
                if naive.touch(set, tag) {
                    found += 1;
                } else {
                    missing.push(line);
                }
            }
            let looked = cache.missing(device, offset, bytes);
            let ranges = cache.read(device, offset, bytes);
            // A line of this read may push out a later one of it: only in a cache smaller than one read.
            assert_eq!(looked, ranges);
            assert!(ranges.is_sorted_by(|a, b| a.end < b.start), "joined: {ranges:?}");
            let told: Vec<u64> =
                ranges.into_iter().flat_map(|r| r.start / LINE_BYTES..r.end / LINE_BYTES).collect();
            assert_eq!(told, missing);
        }
        assert_eq!(cache.counts().0, found);
        assert!(found > 1000, "the test finds lines: {found}");
    }

    #[test]
    fn a_filer_holds_two_gigabytes_in_order() {
        let mut cache = FileCache::new(FILER_BYTES);
        assert_eq!(cache.capacity() / LINE_BYTES, 524_288);
        // Twice the same 2 GiB of one device: all of it stays. One line more pushes one out:
        assert_eq!(cache.read(3, 0, FILER_BYTES), vec![0..FILER_BYTES]);
        assert_eq!(cache.read(3, 0, FILER_BYTES), []);
        assert_eq!(cache.read(3, FILER_BYTES, 1), vec![FILER_BYTES..FILER_BYTES + LINE_BYTES]);
        // Read in order again, each line of that set pushes out the one that is asked for next.
        assert_eq!(cache.read(3, 0, FILER_BYTES).len(), WAYS);
        assert_eq!(cache.read(3, 100, 0), []);
        cache.clear();
        assert_eq!(cache.read(3, 4095, 2), vec![0..8192]);
    }
}
