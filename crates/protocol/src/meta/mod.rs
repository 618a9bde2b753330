//! Cores that govern: namespace, versions, intents, leases and the registry of devices, over a key-value view.
//!
//! | file | what it decides |
//! |---|---|
//! | [`view`], `keys` | what a store offers; how records are named in it |
//! | [`names`] | which bucket names and keys are allowed |
//! | `buckets`, `objects` | buckets and their feasibility; lookup, listing, removal |
//! | `intents`, `validate` | puts and amendments: begin, lease, commit, abort; what a layout must be to be committed |
//! | `files` | objects that are made empty, and that grow in place |
//! | `segments` | what became of a segment, for the sweep of the storage servers |
//! | `requests` | each mutating request takes effect once and answers the same when asked again |
//! | `registry` | storage servers and devices; who is alive |
//! | `moved` | devices that a registration brings into another failure domain |
//! | `reports` | what clients say that they do, for whoever watches |
//! | `standing` | devices that are draining or were removed |
//! | `holdings` | which segments lie on a device, in bounded looks |
//!
//! The driver calls [`change`] in a [`Txn`] and applies its writes atomically, and [`ask`] on any consistent [`View`];
//! at each tick it calls [`expire`] until nothing more is due. A driver that shares what it remembers between threads calls
//! [`look`] and [`vouched`] instead, which read the view without it. None of them performs I/O, reads a clock or draws a
//! number. A transaction reads and writes at most about three records for each segment of one put
//! ([`SEGMENTS_PER_PUT_MAX`]) and each piece of the segments that it changes.
//!
//! Invariants: a version is visible whole or not at all; a segment is pending, committed by exactly one object, or
//! gone for good; a number once given out is never given out again.

mod beside;
mod buckets;
mod counters;
mod files;
mod holdings;
mod intents;
mod keys;
mod lost;
mod moved;
pub mod names;
mod objects;
mod registry;
mod reports;
mod requests;
mod segments;
mod standing;
mod validate;
pub mod view;

pub use buckets::BUCKETS_MAX;
pub use counters::{cluster, establish, skip_ahead};
pub use intents::{SEGMENTS_PER_PUT_MAX, SEGMENTS_PER_REQUEST_MAX};
pub use keys::{Counted, FORMAT, is_of_registry};
pub use moved::{Moved, moved};
pub use registry::{
    ADDRESS_BYTES_MAX, DEVICES_MAX, DEVICES_PER_NODE_MAX, Liveness, Registered, heartbeat, vouched,
};
pub use reports::ClientReports;
pub use validate::{BLOCKS_PER_ORIGINAL_MAX, LAYOUTS_BYTES_MAX};
pub use view::{MemoryStore, Txn, View, ViewError, Writes, transact};

use crate::{
    RequestId, Time,
    message::{Change, MetaAnswer, MetaFault, Query},
};
use core::time::Duration;
use intents::Basis;

/// How long things are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// A put is given up this long after it was begun or last renewed.
    pub lease: Duration,
    /// A request's answer is kept this long: a client asks again within it or takes the outcome as unknown.
    pub answers_kept: Duration,
    /// When the server started. Its clock may have jumped since what is stored was stored, so all of that has its whole span
    /// from here on: no lease ends and no answer is forgotten before, nor, where the clock was set back, much later.
    pub started: Time,
    /// When leases began to run: when it started, or was last held up ([`Terms::held_up`], [`Terms::failed`]).
    pub running_since: Time,
    /// When it last turned to changes.
    pub turned: Time,
}

/// Changes that waited for this part of a lease were held up: writers renew after a third of it.
const HELD_UP_PART: u32 = 4;

impl Terms {
    /// The server turns at `now` to changes of which the oldest has `waited` for so long, and which it is to do once in `every` at
    /// least, whether there are any or not. Where the store stalled, or the server itself did not run (stopped, or its machine was),
    /// renewals were held up, too, and as after a restart nothing ends for a whole lease. Says whether that is so.
    pub fn held_up(&mut self, now: Time, waited: Duration, every: Duration) -> bool {
        let away = now.since(self.turned).saturating_sub(every);
        self.turned = now;
        let held_up = waited.max(away) > self.lease / HELD_UP_PART;
        if held_up {
            self.running_since = now;
        }
        held_up
    }

    /// At `now` the store took no changes: renewals were among those it refused, or would have been.
    pub fn failed(&mut self, now: Time) {
        self.running_since = now;
    }
}

impl Default for Terms {
    /// A lease of 30 s, so that a client that renews every 10 s survives two lost renewals or a restart of the
    /// server; answers for 10 minutes, longer than any client goes on asking. Both picked by eye. Started when time began.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            answers_kept: Duration::from_secs(600),
            started: Time(0),
            running_since: Time(0),
            turned: Time(0),
        }
    }
}

/// Whether [`change`] looks at who lives: all but these few changes may be given what was heard of nobody.
pub fn needs_liveness(change: &Change) -> bool {
    matches!(change, Change::CreateBucket { .. } | Change::RegisterNode(_))
}

/// Carries out one change, once: under an `id` that was answered before, gives that answer and changes nothing.
///
/// A refusal changes nothing but is remembered like any answer, so that a late second copy of a request cannot
/// succeed after its sender was told that it failed.
///
/// # Errors
/// What stands against the change. After [`MetaFault::Store`] the transaction is to be dropped.
pub fn change(
    txn: &mut Txn<'_>,
    now: Time,
    terms: &Terms,
    liveness: &Liveness,
    id: RequestId,
    change: &Change,
) -> Result<MetaAnswer, MetaFault> {
    let digest = requests::Digest::of(change);
    if let Some(answer) = requests::answered(txn, id, digest)? {
        return answer;
    }
    let answer = dispatch(txn, now, terms, liveness, change);
    match &answer {
        Err(MetaFault::Store(_)) => {
            txn.clear();
            return answer;
        }
        Err(_) => txn.clear(),
        Ok(_) => {}
    }
    requests::remember(txn, now, id, digest, &answer);
    answer
}

fn dispatch(
    txn: &mut Txn<'_>,
    now: Time,
    terms: &Terms,
    liveness: &Liveness,
    change: &Change,
) -> Result<MetaAnswer, MetaFault> {
    match change {
        Change::CreateBucket { bucket, policy } => buckets::create(txn, now, liveness, bucket, *policy),
        Change::BeginPut { bucket, key, segments } => {
            intents::begin(txn, now, terms, bucket, key, Basis::Nothing, *segments)
        }
        Change::BeginAmend { bucket, key, base, segments, rewrites } => {
            let basis = Basis::Version { base: *base, rewrites: *rewrites };
            intents::begin(txn, now, terms, bucket, key, basis, *segments)
        }
        Change::MoreSegments { intent, segments } => intents::more(txn, now, terms, *intent, *segments),
        Change::Renew { intent } => intents::renew(txn, now, terms, *intent),
        Change::Commit { intent, size, segments, pledge, base } => {
            intents::commit(txn, now, terms, *intent, *size, (segments, *pledge), base.as_deref())
        }
        Change::Abort { intent } => intents::abort(txn, now, *intent, None),
        Change::Remove { bucket, key } => objects::remove(txn, bucket, key),
        Change::RegisterNode(record) => registry::register(txn, now, liveness, record),
        Change::SetDeviceState { device, state, arrivals } => standing::set(txn, *device, *state, *arrivals),
        Change::Create { bucket, key } => files::create(txn, now, bucket, key),
        Change::Grow { bucket, key, base, size } => files::grow(txn, now, (bucket, key), *base, *size),
        Change::RemoveBucket { bucket } => buckets::remove(txn, now, terms, bucket),
        Change::GiveUp { intent, fenced } => intents::abort(txn, now, *intent, Some(fenced)),
    }
}

/// Answers a query from a consistent view.
///
/// # Errors
/// What stands against the answer.
pub fn ask(view: &dyn View, now: Time, liveness: &Liveness, query: &Query) -> Result<MetaAnswer, MetaFault> {
    Ok(match look(view, query)? {
        Looked::Answer(answer) => answer,
        Looked::Registered(registered) => registered.report(now, liveness, liveness.reports()),
    })
}

/// What a consistent view says to a query.
#[derive(Clone, Debug, PartialEq)]
pub enum Looked {
    /// The answer.
    Answer(MetaAnswer),
    /// What is registered; the answer is its [`Registered::report`].
    Registered(Registered),
}

/// Answers a query as far as the view does: what is remembered is needed only afterwards, so that no store, however slow,
/// holds up who writes that down.
///
/// # Errors
/// What stands against the answer.
pub fn look(view: &dyn View, query: &Query) -> Result<Looked, MetaFault> {
    let answer = match query {
        Query::Lookup { bucket, key } => objects::lookup(view, bucket, key),
        Query::List { bucket, prefix, after, limit } => {
            objects::list(view, bucket, prefix, after.as_deref(), *limit)
        }
        Query::Bucket { bucket } => Ok(MetaAnswer::Bucket(buckets::read(view, bucket)?)),
        Query::Buckets => buckets::all(view),
        Query::Registry => return Ok(Looked::Registered(registry::registered(view)?)),
        Query::SegmentStates { segments, device } => segments::states(view, segments, *device),
        Query::Layout { segment } => segments::layout(view, *segment),
        Query::ObjectsOn { devices, after, limit } => holdings::objects_on(view, devices, *after, *limit),
        Query::Degraded { after, limit } => holdings::degraded(view, *after, *limit),
        Query::Holdings { after } => holdings::sums(view, *after),
        Query::RemovedDevices { devices } => standing::removed_of(view, devices),
    };
    answer.map(Looked::Answer)
}

/// What one step of [`expire`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Puts whose lease had ended, given up.
    pub intents: usize,
    /// Answers older than they are kept, forgotten.
    pub answers: usize,
    /// Whether more was due: call again.
    pub more: bool,
}

/// Gives up puts whose lease has ended, forgets old answers and looks for what damaged objects have left; a bounded step. A put whose
/// record is damaged is given up as well: nobody can renew or commit it.
///
/// # Errors
/// When the store cannot be read; the transaction is then to be dropped.
pub fn expire(txn: &mut Txn<'_>, now: Time, terms: &Terms) -> Result<Expired, ViewError> {
    let (intents, more_intents) = intents::expire(txn, now, terms)?;
    let (answers, more_answers) = requests::expire(txn, now, terms)?;
    let more_lost = lost::expire(txn)?;
    Ok(Expired { intents, answers, more: more_intents || more_answers || more_lost })
}
