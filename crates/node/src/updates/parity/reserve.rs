//! What is asked of a parity chunk's reserve once a period is over, or once its device rests: that its log is merged, that its end is given
//! back. One chunk of a device is asked after the other, and there may be thousands: what cannot be done soon is not waited for, as it is
//! asked for again.

use super::{Asked, Host};
use std::time::Duration;
use steadfast_disk::Op;
use steadfast_protocol::{Time, serve::parity_log::Shrinking};
use tokio::sync::oneshot;

/// A log that nobody could begin to merge for so long waits for somebody who does not come; one that was not quiet for so long is in use.
/// Picked by eye: a data chunk's node that is asked to level begins a host for that, and says what is committed, in a fraction of it.
const ASKED_MAX: Duration = Duration::from_secs(2);

/// What became of a reserve that was to shrink.
pub(crate) enum Shrunk {
    /// It has.
    Done,
    /// Its log is in use, or it cannot be done now.
    NotNow,
    /// It would be of no use: it needs so many bytes, or none.
    TooSmall { least_bytes: u64 },
}

/// Somebody waits until the reserve has only so many bytes.
pub(super) struct ToShrink {
    pub(super) reserve_bytes: u64,
    pub(super) since: Time,
    pub(super) shrunk: oneshot::Sender<Shrunk>,
}

impl Host {
    /// Whether somebody waits for its reserve.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.asked_to_merge.is_empty() || self.asked_to_shrink.is_some()
    }

    /// Whoever waits for a merge learns what the log takes.
    pub(super) fn tell_merged(&mut self) {
        for (_, asked) in self.asked_to_merge.drain(..) {
            // Nobody waits any more.
            let _ = asked.send(self.core.logged_bytes());
        }
    }

    /// Whoever waits for a merge does so no longer where nothing is known to be committed, though whose node knows was asked about that.
    pub(super) fn give_up_merging(&mut self) {
        let now = self.now();
        if self.core.mergeable_bytes() == 0 && !self.core.is_merging() {
            self.asked_to_merge.retain(|(since, _)| now.since(*since) <= ASKED_MAX);
        }
    }

    /// Gives the end of the reserve back once it may be.
    pub(super) fn shrink(&mut self) {
        let Some(asked) = self.asked_to_shrink.take().filter(|asked| !asked.shrunk.is_closed()) else {
            return;
        };
        let ToShrink { reserve_bytes, since, shrunk } = asked;
        let (now, writing, data) = (self.now(), self.asked > 0, self.chunk.shape.data);
        // Nobody sends a difference before it was greeted here, and asked what is: without a stream none is on its way.
        let used = self.is_changed || !self.links.is_empty();
        let not_now = match self.upkeep.shrink(now, &self.core, writing, used, data, reserve_bytes) {
            Shrinking::Now => {
                let (segment, epoch) = (self.chunk.segment, self.core.epoch());
                return self
                    .ask(Asked::Shrink { shrunk }, Op::ShrinkReserve { segment, epoch, reserve_bytes });
            }
            Shrinking::Later if now.since(since) <= ASKED_MAX => {
                self.asked_to_shrink = Some(ToShrink { reserve_bytes, since, shrunk });
                return;
            }
            Shrinking::Later => Shrunk::NotNow,
            Shrinking::TooSmall { least_bytes } => Shrunk::TooSmall { least_bytes },
        };
        // Nobody waits any more: the next look at reserves asks again.
        let _ = shrunk.send(not_now);
    }
}
