//! How an object is cut into segments, and the code of each.

use super::Scheme;
use crate::{
    layout::{
        BLOCK_BYTES_MAX, CodeKind, CodeSpec, Geometry, ParityGeometry, REPLICATED_BELOW_BYTES,
        SEGMENT_BYTES_MAX,
    },
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
