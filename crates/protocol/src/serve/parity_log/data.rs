//! A data chunk at the node that answers for it.
//!
//! ```text
//!                 configure                  all answered            what was missing is here
//!  Unconfigured ─────────────▶ Asking ─────────────────▶ Fetching ──────────────────────────▶ Serving
//!                                 ▲  ▲                     │ its source is lost                  │
//!                                 │  └─────────────────────┘                                     │
//!                                 └──────────────── configure (a later epoch), from any ─────────┤
//!  Fenced ◀───────────────── refused: a later epoch, or life; from any but Unconfigured ─────────┘
//! ```
//!
//! It fences itself, too, where a log names a version that nobody stamped since all had said what they have.
//!
//! A chunk whose node was left out of a layout returns to one only made anew: its versions beyond the last committed one may
//! be another's. So a core lives under layouts that list its chunk without a break.
//!
//! Invariants: `committed <= durable <= staged`; a version is sent to a parity node only after all before it were sent or
//! are known there; nothing is staged before every live parity node has said what it has.

use super::ParityNumber;
use crate::Epoch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What stands behind a data chunk at the node that answers for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// The chunk itself. Of one whose node is gone nobody else orders the updates (§5.2, degraded mode): whoever changes it stores its
    /// segment anew.
    Own,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DataInput {
    /// The layout says who takes part, from this epoch on. One that is not later than the present is ignored.
    Configure {
        /// The layout's epoch.
        epoch: Epoch,
        /// The parity chunks it lists.
        parities: Vec<ParityNumber>,
    },
    /// Somebody wants to change bytes of the chunk.
    Update {
        /// Names it; no two alike at a time.
        request: u64,
    },
    /// The answer to [`DataAction::Stage`].
    Staged {
        /// The update.
        request: u64,
        /// The version that it got: the one after the last.
        version: u64,
    },
    /// [`DataAction::Stage`] was refused; it has no version, and the driver answers whoever asked.
    NotStaged {
        /// The update.
        request: u64,
    },
    /// Everything staged or adopted up to here is durable at this node.
    Durable {
        /// The last such version.
        through: u64,
    },
    /// The answer to [`DataAction::Ask`].
    Versions {
        /// Who.
        parity: ParityNumber,
        /// The epoch that it was asked under.
        epoch: Epoch,
        /// The last version of this chunk that it holds durably.
        received: u64,
    },
    /// The answer to [`DataAction::Fetch`]: the driver has the difference.
    Fetched {
        /// Which.
        version: u64,
    },
    /// The other answer to it: the log that was asked does not hold that difference.
    NotFetched {
        /// Which.
        version: u64,
    },
    /// The answer to [`DataAction::Adopt`]: it is part of the chunk, and durable.
    Adopted {
        /// Which.
        version: u64,
    },
    /// A parity node holds everything up to this version durably.
    Acked {
        /// Who.
        parity: ParityNumber,
        /// The last such version.
        through: u64,
    },
    /// A parity node did not take a difference.
    Refused {
        /// Who.
        parity: ParityNumber,
        /// Why.
        reason: Refusal,
    },
    /// The connection to a parity node is gone: what was sent may be there or not.
    Lost {
        /// Who.
        parity: ParityNumber,
    },
    /// There is one again.
    Connected {
        /// Who.
        parity: ParityNumber,
    },
    /// Nothing has happened for a while: whoever was not told yet what is committed is told. It must come: a parity node whose
    /// log is full waits for it.
    Tick,
}

/// Why a parity node does not take a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// It knows a later epoch, or a later life of the sender under the same.
    Stale {
        /// The epoch that it knows.
        held: Epoch,
        /// Whether it heard of a later life of the sender under that epoch.
        superseded: bool,
    },
    /// It lacks an earlier version, or has not been asked yet in its present life.
    Gap,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DataAction {
    /// Ask a parity node which version of this chunk it holds durably, under this epoch; answered by
    /// [`DataInput::Versions`].
    Ask {
        /// Who.
        parity: ParityNumber,
        /// The epoch that it must make durable before it answers.
        epoch: Epoch,
        /// The sender's life: it refuses differences of earlier ones from then on.
        session: u64,
    },
    /// Get a version's difference from a parity node's log; answered by [`DataInput::Fetched`] or
    /// [`DataInput::NotFetched`].
    Fetch {
        /// From whom.
        parity: ParityNumber,
        /// Which.
        version: u64,
    },
    /// XOR a fetched difference into the chunk, as this version, durably, and hold it as one that was staged: until
    /// [`DataAction::Release`] a log that lacks it may be what others are decoded with. Answered by [`DataInput::Adopted`].
    Adopt {
        /// Which.
        version: u64,
    },
    /// Read the old bytes, form the difference, stamp it with the next version and write the redo record; answered by
    /// [`DataInput::Staged`], and by [`DataInput::Durable`] once it is flushed.
    Stage {
        /// The update.
        request: u64,
    },
    /// Send a version's difference to a parity node, with what is committed.
    Send {
        /// To whom.
        parity: ParityNumber,
        /// Which.
        version: u64,
        /// Under which epoch.
        epoch: Epoch,
        /// Committed by now.
        committed: u64,
    },
    /// Tell a parity node what is committed.
    Tell {
        /// Whom.
        parity: ParityNumber,
        /// Under which epoch.
        epoch: Epoch,
        /// Committed by now.
        committed: u64,
    },
    /// Everything up to here is committed: its differences may be forgotten and its old bytes overwritten in place.
    Release {
        /// The last such version.
        through: u64,
    },
    /// The update is durable everywhere.
    Answer {
        /// The update.
        request: u64,
        /// Its version.
        version: u64,
    },
    /// The update will get no answer from here: the core serves no more ([`DataChunk::fenced`]). It may take effect or not.
    Unknown {
        /// The update.
        request: u64,
    },
    /// A parity node lacks versions that nobody keeps any more: its chunk must be made anew before it takes part. Nothing is
    /// committed until a layout leaves it out; said again with each update until then.
    Behind {
        /// Who.
        parity: ParityNumber,
    },
    /// The logs hold later versions than this chunk and none has their differences any more: the chunk must be made anew from the
    /// others. It changes no more, and is not read as the newest ([`Levels::outdated`](super::Levels::outdated)); its old bytes are what
    /// there is where the others do not make up for it.
    Outdated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Unconfigured,
    /// Not all parity nodes have said what they hold.
    Asking,
    /// Differences are fetched from `first` to `target`, and adopted where this node lacks them. Logs merge each for itself: what one has
    /// no more another may have.
    Fetching {
        first: u64,
        next: u64,
        target: u64,
        from: ParityNumber,
    },
    Serving,
    /// It serves no more.
    Fenced(Why),
}

/// Why a core serves no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// A later epoch exists that this node was not told of.
    LaterEpoch,
    /// A later life of this chunk's sender asked under the same epoch.
    LaterLife,
    /// The chunk lacks versions that nobody has any more.
    Outdated,
    /// A log names a version that was never stamped.
    NeverStamped,
}

/// The first of the versions that end at `version` of which all are `held`: what [`DataChunk::new`] takes. `version + 1` where
/// the last is not.
pub fn kept_from(version: u64, held: impl Fn(u64) -> bool) -> u64 {
    let kept = (1..=version).rev().take_while(|version| held(*version)).last();
    kept.unwrap_or(version + 1)
}

/// A parity node as this one knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Peer {
    /// The last version that it holds durably, once it has said so on the present connection.
    received: Option<u64>,
    /// The last version that was sent to it or that it has.
    sent: u64,
    /// What it was told to be committed.
    told: u64,
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataChunk {
    session: u64,
    epoch: Epoch,
    phase: Phase,
    peers: BTreeMap<ParityNumber, Peer>,
    /// Updates that wait for [`Phase::Serving`].
    waiting: VecDeque<u64>,
    /// Updates that were staged and are not committed, by version.
    staged_requests: BTreeMap<u64, u64>,
    staging: VecDeque<u64>,
    /// A version on its way into the chunk; nothing is levelled meanwhile.
    adopting: Option<u64>,
    /// Parity nodes whose logs do not hold the version that is being fetched.
    merged_at: BTreeSet<ParityNumber>,
    staged: u64,
    durable: u64,
    committed: u64,
    /// The driver has the differences from this version to the last staged one. What is before it is committed, or was adopted
    /// before a crash on a medium that holds no such one, and is fetched again where a log lacks it.
    kept_from: u64,
    actions: VecDeque<DataAction>,
}

impl DataChunk {
    /// A chunk that is durable up to `version`, of which the driver has the differences from `kept_from` on without a gap
    /// (those of [`steadfast_disk::Device::held`], by [`kept_from`]). `session` is greater than that of
    /// every earlier core for this chunk under the same epoch: a count of this node's starts.
    pub fn new(_: Medium, session: u64, version: u64, kept_from: u64) -> Self {
        assert!(kept_from >= 1 && kept_from <= version + 1, "kept from {kept_from} at version {version}");
        Self {
            session,
            epoch: Epoch(0),
            phase: Phase::Unconfigured,
            peers: BTreeMap::new(),
            waiting: VecDeque::new(),
            staged_requests: BTreeMap::new(),
            staging: VecDeque::new(),
            adopting: None,
            merged_at: BTreeSet::new(),
            staged: version,
            durable: version,
            // What is committed is what all logs have, and they were not asked yet.
            committed: 0,
            kept_from,
            actions: VecDeque::new(),
        }
    }

    /// The epoch that it serves under.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last committed version.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The last version that was stamped.
    pub fn staged(&self) -> u64 {
        self.staged
    }

    /// Whether it takes updates at once.
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    /// Why it serves no more, where that is so.
    pub fn fenced(&self) -> Option<Why> {
        match self.phase {
            Phase::Fenced(why) => Some(why),
            _ => None,
        }
    }

    /// Whether every update was answered and every parity node told.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.staging.is_empty()
            && self.committed == self.staged
            && self.peers.values().all(|peer| peer.told == self.committed)
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<DataAction> {
        self.actions.pop_front()
    }

    /// Tells it what happened; then [`DataChunk::poll`] until `None`.
    pub fn handle(&mut self, input: DataInput) {
        match input {
            DataInput::Configure { epoch, parities } => self.configure(epoch, &parities),
            DataInput::Update { request } if self.fenced().is_some() => {
                self.actions.push_back(DataAction::Unknown { request });
            }
            DataInput::Update { request } => {
                self.waiting.push_back(request);
                self.stage_waiting();
            }
            DataInput::Staged { request, version } => self.was_staged(request, version),
            DataInput::NotStaged { request } => self.staging.retain(|other| *other != request),
            DataInput::Durable { through } => {
                self.durable = self.durable.max(through.min(self.staged));
                self.commit();
            }
            DataInput::Versions { parity, epoch, received } => {
                if epoch == self.epoch {
                    self.learn(parity, received);
                }
            }
            DataInput::Fetched { version } => self.was_fetched(version),
            DataInput::NotFetched { version } => self.was_not_fetched(version),
            DataInput::Adopted { version } => self.was_adopted(version),
            DataInput::Acked { parity, through } => self.acked(parity, through),
            DataInput::Refused { reason: Refusal::Stale { held, superseded }, .. } => {
                if held > self.epoch {
                    self.fence(Why::LaterEpoch);
                } else if superseded && held == self.epoch {
                    self.fence(Why::LaterLife);
                }
            }
            DataInput::Refused { parity, reason: Refusal::Gap } | DataInput::Connected { parity } => {
                self.ask(parity);
            }
            DataInput::Lost { parity } => {
                if let Some(peer) = self.peers.get_mut(&parity) {
                    *peer = Peer::default();
                }
                if matches!(self.phase, Phase::Fetching { from, .. } if from == parity) {
                    // It says anew what it has.
                    self.phase = Phase::Asking;
                }
            }
            DataInput::Tick => self.tell(),
        }
    }

    fn configure(&mut self, epoch: Epoch, parities: &[ParityNumber]) {
        if epoch <= self.epoch && self.phase != Phase::Unconfigured {
            return;
        }
        self.epoch = epoch;
        self.peers = parities.iter().map(|parity| (*parity, Peer::default())).collect();
        self.phase = Phase::Asking;
        for parity in parities {
            self.ask(*parity);
        }
        self.level();
    }

    /// Asks what a parity node holds; until it answers nothing of it is known.
    fn ask(&mut self, parity: ParityNumber) {
        let Some(peer) = self.peers.get_mut(&parity) else { return };
        if matches!(self.phase, Phase::Fenced(_)) {
            return;
        }
        *peer = Peer::default();
        let (epoch, session) = (self.epoch, self.session);
        self.actions.push_back(DataAction::Ask { parity, epoch, session });
    }

    /// A parity node's account of what it holds.
    fn learn(&mut self, parity: ParityNumber, received: u64) {
        let Some(peer) = self.peers.get_mut(&parity) else { return };
        // Once all have said what they have, nobody has any but those and what is stamped here.
        let last = match self.phase {
            Phase::Serving => self.staged,
            Phase::Fetching { target, .. } => target.max(self.staged),
            Phase::Unconfigured | Phase::Asking | Phase::Fenced(_) => u64::MAX,
        };
        if received > last {
            // Believed, it would get nothing up to there, and its answer for it count.
            return self.fence(Why::NeverStamped);
        }
        *peer = Peer { received: Some(received), sent: received, told: 0 };
        match self.phase {
            Phase::Asking => self.level(),
            Phase::Serving => {
                self.send_missing(parity);
                self.commit();
            }
            Phase::Unconfigured | Phase::Fetching { .. } | Phase::Fenced(_) => {}
        }
    }

    /// Once all have answered: gets what this node, or any of them, lacks.
    fn level(&mut self) {
        let Some(held) = self.held().filter(|_| self.adopting.is_none()) else { return };
        let lowest = held.iter().min().copied().unwrap_or(self.staged);
        let Some(target) = held.into_iter().max() else { return self.serve() };
        // What this node lacks itself, and what a log lacks of which this node has no difference any more: it brought it
        // forward before a crash.
        let next = if lowest + 1 < self.kept_from { lowest + 1 } else { self.staged + 1 };
        self.fetch(next, target);
    }

    /// What each parity node holds; none where not all have said so.
    fn held(&self) -> Option<Vec<u64>> {
        self.peers.values().map(|peer| peer.received).collect()
    }

    /// Gets the differences from `first` to `target`, if there are any, and serves then.
    fn fetch(&mut self, first: u64, target: u64) {
        self.merged_at.clear();
        if first > target {
            return self.serve();
        }
        let from = self.source(first);
        self.fetch_from(from, (first, first, target));
    }

    /// Whose log may hold a version: the highest, or the first of several.
    fn source(&self, version: u64) -> Option<ParityNumber> {
        let received = self.peers.iter().filter_map(|(parity, peer)| Some((peer.received?, *parity)));
        let may_hold =
            received.filter(|(received, parity)| *received >= version && !self.merged_at.contains(parity));
        may_hold.max_by_key(|(received, parity)| (*received, u16::MAX - parity)).map(|(_, parity)| parity)
    }

    /// Gets the next difference from a log; where none that is known may hold it, by what all say that they have once they have said so.
    fn fetch_from(&mut self, from: Option<ParityNumber>, (first, next, target): (u64, u64, u64)) {
        let Some(from) = from else {
            self.phase = Phase::Asking;
            return self.level();
        };
        self.phase = Phase::Fetching { first, next, target, from };
        self.actions.push_back(DataAction::Fetch { parity: from, version: next });
    }

    fn was_fetched(&mut self, version: u64) {
        let Phase::Fetching { next, .. } = self.phase else { return };
        if version != next || self.adopting.is_some() {
            return;
        }
        if version > self.staged {
            self.adopting = Some(version);
            self.actions.push_back(DataAction::Adopt { version });
        } else {
            self.advance(version);
        }
    }

    /// The log that was asked has merged it.
    fn was_not_fetched(&mut self, version: u64) {
        let Phase::Fetching { first, next, target, from } = self.phase else { return };
        if version != next || self.adopting.is_some() {
            return;
        }
        self.merged_at.insert(from);
        let other = self.source(version);
        let Some(held) = self.held().filter(|_| other.is_none()) else {
            return self.fetch_from(other, (first, next, target));
        };
        if version <= self.staged {
            // Only another log lacks it, and for good: sending to it tells.
            return self.fetch(self.staged + 1, held.into_iter().max().unwrap_or(0));
        }
        // What is merged was committed, so this chunk had it once.
        self.fence(Why::Outdated);
        self.actions.push_back(DataAction::Outdated);
    }

    fn was_adopted(&mut self, version: u64) {
        if self.adopting != Some(version) {
            return;
        }
        self.adopting = None;
        (self.staged, self.durable) = (version, version);
        match self.phase {
            Phase::Fetching { next, .. } if next == version => self.advance(version),
            Phase::Asking => self.level(),
            _ => {}
        }
    }

    fn advance(&mut self, version: u64) {
        let Phase::Fetching { first, target, from, .. } = self.phase else { return };
        if version == target {
            // Without a gap to those that were kept.
            if target + 1 >= self.kept_from {
                self.kept_from = self.kept_from.min(first);
            }
            return self.serve();
        }
        // Of the one that had this, where it may have the next.
        self.merged_at.clear();
        let next = version + 1;
        let may_hold = |peer: &Peer| peer.received.is_some_and(|received| received >= next);
        let same = self.peers.get(&from).is_some_and(may_hold);
        self.fetch_from(if same { Some(from) } else { self.source(next) }, (first, next, target));
    }

    fn serve(&mut self) {
        self.phase = Phase::Serving;
        for parity in self.peers.keys().copied().collect::<Vec<_>>() {
            self.send_missing(parity);
        }
        self.commit();
        self.stage_waiting();
    }

    fn stage_waiting(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        for request in std::mem::take(&mut self.waiting) {
            self.staging.push_back(request);
            self.actions.push_back(DataAction::Stage { request });
        }
    }

    fn was_staged(&mut self, request: u64, version: u64) {
        assert_eq!(version, self.staged + 1, "the medium stamps one version after the other");
        self.staging.retain(|other| *other != request);
        self.staged = version;
        self.staged_requests.insert(version, request);
        if let Some(why) = self.fenced() {
            // It was on its way when the fence came: whoever levels decides.
            return self.fence(why);
        }
        for parity in self.peers.keys().copied().collect::<Vec<_>>() {
            self.send_missing(parity);
        }
        self.commit();
    }

    /// Sends what a parity node lacks, where it has said what that is.
    fn send_missing(&mut self, parity: ParityNumber) {
        let (staged, committed, kept_from) = (self.staged, self.committed, self.kept_from);
        let Some(peer) = self.peers.get_mut(&parity) else { return };
        if peer.received.is_none() || self.phase != Phase::Serving {
            return;
        }
        if peer.sent + 1 < kept_from && peer.sent < staged {
            self.actions.push_back(DataAction::Behind { parity });
            return;
        }
        for version in peer.sent + 1..=staged {
            peer.told = committed;
            let epoch = self.epoch;
            self.actions.push_back(DataAction::Send { parity, version, epoch, committed });
        }
        peer.sent = peer.sent.max(staged);
    }

    fn acked(&mut self, parity: ParityNumber, through: u64) {
        let Some(peer) = self.peers.get_mut(&parity) else { return };
        // An answer from a connection before this one says nothing that the new one will not.
        let Some(received) = peer.received.as_mut() else { return };
        *received = (*received).max(through.min(peer.sent));
        self.commit();
    }

    fn commit(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        let everywhere = self.peers.values().map(|peer| peer.received.unwrap_or(0)).min();
        let committed = everywhere.unwrap_or(u64::MAX).min(self.durable);
        if committed <= self.committed {
            return;
        }
        self.committed = committed;
        self.kept_from = self.kept_from.max(committed + 1);
        self.actions.push_back(DataAction::Release { through: committed });
        while let Some(first) = self.staged_requests.first_entry().filter(|first| *first.key() <= committed) {
            let (version, request) = first.remove_entry();
            self.actions.push_back(DataAction::Answer { request, version });
        }
    }

    fn tell(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        for (parity, peer) in &mut self.peers {
            if peer.received.is_some() && peer.told < self.committed {
                peer.told = self.committed;
                let (parity, epoch, committed) = (*parity, self.epoch, self.committed);
                self.actions.push_back(DataAction::Tell { parity, epoch, committed });
            }
        }
    }

    fn fence(&mut self, why: Why) {
        self.phase = Phase::Fenced(why);
        let staged = std::mem::take(&mut self.staged_requests).into_values();
        let waiting = std::mem::take(&mut self.waiting);
        self.actions.extend(staged.chain(waiting).map(|request| DataAction::Unknown { request }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Epoch = Epoch(1);

    fn versions(chunk: &mut DataChunk, parity: ParityNumber, received: u64) {
        chunk.handle(DataInput::Versions { parity, epoch: EPOCH, received });
    }

    /// At version 4, as the log of the first parity chunk; that of the second is at `second`.
    fn asked(second: u64) -> DataChunk {
        let mut chunk = DataChunk::new(Medium::Own, 1, 4, 5);
        chunk.handle(DataInput::Configure { epoch: EPOCH, parities: vec![0, 1] });
        versions(&mut chunk, 0, 4);
        versions(&mut chunk, 1, second);
        while chunk.poll().is_some() {}
        chunk
    }

    #[test]
    fn a_log_that_names_what_was_never_stamped_is_not_believed() {
        let mut chunk = asked(4);
        assert!(chunk.is_serving());
        chunk.handle(DataInput::Update { request: 7 });
        chunk.handle(DataInput::Staged { request: 7, version: 5 });
        chunk.handle(DataInput::Durable { through: 5 });
        chunk.handle(DataInput::Acked { parity: 0, through: 5 });
        chunk.handle(DataInput::Connected { parity: 1 });
        while chunk.poll().is_some() {}
        let mut right = chunk.clone();
        versions(&mut chunk, 1, 6);
        assert_eq!(chunk.fenced(), Some(Why::NeverStamped));
        assert_eq!((chunk.poll(), chunk.poll()), (Some(DataAction::Unknown { request: 7 }), None));
        versions(&mut right, 1, 5);
        assert_eq!(right.poll(), Some(DataAction::Release { through: 5 }));
        assert_eq!(right.poll(), Some(DataAction::Answer { request: 7, version: 5 }));
    }

    #[test]
    fn what_is_fetched_was_stamped_and_nothing_beyond_it() {
        let mut chunk = asked(6);
        // On a new connection it says the same.
        chunk.handle(DataInput::Connected { parity: 1 });
        versions(&mut chunk, 1, 6);
        assert_eq!(chunk.fenced(), None);
        chunk.handle(DataInput::Connected { parity: 0 });
        versions(&mut chunk, 0, 7);
        assert_eq!(chunk.fenced(), Some(Why::NeverStamped));
    }
}
