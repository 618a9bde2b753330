use super::*;

pub(super) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// Russian-peasant multiplication, with no table.
pub(super) fn naive_mul(mut a: u8, mut b: u8) -> u8 {
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

/// Random programs over slots of odd lengths at odd addresses, against sums taken byte by byte.
#[test]
fn every_tier_runs_programs_like_the_naive_twin() {
    use super::sums::{Op, Steps};
    const SLOTS: [usize; 3] = [5, 4, 3];
    let [inputs, blocks, scratch] = SLOTS;
    for seed in 0..40u64 {
        let mut random = bytes(seed + 1000, 4096).into_iter();
        let mut draw = |n: usize| random.next().expect("enough bytes") as usize % n;
        let (mut ops, mut sources, mut coefficients) = (Vec::new(), Vec::new(), Vec::new());
        let mut push = |dst: usize, scale: u8, ones: &[usize], others: &[(usize, u8)]| {
            let start = sources.len() as u32;
            let all = ones.iter().map(|slot| (*slot, 1)).chain(others.iter().copied());
            for (slot, coefficient) in all.filter(|(slot, _)| *slot != dst) {
                sources.push(slot as u32);
                coefficients.push(coefficient);
            }
            let ones = start + ones.iter().filter(|slot| **slot != dst).count() as u32;
            ops.push(Op { dst: dst as u32, scale, start, ones, end: sources.len() as u32 });
        };
        // Scratch is set before it is read.
        (inputs + blocks..inputs + blocks + scratch).for_each(|slot| push(slot, 0, &[slot % inputs], &[]));
        for _ in 0..20 {
            let ones: Vec<usize> = (0..draw(12)).map(|_| draw(12)).collect();
            let others: Vec<(usize, u8)> = (0..draw(3)).map(|_| (draw(12), draw(256) as u8)).collect();
            let scale = [0, 1, 1, 29][draw(4)];
            push(inputs + draw(blocks + scratch), scale, &ones, &others);
        }
        for len in [0, 1, 63, 64, 130, 1024, 4096, 8192 + 577] {
            let offset = seed as usize % 7;
            let fresh: Vec<Vec<u8>> = (0..12).map(|slot| bytes(slot + 50, len + offset)).collect();
            let mut naive = fresh.clone();
            for op in &ops {
                let mut out = std::mem::take(&mut naive[op.dst as usize]);
                for (at, byte) in out.iter_mut().enumerate().skip(offset) {
                    let range = op.start as usize..op.end as usize;
                    let terms = sources[range.clone()].iter().zip(&coefficients[range]);
                    let own = naive_mul(op.scale, *byte);
                    *byte = terms.fold(own, |sum, (slot, c)| sum ^ naive_mul(*c, naive[*slot as usize][at]));
                }
                naive[op.dst as usize] = out;
            }
            for &tier in Tier::available() {
                let mut memory = fresh.clone();
                let (read, written) = memory.split_at_mut(inputs);
                let read: Vec<&[u8]> = read.iter().map(|slot| &slot[offset..]).collect();
                let mut written: Vec<&mut [u8]> =
                    written[..blocks].iter_mut().map(|slot| &mut slot[offset..]).collect();
                let steps = Steps::new(SLOTS, ops.clone(), sources.clone(), coefficients.clone());
                steps.run(tier, &read, &mut written);
                assert!(
                    memory[..inputs + blocks] == naive[..inputs + blocks],
                    "{tier:?}, seed {seed}, {len} bytes"
                );
            }
        }
    }
}

#[test]
fn programs_that_break_the_rules_are_refused() {
    use super::sums::{Op, Steps};
    let op = |dst, source| {
        std::panic::catch_unwind(|| {
            let op = Op { dst, scale: 1, start: 0, ones: 1, end: 1 };
            Steps::new([1, 1, 1], vec![op], vec![source], vec![1])
        })
    };
    assert!(op(1, 0).is_ok());
    assert!(op(0, 1).is_err(), "writes an input");
    assert!(op(1, 1).is_err(), "reads its destination");
    assert!(op(1, 3).is_err() && op(3, 1).is_err(), "no such slot");
    let steps = op(1, 0).expect("a program");
    let run = |a: usize, b: usize| {
        std::panic::catch_unwind(|| steps.run(Tier::Portable, &[&vec![0; a]], &mut [&mut vec![0; b]]))
    };
    assert!(run(9, 8).is_ok());
    assert!(run(7, 8).is_err(), "an input too short");
}
