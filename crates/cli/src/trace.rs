//! What a server writes down of its connections when asked to: one JSON object a line, in the schema that the simulator's
//! traces have ([`steadfast_protocol::trace`]), hosts named by their addresses.

use anyhow::Context;
use std::{
    fs::File,
    io::{BufWriter, Write},
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};
use steadfast_net::{Tap, Tapped};
use steadfast_protocol::{
    Time,
    message::{FrameKind, Role},
    trace::{Message, Payload, Record},
};

/// A trace being written.
#[derive(Debug)]
pub(crate) struct TraceFile {
    role: Role,
    began: Instant,
    lines: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    file: BufWriter<File>,
    /// Nothing more is written after the first failure: it has been told.
    failed: bool,
}

impl TraceFile {
    /// A tap that writes to `path`, over what was there, what a server of `role` says and hears.
    pub(crate) fn create(path: &Path, role: Role) -> anyhow::Result<Arc<dyn Tap>> {
        let file = File::create(path).with_context(|| format!("--trace {}", path.display()))?;
        let lines = Mutex::new(Lines { file: BufWriter::new(file), failed: false });
        Ok(Arc::new(Self { role, began: Instant::now(), lines }))
    }
}

impl Tap for TraceFile {
    fn frame(&self, frame: &Tapped<'_>) {
        let &Tapped { sent, ours, theirs, header, body, payload } = frame;
        let at = Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let fingerprint = match payload {
            [] => 0,
            bytes => crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes),
        };
        let payload = Payload { bytes: header.payload_bytes, fingerprint };
        let message = match Message::of_frame(self.role, sent, header, body, payload) {
            Ok(Some(message)) => message,
            Ok(None) => return,
            // A peer of another making; what it meant is not ours to guess.
            Err(_) => Message::Damaged,
        };
        let damaged = message == Message::Damaged;
        let (from, to) = if sent { (ours, theirs) } else { (theirs, ours) };
        let record: Record<SocketAddr> = Record { at, from, to, stream: header.stream, message, damaged };
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.failed {
            return;
        }
        let written = serde_json::to_writer(&mut lines.file, &record).map_err(std::io::Error::from);
        let written = written.and_then(|()| lines.file.write_all(b"\n"));
        // A stream that is over can be read about at once.
        let over = matches!(header.kind, FrameKind::End | FrameKind::Fail | FrameKind::Cancel);
        let written = written.and_then(|()| if over { lines.file.flush() } else { Ok(()) });
        if let Err(error) = written {
            lines.failed = true;
            tracing::error!(%error, "the trace cannot be written: it ends here");
        }
    }
}
