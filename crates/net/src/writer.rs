//! The task that writes a connection: frames from the lanes, over the link, to the socket.
//!
//! It takes few frames at a time, so that a control frame or a cancel finds most of them still in the lanes, and
//! writes head, body and payload from where they lie. Frames it has taken but not begun are dropped too when
//! their stream is cancelled.
//!
//! A thread that is no runtime's, a lane's, writes what it queues by itself ([`Shared::write_here`]), as long as the socket takes
//! it and nothing is in hand: the runtime's thread need not be woken for it. What the socket does not take is the task's.

use crate::{
    Lost,
    hand::Hand,
    lanes::OutFrame,
    link::Pacer,
    shared::{Shared, State},
    tap::Tapping,
};
use std::sync::{Arc, MutexGuard};
use steadfast_protocol::{
    Time,
    message::{FrameKind, HEADER_BYTES},
};
use tokio::{
    net::tcp::OwnedWriteHalf,
    runtime::Handle,
    time::{Instant, sleep, sleep_until},
};

pub(crate) struct Writer {
    shared: Arc<Shared>,
    socket: Arc<OwnedWriteHalf>,
    /// `None` for a link that adds nothing.
    link: Option<Pacer<OutFrame>>,
    began: Instant,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, half: OwnedWriteHalf) -> Self {
        let link = shared.options.link;
        let tapping = Tapping::of(shared.options.tap.as_ref(), half.local_addr(), half.peer_addr());
        let socket = Arc::new(half);
        *shared.hand() = Hand::new(socket.clone(), tapping);
        let link = (!link.is_transparent()).then(|| Pacer::new(link));
        Self { shared, socket, link, began: Instant::now() }
    }

    /// Writes until the connection is over.
    pub(crate) async fn run(mut self) {
        let shared = self.shared.clone();
        let linger = async {
            shared.closing.notified().await;
            sleep(shared.options.linger).await;
        };
        tokio::pin!(linger);
        let over = tokio::select! {
            biased;
            over = self.pump() => over,
            () = &mut linger => Err(Lost::ClosedHere),
        };
        if let Err(lost) = over {
            shared.fail(lost);
            return;
        }
        // All is sent and nobody holds the connection. Say so, and give the peer time to read it and close: a
        // socket closed with bytes unread would take back what the peer has not read yet.
        shared.hand().socket = None;
        drop(self);
        linger.await;
        shared.fail(Lost::ClosedHere);
    }

    /// `Ok` when the connection is closing and all is sent.
    async fn pump(&mut self) -> Result<(), Lost> {
        loop {
            let taken = self.take_frames();
            if taken.in_hand {
                self.write().await?;
                continue;
            }
            let link_empty = self.link.as_ref().is_none_or(Pacer::is_empty);
            if taken.closing && !taken.more && link_empty {
                return Ok(());
            }
            match self.link.as_ref().and_then(|link| link.wake_at(taken.more)) {
                Some(at) => {
                    let at = self.began + std::time::Duration::from_nanos(at.0);
                    tokio::select! {
                        () = self.shared.to_send.notified() => {}
                        () = sleep_until(at) => {}
                    }
                }
                None => self.shared.to_send.notified().await,
            }
        }
    }

    /// Fills the hand, over the link.
    fn take_frames(&mut self) -> Taken {
        let Some(link) = &mut self.link else { return self.shared.take_frames(&mut self.shared.hand()) };
        let (mut hand, mut state) = (self.shared.hand(), self.shared.lock());
        state.purged.clear();
        let now = Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        while !state.lanes.is_empty() && link.ready(now) {
            if let Some(frame) = pop(&mut state) {
                link.put(now, HEADER_BYTES + frame.body.len() + frame.payload.len(), frame);
            }
        }
        if state.lanes.is_empty() {
            link.idle();
        }
        while hand.has_room() {
            let Some(frame) = link.pop_due(now) else { break };
            hand.take(frame);
        }
        self.shared.taken(&hand, state)
    }

    /// Writes what is in hand.
    async fn write(&mut self) -> Result<(), Lost> {
        loop {
            let took = {
                let mut hand = self.shared.hand();
                if hand.is_empty() {
                    return Ok(());
                }
                hand.write_some(&self.shared.counting)?
            };
            if took {
                // As in the reader: a socket that always takes more must not keep the runtime to itself.
                tokio::task::coop::consume_budget().await;
            } else {
                self.socket.writable().await.map_err(|error| Lost::Io { kind: error.kind() })?;
                self.drop_purged();
            }
        }
    }

    /// Drops DATA in hand, not begun, whose stream was cancelled. What is on a link is gone already.
    fn drop_purged(&mut self) {
        if self.link.is_some() {
            return;
        }
        let mut hand = self.shared.hand();
        let purged = std::mem::take(&mut self.shared.lock().purged);
        if !purged.is_empty() {
            hand.drop_purged(&purged, &self.shared.counting);
        }
    }
}

/// What a look at the lanes found.
pub(crate) struct Taken {
    pub(crate) in_hand: bool,
    /// Whether frames still wait in the lanes.
    pub(crate) more: bool,
    pub(crate) closing: bool,
}

impl Shared {
    /// Fills the hand, which may have what another thread could not write.
    fn take_frames(&self, hand: &mut Hand) -> Taken {
        let mut state = self.lock();
        let purged = std::mem::take(&mut state.purged);
        if !hand.is_empty() && !purged.is_empty() {
            hand.drop_purged(&purged, &self.counting);
        }
        while hand.has_room() {
            let Some(frame) = pop(&mut state) else { break };
            hand.take(frame);
        }
        self.taken(hand, state)
    }

    fn taken(&self, hand: &Hand, state: MutexGuard<'_, State>) -> Taken {
        let room = state.lanes.bulk_bytes() < self.options.unsent_bytes_max;
        let taken =
            Taken { in_hand: !hand.is_empty(), more: !state.lanes.is_empty(), closing: state.closing };
        drop(state);
        if room {
            self.room.notify_waiters();
        }
        taken
    }

    /// Something is to be sent.
    pub(crate) fn wake_writer(&self) {
        let here = self.options.link.is_transparent() && Handle::try_current().is_err() && self.write_here();
        if !here {
            self.to_send.notify_one();
        }
    }

    /// Writes what waits, where the socket takes it all at once; `false`: the task is to look after the rest.
    fn write_here(&self) -> bool {
        let Ok(mut hand) = self.hand.try_lock() else { return false };
        if !hand.is_empty() || hand.socket.is_none() {
            return false;
        }
        let taken = self.take_frames(&mut hand);
        while !hand.is_empty() {
            // Of what fails the task learns by itself.
            if !matches!(hand.write_some(&self.counting), Ok(true)) {
                return false;
            }
        }
        !taken.more && !taken.closing
    }
}

fn pop(state: &mut State) -> Option<OutFrame> {
    let frame = state.lanes.pop()?;
    if frame.header.kind == FrameKind::Pong {
        state.pong_sent();
    }
    Some(frame)
}
