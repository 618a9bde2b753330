//! What a caller who brings buffers still makes the allocator do: counted.

use super::{Code, Decoder, Encoder, Kind, Push, Scratch};
use crate::kernel::{counting::allocations, sums::SCRATCH_BYTES};

const K: u32 = 1024;
const LEN: usize = 8192;

fn originals() -> Vec<Vec<u8>> {
    (0..K).map(|block| (0..LEN).map(|at| (block as usize * 31 + at * 7) as u8).collect()).collect()
}

/// Allocations of `work`.
fn counted<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = allocations();
    let done = work();
    (allocations() - before, done)
}

/// Decodes in the same buffers again and again, folding as blocks come and some of them twice: allocations of all pushes
/// and advances, and of the solve.
fn decodes(kind: Kind, indices: &[u32], times: usize) -> Vec<(usize, usize)> {
    let code = Code::new(kind, K, 3).unwrap();
    let originals = originals();
    let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
    let mut scratch = Scratch::new();
    let mut decoder = Decoder::new(&code, LEN);
    let mut coded = vec![vec![0; LEN]; indices.len()];
    let (mut solved, mut sums) = (Vec::new(), Vec::new());
    let mut counts = Vec::new();
    for _ in 0..times {
        let mut outs: Vec<&mut [u8]> = coded.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(indices, &views, &mut outs).unwrap();
        let mut blocks = coded.clone().into_iter();
        let mut copies = coded.iter().step_by(7).cloned().collect::<Vec<_>>().into_iter();
        sums.resize_with(code.parity_count(), || vec![0; LEN]);
        let (pushes, ()) = counted(|| {
            decoder.reset(&code, LEN);
            for (place, index) in indices.iter().enumerate() {
                if decoder.missing() == 0 {
                    break;
                }
                decoder.push(*index, blocks.next().unwrap()).unwrap();
                while decoder.advance(|_| sums.pop().unwrap()) {}
                if place.is_multiple_of(7) {
                    let again = decoder.push(*index, copies.next().unwrap()).unwrap();
                    assert!(again.0 == Push::Duplicate && again.1.is_some());
                }
            }
        });
        solved.clear();
        let (solve, outcome) = counted(|| decoder.solve_with(&mut scratch, 1, &mut solved));
        outcome.unwrap();
        assert!(solved == originals, "decoded wrong bytes");
        counts.push((pushes, solve));
    }
    counts
}

#[test]
fn blocks_are_taken_and_originals_given_back_without_allocations() {
    for kind in [Kind::Mix, Kind::MixA, Kind::MixC] {
        let any_order: Vec<u32> =
            (0..K).chain(K..2 * K).rev().step_by(2).chain((0..2 * K).step_by(2)).collect();
        let counts = decodes(kind, &any_order, 3);
        // The plan is all there is: far fewer pieces than blocks.
        let plans = counts[1..].iter();
        assert!(plans.clone().all(|(pushes, solve)| *pushes == 0 && (1..400).contains(solve)), "{counts:?}");
        // Far out, where a writer goes on without end.
        let far: Vec<u32> = (9 * K..10 * K).rev().step_by(3).chain(0..K).collect();
        let counts = decodes(kind, &far, 3);
        assert!(counts[1..].iter().all(|(pushes, _)| *pushes == 0), "{counts:?}");
        let originals_last: Vec<u32> = (K..K + 9).chain((0..K).rev()).collect();
        let counts = decodes(kind, &originals_last, 3);
        assert!(counts[1..].iter().all(|(pushes, _)| *pushes == 0), "{counts:?}");
        let plain: Vec<u32> = (0..K).rev().collect();
        let counts = decodes(kind, &plain, 3);
        assert!(counts[1..].iter().all(|count| *count == (0, 0)), "{counts:?}");
    }
}

/// What the decoder and [`Scratch`] say of it.
#[test]
fn the_strips_of_a_solve_stay_below_their_bound() {
    for (kind, k, threads) in [(Kind::Mix, 1024, 1), (Kind::MixC, 2048, 2)] {
        let (code, mut scratch) = (Code::new(kind, k, 3).unwrap(), Scratch::new());
        let originals = vec![vec![1; LEN]; k as usize];
        let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
        let indices: Vec<u32> = (k / 8..5 * k / 4).collect();
        let mut blocks = vec![vec![0; LEN]; indices.len()];
        let mut outs: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&indices, &views, &mut outs).unwrap();
        let mut decoder = Decoder::new(&code, LEN);
        for (index, block) in indices.into_iter().zip(blocks) {
            decoder.push(index, block).unwrap();
        }
        let (_, _, sums) = decoder.cost().unwrap();
        decoder.solve_with(&mut scratch, threads, &mut Vec::new()).unwrap();
        let bytes = scratch.strip_bytes();
        println!("{kind:?} of {k}: {sums} sums, strips of {bytes:?} bytes");
        assert_eq!(bytes.len(), threads);
        // A thread that came too late has done nothing.
        let used: Vec<usize> = bytes.into_iter().filter(|bytes| *bytes > 0).collect();
        assert!(!used.is_empty());
        assert!(used.iter().all(|bytes| (256 * sums..=SCRATCH_BYTES).contains(bytes)), "{used:?}");
    }
}

#[test]
fn a_decoder_takes_segments_of_other_codes_after_a_reset() {
    let mut scratch = Scratch::new();
    let mut decoder = Decoder::new(&Code::new(Kind::Replicated, 1, 1).unwrap(), 0);
    for (kind, k) in [(Kind::Mix, 600), (Kind::Mix, 40), (Kind::MixA, 600), (Kind::Mix, 40), (Kind::Mix, 200)]
    {
        for seed in 0..2 {
            let code = Code::new(kind, k, seed).unwrap();
            let originals = &originals()[..k as usize];
            let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
            decoder.reset(&code, LEN);
            let mut index = k / 2;
            while decoder.missing() > 0 {
                let mut block = vec![0; LEN];
                code.encode(&[index], &views, &mut [&mut block]).unwrap();
                decoder.push(index, block).unwrap();
                index += 1;
            }
            let mut solved = Vec::new();
            decoder.solve_with(&mut scratch, 2, &mut solved).unwrap();
            assert_eq!(solved, originals, "{kind:?} {k}");
            // Nothing is left to solve.
            assert!(decoder.solve_with(&mut scratch, 1, &mut solved).is_err());
        }
    }
}

#[test]
fn encoding_allocates_its_list_of_sums_only() {
    let code = Code::new(Kind::Mix, K, 3).unwrap();
    let originals = originals();
    let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
    let prepared = Encoder::new(&code).prepare(&views, |len| vec![0; len]).unwrap();
    let (mut scratch, mut out) = (Scratch::new(), vec![vec![0; LEN]; 16]);
    let mut outs: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    let mut run = |first| {
        let (count, done) = counted(|| prepared.encode_run_with(&mut scratch, first, &mut outs));
        done.unwrap();
        count
    };
    run(K);
    let second = run(K + 16);
    assert!(second < 120, "{second} allocations for sixteen blocks");
}
