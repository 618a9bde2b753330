//! The log in an extent's reserve: append, list, read. See `index::log` for its form and what a crash leaves of it.
//!
//! On a medium that positions a record goes to the journal first and into its reserve later: see `appended`. On any, one that needs a page
//! known to take no writes stays there until its log is merged, as long as there is room: the page costs the log the record that met it.
//!
//! The reserve is read back when its log is first used after an open, not at the open: a device with many reserves
//! opens as fast as one without. One that the medium does not give has a damaged log, until the next open: nobody searches it again.

use std::{collections::BTreeSet, ops::Range};

use bytes::Bytes;

use super::{Device, LogError, write::check_not_given_up, write_back::PREPARE_PAGES};
use crate::{
    allocator::UNIT_BYTES,
    buffer::AlignedBuf,
    ids::{Epoch, SegmentId},
    index::{
        Record, Updating,
        journal::LIKE_MAX,
        log::{Entry, HEADER, Owner, Ring, record_pages},
    },
    media::{MediumError, Missing, read_what_is_there},
};

/// Larger records than this go to their reserves at once, where places are dear, too: writing them twice takes as long as positioning.
const JOURNALED_BYTES_MAX: u64 = 256 << 10;

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
        let (sequence, head, is_hidden) = (ring.next_sequence(), ring.head(), ring.is_hidden(page));
        if is_hidden {
            let head = self.updating(segment)?.reserve.start + head;
            check_not_given_up(&self.allocator, &(head..head + 1))?;
        }
        let positions = self.medium.positions();
        let journaled_max = JOURNALED_BYTES_MAX.min(self.update_bytes_max());
        let fits = (HEADER + payload.len()) as u64 <= journaled_max;
        let stays = fits && self.can_only_stay_in_journal(segment, page, payload.len())?;
        let journaled = stays || positions && fits;
        let beginnings = if journaled { self.journal.beginnings(payload) } else { 0 };
        let payload = if journaled && beginnings <= LIKE_MAX {
            self.set_apart(beginnings)?;
            let payload = self.append_to_journal(segment, epoch, page, payload)?;
            if stays {
                self.appended.keep(segment, page);
            }
            payload
        } else {
            self.append_to_reserve(segment, epoch, page, payload)?;
            Bytes::copy_from_slice(payload)
        };
        self.logs_unflushed.insert(segment);
        self.changing.insert(segment);
        if positions {
            self.recent.push(segment, sequence, payload);
        }
        Ok(sequence)
    }

    /// Whether a record needs pages of the reserve that take no writes, as far as is known, and there is room to keep it instead.
    fn can_only_stay_in_journal(
        &mut self,
        segment: SegmentId,
        page: u64,
        payload_bytes: usize,
    ) -> Result<bool, LogError> {
        let pages = page..page + record_pages(payload_bytes);
        let start = self.updating(segment)?.reserve.start;
        let fresh = self.log(segment)?.to_prepare(page, pages.end - page, PREPARE_PAGES);
        let is_bad = |pages: Range<u64>| {
            !pages.is_empty() && self.allocator.is_given_up(&(start + pages.start..start + pages.end))
        };
        let redo_bytes = Record::logged_redo_bytes(HEADER + payload_bytes) as u64;
        let has_room = self.taken_bytes() + redo_bytes <= self.held_bytes_max();
        Ok(has_room && (is_bad(pages) || is_bad(fresh)))
    }

    fn append_to_reserve(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        page: u64,
        payload: &[u8],
    ) -> Result<(), LogError> {
        let pages = record_pages(payload.len());
        let start = self.updating(segment)?.reserve.start;
        let units = start + page..start + page + pages;
        let fresh = self.log(segment)?.to_prepare(page, pages, PREPARE_PAGES);
        check_not_given_up(&self.allocator, &units)?;
        self.prepare_reserve(segment, fresh)?;
        let base = self.checkpoint_number;
        let record = self.log(segment)?.encode(base, payload);
        if let Err(error) = self.medium.write_at(units.start * UNIT_BYTES, &record) {
            if matches!(error, MediumError::Io { .. }) {
                self.log(segment)?.was_refused(page);
                self.leave_alone(units, &error);
                self.fail_where_too_much_is_left_alone(error.clone());
            }
            return Err(error.into());
        }
        self.reserve_unflushed = true;
        self.raise(segment, epoch);
        let ring = self.log(segment)?;
        ring.push(page, payload.len() as u32);
        let ahead = ring.ahead(PREPARE_PAGES);
        // What took no zeros before costs time with each try, of all who wait for the device.
        if !ahead.is_empty() && !self.allocator.is_given_up(&(start + ahead.start..start + ahead.end)) {
            self.logs_to_prepare.insert(segment);
        }
        Ok(())
    }

    /// Where a place of its own is dear, or takes no writes: to the frame that other records are written with. It goes into the reserve
    /// later, as what changes in place does. Returns the payload.
    fn append_to_journal(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        page: u64,
        payload: &[u8],
    ) -> Result<Bytes, LogError> {
        if self.reserve_unflushed {
            // A frame may survive what was not flushed beside it: none has a record without those before it.
            self.commit_or_fail()?;
        }
        let bytes = HEADER + payload.len();
        self.make_room(Record::logged_redo_bytes(bytes))?;
        // Which checkpoint is in force is known once there is room.
        let base = self.checkpoint_number;
        let ring = self.log(segment)?;
        let bytes = Bytes::copy_from_slice(&ring.encode(base, payload)[..bytes]);
        let sequence = ring.next_sequence();
        ring.push(page, payload.len() as u32);
        self.raise(segment, epoch);
        let payload = bytes.slice(HEADER..);
        self.record(Record::Logged { segment, page, sequence, bytes });
        Ok(payload)
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

    /// The payload of a record, verified where it comes from the medium.
    pub fn log_read(&mut self, segment: SegmentId, sequence: u64) -> Result<Bytes, LogError> {
        let mut payloads = self.log_read_run(segment, sequence..sequence.saturating_add(1), 0)?;
        Ok(payloads.pop().expect("one record at least"))
    }

    /// The payloads of the first of these records and of those behind it: as many as `bytes_max` has room for, and one at least. Those
    /// that are not in memory come by one read of the medium, verified, as far as they lie there without a gap.
    pub fn log_read_run(
        &mut self,
        segment: SegmentId,
        mut sequences: Range<u64>,
        bytes_max: u64,
    ) -> Result<Vec<Bytes>, LogError> {
        let first = sequences.start;
        self.sound_log(segment)?;
        let recent = self.recent.run(segment, &sequences, bytes_max);
        if !recent.is_empty() {
            return Ok(recent);
        }
        if let Some(here) = self.recent.first(segment).filter(|here| *here > first) {
            sequences.end = sequences.end.min(here);
        }
        let run = self.sound_log(segment)?.run(sequences, bytes_max / UNIT_BYTES);
        let Some((mut pages, mut entries)) = run else {
            let ring = self.sound_log(segment)?;
            let next = ring.next_sequence();
            let start = ring.entries().next().map_or(next, |e| e.sequence);
            return Err(LogError::NoRecord { segment, sequence: first, first: start, next });
        };
        let start = self.updating(segment)?.reserve.start;
        // Not over what the journal has: pages that took no writes may not be read either.
        let is_here = |entry: &Entry| self.appended.within(segment, entry.page..entry.end()).next().is_some();
        let here = is_here(&entries[0]);
        entries.truncate(entries.iter().take_while(|&entry| is_here(entry) == here).count());
        pages.end = entries.last().map_or(pages.start, Entry::end);
        let mut buf = AlignedBuf::zeroed(((pages.end - pages.start) * UNIT_BYTES) as usize);
        if here {
            self.lay_over(segment, pages.clone(), &mut buf);
        } else {
            self.medium.read_at((start + pages.start) * UNIT_BYTES, &mut buf)?;
        }
        let ring = self.log(segment)?;
        let payloads = entries.iter().map(|entry| {
            let at = ((entry.page - pages.start) * UNIT_BYTES) as usize;
            let payload = ring.payload(entry, &buf[at..]).map(Bytes::copy_from_slice);
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
            let (mut reserve, mut unknown) = (AlignedBuf::zeroed(0), BTreeSet::new());
            let bytes = updating.reserve_units() * UNIT_BYTES;
            if bytes > 0 {
                reserve.resize(bytes as usize);
                unknown = self.read_reserve(start, &mut reserve)?;
                self.lay_over(segment, 0..bytes / UNIT_BYTES, &mut reserve);
                for (page, record) in self.appended.within(segment, 0..u64::MAX) {
                    let end = page + (record.bytes.len() as u64).div_ceil(UNIT_BYTES);
                    unknown.retain(|unknown| !(page..end).contains(unknown));
                }
            }
            let mut ring = Ring::scan(self.log_owner(segment), &reserve, &unknown, log);
            let held = self.appended.within(segment, 0..u64::MAX);
            let lacks = held
                .filter(|(page, record)| ring.entry(record.sequence).is_none_or(|entry| entry.page != *page));
            if let Some(through) = lacks.map(|(_, record)| record.sequence).max() {
                ring.lack(through);
            }
            // A device that only reads is opened again before anything is appended.
            let stale = if self.failed.is_none() { ring.take_stale() } else { Vec::new() };
            let is_zeroed = !stale.is_empty();
            for page in stale {
                let at = (start + page) * UNIT_BYTES;
                let Err(error) = self.medium.prepare(at..at + UNIT_BYTES) else { continue };
                if matches!(error, MediumError::Io { .. }) {
                    self.leave_alone(start + page..start + page + 1, &error);
                    self.fail_where_too_much_is_left_alone(error);
                } else if !unknown.contains(&page) {
                    return Err(error.into());
                }
                // It has a record that is not in force, or may give one some day, when the log has come to begin there.
                ring.lack(ring.next_sequence());
                break;
            }
            if is_zeroed && ring.damaged().is_none() {
                // Before the frame that lets the log begin there: that one may survive what was not flushed beside it.
                let flushed = self.medium.flush();
                self.or_fail(flushed)?;
            }
            let is_here =
                |entry: &Entry| self.appended.within(segment, entry.page..entry.end()).next().is_some();
            if self.open_flushed {
                ring.flushed();
            } else if ring.unflushed().is_some_and(|last| !is_here(&last)) {
                // What the journal has of it the open looked at.
                self.changing.insert(segment);
            }
            if let Some(missing) = ring.damaged() {
                tracing::error!(%segment, ?missing, "the log in the reserve lost records");
            }
            self.logs.insert(segment, ring);
        }
        Ok(self.logs.get_mut(&segment).expect("just looked up or inserted"))
    }

    /// Reads a whole reserve; returns the pages of which nothing is known: all, where the medium gives so little of it that a search ends.
    ///
    /// # Errors
    /// The medium's, where it gives nothing else either: then what the reserve has is still there.
    fn read_reserve(&self, start: u64, reserve: &mut [u8]) -> Result<BTreeSet<u64>, MediumError> {
        let error = match read_what_is_there(&*self.medium, start * UNIT_BYTES, reserve, 0) {
            Ok(Missing { pages, ended: None }) => return Ok(pages),
            // What was not read may tell of records, and would be zeroed.
            Ok(Missing { ended: Some(error), .. }) | Err(error) => error,
        };
        if !matches!(error, MediumError::Io { .. }) || self.can_read(0).is_err() {
            return Err(error);
        }
        tracing::error!(device = %self.id(), %error, "a reserve cannot be read");
        reserve.fill(0);
        Ok((0..reserve.len() as u64 / UNIT_BYTES).collect())
    }

    /// Puts what the journal alone has of a log over these pages of its reserve.
    fn lay_over(&self, segment: SegmentId, pages: Range<u64>, reserve: &mut [u8]) {
        for (page, record) in self.appended.within(segment, pages.clone()) {
            let from = ((page - pages.start) * UNIT_BYTES) as usize;
            // One that reaches further is not in force: the scan says so.
            let to = (from + record.bytes.len()).min(reserve.len());
            reserve[from..to].copy_from_slice(&record.bytes[..to - from]);
            let filled = to.next_multiple_of(UNIT_BYTES as usize).min(reserve.len());
            reserve[to..filled].fill(0);
        }
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
