//! Original blocks of a segment whose chunks change while it is read, or of which some are lost: all at one state, with what parity
//! logs hold ([`common`]).
//!
//! ```text
//!            all have answered                 a row is there
//!   Asking ───────────────────▶ data of a row ───────────────▶ next row, or done
//!     ▲  ▲                        │      │ some are lost          ▲
//!     │  └ too few, once          │      ▼                        │
//!     │                           │    parity of the row, at what the data shows
//!     └── one cannot be had so ───┴──────┘
//! ```
//!
//! A node that has no room to say what it holds is asked again when it says, too, unless nothing of its chunk is missing: for a while where the
//! others can make up for it, as those are not to be loaded at once with what is only slow, and for as long as for rows where not.
//!
//! Nobody is held up for it. Where a data chunk is lost, the others are read as they are, and parity at just the versions that
//! they show; of the lost chunks at what all parity that is read holds. Where parity never gets there (its node died before it heard),
//! every second attempt asks for the oldest state instead, which all that answered can give.
//!
//! Of more parity than chunks are lost that is read which holds the most of them: what was acknowledged all had, and one may have lost it
//! since. Of those that hold as much each has its turn, as one may lack what another chunk's node keeps no more; where that does not help
//! the others have theirs.
//!
//! A data chunk whose node knows that it lacks changes ([`NodeFault::LacksChanges`]) counts as lost as far as the others make up for it, as
//! behind a fence ([`Fence::without`](super::Fence::without)). Beyond that it is read as it is, at the state that it names: what it lacks is
//! lost. Not so for who ends what is read by it, while others may make up for it yet ([`Gather::up_to_date`]).
//!
//! Parity that lacks changes of a chunk that is lost would show that as it was once. Where its node says so it is not read; nor, behind a
//! fence, for chunks of which it has fewer changes than their own nodes named ([`Gather::at_least`]): those may only be late. A row that
//! lies there damaged is not late: it is decoded of parity that has what was named, and where too little has, of what there is.
//!
//! Invariants: every row is of one state; a chunk that failed [`FAILURES_MAX`] times is not read again, in that row alone where what lies
//! there is damaged or cannot be read (each of several disks may have one bad place), unless that is so again and again; but one that
//! only went on does not fail by it, nor one whose node has no room for it now; all that was asked is answered before anything else is
//! asked; it ends.
//!
//! Left out: the bytes, their checksums, and the decode.

use crate::{
    BlockIndex, DeviceId,
    layout::ParityGeometry,
    message::{ChunkVersions, Fault, NodeFault, RowsAt},
    read::{Cause, ReadError},
    serve::parity_log::{ChunkNumber, VersionsByChunk, common},
};
use core::{cmp::Reverse, ops::Range, time::Duration};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often nodes are asked for a common state: each time another was committed and merged, within some milliseconds.
const ATTEMPTS_MAX: u32 = 16;
/// So many attempts read parity that holds the most of what is lost: each of four has its turn for both kinds.
const FULLEST_ATTEMPTS: u32 = ATTEMPTS_MAX / 2;
/// A chunk that failed so often is left out; so often too few answer before that is said.
const FAILURES_MAX: u32 = 2;
/// A chunk of which reads of single rows failed so often together is left out of all: two rows, of which each was tried twice. Each is an
/// attempt, of which there are few, and a dead disk gives no row.
const BAD_ROWS_FAILURES_MAX: u32 = 2 * FAILURES_MAX;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// Nodes that refuse are waited for so long together, which is no attempt at another state. Picked by eye: a node that is busy has room
/// within a few of the times that it names.
const REFUSED_MAX: Duration = Duration::from_secs(5);
/// The same where the others make up for what they hold: about as long as a node that says nothing is waited for.
const SPARED_MAX: Duration = Duration::from_secs(2);
/// Each time so long at least: a node that names no time would be asked for ever.
const REFUSED_MIN: Duration = Duration::from_millis(1);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GatherInput {
    /// The answer to [`GatherAction::AskVersions`] for one chunk.
    Versions {
        /// The chunk, data or parity.
        chunk: u32,
        /// What its node holds; none where it does not answer.
        held: Option<ChunkVersions>,
    },
    /// The same answer: its node does not say what it holds, as it is known to lack changes.
    Lacks {
        /// The chunk.
        chunk: u32,
        /// What the node said.
        cause: Cause,
    },
    /// The same answer: its node has no room to say it now.
    Busy {
        /// The chunk.
        chunk: u32,
        /// When it makes sense to ask again.
        after: Duration,
    },
    /// The answer to [`GatherAction::Read`]: the rows are here, and intact.
    Row {
        /// The chunk.
        chunk: u32,
        /// Of a data chunk: the version that they show.
        version: u64,
    },
    /// The other answer to it: there are none, or they arrived damaged.
    Failed {
        /// The chunk.
        chunk: u32,
        /// Why.
        cause: Cause,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GatherAction {
    /// Ask the nodes of all chunks which versions they hold, after a pause; what was read before is forgotten.
    AskVersions {
        /// For so long.
        after: Duration,
    },
    /// Read the block of a chunk in a row.
    Read {
        /// The chunk, data or parity.
        chunk: u32,
        /// The block's number within it.
        row: u32,
        /// At this state.
        at: RowsAt,
    },
    /// All that was asked of a row is here, and of one state.
    Row {
        /// Which.
        row: u32,
        /// The data chunks of which it is wanted.
        wanted: Vec<u32>,
        /// Those of them that are to be decoded of all that was read of the row.
        lost: Vec<u32>,
    },
    /// All rows are here. The last action.
    Done,
    /// They cannot be had. The last action.
    Failed(ReadError),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Which versions nodes hold, as far as they have answered.
    Asking(BTreeMap<u32, Option<ChunkVersions>>),
    Reading(Reading),
    Over,
}

/// What parity is to have at least of each lost chunk.
type VersionsOfLost = Vec<(u32, u64)>;

/// What is read of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Choice {
    /// The lowest versions that any of the nodes named.
    oldest: VersionsByChunk,
    /// Data chunks that are read.
    data: Vec<u32>,
    /// Parity chunks that stand in for the others, as many.
    parity: Vec<u32>,
}

/// How often a chunk could not be read although its node had answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failures {
    /// For any other reason than what lies in a row.
    times: u32,
    /// By row, because of what lies there.
    rows: BTreeMap<u32, u32>,
    /// Why last.
    cause: Cause,
}

/// An attempt at one state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reading {
    usual: Choice,
    /// Of rows that some chunk is left out of.
    apart: BTreeMap<u32, Choice>,
    row: u32,
    /// What data chunks showed in this row.
    shown: VersionsByChunk,
    /// Whether parity was asked.
    of_parity: bool,
    /// Who has not answered.
    waiting: BTreeSet<u32>,
    /// Whether one could not be had.
    broken: bool,
    /// When the last of those is to be asked again that only had no room for it.
    refused: Option<Duration>,
}

impl Reading {
    /// What is read of the row in hand.
    fn choice(&self) -> &Choice {
        self.apart.get(&self.row).unwrap_or(&self.usual)
    }
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    shape: ParityGeometry,
    holders: Vec<DeviceId>,
    /// Nothing is read of these chunks.
    excluded: BTreeSet<u32>,
    wanted: Range<BlockIndex>,
    /// Whether what lacks changes is read as it is where the others do not make up for it.
    as_it_is: bool,
    attempt: u32,
    step: Step,
    /// Changes of data chunks that parity is to have at least where it stands in for them.
    least: VersionsByChunk,
    /// By chunk.
    failed: BTreeMap<u32, Failures>,
    /// Chunks that lack changes, and what their nodes said of that.
    lacking: BTreeMap<u32, Cause>,
    /// How often too few chunks were to be had.
    short: u32,
    /// When the last of the nodes is to be asked again that had no room to say what they hold.
    busy: Option<Duration>,
    /// How long nodes that refused were waited for.
    refused_for: Duration,
    actions: VecDeque<GatherAction>,
}

impl Gather {
    /// Gathers the original blocks `wanted` of a segment whose chunks lie on these devices, in the chunks' order. Nothing is read of
    /// devices `excluded`.
    pub fn new(
        shape: ParityGeometry,
        holders: &[DeviceId],
        excluded: &BTreeSet<DeviceId>,
        wanted: Range<BlockIndex>,
    ) -> Self {
        let is_excluded =
            |chunk: &u32| holders.get(*chunk as usize).is_none_or(|holder| excluded.contains(holder));
        Self {
            shape,
            holders: holders.to_vec(),
            excluded: (0..shape.chunks).filter(is_excluded).collect(),
            wanted,
            as_it_is: true,
            attempt: 0,
            step: Step::Asking(BTreeMap::new()),
            least: VersionsByChunk::new(),
            failed: BTreeMap::new(),
            lacking: BTreeMap::new(),
            short: 0,
            busy: None,
            refused_for: Duration::ZERO,
            actions: VecDeque::from([GatherAction::AskVersions { after: Duration::ZERO }]),
        }
    }

    /// The same, which fails where it would read as it is what lacks changes.
    pub fn up_to_date(self) -> Self {
        Self { as_it_is: false, ..self }
    }

    /// The same, of which parity that has fewer changes of a data chunk than these does not stand in for that
    /// ([`Fence::ahead`](super::Fence::ahead)).
    pub fn at_least(self, least: VersionsByChunk) -> Self {
        Self { least, ..self }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<GatherAction> {
        self.actions.pop_front()
    }

    /// Tells it what happened; then [`Gather::poll`] until `None`.
    pub fn handle(&mut self, input: GatherInput) {
        match input {
            GatherInput::Versions { chunk, held } => self.answered(chunk, held),
            GatherInput::Lacks { chunk, cause } => {
                self.lacking.insert(chunk, cause);
                self.answered(chunk, None);
            }
            GatherInput::Busy { chunk, after } => {
                if let Step::Asking(_) = &self.step {
                    self.busy = self.busy.max(Some(after));
                }
                self.answered(chunk, None);
            }
            GatherInput::Row { chunk, version } => {
                let Step::Reading(reading) = &mut self.step else { return };
                if reading.waiting.remove(&chunk) {
                    if chunk < self.shape.data {
                        reading.shown.insert(chunk as ChunkNumber, version);
                    }
                    self.go_on();
                }
            }
            GatherInput::Failed { chunk, cause } => {
                let Step::Reading(reading) = &mut self.step else { return };
                if reading.waiting.remove(&chunk) {
                    if let Cause::Fault(Fault::Refused { retry_after_ms, .. }) = cause {
                        let after = Duration::from_millis(retry_after_ms.into());
                        reading.refused = reading.refused.max(Some(after));
                        return self.go_on();
                    }
                    reading.broken = true;
                    if cause.lacks_changes() {
                        self.lacking.insert(chunk, cause);
                    } else if !passes(&cause) {
                        let none = || Failures { times: 0, rows: BTreeMap::new(), cause: cause.clone() };
                        let failed = self.failed.entry(chunk).or_insert_with(none);
                        match is_of_the_row(&cause) {
                            true => *failed.rows.entry(reading.row).or_default() += 1,
                            false => failed.times += 1,
                        }
                        failed.cause = cause;
                    }
                    self.go_on();
                }
            }
        }
    }

    fn answered(&mut self, chunk: u32, held: Option<ChunkVersions>) {
        let Step::Asking(versions) = &mut self.step else { return };
        versions.insert(chunk, held);
        if versions.len() == self.shape.chunks as usize {
            let versions = core::mem::take(versions);
            self.choose(&versions);
        }
    }

    /// Chooses what is read, of those that answered.
    fn choose(&mut self, versions: &BTreeMap<u32, Option<ChunkVersions>>) {
        let rows = self.failed.values().flat_map(|failed| &failed.rows);
        let bad = rows.filter(|(_, times)| **times >= FAILURES_MAX).map(|(row, _)| *row);
        let apart: Option<BTreeMap<u32, Choice>> =
            bad.map(|row| Some((row, self.chosen(versions, Some(row))?))).collect();
        let chosen = self.chosen(versions, None).zip(apart);
        if let Some(after) = self.busy.take() {
            let all = chosen.iter().flat_map(|(usual, apart)| apart.values().chain([usual]));
            let most = all.map(|choice| self.spared_for(choice)).max().unwrap_or(REFUSED_MAX);
            if self.refused_for + after < most {
                return self.later(after);
            }
        }
        let Some((usual, apart)) = chosen else {
            self.short += 1;
            return if self.short < FAILURES_MAX { self.again() } else { self.give_up() };
        };
        let (shown, waiting) = Default::default();
        self.step = Step::Reading(Reading {
            usual,
            apart,
            row: 0,
            shown,
            of_parity: false,
            waiting,
            broken: false,
            refused: None,
        });
        self.ask_data(0);
    }

    /// What is read of a row, or of those that no chunk is left out of; none where too few chunks are there for that.
    fn chosen(&self, versions: &BTreeMap<u32, Option<ChunkVersions>>, row: Option<u32>) -> Option<Choice> {
        let shape = self.shape;
        let of = |chunk: &u32| versions.get(chunk).and_then(Option::as_ref);
        let lives = |chunk: &u32| {
            of(chunk).is_some() && !self.excluded.contains(chunk) && !self.is_left_out(*chunk, row)
        };
        let mut data: Vec<u32> = (0..shape.data).filter(lives).collect();
        let mut parity: Vec<u32> = (shape.data..shape.chunks).filter(lives).collect();
        parity.retain(|chunk| !self.lacking.contains_key(chunk));
        let spare = match self.as_it_is {
            true => (data.len() + parity.len()).saturating_sub(shape.data as usize),
            false => data.len(),
        };
        let outdated: Vec<u32> =
            data.iter().copied().filter(|chunk| self.lacking.contains_key(chunk)).collect();
        data.retain(|chunk| !outdated.iter().take(spare).any(|other| other == chunk));
        let lost: Vec<u32> = (0..shape.data).filter(|chunk| !data.contains(chunk)).collect();
        let held = |parity: u32, lost: u32| -> u64 {
            let held = of(&parity).into_iter().flat_map(|versions| &versions.held);
            held.filter(|(of, _)| u32::from(*of) == lost).map(|(_, version)| *version).max().unwrap_or(0)
        };
        // Of lost chunks that nobody wants all parity is asked for the same, whatever it lacks.
        let decoded = lost.iter().filter(|chunk| self.is_wanted(**chunk));
        let least = decoded.filter_map(|&chunk| Some((chunk, *self.least.get(&(chunk as ChunkNumber))?)));
        let (damaged, late): (VersionsOfLost, VersionsOfLost) =
            least.partition(|&(chunk, _)| self.is_damaged(chunk, row));
        let has = |chunk: &u32, least: &VersionsOfLost| {
            least.iter().all(|&(lost, version)| held(*chunk, lost) >= version)
        };
        parity.retain(|chunk| has(chunk, &late));
        if parity.iter().filter(|&chunk| has(chunk, &damaged)).count() >= lost.len() {
            parity.retain(|chunk| has(chunk, &damaged));
        }
        if parity.len() < lost.len() {
            return None;
        }
        // Both kinds of attempt of one choice, then the next.
        let turn = (self.attempt / 2) as usize % parity.len().max(1);
        parity.rotate_left(turn);
        if self.attempt < FULLEST_ATTEMPTS {
            let held_of_lost =
                |chunk: u32| -> u128 { lost.iter().map(|&lost| u128::from(held(chunk, lost))).sum() };
            parity.sort_by_key(|&chunk| Reverse(held_of_lost(chunk)));
        }
        parity.truncate(lost.len());
        parity.sort_unstable();
        let held: Vec<VersionsByChunk> =
            parity.iter().filter_map(of).map(|versions| versions.held.iter().copied().collect()).collect();
        let named = data.iter().filter_map(|chunk| Some((*chunk as ChunkNumber, of(chunk)?.version)));
        let oldest = common(named, &held, shape.data as ChunkNumber);
        Some(Choice { oldest, data, parity })
    }

    /// How long nodes are waited for that had no room to say what they hold, where this would be read without them.
    fn spared_for(&self, choice: &Choice) -> Duration {
        let lacks = |chunk: &u32| self.lacking.contains_key(chunk);
        let mut wanted = (0..self.shape.data).filter(|chunk| self.is_wanted(*chunk));
        match choice.data.iter().any(lacks) {
            // They may make up for what it lacks.
            true => REFUSED_MAX,
            false if wanted.all(|chunk| choice.data.contains(&chunk)) => Duration::ZERO,
            false => SPARED_MAX,
        }
    }

    /// Whether a chunk is read no more, in a row or at all.
    fn is_left_out(&self, chunk: u32, row: Option<u32>) -> bool {
        let failed = self.failed.get(&chunk);
        failed.is_some_and(|failed| failed.times >= FAILURES_MAX) || self.is_damaged(chunk, row)
    }

    /// Whether it is so because of what lies there.
    fn is_damaged(&self, chunk: u32, row: Option<u32>) -> bool {
        self.failed.get(&chunk).is_some_and(|failed| {
            let in_row = row.and_then(|row| failed.rows.get(&row));
            in_row.is_some_and(|times| *times >= FAILURES_MAX)
                || failed.rows.values().sum::<u32>() >= BAD_ROWS_FAILURES_MAX
        })
    }

    /// Whether any block of a data chunk is wanted.
    fn is_wanted(&self, chunk: u32) -> bool {
        let blocks = self.shape.blocks_of(chunk);
        blocks.start < self.wanted.end && self.wanted.start < blocks.end
    }

    /// The data chunks of which a row is wanted.
    fn wanted_of(&self, row: u32) -> Vec<u32> {
        let is_wanted = |chunk: &u32| self.wanted.contains(&(chunk * self.shape.blocks + row));
        (0..self.shape.data).filter(is_wanted).collect()
    }

    /// Asks data chunks for the first row that is wanted, from this one on.
    fn ask_data(&mut self, from: u32) {
        let row = (from..self.shape.blocks).find(|row| !self.wanted_of(*row).is_empty());
        let wanted = row.map(|row| self.wanted_of(row));
        // From the newest state; and from the oldest that all have, where parity will never get the newest.
        let newest = self.attempt.is_multiple_of(2);
        let Step::Reading(reading) = &mut self.step else { return };
        let Some((row, wanted)) = row.zip(wanted) else {
            self.step = Step::Over;
            return self.actions.push_back(GatherAction::Done);
        };
        reading.row = row;
        let choice = reading.choice();
        let complete = wanted.iter().all(|chunk| choice.data.contains(chunk));
        let sources = if complete { wanted } else { choice.data.clone() };
        for &chunk in &sources {
            let at = match (newest || complete) && !self.lacking.contains_key(&chunk) {
                true => RowsAt::Newest,
                false => RowsAt::Data(choice.oldest.get(&(chunk as ChunkNumber)).copied().unwrap_or(0)),
            };
            self.actions.push_back(GatherAction::Read { chunk, row, at });
        }
        reading.of_parity = complete;
        reading.shown.clear();
        reading.waiting = sources.into_iter().collect();
        // All data chunks are lost.
        self.go_on();
    }

    /// What comes after all answers.
    fn go_on(&mut self) {
        let Step::Reading(reading) = &mut self.step else { return };
        if !reading.waiting.is_empty() {
            return;
        }
        if reading.broken {
            return self.again();
        }
        if let Some(after) = reading.refused {
            return self.later(after.max(PAUSE));
        }
        let (row, choice) = (reading.row, reading.choice());
        if !reading.of_parity {
            // Just what the data shows, and of the lost what all of parity has.
            let mut state = choice.oldest.clone();
            state.extend(reading.shown.iter().map(|(chunk, version)| (*chunk, *version)));
            let shape = self.shape;
            for &chunk in &choice.parity {
                // At most 255 chunks.
                let at = RowsAt::Parity {
                    data: shape.data as u16,
                    parity: shape.parity() as u16,
                    number: (chunk - shape.data) as u16,
                    versions: state.iter().map(|(chunk, version)| (*chunk, *version)).collect(),
                };
                self.actions.push_back(GatherAction::Read { chunk, row, at });
            }
            reading.waiting = choice.parity.iter().copied().collect();
            reading.of_parity = true;
            return;
        }
        let data = choice.data.clone();
        let wanted = self.wanted_of(row);
        let lost = wanted.iter().copied().filter(|chunk| !data.contains(chunk)).collect();
        self.actions.push_back(GatherAction::Row { row, wanted, lost });
        self.ask_data(row + 1);
    }

    /// Asks for the same once those that refused may have room.
    fn later(&mut self, after: Duration) {
        let after = after.max(REFUSED_MIN);
        self.refused_for += after;
        if self.refused_for > REFUSED_MAX {
            return self.again();
        }
        self.step = Step::Asking(BTreeMap::new());
        self.actions.push_back(GatherAction::AskVersions { after });
    }

    /// Asks for another state.
    fn again(&mut self) {
        self.attempt += 1;
        if self.attempt == ATTEMPTS_MAX {
            // Enough answered, the last time perhaps not.
            return self.fail(ReadError::Unsettled { attempts: self.attempt });
        }
        self.step = Step::Asking(BTreeMap::new());
        self.actions.push_back(GatherAction::AskVersions { after: PAUSE });
    }

    fn give_up(&mut self) {
        let failed = self.failed.iter().filter(|(chunk, _)| !self.lacking.contains_key(chunk));
        let failed = self.lacking.iter().chain(failed.map(|(chunk, failed)| (chunk, &failed.cause)));
        let failed =
            failed.filter_map(|(chunk, cause)| Some((*self.holders.get(*chunk as usize)?, cause.clone())));
        let too_few = ReadError::NotEnough {
            missing: self.wanted.end - self.wanted.start,
            originals: self.shape.originals(),
            reachable: 0,
            devices: self.shape.chunks,
            failed: failed.collect(),
        };
        self.fail(too_few);
    }

    fn fail(&mut self, error: ReadError) {
        self.step = Step::Over;
        self.actions.push_back(GatherAction::Failed(error));
    }
}

/// Whether it is because of what lies in the row that was asked for: it is damaged, or the medium does not give it.
fn is_of_the_row(cause: &Cause) -> bool {
    let Cause::Fault(fault) = cause else { return false };
    matches!(fault, Fault::Protocol(_) | Fault::Node(NodeFault::Medium { .. } | NodeFault::Invalid(_)))
}

/// Whether a chunk is asked again, however often it says so: one that went on. One that is gone or damaged is left out.
fn passes(cause: &Cause) -> bool {
    matches!(cause, Cause::Fault(Fault::Node(NodeFault::Overtaken { .. })))
}
