//! One device as a read sees it: what it holds, what it was asked, what came, and its credit.
//!
//! ```text
//!            open                    Ended
//!   Idle ───────────▶ Active ─────────────────▶ Idle      (may be opened again for other blocks)
//!    ▲                  │ Failed
//!    │ retry            ▼
//!    └────────────── Failed          Cancel: Active ──▶ Cancelled, from which nothing leads back
//! ```
//!
//! Invariants: credit granted and not yet used never exceeds the window, nor what the device can still send; a block
//! is asked of a device again only after its stream failed, or once more when it arrived damaged.

use super::{Action, Cause, ReadPlan, RequestRule, Source};
use crate::{
    BlockIndex, DeviceId, IndexRanges, Time,
    message::{Fault, Want},
    window::Window,
};
use core::time::Duration;

/// In flight altogether is at most this share of the object (one sixteenth), where two slices a device allow it.
const IN_FLIGHT_SHARE: u64 = 16;
/// Slices a stream begins with; measured pace decides from there on.
const FIRST_SLICES: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Active,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) expected_bytes_per_s: u64,
    pub(super) stage: Stage,
    /// Held and neither received nor lost: what it could still give.
    pub(super) left: IndexRanges,
    held_blocks: u32,
    /// Asked on the open stream and still to come.
    pub(super) pending: IndexRanges,
    pub(super) failures: u32,
    pub(super) cause: Option<Cause>,
    pub(super) blocks_received: u32,
    opened: Time,
    pub(super) last_arrival: Time,
    first_byte_of_stream: bool,
    first_byte_delay: Option<Duration>,
    active_span: Duration,
    received_bytes: u64,
    credit_bytes: u64,
    sendable_bytes: u64,
    /// The last of what the stream could send, for which no credit is given.
    held_back_bytes: u64,
    slice_bytes: u64,
    block_bytes: u64,
    window: Window,
}

impl Device {
    pub(super) fn new(plan: &ReadPlan, source: &Source) -> Self {
        let slice_bytes = u64::from(plan.slice_bytes());
        let object_bytes = u64::from(plan.originals) * u64::from(plan.block_bytes);
        let share = object_bytes / IN_FLIGHT_SHARE / (plan.sources.len() as u64).max(1);
        let window = match plan.rule {
            RequestRule::AllAtOnce => Window::new(u64::MAX, u64::MAX, u64::MAX),
            _ => Window::new(2 * slice_bytes, FIRST_SLICES * slice_bytes, share),
        };
        Self {
            id: source.device,
            expected_bytes_per_s: source.read_bytes_per_s,
            stage: Stage::Idle,
            left: source.blocks.clone(),
            held_blocks: source.blocks.count(),
            pending: IndexRanges::new(),
            failures: 0,
            cause: None,
            blocks_received: 0,
            opened: Time(0),
            last_arrival: Time(0),
            first_byte_of_stream: false,
            first_byte_delay: None,
            active_span: Duration::ZERO,
            received_bytes: 0,
            credit_bytes: 0,
            sendable_bytes: 0,
            held_back_bytes: 0,
            slice_bytes,
            block_bytes: u64::from(plan.block_bytes),
            window,
        }
    }

    /// Opens a stream for `blocks`, which it holds; `all` names them as such.
    pub(super) fn open(&mut self, now: Time, blocks: IndexRanges, all: bool) -> Action {
        assert!(self.stage == Stage::Idle && !blocks.is_empty(), "{:?} opened for {blocks}", self.stage);
        self.stage = Stage::Active;
        self.sendable_bytes = u64::from(blocks.count()) * self.block_bytes;
        self.held_back_bytes = 0;
        self.pending = blocks;
        (self.opened, self.last_arrival, self.first_byte_of_stream) = (now, now, false);
        self.credit_bytes = self.window.bytes().min(self.sendable_bytes);
        Action::Open {
            device: self.id,
            want: if all { Want::All } else { Want::Blocks(self.pending.clone()) },
            credit_bytes: bounded(self.credit_bytes),
        }
    }

    /// Whether nothing of what it holds has come or been lost yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.left.count() == self.held_blocks
    }

    pub(super) fn opened(&mut self, now: Time) {
        if self.stage == Stage::Active && !self.first_byte_of_stream {
            self.opened = now;
        }
    }

    /// Payload arrived; the answer is more credit, when enough of it is due.
    pub(super) fn slice(&mut self, now: Time, bytes: u32) -> Option<Action> {
        if self.stage != Stage::Active {
            return None;
        }
        let bytes = u64::from(bytes);
        if !self.first_byte_of_stream {
            self.first_byte_of_stream = true;
            let delay = now.since(self.opened);
            self.first_byte_delay = Some(delay);
            self.window.delayed(delay);
        }
        self.window.passed(now, bytes);
        self.last_arrival = now;
        self.received_bytes += bytes;
        self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
        self.sendable_bytes = self.sendable_bytes.saturating_sub(bytes);
        self.due()
    }

    /// More credit, when enough of it is due.
    fn due(&mut self) -> Option<Action> {
        let wanted = self.sendable_bytes.saturating_sub(self.held_back_bytes);
        let room = self.window.bytes().min(wanted).saturating_sub(self.credit_bytes);
        // Few grants: a quarter of the window at a time, but never so late that less than a slice is on the way.
        let worth = (self.window.bytes() / 4).max(self.slice_bytes).min(wanted);
        if room == 0 || (room < worth && self.credit_bytes >= self.slice_bytes) {
            return None;
        }
        self.credit_bytes += room;
        Some(Action::Grant { device: self.id, bytes: bounded(room) })
    }

    /// Whether some of what is pending gets no credit.
    pub(super) fn holds_back(&self) -> bool {
        self.held_back_bytes > 0
    }

    /// Gives no more credit than all but `blocks` of what is pending take. What was granted may still come. The answer is more credit,
    /// when more is due so.
    pub(super) fn hold_back(&mut self, blocks: u32) -> Option<Action> {
        self.held_back_bytes = u64::from(blocks) * self.block_bytes;
        if self.stage == Stage::Active { self.due() } else { None }
    }

    /// A whole block came; `false` where it was not expected of this device.
    pub(super) fn block(&mut self, index: BlockIndex) -> bool {
        let expected = self.left.remove(index);
        self.pending.remove(index);
        if expected {
            self.blocks_received += 1;
        }
        expected
    }

    /// A block is gone from this device.
    pub(super) fn lost(&mut self, index: BlockIndex) -> bool {
        self.pending.remove(index);
        self.left.remove(index)
    }

    /// The stream is over; blocks it was asked for and did not send are gone from this device. Returns how many.
    pub(super) fn ended(&mut self, now: Time) -> u32 {
        let gone = core::mem::take(&mut self.pending);
        for index in gone.iter() {
            self.left.remove(index);
        }
        self.close(now, Stage::Idle);
        gone.count()
    }

    pub(super) fn failed(&mut self, now: Time, cause: Cause) {
        self.pending = IndexRanges::new();
        // A refusal says when to come back.
        self.failures += u32::from(!matches!(cause, Cause::Fault(Fault::Refused { .. })));
        self.cause = Some(cause);
        self.close(now, Stage::Failed);
    }

    /// The stream was cancelled and has ended: what did not come may be asked for again.
    pub(super) fn withdrawn(&mut self, now: Time) {
        self.pending = IndexRanges::new();
        self.close(now, Stage::Idle);
    }

    pub(super) fn cancel(&mut self) -> Option<Action> {
        let was = core::mem::replace(&mut self.stage, Stage::Cancelled);
        (was == Stage::Active).then_some(Action::Cancel { device: self.id })
    }

    fn close(&mut self, now: Time, stage: Stage) {
        self.active_span += now.since(self.opened);
        self.stage = stage;
        self.credit_bytes = 0;
    }

    /// Pace in bytes per second: what was measured, else what was expected, else 0. A stream that is silent for
    /// longer than its blocks took so far counts as that much slower.
    pub(super) fn pace_bytes_per_s(&self, now: Time) -> f64 {
        let active = if self.stage == Stage::Active { now.since(self.opened) } else { Duration::ZERO };
        let span = (self.active_span + active).as_secs_f64();
        if self.received_bytes > 0 && span > 0.0 {
            self.received_bytes as f64 / span
        } else {
            self.expected_bytes_per_s as f64
        }
    }

    pub(super) fn first_byte_delay(&self) -> Option<Duration> {
        self.first_byte_delay
    }

    /// When, at the earliest, all pending blocks will be here, judging by pace and by silence: a device that has
    /// been silent for a while is taken to stay silent for as long again.
    pub(super) fn time_to_finish(&self, now: Time) -> Duration {
        let pending_bytes = (u64::from(self.pending.count()) * self.block_bytes) as f64;
        let pace = self.pace_bytes_per_s(now);
        let at_pace = if pace > 0.0 && self.received_bytes > 0 {
            seconds(pending_bytes / pace)
        } else {
            Duration::ZERO
        };
        at_pace.max(now.since(self.last_arrival))
    }
}

/// A span that a float gives, bounded to what a timer can use.
pub(super) fn seconds(span: f64) -> Duration {
    Duration::try_from_secs_f64(span.max(0.0)).unwrap_or(Duration::MAX / 4)
}

pub(super) fn bounded(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
