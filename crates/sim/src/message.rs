//! What travels between hosts: the protocol's own messages. A payload is its length and a fingerprint of its bytes, which
//! stands for the bytes and for their checksums: whoever knows what should have come finds out that it did not.

use crate::random::mix;
use steadfast_protocol::{BlockIndex, SegmentId, Version};

pub use steadfast_protocol::trace::{Message, Payload};

/// Names a stream: unique in a world.
pub type StreamId = u64;

/// Bytes of a frame's header and of a small body: what a message takes on a link beside its payload.
pub const FRAME_BYTES: u64 = 64;

/// Changes one byte of a message's payload; `false` where it has none.
pub(crate) fn flip(message: &mut Message) -> bool {
    match message {
        Message::Push(_, payload) | Message::Event(_, payload) if payload.bytes > 0 => {
            payload.fingerprint ^= 1;
            true
        }
        _ => false,
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
