//! How many records of each kind the store has, without looking through it at every question.
//!
//! ```text
//!   Unknown ──first question──▶ Counting ──counted──▶ Known, kept by every commit
//!      ▲                           │ a commit's outcome is unknown
//!      └───────────────────────────┴────────────────────┘
//! ```
//!
//! The first question has the snapshot of that moment counted; what commits change meanwhile is added.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use steadfast_protocol::meta::Counted;

/// Changes of the numbers of records.
pub(crate) type Deltas = BTreeMap<Counted, i64>;

/// The count of records.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Held over a commit, and over the taking of a snapshot to be counted: neither falls into the other.
    gate: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unknown,
    /// What was committed since the snapshot that is being counted; the number tells one count from another.
    Counting(u64, Deltas),
    Known(Deltas),
}

impl Census {
    /// Holds commits up while it lives. Waits for the disk if one is under way.
    pub(crate) fn committing(&self) -> Committing<'_> {
        Committing { census: self, _gate: self.gate.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// The numbers, where they are known. Never waits for the disk.
    pub(crate) fn known(&self) -> Option<BTreeMap<Counted, u64>> {
        match &*self.state() {
            State::Known(counts) => {
                Some(counts.iter().map(|(&kind, &count)| (kind, u64::try_from(count).unwrap_or(0))).collect())
            }
            _ => None,
        }
    }

    /// A count of the snapshot taken at [`Committing::begin`] is done.
    pub(crate) fn counted(&self, count: u64, mut found: Deltas) {
        let mut state = self.state();
        if let State::Counting(of, since) = &*state
            && *of == count
        {
            since.iter().for_each(|(&kind, delta)| *found.entry(kind).or_default() += delta);
            *state = State::Known(found);
        }
    }

    /// What is stored is not known: count again at the next question.
    pub(crate) fn lost(&self) {
        *self.state() = State::Unknown;
    }

    /// Whether nothing is known and nothing is being counted.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(*self.state(), State::Unknown)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to commit, or to take the snapshot to be counted.
pub(crate) struct Committing<'a> {
    census: &'a Census,
    _gate: MutexGuard<'a, ()>,
}

impl Committing<'_> {
    /// What was just committed.
    pub(crate) fn committed(self, deltas: &Deltas) {
        match &mut *self.census.state() {
            State::Unknown => {}
            State::Counting(_, counts) | State::Known(counts) => {
                deltas.iter().for_each(|(&kind, delta)| *counts.entry(kind).or_default() += delta);
            }
        }
    }

    /// Begins a count, if none is known or under way; `count` names it.
    pub(crate) fn begin(&self, count: u64) -> bool {
        let mut state = self.census.state();
        let begins = matches!(*state, State::Unknown);
        if begins {
            *state = State::Counting(count, Deltas::new());
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_while_counting_is_added_once() {
        let census = Census::default();
        census.committing().committed(&[(Counted::Object, 5)].into());
        assert!(census.committing().begin(1));
        assert!(!census.committing().begin(2), "one count at a time");
        census.committing().committed(&[(Counted::Object, -1), (Counted::Bucket, 1)].into());
        assert_eq!(census.known(), None);
        census.counted(1, [(Counted::Object, 7), (Counted::Bucket, 0), (Counted::Intent, 2)].into());
        census.committing().committed(&[(Counted::Intent, -2)].into());
        let known = census.known().expect("counted");
        assert_eq!(known, [(Counted::Bucket, 1), (Counted::Object, 6), (Counted::Intent, 0)].into());
    }

    #[test]
    fn a_count_that_was_overtaken_by_a_failure_is_dropped() {
        let census = Census::default();
        assert!(census.committing().begin(1));
        census.lost();
        assert!(census.committing().begin(2));
        census.counted(1, [(Counted::Object, 7)].into());
        assert_eq!(census.known(), None);
    }
}
