//! A straight-line program of sums over block-sized slots, run strip by strip so that what is reused stays in the
//! cache (1.5 to 1.8 times whole blocks; findings §1).
//!
//! ```text
//!   slots   [ inputs, read only | blocks, read and written | scratch, one strip each ]
//!   op      dst = scale * dst + sum of coefficient * source
//! ```
//!
//! Invariants: an op's destination is no input and none of its sources; a scratch slot is set (scale 0) before it
//! is read. [`Builder::finish`] lets scratch slots whose values are no longer needed be used again.

use crate::kernel::{Tier, gf256, xor};

/// Bytes of every slot worked on at once: measured, see `examples/measure.rs`.
pub(crate) const STRIP: usize = 4096;

pub(crate) type Slot = u32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) slot: Slot,
    pub(crate) coefficient: u8,
}

#[derive(Clone, Debug)]
struct Op {
    dst: Slot,
    /// 0 sets, 1 adds.
    scale: u8,
    /// Sources `start..ones` have coefficient one, `ones..end` others.
    start: u32,
    ones: u32,
    end: u32,
}

/// Collects ops; scratch slots are virtual, as many as one likes.
pub(crate) struct Builder {
    inputs: u32,
    blocks: u32,
    next: Slot,
    ops: Vec<Op>,
    sources: Vec<Source>,
}

impl Builder {
    pub(crate) fn new(inputs: usize, blocks: usize) -> Self {
        let (inputs, blocks) = (inputs as u32, blocks as u32);
        Self { inputs, blocks, next: inputs + blocks, ops: Vec::new(), sources: Vec::new() }
    }

    /// A new scratch slot.
    pub(crate) fn scratch(&mut self) -> Slot {
        self.next += 1;
        self.next - 1
    }

    /// Appends `dst = scale * dst + sources`.
    pub(crate) fn op(&mut self, dst: Slot, scale: u8, sources: impl IntoIterator<Item = Source>) {
        let start = self.sources.len();
        self.sources.extend(sources);
        self.sources[start..].sort_by_key(|source| source.coefficient != 1);
        let ones = start + self.sources[start..].partition_point(|source| source.coefficient == 1);
        debug_assert!(
            self.sources[start..].iter().all(|source| source.slot != dst),
            "an op reads its destination"
        );
        if scale == 1 && self.sources.len() == start {
            return;
        }
        let end = self.sources.len() as u32;
        self.ops.push(Op { dst, scale, start: start as u32, ones: ones as u32, end });
    }

    /// Assigns real scratch slots, the most recently freed first.
    pub(crate) fn finish(mut self) -> Program {
        let first = self.inputs + self.blocks;
        let mut last_use = vec![0; (self.next - first) as usize];
        for (time, op) in self.ops.iter().enumerate() {
            let sources = &self.sources[op.start as usize..op.end as usize];
            for slot in sources.iter().map(|source| source.slot).chain([op.dst]).filter(|slot| *slot >= first)
            {
                last_use[(slot - first) as usize] = time;
            }
        }
        let (mut real, mut free, mut count) = (vec![None; last_use.len()], Vec::new(), 0);
        for (time, op) in self.ops.iter_mut().enumerate() {
            let mut ended = Vec::new();
            if let Some(slot) = op.dst.checked_sub(first) {
                let slot = slot as usize;
                let assigned = *real[slot].get_or_insert_with(|| {
                    free.pop().unwrap_or_else(|| {
                        count += 1;
                        first + count - 1
                    })
                });
                op.dst = assigned;
                if last_use[slot] == time {
                    ended.push(assigned);
                }
            }
            for source in &mut self.sources[op.start as usize..op.end as usize] {
                if let Some(slot) = source.slot.checked_sub(first) {
                    let assigned = real[slot as usize].expect("a scratch slot is set before it is read");
                    source.slot = assigned;
                    if last_use[slot as usize] == time && !ended.contains(&assigned) {
                        ended.push(assigned);
                    }
                }
            }
            free.append(&mut ended);
        }
        Program {
            inputs: self.inputs,
            blocks: self.blocks,
            scratch: count,
            ops: self.ops,
            sources: self.sources,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    inputs: u32,
    blocks: u32,
    scratch: u32,
    ops: Vec<Op>,
    sources: Vec<Source>,
}

impl Program {
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Runs over `blocks`, all of one length, with inputs of at least that length.
    pub(crate) fn run(&self, inputs: &[&[u8]], blocks: &mut [&mut [u8]]) {
        assert_eq!(
            (inputs.len(), blocks.len()),
            (self.inputs as usize, self.blocks as usize),
            "slots of the program"
        );
        let len = blocks.first().map_or(0, |block| block.len());
        if len == 0 || self.ops.is_empty() {
            return;
        }
        let tier = Tier::detect();
        let strip = STRIP.min(len);
        let mut memory = vec![0; self.scratch as usize * strip];
        let mut scratch: Vec<&mut [u8]> = memory.chunks_exact_mut(strip).collect();
        for start in (0..len).step_by(strip) {
            let part = strip.min(len - start);
            for op in &self.ops {
                self.step(tier, op, inputs, blocks, &mut scratch, start, part);
            }
        }
    }

    #[inline]
    fn step(
        &self,
        tier: Tier,
        op: &Op,
        inputs: &[&[u8]],
        blocks: &mut [&mut [u8]],
        scratch: &mut [&mut [u8]],
        start: usize,
        part: usize,
    ) {
        let blocks_at = self.inputs as usize;
        let scratch_at = blocks_at + self.blocks as usize;
        let strip = start..start + part;
        // The destination is taken out while it is written, so that the others can be read.
        if let Some(place) = (op.dst as usize).checked_sub(scratch_at) {
            let whole = std::mem::take(&mut scratch[place]);
            self.apply(tier, op, &mut whole[..part], &View { inputs, blocks, scratch, strip });
            scratch[place] = whole;
        } else {
            let place = op.dst as usize - blocks_at;
            let whole = std::mem::take(&mut blocks[place]);
            self.apply(tier, op, &mut whole[strip.clone()], &View { inputs, blocks, scratch, strip });
            blocks[place] = whole;
        }
    }

    #[inline]
    fn apply(&self, tier: Tier, op: &Op, dst: &mut [u8], view: &View<'_>) {
        if op.scale > 1 {
            gf256::scale(dst, op.scale);
        }
        let mut set = op.scale == 0;
        for group in self.sources[op.start as usize..op.ones as usize].chunks(xor::FUSED_MAX) {
            let mut views = [&[][..]; xor::FUSED_MAX];
            for (place, source) in views.iter_mut().zip(group) {
                *place = view.of(source.slot as usize);
            }
            xor::fused(tier, dst, &views[..group.len()], set);
            set = false;
        }
        if set {
            dst.fill(0);
        }
        for source in &self.sources[op.ones as usize..op.end as usize] {
            gf256::mul_acc_at(tier, dst, view.of(source.slot as usize), source.coefficient);
        }
    }

    /// Slices read per run over one block length: for measurements.
    pub(crate) fn reads(&self) -> usize {
        self.sources.len()
    }

    /// Scratch slots, one strip each.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch as usize
    }
}

/// One strip of every slot but the destination.
struct View<'a> {
    inputs: &'a [&'a [u8]],
    blocks: &'a [&'a mut [u8]],
    scratch: &'a [&'a mut [u8]],
    strip: std::ops::Range<usize>,
}

impl View<'_> {
    #[inline]
    fn of(&self, slot: usize) -> &[u8] {
        let Some(block) = slot.checked_sub(self.inputs.len()) else {
            return &self.inputs[slot][self.strip.clone()];
        };
        match block.checked_sub(self.blocks.len()) {
            None => &self.blocks[block][self.strip.clone()],
            Some(place) => &self.scratch[place][..self.strip.len()],
        }
    }
}
