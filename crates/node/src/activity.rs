//! What a node did since it started: counted where it happens, shown in heartbeats and at the admin port.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use steadfast_net::{Connection, Counters};
use steadfast_protocol::message::RefusalReason;

/// Kinds of streams, as labels name them.
pub(crate) const KINDS: [&str; 4] = ["read", "write", "request", "ingest"];

/// What kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Request,
    Ingest,
}

/// Counts of a node.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    admitted: [AtomicU64; KINDS.len()],
    cancelled: [AtomicU64; KINDS.len()],
    refused: Mutex<BTreeMap<String, u64>>,
    heartbeats_failed: AtomicU64,
    connections: Mutex<Connections>,
}

/// Connections now, and the sums of those that are over.
#[derive(Debug, Default)]
struct Connections {
    next: u64,
    open: BTreeMap<u64, Connection>,
    over: Traffic,
}

/// What connections moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) connections: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) payload_sent: u64,
    pub(crate) payload_unsent: u64,
    pub(crate) payload_received: u64,
    pub(crate) streams_refused: u64,
}

impl Activity {
    pub(crate) fn admitted(&self, kind: Kind) {
        self.admitted[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn cancelled(&self, kind: Kind) {
        self.cancelled[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn refused(&self, reason: &RefusalReason) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(label(&format!("{reason:?}"))).or_default() += 1;
    }

    pub(crate) fn heartbeat_failed(&self) {
        self.heartbeats_failed.fetch_add(1, Relaxed);
    }

    /// Admitted, by kind in the order of [`KINDS`].
    pub(crate) fn admitted_so_far(&self) -> [u64; KINDS.len()] {
        std::array::from_fn(|kind| self.admitted[kind].load(Relaxed))
    }

    /// Cancelled, by kind in the order of [`KINDS`].
    pub(crate) fn cancelled_so_far(&self) -> [u64; KINDS.len()] {
        std::array::from_fn(|kind| self.cancelled[kind].load(Relaxed))
    }

    /// Refused, by reason.
    pub(crate) fn refused_so_far(&self) -> BTreeMap<String, u64> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Shown before the first of them, so that a rate of it can be taken.
        refused.entry(label(&format!("{:?}", RefusalReason::Overloaded))).or_default();
        refused
    }

    pub(crate) fn heartbeats_failed_so_far(&self) -> u64 {
        self.heartbeats_failed.load(Relaxed)
    }

    /// Counts a connection's traffic until the guard is dropped, and what it was then for good.
    pub(crate) fn connected(&self, connection: Connection) -> Counted<'_> {
        let mut connections = self.connections();
        let id = connections.next;
        connections.next += 1;
        connections.open.insert(id, connection);
        Counted { activity: self, id }
    }

    /// What all connections moved.
    pub(crate) fn traffic(&self) -> Traffic {
        let connections = self.connections();
        let mut sum = connections.over;
        sum.connections = connections.open.len() as u64;
        connections.open.values().for_each(|connection| sum.add(&connection.counters()));
        sum
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traffic {
    fn add(&mut self, counters: &Counters) {
        self.sent += counters.bytes_sent;
        self.received += counters.bytes_received;
        self.payload_sent += counters.payload_bytes_sent;
        self.payload_unsent += counters.payload_bytes_purged;
        self.payload_received += counters.payload_bytes_received;
        self.streams_refused += counters.streams_refused;
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    activity: &'a Activity,
    id: u64,
}

impl Counted<'_> {
    /// What no other connection of this process is called.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let over = {
            let mut connections = self.activity.connections();
            let over = connections.open.remove(&self.id);
            if let Some(over) = &over {
                connections.over.add(&over.counters());
            }
            over
        };
        // The last handle closes its connection: not under the lock.
        drop(over);
    }
}

/// `TooManyStreams` as `too_many_streams`; what follows the name is left out.
fn label(debug: &str) -> String {
    let mut label = String::new();
    for letter in debug.chars().take_while(char::is_ascii_alphanumeric) {
        if letter.is_ascii_uppercase() && !label.is_empty() {
            label.push('_');
        }
        label.push(letter.to_ascii_lowercase());
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_reason() {
        let activity = Activity::default();
        activity.refused(&RefusalReason::Overloaded);
        activity.refused(&RefusalReason::Overloaded);
        assert_eq!(activity.refused_so_far(), [("overloaded".to_owned(), 2)].into());
        assert_eq!(label("TooManyStreams { limit: 3 }"), "too_many_streams");
    }
}
