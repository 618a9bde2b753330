//! Numbers that are given out once and never again, and the cluster's own record.

use super::{
    buckets::BUCKETS_MAX,
    keys,
    view::{Txn, View, ViewError},
};
use crate::{ClusterId, Epoch, IntentId, SegmentId, Version};
use serde::{Deserialize, Serialize};

/// The cluster's own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cluster {
    cluster: ClusterId,
}

/// The last number given out of each kind; the first is 1, so 0 names nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counters {
    version: u64,
    segment: u64,
    intent: u64,
    epoch: u64,
    /// Buckets that there are.
    pub(super) buckets: u32,
}

/// What a new put is given.
pub(super) struct Fresh {
    pub(super) intent: IntentId,
    pub(super) version: Version,
    pub(super) epoch: Epoch,
}

impl Counters {
    pub(super) fn read(view: &dyn View) -> Result<Self, ViewError> {
        Ok(keys::read(view, "counters", &keys::counters())?.unwrap_or_default())
    }

    pub(super) fn write(&self, txn: &mut Txn<'_>) {
        keys::write(txn, keys::counters(), self);
    }

    /// Names for one put.
    pub(super) fn put(&mut self) -> Fresh {
        self.intent += 1;
        self.version += 1;
        self.epoch += 1;
        Fresh { intent: IntentId(self.intent), version: Version(self.version), epoch: Epoch(self.epoch) }
    }

    /// A version above all that were given, which nothing is stored for.
    pub(super) fn next_version(txn: &mut Txn<'_>) -> Result<Version, ViewError> {
        let mut counters = Self::read(txn)?;
        counters.version += 1;
        counters.write(txn);
        Ok(Version(counters.version))
    }

    /// The first of `count` new segments with consecutive names.
    pub(super) fn segments(&mut self, count: u32) -> SegmentId {
        let first = self.segment + 1;
        self.segment += u64::from(count);
        SegmentId(first)
    }

    /// Whether `segment` was ever given out.
    pub(super) fn gave(&self, segment: SegmentId) -> bool {
        segment.0 >= 1 && segment.0 <= self.segment
    }
}

/// More names than are given out between two copies of a store.
const SKIPPED: u64 = 1 << 40;
/// More names than are ever given out: what was given, and is gone, leaves no record to know it by.
const SKIPPED_UNKNOWN: u64 = 1 << 48;

/// The store was put back from an older copy: goes on with names that were not given out since. Segments that were are gone
/// from now on, which frees what storage servers have of them. Where the record of what was given out is damaged, goes on far above all
/// that there is.
///
/// # Errors
/// When the store cannot be read or its record is of another build.
pub fn skip_ahead(txn: &mut Txn<'_>) -> Result<(), ViewError> {
    let key = keys::counters();
    if let Some(value) = txn.get(&key)?.filter(|value| !keys::is_whole(&key, value)) {
        txn.left_out(&key, &ViewError::Damaged { what: "counters", length: value.len() });
        rebuilt(txn)?.write(txn);
        return Ok(());
    }
    let Counters { version, segment, intent, epoch, buckets } = Counters::read(txn)?;
    let [version, segment, intent, epoch] =
        [version, segment, intent, epoch].map(|last| last.saturating_add(SKIPPED));
    Counters { version, segment, intent, epoch, buckets }.write(txn);
    Ok(())
}

/// Counters of a store that does not say any more what it has given out.
fn rebuilt(view: &dyn View) -> Result<Counters, ViewError> {
    let segment = keys::last_number(view, |from| keys::segments_from(SegmentId(from)))?;
    let granted = keys::last_number(view, |from| keys::grants_from(SegmentId(from)))?;
    let intent = keys::last_number(view, |from| keys::intents_from(IntentId(from)))?;
    // Versions and epochs name no records. Of each put there is one, as of intents, and of each growth a version: far less than is skipped.
    let last = segment.max(granted).max(intent).saturating_add(SKIPPED_UNKNOWN);
    let (from, to) = keys::buckets();
    let buckets = view.scan(&from, &to, BUCKETS_MAX as usize)?.len();
    let buckets = u32::try_from(buckets).expect("no more than were asked for");
    Ok(Counters { version: last, segment: last, intent: last, epoch: last, buckets })
}

/// The cluster that this store belongs to; absent in an empty store.
///
/// # Errors
/// When the store cannot be read or its record does not parse.
pub fn cluster(view: &dyn View) -> Result<Option<ClusterId>, ViewError> {
    Ok(keys::read::<Cluster>(view, "cluster", &keys::cluster())?.map(|record| record.cluster))
}

/// Makes an empty store that of `fresh` and gives the cluster it belongs to from now on: a store that has one keeps it.
///
/// # Errors
/// When the store cannot be read or its record does not parse.
pub fn establish(txn: &mut Txn<'_>, fresh: ClusterId) -> Result<ClusterId, ViewError> {
    if let Some(known) = cluster(txn)? {
        return Ok(known);
    }
    keys::write(txn, keys::cluster(), &Cluster { cluster: fresh });
    Ok(fresh)
}
