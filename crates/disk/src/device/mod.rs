//! A device: extents of blocks on a medium, crash-safe, checked at every read. Synchronous; one owner.
//!
//! # Contract
//!
//! - A block is durable, and may be acknowledged, after the [`Device::flush`] that reports it, not before.
//! - A read gives what was written under that segment, version and index, or an error; never other bytes.
//! - A change that carries an epoch older than the highest seen for its segment is refused.
//! - A failed flush is final: the device only reads until it is opened again, and then, too, where it fails once more.
//! - A place that takes no writes is left alone until the device is opened again; a device with too many of them has failed. What was
//!   answered and belongs there, a change or a log record that only the journal has, stays in the journal and its checkpoints, and in
//!   memory; what was not is refused. A place that cannot be read either reads as failed, and changes that need what it has are refused;
//!   what stays in the journal is read from memory.
//! - A page of the journal that takes no writes is such a place, too. The rest of the index is none, nor is a page of a table of checksums:
//!   one that takes no writes fails the device, each time it is opened.
//! - Blocks never change, except those of an extent that was created for it: see `update`.
//! - A full device refuses new blocks cleanly; reads, seals and deletes still work.
//!
//! ```text
//!              create            write, flush               seal             delete
//! (absent) ────────────> growing ────────────> growing ────────────> sealed ────────> (absent, fenced)
//!                           └───────────────────────── delete ─────────────────────────┘
//! ```

mod appended;
mod commit;
mod create;
mod error;
mod log;
mod open;
mod overlay;
mod prefetch;
mod read;
mod recent;
mod room;
mod tables;
mod update;
mod write;
mod write_back;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

pub use error::{
    ChangeError, CreateError, DeviceError, FormatError, LogError, OpenError, ReadError, UpdateError,
    WriteError,
};
pub use log::LogEntry;
pub use open::FormatOptions;
pub use room::Spend;
pub use update::{Apply, ChunkRead, ChunkState, ReserveInfo, ReservePage, Staged, UpdatesInfo};

use self::{
    appended::Appended, overlay::Overlay, prefetch::Prefetch, recent::Recent, room::Reserved, tables::Tables,
};
use crate::{
    allocator::{Allocator, UNIT_BYTES},
    buffer::BufferPool,
    checksum::Granule,
    ids::{BlockIndex, ClusterId, DeviceId, Epoch, SegmentId, Version},
    index::{
        Extent, Index, Record, Superblock,
        journal::{Journal, Searched},
        log::Ring,
    },
    media::Medium,
};

/// Pages of checksum tables that are kept in memory, per device: 1 MiB.
const TABLE_PAGES_MAX: usize = 256;
/// Bytes of read buffers kept for their next use, per device.
const POOL_IDLE_BYTES_MAX: usize = 4 << 20;
/// Bytes of log records kept for their merges, per device: those of 21 logs of 4 MiB that are merged when three quarters are full.
const RECENT_BYTES_MAX: usize = 64 << 20;
/// Freed ranges shorter than this are not trimmed: the call costs more than the space is worth, and the units
/// are used again anyway.
const TRIM_BYTES_MIN: u64 = 64 << 10;

/// What an extent is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentSpec {
    /// Its segment.
    pub segment: SegmentId,
    /// The segment's version.
    pub version: Version,
    /// The layout's epoch.
    pub epoch: Epoch,
    /// Bytes of each block: 1 to 1 MiB.
    pub block_bytes: u32,
    /// Bytes under each checksum.
    pub granule: Granule,
    /// How many blocks to reserve space for, up to an eighth of what is free; it grows beyond where needed.
    pub expected_blocks: u32,
    /// Present: its blocks may be changed in place once they are there, and all its space, 64 MiB of blocks at most, is taken at
    /// once.
    pub updates: Option<Updates>,
}

/// What an extent that changes in place has beside its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Updates {
    /// Bytes of the space behind the blocks that takes a log: a multiple of 4096; 0: none.
    pub reserve_bytes: u64,
}

/// An extent as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentInfo {
    /// Its segment.
    pub segment: SegmentId,
    /// The segment's version.
    pub version: Version,
    /// The highest epoch seen.
    pub epoch: Epoch,
    /// Bytes of each block.
    pub block_bytes: u32,
    /// Bytes under each checksum.
    pub granule: Granule,
    /// Indices of its blocks in the order they lie on the medium. While the extent grows this includes blocks
    /// that are not flushed yet.
    pub blocks: Vec<Range<BlockIndex>>,
    /// Whether its blocks are final.
    pub sealed: bool,
    /// Number of its creation on this device: tells a new extent from an earlier one of the same segment.
    pub created: u64,
    /// How often a data chunk was changed in place; 0 of all else.
    pub changes: u64,
    /// Whether it is a parity chunk that holds changes of data chunks; its log may hold others.
    pub merged: bool,
}

impl ExtentInfo {
    /// How many blocks it holds.
    pub fn block_count(&self) -> u64 {
        self.blocks.iter().map(|r| u64::from(r.end - r.start)).sum()
    }

    fn new(extent: &Extent) -> ExtentInfo {
        // Only parity has merged anything; what it counts itself are overwrites.
        let merged = extent.updates.as_ref().is_some_and(|updating| !updating.merged.is_empty());
        let mut blocks: Vec<Range<u32>> = Vec::with_capacity(extent.runs.len());
        for run in &extent.runs {
            match blocks.last_mut() {
                Some(last) if last.end == run.index => last.end += run.count,
                _ => blocks.push(run.index..run.index + run.count),
            }
        }
        ExtentInfo {
            segment: extent.segment,
            version: extent.version,
            epoch: extent.epoch,
            block_bytes: extent.block_bytes,
            granule: extent.granule,
            blocks,
            sealed: extent.sealed,
            created: extent.created,
            changes: extent.updates.as_ref().filter(|_| !merged).map_or(0, |updating| updating.version),
            merged,
        }
    }
}

/// How full a device is, in bytes of its data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// All of it.
    pub capacity: u64,
    /// What new extents can have (space of a delete counts once it is flushed).
    pub free: u64,
    /// Separate free runs.
    pub fragments: u64,
    /// Bytes of the longest free run.
    pub longest: u64,
    /// Extents.
    pub extents: u64,
}

/// A block to be written.
#[derive(Debug, Clone)]
pub struct NewBlock<'a> {
    /// Its index.
    pub index: BlockIndex,
    /// Its bytes, exactly as many as the extent's blocks have, in one piece or several; each but the last is whole
    /// granules. Pieces that are page-aligned reach a medium of direct I/O without a copy.
    pub pieces: Vec<&'a [u8]>,
    /// One checksum for each granule.
    pub sums: &'a [u32],
    /// The version under which whoever gives it has found that the pieces have these checksums: while they are in a processor's cache,
    /// it costs less. Without it, or where the extent has another, the device looks before a byte reaches the medium.
    pub checked: Option<Version>,
}

/// What a flush made durable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flushed {
    /// Blocks, as ranges of indices of a segment.
    pub blocks: Vec<(SegmentId, Range<BlockIndex>)>,
}

/// What a read gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRead {
    /// The bytes of the block that the buffer holds: the range asked for, widened to whole granules.
    pub range: Range<u32>,
    /// Their checksums, already verified.
    pub sums: Vec<u32>,
}

/// What a seal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sealed {
    /// Blocks that stay.
    pub kept: u64,
    /// Bytes that become free with the next flush.
    pub freed_bytes: u64,
}

/// One device.
pub struct Device {
    medium: Arc<dyn Medium>,
    superblock: Superblock,
    index: Index,
    allocator: Allocator,
    journal: Journal,
    checkpoint_number: u64,
    checkpoint_slot: u64,
    tables: Tables,
    /// Encoded records since the last flush, and what they mean for others.
    records: Vec<u8>,
    /// What the journal knows of those records; begins anew with them.
    searched: Searched,
    /// Whether the records are releases alone, where there are any.
    only_releases: bool,
    unflushed: Vec<(SegmentId, Range<BlockIndex>)>,
    /// Segments of which something changed, or was logged, that is not flushed.
    changing: BTreeSet<SegmentId>,
    /// Whether what the open found on the medium is durable.
    open_flushed: bool,
    /// Blocks that a commit of the device's own made durable: the next flush reports them.
    flushed: Vec<(SegmentId, Range<BlockIndex>)>,
    /// The last record, kept apart so that a run of blocks becomes one record.
    open_run: Option<Record>,
    /// Units that are free once the records are flushed.
    freed: Vec<Range<u64>>,
    failed: Option<DeviceError>,
    /// Blocks that reads found not to be what was written.
    corrupt: BTreeSet<(SegmentId, BlockIndex)>,
    pool: BufferPool,
    /// Changes in place whose bytes are not.
    overlay: Overlay,
    /// Room for changes that are to be held.
    reserved: Reserved,
    /// Records of logs that only the journal has.
    appended: Appended,
    /// Bytes of both that may wait to be written in place; more than usual for a while where an open found more.
    ready_bound: u64,
    /// Places, one after the other, of which none took what belongs there.
    refusals: u32,
    /// How many commits were made durable: each with all records before it.
    commits: u64,
    /// The records up to this byte must be in a flushed frame before a checkpoint; 0: none need.
    ahead_end: usize,
    /// Logs in reserves, of the extents whose log was used since the open.
    logs: BTreeMap<SegmentId, Ring>,
    /// Those with records that are not flushed.
    logs_unflushed: BTreeSet<SegmentId>,
    /// Whether any of those is in a reserve, and not in the journal.
    reserve_unflushed: bool,
    /// Those with pages ahead of the head that were never written.
    logs_to_prepare: BTreeSet<SegmentId>,
    /// What was appended to them last.
    recent: Recent,
    prefetch: Prefetch,
}

impl Device {
    /// Its cluster.
    pub fn cluster(&self) -> ClusterId {
        self.superblock.cluster
    }

    /// Its name.
    pub fn id(&self) -> DeviceId {
        self.superblock.device
    }

    /// What it stands on.
    pub fn medium(&self) -> &Arc<dyn Medium> {
        &self.medium
    }

    /// Buffers for [`Device::read_block`].
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// The failure that made it read-only.
    pub fn failed(&self) -> Option<&DeviceError> {
        self.failed.as_ref()
    }

    /// How many blocks reads found that are not what was written, since it was opened; 65,536 at most.
    pub fn corrupt_blocks(&self) -> u64 {
        self.corrupt.len() as u64
    }

    /// One extent.
    pub fn extent(&self, segment: SegmentId) -> Option<ExtentInfo> {
        self.index.get(segment).map(ExtentInfo::new)
    }

    /// Extents in the order of segments.
    pub fn extents(&self) -> impl Iterator<Item = ExtentInfo> + '_ {
        self.extents_after(None)
    }

    /// Extents of segments after `after`, in order.
    pub fn extents_after(&self, after: Option<SegmentId>) -> impl Iterator<Item = ExtentInfo> + '_ {
        self.index.after(after).map(ExtentInfo::new)
    }

    /// The highest epoch seen of a segment, even after its extent was deleted (as long as it is remembered).
    pub fn epoch(&self, segment: SegmentId) -> Option<Epoch> {
        self.index.epoch(segment)
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        Usage {
            capacity: self.allocator.capacity_units() * UNIT_BYTES,
            free: self.allocator.free_units() * UNIT_BYTES,
            fragments: self.allocator.fragments() as u64,
            longest: self.allocator.longest() * UNIT_BYTES,
            extents: self.index.len() as u64,
        }
    }

    /// Where a block lies: its first byte on the medium, for the order of requests.
    pub fn locate(&self, segment: SegmentId, index: BlockIndex) -> Option<u64> {
        let extent = self.index.get(segment)?;
        extent.place(extent.slot_of(index)?).map(|p| p.data)
    }

    /// Whether the changes of a segment, as far as there are any, are durable.
    pub fn is_durable(&self, segment: SegmentId) -> bool {
        !self.changing.contains(&segment)
    }

    /// Whether anything waits for a flush.
    pub fn is_clean(&self) -> bool {
        self.records.is_empty()
            && self.open_run.is_none()
            && self.tables.is_clean()
            && self.freed.is_empty()
            && self.logs_unflushed.is_empty()
    }

    /// Compares the free map with the extents, slowly: every unit is either free, used by one extent, waits
    /// for the next flush, or was given up; and what the journal alone has of logs with the logs that were used: all of it is in
    /// force. For tests.
    ///
    /// # Panics
    /// Where they disagree.
    pub fn self_check(&self) {
        let mut map = Allocator::new(self.superblock.data_units());
        for extent in self.index.after(None) {
            for range in extent.used() {
                assert!(map.reserve(range.clone()), "{range:?} of {} is used twice", extent.segment);
            }
        }
        for range in &self.freed {
            assert!(map.reserve(range.clone()), "{range:?} waits to be free but is used");
        }
        for unit in self.allocator.given_up().iter().cloned().flatten() {
            // Nobody's any more, or still the extent's that found it.
            map.reserve(unit..unit + 1);
        }
        assert!(map.runs().eq(self.allocator.runs()), "the free map differs from the extents");
        for (segment, ring) in &self.logs {
            for (page, record) in self.appended.within(*segment, 0..u64::MAX) {
                let entry = ring.entry(record.sequence).filter(|entry| entry.page == page);
                assert!(entry.is_some(), "record {} of {segment} is not in force", record.sequence);
            }
        }
    }
}
