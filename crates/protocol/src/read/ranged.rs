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
//! *Late* is judged by pace alone: a device is late when what it still owes will take [`super::Late::factor`] times longer than a
//! decode through the others would from now on. A decode is taken to begin with a pause as long as the longest that one of the
//! others made (of chunks, one of those that it could not do without): where all are busy, asking for more would only keep
//! them busier. A device that says nothing is taken to stay silent for as long again, so that a read takes at most one more than that
//! factor (three times, unless it was learned that less is for nothing) as long as the better of the two ways would have. The
//! decode costs more than time, namely K blocks of everybody's media: it is never begun for less. Silence that half exhausts the
//! caller's patience is late too. A decode of a rateless segment asks everybody for all that they have, most for the sake of
//! a few blocks: where nodes are overloaded, because one has refused or by their queues, it is begun much later, and for a device that
//! refuses only once it has done so for half of the patience.
//!
//! Of chunks ([`Ranged::of_chunks`]) any k blocks of a row give that row. So a decode asks for the rows of what is late or out of
//! reach and no more, of as few devices as have them; one of those that is late in turn costs its rows once more. It takes
//! as long as they and what comes in time do, whoever else is slow being done without where that is sooner. Where streams give
//! much less than their devices are known for, devices asked instead are taken to be no faster than they were seen to be. A read of a
//! whole segment asks a device that was late a moment ago, or is a straggler by its server's figures, for nothing to begin with, where
//! the others can give all rows ([`super::Caution`]).
//!
//! Invariants: before the fall back no block outside the range is asked for; what came before counts for the decode; a
//! stream that is late stays open, and what it sends still counts for both; the fall back is begun only where it can
//! succeed; exactly one `Done` or `Failed` ends the actions.

use super::{
    Action, Cause, Input, ReadCore, ReadDone, ReadError, ReadPlan, Source, again,
    caution::{LATE_FACTOR, LATE_FACTOR_MAX},
    source::{Device, Stage, seconds},
};
use crate::{
    BlockIndex, DeviceId, IndexRanges, Time,
    message::{Fault, RefusalReason},
    straggler::{Pace, straggling},
};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Before any device has answered nobody knows how long an answer takes: it is given this part of the patience, as by
/// [`super::Speculative`].
const FIRST_ANSWER_SHARE: u32 = 16;
/// Streams that together give less than this part of what their devices are known for share a way.
const SHARED_SHARE: f64 = 0.8;

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
    /// Where devices hold a chunk each: what came of each row.
    rows: Option<Rows>,
    /// Whether every wanted original can still come as it is.
    direct: bool,
    /// Devices that are done without from the beginning, where that can be.
    avoided: BTreeSet<DeviceId>,
    /// What was asked for because devices were late.
    extra: IndexRanges,
    /// The devices that were.
    stood_in_for: BTreeSet<DeviceId>,
    counts: ReadDone,
    actions: VecDeque<Action>,
    over: bool,
    heard: Time,
    retry_at: BTreeMap<DeviceId, Time>,
    /// Since when devices have had no room for what they are asked for.
    refused: BTreeMap<DeviceId, Time>,
    /// Whether one had none, or queues were long when last heard of.
    busy: bool,
    late_at: Option<Time>,
    /// How the open streams move.
    moving: BTreeMap<DeviceId, Movement>,
}

/// Blocks of each row of chunks; the rows of a block's chunk follow one another.
#[derive(Debug)]
struct Rows {
    came: Vec<u32>,
    /// k: as many are enough.
    enough: u32,
}

impl Rows {
    fn of(&self, index: BlockIndex) -> usize {
        index as usize % self.came.len()
    }

    /// How many blocks count, of those that came and of others, `blocks`.
    fn within(&self, blocks: impl Iterator<Item = BlockIndex>) -> u32 {
        let mut there = self.came.clone();
        blocks.for_each(|index| there[self.of(index)] += 1);
        there.into_iter().map(|blocks| blocks.min(self.enough)).sum()
    }
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
        Self::begin(now, plan, wanted, None)
    }

    /// As [`Ranged::new`], of a segment whose devices hold a chunk each, `data` of them originals.
    ///
    /// # Panics
    /// As there, and when chunks of originals would have no whole blocks.
    pub fn of_chunks(now: Time, plan: ReadPlan, wanted: IndexRanges, data: u32) -> Self {
        assert!(data > 0 && plan.originals.is_multiple_of(data), "{data} chunks of {plan:?}");
        let came = vec![0; (plan.originals / data) as usize];
        Self::begin(now, plan, wanted, Some(Rows { came, enough: data }))
    }

    fn begin(now: Time, plan: ReadPlan, wanted: IndexRanges, rows: Option<Rows>) -> Self {
        assert!(wanted.ranges().last().is_none_or(|last| last.end <= plan.originals), "{wanted} of {plan:?}");
        let held = plan.sources.iter().filter(|source| !source.blocks.is_empty());
        let mut read = Self {
            devices: held.map(|source| (source.device, Device::new(&plan, source))).collect(),
            wanted,
            missing: plan.originals,
            decoding: false,
            rows,
            direct: true,
            avoided: BTreeSet::new(),
            extra: IndexRanges::new(),
            stood_in_for: BTreeSet::new(),
            counts: ReadDone::default(),
            actions: VecDeque::new(),
            over: false,
            heard: now,
            retry_at: BTreeMap::new(),
            refused: BTreeMap::new(),
            busy: plan.is_busy(),
            late_at: None,
            moving: BTreeMap::new(),
            plan,
        };
        read.avoid();
        let ids: Vec<DeviceId> =
            read.devices.keys().filter(|id| !read.avoided.contains(id)).copied().collect();
        ids.into_iter().for_each(|id| read.open_for_wanted(now, id));
        read.look_for_the_wanted();
        read.decide(now);
        read
    }

    /// Does without devices that were late a moment ago or are known to be slow, as far as a decode of the whole segment can.
    fn avoid(&mut self) {
        if self.rows.is_none() || self.wanted.count() < self.plan.originals {
            return;
        }
        let pace = |source: &Source| Pace { read_bytes_per_s: source.read_bytes_per_s, ..Pace::default() };
        let slow = straggling(&self.plan.sources.iter().map(pace).collect::<Vec<_>>());
        let slow =
            self.plan.sources.iter().zip(slow).filter(|(_, slow)| slow.is_some() && !self.plan.late.tries);
        let slow = slow.map(|(source, _)| source.device);
        let late = self.plan.late.devices.iter().copied();
        let mut avoided = Vec::new();
        for device in late.chain(slow).filter(|id| self.devices.contains_key(id)).collect::<BTreeSet<_>>() {
            avoided.push(device);
            if !self.decodable(&avoided) {
                avoided.pop();
            }
        }
        let holds = |id: &DeviceId| self.wanted.iter().any(|index| self.devices[id].left.contains(index));
        self.decoding = avoided.iter().any(holds);
        self.avoided = avoided.into_iter().collect();
    }

    /// Whether the read has begun to ask for what a decode needs.
    pub fn falls_back(&self) -> bool {
        self.decoding
    }

    /// Opens an idle device for `blocks`, if there are any.
    fn open(&mut self, now: Time, id: DeviceId, blocks: IndexRanges) {
        let device = self.devices.get_mut(&id).expect("only devices of the read are opened");
        if !blocks.is_empty() {
            self.moving.remove(&id);
            self.counts.requested_blocks += blocks.count();
            self.actions.push_back(device.open(now, blocks, false));
        }
    }

    /// Opens an idle device for its part of the range.
    fn open_for_wanted(&mut self, now: Time, id: DeviceId) {
        let left = &self.devices[&id].left;
        let blocks = self.wanted.iter().filter(|&index| left.contains(index)).collect();
        self.open(now, id, blocks);
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

    /// Whether a decode could succeed, without the blocks that `except` have not sent.
    fn decodable(&self, except: &[DeviceId]) -> bool {
        let able = || {
            let others = self.devices.values().filter(|device| !except.contains(&device.id));
            others.filter(|device| self.within_reach(device))
        };
        let Some(rows) = &self.rows else {
            return able().map(|device| device.left.count()).sum::<u32>() >= self.missing;
        };
        // As many whole chunks are enough; else it depends on which blocks of the others are gone.
        let whole = |device: &&Device| device.blocks_received + device.left.count() == rows.came.len() as u32;
        if able().filter(whole).count() >= rows.enough as usize {
            return true;
        }
        rows.within(able().flat_map(|device| device.left.iter())) == self.plan.originals
    }

    /// Blocks still to come that a decode could use.
    fn reachable(&self) -> u32 {
        let able = self.devices.values().filter(|device| self.within_reach(device));
        let blocks = able.flat_map(|device| device.left.iter());
        match &self.rows {
            Some(rows) => rows.within(blocks) - rows.within(core::iter::empty()),
            None => blocks.count() as u32,
        }
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
        let decodable = self.decodable(&[]);
        if !self.direct && !decodable {
            let failed = self.devices.values().filter(|device| device.stage == Stage::Failed);
            let failed = failed.filter_map(|device| Some((device.id, device.cause.clone()?))).collect();
            self.end(Action::Failed(ReadError::NotEnough {
                missing: self.missing,
                originals: self.plan.originals,
                reachable: self.reachable(),
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
        if self.decoding && !decodable {
            // What is still wanted can come as it is only.
            let idle: Vec<DeviceId> = self
                .devices
                .values()
                .filter(|device| device.stage == Stage::Idle)
                .map(|device| device.id)
                .collect();
            idle.into_iter().for_each(|id| self.open_for_wanted(now, id));
        }
        if self.decoding {
            let late = if self.rows.is_some() { self.late(now) } else { Vec::new() };
            let asked = self.instead(&late).0;
            self.count_extra(&late, &asked);
            asked.into_iter().for_each(|(id, blocks)| self.open(now, id, blocks));
            if self.rows.is_some() {
                // Those just asked may be late, too.
                self.late(now);
            }
        }
    }

    /// Counts what is asked for only because devices are late: what stands in for the lost is no extra.
    fn count_extra(&mut self, late: &[DeviceId], asked: &[(DeviceId, IndexRanges)]) {
        if asked.is_empty() || (self.rows.is_some() && late.is_empty()) {
            return;
        }
        let blocks = |asked: &[(DeviceId, IndexRanges)]| -> IndexRanges {
            asked.iter().flat_map(|(_, blocks)| blocks.iter()).collect()
        };
        let needed = match (&self.rows, self.direct) {
            (None, true) => IndexRanges::new(),
            _ => blocks(&self.instead(&[]).0),
        };
        let extra: IndexRanges = blocks(asked).iter().filter(|&index| !needed.contains(index)).collect();
        if !extra.is_empty() {
            self.stood_in_for.extend(late);
            self.counts.extra_blocks += extra.count();
            self.extra.insert_all(&extra);
        }
    }

    /// What a decode asks of idle devices, when those that are `late` have to be done without: all they have, or the rows of
    /// chunks that lack something, of the fastest. And whether nothing lacks any more then.
    fn instead(&self, late: &[DeviceId]) -> (Vec<(DeviceId, IndexRanges)>, bool) {
        let idle = |device: &&Device| device.stage == Stage::Idle && !device.left.is_empty();
        let mut idle: Vec<&Device> = self.devices.values().filter(idle).collect();
        let Some(rows) = &self.rows else {
            return (idle.into_iter().map(|device| (device.id, device.left.clone())).collect(), true);
        };
        let mut lacking: Vec<u32> = rows.came.iter().map(|came| rows.enough.saturating_sub(*came)).collect();
        let mut given = |index: BlockIndex| {
            let row = &mut lacking[rows.of(index)];
            let wanted = *row > 0;
            *row -= u32::from(wanted);
            wanted
        };
        for device in self.devices.values().filter(|device| !late.contains(&device.id)) {
            device.pending.iter().for_each(|index| {
                given(index);
            });
        }
        idle.sort_by_key(|device| {
            (self.avoided.contains(&device.id), core::cmp::Reverse(device.expected_bytes_per_s))
        });
        let mut asked = Vec::new();
        for device in idle {
            let blocks: IndexRanges = device.left.iter().filter(|&index| given(index)).collect();
            if !blocks.is_empty() {
                asked.push((device.id, blocks));
            }
        }
        (asked, lacking.iter().all(|row| *row == 0))
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
        // Half of the patience is left to those that are asked instead.
        let silent_max = self.plan.patience / 2;
        let busy = self.busy && self.rows.is_none();
        if let Some(retry) = retry.filter(|_| busy)
            && let Some(since) = self.refused.get(&device.id)
        {
            let refuses = now.since(*since).saturating_add(retry) > silent_max;
            return if refuses { Lateness::Now } else { Lateness::Never };
        }
        // What nobody has seen is generous as it is, where queues are long too.
        let seen = self.devices.values().any(|device| device.first_byte_delay().is_some());
        let late = decode.saturating_mul(match (busy, seen) {
            (true, true) => LATE_FACTOR_MAX,
            (false, true) => self.plan.late.factor,
            (_, false) => LATE_FACTOR,
        });
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
        self.refused.remove(&id);
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

    /// Those that can be asked in the place of `late`.
    fn others(&self, late: DeviceId) -> impl Iterator<Item = &Device> {
        self.devices.values().filter(move |device| device.id != late && self.within_reach(device))
    }

    /// What is given to a first answer while nobody has seen one.
    fn unseen(&self) -> Duration {
        self.plan.patience / FIRST_ANSWER_SHARE
    }

    /// How long others than `late` would take to answer.
    fn answer_time(&self, late: DeviceId) -> Duration {
        // As many others as a decode can do without may be late themselves: they say nothing of the rest.
        let late_others = self
            .rows
            .as_ref()
            .map_or(0, |rows| self.others(late).count().saturating_sub(rows.enough as usize));
        let longest = |mut spans: Vec<Duration>| {
            spans.sort_unstable_by_key(|span| core::cmp::Reverse(*span));
            spans.get(late_others.min(spans.len().saturating_sub(1))).copied()
        };
        let seen = longest(self.others(late).filter_map(Device::first_byte_delay).collect());
        let seen = seen.or_else(|| self.devices.values().filter_map(Device::first_byte_delay).max());
        let delay = seen.unwrap_or_else(|| {
            // A round trip is the least that an answer takes: it says nothing of the device behind it.
            self.plan.round_trip.map_or(self.unseen(), |trip| trip.max(self.unseen()))
        });
        // Where others paused for as long meanwhile, those asked instead would, too.
        let moving = self.others(late).filter_map(|device| self.moving.get(&device.id));
        let pauses = moving.filter(|moving| moving.bytes > 0).map(|moving| moving.pause);
        delay.max(longest(pauses.collect()).unwrap_or_default())
    }

    /// How long a decode without `late` would take from now on; `None` where it could not succeed.
    fn decode_time(&self, now: Time, late: DeviceId) -> Option<Duration> {
        let others = || self.others(late);
        if !self.decodable(&[late]) {
            return None;
        }
        let (delay, unseen) = (self.answer_time(late), self.unseen());
        let pace = |device: &Device| Some(device.pace_bytes_per_s(now)).filter(|pace| *pace > 0.0);
        let able: Vec<&Device> = others().filter(|device| !device.left.is_empty()).collect();
        let mut known: Vec<f64> = able.iter().copied().filter_map(pace).collect();
        if known.is_empty() {
            // Nothing is known of them: they are taken to be as fast as those that have sent all they had.
            known.extend(others().filter_map(pace));
        }
        if known.is_empty() {
            // Nor of any other: as fast as this one is once it moves.
            let Some(own) = self.moved(late) else { return Some(delay.max(unseen)) };
            known.push(own);
        }
        // A device of unknown speed counts as the mean of the others.
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let block = f64::from(self.plan.block_bytes);
        if self.rows.is_none() {
            let blocks = f64::from(self.missing.saturating_add(self.plan.extra_blocks));
            return Some(delay.saturating_add(seconds(blocks * block / (mean * able.len() as f64))));
        }
        Some(self.rows_time(now, late, delay, mean))
    }

    /// How long the rows that lack something without `late` would take, where an answer takes `delay` and a device nobody knows
    /// anything about sends `mean` bytes a second.
    fn rows_time(&self, now: Time, late: DeviceId, delay: Duration, mean: f64) -> Duration {
        let block = f64::from(self.plan.block_bytes);
        let shared = self.shared_pace(late).unwrap_or(f64::INFINITY);
        // Others may be done without, too, from the slowest on; on those that are silent for longer than an answer takes
        // nobody counts.
        let mut others: Vec<(Duration, DeviceId)> = self
            .others(late)
            .filter(|device| !device.pending.is_empty())
            .map(|device| match now.since(device.last_arrival) {
                silent if silent > delay => (Duration::MAX, device.id),
                _ => (self.time_to_finish(now, device), device.id),
            })
            .collect();
        others.sort_by_key(|(time, _)| core::cmp::Reverse(*time));
        let mut best = Duration::MAX;
        let mut without = vec![late];
        for slow in 0..=others.len() {
            let (instead, enough) = self.instead(&without);
            if !enough && slow > 0 {
                break;
            }
            let times = instead.into_iter().map(|(id, blocks)| {
                let known = Some(self.devices[&id].expected_bytes_per_s as f64).filter(|known| *known > 0.0);
                let pace = self.moved(id).or(known).unwrap_or(mean);
                seconds(f64::from(blocks.count()) * block / pace.min(shared))
            });
            let next = others.get(slow);
            let in_time = next.map_or(Duration::ZERO, |(time, _)| *time);
            best = best.min(delay.saturating_add(times.max().unwrap_or_default()).max(in_time));
            without.extend(next.map(|(_, id)| *id));
        }
        best
    }

    /// What streams but that of `late` were seen to give, bytes per second, where it is much less than they are known for: then
    /// they share the way here, and so would others.
    fn shared_pace(&self, late: DeviceId) -> Option<f64> {
        let (mut seen, mut known, mut most) = (0.0, 0.0, 0.0f64);
        for device in self.devices.values().filter(|device| device.id != late) {
            if let Some(pace) = self.moved(device.id) {
                seen += pace;
                known += (device.expected_bytes_per_s as f64).max(pace);
                most = most.max(pace);
            }
        }
        (seen < SHARED_SHARE * known).then_some(most)
    }

    /// The pace of a stream since its first slice, bytes per second, where more than that came.
    fn moved(&self, id: DeviceId) -> Option<f64> {
        let moving = self.moving.get(&id).filter(|moving| moving.bytes > 0 && moving.last > moving.first)?;
        Some(moving.bytes as f64 / moving.last.since(moving.first).as_secs_f64())
    }

    /// Opens again what failed, if the read depends on it.
    fn retry(&mut self, now: Time) {
        if !self.direct && !self.decodable(&[]) {
            for device in self.devices.values().filter(|device| device.stage == Stage::Failed) {
                if let Some(pause) = again::pause(self.plan.waits, device.cause.as_ref(), device.failures) {
                    self.retry_at.entry(device.id).or_insert(now + pause);
                }
            }
            self.look_for_the_wanted();
        }
        let due = self.retry_at.iter().filter(|&(_, &at)| at <= now).map(|(&id, _)| id);
        for id in due.collect::<Vec<_>>() {
            self.retry_at.remove(&id);
            let device = self.devices.get_mut(&id).expect("only devices of the read are retried");
            device.stage = Stage::Idle;
            // A decode asks it for what is lacking.
            if !self.decoding {
                self.open_for_wanted(now, id);
            }
        }
    }

    fn block(&mut self, id: DeviceId, index: BlockIndex, missing: u32) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        self.counts.devices += u32::from(device.block(index) && device.blocks_received == 1);
        let nearer = missing < self.missing;
        if let Some(rows) = self.rows.as_mut().filter(|_| nearer) {
            let row = rows.of(index);
            rows.came[row] += 1;
        }
        let wanted = self.wanted.remove(index);
        self.counts.useful_blocks += u32::from(wanted || nearer);
        self.counts.coded_blocks += u32::from(nearer && self.plan.is_coded(index));
        self.counts.extra_won += u32::from(nearer && self.extra.remove(index));
        self.missing = missing.min(self.missing);
    }

    fn failed(&mut self, now: Time, id: DeviceId, cause: Cause) {
        let Some(device) = self.devices.get_mut(&id).filter(|device| device.stage == Stage::Active) else {
            return;
        };
        if let Cause::Fault(Fault::Refused { reason, retry_after_ms }) = cause {
            // A refusal says when to come back; patience bounds how often.
            let after = Duration::from_millis(u64::from(retry_after_ms.max(1)));
            self.retry_at.insert(id, now + after);
            if reason == RefusalReason::Overloaded {
                self.busy = true;
                self.refused.entry(id).or_insert(now);
            }
        } else {
            self.counts.devices_failed += u32::from(device.failures == 0);
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
        if self.rows.is_none() && self.missing > 0 {
            // The originals came as they are.
            self.counts.extra_won = 0;
        }
        self.stood_in_for.retain(|id| !self.devices[id].pending.is_empty());
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

    fn heed(&mut self, now: Time, factor: u32) {
        if std::mem::replace(&mut self.plan.late.factor, factor) != factor {
            self.decide(now);
        }
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

    fn late(&self) -> Vec<DeviceId> {
        self.stood_in_for.iter().copied().collect()
    }
}
