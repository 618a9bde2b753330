//! The MDS codes against plain re-computation: every erasure pattern of small shapes, random ones of large shapes,
//! each tier, deltas against a second encoding, and bad input.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

use proptest::prelude::*;
use steadfast_codes::kernel::Tier;
use steadfast_codes::mds::{Code, DeltaRanges, Kind, MdsError, apply, fold};

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

/// A change to any coefficient, schedule or packet is a change of the format on disk: parity written before would decode to other bytes.
#[test]
fn the_parity_of_a_code_is_fixed() {
    let digest = |(kind, k, m)| {
        let code = Code::new(kind, k, m).unwrap();
        // Whole blocks of packets, and a last one that is short.
        let chunks = encoded(&code, 3, code.chunk_multiple() * 777);
        chunks[k..].iter().flatten().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let codes = [
        (Kind::ReedSolomon, 4, 2),
        (Kind::ReedSolomon, 10, 4),
        (Kind::ReedSolomon, 223, 32),
        (Kind::Cauchy, 10, 2),
        (Kind::Cauchy, 6, 3),
        (Kind::Cauchy, 20, 6),
        (Kind::Rdp, 10, 2),
        (Kind::Rdp, 17, 2),
        (Kind::Rdp, 60, 2),
    ];
    let fixed = [
        10243140946661120314,
        374609874599897833,
        12435235423663110490,
        10142626801076117281,
        16788107407642715767,
        723699410828904769,
        18264542269287981871,
        18378210868843224918,
        8659120863045910766,
    ];
    assert_eq!(codes.map(digest), fixed);
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

/// Two parities have ways of their own for each pair of losses, and for what is wanted of it.
#[test]
fn any_two_lost_chunks_of_wide_codes_come_back_alone_and_together() {
    for (kind, k, step) in
        [(Kind::Cauchy, 26, 1), (Kind::Cauchy, 253, 23), (Kind::Rdp, 16, 1), (Kind::ReedSolomon, 26, 1)]
    {
        let code = Code::new(kind, k, 2).unwrap();
        let multiple = code.chunk_multiple();
        // A whole block, and a short one.
        let chunks = encoded(&code, 10, multiple * (64 + 5));
        for first in 0..k + 2 {
            // The pairs that are far apart in steps, those next to each other all.
            for second in
                (first + 1..k + 2).filter(|second| second - first < 3 || (second - first) % step == 1 % step)
            {
                let kept = (0..k + 2).filter(|chunk| ![first, second].contains(chunk));
                let available: Vec<(usize, &[u8])> = kept.map(|chunk| (chunk, &*chunks[chunk])).collect();
                for wanted in [&[first][..], &[second], &[first, second], &[second, first]] {
                    let mut out = vec![vec![0x5a; chunks[0].len()]; wanted.len()];
                    let mut places: Vec<(usize, &mut [u8])> =
                        wanted.iter().copied().zip(out.iter_mut().map(Vec::as_mut_slice)).collect();
                    code.reconstruct(&available, &mut places).unwrap();
                    for (chunk, out) in wanted.iter().zip(&out) {
                        assert!(*out == chunks[*chunk], "{kind:?} {k}: {chunk} of {first} and {second}");
                    }
                }
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
fn strips_are_the_chunks_in_order() {
    let large = [(Kind::ReedSolomon, 5, 3), (Kind::Cauchy, 5, 2), (Kind::Cauchy, 5, 3), (Kind::Rdp, 20, 2)];
    let large = large.map(|(kind, k, m)| (Code::new(kind, k, m).unwrap(), 5003));
    for (code, units) in shapes().into_iter().map(|code| (code, 3)).chain(large) {
        let k = code.k();
        let chunks = encoded(&code, 12, code.chunk_multiple() * units);
        let mut parity = vec![vec![0; chunks[0].len()]; code.m()];
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        let mut reached = 0;
        let strip = |range: std::ops::Range<usize>, data: &[&[u8]], made: &[&mut [u8]]| {
            assert_eq!(range.start, reached);
            reached = range.end;
            let data = data.iter().map(|strip| &**strip).chain(made.iter().map(|strip| &**strip));
            assert_eq!(data.clone().count(), chunks.len());
            assert!(data.zip(&chunks).all(|(strip, chunk)| *strip == chunk[range.clone()]));
        };
        code.encode_strips(&views(&chunks[..k]), &mut outputs, strip).unwrap();
        assert_eq!(reached, chunks[0].len());
        assert!(parity == chunks[k..]);
        let short = code.encode_strips(&views(&chunks[..k - 1]), &mut [], |_, _, _| panic!("bad counts"));
        assert_eq!(short, Err(MdsError::Count { given: k - 1, expected: k }));
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
                let total = |at| code.delta_ranges(data, start..end, len, at).unwrap().total();
                let mut all: Vec<Vec<u8>> = (0..code.m()).map(|at| vec![0xb4; total(at)]).collect();
                let mut outs: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
                code.deltas(data, start, len, &old, &new, &mut outs).unwrap();
                for (at, parity) in parity.iter_mut().enumerate() {
                    let ranges = code.delta_ranges(data, start..end, len, at).unwrap();
                    let mut out = vec![0; ranges.total()];
                    assert_eq!(code.delta(data, start, len, &old, &new, at, &mut out).unwrap(), ranges);
                    assert!(out == all[at], "all at once");
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

/// However many blocks are written, ranges are found from the blocks at their ends alone.
#[test]
fn writes_of_any_length_have_their_ranges_at_once() {
    let wide = [(Kind::Cauchy, 3, 3), (Kind::Cauchy, 20, 6), (Kind::Rdp, 47, 2), (Kind::Rdp, 253, 2)];
    for (kind, k, m) in wide.into_iter().chain([(Kind::Cauchy, 3, 2), (Kind::Rdp, 16, 2)]) {
        let code = Code::new(kind, k, m).unwrap();
        for len in
            [1 << 60, isize::MAX as usize].map(|len| len / code.chunk_multiple() * code.chunk_multiple())
        {
            for (data, parity) in [(0, 0), (0, 1), (k - 1, 1), (k - 1, m - 1)] {
                let whole = code.delta_ranges(data, 0..len, len, parity).unwrap();
                assert_eq!(whole.as_slice(), std::slice::from_ref(&(0..len)), "{code:?}: {parity}");
                let most = code.delta_ranges(data, 5..len - 7, len, parity).unwrap();
                assert!(
                    most.total() >= len - (1 << 17) && most.as_slice().iter().all(|range| range.end <= len)
                );
            }
        }
        // Those of a few blocks are those of each of its bytes.
        let len = (70_000 / code.chunk_multiple() + 5) * code.chunk_multiple();
        for (data, range) in [(0, 3..len - 5), (k - 1, len / 2 - 2000..len / 2 + 2500), (0, len - 3000..len)]
        {
            let mut touched = vec![false; len];
            for byte in range.clone() {
                for range in code.delta_ranges(data, byte..byte + 1, len, m - 1).unwrap().as_slice() {
                    touched[range.clone()].fill(true);
                }
            }
            let all = code.delta_ranges(data, range, len, m - 1).unwrap();
            assert_eq!(all.total(), touched.iter().filter(|touched| **touched).count(), "{code:?}");
            assert!(all.as_slice().iter().all(|range| touched[range.clone()].iter().all(|touched| *touched)));
        }
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
fn ranges_are_reconstructed_like_whole_chunks() {
    for code in shapes() {
        let n = code.k() + code.m();
        let len = code.chunk_multiple() * 300;
        let chunks = encoded(&code, 10, len);
        let kept: Vec<usize> = (0..n).filter(|at| (at + code.k()) % n < code.k()).collect();
        let last = len - 1;
        for range in
            [0..len, 0..1, last..len, 5..5, len / 3..len / 2, len / 2 - 3..len / 2 + 70, 250..350.min(len)]
        {
            let read = code.source_range(len, range.clone()).unwrap();
            let available: Vec<(usize, &[u8])> =
                kept.iter().map(|at| (*at, &chunks[*at][read.clone()])).collect();
            let mut out = vec![vec![0x5a; range.len()]; n];
            // Lost chunks and kept ones alike.
            let mut wanted: Vec<(usize, &mut [u8])> =
                out.iter_mut().map(Vec::as_mut_slice).enumerate().take(code.m() + 1).collect();
            code.reconstruct_range(&available, len, range.clone(), &mut wanted).unwrap();
            for (at, out) in out.iter().enumerate().take(code.m() + 1) {
                assert!(*out == chunks[at][range.clone()], "{:?} {} {range:?}", code.kind(), code.k());
            }
        }
    }
}

#[test]
fn large_codes_lose_any_m_chunks() {
    let shapes = [
        (Kind::ReedSolomon, 223, 32),
        (Kind::ReedSolomon, 32, 8),
        (Kind::ReedSolomon, 1, 254),
        (Kind::ReedSolomon, 254, 1),
        (Kind::Cauchy, 20, 6),
        (Kind::Cauchy, 253, 2),
        (Kind::Rdp, 16, 2),
        (Kind::Rdp, 47, 2),
    ];
    for (kind, k, m) in shapes {
        let code = Code::new(kind, k, m).unwrap();
        for seed in 0..8 {
            let chunks = encoded(&code, seed, code.chunk_multiple() * 21);
            let mut order: Vec<usize> = (0..k + m).collect();
            let keys = bytes(seed + 31, k + m);
            order.sort_by_key(|at| (keys[*at], *at));
            reconstructs(&code, Tier::detect(), &chunks, &order[..k]);
        }
    }
}

#[test]
fn chunks_larger_than_the_caches_come_out_alike_at_every_tier() {
    for (kind, k, m) in [(Kind::ReedSolomon, 3, 2), (Kind::Cauchy, 3, 3), (Kind::Rdp, 5, 2)] {
        let code = Code::new(kind, k, m).unwrap();
        let chunks = encoded(&code, 11, code.chunk_multiple() * 27_001);
        for &tier in Tier::available() {
            reconstructs(&code, tier, &chunks, &Vec::from_iter(m..k + m));
        }
        assert!(code.verify(&views(&chunks[..k]), &views(&chunks[k..])).unwrap());
        for at in [0, chunks[0].len() / 2, chunks[0].len() - 1] {
            let mut parity = chunks[k..].to_vec();
            parity[m - 1][at] ^= 1;
            assert!(!code.verify(&views(&chunks[..k]), &views(&parity)).unwrap(), "one bit at {at}");
        }
    }
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    use Kind::{Cauchy, Rdp, ReedSolomon};
    let shapes = [
        (ReedSolomon, 0, 1),
        (ReedSolomon, 1, 0),
        (ReedSolomon, 200, 56),
        (ReedSolomon, usize::MAX, 2),
        (Cauchy, 0, 3),
        (Cauchy, 252, 4),
        (Cauchy, 3, usize::MAX),
        (Rdp, 0, 2),
        (Rdp, 4, 1),
        (Rdp, 4, 3),
        (Rdp, 254, 2),
        (Rdp, usize::MAX, 2),
    ];
    for (kind, k, m) in shapes {
        assert_eq!(Code::new(kind, k, m).unwrap_err(), MdsError::Parameters { kind, k, m });
    }
    for (kind, multiple) in [(ReedSolomon, 1), (Cauchy, 8), (Rdp, 4)] {
        let code = Code::new(kind, 3, 2).unwrap();
        assert_eq!(code.chunk_multiple(), multiple);
        let len = multiple * 6;
        let chunks = encoded(&code, 1, len);
        let data = views(&chunks[..3]);
        let encode = |data: &[&[u8]], lens: &[usize]| {
            let mut parity: Vec<Vec<u8>> = lens.iter().map(|len| vec![7; *len]).collect();
            let done = code.encode(data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            assert!(done.is_ok() || parity.iter().flatten().all(|byte| *byte == 7), "nothing written");
            done
        };
        assert_eq!(encode(&data[..2], &[len; 2]), Err(MdsError::Count { given: 2, expected: 3 }));
        assert_eq!(encode(&data, &[len; 3]), Err(MdsError::Count { given: 3, expected: 2 }));
        assert_eq!(encode(&[], &[len; 2]), Err(MdsError::Count { given: 0, expected: 3 }));
        let short = [data[0], data[1], &data[2][1..]];
        let length = Err(MdsError::Length { given: len - 1, expected: len });
        assert_eq!(encode(&short, &[len; 2]), length);
        assert_eq!(encode(&data, &[len, len - 1]), length);
        if multiple > 1 {
            let odd: Vec<&[u8]> = data.iter().map(|chunk| &chunk[1..]).collect();
            assert_eq!(encode(&odd, &[len - 1; 2]), Err(MdsError::Multiple { length: len - 1, multiple }));
        }
        assert_eq!(encode(&[&[], &[], &[]], &[0, 0]), Ok(()));

        assert_eq!(code.plan(&[0, 1], &[2]).unwrap_err(), MdsError::TooFew { given: 2, needed: 3 });
        assert_eq!(code.plan(&[0, 1, 1], &[2]).unwrap_err(), MdsError::Duplicate { chunk: 1 });
        assert_eq!(code.plan(&[0, 1, 3], &[2, 2]).unwrap_err(), MdsError::Duplicate { chunk: 2 });
        assert_eq!(code.plan(&[0, 1, 5], &[2]).unwrap_err(), MdsError::NoSuchChunk { chunk: 5, count: 5 });
        let strange = code.plan(&[0, 1, 3], &[usize::MAX]).unwrap_err();
        assert_eq!(strange, MdsError::NoSuchChunk { chunk: usize::MAX, count: 5 });
        let plan = code.plan(&[0, 1, 3], &[2]).unwrap();
        let mut out = vec![0; len];
        let slices = [data[0], data[1], &chunks[3]];
        plan.run(&slices, &mut [&mut out]).unwrap();
        assert!(out == chunks[2]);
        assert_eq!(plan.run(&slices[..2], &mut [&mut out]), Err(MdsError::Count { given: 2, expected: 3 }));
        assert_eq!(plan.run(&slices, &mut []), Err(MdsError::Count { given: 0, expected: 1 }));
        assert_eq!(
            plan.run(&[data[0], data[1], &chunks[3][1..]], &mut [&mut out]),
            Err(MdsError::Length { given: len - 1, expected: len })
        );
        code.plan(&[0, 1, 3], &[]).unwrap().run(&slices, &mut []).unwrap();
        // The same of a range, of which nothing is written then either.
        let mut scratch = Vec::new();
        let mut part = |sources: &[&[u8]], room: usize| {
            let mut out = vec![7; room];
            let done = plan.run_range(len, 0..len - 1, sources, &mut scratch, &mut [&mut out]);
            assert!(if done.is_ok() { out == chunks[2][..len - 1] } else { out == vec![7; room] });
            done
        };
        let read = code.source_range(len, 0..len - 1).unwrap();
        let parts = slices.map(|slice| &slice[read.clone()]);
        assert_eq!(part(&parts, len - 1), Ok(()));
        assert_eq!(part(&parts[..2], len - 1), Err(MdsError::Count { given: 2, expected: 3 }));
        assert_eq!(part(&parts, len), Err(MdsError::Length { given: len, expected: len - 1 }));
        let short = [parts[0], parts[1], &parts[2][1..]];
        let shorter = MdsError::Length { given: read.len() - 1, expected: read.len() };
        assert_eq!(part(&short, len - 1), Err(shorter));
        assert!(plan.run_range(len, 2..len + 1, &parts, &mut Vec::new(), &mut [&mut out]).is_err());

        let available: Vec<(usize, &[u8])> = vec![(0, data[0]), (1, data[1]), (3, &chunks[3])];
        let range = |chunk_len, range, out: &mut [u8]| {
            code.reconstruct_range(&available, chunk_len, range, &mut [(2, out)])
        };
        assert_eq!(
            range(len, 2..len + 1, &mut out),
            Err(MdsError::Range { start: 2, end: len + 1, length: len })
        );
        let reversed = std::ops::Range { start: 3, end: 2 };
        assert_eq!(range(len, reversed, &mut out), Err(MdsError::Range { start: 3, end: 2, length: len }));
        assert!(matches!(range(len, 0..2, &mut out), Err(MdsError::Length { .. })));

        let delta = |data, start, old: &[u8], new: &[u8], parity, room| {
            code.delta(data, start, len, old, new, parity, &mut vec![0; room]).map(|ranges| ranges.total())
        };
        assert_eq!(delta(3, 0, &[1], &[2], 0, 1), Err(MdsError::NoSuchChunk { chunk: 3, count: 3 }));
        assert_eq!(delta(0, 0, &[1], &[2], 2, 1), Err(MdsError::NoSuchChunk { chunk: 2, count: 2 }));
        assert_eq!(delta(0, 0, &[1], &[2, 3], 0, 1), Err(MdsError::Length { given: 2, expected: 1 }));
        assert_eq!(delta(0, 0, &[1], &[2], 0, 2), Err(MdsError::Length { given: 2, expected: 1 }));
        assert_eq!(
            delta(0, len, &[1], &[2], 0, 1),
            Err(MdsError::Range { start: len, end: len + 1, length: len })
        );
        assert!(delta(0, usize::MAX, &[1], &[2], 0, 1).is_err());
        let long = [isize::MAX as usize + 1, usize::MAX].map(|length| length / multiple * multiple);
        for length in long.into_iter().filter(|length| *length > isize::MAX as usize) {
            let (end, too_long) = (length - 1..length, MdsError::TooLong { length });
            assert_eq!(code.source_range(length, end.clone()).unwrap_err(), too_long);
            assert_eq!(code.delta_ranges(0, end.clone(), length, 1).unwrap_err(), too_long);
            assert_eq!(code.delta(0, end.start, length, &[1], &[2], 1, &mut [0]).unwrap_err(), too_long);
            let mut outs = [[0], [0]];
            let mut views: Vec<&mut [u8]> = outs.iter_mut().map(|out| &mut out[..]).collect();
            assert_eq!(code.deltas(0, end.start, length, &[1], &[2], &mut views).unwrap_err(), too_long);
        }
        let deltas = |data, start, old: &[u8], new: &[u8], rooms: &[usize]| {
            let mut outs: Vec<Vec<u8>> = rooms.iter().map(|room| vec![9; *room]).collect();
            let mut views: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
            let done = code.deltas(data, start, len, old, new, &mut views);
            assert!(done.is_ok() || outs.iter().flatten().all(|byte| *byte == 9), "nothing written");
            done
        };
        let fits = [0, 1].map(|at| code.delta_ranges(0, 0..1, len, at).unwrap().total());
        assert_eq!(deltas(0, 0, &[1], &[2], &fits), Ok(()));
        assert_eq!(deltas(3, 0, &[1], &[2], &fits), Err(MdsError::NoSuchChunk { chunk: 3, count: 3 }));
        assert_eq!(deltas(0, 0, &[1], &[2], &fits[..1]), Err(MdsError::Count { given: 1, expected: 2 }));
        assert!(matches!(deltas(0, 0, &[1], &[2, 3], &fits), Err(MdsError::Length { .. })));
        assert!(matches!(deltas(0, 0, &[1], &[2], &[1, fits[1] + 1]), Err(MdsError::Length { .. })));
        assert!(matches!(deltas(0, len, &[1], &[2], &fits), Err(MdsError::Range { .. })));
        let ranges = code.delta_ranges(0, 0..2, len, 0).unwrap();
        let mut chunk = vec![3; len];
        assert_eq!(apply(&ranges, &[1], &mut chunk), Err(MdsError::Length { given: 1, expected: 2 }));
        assert!(matches!(apply(&ranges, &[1, 2], &mut chunk[..1]), Err(MdsError::Range { .. })));
        assert!(chunk.iter().all(|byte| *byte == 3), "nothing written");
        assert_eq!(fold(&[(&ranges, &[1])]).unwrap_err(), MdsError::Length { given: 1, expected: 2 });
    }
    assert_eq!(DeltaRanges::new(vec![0..4, 3..6], 9).unwrap_err(), MdsError::Overlap { at: 3 });
    assert_eq!(DeltaRanges::new(vec![3..6, 0..2], 9).unwrap_err(), MdsError::Overlap { at: 0 });
    assert!(
        DeltaRanges::new(vec![0..4, 5..10], 9).is_err() && DeltaRanges::new(vec![0..1, 4..4], 9).is_err()
    );
    assert_eq!(DeltaRanges::new(vec![0..4, 4..9], 9).unwrap().total(), 9);
}

proptest! {
    /// Any request at all is answered with an error or with the right bytes.
    #[test]
    fn any_list_of_chunks_is_refused_or_gives_the_bytes(
        kind in prop::sample::select(vec![Kind::ReedSolomon, Kind::Cauchy, Kind::Rdp]),
        k in 1usize..12,
        m in 1usize..5,
        units in 0usize..40,
        list in prop::collection::vec(0usize..16, 0..16),
        wanted in prop::collection::vec(0usize..16, 0..5),
        seed in any::<u64>(),
    ) {
        let m = if kind == Kind::Rdp { 2 } else { m };
        let code = Code::new(kind, k, m).unwrap();
        let chunks = encoded(&code, seed % 1000, units * code.chunk_multiple());
        let nothing = Vec::new();
        let available: Vec<(usize, &[u8])> =
            list.iter().map(|at| (*at, chunks.get(*at).unwrap_or(&nothing).as_slice())).collect();
        let mut out = vec![vec![0x5a; chunks[0].len()]; wanted.len()];
        let mut slices: Vec<(usize, &mut [u8])> =
            wanted.iter().copied().zip(out.iter_mut().map(Vec::as_mut_slice)).collect();
        let done = code.reconstruct(&available, &mut slices);
        let distinct = |list: &[usize]| list.iter().enumerate().all(|(n, at)| !list[..n].contains(at));
        let inside = |list: &[usize]| list.iter().all(|at| *at < k + m);
        let fine = [&list, &wanted].into_iter().all(|list| distinct(list) && inside(list)) && list.len() >= k;
        prop_assert_eq!(done.is_ok(), fine);
        for (at, out) in wanted.iter().zip(&out) {
            let expected = if fine { chunks[*at].clone() } else { vec![0x5a; chunks[0].len()] };
            prop_assert!(*out == expected);
        }
    }

    /// A write of any range, by deltas.
    #[test]
    fn any_write_by_deltas_is_the_encoding_of_what_was_written(
        kind in prop::sample::select(vec![Kind::ReedSolomon, Kind::Cauchy, Kind::Rdp]),
        k in 1usize..12,
        units in 1usize..700,
        place in any::<[u16; 3]>(),
        seed in any::<u64>(),
    ) {
        let code = Code::new(kind, k, 2).unwrap();
        let len = units * code.chunk_multiple();
        let mut chunks = encoded(&code, seed % 1000, len);
        let [data, a, b] = place.map(usize::from);
        let (data, a, b) = (data % k, a % (len + 1), b % (len + 1));
        let (start, end) = (a.min(b), a.max(b));
        let (old, new) = (chunks[data][start..end].to_vec(), bytes(seed, end - start));
        let mut deltas = Vec::new();
        for parity in 0..2 {
            let ranges = code.delta_ranges(data, start..end, len, parity).unwrap();
            let mut out = vec![0xaa; ranges.total()];
            code.delta(data, start, len, &old, &new, parity, &mut out).unwrap();
            apply(&ranges, &out, &mut chunks[k + parity]).unwrap();
            deltas.push(out);
        }
        let mut all: Vec<Vec<u8>> = deltas.iter().map(|out| vec![0xbb; out.len()]).collect();
        let mut outs: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
        code.deltas(data, start, len, &old, &new, &mut outs).unwrap();
        prop_assert!(all == deltas);
        chunks[data][start..end].copy_from_slice(&new);
        prop_assert!(code.verify(&views(&chunks[..k]), &views(&chunks[k..])).unwrap());
    }
}
