//! Checkpoints: the whole index in one of two slots, written in turn.
//!
//! ```text
//! header page:  0 magic u64    8 crc32c u32 of 12..80    12 format version u32    16 device u128
//!   32 number u64    40 next journal sequence u64    48 journal page of it u64    56 body length u64
//!   64 crc32c of the body u32    68 zero to 80
//! body, from byte 4096:  created u64, fences u32, extents u32, fences x (segment u64, epoch u64), extents, redo
//! extent:  segment u64, version u64, epoch u64, block bytes u32, granule u32, created u64, sealed u8,
//!   updatable u8, ranges u32, runs u32, ranges x (first unit u64, first slot u32, slots u32),
//!   runs x (slot, index, count: u32), and if updatable: reserve's first unit u64, its units u64, version u64,
//!   log sequence u64, log page u64, n u32, n x (chunk u16, version u64)
//! redo, to the end of the body:  records 8, 9, 12 and 13 of the journal, of what is not in place
//! ```
//!
//! The redo of changes that are held or just not in place yet moves into the checkpoint and not into a frame behind it: the
//! checkpoint frees the ring that holds them, so they must become durable in the same instant.
//!
//! A checkpoint holds only what was flushed before it was begun, and redo. It counts when header and body are whole, so
//! header and body need one flush together; until that returns, the other slot and the journal stay as
//! they are.

use super::{
    FORMAT_VERSION, Index, Record,
    codec::{Put, Reader},
    journal::Start,
    superblock::Superblock,
};
use crate::{
    buffer::AlignedBuf,
    checksum::crc32c,
    ids::DeviceId,
    media::{Medium, MediumError},
};

const MAGIC: u64 = u64::from_le_bytes(*b"STEADCKP");
const PAGE: usize = 4096;
const FIELDS: usize = 80;
/// The body is written in pieces of this size.
const PIECE: usize = 256 << 10;

/// A checkpoint that was read.
pub(crate) struct Loaded {
    pub(crate) number: u64,
    pub(crate) slot: u64,
    pub(crate) start: Start,
    pub(crate) index: Index,
    /// Changes whose effect on the index is in it, and whose content may not be in place.
    pub(crate) redo: Vec<Record>,
    /// Whether it is known that there was none behind it: the other slot has the one before. Where that has none, or none that can be read,
    /// only the journal may know.
    pub(crate) is_newest: bool,
}

/// Bytes a body may have.
pub(crate) fn body_max(superblock: &Superblock) -> u64 {
    superblock.checkpoint_bytes - PAGE as u64
}

/// How many fences an index of this device remembers: at most 1/8 of a slot.
pub(crate) fn fences_max(superblock: &Superblock) -> usize {
    (superblock.checkpoint_bytes / 128).min(16_384) as usize
}

/// Bytes of redo that may be held back, and so stand in a checkpoint: a quarter of a slot, and no more than half of
/// the ring that must take them first. None where the ring is too small for updates.
pub(crate) fn held_max(superblock: &Superblock) -> u64 {
    if superblock.journal_bytes < super::UPDATES_JOURNAL_MIN {
        return 0;
    }
    (superblock.journal_bytes / 2).min(superblock.checkpoint_bytes / 4)
}

/// Bytes the index may have in a body, beside the redo.
pub(crate) fn index_max(superblock: &Superblock) -> u64 {
    body_max(superblock) - held_max(superblock)
}

/// Writes checkpoint `number`; it counts after the next flush.
///
/// # Errors
/// Where the medium fails; [`MediumError::OutOfRange`] where index and redo are more than a slot holds, before anything is written
/// outside of it.
pub(crate) fn write(
    medium: &dyn Medium,
    superblock: &Superblock,
    number: u64,
    slot: u64,
    start: Start,
    index: &Index,
    redo: &[Record],
) -> Result<(), MediumError> {
    let base = superblock.checkpoint_start(slot);
    let mut piece = AlignedBuf::zeroed(PIECE.min(superblock.checkpoint_bytes as usize - PAGE));
    let mut filled = 0;
    let mut written = 0u64;
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut sink = |mut bytes: &[u8]| {
        let body = written + (filled + bytes.len()) as u64;
        if body > body_max(superblock) {
            let (offset, capacity) = (base + PAGE as u64, base + superblock.checkpoint_bytes);
            return Err(MediumError::OutOfRange { offset, len: body, capacity });
        }
        digest.update(bytes);
        while !bytes.is_empty() {
            let take = bytes.len().min(piece.len() - filled);
            piece[filled..filled + take].copy_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            filled += take;
            if filled == piece.len() {
                medium.write_at(base + PAGE as u64 + written, &piece)?;
                written += filled as u64;
                filled = 0;
            }
        }
        Ok::<(), MediumError>(())
    };
    index.encode(&mut sink)?;
    let mut encoded = Vec::new();
    for record in redo {
        encoded.clear();
        record.encode(&mut encoded);
        sink(&encoded)?;
    }
    let body = written + filled as u64;
    if filled > 0 {
        let padded = filled.next_multiple_of(PAGE);
        piece[filled..padded].fill(0);
        medium.write_at(base + PAGE as u64 + written, &piece[..padded])?;
    }
    let mut header = Vec::with_capacity(PAGE);
    header.put_u64(MAGIC);
    header.put_u32(0);
    header.put_u32(FORMAT_VERSION);
    header.put_u128(superblock.device.0);
    header.put_u64(number);
    header.put_u64(start.next_sequence);
    header.put_u64(start.head);
    header.put_u64(body);
    header.put_u32(digest.finalize() as u32);
    header.resize(FIELDS, 0);
    let crc = crc32c(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    header.resize(PAGE, 0);
    medium.write_at(base, &header)
}

/// The newest whole checkpoint. `None`: there is none. Whether it is the newest there was the journal knows.
///
/// # Errors
/// Where a slot could not be read, and the other has no whole one.
pub(crate) fn load(medium: &dyn Medium, superblock: &Superblock) -> Result<Option<Loaded>, MediumError> {
    let mut headers = Vec::new();
    let mut unread = None;
    for slot in 0..2 {
        let mut page = [0u8; PAGE];
        if let Err(error) = medium.read_at(superblock.checkpoint_start(slot), &mut page) {
            unread.get_or_insert(error);
            continue;
        }
        if let Some(header) = decode_header(&page, superblock) {
            headers.push((header, slot));
        }
    }
    headers.sort_by_key(|(header, _)| std::cmp::Reverse(header.number));
    let newest = headers.first().filter(|_| headers.len() == 2).map(|(header, _)| header.number);
    for (header, slot) in headers {
        let mut body = AlignedBuf::zeroed((header.body as usize).next_multiple_of(PAGE));
        if let Err(error) = medium.read_at(superblock.checkpoint_start(slot) + PAGE as u64, &mut body) {
            unread.get_or_insert(error);
            continue;
        }
        body.truncate(header.body as usize);
        if crc32c(&body) != header.crc {
            continue;
        }
        if let Ok((index, redo)) = Index::decode(&body, fences_max(superblock)) {
            let Header { number, start, .. } = header;
            return Ok(Some(Loaded { number, slot, start, index, redo, is_newest: newest == Some(number) }));
        }
    }
    unread.map_or(Ok(None), Err)
}

struct Header {
    number: u64,
    start: Start,
    body: u64,
    crc: u32,
}

fn decode_header(page: &[u8], superblock: &Superblock) -> Option<Header> {
    let mut reader = Reader(&page[..FIELDS]);
    if reader.u64().ok()? != MAGIC || reader.u32().ok()? != crc32c(&page[12..FIELDS]) {
        return None;
    }
    if reader.u32().ok()? != FORMAT_VERSION || DeviceId(reader.u128().ok()?) != superblock.device {
        return None;
    }
    let number = reader.u64().ok()?;
    let (next_sequence, head) = (reader.u64().ok()?, reader.u64().ok()?);
    let (body, crc) = (reader.u64().ok()?, reader.u32().ok()?);
    let sound = next_sequence > 0 && body <= body_max(superblock);
    sound.then_some(Header { number, start: Start { head, next_sequence, base: number }, body, crc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checksum::Granule,
        ids::{ClusterId, Epoch, SegmentId, Version},
        media::MemoryMedium,
    };

    /// It is bounded before: this is what is left where that fails, and no reason to write over the other slot.
    #[test]
    fn an_index_that_does_not_fit_is_an_error_and_stays_in_its_slot() {
        let (cluster, device) = (ClusterId(1), DeviceId(2));
        let superblock =
            Superblock::new(cluster, device, 1 << 20, Some(16 << 10), Some(8 << 10), false).unwrap();
        let mut index = Index::new(fences_max(&superblock));
        let start = Start { head: 0, next_sequence: 1, base: 1 };
        for fits in [true, false] {
            let medium = MemoryMedium::new(1 << 20);
            let written = write(&medium, &superblock, 1, 0, start, &index, &[]);
            assert_eq!(written.is_ok(), fits, "{written:?}");
            assert_eq!(load(&medium, &superblock).unwrap().is_some(), fits);
            assert!(medium.image()[superblock.checkpoint_start(1) as usize..].iter().all(|&byte| byte == 0));
            for segment in (0..300).map(SegmentId) {
                let (version, epoch, block_bytes) = (Version(1), Epoch(1), 1);
                let created =
                    Record::Created { segment, version, epoch, block_bytes, granule: Granule::KIB_4 };
                let _ = index.apply(&created);
            }
        }
    }
}
