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
    /// A write to the index or a flush failed earlier. What was not acknowledged may or may not be there; only
    /// opening the device again tells. Reads still work.
    #[error("the device failed ({cause}) and only reads until it is opened again")]
    Failed {
        /// The first failure.
        cause: MediumError,
    },
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
    /// No space for a single block, or no room in the index.
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
    /// No space for another block, or no room in the index.
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
