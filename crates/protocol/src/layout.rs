//! Layouts: who holds what of a segment. Written once when a version commits, listing confirmed blocks only.

use crate::{BlockIndex, DeviceId, Epoch, IndexRanges, SegmentId, Version};
use serde::{Deserialize, Serialize};
use steadfast_codes::rateless::{Code, CodeError, Kind};

/// The most bytes one rateless segment holds; longer objects are cut into several.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Objects below this are replicated `f + 1` times instead of coded: very small objects want replicas.
pub const REPLICATED_BELOW_BYTES: u64 = 1 << 20;
/// Block sizes follow the object's so that K is about 512 to 1024 (dissertation §5.2.2: K = 128 to 1024).
pub const BLOCK_BYTES_MIN: u32 = 64 << 10;
/// The largest block.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// Bytes under one checksum in rateless and striped segments.
pub const GRANULE_BYTES: u32 = 64 << 10;
/// Bytes under one checksum in replicas, so that a small read stays small.
pub const REPLICA_GRANULE_BYTES: u32 = 4 << 10;

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
}

/// Where one segment of an object lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentLayout {
    /// The segment.
    pub segment: SegmentId,
    /// The version it was created for; part of every checksum's seed.
    pub version: Version,
    /// The epoch of this layout.
    pub epoch: Epoch,
    /// Bytes of the object that it holds.
    pub length: u64,
    /// Its code.
    pub code: CodeSpec,
    /// Bytes in each block; the last original is padded with zeros to this.
    pub block_bytes: u32,
    /// Bytes under one checksum.
    pub granule_bytes: u32,
    /// The devices and what each holds.
    pub holders: Vec<Holder>,
}

/// One device's share of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
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
    /// Pieces of a coded or striped segment of `length` bytes: the smallest power of two of a block, from 64 KiB
    /// to 1 MiB, that keeps K at 1024 or fewer.
    ///
    /// # Panics
    /// When `length` is zero or above [`SEGMENT_BYTES_MAX`]: the caller cuts segments.
    pub fn coded(length: u64) -> Self {
        assert!(length > 0 && length <= SEGMENT_BYTES_MAX, "segment of {length} bytes");
        let block_bytes = length.div_ceil(1024).next_power_of_two().max(BLOCK_BYTES_MIN.into());
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
        let kind = match self.kind {
            CodeKind::Replicated => Kind::Replicated,
            CodeKind::Lt { c, delta } => Kind::Lt { c, delta },
            CodeKind::Mix => Kind::Mix,
            CodeKind::MixA => Kind::MixA,
            CodeKind::MixC => Kind::MixC,
        };
        Code::new(kind, self.originals, self.seed)
    }
}

impl SegmentLayout {
    /// N: confirmed blocks on all devices.
    pub fn stored_blocks(&self) -> u32 {
        self.holders.iter().map(|holder| holder.blocks.count()).sum()
    }

    /// D = N/K - 1 as it came out (dissertation §5.3.2).
    pub fn redundancy(&self) -> f64 {
        f64::from(self.stored_blocks()) / f64::from(self.code.originals.max(1)) - 1.0
    }

    /// The device that holds `index`, if one does.
    pub fn holder_of(&self, index: BlockIndex) -> Option<DeviceId> {
        self.holders.iter().find(|holder| holder.blocks.contains(index)).map(|holder| holder.device)
    }
}
