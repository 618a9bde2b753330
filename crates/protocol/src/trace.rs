//! One message as it was sent: what the simulator hashes, and what a real server writes down when it is asked to. One
//! schema for both, so that what reads a simulated run's trace reads a real server's.

use crate::{
    Epoch, Time,
    message::{
        BodyError, Fault, FrameKind, Header, MetaAnswer, MetaFault, MetaRequest, NodeAnswer, NodeEvent,
        NodePush, NodeRequest, Priority, Role, decode,
    },
};
use serde::{Deserialize, Serialize};

/// One message that was sent. `H` names a host: a number in a simulation, an address elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record<H> {
    /// When, in nanoseconds since the trace began.
    pub at: Time,
    /// Who sent it.
    pub from: H,
    /// To whom.
    pub to: H,
    /// On which stream: of a simulated world, or of the connection between the two.
    pub stream: u64,
    /// What; of a payload that was damaged on the way, as it was then.
    pub message: Message,
    /// Whether a byte of it was changed on the way.
    pub damaged: bool,
}

/// One message on a stream between a client and a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Opens the stream.
    Open {
        /// What is asked.
        request: Box<NodeRequest>,
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
    Ask(Box<MetaRequest>),
    /// ... and the answer.
    Answer(Box<Result<MetaAnswer, MetaFault>>),
    /// The connection is over: nothing was sent, the other side was found gone.
    Lost,
    /// A frame whose header or body does not match its checksum: never sent, but what one comes to that was damaged on the
    /// way. Whoever gets it closes the stream.
    Damaged,
}

/// The payload of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// How many bytes.
    pub bytes: u32,
    /// Stands for the bytes: equal where they are equal. In a simulation what the bytes were made from; elsewhere their
    /// CRC-64/NVME, 0 where the receiver threw them away unread.
    pub fingerprint: u64,
}

impl Message {
    /// Payload bytes.
    pub fn payload_bytes(&self) -> u32 {
        match self {
            Message::Push(_, payload) | Message::Event(_, payload) => payload.bytes,
            _ => 0,
        }
    }

    /// What a frame says between a client and a server of `role`; nothing of a frame that belongs to the connection itself.
    /// `served`: whether the server sent it.
    ///
    /// # Errors
    /// When the body is not what such a frame has.
    pub fn of_frame(
        role: Role,
        served: bool,
        header: &Header,
        body: &[u8],
        payload: Payload,
    ) -> Result<Option<Self>, BodyError> {
        let meta = role == Role::Meta;
        Ok(Some(match header.kind {
            FrameKind::Hello | FrameKind::Ping | FrameKind::Pong => return Ok(None),
            FrameKind::Open if meta => Message::Ask(Box::new(decode(body)?)),
            FrameKind::Open => Message::Open {
                request: Box::new(decode(body)?),
                priority: header.priority,
                epoch: header.epoch,
                credit_bytes: header.credit,
            },
            FrameKind::Data if served => Message::Event(decode(body)?, payload),
            FrameKind::Data => Message::Push(decode(body)?, payload),
            FrameKind::End if meta => Message::Answer(Box::new(Ok(decode(body)?))),
            FrameKind::End => Message::End(decode(body)?),
            FrameKind::Fail => match decode(body)? {
                Fault::Meta(refusal) if meta => Message::Answer(Box::new(Err(refusal))),
                fault => Message::Fail(fault),
            },
            FrameKind::Cancel => Message::Cancel,
            FrameKind::Credit => Message::Credit(header.credit),
        }))
    }
}
