//! Codes made of XORs alone: a chunk is blocks of r packets of equal length, and every parity packet is the sum of some
//! packets of the same block.
//!
//! What is to be computed is a list of sums in an order in which each has its terms; what nobody asks for is dropped,
//! and what is only passed through lives in scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::kernel::packets::{PacketSum, Packets, Place};
use crate::kernel::{Tier, double};

/// Bytes of a block of all chunks at most, where packets are not the shortest already: a tenth of a second-level
/// cache.
const BLOCK_OF_ALL: usize = 96 * 1024;
/// Bytes of a packet: at least a line of the caches, at most what holds a sum in eight of the widest registers.
const PACKET: Range<usize> = 64..512;

/// How a chunk divides into packets: blocks of `count` packets of `packet` bytes, one after the other, and at the end
/// a block of shorter ones. Part of what the code is: other lengths make other parity bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) count: usize,
    packet: usize,
}

impl Layout {
    /// For `chunks` chunks in all and `count` packets a block.
    pub(super) fn new(chunks: usize, count: usize) -> Self {
        let mut packet = PACKET.end;
        while packet > PACKET.start && chunks * count * packet > BLOCK_OF_ALL {
            packet /= 2;
        }
        Self { count, packet }
    }

    /// For the kernel of two parities: packets of one line.
    pub(super) fn lines(count: usize) -> Self {
        Self { count, packet: double::PACKET }
    }

    /// Bytes of a whole block.
    pub(super) fn block(self) -> usize {
        self.count * self.packet
    }

    /// The blocks that bytes `range` lie in.
    pub(super) fn blocks_around(self, chunk_len: usize, range: Range<usize>) -> Range<usize> {
        if range.is_empty() {
            return range.start..range.start;
        }
        let block = self.block();
        range.start / block * block..range.end.next_multiple_of(block).min(chunk_len)
    }

    /// The whole blocks within a range; empty where there is none.
    pub(super) fn whole_blocks(self, range: &Range<usize>) -> Range<usize> {
        let block = self.block();
        let [start, end] = [range.start.next_multiple_of(block), range.end / block * block];
        if start < end { start..end } else { range.start..range.start }
    }

    /// Where the block of byte `at` starts, and how long its packets are.
    pub(super) fn block_of(self, chunk_len: usize, at: usize) -> (usize, usize) {
        let start = at / self.block() * self.block();
        (start, self.packet.min((chunk_len - start) / self.count))
    }
}

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

/// Sums ready to run over chunks of any length.
#[derive(Clone, Debug)]
pub(super) struct Program {
    layout: Layout,
    packets: Packets,
}

impl Program {
    /// A program of the sums that the outputs need.
    pub(super) fn new(layout: Layout, sums: &[Sum]) -> Self {
        // Backwards: a sum is needed when it is an output's, or a term of a needed one.
        let mut needed: BTreeSet<Unit> = BTreeSet::new();
        let mut kept = Vec::new();
        for (unit, terms) in sums.iter().rev() {
            if matches!(unit, Unit::Output(..)) || needed.contains(unit) {
                needed.extend(terms.iter().copied());
                kept.push((*unit, terms));
            }
        }
        kept.reverse();
        // What is read again is read from scratch.
        let again = kept.iter().map(|(unit, _)| *unit).filter(|unit| needed.contains(unit));
        let scratch: BTreeMap<Unit, Place> =
            again.enumerate().map(|(packet, unit)| (unit, Place::scratch(packet))).collect();
        let read = |unit: &Unit| match *unit {
            Unit::Source(chunk, packet) => Place::source(chunk, packet),
            _ => scratch[unit],
        };
        let (mut list, mut sources) = (Vec::new(), Vec::new());
        for (unit, terms) in &kept {
            let start = sources.len() as u32;
            sources.extend(terms.iter().map(read));
            let (dst, copy) = match *unit {
                Unit::Output(chunk, packet) => (Place::output(chunk, packet), scratch.get(unit).copied()),
                _ => (read(unit), None),
            };
            list.push(PacketSum { dst, copy, start, end: sources.len() as u32 });
        }
        Self { layout, packets: Packets::new(list, sources) }
    }

    /// Chunks of the list of sources that are read, ascending.
    pub(super) fn used(&self) -> &[usize] {
        self.packets.used()
    }

    /// Runs over chunks, or whole blocks of them; allocates nothing.
    pub(super) fn run(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        self.packets.run(tier, [self.layout.count, self.layout.packet], sources, outputs);
    }
}
