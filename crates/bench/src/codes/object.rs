//! Cases on whole objects: the rateless codes.

use super::{Bed, Case, EXPERIMENT, Work, limit::Reader, measure_rates, stripe::CACHED_LEN};
use crate::{
    arrival::{Arrival, STORED},
    measure::{Clock, Contender, Figure, in_turns},
    memory::Memory,
    rivals,
};
use anyhow::{Context, Result, ensure};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, Decoder, Kind, LossRanks, Push, RankTracker, Scratch};
use steadfast_report::Report;

/// Disks of the durability rule's question.
const DISKS: usize = 24;
/// Blocks a writer mints at once.
const RUN: u32 = 16;
/// What a small object is worked on again and again for in one turn: so many bytes of it in all.
const CACHED_TURN_LEN: usize = 8 << 20;
/// What the symbolic phase of a decode is to stay below, and the test of 200 loss patterns, seconds.
const SYMBOLIC_MAX: f64 = 1e-3;
const RANK_MAX: f64 = 0.1;

/// The codes measured.
const KINDS: &[(&str, Kind)] = &[("mix-b", Kind::Mix), ("mix-a", Kind::MixA), ("mix-c", Kind::MixC)];

/// An object and what is done with it.
pub(super) struct Object {
    kind: Kind,
    k: u32,
    block_len: usize,
    /// It stays in the cache, with all that is made of it.
    cached: bool,
    operation: Operation,
}

impl Object {
    /// How often it is worked on in a turn.
    fn repeats(&self) -> usize {
        if self.cached { (CACHED_TURN_LEN / (self.k as usize * self.block_len)).max(1) } else { 1 }
    }

    /// What reads it fastest.
    fn reader(&self, originals: &Memory, bed: &mut Bed) -> Reader {
        let fastest = || Reader::fastest(originals.view(), originals.view().len());
        if self.cached { fastest() } else { *bed.reader.get_or_insert_with(fastest) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Decode {
        threads: usize,
        arrival: Arrival,
    },
    /// All repair blocks of N = 4 K at once; with `runs`, half of K sixteen at a time, parity columns kept from before.
    Encode {
        runs: bool,
    },
    Symbolic,
    Rank {
        patterns: u32,
        /// Whether the originals are among the blocks stored.
        originals: bool,
    },
}

pub(super) fn cases() -> Vec<Case> {
    let k = 1024;
    let block_len = 64 << 10;
    let mut cases = Vec::new();
    for (name, kind) in KINDS {
        let mut push = |text: String, operation| {
            let work = Work::Object(Object { kind: *kind, k, block_len, cached: false, operation });
            cases.push(Case { name: text, work });
        };
        let shape = format!("{name} K={k} block={}KiB", block_len >> 10);
        for arrival in [Arrival::Random, Arrival::Disks] {
            // Random order unless the name says otherwise.
            let text = match arrival {
                Arrival::Random => format!("decode {shape}"),
                other => format!("decode {shape} arrival={}", other.name()),
            };
            push(text.clone(), Operation::Decode { threads: 1, arrival });
            push(format!("{text} threads=2"), Operation::Decode { threads: 2, arrival });
        }
        push(format!("encode {shape}"), Operation::Encode { runs: false });
        push(format!("encode {shape} runs={RUN}"), Operation::Encode { runs: true });
        push(format!("symbolic {name} K={k} arrival=random"), Operation::Symbolic);
        push(format!("rank {name} K={k} patterns=200"), Operation::Rank { patterns: 200, originals: true });
        let operation = Operation::Rank { patterns: 200, originals: false };
        push(format!("rank {name} repair-only K={k} patterns=200"), operation);
    }
    cases.extend(segment_cases());
    cases.extend(cached_cases());
    cases
}

/// What segments of 64 and 16 MiB are stored in: sums of B have coefficients there, and rows are dense.
fn segment_cases() -> impl Iterator<Item = Case> {
    let decode = |arrival| Operation::Decode { threads: 1, arrival };
    [256, 64].into_iter().flat_map(move |k| {
        let shape = format!("mix-b K={k} block=256KiB");
        let operations = [
            (format!("decode {shape}"), decode(Arrival::Random)),
            (format!("decode {shape} arrival=disks"), decode(Arrival::Disks)),
            (format!("encode {shape}"), Operation::Encode { runs: false }),
        ];
        operations.map(|(name, operation)| {
            let object = Object { kind: Kind::Mix, k, block_len: 256 << 10, cached: false, operation };
            Case { name, work: Work::Object(object) }
        })
    })
}

/// The same codes of small objects: N = 4 K blocks are as long together as a stripe that stays in the cache. With K = 1024 blocks of 128
/// bytes would do that, and what is measured then has cases of its own, `symbolic`.
fn cached_cases() -> impl Iterator<Item = Case> {
    [256, 64].into_iter().flat_map(|k| {
        let block_len = CACHED_LEN / (STORED * k) as usize;
        let size =
            if block_len < 1 << 10 { format!("{block_len}B") } else { format!("{}KiB", block_len >> 10) };
        let operations = [
            ("decode", Operation::Decode { threads: 1, arrival: Arrival::Random }),
            ("encode", Operation::Encode { runs: false }),
        ];
        operations.map(|(verb, operation)| {
            let object = Object { kind: Kind::Mix, k, block_len, cached: true, operation };
            Case { name: format!("{verb} mix-b K={k} block={size} cached"), work: Work::Object(object) }
        })
    })
}

pub(super) fn run(name: &str, object: &Object, bed: &mut Bed, report: &mut Report) -> Result<()> {
    let code = Code::checked(object.kind, object.k, bed.seed, STORED * object.k)?;
    match object.operation {
        Operation::Decode { threads, arrival } => decode(name, object, &code, threads, arrival, bed, report),
        Operation::Encode { runs } => encode(name, object, &code, runs, bed, report),
        Operation::Symbolic => symbolic(name, &code, bed, report),
        Operation::Rank { patterns, originals } => rank(name, &code, patterns, originals, bed, report),
    }
}

/// `0..n` in an order drawn by `random`.
fn any_order(n: u32, random: &mut Pcg64Mcg) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
    order
}

/// The first of `order` that give all originals.
fn enough(code: &Code, order: &[u32]) -> Result<usize> {
    let mut tracker = RankTracker::new(code);
    let last = order.iter().position(|index| {
        tracker.push(*index);
        tracker.missing() == 0
    });
    Ok(last.context("all blocks together do not decode")? + 1)
}

/// An object in memory, the blocks made of it, and where they are worked on.
struct Bytes<'a> {
    originals: &'a Memory,
    coded: Memory,
    work: Memory,
}

fn decode(
    name: &str,
    object: &Object,
    code: &Code,
    threads: usize,
    arrival: Arrival,
    bed: &mut Bed,
    report: &mut Report,
) -> Result<()> {
    let (len, bytes_len) = (object.block_len, object.k as usize * object.block_len);
    let mut random = Pcg64Mcg::seed_from_u64(bed.seed);
    let order = arrival.draw(object.k, &mut random);
    let received = &order[..enough(code, &order)?];
    let originals = Memory::new(bytes_len, bed.seed);
    let mut coded = Memory::new(received.len() * len, bed.seed);
    let views: Vec<&[u8]> = originals.view().chunks_exact(len).collect();
    let mut outs: Vec<&mut [u8]> = coded.all().chunks_exact_mut(len).collect();
    code.encode(received, &views, &mut outs)?;
    let work = Memory::new(received.len() * len, bed.seed);
    let mut bytes = Bytes { originals: &originals, coded, work };
    let repeats = object.repeats();
    let rate = move |seconds: f64| (repeats * bytes_len) as f64 / seconds / 1e9;
    // Two threads are timed on the wall, and so is then the one beside them.
    let clock = if threads == 1 { Clock::Thread } else { Clock::Wall };
    // Memory that stays from segment to segment, as a reader's does.
    let solve = |threads: usize| {
        let mut scratch = Scratch::new();
        move |bytes: &mut Bytes<'_>| {
            let mut all = 0.0;
            for _ in 0..repeats {
                bytes.work.all().copy_from_slice(bytes.coded.view());
                let blocks = received.iter().copied().zip(bytes.work.all().chunks_exact_mut(len));
                let (seconds, solved) = clock.seconds(|| solved(code, len, blocks, &mut scratch, threads));
                same(&solved?, bytes.originals.view())?;
                all += seconds;
            }
            Ok(rate(all))
        }
    };
    let reader = object.reader(&originals, bed);
    let mut contenders = vec![Contender::new("ours", solve(threads)), limit(reader, clock, threads, repeats)];
    let others = if threads == 1 { rivals::objects(object.k as usize, len) } else { Vec::new() };
    for mut rival in others {
        rival.prepare_decode(bytes.originals.view(), &order)?;
        contenders.push(Contender::new(rival.name(), move |bytes: &mut Bytes<'_>| {
            let mut all = 0.0;
            for _ in 0..repeats {
                all += rival.decode(bytes.originals.view(), &|work| clock.seconds(work).0)?;
            }
            Ok(rate(all))
        }));
    }
    if threads > 1 {
        contenders.push(Contender::new("steadfast 1-thread", solve(1)));
        let mut works: Vec<Memory> =
            (1..threads).map(|_| Memory::new(received.len() * len, bed.seed)).collect();
        let mut scratches: Vec<Scratch> = (0..threads).map(|_| Scratch::new()).collect();
        contenders.push(Contender::new("steadfast 1-thread-each", move |bytes: &mut Bytes<'_>| {
            let works: Vec<&mut Memory> = std::iter::once(&mut bytes.work).chain(&mut works).collect();
            let jobs: Vec<_> = works
                .into_iter()
                .zip(&mut scratches)
                .map(|(work, scratch)| {
                    work.all().copy_from_slice(bytes.coded.view());
                    let blocks = received.iter().copied().zip(work.all().chunks_exact_mut(len));
                    move || solved(code, len, blocks, scratch, 1)
                })
                .collect();
            let (seconds, all) = clock.seconds(|| at_once(jobs));
            all.into_iter().try_for_each(|solved| same(&solved?, bytes.originals.view()))?;
            Ok((threads * bytes_len) as f64 / seconds / 1e9)
        }));
    }
    let figures = measure_rates(name, bed, contenders, &mut bytes, report)?;
    if threads > 1 {
        let [ours, _, one, each] = &figures[..] else {
            unreachable!("ours, the limit, one thread, one thread each")
        };
        let record = report.add(EXPERIMENT, name, "speedup", ours.median / one.median, "times");
        record.limit = Some(each.median / one.median);
        record.ratio = Some(ours.median / each.median);
    } else {
        let extra = received.len() - object.k as usize;
        report.add(EXPERIMENT, name, "extra_blocks", extra as f64, "blocks");
    }
    Ok(())
}

/// The originals in order, from these blocks of their code.
fn solved<'a>(
    code: &Code,
    len: usize,
    blocks: impl Iterator<Item = (u32, &'a mut [u8])>,
    scratch: &mut Scratch,
    threads: usize,
) -> Result<Vec<&'a mut [u8]>> {
    let mut decoder = Decoder::new(code, len);
    for (index, block) in blocks {
        decoder.push(index, block)?;
    }
    let mut originals = Vec::new();
    decoder.solve_with(scratch, threads, &mut originals)?;
    Ok(originals)
}

fn same(solved: &[&mut [u8]], object: &[u8]) -> Result<()> {
    let blocks = object.chunks_exact(object.len() / solved.len());
    ensure!(solved.iter().zip(blocks).all(|(solved, block)| **solved == *block), "decoded wrong bytes");
    Ok(())
}

/// Runs each on a thread of its own, the first on this one.
fn at_once<T: Send>(jobs: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    std::thread::scope(|scope| {
        let mut jobs = jobs.into_iter();
        let first = jobs.next();
        let others: Vec<_> = jobs.map(|job| scope.spawn(job)).collect();
        let first = first.map(|job| job());
        first
            .into_iter()
            .chain(others.into_iter().map(|job| job.join().expect("what is measured does not panic")))
            .collect()
    })
}

/// Reading the object as often, each thread a part of it.
fn limit<'a, 'b>(reader: Reader, clock: Clock, threads: usize, repeats: usize) -> Contender<'a, Bytes<'b>> {
    Contender::new("read", move |bytes: &mut Bytes<'b>| {
        let object = bytes.originals.view();
        let part = object.len().div_ceil(threads);
        let once = || match threads {
            1 => reader.read(object),
            _ => drop(at_once(object.chunks(part).map(|part| move || reader.read(part)).collect())),
        };
        let (seconds, ()) = clock.seconds(|| (0..repeats).for_each(|_| once()));
        Ok((repeats * object.len()) as f64 / seconds / 1e9)
    })
}

fn encode(
    name: &str,
    object: &Object,
    code: &Code,
    runs: bool,
    bed: &mut Bed,
    report: &mut Report,
) -> Result<()> {
    let (k, len) = (object.k, object.block_len);
    let count = if runs { k / 2 } else { (STORED - 1) * k };
    let indices: Vec<u32> = (k..k + count).collect();
    let coded_len = count as usize * len;
    let originals = Memory::new(k as usize * len, bed.seed);
    let work = Memory::new(coded_len, bed.seed);
    let mut bytes = Bytes { originals: &originals, coded: Memory::new(0, 0), work };
    let repeats = object.repeats();
    let coded_rate = move |seconds: f64| (repeats * coded_len) as f64 / seconds / 1e9;
    let clock = Clock::Thread;
    let views: Vec<&[u8]> = originals.view().chunks_exact(len).collect();
    let prepared = if runs { Some(code.encoder().prepare(&views, |len| vec![0; len])?) } else { None };
    let make = |bytes: &mut Bytes<'_>| -> Result<f64> {
        let mut outs: Vec<&mut [u8]> = bytes.work.all().chunks_exact_mut(len).collect();
        let mut once = || {
            let Some(prepared) = &prepared else { return code.encode(&indices, &views, &mut outs) };
            let mut firsts = (k..).step_by(RUN as usize);
            outs.chunks_mut(RUN as usize)
                .try_for_each(|outs| prepared.encode_run(firsts.next().expect("endless"), outs))
        };
        let (seconds, outcome) = clock.seconds(|| (0..repeats).try_for_each(|_| once()));
        outcome?;
        Ok(coded_rate(seconds))
    };
    make(&mut bytes)?;
    verify_encoded(code, &indices, &bytes, len)?;
    let reader = object.reader(&originals, bed);
    let mut contenders = vec![Contender::new("ours", make), limit(reader, clock, 1, repeats)];
    let others = if runs { Vec::new() } else { rivals::objects(k as usize, len) };
    for mut rival in others {
        contenders.push(Contender::new(rival.name(), move |bytes: &mut Bytes<'_>| {
            let timer: rivals::Timer<'_> = &|work| clock.seconds(work).0;
            let mut all = 0.0;
            for _ in 0..repeats {
                all += rival.encode(bytes.originals.view(), count as usize, timer)?;
            }
            Ok(coded_rate(all))
        }));
    }
    measure_rates(name, bed, contenders, &mut bytes, report)?;
    Ok(())
}

/// The blocks in `bytes.work`, with the originals they cannot replace, have to give the object back.
fn verify_encoded(code: &Code, indices: &[u32], bytes: &Bytes<'_>, len: usize) -> Result<()> {
    let mut decoder = Decoder::new(code, len);
    for (index, block) in indices.iter().zip(bytes.work.view().chunks_exact(len)) {
        decoder.push(*index, block.to_vec())?;
    }
    let originals: Vec<&[u8]> = bytes.originals.view().chunks_exact(len).collect();
    for (index, block) in (0..).zip(&originals) {
        if decoder.missing() == 0 {
            break;
        }
        decoder.push(index, block.to_vec())?;
    }
    ensure!(decoder.solve(1)? == originals, "encoded wrong bytes");
    Ok(())
}

/// Records a time: the median of the rounds, and what it is to stay below, where something was set.
fn add_time(name: &str, metric: &'static str, figure: Figure, most: Option<f64>, report: &mut Report) {
    let record = report.add(EXPERIMENT, name, metric, figure.median, "s");
    record.spread = Some(figure.spread);
    record.limit = most;
    record.ratio = most.map(|most| figure.median / most);
}

/// Finding the schedule once the blocks are there, and the rank test while they arrive. Every round has an arrival
/// order of its own.
fn symbolic(name: &str, code: &Code, bed: &mut Bed, report: &mut Report) -> Result<()> {
    let k = code.k();
    let mut order = {
        let mut random = Pcg64Mcg::seed_from_u64(bed.seed);
        move || any_order(STORED * k, &mut random)
    };
    let mut order_again = order.clone();
    let schedule = move |_: &mut ()| {
        let order = order();
        let mut decoder = Decoder::new(code, 1);
        for index in order {
            if decoder.missing() == 0 {
                break;
            }
            let (push, _) = decoder.push(index, vec![0; 1])?;
            ensure!(push != Push::Duplicate, "block {index} came once");
        }
        let (seconds, cost) = Clock::Thread.seconds(|| decoder.cost());
        cost.context("all blocks together do not decode")?;
        Ok(seconds)
    };
    let rank = move |_: &mut ()| {
        let order = order_again();
        let (seconds, taken) = Clock::Thread.seconds(|| enough(code, &order));
        taken?;
        Ok(seconds)
    };
    let mut contenders = [Contender::new("schedule", schedule), Contender::new("rank", rank)];
    let figures = in_turns(bed.rounds, &mut contenders, &mut ())?;
    add_time(name, "time", figures[0], Some(SYMBOLIC_MAX), report);
    add_time(name, "time rank", figures[1], None, report);
    Ok(())
}

/// The durability rule's question: do 3 K / 2 blocks on 24 disks survive the loss of any four, for so many fours? `time`
/// with the work that patterns share, `time one-by-one` with a rank test each.
fn rank(
    name: &str,
    code: &Code,
    patterns: u32,
    originals: bool,
    bed: &mut Bed,
    report: &mut Report,
) -> Result<()> {
    let first = if originals { 0 } else { code.k() };
    let stored = code.k() * 3 / 2;
    let mut random = Pcg64Mcg::seed_from_u64(bed.seed);
    let mut disks = vec![Vec::new(); DISKS];
    for (place, index) in any_order(stored, &mut random).into_iter().enumerate() {
        disks[place % DISKS].push(first + index);
    }
    let lost: Vec<Vec<usize>> = (0..patterns)
        .map(|_| {
            any_order(DISKS as u32, &mut random)
                .into_iter()
                .take(DISKS / 6)
                .map(|disk| disk as usize)
                .collect()
        })
        .collect();
    let (disks, lost) = (&disks, &lost);
    let decodes = move |lost: &&Vec<usize>| {
        let left = disks.iter().enumerate().filter(|(disk, _)| !lost.contains(disk));
        code.decodes(&mut left.flat_map(|(_, blocks)| blocks.iter().copied()))
    };
    let expected = lost.iter().filter(decodes).count();
    let same = move |count: usize| {
        ensure!(count == expected, "{count} patterns decode, one by one {expected}");
        Ok(())
    };
    let shared = move |_: &mut ()| {
        let (seconds, count) = Clock::Thread.seconds(|| {
            let ranks = LossRanks::new(code, disks.clone());
            lost.iter().filter(|lost| ranks.without(lost) == code.k()).count()
        });
        same(count)?;
        Ok(seconds)
    };
    let alone = move |_: &mut ()| {
        let (seconds, count) = Clock::Thread.seconds(|| lost.iter().filter(decodes).count());
        same(count)?;
        Ok(seconds)
    };
    let mut contenders = [Contender::new("shared", shared), Contender::new("one-by-one", alone)];
    let figures = in_turns(bed.rounds.min(9), &mut contenders, &mut ())?;
    add_time(name, "time", figures[0], Some(RANK_MAX), report);
    add_time(name, "time one-by-one", figures[1], None, report);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(name: &str, object: &Object) -> Report {
        let mut bed = Bed { rounds: 3, quick: true, seed: 3, reader: None, memory: None };
        let mut report = Report::new(3);
        run(name, object, &mut bed, &mut report).unwrap();
        report
    }

    #[test]
    fn two_threads_have_the_limit_of_two() {
        let operation = Operation::Decode { threads: 2, arrival: Arrival::Random };
        let object = Object { kind: Kind::Mix, k: 64, block_len: 16 << 10, cached: false, operation };
        let report = records("decode threads=2", &object);
        let metrics: Vec<&str> = report.records.iter().map(|record| record.metric.as_ref()).collect();
        let beside = ["throughput steadfast 1-thread", "throughput steadfast 1-thread-each", "speedup"];
        assert_eq!(metrics, [&["throughput"][..], &beside].concat());
        for record in &report.records {
            let (value, limit) = (record.value.unwrap(), record.limit.unwrap());
            assert!(value > 0.0 && limit > 0.0, "{record:?}");
            assert!((record.ratio.unwrap() - value / limit).abs() < 1e-9, "{record:?}");
        }
    }

    #[test]
    fn small_objects_stay_in_the_cache_and_have_its_limit() {
        for case in cached_cases() {
            let Work::Object(object) = &case.work else { panic!("{}", case.name) };
            assert!(object.cached && object.repeats() > 1, "{}", case.name);
            assert!((STORED * object.k) as usize * object.block_len <= CACHED_LEN, "{}", case.name);
            let report = records(&case.name, object);
            let ours = &report.records[0];
            assert!(ours.metric == "throughput" && ours.ratio.unwrap() > 0.0, "{ours:?}");
        }
    }

    #[test]
    fn a_time_stands_beside_what_it_is_to_stay_below() {
        let mut report = Report::new(1);
        let figure = Figure { median: 4e-4, spread: 0.1 };
        add_time("symbolic", "time", figure, Some(SYMBOLIC_MAX), &mut report);
        add_time("symbolic", "time rank", figure, None, &mut report);
        let limits = report.records.iter().map(|record| (record.limit, record.ratio)).collect::<Vec<_>>();
        assert_eq!(limits, [(Some(1e-3), Some(4e-4 / 1e-3)), (None, None)]);
    }
}
