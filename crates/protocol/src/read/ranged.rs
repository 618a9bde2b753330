//! A range of originals of a systematic rateless segment: the holders of just those originals are asked for just those,
//! and a decode through the other devices is what the read falls back to (any K blocks give every original,
//! dissertation §4.1.2).
//!
//! ```text
//!            a wanted original is out of reach, or late
//!   Direct ───────────────────────────────────────────▶ Decoding
//!     │ all wanted originals came            all wanted originals came, or the decoder has enough │
//!     └───────────────────────────────▶ Done ◀────────────────────────────────────────────────────┘
//! ```
//!
//! *Late* is judged by pace alone: a device is late when what it still owes will take [`LATE_FACTOR`] times longer than a
//! decode through the others would from now on. A decode is taken to begin with a pause as long as the longest that one of the
//! others made: where all are busy, asking for more would only keep them busier. A device that says nothing is taken to stay
//! silent for as long again, so that a read takes at most three times as long as the better of the two ways would have. The
//! decode costs more than time, namely K blocks of everybody's media: it is never begun for less. Silence that half exhausts
//! the caller's patience is late too.
//!
//! Of chunks ([`Ranged::of_chunks`]) any k give the segment, and each as many blocks of it as any other. So a decode asks for
//! as many as are late or out of reach and no more; one of those that is late in turn costs one more.
//!
//! Invariants: before the fall back no block outside the range is asked for; what came before counts for the decode; a
//! stream that is late stays open, and what it sends still counts for both; the fall back is begun only where it can
//! succeed; exactly one `Done` or `Failed` ends the actions.

use super::{
    Action, Cause, Input, ReadCore, ReadDone, ReadError, ReadPlan,
    source::{Device, Stage, seconds},
};
use crate::{BlockIndex, DeviceId, IndexRanges, Time, message::Fault};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Before any device has answered nobody knows how long an answer takes: it is given this part of the patience, as by
/// [`super::Speculative`].
const FIRST_ANSWER_SHARE: u32 = 16;
/// As for [`super::Speculative`]: once would begin a decode for ordinary jitter, where all is fast.
const LATE_FACTOR: u32 = 2;
/// A stream that was lost is opened again this often, and only when the read cannot succeed without the device.
const RETRIES_MAX: u32 = 1;

/// The read of some originals of one segment.
#[derive(Debug)]
pub struct Ranged {
    plan: ReadPlan,
    devices: BTreeMap<DeviceId, Device>,
    /// Originals of the range that have not come.
    wanted: IndexRanges,
    /// Blocks that a decode would need beyond those that came.
    missing: u32,
    decoding: bool,
    /// Whether only so many devices are asked as a decode needs.
    sparing: bool,
    /// Whether every wanted original can still come as it is.
    direct: bool,
    counts: ReadDone,
    actions: VecDeque<Action>,
    over: bool,
    heard: Time,
    retry_at: BTreeMap<DeviceId, Time>,
    late_at: Option<Time>,
    /// How the open streams move.
    moving: BTreeMap<DeviceId, Movement>,
}

/// Whether a device keeps the read waiting for longer than a decode would take.
enum Lateness {
    /// It owes nothing, or there is no better way.
    Never,
    /// If nothing comes by then.
    At(Time),
    Now,
}

/// How a stream moves once it does: the way there and back says nothing about what is still to come.
#[derive(Clone, Copy, Debug)]
struct Movement {
    first: Time,
    last: Time,
    /// Payload that came behind the first slice.
    bytes: u64,
    /// The longest between two slices.
    pause: Duration,
}

impl Ranged {
    /// Begins a read of the originals in `wanted`, all below the plan's K; the plan's rule does not matter. Its first
    /// actions are there at once.
    ///
    /// # Panics
    /// When `wanted` names a block that is no original: the caller cuts ranges.
    pub fn new(now: Time, plan: ReadPlan, wanted: IndexRanges) -> Self {
        Self::begin(now, plan, wanted, false)
    }

    /// As [`Ranged::new`], of a segment whose devices hold a chunk each.
    ///
    /// # Panics
    /// As there.
    pub fn of_chunks(now: Time, plan: ReadPlan, wanted: IndexRanges) -> Self {
        Self::begin(now, plan, wanted, true)
    }

    fn begin(now: Time, plan: ReadPlan, wanted: IndexRanges, sparing: bool) -> Self {
        assert!(wanted.ranges().last().is_none_or(|last| last.end <= plan.originals), "{wanted} of {plan:?}");
        let held = plan.sources.iter().filter(|source| !source.blocks.is_empty());
        let mut read = Self {
            devices: held.map(|source| (source.device, Device::new(&plan, source))).collect(),
            wanted,
            missing: plan.originals,
            decoding: false,
            sparing,
            direct: true,
            counts: ReadDone::default(),
            actions: VecDeque::new(),
            over: false,
            heard: now,
            retry_at: BTreeMap::new(),
            late_at: None,
            moving: BTreeMap::new(),
            plan,
        };
        let ids: Vec<DeviceId> = read.devices.keys().copied().collect();
        ids.into_iter().for_each(|id| read.open(now, id));
        read.look_for_the_wanted();
        read.decide(now);
        read
    }

    /// Whether the read has begun to ask for what a decode needs.
    pub fn falls_back(&self) -> bool {
        self.decoding
    }

    /// Opens an idle device for what it can give now: its part of the range, or all it has left.
    fn open(&mut self, now: Time, id: DeviceId) {
        let device = self.devices.get_mut(&id).expect("only devices of the read are opened");
        let blocks: IndexRanges = if self.decoding {
            device.left.clone()
        } else {
            self.wanted.iter().filter(|&index| device.left.contains(index)).collect()
        };
        if !blocks.is_empty() {
            self.moving.remove(&id);
            self.counts.requested_blocks += blocks.count();
            self.actions.push_back(device.open(now, blocks, false));
        }
    }

    /// Whether this device's blocks may still come.
    fn within_reach(&self, device: &Device) -> bool {
        matches!(device.stage, Stage::Idle | Stage::Active) || self.retry_at.contains_key(&device.id)
    }

    fn look_for_the_wanted(&mut self) {
        let holds = |index: BlockIndex| {
            self.devices.values().any(|device| device.left.contains(index) && self.within_reach(device))
        };
        self.direct = self.wanted.iter().all(holds);
    }

    fn reachable(&self) -> u32 {
        self.devices.values().filter(|d| self.within_reach(d)).map(|device| device.left.count()).sum()
    }

    /// Looks at everything after each event: is it over, is it time to fall back, when to look again.
    fn decide(&mut self, now: Time) {
        if self.over {
            return;
        }
        if self.wanted.is_empty() || self.missing == 0 {
            self.end(Action::Done(self.counts));
            return;
        }
        self.retry(now);
        let reachable = self.reachable();
        let decodable = reachable >= self.missing;
        if !self.direct && !decodable {
            let failed = self.devices.values().filter(|device| device.stage == Stage::Failed);
            let failed = failed.filter_map(|device| Some((device.id, device.cause.clone()?))).collect();
            self.end(Action::Failed(ReadError::NotEnough {
                missing: self.missing,
                originals: self.plan.originals,
                reachable,
                devices: self.devices.len() as u32,
                failed,
            }));
            return;
        }
        if now >= self.heard + self.plan.patience {
            let silent = self.devices.values().filter(|device| device.stage != Stage::Idle).map(|d| d.id);
            let silent = silent.collect();
            let waited = now.since(self.heard);
            let missing = self.missing.min(self.wanted.count());
            self.end(Action::Failed(ReadError::Stalled { missing, waited, silent }));
            return;
        }
        self.late_at = None;
        if !self.decoding && decodable {
            self.decoding = !self.direct || !self.late(now).is_empty();
        }
        if self.decoding {
            let idle = self.devices.values().filter(|d| d.stage == Stage::Idle && !d.left.is_empty());
            let mut idle: Vec<DeviceId> = idle.map(|device| device.id).collect();
            if self.sparing {
                self.spare(now, &mut idle);
            }
            idle.into_iter().for_each(|id| self.open(now, id));
            if self.sparing {
                // Those just asked may be late, too.
                self.late(now);
            }
        }
    }

    /// Leaves the fastest of `idle` that are enough for a decode, together with what comes in time.
    fn spare(&mut self, now: Time, idle: &mut Vec<DeviceId>) {
        let late = self.late(now);
        let in_time = self.devices.values().filter(|device| !late.contains(&device.id));
        let coming: u32 = in_time.map(|device| device.pending.count()).sum();
        let mut lacking = self.missing.saturating_sub(coming);
        idle.sort_by_key(|id| core::cmp::Reverse(self.devices[id].expected_bytes_per_s));
        idle.retain(|id| {
            let needed = lacking > 0;
            lacking = lacking.saturating_sub(self.devices[id].left.count());
            needed
        });
    }

    /// The devices that owe blocks for longer than a decode through the others would take; notes when to look again for
    /// the rest.
    fn late(&mut self, now: Time) -> Vec<DeviceId> {
        let mut late = Vec::new();
        for device in self.devices.values() {
            match self.lateness(now, device) {
                Lateness::Never => {}
                Lateness::At(at) => {
                    self.late_at = Some(self.late_at.map_or(at, |earlier| earlier.min(at)));
                }
                Lateness::Now => late.push(device.id),
            }
        }
        late
    }

    fn lateness(&self, now: Time, device: &Device) -> Lateness {
        let retry = self.retry_at.get(&device.id).map(|at| at.since(now));
        if retry.is_none() && (device.stage != Stage::Active || device.pending.is_empty()) {
            return Lateness::Never;
        }
        let Some(decode) = self.decode_time(now, device.id) else { return Lateness::Never };
        let late = decode.saturating_mul(LATE_FACTOR);
        // Half of the patience is left to those that are asked instead.
        let silent_max = self.plan.patience / 2;
        let silent = retry.is_none() && now.since(device.last_arrival) > silent_max;
        if silent || retry.unwrap_or_else(|| self.time_to_finish(now, device)) > late {
            return Lateness::Now;
        }
        if retry.is_some() {
            return Lateness::Never;
        }
        // Silence alone makes it late then; arrivals come here again.
        Lateness::At(device.last_arrival + late.min(silent_max) + Duration::from_nanos(1))
    }

    /// When, at the earliest, all that the device owes will be here: by its pace, and as long again as it was silent.
    fn time_to_finish(&self, now: Time, device: &Device) -> Duration {
        let owed = f64::from(device.pending.count()) * f64::from(self.plan.block_bytes);
        let at_pace = self.moving.get(&device.id).filter(|moving| moving.bytes > 0).map(|moving| {
            let span = moving.last.since(moving.first).as_secs_f64();
            seconds(owed * span / moving.bytes as f64)
        });
        at_pace.unwrap_or_default().max(now.since(device.last_arrival))
    }

    fn slice(&mut self, now: Time, id: DeviceId, bytes: u32) {
        self.heard = now;
        if let Some(device) = self.devices.get_mut(&id) {
            self.actions.extend(device.slice(now, bytes));
            let moving = self.moving.entry(id);
            moving
                .and_modify(|moving| {
                    moving.pause = moving.pause.max(now.since(moving.last));
                    moving.last = now;
                    moving.bytes += u64::from(bytes);
                })
                .or_insert(Movement { first: now, last: now, bytes: 0, pause: Duration::ZERO });
        }
    }

    /// How long a decode without `late` would take from now on; `None` where it could not succeed.
    fn decode_time(&self, now: Time, late: DeviceId) -> Option<Duration> {
        let others = || self.devices.values().filter(|device| device.id != late && self.within_reach(device));
        if others().map(|device| device.left.count()).sum::<u32>() < self.missing {
            return None;
        }
        let seen = others().filter_map(Device::first_byte_delay).max();
        let seen = seen.or_else(|| self.devices.values().filter_map(Device::first_byte_delay).max());
        // A round trip is the least that an answer takes: it says nothing of the device behind it.
        let unseen = self.plan.patience / FIRST_ANSWER_SHARE;
        let delay = seen.unwrap_or_else(|| self.plan.round_trip.map_or(unseen, |trip| trip.max(unseen)));
        // Where others paused for as long meanwhile, those asked instead would, too.
        let pauses = others().filter_map(|device| self.moving.get(&device.id)).map(|moving| moving.pause);
        let delay = delay.max(pauses.max().unwrap_or_default());
        let able = others().filter(|device| !device.left.is_empty());
        let paces: Vec<f64> = able.map(|device| device.pace_bytes_per_s(now)).collect();
        let mut known: Vec<f64> = paces.iter().copied().filter(|&pace| pace > 0.0).collect();
        if known.is_empty() {
            // Nothing is known of any other: they are taken to be as fast as this one is once it moves.
            let own = self.moving.get(&late).filter(|own| own.bytes > 0 && own.last > own.first);
            let Some(own) = own else { return Some(delay.max(unseen)) };
            known.push(own.bytes as f64 / own.last.since(own.first).as_secs_f64());
        }
        // A device of unknown speed counts as the mean of the others.
        let pace = known.iter().sum::<f64>() / known.len() as f64 * paces.len() as f64;
        let blocks = self.missing.saturating_add(self.plan.extra_blocks);
        let bytes = f64::from(blocks) * f64::from(self.plan.block_bytes);
        Some(delay.saturating_add(seconds(bytes / pace)))
    }

    /// Opens again what failed, if the read depends on it.
    fn retry(&mut self, now: Time) {
        if !self.direct && self.reachable() < self.missing {
            for device in self.devices.values().filter(|device| device.stage == Stage::Failed) {
                if matches!(device.cause, Some(Cause::Unreachable(_))) && device.failures <= RETRIES_MAX {
                    self.retry_at.entry(device.id).or_insert(now);
                }
            }
            self.look_for_the_wanted();
        }
        let due = self.retry_at.iter().filter(|&(_, &at)| at <= now).map(|(&id, _)| id);
        for id in due.collect::<Vec<_>>() {
            self.retry_at.remove(&id);
            self.devices.get_mut(&id).expect("only devices of the read are retried").stage = Stage::Idle;
            self.open(now, id);
        }
    }

    fn block(&mut self, id: DeviceId, index: BlockIndex, missing: u32) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        self.counts.devices += u32::from(device.block(index) && device.blocks_received == 1);
        let wanted = self.wanted.remove(index);
        self.counts.useful_blocks += u32::from(wanted || missing < self.missing);
        self.missing = missing.min(self.missing);
    }

    fn failed(&mut self, now: Time, id: DeviceId, cause: Cause) {
        let Some(device) = self.devices.get_mut(&id).filter(|device| device.stage == Stage::Active) else {
            return;
        };
        self.counts.devices_failed += u32::from(device.failures == 0);
        if let Cause::Fault(Fault::Refused { retry_after_ms, .. }) = cause {
            // A refusal says when to come back; patience bounds how often.
            let after = Duration::from_millis(u64::from(retry_after_ms.max(1)));
            self.retry_at.insert(id, now + after);
        }
        device.failed(now, cause);
        self.look_for_the_wanted();
    }

    fn end(&mut self, last: Action) {
        self.over = true;
        self.late_at = None;
        self.retry_at.clear();
        // What was to be opened and has not been polled yet need not be opened at all.
        let unsent: Vec<DeviceId> = self
            .actions
            .iter()
            .filter_map(|action| if let Action::Open { device, .. } = action { Some(*device) } else { None })
            .collect();
        self.actions.clear();
        for device in self.devices.values_mut() {
            // One that has sent all it was asked for is about to end by itself, and says then what it moved.
            let owes = !device.pending.is_empty();
            let cancel = device.cancel();
            self.actions.extend(cancel.filter(|_| owes && !unsent.contains(&device.id)));
        }
        self.actions.push_back(last);
    }
}

impl ReadCore for Ranged {
    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Opened { device } => {
                if let Some(device) = self.devices.get_mut(&device) {
                    device.opened(now);
                }
                return;
            }
            Input::Slice { device, bytes, .. } => {
                self.counts.received_bytes += u64::from(bytes);
                if !self.over {
                    self.slice(now, device, bytes);
                }
                return;
            }
            Input::Block { device, index, missing } => {
                self.counts.received_blocks += 1;
                if self.over {
                    return;
                }
                self.heard = now;
                self.block(device, index, missing);
            }
            Input::Corrupt { device, index } => {
                self.counts.corrupt_blocks += 1;
                if let Some(device) = self.devices.get_mut(&device) {
                    device.lost(index);
                }
                self.look_for_the_wanted();
            }
            Input::Ended { device } => {
                if let Some(device) = self.devices.get_mut(&device).filter(|d| d.stage == Stage::Active)
                    && device.ended(now) > 0
                {
                    self.look_for_the_wanted();
                }
            }
            Input::Failed { device, cause } => self.failed(now, device, cause),
            Input::Tick => {}
        }
        self.decide(now);
    }

    fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn wake_at(&self) -> Option<Time> {
        if self.over {
            return None;
        }
        let patience = self.heard + self.plan.patience;
        let retry = self.retry_at.values().min().copied();
        [Some(patience), retry, self.late_at].into_iter().flatten().min()
    }

    fn counts(&self) -> ReadDone {
        self.counts
    }
}
