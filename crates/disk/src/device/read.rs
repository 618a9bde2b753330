//! Reads: blocks, and granules of what changes in place, all verified.

use std::ops::Range;

use super::{BlockRead, Device, ReadError};
use crate::{
    allocator::UNIT_BYTES,
    buffer::AlignedBuf,
    checksum,
    ids::{BlockIndex, SegmentId},
    index::{Extent, Place},
    media::MediumError,
};

/// Neighbouring granules that are read together.
struct Run {
    /// The first of them, in the read.
    first: usize,
    count: usize,
    place: Place,
}

/// Corrupt blocks that are told apart, so that each counts once however often it is read: 2 MiB of memory; a device that has more is
/// broken, and its count stays there.
const CORRUPT_COUNTED_MAX: usize = 1 << 16;

impl Device {
    /// Whether the medium gives what lies around byte `offset`, whatever it is.
    pub(crate) fn can_read(&self, offset: u64) -> Result<(), MediumError> {
        let mut buf = self.pool().take(UNIT_BYTES as usize);
        self.medium.probe(offset / UNIT_BYTES * UNIT_BYTES, &mut buf)
    }

    /// Where a part of all data begins, by its number of so many that are equally long; `None` where there is no data.
    pub(crate) fn data_at(&self, number: u64, of: u64) -> Option<u64> {
        let bytes = |extent: &Extent| u64::from(extent.blocks()) * extent.slot_units() * UNIT_BYTES;
        let all: u64 = self.index.after(None).map(bytes).sum();
        let mut before = (u128::from(all) * u128::from(number) / u128::from(of)) as u64;
        for extent in self.index.after(None) {
            for run in &extent.runs {
                let slot_bytes = extent.slot_units() * UNIT_BYTES;
                let run_bytes = u64::from(run.count) * slot_bytes;
                if before < run_bytes {
                    let slot = run.slot + (before / slot_bytes) as u32;
                    return Some(extent.place(slot)?.data + before % slot_bytes);
                }
                before -= run_bytes;
            }
        }
        None
    }

    /// Reads bytes `range` of a block, widened to whole granules, into `buf`, and verifies them. After an error
    /// the content of `buf` is unspecified.
    pub fn read_block(
        &mut self,
        segment: SegmentId,
        index: BlockIndex,
        range: Range<u32>,
        buf: &mut AlignedBuf,
    ) -> Result<BlockRead, ReadError> {
        let extent = self.index.get(segment).ok_or(ReadError::NoExtent { segment })?;
        let slot = extent.slot_of(index).ok_or(ReadError::NoBlock { segment, index })?;
        let (block_bytes, granule, version) = (extent.block_bytes, extent.granule, extent.version);
        if range.start > range.end || range.end > block_bytes {
            return Err(ReadError::OutOfRange { start: range.start, end: range.end, block_bytes });
        }
        let place = extent.place(slot).expect("a run's slots have places");
        if range.is_empty() {
            buf.resize(0);
            return Ok(BlockRead { range, sums: Vec::new() });
        }
        let granules = range.start / granule.bytes()..range.end.div_ceil(granule.bytes());
        let range = granules.start * granule.bytes()..(granules.end * granule.bytes()).min(block_bytes);
        if self.overlay.covers(segment) {
            let base = u64::from(index) * u64::from(block_bytes);
            let positions = base + u64::from(range.start)..base + u64::from(range.end);
            let sums = self.read_granules(segment, positions, usize::MAX, buf)?;
            return Ok(BlockRead { range, sums });
        }
        let len = (range.end - range.start) as usize;
        let table_bytes =
            place.table_byte + u64::from(granules.start) * 4..place.table_byte + u64::from(granules.end) * 4;
        let sums = self.tables.get(&*self.medium, place.table, table_bytes)?;
        buf.resize(len.next_multiple_of(UNIT_BYTES as usize));
        self.medium.read_at(place.data + u64::from(range.start), buf)?;
        buf.truncate(len);
        match checksum::verify(buf, granule, segment, version, index, granules.start, &sums) {
            Ok(()) => Ok(BlockRead { range, sums }),
            Err(mismatch) => {
                self.note_corrupt(segment, index);
                tracing::warn!(%segment, index, granule = mismatch.granule, "corrupt block");
                Err(ReadError::Corrupt { segment, index, granule: mismatch.granule })
            }
        }
    }

    /// Reads granules at `positions` (whole granules, of blocks with consecutive indices) into `buf`, as they are
    /// after the first `changes` of the held ones, and verifies what comes from the medium. Neighbours on the medium
    /// are one operation; what is newer than the medium costs none.
    pub(super) fn read_granules(
        &mut self,
        segment: SegmentId,
        positions: Range<u64>,
        changes: usize,
        buf: &mut AlignedBuf,
    ) -> Result<Vec<u32>, ReadError> {
        let extent = self.index.get(segment).ok_or(ReadError::NoExtent { segment })?;
        let granule = extent.granule.bytes() as usize;
        buf.resize((positions.end - positions.start) as usize);
        let mut sums = vec![0; buf.len() / granule];
        let mut runs: Vec<Run> = Vec::new();
        for (number, position) in positions.clone().step_by(granule).enumerate() {
            let place = extent.granule_place(position).ok_or_else(|| ReadError::NoBlock {
                segment,
                index: extent.granule_at(position).map_or(BlockIndex::MAX, |(index, _)| index),
            })?;
            if let Some((bytes, sum)) = self.overlay.get(segment, position, changes) {
                buf[number * granule..(number + 1) * granule].copy_from_slice(bytes);
                sums[number] = sum;
                continue;
            }
            match runs.last_mut() {
                Some(run)
                    if run.first + run.count == number
                        && run.place.table == place.table
                        && run.place.data + (run.count * granule) as u64 == place.data
                        && run.place.table_byte + run.count as u64 * 4 == place.table_byte =>
                {
                    run.count += 1;
                }
                _ => runs.push(Run { first: number, count: 1, place }),
            }
        }
        for Run { first, count, place } in runs {
            let table_bytes = place.table_byte..place.table_byte + count as u64 * 4;
            let stored = self.tables.get(&*self.medium, place.table, table_bytes)?;
            let part = &mut buf[first * granule..(first + count) * granule];
            self.medium.read_at(place.data, part)?;
            for (number, data) in part.chunks(granule).enumerate() {
                let position = positions.start + ((first + number) * granule) as u64;
                let tag = self.index.get(segment).and_then(|e| e.tag(position)).expect("it has a place");
                if checksum::sum(data, &tag) != stored[number] {
                    self.note_corrupt(segment, tag.index);
                    tracing::warn!(%segment, index = tag.index, granule = tag.granule_number, "corrupt block");
                    return Err(ReadError::Corrupt {
                        segment,
                        index: tag.index,
                        granule: tag.granule_number,
                    });
                }
            }
            sums[first..first + count].copy_from_slice(&stored);
        }
        Ok(sums)
    }

    /// A block is not what was written.
    fn note_corrupt(&mut self, segment: SegmentId, index: BlockIndex) {
        if self.corrupt.len() < CORRUPT_COUNTED_MAX {
            self.corrupt.insert((segment, index));
        }
    }
}
