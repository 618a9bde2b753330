//! The codes on their own: rates of ours, of each rival and of the machine's limit, taken in turns in one run.
//!
//! | case | throughput is of | limit |
//! |---|---|---|
//! | `rs-encode k= m= shard= memory` | data read, GB/s; of short shards beside shards of 1 MiB | reading the same data from memory |
//! | `rs-encode k= m= shard= cached` | data read, one stripe again and again | reading the same data from the cache |
//! | `rs-encode-crc k= m= shard= memory` | data read, with a CRC-32C of every shard taken strip by strip; beside it taken in a second pass, and none | the same |
//! | `rs-reconstruct ...` | the k shards that m lost data shards are computed from; from memory beside encoding as many (`rs-encode`) | the same |
//! | `cauchy-encode`, `rdp-encode` | as `rs-encode`, with our Reed-Solomon among the rivals | the same |
//! | `delta KIND k= m= 4KiB ...` | the bytes written, from which both parity shards' deltas are made | one pass of plain XOR that moves the same bytes |
//! | `xor d= LEN memory`, `cached` | the d sources, into one destination that is only written | reading the sources |
//! | `decode mix-b K= block= [arrival=disks] [threads=]` | the object, from the first block taken to the last solved; blocks in random order, or from 64 unequal disks with the originals first | reading the object |
//! | ... `threads=2`, metric `speedup` | times the rate of one thread | what two threads with a decode each make of the machine |
//! | `encode mix-b K= block=` | the coded blocks made: the 3 K repair blocks of N = 4 K at once | reading the object |
//! | `encode mix-b ... runs=16` | the first K/2 of them sixteen at a time, parity columns kept from before; each then reads 5.9 blocks from memory (A 3.4, C 5.3) | the same |
//! | `overhead mix-b K= arrival=` | none: `mean`, `p99`, `worst` of blocks needed beyond K, shares of K | |
//! | `symbolic mix-b ...`, `rank mix-b ...` | a time in seconds, no rate | |
//!
//! A memory case walks through half a gibibyte, so that every byte was touched last long before the caches'
//! size ago. Stripes lie as one buffer: shards one after the other, as a reader of whole stripes has them.
//!
//! Records: ours is metric `throughput`, a rival's `throughput NAME VERSION` of the same case; `limit` is the
//! limit's median of the same rounds, `ratio` the share of it reached, `spread` the distance between the rounds'
//! quartiles as a share of their median. Time is the thread's processor time, and the wall's where there are two
//! threads.

mod checked;
mod limit;
mod object;
mod stripe;
mod sum;
mod table;

use crate::{
    arrival::Arrival,
    measure::{Contender, Figure, in_turns},
    memory::Memory,
    reception, rivals,
};
use anyhow::Result;
use steadfast_codes::{
    kernel::{Tier, TierError},
    rateless::Kind,
};
use steadfast_report::{NotOffered, Report, mean};

pub use table::show;

/// The experiment's name in records.
pub const EXPERIMENT: &str = "bench-codes";
/// The metric of a case that is a rate, GB/s; a rival's is this, a space and its name.
pub const THROUGHPUT: &str = "throughput";

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Few rounds, for a first look: 3 instead of 15.
    pub quick: bool,
    /// Only cases whose name contains this.
    pub only: Option<String>,
    /// Our kernels run at this tier instead of the widest, in the whole process from then on; cases say so in their names.
    pub tier: Option<Tier>,
}

/// Draws of an overhead; `lab run codes/overhead --draws` makes as many as one likes.
const DRAWS: u32 = 2000;
const DRAWS_QUICK: u32 = 100;

/// One line of the report, and what is measured for it.
struct Case {
    name: String,
    work: Work,
}

enum Work {
    Stripe(stripe::Stripe),
    Sum(sum::Sum),
    Object(object::Object),
    Overhead(reception::Case),
}

/// What the cases share: memory is filled once.
struct Bed {
    rounds: usize,
    quick: bool,
    seed: u64,
    /// What reads the large memory fastest.
    reader: Option<limit::Reader>,
    memory: Option<Memory>,
}

impl Bed {
    /// Bytes that memory cases walk through: many times the last-level cache of one machine, whose size a guest is
    /// not always told.
    const MEMORY_LEN: usize = 512 << 20;

    /// The large memory, filled on first use. Taken out while a case works on it.
    fn memory(&mut self) -> Memory {
        self.memory.take().unwrap_or_else(|| Memory::new(Self::MEMORY_LEN, self.seed))
    }
}

/// The tier of that name.
///
/// # Errors
/// Names those there are.
pub fn tier(name: &str) -> Result<Tier, NotOffered> {
    name.parse().map_err(|error: TierError| NotOffered(error.to_string()))
}

/// Runs the cases, saying before each what comes. The report's seed makes the bytes, the graphs and the arrivals.
///
/// # Errors
/// When no case has the name, a code computes wrong bytes or a rival refuses.
pub fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut cases = stripe::cases();
    cases.extend(sum::cases());
    cases.extend(object::cases());
    cases.extend(overhead_cases());
    if let Some(only) = &options.only {
        let wanted = |case: &Case| case.name.contains(only.as_str());
        if !cases.iter().any(wanted) {
            let known = cases.into_iter().map(|case| case.name);
            return Err(NotOffered::no_case("bench codes", only, known).into());
        }
        cases.retain(wanted);
    }
    let mut bed = Bed {
        rounds: if options.quick { 3 } else { 15 },
        quick: options.quick,
        seed: report.seed(),
        reader: None,
        memory: None,
    };
    if let Some(tier) = options.tier {
        tier.force().map_err(|error: TierError| NotOffered(error.to_string()))?;
        cases.iter_mut().for_each(|case| case.name += &format!(" tier={}", tier.name()));
    }
    for case in &cases {
        say(&case.name);
        match &case.work {
            Work::Stripe(stripe) => stripe::run(&case.name, stripe, &mut bed, &mut report)?,
            Work::Sum(sum) => sum::run(&case.name, sum, &mut bed, &mut report)?,
            Work::Object(object) => object::run(&case.name, object, &mut bed, &mut report)?,
            Work::Overhead(case_of) => overhead(&case.name, *case_of, &bed, &mut report)?,
        }
        report.complete()?;
    }
    Ok(report)
}

/// The reception overheads that readers of the rateless codes are promised.
fn overhead_cases() -> Vec<Case> {
    let shapes = [1024, 128, 64, 16]
        .into_iter()
        .flat_map(|k| [Arrival::Random, Arrival::Disks].map(|arrival| (k, arrival)));
    shapes
        .map(|(k, arrival)| {
            let case = reception::Case { kind: Kind::Mix, k, arrival };
            Case { name: format!("overhead {}", case.name()), work: Work::Overhead(case) }
        })
        .collect()
}

/// Draws of a graph and an arrival each: shares of K needed beyond K.
fn overhead(name: &str, case: reception::Case, bed: &Bed, report: &mut Report) -> Result<()> {
    let overheads = case.draws(if bed.quick { DRAWS_QUICK } else { DRAWS }, bed.seed)?;
    let place = (overheads.len() * 99).div_ceil(100) - 1;
    let worst = overheads.last().copied();
    let figures = [("mean", Some(mean(&overheads))), ("p99", Some(overheads[place])), ("worst", worst)];
    for (metric, value) in figures {
        report.add(EXPERIMENT, name, metric, value, "share of K");
    }
    Ok(())
}

/// What a reader needs beside the figures: instruction sets, rivals that are missing.
pub fn remarks() -> Vec<String> {
    let tiers: Vec<&str> = Tier::available().iter().map(|tier| tier.name()).collect();
    let mut remarks =
        vec![format!("kernels: {} (this processor has {})", Tier::detect().name(), tiers.join(", "))];
    remarks.extend(rivals::remarks());
    remarks
}

/// Measures ours (the first contender), the limit (the second) and rivals, all GB/s, and adds a record for each.
fn measure_rates<C>(
    case: &str,
    bed: &Bed,
    mut contenders: Vec<Contender<'_, C>>,
    context: &mut C,
    report: &mut Report,
) -> Result<Vec<Figure>> {
    let figures = in_turns(bed.rounds, &mut contenders, context)?;
    let limit = figures[1].median;
    for (place, (contender, figure)) in contenders.iter().zip(&figures).enumerate() {
        let metric = match place {
            0 => THROUGHPUT.to_owned(),
            1 => continue,
            _ => format!("{THROUGHPUT} {}", contender.name),
        };
        let record = report.add(EXPERIMENT, case, metric, figure.median, "GB/s");
        record.limit = Some(limit);
        record.ratio = Some(figure.median / limit);
        record.spread = Some(figure.spread);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests;
