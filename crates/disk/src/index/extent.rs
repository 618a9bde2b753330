//! One extent: what the device holds of one segment, and where.
//!
//! Blocks sit in *slots*, numbered from 0 in the order they were written; *runs* say which index a slot holds.
//! Slots lie in *ranges* of the space, each with its own table of checksums in front, so that a growing
//! extent never moves:
//!
//! ```text
//! range:  | table: slots x sums a block x 4 bytes, padded to 4 KiB | slot | slot | ... |
//! ```
//!
//! An extent whose blocks change in place has one range for good, with a reserve behind it: see `updating`.

use std::ops::Range;

use super::{
    Malformed,
    codec::{Put, Reader},
    updating::Updating,
};
use crate::{
    allocator::UNIT_BYTES,
    checksum::{Granule, Tag},
    ids::{BlockIndex, Epoch, SegmentId, Version},
};

/// The largest block in bytes.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// Runs that an extent grows to: each block that is looked for among them is compared with all, and indices are anybody's choice. A seal
/// may leave more.
pub(crate) const RUNS_MAX: usize = 1 << 16;
const FIXED: u64 = 8 + 8 + 8 + 4 + 4 + 8 + 1 + 1 + 4 + 4;
const RANGE: u64 = 16;
const RUN: u64 = 12;
const BLOCKS: Malformed = Malformed { what: "blocks of an extent" };

/// A piece of the space that an extent owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRange {
    /// Its first unit.
    pub start: u64,
    /// Its first slot.
    pub first_slot: u32,
    /// How many slots it has.
    pub slots: u32,
}

/// Slots `slot..slot + count` hold the blocks `index..index + count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First slot.
    pub slot: u32,
    /// Index of the block in it.
    pub index: BlockIndex,
    /// How many.
    pub count: u32,
}

/// An extent as the index keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Its segment.
    pub segment: SegmentId,
    /// The segment's version at creation.
    pub version: Version,
    /// The highest epoch seen.
    pub epoch: Epoch,
    /// Bytes of each block.
    pub block_bytes: u32,
    /// Bytes under each checksum.
    pub granule: Granule,
    /// Number of this creation on the device: grows.
    pub created: u64,
    /// Whether its blocks are final.
    pub sealed: bool,
    /// Its ranges in the order of slots.
    pub ranges: Vec<ExtentRange>,
    /// Its blocks in the order of slots.
    pub(crate) runs: Vec<Run>,
    /// Behind the highest index of a block: a writer that goes up, as most do, is compared with nothing.
    index_end: BlockIndex,
    /// Present where its blocks may change in place.
    pub updates: Option<Updating>,
}

/// Where a slot lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// First byte of the slot.
    pub(crate) data: u64,
    /// First unit of its range's table.
    pub(crate) table: u64,
    /// Its first byte in that table.
    pub(crate) table_byte: u64,
}

impl Extent {
    /// One without space.
    pub(crate) fn new(
        (segment, version, epoch): (SegmentId, Version, Epoch),
        block_bytes: u32,
        granule: Granule,
        created: u64,
    ) -> Extent {
        Extent {
            segment,
            version,
            epoch,
            block_bytes,
            granule,
            created,
            sealed: false,
            ranges: Vec::new(),
            runs: Vec::new(),
            index_end: 0,
            updates: None,
        }
    }

    /// Units of one slot.
    pub(crate) fn slot_units(&self) -> u64 {
        u64::from(self.block_bytes).div_ceil(UNIT_BYTES)
    }

    /// Bytes of checksums of one slot.
    pub(crate) fn sums_bytes(&self) -> u64 {
        u64::from(self.granule.count(self.block_bytes)) * 4
    }

    /// Units of the table of a range with so many slots.
    pub(crate) fn table_units(&self, slots: u32) -> u64 {
        (u64::from(slots) * self.sums_bytes()).div_ceil(UNIT_BYTES)
    }

    /// Units of a whole range with so many slots.
    pub(crate) fn range_units(&self, slots: u32) -> u64 {
        self.table_units(slots) + u64::from(slots) * self.slot_units()
    }

    /// The most slots that fit a range of so many units.
    pub(crate) fn slots_in(&self, units: u64) -> u32 {
        let bytes_a_slot = self.slot_units() * UNIT_BYTES + self.sums_bytes();
        let guess = u32::try_from(units * UNIT_BYTES / bytes_a_slot).unwrap_or(u32::MAX >> 1);
        // Padding of the table can cost one.
        (0..=1).map(|less| guess.saturating_sub(less)).find(|&s| self.range_units(s) <= units).unwrap_or(0)
    }

    /// Slots of all ranges.
    pub(crate) fn slots(&self) -> u32 {
        self.ranges.last().map_or(0, |r| r.first_slot + r.slots)
    }

    /// The slot the next block goes to.
    pub(crate) fn next_slot(&self) -> u32 {
        self.runs.last().map_or(0, |r| r.slot + r.count)
    }

    /// The unit behind the last range.
    pub(crate) fn end(&self) -> Option<u64> {
        self.ranges.last().map(|r| r.start + self.range_units(r.slots))
    }

    /// The slot that holds this block.
    pub(crate) fn slot_of(&self, index: BlockIndex) -> Option<u32> {
        self.slots_from(index).map(|slots| slots.start)
    }

    /// The slots that hold this block and those which follow it, by index and by slot.
    pub(crate) fn slots_from(&self, index: BlockIndex) -> Option<Range<u32>> {
        if index >= self.index_end {
            return None;
        }
        let run = self.runs.iter().find(|r| r.index <= index && index - r.index < r.count)?;
        Some(run.slot + (index - run.index)..run.slot + run.count)
    }

    /// Where these slots lie, as far as the first of them and those behind it are in one range; bytes of the medium.
    pub(crate) fn data_of(&self, slots: &Range<u32>) -> Option<Range<u64>> {
        let start = self.place(slots.start)?.data;
        let at = self.ranges.partition_point(|r| r.first_slot <= slots.start).checked_sub(1)?;
        let range = self.ranges[at];
        let count = slots.end.min(range.first_slot + range.slots).saturating_sub(slots.start);
        Some(start..start + u64::from(count) * self.slot_units() * UNIT_BYTES)
    }

    pub(crate) fn place(&self, slot: u32) -> Option<Place> {
        let at = self.ranges.partition_point(|r| r.first_slot <= slot).checked_sub(1)?;
        let range = self.ranges[at];
        let number = u64::from(slot - range.first_slot);
        (number < u64::from(range.slots)).then(|| Place {
            data: (range.start + self.table_units(range.slots) + number * self.slot_units()) * UNIT_BYTES,
            table: range.start,
            table_byte: number * self.sums_bytes(),
        })
    }

    /// Where a granule lies. A *position* counts bytes as if block 0 were the first of the chunk: index times
    /// block size, and the byte in the block. It stays right whichever blocks are there.
    pub(crate) fn granule_place(&self, position: u64) -> Option<Place> {
        let (index, granule) = self.granule_at(position)?;
        let place = self.place(self.slot_of(index)?)?;
        Some(Place {
            data: place.data + u64::from(granule) * u64::from(self.granule.bytes()),
            table: place.table,
            table_byte: place.table_byte + u64::from(granule) * 4,
        })
    }

    /// The block and the granule in it that hold a position.
    pub(crate) fn granule_at(&self, position: u64) -> Option<(BlockIndex, u32)> {
        let block = u64::from(self.block_bytes);
        let index = u32::try_from(position / block).ok()?;
        Some((index, (position % block) as u32 / self.granule.bytes()))
    }

    /// The tag of the granule at a position.
    pub(crate) fn tag(&self, position: u64) -> Option<Tag> {
        let (index, granule_number) = self.granule_at(position)?;
        Some(Tag { segment: self.segment, version: self.version, index, granule_number })
    }

    /// The blocks of the chunk, if their indices follow one another.
    pub(crate) fn chunk(&self) -> Option<Range<BlockIndex>> {
        let first = self.runs.iter().map(|r| r.index).min().unwrap_or(0);
        let end = self.index_end;
        (end - first == self.blocks()).then_some(first..end)
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.runs.iter().map(|r| r.count).sum()
    }

    /// The units that are in use: whole ranges while it grows, tables and kept slots once it is sealed.
    pub(crate) fn used(&self) -> Vec<Range<u64>> {
        let mut used: Vec<Range<u64>> = Vec::new();
        let mut push = |range: Range<u64>| match used.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => used.push(range),
        };
        for range in &self.ranges {
            if !self.sealed {
                push(range.start..range.start + self.range_units(range.slots));
                continue;
            }
            let data = range.start + self.table_units(range.slots);
            push(range.start..data);
            let slots = range.first_slot..range.first_slot + range.slots;
            for run in &self.runs {
                let from = run.slot.max(slots.start);
                let to = (run.slot + run.count).min(slots.end);
                if from < to {
                    let unit = |slot: u32| data + u64::from(slot - slots.start) * self.slot_units();
                    push(unit(from)..unit(to));
                }
            }
        }
        if let Some(updates) = &self.updates
            && updates.reserve_units() > 0
        {
            push(updates.reserve.clone());
        }
        used
    }

    pub(super) fn confirm(&mut self, run: Run) {
        self.index_end = self.index_end.max(run.index + run.count);
        match self.runs.last_mut() {
            Some(last) if last.slot + last.count == run.slot && last.index + last.count == run.index => {
                last.count += run.count;
            }
            _ => self.runs.push(run),
        }
    }

    /// The runs that are left when only these blocks stay.
    pub(crate) fn kept_runs(&self, keep: &[Range<u32>]) -> Vec<Run> {
        let mut kept = Vec::new();
        for run in &self.runs {
            let mut parts: Vec<Run> = keep
                .iter()
                .filter_map(|k| {
                    let from = k.start.max(run.index);
                    let to = k.end.min(run.index + run.count);
                    (from < to).then(|| Run {
                        slot: run.slot + (from - run.index),
                        index: from,
                        count: to - from,
                    })
                })
                .collect();
            parts.sort_by_key(|p| p.slot);
            for part in parts {
                // Ranges given twice or overlapping keep a block once.
                let from = kept.last().map_or(0, |l: &Run| l.slot + l.count).max(part.slot);
                let skip = from - part.slot;
                if skip < part.count {
                    kept.push(Run { slot: from, index: part.index + skip, count: part.count - skip });
                }
            }
        }
        kept
    }

    pub(super) fn seal(&mut self, keep: &[Range<u32>]) {
        self.runs = self.kept_runs(keep);
        self.index_end = self.highest();
        self.sealed = true;
        let runs = &self.runs;
        self.ranges.retain(|range| {
            runs.iter()
                .any(|r| r.slot < range.first_slot + range.slots && range.first_slot < r.slot + r.count)
        });
    }

    /// Takes one block out of the runs; its slot stays where it is.
    pub(super) fn forget(&mut self, index: BlockIndex) {
        let Some(at) = self.runs.iter().position(|r| r.index <= index && index - r.index < r.count) else {
            return;
        };
        let run = self.runs[at];
        let before = index - run.index;
        let parts = [
            Run { count: before, ..run },
            Run { slot: run.slot + before + 1, index: index + 1, count: run.count - before - 1 },
        ];
        self.runs.splice(at..=at, parts.into_iter().filter(|p| p.count > 0));
        self.index_end = self.highest();
    }

    fn highest(&self) -> BlockIndex {
        self.runs.iter().map(|r| r.index + r.count).max().unwrap_or(0)
    }

    pub(super) fn encoded_bytes(&self) -> u64 {
        let updates = self.updates.as_ref().map_or(0, Updating::encoded_bytes);
        FIXED + RANGE * self.ranges.len() as u64 + RUN * self.runs.len() as u64 + updates
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.segment.0);
        out.put_u64(self.version.0);
        out.put_u64(self.epoch.0);
        out.put_u32(self.block_bytes);
        out.put_u32(self.granule.bytes());
        out.put_u64(self.created);
        out.put_u8(u8::from(self.sealed));
        out.put_u8(u8::from(self.updates.is_some()));
        out.put_u32(self.ranges.len() as u32);
        out.put_u32(self.runs.len() as u32);
        for range in &self.ranges {
            out.put_u64(range.start);
            out.put_u32(range.first_slot);
            out.put_u32(range.slots);
        }
        for run in &self.runs {
            out.put_u32(run.slot);
            out.put_u32(run.index);
            out.put_u32(run.count);
        }
        if let Some(updates) = &self.updates {
            updates.encode(out);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Extent, Malformed> {
        let mut extent = Extent {
            segment: SegmentId(reader.u64()?),
            version: Version(reader.u64()?),
            epoch: Epoch(reader.u64()?),
            block_bytes: reader.u32()?,
            granule: Granule::new(reader.u32()?).map_err(|_| Malformed { what: "granule" })?,
            created: reader.u64()?,
            sealed: reader.u8()? != 0,
            ranges: Vec::new(),
            runs: Vec::new(),
            index_end: 0,
            updates: None,
        };
        let updatable = reader.u8()? != 0;
        if extent.block_bytes == 0 || extent.block_bytes > BLOCK_BYTES_MAX {
            return Err(Malformed { what: "block size" });
        }
        let (ranges, runs) = (reader.u32()?, reader.u32()?);
        for _ in 0..ranges {
            let range = ExtentRange { start: reader.u64()?, first_slot: reader.u32()?, slots: reader.u32()? };
            extent.check_range(&range)?;
            extent.ranges.push(range);
        }
        for _ in 0..runs {
            let run = Run { slot: reader.u32()?, index: reader.u32()?, count: reader.u32()? };
            extent.check_slots(&run)?;
            extent.runs.push(run);
        }
        extent.check_indices()?;
        extent.index_end = extent.highest();
        if updatable {
            if extent.ranges.len() > 1 {
                return Err(Malformed { what: "ranges of an updatable extent" });
            }
            extent.updates = Some(Updating::decode(reader)?);
        }
        Ok(extent)
    }

    /// Whether this range can follow the ones there are.
    pub(super) fn check_range(&self, range: &ExtentRange) -> Result<(), Malformed> {
        let sound = range.slots > 0
            && (self.updates.is_none() || self.ranges.is_empty())
            && range.first_slot >= self.slots()
            && range.first_slot.checked_add(range.slots).is_some()
            && range.start <= 1 << 52;
        if sound { Ok(()) } else { Err(Malformed { what: "range of an extent" }) }
    }

    /// Whether these blocks can follow the ones there are.
    pub(super) fn check_run(&self, run: &Run) -> Result<(), Malformed> {
        self.check_slots(run)?;
        let is_beside = |r: &Run| r.index + r.count <= run.index || run.index + run.count <= r.index;
        let sound = run.index >= self.index_end || self.runs.iter().all(is_beside);
        if sound { Ok(()) } else { Err(BLOCKS) }
    }

    /// Whether they can be in these slots.
    fn check_slots(&self, run: &Run) -> Result<(), Malformed> {
        let sound = run.count > 0
            && run.slot >= self.next_slot()
            && run.index.checked_add(run.count).is_some()
            && run.slot.checked_add(run.count).is_some_and(|end| self.has_places(run.slot..end));
        if sound { Ok(()) } else { Err(BLOCKS) }
    }

    /// Whether no two blocks that are there have one index.
    fn check_indices(&self) -> Result<(), Malformed> {
        let mut runs = self.runs.clone();
        runs.sort_unstable_by_key(|run| run.index);
        let sound = runs.is_sorted_by(|a, b| a.index + a.count <= b.index);
        if sound { Ok(()) } else { Err(BLOCKS) }
    }

    fn has_places(&self, mut slots: Range<u32>) -> bool {
        while slots.start < slots.end {
            if self.place(slots.start).is_none() {
                return false;
            }
            let behind = self.ranges.partition_point(|r| r.first_slot <= slots.start);
            let range = self.ranges[behind - 1];
            slots.start = range.first_slot + range.slots;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_block_ends_where_its_range_or_its_run_does() {
        let mut extent = Extent::new((SegmentId(1), Version(1), Epoch(1)), 6000, Granule::KIB_4, 0);
        // Two units a slot; a table of one unit before the slots of each range.
        extent.ranges = vec![
            ExtentRange { start: 100, first_slot: 0, slots: 4 },
            ExtentRange { start: 300, first_slot: 4, slots: 4 },
        ];
        extent.confirm(Run { slot: 0, index: 10, count: 6 });
        extent.confirm(Run { slot: 6, index: 30, count: 2 });
        let behind = |index| extent.slots_from(index).map(|slots| extent.data_of(&slots));
        let bytes = |units: Range<u64>| Some(Some(units.start * UNIT_BYTES..units.end * UNIT_BYTES));
        assert_eq!(behind(10), bytes(101..109));
        assert_eq!(behind(13), bytes(107..109));
        assert_eq!(behind(14), bytes(301..305));
        assert_eq!(behind(31), bytes(307..309));
        assert_eq!(behind(16), None);
        assert_eq!(extent.data_of(&(8..9)), None);
    }

    /// Compared with one another they would take minutes.
    #[test]
    fn an_extent_of_very_many_runs_is_read_back() {
        const RUNS: u32 = 300_000;
        let mut extent = Extent::new((SegmentId(1), Version(1), Epoch(1)), 4096, Granule::KIB_4, 0);
        extent.ranges = vec![ExtentRange { start: 100, first_slot: 0, slots: RUNS }];
        // Down and up again: neither order helps.
        let index = |slot: u32| if slot < RUNS / 2 { RUNS - 2 * slot } else { 2 * slot + 1 };
        (0..RUNS).for_each(|slot| extent.confirm(Run { slot, index: index(slot), count: 1 }));
        let decoded = |extent: &Extent| {
            let mut bytes = Vec::new();
            extent.encode(&mut bytes);
            Extent::decode(&mut Reader(&bytes))
        };
        assert!(decoded(&extent) == Ok(extent.clone()));
        // One block twice, far apart.
        extent.runs[RUNS as usize - 1].index = index(0);
        assert_eq!(decoded(&extent), Err(BLOCKS));
        extent.runs[RUNS as usize - 1] = Run { slot: RUNS, index: 0, count: 1 };
        assert_eq!(decoded(&extent), Err(BLOCKS), "a slot without a place");
    }
}
