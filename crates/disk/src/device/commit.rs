//! Group commit: records, the flush that makes them durable, and the checkpoint that frees the journal.
//!
//! **Order** (write-ahead). A redo and a release are in a flushed frame before what they allow is written in place;
//! what is in place, with its checksums, is flushed before a checkpoint frees the frame. So a checkpoint never speaks
//! of a change whose content is neither in place nor in a frame behind it, except those it carries itself.

use super::{Device, DeviceError, Flushed, TRIM_BYTES_MIN};
use crate::{
    allocator::UNIT_BYTES,
    ids::{Epoch, SegmentId},
    index::{Record, Superblock, checkpoint, journal, journal::Start},
    media::MediumError,
};

/// Room that [`Device::make_room`] leaves in a frame for a change of epoch and an open run, 17 and 21 bytes, and for what the
/// journal puts in front of them.
const SLACK: usize = 64 + journal::PADDING_MAX;
/// Bytes that wait to be written in place before [`Device::ease`] writes some: memory, and what a checkpoint writes once more (80 ms of
/// a disk of 100 MB/s).
const READY_BYTES_MAX: u64 = 8 << 20;
/// What that writes beyond the excess: enough to be below the bound after a few commits, and 2.5 ms of such a disk for whoever comes
/// meanwhile; where it positions, a run to its end.
const READY_STEP: u64 = 256 << 10;
/// Places that it writes at a time on a medium that positions for each, and the part of the bound that may wait beyond it before it
/// writes all: an update takes three devices, so while one of six writes 256 KiB in granules of 16 KiB, 70 to 100 ms, most of sixteen
/// updates wait for it, and the others for work.
const EASE_RUNS: usize = 3;
const EASE_EXCESS_SHARE: u64 = 8;

/// How much may wait to be written in place, where an open found so much of it: it is worked off by and by.
pub(super) fn ready_bound(superblock: &Superblock, found: u64) -> u64 {
    READY_BYTES_MAX.min(superblock.journal_bytes / 2).max(found)
}

impl Device {
    /// Makes everything before durable with one flush of the medium, and says which blocks that are. Releases may wait for a later
    /// flush where nothing else needs a frame: nobody is told that they are durable. After an error the device only reads.
    ///
    /// [`Device::ease`] belongs behind each, once whoever waited is answered.
    pub fn flush(&mut self) -> Result<Flushed, DeviceError> {
        self.check_alive()?;
        if self.only_logs_wait() {
            let outcome = self.sync();
            self.or_fail(outcome)?;
            self.changing.clear();
        } else if !self.is_clean() {
            self.commit_or_fail()?;
        }
        self.lower_bound();
        self.flushed.append(&mut self.unflushed);
        Ok(Flushed { blocks: std::mem::take(&mut self.flushed) })
    }

    /// Writes some in place where more waits for that than is good: once it was flushed it may, and nobody waits for it.
    ///
    /// # Errors
    /// Where the medium fails; the device only reads from then on.
    pub fn ease(&mut self) -> Result<(), DeviceError> {
        self.check_alive()?;
        if self.has_to_ease() {
            let excess = self.to_write_back() - self.ready_bound;
            let gentle = self.medium.positions() && excess <= self.ready_bound / EASE_EXCESS_SHARE;
            let outcome = self.put_densest(excess + READY_STEP, if gentle { EASE_RUNS } else { usize::MAX });
            self.or_fail(outcome)?;
        }
        self.lower_bound();
        Ok(())
    }

    /// More than usual may wait only as long as there is more.
    fn lower_bound(&mut self) {
        self.ready_bound = ready_bound(&self.superblock, self.ready_bound.min(self.to_write_back()));
    }

    /// Whether [`Device::ease`] has something to do.
    pub fn has_to_ease(&self) -> bool {
        self.to_write_back() > self.ready_bound
    }

    /// Whether logs have records to be flushed, and the journal has none that anybody waits for: a frame for these alone is one more
    /// place to write to, of two.
    fn only_logs_wait(&self) -> bool {
        let none_waits = self.only_releases || self.records.is_empty();
        none_waits
            && self.open_run.is_none()
            && self.tables.is_clean()
            && self.freed.is_empty()
            && !self.logs_unflushed.is_empty()
    }

    /// A commit that the next [`Device::flush`] reports.
    pub(super) fn commit_or_fail(&mut self) -> Result<(), DeviceError> {
        let outcome = self.commit();
        self.or_fail(outcome)?;
        self.changing.clear();
        self.flushed.append(&mut self.unflushed);
        Ok(())
    }

    /// A failure ends all changes until the device is opened again.
    pub(super) fn or_fail<T>(&mut self, outcome: Result<T, MediumError>) -> Result<T, DeviceError> {
        outcome.map_err(|cause| {
            tracing::error!(device = %self.id(), %cause, "the device failed");
            for (segment, blocks) in std::mem::take(&mut self.unflushed) {
                blocks.for_each(|index| self.index.forget(segment, index));
            }
            let failed = DeviceError::Failed { cause };
            self.failed = Some(failed.clone());
            failed
        })
    }

    /// Makes sure that a redo of so many bytes can be recorded: with all that is pending it fits the journal, which a
    /// commit and a checkpoint make room in where it must be, and a frame that can be told from what is in it.
    pub(super) fn make_room(&mut self, redo_bytes: usize) -> Result<(), DeviceError> {
        let fits = self.journal.fits(self.records.len() + SLACK + redo_bytes);
        if fits && self.journal.takes_redo_behind(&self.records, &mut self.searched) {
            return Ok(());
        }
        self.commit_or_fail()?;
        if !self.journal.fits(SLACK + redo_bytes) {
            let outcome = self.settle();
            self.or_fail(outcome)?;
        }
        Ok(())
    }

    /// A record that holds what frames begin with gets a frame in which no other does: then that frame can be told from them.
    pub(super) fn set_apart(&mut self, beginnings: usize) -> Result<(), DeviceError> {
        if beginnings > 0 && !self.records.is_empty() { self.commit_or_fail() } else { Ok(()) }
    }

    pub(super) fn raise(&mut self, segment: SegmentId, epoch: Epoch) {
        if self.index.epoch(segment).unwrap_or_default() < epoch {
            self.record(Record::Epoch { segment, epoch });
        }
    }

    /// Applies a change and remembers it for the next flush.
    pub(super) fn record(&mut self, record: Record) {
        if let Some(run) = self.open_run.take() {
            run.encode(&mut self.records);
            self.only_releases = false;
        }
        self.index.apply(&record).expect("checked before it is recorded");
        self.overlay.follow(&record, &self.index, self.commits);
        self.appended.follow(&record, self.commits);
        if matches!(record, Record::Staged { .. } | Record::Applied { .. } | Record::Logged { .. }) {
            self.changing.insert(record.segment());
        }
        if let Record::Deleted { segment, .. } = &record {
            self.changing.remove(segment);
            self.logs.remove(segment);
            self.logs_unflushed.remove(segment);
            self.logs_to_prepare.remove(segment);
            self.recent.forget(*segment);
            self.prefetch.forget(*segment);
        }
        let first = self.records.is_empty();
        self.only_releases = matches!(record, Record::Released { .. }) && (first || self.only_releases);
        record.encode(&mut self.records);
        if record.is_ahead() {
            self.ahead_end = self.records.len();
        }
    }

    fn commit(&mut self) -> Result<(), MediumError> {
        if let Some(run) = self.open_run.take() {
            run.encode(&mut self.records);
        }
        if self.ahead_end > 0 && !self.journal.takes(&self.records) {
            // `make_room` saw to it that a frame takes the part with redo; only what came after it has to be checkpointed.
            let rest = self.records.split_off(self.ahead_end);
            self.append()?;
            self.records = rest;
        }
        if self.journal.takes(&self.records) {
            self.append()?;
        } else {
            self.settle()?;
            self.records.clear();
            self.searched = Default::default();
            // Only the checkpoint has them. A frame behind it says that there is one: without it, they would be missed.
            self.journal.append(&*self.medium, &[])?;
            self.sync()?;
        }
        let mut freed = std::mem::take(&mut self.freed);
        freed.sort_by_key(|r| r.start);
        freed.dedup_by(|next, last| {
            let touching = last.end == next.start;
            if touching {
                last.end = next.end;
            }
            touching
        });
        for range in freed {
            self.allocator.release(range.clone());
            self.tables.forget(&range);
            let bytes = range.start * UNIT_BYTES..range.end * UNIT_BYTES;
            if !self.superblock.thick
                && bytes.end - bytes.start >= TRIM_BYTES_MIN
                && let Err(error) = self.medium.trim(bytes.clone())
            {
                // Only the space below is not given back; ours is free all the same.
                tracing::warn!(device = %self.id(), ?bytes, %error, "trim failed");
            }
        }
        Ok(())
    }

    /// Puts the records into the journal and flushes.
    fn append(&mut self) -> Result<(), MediumError> {
        self.tables.write(&*self.medium)?;
        if !self.records.is_empty() {
            self.journal.append(&*self.medium, &self.records)?;
        }
        self.sync()?;
        self.commits += 1;
        self.records.clear();
        self.searched = Default::default();
        self.ahead_end = 0;
        Ok(())
    }

    /// Flushes what was written.
    fn sync(&mut self) -> Result<(), MediumError> {
        self.medium.flush()?;
        self.journal.flushed();
        self.tables.flushed();
        self.reserve_unflushed = false;
        for segment in std::mem::take(&mut self.logs_unflushed) {
            if let Some(ring) = self.logs.get_mut(&segment) {
                ring.flushed();
            }
        }
        Ok(())
    }

    /// Flushes and writes a checkpoint: it may only hold what is durable. No redo may be pending. What is not in place goes there
    /// first where the checkpoint has no room for its redo.
    pub(super) fn settle(&mut self) -> Result<(), MediumError> {
        assert_eq!(self.ahead_end, 0, "a checkpoint would forget redo that no frame has");
        let taken = self.index.full_bytes() + self.overlay.queued_bytes();
        let redo = self.overlay.ready_redo_bytes() + self.appended.redo_bytes();
        if taken + redo > checkpoint::body_max(&self.superblock) {
            // All of it, whatever places take no writes: each step ends at one.
            while self.put_in_place(u64::MAX)? > 0 {}
        } else {
            self.overlay.detach_ready();
        }
        self.tables.write_all(&*self.medium)?;
        self.sync()?;
        self.commits += 1;
        self.checkpoint()
    }

    /// Writes the whole index to the other slot and frees the journal.
    pub(super) fn checkpoint(&mut self) -> Result<(), MediumError> {
        let (number, slot) = (self.checkpoint_number + 1, 1 - self.checkpoint_slot);
        let start =
            Start { head: self.journal.head, next_sequence: self.journal.next_sequence, base: number };
        let mut redo = self.overlay.redo();
        redo.extend(self.appended.redo());
        checkpoint::write(&*self.medium, &self.superblock, number, slot, start, &self.index, &redo)?;
        self.medium.flush()?;
        (self.checkpoint_number, self.checkpoint_slot) = (number, slot);
        self.journal.checkpointed(number);
        Ok(())
    }
}
