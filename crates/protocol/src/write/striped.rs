//! RAID-0, the baseline of dissertation ch. 6: original i goes to device i mod H, once, and every device must confirm
//! all of its blocks.
//!
//! Invariants: a device gets its blocks in order, as its credit allows; a device that fails fails the put, and so does
//! a full one (the planner avoided those); the slowest device sets the speed, by design.
//!
//! Left out: everything that would make it fast past a straggler; that is what the other schemes are for.

use super::{
    Action, FailureKind, Input, WriteDone, WriteError, WriteSpec,
    lane::{Lane, State},
};
use crate::{
    DeviceId, Time,
    durability::{Judge, Verdict},
    layout::Share,
};
use core::time::Duration;
use std::collections::VecDeque;

/// The striped write core of one segment.
pub struct StripedWriter {
    spec: WriteSpec,
    judge: Judge,
    /// Each device and the next index it gets.
    lanes: Vec<(Lane, u32)>,
    pushed_blocks: u32,
    progress: Time,
    now: Time,
    actions: VecDeque<Action>,
    over: bool,
}

impl StripedWriter {
    /// A core that begins at `now`. Devices beyond the K-th get nothing.
    pub fn new(spec: WriteSpec, now: Time) -> Self {
        let originals = spec.code.k();
        let width = (spec.devices.len()).min(originals as usize);
        let judge = Judge::new(spec.code.clone(), spec.rule, spec.domains, spec.seed);
        let mut actions = VecDeque::new();
        let mut lanes = Vec::new();
        for (position, &target) in (0..originals).zip(&spec.devices[..width]) {
            let mut lane = Lane::new(target, now);
            lane.open(now);
            let expected_blocks = (originals - position).div_ceil(width as u32);
            actions.push_back(Action::Open { device: target.device, expected_blocks });
            lanes.push((lane, position));
        }
        Self { spec, judge, lanes, pushed_blocks: 0, progress: now, now, actions, over: false }
    }

    /// Takes what happened at `now`.
    pub fn handle(&mut self, now: Time, input: Input) {
        if self.over {
            return;
        }
        self.now = now;
        match input {
            Input::Opened { device } => self.grant(device, 0),
            Input::Credit { device, bytes } => self.grant(device, bytes),
            Input::Confirmed { device, blocks } => {
                if let Some((lane, _)) = self.lane(device) {
                    let domain = lane.target.domain;
                    for index in lane.confirm(now, &blocks) {
                        self.judge.confirm(domain, index);
                        self.progress = now;
                    }
                }
            }
            Input::Failed { device, cause } => self.fail(device, cause),
            Input::Tick => {}
        }
        if !self.over {
            self.step();
        }
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to tick, should nothing happen before.
    pub fn wake_at(&self) -> Option<Time> {
        let retries = self.lanes.iter().filter_map(|(lane, _)| match lane.state {
            State::Waiting(until) => Some(until),
            _ => None,
        });
        (!self.over).then(|| retries.chain([self.progress + self.spec.patience]).min()).flatten()
    }

    fn lane(&mut self, device: DeviceId) -> Option<&mut (Lane, u32)> {
        self.lanes.iter_mut().find(|(lane, _)| lane.target.device == device)
    }

    fn grant(&mut self, device: DeviceId, bytes: u64) {
        if let Some((lane, _)) = self.lane(device) {
            lane.grant(bytes);
        }
    }

    fn fail(&mut self, device: DeviceId, cause: FailureKind) {
        let devices = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let (now, block_bytes, needed) = (self.now, self.spec.block_bytes, self.spec.code.k());
        let confirmed = self.judge.confirmed();
        let Some((lane, next)) = self.lane(device) else { return };
        let untouched = *next < devices && lane.confirmed.is_empty() && lane.in_flight == 0;
        let error = match cause {
            // Refused before it got anything: ask again. Later, its blocks may be durable unseen.
            FailureKind::Refused { retry_after } if untouched => {
                lane.drop_flight();
                lane.state = State::Waiting(now + retry_after.max(Duration::from_millis(1)));
                return;
            }
            FailureKind::Full => WriteError::Full { full: 1, devices, confirmed, needed, block_bytes },
            _ => WriteError::StripeBroken { device, cause, devices },
        };
        lane.state = State::Gone;
        self.end(Action::Failed(error));
    }

    fn step(&mut self) {
        let width = u32::try_from(self.lanes.len()).expect("at most K devices");
        let (originals, block_bytes, now) = (self.spec.code.k(), self.spec.block_bytes, self.now);
        if self.judge.confirmed() == originals {
            let holders: Vec<Share> = self
                .lanes
                .iter()
                .map(|(lane, _)| Share { device: lane.target.device, blocks: lane.confirmed.clone() })
                .collect();
            let last = match self.judge.verdict() {
                Verdict::Short { blocks, why } => Action::Failed(WriteError::Unmet { blocks, why }),
                verdict => Action::Done(WriteDone {
                    holders,
                    abandoned: Vec::new(),
                    stored_blocks: originals,
                    pushed_blocks: self.pushed_blocks,
                    wasted_blocks: self.pushed_blocks - originals,
                    verdict,
                }),
            };
            self.end(last);
            return;
        }
        if now.since(self.progress) >= self.spec.patience {
            let silent = self.lanes.iter().map(|(lane, _)| lane);
            let silent = silent.filter(|lane| lane.owes() || lane.state != State::Open);
            let error = WriteError::Stalled {
                confirmed: self.judge.confirmed(),
                needed: originals,
                patience: self.spec.patience,
                silent: silent.map(|lane| lane.target.device).collect(),
            };
            self.end(Action::Failed(error));
            return;
        }
        for (lane, next) in &mut self.lanes {
            if let State::Waiting(until) = lane.state
                && until <= now
            {
                lane.open(now);
                let expected_blocks = (originals - *next).div_ceil(width);
                self.actions.push_back(Action::Open { device: lane.target.device, expected_blocks });
            }
            while *next < originals && lane.affords(block_bytes) > 0 {
                let indices = *next..*next + 1;
                lane.push(now, indices.clone(), block_bytes);
                self.actions.push_back(Action::Push { device: lane.target.device, indices });
                self.pushed_blocks += 1;
                *next += width;
            }
        }
    }

    fn end(&mut self, last: Action) {
        self.over = true;
        self.actions.retain(|action| !matches!(action, Action::Push { .. }));
        for (lane, _) in &self.lanes {
            let device = lane.target.device;
            match lane.state {
                State::Open if lane.in_flight == 0 => self.actions.push_back(Action::Finish { device }),
                State::Opening | State::Open => self.actions.push_back(Action::Cancel { device }),
                State::Spare | State::Waiting(_) | State::Gone => {}
            }
        }
        self.actions.push_back(last);
    }
}
