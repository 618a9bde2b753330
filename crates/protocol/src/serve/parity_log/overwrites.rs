//! Differences that go into a parity chunk at once ([`Mode::InPlace`](super::Mode::InPlace)): in which order, and until when the
//! device holds what each replaced.
//!
//! ```text
//!   ask ──▶ waiting ──▶ start ──▶ placed: held under the device's number ──▶ release: that number and all before
//!                │        ▲  │ not_placed: the device holds too much
//!                ▼        └──┘
//!             withdraw
//! ```
//!
//! What is held is bounded for each segment, as the device's room for it is one for all: a data node that died before it said what is
//! committed keeps what comes behind it, and without a bound that would come to be all the room there is. Where the bound is reached
//! nothing more is started; whoever waits for it stores the segment anew, and what is held goes with the old chunks.
//!
//! Invariants: one overwrite is under way at a time, so that none goes in before one that was asked earlier; the device releases in
//! the order of its own numbers, so that what is released is the longest run of them from the first of which each is
//! committed: an uncommitted one of one data chunk keeps later ones of the others; what is held has at most the bound, but for a
//! single one, and what was held from before.

use super::ChunkNumber;
use std::collections::{BTreeMap, VecDeque};

/// A difference that is to go into the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Overwrite {
    /// The data chunk.
    pub chunk: ChunkNumber,
    /// Its version.
    pub version: u64,
    /// Bytes that it changes.
    pub bytes: u64,
    /// The [`ParityInput::Difference`](super::ParityInput::Difference) that brought it.
    pub reply: u64,
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Overwrites {
    held_bytes_max: u64,
    /// In the order asked; the first may be under way.
    waiting: VecDeque<Overwrite>,
    under_way: bool,
    /// Overwritten and not released, by the device's number of each.
    held: BTreeMap<u64, Held>,
    held_bytes: u64,
    /// Committed, by data chunk.
    committed: BTreeMap<ChunkNumber, u64>,
}

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
        let (waiting, committed) = Default::default();
        Self { held_bytes_max, waiting, under_way: false, held, held_bytes, committed }
    }

    /// One more is to go in, after all before.
    pub fn ask(&mut self, overwrite: Overwrite) {
        self.waiting.push_back(overwrite);
    }

    /// The next one, unless one is under way or too much is held of this segment; [`Overwrites::placed`] or
    /// [`Overwrites::not_placed`] answers.
    pub fn start(&mut self) -> Option<Overwrite> {
        if self.under_way {
            return None;
        }
        let next = self.waiting.front().copied()?;
        if !self.held.is_empty() && self.held_bytes + next.bytes > self.held_bytes_max {
            return None;
        }
        self.under_way = true;
        Some(next)
    }

    /// The one under way has its place; the device's number of it. What it was.
    pub fn placed(&mut self, number: u64) -> Option<Overwrite> {
        if !core::mem::take(&mut self.under_way) {
            return None;
        }
        let placed = self.waiting.pop_front()?;
        let Overwrite { chunk, version, bytes, .. } = placed;
        self.held.insert(number, Held { chunk, version, bytes });
        self.held_bytes += bytes;
        Some(placed)
    }

    /// The device holds too much for the one under way: it is started again when something was released, here or of another segment.
    pub fn not_placed(&mut self) {
        self.under_way = false;
    }

    /// Gives up what waits of a data chunk, but for one that is under way: the first such version, and how many. Whoever levels the chunk
    /// asks what is here; what waits for room may wait for what that is the answer to.
    pub fn withdraw(&mut self, chunk: ChunkNumber) -> Option<(u64, usize)> {
        let keep = usize::from(self.under_way);
        let first = self.waiting.iter().skip(keep).find(|waiting| waiting.chunk == chunk)?.version;
        let (before, mut number) = (self.waiting.len(), 0);
        self.waiting.retain(|waiting| {
            number += 1;
            waiting.chunk != chunk || number <= keep
        });
        Some((first, before - self.waiting.len()))
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
        released
    }

    /// Whether anything waits to go in, or to be released.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.held.is_empty()
    }

    /// Those that wait to go in, in order: their differences are needed still.
    pub fn waiting(&self) -> impl Iterator<Item = &Overwrite> {
        self.waiting.iter()
    }
}
