//! A degraded gather, as `steadfast_client` and the nodes make it: both data chunks from any two chunks, at one state.
//!
//! Each node used is asked for its versions, each on its own; then [`common`] is read of each, on its own again. Whatever
//! else may happen comes in between: updates, merges, a node's death and its next life, a new layout. A node names
//! what is durable there: a version that it lost could be stamped again, and parity be asked for the one by the number of the
//! other. One that cannot give that state (any more, or yet) refuses; the reader asks all of them again.
//!
//! A reader knows the layout from when it began to ask. A node that was left out and is still at work serves it; a parity node
//! that knows a later epoch does not. (Real nodes serve readers of any layout: no segment that a node was left out of is
//! updated in place any more, it is stored anew.)

use super::{Actor, Bytes, K, M, Planted, ROWS, Violation, World, product, quotient, xor};
use std::collections::{BTreeMap, BTreeSet};
use steadfast_protocol::{
    Epoch,
    serve::parity_log::{ParityChunk, VersionsByChunk, common, take_back},
};

/// How often a gather asks for a state.
const ATTEMPTS_MAX: u8 = 2;

/// What a gather may read: one data chunk, the other lost or thought so, and either parity chunk; or both parity chunks.
pub(super) const SOURCES: [[Actor; K]; 2 * M + 1] = [[0, K], [0, K + 1], [1, K], [1, K + 1], [K, K + 1]];

/// A degraded gather in hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gather {
    sources: [Actor; K],
    /// Of the layout that the reader knows.
    epoch: Epoch,
    /// How often it may still begin again.
    again: u8,
    /// Updates that had been acknowledged when it began.
    acked: Vec<usize>,
    /// What nodes said that they have: of a data node the version of its chunk.
    named: BTreeMap<Actor, VersionsByChunk>,
    /// Once all have: what is read.
    state: Option<VersionsByChunk>,
    /// What was read.
    rows: BTreeMap<Actor, Bytes>,
}

/// What a node gives a reader.
enum Given<T> {
    Here(T),
    /// Not that, or nothing to this reader.
    Refused,
}

impl World {
    /// A reader comes to want both data chunks by these nodes.
    pub(super) fn gather(&mut self, sources: [Actor; K]) {
        self.limits.gathers -= 1;
        let acked = self.acked();
        let (epoch, again) = (self.epoch, ATTEMPTS_MAX - 1);
        let (named, rows) = Default::default();
        self.gather = Some(Gather { sources, epoch, again, acked, named, state: None, rows });
    }

    /// The nodes that a gather in hand may hear of next, and whether it is their versions that it waits for.
    pub(super) fn gathering(&self) -> (Vec<Actor>, bool) {
        let Some(gather) = &self.gather else { return (Vec::new(), true) };
        let lacks = |node: &Actor| match gather.state {
            None => !gather.named.contains_key(node),
            Some(_) => !gather.rows.contains_key(node),
        };
        let nodes = gather.sources.into_iter().filter(|node| lacks(node) && self.is_up(*node));
        (nodes.collect(), gather.state.is_none())
    }

    /// A node tells the reader which versions it has.
    pub(super) fn tell_versions(&mut self, node: Actor) {
        let Some(gather) = &self.gather else { return };
        let named = match node.checked_sub(K) {
            None => BTreeMap::from([(node as u16, self.data[node].durable.version)]),
            Some(number) if self.is_later(number, gather.epoch) => return self.gather_again(),
            Some(number) => {
                let disk = &self.parity[number].durable;
                let mut held = disk.merged.clone();
                held.extend(disk.log.iter().map(|(_, record)| (record.chunk, record.version)));
                held
            }
        };
        let Some(gather) = &mut self.gather else { return };
        gather.named.insert(node, named);
        if gather.named.len() == K {
            let named = std::mem::take(&mut gather.named);
            let newest = named.range(..K).flat_map(|(_, data)| data.clone());
            gather.state = Some(common(newest, named.range(K..).map(|(_, held)| held), K as u16));
        }
    }

    /// A node gives the reader its rows at the state asked for, or refuses.
    ///
    /// # Errors
    /// Where they were the last, and what they decode to is not that state, or none that may be read.
    pub(super) fn give_rows(&mut self, node: Actor) -> Result<(), Violation> {
        let Some(Gather { state: Some(state), epoch, .. }) = &self.gather else { return Ok(()) };
        let given = match node.checked_sub(K) {
            None => self.data_rows(node, state[&(node as u16)]),
            Some(number) if self.is_later(number, *epoch) => Given::Refused,
            Some(number) => self.parity_rows(number, state),
        };
        let Given::Here(rows) = given else {
            self.gather_again();
            return Ok(());
        };
        let Some(gather) = &mut self.gather else { return Ok(()) };
        gather.rows.insert(node, rows);
        if gather.rows.len() < K {
            return Ok(());
        }
        let Some(gather) = self.gather.take() else { return Ok(()) };
        let judged = self.judge(&gather);
        self.forget_contents();
        judged
    }

    /// A reader that a node left it without gives up.
    pub(super) fn gather_without(&mut self, node: Actor) {
        if self.gathering_from(node) && !self.is_up(node) {
            self.gather = None;
            self.forget_contents();
        }
    }

    fn gathering_from(&self, node: Actor) -> bool {
        self.gather
            .as_ref()
            .is_some_and(|gather| gather.sources.contains(&node) && !gather.rows.contains_key(&node))
    }

    /// Asks all again, under the layout as it is now; or gives up.
    fn gather_again(&mut self) {
        let (epoch, listed) = (self.epoch, self.listed);
        self.gather = self.gather.take().and_then(|mut gather| {
            gather.again = gather.again.checked_sub(1)?;
            gather.epoch = epoch;
            gather.state = None;
            gather.named.clear();
            gather.rows.clear();
            gather.sources.iter().all(|node| listed[*node]).then_some(gather)
        });
        self.forget_contents();
    }

    fn is_later(&self, number: usize, epoch: Epoch) -> bool {
        self.parity[number].core.as_ref().map(ParityChunk::epoch).is_some_and(|known| known > epoch)
    }

    /// Rows of a data chunk: what it has, less what is newer than asked for.
    fn data_rows(&self, node: Actor, version: u64) -> Given<Bytes> {
        let disk = &self.data[node].now;
        let mut rows = disk.content;
        if self.planted == Some(Planted::GatherNewest) {
            return Given::Here(rows);
        }
        let held = disk.held.values().map(|record| (record.version, 0, &record.bytes[..]));
        match take_back(&mut rows, 0, (disk.version, version), held) {
            true => Given::Here(rows),
            false => Given::Refused,
        }
    }

    /// Rows of a parity chunk: what it has, and what its log has up to the versions asked for
    /// ([`steadfast_protocol::serve::parity_log::ParityOf::bring`], with the products of this world).
    fn parity_rows(&self, number: usize, wanted: &VersionsByChunk) -> Given<Bytes> {
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
        if beyond(wanted, &disk.merged) { Given::Refused } else { Given::Here(disk.base) }
    }

    /// Whether what was read is one state of both chunks, and one that may be read.
    fn judge(&self, gather: &Gather) -> Result<(), Violation> {
        let state = gather.state.as_ref().expect("rows are read of a state");
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
