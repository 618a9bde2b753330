//! What servers and clients say of what they did, for whoever watches. Nothing is decided on it.

use serde::{Deserialize, Serialize};

/// What a device did, beyond what planning needs. Counted since its node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceActivity {
    /// Bytes waiting in its queue.
    pub queued_bytes: u64,
    /// Smoothed time that one read or write takes it, in nanoseconds; 0 before the first.
    pub service_ns: u64,
    /// Read operations of its medium.
    pub medium_reads: u64,
    /// Write operations of its medium.
    pub medium_writes: u64,
    /// Flushes of its medium.
    pub flushes: u64,
    /// Payload bytes read from it for readers.
    pub stream_read_bytes: u64,
    /// Payload bytes read for readers and given to their connections; what is missing was read for nothing.
    pub stream_sent_bytes: u64,
    /// What became of wishes for its bandwidth.
    pub reservations: ReservationCounts,
}

/// What became of wishes for bandwidth (dissertation §5.4). All that were granted and kept are held, or ended in one of
/// three ways; a renewal is counted nowhere. A node that keeps nothing counts every grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationCounts {
    /// Held now.
    pub held: u64,
    /// Granted.
    pub granted: u64,
    /// Refused, renewals for more included.
    pub refused: u64,
    /// Given back by their clients.
    pub given_back: u64,
    /// Ended with their lease: their client died, or was cut off.
    pub expired: u64,
    /// Ended for an access of a higher class.
    pub displaced: u64,
}

impl ReservationCounts {
    /// Adds another device's.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.held, other.held),
            (&mut self.granted, other.granted),
            (&mut self.refused, other.refused),
            (&mut self.given_back, other.given_back),
            (&mut self.expired, other.expired),
            (&mut self.displaced, other.displaced),
        ] {
            *mine = mine.saturating_add(theirs);
        }
    }
}

/// What a storage server did since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeActivity {
    /// Where its admin port listens (`host:port`), if it has one.
    pub admin: Option<String>,
    /// Streams open now.
    pub streams: u32,
    /// Resident memory of the process in bytes.
    pub resident_bytes: u64,
    /// Streams admitted.
    pub admitted: u64,
    /// Streams refused as too much.
    pub refused: u64,
    /// Read and write streams cancelled before their end, by their opener or by its loss.
    pub cancelled: u64,
    /// Payload bytes that the kernel took for sending.
    pub sent_bytes: u64,
    /// Payload bytes dropped by a cancel before the kernel had them.
    pub unsent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Heartbeats that were not answered.
    pub heartbeats_failed: u64,
}

/// What clients did, as they report it themselves after their accesses; only they know what they used and which of
/// their requests were for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessTotals {
    /// Objects read.
    pub gets: u64,
    /// Bytes of the segments that were read: what readers used.
    pub used_bytes: u64,
    /// Payload bytes that arrived at readers.
    pub received_bytes: u64,
    /// Payload bytes that storage servers sent to readers, as far as they said so soon.
    pub sent_bytes: u64,
    /// Payload bytes that storage servers read from media for readers, as far as they said so soon.
    pub medium_bytes: u64,
    /// Blocks that readers asked for.
    pub requested_blocks: u64,
    /// Those of them that were asked for although what had been asked for was enough, because that was late.
    pub extra_blocks: u64,
    /// Those extras that were useful before what they stood in for.
    pub extra_won: u64,
    /// Objects stored.
    pub puts: u64,
    /// Bytes of the objects stored.
    pub put_bytes: u64,
    /// Payload bytes of blocks sent to store them.
    pub put_sent_bytes: u64,
    /// Changes of objects that were there: of their bytes, their redundancy, the devices they lie on.
    pub amends: u64,
    /// Payload bytes that arrived for those.
    pub amend_received_bytes: u64,
    /// Payload bytes of blocks sent for those.
    pub amend_sent_bytes: u64,
}

impl AccessTotals {
    /// Adds another's counts; they stay at the largest number rather than begin again.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.gets, other.gets),
            (&mut self.used_bytes, other.used_bytes),
            (&mut self.received_bytes, other.received_bytes),
            (&mut self.sent_bytes, other.sent_bytes),
            (&mut self.medium_bytes, other.medium_bytes),
            (&mut self.requested_blocks, other.requested_blocks),
            (&mut self.extra_blocks, other.extra_blocks),
            (&mut self.extra_won, other.extra_won),
            (&mut self.puts, other.puts),
            (&mut self.put_bytes, other.put_bytes),
            (&mut self.put_sent_bytes, other.put_sent_bytes),
            (&mut self.amends, other.amends),
            (&mut self.amend_received_bytes, other.amend_received_bytes),
            (&mut self.amend_sent_bytes, other.amend_sent_bytes),
        ] {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// Bytes read from media beyond what readers used, as a share of what they used; `None` before the first read.
    pub fn medium_waste(&self) -> Option<f64> {
        (self.used_bytes > 0).then(|| self.medium_bytes as f64 / self.used_bytes as f64 - 1.0)
    }

    /// Bytes sent to readers beyond what they used, as a share of it (I/O overhead, dissertation §6.2.3).
    pub fn sent_waste(&self) -> Option<f64> {
        let moved = self.sent_bytes.max(self.received_bytes);
        (self.used_bytes > 0).then(|| moved as f64 / self.used_bytes as f64 - 1.0)
    }
}
