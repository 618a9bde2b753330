//! Measures the rateless codes on this machine: reception overhead, the symbolic phases, and payload rates of
//! one core. `cargo run --release -p steadfast-codes --example measure [kernel] [overhead] [symbolic] [decode] [encode]`;
//! everything without arguments. Rates are bytes of originals (decode) or of coded blocks (encode) a second.
#![allow(clippy::disallowed_types, reason = "a measurement needs a clock")]

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::time::Duration;
use steadfast_codes::kernel::{gf256, xor};
use steadfast_codes::rateless::{Code, Decoder, Encoder, Kind, RankTracker};

const LT_HALF: Kind = Kind::Lt { c: 1.0, delta: 0.5 };
const LT_TENTH: Kind = Kind::Lt { c: 1.0, delta: 0.1 };

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let asked = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    if asked("kernel") {
        kernels();
    }
    if asked("overhead") {
        overhead();
    }
    if asked("symbolic") {
        symbolic();
    }
    if asked("decode") {
        decode();
    }
    if asked("encode") {
        encode();
    }
}

/// A kernel under measurement: destination, sources.
type Kernel<'a> = &'a mut dyn FnMut(&mut [u8], &[&[u8]]);

/// The ceilings for everything below: bytes read and written a second.
fn kernels() {
    println!(
        "kernels, one core: GB/s of sources, strips of 2 KiB in the first cache, of 256 KiB from memory"
    );
    for (place, len, total) in [("cached", 2 << 10, 64 << 10), ("memory", 256 << 10, 512 << 20)] {
        let sources = payload((total / len) as u32, len);
        let views: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        for count in [1, 2, 4, 8] {
            let rate = |f: Kernel<'_>| {
                let mut dst = vec![1; len];
                let rounds = (1 << 30) / total;
                let mut best = f64::MAX;
                for _ in 0..2 {
                    let start = Clock::start();
                    for _ in 0..rounds {
                        views.chunks_exact(count).for_each(|group| f(std::hint::black_box(&mut dst), group));
                    }
                    best = best.min(start.elapsed().as_secs_f64());
                }
                (rounds * total) as f64 / best / 1e9
            };
            let xor = rate(&mut |dst, group| xor::set_xor(dst, group));
            let acc = rate(&mut |dst, group| group.iter().for_each(|source| gf256::mul_acc(dst, source, 77)));
            println!("  {place}, {count} sources: xor {xor:.1}, multiply-accumulate {acc:.1}");
        }
    }
}

/// Processor time of this thread where the system tells, so that other work on the machine counts little.
struct Clock {
    wall: std::time::Instant,
    on_processor_ns: Option<u64>,
}

impl Clock {
    fn start() -> Self {
        Self { wall: std::time::Instant::now(), on_processor_ns: Self::on_processor_ns() }
    }

    fn elapsed(&self) -> Duration {
        match (self.on_processor_ns, Self::on_processor_ns()) {
            // Kept by the scheduler in steps of its tick: not for short spans.
            (Some(before), Some(now)) if self.wall.elapsed() > Duration::from_millis(20) => {
                Duration::from_nanos(now - before)
            }
            _ => self.wall.elapsed(),
        }
    }

    fn on_processor_ns() -> Option<u64> {
        std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
    }
}

/// `0..n` in random order.
fn arrival(n: u32, random: &mut Pcg64Mcg) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
    order
}

/// Blocks taken until the originals can be computed.
fn taken(code: &Code, order: &[u32]) -> u32 {
    let mut tracker = RankTracker::new(code);
    let enough = order.iter().position(|index| {
        tracker.push(*index);
        tracker.missing() == 0
    });
    enough.map_or(order.len() as u32, |last| last as u32 + 1)
}

fn overhead() {
    println!("reception overhead, random arrival from N = 4 K: mean, s.d., p99 (% of K)");
    let cases = [
        (Kind::Mix, 16, 2000),
        (Kind::Mix, 64, 1000),
        (Kind::Mix, 128, 400),
        (Kind::Mix, 256, 200),
        (Kind::Mix, 511, 100),
        (Kind::Mix, 512, 400),
        (Kind::Mix, 1024, 400),
        (Kind::Mix, 2048, 40),
        (LT_HALF, 1024, 200),
        (LT_TENTH, 1024, 200),
    ];
    for (kind, k, draws) in cases {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let mut extra: Vec<f64> = (0..draws)
            .map(|seed| {
                let code = Code::checked(kind, k, seed, 4 * k).expect("4 K blocks decode");
                f64::from(taken(&code, &arrival(4 * k, &mut random)) - k) / f64::from(k) * 100.0
            })
            .collect();
        extra.sort_by(f64::total_cmp);
        let mean = extra.iter().sum::<f64>() / extra.len() as f64;
        let deviation = (extra.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / extra.len() as f64).sqrt();
        let p99 = extra[(extra.len() - 1) * 99 / 100];
        let worst = extra[extra.len() - 1];
        println!("  {kind:?} K = {k}: {mean:.3} {deviation:.3} {p99:.2} (worst {worst:.2} of {draws})");
    }
}

fn symbolic() {
    println!("symbolic phases: graph, rank by arrival (per push), rank_of, schedule");
    for (kind, k) in
        [(Kind::Mix, 127), (Kind::Mix, 511), (Kind::Mix, 1024), (Kind::Mix, 8192), (LT_HALF, 1024)]
    {
        let mut random = Pcg64Mcg::seed_from_u64(2);
        let start = Clock::start();
        let code = Code::checked(kind, k, 5, 4 * k).expect("4 K blocks decode");
        let _ = code.generator_row(4 * k);
        let graph = start.elapsed();
        let order = arrival(4 * k, &mut random);
        let start = Clock::start();
        let pushed = taken(&code, &order);
        let rank = start.elapsed();
        let start = Clock::start();
        code.rank_of(&mut order[..pushed as usize].iter().copied());
        let rank_of = start.elapsed();
        let mut decoder = Decoder::new(&code, 1);
        for index in &order[..pushed as usize] {
            decoder.push(*index, vec![0; 1]).expect("one byte");
        }
        let _ = decoder.cost();
        let start = Clock::start();
        let (inactive, reads, scratch) = decoder.cost().expect("enough blocks");
        println!(
            "  {kind:?} K = {k}: graph {graph:.2?}, rank {rank:.2?} ({:.2?} a push), rank_of {rank_of:.2?}, schedule {:.2?}: \
             {inactive} inactive, {:.1} reads a block, {scratch} strips",
            rank / pushed,
            start.elapsed(),
            reads as f64 / f64::from(k)
        );
    }
}

fn payload(k: u32, len: usize) -> Vec<Vec<u8>> {
    let mut random = Pcg64Mcg::seed_from_u64(3);
    (0..k)
        .map(|_| {
            let mut block = vec![0; len];
            random.fill_bytes(&mut block);
            block
        })
        .collect()
}

fn decode() {
    println!("decode, one core: GB/s of originals (solve only, symbolic phase included), best of 3");
    for (kind, k, len) in [
        (Kind::Mix, 1024, 16 << 10),
        (Kind::Mix, 1024, 64 << 10),
        (Kind::Mix, 1024, 256 << 10),
        (Kind::Mix, 256, 256 << 10),
        (Kind::Mix, 64, 256 << 10),
        (LT_HALF, 1024, 256 << 10),
    ] {
        for (name, originals_first) in [("random", false), ("half the originals", true)] {
            if originals_first && kind != Kind::Mix {
                continue;
            }
            let code = Code::checked(kind, k, 5, 4 * k).expect("4 K blocks decode");
            let mut random = Pcg64Mcg::seed_from_u64(4);
            let mut order = arrival(4 * k, &mut random);
            if originals_first {
                order = arrival(k, &mut random)[..k as usize / 2].to_vec();
                order.extend(k..4 * k);
            }
            let order = &order[..taken(&code, &order) as usize];
            let originals = payload(k, len);
            let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
            let mut best = f64::MAX;
            for _ in 0..3 {
                let mut blocks = vec![vec![1; len]; order.len()];
                let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
                code.encode(order, &views, &mut out).expect("as many as indices");
                let mut decoder = Decoder::new(&code, len);
                for (index, block) in order.iter().zip(blocks) {
                    decoder.push(*index, block).expect("of the block length");
                }
                let start = Clock::start();
                let solved = decoder.solve(1).expect("enough blocks");
                best = best.min(start.elapsed().as_secs_f64());
                assert!(solved == originals, "decoded bytes");
            }
            let bytes = k as usize * len;
            println!("  {kind:?} K = {k}, {} KiB, {name}: {:.2}", len >> 10, bytes as f64 / best / 1e9);
        }
    }
}

fn encode() {
    println!("encode, one core: GB/s of coded blocks, best of 3");
    for (kind, k, len) in [
        (Kind::Mix, 1024, 64 << 10),
        (Kind::Mix, 1024, 256 << 10),
        (Kind::Mix, 64, 256 << 10),
        (LT_HALF, 1024, 256 << 10),
    ] {
        let code = Code::new(kind, k, 5).expect("a code");
        let originals = payload(k, len);
        let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
        let first = if kind == Kind::Mix { k } else { 0 };
        for (name, count) in [("K/2 at once", k / 2), ("2 K at once", 2 * k)] {
            let mut blocks = vec![vec![1; len]; count as usize];
            let indices: Vec<u32> = (first..first + count).collect();
            let mut best = f64::MAX;
            for _ in 0..3 {
                let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
                let start = Clock::start();
                code.encode(&indices, &views, &mut out).expect("as many as indices");
                best = best.min(start.elapsed().as_secs_f64());
            }
            let rate = blocks.len() as f64 * len as f64 / best / 1e9;
            println!("  {kind:?} K = {k}, {} KiB, {name}: {rate:.2}", len >> 10);
        }
        let mut blocks = vec![vec![1; len]; 16];
        let encoder = Encoder::new(&code);
        for kept in [false, true] {
            let start = Clock::start();
            let prepared = kept.then(|| encoder.prepare(&views, |len| vec![0; len]).expect("K originals"));
            let preparation = start.elapsed();
            let mut best = f64::MAX;
            for _ in 0..3 {
                let start = Clock::start();
                for run in 0..32 {
                    let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
                    let made = match &prepared {
                        Some(prepared) => prepared.encode_run(first + 16 * run, &mut out),
                        None => encoder.encode_run(first + 16 * run, &views, &mut out),
                    };
                    made.expect("16 blocks");
                }
                best = best.min(start.elapsed().as_secs_f64());
            }
            let rate = 32.0 * 16.0 * len as f64 / best / 1e9;
            println!(
                "  {kind:?} K = {k}, {} KiB, runs of 16, prepared {kept}: {rate:.2} (preparation {preparation:.2?})",
                len >> 10
            );
        }
    }
}
