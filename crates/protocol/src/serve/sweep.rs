//! The sweep of one device: what became of the segments it holds, and what is to be done about it (design.md,
//! decisions 4 and 6). It makes good a lost seal, frees what a dead writer left and what was removed.
//!
//! ```text
//!   Resting ──at its time──▶ Listing ──▶ Asking ⇄ Doing ──no more──▶ Resting
//! ```
//!
//! Each piece of a coded segment is an extent of its own here, asked about under its own name: what an amendment dropped
//! of it is trimmed though it was sealed before, and it is freed when its last block was dropped.
//!
//! A sealed extent that holds just what its layout lists is *in place*: most are, and only a removal or an amendment whose client
//! did not get to tell the device changes that. Each is asked about once in many sweeps, some of them in every sweep; what is new, was
//! not sealed, or lacks something, in each.
//!
//! A sweep that had no answer ends, and the next goes on behind the last extent that was answered: else those of a high name would
//! never have their turn where the metadata server is busy.
//!
//! Invariants: nothing is freed unless the metadata server said so of that very segment; an error, a short answer or
//! an older epoch frees nothing; what an answer had no room for is asked about again; extents younger than the minimum age are not asked about; one question and one
//! change are under way at most, so a sweep never floods a device.

use crate::{
    Epoch, IndexRanges, SegmentId, Time,
    message::{SEGMENT_STATES_BYTES_MAX, SEGMENT_STATES_MAX, SegmentState, encode},
};
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

/// Extents in place are asked about once in this time, in every sweep where those are as far apart, ...
const IN_PLACE_EVERY: Duration = Duration::from_secs(600);
/// ... or once in so many sweeps where that is sooner. Both picked by eye: that they are garbage or that blocks are lost is rare, and a
/// device has a million of them. What nobody told the device to free takes room so much longer.
const IN_PLACE_SWEEPS_MAX: u64 = 20;

/// When and what to sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepOptions {
    /// From the end of one sweep to the beginning of the next.
    pub interval: Duration,
    /// Extents that changed later than this are left alone.
    pub age_min: Duration,
}

/// What the device knows of one extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentFacts {
    /// The segment.
    pub segment: SegmentId,
    /// Whether it was sealed.
    pub sealed: bool,
    /// Blocks it holds.
    pub blocks: IndexRanges,
    /// The highest epoch it has seen.
    pub epoch: Epoch,
    /// Since it last changed.
    pub age: Duration,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepInput {
    /// Time passed.
    Tick,
    /// The extents asked for by [`SweepAction::List`]; absent where the device cannot list them now.
    Extents(Option<Vec<ExtentFacts>>),
    /// The answer to [`SweepAction::Ask`], in the order asked; absent where there was none.
    States(Option<Vec<SegmentState>>),
    /// The seal or delete is over, well or not; what failed is found again by the next sweep.
    Carried {
        /// Whether it went well.
        well: bool,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepAction {
    /// List the device's extents.
    List,
    /// Ask the metadata server what became of these segments.
    Ask {
        /// At most [`SEGMENT_STATES_MAX`].
        segments: Vec<SegmentId>,
    },
    /// Seal a segment, keeping just these blocks.
    Seal {
        /// The segment.
        segment: SegmentId,
        /// The blocks its layout lists here.
        keep: IndexRanges,
        /// The layout's epoch.
        epoch: Epoch,
    },
    /// Free a segment whole.
    Delete {
        /// The segment.
        segment: SegmentId,
        /// The epoch it was judged under: of a later one nothing is freed.
        epoch: Epoch,
    },
}

/// What sweeps did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepTotals {
    /// Sweeps that went through.
    pub sweeps: u64,
    /// Segments sealed or trimmed.
    pub sealed: u64,
    /// Segments freed.
    pub deleted: u64,
    /// Blocks that layouts list here and that the device did not hold at the last sweep that went through: repair's work.
    pub blocks_lost: u64,
    /// Questions without an answer and changes that failed.
    pub failed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Resting,
    Listing,
    Asking,
    Doing,
}

/// The sweep of one device.
#[derive(Clone, Debug)]
pub struct Sweep {
    options: SweepOptions,
    stage: Stage,
    next: Time,
    to_ask: VecDeque<ExtentFacts>,
    asked: Vec<ExtentFacts>,
    to_do: VecDeque<SweepAction>,
    action: Option<SweepAction>,
    /// Sealed extents that were in place when they were last asked about.
    in_place: BTreeSet<SegmentId>,
    /// The last extent that was answered, of a sweep that did not go through.
    answered: Option<SegmentId>,
    /// Blocks that this sweep missed so far.
    lost: u64,
    totals: SweepTotals,
}

impl Sweep {
    /// A sweep that begins one interval from now.
    pub fn new(now: Time, options: SweepOptions) -> Self {
        Self {
            options,
            stage: Stage::Resting,
            next: now + options.interval,
            to_ask: VecDeque::new(),
            asked: Vec::new(),
            to_do: VecDeque::new(),
            action: None,
            in_place: BTreeSet::new(),
            answered: None,
            lost: 0,
            totals: SweepTotals::default(),
        }
    }

    /// Something happened; see the crate's head for the contract. Answers to questions not asked are ignored.
    pub fn handle(&mut self, now: Time, input: SweepInput) {
        match (input, &self.stage) {
            (SweepInput::Tick, Stage::Resting) if now >= self.next => {
                self.stage = Stage::Listing;
                self.lost = 0;
                self.action = Some(SweepAction::List);
            }
            (SweepInput::Extents(Some(extents)), Stage::Listing) => {
                let stays = |extent: &&ExtentFacts| extent.sealed && self.in_place.contains(&extent.segment);
                self.in_place = extents.iter().filter(stays).map(|extent| extent.segment).collect();
                let due = extents.into_iter().filter(|extent| self.is_due(extent));
                let (next, others): (Vec<_>, Vec<_>) =
                    due.partition(|extent| Some(extent.segment) > self.answered);
                self.to_ask = next.into_iter().chain(others).collect();
                self.advance(now);
            }
            (SweepInput::Extents(None), Stage::Listing) => self.give_up(now),
            (SweepInput::States(states), Stage::Asking) => {
                let mut asked = core::mem::take(&mut self.asked);
                match states.filter(|states| states.len() == asked.len()) {
                    Some(states) => {
                        // Asked again first: fewer each time, for what filled the answer was told.
                        for extent in asked.drain(told(&states)..).rev() {
                            self.to_ask.push_front(extent);
                        }
                        self.answered = asked.last().map(|extent| extent.segment).or(self.answered);
                        for (extent, state) in asked.into_iter().zip(states) {
                            self.judge(extent, state);
                        }
                        self.advance(now);
                    }
                    // Nobody knows: no reason to ask on, and none to free anything.
                    None => self.give_up(now),
                }
            }
            (SweepInput::Carried { well }, Stage::Doing) => {
                self.totals.failed += u64::from(!well);
                self.advance(now);
            }
            _ => {}
        }
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<SweepAction> {
        self.action.take()
    }

    /// When to tick it.
    pub fn wake_at(&self) -> Option<Time> {
        (self.stage == Stage::Resting).then_some(self.next)
    }

    /// What sweeps did since the start.
    pub fn totals(&self) -> SweepTotals {
        self.totals
    }

    /// Whether an extent is to be asked about by this sweep. One that does not go through is made good for by the next, which
    /// asks about the same.
    fn is_due(&self, extent: &ExtentFacts) -> bool {
        let sweeps = IN_PLACE_EVERY.as_nanos() / self.options.interval.as_nanos().max(1);
        let sweeps = sweeps.clamp(1, IN_PLACE_SWEEPS_MAX.into()) as u64;
        let turn = extent.segment.0.wrapping_add(self.totals.sweeps).is_multiple_of(sweeps);
        extent.age >= self.options.age_min && (turn || !self.in_place.contains(&extent.segment))
    }

    fn judge(&mut self, extent: ExtentFacts, state: SegmentState) {
        let segment = extent.segment;
        self.in_place.remove(&segment);
        match state {
            SegmentState::Pending => {}
            SegmentState::Gone => {
                self.totals.deleted += 1;
                self.to_do.push_back(SweepAction::Delete { segment, epoch: extent.epoch });
            }
            // An answer about an older layout than the device has seen says nothing about now.
            SegmentState::Committed { epoch, .. } if epoch < extent.epoch => {}
            SegmentState::Committed { keep, epoch } => {
                let lost = keep.iter().filter(|&index| !extent.blocks.contains(index)).count();
                self.lost += lost as u64;
                if keep.is_empty() {
                    self.totals.deleted += 1;
                    self.to_do.push_back(SweepAction::Delete { segment, epoch: extent.epoch.max(epoch) });
                } else if !extent.sealed || extent.blocks.iter().any(|index| !keep.contains(index)) {
                    self.totals.sealed += 1;
                    self.to_do.push_back(SweepAction::Seal { segment, keep, epoch });
                } else if lost == 0 {
                    self.in_place.insert(segment);
                }
            }
        }
    }

    fn advance(&mut self, now: Time) {
        if let Some(action) = self.to_do.pop_front() {
            self.stage = Stage::Doing;
            self.action = Some(action);
        } else if self.to_ask.is_empty() {
            self.totals.sweeps += 1;
            self.totals.blocks_lost = self.lost;
            self.answered = None;
            self.rest(now);
        } else {
            let batch = self.to_ask.len().min(SEGMENT_STATES_MAX);
            self.asked = self.to_ask.drain(..batch).collect();
            self.stage = Stage::Asking;
            let segments = self.asked.iter().map(|extent| extent.segment).collect();
            self.action = Some(SweepAction::Ask { segments });
        }
    }

    fn give_up(&mut self, now: Time) {
        self.totals.failed += 1;
        self.rest(now);
    }

    fn rest(&mut self, now: Time) {
        self.to_ask.clear();
        self.stage = Stage::Resting;
        self.next = now + self.options.interval;
    }
}

/// How many of these states the metadata server has told: once it has no more room in an answer it says Pending of the rest,
/// whatever became of it.
fn told(states: &[SegmentState]) -> usize {
    let bytes: usize = states.iter().map(|state| encode(state).len()).sum();
    if bytes < SEGMENT_STATES_BYTES_MAX {
        return states.len();
    }
    states.iter().rposition(|state| *state != SegmentState::Pending).map_or(states.len(), |last| last + 1)
}
