//! What the store is asked and has not answered yet: that is all there is to see of a disk that hangs.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Requests of one kind.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<Begun>);

#[derive(Debug, Default)]
struct Begun {
    count: u64,
    /// When each began that is not over, by its number: the oldest first.
    since: BTreeMap<u64, Instant>,
}

impl UnderWay {
    /// A request begins; it is over once what this gives is dropped.
    pub(crate) fn begin(&self) -> Ongoing<'_> {
        let mut begun = self.begun();
        let number = begun.count;
        begun.count += 1;
        begun.since.insert(number, Instant::now());
        Ongoing { among: self, number }
    }

    /// How long the oldest has been under way at `now`.
    pub(crate) fn longest(&self, now: Instant) -> Duration {
        let begun = self.begun();
        let oldest = begun.since.first_key_value();
        oldest.map_or(Duration::ZERO, |(_, &since)| now.saturating_duration_since(since))
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is under way.
pub(crate) struct Ongoing<'a> {
    among: &'a UnderWay,
    number: u64,
}

impl Drop for Ongoing<'_> {
    fn drop(&mut self) {
        self.among.begun().since.remove(&self.number);
    }
}
