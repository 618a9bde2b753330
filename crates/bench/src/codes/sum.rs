//! Cases on plain XOR: what every code is made of.

use super::{Bed, Case, Work, limit::Reader, measure_rates, stripe::CACHED_LEN};
use crate::{
    measure::{Clock, Contender},
    memory::{Memory, split},
};
use anyhow::{Result, ensure};
use steadfast_codes::kernel::xor;
use steadfast_report::Report;

const SOURCES: [usize; 3] = [2, 4, 8];
const LEN: usize = 1 << 20;
/// Sources read in one turn.
const TURN_LEN: usize = 96 << 20;
const TURN_LEN_QUICK: usize = 32 << 20;

/// So many sources into one destination that is only written.
pub(super) struct Sum {
    sources: usize,
    len: usize,
    cached: bool,
}

pub(super) fn cases() -> Vec<Case> {
    let shapes = SOURCES.into_iter().flat_map(|sources| [false, true].map(|cached| (sources, cached)));
    shapes
        .map(|(sources, cached)| {
            let len = if cached { 1 << (CACHED_LEN / (sources + 1)).ilog2() } else { LEN };
            let size = if len < 1 << 20 { format!("{}KiB", len >> 10) } else { format!("{}MiB", len >> 20) };
            let place = if cached { "cached" } else { "memory" };
            let name = format!("xor d={sources} {size} {place}");
            Case { name, work: Work::Sum(Sum { sources, len, cached }) }
        })
        .collect()
}

pub(super) fn run(name: &str, sum: &Sum, bed: &mut Bed, report: &mut Report) -> Result<()> {
    let Sum { sources, len, cached } = *sum;
    let [read_len, stripe_len] = [sources * len, (sources + 1) * len];
    let mut memory = if cached { Memory::new(stripe_len, bed.seed) } else { bed.memory() };
    let mut right = false;
    memory.next(1, stripe_len, |stripe| {
        right = split(stripe, len, sources, |data, out| {
            xor::set_xor(out[0], data);
            out[0].iter().enumerate().all(|(at, byte)| data.iter().fold(*byte, |sum, d| sum ^ d[at]) == 0)
        });
    });
    ensure!(right, "a sum of wrong bytes");
    let reader = if cached {
        Reader::fastest(&memory.view()[..read_len], read_len)
    } else {
        *bed.reader.get_or_insert_with(|| Reader::fastest(memory.view(), read_len))
    };
    let stripes = (if bed.quick { TURN_LEN_QUICK } else { TURN_LEN }) / read_len;
    let rate = move |seconds: f64| (stripes * read_len) as f64 / seconds / 1e9;
    let ours = move |memory: &mut Memory| {
        let (seconds, ()) = Clock::Thread.seconds(|| {
            memory.next(stripes, stripe_len, |stripe| {
                split(stripe, len, sources, |data, out| xor::set_xor(out[0], data));
            });
        });
        Ok(rate(seconds))
    };
    let limit = move |memory: &mut Memory| {
        let (seconds, ()) = Clock::Thread
            .seconds(|| memory.next(stripes, stripe_len, |stripe| reader.read(&stripe[..read_len])));
        Ok(rate(seconds))
    };
    let contenders = vec![Contender::new("ours", ours), Contender::new("read", limit)];
    measure_rates(name, bed, contenders, &mut memory, report)?;
    if !cached {
        bed.memory = Some(memory);
    }
    Ok(())
}
