//! How records are named and written in the store. Byte order of keys is the order of what they name.
//!
//! ```text
//!  tag   rest of the key                               value
//!  0x00  -                                             Cluster { format, cluster }
//!  0x01  -                                             Counters { version, segment, intent, epoch, buckets }
//!  0x10  bucket                                        bucket record
//!  0x20  bucket, 0x00, key                             object record
//!  0x21  bucket, 0x00, key                             Lost { bucket, key, after } (its record was damaged)
//!  0x30  segment u64                                   layout of a committed segment, or the segment it is a piece of
//!  0x31  segment u64                                   - (degraded: fewer chunks than its bucket's code has)
//!  0x40  intent u64                                    intent
//!  0x41  expiry ns u64, intent u64                     - (leases in order of their end)
//!  0x42  last segment u64 of a grant                   Grant { first, intent }
//!  0x50  client u128, count u64                        answered request
//!  0x51  answered ns u64, client u128, count u64       - (answers in order of age)
//!  0x60  node u128                                     node record
//!  0x61  device u128                                   node that serves it, or was the last that did
//!  0x62  device u128                                   standing of a draining device
//!  0x63  device u128                                   device that was removed
//!  0x64  device u128                                   standing that a device begins with when it drains again
//! ```
//!
//! Integers in keys are big-endian. A value is [`FORMAT`], the CRC-32C of key and body (4 bytes,
//! little-endian), and the body as `postcard`: a store that does not check what it reads back cannot give a damaged
//! record for a good one, nor one record for another. A grant is filed under its
//! *last* segment, so that a forward scan from any of its segments finds it first.
//!
//! Invariants: bucket names and keys hold no NUL, so an object's key begins with no other bucket's prefix; UTF-8
//! holds no 0xFF, so a prefix's last byte plus one bounds it.

use super::view::{Key, Txn, Value, View, ViewError};
use crate::{DeviceId, IntentId, NodeId, RequestId, SegmentId, Time};
use crc_fast::{CrcAlgorithm, Digest};
use serde::{Serialize, de::DeserializeOwned};

/// Version of the records' format; first byte of every value. A record of a code names its graph by a seed, so other
/// graphs for the same seed are another format too: 2 has those of which a disk's rows complete each other, 3 layouts of several
/// pieces, 4 cyclic parity columns.
pub const FORMAT: u8 = 4;

/// The cluster's own record.
pub(super) fn cluster() -> Key {
    vec![0x00]
}

/// The counters.
pub(super) fn counters() -> Key {
    vec![0x01]
}

const BUCKET: u8 = 0x10;
const OBJECT: u8 = 0x20;
const LOST: u8 = 0x21;
const SEGMENT: u8 = 0x30;
const DEGRADED: u8 = 0x31;
const INTENT: u8 = 0x40;
const INTENT_EXPIRY: u8 = 0x41;
const GRANT: u8 = 0x42;
const REQUEST: u8 = 0x50;
const REQUEST_AGE: u8 = 0x51;
const NODE: u8 = 0x60;
const DEVICE: u8 = 0x61;
const DRAINING: u8 = 0x62;
const REMOVED: u8 = 0x63;
const RETURNED: u8 = 0x64;

/// Records that are counted for whoever watches a metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// A bucket.
    Bucket,
    /// An object.
    Object,
    /// A put that has begun and neither committed nor was given up.
    Intent,
    /// A committed segment with fewer chunks than its bucket's code has.
    Degraded,
}

impl Counted {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Bucket, Self::Object, Self::Intent, Self::Degraded];

    /// What the record stored at `key` counts as, if it is counted.
    pub fn of(key: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|counted| key.first() == Some(&counted.tag()))
    }

    /// From and to of all keys of the kind.
    pub fn keys(self) -> ([u8; 1], [u8; 1]) {
        ([self.tag()], [self.tag() + 1])
    }

    fn tag(self) -> u8 {
        match self {
            Self::Bucket => BUCKET,
            Self::Object => OBJECT,
            Self::Intent => INTENT,
            Self::Degraded => DEGRADED,
        }
    }
}

/// Whether the record stored at `key` is of what [`Query::Registry`](crate::message::Query::Registry) asks for: of a node, or a device.
pub fn is_of_registry(key: &[u8]) -> bool {
    key.first().is_some_and(|tag| (NODE..=RETURNED).contains(tag))
}

fn key(tag: u8, parts: &[&[u8]]) -> Key {
    let mut key = Key::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(tag);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

/// A bucket's record.
pub(super) fn bucket(name: &str) -> Key {
    key(BUCKET, &[name.as_bytes()])
}

/// From and to of all buckets.
pub(super) fn buckets() -> (Key, Key) {
    (vec![BUCKET], vec![BUCKET + 1])
}

/// An object's record.
pub(super) fn object(bucket: &str, object: &str) -> Key {
    key(OBJECT, &[bucket.as_bytes(), &[0], object.as_bytes()])
}

/// An object whose record was damaged and is gone.
pub(super) fn lost(bucket: &str, object: &str) -> Key {
    key(LOST, &[bucket.as_bytes(), &[0], object.as_bytes()])
}

/// From and to of all of those.
pub(super) fn all_lost() -> (Key, Key) {
    (vec![LOST], vec![LOST + 1])
}

/// From and to of a bucket's objects whose keys begin with `prefix` and come after `after`.
pub(super) fn objects(bucket: &str, prefix: &str, after: Option<&str>) -> (Key, Key) {
    let first = key(OBJECT, &[bucket.as_bytes(), &[0], prefix.as_bytes()]);
    let mut end = first.clone();
    let last = end.last_mut().expect("a key has a tag");
    // The NUL after the bucket or a byte of UTF-8: never 0xff.
    *last += 1;
    // The smallest key above `after` is `after` and a zero byte.
    let next = after.map(|after| key(OBJECT, &[bucket.as_bytes(), &[0], after.as_bytes(), &[0]]));
    (next.map_or(first.clone(), |next| next.max(first)), end)
}

/// The key of an object, from its record's key in `bucket`.
pub(super) fn object_key<'k>(bucket: &str, stored: &'k [u8]) -> Result<&'k str, ViewError> {
    let damaged = || ViewError::Damaged { what: "object key", length: stored.len() };
    core::str::from_utf8(stored.get(bucket.len() + 2..).ok_or_else(damaged)?).map_err(|_| damaged())
}

/// The layout of a committed segment.
pub(super) fn segment(segment: SegmentId) -> Key {
    key(SEGMENT, &[&segment.0.to_be_bytes()])
}

/// An intent.
pub(super) fn intent(intent: IntentId) -> Key {
    key(INTENT, &[&intent.0.to_be_bytes()])
}

/// The intent of such a key; none of a damaged one.
pub(super) fn intent_of(stored: &[u8]) -> Option<IntentId> {
    let bytes = stored.get(1..).and_then(|bytes| bytes.try_into().ok());
    bytes.map(|bytes| IntentId(u64::from_be_bytes(bytes)))
}

/// From and to of all intents from this one on.
pub(super) fn intents_from(first: IntentId) -> (Key, Key) {
    (intent(first), vec![INTENT + 1])
}

/// The end of an intent's lease.
pub(super) fn intent_expiry(expires: Time, intent: IntentId) -> Key {
    key(INTENT_EXPIRY, &[&expires.0.to_be_bytes(), &intent.0.to_be_bytes()])
}

/// From and to of leases that ended at `now` or before.
pub(super) fn expired_intents(now: Time) -> (Key, Key) {
    (vec![INTENT_EXPIRY], key(INTENT_EXPIRY, &[&now.0.saturating_add(1).to_be_bytes()]))
}

/// From and to of leases that end after `until`.
pub(super) fn intents_beyond(until: Time) -> (Key, Key) {
    (key(INTENT_EXPIRY, &[&until.0.saturating_add(1).to_be_bytes()]), vec![INTENT_EXPIRY + 1])
}

/// The intent of a key of [`expired_intents`] or [`intents_beyond`].
pub(super) fn expired_intent(stored: &[u8]) -> Result<IntentId, ViewError> {
    let bytes = stored.get(9..17).and_then(|bytes| bytes.try_into().ok());
    let damaged = ViewError::Damaged { what: "lease key", length: stored.len() };
    bytes.map(|bytes| IntentId(u64::from_be_bytes(bytes))).ok_or(damaged)
}

/// A grant of segments, by the last of them.
pub(super) fn grant(last: SegmentId) -> Key {
    key(GRANT, &[&last.0.to_be_bytes()])
}

/// From and to in which the first entry is the grant that may hold `segment`.
pub(super) fn grants_from(segment: SegmentId) -> (Key, Key) {
    (grant(segment), vec![GRANT + 1])
}

/// A request that was answered.
pub(super) fn request(id: RequestId) -> Key {
    key(REQUEST, &[&id.client.to_be_bytes(), &id.count.to_be_bytes()])
}

/// When a request was answered.
pub(super) fn request_age(answered: Time, id: RequestId) -> Key {
    key(REQUEST_AGE, &[&answered.0.to_be_bytes(), &id.client.to_be_bytes(), &id.count.to_be_bytes()])
}

/// From and to of requests answered at `until` or before.
pub(super) fn old_requests(until: Time) -> (Key, Key) {
    (vec![REQUEST_AGE], key(REQUEST_AGE, &[&until.0.saturating_add(1).to_be_bytes()]))
}

/// From and to of requests answered after `now`.
pub(super) fn requests_beyond(now: Time) -> (Key, Key) {
    (key(REQUEST_AGE, &[&now.0.saturating_add(1).to_be_bytes()]), vec![REQUEST_AGE + 1])
}

/// The request of a key of [`old_requests`] or [`requests_beyond`].
pub(super) fn old_request(stored: &[u8]) -> Result<RequestId, ViewError> {
    let client = stored.get(9..25).and_then(|bytes| bytes.try_into().ok()).map(u128::from_be_bytes);
    let count = stored.get(25..33).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    match (client, count) {
        (Some(client), Some(count)) => Ok(RequestId { client, count }),
        _ => Err(ViewError::Damaged { what: "request age key", length: stored.len() }),
    }
}

/// A node's record.
pub(super) fn node(node: NodeId) -> Key {
    key(NODE, &[&node.0.to_be_bytes()])
}

/// From and to of all nodes.
pub(super) fn nodes() -> (Key, Key) {
    (vec![NODE], vec![NODE + 1])
}

/// Which node serves a device, or was the last that did.
pub(super) fn device(device: DeviceId) -> Key {
    key(DEVICE, &[&device.0.to_be_bytes()])
}

/// The device that such a record, or one of a draining device, is of.
pub(super) fn device_of(stored: &[u8]) -> Result<DeviceId, ViewError> {
    let bytes = stored.get(1..).and_then(|bytes| bytes.try_into().ok());
    let damaged = ViewError::Damaged { what: "device key", length: stored.len() };
    bytes.map(|bytes| DeviceId(u128::from_be_bytes(bytes))).ok_or(damaged)
}

/// From and to of all devices that are known.
pub(super) fn devices() -> (Key, Key) {
    (vec![DEVICE], vec![DEVICE + 1])
}

/// A device that is draining.
pub(super) fn draining(device: DeviceId) -> Key {
    key(DRAINING, &[&device.0.to_be_bytes()])
}

/// From and to of all devices that are draining.
pub(super) fn all_draining() -> (Key, Key) {
    (vec![DRAINING], vec![DRAINING + 1])
}

/// A device that was removed.
pub(super) fn removed(device: DeviceId) -> Key {
    key(REMOVED, &[&device.0.to_be_bytes()])
}

/// Where the count of a device goes on that was draining and is active again.
pub(super) fn returned(device: DeviceId) -> Key {
    key(RETURNED, &[&device.0.to_be_bytes()])
}

/// From and to of all segments' records from this one on.
pub(super) fn segments_from(first: SegmentId) -> (Key, Key) {
    (segment(first), vec![SEGMENT + 1])
}

/// From and to of all segments' records after `after`.
pub(super) fn segments_after(after: Option<SegmentId>) -> (Key, Key) {
    segments_from(SegmentId(after.map_or(0, |after| after.0.saturating_add(1))))
}

/// That a committed segment has fewer chunks than its bucket's code.
pub(super) fn degraded(segment: SegmentId) -> Key {
    key(DEGRADED, &[&segment.0.to_be_bytes()])
}

/// From and to of all degraded segments after `after`.
pub(super) fn degraded_after(after: Option<SegmentId>) -> (Key, Key) {
    let first = after.map_or(0, |after| after.0.saturating_add(1));
    (degraded(SegmentId(first)), vec![DEGRADED + 1])
}

/// The greatest number of which there is a whole record; 0 where there is none. `from` gives from and to of their keys from a number on. A
/// damaged key may name any number, so those are left out.
pub(super) fn last_number(view: &dyn View, from: impl Fn(u64) -> (Key, Key)) -> Result<u64, ViewError> {
    // All whole records lie below.
    let mut end = from(0).1;
    loop {
        let Some((stored, value)) = last_below(view, &from, &end)? else { return Ok(0) };
        let number = stored.get(1..).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        match number {
            Some(number) if is_whole(&stored, &value) => return Ok(number),
            _ => {
                view.left_out(&stored, &ViewError::Damaged { what: "numbered", length: value.len() });
                end = stored;
            }
        }
    }
}

/// The last entry below `end` of those from a number on. A view is read forwards only: the number is looked for by halves.
fn last_below(
    view: &dyn View,
    from: impl Fn(u64) -> (Key, Key),
    end: &[u8],
) -> Result<Option<(Key, Value)>, ViewError> {
    let first_from = |number: u64| Ok(view.scan(&from(number).0, end, 1)?.pop());
    let Some(mut last) = first_from(0)? else { return Ok(None) };
    // There is one from `low` on, and none behind `high`.
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = high - (high - low) / 2;
        match first_from(middle)? {
            Some(found) => (last, low) = (found, middle),
            None => high = middle - 1,
        }
    }
    Ok(Some(last))
}

/// The segment of a key of [`segments_after`] or [`degraded_after`].
pub(super) fn segment_of(stored: &[u8]) -> Result<SegmentId, ViewError> {
    let bytes = stored.get(1..).and_then(|bytes| bytes.try_into().ok());
    let damaged = ViewError::Damaged { what: "segment key", length: stored.len() };
    bytes.map(|bytes| SegmentId(u64::from_be_bytes(bytes))).ok_or(damaged)
}

/// The head of a value: format and checksum.
const HEAD_BYTES: usize = 5;

/// A value as stored at `key`.
fn value<T: Serialize>(key: &[u8], record: &T) -> Value {
    let body = crate::message::encode(record);
    let mut value = Value::with_capacity(HEAD_BYTES + body.len());
    value.push(FORMAT);
    value.extend(sum(key, &body).to_le_bytes());
    value.extend(body);
    value
}

/// Reads the value stored at `key`.
pub(super) fn parse<T: DeserializeOwned>(
    what: &'static str,
    key: &[u8],
    value: &[u8],
) -> Result<T, ViewError> {
    let damaged = ViewError::Damaged { what, length: value.len() };
    match value.split_at_checked(HEAD_BYTES) {
        Some(([FORMAT, stored @ ..], body)) if stored == sum(key, body).to_le_bytes() => {
            crate::message::decode(body).map_err(|_| damaged)
        }
        Some(([found, stored @ ..], body)) if stored == sum(key, body).to_le_bytes() => {
            Err(ViewError::Format { what, found: *found })
        }
        _ => Err(damaged),
    }
}

/// Whether the value at `key` is as it was written, were it by a build whose format this one does not know. One that is not can be written
/// over: no build reads it.
pub(super) fn is_whole(key: &[u8], value: &[u8]) -> bool {
    value.split_at_checked(HEAD_BYTES).is_some_and(|(head, body)| head[1..] == sum(key, body).to_le_bytes())
}

/// CRC-32C of key and body.
fn sum(key: &[u8], body: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(body);
    u32::try_from(digest.finalize()).expect("a CRC-32 has 32 bits")
}

/// Reads the record at `key`, if there is one.
pub(super) fn read<T: DeserializeOwned>(
    view: &dyn View,
    what: &'static str,
    key: &[u8],
) -> Result<Option<T>, ViewError> {
    view.get(key)?.map(|value| parse(what, key, &value)).transpose()
}

/// The record stored at `key` as `value`, unless it is damaged: then the view hears of it, and others are not held up.
pub(super) fn whole<T: DeserializeOwned>(
    view: &dyn View,
    what: &'static str,
    key: &[u8],
    value: &[u8],
) -> Option<T> {
    parse(what, key, value).map_err(|error| view.left_out(key, &error)).ok()
}

/// Reads the record at `key`, if there is one that is whole: [`whole`].
pub(super) fn read_whole<T: DeserializeOwned>(
    view: &dyn View,
    what: &'static str,
    key: &[u8],
) -> Result<Option<T>, ViewError> {
    Ok(view.get(key)?.and_then(|value| whole(view, what, key, &value)))
}

/// Writes a record.
pub(super) fn write<T: Serialize>(txn: &mut Txn<'_>, key: Key, record: &T) {
    let value = value(&key, record);
    txn.put(key, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered_is_told_from_all_else() {
        let device = DeviceId(7);
        let of_registry = [node(NodeId(1)), super::device(device), draining(device), removed(device)];
        assert!(of_registry.iter().all(|key| is_of_registry(key)) && is_of_registry(&returned(device)));
        let others = [cluster(), counters(), bucket("b"), object("b", "k"), segment(SegmentId(0x60))];
        assert!(!others.iter().any(|key| is_of_registry(key)));
        let id = RequestId { client: u128::MAX, count: 1 };
        assert!(!is_of_registry(&request_age(Time(9), id)) && !is_of_registry(&[]));
    }

    #[test]
    fn a_whole_record_of_another_format_is_not_taken_for_damage_nor_for_ours() {
        let mut value = value(b"key", &7u64);
        assert_eq!(parse::<u64>("test", b"key", &value), Ok(7));
        value[0] = FORMAT - 1;
        let refused = parse::<u64>("test", b"key", &value).expect_err("written by an earlier build");
        assert_eq!(refused, ViewError::Format { what: "test", found: FORMAT - 1 });
        value[HEAD_BYTES] ^= 1;
        let damaged = parse::<u64>("test", b"key", &value);
        assert!(matches!(damaged, Err(ViewError::Damaged { .. })), "{damaged:?}");
    }
}
