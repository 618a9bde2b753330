//! What becomes of a file's segments (policy `parity`) when it grows or shrinks.
//!
//! ```text
//!   growth   | full | full | last .. |            the last one grows up to a full segment, whole ones follow
//!            | full | full | last .... | full | new .. |
//!   cut      | full | full | last .. |            those behind the end go, the one that the end falls into is stored anew
//!            | full | new . |
//! ```
//!
//! Growing, the last segment keeps its chunks as long as they have room; then it is stored anew with chunks of the next power of
//! two, so that a byte appended costs a few bytes written, however long the file gets.
//!
//! Invariants: each segment but the last is as long as the policy says; what is behind the last one's length is not of the file
//! and may be anything (a writer that died before its bytes were counted in has left them), so whoever makes it longer writes
//! all bytes in between.

use super::{Scheme, SegmentPlan, following};
use crate::{
    layout::{BLOCK_BYTES_MAX, ParityGeometry, SegmentLayout},
    meta::{LAYOUTS_BYTES_MAX, SEGMENTS_PER_PUT_MAX},
    policy::{Parity, Policy},
};
use core::ops::Range;

/// What a layout takes when it is stored, about: what it says of the segment, ...
const LAYOUT_BYTES: u64 = 40;
/// ... and of each chunk: a device's name (19 bytes as it is written), the piece's, and its blocks.
const HOLDER_BYTES: u64 = 38;

/// How a file becomes longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Its last segment, where that is not full.
    pub last: Option<Longer>,
    /// The segments that follow.
    pub more: Vec<SegmentPlan>,
}

/// A segment that becomes longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Longer {
    /// Bytes that it has now.
    pub from: u64,
    /// As it is to be, where it is stored anew.
    pub anew: SegmentPlan,
    /// Whether the chunks that it has hold as much.
    pub has_room: bool,
}

impl Longer {
    /// Whether the segment can become longer in place when `ranges` of its bytes, in order, are written: they are all that it
    /// gains. Where they leave a gap, zeros would have to be written there, over what another writer has just written and counted
    /// in; stored anew under another epoch, one of the two is told so.
    pub fn in_place(&self, ranges: &[Range<u64>]) -> bool {
        let covered = ranges.iter().fold(self.from, |covered, range| match range.start <= covered {
            true => covered.max(range.end),
            false => covered,
        });
        self.has_room && covered >= self.anew.length
    }
}

/// How a file becomes shorter.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Segments that stay as they are, the first ones.
    pub kept: usize,
    /// What stays of the one behind them: it is stored anew.
    pub last: Option<SegmentPlan>,
}

/// More bytes than a file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{size} bytes are more than a file of this bucket can have, which is {most}: a bucket with larger segments holds more \
     (`parity:segment=64MiB`)"
)]
pub struct TooLong {
    /// Bytes it was to have.
    pub size: u64,
    /// Bytes it can have.
    pub most: u64,
}

/// The most bytes of a file under `policy`: its layouts fit into one answer.
pub fn file_bytes_max(policy: &Parity) -> u64 {
    let layout_bytes = LAYOUT_BYTES + HOLDER_BYTES * u64::from(policy.chunks());
    let segments = (LAYOUTS_BYTES_MAX as u64 / layout_bytes).min(SEGMENTS_PER_PUT_MAX.into());
    segments * policy.segment_bytes
}

/// What is to be done that a file of these segments has `size` bytes, no fewer than it has.
///
/// # Errors
/// [`TooLong`].
pub fn growth(policy: &Parity, segments: &[SegmentLayout], size: u64) -> Result<Growth, TooLong> {
    let most = file_bytes_max(policy);
    if size > most {
        return Err(TooLong { size, most });
    }
    let (mut at, mut last) = (segments.iter().map(|layout| layout.length).sum::<u64>(), None);
    if let Some(layout) = segments.last().filter(|layout| layout.length < policy.segment_bytes)
        && at < size
    {
        let (from, offset) = (layout.length, at - layout.length);
        let length = policy.segment_bytes.min(size - offset);
        let shape = match from {
            // It was never more than empty: as a put would store it.
            0 => ParityGeometry::of(policy, length),
            _ => roomy(policy, length),
        };
        let has_room =
            ParityGeometry::of_layout(layout).is_some_and(|shape| shape.capacity_bytes() >= length);
        last = Some(Longer { from, anew: plan(offset, length, shape), has_room });
        at = offset + length;
    }
    let mut more = Vec::new();
    while at < size {
        let next = following(BLOCK_BYTES_MAX.into(), at, size - at, &Policy::Parity(*policy));
        at += next.length;
        more.push(next);
    }
    Ok(Growth { last, more })
}

/// What is to be done that a file of these segments has `size` bytes, fewer than it has.
pub fn cut(policy: &Parity, segments: &[SegmentLayout], size: u64) -> Cut {
    let mut at = 0;
    for (kept, layout) in segments.iter().enumerate() {
        let end = at + layout.length;
        if end > size {
            // Its bucket's policy never changes, so no segment is longer than it says.
            let left = (size - at).min(policy.segment_bytes);
            let last = (left > 0).then(|| plan(at, left, ParityGeometry::of(policy, left)));
            return Cut { kept, last };
        }
        at = end;
    }
    Cut { kept: segments.len(), last: None }
}

/// The shape of a segment that has grown to `length` and may go on: the smallest whose chunks can be changed in place, where
/// the policy has any that can. Smaller ones would be stored anew with every byte.
fn roomy(policy: &Parity, length: u64) -> ParityGeometry {
    let mut bytes = length;
    loop {
        let shape = ParityGeometry::of(policy, bytes);
        if policy.update_bytes_max(shape.chunk_bytes()).is_some() {
            return shape;
        }
        if bytes == policy.segment_bytes {
            return ParityGeometry::of(policy, length);
        }
        bytes = policy.segment_bytes.min(2 * bytes);
    }
}

fn plan(offset: u64, length: u64, shape: ParityGeometry) -> SegmentPlan {
    SegmentPlan { offset, length, geometry: shape.geometry(), code: shape.code(), scheme: Scheme::Parity }
}
