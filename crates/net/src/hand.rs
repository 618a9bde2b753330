//! The frames on their way into the socket, and the socket: shared by the writer's task and by threads that write by themselves.

use crate::{Lost, counters::Counting, counters::add, lanes::OutFrame, tap::Tapping};
use std::{
    collections::{BTreeSet, VecDeque},
    io::{self, IoSlice},
    sync::Arc,
};
use steadfast_protocol::message::{FrameKind, HEADER_BYTES};
use tokio::net::tcp::OwnedWriteHalf;

/// No further frame is taken once this many bytes are in hand. 64 KiB: small frames share a system call, bulk
/// ones go alone.
const BYTES_MAX: usize = 64 << 10;
/// Frames in hand: three slices each, well under the kernel's 1024 a call.
const FRAMES_MAX: usize = 64;

/// Frames taken from the lanes. Empty, and without a socket, before the connection is set up and once it is over.
#[derive(Default)]
pub(crate) struct Hand {
    pub(crate) socket: Option<Arc<OwnedWriteHalf>>,
    tapping: Option<Tapping>,
    frames: VecDeque<Wire>,
    bytes: usize,
    written: Written,
}

/// What the kernel was given since the connection began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    /// PINGs, whole.
    pub(crate) pings: u64,
    /// Where the last of them ends among the bytes.
    pub(crate) pinged_through: u64,
}

struct Wire {
    head: [u8; HEADER_BYTES],
    frame: OutFrame,
    written: usize,
}

impl Wire {
    fn len(&self) -> usize {
        HEADER_BYTES + self.frame.body.len() + self.frame.payload.len()
    }
}

impl Hand {
    pub(crate) fn new(socket: Arc<OwnedWriteHalf>, tapping: Option<Tapping>) -> Self {
        Self { socket: Some(socket), tapping, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What the kernel was given so far.
    pub(crate) fn so_far(&self) -> Written {
        self.written
    }

    pub(crate) fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX && self.frames.len() < FRAMES_MAX
    }

    pub(crate) fn take(&mut self, frame: OutFrame) {
        let wire = Wire { head: frame.header.to_bytes(&frame.body), frame, written: 0 };
        self.bytes += wire.len();
        self.frames.push_back(wire);
    }

    /// Gives the socket what it takes at once; `false`: it takes nothing now.
    pub(crate) fn write_some(&mut self, counting: &Counting) -> Result<bool, Lost> {
        let Some(socket) = &self.socket else { return Err(Lost::ClosedHere) };
        match socket.try_write_vectored(&self.slices()) {
            Ok(0) => Err(Lost::Closed),
            Ok(count) => {
                self.written(count, counting);
                Ok(true)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Ok(false),
                io::ErrorKind::Interrupted => Ok(true),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Err(Lost::Closed),
                kind => Err(Lost::Io { kind }),
            },
        }
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(3 * self.frames.len());
        for wire in &self.frames {
            let mut skip = wire.written;
            for part in [&wire.head[..], &wire.frame.body, &wire.frame.payload] {
                let from = skip.min(part.len());
                skip -= from;
                if from < part.len() {
                    slices.push(IoSlice::new(&part[from..]));
                }
            }
        }
        slices
    }

    fn written(&mut self, mut count: usize, counting: &Counting) {
        add(&counting.bytes_sent, count);
        while count > 0 {
            let wire = self.frames.front_mut().expect("the kernel takes no more than it was given");
            let step = count.min(wire.len() - wire.written);
            wire.written += step;
            count -= step;
            self.written.bytes += step as u64;
            if wire.written == wire.len() {
                if wire.frame.header.kind == FrameKind::Ping {
                    self.written.pings += 1;
                    self.written.pinged_through = self.written.bytes;
                }
                add(&counting.frames_sent, 1);
                if let Some(tapping) = &self.tapping {
                    tapping.frame(true, &wire.frame.header, &wire.frame.body, &wire.frame.payload);
                }
                add(&counting.payload_bytes_sent, wire.frame.payload.len());
                self.bytes -= wire.len();
                self.frames.pop_front();
            }
        }
    }

    /// Drops DATA of these streams that is not begun.
    pub(crate) fn drop_purged(&mut self, purged: &BTreeSet<u64>, counting: &Counting) {
        let bytes = &mut self.bytes;
        self.frames.retain(|wire| {
            let header = &wire.frame.header;
            let drop = wire.written == 0 && header.kind == FrameKind::Data && purged.contains(&header.stream);
            if drop {
                *bytes -= wire.len();
                add(&counting.payload_bytes_purged, wire.frame.payload.len());
            }
            !drop
        });
    }
}
