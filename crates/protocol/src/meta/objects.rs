//! Objects: lookup, listing in pages, removal. An object's record lists its segments; each segment's layout has a
//! record of its own (`segments`).

use super::{
    buckets, keys, names, segments,
    view::{Txn, View, ViewError},
};
use crate::{
    SegmentId, Time, Version,
    message::{KEY_BYTES_MAX, LIST_PAGE_MAX, MetaAnswer, MetaFault, ObjectRecord},
};
use serde::{Deserialize, Serialize};

/// A page is cut short here, so that objects of very many segments still fit into one answer.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Records read at once while a page is made: bounds memory where records are large.
const SCAN_STEP: usize = 64;

/// An object as stored; its key is the record's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredObject {
    pub(super) size: u64,
    pub(super) version: Version,
    /// The version that last changed its bytes.
    pub(super) contents: Version,
    pub(super) committed: Time,
    pub(super) segments: Vec<SegmentId>,
}

impl StoredObject {
    fn record(self, key: String) -> ObjectRecord {
        let Self { size, version, contents, committed, segments } = self;
        ObjectRecord { key, size, version, contents, committed, segments }
    }
}

/// The record of an object, if there is one.
pub(super) fn read(view: &dyn View, bucket: &str, key: &str) -> Result<Option<StoredObject>, ViewError> {
    keys::read(view, "object", &keys::object(bucket, key))
}

/// Writes the record of an object.
pub(super) fn write(txn: &mut Txn<'_>, bucket: &str, key: &str, object: &StoredObject) {
    keys::write(txn, keys::object(bucket, key), object);
}

/// An object and its layouts.
pub(super) fn lookup(view: &dyn View, bucket: &str, key: &str) -> Result<MetaAnswer, MetaFault> {
    let object = require(view, bucket, key)?;
    let segments = segments::layouts(view, &object.segments)?;
    let policy = buckets::read(view, bucket)?.policy;
    Ok(MetaAnswer::Object { object: object.record(key.to_owned()), segments, policy })
}

/// Removes an object; its segments are gone.
pub(super) fn remove(txn: &mut Txn<'_>, bucket: &str, key: &str) -> Result<MetaAnswer, MetaFault> {
    let object = require(txn, bucket, key)?;
    let freed = segments::take(txn, &object.segments)?;
    txn.delete(keys::object(bucket, key));
    Ok(MetaAnswer::Removed { freed })
}

/// A page of keys in byte order.
pub(super) fn list(
    view: &dyn View,
    bucket: &str,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<MetaAnswer, MetaFault> {
    buckets::read(view, bucket)?;
    for (what, text) in [("prefix", prefix), ("after", after.unwrap_or_default())] {
        if text.len() > KEY_BYTES_MAX {
            return Err(MetaFault::Invalid(format!(
                "{what} has {} bytes, keys have at most {KEY_BYTES_MAX}",
                text.len()
            )));
        }
    }
    if limit == 0 {
        return Err(MetaFault::Invalid(format!("a page of 0 entries: ask for 1 to {LIST_PAGE_MAX}")));
    }
    let limit = limit.min(LIST_PAGE_MAX) as usize;
    let (mut from, to) = keys::objects(bucket, prefix, after);
    let (mut objects, mut bytes) = (Vec::new(), 0);
    loop {
        let step = view.scan(&from, &to, SCAN_STEP)?;
        for (stored_key, value) in &step {
            bytes += stored_key.len() + value.len();
            // The first always fits, so that a listing goes on whatever its records are.
            if objects.len() == limit || (bytes > PAGE_BYTES_MAX && !objects.is_empty()) {
                return Ok(MetaAnswer::Page { objects, more: true });
            }
            let key = keys::object_key(bucket, stored_key)?.to_owned();
            objects.push(keys::parse::<StoredObject>("object", stored_key, value)?.record(key));
        }
        match step.last() {
            Some((last, _)) if step.len() == SCAN_STEP => {
                from.clone_from(last);
                from.push(0);
            }
            _ => return Ok(MetaAnswer::Page { objects, more: false }),
        }
    }
}

/// The record of an object that has to be there.
pub(super) fn require(view: &dyn View, bucket: &str, key: &str) -> Result<StoredObject, MetaFault> {
    names::check_key(key)?;
    buckets::read(view, bucket)?;
    read(view, bucket, key)?
        .ok_or_else(|| MetaFault::NoObject { bucket: bucket.to_owned(), key: key.to_owned() })
}
