//! The striped read (RAID-0, dissertation §6.2.1): every wanted original from its one holder.
//!
//! Invariants: no block is asked of two devices; a stream that fails, or a block that arrives damaged, is asked for
//! once more at the same device, and a device that is out of reach for a while ([`again`]); the next failure ends the read, naming
//! the device and what is out of reach.

use super::{
    Action, Cause, Input, ReadCore, ReadDone, ReadError, ReadPlan, again,
    source::{Device, Stage},
};
use crate::{DeviceId, IndexRanges, Time, message::Fault};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// A device that is within reach is asked once more after a failure.
const RETRIES_MAX: u32 = 1;

/// The striped read of one segment, or of some of its originals.
#[derive(Debug)]
pub struct Striped {
    plan: ReadPlan,
    devices: BTreeMap<DeviceId, Device>,
    missing: u32,
    retry_at: BTreeMap<DeviceId, Time>,
    counts: ReadDone,
    actions: VecDeque<Action>,
    over: bool,
    heard: Time,
}

impl Striped {
    /// Begins a read of the blocks in `wanted` (all originals: `IndexRanges::from(0..plan.originals)`); the plan's
    /// rule does not matter. Its first actions are there at once.
    pub fn new(now: Time, plan: ReadPlan, wanted: &IndexRanges) -> Self {
        let mut unplaced = wanted.clone();
        let mut devices = BTreeMap::new();
        for source in &plan.sources {
            let blocks: IndexRanges = source.blocks.iter().filter(|&index| unplaced.remove(index)).collect();
            if !blocks.is_empty() {
                let source = super::Source { blocks, ..source.clone() };
                devices.insert(source.device, Device::new(&plan, &source));
            }
        }
        let mut read = Self {
            missing: wanted.count(),
            devices,
            retry_at: BTreeMap::new(),
            counts: ReadDone::default(),
            actions: VecDeque::new(),
            over: false,
            heard: now,
            plan,
        };
        if let Some(first) = unplaced.iter().next() {
            read.end(Action::Failed(ReadError::NoHolder { blocks: unplaced.count(), first }));
            return read;
        }
        let ids: Vec<DeviceId> = read.devices.keys().copied().collect();
        for id in ids {
            read.open(now, id);
        }
        read.decide(now);
        read
    }

    fn open(&mut self, now: Time, id: DeviceId) {
        let device = self.devices.get_mut(&id).expect("only devices of the read are opened");
        device.stage = Stage::Idle;
        let blocks = device.left.clone();
        self.counts.requested_blocks += blocks.count();
        self.actions.push_back(device.open(now, blocks, false));
    }

    fn decide(&mut self, now: Time) {
        if self.over {
            return;
        }
        if self.missing == 0 {
            self.end(Action::Done(self.counts));
            return;
        }
        if now >= self.heard + self.plan.patience {
            let silent =
                self.devices.values().filter(|device| !device.left.is_empty()).map(|device| device.id);
            let silent = silent.collect();
            let waited = now.since(self.heard);
            self.end(Action::Failed(ReadError::Stalled { missing: self.missing, waited, silent }));
            return;
        }
        let due: Vec<DeviceId> =
            self.retry_at.iter().filter(|&(_, &at)| at <= now).map(|(&id, _)| id).collect();
        for id in due {
            self.retry_at.remove(&id);
            self.open(now, id);
        }
    }

    fn ended(&mut self, now: Time, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id).filter(|device| device.stage == Stage::Active) else {
            return;
        };
        // Blocks that did not come stay in `left`: unlike a rateless read, this one cannot do without them.
        let gone = device.left.clone();
        device.ended(now);
        device.left = gone;
        if !device.left.is_empty() {
            self.failed_once_more(now, id, None);
        }
    }

    fn failed(&mut self, now: Time, id: DeviceId, cause: Cause) {
        let Some(device) = self.devices.get_mut(&id).filter(|device| device.stage == Stage::Active) else {
            return;
        };
        if device.left.is_empty() {
            // All of it is here: what failed is the end of its stream.
            device.ended(now);
            return;
        }
        if let Cause::Fault(Fault::Refused { retry_after_ms, .. }) = cause {
            // Patience bounds how often it is asked again.
            device.failed(now, cause);
            let after = Duration::from_millis(u64::from(retry_after_ms.max(1)));
            self.retry_at.insert(id, now + after);
            return;
        }
        self.counts.devices_failed += u32::from(device.failures == 0);
        device.failed(now, cause.clone());
        self.failed_once_more(now, id, Some(cause));
    }

    fn failed_once_more(&mut self, now: Time, id: DeviceId, cause: Option<Cause>) {
        let device = self.devices.get_mut(&id).expect("it was found by the caller");
        if cause.is_none() {
            device.failures += 1;
        }
        let once_more = (device.failures <= RETRIES_MAX).then_some(Duration::ZERO);
        if let Some(pause) = again::pause(self.plan.waits, cause.as_ref(), device.failures).or(once_more) {
            self.retry_at.insert(id, now + pause);
        } else {
            let blocks = device.left.count();
            self.end(Action::Failed(ReadError::OutOfReach { device: id, blocks, cause }));
        }
    }

    fn end(&mut self, last: Action) {
        self.over = true;
        self.retry_at.clear();
        for device in self.devices.values_mut() {
            let cancel = device.cancel();
            self.actions.extend(cancel);
        }
        self.actions.push_back(last);
    }
}

impl ReadCore for Striped {
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
            Input::Block { device, index, .. } => {
                self.counts.received_blocks += 1;
                if self.over {
                    return;
                }
                self.heard = now;
                if let Some(device) = self.devices.get_mut(&device)
                    && device.block(index)
                {
                    self.counts.devices += u32::from(device.blocks_received == 1);
                    self.counts.useful_blocks += 1;
                    self.missing -= 1;
                }
            }
            // It stays in what is left of its device, and is asked for again once the stream has ended.
            Input::Corrupt { .. } => self.counts.corrupt_blocks += 1,
            Input::Ended { device } => self.ended(now, device),
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
        self.retry_at.values().copied().chain([patience]).min()
    }

    fn counts(&self) -> ReadDone {
        self.counts
    }
}
