//! Chunks of a fixed code (CodFS §3.3): each whole on one device, no two in one failure domain, all of them confirmed
//! before the segment is.
//!
//! ```text
//!   chunk 0 ── device A ══════════▶ confirmed
//!   chunk 1 ── device B ═══ lags
//!                └─ spare F ══════▶ confirmed        B is cancelled, and what it has is deleted
//!   chunk 2 ── device C ── failed
//!                └─ spare G ══════▶ confirmed
//! ```
//!
//! A chunk whose device fails, refuses or lags goes to a spare as a whole, in a domain that no other chunk is in or may get
//! to be in; the first device that has all of it keeps it. Where there is no such spare a refusal is waited for and a
//! laggard too, and a chunk without a device for what others give back; else that ends the write, as no blocks of others
//! can stand in.
//!
//! Where the bytes to be stored are still arriving ([`Input::Arrived`]), blocks are pushed as theirs come, parity once all are
//! there. A device is late with what was pushed to it alone: a slow source makes none of them a laggard.
//!
//! With something [`Given`](super::Given) only the chunks wanted are written, beside those that exist.
//!
//! Invariants: a device gets blocks of one chunk, in order, each once, as its credit allows; the layout lists a chunk on one
//! device; a device whose connection was lost before it had all of its chunk counts for nothing. One that has is finished at once:
//! held open until the segment's end, streams of many writers would each keep room at some nodes and wait for it at others, for
//! ever.
//!
//! Left out: commits with fewer chunks than the code has (where too few devices serve the segment is written anew with a code of
//! fewer, [`Parity::degraded`](crate::policy::Parity::degraded); one that may be is given up sooner, [`Fewer`](super::Fewer)), chunks in
//! parts.

use super::{
    Action, FailureKind, Input, WriteDone, WriteError, WriteSpec,
    lane::{Lane, State},
};
use crate::{
    BlockIndex, DeviceId, Time,
    durability::{Judge, Verdict},
    layout::Share,
};
use core::{ops::Range, time::Duration};
use std::collections::VecDeque;

/// As of the rateless core: a device that owes a sign for so many times the usual time to a confirmation lags.
const SILENCE_FACTOR: u32 = 8;
/// And at least so long: what stands in for it is a whole chunk written once more. Picked by eye: more than what a busy
/// machine or a disk's flush adds to a confirmation.
const SILENCE_MIN: Duration = Duration::from_millis(200);

/// The write core of one segment of chunks.
pub struct ParityWriter {
    spec: WriteSpec,
    chunks: Vec<Chunk>,
    lanes: Vec<ChunkLane>,
    /// The originals that are there, the first ones.
    arrived: u32,
    pushed_blocks: u32,
    progress: Time,
    now: Time,
    actions: VecDeque<Action>,
    over: bool,
}

/// A chunk that is to be written.
struct Chunk {
    blocks: Range<BlockIndex>,
    /// The lane that has it whole.
    kept: Option<usize>,
    /// What failed last of the lanes that were to have it.
    lost: Option<(DeviceId, FailureKind)>,
}

struct ChunkLane {
    lane: Lane,
    /// The chunk that it is to have: which of those to be written.
    chunk: Option<usize>,
    /// The next block to push.
    next: BlockIndex,
}

impl ParityWriter {
    /// A core that begins at `now`. A put's devices get the chunks in their order.
    ///
    /// # Panics
    /// When the code has no end, or a put has not a device for each chunk: the plan's promise.
    pub fn new(spec: WriteSpec, now: Time) -> Self {
        let end = spec.code.end().expect("a fixed code");
        let chunks = chunks(&spec, end);
        let lane = |&target| ChunkLane { lane: Lane::new(target, now), chunk: None, next: 0 };
        let lanes = spec.devices.iter().chain(&spec.spares).map(lane).collect();
        let puts = spec.given.is_empty();
        assert!(!puts || spec.devices.len() == chunks.len(), "a device for each chunk");
        let mut core = Self {
            arrived: spec.code.k(),
            spec,
            chunks,
            lanes,
            pushed_blocks: 0,
            progress: now,
            now,
            actions: VecDeque::new(),
            over: false,
        };
        for chunk in 0..core.chunks.len() {
            let place = if puts { Some(chunk) } else { core.spare_for(chunk) };
            match place {
                Some(place) => core.open(place, chunk),
                None => {
                    core.lacking(None);
                    return core;
                }
            }
        }
        core.finish_if_whole();
        core
    }

    /// Takes what happened at `now`.
    pub fn handle(&mut self, now: Time, input: Input) {
        if self.over {
            return;
        }
        self.now = self.now.max(now);
        if !self.is_waited_for() {
            // Devices have time from here on, whatever the source took before.
            self.progress = self.now;
        }
        match input {
            Input::Opened { device } => self.grant(device, 0),
            Input::Credit { device, bytes } => self.grant(device, bytes),
            Input::Confirmed { device, blocks } => {
                let Some(place) = self.place(device) else { return };
                if !self.lanes[place].lane.confirm(self.now, &blocks).is_empty() {
                    self.progress = self.now;
                    self.keep_if_whole(place);
                }
            }
            Input::Failed { device, cause } => self.fail(device, cause),
            Input::Arrived { originals } => self.arrive(originals),
            Input::Tick => {}
        }
        if !self.over && !self.finish_if_whole() {
            self.step();
        }
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
        let limit = self.silence_limit();
        let lanes = self.lanes.iter().filter_map(|one| match one.lane.state {
            State::Waiting(until) => Some(until),
            _ if one.lane.replaced || !self.owes(one) || self.spare_for(one.chunk?).is_none() => None,
            _ => Some(one.lane.quiet_since() + limit),
        });
        lanes.chain(self.is_waited_for().then(|| self.progress + self.patience())).min()
    }

    /// How long to wait without any confirmation: less where the segment could be stored without what lacks. A spare is better than
    /// that, and who refuses is well and said when to ask again.
    fn patience(&self) -> Duration {
        let Some(fewer) = self.spec.fewer else { return self.spec.patience };
        let lacking = || (0..self.chunks.len()).filter(|&chunk| self.chunks[chunk].kept.is_none());
        let refused = self.lanes.iter().any(|one| matches!(one.lane.state, State::Waiting(_)));
        let hurries = lacking().count() <= fewer.chunks as usize
            && !refused
            && lacking().all(|chunk| self.spare_for(chunk).is_none());
        if hurries { fewer.patience } else { self.spec.patience }
    }

    /// Whether it is the devices that are waited for: all is there, or one of them owes a sign.
    fn is_waited_for(&self) -> bool {
        self.arrived == self.spec.code.k() || self.lanes.iter().any(|one| self.owes(one))
    }

    fn arrive(&mut self, originals: u32) {
        // From now on signs are due of those that had nothing to do.
        let idle: Vec<usize> =
            (0..self.lanes.len()).filter(|&place| !self.owes(&self.lanes[place])).collect();
        self.arrived = originals.min(self.spec.code.k());
        self.progress = self.now;
        for place in idle {
            if self.owes(&self.lanes[place]) {
                self.lanes[place].lane.await_from(self.now);
            }
        }
    }

    /// The end of what can be pushed of a chunk.
    fn pushable(&self, chunk: usize) -> BlockIndex {
        let end = self.chunks[chunk].blocks.end;
        // Those of parity are behind all originals.
        if self.arrived == self.spec.code.k() { end } else { end.min(self.arrived) }
    }

    fn place(&self, device: DeviceId) -> Option<usize> {
        let known = |one: &ChunkLane| {
            let over = matches!(one.lane.state, State::Spare | State::Gone | State::Whole);
            one.lane.target.device == device && !over
        };
        self.lanes.iter().position(known)
    }

    fn grant(&mut self, device: DeviceId, bytes: u64) {
        if let Some(place) = self.place(device) {
            self.lanes[place].lane.grant(bytes);
        }
    }

    fn open(&mut self, place: usize, chunk: usize) {
        let blocks = self.chunks[chunk].blocks.clone();
        let one = &mut self.lanes[place];
        one.lane.open(self.now);
        one.lane.counts = true;
        // One that was refused on the way goes on behind what it has.
        if one.chunk != Some(chunk) {
            (one.chunk, one.next) = (Some(chunk), blocks.start);
        }
        let expected_blocks = blocks.end - blocks.start;
        let chunk = Some(blocks.start / expected_blocks);
        self.actions.push_back(Action::Open { device: one.lane.target.device, expected_blocks, chunk });
    }

    /// The device to turn to for a chunk: of a domain that no other chunk is or may get to be in, and where there is a
    /// choice not of one where this chunk is late or failed.
    fn spare_for(&self, chunk: usize) -> Option<usize> {
        let of_others = |domain: u32| {
            let existing = self.spec.given.existing.iter().any(|existing| existing.domain == domain);
            existing
                || self.lanes.iter().any(|one| {
                    one.chunk.is_some_and(|other| other != chunk)
                        && one.lane.live()
                        && one.lane.target.domain == domain
                })
        };
        let tried = |domain: u32| {
            self.lanes.iter().any(|one| one.chunk == Some(chunk) && one.lane.target.domain == domain)
        };
        let spares = || {
            (0..self.lanes.len()).filter(|&place| {
                let lane = &self.lanes[place].lane;
                lane.state == State::Spare && !of_others(lane.target.domain)
            })
        };
        let elsewhere = spares().find(|&place| !tried(self.lanes[place].lane.target.domain));
        elsewhere.or_else(|| spares().next())
    }

    /// Has a chunk written elsewhere too, once for each lane; whether there was a place.
    fn replace(&mut self, place: usize) -> bool {
        let Some(chunk) = self.lanes[place].chunk else { return false };
        let Some(spare) = self.spare_for(chunk) else { return false };
        self.lanes[place].lane.replaced = true;
        self.open(spare, chunk);
        true
    }

    fn fail(&mut self, device: DeviceId, cause: FailureKind) {
        let Some(place) = self.place(device) else { return };
        let now = self.now;
        let one = &mut self.lanes[place];
        let yields = one.lane.yields(cause);
        let on_the_way = one.lane.flight().min();
        one.lane.drop_flight();
        one.lane.counts = false;
        one.lane.full = cause == FailureKind::Full;
        one.lane.state = match cause {
            // What it took it has confirmed (`serve::write_stream`): the rest goes on another stream.
            FailureKind::Refused { retry_after } => {
                one.next = on_the_way.unwrap_or(one.next);
                State::Waiting(now + retry_after.max(Duration::from_millis(1)))
            }
            _ => State::Gone,
        };
        let Some(chunk) = one.chunk.filter(|_| !yields) else { return };
        self.chunks[chunk].lost = Some((device, cause));
        let in_time = |(other, one): (usize, &ChunkLane)| {
            other != place && one.chunk == Some(chunk) && one.lane.live() && !one.lane.replaced
        };
        // One that another device has, or writes without lagging, needs no third.
        if self.chunks[chunk].kept.is_none() && !self.lanes.iter().enumerate().any(in_time) {
            self.replace(place);
        }
    }

    /// A lane that has its whole chunk keeps it, and others that were to have it are given up.
    fn keep_if_whole(&mut self, place: usize) {
        let one = &self.lanes[place];
        let Some(chunk) = one.chunk else { return };
        let blocks = &self.chunks[chunk].blocks;
        if one.lane.confirmed.count() < blocks.end - blocks.start {
            return;
        }
        self.chunks[chunk].kept = Some(place);
        let finish = self.lanes[place].lane.finish();
        self.actions.push_back(finish);
        for (other, one) in self.lanes.iter_mut().enumerate() {
            if other == place || one.chunk != Some(chunk) || !one.lane.live() {
                continue;
            }
            if !matches!(one.lane.state, State::Waiting(_)) {
                self.actions.push_back(Action::Cancel { device: one.lane.target.device });
            }
            one.lane.drop_flight();
            one.lane.state = State::Gone;
        }
    }

    /// Whether a sign is due from it.
    fn owes(&self, one: &ChunkLane) -> bool {
        let Some(chunk) = one.chunk else { return false };
        let left = one.next < self.pushable(chunk);
        one.lane.owes() || (one.lane.state == State::Open && left)
    }

    /// How long a lane may owe a sign before its chunk goes to a spare too.
    fn silence_limit(&self) -> Duration {
        let mut usual: Vec<Duration> = self.lanes.iter().filter_map(|one| one.lane.latency()).collect();
        if usual.is_empty() {
            return self.spec.patience / 4;
        }
        let middle = usual.len() / 2;
        let (_, &mut latency, _) = usual.select_nth_unstable(middle);
        (latency * SILENCE_FACTOR).clamp(SILENCE_MIN.min(self.spec.patience), self.spec.patience)
    }

    fn step(&mut self) {
        let (now, block_bytes, limit) = (self.now, self.spec.block_bytes, self.silence_limit());
        let patience = self.patience();
        if now.since(self.progress) >= patience && self.is_waited_for() {
            let silent = self
                .lanes
                .iter()
                .filter(|one| self.owes(one) || matches!(one.lane.state, State::Waiting(_)))
                .map(|one| one.lane.target.device);
            let error = WriteError::Stalled {
                confirmed: self.confirmed(),
                needed: self.needed(),
                patience,
                silent: silent.collect(),
            };
            self.end(Action::Failed(error));
            return;
        }
        if let Some(lost) = self.house() {
            self.lacking(lost);
            return;
        }
        for place in 0..self.lanes.len() {
            let one = &self.lanes[place];
            match (one.lane.state, one.chunk) {
                (State::Waiting(until), Some(chunk)) if until <= now => self.open(place, chunk),
                _ if one.lane.replaced || !self.owes(one) => {}
                _ if now.since(one.lane.quiet_since()) >= limit => {
                    self.replace(place);
                }
                _ => {}
            }
        }
        for place in 0..self.lanes.len() {
            let Some(chunk) = self.lanes[place].chunk else { continue };
            let end = self.pushable(chunk);
            let one = &mut self.lanes[place];
            let left = end.saturating_sub(one.next);
            let blocks = one.lane.affords(block_bytes).min(left);
            if blocks > 0 {
                let indices = one.next..one.next + blocks;
                one.next += blocks;
                one.lane.push(now, indices.clone(), block_bytes);
                self.pushed_blocks += blocks;
                self.actions.push_back(Action::Push { device: one.lane.target.device, indices });
            }
        }
    }

    /// Lanes that have a chunk or may get to have it.
    fn live_lanes(&self, chunk: usize) -> usize {
        self.lanes.iter().filter(|one| one.chunk == Some(chunk) && one.lane.live()).count()
    }

    /// Finds a place for chunks that have none; what failed of one for which there is none and will be none. A chunk that
    /// two devices write gives one of their domains back once one of them has it.
    fn house(&mut self) -> Option<Option<(DeviceId, FailureKind)>> {
        for chunk in 0..self.chunks.len() {
            if self.live_lanes(chunk) > 0 {
                continue;
            }
            match self.spare_for(chunk) {
                Some(place) => self.open(place, chunk),
                None if (0..self.chunks.len()).any(|other| self.live_lanes(other) > 1) => {}
                None => return Some(self.chunks[chunk].lost),
            }
        }
        None
    }

    fn needed(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.blocks.end - chunk.blocks.start).sum()
    }

    fn confirmed(&self) -> u32 {
        let most = |chunk: usize| {
            let lanes = self.lanes.iter().filter(|one| one.chunk == Some(chunk) && one.lane.counts);
            lanes.map(|one| one.lane.confirmed.count()).max().unwrap_or(0)
        };
        (0..self.chunks.len()).map(most).sum()
    }

    fn finish_if_whole(&mut self) -> bool {
        let kept: Option<Vec<usize>> = self.chunks.iter().map(|chunk| chunk.kept).collect();
        let Some(kept) = kept else { return false };
        let spec = &self.spec;
        let mut judge = Judge::new(spec.code.clone(), spec.rule, spec.domains, spec.seed);
        for existing in &spec.given.existing {
            existing.blocks.iter().for_each(|index| {
                judge.confirm(existing.domain, index);
            });
        }
        let mut holders = Vec::with_capacity(kept.len());
        for &place in &kept {
            let lane = &self.lanes[place].lane;
            lane.confirmed.iter().for_each(|index| {
                judge.confirm(lane.target.domain, index);
            });
            holders.push(Share { device: lane.target.device, blocks: lane.confirmed.clone() });
        }
        let last = match judge.verdict() {
            Verdict::Short { blocks, why } => Action::Failed(WriteError::Unmet { blocks, why }),
            verdict => {
                let opened = self.lanes.iter().enumerate().filter(|(_, one)| one.chunk.is_some());
                let abandoned = opened.filter(|(place, _)| !kept.contains(place));
                let stored_blocks = self.needed();
                Action::Done(WriteDone {
                    holders,
                    abandoned: abandoned.map(|(_, one)| one.lane.target.device).collect(),
                    stored_blocks,
                    pushed_blocks: self.pushed_blocks,
                    wasted_blocks: self.pushed_blocks - stored_blocks,
                    verdict,
                })
            }
        };
        self.end(last);
        true
    }

    /// Ends the write: a chunk has nowhere to go, since `lost` failed if something did.
    fn lacking(&mut self, lost: Option<(DeviceId, FailureKind)>) {
        let devices = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let full = self.lanes.iter().filter(|one| one.lane.full).count();
        let mut domains: Vec<u32> = self
            .lanes
            .iter()
            .filter(|one| one.lane.live() || one.lane.state == State::Spare)
            .map(|one| one.lane.target.domain)
            .chain(self.spec.given.existing.iter().map(|existing| existing.domain))
            .collect();
        domains.sort_unstable();
        domains.dedup();
        let error = match lost {
            Some((_, FailureKind::Full)) => WriteError::Full {
                full: u32::try_from(full).unwrap_or(u32::MAX),
                devices,
                confirmed: self.confirmed(),
                needed: self.needed(),
                block_bytes: self.spec.block_bytes,
            },
            _ => WriteError::NoPlace {
                needed: self.spec.code.end().unwrap_or(0) / self.spec.code.chunk_blocks().max(1),
                available: u32::try_from(domains.len()).unwrap_or(u32::MAX),
                lost,
                failed: self.failed(),
            },
        };
        self.end(Action::Failed(error));
    }

    /// Devices that can take nothing more, but for full ones and those of which another was faster.
    fn failed(&self) -> Vec<DeviceId> {
        let lost = |one: &&ChunkLane| one.lane.state == State::Gone && !one.lane.counts && !one.lane.full;
        self.lanes.iter().filter(lost).map(|one| one.lane.target.device).collect()
    }

    /// Ends every stream, then says how it went.
    fn end(&mut self, last: Action) {
        self.over = true;
        self.actions.retain(|action| !matches!(action, Action::Push { .. }));
        for one in &self.lanes {
            let device = one.lane.target.device;
            match one.lane.state {
                State::Open if one.lane.in_flight == 0 => self.actions.push_back(Action::Finish { device }),
                State::Opening | State::Open => self.actions.push_back(Action::Cancel { device }),
                State::Spare | State::Waiting(_) | State::Gone | State::Whole => {}
            }
        }
        self.actions.push_back(last);
    }
}

/// The chunks to be written: all of a put; those that hold what is wanted of an amendment.
fn chunks(spec: &WriteSpec, end: BlockIndex) -> Vec<Chunk> {
    let blocks = spec.code.chunk_blocks().max(1);
    let wanted = |chunk: &Range<BlockIndex>| {
        spec.given.is_empty()
            || spec.given.wanted.iter().any(|(_, wanted)| chunk.clone().any(|index| wanted.contains(index)))
    };
    let all = (0..end / blocks).map(|chunk| chunk * blocks..(chunk + 1) * blocks);
    all.filter(wanted).map(|blocks| Chunk { blocks, kept: None, lost: None }).collect()
}
