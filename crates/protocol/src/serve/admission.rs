//! Whether a node takes one more stream: each node decides for itself (design.md, decision 13; dissertation §4.2, §5.4).
//!
//! Invariants: control requests are refused only to a connection that has its share of the streams, so that status and deletes work
//! on a busy node; background work is shed at half the limits, before anything a person waits for; a stream under a reservation is
//! not refused for what others queued, and finds a part of the memory that they leave.
//!
//! All streams of one connection, of whatever kind, have a share of the places that there are, which shrinks with every connection that has
//! any, down to a sixteenth; it is heeded once half of the places are taken. One that has none is not refused for the others' share.
//!
//! Of the memory for reads every stream has one slice set aside while it is open, its floor, so that none waits for others. What it holds
//! beyond is charged when it is read and given back when it is sent. All streams of one connection have a share, which shrinks with
//! every connection that reads, and a connection that has nothing finds a part that the others leave: readers that take
//! nothing, however many streams they open, keep nobody out. Where connections are so many that their floors are all there is, those whose
//! readers have granted nothing for a while are asked for theirs ([`Admission::is_wanted`]).

use crate::message::{Fault, Priority, RefusalReason};
use core::{fmt, str::FromStr, time::Duration};
use std::collections::BTreeMap;

/// How a node decides who may reserve bandwidth of its devices (dissertation §5.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionPolicy {
    /// Every wish is granted and nothing is kept: for nodes whose devices are never short.
    Open,
    /// First come, first admitted, until the devices' measured throughput is exhausted (CAC).
    #[default]
    Capacity,
    /// As `Capacity`, and foreground accesses may take what background ones reserved.
    Priority,
}

/// A text that names no admission policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown admission policy `{0}`: choose `open`, `capacity` or `priority`")]
pub struct AdmissionPolicyError(pub String);

impl FromStr for AdmissionPolicy {
    type Err = AdmissionPolicyError;

    fn from_str(text: &str) -> Result<Self, AdmissionPolicyError> {
        match text {
            "open" => Ok(Self::Open),
            "capacity" => Ok(Self::Capacity),
            "priority" => Ok(Self::Priority),
            other => Err(AdmissionPolicyError(other.to_owned())),
        }
    }
}

impl fmt::Display for AdmissionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Capacity => "capacity",
            Self::Priority => "priority",
        })
    }
}

/// What one node takes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams open at once.
    pub streams_max: u32,
    /// Bytes waiting in the queue of the device that is asked for.
    pub queued_bytes_max: u64,
    /// Bytes that all read streams together may hold, read and not yet sent.
    pub reading_bytes_max: u64,
}

/// How busy the device that a request names is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes waiting in its queue.
    pub queued_bytes: u64,
    /// Its measured speed in bytes per second; 0 where unknown.
    pub bytes_per_s: u64,
    /// Whether the stream has a reservation of it.
    pub reserved: bool,
}

/// The admission of one node.
#[derive(Clone, Debug)]
pub struct Admission {
    limits: Limits,
    streams: u32,
    /// How many of them are of which connection.
    connections: BTreeMap<ReaderId, u32>,
    reading_bytes: u64,
    kept_bytes: u64,
    /// Of the connections that read: their streams, and what these hold.
    readers: BTreeMap<ReaderId, Reader>,
    /// The last stream that found no memory.
    wanted: Option<Wanted>,
}

/// Names a connection whose streams share its part of the memory, and of the places for streams.
pub type ReaderId = u64;

/// What a stream that found no memory would take.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    reader: Option<ReaderId>,
    reserved: bool,
    slice_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    streams: u32,
    bytes: u64,
}

/// What a read stream was admitted with; given back by [`Admission::read_closed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an admitted stream is given back when it is over"]
pub struct ReadTicket {
    /// Slices it may hold at once, while there is room for them.
    pub slices_max: usize,
    reader: Option<ReaderId>,
    reserved: bool,
    /// Set aside for it.
    floor_bytes: u64,
    /// What it holds, part of which is its floor.
    held_bytes: u64,
}

impl ReadTicket {
    fn charged_bytes(&self) -> u64 {
        self.held_bytes.max(self.floor_bytes)
    }
}

/// Slices a read stream holds at most: one on the medium, one behind it, one ready and one being sent keep both ends busy.
const SLICES_MAX: u64 = 4;
/// The part of the memory for reads (one quarter) that only streams under a reservation may take: whoever reserved finds
/// room for a stream however many others read.
const KEPT_SHARE: u64 = 4;
/// No connection's share of the places is less than one of so many: what one client or one node asks at a time. Picked by eye.
const SHARES_MAX: u64 = 16;
/// The part of the memory for reads (one quarter) that only a connection without any stream that reads may take: one more finds room.
const NEWCOMERS_SHARE: u64 = 4;
/// Bounds on when a refused client is told to come back: not so soon that asking is work of its own, not so late
/// that it gives up on a node that was busy for a moment. Picked by eye.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));
/// The same where a place is all that is missing, and nothing tells how fast those come back. Picked by eye: some short requests' time.
const RETRY_PLACE: Duration = Duration::from_millis(20);

impl Default for Limits {
    /// 1024 streams: 64 clients of 16 devices; queues of 64 MiB, most of a second of a rotating disk; 32 MiB of
    /// slices, a quarter of what a node may have resident.
    fn default() -> Self {
        Self { streams_max: 1024, queued_bytes_max: 64 << 20, reading_bytes_max: 32 << 20 }
    }
}

impl Admission {
    /// An idle node's admission.
    pub fn new(limits: Limits) -> Self {
        let (connections, readers) = Default::default();
        Self { limits, streams: 0, connections, reading_bytes: 0, kept_bytes: 0, readers, wanted: None }
    }

    /// Streams open now.
    pub fn streams(&self) -> u32 {
        self.streams
    }

    /// Takes a stream of `priority` for a device under `load`; every taken stream is given back by
    /// [`Admission::closed`]. It counts for no connection.
    ///
    /// # Errors
    /// [`Fault::Refused`] with the time in which the device works off what is too much.
    pub fn admit(&mut self, priority: Priority, load: Load) -> Result<(), Fault> {
        self.admit_stream(None, priority, load)
    }

    /// Takes a stream of a connection; it is given back by [`Admission::closed_of`].
    ///
    /// # Errors
    /// As [`Admission::admit`], and while the connection has as many streams as it may.
    pub fn admit_of(&mut self, connection: ReaderId, priority: Priority, load: Load) -> Result<(), Fault> {
        self.admit_stream(Some(connection), priority, load)
    }

    fn admit_stream(
        &mut self,
        connection: Option<ReaderId>,
        priority: Priority,
        load: Load,
    ) -> Result<(), Fault> {
        let shed = if priority == Priority::Background { 2 } else { 1 };
        let streams_full = self.streams >= self.limits.streams_max / shed;
        let queue_full = load.queued_bytes >= self.limits.queued_bytes_max / u64::from(shed);
        let busy = priority != Priority::Control && !load.reserved && (streams_full || queue_full);
        if busy || self.has_its_share(connection) {
            let excess = load.queued_bytes.saturating_sub(self.limits.queued_bytes_max / u64::from(shed) / 2);
            return Err(refused(excess, load.bytes_per_s));
        }
        self.streams += 1;
        if let Some(connection) = connection {
            *self.connections.entry(connection).or_default() += 1;
        }
        Ok(())
    }

    /// Whether a connection has as many streams as it may, once half of the places are taken. As if there were one or two connections more
    /// than there are, so that the next finds places.
    fn has_its_share(&self, connection: Option<ReaderId>) -> bool {
        let streams = connection.and_then(|connection| self.connections.get(&connection));
        let all = u64::from(self.limits.streams_max);
        let share = (2 * all / (self.connections.len() as u64 + 2)).max(all / SHARES_MAX);
        u64::from(self.streams) >= all / 2 && streams.is_some_and(|&streams| u64::from(streams) >= share)
    }

    /// Takes a read stream of slices of `slice_bytes`: one that holds four slices while there is much room,
    /// fewer where many streams share it. It shares with no other stream.
    ///
    /// # Errors
    /// As [`Admission::admit`], and while not one slice more may be held.
    pub fn admit_read(
        &mut self,
        priority: Priority,
        load: Load,
        slice_bytes: u32,
    ) -> Result<ReadTicket, Fault> {
        self.admit_reader(None, priority, load, slice_bytes)
    }

    /// Takes a read stream of a connection.
    ///
    /// # Errors
    /// As [`Admission::admit_read`], and while its connection's other streams have all that the connection may hold.
    pub fn admit_read_of(
        &mut self,
        reader: ReaderId,
        priority: Priority,
        load: Load,
        slice_bytes: u32,
    ) -> Result<ReadTicket, Fault> {
        self.admit_reader(Some(reader), priority, load, slice_bytes)
    }

    fn admit_reader(
        &mut self,
        reader: Option<ReaderId>,
        priority: Priority,
        load: Load,
        slice_bytes: u32,
    ) -> Result<ReadTicket, Fault> {
        let slice = u64::from(slice_bytes.max(1));
        let free = self.free_bytes(load.reserved);
        let wanted = Wanted { reader, reserved: load.reserved, slice_bytes: slice };
        if self.lacks(&wanted) {
            // Who has its share is not why others should give up theirs.
            if free < slice {
                self.wanted = Some(wanted);
            }
            return Err(refused(self.reading_bytes / 2, load.bytes_per_s));
        }
        self.wanted = None;
        self.admit_stream(reader, priority, load)?;
        // A quarter of what is free, so that room is left for those who come next.
        let slices_max = (free / 4 / slice).clamp(1, SLICES_MAX) as usize;
        let ticket =
            ReadTicket { slices_max, reader, reserved: load.reserved, floor_bytes: slice, held_bytes: 0 };
        if let Some(reader) = reader {
            self.readers.entry(reader).or_default().streams += 1;
        }
        self.charge(&ticket, 0, slice);
        Ok(ticket)
    }

    /// A read stream is about to read a slice of `bytes`, which it holds until [`Admission::slice_left`]; `false`: there is no
    /// room beyond its floor now. It is to try again when a slice of its own has left.
    #[must_use = "a slice for which there is no room is not read"]
    pub fn slice_read(&mut self, ticket: &mut ReadTicket, bytes: u32) -> bool {
        let before = ticket.charged_bytes();
        let held_bytes = ticket.held_bytes + u64::from(bytes);
        let more = held_bytes.max(ticket.floor_bytes) - before;
        if more > 0 && !self.has_room_ahead(ticket, before + more, more) {
            return false;
        }
        ticket.held_bytes = held_bytes;
        self.charge(ticket, before, ticket.charged_bytes());
        true
    }

    /// A read stream holds a slice of `bytes` no longer: it was sent, or is not needed.
    ///
    /// # Panics
    /// When it did not hold so much: the driver's mistake.
    pub fn slice_left(&mut self, ticket: &mut ReadTicket, bytes: u32) {
        let before = ticket.charged_bytes();
        let held_bytes = ticket.held_bytes.checked_sub(u64::from(bytes));
        ticket.held_bytes = held_bytes.expect("a stream gives back what it holds");
        self.charge(ticket, before, ticket.charged_bytes());
    }

    /// Whether a stream may have `after` bytes, which is `more` than it has: what is left is for those who come next.
    fn has_room_ahead(&self, ticket: &ReadTicket, after: u64, more: u64) -> bool {
        let fits = more <= self.free_bytes(ticket.reserved) / 4;
        let Some(held) = ticket.reader.and_then(|reader| self.readers.get(&reader)) else { return fits };
        let share = self.share_bytes();
        fits && more <= self.room_of(ticket.reader, ticket.reserved)
            && held.bytes + more <= share / 4 * 3
            // One part more than it has streams.
            && after <= share / (u64::from(held.streams) + 1)
    }

    /// What the streams of a connection may hold together.
    fn share_bytes(&self) -> u64 {
        let pool = self.limits.reading_bytes_max - self.limits.reading_bytes_max / NEWCOMERS_SHARE;
        // As if there were one or two more than there are, so that the next finds room.
        2 * pool / (self.readers.len() as u64 + 2)
    }

    /// Whether the last stream that came found no memory, and there is none for it yet.
    pub fn is_wanted(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| self.lacks(wanted))
    }

    /// Whether there is no memory for a stream.
    fn lacks(&self, wanted: &Wanted) -> bool {
        let free = self.free_bytes(wanted.reserved).min(self.room_of(wanted.reader, wanted.reserved));
        free < wanted.slice_bytes
    }

    /// Bytes that no stream has, for one with or without a reservation.
    fn free_bytes(&self, reserved: bool) -> u64 {
        let kept = if reserved { 0 } else { self.kept_bytes };
        self.limits.reading_bytes_max.saturating_sub(self.reading_bytes + kept)
    }

    /// Bytes that the streams of a connection may hold beside what they do.
    fn room_of(&self, reader: Option<ReaderId>, reserved: bool) -> u64 {
        let Some(held) = reader.and_then(|reader| self.readers.get(&reader)) else { return u64::MAX };
        let newcomers = self.limits.reading_bytes_max / NEWCOMERS_SHARE;
        let shared = self.free_bytes(reserved).saturating_sub(newcomers);
        self.share_bytes().saturating_sub(held.bytes).min(shared)
    }

    /// What a stream has changes.
    fn charge(&mut self, ticket: &ReadTicket, before: u64, after: u64) {
        self.reading_bytes = self.reading_bytes - before + after;
        if let Some(reader) = ticket.reader.and_then(|reader| self.readers.get_mut(&reader)) {
            reader.bytes = reader.bytes - before + after;
        }
    }

    /// Whether bandwidth of any device is reserved: then a part of the memory is kept for those who did.
    pub fn keep_for_reserved(&mut self, keep: bool) {
        self.kept_bytes = if keep { self.limits.reading_bytes_max / KEPT_SHARE } else { 0 };
    }

    /// A read stream that was admitted is over.
    pub fn read_closed(&mut self, ticket: ReadTicket) {
        self.charge(&ticket, ticket.charged_bytes(), 0);
        if let Some(id) = ticket.reader
            && let Some(reader) = self.readers.get_mut(&id)
        {
            reader.streams -= 1;
            if reader.streams == 0 {
                self.readers.remove(&id);
            }
        }
        match ticket.reader {
            Some(connection) => self.closed_of(connection),
            None => self.closed(),
        }
    }

    /// A stream of a connection that was admitted is over.
    ///
    /// # Panics
    /// When the connection has none: the driver's mistake.
    pub fn closed_of(&mut self, connection: ReaderId) {
        let streams = self.connections.get_mut(&connection);
        let streams = streams.expect("a connection's stream closed that was not admitted");
        *streams -= 1;
        if *streams == 0 {
            self.connections.remove(&connection);
        }
        self.closed();
    }

    /// A stream that was admitted is over.
    pub fn closed(&mut self) {
        assert!(self.streams > 0, "a stream closed that was not admitted");
        self.streams -= 1;
    }
}

/// Refuses until `excess_bytes` are worked off at `bytes_per_s` (0 where unknown); for want of a place, where there are none.
pub(super) fn refused(excess_bytes: u64, bytes_per_s: u64) -> Fault {
    let wait = match (excess_bytes, bytes_per_s) {
        (0, 0) => RETRY_PLACE,
        (_, 0) => RETRY_AFTER.1,
        (excess, rate) => Duration::from_secs_f64(excess as f64 / rate as f64),
    };
    let wait = wait.clamp(RETRY_AFTER.0, RETRY_AFTER.1);
    Fault::Refused {
        reason: RefusalReason::Overloaded,
        retry_after_ms: u32::try_from(wait.as_millis()).expect("clamped to seconds"),
    }
}
