//! Watching the frames of connections: for whoever writes down what went over the wire.

use std::{fmt, net::SocketAddr, sync::Arc};
use steadfast_protocol::message::Header;

/// One frame as it was sent, or as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// Whether this end sent it.
    pub sent: bool,
    /// The address of this end.
    pub ours: SocketAddr,
    /// The address of the other.
    pub theirs: SocketAddr,
    /// Its header.
    pub header: &'a Header,
    /// Its body.
    pub body: &'a [u8],
    /// Its payload; empty where nobody wanted it any more and it was thrown away unread.
    pub payload: &'a [u8],
}

/// Who watches. It is called on the tasks and threads that move frames: what it takes, they wait for.
pub trait Tap: fmt::Debug + Send + Sync {
    /// A frame was written whole, or has arrived whole; the peer's HELLO is not shown.
    fn frame(&self, frame: &Tapped<'_>);
}

/// A tap on a connection, and the addresses of its ends.
#[derive(Clone, Debug)]
pub(crate) struct Tapping {
    tap: Arc<dyn Tap>,
    ours: SocketAddr,
    theirs: SocketAddr,
}

impl Tapping {
    /// None where nobody watches, or the socket has no addresses any more.
    pub(crate) fn of(
        tap: Option<&Arc<dyn Tap>>,
        ours: std::io::Result<SocketAddr>,
        theirs: std::io::Result<SocketAddr>,
    ) -> Option<Self> {
        Some(Self { tap: Arc::clone(tap?), ours: ours.ok()?, theirs: theirs.ok()? })
    }

    pub(crate) fn frame(&self, sent: bool, header: &Header, body: &[u8], payload: &[u8]) {
        let &Self { ref tap, ours, theirs } = self;
        tap.frame(&Tapped { sent, ours, theirs, header, body, payload });
    }
}
