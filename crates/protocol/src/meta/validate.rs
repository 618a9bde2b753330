//! What a layout must be to be committed. A layout that passes can be read back without surprises: every reader may
//! rely on what is checked here.
//!
//! Left out: whether the confirmed blocks survive f losses. That is `durability`'s to decide, before the commit.

use super::{intents::Intent, registry, view::View};
use crate::{
    DeviceId,
    layout::{
        BLOCK_BYTES_MAX, CodeKind, GRANULE_BYTES, REPLICA_GRANULE_BYTES, SEGMENT_BYTES_MAX, SegmentLayout,
    },
    message::{BODY_BYTES_MAX, MetaFault, encode},
    policy::{Policy, RatelessCode},
};
use core::ops::Range;
use std::collections::BTreeSet;

/// N is at most this many times K: four times what the largest redundancy stores, and more copies than f can ask for.
pub const BLOCKS_PER_ORIGINAL_MAX: u32 = 64;
/// The most bytes the layouts of one object take, encoded: they travel in one answer with the object's record.
pub const LAYOUTS_BYTES_MAX: usize = BODY_BYTES_MAX as usize - (256 << 10);

const ORIGINALS_MAX: u32 = 1 << 14;

/// Whether these layouts make an object of `size` bytes of the put `intent`.
pub(super) fn layouts(
    view: &dyn View,
    intent: &Intent,
    policy: &Policy,
    size: u64,
    layouts: &[SegmentLayout],
) -> Result<(), MetaFault> {
    let mut total = 0u64;
    let mut seen = BTreeSet::new();
    let mut devices = BTreeSet::new();
    let mut encoded = 0usize;
    for layout in layouts {
        let id = layout.segment;
        let refuse = |reason: String| Err(MetaFault::BadLayout(format!("segment {id}: {reason}")));
        if !intent.has(id) {
            return refuse("it was not named for this put".to_owned());
        }
        if !seen.insert(id) {
            return refuse("it is listed twice".to_owned());
        }
        if layout.version != intent.version || layout.epoch != intent.epoch {
            return refuse(format!(
                "version {} and epoch {}, but the put has version {} and epoch {}",
                layout.version, layout.epoch, intent.version, intent.epoch
            ));
        }
        if layout.length == 0 && (size > 0 || layouts.len() > 1) {
            return refuse("it holds no bytes".to_owned());
        }
        check_pieces(policy, layout).or_else(refuse)?;
        check_holders(layout).or_else(refuse)?;
        devices.extend(layout.holders.iter().map(|holder| holder.device));
        // Lengths are at most 1 GiB each and segments are bounded, so this does not overflow.
        total += layout.length;
        encoded += encode(layout).len();
    }
    if total != size {
        return Err(MetaFault::BadLayout(format!("segments of {total} bytes make an object of {size}")));
    }
    if encoded > LAYOUTS_BYTES_MAX {
        return Err(MetaFault::BadLayout(format!(
            "layouts of {encoded} bytes, at most {LAYOUTS_BYTES_MAX} fit into an answer: use longer runs of blocks or \
             fewer devices"
        )));
    }
    check_registered(view, &devices)
}

/// Length, block size, granule, K and code go together.
fn check_pieces(policy: &Policy, layout: &SegmentLayout) -> Result<(), String> {
    let (length, block_bytes, granule) = (layout.length, layout.block_bytes, layout.granule_bytes);
    let originals = layout.code.originals;
    if length > SEGMENT_BYTES_MAX {
        return Err(format!("{length} bytes, a segment holds at most {SEGMENT_BYTES_MAX}"));
    }
    if block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX {
        return Err(format!("blocks of {block_bytes} bytes, 1 to {BLOCK_BYTES_MAX} are allowed"));
    }
    if !granule.is_power_of_two() || !(REPLICA_GRANULE_BYTES..=GRANULE_BYTES).contains(&granule) {
        return Err(format!(
            "granules of {granule} bytes, powers of two from {REPLICA_GRANULE_BYTES} to {GRANULE_BYTES} are allowed"
        ));
    }
    let needed = length.max(1).div_ceil(block_bytes.into());
    if originals == 0 || originals > ORIGINALS_MAX || u64::from(originals) != needed {
        return Err(format!(
            "K = {originals}, but {length} bytes in blocks of {block_bytes} are {needed} (at most {ORIGINALS_MAX})"
        ));
    }
    if originals > 1 && !block_bytes.is_multiple_of(granule) {
        return Err(format!("blocks of {block_bytes} bytes are not whole granules of {granule}"));
    }
    let fits = match (policy, layout.code.kind) {
        (Policy::Stripe(_), CodeKind::Replicated) => true,
        (Policy::Rateless(rateless), kind) => match (rateless.code, kind) {
            (_, CodeKind::Replicated) => originals == 1,
            (RatelessCode::Mix, CodeKind::Mix)
            | (RatelessCode::MixA, CodeKind::MixA)
            | (RatelessCode::MixC, CodeKind::MixC) => true,
            (RatelessCode::Lt { c, delta }, CodeKind::Lt { c: own_c, delta: own_delta }) => {
                c == own_c && delta == own_delta
            }
            _ => false,
        },
        _ => false,
    };
    if !fits {
        return Err(format!("code {:?} is not one of the bucket's policy `{policy}`", layout.code.kind));
    }
    Ok(())
}

/// Each device once, each index once, and enough of them to decode.
fn check_holders(layout: &SegmentLayout) -> Result<(), String> {
    let originals = layout.code.originals;
    let mut devices = BTreeSet::new();
    let mut ranges: Vec<&Range<u32>> = Vec::new();
    for holder in &layout.holders {
        if !devices.insert(holder.device) {
            return Err(format!("device {} is listed twice", holder.device));
        }
        if holder.blocks.is_empty() {
            return Err(format!("device {} is listed without blocks", holder.device));
        }
        ranges.extend(holder.blocks.ranges());
    }
    ranges.sort_by_key(|range| range.start);
    if let Some(pair) = ranges.windows(2).find(|pair| pair[1].start < pair[0].end) {
        return Err(format!("block {} lies on two devices", pair[1].start));
    }
    // Indices are disjoint from here on: their count fits in 33 bits.
    let stored: u64 = ranges.iter().map(|range| u64::from(range.end - range.start)).sum();
    let most = u64::from(originals) * u64::from(BLOCKS_PER_ORIGINAL_MAX);
    if stored < u64::from(originals) || stored > most {
        return Err(format!("N = {stored} blocks stored, K = {originals} to {most} are allowed"));
    }
    if layout.code.kind == CodeKind::Replicated {
        let held: BTreeSet<u32> =
            ranges.iter().flat_map(|range| (*range).clone()).map(|index| index % originals).collect();
        if let Some(missing) = (0..originals).find(|original| !held.contains(original)) {
            return Err(format!("original {missing} of {originals} is on no device"));
        }
    }
    Ok(())
}

fn check_registered(view: &dyn View, devices: &BTreeSet<DeviceId>) -> Result<(), MetaFault> {
    for &device in devices {
        if !registry::has_device(view, device)? {
            return Err(MetaFault::BadLayout(format!("device {device} is not registered")));
        }
    }
    Ok(())
}
