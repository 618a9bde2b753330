//! What many small updates leave to whoever reads the file from begin to end.
//!
//! A file is read whole from cold devices before and after so many random updates of 4 KiB, once their logs are merged and all is
//! written in place. Chunks that change in place stay where they are, so it must be as fast as before, where the machine's disks are:
//! some put what is overwritten elsewhere, and then read it less fast in order. Each read has one beside
//! it of a file of the same size that nobody updates: what else goes on here slows both.
//!
//! | figure | what |
//! |---|---|
//! | `read_before`, `read_after` | of the updated file, in GB/s: the median of the rounds |
//! | `control_before`, `control_after` | of the other |
//! | `ratio` | after over before, of the updated file against the other: the median of the rounds' quotients; limit: of two plain files, one overwritten at as many places |
//! | `updates`, `update_rate` | how many there were, and how many in a second |
//!
//! Every read is made by a process of its own, and what it got is compared with what was written.

use super::{
    Access, EXPERIMENT, Options,
    access::sum_of,
    bed::{Bed, Updates},
    raw::PlainPair,
    scratch,
};
use crate::{
    cluster::Shape,
    original::Original,
    report::{Report, quantile},
};
use anyhow::{Result, ensure};
use std::path::Path;
use steadfast_client::Ingest;

/// Its name.
pub(super) const CASE: &str = "read-after-updates plr";
const BUCKET: &str = "updated";
const UPDATED: &str = "updated";
const CONTROL: &str = "control";
const CAPACITY: u64 = 1 << 30;
const UPDATE_BYTES: u64 = 4 << 10;
const DEPTH: usize = 16;

/// How much of it there is.
struct Extent {
    file_bytes: u64,
    updates: usize,
    /// Reads of each file before the updates, and as many after them.
    rounds: usize,
}

const WHOLE: Extent = Extent { file_bytes: 256 << 20, updates: 100_000, rounds: 15 };
const QUICK: Extent = Extent { file_bytes: 32 << 20, updates: 320, rounds: 2 };

/// Rates of one round of reads, in GB/s.
#[derive(Default)]
struct Rates {
    updated: Vec<f64>,
    control: Vec<f64>,
}

impl Rates {
    fn quotient(&self) -> f64 {
        let quotients: Vec<f64> =
            self.updated.iter().zip(&self.control).map(|(updated, control)| updated / control).collect();
        quantile(&quotients, 0.5)
    }
}

pub(super) async fn run(
    program: &Path,
    options: &Options,
    report: &mut Report,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let seed = report.seed();
    if !options.wants(CASE) {
        return Ok(());
    }
    let extent = if options.quick { QUICK } else { WHOLE };
    let scratch = scratch(options, say)?;
    let shape = Shape { capacity_bytes: Some(CAPACITY), thick: true, ..Shape::default() };
    let mut bed = Bed::start(program, scratch.path(), &shape, seed).await?;
    bed.bucket(BUCKET, "plr").await?;
    let length = usize::try_from(extent.file_bytes).expect("made for machines of 64 bits");
    let [updated, control] = [seed, seed.wrapping_add(1)].map(|seed| Original::make(length, seed));
    bed.put(BUCKET, UPDATED, &updated).await?;
    bed.put(BUCKET, CONTROL, &control).await?;
    let mut sums = [sum_of(&updated)?, sum_of(&control)?];
    bed.quiet().await?;
    let before = reads(program, &bed, extent.rounds, sums).await?;
    let plain = PlainPair::new(&scratch.path().join("plain"), extent.file_bytes)?;
    let plain_before = quantile(&plain.read(extent.rounds)?, 0.5);

    let updates = Updates {
        bucket: BUCKET,
        key: UPDATED,
        file_bytes: extent.file_bytes,
        bytes: UPDATE_BYTES,
        depth: DEPTH,
    };
    let ran = bed.updates(updates, extent.updates).await?;
    let count = ran.latencies_ms.len() as f64;
    say(&format!("{CASE}: {count} updates in {:.0} s", ran.seconds));
    let Original::Made(bytes) = updated else { unreachable!("made above") };
    let mut content = bytes.to_vec();
    ran.written.iter().for_each(|written| written.apply(&mut content));
    sums[0] = steadfast_disk::checksum::crc32c(&content);
    bed.quiet().await?;
    plain.overwrite(extent.updates, UPDATE_BYTES, &mut bed.random)?;
    let after = reads(program, &bed, extent.rounds, sums).await?;
    bed.cluster.stop();
    let limit = quantile(&plain.read(extent.rounds)?, 0.5) / plain_before;

    for (metric, rates) in [
        ("read_before", &before.updated),
        ("read_after", &after.updated),
        ("control_before", &before.control),
        ("control_after", &after.control),
    ] {
        let rate = quantile(rates, 0.5);
        let record = report.add(EXPERIMENT, CASE, metric, rate, "GB/s");
        record.spread = Some((quantile(rates, 0.75) - quantile(rates, 0.25)) / rate);
        say(&format!("{CASE}: {metric} {rate:.3} GB/s"));
    }
    let ratio = after.quotient() / before.quotient();
    let record = report.add(EXPERIMENT, CASE, "ratio", ratio, "1");
    (record.limit, record.ratio) = (Some(limit), Some(ratio / limit));
    say(&format!("{CASE}: {ratio:.3} of the rate before; plain files {limit:.3}"));
    report.add(EXPERIMENT, CASE, "updates", count, "1");
    report.add(EXPERIMENT, CASE, "update_rate", count / ran.seconds, "1/s");
    Ok(())
}

/// Reads both files so often, turn by turn; `sums` are of their bytes.
async fn reads(program: &Path, bed: &Bed, rounds: usize, sums: [u32; 2]) -> Result<Rates> {
    let mut rates = Rates::default();
    for round in 0..rounds {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let key = [UPDATED, CONTROL][which];
            for device in bed.devices().await? {
                bed.client.drop_caches(device).await?;
            }
            let access = Access {
                cluster: bed.cluster.address().to_owned(),
                put: false,
                ingest: Ingest::default(),
                bucket: BUCKET.to_owned(),
                key: key.to_owned(),
                bytes: 0,
                count: 1,
                seed: 0,
            };
            let mut started = access.start(program)?;
            started.go()?;
            for taken in started.finish()? {
                ensure!(taken.sum == Some(sums[which]), "bytes of {key} came back wrong");
                let rates = if which == 0 { &mut rates.updated } else { &mut rates.control };
                rates.push(taken.bytes as f64 / taken.seconds / 1e9);
            }
        }
    }
    Ok(rates)
}
