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

use super::{
    LOG_RECORD_OVERHEAD_BYTES, ParityNumber, record,
    rooms::{RoomMessage, Rooms},
};
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
/// Updates for which parity nodes have no room for so long are made otherwise. Picked by eye: many times what an update is held, as
/// whoever stores the segment anew makes devices busier that are short of room already.
const ROOM_PATIENCE: Duration = Duration::from_secs(3);

/// What is to be done for the updates that are next.
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
    /// A parity node is to keep room, before anything is stamped; [`UpdateWindow::reserved`] is its answer.
    Reserve {
        /// Who.
        parity: ParityNumber,
        /// Bytes, at least.
        least: u64,
        /// And at most.
        bytes: u64,
    },
    /// A parity node need not keep so much any more.
    GiveBack {
        /// Who.
        parity: ParityNumber,
        /// Bytes.
        bytes: u64,
    },
}

impl From<RoomMessage> for Admission {
    fn from(message: RoomMessage) -> Self {
        match message {
            RoomMessage::Reserve { parity, least, bytes } => Self::Reserve { parity, least, bytes },
            RoomMessage::GiveBack { parity, bytes } => Self::GiveBack { parity, bytes },
        }
    }
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
    /// Bytes of those that the core has and the device has not stamped, and which promise of room they have.
    admitted: BTreeMap<u64, (u64, u64)>,
    /// Bytes of the records of versions that are not committed.
    kept: BTreeMap<u64, u64>,
    rooms: Rooms,
    /// Since when the first has waited for room.
    cramped: Option<Time>,
    /// Whether it did when it was last looked at.
    is_cramped: bool,
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
            rooms: Rooms::new(parities, 0),
            cramped: None,
            is_cramped: false,
        }
    }

    /// The same with a number of its own, by which those that take room from each other try again at different times.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { rooms: Rooms::new(self.logs.len() as ParityNumber, seed), ..self }
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
        self.rooms.none(parity);
    }

    /// It overwrites in place: it is asked what it has, and then for room. What it granted before is forgotten; so it is where it is asked
    /// again.
    pub fn asks_in_place(&mut self, parity: ParityNumber) {
        self.rooms.asking(parity);
    }

    /// Whether a parity node keeps room for this chunk, or is to be asked to.
    pub fn needs_room(&self) -> bool {
        self.rooms.are_needed()
    }

    /// Whether this parity node does.
    pub fn needs_room_at(&self, parity: ParityNumber) -> bool {
        self.rooms.is_needed_at(parity)
    }

    /// Whether a parity node keeps room that no update is to have yet: time must pass then.
    pub fn has_room(&self) -> bool {
        self.rooms.any_granted()
    }

    /// A parity node has said what it has of the chunk.
    pub fn answered(&mut self, parity: ParityNumber) {
        let last_stamped = self.kept.keys().next_back().copied().unwrap_or(0);
        self.rooms.open(parity, last_stamped);
    }

    /// A parity node keeps so much room, or has none.
    pub fn reserved(&mut self, parity: ParityNumber, bytes: u64) {
        self.rooms.reserved(parity, bytes);
    }

    /// Nothing can be stamped before what is held is level, for which there may be no room: whoever waits does not do so for ever.
    pub fn is_not_level(&mut self) {
        self.is_cramped = !self.queue.is_empty();
    }

    /// Time passed; whether the first update has waited for room for so long that it should be made otherwise.
    pub fn tick(&mut self, now: Time) -> bool {
        self.rooms.tick(now);
        if !self.is_cramped {
            self.cramped = None;
            return false;
        }
        now.since(*self.cramped.get_or_insert(now)) > ROOM_PATIENCE
    }

    /// A parity node is out of reach, or still is.
    pub fn lost(&mut self, now: Time, parity: ParityNumber) {
        match self.logs.get_mut(usize::from(parity)) {
            Some(log @ Log::Connected { .. }) => *log = Log::Away { since: now, reached: false },
            Some(Log::Away { reached, .. }) => *reached = false,
            None => {}
        }
        self.rooms.none(parity);
    }

    /// A parity node has taken a difference.
    pub fn took(&mut self, parity: ParityNumber) {
        self.ended.iter_mut().skip(parity.into()).take(1).for_each(|ended| *ended = 0);
    }

    /// A parity node cannot say yet what fits. Whoever waited is to come again, and has all of its patience with it then.
    pub fn not_ready(&mut self, now: Time, parity: ParityNumber) {
        if let Some(Log::Away { since, .. }) = self.logs.get_mut(usize::from(parity)) {
            *since = now;
        }
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
        if self.queue.is_empty() && self.admitted.is_empty() {
            // Whoever waited for room before ended without it: this one's patience begins anew.
            (self.is_cramped, self.cramped) = (false, None);
        }
        self.queue.insert(request, record::granule_bytes(offset, length) + LOG_RECORD_OVERHEAD_BYTES);
    }

    /// The update that waits first. One that nobody wants any more is to be [forgotten](UpdateWindow::forget) before
    /// [`UpdateWindow::poll`]: whoever gave up has done otherwise by then, and it must not come after that.
    pub fn first(&self) -> Option<u64> {
        self.queue.keys().next().copied()
    }

    /// The updates that wait and that nothing is done for yet: they are to be made otherwise.
    pub fn take_waiting(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.queue).into_keys().collect()
    }

    /// What becomes of the update that waits first, or is to be done for it; none while it has to wait.
    pub fn poll(&mut self) -> Option<Admission> {
        if let Some(message) = self.rooms.give_back() {
            return Some(message.into());
        }
        let room = |log: &Log| match log {
            Log::Connected { window_bytes } => Some(*window_bytes),
            Log::Away { .. } => None,
        };
        let window = self.logs.iter().map(room).min().flatten()?;
        let uncommitted = self.uncommitted_bytes();
        let needs_room = self.rooms.are_needed();
        let barred = needs_room && self.rooms.is_barred(self.kept.keys().next().copied());
        let Some((&request, &bytes)) = self.queue.first_key_value() else {
            // One that has room elsewhere may find none here, and come again.
            self.is_cramped &= !self.admitted.is_empty();
            return if needs_room && !barred { self.rooms.ask_ahead().map(Admission::from) } else { None };
        };
        if bytes > window {
            self.queue.remove(&request);
            return Some(Admission::TooLarge { request });
        }
        if uncommitted + bytes > window {
            // It waits for what is on its way, not for room; unless that waits for room itself, being stamped before room was reserved.
            self.is_cramped = needs_room && self.rooms.is_owed(self.kept.keys().next().copied());
            return None;
        }
        let mut promise = 0;
        if needs_room {
            if barred {
                self.is_cramped = true;
                return None;
            }
            let held = held(bytes);
            if !self.rooms.have(held) {
                self.is_cramped = true;
                let mut logged = uncommitted;
                let fit = self.queue.values().take_while(|&&bytes| {
                    logged += bytes;
                    logged <= window
                });
                let all = fit.map(|&bytes| self::held(bytes)).sum();
                return self.rooms.ask(held, all).map(Admission::from);
            }
            promise = self.rooms.promise(held);
        }
        // It may yet be that its own device has no room.
        self.queue.remove(&request);
        self.admitted.insert(request, (bytes, promise));
        Some(Admission::Update { request })
    }

    /// The device stamped an update; the length of its record.
    pub fn staged(&mut self, request: u64, version: u64, record_length: usize) {
        let promise = self.admitted.remove(&request).map_or(0, |(_, promise)| promise);
        self.rooms.staged(promise, version);
        (self.is_cramped, self.cramped) = (false, None);
        self.keep(version, record_length);
    }

    /// A record of an uncommitted version is here: staged, or brought back by a log.
    pub fn keep(&mut self, version: u64, record_length: usize) {
        self.kept.insert(version, record::logged_bytes(record_length));
    }

    /// The device holds too much for an update now: it waits again, in its place, and nobody keeps room for it meanwhile.
    pub fn again(&mut self, request: u64) {
        if let Some((bytes, promise)) = self.admitted.remove(&request) {
            self.rooms.not_staged(promise, held(bytes));
            self.rooms.refused();
            self.queue.insert(request, bytes);
            self.is_cramped = true;
        }
    }

    /// An update is not made.
    pub fn forget(&mut self, request: u64) {
        self.queue.remove(&request);
        if let Some((bytes, promise)) = self.admitted.remove(&request) {
            self.rooms.not_staged(promise, held(bytes));
        }
    }

    /// Everything up to this version is committed.
    pub fn released(&mut self, through: u64) {
        self.kept = self.kept.split_off(&through.saturating_add(1));
    }

    /// Bytes that what is uncommitted takes, or may come to take, in each log.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.kept.values().chain(self.admitted.values().map(|(bytes, _)| bytes)).sum()
    }
}

/// Bytes of room of an update whose record may take so much of a log.
fn held(logged_bytes: u64) -> u64 {
    record::held_bytes_of(logged_bytes - LOG_RECORD_OVERHEAD_BYTES)
}
