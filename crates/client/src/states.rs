//! Whether what was read of chunks that change in place makes one state: parity decodes what data held at the same moment,
//! and nothing else.

use std::collections::BTreeMap;
use steadfast_protocol::{
    BlockIndex, DeviceId,
    layout::{ParityGeometry, SegmentLayout},
    message::ReadState,
    serve::parity_log::{ChunkNumber, VersionsByChunk},
};

/// At which states the chunks of a segment were read.
pub(crate) struct States {
    shape: Option<ParityGeometry>,
    /// Changes of data chunks that parity is to have at least where it stands in for them.
    least: VersionsByChunk,
    /// What devices said last.
    pub(crate) now: BTreeMap<DeviceId, ReadState>,
    /// By chunk.
    seen: BTreeMap<u32, ReadState>,
    /// Whether a chunk changed while it was read.
    moved: bool,
}

impl States {
    pub(crate) fn new(layout: &SegmentLayout, least: VersionsByChunk) -> Self {
        let (now, seen) = Default::default();
        Self { shape: ParityGeometry::of_layout(layout), least, now, seen, moved: false }
    }

    /// Bytes of a block were taken as its device holds it now.
    pub(crate) fn took(&mut self, device: DeviceId, index: BlockIndex) {
        let Some(shape) = self.shape else { return };
        let state = self.now.get(&device).cloned().unwrap_or_default();
        let seen = self.seen.entry(shape.chunk_of(index)).or_insert_with(|| state.clone());
        self.moved |= *seen != state;
    }

    /// Whether what was read is of one state: parity holds just those changes that the data chunks show, no fewer of the others than it is
    /// to have, and none that is only in its log.
    pub(crate) fn fit(&self) -> bool {
        let Some(shape) = self.shape else { return true };
        let merged = |state: &ReadState, chunk: u32| {
            let of = state.merged.iter().find(|(of, _)| u32::from(*of) == chunk);
            of.map_or(0, |(_, version)| *version)
        };
        let mut parity = self.seen.range(shape.data..).map(|(_, state)| state);
        let Some(first) = parity.next() else { return true };
        let all_chunks = || 0..shape.data;
        let same = |other: &ReadState| all_chunks().all(|chunk| merged(other, chunk) == merged(first, chunk));
        !self.moved
            && !first.logged
            && parity.all(|other| !other.logged && same(other))
            && all_chunks().all(|chunk| match self.seen.get(&chunk) {
                Some(data) => data.version == merged(first, chunk),
                None => merged(first, chunk) >= self.least(chunk),
            })
    }

    fn least(&self, chunk: u32) -> u64 {
        // At most 255 chunks.
        self.least.get(&(chunk as ChunkNumber)).copied().unwrap_or(0)
    }
}
