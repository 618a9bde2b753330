//! Reading memory and nothing else: the limit that every other kernel is measured against.

use super::{Tier, dispatch::tiered};

/// One register of the widest tier. Four sums of it, so that they do not wait for each other.
const LANE: usize = 64;

/// The XOR of all 64-bit words of `bytes`, a last partial one padded with zeros: the cheapest thing that needs
/// every byte.
pub fn fold(bytes: &[u8]) -> u64 {
    fold_at(Tier::detect(), bytes)
}

/// [`fold`] at a given tier.
pub fn fold_at(tier: Tier, bytes: &[u8]) -> u64 {
    fold_tiered(tier, bytes)
}

tiered! { fn fold_tiered = fold_body(bytes: &[u8]) -> u64 }

#[inline(always)]
fn fold_body(bytes: &[u8]) -> u64 {
    let (lanes, rest) = bytes.as_chunks::<LANE>();
    let (steps, last) = lanes.as_chunks::<4>();
    let [mut a, mut b, mut c, mut d] = [[0u8; LANE]; 4];
    for [w, x, y, z] in steps {
        add(&mut a, w);
        add(&mut b, x);
        add(&mut c, y);
        add(&mut d, z);
    }
    last.iter().for_each(|lane| add(&mut a, lane));
    words(&a) ^ words(&b) ^ words(&c) ^ words(&d) ^ words(rest)
}

#[inline(always)]
fn add(sum: &mut [u8; LANE], lane: &[u8; LANE]) {
    for (sum, byte) in sum.iter_mut().zip(lane) {
        *sum ^= byte;
    }
}

#[inline(always)]
fn words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().fold(u64::from_ne_bytes(last), |sum, word| sum ^ u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_sums_what_a_plain_loop_sums() {
        let bytes: Vec<u8> = (0..3000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for (start, len) in [(0, 0), (1, 1), (0, 7), (3, 8), (5, 63), (0, 64), (9, 257), (2, 2998)] {
            let bytes = &bytes[start..start + len];
            let mut plain = [0u8; 8];
            bytes.iter().enumerate().for_each(|(at, byte)| plain[at % 8] ^= byte);
            for tier in Tier::available() {
                assert_eq!(fold_at(*tier, bytes), u64::from_ne_bytes(plain), "{tier:?} {start} {len}");
            }
        }
    }
}
