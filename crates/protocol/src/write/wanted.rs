//! Blocks that a write must rewrite ([`Given::wanted`](super::Given::wanted)): where each is to go, and which are still
//! to be confirmed.
//!
//! ```text
//!   at its home ──pushed──▶ in flight ──▶ confirmed
//!        └──home failed, lags──▶ homeless ──pushed to another──▶ in flight there
//! ```
//!
//! Invariants: a device never gets the same block twice in one write; a block is homeless or at its home, not both; what
//! was confirmed is wanted again only when the device that has it is lost.

use super::lane::Lane;
use crate::{BlockIndex, DeviceId, IndexRanges};
use core::ops::Range;

/// See the module's head. Lanes are named by their positions.
pub(super) struct Wanted {
    /// Not pushed yet, by the lane that is to have them.
    at_home: Vec<IndexRanges>,
    /// Not pushed yet, for whichever lane takes them.
    homeless: IndexRanges,
    /// Not confirmed.
    left: IndexRanges,
    /// Pushed at any time, by lane.
    pushed: Vec<IndexRanges>,
}

impl Wanted {
    pub(super) fn new(wanted: &[(DeviceId, IndexRanges)], lanes: &[Lane]) -> Self {
        let mut this = Self {
            at_home: vec![IndexRanges::new(); lanes.len()],
            homeless: IndexRanges::new(),
            left: IndexRanges::new(),
            pushed: vec![IndexRanges::new(); lanes.len()],
        };
        for (device, blocks) in wanted {
            let home = lanes.iter().position(|lane| lane.target.device == *device);
            for range in blocks.ranges() {
                this.left.insert_range(range.clone());
                match home {
                    Some(position) => this.at_home[position].insert_range(range.clone()),
                    None => this.homeless.insert_range(range.clone()),
                }
            }
        }
        this
    }

    /// Whether every block was confirmed.
    pub(super) fn all_written(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether some blocks have no lane to go to.
    pub(super) fn any_homeless(&self) -> bool {
        !self.homeless.is_empty()
    }

    /// Blocks that have no lane to go to.
    pub(super) fn homeless(&self) -> u32 {
        self.homeless.count()
    }

    /// Blocks that this lane is to have and that were not pushed.
    pub(super) fn waiting(&self, position: usize) -> u32 {
        self.at_home[position].count()
    }

    /// The same, one by one.
    pub(super) fn at_home(&self, position: usize) -> impl Iterator<Item = BlockIndex> + '_ {
        self.at_home[position].iter()
    }

    /// Takes the next run of at most `blocks` for this lane, of those that are at home there.
    pub(super) fn take(&mut self, position: usize, blocks: u32) -> Option<Range<BlockIndex>> {
        let run = first_run(self.at_home[position].ranges().first()?.clone(), blocks)?;
        for index in run.clone() {
            self.at_home[position].remove(index);
            self.pushed[position].insert(index);
        }
        Some(run)
    }

    /// Whether there are homeless blocks that this lane was never given.
    pub(super) fn adopts(&self, position: usize) -> bool {
        self.homeless.iter().any(|index| !self.pushed[position].contains(index))
    }

    /// Takes the next run of at most `blocks` of the homeless that this lane was never given.
    pub(super) fn adopt(&mut self, position: usize, blocks: u32) -> Option<Range<BlockIndex>> {
        let first = self.homeless.iter().find(|&index| !self.pushed[position].contains(index))?;
        let ours =
            |index: &BlockIndex| self.homeless.contains(*index) && !self.pushed[position].contains(*index);
        let length = (first..).take_while(ours).take(blocks as usize).count();
        let run = first..first + u32::try_from(length).expect("at most as many as asked for");
        for index in run.clone() {
            self.homeless.remove(index);
            self.pushed[position].insert(index);
        }
        (!run.is_empty()).then_some(run)
    }

    /// A block was confirmed somewhere.
    pub(super) fn confirmed(&mut self, index: BlockIndex) {
        if self.left.remove(index) {
            self.homeless.remove(index);
        }
    }

    /// A lane failed or lags: what it was to have, and what is in flight there, goes to others. What it confirmed and
    /// lost with it (`lost`) is to be written again.
    pub(super) fn leave(
        &mut self,
        position: usize,
        in_flight: impl Iterator<Item = BlockIndex>,
        lost: impl Iterator<Item = BlockIndex>,
    ) {
        for index in std::mem::take(&mut self.at_home[position]).iter() {
            self.homeless.insert(index);
        }
        for index in in_flight.filter(|&index| self.left.contains(index)) {
            self.homeless.insert(index);
        }
        for index in lost {
            self.left.insert(index);
            self.homeless.insert(index);
        }
    }
}

fn first_run(range: Range<BlockIndex>, blocks: u32) -> Option<Range<BlockIndex>> {
    let end = range.end.min(range.start.saturating_add(blocks));
    (range.start < end).then_some(range.start..end)
}
