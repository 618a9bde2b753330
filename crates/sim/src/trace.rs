//! Every message as it was sent, and the hash of them all: two runs with one hash did the same, byte for byte and
//! nanosecond for nanosecond.

use crate::{
    message::{Message, StreamId},
    network::HostId,
};
use crc_fast::{CrcAlgorithm, Digest};
use steadfast_protocol::{Time, message, trace};

/// One message that was sent.
pub type Record = trace::Record<HostId>;

/// What happens to a message on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Nothing.
    None,
    /// A byte of its payload changes: its own checksums tell.
    Payload,
    /// A byte of its frame's body changes: the frame's checksum tells.
    Body,
}

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    digest: Digest,
    messages: u64,
    kept: Option<Vec<Record>>,
    /// Records that are not in the digest yet: there are millions, of a few dozen bytes each.
    bytes: Vec<u8>,
}

/// So many bytes are digested at once.
const DIGESTED_BYTES: usize = 16 << 10;

impl Trace {
    /// An empty trace that keeps its records if asked to, and hashes them in any case.
    pub fn new(keep: bool) -> Self {
        Self {
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            messages: 0,
            kept: keep.then(Vec::new),
            bytes: Vec::with_capacity(DIGESTED_BYTES),
        }
    }

    /// Adds a message, with the damage that it takes on the way.
    pub(crate) fn sent(
        &mut self,
        at: Time,
        from: HostId,
        to: HostId,
        stream: StreamId,
        what: &Message,
        damage: Damage,
    ) {
        self.messages += 1;
        let bytes = core::mem::take(&mut self.bytes);
        self.bytes = message::encode_into(&(at, from, to, stream, what), bytes);
        if damage == Damage::Body
            && let Some(last) = self.bytes.last_mut()
        {
            *last ^= 1;
        }
        if self.bytes.len() >= DIGESTED_BYTES {
            self.digest.update(&self.bytes);
            self.bytes.clear();
        }
        if let Some(kept) = &mut self.kept {
            let damaged = damage != Damage::None;
            kept.push(Record { at, from, to, stream, message: what.clone(), damaged });
        }
    }

    /// Messages sent so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The hash of everything sent so far: its time, its ends, its stream, each byte of it (CRC-64/NVME of the records in
    /// the wire's own encoding; of a payload, its length and fingerprint).
    pub fn hash(&self) -> u64 {
        let mut digest = self.digest;
        digest.update(&self.bytes);
        digest.finalize()
    }

    /// What was kept.
    pub fn records(&self) -> &[Record] {
        self.kept.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Payload;
    use steadfast_protocol::message::{NodeEvent, Slice};

    #[test]
    fn the_hash_changes_with_every_part_of_a_record() {
        let hash = |at: u64, to: u32, stream: u64, offset: u32, fingerprint: u64| {
            let mut trace = Trace::new(false);
            let slice = Slice { index: 1, offset, sums: Vec::new() };
            let event = Message::Event(NodeEvent::Slice(slice), Payload { bytes: 4096, fingerprint });
            trace.sent(Time(at), HostId::Node(3), HostId::Client(to), stream, &event, Damage::None);
            trace.hash()
        };
        let one = hash(1, 2, 3, 4, 5);
        assert_eq!(one, hash(1, 2, 3, 4, 5));
        for other in [
            hash(2, 2, 3, 4, 5),
            hash(1, 3, 3, 4, 5),
            hash(1, 2, 4, 4, 5),
            hash(1, 2, 3, 5, 5),
            hash(1, 2, 3, 4, 6),
        ] {
            assert_ne!(one, other);
        }
    }
}
