//! The world that the checker explores: the cores of one segment, the messages between them, and their media.
//!
//! Media are simpler than the disk crate's: of operations that were not flushed a power loss keeps a prefix
//! (`codfs/storm` has the real ones). Messages between two nodes arrive in order; a crash loses those to the node, while what it
//! had sent may still arrive beside what it sends in its next life. Contents are one byte a row, so that parity is arithmetic
//! and not bookkeeping: a difference lost or applied twice gives other bytes.

mod anew;
mod drive;
mod gather;
mod judge;

pub use self::anew::REACHED;
use self::{
    anew::{Ending, Stored},
    gather::{Gather, SOURCES},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use steadfast_protocol::{
    Epoch,
    serve::parity_log::{
        DataChunk, DataInput, Entry, Held, Medium, Mode, Overwrite, Overwrites, ParityChunk, ParityInput,
        ParityState, Refusal, VersionsByChunk, kept_from,
    },
};

/// Data chunks.
pub const K: usize = 2;
/// Parity chunks.
pub const M: usize = 2;
/// Rows, each one byte of every chunk.
pub const ROWS: usize = 2;

/// Under which the segment is listed.
const EPOCH: Epoch = Epoch(1);
/// Under which it is stored anew.
const LATER: Epoch = Epoch(2);

/// A bug put in on purpose, to see that the checker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Planted {
    /// A parity node takes everything that it has for committed, and merges it.
    MergeBeforeCommit,
    /// A parity node answers for a difference that it does not log.
    LostDelta,
    /// A merge makes its patches durable and forgets to say so, or an overwrite its bytes: after a crash the same versions are applied
    /// again.
    AppliedTwice,
    /// A data node gives a gather its newest rows, whatever version they were asked for at.
    GatherNewest,
    /// A parity node takes and acknowledges differences that come to it after it was fenced.
    FencedAcknowledges,
    /// A parity node that begins anew, as its device refused a change, has lost its log.
    FencedForgets,
    /// Who stores the segment anew reads parity, too, that takes changes yet.
    ReadsUnfenced,
}

/// What may happen, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Crashes of a node.
    pub crashes: u8,
    /// Merges that are begun without need.
    pub merges: u8,
    /// Degraded gathers.
    pub gathers: u8,
    /// Fences of who stores the segment anew.
    pub fences: u8,
}

impl Limits {
    /// Nothing but updates.
    pub const NONE: Self = Self { crashes: 0, merges: 0, gathers: 0, fences: 0 };
}

/// One byte a row; zero where nothing changes.
type Bytes = [u8; ROWS];

/// A write: it sets the rows of a chunk that are not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// The data chunk.
    pub chunk: usize,
    /// The new bytes.
    pub bytes: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Record {
    chunk: u16,
    version: u64,
    bytes: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Progress {
    Waiting,
    Sent,
    Acked,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Update {
    write: Write,
    progress: Progress,
    /// Updates that had been acknowledged when this one began.
    after: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    Ask { epoch: Epoch, session: u64, chunk: u16 },
    Versions { epoch: Epoch, received: u64 },
    Difference { epoch: Epoch, session: u64, record: Record, committed: u64 },
    Acked { through: u64 },
    Refused { reason: Refusal },
    Fetch { chunk: u16, version: u64 },
    Fetched { record: Record },
    Committed { epoch: Epoch, chunk: u16, through: u64 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct DataDisk {
    /// Changes under earlier ones are refused.
    epoch: Epoch,
    version: u64,
    content: Bytes,
    /// Staged here, or brought back by a log, and not released.
    held: BTreeMap<u64, Record>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DataNode {
    /// Absent while the node is down.
    core: Option<DataChunk>,
    durable: DataDisk,
    /// With everything that waits for a flush.
    now: DataDisk,
    /// One step for each operation since the flush: what is durable if a power loss keeps it and all before.
    steps: Vec<DataDisk>,
    adopting: Vec<u64>,
    kept: BTreeMap<u64, Record>,
    /// How often it was started.
    session: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct ParityDisk {
    /// Changes under earlier ones are refused.
    epoch: Epoch,
    base: Bytes,
    merged: BTreeMap<u16, u64>,
    log: VecDeque<(u64, Record)>,
    next: u64,
    /// In place: what was overwritten and not released, by the medium's own number.
    held: BTreeMap<u64, Record>,
    /// The last such number.
    overwritten: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ParityNode {
    core: Option<ParityChunk>,
    /// In place: the order of overwrites, and what may be released.
    overwrites: Overwrites,
    durable: ParityDisk,
    now: ParityDisk,
    steps: Vec<ParityDisk>,
    /// What the core hears once it is flushed.
    done: Vec<ParityInput>,
    arrived: BTreeMap<Reply, Record>,
}

/// Names a question: who asked, in which life, under which epoch, of which version (0 where it asks for versions).
type Reply = u64;

fn reply(actor: Actor, session: u64, epoch: Epoch, version: u64) -> Reply {
    ((session * 8 + epoch.0) * 16 + version) * 8 + actor as u64
}

/// What such a name says: who, in which life, under which epoch, of which version.
fn asked(reply: Reply) -> (Actor, u64, Epoch, u64) {
    let rest = reply / 8;
    ((reply % 8) as Actor, rest / 16 / 8, Epoch(rest / 16 % 8), rest % 16)
}

/// Links of a data node's earlier life: what it sent before it lost power may still be read.
const GHOST: Actor = 16;

/// Actors: data nodes, then parity nodes.
type Actor = usize;

/// Everything; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    mode: Mode,
    planted: Option<Planted>,
    limits: Limits,
    data: Vec<DataNode>,
    parity: Vec<ParityNode>,
    links: BTreeMap<(Actor, Actor), VecDeque<Message>>,
    updates: Vec<Update>,
    /// A degraded gather, or that of who stores the segment anew.
    gather: Option<Gather>,
    /// The fence of who stores the segment anew, until that reads.
    ending: Option<Ending>,
    /// What it has read.
    stored: Option<Stored>,
    /// The last version of each data chunk that a writer was answered for, where the segment is stored anew or may be, or a node refuses
    /// updates since.
    answered: VersionsByChunk,
    /// What data chunks are at each version that was stamped: another, where that one was lost and stamped again.
    contents: BTreeMap<(u16, u64), BTreeSet<Bytes>>,
}

/// One thing that can happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// An update begins.
    Begin(usize),
    /// The next message from one actor reaches another.
    Deliver(Actor, Actor),
    /// A node's flush returns.
    Flush(usize),
    /// A node loses power; so many of its unflushed operations are kept.
    Crash(usize, usize),
    /// It is back.
    Restart(usize),
    /// A parity node merges.
    Merge(usize),
    /// A data node has nothing to do.
    Tick(usize),
    /// A reader begins a degraded gather of both data chunks by these nodes.
    Gather([Actor; K]),
    /// Somebody begins to store the segment anew; the fence comes to these nodes.
    StoreAnew([bool; K + M]),
    /// It comes to one of them.
    Fence(Actor),
    /// A node tells who reads, or is to read behind a fence, which versions it has.
    TellVersions(Actor),
    /// Whoever stores the segment anew reads by what nodes have told.
    ReadAnew,
    /// A node reads its rows as they are, gives a reader those that it read, or those at the state asked for.
    GiveRows(Actor),
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// The coefficient of data chunk `data` in parity chunk `parity`: 1 and 1, 1 and 2 of GF(256).
fn product(parity: usize, data: usize, byte: u8) -> u8 {
    if parity * data == 0 { byte } else { byte << 1 ^ if byte & 0x80 == 0 { 0 } else { 0x1d } }
}

/// The byte whose product it is.
fn quotient(parity: usize, data: usize, byte: u8) -> u8 {
    (0..=255).find(|of| product(parity, data, *of) == byte).expect("products are one to one")
}

fn xor(into: &mut Bytes, other: Bytes) {
    into.iter_mut().zip(other).for_each(|(into, byte)| *into ^= byte);
}

impl World {
    /// A segment of zeros and the writes to come; its nodes know of each other.
    pub fn new(mode: Mode, writes: &[Write], limits: Limits, planted: Option<Planted>) -> Self {
        let node = || DataNode {
            core: Some(DataChunk::new(Medium::Own, 1, 0, 1)),
            durable: DataDisk::default(),
            now: DataDisk::default(),
            steps: Vec::new(),
            adopting: Vec::new(),
            kept: BTreeMap::new(),
            session: 1,
        };
        let parity = || ParityNode {
            core: ParityChunk::new(mode, ParityState::default(), u64::MAX).ok(),
            overwrites: overwrites([]),
            durable: ParityDisk::default(),
            now: ParityDisk::default(),
            steps: Vec::new(),
            done: Vec::new(),
            arrived: BTreeMap::new(),
        };
        let mut world = Self {
            mode,
            planted,
            limits,
            data: (0..K).map(|_| node()).collect(),
            parity: (0..M).map(|_| parity()).collect(),
            links: BTreeMap::new(),
            updates: writes
                .iter()
                .map(|write| Update { write: *write, progress: Progress::Waiting, after: Vec::new() })
                .collect(),
            gather: None,
            ending: None,
            stored: None,
            answered: VersionsByChunk::new(),
            contents: BTreeMap::new(),
        };
        // The first levelling, over an empty segment, has no choices worth exploring.
        for node in &mut world.data {
            let core = node.core.as_mut().expect("up");
            core.handle(DataInput::Configure { epoch: EPOCH, parities: parities() });
            for parity in parities() {
                core.handle(DataInput::Versions { parity, epoch: EPOCH, received: 0 });
            }
            while core.poll().is_some() {}
            (node.durable.epoch, node.now.epoch) = (EPOCH, EPOCH);
        }
        for node in &mut world.parity {
            let core = node.core.as_mut().expect("up");
            for chunk in 0..K as u16 {
                core.handle(ParityInput::Ask { reply: 0, epoch: EPOCH, session: 1, chunk });
            }
            core.handle(ParityInput::Fenced { epoch: EPOCH });
            while core.poll().is_some() {}
            (node.durable.epoch, node.now.epoch) = (EPOCH, EPOCH);
        }
        world
    }

    /// Everything that can happen next.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let next = self.updates.iter().position(|update| update.progress == Progress::Waiting);
        events.extend(next.map(Event::Begin));
        let waiting = self.links.iter().filter(|(_, link)| !link.is_empty());
        events.extend(waiting.map(|((from, to), _)| Event::Deliver(*from, *to)));
        for node in 0..K + M {
            let steps = self.steps(node);
            if steps > 0 {
                events.push(Event::Flush(node));
            }
            if !self.is_up(node) {
                events.push(Event::Restart(node));
            } else if self.limits.crashes > 0 {
                events.extend((0..=steps).map(|kept| Event::Crash(node, kept)));
            }
        }
        for (number, node) in self.parity.iter().enumerate() {
            let mergeable = node.core.as_ref().is_some_and(|core| {
                let all = self.planted == Some(Planted::MergeBeforeCommit) && core.log().len() > 0;
                (core.mergeable_bytes() > 0 || all) && !core.is_merging()
            });
            if self.limits.merges > 0 && mergeable {
                events.push(Event::Merge(K + number));
            }
        }
        for (chunk, node) in self.data.iter().enumerate() {
            if node.core.as_ref().is_some_and(|core| {
                let mut told = core.clone();
                told.handle(DataInput::Tick);
                told.poll().is_some()
            }) {
                events.push(Event::Tick(chunk));
            }
        }
        if self.gather.is_none() && self.ending.is_none() {
            if self.limits.gathers > 0 {
                events.extend(SOURCES.map(Event::Gather));
            }
            if self.limits.fences > 0 {
                events.extend(REACHED.map(Event::StoreAnew));
            }
        }
        events.extend(self.storing_anew());
        events.extend(self.gathering());
        events
    }

    /// Lets it happen.
    ///
    /// # Errors
    /// What must not be was.
    pub fn step(&mut self, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Begin(update) => self.begin(*update)?,
            Event::Deliver(from, to) => self.deliver(*from, *to)?,
            Event::Flush(node) => self.flush(*node)?,
            Event::Crash(node, kept) => self.crash(*node, *kept)?,
            Event::Restart(node) => self.restart(*node)?,
            Event::Merge(node) => self.merge(*node)?,
            Event::Tick(chunk) => {
                if let Some(core) = &mut self.data[*chunk].core {
                    core.handle(DataInput::Tick);
                }
                self.run_data(*chunk)?;
            }
            Event::Gather(sources) => self.gather(*sources)?,
            Event::StoreAnew(reached) => self.store_anew(*reached),
            Event::Fence(node) => self.fence(*node),
            Event::TellVersions(node) => self.tell_versions(*node)?,
            Event::ReadAnew => self.read_anew()?,
            Event::GiveRows(node) => self.give_rows(*node)?,
        }
        if self.is_quiet() {
            self.check("a quiet moment")
        } else if self.is_still() && self.refuses_any() {
            self.check_answered()
        } else {
            Ok(())
        }
    }

    /// Whether every update and gather has an outcome and nothing is on its way.
    pub fn is_over(&self) -> bool {
        let over = |update: &Update| matches!(update.progress, Progress::Acked | Progress::Unknown);
        // Behind a fence chunks need not become level any more.
        let rests = if self.refuses_any() { self.is_still() } else { self.is_quiet() };
        self.updates.iter().all(over) && self.gather.is_none() && self.ending.is_none() && rests
    }

    /// Whether somebody has read all that it is stored anew of.
    pub fn is_stored_anew(&self) -> bool {
        self.stored.is_some()
    }

    /// For people: what became of the updates.
    pub fn outcome(&self) -> String {
        let of = |update: &Update| format!("{:?} {:?}", update.write, update.progress);
        self.updates.iter().map(of).collect::<Vec<_>>().join("; ")
    }

    /// Updates that were acknowledged.
    fn acked(&self) -> Vec<usize> {
        let acked = self.updates.iter().enumerate().filter(|(_, update)| update.progress == Progress::Acked);
        acked.map(|(number, _)| number).collect()
    }

    fn begin(&mut self, update: usize) -> Result<(), Violation> {
        self.updates[update].after = self.acked();
        self.updates[update].progress = Progress::Sent;
        let chunk = self.updates[update].write.chunk;
        let refuses = self.refuses(chunk);
        match self.data[chunk].core.as_mut().filter(|_| !refuses) {
            Some(core) => core.handle(DataInput::Update { request: update as u64 }),
            // Its node is down, or its device refuses all changes: the writer hears nothing good.
            None => self.finished(update, Progress::Unknown),
        }
        self.run_data(chunk)
    }

    fn finished(&mut self, update: usize, progress: Progress) {
        if self.updates[update].progress == Progress::Sent {
            self.updates[update].progress = progress;
        }
    }

    fn deliver(&mut self, from: Actor, to: Actor) -> Result<(), Violation> {
        let message = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        self.links.retain(|_, link| !link.is_empty());
        let Some(message) = message else { return Ok(()) };
        let from = from % GHOST;
        if to < K { self.at_data(from, to, message) } else { self.at_parity(from, to, message) }
    }

    fn flush(&mut self, node: usize) -> Result<(), Violation> {
        if let Some(number) = node.checked_sub(K) {
            let parity = &mut self.parity[number];
            parity.steps.clear();
            parity.durable = parity.now.clone();
            for input in std::mem::take(&mut parity.done) {
                if let Some(core) = &mut parity.core {
                    core.handle(input);
                }
            }
            self.run_parity(number)?;
        } else {
            let data = &mut self.data[node];
            data.steps.clear();
            data.durable = data.now.clone();
            let adopted = std::mem::take(&mut data.adopting);
            if let Some(core) = &mut data.core {
                core.handle(DataInput::Durable { through: data.durable.version });
                adopted.into_iter().for_each(|version| core.handle(DataInput::Adopted { version }));
            }
            self.run_data(node)?;
        }
        self.was_flushed(node);
        Ok(())
    }

    fn crash(&mut self, node: usize, kept: usize) -> Result<(), Violation> {
        self.limits.crashes -= 1;
        if let Some(number) = node.checked_sub(K) {
            let parity = &self.parity[number];
            let left = kept.checked_sub(1).map_or(&parity.durable, |step| &parity.steps[step]).clone();
            self.end_parity(number, left)?;
            return self.was_lost(node);
        }
        for to in K..K + M {
            let sent = self.links.remove(&(node, to)).unwrap_or_default();
            self.links.entry((node + GHOST, to)).or_default().extend(sent);
        }
        self.links.retain(|(from, to), link| !link.is_empty() && *from != node && *to != node);
        let data = &mut self.data[node];
        if let Some(step) = kept.checked_sub(1) {
            data.durable = data.steps[step].clone();
        }
        data.now = data.durable.clone();
        data.core = None;
        data.steps.clear();
        data.adopting.clear();
        data.kept.clear();
        self.forget_updates(node);
        self.was_lost(node)
    }

    /// A parity node's life ends, and this is left of it. Its connections end with it.
    fn end_parity(&mut self, number: usize, left: ParityDisk) -> Result<(), Violation> {
        let node = K + number;
        self.links.retain(|(from, to), _| *from != node && *to != node);
        let parity = &mut self.parity[number];
        (parity.durable, parity.now) = (left.clone(), left);
        parity.core = None;
        parity.overwrites = overwrites([]);
        parity.steps.clear();
        parity.done.clear();
        parity.arrived.clear();
        for chunk in 0..K {
            if let Some(core) = &mut self.data[chunk].core {
                core.handle(DataInput::Lost { parity: number as u16 });
            }
            self.run_data(chunk)?;
        }
        Ok(())
    }

    /// Its device has refused a change to who serves a parity chunk: that ends, and the next begins once all before is durable, by what
    /// is there.
    fn begin_parity_anew(&mut self, number: usize) -> Result<(), Violation> {
        let mut left = self.parity[number].now.clone();
        if self.planted == Some(Planted::FencedForgets) {
            left.log.clear();
        }
        self.end_parity(number, left)?;
        self.restart(K + number)?;
        self.was_flushed(K + number);
        Ok(())
    }

    /// The writers of updates that were at a node hear nothing of them.
    fn forget_updates(&mut self, chunk: usize) {
        for update in 0..self.updates.len() {
            if self.updates[update].write.chunk == chunk {
                self.finished(update, Progress::Unknown);
            }
        }
    }

    fn restart(&mut self, node: usize) -> Result<(), Violation> {
        if let Some(number) = node.checked_sub(K) {
            let merge_bytes_max = u64::MAX;
            let parity = &mut self.parity[number];
            let entry = |(sequence, record): &(u64, Record)| Entry {
                sequence: *sequence,
                chunk: record.chunk,
                version: record.version,
                bytes: 1,
            };
            let state = ParityState {
                epoch: parity.durable.epoch,
                merged: parity.durable.merged.clone().into_iter().collect(),
                log: parity.durable.log.iter().map(entry).collect(),
                log_next: parity.durable.next,
            };
            let core = ParityChunk::new(self.mode, state, merge_bytes_max);
            parity.core = Some(core.map_err(|broken| Violation(broken.to_string()))?);
            let held = parity.durable.held.iter();
            parity.overwrites = overwrites(held.map(|(number, record)| (*number, *record)));
            for chunk in 0..K {
                if let Some(core) = &mut self.data[chunk].core {
                    core.handle(DataInput::Connected { parity: number as u16 });
                }
                self.run_data(chunk)?;
            }
            return Ok(());
        }
        let data = &mut self.data[node];
        data.kept = data.durable.held.clone();
        let kept_from = kept_from(data.durable.version, |version| data.kept.contains_key(&version));
        data.session += 1;
        let mut core = DataChunk::new(Medium::Own, data.session, data.durable.version, kept_from);
        core.handle(DataInput::Configure { epoch: EPOCH, parities: parities() });
        data.core = Some(core);
        self.run_data(node)
    }

    fn merge(&mut self, node: usize) -> Result<(), Violation> {
        self.limits.merges -= 1;
        let number = node - K;
        if let Some(core) = self.parity[number].core.as_mut() {
            if self.planted == Some(Planted::MergeBeforeCommit) {
                let epoch = core.epoch();
                for chunk in 0..K as u16 {
                    let through = core.durable(chunk);
                    core.handle(ParityInput::Committed { epoch, chunk, through });
                }
            }
            core.handle(ParityInput::MergeDue);
        }
        self.run_parity(number)
    }

    fn send(&mut self, from: Actor, to: Actor, message: Message) {
        if self.is_up(from) && self.is_up(to) {
            self.links.entry((from, to)).or_default().push_back(message);
        }
    }

    fn is_up(&self, node: usize) -> bool {
        match node.checked_sub(K) {
            Some(number) => self.parity[number].core.is_some(),
            None => self.data[node].core.is_some(),
        }
    }

    fn steps(&self, node: usize) -> usize {
        match node.checked_sub(K) {
            Some(number) => self.parity[number].steps.len(),
            None => self.data[node].steps.len(),
        }
    }
}

/// The numbers of all parity chunks.
fn parities() -> Vec<u16> {
    (0..M as u16).collect()
}

impl DataNode {
    fn stage(&mut self, record: Record) {
        self.now.held.insert(record.version, record);
        self.now.version = record.version;
        xor(&mut self.now.content, record.bytes);
        self.steps.push(self.now.clone());
    }
}

/// Overwrites of a parity chunk that holds these; however many are held, there is room for more.
fn overwrites(held_before: impl IntoIterator<Item = (u64, Record)>) -> Overwrites {
    let held = |(number, Record { chunk, version, .. })| (number, Held { chunk, version, bytes: 1 });
    Overwrites::new(u64::MAX, held_before.into_iter().map(held))
}

impl ParityNode {
    fn wait(&mut self, input: ParityInput) {
        self.steps.push(self.now.clone());
        self.done.push(input);
    }

    /// Differences go into the chunk, one after the other.
    fn overwrite(&mut self, number: usize, planted: Option<Planted>) {
        while let Some(Overwrite { chunk, version, reply, .. }) = self.overwrites.start() {
            let record = self.arrived.remove(&reply).expect("it arrived");
            self.now.add(number, record);
            if planted == Some(Planted::AppliedTwice) {
                // The bytes are one operation, their version another.
                self.steps.push(self.now.clone());
            }
            self.now.merged.insert(chunk, version);
            self.now.overwritten += 1;
            self.now.held.insert(self.now.overwritten, record);
            self.overwrites.placed(self.now.overwritten);
            self.wait(ParityInput::Overwritten { chunk, version });
        }
    }
}

impl ParityDisk {
    fn add(&mut self, number: usize, record: Record) {
        let product = |byte| product(number, record.chunk as usize, byte);
        xor(&mut self.base, record.bytes.map(product));
    }

    /// The chunk with its log.
    fn current(&self, number: usize) -> Bytes {
        let mut whole = self.clone();
        self.log.iter().for_each(|(_, record)| whole.add(number, *record));
        whole.base
    }
}
