//! Cases on stripes: the MDS codes.

use super::{Bed, Case, EXPERIMENT, Work, checked, checked::When, limit::Reader, measure_rates};
use crate::{
    measure::{Clock, Contender},
    memory::{Memory, split, split_lost, split_writable},
    rivals::{self, Stripes},
};
use anyhow::{Result, ensure};
use std::hint::black_box;
use steadfast_codes::{
    kernel::{Tier, xor},
    mds::{Code, Kind},
};
use steadfast_report::Report;

/// Shapes of the Reed-Solomon cases: k, m.
const SHAPES: [(usize, usize); 5] = [(4, 2), (8, 3), (10, 4), (16, 4), (32, 8)];
/// Shapes of the cases with checksums.
const CHECKED: [(usize, usize); 2] = [(4, 2), (10, 4)];
/// Data shards of the double-parity cases.
const DOUBLE: [usize; 3] = [4, 10, 16];
/// A stripe that is worked on again and again leaves half of a second-level cache of 1 MiB to everything else.
pub(super) const CACHED_LEN: usize = 512 << 10;
/// Bytes that a small write changes.
const DELTA_LEN: usize = 4 << 10;
/// Shards that short ones are compared with.
const LONG_LEN: usize = 1 << 20;
/// Data worked on in one turn.
const TURN_LEN: usize = 96 << 20;
const TURN_LEN_QUICK: usize = 32 << 20;

/// A code, its shards and what is done with them.
pub(super) struct Stripe {
    kind: Kind,
    k: usize,
    m: usize,
    /// As the name says; the code's multiple may take a little off.
    shard_len: usize,
    cached: bool,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Encode,
    /// With a checksum of every shard.
    EncodeChecked,
    Reconstruct,
    Delta,
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |kind, (k, m), shard_len: usize, cached, operation| {
        let code = match kind {
            Kind::ReedSolomon => "rs",
            Kind::Cauchy => "cauchy",
            Kind::Rdp => "rdp",
        };
        let size = if shard_len < 1 << 20 {
            format!("{}KiB", shard_len >> 10)
        } else {
            format!("{}MiB", shard_len >> 20)
        };
        let place = if cached { "cached" } else { "memory" };
        let name = match operation {
            Operation::Encode => format!("{code}-encode k={k} m={m} shard={size} {place}"),
            Operation::EncodeChecked => format!("{code}-encode-crc k={k} m={m} shard={size} {place}"),
            Operation::Reconstruct => format!("{code}-reconstruct k={k} m={m} shard={size} {place}"),
            Operation::Delta => format!("delta {code} k={k} m={m} {}KiB {place}", DELTA_LEN >> 10),
        };
        cases.push(Case { name, work: Work::Stripe(Stripe { kind, k, m, shard_len, cached, operation }) });
    };
    for shape in SHAPES {
        for shard_len in [64 << 10, 1 << 20] {
            push(Kind::ReedSolomon, shape, shard_len, false, Operation::Encode);
        }
        let fits = cached_shard_len(shape);
        push(Kind::ReedSolomon, shape, fits, true, Operation::Encode);
        if fits != 64 << 10 {
            push(Kind::ReedSolomon, shape, 64 << 10, true, Operation::Encode);
        }
    }
    for shape in CHECKED {
        push(Kind::ReedSolomon, shape, 1 << 20, false, Operation::EncodeChecked);
    }
    for shape in SHAPES {
        for shard_len in [64 << 10, 1 << 20] {
            push(Kind::ReedSolomon, shape, shard_len, false, Operation::Reconstruct);
        }
        push(Kind::ReedSolomon, shape, cached_shard_len(shape), true, Operation::Reconstruct);
    }
    for kind in [Kind::Cauchy, Kind::Rdp] {
        for k in DOUBLE {
            push(kind, (k, 2), 1 << 20, false, Operation::Encode);
            push(kind, (k, 2), cached_shard_len((k, 2)), true, Operation::Encode);
        }
        push(kind, (10, 2), 1 << 20, false, Operation::Reconstruct);
    }
    for kind in [Kind::ReedSolomon, Kind::Cauchy, Kind::Rdp] {
        for cached in [true, false] {
            push(kind, (10, 2), 64 << 10, cached, Operation::Delta);
        }
    }
    cases
}

/// The longest shards, a power of two, with which a stripe stays in the cache.
fn cached_shard_len((k, m): (usize, usize)) -> usize {
    1 << (CACHED_LEN / (k + m)).ilog2()
}

/// A code over one stripe shape with the plan for its first m shards.
pub(super) struct Ours {
    code: Code,
    plan: steadfast_codes::mds::Reconstruction,
}

impl Ours {
    pub(super) fn new(kind: Kind, k: usize, m: usize) -> Result<Self> {
        let code = Code::new(kind, k, m)?;
        let others: Vec<usize> = (m..k + m).collect();
        let lost: Vec<usize> = (0..m).collect();
        let plan = code.plan(&others, &lost)?;
        Ok(Self { code, plan })
    }
}

impl Stripes for Ours {
    fn name(&self) -> String {
        match self.code.kind() {
            Kind::ReedSolomon => "steadfast rs",
            Kind::Cauchy => "steadfast cauchy",
            Kind::Rdp => "steadfast rdp",
        }
        .to_owned()
    }

    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<()> {
        Ok(self.code.encode(data, parity)?)
    }

    fn rebuild(&mut self, lost: &mut [&mut [u8]], others: &[&[u8]]) -> Result<()> {
        Ok(self.plan.run(others, lost)?)
    }
}

/// What a contender does in one turn.
#[derive(Clone, Copy)]
struct Turn {
    /// Or rebuilds its first m shards.
    encodes: bool,
    k: usize,
    m: usize,
    shard_len: usize,
    stripes: usize,
}

impl Turn {
    /// GB/s of the k shards that are read.
    fn rate(&self, seconds: f64) -> f64 {
        (self.stripes * self.k * self.shard_len) as f64 / seconds / 1e9
    }

    fn contend(self, name: String, mut contender: Box<dyn Stripes>) -> Contender<'static, Memory> {
        let Self { encodes, k, m, shard_len, stripes } = self;
        Contender::new(name, move |memory: &mut Memory| {
            let mut outcome = Ok(());
            let (seconds, ()) = Clock::Thread.seconds(|| {
                memory.next(stripes, (k + m) * shard_len, |stripe| {
                    let done = if encodes {
                        split(stripe, shard_len, k, |data, parity| contender.encode(data, parity))
                    } else if contender.wants_writable() {
                        split_writable(stripe, shard_len, |shards| contender.rebuild_writable(shards, m))
                    } else {
                        // The parity in the stripe is whoever's wrote last: the bytes rebuilt mean nothing, the
                        // work is the same. That ours are right was checked, and rivals have tests.
                        split_lost(stripe, shard_len, m, |lost, others| contender.rebuild(lost, others))
                    };
                    if done.is_err() {
                        outcome = done;
                    }
                });
            });
            outcome.map(|()| self.rate(seconds))
        })
    }
}

pub(super) fn run(name: &str, stripe: &Stripe, bed: &mut Bed, report: &mut Report) -> Result<()> {
    if stripe.operation == Operation::Delta {
        return delta(name, stripe, bed, report);
    }
    let (k, m) = (stripe.k, stripe.m);
    let ours = Ours::new(stripe.kind, k, m)?;
    // What every contender takes: rivals work in units of 64 bytes.
    let multiple = 64 * ours.code.chunk_multiple();
    let shard_len = stripe.shard_len / multiple * multiple;
    let stripe_len = (k + m) * shard_len;
    let mut memory = if stripe.cached { Memory::new(stripe_len, bed.seed) } else { bed.memory() };
    verify(&ours.code, &mut Memory::new(stripe_len, bed.seed), shard_len)?;
    let data_len = k * shard_len;
    let reader = if stripe.cached {
        Reader::fastest(&memory.view()[..data_len], data_len)
    } else {
        *bed.reader.get_or_insert_with(|| Reader::fastest(memory.view(), data_len))
    };
    let mut others: Vec<Box<dyn Stripes>> = Vec::new();
    if stripe.kind != Kind::ReedSolomon {
        others.push(Box::new(Ours::new(Kind::ReedSolomon, k, m)?));
    }
    let checked = stripe.operation == Operation::EncodeChecked;
    if checked {
        checked::verify(k, m, shard_len)?;
        others.push(Box::new(checked::Checked::new(k, m, When::After)?));
        others.push(Box::new(Ours::new(Kind::ReedSolomon, k, m)?));
    } else {
        others.extend(rivals::stripes(k, m, shard_len)?);
    }
    let turn_len = if bed.quick { TURN_LEN_QUICK } else { TURN_LEN };
    let encodes = stripe.operation != Operation::Reconstruct;
    let turn = Turn { encodes, k, m, shard_len, stripes: (turn_len / data_len).max(1) };
    let limit = Contender::new("read", move |memory: &mut Memory| {
        let read = if encodes { 0..k * shard_len } else { m * shard_len..stripe_len };
        let (seconds, ()) = Clock::Thread
            .seconds(|| memory.next(turn.stripes, stripe_len, |stripe| reader.read(&stripe[read.clone()])));
        Ok(turn.rate(seconds))
    });
    let first: Box<dyn Stripes> =
        if checked { Box::new(checked::Checked::new(k, m, When::Strips)?) } else { Box::new(ours) };
    let mut contenders = vec![turn.contend(first.name(), first), limit];
    let rivals = others.into_iter().filter(|rival| encodes || rival.rebuilds());
    contenders.extend(rivals.map(|rival| turn.contend(rival.name(), rival)));
    if stripe.kind == Kind::ReedSolomon && !stripe.cached && !checked {
        // What it is to be as fast as: the same shards encoded, long ones.
        let same: Box<dyn Stripes> = Box::new(Ours::new(Kind::ReedSolomon, k, m)?);
        if !encodes {
            contenders.push(Turn { encodes: true, ..turn }.contend("steadfast rs-encode".to_owned(), same));
        } else if shard_len < LONG_LEN {
            let long = Turn { shard_len: LONG_LEN, stripes: (turn_len / (k * LONG_LEN)).max(1), ..turn };
            contenders.push(long.contend("steadfast rs shard=1MiB".to_owned(), same));
        }
    }
    measure_rates(name, bed, contenders, &mut memory, report)?;
    if !stripe.cached {
        bed.memory = Some(memory);
    }
    Ok(())
}

/// Every tier makes the same parity, and the first m data shards come back from what is left.
fn verify(code: &Code, memory: &mut Memory, shard_len: usize) -> Result<()> {
    let (k, m) = (code.k(), code.m());
    let original = memory.view()[..k * shard_len].to_vec();
    let mut parities: Option<Vec<u8>> = None;
    for tier in Tier::available() {
        memory.all()[k * shard_len..].fill(0xee);
        split(memory.all(), shard_len, k, |data, parity| code.encode_at(*tier, data, parity))?;
        let made = memory.view()[k * shard_len..].to_vec();
        ensure!(
            parities.get_or_insert_with(|| made.clone()) == &made,
            "{tier:?} makes other parity than narrower tiers"
        );
    }
    memory.all()[..m * shard_len].fill(0xee);
    split_lost(memory.all(), shard_len, m, |lost, others| {
        let available: Vec<(usize, &[u8])> = (m..).zip(others.iter().copied()).collect();
        let mut wanted: Vec<(usize, &mut [u8])> =
            (0..).zip(lost.iter_mut().map(|shard| &mut **shard)).collect();
        code.reconstruct(&available, &mut wanted)
    })?;
    ensure!(memory.view()[..k * shard_len] == original, "reconstructed wrong bytes");
    Ok(())
}

/// What 4 KiB written anew add to both parity shards, and the same bytes moved by plain XOR: old and new in once, one
/// delta out a parity shard. Two XORs one after the other would read old and new twice, and flatter the code.
fn delta(name: &str, stripe: &Stripe, bed: &mut Bed, report: &mut Report) -> Result<()> {
    let code = Code::new(stripe.kind, stripe.k, stripe.m)?;
    ensure!(stripe.m == 2, "a delta is measured for two parity shards");
    let shard_len = code.chunk_multiple() * stripe.shard_len;
    let data_shard = stripe.k / 2;
    let lens = (0..stripe.m)
        .map(|parity| Ok(code.delta_ranges(data_shard, 0..DELTA_LEN, shard_len, parity)?.total()))
        .collect::<Result<Vec<usize>>>()?;
    verify_delta(&code, shard_len, data_shard)?;
    let write_len = 2 * DELTA_LEN + lens.iter().sum::<usize>().next_multiple_of(4096);
    let mut memory = if stripe.cached { Memory::new(write_len, bed.seed) } else { bed.memory() };
    let writes = if bed.quick { 1000 } else { 4000 };
    let rate = move |seconds: f64| (writes * DELTA_LEN) as f64 / seconds / 1e9;
    let ours = |memory: &mut Memory| {
        let mut outcome = Ok(());
        let (seconds, ()) = Clock::Thread.seconds(|| {
            memory.next(writes, write_len, |bytes| {
                let (old, rest) = bytes.split_at_mut(DELTA_LEN);
                let (new, outs) = rest.split_at_mut(DELTA_LEN);
                let (first, rest) = outs.split_at_mut(lens[0]);
                let outs = &mut [first, &mut rest[..lens[1]]];
                if let Err(error) = code.deltas(data_shard, 0, shard_len, old, new, outs) {
                    outcome = Err(error.into());
                }
            });
        });
        outcome.map(|()| rate(seconds))
    };
    let plain = |memory: &mut Memory| {
        let (seconds, ()) = Clock::Thread.seconds(|| {
            memory.next(writes, write_len, |bytes| {
                let (old, rest) = bytes.split_at_mut(DELTA_LEN);
                let (new, outs) = rest.split_at_mut(DELTA_LEN);
                let (first, rest) = outs.split_at_mut(DELTA_LEN);
                xor::set_all(black_box(&mut [first, &mut rest[..DELTA_LEN]]), old, new);
            });
        });
        Ok(rate(seconds))
    };
    let contenders = vec![Contender::new("ours", ours), Contender::new("plain XOR", plain)];
    let figures = measure_rates(name, bed, contenders, &mut memory, report)?;
    let record = report.add(EXPERIMENT, name, "time", DELTA_LEN as f64 / figures[0].median / 1e9, "s");
    record.spread = Some(figures[0].spread);
    if !stripe.cached {
        bed.memory = Some(memory);
    }
    Ok(())
}

/// Parity with the deltas applied is the parity of the new data.
fn verify_delta(code: &Code, shard_len: usize, data_shard: usize) -> Result<()> {
    let (k, m) = (code.k(), code.m());
    let mut before = Memory::new((k + m) * shard_len, 1);
    split(before.all(), shard_len, k, |data, parity| code.encode(data, parity))?;
    let mut after = Memory::new((k + m) * shard_len, 1);
    let at = data_shard * shard_len;
    after.all()[at..at + DELTA_LEN].reverse();
    split(after.all(), shard_len, k, |data, parity| code.encode(data, parity))?;
    for parity in 0..m {
        let ranges = code.delta_ranges(data_shard, 0..DELTA_LEN, shard_len, parity)?;
        let mut delta = vec![0; ranges.total()];
        let (old, new) = (&before.view()[at..at + DELTA_LEN], &after.view()[at..at + DELTA_LEN]);
        code.delta(data_shard, 0, shard_len, old, new, parity, &mut delta)?;
        let mut changed = before.view()[(k + parity) * shard_len..][..shard_len].to_vec();
        steadfast_codes::mds::apply(&ranges, &delta, &mut changed)?;
        ensure!(changed == after.view()[(k + parity) * shard_len..][..shard_len], "a delta of wrong bytes");
    }
    Ok(())
}
