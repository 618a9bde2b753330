//! Creating extents: space for blocks, and space that stays as it is for blocks that change.

use super::{CreateError, Device, ExtentInfo, ExtentSpec, Updates, write::GROWTH_SHARE_OF_FREE};
use crate::{
    allocator::UNIT_BYTES,
    index::{BLOCK_BYTES_MAX, Extent, ExtentRange, LogStart, Record, UPDATES_JOURNAL_MIN, log::Ring},
    media::MediumError,
};

/// Ranges a reservation may consist of; the rest of it is left to growth.
const RESERVED_RANGES_MAX: usize = 4;
/// The largest reserve: all of it is read at once when its log is first asked for.
const RESERVE_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of blocks that change in place: they are taken at once, and whoever opens an extent says how many there are. No chunk
/// is larger than the largest parity segment.
const UPDATABLE_BYTES_MAX: u64 = 64 << 20;
/// Share of a device's capacity that its journal ring has by default: tells how large a device must be.
const JOURNAL_SHARE: u64 = 256;

impl Device {
    /// Creates an extent and reserves space for the expected blocks, as far as there is any and up to an eighth of it; one that may be
    /// updated gets all of its space in one range, or is not created. The same spec again changes nothing. The extent becomes
    /// durable with the next flush.
    pub fn create_extent(&mut self, spec: ExtentSpec) -> Result<ExtentInfo, CreateError> {
        self.check_alive()?;
        let ExtentSpec { segment, version, epoch, block_bytes, granule, expected_blocks, updates } = spec;
        let held = self.index.epoch(segment).unwrap_or_default();
        if epoch < held {
            return Err(CreateError::StaleEpoch { segment, held, given: epoch });
        }
        if block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX {
            return Err(CreateError::BlockSize { block_bytes });
        }
        if let Some(updates) = updates {
            self.check_updates(&spec, updates)?;
        }
        if let Some(found) = self.index.get(segment) {
            let reserve = found.updates.as_ref().map(|u| u.reserve_units() * UNIT_BYTES);
            let same = (found.version, found.block_bytes, found.granule) == (version, block_bytes, granule)
                && reserve == updates.map(|u| u.reserve_bytes);
            if !same || found.sealed {
                return Err(CreateError::Exists { segment });
            }
            self.raise(segment, epoch);
            return Ok(self.extent(segment).expect("just found"));
        }
        // Extent, range, the first run, versions and log: 50 + 16 + 12 + 44 bytes, rounded up.
        if !self.index_has_room(128) {
            return Err(self.full(|free, longest| CreateError::Full { free, longest }));
        }
        // Nothing is recorded of one that finds no space: it would leave a fence, and another would go for it.
        let like = Extent::new((segment, version, epoch), block_bytes, granule, self.index.created());
        let created = Record::Created { segment, version, epoch, block_bytes, granule };
        let outcome = match updates {
            Some(updates) => self.create_whole(&like, created, expected_blocks, updates),
            None => self.create_growing(&like, created, expected_blocks),
        };
        outcome.map_err(|error| match error {
            MediumError::Full => self.full(|free, longest| CreateError::Full { free, longest }),
            other => CreateError::Medium(other),
        })?;
        Ok(self.extent(segment).expect("just created"))
    }

    /// Creates an extent with space for the expected blocks, as far as there is any, and no more than a share of what is free: whoever
    /// asks for more may write less.
    fn create_growing(
        &mut self,
        like: &Extent,
        created: Record,
        expected_blocks: u32,
    ) -> Result<(), MediumError> {
        let share = self.allocator.free_units() / GROWTH_SHARE_OF_FREE / like.slot_units();
        let expected = u64::from(expected_blocks).min(share).max(1) as u32;
        let range = self.take_range(like, 0, expected, None)?;
        let mut last = range.slots;
        self.record(created);
        self.record(Record::Grown { segment: like.segment, range });
        for _ in 1..RESERVED_RANGES_MAX {
            let slots = self.growing(like.segment).slots();
            // Where there was room for one alone the rest is asked for as it is needed.
            if slots >= expected || last == 1 || self.grow(like.segment, expected - slots, 0).is_err() {
                break;
            }
            last = self.growing(like.segment).slots() - slots;
        }
        Ok(())
    }

    fn check_updates(&self, spec: &ExtentSpec, updates: Updates) -> Result<(), CreateError> {
        let journal_bytes = self.superblock.journal_bytes;
        if journal_bytes < UPDATES_JOURNAL_MIN {
            return Err(CreateError::JournalTooSmall {
                journal_bytes,
                needed: UPDATES_JOURNAL_MIN,
                capacity: UPDATES_JOURNAL_MIN * JOURNAL_SHARE,
            });
        }
        let ExtentSpec { block_bytes, granule, expected_blocks, .. } = *spec;
        let sound = block_bytes.is_multiple_of(granule.bytes())
            && expected_blocks > 0
            && u64::from(expected_blocks) * u64::from(block_bytes) <= UPDATABLE_BYTES_MAX
            && updates.reserve_bytes.is_multiple_of(UNIT_BYTES)
            && updates.reserve_bytes <= self.superblock.capacity.min(RESERVE_BYTES_MAX);
        if sound {
            return Ok(());
        }
        Err(CreateError::Updates {
            block_bytes,
            granule: granule.bytes(),
            blocks: expected_blocks,
            reserve_bytes: updates.reserve_bytes,
        })
    }

    /// Creates an extent with its one range, table, slots and reserve.
    fn create_whole(
        &mut self,
        like: &Extent,
        created: Record,
        slots: u32,
        updates: Updates,
    ) -> Result<(), MediumError> {
        let (segment, blocks) = (like.segment, like.range_units(slots));
        let units = blocks + updates.reserve_bytes / UNIT_BYTES;
        let taken = self.allocator.take(units, units, None).ok_or(MediumError::Full)?;
        let table = taken.start..taken.start + like.table_units(slots);
        // Where places are dear records of its log reach the reserve long after they were answered.
        let reserve = if self.medium.positions() { taken.start + blocks..taken.end } else { 0..0 };
        if let Err(error) = self.take_space(&taken, &[table, reserve]) {
            self.allocator.release(taken);
            return Err(error);
        }
        self.tables.forget(&taken);
        let range = ExtentRange { start: taken.start, first_slot: 0, slots };
        self.record(created);
        self.record(Record::Updatable { segment, reserve: taken.start + blocks..taken.end });
        self.record(Record::Grown { segment, range });
        // What the reserve holds is not this extent's: there is nothing to look for.
        let start = LogStart { sequence: 1, page: 0 };
        let ring = Ring::new(self.log_owner(segment), updates.reserve_bytes / UNIT_BYTES, start);
        self.logs.insert(segment, ring);
        Ok(())
    }
}
