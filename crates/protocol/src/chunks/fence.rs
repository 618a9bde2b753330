//! An end to a segment's updates in place: which nodes have to refuse them, and what is known then.
//!
//! An update is acknowledged once its data node and every parity node have it durably. So none is acknowledged any more, under the
//! epochs that were fenced, where one parity node refuses them, or all data nodes do; a fence that reaches neither says nothing.
//!
//! Invariant: where [`Fence::changed`] says no, every chunk that stays is what the put stored, and stays so under these epochs; and so is
//! all that is read of those that leave, [`Fence::without`] the others.
//!
//! What a device has lost of a data chunk its bytes do not show: their checksums are as right as when they were the newest. Only that
//! parity has later versions does, and only here, where nothing changes between the two answers ([`Fence::without`]).

use crate::{
    layout::ParityGeometry,
    message::{ChunkVersions, Fault, NodeAnswer, NodeFault},
    read::Cause,
};
use std::collections::BTreeSet;

/// A fence that holds; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    shape: ParityGeometry,
    /// Whether each chunk's node refuses updates.
    fenced: Vec<bool>,
}

impl Fence {
    /// What the nodes of all chunks, in the chunks' order, answered to [`NodeRequest::Fence`](crate::message::NodeRequest::Fence);
    /// none where so few are fenced that an update could still be acknowledged.
    pub fn of(shape: ParityGeometry, answers: &[Result<NodeAnswer, Cause>]) -> Option<Self> {
        let is_fenced = |chunk: u32| match answers.get(chunk as usize) {
            Some(Ok(answer)) => *answer == NodeAnswer::Done,
            // By somebody who began later, and whose change will be found instead.
            Some(Err(cause)) => matches!(cause, Cause::Fault(Fault::Node(NodeFault::StaleEpoch { .. }))),
            None => false,
        };
        let fenced: Vec<bool> = (0..shape.chunks).map(is_fenced).collect();
        let (data, parity) = fenced.split_at(shape.data as usize);
        let holds = parity.contains(&true) || !data.contains(&false);
        holds.then_some(Self { shape, fenced })
    }

    /// Parity chunks whose nodes may take differences still: what is read must not be made of them.
    pub fn unfenced(&self) -> impl Iterator<Item = u32> {
        (self.shape.data..self.shape.chunks).filter(|&chunk| !self.is_fenced(chunk))
    }

    /// Whether any chunk may have been changed in place, or may yet be. `versions` are what the nodes of all chunks said that they
    /// hold since they were fenced, none of those that did not answer; chunks that leave are moved, of parity where nobody knows what
    /// they hold.
    pub fn changed(&self, versions: &[Option<ChunkVersions>], leaves: impl Fn(u32) -> bool) -> bool {
        let unchanged = |chunk: u32| {
            let held = versions.get(chunk as usize).and_then(Option::as_ref)?;
            Some(held.version == 0 && held.held.iter().all(|(_, version)| *version == 0))
        };
        // One that stays, and of which nobody knows, may have been changed, or be changed yet. One that leaves and was changed, though
        // nothing was committed, would be moved with bytes that parity knows nothing of.
        let sure = |chunk: u32| match unchanged(chunk) {
            Some(unchanged) => unchanged && (leaves(chunk) || self.is_fenced(chunk)),
            None => leaves(chunk),
        };
        // Of a data chunk that leaves, only parity knows.
        let known = (self.shape.data..self.shape.chunks)
            .any(|chunk| self.is_fenced(chunk) && unchanged(chunk) == Some(true));
        // What nobody knows is not read; where too little is left, all that is read is stored anew, which is right whatever it is.
        let unread = self.unfenced().count() + self.unknown(versions, &leaves).count();
        !(known && (0..self.shape.chunks).all(sure) && unread <= self.shape.parity() as usize)
    }

    /// Data chunks that leave and may be changed yet, or of which nobody knows whether they were.
    fn unknown(
        &self,
        versions: &[Option<ChunkVersions>],
        leaves: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = u32> {
        (0..self.shape.data).filter(move |&chunk| {
            let named = versions.get(chunk as usize).is_some_and(Option::is_some);
            leaves(chunk) && !(self.is_fenced(chunk) && named)
        })
    }

    /// Data chunks that lack versions that fenced parity has: their devices lost them, or they were never acknowledged. `versions` as of
    /// [`Fence::changed`].
    pub fn lacking(&self, versions: &[Option<ChunkVersions>]) -> Vec<u32> {
        let named = |chunk: u32| versions.get(chunk as usize).and_then(Option::as_ref);
        let lacks = |chunk: &u32| {
            let parities = (self.shape.data..self.shape.chunks).filter(|&parity| self.is_fenced(parity));
            let held = parities.filter_map(named).flat_map(|parity| &parity.held);
            let mut of_it = held.filter(|(of, _)| u32::from(*of) == *chunk);
            named(*chunk).is_some_and(|data| of_it.any(|(_, version)| *version > data.version))
        };
        (0..self.shape.data).filter(lacks).collect()
    }

    /// Chunks that what is read must not be made of: parity that is [unfenced](Fence::unfenced), data chunks that leave unchanged parity
    /// and may have been changed themselves, and data chunks that are [`lacking`](Fence::lacking) versions. To read without one of the last
    /// does no harm where nothing acknowledged is missing, so they are as many at most as the others make up for, who said what they
    /// hold: beyond, what they lack is lost.
    pub fn without(&self, versions: &[Option<ChunkVersions>], leaves: impl Fn(u32) -> bool) -> BTreeSet<u32> {
        let named = |chunk: u32| versions.get(chunk as usize).and_then(Option::as_ref);
        let mut without: BTreeSet<u32> = self.unfenced().collect();
        if !self.changed(versions, &leaves) {
            without.extend(self.unknown(versions, &leaves));
        }
        let gone = (0..self.shape.chunks).filter(|chunk| named(*chunk).is_none() && !without.contains(chunk));
        let spare = (self.shape.parity() as usize).saturating_sub(without.len() + gone.count());
        without.extend(self.lacking(versions).into_iter().take(spare));
        without
    }

    fn is_fenced(&self, chunk: u32) -> bool {
        self.fenced[chunk as usize]
    }
}
