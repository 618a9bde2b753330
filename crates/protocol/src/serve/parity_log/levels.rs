//! Whether chunks have all that was acknowledged, before they are read: a device may come back with old data (an image put back, a
//! last write that never was), whose checksums are as right as when it was the newest.
//!
//! ```text
//!            first read         its turn         all have answered, none has more
//!   unknown ───────────▶ Queued ─────────▶ Asking ─────────────────────────────────▶ Level
//!      ▲                                   │ │ │  ▲                                    ▲
//!      │ a while later                     │ │ │  └─ a while later ── SoFar            │ its host has brought it forward
//!      └─────────────────────── InVain ◀───┘ │ └── some have, none more ─▲             │
//!                          none has yet      └──── one has more ──▶ Behind ────────────┤
//!                                                                     │ the logs have merged what it lacks
//!                                                                     ▼
//!                                                                  Outdated
//! ```
//!
//! What was acknowledged every parity chunk or its log has. So before a chunk that was ever changed is read for the first time since its
//! device was opened, the nodes of its parity are asked what they hold of it. One that lacks changes is brought forward by its host, which
//! stamps nothing before it is level: from then on it is, until the device is opened again. Meanwhile, and where it cannot be, the others
//! make up for it. A parity chunk is compared with all other chunks in the same way, as it may be the only one of its kind, and brought
//! forward by the hosts of data chunks. Those say nothing of it here, and may be gone, with changes that were never acknowledged: where it
//! lacks some after a while for that it is `Lagging`, refused, and asked for again later, with nobody waiting.
//!
//! One that has lost changes, too, says nothing of them. So what only some have answered for is read, and asked for again, ever less often;
//! and an answer counts that comes when nobody waits for it any more.
//!
//! Who was waited for in vain is remembered beyond the chunk: while all that could answer for a chunk were silent a moment ago, nobody waits
//! for them again with every other chunk of theirs, but for one that finds out whether they are back. Once one is, what was read without it
//! is asked for again. It is kept of each of them, not of the device: what others answer for is still asked for before it is read.
//!
//! Invariants: what is known to lack changes is not read as the newest; a read waits for [`Levels::PATIENCE`] at most, from when its chunk has
//! its turn and from when a parity chunk is found to lack changes; where nobody has answered what is there is read;
//! at most [`CHUNKS_MAX`] chunks are remembered: what is forgotten is asked for again.
//!
//! Left out: chunks that, as their device says, were never changed, and blocks of parity that has merged nothing yet. Nobody is asked about
//! those, so nobody learns that one lost its first change before the next one, nor that blocks of parity are from before the first. Where nobody
//! says where the chunks lie, or who knows does not answer, what is there is read.

use crate::{DeviceId, SegmentId, Time};
use core::time::Duration;
use std::collections::BTreeMap;

/// Between two questions about one chunk that was not found to be level, and between two to who said nothing. Picked by eye:
/// parity that is out of reach, or a change that cannot be brought forward, stays so for longer than a moment.
const AGAIN: Duration = Duration::from_secs(5);
/// Where some have answered: doubled each time, and this at most. Picked by eye: who lost changes and is alone in that is found by the
/// first answer, and nobody waits for these questions.
const SO_FAR_AGAIN_MAX: Duration = Duration::from_secs(320);
/// Between two questions about a parity chunk that lacks changes, with nobody waiting. Picked by eye: what a host sends late comes soon, and
/// nobody tells when it does; a question takes half of it.
const LAGGING_AGAIN: Duration = Levels::PATIENCE;
/// Chunks that are remembered: some megabytes.
const CHUNKS_MAX: usize = 1 << 18;

/// What is to be done before a chunk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeRead {
    /// Nothing.
    Serve,
    /// The nodes of its parity, or of all other chunks, are to be asked what they hold of it, by an [`Inquiry`](super::Inquiry), which tells
    /// their answers ([`Levels::answered`]). Whoever reads waits for it.
    Ask,
    /// [`Levels::before_read`] is to be asked again when something was learned of it, or at this time.
    Wait {
        /// The time.
        until: Time,
    },
    /// It is not to be read: it lacks changes.
    Refuse,
}

/// Who is asked about a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// The metadata server: where the other chunks lie.
    Metadata,
    /// The node of the device of another chunk: what that holds.
    Chunk(DeviceId),
}

/// What is known of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is to have its turn by then: nobody is asked about it yet, and whoever reads it waits.
    Queued { until: Time },
    /// Others are asked about it; whoever reads it waits until then. Where only some answer, that is done again so long after.
    Asking { until: Time, again: Duration },
    /// Nobody has answered.
    InVain { since: Time },
    /// It has all that those have who have answered; the others are asked again so long after.
    SoFar { since: Time, again: Duration },
    /// It has all that parity has.
    Level,
    /// Parity has more; whoever reads it waits until then for its host to bring it forward.
    Behind { until: Time },
    /// Another chunk has more than this parity chunk; asked again a while later.
    Lagging { since: Time },
    /// Nobody keeps what it lacks.
    Outdated,
}

/// The core; see the module's doc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    chunks: BTreeMap<SegmentId, Standing>,
    /// Who was waited for in vain, and when, or when somebody began to find out whether they are back.
    silent: BTreeMap<Asked, Time>,
    /// When one of those was last back.
    back: Option<Time>,
}

impl Levels {
    /// How long a read waits. Picked by eye: as long as updates wait for parity that is out of reach; a node answers, and a host begins and
    /// fetches what is lacking, in some milliseconds.
    pub const PATIENCE: Duration = Duration::from_secs(1);
    /// How long answers are heard that nobody waits for any more: until who reads next asks anew. And how long a chunk waits for its turn,
    /// before who reads it asks anew for that.
    pub const HEARD_FOR: Duration = AGAIN;

    /// Somebody is about to read a chunk that was changed.
    pub fn before_read(&mut self, now: Time, segment: SegmentId) -> BeforeRead {
        let known = self.chunks.get(&segment).copied();
        let nobody_is_back = |since: Time| self.back.is_none_or(|back| back <= since);
        match known {
            Some(Standing::Level) => BeforeRead::Serve,
            Some(Standing::Outdated) => BeforeRead::Refuse,
            Some(
                Standing::Queued { until } | Standing::Asking { until, .. } | Standing::Behind { until },
            ) if now < until => BeforeRead::Wait { until },
            Some(Standing::Behind { until: since }) if now.since(since) < AGAIN => BeforeRead::Refuse,
            Some(Standing::Lagging { since }) if now.since(since) < LAGGING_AGAIN => BeforeRead::Refuse,
            // It is refused as before, where that is not long ago.
            Some(Standing::Lagging { since }) if now.since(since) < 2 * AGAIN => {
                self.put(segment, Standing::Lagging { since: now });
                BeforeRead::Ask
            }
            // Who answers yet is heard.
            Some(Standing::Asking { until, .. }) if now.since(until) < AGAIN => BeforeRead::Serve,
            Some(Standing::InVain { since }) if now.since(since) < AGAIN && nobody_is_back(since) => {
                BeforeRead::Serve
            }
            Some(Standing::SoFar { since, again }) if now.since(since) < again && nobody_is_back(since) => {
                BeforeRead::Serve
            }
            // It is read as it was before.
            Some(Standing::SoFar { again, .. }) => {
                let again = (2 * again).min(SO_FAR_AGAIN_MAX);
                self.put(segment, Standing::Asking { until: now, again });
                BeforeRead::Ask
            }
            _ => {
                self.put(segment, Standing::Queued { until: now + Self::HEARD_FOR });
                BeforeRead::Ask
            }
        }
    }

    /// Whether all of these said nothing a moment ago, so that nobody is to wait for them now. Where that is longer ago the first who comes
    /// asks them for all others, who go on without them until [`Levels::told`].
    pub fn are_silent(&mut self, now: Time, whom: &[Asked]) -> bool {
        let mut since = whom.iter().map(|who| self.silent.get(who));
        if since.clone().all(|since| since.is_some_and(|&since| now.since(since) < AGAIN)) {
            return true;
        }
        if since.all(|since| since.is_some()) {
            self.silent.extend(whom.iter().map(|&who| (who, now)));
        }
        false
    }

    /// Somebody who was asked has said something, or was waited for in vain.
    pub fn told(&mut self, now: Time, who: Asked, something: bool) {
        if something {
            let is_back = self.silent.remove(&who).is_some();
            self.back = if is_back { Some(now) } else { self.back };
        } else {
            self.silent.insert(who, now);
        }
    }

    /// It is a chunk's turn to be asked about: whoever waits for that does so from now on for as long as a read, however late it comes.
    pub(in crate::serve) fn begun(&mut self, now: Time, segment: SegmentId) {
        let later = now + Self::PATIENCE;
        match self.chunks.get_mut(&segment) {
            Some(queued @ Standing::Queued { .. }) => {
                *queued = Standing::Asking { until: later, again: AGAIN };
            }
            Some(Standing::Asking { until, .. }) if now < *until => *until = later,
            _ => {}
        }
    }

    /// What the nodes that were asked hold of a chunk, none of those that have not said so; it was at `version` when they were. Whether
    /// its host is to bring it forward. Told again of who answers later.
    pub fn answered(
        &mut self,
        now: Time,
        segment: SegmentId,
        version: u64,
        held: impl IntoIterator<Item = Option<u64>>,
    ) -> bool {
        let (until, again) = match self.chunks.get(&segment).copied() {
            // Its host knows better, and may have stamped more since, or is about to.
            Some(Standing::Level | Standing::Outdated | Standing::Behind { .. }) => return false,
            Some(Standing::Asking { until, again }) => (until, again),
            // Of a question before the one that waits for its turn: whoever waits is not done with it, nor has waited for a host.
            Some(Standing::Queued { .. }) => (now + Self::PATIENCE, AGAIN),
            Some(Standing::SoFar { again, .. }) => (now, again),
            Some(Standing::InVain { .. } | Standing::Lagging { .. }) | None => (now, AGAIN),
        };
        let (mut highest, mut all): (Option<u64>, bool) = (None, true);
        for held in held {
            highest = highest.max(held);
            all &= held.is_some();
        }
        match self.chunks.get(&segment) {
            // Nobody says that it has them by now.
            Some(Standing::Lagging { .. }) if highest.is_none() => {
                self.put(segment, Standing::Lagging { since: now });
                return false;
            }
            // They may be back, and are asked once more.
            Some(Standing::Queued { .. }) if highest.is_none() => return false,
            _ => {}
        }
        let is_behind = highest.is_some_and(|highest| highest > version);
        let standing = match highest {
            Some(_) if is_behind => Standing::Behind { until },
            Some(_) if all => Standing::Level,
            // Some have answered now, or before.
            _ if highest.is_some() || again > AGAIN => Standing::SoFar { since: now, again },
            _ => Standing::InVain { since: now },
        };
        self.put(segment, standing);
        is_behind
    }

    /// A parity chunk, which may have been read so before, lacks changes that another chunk has: whoever reads it waits while it has a while
    /// for them, and an inquiry that tells what became of that.
    pub fn may_lag(&mut self, now: Time, segment: SegmentId) {
        let is_open = |standing: &Standing| {
            matches!(
                standing,
                Standing::Queued { .. }
                    | Standing::Asking { .. }
                    | Standing::SoFar { .. }
                    | Standing::InVain { .. }
            )
        };
        if self.chunks.get(&segment).is_none_or(is_open) {
            self.put(segment, Standing::Asking { until: now + Self::PATIENCE, again: AGAIN });
        }
    }

    /// A parity chunk lacks changes that another chunk has, and had a while for them: it is not waited for once more.
    pub fn lags(&mut self, now: Time, segment: SegmentId) {
        if !matches!(self.chunks.get(&segment), Some(Standing::Level | Standing::Outdated)) {
            self.put(segment, Standing::Lagging { since: now });
        }
    }

    /// A chunk's host says that it has all that parity has.
    pub fn level(&mut self, segment: SegmentId) {
        self.put(segment, Standing::Level);
    }

    /// A chunk's host says that nobody keeps what it lacks.
    pub fn outdated(&mut self, segment: SegmentId) {
        self.put(segment, Standing::Outdated);
    }

    fn put(&mut self, segment: SegmentId, standing: Standing) {
        if self.chunks.len() >= CHUNKS_MAX && !self.chunks.contains_key(&segment) {
            self.chunks.pop_first();
        }
        self.chunks.insert(segment, standing);
    }
}
