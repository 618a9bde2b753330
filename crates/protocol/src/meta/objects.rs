//! Objects: lookup, listing in pages, removal. An object's record lists its segments; each segment's layout has a
//! record of its own (`segments`).

use super::{
    buckets, keys, lost, names, segments,
    view::{Txn, View, ViewError},
};
use crate::{
    SegmentId, Time, Version,
    message::{KEY_BYTES_MAX, LIST_PAGE_MAX, MetaAnswer, MetaFault, ObjectRecord},
    policy::Pledge,
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
    /// The version that last changed bytes that were there.
    pub(super) contents: Version,
    pub(super) committed: Time,
    pub(super) segments: Vec<SegmentId>,
    /// What it did in place since it was last committed; none where that is nothing.
    pub(super) grown: Option<Growth>,
    /// What it promises beyond its bucket.
    pub(super) pledge: Pledge,
}

/// A time in which an object did nothing but grow in place. Versions that are given by growing are above all that were given
/// before, so that they are told from others by two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Growth {
    /// The version that was committed.
    from: Version,
    /// The first that was grown.
    first: Version,
}

/// An object as it was stored before pledges were.
#[derive(Deserialize)]
struct Unpledged {
    oldest: Earlier,
    grown: Option<Growth>,
}

/// An object as it was stored before growth was.
#[derive(Deserialize)]
struct Earlier {
    size: u64,
    version: Version,
    contents: Version,
    committed: Time,
    segments: Vec<SegmentId>,
}

impl Earlier {
    fn now(self, grown: Option<Growth>) -> StoredObject {
        let Self { size, version, contents, committed, segments } = self;
        StoredObject { size, version, contents, committed, segments, grown, pledge: Pledge::default() }
    }
}

impl StoredObject {
    /// Whether it was this version and has only grown in place since, if anything.
    pub(super) fn was(&self, version: Version) -> bool {
        let grown = |grown: Growth| version == grown.from || (grown.first..=self.version).contains(&version);
        version == self.version || self.grown.is_some_and(grown)
    }

    /// It with so many bytes more in its last segment, as of now.
    pub(super) fn longer(self, size: u64, version: Version, now: Time) -> Self {
        let grown = self.grown.unwrap_or(Growth { from: self.version, first: version });
        Self { size, version, committed: now, grown: Some(grown), ..self }
    }

    fn record(self, key: String) -> ObjectRecord {
        let Self { size, version, contents, committed, segments, pledge, grown: _ } = self;
        ObjectRecord { key, size, version, contents, committed, segments, pledge }
    }
}

/// The record of an object, if there is one.
pub(super) fn read(view: &dyn View, bucket: &str, key: &str) -> Result<Option<StoredObject>, ViewError> {
    let key = keys::object(bucket, key);
    view.get(&key)?.map(|value| parse(&key, &value)).transpose()
}

/// An object's record as it is stored now, or as it was before.
fn parse(key: &[u8], value: &[u8]) -> Result<StoredObject, ViewError> {
    // An earlier one ends where the others go on: none is taken for another.
    let whole = keys::parse("object", key, value);
    whole
        .or_else(|_| keys::parse("object", key, value).map(|Unpledged { oldest, grown }| oldest.now(grown)))
        .or_else(|_| keys::parse("object", key, value).map(|oldest: Earlier| oldest.now(None)))
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

/// Removes an object; its segments are gone. Of one whose record is damaged nobody can say what they are: they are looked for later.
pub(super) fn remove(txn: &mut Txn<'_>, bucket: &str, key: &str) -> Result<MetaAnswer, MetaFault> {
    names::check_key(key)?;
    buckets::read(txn, bucket)?;
    if lost::give_up(txn, bucket, key)? {
        return Ok(MetaAnswer::Removed { freed: Vec::new() });
    }
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
            match parse(stored_key, value) {
                Ok(object) => objects.push(object.record(keys::object_key(bucket, stored_key)?.to_owned())),
                Err(damage) => view.left_out(stored_key, &damage),
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::MemoryStore;
    use serde::Serialize;

    /// The fields of the records that earlier builds wrote.
    #[derive(Serialize)]
    struct Before(u64, Version, Version, Time, Vec<SegmentId>);

    #[test]
    fn records_of_earlier_builds_are_read() {
        let mut store = MemoryStore::new();
        let mut txn = Txn::new(&store);
        let growth = Growth { from: Version(3), first: Version(6) };
        for (name, segments) in [("empty", vec![]), ("full", vec![SegmentId(4), SegmentId(1 << 40)])] {
            let before = Before(9, Version(7), Version(5), Time(3), segments);
            keys::write(&mut txn, keys::object("b", name), &before);
            keys::write(&mut txn, keys::object("c", name), &(&before, None::<Growth>));
            keys::write(&mut txn, keys::object("d", name), &(&before, Some(growth)));
        }
        let writes = txn.into_writes();
        store.apply(writes);
        for (name, segments) in [("empty", vec![]), ("full", vec![SegmentId(4), SegmentId(1 << 40)])] {
            let (version, contents, committed) = (Version(7), Version(5), Time(3));
            let (size, grown, pledge) = (9, None, Pledge::default());
            let expected = StoredObject { size, version, contents, committed, segments, grown, pledge };
            for (bucket, grown) in [("c", None), ("d", Some(growth))] {
                let read = read(&store, bucket, name).expect("a whole record").expect("it is there");
                assert_eq!(read, StoredObject { grown, ..expected.clone() });
            }
            let pledge = Pledge { tolerate: 3, sites: 2 };
            let expected = StoredObject { pledge, ..expected };
            let read = read(&store, "b", name).expect("a whole record").expect("it is there");
            assert_eq!(StoredObject { pledge, ..read.clone() }, expected);
            assert!(read.was(version) && !read.was(Version(6)) && !read.was(Version(8)));
            let mut txn = Txn::new(&store);
            let longer = expected.longer(10, Version(12), Time(4)).longer(11, Version(15), Time(5));
            write(&mut txn, "b", name, &longer);
            let read = super::read(&txn, "b", name).expect("a whole record").expect("it is there");
            assert_eq!(read, longer);
            // Between the version committed and the first that was grown others were given, not to this object.
            let was = |version| read.was(Version(version));
            assert!([7, 12, 15].into_iter().all(was) && ![6, 8, 11, 16].into_iter().any(was));
        }
    }
}
