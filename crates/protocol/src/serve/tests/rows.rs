//! Rows at given versions: two logs and the data nodes at differing versions, against a plain model.

use super::super::parity_log::*;
use super::rng;
use bytes::Bytes;
use rand_core::Rng;
use std::collections::BTreeMap;
use steadfast_codes::mds::{Code, Kind};

const K: usize = 4;
const M: usize = 2;
const CHUNK: usize = 3 << 10;

fn below(rng: &mut impl Rng, bound: usize) -> usize {
    rng.next_u32() as usize % bound
}

fn add(bytes: &mut [u8], difference: &Difference) {
    let at = difference.offset as usize;
    bytes[at..at + difference.bytes.len()]
        .iter_mut()
        .zip(&difference.bytes)
        .for_each(|(into, byte)| *into ^= byte);
}

/// A parity chunk with a part of the updates in it and more in its log.
struct Parity {
    number: usize,
    bytes: Vec<u8>,
    merged: VersionsByChunk,
    log: Vec<Difference>,
}

impl Parity {
    /// The last version of each data chunk, in the chunk or its log.
    fn held(&self) -> VersionsByChunk {
        let mut held = self.merged.clone();
        held.extend(self.log.iter().map(|difference| (difference.chunk, difference.version)));
        held
    }

    fn bring(&self, rows: core::ops::Range<usize>, wanted: &VersionsByChunk) -> Option<Vec<u8>> {
        let mut bytes = self.bytes[rows.clone()].to_vec();
        let of = of(self.number);
        let brought = of.bring(&mut bytes, rows.start as u64, &self.merged, &self.log, wanted).unwrap();
        brought.then_some(bytes)
    }
}

fn of(number: usize) -> ParityOf {
    ParityOf::new(K as u16, M as u16, number as u16, CHUNK as u64).unwrap()
}

/// Data chunks at every version, and the updates in the order in which they were stamped.
struct Model {
    /// By chunk, then version.
    contents: Vec<Vec<Vec<u8>>>,
    updates: Vec<Difference>,
}

impl Model {
    fn new(rng: &mut impl Rng, updates: usize) -> Self {
        let mut filled = || {
            let mut bytes = vec![0; CHUNK];
            rng.fill_bytes(&mut bytes);
            vec![bytes]
        };
        let mut model = Self { contents: (0..K).map(|_| filled()).collect(), updates: Vec::new() };
        for _ in 0..updates {
            let chunk = below(rng, K);
            // Half of them in the first rows, so that they meet.
            let span = if below(rng, 2) == 0 { CHUNK } else { 256 };
            let offset = below(rng, span);
            let mut bytes = vec![0; 1 + below(rng, (CHUNK - offset).min(300))];
            rng.fill_bytes(&mut bytes);
            let version = model.contents[chunk].len() as u64;
            let bytes = Bytes::from(bytes);
            let difference =
                Difference { chunk: chunk as u16, version, offset: offset as u64, sums: vec![0], bytes };
            let mut next = model.contents[chunk][version as usize - 1].clone();
            add(&mut next, &difference);
            model.contents[chunk].push(next);
            model.updates.push(difference);
        }
        model
    }

    fn newest(&self, chunk: usize) -> u64 {
        self.contents[chunk].len() as u64 - 1
    }

    fn at(&self, state: &VersionsByChunk) -> Vec<&[u8]> {
        (0..K).map(|chunk| &self.contents[chunk][state[&(chunk as u16)] as usize][..]).collect()
    }

    /// The versions that the first `updates` of them make.
    fn versions(&self, updates: usize) -> VersionsByChunk {
        self.updates[..updates].iter().map(|difference| (difference.chunk, difference.version)).collect()
    }

    /// A parity chunk that has the updates as far as these versions go; the first `merged` of them are in the chunk. Its log's
    /// records of one chunk are in order; of several they are as `rng` mixes them.
    fn parity(&self, rng: &mut impl Rng, number: usize, merged: usize, held: &VersionsByChunk) -> Parity {
        let merged = self.versions(merged);
        let state = (0..K as u16).map(|chunk| (chunk, merged.get(&chunk).copied().unwrap_or(0))).collect();
        let mut queues: BTreeMap<u16, Vec<Difference>> = BTreeMap::new();
        for difference in self.updates.iter().rev() {
            let version = |of: &VersionsByChunk| of.get(&difference.chunk).copied().unwrap_or(0);
            if difference.version > version(&merged) && difference.version <= version(held) {
                queues.entry(difference.chunk).or_default().push(difference.clone());
            }
        }
        let mut log = Vec::new();
        while !queues.is_empty() {
            let chunk = *queues.keys().nth(below(rng, queues.len())).unwrap();
            let queue = queues.get_mut(&chunk).unwrap();
            log.extend(queue.pop());
            queues.retain(|_, queue| !queue.is_empty());
        }
        Parity { number, bytes: encoded(&self.at(&state)).swap_remove(number), merged, log }
    }

    /// Rows of a data chunk at a version, taken back from its newest by the differences after version `released`.
    fn back(&self, chunk: usize, rows: core::ops::Range<usize>, to: u64, released: u64) -> Option<Vec<u8>> {
        let newest = self.newest(chunk);
        let mut bytes = self.contents[chunk][newest as usize][rows.clone()].to_vec();
        let held = self.updates.iter().filter(|of| usize::from(of.chunk) == chunk && of.version > released);
        let held = held.map(|difference| (difference.version, difference.offset, &difference.bytes[..]));
        take_back(&mut bytes, rows.start as u64, (newest, to), held).then_some(bytes)
    }
}

fn encoded(data: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0; CHUNK]; M];
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|bytes| &mut bytes[..]).collect();
    Code::new(Kind::ReedSolomon, K, M).unwrap().encode(data, &mut outputs).unwrap();
    parity
}

fn some_rows(rng: &mut impl Rng) -> core::ops::Range<usize> {
    let start = below(rng, CHUNK);
    start..start + 1 + below(rng, CHUNK - start)
}

#[test]
fn at_the_common_versions_any_k_chunks_decode_to_what_the_updates_make() {
    let code = Code::new(Kind::ReedSolomon, K, M).unwrap();
    for case in 0..150 {
        let mut rng = rng(case);
        let count = below(&mut rng, 40);
        let model = Model::new(&mut rng, count);
        // The first so many are committed, and merged in part, in each log another; the rest is where it is.
        let committed = below(&mut rng, count + 1);
        let parities: Vec<Parity> = (0..M)
            .map(|number| {
                let merged = below(&mut rng, committed + 1);
                let (least, mut held) = (model.versions(committed), VersionsByChunk::new());
                for chunk in 0..K {
                    let from = least.get(&(chunk as u16)).copied().unwrap_or(0);
                    let beyond = below(&mut rng, (model.newest(chunk) - from) as usize + 1) as u64;
                    held.insert(chunk as u16, from + beyond);
                }
                model.parity(&mut rng, number, merged, &held)
            })
            .collect();
        let rows = some_rows(&mut rng);
        for lost in (0..K).flat_map(|one| (one..K).map(move |other| [one, other])) {
            // One chunk or two; either log alone stands in for one.
            let data: Vec<usize> = (0..K).filter(|chunk| !lost.contains(chunk)).collect();
            let skipped = if data.len() + M > K { below(&mut rng, M) } else { M };
            let used: Vec<&Parity> = parities.iter().filter(|parity| parity.number != skipped).collect();
            let held: Vec<VersionsByChunk> = used.iter().map(|parity| parity.held()).collect();
            let newest = data.iter().map(|chunk| (*chunk as u16, model.newest(*chunk)));
            let state = common(newest, &held, K as u16);
            let least = model.versions(committed);
            assert!(
                least.iter().all(|(chunk, version)| state[chunk] >= *version),
                "what is committed is in it"
            );
            let mut read: Vec<(usize, Vec<u8>)> = Vec::new();
            for &chunk in &data {
                let released = least.get(&(chunk as u16)).copied().unwrap_or(0);
                let back = model.back(chunk, rows.clone(), state[&(chunk as u16)], released);
                read.push((chunk, back.expect("what is not committed is kept")));
            }
            for parity in &used {
                let brought = parity.bring(rows.clone(), &state).expect("nothing beyond it is merged");
                read.push((K + parity.number, brought));
            }
            let available: Vec<(usize, &[u8])> =
                read.iter().map(|(chunk, bytes)| (*chunk, &bytes[..])).collect();
            let mut decoded = vec![vec![0; rows.len()]; K];
            let mut outputs: Vec<(usize, &mut [u8])> = decoded
                .iter_mut()
                .enumerate()
                .filter(|(chunk, _)| lost.contains(chunk))
                .map(|(chunk, bytes)| (chunk, &mut bytes[..]))
                .collect();
            code.reconstruct(&available, &mut outputs).unwrap();
            read.iter()
                .filter(|(chunk, _)| *chunk < K)
                .for_each(|(chunk, bytes)| decoded[*chunk].clone_from(bytes));
            let expected: Vec<&[u8]> =
                model.at(&state).into_iter().map(|bytes| &bytes[rows.clone()]).collect();
            assert!(decoded == expected, "case {case}, {lost:?} lost");
        }
    }
}

#[test]
fn the_common_versions_are_the_lowest_that_anyone_names() {
    let one = VersionsByChunk::from([(0, 7), (1, 4), (3, 2)]);
    let other = VersionsByChunk::from([(0, 6), (1, 5), (2, 1), (3, 2)]);
    assert_eq!(
        common([(0, 8), (1, 3), (3, 9)], [&one, &other], 4),
        VersionsByChunk::from([(0, 6), (1, 3), (2, 0), (3, 2)]),
        "a log without records of a chunk has it at version 0"
    );
    assert_eq!(common([(1, 3)], [&one], 2), VersionsByChunk::from([(0, 7), (1, 3)]));
    assert_eq!(common([(0, 5)], [], 2), VersionsByChunk::from([(0, 5), (1, 0)]));
}

#[test]
fn parity_beyond_the_versions_or_behind_them_is_not_brought_there() {
    for case in 0..50 {
        let mut rng = rng(case);
        let model = Model::new(&mut rng, 20);
        let (merged, held) = (below(&mut rng, 21), model.versions(20));
        let parity = model.parity(&mut rng, case as usize % M, merged, &held);
        let rows = some_rows(&mut rng);
        let state = |versions: &VersionsByChunk| -> VersionsByChunk {
            (0..K as u16).map(|chunk| (chunk, versions.get(&chunk).copied().unwrap_or(0))).collect()
        };
        let (lowest, highest) = (state(&parity.merged), state(&parity.held()));
        for versions in [&lowest, &highest] {
            let expected = encoded(&model.at(versions)).swap_remove(parity.number);
            assert_eq!(parity.bring(rows.clone(), versions).as_deref(), Some(&expected[rows.clone()]));
        }
        for chunk in 0..K as u16 {
            let mut behind = highest.clone();
            *behind.get_mut(&chunk).unwrap() += 1;
            assert_eq!(parity.bring(rows.clone(), &behind), None, "nobody has sent that version");
            if lowest[&chunk] > 0 {
                let mut beyond = highest.clone();
                beyond.insert(chunk, lowest[&chunk] - 1);
                assert_eq!(
                    parity.bring(rows.clone(), &beyond),
                    None,
                    "it is merged, and not to be taken out"
                );
                beyond.remove(&chunk);
                assert_eq!(
                    parity.bring(rows.clone(), &beyond),
                    None,
                    "a chunk that is not named is at version 0"
                );
            }
        }
    }
}

#[test]
fn rows_of_a_data_chunk_are_taken_back_only_without_a_gap() {
    for case in 0..50 {
        let mut rng = rng(case);
        let model = Model::new(&mut rng, 12);
        let rows = some_rows(&mut rng);
        for chunk in 0..K {
            let newest = model.newest(chunk);
            for (to, released) in (0..=newest).flat_map(|to| (0..=newest).map(move |released| (to, released)))
            {
                let expected = &model.contents[chunk][to as usize][rows.clone()];
                let back = model.back(chunk, rows.clone(), to, released);
                assert_eq!(
                    back.as_deref(),
                    (released <= to).then_some(expected),
                    "{to}, {released} released"
                );
            }
            assert_eq!(model.back(chunk, rows.clone(), newest + 1, 0), None, "it is behind");
        }
    }
    // One in the midst is gone.
    let (mut bytes, ones) = (vec![0; 4], [1; 4]);
    assert!(!take_back(&mut bytes, 0, (3, 0), [(1, 0, &ones[..]), (3, 0, &ones[..])]));
    let mut bytes = vec![0; 4];
    assert!(take_back(&mut bytes, 0, (3, 2), [(1, 0, &ones[..]), (3, 0, &ones[..])]));
    assert_eq!(bytes, ones);
}

#[test]
fn what_differences_add_to_rows_is_what_they_add_to_the_chunk() {
    for case in 0..100 {
        let mut rng = rng(case);
        let model = Model::new(&mut rng, 10);
        let mut fold = Fold::default();
        model.updates.iter().for_each(|difference| fold.add(difference));
        let versions = |newest: bool| -> VersionsByChunk {
            (0..K).map(|chunk| (chunk as u16, if newest { model.newest(chunk) } else { 0 })).collect()
        };
        let (before, after) = (encoded(&model.at(&versions(false))), encoded(&model.at(&versions(true))));
        for number in 0..M {
            let rows = some_rows(&mut rng);
            let mut bytes = before[number][rows.clone()].to_vec();
            of(number).add(&fold, rows.start as u64, &mut bytes).unwrap();
            assert_eq!(bytes, after[number][rows]);
        }
    }
    assert!(ParityOf::new(K as u16, M as u16, M as u16, CHUNK as u64).is_err(), "there are two");
    let difference = |chunk: u16, offset: usize| {
        let mut fold = Fold::default();
        let bytes = Bytes::from(vec![1; 2]);
        fold.add(&Difference { chunk, version: 1, offset: offset as u64, sums: vec![0], bytes });
        fold
    };
    let mut bytes = vec![0; CHUNK];
    assert!(of(1).add(&difference(K as u16, 0), 0, &mut bytes).is_err(), "no such data chunk");
    let mut bytes = vec![0; CHUNK + 8];
    assert!(of(1).add(&difference(0, CHUNK - 1), 0, &mut bytes).is_err(), "beyond the chunk's end");
}
