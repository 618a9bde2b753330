//! What a layout must be to be committed. A layout that passes can be read back without surprises: every reader may
//! rely on what is checked here.
//!
//! Left out: whether the confirmed blocks survive f losses. That is `durability`'s to decide, before the commit.

use super::{intents::Intent, registry, view::View};
use crate::{
    DeviceId, SegmentId,
    layout::{
        BLOCK_BYTES_MAX, CodeKind, GRANULE_BYTES, PIECES_PER_HOLDER_MAX, ParityGeometry, Piece,
        REPLICA_GRANULE_BYTES, SEGMENT_BYTES_MAX, SegmentLayout,
    },
    message::{BODY_BYTES_MAX, MetaFault, encode},
    policy::{Parity, Policy, RatelessCode},
};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// N is at most this many times K: four times what the largest redundancy stores, and more copies than f can ask for.
pub const BLOCKS_PER_ORIGINAL_MAX: u32 = 64;
/// The most bytes the layouts of one object take, encoded: they travel in one answer with the object's record.
pub const LAYOUTS_BYTES_MAX: usize = BODY_BYTES_MAX as usize - (256 << 10);

const ORIGINALS_MAX: u32 = 1 << 14;

/// Whether these layouts make an object of `size` bytes of `intent`, which keeps what it lists of `base`.
pub(super) fn layouts(
    view: &dyn View,
    intent: &Intent,
    policy: &Policy,
    base: &[SegmentLayout],
    size: u64,
    layouts: &[SegmentLayout],
) -> Result<(), MetaFault> {
    let base: BTreeMap<SegmentId, &SegmentLayout> =
        base.iter().map(|layout| (layout.segment, layout)).collect();
    let mut total = 0u64;
    let mut seen = BTreeSet::new();
    let mut new = New::default();
    // A coded segment's name is its own before any piece is looked at: its record is its layout, and a piece of another one
    // under that name would be written over it.
    new.owners.extend(layouts.iter().map(|layout| (layout.segment, layout.segment)));
    let mut encoded = 0usize;
    for layout in layouts {
        let id = layout.segment;
        let refuse = |reason: String| Err(MetaFault::BadLayout(format!("segment {id}: {reason}")));
        if !seen.insert(id) {
            return refuse("it is listed twice".to_owned());
        }
        let before = base.get(&id).copied();
        // What stays as it is was checked when it came, and its devices may have left since.
        if before != Some(layout) {
            check_name(intent, before, layout).or_else(refuse)?;
            if layout.length == 0 && (size > 0 || layouts.len() > 1) {
                return refuse("it holds no bytes".to_owned());
            }
            // An amended segment has the code and sizes of before, whatever new ones its bucket would get.
            if before.is_none() {
                check_geometry(policy, layout).or_else(refuse)?;
            }
            if layout.is_hole() {
                check_hole(before, layout).or_else(refuse)?;
            } else {
                check_holders(layout).or_else(refuse)?;
                new.check(intent, before, layout).or_else(refuse)?;
            }
        }
        // Lengths are at most 1 GiB each and segments are bounded, so this does not overflow.
        total += layout.length;
        encoded += encode(layout).len();
    }
    if total != size {
        return Err(MetaFault::BadLayout(format!("segments of {total} bytes make an object of {size}")));
    }
    if encoded > LAYOUTS_BYTES_MAX {
        return Err(MetaFault::BadLayout(format!(
            "layouts of {encoded} bytes, at most {LAYOUTS_BYTES_MAX} fit into an answer: use longer runs of blocks, \
             fewer pieces or fewer devices"
        )));
    }
    check_registered(view, &new.devices)
}

/// A segment is a new one of the intent, or one of the base with all that makes it what it is.
fn check_name(intent: &Intent, before: Option<&SegmentLayout>, layout: &SegmentLayout) -> Result<(), String> {
    if before.is_none() && !intent.has(layout.segment) {
        return Err("it was not named for this put and is not one of the version amended".to_owned());
    }
    let version = before.map_or(intent.version, |before| before.version);
    if layout.version != version || layout.epoch != intent.epoch {
        return Err(format!(
            "version {} and epoch {}, but it has version {version} and the put epoch {}",
            layout.version, layout.epoch, intent.epoch
        ));
    }
    let shape =
        |layout: &SegmentLayout| (layout.length, layout.code, layout.block_bytes, layout.granule_bytes);
    match before {
        Some(before) if shape(before) != shape(layout) => {
            Err("an amendment keeps length, code, block and granule of a segment".to_owned())
        }
        _ => Ok(()),
    }
}

/// What the layouts of an intent have that its base has not.
#[derive(Default)]
struct New {
    /// Devices of new pieces.
    devices: BTreeSet<DeviceId>,
    /// The coded segment of each name: of the layouts themselves, and of each new piece.
    owners: BTreeMap<SegmentId, SegmentId>,
}

impl New {
    /// Each piece is part of one of the base's on its device, or a new one of the intent.
    fn check(
        &mut self,
        intent: &Intent,
        before: Option<&SegmentLayout>,
        layout: &SegmentLayout,
    ) -> Result<(), String> {
        for (device, piece) in layout.pieces() {
            let Piece { segment, version, blocks } = piece;
            let known = before.and_then(|before| before.holder(device)?.piece(*segment));
            match known {
                Some(known) if *version != known.version => {
                    return Err(format!("piece {segment} has version {}, not {version}", known.version));
                }
                // What was dropped may be freed by now.
                Some(known) if !blocks.is_subset_of(&known.blocks) => {
                    return Err(format!(
                        "piece {segment} on device {device} lists blocks that it had not before"
                    ));
                }
                Some(_) => {}
                None if !intent.has(*segment) || *version != intent.version => {
                    return Err(format!(
                        "piece {segment} (version {version}) on device {device} is neither there nor named for this put"
                    ));
                }
                None => {
                    self.devices.insert(device);
                    let owner = *self.owners.entry(*segment).or_insert(layout.segment);
                    if owner != layout.segment {
                        return Err(format!("piece {segment} is one of segment {owner} too"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Length, block size, granule, K and code go together.
fn check_geometry(policy: &Policy, layout: &SegmentLayout) -> Result<(), String> {
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
    if let Policy::Parity(parity) = policy {
        return check_chunks(parity, layout);
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
        (Policy::Stripe(_) | Policy::Replicated(_), CodeKind::Replicated) => true,
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

/// Chunks of the policy's code, or of that with fewer parity chunks where that is allowed, no larger than those of a full segment. They
/// may be larger than the length needs: so they are in a file that has grown before.
fn check_chunks(policy: &Parity, layout: &SegmentLayout) -> Result<(), String> {
    let Some(shape) = ParityGeometry::of_layout(layout) else {
        return Err(format!(
            "K = {} in blocks of {} bytes and granules of {} are no chunks of whole granules of {:?}",
            layout.code.originals, layout.block_bytes, layout.granule_bytes, layout.code.kind
        ));
    };
    let chunks = policy.least_chunks()..=policy.chunks();
    if !chunks.contains(&shape.chunks) || shape.data != policy.data() {
        return Err(format!("code {:?} is not the one of the bucket's policy `{policy}`", layout.code.kind));
    }
    let most = ParityGeometry::of(policy, policy.segment_bytes).chunk_bytes();
    if layout.length > policy.segment_bytes.min(shape.capacity_bytes()) || shape.chunk_bytes() > most {
        return Err(format!(
            "{} bytes in chunks of {}: a segment of `{policy}` holds {} in chunks of {most} at most",
            layout.length,
            shape.chunk_bytes(),
            policy.segment_bytes
        ));
    }
    Ok(())
}

/// What is stored becomes no hole under its own name.
fn check_hole(before: Option<&SegmentLayout>, layout: &SegmentLayout) -> Result<(), String> {
    match before {
        Some(before) if !before.is_hole() => Err("it is stored and listed without its devices".to_owned()),
        _ if layout.length == 0 => Err("a hole of no bytes".to_owned()),
        _ => Ok(()),
    }
}

/// Each device once, each piece of it once, each index once, and enough of them to decode.
fn check_holders(layout: &SegmentLayout) -> Result<(), String> {
    let originals = layout.code.originals;
    let mut devices = BTreeSet::new();
    let mut ranges: Vec<&Range<u32>> = Vec::new();
    for holder in &layout.holders {
        if !devices.insert(holder.device) {
            return Err(format!("device {} is listed twice", holder.device));
        }
        let mut names = BTreeSet::new();
        if let Some(piece) = holder.pieces.iter().find(|piece| !names.insert(piece.segment)) {
            return Err(format!("piece {} is listed twice on device {}", piece.segment, holder.device));
        }
        if holder.pieces.is_empty() || holder.pieces.iter().any(|piece| piece.blocks.is_empty()) {
            return Err(format!("device {} is listed without blocks", holder.device));
        }
        if holder.pieces.len() > PIECES_PER_HOLDER_MAX {
            return Err(format!(
                "device {} would hold {} pieces, at most {PIECES_PER_HOLDER_MAX} are allowed: store the segment anew",
                holder.device,
                holder.pieces.len()
            ));
        }
        ranges.extend(holder.pieces.iter().flat_map(|piece| piece.blocks.ranges()));
    }
    ranges.sort_by_key(|range| range.start);
    if let Some(pair) = ranges.windows(2).find(|pair| pair[1].start < pair[0].end) {
        return Err(format!("block {} is listed twice", pair[1].start));
    }
    // Indices are disjoint from here on: their count fits in 33 bits.
    let stored: u64 = ranges.iter().map(|range| u64::from(range.end - range.start)).sum();
    let most = u64::from(originals) * u64::from(BLOCKS_PER_ORIGINAL_MAX);
    if stored < u64::from(originals) || stored > most {
        return Err(format!("N = {stored} blocks stored, K = {originals} to {most} are allowed"));
    }
    if let Some(shape) = ParityGeometry::of_layout(layout)
        && shape.holders(layout).is_none()
    {
        return Err(format!("its {} chunks do not lie whole on a device each", shape.chunks));
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
    match registry::first_unserved(view, devices)? {
        Some(device) => Err(MetaFault::BadLayout(format!("device {device} is not registered"))),
        None => Ok(()),
    }
}
