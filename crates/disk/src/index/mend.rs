//! What a checkpoint's slot has behind the body, so that a page of it that cannot be read, or is not what was written, costs nothing: a bad
//! sector there would else end a device whose data is whole.
//!
//! ```text
//! slot:    header │ body: B pages │ sums: B/1023 pages │ parity: P pages │ … │ header again, in the last page
//! sums:    1023 x crc32c u32 of a page of the body, 0 behind the last    4092 crc32c u32 of what is before
//! parity:  page j is the XOR of the body's pages j, j + P, j + 2P, …     P = B, and at most as many as are written at once
//! ```
//!
//! So one page of each P can be lost, and any P that follow each other. Sums and parity are there where the slot has room for them; the
//! header says whether they are. What was mended counts only where the whole body has the checksum of its header, so neither is trusted.

use super::codec::Put;
use crate::{
    buffer::AlignedBuf,
    checksum::crc32c,
    media::{Medium, MediumError},
};

const PAGE: usize = 4096;
const SUMS_PER_PAGE: usize = PAGE / 4 - 1;

/// Where the parts behind a body lie, in pages from the body's start.
struct Parts {
    body: usize,
    sums: usize,
    parity: usize,
}

impl Parts {
    /// `at_once` is how many pages of a body are written at once.
    fn of(body_bytes: u64, at_once: usize) -> Self {
        let body = (body_bytes as usize).div_ceil(PAGE);
        Self { body, sums: body.div_ceil(SUMS_PER_PAGE), parity: body.min(at_once) }
    }

    fn pages(&self) -> usize {
        self.body + self.sums + self.parity
    }
}

/// Sums and parity of a body that is being written.
pub(super) struct Spare {
    sums: Vec<u32>,
    parity: AlignedBuf,
}

impl Spare {
    /// Of a body that is written in pieces of so many bytes.
    pub(super) fn new(piece_bytes: usize) -> Self {
        Self { sums: Vec::new(), parity: AlignedBuf::zeroed(piece_bytes) }
    }

    /// The body's next piece is this: whole pages, and only the last one is shorter.
    pub(super) fn add(&mut self, piece: &[u8]) {
        self.sums.extend(piece.chunks(PAGE).map(crc32c));
        xor(&mut self.parity[..piece.len()], piece);
    }

    /// Writes them behind the body of so many bytes at `base`, where `room` pages are for both; whether they are there.
    ///
    /// # Errors
    /// Where the medium takes no writes at all. A place that takes none leaves the body without them.
    pub(super) fn write(
        &self,
        medium: &dyn Medium,
        base: u64,
        body_bytes: u64,
        room: usize,
    ) -> Result<bool, MediumError> {
        let parts = Parts::of(body_bytes, self.parity.len() / PAGE);
        if parts.pages() > room {
            return Ok(false);
        }
        let mut bytes = Vec::with_capacity((parts.sums + parts.parity) * PAGE);
        for sums in self.sums.chunks(SUMS_PER_PAGE) {
            let start = bytes.len();
            sums.iter().for_each(|sum| bytes.put_u32(*sum));
            bytes.resize(start + PAGE - 4, 0);
            let crc = crc32c(&bytes[start..]);
            bytes.put_u32(crc);
        }
        bytes.extend_from_slice(&self.parity[..parts.parity * PAGE]);
        let mut aligned = AlignedBuf::zeroed(bytes.len());
        aligned.copy_from_slice(&bytes);
        was_taken(medium.write_at(base + (parts.body * PAGE) as u64, &aligned))
    }
}

/// Whether the medium took a write to a place that may fail: what it was to hold is not needed.
pub(super) fn was_taken(written: Result<(), MediumError>) -> Result<bool, MediumError> {
    match written {
        Ok(()) => Ok(true),
        Err(MediumError::Io { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A body of so many bytes at `base`, of which pages cannot be read, or are not what was written: as it was, where what lies behind it says
/// what that is. The caller has to compare its checksum.
///
/// # Errors
/// Where that cannot be read either.
pub(super) fn mended(
    medium: &dyn Medium,
    base: u64,
    body_bytes: u64,
    piece_bytes: usize,
) -> Result<Option<AlignedBuf>, MediumError> {
    let parts = Parts::of(body_bytes, piece_bytes / PAGE);
    let at = |page: usize| base + (page * PAGE) as u64;
    let mut sums = Vec::with_capacity(parts.body);
    for page in parts.body..parts.body + parts.sums {
        let mut bytes = [0; PAGE];
        let is_whole = medium.read_at(at(page), &mut bytes).is_ok()
            && crc32c(&bytes[..PAGE - 4])
                == u32::from_le_bytes(bytes[PAGE - 4..].try_into().expect("4 bytes"));
        let of_page = bytes[..PAGE - 4].chunks_exact(4);
        let sum = |sum: &[u8]| u32::from_le_bytes(sum.try_into().expect("4 bytes"));
        sums.extend(of_page.map(|bytes| is_whole.then(|| sum(bytes))));
    }
    let mut body = AlignedBuf::zeroed(parts.body * PAGE);
    let mut lost = vec![None; parts.parity];
    for (page, bytes) in body.chunks_exact_mut(PAGE).enumerate() {
        let read = medium.read_at(at(page), bytes);
        let is_whole = read.is_ok() && sums[page].is_none_or(|sum| sum == crc32c(bytes));
        if !is_whole && lost[page % parts.parity].replace(page).is_some() {
            return read.map(|()| None);
        }
    }
    for page in lost.into_iter().flatten() {
        let mut bytes = [0; PAGE];
        medium.read_at(at(parts.body + parts.sums + page % parts.parity), &mut bytes)?;
        let others = (page % parts.parity..parts.body).step_by(parts.parity).filter(|&other| other != page);
        others.for_each(|other| xor(&mut bytes, &body[other * PAGE..][..PAGE]));
        body[page * PAGE..][..PAGE].copy_from_slice(&bytes);
    }
    Ok(Some(body))
}

fn xor(into: &mut [u8], bytes: &[u8]) {
    into.iter_mut().zip(bytes).for_each(|(into, byte)| *into ^= byte);
}
