//! A degraded gather: both data chunks from any two chunks, at one state, by the core that `steadfast_client` drives
//! ([`steadfast_protocol::chunks::Gather`]), of which the nodes that it is not to use do not answer.
//!
//! Each node used is asked for its versions, each on its own; then the data node for its rows as they are, and parity for what they
//! show. Whatever else may happen comes in between: updates, merges, a node's death and its next life, a new layout. A node
//! names what is durable there: a version that it lost could be stamped again, and parity be asked for the one by the number of the
//! other. So rows that are read as they are wait for a flush before they are given. One that cannot give the state (any more, or yet)
//! refuses; the reader asks all of them again, and then for the oldest state.
//!
//! A reader knows the layout from when it began to ask. A node that was left out and is still at work serves it; a parity node
//! that knows a later epoch does not. (Real nodes serve readers of any layout: no segment that a node was left out of is
//! updated in place any more, it is stored anew.)

use super::{Actor, Bytes, Event, K, M, Planted, ROWS, Violation, World, product, quotient, xor};
use std::collections::{BTreeMap, BTreeSet};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId,
    chunks::{self, GatherAction, GatherInput},
    layout::{PARITY_GRANULE_BYTES, ParityGeometry},
    message::{ChunkVersions, Fault, NodeFault, RowsAt},
    read::Cause,
    serve::parity_log::{ParityChunk, VersionsByChunk, take_back},
};

/// How often a gather asks for a state.
const ATTEMPTS_MAX: u8 = 2;

/// What a gather may read: one data chunk, the other lost or thought so, and either parity chunk; or both parity chunks.
pub(super) const SOURCES: [[Actor; K]; 2 * M + 1] = [[0, K], [0, K + 1], [1, K], [1, K + 1], [K, K + 1]];

/// The world's segment: one block a chunk.
const SHAPE: ParityGeometry =
    ParityGeometry { chunks: (K + M) as u32, data: K as u32, blocks: 1, block_bytes: PARITY_GRANULE_BYTES };

/// What a node was asked for and has not given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Versions,
    Rows(RowsAt),
    /// Read as they are at this version, and given once that is durable.
    Read {
        version: u64,
        rows: Bytes,
    },
}

/// A degraded gather in hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gather {
    core: chunks::Gather,
    sources: [Actor; K],
    /// Of the layout that the reader knows.
    epoch: Epoch,
    /// How often it may still begin again.
    again: u8,
    /// Updates that had been acknowledged when it began.
    acked: Vec<usize>,
    asked: BTreeMap<Actor, Asked>,
    /// What parity was asked for: what data showed, and what it has of the lost.
    state: VersionsByChunk,
    /// What was read.
    rows: BTreeMap<Actor, Bytes>,
}

/// What a node gives a reader.
enum Given {
    /// Rows, of a data chunk at this version.
    Here(u64, Bytes),
    /// Not that, or nothing to this reader.
    Refused,
}

impl Gather {
    /// The versions of all nodes are asked for; those that are not to be used do not answer.
    fn ask(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.rows.clear();
        self.asked = self.sources.iter().map(|node| (*node, Asked::Versions)).collect();
        for node in (0..K + M).filter(|node| !self.sources.contains(node)) {
            self.core.handle(GatherInput::Versions { chunk: node as u32, held: None });
        }
    }
}

impl World {
    /// A reader comes to want both data chunks by these nodes.
    pub(super) fn gather(&mut self, sources: [Actor; K]) {
        self.limits.gathers -= 1;
        let acked = self.acked();
        let holders: [DeviceId; K + M] = core::array::from_fn(|node| DeviceId(node as u128));
        let mut core = chunks::Gather::new(SHAPE, &holders, &BTreeSet::new(), 0..K as u32);
        while core.poll().is_some() {}
        let (asked, state, rows) = Default::default();
        let again = ATTEMPTS_MAX - 1;
        let mut gather = Gather { core, sources, epoch: self.epoch, again, acked, asked, state, rows };
        gather.ask(self.epoch);
        self.gather = Some(gather);
    }

    /// What may happen next to a gather in hand.
    pub(super) fn gathering(&self) -> Vec<Event> {
        let asked = self.gather.iter().flat_map(|gather| &gather.asked);
        let events = asked.filter(|(node, _)| self.is_up(**node)).filter_map(|(&node, asked)| match asked {
            Asked::Versions => Some(Event::TellVersions(node)),
            Asked::Rows(_) => Some(Event::GiveRows(node)),
            Asked::Read { version, .. } => {
                (self.data[node].durable.version >= *version).then_some(Event::GiveRows(node))
            }
        });
        events.collect()
    }

    /// A node tells the reader which versions it has.
    ///
    /// # Errors
    /// As [`World::give_rows`].
    pub(super) fn tell_versions(&mut self, node: Actor) -> Result<(), Violation> {
        let Some(gather) = &self.gather else { return Ok(()) };
        let held = match node.checked_sub(K) {
            None => Some(ChunkVersions { version: self.data[node].durable.version, held: Vec::new() }),
            Some(number) if self.is_later(number, gather.epoch) => None,
            Some(number) => {
                let disk = &self.parity[number].durable;
                let mut held = disk.merged.clone();
                held.extend(disk.log.iter().map(|(_, record)| (record.chunk, record.version)));
                Some(ChunkVersions { version: 0, held: held.into_iter().collect() })
            }
        };
        self.told(node, GatherInput::Versions { chunk: node as u32, held })
    }

    /// A node reads its rows as they are, gives those that it read, or those at the state asked for; or refuses.
    ///
    /// # Errors
    /// Where they were the last, and what they decode to is not that state, or none that may be read.
    pub(super) fn give_rows(&mut self, node: Actor) -> Result<(), Violation> {
        let Some(gather) = &mut self.gather else { return Ok(()) };
        let epoch = gather.epoch;
        let Some(asked) = gather.asked.get(&node).cloned() else { return Ok(()) };
        let given = match &asked {
            Asked::Versions => return Ok(()),
            Asked::Rows(RowsAt::Newest) => {
                let (version, rows) = (self.data[node].now.version, self.data[node].now.content);
                gather.asked.insert(node, Asked::Read { version, rows });
                return Ok(());
            }
            // A power loss could take back what was seen.
            Asked::Read { version, .. } if self.data[node].durable.version < *version => return Ok(()),
            Asked::Read { version, rows } => Given::Here(*version, *rows),
            Asked::Rows(RowsAt::Data(version)) => self.data_rows(node, *version),
            Asked::Rows(RowsAt::Parity { versions, .. }) => {
                let number = node - K;
                if self.is_later(number, epoch) {
                    Given::Refused
                } else {
                    self.parity_rows(number, &versions.iter().copied().collect())
                }
            }
        };
        let chunk = node as u32;
        let input = match given {
            Given::Here(version, rows) => {
                let Some(gather) = &mut self.gather else { return Ok(()) };
                gather.rows.insert(node, rows);
                GatherInput::Row { chunk, version }
            }
            Given::Refused => {
                let (device, segment) = (DeviceId(node as u128), SegmentId(1));
                let cause = Cause::Fault(Fault::Node(NodeFault::Overtaken { device, segment }));
                GatherInput::Failed { chunk, cause }
            }
        };
        self.told(node, input)
    }

    /// The reader hears of a node, and does what its core says.
    fn told(&mut self, node: Actor, input: GatherInput) -> Result<(), Violation> {
        if let Some(gather) = &mut self.gather {
            gather.asked.remove(&node);
            gather.core.handle(input);
        }
        while let Some(gather) = &mut self.gather
            && let Some(action) = gather.core.poll()
        {
            match action {
                GatherAction::AskVersions { .. } => self.gather_again(),
                GatherAction::Read { chunk, at, .. } => {
                    if let RowsAt::Parity { versions, .. } = &at {
                        gather.state = versions.iter().copied().collect();
                    }
                    gather.asked.insert(chunk as Actor, Asked::Rows(at));
                }
                GatherAction::Row { .. } => {
                    let gather = self.gather.as_ref().expect("it is in hand");
                    self.judge(gather)?;
                }
                GatherAction::Done | GatherAction::Failed(_) => self.gather = None,
            }
        }
        self.forget_contents();
        Ok(())
    }

    /// A reader that a node left it without gives up.
    pub(super) fn gather_without(&mut self, node: Actor) {
        let wants = |gather: &Gather| gather.sources.contains(&node) && !gather.rows.contains_key(&node);
        if self.gather.as_ref().is_some_and(wants) && !self.is_up(node) {
            self.gather = None;
            self.forget_contents();
        }
    }

    /// What a node had read and not given is lost with it; it is asked again in its next life.
    pub(super) fn forget_read(&mut self, node: Actor) {
        if let Some(gather) = &mut self.gather
            && let Some(asked @ Asked::Read { .. }) = gather.asked.get_mut(&node)
        {
            *asked = Asked::Rows(RowsAt::Newest);
        }
    }

    /// Asks all again, under the layout as it is now; or gives up.
    fn gather_again(&mut self) {
        let (epoch, listed) = (self.epoch, self.listed);
        self.gather = self.gather.take().and_then(|mut gather| {
            gather.again = gather.again.checked_sub(1)?;
            gather.ask(epoch);
            gather.sources.iter().all(|node| listed[*node]).then_some(gather)
        });
    }

    fn is_later(&self, number: usize, epoch: Epoch) -> bool {
        self.parity[number].core.as_ref().map(ParityChunk::epoch).is_some_and(|known| known > epoch)
    }

    /// Rows of a data chunk: what it has, less what is newer than asked for.
    fn data_rows(&self, node: Actor, version: u64) -> Given {
        let disk = &self.data[node].now;
        let mut rows = disk.content;
        if self.planted == Some(Planted::GatherNewest) {
            return Given::Here(version, rows);
        }
        let held = disk.held.values().map(|record| (record.version, 0, &record.bytes[..]));
        match take_back(&mut rows, 0, (disk.version, version), held) {
            true => Given::Here(version, rows),
            false => Given::Refused,
        }
    }

    /// Rows of a parity chunk: what it has, and what its log has up to the versions asked for
    /// ([`steadfast_protocol::serve::parity_log::ParityOf::bring`], with the products of this world).
    fn parity_rows(&self, number: usize, wanted: &VersionsByChunk) -> Given {
        let mut disk = self.parity[number].now.clone();
        let beyond = |reached: &VersionsByChunk, wanted: &VersionsByChunk| {
            reached.iter().any(|(chunk, version)| *version > wanted.get(chunk).copied().unwrap_or(0))
        };
        if beyond(&disk.merged, wanted) {
            return Given::Refused;
        }
        for (_, record) in std::mem::take(&mut disk.log) {
            if record.version <= wanted[&record.chunk] {
                disk.merged.insert(record.chunk, record.version);
                disk.add(number, record);
            }
        }
        if beyond(wanted, &disk.merged) { Given::Refused } else { Given::Here(0, disk.base) }
    }

    /// Whether what was read is one state of both chunks, and one that may be read.
    fn judge(&self, gather: &Gather) -> Result<(), Violation> {
        let state = &gather.state;
        for (chunk, bytes) in decode(gather.sources, &gather.rows).into_iter().enumerate() {
            let version = state[&(chunk as u16)];
            let none = BTreeSet::new();
            let stamped = self.contents.get(&(chunk as u16, version)).unwrap_or(&none);
            let is_state = stamped.contains(&bytes) || version == 0 && bytes == [0; ROWS];
            if !is_state {
                return Err(Violation(format!(
                    "a gather by {:?} at {state:?} gives chunk {chunk} as {bytes:?}, and version {version} was {stamped:?}",
                    gather.sources
                )));
            }
            self.may_be_read("a degraded gather", chunk, bytes, &gather.acked)?;
        }
        Ok(())
    }

    /// Notes what a chunk is at a version, while there may be a gather.
    pub(super) fn note_content(&mut self, chunk: u16, version: u64, content: Bytes) {
        if self.limits.gathers > 0 || self.gather.is_some() {
            self.contents.entry((chunk, version)).or_default().insert(content);
        }
    }

    fn forget_contents(&mut self) {
        if self.limits.gathers == 0 && self.gather.is_none() {
            self.contents.clear();
        }
    }
}

/// Both data chunks.
fn decode(sources: [Actor; K], rows: &BTreeMap<Actor, Bytes>) -> [Bytes; K] {
    let [one, other] = sources.map(|source| rows[&source]);
    match sources {
        [K, _] => {
            // The coefficients are 1 and 1, 1 and 2.
            let second = std::array::from_fn(|row| {
                let sum = one[row] ^ other[row];
                (0..=u8::MAX)
                    .find(|byte| byte ^ product(1, 1, *byte) == sum)
                    .expect("products are one to one")
            });
            let mut first = one;
            xor(&mut first, second);
            [first, second]
        }
        [chunk, parity] => {
            let (lost, number) = (1 - chunk, parity - K);
            let decoded = std::array::from_fn(|row| {
                quotient(number, lost, other[row] ^ product(number, chunk, one[row]))
            });
            if chunk == 0 { [one, decoded] } else { [decoded, one] }
        }
    }
}
