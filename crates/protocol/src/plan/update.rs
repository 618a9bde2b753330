//! What a change of some bytes does to the coded blocks of a segment (dissertation §4.3.4): the sparse graph says which
//! blocks hold the originals concerned, and all others stay as they are.
//!
//! ```text
//!   bytes      ──────┤ new bytes ├──────
//!   originals  │  3  │  4  │  5  │  6  │      4 and 5 change
//!   coded      4, 5 themselves; 1031 = 4 + ...; 1040 = 5 + ...; 1377 = 4 + 5 + ...
//! ```
//!
//! A block gains its coefficient times (original before XOR after) of each original, so old bytes are read of just the
//! originals and the coded blocks concerned ([`Update::read`]). Where that is more than K blocks, or an original is not
//! stored as it is, decoding the segment is cheaper, and the only way ([`Update::decode`]).
//!
//! Left out: the bytes.

#[cfg(test)]
mod tests;

use crate::{BlockIndex, IndexRanges};
use core::ops::Range;
use std::collections::BTreeMap;
use steadfast_codes::rateless::{Code, Kind};

/// What a change of some bytes of a segment does to its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The originals that hold the bytes.
    pub originals: Range<u32>,
    /// The stored blocks that change, by index.
    pub touched: BTreeMap<BlockIndex, Difference>,
    /// Whether the segment has to be decoded; otherwise [`Update::read`] is enough.
    pub decode: bool,
    /// The blocks to read, where the segment is not decoded.
    pub read: IndexRanges,
}

/// How a stored block changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It is this original.
    Original(u32),
    /// It gains, for each of these originals, this coefficient (GF(2^8), 0x11d) times (before XOR after).
    Gains(Vec<(u32, u8)>),
}

/// What changing bytes `range` of a segment in blocks of `block_bytes` does to the blocks `stored`.
///
/// # Panics
/// When the range is empty or ends behind the last original.
pub fn update(code: &Code, block_bytes: u32, stored: &IndexRanges, range: Range<u64>) -> Update {
    let (k, block) = (code.k(), u64::from(block_bytes));
    assert!(
        !range.is_empty() && range.end <= u64::from(k) * block,
        "bytes {range:?} of {k} blocks of {block}"
    );
    let original = |byte: u64| u32::try_from(byte / block).expect("below K");
    let originals = original(range.start)..original(range.end - 1) + 1;
    let mut touched: BTreeMap<BlockIndex, Difference> = BTreeMap::new();
    for changed in originals.clone() {
        for stored in stored.ranges() {
            for delta in code.deltas(changed, stored.clone()) {
                if is_original(code, delta.index, changed) {
                    touched.insert(delta.index, Difference::Original(changed));
                    continue;
                }
                let gains = touched.entry(delta.index).or_insert_with(|| Difference::Gains(Vec::new()));
                let Difference::Gains(gains) = gains else {
                    unreachable!("a block that is an original depends on no other");
                };
                gains.push((changed, delta.coefficient));
            }
        }
    }
    // One copy of each original is read, where there are several.
    let mut copies: BTreeMap<u32, BlockIndex> = BTreeMap::new();
    let mut read = IndexRanges::new();
    for (&index, difference) in &touched {
        match difference {
            Difference::Original(original) => {
                copies.entry(*original).or_insert(index);
            }
            Difference::Gains(_) => {
                read.insert(index);
            }
        }
    }
    copies.values().for_each(|&index| {
        read.insert(index);
    });
    let decode = copies.len() < originals.len() || read.count() >= k && k > 1;
    Update { originals, touched, decode, read }
}

/// Whether a block is the original that it depends on.
fn is_original(code: &Code, index: BlockIndex, original: u32) -> bool {
    match code.kind() {
        Kind::Replicated => true,
        Kind::Lt { .. } => false,
        Kind::Mix | Kind::MixA | Kind::MixC | Kind::ReedSolomon { .. } => index == original,
    }
}

impl Update {
    /// The blocks that change.
    pub fn blocks(&self) -> IndexRanges {
        self.touched.keys().copied().collect()
    }
}
