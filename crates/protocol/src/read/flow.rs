//! One device as the adaptive read sees it: one stream, opened for all the device still has, on which credit alone says
//! how much it may send, in whole blocks. What it was seen to do gives an [`Outlook`].
//!
//! ```text
//!            open                Ended
//!   Idle ───────────▶ Active ─────────────▶ Idle     (all it had has come, or is gone)
//!    ▲                  │ Failed
//!    │ retry            ▼
//!    └────────────── Failed      Cancel: Active ──▶ Cancelled
//! ```
//!
//! A flow that is *finishing* is active and gets no more: what it was granted and is not being read is taken back.
//!
//! Pace is measured while the device has credit in hand, from one arrival to the next; delay from a grant to the first
//! byte of it, where the device had to wait for that grant. Neither knows a unit of time: a device's own gaps tell when it is overdue.
//! Slices may come in bursts, with pauses between them that say nothing of the device: it shares a link, a disk, or the
//! reader's processor with others. So pace is taken over a pause of the usual length at least, and a silence that is no longer
//! is none.

use super::{
    Action, Cause, ReadPlan, Source,
    forecast::{Outlook, whole},
    source::{Stage, bounded},
};
use crate::{
    BlockIndex, DeviceId, IndexRanges, Time,
    message::{Fault, Want},
};
use core::ops::Range;
use std::collections::VecDeque;

/// Slices that the measured pace remembers (the weight of older ones falls by e over so many). Picked by eye: enough to
/// smooth what a busy machine adds to single arrivals, few enough to follow a disk that slows down.
const MEMORY_SLICES: f64 = 8.0;
/// Twice the content of the pipe: what keeps it full while a grant travels, and what lets a window grow that is itself
/// the limit. As in [`crate::window`].
const GAIN: f64 = 2.0;
/// One block under way and one behind it keep a device busy.
const BLOCKS_MIN: u32 = 2;
/// By how much more than its pace a device may give of which nothing was measured; it falls with every slice that was.
/// Picked by eye: disks on one platter differ by so much.
const DOUBT: f64 = 2.0;
/// Round trips until a first byte where no connection is there yet: TCP's, that of HELLO, and the request's own.
const CONNECT_TRIPS: f64 = 3.0;
/// What a guess from the first slice weighs beside the next one that is measured. Picked by eye: little.
const GUESS_SHARE: f64 = 1.0 / 16.0;
/// The first slice of a device that nobody knows takes this part of the time until it is here at least, where the way takes nearly all
/// of that. Picked by eye: what the time on a long and quiet way varies by.
const LEAST_SHARE: f64 = 1.0 / 256.0;

#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) id: DeviceId,
    pub(super) stage: Stage,
    /// Held and neither received nor lost: what it could still give.
    pub(super) left: IndexRanges,
    /// How many of those are originals, which devices send first; 0 where decoding costs nothing.
    originals_left: u32,
    /// Indices below this are originals.
    originals: BlockIndex,
    held_blocks: u32,
    pub(super) failures: u32,
    pub(super) cause: Option<Cause>,
    pub(super) blocks_received: u32,
    /// Payload bytes granted and still to come ...
    granted_bytes: u64,
    /// ... and the blocks that they belong to: all devices' are added up at every arrival.
    granted: u32,
    /// Those bytes by when they were granted.
    grants: VecDeque<(Time, u64)>,
    /// The last arrival.
    last: Option<Time>,
    /// Whether its OPEN went out.
    connected: bool,
    /// Whether what it has not begun to use was taken back.
    finishing: bool,
    expected: f64,
    /// Bytes and the seconds they took, older ones weighing less.
    weighed_bytes: f64,
    weighed_seconds: f64,
    /// Squares of the gaps that make those seconds.
    weighed_squares: f64,
    /// Slices whose pace was measured.
    slices: u32,
    /// From a grant to a dry device until the first slice was here.
    answer: Option<f64>,
    block_bytes: u64,
    slice_bytes: u64,
    /// Blocks granted and received on this device in all, and which of those granted were extra.
    granted_count: u64,
    received_count: u64,
    extras: VecDeque<Range<u64>>,
}

impl Flow {
    pub(super) fn new(plan: &ReadPlan, source: &Source) -> Self {
        let originals = plan.decoding.map_or(0, |_| plan.originals);
        let all = IndexRanges::from(0..originals);
        Self {
            id: source.device,
            stage: Stage::Idle,
            originals_left: source.blocks.intersection(&all).count(),
            originals,
            left: source.blocks.clone(),
            held_blocks: source.blocks.count(),
            failures: 0,
            cause: None,
            blocks_received: 0,
            granted_bytes: 0,
            granted: 0,
            grants: VecDeque::new(),
            last: None,
            connected: false,
            finishing: false,
            expected: source.read_bytes_per_s as f64,
            weighed_bytes: 0.0,
            weighed_seconds: 0.0,
            weighed_squares: 0.0,
            slices: 0,
            answer: None,
            block_bytes: plan.block_bytes.into(),
            slice_bytes: plan.slice_bytes().into(),
            granted_count: 0,
            received_count: 0,
            extras: VecDeque::new(),
        }
    }

    /// Whether it may be granted something now.
    pub(super) fn serves(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Active) && !self.finishing && !self.left.is_empty()
    }

    /// Whether it has blocks that have come neither here nor to an end: on their way, or to be asked for again.
    pub(super) fn may_serve(&self) -> bool {
        self.finishing || self.serves()
    }

    /// Takes back what it was granted and has not begun to use.
    pub(super) fn finish(&mut self) -> Option<Action> {
        let finishes = self.stage == Stage::Active && !self.finishing;
        self.finishing |= finishes;
        finishes.then_some(Action::Finish { device: self.id })
    }

    /// Whether it has originals to send.
    pub(super) fn has_originals(&self) -> bool {
        self.originals_left > 0
    }

    /// Whether what it was granted are originals.
    pub(super) fn owes_originals(&self) -> bool {
        self.granted <= self.originals_left
    }

    /// Blocks granted and still to come.
    pub(super) fn granted_blocks(&self) -> u32 {
        self.granted
    }

    fn set_granted(&mut self, bytes: u64) {
        self.granted_bytes = bytes;
        // At most what a device holds.
        self.granted = bytes.div_ceil(self.block_bytes) as u32;
    }

    /// Grants `blocks` more; opens its stream if it is not open.
    pub(super) fn grant(&mut self, now: Time, blocks: u32, extra: bool) -> Action {
        assert!(self.serves() && blocks > 0, "{blocks} blocks granted to {:?}", self.stage);
        let bytes = u64::from(blocks) * self.block_bytes;
        self.set_granted(self.granted_bytes + bytes);
        self.grants.push_back((now, bytes));
        let from = self.granted_count;
        self.granted_count += u64::from(blocks);
        if extra {
            self.extras.push_back(from..self.granted_count);
        }
        if self.stage == Stage::Active {
            return Action::Grant { device: self.id, bytes: bounded(bytes) };
        }
        self.stage = Stage::Active;
        let untouched = self.left.count() == self.held_blocks;
        let want = if untouched { Want::All } else { Want::Blocks(self.left.clone()) };
        Action::Open { device: self.id, want, credit_bytes: bounded(bytes) }
    }

    pub(super) fn opened(&mut self, now: Time) {
        self.connected = true;
        if self.stage == Stage::Active && self.last.is_none() {
            // What was granted before the way was there could not begin before.
            self.grants.iter_mut().for_each(|(at, _)| *at = now);
        }
    }

    /// Payload arrived. `round_trip` is the shortest seen: asked for where nothing was measured of this device.
    pub(super) fn slice(&mut self, now: Time, bytes: u32, round_trip: Option<f64>) {
        if self.stage != Stage::Active {
            return;
        }
        let delay = self.pace().and_then(|pace| self.delay(pace)).unwrap_or(0.0);
        match (self.last, self.waited_for_grant(delay)) {
            (Some(last), None) => {
                self.slices += 1;
                let gap = now.seconds_since(last);
                let keep = self.kept_after(gap);
                self.weighed_bytes = self.weighed_bytes * keep + f64::from(bytes);
                self.weighed_seconds = self.weighed_seconds * keep + gap;
                self.weighed_squares = self.weighed_squares * keep + gap * gap;
            }
            (last, granted) => {
                let granted = granted.or(last).unwrap_or(now);
                let gap = now.seconds_since(granted);
                self.answer = Some(self.answer.map_or(gap, |before| f64::midpoint(before, gap)));
                if !self.measured() {
                    self.believe(bytes.into(), gap, round_trip.unwrap_or(0.0));
                }
            }
        }
        self.last = Some(now);
        let mut bytes = u64::from(bytes);
        self.set_granted(self.granted_bytes.saturating_sub(bytes));
        while let Some((_, left)) = self.grants.front_mut() {
            let used = bytes.min(*left);
            *left -= used;
            bytes -= used;
            if *left > 0 {
                break;
            }
            self.grants.pop_front();
        }
    }

    /// The first slice came `gap` seconds after it was asked for: it took no longer than all of that, and no shorter
    /// than that less the way. What was expected is believed within these bounds; where nothing was, the first
    /// measurement soon outweighs the guess. Taken for much slower than it is, over a long way a device would have others stand
    /// in for it before it has sent a second slice.
    fn believe(&mut self, bytes: f64, gap: f64, round_trip: f64) {
        let rest = gap - round_trip;
        // Where nothing is left the way is shorter than was thought, and nobody knows by how much.
        let least = if rest > 0.0 { rest } else { gap * GUESS_SHARE };
        let (weight, seconds) = if self.expected > 0.0 {
            (1.0, (bytes / self.expected).clamp(least, gap.max(least)))
        } else {
            (GUESS_SHARE, least.max(gap * LEAST_SHARE))
        };
        (self.weighed_bytes, self.weighed_seconds) = (bytes * weight, seconds * weight);
        self.weighed_squares = seconds * seconds * weight;
    }

    /// What is left of the weight of older gaps after one of so many seconds. Gaps of one length lose it over so many
    /// slices; short ones between pauses lose it over a pause, and a long one no more than any other.
    fn kept_after(&self, gap: f64) -> f64 {
        let even = self.pace().map_or(0.0, |pace| self.slice_bytes as f64 / pace);
        let memory = (MEMORY_SLICES * even.max(gap)).max(self.pause());
        if memory > 0.0 { (-gap / memory).exp() } else { 1.0 }
    }

    /// The gap that a moment is in, on average: that between slices where they come evenly, the pause where they come in
    /// bursts.
    fn pause(&self) -> f64 {
        if self.weighed_seconds > 0.0 { self.weighed_squares / self.weighed_seconds } else { 0.0 }
    }

    /// When the next byte was granted, if it had to wait for that: if what came last came before the grant could be
    /// answered.
    fn waited_for_grant(&self, delay: f64) -> Option<Time> {
        let &(at, _) = self.grants.front()?;
        self.last.is_none_or(|last| last.seconds_since(at) < delay).then_some(at)
    }

    /// A whole block came: whether it was expected of this device, and whether it was asked for as an extra.
    pub(super) fn block(&mut self, index: BlockIndex) -> (bool, bool) {
        let number = self.received_count;
        self.received_count += 1;
        while self.extras.front().is_some_and(|range| range.end <= number) {
            self.extras.pop_front();
        }
        let extra = self.extras.front().is_some_and(|range| range.contains(&number));
        let expected = self.left.remove(index);
        self.blocks_received += u32::from(expected);
        self.originals_left -= u32::from(expected && index < self.originals);
        (expected, extra)
    }

    /// Blocks granted as no extra that have not come.
    pub(super) fn plain_outstanding(&self) -> u32 {
        let from = self.received_count;
        let extras: u64 =
            self.extras.iter().map(|range| range.end.saturating_sub(range.start.max(from))).sum();
        u32::try_from(self.granted_count.saturating_sub(from).saturating_sub(extras)).unwrap_or(u32::MAX)
    }

    /// The stream is over; what it did not send is gone from this device, unless it was told to finish.
    pub(super) fn ended(&mut self) {
        if !self.finishing {
            self.left = IndexRanges::new();
            self.originals_left = 0;
        }
        self.close(Stage::Idle);
    }

    pub(super) fn failed(&mut self, cause: Cause) {
        // A refusal says when to come back.
        self.failures += u32::from(!matches!(cause, Cause::Fault(Fault::Refused { .. })));
        self.cause = Some(cause);
        self.close(Stage::Failed);
    }

    pub(super) fn cancel(&mut self) -> Option<Action> {
        let was = core::mem::replace(&mut self.stage, Stage::Cancelled);
        (was == Stage::Active).then_some(Action::Cancel { device: self.id })
    }

    fn close(&mut self, stage: Stage) {
        self.stage = stage;
        self.set_granted(0);
        self.finishing = false;
        self.grants.clear();
        self.last = None;
        self.connected = false;
        self.granted_count = self.received_count;
        self.extras.clear();
    }

    /// What was expected of it, bytes per second, where anything was.
    pub(super) fn expected(&self) -> Option<f64> {
        (self.expected > 0.0).then_some(self.expected)
    }

    /// Pace in bytes per second: what was measured, else what was expected, else none.
    pub(super) fn pace(&self) -> Option<f64> {
        if self.weighed_bytes > 0.0 {
            // A nanosecond at least: a model may deliver in no time at all.
            Some(self.weighed_bytes / self.weighed_seconds.max(1e-9))
        } else {
            self.expected()
        }
    }

    /// Whether nothing need stand in for what was seen of it.
    pub(super) fn is_known(&self) -> bool {
        self.measured() && self.answer.is_some()
    }

    /// Whether its pace is measured.
    pub(super) fn measured(&self) -> bool {
        self.weighed_bytes > 0.0
    }

    /// Seconds from a grant to a dry device until its first byte flows, where seen.
    pub(super) fn delay(&self, pace: f64) -> Option<f64> {
        self.answer.map(|answer| (answer - self.slice_bytes as f64 / pace).max(0.0))
    }

    /// What is to be expected of it; `pace` and `delay` stand in for what was not seen of it yet.
    pub(super) fn outlook(&self, now: Time, pace: f64, delay: f64) -> Outlook {
        let mut pace = self.pace().unwrap_or(pace);
        let slice = self.slice_bytes as f64;
        let known = delay;
        let delay = self.delay(pace).unwrap_or(known);
        let granted = self.granted_blocks();
        let block = self.block_bytes as f64;
        let first = self.first();
        let (mut lead_s, mut doubt) = (0.0, 1.0 + DOUBT / (1.0 + f64::from(self.slices)));
        if granted > 0 {
            let way = if self.connected { delay } else { CONNECT_TRIPS * delay };
            let flowing = match (self.waited_for_grant(delay), self.last) {
                (Some(granted), _) => now.seconds_since(granted) - way,
                (None, last) => last.map_or(0.0, |last| now.seconds_since(last)),
            };
            // Silent for longer than a slice takes and than it usually pauses, it is taken to stay silent for as long again.
            let usual = self.pause().max(slice / pace);
            let next = (slice / pace - flowing).max(flowing - usual).max(0.0);
            if flowing > 2.0 * usual {
                // Silence shows how slow it is.
                doubt = 1.0;
            }
            if !self.measured() && flowing > slice / pace {
                pace = slice / flowing;
            }
            lead_s = next - slice / pace;
        }
        let fresh = self.left.count().saturating_sub(granted);
        let fresh_originals = self.originals_left.saturating_sub(granted);
        let delay_s = self.delay(pace).unwrap_or(known);
        let pace = pace / block;
        let fresh_s = delay;
        let outlook =
            Outlook { pace, lead_s, granted, first, delay_s, fresh_s, fresh, fresh_originals, doubt };
        Outlook { fresh_s: delay.max(outlook.drained_s()), ..outlook }
    }

    /// What the first of the blocks that were granted still needs, as a share of a block.
    fn first(&self) -> f64 {
        let behind = u64::from(self.granted.saturating_sub(1)) * self.block_bytes;
        (self.granted_bytes - behind) as f64 / self.block_bytes as f64
    }

    /// Granted blocks that will be here within `seconds`, as [`Outlook::granted_by`] has them; but that what was granted too late to follow
    /// what it had begins when its grant gets there.
    pub(super) fn coming_by(&self, now: Time, outlook: &Outlook, seconds: f64) -> u32 {
        let block = self.block_bytes as f64;
        let pace = outlook.pace * block;
        let (mut at, mut bytes) = (outlook.lead_s, 0.0);
        for (number, &(granted, left)) in self.grants.iter().enumerate() {
            if number > 0 {
                at = at.max(outlook.delay_s - now.seconds_since(granted));
            }
            let left = left as f64;
            bytes += (pace * (seconds - at)).clamp(0.0, left);
            at += left / pace;
        }
        whole(bytes / block - self.first() + 1.0, self.granted)
    }

    /// Blocks that may be on their way from it, a grant and its answer being so long on theirs. Of one that nobody knows
    /// anything about, `first`: what it can send meanwhile is not known either.
    pub(super) fn window(&self, outlook: &Outlook, way: f64, first: u32) -> u32 {
        if self.pace().is_none() {
            return first.max(BLOCKS_MIN);
        }
        // What delays the first byte beyond the way and a block's own time is a queue, which a larger window makes longer.
        let delay = outlook.delay_s.min(way + 1.0 / outlook.pace);
        let pipe = (GAIN * outlook.pace * delay).ceil();
        (pipe as u32).saturating_add(BLOCKS_MIN)
    }
}
