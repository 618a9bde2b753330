//! Records of logs that the journal has and whose reserves do not have them yet. No I/O.
//!
//! On a medium that positions every append to a reserve is a positioning of its own, while records of all logs share a frame of the
//! journal. So they go there first, and into their reserves later, by which time several of one log lie side by side; or never, where
//! the log is merged before. Reserves stay what they are: records in their order, without a gap once these are laid over them.
//!
//! Live operation and replay give the same records to [`Appended::follow`]. What the log's start has passed is dropped with the record
//! that moves it, so that after a replay all that is here is in force, and may be laid over whatever the reserve has.
//!
//! A record whose pages take no writes is *kept*: it stays here, and in the checkpoints, until its log is merged.

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
    kept: bool,
}

impl LogRecord {
    /// Bytes of the pages that it waits for.
    fn waiting_bytes(&self) -> u64 {
        if self.kept { 0 } else { (self.bytes.len() as u64).next_multiple_of(UNIT_BYTES) }
    }

    /// Bytes of its redo, at most.
    fn redo_bytes(&self) -> u64 {
        Record::logged_redo_bytes(self.bytes.len()) as u64
    }

    /// The same, where it is kept.
    fn kept_bytes(&self) -> u64 {
        if self.kept { self.redo_bytes() } else { 0 }
    }
}

#[derive(Debug, Default)]
struct Log {
    /// By their first pages in the reserve.
    records: BTreeMap<u64, LogRecord>,
    /// Of the pages that they wait for.
    bytes: u64,
}

/// All of a device; see the module's doc.
#[derive(Debug, Default)]
pub(super) struct Appended {
    logs: BTreeMap<SegmentId, Log>,
    bytes: u64,
    kept_bytes: u64,
}

impl Appended {
    /// Bytes of the pages that they wait for.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the redo of what is kept, at most.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Logs with any, and bytes of the pages that those wait for.
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
        self.within(segment, 0..u64::MAX).filter(move |(_, record)| !record.kept && record.commit < commits)
    }

    /// The record at this page is in its reserve.
    pub(super) fn written(&mut self, segment: SegmentId, page: u64) {
        let Entry::Occupied(mut log) = self.logs.entry(segment) else { return };
        if let Some(record) = log.get_mut().records.remove(&page) {
            log.get_mut().bytes -= record.waiting_bytes();
            self.bytes -= record.waiting_bytes();
            self.kept_bytes -= record.kept_bytes();
        }
        if log.get().records.is_empty() {
            log.remove();
        }
    }

    /// The pages of the record at this one take no writes.
    pub(super) fn keep(&mut self, segment: SegmentId, page: u64) {
        let Some(log) = self.logs.get_mut(&segment) else { return };
        let Some(record) = log.records.get_mut(&page) else { return };
        log.bytes -= record.waiting_bytes();
        self.bytes -= record.waiting_bytes();
        self.kept_bytes -= record.kept_bytes();
        record.kept = true;
        self.kept_bytes += record.kept_bytes();
    }

    /// Follows a record that the index took; it becomes durable with `commit`.
    pub(super) fn follow(&mut self, record: &Record, commit: u64) {
        match record {
            Record::Logged { segment, page, sequence, bytes } => {
                // A page is used again only once what was there is out of force.
                let log = self.logs.entry(*segment).or_default();
                let record = LogRecord { sequence: *sequence, bytes: bytes.clone(), commit, kept: false };
                log.bytes += record.waiting_bytes();
                self.bytes += record.waiting_bytes();
                if let Some(before) = log.records.insert(*page, record) {
                    log.bytes -= before.waiting_bytes();
                    self.bytes -= before.waiting_bytes();
                    self.kept_bytes -= before.kept_bytes();
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
        records.map(LogRecord::redo_bytes).sum()
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
        let log = entry.get_mut();
        log.records.retain(|_, record| {
            let keep = keep(record);
            if !keep {
                log.bytes -= record.waiting_bytes();
                self.bytes -= record.waiting_bytes();
                self.kept_bytes -= record.kept_bytes();
            }
            keep
        });
        if log.records.is_empty() {
            entry.remove();
        }
    }
}
