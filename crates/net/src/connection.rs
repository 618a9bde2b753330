//! A connection after its HELLO: opening streams, taking those the peer opens, and one request with one answer.

use crate::{
    CallError, Counters, Event, Lost, Stream,
    shared::{Owner, Shared},
};
use bytes::BytesMut;
use std::{
    future::poll_fn,
    sync::{Arc, Weak},
    time::Duration,
};
use steadfast_protocol::{
    Epoch,
    message::{Priority, Role},
};

/// What opens a stream.
#[derive(Clone, Debug, Default)]
pub struct Open {
    /// The request.
    pub body: Vec<u8>,
    /// Its class of service.
    pub priority: Priority,
    /// The epoch it was made under.
    pub epoch: Epoch,
    /// How long the opener will wait; [`Connection::call`] holds to it itself.
    pub deadline: Option<Duration>,
    /// Payload bytes the acceptor may send before it is granted more.
    pub credit: u32,
}

/// A stream that the peer opened.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The request.
    pub body: Vec<u8>,
    /// Its class of service.
    pub priority: Priority,
    /// The epoch it was made under.
    pub epoch: Epoch,
    /// How long the opener waits, counted from when it sent.
    pub deadline: Option<Duration>,
    /// Payload bytes this end may send before the opener grants more.
    pub credit: u32,
}

/// A handle of a connection; clones share it. When every handle, stream and [`Incoming`] is dropped, what is
/// queued is sent (for at most [`Options::linger`](crate::Options::linger)) and the connection closes.
#[derive(Clone)]
pub struct Connection {
    owner: Arc<Owner>,
    version: u8,
    features: u64,
    peer: Role,
    way: Option<Duration>,
}

impl Connection {
    pub(crate) fn new(
        owner: Arc<Owner>,
        version: u8,
        features: u64,
        peer: Role,
        way: Option<Duration>,
    ) -> Self {
        Self { owner, version, features, peer, way }
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// When the connection is gone, or the request does not fit a frame.
    pub fn open(&self, open: Open) -> Result<Stream, Lost> {
        let Open { body, priority, epoch, deadline, credit } = open;
        let id = self.shared().open(body, priority, epoch, deadline, credit)?;
        Ok(Stream::new(self.owner.clone(), id, true))
    }

    /// One request, one answer: the body of the END, and the payloads of the DATA frames before it, joined (there
    /// are none unless [`Open::credit`] lets them). The deadline, where there is one, is kept here.
    ///
    /// # Errors
    /// When the peer answers with a fault, the connection is lost, or the deadline passes.
    pub async fn call(&self, open: Open) -> Result<(Vec<u8>, BytesMut), CallError> {
        match open.deadline {
            Some(deadline) => {
                tokio::time::timeout(deadline, self.answer(open)).await.unwrap_or(Err(CallError::TimedOut))
            }
            None => self.answer(open).await,
        }
    }

    async fn answer(&self, open: Open) -> Result<(Vec<u8>, BytesMut), CallError> {
        let mut stream = self.open(open)?;
        let mut joined = BytesMut::new();
        loop {
            match stream.recv().await {
                Some(Event::Data { payload, .. }) if joined.is_empty() => joined = payload,
                Some(Event::Data { payload, .. }) => joined.extend_from_slice(&payload),
                Some(Event::Credit(_) | Event::Cancelled) => {}
                Some(Event::End(body)) => return Ok((body, joined)),
                Some(Event::Failed(fault)) => return Err(fault.into()),
                Some(Event::Lost(lost)) => return Err(lost.into()),
                None => unreachable!("an opener's stream ends by END, FAIL or Lost"),
            }
        }
    }

    /// Why the connection is gone, once it is.
    pub fn lost(&self) -> Option<Lost> {
        self.shared().lost()
    }

    /// Closes the connection now, queued frames or not. Streams get [`Event::Lost`].
    pub fn close(&self) {
        self.shared().fail(Lost::ClosedHere);
    }

    /// What it moved so far.
    pub fn counters(&self) -> Counters {
        self.shared().counting.read()
    }

    /// Who the other end said it is.
    pub fn peer(&self) -> Role {
        self.peer
    }

    /// The way there and back, as TCP needed it to connect, and what this end's link adds: no process of the peer has a part in it, so
    /// that a busy one does not seem far away. None at the end that accepted.
    pub fn way(&self) -> Option<Duration> {
        self.way
    }

    /// The protocol version both ends use.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// The optional behaviour both ends know, as the bits of `Hello::features`.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// For whoever may close it, without keeping it.
    pub(crate) fn watched(&self) -> Weak<Shared> {
        Arc::downgrade(&self.owner.0)
    }

    fn shared(&self) -> &Shared {
        &self.owner.0
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("lost", &self.lost()).finish_non_exhaustive()
    }
}

/// The streams that the peer opens. Once it is dropped they are refused as not ready.
pub struct Incoming {
    owner: Arc<Owner>,
}

impl Incoming {
    pub(crate) fn new(owner: Arc<Owner>) -> Self {
        Self { owner }
    }

    /// The next stream; `None` when the connection is gone. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<(Opened, Stream)> {
        let (id, opened) = poll_fn(|context| self.owner.0.poll_incoming(context.waker())).await?;
        Some((opened, Stream::new(self.owner.clone(), id, false)))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.owner.0.stop_accepting();
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Incoming")
    }
}
