//! The changes of the index, as they stand in the journal.
//!
//! ```text
//! 1 created    segment u64, version u64, epoch u64, block bytes u32, granule u32
//! 2 grown      segment u64, first unit u64, first slot u32, slots u32
//! 3 confirmed  segment u64, slot u32, index u32, count u32
//! 4 sealed     segment u64, epoch u64, n u32, n x (first index u32, end u32)
//! 5 deleted    segment u64, epoch u64
//! 6 epoch      segment u64, epoch u64
//! 7 updatable  segment u64, first unit of the reserve u64, units u64
//! 8 staged     segment u64, version u64, patch
//! 9 applied    segment u64, flags u8 (1 version, 2 log), version u64, log sequence u64, log page u64,
//!              n u32, n x (chunk u16, version u64), n u32, n x patch
//! 10 released  segment u64, through version u64
//! 11 shrunk    segment u64, units of the reserve u64
//! 12 staged    as 8, with chunk u16 and version u64 behind the version
//! 13 logged    segment u64, page of the reserve u64, sequence u64, length u32, a record of its log (see `log`)
//! patch        position u64 (block index x block bytes + byte in the block), length u32, new bytes
//! ```
//! each after its number as one byte; all little endian. A field whose flag is not set is zero.

use std::ops::Range;

use bytes::Bytes;

use super::{
    Malformed,
    codec::{Put, Reader},
    extent::{BLOCK_BYTES_MAX, ExtentRange, Run},
    updating::LogStart,
};
use crate::{
    checksum::Granule,
    ids::{Epoch, SegmentId, Version},
};

/// One change of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// An extent begins, without space.
    Created {
        /// Its segment.
        segment: SegmentId,
        /// The segment's version.
        version: Version,
        /// The layout's epoch.
        epoch: Epoch,
        /// Bytes of each block.
        block_bytes: u32,
        /// Bytes under each checksum.
        granule: Granule,
    },
    /// An extent gets a range of the space.
    Grown {
        /// Its segment.
        segment: SegmentId,
        /// The range.
        range: ExtentRange,
    },
    /// Blocks were written; they count once the group that holds this record is flushed.
    Confirmed {
        /// Their segment.
        segment: SegmentId,
        /// Slots and indices.
        run: Run,
    },
    /// An extent is final: only these blocks stay.
    Sealed {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
        /// Ranges of indices to keep.
        keep: Vec<Range<u32>>,
    },
    /// An extent is gone (or was never here); older epochs stay refused.
    Deleted {
        /// Its segment.
        segment: SegmentId,
        /// The layout's epoch.
        epoch: Epoch,
    },
    /// A higher epoch was seen.
    Epoch {
        /// The segment.
        segment: SegmentId,
        /// The epoch.
        epoch: Epoch,
    },
    /// The blocks of a new extent may change in place; it has its reserve before its range.
    Updatable {
        /// Its segment.
        segment: SegmentId,
        /// Units of the reserve.
        reserve: Range<u64>,
    },
    /// Redo of an update that must not be in place before it is released.
    Staged {
        /// Its segment.
        segment: SegmentId,
        /// The version it makes.
        version: u64,
        /// Its place: see [`Extent::granule_place`](super::Extent).
        position: u64,
        /// The new content: whole granules.
        bytes: Bytes,
        /// Of a parity chunk: which data chunk's update it is, and which version that makes.
        of: Option<(u16, u64)>,
    },
    /// Redo of a change that may be in place once it is durable.
    Applied {
        /// Its segment.
        segment: SegmentId,
        /// The version of the content from now on, where an earlier build brought it forward so.
        version: Option<u64>,
        /// Places and new contents: whole granules.
        patches: Vec<(u64, Bytes)>,
        /// Versions of data chunks that the content has merged.
        merged: Vec<(u16, u64)>,
        /// Where the log begins from now on.
        log: Option<LogStart>,
    },
    /// A record of a log, which may be in the reserve once it is durable here.
    Logged {
        /// The log's segment.
        segment: SegmentId,
        /// Its first page in the reserve.
        page: u64,
        /// Its number.
        sequence: u64,
        /// All of it, without what fills its last page.
        bytes: Bytes,
    },
    /// Staged updates may be put in place.
    Released {
        /// Their segment.
        segment: SegmentId,
        /// The last of them.
        through: u64,
    },
    /// The reserve lost its tail; its log was empty.
    Shrunk {
        /// Its segment.
        segment: SegmentId,
        /// Units that are left.
        reserve_units: u64,
    },
}

/// Kind, segment, flags, three numbers and two counts: what stands in a redo beside what follows them, at most.
const FIELDS: usize = 1 + 8 + 1 + 3 * 8 + 2 * 4;

fn put_patch(out: &mut Vec<u8>, position: u64, bytes: &[u8]) {
    out.put_u64(position);
    out.put_u32(bytes.len() as u32);
    out.put(bytes);
}

fn patch(reader: &mut Reader<'_>) -> Result<(u64, Bytes), Malformed> {
    let (position, len) = (reader.u64()?, reader.u32()?);
    Ok((position, Bytes::copy_from_slice(reader.bytes(len as usize)?)))
}

impl Record {
    /// The segment it is of.
    pub(crate) fn segment(&self) -> SegmentId {
        match self {
            Record::Created { segment, .. }
            | Record::Grown { segment, .. }
            | Record::Confirmed { segment, .. }
            | Record::Sealed { segment, .. }
            | Record::Deleted { segment, .. }
            | Record::Epoch { segment, .. }
            | Record::Updatable { segment, .. }
            | Record::Staged { segment, .. }
            | Record::Applied { segment, .. }
            | Record::Logged { segment, .. }
            | Record::Released { segment, .. }
            | Record::Shrunk { segment, .. } => *segment,
        }
    }

    /// Whether it must be in a flushed frame before what it allows is written in place.
    pub(crate) fn is_ahead(&self) -> bool {
        matches!(
            self,
            Record::Staged { .. } | Record::Applied { .. } | Record::Released { .. } | Record::Logged { .. }
        )
    }

    /// What users wrote of it.
    pub(crate) fn contents(&self) -> impl Iterator<Item = &Bytes> {
        let (one, patches) = match self {
            Record::Staged { bytes, .. } | Record::Logged { bytes, .. } => (Some(bytes), &[][..]),
            Record::Applied { patches, .. } => (None, &patches[..]),
            _ => (None, &[][..]),
        };
        one.into_iter().chain(patches.iter().map(|(_, bytes)| bytes))
    }

    /// Bytes of its encoding, at most, where it is a redo.
    pub(crate) fn redo_bytes(&self) -> usize {
        const PATCH: usize = 8 + 4;
        match self {
            Record::Staged { bytes, .. } => FIELDS + PATCH + bytes.len(),
            Record::Applied { patches, merged, .. } => {
                let patches = patches.iter().map(|(_, bytes)| PATCH + bytes.len()).sum::<usize>();
                FIELDS + merged.len() * super::MERGED as usize + patches
            }
            Record::Logged { bytes, .. } => Self::logged_redo_bytes(bytes.len()),
            _ => FIELDS,
        }
    }

    /// The same of a [`Record::Logged`] with so many bytes.
    pub(crate) fn logged_redo_bytes(bytes: usize) -> usize {
        FIELDS + bytes
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Created { segment, version, epoch, block_bytes, granule } => {
                out.put_u8(1);
                out.put_u64(segment.0);
                out.put_u64(version.0);
                out.put_u64(epoch.0);
                out.put_u32(*block_bytes);
                out.put_u32(granule.bytes());
            }
            Record::Grown { segment, range } => {
                out.put_u8(2);
                out.put_u64(segment.0);
                out.put_u64(range.start);
                out.put_u32(range.first_slot);
                out.put_u32(range.slots);
            }
            Record::Confirmed { segment, run } => {
                out.put_u8(3);
                out.put_u64(segment.0);
                out.put_u32(run.slot);
                out.put_u32(run.index);
                out.put_u32(run.count);
            }
            Record::Sealed { segment, epoch, keep } => {
                out.put_u8(4);
                out.put_u64(segment.0);
                out.put_u64(epoch.0);
                out.put_u32(keep.len() as u32);
                for range in keep {
                    out.put_u32(range.start);
                    out.put_u32(range.end);
                }
            }
            Record::Deleted { segment, epoch } => {
                out.put_u8(5);
                out.put_u64(segment.0);
                out.put_u64(epoch.0);
            }
            Record::Epoch { segment, epoch } => {
                out.put_u8(6);
                out.put_u64(segment.0);
                out.put_u64(epoch.0);
            }
            Record::Updatable { segment, reserve } => {
                out.put_u8(7);
                out.put_u64(segment.0);
                out.put_u64(reserve.start);
                out.put_u64(reserve.end - reserve.start);
            }
            Record::Staged { segment, version, position, bytes, of } => {
                out.put_u8(if of.is_some() { 12 } else { 8 });
                out.put_u64(segment.0);
                out.put_u64(*version);
                if let Some((chunk, version)) = of {
                    out.put_u16(*chunk);
                    out.put_u64(*version);
                }
                put_patch(out, *position, bytes);
            }
            Record::Applied { segment, version, patches, merged, log } => {
                out.put_u8(9);
                out.put_u64(segment.0);
                out.put_u8(u8::from(version.is_some()) | u8::from(log.is_some()) << 1);
                out.put_u64(version.unwrap_or(0));
                out.put_u64(log.map_or(0, |l| l.sequence));
                out.put_u64(log.map_or(0, |l| l.page));
                out.put_u32(merged.len() as u32);
                for (chunk, version) in merged {
                    out.put_u16(*chunk);
                    out.put_u64(*version);
                }
                out.put_u32(patches.len() as u32);
                for (position, bytes) in patches {
                    put_patch(out, *position, bytes);
                }
            }
            Record::Logged { segment, page, sequence, bytes } => {
                out.put_u8(13);
                out.put_u64(segment.0);
                out.put_u64(*page);
                out.put_u64(*sequence);
                out.put_u32(bytes.len() as u32);
                out.put(bytes);
            }
            Record::Released { segment, through } => {
                out.put_u8(10);
                out.put_u64(segment.0);
                out.put_u64(*through);
            }
            Record::Shrunk { segment, reserve_units } => {
                out.put_u8(11);
                out.put_u64(segment.0);
                out.put_u64(*reserve_units);
            }
        }
    }

    /// All records of a frame.
    pub(super) fn decode_all(bytes: &[u8]) -> Result<Vec<Record>, Malformed> {
        let mut reader = Reader(bytes);
        let mut records = Vec::new();
        while !reader.is_empty() {
            records.push(Self::decode(&mut reader)?);
        }
        Ok(records)
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Record, Malformed> {
        let kind = reader.u8()?;
        let segment = SegmentId(reader.u64()?);
        Ok(match kind {
            1 => {
                let (version, epoch, block_bytes) =
                    (Version(reader.u64()?), Epoch(reader.u64()?), reader.u32()?);
                let granule = Granule::new(reader.u32()?).map_err(|_| Malformed { what: "granule" })?;
                if block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX {
                    return Err(Malformed { what: "block size" });
                }
                Record::Created { segment, version, epoch, block_bytes, granule }
            }
            2 => {
                let range =
                    ExtentRange { start: reader.u64()?, first_slot: reader.u32()?, slots: reader.u32()? };
                Record::Grown { segment, range }
            }
            3 => {
                let run = Run { slot: reader.u32()?, index: reader.u32()?, count: reader.u32()? };
                Record::Confirmed { segment, run }
            }
            4 => {
                let (epoch, ranges) = (Epoch(reader.u64()?), reader.u32()?);
                let keep = (0..ranges)
                    .map(|_| Ok(reader.u32()?..reader.u32()?))
                    .collect::<Result<_, Malformed>>()?;
                Record::Sealed { segment, epoch, keep }
            }
            5 => Record::Deleted { segment, epoch: Epoch(reader.u64()?) },
            6 => Record::Epoch { segment, epoch: Epoch(reader.u64()?) },
            7 => {
                let (start, units) = (reader.u64()?, reader.u64()?);
                Record::Updatable { segment, reserve: start..start.saturating_add(units) }
            }
            8 | 12 => {
                let version = reader.u64()?;
                let of = if kind == 12 { Some((reader.u16()?, reader.u64()?)) } else { None };
                let (position, bytes) = patch(reader)?;
                Record::Staged { segment, version, position, bytes, of }
            }
            9 => {
                let flags = reader.u8()?;
                let version = reader.u64()?;
                let log = LogStart { sequence: reader.u64()?, page: reader.u64()? };
                let merged = (0..reader.u32()?)
                    .map(|_| Ok((reader.u16()?, reader.u64()?)))
                    .collect::<Result<_, Malformed>>()?;
                let patches = (0..reader.u32()?).map(|_| patch(reader)).collect::<Result<_, Malformed>>()?;
                Record::Applied {
                    segment,
                    version: (flags & 1 != 0).then_some(version),
                    patches,
                    merged,
                    log: (flags & 2 != 0).then_some(log),
                }
            }
            10 => Record::Released { segment, through: reader.u64()? },
            11 => Record::Shrunk { segment, reserve_units: reader.u64()? },
            13 => {
                let (page, sequence, len) = (reader.u64()?, reader.u64()?, reader.u32()?);
                let bytes = Bytes::copy_from_slice(reader.bytes(len as usize)?);
                Record::Logged { segment, page, sequence, bytes }
            }
            _ => return Err(Malformed { what: "unknown kind of record" }),
        })
    }
}
