//! The task that reads a connection: bytes to frames, frames to streams, and whether the peer still lives.
//!
//! ```text
//!            ping_after without a byte, a stream open        lost_after in all
//!   Hearing ───────────────────────────────────────▶ Asked ───────────────────▶ Lost(Silent)
//!      ▲ └─ no stream open: look again later           │
//!      └────────────────── any byte ───────────────────┘
//! ```

use crate::{
    Lost,
    buffer::payload_buffer,
    counters::add,
    parser::HeadParser,
    shared::{Shared, Verdict},
    tap::Tapping,
};
use bytes::{BufMut, BytesMut};
use std::{io, pin::Pin, sync::Arc};
use steadfast_protocol::message::{HEADER_BYTES, Header};
use tokio::{
    io::AsyncReadExt,
    net::tcp::OwnedReadHalf,
    time::{Instant, Sleep, sleep},
};

/// Heads are read through a buffer of this size; a payload's bytes beyond it come straight from the socket into
/// their own. 8 KiB: holds a slice's head many times over, and copying that much of a payload costs nothing.
const BUFFER_BYTES: usize = 8 << 10;

pub(crate) struct Reader {
    shared: Arc<Shared>,
    half: OwnedReadHalf,
    parser: HeadParser,
    buffer: Box<[u8]>,
    /// Bytes of `buffer` not yet parsed.
    unread: std::ops::Range<usize>,
    heard_at: Instant,
    asked_at: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    tapping: Option<Tapping>,
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
            asked_at: None,
            timer,
        }
    }

    /// The body of the peer's HELLO.
    pub(crate) async fn hello(&mut self) -> Result<Vec<u8>, Lost> {
        let (_, body) = self.head().await?;
        Ok(body)
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
                self.asked_at = None;
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
        let options = &self.shared.options;
        let now = Instant::now();
        let patience = options.lost_after.saturating_sub(options.ping_after);
        let next = match self.asked_at {
            Some(asked_at) if now >= asked_at + patience => {
                return Err(Lost::Silent { silence: now - self.heard_at });
            }
            Some(asked_at) => asked_at + patience,
            None if now < self.heard_at + options.ping_after => self.heard_at + options.ping_after,
            None => {
                if self.shared.ping() {
                    self.asked_at = Some(now);
                    now + patience
                } else {
                    now + options.ping_after
                }
            }
        };
        self.timer.as_mut().reset(next);
        Ok(())
    }
}
