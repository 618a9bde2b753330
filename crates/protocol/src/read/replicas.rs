//! The adaptive read of rotated replicas (RRAID-A, dissertation §6.2.1), or of a range of them: every original is asked for from
//! one copy; a device that has sent all it was asked for looks for the one that owes most of what it holds as well, and takes over
//! the second half of that.
//!
//! A device that lost the end of its share gets no more credit for it. Once it has sent the rest its stream is
//! cancelled, and it takes over from others in its turn. So each round costs a device a round trip, as in the paper:
//! on long ways this core is slow by design.
//!
//! The paper divides below the size of a block (its §6.3.1.3 ignores block boundaries); here the last block that a
//! device owes is asked for beside it, where another expects to be sooner, unless [`ReadPlan::races`] says not to.
//!
//! Of a range most devices have one block or two, and some none: all of them would ask for what is under way. There a device takes
//! over, or races, only where the other takes twice as long as it would itself.
//!
//! Invariants: no original outside the range is asked for; an original is owed by one device, or by two where its last one is
//! raced; a block that arrived damaged or is gone is not asked of that device again; exactly one `Done` or `Failed` ends the
//! actions.

use super::{
    Action, Cause, Input, ReadCore, ReadDone, ReadError, ReadPlan, Source, again,
    caution::LATE_FACTOR,
    source::{Device, Stage, seconds},
};
use crate::{BlockIndex, DeviceId, IndexRanges, Time, message::Fault};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// While nothing at all arrives for this part of the patience, any block may be raced, and by more than two devices.
const SILENT_SHARE: u32 = 8;
/// Before any device has answered nobody knows how long an answer takes: it is given this part of the patience, as by
/// [`super::Ranged`].
const FIRST_ANSWER_SHARE: u32 = 16;

/// The adaptive read of a replicated segment.
#[derive(Debug)]
pub struct Replicas {
    plan: ReadPlan,
    devices: BTreeMap<DeviceId, Share>,
    /// Originals that are read.
    wanted: IndexRanges,
    /// Those that have come.
    have: IndexRanges,
    /// Originals that nobody owes: their device lost them.
    orphans: IndexRanges,
    retry_at: BTreeMap<DeviceId, Time>,
    race_at: Option<Time>,
    /// Blocks that were asked for beside another device's copies of the same originals.
    raced: IndexRanges,
    counts: ReadDone,
    actions: VecDeque<Action>,
    over: bool,
    heard: Time,
}

/// Originals of the segment, a bit each: what one device owes of what another holds is a few words' work.
#[derive(Debug)]
struct Originals(Vec<u64>);

impl Originals {
    /// None of `originals`.
    fn none(originals: u32) -> Self {
        Self(vec![0; originals.div_ceil(u64::BITS) as usize])
    }

    fn insert(&mut self, original: u32) {
        self.0[(original / u64::BITS) as usize] |= 1 << (original % u64::BITS);
    }

    fn remove(&mut self, original: u32) {
        self.0[(original / u64::BITS) as usize] &= !(1 << (original % u64::BITS));
    }

    fn contains(&self, original: u32) -> bool {
        self.0[(original / u64::BITS) as usize] >> (original % u64::BITS) & 1 == 1
    }

    /// How many are in both.
    fn common(&self, other: &Self) -> u32 {
        let both = self.0.iter().zip(&other.0).map(|(ours, theirs)| ours & theirs);
        // Late in a read most words are empty, and counting bits costs more than seeing so.
        both.filter(|&word| word != 0).map(u64::count_ones).sum()
    }
}

#[derive(Debug)]
struct Share {
    device: Device,
    /// Which originals it held a copy of when the read began: most devices hold few of what another owes.
    held: Originals,
    /// Blocks asked of it that are counted on ...
    owed: IndexRanges,
    /// ... and which originals they are copies of.
    owes: Originals,
    /// Whether its stream was cancelled and has not said its last.
    withdrawing: bool,
    /// Whether it found that others owe nothing it holds. They will not owe more, but what a device loses.
    fruitless: bool,
}

impl Share {
    fn new(plan: &ReadPlan, source: &Source) -> Self {
        let mut held = Originals::none(plan.originals);
        source.blocks.iter().for_each(|index| held.insert(index % plan.originals));
        let (owed, owes) = (IndexRanges::new(), Originals::none(plan.originals));
        Self { device: Device::new(plan, source), held, owed, owes, withdrawing: false, fruitless: false }
    }

    /// It is counted on for these blocks, and for nothing else.
    fn owe(&mut self, blocks: IndexRanges, originals: u32) {
        self.owes = Originals::none(originals);
        blocks.iter().for_each(|index| self.owes.insert(index % originals));
        self.owed = blocks;
    }

    /// It is not counted on for this block any longer; `false` if it was not before.
    fn release(&mut self, index: BlockIndex, originals: u32) -> bool {
        let owed = self.owed.remove(index);
        if owed {
            self.owes.remove(index % originals);
        }
        owed
    }

    /// It is counted on for nothing any longer: for what it was.
    fn release_all(&mut self, originals: u32) -> IndexRanges {
        self.owes = Originals::none(originals);
        core::mem::take(&mut self.owed)
    }

    /// Its block of `original`, if it holds one.
    fn copy_of(&self, original: u32, originals: u32) -> Option<BlockIndex> {
        if !self.held.contains(original) {
            return None;
        }
        let copies = self.device.left.ranges().last().map_or(0, |range| range.end.div_ceil(originals));
        (0..copies).map(|copy| copy * originals + original).find(|&index| self.device.left.contains(index))
    }

    /// It gets no credit for the blocks behind those that it is counted on for. They need not be the last that it sends, which it does as
    /// they lie: for each that comes sooner there is one less, and credit for one that is counted on.
    fn hold_back(&mut self) -> Option<Action> {
        let last = self.owed.ranges().last().map(|range| range.end);
        let behind = self.device.pending.iter().filter(|&index| last.is_none_or(|last| index >= last));
        let behind = u32::try_from(behind.count()).expect("a device holds fewer than 2^32 blocks");
        self.device.hold_back(behind)
    }

    /// Whether it has nothing to do, and may find something.
    fn is_idle(&self) -> bool {
        self.device.stage == Stage::Idle && !self.withdrawing && !self.fruitless
    }

    /// Whether it can still be asked for something.
    fn serves(&self) -> bool {
        matches!(self.device.stage, Stage::Idle | Stage::Active) || self.withdrawing
    }
}

impl Replicas {
    /// Begins a read; the plan's rule does not matter. Its first actions are there at once.
    pub fn new(now: Time, plan: ReadPlan) -> Self {
        let all = IndexRanges::from(0..plan.originals);
        Self::of(now, plan, all)
    }

    /// As [`Replicas::new`], of the originals in `wanted`, all below the plan's K.
    ///
    /// # Panics
    /// When `wanted` names a block that is no original: the caller cuts ranges.
    pub fn of(now: Time, plan: ReadPlan, wanted: IndexRanges) -> Self {
        assert!(wanted.ranges().last().is_none_or(|last| last.end <= plan.originals), "{wanted} of {plan:?}");
        let with_blocks = plan.sources.iter().filter(|source| !source.blocks.is_empty());
        let devices = with_blocks.map(|source| (source.device, Share::new(&plan, source))).collect();
        let mut read = Self {
            devices,
            have: IndexRanges::new(),
            orphans: wanted.clone(),
            wanted,
            retry_at: BTreeMap::new(),
            race_at: None,
            raced: IndexRanges::new(),
            counts: ReadDone::default(),
            actions: VecDeque::new(),
            over: false,
            heard: now,
            plan,
        };
        let ids: Vec<DeviceId> = read.devices.keys().copied().collect();
        for id in ids {
            // The first copy.
            let share = &read.devices[&id];
            let first = share.device.left.iter().take_while(|&index| index < read.plan.originals);
            let blocks = first.filter(|&index| read.wanted.contains(index)).collect();
            read.ask(now, id, blocks);
        }
        read.settle(now);
        read
    }

    fn original(&self, index: BlockIndex) -> u32 {
        index % self.plan.originals
    }

    fn missing(&self) -> u32 {
        self.wanted.count() - self.have.count()
    }

    /// Whether some of the originals are not read.
    fn is_range(&self) -> bool {
        self.wanted.count() < self.plan.originals
    }

    /// Asks an idle device for blocks that it holds.
    fn ask(&mut self, now: Time, id: DeviceId, blocks: IndexRanges) {
        if blocks.is_empty() {
            return;
        }
        for index in blocks.iter() {
            self.orphans.remove(index % self.plan.originals);
        }
        self.counts.requested_blocks += blocks.count();
        let share = self.devices.get_mut(&id).expect("only devices of the read are asked");
        share.owe(blocks.clone(), self.plan.originals);
        self.actions.push_back(share.device.open(now, blocks, false));
    }

    /// Looks at everything after each event that may have changed who owes what.
    fn decide(&mut self, now: Time) {
        if self.over {
            return;
        }
        if self.missing() == 0 {
            self.end(Action::Done(self.counts));
            return;
        }
        if now >= self.heard + self.plan.patience {
            let silent = self.devices.values().filter(|share| !share.owed.is_empty());
            let silent = silent.map(|share| share.device.id).collect();
            let (missing, waited) = (self.missing(), now.since(self.heard));
            self.end(Action::Failed(ReadError::Stalled { missing, waited, silent }));
            return;
        }
        let due: Vec<DeviceId> =
            self.retry_at.iter().filter(|&(_, &at)| at <= now).map(|(&id, _)| id).collect();
        for id in due {
            self.retry_at.remove(&id);
            let share = self.devices.get_mut(&id).expect("only devices of the read are retried");
            share.device.stage = Stage::Idle;
            let owed = share.release_all(self.plan.originals);
            self.ask(now, id, owed);
        }
        self.race_at = None;
        let idle: Vec<DeviceId> =
            self.devices.iter().filter(|(_, share)| share.is_idle()).map(|(&id, _)| id).collect();
        for id in idle {
            let blocks = self.take_over(now, id);
            self.ask(now, id, blocks);
        }
        for share in self.devices.values_mut() {
            // All it was counted on for has come or went to others: the rest is not wanted.
            if share.device.stage == Stage::Active
                && share.owed.is_empty()
                && !share.device.pending.is_empty()
            {
                share.withdrawing = true;
                let cancel = share.device.cancel();
                self.actions.extend(cancel);
            }
        }
    }

    /// What an idle device asks for: orphans, else all that a failed device owes, else the second half of what the
    /// device owes that owes most of what this one holds.
    fn take_over(&mut self, now: Time, id: DeviceId) -> IndexRanges {
        let originals = self.plan.originals;
        let taker = &self.devices[&id];
        let held = |blocks: &IndexRanges| -> Vec<(BlockIndex, BlockIndex)> {
            let both = |index| Some((index, taker.copy_of(index % originals, originals)?));
            blocks.iter().filter_map(both).collect()
        };
        let found = held(&self.orphans);
        if !found.is_empty() {
            return found.into_iter().map(|(_, own)| own).collect();
        }
        let others = self.devices.iter().filter(|&(&other, share)| other != id && !share.owed.is_empty());
        let (mut most, mut from) = (0, None);
        for (&other, share) in others {
            // Of equals the first; one that owes no more of what this one held at first cannot owe more of what it holds.
            if share.owed.count() as usize > most && taker.held.common(&share.owes) as usize > most {
                let copies =
                    share.owed.iter().filter(|index| taker.copy_of(index % originals, originals).is_some());
                let found = copies.count();
                if found > most {
                    (most, from) = (found, Some((other, share)));
                }
            }
        }
        let Some((other, share)) = from else {
            self.devices.get_mut(&id).expect("it is asked about").fruitless = true;
            return IndexRanges::new();
        };
        let (both, serves) = (held(&share.owed), share.serves());
        if serves && both.len() == 1 {
            let (index, own) = both[0];
            if !self.wins_race(now, id, other, index) {
                return IndexRanges::new();
            }
            self.counts.extra_blocks += 1;
            self.raced.insert(own);
            return IndexRanges::from(own..own + 1);
        }
        let keep = if serves { both.len().div_ceil(2) } else { 0 };
        if serves && self.is_range() && !self.is_sooner(now, id, other, (both.len() - keep, both.len())) {
            return IndexRanges::new();
        }
        let loser = self.devices.get_mut(&other).expect("it was found above");
        for &(index, _) in &both[keep..] {
            loser.release(index, originals);
        }
        self.actions.extend(loser.hold_back());
        both[keep..].iter().map(|&(_, own)| own).collect()
    }

    /// Whether an idle device expects to have the last block that another owes sooner than that one.
    fn wins_race(&mut self, now: Time, id: DeviceId, other: DeviceId, index: BlockIndex) -> bool {
        let original = self.original(index);
        let silent = now.since(self.heard) >= self.plan.patience / SILENT_SHARE;
        let owing = self.devices.values();
        let owing = owing.filter(|share| share.owes.contains(original));
        if (owing.count() > 1 || !self.plan.races) && !silent {
            let at = self.heard + self.plan.patience / SILENT_SHARE;
            self.race_at = Some(self.race_at.map_or(at, |earlier| earlier.min(at)));
            return false;
        }
        self.is_sooner(now, id, other, (1, 1))
    }

    /// Whether an idle device expects to have so many blocks sooner than another has so many, or much sooner where a range is read; notes
    /// when to look again.
    fn is_sooner(&mut self, now: Time, id: DeviceId, other: DeviceId, blocks: (usize, usize)) -> bool {
        let block = f64::from(self.plan.block_bytes);
        let (own, theirs) = (&self.devices[&id].device, &self.devices[&other].device);
        let at_pace = |device: &Device, blocks: usize| {
            let pace = device.pace_bytes_per_s(now);
            if pace > 0.0 { seconds(blocks as f64 * block / pace) } else { Duration::ZERO }
        };
        let sooner = self.answer_time(own).saturating_add(at_pace(own, blocks.0));
        let late = sooner.saturating_mul(if self.is_range() { LATE_FACTOR } else { 1 });
        let silence = now.since(theirs.last_arrival);
        if late < at_pace(theirs, blocks.1).max(silence) {
            return true;
        }
        // Its silence alone would make it late then.
        let at = theirs.last_arrival + late + Duration::from_nanos(1);
        self.race_at = Some(self.race_at.map_or(at, |earlier| earlier.min(at)));
        false
    }

    /// How long a device would take to answer: as it did, or as others did.
    fn answer_time(&self, device: &Device) -> Duration {
        let others = || self.devices.values().filter_map(|share| share.device.first_byte_delay()).max();
        device.first_byte_delay().or_else(others).unwrap_or_else(|| {
            // A round trip is the least that an answer takes: it says nothing of the device behind it.
            self.plan.round_trip.unwrap_or_default().max(self.plan.patience / FIRST_ANSWER_SHARE)
        })
    }

    /// After a failure or a loss: can every original still come from somewhere?
    fn settle(&mut self, now: Time) {
        let originals = self.plan.originals;
        self.devices.values_mut().for_each(|share| share.fruitless = false);
        let in_reach = |read: &Self, original: u32| {
            let waiting = |id| read.retry_at.contains_key(id);
            let mut holders = read.devices.iter().filter(|(id, share)| share.serves() || waiting(id));
            holders.any(|(_, share)| share.copy_of(original, originals).is_some())
        };
        let lost = |read: &Self| -> Vec<u32> {
            read.wanted.iter().filter(|&one| !read.have.contains(one) && !in_reach(read, one)).collect()
        };
        for original in lost(self) {
            let failed = self.devices.values().filter(|share| {
                share.device.stage == Stage::Failed && share.copy_of(original, originals).is_some()
            });
            let mut pauses = failed.filter_map(|share| {
                Some((
                    share.device.id,
                    again::pause(self.plan.waits, share.device.cause.as_ref(), share.device.failures)?,
                ))
            });
            if let Some((id, pause)) = pauses.next() {
                self.retry_at.entry(id).or_insert(now + pause);
            }
        }
        let lost = lost(self);
        if !lost.is_empty() {
            let missing = self.missing();
            let failed = self.devices.values().filter(|share| share.device.stage == Stage::Failed);
            let failed = failed.filter_map(|share| Some((share.device.id, share.device.cause.clone()?)));
            self.end(Action::Failed(ReadError::NotEnough {
                missing,
                originals,
                reachable: missing - u32::try_from(lost.len()).expect("at most K"),
                devices: u32::try_from(self.devices.len()).expect("few devices"),
                failed: failed.collect(),
            }));
        }
        self.decide(now);
    }

    fn block(&mut self, now: Time, id: DeviceId, index: BlockIndex) {
        self.heard = now;
        let original = self.original(index);
        if let Some(share) = self.devices.get_mut(&id) {
            self.counts.devices += u32::from(share.device.block(index) && share.device.blocks_received == 1);
        }
        if self.wanted.contains(original) && self.have.insert(original) {
            self.counts.useful_blocks += 1;
            self.counts.extra_won += u32::from(self.raced.contains(index));
        }
        self.orphans.remove(original);
        let originals = self.plan.originals;
        for share in self.devices.values_mut().filter(|share| share.owes.contains(original)) {
            let last = share.owed.ranges().last().map_or(0, |range| range.end);
            for copy in 0..last.div_ceil(originals) {
                share.release(copy * originals + original, originals);
            }
        }
    }

    /// A block of a device came, or was lost.
    fn credit(&mut self, id: DeviceId) {
        let held_back = |share: &&mut Share| !share.owed.is_empty() && share.device.holds_back();
        if let Some(share) = self.devices.get_mut(&id).filter(held_back) {
            self.actions.extend(share.hold_back());
        }
    }

    /// What a device owed and will not send is owed by nobody, where no other races for it.
    fn orphan(&mut self, lost: &IndexRanges) {
        for index in lost.iter() {
            let original = self.original(index);
            let owed = self.devices.values().any(|share| share.owes.contains(original));
            if !owed && !self.have.contains(original) {
                self.orphans.insert(original);
            }
        }
    }

    fn ended(&mut self, now: Time, id: DeviceId) {
        let Some(share) = self.devices.get_mut(&id) else { return };
        if share.withdrawing {
            share.withdrawing = false;
            share.device.withdrawn(now);
        } else if share.device.stage == Stage::Active {
            share.device.ended(now);
            let lost = share.release_all(self.plan.originals);
            if !lost.is_empty() {
                self.orphan(&lost);
                self.settle(now);
            }
        }
    }

    fn failed(&mut self, now: Time, id: DeviceId, cause: Cause) {
        let Some(share) = self.devices.get_mut(&id) else { return };
        if share.device.stage != Stage::Active && !share.withdrawing {
            return;
        }
        if share.withdrawing && cause == Cause::Fault(Fault::Cancelled) {
            // That is how it ends where there was no connection yet, or nothing was begun: as was asked.
            return self.ended(now, id);
        }
        share.withdrawing = false;
        if let Cause::Fault(Fault::Refused { retry_after_ms, .. }) = cause {
            let after = Duration::from_millis(u64::from(retry_after_ms.max(1)));
            self.retry_at.insert(id, now + after);
        } else {
            self.counts.devices_failed += u32::from(share.device.failures == 0);
        }
        // What it owes stays its own until another takes it over whole.
        share.device.failed(now, cause);
        self.settle(now);
    }

    fn end(&mut self, last: Action) {
        if self.over {
            return;
        }
        self.over = true;
        self.retry_at.clear();
        // What was to be opened and has not been polled yet need not be opened at all.
        let unsent: Vec<DeviceId> = self
            .actions
            .iter()
            .filter_map(|action| if let Action::Open { device, .. } = action { Some(*device) } else { None })
            .collect();
        self.actions.retain(|action| matches!(action, Action::Cancel { .. }));
        for share in self.devices.values_mut() {
            let cancel = share.device.cancel();
            self.actions.extend(cancel.filter(|_| !unsent.contains(&share.device.id)));
        }
        self.actions.push_back(last);
    }
}

impl ReadCore for Replicas {
    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Opened { device } => {
                if let Some(share) = self.devices.get_mut(&device) {
                    share.device.opened(now);
                }
                return;
            }
            Input::Slice { device, bytes, .. } => {
                self.counts.received_bytes += u64::from(bytes);
                if !self.over
                    && let Some(share) = self.devices.get_mut(&device)
                {
                    self.heard = now;
                    self.actions.extend(share.device.slice(now, bytes));
                }
                return;
            }
            Input::Block { device, index, .. } => {
                self.counts.received_blocks += 1;
                if self.over {
                    return;
                }
                self.block(now, device, index);
                self.credit(device);
            }
            Input::Corrupt { device, index } => {
                self.counts.corrupt_blocks += 1;
                if !self.over
                    && let Some(share) = self.devices.get_mut(&device)
                {
                    share.device.lost(index);
                    if share.release(index, self.plan.originals) {
                        self.orphan(&IndexRanges::from(index..index + 1));
                        self.settle(now);
                    }
                    self.credit(device);
                }
            }
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
        let retry = self.retry_at.values().min().copied();
        [Some(patience), retry, self.race_at].into_iter().flatten().min()
    }

    fn counts(&self) -> ReadDone {
        self.counts
    }
}
