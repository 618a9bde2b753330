//! Records of differences, as data nodes ask for them: of the log, or of what is held of those that went into the chunk at once.

use super::{Asked, Host};
use bytes::Bytes;
use steadfast_disk::Op;
use steadfast_protocol::message::LogEvent;
use tokio::sync::oneshot;

impl Host {
    /// Looks for a record that may be sent now.
    pub(super) fn fetch(&mut self, stream: u64, version: u64, sent: oneshot::Sender<u64>) {
        let Some(chunk) = self.links.get(&stream).map(|link| link.chunk) else { return };
        let segment = self.chunk.segment;
        let entry = self.core.log().find(|entry| (entry.chunk, entry.version) == (chunk, version));
        match entry.map(|entry| entry.sequence) {
            Some(sequence) => {
                self.ask(Asked::Record { stream, version, sent }, Op::LogRead { segment, sequence });
            }
            // Overwritten in place it may be held still.
            None => self.ask(Asked::Held { stream, version, sent }, Op::Held { segment: Some(segment) }),
        }
    }

    /// Gives a record to who asked for it, where it is here.
    pub(super) fn give(&self, stream: u64, version: u64, record: Option<Bytes>, sent: oneshot::Sender<u64>) {
        let event = match record {
            Some(_) => LogEvent::Record { version },
            None => LogEvent::NotHeld { version },
        };
        let record = record.unwrap_or_default();
        // Its stream is over already.
        let _ = sent.send(record.len() as u64);
        self.say(stream, &event, record);
    }
}
