//! When the log of a parity chunk is merged without need, how urgent a merge is, whom to ask where the log is held up, when whoever waits
//! behind that is told, and when its reserve may shrink.
//!
//! A log is merged as far as it is committed when its reserve is nearly full, or when nothing was appended for a while and the device
//! rests ([`Lull`](crate::serve::Lull)); how much is committed its node learns from the data chunks' nodes. One that died, or lost
//! its connection, before it said so, and whose chunk nobody changes since, leaves a record that stays and holds up all behind it:
//! its node is asked to level, which ends with saying so. Where that does not help and the node is gone, whoever waits is told: storing the
//! segment anew is the way around it. One that is only slow is waited for, as that would make it slower: one of its changes after the other
//! comes to be committed. One of which none does for a while is as good as gone: its disk hangs, and its process lives and keeps the connection.

use super::{ChunkNumber, ParityChunk};
use crate::{Time, policy};
use core::time::Duration;

/// A log that was not appended to for so long is merged as far as it is committed. Picked by eye: long enough that a burst of
/// updates is over.
const QUIET: Duration = Duration::from_millis(500);
/// A record at the log's begin that is not known to be committed for so long is asked about. Picked by eye: far longer than
/// an update takes.
const LEVEL_AFTER: Duration = Duration::from_secs(3);
/// The same while updates wait until it is, and twice as late each time up to that: most were committed long ago, and only the log's node
/// has not heard. Picked by eye: what an update takes.
const HELD_BACK_AFTER: Duration = Duration::from_millis(10);
/// And again, twice as late each time up to this, while nobody waits for it.
const LEVEL_AGAIN_MAX: Duration = Duration::from_secs(300);
/// Updates that wait for so long behind a record whose sender is gone are made otherwise. Picked by eye, as those that find no room
/// ([`super::UpdateWindow::tick`]): a process that is started again is back sooner.
const HELD_UP_MAX: Duration = Duration::from_secs(3);
/// The same where its sender is there. Picked by eye: a disk whose queue is full flushes in less, and clients have more patience.
const STANDS_STILL_MAX: Duration = Duration::from_secs(6);

/// What is to become of a reserve that is to shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shrinking {
    /// Its end is to be given back.
    Now,
    /// Its log is in use, or was just now.
    Later,
    /// What is to be left would be of no use: it needs so many bytes, or none.
    TooSmall {
        /// Bytes.
        least_bytes: u64,
    },
}

/// How soon a merge is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Haste {
    /// Nobody waits for it.
    None,
    /// Updates soon will.
    Soon,
    /// Updates wait for the room that it makes.
    Now,
}

/// When what was last done about a log; see the module's doc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upkeep {
    reserve_bytes: u64,
    appended_at: Time,
    asked_at: Time,
    /// The record that was asked about, and how often.
    asked_for: Option<(u64, u32)>,
    /// The record that updates wait behind.
    held_up: Option<HeldUp>,
}

/// A record that is not known to be committed and that updates wait behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldUp {
    sequence: u64,
    since: Time,
    /// Since when its sender is gone, where it is.
    gone: Option<Time>,
}

impl Upkeep {
    /// Of a log in so many bytes that is as quiet as if it had just been appended to.
    pub fn new(now: Time, reserve_bytes: u64) -> Self {
        Self { reserve_bytes, appended_at: now, asked_at: now, asked_for: None, held_up: None }
    }

    /// A record is being appended.
    pub fn appended(&mut self, now: Time) {
        self.appended_at = now;
    }

    /// Whether what is committed is to be merged: there is soon no room for more, or what is behind it is held back, or nothing was
    /// appended for long and the device
    /// rests.
    pub fn merge_due(&self, now: Time, core: &ParityChunk, device_rests: bool) -> bool {
        core.is_held_back()
            || 4 * core.logged_bytes() > 3 * self.reserve_bytes
            || device_rests && self.is_quiet(now)
    }

    fn is_quiet(&self, now: Time) -> bool {
        now.since(self.appended_at) > QUIET
    }

    /// Whether updates wait for a merge because they found no room, or soon will because more than half of the reserve is full, or too
    /// much of it lies behind what is not committed.
    pub fn haste(&self, core: &ParityChunk) -> Haste {
        if core.is_stalled() {
            Haste::Now
        } else if core.is_held_back() || 2 * core.logged_bytes() > self.reserve_bytes {
            Haste::Soon
        } else {
            Haste::None
        }
    }

    /// The data chunk whose node is to be asked to level: the log's first record is of it, and not known to be committed, though
    /// nothing was appended for long, or it keeps what others append, or what somebody `wants` merged, from being that. Its chunk may be level,
    /// and only this node has not heard. Asked again after as long, and ever less often.
    pub fn ask_to_level(&mut self, now: Time, core: &ParityChunk, wants: bool) -> Option<ChunkNumber> {
        let waited_for = wants || self.haste(core) != Haste::None;
        let under_way = now.since(self.appended_at) < LEVEL_AFTER && !waited_for;
        let first = match core.is_held_back() {
            true => core.first_uncommitted()?,
            false => core.log().next().filter(|_| core.mergeable_bytes() == 0)?,
        };
        // Some cannot be levelled before somebody stores the segment anew.
        let times =
            self.asked_for.filter(|(sequence, _)| *sequence == first.sequence).map_or(0, |(_, times)| times);
        let doubled = |after: Duration| after.saturating_mul(1 << times.saturating_sub(1).min(16));
        let again = match (wants || core.is_held_back(), waited_for) {
            (true, _) => doubled(HELD_BACK_AFTER).min(LEVEL_AFTER),
            (false, true) => LEVEL_AFTER,
            (false, false) => doubled(LEVEL_AFTER).min(LEVEL_AGAIN_MAX),
        };
        if under_way || now.since(self.asked_at) < again {
            return None;
        }
        (self.asked_at, self.asked_for) = (now, Some((first.sequence, times + 1)));
        Some(first.chunk)
    }

    /// Whether updates have waited for so long behind a record that is not known to be committed that they are to be made otherwise.
    /// `is_there` says whether the node that sent the record is: one that only makes slow progress says so with another record each time.
    pub fn is_held_up(&mut self, now: Time, core: &ParityChunk, is_there: bool) -> bool {
        let Some(first) = core.first_uncommitted().filter(|_| core.is_held_back()) else {
            self.held_up = None;
            return false;
        };
        // Its sender commits in the order that it sent in: while this record is not, none of its others here is.
        let same = self.held_up.filter(|held_up| held_up.sequence == first.sequence);
        let mut held_up = same.unwrap_or(HeldUp { sequence: first.sequence, since: now, gone: None });
        held_up.gone = if is_there { None } else { held_up.gone.or(Some(now)) };
        self.held_up = Some(held_up);
        now.since(held_up.since) > STANDS_STILL_MAX
            || held_up.gone.is_some_and(|gone| now.since(gone) > HELD_UP_MAX)
    }

    /// Whether the reserve of a segment of so many data chunks may shrink to `to_bytes`, where `writing` says whether the log is being
    /// written to, and `used` whether it was in this life, or somebody is greeted who may. Only one that is empty may, and where it was used
    /// once nobody did for a while: what is on its way was sent by whoever knew it larger. One with less than the largest planned change
    /// takes would refuse what was planned when it had more: it keeps so much, or nothing.
    pub fn shrink(
        &self,
        now: Time,
        core: &ParityChunk,
        writing: bool,
        used: bool,
        data: u32,
        to_bytes: u64,
    ) -> Shrinking {
        let least_bytes = policy::reserve_least_bytes(data);
        if to_bytes > 0 && to_bytes < least_bytes {
            return Shrinking::TooSmall { least_bytes };
        }
        let quiet = !writing && core.log().len() == 0 && (!used || self.is_quiet(now));
        if quiet { Shrinking::Now } else { Shrinking::Later }
    }
}
