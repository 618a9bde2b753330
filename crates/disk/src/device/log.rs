//! The log in an extent's reserve: append, list, read. See `index::log` for its form and what a crash leaves of it.
//!
//! The reserve is read back when its log is first used after an open, not at the open: a device with many reserves
//! opens as fast as one without.

use std::ops::Range;

use super::{Device, LogError, write_back::PREPARE_PAGES};
use crate::{
    allocator::UNIT_BYTES,
    buffer::AlignedBuf,
    ids::{Epoch, SegmentId},
    index::{
        Updating,
        log::{Owner, Ring, record_pages},
    },
};

/// A record in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number: they count up from 1 in each extent.
    pub sequence: u64,
    /// Bytes of its payload.
    pub bytes: u32,
}

impl Device {
    /// Appends a record to the log of an extent and returns its number. Durable after the next flush.
    ///
    /// # Errors
    /// [`LogError::Full`] where it does not fit; the space of records before a new start is free once the
    /// [`Device::apply`] that moved it is flushed, which this does where it helps.
    pub fn log_append(&mut self, segment: SegmentId, epoch: Epoch, payload: &[u8]) -> Result<u64, LogError> {
        self.check_alive()?;
        let held = self.index.get(segment).ok_or(LogError::NoExtent { segment })?.epoch;
        if epoch < held {
            return Err(LogError::StaleEpoch { segment, held, given: epoch });
        }
        let commits = self.commits;
        let ring = self.sound_log(segment)?;
        let mut place = ring.place(payload.len(), commits);
        if place.is_none() && ring.place(payload.len(), u64::MAX).is_some() {
            self.commit_or_fail()?;
            let commits = self.commits;
            place = self.log(segment)?.place(payload.len(), commits);
        }
        let Some(page) = place else {
            let free = self.log_free(segment)?;
            return Err(LogError::Full { needed: payload.len() as u64, free });
        };
        let ring = self.log(segment)?;
        let fresh = ring.to_prepare(page, record_pages(payload.len()), PREPARE_PAGES);
        if !fresh.is_empty() {
            self.prepare_reserve(segment, fresh)?;
        }
        let base = self.checkpoint_number;
        let record = self.log(segment)?.encode(base, payload);
        let start = self.updating(segment)?.reserve.start;
        self.medium.write_at((start + page) * UNIT_BYTES, &record)?;
        self.raise(segment, epoch);
        let ring = self.log(segment)?;
        let sequence = ring.next_sequence();
        ring.push(page, payload.len() as u32);
        if !ring.ahead(PREPARE_PAGES).is_empty() {
            self.logs_to_prepare.insert(segment);
        }
        self.logs_unflushed.insert(segment);
        Ok(sequence)
    }

    /// The same, refused unless the record gets this number: of records that are appended one behind the other, none is
    /// there without those before it.
    ///
    /// # Errors
    /// [`LogError::OutOfTurn`] where it would get another.
    pub fn log_append_at(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        sequence: u64,
        payload: &[u8],
    ) -> Result<u64, LogError> {
        let next = self.sound_log(segment)?.next_sequence();
        if next != sequence {
            return Err(LogError::OutOfTurn { segment, sequence, next });
        }
        self.log_append(segment, epoch, payload)
    }

    /// The records in force, in order.
    pub fn log_entries(&mut self, segment: SegmentId) -> Result<Vec<LogEntry>, LogError> {
        let ring = self.sound_log(segment)?;
        Ok(ring.entries().map(|e| LogEntry { sequence: e.sequence, bytes: e.bytes }).collect())
    }

    /// Bytes of the largest payload that [`Device::log_append`] takes now.
    pub fn log_free(&mut self, segment: SegmentId) -> Result<u64, LogError> {
        let commits = self.commits;
        Ok(self.sound_log(segment)?.free(commits))
    }

    /// The payload of a record, verified.
    pub fn log_read(&mut self, segment: SegmentId, sequence: u64) -> Result<Vec<u8>, LogError> {
        let mut payloads = self.log_read_run(segment, sequence..sequence.saturating_add(1), 0)?;
        Ok(payloads.pop().expect("one record at least"))
    }

    /// The payloads of the first of these records and of those that lie behind it without a gap, verified, by one read of the
    /// medium: as many as `bytes_max` has room for on the medium, and one at least.
    pub fn log_read_run(
        &mut self,
        segment: SegmentId,
        sequences: Range<u64>,
        bytes_max: u64,
    ) -> Result<Vec<Vec<u8>>, LogError> {
        let first = sequences.start;
        let run = self.sound_log(segment)?.run(sequences, bytes_max / UNIT_BYTES);
        let Some((pages, entries)) = run else {
            let ring = self.sound_log(segment)?;
            let next = ring.next_sequence();
            let start = ring.entries().next().map_or(next, |e| e.sequence);
            return Err(LogError::NoRecord { segment, sequence: first, first: start, next });
        };
        let start = self.updating(segment)?.reserve.start;
        let mut buf = AlignedBuf::zeroed(((pages.end - pages.start) * UNIT_BYTES) as usize);
        self.medium.read_at((start + pages.start) * UNIT_BYTES, &mut buf)?;
        let ring = self.log(segment)?;
        let payloads = entries.iter().map(|entry| {
            let at = ((entry.page - pages.start) * UNIT_BYTES) as usize;
            let payload = ring.payload(entry, &buf[at..]).map(<[u8]>::to_vec);
            payload.ok_or(LogError::Corrupt { segment, sequence: entry.sequence })
        });
        payloads.collect()
    }

    /// Its log, unless records are missing.
    pub(super) fn sound_log(&mut self, segment: SegmentId) -> Result<&mut Ring, LogError> {
        let ring = self.log(segment)?;
        match ring.damaged() {
            Some(missing) => Err(LogError::Damaged { segment, missing }),
            None => Ok(ring),
        }
    }

    /// Its log, read back from the reserve where that was not done.
    pub(super) fn log(&mut self, segment: SegmentId) -> Result<&mut Ring, LogError> {
        if !self.logs.contains_key(&segment) {
            let updating = self.updating(segment)?;
            let (start, log) = (updating.reserve.start, updating.log);
            let mut reserve = AlignedBuf::zeroed(0);
            let bytes = updating.reserve_units() * UNIT_BYTES;
            if bytes > 0 {
                reserve.resize(bytes as usize);
                self.medium.read_at(start * UNIT_BYTES, &mut reserve)?;
            }
            let ring = Ring::scan(self.log_owner(segment), &reserve, log);
            if let Some(missing) = ring.damaged() {
                tracing::error!(%segment, ?missing, "the log in the reserve lost records");
            }
            self.logs.insert(segment, ring);
        }
        Ok(self.logs.get_mut(&segment).expect("just looked up or inserted"))
    }

    /// Who stands in the records of a segment's log.
    pub(super) fn log_owner(&self, segment: SegmentId) -> Owner {
        let extent = self.growing(segment);
        Owner { device: self.id(), segment, version: extent.version, created: extent.created }
    }

    fn updating(&self, segment: SegmentId) -> Result<&Updating, LogError> {
        let extent = self.index.get(segment).ok_or(LogError::NoExtent { segment })?;
        extent.updates.as_ref().ok_or(LogError::NotUpdatable { segment })
    }
}
