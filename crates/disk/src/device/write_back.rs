//! Writing changes in place, once their redo is durable: sorted by place, with their checksums.
//!
//! What is written here stays in the journal until a checkpoint, so a granule that a crash tears is healed by replay. A checkpoint
//! takes the redo of what is not in place yet with it: nobody waits for that on a disk that positions for each granule.

use std::{cmp::Reverse, io::IoSlice, ops::Range};

use bytes::Bytes;

use super::{Device, DeviceError};
use crate::{allocator::UNIT_BYTES, ids::SegmentId, index::Place, media::MediumError};

/// Granules of one write: 1 MiB of 4 KiB ones, and well below the 1024 pieces that the system takes at once.
const RUN_GRANULES_MAX: usize = 256;
/// Pages of a reserve that are zeroed at once: 256 KiB, 2.5 ms of a disk of 100 MB/s for 64 small records.
pub(super) const PREPARE_PAGES: u64 = 64;

struct Granule {
    place: Place,
    segment: SegmentId,
    position: u64,
    bytes: Bytes,
    sum: u32,
}

impl Device {
    /// Bytes of changes that are not in place and not held. Some may wait for a flush first.
    pub fn to_write_back(&self) -> u64 {
        self.overlay.ready_bytes()
    }

    /// Writes changes in place, at most `max_bytes` of them (but one granule at least): those whose redo and release
    /// are durable. Returns how many bytes it wrote; they need no flush of their own.
    ///
    /// # Errors
    /// Where the medium fails; the device only reads from then on.
    pub fn write_back(&mut self, max_bytes: u64) -> Result<u64, DeviceError> {
        self.check_alive()?;
        let outcome = self.put_in_place(max_bytes, usize::MAX);
        self.or_fail(outcome)
    }

    /// The same for the first granules that are neighbours: one operation, and one for their checksums.
    ///
    /// # Errors
    /// As [`Device::write_back`].
    pub fn write_back_run(&mut self, max_bytes: u64) -> Result<u64, DeviceError> {
        self.check_alive()?;
        let outcome = self.put_in_place(max_bytes, 1);
        self.or_fail(outcome)
    }

    pub(super) fn put_in_place(&mut self, max_bytes: u64, runs_max: usize) -> Result<u64, MediumError> {
        let segments: Vec<_> = self.overlay.ready_by_segment().map(|(segment, _)| segment).collect();
        self.put_of(segments, max_bytes, runs_max)
    }

    /// Of the segments that have most of it: neighbours are one operation, and near ones one positioning.
    pub(super) fn put_densest(&mut self, max_bytes: u64) -> Result<u64, MediumError> {
        let mut segments: Vec<_> = self.overlay.ready_by_segment().collect();
        segments.sort_by_key(|&(_, bytes)| Reverse(bytes));
        let (mut bytes, mut densest) = (0, Vec::new());
        for (segment, of_it) in segments {
            if bytes >= max_bytes {
                break;
            }
            bytes += of_it;
            densest.push(segment);
        }
        self.put_of(densest, max_bytes, usize::MAX)
    }

    fn put_of(
        &mut self,
        segments: Vec<SegmentId>,
        max_bytes: u64,
        runs_max: usize,
    ) -> Result<u64, MediumError> {
        let mut granules = Vec::new();
        let mut gone = Vec::new();
        for segment in segments {
            let extent = self.index.get(segment);
            for (position, ready) in self.overlay.ready(segment, self.commits) {
                match extent.and_then(|extent| extent.granule_place(position)) {
                    Some(place) => {
                        let (bytes, sum) = (ready.bytes.clone(), ready.sum);
                        granules.push(Granule { place, segment, position, bytes, sum });
                    }
                    None => gone.push((segment, position)),
                }
            }
        }
        for (segment, position) in gone {
            self.overlay.written(segment, position);
        }
        granules.sort_unstable_by_key(|g| g.place.data);
        let mut bytes = 0;
        let fits = granules.iter().take_while(|granule| {
            bytes += granule.bytes.len() as u64;
            bytes <= max_bytes
        });
        let count = fits.count().max(1).min(granules.len());
        let follows = |a: &Granule, b: &Granule| {
            a.segment == b.segment
                && a.place.data + a.bytes.len() as u64 == b.place.data
                && (a.place.table, a.place.table_byte + 4) == (b.place.table, b.place.table_byte)
        };
        let mut written = 0;
        let runs = granules[..count].chunk_by(follows).flat_map(|run| run.chunks(RUN_GRANULES_MAX));
        for run in runs.take(runs_max) {
            let slices: Vec<IoSlice<'_>> = run.iter().map(|g| IoSlice::new(&g.bytes)).collect();
            let sums: Vec<u32> = run.iter().map(|g| g.sum).collect();
            self.tables.change(&*self.medium, run[0].place.table, run[0].place.table_byte, &sums)?;
            self.medium.write_vectored_at(run[0].place.data, &slices)?;
            for granule in run {
                written += granule.bytes.len() as u64;
                self.overlay.written(granule.segment, granule.position);
            }
        }
        Ok(written)
    }

    /// Zeroes a reserve ahead of its log's head, by at most 512 KiB, so that no append has to. `false`: there is
    /// nothing to do.
    ///
    /// # Errors
    /// Where the medium fails; the device only reads from then on.
    pub fn prepare_ahead(&mut self) -> Result<bool, DeviceError> {
        self.check_alive()?;
        let Some(segment) = self.logs_to_prepare.pop_first() else { return Ok(false) };
        let pages = self.logs.get(&segment).map_or(0..0, |ring| ring.ahead(PREPARE_PAGES));
        let outcome = self.prepare_reserve(segment, pages);
        self.or_fail(outcome)?;
        Ok(true)
    }

    /// Whether [`Device::prepare_ahead`] has something to do.
    pub fn has_to_prepare(&self) -> bool {
        !self.logs_to_prepare.is_empty()
    }

    pub(super) fn prepare_reserve(
        &mut self,
        segment: SegmentId,
        pages: Range<u64>,
    ) -> Result<(), MediumError> {
        if pages.is_empty() {
            return Ok(());
        }
        let reserve = self.index.get(segment).and_then(|e| e.updates.as_ref()).map(|u| u.reserve.start);
        let (Some(start), Some(ring)) = (reserve, self.logs.get_mut(&segment)) else { return Ok(()) };
        self.medium.prepare((start + pages.start) * UNIT_BYTES..(start + pages.end) * UNIT_BYTES)?;
        ring.was_prepared(&pages);
        Ok(())
    }
}
