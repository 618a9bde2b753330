//! The fixed header of every frame: 48 bytes, little-endian, no padding.
//!
//! ```text
//!  0  2  3  4     6   7    8       16      24          28       32         36            40     44
//!  ┌──┬──┬──┬─────┬───┬────┬───────┬───────┬───────────┬────────┬──────────┬─────────────┬──────┬──────────┐
//!  │SF│v │k │flags│pri│ 0  │stream │epoch  │deadline_us│credit  │body_bytes│payload_bytes│ crc  │ 0        │
//!  └──┴──┴──┴─────┴───┴────┴───────┴───────┴───────────┴────────┴──────────┴─────────────┴──────┴──────────┘
//! ```
//!
//! `crc` is CRC-32C over the first 40 bytes and the body; payloads carry their own granule checksums.

use crate::Epoch;
use serde::{Deserialize, Serialize};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// The protocol version this code speaks. Both ends make a code's graph from its seed: other graphs are another version. 3
/// has layouts of several pieces, 4 cyclic parity columns, 5 reads that are told to finish, 6 policies that say how many
/// chunks are enough, 7 objects that promise more than their bucket, 8 room that is reserved before an update in place, 9 chunks that
/// lack changes, and amendments that say what they have fenced, 10 amendments that say what they were made from.
pub const VERSION: u8 = 10;
/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 48;
/// The most bytes a body may have: a layout of 1024 devices with many ranges fits well.
pub const BODY_BYTES_MAX: u32 = 4 << 20;
/// The most payload bytes in one frame; blocks travel in slices of at most this.
pub const PAYLOAD_BYTES_MAX: u32 = 256 << 10;

const MAGIC: [u8; 2] = *b"SF";

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// First frame of both ends.
    Hello,
    /// Opens a stream with a request.
    Open,
    /// A message on an open stream.
    Data,
    /// The answer; closes the stream.
    End,
    /// A fault; closes the stream.
    Fail,
    /// The opener wants no more of this stream.
    Cancel,
    /// Grants `credit` more payload bytes on the stream.
    Credit,
    /// Asks whether the peer lives.
    Ping,
    /// Answers a ping.
    Pong,
}

/// Classes of service at a node's queues; lower is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Priority {
    /// Short control requests.
    Control,
    /// A person or program waits for it.
    #[default]
    Foreground,
    /// Repair, sweeps, draining.
    Background,
}

/// The header of a frame, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: FrameKind,
    /// Class of service of the stream.
    pub priority: Priority,
    /// The stream (request id). Odd: opened by the end that connected; even: by the end that accepted; zero: the
    /// connection itself.
    pub stream: u64,
    /// Fences changes: a node refuses an epoch older than the segment's.
    pub epoch: Epoch,
    /// Microseconds left until the opener stops waiting; zero for no deadline.
    pub deadline_us: u32,
    /// Payload bytes granted to the receiver of this frame.
    pub credit: u32,
    /// Length of the body.
    pub body_bytes: u32,
    /// Length of the payload.
    pub payload_bytes: u32,
}

/// A header that cannot be taken: the connection is closed, since nothing after it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not this protocol.
    #[error("not a Steadfast frame: it begins with {found:02x?}")]
    Magic {
        /// The first bytes.
        found: [u8; 2],
    },
    /// A version that this end does not speak.
    #[error("frame of protocol version {found}; this end speaks version {VERSION}")]
    Version {
        /// The frame's version.
        found: u8,
    },
    /// A kind or class that does not exist.
    #[error("frame of unknown kind {kind} or priority {priority}")]
    Unknown {
        /// The kind byte.
        kind: u8,
        /// The priority byte.
        priority: u8,
    },
    /// A length above the limit.
    #[error(
        "frame announces {body_bytes} body and {payload_bytes} payload bytes; the limits are {BODY_BYTES_MAX} and {PAYLOAD_BYTES_MAX}"
    )]
    TooLong {
        /// Announced body length.
        body_bytes: u32,
        /// Announced payload length.
        payload_bytes: u32,
    },
    /// Header or body were damaged on the way.
    #[error("frame damaged in transit: checksum {found:08x}, expected {expected:08x}")]
    Checksum {
        /// As sent.
        found: u32,
        /// As computed here.
        expected: u32,
    },
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    flags: U16,
    priority: u8,
    reserved: u8,
    stream: U64,
    epoch: U64,
    deadline_us: U32,
    credit: U32,
    body_bytes: U32,
    payload_bytes: U32,
    checksum: U32,
    reserved_tail: U32,
}

impl Header {
    /// A header of `kind` on `stream` with everything else at rest.
    pub fn new(kind: FrameKind, stream: u64) -> Self {
        Self {
            kind,
            priority: Priority::default(),
            stream,
            epoch: Epoch(0),
            deadline_us: 0,
            credit: 0,
            body_bytes: 0,
            payload_bytes: 0,
        }
    }

    /// The header's bytes, with the checksum over it and `body`.
    ///
    /// # Panics
    /// When `body` is not `body_bytes` long or a length is above its limit: the caller's mistake.
    pub fn to_bytes(&self, body: &[u8]) -> [u8; HEADER_BYTES] {
        assert_eq!(self.body_bytes as usize, body.len());
        assert!(self.body_bytes <= BODY_BYTES_MAX && self.payload_bytes <= PAYLOAD_BYTES_MAX);
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind as u8,
            flags: U16::ZERO,
            priority: self.priority as u8,
            reserved: 0,
            stream: self.stream.into(),
            epoch: self.epoch.0.into(),
            deadline_us: self.deadline_us.into(),
            credit: self.credit.into(),
            body_bytes: self.body_bytes.into(),
            payload_bytes: self.payload_bytes.into(),
            checksum: U32::ZERO,
            reserved_tail: U32::ZERO,
        };
        raw.checksum = checksum(&raw, body).into();
        raw.as_bytes().try_into().expect("the layout is 48 bytes")
    }

    /// Reads a header; the body is checked by [`Header::check_body`] once it is there.
    ///
    /// # Errors
    /// Every [`HeaderError`] but the checksum's.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let raw = Raw::ref_from_bytes(bytes).expect("the layout is 48 bytes, unaligned");
        if raw.magic != MAGIC {
            return Err(HeaderError::Magic { found: raw.magic });
        }
        if raw.version != VERSION {
            return Err(HeaderError::Version { found: raw.version });
        }
        let unknown = HeaderError::Unknown { kind: raw.kind, priority: raw.priority };
        let header = Self {
            kind: frame_kind(raw.kind).ok_or(unknown)?,
            priority: priority(raw.priority).ok_or(unknown)?,
            stream: raw.stream.get(),
            epoch: Epoch(raw.epoch.get()),
            deadline_us: raw.deadline_us.get(),
            credit: raw.credit.get(),
            body_bytes: raw.body_bytes.get(),
            payload_bytes: raw.payload_bytes.get(),
        };
        if header.body_bytes > BODY_BYTES_MAX || header.payload_bytes > PAYLOAD_BYTES_MAX {
            let Self { body_bytes, payload_bytes, .. } = header;
            return Err(HeaderError::TooLong { body_bytes, payload_bytes });
        }
        Ok(header)
    }

    /// Checks that header and body arrived as sent.
    ///
    /// # Errors
    /// [`HeaderError::Checksum`].
    pub fn check_body(bytes: &[u8; HEADER_BYTES], body: &[u8]) -> Result<(), HeaderError> {
        let raw = Raw::ref_from_bytes(bytes).expect("the layout is 48 bytes, unaligned");
        let expected = checksum(raw, body);
        let found = raw.checksum.get();
        if found == expected { Ok(()) } else { Err(HeaderError::Checksum { found, expected }) }
    }
}

fn checksum(raw: &Raw, body: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&raw.as_bytes()[..40]);
    digest.update(body);
    u32::try_from(digest.finalize()).expect("a CRC-32")
}

fn frame_kind(byte: u8) -> Option<FrameKind> {
    use FrameKind::{Cancel, Credit, Data, End, Fail, Hello, Open, Ping, Pong};
    [Hello, Open, Data, End, Fail, Cancel, Credit, Ping, Pong].into_iter().find(|&kind| kind as u8 == byte)
}

fn priority(byte: u8) -> Option<Priority> {
    [Priority::Control, Priority::Foreground, Priority::Background]
        .into_iter()
        .find(|&class| class as u8 == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Header, Vec<u8>) {
        let body = b"some body".to_vec();
        let header = Header {
            priority: Priority::Background,
            epoch: Epoch(7),
            deadline_us: 5_000,
            credit: 1 << 20,
            body_bytes: u32::try_from(body.len()).unwrap(),
            payload_bytes: 4096,
            ..Header::new(FrameKind::Data, 43)
        };
        (header, body)
    }

    #[test]
    fn a_header_comes_back_as_it_went() {
        let (header, body) = sample();
        let bytes = header.to_bytes(&body);
        assert_eq!(Header::from_bytes(&bytes), Ok(header));
        assert_eq!(Header::check_body(&bytes, &body), Ok(()));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let (header, body) = sample();
        let good = header.to_bytes(&body);
        // The last four bytes are reserved and carry nothing.
        for bit in 0..(HEADER_BYTES - 4) * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Header::from_bytes(&bytes).and_then(|_| Header::check_body(&bytes, &body)).is_err(),
                "bit {bit}"
            );
        }
        for bit in 0..body.len() * 8 {
            let mut damaged = body.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::check_body(&good, &damaged).is_err());
        }
    }
}
