//! Errors of a device, one type per kind of operation.

use crate::{
    checksum::Mismatch,
    ids::{BlockIndex, ClusterId, DeviceId, Epoch, SegmentId},
    index::Malformed,
    media::MediumError,
};

/// The device no longer takes changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A write to a checkpoint or to a table of checksums, or a flush, failed earlier, or when it was opened, or there was no room for what
    /// changed in place, or too many places took no writes. What was not acknowledged may or may not be there; only opening the device
    /// again tells, which fails it once more where the page is still bad. Reads still work.
    #[error("the device failed ({cause}) and only reads until it is opened again")]
    Failed {
        /// The first failure.
        cause: MediumError,
    },
    /// The thread that serves it has ended by a fault of its own.
    #[error("the device's thread has ended by a fault: it serves nothing until its server is started again")]
    Ended,
}

/// Why a device could not be formatted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is a device on this medium already.
    #[error("the medium holds device {device} of cluster {cluster}; it is only overwritten on demand")]
    Formatted {
        /// The device found.
        device: DeviceId,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// The medium cannot hold the index and any data.
    #[error("{capacity} bytes are too few for a device; at least 1 MiB is needed")]
    TooSmall {
        /// The medium's capacity.
        capacity: u64,
    },
    /// The medium failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// Why a device could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// All zeros where the superblocks should be: never formatted, or wiped. Its content is lost.
    #[error("the medium is blank: never formatted, or wiped")]
    Blank,
    /// It belongs to another cluster.
    #[error("device {device} belongs to cluster {found}, not to {expected}")]
    WrongCluster {
        /// The device found.
        device: DeviceId,
        /// Its cluster.
        found: ClusterId,
        /// The cluster asked for.
        expected: ClusterId,
    },
    /// The medium is shorter than the device.
    #[error("the device has {recorded} bytes but the medium only {actual}: it was truncated")]
    Truncated {
        /// Capacity at the format.
        recorded: u64,
        /// Capacity found.
        actual: u64,
    },
    /// Another program version wrote it.
    #[error("format version {found} is not known; this program reads version {supported}")]
    UnknownVersion {
        /// Version found.
        found: u32,
        /// Version understood.
        supported: u32,
    },
    /// Neither superblock is whole.
    #[error("both superblocks are damaged: this is no device, or its head was overwritten")]
    SuperblockDamaged,
    /// Acknowledged parts of the index are missing or contradict each other.
    #[error("the index is damaged ({reason}); rebuild this device from the others")]
    IndexDamaged {
        /// What was found.
        reason: String,
    },
    /// The medium failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

impl From<Malformed> for OpenError {
    fn from(error: Malformed) -> OpenError {
        OpenError::IndexDamaged { reason: error.to_string() }
    }
}

/// Why an extent was not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The segment has an extent that differs from the one asked for.
    #[error("segment {segment} has another extent here")]
    Exists {
        /// The segment.
        segment: SegmentId,
    },
    /// A higher epoch was seen.
    #[error("epoch {given} of segment {segment} is stale: {held} was seen")]
    StaleEpoch {
        /// The segment.
        segment: SegmentId,
        /// The epoch held.
        held: Epoch,
        /// The epoch given.
        given: Epoch,
    },
    /// The block size is not from 1 byte to 1 MiB.
    #[error("blocks of {block_bytes} bytes cannot be stored: 1 to 1048576")]
    BlockSize {
        /// The size asked for.
        block_bytes: u32,
    },
    /// Updates need a larger journal.
    #[error(
        "the journal has {journal_bytes} bytes and updates in place need {needed}: format the device with so large a \
         journal, or with {capacity} bytes of capacity"
    )]
    JournalTooSmall {
        /// Bytes of the journal ring.
        journal_bytes: u64,
        /// Bytes it needs.
        needed: u64,
        /// Capacity from which the format makes it so large.
        capacity: u64,
    },
    /// Blocks or reserve have sizes that cannot be updated in place.
    #[error(
        "{blocks} blocks of {block_bytes} bytes with a reserve of {reserve_bytes} cannot be updated in place: give at \
         least one block, blocks of whole granules of {granule} bytes and 64 MiB of them at most, and a reserve of whole \
         4096 bytes that the device can hold"
    )]
    Updates {
        /// The block size asked for.
        block_bytes: u32,
        /// The granule asked for.
        granule: u32,
        /// The blocks asked for.
        blocks: u32,
        /// The reserve asked for.
        reserve_bytes: u64,
    },
    /// No space for a single block (or for all of an extent that changes in place), or no room in the index.
    #[error("the device is full: {free} bytes free, longest run {longest}")]
    Full {
        /// Free bytes.
        free: u64,
        /// Bytes of the longest free run.
        longest: u64,
    },
    /// The device only reads.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The medium failed.
    #[error(transparent)]
    Medium(MediumError),
}

/// Why a block was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// No extent of this segment.
    #[error("segment {segment} has no extent here")]
    NoExtent {
        /// The segment.
        segment: SegmentId,
    },
    /// The extent is final.
    #[error("the extent of segment {segment} is sealed")]
    Sealed {
        /// The segment.
        segment: SegmentId,
    },
    /// A higher epoch was seen.
    #[error("epoch {given} of segment {segment} is stale: {held} was seen")]
    StaleEpoch {
        /// The segment.
        segment: SegmentId,
        /// The epoch held.
        held: Epoch,
        /// The epoch given.
        given: Epoch,
    },
    /// The index is taken by a block with other content.
    #[error("block {index} of segment {segment} is there already and differs")]
    Exists {
        /// The segment.
        segment: SegmentId,
        /// The block.
        index: BlockIndex,
    },
    /// The block is not as long as the extent's blocks.
    #[error("a block of {given} bytes for an extent with blocks of {expected}")]
    Length {
        /// Bytes of each block of the extent.
        expected: u32,
        /// Bytes given.
        given: usize,
    },
    /// Data and checksums do not belong together.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// No space for another block, or no room in the index, or 65,536 runs of indices in the extent and none that goes on with it.
    #[error("the device is full: {free} bytes free, longest run {longest}")]
    Full {
        /// Free bytes.
        free: u64,
        /// Bytes of the longest free run.
        longest: u64,
    },
    /// The device only reads.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The medium failed; the block is not there.
    #[error(transparent)]
    Medium(MediumError),
}

/// Why a block was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No extent of this segment.
    #[error("segment {segment} has no extent here")]
    NoExtent {
        /// The segment.
        segment: SegmentId,
    },
    /// The extent does not hold this block.
    #[error("segment {segment} has no block {index} here")]
    NoBlock {
        /// The segment.
        segment: SegmentId,
        /// The block.
        index: BlockIndex,
    },
    /// The range leaves the block.
    #[error("bytes {start}..{end} leave a block of {block_bytes} bytes")]
    OutOfRange {
        /// Start of the range.
        start: u32,
        /// End of the range.
        end: u32,
        /// Bytes of the block.
        block_bytes: u32,
    },
    /// What the medium gave is not what was written; nothing of it is shown.
    #[error("block {index} of segment {segment} is corrupt in granule {granule}")]
    Corrupt {
        /// The segment.
        segment: SegmentId,
        /// The block.
        index: BlockIndex,
        /// The granule of the block.
        granule: u32,
    },
    /// The medium failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// Why an extent was not sealed, deleted or fenced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No extent of this segment.
    #[error("segment {segment} has no extent here")]
    NoExtent {
        /// The segment.
        segment: SegmentId,
    },
    /// A higher epoch was seen.
    #[error("epoch {given} of segment {segment} is stale: {held} was seen")]
    StaleEpoch {
        /// The segment.
        segment: SegmentId,
        /// The epoch held.
        held: Epoch,
        /// The epoch given.
        given: Epoch,
    },
    /// So many ranges of kept blocks do not fit the index.
    #[error("the index is full: keep fewer, longer ranges, or delete first")]
    IndexFull,
    /// The device only reads.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a chunk was not read or changed in place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// No extent of this segment.
    #[error("segment {segment} has no extent here")]
    NoExtent {
        /// The segment.
        segment: SegmentId,
    },
    /// The extent was not created for updates.
    #[error("the extent of segment {segment} does not change in place: create it with updates")]
    NotUpdatable {
        /// The segment.
        segment: SegmentId,
    },
    /// A higher epoch was seen.
    #[error("epoch {given} of segment {segment} is stale: {held} was seen")]
    StaleEpoch {
        /// The segment.
        segment: SegmentId,
        /// The epoch held.
        held: Epoch,
        /// The epoch given.
        given: Epoch,
    },
    /// The indices of the blocks do not follow one another, so they are no chunk.
    #[error("the {blocks} blocks of segment {segment} leave gaps: write the missing ones first")]
    Gaps {
        /// The segment.
        segment: SegmentId,
        /// How many blocks there are.
        blocks: u32,
    },
    /// The range is empty or leaves the chunk.
    #[error("bytes {start}..{end} are none, or leave a chunk of {chunk_bytes} bytes")]
    OutOfRange {
        /// Start of the range.
        start: u64,
        /// End of the range.
        end: u64,
        /// Bytes of the chunk.
        chunk_bytes: u64,
    },
    /// A patch is not of whole granules.
    #[error("{len} bytes at {offset} are not whole granules of {granule}")]
    Misaligned {
        /// Start of the patch.
        offset: u64,
        /// Its length.
        len: u64,
        /// Bytes of a granule.
        granule: u32,
    },
    /// More than the journal takes at once.
    #[error("an update of {given} bytes is more than the {max} this device takes at once: split it")]
    TooLarge {
        /// Bytes of whole granules, with what describes them.
        given: u64,
        /// The most at once.
        max: u64,
    },
    /// Its content holds the device's own frames: no journal can take it.
    #[error(
        "the update holds the beginnings of {found} journal frames of this device, more than {max}: write it anew"
    )]
    LikeJournal {
        /// How many, those at the same byte of a page counted once.
        found: usize,
        /// The most at once.
        max: usize,
    },
    /// Too many updates are held.
    #[error("{held} bytes of updates are held and {given} more exceed {max}: release some first")]
    Held {
        /// Bytes held.
        held: u64,
        /// Bytes given.
        given: u64,
        /// The most that can be held.
        max: u64,
    },
    /// A version would go back.
    #[error("version {given} is behind version {held} of segment {segment}")]
    Backwards {
        /// The segment.
        segment: SegmentId,
        /// The version held.
        held: u64,
        /// The version given.
        given: u64,
    },
    /// The chunk has the highest version there is.
    #[error("segment {segment} has the last version: no update can follow it, so write it anew")]
    LastVersion {
        /// The segment.
        segment: SegmentId,
    },
    /// The reserve cannot become so.
    #[error("a reserve of {held} bytes cannot become {given}: it only shrinks, by whole 4096 bytes")]
    Reserve {
        /// Its bytes.
        held: u64,
        /// Bytes asked for.
        given: u64,
    },
    /// The reserve's log holds records.
    #[error("the log of segment {segment} holds {records} records: merge them before its reserve shrinks")]
    LogInUse {
        /// The segment.
        segment: SegmentId,
        /// How many records.
        records: usize,
    },
    /// No room in the index.
    #[error("the index is full: delete something first")]
    IndexFull,
    /// The chunk could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The reserve's log could not be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The device only reads.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why the log in a reserve did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// No extent of this segment.
    #[error("segment {segment} has no extent here")]
    NoExtent {
        /// The segment.
        segment: SegmentId,
    },
    /// The extent was not created for updates.
    #[error("the extent of segment {segment} has no log: create it with updates")]
    NotUpdatable {
        /// The segment.
        segment: SegmentId,
    },
    /// A higher epoch was seen.
    #[error("epoch {given} of segment {segment} is stale: {held} was seen")]
    StaleEpoch {
        /// The segment.
        segment: SegmentId,
        /// The epoch held.
        held: Epoch,
        /// The epoch given.
        given: Epoch,
    },
    /// The record does not fit what is free.
    #[error("a record of {needed} bytes does not fit the {free} free in the reserve: merge the log first")]
    Full {
        /// Bytes of its payload.
        needed: u64,
        /// The largest payload that fits now.
        free: u64,
    },
    /// The record would get another number than it was to have.
    #[error("record {sequence} of the log of segment {segment} is out of turn: {next} is the next")]
    OutOfTurn {
        /// The segment.
        segment: SegmentId,
        /// The number that it was to have.
        sequence: u64,
        /// The number that it would get.
        next: u64,
    },
    /// No such record is in force.
    #[error("the log of segment {segment} has no record {sequence}: {first} to before {next} are there")]
    NoRecord {
        /// The segment.
        segment: SegmentId,
        /// The record asked for.
        sequence: u64,
        /// The first in force.
        first: u64,
        /// Number of the next one.
        next: u64,
    },
    /// The record is not what was written.
    #[error(
        "record {sequence} in the log of segment {segment} is corrupt: rebuild this chunk from the others"
    )]
    Corrupt {
        /// The segment.
        segment: SegmentId,
        /// The record.
        sequence: u64,
    },
    /// Records that were durable are gone.
    #[error(
        "the log of segment {segment} lost records {} to {}: rebuild this chunk from the others",
        missing.start, missing.end - 1
    )]
    Damaged {
        /// The segment.
        segment: SegmentId,
        /// The records that are missing.
        missing: std::ops::Range<u64>,
    },
    /// The device only reads.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The medium failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
}
