//! Differences that go into a parity chunk at once ([`Mode::InPlace`](super::Mode::InPlace)): in which order, and until when the
//! device holds what each replaced.
//!
//! ```text
//!   ask ──▶ waiting ──▶ start ──▶ placed: held under the device's number ──▶ release: that number and all before
//!                │        ▲  │ not_placed: the device holds too much
//!                ▼        └──┘ again
//!             withdraw
//! ```
//!
//! What is held is bounded for each segment, as the device's room for it is one for all: a data node that died before it said what is
//! committed keeps what comes behind it, and without a bound that would come to be all the room there is. Where the bound is reached
//! nothing more is reserved; whoever waits for it stores the segment anew, and what is held goes with the old chunks.
//!
//! Data nodes reserve room before they stamp an update ([`Overwrites::reserve`]), on every parity node. So two parity nodes of a segment do
//! not fill up behind updates that each has and the other has no room for. One that comes without (sent again after a crash, or a lost
//! stream) waits for room, and others go past it: they are needed elsewhere, and done with soon. What a crash left here may be without
//! room elsewhere, and what comes behind it is not released before it: nothing is reserved before all of that is.
//!
//! Invariants: one overwrite is under way at a time, and none goes in before an earlier one of its chunk; the device releases in
//! the order of its own numbers, so that what is released is the longest run of them from the first of which each is
//! committed: an uncommitted one of one data chunk keeps later ones of the others; what is held, and reserved, has at most the bound, but
//! for a single one, and what was held from before.

use super::ChunkNumber;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A difference that is to go into the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Overwrite {
    /// The data chunk.
    pub chunk: ChunkNumber,
    /// Its version.
    pub version: u64,
    /// Bytes of room that it needs ([`held_bytes`](super::held_bytes)).
    pub bytes: u64,
    /// The [`ParityInput::Difference`](super::ParityInput::Difference) that brought it.
    pub reply: u64,
    /// Whether that is reserved; set by [`Overwrites::ask`].
    pub reserved: bool,
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Overwrites {
    held_bytes_max: u64,
    /// In the order asked.
    waiting: VecDeque<Overwrite>,
    under_way: Option<Overwrite>,
    /// Whether the device had no room for one that was not reserved for, since [`Overwrites::again`].
    cramped: bool,
    /// Reserved for differences that are to come, by data chunk.
    reserved: BTreeMap<ChunkNumber, u64>,
    /// The device's last number from before.
    before: u64,
    /// Overwritten and not released, by the device's number of each.
    held: BTreeMap<u64, Held>,
    held_bytes: u64,
    /// Committed, by data chunk.
    committed: BTreeMap<ChunkNumber, u64>,
}

/// No update needs so much room, whatever a peer says.
const UPDATE_BYTES_MAX: u64 = 32 << 20;

/// An overwrite that a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The data chunk.
    pub chunk: ChunkNumber,
    /// Its version.
    pub version: u64,
    /// Bytes that it changed.
    pub bytes: u64,
}

impl Overwrites {
    /// What a device holds from before, by its number of each. No more is started while it holds `held_bytes_max`: as much as all
    /// data chunks may have uncommitted, so that the bound is only met where something committed waits behind what is not.
    pub fn new(held_bytes_max: u64, held: impl IntoIterator<Item = (u64, Held)>) -> Self {
        let held: BTreeMap<u64, Held> = held.into_iter().collect();
        let held_bytes = held.values().map(|held| held.bytes).sum();
        Self {
            held_bytes_max,
            waiting: VecDeque::new(),
            under_way: None,
            cramped: false,
            reserved: BTreeMap::new(),
            before: held.keys().next_back().copied().unwrap_or(0),
            held,
            held_bytes,
            committed: BTreeMap::new(),
        }
    }

    /// Reserves up to `bytes` for differences of a data chunk, `least` of them or nothing; how much.
    pub fn reserve(&mut self, chunk: ChunkNumber, least: u64, bytes: u64) -> u64 {
        // Nor while any waits without: it is to have what is released.
        if least > UPDATE_BYTES_MAX || self.is_to_level().is_some() || self.waits_for_room() {
            return 0;
        }
        let taken = self.held_bytes + self.promised_bytes();
        let free = self.held_bytes_max.saturating_sub(taken);
        // A single one, where there is nothing.
        let bytes = bytes.min(if taken == 0 { free.max(least) } else { free });
        if bytes == 0 || bytes < least {
            return 0;
        }
        *self.reserved.entry(chunk).or_default() += bytes;
        bytes
    }

    /// A data chunk of which the device holds something from before: nothing is reserved until it is level.
    pub fn is_to_level(&self) -> Option<ChunkNumber> {
        let (number, held) = self.held.first_key_value()?;
        (*number <= self.before).then_some(held.chunk)
    }

    /// What is reserved for differences of a data chunk that are to come.
    pub fn reserved(&self, chunk: ChunkNumber) -> u64 {
        self.reserved.get(&chunk).copied().unwrap_or(0)
    }

    /// Gives so much of that back, or what there is of it; how much.
    pub fn give_back(&mut self, chunk: ChunkNumber, bytes: u64) -> u64 {
        let reserved = self.reserved.entry(chunk).or_default();
        let bytes = bytes.min(*reserved);
        *reserved -= bytes;
        bytes
    }

    /// Reserved, and not placed.
    fn promised_bytes(&self) -> u64 {
        let arrived = self.waiting.iter().chain(&self.under_way).filter(|it| it.reserved).map(|it| it.bytes);
        self.reserved.values().sum::<u64>() + arrived.sum::<u64>()
    }

    /// One more is to go in, after all before of its chunk.
    pub fn ask(&mut self, overwrite: Overwrite) {
        let reserved =
            self.reserved.get(&overwrite.chunk).is_some_and(|reserved| *reserved >= overwrite.bytes);
        if reserved {
            self.give_back(overwrite.chunk, overwrite.bytes);
        }
        self.waiting.push_back(Overwrite { reserved, ..overwrite });
    }

    /// The next one, unless one is under way or none has room; [`Overwrites::placed`] or [`Overwrites::not_placed`] answers. One that
    /// waits for room keeps later ones of its chunk, and no others that are reserved for.
    pub fn start(&mut self) -> Option<Overwrite> {
        if self.under_way.is_some() {
            return None;
        }
        let taken = self.held_bytes + self.promised_bytes();
        let fits = |next: &Overwrite| self.held.is_empty() || taken + next.bytes <= self.held_bytes_max;
        let mut kept = BTreeSet::new();
        let mut waits = self.cramped;
        let place = self.waiting.iter().position(|next| {
            let has_room = next.reserved || !waits && fits(next);
            // Those without are not to overtake each other either: a small one would a large one, again and again.
            waits |= !next.reserved && !has_room;
            (has_room && !kept.contains(&next.chunk)) || {
                kept.insert(next.chunk);
                false
            }
        })?;
        self.under_way = self.waiting.remove(place);
        self.under_way
    }

    /// The one under way has its place; the device's number of it. What it was.
    pub fn placed(&mut self, number: u64) -> Option<Overwrite> {
        let placed = self.under_way.take()?;
        let Overwrite { chunk, version, bytes, .. } = placed;
        self.held.insert(number, Held { chunk, version, bytes });
        self.held_bytes += bytes;
        Some(placed)
    }

    /// The device holds too much for the one under way: it is started [again](Overwrites::again) when something was released, here or of
    /// another segment. Bytes that were reserved for it, and are not any more: what was reserved for has room; should it not, it waits as
    /// others do.
    pub fn not_placed(&mut self) -> u64 {
        let Some(overwrite) = self.under_way.take() else { return 0 };
        self.waiting.push_front(Overwrite { reserved: false, ..overwrite });
        self.cramped = true;
        if overwrite.reserved { overwrite.bytes } else { 0 }
    }

    /// There may be room where there was none.
    pub fn again(&mut self) {
        self.cramped = false;
    }

    /// Gives up what waits of a data chunk, but for one that is under way, and what was reserved for it: the first such version and how
    /// many, and the bytes. Whoever levels the chunk asks what is here; what waits for room may wait for what that is the answer to.
    pub fn withdraw(&mut self, chunk: ChunkNumber) -> (Option<(u64, usize)>, u64) {
        let mut bytes = self.give_back(chunk, u64::MAX);
        let mut withdrawn: Option<(u64, usize)> = None;
        self.waiting.retain(|waiting| {
            if waiting.chunk != chunk {
                return true;
            }
            bytes += if waiting.reserved { waiting.bytes } else { 0 };
            withdrawn.get_or_insert((waiting.version, 0)).1 += 1;
            false
        });
        (withdrawn, bytes)
    }

    /// A data chunk's versions are committed: up to which of the device's numbers all may be released, where there are more now.
    pub fn release(&mut self, chunk: ChunkNumber, through: u64) -> Option<u64> {
        let committed = self.committed.entry(chunk).or_default();
        *committed = (*committed).max(through);
        let mut released = None;
        while let Some(first) = self.held.first_entry() {
            let Held { chunk, version, bytes } = *first.get();
            if version > self.committed.get(&chunk).copied().unwrap_or(0) {
                break;
            }
            released = Some(first.remove_entry().0);
            self.held_bytes -= bytes;
        }
        self.cramped &= released.is_none();
        released
    }

    /// Whether one waits for room that is not reserved.
    pub fn waits_for_room(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.reserved)
    }

    /// Whether anything waits to go in, or to be released.
    pub fn waits(&self) -> bool {
        self.under_way.is_some() || !self.waiting.is_empty() || !self.held.is_empty()
    }

    /// Those that wait to go in, the one under way first: their differences are needed still.
    pub fn waiting(&self) -> impl Iterator<Item = &Overwrite> {
        self.under_way.iter().chain(&self.waiting)
    }
}
