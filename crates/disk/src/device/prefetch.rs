//! When a chunk that changes in place is fetched whole into the system's memory.
//!
//! An update reads the bytes that it replaces before anybody can follow it, which is a quarter of what a synced 4 KiB update takes.
//! A chunk that was updated often will be again, but whether it will nobody knows. So it is fetched once as much was
//! spent on single reads as fetching it costs (the rule of ski rental: never more than twice the cost of who knows the future). A
//! disk that positions for as long as it transfers 1 MiB spends 4 MiB on 4 reads, a flash that takes 0.1 ms a read and 1.5 GB/s
//! on 30: one read for every [`SHARE`] granules lies between. What is in memory may be dropped at any time; then reads
//! are single again, until as many were made as the chunk has granules.

use std::collections::BTreeMap;

use super::Device;
use crate::ids::SegmentId;

/// Granules of a chunk for each update that is waited for.
const SHARE: u64 = 64;

/// How often chunks were updated since they were opened.
#[derive(Debug, Default)]
pub(super) struct Prefetch(BTreeMap<SegmentId, u64>);

impl Prefetch {
    /// One more update of a chunk of so many granules; whether to fetch the chunk now.
    fn updated(&mut self, segment: SegmentId, granules: u64) -> bool {
        let updates = self.0.entry(segment).or_default();
        *updates += 1;
        let first = granules.div_ceil(SHARE);
        *updates >= first && (*updates - first).is_multiple_of(granules.max(1))
    }

    /// The chunk is gone.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.0.remove(&segment);
    }
}

impl Device {
    /// Notes an update, and has the medium fetch the whole chunk where that is worth it.
    pub(super) fn fetch_ahead(&mut self, segment: SegmentId) {
        let Some(extent) = self.index.get(segment) else { return };
        let Some(chunk) = extent.chunk() else { return };
        let granule = u64::from(extent.granule.bytes());
        let block_bytes = u64::from(extent.block_bytes);
        let (begin, end) = (u64::from(chunk.start) * block_bytes, u64::from(chunk.end) * block_bytes);
        let places = (extent.granule_place(begin), extent.granule_place(end.saturating_sub(granule)));
        let (Some(first), Some(last)) = places else { return };
        if self.prefetch.updated(segment, (end - begin) / granule) {
            self.medium.prefetch(first.data.min(last.data)..first.data.max(last.data) + granule);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_fetched_after_a_share_of_its_granules_and_then_after_as_many_as_it_has() {
        let mut prefetch = Prefetch::default();
        let segment = SegmentId(1);
        let fetched: Vec<u64> = (1..=2100).filter(|_| prefetch.updated(segment, 1024)).collect();
        assert_eq!(fetched, [16, 1040, 2064]);
        assert!(!prefetch.updated(SegmentId(2), 1024), "chunks count by themselves");
        prefetch.forget(segment);
        assert!(!prefetch.updated(segment, 1024));
    }

    #[test]
    fn a_chunk_of_few_granules_is_not_fetched_at_each_update() {
        let mut prefetch = Prefetch::default();
        let fetched: Vec<u64> = (1..=9).filter(|_| prefetch.updated(SegmentId(1), 4)).collect();
        assert_eq!(fetched, [1, 5, 9]);
    }
}
