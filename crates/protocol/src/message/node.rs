//! Messages of the storage servers.

use super::DeviceActivity;
use super::{IngestOpen, Ingested, LogEvent, LogPush};
use crate::{
    BlockIndex, DeviceId, IndexRanges, IntentId, ReservationId, SegmentId, Version,
    layout::{Holder, PIECES_PER_HOLDER_MAX, Piece},
    serve::parity_log::ChunkNumber,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a stream to a storage server asks; the body of its OPEN. Requests that change data carry the epoch in the
/// header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Send blocks of a segment until done, cancelled or out of credit. Answered by [`NodeEvent::Slice`]s and
    /// [`NodeAnswer::Read`], which counts all pieces together. [`NodePush::Finish`] takes back the credit that is not in
    /// use. Refused with [`NodeFault::UnknownSegment`] where the
    /// device has none of the pieces, and with [`NodeFault::LacksChanges`] where one of them is a chunk that does, of parity
    /// unless the epoch of the request is 0 (it is taken as it is); one that is missing beside others is left out like blocks that are gone.
    Read {
        /// The device to read from.
        device: DeviceId,
        /// Which blocks, piece after piece: 1 to [`PIECES_PER_HOLDER_MAX`] that lie on the device under different
        /// segments. A block that several of them hold is sent once, from the first.
        pieces: Vec<ReadPiece>,
    },
    /// Take blocks of a new segment. The opener pushes [`NodePush`]es within the credit granted; answered by
    /// [`NodeEvent::Confirmed`]s and, after [`NodePush::Finish`], by [`NodeAnswer::Written`].
    Write(WriteOpen),
    /// Keep just these blocks of a segment, free the rest, and mark it sealed: its version has committed.
    Seal {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
        /// Blocks the layout lists on this device.
        keep: IndexRanges,
    },
    /// Free a segment whole. Deleting what is not there succeeds.
    Delete {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
    /// What the device holds of a segment.
    Describe {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
    /// Change bytes of a data chunk in place (PLR §4): at most [`UPDATE_BYTES_MAX`](super::UPDATE_BYTES_MAX). Answered by
    /// [`NodeAnswer::Updated`] when the change survives what the bucket promises; [`NodeFault::NotInPlace`] where it cannot be
    /// made, or may have been made and cannot be confirmed: storing the segment anew is the way then.
    Update {
        /// The chunk's device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
        /// First byte in the chunk.
        offset: u64,
        /// The new bytes.
        bytes: Bytes,
    },
    /// A data chunk's node keeps a stream to each parity chunk's node, by which differences go to the log there: [`LogPush`]es
    /// one way, [`LogEvent`]s the other.
    Log {
        /// The parity chunk's device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
        /// The data chunk.
        chunk: ChunkNumber,
    },
    /// Bring a data chunk and its parity to the same versions, without a change: whoever holds something until then asks for it.
    Level {
        /// The data chunk's device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
    /// Which versions a device holds of a chunk that changes in place. Answered by [`NodeAnswer::ChunkVersions`]; under another epoch than 0
    /// with [`NodeFault::LacksChanges`] where it is found to lack some: what it has is then not to stand in for others.
    ChunkVersions {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
    /// Rows of a chunk as they were at given versions. Answered by payload and [`NodeAnswer::Rows`], or
    /// [`NodeFault::Overtaken`] where those versions are not to be had any more, or not yet; [`NodeFault::LacksChanges`] where the newest
    /// is asked for, and of parity that does, unless the epoch of the request is 0.
    ReadRows(ReadRows),
    /// Refuse changes in place under epochs older than the request's, durably.
    Fence {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
    /// The node's devices and what they did so far.
    Status,
    /// Redraw the emulation of a device's medium; `off` ends it. Refused by devices not started with emulation.
    Emulate {
        /// The device.
        device: DeviceId,
        /// The emulation in its text form (`rate=100MB,latency=5ms,stall`).
        spec: String,
    },
    /// Drop every cached page of the device's data, so that the next read comes from the medium.
    DropCaches {
        /// The device.
        device: DeviceId,
    },
    /// Keep bandwidth of a device for an access until its lease ends, or keep on doing so (dissertation §5.4). Answered
    /// by [`NodeAnswer::Reserved`], or refused with the time at which asking again makes sense.
    Reserve(Reserve),
    /// Give a reservation back. Giving back what is not there succeeds.
    Release {
        /// The device.
        device: DeviceId,
        /// The reservation.
        reservation: ReservationId,
    },
    /// A read or a write that uses a reservation of its device. Without it, or once its lease has ended, the stream
    /// shares what others left.
    UnderReservation {
        /// The reservation.
        reservation: ReservationId,
        /// The [`NodeRequest::Read`] or [`NodeRequest::Write`], encoded: a message within a message has no depth that
        /// a peer could choose.
        request: Vec<u8>,
    },
    /// Make or find a device in a directory of the node's machine and serve it from now on, also after a restart.
    /// Answered by [`NodeAnswer::Added`] once it is registered.
    AddDevice {
        /// The directory, a full path.
        dir: String,
        /// Bytes of a new device; by default as the node was started, or nine tenths of what is free.
        capacity_bytes: Option<u64>,
        /// Whether a new device takes its whole capacity from its filesystem at once. It does so too where the node was
        /// started so.
        thick: bool,
    },
    /// Take the originals of a new segment, encode them, and store its chunks on the devices named. The opener pushes
    /// [`NodePush::Slice`]s within the credit granted; answered by [`NodeEvent::Confirmed`]s as chunks become durable, and
    /// [`NodeAnswer::Ingested`]. Refused where there is no memory for the segment now; [`NodeFault::NotStored`] where the devices did
    /// not take it.
    Ingest(IngestOpen),
}

/// Asks for bandwidth of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// The device.
    pub device: DeviceId,
    /// The access it is for. Asked again under the same name it is renewed, with the new figures.
    pub reservation: ReservationId,
    /// What the access does.
    pub access: Access,
    /// Payload bytes per second to keep; at least 1.
    pub bytes_per_s: u64,
    /// Kept for so long in milliseconds unless renewed or given back; the node may keep it for less.
    pub lease_ms: u32,
    /// Whether the access may be passed over by others where the node admits by priority.
    pub background: bool,
}

/// What an access does to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// What a read wants of one piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPiece {
    /// The segment that it is stored under.
    pub segment: SegmentId,
    /// Its version, part of every checksum.
    pub version: Version,
    /// Which blocks.
    pub want: Want,
}

impl ReadPiece {
    /// What is wanted of each piece that a device holds. Blocks are named, even all of them: an extent may hold others,
    /// which were written and not listed, or dropped and not freed yet.
    pub fn wanted(holder: &Holder, want: &Want) -> Vec<Self> {
        let wanted = |piece: &Piece| match want {
            Want::All => piece.blocks.clone(),
            Want::Blocks(wanted) => piece.blocks.intersection(wanted),
        };
        let pieces = holder.pieces.iter().map(|piece| (piece, wanted(piece)));
        let some = pieces.filter(|(_, blocks)| !blocks.is_empty());
        some.map(|(piece, blocks)| Self {
            segment: piece.segment,
            version: piece.version,
            want: Want::Blocks(blocks),
        })
        .collect()
    }
}

/// Which blocks a read wants from one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// All it has of the segment, in the order they lie.
    All,
    /// These, in the order they lie.
    Blocks(IndexRanges),
}

/// Opens a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteOpen {
    /// The device to write to.
    pub device: DeviceId,
    /// The segment.
    pub segment: SegmentId,
    /// Its version, part of every checksum.
    pub version: Version,
    /// The put it belongs to.
    pub intent: IntentId,
    /// Bytes in each block.
    pub block_bytes: u32,
    /// Bytes under one checksum.
    pub granule_bytes: u32,
    /// Blocks the writer expects to place here, from measured speed; more may come.
    pub expected_blocks: u32,
    /// Whether the blocks are a chunk that changes in place, and how many bytes are kept beside it for a log. Just the
    /// expected blocks come then.
    pub reserve_bytes: Option<u64>,
}

/// Asks for rows of a chunk: bytes within one of its blocks, whole granules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRows {
    /// The device.
    pub device: DeviceId,
    /// The segment.
    pub segment: SegmentId,
    /// First byte in the chunk.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// Which state of them.
    pub at: RowsAt,
}

/// A state of a chunk's rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowsAt {
    /// Of a data chunk: as it is.
    Newest,
    /// Of a data chunk: with so many updates.
    Data(u64),
    /// Of a parity chunk: with so many updates of each data chunk; those that are not named had none.
    Parity {
        /// k.
        data: u16,
        /// n - k.
        parity: u16,
        /// Which of the parity chunks.
        number: u16,
        /// Data chunks and their versions.
        versions: Vec<(ChunkNumber, u64)>,
    },
}

/// What a device holds of a chunk that changes in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunkVersions {
    /// How many updates a data chunk has seen.
    pub version: u64,
    /// The last version of each data chunk that a parity chunk or its log holds.
    pub held: Vec<(ChunkNumber, u64)>,
}

/// What a chunk held when blocks of it were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadState {
    /// How many updates a data chunk had seen.
    pub version: u64,
    /// The last version of each data chunk that was part of a parity chunk.
    pub merged: Vec<(ChunkNumber, u64)>,
    /// Whether there were differences in its log, which the blocks do not show.
    pub logged: bool,
}

/// DATA from a storage server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeEvent {
    /// A slice of a block; its bytes are the frame's payload.
    Slice(Slice),
    /// What the chunk held when the slices that follow were read; as a new chunk where none came yet.
    State(ReadState),
    /// On a [`NodeRequest::Log`].
    Log(LogEvent),
    /// These blocks are durable.
    Confirmed {
        /// Newly durable blocks.
        blocks: IndexRanges,
    },
}

/// DATA to a storage server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodePush {
    /// A slice of a block; its bytes are the frame's payload. Slices of a block come in order.
    Slice(Slice),
    /// No more blocks will come on this stream, where it writes; no more are wanted than are being read, where it reads.
    Finish,
    /// On a [`NodeRequest::Log`].
    Log(LogPush),
}

/// Names the payload of a DATA frame: consecutive bytes of one block, on granule boundaries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The block.
    pub index: BlockIndex,
    /// Where in the block the payload begins, in bytes.
    pub offset: u32,
    /// Seeded CRC-32C of each granule of the payload.
    pub sums: Vec<u32>,
}

/// END from a storage server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// A read is over.
    Read(ReadDone),
    /// A write is over; every block that was pushed whole is durable.
    Written {
        /// All durable blocks of this stream.
        blocks: IndexRanges,
    },
    /// Sealed, deleted, fenced, redrawn.
    Done,
    /// Bytes of a chunk are changed, durably.
    Updated {
        /// The chunk's version with it.
        version: u64,
    },
    /// What a device holds of a chunk.
    ChunkVersions(ChunkVersions),
    /// The rows were sent.
    Rows {
        /// Of a data chunk: how many updates they show.
        version: u64,
        /// Seeded CRC-32C of each granule.
        sums: Vec<u32>,
    },
    /// What the device holds.
    Described {
        /// Blocks it holds.
        blocks: IndexRanges,
        /// Whether it was sealed.
        sealed: bool,
    },
    /// The node's devices.
    Status(NodeStatus),
    /// The bandwidth is kept.
    Reserved {
        /// For so many milliseconds, unless renewed.
        lease_ms: u32,
    },
    /// A device is served.
    Added {
        /// It.
        device: DeviceId,
    },
    /// A segment is stored.
    Ingested(Ingested),
}

/// What a read stream moved; the reader adds what it received and used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDone {
    /// Payload bytes read from the medium for this stream.
    pub medium_bytes: u64,
    /// Payload bytes sent on this stream.
    pub sent_bytes: u64,
    /// Blocks skipped because their checksum failed, or because the medium did not give them.
    pub corrupt_blocks: u32,
}

/// A storage server's own account of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its devices.
    pub devices: Vec<DeviceReport>,
    /// Streams open now, beside the one that asks.
    pub streams: u32,
    /// Resident memory of the process in bytes.
    pub resident_bytes: u64,
}

/// What a node reports of one device, in heartbeats and on request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The device.
    pub device: DeviceId,
    /// How it is.
    pub health: DeviceHealth,
    /// Bytes it can hold.
    pub capacity_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Measured reading speed while busy, in bytes per second; 0 before the first measurement.
    pub read_bytes_per_s: u64,
    /// Measured writing speed while busy, in bytes per second; 0 before the first measurement.
    pub write_bytes_per_s: u64,
    /// Requests waiting in its queue.
    pub queue_length: u32,
    /// Extents it holds.
    pub extents: u64,
    /// Ranges beyond one an extent: fragmentation.
    pub fragments: u64,
    /// Blocks whose checksum failed since the node started.
    pub corrupt_blocks: u64,
    /// Bytes read from the medium since the node started.
    pub medium_read_bytes: u64,
    /// Bytes written to the medium since the node started.
    pub medium_written_bytes: u64,
    /// Emulated operations that took longer than their model, in parts per million; 0 without emulation.
    pub overruns_ppm: u32,
    /// What it did, for whoever watches.
    pub activity: DeviceActivity,
    /// Reading speed kept for accesses, in bytes per second.
    pub reserved_read_bytes_per_s: u64,
    /// Writing speed kept for accesses, in bytes per second.
    pub reserved_write_bytes_per_s: u64,
    /// What is left of the speed when 2, 4, 8 and 16 streams share the device, in parts per million, as measured; 0 where
    /// it was not.
    pub sharing_ppm: [u32; 4],
}

/// How a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceHealth {
    /// It serves.
    Ok,
    /// No room: reads and deletes only.
    Full,
    /// A request has been on the medium for far longer than its peers took.
    Stalled,
    /// A write or flush failed: it takes no more until the node restarts. Or one read after the other fails: until one succeeds.
    Failed,
}

/// Why a storage server could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum NodeFault {
    /// The node has no such device.
    #[error("no device {0} on this node")]
    UnknownDevice(DeviceId),
    /// The device has nothing of the segment.
    #[error("device {device} holds nothing of segment {segment}")]
    UnknownSegment {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
    /// No room for more.
    #[error("device {0} is full")]
    Full(DeviceId),
    /// The request's epoch is older than the segment's.
    #[error("epoch {given} is older than {current}: the layout changed, ask for it again")]
    StaleEpoch {
        /// The request's epoch.
        given: u64,
        /// The highest seen.
        current: u64,
    },
    /// A block arrived damaged.
    #[error("block {index} arrived with a wrong checksum")]
    Damaged {
        /// The block.
        index: BlockIndex,
    },
    /// The medium failed.
    #[error("device {device} failed: {detail}")]
    Medium {
        /// The device.
        device: DeviceId,
        /// The operating system's words.
        detail: String,
    },
    /// A request that makes no sense for this device or segment.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Bytes that cannot be changed in place, now or at all.
    #[error("segment {segment} cannot be changed in place: {detail}; store it anew")]
    NotInPlace {
        /// The segment.
        segment: SegmentId,
        /// Why.
        detail: String,
    },
    /// Rows at versions that are gone or not there yet.
    #[error("segment {segment} on device {device} went on, or is behind: ask for its versions again")]
    Overtaken {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
    /// A read of more pieces than one request may name.
    #[error("a read of {given} pieces, 1 to {PIECES_PER_HOLDER_MAX} are allowed: ask in several requests")]
    Pieces {
        /// How many it named.
        given: u32,
    },
    /// A directory that cannot be a device of this node.
    #[error("no device was added in {dir}: {detail}")]
    NotAdded {
        /// The directory.
        dir: String,
        /// Why.
        detail: String,
    },
    /// A segment that its primary could not store.
    #[error("segment {segment} was not stored by its primary: {detail}")]
    NotStored {
        /// The segment.
        segment: SegmentId,
        /// Why.
        detail: String,
    },
    /// Parity that cannot follow its data any more.
    #[error("parity of segment {segment} on device {device} is damaged ({detail}); store the segment anew")]
    DamagedParity {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
        /// What of it.
        detail: String,
    },
    /// A chunk that lacks changes which its parity has, or other parity: it is not read as the newest.
    #[error(
        "device {device} lacks changes of segment {segment} that its parity has: the other chunks make up for it"
    )]
    LacksChanges {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
    },
}
