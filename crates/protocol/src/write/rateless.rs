//! The speculative write: coded blocks go to every device as fast as each takes them, until the durability rule holds
//! (dissertation §4.1.2, §4.3.2; N floats).
//!
//! Invariants:
//! - indices are handed out in runs, originals first, each index once: blocks of a device that fails are replaced by
//!   others, because they may have become durable unseen;
//! - nobody waits for a straggler: until the end is in sight each device is bounded by its own credit and window only;
//! - the window of a device is doubled only while that makes it faster, never above a third of its share, and near the
//!   end no more than it can confirm before the rule is forecast to hold ([`Course`]: a device that confirms in groups is on with the
//!   next one, and none confirms before its latency what is still to be pushed): what is in flight at the end is small;
//! - no domain is given what a forecast says will not count, nor what others will have room for a little later ([`Forecast`]);
//! - of copies no domain is given a second one of an original: it would not survive more, however many of those there were;
//! - a write that amends ([`Given`](super::Given)) counts what exists, writes what is wanted first, fills the emptiest domains first
//!   ([`Levels`]), and mints no more than the rule lacks: unlike a put's, its blocks beyond the originals cost a read of the segment.
//!
//! Left out: what is in a block, and the order of slices on the wire.

use super::{
    Action, FailureKind, Input, WriteDone, WriteError, WriteSpec,
    forecast::{Forecast, Hold},
    lane::{Course, Lane, State},
    level::{Levels, Taker},
    wanted::Wanted,
};
use crate::{
    BlockIndex, DeviceId, Time,
    durability::{Judge, Need, Shortfall, Verdict},
    layout::Share,
};
use core::{ops::Range, time::Duration};
use std::collections::VecDeque;
use steadfast_codes::rateless::Kind;

/// The longest run of indices handed out at once; layouts stay ranges and disks sequential (traps §13).
const RUN_BLOCKS_MAX: u32 = 16;
/// A device that owes a sign for so many times the usual time to a confirmation gets a spare beside it. Picked by
/// eye: far beyond what load explains, and an opened spare costs little.
const SILENCE_FACTOR: u32 = 8;
/// A device that is so many times slower than it is known for is what it was seen to be. Picked by eye: a write's few confirmations say less
/// than what was measured while the device was busy.
const MUCH_SLOWER: f64 = 4.0;
/// The end is in sight when no more is lacking than so many times what all windows hold.
const ENDING_WINDOWS: f64 = 3.0;

/// The rateless write core of one segment.
///
/// ```text
///   writing ──(rule holds)──▶ Done
///      └──(stalled, full, too few domains)──▶ Failed
/// ```
pub struct RatelessWriter {
    spec: WriteSpec,
    judge: Judge,
    /// What counting must reach before the judge is asked; raised when a rank test fails.
    need: Need,
    lanes: Vec<Lane>,
    wanted: Wanted,
    next_index: BlockIndex,
    pushed_blocks: u32,
    progress: Time,
    began: Time,
    now: Time,
    /// A device that could take blocks is given none, as others are expected to be done with theirs.
    held: bool,
    /// Until when those behind are waited for, where that has begun.
    waits_until: Option<Time>,
    /// The source has not given all yet: blocks wait for it, not for devices.
    arriving: bool,
    ending: bool,
    actions: VecDeque<Action>,
    over: bool,
}

impl RatelessWriter {
    /// A core that begins at `now`.
    pub fn new(spec: WriteSpec, now: Time) -> Self {
        let judge = Judge::new(spec.code.clone(), spec.rule, spec.domains, spec.seed);
        let need = judge.need();
        let lanes: Vec<Lane> =
            spec.devices.iter().chain(&spec.spares).map(|&target| Lane::new(target, now)).collect();
        let mut core = Self {
            need,
            judge,
            wanted: Wanted::new(&spec.given.wanted, &lanes),
            lanes,
            next_index: spec.given.first_new_index,
            pushed_blocks: 0,
            progress: now,
            began: now,
            now,
            held: false,
            waits_until: None,
            arriving: false,
            ending: false,
            actions: VecDeque::new(),
            over: false,
            spec,
        };
        core.count_existing();
        if core.finish_if_durable() {
            return core;
        }
        // All are live before the first share is taken of them.
        let first = core.spec.devices.len();
        let opened: Vec<usize> = (0..core.lanes.len())
            .filter(|&position| position < first || core.wanted.waiting(position) > 0)
            .collect();
        opened.iter().for_each(|&position| core.lanes[position].open(now));
        opened.into_iter().for_each(|position| core.open(position));
        core
    }

    /// Takes what happened at `now`.
    pub fn handle(&mut self, now: Time, input: Input) {
        if self.over {
            return;
        }
        self.now = self.now.max(now);
        let now = self.now;
        if self.arriving {
            self.progress = now;
        }
        match input {
            Input::Opened { device } => self.grant(device, 0),
            Input::Credit { device, bytes } => self.grant(device, bytes),
            Input::Confirmed { device, blocks } => {
                let Some(position) = self.position(device) else { return };
                let lane = &mut self.lanes[position];
                let fresh = lane.confirm(now, &blocks);
                if !fresh.is_empty() {
                    self.progress = now;
                }
                let domain = lane.target.domain;
                for index in fresh {
                    self.wanted.confirmed(index);
                    // A wanted block that another device had confirmed already: it is listed once.
                    if !self.judge.confirm(domain, index) {
                        self.lanes[position].confirmed.remove(index);
                    }
                }
            }
            Input::Failed { device, cause } => self.fail(device, cause),
            Input::Arrived { originals } => {
                self.arriving = originals < self.spec.code.k();
                if !self.arriving {
                    self.lanes.iter_mut().for_each(|lane| lane.source_ended(now));
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
        let limit = self.watches().then(|| self.silence_limit());
        let lanes = self.lanes.iter().enumerate().filter_map(|(position, lane)| match lane.state {
            State::Waiting(until) => Some(until),
            _ if lane.released || !self.owes(position) => None,
            _ => Some(lane.quiet_since() + limit?),
        });
        // What others were to be done with is given away once they are late, and ever more of it while they stay so.
        let late = self.lanes.iter().filter(|_| self.held);
        let late = late.filter_map(|lane| lane.doubted_at(self.now, self.spec.block_bytes));
        let waited = self.waits_until.filter(|&until| self.held && until > self.now);
        // Whoever is to be filled up is waited for until then.
        let hope = self.amends().then(|| self.silence_limit());
        let hoped = self.lanes.iter().filter(|lane| matches!(lane.state, State::Opening | State::Open));
        let hoped =
            hoped.filter_map(|lane| Some(lane.quiet_since() + hope?)).filter(|&until| until > self.now);
        lanes.chain(late).chain(waited).chain(hoped).chain([self.progress + self.spec.patience]).min()
    }

    /// N so far: confirmed blocks that count.
    pub fn confirmed(&self) -> u32 {
        self.judge.confirmed()
    }

    /// Whether what was given, as far as it will be confirmed in time, is all that counting asks for.
    pub fn ending(&self) -> bool {
        self.ending || self.over
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

    fn open(&mut self, position: usize) {
        self.lanes[position].open(self.now);
        let expected_blocks = self.share(&self.shares(), self.levels().as_ref(), position);
        let device = self.lanes[position].target.device;
        self.actions.push_back(Action::Open { device, expected_blocks, chunk: None });
    }

    /// What a lane is expected to take: its part of N by planned speed, equal parts where none is known.
    fn shares(&self) -> Shares {
        let lanes = || self.lanes.iter().filter(|lane| lane.live());
        let known = || lanes().map(|lane| lane.target.write_bytes_per_s).filter(|&speed| speed > 0);
        let usual =
            if known().count() == 0 { 1.0 } else { known().sum::<u64>() as f64 / known().count() as f64 };
        let block_bytes = self.spec.block_bytes;
        let all: f64 = lanes().map(|lane| Shares::speed(lane, usual, block_bytes)).sum();
        let blocks = if self.amends() {
            self.to_mint()
        } else {
            self.by_loss(self.need.survivors.into()).max(self.need.total.into())
        };
        Shares { usual, blocks_per_speed: blocks / all.max(1e-9), block_bytes }
    }

    /// Blocks that a lane is expected to take: its part of what is minted, and what it is to rewrite.
    fn share(&self, shares: &Shares, levels: Option<&Levels>, position: usize) -> u32 {
        let lane = &self.lanes[position];
        let minted = match levels {
            Some(levels) => levels.share(self.taker(lane)).max(1),
            None => shares.of(lane),
        };
        minted + self.wanted.waiting(position)
    }

    /// Blocks to write so that `survivors` of them are left by the loss of any f domains, spread evenly.
    fn by_loss(&self, survivors: f64) -> f64 {
        let live = self.lanes.iter().filter(|lane| lane.live()).count();
        let domains = f64::from(self.spec.domains).min(live as f64);
        let f = f64::from(self.need.tolerate);
        if domains > f { survivors * domains / (domains - f) } else { 0.0 }
    }

    /// Whether this is no put.
    fn amends(&self) -> bool {
        !self.spec.given.is_empty()
    }

    /// Blocks that a write that amends has to mint, as far as can be foreseen.
    fn to_mint(&self) -> f64 {
        let (total, survivors) = self.need.missing(&self.expected());
        total.max(self.by_loss(survivors))
    }

    /// The loads once every device that does not lag has confirmed what it was and is to be given.
    fn expected(&self) -> Vec<f64> {
        let mut loads = self.loads();
        for (position, lane) in self.lanes.iter().enumerate() {
            let blocks = self.wanted.waiting(position) + if lane.released { 0 } else { lane.in_flight };
            loads[lane.target.domain as usize] += f64::from(blocks);
        }
        loads
    }

    /// Whether a sign is due from a lane, or it keeps wanted blocks waiting.
    fn owes(&self, position: usize) -> bool {
        let lane = &self.lanes[position];
        lane.owes() || (lane.state == State::Open && self.wanted.waiting(position) > 0)
    }

    fn fail(&mut self, device: DeviceId, cause: FailureKind) {
        let Some(position) = self.position(device) else { return };
        let now = self.now;
        self.release(position, matches!(cause, FailureKind::Unreachable | FailureKind::Medium));
        let lane = &mut self.lanes[position];
        let yields = lane.yields(cause);
        lane.drop_flight();
        match cause {
            FailureKind::Refused { retry_after } => {
                lane.state = State::Waiting(now + retry_after.max(Duration::from_millis(1)));
            }
            FailureKind::Full | FailureKind::Protocol => {
                lane.state = State::Gone;
                lane.full = cause == FailureKind::Full;
            }
            FailureKind::Unreachable | FailureKind::Medium => {
                lane.state = State::Gone;
                // What may be lost already is not counted on: the rule is about losses to come. Blocks behind a lost
                // connection are listed all the same; a medium that failed lost its blocks.
                lane.counts = false;
                if cause == FailureKind::Medium {
                    lane.confirmed = crate::IndexRanges::new();
                }
                self.judge_anew();
            }
        }
        if !yields {
            self.replace(position);
        }
    }

    /// A lane failed or lags: wanted blocks that it was to have, and if `lost` those it has, go to others.
    fn release(&mut self, position: usize, lost: bool) {
        let wanted = self.spec.given.wanted.iter().flat_map(|(_, blocks)| blocks.ranges().to_vec());
        let lane = &mut self.lanes[position];
        let mut taken = crate::IndexRanges::new();
        if lost {
            wanted.flatten().filter(|&index| lane.confirmed.contains(index)).for_each(|index| {
                taken.insert(index);
            });
            taken.iter().for_each(|index| {
                lane.confirmed.remove(index);
            });
        }
        self.wanted.leave(position, lane.flight(), taken.iter());
    }

    /// Counts what was there before, but for devices that this write found lost.
    fn count_existing(&mut self) {
        for existing in &self.spec.given.existing {
            let lost = |lane: &Lane| lane.target.device == existing.device && !lane.counts;
            if !self.lanes.iter().any(lost) {
                for index in existing.blocks.iter() {
                    self.judge.confirm(existing.domain, index);
                }
            }
        }
    }

    fn judge_anew(&mut self) {
        let spec = &self.spec;
        self.judge = Judge::new(spec.code.clone(), spec.rule, spec.domains, spec.seed);
        self.need = self.judge.need();
        self.count_existing();
        for lane in self.lanes.iter().filter(|lane| lane.counts) {
            for index in lane.confirmed.iter() {
                self.judge.confirm(lane.target.domain, index);
            }
        }
    }

    /// Opens a spare in the place of a lane, of a domain without live devices where there is one.
    fn replace(&mut self, position: usize) {
        if std::mem::replace(&mut self.lanes[position].replaced, true) {
            return;
        }
        let taken = |domain: u32| self.lanes.iter().any(|lane| lane.live() && lane.target.domain == domain);
        let spares = || (0..self.lanes.len()).filter(|&spare| self.lanes[spare].state == State::Spare);
        let elsewhere = spares().find(|&spare| !taken(self.lanes[spare].target.domain));
        if let Some(spare) = elsewhere.or_else(|| spares().next()) {
            self.open(spare);
        }
    }

    /// Whether anything is done about a silent lane: a spare, or another device for what it was to have.
    fn watches(&self) -> bool {
        !self.arriving && (self.amends() || self.lanes.iter().any(|lane| lane.state == State::Spare))
    }

    /// How long a lane may owe a sign before a spare is opened: from the usual time to a confirmation.
    fn silence_limit(&self) -> Duration {
        let mut usual: Vec<Duration> = self.lanes.iter().filter_map(Lane::latency).collect();
        if usual.is_empty() {
            return self.spec.patience / 4;
        }
        let middle = usual.len() / 2;
        let (_, &mut latency, _) = usual.select_nth_unstable(middle);
        (latency * SILENCE_FACTOR).clamp(Duration::from_millis(1), self.spec.patience)
    }

    fn step(&mut self) {
        if self.finish_if_durable() {
            return;
        }
        for position in 0..self.lanes.len() {
            if let State::Waiting(until) = self.lanes[position].state
                && until <= self.now
            {
                self.open(position);
            }
        }
        if self.watches() {
            let limit = self.silence_limit();
            for position in 0..self.lanes.len() {
                let lane = &self.lanes[position];
                if !lane.released && self.owes(position) && self.now.since(lane.quiet_since()) >= limit {
                    self.lanes[position].released = true;
                    self.release(position, false);
                    self.replace(position);
                }
            }
        }
        if let Some(error) = self.hopeless() {
            self.end(Action::Failed(error));
            return;
        }
        if self.now.since(self.progress) >= self.spec.patience {
            let silent =
                self.lanes.iter().filter(|lane| lane.owes() || matches!(lane.state, State::Waiting(_)));
            let error = WriteError::Stalled {
                confirmed: self.judge.confirmed(),
                needed: self.needed(),
                patience: self.spec.patience,
                silent: silent.map(|lane| lane.target.device).collect(),
            };
            self.end(Action::Failed(error));
            return;
        }
        self.hand_out();
    }

    /// N at the least.
    fn needed(&self) -> u32 {
        self.judge.need().total.max(self.judge.need().survivors)
    }

    fn loads(&self) -> Vec<f64> {
        self.judge.loads().iter().map(|&load| f64::from(load)).collect()
    }

    fn finish_if_durable(&mut self) -> bool {
        let loads = self.loads();
        if !self.wanted.all_written() || !self.need.met(&loads) {
            return false;
        }
        match self.judge.verdict() {
            Verdict::Short { blocks, why } => {
                // Counting was met and yet a pattern does not decode: mint a few more and ask again then.
                let survivors = self.judge.confirmed() - largest(self.judge.loads(), self.need.tolerate);
                debug_assert!(matches!(why, Shortfall::Rank { .. }), "{why:?}");
                self.need.survivors = survivors + blocks;
                false
            }
            verdict => {
                let holders: Vec<Share> = self
                    .lanes
                    .iter()
                    .filter(|lane| !lane.confirmed.is_empty())
                    .map(|lane| Share { device: lane.target.device, blocks: lane.confirmed.clone() })
                    .collect();
                let opened = self.lanes.iter().filter(|lane| lane.state != State::Spare);
                let abandoned = opened.filter(|lane| lane.confirmed.is_empty());
                let stored_blocks = holders.iter().map(|holder| holder.blocks.count()).sum();
                let done = WriteDone {
                    abandoned: abandoned.map(|lane| lane.target.device).collect(),
                    stored_blocks,
                    pushed_blocks: self.pushed_blocks,
                    wasted_blocks: self.pushed_blocks - stored_blocks,
                    holders,
                    verdict,
                };
                self.end(Action::Done(done));
                true
            }
        }
    }

    /// Ends every stream, then says how it went.
    fn end(&mut self, last: Action) {
        self.over = true;
        // Pushes not yet polled are void.
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

    /// The error when no further block can make the rule hold; opens spares as long as that may help.
    fn hopeless(&mut self) -> Option<WriteError> {
        loop {
            let mut most = self.loads();
            for lane in self.lanes.iter().filter(|lane| lane.live()) {
                most[lane.target.domain as usize] += f64::from(self.need.total + self.need.survivors);
            }
            let written = self.wanted.all_written() || self.lanes.iter().any(Lane::live);
            if written && self.need.met(&most) {
                return None;
            }
            let Some(spare) = self.lanes.iter().position(|lane| lane.state == State::Spare) else { break };
            self.open(spare);
        }
        let devices = count(self.lanes.len());
        let full = count(self.lanes.iter().filter(|lane| lane.full).count());
        let mut domains: Vec<u32> =
            self.lanes.iter().filter(|lane| lane.live()).map(|lane| lane.target.domain).collect();
        domains.sort_unstable();
        domains.dedup();
        let failed = count(self.lanes.iter().filter(|lane| !lane.live()).count());
        Some(if 2 * full > failed {
            let (confirmed, needed) = (self.judge.confirmed(), self.needed());
            WriteError::Full { full, devices, confirmed, needed, block_bytes: self.spec.block_bytes }
        } else {
            let (available, needed) = (count(domains.len()), self.need.tolerate + 1);
            WriteError::NotEnoughDomains { available, needed, failed, devices }
        })
    }

    /// Hands runs of indices to the devices that can take them, the one that would be done first before others.
    fn hand_out(&mut self) {
        let shares = self.shares();
        let levels = self.levels();
        let share = |position| self.share(&shares, levels.as_ref(), position);
        let shared: Vec<u32> = (0..self.lanes.len()).map(share).collect();
        let plans: Vec<Window> =
            self.lanes.iter_mut().zip(shared).map(|(lane, share)| window(lane, share)).collect();
        for (position, plan) in plans.iter().enumerate() {
            while let Some(indices) = self.wanted.take(position, self.wanted_room(position, plan)) {
                self.push(position, indices);
            }
        }
        let courses: Vec<Course> =
            self.lanes.iter().map(|lane| lane.course(self.now, self.spec.block_bytes)).collect();
        let mut outlook = self.outlook(&courses, plans.iter().map(|window| window.blocks).sum());
        if let Some(waits) = outlook.hold.waits {
            self.waits_until.get_or_insert(self.now + Duration::from_secs_f64(waits));
        }
        if let Some(levels) = levels {
            outlook.hold.given = levels.given().to_vec();
            outlook.levels = Some(levels);
        }
        loop {
            let homeless = self.wanted.any_homeless();
            if !homeless && self.amends() && self.need.met(&self.expected()) {
                break;
            }
            let next = |held: bool| self.next(&plans, &courses, &outlook, held);
            // What must be written goes where it counts, or anywhere where nobody is expected to take it there.
            let anywhere = || next(false).filter(|_| homeless && !self.awaits_room(&outlook));
            let Some((position, blocks)) = next(true).or_else(anywhere) else { break };
            let indices = if homeless {
                self.wanted.adopt(position, blocks).expect("it adopts some")
            } else {
                let run = self.mintable(position, blocks).expect("it was found before");
                self.next_index = run.end;
                run
            };
            let domain = self.lanes[position].target.domain as usize;
            outlook.hold.given[domain] += f64::from(indices.end - indices.start);
            self.push(position, indices);
        }
        let could = |(lane, plan): (&Lane, &Window)| {
            lane.in_flight < plan.run && lane.affords(self.spec.block_bytes) > 0
        };
        self.held = self.lanes.iter().zip(&plans).any(could);
        self.ending = !self.wanted.any_homeless() && self.need.met(&outlook.hold.given);
    }

    /// The device that gets the next run, and its blocks; `held`: as far as domains are not held back.
    fn next(
        &self,
        plans: &[Window],
        courses: &[Course],
        outlook: &Outlook,
        held: bool,
    ) -> Option<(usize, u32)> {
        let homeless = self.wanted.any_homeless();
        let candidate = |position: usize| {
            let lane = &self.lanes[position];
            let blocks = if homeless {
                let room = self.wanted_room(position, &plans[position]);
                // One that is silent keeps what it was given until it gives a sign.
                (room > 0 && !lane.released && self.wanted.adopts(position)).then_some(room)?
            } else {
                self.room(position, &plans[position], &courses[position], outlook.horizon)?
            };
            let blocks = if held { blocks.min(outlook.room(lane.target.domain)) } else { blocks };
            let minted = || self.mintable(position, blocks).map_or(0, |run| run.end - run.start);
            let blocks = if homeless { blocks } else { minted() };
            let flight = f64::from(lane.in_flight);
            // Without any pace known, evenly.
            let pace = courses[position].pace;
            let done_in = if pace > 0.0 { flight / pace } else { flight * 1e3 };
            (blocks > 0).then_some((done_in, position, blocks))
        };
        let first = (0..self.lanes.len())
            .filter_map(candidate)
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        first.map(|(_, position, blocks)| (position, blocks))
    }

    /// The next blocks that a lane may be given, so many at most.
    fn mintable(&self, position: usize, blocks: u32) -> Option<Range<BlockIndex>> {
        let first = self.next_index;
        if self.spec.code.kind() != Kind::Replicated {
            return Some(first..first + blocks);
        }
        let k = self.spec.code.k();
        let domain = self.lanes[position].target.domain;
        let lanes = self.lanes.iter().enumerate().filter(|(_, lane)| lane.target.domain == domain);
        let coming = lanes.flat_map(|(position, lane)| lane.flight().chain(self.wanted.at_home(position)));
        let mut there = vec![false; k as usize];
        for index in self.judge.held(domain).iter().copied().chain(coming) {
            there[(index % k) as usize] = true;
        }
        let is_new = |index: &BlockIndex| !there[(index % k) as usize];
        let first = (first..first + k).find(is_new)?;
        let run = (first..first + blocks.min(k)).take_while(is_new);
        Some(first..first + count(run.count()))
    }

    fn push(&mut self, position: usize, indices: Range<BlockIndex>) {
        self.pushed_blocks += indices.end - indices.start;
        let lane = &mut self.lanes[position];
        lane.push(self.now, indices.clone(), self.spec.block_bytes);
        self.actions.push_back(Action::Push { device: lane.target.device, indices });
    }

    /// How many wanted blocks the lane can take now.
    fn wanted_room(&self, position: usize, window: &Window) -> u32 {
        let lane = &self.lanes[position];
        window.blocks.saturating_sub(lane.in_flight).min(window.run).min(lane.affords(self.spec.block_bytes))
    }

    /// How many blocks the lane gets now, if any.
    fn room(&self, position: usize, window: &Window, course: &Course, horizon: f64) -> Option<u32> {
        let lane = &self.lanes[position];
        let affords = lane.affords(self.spec.block_bytes);
        if affords == 0 || self.next_index > BlockIndex::MAX / 2 {
            return None;
        }
        // What it can confirm before the rule is forecast to hold.
        let useful = if horizon.is_infinite() { u32::MAX } else { course.in_time(horizon).ceil() as u32 };
        let ending = useful < window.blocks;
        // One beside them.
        let target = if ending { useful + 1 } else { window.blocks };
        let free = target.saturating_sub(lane.in_flight);
        let blocks = free.min(window.run).min(affords);
        // Whole runs, unless the pipe runs dry or the end is near: ranges stay few.
        let worth = blocks == window.run || ending || lane.in_flight < window.run;
        (blocks > 0 && worth).then_some(blocks)
    }

    /// What a write that amends brings domains to, where those who are expected to take blocks can meet the rule.
    fn levels(&self) -> Option<Levels> {
        if !self.amends() {
            return None;
        }
        let limit = self.silence_limit();
        let hopeful = self.lanes.iter().filter(|lane| self.hopeful(lane, limit));
        let takers: Vec<Taker> = hopeful.map(|lane| self.taker(lane)).collect();
        Levels::new(&self.need, self.expected(), &takers, self.wanted.homeless().into())
    }

    /// As fast as it is known for or was seen to be, whichever is more: a first confirmation takes long. But one that was seen to be
    /// much slower is, or the others would wait for it.
    fn taker(&self, lane: &Lane) -> Taker {
        let planned = Some(lane.target.write_bytes_per_s as f64).filter(|&planned| planned > 0.0);
        let measured = lane.measured().map(|blocks_per_s| blocks_per_s * f64::from(self.spec.block_bytes));
        let speed = match (planned, measured) {
            (Some(planned), Some(measured)) if MUCH_SLOWER * measured > planned => {
                Some(planned.max(measured))
            }
            (planned, measured) => measured.or(planned),
        };
        Taker { domain: lane.target.domain as usize, speed }
    }

    /// Whether a lane takes blocks now, or is expected to soon: it was not silent for as long as `limit`.
    fn hopeful(&self, lane: &Lane, limit: Duration) -> bool {
        let idle = lane.in_flight == 0 && lane.affords(self.spec.block_bytes) > 0;
        matches!(lane.state, State::Opening | State::Open)
            && (idle || self.now.since(lane.quiet_since()) < limit)
    }

    /// Whether there are levels, and a lane below its own is expected to take homeless blocks soon.
    fn awaits_room(&self, outlook: &Outlook) -> bool {
        let limit = self.silence_limit();
        let below = |(position, lane): (usize, &Lane)| {
            let takes = !lane.released && self.hopeful(lane, limit) && self.wanted.adopts(position);
            takes && outlook.room(lane.target.domain) > 0
        };
        outlook.levels.is_some() && self.lanes.iter().enumerate().any(below)
    }

    /// Until when the rule is forecast to hold, and how far domains are held back until then.
    fn outlook(&self, courses: &[Course], windows: u32) -> Outlook {
        let confirmed = self.loads();
        let mut given = confirmed.clone();
        for (lane, _) in self.lanes.iter().zip(courses).filter(|(_, course)| !course.late) {
            given[lane.target.domain as usize] += f64::from(lane.in_flight);
        }
        let (f, domains) = (self.need.tolerate as usize, given.len());
        // No domain is held to less than its share of the survivors.
        let share = f64::from(self.need.survivors) / (domains.max(f + 1) - f) as f64;
        let ahead = f > 0 && domains > f && given.iter().any(|&load| load >= share);
        let placed =
            self.lanes.iter().zip(courses).map(|(lane, &course)| (lane.target.domain as usize, course));
        let mut forecast = Forecast::new(&self.need, &confirmed, placed);
        let ends = forecast.lacking() <= ENDING_WINDOWS * f64::from(windows);
        let hold = if ahead {
            let spent = self.now.since(self.began).as_secs_f64();
            // A tenth of the time once, not a tenth anew at each sign; whoever was to be there by then is not foreseen any more.
            let left = self.waits_until.map(|until| until.since(self.now).as_secs_f64());
            let foreseen = if left == Some(0.0) { None } else { forecast.hold(spent, left) };
            let unforeseen = || Hold { most: self.next_largest(&given), waits: None, given: given.clone() };
            foreseen.unwrap_or_else(unforeseen)
        } else {
            Hold { most: f64::INFINITY, waits: None, given }
        };
        let horizon = if ends { forecast.holds_in(hold.most) } else { f64::INFINITY };
        Outlook { horizon, hold, levels: None }
    }

    /// Where nothing can be foreseen: the largest load outside the f largest domains, and a run, once D is provided for.
    fn next_largest(&self, loads: &[f64]) -> f64 {
        let f = self.need.tolerate as usize;
        let mut sorted = loads.to_vec();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        let beyond = f64::from(self.need.total.saturating_sub(self.need.survivors));
        let provided = sorted[..f].iter().sum::<f64>() >= beyond;
        if provided { sorted[f] + f64::from(RUN_BLOCKS_MAX) } else { f64::INFINITY }
    }
}

/// How N is expected to be shared out.
struct Shares {
    /// Bytes per second of a device whose speed is unknown.
    usual: f64,
    blocks_per_speed: f64,
    block_bytes: u32,
}

impl Shares {
    /// The planner's figure is of the past: a device that stalled a moment ago and is well again shows its speed here,
    /// so the better of the two counts.
    fn speed(lane: &Lane, usual: f64, block_bytes: u32) -> f64 {
        let planned = match lane.target.write_bytes_per_s {
            0 => usual,
            planned => planned as f64,
        };
        lane.measured().map_or(planned, |blocks_per_s| planned.max(blocks_per_s * f64::from(block_bytes)))
    }

    /// At least one block.
    fn of(&self, lane: &Lane) -> u32 {
        ((self.blocks_per_speed * Self::speed(lane, self.usual, self.block_bytes)).ceil() as u32).max(1)
    }
}

/// What is foreseen of a write.
struct Outlook {
    /// Seconds until the rule holds by counting, if every device keeps its pace; infinite while the end is far, or unknown.
    horizon: f64,
    hold: Hold,
    /// Of a write that amends: what each domain is to have.
    levels: Option<Levels>,
}

impl Outlook {
    /// Blocks that a domain may be given; one more than are foreseen, which is about as good as foresight gets.
    fn room(&self, domain: u32) -> u32 {
        let domain = domain as usize;
        let given = self.hold.given[domain];
        match &self.levels {
            Some(levels) => levels.room(domain, given),
            None => (self.hold.most + 1.0 - given).max(0.0) as u32,
        }
    }
}

/// The run and the window of a lane, in blocks.
struct Window {
    run: u32,
    blocks: u32,
}

/// The run and the window of a lane, before the end is in sight.
fn window(lane: &mut Lane, share: u32) -> Window {
    if lane.state != State::Open {
        return Window { run: 0, blocks: 0 };
    }
    // Eighths of a share, or twelfths once those are as long as eight blocks: two runs, the window, are much of a share at its end.
    let run = (share / 8).min(8).max(share / 12).clamp(1, RUN_BLOCKS_MAX);
    // A small share goes at once; a larger one keeps two runs coming.
    let least = (2 * run).max(share.min(8));
    let blocks = lane.window(least).min(least.max(share / 3));
    Window { run, blocks }
}

fn largest(loads: &[u32], domains: u32) -> u32 {
    let mut sorted = loads.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    sorted.iter().take(domains as usize).sum()
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
