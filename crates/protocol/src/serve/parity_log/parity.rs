//! A parity chunk at its node: which differences it has, and when they become part of the chunk.
//!
//! ```text
//!   Difference(v) ──▶ v = received + 1 ? ── no, less ──▶ acknowledged again, once durable
//!                          │      └──────── no, more ──▶ refused: a gap
//!                          ▼
//!          Logged: append ──▶ Appended ──▶ ack        InPlace: overwrite ──▶ Overwritten ──▶ ack
//!                    │ full                            (redo record; undone or repeated never, since the
//!                    ▼                                  version is stored with the bytes)
//!          merge what is committed, append again
//! ```
//!
//! Invariants: the versions of a data chunk are taken one after the other, each once; `merged <= committed` where it is
//! logged; a merge takes the log's committed prefix, and makes patches, versions and the log's new start durable as one;
//! nothing is answered before it is durable; an epoch is durable before anything is answered under it.

use super::ChunkNumber;
use crate::Epoch;
use std::collections::{BTreeMap, VecDeque};

/// How a parity chunk takes differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In the reserve beside the chunk (PLR).
    Logged,
    /// Into the chunk at once (FO; also PLR where the reserve was given back, §4.2.2).
    InPlace,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParityInput {
    /// A difference arrived; the driver keeps its bytes until it is answered.
    Difference {
        /// Who waits for the answer.
        reply: u64,
        /// The sender's epoch.
        epoch: Epoch,
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
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
    /// [`ParityAction::Append`] found no room.
    Full {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
    },
    /// [`ParityAction::Overwrite`] is durable.
    Overwritten {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
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
    /// Append a difference to the log; answered by [`ParityInput::Appended`] or [`ParityInput::Full`].
    Append {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
    },
    /// XOR its product into the chunk, together with its version, through a redo record; answered by
    /// [`ParityInput::Overwritten`].
    Overwrite {
        /// The data chunk.
        chunk: ChunkNumber,
        /// Its version.
        version: u64,
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
        reason: super::Refusal,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiter {
    Difference { version: u64 },
    Ask,
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
    /// Differences that found the log full, in order.
    stalled: VecDeque<(ChunkNumber, u64)>,
    /// Records of the merge in hand.
    merging: usize,
    merging_to: Vec<(ChunkNumber, u64)>,
    actions: VecDeque<ParityAction>,
}

impl ParityChunk {
    /// A parity chunk as it is on its device; `merge_bytes_max` bounds one merge.
    pub fn new(mode: Mode, state: ParityState, merge_bytes_max: u64) -> Self {
        let mut chunks: BTreeMap<ChunkNumber, Versions> = BTreeMap::new();
        for (chunk, merged) in state.merged {
            let committed = if mode == Mode::Logged { merged } else { 0 };
            chunks.insert(chunk, Versions { received: merged, durable: merged, committed, merged });
        }
        for entry in &state.log {
            let versions = chunks.entry(entry.chunk).or_default();
            versions.received = versions.received.max(entry.version);
            versions.durable = versions.received;
        }
        Self {
            mode: if state.log.is_empty() { mode } else { Mode::Logged },
            wanted_mode: mode,
            epoch: state.epoch,
            fenced: state.epoch,
            merge_bytes_max,
            chunks,
            log: state.log.into(),
            waiters: Vec::new(),
            stalled: VecDeque::new(),
            merging: 0,
            merging_to: Vec::new(),
            actions: VecDeque::new(),
        }
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

    /// Bytes of the log that a merge could take now.
    pub fn mergeable_bytes(&self) -> u64 {
        self.log.iter().take(self.committed_prefix()).map(|entry| u64::from(entry.bytes)).sum()
    }

    /// Whether a merge is being made.
    pub fn is_merging(&self) -> bool {
        self.merging > 0
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<ParityAction> {
        self.actions.pop_front()
    }

    /// Tells it what happened; then [`ParityChunk::poll`] until `None`.
    pub fn handle(&mut self, input: ParityInput) {
        match input {
            ParityInput::Difference { reply, epoch, chunk, version, committed } => {
                self.take(reply, epoch, chunk, version, committed);
            }
            ParityInput::Appended { chunk, version, sequence, bytes } => {
                self.log.push_back(Entry { sequence, chunk, version, bytes });
                self.became_durable(chunk, version);
            }
            ParityInput::Full { chunk, version } => {
                self.stalled.push_back((chunk, version));
                self.merge();
            }
            ParityInput::Overwritten { chunk, version } => {
                self.became_durable(chunk, version);
                let versions = self.chunks.entry(chunk).or_default();
                versions.merged = versions.merged.max(version);
            }
            ParityInput::Committed { epoch, chunk, through } => {
                if epoch >= self.epoch {
                    self.committed(chunk, through);
                }
            }
            ParityInput::Ask { reply, epoch, chunk } => {
                if self.admit(reply, epoch) {
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
    fn admit(&mut self, reply: u64, epoch: Epoch) -> bool {
        if epoch < self.epoch {
            self.actions.push_back(ParityAction::Refuse { reply, reason: super::Refusal::Stale });
            return false;
        }
        if epoch > self.epoch {
            self.epoch = epoch;
            self.actions.push_back(ParityAction::Fence { epoch });
        }
        true
    }

    fn take(&mut self, reply: u64, epoch: Epoch, chunk: ChunkNumber, version: u64, committed: u64) {
        if !self.admit(reply, epoch) {
            return;
        }
        self.committed(chunk, committed);
        let mode = self.mode;
        let versions = self.chunks.entry(chunk).or_default();
        let expected = versions.received + 1;
        if version > expected {
            let reason = super::Refusal::Gap { expected };
            self.actions.push_back(ParityAction::Refuse { reply, reason });
            return;
        }
        self.waiters.push((reply, chunk, epoch, Waiter::Difference { version }));
        if version == expected {
            versions.received = version;
            if self.stalled.is_empty() {
                self.actions.push_back(match mode {
                    Mode::Logged => ParityAction::Append { chunk, version },
                    Mode::InPlace => ParityAction::Overwrite { chunk, version },
                });
            } else {
                // Behind what waits for room, so that the log keeps the order of versions.
                self.stalled.push_back((chunk, version));
            }
        }
        self.answer();
    }

    fn became_durable(&mut self, chunk: ChunkNumber, version: u64) {
        let versions = self.chunks.entry(chunk).or_default();
        versions.durable = versions.durable.max(version);
        self.answer();
    }

    fn committed(&mut self, chunk: ChunkNumber, through: u64) {
        let in_place = self.mode == Mode::InPlace;
        let versions = self.chunks.entry(chunk).or_default();
        let through = through.min(versions.durable);
        if through <= versions.committed {
            return;
        }
        versions.committed = through;
        if in_place {
            self.actions.push_back(ParityAction::Release { chunk, through });
        }
        if !self.stalled.is_empty() {
            self.merge();
        }
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
        for (chunk, version) in std::mem::take(&mut self.stalled) {
            self.actions.push_back(ParityAction::Append { chunk, version });
        }
        self.change_mode();
    }

    fn change_mode(&mut self) {
        let appending = self.chunks.values().any(|versions| versions.received != versions.durable);
        if self.log.is_empty() && self.merging == 0 && !appending {
            self.mode = self.wanted_mode;
        } else if self.wanted_mode == Mode::InPlace {
            self.merge();
        }
    }

    fn versions(&self, chunk: ChunkNumber) -> Versions {
        self.chunks.get(&chunk).copied().unwrap_or_default()
    }
}
