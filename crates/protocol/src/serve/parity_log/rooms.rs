//! Room for what is overwritten in place, at every parity node before an update is stamped.
//!
//! ```text
//!   queued ──▶ Reserve to all ──▶ granted by all ──▶ promised to updates ──▶ staged: spent with the difference
//!     ▲                │ refused by one                     │ not staged
//!     └── some ticks ──┴──▶ GiveBack to all ◀───────────────┘
//! ```
//!
//! Why: a device holds only so much that is not committed, and an update is held at its data node and at every parity node. One that is
//! stamped cannot be taken back. If two were stamped, each held on one device and without room on the other one's, neither was ever
//! committed, and all that comes later waits for them.
//!
//! Why that is enough. (1) An update that is stamped has its room everywhere: at its own device it was stamped in it, at others it spends
//! what was reserved. It waits for flushes and messages, never for room, so it is committed and its room is free again. (2) Nobody keeps
//! room and waits for more: where one refuses, or the own device does, all is given back; so is what nothing was done with for a
//! while. (3) What is sent again after a crash or a lost stream comes without a reservation, as the node forgot it, and may wait. Nothing
//! of its chunk is reserved before it is committed, and nothing of others on a device where such a one waits. What is reserved there goes
//! past it and is done with by (1), and then it has room: all that was stamped fitted before.
//!
//! That leaves out: nodes that crash again before what the first crash left is level may find that it does not fit any more. Whoever waits
//! then stores the segment anew, as beside a data node that died.
//!
//! Invariants: what is promised was granted by every open room; nothing is promised while anything is owed or refused.

use super::ParityNumber;
use crate::Time;
use core::{ops::RangeInclusive, time::Duration};

/// Updates of one size for which a writer that goes on keeps room, at least and at most: twice as many as it made from one tick to the
/// next. It reserves again when half of it is used: the answer is there before the next update is.
const AHEAD: RangeInclusive<u64> = 2..=16;
/// How long room is kept for whoever does nothing with it. Random updates come to each of some dozens of chunks a few times in a second: room
/// for 20 ms only, one tick, made single ones of 4 KiB take a fifth longer.
const KEPT_FOR: Duration = Duration::from_millis(250);

/// What one parity node keeps for a data chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Room {
    /// It logs, and needs none; or it is out of reach.
    #[default]
    None,
    /// It was not heard yet what it has of the chunk.
    Asking,
    /// It gives room.
    Open {
        granted: u64,
        /// An answer is due.
        asked: Option<Asked>,
        /// Promises up to this one were of room before.
        since: u64,
    },
}

/// How much a parity node was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    least: u64,
    most: u64,
}

/// A message to a parity node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomMessage {
    Reserve { parity: ParityNumber, least: u64, bytes: u64 },
    GiveBack { parity: ParityNumber, bytes: u64 },
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rooms {
    of: Vec<Room>,
    /// Versions up to here may have been sent to a node that keeps no room for them.
    owed_through: u64,
    /// Ticks that are to pass before anything is reserved again.
    pause: u32,
    /// Refusals in a row, by which the pause is drawn: two that refuse each other are not to meet again and again.
    refusals: u32,
    seed: u64,
    /// Whether what is granted is to go back although nobody refused: nothing was done with it.
    rests: bool,
    /// Whether anything was granted or promised since the last tick, and which was the last tick of which that was so.
    moved: bool,
    moved_at: Option<Time>,
    /// Whether less was granted than asked for since the last tick: nobody keeps room ahead meanwhile.
    is_short: bool,
    /// Updates promised room since the last tick, and between the two before.
    promised: (u64, u64),
    /// And since nothing was done for long.
    promised_on: u64,
    /// Bytes of the last.
    last_bytes: u64,
    promises: u64,
}

impl Rooms {
    pub(super) fn new(parities: ParityNumber, seed: u64) -> Self {
        Self {
            of: vec![Room::None; parities.into()],
            owed_through: 0,
            pause: 0,
            refusals: 0,
            seed,
            rests: false,
            moved: false,
            moved_at: None,
            is_short: false,
            promised: (0, 0),
            promised_on: 0,
            last_bytes: 0,
            promises: 0,
        }
    }

    /// Whether any parity is overwritten in place.
    pub(super) fn are_needed(&self) -> bool {
        self.of.iter().any(|room| *room != Room::None)
    }

    pub(super) fn is_needed_at(&self, parity: ParityNumber) -> bool {
        self.of.get(usize::from(parity)).is_some_and(|room| *room != Room::None)
    }

    /// Whether anything is granted that no update was promised.
    pub(super) fn any_granted(&self) -> bool {
        let is_granted = |room: &Room| matches!(room, Room::Open { granted, asked, .. } if *granted > 0 || asked.is_some());
        self.of.iter().any(is_granted)
    }

    /// A parity node overwrites in place: it is about to say what it has, and keeps nothing of what it granted before.
    pub(super) fn asking(&mut self, parity: ParityNumber) {
        self.set(parity, Room::Asking);
    }

    /// A parity node needs none, or is out of reach: what others granted is of no use meanwhile.
    pub(super) fn none(&mut self, parity: ParityNumber) {
        self.set(parity, Room::None);
        self.rests = true;
    }

    fn set(&mut self, parity: ParityNumber, room: Room) {
        if let Some(of) = self.of.get_mut(usize::from(parity)) {
            *of = room;
        }
    }

    /// It has said what it has. What was stamped, or promised, before may come to it without a reservation.
    pub(super) fn open(&mut self, parity: ParityNumber, last_stamped: u64) {
        if let Some(room @ Room::Asking) = self.of.get_mut(usize::from(parity)) {
            *room = Room::Open { granted: 0, asked: None, since: self.promises };
            self.owed_through = self.owed_through.max(last_stamped);
        }
    }

    /// An answer to a reservation: so much, or nothing.
    pub(super) fn reserved(&mut self, parity: ParityNumber, bytes: u64) {
        let Some(Room::Open { granted, asked, .. }) = self.of.get_mut(usize::from(parity)) else { return };
        let Some(Asked { least, most }) = asked.take() else { return };
        // Whatever a peer says.
        *granted += bytes.min(most);
        // Who asks ahead and gets nothing would else keep for ever what others have given.
        self.moved |= bytes > 0;
        self.is_short |= bytes < most;
        if bytes < least {
            self.refused();
        }
    }

    /// An update is stamped. One that was promised room before a node began anew comes to that without.
    pub(super) fn staged(&mut self, promise: u64, version: u64) {
        if self.of.iter().any(|room| matches!(room, Room::Open { since, .. } if promise <= *since)) {
            self.owed_through = self.owed_through.max(version);
        }
    }

    /// Some device has no room: all that is granted goes back.
    pub(super) fn refused(&mut self) {
        if self.pause == 0 {
            self.pause = 1 + (self.seed.rotate_right(2 * self.refusals) % 4) as u32;
            self.refusals = self.refusals.wrapping_add(1);
        }
    }

    /// Time passed.
    pub(super) fn tick(&mut self, now: Time) {
        self.pause = self.pause.saturating_sub(1);
        self.is_short = false;
        if std::mem::take(&mut self.moved) {
            self.moved_at = Some(now);
        }
        if self.moved_at.is_none_or(|at| now.since(at) >= KEPT_FOR) {
            self.rests = true;
            self.promised_on = 0;
        }
        self.promised = (0, self.promised.0);
    }

    /// What is to be given back, one after the other.
    pub(super) fn give_back(&mut self) -> Option<RoomMessage> {
        if !self.rests && self.pause == 0 {
            return None;
        }
        for (parity, room) in self.of.iter_mut().enumerate() {
            if let Room::Open { granted, .. } = room
                && *granted > 0
            {
                let bytes = std::mem::take(granted);
                return Some(RoomMessage::GiveBack { parity: parity as ParityNumber, bytes });
            }
        }
        self.rests = false;
        None
    }

    /// Whether nothing may be reserved now; `first_kept` is the first version that is not committed.
    pub(super) fn is_barred(&self, first_kept: Option<u64>) -> bool {
        self.pause > 0 || self.is_owed(first_kept) || self.of.contains(&Room::Asking)
    }

    /// Whether a version that is not committed was stamped before room was reserved for any.
    pub(super) fn is_owed(&self, first_kept: Option<u64>) -> bool {
        first_kept.is_some_and(|version| version <= self.owed_through)
    }

    /// Whether every node has granted so much.
    pub(super) fn have(&self, bytes: u64) -> bool {
        self.of.iter().all(|room| match room {
            Room::None => true,
            Room::Asking => false,
            Room::Open { granted, .. } => *granted >= bytes,
        })
    }

    /// Whom to ask for room next, where updates of so many bytes are queued, of which the first has `first`.
    pub(super) fn ask(&mut self, first: u64, queued: u64) -> Option<RoomMessage> {
        // Where there is little room nobody is to have more than is needed now.
        let wanted = if self.refusals > 0 { first } else { queued.max(self.ahead(first)) };
        self.ask_each(first, first, wanted)
    }

    /// The same where nothing is queued, and a writer that goes on will soon be back.
    pub(super) fn ask_ahead(&mut self) -> Option<RoomMessage> {
        match self.ahead(self.last_bytes) {
            wanted if wanted > 0 && self.refusals == 0 && !self.is_short => {
                self.ask_each(wanted / 2, 0, wanted)
            }
            _ => None,
        }
    }

    /// What a writer that goes on is about to need.
    fn ahead(&self, one: u64) -> u64 {
        let goes_on = self.promised_on > 1;
        let updates = (2 * self.promised.1).clamp(*AHEAD.start(), *AHEAD.end());
        if goes_on { updates * one } else { 0 }
    }

    /// Asks who has granted less than `below` for what makes it `wanted`; fewer bytes than so that it has `least` are a refusal.
    fn ask_each(&mut self, below: u64, least: u64, wanted: u64) -> Option<RoomMessage> {
        for (parity, room) in self.of.iter_mut().enumerate() {
            if let Room::Open { granted, asked: asked @ None, .. } = room
                && *granted < below
            {
                let (least, bytes) = (least.saturating_sub(*granted), wanted.saturating_sub(*granted));
                *asked = Some(Asked { least, most: bytes });
                return Some(RoomMessage::Reserve { parity: parity as ParityNumber, least, bytes });
            }
        }
        None
    }

    /// An update is to be staged, and has room; the number of that promise.
    pub(super) fn promise(&mut self, bytes: u64) -> u64 {
        self.change(|granted, _| *granted -= bytes);
        (self.refusals, self.moved) = (0, true);
        self.promised.0 += 1;
        self.promised_on += 1;
        self.last_bytes = bytes;
        self.promises += 1;
        self.promises
    }

    /// It was not: what it was promised may be another's.
    pub(super) fn not_staged(&mut self, promise: u64, bytes: u64) {
        self.change(|granted, since| *granted += if promise > since { bytes } else { 0 });
    }

    fn change(&mut self, change: impl Fn(&mut u64, u64)) {
        for room in &mut self.of {
            if let Room::Open { granted, since, .. } = room {
                change(granted, *since);
            }
        }
    }
}
