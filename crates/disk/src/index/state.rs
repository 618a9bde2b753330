//! The index in memory: extents and fences, changed only by [`Record`]s, so that replay and live operation
//! are one code path.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use super::{
    Malformed, Record,
    codec::{Put, Reader},
    extent::{Extent, Run},
    updating::Updating,
};
use crate::{
    allocator::UNIT_BYTES,
    ids::{BlockIndex, Epoch, SegmentId},
};

const FENCE: u64 = 16;
const FIXED: u64 = 8 + 4 + 4;

/// All extents of a device, and the epochs of segments that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    extents: BTreeMap<SegmentId, Extent>,
    /// Highest epochs of segments without an extent, the newest `fences_max` of them.
    fences: BTreeMap<SegmentId, Epoch>,
    fence_order: VecDeque<SegmentId>,
    fences_max: usize,
    created: u64,
    extent_bytes: u64,
}

impl Index {
    /// An empty index that remembers so many fences.
    pub fn new(fences_max: usize) -> Index {
        Index {
            extents: BTreeMap::new(),
            fences: BTreeMap::new(),
            fence_order: VecDeque::new(),
            fences_max: fences_max.max(1),
            created: 0,
            extent_bytes: 0,
        }
    }

    /// One extent.
    pub fn get(&self, segment: SegmentId) -> Option<&Extent> {
        self.extents.get(&segment)
    }

    /// Extents in the order of segments, those after `after`.
    pub fn after(&self, after: Option<SegmentId>) -> impl Iterator<Item = &Extent> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.extents.range((from, Unbounded)).map(|(_, e)| e)
    }

    /// How many extents.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Number of the next creation.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// No creation from now on has a smaller number.
    pub(crate) fn create_from(&mut self, number: u64) {
        self.created = self.created.max(number);
    }

    /// The highest epoch seen of a segment.
    pub fn epoch(&self, segment: SegmentId) -> Option<Epoch> {
        self.extents.get(&segment).map(|e| e.epoch).or_else(|| self.fences.get(&segment).copied())
    }

    /// Bytes of a checkpoint of this index if all its fences were in use: what growth is measured against.
    pub fn full_bytes(&self) -> u64 {
        FIXED + self.fences_max as u64 * FENCE + self.extent_bytes
    }

    /// Applies one change. An error: the record cannot follow what is there (and nothing changed).
    pub fn apply(&mut self, record: &Record) -> Result<(), Malformed> {
        match record {
            Record::Created { segment, version, epoch, block_bytes, granule } => {
                if self.extents.contains_key(segment) {
                    return Err(Malformed { what: "an extent is created twice" });
                }
                self.fences.remove(segment);
                self.fence_order.retain(|s| s != segment);
                let named = (*segment, *version, *epoch);
                let extent = Extent::new(named, *block_bytes, *granule, self.created);
                self.created += 1;
                self.extent_bytes += extent.encoded_bytes();
                self.extents.insert(*segment, extent);
            }
            Record::Grown { segment, range } => self.change(*segment, |extent| {
                extent.check_range(range)?;
                extent.ranges.push(*range);
                Ok(())
            })?,
            Record::Confirmed { segment, run } => self.change(*segment, |extent| {
                extent.check_run(run)?;
                extent.confirm(*run);
                Ok(())
            })?,
            Record::Sealed { segment, epoch, keep } => self.change(*segment, |extent| {
                extent.epoch = extent.epoch.max(*epoch);
                extent.seal(keep);
                Ok(())
            })?,
            Record::Updatable { segment, reserve } => self.change(*segment, |extent| {
                if extent.updates.is_some()
                    || !extent.ranges.is_empty()
                    || !extent.block_bytes.is_multiple_of(extent.granule.bytes())
                {
                    return Err(Malformed { what: "an extent cannot become updatable" });
                }
                let updating = Updating::new(reserve.clone());
                updating.check()?;
                extent.updates = Some(updating);
                Ok(())
            })?,
            Record::Staged { segment, version, position, bytes, of } => self.change(*segment, |extent| {
                check_patch(extent, *position, bytes.len())?;
                let updating = updating(extent)?;
                if updating.version.checked_add(1) != Some(*version) {
                    return Err(Malformed { what: "version of an update" });
                }
                updating.version = *version;
                updating.merge(of.as_slice());
                Ok(())
            })?,
            Record::Applied { segment, version, patches, merged, log } => {
                self.change(*segment, |extent| {
                    for (position, bytes) in patches {
                        check_patch(extent, *position, bytes.len())?;
                    }
                    let updating = updating(extent)?;
                    let mut after = updating.clone();
                    after.version = version.unwrap_or(updating.version);
                    after.log = log.unwrap_or(updating.log);
                    after.merge(merged);
                    after.check()?;
                    if after.version < updating.version || after.log.sequence < updating.log.sequence {
                        return Err(Malformed { what: "an extent goes back" });
                    }
                    *updating = after;
                    Ok(())
                })?
            }
            Record::Logged { segment, page, bytes, .. } => {
                self.change(*segment, |extent| check_logged(extent, *page, bytes.len()))?
            }
            Record::Released { segment, .. } => {
                self.change(*segment, |extent| updating(extent).map(|_| ()))?
            }
            Record::Shrunk { segment, reserve_units } => self.change(*segment, |extent| {
                let updating = updating(extent)?;
                if *reserve_units > updating.reserve_units() {
                    return Err(Malformed { what: "a reserve grows" });
                }
                updating.reserve.end = updating.reserve.start + reserve_units;
                updating.log.page = 0;
                Ok(())
            })?,
            Record::Deleted { segment, epoch } => {
                let held = self.epoch(*segment).unwrap_or_default();
                if let Some(extent) = self.extents.remove(segment) {
                    self.extent_bytes -= extent.encoded_bytes();
                }
                self.fence(*segment, held.max(*epoch));
            }
            Record::Epoch { segment, epoch } => match self.extents.get_mut(segment) {
                Some(extent) => extent.epoch = extent.epoch.max(*epoch),
                None => {
                    let held = self.fences.get(segment).copied().unwrap_or_default();
                    self.fence(*segment, held.max(*epoch));
                }
            },
        }
        Ok(())
    }

    /// Takes one block out: it was never acknowledged and its data did not survive.
    pub fn forget(&mut self, segment: SegmentId, index: BlockIndex) {
        let _ = self.change(segment, |extent| {
            extent.forget(index);
            Ok(())
        });
    }

    /// Bytes that a seal with these kept blocks would add to the index (often negative, then 0).
    pub fn seal_growth(&self, segment: SegmentId, keep: &[Range<u32>]) -> u64 {
        self.extents.get(&segment).map_or(0, |extent| {
            let runs = extent.kept_runs(keep).len().saturating_sub(extent.runs.len());
            (runs * std::mem::size_of::<Run>()) as u64
        })
    }

    fn change(
        &mut self,
        segment: SegmentId,
        change: impl FnOnce(&mut Extent) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let extent =
            self.extents.get_mut(&segment).ok_or(Malformed { what: "a change of an absent extent" })?;
        let before = extent.encoded_bytes();
        change(extent)?;
        self.extent_bytes = self.extent_bytes + extent.encoded_bytes() - before;
        Ok(())
    }

    fn fence(&mut self, segment: SegmentId, epoch: Epoch) {
        if epoch == Epoch::default() {
            return; // Refuses nothing.
        }
        if self.fences.insert(segment, epoch).is_none() {
            self.fence_order.push_back(segment);
        }
        if self.fence_order.len() > self.fences_max
            && let Some(oldest) = self.fence_order.pop_front()
        {
            self.fences.remove(&oldest);
        }
    }

    /// Gives the encoded index to `sink` piece by piece.
    pub(super) fn encode<E>(&self, mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut piece = Vec::with_capacity(4096);
        piece.put_u64(self.created);
        piece.put_u32(self.fence_order.len() as u32);
        piece.put_u32(self.extents.len() as u32);
        for segment in &self.fence_order {
            piece.put_u64(segment.0);
            piece.put_u64(self.fences.get(segment).copied().unwrap_or_default().0);
        }
        sink(&piece)?;
        for extent in self.extents.values() {
            piece.clear();
            extent.encode(&mut piece);
            sink(&piece)?;
        }
        Ok(())
    }

    /// The index and the redo behind it.
    pub(super) fn decode(bytes: &[u8], fences_max: usize) -> Result<(Index, Vec<Record>), Malformed> {
        let mut index = Index::new(fences_max);
        let mut reader = Reader(bytes);
        index.created = reader.u64()?;
        let (fences, extents) = (reader.u32()?, reader.u32()?);
        for _ in 0..fences {
            let (segment, epoch) = (SegmentId(reader.u64()?), Epoch(reader.u64()?));
            index.fence(segment, epoch);
        }
        for _ in 0..extents {
            let extent = Extent::decode(&mut reader)?;
            index.extent_bytes += extent.encoded_bytes();
            if index.extents.insert(extent.segment, extent).is_some() {
                return Err(Malformed { what: "an extent is listed twice" });
            }
        }
        let redo = Record::decode_all(reader.0)?;
        for record in &redo {
            let extent = index.get(record.segment()).filter(|e| e.updates.is_some());
            let extent = extent.ok_or(Malformed { what: "redo of an absent extent" })?;
            let fits = |position: u64, bytes: usize| check_patch(extent, position, bytes);
            match record {
                Record::Staged { position, bytes, .. } => fits(*position, bytes.len())?,
                Record::Applied { patches, .. } => {
                    patches.iter().try_for_each(|(position, bytes)| fits(*position, bytes.len()))?;
                }
                Record::Logged { page, bytes, .. } => check_logged(extent, *page, bytes.len())?,
                _ => return Err(Malformed { what: "a record that is no redo in a checkpoint" }),
            }
        }
        Ok((index, redo))
    }
}

fn updating(extent: &mut Extent) -> Result<&mut Updating, Malformed> {
    extent.updates.as_mut().ok_or(Malformed { what: "an update of an extent that has none" })
}

/// Whether a patch is of whole granules in blocks that there can be.
fn check_patch(extent: &Extent, position: u64, bytes: usize) -> Result<(), Malformed> {
    let granule = u64::from(extent.granule.bytes());
    let last = position.checked_add(bytes as u64).and_then(|end| end.checked_sub(1));
    let sound = bytes > 0
        && position.is_multiple_of(granule)
        && (bytes as u64).is_multiple_of(granule)
        && last.is_some_and(|last| extent.granule_at(last).is_some());
    if sound { Ok(()) } else { Err(Malformed { what: "place of an update" }) }
}

/// Whether a record of a log lies in the reserve.
fn check_logged(extent: &Extent, page: u64, bytes: usize) -> Result<(), Malformed> {
    let updating = extent.updates.as_ref().ok_or(Malformed { what: "a log of an extent that has none" })?;
    let end = page.checked_add((bytes as u64).div_ceil(UNIT_BYTES));
    let sound = bytes > 0 && end.is_some_and(|end| end <= updating.reserve_units());
    if sound { Ok(()) } else { Err(Malformed { what: "place of a log record" }) }
}
