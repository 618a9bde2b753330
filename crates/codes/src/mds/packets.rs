//! Codes made of XORs alone: a chunk is r packets of equal length, one after the other, and every parity packet is the
//! sum of some packets.
//!
//! What is to be computed is a list of sums in an order in which each has its terms; what nobody asks for is dropped,
//! and what is only passed through lives in scratch.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::kernel::sums::{Op, Steps};
use crate::kernel::{Tier, copy_past_caches};

/// Bytes touched from which outputs go past the caches, as for products over GF(2^8).
const STREAM_FROM: usize = 512 * 1024;
/// Bytes of all outputs formed in scratch before they go past the caches: a good part of a second-level cache, since
/// setting up a run costs some hundred nanoseconds.
const FORMED: usize = 192 * 1024;

/// A packet: of the caller's list of sources, of the caller's list of outputs, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    /// Position in the list of chunks read, and the packet.
    Source(usize, usize),
    /// Position in the list of chunks written, and the packet.
    Output(usize, usize),
    /// A chunk in neither list, and the packet.
    Passing(usize, usize),
}

/// `unit = sum of units`.
pub(super) type Sum = (Unit, Vec<Unit>);

/// Sums ready to run over packets of any length.
#[derive(Clone, Debug)]
pub(super) struct Program {
    steps: Steps,
    /// Chunk and packet of each input and of each block.
    inputs: Vec<[usize; 2]>,
    blocks: Vec<[usize; 2]>,
}

impl Program {
    /// A program of the sums that the packets `wanted` of the outputs need.
    pub(super) fn new(sums: &[Sum], wanted: &Range<usize>) -> Self {
        // Backwards: a sum is needed when its unit is wanted, or a term of a needed one.
        let mut needed: BTreeMap<Unit, ()> = BTreeMap::new();
        let mut kept = Vec::new();
        for (unit, terms) in sums.iter().rev() {
            let asked = matches!(unit, Unit::Output(_, packet) if wanted.contains(packet));
            if asked || needed.contains_key(unit) {
                needed.extend(terms.iter().map(|term| (*term, ())));
                kept.push((*unit, terms));
            }
        }
        kept.reverse();
        let (mut inputs, mut blocks, mut passing) = (Vec::new(), Vec::new(), Vec::new());
        for unit in needed.into_keys().filter(|unit| matches!(unit, Unit::Source(..))) {
            inputs.push(unit);
        }
        for (unit, _) in &kept {
            match unit {
                Unit::Output(_, packet) if wanted.contains(packet) => blocks.push(*unit),
                _ => passing.push(*unit),
            }
        }
        blocks.sort_unstable();
        let slots = inputs.iter().chain(&blocks).chain(&passing).copied();
        let slots: BTreeMap<Unit, u32> = slots.zip(0..).collect();
        let (mut ops, mut sources) = (Vec::new(), Vec::new());
        for (unit, terms) in &kept {
            let start = sources.len() as u32;
            sources.extend(terms.iter().map(|term| slots[term]));
            let end = sources.len() as u32;
            ops.push(Op { dst: slots[unit], scale: 0, start, ones: end, end });
        }
        let ones = vec![1; sources.len()];
        let steps = Steps::new([inputs.len(), blocks.len(), passing.len()], ops, sources, ones);
        let place = |unit: &Unit| match *unit {
            Unit::Source(chunk, packet) | Unit::Output(chunk, packet) | Unit::Passing(chunk, packet) => {
                [chunk, packet]
            }
        };
        Self { steps, inputs: inputs.iter().map(place).collect(), blocks: blocks.iter().map(place).collect() }
    }

    /// Chunks of the list of sources that are read, ascending.
    pub(super) fn used(&self) -> Vec<usize> {
        let mut used: Vec<usize> = self.inputs.iter().map(|[chunk, _]| *chunk).collect();
        used.dedup();
        used
    }

    /// Runs over whole chunks, in packets of `packet` bytes; unused sources may be shorter.
    pub(super) fn run(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]], packet: usize) {
        if packet == 0 {
            return;
        }
        let inputs: Vec<&[u8]> =
            self.inputs.iter().map(|[chunk, at]| &sources[*chunk][at * packet..][..packet]).collect();
        let mut parts: Vec<&mut [u8]> =
            outputs.iter_mut().flat_map(|output| output.chunks_exact_mut(packet)).collect();
        let touched = (inputs.len() + parts.len()) * packet;
        if touched < STREAM_FROM {
            return self.steps.run(tier, &inputs, &mut parts);
        }
        let piece = (FORMED / parts.len().max(1)).next_multiple_of(4096).min(packet);
        let mut formed = vec![0; parts.len() * piece];
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(inputs.len());
        for start in (0..packet).step_by(piece) {
            let range = start..packet.min(start + piece);
            pieces.clear();
            pieces.extend(inputs.iter().map(|input| &input[range.clone()]));
            let mut blocks: Vec<&mut [u8]> =
                formed.chunks_exact_mut(piece).map(|block| &mut block[..range.len()]).collect();
            self.steps.run(tier, &pieces, &mut blocks);
            for (part, block) in parts.iter_mut().zip(&blocks) {
                copy_past_caches(tier, &mut part[range.clone()], block);
            }
        }
    }

    /// Bytes `range` of outputs in packets of `packet` bytes, from whole chunks. The program is one of just the
    /// packets that the range touches.
    pub(super) fn run_range(
        &self,
        tier: Tier,
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
        packet: usize,
        range: Range<usize>,
    ) {
        if range.is_empty() {
            return;
        }
        // Places within packets: some of one packet, or all.
        let [first, last] = [range.start / packet, (range.end - 1) / packet];
        let places =
            if first == last { range.start - first * packet..range.end - first * packet } else { 0..packet };
        let inputs: Vec<&[u8]> =
            self.inputs.iter().map(|[chunk, at]| &sources[*chunk][at * packet..][places.clone()]).collect();
        let mut formed = vec![0; self.blocks.len() * places.len()];
        let mut blocks: Vec<&mut [u8]> = formed.chunks_exact_mut(places.len()).collect();
        self.steps.run(tier, &inputs, &mut blocks);
        for ([output, at], block) in self.blocks.iter().zip(blocks) {
            let whole = at * packet + places.start..at * packet + places.end;
            let common = whole.start.max(range.start)..whole.end.min(range.end);
            outputs[*output][common.start - range.start..common.end - range.start]
                .copy_from_slice(&block[common.start - whole.start..common.end - whole.start]);
        }
    }
}
