//! What travels between hosts: the protocol's own messages. A payload is its length and a fingerprint of its bytes, which
//! stands for the bytes and for their checksums: whoever knows what should have come finds out that it did not.

use serde::Serialize;
use steadfast_protocol::{
    BlockIndex, Epoch, SegmentId, Version,
    message::{
        Fault, MetaAnswer, MetaFault, MetaRequest, NodeAnswer, NodeEvent, NodePush, NodeRequest, Priority,
    },
};

use crate::random::mix;

/// Names a stream: unique in a world.
pub type StreamId = u64;

/// One message on a stream between a client and a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Message {
    /// Opens the stream.
    Open {
        /// What is asked.
        request: NodeRequest,
        /// Its class.
        priority: Priority,
        /// The epoch of the layout or intent.
        epoch: Epoch,
        /// The first credit in payload bytes.
        credit_bytes: u32,
    },
    /// Grants payload bytes.
    Credit(u32),
    /// Data to a storage server.
    Push(NodePush, Payload),
    /// Data from a storage server.
    Event(NodeEvent, Payload),
    /// The opener gives the stream up.
    Cancel,
    /// The stream is over.
    End(NodeAnswer),
    /// The stream is over without an answer.
    Fail(Fault),
    /// A request to the metadata server, alone on its stream ...
    Ask(MetaRequest),
    /// ... and the answer.
    Answer(Box<Result<MetaAnswer, MetaFault>>),
    /// The connection is: nothing was sent, the other side was found gone.
    Lost,
    /// A frame whose header or body does not match its checksum: never sent, but what one comes to that was damaged on the
    /// way. Whoever gets it closes the stream.
    Damaged,
}

/// The payload of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Payload {
    /// How many bytes.
    pub bytes: u32,
    /// Of which contents; see [`fingerprint`].
    pub fingerprint: u64,
}

/// Bytes of a frame's header and of a small body: what a message takes on a link beside its payload.
pub const FRAME_BYTES: u64 = 64;

impl Message {
    /// Changes one byte of its payload; `false` where it has none.
    pub(crate) fn flip(&mut self) -> bool {
        match self {
            Message::Push(_, payload) | Message::Event(_, payload) if payload.bytes > 0 => {
                payload.fingerprint ^= 1;
                true
            }
            _ => false,
        }
    }

    /// Payload bytes.
    pub fn payload_bytes(&self) -> u32 {
        match self {
            Message::Push(_, payload) | Message::Event(_, payload) => payload.bytes,
            _ => 0,
        }
    }
}

/// The fingerprint of `bytes` bytes from `offset` on of a block that was made from `contents`.
pub fn fingerprint(
    contents: u64,
    segment: SegmentId,
    version: Version,
    index: BlockIndex,
    offset: u32,
    bytes: u32,
) -> u64 {
    let name = mix(segment.0) ^ mix(version.0).rotate_left(2);
    mix(mix(contents)
        ^ name
        ^ mix(u64::from(index) << 32 | u64::from(offset)).rotate_left(3)
        ^ u64::from(bytes))
}
