//! The changes of the index, as they stand in the journal.
//!
//! ```text
//! 1 created    segment u64, version u64, epoch u64, block bytes u32, granule u32
//! 2 grown      segment u64, first unit u64, first slot u32, slots u32
//! 3 confirmed  segment u64, slot u32, index u32, count u32
//! 4 sealed     segment u64, epoch u64, n u32, n x (first index u32, end u32)
//! 5 deleted    segment u64, epoch u64
//! 6 epoch      segment u64, epoch u64
//! ```
//! each after its number as one byte; all little endian.

use std::ops::Range;

use super::{
    Malformed,
    codec::{Put, Reader},
    extent::{BLOCK_BYTES_MAX, ExtentRange, Run},
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
}

impl Record {
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
            _ => return Err(Malformed { what: "unknown kind of record" }),
        })
    }
}
