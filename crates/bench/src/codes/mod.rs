//! The codes on their own: rates of ours, of each rival and of the machine's limit, taken in turns in one run.
//!
//! | case | throughput is of | limit |
//! |---|---|---|
//! | `rs-encode k= m= shard= memory` | data read, GB/s | reading the same data from memory |
//! | `rs-encode k= m= shard= cached` | data read, one stripe again and again | reading the same data from the cache |
//! | `rs-reconstruct ...` | the k shards that m lost data shards are computed from | the same |
//! | `cauchy-encode`, `rdp-encode` | as `rs-encode`, with our Reed-Solomon among the rivals | the same |
//! | `delta KIND k= m= 4KiB ...` | the delta's bytes, added into m parity shards | as many plain XORs |
//! | `decode mix-b K= block= arrival= threads=` | the object, from the first block taken to the last solved | reading the object |
//! | `encode mix-b K= block=` | the coded blocks made, K/2 at once | reading the object |
//! | `encode mix-b ... runs=16` | the same sixteen at a time, parity columns kept from before | the same |
//! | `symbolic mix-b ...`, `rank mix-b ...` | a time in seconds, no rate | |
//!
//! A memory case walks through half a gibibyte, so that every byte was touched last long before the caches'
//! size ago. Stripes lie as one buffer: shards one after the other, as a reader of whole stripes has them.
//!
//! Records: ours is metric `throughput`, a rival's `throughput NAME VERSION` of the same case; `limit` is the
//! limit's median of the same rounds, `ratio` the share of it reached, `spread` the distance between the rounds'
//! quartiles as a share of their median. Time is the thread's processor time, and the wall's where there are two
//! threads.

mod limit;
mod object;
mod stripe;
mod table;

use crate::{
    measure::{Contender, Figure, in_turns},
    memory::Memory,
    rivals,
};
use anyhow::{Result, ensure};
use steadfast_codes::kernel::Tier;
use steadfast_report::Report;

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
    /// Seeds the bytes, the graphs and the arrivals.
    pub seed: u64,
}

/// One line of the report, and what is measured for it.
struct Case {
    name: String,
    work: Work,
}

enum Work {
    Stripe(stripe::Stripe),
    Object(object::Object),
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

/// Runs the cases, saying before each what comes.
///
/// # Errors
/// When no case has the name, a code computes wrong bytes or a rival refuses.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut cases = stripe::cases();
    cases.extend(object::cases());
    if let Some(only) = &options.only {
        cases.retain(|case| case.name.contains(only.as_str()));
        ensure!(!cases.is_empty(), "no case has `{only}` in its name");
    }
    let mut report = Report::new(options.seed);
    let mut bed = Bed {
        rounds: if options.quick { 3 } else { 15 },
        quick: options.quick,
        seed: options.seed,
        reader: None,
        memory: None,
    };
    for case in &cases {
        say(&case.name);
        match &case.work {
            Work::Stripe(stripe) => stripe::run(&case.name, stripe, &mut bed, &mut report)?,
            Work::Object(object) => object::run(&case.name, object, &mut bed, &mut report)?,
        }
    }
    Ok(report)
}

/// What a reader needs beside the figures: instruction sets, rivals that are missing.
pub fn remarks() -> Vec<String> {
    let tiers: Vec<String> = Tier::available().iter().map(|tier| format!("{tier:?}")).collect();
    let mut remarks =
        vec![format!("kernels: {:?} (this processor has {})", Tier::detect(), tiers.join(", "))];
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
