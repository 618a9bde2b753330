//! One read stream at a storage server: "send me all you have of this segment until I cancel" (dissertation §5.3.3).
//!
//! ```text
//!            Read ─▶ Reading ──Read(Ok)──▶ Ready ──Send──▶ Sending ──Sent──▶ (gone)
//!  slice ──▶                 ──Read(Corrupt)─▶ skipped, and with it the rest of its block
//!                            ──Read(Unreadable)─▶ the same, of so many blocks at most
//! ```
//!
//! Invariants: slices are sent in order, each once, and never beyond the credit granted; at most `slices_max` are
//! being read, ready or being sent, which bounds memory; after [`ReadInput::Finish`] no `Read` follows; after
//! [`ReadInput::Cancel`] no `Read` and no `Send` follow, and the stream ends when the reads that were under way have
//! come back. Credit is set aside when a slice is read.
//!
//! One whose reader grants nothing is refused once others have found no room for as long as makes a writer silent: what its floor takes
//! they may need, and its reader opens another where it goes on.

use super::{admission::refused, write_stream::SILENT};
use crate::{
    BlockIndex, Time,
    message::{Fault, NodeFault, ReadDone},
};
use std::collections::VecDeque;

/// Bytes that the medium has on their way behind what it reads, at least; twice as many at most, which a stream that is cancelled may
/// have fetched in vain. 10 ms of a disk of 100 MB/s, as long as it positions. Measured with 16 cold gets at a time of 64 MiB on one
/// disk: 0.5 MiB took 1.2 to 1.6 s, 1 and 2 MiB 0.9 to 1.2 s.
const AHEAD_BYTES: u32 = 1 << 20;
/// Blocks that the medium may fail to give before the stream ends: one bad place costs one block, and of a dead disk, which may take
/// seconds for each, few are asked for in vain. As many as say that a device gives nothing back (`steadfast_disk::lane`).
const UNREADABLE_MAX: u32 = 8;

/// Names one slice of the stream; counts up.
pub type SliceId = u64;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadInput {
    /// The reader grants more payload bytes.
    Credit(u32),
    /// A read has come back.
    ReadDone {
        /// The slice.
        slice: SliceId,
        /// How it went.
        result: ReadResult,
    },
    /// The connection took a slice; its bytes are no longer held here.
    Sent {
        /// The slice.
        slice: SliceId,
    },
    /// Others find no room.
    Wanted,
    /// The reader takes back what it has granted and is not being read: it wants what is, and no more.
    Finish,
    /// The reader wants no more.
    Cancel,
}

/// How a read went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// Its bytes are there and match their checksums.
    Good,
    /// Its bytes are there and do not match.
    Corrupt,
    /// The block is gone: deleted or trimmed while the stream was open.
    Gone,
    /// The request was withdrawn before it reached the medium.
    Withdrawn,
    /// The medium did not give what lies there; others of its places may be sound.
    Unreadable(NodeFault),
    /// The device failed.
    Failed(NodeFault),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAction {
    /// Read part of a block.
    Read {
        /// Its name from here on.
        slice: SliceId,
        /// The block.
        index: BlockIndex,
        /// Where in the block, in bytes.
        offset: u32,
        /// How many bytes.
        length: u32,
        /// How many bytes behind it, as blocks lie, the medium is to fetch meanwhile; zero where it does already.
        ahead: u32,
    },
    /// Send a slice that was read.
    Send {
        /// The slice.
        slice: SliceId,
        /// The block.
        index: BlockIndex,
        /// Where in the block, in bytes.
        offset: u32,
    },
    /// Drop a slice that was read and will not be sent.
    Discard {
        /// The slice.
        slice: SliceId,
    },
    /// Withdraw what waits in the device's queue for this stream.
    Withdraw,
    /// Answer that all was sent, or that the cancelled stream has stopped. The last action.
    End(ReadDone),
    /// Answer with a fault. The last action.
    Fail(Fault),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Reading,
    Ready,
    Skipped,
    Sending,
}

#[derive(Clone, Debug)]
struct SliceState {
    id: SliceId,
    index: BlockIndex,
    offset: u32,
    length: u32,
    state: State,
}

/// The core of one read stream.
#[derive(Clone, Debug)]
pub struct ReadStream {
    blocks: VecDeque<BlockIndex>,
    block_bytes: u32,
    slice_bytes: u32,
    slices_max: usize,
    offset: u32,
    /// Bytes behind what was asked for that the medium fetches.
    fetched_bytes: u32,
    next: SliceId,
    credit_bytes: u64,
    slices: VecDeque<SliceState>,
    skipping: Option<BlockIndex>,
    /// Blocks that the medium did not give.
    unreadable: u32,
    done: ReadDone,
    /// Since when others find no room, and it has read nothing.
    silent_since: Option<Time>,
    stopping: Option<Option<Fault>>,
    over: bool,
    actions: VecDeque<ReadAction>,
}

impl ReadStream {
    /// A stream that sends `blocks`, in this order, in slices of `slice_bytes` (a multiple of the granule), with at
    /// most `slices_max` of them held; `credit_bytes` is what the OPEN granted.
    ///
    /// # Panics
    /// When a size is zero.
    pub fn new(
        blocks: Vec<BlockIndex>,
        block_bytes: u32,
        slice_bytes: u32,
        slices_max: usize,
        credit_bytes: u32,
    ) -> Self {
        assert!(block_bytes > 0 && slice_bytes > 0 && slices_max > 0, "sizes of a stream are not zero");
        let mut stream = Self {
            blocks: blocks.into(),
            block_bytes,
            slice_bytes,
            slices_max,
            offset: 0,
            fetched_bytes: 0,
            next: 0,
            credit_bytes: credit_bytes.into(),
            slices: VecDeque::new(),
            skipping: None,
            unreadable: 0,
            done: ReadDone::default(),
            silent_since: None,
            stopping: None,
            over: false,
            actions: VecDeque::new(),
        };
        stream.advance();
        stream
    }

    /// Something happened; see the crate's head for the contract.
    ///
    /// # Panics
    /// When a result names a slice that is not being read or sent: the driver's mistake.
    pub fn handle(&mut self, now: Time, input: ReadInput) {
        match input {
            ReadInput::Credit(bytes) => self.credit_bytes += u64::from(bytes),
            ReadInput::ReadDone { slice, result } => self.read_done(slice, result),
            ReadInput::Sent { slice } => {
                let front =
                    self.slices.iter().position(|held| held.id == slice && held.state == State::Sending);
                if let Some(position) = front {
                    self.slices.remove(position);
                }
            }
            ReadInput::Wanted => {
                if self.could_yield() && now.since(*self.silent_since.get_or_insert(now)) >= SILENT {
                    // As soon as it likes: it is to grant something then.
                    self.stop(Some(refused(0, 1)));
                }
            }
            ReadInput::Finish => self.finish(),
            ReadInput::Cancel => self.stop(None),
        }
        self.advance();
        if !self.could_yield() {
            self.silent_since = None;
        }
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<ReadAction> {
        self.actions.pop_front()
    }

    /// The next action to carry out but for reads: for a driver that has no room for one now. What waits is taken back as ever by
    /// [`ReadInput::Finish`] and [`ReadInput::Cancel`].
    pub fn poll_but_reads(&mut self) -> Option<ReadAction> {
        let at = self.actions.iter().position(|action| !matches!(action, ReadAction::Read { .. }))?;
        self.actions.remove(at)
    }

    /// Bytes of the next slice that is to be read, where that is the next action.
    pub fn next_read_bytes(&self) -> Option<u32> {
        match self.actions.front() {
            Some(ReadAction::Read { length, .. }) => Some(*length),
            _ => None,
        }
    }

    /// Never: the stream waits for its device and its reader only.
    pub fn wake_at(&self) -> Option<Time> {
        None
    }

    /// Whether it holds nothing and has no credit to read anything: the driver tells it when others find no room.
    pub fn could_yield(&self) -> bool {
        self.slices.is_empty() && self.stopping.is_none() && !self.over
    }

    /// What was moved so far.
    pub fn moved(&self) -> ReadDone {
        self.done
    }

    fn read_done(&mut self, slice: SliceId, result: ReadResult) {
        let found = self.slices.iter_mut().find(|held| held.id == slice && held.state == State::Reading);
        let held = found.expect("a result names a slice that is being read");
        let (index, length) = (held.index, held.length);
        let good = match result {
            ReadResult::Good => true,
            ReadResult::Corrupt
            | ReadResult::Gone
            | ReadResult::Withdrawn
            | ReadResult::Unreadable(_)
            | ReadResult::Failed(_) => false,
        };
        held.state = if good { State::Ready } else { State::Skipped };
        if matches!(result, ReadResult::Good | ReadResult::Corrupt) {
            self.done.medium_bytes += u64::from(length);
        }
        let unreadable = matches!(result, ReadResult::Unreadable(_));
        self.unreadable += u32::from(unreadable && self.skipping != Some(index));
        let damaged = unreadable || result == ReadResult::Corrupt;
        match result {
            ReadResult::Failed(fault) => self.stop(Some(Fault::Node(fault))),
            ReadResult::Unreadable(fault) if self.unreadable > UNREADABLE_MAX => {
                self.stop(Some(Fault::Node(fault)));
            }
            _ if !good && self.stopping.is_none() => self.skip(index, damaged),
            _ => {}
        }
        if good && self.stopping.is_some() {
            self.drop_slice(slice);
        }
    }

    /// The rest of a block is not sent: its slices that wait are dropped, those still to be read are not read.
    fn skip(&mut self, index: BlockIndex, damaged: bool) {
        if self.skipping == Some(index) {
            return;
        }
        self.skipping = Some(index);
        self.done.corrupt_blocks += u32::from(damaged);
        if self.blocks.front() == Some(&index) {
            self.blocks.pop_front();
            self.offset = 0;
        }
    }

    /// Nothing more is begun. Of a block that is not read to its end no more is sent.
    fn finish(&mut self) {
        if self.stopping.is_some() || self.over {
            return;
        }
        if self.offset > 0
            && let Some(&cut) = self.blocks.front()
        {
            self.skip(cut, false);
        }
        self.blocks.clear();
        self.offset = 0;
        // A read that was never started is taken back here, one that waits at the device by its driver.
        let undone: Vec<SliceId> = self
            .actions
            .iter()
            .filter_map(
                |action| if let ReadAction::Read { slice, .. } = action { Some(*slice) } else { None },
            )
            .collect();
        self.actions.retain(|action| !matches!(action, ReadAction::Read { .. }));
        if let Some(first) = undone.first() {
            let cut = self.slices.iter().find(|held| held.id == *first).map(|held| held.index);
            cut.into_iter().for_each(|index| self.skip(index, false));
            self.slices.retain(|held| !undone.contains(&held.id));
        }
        if self.slices.iter().any(|held| held.state == State::Reading) {
            self.actions.push_back(ReadAction::Withdraw);
        }
    }

    /// Whether it was given up or failed: what is read for it yet is discarded.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    fn stop(&mut self, fault: Option<Fault>) {
        if self.stopping.is_some() || self.over {
            return;
        }
        self.stopping = Some(fault);
        self.blocks.clear();
        // Actions not yet carried out are taken back: a read that was never started, a slice not handed over.
        let undone: Vec<ReadAction> = self.actions.drain(..).collect();
        for action in undone {
            match action {
                ReadAction::Read { slice, .. } => self.slices.retain(|held| held.id != slice),
                ReadAction::Send { slice, .. } => {
                    let held = self.slices.iter_mut().find(|held| held.id == slice);
                    let held = held.expect("a slice to be sent is held");
                    held.state = State::Ready;
                    self.done.sent_bytes -= u64::from(held.length);
                }
                other => self.actions.push_back(other),
            }
        }
        let ready: Vec<SliceId> =
            self.slices.iter().filter(|held| held.state == State::Ready).map(|held| held.id).collect();
        for slice in ready {
            self.drop_slice(slice);
        }
        if self.slices.iter().any(|held| held.state == State::Reading) {
            self.actions.push_back(ReadAction::Withdraw);
        }
    }

    fn drop_slice(&mut self, slice: SliceId) {
        self.slices.retain(|held| held.id != slice);
        self.actions.push_back(ReadAction::Discard { slice });
    }

    fn advance(&mut self) {
        if self.over {
            return;
        }
        if let Some(fault) = &self.stopping {
            if self.slices.iter().all(|held| matches!(held.state, State::Sending | State::Skipped)) {
                self.over = true;
                self.actions.push_back(match fault {
                    Some(fault) => ReadAction::Fail(fault.clone()),
                    None => ReadAction::End(self.done),
                });
            }
            return;
        }
        self.send_in_order();
        self.read_ahead();
        if self.blocks.is_empty() && self.slices.iter().all(|held| held.state == State::Sending) {
            self.over = true;
            self.actions.push_back(ReadAction::End(self.done));
        }
    }

    fn send_in_order(&mut self) {
        let mut position = 0;
        while position < self.slices.len() {
            let held = &mut self.slices[position];
            match held.state {
                State::Reading => break,
                State::Sending => position += 1,
                State::Ready if self.skipping != Some(held.index) => {
                    held.state = State::Sending;
                    self.done.sent_bytes += u64::from(held.length);
                    let (slice, index, offset) = (held.id, held.index, held.offset);
                    self.actions.push_back(ReadAction::Send { slice, index, offset });
                    position += 1;
                }
                State::Ready | State::Skipped => {
                    self.credit_bytes += u64::from(held.length);
                    let ready = held.state == State::Ready;
                    let slice = held.id;
                    self.slices.remove(position);
                    if ready {
                        self.actions.push_back(ReadAction::Discard { slice });
                    }
                }
            }
        }
    }

    fn read_ahead(&mut self) {
        while self.slices.len() < self.slices_max {
            let Some(&index) = self.blocks.front() else { return };
            let length = self.slice_bytes.min(self.block_bytes - self.offset);
            if u64::from(length) > self.credit_bytes {
                return;
            }
            self.credit_bytes -= u64::from(length);
            let (slice, offset) = (self.next, self.offset);
            self.next += 1;
            self.slices.push_back(SliceState { id: slice, index, offset, length, state: State::Reading });
            self.offset += length;
            if self.offset == self.block_bytes {
                self.offset = 0;
                self.blocks.pop_front();
            }
            let ahead = self.fetch_behind(index, length);
            self.actions.push_back(ReadAction::Read { slice, index, offset, length, ahead });
        }
    }

    /// What the medium is to fetch behind a slice of block `index` that is read now: as soon as less than [`AHEAD_BYTES`] are on
    /// their way, twice as many, of blocks that follow one another.
    fn fetch_behind(&mut self, index: BlockIndex, length: u32) -> u32 {
        self.fetched_bytes = self.fetched_bytes.saturating_sub(length);
        if self.fetched_bytes >= AHEAD_BYTES {
            return 0;
        }
        let first = if self.offset > 0 { index } else { index.saturating_add(1) };
        let follow = (first..).zip(&self.blocks).take_while(|(expected, block)| expected == *block);
        let mut behind = 0;
        for _ in follow {
            behind += self.block_bytes - if behind == 0 { self.offset } else { 0 };
            if behind >= 2 * AHEAD_BYTES {
                break;
            }
        }
        let behind = behind.min(2 * AHEAD_BYTES);
        if behind <= self.fetched_bytes {
            return 0;
        }
        self.fetched_bytes = behind;
        behind
    }
}
