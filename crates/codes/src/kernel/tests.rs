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

/// Bytes that begin `shift` bytes, 63 at most, into an allocation and end where it ends: the address sanitizer sees a byte that is read
/// or written past them.
pub(super) struct Ending {
    memory: Box<[u8]>,
    shift: usize,
}

impl Ending {
    pub(super) fn new(content: &[u8], shift: usize) -> Self {
        let before = [0x6b; 63];
        Self { memory: [&before[..shift], content].concat().into(), shift }
    }

    pub(super) fn view(&self) -> &[u8] {
        &self.memory[self.shift..]
    }

    pub(super) fn view_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.shift..]
    }
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

/// Sums at every alignment of sources and destination, bytes around the destination unchanged.
#[test]
fn every_tier_of_xor_keeps_to_its_bytes_at_every_alignment() {
    const LEN: usize = 581;
    let long = (2 << 20) / 3 + 77;
    for &tier in Tier::available() {
        for shift in 0..64 {
            for (count, len, set) in [
                (1, LEN, false),
                (2, LEN, true),
                (5, LEN, true),
                (8, LEN, false),
                (11, LEN, true),
                (2, long, true),
            ] {
                // The long ones, past the caches, at some of the places.
                if len == long && shift % 21 > 1 {
                    continue;
                }
                let sources: Vec<Ending> = (0..count)
                    .map(|n| Ending::new(&bytes(n + 1, len), (shift * 3 + n as usize) % 64))
                    .collect();
                let views: Vec<&[u8]> = sources.iter().map(Ending::view).collect();
                let mut memory = bytes(99, len + 192);
                let start = memory.as_ptr().align_offset(64) + shift;
                let mut naive = memory.clone();
                for (at, byte) in naive[start..start + len].iter_mut().enumerate() {
                    let own = if set { 0 } else { *byte };
                    *byte = views.iter().fold(own, |sum, view| sum ^ view[at]);
                }
                xor::fused(tier, &mut memory[start..start + len], &views, set);
                assert!(memory == naive, "{tier:?}, {len} bytes at {shift}, {count} sources, set {set}");
            }
        }
    }
}

#[test]
fn the_same_sum_goes_to_every_destination() {
    for count in 0..6 {
        let (a, b) = (bytes(1, 333), bytes(2, 333));
        let mut out = vec![vec![7; 333]; count];
        let mut views: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
        xor::set_all(&mut views, &a, &b);
        assert!(out.iter().flatten().zip(a.iter().zip(&b).cycle()).all(|(out, (a, b))| *out == a ^ b));
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

/// Random programs over slots of odd lengths at odd addresses, against sums taken byte by byte. The longest are
/// written past the caches.
#[test]
fn every_tier_runs_programs_like_the_naive_twin() {
    use super::sums::{NOWHERE, Op, Steps};
    const SLOTS: [usize; 3] = [5, 4, 3];
    let [inputs, blocks, scratch] = SLOTS;
    for seed in 0..40u64 {
        let mut random = bytes(seed + 1000, 4096).into_iter();
        let mut draw = |n: usize| random.next().expect("enough bytes") as usize % n;
        let (mut ops, mut sources, mut copies, mut coefficients) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut push = |[dst, out, plus]: [u32; 3], kept: &[u32], ones: &[usize], others: &[(usize, u8)]| {
            let (start, first_copy) = (sources.len() as u32, copies.len() as u32);
            copies.extend_from_slice(kept);
            sources.extend(ones.iter().map(|slot| *slot as u32));
            coefficients.extend(ones.iter().map(|_| 1));
            for (slot, coefficient) in others.iter().filter(|(slot, _)| *slot as u32 != dst) {
                sources.push(*slot as u32);
                coefficients.push(*coefficient);
            }
            ops.push(Op {
                dst,
                out,
                plus,
                copies: first_copy,
                start,
                copied: start + kept.len() as u32,
                ones: start + ones.len() as u32,
                end: sources.len() as u32,
            });
        };
        // Scratch is set before it is read.
        (inputs + blocks..inputs + blocks + scratch)
            .for_each(|slot| push([slot as u32, NOWHERE, NOWHERE], &[], &[slot % inputs], &[]));
        for _ in 0..20 {
            let ones: Vec<usize> = (0..draw(12)).map(|_| draw(12)).collect();
            let others: Vec<(usize, u8)> = (0..draw(3)).map(|_| (draw(12), draw(256) as u8)).collect();
            let dst = (inputs + draw(blocks + scratch)) as u32;
            let out = (inputs + draw(blocks)) as u32;
            let kept: Vec<u32> =
                ones.iter().take(draw(4)).map(|_| (inputs + draw(blocks + scratch)) as u32).collect();
            match draw(4) {
                0 if others.is_empty() => push([NOWHERE, out, NOWHERE], &kept, &ones, &[]),
                1 => push([dst, NOWHERE, NOWHERE], &[], &ones, &others),
                2 => push([dst, out, draw(12) as u32], &kept, &ones, &[]),
                _ => push([dst, out, NOWHERE], &[], &ones, &others),
            }
        }
        let long = if seed == 0 { (1 << 20) + 65 } else { 0 };
        for len in [0, 1, 63, 64, 130, 1024, 4096, 8192 + 577, long] {
            // The first program's slots begin at lines: so they may go past the caches.
            let offset = seed as usize % 7;
            let fresh: Vec<Vec<u8>> = (0..12).map(|slot| bytes(slot + 50, len)).collect();
            let mut naive = fresh.clone();
            for op in &ops {
                #[expect(clippy::needless_range_loop, reason = "byte by byte, through several slots")]
                for at in 0..len {
                    let mut sum = 0;
                    for place in op.start..op.end {
                        let byte = naive[sources[place as usize] as usize][at];
                        if place < op.copied {
                            naive[copies[(op.copies + place - op.start) as usize] as usize][at] = byte;
                        }
                        sum ^= naive_mul(coefficients[place as usize], byte);
                    }
                    if op.dst != NOWHERE {
                        naive[op.dst as usize][at] = sum;
                    }
                    if op.plus != NOWHERE {
                        sum ^= naive[op.plus as usize][at];
                    }
                    if op.out != NOWHERE {
                        naive[op.out as usize][at] = sum;
                    }
                }
            }
            for &tier in Tier::available() {
                let read: Vec<Ending> =
                    fresh[..inputs].iter().map(|fresh| Ending::new(fresh, offset)).collect();
                let read: Vec<&[u8]> = read.iter().map(Ending::view).collect();
                let mut memory: Vec<Vec<u8>> = vec![vec![0x5a; len + 64 + offset]; blocks];
                let mut slots: Vec<&mut [u8]> = memory
                    .iter_mut()
                    .map(|memory| {
                        let start = memory.as_ptr().align_offset(64) + offset;
                        &mut memory[start..start + len]
                    })
                    .collect();
                slots.iter_mut().zip(&fresh[inputs..]).for_each(|(slot, fresh)| slot.copy_from_slice(fresh));
                let steps = Steps::new(
                    SLOTS,
                    ops.clone(),
                    sources.clone(),
                    copies.clone(),
                    coefficients.clone(),
                    None,
                );
                steps.run(tier, &mut sums::Strips::default(), &read, &mut slots);
                let same = slots.iter().zip(&naive[inputs..]).all(|(slot, naive)| *slot == naive);
                assert!(same, "{tier:?}, seed {seed}, {len} bytes");
                // Nothing beside the slots.
                for memory in &memory {
                    let start = memory.as_ptr().align_offset(64) + offset;
                    let beside = memory[..start].iter().chain(&memory[start + len..]);
                    assert!(beside.copied().all(|byte| byte == 0x5a), "{tier:?}, seed {seed}, {len} bytes");
                }
            }
        }
    }
}

/// Products of every shape beside the bounds of groups and passes, with ops before and after.
#[test]
fn every_tier_multiplies_slots_like_the_naive_twin() {
    use super::{
        product::Product,
        sums::{NOWHERE, Op, Steps},
    };
    for (seed, count) in [1, 3, 4, 5, 63, 64, 65, 113, 130].into_iter().enumerate() {
        let rows = 17;
        // Sources are inputs, results scratch, and a block for each result is copied from there.
        let bits: Vec<u8> = bytes(seed as u64, rows * count).into_iter().map(|byte| byte >> 7).collect();
        let words = Product::words(count);
        let mut matrix = vec![0; rows * words];
        for (place, bit) in bits.iter().enumerate() {
            let (row, source) = (place / count, place % count);
            matrix[row * words + source / 64] |= u64::from(*bit) << (source % 64);
        }
        let product = Product {
            sources: (0..count as u32).collect(),
            outs: (0..rows as u32).map(|row| (count + rows) as u32 + row).collect(),
            rows: matrix,
        };
        let ops = (0..rows as u32).map(|row| Op {
            dst: NOWHERE,
            out: count as u32 + row,
            plus: NOWHERE,
            copies: 0,
            start: row,
            copied: row,
            ones: row + 1,
            end: row + 1,
        });
        let steps = Steps::new(
            [count, rows, rows],
            ops.collect(),
            product.outs.clone(),
            Vec::new(),
            vec![1; rows],
            Some((0, product)),
        );
        for len in [0, 1, 63, 64, 200, 1025] {
            let offset = seed % 7;
            let read: Vec<Vec<u8>> = (0..count).map(|slot| bytes(slot as u64 + 9, len + offset)).collect();
            let read: Vec<&[u8]> = read.iter().map(|slot| &slot[offset..]).collect();
            for &tier in Tier::available() {
                let mut written = vec![vec![7; len + offset]; rows];
                let mut views: Vec<&mut [u8]> = written.iter_mut().map(|slot| &mut slot[offset..]).collect();
                steps.run(tier, &mut sums::Strips::default(), &read, &mut views);
                for (row, out) in views.iter().enumerate() {
                    let mut naive = vec![0; len];
                    for (source, _) in read.iter().zip(&bits[row * count..]).filter(|(_, bit)| **bit == 1) {
                        naive.iter_mut().zip(*source).for_each(|(a, b)| *a ^= b);
                    }
                    assert!(**out == naive, "{tier:?}, {count} sources, row {row}, {len} bytes");
                }
            }
        }
    }
}

#[test]
fn products_that_break_the_rules_are_refused() {
    use super::{product::Product, sums::Steps};
    let steps = |sources: &[u32], outs: &[u32], rows: &[u64], at| {
        let product = Product { sources: sources.to_vec(), outs: outs.to_vec(), rows: rows.to_vec() };
        std::panic::catch_unwind(|| {
            Steps::new([2, 1, 2], Vec::new(), Vec::new(), Vec::new(), Vec::new(), Some((at, product)))
        })
    };
    assert!(steps(&[0, 1], &[2, 3], &[1, 3], 0).is_ok());
    assert!(steps(&[0, 1], &[1, 3], &[1, 3], 0).is_err(), "writes an input");
    assert!(steps(&[0, 4], &[2, 4], &[1, 3], 0).is_err(), "reads what it writes");
    assert!(steps(&[0, 1], &[3, 3], &[1, 3], 0).is_err(), "writes twice");
    assert!(steps(&[0, 5], &[2, 3], &[1, 3], 0).is_err(), "no such source");
    assert!(steps(&[0, 1], &[2, 5], &[1, 3], 0).is_err(), "no such slot");
    assert!(steps(&[0, 1], &[2, 3], &[1], 0).is_err(), "a row too few");
    assert!(steps(&[0, 1], &[2, 3], &[1, 4], 0).is_err(), "a bit of no source");
    assert!(steps(&[], &[2, 3], &[], 0).is_err(), "a product of nothing");
    assert!(steps(&[0, 1], &[2, 3], &[1, 3], 1).is_err(), "after an op that is not there");
}

#[test]
fn programs_that_break_the_rules_are_refused() {
    use super::sums::{NOWHERE, Op, Steps};
    let full = |dst, out, plus, copies: &[u32], source, coefficient| {
        std::panic::catch_unwind(|| {
            let (copied, ones) = (copies.len() as u32, u32::from(coefficient == 1));
            let op = Op { dst, out, plus, copies: 0, start: 0, copied, ones, end: 1 };
            Steps::new([1, 1, 1], vec![op], vec![source], copies.to_vec(), vec![coefficient], None)
        })
    };
    let op = |dst, out, source, coefficient| full(dst, out, NOWHERE, &[], source, coefficient);
    assert!(full(1, NOWHERE, NOWHERE, &[2], 0, 1).is_ok() && full(2, 1, 0, &[], 0, 1).is_ok());
    assert!(full(1, NOWHERE, NOWHERE, &[0], 1, 1).is_err(), "copies to an input");
    assert!(full(1, NOWHERE, NOWHERE, &[3], 0, 1).is_err(), "copies to no slot");
    assert!(full(1, NOWHERE, NOWHERE, &[NOWHERE], 0, 1).is_err(), "copies to nowhere");
    assert!(full(1, NOWHERE, NOWHERE, &[2, 2], 0, 1).is_err(), "copies more than there is");
    assert!(full(1, NOWHERE, NOWHERE, &[2], 0, 7).is_err(), "copies where it multiplies");
    assert!(full(2, 1, 0, &[], 0, 7).is_err(), "more than a sum of products");
    assert!(full(2, 1, 3, &[], 0, 1).is_err(), "more of no slot");
    assert!(op(1, NOWHERE, 0, 1).is_ok() && op(2, 1, 0, 7).is_ok());
    assert!(op(0, NOWHERE, 1, 1).is_err() && op(2, 0, 1, 1).is_err(), "writes an input");
    assert!(op(1, NOWHERE, 1, 7).is_err() && op(2, 1, 2, 7).is_err(), "multiplies its destination");
    assert!(op(NOWHERE, 1, 0, 7).is_err(), "products have no place");
    let missing = [op(1, 2, 3, 1), op(3, 1, 0, 1), op(2, 3, 0, 1)];
    assert!(missing.iter().all(Result::is_err), "no such slot");
    let steps = op(1, NOWHERE, 0, 1).expect("a program");
    let run = |a: usize, b: usize| {
        std::panic::catch_unwind(|| {
            steps.run(Tier::Portable, &mut sums::Strips::default(), &[&vec![0; a]], &mut [&mut vec![0; b]])
        })
    };
    assert!(run(9, 8).is_ok());
    assert!(run(7, 8).is_err(), "an input too short");
}
