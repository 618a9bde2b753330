//! The task that reads a connection: bytes to frames, frames to streams, and whether the peer still lives.
//!
//! ```text
//!            ping_after without a byte, a stream open        lost_after in all
//!   Hearing ───────────────────────────────────────▶ Asked ───────────────────▶ Lost(Silent)
//!      ▲ └─ no stream open: look again later          │ ▲ └── the PING is on its way yet, and the peer took bytes:
//!      └────────────────── any byte ──────────────────┘ └──── counted from there
//! ```
//!
//! An end that accepted asks now and then without a stream, too: a peer that vanished does not keep its place for ever.

use crate::{
    Lost,
    buffer::payload_buffer,
    counters::add,
    parser::HeadParser,
    shared::{Shared, Verdict},
    tap::Tapping,
    unacknowledged::unacknowledged_bytes,
};
use bytes::{BufMut, BytesMut};
use std::{io, ops::Range, pin::Pin, sync::Arc};
use steadfast_protocol::message::{HEADER_BYTES, Header};
use tokio::{
    io::AsyncReadExt,
    net::tcp::OwnedReadHalf,
    time::{Instant, Sleep, sleep},
};

/// Heads are read through a buffer of this size; a payload's bytes beyond it come straight from the socket into
/// their own. 8 KiB: holds a slice's head many times over, and copying that much of a payload costs nothing.
const BUFFER_BYTES: usize = 8 << 10;
/// How often it is seen, in the time that a peer has for its answer, whether it takes what was written. 4: one that dies
/// while it does is found a quarter of that time later.
const LOOKS: u32 = 4;

pub(crate) struct Reader {
    shared: Arc<Shared>,
    half: OwnedReadHalf,
    parser: HeadParser,
    buffer: Box<[u8]>,
    /// Bytes of `buffer` not yet parsed.
    unread: Range<usize>,
    heard_at: Instant,
    asked: Option<Asked>,
    /// PINGs queued so far.
    pings: u64,
    timer: Pin<Box<Sleep>>,
    tapping: Option<Tapping>,
}

/// The peer was asked whether it lives.
struct Asked {
    /// From when its silence counts.
    since: Instant,
    /// How much of what was written it had by then, in bytes.
    taken_bytes: u64,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, half: OwnedReadHalf) -> Self {
        let timer = Box::pin(sleep(shared.options.ping_after));
        let tapping = Tapping::of(shared.options.tap.as_ref(), half.local_addr(), half.peer_addr());
        Self {
            tapping,
            shared,
            half,
            parser: HeadParser::default(),
            buffer: vec![0; BUFFER_BYTES].into(),
            unread: 0..0,
            heard_at: Instant::now(),
            asked: None,
            pings: 0,
            timer,
        }
    }

    /// The body of the peer's HELLO.
    pub(crate) async fn hello(&mut self) -> Result<Vec<u8>, Lost> {
        let (_, body) = self.head().await?;
        Ok(body)
    }

    /// Drops what comes until the peer has closed.
    pub(crate) async fn until_closed(mut self) {
        while self.refill().await.is_ok() {}
    }

    /// Reads until the connection is over.
    pub(crate) async fn run(mut self) {
        let lost = loop {
            if let Err(lost) = self.frame().await {
                break lost;
            }
        };
        self.shared.fail(lost);
    }

    async fn frame(&mut self) -> Result<(), Lost> {
        let (header, mut body) = self.head().await?;
        let payload_bytes = header.payload_bytes as usize;
        let seen = self.tapping.is_some().then(|| body.clone());
        let tell = |tapping: &Option<Tapping>, payload: &[u8]| {
            if let (Some(tapping), Some(body)) = (tapping, &seen) {
                tapping.frame(false, &header, body, payload);
            }
        };
        match self.shared.arrived(header, &mut body)? {
            Verdict::Done => tell(&self.tapping, &[]),
            Verdict::Take => {
                let payload = self.payload(payload_bytes).await?;
                tell(&self.tapping, &payload);
                self.shared.deliver(header.stream, body, payload)?;
            }
            Verdict::Discard => {
                self.discard(payload_bytes).await?;
                tell(&self.tapping, &[]);
                add(&self.shared.counting.payload_bytes_discarded, payload_bytes);
            }
        }
        let counting = &self.shared.counting;
        add(&counting.frames_received, 1);
        add(&counting.bytes_received, HEADER_BYTES + header.body_bytes as usize + payload_bytes);
        Ok(())
    }

    async fn head(&mut self) -> Result<(Header, Vec<u8>), Lost> {
        loop {
            let mut input = &self.buffer[self.unread.clone()];
            let parsed = self.parser.feed(&mut input)?;
            self.unread.start = self.unread.end - input.len();
            if let Some(head) = parsed {
                return Ok(head);
            }
            self.refill().await?;
        }
    }

    async fn payload(&mut self, len: usize) -> Result<BytesMut, Lost> {
        let mut payload = payload_buffer(len);
        let buffered = self.unread.len().min(len);
        payload.extend_from_slice(&self.buffer[self.unread.start..][..buffered]);
        self.unread.start += buffered;
        while payload.len() < len {
            let missing = len - payload.len();
            let mut rest = (&mut payload).limit(missing);
            // A socket that always has more does not keep the runtime from everybody else: `read` has the task's budget.
            let read = tokio::select! {
                biased;
                read = self.half.read_buf(&mut rest) => Some(read),
                () = self.timer.as_mut() => None,
            };
            self.after(read)?;
        }
        Ok(payload)
    }

    async fn discard(&mut self, mut len: usize) -> Result<(), Lost> {
        loop {
            let dropped = self.unread.len().min(len);
            self.unread.start += dropped;
            len -= dropped;
            if len == 0 {
                return Ok(());
            }
            self.refill().await?;
        }
    }

    /// Reads into the buffer, all of which has been used.
    async fn refill(&mut self) -> Result<(), Lost> {
        loop {
            // Not `try_read`: what is told by less than was asked for, that the socket has no more, would be asked of it again.
            let read = tokio::select! {
                biased;
                read = self.half.read(&mut self.buffer) => Some(read),
                () = self.timer.as_mut() => None,
            };
            if let Some(count) = self.after(read)? {
                self.unread = 0..count;
                return Ok(());
            }
        }
    }

    /// After a read, or when it was time to look for life before anything came: how many bytes came.
    fn after(&mut self, read: Option<io::Result<usize>>) -> Result<Option<usize>, Lost> {
        match read {
            Some(Ok(0)) => Err(Lost::Closed),
            Some(Ok(count)) => {
                self.heard_at = Instant::now();
                self.asked = None;
                Ok(Some(count))
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Some(Err(error)) => Err(Lost::Io { kind: error.kind() }),
            None => {
                self.look_for_life()?;
                Ok(None)
            }
        }
    }

    fn look_for_life(&mut self) -> Result<(), Lost> {
        let now = Instant::now();
        let (ping_after, lost_after) = (self.shared.options.ping_after, self.shared.options.lost_after);
        let patience = lost_after.saturating_sub(ping_after);
        let (taken_bytes, heard_it) = self.taken();
        let next = if let Some(asked) = &mut self.asked {
            if !heard_it && taken_bytes > asked.taken_bytes {
                *asked = Asked { since: now, taken_bytes };
            }
            let until = asked.since + patience;
            if now >= until {
                return Err(Lost::Silent { silence: now - self.heard_at });
            }
            until.min(now + patience / LOOKS)
        } else if now < self.heard_at + ping_after {
            self.heard_at + ping_after
        } else if self.shared.ping(self.is_due_though_idle(now)) {
            self.pings += 1;
            self.asked = Some(Asked { since: now, taken_bytes });
            now + patience / LOOKS
        } else {
            now + ping_after
        };
        self.timer.as_mut().reset(next);
        Ok(())
    }

    fn is_due_though_idle(&self, now: Instant) -> bool {
        self.shared.accepted() && now >= self.heard_at + self.shared.options.idle_ping_after
    }

    /// How much of what was written the peer's system has, in bytes, and whether the last PING is part of it.
    fn taken(&self) -> (u64, bool) {
        // Under the lock, so that nothing is written between the two.
        let hand = self.shared.hand();
        let written = hand.so_far();
        let taken_bytes = written.bytes.saturating_sub(unacknowledged_bytes(self.half.as_ref()));
        (taken_bytes, written.pings >= self.pings && taken_bytes >= written.pinged_through)
    }
}
