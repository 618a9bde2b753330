//! The record of one update as it is sent to parity nodes and as it stands in their logs.
//!
//! ```text
//! 0 chunk u16   2 zero u16   4 granules u32   8 version u64   16 offset u64   24 granules x crc32c u32   then the bytes
//! ```
//! all little endian. The checksums are those of the *new* granules: whoever brings data forward by this record can tell
//! that it came out right. All of them are zero where that is not known: parity that was overwritten in place has none.

use super::ChunkNumber;
use crate::layout::PARITY_GRANULE_BYTES;
use bytes::{Bytes, BytesMut};
use steadfast_disk::checksum;

const FIXED: usize = 24;
const GRANULE: u64 = PARITY_GRANULE_BYTES as u64;

/// Bytes that a record takes in a log beyond its granules: its head, and the rest of its last page.
pub const LOG_RECORD_OVERHEAD_BYTES: u64 = 2 * GRANULE;

/// Bytes of the granules that a change of `length` bytes at `offset` touches.
pub(super) fn granule_bytes(offset: u64, length: u64) -> u64 {
    (offset + length).next_multiple_of(GRANULE) - offset / GRANULE * GRANULE
}

/// Bytes that a record of `length` takes in a log, at most.
pub(super) fn logged_bytes(length: usize) -> u64 {
    (length as u64).next_multiple_of(GRANULE) + GRANULE
}

/// Bytes of room that a device needs to hold a change whose record has `length` bytes, at most.
pub fn held_bytes(length: usize) -> u64 {
    // The redo record has the same granules, and its own head and tail in place of the checksums.
    length as u64 + 128
}

/// The same of a change that touches so many bytes of granules.
pub(super) fn held_bytes_of(granule_bytes: u64) -> u64 {
    held_bytes((FIXED as u64 + granule_bytes + granule_bytes / GRANULE * 4) as usize)
}

/// What an update changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The data chunk.
    pub chunk: ChunkNumber,
    /// Its version with this update.
    pub version: u64,
    /// First byte within the chunk, at a granule's start.
    pub offset: u64,
    /// The checksums of the granules as they are after the update; zeros where they are not known.
    pub sums: Vec<u32>,
    /// Old bytes XOR new bytes, whole granules.
    pub bytes: Bytes,
}

/// A record that does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes are no record of an update")]
pub struct MalformedDifference {
    /// How many there are.
    pub length: usize,
}

impl Difference {
    /// The whole record.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.record_length());
        out.extend_from_slice(&self.chunk.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(self.sums.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        self.sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
        out.extend_from_slice(&self.bytes);
        out.freeze()
    }

    /// Bytes of the whole record.
    pub fn record_length(&self) -> usize {
        FIXED + 4 * self.sums.len() + self.bytes.len()
    }

    /// Reads a record; its bytes are shared with `record`.
    ///
    /// # Errors
    /// Where lengths do not fit each other.
    pub fn decode(record: &Bytes) -> Result<Self, MalformedDifference> {
        let malformed = MalformedDifference { length: record.len() };
        let fixed = record.first_chunk::<FIXED>().ok_or(malformed)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| fixed[at + byte]));
        let granules = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]) as usize;
        let sums_end = granules.checked_mul(4).and_then(|bytes| bytes.checked_add(FIXED)).ok_or(malformed)?;
        let sums = record.get(FIXED..sums_end).ok_or(malformed)?;
        let bytes = record.slice(sums_end..);
        let (sums, _) = sums.as_chunks::<4>();
        if sums.is_empty() || bytes.is_empty() || !bytes.len().is_multiple_of(sums.len()) {
            return Err(malformed);
        }
        Ok(Self {
            chunk: ChunkNumber::from_le_bytes([fixed[0], fixed[1]]),
            version: number(8),
            offset: number(16),
            sums: sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect(),
            bytes,
        })
    }

    /// Whether it is this version of this chunk of `chunk_bytes`, of whole granules within it, as many as it has checksums.
    pub fn is_of(&self, chunk: ChunkNumber, version: u64, chunk_bytes: u64) -> bool {
        let length = self.bytes.len() as u64;
        (self.chunk, self.version) == (chunk, version)
            && self.offset.is_multiple_of(GRANULE)
            && self.offset.saturating_add(length) <= chunk_bytes
            && length == self.sums.len() as u64 * GRANULE
    }

    /// The bytes of the data chunk with this change, where `base` is the same bytes without it; none where that is not what was
    /// logged. `tag` says what the checksum of the granule at a byte of the chunk is seeded with.
    pub fn brought_forward(&self, base: &[u8], tag: impl Fn(u64) -> Option<checksum::Tag>) -> Option<Bytes> {
        if base.len() != self.bytes.len() {
            return None;
        }
        let new: Bytes = base.iter().zip(&self.bytes).map(|(old, changed)| old ^ changed).collect();
        if self.sums.iter().all(|sum| *sum == 0) {
            return Some(new);
        }
        let granules =
            new.chunks(GRANULE as usize).zip(&self.sums).zip((self.offset..).step_by(GRANULE as usize));
        for ((granule, sum), at) in granules {
            if checksum::sum(granule, &tag(at)?) != *sum {
                return None;
            }
        }
        Some(new)
    }
}
