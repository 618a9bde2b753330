//! Puts and amendments. A writer that dies leaves nothing: whatever it stored lies under an intent, and an intent that
//! never commits is given up when its lease ends.
//!
//! ```text
//!   BeginPut, ──▶ live ──Renew, MoreSegments──▶ live ──Commit──▶ committed (the object's version, whole)
//!   BeginAmend      │ ├──Abort, GiveUp────────────────────────▶ over
//!                   │ └──lease ends──▶ ended ──expire()───────▶ over
//! ```
//!
//! An ended put cannot be committed or renewed even before `expire` gives it up. After a restart nothing ends for a whole lease:
//! its writer could not renew while the server was down, and the clock may be another by now. Two writers of one key do not see each
//! other: each commit makes its version whole, the last commit wins, whatever order they began in. An amendment starts
//! from a version and commits while the object is still that version, or beside what others have changed of it since ([`beside`]), under
//! a version above theirs: a file that is appended to all the time, or written by many, would else have no turn for anybody. Where they
//! have changed the same segments it is refused: what it has stored of those may lack bytes that were acknowledged since.
//!
//! An amendment that stores chunks anew has their nodes refuse changes in place under epochs before its own. One that is over without its
//! version leaves that behind, and what it may have fenced is listed under its epoch ([`reopen`]).
//!
//! Invariants: intent, lease entry and grants come and go together; a segment of a put that is over is never named
//! again; each put has its own epoch and version, and an amendment's epoch is above that of what it amends.

use super::{
    Terms,
    beside::beside,
    buckets,
    counters::Counters,
    keys, lost, names,
    objects::{self, StoredObject},
    segments::{self, Grant},
    standing, validate,
    view::{Txn, View, ViewError},
};
use crate::{
    Epoch, IntentId, SegmentId, Time, Version,
    layout::{CodeKind, ParityGeometry, SegmentLayout},
    message::{AmendBase, MetaAnswer, MetaFault, PutBegun},
    policy::Pledge,
};
use core::cell::LazyCell;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most segments named by one request.
pub const SEGMENTS_PER_REQUEST_MAX: u32 = 4096;
/// The most segments of one put: 16 TiB in segments of 1 GiB.
pub const SEGMENTS_PER_PUT_MAX: u32 = 16_384;
/// The most puts given up in one step.
const EXPIRE_MAX: usize = 256;
/// Layouts looked at for those, after which a step takes no further one. Picked by eye: some milliseconds, and a commit may write more.
const REOPEN_MAX: usize = 4096;

/// What an intent makes its version from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Basis {
    /// Nothing: a put.
    Nothing,
    /// A version that it keeps parts of.
    Version {
        base: Version,
        /// Whether it changes the object's bytes.
        rewrites: bool,
    },
}

/// A put or an amendment that has begun, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Intent {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) version: Version,
    pub(super) epoch: Epoch,
    basis: Basis,
    expires: Time,
    /// Its segments as first and count of consecutive ones.
    grants: Vec<(SegmentId, u32)>,
}

impl Intent {
    /// Whether `segment` was named for this put.
    pub(super) fn has(&self, segment: SegmentId) -> bool {
        let after = self.grants.partition_point(|&(first, _)| first <= segment);
        after > 0 && segment.0 - self.grants[after - 1].0.0 < u64::from(self.grants[after - 1].1)
    }

    /// When its lease ends.
    fn ends(&self, now: Time, terms: &Terms) -> Time {
        let grace = terms.running_since + terms.lease;
        // No lease is longer, so a clock that was ahead of this one has written it, before the server started.
        if self.expires > now + terms.lease { grace } else { self.expires.max(grace) }
    }

    fn segments(&self) -> u32 {
        self.grants.iter().map(|&(_, count)| count).sum()
    }

    /// Names `count` more segments.
    fn grant(
        &mut self,
        txn: &mut Txn<'_>,
        id: IntentId,
        counters: &mut Counters,
        count: u32,
    ) -> Vec<SegmentId> {
        if count == 0 {
            return Vec::new();
        }
        let first = counters.segments(count);
        keys::write(txn, keys::grant(last_of(first, count)), &Grant { first, intent: id });
        self.grants.push((first, count));
        (first.0..first.0 + u64::from(count)).map(SegmentId).collect()
    }
}

/// Begins a put or an amendment.
pub(super) fn begin(
    txn: &mut Txn<'_>,
    now: Time,
    terms: &Terms,
    bucket: &str,
    key: &str,
    basis: Basis,
    segments: u32,
) -> Result<MetaAnswer, MetaFault> {
    names::check_key(key)?;
    let policy = buckets::read(txn, bucket)?.policy;
    if let Basis::Version { base, .. } = basis {
        let current = objects::require(txn, bucket, key)?;
        // One that has grown since is told when it commits: whether that matters is seen only then.
        if !current.was(base) {
            check_base(bucket, key, base, Some(current.version))?;
        }
    }
    check_count(0, segments)?;
    let mut counters = Counters::read(txn)?;
    let fresh = counters.put();
    let mut intent = Intent {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        version: fresh.version,
        epoch: fresh.epoch,
        basis,
        expires: now + terms.lease,
        grants: Vec::new(),
    };
    let segments = intent.grant(txn, fresh.intent, &mut counters, segments);
    counters.write(txn);
    txn.put(keys::intent_expiry(intent.expires, fresh.intent), Vec::new());
    keys::write(txn, keys::intent(fresh.intent), &intent);
    Ok(MetaAnswer::Begun(PutBegun {
        intent: fresh.intent,
        version: fresh.version,
        epoch: fresh.epoch,
        segments,
        policy,
        lease_ms: u32::try_from(terms.lease.as_millis()).unwrap_or(u32::MAX),
    }))
}

/// Names more segments for a put.
pub(super) fn more(
    txn: &mut Txn<'_>,
    now: Time,
    terms: &Terms,
    id: IntentId,
    segments: u32,
) -> Result<MetaAnswer, MetaFault> {
    let mut intent = live(txn, now, terms, id)?;
    check_count(intent.segments(), segments)?;
    let mut counters = Counters::read(txn)?;
    let named = intent.grant(txn, id, &mut counters, segments);
    counters.write(txn);
    keys::write(txn, keys::intent(id), &intent);
    Ok(MetaAnswer::Segments(named))
}

/// Keeps a put alive for another lease.
pub(super) fn renew(
    txn: &mut Txn<'_>,
    now: Time,
    terms: &Terms,
    id: IntentId,
) -> Result<MetaAnswer, MetaFault> {
    let mut intent = live(txn, now, terms, id)?;
    txn.delete(keys::intent_expiry(intent.expires, id));
    intent.expires = now + terms.lease;
    txn.put(keys::intent_expiry(intent.expires, id), Vec::new());
    keys::write(txn, keys::intent(id), &intent);
    Ok(MetaAnswer::Done)
}

/// Makes an intent's version visible in place of the one before; what that one has no more is gone.
pub(super) fn commit(
    txn: &mut Txn<'_>,
    now: Time,
    terms: &Terms,
    id: IntentId,
    size: u64,
    (layouts, pledge): (&[SegmentLayout], Pledge),
    made_from: Option<&AmendBase>,
) -> Result<MetaAnswer, MetaFault> {
    let intent = live(txn, now, terms, id)?;
    let policy = buckets::read(txn, &intent.bucket)?.policy;
    pledge.check(&policy).map_err(MetaFault::Invalid)?;
    if intent.basis == Basis::Nothing {
        // It needs nothing of what it replaces.
        lost::give_up(txn, &intent.bucket, &intent.key)?;
    }
    let previous = objects::read(txn, &intent.bucket, &intent.key)?;
    let before = match (&previous, &intent.basis) {
        (Some(previous), Basis::Nothing) => segments::given_up(txn, &previous.segments)?,
        (Some(previous), Basis::Version { .. }) => segments::layouts(txn, &previous.segments)?,
        (None, _) => Vec::new(),
    };
    let (mut version, mut merged) = (intent.version, None);
    let (base, contents, pledge) = match intent.basis {
        Basis::Nothing => (&[][..], intent.version, pledge),
        Basis::Version { base, rewrites } => {
            let current = previous.as_ref().map(|previous| previous.version);
            if current != Some(base) {
                // What others have added was made for what they promised, and the amendment for what was promised before.
                let alike = |made_from: &&AmendBase| {
                    let promised = previous.as_ref().map(|previous| previous.pledge);
                    pledge == Pledge::default() && promised == Some(made_from.pledge)
                };
                merged = made_from.filter(alike).and_then(|base| beside(base, layouts, &before));
                match &merged {
                    None => check_base(&intent.bucket, &intent.key, base, current)?,
                    Some(_) => version = Counters::next_version(txn)?,
                }
            }
            let (size, layouts) = whole(&merged, size, layouts);
            if let Some(kept) = previous.as_ref().filter(|_| !rewrites) {
                check_same(kept.size == size, &before, layouts)?;
            }
            // What is listed where it lay reads on, with its changes in place, whatever was to be made of it.
            let kept = previous.as_ref().filter(|_| !rewrites || only_epochs(&before, layouts));
            let contents = kept.map_or(version, |kept| kept.contents);
            (&before[..], contents, previous.as_ref().map_or(pledge, |previous| previous.pledge.and(pledge)))
        }
    };
    let (size, layouts) = whole(&merged, size, layouts);
    validate::layouts(txn, &intent, &policy, base, size, layouts)?;
    let pieces = layouts.iter().flat_map(SegmentLayout::pieces);
    let fresh = pieces.filter(|(_, piece)| intent.has(piece.segment)).map(|(device, _)| device);
    standing::arrived(txn, fresh)?;
    let freed = segments::replace(txn, &intent, &policy, (&before, layouts));
    let segments = layouts.iter().map(|layout| layout.segment).collect();
    let object = StoredObject { size, version, contents, committed: now, segments, grown: None, pledge };
    objects::write(txn, &intent.bucket, &intent.key, &object);
    end(txn, id, &intent);
    Ok(MetaAnswer::Committed { version, freed })
}

/// The size and the segments that are committed: those that an amendment lists, or with what others have made of them.
fn whole<'a>(
    merged: &'a Option<Vec<SegmentLayout>>,
    size: u64,
    layouts: &'a [SegmentLayout],
) -> (u64, &'a [SegmentLayout]) {
    match merged {
        None => (size, layouts),
        Some(layouts) => (layouts.iter().map(|layout| layout.length).sum(), layouts),
    }
}

/// Whether an amendment starts from what the object is.
pub(super) fn check_base(
    bucket: &str,
    key: &str,
    base: Version,
    current: Option<Version>,
) -> Result<(), MetaFault> {
    if current == Some(base) {
        return Ok(());
    }
    Err(MetaFault::Conflict { bucket: bucket.to_owned(), key: key.to_owned(), base, current })
}

/// Whether an amendment that says to keep the object's bytes can have done so: segments are kept in their order, or, of chunks
/// that change in place, stored anew in their place.
fn check_same(same_size: bool, before: &[SegmentLayout], after: &[SegmentLayout]) -> Result<(), MetaFault> {
    let data_chunks = |layout: &SegmentLayout| ParityGeometry::of_layout(layout).map(|shape| shape.data);
    // Every other change waits while thousands are looked through.
    let names = LazyCell::new(|| before.iter().map(|layout| layout.segment).collect::<BTreeSet<_>>());
    let kept = |(old, new): (&SegmentLayout, &SegmentLayout)| {
        let anew = || {
            matches!(old.code.kind, CodeKind::ReedSolomon { .. })
                && !names.contains(&new.segment)
                && old.length == new.length
                && data_chunks(old) == data_chunks(new)
        };
        old.segment == new.segment || anew()
    };
    if same_size && before.len() == after.len() && before.iter().zip(after).all(kept) {
        return Ok(());
    }
    Err(MetaFault::BadLayout(
        "an amendment that keeps the object's bytes keeps its size and its segments in their order"
            .to_owned(),
    ))
}

/// Whether these segments differ in their epochs at most.
fn only_epochs(before: &[SegmentLayout], after: &[SegmentLayout]) -> bool {
    let same = |(old, new): (&SegmentLayout, &SegmentLayout)| {
        old == new || SegmentLayout { epoch: old.epoch, ..new.clone() } == *old
    };
    before.len() == after.len() && before.iter().zip(after).all(same)
}

/// Why an intent ends without its version.
#[derive(Clone, Copy)]
enum End<'a> {
    /// Its writer gives it up: an amendment that has fenced these segments, where it says so, or any.
    Given(Option<&'a [SegmentId]>),
    /// Its lease is over: its writer is dead, as far as is known, and sees to nothing any more.
    Lease,
}

/// Gives a put up, or an amendment that has fenced the segments `fenced`, where it says so, or any. Refused where it is over: it may
/// have committed.
pub(super) fn abort(
    txn: &mut Txn<'_>,
    now: Time,
    id: IntentId,
    fenced: Option<&[SegmentId]>,
) -> Result<MetaAnswer, MetaFault> {
    // An ended lease is no reason to refuse: the put is over either way.
    let intent = read(txn, id)?.ok_or(MetaFault::IntentOver(id))?;
    give_up(txn, now, (id, &intent), End::Given(fenced))?;
    Ok(MetaAnswer::Done)
}

/// Ends an intent without its version; how many layouts were looked at for it.
fn give_up(
    txn: &mut Txn<'_>,
    now: Time,
    (id, intent): (IntentId, &Intent),
    why: End<'_>,
) -> Result<usize, ViewError> {
    end(txn, id, intent);
    reopen(txn, now, intent, why)
}

/// Lists segments that an amendment has fenced (these, where it says so, or any) under its epoch, now that it is over: who changes them
/// in place by their older one is refused. How many layouts were looked at.
///
/// That is another version, of other epochs. An amendment of those segments that began from the one before may have read them before, and its
/// commit would take back what is changed in place from now on; or it fences them too late, where the epoch is as high already. It has to
/// begin again ([`beside`]).
///
/// Where the object is another by the time that a writer gives up nothing is done: of amendments that overtake each other each would else make
/// the others begin again, for ever. Who was overtaken begins again and stores them anew, or sees to it by another amendment. One that is dead
/// does neither, and makes others begin again once: those that stayed are listed under its epoch all the same, but for such as somebody who
/// began later has stored anew, or opened.
fn reopen(txn: &mut Txn<'_>, now: Time, intent: &Intent, why: End<'_>) -> Result<usize, ViewError> {
    let Basis::Version { base, .. } = intent.basis else { return Ok(0) };
    let (bucket, key) = (intent.bucket.as_str(), intent.key.as_str());
    let object = match objects::read(txn, bucket, key) {
        Ok(Some(object)) if object.was(base) || matches!(why, End::Lease) => object,
        Ok(_) => return Ok(0),
        Err(error) => return unless_failed(txn, &keys::object(bucket, key), error).map(|()| 0),
    };
    let listed: BTreeSet<SegmentId> = object.segments.iter().copied().collect();
    let names: BTreeSet<SegmentId> = match why {
        End::Given(Some(fenced)) => {
            fenced.iter().copied().filter(|segment| listed.contains(segment)).collect()
        }
        End::Given(None) | End::Lease => listed,
    };
    let mut reopened = false;
    for &segment in &names {
        match segments::of_object(txn, segment) {
            Ok(Some((_, _, layout))) if layout.epoch < intent.epoch && has_updates(&layout) => {
                let layout = SegmentLayout { epoch: intent.epoch, ..layout };
                segments::record_of(txn, (bucket, key), layout);
                reopened = true;
            }
            Ok(_) => {}
            Err(error) => unless_failed(txn, &keys::segment(segment), error)?,
        }
    }
    if reopened {
        let mut version = intent.version;
        if !object.was(base) {
            // Somebody's who began later may be there: versions go up.
            version = Counters::next_version(txn)?;
        }
        let object = StoredObject { version, committed: now, grown: None, ..object };
        objects::write(txn, bucket, key, &object);
    }
    Ok(names.len())
}

/// Whether a segment may be changed in place: nobody fences others.
fn has_updates(layout: &SegmentLayout) -> bool {
    ParityGeometry::of_layout(layout).is_some_and(|shape| shape.updatable(layout).is_some())
}

/// A damaged record keeps no intent from its end; a store that cannot be read does.
fn unless_failed(view: &dyn View, key: &[u8], error: ViewError) -> Result<(), ViewError> {
    if let ViewError::Failed(_) = error {
        return Err(error);
    }
    view.left_out(key, &error);
    Ok(())
}

/// Whether a put or an amendment of any object of a bucket is live. A look at every one there is; damaged ones can neither be renewed nor
/// committed. One whose lease has ended is given up: were the store held up later, it could go on.
pub(super) fn any_into(txn: &mut Txn<'_>, now: Time, terms: &Terms, bucket: &str) -> Result<bool, ViewError> {
    let (mut from, to) = keys::intents_from(IntentId(0));
    loop {
        let step = txn.scan(&from, &to, EXPIRE_MAX)?;
        for (key, value) in &step {
            let intent: Option<Intent> = keys::whole(txn, "intent", key, value);
            let Some(intent) = intent.filter(|intent| intent.bucket == bucket) else { continue };
            if now < intent.ends(now, terms) {
                return Ok(true);
            }
            if let Some(id) = keys::intent_of(key) {
                give_up(txn, now, (id, &intent), End::Lease)?;
            }
        }
        match step.last() {
            Some((last, _)) if step.len() == EXPIRE_MAX => {
                from.clone_from(last);
                from.push(0);
            }
            _ => return Ok(false),
        }
    }
}

/// Gives up puts whose lease has ended: how many, and whether more are due.
pub(super) fn expire(txn: &mut Txn<'_>, now: Time, terms: &Terms) -> Result<(usize, bool), ViewError> {
    if now < terms.running_since + terms.lease {
        return Ok((0, false));
    }
    let (from, to) = keys::expired_intents(now);
    let mut due = txn.scan(&from, &to, EXPIRE_MAX)?;
    // Of a clock that was ahead: `Intent::ends`.
    let (from, to) = keys::intents_beyond(now + terms.lease);
    due.extend(txn.scan(&from, &to, EXPIRE_MAX - due.len())?);
    let mut damaged = BTreeSet::new();
    let (mut ended, mut looked_at) = (0, 0);
    for (expiry_key, _) in &due {
        if looked_at >= REOPEN_MAX {
            break;
        }
        ended += 1;
        txn.delete(expiry_key.clone());
        let id = match keys::expired_intent(expiry_key) {
            Ok(id) => id,
            Err(error) => {
                txn.left_out(expiry_key, &error);
                continue;
            }
        };
        let key = keys::intent(id);
        match txn.get(&key)?.map(|value| keys::whole::<Intent>(txn, "intent", &key, &value)) {
            Some(Some(intent)) => looked_at += give_up(txn, now, (id, &intent), End::Lease)?,
            Some(None) => {
                txn.delete(key);
                damaged.insert(id);
            }
            None => {}
        }
    }
    revoke(txn, &damaged)?;
    Ok((ended, ended < due.len() || due.len() == EXPIRE_MAX))
}

/// Takes back what was granted to puts whose records do not say it any more. A look at every grant there is: those of puts
/// under way.
fn revoke(txn: &mut Txn<'_>, damaged: &BTreeSet<IntentId>) -> Result<(), ViewError> {
    if damaged.is_empty() {
        return Ok(());
    }
    let (mut from, to) = keys::grants_from(SegmentId(0));
    loop {
        let step = txn.scan(&from, &to, EXPIRE_MAX)?;
        for (key, value) in &step {
            let grant: Option<Grant> = keys::whole(txn, "grant", key, value);
            if grant.is_some_and(|grant| damaged.contains(&grant.intent)) {
                txn.delete(key.clone());
            }
        }
        match step.last() {
            Some((last, _)) if step.len() == EXPIRE_MAX => {
                from.clone_from(last);
                from.push(0);
            }
            _ => return Ok(()),
        }
    }
}

/// Takes a put's own records away; segments that were not committed are gone with them.
fn end(txn: &mut Txn<'_>, id: IntentId, intent: &Intent) {
    txn.delete(keys::intent(id));
    txn.delete(keys::intent_expiry(intent.expires, id));
    for &(first, count) in &intent.grants {
        txn.delete(keys::grant(last_of(first, count)));
    }
}

fn live(view: &dyn View, now: Time, terms: &Terms, id: IntentId) -> Result<Intent, MetaFault> {
    read(view, id)?.filter(|intent| now < intent.ends(now, terms)).ok_or(MetaFault::IntentOver(id))
}

fn read(view: &dyn View, id: IntentId) -> Result<Option<Intent>, ViewError> {
    keys::read(view, "intent", &keys::intent(id))
}

fn check_count(named: u32, more: u32) -> Result<(), MetaFault> {
    if more > SEGMENTS_PER_REQUEST_MAX || named.saturating_add(more) > SEGMENTS_PER_PUT_MAX {
        return Err(MetaFault::Invalid(format!(
            "{more} more segments for a put that has {named}: at most {SEGMENTS_PER_REQUEST_MAX} at a time and \
             {SEGMENTS_PER_PUT_MAX} in all are allowed"
        )));
    }
    Ok(())
}

fn last_of(first: SegmentId, count: u32) -> SegmentId {
    debug_assert!(count > 0, "a grant of no segments");
    SegmentId(first.0 + u64::from(count) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::CodeSpec;

    fn layout(segment: u64) -> SegmentLayout {
        let shape = ParityGeometry { chunks: 3, data: 2, blocks: 1, block_bytes: 4096 };
        SegmentLayout {
            segment: SegmentId(segment),
            version: Version(1),
            epoch: Epoch(1),
            length: 8192,
            code: CodeSpec { kind: shape.code(), originals: shape.originals(), seed: 0 },
            block_bytes: shape.block_bytes,
            granule_bytes: 4096,
            holders: Vec::new(),
        }
    }

    /// Sixteen times as many as an object has: looked for one by one among each other, they would take minutes.
    #[test]
    fn all_segments_of_a_large_object_are_stored_anew_in_no_time() {
        const SEGMENTS: u64 = 16 * SEGMENTS_PER_PUT_MAX as u64;
        let before: Vec<SegmentLayout> = (1..=SEGMENTS).map(layout).collect();
        let mut after: Vec<SegmentLayout> =
            (1..=SEGMENTS).map(|segment| layout(SEGMENTS + segment)).collect();
        assert_eq!(check_same(true, &before, &after), Ok(()));
        assert_eq!(check_same(true, &before, &before), Ok(()));
        // In the place of another one is not its own.
        after[0] = layout(SEGMENTS);
        assert!(check_same(true, &before, &after).is_err());
        after[0] = layout(1);
        assert_eq!(check_same(true, &before, &after), Ok(()));
        assert!(
            check_same(false, &before, &after).is_err() && check_same(true, &before, &after[1..]).is_err()
        );
    }
}
