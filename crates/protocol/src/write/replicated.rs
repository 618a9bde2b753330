//! Very small objects: f + 1 copies of one block, in distinct failure domains.
//!
//! Invariants: every copy has an index of its own, never reused; a device that fails, or lags far behind the pace of
//! the copies that are there, gets a spare beside it; the first f + 1 domains that confirm are enough, and the late
//! ones are cancelled.
//!
//! Left out: choosing the devices (`plan`), and reading (any copy will do).

use super::{
    Action, FailureKind, Input, WriteDone, WriteError, WriteSpec,
    lane::{Lane, State},
};
use crate::{
    BlockIndex, DeviceId, IndexRanges, Time,
    durability::{Judge, Verdict},
    layout::Share,
};
use core::time::Duration;
use std::collections::VecDeque;

/// A copy is late when it takes so many times as long as the slowest that is there. Picked by eye: a flush under load
/// takes a few times as long as its neighbour's, not more (traps §18 is about runs, not neighbours).
const LATE_FACTOR: u32 = 4;
/// No copy is called late before this: the grain of the drivers' timers (traps §10).
const TICK: Duration = Duration::from_millis(1);

/// The replicated write core of one segment.
pub struct ReplicatedWriter {
    spec: WriteSpec,
    judge: Judge,
    lanes: Vec<Lane>,
    next_index: BlockIndex,
    started: Time,
    /// How long the slowest confirmed copy took from its opening.
    slowest: Option<Duration>,
    /// When each lane was opened.
    opened: Vec<Time>,
    progress: Time,
    now: Time,
    /// The source has not given all yet: copies wait for it, not for devices.
    arriving: bool,
    actions: VecDeque<Action>,
    over: bool,
}

impl ReplicatedWriter {
    /// A core that begins at `now`. The first devices of f + 1 distinct domains get a copy each.
    pub fn new(spec: WriteSpec, now: Time) -> Self {
        let judge = Judge::new(spec.code.clone(), spec.rule, spec.domains, spec.seed);
        let lanes: Vec<Lane> =
            spec.devices.iter().chain(&spec.spares).map(|&target| Lane::new(target, now)).collect();
        let opened = vec![now; lanes.len()];
        let mut core = Self {
            spec,
            judge,
            lanes,
            next_index: 0,
            started: now,
            slowest: None,
            opened,
            progress: now,
            now,
            arriving: false,
            actions: VecDeque::new(),
            over: false,
        };
        core.open_enough();
        core
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
                if let Some(position) = self.position(device) {
                    let lane = &mut self.lanes[position];
                    let domain = lane.target.domain;
                    for index in lane.confirm(now, &blocks) {
                        self.judge.confirm(domain, index);
                        self.progress = now;
                        let took = now.since(self.opened[position]);
                        self.slowest = Some(self.slowest.map_or(took, |slowest| slowest.max(took)));
                    }
                }
            }
            Input::Failed { device, cause } => self.fail(device, cause),
            Input::Arrived { originals } => {
                self.arriving = originals < self.spec.code.k();
                if !self.arriving {
                    // Nobody is late who had nothing to write.
                    self.opened.fill(now);
                }
            }
            Input::Tick => {}
        }
        self.step();
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to tick, should nothing happen before.
    pub fn wake_at(&self) -> Option<Time> {
        if self.over {
            return None;
        }
        let spares = !self.arriving && self.lanes.iter().any(|lane| lane.state == State::Spare);
        let lanes = self.lanes.iter().zip(&self.opened).filter_map(|(lane, &opened)| match lane.state {
            State::Waiting(until) => Some(until),
            _ => (spares && !lane.replaced && lane.live() && lane.confirmed.is_empty())
                .then(|| opened + self.late_after()),
        });
        lanes.chain([self.progress + self.spec.patience]).min()
    }

    fn position(&self, device: DeviceId) -> Option<usize> {
        let known =
            |lane: &Lane| lane.target.device == device && !matches!(lane.state, State::Spare | State::Gone);
        self.lanes.iter().position(known)
    }

    fn grant(&mut self, device: DeviceId, bytes: u64) {
        if let Some(position) = self.position(device) {
            self.lanes[position].grant(bytes);
        }
    }

    fn late_after(&self) -> Duration {
        self.slowest.map_or(self.spec.patience / 8, |slowest| slowest * LATE_FACTOR + TICK)
    }

    fn fail(&mut self, device: DeviceId, cause: FailureKind) {
        let Some(position) = self.position(device) else { return };
        let lane = &mut self.lanes[position];
        lane.replaced |= !lane.yields(cause);
        lane.drop_flight();
        lane.state = State::Gone;
        match cause {
            // It may take a copy later; another is asked meanwhile.
            FailureKind::Refused { retry_after } => {
                lane.state = State::Waiting(self.now + retry_after.max(Duration::from_millis(1)));
            }
            FailureKind::Full => lane.full = true,
            FailureKind::Protocol => {}
            // A copy that may be lost already is not counted on.
            FailureKind::Unreachable | FailureKind::Medium => {
                lane.confirmed = IndexRanges::new();
                self.judge =
                    Judge::new(self.spec.code.clone(), self.spec.rule, self.spec.domains, self.spec.seed);
                for lane in &self.lanes {
                    lane.confirmed.iter().for_each(|index| {
                        self.judge.confirm(lane.target.domain, index);
                    });
                }
            }
        }
    }

    /// Opens devices until f + 1 domains have a copy or one on its way that is not late.
    fn open_enough(&mut self) {
        loop {
            let mut domains: Vec<u32> = self
                .lanes
                .iter()
                .filter(|lane| !lane.confirmed.is_empty() || (lane.live() && !lane.replaced))
                .map(|lane| lane.target.domain)
                .collect();
            domains.sort_unstable();
            domains.dedup();
            if domains.len() > self.spec.rule.tolerate as usize {
                return;
            }
            let fresh = |lane: &Lane| lane.state == State::Spare && !domains.contains(&lane.target.domain);
            let Some(position) = self.lanes.iter().position(fresh) else { return };
            self.open(position);
        }
    }

    fn open(&mut self, position: usize) {
        self.lanes[position].open(self.now);
        self.opened[position] = self.now;
        let device = self.lanes[position].target.device;
        self.actions.push_back(Action::Open { device, expected_blocks: 1, chunk: None });
    }

    fn step(&mut self) {
        let verdict = self.judge.verdict();
        if verdict.holds() {
            self.done(verdict);
            return;
        }
        for position in 0..self.lanes.len() {
            if let State::Waiting(until) = self.lanes[position].state
                && until <= self.now
            {
                self.open(position);
            }
        }
        let late = self.late_after();
        for (lane, &opened) in self.lanes.iter_mut().zip(&self.opened) {
            if !self.arriving && lane.live() && lane.confirmed.is_empty() && self.now.since(opened) >= late {
                lane.replaced = true;
            }
        }
        self.open_enough();
        if let Some(error) = self.hopeless() {
            self.end(Action::Failed(error));
            return;
        }
        for position in 0..self.lanes.len() {
            let lane = &mut self.lanes[position];
            if lane.in_flight == 0 && lane.confirmed.is_empty() && lane.affords(self.spec.block_bytes) > 0 {
                let indices = self.next_index..self.next_index + 1;
                self.next_index += 1;
                lane.push(self.now, indices.clone(), self.spec.block_bytes);
                self.actions.push_back(Action::Push { device: lane.target.device, indices });
            }
        }
    }

    fn hopeless(&self) -> Option<WriteError> {
        let needed = self.spec.rule.tolerate + 1;
        let mut domains: Vec<u32> = self
            .lanes
            .iter()
            .filter(|lane| lane.live() || !lane.confirmed.is_empty())
            .map(|lane| lane.target.domain)
            .collect();
        domains.sort_unstable();
        domains.dedup();
        let devices = count(self.lanes.len());
        let failed = count(self.lanes.iter().filter(|lane| lane.state == State::Gone).count());
        let full = count(self.lanes.iter().filter(|lane| lane.full).count());
        let confirmed = self.judge.confirmed();
        let waiting = |lane: &&Lane| lane.live() && lane.confirmed.is_empty();
        if domains.len() < needed as usize {
            return Some(if 2 * full > failed {
                WriteError::Full { full, devices, confirmed, needed, block_bytes: self.spec.block_bytes }
            } else {
                WriteError::NotEnoughDomains { available: count(domains.len()), needed, failed, devices }
            });
        }
        let patience = self.spec.patience;
        (self.now.since(self.progress.max(self.started)) >= patience).then(|| WriteError::Stalled {
            confirmed,
            needed,
            patience,
            silent: self.lanes.iter().filter(waiting).map(|lane| lane.target.device).collect(),
        })
    }

    fn done(&mut self, verdict: Verdict) {
        let copies = || self.lanes.iter().filter(|lane| !lane.confirmed.is_empty());
        let holders: Vec<Share> = copies()
            .map(|lane| Share { device: lane.target.device, blocks: lane.confirmed.clone() })
            .collect();
        let unused = self.lanes.iter().filter(|lane| lane.state != State::Spare && lane.confirmed.is_empty());
        let stored_blocks = count(holders.len());
        let done = WriteDone {
            abandoned: unused.map(|lane| lane.target.device).collect(),
            stored_blocks,
            pushed_blocks: self.next_index,
            wasted_blocks: self.next_index - stored_blocks,
            holders,
            verdict,
        };
        self.end(Action::Done(done));
    }

    fn end(&mut self, last: Action) {
        self.over = true;
        self.actions.retain(|action| !matches!(action, Action::Push { .. }));
        for lane in &self.lanes {
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
