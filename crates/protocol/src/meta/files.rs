//! Files (objects of policy `parity`): made empty, and made longer where their last segment has room.
//!
//! A file that grows has the new bytes written in place first, behind the end, where nobody reads; then one change counts them
//! in. So a writer that dies in between has changed nothing that can be seen.
//!
//! Invariants: a length is raised only from the version that its writer knew, so what lies between the lengths is what that
//! writer has written there; the layout is otherwise the same, its epoch too, and whoever changes the segment in place by
//! the shorter one goes on. So does an amendment of other segments (`intents`): what was there reads as before.

use super::{
    buckets,
    counters::Counters,
    intents::check_base,
    names,
    objects::{self, StoredObject},
    segments,
    view::Txn,
};
use crate::{
    Time, Version,
    layout::ParityGeometry,
    message::{MetaAnswer, MetaFault},
    policy::{Parity, Pledge, Policy},
};

/// Makes an empty file, unless there is an object.
pub(super) fn create(txn: &mut Txn<'_>, now: Time, bucket: &str, key: &str) -> Result<MetaAnswer, MetaFault> {
    names::check_key(key)?;
    policy(txn, bucket)?;
    let version = match objects::read(txn, bucket, key)? {
        Some(there) => there.version,
        None => {
            let version = Counters::next_version(txn)?;
            let (size, segments) = (0, Vec::new());
            let (contents, committed, grown, pledge) = (version, now, None, Pledge::default());
            let object = StoredObject { size, version, contents, committed, segments, grown, pledge };
            objects::write(txn, bucket, key, &object);
            version
        }
    };
    Ok(MetaAnswer::Committed { version, freed: Vec::new() })
}

/// Raises the length of a file's last segment, so that the file has `size` bytes.
pub(super) fn grow(
    txn: &mut Txn<'_>,
    now: Time,
    (bucket, key): (&str, &str),
    base: Version,
    size: u64,
) -> Result<MetaAnswer, MetaFault> {
    let policy = policy(txn, bucket)?;
    let object = objects::require(txn, bucket, key)?;
    check_base(bucket, key, base, Some(object.version))?;
    let refuse = |reason: String| Err(MetaFault::BadLayout(reason));
    let Some(more) = size.checked_sub(object.size).filter(|more| *more > 0) else {
        return refuse(format!("{size} bytes are not more than the {} that the object has", object.size));
    };
    let last = object.segments.last().copied();
    let Some(mut layout) = segments::layouts(txn, last.as_slice())?.pop() else {
        return refuse("an object without segments has no room".to_owned());
    };
    let room = ParityGeometry::of_layout(&layout).map_or(0, |shape| shape.capacity_bytes());
    let room = room.min(policy.segment_bytes);
    match layout.length.checked_add(more).filter(|length| *length <= room) {
        Some(length) => layout.length = length,
        None => {
            let (segment, length) = (layout.segment, layout.length);
            return refuse(format!(
                "segment {segment}: {more} bytes more than {length}, it has room for {room}"
            ));
        }
    }
    let version = Counters::next_version(txn)?;
    segments::record_of(txn, (bucket, key), layout);
    objects::write(txn, bucket, key, &object.longer(size, version, now));
    Ok(MetaAnswer::Committed { version, freed: Vec::new() })
}

/// The policy of a bucket that has files.
fn policy(txn: &Txn<'_>, bucket: &str) -> Result<Parity, MetaFault> {
    match buckets::read(txn, bucket)?.policy {
        Policy::Parity(policy) => Ok(policy),
        other => Err(MetaFault::Invalid(format!(
            "bucket {bucket:?} has policy `{other}`: only objects of policy `parity` are made empty and grow"
        ))),
    }
}
