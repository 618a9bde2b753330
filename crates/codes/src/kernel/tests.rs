use super::*;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// Russian-peasant multiplication, with no table.
fn naive_mul(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 != 0 {
            sum ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    sum
}

#[test]
fn products_and_inverses_match_the_naive_twin() {
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(gf256::mul(a, b), naive_mul(a, b), "{a} * {b}");
        }
        if a != 0 {
            assert_eq!(naive_mul(a, gf256::inverse(a)), 1, "1 / {a}");
        }
    }
}

#[test]
fn every_tier_of_xor_matches_the_naive_twin() {
    for &tier in Tier::available() {
        for len in [0, 1, 63, 64, 65, 200, 1024] {
            for count in 0..=19 {
                for set in [false, true] {
                    let sources: Vec<_> = (0..count).map(|n| bytes(n + 1, len)).collect();
                    let views: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
                    let mut out = bytes(99, len);
                    let mut naive = if set { vec![0; len] } else { out.clone() };
                    for source in &sources {
                        naive.iter_mut().zip(source).for_each(|(a, b)| *a ^= b);
                    }
                    xor::fused(tier, &mut out, &views, set);
                    assert_eq!(out, naive, "{tier:?}, {len} bytes, {count} sources, set {set}");
                }
            }
        }
    }
}

#[test]
fn every_tier_of_multiply_accumulate_matches_the_naive_twin() {
    for &tier in Tier::available() {
        for len in [0, 1, 31, 64, 65, 333] {
            for c in 0..=255 {
                let (src, mut out) = (bytes(c as u64 + 7, len), bytes(3, len));
                let naive: Vec<u8> = out.iter().zip(&src).map(|(a, b)| a ^ naive_mul(c, *b)).collect();
                gf256::mul_acc_at(tier, &mut out, &src, c);
                assert_eq!(out, naive, "{tier:?}, {len} bytes, c = {c}");
                let mut scaled = src.clone();
                gf256::scale(&mut scaled, c);
                assert!(scaled.iter().zip(&src).all(|(a, b)| *a == naive_mul(c, *b)), "scale by {c}");
            }
        }
    }
}

#[test]
fn slices_of_different_lengths_are_refused() {
    assert!(std::panic::catch_unwind(|| xor::xor(&mut [0; 3], &[0; 4])).is_err());
    assert!(std::panic::catch_unwind(|| gf256::mul_acc(&mut [0; 5], &[0; 4], 3)).is_err());
}
