//! Decoders under arbitrary input: exact bytes or a typed error, never a panic, never a byte outside the buffers given.
//!
//! Every code and shape, any set of blocks with duplicates, contradictions, strangers and wrong lengths, buffers at any
//! alignment between guard bytes or up to their allocation's end. `STEADFAST_SEED` draws other cases (printed), `STEADFAST_CASES` more
//! of them:
//!
//! ```text
//! STEADFAST_SEED=$RANDOM STEADFAST_CASES=100000 cargo test --release -p steadfast-codes --test fuzz
//! ```

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;
use common::*;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::cell::Cell;
use std::ops::Range;
use steadfast_codes::kernel::Tier;
use steadfast_codes::mds::{self, DeltaRanges, MdsError};
use steadfast_codes::rateless::{Code, CodeError, DecodeError, Decoder, EncodeError, K_MAX, Kind, Push};

/// Bytes around every buffer that nobody may write.
const GUARD: u8 = 0xc3;

/// Runs `test` on so many drawn cases; a failure prints the smallest one that fails.
#[allow(clippy::disallowed_methods, reason = "a test may be told its seed and its length")]
fn fuzz<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) -> u32 {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("STEADFAST_SEED").unwrap_or(20_261_121);
    let cases = number("STEADFAST_CASES").map_or(cases, |cases| cases as u32);
    println!("STEADFAST_SEED={seed} STEADFAST_CASES={cases}");
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    };
    if let Err(error) = TestRunner::new(config).run(strategy, test) {
        panic!("{error}");
    }
    cases
}

/// Where a buffer begins in its allocation: at any of so many bytes, and as often with guards behind it as ending where its allocation
/// ends. There the address sanitizer sees a byte that is read past it.
const PLACES: usize = 2 * 67;

/// A buffer somewhere in an allocation, at one of the [`PLACES`].
struct Guarded {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl Guarded {
    fn new(place: usize, content: &[u8]) -> Self {
        let (at, behind) = (place / 2, if place.is_multiple_of(2) { 70 } else { 0 });
        let range = at..at + content.len();
        let mut bytes = vec![GUARD; range.end + behind];
        bytes[range.clone()].copy_from_slice(content);
        Self { bytes, range }
    }

    fn intact(&self) -> bool {
        let (before, after) = (&self.bytes[..self.range.start], &self.bytes[self.range.end..]);
        before.iter().chain(after).all(|byte| *byte == GUARD)
    }
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl AsMut<[u8]> for Guarded {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.range.clone()]
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        (0.01f64..4.0, 0.001f64..=1.0).prop_map(|(c, delta)| Kind::Lt { c, delta }),
        (1u32..40, 1u32..20).prop_map(|(data, parity)| Kind::ReedSolomon { data, parity }),
        prop::sample::select(vec![Kind::Mix, Kind::MixA, Kind::MixC, Kind::Replicated, LT_HALF, LT_TENTH]),
        prop::sample::select(vec![Kind::Mix, Kind::MixA, Kind::MixC, Kind::Replicated, LT_HALF, LT_TENTH]),
    ]
}

/// K: small ones, those on both sides of every change of construction, and any up to 1024.
fn sizes() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1u32..24, 2 => 120u32..136, 2 => 505u32..520, 1 => 1u32..=1024, 1 => Just(1024)]
}

/// What comes to a decoder.
#[derive(Clone, Debug)]
enum Event {
    /// A block: an index below so many K, or any number at all.
    Block(u32),
    Far(u32),
    /// One that came before: as it was, or with a bit changed.
    Again {
        which: usize,
        changed: bool,
    },
    WrongLength(usize),
    Advance,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        24 => any::<u32>().prop_map(Event::Block),
        1 => any::<u32>().prop_map(Event::Far),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(which, changed)| Event::Again { which, changed }),
        1 => (0usize..200).prop_map(Event::WrongLength),
        4 => Just(Event::Advance),
    ];
    prop::collection::vec(event, 0..400)
}

#[test]
fn any_blocks_of_any_rateless_code() {
    // Far more than K events for small K; large K are filled up to the margin below.
    let strategy = (kinds(), sizes(), any::<u64>(), 0usize..130, events(), -4i32..12, 1usize..4);
    let solutions = Cell::new(0);
    let cases = fuzz(180, &strategy, |(kind, k, seed, len, events, margin, threads)| {
        // Chunks are equally long.
        let k = if let Kind::ReedSolomon { data, .. } = kind { k.next_multiple_of(data) } else { k };
        let code = match Code::new(kind, k, seed) {
            Ok(code) => code,
            Err(CodeError::Graph { .. }) => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let originals = payload(k, len, &mut random);
        let make = |index| encode(&code, &[index], &originals).remove(0);
        let end = code.end().unwrap_or(6 * k);
        let mut decoder: Decoder<Guarded> = Decoder::new(&code, len);
        let mut kept: Vec<u32> = Vec::new();
        // A start that makes the rest matter: all but a few originals' worth of blocks, drawn from 4 K.
        if k > 200 {
            let head = shuffled((0..end.min(4 * k)).collect(), &mut random);
            for index in head.into_iter().take((k as i32 + margin) as usize) {
                let block = Guarded::new(random.next_u32() as usize % PLACES, &make(index));
                if decoder.push(index, block).unwrap().1.is_none() {
                    kept.push(index);
                }
            }
        }
        for event in events {
            let at = random.next_u32() as usize % PLACES;
            let before = (decoder.rank(), decoder.missing());
            match event {
                Event::Block(index) => {
                    let index = index % end;
                    let known = kept.contains(&index);
                    let (push, back) = decoder.push(index, Guarded::new(at, &make(index))).unwrap();
                    prop_assert!(back.as_ref().is_none_or(Guarded::intact));
                    prop_assert_eq!(push == Push::Innovative, back.is_none());
                    prop_assert!(!known || push == Push::Duplicate);
                    if back.is_none() {
                        kept.push(index);
                    }
                }
                Event::Far(index) if code.end().is_some_and(|end| index >= end) => {
                    let outcome = decoder.push(index, Guarded::new(at, &vec![1; len]));
                    prop_assert_eq!(outcome.err(), Some(DecodeError::Stranger { index }));
                    prop_assert_eq!((decoder.rank(), decoder.missing()), before);
                }
                Event::Far(index) => {
                    if decoder.push(index, Guarded::new(at, &make(index))).unwrap().1.is_none() {
                        kept.push(index);
                    }
                }
                Event::Again { which, changed } if !kept.is_empty() && len > 0 => {
                    let index = kept[which % kept.len()];
                    let mut block = make(index);
                    block[which % len] ^= u8::from(changed) << (which % 8);
                    let outcome = decoder.push(index, Guarded::new(at, &block));
                    if changed {
                        prop_assert_eq!(outcome.err(), Some(DecodeError::Contradiction { index }));
                    } else {
                        let (push, back) = outcome.unwrap();
                        prop_assert!(push == Push::Duplicate && back.unwrap().as_ref() == block);
                    }
                    prop_assert_eq!((decoder.rank(), decoder.missing()), before);
                }
                Event::WrongLength(given) if given != len => {
                    let outcome = decoder.push(at as u32, Guarded::new(at, &vec![1; given]));
                    let expected = DecodeError::BlockLength { index: at as u32, given, expected: len };
                    prop_assert_eq!(outcome.err(), Some(expected));
                    prop_assert_eq!((decoder.rank(), decoder.missing()), before);
                }
                Event::Advance => {
                    decoder.advance(|len| Guarded::new(at, &vec![0x5a; len]));
                }
                Event::Again { .. } | Event::WrongLength(_) => {}
            }
            prop_assert!(decoder.rank() >= before.0 && decoder.kept() <= kept.len());
        }
        let missing = decoder.missing();
        prop_assert_eq!(
            missing == 0,
            code.decodes(&mut kept.iter().copied()),
            "{:?} {} kept",
            code,
            kept.len()
        );
        match decoder.solve(threads) {
            Err(error) => prop_assert_eq!(error, DecodeError::Missing { missing: missing.max(1) }),
            Ok(solved) => {
                solutions.set(solutions.get() + 1);
                prop_assert!(missing == 0 && solved.len() == k as usize);
                for (solved, original) in solved.iter().zip(&originals) {
                    prop_assert!(solved.as_ref() == original && solved.intact(), "{:?}", code);
                }
            }
        }
        Ok(())
    });
    let share = f64::from(solutions.get()) / f64::from(cases);
    println!("{:.0} % decoded", 100.0 * share);
    assert!(cases < 100 || (0.2..0.95).contains(&share), "both outcomes are to be seen: {share}");
}

/// K beyond the usual, where most originals come: an elimination over all of K = 8192 takes long.
#[test]
fn any_blocks_of_large_rateless_codes() {
    let kinds = vec![Kind::Mix, Kind::MixA, Kind::MixC, Kind::Replicated, LT_HALF];
    let kinds = prop_oneof![
        5 => prop::sample::select(kinds),
        1 => (1u32..40, 1u32..20).prop_map(|(data, parity)| Kind::ReedSolomon { data, parity }),
    ];
    let sizes = prop::sample::select(vec![1025, 2048, K_MAX]);
    let strategy = (kinds, sizes, any::<u64>(), 0usize..5, 0u32..=256, 0usize..=100, 1usize..3);
    let solutions = Cell::new(0);
    let cases = fuzz(20, &strategy, |(kind, k, seed, len, lost, percent, threads)| {
        let k = if let Kind::ReedSolomon { data, .. } = kind { k / data * data } else { k };
        let code = match Code::new(kind, k, seed) {
            Ok(code) => code,
            Err(CodeError::Graph { .. }) => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let originals = payload(k, len, &mut random);
        // LT has no originals as such.
        let lost = if kind == LT_HALF { k } else { lost };
        let mut order = shuffled((0..k).collect(), &mut random);
        let gone = order.split_off((k - lost) as usize);
        let mut rest = shuffled((k..code.end().unwrap_or(4 * k)).chain(gone).collect(), &mut random);
        rest.truncate(rest.len() * percent / 100);
        order.extend(rest);
        let order = shuffled(order, &mut random);
        let mut decoder: Decoder<Guarded> = Decoder::new(&code, len);
        for (index, block) in order.iter().zip(encode(&code, &order, &originals)) {
            let block = Guarded::new(random.next_u32() as usize % PLACES, &block);
            let (push, back) = decoder.push(*index, block).unwrap();
            prop_assert_eq!(push == Push::Innovative, back.is_none());
            if random.next_u32().is_multiple_of(3) {
                decoder.advance(|len| Guarded::new(1, &vec![0x5a; len]));
            }
        }
        let missing = decoder.missing();
        prop_assert_eq!(missing == 0, code.decodes(&mut order.iter().copied()), "{:?}", code);
        // Strips of so many sums are within what a solve says it takes.
        let cost = if kind.is_mix() { decoder.cost() } else { None };
        prop_assert!(cost.is_none_or(|(_, _, sums)| sums <= 11_264), "{:?}: {:?}", code, cost);
        match decoder.solve(threads) {
            Err(error) => prop_assert_eq!(error, DecodeError::Missing { missing: missing.max(1) }),
            Ok(solved) => {
                solutions.set(solutions.get() + 1);
                prop_assert!(missing == 0 && solved.len() == k as usize);
                for (solved, original) in solved.iter().zip(&originals) {
                    prop_assert!(solved.as_ref() == original && solved.intact(), "{:?}", code);
                }
            }
        }
        Ok(())
    });
    let share = f64::from(solutions.get()) / f64::from(cases);
    println!("{:.0} % decoded", 100.0 * share);
    assert!(cases < 20 || (0.2..0.95).contains(&share), "both outcomes are to be seen: {share}");
}

#[test]
fn rateless_codes_out_of_range() {
    let numbers = prop_oneof![any::<f64>(), -2.0f64..3.0, Just(f64::NAN), Just(f64::INFINITY), Just(0.0)];
    let strategy = (any::<u32>(), numbers.clone(), numbers, any::<u64>(), 0usize..5, any::<[u8; 4]>());
    fuzz(400, &strategy, |(k, c, delta, seed, kind, sizes)| {
        let kind = [Kind::Lt { c, delta }, Kind::Mix, Kind::MixA, Kind::MixC, Kind::Replicated][kind];
        // Half of the numbers near the ends of what is allowed.
        let k = if seed % 2 == 0 { k } else { [0, 1, K_MAX, K_MAX + 1, u32::MAX][k as usize % 5] };
        let sound =
            !matches!(kind, Kind::Lt { .. }) || (c > 0.0 && c.is_finite() && delta > 0.0 && delta <= 1.0);
        match Code::new(kind, k, seed) {
            Err(CodeError::BlockCount { k: given }) => prop_assert!(given == k && (k == 0 || k > K_MAX)),
            // The weights of so large a c need not have a finite sum.
            Err(CodeError::Parameters { .. }) => prop_assert!(!sound || c > 1e300),
            Err(CodeError::Graph { .. }) => prop_assert!(kind.is_mix()),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
            Ok(code) => {
                prop_assert!((1..=K_MAX).contains(&k) && sound);
                if k > 300 {
                    return Ok(());
                }
                // Counts and lengths that do not fit each other.
                let [count, outs, len, other] = sizes.map(usize::from);
                let originals = vec![vec![7; len]; count];
                let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
                let indices: Vec<u32> = (0..outs as u32 % 9).collect();
                let mut blocks = vec![vec![GUARD; other]; outs % 7];
                let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
                let fits =
                    count == k as usize && indices.len() == out.len() && (out.is_empty() || len == other);
                let done: Result<(), EncodeError> = code.encode(&indices, &views, &mut out);
                prop_assert_eq!(done.is_ok(), fits, "{:?}", done);
                prop_assert!(fits || blocks.iter().flatten().all(|byte| *byte == GUARD));
            }
        }
        Ok(())
    });
}

#[test]
fn every_shape_of_mix_has_a_graph() {
    let mut random = random();
    for kind in [Kind::Mix, Kind::MixA, Kind::MixC] {
        for k in 1..=1024 {
            let found = (0..4).any(|_| Code::new(kind, k, random.next_u64()).is_ok());
            assert!(found, "{kind:?}, K = {k}");
        }
    }
}

/// Chunks of a stripe at any alignment.
fn stripe(code: &mds::Code, seed: u64, len: usize) -> Vec<Vec<u8>> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut chunks = payload((code.k() + code.m()) as u32, len, &mut random);
    let (data, parity) = chunks.split_at_mut(code.k());
    let data: Vec<Guarded> =
        data.iter().map(|chunk| Guarded::new(random.next_u32() as usize % PLACES, chunk)).collect();
    let views: Vec<&[u8]> = data.iter().map(AsRef::as_ref).collect();
    let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&views, &mut outs).unwrap();
    chunks
}

fn mds_kinds() -> impl Strategy<Value = mds::Kind> {
    prop::sample::select(vec![mds::Kind::ReedSolomon, mds::Kind::Cauchy, mds::Kind::Rdp])
}

/// k and m: small ones, and some as large as there are.
fn shapes() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        9 => (1usize..20, 0usize..7),
        1 => (1usize..255, 0usize..40),
        2 => (17usize..254, Just(2)),
    ]
}

#[test]
fn any_erasures_of_any_mds_code() {
    let picks = || prop::collection::vec(any::<u16>(), 0..40);
    let trouble = prop_oneof![6 => Just(0u8), 1 => 1u8..6];
    let strategy =
        (mds_kinds(), shapes(), 0usize..300, any::<u64>(), picks(), picks(), trouble, any::<[u16; 2]>());
    let answered = Cell::new(0);
    let cases = fuzz(600, &strategy, |(kind, (k, m), units, seed, left_out, picks, trouble, [a, b])| {
        let m = if kind == mds::Kind::Rdp && seed % 8 > 0 { 2 } else { m };
        // Schedules of packets take long to make at the largest shapes (0.7 s at k = 200, m = 40): a few of Cauchy's will do.
        if kind == mds::Kind::Cauchy && m > 2 && k * m > 400 && seed % 4 > 0 {
            return Ok(());
        }
        let Ok(code) = mds::Code::new(kind, k, m) else {
            let exists = (kind != mds::Kind::Rdp || m == 2) && m > 0 && k + m <= 255;
            prop_assert!(!exists, "{kind:?} {k} {m}");
            return Ok(());
        };
        let n = k + m;
        // One chunk of one or two that are lost, where one pass may give it.
        let lone = m == 2 && k > 16 && seed % 2 == 0;
        let most = if lone && kind != mds::Kind::Rdp { 90 } else { 9 };
        let len = if n > 60 { units % most } else { units } * code.chunk_multiple();
        let chunks = stripe(&code, seed, len);
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        // Some chunks are not there, in any order; what is wanted may be there or not.
        let mut lost: Vec<usize> = left_out.iter().take(m + 1).map(|pick| usize::from(*pick) % n).collect();
        if lone {
            lost.truncate(1 + picks.len() % 2);
        }
        let order = shuffled((0..n as u32).collect(), &mut random);
        let mut numbers: Vec<usize> =
            order.iter().map(|at| *at as usize).filter(|at| !lost.contains(at)).collect();
        let mut wanted: Vec<usize> = picks.iter().map(|pick| usize::from(*pick) % n).collect();
        if lone {
            wanted = lost.first().copied().into_iter().collect();
        }
        wanted.sort_unstable();
        wanted.dedup();
        let start = usize::from(a.min(b)) % (len + 1);
        let range = start..start + usize::from(a.max(b)) % (len - start + 1);
        let read = code.source_range(len, range.clone()).unwrap();
        prop_assert!(read.start <= range.start && range.end <= read.end && read.end <= len);
        let mut source_len = read.len();
        let mut out_len = range.len();
        match trouble {
            1 => numbers.push(numbers.first().copied().unwrap_or(0)),
            2 => wanted.push(n + usize::from(a)),
            3 => source_len += 1 + usize::from(a) % 3,
            4 => out_len += 1,
            5 => numbers.truncate(k.saturating_sub(1)),
            _ => {}
        }
        let sources: Vec<Guarded> = numbers
            .iter()
            .map(|at| {
                let mut bytes = chunks[*at][read.clone()].to_vec();
                bytes.resize(source_len, 0);
                Guarded::new(random.next_u32() as usize % PLACES, &bytes)
            })
            .collect();
        let mut outs: Vec<Guarded> = wanted
            .iter()
            .map(|_| Guarded::new(random.next_u32() as usize % PLACES, &vec![0x5a; out_len]))
            .collect();
        let available: Vec<(usize, &[u8])> =
            numbers.iter().copied().zip(sources.iter().map(AsRef::as_ref)).collect();
        let mut slots: Vec<(usize, &mut [u8])> =
            wanted.iter().copied().zip(outs.iter_mut().map(AsMut::as_mut)).collect();
        let done = code.reconstruct_range(&available, len, range.clone(), &mut slots);
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let fits = distinct.len() == numbers.len()
            && numbers.len() >= k
            && wanted.iter().all(|at| *at < n)
            && (source_len == read.len() || numbers.is_empty())
            && (out_len == range.len() || wanted.is_empty());
        prop_assert_eq!(done.is_ok(), fits, "{:?}", done);
        answered.set(answered.get() + u32::from(fits));
        for (at, out) in wanted.iter().zip(&outs) {
            let expected = if fits { chunks[*at][range.clone()].to_vec() } else { vec![0x5a; out_len] };
            prop_assert!(out.intact() && out.as_ref() == expected, "chunk {} of {:?}", at, code);
        }
        if fits && read == (0..len) && range == read {
            // Every way to compute gives the same.
            for tier in Tier::available() {
                let mut again = vec![vec![0; len]; wanted.len()];
                let mut slots: Vec<(usize, &mut [u8])> =
                    wanted.iter().copied().zip(again.iter_mut().map(Vec::as_mut_slice)).collect();
                code.reconstruct_at(*tier, &available, &mut slots).unwrap();
                prop_assert!(wanted.iter().zip(&again).all(|(at, out)| *out == chunks[*at]), "{tier:?}");
            }
        }
        Ok(())
    });
    let share = f64::from(answered.get()) / f64::from(cases);
    println!("{:.0} % reconstructed", 100.0 * share);
    assert!(cases < 100 || (0.2..0.95).contains(&share), "both outcomes are to be seen: {share}");
}

#[test]
fn any_deltas_of_any_mds_code() {
    let writes = prop::collection::vec((any::<u16>(), any::<[u16; 2]>(), any::<u64>()), 1..6);
    let strategy =
        (mds_kinds(), 1usize..24, 1usize..5, 1usize..200, any::<u64>(), writes, any::<[usize; 3]>());
    fuzz(400, &strategy, |(kind, k, m, units, seed, writes, wild)| {
        let m = if kind == mds::Kind::Rdp { 2 } else { m };
        let code = mds::Code::new(kind, k, m).unwrap();
        let len = units * code.chunk_multiple();
        let mut chunks = stripe(&code, seed, len);
        let mut logs: Vec<Vec<(DeltaRanges, Vec<u8>)>> = vec![Vec::new(); m];
        // Ranges of several writes overlap as they like: the log folds into what all of them together do.
        for (data, [a, b], bytes) in writes {
            let (data, [a, b]) = (usize::from(data) % k, [a, b].map(|at| usize::from(at) % (len + 1)));
            let range = a.min(b)..a.max(b);
            let old = chunks[data][range.clone()].to_vec();
            let mut new = old.clone();
            Pcg64Mcg::seed_from_u64(bytes).fill_bytes(&mut new);
            for (parity, log) in logs.iter_mut().enumerate() {
                let total = code.delta_ranges(data, range.clone(), len, parity).unwrap().total();
                let mut out = Guarded::new(wild[0] % PLACES, &vec![0xee; total]);
                let ranges = code.delta(data, range.start, len, &old, &new, parity, out.as_mut()).unwrap();
                prop_assert!(out.intact() && ranges.total() == total);
                log.push((ranges, out.as_ref().to_vec()));
                let mut short = vec![GUARD; total + 1];
                let wrong = code.delta(data, range.start, len, &old, &new, parity, &mut short);
                prop_assert_eq!(wrong.unwrap_err(), MdsError::Length { given: total + 1, expected: total });
                prop_assert!(short.iter().all(|byte| *byte == GUARD));
            }
            chunks[data][range].copy_from_slice(&new);
        }
        for (parity, log) in logs.iter().enumerate() {
            let list: Vec<(&DeltaRanges, &[u8])> =
                log.iter().map(|(ranges, bytes)| (ranges, bytes.as_slice())).collect();
            let (ranges, bytes) = mds::fold(&list).unwrap();
            mds::apply(&ranges, &bytes, &mut chunks[k + parity]).unwrap();
        }
        let views: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        prop_assert!(code.verify(&views[..k], &views[k..]).unwrap());
        // Numbers from anywhere: an error or a range inside the chunk.
        let [a, b, c] = wild;
        if let Ok(ranges) = code.delta_ranges(a % (k + 3), b..c, len, seed as usize % (m + 2)) {
            prop_assert!(b <= c && c <= len && ranges.as_slice().iter().all(|range| range.end <= len));
        }
        if let Ok(ranges) = DeltaRanges::new(vec![a % 90..b % 90, b % 90..c % 90], c % 120) {
            prop_assert!(a % 90 < b % 90 && b % 90 < c % 90 && ranges.total() == c % 90 - a % 90);
        }
        prop_assert!(code.source_range(len, b..c).is_ok() == (b <= c && c <= len));
        // Chunks of any length at all: ranges inside, all of the parity for all of the data, and at once.
        let multiple = code.chunk_multiple();
        let sizes = [a, a / multiple * multiple, a / 2 / multiple * multiple];
        for chunk_len in sizes.into_iter().chain([isize::MAX as usize / multiple * multiple, 1 << 60]) {
            let (data, parity) = (seed as usize % k, b % m);
            let possible = chunk_len % multiple == 0 && chunk_len <= isize::MAX as usize;
            let start = b.checked_rem(chunk_len).unwrap_or(0);
            let part = start..start + c % (chunk_len - start).max(1);
            match code.delta_ranges(data, part.clone(), chunk_len, parity) {
                Ok(ranges) => {
                    let inside = ranges.as_slice().iter().all(|range| range.end <= chunk_len);
                    prop_assert!(possible && inside);
                    prop_assert_eq!(ranges.total() == 0, part.is_empty());
                    let all = code.delta_ranges(data, 0..chunk_len, chunk_len, parity).unwrap();
                    prop_assert!(all.total() == chunk_len && all.as_slice().len() == 1.min(chunk_len));
                }
                Err(error) => prop_assert!(!possible, "{error} for {part:?} of {chunk_len}"),
            }
            match code.source_range(chunk_len, part.clone()) {
                Ok(read) => prop_assert!(
                    possible && read.start <= part.start && part.end <= read.end && read.end <= chunk_len
                ),
                Err(error) => prop_assert!(!possible, "{error} for {part:?} of {chunk_len}"),
            }
            // A few bytes at the very end.
            let end = chunk_len.saturating_sub(3)..chunk_len;
            let old = vec![1; end.len()];
            let total = code.delta_ranges(data, end.clone(), chunk_len, parity).map_or(0, |at| at.total());
            let mut out = vec![0; total];
            let made = code.delta(data, end.start, chunk_len, &old, &vec![2; end.len()], parity, &mut out);
            prop_assert_eq!(made.is_ok(), possible);
        }
        Ok(())
    });
}

#[test]
fn mds_codes_out_of_range() {
    let end = prop_oneof![0usize..10, 245usize..262, any::<usize>()];
    fuzz(300, &(mds_kinds(), end.clone(), end), |(kind, k, m)| {
        let shape = match kind {
            mds::Kind::Rdp => m == 2 && (1..=253).contains(&k),
            _ => k > 0 && m > 0 && k.checked_add(m).is_some_and(|n| n <= 255),
        };
        // The largest Cauchy codes take a while to plan.
        if shape && kind != mds::Kind::ReedSolomon && k.min(m) > 20 {
            return Ok(());
        }
        match mds::Code::new(kind, k, m) {
            Ok(code) => prop_assert!(shape && (code.k(), code.m()) == (k, m)),
            Err(error) => prop_assert!(!shape && error == MdsError::Parameters { kind, k, m }, "{}", error),
        }
        Ok(())
    });
}
