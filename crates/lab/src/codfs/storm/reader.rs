//! A reader that does without some of the nodes while all else goes on: the core that clients drive ([`Gather`]), and nodes that answer it
//! whenever it comes about, or are gone.

use super::{
    Counts, K, M, Storm, below,
    node::{BLOCK_BYTES, CHUNK_BYTES, Disk, SEGMENT},
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};
use steadfast_protocol::{
    DeviceId,
    chunks::{Gather, GatherAction, GatherInput},
    layout::ParityGeometry,
    message::{ChunkVersions, Fault, NodeFault, RowsAt},
    read::{Cause, ReadError},
    serve::parity_log::VersionsByChunk,
};

/// The storm's segment.
pub(super) const SHAPE: ParityGeometry = ParityGeometry {
    chunks: (K + M) as u32,
    data: K as u32,
    blocks: CHUNK_BYTES as u32 / BLOCK_BYTES,
    block_bytes: BLOCK_BYTES,
};
/// How often a parity node waits for what a reader has seen elsewhere, as with `steadfast_node`.
const WAITS: u32 = 5;

/// A reader, and what it has so far.
pub(super) struct Reader {
    core: Gather,
    /// Nodes that it does without.
    excluded: BTreeSet<usize>,
    /// Those, and all that were down at any time since it began.
    missed: BTreeSet<usize>,
    /// The last version of each data chunk that had been acknowledged when it began.
    pub(super) acked: Vec<u64>,
    pending: BTreeMap<usize, Pending>,
    /// What was read of the row in hand, by chunk.
    pub(super) rows: BTreeMap<u32, Vec<u8>>,
    /// Which versions that shows, of lost chunks those that parity was asked for.
    pub(super) state: VersionsByChunk,
    /// The data chunks, as far as they were read.
    pub(super) contents: Vec<Vec<u8>>,
}

/// What a node was asked and has not answered.
struct Pending {
    question: Question,
    /// How often it has looked in vain.
    waits: u32,
    /// What it has read, and at which flush that is durable.
    read: Option<(u64, Answer)>,
}

#[derive(Debug)]
enum Question {
    Versions,
    Row { row: u32, at: RowsAt },
}

enum Answer {
    Versions(ChunkVersions),
    Row { version: u64, bytes: Vec<u8> },
}

impl From<Question> for Pending {
    fn from(question: Question) -> Self {
        Self { question, waits: 0, read: None }
    }
}

impl Reader {
    /// All nodes but those that it does without are asked what they hold.
    fn ask_versions(&mut self) {
        self.rows.clear();
        self.state.clear();
        for node in 0..K + M {
            if self.excluded.contains(&node) {
                self.core.handle(GatherInput::Versions { chunk: node as u32, held: None });
            } else {
                self.pending.insert(node, Question::Versions.into());
            }
        }
    }
}

impl Storm {
    /// Somebody comes to want some blocks, without some of the nodes: as many as there is parity for, those that are down among them.
    pub(super) fn begin_reading(&mut self, counts: &mut Counts) -> Result<()> {
        let mut excluded = BTreeSet::new();
        let spare = M.saturating_sub(self.back_at.len()) as u64;
        for _ in 0..(1 + below(&mut self.random, M as u64)).min(spare) {
            excluded.insert(below(&mut self.random, (K + M) as u64) as usize);
        }
        let all = SHAPE.originals();
        let wanted = match below(&mut self.random, 2) {
            0 => 0..all,
            _ => {
                let first = below(&mut self.random, all.into()) as u32;
                first..first + 1 + below(&mut self.random, (all - first).into()) as u32
            }
        };
        self.read(excluded, wanted, counts)
    }

    fn read(&mut self, excluded: BTreeSet<usize>, wanted: Range<u32>, counts: &mut Counts) -> Result<()> {
        let holders: Vec<DeviceId> = (0..K + M).map(|node| DeviceId(node as u128)).collect();
        let without = excluded.iter().map(|node| holders[*node]).collect();
        let core = Gather::new(SHAPE, &holders, &without, wanted);
        let missed = excluded.iter().chain(self.back_at.keys()).copied().collect();
        let (pending, rows, state) = Default::default();
        let (acked, contents) = (self.acked(), self.model.clone());
        self.reader = Some(Reader { core, excluded, missed, acked, pending, rows, state, contents });
        self.read_on(counts)
    }

    /// One of the nodes that a reader waits for does something about it.
    pub(super) fn answer_one(&mut self, counts: &mut Counts) -> Result<()> {
        let asked = self.asked();
        if asked.is_empty() {
            return Ok(());
        }
        let node = asked[below(&mut self.random, asked.len() as u64) as usize];
        let pending = self.reader.as_ref().and_then(|reader| reader.pending.get(&node));
        if pending.is_some_and(|pending| pending.read.is_some()) {
            // What it has read waits for nothing else.
            self.flush(node, counts)?;
        }
        self.answer(node, counts)
    }

    /// The nodes that a reader waits for.
    pub(super) fn asked(&self) -> Vec<usize> {
        self.reader.iter().flat_map(|reader| reader.pending.keys().copied()).collect()
    }

    pub(super) fn answer(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        let is_up = self.is_up(node);
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let Some(mut pending) = reader.pending.remove(&node) else { return Ok(()) };
        if !is_up {
            return self.gone(node, &pending.question, counts);
        }
        let read = match pending.read.take() {
            Some(read) => Some(read),
            None => self.look(node, &pending.question)?,
        };
        match read {
            Some((at, answer)) if self.disk(node).is_durable(at) => return self.heard(node, answer, counts),
            read => pending.read = read,
        }
        if pending.read.is_none() {
            pending.waits += 1;
            let may_come = matches!(pending.question, Question::Row { at: RowsAt::Parity { .. }, .. });
            if !may_come || pending.waits > WAITS {
                let (device, segment) = (DeviceId(node as u128), SEGMENT);
                let cause = Cause::Fault(Fault::Node(NodeFault::Overtaken { device, segment }));
                return self.tell(GatherInput::Failed { chunk: node as u32, cause }, counts);
            }
        }
        if let Some(reader) = &mut self.reader {
            reader.pending.insert(node, pending);
        }
        Ok(())
    }

    /// What a node has to say now, and from which of its flushes on it may; nothing where it does not have that.
    fn look(&mut self, node: usize, question: &Question) -> Result<Option<(u64, Answer)>> {
        Ok(match (question, node.checked_sub(K)) {
            (Question::Versions, None) => {
                let versions = self.data[node].versions()?;
                Some((self.disk(node).durable_at(), Answer::Versions(versions)))
            }
            (Question::Versions, Some(number)) => {
                let versions = self.parity[number].versions()?;
                Some((self.disk(node).durable_at(), Answer::Versions(versions)))
            }
            (Question::Row { row, at: RowsAt::Newest }, None) => {
                let (version, bytes) = self.data[node].newest(*row)?;
                Some((self.disk(node).durable_at(), Answer::Row { version, bytes }))
            }
            (Question::Row { row, at: RowsAt::Data(version) }, None) => {
                let bytes = self.data[node].at(*row, *version)?;
                bytes.map(|bytes| (0, Answer::Row { version: *version, bytes }))
            }
            (Question::Row { row, at: RowsAt::Parity { versions, .. } }, Some(number)) => {
                let bytes = self.parity[number].at(*row, &versions.iter().copied().collect())?;
                bytes.map(|bytes| (0, Answer::Row { version: 0, bytes }))
            }
            (question, _) => bail!("node {node} does not have what it is asked: {question:?}"),
        })
    }

    fn heard(&mut self, node: usize, answer: Answer, counts: &mut Counts) -> Result<()> {
        let chunk = node as u32;
        let input = match answer {
            Answer::Versions(held) => GatherInput::Versions { chunk, held: Some(held) },
            Answer::Row { version, bytes } => {
                if let Some(reader) = &mut self.reader {
                    reader.rows.insert(chunk, bytes);
                    if node < K {
                        reader.state.insert(node as u16, version);
                    }
                }
                GatherInput::Row { chunk, version }
            }
        };
        self.tell(input, counts)
    }

    /// A node lost its power: whatever it was asked is answered by nobody.
    pub(super) fn reader_loses(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        reader.missed.insert(node);
        match reader.pending.remove(&node) {
            Some(pending) => self.gone(node, &pending.question, counts),
            None => Ok(()),
        }
    }

    fn gone(&mut self, node: usize, question: &Question, counts: &mut Counts) -> Result<()> {
        let chunk = node as u32;
        let input = match question {
            Question::Versions => GatherInput::Versions { chunk, held: None },
            Question::Row { .. } => {
                GatherInput::Failed { chunk, cause: Cause::Unreachable("it is down".to_owned()) }
            }
        };
        self.tell(input, counts)
    }

    fn tell(&mut self, input: GatherInput, counts: &mut Counts) -> Result<()> {
        if let Some(reader) = &mut self.reader {
            reader.core.handle(input);
        }
        self.read_on(counts)
    }

    /// Does what the reader's core says.
    fn read_on(&mut self, counts: &mut Counts) -> Result<()> {
        let Some(mut reader) = self.reader.take() else { return Ok(()) };
        while let Some(action) = reader.core.poll() {
            match action {
                GatherAction::AskVersions { after } => {
                    self.now = self.now + after;
                    reader.ask_versions();
                }
                GatherAction::Read { chunk, row, at } => {
                    if let RowsAt::Parity { versions, .. } = &at {
                        reader.state.extend(versions.iter().copied());
                    }
                    reader.pending.insert(chunk as usize, Question::Row { row, at }.into());
                }
                GatherAction::Row { row, wanted, lost } => {
                    self.judge_row(&mut reader, row, &wanted, &lost, counts).with_context(|| {
                        format!("row {row} without {:?}, and {:?} missed", reader.excluded, reader.missed)
                    })?;
                    reader.rows.clear();
                    reader.state.clear();
                }
                GatherAction::Done => {
                    counts.gathers += 1;
                    counts.gathers_away += u64::from(reader.missed != reader.excluded);
                    self.gathered = Some(reader.contents);
                    return Ok(());
                }
                GatherAction::Failed(ReadError::Unsettled { .. }) => {
                    counts.gathers_unsettled += 1;
                    return Ok(());
                }
                GatherAction::Failed(error) => {
                    let missed = &reader.missed;
                    ensure!(missed.len() > M, "without {missed:?} a reader is told: {error}");
                    counts.gathers_short += 1;
                    return Ok(());
                }
            }
        }
        self.reader = Some(reader);
        Ok(())
    }

    /// The data chunks as a reader finds them without these nodes, while nothing else happens.
    pub(super) fn read_at_rest(
        &mut self,
        excluded: BTreeSet<usize>,
        counts: &mut Counts,
    ) -> Result<Vec<Vec<u8>>> {
        self.gathered = None;
        // It is none of those that go on beside all else.
        let mut at_rest = Counts::default();
        self.read(excluded, 0..SHAPE.originals(), &mut at_rest)?;
        while self.reader.is_some() {
            let asked = self.asked();
            ensure!(!asked.is_empty(), "a reader waits for nobody and has not ended");
            for node in asked {
                if self.is_up(node) {
                    self.disk(node).flush()?;
                }
                self.answer(node, &mut at_rest)?;
            }
        }
        counts.rows_decoded += at_rest.rows_decoded;
        counts.bytes_compared += at_rest.bytes_compared;
        self.gathered.take().context("a reader finds no state of all while nothing changes")
    }

    /// The device of a node.
    pub(super) fn disk(&mut self, node: usize) -> &mut Disk {
        match node.checked_sub(K) {
            Some(number) => &mut self.parity[number].disk,
            None => &mut self.data[node].disk,
        }
    }
}
