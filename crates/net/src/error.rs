//! Errors of this crate, one enum for each thing that can be asked.

use crate::parser::ParseError;
use std::{io, time::Duration};
use steadfast_protocol::{ClusterId, message::Fault};

/// Why a connection (or one message on it) could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// This end closed the connection.
    #[error("this end closed the connection")]
    ClosedHere,
    /// The operating system gave the connection up.
    #[error("connection lost: {kind}")]
    Io {
        /// The operating system's reason.
        kind: io::ErrorKind,
    },
    /// The peer said nothing, not even to a ping.
    #[error("the peer has been silent for {} ms", silence.as_millis())]
    Silent {
        /// For how long.
        silence: Duration,
    },
    /// The peer broke the protocol; the connection was closed.
    #[error("the peer broke the protocol: {0}")]
    Violation(Violation),
    /// The peer takes no frames while it makes this end answer: the answers would fill the memory.
    #[error("{frames} control frames wait for a peer that does not read")]
    Backlog {
        /// Control frames queued.
        frames: usize,
    },
    /// This message is too long and was not sent; the connection lives. Ask for less or page the answer.
    #[error("a body of {body_bytes} and payload of {payload_bytes} bytes do not fit a frame")]
    TooLong {
        /// Length of the body.
        body_bytes: usize,
        /// Length of the payload.
        payload_bytes: usize,
    },
}

/// How a peer broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Bytes that are no frame.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Payload beyond the credit granted.
    #[error("{payload_bytes} payload bytes on stream {stream}, where only {credit} were granted")]
    Credit {
        /// The stream.
        stream: u64,
        /// Payload bytes of the frame.
        payload_bytes: u32,
        /// Payload bytes still granted.
        credit: u64,
    },
    /// A stream opened with an id that is not the opener's or not new.
    #[error("stream {stream} opened, but ids of that end are {parity} and grow; the last was {last}", parity = if *odd { "odd" } else { "even" })]
    StreamId {
        /// The id.
        stream: u64,
        /// Whether the peer's ids are odd.
        odd: bool,
        /// The highest id that end used.
        last: u64,
    },
    /// A frame on a stream that was never opened.
    #[error("frame on stream {stream}, which was never opened")]
    NeverOpened {
        /// The id.
        stream: u64,
    },
    /// A frame that only the other end of the stream may send.
    #[error("frame on stream {stream} that only its {} may send", if *by_opener { "acceptor" } else { "opener" })]
    WrongEnd {
        /// The stream.
        stream: u64,
        /// Whether the opener sent it.
        by_opener: bool,
    },
    /// A FAIL whose fault does not parse.
    #[error("the fault on stream {stream} does not parse")]
    Fault {
        /// The stream.
        stream: u64,
    },
    /// More credit than a stream can hold.
    #[error("more than {} bytes of credit at once on stream {stream}", u32::MAX)]
    CreditOverflow {
        /// The stream.
        stream: u64,
    },
    /// Messages sent faster than they are taken, in bytes beyond their payload.
    #[error("{queued_bytes} bytes of messages wait on stream {stream}; the limit is {limit_bytes}")]
    Flood {
        /// The stream.
        stream: u64,
        /// Bytes waiting.
        queued_bytes: usize,
        /// The limit in bytes.
        limit_bytes: usize,
    },
}

/// Why two ends could not become a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The address could not be resolved or reached.
    #[error("cannot reach {address}: {detail}")]
    Unreachable {
        /// As given.
        address: String,
        /// The operating system's words.
        detail: String,
    },
    /// TCP did not connect in time.
    #[error("no connection to {address} within {} ms", waited.as_millis())]
    TimedOut {
        /// As given.
        address: String,
        /// How long it was tried.
        waited: Duration,
    },
    /// The peer accepted and then said nothing.
    #[error("connected, but no HELLO within {} ms", waited.as_millis())]
    NoHello {
        /// How long it was awaited.
        waited: Duration,
    },
    /// The peer's HELLO does not parse: it is damaged or speaks another version.
    #[error("a HELLO of {body_bytes} bytes that does not parse")]
    Greeting {
        /// Length of its body.
        body_bytes: usize,
    },
    /// The peer belongs to another cluster.
    #[error("the peer belongs to cluster {theirs}; this end to {ours}")]
    Cluster {
        /// This end's cluster.
        ours: ClusterId,
        /// The peer's cluster.
        theirs: ClusterId,
    },
    /// The peer speaks no version that this end speaks.
    #[error("the peer speaks at most version {theirs}; this end needs at least {needed}")]
    Version {
        /// The peer's highest version.
        theirs: u8,
        /// This end's lowest version.
        needed: u8,
    },
    /// The connection was lost before or during the HELLO; a [`Violation`] here means the peer is something else.
    #[error("no greeting: {0}")]
    Lost(#[from] Lost),
}

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection was lost: whether the request was carried out is unknown.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The peer answered that it could or would not.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The deadline passed; the request was cancelled, and whether it was carried out is unknown.
    #[error("no answer within its deadline")]
    TimedOut,
}
