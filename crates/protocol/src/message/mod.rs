//! What goes over the wire, for control and data alike.
//!
//! A frame is a fixed [`Header`], a `postcard` body (at most [`BODY_BYTES_MAX`]) and a raw payload (at most
//! [`PAYLOAD_BYTES_MAX`]). Either end of a connection opens streams; a stream is one request, the messages on it
//! and one end. Data on a stream flows under credit that its consumer grants, in payload bytes; CANCEL is a
//! promise (the node starts no further disk I/O for the stream).
//!
//! ```text
//!   opener                                     acceptor
//!     │ OPEN  body: NodeRequest | MetaRequest ─────▶│      credit: payload bytes the opener will take
//!     │◀──────────────────── DATA  body: NodeEvent ─│      (reads: blocks; writes: confirmations)
//!     │ DATA  body: NodePush ──────────────────────▶│      (writes: blocks, within the credit granted)
//!     │ CREDIT ◀───────────────────────────▶ CREDIT │      more payload bytes granted
//!     │◀──────────── END  body: the answer ─────────│      exactly one END or FAIL closes the stream
//!     │◀──────────── FAIL body: Fault ──────────────│
//!     │ CANCEL ────────────────────────────────────▶│      answered by END or FAIL(Cancelled) when nothing runs
//! ```

mod activity;
mod devices;
mod header;
mod ingest;
mod log;
mod meta;
mod node;

pub use activity::*;
pub use devices::*;
pub use header::{
    BODY_BYTES_MAX, FrameKind, HEADER_BYTES, Header, HeaderError, PAYLOAD_BYTES_MAX, Priority, VERSION,
};
pub use ingest::*;
pub use log::*;
pub use meta::*;
pub use node::*;

use crate::{ClusterId, NodeId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The first message of both ends of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The highest protocol version spoken; the lower of both ends' is used.
    pub version: u8,
    /// Optional behaviour that this end knows; both ends use the intersection. None is defined yet.
    pub features: u64,
    /// Who speaks.
    pub role: Role,
    /// The cluster it belongs to, once it knows; another cluster's peer is refused.
    pub cluster: Option<ClusterId>,
}

/// Who is at one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A client of the cluster.
    Client,
    /// A storage server.
    Node(NodeId),
    /// The metadata server.
    Meta,
}

/// Why a request was not answered as asked. Travels in FAIL frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Fault {
    /// The opener cancelled the stream.
    #[error("cancelled")]
    Cancelled,
    /// The node does not admit the request now.
    #[error("refused ({reason}); try again in {retry_after_ms} ms")]
    Refused {
        /// What stands against it.
        reason: RefusalReason,
        /// When asking again makes sense, in milliseconds.
        retry_after_ms: u32,
    },
    /// The request's deadline passed before it could be carried out.
    #[error("its deadline passed")]
    DeadlinePassed,
    /// The message is not one this end understands or allows here.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// The storage node could not do it.
    #[error(transparent)]
    Node(NodeFault),
    /// The metadata server could not do it.
    #[error(transparent)]
    Meta(MetaFault),
}

/// Why a node refuses work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalReason {
    /// Too many streams or queued requests.
    Overloaded,
    /// The server is starting or stopping.
    NotReady,
    /// Others have reserved what was asked for.
    Reserved,
    /// The device does not give so much, whoever asks.
    NoCapacity,
}

impl core::fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            RefusalReason::Overloaded => "overloaded",
            RefusalReason::NotReady => "not ready",
            RefusalReason::Reserved => "reserved by others",
            RefusalReason::NoCapacity => "more than the device gives",
        })
    }
}

/// A body that does not parse as the message it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {expected} of {length} bytes does not parse: the peer is damaged or speaks another version")]
pub struct BodyError {
    /// The type that was expected.
    pub expected: &'static str,
    /// Length of the body in bytes.
    pub length: usize,
}

/// The bytes of a message body.
///
/// # Panics
/// Never for this module's types: their serialisation into memory cannot fail.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages serialise into memory")
}

/// The same behind what `bytes` holds.
///
/// # Panics
/// As [`encode`].
pub fn encode_into<T: Serialize>(message: &T, bytes: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(message, bytes).expect("messages serialise into memory")
}

/// Reads a message body; trailing bytes are an error.
///
/// # Errors
/// When the bytes are not exactly one `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BodyError> {
    let failed = || BodyError { expected: core::any::type_name::<T>(), length: bytes.len() };
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) | Err(_) => Err(failed()),
    }
}
