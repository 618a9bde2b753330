//! Encoder, rank and decoder against plain Gaussian elimination on the whole generator matrix.

#![allow(clippy::unwrap_used, reason = "a test or a measurement fails by panicking")]

mod common;
use common::*;
use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, DecodeError, Decoder, EncodeError, Kind, Push, RankTracker, Scratch};

/// How blocks arrive.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    /// Any of the first 4 K + 8.
    Random,
    /// Only repair blocks.
    Repair,
    /// Two thirds of the originals, then anything.
    OriginalsFirst,
    /// Far out, where rows come from later epochs.
    Far,
}

fn order(arrival: Arrival, k: u32, random: &mut Pcg64Mcg) -> Vec<u32> {
    let n = 4 * k + 8;
    match arrival {
        Arrival::Random => shuffled((0..n).collect(), random),
        Arrival::Repair => shuffled((k..n).collect(), random),
        Arrival::OriginalsFirst => {
            let mut order = shuffled((0..k).collect(), random)[..(2 * k as usize).div_ceil(3)].to_vec();
            let rest = (0..n).filter(|index| !order.contains(index)).collect();
            order.extend(shuffled(rest, random));
            order
        }
        Arrival::Far => {
            shuffled((40 * k + 1000..44 * k + 1010).chain(u32::MAX - 3..=u32::MAX).collect(), random)
        }
    }
}

/// The same verdict at every prefix and the same bytes, for one kind, K and arrival of a mix code.
fn agrees_with_elimination(k: u32, arrival: Arrival, random: &mut Pcg64Mcg) {
    let code = Code::new(Kind::Mix, k, random.next_u64()).unwrap();
    let originals = payload(k, 9, random);
    let order = order(arrival, k, random);
    let blocks = encode(&code, &order, &originals);
    let (field, mut naive) = (Field::new(), Naive::new(k));
    let mut decoder = Decoder::new(&code, 9);
    for (index, block) in order.into_iter().zip(blocks) {
        let row = code.generator_row(index);
        assert_eq!(block, field.combine(&row, &originals), "block {index} of K = {k}");
        let innovative = naive.push(row, block.clone());
        let (push, back) = decoder.push(index, block).unwrap();
        assert_eq!(
            push,
            if innovative { Push::Innovative } else { Push::Redundant },
            "block {index}, K = {k}"
        );
        assert_eq!(back.is_some(), !innovative);
        assert_eq!(decoder.rank(), naive.rank(), "rank after {index}, K = {k}, {arrival:?}");
        assert_eq!(decoder.missing(), k - naive.rank());
        assert!(decoder.kept() <= k as usize);
        if naive.rank() == k {
            break;
        }
    }
    assert_eq!(decoder.missing(), 0, "K = {k}, {arrival:?}: all blocks are enough");
    assert_eq!(naive.solve(), originals);
    assert!(decoder.solve(1).unwrap() == originals, "K = {k}, {arrival:?}, seed {}", code.seed());
}

#[test]
fn mix_agrees_with_gaussian_elimination_at_every_prefix() {
    let mut random = random();
    for k in [1, 2, 3, 4, 7, 16, 63, 64, 100, 127, 128, 130, 255, 511, 512, 600] {
        for arrival in [Arrival::Random, Arrival::Repair, Arrival::OriginalsFirst, Arrival::Far] {
            agrees_with_elimination(k, arrival, &mut random);
        }
    }
}

#[test]
fn every_kind_and_small_k_comes_back() {
    let mut random = random();
    let kinds = [LT_HALF, LT_TENTH, Kind::Lt { c: 0.03, delta: 0.5 }, Kind::Mix, Kind::MixA, Kind::MixC];
    for kind in kinds.into_iter().chain([Kind::Replicated]) {
        for k in (1..=20).chain([97, 128, 333, 777]) {
            let code = Code::checked(kind, k, random.next_u64(), 8 * k).unwrap();
            let originals = payload(k, 33, &mut random);
            let order = shuffled((0..8 * k).collect(), &mut random);
            let blocks = encode(&code, &order, &originals);
            let (field, mut decoder) = (Field::new(), Decoder::new(&code, 33));
            for (index, block) in order.into_iter().zip(blocks) {
                assert_eq!(
                    block,
                    field.combine(&code.generator_row(index), &originals),
                    "{code:?} block {index}"
                );
                decoder.push(index, block).unwrap();
            }
            assert!(decoder.solve(1).unwrap() == originals, "{code:?}");
        }
    }
}

/// One data chunk: each parity chunk has its bytes.
#[test]
fn a_parity_chunk_is_never_an_original_that_came_as_it_is() {
    let (mut random, rows) = (random(), 3);
    let code = Code::new(Kind::ReedSolomon { data: 1, parity: 2 }, rows, 0).unwrap();
    let originals = payload(rows, 64, &mut random);
    for chunk in 1..3 {
        let mut decoder = Decoder::new(&code, 64);
        let indices: Vec<u32> = (chunk * rows..(chunk + 1) * rows).collect();
        for (index, block) in indices.iter().zip(encode(&code, &indices, &originals)) {
            assert_eq!(decoder.push(*index, block).unwrap().0, Push::Innovative);
        }
        assert!((0..rows).all(|original| decoder.original(original).is_none()), "chunk {chunk}");
        // An original beside it says nothing new, and is none of them either.
        assert_eq!(decoder.push(1, originals[1].clone()).unwrap().0, Push::Redundant);
        assert!(decoder.original(1).is_none() && decoder.missing() == 0);
        assert!(decoder.solve(1).unwrap() == originals, "chunk {chunk}");
    }
}

#[test]
fn threads_and_odd_lengths_change_nothing() {
    let mut random = random();
    let chunks = Kind::ReedSolomon { data: 4, parity: 20 };
    for (kind, k) in [(Kind::Mix, 40), (Kind::Mix, 150), (Kind::Mix, 520), (LT_HALF, 100), (chunks, 40)] {
        let code = Code::checked(kind, k, 3, 6 * k).unwrap();
        for len in [0, 1, 2047, 2048, 2049, 10_001] {
            let originals = payload(k, len, &mut random);
            let order = shuffled((k / 3..6 * k).collect(), &mut random);
            let blocks = encode(&code, &order, &originals);
            for threads in [0, 1, 2, 3, 16, usize::MAX] {
                let mut decoder = Decoder::new(&code, len);
                for (index, block) in order.iter().zip(&blocks) {
                    decoder.push(*index, block.clone()).unwrap();
                }
                assert!(
                    decoder.solve(threads).unwrap() == originals,
                    "{code:?}, {len} bytes, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn originals_are_found_and_kept_in_their_own_buffers() {
    let code = Code::new(Kind::Mix, 200, 1).unwrap();
    let originals = payload(200, 64, &mut random());
    let order: Vec<u32> = (0..150).chain(300..600).collect();
    let blocks = encode(&code, &order, &originals);
    let mut decoder = Decoder::new(&code, 64);
    let (mut places, mut buffers) = (Vec::new(), 0);
    for (index, block) in order.into_iter().zip(blocks) {
        let address = block.as_ptr();
        if decoder.push(index, block).unwrap().1.is_none() {
            places.push(address);
            buffers += 1;
        }
    }
    assert_eq!(buffers, 200);
    assert_eq!(decoder.original(149), Some(&originals[149]));
    assert_eq!((decoder.original(150), decoder.original(200)), (None, None));
    let solved = decoder.solve(1).unwrap();
    assert!(solved == originals);
    for (original, block) in solved.iter().enumerate() {
        let place = places.iter().position(|place| *place == block.as_ptr());
        assert!(place.is_some(), "original {original} is in a buffer that came in");
        assert!(original >= 150 || place == Some(original), "original {original} was moved");
    }
}

#[test]
fn strangers_duplicates_and_too_few_are_errors() {
    for kind in [Kind::Mix, LT_HALF, Kind::Replicated] {
        let code = Code::new(kind, 10, 1).unwrap();
        let mut decoder = Decoder::new(&code, 4);
        assert_eq!(
            decoder.push(3, vec![0; 5]).unwrap_err(),
            DecodeError::BlockLength { index: 3, given: 5, expected: 4 }
        );
        assert_eq!(
            decoder.push(3, vec![0; 4]).unwrap(),
            (Push::Innovative, None),
            "a refused block was not counted"
        );
        assert_eq!(decoder.push(3, vec![0; 4]).unwrap(), (Push::Duplicate, Some(vec![0; 4])));
        let missing = decoder.missing();
        assert!(missing >= 1);
        assert_eq!(decoder.solve(1).unwrap_err(), DecodeError::Missing { missing });
    }
    let code = Code::new(Kind::Mix, 2, 1).unwrap();
    let (a, b) = ([1u8; 4], [2u8; 3]);
    let mut out = [0u8; 4];
    assert_eq!(
        code.encode(&[5], &[&a], &mut [&mut out]).unwrap_err(),
        EncodeError::OriginalCount { given: 1, expected: 2 }
    );
    assert_eq!(
        code.encode(&[5], &[&a, &b], &mut [&mut out]).unwrap_err(),
        EncodeError::BlockLength { given: 3, expected: 4 }
    );
    assert_eq!(
        code.encode(&[5], &[&a, &a], &mut [&mut out[..2]]).unwrap_err(),
        EncodeError::BlockLength { given: 2, expected: 4 }
    );
    assert_eq!(
        code.encode(&[5, 6], &[&a, &a], &mut [&mut out]).unwrap_err(),
        EncodeError::OutputCount { given: 1, expected: 2 }
    );
    let mut more = [0u8; 4];
    assert_eq!(
        code.encoder().encode_run(u32::MAX, &[&a, &a], &mut [&mut out, &mut more]).unwrap_err(),
        EncodeError::IndexRange { first: u32::MAX, count: 2 }
    );
}

/// Every answer after a solve is that of a decoder without blocks, and it decodes the same segment again.
#[test]
fn a_decoder_that_gave_its_originals_is_as_before_the_first_block() {
    let (mut random, mut scratch) = (random(), Scratch::new());
    let stripes = Kind::ReedSolomon { data: 4, parity: 4 };
    for (kind, k) in [(Kind::Mix, 40), (Kind::Mix, 600), (LT_HALF, 100), (stripes, 12), (Kind::Replicated, 5)]
    {
        let code = Code::new(kind, k, 3).unwrap();
        let all: Vec<u32> = (0..code.end().unwrap_or(8 * k)).collect();
        let originals = payload(k, 65, &mut random);
        let mut decoder = Decoder::new(&code, 65);
        // Any blocks, then the originals as they are.
        for order in [shuffled(all.clone(), &mut random), all] {
            let blocks = encode(&code, &order, &originals);
            let mut kept = None;
            for (index, block) in order.iter().zip(blocks) {
                if decoder.push(*index, block.clone()).unwrap().1.is_none() {
                    kept = Some((*index, block));
                }
                while decoder.advance(|len| vec![0; len]) {}
            }
            let mut solved = Vec::new();
            decoder.solve_with(&mut scratch, 1, &mut solved).unwrap();
            assert!(solved == originals, "{code:?}");
            assert_eq!((decoder.kept(), decoder.rank(), decoder.missing()), (0, 0, k), "{code:?}");
            assert!((0..=k).all(|original| decoder.original(original).is_none()), "{code:?}");
            assert!(!decoder.advance(|_| panic!("there is nothing to sum")), "{code:?}");
            assert_eq!((decoder.cost(), decoder.folded()), (None, 0), "{code:?}");
            let nothing = decoder.solve_with(&mut scratch, 1, &mut solved);
            assert_eq!((nothing, solved.len()), (Err(DecodeError::Missing { missing: k }), k as usize));
            // A block that was kept is a new one, and is compared again.
            let (index, mut block) = kept.unwrap();
            assert_eq!(decoder.push(index, block.clone()).unwrap(), (Push::Innovative, None), "{code:?}");
            block[0] ^= 1;
            let differs = decoder.push(index, block).unwrap_err();
            assert_eq!(differs, DecodeError::Contradiction { index }, "{code:?}");
        }
        let mut solved = Vec::new();
        for (index, block) in (0..8 * k).zip(encode(&code, &Vec::from_iter(0..k), &originals)) {
            decoder.push(index, block).unwrap();
        }
        if decoder.solve_with(&mut scratch, 1, &mut solved).is_ok() {
            assert!(solved == originals && decoder.into_originals(0..k).is_none(), "{code:?}");
        }
    }
}

/// Originals that arrived as they are come back in the buffers that they came in, whatever came between them and however they are asked for.
#[test]
fn originals_that_are_here_are_given_back_in_order() {
    let mut random = random();
    for kind in [Kind::Mix, Kind::MixA] {
        let code = Code::new(kind, 140, 9).unwrap();
        let originals = payload(140, 10, &mut random);
        let arrived = || {
            let mut decoder = Decoder::new(&code, 10);
            // The first fifty backwards, one repair block after each.
            for (index, repair) in (0..50).rev().zip(200..) {
                for (index, block) in
                    [index, repair].into_iter().zip(encode(&code, &[index, repair], &originals))
                {
                    decoder.push(index, block).unwrap();
                }
            }
            decoder
        };
        assert!(arrived().into_originals(10..50).unwrap() == originals[10..50], "{kind:?}");
        assert_eq!(arrived().into_originals(7..7), Some(Vec::new()), "{kind:?}");
        assert_eq!(arrived().into_originals(10..51), None, "{kind:?}: one is not here");
        assert_eq!(arrived().into_originals(139..141), None, "{kind:?}: there are no more than K");
        let here = arrived().into_those_here(48..1000);
        assert_eq!(here.len(), 92, "{kind:?}");
        for (original, here) in (48..).zip(here) {
            let expected = (original < 50).then(|| originals[original].clone());
            assert_eq!(here, expected, "{kind:?}: {original}");
        }
        #[allow(clippy::reversed_empty_ranges, reason = "what a careless caller asks")]
        let reversed = 30..20;
        assert_eq!(arrived().into_those_here(reversed), Vec::<Option<Vec<u8>>>::new(), "{kind:?}");
    }
}

#[test]
fn memory_of_another_length_prepares_nothing() {
    let mut random = random();
    let code = Code::new(Kind::Mix, 140, 9).unwrap();
    let originals = payload(140, 10, &mut random);
    let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
    let mut calls = 0;
    let wrong = code.encoder().prepare(&views, |len| {
        calls += 1;
        vec![0; len + usize::from(calls == 3)]
    });
    assert_eq!(wrong.err(), Some(EncodeError::BlockLength { given: 11, expected: 10 }));
    let short = code.encoder().prepare(&views[1..], |len| vec![0; len]);
    assert_eq!(short.err(), Some(EncodeError::OriginalCount { given: 139, expected: 140 }));
}

/// Columns of some originals are in no block of others.
#[test]
fn a_prepared_encoder_makes_blocks_of_its_own_originals() {
    let mut random = random();
    let code = Code::new(Kind::Mix, 600, 9).unwrap();
    let encoder = code.encoder();
    let objects = [payload(600, 10, &mut random), payload(600, 10, &mut random)];
    let views = objects.each_ref().map(|object| object.iter().map(Vec::as_slice).collect::<Vec<&[u8]>>());
    let prepared = views.each_ref().map(|views| encoder.prepare(views, |len| vec![0; len]).unwrap());
    for index in [0, 599, 600, 700, 2000] {
        for (prepared, object) in prepared.iter().zip(&objects) {
            let mut made = vec![0; 10];
            prepared.encode_run(index, &mut [&mut made]).unwrap();
            assert_eq!(made, encode(&code, &[index], object)[0], "block {index}");
        }
    }
    let [a, _] = &prepared;
    let mut short = [0u8; 9];
    let wrong = a.encode_run(600, &mut [&mut short]);
    assert_eq!(wrong, Err(EncodeError::BlockLength { given: 9, expected: 10 }));
    let (mut one, mut other) = ([0u8; 10], [0u8; 10]);
    let wrong = a.encode_run(u32::MAX, &mut [&mut one, &mut other]);
    assert_eq!(wrong, Err(EncodeError::IndexRange { first: u32::MAX, count: 2 }));
}

#[test]
fn a_prepared_encoder_makes_the_same_blocks() {
    let mut random = random();
    for (kind, k) in
        [(Kind::Mix, 20), (Kind::Mix, 140), (Kind::Mix, 513), (LT_HALF, 64), (Kind::Replicated, 3)]
    {
        let code = Code::new(kind, k, 9).unwrap();
        let originals = payload(k, 100, &mut random);
        let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
        let prepared = code.encoder().prepare(&views, |len| vec![0xa5; len]).unwrap();
        for first in [0, k - 1, k, 3 * k, u32::MAX - 15] {
            let indices: Vec<u32> = (first..=first.saturating_add(15)).take(16).collect();
            let expected = encode(&code, &indices, &originals);
            let mut blocks = vec![vec![0; 100]; indices.len()];
            let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
            prepared.encode_run(first, &mut out).unwrap();
            assert!(blocks == expected, "{code:?} from {first}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The rank of a set has no order and is what a tracker that takes it one by one ends with.
    #[test]
    fn rank_of_equals_the_tracker(seed: u64, k in 1u32..700, kind in 0usize..3, share in 0.2f64..1.4) {
        let kind = [Kind::Replicated, LT_HALF, Kind::Mix][kind];
        let code = Code::new(kind, k, seed).unwrap();
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let count = (f64::from(k) * share) as usize;
        let indices = &shuffled((0..4 * k).collect(), &mut random)[..count];
        let mut tracker = RankTracker::new(&code);
        let mut innovative = 0;
        for index in indices {
            innovative += u32::from(tracker.push(*index) == Push::Innovative);
        }
        prop_assert_eq!(tracker.rank(), code.rank_of(&mut indices.iter().copied()));
        prop_assert_eq!(tracker.missing() == 0, tracker.rank() == k);
        prop_assert_eq!(tracker.missing() == 0, code.decodes(&mut indices.iter().copied()));
        prop_assert!(tracker.rank() + tracker.missing() <= k || kind != Kind::Mix);
        prop_assert!(kind != Kind::Mix || innovative == tracker.rank());
    }

    #[test]
    fn touched_by_equals_a_scan(seed: u64, k in 1u32..600, kind in 0usize..3, original: u32) {
        let code = Code::new([Kind::Replicated, LT_HALF, Kind::Mix][kind], k, seed).unwrap();
        let (original, stored) = (original % k, k / 2..3 * k);
        let scan: Vec<u32> =
            stored.clone().filter(|index| code.generator_row(*index)[original as usize] != 0).collect();
        prop_assert_eq!(code.touched_by(original, stored), scan);
    }
}
