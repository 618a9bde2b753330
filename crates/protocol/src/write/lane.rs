//! One device of a write: its stream's state, credit, blocks in flight and measured pace.

use super::{Action, FailureKind, Target};
use crate::{BlockIndex, IndexRanges, Time};
use core::{ops::Range, time::Duration};
use std::collections::VecDeque;

/// How many confirmed blocks the pace remembers (the weight of older ones falls by e over so many). Picked by eye:
/// four runs, long enough to smooth group flushes, short enough to follow a device that slows down.
const MEMORY_BLOCKS: f64 = 64.0;

/// Confirmed blocks from which a pace is a measurement; picked by eye: two of the smallest windows.
const MEASURED_BLOCKS: u32 = 4;

/// State of a device's stream.
///
/// ```text
///   Spare ──▶ Opening ──▶ Open ──▶ Gone
///               ▲  └──────┬─┘ │     ▲
///               └─ Waiting◀┘ ─┼─────┘     (refused, opened again later)
///                             └──▶ Whole   (has all that it is to get; its stream is over)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not used yet.
    Spare,
    /// Open was asked for.
    Opening,
    /// Takes blocks.
    Open,
    /// Refused; to be opened again.
    Waiting(Time),
    /// All that it is to get is durable. What becomes of its stream is of no concern any more.
    Whole,
    /// Failed.
    Gone,
}

/// Who owes a sign for so long when the last bytes of the source arrive has had nothing to tell, and its time begins anew. Picked by eye: a
/// fast source never pauses so long, and what was measured of devices until then stays.
const SOURCE_PAUSE: Duration = Duration::from_secs(1);

/// More seconds than any write waits.
const FAR_S: f64 = 1e6;

/// A device that owes a group for so many times longer than two took is trusted with that power less. Picked by eye: at twice with a
/// sixteenth of its pace.
const DOUBT: i32 = 4;

/// A doubled window must bring at least so much more pace, or it is taken back.
const PROBE_GAIN: f64 = 1.2;

/// Finds the window that fills a device's pipe. A round trip that is not yet filled shows as a pace that doubles with
/// the window; a device that confirms in groups shows long confirmations too, but no more pace.
#[derive(Debug, Default)]
struct Probe {
    window: u32,
    /// Blocks per second before the last doubling; zero before the first.
    before: f64,
    settled: bool,
    round_blocks: u32,
    round_began: Time,
}

impl Probe {
    /// The pipe was empty and no longer is: a round begins.
    fn begin(&mut self, now: Time) {
        self.round_blocks = 0;
        self.round_began = now;
    }

    /// `pipe_blocks`: twice what pace and shortest confirmation say is in the pipe.
    fn confirmed(&mut self, now: Time, blocks: u32, pipe_blocks: f64) {
        self.round_blocks += blocks;
        if self.settled || self.round_blocks < self.window {
            return;
        }
        let pace = f64::from(self.round_blocks) / now.since(self.round_began).as_secs_f64().max(1e-9);
        if self.before > 0.0 && pace < PROBE_GAIN * self.before {
            self.window /= 2;
            self.settled = true;
        } else if pipe_blocks > f64::from(self.window) {
            self.before = pace;
            self.window = self.window.saturating_mul(2);
        }
        self.begin(now);
    }
}

/// What is to be expected of a device, in blocks and seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Course {
    /// Blocks per second; zero where it takes none, or nothing is known of it.
    pub(super) pace: f64,
    /// Blocks in flight that it is done with by its pace since its last sign, and has not told yet: devices confirm in groups, and
    /// it is no more than the last. None of a device that should have told before now.
    untold: f64,
    in_flight: f64,
    /// Whether it has said nothing for longer than its pace explains.
    pub(super) late: bool,
    /// From a push to its confirmation, at the least.
    latency: f64,
    /// The share of its pace that it can be trusted with: all until it owes a group for longer than two took, and less the longer it
    /// does. That is sooner than `late`, and often wrong: who trusts it too little pushes blocks in vain, no more.
    punctual: f64,
}

impl Course {
    /// The same of a device as far as it is punctual.
    pub(super) fn doubted(self) -> Self {
        let untold = if self.punctual < 1.0 { 0.0 } else { self.untold };
        Self { pace: self.pace * self.punctual, untold, ..self }
    }

    /// Blocks confirmed in so many seconds from now: at its pace, but of what is still to be pushed none before its latency.
    pub(super) fn confirmed_in(&self, seconds: f64) -> f64 {
        let pushed = self.in_flight + self.pace * (seconds - self.latency).max(0.0);
        self.in_time(seconds).min(pushed)
    }

    /// Blocks in flight now that will be confirmed in so many seconds.
    pub(super) fn in_flight_in(&self, seconds: f64) -> f64 {
        self.in_time(seconds).min(self.in_flight)
    }

    /// Blocks that, in flight now, would be confirmed in so many seconds.
    pub(super) fn in_time(&self, seconds: f64) -> f64 {
        self.untold + self.pace * seconds
    }
}

#[cfg(test)]
impl Course {
    /// Of a device that has confirmed all along and should say something now, of which that much is to be trusted.
    pub(super) fn steady(pace: f64, in_flight: f64, punctual: f64) -> Self {
        Self { pace, in_flight, punctual, ..Self::default() }
    }
}

/// One device.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) target: Target,
    pub(super) state: State,
    pub(super) confirmed: IndexRanges,
    /// Whether `confirmed` still counts: not after the medium or the connection was lost.
    pub(super) counts: bool,
    /// Whether it ran out of room.
    pub(super) full: bool,
    /// Whether a spare was already opened in its place.
    pub(super) replaced: bool,
    /// Whether what it was to have went to others, for it was silent for long; it is looked at anew once it gives a sign.
    pub(super) released: bool,
    pub(super) in_flight: u32,
    credit_bytes: u64,
    /// Runs pushed and not wholly confirmed, with when they were pushed.
    runs: VecDeque<(IndexRanges, Time)>,
    /// Since when it owes a sign: the last confirmation, or the push or open that began the wait.
    quiet_since: Time,
    /// Confirmed blocks and the seconds they took, older ones weighing less.
    weighed_blocks: f64,
    weighed_seconds: f64,
    last_batch: u32,
    probe: Probe,
    /// The shortest time from push to confirmation.
    latency_min: Option<Duration>,
    /// The latest time from push to confirmation.
    latency: Option<Duration>,
}

impl Lane {
    pub(super) fn new(target: Target, now: Time) -> Self {
        Self {
            target,
            state: State::Spare,
            confirmed: IndexRanges::new(),
            counts: true,
            full: false,
            replaced: false,
            released: false,
            in_flight: 0,
            credit_bytes: 0,
            runs: VecDeque::new(),
            quiet_since: now,
            weighed_blocks: 0.0,
            weighed_seconds: 0.0,
            last_batch: 0,
            probe: Probe::default(),
            latency_min: None,
            latency: None,
        }
    }

    /// Whether it takes blocks, or may soon, or has all of them.
    pub(super) fn live(&self) -> bool {
        matches!(self.state, State::Opening | State::Open | State::Waiting(_) | State::Whole)
    }

    /// Whether what ended its stream only takes back what it did nothing with: its node made room for others while the source was slow.
    /// It is opened again, and nobody needs to stand in.
    pub(super) fn yields(&self, cause: FailureKind) -> bool {
        matches!(cause, FailureKind::Refused { .. }) && self.state == State::Open && self.in_flight == 0
    }

    /// It has all that it is to get: its stream is to be finished, which holds a block's worth of its node's memory that others may
    /// wait for, and whose devices this write may be waiting for.
    pub(super) fn finish(&mut self) -> Action {
        self.state = State::Whole;
        Action::Finish { device: self.target.device }
    }

    pub(super) fn open(&mut self, now: Time) {
        self.state = State::Opening;
        self.released = false;
        self.quiet_since = now;
    }

    /// All that the source gives is there from now on.
    pub(super) fn source_ended(&mut self, now: Time) {
        if self.quiet(now) >= SOURCE_PAUSE {
            self.await_from(now);
        }
    }

    /// It owes a sign from now on.
    pub(super) fn await_from(&mut self, now: Time) {
        self.quiet_since = now;
    }

    pub(super) fn grant(&mut self, bytes: u64) {
        if matches!(self.state, State::Opening | State::Open) {
            self.state = State::Open;
            // What is in flight is owed still.
            self.released &= bytes == 0 || self.in_flight > 0;
            self.credit_bytes = self.credit_bytes.saturating_add(bytes);
        }
    }

    /// Whole blocks that its credit pays for.
    pub(super) fn affords(&self, block_bytes: u32) -> u32 {
        if self.state != State::Open {
            return 0;
        }
        u32::try_from(self.credit_bytes / u64::from(block_bytes)).unwrap_or(u32::MAX)
    }

    pub(super) fn push(&mut self, now: Time, indices: Range<BlockIndex>, block_bytes: u32) {
        let blocks = indices.end - indices.start;
        assert!(blocks > 0 && blocks <= self.affords(block_bytes), "a push beyond the credit");
        self.credit_bytes -= u64::from(blocks) * u64::from(block_bytes);
        if self.in_flight == 0 {
            self.quiet_since = now;
            self.probe.begin(now);
        }
        self.in_flight += blocks;
        self.runs.push_back((indices.into(), now));
    }

    /// Takes confirmations; gives the indices that were in flight here (others are ignored: the peer's mistake).
    pub(super) fn confirm(&mut self, now: Time, blocks: &IndexRanges) -> Vec<BlockIndex> {
        let mut fresh = Vec::new();
        let mut pushed_last = Time(0);
        // What a peer claims is looked up in what was pushed, never walked: its ranges may be any.
        for (run, pushed_at) in &mut self.runs {
            let hit: Vec<BlockIndex> = run.iter().filter(|&index| blocks.contains(index)).collect();
            for &index in &hit {
                run.remove(index);
                pushed_last = pushed_last.max(*pushed_at);
            }
            fresh.extend(hit);
        }
        if fresh.is_empty() {
            return fresh;
        }
        self.runs.retain(|(run, _)| !run.is_empty());
        let count = u32::try_from(fresh.len()).expect("at most what is in flight");
        for &index in &fresh {
            self.confirmed.insert(index);
        }
        self.in_flight -= count;
        let keep = (-f64::from(count) / MEMORY_BLOCKS).exp();
        self.weighed_blocks = self.weighed_blocks * keep + f64::from(count);
        self.weighed_seconds = self.weighed_seconds * keep + now.since(self.quiet_since).as_secs_f64();
        let latency = now.since(pushed_last);
        self.latency_min = Some(self.latency_min.map_or(latency, |least| least.min(latency)));
        self.latency = Some(latency);
        self.released = false;
        self.last_batch = count;
        let pipe = 2.0 * self.weighed_blocks / self.weighed_seconds.max(1e-9)
            * self.latency_min.unwrap_or_default().as_secs_f64();
        self.probe.confirmed(now, count, pipe);
        self.quiet_since = now;
        fresh
    }

    /// What is in flight.
    pub(super) fn flight(&self) -> impl Iterator<Item = BlockIndex> + '_ {
        self.runs.iter().flat_map(|(run, _)| run.iter())
    }

    /// Forgets what is in flight: the stream is over.
    pub(super) fn drop_flight(&mut self) {
        self.runs.clear();
        self.in_flight = 0;
        self.credit_bytes = 0;
    }

    /// How it goes on from `now`: by its measured pace, or the planner's figure before the first confirmation; the pace falls while the
    /// device says nothing for longer than that explains.
    pub(super) fn course(&self, now: Time, block_bytes: u32) -> Course {
        let Some(rate) = self.rate(block_bytes) else { return Course::default() };
        let (explained, quiet) = (self.explained(rate), self.quiet(now).as_secs_f64());
        let late = quiet > explained;
        // Before the first confirmation there is no group.
        let group = if late { 0 } else { self.last_batch.min(self.in_flight) };
        Course {
            pace: if late { rate * explained / quiet } else { rate },
            untold: (rate * quiet).min(group.into()),
            in_flight: self.in_flight.into(),
            late,
            latency: self.latency_min.map_or(0.0, |span| span.as_secs_f64()),
            punctual: (self.usual(rate) / quiet.max(1e-9)).min(1.0).powi(DOUBT),
        }
    }

    /// Blocks per second, by its confirmations or the planner's word. None of one that may be sent nothing and has nothing to confirm: a
    /// write that counted on it would end the others' runs too early.
    fn rate(&self, block_bytes: u32) -> Option<f64> {
        let dry = self.state == State::Open && self.in_flight == 0 && self.affords(block_bytes) == 0;
        if dry || !matches!(self.state, State::Opening | State::Open) {
            return None;
        }
        if self.weighed_blocks > 0.0 {
            // A nanosecond at least: a model may confirm in no time at all.
            Some(self.weighed_blocks / self.weighed_seconds.max(1e-9))
        } else if self.target.write_bytes_per_s > 0 {
            Some(self.target.write_bytes_per_s as f64 / f64::from(block_bytes))
        } else {
            None
        }
    }

    /// Seconds of silence that are nothing unusual at this rate.
    fn explained(&self, rate: f64) -> f64 {
        self.usual(rate).max(self.latency.map_or(0.0, |span| 2.0 * span.as_secs_f64()))
    }

    /// Seconds in which it does two of its groups.
    fn usual(&self, rate: f64) -> f64 {
        // Before the first confirmation a round trip is unknown: what is in flight stands for it, twice.
        let batch = if self.weighed_blocks > 0.0 { self.last_batch } else { 2 * self.in_flight.max(1) };
        2.0 * f64::from(batch) / rate
    }

    /// When its silence is more than it is usual, or twice as long, four times, and so on; none while it owes nothing or nothing is known
    /// of it.
    pub(super) fn doubted_at(&self, now: Time, block_bytes: u32) -> Option<Time> {
        let rate = self.rate(block_bytes).filter(|_| self.owes())?;
        let mut silence =
            Duration::from_secs_f64(self.usual(rate).clamp(1e-3, FAR_S)) + Duration::from_micros(1);
        while self.quiet_since + silence <= now {
            silence *= 2;
        }
        Some(self.quiet_since + silence)
    }

    /// Blocks per second as measured in this write, once that is more than chance.
    pub(super) fn measured(&self) -> Option<f64> {
        (self.confirmed.count() >= MEASURED_BLOCKS)
            .then(|| self.weighed_blocks / self.weighed_seconds.max(1e-9))
    }

    /// Blocks that may be in flight: `least`, doubled while that makes the device faster.
    pub(super) fn window(&mut self, least: u32) -> u32 {
        self.probe.window = self.probe.window.max(least);
        self.probe.window
    }

    /// How long it has owed a sign; zero where it owes none.
    pub(super) fn quiet(&self, now: Time) -> Duration {
        if self.owes() { now.since(self.quiet_since) } else { Duration::ZERO }
    }

    /// Whether a sign is due from it: an open, a credit, a confirmation.
    pub(super) fn owes(&self) -> bool {
        self.state == State::Opening || (self.state == State::Open && self.in_flight > 0)
    }

    /// Since when it owes a sign.
    pub(super) fn quiet_since(&self) -> Time {
        self.quiet_since
    }

    /// The latest time from push to confirmation.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceId;

    const MS: u64 = 1_000_000;
    const BLOCK: u32 = 64 << 10;

    /// A lane that has confirmed eight blocks in 8 ms and has sixteen more in flight since.
    fn confirming() -> Lane {
        let target = Target { device: DeviceId(1), domain: 0, write_bytes_per_s: 0 };
        let mut lane = Lane::new(target, Time(0));
        lane.open(Time(0));
        lane.grant(1 << 30);
        lane.push(Time(0), 0..8, BLOCK);
        lane.push(Time(0), 8..24, BLOCK);
        assert_eq!(lane.confirm(Time(8 * MS), &(0..8).into()).len(), 8);
        lane
    }

    #[test]
    fn a_group_on_its_way_is_counted_until_it_should_have_come() {
        let lane = confirming();
        let untold = |ms: u64| lane.course(Time(ms * MS), BLOCK).untold;
        assert!((untold(8) - 0.0).abs() < 1e-6, "just told");
        assert!((untold(12) - 4.0).abs() < 1e-6, "{}", untold(12));
        assert!((untold(20) - 8.0).abs() < 1e-6, "no more than the last group: {}", untold(20));
        assert_eq!(untold(25), 0.0, "twice the usual time has passed");
    }

    #[test]
    fn a_device_is_doubted_before_it_is_late_and_again_and_again() {
        let mut lane = confirming();
        let at = |lane: &Lane, ms: u64| lane.course(Time(ms * MS), BLOCK);
        // Eight blocks in 8 ms: two such groups are due by 24 ms.
        assert_eq!(at(&lane, 23).punctual, 1.0);
        assert!((at(&lane, 40).punctual - 1.0 / 16.0).abs() < 1e-6 && at(&lane, 40).doubted().pace < 63.0);
        let doubted = |lane: &Lane, ms: u64| lane.doubted_at(Time(ms * MS), BLOCK).unwrap().0 / MS;
        assert_eq!([doubted(&lane, 8), doubted(&lane, 25), doubted(&lane, 41)], [24, 40, 72]);
        lane.confirm(Time(24 * MS), &(8..24).into());
        assert_eq!(lane.doubted_at(Time(25 * MS), BLOCK), None, "it owes nothing");
    }

    #[test]
    fn a_device_without_credit_or_blocks_is_not_counted_on() {
        let target = Target { device: DeviceId(1), domain: 0, write_bytes_per_s: 100_000_000 };
        let mut lane = Lane::new(target, Time(0));
        lane.open(Time(0));
        let pace = |lane: &Lane| lane.course(Time(8 * MS), BLOCK).pace;
        assert!(pace(&lane) > 0.0, "it is being opened");
        lane.grant(0);
        assert_eq!(pace(&lane), 0.0, "open, and nothing may be sent");
        lane.grant(u64::from(BLOCK));
        assert!(pace(&lane) > 0.0);
        lane.push(Time(0), 0..1, BLOCK);
        assert!(pace(&lane) > 0.0, "it has a block to confirm");
        lane.confirm(Time(8 * MS), &(0..1).into());
        assert_eq!(pace(&lane), 0.0);
    }

    #[test]
    fn what_is_pushed_now_comes_after_the_latency() {
        let course = confirming().course(Time(8 * MS), BLOCK);
        let close = |blocks: f64, expected: f64| {
            assert!((blocks - expected).abs() < 1e-6, "{blocks}, not {expected}")
        };
        close(course.confirmed_in(4e-3), 4.0);
        close(course.confirmed_in(8e-3), 8.0);
        close(course.confirmed_in(10e-3), 10.0);
        // With nothing in flight the first block comes after the latency.
        let empty = Course { in_flight: 0.0, ..course };
        close(empty.confirmed_in(8e-3), 0.0);
        close(empty.confirmed_in(10e-3), 2.0);
    }
}
