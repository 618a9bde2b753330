//! Room for held changes that is kept for whoever is to make one: what an update will need is asked for before anybody depends on it.
//!
//! What is held is bounded for the whole device ([`checkpoint::held_max`]), and an update is held on several devices at a time. Two that
//! took room on one each, and waited for it on the other, would wait for ever. So room for an overwrite is reserved on every device before
//! the update is stamped anywhere, or given back at once: nobody waits for room who has some.
//!
//! Nothing of this is on the medium: after a crash there are no reservations. Overwrites that were stamped before come without one, and
//! so do versions of data chunks that logs brought back; while one of those found no room nothing more is reserved, so that what is
//! released is theirs.

use std::collections::{BTreeMap, BTreeSet};

use super::Device;
use crate::index::checkpoint;

/// Out of whose reservation a change is held, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spend {
    /// Who reserved it; a number that no two have at a time.
    pub owner: u64,
    /// What the change may take of the reservation, which is that much less then; 0: it was not reserved for.
    pub bytes: u64,
}

/// What is reserved, and who waits for what is not.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    of: BTreeMap<u64, u64>,
    bytes: u64,
    waiting: BTreeSet<u64>,
}

impl Reserved {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of what a change may take there is.
    pub(super) fn spendable(&self, spend: Spend) -> u64 {
        self.of.get(&spend.owner).map_or(0, |of| spend.bytes.min(*of))
    }

    fn add(&mut self, owner: u64, bytes: u64) {
        *self.of.entry(owner).or_default() += bytes;
        self.bytes += bytes;
    }

    fn take(&mut self, spend: Spend) {
        let bytes = self.spendable(spend);
        if let Some(of) = self.of.get_mut(&spend.owner) {
            *of -= bytes;
            self.bytes -= bytes;
            if *of == 0 {
                self.of.remove(&spend.owner);
            }
        }
    }

    /// A change is held.
    pub(super) fn spent(&mut self, spend: Spend) {
        self.take(spend);
        // What was reserved for goes past what waits.
        if spend.bytes == 0 {
            self.waiting.remove(&spend.owner);
        }
    }

    /// A change found no room.
    pub(super) fn refused(&mut self, owner: u64) {
        self.waiting.insert(owner);
    }
}

impl Device {
    /// The most bytes of updates that may be held and not released, and be reserved for more, whole device. What stays in the journal for
    /// want of a place takes room of it.
    pub fn held_bytes_max(&self) -> u64 {
        checkpoint::held_max(&self.superblock)
    }

    /// Bytes of redo that stay in checkpoints for want of a place: they take room of what may be held. They come unasked, so with what was
    /// reserved before they may be more than there is room for.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.overlay.kept_bytes() + self.appended.kept_bytes()
    }

    /// Bytes of redo that are held or kept, or reserved for.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.overlay.queued_bytes() + self.kept_bytes() + self.reserved.bytes()
    }

    /// Keeps up to `bytes` of room for overwrites of this owner, beside what it has, but nothing where that is less than `least`; how
    /// much. None while a change ([`Device::overwrite_from`],
    /// [`Device::stage_from`]) waits for room that was not reserved.
    pub fn reserve(&mut self, owner: u64, least: u64, bytes: u64) -> u64 {
        let free = self.held_bytes_max().saturating_sub(self.taken_bytes());
        let bytes = bytes.min(free);
        if bytes == 0 || bytes < least || !self.reserved.waiting.is_empty() {
            return 0;
        }
        self.reserved.add(owner, bytes);
        bytes
    }

    /// Gives so much of a reservation back, or what there is of it. The owner waits for nothing any more, unless it tries again.
    pub fn unreserve(&mut self, owner: u64, bytes: u64) {
        self.reserved.take(Spend { owner, bytes });
        self.reserved.waiting.remove(&owner);
    }
}
