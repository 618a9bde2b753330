//! The speculative read (dissertation §4.1.2): ask many devices for more than is needed, take what comes first,
//! cancel the rest once the decoder has enough. For rateless and for replicated segments (RRAID-S, §6.2.1).
//!
//! With [`RequestRule::All`] every device is asked once for all it has, whatever its speed. With
//! [`RequestRule::KPlus`] each is asked for a share in proportion to its expected speed, originals first; more is
//! asked of devices that are done when what is still to come cannot be enough: because a device failed, blocks were
//! damaged or brought nothing, or a device is so late that others would have delivered its part twice by now.
//! [`RequestRule::Adaptive`] has a core of its own; here it is K plus nothing.
//!
//! Invariants: exactly one `Done` or `Failed` ends the actions; a block is asked of at most one stream of a device
//! at a time; an end that more waiting cannot change is told (`NotEnough`) without waiting for patience: at once, or where servers are
//! out of reach that may restart, after a few seconds ([`again`]).

use super::{
    Action, Cause, Input, ReadCore, ReadDone, ReadError, ReadPlan, RequestRule, again,
    source::{Device, Stage, seconds},
};
use crate::{DeviceId, IndexRanges, Time, message::Fault};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// A device is late when it needs this many times longer than devices that are done would need for its blocks:
/// less would hedge against ordinary jitter, more would wait longer than asking twice costs. Picked by eye.
const LATE_FACTOR: u32 = 2;
/// Before any device has answered there is no pace to judge by: others are tried after this part of the patience.
const FIRST_ANSWER_SHARE: u32 = 16;

/// The speculative read of one segment.
#[derive(Debug)]
pub struct Speculative {
    plan: ReadPlan,
    devices: BTreeMap<DeviceId, Device>,
    missing: u32,
    counts: ReadDone,
    actions: VecDeque<Action>,
    over: bool,
    heard: Time,
    retry_at: BTreeMap<DeviceId, Time>,
    late_at: Option<Time>,
    /// What was asked for because devices were late.
    extra: IndexRanges,
    /// Blocks that may still come, as last counted.
    reachable: u32,
}

impl Speculative {
    /// Begins a read; its first actions are there at once.
    pub fn new(now: Time, plan: ReadPlan) -> Self {
        let devices = plan
            .sources
            .iter()
            .filter(|source| !source.blocks.is_empty())
            .map(|source| (source.device, Device::new(&plan, source)))
            .collect();
        let mut read = Self {
            missing: plan.originals,
            devices,
            counts: ReadDone::default(),
            actions: VecDeque::new(),
            over: false,
            heard: now,
            retry_at: BTreeMap::new(),
            late_at: None,
            extra: IndexRanges::new(),
            reachable: 0,
            plan,
        };
        match read.plan.rule {
            RequestRule::All | RequestRule::AllAtOnce => read.ask_for_all(now),
            RequestRule::KPlus(_) | RequestRule::Adaptive { .. } => {
                read.ask(now, read.missing.saturating_add(read.slack()));
            }
        }
        read.decide(now);
        read
    }

    /// Blocks asked for beyond what is known to be missing.
    fn slack(&self) -> u32 {
        match self.plan.rule {
            RequestRule::All | RequestRule::AllAtOnce => u32::MAX / 2,
            RequestRule::KPlus(more) => more.saturating_add(self.plan.extra_blocks),
            RequestRule::Adaptive { .. } => self.plan.extra_blocks,
        }
    }

    fn ask_for_all(&mut self, now: Time) {
        for device in self.devices.values_mut().filter(|device| device.stage == Stage::Idle) {
            if !device.left.is_empty() {
                let all = device.is_untouched();
                let blocks = device.left.clone();
                self.counts.requested_blocks += blocks.count();
                self.actions.push_back(device.open(now, blocks, all));
            }
        }
    }

    /// Asks idle devices for `blocks` more in proportion to their speed, originals first: for which.
    fn ask(&mut self, now: Time, blocks: u32) -> IndexRanges {
        let mut asked = IndexRanges::new();
        let idle: Vec<(DeviceId, u32, f64)> = self
            .devices
            .values()
            .filter(|device| device.stage == Stage::Idle && !device.left.is_empty())
            .map(|device| (device.id, device.left.count(), device.pace_bytes_per_s(now)))
            .collect();
        for (id, share) in shares(&idle, blocks) {
            let device = self.devices.get_mut(&id).expect("it was listed above");
            let wanted = originals_first(&device.left, share, self.plan.originals);
            self.counts.requested_blocks += wanted.count();
            asked.insert_all(&wanted);
            self.actions.push_back(device.open(now, wanted, false));
        }
        asked
    }

    /// Looks at everything after each event: is it over, must more be asked, when to look again.
    fn decide(&mut self, now: Time) {
        if self.over {
            return;
        }
        if self.missing == 0 {
            // What they stood in for has come, all but these.
            let active = self.devices.values().filter(|device| device.stage == Stage::Active);
            let owed = active.map(|device| device.pending.difference(&self.extra).count());
            self.counts.extra_won = self.counts.extra_won.min(owed.sum());
            self.end(Action::Done(self.counts));
            return;
        }
        let reachable = self.retry(now);
        self.reachable = reachable;
        if reachable < self.missing {
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
            self.end(Action::Failed(ReadError::Stalled { missing: self.missing, waited, silent }));
            return;
        }
        match self.plan.rule {
            RequestRule::All | RequestRule::AllAtOnce => self.ask_for_all(now),
            RequestRule::KPlus(_) | RequestRule::Adaptive { .. } => self.ask_beyond(now),
        }
    }

    /// Asks for more where what is on its way cannot be enough, or comes too late.
    fn ask_beyond(&mut self, now: Time) {
        let reserve = self.reserve(now);
        let (mut expected, mut late_blocks) = (0u32, 0u32);
        self.late_at = None;
        for device in self.devices.values().filter(|device| device.stage == Stage::Active) {
            let pending = device.pending.count();
            let Some(fetch) = reserve.as_ref().map(|reserve| reserve.time_for(pending.min(self.missing)))
            else {
                expected += pending;
                continue;
            };
            let late = fetch.saturating_mul(LATE_FACTOR);
            if device.time_to_finish(now) > late {
                late_blocks += pending;
                continue;
            }
            expected += pending;
            // Silence alone makes it late then; arrivals call this again.
            let at = device.last_arrival + late + Duration::from_nanos(1);
            self.late_at = Some(self.late_at.map_or(at, |earlier| earlier.min(at)));
        }
        if reserve.is_some() && expected < self.missing {
            let wanted = self.missing.saturating_add(self.slack().max(1)) - expected;
            let asked = self.ask(now, wanted);
            // As much as would not be asked for if nobody was late.
            let needed = if expected + late_blocks < self.missing { wanted - late_blocks } else { 0 };
            let extra: IndexRanges = asked.iter().skip(needed as usize).collect();
            self.counts.extra_blocks += extra.count();
            self.extra.insert_all(&extra);
        }
    }

    /// What devices that are done could deliver together.
    fn reserve(&self, now: Time) -> Option<Reserve> {
        let idle = || self.devices.values().filter(|d| d.stage == Stage::Idle && !d.left.is_empty());
        idle().next()?;
        let pace: f64 = idle().map(|device| device.pace_bytes_per_s(now)).sum();
        let seen = idle().filter_map(Device::first_byte_delay).max();
        let seen = seen.or_else(|| self.devices.values().filter_map(Device::first_byte_delay).max());
        let delay = seen.unwrap_or(self.plan.patience / FIRST_ANSWER_SHARE);
        Some(Reserve { pace_bytes_per_s: pace, delay, block_bytes: self.plan.block_bytes })
    }

    fn reachable(&self) -> u32 {
        let within = self.devices.values().filter(|device| {
            matches!(device.stage, Stage::Idle | Stage::Active) || self.retry_at.contains_key(&device.id)
        });
        within.map(|device| device.left.count()).sum()
    }

    /// Opens again what failed, if the read depends on it. Gives how many blocks are within reach then.
    fn retry(&mut self, now: Time) -> u32 {
        let mut reachable = self.reachable();
        if reachable < self.missing {
            for device in self.devices.values().filter(|device| device.stage == Stage::Failed) {
                if let Some(pause) = again::pause(self.plan.waits, device.cause.as_ref(), device.failures) {
                    self.retry_at.entry(device.id).or_insert(now + pause);
                }
            }
            reachable = self.reachable();
        }
        let due: Vec<DeviceId> =
            self.retry_at.iter().filter(|&(_, &at)| at <= now).map(|(&id, _)| id).collect();
        for id in due {
            self.retry_at.remove(&id);
            let device = self.devices.get_mut(&id).expect("only devices of the read are retried");
            device.stage = Stage::Idle;
            if self.plan.rule.is_all() || self.missing >= device.left.count() {
                let blocks = device.left.clone();
                self.counts.requested_blocks += blocks.count();
                self.actions.push_back(device.open(now, blocks, false));
            }
        }
        reachable
    }

    fn failed(&mut self, now: Time, id: DeviceId, cause: Cause) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        if device.stage != Stage::Active {
            return;
        }
        if device.left.is_empty() {
            // All of it is here: what failed is the end of its stream.
            device.ended(now);
            return;
        }
        if let Cause::Fault(Fault::Refused { retry_after_ms, .. }) = cause {
            // A refusal says when to come back; patience bounds how often.
            let after = Duration::from_millis(u64::from(retry_after_ms.max(1)));
            self.retry_at.insert(id, now + after);
        } else {
            self.counts.devices_failed += u32::from(device.failures == 0);
        }
        device.failed(now, cause);
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
            let cancel = device.cancel();
            self.actions.extend(cancel.filter(|_| !unsent.contains(&device.id)));
        }
        self.actions.push_back(last);
    }
}

impl ReadCore for Speculative {
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
                if !self.over
                    && let Some(device) = self.devices.get_mut(&device)
                {
                    self.heard = now;
                    self.actions.extend(device.slice(now, bytes));
                }
                return;
            }
            Input::Block { device, index, missing } => {
                self.counts.received_blocks += 1;
                if self.over {
                    return;
                }
                self.heard = now;
                if let Some(device) = self.devices.get_mut(&device)
                    && device.block(index)
                {
                    self.counts.devices += u32::from(device.blocks_received == 1);
                    self.reachable = self.reachable.saturating_sub(1);
                }
                let useful = missing < self.missing;
                self.counts.useful_blocks += u32::from(useful);
                self.counts.coded_blocks += u32::from(useful && self.plan.is_coded(index));
                self.counts.extra_won += u32::from(useful && self.extra.contains(index));
                self.missing = missing.min(self.missing);
                let asked_for_all = self.plan.rule.is_all() && self.retry_at.is_empty();
                if asked_for_all && (1..=self.reachable).contains(&self.missing) {
                    // All was asked for, and enough can come: a block changes nothing more.
                    return;
                }
            }
            Input::Corrupt { device, index } => {
                self.counts.corrupt_blocks += 1;
                if let Some(device) = self.devices.get_mut(&device) {
                    device.lost(index);
                }
            }
            Input::Ended { device } => {
                if let Some(device) = self.devices.get_mut(&device).filter(|d| d.stage == Stage::Active) {
                    device.ended(now);
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

struct Reserve {
    pace_bytes_per_s: f64,
    delay: Duration,
    block_bytes: u32,
}

impl Reserve {
    fn time_for(&self, blocks: u32) -> Duration {
        if self.pace_bytes_per_s <= 0.0 {
            return self.delay;
        }
        let bytes = f64::from(blocks) * f64::from(self.block_bytes);
        self.delay.saturating_add(seconds(bytes / self.pace_bytes_per_s))
    }
}

/// Shares `blocks` among devices (name, blocks it can give, speed) in proportion to speed, none above what it can
/// give; a device of unknown speed counts as the mean of the others.
fn shares(devices: &[(DeviceId, u32, f64)], blocks: u32) -> Vec<(DeviceId, u32)> {
    let known: Vec<f64> = devices.iter().map(|&(_, _, speed)| speed).filter(|&speed| speed > 0.0).collect();
    let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
    let mut open: Vec<(DeviceId, u32, f64)> =
        devices.iter().map(|&(id, room, speed)| (id, room, if speed > 0.0 { speed } else { mean })).collect();
    // Those that run into their limit first, so that what they cannot give goes to the others.
    open.sort_by(|a, b| (f64::from(a.1) / a.2).total_cmp(&(f64::from(b.1) / b.2)).then(a.0.cmp(&b.0)));
    let mut speed_left: f64 = open.iter().map(|device| device.2).sum();
    let mut blocks_left = blocks;
    let mut shares = Vec::new();
    for (position, &(id, room, speed)) in open.iter().enumerate() {
        let last = position + 1 == open.len();
        let fair =
            if last { blocks_left } else { (f64::from(blocks_left) * speed / speed_left).round() as u32 };
        let share = fair.min(room).min(blocks_left);
        speed_left -= speed;
        blocks_left -= share;
        if share > 0 {
            shares.push((id, share));
        }
    }
    shares.sort();
    shares
}

/// `count` of the blocks in `held`, those below `originals` first.
fn originals_first(held: &IndexRanges, count: u32, originals: u32) -> IndexRanges {
    // Ascending order is originals first: repair blocks are numbered from K up.
    debug_assert!(originals > 0);
    let mut wanted = IndexRanges::new();
    let mut left = count;
    for range in held.ranges() {
        let take = left.min(range.end - range.start);
        wanted.insert_range(range.start..range.start + take);
        left -= take;
        if left == 0 {
            break;
        }
    }
    wanted
}
