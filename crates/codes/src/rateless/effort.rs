//! What a decode adds up, foreseen from how many of the blocks are no originals: for whoever decides whether to wait for those.
//!
//! A few coded blocks are each freed of the originals in the parity columns of their own; from a few dozen on every
//! original is in all its columns once, whatever the number of blocks. So the effort is the lesser of two lines:
//!
//! ```text
//!   blocks                        .  first + each m
//!   added up              .   ˙
//!                    /˙
//!                  /   alone m
//!                /
//!                └────────────────────────  m coded blocks
//! ```
//!
//! Measured on a Zen 4 (originals but m of them, 64 KiB to 256 KiB a block, one thread), as K blocks at 40 GB/s; dense rows while each
//! block was a sum of its own, since when they take a quarter to two fifths less (Zen 3):
//!
//! | K | m = 4 | 16 | 32 | 64 | 128 |
//! |---|---|---|---|---|---|
//! | 64 (dense) | 4.1 | 11.4 | 21.3 | | |
//! | 256 (coefficients) | 1.8 | 6.1 | 6.7 | 8.8 | 12.1 |
//! | 512 | 0.5 | 3.1 | 4.0 | 4.6 | 5.8 |
//! | 1024 | 0.3 | 1.5 | 3.5 | 4.1 | 5.0 |
//! | 1024, variant A | 0.2 | 0.5 | 1.3 | 3.2 | 4.0 |

use super::code::{BINARY_FROM, Kind, SPARSE_FROM};

/// Blocks that a decode adds up for those it has that are no originals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// For each coded block, as long as that is less than the rest.
    pub alone: f64,
    /// However many there are.
    pub first: f64,
    /// And for each of them.
    pub each: f64,
}

impl Kind {
    /// The effort of K = `k` originals of which some did not come; none where a block is as good as another, or of a code that
    /// has no originals.
    pub fn effort(self, k: u32) -> Option<Effort> {
        let originals = f64::from(k);
        match self {
            Kind::Mix | Kind::MixA | Kind::MixC if k < SPARSE_FROM => {
                Some(Effort { alone: originals, first: 2.0 * originals, each: 0.65 * originals })
            }
            Kind::MixA if k < BINARY_FROM => Some(Effort { alone: 40.0, first: 4.4 * originals, each: 10.0 }),
            Kind::MixA => Some(Effort { alone: 45.0, first: 2.6 * originals, each: 10.0 }),
            Kind::Mix | Kind::MixC if k < BINARY_FROM => {
                Some(Effort { alone: 110.0, first: 4.6 * originals, each: 14.0 })
            }
            Kind::Mix | Kind::MixC => Some(Effort { alone: 95.0, first: 3.3 * originals, each: 11.0 }),
            Kind::ReedSolomon { data, .. } => {
                let each = f64::from(data);
                Some(Effort { alone: each, first: 0.0, each })
            }
            Kind::Replicated | Kind::Lt { .. } => None,
        }
    }
}

impl Effort {
    /// Blocks added up for so many coded ones.
    pub fn of(&self, coded: u32) -> f64 {
        let coded = f64::from(coded);
        (self.alone * coded).min(self.first + self.each * coded)
    }

    /// From so many coded blocks on [`Effort::first`] is worth its cost.
    pub fn first_pays_from(&self) -> u32 {
        (self.first / (self.alone - self.each).max(1.0)).ceil() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rateless::{Code, Decoder, RankTracker};

    /// Slices that the decode of a real code reads with the first `lost` of its originals missing.
    fn reads(kind: Kind, k: u32, lost: u32) -> f64 {
        let code = Code::checked(kind, k, 5, 4 * k).unwrap();
        let (mut rank, mut decoder) = (RankTracker::new(&code), Decoder::new(&code, 1));
        for index in lost..4 * k {
            if rank.missing() == 0 {
                break;
            }
            rank.push(index);
            decoder.push(index, vec![0u8]).unwrap();
        }
        decoder.cost().expect("enough blocks").1 as f64
    }

    /// The figures are times; slices read are what they come of. Coefficients cost about twice as much a slice.
    #[test]
    fn the_effort_foreseen_is_that_of_real_codes() {
        for (kind, k, weight) in [
            (Kind::Mix, 256, 2.0),
            (Kind::Mix, 512, 1.0),
            (Kind::Mix, 1024, 1.0),
            (Kind::MixA, 256, 2.0),
            (Kind::MixA, 1024, 1.0),
            (Kind::MixC, 1024, 1.0),
        ] {
            let effort = kind.effort(k).unwrap();
            for lost in [k / 256, k / 32, k / 8, k / 4] {
                let (foreseen, read) = (effort.of(lost), weight * reads(kind, k, lost));
                assert!(
                    foreseen < 2.5 * read && read < 2.5 * foreseen,
                    "{kind:?} of {k}, {lost} lost: {foreseen} blocks foreseen, {read} read"
                );
            }
        }
    }

    #[test]
    fn more_coded_blocks_are_never_less_effort() {
        for kind in [Kind::Mix, Kind::MixA, Kind::MixC, Kind::ReedSolomon { data: 4, parity: 2 }] {
            for k in [1, 64, SPARSE_FROM, BINARY_FROM, 8192] {
                let effort = kind.effort(k).unwrap();
                let all: Vec<f64> = (0..=k).map(|coded| effort.of(coded)).collect();
                assert!(all[0] == 0.0 && all.is_sorted(), "{kind:?} {k}");
            }
        }
        assert_eq!(Kind::Replicated.effort(8), None);
        assert_eq!(Kind::Lt { c: 1.0, delta: 0.5 }.effort(8), None);
    }
}
