//! Storing what was written behind the backs of those who write: from when half of the cache is dirty, so that nobody waits for servers
//! before all of it is.
//!
//! ```text
//!   write ─▶ half is dirty ─▶ a task stores the segment least recently used ─▶ room
//!     │                                      ▲ a few at a time
//!     └────▶ no room ────────────────────────┘ waited for; where none is there the writer stores a segment itself
//! ```
//!
//! What such a task cannot store is dirty again, and it says so to nobody: whoever needs it stored, for a sync or for room, tries for
//! itself and is told why it failed. So that no writer is slowed down by tasks that fail over and over, none is begun for a while then.
//!
//! The segment that was written last is not stored so: more of it may come, and much of a segment stored twice costs twice.

use super::{File, Inner, cache::Cache};
use crate::AmendError;
use core::{pin::pin, time::Duration};
use std::{collections::BTreeSet, sync::Arc};

/// Tasks of a handle at a time: as many segments as the usual cache has. Picked by eye.
const TASKS: usize = 4;
/// How long none is begun after one has failed, unless something is stored meanwhile. Picked by eye: what a server takes to come back is
/// longer, and a try costs as much as a write.
const PAUSE: Duration = Duration::from_secs(1);

/// What is being stored so.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// A segment for each task.
    segments: BTreeSet<usize>,
    /// No more are begun before, by the handle's time.
    not_before: Duration,
}

impl Behind {
    /// The segment that one more task is to store now, if any.
    fn next(&mut self, cache: &Cache, now: Duration) -> Option<usize> {
        if self.segments.len() >= TASKS || now < self.not_before || !cache.is_half_dirty() {
            return None;
        }
        let next = cache.oldest_dirty(&self.segments)?;
        self.segments.insert(next);
        Some(next)
    }

    /// A task could not store its segment.
    fn failed(&mut self, now: Duration) {
        self.not_before = now + PAUSE;
    }

    /// Something was stored.
    pub(super) fn stored(&mut self) {
        self.not_before = Duration::ZERO;
    }
}

impl File {
    /// Begins to store what was written where that is due.
    pub(super) fn store_behind(&self) {
        // Without a runtime there are no tasks: writers wait then.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        while let Some(task) = Task::due(&self.inner) {
            let mut tasks = self.behind.lock().expect("never poisoned: no panic while held");
            while tasks.try_join_next().is_some() {}
            tasks.spawn_on(task.run(), &runtime);
        }
    }

    /// Waits until something was stored, so that there may be room; where nothing is being stored that is `oldest`.
    pub(super) async fn make_room(&self, oldest: usize) -> Result<(), AmendError> {
        self.store_behind();
        let mut landed = pin!(self.inner.landed.notified());
        landed.as_mut().enable();
        let is_storing = {
            let state = self.inner.state();
            state.cache.is_flying() || !state.behind.segments.is_empty()
        };
        if is_storing {
            landed.await;
            return Ok(());
        }
        self.inner.state().counts.evictions += 1;
        self.inner.evict(oldest).await
    }
}

/// A segment that is stored while nobody waits for it.
struct Task {
    of: Arc<Inner>,
    segment: usize,
}

impl Task {
    fn due(of: &Arc<Inner>) -> Option<Self> {
        let now = of.opened.elapsed();
        let mut state = of.state();
        let state = &mut *state;
        let segment = state.behind.next(&state.cache, now)?;
        state.counts.evictions += 1;
        Some(Self { of: Arc::clone(of), segment })
    }

    async fn run(self) {
        let Self { of, segment } = &self;
        if let Err(error) = of.evict(*segment).await {
            tracing::debug!(of.bucket, of.key, segment, %error, "not stored: kept for a sync, or until there is no room");
            let now = of.opened.elapsed();
            of.state().behind.failed(now);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.of.state().behind.segments.remove(&self.segment);
        self.of.landed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{cache::Moment, runs::RUN_BYTES};

    #[test]
    fn what_is_least_recently_used_is_stored_from_when_half_is_dirty_and_not_what_was_written_last() {
        let (mut cache, mut behind) = (Cache::new(8 * (100 + RUN_BYTES)), Behind::default());
        let now = Duration::from_secs(9);
        let write =
            |cache: &mut Cache, segment: usize| cache.write(segment, segment as u64 * 1000, &[1; 100]);
        for segment in [5, 1, 2, 3] {
            write(&mut cache, segment).unwrap();
            assert_eq!(behind.next(&cache, now), None);
        }
        write(&mut cache, 4).unwrap();
        assert_eq!(behind.next(&cache, now), Some(5));
        assert_eq!(behind.next(&cache, now), Some(1), "until they fly they are dirty");
        cache.take_off(5, Moment::LAST).unwrap();
        assert_eq!(behind.next(&cache, now), None, "half");
        // What flies is not stored twice at a time, whatever was written to it.
        for segment in [2, 5, 6, 4] {
            write(&mut cache, segment).unwrap();
        }
        assert_eq!(behind.next(&cache, now), Some(3));
        assert_eq!(behind.next(&cache, now), Some(2));
        assert_eq!(behind.next(&cache, now), None, "no more at a time");
        behind.segments.clear();
        cache.landed(5, false);
        let all: Vec<usize> = core::iter::from_fn(|| behind.next(&cache, now)).collect();
        assert_eq!(all, [1, 3, 2, 5]);
        // One segment alone is left to whoever has no room.
        let (mut alone, mut behind) = (Cache::new(1000), Behind::default());
        alone.write(0, 0, &[1; 700]).unwrap();
        assert_eq!(behind.next(&alone, now), None);
    }

    #[test]
    fn after_a_failure_there_is_a_pause_unless_something_is_stored() {
        let (mut cache, mut behind) = (Cache::new(1000), Behind::default());
        for segment in [0, 1] {
            cache.write(segment, segment as u64 * 1000, &[1; 200]).unwrap();
        }
        let now = Duration::from_secs(9);
        let next = |behind: &mut Behind, now| {
            behind.segments.clear();
            behind.next(&cache, now)
        };
        assert_eq!(next(&mut behind, now), Some(0));
        behind.failed(now);
        assert_eq!(next(&mut behind, now + PAUSE / 2), None);
        assert_eq!(next(&mut behind, now + PAUSE), Some(0));
        behind.failed(now);
        behind.stored();
        assert_eq!(next(&mut behind, now), Some(0));
    }
}
