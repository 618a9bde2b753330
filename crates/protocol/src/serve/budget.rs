//! The bytes that all write streams of a node may have granted or resident together: what keeps a node of many
//! streams within its memory (traps 9).
//!
//! Each stream has a floor of its own, one block, set aside when it joins: without it a stream could wait for
//! ever in the middle of a block. What is left is a pool that streams share in equal parts.
//!
//! Invariants: floors and what is used of the pool never exceed `total`; a stream holds at most its floor and its
//! part, so a newcomer waits only until the others, whose parts shrank with it, have written some of theirs. Those that write
//! nothing are asked for theirs while somebody finds no room ([`Budget::is_wanted`]).

/// The budget of one node.
#[derive(Clone, Debug)]
pub struct Budget {
    total_bytes: u64,
    floors_bytes: u64,
    pool_used_bytes: u64,
    held_bytes: u64,
    streams: u64,
    /// The floor of the last stream that found no room for it.
    wanted_bytes: u64,
}

/// One stream's share of a budget.
#[derive(Clone, Debug)]
pub(super) struct Share {
    floor_bytes: u64,
    held_bytes: u64,
}

impl Budget {
    /// A budget of `total_bytes`, none used.
    pub fn new(total_bytes: u64) -> Self {
        Self { total_bytes, floors_bytes: 0, pool_used_bytes: 0, held_bytes: 0, streams: 0, wanted_bytes: 0 }
    }

    /// Bytes granted or resident now.
    pub fn used_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes set aside for the streams that share it now: their floors.
    pub fn set_aside_bytes(&self) -> u64 {
        self.floors_bytes
    }

    /// Streams that share it now.
    pub fn streams(&self) -> u64 {
        self.streams
    }

    /// Whether the last stream that came found no room for its floor, and there is none yet.
    pub fn is_wanted(&self) -> bool {
        self.wanted_bytes > 0 && !self.has_room(self.wanted_bytes)
    }

    fn has_room(&self, floor_bytes: u64) -> bool {
        self.floors_bytes + self.pool_used_bytes + floor_bytes <= self.total_bytes
    }

    /// A stream joins; `None` while what is set aside and used leaves no room for its floor.
    pub(super) fn join(&mut self, floor_bytes: u64) -> Option<Share> {
        if !self.has_room(floor_bytes) {
            self.wanted_bytes = floor_bytes;
            return None;
        }
        self.wanted_bytes = 0;
        self.streams += 1;
        self.floors_bytes += floor_bytes;
        Some(Share { floor_bytes, held_bytes: 0 })
    }

    /// Takes up to `wanted_bytes`; returns how many.
    pub(super) fn take(&mut self, share: &mut Share, wanted_bytes: u64) -> u64 {
        let of_floor = share.floor_bytes.saturating_sub(share.held_bytes);
        let pool = self.total_bytes - self.floors_bytes;
        // One part more than there are streams, so that the next one to join finds room.
        let part = pool / (self.streams + 1);
        let of_pool = part.saturating_sub(share.pool_bytes()).min(pool.saturating_sub(self.pool_used_bytes));
        let taken = wanted_bytes.min(of_floor + of_pool);
        let before = share.pool_bytes();
        share.held_bytes += taken;
        self.held_bytes += taken;
        self.pool_used_bytes += share.pool_bytes() - before;
        assert!(self.floors_bytes + self.pool_used_bytes <= self.total_bytes, "budget overdrawn: {self:?}");
        taken
    }

    /// Gives bytes back.
    pub(super) fn give(&mut self, share: &mut Share, bytes: u64) {
        assert!(bytes <= share.held_bytes, "{bytes} bytes given back of {share:?}");
        let before = share.pool_bytes();
        share.held_bytes -= bytes;
        self.held_bytes -= bytes;
        self.pool_used_bytes -= before - share.pool_bytes();
    }

    /// A stream leaves with all it has.
    pub(super) fn leave(&mut self, share: &mut Share) {
        self.give(share, share.held_bytes);
        self.floors_bytes -= core::mem::take(&mut share.floor_bytes);
        self.streams -= 1;
    }
}

impl Share {
    /// Bytes granted or resident of this stream.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// What it has beyond its floor.
    fn pool_bytes(&self) -> u64 {
        self.held_bytes.saturating_sub(self.floor_bytes)
    }
}
