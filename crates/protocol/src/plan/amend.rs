//! Where a segment that is there may be written to, and what an amendment makes of its layout.
//!
//! Invariants: devices that hold the segment come first, so that it stays on as many devices as it was spread over; what
//! lies on a device out of reach is not counted on, though it stays listed; an amended layout lists each index once; however
//! often an object is amended, no device that is written to holds more than [`PIECES_MERGED_AT`] pieces of a segment of it.

mod attempts;
#[cfg(test)]
pub(super) mod tests;

pub use attempts::{Again, Attempts, Unmade};

use super::{Candidate, choose::domain_name, spares};
use crate::{
    DeviceId, Epoch, IndexRanges, SegmentId, Version,
    layout::{Holder, PIECES_MERGED_AT, Piece, SegmentLayout, Share},
    message::DeviceHealth,
    policy::{Pledge, Policy},
    write::{Existing, Target},
};
use std::collections::{BTreeMap, BTreeSet};

/// The devices of a cluster as an amendment of one object sees them.
#[derive(Clone, Debug)]
pub struct Places {
    /// Every device in reach that is not to be left, and its failure domain.
    domain: BTreeMap<DeviceId, u32>,
    /// Those that take blocks, best first.
    usable: Vec<Target>,
    /// Failure domains, numbered from 0.
    pub domains: u32,
    /// The site of every device in `domain`, numbered from 0.
    site: BTreeMap<DeviceId, usize>,
    /// Sites that the object is to lie on at least, as far as there are such.
    sites: usize,
    /// Domains whose loss the bucket's objects survive.
    tolerate: u32,
}

impl Places {
    /// The devices of `candidates` but for those in `leaving`, under the failure domains of `policy`, for blocks of
    /// `block_bytes` of an object that is to lie on `sites` at least.
    pub fn new(
        candidates: &[Candidate],
        (policy, sites): (&Policy, u32),
        leaving: &BTreeSet<DeviceId>,
        block_bytes: u32,
    ) -> Self {
        let mut numbers = BTreeMap::new();
        let (mut domain, mut usable) = (BTreeMap::new(), Vec::new());
        let (mut names, mut site) = (BTreeMap::new(), BTreeMap::new());
        for candidate in candidates {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            let number = *numbers.entry(domain_name(policy.domain(), candidate)).or_insert(next);
            let reads = matches!(candidate.health, DeviceHealth::Ok | DeviceHealth::Full);
            if !candidate.alive || !reads || leaving.contains(&candidate.device) {
                continue;
            }
            domain.insert(candidate.device, number);
            let next = names.len();
            site.insert(candidate.device, *names.entry(&candidate.site).or_insert(next));
            if candidate.health == DeviceHealth::Ok && candidate.free_bytes >= u64::from(block_bytes) {
                let write_bytes_per_s = candidate.write_bytes_per_s;
                let load = f64::from(candidate.queue_length) / 4.0 + 1.0;
                let target = Target { device: candidate.device, domain: number, write_bytes_per_s };
                usable.push((write_bytes_per_s as f64 / load, target));
            }
        }
        usable.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.device.cmp(&b.1.device)));
        let domains = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let usable = usable.into_iter().map(|(_, target)| target).collect();
        Self { domain, usable, domains, site, sites: sites as usize, tolerate: policy.tolerate() }
    }

    /// What the layout lists on devices in reach, but for `dropped`.
    pub fn existing(&self, layout: &SegmentLayout, dropped: &IndexRanges) -> Vec<Existing> {
        let holders = layout.holders.iter().filter_map(|holder| {
            let domain = *self.domain.get(&holder.device)?;
            let blocks = holder.blocks().difference(dropped);
            (!blocks.is_empty()).then_some(Existing { device: holder.device, domain, blocks })
        });
        holders.collect()
    }

    /// The blocks, beside those `dropped`, that an amendment writes anew, each on its device, so that no device is left with
    /// more than [`PIECES_MERGED_AT`] pieces: those of its smallest pieces, which become one. Half of the pieces stay, the
    /// largest, so that a block is not written anew each time, and the next merge is as many amendments away. A device that
    /// cannot be written to gets no further piece either.
    pub fn merged(&self, layout: &SegmentLayout, dropped: &IndexRanges) -> IndexRanges {
        let mut merged = IndexRanges::new();
        for holder in &layout.holders {
            if !self.usable.iter().any(|target| target.device == holder.device) {
                continue;
            }
            let pieces = holder.pieces.iter().map(|piece| piece.blocks.difference(dropped));
            let mut pieces: Vec<IndexRanges> = pieces.filter(|blocks| !blocks.is_empty()).collect();
            // The amendment may add one.
            if pieces.len() < PIECES_MERGED_AT {
                continue;
            }
            pieces.sort_by_key(IndexRanges::count);
            let small = pieces.len() - PIECES_MERGED_AT / 2;
            pieces[..small].iter().for_each(|blocks| merged.insert_all(blocks));
        }
        merged
    }

    /// Whether all of these blocks lie on devices in reach.
    pub fn reach(&self, layout: &SegmentLayout, blocks: &IndexRanges) -> bool {
        let mut found = IndexRanges::new();
        self.existing(layout, &IndexRanges::new()).iter().for_each(|held| found.insert_all(&held.blocks));
        blocks.is_subset_of(&found)
    }

    /// The devices to write to and those to turn to, of which some are enough: the layout's first, others as far as it would lie on fewer
    /// devices than before, of domains that have nothing of it where there are such, and of others still where its sites would else be
    /// too few. One more copy of a single block is no use in a domain that has one of those `existing`.
    pub fn targets(&self, layout: &SegmentLayout, existing: &[Existing]) -> (Vec<Target>, Vec<Target>) {
        let holds = |target: &&Target| layout.holder(target.device).is_some();
        let has_copy = |domain: u32| existing.iter().any(|existing| existing.domain == domain);
        let useful = |target: &&Target| layout.code.originals > 1 || !has_copy(target.domain);
        let of_holder = |holder: &Holder| self.domain.get(&holder.device).copied();
        let occupied: BTreeSet<u32> = layout.holders.iter().filter_map(of_holder).collect();
        let (mut devices, others): (Vec<Target>, Vec<Target>) =
            self.usable.iter().filter(useful).partition(|target| holds(target));
        let (fresh, rest): (Vec<Target>, Vec<Target>) =
            others.into_iter().partition(|target| !occupied.contains(&target.domain));
        let mut spares = fresh;
        spares.extend(rest);
        // Copies that stay need no device.
        let copies = if layout.code.originals > 1 { 0 } else { existing.len() };
        let lacking = layout.holders.len().max(1).saturating_sub(devices.len() + copies).min(spares.len());
        let lacking = lacking.max(self.put_sites_first(layout, &mut spares));
        devices.extend(spares.drain(..lacking));
        let used = occupied.into_iter().chain(devices.iter().map(|target| target.domain)).collect();
        let most = spares::most(devices.len(), self.tolerate);
        let spares = spares::kept(spares, most, used, |target| target.domain);
        (devices, spares)
    }

    /// Where each of these copies goes, none of which has a place: to a device of `devices` in a domain that has no other copy of the same
    /// original, neither among those `existing` nor among those `placed`, and of these to the one that has fewest. Left out where there is
    /// none. Whoever would take any of them might take what its domain has already, and the rule would ask for more copies.
    pub(super) fn homes(
        &self,
        layout: &SegmentLayout,
        (existing, placed): (&[Existing], &[(DeviceId, IndexRanges)]),
        copies: &IndexRanges,
        devices: &[Target],
    ) -> Vec<(DeviceId, IndexRanges)> {
        let original = |index: u32| index % layout.code.originals.max(1);
        let mut held: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut loads: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let there = existing.iter().map(|held| (held.device, held.domain, &held.blocks));
        let placed =
            placed.iter().filter_map(|(device, blocks)| Some((*device, *self.domain.get(device)?, blocks)));
        for (device, domain, blocks) in there.chain(placed) {
            held.entry(domain).or_default().extend(blocks.iter().map(original));
            *loads.entry(device).or_default() += blocks.count();
        }
        let mut homes: BTreeMap<DeviceId, IndexRanges> = BTreeMap::new();
        for index in copies.iter() {
            let free =
                |target: &&Target| held.get(&target.domain).is_none_or(|of| !of.contains(&original(index)));
            let load = |target: &&Target| loads.get(&target.device).copied().unwrap_or(0);
            let Some(home) = devices.iter().filter(free).min_by_key(load) else { continue };
            held.entry(home.domain).or_default().insert(original(index));
            *loads.entry(home.device).or_default() += 1;
            homes.entry(home.device).or_default().insert(index);
        }
        homes.into_iter().collect()
    }

    /// Puts first those of `spares` on whose sites no device in reach holds any of the layout, one for each that is lacking; how
    /// many.
    fn put_sites_first(&self, layout: &SegmentLayout, spares: &mut [Target]) -> usize {
        let site_of = |device: DeviceId| self.site.get(&device);
        let mut sites: BTreeSet<_> =
            layout.holders.iter().filter_map(|holder| site_of(holder.device)).collect();
        let mut first = 0;
        for place in 0..spares.len() {
            if sites.len() < self.sites && sites.insert(site_of(spares[place].device).expect("it is usable"))
            {
                spares[first..=place].rotate_right(1);
                first += 1;
            }
        }
        first
    }
}

/// What an object promises, on as many sites as have a device that takes data: that is a wish, which refuses nothing.
pub fn to_be_had(pledge: Pledge, candidates: &[Candidate]) -> Pledge {
    let usable = candidates.iter().filter(|of| of.alive && of.health == DeviceHealth::Ok);
    let sites: BTreeSet<&str> = usable.map(|candidate| candidate.site.as_str()).collect();
    Pledge { sites: pledge.sites.min(u32::try_from(sites.len()).unwrap_or(u32::MAX)), ..pledge }
}

/// The blocks of a layout, wherever they lie.
pub fn stored(layout: &SegmentLayout) -> IndexRanges {
    let mut all = IndexRanges::new();
    layout.pieces().for_each(|(_, piece)| all.insert_all(&piece.blocks));
    all
}

/// The layout without the blocks `dropped` and with `shares`, stored under `segment` and `version`, at `epoch`.
pub fn amended(
    layout: &SegmentLayout,
    epoch: Epoch,
    dropped: &IndexRanges,
    (segment, version): (SegmentId, Version),
    shares: &[Share],
) -> SegmentLayout {
    let mut shares: BTreeMap<DeviceId, &Share> = shares.iter().map(|share| (share.device, share)).collect();
    let fresh = |share: &Share| Piece { segment, version, blocks: share.blocks.clone() };
    let mut holders = Vec::new();
    for holder in &layout.holders {
        let kept = holder
            .pieces
            .iter()
            .map(|piece| Piece { blocks: piece.blocks.difference(dropped), ..piece.clone() });
        let mut pieces: Vec<Piece> = kept.filter(|piece| !piece.blocks.is_empty()).collect();
        pieces.extend(shares.remove(&holder.device).map(fresh));
        if !pieces.is_empty() {
            holders.push(Holder { device: holder.device, pieces });
        }
    }
    holders.extend(
        shares.into_values().map(|share| Holder { device: share.device, pieces: vec![fresh(share)] }),
    );
    SegmentLayout { epoch, holders, ..layout.clone() }
}
