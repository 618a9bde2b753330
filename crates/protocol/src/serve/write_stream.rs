//! One write stream at a storage server: blocks come in slices, in order, within the credit granted; each whole
//! block is written once; what is durable is confirmed in ranges (dissertation §4.3.2, §5.3.3).
//!
//! ```text
//!   Grant ─▶ slices ─▶ block whole ─▶ Write ─▶ Durable ─▶ Confirm      credit comes back when a block is durable
//!   Finish, nothing under way ─▶ End          Cancel: no further Write; what is under way ends, then End
//! ```
//!
//! Invariants: bytes granted, arriving and being written never exceed the stream's window, nor together with all
//! other streams' the [`Budget`]; a block index is taken once; no block is confirmed before it is durable. Until its first slice a
//! stream is granted its floor and no more. One that is silent, its source being slow, is refused once others find no room, which its floor
//! alone may be: all it got is confirmed, and its writer opens another where it goes on. The window follows the device's measured pace and
//! how long blocks stay, and is a small share of what is expected, and never more than so many blocks: each costs more than its bytes.

use super::{Budget, admission::refused, assembly::Assembly, budget::Share};
use crate::{
    BlockIndex, IndexRanges, Time,
    message::{Fault, NodeFault, PAYLOAD_BYTES_MAX, WriteOpen},
    window::Window,
};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// A writer has at most this share (one quarter) of what it expects to place here on the way: what a cancelled
/// stream wastes at most, where two blocks allow it.
const EXPECTED_SHARE: u64 = 4;
/// Blocks whose being on the way keeps a device busy: one arriving, one being written.
const BLOCKS_MIN: u64 = 2;
/// Blocks on the way at most: what a server keeps for each beside its bytes, about half a KiB, is not under the budget. 64 MiB of the
/// smallest blocks that are coded, more than one stream gets of a usual budget; a chunk has no more than 64 blocks.
const BLOCKS_MAX: u64 = 1024;
/// A writer that could send and does not for so long is silent; so is a reader that grants nothing. Picked by eye: long beside the pauses of
/// a source that goes on, short beside how often those are tried again that find no room.
pub(super) const SILENT: Duration = Duration::from_secs(2);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteInput {
    /// A slice arrived whose checksums match.
    Slice {
        /// The block.
        index: BlockIndex,
        /// Where in the block the payload begins, in bytes.
        offset: u32,
        /// Payload bytes.
        bytes: u32,
        /// Checksums that came with it.
        sums: u32,
    },
    /// A slice arrived whose checksums do not match.
    Damaged {
        /// The block.
        index: BlockIndex,
    },
    /// A message arrived that is none of a write's.
    Violation {
        /// What is wrong with it.
        what: String,
    },
    /// A block is durable, or could not be written.
    Written {
        /// The block.
        index: BlockIndex,
        /// How it went.
        result: Result<(), NodeFault>,
    },
    /// The writer pushes no more.
    Finish,
    /// The writer gives the stream up.
    Cancel,
    /// Other streams gave budget back, or time passed.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteAction {
    /// Grant the writer more payload bytes.
    Grant(u32),
    /// Write the block whose slices have all arrived.
    Write {
        /// The block.
        index: BlockIndex,
    },
    /// Tell the writer what is newly durable.
    Confirm {
        /// The blocks.
        blocks: IndexRanges,
    },
    /// Withdraw what waits in the device's queue for this stream.
    Withdraw,
    /// Answer with all that is durable. The last action.
    End {
        /// All durable blocks of the stream.
        blocks: IndexRanges,
    },
    /// Answer with a fault. The last action.
    Fail(Fault),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    Finishing,
    Stopping(Option<Fault>),
    Over,
}

/// The core of one write stream.
#[derive(Clone, Debug)]
pub struct WriteStream {
    block_bytes: u32,
    /// Of the blocks that the writer had in mind for the device, those that have not arrived.
    awaited: u32,
    window: Window,
    credit_bytes: u64,
    assembly: Assembly,
    writing: BTreeMap<BlockIndex, Time>,
    taken: IndexRanges,
    durable: IndexRanges,
    unconfirmed: IndexRanges,
    share: Share,
    opened: Time,
    heard_first: bool,
    first_delay: Duration,
    /// Since when nothing arrived and nothing was written.
    silent_since: Time,
    /// The device's, in bytes per second; 0 where unknown.
    pace: u64,
    stage: Stage,
    actions: VecDeque<WriteAction>,
}

impl WriteStream {
    /// A stream for `open`, whose device already holds `held` of the segment; `write_bytes_per_s` is the device's
    /// measured speed, 0 where unknown. The first grant is there at once, as far as the budget has room.
    ///
    /// # Errors
    /// [`Fault::Protocol`] for sizes that no block has; [`Fault::Refused`] while the budget is taken.
    pub fn new(
        now: Time,
        open: &WriteOpen,
        held: IndexRanges,
        write_bytes_per_s: u64,
        budget: &mut Budget,
    ) -> Result<Self, Fault> {
        check_sizes(open)?;
        let block = u64::from(open.block_bytes);
        let share = budget.join(block).ok_or_else(|| refused(budget.used_bytes(), write_bytes_per_s))?;
        let expected = block * u64::from(open.expected_blocks.max(1));
        let floor = BLOCKS_MIN * block;
        // All of a chunk comes, and becomes durable at once where all is on the way: a part at a time took a flush each, and the
        // writer waited for it. Of blocks that others may store instead no more than a share waits here.
        let (first, ceiling) = match open.reserve_bytes {
            Some(_) => (expected, expected),
            None => (2 * floor, expected / EXPECTED_SHARE),
        };
        let mut stream = Self {
            block_bytes: open.block_bytes,
            awaited: open.expected_blocks,
            window: Window::new(floor, first, ceiling.min(BLOCKS_MAX * block)),
            credit_bytes: 0,
            assembly: Assembly::new(open.block_bytes, open.granule_bytes),
            writing: BTreeMap::new(),
            taken: held,
            durable: IndexRanges::new(),
            unconfirmed: IndexRanges::new(),
            share,
            opened: now,
            heard_first: false,
            first_delay: Duration::ZERO,
            silent_since: now,
            pace: write_bytes_per_s,
            stage: Stage::Open,
            actions: VecDeque::new(),
        };
        stream.grant(budget);
        Ok(stream)
    }

    /// What the device holds of the segment, where that was not known before; the stream begins now. To be said before any slice.
    pub fn begin(&mut self, now: Time, held: IndexRanges) {
        // Its writer hears of its credit only now.
        (self.opened, self.silent_since) = (now, now);
        self.taken = held;
    }

    /// Something happened; see the crate's head for the contract.
    ///
    /// # Panics
    /// When `Written` names a block that is not being written: the driver's mistake.
    pub fn handle(&mut self, now: Time, input: WriteInput, budget: &mut Budget) {
        if self.stage == Stage::Over {
            return;
        }
        match input {
            WriteInput::Slice { index, offset, bytes, sums } => {
                if self.stage == Stage::Open {
                    if let Err(fault) = self.slice(now, index, offset, bytes, sums) {
                        self.stop(Some(fault));
                    }
                } else if self.stage == Stage::Finishing {
                    self.stop(Some(Fault::Protocol("a slice came after Finish".to_owned())));
                }
            }
            WriteInput::Damaged { index } => self.stop(Some(Fault::Node(NodeFault::Damaged { index }))),
            WriteInput::Violation { what } => self.stop(Some(Fault::Protocol(what))),
            WriteInput::Written { index, result } => self.written(now, index, result, budget),
            WriteInput::Finish => self.finish(),
            WriteInput::Cancel => self.stop(None),
            WriteInput::Tick => {
                if self.could_yield() && budget.is_wanted() && now.since(self.silent_since) >= SILENT {
                    self.stop(Some(refused(budget.used_bytes(), self.pace)));
                }
            }
        }
        self.advance(budget);
    }

    /// Ends the stream without its answers and gives its budget back: its driver is going away.
    pub fn abandon(&mut self, budget: &mut Budget) {
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            budget.leave(&mut self.share);
        }
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<WriteAction> {
        // Confirmations merge until they are fetched, and always come before the end.
        if !self.unconfirmed.is_empty()
            && matches!(self.actions.front(), None | Some(WriteAction::End { .. } | WriteAction::Fail(_)))
        {
            return Some(WriteAction::Confirm { blocks: core::mem::take(&mut self.unconfirmed) });
        }
        self.actions.pop_front()
    }

    /// Never: the stream waits for its device and its writer only.
    pub fn wake_at(&self) -> Option<Time> {
        None
    }

    /// Whether it would grant more if the budget had room: the driver ticks it when others give some back.
    pub fn is_starved(&self) -> bool {
        self.stage == Stage::Open && self.credit_bytes < self.window.bytes().min(u64::from(self.block_bytes))
    }

    /// Whether it has what others could use while its writer sends nothing: the driver ticks it when others find no room.
    pub fn could_yield(&self) -> bool {
        self.stage == Stage::Open && self.writing.is_empty()
    }

    /// Whether it was given up, or what its writer sent was wrong: it takes no slice any more, and what has arrived of a block is
    /// not needed.
    pub fn is_stopping(&self) -> bool {
        matches!(self.stage, Stage::Stopping(_) | Stage::Over)
    }

    /// Blocks being written.
    pub fn writing(&self) -> usize {
        self.writing.len()
    }

    /// Whether further blocks are likely to arrive soon: the writer has credit, and not sent what it had in mind. Making a block durable
    /// may wait a little for them.
    pub fn expects_more(&self) -> bool {
        self.stage == Stage::Open && self.awaited > 0 && self.credit_bytes > 0
    }

    fn slice(
        &mut self,
        now: Time,
        index: BlockIndex,
        offset: u32,
        bytes: u32,
        sums: u32,
    ) -> Result<(), Fault> {
        let violation = |what: String| Err(Fault::Protocol(what));
        if index == BlockIndex::MAX {
            // Ranges of indices end behind their last one.
            return violation(format!("no block has the number {index}"));
        }
        if u64::from(bytes) > self.credit_bytes {
            return violation(format!(
                "a slice of {bytes} bytes came with {} bytes of credit",
                self.credit_bytes
            ));
        }
        if self.assembly.begun().is_none() && self.taken.contains(index) {
            return violation(format!("block {index} came twice: indices are never reused"));
        }
        let whole = self.assembly.slice(index, offset, bytes, sums).map_err(Fault::Protocol)?;
        if !self.heard_first {
            self.heard_first = true;
            self.first_delay = now.since(self.opened);
            self.window.passed(now, 0);
        }
        self.silent_since = now;
        self.credit_bytes -= u64::from(bytes);
        self.taken.insert(index);
        if whole {
            self.awaited = self.awaited.saturating_sub(1);
            self.writing.insert(index, now);
            self.actions.push_back(WriteAction::Write { index });
        }
        Ok(())
    }

    fn written(&mut self, now: Time, index: BlockIndex, result: Result<(), NodeFault>, budget: &mut Budget) {
        let since = self.writing.remove(&index).expect("only blocks being written come back");
        self.silent_since = now;
        let block = u64::from(self.block_bytes);
        budget.give(&mut self.share, block);
        match result {
            Ok(()) => {
                self.durable.insert(index);
                self.unconfirmed.insert(index);
                self.window.delayed(now.since(since) + self.first_delay);
                self.window.passed(now, block);
            }
            // A withdrawn write of a stopping stream is no news.
            Err(fault) => self.stop(Some(Fault::Node(fault))),
        }
    }

    fn finish(&mut self) {
        if self.stage != Stage::Open {
            return;
        }
        match self.assembly.begun() {
            None => self.stage = Stage::Finishing,
            Some(index) => self.stop(Some(Fault::Protocol(format!(
                "Finish came in block {index} at {} of {} bytes",
                self.assembly.filled_bytes(),
                self.block_bytes
            )))),
        }
    }

    fn stop(&mut self, fault: Option<Fault>) {
        if !matches!(self.stage, Stage::Open | Stage::Finishing) {
            return;
        }
        self.stage = Stage::Stopping(fault);
        self.assembly.clear();
        let undone: Vec<WriteAction> = self.actions.drain(..).collect();
        for action in undone {
            match action {
                WriteAction::Write { index } => {
                    self.writing.remove(&index);
                }
                WriteAction::Grant(_) => {}
                other => self.actions.push_back(other),
            }
        }
        if !self.writing.is_empty() {
            self.actions.push_back(WriteAction::Withdraw);
        }
    }

    fn advance(&mut self, budget: &mut Budget) {
        match &self.stage {
            Stage::Open => self.grant(budget),
            Stage::Finishing | Stage::Stopping(_) if self.writing.is_empty() => {
                let fault =
                    if let Stage::Stopping(Some(fault)) = &self.stage { Some(fault.clone()) } else { None };
                self.stage = Stage::Over;
                budget.leave(&mut self.share);
                self.actions.push_back(match fault {
                    Some(fault) => WriteAction::Fail(fault),
                    None => WriteAction::End { blocks: self.durable.clone() },
                });
            }
            Stage::Finishing | Stage::Stopping(_) | Stage::Over => {}
        }
    }

    fn grant(&mut self, budget: &mut Budget) {
        let window = match self.heard_first {
            true => self.window.bytes(),
            false => self.window.bytes().min(u64::from(self.block_bytes)),
        };
        let room = window.saturating_sub(self.share.held_bytes());
        // Few grants: a quarter of the window at a time, unless the writer is about to run dry.
        let slice = u64::from(self.block_bytes.min(PAYLOAD_BYTES_MAX));
        if room < (window / 4).max(slice) && self.credit_bytes >= slice {
            return;
        }
        let granted = budget.take(&mut self.share, room.min(u64::from(u32::MAX)));
        if granted > 0 {
            self.credit_bytes += granted;
            self.actions.push_back(WriteAction::Grant(u32::try_from(granted).expect("bounded above")));
        }
    }
}

fn check_sizes(open: &WriteOpen) -> Result<(), Fault> {
    use crate::layout::BLOCK_BYTES_MAX;
    let WriteOpen { block_bytes, granule_bytes, .. } = *open;
    let granule_fits = granule_bytes.is_power_of_two() && (4 << 10..=64 << 10).contains(&granule_bytes);
    if block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX || !granule_fits {
        return Err(Fault::Protocol(format!(
            "blocks of {block_bytes} bytes under checksums of {granule_bytes}: blocks have 1 to {BLOCK_BYTES_MAX}, granules a power of two from 4096 to 65536"
        )));
    }
    Ok(())
}
