//! What the same disks allow: the time at which the K-th block would arrive, or at which the blocks written would satisfy the
//! durability rule, if every disk did nothing but its blocks, one after the other, from the start, and nothing else counted.

use super::{draw::Draw, parameters::Parameters, scheme::Scheme};
use anyhow::{Context, Result};
use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};
use steadfast_protocol::{Time, durability::Need};
use steadfast_sim::Medium;

/// The soonest that an access could be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ideal {
    /// From its begin.
    pub latency: Duration,
    /// Requests that the disks modelled until then.
    pub requests: u64,
}

/// The any-K ideal of a read: every disk holds an equal part of N blocks.
///
/// # Errors
/// When the disks hold fewer than K.
pub fn read(parameters: &Parameters, draw: &Draw) -> Result<Ideal> {
    let k = parameters.originals();
    let stored = f64::from(k) * (1.0 + parameters.redundancy);
    let each = (stored / f64::from(parameters.disks)).ceil() as u32;
    read_of(parameters, draw, vec![each; draw.disks.len()])
}

/// The same where each disk of the draw holds so many blocks.
///
/// # Errors
/// When the disks hold fewer than K.
pub fn read_of(parameters: &Parameters, draw: &Draw, held: Vec<u32>) -> Result<Ideal> {
    let k = parameters.originals();
    let mut blocks = Blocks::new(parameters, draw, held, false);
    let last = (0..k).map(|_| blocks.next()).last().flatten();
    Ok(blocks.over(last.context("the disks hold fewer than K blocks")?.1))
}

/// The soonest that a write could be acknowledged under the rule of `scheme`.
///
/// # Errors
/// When there is no such code.
pub fn write(parameters: &Parameters, draw: &Draw, scheme: Scheme) -> Result<Ideal> {
    let (_, code) = scheme.code(parameters, draw.code_seed)?;
    let need = Need::new(&code, scheme.writing(parameters).1);
    let mut loads = vec![0.0; parameters.disks as usize];
    let mut written = 0;
    let mut blocks = Blocks::new(parameters, draw, vec![u32::MAX; draw.disks.len()], true);
    while let Some((disk, at)) = blocks.next() {
        loads[disk] += 1.0;
        written += 1;
        // Sums over all disks only where the total can do.
        if written >= need.total && need.met(&loads) {
            return Ok(blocks.over(at));
        }
    }
    unreachable!("disks go on writing")
}

/// Blocks of all disks in the order in which they are over: disk and time.
struct Blocks {
    disks: Vec<(Box<dyn Medium>, u32)>,
    order: BinaryHeap<Reverse<(Time, usize)>>,
    block_bytes: u64,
    /// Blocks of each disk.
    held: Vec<u32>,
    writes: bool,
}

impl Blocks {
    fn new(parameters: &Parameters, draw: &Draw, held: Vec<u32>, writes: bool) -> Self {
        let disks: Vec<(Box<dyn Medium>, u32)> =
            draw.disks.iter().map(|disk| (Box::new(disk.medium()) as Box<dyn Medium>, 0)).collect();
        let block_bytes = parameters.block_bytes().into();
        let mut blocks = Self { disks, order: BinaryHeap::new(), block_bytes, held, writes };
        (0..blocks.disks.len()).for_each(|disk| blocks.start(disk, Time(0)));
        blocks
    }

    fn over(&self, at: Time) -> Ideal {
        let requests = self.disks.iter().map(|(medium, _)| medium.requests()).sum();
        Ideal { latency: at.since(Time(0)), requests }
    }

    fn start(&mut self, disk: usize, at: Time) {
        let (medium, moved) = &mut self.disks[disk];
        if *moved < self.held[disk] {
            let offset = u64::from(*moved) * self.block_bytes;
            *moved += 1;
            self.order.push(Reverse((medium.transfer(at, offset, self.block_bytes, self.writes), disk)));
        }
    }
}

impl Iterator for Blocks {
    type Item = (usize, Time);

    fn next(&mut self) -> Option<(usize, Time)> {
        let Reverse((at, disk)) = self.order.pop()?;
        self.start(disk, at);
        Some((disk, at))
    }
}
