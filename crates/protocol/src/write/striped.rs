//! RAID-0 and its rotated copies, the baselines of dissertation ch. 6: copy c of original i, which is block c K + i, goes
//! to device (i + c) mod H (§6.2.1), and every device must confirm all of its blocks. With f = 0 there is one copy, with
//! f above there are f + 1.
//!
//! ```text
//!   H = 4, K = 8, two copies      device 0   device 1   device 2   device 3
//!   (figure 6-1d)                  0  4       1  5       2  6       3  7
//!                                 11 15       8 12       9 13      10 14      = originals 3 7, 0 4, 1 5, 2 6
//! ```
//!
//! Invariants: a device gets its blocks in ascending order, as its credit allows; a device that fails before it has all of them fails
//! the put, and so does a full one (the planner avoided those); the slowest device sets the speed, by design.
//!
//! Left out: everything that would make it fast past a straggler; that is what the other schemes are for.

use super::{
    Action, FailureKind, Input, WriteDone, WriteError, WriteSpec,
    lane::{Lane, State},
};
use crate::{
    BlockIndex, DeviceId, Time,
    durability::{Judge, Verdict},
    layout::Share,
};
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

/// The striped write core of one segment.
pub struct StripedWriter {
    spec: WriteSpec,
    judge: Judge,
    /// Each device and the blocks it is still to get.
    lanes: Vec<(Lane, VecDeque<BlockIndex>)>,
    /// N: blocks to store.
    blocks: u32,
    pushed_blocks: u32,
    progress: Time,
    now: Time,
    /// The source has not given all yet: blocks wait for it, not for devices.
    arriving: bool,
    actions: VecDeque<Action>,
    over: bool,
}

impl StripedWriter {
    /// A core that begins at `now`. Devices beyond the last that a copy reaches get nothing.
    pub fn new(spec: WriteSpec, now: Time) -> Self {
        let (originals, copies) = (spec.code.k(), spec.rule.tolerate + 1);
        let width = u32::try_from(spec.devices.len()).expect("a plan has few devices");
        let blocks = originals * copies;
        let mut shares: Vec<VecDeque<BlockIndex>> = vec![VecDeque::new(); width as usize];
        for (copy, original) in (0..copies).flat_map(|copy| (0..originals).map(move |one| (copy, one))) {
            shares[((original + copy) % width) as usize].push_back(copy * originals + original);
        }
        let judge = Judge::new(spec.code.clone(), spec.rule, spec.domains, spec.seed);
        let mut actions = VecDeque::new();
        let mut lanes = Vec::new();
        for (&target, share) in spec.devices.iter().zip(shares).filter(|(_, share)| !share.is_empty()) {
            let mut lane = Lane::new(target, now);
            lane.open(now);
            actions.push_back(Action::Open {
                device: target.device,
                expected_blocks: count(share.len()),
                chunk: None,
            });
            lanes.push((lane, share));
        }
        Self {
            spec,
            judge,
            lanes,
            blocks,
            pushed_blocks: 0,
            progress: now,
            now,
            arriving: false,
            actions,
            over: false,
        }
    }

    /// Takes what happened at `now`.
    pub fn handle(&mut self, now: Time, input: Input) {
        if self.over {
            return;
        }
        self.now = now;
        if self.arriving {
            self.progress = now;
        }
        match input {
            Input::Opened { device } => self.grant(device, 0),
            Input::Credit { device, bytes } => self.grant(device, bytes),
            Input::Confirmed { device, blocks } => {
                if let Some((lane, left)) = self.lane(device) {
                    let (domain, confirmed) = (lane.target.domain, lane.confirm(now, &blocks));
                    let whole = lane.state == State::Open && lane.in_flight == 0 && left.is_empty();
                    let finish = whole.then(|| lane.finish());
                    for index in confirmed {
                        self.judge.confirm(domain, index);
                        self.progress = now;
                    }
                    self.actions.extend(finish);
                }
            }
            Input::Failed { device, cause } => self.fail(device, cause),
            Input::Arrived { originals } => self.arriving = originals < self.spec.code.k(),
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

    fn lane(&mut self, device: DeviceId) -> Option<&mut (Lane, VecDeque<BlockIndex>)> {
        self.lanes.iter_mut().find(|(lane, _)| lane.target.device == device)
    }

    fn grant(&mut self, device: DeviceId, bytes: u64) {
        if let Some((lane, _)) = self.lane(device) {
            lane.grant(bytes);
        }
    }

    fn fail(&mut self, device: DeviceId, cause: FailureKind) {
        let devices = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let (now, block_bytes, needed) = (self.now, self.spec.block_bytes, self.blocks);
        let confirmed = self.judge.confirmed();
        let Some((lane, left)) = self.lane(device).filter(|(lane, _)| lane.state != State::Whole) else {
            return;
        };
        let error = match cause {
            // What it took it has confirmed (`serve::write_stream`): the rest, most of which may wait for the source, goes on another stream.
            FailureKind::Refused { retry_after } => {
                let unsent: BTreeSet<BlockIndex> = lane.flight().collect();
                unsent.iter().rev().for_each(|&index| left.push_front(index));
                lane.drop_flight();
                lane.state = State::Waiting(now + retry_after.max(Duration::from_millis(1)));
                self.pushed_blocks -= count(unsent.len());
                return;
            }
            FailureKind::Full => WriteError::Full { full: 1, devices, confirmed, needed, block_bytes },
            _ => WriteError::StripeBroken { device, cause, devices },
        };
        lane.state = State::Gone;
        self.end(Action::Failed(error));
    }

    fn step(&mut self) {
        let (blocks, block_bytes, now) = (self.blocks, self.spec.block_bytes, self.now);
        if self.judge.confirmed() == blocks {
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
                    stored_blocks: blocks,
                    pushed_blocks: self.pushed_blocks,
                    wasted_blocks: self.pushed_blocks - blocks,
                    verdict,
                }),
            };
            self.end(last);
            return;
        }
        if now.since(self.progress) >= self.spec.patience {
            let silent = self.lanes.iter().map(|(lane, _)| lane);
            let silent =
                silent.filter(|lane| lane.owes() || !matches!(lane.state, State::Open | State::Whole));
            let error = WriteError::Stalled {
                confirmed: self.judge.confirmed(),
                needed: blocks,
                patience: self.spec.patience,
                silent: silent.map(|lane| lane.target.device).collect(),
            };
            self.end(Action::Failed(error));
            return;
        }
        for (lane, left) in &mut self.lanes {
            if let State::Waiting(until) = lane.state
                && until <= now
            {
                lane.open(now);
                let expected_blocks = count(left.len());
                self.actions.push_back(Action::Open {
                    device: lane.target.device,
                    expected_blocks,
                    chunk: None,
                });
            }
            while lane.affords(block_bytes) > 0 {
                let Some(index) = left.pop_front() else { break };
                let indices = index..index + 1;
                lane.push(now, indices.clone(), block_bytes);
                self.actions.push_back(Action::Push { device: lane.target.device, indices });
                self.pushed_blocks += 1;
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
                State::Spare | State::Waiting(_) | State::Gone | State::Whole => {}
            }
        }
        self.actions.push_back(last);
    }
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
