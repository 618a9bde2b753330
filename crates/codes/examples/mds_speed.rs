//! Encoding speed of the MDS codes beside reading speed, interleaved: GB/s of data, the median of several rounds.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::unwrap_used)] // a measurement has a clock

use std::hint::black_box;
use std::time::Instant;

use steadfast_codes::mds::{Code, Kind};

/// Bytes of memory sources are spread over where they are to come from memory.
const SPREAD: usize = 256 << 20;

struct Case {
    name: String,
    code: Option<Code>,
    shard: usize,
    sets: usize,
    rates: Vec<f64>,
}

fn main() {
    let mut arena = vec![1u8; SPREAD + (64 << 20)];
    let mut cases =
        vec![Case { name: "read".into(), code: None, shard: 1 << 20, sets: 0, rates: Vec::new() }];
    let kinds: &[(Kind, &[(usize, usize)])] = &[
        (Kind::ReedSolomon, &[(4, 2), (8, 2), (8, 3), (10, 4), (16, 4), (32, 8)]),
        (Kind::Cauchy, &[(4, 2), (8, 2), (8, 3)]),
        (Kind::Rdp, &[(4, 2), (8, 2), (16, 2)]),
    ];
    for (kind, shapes) in kinds {
        for &(k, m) in *shapes {
            let code = Code::new(*kind, k, m).unwrap();
            for (place, shard, memory) in
                [("memory", 1 << 20, true), ("memory", 1 << 16, true), ("cached", 1 << 16, false)]
            {
                let shard = shard / code.chunk_multiple() * code.chunk_multiple();
                // Shards lie one after the other with a little between, as separate allocations do.
                let sets = if memory { SPREAD / ((shard + 4160) * (k + m)) } else { 1 };
                let name = format!("{kind:?} {k}+{m} {} KiB {place}", shard >> 10);
                cases.push(Case {
                    name,
                    code: Some(code.clone()),
                    shard,
                    sets: sets.max(1),
                    rates: Vec::new(),
                });
            }
        }
    }
    for _round in 0..7 {
        for case in &mut cases {
            let start = Instant::now();
            let mut done = 0;
            match &case.code {
                None => {
                    let mut sums = [0u64; 8];
                    for words in arena[..SPREAD].as_chunks::<64>().0 {
                        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
                            *sum ^= u64::from_ne_bytes(*word);
                        }
                    }
                    black_box(sums);
                    done = SPREAD;
                }
                Some(code) => {
                    let passes = if case.sets == 1 { (100 << 20) / (case.shard * code.k()) } else { 1 };
                    for _ in 0..passes {
                        let mut rest = &mut arena[..];
                        for _ in 0..case.sets {
                            let mut chunks: Vec<&mut [u8]> = Vec::new();
                            for _ in 0..code.k() + code.m() {
                                let (chunk, after) = rest.split_at_mut(case.shard + 4160);
                                chunks.push(&mut chunk[64..][..case.shard]);
                                rest = after;
                            }
                            let (data, parity) = chunks.split_at_mut(code.k());
                            let data: Vec<&[u8]> = data.iter().map(|chunk| &**chunk).collect();
                            code.encode(&data, parity).unwrap();
                            done += case.shard * code.k();
                        }
                    }
                }
            }
            case.rates.push(done as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
    }
    let mut read = 0.0;
    for case in &mut cases {
        case.rates.sort_by(f64::total_cmp);
        let median = case.rates[case.rates.len() / 2];
        if read == 0.0 {
            read = median;
        }
        println!(
            "{:34} {:7.1} GB/s  {:5.2} of reading  (best {:.1})",
            case.name,
            median,
            median / read,
            case.rates[case.rates.len() - 1]
        );
    }
}
