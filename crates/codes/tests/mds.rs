//! The MDS codes against plain re-computation: every erasure pattern of small shapes, random ones of large shapes,
//! each tier, deltas against a second encoding, and bad input.
#![allow(clippy::unwrap_used)] // a test stops at the first thing that is wrong

use steadfast_codes::kernel::Tier;
use steadfast_codes::mds::{Code, Kind, MdsError, apply, fold};

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn views(chunks: &[Vec<u8>]) -> Vec<&[u8]> {
    chunks.iter().map(Vec::as_slice).collect()
}

/// All k + m chunks of random data.
fn encoded(code: &Code, seed: u64, len: usize) -> Vec<Vec<u8>> {
    let mut chunks: Vec<Vec<u8>> = (0..code.k() as u64).map(|at| bytes(seed * 1000 + at, len)).collect();
    let mut parity = vec![vec![0xa5; len]; code.m()];
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&views(&chunks), &mut outputs).unwrap();
    chunks.extend(parity);
    chunks
}

/// Reconstructs every chunk outside `kept` from those in it, in one call, and compares.
fn reconstructs(code: &Code, tier: Tier, chunks: &[Vec<u8>], kept: &[usize]) {
    let available: Vec<(usize, &[u8])> = kept.iter().map(|at| (*at, chunks[*at].as_slice())).collect();
    let lost: Vec<usize> = (0..chunks.len()).filter(|at| !kept.contains(at)).collect();
    let mut out = vec![vec![0x5a; chunks[0].len()]; lost.len()];
    let mut wanted: Vec<(usize, &mut [u8])> =
        lost.iter().copied().zip(out.iter_mut().map(Vec::as_mut_slice)).collect();
    code.reconstruct_at(tier, &available, &mut wanted).unwrap();
    for (at, out) in lost.iter().zip(&out) {
        assert!(*out == chunks[*at], "{:?} {}+{}: chunk {at} from {kept:?}", code.kind(), code.k(), code.m());
    }
}

fn shapes() -> Vec<Code> {
    let small = |kind| (1..=6).flat_map(move |k| (1..=4).map(move |m| (kind, k, m)));
    let mut shapes: Vec<(Kind, usize, usize)> = small(Kind::ReedSolomon).collect();
    shapes.extend(small(Kind::Cauchy));
    shapes.extend((1..=11).map(|k| (Kind::Rdp, k, 2)));
    shapes.into_iter().map(|(kind, k, m)| Code::new(kind, k, m).unwrap()).collect()
}

#[test]
fn every_set_of_k_chunks_gives_all_others() {
    for code in shapes() {
        let n = code.k() + code.m();
        let chunks = encoded(&code, 7, code.chunk_multiple() * 37);
        for kept in 0u32..1 << n {
            if kept.count_ones() as usize >= code.k() {
                let kept: Vec<usize> = (0..n).filter(|at| kept & 1 << at != 0).collect();
                reconstructs(&code, Tier::detect(), &chunks, &kept);
            }
        }
    }
}

#[test]
fn every_tier_encodes_and_reconstructs_alike() {
    for code in shapes() {
        let n = code.k() + code.m();
        for length in [0, 1, 8, 65, 129, 1000] {
            let chunks = encoded(&code, 8, code.chunk_multiple() * length);
            for &tier in Tier::available() {
                let mut parity = vec![vec![1; chunks[0].len()]; code.m()];
                let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                code.encode_at(tier, &views(&chunks[..code.k()]), &mut outputs).unwrap();
                assert!(parity == chunks[code.k()..], "{tier:?}, {} + {}", code.k(), code.m());
                let kept: Vec<usize> = (code.m()..n).collect();
                reconstructs(&code, tier, &chunks, &kept);
            }
        }
    }
}

#[test]
fn a_delta_does_what_encoding_again_does() {
    for code in shapes() {
        let len = code.chunk_multiple() * 40;
        let before = encoded(&code, 9, len);
        let mut after = before.clone();
        let mut parity = before[code.k()..].to_vec();
        let mut seed = 0;
        for (data, chunk) in after.iter_mut().enumerate().take(code.k()) {
            for (start, end) in [(0, len), (3, 17), (len / 2 - 5, len / 2 + 9), (len - 1, len), (5, 5)] {
                seed += 1;
                let (old, new) = (chunk[start..end].to_vec(), bytes(seed, end - start));
                for (at, parity) in parity.iter_mut().enumerate() {
                    let ranges = code.delta_ranges(data, start..end, len, at).unwrap();
                    let mut out = vec![0; ranges.total()];
                    assert_eq!(code.delta(data, start, len, &old, &new, at, &mut out).unwrap(), ranges);
                    apply(&ranges, &out, parity).unwrap();
                }
                chunk[start..end].copy_from_slice(&new);
            }
        }
        assert!(code.verify(&views(&after[..code.k()]), &views(&parity)).unwrap(), "{code:?}");
        assert!(!code.verify(&views(&before[..code.k()]), &views(&parity)).unwrap(), "{code:?}");
        assert!(code.verify(&views(&before[..code.k()]), &views(&before[code.k()..])).unwrap());
    }
}

#[test]
fn folded_deltas_do_what_they_do_one_by_one() {
    for code in shapes() {
        let len = code.chunk_multiple() * 40;
        let mut parity = bytes(1, len);
        let mut deltas = Vec::new();
        for (seed, (start, end)) in [(0, 9), (4, 20), (20, 30), (35, 36), (5, 5)].into_iter().enumerate() {
            let (old, new) = (bytes(seed as u64 + 5, end - start), bytes(seed as u64 + 50, end - start));
            let ranges = code.delta_ranges(0, start..end, len, code.m() - 1).unwrap();
            let mut out = vec![0; ranges.total()];
            code.delta(0, start, len, &old, &new, code.m() - 1, &mut out).unwrap();
            deltas.push((ranges, out));
        }
        let deltas: Vec<_> = deltas.iter().map(|(ranges, out)| (ranges, out.as_slice())).collect();
        let (ranges, bytes) = fold(&deltas).unwrap();
        let mut folded = parity.clone();
        apply(&ranges, &bytes, &mut folded).unwrap();
        for (ranges, bytes) in &deltas {
            apply(ranges, bytes, &mut parity).unwrap();
        }
        assert!(parity == folded);
        assert!(ranges.as_slice().is_sorted_by(|a, b| a.end < b.start), "ranges that touch are one");
    }
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    for (k, m) in [(0, 1), (1, 0), (200, 56), (usize::MAX, 2)] {
        let refused = Code::new(Kind::ReedSolomon, k, m);
        assert_eq!(refused.unwrap_err(), MdsError::Parameters { kind: Kind::ReedSolomon, k, m });
    }
}
