//! Objects whose records are damaged. A put over one, and its removal, need nothing of what the record said and go on without it. What
//! it listed is nobody's from then on, and only the segments' own records tell: they are looked through, so many at a time, and those go
//! that say to be of the object and that it does not list.
//!
//! Invariant: the records of segments are written with that of their object, so those that a whole one does not list are no part of it.

use super::{
    holdings, keys, objects, segments,
    view::{Txn, View, ViewError},
};
use crate::SegmentId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// An object of which there may be segments that it does not list.
#[derive(Serialize, Deserialize)]
struct Lost {
    bucket: String,
    key: String,
    /// The last segment that was looked at.
    after: Option<SegmentId>,
}

/// Whether the record of an object is damaged: it is gone then, and what it listed will be ([`expire`]).
pub(super) fn give_up(txn: &mut Txn<'_>, bucket: &str, key: &str) -> Result<bool, ViewError> {
    let damage = match objects::read(txn, bucket, key) {
        Ok(_) => return Ok(false),
        Err(damage @ ViewError::Damaged { .. }) => damage,
        // That of another build is whole.
        Err(error) => return Err(error),
    };
    let record = keys::object(bucket, key);
    txn.left_out(&record, &damage);
    txn.delete(record);
    let lost = Lost { bucket: bucket.to_owned(), key: key.to_owned(), after: None };
    keys::write(txn, keys::lost(bucket, key), &lost);
    Ok(true)
}

/// Looks through some segments for what a lost object has left; whether there may be more to look for.
pub(super) fn expire(txn: &mut Txn<'_>) -> Result<bool, ViewError> {
    let (from, to) = keys::all_lost();
    let Some((stored, value)) = txn.scan(&from, &to, 1)?.pop() else { return Ok(false) };
    let Some(lost) = keys::whole::<Lost>(txn, "lost object", &stored, &value) else {
        txn.delete(stored);
        return Ok(true);
    };
    let listed: BTreeSet<SegmentId> = match objects::read(txn, &lost.bucket, &lost.key) {
        Ok(object) => object.into_iter().flat_map(|object| object.segments).collect(),
        Err(failed @ ViewError::Failed(_)) => return Err(failed),
        // Damaged once more: who gives that up begins anew.
        Err(_) => {
            txn.delete(stored);
            return Ok(true);
        }
    };
    let mut left = Vec::new();
    let next = holdings::look(txn, lost.after, |bucket, key, layout| {
        if bucket == lost.bucket && key == lost.key && !listed.contains(&layout.segment) {
            left.push(layout);
        }
        true
    })?;
    left.iter().for_each(|layout| segments::erase(txn, layout));
    match next {
        Some(_) => keys::write(txn, stored, &Lost { after: next, ..lost }),
        None => txn.delete(stored),
    }
    Ok(true)
}
