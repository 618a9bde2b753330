//! A parity chunk at its node: which differences it has, and when they become part of the chunk.
//!
//! ```text
//!   Difference(v) ──▶ v = received + 1 ? ── no, less ──▶ acknowledged again, once durable
//!                          │      └──────── no, more ──▶ refused: a gap
//!                          ▼
//!          Logged: append ──▶ Appended ──▶ ack        InPlace: overwrite ──▶ Overwritten ──▶ ack
//!                    │ full                            (redo record; undone or repeated never, since the
//!                    ▼                                  version is stored with the bytes)
//!          merge what is committed; once nothing is under way, append in the order of versions again
//! ```
//!
//! Invariants: the versions of a data chunk are taken one after the other, each once; `merged <= committed` where it is
//! logged; a merge takes the log's committed prefix, and makes patches, versions and the log's new start durable as one;
//! nothing is answered before it is durable; an epoch is durable before anything is answered under it.

use super::{Behind, ChunkNumber, Refusal, record};
use crate::Epoch;
use std::collections::{BTreeMap, VecDeque};

/// How a parity chunk takes differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In the reserve beside the chunk (PLR).
    Logged,
    /// Into the chunk at once (FO; also PLR where the reserve was given back, §4.2.2). The medium must keep the difference
    /// until [`ParityAction::Release`], for whoever levels.
    InPlace,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParityInput {
    /// A difference arrived; the driver keeps its bytes until it is answered.
    Difference {
        /// Who waits for the answer; no two differences of other bytes alike.
        reply: u64,
        /// The sender's epoch.
        epoch: Epoch,
        /// The sender's life.
        session: u64,
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
        /// Bytes of its record.
        bytes: u32,
        /// What the sender knows to be committed.
        committed: u64,
    },
    /// [`ParityAction::Append`] is durable.
    Appended {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
        /// The record's number in the log.
        sequence: u64,
        /// Bytes that it takes there.
        bytes: u32,
    },
    /// [`ParityAction::Append`] found no room, or not its number because one before it found none.
    Full {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
        /// The difference that it was.
        reply: u64,
    },
    /// [`ParityAction::Overwrite`] is durable.
    Overwritten {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
    },
    /// These of [`ParityAction::Overwrite`] were not begun, and will not be: whoever asked sends them again.
    Withdrawn {
        /// The data chunk.
        chunk: ChunkNumber,
        /// The first such version.
        first: u64,
        /// How many.
        count: usize,
    },
    /// What is committed of a data chunk.
    Committed {
        /// The sender's epoch.
        epoch: Epoch,
        /// The data chunk.
        chunk: ChunkNumber,
        /// The last committed version.
        through: u64,
    },
    /// Somebody levels: asks what is here of a data chunk, under an epoch.
    Ask {
        /// Who waits for the answer.
        reply: u64,
        /// The asker's epoch.
        epoch: Epoch,
        /// The asker's life: from now on differences of earlier ones are refused.
        session: u64,
        /// The data chunk.
        chunk: ChunkNumber,
    },
    /// [`ParityAction::Fence`] is durable.
    Fenced {
        /// The epoch.
        epoch: Epoch,
    },
    /// The log is to be merged as far as it is committed: the node is idle, or a period ended.
    MergeDue,
    /// [`ParityAction::Merge`] is durable.
    Merged,
    /// How differences are taken from now on; takes effect once the log is empty.
    Mode(Mode),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParityAction {
    /// Append a difference to the log as record `sequence` or not at all; answered, in the order asked, by
    /// [`ParityInput::Appended`] or [`ParityInput::Full`]. An empty log has room for any record.
    Append {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
        /// The number that its record must get: none is in the log without those before it.
        sequence: u64,
        /// The [`ParityInput::Difference`] that brought it.
        reply: u64,
    },
    /// XOR its product into the chunk, together with its version, through a redo record; answered by
    /// [`ParityInput::Overwritten`].
    Overwrite {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
        /// The [`ParityInput::Difference`] that brought it.
        reply: u64,
    },
    /// Fold these records, XOR their products into the chunk, and make that, the versions and the log's new start durable as
    /// one; answered by [`ParityInput::Merged`].
    Merge {
        /// Records of the log, in its order, without a gap from its start.
        sequences: Vec<u64>,
        /// What is part of the chunk then.
        merged: Vec<(ChunkNumber, u64)>,
        /// The log's first record then.
        log_start: u64,
    },
    /// Make an epoch durable; answered by [`ParityInput::Fenced`].
    Fence {
        /// The epoch.
        epoch: Epoch,
    },
    /// Everything up to this version is durable here.
    Ack {
        /// Who waits.
        reply: u64,
        /// The data chunk.
        chunk: ChunkNumber,
        /// The last such version.
        through: u64,
    },
    /// The difference is not taken.
    Refuse {
        /// Who waits.
        reply: u64,
        /// Why.
        reason: Refusal,
    },
    /// In place, a version became committed: its old bytes are not needed any more.
    Release {
        /// The data chunk.
        chunk: ChunkNumber,
        /// The last such version.
        through: u64,
    },
}

/// What is durable of a parity chunk: what the core begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ParityState {
    /// The highest epoch.
    pub epoch: Epoch,
    /// Versions that are part of the chunk, by data chunk.
    pub merged: Vec<(ChunkNumber, u64)>,
    /// The log in its order.
    pub log: Vec<Entry>,
    /// Number of the log's next record.
    pub log_next: u64,
}

/// A log that lacks a version of a data chunk, or has one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {sequence} of a parity log has version {version} of data chunk {chunk} where {expected} is next: make the parity \
     chunk anew from the others"
)]
pub struct BrokenLog {
    /// The record.
    pub sequence: u64,
    /// The data chunk.
    pub chunk: ChunkNumber,
    /// The version that it has.
    pub version: u64,
    /// The version that the chunk and the records before it make the next one.
    pub expected: u64,
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its number in the log.
    pub sequence: u64,
    /// The data chunk.
    pub chunk: ChunkNumber,
    /// Its version.
    pub version: u64,
    /// Bytes that it takes.
    pub bytes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Versions {
    /// Taken, durable or not.
    received: u64,
    durable: u64,
    committed: u64,
    merged: u64,
    /// The last epoch and life that asked; none since this node started: nothing is taken before.
    session: Option<(Epoch, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiter {
    Difference { version: u64 },
    Ask,
}

/// A difference that is not logged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Arrived {
    reply: u64,
    bytes: u32,
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParityChunk {
    mode: Mode,
    wanted_mode: Mode,
    /// Known here; [`ParityChunk::fenced`] says how much of it is durable.
    epoch: Epoch,
    fenced: Epoch,
    /// A merge takes at most so many bytes of the log, but at least one record.
    merge_bytes_max: u64,
    chunks: BTreeMap<ChunkNumber, Versions>,
    log: VecDeque<Entry>,
    /// Whoever waits for something durable: answered in order.
    waiters: Vec<(u64, ChunkNumber, Epoch, Waiter)>,
    /// What may lie behind what is not committed.
    behind: Behind,
    /// Differences that wait for room.
    stalled: BTreeMap<(ChunkNumber, u64), Arrived>,
    /// Those that wait until there is less behind what is not committed: [`Behind`].
    held_back: BTreeMap<(ChunkNumber, u64), Arrived>,
    /// Appends that were asked for and not answered, in order.
    appending: VecDeque<(ChunkNumber, u32)>,
    /// Whether appends are under way behind one that found no room.
    failing: bool,
    /// Appends and overwrites that were asked for and not answered.
    writing: usize,
    /// Number of the record after those.
    next_sequence: u64,
    /// Number of the record after those that are in the log.
    appended_next: u64,
    /// Whether there may be room that was not there when the stalled ones were tried.
    retry: bool,
    /// Records of the merge in hand.
    merging: usize,
    merging_to: Vec<(ChunkNumber, u64)>,
    actions: VecDeque<ParityAction>,
}

impl ParityChunk {
    /// A parity chunk as it is on its device; `merge_bytes_max` bounds one merge.
    ///
    /// # Errors
    /// [`BrokenLog`] where the log is not what a core has written: the chunk must be made anew from the others.
    pub fn new(mode: Mode, state: ParityState, merge_bytes_max: u64) -> Result<Self, BrokenLog> {
        let mut chunks: BTreeMap<ChunkNumber, Versions> = BTreeMap::new();
        for (chunk, merged) in state.merged {
            let committed = if mode == Mode::Logged { merged } else { 0 };
            let versions = Versions { received: merged, durable: merged, committed, merged, session: None };
            chunks.insert(chunk, versions);
        }
        for entry in &state.log {
            let versions = chunks.entry(entry.chunk).or_default();
            if entry.version != versions.durable + 1 {
                let (Entry { sequence, chunk, version, .. }, expected) = (*entry, versions.durable + 1);
                return Err(BrokenLog { sequence, chunk, version, expected });
            }
            (versions.received, versions.durable) = (entry.version, entry.version);
        }
        Ok(Self {
            mode: if state.log.is_empty() { mode } else { Mode::Logged },
            wanted_mode: mode,
            epoch: state.epoch,
            fenced: state.epoch,
            merge_bytes_max,
            chunks,
            log: state.log.into(),
            waiters: Vec::new(),
            behind: Behind::unbounded(),
            stalled: BTreeMap::new(),
            held_back: BTreeMap::new(),
            appending: VecDeque::new(),
            failing: false,
            writing: 0,
            next_sequence: state.log_next,
            appended_next: state.log_next,
            retry: false,
            merging: 0,
            merging_to: Vec::new(),
            actions: VecDeque::new(),
        })
    }

    /// The same where so much may lie behind what is not committed.
    #[must_use]
    pub fn with_bound(self, behind: Behind) -> Self {
        Self { behind, ..self }
    }

    /// The highest epoch that was seen.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last version of a data chunk that is durable here, in the chunk or its log.
    pub fn durable(&self, chunk: ChunkNumber) -> u64 {
        self.versions(chunk).durable
    }

    /// The last version of a data chunk that is part of the parity chunk.
    pub fn merged(&self, chunk: ChunkNumber) -> u64 {
        self.versions(chunk).merged
    }

    /// The log in its order.
    pub fn log(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.log.iter()
    }

    /// Bytes of the reserve that the log takes at most: by pages, small records take more than their bytes.
    pub fn logged_bytes(&self) -> u64 {
        self.log.iter().map(|entry| record::logged_bytes(entry.bytes as usize)).sum()
    }

    /// Bytes of the log that a merge could take now.
    pub fn mergeable_bytes(&self) -> u64 {
        self.log.iter().take(self.committed_prefix()).map(|entry| u64::from(entry.bytes)).sum()
    }

    /// The log's first record that is not known to be committed.
    pub fn first_uncommitted(&self) -> Option<&Entry> {
        self.log.get(self.committed_prefix())
    }

    /// Whether a merge is being made.
    pub fn is_merging(&self) -> bool {
        self.merging > 0
    }

    /// Whether differences wait for room in the log.
    pub fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Whether differences wait until the log's first records are committed.
    pub fn is_held_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// Whether differences of a data chunk wait until then.
    pub fn holds_back(&self, chunk: ChunkNumber) -> bool {
        self.held_back.range((chunk, 0)..=(chunk, u64::MAX)).next().is_some()
    }

    /// Whether somebody waits to hear what is here of a data chunk.
    pub fn is_asked(&self, chunk: ChunkNumber) -> bool {
        self.waiters.iter().any(|&(_, of, _, waiter)| of == chunk && waiter == Waiter::Ask)
    }

    /// Whether this life of a data chunk's sender is the one that asked last, and under the latest epoch: so it is once its question was
    /// taken, and not where that was refused.
    pub fn is_latest(&self, chunk: ChunkNumber, epoch: Epoch, session: u64) -> bool {
        epoch == self.epoch && self.versions(chunk).session == Some((epoch, session))
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<ParityAction> {
        self.actions.pop_front()
    }

    /// Tells it what happened; then [`ParityChunk::poll`] until `None`.
    pub fn handle(&mut self, input: ParityInput) {
        match input {
            ParityInput::Difference { reply, epoch, session, chunk, version, bytes, committed } => {
                if self.admit(reply, epoch, session, chunk) {
                    self.take(Arrived { reply, bytes }, epoch, chunk, version, committed);
                }
            }
            ParityInput::Appended { chunk, version, sequence, bytes } => {
                self.appending.pop_front();
                self.log.push_back(Entry { sequence, chunk, version, bytes });
                self.appended_next = sequence + 1;
                self.written(chunk, version);
            }
            ParityInput::Full { chunk, version, reply } => {
                self.failing = true;
                let bytes = self.appending.pop_front().map_or(0, |(_, bytes)| bytes);
                self.answered();
                if version <= self.versions(chunk).received {
                    if self.is_asked(chunk) {
                        // Room may depend on what the asker does with the answer.
                        self.forget_from(chunk, version);
                        self.answer();
                    } else if !self.held_back.contains_key(&(chunk, version)) {
                        // One that arrived again since is of a later life.
                        self.stalled.entry((chunk, version)).or_insert(Arrived { reply, bytes });
                    }
                }
                self.make_room();
            }
            ParityInput::Overwritten { chunk, version } => {
                let versions = self.chunks.entry(chunk).or_default();
                versions.merged = versions.merged.max(version);
                self.written(chunk, version);
            }
            ParityInput::Withdrawn { chunk, first, count } => {
                (0..count).for_each(|_| self.answered());
                self.forget_from(chunk, first);
                self.answer();
                self.change_mode();
            }
            ParityInput::Committed { epoch, chunk, through } => {
                if epoch >= self.epoch {
                    self.committed(chunk, through);
                }
            }
            ParityInput::Ask { reply, epoch, session, chunk } => {
                if self.asked(reply, epoch, session, chunk) {
                    self.waiters.push((reply, chunk, epoch, Waiter::Ask));
                    self.answer();
                }
            }
            ParityInput::Fenced { epoch } => {
                self.fenced = self.fenced.max(epoch);
                self.answer();
            }
            ParityInput::MergeDue => self.merge(),
            ParityInput::Merged => self.was_merged(),
            ParityInput::Mode(mode) => {
                self.wanted_mode = mode;
                self.change_mode();
            }
        }
    }

    /// Whether the sender's epoch is not older than any; a newer one is made durable.
    fn raise(&mut self, reply: u64, epoch: Epoch) -> bool {
        if epoch < self.epoch {
            let reason = Refusal::Stale { held: self.epoch, superseded: false };
            self.actions.push_back(ParityAction::Refuse { reply, reason });
            return false;
        }
        if epoch > self.epoch {
            self.epoch = epoch;
            self.actions.push_back(ParityAction::Fence { epoch });
        }
        true
    }

    /// Whether a difference is of the life of its sender that asked last.
    fn admit(&mut self, reply: u64, epoch: Epoch, session: u64, chunk: ChunkNumber) -> bool {
        if !self.raise(reply, epoch) {
            return false;
        }
        let reason = match self.versions(chunk).session {
            Some(last) if last == (epoch, session) => return true,
            Some(last) if last > (epoch, session) => Refusal::Stale { held: last.0, superseded: true },
            _ => Refusal::Gap,
        };
        self.actions.push_back(ParityAction::Refuse { reply, reason });
        false
    }

    /// Whether the asker is not an earlier life of one that asked; if so, what is of earlier ones and not in the log yet is
    /// forgotten: nobody was answered for it, and whoever asks sends it again.
    fn asked(&mut self, reply: u64, epoch: Epoch, session: u64, chunk: ChunkNumber) -> bool {
        if !self.raise(reply, epoch) {
            return false;
        }
        let versions = self.chunks.entry(chunk).or_default();
        if let Some(last) = versions.session.filter(|last| *last > (epoch, session)) {
            let reason = Refusal::Stale { held: last.0, superseded: true };
            self.actions.push_back(ParityAction::Refuse { reply, reason });
            return false;
        }
        versions.session = Some((epoch, session));
        let all = (chunk, 0)..=(chunk, u64::MAX);
        let first = [&self.stalled, &self.held_back].map(|waiting| waiting.range(all.clone()).next());
        if let Some(version) = first.into_iter().flatten().map(|(&(_, version), _)| version).min() {
            self.forget_from(chunk, version);
        }
        true
    }

    /// Forgets differences that found no room, or wait for it, from a version on.
    fn forget_from(&mut self, chunk: ChunkNumber, version: u64) {
        self.chunks.entry(chunk).or_default().received = version - 1;
        self.stalled.retain(|(of, _), _| *of != chunk);
        self.held_back.retain(|(of, _), _| *of != chunk);
        let actions = &mut self.actions;
        self.waiters.retain(|&(reply, of, _, waiter)| {
            let gone = of == chunk && matches!(waiter, Waiter::Difference { version: of } if of >= version);
            if gone {
                actions.push_back(ParityAction::Refuse { reply, reason: Refusal::Gap });
            }
            !gone
        });
        self.let_go();
    }

    fn take(&mut self, arrived: Arrived, epoch: Epoch, chunk: ChunkNumber, version: u64, committed: u64) {
        let reply = arrived.reply;
        self.committed(chunk, committed);
        let versions = self.chunks.entry(chunk).or_default();
        let expected = versions.received + 1;
        if version > expected {
            self.actions.push_back(ParityAction::Refuse { reply, reason: Refusal::Gap });
            return;
        }
        self.waiters.push((reply, chunk, epoch, Waiter::Difference { version }));
        if version == expected {
            versions.received = version;
            // Versions of a chunk keep their order.
            let is_held_back = self.holds_back(chunk) || !self.takes(chunk, arrived);
            if is_held_back {
                self.held_back.insert((chunk, version), arrived);
            } else {
                self.let_in(chunk, version, arrived);
            }
        }
        self.answer();
    }

    /// Whether the log takes it where it stands: [`Behind`].
    fn takes(&self, chunk: ChunkNumber, arrived: Arrived) -> bool {
        if self.mode == Mode::InPlace {
            return true;
        }
        // What found no room will have it before this.
        let stalled = self.stalled.iter().map(|(&(chunk, _), arrived)| (chunk, arrived.bytes));
        let asked = || self.appending.iter().copied().chain(stalled.clone());
        let logged = |bytes: u32| record::logged_bytes(bytes as usize);
        let asked_bytes: u64 = asked().map(|(_, bytes)| logged(bytes)).sum();
        if self.behind.takes_any((self.logged_bytes() + asked_bytes).saturating_add(logged(arrived.bytes))) {
            return true;
        }
        let there = self.log.iter().skip(self.committed_prefix()).map(|entry| (entry.chunk, entry.bytes));
        self.behind.takes(there.chain(asked()), (chunk, arrived.bytes))
    }

    fn let_in(&mut self, chunk: ChunkNumber, version: u64, arrived: Arrived) {
        if self.stalled.is_empty() && !self.failing {
            self.write(chunk, version, arrived);
        } else {
            // Behind what waits for room.
            self.stalled.insert((chunk, version), arrived);
        }
    }

    /// Lets in what was held back and is not any more, of each chunk in the order of its versions.
    fn let_go(&mut self) {
        let mut held = None;
        for ((chunk, version), arrived) in std::mem::take(&mut self.held_back) {
            if held == Some(chunk) || !self.takes(chunk, arrived) {
                held = Some(chunk);
                self.held_back.insert((chunk, version), arrived);
            } else {
                self.let_in(chunk, version, arrived);
            }
        }
    }

    fn write(&mut self, chunk: ChunkNumber, version: u64, Arrived { reply, bytes }: Arrived) {
        self.writing += 1;
        self.actions.push_back(match self.mode {
            Mode::Logged => {
                self.appending.push_back((chunk, bytes));
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                ParityAction::Append { chunk, version, sequence, reply }
            }
            Mode::InPlace => ParityAction::Overwrite { chunk, version, reply },
        });
    }

    fn written(&mut self, chunk: ChunkNumber, version: u64) {
        self.answered();
        self.became_durable(chunk, version);
        self.make_room();
        self.change_mode();
    }

    /// One of those under way is answered. After the last, what is in the log says which number is next.
    fn answered(&mut self) {
        self.writing -= 1;
        if self.writing == 0 {
            self.failing = false;
            self.next_sequence = self.appended_next;
        }
    }

    /// Tries the stalled ones again once all that was tried is answered and there may be room; else merges to make some. What
    /// one merge made room for is tried before another begins: whoever waits would wait for that, too.
    fn make_room(&mut self) {
        if self.stalled.is_empty() {
            // What finds no room from now on was tried after the last merge.
            self.retry &= self.writing > 0;
            return;
        }
        if !(self.retry || self.log.is_empty()) {
            self.merge();
            return;
        }
        if self.writing > 0 || self.merging > 0 {
            return;
        }
        self.retry = false;
        for ((chunk, version), arrived) in std::mem::take(&mut self.stalled) {
            self.write(chunk, version, arrived);
        }
    }

    fn became_durable(&mut self, chunk: ChunkNumber, version: u64) {
        let versions = self.chunks.entry(chunk).or_default();
        assert_eq!(version, versions.durable + 1, "the medium takes differences in the order asked");
        versions.durable = version;
        self.answer();
    }

    fn committed(&mut self, chunk: ChunkNumber, through: u64) {
        let versions = self.chunks.entry(chunk).or_default();
        let through = through.min(versions.durable);
        if through <= versions.committed {
            return;
        }
        if versions.merged > versions.committed {
            // Overwritten in place before it was committed.
            let through = through.min(versions.merged);
            self.actions.push_back(ParityAction::Release { chunk, through });
        }
        versions.committed = through;
        self.let_go();
        self.make_room();
    }

    /// Answers whoever waits for what is durable by now.
    fn answer(&mut self) {
        let (fenced, chunks, actions) = (self.fenced, &self.chunks, &mut self.actions);
        self.waiters.retain(|&(reply, chunk, epoch, waiter)| {
            let versions = chunks.get(&chunk).copied().unwrap_or_default();
            // What an asker hears of must stay, so all that was taken before it counts and must be durable.
            let ready = fenced >= epoch
                && match waiter {
                    Waiter::Difference { version } => versions.durable >= version,
                    Waiter::Ask => versions.durable == versions.received,
                };
            if ready {
                actions.push_back(ParityAction::Ack { reply, chunk, through: versions.durable });
            }
            !ready
        });
    }

    fn committed_prefix(&self) -> usize {
        let committed = |entry: &&Entry| entry.version <= self.versions(entry.chunk).committed;
        self.log.iter().take_while(committed).count()
    }

    fn merge(&mut self) {
        if self.merging > 0 {
            return;
        }
        let mut bytes = 0;
        let mut merged: BTreeMap<ChunkNumber, u64> = BTreeMap::new();
        let mut sequences = Vec::new();
        for entry in self.log.iter().take(self.committed_prefix()) {
            bytes += u64::from(entry.bytes);
            if bytes > self.merge_bytes_max && !sequences.is_empty() {
                break;
            }
            sequences.push(entry.sequence);
            merged.insert(entry.chunk, entry.version);
        }
        let Some(last) = sequences.last() else { return };
        let log_start = last + 1;
        self.merging = sequences.len();
        self.merging_to = merged.into_iter().collect();
        let merged = self.merging_to.clone();
        self.actions.push_back(ParityAction::Merge { sequences, merged, log_start });
    }

    fn was_merged(&mut self) {
        self.log.drain(..std::mem::take(&mut self.merging));
        for (chunk, version) in std::mem::take(&mut self.merging_to) {
            let versions = self.chunks.entry(chunk).or_default();
            versions.merged = versions.merged.max(version);
        }
        self.retry = true;
        self.let_go();
        self.make_room();
        self.change_mode();
    }

    fn change_mode(&mut self) {
        if self.mode == self.wanted_mode {
            return;
        }
        if self.log.is_empty() && self.merging == 0 && self.writing == 0 {
            self.mode = self.wanted_mode;
            self.make_room();
        } else {
            self.merge();
        }
    }

    fn versions(&self, chunk: ChunkNumber) -> Versions {
        self.chunks.get(&chunk).copied().unwrap_or_default()
    }
}
