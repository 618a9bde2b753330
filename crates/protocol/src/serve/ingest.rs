//! What arrives at a segment's primary ([`crate::write::ingest`]): its originals, in slices, in order, each once.
//!
//! The memory for the whole segment and its parity is set aside when it is taken, so that it is granted at once and nothing that
//! is under way can wait for memory: as the chunks go to nodes that are perhaps primaries of other segments, waiting could
//! become a circle. Where there is no room the client is refused, and stores the segment by itself.
//!
//! Invariants: what all segments in hand take never exceeds the [`Budget`]; a slice counts only where it continues what came.

use super::{Budget, admission::refused, assembly::Assembly, budget::Share};
use crate::{
    BlockIndex, Time,
    layout::{PARITY_GRANULE_BYTES, ParityGeometry},
    message::Fault,
};
use core::time::Duration;

/// Segments in hand at a time: each takes n streams of other nodes, and theirs of this one; were they all that a node serves,
/// there would be none left for their chunks. Picked by eye: a small part of the streams that are admitted.
const SEGMENTS_MAX: u64 = 64;

/// The core of one segment that arrives.
pub struct IngestStream {
    assembly: Assembly,
    next: BlockIndex,
    originals: u32,
    heard: Time,
    patience: Duration,
    share: Share,
}

impl IngestStream {
    /// A segment of this shape, of which something must come every `patience`; what is to be granted for it.
    ///
    /// # Errors
    /// [`Fault::Refused`] while there is no memory for it.
    pub fn new(
        now: Time,
        shape: &ParityGeometry,
        patience: Duration,
        budget: &mut Budget,
    ) -> Result<(Self, u32), Fault> {
        let bytes = u64::from(shape.chunks) * shape.chunk_bytes();
        if budget.streams() >= SEGMENTS_MAX {
            return Err(refused(bytes, 0));
        }
        let share = budget.join(bytes).ok_or_else(|| refused(bytes, 0))?;
        let stream = Self {
            assembly: Assembly::new(shape.block_bytes, PARITY_GRANULE_BYTES),
            next: 0,
            originals: shape.originals(),
            heard: now,
            patience,
            share,
        };
        Ok((stream, u32::try_from(shape.capacity_bytes()).expect("a segment has 64 MiB at most")))
    }

    /// A slice arrived at `now`; whether its block is whole with it.
    ///
    /// # Errors
    /// [`Fault::Protocol`] where it does not continue what came.
    pub fn slice(
        &mut self,
        now: Time,
        index: BlockIndex,
        offset: u32,
        bytes: u32,
        sums: u32,
    ) -> Result<bool, Fault> {
        if index != self.next || index >= self.originals {
            let (next, originals) = (self.next, self.originals);
            let what = format!("block {index} came where block {next} of {originals} was to come");
            return Err(Fault::Protocol(what));
        }
        let whole = self.assembly.slice(index, offset, bytes, sums).map_err(Fault::Protocol)?;
        self.heard = now;
        self.next += u32::from(whole);
        Ok(whole)
    }

    /// When to give it up, should nothing come before; none once all is there.
    pub fn gives_up_at(&self) -> Option<Time> {
        (self.next < self.originals).then(|| self.heard + self.patience)
    }

    /// It is over: its memory is free.
    pub fn leave(&mut self, budget: &mut Budget) {
        budget.leave(&mut self.share);
    }
}
