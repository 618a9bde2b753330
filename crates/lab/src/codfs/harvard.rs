//! A generated stand-in for the Harvard NFS trace DEAS03 (PLR §2.1, Table 1), which is not to be had. It agrees with
//! that table; everything the table leaves open is picked by eye, and every figure made from it says
//! `trace=generated`.
//!
//! From Table 1: the files and the share of them that is updated, the working set and the share of it that is
//! updated, the share of writes that are updates, the mean size of an update, and the 41 days. Together they also
//! give the mean sizes of files that are updated (507 KiB) and not (32 KiB), the mean first write (12.6 KiB), and how
//! often a byte of an updated file is rewritten (about 13 times). By eye: everything about *when* and *how unevenly*:
//!
//! - sizes and rewrites are bounded Pareto, so that a few files take most;
//! - files are first written in the first weeks mostly, each within one period of twelve hours, and updated from the
//!   next period on;
//! - three of ten updated files are updated to the end of the trace, the others for a week on average; in half of the
//!   periods of its life, and unevenly in those; less at night and at weekends;
//! - one of ten is not updated before day 30 and then for ten days, since the paper's text has "sudden bursts" there
//!   (§6.3.2).
//!
//! Files lie one behind another in the order of their first write, as a store packs them into segments; an update
//! follows where the file's last one ended. The trace can be scaled down: then there are fewer files, each as busy.
//! It has a tenth more writes than Table 1, because the last write of a file is short.

use crate::trace::{BLOCK_BYTES, TraceRequest};
use core::time::Duration;
use rand_pcg::Pcg64Mcg;
use steadfast_sim::random::{Purpose, below, stream, unit};

/// Half a day, the paper's period.
pub const PERIOD: Duration = Duration::from_secs(12 * 3600);
/// Of 41 days (§2.1).
pub const PERIODS: u32 = 82;
/// Table 1.
pub const FILES: u64 = 2_039_724;
/// Table 1.
pub const WRITES: u64 = 172_702_071;
/// Table 1: 174.73 GB; the paper's megabytes are binary.
pub const WORKING_SET_BYTES: f64 = 174.73 * (1u64 << 30) as f64;
/// Table 1.
pub const UPDATED_WORKING_SET: f64 = 0.6839;
/// Table 1.
pub const UPDATED_FILES: f64 = 0.1210;
/// Table 1.
pub const UPDATE_WRITES: f64 = 0.9156;
/// Table 1: 10.58 KB.
pub const UPDATE_BYTES_MEAN: f64 = 10.58 * 1024.0;

/// Sizes of updates in blocks and how often; by eye but for their mean, which is Table 1's. The largest is NFSv3's
/// usual one.
const UPDATES: [(u64, f64); 3] = [(1, 0.5507), (2, 0.25), (8, 0.1993)];
/// Blocks of a first write: three are nearest to what Table 1 gives, 12.6 KiB.
const FIRST_WRITE_BLOCKS: u64 = 3;
/// Mean of the exponential distribution of first writes, in periods: five days.
const FIRST_WRITTEN_MEAN: f64 = 10.0;
/// The last period in which a file is first written.
const FIRST_WRITTEN_LAST: f64 = 70.0;
/// Of updated files that are updated to the end.
const LASTING: f64 = 0.3;
/// Mean life of the others in periods: a week.
const LIFE_MEAN: f64 = 14.0;
/// Of updated files that sleep until day 30.
const LATE: f64 = 0.1;
/// Days 30 to 40.
const LATE_PERIODS: core::ops::Range<u32> = 60..80;
/// The share of periods of its life in which a file is updated.
const BUSY: f64 = 0.5;

/// Rewrites of a byte of an updated file: bounded Pareto with a mean of about Table 1's 13.
const REWRITES: Pareto = Pareto { least: 1.0, most: 200.0, shape: 0.54 };
/// Blocks of a file that is updated, and of one that is not: shapes for which the means are about Table 1's, from the
/// largest update, or one block, to 16 and 64 MiB. What is drawn is then brought to the table's sums.
const UPDATED_BLOCKS: Pareto = Pareto { least: 8.0, most: 4096.0, shape: 0.645 };
const OTHER_BLOCKS: Pareto = Pareto { least: 1.0, most: 16384.0, shape: 1.07 };

/// One write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Where and when.
    pub request: TraceRequest,
    /// Whether it is an update, by Table 1's definition.
    pub update: bool,
}

#[derive(Clone, Copy, Debug)]
struct File {
    first_block: u64,
    blocks: u64,
    /// Where its last update ended.
    cursor: u64,
}

/// What happens to a file in a period.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// It is written from its beginning to its end.
    First { file: u32 },
    /// It is updated so often.
    Updates { file: u32, count: u32 },
}

/// The trace.
#[derive(Clone, Debug)]
pub struct StandIn {
    seed: u64,
    files: Vec<File>,
    updated_files: u64,
    /// By period.
    events: Vec<Vec<Event>>,
    period: u32,
}

impl StandIn {
    /// One part in `part` of the trace's files.
    pub fn new(part: u64, seed: u64) -> Self {
        let count = (FILES / part.max(1)).max(100);
        let updated = (count as f64 * UPDATED_FILES).round() as u64;
        let total = WORKING_SET_BYTES / BLOCK_BYTES as f64 * (count as f64 / FILES as f64);
        let mut random = stream(seed, Purpose::Contents, 0);
        let mut sizes = UPDATED_BLOCKS.sizes(updated, total * UPDATED_WORKING_SET, &mut random);
        sizes.extend(OTHER_BLOCKS.sizes(count - updated, total * (1.0 - UPDATED_WORKING_SET), &mut random));
        // Before they lie anywhere: when they are first written, and which are updated.
        let last = 1.0 - (-FIRST_WRITTEN_LAST / FIRST_WRITTEN_MEAN).exp();
        let mut all: Vec<(u32, u64, bool)> = (0..)
            .zip(sizes)
            .map(|(number, blocks)| {
                let born = -FIRST_WRITTEN_MEAN * (1.0 - last * unit(&mut random)).ln();
                (born as u32, blocks, number < updated)
            })
            .collect();
        shuffle(&mut all, &mut random);
        all.sort_by_key(|&(born, ..)| born);
        let mut events = vec![Vec::new(); PERIODS as usize];
        let (mut files, mut first_writes, mut end) = (Vec::with_capacity(all.len()), 0, 0);
        for (file, &(born, blocks, _)) in (0..).zip(&all) {
            files.push(File { first_block: end, blocks, cursor: 0 });
            events[born as usize].push(Event::First { file });
            first_writes += blocks.div_ceil(FIRST_WRITE_BLOCKS);
            end += blocks;
        }
        let hot: Vec<(u32, u32, u64)> = (0..)
            .zip(&all)
            .filter_map(|(file, &(born, blocks, hot))| hot.then_some((file, born, blocks)))
            .collect();
        let rewrites = REWRITES.spread(hot.len() as u64, &mut random);
        let rewritten: f64 =
            hot.iter().zip(&rewrites).map(|((.., blocks), times)| *blocks as f64 * times).sum();
        let updates = first_writes as f64 * UPDATE_WRITES / (1.0 - UPDATE_WRITES);
        for ((file, born, blocks), times) in hot.into_iter().zip(rewrites) {
            let updates = updates * blocks as f64 * times / rewritten;
            for (period, count) in life(born, updates, &mut random) {
                events[period as usize].push(Event::Updates { file, count });
            }
        }
        Self { seed, files, updated_files: updated, events, period: 0 }
    }

    /// The share of files that are updated.
    pub fn updated_files_share(&self) -> f64 {
        self.updated_files as f64 / self.files.len() as f64
    }

    /// Where the last file ends.
    pub fn end_bytes(&self) -> u64 {
        self.files.last().map_or(0, |file| (file.first_block + file.blocks) * BLOCK_BYTES)
    }

    /// The writes of one file in one period, in their order.
    fn writes(&mut self, event: Event, random: &mut Pcg64Mcg, out: &mut Vec<Write>) {
        let mut write = |file: &File, from: u64, blocks: u64, update| {
            let (offset_bytes, bytes) =
                ((file.first_block + from) * BLOCK_BYTES, (blocks * BLOCK_BYTES) as u32);
            let request = TraceRequest { at: None, device: 0, offset_bytes, bytes, write: true };
            out.push(Write { request, update });
        };
        match event {
            Event::First { file } => {
                let file = &self.files[file as usize];
                for from in (0..file.blocks).step_by(FIRST_WRITE_BLOCKS as usize) {
                    write(file, from, FIRST_WRITE_BLOCKS.min(file.blocks - from), false);
                }
            }
            Event::Updates { file, count } => {
                let file = &mut self.files[file as usize];
                for _ in 0..count {
                    let drawn = unit(random);
                    let blocks = match UPDATES {
                        [(small, share), ..] if drawn < share => small,
                        [(_, first), (middle, second), _] if drawn < first + second => middle,
                        [.., (large, _)] => large,
                    };
                    let blocks = blocks.min(file.blocks);
                    if file.cursor + blocks > file.blocks {
                        file.cursor = 0;
                    }
                    write(file, file.cursor, blocks, true);
                    file.cursor += blocks;
                }
            }
        }
    }
}

/// The next period's writes, in their order; as many as [`PERIODS`].
impl Iterator for StandIn {
    type Item = Vec<Write>;

    fn next(&mut self) -> Option<Vec<Write>> {
        let events = core::mem::take(self.events.get_mut(self.period as usize)?);
        let mut random = stream(self.seed, Purpose::Choice, self.period.into());
        let mut writes = Vec::new();
        for event in events {
            self.writes(event, &mut random, &mut writes);
        }
        // Files are written beside each other.
        shuffle(&mut writes, &mut random);
        let count = writes.len().max(1) as u128;
        for (number, write) in writes.iter_mut().enumerate() {
            let within = PERIOD.as_nanos() * number as u128 / count;
            write.request.at = Some(PERIOD * self.period + Duration::from_nanos(within as u64));
        }
        self.period += 1;
        Some(writes)
    }
}

/// In which periods a file is updated and how often: `updates` in all, spread over its life.
fn life(born: u32, updates: f64, random: &mut Pcg64Mcg) -> Vec<(u32, u32)> {
    let (kind, length) = (unit(random), -LIFE_MEAN * (1.0 - unit(random)).ln());
    let first = (born + 1).min(PERIODS - 1);
    let mut alive = match kind {
        _ if kind < LATE => LATE_PERIODS.start.max(first)..LATE_PERIODS.end,
        _ if kind < LATE + LASTING => first..PERIODS,
        _ => first..(first + length.ceil() as u32).min(PERIODS),
    };
    if alive.is_empty() {
        alive = first..PERIODS;
    }
    let mut shares: Vec<(u32, f64)> = alive
        .map(|period| {
            let busy = unit(random) < BUSY;
            (period, if busy { -load(period) * (1.0 - unit(random)).ln() } else { 0.0 })
        })
        .collect();
    let mut sum: f64 = shares.iter().map(|(_, share)| share).sum();
    if sum == 0.0 {
        shares.iter_mut().for_each(|(_, share)| *share = 1.0);
        sum = shares.len() as f64;
    }
    // Whole numbers whose sum is right: what is rounded off one goes to the next.
    let mut exact = unit(random);
    let mut counts = Vec::new();
    for (period, share) in shares {
        let before = exact.floor();
        exact += updates * share / sum;
        let count = (exact.floor() - before) as u32;
        if count > 0 {
            counts.push((period, count));
        }
    }
    counts
}

/// How busy a period is: by eye, afternoons twice as busy as nights and mornings, weekends half as busy as other
/// days. The trace begins on a Wednesday.
fn load(period: u32) -> f64 {
    let (day, afternoon) = (period / 2, period % 2 == 1);
    let weekend = matches!(day % 7, 3 | 4);
    (if afternoon { 2.0 } else { 1.0 }) * (if weekend { 0.5 } else { 1.0 })
}

/// Each order equally likely (Fisher and Yates).
fn shuffle<T>(all: &mut [T], random: &mut Pcg64Mcg) {
    for last in (1..all.len()).rev() {
        all.swap(last, below(random, last as u64 + 1) as usize);
    }
}

/// A Pareto distribution between two bounds.
#[derive(Clone, Copy, Debug)]
struct Pareto {
    least: f64,
    most: f64,
    shape: f64,
}

impl Pareto {
    /// `count` values that stand for the distribution evenly, in random order: a small part of the trace has as many
    /// large ones as it should.
    fn spread(self, count: u64, random: &mut Pcg64Mcg) -> Vec<f64> {
        let ratio = (self.least / self.most).powf(self.shape);
        let value = |number: u64| {
            let share = (number as f64 + 0.5) / count as f64;
            self.least / (1.0 - share * (1.0 - ratio)).powf(1.0 / self.shape)
        };
        let mut values: Vec<f64> = (0..count).map(value).collect();
        shuffle(&mut values, random);
        values
    }

    /// The same, as whole numbers of blocks that add up to `total`, or a little more where each has one at least.
    fn sizes(self, count: u64, total: f64, random: &mut Pcg64Mcg) -> Vec<u64> {
        let values = self.spread(count, random);
        let factor = total / values.iter().sum::<f64>();
        let mut exact = 0.0f64;
        let mut given = 0u64;
        values
            .into_iter()
            .map(|value| {
                exact += value * factor;
                let blocks = ((exact - given as f64).round() as u64).clamp(1, (2.0 * value) as u64 + 1);
                given += blocks;
                blocks
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceSummary;

    /// The properties of Table 1, by the definitions that the readers of real traces use.
    #[test]
    fn the_stand_in_agrees_with_table_1() {
        for seed in [1, 2] {
            let standin = StandIn::new(400, seed);
            assert!((standin.updated_files_share() - UPDATED_FILES).abs() < 1e-3);
            let mut summary = TraceSummary::default();
            let (mut periods, mut last) = (0, Duration::ZERO);
            for writes in standin {
                for write in writes {
                    let before = summary.updates;
                    summary.add(&write.request);
                    assert_eq!(summary.updates > before, write.update);
                    let at = write.request.at.unwrap();
                    assert!(at >= last && at >= PERIOD * periods && at < PERIOD * (periods + 1));
                    last = at;
                }
                periods += 1;
            }
            assert_eq!(periods, PERIODS);
            let near = |what, value: f64, table: f64, within: f64| {
                println!("seed {seed}: {what} {value}, in Table 1 {table}");
                assert!(
                    (value / table - 1.0).abs() < within,
                    "seed {seed}: {what} is {value} instead of {table}"
                );
            };
            near("updates", summary.updates_share().unwrap(), UPDATE_WRITES, 0.005);
            near("updated working set", summary.updated_share().unwrap(), UPDATED_WORKING_SET, 0.02);
            near("mean update", summary.update_bytes_mean().unwrap(), UPDATE_BYTES_MEAN, 0.02);
            near("working set", (summary.blocks * BLOCK_BYTES * 400) as f64, WORKING_SET_BYTES, 0.02);
            near("writes", (summary.writes * 400) as f64, WRITES as f64, 0.15);
        }
    }

    #[test]
    fn the_seed_makes_the_trace() {
        let first = |seed| {
            let mut writes: Vec<TraceRequest> = Vec::new();
            StandIn::new(5000, seed)
                .take(4)
                .for_each(|period| writes.extend(period.iter().map(|write| write.request)));
            writes
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
