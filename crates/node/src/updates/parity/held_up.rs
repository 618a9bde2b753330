//! What holds a log up, or keeps all from reserving: the node of that data chunk is asked to level it; and where it is gone, or stands still,
//! whoever waits is told.

use super::{Host, Link};
use crate::updates::{Updates, recover};
use bytes::Bytes;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_protocol::{message::LogEvent, serve::parity_log::ChunkNumber};

/// How long what is held from before has to become level before that is asked for again.
const LEVEL_AGAIN: Duration = Duration::from_secs(1);

impl Host {
    /// Has the data chunk level that holds up the log, or keeps all from reserving, where one does.
    pub(super) fn unblock(&mut self, updates: &Arc<Updates>) {
        let before = self.overwrites.is_to_level();
        self.has_to_level &= before.is_some();
        let is_due = self.has_to_level && self.levelled_at.is_none_or(|at| at.elapsed() > LEVEL_AGAIN);
        if is_due {
            (self.has_to_level, self.levelled_at) = (false, Some(Instant::now()));
        }
        let before = before.filter(|_| is_due);
        let (now, wants) = (self.now(), !self.asked_to_merge.is_empty());
        let Some(number) = before.or_else(|| self.upkeep.ask_to_level(now, &self.core, wants)) else {
            return;
        };
        let (chunk, asking) = (self.chunk.clone(), updates.clone());
        if let Some(&holder) = chunk.holders.get(usize::from(number)) {
            updates.spawn(
                async move { recover::ask_to_level(&asking, holder, chunk.segment, chunk.epoch).await },
            );
        }
    }

    /// Tells those whose differences wait behind what may never be committed.
    pub(super) fn tell_held_up(&mut self) {
        let first = self.core.first_uncommitted().map(|first| first.chunk);
        let (now, is_there) = (self.now(), first.is_some_and(|chunk| self.is_there(chunk)));
        if !self.upkeep.is_held_up(now, &self.core, is_there) {
            return;
        }
        for (&stream, link) in &self.links {
            if self.core.holds_back(link.chunk) {
                self.say(stream, &LogEvent::HeldUp, Bytes::new());
            }
        }
    }

    /// Whether the node that changes a data chunk has a stream: the latest of its lives, which alone can say what is committed.
    fn is_there(&self, chunk: ChunkNumber) -> bool {
        let is_latest = |link: &Link| {
            link.life.is_some_and(|(epoch, session)| self.core.is_latest(chunk, epoch, session))
        };
        self.links.values().any(|link| link.chunk == chunk && is_latest(link))
    }
}
