//! Writing, sealing and deleting extents.

use std::{
    io::{self, IoSlice},
    ops::Range,
};

use super::{ChangeError, Device, DeviceError, NewBlock, Sealed, WriteError};
use crate::{
    allocator::{Allocator, UNIT_BYTES},
    checksum::{self, Granule},
    ids::{BlockIndex, Epoch, SegmentId, Version},
    index::{Extent, ExtentRange, Place, RUNS_MAX, Record, Run, checkpoint, journal::LIKE_MAX},
    media::MediumError,
};

/// Bytes a growing extent's next range aims at, at least: long enough to stay sequential.
const GROWTH_BYTES_MIN: u64 = 1 << 20;
/// And at most: a speculative writer does not need all it is given.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// No growth step, nor what an extent that may grow begins with, takes more than this part of the free space, so that one writer
/// cannot hold the last of it.
pub(super) const GROWTH_SHARE_OF_FREE: u64 = 8;
/// Places that take no writes and are left alone; a medium that has more of them has failed. Picked by eye: a disk that is well has none.
///
/// Each costs the room of the write that found it, and what was answered and belongs there stays in memory and in checkpoints: so many
/// granules of 4 KiB are 64 x 4160 B, 260 KiB, and a log record up to 256 KiB. A checkpoint's body has room for the largest index and all
/// that may be held; what is kept counts as held, but comes unasked, on top of what was held or reserved before. So `write_back` fails the
/// device where index, held and kept are more than a body.
const UNWRITABLE_MAX: usize = 64;
/// Room in the index that growth leaves to seals, in bytes; deletes only ever shrink it.
const INDEX_RESERVE: u64 = 1 << 10;

/// What a run takes in the index.
pub(super) const RUN_BYTES: u64 = std::mem::size_of::<Run>() as u64;

static ZEROS: [u8; UNIT_BYTES as usize] = [0; UNIT_BYTES as usize];

impl NewBlock<'_> {
    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Checks the pieces one after the other: a granule that does not end with its piece fails. Of those that were checked before only
    /// how many checksums there are is looked at.
    fn verify(
        &self,
        granule: Granule,
        segment: SegmentId,
        version: Version,
    ) -> Result<(), checksum::Mismatch> {
        let mut first = 0;
        for (number, piece) in self.pieces.iter().enumerate() {
            let granules = piece.len().div_ceil(granule.bytes() as usize);
            let last = number + 1 == self.pieces.len();
            let end = if last { self.sums.len() } else { (first + granules).min(self.sums.len()) };
            let whole = last || piece.len().is_multiple_of(granule.bytes() as usize);
            if !whole || first > end {
                return Err(checksum::Mismatch { granule: (first + granules) as u32 });
            }
            let sums = &self.sums[first..end];
            if self.checked != Some(version) {
                checksum::verify(piece, granule, segment, version, self.index, first as u32, sums)?;
            } else if sums.len() != granules {
                return Err(checksum::Mismatch { granule: (first + granules.min(sums.len())) as u32 });
            }
            first = end;
        }
        Ok(())
    }
}

/// A block that has its slot.
struct Placed {
    position: usize,
    slot: u32,
    place: Place,
}

impl Device {
    /// Writes one block; see [`Device::write_blocks`].
    pub fn write_block(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        index: BlockIndex,
        data: &[u8],
        sums: &[u32],
    ) -> Result<(), WriteError> {
        self.write_blocks(segment, epoch, &[NewBlock { index, pieces: vec![data], sums, checked: None }])
            .pop()
            .expect("one answer for each block")
    }

    /// Writes blocks of one segment, those in neighbouring slots as one operation of the medium. One answer for
    /// each, in order. A block is durable after the next flush. Writing a block that is there already
    /// with the same checksums is a success.
    pub fn write_blocks(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        blocks: &[NewBlock<'_>],
    ) -> Vec<Result<(), WriteError>> {
        if let Err(error) = self.check_writable(segment, epoch) {
            return vec![Err(error); blocks.len()];
        }
        self.raise(segment, epoch);
        let mut answers = vec![Ok(()); blocks.len()];
        let mut placed: Vec<Placed> = Vec::with_capacity(blocks.len());
        let mut slot = self.growing(segment).next_slot();
        // Where the last run ends, and how many are new.
        let end = |device: &Device| {
            device.growing(segment).runs.last().map(|run| (run.index + run.count, run.slot + run.count))
        };
        let (mut last, mut runs) = (end(self), 0);
        for (position, block) in blocks.iter().enumerate() {
            // The same block twice in one call: the first is in its slot before the second is looked at.
            if placed.iter().any(|p| blocks[p.position].index == block.index) {
                self.write_placed(segment, blocks, std::mem::take(&mut placed), &mut answers);
                slot = self.growing(segment).next_slot();
                (last, runs) = (end(self), 0);
            }
            slot = self.writable_slot(segment, slot);
            let follows = last == Some((block.index, slot));
            match self.prepare_block(segment, block, slot, (runs, follows)) {
                Ok(Some(place)) => {
                    runs += u64::from(!follows);
                    last = Some((block.index + 1, slot + 1));
                    placed.push(Placed { position, slot, place });
                    slot += 1;
                }
                Ok(None) => {}
                Err(error) => answers[position] = Err(error),
            }
        }
        self.write_placed(segment, blocks, placed, &mut answers);
        answers
    }

    /// Makes an extent final: only the blocks in `keep` (of those that are there) stay, all other space is free
    /// after the next flush. May be repeated with fewer blocks.
    pub fn seal(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        keep: &[Range<u32>],
    ) -> Result<Sealed, ChangeError> {
        self.check_alive()?;
        let Some(extent) = self.index.get(segment) else { return Err(ChangeError::NoExtent { segment }) };
        let held = extent.epoch;
        if epoch < held {
            return Err(ChangeError::StaleEpoch { segment, held, given: epoch });
        }
        let growth = self.index.seal_growth(segment, keep);
        if growth > 0 && self.index.full_bytes() + growth > checkpoint::index_max(&self.superblock) {
            return Err(ChangeError::IndexFull);
        }
        let before = extent.used();
        let record = Record::Sealed { segment, epoch, keep: keep.to_vec() };
        let mut encoded = Vec::new();
        record.encode(&mut encoded);
        let beginnings = self.journal.beginnings(&encoded);
        self.set_apart(beginnings)?;
        self.record(record);
        let extent = self.index.get(segment).expect("sealed, not gone");
        let (kept, after) = (u64::from(extent.blocks()), extent.used());
        let freed_bytes = self.freed_between(before, after) * UNIT_BYTES;
        if beginnings > LIKE_MAX {
            // No frame takes it, so nothing that needs one may follow in its group.
            self.commit_or_fail()?;
        }
        Ok(Sealed { kept, freed_bytes })
    }

    /// Deletes an extent; its space is free after the next flush. The epoch stays remembered. `false`: there was
    /// none (older creations are refused all the same).
    pub fn delete(&mut self, segment: SegmentId, epoch: Epoch) -> Result<bool, ChangeError> {
        self.check_alive()?;
        let held = self.index.epoch(segment).unwrap_or_default();
        if epoch < held {
            return Err(ChangeError::StaleEpoch { segment, held, given: epoch });
        }
        let before = self.index.get(segment).map(Extent::used);
        if before.is_some() || epoch > held {
            self.record(Record::Deleted { segment, epoch });
        }
        let found = before.is_some();
        self.freed_between(before.unwrap_or_default(), Vec::new());
        Ok(found)
    }

    /// Raises the epoch of a segment, whether it has an extent here or not: older ones are refused from now on.
    pub fn fence(&mut self, segment: SegmentId, epoch: Epoch) -> Result<(), ChangeError> {
        self.check_alive()?;
        let held = self.index.epoch(segment).unwrap_or_default();
        if epoch < held {
            return Err(ChangeError::StaleEpoch { segment, held, given: epoch });
        }
        self.raise(segment, epoch);
        Ok(())
    }

    pub(super) fn check_alive(&self) -> Result<(), DeviceError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn check_writable(&self, segment: SegmentId, epoch: Epoch) -> Result<(), WriteError> {
        self.check_alive()?;
        let extent = self.index.get(segment).ok_or(WriteError::NoExtent { segment })?;
        if epoch < extent.epoch {
            return Err(WriteError::StaleEpoch { segment, held: extent.epoch, given: epoch });
        }
        if extent.sealed {
            return Err(WriteError::Sealed { segment });
        }
        Ok(())
    }

    /// Checks a block and finds its place at `slot`, growing the extent where it must. `None`: the same block is
    /// there already. There will be so many more runs with those before it, and it `follows` the last of them, or begins its own.
    fn prepare_block(
        &mut self,
        segment: SegmentId,
        block: &NewBlock<'_>,
        slot: u32,
        (runs, follows): (u64, bool),
    ) -> Result<Option<Place>, WriteError> {
        let extent = self.growing(segment);
        let given = block.bytes();
        if given != extent.block_bytes as usize {
            return Err(WriteError::Length { expected: extent.block_bytes, given });
        }
        block.verify(extent.granule, segment, extent.version)?;
        if let Some(slot) = extent.slot_of(block.index) {
            let place = extent.place(slot).expect("a run's slots have places");
            let bytes = place.table_byte..place.table_byte + extent.sums_bytes();
            let (granule, base) = (u64::from(extent.granule.bytes()), u64::from(block.index) * given as u64);
            let mut stored =
                self.tables.get(&*self.medium, place.table, bytes).map_err(WriteError::Medium)?;
            for (number, sum) in stored.iter_mut().enumerate() {
                let newer = self.overlay.get(segment, base + number as u64 * granule, usize::MAX);
                *sum = newer.map_or(*sum, |(_, sum)| sum);
            }
            return if stored == block.sums {
                Ok(None)
            } else {
                Err(WriteError::Exists { segment, index: block.index })
            };
        }
        let unconfirmed = runs * RUN_BYTES;
        let too_many = !follows && extent.runs.len() as u64 + runs >= RUNS_MAX as u64;
        if block.index == u32::MAX || too_many || !self.index_has_room(64 + unconfirmed) {
            return Err(self.full(|free, longest| WriteError::Full { free, longest }));
        }
        if self.growing(segment).place(slot).is_none() {
            let extent = self.growing(segment);
            if extent.updates.is_some() {
                return Err(self.full(|free, longest| WriteError::Full { free, longest }));
            }
            let slot_bytes = extent.slot_units() * UNIT_BYTES;
            let aim = (u64::from(extent.slots()) * slot_bytes / 2)
                .clamp(GROWTH_BYTES_MIN, GROWTH_BYTES_MAX)
                .min(self.allocator.free_units() * UNIT_BYTES / GROWTH_SHARE_OF_FREE);
            let slots = (aim / slot_bytes).max(1) as u32;
            self.grow(segment, slots, unconfirmed).map_err(|error| match error {
                MediumError::Full => self.full(|free, longest| WriteError::Full { free, longest }),
                other => WriteError::Medium(other),
            })?;
        }
        Ok(self.growing(segment).place(slot))
    }

    /// The first slot from this one on that takes writes, as far as is known; it may have no place yet.
    fn writable_slot(&self, segment: SegmentId, mut slot: u32) -> u32 {
        let extent = self.growing(segment);
        let is_given_up = |place: Place| {
            let start = place.data / UNIT_BYTES;
            self.allocator.is_given_up(&(start..start + extent.slot_units()))
        };
        while extent.place(slot).is_some_and(is_given_up) {
            slot += 1;
        }
        slot
    }

    /// Writes blocks that have their slots, neighbours together. A place that fails is left alone from then on, by this extent and by
    /// those that come after it: the next writer would fail there as well.
    fn write_placed(
        &mut self,
        segment: SegmentId,
        blocks: &[NewBlock<'_>],
        placed: Vec<Placed>,
        answers: &mut [Result<(), WriteError>],
    ) {
        let stride = self.growing(segment).slot_units() * UNIT_BYTES;
        let mut unwritable = None;
        for run in placed.chunk_by(|a, b| a.place.data + stride == b.place.data) {
            let mut slices = Vec::with_capacity(run.len() * 2);
            for placed in run {
                let block = &blocks[placed.position];
                slices.extend(block.pieces.iter().map(|piece| IoSlice::new(piece)));
                let padding = stride as usize - block.bytes();
                if padding > 0 {
                    slices.push(IoSlice::new(&ZEROS[..padding]));
                }
            }
            let written = self.medium.write_vectored_at(run[0].place.data, &slices);
            if let Err(error @ MediumError::Io { .. }) = &written {
                let start = run[0].place.data / UNIT_BYTES;
                let units = start..start + run.len() as u64 * stride / UNIT_BYTES;
                self.leave_alone(units, error);
                unwritable = Some(error.clone());
            }
            for placed in run {
                let block = &blocks[placed.position];
                let outcome = written.clone().and_then(|()| {
                    self.tables.put(&*self.medium, placed.place.table, placed.place.table_byte, block.sums)
                });
                match outcome {
                    Ok(()) => self.confirm(segment, Run { slot: placed.slot, index: block.index, count: 1 }),
                    Err(MediumError::Full) => {
                        answers[placed.position] =
                            Err(self.full(|free, longest| WriteError::Full { free, longest }));
                    }
                    Err(error) => answers[placed.position] = Err(WriteError::Medium(error)),
                }
            }
        }
        if let Some(error) = unwritable {
            self.fail_where_too_much_is_left_alone(error);
        }
    }

    /// Gives up a place that took no writes, all of it: which page it was is not known, and nothing is tried again.
    pub(super) fn leave_alone(&mut self, units: Range<u64>, error: &MediumError) {
        tracing::warn!(device = %self.id(), ?units, %error, "a place takes no writes and is left alone");
        self.allocator.give_up(units);
    }

    /// Belongs behind that, once nothing is under way that a failed device must not do: whoever wrote is told of its own part, and of the
    /// device by what it does next.
    pub(super) fn fail_where_too_much_is_left_alone(&mut self, error: MediumError) {
        if self.too_much_is_left_alone() {
            let _ = self.or_fail(Err::<(), _>(error));
        }
    }

    pub(super) fn too_much_is_left_alone(&self) -> bool {
        self.allocator.given_up().len() + self.journal.bad_pages() > UNWRITABLE_MAX
    }

    pub(super) fn growing(&self, segment: SegmentId) -> &Extent {
        self.index.get(segment).expect("checked by the caller")
    }

    /// Gives an extent one more range, of `slots` slots if there is one, else of as many as the longest has. The index will take
    /// `unconfirmed` bytes for blocks that have their places.
    pub(super) fn grow(
        &mut self,
        segment: SegmentId,
        slots: u32,
        unconfirmed: u64,
    ) -> Result<(), MediumError> {
        if !self.index_has_room(32 + unconfirmed) {
            return Err(MediumError::Full);
        }
        let extent = self.growing(segment);
        let (first_slot, after) = (extent.slots(), extent.end());
        let named = (segment, extent.version, extent.epoch);
        let like = Extent::new(named, extent.block_bytes, extent.granule, extent.created);
        let range = self.take_range(&like, first_slot, slots, after)?;
        self.record(Record::Grown { segment, range });
        Ok(())
    }

    /// Takes space for a range of an extent like this one; `after`: the unit where it would best begin.
    pub(super) fn take_range(
        &mut self,
        like: &Extent,
        first_slot: u32,
        slots: u32,
        after: Option<u64>,
    ) -> Result<ExtentRange, MediumError> {
        let slots = slots.min((u32::MAX >> 1) - first_slot);
        if slots == 0 {
            return Err(MediumError::Full);
        }
        match self.take_slots(like, first_slot, slots, after) {
            // Of what the medium has left one block may find some.
            Err(MediumError::Full) if slots > 1 => self.take_slots(like, first_slot, 1, after),
            taken => taken,
        }
    }

    /// The same for so many slots, or as many as the longest run of free units has.
    fn take_slots(
        &mut self,
        like: &Extent,
        first_slot: u32,
        slots: u32,
        after: Option<u64>,
    ) -> Result<ExtentRange, MediumError> {
        let (wanted, least) = (like.range_units(slots), like.range_units(1));
        let taken = self.allocator.take(wanted, least, after).ok_or(MediumError::Full)?;
        let slots = like.slots_in(taken.end - taken.start).min(slots);
        let used = taken.start..taken.start + like.range_units(slots);
        self.allocator.release(used.end..taken.end);
        let table = used.start..used.start + like.table_units(slots);
        if let Err(error) = self.take_space(&used, &[table]) {
            self.allocator.release(used);
            return Err(error);
        }
        self.tables.forget(&used);
        Ok(ExtentRange { start: used.start, first_slot, slots })
    }

    /// Real space for new units of an extent: for all of them where the medium wants to be told of so many, and in any case for those that
    /// are written when nobody can be refused any more. Blocks are: they find out themselves whether the medium is full. Where there is not
    /// enough a filesystem keeps what it found, which may be its last: it is given back.
    ///
    /// A thick device has its space. Asking again would change nothing but the file's inode, with which the next flush then waits for the
    /// filesystem's journal, that all devices on it share.
    pub(super) fn take_space(&self, units: &Range<u64>, unrefused: &[Range<u64>]) -> Result<(), MediumError> {
        if self.superblock.thick {
            return Ok(());
        }
        let bytes = |units: &Range<u64>| units.start * UNIT_BYTES..units.end * UNIT_BYTES;
        let taken = self.medium.allocate(bytes(units)).and_then(|()| {
            let mut unrefused = unrefused.iter().filter(|units| !units.is_empty());
            unrefused.try_for_each(|units| self.medium.guarantee(bytes(units)))
        });
        if taken.is_err()
            && let Err(error) = self.medium.trim(bytes(units))
        {
            tracing::warn!(device = %self.id(), ?units, %error, "space that is of no use is not given back");
        }
        taken
    }

    fn confirm(&mut self, segment: SegmentId, run: Run) {
        self.index.apply(&Record::Confirmed { segment, run }).expect("its slot is the next one");
        match self.unflushed.last_mut() {
            Some((s, blocks)) if *s == segment && blocks.end == run.index => blocks.end += run.count,
            _ => self.unflushed.push((segment, run.index..run.index + run.count)),
        }
        match &mut self.open_run {
            Some(Record::Confirmed { segment: s, run: open })
                if *s == segment
                    && open.slot + open.count == run.slot
                    && open.index + open.count == run.index =>
            {
                open.count += run.count;
            }
            open => {
                if let Some(open) = open.replace(Record::Confirmed { segment, run }) {
                    open.encode(&mut self.records);
                }
            }
        }
    }

    /// Remembers the units that `before` has and `after` has not; returns how many.
    pub(super) fn freed_between(&mut self, before: Vec<Range<u64>>, after: Vec<Range<u64>>) -> u64 {
        let (Some(start), Some(end)) =
            (before.iter().map(|r| r.start).min(), before.iter().map(|r| r.end).max())
        else {
            return 0;
        };
        let mut map = Allocator::new(start..end);
        for range in before {
            assert!(map.reserve(range), "an extent's ranges do not overlap");
        }
        // What is not used before is free in the map; after freeing all and taking `after`, the difference is new.
        let untouched: Vec<Range<u64>> = map.runs().collect();
        let mut now = Allocator::new(start..end);
        for range in untouched.into_iter().chain(after) {
            assert!(now.reserve(range), "an extent only ever shrinks here");
        }
        let count = now.free_units();
        self.freed.extend(now.runs());
        count
    }

    pub(super) fn index_has_room(&self, more: u64) -> bool {
        self.index.full_bytes() + more + INDEX_RESERVE <= checkpoint::index_max(&self.superblock)
    }

    pub(super) fn full<E>(&self, error: impl FnOnce(u64, u64) -> E) -> E {
        let usage = self.usage();
        error(usage.free, usage.longest)
    }
}

/// Refuses a place that took no writes before: each try costs a disk seconds, and all who wait for it.
pub(super) fn check_not_given_up(allocator: &Allocator, units: &Range<u64>) -> Result<(), MediumError> {
    if allocator.is_given_up(units) {
        return Err(MediumError::Io { kind: io::ErrorKind::Other, offset: units.start * UNIT_BYTES });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        FormatOptions,
        ids::{ClusterId, DeviceId},
        media::MemoryMedium,
    };

    const S: SegmentId = SegmentId(5);

    /// Each block is looked for among them, and whoever writes chooses their indices.
    #[test]
    fn an_extent_has_only_so_many_runs() {
        let medium = Arc::new(MemoryMedium::new(300 << 20));
        let options = FormatOptions { thick: true, ..FormatOptions::new(ClusterId(1), DeviceId(2)) };
        Device::format(&*medium, options).unwrap();
        let mut device = Device::open(medium.clone(), None).unwrap();
        let (version, epoch, granule) = (Version(1), Epoch(1), Granule::KIB_4);
        let like = Extent::new((S, version, epoch), 1, granule, device.index.created());
        let range = device.take_range(&like, 0, RUNS_MAX as u32 + 10, None).unwrap();
        device.record(Record::Created { segment: S, version, epoch, block_bytes: 1, granule });
        device.record(Record::Grown { segment: S, range });
        for slot in 0..RUNS_MAX as u32 - 1 {
            device.confirm(S, Run { slot, index: 2 * slot, count: 1 });
        }
        let write = |device: &mut Device, indices: &[BlockIndex]| {
            let sums = indices.iter().map(|&index| checksum::sums(&[7], granule, S, version, index));
            let sums: Vec<_> = sums.collect();
            let blocks = indices.iter().zip(&sums);
            let blocks: Vec<_> = blocks
                .map(|(&index, sums)| NewBlock { index, pieces: vec![&[7]], sums, checked: None })
                .collect();
            let answers = device.write_blocks(S, epoch, &blocks);
            let is_full = |answer: &Result<(), WriteError>| matches!(answer, Err(WriteError::Full { .. }));
            assert!(answers.iter().all(|answer| answer.is_ok() || is_full(answer)), "{answers:?}");
            answers.iter().map(Result::is_ok).collect::<Vec<_>>()
        };
        // One more run, which others may go on with, also those of the call that began it.
        assert_eq!(write(&mut device, &[1 << 20, (1 << 20) + 1, 1 << 21]), [true, true, false]);
        assert_eq!(write(&mut device, &[1, (1 << 20) + 2, (1 << 20) + 3]), [false, true, true]);
        device.flush().unwrap();
        drop(device);
        let device = Device::open(medium, None).unwrap();
        let extent = device.index.get(S).unwrap();
        assert_eq!((extent.runs.len(), extent.blocks()), (RUNS_MAX, RUNS_MAX as u32 + 3));
    }
}
