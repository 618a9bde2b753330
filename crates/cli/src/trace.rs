//! What a server writes down of its connections when asked to: one JSON object a line, in the schema that the simulator's
//! traces have ([`steadfast_protocol::trace`]), hosts named by their addresses.

use anyhow::Context;
use std::{
    fs::{File, TryLockError},
    io::{BufWriter, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
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

/// Another server is writing its trace there.
#[derive(Debug, thiserror::Error)]
#[error("--trace {}: another server writes its trace there", .path.display())]
pub(crate) struct TraceInUse {
    path: PathBuf,
}

impl TraceFile {
    /// A tap that writes to `path`, over what was there, what a server of `role` says and hears.
    ///
    /// # Errors
    /// [`TraceInUse`]; or nothing can be written there.
    pub(crate) fn create(path: &Path, role: Role) -> anyhow::Result<Arc<dyn Tap>> {
        let named = || format!("--trace {}", path.display());
        let open = File::options().write(true).create(true).truncate(false).open(path);
        let file = open.with_context(named)?;
        // What is no file, such as a pipe, takes what any number of servers say.
        if file.metadata().with_context(named)?.is_file() {
            match file.try_lock() {
                Ok(()) => file.set_len(0).with_context(named)?,
                Err(TryLockError::WouldBlock) => return Err(TraceInUse { path: path.to_owned() }.into()),
                Err(TryLockError::Error(error)) => {
                    // Some filesystems have no locks.
                    tracing::warn!(%error, "cannot tell whether another server writes its trace there: {}", path.display());
                    file.set_len(0).with_context(named)?;
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_trace_that_is_being_written_is_nobody_elses_to_write_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        fs::write(&path, "of a server that has ended").unwrap();
        let first = TraceFile::create(&path, Role::Meta).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        fs::write(&path, "what it wrote").unwrap();
        let refused = TraceFile::create(&path, Role::Meta).err().unwrap();
        assert!(refused.is::<TraceInUse>(), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"what it wrote");
        drop(first);
        TraceFile::create(&path, Role::Meta).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        // Any number may write where nothing is kept.
        let _both = [(); 2].map(|()| TraceFile::create(Path::new("/dev/null"), Role::Meta).unwrap());
    }
}
