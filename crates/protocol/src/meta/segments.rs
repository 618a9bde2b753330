//! What became of a segment: the question that a storage server's sweep asks before it frees anything.
//!
//! ```text
//!   never named ──begin, more──▶ Pending ──commit──▶ Committed ──replace, remove──▶ Gone
//!                                   └──commit without it, abort, lease ended──────▶ Gone
//! ```
//!
//! Invariants: Gone is final, so it is said only of a segment that was named here and is neither pending nor
//! committed. A number beyond the counter is Pending: the store may have been put back from an older copy, and a
//! sweep must not free what it does not know. A put whose lease ended stays Pending until it is given up.

use super::{
    counters::Counters,
    keys,
    view::{Txn, View, ViewError},
};
use crate::{
    DeviceId, IndexRanges, IntentId, SegmentId,
    layout::SegmentLayout,
    message::{MetaAnswer, MetaFault, SEGMENT_STATES_MAX, SegmentState},
};
use serde::{Deserialize, Serialize};

/// Consecutive segments named for a put; filed under the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) first: SegmentId,
    pub(super) intent: IntentId,
}

/// A committed segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Committed {
    /// Bucket of the object that has it.
    pub(super) bucket: String,
    /// Key of the object that has it.
    pub(super) key: String,
    /// Where it lies.
    pub(super) layout: SegmentLayout,
}

/// Layouts of committed segments, in the order given.
pub(super) fn layouts(view: &dyn View, segments: &[SegmentId]) -> Result<Vec<SegmentLayout>, ViewError> {
    segments
        .iter()
        .map(|&segment| {
            let committed = committed(view, segment)?;
            committed
                .map(|committed| committed.layout)
                .ok_or(ViewError::Damaged { what: "missing segment", length: 0 })
        })
        .collect()
}

/// Makes committed segments gone; gives their layouts.
pub(super) fn take(txn: &mut Txn<'_>, segments: &[SegmentId]) -> Result<Vec<SegmentLayout>, ViewError> {
    let layouts = layouts(txn, segments)?;
    segments.iter().for_each(|&segment| txn.delete(keys::segment(segment)));
    Ok(layouts)
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
    let counters = Counters::read(view)?;
    let state = |&segment: &SegmentId| -> Result<SegmentState, ViewError> {
        if let Some(Committed { layout, .. }) = committed(view, segment)? {
            let holder = layout.holders.into_iter().find(|holder| holder.device == device);
            let keep = holder.map_or_else(IndexRanges::new, |holder| holder.blocks);
            return Ok(SegmentState::Committed { keep, epoch: layout.epoch });
        }
        let pending = !counters.gave(segment) || granted(view, segment)?.is_some();
        Ok(if pending { SegmentState::Pending } else { SegmentState::Gone })
    };
    Ok(MetaAnswer::SegmentStates(segments.iter().map(state).collect::<Result<_, _>>()?))
}

/// The put for which `segment` is named, if it is not over.
fn granted(view: &dyn View, segment: SegmentId) -> Result<Option<IntentId>, ViewError> {
    let (from, to) = keys::grants_from(segment);
    let Some((key, value)) = view.scan(&from, &to, 1)?.pop() else { return Ok(None) };
    let grant: Grant = keys::parse("grant", &key, &value)?;
    Ok((grant.first <= segment).then_some(grant.intent))
}

fn committed(view: &dyn View, segment: SegmentId) -> Result<Option<Committed>, ViewError> {
    keys::read(view, "segment", &keys::segment(segment))
}
