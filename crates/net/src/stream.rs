//! One request, the messages on it, and one end: the handles of a stream.
//!
//! The same handle serves both ends; what each may do differs:
//!
//! | | opener | acceptor |
//! |---|---|---|
//! | `send`, `grant`, `recv` | yes | yes |
//! | `cancel` | CANCEL | nothing |
//! | `end`, `fail` | nothing | END, FAIL |
//! | all handles dropped | CANCEL, unless answered | FAIL, unless answered |
//!
//! Where a server stops, no FAIL is sent: the opener gets [`Event::Lost`], as if the server had been killed.

use crate::{
    Lost,
    shared::{Owner, Shared},
};
use bytes::{Bytes, BytesMut};
use std::{future::poll_fn, sync::Arc};
use steadfast_protocol::message::Fault;

/// What happens on a stream, in the order the peer did it.
#[derive(Debug)]
pub enum Event {
    /// A message and its payload; the payload counts against the credit granted.
    Data {
        /// The message.
        body: Vec<u8>,
        /// The raw bytes it names.
        payload: BytesMut,
    },
    /// The peer will take this many more payload bytes. Grants that were not yet taken are added up.
    Credit(u32),
    /// The opener wants no more (acceptor only): stop, then `fail(&Fault::Cancelled)` or `end`.
    Cancelled,
    /// The answer (opener only). Nothing follows.
    End(Vec<u8>),
    /// A fault instead of an answer (opener only). Nothing follows.
    Failed(Fault),
    /// The connection is gone. Nothing follows.
    Lost(Lost),
}

/// A stream; [`into_split`](Self::into_split) gives ends that two tasks can hold.
#[derive(Debug)]
pub struct Stream {
    sender: StreamSender,
    receiver: StreamReceiver,
}

/// The sending side of a stream; clones share it.
#[derive(Clone, Debug)]
pub struct StreamSender {
    core: Arc<Core>,
}

/// The receiving side of a stream.
#[derive(Debug)]
pub struct StreamReceiver {
    core: Arc<Core>,
}

struct Core {
    owner: Arc<Owner>,
    id: u64,
    ours: bool,
}

impl Stream {
    pub(crate) fn new(owner: Arc<Owner>, id: u64, ours: bool) -> Self {
        let core = Arc::new(Core { owner, id, ours });
        Self { sender: StreamSender { core: core.clone() }, receiver: StreamReceiver { core } }
    }

    /// The stream's id on its connection.
    pub fn id(&self) -> u64 {
        self.sender.core.id
    }

    /// As [`StreamReceiver::recv`].
    pub async fn recv(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }

    /// As [`StreamSender::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&self, body: Vec<u8>, payload: Bytes) -> Result<(), Lost> {
        self.sender.send(body, payload).await
    }

    /// As [`StreamSender::send_now`].
    ///
    /// # Errors
    /// As there.
    pub fn send_now(&self, body: Vec<u8>, payload: Bytes) -> Result<(), Lost> {
        self.sender.send_now(body, payload)
    }

    /// As [`StreamSender::ready`].
    ///
    /// # Errors
    /// As there.
    pub async fn ready(&self) -> Result<(), Lost> {
        self.sender.ready().await
    }

    /// As [`StreamSender::grant`].
    pub fn grant(&self, bytes: u32) -> u32 {
        self.sender.grant(bytes)
    }

    /// As [`StreamSender::cancel`].
    pub fn cancel(&self) {
        self.sender.cancel();
    }

    /// As [`StreamSender::end`].
    ///
    /// # Errors
    /// As there.
    pub fn end(&self, body: Vec<u8>) -> Result<(), Lost> {
        self.sender.end(body)
    }

    /// As [`StreamSender::fail`].
    pub fn fail(&self, fault: &Fault) {
        self.sender.fail(fault);
    }

    /// Another handle of the sending side.
    pub fn sender(&self) -> StreamSender {
        self.sender.clone()
    }

    /// Both sides apart. The stream is dropped with the last of them.
    pub fn into_split(self) -> (StreamSender, StreamReceiver) {
        (self.sender, self.receiver)
    }
}

impl StreamSender {
    /// The stream's id on its connection.
    pub fn id(&self) -> u64 {
        self.core.id
    }

    /// Queues a message and returns when few enough bytes wait on the connection: this is the backpressure of the
    /// socket. It does not wait for credit: whoever sends payload has been told by [`Event::Credit`] (and the
    /// credit of the OPEN) how much the peer takes, and a peer closes the connection on a byte more. On a stream
    /// that is cancelled or answered the message is dropped. If this future is dropped, the message still goes.
    ///
    /// # Errors
    /// When the connection is gone, or the message does not fit a frame.
    pub async fn send(&self, body: Vec<u8>, payload: Bytes) -> Result<(), Lost> {
        self.send_now(body, payload)?;
        self.ready().await
    }

    /// Queues a message without waiting; callers bound what they queue by [`ready`](Self::ready) or by credit.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_now(&self, body: Vec<u8>, payload: Bytes) -> Result<(), Lost> {
        self.shared().data(self.core.id, body, payload)
    }

    /// Whether few enough bytes are queued on the connection that [`ready`](Self::ready) would not wait; `false` once it is gone.
    pub fn is_ready(&self) -> bool {
        self.shared().is_ready()
    }

    /// Waits until few enough bytes are queued on the connection.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn ready(&self) -> Result<(), Lost> {
        self.shared().ready().await
    }

    /// Grants the peer `bytes` more payload bytes on this stream. Gives what was granted: less where the credit
    /// in the peer's hands would exceed `u32::MAX`, nothing once the stream is over.
    pub fn grant(&self, bytes: u32) -> u32 {
        self.shared().grant(self.core.id, bytes)
    }

    /// Tells the acceptor that nothing more is wanted, and drops what is queued on this stream. Its END or FAIL
    /// still comes. Does nothing at the acceptor's end.
    pub fn cancel(&self) {
        if self.core.ours {
            self.shared().cancel(self.core.id);
        }
    }

    /// Answers the stream, after the DATA queued on it. Does nothing at the opener's end or the second time.
    ///
    /// # Errors
    /// When the connection is gone; or when the answer does not fit a frame, in which case the opener is told so.
    pub fn end(&self, body: Vec<u8>) -> Result<(), Lost> {
        if self.core.ours { Ok(()) } else { self.shared().finish(self.core.id, Ok(body)) }
    }

    /// Answers the stream with a fault, after the DATA queued on it. Does nothing at the opener's end or the second
    /// time; nor when the connection is gone, since nobody is left to tell.
    pub fn fail(&self, fault: &Fault) {
        if !self.core.ours {
            // Lost: the opener has learnt it by itself.
            let _ = self.shared().finish(self.core.id, Err(fault));
        }
    }

    fn shared(&self) -> &Shared {
        &self.core.owner.0
    }
}

impl StreamReceiver {
    /// The next event; `None` after the last (END, FAIL, Lost; at the acceptor's end also after its own END or
    /// FAIL). Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Event> {
        poll_fn(|context| self.core.owner.0.poll_event(self.core.id, context.waker())).await
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.owner.0.release(self.id);
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).field("ours", &self.ours).finish_non_exhaustive()
    }
}
