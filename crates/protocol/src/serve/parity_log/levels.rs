//! Whether data chunks have all that was acknowledged, before they are read: a device may come back with old data (an image put back, a
//! last write that never was), whose checksums are as right as when it was the newest.
//!
//! ```text
//!            first read         some have answered, none has more
//!   unknown ───────────▶ Asking ─────────────────────────────────▶ Level
//!      ▲                  │  │                                       ▲
//!      │ a while later    │  │ one has more                          │ its host has brought it forward
//!      └──── InVain ◀─────┘  └──────────▶ Behind ───────────────────┤
//!          none has answered               │ the logs have merged what it lacks
//!                                          ▼
//!                                       Outdated
//! ```
//!
//! What was acknowledged every parity chunk or its log has. So before a chunk that was ever changed is read for the first time since its
//! device was opened, the nodes of its parity are asked what they hold of it. One that lacks changes is brought forward by its host, which
//! stamps nothing before it is level: from then on it is, until the device is opened again. Meanwhile, and where it cannot be, the others
//! make up for it.
//!
//! Who was waited for in vain is remembered beyond the chunk: while all that could answer for a chunk were silent a moment ago, nobody waits
//! for them again with every other chunk of theirs, but for one that finds out whether they are back. It is kept of each of them, not of the
//! device: what others answer for is still asked for before it is read.
//!
//! Invariants: what is known to lack changes is not read as the newest; a read waits for [`Levels::PATIENCE`] at most, and where nobody has
//! answered by then what is there is read; at most [`CHUNKS_MAX`] chunks are remembered: what is forgotten is asked for again.
//!
//! Left out: chunks that, as their device says, were never changed. Nobody is asked about those, so nobody learns that one lost its
//! first change before the next one.

use crate::{DeviceId, SegmentId, Time};
use core::time::Duration;
use std::collections::BTreeMap;

/// Between two questions about one chunk that was not found to be level, and between two to who said nothing. Picked by eye:
/// parity that is out of reach, or a change that cannot be brought forward, stays so for longer than a moment.
const AGAIN: Duration = Duration::from_secs(5);
/// Chunks that are remembered: some megabytes.
const CHUNKS_MAX: usize = 1 << 18;

/// What is to be done before a chunk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeRead {
    /// Nothing.
    Serve,
    /// The nodes of its parity are to be asked what they hold of it; [`Levels::answered`] is their answer. Whoever reads waits for it.
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
    /// The metadata server: where its parity lies.
    Metadata,
    /// The node of the device of one of its parity chunks: what that holds of it.
    Parity(DeviceId),
}

/// What is known of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Parity is asked about it; whoever reads it waits until then.
    Asking { until: Time },
    /// Nobody has answered.
    InVain { since: Time },
    /// It has all that parity has.
    Level,
    /// Parity has more; whoever reads it waits until then for its host to bring it forward.
    Behind { until: Time },
    /// Nobody keeps what it lacks.
    Outdated,
}

/// The core; see the module's doc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    chunks: BTreeMap<SegmentId, Standing>,
    /// Who was waited for in vain, and when, or when somebody began to find out whether they are back.
    silent: BTreeMap<Asked, Time>,
}

impl Levels {
    /// How long a read waits. Picked by eye: as long as updates wait for parity that is out of reach; a node answers, and a host begins and
    /// fetches what is lacking, in some milliseconds.
    pub const PATIENCE: Duration = Duration::from_secs(1);

    /// Somebody is about to read a chunk that was changed.
    pub fn before_read(&mut self, now: Time, segment: SegmentId) -> BeforeRead {
        match self.chunks.get(&segment).copied() {
            Some(Standing::Level) => BeforeRead::Serve,
            Some(Standing::Outdated) => BeforeRead::Refuse,
            Some(Standing::Asking { until } | Standing::Behind { until }) if now < until => {
                BeforeRead::Wait { until }
            }
            Some(Standing::Behind { until }) if now.since(until) < AGAIN => BeforeRead::Refuse,
            Some(Standing::Asking { until: since } | Standing::InVain { since })
                if now.since(since) < AGAIN =>
            {
                BeforeRead::Serve
            }
            _ => {
                self.put(segment, Standing::Asking { until: now + Self::PATIENCE });
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
            self.silent.remove(&who);
        } else {
            self.silent.insert(who, now);
        }
    }

    /// What the nodes of its parity hold of a chunk, none of those that did not say so; it was at `version` when they were asked. Whether its
    /// host is to bring it forward.
    pub fn answered(
        &mut self,
        now: Time,
        segment: SegmentId,
        version: u64,
        held: impl IntoIterator<Item = Option<u64>>,
    ) -> bool {
        let until = match self.chunks.get(&segment).copied() {
            // Its host knows better, and may have stamped more since.
            Some(Standing::Level | Standing::Outdated) => return false,
            Some(Standing::Asking { until }) => until,
            _ => now,
        };
        let highest = held.into_iter().flatten().max();
        let is_behind = highest.is_some_and(|highest| highest > version);
        let standing = match highest {
            None => Standing::InVain { since: now },
            Some(_) if is_behind => Standing::Behind { until },
            Some(_) => Standing::Level,
        };
        self.put(segment, standing);
        is_behind
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
