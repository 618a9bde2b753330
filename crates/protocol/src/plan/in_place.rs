//! Which changes of a parity segment are made where its chunks lie (PLR §4), and who is sent what.
//!
//! ```text
//!   ranges of the segment      ──┤ ├──────────────┤                    ├────
//!   data chunks            │        0        │        1        │        2        │
//!   sent, cut at multiples of    ┤1├           ┤2├┤3├┤ 4 ├┤ 5  ├
//!   the largest change
//! ```
//!
//! What is not made so is stored anew: a segment whose chunks do not lie as a put stored them, one whose policy has too little room
//! for a log, and a change that is so large that storing anew moves less. For each byte of the granules that a range touches, with
//! m = n - k:
//!
//! | | data chunk | each of the m parity chunks | n, k = 6, 4 |
//! |---|---|---|---|
//! | in place | read once (the old bytes), written twice (redo, in place) | written twice (log, merge), read once (merge) | 3 + 3m = 9 |
//!
//! and for each byte of the segment:
//!
//! | | read | written | n, k = 6, 4 |
//! |---|---|---|---|
//! | anew, of which a share s changes | what stays, 1 - s | n / k | 1 - s + n / k = 2.5 - s |
//!
//! So a change in place moves less where its share is below (1 + n / k) / (4 + 3m): a quarter for the default code, 0.43 for (2, 1), 0.13
//! for (32, 28). Ranges that share a granule are requests of their own, each of which moves it.
//!
//! Invariants: what is sent covers the ranges, each byte once; two that are sent share a granule only where the ranges do;
//! each lies within one chunk and has no more bytes than the policy allows.
//!
//! Left out: the bytes, and what becomes of a change that a node does not confirm (the whole segment is stored anew then, by
//! whoever sent it).

use super::choose::serves;
use crate::{
    DeviceId,
    layout::{PARITY_GRANULE_BYTES, ParityGeometry, SegmentLayout},
    message::Registry,
    policy::Policy,
};
use core::ops::Range;

/// So many granules are no reason for that, however short the segment is. Picked by eye: their requests are under way at the same time, and
/// storing anew takes several questions one after the other.
const GRANULES_LEAST: u64 = 16;
const GRANULE: u64 = PARITY_GRANULE_BYTES as u64;

/// A change of bytes of one data chunk, as it is sent to the chunk's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkChange {
    /// The device that holds the chunk.
    pub device: DeviceId,
    /// Bytes of the chunk; not empty.
    pub within: Range<u64>,
    /// Where in the segment they begin.
    pub offset: u64,
}

/// Whether a change in place that takes long is still worth waiting for: its own device and all that hold parity serve, as far as
/// is known. Storing the segment anew would end what others have under way in it, so a cluster that is only slow would become slower
/// by it.
pub fn worth_waiting(registry: &Registry, layout: &SegmentLayout, own: &[DeviceId]) -> bool {
    let shape = ParityGeometry::of_layout(layout);
    let parity = shape.and_then(|shape| Some(shape.holders(layout)?.split_off(shape.data as usize)));
    own.iter().chain(parity.iter().flatten()).all(|&device| serves(registry, device))
}

/// The changes that make new bytes of `ranges` of a segment in place, in the ranges' order; none where the segment is to be stored
/// anew. The ranges are in order and do not overlap.
pub fn in_place(policy: &Policy, layout: &SegmentLayout, ranges: &[Range<u64>]) -> Option<Vec<ChunkChange>> {
    let Policy::Parity(policy) = policy else { return None };
    let shape = ParityGeometry::of_layout(layout)?;
    let holders = shape.updatable(layout)?;
    let largest = u64::from(policy.update_bytes_max(shape.chunk_bytes())?);
    let most = most_in_place(&shape);
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let granules: u64 = ranges.iter().map(|range| range.end.div_ceil(GRANULE) - range.start / GRANULE).sum();
    if bytes > most || granules > (most / GRANULE).max(GRANULES_LEAST) {
        return None;
    }
    let mut changes = Vec::new();
    for part in ranges.iter().flat_map(|range| shape.parts(range.clone())) {
        let device = holders[part.chunk as usize];
        let mut from = part.within.start;
        while from < part.within.end {
            // Whole granules but at the ends: none is changed twice.
            let to = ((from + largest) / largest * largest).min(part.within.end);
            let offset = part.offset + (from - part.within.start);
            changes.push(ChunkChange { device, within: from..to, offset });
            from = to;
        }
    }
    Some(changes)
}

/// Bytes of a segment of which as much is moved in place as by storing it anew; see the module's doc.
fn most_in_place(shape: &ParityGeometry) -> u64 {
    let (n, k) = (u64::from(shape.chunks), u64::from(shape.data));
    let m = n.saturating_sub(k);
    shape.capacity_bytes() * (k + n) / (k * (4 + 3 * m)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::DeviceHealth;
    use crate::{
        Epoch, SegmentId, Version,
        layout::{CodeSpec, Holder},
        message::UPDATE_BYTES_MAX,
    };

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    /// A full segment as a put stores it: chunk `c` on device `10 + c`.
    fn layout(policy: &Policy) -> SegmentLayout {
        let Policy::Parity(parity) = policy else { panic!("{policy}") };
        layout_of(policy, parity.segment_bytes)
    }

    fn layout_of(policy: &Policy, length: u64) -> SegmentLayout {
        let Policy::Parity(parity) = policy else { panic!("{policy}") };
        let shape = ParityGeometry::of(parity, length);
        let holder = |chunk: u32| {
            let (device, blocks) = (DeviceId(10 + u128::from(chunk)), shape.blocks_of(chunk));
            Holder::whole(device, SegmentId(1), Version(1), blocks.into())
        };
        SegmentLayout {
            segment: SegmentId(1),
            version: Version(1),
            epoch: Epoch(1),
            length,
            code: CodeSpec { kind: shape.code(), originals: shape.originals(), seed: 0 },
            block_bytes: shape.block_bytes,
            granule_bytes: PARITY_GRANULE_BYTES,
            holders: (0..shape.chunks).map(holder).collect(),
        }
    }

    fn one(policy: &Policy, layout: &SegmentLayout, range: Range<u64>) -> Option<Vec<ChunkChange>> {
        in_place(policy, layout, core::slice::from_ref(&range))
    }

    #[test]
    fn a_quarter_of_a_segment_goes_in_place_and_no_byte_more() {
        let policy = policy("parity");
        let layout = layout(&policy);
        let quarter = layout.length / 4;
        let changes = one(&policy, &layout, GRANULE..GRANULE + quarter).unwrap();
        assert_eq!(
            changes.iter().map(|change| change.within.end - change.within.start).sum::<u64>(),
            quarter
        );
        assert_eq!(one(&policy, &layout, GRANULE..GRANULE + 1 + quarter), None);
        assert_eq!(one(&policy, &layout, 100..100 + quarter), None, "it touches one granule more");
        // It is the sum of all ranges that counts.
        let halves = [0..quarter / 2, quarter..quarter + quarter / 2];
        assert!(in_place(&policy, &layout, &halves).is_some());
        assert_eq!(in_place(&policy, &layout, &[halves[0].clone(), quarter..quarter * 3 / 2 + 1]), None);
    }

    #[test]
    fn each_range_counts_with_all_that_is_moved_for_it() {
        let policy = policy("parity");
        let layout = layout(&policy);
        let quarter = layout.length / 4 / GRANULE;
        // How many changes there are of single bytes, so far from each other.
        let changes = |ranges: u64, apart: u64| {
            let ranges: Vec<_> = (0..ranges).map(|number| number * apart + 7..number * apart + 8).collect();
            in_place(&policy, &layout, &ranges).map(|changes| changes.len() as u64)
        };
        assert_eq!(changes(quarter, GRANULE), Some(quarter));
        assert_eq!(changes(quarter + quarter / 4, GRANULE), None);
        // Each of them writes the granule that it shares with others.
        assert_eq!((changes(quarter, 64), changes(quarter + 1, 64)), (Some(quarter), None));
    }

    #[test]
    fn a_few_bytes_of_a_short_segment_go_in_place() {
        let policy = policy("parity:code=rs(4,2),update=fo");
        let layout = layout_of(&policy, 8000);
        assert_eq!(ParityGeometry::of_layout(&layout).unwrap().capacity_bytes(), 2 * GRANULE);
        // Of either chunk.
        assert_eq!(one(&policy, &layout, 4090..4100).map(|changes| changes.len()), Some(2));
        // Three tenths of both.
        assert!(one(&policy, &layout, 0..2 * GRANULE * 3 / 10).is_some());
        assert_eq!(one(&policy, &layout, 0..2 * GRANULE * 3 / 10 + 1), None);
    }

    #[test]
    fn the_share_is_where_a_code_moves_as_much_either_way() {
        for (n, k, share) in [(6_u32, 4_u32, 0.25), (3, 2, 0.357), (14, 10, 0.15), (32, 28, 0.134)] {
            let policy = policy(&format!("parity:code=rs({n},{k}),segment=64MiB"));
            let layout = layout(&policy);
            let shape = ParityGeometry::of_layout(&layout).unwrap();
            let capacity = shape.capacity_bytes() as f64;
            let most = most_in_place(&shape) as f64;
            assert!((most / capacity - share).abs() < 1e-3, "({n},{k}): {}", most / capacity);
            let (of_all, m) = (most / capacity, f64::from(n - k));
            let (in_place, anew) = (of_all * (3.0 + 3.0 * m), 1.0 - of_all + f64::from(n) / f64::from(k));
            assert!((in_place / anew - 1.0).abs() < 1e-3, "({n},{k}): {in_place} and {anew}");
            // By whole granules, as far as they lie in chunks of their own.
            let most = most_in_place(&shape) / GRANULE * GRANULE;
            assert!(one(&policy, &layout, 0..most).is_some(), "({n},{k})");
            assert_eq!(one(&policy, &layout, 0..most + GRANULE), None);
        }
    }

    #[test]
    fn each_node_gets_its_chunks_bytes_in_changes_that_share_no_granule() {
        let policy = policy("parity");
        let layout = layout(&policy);
        let shape = ParityGeometry::of_layout(&layout).unwrap();
        let (chunk_bytes, largest) = (shape.chunk_bytes(), u64::from(UPDATE_BYTES_MAX));
        // From the last bytes of chunk 0 on, over a cut of chunk 1; and a few bytes of chunk 3.
        let ranges = [chunk_bytes - 10..chunk_bytes + largest + 7, 3 * chunk_bytes + 5..3 * chunk_bytes + 9];
        let change = |device, within, offset| ChunkChange { device: DeviceId(device), within, offset };
        assert_eq!(
            in_place(&policy, &layout, &ranges).unwrap(),
            [
                change(10, chunk_bytes - 10..chunk_bytes, chunk_bytes - 10),
                change(11, 0..largest, chunk_bytes),
                change(11, largest..largest + 7, chunk_bytes + largest),
                change(13, 5..9, 3 * chunk_bytes + 5),
            ]
        );
    }

    #[test]
    fn a_small_reserve_makes_small_changes() {
        for (text, largest) in [("parity:reserve=160KiB", 4096), ("parity:reserve=1MiB", 64 << 10)] {
            let policy = policy(text);
            let layout = layout(&policy);
            let changes = one(&policy, &layout, 1000..600_000).unwrap();
            let mut at = 1000;
            for change in &changes {
                let within = &change.within;
                assert_eq!((change.offset, within.start), (at, at), "{text}: without a gap, in chunk 0");
                assert!(!within.is_empty() && within.end - within.start <= largest);
                assert!(within.end.is_multiple_of(largest) || within.end == 600_000, "{text}: {within:?}");
                at = within.end;
            }
            assert_eq!(at, 600_000);
        }
    }

    #[test]
    fn what_cannot_be_changed_in_place_is_stored_anew() {
        let parity = policy("parity");
        let as_stored = layout(&parity);
        assert!(one(&parity, &as_stored, 0..10).is_some());
        // In place without a log; but not with one so small that no change fits its window, nor under another policy.
        assert!(one(&policy("parity:reserve=0"), &as_stored, 0..10).is_some());
        for other in ["parity:reserve=8KiB", "rateless"] {
            assert_eq!(one(&policy(other), &as_stored, 0..10), None, "{other}");
        }
        // A chunk that was moved.
        let mut moved = as_stored.clone();
        moved.holders[2].pieces[0].version = Version(2);
        assert_eq!(one(&parity, &moved, 0..10), None);
    }

    /// Devices 0, 100, .. of nodes 0, 1, ..; chunks 0 to 3 are data.
    #[test]
    fn a_slow_change_is_waited_for_where_its_own_device_and_all_of_parity_serve() {
        let policy: Policy = "parity:code=rs(6,4)".parse().unwrap();
        let mut layout = layout(&policy);
        for (node, holder) in layout.holders.iter_mut().enumerate() {
            holder.device = DeviceId(100 * node as u128);
        }
        let healthy = || {
            let mut registry = crate::plan::tests::registry(6, 1);
            for node in &mut registry.nodes {
                node.alive = true;
                node.devices[0].health = DeviceHealth::Ok;
            }
            registry
        };
        let own = [DeviceId(100)];
        let waits = |change: &dyn Fn(&mut Registry)| {
            let mut registry = healthy();
            change(&mut registry);
            worth_waiting(&registry, &layout, &own)
        };
        assert!(waits(&|_| {}));
        assert!(waits(&|all| all.nodes[0].alive = false), "another data chunk's");
        assert!(waits(&|all| all.nodes[1].devices[0].health = DeviceHealth::Full), "it holds the chunk");
        assert!(
            waits(&|all| all.nodes.iter_mut().for_each(|node| node.devices.clear())),
            "nothing was reported yet"
        );
        assert!(!waits(&|all| all.nodes[1].alive = false));
        assert!(!waits(&|all| all.nodes[1].devices[0].health = DeviceHealth::Stalled));
        assert!(!waits(&|all| all.nodes[5].alive = false), "parity");
        assert!(!waits(&|all| all.nodes[4].devices[0].health = DeviceHealth::Failed), "parity");
        assert!(!waits(&|all| drop(all.nodes.pop())), "nobody knows its node");
    }
}
