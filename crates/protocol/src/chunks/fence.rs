//! An end to a segment's updates in place: which nodes have to refuse them, and what is known then.
//!
//! An update is acknowledged once its data node and every parity node have it durably. So none is acknowledged any more, under the
//! epochs that were fenced, where one parity node refuses them, or all data nodes do; a fence that reaches neither says nothing.
//!
//! Invariant: where [`Fence::changed`] says no, every chunk that stays is what the put stored, and stays so under these epochs; and so is
//! all that is read of those that leave, [`Fence::without`] the others.
//!
//! What a device has lost of a chunk its bytes do not show: their checksums are as right as when they were the newest. Only that others
//! have later versions does, and only here, where nothing changes between the answers ([`Fence::without`]). What a parity chunk lacks of a
//! data chunk shows where that is read beside it; where it is not, what it was would pass for the newest. So what lacks any stands in for
//! none that is only late ([`Fence::ahead`]).

use crate::{
    layout::ParityGeometry,
    message::{ChunkVersions, Fault, NodeAnswer, NodeFault},
    read::Cause,
    serve::parity_log::{ChunkNumber, VersionsByChunk},
};
use core::cmp::Reverse;
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
    /// and may have been changed themselves, and chunks that lack versions which others have. To read without one of the last
    /// does no harm where nothing acknowledged is missing, so they are as many at most as the others make up for, who said what they
    /// hold: beyond, what they lack is lost. Whose turn comes first is what counts where there are more of them, and not all can have lost
    /// something: what nothing else would show, by what may have been acknowledged. What parity lacks of chunks that are read shows beside
    /// those, and another state is gathered; of one of those that is late it is not taken for the newest ([`Fence::ahead`]). So for that
    /// alone no more is left out than lets one chunk fail yet; and first what lacks the most, as what was on its way lacks little.
    pub fn without(&self, versions: &[Option<ChunkVersions>], leaves: impl Fn(u32) -> bool) -> BTreeSet<u32> {
        let named = |chunk: u32| versions.get(chunk as usize).and_then(Option::as_ref);
        let mut without: BTreeSet<u32> = self.unfenced().collect();
        if !self.changed(versions, &leaves) {
            without.extend(self.unknown(versions, &leaves));
        }
        let gone = (0..self.shape.chunks).filter(|chunk| named(*chunk).is_none() && !without.contains(chunk));
        let spare = (self.shape.parity() as usize).saturating_sub(without.len() + gone.count());
        let most = without.len() + spare;
        let behind: Vec<Vec<(u64, u32)>> =
            (0..self.shape.data).map(|of| self.behind(of, versions, &without, spare)).collect();
        let parity_behind = |of: &u32| -> Vec<(u64, u32)> {
            behind[*of as usize].iter().copied().filter(|&(_, chunk)| chunk >= self.shape.data).collect()
        };
        let is_behind = |of: &u32| behind[*of as usize].iter().any(|(_, chunk)| chunk == of);
        add(&mut without, (0..self.shape.data).filter(is_behind), most);
        let is_read = |of: &u32| named(*of).is_some() && !without.contains(of);
        let (read, unread): (Vec<u32>, Vec<u32>) = (0..self.shape.data).partition(is_read);
        add(&mut without, unread.iter().flat_map(parity_behind).map(|(_, chunk)| chunk), most);
        add(&mut without, self.lacking(versions), most);
        let mut shown: Vec<(u64, u32)> = read.iter().flat_map(parity_behind).collect();
        shown.sort_unstable_by_key(|&(lacks, chunk)| (Reverse(lacks), chunk));
        add(&mut without, shown.into_iter().map(|(_, chunk)| chunk), most.saturating_sub(1));
        without
    }

    /// By number the data chunks of which parity that may be read lacks changes that their own nodes named, and how many those named: parity
    /// that has fewer does not stand in for them, however late they are. Where one of them is gone since, the next fence does not know
    /// it, and what parity has is all there is. `versions` are as of [`Fence::changed`], and nothing is read of `without`.
    pub fn ahead(&self, versions: &[Option<ChunkVersions>], without: &BTreeSet<u32>) -> VersionsByChunk {
        let named = |chunk: u32| versions.get(chunk as usize).and_then(Option::as_ref);
        let is_read = |chunk: &u32| !without.contains(chunk);
        let held = |parity: u32, of: u32| named(parity).map_or(0, |named| held_of(named, of));
        let is_ahead = |of: u32, version: u64| {
            (self.shape.data..self.shape.chunks).filter(is_read).any(|parity| held(parity, of) < version)
        };
        let data = (0..self.shape.data).filter(is_read).filter_map(|of| Some((of, named(of)?.version)));
        let ahead = data.filter(|&(of, version)| is_ahead(of, version));
        // At most 255 chunks.
        ahead.map(|(of, version)| (of as ChunkNumber, version)).collect()
    }

    /// The data chunk `of`, and parity, that hold less of it than was acknowledged, if all but `lost` of those that are not done `without`
    /// hold that; and how many changes they lack then.
    fn behind(
        &self,
        of: u32,
        versions: &[Option<ChunkVersions>],
        without: &BTreeSet<u32>,
        lost: usize,
    ) -> Vec<(u64, u32)> {
        let named = |chunk: u32| {
            let named = versions.get(chunk as usize).and_then(Option::as_ref)?;
            (!without.contains(&chunk)).then_some((chunk, named))
        };
        let held = |(chunk, named): (u32, &ChunkVersions)| (held_of(named, of), chunk);
        let mut all: Vec<(u64, u32)> =
            (self.shape.data..self.shape.chunks).filter_map(named).map(held).collect();
        // What all of parity lacks was never acknowledged.
        let of_parity = all.iter().map(|(version, _)| *version).max();
        let acknowledged_max = of_parity.filter(|_| all.len() == self.shape.parity() as usize);
        let of_data = |(chunk, data): (u32, &ChunkVersions)| {
            (data.version.min(acknowledged_max.unwrap_or(u64::MAX)), chunk)
        };
        all.extend(named(of).map(of_data));
        all.sort_unstable();
        let acknowledged = all.get(lost).map_or(0, |(version, _)| *version);
        let behind = all.into_iter().filter(|(version, _)| *version < acknowledged);
        behind.map(|(version, chunk)| (acknowledged - version, chunk)).collect()
    }

    fn is_fenced(&self, chunk: u32) -> bool {
        self.fenced[chunk as usize]
    }
}

/// What a parity chunk holds of a data chunk.
fn held_of(parity: &ChunkVersions, of: u32) -> u64 {
    let of_it = parity.held.iter().find(|(other, _)| u32::from(*other) == of);
    of_it.map_or(0, |(_, version)| *version)
}

/// Adds chunks, the first first, until there are so many.
fn add(chunks: &mut BTreeSet<u32>, more: impl IntoIterator<Item = u32>, most: usize) {
    for chunk in more {
        if chunks.len() < most {
            chunks.insert(chunk);
        }
    }
}
