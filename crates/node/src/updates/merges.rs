//! When which logs of a device are merged.
//!
//! A merge that somebody waits for, or soon will, begins at once, [`URGENT_MAX`] at a time. The others wait until the device rests ([`Lull`]), and
//! only one begins then: records and rows of a merge may take 8 MiB, and many logs may be quiet at once.
//!
//! On a device that hardly ever rests a host may leave before its log is merged. Such logs are merged by hosts that begin for it
//! ([`merge_left`]). A log that lies there since before a restart waits for the next update of its chunk, or for the next look at
//! reserves that it is used by.

use super::Updates;
use crate::devices::ServedDevice;
use std::{
    collections::BTreeSet,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use steadfast_disk::{LaneHandle, SegmentId};
use steadfast_protocol::{
    Time,
    serve::{Lull, parity_log::Haste},
};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Merges of one device at a time that nobody waits for: more would not be sooner done.
const QUIET_MAX: usize = 1;
/// And of those that somebody waits for, or soon will, beside them: while one computes, the other reads.
const URGENT_MAX: usize = 2;
/// Operations of a device's merges that go before everybody else's at a time. With one, others have their turn between it and the next:
/// what a merge makes room for is among them.
const FOREMOST_MAX: usize = 1;
/// How often it is looked whether a device rests whose logs nobody looks after: about once in a window of [`Lull`].
const LOOK: Duration = Duration::from_millis(700);

/// The merges of one device.
pub(crate) struct Merges {
    quiet: Semaphore,
    urgent: Semaphore,
    foremost: Semaphore,
    started: Instant,
    lull: Mutex<Lull>,
    /// Chunks whose hosts left before their logs were merged.
    left: Mutex<BTreeSet<SegmentId>>,
}

impl Default for Merges {
    fn default() -> Self {
        let [quiet, urgent, foremost] = [QUIET_MAX, URGENT_MAX, FOREMOST_MAX].map(Semaphore::new);
        Self {
            quiet,
            urgent,
            foremost,
            started: Instant::now(),
            lull: Mutex::default(),
            left: Mutex::default(),
        }
    }
}

impl Merges {
    /// Whether a merge that nobody waits for may begin: the device of this lane rests, and no other is under way.
    pub(super) fn may_begin(&self, lane: &LaneHandle) -> bool {
        let mut lull = self.lull.lock().unwrap_or_else(PoisonError::into_inner);
        lull.look(Time(0) + self.started.elapsed(), lane.foreground()) && self.quiet.available_permits() > 0
    }

    /// Waits until one more may begin. One that becomes urgent waits no longer behind those that are not.
    pub(super) async fn take(&self, haste: &mut watch::Receiver<Haste>) -> SemaphorePermit<'_> {
        let permit = tokio::select! {
            biased;
            () = hurried(haste, Haste::Soon) => self.urgent.acquire().await,
            permit = self.quiet.acquire() => permit,
        };
        permit.expect("nobody closes it")
    }

    /// Whether an operation that somebody waits for goes before everybody else's: so long as what is returned is held, no other does.
    pub(super) fn foremost(&self) -> Option<SemaphorePermit<'_>> {
        self.foremost.try_acquire().ok()
    }

    /// A chunk's host leaves, and its log is not merged.
    pub(super) fn leave(&self, segment: SegmentId) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(segment);
    }

    fn next_left(&self) -> Option<SegmentId> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    fn any_left(&self) -> bool {
        !self.left.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Waits until a merge is to be done so soon: for ever where nobody would say so any more.
pub(super) async fn hurried(haste: &mut watch::Receiver<Haste>, least: Haste) {
    if haste.wait_for(|haste| *haste >= least).await.is_err() {
        pending().await
    }
}

/// Merges logs that nobody looks after while the device rests, one after the other, for ever.
pub(crate) async fn merge_left(updates: Arc<Updates>, device: Arc<ServedDevice>) {
    loop {
        tokio::time::sleep(LOOK).await;
        while device.merges.any_left() && device.merges.may_begin(&device.lane) {
            let Some(segment) = device.merges.next_left() else { break };
            // One that is gone, or cannot be merged now: it waits for its next update as one from before a restart does.
            let left_bytes = updates.merge(device.clone(), segment).await;
            tracing::debug!(device = %device.id, %segment, ?left_bytes, "merged a log that was left");
        }
    }
}
