//! Group commit: records, the flush that makes them durable, and the checkpoint that frees the journal.
//!
//! **Order** (write-ahead). A redo and a release are in a flushed frame before what they allow is written in place;
//! what is in place, with its checksums, is flushed before a checkpoint frees the frame. So a checkpoint never speaks
//! of a change whose content is neither in place nor in a frame behind it, except those it carries itself.
//!
//! **A page of the journal that takes no writes** ([`Device::append_to_checkpoint`]) costs a checkpoint in place of the frame that met it,
//! and each open meets it once. That checkpoint carries redo which no frame has: both become durable in the same instant, with the flush
//! of the checkpoint. Before it the one in force has the frames up to that page, and what is left there of the frame is one that was
//! not acknowledged, whole or not; behind it that has an older base, and is no frame any more.

use std::collections::BTreeSet;

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

/// Notes of which segment this record changes what others are told of, as it is not durable.
pub(super) fn note_change(changing: &mut BTreeSet<SegmentId>, record: &Record) {
    match record {
        Record::Staged { segment, .. } | Record::Applied { segment, .. } | Record::Logged { segment, .. } => {
            changing.insert(*segment);
        }
        Record::Deleted { segment, .. } => {
            changing.remove(segment);
        }
        _ => {}
    }
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
        note_change(&mut self.changing, &record);
        if let Record::Deleted { segment, .. } = &record {
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
        let mut is_pending = true;
        if self.ahead_end > 0 && !self.journal.takes(&self.records) {
            // `make_room` saw to it that a frame takes the part with redo; only what came after it has to be checkpointed.
            let rest = self.records.split_off(self.ahead_end);
            is_pending = self.append()?;
            if is_pending {
                self.records = rest;
            }
        }
        if is_pending {
            if self.journal.takes(&self.records) {
                self.append()?;
            } else {
                self.settle()?;
                self.forget_records();
                self.tell_of_checkpoint()?;
            }
        }
        self.release_freed();
        Ok(())
    }

    /// Space that is free now that the records are durable.
    fn release_freed(&mut self) {
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
    }

    /// Puts the records into the journal and flushes. `false`: that takes no writes where they belong, so a checkpoint has them, and what
    /// was recorded behind them as well.
    fn append(&mut self) -> Result<bool, MediumError> {
        self.tables.write(&*self.medium)?;
        if !self.records.is_empty() {
            match self.journal.append(&*self.medium, &self.records) {
                Err(error @ MediumError::Io { .. }) => {
                    return self.append_to_checkpoint(error).map(|()| false);
                }
                appended => appended?,
            }
        }
        self.sync()?;
        self.commits += 1;
        self.forget_records();
        Ok(true)
    }

    /// Makes all that was recorded durable without a frame: there is a page of the journal that takes no writes, or no room between such
    /// pages, and a replay would not come to what stands behind them. The checkpoint has the redo, too, and says where frames go on.
    ///
    /// # Errors
    /// The page's, which is given, where there are too many such places, or a checkpoint has no room for all of it.
    fn append_to_checkpoint(&mut self, error: MediumError) -> Result<(), MediumError> {
        if self.too_much_is_left_alone() || !self.make_room_in_checkpoint()? {
            return Err(error);
        }
        self.tables.write_all(&*self.medium)?;
        self.sync()?;
        self.checkpoint()?;
        self.commits += 1;
        self.forget_records();
        self.tell_of_checkpoint()
    }

    /// Behind a checkpoint that alone has some records. A frame says that there is one: without it, they would be missed.
    fn tell_of_checkpoint(&mut self) -> Result<(), MediumError> {
        while let Err(error) = self.journal.append(&*self.medium, &[]) {
            if !matches!(error, MediumError::Io { .. }) || self.too_much_is_left_alone() {
                return Err(error);
            }
            self.checkpoint()?;
            if !self.journal.fits(0) {
                return Err(error);
            }
        }
        self.sync()
    }

    /// The records are durable.
    fn forget_records(&mut self) {
        self.records.clear();
        self.searched = Default::default();
        self.ahead_end = 0;
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
        assert_eq!(self.ahead_end, 0, "what of it has no room in the checkpoint may not be in place either");
        self.make_room_in_checkpoint()?;
        self.tables.write_all(&*self.medium)?;
        self.sync()?;
        self.commits += 1;
        self.checkpoint()
    }

    /// Puts in place what a checkpoint has no room for, as far as it may be there. Whether it has room for the rest.
    fn make_room_in_checkpoint(&mut self) -> Result<bool, MediumError> {
        let max = checkpoint::body_max(&self.superblock);
        if self.checkpoint_bytes() <= max {
            self.overlay.detach_ready();
            return Ok(true);
        }
        // All of it, whatever places take no writes: each step ends at one.
        while self.put_in_place(u64::MAX)? > 0 {}
        Ok(self.checkpoint_bytes() <= max)
    }

    /// Bytes of a checkpoint's body now, at most.
    fn checkpoint_bytes(&self) -> u64 {
        let taken = self.index.full_bytes() + self.overlay.queued_bytes();
        taken + self.overlay.ready_redo_bytes() + self.appended.redo_bytes()
    }

    /// Writes the whole index to the other slot and frees the journal.
    pub(super) fn checkpoint(&mut self) -> Result<(), MediumError> {
        self.journal.step_over_bad_pages();
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
