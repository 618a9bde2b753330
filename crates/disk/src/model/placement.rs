//! Where the bytes of a device lie on its disk: the random in-disk layout of §6.2.6.
//!
//! A device's bytes are cut into chunks of *blocking factor* sectors. With the *probability of sequential
//! access* a chunk lies right behind the chunk before it; otherwise at a random place. The place is
//! a hash of the chunk's number, not an entry of a table: what is asked again lies where it lay, and a
//! device takes no memory however large it is. Chunks may fall on the same place: this is a model of times.

use super::{
    mechanics::{Divisor, Geometry, Request, SECTOR_BYTES},
    mix, scale,
};

/// How a device's bytes are laid out on its disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// Sectors that lie together and are asked for by one request.
    pub blocking_factor: u32,
    /// Probability that a chunk follows the one before, 0 to 1.
    pub sequential: f64,
    /// Share of the disk's sectors, around its middle, that the bytes lie in; 1: all.
    pub span: f64,
    /// Sectors after which a run ends in any case, where it does: what lies together was written together.
    pub run_sectors: Option<u32>,
    /// Seed of the places.
    pub seed: u64,
}

impl Layout {
    /// A layout over the whole disk.
    pub fn new(blocking_factor: u32, sequential: f64, seed: u64) -> Layout {
        Layout { blocking_factor, sequential, span: 1.0, run_sectors: None, seed }
    }
}

/// A run of chunks ends at these anyway where not all are sequential: its start is found in few steps.
const RUN_CHUNKS_MAX: u64 = 4096;

/// Salt of the choice whether a chunk starts a run.
const RUN_SALT: u64 = 0x5e9_0e27;

/// A [`Layout`] on a disk.
#[derive(Debug, Clone)]
pub struct Placement {
    chunk_sectors: u64,
    chunk_bytes: Divisor,
    /// A chunk whose hash is below this follows the one before; `None`: every one.
    follows_below: Option<u64>,
    /// A run ends at multiples of so many chunks.
    run_chunks: Divisor,
    seed: u64,
    first: u64,
    slots: u64,
    /// The last chunk asked for and the start of its run.
    last: (u64, u64),
}

/// A part of a chunk that one request moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The physical request.
    pub request: Request,
    /// It starts behind the first sector of its chunk.
    pub inside: bool,
}

impl Placement {
    /// Lays `layout` on a disk. A blocking factor of 0 counts as 1, one beyond the disk as the disk; shares
    /// outside 0 to 1 count as the nearer end.
    pub fn new(layout: &Layout, disk: &Geometry) -> Placement {
        let sectors = disk.sectors();
        let chunk_sectors = u64::from(layout.blocking_factor).clamp(1, sectors);
        let span = ((sectors as f64 * layout.span) as u64).clamp(chunk_sectors, sectors);
        let sequential = layout.sequential.clamp(0.0, 1.0);
        Placement {
            chunk_sectors,
            chunk_bytes: Divisor::new(chunk_sectors * SECTOR_BYTES),
            follows_below: (sequential < 1.0).then_some((sequential * 18_446_744_073_709_551_616.0) as u64),
            run_chunks: Divisor::new(match layout.run_sectors {
                Some(sectors) => (u64::from(sectors) / chunk_sectors).max(1),
                None if sequential < 1.0 => RUN_CHUNKS_MAX,
                None => u64::MAX,
            }),
            seed: layout.seed,
            first: (sectors - span) / 2,
            slots: span / chunk_sectors,
            last: (0, 0),
        }
    }

    /// Bytes of a chunk.
    #[inline]
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes.by
    }

    /// First sector of a chunk.
    #[inline]
    pub fn chunk_lba(&mut self, chunk: u64) -> u64 {
        let start = self.run_start(chunk);
        let mut slot = scale(mix(self.seed, start), self.slots) + (chunk - start);
        if slot >= self.slots {
            slot %= self.slots;
        }
        self.first + slot * self.chunk_sectors
    }

    #[inline]
    fn run_start(&mut self, chunk: u64) -> u64 {
        let Some(below) = self.follows_below else { return chunk - self.run_chunks.split(chunk).1 };
        if below == 0 {
            return chunk;
        }
        let (known, known_start) = self.last;
        let mut start = chunk;
        while self.run_chunks.split(start).1 > 0 && mix(self.seed ^ RUN_SALT, start) < below {
            if start - 1 == known {
                start = known_start;
                break;
            }
            start -= 1;
        }
        self.last = (chunk, start);
        start
    }

    /// The first physical request of the bytes `offset..end`, and the offset behind it. Sectors that the range
    /// touches in part are moved whole.
    ///
    /// `None`: the range is empty.
    #[inline(always)]
    pub fn next(&mut self, offset: u64, end: u64, write: bool) -> Option<(Piece, u64)> {
        if offset >= end {
            return None;
        }
        let chunk_bytes = self.chunk_bytes();
        let (chunk, within) = self.chunk_bytes.split(offset);
        let stop = (end - chunk * chunk_bytes).min(chunk_bytes);
        let first = within / SECTOR_BYTES;
        let sectors = stop.div_ceil(SECTOR_BYTES) - first;
        let lba = self.chunk_lba(chunk) + first;
        let request = Request { lba, sectors: sectors as u32, write };
        Some((Piece { request, inside: first > 0 }, chunk * chunk_bytes + stop))
    }
}
