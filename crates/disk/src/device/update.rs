//! Chunks that change in place.
//!
//! The blocks of an updatable extent, in the order of their indices, are one *chunk*; offsets count from the first that
//! is there, so all are written before the first update. A small update of an
//! erasure-coded file writes new bytes to a data chunk and their difference to the parity chunks' reserves (PLR:
//! Chan et al., FAST'14, §4.2); this is what one device does of it. It knows neither codes nor who waits for whom.
//!
//! # What holds
//!
//! - **Write-ahead.** The journal ring is the redo log: a change is one record with the new granules, durable with one
//!   frame and one flush. In place it is written later, by `write_back`, and only after that flush.
//! - **A staged update is held**: its granules are not written in place before its release is durable, too. Until
//!   then the medium has the bytes it replaces and [`Device::held`] forms the difference again, also after a crash.
//! - **All or none.** A record is whole in a frame or not there: patches, merged versions and the log's new start of one
//!   [`Device::apply`] become durable together. Versions only grow, and each update has the next.
//! - **A torn granule is healed**: a granule is only ever written in place while its redo is in the journal or in the checkpoint in
//!   force, and replay puts that over the medium. What lies between changes ([`Apply::between`]) has no redo: it is written as it is
//!   there, so that a sector is the same before and after.

use std::ops::Range;

use bytes::Bytes;

use super::{Device, LogEntry, LogError, ReadError, Spend, UpdateError};
use crate::{
    allocator::UNIT_BYTES,
    buffer::AlignedBuf,
    checksum,
    ids::{BlockIndex, Epoch, SegmentId},
    index::{Extent, MERGED, Record, Updating, journal::LIKE_MAX, log::Ring},
};

/// The most that one update may take of a large journal, a quarter of the largest ring: a merge is one, and the more of a log it
/// folds at once, the fewer positionings each difference costs.
const UPDATE_BYTES_MAX: u64 = 4 << 20;

/// An update of a data chunk that was staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// The version of the chunk that it makes: the first is 1.
    pub version: u64,
    /// Its first byte in the chunk, at a granule's start.
    pub offset: u64,
    /// Old content XOR new content, whole granules.
    pub difference: Bytes,
    /// Checksums of the new granules.
    pub sums: Vec<u32>,
    /// Of a parity chunk: which data chunk's update it is, and which version that makes.
    pub of: Option<(u16, u64)>,
}

/// A change of a parity chunk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Apply {
    /// First bytes in the chunk and new contents, whole granules. A later one wins over an earlier one.
    pub patches: Vec<(u64, Bytes)>,
    /// Data chunks, and the version of each that the chunk holds from now on.
    pub merged: Vec<(u16, u64)>,
    /// Number of the first log record that stays in force; `None`: as before.
    pub log_start: Option<u64>,
    /// Content between the patches that stays, as it was read, whole granules: a medium that positions writes it with them, where the
    /// chunk still has it.
    pub between: Vec<(u64, Bytes)>,
}

/// What an updatable extent held at the moment of a read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkState {
    /// How many updates a data chunk has seen, those of the read among them.
    pub version: u64,
    /// Data chunks, and the version of each that a parity chunk held.
    pub merged: Vec<(u16, u64)>,
    /// Whether its log had records, which what was read does not show.
    pub logged: bool,
}

/// What a read of a chunk gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRead {
    /// The bytes of the chunk that the buffer holds: the range asked for, widened to whole granules.
    pub range: Range<u64>,
    /// Their checksums, already verified.
    pub sums: Vec<u32>,
}

/// An updatable extent as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdatesInfo {
    /// The highest epoch seen.
    pub epoch: Epoch,
    /// Number of its creation on this device: tells a new extent from an earlier one of the same segment.
    pub created: u64,
    /// The version of the chunk: how many updates a data chunk has seen.
    pub version: u64,
    /// Data chunks, and the version of each that the chunk holds.
    pub merged: Vec<(u16, u64)>,
    /// Records in force in its log; none where it is damaged.
    pub log: Vec<LogEntry>,
    /// Number that the log's next record gets; 0 where it is damaged.
    pub log_next: u64,
    /// Bytes of the largest payload that the log takes now; 0 where it is damaged.
    pub log_free: u64,
    /// Bytes of the reserve.
    pub reserve_bytes: u64,
    /// Bytes of the blocks that are there.
    pub chunk_bytes: u64,
    /// Whether the log lost records.
    pub damaged: bool,
    /// Whether these versions and records are durable.
    pub durable: bool,
    /// Bytes that one update may have ([`Device::update_bytes_max`]).
    pub update_bytes_max: u64,
    /// Bytes of updates that the whole device may hold ([`Device::held_bytes_max`]). What stays in its journal for want of a place takes
    /// room of it.
    pub held_bytes_max: u64,
}

/// The reserve of an extent whose blocks are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveInfo {
    /// Its segment.
    pub segment: SegmentId,
    /// Number of its creation on this device: tells a new extent from an earlier one of the same segment.
    pub created: u64,
    /// The chunk's first block.
    pub index: BlockIndex,
    /// Bytes of the chunk.
    pub chunk_bytes: u64,
    /// Bytes of the reserve.
    pub reserve_bytes: u64,
    /// Bytes of it that records in force take; 0 where the log was not used since the device was opened.
    pub held_bytes: u64,
    /// Bytes that all records took that were appended since the device was opened.
    pub logged_bytes: u64,
}

/// Some of a device's reserves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservePage {
    /// In the order of segments.
    pub reserves: Vec<ReserveInfo>,
    /// The last extent that was looked at, with a reserve or without; `None`: there are no more.
    pub last: Option<SegmentId>,
}

impl Device {
    /// Bytes that one update may have at most, in whole granules: a quarter of the journal, an eighth of a checkpoint
    /// slot, 4 MiB.
    pub fn update_bytes_max(&self) -> u64 {
        UPDATE_BYTES_MAX.min(self.superblock.journal_bytes / 4).min(self.superblock.checkpoint_bytes / 8)
    }

    /// Reads bytes `range` of a chunk, widened to whole granules, into `buf`, and verifies them: the newest content,
    /// in place or not. After an error the content of `buf` is unspecified.
    pub fn read_chunk(
        &mut self,
        segment: SegmentId,
        range: Range<u64>,
        buf: &mut AlignedBuf,
    ) -> Result<ChunkRead, UpdateError> {
        let (base, positions) = self.positions(segment, range)?;
        let sums = self.read_granules(segment, positions.clone(), usize::MAX, buf)?;
        Ok(ChunkRead { range: positions.start - base..positions.end - base, sums })
    }

    /// Where a byte of a chunk lies on the medium, for the order of requests.
    pub fn locate_chunk(&self, segment: SegmentId, offset: u64) -> Option<u64> {
        let extent = self.index.get(segment)?;
        let base = chunk_base(extent, &extent.chunk()?);
        extent.granule_place(base.checked_add(offset)?).map(|place| place.data)
    }

    /// Changes bytes of a data chunk, from `offset` on, and returns what others need to follow. Durable after the next
    /// flush; not in place before [`Device::release`].
    pub fn stage(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        offset: u64,
        new: &[u8],
    ) -> Result<Staged, UpdateError> {
        self.stage_from(segment, epoch, (offset, new), None)
    }

    /// The same out of what was [reserved](Device::reserve), as for [`Device::overwrite_from`].
    pub fn stage_from(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        change: (u64, &[u8]),
        spend: Option<Spend>,
    ) -> Result<Staged, UpdateError> {
        self.stage_with(segment, epoch, change, None, spend, |old, new| old.copy_from_slice(new))
    }

    /// The same for a parity chunk that takes differences in place (full overwrite, §3.2): XORs `product` into it, as version
    /// `of.1` of data chunk `of.0`, the next one.
    pub fn overwrite(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        offset: u64,
        product: &[u8],
        of: (u16, u64),
    ) -> Result<Staged, UpdateError> {
        self.overwrite_from(segment, epoch, (offset, product), of, None)
    }

    /// The same out of what was [reserved](Device::reserve). One that was not reserved for and finds no room keeps others from reserving
    /// any until it has some, or its owner [gives up](Device::unreserve).
    pub fn overwrite_from(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        change: (u64, &[u8]),
        of: (u16, u64),
        spend: Option<Spend>,
    ) -> Result<Staged, UpdateError> {
        let updating = self.check_update(segment, epoch)?;
        let merged = updating.merged.get(&of.0).copied();
        if of.1 != merged.unwrap_or(0) + 1 {
            return Err(UpdateError::Backwards { segment, held: merged.unwrap_or(0), given: of.1 });
        }
        if merged.is_none() && !self.index_has_room(MERGED) {
            return Err(UpdateError::IndexFull);
        }
        self.stage_with(segment, epoch, change, Some(of), spend, |old, product| {
            old.iter_mut().zip(product).for_each(|(old, product)| *old ^= product);
        })
    }

    fn stage_with(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        (offset, given): (u64, &[u8]),
        of: Option<(u16, u64)>,
        spend: Option<Spend>,
        put: impl FnOnce(&mut [u8], &[u8]),
    ) -> Result<Staged, UpdateError> {
        let held = self.check_update(segment, epoch)?.version;
        let version = held.checked_add(1).ok_or(UpdateError::LastVersion { segment })?;
        let end = offset.saturating_add(given.len() as u64);
        let (base, positions) = self.positions(segment, offset..end)?;
        self.check_size(positions.end - positions.start)?;
        let mut old = self.pool.take(0);
        self.read_granules(segment, positions.clone(), usize::MAX, &mut old)?;
        let mut content = old.to_vec();
        let within = (base + offset - positions.start) as usize;
        put(&mut content[within..within + given.len()], given);
        let bytes = Bytes::from(content);
        let record = Record::Staged { segment, version, position: positions.start, bytes: bytes.clone(), of };
        let reserved = spend.map_or(0, |spend| self.reserved.spendable(spend));
        if let Err(held) = self.check_held(&record, reserved) {
            spend.into_iter().for_each(|spend| self.reserved.refused(spend.owner));
            return Err(held);
        }
        self.record_update(segment, epoch, record)?;
        spend.into_iter().for_each(|spend| self.reserved.spent(spend));
        self.note_update(segment);
        let sums = self.overlay.queue(segment).last().map(|change| change.patches[0].sums.clone());
        Ok(Staged {
            version,
            offset: positions.start - base,
            difference: difference(&old, &bytes),
            sums: sums.expect("it was just queued"),
            of,
        })
    }

    /// Staged updates up to this version may be written in place. Idempotent. A crash may undo it until a flush that had anything
    /// else for the journal, or nothing else at all.
    pub fn release(&mut self, segment: SegmentId, through_version: u64) -> Result<(), UpdateError> {
        self.check_alive()?;
        self.index.get(segment).ok_or(UpdateError::NoExtent { segment })?;
        let first = self.overlay.queue(segment).find_map(|change| change.version);
        if first.is_some_and(|first| first <= through_version) {
            let record = Record::Released { segment, through: through_version };
            self.make_room(record.redo_bytes())?;
            self.record(record);
        }
        Ok(())
    }

    /// Staged updates that were not released, in the order of their versions; after an open those whose release was not
    /// durable. Reads what the first of them replaced.
    pub fn held(&mut self, segment: SegmentId) -> Result<Vec<Staged>, UpdateError> {
        let extent = self.index.get(segment).ok_or(UpdateError::NoExtent { segment })?;
        let chunk = extent.chunk().ok_or(UpdateError::Gaps { segment, blocks: extent.blocks() })?;
        let base = chunk_base(extent, &chunk);
        let granule = extent.granule.bytes() as usize;
        let changes = self.overlay.queue(segment).enumerate();
        let staged: Vec<_> = changes
            .filter_map(|(number, change)| {
                Some((number, (change.version?, change.of), change.patches.first()?.clone()))
            })
            .filter(|(_, _, patch)| {
                // A seal may have dropped the blocks it changed.
                let end = patch.position + patch.bytes.len() as u64;
                (patch.position..end).step_by(granule).all(|at| extent.granule_place(at).is_some())
            })
            .collect();
        let mut old = self.pool.take(0);
        let mut held = Vec::with_capacity(staged.len());
        for (before, (version, of), patch) in staged {
            let positions = patch.position..patch.position + patch.bytes.len() as u64;
            self.read_granules(segment, positions, before, &mut old)?;
            held.push(Staged {
                version,
                offset: patch.position - base,
                difference: difference(&old, &patch.bytes),
                sums: patch.sums,
                of,
            });
        }
        Ok(held)
    }

    /// Segments with staged updates that were not released, and the lowest version of those.
    pub fn held_segments(&self) -> Vec<(SegmentId, u64)> {
        self.overlay.held_segments().collect()
    }

    /// Changes a parity chunk: patches, merged versions and the log's start become durable together with the next
    /// flush. May be in place at any time after it.
    pub fn apply(&mut self, segment: SegmentId, epoch: Epoch, apply: Apply) -> Result<(), UpdateError> {
        let updating = self.check_update(segment, epoch)?;
        let mut added = 0;
        for &(chunk, given) in &apply.merged {
            match updating.merged.get(&chunk) {
                Some(&held) if given < held => {
                    return Err(UpdateError::Backwards { segment, held, given });
                }
                Some(_) => {}
                None => added += MERGED,
            }
        }
        if added > 0 && !self.index_has_room(added) {
            return Err(UpdateError::IndexFull);
        }
        let patches = self.place_patches(segment, apply.patches)?;
        let between = self.still_there(segment, apply.between)?;
        // Twice: then content and map together still fit half a ring, wherever its head stands.
        self.check_size(2 * apply.merged.len() as u64 * MERGED)?;
        let ring = self.sound_log(segment)?;
        let log = match apply.log_start {
            None => None,
            Some(sequence) => {
                let next = ring.next_sequence();
                let first = ring.entries().next().map_or(next, |e| e.sequence);
                let start = ring.start_at(sequence);
                Some(start.ok_or(LogError::NoRecord { segment, sequence, first, next })?)
            }
        };
        let record = Record::Applied { segment, version: None, patches, merged: apply.merged, log };
        self.check_behind_held(segment, &record)?;
        self.record_update(segment, epoch, record)?;
        self.overlay.fill(segment, between, self.commits);
        if let Some(start) = log {
            let commits = self.commits;
            self.log(segment)?.begin_at(start.sequence, commits, commits);
            self.recent.begin_at(segment, start.sequence);
        }
        Ok(())
    }

    /// Makes a reserve smaller: its tail is free after the next flush. The log must be empty.
    pub fn shrink_reserve(
        &mut self,
        segment: SegmentId,
        epoch: Epoch,
        reserve_bytes: u64,
    ) -> Result<(), UpdateError> {
        let held = self.check_update(segment, epoch)?.reserve_units() * UNIT_BYTES;
        if reserve_bytes > held || !reserve_bytes.is_multiple_of(UNIT_BYTES) {
            return Err(UpdateError::Reserve { held, given: reserve_bytes });
        }
        let records = self.sound_log(segment)?.entries().len();
        if records > 0 {
            return Err(UpdateError::LogInUse { segment, records });
        }
        if reserve_bytes == held {
            return Ok(());
        }
        // Records that just left the log are still in the way of new ones: the ring begins anew.
        if !self.is_clean() {
            self.commit_or_fail()?;
        }
        let reserve_units = reserve_bytes / UNIT_BYTES;
        let before = self.growing(segment).used();
        self.raise(segment, epoch);
        self.record(Record::Shrunk { segment, reserve_units });
        self.log(segment)?.shrink(reserve_units);
        let after = self.growing(segment).used();
        self.freed_between(before, after);
        Ok(())
    }

    /// The reserves among the next `limit` extents after a segment. Reads nothing of the medium.
    pub fn reserves_after(&self, after: Option<SegmentId>, limit: usize) -> ReservePage {
        let mut page = ReservePage::default();
        for extent in self.index.after(after).take(limit) {
            page.last = Some(extent.segment);
            let reserve_units = extent.updates.as_ref().map_or(0, Updating::reserve_units);
            let Some(chunk) = extent.chunk().filter(|_| extent.sealed && reserve_units > 0) else { continue };
            let (held_bytes, logged_bytes) = self.logs.get(&extent.segment).map_or((0, 0), Ring::use_bytes);
            page.reserves.push(ReserveInfo {
                segment: extent.segment,
                created: extent.created,
                index: chunk.start,
                chunk_bytes: u64::from(chunk.end - chunk.start) * u64::from(extent.block_bytes),
                reserve_bytes: reserve_units * UNIT_BYTES,
                held_bytes,
                logged_bytes,
            });
        }
        page
    }

    /// Versions, log and sizes of an updatable extent.
    pub fn updates(&mut self, segment: SegmentId) -> Result<UpdatesInfo, UpdateError> {
        let commits = self.commits;
        let extent = self.index.get(segment).ok_or(UpdateError::NoExtent { segment })?;
        let updating = extent.updates.as_ref().ok_or(UpdateError::NotUpdatable { segment })?;
        let mut info = UpdatesInfo {
            epoch: extent.epoch,
            created: extent.created,
            version: updating.version,
            merged: updating.merged.iter().map(|(chunk, version)| (*chunk, *version)).collect(),
            log: Vec::new(),
            log_next: 0,
            log_free: 0,
            reserve_bytes: updating.reserve_units() * UNIT_BYTES,
            chunk_bytes: u64::from(extent.blocks()) * u64::from(extent.block_bytes),
            damaged: false,
            durable: false,
            update_bytes_max: self.update_bytes_max(),
            held_bytes_max: self.held_bytes_max(),
        };
        let ring = self.log(segment)?;
        info.damaged = ring.damaged().is_some();
        if !info.damaged {
            info.log = ring.entries().map(|e| LogEntry { sequence: e.sequence, bytes: e.bytes }).collect();
            info.log_next = ring.next_sequence();
            info.log_free = ring.free(commits);
        }
        // Behind the log: what that has may be what is not.
        info.durable = self.is_durable(segment);
        Ok(info)
    }

    /// What an extent holds now, where it may be updated.
    pub fn chunk_state(&mut self, segment: SegmentId) -> Option<ChunkState> {
        let updating = self.index.get(segment)?.updates.as_ref()?;
        let merged = updating.merged.iter().map(|(chunk, version)| (*chunk, *version)).collect();
        let (version, reserve) = (updating.version, updating.reserve_units());
        // A log that cannot be read may have any. One that was not used since the open is read back whole, and not just where its first
        // record would be: that one may be what was lost, which only those behind it tell, and parity without it would pass for the newest.
        let logged = reserve > 0
            && self
                .log(segment)
                .map_or(true, |ring| ring.damaged().is_some() || ring.entries().next().is_some());
        Some(ChunkState { version, merged, logged })
    }

    /// Whether this extent may be updated under this epoch.
    fn check_update(&self, segment: SegmentId, epoch: Epoch) -> Result<&Updating, UpdateError> {
        self.check_alive()?;
        let extent = self.index.get(segment).ok_or(UpdateError::NoExtent { segment })?;
        if epoch < extent.epoch {
            return Err(UpdateError::StaleEpoch { segment, held: extent.epoch, given: epoch });
        }
        extent.updates.as_ref().ok_or(UpdateError::NotUpdatable { segment })
    }

    /// The position of the chunk's first byte, and a range of the chunk as positions, widened to whole granules.
    fn positions(&self, segment: SegmentId, range: Range<u64>) -> Result<(u64, Range<u64>), UpdateError> {
        let extent = self.index.get(segment).ok_or(UpdateError::NoExtent { segment })?;
        extent.updates.as_ref().ok_or(UpdateError::NotUpdatable { segment })?;
        let chunk = extent.chunk().ok_or(UpdateError::Gaps { segment, blocks: extent.blocks() })?;
        let base = chunk_base(extent, &chunk);
        let chunk_bytes = u64::from(chunk.end - chunk.start) * u64::from(extent.block_bytes);
        let Range { start, end } = range;
        if start >= end || end > chunk_bytes {
            return Err(UpdateError::OutOfRange { start, end, chunk_bytes });
        }
        let granule = u64::from(extent.granule.bytes());
        Ok((base, base + start / granule * granule..base + end.next_multiple_of(granule)))
    }

    /// Checks patches and gives them positions.
    fn place_patches(
        &self,
        segment: SegmentId,
        patches: Vec<(u64, Bytes)>,
    ) -> Result<Vec<(u64, Bytes)>, UpdateError> {
        let mut bytes = 0;
        let mut placed = Vec::with_capacity(patches.len());
        for (offset, content) in patches {
            bytes += content.len() as u64;
            placed.push((self.place_granules(segment, offset, content.len())?, content));
        }
        self.check_size(bytes)?;
        Ok(placed)
    }

    /// The position of bytes of the chunk that must be whole granules.
    fn place_granules(&self, segment: SegmentId, offset: u64, len: usize) -> Result<u64, UpdateError> {
        let len = len as u64;
        let (_, positions) = self.positions(segment, offset..offset.saturating_add(len))?;
        if positions.end - positions.start != len {
            let granule = self.growing(segment).granule.bytes();
            return Err(UpdateError::Misaligned { offset, len, granule });
        }
        Ok(positions.start)
    }

    /// Of content between patches the granules that the medium has, and nothing newer is known of: written again they change nothing.
    /// None where writing them saves no positioning, or where changes are held.
    fn still_there(
        &mut self,
        segment: SegmentId,
        between: Vec<(u64, Bytes)>,
    ) -> Result<Vec<(u64, Bytes, u32)>, UpdateError> {
        let mut there = Vec::new();
        if !self.medium.positions() || self.overlay.queue(segment).len() > 0 {
            return Ok(there);
        }
        let granule = self.growing(segment).granule.bytes() as usize;
        for (offset, content) in between {
            let start = self.place_granules(segment, offset, content.len())?;
            for from in (0..content.len()).step_by(granule) {
                let (position, bytes) = (start + from as u64, content.slice(from..from + granule));
                if self.overlay.get(segment, position, usize::MAX).is_some() {
                    continue;
                }
                let extent = self.growing(segment);
                let (Some(place), Some(tag)) = (extent.granule_place(position), extent.tag(position)) else {
                    continue;
                };
                let sum = checksum::sum(&bytes, &tag);
                let table_bytes = place.table_byte..place.table_byte + 4;
                let stored =
                    self.tables.get(&*self.medium, place.table, table_bytes).map_err(ReadError::from)?;
                if stored == [sum] {
                    there.push((position, bytes, sum));
                }
            }
        }
        Ok(there)
    }

    fn check_size(&self, given: u64) -> Result<(), UpdateError> {
        let max = self.update_bytes_max();
        if given > max { Err(UpdateError::TooLarge { given, max }) } else { Ok(()) }
    }

    /// Whether one more change may be held, for which so much is reserved.
    fn check_held(&self, record: &Record, reserved: u64) -> Result<(), UpdateError> {
        let held = self.taken_bytes() - reserved;
        let (given, max) = (record.redo_bytes() as u64, self.held_bytes_max());
        // What was reserved was promised, and what is kept comes unasked: it takes nothing of that back.
        let is_promised = given <= reserved;
        if is_promised || held + given <= max { Ok(()) } else { Err(UpdateError::Held { held, given, max }) }
    }

    /// A change that is not held itself counts where it has to wait behind one that is.
    fn check_behind_held(&self, segment: SegmentId, record: &Record) -> Result<(), UpdateError> {
        if self.overlay.queue(segment).len() > 0 { self.check_held(record, 0) } else { Ok(()) }
    }

    /// Records a redo.
    fn record_update(&mut self, segment: SegmentId, epoch: Epoch, record: Record) -> Result<(), UpdateError> {
        let beginnings = record.contents().map(|bytes| self.journal.beginnings(bytes)).sum();
        if beginnings > LIKE_MAX {
            return Err(UpdateError::LikeJournal { found: beginnings, max: LIKE_MAX });
        }
        // A block whose own group may still vanish is not changed: the redo would outlive it.
        if self.unflushed.iter().any(|(of, _)| *of == segment) {
            self.commit_or_fail()?;
        }
        self.set_apart(beginnings)?;
        self.make_room(record.redo_bytes())?;
        self.raise(segment, epoch);
        self.record(record);
        Ok(())
    }
}

/// The position of a chunk's first byte.
fn chunk_base(extent: &Extent, chunk: &Range<u32>) -> u64 {
    u64::from(chunk.start) * u64::from(extent.block_bytes)
}

fn difference(old: &[u8], new: &[u8]) -> Bytes {
    old.iter().zip(new).map(|(old, new)| old ^ new).collect()
}
