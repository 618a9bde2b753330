//! What waits to be sent on one connection, and in which order it goes.
//!
//! Control frames go first, in order. Bulk (DATA, and an END or FAIL that has DATA of its own stream before it)
//! is served one frame a stream, round robin within each class; the foreground yields one frame in
//! [`BACKGROUND_SHARE`] to the background, so that neither starves. Invariants:
//! - frames of one stream keep their order, but for CREDIT and CANCEL, which overtake its DATA on purpose;
//! - a stream is in a ring exactly while it has frames queued;
//! - `bulk_bytes` is the sum of body and payload bytes of the frames in queues, `control_bytes` that of control frames.

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use steadfast_protocol::message::{FrameKind, Header, Priority};

#[cfg(test)]
mod tests;

/// Of this many bulk frames the background gets one while the foreground has work. 8: repair still moves at an
/// eighth of the link, and a foreground stream loses no more than that. Picked by eye.
const BACKGROUND_SHARE: u32 = 8;

/// A frame to be sent. The lengths in `header` are those of `body` and `payload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutFrame {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Bytes,
}

impl OutFrame {
    pub(crate) fn new(header: Header, body: Vec<u8>, payload: Bytes) -> Self {
        let length =
            |bytes: usize| u32::try_from(bytes).expect("checked against the limits when it was queued");
        let header =
            Header { body_bytes: length(body.len()), payload_bytes: length(payload.len()), ..header };
        Self { header, body, payload }
    }

    pub(crate) fn bare(kind: FrameKind, stream: u64) -> Self {
        Self::new(Header::new(kind, stream), Vec::new(), Bytes::new())
    }

    fn bytes(&self) -> usize {
        self.body.len() + self.payload.len()
    }
}

#[derive(Debug)]
enum Control {
    Frame(OutFrame),
    /// The amount is in `credits`: grants made while it waits travel together.
    Credit(u64),
}

#[derive(Debug, Default)]
pub(crate) struct Lanes {
    control: VecDeque<Control>,
    credits: BTreeMap<u64, u32>,
    queues: BTreeMap<u64, VecDeque<OutFrame>>,
    rings: [VecDeque<u64>; 3],
    bulk_bytes: usize,
    control_bytes: usize,
    foreground_run: u32,
}

impl Lanes {
    /// Queues a control frame.
    pub(crate) fn push_control(&mut self, frame: OutFrame) {
        self.control_bytes += frame.bytes();
        self.control.push_back(Control::Frame(frame));
    }

    /// Queues a grant. The caller keeps what is granted and unused below `u32::MAX`, so the sum fits a frame.
    pub(crate) fn push_credit(&mut self, stream: u64, bytes: u32) {
        let waiting = self.credits.entry(stream).or_insert_with(|| {
            self.control.push_back(Control::Credit(stream));
            0
        });
        *waiting = waiting.saturating_add(bytes);
    }

    /// Queues DATA.
    pub(crate) fn push_bulk(&mut self, frame: OutFrame) {
        let Header { stream, priority, .. } = frame.header;
        self.bulk_bytes += frame.bytes();
        let queue = self.queues.entry(stream).or_default();
        if queue.is_empty() {
            self.rings[priority as usize].push_back(stream);
        }
        queue.push_back(frame);
    }

    /// Queues the END or FAIL of a stream: behind its DATA where there is some, else as control.
    pub(crate) fn push_last(&mut self, frame: OutFrame) {
        if self.queues.contains_key(&frame.header.stream) {
            self.push_bulk(frame);
        } else {
            self.push_control(frame);
        }
    }

    /// Whether frames of a stream are queued behind others' DATA.
    pub(crate) fn has(&self, stream: u64) -> bool {
        self.queues.contains_key(&stream)
    }

    /// Drops a stream's DATA, keeps its END or FAIL, and gives the payload bytes dropped.
    pub(crate) fn purge(&mut self, stream: u64) -> usize {
        self.credits.remove(&stream);
        let Some(queue) = self.queues.remove(&stream) else { return 0 };
        for ring in &mut self.rings {
            ring.retain(|&other| other != stream);
        }
        let mut payload_bytes = 0;
        for frame in queue {
            self.bulk_bytes -= frame.bytes();
            if frame.header.kind == FrameKind::Data {
                payload_bytes += frame.payload.len();
            } else {
                self.push_control(frame);
            }
        }
        payload_bytes
    }

    /// The frame to send next.
    pub(crate) fn pop(&mut self) -> Option<OutFrame> {
        while let Some(control) = self.control.pop_front() {
            match control {
                Control::Frame(frame) => {
                    self.control_bytes -= frame.bytes();
                    return Some(frame);
                }
                Control::Credit(stream) => {
                    if let Some(credit) = self.credits.remove(&stream) {
                        let header = Header { credit, ..Header::new(FrameKind::Credit, stream) };
                        return Some(OutFrame::new(header, Vec::new(), Bytes::new()));
                    }
                }
            }
        }
        let class = self.class_to_serve()?;
        let stream = self.rings[class].pop_front()?;
        let queue = self.queues.get_mut(&stream).expect("a stream in a ring has a queue");
        let frame = queue.pop_front().expect("a queue in a ring has frames");
        if queue.is_empty() {
            self.queues.remove(&stream);
        } else {
            self.rings[class].push_back(stream);
        }
        self.bulk_bytes -= frame.bytes();
        Some(frame)
    }

    fn class_to_serve(&mut self) -> Option<usize> {
        let [control, foreground, background] =
            [Priority::Control, Priority::Foreground, Priority::Background].map(|class| class as usize);
        let waits = |class: usize| !self.rings[class].is_empty();
        if waits(control) {
            return Some(control);
        }
        match (waits(foreground), waits(background)) {
            (true, true) if self.foreground_run + 1 < BACKGROUND_SHARE => {
                self.foreground_run += 1;
                Some(foreground)
            }
            (true, false) => Some(foreground),
            (_, true) => {
                self.foreground_run = 0;
                Some(background)
            }
            (false, false) => None,
        }
    }

    /// Body and payload bytes of bulk frames queued.
    pub(crate) fn bulk_bytes(&self) -> usize {
        self.bulk_bytes
    }

    /// Body and payload bytes of all frames queued.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.bulk_bytes + self.control_bytes
    }

    /// Control frames queued.
    pub(crate) fn control_frames(&self) -> usize {
        self.control.len()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.queues.is_empty()
    }
}
