//! Every instruction set that this processor has, forced in turn: each kernel and code gives the bytes that arithmetic
//! from its definition gives, and prints a line. `cargo test -p steadfast-codes tiers -- --nocapture` shows them.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;
use common::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::kernel::matrix::{Matrix, Mode};
use steadfast_codes::kernel::{Tier, TierError, gf256, read, xor};
use steadfast_codes::mds;
use steadfast_codes::rateless::{Code, Decoder, Kind};

/// Lengths around every width of register and stretch that a kernel has.
const LENGTHS: [usize; 14] = [0, 1, 15, 16, 17, 31, 63, 64, 65, 127, 257, 1023, 4096, 20_011];

/// Runs at whatever tier is forced; gives what it computed. Wrong bytes fail in it.
type Kernel = fn(&mut Pcg64Mcg, &Field) -> Vec<u8>;

const KERNELS: [(&str, Kernel); 17] = [
    ("xor: d sources into one", sums),
    ("gf256: multiply and accumulate", products),
    ("gf256: k sources into m", matrices),
    ("read: every byte once", reads),
    ("mds: Reed-Solomon", |random, _| stripes(mds::Kind::ReedSolomon, random)),
    ("mds: Cauchy", |random, _| stripes(mds::Kind::Cauchy, random)),
    ("mds: row-diagonal parity", |random, _| stripes(mds::Kind::Rdp, random)),
    ("mds: deltas of Reed-Solomon", |random, _| deltas(mds::Kind::ReedSolomon, random)),
    ("mds: deltas of Cauchy", |random, _| deltas(mds::Kind::Cauchy, random)),
    ("mds: deltas of row-diagonal parity", |random, _| deltas(mds::Kind::Rdp, random)),
    ("xor: two sources into several", copies),
    ("rateless: dense", |random, _| objects(Kind::Mix, 40, random)),
    ("rateless: dense, past the caches", dense),
    ("rateless: a fixed code", |random, _| objects(Kind::ReedSolomon { data: 5, parity: 3 }, 20, random)),
    ("rateless: lt", |random, _| objects(LT_TENTH, 200, random)),
    ("rateless: mix over GF(256)", |random, _| objects(Kind::Mix, 200, random)),
    ("rateless: mix over GF(2)", |random, _| objects(Kind::Mix, 700, random)),
];

#[test]
fn tiers_forced_in_turn_compute_the_same_right_bytes() {
    let field = Field::new();
    let seed = random().next_u64();
    let widest = Tier::detect();
    let mut first: Vec<Vec<u8>> = Vec::new();
    for tier in Tier::available() {
        tier.force().unwrap();
        assert_eq!(Tier::detect(), *tier);
        for (place, (name, kernel)) in KERNELS.iter().enumerate() {
            let bytes = kernel(&mut Pcg64Mcg::seed_from_u64(seed), &field);
            if first.len() == place {
                first.push(bytes);
            } else {
                assert!(
                    first[place] == bytes,
                    "{name} gives other bytes at {tier:?} than at the portable tier"
                );
            }
            println!("tier {:<12} forced  {name:<34} ok", tier.name());
        }
    }
    assert_eq!(Tier::available().last(), Some(&widest), "unforced it is the widest");
    widest.force().unwrap();
}

#[test]
fn a_tier_has_a_name_and_a_wrong_one_is_an_error_that_lists_them() {
    for tier in Tier::available() {
        assert_eq!(tier.name().parse(), Ok(*tier));
    }
    let error = "avx1024".parse::<Tier>().unwrap_err();
    assert_eq!(error, TierError::Unknown { name: "avx1024".to_owned() });
    let said = error.to_string() + &TierError::Unsupported { tier: Tier::Avx512 }.to_string();
    assert!(said.contains("`avx1024`") && said.matches("it has portable").count() == 1, "{said}");
    for tier in Tier::available() {
        assert!(said.matches(&format!(" {}", tier.name())).count() >= 2, "{said}");
    }
}

fn sums(random: &mut Pcg64Mcg, _: &Field) -> Vec<u8> {
    let mut all = Vec::new();
    for len in LENGTHS {
        for count in 1..10 {
            let sources = payload(count, len, random);
            let views: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let mut made = vec![0x77; len];
            xor::set_xor(&mut made, &views);
            let naive: Vec<u8> =
                (0..len).map(|at| sources.iter().fold(0, |sum, source| sum ^ source[at])).collect();
            assert!(made == naive, "{count} sources of {len} bytes");
            xor::xor_many(&mut made, &views);
            assert!(made.iter().all(|byte| *byte == 0), "{count} sources of {len} bytes");
            all.extend(naive);
        }
    }
    all
}

fn products(random: &mut Pcg64Mcg, field: &Field) -> Vec<u8> {
    let mut all = Vec::new();
    for (len, c) in LENGTHS.into_iter().flat_map(|len| [0, 1, 2, 29, 142, 255].map(|c| (len, c))) {
        let pair = payload(2, len, random);
        let mut made = pair[0].clone();
        gf256::mul_acc(&mut made, &pair[1], c);
        assert!(made == field.combine(&[1, c], &pair), "{c} times {len} bytes");
        let mut scaled = pair[1].clone();
        gf256::scale(&mut scaled, c);
        assert!(scaled == field.combine(&[c], &pair[1..]), "{c} times {len} bytes");
        all.extend(made);
    }
    all
}

fn matrices(random: &mut Pcg64Mcg, field: &Field) -> Vec<u8> {
    let mut all = Vec::new();
    for (k, m) in [(1, 1), (4, 2), (8, 3), (10, 4), (16, 4), (32, 8), (5, 9)] {
        for len in LENGTHS {
            let coefficients: Vec<Vec<u8>> =
                (0..m).map(|_| (0..k).map(|_| random.next_u32() as u8).collect()).collect();
            let matrix = Matrix::new(m, k, |output, source| coefficients[output][source]);
            let sources = payload(k as u32, len, random);
            let views: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let mut made = vec![vec![0x77; len]; m];
            let mut outs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
            matrix.run(Tier::detect(), &views, &mut outs, Mode::Set);
            for (row, made) in coefficients.iter().zip(&made) {
                assert!(*made == field.combine(row, &sources), "{k} into {m}, {len} bytes");
            }
            all.extend(made.concat());
        }
    }
    all
}

fn reads(random: &mut Pcg64Mcg, _: &Field) -> Vec<u8> {
    let folded = LENGTHS.iter().map(|len| {
        let bytes = payload(1, len / 8 * 8, random).remove(0);
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let fold = read::fold(&bytes);
        assert_eq!(fold, words.fold(0, |sum, word| sum ^ word), "{len} bytes");
        fold.to_le_bytes()
    });
    folded.flatten().collect()
}

fn stripes(kind: mds::Kind, random: &mut Pcg64Mcg) -> Vec<u8> {
    let mut all = Vec::new();
    for (k, m) in [(2, 2), (5, 2), (10, 2), (10, 4), (17, 3)] {
        let Ok(code) = mds::Code::new(kind, k, m) else { continue };
        for units in [1, 7, 64, 513] {
            let len = units * code.chunk_multiple();
            let mut chunks = payload((k + m) as u32, len, random);
            let (data, parity) = chunks.split_at_mut(k);
            let views: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            code.encode(&views, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
            // The last m chunks of an order drawn anew are lost.
            let order = shuffled((0..(k + m) as u32).collect(), random);
            let (there, lost) = order.split_at(k);
            let available: Vec<(usize, &[u8])> =
                there.iter().map(|at| (*at as usize, chunks[*at as usize].as_slice())).collect();
            let mut back = vec![vec![0x77; len]; m];
            let mut wanted: Vec<(usize, &mut [u8])> =
                lost.iter().map(|at| *at as usize).zip(back.iter_mut().map(Vec::as_mut_slice)).collect();
            code.reconstruct(&available, &mut wanted).unwrap();
            assert!(lost.iter().zip(&back).all(|(at, back)| *back == chunks[*at as usize]), "{code:?}");
            all.extend(chunks[k..].concat());
        }
    }
    all
}

/// Two writes to a data chunk: the deltas of each parity chunk apart and of all at once, both folded into one and applied; parity is
/// then what encoding gives, which is seen to.
fn deltas(kind: mds::Kind, random: &mut Pcg64Mcg) -> Vec<u8> {
    let mut all = Vec::new();
    for (k, m) in [(3, 1), (5, 2), (10, 2), (10, 3), (6, 4), (17, 5)] {
        let Ok(code) = mds::Code::new(kind, k, m) else { continue };
        let len = code.chunk_multiple() * 513;
        let mut chunks = payload((k + m) as u32, len, random);
        encode_parity(&code, &mut chunks);
        let changed = random.next_u32() as usize % k;
        let mut made: Vec<Vec<(mds::DeltaRanges, Vec<u8>)>> = vec![Vec::new(); m];
        for round in 0..2 {
            let offset = random.next_u32() as usize % (len / 2);
            let length = [len - offset, 1 + random.next_u32() as usize % (len / 2)][round];
            let new = payload(1, length, random).remove(0);
            let old = chunks[changed][offset..][..length].to_vec();
            let range = || offset..offset + length;
            let total = |parity| code.delta_ranges(changed, range(), len, parity).unwrap().total();
            let mut at_once: Vec<Vec<u8>> = (0..m).map(|parity| vec![0x77; total(parity)]).collect();
            let mut outs: Vec<&mut [u8]> = at_once.iter_mut().map(Vec::as_mut_slice).collect();
            code.deltas(changed, offset, len, &old, &new, &mut outs).unwrap();
            for (parity, at_once) in at_once.into_iter().enumerate() {
                let mut alone = vec![0x77; at_once.len()];
                let ranges = code.delta(changed, offset, len, &old, &new, parity, &mut alone).unwrap();
                assert!(alone == at_once, "{code:?}: parity {parity}");
                made[parity].push((ranges, alone));
            }
            chunks[changed][offset..][..length].copy_from_slice(&new);
        }
        for (parity, made) in made.iter().enumerate() {
            let made: Vec<(&mds::DeltaRanges, &[u8])> =
                made.iter().map(|(ranges, bytes)| (ranges, &bytes[..])).collect();
            let (ranges, bytes) = mds::fold(&made).unwrap();
            mds::apply(&ranges, &bytes, &mut chunks[k + parity]).unwrap();
            all.extend(bytes);
        }
        let views: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        assert!(code.verify(&views[..k], &views[k..]).unwrap(), "{code:?}");
        let before = chunks[k..].to_vec();
        encode_parity(&code, &mut chunks);
        assert!(chunks[k..] == before, "{code:?}");
    }
    all
}

fn encode_parity(code: &mds::Code, chunks: &mut [Vec<u8>]) {
    let (data, parity) = chunks.split_at_mut(code.k());
    let views: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    code.encode(&views, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
}

fn copies(random: &mut Pcg64Mcg, _: &Field) -> Vec<u8> {
    let mut all = Vec::new();
    for (len, outputs) in LENGTHS.into_iter().flat_map(|len| (1..=5).map(move |outputs| (len, outputs))) {
        let pair = payload(2, len, random);
        let mut made = vec![vec![0x77; len]; outputs];
        let mut outs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        xor::set_all(&mut outs, &pair[0], &pair[1]);
        let naive: Vec<u8> = pair[0].iter().zip(&pair[1]).map(|(a, b)| a ^ b).collect();
        assert!(made.iter().all(|made| *made == naive), "{len} bytes into {outputs}");
        all.extend(naive);
    }
    all
}

fn objects(kind: Kind, k: u32, random: &mut Pcg64Mcg) -> Vec<u8> {
    let code = Code::new(kind, k, 1).unwrap();
    let originals = payload(k, 1030, random);
    let mut decoder = Decoder::new(&code, 1030);
    let (mut drawn, mut blocks) = (Vec::new(), Vec::new());
    let end = code.end().unwrap_or(4 * k);
    for index in shuffled((0..end).collect(), random) {
        let block = encode(&code, &[index], &originals).remove(0);
        drawn.push(index);
        blocks.push(block.clone());
        decoder.push(index, block).unwrap();
        if decoder.missing() == 0 {
            break;
        }
    }
    // All at once sources are read for several blocks, and what blocks share is summed once.
    assert!(encode(&code, &drawn, &originals) == blocks, "{code:?}");
    assert!(decoder.solve(2).unwrap() == originals, "{code:?}");
    blocks.concat()
}

/// So many repair blocks at once that they are written past the caches, and none of them begins at a line.
fn dense(random: &mut Pcg64Mcg, field: &Field) -> Vec<u8> {
    const LEN: usize = 16_500;
    let code = Code::new(Kind::Mix, 40, 1).unwrap();
    let originals = payload(40, LEN, random);
    let apart: Vec<Vec<u8>> = originals.iter().map(|block| [&[0][..], &block[..]].concat()).collect();
    let views: Vec<&[u8]> = apart.iter().map(|block| &block[1..]).collect();
    let indices: Vec<u32> = (40..170).collect();
    let mut made = vec![vec![0x77; LEN + 1]; indices.len()];
    let mut outs: Vec<&mut [u8]> = made.iter_mut().map(|block| &mut block[1..]).collect();
    code.encode(&indices, &views, &mut outs).unwrap();
    for (index, made) in indices.iter().zip(&made) {
        assert!(made[1..] == field.combine(&code.generator_row(*index), &originals), "block {index}");
    }
    made.concat()
}
