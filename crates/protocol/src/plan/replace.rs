//! What a change of a segment takes away and writes: the blocks that it replaces, and what its write is given.
//!
//! Invariants: every block that is replaced goes to the device that had it where that takes any; a copy that moves goes where its original
//! has no other copy; no index that is listed is used again.

use super::amend::{Places, stored};
use crate::{
    BlockIndex, DeviceId, IndexRanges,
    durability::Need,
    layout::{CodeKind, SegmentLayout},
    write::{Existing, Given, Target},
};
use std::collections::{BTreeMap, BTreeSet};

/// What a change does to the blocks of a segment.
pub struct Replaced {
    /// Blocks that are dropped, or get other contents.
    pub dropped: IndexRanges,
    /// Blocks that are written anew as they are.
    pub merged: IndexRanges,
}

impl Replaced {
    /// `dropped`, and what is merged where pieces become too many.
    pub fn of(places: &Places, layout: &SegmentLayout, dropped: IndexRanges) -> Self {
        let merged = places.merged(layout, &dropped);
        Self { dropped, merged }
    }

    /// All that old pieces do not list any more.
    pub fn all(&self) -> IndexRanges {
        self.and_merged(&self.dropped)
    }

    /// These blocks, and those that are merged.
    pub fn and_merged(&self, blocks: &IndexRanges) -> IndexRanges {
        let mut all = blocks.clone();
        all.insert_all(&self.merged);
        all
    }
}

/// What is given to a write: the layout's blocks in reach but for those `replaced`, and those wanted, to which what is
/// merged belongs too.
pub fn given(places: &Places, layout: &SegmentLayout, replaced: &Replaced, wanted: &IndexRanges) -> Given {
    let existing = places.existing(layout, &replaced.all());
    let wanted = held_of(layout, &replaced.and_merged(wanted));
    let wanted = match layout.code.kind {
        CodeKind::Replicated => with_homes(places, layout, &existing, wanted),
        _ => wanted,
    };
    Given { existing, wanted, first_new_index: first_new_index(layout) }
}

/// Which of these blocks each device holds, of those that hold any.
fn held_of(layout: &SegmentLayout, blocks: &IndexRanges) -> Vec<(DeviceId, IndexRanges)> {
    let held = layout.holders.iter().map(|holder| (holder.device, holder.blocks().intersection(blocks)));
    held.filter(|(_, blocks)| !blocks.is_empty()).collect()
}

/// The same, with the copies of devices that take no blocks given to others; those without a place anywhere stay, and go to whoever takes
/// them.
fn with_homes(
    places: &Places,
    layout: &SegmentLayout,
    existing: &[Existing],
    wanted: Vec<(DeviceId, IndexRanges)>,
) -> Vec<(DeviceId, IndexRanges)> {
    let (devices, _) = places.targets(layout, existing);
    let takes = |device| devices.iter().any(|target| target.device == device);
    let (at_home, away): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|&(device, _)| takes(device));
    let mut copies = IndexRanges::new();
    away.iter().for_each(|(_, blocks)| copies.insert_all(blocks));
    let homes = places.homes(layout, (existing, &at_home), &copies, &devices);
    let mut wanted: BTreeMap<DeviceId, IndexRanges> = at_home.into_iter().collect();
    for (device, blocks) in homes {
        copies = copies.difference(&blocks);
        wanted.entry(device).or_default().insert_all(&blocks);
    }
    wanted.into_iter().chain(held_of(layout, &copies)).collect()
}

/// Where a write needs no block but those wanted, only their devices are opened; the others are spares. Where more are lacking, all are:
/// those that hold least are to get them.
pub fn only_needed(
    given: &Given,
    need: &Need,
    devices: Vec<Target>,
    spares: Vec<Target>,
) -> (Vec<Target>, Vec<Target>) {
    let wanted = |target: &Target| {
        given.wanted.iter().any(|(device, blocks)| *device == target.device && !blocks.is_empty())
    };
    let homeless =
        given.wanted.iter().any(|(device, _)| !devices.iter().any(|target| target.device == *device));
    if homeless
        || given.wanted.iter().all(|(_, blocks)| blocks.is_empty())
        || !need.met(&loads(given, &devices))
    {
        return (devices, spares);
    }
    let (needed, mut others): (Vec<Target>, Vec<Target>) = devices.into_iter().partition(wanted);
    others.extend(spares);
    (needed, others)
}

/// Blocks of each domain, with those wanted where they are at home.
fn loads(given: &Given, devices: &[Target]) -> Vec<f64> {
    let there = given.existing.iter().map(|existing| (existing.domain, existing.blocks.count()));
    let at_home = given.wanted.iter().filter_map(|(device, blocks)| {
        let home = devices.iter().find(|target| target.device == *device)?;
        Some((home.domain, blocks.count()))
    });
    let mut loads = Vec::new();
    for (domain, blocks) in there.chain(at_home) {
        let domain = domain as usize;
        loads.resize(loads.len().max(domain + 1), 0.0);
        loads[domain] += f64::from(blocks);
    }
    loads
}

/// The highest index listed, and one more: none that anybody could still ask for is used again.
fn first_new_index(layout: &SegmentLayout) -> BlockIndex {
    stored(layout).ranges().last().map_or(0, |range| range.end).max(layout.code.originals)
}

/// D as it is now, whatever the bucket's policy says: it may have been dialled. Rounded down, so that it does not creep
/// up with the few blocks by which a write goes beyond its rule.
pub fn dialled(layout: &SegmentLayout) -> f64 {
    rounded_down(layout.redundancy())
}

/// D to write by where a segment's blocks on the devices `leaving` are replaced, of a bucket that promises `promised`: as it is now, but no
/// more than is to be had of it in reach, unless that is less than promised. What lies out of reach stays listed and is not counted by
/// who writes: asked for again each time, it would become ever more.
pub fn to_be_kept(
    places: &Places,
    layout: &SegmentLayout,
    leaving: &BTreeSet<DeviceId>,
    promised: f64,
) -> f64 {
    let in_reach = places.existing(layout, &IndexRanges::new()).into_iter().map(|held| held.blocks.count());
    let left = layout.holders.iter().filter(|holder| leaving.contains(&holder.device));
    let there: u32 = in_reach.chain(left.map(|holder| holder.blocks().count())).sum();
    let reached = rounded_down(f64::from(there) / f64::from(layout.code.originals.max(1)) - 1.0);
    dialled(layout).min(reached.max(promised))
}

fn rounded_down(redundancy: f64) -> f64 {
    (redundancy * 100.0 + 1e-6).floor().max(0.0) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Epoch, SegmentId, Version,
        layout::Share,
        plan::{
            Candidate,
            amend::{
                amended,
                tests::{Named, candidate, layout},
            },
        },
    };

    const BLOCK: u32 = 64 << 10;

    fn places(policy: &str, leaving: &[u128]) -> Places {
        let candidates: Vec<Candidate> = [10, 20, 30, 40].map(candidate).into();
        let leaving: BTreeSet<DeviceId> = leaving.iter().map(|&device| DeviceId(device)).collect();
        Places::new(&candidates, (&policy.parse().unwrap(), 0), &leaving, BLOCK)
    }

    #[test]
    fn what_is_replaced_goes_home_and_is_counted_no_more() {
        let held: [(u128, Named); 3] =
            [(10, &[(7, 0..4)]), (20, &[(7, 4..8)]), (30, &[(8, 12..14), (7, 8..12)])];
        let layout = layout(10, &held);
        let places = places("rateless", &[]);
        let replaced = Replaced::of(&places, &layout, [3, 4, 13].into_iter().collect());
        let given = given(&places, &layout, &replaced, &replaced.dropped);
        let home = |device, block: u32| (DeviceId(device), (block..block + 1).into());
        assert_eq!(given.wanted, [home(10, 3), home(20, 4), home(30, 13)]);
        let stay: u32 = given.existing.iter().map(|existing| existing.blocks.count()).sum();
        assert_eq!((stay, given.first_new_index), (11, 14));
        // Only their devices are needed.
        let (devices, spares) = places.targets(&layout, &given.existing);
        let all = devices.len() + spares.len();
        let need = Need { total: 14, survivors: 10, tolerate: 0 };
        let (needed, others) = only_needed(&given, &need, devices.clone(), spares.clone());
        assert_eq!((needed.len(), needed.len() + others.len()), (3, all));
        let fewer = Given { wanted: given.wanted[..1].to_vec(), ..given };
        let enough = Need { total: 12, ..need };
        assert_eq!(only_needed(&fewer, &enough, devices.clone(), spares.clone()).0.len(), 1);
        // One block is lacking: whoever holds least may get it.
        assert_eq!(only_needed(&fewer, &need, devices.clone(), spares).0, devices);
    }

    #[test]
    fn coded_blocks_of_a_device_that_leaves_are_for_whoever_takes_them_and_copies_are_not() {
        let held: [(u128, Named); 3] =
            [(10, &[(7, 0..1), (7, 5..6)]), (20, &[(7, 1..2), (7, 2..3)]), (30, &[(7, 3..4), (7, 4..5)])];
        let mut layout = layout(3, &held);
        let places = places("replicated:copies=2", &[10]);
        let leaving = layout.holders[0].blocks();
        let replaced = Replaced::of(&places, &layout, leaving.clone());
        let homes = |layout: &SegmentLayout| given(&places, layout, &replaced, &leaving).wanted;
        assert_eq!(homes(&layout), [(DeviceId(10), leaving.clone())]);
        // Its copies: original 0 lies on 30, too, and original 2 on 20.
        layout.code.kind = CodeKind::Replicated;
        let homes = homes(&layout);
        let all: Vec<u32> = homes.iter().flat_map(|(_, blocks)| blocks.iter()).collect();
        assert_eq!(BTreeSet::from_iter(all), BTreeSet::from([0, 5]));
        for (device, blocks) in homes {
            assert!(
                device != DeviceId(10) && device != DeviceId(if blocks.contains(0) { 30 } else { 20 }),
                "{device}"
            );
        }
    }

    #[test]
    fn redundancy_is_rounded_down() {
        let held: [(u128, Named); 2] = [(10, &[(7, 0..700)]), (20, &[(7, 700..1537)])];
        assert_eq!(dialled(&layout(1024, &held)), 0.5);
        assert_eq!(dialled(&layout(1024, &held[..1])), 0.0);
    }

    /// A segment of K = 100 and these blocks on each of twelve devices.
    fn on_twelve(blocks: u32) -> SegmentLayout {
        let held: Vec<(u64, core::ops::Range<u32>)> =
            (0..12).map(|at| (7, at * blocks..(at + 1) * blocks)).collect();
        let held: Vec<(u128, Named)> =
            (1..).zip(&held).map(|(at, held)| (at * 10, core::slice::from_ref(held))).collect();
        layout(100, &held)
    }

    /// As a drain does: what is left is replaced elsewhere until there are blocks enough in reach.
    fn drained(before: &SegmentLayout, dead: u128, leaving: u128, name: u64) -> SegmentLayout {
        let mut candidates: Vec<Candidate> = (1..=12).map(|at| candidate(at * 10)).collect();
        candidates.iter_mut().for_each(|of| of.alive = of.device != DeviceId(dead));
        let leaving = BTreeSet::from([DeviceId(leaving)]);
        let places = Places::new(&candidates, (&"rateless".parse().unwrap(), 0), &leaving, BLOCK);
        let left = before.holders.iter().filter(|holder| leaving.contains(&holder.device));
        let mut dropped = IndexRanges::new();
        left.for_each(|holder| dropped.insert_all(&holder.blocks()));
        let existing = places.existing(before, &dropped);
        let total = (100.0 * (1.0 + to_be_kept(&places, before, &leaving, 0.5)) - 1e-6).ceil() as u32;
        let there: u32 = existing.iter().map(|held| held.blocks.count()).sum();
        let first = first_new_index(before);
        let blocks = (first..first + total.saturating_sub(there)).into();
        let device = places.targets(before, &existing).0[0].device;
        let named = (SegmentId(name), Version(name));
        amended(before, Epoch(name), &dropped, named, &[Share { device, blocks }])
    }

    #[test]
    fn drains_beside_a_dead_node_keep_the_redundancy() {
        // D = 0.56, of which 0.43 are in reach: as much as is promised is written, once.
        let before = on_twelve(13);
        let once = drained(&before, 10, 20, 8);
        assert_eq!(once.stored_blocks(), 150 + 13);
        let mut again = once;
        for (name, leaving) in (9..).zip([30, 40, 50, 60]) {
            again = drained(&again, 10, leaving, name);
            assert_eq!(again.stored_blocks(), 150 + 13, "without {leaving}");
        }
        // Dialled up to D = 1.4, of which 1.2 are in reach: that stays.
        let once = drained(&on_twelve(20), 10, 20, 8);
        assert_eq!(once.stored_blocks(), 240);
        assert_eq!(drained(&once, 10, 30, 9).stored_blocks(), 240);
        // Dialled down to D = 0.2: never more than was promised.
        let mut low = on_twelve(10);
        for (name, leaving) in (8..).zip([20, 30, 40, 50, 60, 70]) {
            low = drained(&low, 10, leaving, name);
            assert!(low.stored_blocks() <= 150 + 10, "without {leaving}");
        }
    }
}
