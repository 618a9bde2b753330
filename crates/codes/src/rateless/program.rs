//! Writes a straight-line program of sums over block-sized slots, which the kernel runs strip by strip
//! ([`Program`]; 1.5 to 1.8 times whole blocks, findings §1).
//!
//! Invariants: an op's destination is no input and none of its sources; a scratch slot is set (scale 0) before it
//! is read. [`Builder::finish`] lets scratch slots whose values are no longer needed be used again.

use crate::kernel::sums::Op;
pub(crate) use crate::kernel::sums::{Slot, Steps as Program};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) slot: Slot,
    pub(crate) coefficient: u8,
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
        let added = &mut self.sources[start..];
        if added.iter().any(|source| source.coefficient != 1) {
            added.sort_by_key(|source| source.coefficient != 1);
        }
        let ones = start + added.partition_point(|source| source.coefficient == 1);
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
        let (slots, coefficients) =
            self.sources.iter().map(|source| (source.slot, source.coefficient)).unzip();
        let counts = [self.inputs, self.blocks, count].map(|count| count as usize);
        Program::new(counts, self.ops, slots, coefficients)
    }
}
