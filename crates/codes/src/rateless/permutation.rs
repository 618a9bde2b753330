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

    /// Appends `count` distinct items (at most `len`) plus `offset` to `row`: the next of the permutation, but those in
    /// `avoid` (offset included) only where nothing else is left of it.
    pub(crate) fn take(
        &mut self,
        count: usize,
        offset: u16,
        avoid: &[u16],
        generator: &mut Pcg64Mcg,
        row: &mut Vec<u16>,
    ) {
        let start = row.len();
        let mut crossed = start;
        for _ in 0..count {
            if self.position == self.permutation.len() {
                shuffle(&mut self.permutation, generator);
                self.position = 0;
                crossed = row.len();
            }
            // Where the row holds items of the permutation before, take the next that is not among them. Those
            // passed over keep their turn.
            let earlier = &row[start..crossed];
            let first = |avoid: &[u16]| {
                (self.position..self.permutation.len()).find(|place| {
                    let item = self.permutation[*place] + offset;
                    !earlier.contains(&item) && !avoid.contains(&item)
                })
            };
            let next = first(avoid)
                .or_else(|| first(&[]))
                .expect("a row has at most as many items as there are, so one is free");
            self.permutation.swap(self.position, next);
            row.push(self.permutation[self.position] + offset);
            self.position += 1;
        }
    }
}
