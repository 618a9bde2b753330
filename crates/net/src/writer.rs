//! The task that writes a connection: frames from the lanes, over the link, to the socket.
//!
//! It takes few frames at a time, so that a control frame or a cancel finds most of them still in the lanes, and
//! writes head, body and payload from where they lie. Frames it has taken but not begun are dropped too when
//! their stream is cancelled.

use crate::{
    Lost,
    counters::add,
    lanes::OutFrame,
    link::Pacer,
    shared::{Shared, State},
    tap::Tapping,
};
use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::Arc,
};
use steadfast_protocol::{
    Time,
    message::{FrameKind, HEADER_BYTES},
};
use tokio::{
    net::tcp::OwnedWriteHalf,
    time::{Instant, sleep, sleep_until},
};

/// No further frame is taken once this many bytes are in hand. 64 KiB: small frames share a system call, bulk
/// ones go alone.
const HAND_BYTES: usize = 64 << 10;
/// Frames in hand: three slices each, well under the kernel's 1024 a call.
const HAND_FRAMES: usize = 64;

pub(crate) struct Writer {
    shared: Arc<Shared>,
    half: OwnedWriteHalf,
    hand: VecDeque<Wire>,
    hand_bytes: usize,
    /// `None` for a link that adds nothing.
    link: Option<Pacer<OutFrame>>,
    began: Instant,
    tapping: Option<Tapping>,
}

/// A frame in hand.
struct Wire {
    head: [u8; HEADER_BYTES],
    frame: OutFrame,
    written: usize,
}

impl Wire {
    fn new(frame: OutFrame) -> Self {
        Self { head: frame.header.to_bytes(&frame.body), frame, written: 0 }
    }

    fn len(&self) -> usize {
        HEADER_BYTES + self.frame.body.len() + self.frame.payload.len()
    }
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, half: OwnedWriteHalf) -> Self {
        let link = shared.options.link;
        let tapping = Tapping::of(shared.options.tap.as_ref(), half.local_addr(), half.peer_addr());
        Self {
            tapping,
            shared,
            half,
            hand: VecDeque::new(),
            hand_bytes: 0,
            link: (!link.is_transparent()).then(|| Pacer::new(link)),
            began: Instant::now(),
        }
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
        drop(self);
        linger.await;
        shared.fail(Lost::ClosedHere);
    }

    /// `Ok` when the connection is closing and all is sent.
    async fn pump(&mut self) -> Result<(), Lost> {
        loop {
            let (more, closing) = self.take_frames();
            if !self.hand.is_empty() {
                self.write().await?;
                continue;
            }
            let link_empty = self.link.as_ref().is_none_or(Pacer::is_empty);
            if closing && !more && link_empty {
                return Ok(());
            }
            match self.link.as_ref().and_then(|link| link.wake_at(more)) {
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

    /// Fills the hand; says whether frames still wait in the lanes, and whether the connection is closing.
    fn take_frames(&mut self) -> (bool, bool) {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        state.purged.clear();
        if let Some(mut link) = self.link.take() {
            let now = Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            while !state.lanes.is_empty() && link.ready(now) {
                if let Some(frame) = pop(&mut state) {
                    link.put(now, HEADER_BYTES + frame.body.len() + frame.payload.len(), frame);
                }
            }
            if state.lanes.is_empty() {
                link.idle();
            }
            while self.has_room() {
                let Some(frame) = link.pop_due(now) else { break };
                self.take(frame);
            }
            self.link = Some(link);
        } else {
            while self.has_room() {
                let Some(frame) = pop(&mut state) else { break };
                self.take(frame);
            }
        }
        let room = state.lanes.bulk_bytes() < shared.options.unsent_bytes_max;
        let answer = (!state.lanes.is_empty(), state.closing);
        drop(state);
        if room {
            shared.room.notify_waiters();
        }
        answer
    }

    fn has_room(&self) -> bool {
        self.hand_bytes < HAND_BYTES && self.hand.len() < HAND_FRAMES
    }

    fn take(&mut self, frame: OutFrame) {
        let wire = Wire::new(frame);
        self.hand_bytes += wire.len();
        self.hand.push_back(wire);
    }

    /// Writes what is in hand.
    async fn write(&mut self) -> Result<(), Lost> {
        while !self.hand.is_empty() {
            match self.half.try_write_vectored(&self.slices()) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => {
                    self.written(count);
                    // As in the reader: a socket that always takes more must not keep the runtime to itself.
                    tokio::task::coop::consume_budget().await;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.half.writable().await.map_err(|error| Lost::Io { kind: error.kind() })?;
                        self.drop_purged();
                    }
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return Err(Lost::Closed),
                    kind => return Err(Lost::Io { kind }),
                },
            }
        }
        Ok(())
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(3 * self.hand.len());
        for wire in &self.hand {
            let mut skip = wire.written;
            for part in [&wire.head[..], &wire.frame.body, &wire.frame.payload] {
                let from = skip.min(part.len());
                skip -= from;
                if from < part.len() {
                    slices.push(IoSlice::new(&part[from..]));
                }
            }
        }
        slices
    }

    fn written(&mut self, mut count: usize) {
        let counting = &self.shared.counting;
        add(&counting.bytes_sent, count);
        while count > 0 {
            let wire = self.hand.front_mut().expect("the kernel takes no more than it was given");
            let step = count.min(wire.len() - wire.written);
            wire.written += step;
            count -= step;
            if wire.written == wire.len() {
                add(&counting.frames_sent, 1);
                if let Some(tapping) = &self.tapping {
                    tapping.frame(true, &wire.frame.header, &wire.frame.body, &wire.frame.payload);
                }
                add(&counting.payload_bytes_sent, wire.frame.payload.len());
                self.hand_bytes -= wire.len();
                self.hand.pop_front();
            }
        }
    }

    /// Drops DATA in hand, not begun, whose stream was cancelled. What is on a link is gone already.
    fn drop_purged(&mut self) {
        if self.link.is_some() {
            return;
        }
        let purged = std::mem::take(&mut self.shared.lock().purged);
        if purged.is_empty() {
            return;
        }
        let counting = &self.shared.counting;
        let hand_bytes = &mut self.hand_bytes;
        self.hand.retain(|wire| {
            let header = &wire.frame.header;
            let drop = wire.written == 0 && header.kind == FrameKind::Data && purged.contains(&header.stream);
            if drop {
                *hand_bytes -= wire.len();
                add(&counting.payload_bytes_purged, wire.frame.payload.len());
            }
            !drop
        });
    }
}

fn pop(state: &mut State) -> Option<OutFrame> {
    let frame = state.lanes.pop()?;
    if frame.header.kind == FrameKind::Pong {
        state.pong_sent();
    }
    Some(frame)
}
