//! What a trace comes to, in the terms of the PLR paper's Tables 1 and 2.
//!
//! The working set is the unique 4 KiB blocks that were read or written; an update is a write to a block that was
//! accessed before in any way (of a request over several blocks: to any of them); the updated working set is the blocks
//! so written. With these definitions every row of Table 2 is possible; with stricter ones some are not.

use super::TraceRequest;
use std::collections::BTreeMap;

/// The unit of a working set.
pub const BLOCK_BYTES: u64 = 4096;
/// Blocks that share an entry of the map.
const ENTRY_BLOCKS: u64 = 64;

/// Counts of a trace, or of a part of it.
#[derive(Clone, Debug, Default)]
pub struct TraceSummary {
    /// All requests.
    pub requests: u64,
    /// Those that write.
    pub writes: u64,
    /// Those of them that write to a block accessed before.
    pub updates: u64,
    /// Bytes of those.
    pub update_bytes: u64,
    /// Unique blocks read or written.
    pub blocks: u64,
    /// Unique blocks updated.
    pub updated_blocks: u64,
    /// By device and 64 blocks: a bit for each accessed, and for each updated.
    seen: BTreeMap<(u32, u64), [u64; 2]>,
}

impl TraceSummary {
    /// Counts one request.
    pub fn add(&mut self, request: &TraceRequest) {
        let first = request.offset_bytes / BLOCK_BYTES;
        let end = (request.offset_bytes + u64::from(request.bytes)).div_ceil(BLOCK_BYTES);
        let mut update = false;
        for entry in first / ENTRY_BLOCKS..end.div_ceil(ENTRY_BLOCKS) {
            let [accessed, updated] = self.seen.entry((request.device, entry)).or_default();
            let from = first.saturating_sub(entry * ENTRY_BLOCKS);
            let to = (end - entry * ENTRY_BLOCKS).min(ENTRY_BLOCKS);
            let mask = (u64::MAX >> (ENTRY_BLOCKS - (to - from))) << from;
            if request.write {
                let again = *accessed & mask;
                update |= again != 0;
                self.updated_blocks += u64::from((again & !*updated).count_ones());
                *updated |= again;
            }
            self.blocks += u64::from((mask & !*accessed).count_ones());
            *accessed |= mask;
        }
        self.requests += 1;
        self.writes += u64::from(request.write);
        if update {
            self.updates += 1;
            self.update_bytes += u64::from(request.bytes);
        }
    }

    /// The updates' share of all writes; none without writes.
    pub fn updates_share(&self) -> Option<f64> {
        (self.writes > 0).then(|| self.updates as f64 / self.writes as f64)
    }

    /// The share of the working set that was updated; none of nothing.
    pub fn updated_share(&self) -> Option<f64> {
        (self.blocks > 0).then(|| self.updated_blocks as f64 / self.blocks as f64)
    }

    /// The mean size of an update; none without one.
    pub fn update_bytes_mean(&self) -> Option<f64> {
        (self.updates > 0).then(|| self.update_bytes as f64 / self.updates as f64)
    }
}
