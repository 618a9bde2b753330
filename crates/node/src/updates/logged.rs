//! What logs of a device say of the versions of data chunks, as far as they were read: whoever decodes a few KiB asks for those each time, and
//! a log has megabytes.
//!
//! A log grows at its end. What leaves it at its begin was merged, which the device says with the versions that its chunk holds; and an extent
//! that is made anew has another number. So what the records up to one of them say stays true until the device is opened again, and then it
//! is served anew, with nothing known.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use steadfast_disk::{SegmentId, device::UpdatesInfo};
use steadfast_protocol::serve::parity_log::{ChunkNumber, VersionsByChunk};

/// Logs that are remembered: about a megabyte. What is forgotten is read again.
const LOGS_MAX: usize = 4096;

/// Logs of a device; see the module's doc.
#[derive(Default)]
pub(crate) struct Logged(Mutex<BTreeMap<SegmentId, Records>>);

/// The records of a log before one of them.
#[derive(Clone, Default)]
pub(super) struct Records {
    /// Number of its extent's creation.
    created: u64,
    /// Number of the first record that is not among them.
    next: u64,
    /// The last version of each data chunk that any of them has.
    last: VersionsByChunk,
}

impl Logged {
    /// Those of a segment's log that are known.
    pub(super) fn of(&self, segment: SegmentId) -> Records {
        self.lock().get(&segment).cloned().unwrap_or_default()
    }

    /// They were read.
    pub(super) fn learn(&self, segment: SegmentId, records: Records) {
        let mut logs = self.lock();
        let known = logs.get(&segment).map_or((0, 0), |known| (known.created, known.next));
        // Others may have read on meanwhile.
        if records.last.is_empty() || (records.created, records.next) <= known {
            return;
        }
        if logs.len() >= LOGS_MAX && !logs.contains_key(&segment) {
            logs.pop_first();
        }
        logs.insert(segment, records);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SegmentId, Records>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    /// Number of the first record that is not known of the log that a device describes so.
    pub(super) fn unknown_from(&self, info: &UpdatesInfo) -> u64 {
        if self.created == info.created { self.next } else { 0 }
    }

    /// All of that log, with what those behind them say.
    pub(super) fn and(self, info: &UpdatesInfo, behind: Vec<(ChunkNumber, u64)>) -> Self {
        let mut last = if self.created == info.created { self.last } else { VersionsByChunk::new() };
        last.extend(behind);
        Self { created: info.created, next: info.log_next, last }
    }

    /// What the chunk holds together with its log.
    pub(super) fn held(&self, info: &UpdatesInfo) -> VersionsByChunk {
        let mut held: VersionsByChunk = info.merged.iter().copied().collect();
        for (&chunk, &version) in &self.last {
            // What was merged since the device may name at a later one.
            let held = held.entry(chunk).or_default();
            *held = version.max(*held);
        }
        held
    }
}
