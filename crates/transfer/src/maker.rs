//! Makes the blocks of one segment, with their checksums; what takes long, off the runtime's thread.
//!
//! Originals of systematic codes are sent as they were read. Coded blocks are minted in batches: indices are handed out
//! in order over all devices, so what one of them is given next is known before it is asked for. A batch sums its parity
//! columns once, strip by strip, in the processor's cache; blocks made a few at a time cost 25 to 80 times their share of
//! that (512 blocks of 256 KiB of 1,024 originals: 68 ms alone on a Zen 4 in one batch, 105 to 130 within a put, 220 in two).

use crate::Originals;
use bytes::Bytes;
use core::ops::Range;
use std::{collections::BTreeMap, sync::Arc};
use steadfast_codes::rateless::{Code, Encoder};
use steadfast_disk::{Granule, checksum};
use steadfast_net::Batch;
use steadfast_protocol::{
    BlockIndex, SegmentId, Version,
    layout::{CodeKind, CodeSpec, Geometry},
};
use tokio::sync::{Mutex, Notify};

/// Minted blocks that wait to be pushed take at most this (what 256 MiB take at D = 0.5), and those pushed their windows:
/// a put stays within its segment, its windows and 192 MiB.
const BATCH_BYTES_MAX: u64 = 192 << 20;
/// The first batch goes beyond what the policy asks for by K over this, and each later one has so many: a put pushes 1.6 K to 1.9 K
/// blocks where D is 0.5, and any batch sums nearly all parity columns, three reads an original (512 blocks of 256 KiB: 68 ms, 128 of
/// them 40 ms).
const BEYOND_SHARE: u32 = 4;

/// A block ready to be sent.
pub(crate) struct Made {
    pub(crate) index: BlockIndex,
    pub(crate) block: Bytes,
    pub(crate) sums: Vec<u32>,
}

/// The blocks of one segment.
pub struct Maker {
    /// The segment they are stored under.
    pub segment: SegmentId,
    /// Its version.
    pub version: Version,
    /// The sizes of its pieces.
    pub geometry: Geometry,
    granule: Granule,
    kind: CodeKind,
    code: Code,
    originals: Arc<Originals>,
    /// Where not all originals are known: the only blocks that can be had.
    ready: Option<BTreeMap<BlockIndex, Bytes>>,
    /// Told when another is asked for.
    lacking: Notify,
    /// The first index to mint, and the first beyond what the policy asks for.
    first: (BlockIndex, BlockIndex),
    minted: Mutex<Minted>,
}

/// Coded blocks made ahead.
struct Minted {
    waiting: BTreeMap<BlockIndex, Bytes>,
    /// The first index that no batch reached.
    next: BlockIndex,
    /// The first index beyond what the policy asks for.
    expected: BlockIndex,
}

impl From<(BlockIndex, BlockIndex)> for Minted {
    fn from((next, expected): (BlockIndex, BlockIndex)) -> Self {
        Self { waiting: BTreeMap::new(), next, expected }
    }
}

impl Maker {
    /// Mints from `first_new` on, and about as many as `redundancy` (D) asks for; indices below are made as they are asked
    /// for.
    pub fn new(
        (segment, version): (SegmentId, Version),
        geometry: Geometry,
        code: &Code,
        spec: CodeSpec,
        originals: Arc<Originals>,
        redundancy: f64,
        first_new: BlockIndex,
    ) -> Self {
        let granule = Granule::new(geometry.granule_bytes).expect("the layout's own granules are valid");
        let k = geometry.originals;
        let coded_from = (0..k).find(|&index| original(spec.kind, k, index).is_none()).unwrap_or(k);
        // A float beyond the indices becomes the last of them.
        let expected = (f64::from(k) * (1.0 + redundancy.max(0.0))).ceil() as u32;
        let first = (first_new.max(coded_from), expected);
        Self {
            segment,
            version,
            geometry,
            granule,
            kind: spec.kind,
            code: code.clone(),
            originals,
            ready: None,
            lacking: Notify::new(),
            first,
            minted: Mutex::new(Minted::from(first)),
        }
    }

    /// The same blocks for a segment of another name.
    pub fn renamed(&self, segment: SegmentId) -> Self {
        Self {
            segment,
            code: self.code.clone(),
            originals: Arc::clone(&self.originals),
            ready: self.ready.clone(),
            lacking: Notify::new(),
            minted: Mutex::new(Minted::from(self.first)),
            ..*self
        }
    }

    /// Gives these blocks and no others.
    pub fn only(self, ready: BTreeMap<BlockIndex, Bytes>) -> Self {
        Self { ready: Some(ready), ..self }
    }

    /// The originals; none where blocks are not made from them.
    pub(crate) fn arriving(&self) -> Option<Arc<Originals>> {
        self.ready.is_none().then(|| Arc::clone(&self.originals))
    }

    /// Waits until a block was asked for that cannot be had.
    pub async fn lacking(&self) {
        self.lacking.notified().await;
    }

    /// Bytes under one checksum.
    pub(crate) fn granule_bytes(&self) -> usize {
        self.geometry.granule_bytes as usize
    }

    /// The original that a block is, if it is one.
    fn original(&self, index: BlockIndex) -> Option<u32> {
        original(self.kind, self.geometry.originals, index)
    }

    /// The blocks of `indices`, in order; none when the source failed, which the put learns from the source itself.
    pub(crate) async fn make(&self, indices: Range<BlockIndex>) -> Vec<Made> {
        if let Some(ready) = &self.ready {
            let found = indices.map(|index| Some((index, ready.get(&index)?.clone())));
            let Some(blocks) = found.collect() else {
                self.lacking.notify_one();
                return Vec::new();
            };
            return self.with_sums(blocks).await;
        }
        let k = self.originals.count();
        let needed =
            indices.clone().map(|index| self.original(index).map_or(k, |original| original + 1)).max();
        if !self.originals.wait_for(needed.unwrap_or(0)).await {
            return Vec::new();
        }
        let originals = indices.clone().map_while(|index| Some((index, self.original(index)?)));
        let mut made = self.originals(originals.collect()).await;
        let coded = indices.start + made.len() as u32..indices.end;
        if !coded.is_empty() {
            made.extend(self.with_sums(self.coded(coded).await).await);
        }
        made
    }

    /// Originals, under these indices.
    async fn originals(&self, originals: Vec<(BlockIndex, u32)>) -> Vec<Made> {
        let checked = |&(index, original): &(BlockIndex, u32)| {
            let (mut sums, block) =
                (self.originals.crcs(original)?.to_vec(), self.originals.block(original).clone());
            assert_eq!(sums.len(), block.len().div_ceil(self.granule_bytes()), "one for each granule");
            checksum::tag(&mut sums, self.segment, self.version, index, 0);
            Some(Made { index, block, sums })
        };
        if let Some(made) = originals.iter().map(checked).collect() {
            return made;
        }
        let block = |(index, original)| (index, self.originals.block(original).clone());
        self.with_sums(originals.into_iter().map(block).collect()).await
    }

    /// Makes the first batch as soon as all originals are there.
    pub async fn prepare_ahead(&self) {
        if self.kind != CodeKind::Replicated && self.originals.wait_for(self.originals.count()).await {
            let mut minted = self.minted.lock().await;
            let next = minted.next;
            if next < minted.expected {
                self.mint(&mut minted, next).await;
            }
        }
    }

    /// Coded blocks, all originals being there.
    async fn coded(&self, indices: Range<BlockIndex>) -> Vec<(BlockIndex, Bytes)> {
        // Held while a batch is made: the others that ask wait for the same one.
        let mut minted = self.minted.lock().await;
        let mut blocks = Vec::with_capacity(indices.len());
        let mut from = indices.start;
        while from < indices.end {
            if let Some(block) = minted.waiting.remove(&from) {
                blocks.push((from, block));
                from += 1;
            } else if from < minted.next {
                // Rewritten, or asked for again: nobody knows how many of those follow.
                let known = (from..indices.end).find(|index| minted.waiting.contains_key(index));
                let to = known.unwrap_or(indices.end).min(minted.next);
                blocks.extend((from..).zip(self.encode(from..to).await));
                from = to;
            } else {
                self.mint(&mut minted, indices.end).await;
            }
        }
        blocks
    }

    /// Makes the next batch, and all before `end`. Devices ask for their runs in any order: what a batch left out would be
    /// made a few blocks at a time.
    async fn mint(&self, minted: &mut Minted, end: BlockIndex) {
        let most = BATCH_BYTES_MAX / u64::from(self.geometry.block_bytes);
        let most = u32::try_from(most).expect("blocks are not that small").max(1);
        let beyond = (self.geometry.originals / BEYOND_SHARE).max(1);
        let count = (minted.expected.saturating_sub(minted.next) + beyond).min(most);
        // A fixed code ends.
        let last = self.code.end().unwrap_or(BlockIndex::MAX);
        let batch = minted.next..end.max((minted.next + count).min(last));
        let blocks = self.encode(batch.clone()).await;
        minted.next = batch.end;
        minted.waiting.extend(batch.zip(blocks));
    }

    /// Makes these coded blocks at once.
    async fn encode(&self, indices: Range<BlockIndex>) -> Vec<Bytes> {
        let (code, originals) = (self.code.clone(), Arc::clone(&self.originals));
        let block_bytes = self.geometry.block_bytes as usize;
        let made = tokio::task::spawn_blocking(move || {
            let mut batch = Batch::new(indices.len(), block_bytes);
            Encoder::new(&code)
                .encode_run(indices.start, &originals.all(), &mut batch.blocks())
                .expect("K originals of one length, and indices far from the largest");
            batch.freeze()
        });
        made.await.expect("encoding does not panic")
    }

    /// Adds the checksums to blocks.
    async fn with_sums(&self, blocks: Vec<(BlockIndex, Bytes)>) -> Vec<Made> {
        let (granule, segment, version) = (self.granule, self.segment, self.version);
        let with_sums = move |(index, block): (BlockIndex, Bytes)| {
            let sums = checksum::sums(&block, granule, segment, version, index);
            Made { index, block, sums }
        };
        let summing = tokio::task::spawn_blocking(move || blocks.into_iter().map(with_sums).collect());
        summing.await.expect("summing does not panic")
    }
}

/// The original that a block of a code of K = `k` is, if it is one.
fn original(kind: CodeKind, k: u32, index: BlockIndex) -> Option<u32> {
    match kind {
        CodeKind::Replicated => Some(index % k),
        CodeKind::Mix | CodeKind::MixA | CodeKind::MixC | CodeKind::ReedSolomon { .. } => {
            (index < k).then_some(index)
        }
        CodeKind::Lt { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 4 << 10;

    /// A put of 64 blocks under D = 0.5.
    fn maker() -> Maker {
        maker_of(BLOCK)
    }

    /// The same, of blocks of so many bytes.
    fn maker_of(block_bytes: usize) -> Maker {
        let geometry =
            Geometry { block_bytes: block_bytes as u32, originals: 64, granule_bytes: BLOCK as u32 };
        let spec = CodeSpec { kind: CodeKind::Mix, originals: 64, seed: 5 };
        let object: Vec<u8> = (0..64 * block_bytes).map(|at| (at * 7 + at / BLOCK) as u8).collect();
        let originals = Originals::whole(vec![object.into()], block_bytes as u32, 64);
        Maker::new((SegmentId(1), Version(1)), geometry, &spec.code().unwrap(), spec, originals, 0.5, 0)
    }

    #[tokio::test]
    async fn what_a_put_pushes_comes_of_one_batch() {
        let maker = maker();
        let run = maker.make(60..68).await;
        assert_eq!(run.iter().map(|made| made.index).collect::<Vec<_>>(), (60..68).collect::<Vec<_>>());
        let reached = |minted: &Minted| minted.next;
        let first = reached(&*maker.minted.lock().await);
        assert_eq!(first, 64 + 32 + 16, "D, and a quarter of K beyond");
        maker.make(80..112).await;
        assert_eq!(reached(&*maker.minted.lock().await), first, "no other batch up to there");
        maker.make(112..113).await;
        assert_eq!(reached(&*maker.minted.lock().await), first + 16);
    }

    #[tokio::test]
    async fn blocks_are_the_same_in_any_order() {
        let (maker, other) = (maker(), maker());
        // One batch; then one, a second beyond what it left out, and some again.
        let ahead = maker.make(64..130).await;
        for range in [64..70, 120..130, 70..120, 64..70] {
            for made in other.make(range).await {
                let before = &ahead[made.index as usize - 64];
                assert_eq!(
                    (made.index, &made.block, &made.sums),
                    (before.index, &before.block, &before.sums)
                );
            }
        }
    }

    /// Memory of a batch that fills more than half a piece holds what the batch before left in it.
    #[tokio::test]
    async fn blocks_are_the_same_whatever_their_memory_held() {
        let block_bytes = 16 * BLOCK;
        let mut before = Batch::new(64, block_bytes);
        before.blocks().into_iter().for_each(|block| block.fill(0xa5));
        drop(before.freeze());
        let (maker, other) = (maker_of(block_bytes), maker_of(block_bytes));
        for made in maker.make(64..112).await.into_iter().step_by(5) {
            // One by one they have memory of their own, which is new.
            let alone = other.encode(made.index..made.index + 1).await;
            assert!(alone == [made.block], "block {}", made.index);
        }
    }
}
