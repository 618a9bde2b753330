//! Formatting, opening and recovery of a device.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use super::{
    Device, FormatError, OpenError, POOL_IDLE_BYTES_MAX, RECENT_BYTES_MAX, TABLE_PAGES_MAX,
    appended::Appended, commit::note_change, overlay::Overlay, prefetch::Prefetch, recent::Recent,
    tables::Tables, write::RUN_BYTES,
};
use crate::{
    allocator::{Allocator, UNIT_BYTES},
    buffer::BufferPool,
    ids::{BlockIndex, ClusterId, DeviceId, SegmentId},
    index::{
        Extent, FORMAT_VERSION, Index, Record, Superblock, checkpoint,
        journal::{Journal, ReplayError, Replayed, Start},
        superblock::Found,
    },
    media::{Medium, MediumError},
};

/// Bytes of neighbouring extents whose room is asked for at once. No more than one extent has, 64 MiB of blocks and as much of reserve:
/// some filesystems want as much free as they are asked for, whether or not any of it is missing.
const FILLED_AT_ONCE_BYTES: u64 = 128 << 20;
/// Extents that are not created before the next checkpoint: each is a record of 33 bytes in the ring or in memory, which would be 140 GB.
const CREATED_BETWEEN_CHECKPOINTS_MAX: u64 = 1 << 32;

/// How a device is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatOptions {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its name: drawn at random by the caller.
    pub device: DeviceId,
    /// Whether a device that is already there is overwritten.
    pub overwrite: bool,
    /// Whether the medium was filled with zeros and the device keeps that room: then nothing of it is ever trimmed, and
    /// no write pays for being the first at its place.
    pub thick: bool,
    /// Bytes of each checkpoint slot; `None`: a share of the capacity.
    pub checkpoint_bytes: Option<u64>,
    /// Bytes of the journal; `None`: a share of the capacity.
    pub journal_bytes: Option<u64>,
}

impl FormatOptions {
    /// The usual sizes; nothing is overwritten.
    pub fn new(cluster: ClusterId, device: DeviceId) -> FormatOptions {
        let (overwrite, thick, checkpoint_bytes, journal_bytes) = Default::default();
        FormatOptions { cluster, device, overwrite, thick, checkpoint_bytes, journal_bytes }
    }
}

impl Device {
    /// Makes an empty device. Interrupted at any point, it leaves the old device or none.
    pub fn format(medium: &dyn Medium, options: FormatOptions) -> Result<(), FormatError> {
        let capacity = medium.capacity() / UNIT_BYTES * UNIT_BYTES;
        let too_small = FormatError::TooSmall { capacity };
        if capacity < 4 * UNIT_BYTES {
            return Err(too_small);
        }
        let superblock = Superblock::new(
            options.cluster,
            options.device,
            capacity,
            options.checkpoint_bytes,
            options.journal_bytes,
            options.thick,
        )
        .ok_or(too_small)?;
        if !options.overwrite
            && let Found::Valid(found) = Superblock::read(medium)?
        {
            return Err(FormatError::Formatted { device: found.device, cluster: found.cluster });
        }
        Superblock::erase(medium)?;
        medium.flush()?;
        if !options.thick {
            medium.trim(UNIT_BYTES..capacity - UNIT_BYTES)?;
        }
        // A commit must find room for both, however full the medium is.
        medium.guarantee(superblock.checkpoint_start(0)..superblock.journal_start())?;
        medium.prepare(superblock.journal_start()..superblock.data_start())?;
        let index = Index::new(checkpoint::fences_max(&superblock));
        let start = Start { head: 0, next_sequence: 1, base: 1 };
        checkpoint::write(medium, &superblock, 1, 0, start, &index, &[])?;
        medium.flush()?;
        superblock.write(medium)?;
        medium.flush()?;
        Ok(())
    }

    /// Opens a device and recovers what a crash left. `expected`: refuse a device of another cluster. One whose medium takes no writes
    /// any more only reads ([`Device::failed`]): what was recovered is in memory alone, and is found again by the next open.
    pub fn open(medium: Arc<dyn Medium>, expected: Option<ClusterId>) -> Result<Device, OpenError> {
        let superblock = match Superblock::read(&*medium)? {
            Found::Valid(superblock) => superblock,
            Found::Blank => return Err(OpenError::Blank),
            Found::Version(found) => {
                return Err(OpenError::UnknownVersion { found, supported: FORMAT_VERSION });
            }
            Found::Damaged => return Err(OpenError::SuperblockDamaged),
        };
        if let Some(expected) = expected
            && expected != superblock.cluster
        {
            let (device, found) = (superblock.device, superblock.cluster);
            return Err(OpenError::WrongCluster { device, found, expected });
        }
        if superblock.capacity > medium.capacity() {
            return Err(OpenError::Truncated { recorded: superblock.capacity, actual: medium.capacity() });
        }
        // Whoever had it open may have ended between a write and its flush: what is read from here on, and acted upon, is durable. Where
        // it may not be, nothing is done but to read.
        let flushed = medium.flush();
        let damaged = |reason: &str| OpenError::IndexDamaged { reason: reason.to_owned() };
        let loaded =
            checkpoint::load(&*medium, &superblock)?.ok_or_else(|| damaged("no whole checkpoint is left"))?;
        let Replayed { records, durable_through, journal } =
            Journal::replay(&*medium, &superblock, loaded.start, loaded.is_newest).map_err(|error| {
                match error {
                    ReplayError::Medium(error) => OpenError::Medium(error),
                    other => OpenError::IndexDamaged { reason: other.to_string() },
                }
            })?;
        let mut index = loaded.index;
        let mut doubtful = Vec::new();
        // Where the flush failed, of what nobody can say whether it is durable.
        let mut changing = BTreeSet::new();
        if flushed.is_err() && records.is_empty() {
            // The checkpoint itself may not be, and may alone have redo.
            changing.extend(loaded.redo.iter().map(Record::segment));
        }
        let (mut overlay, mut appended) = (Overlay::default(), Appended::default());
        for record in &loaded.redo {
            overlay.follow(record, &index, 0);
            appended.follow(record, 0);
        }
        for (sequence, records) in &records {
            for record in records {
                index.apply(record)?;
                // All that replay reached is on the medium: its content may go in place after commit 0.
                overlay.follow(record, &index, 0);
                appended.follow(record, 0);
                if let Record::Confirmed { segment, run } = record
                    && *sequence > durable_through
                {
                    doubtful.extend((run.index..run.index + run.count).map(|index| (*segment, index)));
                }
                if flushed.is_err() && *sequence > durable_through {
                    note_change(&mut changing, record);
                }
            }
        }
        index.create_from(first_creation(loaded.number));
        let mut allocator = Allocator::new(superblock.data_units());
        for extent in index.after(None) {
            if !extent.used().into_iter().all(|range| allocator.reserve(range)) {
                return Err(damaged("an extent leaves the space or overlaps another"));
            }
        }
        let mut device = Device {
            medium,
            superblock,
            index,
            allocator,
            journal,
            checkpoint_number: loaded.number,
            checkpoint_slot: loaded.slot,
            tables: Tables::new(TABLE_PAGES_MAX),
            records: Vec::new(),
            searched: Default::default(),
            unflushed: Vec::new(),
            changing,
            open_flushed: flushed.is_ok(),
            flushed: Vec::new(),
            only_releases: true,
            open_run: None,
            freed: Vec::new(),
            failed: None,
            corrupt: BTreeSet::new(),
            pool: BufferPool::new(POOL_IDLE_BYTES_MAX),
            ready_bound: super::commit::ready_bound(&superblock, overlay.ready_bytes() + appended.bytes()),
            overlay,
            reserved: Default::default(),
            appended,
            refusals: 0,
            commits: 1,
            ahead_end: 0,
            logs: BTreeMap::new(),
            logs_unflushed: BTreeSet::new(),
            reserve_unflushed: false,
            logs_to_prepare: BTreeSet::new(),
            recent: Recent::new(RECENT_BYTES_MAX),
            prefetch: Prefetch::default(),
        };
        device.forget_unfinished(&doubtful);
        if flushed.is_ok() {
            device.restore_room();
        }
        // The cut of the journal becomes final here: see `journal`, "Which frames count". Where it cannot, nothing comes behind it either.
        let settled = flushed
            .and_then(|()| if device.to_write_back() > 0 { device.settle() } else { device.checkpoint() });
        if device.or_fail(settled).is_ok() {
            device.mend_superblock();
        }
        device.corrupt.clear();
        tracing::debug!(device = %device.id(), frames = records.len(), "opened");
        Ok(device)
    }

    /// Takes room that a copy of the device may lack, which leaves out zeros: changes that were answered rely on it.
    fn restore_room(&self) {
        let device = self.id();
        match self.fill_holes() {
            Ok((0, 0)) => {}
            // Of its own area, which was filled when it was made and has many zeros, any copy without those lacks some. A reserve may never
            // have had its room: where its extent was made the medium did not position, as one whose emulation was another then.
            Ok((0, bytes)) => tracing::debug!(%device, bytes, "reserves have their room now"),
            Ok((own, extents)) => {
                let bytes = own + extents;
                tracing::warn!(%device, bytes, "it had holes, as a sparse copy has: their room is taken")
            }
            Err((bytes, MediumError::Full)) => tracing::warn!(
                %device, bytes,
                "some of so many bytes of it have no room, as in a sparse copy: free as many beside it and start its server anew, or it \
                 fails with the change that needs them"
            ),
            // The open goes on, and finds out what it means.
            Err((_, error)) => tracing::debug!(%device, %error, "its holes are not filled"),
        }
    }

    /// How many bytes were taken for its own area, or for all of it where it is thick, and for extents; or of how many there is no room
    /// for all.
    fn fill_holes(&self) -> Result<(u64, u64), (u64, MediumError)> {
        let fill = |range: Range<u64>| {
            let bytes = range.end - range.start;
            self.medium.fill_holes(range).map_err(|error| (bytes, error))
        };
        if self.superblock.thick {
            return fill(0..self.superblock.capacity).map(|taken| (taken, 0));
        }
        let own = fill(0..self.superblock.data_start())?;
        // Even where that lacked nothing: an open before this one may have come so far and no further, for want of room or of time.
        let reserves = self.medium.positions() || self.appended.bytes() > 0;
        let extents = self.index.after(None);
        let mut ranges: Vec<Range<u64>> = extents.flat_map(|extent| relied_on(extent, reserves)).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let joins = last.end == next.start && next.end - last.start <= FILLED_AT_ONCE_BYTES;
            if joins {
                last.end = next.end;
            }
            joins
        });
        let mut of_extents = 0;
        for range in ranges {
            of_extents += fill(range)?;
        }
        Ok((own, of_extents))
    }

    /// Writes the superblock again where one of its copies is bad: with one left the device is one bad page away from its end. One
    /// that cannot be written stays as it is.
    fn mend_superblock(&mut self) {
        if self.superblock.is_whole(&*self.medium) {
            return;
        }
        let written = self.superblock.mend(&*self.medium).and_then(|()| self.medium.flush());
        tracing::warn!(device = %self.id(), ?written, "one copy of the superblock was bad, and was written again");
    }

    /// Forgets the blocks of the last, unacknowledged group that did not survive. Where the index has no room for the gap they leave in
    /// a run, those behind them go, too: nobody was told of those either.
    fn forget_unfinished(&mut self, doubtful: &[(SegmentId, BlockIndex)]) {
        let mut buf = self.pool.take(0);
        let all = doubtful.iter().copied().collect();
        for &(segment, index) in doubtful {
            let Some(extent) = self.index.get(segment) else { continue };
            let (block_bytes, sealed) = (extent.block_bytes, extent.sealed);
            let read = self.read_block(segment, index, 0..block_bytes, &mut buf);
            if !matches!(read, Err(super::ReadError::Corrupt { .. })) {
                continue;
            }
            let before = if sealed { extent_used(&self.index, segment) } else { Vec::new() };
            for index in self.forgotten_with(segment, index, &all).rev() {
                self.index.forget(segment, index);
            }
            if sealed {
                self.freed_between(before, extent_used(&self.index, segment));
            }
        }
        for range in std::mem::take(&mut self.freed) {
            self.allocator.release(range);
        }
        self.tables = Tables::new(TABLE_PAGES_MAX);
    }

    /// A block to be forgotten, and those behind it that go with it.
    fn forgotten_with(
        &self,
        segment: SegmentId,
        index: BlockIndex,
        doubtful: &BTreeSet<(SegmentId, BlockIndex)>,
    ) -> Range<BlockIndex> {
        let extent = self.index.get(segment);
        let run = extent.and_then(|e| e.runs.iter().find(|r| r.index <= index && index - r.index < r.count));
        let Some(run) = run else { return index..index };
        let end = run.index + run.count;
        let splits = run.index < index && index + 1 < end;
        if !splits || self.index.full_bytes() + RUN_BYTES <= checkpoint::index_max(&self.superblock) {
            return index..index + 1;
        }
        // What lies behind it in its run was written after it.
        let behind = (index + 1..end).take_while(|behind| doubtful.contains(&(segment, *behind)));
        index..behind.last().map_or(index, |last| last) + 1
    }
}

/// Bytes of an extent that are written when nobody can be refused any more: tables, blocks that change in place, and the reserve where
/// records of logs come to `reserves` only after they were answered. All of it had its room when the extent was made or the block was
/// written, so that only a copy lacks any; but for reserves that were made where the medium did not position. Of an extent that is sealed
/// and does not change nothing is written.
fn relied_on(extent: &Extent, reserves: bool) -> Vec<Range<u64>> {
    let bytes = |units: Range<u64>| units.start * UNIT_BYTES..units.end * UNIT_BYTES;
    let tables = extent.ranges.iter();
    let tables = tables.map(|range| bytes(range.start..range.start + extent.table_units(range.slots)));
    let Some(updates) = &extent.updates else {
        return if extent.sealed { Vec::new() } else { tables.collect() };
    };
    let blocks = extent.runs.iter().filter_map(|run| extent.data_of(&(run.slot..run.slot + run.count)));
    tables.chain(blocks).chain(reserves.then(|| bytes(updates.reserve.clone()))).collect()
}

/// The least number of a creation by who opens a device and finds this checkpoint. An extent that was lost may have left records in its
/// reserve, which name the number of its creation: no other extent may have that. Whoever created it had found an earlier checkpoint, as
/// each writes one when it opens the device, and has for each that it writes more numbers than it can use.
fn first_creation(checkpoint: u64) -> u64 {
    let first =
        checkpoint.checked_add(1).and_then(|number| number.checked_mul(CREATED_BETWEEN_CHECKPOINTS_MAX));
    first.unwrap_or(0)
}

fn extent_used(index: &Index, segment: SegmentId) -> Vec<Range<u64>> {
    index.get(segment).map(|e| e.used()).unwrap_or_default()
}
