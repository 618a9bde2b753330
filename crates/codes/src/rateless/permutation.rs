//! The pseudo-random selection of dissertation §5.2.3 (2): walk a random permutation, and a new one when it is
//! used up, so that how often two items were chosen differs by at most one; and the generator behind it.

use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

/// The generator for one purpose (`stream`) and place (`position`) of a code.
pub(crate) fn generator(seed: u64, stream: u64, position: u64) -> Pcg64Mcg {
    let low = mix(seed ^ mix(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(position)));
    let high = mix(low ^ 0x5851_f42d_4c95_7f2d);
    Pcg64Mcg::new((u128::from(high) << 64) | u128::from(low))
}

/// splitmix64's finaliser: every bit of the argument reaches every bit of the result.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number below `bound` (Lemire's product, bias below 2^-18 for the bounds here).
pub(crate) fn below(generator: &mut Pcg64Mcg, bound: u32) -> u32 {
    ((u64::from(generator.next_u32()) * u64::from(bound)) >> 32) as u32
}

/// Fisher-Yates.
pub(crate) fn shuffle(items: &mut [u16], generator: &mut Pcg64Mcg) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(generator, last as u32 + 1) as usize);
    }
}

/// A walk over random permutations of `0..len`.
#[derive(Clone)]
pub(crate) struct Walk {
    permutation: Vec<u16>,
    position: usize,
}

impl Walk {
    pub(crate) fn new(len: usize) -> Self {
        Self { permutation: (0..len as u16).collect(), position: len }
    }

    /// Appends `count` distinct items (at most `len`) plus `offset` to `row`: the next of the permutation.
    pub(crate) fn take(&mut self, count: usize, offset: u16, generator: &mut Pcg64Mcg, row: &mut Vec<u16>) {
        let start = row.len();
        for _ in 0..count {
            let item = self.take_best(1, offset, &row[start..], generator, 0, |_| 0);
            row.push(item);
        }
    }

    /// An item plus `offset` that is not in `row`: of the next `ahead` items of the permutation the first for which
    /// `gain` is greatest, or as great as it can get (`most`). Those passed over keep their turn.
    pub(crate) fn take_best(
        &mut self,
        ahead: usize,
        offset: u16,
        row: &[u16],
        generator: &mut Pcg64Mcg,
        most: u16,
        gain: impl Fn(u16) -> u16,
    ) -> u16 {
        if self.position == self.permutation.len() {
            shuffle(&mut self.permutation, generator);
            self.position = 0;
        }
        let mut best: Option<(u16, usize, u16)> = None;
        let left = self.permutation[self.position..].iter().enumerate();
        // A row that goes on from the permutation before may hold items of this one already.
        for (place, item) in left
            .map(|(place, item)| (place, item + offset))
            .filter(|(_, item)| !row.contains(item))
            .take(ahead)
        {
            let gain = gain(item);
            if best.is_none_or(|(greatest, ..)| gain > greatest) {
                best = Some((gain, place, item));
                if gain >= most {
                    break;
                }
            }
        }
        let (_, place, item) = best.expect("a row has at most as many items as there are, so one is free");
        self.permutation.swap(self.position, self.position + place);
        self.position += 1;
        item
    }
}
