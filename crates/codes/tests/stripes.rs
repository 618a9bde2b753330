//! Reed-Solomon under block indices: against elimination on the whole matrix, and against `mds`, whose deltas and chunks
//! must be the same bytes.

#![allow(clippy::unwrap_used, reason = "a test or a measurement fails by panicking")]

mod common;
use common::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::{
    mds,
    rateless::{Code, CodeError, DecodeError, Decoder, EncodeError, Kind, Push, RankTracker},
};

/// k, n - k, blocks a chunk.
const SHAPES: [(u32, u32, u32); 8] =
    [(1, 1, 1), (1, 3, 2), (4, 2, 1), (4, 2, 4), (6, 3, 3), (10, 4, 2), (16, 16, 4), (31, 1, 3)];

fn code((data, parity, blocks): (u32, u32, u32)) -> Code {
    Code::new(Kind::ReedSolomon { data, parity }, data * blocks, 7).unwrap()
}

#[test]
fn any_order_agrees_with_elimination_at_every_prefix() {
    let mut random = random();
    for shape in SHAPES {
        for len in [9, 40_000] {
            let (code, k) = (code(shape), shape.0 * shape.2);
            let originals = payload(k, len, &mut random);
            let end = code.end().unwrap();
            assert_eq!(end, (shape.0 + shape.1) * shape.2);
            let order = shuffled((0..end).collect(), &mut random);
            let blocks = encode(&code, &order, &originals);
            let (field, mut naive) = (Field::new(), Naive::new(k));
            let (mut decoder, mut tracker) = (Decoder::new(&code, len), RankTracker::new(&code));
            for (index, block) in order.into_iter().zip(blocks) {
                let row = code.generator_row(index);
                if len == 9 {
                    assert_eq!(block, field.combine(&row, &originals), "block {index} of {shape:?}");
                }
                let innovative = naive.push(row, if len == 9 { block.clone() } else { Vec::new() });
                let (push, back) = decoder.push(index, block).unwrap();
                assert_eq!(push == Push::Innovative, innovative, "block {index} of {shape:?}");
                assert_eq!((back.is_some(), tracker.push(index)), (!innovative, push));
                assert_eq!((decoder.rank(), decoder.missing()), (naive.rank(), k - naive.rank()));
                assert_eq!(tracker.rank(), naive.rank());
            }
            let threads = 1 + random.next_u32() as usize % 3;
            assert!(decoder.solve(threads).unwrap() == originals, "{shape:?}, blocks of {len} bytes");
        }
    }
}

/// A node that holds chunks forms and applies deltas with `mds`.
#[test]
fn chunks_are_those_of_mds() {
    let mut random = random();
    for shape in SHAPES {
        let (data, parity, blocks) = shape;
        let (code, len) = (code(shape), 4096);
        let stripe = mds::Code::new(mds::Kind::ReedSolomon, data as usize, parity as usize).unwrap();
        let mut originals = payload(data * blocks, len, &mut random);
        let parities: Vec<u32> = (data * blocks..code.end().unwrap()).collect();
        let chunks = |made: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            made.chunks(blocks as usize).map(|chunk| chunk.concat()).collect()
        };
        let mut held = chunks(encode(&code, &parities, &originals));
        let whole = chunks(originals.clone());
        let mut made = vec![vec![0; blocks as usize * len]; parity as usize];
        let sources: Vec<&[u8]> = whole.iter().map(Vec::as_slice).collect();
        stripe.encode(&sources, &mut made.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
        assert_eq!(held, made, "{shape:?}");
        // 100 bytes of the last data chunk change.
        let chunk = data as usize - 1;
        let range = len / 2..len / 2 + 100;
        let old = whole[chunk][range.clone()].to_vec();
        let mut new = old.clone();
        random.fill_bytes(&mut new);
        let chunk_len = blocks as usize * len;
        for (number, held) in held.iter_mut().enumerate() {
            let mut delta = vec![0; 100];
            let ranges = stripe.delta(chunk, range.start, chunk_len, &old, &new, number, &mut delta).unwrap();
            mds::apply(&ranges, &delta, held).unwrap();
        }
        originals[chunk * blocks as usize][range].copy_from_slice(&new);
        assert_eq!(held, chunks(encode(&code, &parities, &originals)), "{shape:?}: deltas");
    }
}

#[test]
fn there_is_no_block_behind_the_last() {
    let code = code((4, 2, 3));
    assert_eq!(code.end(), Some(18));
    assert_eq!((code.guard(), code.expected_extra()), (0, 0));
    let mut decoder = Decoder::new(&code, 4);
    for index in [18, 19, u32::MAX] {
        assert_eq!(decoder.push(index, vec![0; 4]).unwrap_err(), DecodeError::Stranger { index });
        assert!(code.generator_row(index).iter().all(|coefficient| *coefficient == 0));
        assert_eq!(RankTracker::new(&code).push(index), Push::Redundant);
        let (blocks, mut out) = (vec![&[0u8; 4][..]; 12], [0u8; 4]);
        let refused = code.encode(&[index], &blocks, &mut [&mut out]).unwrap_err();
        assert_eq!(refused, EncodeError::IndexRange { first: index, count: 1 });
    }
    assert!(code.touched_by(5, 0..40).into_iter().eq([5, 14, 17]));
    for (data, parity, k) in [(0, 1, 4), (4, 0, 4), (4, 2, 6), (200, 56, 200), (u32::MAX, 1, 8)] {
        let refused = Code::new(Kind::ReedSolomon { data, parity }, k, 1).unwrap_err();
        assert_eq!(refused, CodeError::Chunks { data, parity, k });
    }
    assert!(Code::checked(Kind::ReedSolomon { data: 4, parity: 2 }, 12, 1, 12).is_ok());
}

#[test]
fn what_patterns_of_lost_chunks_leave() {
    let code = code((4, 2, 3));
    let chunks: Vec<Vec<u32>> = (0..6).map(|chunk| (chunk * 3..chunk * 3 + 3).collect()).collect();
    let groups: Vec<&[u32]> = chunks.iter().map(Vec::as_slice).collect();
    let ranks = code.ranks_without(&groups, &[&[0, 1], &[4, 5], &[0, 1, 2], &[]]);
    assert_eq!(ranks, [12, 12, 9, 12]);
}

#[test]
fn the_same_block_can_be_asked_for_twice_and_a_decoder_be_used_again() {
    let mut random = Pcg64Mcg::seed_from_u64(3);
    let (code, other) = (code((4, 2, 3)), code((6, 3, 2)));
    let originals = payload(12, 30, &mut random);
    let twice = encode(&code, &[14, 12, 14, 3, 17, 3, 14], &originals);
    assert_eq!(twice[0], twice[2]);
    assert_eq!((&twice[0], &twice[3]), (&twice[6], &originals[3]));
    let mut decoder = Decoder::new(&code, 30);
    for code in [&code, &other, &code] {
        decoder.reset(code, 30);
        let order = shuffled((0..code.end().unwrap()).collect(), &mut random);
        for (index, block) in order.iter().zip(encode(code, &order, &originals)) {
            decoder.push(*index, block).unwrap();
        }
        let mut solved = Vec::new();
        decoder.solve_with(&mut steadfast_codes::rateless::Scratch::new(), 1, &mut solved).unwrap();
        assert!(solved == originals);
    }
}
