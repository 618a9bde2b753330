//! What the medium fetches into the system's memory before it is read: what lies behind a slice that a stream reads, as far as the
//! stream says ([`Device::fetch_behind`]), and chunks that change in place.
//!
//! An update reads the bytes that it replaces before anybody can follow it, which is a quarter of what a synced 4 KiB update takes.
//! A chunk that was updated often will be again, but whether it will nobody knows. So it is fetched once as much was
//! spent on single reads as fetching it costs (the rule of ski rental: never more than twice the cost of who knows the future). A
//! disk that positions for as long as it transfers 1 MiB spends 4 MiB on 4 reads, a flash that takes 0.1 ms a read and 1.5 GB/s
//! on 30: one read for every [`SHARE`] granules lies between. What is in memory may be dropped at any time; then reads
//! are single again, until as many were made as the chunk has granules.
//!
//! A chunk is fetched in pieces, one for each further update of the device, when its lane has nothing else to do: fetched at
//! once, 4 MiB held up the update that came next for 5 ms, six times what it takes itself.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use super::Device;
use crate::ids::{BlockIndex, SegmentId};

/// Granules of a chunk for each update that is waited for.
const SHARE: u64 = 64;

/// Bytes that are fetched at once: what a new request may wait for, 2.5 ms of a disk of 100 MB/s.
const PIECE_BYTES: u64 = 256 << 10;

/// How often chunks were updated since they were opened, and what is to be fetched.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    updates: BTreeMap<SegmentId, u64>,
    /// Bytes of the medium.
    wanted: VecDeque<(SegmentId, Range<u64>)>,
    /// Whether there was an update since the last piece.
    due: bool,
}

impl Prefetch {
    /// One more update, which pays for a piece, of a chunk of so many granules; whether to fetch the chunk now.
    fn updated(&mut self, segment: SegmentId, granules: u64) -> bool {
        let updates = self.updates.entry(segment).or_default();
        *updates += 1;
        self.due = true;
        let first = granules.div_ceil(SHARE);
        *updates >= first && (*updates - first).is_multiple_of(granules.max(1))
    }

    /// The chunk is gone.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.updates.remove(&segment);
        self.wanted.retain(|(of, _)| *of != segment);
    }

    /// Bytes of a chunk are to be fetched, unless some are already: a device that never rests fetches none.
    fn want(&mut self, segment: SegmentId, range: Range<u64>) {
        if self.wanted.iter().all(|(of, _)| *of != segment) {
            self.wanted.push_back((segment, range));
        }
    }

    /// The next piece to fetch.
    fn piece(&mut self) -> Option<Range<u64>> {
        self.due = false;
        let (_, range) = self.wanted.front_mut()?;
        let piece = range.start..range.end.min(range.start + PIECE_BYTES);
        range.start = piece.end;
        if range.is_empty() {
            self.wanted.pop_front();
        }
        Some(piece)
    }
}

impl Device {
    /// Notes an update; the whole chunk is to be fetched where that is worth it.
    pub(super) fn note_update(&mut self, segment: SegmentId) {
        let Some(extent) = self.index.get(segment) else { return };
        let Some(chunk) = extent.chunk() else { return };
        let granule = u64::from(extent.granule.bytes());
        let block_bytes = u64::from(extent.block_bytes);
        let (begin, end) = (u64::from(chunk.start) * block_bytes, u64::from(chunk.end) * block_bytes);
        let places = (extent.granule_place(begin), extent.granule_place(end.saturating_sub(granule)));
        let (Some(first), Some(last)) = places else { return };
        if self.prefetch.updated(segment, (end - begin) / granule) {
            let range = first.data.min(last.data)..first.data.max(last.data) + granule;
            self.prefetch.want(segment, range);
        }
    }

    /// Has the medium fetch up to `ahead` bytes that lie behind byte `offset` of a block, as far as the blocks behind it follow.
    pub fn fetch_behind(&self, segment: SegmentId, index: BlockIndex, offset: u32, ahead: u32) {
        if let Some(range) = self.behind(segment, index, offset, ahead).filter(|range| !range.is_empty()) {
            self.medium.prefetch(range);
        }
    }

    /// Where that lies.
    fn behind(&self, segment: SegmentId, index: BlockIndex, offset: u32, ahead: u32) -> Option<Range<u64>> {
        let extent = self.index.get(segment)?;
        let range = extent.data_of(&extent.slots_from(index)?)?;
        let start = range.start + u64::from(offset);
        Some(start..range.end.min(start + u64::from(ahead)))
    }

    /// Whether [`Device::fetch_piece`] has something to do.
    pub fn has_to_fetch(&self) -> bool {
        self.prefetch.due && !self.prefetch.wanted.is_empty()
    }

    /// Has the medium fetch the next piece of a chunk that is updated often.
    pub fn fetch_piece(&mut self) {
        if let Some(piece) = self.prefetch.piece() {
            self.medium.prefetch(piece);
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
    fn a_chunk_is_fetched_in_pieces_and_not_once_it_is_gone() {
        let mut prefetch = Prefetch::default();
        prefetch.want(SegmentId(1), 4096..4096 + PIECE_BYTES + 8192);
        prefetch.want(SegmentId(1), 0..PIECE_BYTES);
        prefetch.want(SegmentId(2), 0..PIECE_BYTES);
        prefetch.want(SegmentId(3), 0..8192);
        prefetch.forget(SegmentId(2));
        let pieces: Vec<_> = std::iter::from_fn(|| prefetch.piece()).collect();
        let middle = 4096 + PIECE_BYTES;
        assert_eq!(pieces, [4096..middle, middle..middle + 8192, 0..8192]);
    }

    #[test]
    fn a_chunk_of_few_granules_is_not_fetched_at_each_update() {
        let mut prefetch = Prefetch::default();
        let fetched: Vec<u64> = (1..=9).filter(|_| prefetch.updated(SegmentId(1), 4)).collect();
        assert_eq!(fetched, [1, 5, 9]);
    }
}
