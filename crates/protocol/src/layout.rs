//! Layouts: who holds what of a segment. Written when a version commits, listing confirmed blocks only.
//!
//! A segment is coded once and may be changed without being rewritten: an amendment drops blocks and stores others (new
//! contents of a few, more of them, the same elsewhere) as *pieces* of their own beside those that stay.
//!
//! ```text
//!   coded segment 7 (version 3)         after an amendment (version 9, new segment 12)
//!     device A   7/3: 0-15                device A   7/3: 0-4,6-15    12/9: 5
//!     device B   7/3: 16-31               device B   7/3: 16-31
//! ```
//!
//! A segment of a file of which nobody has written anything is a *hole*: it has a length, the shape that it would be stored in, and no
//! holders. Its bytes are zero. What is written to it is stored as a segment of another name in its place.
//!
//! Invariants: an index is listed once in a layout; a device holds a piece as one extent under the piece's own segment,
//! and segment and version of the piece, not of the layout, are in its checksums; what a piece lists only shrinks.

mod parity;

pub use parity::{ChunkPart, ParityGeometry};

use crate::{BlockIndex, DeviceId, Epoch, IndexRanges, SegmentId, Version};
use serde::{Deserialize, Serialize};
use steadfast_codes::rateless::{Code, CodeError, Effort, Kind};

/// The most bytes one rateless segment holds; longer objects are cut into several.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Objects below this are replicated `f + 1` times instead of coded: very small objects want replicas.
pub const REPLICATED_BELOW_BYTES: u64 = 1 << 20;
/// Block sizes follow the object's so that K is 256 to 1024 from 16 MiB on (dissertation §5.2.2: K = 128 to 1024).
pub const BLOCK_BYTES_MIN: u32 = 64 << 10;
/// Blocks up to this are as large as leaves [`ORIGINALS_EASY`] of them.
const BLOCK_BYTES_EASY: u64 = 256 << 10;
/// The least K that larger blocks are made for.
const ORIGINALS_EASY: u64 = 256;
/// The largest block.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// Bytes under one checksum in rateless and striped segments.
pub const GRANULE_BYTES: u32 = 64 << 10;
/// Bytes under one checksum in replicas, so that a small read stays small.
pub const REPLICA_GRANULE_BYTES: u32 = 4 << 10;

/// Bytes under one checksum in parity segments, whose bytes change a few at a time.
pub const PARITY_GRANULE_BYTES: u32 = 4 << 10;

/// The code of a segment as it is written down; [`CodeSpec::code`] makes the arithmetic from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodeSpec {
    /// Which code.
    pub kind: CodeKind,
    /// K: original blocks.
    pub originals: u32,
    /// The seed its graph is made from.
    pub seed: u64,
}

/// The kinds of [`CodeSpec`], as stored: new ones come last, since a kind is written as its place in this list. A server
/// that does not know one refuses the record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum CodeKind {
    /// Block i is original i mod K: stripes and replicas.
    Replicated,
    /// The dissertation's LT.
    Lt {
        /// Scales the robust soliton's spike.
        c: f64,
        /// Bound on the probability that decoding stalls.
        delta: f64,
    },
    /// The systematic sparse code with hidden parity columns, variant B.
    Mix,
    /// Variant A.
    MixA,
    /// Variant C.
    MixC,
    /// Reed-Solomon chunks; see [`ParityGeometry`].
    ReedSolomon {
        /// k: data chunks.
        data: u32,
        /// n - k: parity chunks.
        parity: u32,
    },
}

/// The most pieces one device may hold of one coded segment: as many as one read asks for. Picked by eye: the index
/// entry of a piece is read before its blocks are, and small pieces make a disk seek. Amendments stay far below it
/// ([`PIECES_MERGED_AT`]).
pub const PIECES_PER_HOLDER_MAX: usize = 256;

/// Pieces of one coded segment on one device beyond which an amendment merges the smallest into one
/// ([`crate::plan::Places::merged`]). Picked by eye: a disk of 10 ms a seek reads 32 pieces in a third of a second more than
/// one, and each block is written anew once in sixteen amendments at most.
pub const PIECES_MERGED_AT: usize = 32;

/// Where one segment of an object lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentLayout {
    /// Names the coded segment: that of its first piece, also where no block of that one is left.
    pub segment: SegmentId,
    /// The version that `segment` was created for.
    pub version: Version,
    /// The epoch of this layout; each amendment raises it.
    pub epoch: Epoch,
    /// Bytes of the object that it holds.
    pub length: u64,
    /// Its code.
    pub code: CodeSpec,
    /// Bytes in each block; the last original is padded with zeros to this.
    pub block_bytes: u32,
    /// Bytes under one checksum.
    pub granule_bytes: u32,
    /// The devices and what each holds; none of a hole.
    pub holders: Vec<Holder>,
}

/// One device's share of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The device.
    pub device: DeviceId,
    /// What it holds: one piece until the segment is amended, at most [`PIECES_PER_HOLDER_MAX`].
    pub pieces: Vec<Piece>,
}

/// Blocks that one device holds in one extent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The segment that it is stored under; part of every checksum's seed.
    pub segment: SegmentId,
    /// The version that it was created for; part of every checksum's seed.
    pub version: Version,
    /// The confirmed blocks in it that count. There may be others that were dropped and wait to be freed.
    pub blocks: IndexRanges,
}

/// Blocks placed on a device, without the name that they are stored under: what the cores that write give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The device.
    pub device: DeviceId,
    /// The confirmed blocks on it.
    pub blocks: IndexRanges,
}

/// The size of a segment's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in each block.
    pub block_bytes: u32,
    /// K: original blocks.
    pub originals: u32,
    /// Bytes under one checksum.
    pub granule_bytes: u32,
}

impl Geometry {
    /// Pieces of a coded or striped segment of `length` bytes: the smallest power of two of a block, from 64 KiB to 1 MiB, that
    /// keeps K at 1024 or fewer; but up to 256 KiB the largest that leaves K = 256, as what a block costs clients and servers hardly
    /// depends on its size (64 MiB in blocks of 256 KiB instead of 64 are got for half of the processors' time).
    ///
    /// # Panics
    /// When `length` is zero or above [`SEGMENT_BYTES_MAX`]: the caller cuts segments.
    pub fn coded(length: u64) -> Self {
        assert!(length > 0 && length <= SEGMENT_BYTES_MAX, "segment of {length} bytes");
        let easy = 1 << (length / ORIGINALS_EASY).clamp(BLOCK_BYTES_MIN.into(), BLOCK_BYTES_EASY).ilog2();
        let block_bytes = length.div_ceil(1024).next_power_of_two().max(easy);
        let originals = length.div_ceil(block_bytes);
        Self {
            block_bytes: u32::try_from(block_bytes).expect("at most 1 MiB for a segment of 1 GiB"),
            originals: u32::try_from(originals).expect("at most 1024 blocks"),
            granule_bytes: GRANULE_BYTES,
        }
    }

    /// The single block of a replicated segment of `length` bytes; an empty object has one block of one zero byte.
    ///
    /// # Panics
    /// When `length` is above [`BLOCK_BYTES_MAX`].
    pub fn replicated(length: u64) -> Self {
        let block_bytes = u32::try_from(length.max(1)).expect("at most 1 MiB");
        assert!(block_bytes <= BLOCK_BYTES_MAX, "replica of {length} bytes");
        Self { block_bytes, originals: 1, granule_bytes: REPLICA_GRANULE_BYTES }
    }
}

impl CodeSpec {
    /// The arithmetic of this code.
    ///
    /// # Errors
    /// When K or a parameter is out of range: a layout that came from a damaged or newer server.
    pub fn code(&self) -> Result<Code, CodeError> {
        Code::new(self.arithmetic(), self.originals, self.seed)
    }

    /// What decoding takes where some originals do not come, in blocks added up.
    pub fn effort(&self) -> Option<Effort> {
        self.arithmetic().effort(self.originals)
    }

    fn arithmetic(&self) -> Kind {
        match self.kind {
            CodeKind::Replicated => Kind::Replicated,
            CodeKind::Lt { c, delta } => Kind::Lt { c, delta },
            CodeKind::Mix => Kind::Mix,
            CodeKind::MixA => Kind::MixA,
            CodeKind::MixC => Kind::MixC,
            CodeKind::ReedSolomon { data, parity } => Kind::ReedSolomon { data, parity },
        }
    }
}

impl Holder {
    /// The share of a device that holds one piece.
    pub fn whole(device: DeviceId, segment: SegmentId, version: Version, blocks: IndexRanges) -> Self {
        Self { device, pieces: vec![Piece { segment, version, blocks }] }
    }

    /// The blocks of all pieces.
    pub fn blocks(&self) -> IndexRanges {
        let mut all = IndexRanges::new();
        self.pieces.iter().for_each(|piece| all.insert_all(&piece.blocks));
        all
    }

    /// How many blocks it holds.
    pub fn count(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.blocks.count()).sum()
    }

    /// The piece that lists `index`, if one does.
    pub fn piece_of(&self, index: BlockIndex) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.blocks.contains(index))
    }

    /// The piece stored under `segment`, if there is one.
    pub fn piece(&self, segment: SegmentId) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.segment == segment)
    }
}

impl Share {
    /// The holder of these blocks, stored under this name.
    pub fn stored(self, segment: SegmentId, version: Version) -> Holder {
        Holder::whole(self.device, segment, version, self.blocks)
    }
}

impl SegmentLayout {
    /// Whether it is a hole: zeros that nobody stores. Only files have such; what has another code and no holders is unreadable.
    pub fn is_hole(&self) -> bool {
        self.holders.is_empty() && matches!(self.code.kind, CodeKind::ReedSolomon { .. })
    }

    /// N: confirmed blocks on all devices.
    pub fn stored_blocks(&self) -> u32 {
        self.holders.iter().map(Holder::count).sum()
    }

    /// D = N/K - 1 as it came out (dissertation §5.3.2).
    pub fn redundancy(&self) -> f64 {
        f64::from(self.stored_blocks()) / f64::from(self.code.originals.max(1)) - 1.0
    }

    /// The device that holds `index`, if one does.
    pub fn holder_of(&self, index: BlockIndex) -> Option<DeviceId> {
        self.holders.iter().find(|holder| holder.piece_of(index).is_some()).map(|holder| holder.device)
    }

    /// What `device` holds of it.
    pub fn holder(&self, device: DeviceId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.device == device)
    }

    /// Every device's piece of every name, in the order listed.
    pub fn pieces(&self) -> impl Iterator<Item = (DeviceId, &Piece)> {
        self.holders.iter().flat_map(|holder| holder.pieces.iter().map(|piece| (holder.device, piece)))
    }
}
