//! What a connection waits for and how much it holds. Every number here was picked by eye; each says why.

use crate::{Link, Tap};
use std::{sync::Arc, time::Duration};

/// Times and limits of a connection.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long to wait for TCP to connect. 2 s: one lost SYN is sent again after 1 s, a second is a dead host.
    pub connect_timeout: Duration,
    /// How long to wait for the peer's HELLO. 2 s: far more than a round trip, far less than a person's patience.
    pub hello_timeout: Duration,
    /// Silence, with a stream open, after which a PING is sent. 2 s: rare enough to cost nothing.
    pub ping_after: Duration,
    /// Silence, with a stream open, after which the connection is lost. 6 s: an honest peer starved of its
    /// processor answers within that; one lost packet certainly does. A PING that lies behind bytes which the peer is
    /// taking, however slowly, is no silence; bytes of which it takes none for so long are.
    pub lost_after: Duration,
    /// Silence, at the end that accepted and without a stream open, after which a PING is sent all the same. 60 s: a peer
    /// that vanished keeps its place for so long at most, and one that has nothing to say costs next to nothing.
    pub idle_ping_after: Duration,
    /// How long a connection that nobody holds any more may take to send what is queued. 2 s, as for HELLO.
    pub linger: Duration,
    /// The most streams a peer may have open here; more are refused as overloaded. 4096: a client of 64 devices
    /// with 64 requests each.
    pub streams_max: usize,
    /// Payload and body bytes queued in this program above which senders wait. 1 MiB: four slices, enough to keep
    /// a socket busy between two turns of the runtime, little enough that a cancel saves most of them.
    pub unsent_bytes_max: usize,
    /// Size of the kernel's send buffer in bytes (the kernel doubles it for its own use); `None` leaves it to the
    /// kernel, which may hold megabytes that no cancel reaches. 512 KiB: 40 Gbit/s at 0.1 ms; set
    /// rate x round trip for links that are both fast and far.
    pub send_buffer_bytes: Option<usize>,
    /// Delay and rate added to what this end sends.
    pub link: Link,
    /// Who watches the frames; nobody, and at no cost, when absent.
    pub tap: Option<Arc<dyn Tap>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            hello_timeout: Duration::from_secs(2),
            ping_after: Duration::from_secs(2),
            lost_after: Duration::from_secs(6),
            idle_ping_after: Duration::from_secs(60),
            linger: Duration::from_secs(2),
            streams_max: 4096,
            unsent_bytes_max: 1 << 20,
            send_buffer_bytes: Some(512 << 10),
            link: Link::default(),
            tap: None,
        }
    }
}
