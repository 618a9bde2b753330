//! The queue of one device: which request is served next. No I/O, no clock, no thread.
//!
//! A driver adds requests and asks [`Queue::select`] for the next one; it may *hold* a request until a time,
//! *withdraw* it (another replica served it), or *cancel* a whole stream. Higher classes go first; but that nothing is put off for as
//! long as a device is busy, a request that has waited for long goes first, one in a while: an ordinary one before those that
//! somebody waits for, a background one before both. Within a class requests are served first come, first served; among the reads of one stream in the order of
//! their offsets, so that "all you have of this segment" is one sequential pass.
//!
//! `select` is given an [`Estimate`] of service times. First come, first served does not use it; an order by
//! shortest positioning time first (SPTF) will, without a change of this interface.

use std::collections::{BTreeMap, BTreeSet};

/// A background request waits for so long at the most, and so long after the last one, while others keep the device busy. Picked by eye:
/// a fiftieth of a rotating disk's time.
const BACKGROUND_WAITS_NS: u64 = 500_000_000;
/// The same while somebody waits for what keeps the device busy: it is to be felt by nobody, and is not to wait for as long as a
/// large access lasts. Picked by eye.
const BACKGROUND_WAITS_BEHIND_URGENT_NS: u64 = 5_000_000_000;
/// The same of an ordinary request. Picked by eye: a fifth of a rotating disk's time at the most, and an update, which is a few such
/// requests in turn, ends within its client's patience.
const NORMAL_WAITS_NS: u64 = 50_000_000;

/// Name of a queued request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Classes of priority, the first is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Somebody waits for this very request.
    Interactive,
    /// Ordinary data.
    #[default]
    Normal,
    /// Speculative extra: may never be needed.
    Speculative,
    /// Repair, scrubbing, sweeps.
    Background,
}

/// What a request does to the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reads data.
    Read,
    /// Writes data.
    Write,
    /// Changes or reads only the index.
    Control,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its name, unique in the queue.
    pub id: RequestId,
    /// The stream it belongs to.
    pub stream: u64,
    /// Its class.
    pub class: Priority,
    /// What it does.
    pub kind: Kind,
    /// Where on the medium, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// When it entered, in nanoseconds of the driver's clock.
    pub queued_at_ns: u64,
}

/// How long requests take on this device: a model's or a learned answer.
pub trait Estimate {
    /// Service time in nanoseconds if the head stood at byte `head`.
    fn service_ns(&self, head: u64, request: &Request) -> u64;
}

/// Knows nothing: every request costs the same.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEstimate;

impl Estimate for NoEstimate {
    fn service_ns(&self, _head: u64, _request: &Request) -> u64 {
        0
    }
}

struct Entry {
    request: Request,
    arrival: u64,
    held_until_ns: u64,
}

/// Requests that wait.
#[derive(Default)]
pub struct Queue {
    entries: BTreeMap<RequestId, Entry>,
    /// Ready requests in the order of service: class, then arrival.
    order: BTreeSet<(Priority, u64, RequestId)>,
    /// Held requests by the time they become ready.
    held: BTreeSet<(u64, RequestId)>,
    /// Ready reads by class, stream and offset.
    reads: BTreeSet<(Priority, u64, u64, u64, RequestId)>,
    /// Ready reads by class, stream and arrival.
    turns: BTreeSet<(Priority, u64, u64, RequestId)>,
    /// All of each stream.
    streams: BTreeSet<(u64, RequestId)>,
    arrivals: u64,
    bytes: u64,
    /// How many write, by class.
    writes: BTreeMap<Priority, usize>,
    /// The time of the last selection, and when a request of these classes was last dispatched.
    now_ns: u64,
    normal_at_ns: u64,
    background_at_ns: u64,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Queue {
        Queue::default()
    }

    /// Adds a request.
    ///
    /// # Panics
    /// Where a request of this name is queued already.
    pub fn add(&mut self, request: Request) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.bytes += request.bytes;
        *self.writes.entry(request.class).or_default() += usize::from(request.kind == Kind::Write);
        self.streams.insert((request.stream, request.id));
        let entry = Entry { request, arrival, held_until_ns: 0 };
        self.make_ready(&entry);
        assert!(self.entries.insert(request.id, entry).is_none(), "{:?} is queued twice", request.id);
    }

    /// The request to serve at `now_ns`, if one is ready. It stays queued until [`Queue::dispatch`].
    pub fn select(&mut self, now_ns: u64, estimate: &dyn Estimate) -> Option<RequestId> {
        let _ = estimate;
        self.now_ns = now_ns;
        while let Some(&(until, id)) = self.held.first()
            && until <= now_ns
        {
            self.held.remove(&(until, id));
            if let Some(mut entry) = self.entries.remove(&id) {
                entry.held_until_ns = 0;
                self.make_ready(&entry);
                self.entries.insert(id, entry);
            }
        }
        let &(class, _, id) = self.overdue().or(self.order.first())?;
        let request = self.entries[&id].request;
        if request.kind != Kind::Read {
            return Some(id);
        }
        let from = (class, request.stream, 0, 0, RequestId(0));
        self.reads.range(from..).next().map(|&(_, _, _, _, id)| id)
    }

    /// The request that others have put off for long enough.
    fn overdue(&self) -> Option<&(Priority, u64, RequestId)> {
        let urgent = self.order.first()?.0 == Priority::Interactive;
        let put_off = |class, waits_ns: u64, last_ns: u64| {
            let first =
                self.order.range((class, 0, RequestId(0))..).next().filter(|first| first.0 == class)?;
            let since = self.entries[&first.2].request.queued_at_ns.max(last_ns);
            (since.saturating_add(waits_ns) <= self.now_ns).then_some(first)
        };
        let background_waits = if urgent { BACKGROUND_WAITS_BEHIND_URGENT_NS } else { BACKGROUND_WAITS_NS };
        put_off(Priority::Background, background_waits, self.background_at_ns).or_else(|| {
            urgent.then(|| put_off(Priority::Normal, NORMAL_WAITS_NS, self.normal_at_ns)).flatten()
        })
    }

    /// Keeps a request from being selected before `until_ns`. `false`: not queued.
    pub fn hold_until(&mut self, id: RequestId, until_ns: u64) -> bool {
        let Some(mut entry) = self.entries.remove(&id) else { return false };
        self.unlink(&entry);
        entry.held_until_ns = until_ns;
        if until_ns == 0 {
            self.make_ready(&entry);
        } else {
            self.held.insert((until_ns, id));
        }
        self.entries.insert(id, entry);
        true
    }

    /// Removes a request that is no longer wanted.
    pub fn withdraw(&mut self, id: RequestId) -> Option<Request> {
        let entry = self.entries.remove(&id)?;
        self.unlink(&entry);
        let request = entry.request;
        self.bytes -= request.bytes;
        *self.writes.entry(request.class).or_default() -= usize::from(request.kind == Kind::Write);
        self.streams.remove(&(request.stream, id));
        Some(request)
    }

    /// Removes a request because its service starts.
    pub fn dispatch(&mut self, id: RequestId) -> Option<Request> {
        self.take_turn(id);
        let request = self.withdraw(id)?;
        match request.class {
            Priority::Normal => self.normal_at_ns = self.now_ns,
            Priority::Background => self.background_at_ns = self.now_ns,
            Priority::Interactive | Priority::Speculative => {}
        }
        Some(request)
    }

    /// A read that goes before an earlier one of its stream uses up that one's turn and leaves its own for it:
    /// otherwise a stream with ever new reads at low offsets would keep its first turn for ever.
    fn take_turn(&mut self, id: RequestId) {
        let Some(entry) = self.entries.get(&id) else { return };
        let Request { class, stream, kind, .. } = entry.request;
        if kind != Kind::Read || entry.held_until_ns > 0 {
            return;
        }
        let from = (class, stream, 0, RequestId(0));
        let Some(&(_, _, _, first)) = self.turns.range(from..).next() else { return };
        if first == id {
            return;
        }
        let (Some(mut a), Some(mut b)) = (self.entries.remove(&id), self.entries.remove(&first)) else {
            return;
        };
        self.unlink(&a);
        self.unlink(&b);
        std::mem::swap(&mut a.arrival, &mut b.arrival);
        for entry in [a, b] {
            self.make_ready(&entry);
            self.entries.insert(entry.request.id, entry);
        }
    }

    /// Removes everything of a stream; returns the names in the order of their numbers.
    pub fn cancel_stream(&mut self, stream: u64) -> Vec<RequestId> {
        let all = (stream, RequestId(0))..=(stream, RequestId(u64::MAX));
        let ids: Vec<RequestId> = self.streams.range(all).map(|&(_, id)| id).collect();
        for &id in &ids {
            self.withdraw(id);
        }
        ids
    }

    /// A queued request.
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        self.entries.get(&id).map(|e| &e.request)
    }

    /// All queued names in order.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.entries.keys().copied()
    }

    /// When the first held request becomes ready.
    pub fn next_ready_ns(&self) -> Option<u64> {
        self.held.first().map(|&(until, _)| until)
    }

    /// How many requests wait, held ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all waiting requests.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many waiting requests write that are of this class or go before it.
    pub fn writes(&self, through: Priority) -> usize {
        self.writes.range(..=through).map(|(_, count)| count).sum()
    }

    fn make_ready(&mut self, entry: &Entry) {
        let r = &entry.request;
        self.order.insert((r.class, entry.arrival, r.id));
        if r.kind == Kind::Read {
            self.reads.insert((r.class, r.stream, r.offset, entry.arrival, r.id));
            self.turns.insert((r.class, r.stream, entry.arrival, r.id));
        }
    }

    fn unlink(&mut self, entry: &Entry) {
        let r = &entry.request;
        if entry.held_until_ns > 0 {
            self.held.remove(&(entry.held_until_ns, r.id));
        } else {
            self.order.remove(&(r.class, entry.arrival, r.id));
            self.reads.remove(&(r.class, r.stream, r.offset, entry.arrival, r.id));
            self.turns.remove(&(r.class, r.stream, entry.arrival, r.id));
        }
    }
}

#[cfg(test)]
mod tests;
