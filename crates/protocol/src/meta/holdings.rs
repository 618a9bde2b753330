//! What lies on a device, and what is missing on any. Layouts are filed by segment, so finding what a device holds takes a look at all of
//! them; each request looks at so many, and says where to go on. Segments are named in the order that puts begin, so what is
//! committed while somebody looks mostly comes at the end, where the look goes last.

use super::{
    buckets, keys, segments,
    view::{View, ViewError},
};
use crate::{
    DeviceId, SegmentId,
    layout::{ParityGeometry, SegmentLayout},
    message::{Held, Holding, MetaAnswer, MetaFault, OBJECTS_ON_PAGE_MAX},
    meta::DEVICES_MAX,
};
use std::collections::{BTreeMap, BTreeSet};

/// Records that one request looks at: ten milliseconds or so of the server's time.
const RECORDS_MAX: usize = 4096;
/// Bytes of records after which a request ends: layouts of very many devices are large.
const BYTES_MAX: usize = 8 << 20;
/// Records read at once: bounds memory where they are large.
const SCAN_STEP: usize = 64;

/// A page of the segments with blocks on `devices`.
pub(super) fn objects_on(
    view: &dyn View,
    devices: &[DeviceId],
    after: Option<SegmentId>,
    limit: u32,
) -> Result<MetaAnswer, MetaFault> {
    if devices.len() > DEVICES_MAX {
        return Err(MetaFault::Invalid(format!(
            "{} devices asked about, at most {DEVICES_MAX} are allowed",
            devices.len()
        )));
    }
    if limit == 0 {
        return Err(MetaFault::Invalid(format!("a page of 0 entries: ask for 1 to {OBJECTS_ON_PAGE_MAX}")));
    }
    let devices: BTreeSet<DeviceId> = devices.iter().copied().collect();
    let limit = limit.min(OBJECTS_ON_PAGE_MAX) as usize;
    let mut held = Vec::new();
    let next = look(view, after, |bucket, key, layout| {
        let holders = layout.holders.iter().filter(|holder| devices.contains(&holder.device));
        let blocks: u32 = holders.map(|holder| holder.count()).sum();
        if blocks > 0 {
            let bytes = u64::from(blocks) * u64::from(layout.block_bytes);
            let (segment, length) = (layout.segment, layout.length);
            held.push(Held { bucket, key, segment, length, blocks, bytes });
        }
        held.len() < limit
    })?;
    Ok(MetaAnswer::ObjectsOn { held, next })
}

/// A page of the segments that have fewer chunks than their buckets' codes: what is missing of each.
pub(super) fn degraded(
    view: &dyn View,
    after: Option<SegmentId>,
    limit: u32,
) -> Result<MetaAnswer, MetaFault> {
    if limit == 0 {
        return Err(MetaFault::Invalid(format!("a page of 0 entries: ask for 1 to {OBJECTS_ON_PAGE_MAX}")));
    }
    let limit = limit.min(OBJECTS_ON_PAGE_MAX) as usize;
    let (mut held, mut next, mut looked) = (Vec::new(), after, 0);
    // One that is damaged is not what the page is full of.
    loop {
        let (from, to) = keys::degraded_after(next);
        let entries = view.scan(&from, &to, limit - held.len())?;
        looked += entries.len();
        for (stored, _) in &entries {
            let segment = keys::segment_of(stored)?;
            next = Some(segment);
            match lacking(view, segment) {
                Ok(one) => held.push(one),
                Err(failed @ ViewError::Failed(_)) => return Err(failed.into()),
                Err(damage) => view.left_out(stored, &damage),
            }
        }
        if entries.is_empty() {
            return Ok(MetaAnswer::ObjectsOn { held, next: None });
        }
        if held.len() == limit || looked >= RECORDS_MAX {
            return Ok(MetaAnswer::ObjectsOn { held, next });
        }
    }
}

/// What a segment lacks that has fewer chunks than its bucket's code.
fn lacking(view: &dyn View, segment: SegmentId) -> Result<Held, ViewError> {
    let missing_record = ViewError::Damaged { what: "missing degraded segment", length: 0 };
    let (bucket, key, layout) = segments::of_object(view, segment)?.ok_or(missing_record)?;
    let missing = layout.missing_chunks(&buckets::policy(view, &bucket)?);
    let blocks = missing * ParityGeometry::of_layout(&layout).map_or(0, |shape| shape.blocks);
    let (length, bytes) = (layout.length, u64::from(blocks) * u64::from(layout.block_bytes));
    Ok(Held { bucket, key, segment, length, blocks, bytes })
}

/// What each device holds of the next segments.
pub(super) fn sums(view: &dyn View, after: Option<SegmentId>) -> Result<MetaAnswer, MetaFault> {
    let mut sums: BTreeMap<DeviceId, Holding> = BTreeMap::new();
    let next = look(view, after, |_, _, layout| {
        for holder in &layout.holders {
            let sum = sums
                .entry(holder.device)
                .or_insert_with(|| Holding { device: holder.device, ..Holding::default() });
            sum.segments += 1;
            sum.blocks += u64::from(holder.count());
            sum.bytes += u64::from(holder.count()) * u64::from(layout.block_bytes);
        }
        true
    })?;
    Ok(MetaAnswer::Holdings { holdings: sums.into_values().collect(), next })
}

/// Shows the next layouts until `more` has seen enough or the bound is reached; where to go on.
pub(super) fn look(
    view: &dyn View,
    after: Option<SegmentId>,
    mut more: impl FnMut(String, String, SegmentLayout) -> bool,
) -> Result<Option<SegmentId>, ViewError> {
    let (mut from, to) = keys::segments_after(after);
    let (mut records, mut bytes) = (0, 0);
    loop {
        let step = view.scan(&from, &to, SCAN_STEP)?;
        for (stored, value) in &step {
            records += 1;
            bytes += value.len();
            let enough = match segments::parse(stored, value) {
                Ok(Some((bucket, key, layout))) => !more(bucket, key, layout),
                Ok(None) => false,
                Err(damage) => {
                    view.left_out(stored, &damage);
                    false
                }
            };
            if enough || records == RECORDS_MAX || bytes > BYTES_MAX {
                return keys::segment_of(stored).map(Some);
            }
        }
        match step.last() {
            Some((last, _)) if step.len() == SCAN_STEP => {
                from.clone_from(last);
                from.push(0);
            }
            _ => return Ok(None),
        }
    }
}
