//! Writes a straight-line program of sums over block-sized slots, which the kernel runs strip by strip
//! ([`Program`]; 1.5 to 1.8 times whole blocks, findings §1).
//!
//! [`Builder`] takes sums of named values; [`Builder::finish`] decides where they live:
//!
//! - A block is read once. One that several sums need is copied to scratch as the first of them reads it.
//! - Every other value is in scratch from its sum to its last use, and scratch freed last is used first.
//! - What shall stay goes to its block in the same step, once that block's own bytes have been read.
//!
//! So the strips that are read again and again lie in scratch, which the caches keep, whatever the blocks' addresses.

pub(crate) use crate::kernel::sums::{Slot, Steps as Program};
use crate::kernel::{
    product::Product,
    sums::{FETCHED_STRIP, NOWHERE, Op},
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
    /// Sums of the one before and something that is older, ascending.
    joined: Vec<u32>,
    /// Blocks that one op copies as it reads them.
    copies_max: usize,
    strip_max: usize,
}

/// Sums of many of the same values.
struct Dense {
    /// The first of the sums that stand for the results; those have no sources of their own.
    first: usize,
    sources: Vec<Value>,
    rows: Vec<u64>,
}

/// Blocks that one op of a decoder copies as it reads them. More are copied one by one, each by an op of its own: what comes from memory is
/// fetched some ops ahead, and sums that copy a dozen blocks ask for too many of them at once.
const COPIES_MAX: usize = 3;
/// Bytes of a strip of an encoder at most: sums that stay go to blocks that nobody reads again, and its columns fit a nearer cache then
/// (1 to 3 %; a decoder, whose sums stay in scratch, was slower).
const ENCODER_STRIP: usize = 1024;
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
            joined: Vec::new(),
            copies_max: COPIES_MAX,
            strip_max: FETCHED_STRIP,
        }
    }

    /// For an encoder: shorter strips, and each block is copied by an op of its own. Its columns copy a dozen blocks each and went 1 to 3 %
    /// slower otherwise.
    pub(crate) fn for_encoder(self) -> Self {
        Self { copies_max: 0, strip_max: ENCODER_STRIP, ..self }
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

    /// The sum of `sources`, and that with `more`, which are made in one step where the second only has to stay.
    pub(crate) fn sum_and_more(
        &mut self,
        sources: impl IntoIterator<Item = Source>,
        more: Value,
    ) -> [Value; 2] {
        let sum = self.sum(sources);
        let whole = self.sum([sum, more].map(|value| Source { value, coefficient: 1 }));
        if sum + 1 == whole && sum >= self.inputs + self.blocks && more < sum {
            self.joined.push(self.starts.len() as u32 - 1);
        }
        [sum, whole]
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
            copies: Vec::new(),
            coefficients: Vec::new(),
            slots: Slots { first: self.external, count: 0, free: Vec::new(), freed: Vec::new() },
            late: Vec::new(),
        };
        let (mut copied, mut ones, mut others, mut product) = (Vec::new(), Vec::new(), Vec::new(), None);
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
            copied.clear();
            ones.clear();
            others.clear();
            let plain = builder.sources_of(sum).iter().all(|source| source.coefficient == 1);
            for source in builder.sources_of(sum) {
                if plain && copied.len() < builder.copies_max {
                    match self.read_and_copy(source.value, &mut writer.slots) {
                        (from, Some(copy)) => copied.push((from, copy)),
                        (from, None) => ones.push(from),
                    }
                    continue;
                }
                let from = self.read(source.value, &mut writer);
                match source.coefficient {
                    1 => ones.push(from),
                    coefficient => others.push((from, coefficient)),
                }
            }
            if plain && let Some(out) = self.joined_out(sum) {
                // Read here by the next sum, which is this op's as well.
                self.values[value].uses -= 1;
                let more = builder.sources_of(sum + 1)[1].value;
                // `dst` may be where a source was, but not where `plus` is, which is read later; and what `plus` may have to be copied
                // to comes before the op, so is none of its sources.
                let freed = writer.slots.freed.len();
                let plus = self.read(more, &mut writer);
                let Slots { free, freed: all, .. } = &mut writer.slots;
                free.extend(all.drain(..freed));
                let dst = writer.slots.take();
                writer.slots.free_them();
                self.values[value].place = dst;
                writer.op(Goal { dst, out, plus }, &copied, &ones, &[]);
                sum += 2;
                continue;
            }
            let (out, waits) = self.out(sum);
            // What is multiplied must not be written, so a sum of products has scratch that is no source's.
            let apart = if others.is_empty() { NOWHERE } else { writer.slots.take() };
            writer.slots.free_them();
            let read_again = self.values[value].uses > 0 || waits;
            let dst = if apart == NOWHERE && read_again { writer.slots.take() } else { apart };
            writer.op(Goal::of(dst, if waits { NOWHERE } else { out }), &copied, &ones, &others);
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
                writer.op(Goal::of(from, NOWHERE), &[], &[value], &[]);
                self.values[value as usize].place = from;
            }
            writer.late.push((from, builder.inputs + block));
        }
        for (from, out) in std::mem::take(&mut writer.late) {
            writer.op(Goal::of(NOWHERE, out), &[], &[from], &[]);
        }
        let counts = [builder.inputs, builder.blocks, writer.slots.count].map(|count| count as usize);
        let Writer { ops, sources, copies, coefficients, .. } = writer;
        let program = Program::new(counts, ops, sources, copies, coefficients, product);
        program.in_strips_of(builder.strip_max)
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
                (out, false) => writer.op(Goal::of(NOWHERE, out), &[], &[from], &[]),
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

    /// Where the sum after this one goes, if it is this one with something more and has to be nowhere else.
    fn joined_out(&self, sum: usize) -> Option<Slot> {
        self.builder.joined.binary_search(&(sum as u32 + 1)).ok()?;
        let (this, next) = (self.external as usize + sum, self.external as usize + sum + 1);
        let (out, waits) = self.out(sum + 1);
        // A sum that only the next one reads is not worth a slot; there each is its own op.
        let alone = self.values[next].uses == 0 && self.values[this].uses > 1 && self.home[sum] == UNUSED;
        (alone && out != NOWHERE && !waits).then_some(out)
    }

    /// Where `value` is to be read, which is one read less to come; a block that is wanted again is copied first. What is
    /// read for the last time is free once the op is written ([`Slots::free_them`]).
    fn read(&mut self, value: Value, writer: &mut Writer) -> Slot {
        let (from, copy) = self.read_and_copy(value, &mut writer.slots);
        let Some(copy) = copy else { return from };
        writer.op(Goal::of(copy, NOWHERE), &[], &[from], &[]);
        copy
    }

    /// The same, and where the op that reads it has to copy it.
    fn read_and_copy(&mut self, value: Value, slots: &mut Slots) -> (Slot, Option<Slot>) {
        let held = &mut self.values[value as usize];
        held.uses -= 1;
        let from = held.place;
        if from >= self.external {
            if held.uses == 0 {
                slots.freed.push(from);
            }
            return (from, None);
        }
        if held.uses == 0 {
            return (from, None);
        }
        held.place = slots.take();
        (from, Some(held.place))
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
    copies: Vec<Slot>,
    coefficients: Vec<u8>,
    slots: Slots,
    /// Sums that wait in scratch until their block has been read.
    late: Vec<(Slot, Slot)>,
}

/// Where a sum goes, as in [`Op`].
struct Goal {
    dst: Slot,
    out: Slot,
    plus: Slot,
}

impl Goal {
    fn of(dst: Slot, out: Slot) -> Self {
        Self { dst, out, plus: NOWHERE }
    }
}

impl Writer {
    fn op(&mut self, to: Goal, copied: &[(Slot, Slot)], ones: &[Slot], others: &[(Slot, u8)]) {
        let Goal { dst, out, plus } = to;
        let (start, copies) = (self.sources.len() as u32, self.copies.len() as u32);
        self.sources.extend(copied.iter().map(|(slot, _)| *slot));
        self.copies.extend(copied.iter().map(|(_, copy)| *copy));
        self.sources.extend_from_slice(ones);
        self.coefficients.resize(self.sources.len(), 1);
        let ones = self.sources.len() as u32;
        self.sources.extend(others.iter().map(|(slot, _)| *slot));
        self.coefficients.extend(others.iter().map(|(_, coefficient)| *coefficient));
        let (copied, end) = (start + copied.len() as u32, self.sources.len() as u32);
        self.ops.push(Op { dst, out, plus, copies, start, copied, ones, end });
    }
}
