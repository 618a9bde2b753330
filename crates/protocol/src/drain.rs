//! Emptying devices: every object that has blocks on them gets blocks elsewhere instead. Completing what is degraded is the same: pages
//! of segments, objects to be stored anew, until a whole look found none (of bounded looks: others may degrade more meanwhile).
//!
//! ```text
//!   ┌──▶ count late puts ──▶ look, page after page ──▶ move what is found, several at a time
//!   │                                                        │
//!   └── something was found, or a put came in since ◀────────┤
//!                                                            └──▶ done: a whole look found nothing
//! ```
//!
//! [`Drain`] is told what was found and what became of each object ([`Drain::handle`]) and says what to do next
//! ([`Drain::poll`], until it says nothing); it needs no clock. It remembers nothing that a second run would need: a drain
//! that was cut short is begun again, from the start or from where that was ([`Drain::after`]), and finds only what is still
//! there. One that is told that it is enough ([`Input::Enough`]; when, says [`Allotment`]) ends what it has begun.
//!
//! Invariants: an object is moved once at a time; objects under way take at most [`Limits::bytes_max`] of memory, unless
//! it is a single one; at most one page is kept; it ends, whatever others write meanwhile.
//!
//! Left out: how one object is moved, and where to (the writing cores and `plan`).

mod allotment;
mod mending;

pub use allotment::Allotment;
pub use mending::{Looked, Mending, Turn};

use crate::{
    DeviceId, SegmentId,
    message::{BucketRecord, DeviceState, Held, Holding, Registry, Standing},
    plan::{self, Candidate, PlanError},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often an object is tried again that others keep changing; picked by eye: each try is many attempts already.
const BUSY_MAX: u32 = 8;
/// Objects that cannot be moved after which it stops in any case: each is kept by name.
const STUCK_MAX: usize = 1000;
/// Looks of a repair after which what others store degraded meanwhile is left for the next one. Picked by eye.
pub const REPAIR_LOOKS_MAX: u64 = 8;

/// How much is done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Objects moved at a time.
    pub objects_max: usize,
    /// Bytes of segments that may be in memory for it.
    pub bytes_max: u64,
    /// Whether to go on with other objects where one cannot be moved.
    pub keep_going: bool,
    /// Looks at the most, where what is found may become more meanwhile; as many as it takes where absent.
    pub looks_max: Option<u64>,
}

/// An object by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
}

impl core::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.bucket, self.key)
    }
}

/// What became of an object that was to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has nothing on the devices any more.
    Moved {
        /// Blocks that it had there.
        blocks: u64,
        /// Bytes of those.
        bytes: u64,
    },
    /// It was removed, or replaced by a version that has nothing there.
    Gone,
    /// Others kept changing it.
    Busy,
    /// It cannot be moved, for this reason.
    Stuck(Stuck),
}

/// Why an object cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// What kind of reason it is.
    pub kind: StuckKind,
    /// The reason, for people.
    pub why: String,
}

/// Reasons why objects cannot be moved, by what is to be done about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StuckKind {
    /// Others change it, or have reserved what it takes: later it may be moved.
    Busy,
    /// Too little of it can be reached now.
    Unreadable,
    /// No set of devices can hold it.
    NoRoom,
    /// Something else.
    Other,
}

/// What a drain is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Late puts counted so far on all the devices together ([`Standing::arrivals`]).
    Arrivals(u64),
    /// A page of what has blocks there, as of [`Query::ObjectsOn`](crate::message::Query::ObjectsOn).
    Page {
        /// The segments.
        held: Vec<Held>,
        /// Where to go on.
        next: Option<SegmentId>,
    },
    /// What became of an object.
    Over {
        /// It.
        object: ObjectName,
        /// What became of it.
        outcome: Outcome,
    },
    /// No further object is to be begun: it is over when those under way are.
    Enough,
}

/// What a drain wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Count the late puts: answer with [`Input::Arrivals`].
    Count,
    /// Fetch a page: answer with [`Input::Page`].
    Look {
        /// Only segments after this one.
        after: Option<SegmentId>,
    },
    /// Move an object: answer with [`Input::Over`]. Others go on meanwhile.
    Move(ObjectName),
    /// It is over.
    Done,
}

/// What a drain did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects moved.
    pub objects: u64,
    /// Their blocks on the devices.
    pub blocks: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Objects that cannot be moved, and why.
    pub stuck: BTreeMap<ObjectName, Stuck>,
    /// Looks at all segments.
    pub looks: u64,
    /// The last look that there may be still found some, or was cut short: there may be more.
    pub more: bool,
    /// The segment that it came to last.
    pub reached: Option<SegmentId>,
}

impl Totals {
    /// This and what another drain of the same devices did after it.
    pub fn and(&self, later: &Self) -> Self {
        Self {
            objects: self.objects + later.objects,
            blocks: self.blocks + later.blocks,
            bytes: self.bytes + later.bytes,
            stuck: later.stuck.clone(),
            looks: self.looks + later.looks,
            more: later.more,
            reached: later.reached,
        }
    }
}

/// Empties devices.
#[derive(Clone, Debug)]
pub struct Drain {
    limits: Limits,
    totals: Totals,
    step: Step,
    /// Late puts when the look began.
    arrivals: u64,
    /// Where the first look begins; absent once it has, and at the start.
    begin: Option<SegmentId>,
    /// Whether this look found anything that was, or is to be, moved, or has not been at everything.
    found: bool,
    queue: VecDeque<Held>,
    /// Where the look goes on; absent at its end.
    next: Option<SegmentId>,
    /// Objects under way and the bytes each takes.
    running: BTreeMap<ObjectName, u64>,
    busy: BTreeMap<ObjectName, u32>,
    /// Whether no further object is to be begun.
    enough: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// To be counted, at the begin of a look or at its end.
    Count,
    Counting,
    Look,
    Looking,
    /// A page is here.
    Moving,
    Over,
}

impl Drain {
    /// Nothing is done yet.
    pub fn new(limits: Limits) -> Self {
        Self::after(limits, None)
    }

    /// The same, but the first look begins after this segment: others come first than in one that was cut short there.
    pub fn after(limits: Limits, begin: Option<SegmentId>) -> Self {
        Self {
            limits,
            totals: Totals::default(),
            step: Step::Count,
            arrivals: 0,
            begin,
            found: true,
            queue: VecDeque::new(),
            next: None,
            running: BTreeMap::new(),
            busy: BTreeMap::new(),
            enough: false,
        }
    }

    /// What was done so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Takes what happened.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Arrivals(arrivals) => {
                assert_eq!(self.step, Step::Counting, "counts are asked for");
                let last = self.enough || self.limits.looks_max.is_some_and(|most| self.totals.looks >= most);
                if last || !self.found && arrivals == self.arrivals {
                    self.totals.more = self.found;
                    self.step = Step::Over;
                } else {
                    self.next = self.begin.take();
                    (self.arrivals, self.found, self.step) = (arrivals, self.next.is_some(), Step::Look);
                    self.totals.looks += 1;
                }
            }
            Input::Page { held, next } => {
                assert_eq!(self.step, Step::Looking, "pages are asked for");
                (self.queue, self.next, self.step) = (held.into(), next, Step::Moving);
            }
            Input::Over { object, outcome } => self.over(object, outcome),
            Input::Enough => (self.enough, self.totals.more) = (true, true),
        }
    }

    /// What to do next; none when something must happen first.
    pub fn poll(&mut self) -> Option<Action> {
        loop {
            match self.step {
                Step::Count | Step::Look if self.enough => self.step = Step::Moving,
                Step::Count => {
                    self.step = Step::Counting;
                    return Some(Action::Count);
                }
                Step::Look => {
                    self.step = Step::Looking;
                    return Some(Action::Look { after: self.next });
                }
                Step::Moving => {
                    if self.stopped() {
                        self.queue.clear();
                        self.next = None;
                    }
                    let Some(first) = self.queue.front() else {
                        if self.next.is_some() {
                            self.step = Step::Look;
                        } else if self.running.is_empty() {
                            self.step = if self.stopped() { Step::Over } else { Step::Count };
                        } else {
                            return None;
                        }
                        continue;
                    };
                    let object = ObjectName { bucket: first.bucket.clone(), key: first.key.clone() };
                    // Moving an object moves all its segments.
                    if self.running.contains_key(&object) || self.totals.stuck.contains_key(&object) {
                        self.totals.reached = Some(first.segment);
                        self.queue.pop_front();
                        continue;
                    }
                    let taken: u64 = self.running.values().sum();
                    let fits = taken.saturating_add(first.length) <= self.limits.bytes_max;
                    if self.running.len() >= self.limits.objects_max || !(fits || self.running.is_empty()) {
                        return None;
                    }
                    self.found = true;
                    self.running.insert(object.clone(), first.length);
                    self.totals.reached = Some(first.segment);
                    self.queue.pop_front();
                    return Some(Action::Move(object));
                }
                Step::Over => return Some(Action::Done),
                Step::Counting | Step::Looking => return None,
            }
        }
    }

    fn over(&mut self, object: ObjectName, outcome: Outcome) {
        let known = self.running.remove(&object);
        assert!(known.is_some(), "{object} was not under way");
        match outcome {
            Outcome::Moved { blocks, bytes } => {
                self.busy.remove(&object);
                self.totals.objects += 1;
                self.totals.blocks += blocks;
                self.totals.bytes += bytes;
            }
            Outcome::Gone => drop(self.busy.remove(&object)),
            Outcome::Busy => {
                let times = self.busy.entry(object.clone()).or_default();
                *times += 1;
                if *times == BUSY_MAX {
                    let (kind, why) = (StuckKind::Busy, "others keep changing it".to_owned());
                    self.totals.stuck.insert(object, Stuck { kind, why });
                }
            }
            Outcome::Stuck(why) => drop(self.totals.stuck.insert(object, why)),
        }
    }

    /// Whether no further object is to be begun.
    fn stopped(&self) -> bool {
        let stuck = self.totals.stuck.len();
        self.enough || stuck > 0 && !self.limits.keep_going || stuck >= STUCK_MAX
    }
}

/// Why a cluster cannot do without some devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A bucket's policy could not be met any more.
    #[error("bucket `{bucket}` ({policy}) could not keep its promise without: {source}. Add devices first")]
    Policy {
        /// The bucket.
        bucket: String,
        /// Its policy.
        policy: String,
        /// What would be missing.
        source: Box<PlanError>,
    },
    /// Too little room elsewhere.
    #[error(
        "{bytes} bytes lie there, and {free_bytes} are free on the devices that would be left: delete objects or add \
         devices first"
    )]
    Space {
        /// Bytes to move.
        bytes: u64,
        /// Bytes free elsewhere.
        free_bytes: u64,
    },
}

/// Whether every bucket's promise can be kept, and what lies there has room elsewhere, without the devices `leaving`. What
/// cannot be promised with them either is not held against them.
///
/// # Errors
/// The first that could not.
pub fn check(
    registry: &Registry,
    buckets: &[BucketRecord],
    holdings: &[Holding],
    leaving: &BTreeSet<DeviceId>,
) -> Result<(), Refusal> {
    let mut without = registry.clone();
    for &device in leaving.iter().filter(|&&device| registry.state(device) == DeviceState::Active) {
        without.standings.push(Standing { device, arrivals: 0 });
    }
    let mut with = registry.clone();
    with.standings.retain(|standing| !leaving.contains(&standing.device));
    let (with, without) = (plan::candidates(&with), plan::candidates(&without));
    // Very many buckets have few policies among them.
    let mut judged = Vec::new();
    for BucketRecord { name, policy, .. } in buckets {
        let needs = (policy.domain(), policy.domains(), policy.devices());
        if judged.contains(&needs) {
            continue;
        }
        let feasible = |candidates: &[Candidate]| plan::feasible_among(policy, candidates);
        if let (Ok(()), Err(source)) = (feasible(&with), feasible(&without)) {
            let (bucket, policy, source) = (name.clone(), policy.to_string(), Box::new(source));
            return Err(Refusal::Policy { bucket, policy, source });
        }
        judged.push(needs);
    }
    let there = holdings.iter().filter(|holding| leaving.contains(&holding.device));
    let bytes = there.map(|holding| holding.bytes).sum();
    let free_bytes =
        without.iter().filter(|candidate| candidate.alive).map(|candidate| candidate.free_bytes).sum();
    if bytes > free_bytes { Err(Refusal::Space { bytes, free_bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
