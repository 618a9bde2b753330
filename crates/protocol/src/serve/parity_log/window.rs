//! What of a data chunk may be uncommitted at a time: which updates its core is given, and when.
//!
//! ```text
//!   queue ──▶ poll ──▶ admitted ──▶ staged ──▶ kept ──▶ released
//!     ▲                   │ the device holds too much
//!     └───────────────────┘ again
//! ```
//!
//! Every log leaves each data chunk its part of half a reserve ([`crate::policy::Parity::window_bytes`]): then all that is uncommitted
//! fits every log wherever its head stands, and a log that is full can always be emptied. The smallest of the logs decides.
//!
//! Invariants: what is admitted and what is kept take no more than the smallest window, but for what a log brought back;
//! updates are admitted in the order they came, and none while a log is out of reach: nobody knows then how much fits.
//!
//! Left out: the bytes, and who waits for them.

use super::{LOG_RECORD_OVERHEAD_BYTES, ParityNumber, record};
use crate::Time;
use core::time::Duration;
use std::collections::BTreeMap;

/// A parity node that cannot be reached for so long holds up nobody any longer: whoever waits is told that the chunk cannot be
/// changed in place now. Picked by eye: a process that is started again is back sooner.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for one that was reached and has not said yet what fits: before it does it reads its log, behind whatever its disk has to do, and
/// a segment that is stored anew for that makes such disks busier. Picked by eye: a disk of 100 MB/s whose queue is full reads 4 MiB in less.
const GREETING_PATIENCE: Duration = Duration::from_secs(3);

/// A parity chunk whose node has ended so many streams, without a difference taken between, takes none. Picked by eye: one that gives its
/// reserve back, or is started again, ends one.
const ENDED_MAX: u32 = 4;

/// What becomes of the update that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It has room: the core is to be given it.
    Update {
        /// Names it.
        request: u64,
    },
    /// It will never have room, whatever is released. It is forgotten.
    TooLarge {
        /// Names it.
        request: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Log {
    /// It leaves this chunk so much.
    Connected { window_bytes: u64 },
    /// Its node has not said what fits since then; there is a stream to it, or none.
    Away { since: Time, reached: bool },
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpdateWindow {
    logs: Vec<Log>,
    /// How often the node of each has ended the stream since it last took a difference.
    ended: Vec<u32>,
    /// Bytes of updates that wait. Requests are numbered in the order they came.
    queue: BTreeMap<u64, u64>,
    /// Bytes of those that the core has and the device has not stamped.
    admitted: BTreeMap<u64, u64>,
    /// Bytes of the records of versions that are not committed.
    kept: BTreeMap<u64, u64>,
}

impl UpdateWindow {
    /// The window of a chunk with so many parity chunks, none of whose nodes is reached yet. `kept` are the versions that the device
    /// holds from before, with the lengths of their records.
    pub fn new(now: Time, parities: ParityNumber, kept: impl IntoIterator<Item = (u64, usize)>) -> Self {
        let kept = kept.into_iter().map(|(version, length)| (version, record::logged_bytes(length)));
        Self {
            logs: vec![Log::Away { since: now, reached: false }; parities.into()],
            ended: vec![0; parities.into()],
            queue: BTreeMap::new(),
            admitted: BTreeMap::new(),
            kept: kept.collect(),
        }
    }

    /// There is a stream to a parity node, which has yet to say what fits.
    pub fn reached(&mut self, parity: ParityNumber) {
        if let Some(Log::Away { reached, .. }) = self.logs.get_mut(usize::from(parity)) {
            *reached = true;
        }
    }

    /// A parity node says what fits: its log leaves this chunk so much.
    pub fn connected(&mut self, parity: ParityNumber, window_bytes: u64) {
        if let Some(log) = self.logs.get_mut(usize::from(parity)) {
            *log = Log::Connected { window_bytes };
        }
    }

    /// A parity node is out of reach, or still is.
    pub fn lost(&mut self, now: Time, parity: ParityNumber) {
        match self.logs.get_mut(usize::from(parity)) {
            Some(log @ Log::Connected { .. }) => *log = Log::Away { since: now, reached: false },
            Some(Log::Away { reached, .. }) => *reached = false,
            None => {}
        }
    }

    /// A parity node has taken a difference.
    pub fn took(&mut self, parity: ParityNumber) {
        self.ended.iter_mut().skip(parity.into()).take(1).for_each(|ended| *ended = 0);
    }

    /// A parity node has ended the stream; whether it has done so too often for another to be of use: whoever stores the segment anew
    /// goes on.
    pub fn ended(&mut self, parity: ParityNumber) -> bool {
        let Some(ended) = self.ended.get_mut(usize::from(parity)) else { return false };
        *ended += 1;
        *ended >= ENDED_MAX
    }

    /// A parity node that has been out of reach for so long that nobody should wait for it.
    pub fn out_of_reach(&self, now: Time) -> Option<ParityNumber> {
        let long = |log: &Log| match log {
            Log::Away { since, reached } => {
                now.since(*since) > if *reached { GREETING_PATIENCE } else { PATIENCE }
            }
            Log::Connected { .. } => false,
        };
        // No more than were given.
        self.logs.iter().position(long).map(|parity| parity as ParityNumber)
    }

    /// Somebody wants to change `length` bytes of the chunk from `offset` on. Requests are numbered in the order they come.
    pub fn ask(&mut self, request: u64, offset: u64, length: u64) {
        self.queue.insert(request, record::granule_bytes(offset, length) + LOG_RECORD_OVERHEAD_BYTES);
    }

    /// The update that waits first. One that nobody wants any more is to be [forgotten](UpdateWindow::forget) before
    /// [`UpdateWindow::poll`]: whoever gave up has done otherwise by then, and it must not come after that.
    pub fn first(&self) -> Option<u64> {
        self.queue.keys().next().copied()
    }

    /// What becomes of the update that waits first; none while it has to wait.
    pub fn poll(&mut self) -> Option<Admission> {
        let room = |log: &Log| match log {
            Log::Connected { window_bytes } => Some(*window_bytes),
            Log::Away { .. } => None,
        };
        let window = self.logs.iter().map(room).min().flatten()?;
        let uncommitted = self.uncommitted_bytes();
        let first = self.queue.first_entry()?;
        let (request, bytes) = (*first.key(), *first.get());
        if bytes > window {
            first.remove();
            return Some(Admission::TooLarge { request });
        }
        if uncommitted + bytes > window {
            return None;
        }
        first.remove();
        self.admitted.insert(request, bytes);
        Some(Admission::Update { request })
    }

    /// The device stamped an update; the length of its record.
    pub fn staged(&mut self, request: u64, version: u64, record_length: usize) {
        self.admitted.remove(&request);
        self.keep(version, record_length);
    }

    /// A record of an uncommitted version is here: staged, or brought back by a log.
    pub fn keep(&mut self, version: u64, record_length: usize) {
        self.kept.insert(version, record::logged_bytes(record_length));
    }

    /// The device holds too much for an update now: it waits again, in its place.
    pub fn again(&mut self, request: u64) {
        if let Some(bytes) = self.admitted.remove(&request) {
            self.queue.insert(request, bytes);
        }
    }

    /// An update is not made.
    pub fn forget(&mut self, request: u64) {
        self.queue.remove(&request);
        self.admitted.remove(&request);
    }

    /// No update that waits is made.
    pub fn forget_waiting(&mut self) {
        self.queue.clear();
    }

    /// Everything up to this version is committed.
    pub fn released(&mut self, through: u64) {
        self.kept = self.kept.split_off(&through.saturating_add(1));
    }

    /// Bytes that what is uncommitted takes, or may come to take, in each log.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.kept.values().chain(self.admitted.values()).sum()
    }
}
