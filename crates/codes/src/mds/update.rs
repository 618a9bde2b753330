//! What a small write adds to parity chunks ([`Code::delta`]): of a product, each byte its own; of a code of packets, what
//! the packets written count in.

use std::ops::Range;

use super::delta::{self, DeltaRanges};
use super::{Code, Engine, MdsError, cauchy, count, lengths, rdp, within};
use crate::kernel::double::{self, Double};
use crate::kernel::{Tier, gf256, xor};

/// Bytes of a block of any code with a kernel.
const BLOCK_MAX: usize = double::PACKETS_MAX * double::PACKET;

impl Code {
    /// What writing `new` over `old` at `range_start` of data chunk `data_index` adds to parity chunk `parity_index`
    /// (0..m): the bytes into `out`, and where in the parity chunk they belong. `out` has the length that
    /// [`Code::delta_ranges`] totals; `chunk_len` is the length of the whole chunks.
    ///
    /// # Errors
    /// No such chunk, a range that leaves the chunk, wrong lengths.
    pub fn delta(
        &self,
        data_index: usize,
        range_start: usize,
        chunk_len: usize,
        old: &[u8],
        new: &[u8],
        parity_index: usize,
        out: &mut [u8],
    ) -> Result<DeltaRanges, MdsError> {
        if old.len() != new.len() {
            return Err(MdsError::Length { given: new.len(), expected: old.len() });
        }
        let range = range_start..range_start.saturating_add(old.len());
        let ranges = self.delta_ranges(data_index, range.clone(), chunk_len, parity_index)?;
        if out.len() != ranges.total() {
            return Err(MdsError::Length { given: out.len(), expected: ranges.total() });
        }
        if let Some(coefficient) = self.bytewise(data_index, parity_index) {
            gf256::difference_at(Tier::detect(), out, old, new, coefficient);
            return Ok(ranges);
        }
        match self.updates.get(data_index) {
            Some([update, _]) => {
                let whole = self.layout.whole_blocks(&range);
                if !whole.is_empty() {
                    let within = whole.start - range.start..whole.end - range.start;
                    let at = place_of(&ranges, &whole);
                    update.run(Tier::detect(), &[&old[within.clone()], &new[within]], &mut [&mut out[at]]);
                }
                self.add_edges(update, &range, chunk_len, [old, new], &ranges, out);
            }
            None => {
                out.fill(0);
                self.affected(data_index, &range, chunk_len, parity_index, |from, to| {
                    let from = from.start - range.start..from.end - range.start;
                    let at = place_of(&ranges, &to);
                    xor::xor_many(&mut out[at], &[&old[from.clone()], &new[from]]);
                });
            }
        }
        Ok(ranges)
    }

    /// [`Code::delta`] for all parity chunks at once: `outs[j]` is parity chunk j's, as long as its
    /// [`Code::delta_ranges`] total. Old and new bytes are read once where Reed-Solomon, or two parities and whole
    /// blocks, allow. Allocates nothing where `delta` does not.
    ///
    /// # Errors
    /// As for [`Code::delta`], and not m slices; nothing is written then.
    #[inline]
    pub fn deltas(
        &self,
        data_index: usize,
        range_start: usize,
        chunk_len: usize,
        old: &[u8],
        new: &[u8],
        outs: &mut [&mut [u8]],
    ) -> Result<(), MdsError> {
        count(outs.len(), self.m)?;
        if old.len() != new.len() {
            return Err(MdsError::Length { given: new.len(), expected: old.len() });
        }
        if data_index >= self.k {
            return Err(MdsError::NoSuchChunk { chunk: data_index, count: self.k });
        }
        let range = range_start..range_start.saturating_add(old.len());
        self.lengths(chunk_len, [])?;
        within(&range, chunk_len)?;
        if let Engine::Products(generator) = &self.engine {
            lengths(old.len(), outs.iter().map(|out| out.len()))?;
            generator.differences(Tier::detect(), data_index, old, new, outs);
            return Ok(());
        }
        self.packet_deltas(data_index, range, chunk_len, [old, new], outs)
    }

    /// [`Code::deltas`] of a code of packets, numbers and the range being checked. On its own, since what it keeps on the stack
    /// would cost Reed-Solomon's short deltas a third of their time.
    #[inline(never)]
    fn packet_deltas(
        &self,
        data_index: usize,
        range: Range<usize>,
        chunk_len: usize,
        [old, new]: [&[u8]; 2],
        outs: &mut [&mut [u8]],
    ) -> Result<(), MdsError> {
        let whole = self.layout.whole_blocks(&range);
        match (self.updates.get(data_index), &mut *outs) {
            (Some([update, both]), [sum, weighted]) if !whole.is_empty() => {
                let ranges = self.delta_ranges(data_index, range.clone(), chunk_len, 1)?;
                lengths(range.len(), [sum.len()])?;
                lengths(ranges.total(), [weighted.len()])?;
                let within = whole.start - range.start..whole.end - range.start;
                let at = place_of(&ranges, &whole);
                let sources = [&old[within.clone()], &new[within.clone()]];
                both.run(Tier::detect(), &sources, &mut [&mut sum[within.clone()], &mut weighted[at]]);
                for part in [0..within.start, within.end..range.len()] {
                    xor::set_xor(&mut sum[part.clone()], &[&old[part.clone()], &new[part]]);
                }
                self.add_edges(update, &range, chunk_len, [old, new], &ranges, weighted);
            }
            _ => {
                for (parity, out) in outs.iter().enumerate() {
                    let ranges = self.delta_ranges(data_index, range.clone(), chunk_len, parity)?;
                    lengths(ranges.total(), [out.len()])?;
                }
                for (parity, out) in outs.iter_mut().enumerate() {
                    self.delta(data_index, range.start, chunk_len, old, new, parity, out)?;
                }
            }
        }
        Ok(())
    }

    /// What blocks that are written in part add to the weighted parity, where blocks have a kernel: that of a block of which the
    /// rest did not change. A sum for each packet took twice as long.
    fn add_edges(
        &self,
        update: &Double,
        range: &Range<usize>,
        chunk_len: usize,
        [old, new]: [&[u8]; 2],
        ranges: &DeltaRanges,
        out: &mut [u8],
    ) {
        static UNCHANGED: [u8; BLOCK_MAX] = [0; BLOCK_MAX];
        for part in self.parts(range) {
            let mut start = part.start;
            while start < part.end {
                let (block, packet) = self.layout.block_of(chunk_len, start);
                let len = packet * self.layout.count;
                let end = part.end.min(block + len);
                let (mut difference, mut made) = ([0; BLOCK_MAX], [0; BLOCK_MAX]);
                let from = start - range.start..end - range.start;
                xor::set_xor(&mut difference[start - block..end - block], &[&old[from.clone()], &new[from]]);
                update.run(Tier::detect(), &[&difference[..len], &UNCHANGED[..len]], &mut [&mut made[..len]]);
                let mut at = 0;
                for range in ranges.as_slice() {
                    let [first, last] = [range.start.max(block), range.end.min(block + len)];
                    if first < last {
                        let to = at + first - range.start;
                        out[to..to + last - first].copy_from_slice(&made[first - block..last - block]);
                    }
                    at += range.len();
                }
                start = end;
            }
        }
    }

    /// The factor between the bytes of a data chunk and the same bytes of a parity chunk, if that is all there is to it.
    fn bytewise(&self, data: usize, parity: usize) -> Option<u8> {
        match &self.engine {
            Engine::Products(generator) => Some(generator.coefficient(parity, data)),
            Engine::Cauchy(generator, _) => (generator.coefficient(parity, data) == 1).then_some(1),
            Engine::Rdp { .. } => (parity == 0).then_some(1),
        }
    }

    /// What a written range of a code of packets has of blocks in part, before and after the whole ones; both are shorter
    /// than a block, or all of it is the first.
    fn parts(&self, range: &Range<usize>) -> [Range<usize>; 2] {
        let whole = self.layout.whole_blocks(range);
        if whole.is_empty() {
            return [range.clone(), range.end..range.end];
        }
        [range.start..whole.start, whole.end..range.end]
    }

    /// Calls `each` with parts of a written range and the bytes of the parity chunk that each counts in. Codes of packets
    /// only.
    fn affected(
        &self,
        data: usize,
        range: &Range<usize>,
        chunk_len: usize,
        parity: usize,
        mut each: impl FnMut(Range<usize>, Range<usize>),
    ) {
        let mut start = range.start;
        while start < range.end {
            let (block, packet) = self.layout.block_of(chunk_len, start);
            let at = (start - block) / packet;
            let end = range.end.min(block + (at + 1) * packet);
            let mut touch = |to: usize| {
                let [first, last] = [start, end].map(|place| to * packet + place - at * packet);
                each(start..end, first..last);
            };
            match &self.engine {
                Engine::Products(_) => unreachable!("products have no packets"),
                Engine::Cauchy(generator, _) => {
                    cauchy::touched(generator.coefficient(parity, data), at).for_each(&mut touch);
                }
                Engine::Rdp { prime, .. } => rdp::touched(*prime, data, at).for_each(&mut touch),
            }
            start = end;
        }
    }

    /// The ranges of parity chunk `parity_index` (0..m) that depend on bytes `range` of data chunk `data_index`, in
    /// chunks of `chunk_len` bytes.
    ///
    /// # Errors
    /// No such chunk, a range that leaves the chunk, a chunk length that is no multiple or more than a slice's.
    pub fn delta_ranges(
        &self,
        data_index: usize,
        range: Range<usize>,
        chunk_len: usize,
        parity_index: usize,
    ) -> Result<DeltaRanges, MdsError> {
        for (chunk, count) in [(data_index, self.k), (parity_index, self.m)] {
            if chunk >= count {
                return Err(MdsError::NoSuchChunk { chunk, count });
            }
        }
        self.lengths(chunk_len, [])?;
        within(&range, chunk_len)?;
        if self.bytewise(data_index, parity_index).is_some() {
            return Ok(DeltaRanges::one(range));
        }
        let mut all = delta::Union::default();
        let parts = self.parts(&range);
        // Between the parts are whole blocks, and such change whole blocks: the packets of one of a data chunk count in
        // all of a parity chunk's, since a coefficient's matrix inverts, and RDP's p - 1 rows are on all diagonals.
        all.add(parts[0].end..parts[1].start);
        for part in &parts {
            self.affected(data_index, part, chunk_len, parity_index, |_, to| all.add(to));
        }
        Ok(all.into_ranges())
    }
}

/// Where in a delta's bytes those lie that are for bytes `range` of the parity chunk.
fn place_of(ranges: &DeltaRanges, range: &Range<usize>) -> Range<usize> {
    let start = ranges.offset_of(range.start).expect("ranges hold every affected byte");
    start..start + range.len()
}
