//! Checkpoints: the whole index in one of two slots, written in turn.
//!
//! ```text
//! header page:  0 magic u64    8 crc32c u32 of 12..80    12 format version u32    16 device u128
//!   32 number u64    40 next journal sequence u64    48 journal page of it u64    56 body length u64
//!   64 crc32c of the body u32    68 whether sums and parity follow it u32    72 zero to 80
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
//! they are. The header is in the slot's last page once more, and what lies behind the body mends it (`mend`), where there is room for
//! either.

use super::{
    FORMAT_VERSION, Index, Record,
    codec::{Put, Reader},
    journal::Start,
    mend::{self, Spare, was_taken},
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

/// Bytes of a body that are written at once.
fn piece_bytes(superblock: &Superblock) -> usize {
    PIECE.min(superblock.checkpoint_bytes as usize - PAGE)
}

/// Where the header of a slot is once more, as far as the body leaves it room.
fn second_header(superblock: &Superblock, slot: u64) -> u64 {
    superblock.checkpoint_start(slot) + superblock.checkpoint_bytes - PAGE as u64
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
    let mut piece = AlignedBuf::zeroed(piece_bytes(superblock));
    let mut spare = Spare::new(piece.len());
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
                spare.add(&piece);
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
        spare.add(&piece[..padded]);
    }
    // But the two headers.
    let room = superblock.checkpoint_bytes as usize / PAGE - 2;
    let has_spare = spare.write(medium, base + PAGE as u64, body, room)?;
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
    header.put_u32(has_spare.into());
    header.resize(FIELDS, 0);
    let crc = crc32c(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    header.resize(PAGE, 0);
    if body.div_ceil(PAGE as u64) <= room as u64 {
        // Where that page takes no writes it has an earlier one.
        was_taken(medium.write_at(second_header(superblock, slot), &header))?;
    }
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
        match read_header(medium, superblock, slot) {
            Ok(header) => headers.extend(header.map(|(header, is_first)| (header, slot, is_first))),
            Err(error) => drop(unread.get_or_insert(error)),
        }
    }
    headers.sort_by_key(|(header, ..)| std::cmp::Reverse(header.number));
    let others_first = headers.get(1).is_some_and(|&(_, _, is_first)| is_first);
    for (place, (header, slot, _)) in headers.into_iter().enumerate() {
        let body = match read_body(medium, superblock, slot, &header) {
            Ok(Some(body)) => body,
            Ok(None) => continue,
            Err(error) => {
                unread.get_or_insert(error);
                continue;
            }
        };
        if let Ok((index, redo)) = Index::decode(&body, fences_max(superblock)) {
            let Header { number, start, .. } = header;
            // The other slot may have had a later one than its second header says.
            let is_newest = place == 0 && others_first;
            return Ok(Some(Loaded { number, slot, start, index, redo, is_newest }));
        }
    }
    unread.map_or(Ok(None), Err)
}

/// The header of a slot, and whether it is the first one and not what is left of one in the slot's last page.
fn read_header(
    medium: &dyn Medium,
    superblock: &Superblock,
    slot: u64,
) -> Result<Option<(Header, bool)>, MediumError> {
    let mut page = [0u8; PAGE];
    let first = medium.read_at(superblock.checkpoint_start(slot), &mut page);
    if first.is_ok()
        && let Some(header) = decode_header(&page, superblock)
    {
        return Ok(Some((header, true)));
    }
    if medium.read_at(second_header(superblock, slot), &mut page).is_ok()
        && let Some(header) = decode_header(&page, superblock)
    {
        tracing::warn!(device = %superblock.device, slot, "the header of a checkpoint is lost: its copy is read");
        return Ok(Some((header, false)));
    }
    first.map(|()| None)
}

/// The body of a checkpoint; none where it is not what its header says, and cannot be mended.
fn read_body(
    medium: &dyn Medium,
    superblock: &Superblock,
    slot: u64,
    header: &Header,
) -> Result<Option<AlignedBuf>, MediumError> {
    let base = superblock.checkpoint_start(slot) + PAGE as u64;
    let is_whole = |mut body: AlignedBuf| {
        body.truncate(header.body as usize);
        Some(body).filter(|body| crc32c(body) == header.crc)
    };
    let mut body = AlignedBuf::zeroed((header.body as usize).next_multiple_of(PAGE));
    let read = medium.read_at(base, &mut body);
    if let (Ok(()), Some(body)) = (&read, is_whole(body)) {
        return Ok(Some(body));
    }
    if !header.has_spare {
        return read.map(|()| None);
    }
    let mended = mend::mended(medium, base, header.body, piece_bytes(superblock))?.and_then(is_whole);
    if mended.is_some() {
        tracing::warn!(device = %superblock.device, slot, "pages of a checkpoint are lost: they were mended");
    }
    match mended {
        None => read.map(|()| None),
        whole => Ok(whole),
    }
}

struct Header {
    number: u64,
    start: Start,
    body: u64,
    crc: u32,
    has_spare: bool,
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
    let (body, crc, has_spare) = (reader.u64().ok()?, reader.u32().ok()?, reader.u32().ok()? == 1);
    let sound = next_sequence > 0 && body <= body_max(superblock);
    sound.then_some(Header {
        number,
        start: Start { head, next_sequence, base: number },
        body,
        crc,
        has_spare,
    })
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

    /// A checkpoint of so many fences in slot 0, and the pages of its body.
    fn fenced(slot_bytes: u64, fences: u64) -> (Superblock, MemoryMedium, usize) {
        let (cluster, device) = (ClusterId(1), DeviceId(2));
        let superblock =
            Superblock::new(cluster, device, 16 << 20, Some(slot_bytes), Some(64 << 10), false).unwrap();
        let medium = MemoryMedium::new(16 << 20);
        let mut index = Index::new(fences_max(&superblock));
        for segment in (0..fences).map(SegmentId) {
            let _ = index.apply(&Record::Epoch { segment, epoch: Epoch(segment.0 + 1) });
        }
        let start = Start { head: 0, next_sequence: 1, base: 1 };
        write(&medium, &superblock, 7, 0, start, &index, &[]).unwrap();
        let body = u64::from_le_bytes(medium.image()[4096 + 56..][..8].try_into().unwrap());
        (superblock, medium, body.div_ceil(4096) as usize)
    }

    fn is_loaded(superblock: &Superblock, image: Vec<u8>) -> bool {
        let loaded = load(&MemoryMedium::from_image(image), superblock).unwrap();
        loaded.is_some_and(|loaded| loaded.number == 7)
    }

    #[test]
    fn as_many_pages_that_follow_each_other_may_be_lost_as_are_written_at_once() {
        for fences in [1, 1000, 16_384] {
            let (superblock, medium, body) = fenced(4 << 20, fences);
            let (image, lanes) = (medium.image(), body.min(PIECE / PAGE));
            assert!(fences != 16_384 || body > PIECE / PAGE);
            let lost = |pages: &[usize]| {
                let mut image = image.clone();
                // Page 0 is the header's.
                pages.iter().for_each(|page| image[4096 * (2 + page)..][..4096].fill(0x5a));
                is_loaded(&superblock, image)
            };
            for first in 0..=body - lanes {
                assert!(lost(&(first..first + lanes).collect::<Vec<_>>()), "{fences} {first}");
            }
            // Two of one lane, and one with what would mend it.
            if body > lanes {
                assert!(!lost(&[0, lanes]));
            }
            let parity = body + body.div_ceil(1023);
            assert!(!lost(&[0, parity]) && lost(&[parity]) && lost(&[body]));
            // Without sums nobody knows which page it is.
            assert!(!lost(&[0, body]));
        }
    }

    #[test]
    fn what_has_no_room_behind_it_is_whole_without_it() {
        let (superblock, medium, body) = fenced(16 << 10, 100);
        assert_eq!(body, 1);
        let image = medium.image();
        let lost = |page: usize| {
            let mut image = image.clone();
            image[page * PAGE] ^= 1;
            is_loaded(&superblock, image)
        };
        // The header is there twice all the same.
        assert_eq!([0, 1, 2, 3, 4].map(lost), [true, true, false, true, true]);
    }

    /// The page of the second header may have taken no write: what it has says nothing of what its slot had since.
    #[test]
    fn a_second_header_does_not_say_that_none_came_after_it() {
        let (superblock, medium, _) = fenced(16 << 10, 100);
        let index = Index::new(fences_max(&superblock));
        let start = Start { head: 0, next_sequence: 1, base: 1 };
        let newest = |image: Vec<u8>| {
            let loaded = load(&MemoryMedium::from_image(image), &superblock).unwrap().unwrap();
            (loaded.number, loaded.is_newest)
        };
        write(&medium, &superblock, 8, 1, start, &index, &[]).unwrap();
        let mut image = medium.image();
        assert_eq!(newest(image.clone()), (8, true));
        // By its second header: the other slot's first one is there, and earlier.
        image[superblock.checkpoint_start(1) as usize + 20] ^= 1;
        assert_eq!(newest(image.clone()), (8, true));
        // Slot 0 may have had number 9.
        image[superblock.checkpoint_start(1) as usize + 20] ^= 1;
        image[superblock.checkpoint_start(0) as usize + 20] ^= 1;
        assert_eq!(newest(image), (8, false));
    }
}
