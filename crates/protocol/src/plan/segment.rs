//! How an object is cut into segments, and the code of each.

use super::Scheme;
use crate::{
    Epoch, SegmentId, Version,
    layout::{
        BLOCK_BYTES_MAX, CodeKind, CodeSpec, Geometry, ParityGeometry, REPLICATED_BELOW_BYTES,
        SEGMENT_BYTES_MAX, SegmentLayout,
    },
    meta::LAYOUTS_BYTES_MAX,
    policy::{Policy, RatelessCode},
};
use steadfast_codes::rateless::{Code, CodeError, Kind};

/// One segment of an object that is to be stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentPlan {
    /// Where in the object it begins, in bytes.
    pub offset: u64,
    /// Bytes of the object that it holds; 0 only for an empty object.
    pub length: u64,
    /// Its pieces.
    pub geometry: Geometry,
    /// Which code.
    pub code: CodeKind,
    /// How it is written and read.
    pub scheme: Scheme,
}

/// Bytes of the largest segment that a put under `policy` makes, where its caller would make some of `segment_bytes`.
pub fn segment_bytes(policy: &Policy, segment_bytes: u64) -> u64 {
    match policy {
        Policy::Parity(parity) => parity.segment_bytes,
        _ => segment_bytes,
    }
}

/// Segments of one object up to which they stay as large as usual: each takes some kilobytes of the layout that whoever opens the object
/// is told, which is bounded.
const SEGMENTS_EASY: u64 = 1024;

/// Bytes of the largest segment of an object of `size` bytes: `usual`, or more where there would be very many, up to `most`.
///
/// # Panics
/// Unless both are multiples of [`BLOCK_BYTES_MAX`] and `usual` at most [`SEGMENT_BYTES_MAX`].
pub fn few_segments(usual: u64, most: u64, size: u64) -> u64 {
    let piece = u64::from(BLOCK_BYTES_MAX);
    assert!(usual <= SEGMENT_BYTES_MAX && usual.is_multiple_of(piece) && most.is_multiple_of(piece));
    let most = most.clamp(usual, SEGMENT_BYTES_MAX);
    let few = size.div_ceil(SEGMENTS_EASY).checked_next_power_of_two();
    few.unwrap_or(most).clamp(usual, most)
}

/// The bytes of all layouts of an object of `size` bytes where they are more than there may be: `bytes` are those of its first `done`
/// bytes, and once that says something the others are expected to be as long.
pub fn beyond_layouts(bytes: u64, done: u64, size: u64) -> Option<u64> {
    let most = LAYOUTS_BYTES_MAX as u64;
    let tells = bytes > most / 16;
    let all = if tells { (bytes as f64 / done.max(1) as f64 * size as f64) as u64 } else { bytes };
    // What differs a little from segment to segment is decided once it is known.
    (bytes > most || all > most + most / 8).then_some(all.max(bytes))
}

/// Cuts an object of `length` bytes into segments of at most [`SEGMENT_BYTES_MAX`]; see [`segments_of`].
pub fn segments(length: u64, policy: &Policy) -> Vec<SegmentPlan> {
    segments_of(SEGMENT_BYTES_MAX, length, policy)
}

/// Cuts an object of `length` bytes: small ones under `rateless` or `replicated` are one block, replicated; larger ones
/// are coded segments of at most `segment_bytes`, the last two of equal size so that none is tiny. A stripe is cut alike and never
/// replicated. Under `parity` each segment but the last is as long as the policy says, whatever `segment_bytes`: where a byte of
/// the object lies stays as it is when the object grows. There is always at least one segment: an empty object has one, of
/// padded blocks.
///
/// # Panics
/// Unless `segment_bytes` is a multiple of [`BLOCK_BYTES_MAX`] up to [`SEGMENT_BYTES_MAX`], and not 0.
pub fn segments_of(segment_bytes: u64, length: u64, policy: &Policy) -> Vec<SegmentPlan> {
    let piece = u64::from(BLOCK_BYTES_MAX);
    assert!((piece..=SEGMENT_BYTES_MAX).contains(&segment_bytes) && segment_bytes.is_multiple_of(piece));
    let (code, scheme) = match policy {
        Policy::Parity(_) => {
            let starts = (0..length.max(1)).step_by(step(self::segment_bytes(policy, segment_bytes)));
            return starts.map(|offset| following(segment_bytes, offset, length - offset, policy)).collect();
        }
        Policy::Rateless(_) | Policy::Replicated(_) if length < REPLICATED_BELOW_BYTES => {
            let geometry = Geometry::replicated(length);
            let (code, scheme) = (CodeKind::Replicated, Scheme::Replicated);
            return vec![SegmentPlan { offset: 0, length, geometry, code, scheme }];
        }
        Policy::Rateless(rateless) => (
            match rateless.code {
                RatelessCode::Mix => CodeKind::Mix,
                RatelessCode::Lt { c, delta } => CodeKind::Lt { c, delta },
                RatelessCode::MixA => CodeKind::MixA,
                RatelessCode::MixC => CodeKind::MixC,
            },
            Scheme::Rateless,
        ),
        Policy::Stripe(_) | Policy::Replicated(_) => (CodeKind::Replicated, Scheme::Striped),
    };
    let segment = |offset: u64, length: u64| {
        let geometry = Geometry::coded(length.max(1));
        SegmentPlan { offset, length, geometry, code, scheme }
    };
    let mut cut = Vec::new();
    let mut offset = 0;
    while length - offset > segment_bytes {
        let left = length - offset;
        // With two left, halves: the first rounded up to the largest block so that only the last one is padded.
        let half = left.div_ceil(2).next_multiple_of(piece);
        let take = if left < 2 * segment_bytes { half } else { segment_bytes };
        cut.push(segment(offset, take));
        offset += take;
    }
    if cut.is_empty() || offset < length {
        cut.push(segment(offset, length - offset));
    }
    cut
}

/// The segment of an object that begins at `offset`, of the `left` bytes from there on, where what comes behind it is not
/// known yet: never replicated, whatever its length.
///
/// # Panics
/// As [`segments_of`]; when it is no parity segment and `left` is 0.
pub fn following(segment_bytes: u64, offset: u64, left: u64, policy: &Policy) -> SegmentPlan {
    let length = left.min(self::segment_bytes(policy, segment_bytes));
    if let Policy::Parity(parity) = policy {
        let shape = ParityGeometry::of(parity, length);
        let (geometry, code) = (shape.geometry(), shape.code());
        return SegmentPlan { offset, length, geometry, code, scheme: Scheme::Parity };
    }
    let coded = segments_of(segment_bytes, segment_bytes, policy)[0];
    SegmentPlan { offset, length, geometry: Geometry::coded(length), ..coded }
}

fn step(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a segment fits memory")
}

impl SegmentPlan {
    /// The segment with as many chunks as `policy` has, where it has chunks: a plan may be for fewer than its bucket's
    /// ([`super::Plan::policy`]). What each of them holds is the same.
    pub fn under(self, policy: &Policy) -> Self {
        match (policy, self.code) {
            (Policy::Parity(parity), CodeKind::ReedSolomon { data, .. }) => {
                Self { code: CodeKind::ReedSolomon { data, parity: parity.parity() }, ..self }
            }
            _ => self,
        }
    }

    /// The hole that a file has there until somebody writes to it.
    pub fn hole(&self, (segment, version, epoch): (SegmentId, Version, Epoch)) -> SegmentLayout {
        let (geometry, holders) = (self.geometry, Vec::new());
        SegmentLayout {
            segment,
            version,
            epoch,
            length: self.length,
            code: CodeSpec { kind: self.code, originals: geometry.originals, seed: 0 },
            block_bytes: geometry.block_bytes,
            granule_bytes: geometry.granule_bytes,
            holders,
        }
    }

    /// The segment's code from `seed`, with its written form. For LT the first seed derived from it whose first
    /// (1 + D) K blocks decode is taken (dissertation §5.2.3).
    ///
    /// # Errors
    /// When no seed gives a code that decodes: D too small for the LT parameters.
    pub fn code(&self, seed: u64, redundancy: f64) -> Result<(CodeSpec, Code), CodeError> {
        let originals = self.geometry.originals;
        let code = match self.code {
            CodeKind::Replicated => Code::new(Kind::Replicated, originals, seed)?,
            CodeKind::Mix => Code::new(Kind::Mix, originals, seed)?,
            CodeKind::MixA => Code::new(Kind::MixA, originals, seed)?,
            CodeKind::MixC => Code::new(Kind::MixC, originals, seed)?,
            CodeKind::ReedSolomon { data, parity } => {
                Code::new(Kind::ReedSolomon { data, parity }, originals, seed)?
            }
            CodeKind::Lt { c, delta } => {
                let stored = (f64::from(originals) * (1.0 + redundancy.max(0.0))).ceil() as u32;
                Code::checked(Kind::Lt { c, delta }, originals, seed, stored)?
            }
        };
        Ok((CodeSpec { kind: self.code, originals, seed: code.seed() }, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_that_will_not_fit_are_told_once_the_first_ones_say_so() {
        let most = LAYOUTS_BYTES_MAX as u64;
        // 70 GiB whose segments of 64 MiB take 3.3 kB each, on 64 devices; and 100 GiB.
        let told = (1u64..=1120).find(|&done| beyond_layouts(3_300 * done, done << 26, 70 << 30).is_some());
        assert_eq!(told, None, "{most}");
        let told = (1u64..=1600).find(|&done| beyond_layouts(3_300 * done, done << 26, 100 << 30).is_some());
        assert!(told.is_some_and(|done| done > 50 && done < 100), "{told:?}");
        // Not foreseen: of an unknown length, or first ones that are shorter.
        assert_eq!(beyond_layouts(most, 1 << 30, 1 << 30), None);
        assert_eq!(beyond_layouts(most + 1, 1 << 30, 1 << 30), Some(most + 1));
    }
    #[test]
    fn very_large_objects_have_larger_segments_as_far_as_there_is_room() {
        const MIB: u64 = 1 << 20;
        let of = |most, size| few_segments(64 * MIB, most * MIB, size) / MIB;
        let gib = |gib: u64| gib << 30;
        for (size, expected) in
            [(0, 64), (gib(64), 64), (gib(64) + 1, 128), (gib(1000), 1024), (u64::MAX, 1024)]
        {
            assert_eq!(of(1024, size), expected, "{size}");
        }
        assert_eq!([of(4096, u64::MAX), of(150, gib(1000)), of(0, gib(1000))], [1024, 150, 64]);
    }
}
