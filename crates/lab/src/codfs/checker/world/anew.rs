//! The segment is stored anew, as `steadfast_client` does where a change cannot be made in place: its nodes are fenced ([`Fence`]), say
//! what they hold since, and are then read without those that lack changes ([`chunks::Gather::at_least`]).
//!
//! ```text
//!   told, one by one ──▶ too few refuse updates: given up
//!         │
//!         └──▶ each says what it holds ──▶ read at one state ──▶ stored: nothing that is ever acknowledged may be missing
//! ```
//!
//! The fence comes to some of the nodes ([`REACHED`]), to each on its own, and holds there once it is durable. All else goes on meanwhile,
//! and after the read, too: updates that were on their way are acknowledged, a node dies between any two of these steps and may be back
//! for the next one. Who cannot be told because it is down says nothing of what it holds either, one that was too late does.
//!
//! What refuses updates does not change any more. So when it says what it holds is no choice worth exploring: at once, if it is up.
//!
//! Left out: blocks that are read as they are, which count where the states that came with them fit; a second fence, where a node that has
//! named more than parity holds is gone before it is read (the read fails); devices that have lost what was durable there.

use super::{
    Actor, Bytes, EPOCH, Event, K, LATER, M, Planted, Violation, World,
    gather::{SHAPE, down, holders},
};
use std::collections::{BTreeMap, BTreeSet};
use steadfast_protocol::{
    DeviceId,
    chunks::{self, Fence, awaited},
    message::{ChunkVersions, Fault, NodeAnswer},
    read::Cause,
    serve::parity_log::VersionsByChunk,
};

/// Nodes that a fence comes to, of data and of parity: all; all data; one of parity, alone or with all data; all but the first of data.
pub const REACHED: [[bool; K + M]; 5] = [
    [true, true, true, true],
    [true, true, false, false],
    [false, false, false, true],
    [true, true, false, true],
    [false, true, true, true],
];

/// How far a fence is at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    /// On its way.
    Sent,
    /// There, and not durable.
    Taken,
    /// The node has answered that it refuses updates.
    Refuses,
    /// It will not come there in time.
    Late,
    /// The node is down, or was before it answered.
    Gone,
}

/// A fence, and what nodes hold since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ending {
    told: [Told; K + M],
    /// Once all have been told or are not: what each said, if anything.
    said: BTreeMap<Actor, Option<ChunkVersions>>,
}

/// What the segment is stored anew of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    pub(super) versions: VersionsByChunk,
    pub(super) chunks: [Bytes; K],
}

impl Ending {
    /// Whether nobody is still to be told.
    fn is_told(&self) -> bool {
        self.told.iter().all(|told| !matches!(told, Told::Sent | Told::Taken))
    }

    fn answers(&self) -> [Result<NodeAnswer, Cause>; K + M] {
        self.told.map(|told| match told {
            Told::Refuses => Ok(NodeAnswer::Done),
            Told::Gone => Err(down()),
            Told::Sent | Told::Taken | Told::Late => Err(Cause::Fault(Fault::DeadlinePassed)),
        })
    }
}

impl World {
    /// Somebody begins to store the segment anew; the fence comes to the nodes `reached` that are up.
    pub(super) fn store_anew(&mut self, reached: [bool; K + M]) {
        self.limits.fences -= 1;
        let told = core::array::from_fn(|node| match reached[node] {
            _ if !self.is_up(node) => Told::Gone,
            true => Told::Sent,
            false => Told::Late,
        });
        self.ending = Some(Ending { told, said: BTreeMap::new() });
        self.ask_what_is_held();
    }

    /// What may happen next to a fence in hand.
    pub(super) fn storing_anew(&self) -> Vec<Event> {
        let Some(ending) = &self.ending else { return Vec::new() };
        if ending.said.len() == K + M {
            return vec![Event::ReadAnew];
        }
        let event = |node: Actor| match ending.told[node] {
            Told::Sent => Some(Event::Fence(node)),
            // The newest, once that is durable: a writer may be answered for it.
            _ if ending.is_told() && !ending.said.contains_key(&node) && self.steps(node) == 0 => {
                Some(Event::TellVersions(node))
            }
            _ => None,
        };
        (0..K + M).filter_map(event).collect()
    }

    /// The fence comes to a node: its device refuses changes under earlier epochs from now on.
    pub(super) fn fence(&mut self, node: Actor) {
        if let Some(ending) = &mut self.ending {
            ending.told[node] = Told::Taken;
        }
        match node.checked_sub(K) {
            Some(number) => {
                let parity = &mut self.parity[number];
                parity.now.epoch = LATER;
                parity.steps.push(parity.now.clone());
            }
            None => {
                let data = &mut self.data[node];
                data.now.epoch = LATER;
                data.steps.push(data.now.clone());
            }
        }
    }

    /// All that came to a node's device is durable, a fence among it.
    pub(super) fn was_flushed(&mut self, node: Actor) {
        if let Some(ending) = &mut self.ending
            && ending.told[node] == Told::Taken
        {
            ending.told[node] = Told::Refuses;
            self.ask_what_is_held();
        }
    }

    /// A node is gone, for whoever has asked it something.
    pub(super) fn was_lost(&mut self, node: Actor) -> Result<(), Violation> {
        if let Some(ending) = &mut self.ending {
            if matches!(ending.told[node], Told::Sent | Told::Taken) {
                ending.told[node] = Told::Gone;
                self.ask_what_is_held();
            } else if ending.is_told() {
                ending.said.entry(node).or_insert(None);
            }
        }
        self.gather_misses(node)
    }

    /// Once nobody is still to be told, all are asked what they hold, or it is given up. Of parity that was not told nothing is read,
    /// whatever it says.
    fn ask_what_is_held(&mut self) {
        let Some(mut ending) = self.ending.take() else { return };
        if ending.is_told() {
            if Fence::of(SHAPE, &ending.answers()).is_none() {
                return self.forget_contents();
            }
            for node in 0..K + M {
                let is_up = self.is_up(node);
                if !(is_up && node < K && ending.told[node] == Told::Late) {
                    let says = is_up && ending.told[node] == Told::Refuses;
                    ending.said.insert(node, says.then(|| self.held(node)));
                }
            }
        }
        self.ending = Some(ending);
    }

    /// A node that was told too late says what it holds.
    pub(super) fn was_told(&mut self, node: Actor, held: Option<ChunkVersions>) {
        if let Some(ending) = &mut self.ending {
            ending.said.insert(node, held);
        }
    }

    /// All have said what they hold: the segment is read by that, as `steadfast_client` reads what it stores anew.
    ///
    /// # Errors
    /// As [`World::give_rows`].
    pub(super) fn read_anew(&mut self) -> Result<(), Violation> {
        let Some(ending) = self.ending.take() else { return Ok(()) };
        let answers = ending.answers();
        let versions: Vec<Option<ChunkVersions>> = ending.said.into_values().collect();
        let fence = Fence::of(SHAPE, &answers)
            .ok_or_else(|| Violation("a fence that held does not hold any more".to_owned()))?;
        let without = match self.planted {
            Some(Planted::ReadsUnfenced) => BTreeSet::new(),
            _ => fence.without(&versions, |_| false),
        };
        let least = fence.ahead(&versions, &without);
        let is_outdated = fence.lacking(&versions).iter().any(|chunk| !without.contains(chunk));
        let said: Vec<Result<ChunkVersions, Cause>> =
            versions.into_iter().map(|held| held.ok_or_else(down)).collect();
        let as_it_is = awaited(&answers, &said, &without).is_empty();
        if is_outdated && !as_it_is {
            // Others may have what these lack: it is given up.
            self.forget_contents();
            return Ok(());
        }
        let excluded: BTreeSet<DeviceId> = without.iter().map(|chunk| DeviceId(u128::from(*chunk))).collect();
        let core = chunks::Gather::new(SHAPE, &holders(), &excluded, 0..K as u32).at_least(least);
        let core = if as_it_is { core } else { core.up_to_date() };
        let sources = (0..K + M).filter(|node| !without.contains(&(*node as u32))).collect();
        self.gather_by(core, sources, true)
    }

    /// A writer is answered for a version of a chunk, which is remembered where the segment is stored anew or may be, or a node refuses
    /// updates since.
    pub(super) fn note_answer(&mut self, chunk: u16, version: u64) {
        let is_read = self.gather.as_ref().is_some_and(|gather| gather.is_anew);
        let is_stored = self.ending.is_some() || is_read || self.stored.is_some();
        if self.limits.fences > 0 || is_stored || self.refuses_any() {
            let answered = self.answered.entry(chunk).or_default();
            *answered = version.max(*answered);
        }
    }

    /// Nothing that was acknowledged, before it was read or since, is missing from what the segment is stored anew of.
    pub(super) fn check_stored(&self) -> Result<(), Violation> {
        let Some(Stored { versions, chunks }) = &self.stored else { return Ok(()) };
        for (chunk, version) in &self.answered {
            let stored = versions.get(chunk).copied().unwrap_or(0);
            if *version > stored {
                return Err(Violation(format!(
                    "chunk {chunk} is stored anew at version {stored}, and {version} is acknowledged"
                )));
            }
        }
        let acked = self.acked();
        for (chunk, bytes) in chunks.iter().enumerate() {
            self.may_be_read("what is stored anew", chunk, *bytes, &acked)?;
        }
        Ok(())
    }

    /// Whether a node's device refuses updates now: durably, or until it loses power.
    pub(super) fn refuses(&self, node: Actor) -> bool {
        let now = match node.checked_sub(K) {
            Some(number) => self.parity[number].now.epoch,
            None => self.data[node].now.epoch,
        };
        now > EPOCH
    }

    /// Whether any does.
    pub(super) fn refuses_any(&self) -> bool {
        (0..K + M).any(|node| self.refuses(node))
    }
}
