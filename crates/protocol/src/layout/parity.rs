//! Where the bytes of a parity segment lie (CodFS §3.1, PLR §3.1): linear in k data chunks, each whole on one device, and
//! n - k parity chunks beside them.
//!
//! ```text
//!   bytes     0 ......... | chunk_bytes ....... | .. | (k - 1) chunk_bytes ....   |
//!   chunk     0           | 1                   |    | k - 1                      | k .. n - 1 (parity)
//!   blocks    0 .. c - 1  | c .. 2c - 1         |    | (k - 1)c .. kc - 1         | kc .. nc - 1
//! ```
//!
//! Invariants: a chunk is c whole blocks of at most [`BLOCK_BYTES_MAX`], equally long, of whole granules; byte b of the
//! segment is byte `b % chunk_bytes` of chunk `b / chunk_bytes`, and byte b of every parity chunk is of byte b of every data chunk,
//! by the coefficients of [`mds`]; what the segment has no bytes for is zero.
//!
//! A segment of full size has chunks of just what they need; a shorter one, the last of its object, those of the next power
//! of two, so that a file that grows doubles its last segment's chunks instead of storing them anew each time.

use super::{BLOCK_BYTES_MAX, CodeKind, Geometry, Holder, PARITY_GRANULE_BYTES, SegmentLayout};
use crate::{
    BlockIndex, DeviceId, IndexRanges,
    policy::{Parity, Policy},
};
use core::ops::Range;
use steadfast_codes::mds::{self, MdsError};

/// The shape of a parity segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParityGeometry {
    /// n: chunks.
    pub chunks: u32,
    /// k: data chunks, the first ones.
    pub data: u32,
    /// c: blocks of a chunk.
    pub blocks: u32,
    /// Bytes in each block.
    pub block_bytes: u32,
}

/// A part of a range of a segment's bytes that lies in one data chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPart {
    /// The data chunk, below k.
    pub chunk: u32,
    /// Bytes of the chunk.
    pub within: Range<u64>,
    /// Where the part begins in the segment.
    pub offset: u64,
}

impl SegmentLayout {
    /// Chunks that it has fewer than a segment of its bucket has: what was stored while too few failure domains served
    /// ([`Parity::degraded`]) is *degraded*. It can be read and changed like any other. A hole lacks none.
    pub fn missing_chunks(&self, policy: &Policy) -> u32 {
        if self.is_hole() {
            return 0;
        }
        match (policy, ParityGeometry::of_layout(self)) {
            (Policy::Parity(policy), Some(shape)) => policy.chunks().saturating_sub(shape.chunks),
            _ => 0,
        }
    }
}

impl ParityGeometry {
    /// The shape of a segment of `length` bytes under `policy`.
    ///
    /// # Panics
    /// When `length` is above the policy's segment: the caller cuts segments.
    pub fn of(policy: &Parity, length: u64) -> Self {
        assert!(length <= policy.segment_bytes, "segment of {length} bytes under `{policy}`");
        let full = needed(policy.segment_bytes, policy.data());
        let chunk_bytes = if length == policy.segment_bytes {
            full
        } else {
            needed(length, policy.data()).next_power_of_two().min(full)
        };
        let blocks = chunk_bytes.div_ceil(BLOCK_BYTES_MAX.into());
        let block_bytes = chunk_bytes.div_ceil(blocks).next_multiple_of(PARITY_GRANULE_BYTES.into());
        Self {
            chunks: policy.chunks(),
            data: policy.data(),
            blocks: u32::try_from(blocks).expect("a segment has 64 MiB at most"),
            block_bytes: u32::try_from(block_bytes).expect("at most 1 MiB"),
        }
    }

    /// The shape of a segment that is there; none where it is no parity segment, or one that no policy makes.
    pub fn of_layout(layout: &SegmentLayout) -> Option<Self> {
        let CodeKind::ReedSolomon { data, parity } = layout.code.kind else { return None };
        let chunks = data.checked_add(parity)?;
        let (originals, block_bytes) = (layout.code.originals, layout.block_bytes);
        let whole = data > 0
            && parity > 0
            && chunks as usize <= mds::CHUNKS_MAX
            && originals > 0
            && originals.is_multiple_of(data)
            && (1..=BLOCK_BYTES_MAX).contains(&block_bytes)
            && block_bytes.is_multiple_of(PARITY_GRANULE_BYTES)
            && layout.granule_bytes == PARITY_GRANULE_BYTES;
        whole.then(|| Self { chunks, data, blocks: originals / data, block_bytes })
    }

    /// n - k: parity chunks.
    pub fn parity(&self) -> u32 {
        self.chunks - self.data
    }

    /// K: original blocks, those of the data chunks.
    pub fn originals(&self) -> u32 {
        self.data * self.blocks
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_bytes)
    }

    /// Bytes of all data chunks: what the segment can hold.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.data) * self.chunk_bytes()
    }

    /// The blocks of a chunk, data or parity.
    pub fn blocks_of(&self, chunk: u32) -> Range<BlockIndex> {
        chunk * self.blocks..(chunk + 1) * self.blocks
    }

    /// The chunk that a block is of.
    pub fn chunk_of(&self, index: BlockIndex) -> u32 {
        index / self.blocks
    }

    /// Where bytes `range` of the segment lie, in order: one part for each data chunk concerned.
    pub fn parts(&self, range: Range<u64>) -> impl Iterator<Item = ChunkPart> {
        let chunk_bytes = self.chunk_bytes();
        let end = range.end.min(self.capacity_bytes());
        let mut at = range.start;
        core::iter::from_fn(move || {
            let (chunk, begin) = (at / chunk_bytes, at % chunk_bytes);
            let take = end.checked_sub(at).filter(|left| *left > 0)?.min(chunk_bytes - begin);
            let offset = at;
            at += take;
            // Below k, as the bytes are below the capacity.
            Some(ChunkPart { chunk: chunk as u32, within: begin..begin + take, offset })
        })
    }

    /// The device that holds the whole of a chunk; none where the layout lists it otherwise.
    pub fn holder(&self, layout: &SegmentLayout, chunk: u32) -> Option<DeviceId> {
        let blocks = IndexRanges::from(self.blocks_of(chunk));
        let holder = layout.holders.iter().find(|holder| holder.blocks() == blocks)?;
        Some(holder.device)
    }

    /// The devices of all chunks, in the chunks' order; none unless each lies whole on a device of its own.
    pub fn holders(&self, layout: &SegmentLayout) -> Option<Vec<DeviceId>> {
        let holders: Vec<DeviceId> =
            (0..self.chunks).map(|chunk| self.holder(layout, chunk)).collect::<Option<_>>()?;
        (holders.len() == layout.holders.len()).then_some(holders)
    }

    /// The devices of all chunks of a segment whose chunks may be changed in place: each lies as a put has stored it. Where
    /// chunks were moved their versions are not those that parity counts.
    pub fn updatable(&self, layout: &SegmentLayout) -> Option<Vec<DeviceId>> {
        let as_stored = |holder: &Holder| matches!(&holder.pieces[..], [piece] if (piece.segment, piece.version) == (layout.segment, layout.version));
        self.holders(layout).filter(|_| layout.holders.iter().all(as_stored))
    }

    /// The sizes of the segment's pieces.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            block_bytes: self.block_bytes,
            originals: self.originals(),
            granule_bytes: PARITY_GRANULE_BYTES,
        }
    }

    /// The code as it is written down.
    pub fn code(&self) -> CodeKind {
        CodeKind::ReedSolomon { data: self.data, parity: self.parity() }
    }

    /// The code over chunks: its deltas are those of the segment's parity chunks.
    ///
    /// # Errors
    /// For more chunks than the codes have, which no policy asks for.
    pub fn chunk_code(&self) -> Result<mds::Code, MdsError> {
        mds::Code::new(mds::Kind::ReedSolomon, self.data as usize, self.parity() as usize)
    }
}

/// What a chunk needs for `length` bytes in `data` chunks: a granule at least.
fn needed(length: u64, data: u32) -> u64 {
    length.div_ceil(data.into()).max(1).next_multiple_of(PARITY_GRANULE_BYTES.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, SegmentId, Version, layout::CodeSpec, layout::Holder, policy::Policy};

    fn policy(text: &str) -> Parity {
        match text.parse() {
            Ok(Policy::Parity(parity)) => parity,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn chunks_are_what_they_need_or_the_next_power_of_two() {
        let default = Parity::default();
        let mib = 1 << 20;
        for (length, chunk_bytes, blocks) in [
            (0, 4096, 1),
            (1, 4096, 1),
            (4 * 4096, 4096, 1),
            (4 * 4096 + 1, 8192, 1),
            (5 * mib + 3, 2 * mib, 2),
            (8 * mib + 1, 4 * mib, 4),
            (16 * mib - 1, 4 * mib, 4),
            (16 * mib, 4 * mib, 4),
        ] {
            let shape = ParityGeometry::of(&default, length);
            assert_eq!((shape.chunk_bytes(), shape.blocks), (chunk_bytes, blocks), "{length}");
            assert!(shape.capacity_bytes() >= length);
        }
        // What does not divide evenly is not rounded up to 1 MiB.
        let six = policy("parity:code=rs(9,6)");
        let full = ParityGeometry::of(&six, 16 * mib);
        assert_eq!((full.blocks, full.block_bytes), (3, 933_888));
        // A shorter segment is never larger than a full one.
        assert_eq!(ParityGeometry::of(&six, 16 * mib - 1).chunk_bytes(), full.chunk_bytes());
        assert_eq!(ParityGeometry::of(&six, 12 * mib - 1).chunk_bytes(), 2 * mib);
    }

    #[test]
    fn every_policy_has_blocks_of_whole_granules() {
        for chunks in 2..=32 {
            for data in 1..chunks {
                for segment in [1, 3, 16, 64] {
                    let policy = policy(&format!("parity:code=rs({chunks},{data}),segment={segment}MiB"));
                    for length in [0, 1, 4095, 300_000, policy.segment_bytes - 1, policy.segment_bytes] {
                        let shape = ParityGeometry::of(&policy, length);
                        assert!(shape.block_bytes.is_multiple_of(PARITY_GRANULE_BYTES));
                        assert!(shape.block_bytes <= BLOCK_BYTES_MAX && shape.capacity_bytes() >= length);
                        let spare = shape.chunk_bytes() - needed(length, data);
                        let whole = u64::from(shape.blocks) * u64::from(PARITY_GRANULE_BYTES);
                        assert!(length < policy.segment_bytes || spare < whole, "{policy}: {spare} too many");
                        let spec = CodeSpec { kind: shape.code(), originals: shape.originals(), seed: 0 };
                        assert_eq!(spec.code().unwrap().end(), Some(chunks * shape.blocks));
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_lie_in_parts_that_follow_each_other() {
        let shape = ParityGeometry { chunks: 6, data: 4, blocks: 2, block_bytes: 4096 };
        let parts = |range: Range<u64>| shape.parts(range).collect::<Vec<_>>();
        let part = |chunk, within, offset| ChunkPart { chunk, within, offset };
        assert_eq!(parts(10..20), [part(0, 10..20, 10)]);
        assert_eq!(
            parts(8000..20_000),
            [part(0, 8000..8192, 8000), part(1, 0..8192, 8192), part(2, 0..3616, 16_384)]
        );
        assert_eq!(parts(8192 * 4 - 1..u64::MAX), [part(3, 8191..8192, 8192 * 4 - 1)]);
        assert!(parts(5..5).is_empty() && parts(40_000..50_000).is_empty());
        assert_eq!((shape.blocks_of(4), shape.chunk_of(9)), (8..10, 4));
    }

    #[test]
    fn holders_are_found_by_their_chunks() {
        let shape = ParityGeometry { chunks: 3, data: 2, blocks: 2, block_bytes: 4096 };
        let holder = |device, blocks: Range<u32>| {
            Holder::whole(DeviceId(device), SegmentId(1), Version(1), blocks.into())
        };
        let mut layout = SegmentLayout {
            segment: SegmentId(1),
            version: Version(1),
            epoch: Epoch(1),
            length: 16_000,
            code: CodeSpec { kind: shape.code(), originals: 4, seed: 0 },
            block_bytes: 4096,
            granule_bytes: PARITY_GRANULE_BYTES,
            holders: vec![holder(7, 4..6), holder(9, 0..2), holder(8, 2..4)],
        };
        assert_eq!(ParityGeometry::of_layout(&layout), Some(shape));
        assert_eq!(shape.holders(&layout).unwrap(), [9, 8, 7].map(DeviceId));
        layout.holders[1] = holder(9, 0..1);
        assert_eq!((shape.holder(&layout, 0), shape.holders(&layout)), (None, None));
        for kind in [
            CodeKind::Mix,
            CodeKind::ReedSolomon { data: 3, parity: 1 },
            CodeKind::ReedSolomon { data: 0, parity: 1 },
            CodeKind::ReedSolomon { data: 2, parity: u32::MAX },
        ] {
            layout.code.kind = kind;
            assert_eq!(ParityGeometry::of_layout(&layout), None, "{kind:?}");
        }
    }
}
