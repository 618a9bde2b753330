//! Records of logs that the journal has and whose reserves do not have them yet. No I/O.
//!
//! On a medium that positions every append to a reserve is a positioning of its own, while records of all logs share a frame of the
//! journal. So they go there first, and into their reserves later, by which time several of one log lie side by side; or never, where
//! the log is merged before. Reserves stay what they are: records in their order, without a gap once these are laid over them.
//!
//! Live operation and replay give the same records to [`Appended::follow`]. What the log's start has passed is dropped with the record
//! that moves it, so that after a replay all that is here is in force, and may be laid over whatever the reserve has.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
};

use bytes::Bytes;

use crate::{allocator::UNIT_BYTES, ids::SegmentId, index::Record};

/// A log record as it is to stand in its reserve, without what fills its last page.
#[derive(Debug, Clone)]
pub(super) struct LogRecord {
    pub(super) sequence: u64,
    pub(super) bytes: Bytes,
    /// The commit that must be durable before it goes there.
    commit: u64,
}

impl LogRecord {
    /// Bytes of the pages that it takes.
    fn page_bytes(&self) -> u64 {
        (self.bytes.len() as u64).next_multiple_of(UNIT_BYTES)
    }
}

#[derive(Debug, Default)]
struct Log {
    /// By their first pages in the reserve.
    records: BTreeMap<u64, LogRecord>,
    /// Of their pages.
    bytes: u64,
}

/// All of a device; see the module's doc.
#[derive(Debug, Default)]
pub(super) struct Appended {
    logs: BTreeMap<SegmentId, Log>,
    bytes: u64,
}

impl Appended {
    /// Bytes of the pages that all of them take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Logs with any, and bytes of their pages.
    pub(super) fn by_segment(&self) -> impl Iterator<Item = (SegmentId, u64)> + '_ {
        self.logs.iter().map(|(&segment, log)| (segment, log.bytes))
    }

    /// Those of a log that stand in these pages.
    pub(super) fn within(
        &self,
        segment: SegmentId,
        pages: Range<u64>,
    ) -> impl Iterator<Item = (u64, &LogRecord)> {
        let log = self.logs.get(&segment).into_iter();
        log.flat_map(move |log| log.records.range(pages.clone())).map(|(&page, record)| (page, record))
    }

    /// Those of a log that may go into its reserve, when so many commits are durable.
    pub(super) fn ready(&self, segment: SegmentId, commits: u64) -> impl Iterator<Item = (u64, &LogRecord)> {
        self.within(segment, 0..u64::MAX).filter(move |(_, record)| record.commit < commits)
    }

    /// The record at this page is in its reserve.
    pub(super) fn written(&mut self, segment: SegmentId, page: u64) {
        let Entry::Occupied(mut log) = self.logs.entry(segment) else { return };
        if let Some(record) = log.get_mut().records.remove(&page) {
            log.get_mut().bytes -= record.page_bytes();
            self.bytes -= record.page_bytes();
        }
        if log.get().records.is_empty() {
            log.remove();
        }
    }

    /// Follows a record that the index took; it becomes durable with `commit`.
    pub(super) fn follow(&mut self, record: &Record, commit: u64) {
        match record {
            Record::Logged { segment, page, sequence, bytes } => {
                // A page is used again only once what was there is out of force.
                let log = self.logs.entry(*segment).or_default();
                let record = LogRecord { sequence: *sequence, bytes: bytes.clone(), commit };
                log.bytes += record.page_bytes();
                self.bytes += record.page_bytes();
                if let Some(before) = log.records.insert(*page, record) {
                    log.bytes -= before.page_bytes();
                    self.bytes -= before.page_bytes();
                }
            }
            Record::Applied { segment, log: Some(start), .. } => {
                self.retain(*segment, |record| record.sequence >= start.sequence);
            }
            Record::Shrunk { segment, .. } | Record::Deleted { segment, .. } => {
                self.retain(*segment, |_| false);
            }
            _ => {}
        }
    }

    /// Bytes of [`Appended::redo`], encoded, at most.
    pub(super) fn redo_bytes(&self) -> u64 {
        let records = self.logs.values().flat_map(|log| log.records.values());
        records.map(|record| Record::logged_redo_bytes(record.bytes.len()) as u64).sum()
    }

    /// All of them as records, for a checkpoint.
    pub(super) fn redo(&self) -> impl Iterator<Item = Record> + '_ {
        self.logs.iter().flat_map(|(&segment, log)| {
            log.records.iter().map(move |(&page, record)| {
                let LogRecord { sequence, bytes, .. } = record.clone();
                Record::Logged { segment, page, sequence, bytes }
            })
        })
    }

    fn retain(&mut self, segment: SegmentId, keep: impl Fn(&LogRecord) -> bool) {
        let Entry::Occupied(mut entry) = self.logs.entry(segment) else { return };
        let (log, bytes) = (entry.get_mut(), &mut self.bytes);
        log.records.retain(|_, record| {
            let keep = keep(record);
            if !keep {
                log.bytes -= record.page_bytes();
                *bytes -= record.page_bytes();
            }
            keep
        });
        if log.records.is_empty() {
            entry.remove();
        }
    }
}
