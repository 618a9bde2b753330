//! Content that is newer than the medium: granules whose redo is recorded and which are not in place yet. No I/O.
//!
//! For each segment, two layers over the medium:
//!
//! ```text
//! queue   changes in the order they were recorded; the first is a staged update that nobody released
//! ready   the newest content of each granule whose changes left the queue: may be written in place
//! medium
//! ```
//!
//! A staged update leaves the queue when it is released and all before it have left; a change that is not held waits
//! in the queue only behind one that is. So the medium under the queue still has what the first update replaced, and
//! the difference of each can be formed again at any time. A granule in `ready` may be written once the commit that it
//! waits for is durable: that of its redo, or of its release.
//!
//! On a medium that positions, what lies between granules of `ready` and stays is written with them. It has no redo, changes nothing,
//! and is dropped at will, unless a write over it failed: what is there then is not known, and it is a change as any other.
//!
//! What finds that its place takes no writes is *kept*: it stays in `ready`, and its redo in the checkpoints, until it is changed anew,
//! its block or extent goes, or the device is opened again.
//!
//! Live operation and replay give the same records to [`Overlay::follow`].

use std::collections::{BTreeMap, VecDeque, btree_map::Entry};

use bytes::Bytes;

use crate::{
    checksum,
    ids::SegmentId,
    index::{Extent, Index, Record},
};

/// Bytes of a redo record and of each of its patches beside their content, at most.
const REDO_BYTES: u64 = 64;

/// New content at a position, with its checksums.
#[derive(Debug, Clone)]
pub(super) struct Patch {
    pub(super) position: u64,
    pub(super) bytes: Bytes,
    pub(super) sums: Vec<u32>,
}

/// One change that is not allowed in place yet.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The version that a staged update makes; `None`: not held itself.
    pub(super) version: Option<u64>,
    /// Of a parity chunk: which version of which data chunk it is.
    pub(super) of: Option<(u16, u64)>,
    pub(super) patches: Vec<Patch>,
    record_bytes: u64,
}

/// A granule that may be written in place.
#[derive(Debug, Clone)]
pub(super) struct Ready {
    pub(super) bytes: Bytes,
    pub(super) sum: u32,
    /// The commit that must be durable first.
    pub(super) commit: u64,
    kind: Kind,
}

/// Why a granule is to go in place, or stays here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It differs from what is there.
    Changed,
    /// The medium has just this, and it is only written with its neighbours.
    Filler,
    /// Its place takes no writes.
    Kept,
}

#[derive(Debug, Default)]
struct Layers {
    queue: VecDeque<Change>,
    /// By position.
    ready: BTreeMap<u64, Ready>,
    /// How many of those are fillers, and how many are kept.
    fillers: usize,
    kept: usize,
    granule: u64,
}

impl Layers {
    /// What differs from what is in place.
    fn changed(&self) -> impl Iterator<Item = (&u64, &Ready)> {
        self.ready.iter().filter(|(_, ready)| ready.kind != Kind::Filler)
    }

    /// Bytes that may go in place, with fillers.
    fn ready_bytes(&self) -> u64 {
        (self.ready.len() - self.kept) as u64 * self.granule
    }

    /// Bytes of the redo of one granule, at most.
    fn redo_bytes(&self) -> u64 {
        REDO_BYTES + self.granule
    }
}

/// All of a device.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    segments: BTreeMap<SegmentId, Layers>,
    ready_bytes: u64,
    queued_bytes: u64,
    kept_bytes: u64,
}

impl Patch {
    fn new(extent: &Extent, position: u64, bytes: &Bytes) -> Patch {
        let granule = u64::from(extent.granule.bytes());
        let sums = (position..)
            .step_by(granule as usize)
            .zip(bytes.chunks(granule as usize))
            .map(|(at, data)| checksum::sum(data, &extent.tag(at).expect("checked with the record")))
            .collect();
        Patch { position, bytes: bytes.clone(), sums }
    }

    /// Its granule at this position.
    fn granule(&self, position: u64, granule: u64) -> Option<(&[u8], u32)> {
        let from = usize::try_from(position.checked_sub(self.position)?).ok()?;
        let bytes = self.bytes.get(from..from + granule as usize)?;
        Some((bytes, self.sums[from / granule as usize]))
    }
}

impl Overlay {
    /// Bytes that may go in place, with what is written between them.
    pub(super) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// Bytes of redo that are held.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Bytes of the redo of what is kept, at most.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Whether anything of a segment is newer than the medium.
    pub(super) fn covers(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Segments with held changes, and the lowest version of those.
    pub(super) fn held_segments(&self) -> impl Iterator<Item = (SegmentId, u64)> + '_ {
        self.segments.iter().filter_map(|(segment, layers)| {
            // A queue begins with one that is held.
            Some((*segment, layers.queue.front()?.version.unwrap_or(0)))
        })
    }

    /// Held changes of a segment, in order.
    pub(super) fn queue(&self, segment: SegmentId) -> impl ExactSizeIterator<Item = &Change> + '_ {
        static NONE: VecDeque<Change> = VecDeque::new();
        self.segments.get(&segment).map_or(&NONE, |layers| &layers.queue).iter()
    }

    /// The content of a granule that is newer than the medium's, looking at the first `changes` of the queue only.
    pub(super) fn get(&self, segment: SegmentId, position: u64, changes: usize) -> Option<(&[u8], u32)> {
        let layers = self.segments.get(&segment)?;
        let queued = layers.queue.iter().take(changes).rev().flat_map(|change| change.patches.iter().rev());
        queued
            .filter_map(|patch| patch.granule(position, layers.granule))
            .next()
            .or_else(|| layers.ready.get(&position).map(|ready| (&ready.bytes[..], ready.sum)))
    }

    /// Granules of a segment that may go in place and whose commit is durable, when so many commits are.
    pub(super) fn ready(&self, segment: SegmentId, commits: u64) -> impl Iterator<Item = (u64, &Ready)> + '_ {
        let ready = self.segments.get(&segment).into_iter().flat_map(|layers| &layers.ready);
        ready
            .filter(move |(_, ready)| ready.kind != Kind::Kept && ready.commit < commits)
            .map(|(position, ready)| (*position, ready))
    }

    /// Segments of which anything may go in place, durable or not, and how many bytes of each.
    pub(super) fn ready_by_segment(&self) -> impl Iterator<Item = (SegmentId, u64)> + '_ {
        self.segments
            .iter()
            .map(|(segment, layers)| (*segment, layers.ready_bytes()))
            .filter(|&(_, bytes)| bytes > 0)
    }

    /// Bytes of the redo of all that may go in place or is kept, at most.
    pub(super) fn ready_redo_bytes(&self) -> u64 {
        let of =
            |layers: &Layers| REDO_BYTES + (layers.ready.len() - layers.fillers) as u64 * layers.redo_bytes();
        self.segments.values().map(of).sum()
    }

    /// Granules that may go in place hold on to the records that they came with no longer: few of them may outlive many checkpoints.
    pub(super) fn detach_ready(&mut self) {
        for ready in self.segments.values_mut().flat_map(|layers| layers.ready.values_mut()) {
            ready.bytes = Bytes::copy_from_slice(&ready.bytes);
        }
    }

    /// This granule is in place, or has no place any more.
    pub(super) fn written(&mut self, segment: SegmentId, position: u64) {
        let Some(layers) = self.segments.get_mut(&segment) else { return };
        if let Some(ready) = layers.ready.remove(&position) {
            match ready.kind {
                Kind::Changed => self.ready_bytes -= layers.granule,
                Kind::Filler => {
                    self.ready_bytes -= layers.granule;
                    layers.fillers -= 1;
                }
                Kind::Kept => {
                    self.kept_bytes -= layers.redo_bytes();
                    layers.kept -= 1;
                }
            }
        }
        self.tidy(segment);
    }

    /// A write over this granule failed, and may have destroyed what was there: one that lay between changes is a change from now on. Its
    /// entry may be gone, where nothing is left that it lies between. There is no redo of it before the next checkpoint.
    pub(super) fn doubt(&mut self, segment: SegmentId, position: u64, bytes: &Bytes, sum: u32) {
        let layers = self.segments.entry(segment).or_default();
        layers.granule = bytes.len() as u64;
        match layers.ready.entry(position) {
            Entry::Occupied(mut ready) => {
                if ready.get().kind == Kind::Filler {
                    ready.get_mut().kind = Kind::Changed;
                    layers.fillers -= 1;
                }
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Ready { bytes: bytes.clone(), sum, commit: 0, kind: Kind::Changed });
                self.ready_bytes += layers.granule;
            }
        }
    }

    /// The place of this granule takes no writes.
    pub(super) fn keep(&mut self, segment: SegmentId, position: u64) {
        let Some(layers) = self.segments.get_mut(&segment) else { return };
        let Some(ready) = layers.ready.get_mut(&position) else { return };
        match std::mem::replace(&mut ready.kind, Kind::Kept) {
            Kind::Changed => {}
            Kind::Filler => layers.fillers -= 1,
            Kind::Kept => return,
        }
        layers.kept += 1;
        self.ready_bytes -= layers.granule;
        self.kept_bytes += layers.redo_bytes();
        self.tidy(segment);
    }

    /// Follows a record that the index took (or took before the checkpoint that holds it); it becomes durable with
    /// `commit`.
    pub(super) fn follow(&mut self, record: &Record, index: &Index, commit: u64) {
        match record {
            Record::Staged { segment, version, position, bytes, of } => {
                if let Some(extent) = index.get(*segment) {
                    let patch = Patch::new(extent, *position, bytes);
                    self.push(extent, (Some(*version), *of), vec![patch], record, commit);
                }
            }
            Record::Applied { segment, patches, .. } if !patches.is_empty() => {
                if let Some(extent) = index.get(*segment) {
                    let patches = patches.iter().map(|(at, bytes)| Patch::new(extent, *at, bytes)).collect();
                    self.push(extent, (None, None), patches, record, commit);
                }
            }
            Record::Released { segment, through } => self.drain(*segment, *through, commit),
            Record::Sealed { segment, .. } => {
                let (Some(extent), Some(layers)) = (index.get(*segment), self.segments.get(segment)) else {
                    return;
                };
                // Of blocks that it dropped: what is kept nobody would come by again.
                let has_no_place = |position: &u64| extent.granule_place(*position).is_none();
                let gone: Vec<u64> = layers.ready.keys().copied().filter(has_no_place).collect();
                for position in gone {
                    self.written(*segment, position);
                }
            }
            Record::Deleted { segment, .. } => {
                if let Some(layers) = self.segments.remove(segment) {
                    self.ready_bytes -= layers.ready_bytes();
                    self.kept_bytes -= layers.kept as u64 * layers.redo_bytes();
                    self.queued_bytes -= layers.queue.iter().map(|c| c.record_bytes).sum::<u64>();
                }
            }
            _ => {}
        }
    }

    /// All that is not in place as records, for a checkpoint: of each segment what may go there, then what came later and is held.
    pub(super) fn redo(&self) -> Vec<Record> {
        let applied = |segment, patches| {
            let (version, merged, log) = (None, Vec::new(), None);
            Record::Applied { segment, version, patches, merged, log }
        };
        let mut records = Vec::new();
        for (&segment, layers) in &self.segments {
            if layers.ready.len() > layers.fillers {
                let ready = layers.changed().map(|(at, ready)| (*at, ready.bytes.clone()));
                records.push(applied(segment, ready.collect()));
            }
            records.extend(layers.queue.iter().map(|change| match (change.version, &change.patches[..]) {
                (Some(version), [patch]) => Record::Staged {
                    segment,
                    version,
                    position: patch.position,
                    bytes: patch.bytes.clone(),
                    of: change.of,
                },
                (_, patches) => {
                    applied(segment, patches.iter().map(|p| (p.position, p.bytes.clone())).collect())
                }
            }));
        }
        records
    }

    /// Granules that stay, between those that may go in place with this commit.
    pub(super) fn fill(&mut self, segment: SegmentId, between: Vec<(u64, Bytes, u32)>, commit: u64) {
        let Some(layers) = self.segments.get_mut(&segment) else { return };
        for (position, bytes, sum) in between {
            if let Entry::Vacant(vacant) = layers.ready.entry(position) {
                vacant.insert(Ready { bytes, sum, commit, kind: Kind::Filler });
                layers.fillers += 1;
                self.ready_bytes += layers.granule;
            }
        }
        self.tidy(segment);
    }

    fn push(
        &mut self,
        extent: &Extent,
        (version, of): (Option<u64>, Option<(u16, u64)>),
        patches: Vec<Patch>,
        record: &Record,
        commit: u64,
    ) {
        let record_bytes = record.redo_bytes() as u64;
        let layers = self.segments.entry(extent.segment).or_default();
        layers.granule = u64::from(extent.granule.bytes());
        layers.queue.push_back(Change { version, of, patches, record_bytes });
        self.queued_bytes += record_bytes;
        // Nothing is released by it: version 0 is no update's.
        self.drain(extent.segment, 0, commit);
    }

    /// Moves what is not held any longer out of the queue.
    fn drain(&mut self, segment: SegmentId, through: u64, commit: u64) {
        let Some(layers) = self.segments.get_mut(&segment) else { return };
        while let Some(change) = layers.queue.pop_front_if(|c| c.version.is_none_or(|v| v <= through)) {
            self.queued_bytes -= change.record_bytes;
            for patch in change.patches {
                for (number, &sum) in patch.sums.iter().enumerate() {
                    let from = number * layers.granule as usize;
                    let bytes = patch.bytes.slice(from..from + layers.granule as usize);
                    let ready = Ready { bytes, sum, commit, kind: Kind::Changed };
                    let before = layers.ready.insert(patch.position + from as u64, ready);
                    match before.map(|before| before.kind) {
                        Some(Kind::Changed) => {}
                        Some(Kind::Filler) => layers.fillers -= 1,
                        Some(Kind::Kept) => {
                            self.ready_bytes += layers.granule;
                            self.kept_bytes -= layers.redo_bytes();
                            layers.kept -= 1;
                        }
                        None => self.ready_bytes += layers.granule,
                    }
                }
            }
        }
    }

    fn tidy(&mut self, segment: SegmentId) {
        let Some(layers) = self.segments.get_mut(&segment) else { return };
        if layers.ready.len() == layers.fillers + layers.kept {
            // Nothing is left that fillers lie between.
            self.ready_bytes -= std::mem::take(&mut layers.fillers) as u64 * layers.granule;
            layers.ready.retain(|_, ready| ready.kind == Kind::Kept);
            if layers.ready.is_empty() && layers.queue.is_empty() {
                self.segments.remove(&segment);
            }
        }
    }
}
