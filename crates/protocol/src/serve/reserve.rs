//! The space reserved behind each parity chunk of a device for deltas: how much, and what is given back when (parity
//! logging with reserved space, PLR §4.2.2, Algorithm 1).
//!
//! A chunk begins with a default reserve, large enough for all deltas. At the end of each period its utility, the
//! part of the reserve that was used, is smoothed, `u = α·use/r + (1 − α)·u'`, and what the next period will not need
//! is given back in whole chunks, so that a whole chunk can lie there: `c = ⌊(1 − u)·r / chunk⌋·chunk`. The log is
//! merged into the parity, so that the next period begins with all that is left. A chunk without reserve is updated
//! in place.
//!
//! ```text
//!            period's end            deltas in the log           Merged, and c > 0
//!   Resting ─────────────▶ Looking ────────────────────▶ Merging ────────────────▶ Shrinking
//!      ▲                   │ ▲  └───── c > 0, empty log, or shrink only ─────────────▲   │
//!      └──────no chunk left┘ └──────────────────── Shrunk, Failed, Deleted ──────────────┘
//! ```
//!
//! Where the paper leaves a choice, or ours is another:
//!
//! - *Order.* The paper shrinks, then merges. A log in use cannot be cut, so ours merges first; `c` is reckoned
//!   before either, so the reserve and the empty log afterwards are the paper's. Deltas that arrive meanwhile are
//!   kept: their room is not given back in this period.
//! - *Use.* The bytes logged in the period, with what the log held when it began (which only *shrink only* carries
//!   over), at most `r`: the paper's utility is "the fraction of reserved space being used", so 1 is the most,
//!   however often a full log was merged on the way. Without that bound one burst would count for many periods and
//!   `c` would be negative, which is growth, and the paper has none. Counting what was logged rather than what the
//!   log holds at the end is what makes a chunk that was merged a moment before the period's end busy, which it is.
//! - *The first utility* is 1 ([`UTILITY_FIRST`]): the default is "sufficiently large to hold all parity deltas", and
//!   nothing is known against it. With 0 a chunk that is made a second before a period's end loses all of it.
//! - *Nothing left to predict.* With any `u` above zero the paper's formula keeps the last chunk for ever, and with it
//!   the whole of a reserve that is one chunk, as a bucket's is by default. Where the use that is predicted is less
//!   than the smallest delta, no delta is predicted, and all of it is given back
//!   ([`ReserveOptions::delta_bytes_min`]; 0 is the formula as printed). What is predicted is `u·r` at first. But the
//!   first utility is no measurement: after `t` periods it weighs `w = (1 − α)^t` in `u`, and once that is less than a
//!   quarter (`FIRST_WEIGHT_MIN`) the prediction is what was measured alone, `(u − w·u₀) / (1 − w) · r`.
//! - *The unit* stays the chunk, as in the paper, also where the reserve is only one: in what came back piece by piece
//!   no chunk could lie, and a log that is a piece of a small chunk would not take every change
//!   ([`crate::policy::reserve_least_bytes`]).
//!
//! With the defaults (α = 0.3, a period of twelve hours, a reserve of one chunk) `w` is 0.24 after four periods: the
//! reserve of a segment that is never updated is back at the fourth end of a period after it was made, when its
//! node has run for 36 to 48 hours. By the first utility that would take twenty periods for a chunk of 4 MiB, ten days in which
//! parity takes twice its room. A reserve of 4 MiB that was used whole once, at first, and never again is back after eighteen.
//!
//! Invariants: a reserve is a multiple of its chunk's size, never grows, and is never less than what its log holds;
//! one action is under way at most; a call looks at [`LOOK_MAX`] chunks at most, so that a period's end with a
//! million chunks is many short steps. Utilities are counted in billionths, rounded up, so that every machine decides
//! the same.
//!
//! What is known of a chunk's use outlives a restart where the driver keeps it ([`Reserve::use_of`], [`Reserve::left`])
//! and gives it back ([`ReserveInput::Found`], [`Reserve::resumed`]). A chunk of which nothing was kept begins at the
//! first utility, which keeps space longer than needed and loses none.
//!
//! Left out: growth of a reserve, as in the paper. A chunk made while a period's end is being worked through may be
//! looked at by it.

use super::parity_log::Mode;
use crate::{BlockIndex, SegmentId, Time};
use core::{
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// The paper's smoothing factor (§6.3.2).
pub const SMOOTHING: f64 = 0.3;
/// The paper's period (§6.3.2): at 00:00 and 12:00 of each day.
pub const PERIOD: Duration = Duration::from_secs(12 * 3600);
/// The paper's reserve on the first day (§6.3.2).
pub const RESERVE_FIRST_BYTES: u64 = 16 << 20;
/// A chunk's utility before its first period; the module's head says why.
pub const UTILITY_FIRST: f64 = 1.0;
/// The smallest delta: one granule of checksums of a parity chunk (design.md, decision 2).
pub const DELTA_BYTES_MIN: u32 = 4096;
/// Chunks that one call looks at, at most. Picked by eye: short beside any request to a disk.
pub const LOOK_MAX: usize = 1024;
/// A utility of 1.
const WHOLE: u64 = 1_000_000_000;
/// In billionths: where the first utility weighs less in the smoothed one, what was measured is enough to go by. Picked by eye: at
/// α = 0.3 that is at the fourth period's end, after 36 hours at least in which it could be updated, and the formula has taken an
/// untouched reserve of eight chunks to one by then.
const FIRST_WEIGHT_MIN: u64 = WHOLE / 4;

/// One parity chunk of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReservedChunk {
    /// The segment.
    pub segment: SegmentId,
    /// The chunk's index in it.
    pub index: BlockIndex,
}

/// What is known of the use of a chunk's reserve: to be kept while its driver is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveUse {
    /// When the last period ended, in billionths.
    utility: u32,
    /// What the first utility weighs in that, in billionths.
    first_weight: u32,
    /// Logged since then and carried over from before.
    used_bytes: u32,
}

/// What happens to reserves at a period's end (§6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservePolicy {
    /// What is not needed is given back, and every log is merged.
    ShrinkAndMerge,
    /// What is not needed is given back; logs keep their deltas.
    ShrinkOnly,
    /// Nothing.
    Fixed,
}

/// How reserves are managed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReserveOptions {
    /// What happens at a period's end.
    pub policy: ReservePolicy,
    /// The reserve of a new chunk: the nearest multiple of the chunk's size, one at least.
    pub first_bytes: u64,
    /// The weight of the latest period in the utility, above 0, at most 1.
    pub smoothing: f64,
    /// A chunk's utility before its first period, 0 to 1.
    pub utility_first: f64,
    /// From one look at all chunks to the next.
    pub period: Duration,
    /// Predicted use below this is none; 0 is the paper's formula as printed.
    pub delta_bytes_min: u32,
}

impl Default for ReserveOptions {
    fn default() -> Self {
        Self {
            policy: ReservePolicy::ShrinkAndMerge,
            first_bytes: RESERVE_FIRST_BYTES,
            smoothing: SMOOTHING,
            utility_first: UTILITY_FIRST,
            period: PERIOD,
            delta_bytes_min: DELTA_BYTES_MIN,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveInput {
    /// A parity chunk was made; [`Reserve::reserved_bytes`] then says how much to reserve.
    Created {
        /// Which.
        chunk: ReservedChunk,
        /// Its size.
        chunk_bytes: u32,
    },
    /// A parity chunk was there when the device was opened.
    Found {
        /// Which.
        chunk: ReservedChunk,
        /// Its size.
        chunk_bytes: u32,
        /// Its reserve, a multiple of that.
        reserved_bytes: u64,
        /// What its log holds.
        held_bytes: u64,
        /// What [`Reserve::use_of`] said of it when it was last asked; none where nobody knows.
        before: Option<ReserveUse>,
    },
    /// A delta went to the chunk's log; [`Reserve::room_bytes`] said that it fits.
    Appended {
        /// Which.
        chunk: ReservedChunk,
        /// What it takes of the log.
        bytes: u32,
    },
    /// What became of the chunk's log since it was last told of, where not every delta is told: what it took altogether, and
    /// what it holds now.
    Seen {
        /// Which.
        chunk: ReservedChunk,
        /// Bytes of all deltas that went to it since.
        logged_bytes: u64,
        /// Bytes that it holds.
        held_bytes: u64,
    },
    /// The chunk's log was merged: on the way of an update that did not fit, or because it was asked for.
    Merged {
        /// Which.
        chunk: ReservedChunk,
        /// What the log still holds: deltas that came while it was merged or were not committed yet.
        left_bytes: u64,
    },
    /// The space of [`ReserveAction::Shrink`] was given back.
    Shrunk {
        /// Which.
        chunk: ReservedChunk,
    },
    /// The space of [`ReserveAction::Shrink`] was not given back: the chunk's reserve is of use from so many bytes on, and keeps as many
    /// or none.
    Least {
        /// Which.
        chunk: ReservedChunk,
        /// Bytes.
        least_bytes: u64,
    },
    /// The action asked for of this chunk failed; it is looked at again when the next period ends.
    Failed {
        /// Which.
        chunk: ReservedChunk,
    },
    /// The chunk was freed with its reserve.
    Deleted {
        /// Which.
        chunk: ReservedChunk,
    },
    /// Time passed.
    Tick,
}

/// What to do; answered with [`ReserveInput::Merged`], [`ReserveInput::Shrunk`], [`ReserveInput::Least`] or [`ReserveInput::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveAction {
    /// Merge the log into its parity, off the way of updates.
    Merge {
        /// Which.
        chunk: ReservedChunk,
    },
    /// Give the end of the reserve back; nothing of the log lies there, and no delta may go there from now on.
    Shrink {
        /// Which.
        chunk: ReservedChunk,
        /// What stays reserved.
        to_bytes: u64,
    },
}

/// What was refused, and changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum ReserveError {
    /// An option is out of its range.
    #[error("{option} is {value}: it must be {range}")]
    Option {
        /// Which.
        option: &'static str,
        /// What it was.
        value: f64,
        /// What it can be.
        range: &'static str,
    },
    /// A chunk of that name is there.
    #[error("parity chunk {chunk:?} is there already")]
    Known {
        /// Which.
        chunk: ReservedChunk,
    },
    /// A chunk's numbers do not go together.
    #[error(
        "a parity chunk of {chunk_bytes} bytes cannot have {reserved_bytes} reserved and {held_bytes} of them in use: \
         the reserve is a multiple of the chunk below 4 GiB, and holds its log"
    )]
    Size {
        /// The chunk's size.
        chunk_bytes: u32,
        /// Its reserve.
        reserved_bytes: u64,
        /// What the log is to hold.
        held_bytes: u64,
    },
    /// A delta does not fit the log: merge it first, or update in place.
    #[error("a delta of {bytes} bytes does not fit the {room_bytes} left in the log of {chunk:?}")]
    NoRoom {
        /// Which.
        chunk: ReservedChunk,
        /// The delta.
        bytes: u32,
        /// What is free.
        room_bytes: u64,
    },
}

/// What is kept of a chunk that has a reserve.
#[derive(Clone, Copy, Debug)]
struct Entry {
    chunk_bytes: u32,
    reserved_chunks: u32,
    /// In the log.
    held_bytes: u32,
    /// Logged in this period and carried over from the last; beyond the largest reserve it does not matter how much.
    used_bytes: u32,
    /// In billionths.
    utility: u32,
    /// What the first utility weighs in it, in billionths.
    first_weight: u32,
    /// It has as many chunks reserved, or none.
    least_chunks: u32,
}

impl Entry {
    fn reserved_bytes(&self) -> u64 {
        u64::from(self.chunk_bytes) * u64::from(self.reserved_chunks)
    }

    /// The period's end: the new utility, and how many chunks are not needed.
    fn judge(&mut self, rules: &Rules) -> u32 {
        let reserved = self.reserved_bytes();
        let used = u64::from(self.used_bytes).min(reserved);
        // Each factor is below 2^32, their product below 2^64, and only the sum needs more.
        let latest = u128::from(rules.smoothing) * u128::from(used * WHOLE).div_ceil(reserved.into());
        let before = u128::from(WHOLE - rules.smoothing) * u128::from(self.utility);
        let utility = ((latest + before).div_ceil(WHOLE.into()) as u64).min(WHOLE);
        self.utility = utility as u32;
        let first_weight = ((WHOLE - rules.smoothing) * u64::from(self.first_weight)).div_ceil(WHOLE);
        self.first_weight = first_weight as u32;
        // The share that is predicted to be used, and of how many parts.
        let (predicted, parts) = if first_weight < FIRST_WEIGHT_MIN {
            let first = first_weight * rules.utility_first / WHOLE;
            (utility.saturating_sub(first), WHOLE - first_weight)
        } else {
            (utility, WHOLE)
        };
        if predicted * reserved < u64::from(rules.delta_bytes_min) * parts {
            return self.reserved_chunks;
        }
        ((WHOLE - utility) * u64::from(self.reserved_chunks) / WHOLE) as u32
    }

    /// What is reserved when `spare` chunks are given back, or as many of them as hold nothing of the log; none where
    /// that are none.
    fn without(&self, spare: u32) -> Option<u32> {
        let least = match self.reserved_chunks - spare {
            0 => 0,
            _ => self.least_chunks,
        };
        let left = (self.reserved_chunks - spare).max(least).max(self.held_bytes.div_ceil(self.chunk_bytes));
        (left < self.reserved_chunks).then_some(left)
    }
}

/// The options that judging needs, checked.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// In billionths.
    smoothing: u64,
    /// In billionths.
    utility_first: u64,
    delta_bytes_min: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Resting,
    /// At the chunks behind this one.
    Looking {
        after: Option<ReservedChunk>,
    },
    Merging {
        chunk: ReservedChunk,
        spare_chunks: u32,
    },
    /// Merged as asked; what is spare is given back next.
    Merged {
        chunk: ReservedChunk,
        spare_chunks: u32,
    },
    Shrinking {
        chunk: ReservedChunk,
        from_chunks: u32,
    },
}

/// The reserves of one device.
#[derive(Clone, Debug)]
pub struct Reserve {
    policy: ReservePolicy,
    first_bytes: u64,
    period: Duration,
    rules: Rules,
    /// Chunks that have a reserve.
    chunks: BTreeMap<ReservedChunk, Entry>,
    total_bytes: u64,
    stage: Stage,
    now: Time,
    next: Time,
}

impl Reserve {
    /// Reserves whose first period begins now.
    ///
    /// # Errors
    /// Names the option that is out of its range.
    pub fn new(now: Time, options: ReserveOptions) -> Result<Self, ReserveError> {
        let check = |option, value, good, range| match good {
            true => Ok(()),
            false => Err(ReserveError::Option { option, value, range }),
        };
        let ReserveOptions { smoothing, utility_first, period, .. } = options;
        check("smoothing", smoothing, smoothing > 0.0 && smoothing <= 1.0, "above 0 and at most 1")?;
        check("utility_first", utility_first, (0.0..=1.0).contains(&utility_first), "0 to 1")?;
        check("period", period.as_secs_f64(), !period.is_zero(), "longer than nothing")?;
        let billionths = |share: f64| (share * WHOLE as f64).round() as u64;
        Ok(Self {
            policy: options.policy,
            first_bytes: options.first_bytes,
            period,
            rules: Rules {
                // The smallest that is above zero.
                smoothing: billionths(smoothing).max(1),
                utility_first: billionths(utility_first),
                delta_bytes_min: options.delta_bytes_min,
            },
            chunks: BTreeMap::new(),
            total_bytes: 0,
            stage: Stage::Resting,
            now,
            next: now + period,
        })
    }

    /// The same where the first period is one that was under way before: it ends `left` from now, a whole period from now at most.
    pub fn resumed(self, left: Duration) -> Self {
        let next = self.now + left.min(self.period);
        Self { next, ..self }
    }

    /// Something happened; see the crate's head for the contract. Answers to actions that are not under way are
    /// ignored.
    ///
    /// # Errors
    /// What was refused and why; nothing has changed then.
    pub fn handle(&mut self, now: Time, input: ReserveInput) -> Result<(), ReserveError> {
        self.now = self.now.max(now);
        match input {
            ReserveInput::Created { chunk, chunk_bytes } => {
                let size = u64::from(chunk_bytes);
                let reserved = nearest_multiple(self.first_bytes, size);
                self.add(chunk, chunk_bytes, reserved, 0, None)?;
            }
            ReserveInput::Found { chunk, chunk_bytes, reserved_bytes, held_bytes, before } => {
                self.add(chunk, chunk_bytes, reserved_bytes, held_bytes, before)?;
            }
            ReserveInput::Appended { chunk, bytes } => {
                let room_bytes = self.room_bytes(chunk);
                let entry = self.chunks.get_mut(&chunk).filter(|_| u64::from(bytes) <= room_bytes);
                let entry = entry.ok_or(ReserveError::NoRoom { chunk, bytes, room_bytes })?;
                entry.held_bytes += bytes;
                entry.used_bytes = entry.used_bytes.saturating_add(bytes);
            }
            ReserveInput::Seen { chunk, logged_bytes, held_bytes } => {
                self.held(chunk, held_bytes)?;
                if let Some(entry) = self.chunks.get_mut(&chunk) {
                    let logged = u32::try_from(logged_bytes).unwrap_or(u32::MAX);
                    entry.used_bytes = entry.used_bytes.saturating_add(logged);
                }
            }
            ReserveInput::Merged { chunk, left_bytes } => self.merged(chunk, left_bytes)?,
            ReserveInput::Shrunk { chunk } => {
                if matches!(self.stage, Stage::Shrinking { chunk: asked, .. } if asked == chunk) {
                    if self.reserved_bytes(chunk) == 0 {
                        self.chunks.remove(&chunk);
                    }
                    self.stage = Stage::Looking { after: Some(chunk) };
                }
            }
            ReserveInput::Least { chunk, least_bytes } => {
                if let Some(entry) = self.chunks.get_mut(&chunk) {
                    let chunks = least_bytes.div_ceil(entry.chunk_bytes.into());
                    entry.least_chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
                }
                self.failed(chunk);
            }
            ReserveInput::Failed { chunk } => self.failed(chunk),
            ReserveInput::Deleted { chunk } => {
                if let Some(entry) = self.chunks.remove(&chunk) {
                    self.total_bytes -= entry.reserved_bytes();
                }
                match self.stage {
                    Stage::Merging { chunk: of, .. }
                    | Stage::Merged { chunk: of, .. }
                    | Stage::Shrinking { chunk: of, .. }
                        if of == chunk =>
                    {
                        self.stage = Stage::Looking { after: Some(chunk) };
                    }
                    _ => {}
                }
            }
            ReserveInput::Tick => {}
        }
        if self.stage == Stage::Resting && self.policy != ReservePolicy::Fixed && self.now >= self.next {
            self.stage = Stage::Looking { after: None };
        }
        Ok(())
    }

    /// The next action to carry out. None may also mean that enough was done for one call: [`Reserve::wake_at`] is
    /// then at once.
    pub fn poll(&mut self) -> Option<ReserveAction> {
        let after = match self.stage {
            Stage::Looking { after } => after,
            Stage::Merged { chunk, spare_chunks } => {
                if let Some(to_chunks) = self.chunks.get(&chunk).and_then(|entry| entry.without(spare_chunks))
                {
                    return Some(self.shrink(chunk, to_chunks));
                }
                Some(chunk)
            }
            Stage::Resting | Stage::Merging { .. } | Stage::Shrinking { .. } => return None,
        };
        let from = after.map_or(Unbounded, Excluded);
        let (mut last, mut seen) = (after, 0);
        for (&chunk, entry) in self.chunks.range_mut((from, Unbounded)).take(LOOK_MAX) {
            (last, seen) = (Some(chunk), seen + 1);
            let spare_chunks = entry.judge(&self.rules);
            if self.policy == ReservePolicy::ShrinkAndMerge && entry.held_bytes > 0 {
                entry.used_bytes = 0;
                self.stage = Stage::Merging { chunk, spare_chunks };
                return Some(ReserveAction::Merge { chunk });
            }
            entry.used_bytes = entry.held_bytes;
            if let Some(to_chunks) = entry.without(spare_chunks) {
                return Some(self.shrink(chunk, to_chunks));
            }
        }
        if seen == LOOK_MAX {
            self.stage = Stage::Looking { after: last };
        } else {
            self.stage = Stage::Resting;
            // Ends that passed meanwhile are made good by this one.
            let period = self.period.as_nanos();
            let passed = self.now.since(self.next).as_nanos() / period + 1;
            let span = u64::try_from(passed * period).unwrap_or(u64::MAX);
            self.next = Time(self.next.0.saturating_add(span));
        }
        None
    }

    /// When to tick it.
    pub fn wake_at(&self) -> Option<Time> {
        match self.stage {
            Stage::Resting => (self.policy != ReservePolicy::Fixed).then_some(self.next),
            Stage::Looking { .. } | Stage::Merged { .. } => Some(self.now),
            Stage::Merging { .. } | Stage::Shrinking { .. } => None,
        }
    }

    /// Whether nothing is to be done before the next period's end.
    pub fn is_resting(&self) -> bool {
        self.stage == Stage::Resting
    }

    /// How the chunk's parity is updated; a chunk that is not known has no reserve.
    pub fn mode(&self, chunk: ReservedChunk) -> Mode {
        match self.reserved_bytes(chunk) {
            0 => Mode::InPlace,
            _ => Mode::Logged,
        }
    }

    /// What is reserved for the chunk.
    pub fn reserved_bytes(&self, chunk: ReservedChunk) -> u64 {
        self.chunks.get(&chunk).map_or(0, Entry::reserved_bytes)
    }

    /// What of that is free for further deltas.
    pub fn room_bytes(&self, chunk: ReservedChunk) -> u64 {
        self.chunks.get(&chunk).map_or(0, |entry| entry.reserved_bytes() - u64::from(entry.held_bytes))
    }

    /// The chunk's utility when the last period ended; none without reserve.
    pub fn utility(&self, chunk: ReservedChunk) -> Option<f64> {
        self.chunks.get(&chunk).map(|entry| f64::from(entry.utility) / WHOLE as f64)
    }

    /// What is known of the chunk's use, for [`ReserveInput::Found`] when its driver is back; none without reserve.
    pub fn use_of(&self, chunk: ReservedChunk) -> Option<ReserveUse> {
        self.chunks.get(&chunk).map(|entry| ReserveUse {
            utility: entry.utility,
            first_weight: entry.first_weight,
            used_bytes: entry.used_bytes,
        })
    }

    /// How long until the period under way ends, for [`Reserve::resumed`] when its driver is back.
    pub fn left(&self, now: Time) -> Duration {
        self.next.since(now)
    }

    /// What is reserved for all chunks.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Chunks that have a reserve.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
            - usize::from(
                matches!(self.stage, Stage::Shrinking { chunk, .. } if self.reserved_bytes(chunk) == 0),
            )
    }

    fn add(
        &mut self,
        chunk: ReservedChunk,
        chunk_bytes: u32,
        reserved_bytes: u64,
        held_bytes: u64,
        before: Option<ReserveUse>,
    ) -> Result<(), ReserveError> {
        if self.chunks.contains_key(&chunk) {
            return Err(ReserveError::Known { chunk });
        }
        let good = chunk_bytes > 0
            && reserved_bytes.is_multiple_of(chunk_bytes.into())
            && reserved_bytes <= u32::MAX.into()
            && held_bytes <= reserved_bytes;
        if !good {
            return Err(ReserveError::Size { chunk_bytes, reserved_bytes, held_bytes });
        }
        if reserved_bytes > 0 {
            let (whole, utility) = (WHOLE as u32, self.rules.utility_first as u32);
            let unknown = ReserveUse { utility, first_weight: whole, used_bytes: 0 };
            let known = before.unwrap_or(unknown);
            let held_bytes = held_bytes as u32;
            let entry = Entry {
                chunk_bytes,
                reserved_chunks: (reserved_bytes / u64::from(chunk_bytes)) as u32,
                held_bytes,
                // What it holds was logged in this period or carried over, whoever kept count.
                used_bytes: known.used_bytes.max(held_bytes),
                // It was on a disk, where it may have become anything.
                utility: known.utility.min(whole),
                first_weight: known.first_weight.min(whole),
                least_chunks: 0,
            };
            self.chunks.insert(chunk, entry);
            self.total_bytes += reserved_bytes;
        }
        Ok(())
    }

    fn merged(&mut self, chunk: ReservedChunk, left_bytes: u64) -> Result<(), ReserveError> {
        self.held(chunk, left_bytes)?;
        if let Stage::Merging { chunk: asked, spare_chunks } = self.stage
            && asked == chunk
        {
            self.stage = Stage::Merged { chunk, spare_chunks };
        }
        Ok(())
    }

    /// The chunk's log holds so much.
    fn held(&mut self, chunk: ReservedChunk, held_bytes: u64) -> Result<(), ReserveError> {
        let Some(entry) = self.chunks.get_mut(&chunk) else { return Ok(()) };
        let (chunk_bytes, reserved_bytes) = (entry.chunk_bytes, entry.reserved_bytes());
        if held_bytes > reserved_bytes {
            return Err(ReserveError::Size { chunk_bytes, reserved_bytes, held_bytes });
        }
        entry.held_bytes = held_bytes as u32;
        Ok(())
    }

    fn failed(&mut self, failed: ReservedChunk) {
        let entry = self.chunks.get_mut(&failed);
        match (self.stage, entry) {
            (Stage::Merging { chunk, .. }, Some(entry)) if chunk == failed => {
                // It begins the next period with all that it holds.
                entry.used_bytes = entry.held_bytes;
            }
            (Stage::Shrinking { chunk, from_chunks }, Some(entry)) if chunk == failed => {
                self.total_bytes -= entry.reserved_bytes();
                entry.reserved_chunks = from_chunks;
                self.total_bytes += entry.reserved_bytes();
            }
            _ => return,
        }
        self.stage = Stage::Looking { after: Some(failed) };
    }

    /// From here on nothing is logged behind what stays.
    fn shrink(&mut self, chunk: ReservedChunk, to_chunks: u32) -> ReserveAction {
        let entry = self.chunks.get_mut(&chunk).expect("only a chunk that is there is shrunk");
        self.stage = Stage::Shrinking { chunk, from_chunks: entry.reserved_chunks };
        self.total_bytes -= entry.reserved_bytes();
        entry.reserved_chunks = to_chunks;
        let to_bytes = entry.reserved_bytes();
        self.total_bytes += to_bytes;
        ReserveAction::Shrink { chunk, to_bytes }
    }
}

/// The multiple of `chunk` nearest to `bytes`, one at least; 0 where `chunk` is.
fn nearest_multiple(bytes: u64, chunk: u64) -> u64 {
    let times = bytes.saturating_add(chunk / 2).checked_div(chunk);
    times.map_or(0, |times| times.max(1).saturating_mul(chunk))
}
