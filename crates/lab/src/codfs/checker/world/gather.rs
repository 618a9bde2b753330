//! A degraded gather: both data chunks from any two chunks, at one state, by the core that `steadfast_client` drives
//! ([`steadfast_protocol::chunks::Gather`]), of which the nodes that it is not to use do not answer. And that of who stores the segment
//! anew, of all chunks that its fence leaves to it ([`anew`](super::anew)).
//!
//! Each node used is asked for its versions, each on its own; then the data node for its rows as they are, and parity for what they
//! show. Whatever else may happen comes in between: updates, merges, a node's death and its next life. A node
//! names what is durable there: a version that it lost could be stamped again, and parity be asked for the one by the number of the
//! other. So rows that are read as they are wait for a flush before they are given. One that cannot give the state (any more, or yet)
//! refuses; the reader asks all of them again, and then for the oldest state.
//!
//! A degraded gather waits for a node that is down. Behind a fence such a node does not answer.

use super::{
    Actor, Bytes, EPOCH, Event, K, M, Planted, ROWS, Violation, World, anew::Stored, product, quotient, xor,
};
use std::collections::{BTreeMap, BTreeSet};
use steadfast_protocol::{
    DeviceId, SegmentId,
    chunks::{self, GatherAction, GatherInput},
    layout::{PARITY_GRANULE_BYTES, ParityGeometry},
    message::{ChunkVersions, Fault, NodeFault, RowsAt},
    read::Cause,
    serve::parity_log::{VersionsByChunk, take_back},
};

/// How often a gather asks for a state.
const ATTEMPTS_MAX: u8 = 2;

/// What a gather may read: one data chunk, the other lost or thought so, and either parity chunk; or both parity chunks.
pub(super) const SOURCES: [[Actor; K]; 2 * M + 1] = [[0, K], [0, K + 1], [1, K], [1, K + 1], [K, K + 1]];

/// The world's segment: one block a chunk.
pub(super) const SHAPE: ParityGeometry =
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

/// A gather in hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gather {
    core: chunks::Gather,
    /// The nodes that it may use.
    sources: BTreeSet<Actor>,
    /// Whether the segment is stored anew of what it reads.
    pub(super) is_anew: bool,
    /// How often it may still begin again.
    again: u8,
    /// Updates that had been acknowledged when it began.
    acked: Vec<usize>,
    asked: BTreeMap<Actor, Asked>,
    /// Which versions it reads: what data showed, and what parity was asked for of the lost.
    state: VersionsByChunk,
    /// What was read.
    rows: BTreeMap<Actor, Bytes>,
}

/// What a node gives a reader.
enum Given {
    /// Rows, of a data chunk at this version.
    Here(u64, Bytes),
    /// Not that.
    Refused,
}

/// The device of each chunk.
pub(super) fn holders() -> [DeviceId; K + M] {
    core::array::from_fn(|node| DeviceId(node as u128))
}

/// Why a node that is down does not answer.
pub(super) fn down() -> Cause {
    Cause::Unreachable("it is down".to_owned())
}

impl World {
    /// A reader comes to want both data chunks by these nodes.
    pub(super) fn gather(&mut self, sources: [Actor; K]) -> Result<(), Violation> {
        self.limits.gathers -= 1;
        let core = chunks::Gather::new(SHAPE, &holders(), &BTreeSet::new(), 0..K as u32);
        self.gather_by(core, sources.into(), false)
    }

    /// A core begins to gather both data chunks; the nodes beside its sources do not answer it.
    pub(super) fn gather_by(
        &mut self,
        mut core: chunks::Gather,
        sources: BTreeSet<Actor>,
        is_anew: bool,
    ) -> Result<(), Violation> {
        // Its first question.
        while core.poll().is_some() {}
        let (asked, state, rows) = Default::default();
        let (again, acked) = (ATTEMPTS_MAX - 1, self.acked());
        self.gather = Some(Gather { core, sources, is_anew, again, acked, asked, state, rows });
        self.ask_versions();
        self.go_on_gathering()
    }

    /// The versions of all nodes are asked for. Behind a fence who refuses updates says at once what it holds, which does not change any
    /// more, and who is down says nothing.
    fn ask_versions(&mut self) {
        let Some(mut gather) = self.gather.take() else { return };
        gather.rows.clear();
        gather.state.clear();
        gather.asked.clear();
        for node in 0..K + M {
            let answers = gather.sources.contains(&node) && (!gather.is_anew || self.is_up(node));
            let at_once = gather.is_anew && self.is_fenced(node);
            if answers && !at_once {
                gather.asked.insert(node, Asked::Versions);
            } else {
                let held = answers.then(|| self.held(node));
                gather.core.handle(GatherInput::Versions { chunk: node as u32, held });
            }
        }
        self.gather = Some(gather);
    }

    /// What may happen next to a gather in hand.
    pub(super) fn gathering(&self) -> Vec<Event> {
        let Some(gather) = &self.gather else { return Vec::new() };
        let asked = gather.asked.iter().filter(|(node, _)| self.is_up(**node));
        let events = asked.filter_map(|(&node, asked)| match asked {
            // The newest, once that is durable: a writer may be answered for it.
            Asked::Versions if gather.is_anew && self.steps(node) > 0 => None,
            Asked::Versions => Some(Event::TellVersions(node)),
            Asked::Rows(_) => Some(Event::GiveRows(node)),
            Asked::Read { version, .. } => {
                (self.data[node].durable.version >= *version).then_some(Event::GiveRows(node))
            }
        });
        events.collect()
    }

    /// A node tells which versions it has.
    ///
    /// # Errors
    /// As [`World::give_rows`].
    pub(super) fn tell_versions(&mut self, node: Actor) -> Result<(), Violation> {
        let held = Some(self.held(node));
        if self.ending.is_some() {
            self.was_told(node, held);
            return Ok(());
        }
        self.told(node, GatherInput::Versions { chunk: node as u32, held })
    }

    /// What a node has durably.
    pub(super) fn held(&self, node: Actor) -> ChunkVersions {
        match node.checked_sub(K) {
            None => ChunkVersions { version: self.data[node].durable.version, held: Vec::new() },
            Some(number) => {
                let disk = &self.parity[number].durable;
                let mut held = disk.merged.clone();
                held.extend(disk.log.iter().map(|(_, record)| (record.chunk, record.version)));
                ChunkVersions { version: 0, held: held.into_iter().collect() }
            }
        }
    }

    /// A node reads its rows as they are, gives those that it read, or those at the state asked for; or refuses.
    ///
    /// # Errors
    /// Where they were the last, and what they decode to is not that state, or none that may be read.
    pub(super) fn give_rows(&mut self, node: Actor) -> Result<(), Violation> {
        let Some(gather) = &mut self.gather else { return Ok(()) };
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
                self.parity_rows(node - K, &versions.iter().copied().collect())
            }
        };
        let chunk = node as u32;
        let input = match given {
            Given::Here(version, rows) => {
                let Some(gather) = &mut self.gather else { return Ok(()) };
                gather.rows.insert(node, rows);
                if node < K {
                    gather.state.insert(node as u16, version);
                }
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
        self.go_on_gathering()
    }

    fn go_on_gathering(&mut self) -> Result<(), Violation> {
        let up: [bool; K + M] = core::array::from_fn(|node| self.is_up(node));
        while let Some(gather) = &mut self.gather
            && let Some(action) = gather.core.poll()
        {
            match action {
                GatherAction::AskVersions { .. } => self.gather_again(),
                GatherAction::Read { chunk, at, .. } => {
                    if let RowsAt::Parity { versions, .. } = &at {
                        gather.state = versions.iter().copied().collect();
                    }
                    if gather.is_anew && !up[chunk as Actor] {
                        gather.core.handle(GatherInput::Failed { chunk, cause: down() });
                    } else {
                        gather.asked.insert(chunk as Actor, Asked::Rows(at));
                    }
                }
                GatherAction::Row { .. } => {
                    let gather = self.gather.as_ref().expect("it is in hand");
                    let chunks = self.judge(gather)?;
                    if gather.is_anew {
                        self.stored = Some(Stored { versions: gather.state.clone(), chunks });
                        self.check_stored()?;
                    }
                }
                GatherAction::Done | GatherAction::Failed(_) => self.gather = None,
            }
        }
        self.forget_contents();
        Ok(())
    }

    /// A node is gone. What it had read and not given is lost with it: a degraded gather asks it again in its next life, one behind a fence
    /// does without.
    ///
    /// # Errors
    /// As [`World::give_rows`].
    pub(super) fn gather_misses(&mut self, node: Actor) -> Result<(), Violation> {
        let Some(gather) = &mut self.gather else { return Ok(()) };
        let Some(asked) = gather.asked.get_mut(&node) else { return Ok(()) };
        let chunk = node as u32;
        let input = match asked {
            Asked::Versions if gather.is_anew => GatherInput::Versions { chunk, held: None },
            _ if gather.is_anew => GatherInput::Failed { chunk, cause: down() },
            Asked::Read { .. } => {
                *asked = Asked::Rows(RowsAt::Newest);
                return Ok(());
            }
            Asked::Versions | Asked::Rows(_) => return Ok(()),
        };
        self.told(node, input)
    }

    /// Asks all again; or gives up.
    fn gather_again(&mut self) {
        self.gather = self.gather.take().and_then(|mut gather| {
            gather.again = gather.again.checked_sub(1)?;
            Some(gather)
        });
        self.ask_versions();
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

    /// Both data chunks of what was read, where that is one state of both, and one that may be read.
    fn judge(&self, gather: &Gather) -> Result<[Bytes; K], Violation> {
        let (state, chunks) = (&gather.state, decode(&gather.rows));
        for (chunk, bytes) in chunks.into_iter().enumerate() {
            let version = state[&(chunk as u16)];
            let none = BTreeSet::new();
            let stamped = self.contents.get(&(chunk as u16, version)).unwrap_or(&none);
            let is_state = stamped.contains(&bytes) || version == 0 && bytes == [0; ROWS];
            if !is_state {
                let read: Vec<&Actor> = gather.rows.keys().collect();
                return Err(Violation(format!(
                    "a gather by {read:?} at {state:?} gives chunk {chunk} as {bytes:?}, and version {version} was {stamped:?}"
                )));
            }
            self.may_be_read("a gather", chunk, bytes, &gather.acked)?;
        }
        Ok(chunks)
    }

    /// Notes what a chunk is at a version, while there may be a gather.
    pub(super) fn note_content(&mut self, chunk: u16, version: u64, content: Bytes) {
        if self.may_gather() {
            self.contents.entry((chunk, version)).or_default().insert(content);
        }
    }

    pub(super) fn forget_contents(&mut self) {
        if !self.may_gather() {
            self.contents.clear();
        }
    }

    fn may_gather(&self) -> bool {
        self.limits.gathers > 0 || self.limits.fences > 0 || self.ending.is_some() || self.gather.is_some()
    }

    /// Whether a node refuses updates, whatever becomes of it.
    fn is_fenced(&self, node: Actor) -> bool {
        let durable = match node.checked_sub(K) {
            Some(number) => self.parity[number].durable.epoch,
            None => self.data[node].durable.epoch,
        };
        durable > EPOCH
    }
}

/// Both data chunks, of the two chunks that were read.
fn decode(rows: &BTreeMap<Actor, Bytes>) -> [Bytes; K] {
    let read: Vec<(Actor, Bytes)> = rows.iter().map(|(node, rows)| (*node, *rows)).collect();
    match read[..] {
        [(0, first), (1, second)] => [first, second],
        [(K, one), (_, other)] => {
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
        [(chunk, one), (parity, other)] => {
            let (lost, number) = (1 - chunk, parity - K);
            let decoded = std::array::from_fn(|row| {
                quotient(number, lost, other[row] ^ product(number, chunk, one[row]))
            });
            if chunk == 0 { [one, decoded] } else { [decoded, one] }
        }
        _ => unreachable!("the core reads two chunks, not {read:?}"),
    }
}
