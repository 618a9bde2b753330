//! The streams that a read has cancelled: they may say yet what they moved, and nobody waits for those of one part before the next.

use crate::{Client, GetReport};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_protocol::message::{AccessTotals, NodeAnswer};
use steadfast_transfer::{Event, Streams};

/// How long cancelled streams may take at least to say what they moved before they are left out of the count.
const SETTLE: Duration = Duration::from_millis(50);

/// What streams moved, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Payload that arrived, looked at by the decoder or not.
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) medium_bytes: u64,
    /// Blocks that failed their checksums at the servers.
    pub(crate) corrupt_blocks: u32,
}

impl Moved {
    /// Counts what a server says that it moved.
    pub(crate) fn ended(&mut self, answer: &NodeAnswer) {
        if let NodeAnswer::Read(done) = answer {
            self.sent_bytes += done.sent_bytes;
            self.medium_bytes += done.medium_bytes;
            self.corrupt_blocks += done.corrupt_blocks;
        }
    }

    pub(crate) fn add_to(self, report: &mut GetReport) {
        report.received_bytes += self.received_bytes;
        report.sent_bytes += self.sent_bytes;
        report.medium_bytes += self.medium_bytes;
        report.corrupt_blocks += self.corrupt_blocks;
    }

    fn heard(&mut self, event: Event) {
        match event {
            Event::Slice { payload, .. } => self.received_bytes += payload.len() as u64,
            Event::Ended(answer) => self.ended(&answer),
            _ => {}
        }
    }
}

/// Streams that were cancelled, by the parts whose they were.
#[derive(Default)]
pub(crate) struct Leaving(Vec<(Streams, Instant)>);

impl Leaving {
    /// Streams of a part that is here; a round trip takes as long as `way`. A cancel and its answer are one, during which what was
    /// under way arrives.
    pub(crate) fn add(&mut self, streams: Streams, way: Duration) {
        if streams.any_open() {
            self.0.push((streams, Instant::now() + SETTLE.max(2 * way)));
        }
    }

    /// Counts what has come by now, and leaves those alone whose time is over: what they send is not to pile up here.
    pub(crate) fn hear(&mut self, moved: &mut Moved) {
        let now = Instant::now();
        self.0.retain_mut(|(streams, until)| {
            while let Some((_, event)) = streams.try_next() {
                moved.heard(event);
            }
            streams.any_open() && now < *until
        });
    }

    /// Waits for those whose time is not over.
    pub(crate) async fn settle(self, moved: &mut Moved) {
        for (mut streams, until) in self.0 {
            while streams.any_open()
                && let Some((_, event)) = streams.next(Some(until)).await
            {
                moved.heard(event);
            }
        }
    }
}

impl Client {
    /// Notes for the metadata server what an access did once these streams of it have said what they moved, which nobody waits for.
    pub(crate) fn account_settled(&self, leaving: Leaving, done: AccessTotals) {
        if leaving.0.is_empty() {
            if done != AccessTotals::default() {
                self.account(&done);
            }
            return;
        }
        let (tidying, pool) = (Arc::clone(&self.tidying), self.pool.clone());
        let metadata = self.metadata.address().to_owned();
        self.tidying.account_later(async move {
            let mut moved = Moved::default();
            leaving.settle(&mut moved).await;
            let done = AccessTotals {
                received_bytes: done.received_bytes + moved.received_bytes,
                sent_bytes: done.sent_bytes + moved.sent_bytes,
                medium_bytes: done.medium_bytes + moved.medium_bytes,
                ..done
            };
            tidying.account(&pool, &metadata, &done);
        });
    }
}
