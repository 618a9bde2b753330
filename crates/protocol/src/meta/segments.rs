//! What became of a segment: the question that a storage server's sweep asks before it frees anything.
//!
//! ```text
//!   never named ──begin, more──▶ Pending ──commit──▶ Committed ──replace, amend, remove──▶ Gone
//!                                   └──commit without it, abort, lease ended─────────────▶ Gone
//! ```
//!
//! A coded segment's record is its layout; one that holds pieces of another refers to that one. Committed says which
//! blocks the layout lists in that segment on the device that asks: none, where only others hold pieces of the name.
//!
//! Invariants: Gone is final, so it is said only of a segment that was named here and is neither pending nor
//! committed. A number beyond the counter is Pending: the store may have been put back from an older copy, and a
//! sweep must not free what it does not know. A put whose lease ended stays Pending until it is given up. So does, for the
//! sweep, a segment whose record is damaged, and what does not fit into the answer: it asks again, and others go on.

use super::{
    counters::Counters,
    intents::Intent,
    keys,
    view::{Txn, View, ViewError},
};
use crate::{
    DeviceId, Epoch, IndexRanges, IntentId, SegmentId,
    layout::{CodeKind, Piece, SegmentLayout},
    message::{
        Freed, MetaAnswer, MetaFault, SEGMENT_STATES_BYTES_MAX, SEGMENT_STATES_MAX, SegmentState, encode,
    },
    policy::Policy,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most bytes that what a change freed takes in its answer, which is stored: the sweep finds the rest.
const FREED_BYTES_MAX: usize = 2 << 20;

/// Consecutive segments named for a put; filed under the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) first: SegmentId,
    pub(super) intent: IntentId,
}

/// A committed segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Record {
    /// A coded segment.
    Coded(Committed),
    /// Pieces of this coded segment are stored under it.
    PieceOf(SegmentId),
}

/// A committed coded segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Committed {
    /// Bucket of the object that has it.
    bucket: String,
    /// Key of the object that has it.
    key: String,
    /// Where it lies.
    layout: SegmentLayout,
}

/// What a segment's record says: the object that has it and its layout; `None` where only pieces of another one are
/// stored under its name.
pub(super) fn parse(key: &[u8], value: &[u8]) -> Result<Option<(String, String, SegmentLayout)>, ViewError> {
    Ok(match keys::parse("segment", key, value)? {
        Record::Coded(Committed { bucket, key, layout }) => Some((bucket, key, layout)),
        Record::PieceOf(_) => None,
    })
}

/// Layouts of committed segments, in the order given.
pub(super) fn layouts(view: &dyn View, segments: &[SegmentId]) -> Result<Vec<SegmentLayout>, ViewError> {
    segments.iter().map(|&segment| coded(view, segment)).collect()
}

/// Makes the segments of an object gone; what its devices may free. Of one whose record is damaged nobody can say that: the
/// sweep finds it.
pub(super) fn take(txn: &mut Txn<'_>, segments: &[SegmentId]) -> Result<Vec<Freed>, ViewError> {
    let layouts = given_up(txn, segments)?;
    layouts.iter().for_each(|layout| erase(txn, layout));
    Ok(freed(Epoch::default(), &layouts, &[]))
}

/// Layouts of the segments of an object that will be gone, but for those whose records are damaged, which go now.
pub(super) fn given_up(txn: &mut Txn<'_>, segments: &[SegmentId]) -> Result<Vec<SegmentLayout>, ViewError> {
    let mut whole = Vec::with_capacity(segments.len());
    for &segment in segments {
        match coded(txn, segment) {
            Ok(layout) => whole.push(layout),
            Err(failed @ ViewError::Failed(_)) => return Err(failed),
            Err(damage) => {
                txn.left_out(&keys::segment(segment), &damage);
                txn.delete(keys::segment(segment));
                txn.delete(keys::degraded(segment));
            }
        }
    }
    Ok(whole)
}

/// Puts the layouts of `intent` in place of those `before`; what devices may free.
pub(super) fn replace(
    txn: &mut Txn<'_>,
    intent: &Intent,
    policy: &Policy,
    (before, after): (&[SegmentLayout], &[SegmentLayout]),
) -> Vec<Freed> {
    let old: BTreeMap<SegmentId, &SegmentLayout> =
        before.iter().map(|layout| (layout.segment, layout)).collect();
    let same = |layout: &SegmentLayout| old.get(&layout.segment).is_some_and(|&old| old == layout);
    // An amendment of one segment of thousands leaves the records of the others alone.
    let kept: BTreeSet<SegmentId> =
        after.iter().filter(|&layout| same(layout)).map(|layout| layout.segment).collect();
    let changed = |layout: &&SegmentLayout| !kept.contains(&layout.segment);
    before.iter().filter(changed).for_each(|layout| erase(txn, layout));
    for layout in after.iter().filter(changed) {
        let named = layout.pieces().map(|(_, piece)| piece.segment);
        for segment in named.filter(|&segment| segment != layout.segment).collect::<BTreeSet<_>>() {
            keys::write(txn, keys::segment(segment), &Record::PieceOf(layout.segment));
        }
        record_of(txn, (&intent.bucket, &intent.key), layout.clone());
        if layout.missing_chunks(policy) > 0 {
            txn.put(keys::degraded(layout.segment), Vec::new());
        }
    }
    freed(intent.epoch, before, after)
}

/// Writes the layout of an object's segment that lists the pieces that it listed before.
pub(super) fn record_of(txn: &mut Txn<'_>, (bucket, key): (&str, &str), layout: SegmentLayout) {
    let (bucket, key, name) = (bucket.to_owned(), key.to_owned(), layout.segment);
    keys::write(txn, keys::segment(name), &Record::Coded(Committed { bucket, key, layout }));
}

/// Makes a segment gone.
pub(super) fn erase(txn: &mut Txn<'_>, layout: &SegmentLayout) {
    txn.delete(keys::segment(layout.segment));
    if matches!(layout.code.kind, CodeKind::ReedSolomon { .. }) {
        txn.delete(keys::degraded(layout.segment));
    }
    layout.pieces().for_each(|(_, piece)| txn.delete(keys::segment(piece.segment)));
}

/// What is listed `before` and no more `after`, by device and segment; not all of it where it is very much.
fn freed(epoch: Epoch, before: &[SegmentLayout], after: &[SegmentLayout]) -> Vec<Freed> {
    let listed: BTreeMap<(DeviceId, SegmentId), &Piece> = after
        .iter()
        .flat_map(SegmentLayout::pieces)
        .map(|(device, piece)| ((device, piece.segment), piece))
        .collect();
    let (mut freed, mut bytes) = (Vec::new(), 0);
    for layout in before {
        // A put that began before the version it replaces has the lower epoch.
        let epoch = epoch.max(layout.epoch);
        for (device, piece) in layout.pieces() {
            let segment = piece.segment;
            let keep = listed.get(&(device, segment)).map(|&kept| kept.blocks.clone()).unwrap_or_default();
            if keep != piece.blocks {
                let entry = Freed { device, segment, keep, epoch };
                bytes += encode(&entry).len();
                if bytes > FREED_BYTES_MAX {
                    return freed;
                }
                freed.push(entry);
            }
        }
    }
    freed
}

/// The object that has a coded segment, and its layout, if it is there.
pub(super) fn of_object(
    view: &dyn View,
    segment: SegmentId,
) -> Result<Option<(String, String, SegmentLayout)>, ViewError> {
    Ok(match record(view, segment)? {
        Some(Record::Coded(Committed { bucket, key, layout })) => Some((bucket, key, layout)),
        Some(Record::PieceOf(_)) | None => None,
    })
}

/// What became of each of `segments`, for `device`.
pub(super) fn states(
    view: &dyn View,
    segments: &[SegmentId],
    device: DeviceId,
) -> Result<MetaAnswer, MetaFault> {
    if segments.len() > SEGMENT_STATES_MAX {
        return Err(MetaFault::Invalid(format!(
            "{} segments asked about at once, at most {SEGMENT_STATES_MAX} are allowed",
            segments.len()
        )));
    }
    let mut distinct = BTreeSet::new();
    if let Some(twice) = segments.iter().find(|&&segment| !distinct.insert(segment)) {
        return Err(MetaFault::Invalid(format!("segment {twice} is asked about twice")));
    }
    let counters = Counters::read(view)?;
    let (mut states, mut bytes) = (Vec::with_capacity(segments.len()), 0);
    for &segment in segments {
        // One may take nearly as many bytes as an answer has, and not more.
        let state = if bytes < SEGMENT_STATES_BYTES_MAX {
            state(view, &counters, segment, device)?
        } else {
            SegmentState::Pending
        };
        bytes += encode(&state).len();
        states.push(state);
    }
    Ok(MetaAnswer::SegmentStates(states))
}

/// What became of a segment, for `device`; Pending where a damaged record does not say.
fn state(
    view: &dyn View,
    counters: &Counters,
    segment: SegmentId,
    device: DeviceId,
) -> Result<SegmentState, ViewError> {
    let key = keys::segment(segment);
    let Some(value) = view.get(&key)? else {
        if !counters.gave(segment) {
            return Ok(SegmentState::Pending);
        }
        return Ok(match granted(view, segment) {
            Ok(None) => SegmentState::Gone,
            Ok(Some(_)) => SegmentState::Pending,
            Err(error) => unsure(view, &key, error)?,
        });
    };
    let layout = match keys::parse("segment", &key, &value) {
        Ok(Record::Coded(committed)) => Ok(committed.layout),
        // Its whole was given up though it could not be read ([`given_up`]), which is not known of its pieces.
        Ok(Record::PieceOf(whole)) if view.get(&keys::segment(whole))?.is_none() => {
            return Ok(SegmentState::Gone);
        }
        Ok(Record::PieceOf(whole)) => coded(view, whole),
        Err(error) => Err(error),
    };
    match layout {
        Ok(layout) => {
            let piece = layout.holder(device).and_then(|holder| holder.piece(segment));
            let keep = piece.map_or_else(IndexRanges::new, |piece| piece.blocks.clone());
            Ok(SegmentState::Committed { keep, epoch: layout.epoch })
        }
        Err(error) => unsure(view, &key, error),
    }
}

/// Damage leaves it open what became of a segment, and so frees nothing; a store that cannot be read says nothing at all.
fn unsure(view: &dyn View, key: &[u8], error: ViewError) -> Result<SegmentState, ViewError> {
    if let ViewError::Failed(_) = error {
        return Err(error);
    }
    view.left_out(key, &error);
    Ok(SegmentState::Pending)
}

/// Where a coded segment lies.
pub(super) fn layout(view: &dyn View, segment: SegmentId) -> Result<MetaAnswer, MetaFault> {
    Ok(MetaAnswer::Layout(match record(view, segment)? {
        Some(Record::Coded(committed)) => Some(committed.layout),
        Some(Record::PieceOf(_)) | None => None,
    }))
}

/// The put for which `segment` is named, if it is not over.
fn granted(view: &dyn View, segment: SegmentId) -> Result<Option<IntentId>, ViewError> {
    let (from, to) = keys::grants_from(segment);
    let Some((key, value)) = view.scan(&from, &to, 1)?.pop() else { return Ok(None) };
    let grant: Grant = keys::parse("grant", &key, &value)?;
    Ok((grant.first <= segment).then_some(grant.intent))
}

/// The layout of a coded segment that has to be there.
fn coded(view: &dyn View, segment: SegmentId) -> Result<SegmentLayout, ViewError> {
    match record(view, segment)? {
        Some(Record::Coded(committed)) => Ok(committed.layout),
        Some(Record::PieceOf(_)) | None => Err(ViewError::Damaged { what: "missing segment", length: 0 }),
    }
}

fn record(view: &dyn View, segment: SegmentId) -> Result<Option<Record>, ViewError> {
    keys::read(view, "segment", &keys::segment(segment))
}
