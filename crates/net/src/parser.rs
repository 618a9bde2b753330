//! Frames out of a byte stream, without I/O.
//!
//! Bytes go in as they arrive, in pieces of any size; frames or one typed error come out. Invariants:
//! - a header is judged as soon as its 48 bytes are there: garbage costs no more than that;
//! - memory is taken for bytes that arrived, never for bytes announced (a body grows as it comes; a payload, at
//!   most 256 KiB, is the exception: it is allocated whole because the socket is read straight into it);
//! - the first frame is HELLO and no later one is; kinds that carry no body or payload have none;
//! - after an error the parser stays in it.
//!
//! [`HeadParser`] stops before the payload, so that a reader can fill its own buffer from the socket;
//! [`Parser`] does it all.

use crate::buffer::payload_buffer;
use bytes::BytesMut;
use steadfast_protocol::message::{FrameKind, HEADER_BYTES, Header, HeaderError};

#[cfg(test)]
mod tests;

/// The most bytes a HELLO's body may have: it has a few dozen, and comes from a peer not yet known.
pub const HELLO_BODY_BYTES_MAX: u32 = 1024;

/// One frame as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The header, checked.
    pub header: Header,
    /// The body, checked against the header's checksum.
    pub body: Vec<u8>,
    /// The payload; its own checksums are the receiver's to check.
    pub payload: BytesMut,
}

/// Bytes that are no frame of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The header or its checksum is wrong.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The first frame was not HELLO, or a later one was.
    #[error("a {kind:?} frame where {} is due", if *first { "HELLO" } else { "anything but HELLO" })]
    Order {
        /// The frame's kind.
        kind: FrameKind,
        /// Whether it was the first.
        first: bool,
    },
    /// A kind of frame with a body or payload longer than that kind may have, or on the wrong kind of stream.
    #[error("a {kind:?} frame on stream {stream} with {body_bytes} body and {payload_bytes} payload bytes")]
    Shape {
        /// The frame's kind.
        kind: FrameKind,
        /// Its stream.
        stream: u64,
        /// Announced body length.
        body_bytes: u32,
        /// Announced payload length.
        payload_bytes: u32,
    },
    /// The bytes end inside a frame.
    #[error("the bytes end inside a frame, after {have} of its bytes")]
    Truncated {
        /// Bytes of the frame that were there.
        have: usize,
    },
}

/// Parses header and body; the payload is left in the input.
///
/// ```text
///   Header ──48 bytes, judged──▶ Body ──body_bytes, checksum──▶ (header, body) handed out, back to Header
///     └────────────┬──────────────┘
///                  ▼
///               Failed
/// ```
#[derive(Debug)]
pub struct HeadParser {
    head: [u8; HEADER_BYTES],
    head_filled: usize,
    header: Option<Header>,
    body: Vec<u8>,
    greeted: bool,
    failed: Option<ParseError>,
}

impl Default for HeadParser {
    fn default() -> Self {
        Self {
            head: [0; HEADER_BYTES],
            head_filled: 0,
            header: None,
            body: Vec::new(),
            greeted: false,
            failed: None,
        }
    }
}

impl HeadParser {
    /// Takes bytes off the front of `input` until a header and its body are whole, or `input` is empty. The
    /// caller takes the frame's payload off the input before it calls again.
    ///
    /// # Errors
    /// Every [`ParseError`] but truncation; the same one ever after.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<(Header, Vec<u8>)>, ParseError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let parsed = self.step(input);
        if let Err(error) = &parsed {
            self.failed = Some(error.clone());
            self.body = Vec::new();
        }
        parsed
    }

    fn step(&mut self, input: &mut &[u8]) -> Result<Option<(Header, Vec<u8>)>, ParseError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let taken = take(input, HEADER_BYTES - self.head_filled);
                self.head[self.head_filled..][..taken.len()].copy_from_slice(taken);
                self.head_filled += taken.len();
                if self.head_filled < HEADER_BYTES {
                    return Ok(None);
                }
                let header = Header::from_bytes(&self.head)?;
                check_order_and_shape(&header, !self.greeted)?;
                self.header = Some(header);
                header
            }
        };
        let body_bytes = header.body_bytes as usize;
        self.body.extend_from_slice(take(input, body_bytes - self.body.len()));
        if self.body.len() < body_bytes {
            return Ok(None);
        }
        Header::check_body(&self.head, &self.body)?;
        self.greeted = true;
        self.head_filled = 0;
        self.header = None;
        Ok(Some((header, std::mem::take(&mut self.body))))
    }

    /// Bytes of an unfinished frame taken so far; zero between frames.
    pub fn pending(&self) -> usize {
        self.head_filled + self.body.len()
    }
}

/// Parses whole frames.
#[derive(Debug, Default)]
pub struct Parser {
    head: HeadParser,
    waiting: Option<(Header, Vec<u8>, BytesMut)>,
}

impl Parser {
    /// Takes bytes off the front of `input` until a frame is whole, or `input` is empty.
    ///
    /// # Errors
    /// As [`HeadParser::feed`].
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, ParseError> {
        let (header, body, mut payload) = match self.waiting.take() {
            Some(waiting) => waiting,
            None => match self.head.feed(input)? {
                Some((header, body)) => (header, body, payload_buffer(header.payload_bytes as usize)),
                None => return Ok(None),
            },
        };
        let payload_bytes = header.payload_bytes as usize;
        payload.extend_from_slice(take(input, payload_bytes - payload.len()));
        if payload.len() < payload_bytes {
            self.waiting = Some((header, body, payload));
            return Ok(None);
        }
        Ok(Some(Frame { header, body, payload }))
    }

    /// Says whether the bytes may end here.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] inside a frame.
    pub fn finish(&self) -> Result<(), ParseError> {
        let have = match &self.waiting {
            Some((_, body, payload)) => HEADER_BYTES + body.len() + payload.len(),
            None => self.head.pending(),
        };
        if have == 0 { Ok(()) } else { Err(ParseError::Truncated { have }) }
    }
}

fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    taken
}

fn check_order_and_shape(header: &Header, first: bool) -> Result<(), ParseError> {
    use FrameKind::{Cancel, Credit, Data, End, Fail, Hello, Open, Ping, Pong};
    let Header { kind, stream, body_bytes, payload_bytes, .. } = *header;
    if first != (kind == Hello) {
        return Err(ParseError::Order { kind, first });
    }
    let fits = match kind {
        Hello => stream == 0 && body_bytes <= HELLO_BODY_BYTES_MAX && payload_bytes == 0,
        Ping | Pong => stream == 0 && body_bytes == 0 && payload_bytes == 0,
        Cancel | Credit => stream != 0 && body_bytes == 0 && payload_bytes == 0,
        Open | End | Fail => stream != 0 && payload_bytes == 0,
        Data => stream != 0,
    };
    if fits { Ok(()) } else { Err(ParseError::Shape { kind, stream, body_bytes, payload_bytes }) }
}
