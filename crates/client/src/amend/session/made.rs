//! What an amendment has done so far, of however many segments at a time.

use crate::{amend::AmendReport, chunks::Fenced};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use steadfast_protocol::{DeviceId, SegmentId};

/// What one has done.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Segments named and not used yet.
    pub(super) names: VecDeque<SegmentId>,
    /// Segments that blocks were written under.
    pub(super) used: BTreeSet<SegmentId>,
    /// Where anything was written: to be freed where the object does not list it.
    pub(super) touched: BTreeSet<(DeviceId, SegmentId)>,
    /// Segments that cannot be changed in place any more under the epoch that their layout has.
    pub(super) fenced: BTreeSet<SegmentId>,
    /// How those are read that were fenced to be: what is decoded is fenced just before.
    pub(super) ended: BTreeMap<SegmentId, Fenced>,
    /// Devices that refused to keep bandwidth for the segment that is changed now: nothing of it is written there.
    pub(super) refused: BTreeSet<DeviceId>,
    pub(super) report: AmendReport,
    /// Payload bytes that this client sent: where a node encodes a segment, those of the segment alone.
    pub(super) sent_bytes: u64,
}

impl Made {
    /// Something of a segment may lie on these devices, and on no others.
    pub(super) fn only_touched(&mut self, segment: SegmentId, devices: BTreeSet<DeviceId>) {
        self.touched.retain(|(_, of)| *of != segment);
        self.touched.extend(devices.into_iter().map(|device| (device, segment)));
    }
}
