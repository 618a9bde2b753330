//! The adaptive read: ask for what K needs of the devices that will have it soonest, and for more only where a straggler
//! would hold the read up (dissertation §4.1.2 asks for everything; its §5.3.3 and ch. 6 pay for that with bytes sent in
//! vain).
//!
//! Every device's stream is opened for all it holds, and credit says how much of that it may send: asking for more is
//! one grant, without a round trip and without a block asked for twice. After each arrival the read knows
//!
//! - R, the blocks it still needs: K and what the code needs beyond, less what has come;
//! - for each device, when each block that it could send would be here, by measured pace and delay (`forecast`);
//! - so T, the soonest that R blocks can be here, and each device's share: its blocks that arrive by T.
//!
//! A device is granted its share, but no more at a time than keeps it busy while a grant travels (`flow`), so that a
//! device slower or faster than it was is found out while little depends on it. As long as less than R is granted in all,
//! grants cost nothing. Beyond that a block is an *extra*: it stands in for one that is late. Extras are asked for when
//! the blocks granted would be here later than T by a larger share of the read's time than the extras are of its bytes, and
//! only while what devices will have sent by then stays within the waste budget. A device that is silent sends nothing in
//! vain, so standing in for it is free; standing in for one that is merely slow is not. Where others wait, the budget is
//! nothing.
//!
//! Devices send originals first (but of segments that were amended: there others come among them), and a read of originals
//! alone decodes nothing. So they alone are asked for where they are expected no later than decoding would be done. Where all
//! devices together give much less than they are known for, somebody else has the rest. Is it the link's or the reader's
//! processor's, whoever is asked for less leaves more of it to the others, and originals alone are no later; is it the devices', the
//! fast ones would be idle once theirs have come. Which of the two cannot be seen, so as much as decoding takes is ventured once more,
//! for as large a part as others have. (Venturing as much of the whole read, sixteen readers of eight unequal disks took up to 250 ms of 2.9 s
//! longer than the disks did.)
//!
//! Over a way that is long beside the whole read, grants that wait for a pace come a round trip too late, and a cancel that
//! waits for the last block stops what was sent for a round trip in vain. So devices that nobody knows begin with what is
//! needed and the budget, in even shares; with more only where those would leave fast devices idle, and the read is long enough
//! to take it back. And all are told to finish half a way before what they will have sent is enough: what they are reading
//! then is still sent, what they were granted beyond is not. Should it not be enough after all, they are opened again.
//!
//! Invariants: no block is asked of two devices, nor twice of one but after a failure or a finish; while the busy wait, no extra is
//! asked for that is expected to be sent in vain; exactly one `Done` or `Failed` ends the actions; an end that more
//! waiting cannot change is told (`NotEnough`) without waiting for patience: at once, or where servers are out of reach that may
//! restart, after a few seconds ([`again`]).

use super::{
    Action, Cause, Input, ReadCore, ReadDone, ReadError, ReadPlan, RequestRule, again,
    flow::Flow,
    forecast::{Outlook, arrival_of},
    source::{Stage, seconds},
};
use crate::{DeviceId, Time, message::Fault};
use std::collections::{BTreeMap, VecDeque};

/// What devices will have sent in vain is counted until so many times the delay after the end: expectations swing, and
/// what was granted at their lowest is not taken back. Picked by eye.
const TOLD_FACTOR: f64 = 2.0;
/// The read looks again after this part of the time until the next thing it expects, should nothing happen before.
const LOOK_SHARE: f64 = 0.125;
/// Before any device has answered there is no pace to judge by: it looks again after this part of the patience.
const FIRST_ANSWER_SHARE: u32 = 16;
/// A device nobody knows anything about may be as fast as this, over a long way: what a disk gives.
const BLIND_BYTES_PER_S: f64 = 100e6;
/// All devices together give no more than this over a long way. Picked by eye: six such disks, half of a link of 10 Gbit/s. Whoever has
/// more, and reads from many fast devices that nobody knows, gets more in vain the first time.
const FAR_BYTES_PER_S: f64 = 600e6;
/// What is foreseen to come until devices hear of the end is that much less in the worst of cases. Picked by eye.
const FORESEEN_SHARE: f64 = 0.05;
/// A window is widened so many times at most.
const WIDENED_MAX: f64 = 4.0;

/// The adaptive read of one segment.
#[derive(Debug)]
pub struct Adaptive {
    plan: ReadPlan,
    budget_blocks: u32,
    /// By their devices' names.
    flows: Vec<Flow>,
    missing: u32,
    counts: ReadDone,
    actions: VecDeque<Action>,
    over: bool,
    began: Time,
    heard: Time,
    retry_at: BTreeMap<DeviceId, Time>,
    look_at: Option<Time>,
    /// Whether nodes refuse, or their devices' queues were long when last heard of.
    busy: bool,
    /// When the read is expected to end, and how many arrivals ago that was found.
    finish_at: Option<Time>,
    arrivals_since: u32,
    /// Whether a grant and its answer take less than a block does.
    is_near: bool,
    /// Where originals alone are asked for: how many a device has yet to send, on average.
    plain: Option<f64>,
    /// When all will have come that devices were sending when they were told to finish.
    finished_at: Option<Time>,
    /// Whether the budget was granted before anything was known.
    is_blind: bool,
}

/// What a device lacks of its share.
struct Lack {
    /// Its place among the outlooks, and among the flows.
    place: usize,
    flow: usize,
    blocks: u32,
    /// When the first of them would be here.
    next_s: f64,
}

impl Adaptive {
    /// Begins a read; its first actions are there at once. A plan without an adaptive rule is read without budget.
    pub fn new(now: Time, plan: ReadPlan) -> Self {
        let percent = match plan.rule {
            RequestRule::Adaptive { waste_percent } => u64::from(waste_percent),
            RequestRule::All | RequestRule::AllAtOnce | RequestRule::KPlus(_) => 0,
        };
        let sources = plan.sources.iter().filter(|source| !source.blocks.is_empty());
        let mut flows: Vec<Flow> = sources.map(|source| Flow::new(&plan, source)).collect();
        flows.sort_by_key(|flow| flow.id);
        let mut read = Self {
            budget_blocks: u32::try_from(u64::from(plan.originals) * percent / 100).unwrap_or(u32::MAX),
            missing: plan.originals,
            busy: plan.is_busy(),
            flows,
            counts: ReadDone::default(),
            actions: VecDeque::new(),
            over: false,
            began: now,
            heard: now,
            retry_at: BTreeMap::new(),
            look_at: None,
            finish_at: None,
            arrivals_since: 0,
            is_near: false,
            plain: None,
            finished_at: None,
            is_blind: false,
            plan,
        };
        read.begin_blindly(now);
        read.decide(now, None);
        read.try_out(now);
        read
    }

    fn flow(&mut self, id: DeviceId) -> Option<&mut Flow> {
        let at = self.flows.binary_search_by_key(&id, |flow| flow.id).ok()?;
        Some(&mut self.flows[at])
    }

    /// R: blocks still needed, as the code is expected to need them; where nothing but originals came and is to come, those.
    fn needed(&self) -> u32 {
        if self.plain.is_some() && self.is_plain() {
            return self.missing;
        }
        let usual = self.plan.originals.saturating_add(self.plan.extra_blocks);
        // Once the code has had what it usually needs, it is asked for what is missing, and for twice as much as came beyond
        // the usual: an original that few rows hold would be waited for block by block.
        let beyond = self.counts.received_blocks.saturating_sub(usual);
        let missing = self.missing.saturating_add(beyond.saturating_mul(2));
        missing.max(usual.saturating_sub(self.counts.received_blocks)).max(1)
    }

    /// Whether nothing but originals came, and nothing else was granted.
    fn is_plain(&self) -> bool {
        self.counts.coded_blocks == 0 && self.flows.iter().all(Flow::owes_originals)
    }

    /// Blocks that may still be sent in vain.
    fn budget(&self) -> u32 {
        let usual = self.plan.extra_blocks;
        let vain =
            self.counts.received_blocks.saturating_sub(self.counts.useful_blocks).saturating_sub(usual);
        if self.busy { 0 } else { self.budget_blocks.saturating_sub(vain) }
    }

    /// A block of each device that is expected to be too slow: its speed may have changed, and a device that is slow
    /// indeed sends little of it before the end.
    fn try_out(&mut self, now: Time) {
        let granted: u32 = self.flows.iter().map(Flow::granted_blocks).sum();
        let beyond = granted.saturating_sub(self.needed());
        // Where nothing is known yet, one at least: silence could not be told from slowness.
        let least = u32::from(!self.knows_pace() && beyond == 0);
        let mut left = self.budget().saturating_sub(beyond).max(least);
        let plain = self.plain.is_some();
        for flow in self.flows.iter_mut().filter(|flow| !plain || flow.has_originals()) {
            if left > 0 && flow.stage == Stage::Idle && flow.serves() {
                self.actions.push_back(flow.grant(now, 1, true));
                self.counts.requested_blocks += 1;
                self.counts.extra_blocks += 1;
                left -= 1;
            }
        }
    }

    /// Looks at everything after each event: is it over, must more be asked, when to look again. `arrived` names the
    /// device whose block has just come, when nothing else happened.
    fn decide(&mut self, now: Time, arrived: Option<DeviceId>) {
        if self.over {
            return;
        }
        if self.missing == 0 {
            let beaten: u32 = self.flows.iter().map(Flow::plain_outstanding).sum();
            self.counts.extra_won = self.counts.extra_won.min(beaten);
            self.end(Action::Done(self.counts));
            return;
        }
        let reachable = self.retry(now);
        if reachable < self.missing {
            let failed = self.flows.iter().filter(|flow| flow.stage == Stage::Failed);
            let failed = failed.filter_map(|flow| Some((flow.id, flow.cause.clone()?))).collect();
            self.end(Action::Failed(ReadError::NotEnough {
                missing: self.missing,
                originals: self.plan.originals,
                reachable,
                devices: self.flows.len() as u32,
                failed,
            }));
            return;
        }
        if now >= self.heard + self.plan.patience {
            let silent = self.flows.iter().filter(|flow| flow.granted_blocks() > 0 || !flow.serves());
            let silent = silent.map(|flow| flow.id).collect();
            let waited = now.since(self.heard);
            self.end(Action::Failed(ReadError::Stalled { missing: self.missing, waited, silent }));
            return;
        }
        match (arrived, self.finish_at) {
            _ if self.finished_at.is_some_and(|at| now < at) => self.look_at = self.finished_at,
            (Some(id), Some(finish_at)) if self.is_early(now, finish_at) => self.top_up(now, id, finish_at),
            _ => self.share_out(now),
        }
    }

    /// Whether what was found a few arrivals ago still holds: the end is far away and there is enough left to grant; or the
    /// way is short, so that little is granted at a time, and what is not granted now is soon.
    fn is_early(&mut self, now: Time, finish_at: Time) -> bool {
        self.arrivals_since += 1;
        let devices = u32::try_from(self.flows.len()).unwrap_or(u32::MAX);
        let often = 1 + devices.min(self.needed() / 8) / 8;
        self.arrivals_since < often && now < finish_at && (self.is_near || self.room() > 0)
    }

    /// Blocks that may be granted before they are dear: while less than half of what is needed is granted, whoever has sent
    /// one gets another.
    fn room(&self) -> u32 {
        let granted: u32 = self.flows.iter().map(Flow::granted_blocks).sum();
        let needed = self.needed();
        if granted.saturating_mul(2) < needed { needed - granted } else { 0 }
    }

    /// Pace and delay to stand in for what was not seen of a device.
    fn stand_ins(&self) -> (f64, f64) {
        let mean = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
        let (mut measured, mut known) = ((0.0, 0), (0.0, 0));
        for flow in &self.flows {
            let Some(pace) = flow.pace() else { continue };
            known = (known.0 + pace, known.1 + 1);
            if flow.measured() {
                measured = (measured.0 + pace, measured.1 + 1);
            }
        }
        let pace = mean(measured).or_else(|| mean(known));
        (pace.unwrap_or_else(|| f64::from(self.plan.block_bytes)), self.shortest_delay())
    }

    /// How long a request and its answer take on the way, where the caller has seen it.
    fn way(&self) -> f64 {
        self.plan.round_trip.map_or(f64::INFINITY, |trip| trip.as_secs_f64())
    }

    /// The shortest that was seen from a grant to a dry device until its first byte; else what the caller has seen.
    fn shortest_delay(&self) -> f64 {
        let seen = self.flows.iter().filter_map(|flow| flow.delay(flow.pace()?));
        let shortest = seen.reduce(f64::min).or(self.plan.round_trip.map(|trip| trip.as_secs_f64()));
        shortest.unwrap_or(0.0)
    }

    /// Blocks that a device nobody knows anything about begins with: most of an even share. The fastest are not idle then
    /// while what they are found to be travels there and back, and what slow ones were granted is stood in for. Beginning
    /// with two blocks cost a read of 1 GiB from 64 disks 120 ms more at a round trip of 100 ms, and 4 ms at 1 ms; a whole
    /// share sends up to 0.052 of it in vain instead of 0.03.
    fn first_blocks(&self) -> u32 {
        let devices = u32::try_from(self.flows.len()).unwrap_or(u32::MAX).max(1);
        self.plan.originals / devices * 3 / 4
    }

    /// Over a long way, devices that nobody knows anything about are granted even shares of what is needed and of the budget, however
    /// fast they are: by the time they are found to be fast all of it is on its way. Disks of which some are much faster than others would
    /// leave those idle where a share lasts for less than the way. They are granted what the fastest could use until it is found to be
    /// that, together more than is needed, where the read lasts for longer than the way: then `finish` takes back what the others
    /// have not sent. What even shares leave over goes to the device with the first block and those behind it: of objects of few blocks,
    /// whose shares are nothing else, each asks devices of its own, and all of them become known.
    fn begin_blindly(&mut self, now: Time) {
        let way = self.plan.round_trip.map_or(0.0, |trip| trip.as_secs_f64());
        let block = f64::from(self.plan.block_bytes);
        let window = (2.0 * way * BLIND_BYTES_PER_S / block).ceil() as u32;
        if window <= self.first_blocks() || self.budget() == 0 {
            return;
        }
        let devices = u32::try_from(self.flows.len()).unwrap_or(u32::MAX).max(1);
        let all = self.needed().saturating_add(self.budget());
        let lasts = |blocks: u32, bytes_per_s: f64| f64::from(blocks) * block / bytes_per_s;
        let together = FAR_BYTES_PER_S.min(f64::from(devices) * BLIND_BYTES_PER_S);
        let idles = lasts(all / devices, BLIND_BYTES_PER_S) < way;
        let beyond = if idles && lasts(self.plan.originals, together) > way { window } else { 0 };
        let first_block = |flow: &Flow| flow.left.ranges().first().map(|range| range.start);
        let first = (0..self.flows.len()).min_by_key(|&at| first_block(&self.flows[at])).unwrap_or(0);
        for (at, number) in (first..self.flows.len()).chain(0..first).zip(0u32..) {
            let flow = &self.flows[at];
            if flow.pace().is_none() && flow.serves() {
                let even = all / devices + u32::from(number < all % devices);
                let blocks = window.min(even).max(beyond).min(flow.left.count());
                self.grant(now, at, blocks, false);
                self.is_blind |= blocks > 0;
            }
        }
    }

    /// Keeps one device busy while the end is far.
    fn top_up(&mut self, now: Time, id: DeviceId, finish_at: Time) {
        let known = self.flow(id).is_some_and(|flow| flow.is_known());
        let (pace, delay) = if known { Default::default() } else { self.stand_ins() };
        let (room, first, way, plain) = (self.room(), self.first_blocks(), self.way(), self.plain);
        let Some(flow) = self.flow(id).filter(|flow| flow.serves()) else { return };
        let outlook = flow.outlook(now, pace, delay);
        let outlook = if plain.is_some() { outlook.of_originals() } else { outlook };
        let window = flow.window(&outlook, way, first);
        let share = outlook.by(finish_at.since(now).as_secs_f64()).min(widened(window, plain, &outlook));
        let more = share.saturating_sub(outlook.granted).min(room).min(outlook.fresh);
        if more > 0 {
            let grant = flow.grant(now, more, false);
            self.counts.requested_blocks += more;
            self.actions.push_back(grant);
        }
    }

    /// Finds the soonest end and grants each device its share of it.
    fn share_out(&mut self, now: Time) {
        self.arrivals_since = 0;
        let (pace, delay) = self.stand_ins();
        self.is_near = delay * pace < f64::from(self.plan.block_bytes);
        let serving: Vec<usize> =
            self.flows.iter().enumerate().filter(|(_, flow)| flow.serves()).map(|(at, _)| at).collect();
        let mut outlooks: Vec<Outlook> =
            serving.iter().map(|&at| self.flows[at].outlook(now, pace, delay)).collect();
        self.plain = None;
        let mut soonest = arrival_of(&outlooks, self.needed(), Outlook::by).unwrap_or(f64::INFINITY);
        let plain = self.of_originals(&serving, &outlooks, pace);
        if let Some(plain) = plain {
            soonest = plain;
            outlooks.iter_mut().for_each(|outlook| *outlook = outlook.of_originals());
            self.plain = Some(f64::from(self.missing) / outlooks.len() as f64);
        }
        let needed = self.needed();
        self.finish_at = (soonest < 1e9).then(|| now + seconds(soonest));
        // What each lacks of its share, the soonest to come first.
        let (first, way) = (self.first_blocks(), self.way());
        let mut lacking: Vec<Lack> = Vec::new();
        for (place, (&flow, outlook)) in serving.iter().zip(&outlooks).enumerate() {
            let share =
                if soonest.is_finite() { outlook.by(soonest) } else { outlook.granted + outlook.fresh };
            let window = self.flows[flow].window(outlook, way, first);
            let most = share.min(widened(window, self.plain, outlook));
            if most > outlook.granted {
                let blocks = most - outlook.granted;
                lacking.push(Lack { place, flow, blocks, next_s: outlook.next_fresh_s() });
            }
        }
        lacking.sort_by(|a, b| a.next_s.total_cmp(&b.next_s));
        let granted: u32 = outlooks.iter().map(|outlook| outlook.granted).sum();
        let mut room = needed.saturating_sub(granted);
        for lack in &mut lacking {
            let more = room.min(lack.blocks);
            self.grant(now, lack.flow, more, false);
            outlooks[lack.place].granted += more;
            outlooks[lack.place].fresh -= more;
            (room, lack.blocks) = (room - more, lack.blocks - more);
        }
        if self.finish(now, delay, &serving, &outlooks) {
            return;
        }
        if room == 0 && soonest.is_finite() {
            self.stand_in(now, soonest, &outlooks, &lacking);
        }
        self.look_again(now, soonest, &outlooks);
    }

    /// When all will be here if nothing is asked for from now on but originals, where that is worth it: where any blocks would be
    /// enough not much sooner. Of devices that have sent nothing yet no more is expected then than of the others, `stand_in` bytes
    /// a second.
    fn of_originals(&self, serving: &[usize], outlooks: &[Outlook], stand_in: f64) -> Option<f64> {
        let decoding = self.plan.decoding?;
        let usual = stand_in / f64::from(self.plan.block_bytes);
        let as_others = |(&flow, one): (&usize, &Outlook)| match self.flows[flow].measured() {
            true => *one,
            false => Outlook { pace: one.pace.min(usual), ..*one },
        };
        let outlooks: Vec<Outlook> = serving.iter().zip(outlooks).map(as_others).collect();
        let blocks = if self.is_plain() { self.missing } else { self.needed() };
        let plain = arrival_of(&outlooks, blocks, Outlook::originals_by)?;
        let Some(soonest) = arrival_of(&outlooks, self.needed(), Outlook::by) else { return Some(plain) };
        let coded: u32 = outlooks.iter().map(|one| one.by(soonest) - one.originals_by(soonest)).sum();
        let came = self.counts.coded_blocks;
        let all = decoding.seconds(came.saturating_add(coded)) - decoding.seconds(came);
        // Which part of what the devices are known for somebody else keeps from the read.
        let (mut expected, mut seen) = (0.0, 0.0);
        for flow in self.flows.iter().filter(|flow| flow.measured()) {
            expected += flow.expected().unwrap_or(stand_in);
            seen += flow.pace().unwrap_or(stand_in);
        }
        let shared = if expected > seen { 1.0 - seen / expected } else { 0.0 };
        // Decoding begins with the last block; a processor that is shared takes longer for it.
        (plain - soonest <= all * (1.0 + shared)).then_some(plain)
    }

    /// Ends all streams as soon as what they will have sent when they hear of it is enough: where more was granted than is
    /// needed, since nobody knew how fast the devices are, that much less is sent in vain than a way's worth.
    fn finish(&mut self, now: Time, delay: f64, serving: &[usize], outlooks: &[Outlook]) -> bool {
        let granted: u32 = outlooks.iter().map(|outlook| outlook.granted).sum();
        if granted <= self.needed().saturating_add(self.budget()) || !self.knows_pace() {
            return false;
        }
        let way = self.plan.round_trip.map_or(delay, |trip| trip.as_secs_f64());
        // On those that have been silent nobody counts.
        let seen = serving.iter().zip(outlooks).filter(|(at, _)| self.flows[**at].measured());
        let coming: u32 = seen.map(|(at, outlook)| self.flows[*at].coming_by(now, outlook, way)).sum();
        if f64::from(coming) < f64::from(self.needed()) * (1.0 + FORESEEN_SHARE) {
            return false;
        }
        for flow in &mut self.flows {
            self.actions.extend(flow.finish());
        }
        self.finished_at = Some(now + seconds(way * (1.0 + FORESEEN_SHARE)));
        self.look_at = self.finished_at;
        true
    }

    /// Asks for extras where what was granted comes too late.
    fn stand_in(&mut self, now: Time, soonest: f64, outlooks: &[Outlook], lacking: &[Lack]) {
        let needed = self.needed();
        let in_time: u32 = outlooks.iter().map(|outlook| outlook.granted_by(soonest)).sum();
        let late = needed.saturating_sub(in_time);
        // A share of the time is worth the same share of the bytes.
        let share = f64::from(late) / f64::from(self.plan.originals);
        let worth = share * (now.since(self.began).as_secs_f64() + soonest);
        let granted_only = arrival_of(outlooks, needed, Outlook::granted_by).unwrap_or(f64::INFINITY);
        if granted_only - soonest <= worth {
            return;
        }
        // What will have been sent when all devices have been told of the end: of a cancel, which does not wait in their
        // queues; or before the end, to finish, where so much was granted that they will be, or will be with the first extras.
        let granted: u32 = outlooks.iter().map(|outlook| outlook.granted).sum();
        let finishes = self.is_blind || granted > needed.saturating_add(self.budget());
        let factor = if finishes { 0.0 } else { TOLD_FACTOR };
        let way = self.way();
        let sent = outlooks.iter().map(|one| one.sent_by(soonest + factor * one.delay_s.min(way)));
        let allowed = self.budget().saturating_add(needed).saturating_sub(sent.sum());
        let mut wanted = late.min(allowed);
        for lack in lacking {
            let more = wanted.min(lack.blocks);
            self.grant(now, lack.flow, more, true);
            wanted -= more;
        }
    }

    fn grant(&mut self, now: Time, flow: usize, blocks: u32, extra: bool) {
        if blocks == 0 {
            return;
        }
        self.counts.requested_blocks += blocks;
        self.counts.extra_blocks += if extra { blocks } else { 0 };
        self.actions.push_back(self.flows[flow].grant(now, blocks, extra));
    }

    /// Silence says something too: when to look at it.
    fn look_again(&mut self, now: Time, soonest: f64, outlooks: &[Outlook]) {
        let after = if self.knows_pace() {
            let block = outlooks.iter().map(|one| 1.0 / one.pace).fold(f64::INFINITY, f64::min);
            seconds((soonest.min(1e9) * LOOK_SHARE).max(block * LOOK_SHARE).min(1e9))
        } else {
            self.plan.patience / FIRST_ANSWER_SHARE
        };
        self.look_at = Some(now + after);
    }

    /// Whether there is a pace and a delay to judge silence by.
    fn knows_pace(&self) -> bool {
        let expects = self.plan.round_trip.is_some() && self.flows.iter().any(|flow| flow.pace().is_some());
        expects || self.flows.iter().any(Flow::measured)
    }

    fn reachable(&self) -> u32 {
        let within =
            self.flows.iter().filter(|flow| flow.may_serve() || self.retry_at.contains_key(&flow.id));
        within.map(|flow| flow.left.count()).sum()
    }

    /// Opens again what failed, if the read depends on it. Gives how many blocks are within reach then.
    fn retry(&mut self, now: Time) -> u32 {
        let mut reachable = self.reachable();
        if reachable < self.missing {
            for flow in self.flows.iter().filter(|flow| flow.stage == Stage::Failed) {
                if let Some(pause) = again::pause(self.plan.waits, flow.cause.as_ref(), flow.failures) {
                    self.retry_at.entry(flow.id).or_insert(now + pause);
                }
            }
            reachable = self.reachable();
        }
        let retry_at = &mut self.retry_at;
        for flow in self.flows.iter_mut() {
            if retry_at.get(&flow.id).is_some_and(|&at| at <= now) {
                retry_at.remove(&flow.id);
                flow.stage = Stage::Idle;
            }
        }
        reachable
    }

    fn failed(&mut self, now: Time, id: DeviceId, cause: Cause) {
        let Some(flow) = self.flow(id).filter(|flow| flow.stage == Stage::Active) else { return };
        let refused = match cause {
            Cause::Fault(Fault::Refused { retry_after_ms, .. }) => Some(retry_after_ms),
            _ => None,
        };
        flow.failed(cause);
        let first = refused.is_none() && flow.failures == 1;
        self.counts.devices_failed += u32::from(first);
        if let Some(retry_after_ms) = refused {
            // A refusal says when to come back; patience bounds how often.
            let after = core::time::Duration::from_millis(u64::from(retry_after_ms.max(1)));
            self.retry_at.insert(id, now + after);
            self.busy = true;
        }
    }

    fn end(&mut self, last: Action) {
        self.over = true;
        self.look_at = None;
        self.retry_at.clear();
        // What was to be opened and has not been polled yet need not be opened at all.
        let unsent: Vec<DeviceId> = self
            .actions
            .iter()
            .filter_map(|action| if let Action::Open { device, .. } = action { Some(*device) } else { None })
            .collect();
        self.actions.clear();
        for flow in self.flows.iter_mut() {
            let cancel = flow.cancel();
            self.actions.extend(cancel.filter(|_| !unsent.contains(&flow.id)));
        }
        self.actions.push_back(last);
    }
}

/// A wider window for a device with more originals to send than others: of a link they share it gets more, so that all of them
/// end together.
fn widened(window: u32, plain: Option<f64>, outlook: &Outlook) -> u32 {
    let Some(mean) = plain else { return window };
    let own = f64::from(outlook.granted + outlook.fresh);
    (f64::from(window) * (own / mean).clamp(1.0, WIDENED_MAX)).ceil() as u32
}

impl ReadCore for Adaptive {
    fn handle(&mut self, now: Time, input: Input) {
        let mut arrived = None;
        match input {
            Input::Opened { device } => {
                if let Some(flow) = self.flow(device) {
                    flow.opened(now);
                }
                return;
            }
            Input::Slice { device, bytes, .. } => {
                self.counts.received_bytes += u64::from(bytes);
                if !self.over {
                    let unseen = self.flow(device).is_some_and(|flow| !flow.measured());
                    let round_trip = unseen.then(|| self.shortest_delay());
                    if let Some(flow) = self.flow(device) {
                        flow.slice(now, bytes, round_trip);
                        self.heard = now;
                    }
                }
                return;
            }
            Input::Block { device, index, missing } => {
                self.counts.received_blocks += 1;
                if self.over {
                    return;
                }
                self.heard = now;
                let useful = missing < self.missing;
                self.counts.useful_blocks += u32::from(useful);
                self.counts.coded_blocks += u32::from(useful && self.plan.is_coded(index));
                if let Some(flow) = self.flow(device) {
                    let (expected, extra) = flow.block(index);
                    self.counts.devices += u32::from(expected && flow.blocks_received == 1);
                    self.counts.extra_won += u32::from(extra && useful);
                }
                self.missing = missing.min(self.missing);
                arrived = Some(device);
            }
            Input::Corrupt { device, index } => {
                self.counts.corrupt_blocks += 1;
                if let Some(flow) = self.flow(device) {
                    flow.block(index);
                }
            }
            Input::Ended { device } => {
                if let Some(flow) = self.flow(device).filter(|flow| flow.stage == Stage::Active) {
                    flow.ended();
                }
            }
            Input::Failed { device, cause } => self.failed(now, device, cause),
            Input::Tick => {}
        }
        self.decide(now, arrived);
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
        [Some(patience), retry, self.look_at].into_iter().flatten().min()
    }

    fn counts(&self) -> ReadDone {
        self.counts
    }
}
