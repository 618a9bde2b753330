//! Arbitrary sets of blocks, in any order and with anything wrong with them: the exact originals or an error.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;
use common::*;
use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, DecodeError, Decoder, Kind, Push};

const STRIPES: Kind = Kind::ReedSolomon { data: 6, parity: 5 };
const KINDS: [Kind; 7] = [Kind::Replicated, LT_HALF, LT_TENTH, Kind::MixA, Kind::Mix, Kind::MixC, STRIPES];

/// A code of so many originals, or as many more as make chunks equally long.
fn code_of(kind: Kind, k: u32, seed: u64) -> Code {
    Code::new(kind, if kind == STRIPES { k.next_multiple_of(6) } else { k }, seed).unwrap()
}

/// K: small ones, both sides of every change of construction, and a few above the usual.
fn sizes() -> impl Strategy<Value = u32> {
    prop_oneof![
        40 => 1u32..40,
        40 => 120u32..140,
        40 => 505u32..530,
        2 => prop::sample::select(vec![1025, 2048]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 160,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(20261121),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_blocks_give_the_originals_or_an_error(
        seed: u64,
        kind in 0usize..KINDS.len(),
        k in sizes(),
        len in 0usize..70,
        share in 0.3f64..3.0,
        trouble in 0u32..40,
    ) {
        let code = code_of(KINDS[kind], k, seed);
        let k = code.k();
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let originals = payload(k, len, &mut random);
        let stored = 0..code.end().unwrap_or(4 * k + 8);
        let mut decoder = Decoder::new(&code, len).expecting(stored.clone());
        let mut kept: Vec<u32> = Vec::new();
        for _ in 0..(f64::from(k) * share) as u32 {
            let index = random.next_u32() % stored.end;
            let block = encode(&code, &[index], &originals).remove(0);
            if random.next_u32() % 100 < trouble {
                let (rank, missing) = (decoder.rank(), decoder.missing());
                let far = stored.end + random.next_u32() % 1000;
                prop_assert_eq!(
                    decoder.push(far, block.clone()).unwrap_err(),
                    DecodeError::Stranger { index: far }
                );
                let wrong = DecodeError::BlockLength { index, given: len + 1, expected: len };
                prop_assert_eq!(decoder.push(index, vec![0; len + 1]).unwrap_err(), wrong);
                if let (Some(known), true) = (kept.get(random.next_u32() as usize % kept.len().max(1)), len > 0) {
                    let mut again = encode(&code, &[*known], &originals).remove(0);
                    prop_assert_eq!(
                        decoder.push(*known, again.clone()).unwrap(),
                        (Push::Duplicate, Some(again.clone()))
                    );
                    again[random.next_u32() as usize % len] ^= 1;
                    prop_assert_eq!(
                        decoder.push(*known, again).unwrap_err(),
                        DecodeError::Contradiction { index: *known }
                    );
                }
                prop_assert_eq!((decoder.rank(), decoder.missing()), (rank, missing), "errors change nothing");
            }
            if decoder.push(index, block).unwrap().1.is_none() {
                kept.push(index);
            }
            while random.next_u32().is_multiple_of(3) && decoder.advance(|len| vec![0; len]) {}
        }
        let missing = decoder.missing();
        match decoder.solve(1 + seed as usize % 3) {
            Ok(solved) => prop_assert!(missing == 0 && solved == originals, "{:?}", code),
            Err(error) => prop_assert!(missing > 0 && error == DecodeError::Missing { missing }, "{}", error),
        }
    }

    /// Old block plus coefficient times the change is the new block, and no other block changes.
    #[test]
    fn deltas_make_the_blocks_of_the_new_original(
        seed: u64,
        kind in 0usize..KINDS.len(),
        k in sizes(),
    ) {
        let code = code_of(KINDS[kind], k, seed);
        let k = code.k();
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut originals = payload(k, 8, &mut random);
        let stored = 0..code.end().unwrap_or(3 * k);
        let all: Vec<u32> = stored.clone().collect();
        let mut blocks = encode(&code, &all, &originals);
        let original = random.next_u32() % k;
        let mut after = vec![0; 8];
        random.fill_bytes(&mut after);
        let change: Vec<u8> = originals[original as usize].iter().zip(&after).map(|(a, b)| a ^ b).collect();
        originals[original as usize] = after;
        let field = Field::new();
        let deltas = code.deltas(original, stored.clone());
        prop_assert!(deltas.is_sorted_by_key(|delta| delta.index));
        for delta in &deltas {
            let scaled = field.combine(&[delta.coefficient], std::slice::from_ref(&change));
            blocks[delta.index as usize].iter_mut().zip(scaled).for_each(|(a, b)| *a ^= b);
        }
        prop_assert!(blocks == encode(&code, &all, &originals));
        let indices: Vec<u32> = deltas.iter().map(|delta| delta.index).collect();
        prop_assert_eq!(indices, code.touched_by(original, stored));
    }
}

#[test]
fn an_original_that_is_not_there_is_in_no_block() {
    for (kind, k) in KINDS.into_iter().flat_map(|kind| [1, 20, 130, 520].map(|k| (kind, k))) {
        let code = code_of(kind, k, 1);
        let k = code.k();
        assert!(!code.deltas(k - 1, 0..4 * k).is_empty(), "{code:?}");
        for original in [k, k + 1, 2 * k, u32::MAX] {
            assert!(code.deltas(original, 0..4 * k).is_empty(), "{code:?}: {original}");
            assert!(code.touched_by(original, 0..4 * k).is_empty(), "{code:?}: {original}");
        }
    }
}

#[test]
fn originals_that_are_all_there_cost_nothing() {
    for kind in KINDS {
        if matches!(kind, Kind::Lt { .. }) {
            continue;
        }
        for k in [1, 20, 130, 520] {
            let code = code_of(kind, k, 1);
            let k = code.k();
            let originals = payload(k, 16, &mut random());
            let mut decoder = Decoder::new(&code, 16);
            for index in (0..k).rev() {
                decoder.push(index, originals[index as usize].clone()).unwrap();
            }
            assert_eq!(decoder.cost(), Some((0, 0, 0)), "{code:?}");
            assert!(decoder.solve(1).unwrap() == originals);
        }
    }
}
