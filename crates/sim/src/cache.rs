//! A storage server's cache of file data, shared by its devices (dissertation §6.2.2, §6.2.6): lines of 4 KiB, four-way,
//! least recently used.
//!
//! A slice that is wholly there when it is asked for is answered without its device; of one that is there in part, the
//! device reads the rest when its turn comes. What has been read is there from then on. Writes go through to the device
//! and leave nothing behind (§6.3.3: "write accesses are not related to filesystem cache"): what was there of the bytes
//! written is forgotten.
//!
//! Left out: reading ahead, the background load's requests (it is the medium's), and what giving a part of a slice takes
//! while its device reads the rest.

use core::{ops::Range, time::Duration};
use steadfast_disk::model::FileCache;
use steadfast_protocol::Time;

/// A cache as a storage server gets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    /// How much it holds, rounded down to whole sets of 16 KiB.
    pub bytes: u64,
    /// At which speed it gives slices, one after the other; at once where absent.
    pub bytes_per_s: Option<f64>,
}

/// The lines that are there, and when it is idle.
pub(crate) struct NodeCache {
    cache: Cache,
    lines: FileCache,
    busy_until: Time,
}

impl NodeCache {
    pub(crate) fn new(cache: Cache) -> Self {
        Self { cache, lines: FileCache::new(cache.bytes), busy_until: Time(0) }
    }

    /// When it has given these bytes of a device; `None` unless all of them are there.
    pub(crate) fn give(&mut self, now: Time, device: u16, bytes: Range<u64>) -> Option<Time> {
        if !self.missing(device, bytes.clone()).is_empty() {
            return None;
        }
        let count = bytes.end - bytes.start;
        self.keep(device, bytes);
        let takes = |speed: f64| Duration::from_secs_f64(count as f64 / speed);
        self.busy_until = now.max(self.busy_until) + self.cache.bytes_per_s.map_or(Duration::ZERO, takes);
        Some(self.busy_until)
    }

    /// Which of these bytes are not there.
    pub(crate) fn missing(&self, device: u16, bytes: Range<u64>) -> Vec<Range<u64>> {
        let lines = self.lines.missing(device, bytes.start, bytes.end - bytes.start);
        // The device is asked for no more than was asked for, though a line is the least that is kept.
        lines.into_iter().map(|line| line.start.max(bytes.start)..line.end.min(bytes.end)).collect()
    }

    /// These bytes were used last, and are there from now on.
    pub(crate) fn keep(&mut self, device: u16, bytes: Range<u64>) {
        self.lines.read(device, bytes.start, bytes.end - bytes.start);
    }

    /// These bytes are not there any more.
    pub(crate) fn forget(&mut self, device: u16, bytes: Range<u64>) {
        self.lines.forget(device, bytes.start, bytes.end - bytes.start);
    }

    /// Nothing is.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.cache);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_forgotten_and_a_part_is_no_whole() {
        let mut cache = NodeCache::new(Cache { bytes: 1 << 20, bytes_per_s: Some(1e6) });
        cache.keep(0, 0..65_536);
        assert_eq!(cache.give(Time(5), 0, 4096..8192), Some(Time(5 + 4_096_000)));
        assert_eq!(cache.give(Time(5), 0, 0..4096), Some(Time(5 + 8_192_000)), "after the one before");
        assert_eq!(cache.give(Time(5), 1, 0..4096), None, "another device's");
        cache.forget(0, 8192..12_288);
        assert_eq!(cache.give(Time(5), 0, 0..65_536), None);
        assert_eq!(cache.missing(0, 0..70_000), [8192..12_288, 65_536..70_000]);
    }
}
