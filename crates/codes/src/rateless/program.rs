//! Writes a straight-line program of sums over block-sized slots, which the kernel runs strip by strip
//! ([`Program`]; 1.5 to 1.8 times whole blocks, findings §1).
//!
//! [`Builder`] takes sums of named values; [`Builder::finish`] decides where they live:
//!
//! - A block is read once. One that several sums need is copied to scratch at the first of them.
//! - Every other value is in scratch from its sum to its last use, and scratch freed last is used first.
//! - What shall stay goes to its block in the same step, once that block's own bytes have been read.
//!
//! So the strips that are read again and again lie in scratch, which the caches keep, whatever the blocks' addresses.

pub(crate) use crate::kernel::sums::{Slot, Steps as Program};
use crate::kernel::{
    product::Product,
    sums::{NOWHERE, Op},
};

/// A block's own bytes (inputs first), or what an op gave.
pub(crate) type Value = u32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) value: Value,
    pub(crate) coefficient: u8,
}

/// Where a value shall be in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In this block.
    Block(u32),
    /// In any of the first blocks, up to this one, that is no other value's home.
    AnyBelow(u32),
}

/// Collects sums; each gives a value of its own.
pub(crate) struct Builder {
    inputs: u32,
    blocks: u32,
    /// Where each sum's sources start.
    starts: Vec<u32>,
    sources: Vec<Source>,
    product: Option<Dense>,
}

/// Sums of many of the same values.
struct Dense {
    /// The first of the sums that stand for the results; those have no sources of their own.
    first: usize,
    sources: Vec<Value>,
    rows: Vec<u64>,
}

const UNUSED: u32 = u32::MAX;
/// After all sums.
const AT_END: u32 = u32::MAX - 1;

impl Builder {
    pub(crate) fn new(inputs: usize, blocks: usize) -> Self {
        Self {
            inputs: inputs as u32,
            blocks: blocks as u32,
            starts: Vec::new(),
            sources: Vec::new(),
            product: None,
        }
    }

    /// The sum of `sources`; one of them alone is that value itself.
    pub(crate) fn sum(&mut self, sources: impl IntoIterator<Item = Source>) -> Value {
        let start = self.sources.len();
        self.sources.extend(sources);
        if let [Source { value, coefficient: 1 }] = self.sources[start..] {
            self.sources.pop();
            return value;
        }
        self.starts.push(start as u32);
        self.inputs + self.blocks + self.starts.len() as u32 - 1
    }

    /// `results` sums of `sources`, those of sum r named by the bits of `rows[r * n..][..n]` as [`Product`] has them;
    /// their values follow the one returned. Once a program.
    pub(crate) fn product(&mut self, sources: Vec<Value>, results: usize, rows: Vec<u64>) -> Value {
        assert!(self.product.is_none(), "one product a program");
        let first = self.starts.len();
        self.product = Some(Dense { first, sources, rows });
        self.starts.resize(first + results, self.sources.len() as u32);
        self.inputs + self.blocks + first as u32
    }

    /// The program that leaves `kept` values at their homes, and the block of each. Sums that nothing needs are left
    /// out.
    ///
    /// # Panics
    /// When a home has two values or there are too few blocks: our own broken invariants.
    pub(crate) fn finish(self, kept: &[(Value, Home)]) -> (Program, Vec<u32>) {
        let mut layout = Layout::new(&self, kept);
        let homes = layout.find_homes(kept);
        (layout.write(), homes)
    }

    fn sources_of(&self, sum: usize) -> &[Source] {
        let end = self.starts.get(sum + 1).map_or(self.sources.len(), |end| *end as usize);
        &self.sources[self.starts[sum] as usize..end]
    }
}

/// A value while the ops are written down.
#[derive(Clone, Copy)]
struct Held {
    /// Reads of it that are still to come.
    uses: u32,
    /// Where it is now: an external one at home or in scratch.
    place: Slot,
}

/// Decisions of [`Builder::finish`].
struct Layout<'a> {
    builder: &'a Builder,
    /// Inputs and blocks.
    external: u32,
    /// Every value, the external ones first.
    values: Vec<Held>,
    /// The block that each sum goes to as it is made, counted without inputs.
    home: Vec<u32>,
    /// The first sum that reads each block, or [`UNUSED`].
    read_at: Vec<u32>,
    /// What goes to a block after all sums, by copying.
    copies: Vec<(Value, u32)>,
}

impl<'a> Layout<'a> {
    fn new(builder: &'a Builder, kept: &[(Value, Home)]) -> Self {
        let external = builder.inputs + builder.blocks;
        let count = external as usize + builder.starts.len();
        let mut values = vec![Held { uses: 0, place: NOWHERE }; count];
        (0..external).zip(&mut values).for_each(|(slot, held)| held.place = slot);
        let mut needed = vec![false; count];
        kept.iter().for_each(|(value, _)| needed[*value as usize] = true);
        let mut read_at = vec![UNUSED; external as usize];
        for sum in (0..builder.starts.len()).rev() {
            let value = external as usize + sum;
            let wanted = needed[value] || values[value].uses > 0;
            let mut read = |value: Value| {
                values[value as usize].uses += 1;
                if let Some(first) = read_at.get_mut(value as usize) {
                    *first = sum as u32;
                }
            };
            if let Some(dense) = builder.product.as_ref().filter(|dense| dense.first == sum) {
                dense.sources.iter().for_each(|value| read(*value));
            } else if wanted {
                builder.sources_of(sum).iter().for_each(|source| read(source.value));
            }
        }
        let home = vec![UNUSED; builder.starts.len()];
        Self { builder, external, values, home, read_at, copies: Vec::new() }
    }

    /// Each value that may be in any block gets one: in the order in which they are computed, the block read first.
    fn find_homes(&mut self, kept: &[(Value, Home)]) -> Vec<u32> {
        let inputs = self.builder.inputs;
        let mut taken = vec![false; self.builder.blocks as usize];
        let mut homes = vec![UNUSED; kept.len()];
        let (mut any, mut any_end) = (Vec::new(), 0);
        for (place, (value, home)) in kept.iter().enumerate() {
            match home {
                Home::Block(block) => {
                    assert!(!std::mem::replace(&mut taken[*block as usize], true), "a block of two values");
                    homes[place] = *block;
                    self.keep(*value, *block);
                }
                Home::AnyBelow(end) => {
                    any.push((*value, place));
                    any_end = any_end.max(*end);
                    if *value < self.external && self.read_at[*value as usize] == UNUSED {
                        self.read_at[*value as usize] = AT_END;
                    }
                }
            }
        }
        any.sort_unstable();
        let mut free: Vec<u32> = (0..any_end).filter(|block| !taken[*block as usize]).collect();
        // One that is never read is free from the beginning.
        free.sort_by_key(|block| self.read_at[(inputs + block) as usize].wrapping_add(1));
        let mut free = free.into_iter();
        for (value, place) in any {
            homes[place] = free.next().expect("a block for every value that is kept");
            self.keep(value, homes[place]);
        }
        homes
    }

    /// Notes that `value` ends in `block`.
    fn keep(&mut self, value: Value, block: u32) {
        if self.builder.inputs + block == value {
            return;
        }
        if let Some(sum) = value.checked_sub(self.external)
            && self.home[sum as usize] == UNUSED
        {
            self.home[sum as usize] = block;
            return;
        }
        if value < self.external && self.read_at[value as usize] == UNUSED {
            self.read_at[value as usize] = AT_END;
        }
        self.values[value as usize].uses += 1;
        self.copies.push((value, block));
    }

    /// The ops, with slots for all values.
    fn write(mut self) -> Program {
        let builder = self.builder;
        let mut writer = Writer {
            ops: Vec::new(),
            sources: Vec::new(),
            coefficients: Vec::new(),
            slots: Slots { first: self.external, count: 0, free: Vec::new(), freed: Vec::new() },
            late: Vec::new(),
        };
        let (mut ones, mut others, mut product) = (Vec::new(), Vec::new(), None);
        let mut sum = 0;
        while sum < builder.starts.len() {
            if let Some(dense) = builder.product.as_ref().filter(|dense| dense.first == sum) {
                let results = dense.rows.len() / Product::words(dense.sources.len()).max(1);
                let written = self.write_product(dense, results, &mut writer);
                // Copies that its sources needed come before it, those of its results after it.
                product = Some((writer.ops.len(), written));
                self.keep_results(sum..sum + results, &mut writer);
                sum += results;
                continue;
            }
            let value = self.external as usize + sum;
            if self.values[value].uses == 0 && self.home[sum] == UNUSED {
                sum += 1;
                continue;
            }
            ones.clear();
            others.clear();
            for source in builder.sources_of(sum) {
                let from = self.read(source.value, &mut writer);
                match source.coefficient {
                    1 => ones.push(from),
                    coefficient => others.push((from, coefficient)),
                }
            }
            let (out, waits) = self.out(sum);
            // What is multiplied must not be written, so a sum of products has scratch that is no source's.
            let apart = if others.is_empty() { NOWHERE } else { writer.slots.take() };
            writer.slots.free_them();
            let read_again = self.values[value].uses > 0 || waits;
            let dst = if apart == NOWHERE && read_again { writer.slots.take() } else { apart };
            writer.op(dst, if waits { NOWHERE } else { out }, &ones, &others);
            self.values[value].place = dst;
            if waits {
                // Never freed.
                self.values[value].uses += 1;
                writer.late.push((dst, out));
            }
            if !read_again && dst != NOWHERE {
                writer.slots.free.push(dst);
            }
            sum += 1;
        }
        // Blocks that move are all read before the first of them is written.
        for (value, block) in std::mem::take(&mut self.copies) {
            let mut from = self.values[value as usize].place;
            if (builder.inputs..self.external).contains(&from) {
                from = writer.slots.take();
                writer.op(from, NOWHERE, &[value], &[]);
                self.values[value as usize].place = from;
            }
            writer.late.push((from, builder.inputs + block));
        }
        for (from, out) in std::mem::take(&mut writer.late) {
            writer.op(NOWHERE, out, &[from], &[]);
        }
        let counts = [builder.inputs, builder.blocks, writer.slots.count].map(|count| count as usize);
        Program::new(counts, writer.ops, writer.sources, writer.coefficients, product)
    }

    fn write_product(&mut self, dense: &Dense, results: usize, writer: &mut Writer) -> Product {
        let sources = dense.sources.iter().map(|value| self.read(*value, writer)).collect();
        let outs: Vec<Slot> = (0..results).map(|_| writer.slots.take()).collect();
        let first = self.external as usize + dense.first;
        self.values[first..].iter_mut().zip(&outs).for_each(|(held, out)| held.place = *out);
        writer.slots.free_them();
        Product { sources, outs, rows: dense.rows.clone() }
    }

    /// Results of the product that are to stay go to their blocks.
    fn keep_results(&mut self, sums: std::ops::Range<usize>, writer: &mut Writer) {
        for sum in sums {
            let value = self.external as usize + sum;
            let from = self.values[value].place;
            match self.out(sum) {
                (NOWHERE, _) => {}
                (out, true) => {
                    self.values[value].uses += 1;
                    writer.late.push((from, out));
                }
                (out, false) => writer.op(NOWHERE, out, &[from], &[]),
            }
            if self.values[value].uses == 0 {
                writer.slots.free.push(from);
            }
        }
    }

    /// The block's slot that `sum` goes to, and whether that has not been read yet.
    fn out(&self, sum: usize) -> (Slot, bool) {
        if self.home[sum] == UNUSED {
            return (NOWHERE, false);
        }
        let out = self.builder.inputs + self.home[sum];
        let read_at = self.read_at[out as usize];
        (out, read_at != UNUSED && read_at > sum as u32)
    }

    /// Where `value` is to be read, which is one read less to come; a block that is wanted again is copied first. What is
    /// read for the last time is free once the op is written ([`Slots::free_them`]).
    fn read(&mut self, value: Value, writer: &mut Writer) -> Slot {
        let held = &mut self.values[value as usize];
        held.uses -= 1;
        if held.place >= self.external {
            if held.uses == 0 {
                writer.slots.freed.push(held.place);
            }
            return held.place;
        }
        if held.uses == 0 {
            return held.place;
        }
        let from = std::mem::replace(&mut held.place, writer.slots.take());
        writer.op(held.place, NOWHERE, &[from], &[]);
        held.place
    }
}

struct Slots {
    first: u32,
    count: u32,
    free: Vec<Slot>,
    /// Free once what reads them is written down.
    freed: Vec<Slot>,
}

impl Slots {
    /// The slot freed last, or a new one.
    fn take(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.first + self.count - 1
        })
    }

    fn free_them(&mut self) {
        self.free.append(&mut self.freed);
    }
}

struct Writer {
    ops: Vec<Op>,
    sources: Vec<Slot>,
    coefficients: Vec<u8>,
    slots: Slots,
    /// Sums that wait in scratch until their block has been read.
    late: Vec<(Slot, Slot)>,
}

impl Writer {
    fn op(&mut self, dst: Slot, out: Slot, ones: &[Slot], others: &[(Slot, u8)]) {
        let start = self.sources.len() as u32;
        self.sources.extend_from_slice(ones);
        self.sources.extend(others.iter().map(|(slot, _)| *slot));
        self.coefficients.resize(self.coefficients.len() + ones.len(), 1);
        self.coefficients.extend(others.iter().map(|(_, coefficient)| *coefficient));
        let end = self.sources.len() as u32;
        self.ops.push(Op { dst, out, start, ones: start + ones.len() as u32, end });
    }
}
