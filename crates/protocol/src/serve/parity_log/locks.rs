//! Who may touch which rows of a segment, at its primary (§5.3, consistency).
//!
//! Updates of a data chunk go beside each other, also where they overlap: their node puts them in order. A degraded gather
//! reads the same rows of several chunks and must see one state of them, so it holds its rows alone. First come, first
//! served where two exclude each other, so that a gather of rows that are always being updated gets its turn (and so do
//! the updates behind it).
//!
//! Rows are bytes within a chunk: a range of rows is that range of every chunk of the segment.

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

/// What rows are held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// An update of one data chunk: beside other updates.
    Update,
    /// A gather of several chunks: alone.
    Gather,
}

/// Names a request for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Wish {
    rows: Range<u64>,
    purpose: Purpose,
}

impl Wish {
    fn excludes(&self, other: &Self) -> bool {
        let apart = self.rows.end <= other.rows.start || other.rows.end <= self.rows.start;
        !apart && (self.purpose == Purpose::Gather || other.purpose == Purpose::Gather)
    }
}

/// The locks of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locks {
    held: BTreeMap<Ticket, Wish>,
    waiting: VecDeque<(Ticket, Wish)>,
    next: u64,
}

impl Locks {
    /// Asks for rows. Whether they are held at once; if not, a [`Locks::release`] will tell.
    pub fn acquire(&mut self, rows: Range<u64>, purpose: Purpose) -> (Ticket, bool) {
        let ticket = Ticket(self.next);
        self.next += 1;
        let wish = Wish { rows, purpose };
        let granted = self.is_free(&wish, self.waiting.len());
        if granted {
            self.held.insert(ticket, wish);
        } else {
            self.waiting.push_back((ticket, wish));
        }
        (ticket, granted)
    }

    /// Gives rows back, or gives up waiting for them. The tickets that hold theirs from now on.
    pub fn release(&mut self, ticket: Ticket) -> Vec<Ticket> {
        self.held.remove(&ticket);
        self.waiting.retain(|(waiting, _)| *waiting != ticket);
        let mut granted = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            if self.is_free(&self.waiting[at].1, at) {
                let (ticket, wish) = self.waiting.remove(at).expect("just looked at");
                self.held.insert(ticket, wish);
                granted.push(ticket);
            } else {
                at += 1;
            }
        }
        granted
    }

    /// Whether nobody holds or waits for anything.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Whether neither a holder nor one of the first `before` in the queue stands against it.
    fn is_free(&self, wish: &Wish, before: usize) -> bool {
        let ahead = self.waiting.iter().take(before).map(|(_, wish)| wish);
        !self.held.values().chain(ahead).any(|other| wish.excludes(other))
    }
}
