//! Random numbers: one stream for each entity and purpose, so that one entity that draws more often, or one more entity,
//! changes nothing of what the others draw. The generator is PCG-64-MCG (O'Neill 2014), as in the whole project.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// What random numbers are drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Delays on a link that are not its usual one.
    Link,
    /// Which devices an access uses.
    Choice,
    /// How a device is: its layout, its load.
    Device,
    /// A code's graph.
    Code,
    /// The bytes stored.
    Contents,
}

/// The stream of `entity` for `purpose` under `seed`.
pub fn stream(seed: u64, purpose: Purpose, entity: u64) -> Pcg64Mcg {
    let mixed =
        mix(mix(seed ^ 0x5bd1_e995) ^ mix(purpose as u64 + 1) ^ mix(entity ^ 0x9e37_79b9).rotate_left(17));
    Pcg64Mcg::seed_from_u64(mixed)
}

/// A number in 0.0..1.0.
pub fn unit(random: &mut Pcg64Mcg) -> f64 {
    // 53 bits: every value is exact.
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A number in 0..`end`.
pub fn below(random: &mut Pcg64Mcg, end: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(end)) >> 64) as u64
}

/// `count` of 0..`of`, each equally likely, in random order.
pub fn choose(random: &mut Pcg64Mcg, count: usize, of: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..of).collect();
    for place in 0..count.min(of) {
        let other = place + below(random, (of - place) as u64) as usize;
        all.swap(place, other);
    }
    all.truncate(count);
    all
}

/// Spreads what differs in one bit over all of them (the finaliser of SplitMix64, Steele et al. 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_seed_purpose_and_entity_and_repeat() {
        let first = |seed, purpose, entity| stream(seed, purpose, entity).next_u64();
        let all = [
            first(1, Purpose::Link, 0),
            first(2, Purpose::Link, 0),
            first(1, Purpose::Choice, 0),
            first(1, Purpose::Link, 1),
            first(1, Purpose::Code, 1),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(first(1, Purpose::Link, 0), all[0]);
    }

    #[test]
    fn choices_are_different_and_even() {
        let mut random = stream(3, Purpose::Choice, 0);
        let mut often = [0u32; 16];
        for _ in 0..4000 {
            let chosen = choose(&mut random, 4, 16);
            let different: std::collections::BTreeSet<&usize> = chosen.iter().collect();
            assert_eq!(different.len(), 4);
            chosen.iter().for_each(|&one| often[one] += 1);
        }
        // 1000 each, with a standard deviation of 27.
        assert!(often.iter().all(|&times| (860..1140).contains(&times)), "{often:?}");
        assert!((0..100).map(|_| unit(&mut random)).all(|one| (0.0..1.0).contains(&one)));
    }
}
