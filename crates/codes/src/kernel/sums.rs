//! Straight-line sums over block-sized slots, run strip by strip so that what is reused stays in the cache.
//!
//! ```text
//!   slots   [ inputs, read only | blocks, read and written | scratch, one strip each ]
//!   op      dst, out = sum of coefficient * source; with `plus`: dst = sum, out = sum + plus
//! ```
//!
//! Blocks lie a power of two apart, so their strips share a few sets of every cache: 1,024 strips of 1 KiB find room
//! for 16 to 256 of them in a second-level cache of 1 MiB. What is read more than once is therefore copied to scratch by the op that
//! reads it first; scratch is one piece that the caches keep, and `rateless::program` writes programs that read each
//! input and block once.
//!
//! The whole list of ops runs inside one tier's function: an op touches some 4 KiB, and choosing a kernel for each
//! would cost more than the sum. An op's sum is held in registers over all its sources, so that the destination is
//! written once. Blocks are fetched into the cache a few ops before they are read, since the processor's own
//! prefetcher stops at every page and each strip lies in another. A few only: what is fetched takes the same buffers
//! for misses that reads of the second cache need, and what comes long before its use is out of the cache again (the
//! next strip asked for a strip ahead: decoding 1.6 instead of 2.1 GB/s beside 9 GB/s of memory).
//!
//! Soundness: [`Steps::new`] checks every slot number, and that an op's destinations are no inputs; [`Steps::run`]
//! checks the slots' count and lengths, and borrows them all for as long as it runs.

use super::{Tier, gf256, product::Product, second_cache_bytes};
#[cfg(target_arch = "x86_64")]
use super::{
    steps::multiplies_at_once,
    weighted::{self, Weighted},
};

/// Scratch of all slots together stays below this. More than a second-level cache: the start of an op costs more than what the
/// third level serves, and it serves long strips well. K = 1024 on Zen 4 (1 MiB), strips of 512 B, 1 and 2 KiB: encoding 7.9, 9.0 and 8.9
/// GB/s, decoding 4.2 (1 KiB) and 4.5; 4 KiB gave less.
pub(crate) const SCRATCH_BYTES: usize = 2816 << 10;
/// Where the second-level cache has so much, the third lies far off, and scratch keeps to the second: of it a quarter is left to what is
/// fetched and written meanwhile. K = 1024 on Intel with 2 MiB, strips of 2 and 1 KiB: decoding 3.6 and 4.1 GB/s, by two threads 6.3 and
/// 7.2, encoding 8.4 in both; seven eighths of it gave 3.9.
const LARGE_SECOND_CACHE: usize = 2 << 20;
/// Below this where strips are longer than [`FETCHED_STRIP`].
const NEAR_BYTES: usize = 1280 << 10;
/// Bytes of every slot worked on at once: the shortest strip pays for the choice of an op. Long ones are for programs
/// with next to no scratch (a writer's runs), where each op streams its few sources: 4.1 against 3.2 GB/s with 4 KiB.
const STRIPS: std::ops::RangeInclusive<usize> = 256..=64 << 10;
/// Strips up to this are fetched ahead of their use.
pub(crate) const FETCHED_STRIP: usize = 2048;
/// Bytes of strips between a block's prefetch and its use: half and one and a half times as much did alike.
const AHEAD: usize = 8 << 10;
/// Ops that is at least and at most: 16 did a quarter worse.
const AHEAD_OPS: std::ops::RangeInclusive<usize> = 4..=8;
/// Blocks written by one run from which they go past the caches; less in tests, which reach it at every tier with strips of every length.
const STREAM_BYTES: usize = if cfg!(test) { 8 << 10 } else { 8 << 20 };

pub(crate) type Slot = u32;
/// No slot.
pub(crate) const NOWHERE: Slot = Slot::MAX;

/// `dst = sum of coefficient * source, out = dst + plus`, the sources by their places in the program's list. Byte by byte it is: sources in
/// order, each that is copied written as it is read, then `dst`, `plus` and `out`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    /// Where the sum is read again; or [`NOWHERE`].
    pub(crate) dst: Slot,
    /// Where the sum goes to stay; or [`NOWHERE`].
    pub(crate) out: Slot,
    /// What `out` has more than `dst`; or [`NOWHERE`].
    pub(crate) plus: Slot,
    /// Sources `start..copied` go to slots of their own, too: as many from here on in the program's list of copies.
    pub(crate) copies: u32,
    /// Sources `start..ones` have coefficient one, `ones..end` others. With others nothing is copied and there is no `plus`.
    pub(crate) start: u32,
    pub(crate) copied: u32,
    pub(crate) ones: u32,
    pub(crate) end: u32,
}

/// A checked list of ops.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    inputs: usize,
    blocks: usize,
    scratch: usize,
    ops: Vec<Op>,
    sources: Vec<Slot>,
    /// Where sources are copied to.
    copies: Vec<Slot>,
    /// One a source.
    coefficients: Vec<u8>,
    /// Inputs and blocks in the order of their first use in a strip, with the op that is.
    first_uses: Vec<(u32, Slot)>,
    /// Comes before the op of this number.
    product: Option<(usize, Product)>,
    /// Bytes of a strip at most, where those of all scratch do not fit [`NEAR_BYTES`].
    strip_max: usize,
}

/// A cache line of scratch.
#[derive(Clone, Copy)]
#[repr(align(64))]
#[expect(dead_code, reason = "read and written through slots")]
struct Line([u8; 64]);

/// Scratch of runs, kept from one to the next.
#[derive(Default)]
pub(crate) struct Strips {
    lines: Vec<Line>,
    /// Where each slot's strip is; empty between runs.
    slots: Vec<*mut u8>,
}

impl Strips {
    /// So many bytes of it, whatever they hold, from a line on.
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        let lines = self.lines_mut(len.div_ceil(size_of::<Line>()));
        // SAFETY: lines are bytes, without gaps, borrowed as long as these; a byte has no alignment.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), size_of_val(lines)) };
        &mut bytes[..len]
    }

    fn lines_mut(&mut self, count: usize) -> &mut [Line] {
        if self.lines.len() < count {
            self.lines.resize(count, Line([0; 64]));
        }
        &mut self.lines[..count]
    }

    /// Bytes of scratch held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }
}

// SAFETY: there are addresses only while a run borrows what is there.
unsafe impl Send for Strips {}
// SAFETY: as above; and a shared one gives access to nothing.
unsafe impl Sync for Strips {}

impl Steps {
    /// Checks the ops.
    ///
    /// # Panics
    /// When an op names a slot that is not there, writes an input, or multiplies a slot that it writes: our own
    /// broken invariant.
    pub(crate) fn new(
        [inputs, blocks, scratch]: [usize; 3],
        ops: Vec<Op>,
        sources: Vec<Slot>,
        copies: Vec<Slot>,
        coefficients: Vec<u8>,
        product: Option<(usize, Product)>,
    ) -> Self {
        let slots = inputs + blocks + scratch;
        assert_eq!(sources.len(), coefficients.len(), "a coefficient a source");
        assert!(sources.iter().max().is_none_or(|slot| (*slot as usize) < slots), "a source that is no slot");
        let mut used = vec![false; inputs + blocks];
        let mut first_uses = Vec::new();
        for (at, op) in ops.iter().enumerate() {
            let all = &sources[op.start as usize..op.end as usize];
            assert!((op.start..=op.end).contains(&op.ones), "an op's sources are two ranges");
            assert!((op.start..=op.ones).contains(&op.copied), "an op copies some of its sources");
            let copies = &copies[op.copies as usize..][..(op.copied - op.start) as usize];
            assert!(op.plus == NOWHERE || (op.plus as usize) < slots, "an op adds what is no slot");
            assert!(
                op.ones == op.end || copies.is_empty() && op.plus == NOWHERE,
                "an op of products copies nothing and has one sum"
            );
            assert!(!copies.contains(&NOWHERE), "a copy goes somewhere");
            for to in copies.iter().copied().chain([op.dst, op.out]) {
                assert!(
                    to == NOWHERE || (inputs..slots).contains(&(to as usize)),
                    "an op writes a slot that is no block"
                );
            }
            if op.ones < op.end {
                let products = &sources[op.ones as usize..op.end as usize];
                assert!(op.dst != NOWHERE && !products.contains(&op.dst), "an op multiplies its destination");
            }
            for slot in all.iter().chain([&op.plus]) {
                if used.get(*slot as usize) == Some(&false) {
                    used[*slot as usize] = true;
                    first_uses.push((at as u32, *slot));
                }
            }
        }
        if let Some((at, product)) = &product {
            assert!(*at <= ops.len(), "a product after the last op");
            product.check(inputs..slots, slots);
        }
        let strip_max = FETCHED_STRIP;
        Self { inputs, blocks, scratch, ops, sources, copies, coefficients, first_uses, product, strip_max }
    }

    /// The same in strips of at most so many bytes, but where scratch is little.
    pub(crate) fn in_strips_of(self, strip_max: usize) -> Self {
        Self { strip_max: strip_max.clamp(*STRIPS.start(), FETCHED_STRIP), ..self }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.product.is_none()
    }

    /// Slices read per run over one block length, a product's sources once: for measurements.
    pub(crate) fn reads(&self) -> usize {
        let plus = self.ops.iter().filter(|op| op.plus != NOWHERE).count();
        self.sources.len() + plus + self.product.as_ref().map_or(0, |(_, product)| product.sources.len())
    }

    /// Scratch slots, one strip each.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Bytes of a slot worked on at once, beside a second-level cache of so many.
    fn strip(&self, second_cache: usize) -> usize {
        let within = |bytes: usize| {
            let most = (bytes / self.scratch.max(1)).max(1);
            (1 << most.ilog2()).clamp(*STRIPS.start(), *STRIPS.end())
        };
        match within(NEAR_BYTES) {
            long if long > FETCHED_STRIP => long,
            _ if second_cache >= LARGE_SECOND_CACHE => {
                within((second_cache / 4 * 3).min(SCRATCH_BYTES)).min(self.strip_max)
            }
            _ => within(SCRATCH_BYTES).min(self.strip_max),
        }
    }

    /// Runs over `blocks`, all of one length, with inputs of at least that length. Allocates nothing once `strips` has
    /// run a program as large.
    ///
    /// # Panics
    /// When slots are missing or of the wrong length.
    pub(crate) fn run(&self, tier: Tier, strips: &mut Strips, inputs: &[&[u8]], blocks: &mut [&mut [u8]]) {
        let len = blocks.first().map_or(0, |block| block.len());
        self.run_part(tier, strips, inputs, blocks, len);
    }

    /// The same over a part of blocks that are `whole` bytes each.
    ///
    /// # Panics
    /// As for [`Steps::run`].
    pub(crate) fn run_part(
        &self,
        tier: Tier,
        strips: &mut Strips,
        inputs: &[&[u8]],
        blocks: &mut [&mut [u8]],
        whole: usize,
    ) {
        assert_eq!((inputs.len(), blocks.len()), (self.inputs, self.blocks), "slots of the program");
        let len = blocks.first().map_or(0, |block| block.len());
        assert!(
            inputs.iter().all(|input| input.len() >= len) && blocks.iter().all(|block| block.len() == len),
            "slots of one length"
        );
        if len == 0 || self.is_empty() {
            return;
        }
        let strip = self.strip(second_cache_bytes());
        let mut slots = std::mem::take(&mut strips.slots);
        slots.extend(inputs.iter().map(|input| input.as_ptr().cast_mut()));
        slots.extend(blocks.iter_mut().map(|block| block.as_mut_ptr()));
        let external = slots.len();
        let lines = strips.lines_mut(self.scratch * strip / size_of::<Line>());
        let lines = lines.chunks_exact_mut(strip / size_of::<Line>());
        slots.extend(lines.map(|lines| lines.as_mut_ptr().cast::<u8>()));
        let outs = self.ops.iter().filter(|op| op.out != NOWHERE).count();
        let stream = outs.saturating_mul(whole) >= STREAM_BYTES;
        for start in (0..len).step_by(strip) {
            let piece = strip.min(len - start);
            run_strip(tier, self, &slots, Strip { len: piece, stream });
            slots[..external].iter_mut().for_each(|slot| *slot = slot.wrapping_add(strip));
        }
        slots.clear();
        strips.slots = slots;
        if stream {
            fence();
        }
    }
}

/// What is worked on at once.
#[derive(Clone, Copy)]
struct Strip {
    /// Bytes of each slot.
    len: usize,
    /// What stays goes past the caches.
    stream: bool,
}

/// One strip at these addresses through all ops.
fn run_strip(tier: Tier, steps: &Steps, slots: &[*mut u8], strip: Strip) {
    let tier = tier.supported();
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m256i, __m512i};

        #[target_feature(enable = "avx2")]
        fn avx2(tier: Tier, steps: &Steps, slots: &[*mut u8], strip: Strip) {
            strip_body::<__m256i>(tier, steps, slots, strip);
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn avx512(tier: Tier, steps: &Steps, slots: &[*mut u8], strip: Strip) {
            strip_body::<__m512i>(tier, steps, slots, strip);
        }
        match tier {
            Tier::Avx512 | Tier::Avx512Gfni => {
                // SAFETY: `supported` gives only tiers whose instructions this processor has.
                return unsafe { avx512(tier, steps, slots, strip) };
            }
            // SAFETY: as above.
            Tier::Avx2 | Tier::Avx2Gfni => return unsafe { avx2(tier, steps, slots, strip) },
            Tier::Ssse3 | Tier::Portable => {}
        }
    }
    strip_body::<[u64; 2]>(tier, steps, slots, strip);
}

/// What fits one register of a tier.
pub(super) trait Vector: Copy {
    /// # Safety
    /// As many bytes as the vector has can be read at `from`; the processor has the tier's instructions.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// As many bytes as the vector has can be written at `to`; the processor has the tier's instructions.
    unsafe fn store(self, to: *mut u8);
    /// A store past the caches.
    ///
    /// # Safety
    /// As for `store`, at a multiple of the vector's size; a [`fence`] comes before anyone else reads it.
    unsafe fn stream(self, to: *mut u8);
    /// # Safety
    /// The processor has the tier's instructions.
    unsafe fn xor(self, other: Self) -> Self;
    /// # Safety
    /// The processor has the tier's instructions.
    unsafe fn zero() -> Self;
}

impl Vector for [u64; 2] {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        [self[0] ^ other[0], self[1] ^ other[1]]
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        [0; 2]
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($vector:ident, $load:ident, $store:ident, $stream:ident, $xor:ident, $zero:ident) => {
        impl Vector for core::arch::x86_64::$vector {
            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the caller's promise.
                unsafe { core::arch::x86_64::$load(from.cast()) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { core::arch::x86_64::$store(to.cast(), self) }
            }
            #[inline(always)]
            unsafe fn stream(self, to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { core::arch::x86_64::$stream(to.cast(), self) }
            }
            #[inline(always)]
            unsafe fn xor(self, other: Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { core::arch::x86_64::$xor(self, other) }
            }
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller's promise.
                unsafe { core::arch::x86_64::$zero() }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
vector!(
    __m256i,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_stream_si256,
    _mm256_xor_si256,
    _mm256_setzero_si256
);
#[cfg(target_arch = "x86_64")]
vector!(
    __m512i,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_stream_si512,
    _mm512_xor_si512,
    _mm512_setzero_si512
);

/// Registers that hold a sum while its sources are added: half of what the tiers have.
const HELD: usize = 8;

#[inline(always)]
fn strip_body<V: Vector>(tier: Tier, steps: &Steps, slots: &[*mut u8], strip: Strip) {
    let Strip { len, stream } = strip;
    // Memory's own prefetcher does better on long strips, when it sees all streams side by side.
    let streamed = len > FETCHED_STRIP;
    let fetched = if streamed { &[] } else { &steps.first_uses[..] };
    let ahead = (AHEAD / len).clamp(*AHEAD_OPS.start(), *AHEAD_OPS.end());
    let mut first_uses = fetched.iter().peekable();
    let product = steps.product.as_ref();
    for (at, op) in steps.ops.iter().enumerate() {
        if let Some((_, product)) = product.filter(|(before, _)| *before == at) {
            // SAFETY: `run` borrows `len` bytes at every slot, `Steps::new` has checked the product, and the tier's
            // function runs this body.
            unsafe { product.run::<V>(slots, len) };
        }
        while let Some((_, slot)) = first_uses.next_if(|(first, _)| *first as usize <= at + ahead) {
            prefetch(slots[*slot as usize], len);
        }
        let ones = &steps.sources[op.start as usize..op.ones as usize];
        let others = op.ones as usize..op.end as usize;
        let at = |slot: Slot| slots.get(slot as usize).copied();
        #[cfg(target_arch = "x86_64")]
        if !others.is_empty() && tier != Tier::Portable {
            let out = at(op.out).filter(|out| *out != slots[op.dst as usize]);
            let task = Weighted {
                slots,
                ones,
                others: &steps.sources[others.clone()],
                coefficients: &steps.coefficients[others],
                dst: slots[op.dst as usize],
                out,
                len,
                // As for whole products (`matrix`): arithmetic by shuffles and such stores do not overlap.
                stream: stream
                    && multiplies_at_once(tier)
                    && out.is_some_and(|out| out.addr().is_multiple_of(size_of::<Line>())),
            };
            // SAFETY: `run` borrows `len` bytes at every slot, `Steps::new` has checked the slot numbers, and the tier is supported.
            unsafe { weighted::run_at(tier, &task) };
            continue;
        }
        let copies = &steps.copies[op.copies as usize..][..(op.copied - op.start) as usize];
        let mut to = To { dst: at(op.dst), out: at(op.out), plus: at(op.plus), stream };
        if !others.is_empty() {
            // The products come on top.
            to.out = None;
        }
        to.stream &= to.out.is_some_and(|out| out.addr().is_multiple_of(size_of::<V>()));
        let (mut offset, wide) = (0, HELD * size_of::<V>());
        // SAFETY: `run` borrows `len` bytes at every slot and `Steps::new` has checked the slot numbers and that there are no more
        // copies than sources; each call stays within `len`. The tier's function runs this body.
        unsafe {
            // Most ops have one goal and copy nothing: what those need besides a sum takes a twentieth of their time.
            if copies.is_empty() && to.plus.is_none() {
                if !streamed {
                    offset = sum_all::<V, HELD>(to, slots, ones, len);
                }
                while offset + size_of::<V>() <= len {
                    sum::<V, 1>(to, slots, ones, offset);
                    offset += size_of::<V>();
                }
            } else {
                while !streamed && offset + wide <= len {
                    sum_and_copy::<V, HELD>(to, slots, ones, copies, offset);
                    offset += wide;
                }
                while offset + size_of::<V>() <= len {
                    sum_and_copy::<V, 1>(to, slots, ones, copies, offset);
                    offset += size_of::<V>();
                }
            }
            for offset in offset..len {
                let mut copies = copies.iter();
                let sum = ones.iter().fold(0, |sum, slot| {
                    let byte = *slots[*slot as usize].add(offset);
                    copies.next().into_iter().for_each(|copy| *slots[*copy as usize].add(offset) = byte);
                    sum ^ byte
                });
                to.dst.into_iter().for_each(|dst| *dst.add(offset) = sum);
                let plus = to.plus.map_or(0, |plus| *plus.add(offset));
                to.out.into_iter().for_each(|out| *out.add(offset) = sum ^ plus);
            }
        }
        if others.is_empty() {
            continue;
        }
        let dst = slots[op.dst as usize];
        for place in others {
            let source = slots[steps.sources[place] as usize];
            // SAFETY: as above; two slots never overlap, since all but inputs are borrowed uniquely, and
            // `Steps::new` has checked that `dst`, no input, is not the source.
            let (whole, source) = unsafe {
                (core::slice::from_raw_parts_mut(dst, len), core::slice::from_raw_parts(source, len))
            };
            gf256::mul_acc_at(tier, whole, source, steps.coefficients[place]);
        }
        if let Some(out) = at(op.out).filter(|out| *out != dst) {
            // SAFETY: as above; two slots.
            unsafe { out.copy_from_nonoverlapping(dst, len) };
        }
    }
    if let Some((_, product)) = product.filter(|(before, _)| *before == steps.ops.len()) {
        // SAFETY: `run` borrows `len` bytes at every slot, `Steps::new` has checked the product, and the tier's
        // function runs this body.
        unsafe { product.run::<V>(slots, len) };
    }
}

/// Where a sum goes.
#[derive(Clone, Copy)]
struct To {
    dst: Option<*mut u8>,
    out: Option<*mut u8>,
    /// What `out` has more.
    plus: Option<*mut u8>,
    /// `out` goes past the caches and is aligned to the vectors.
    stream: bool,
}

impl To {
    /// Writes a sum to `dst`, and to `out` as it is.
    ///
    /// # Safety
    /// Both have the vectors' bytes at `offset`; the processor has the tier's instructions.
    #[inline(always)]
    unsafe fn put<V: Vector, const N: usize>(self, held: [V; N], offset: usize) {
        let at = |slot: *mut u8, place: usize| slot.wrapping_add(offset + place * size_of::<V>());
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(dst) = self.dst {
                for (place, held) in held.into_iter().enumerate() {
                    held.store(at(dst, place));
                }
            }
            if let Some(out) = self.out {
                for (place, held) in held.into_iter().enumerate() {
                    if self.stream { held.stream(at(out, place)) } else { held.store(at(out, place)) }
                }
            }
        }
    }
}

/// The sums of all groups of `N` vectors that fit `len` bytes; gives where the last of them ends. Most ops have two to six sources: with
/// their number known a group takes no turns (2 to 3 % of encoding and decoding).
///
/// # Safety
/// Slots of `sources` are in `slots`; all of them and the destinations have `len` bytes.
#[inline(always)]
unsafe fn sum_all<V: Vector, const N: usize>(
    to: To,
    slots: &[*mut u8],
    sources: &[Slot],
    len: usize,
) -> usize {
    let wide = N * size_of::<V>();
    let end = len / wide * wide;
    macro_rules! by_count {
        ($($count:literal)*) => {
            match sources.len() {
                // SAFETY: the caller's promise; as many sources were counted.
                $($count => unsafe {
                    let sources = &*sources.as_ptr().cast::<[Slot; $count]>();
                    let from = sources.map(|slot| *slots.get_unchecked(slot as usize));
                    for offset in (0..end).step_by(wide) {
                        sum_of::<V, N, $count>(to, &from, offset);
                    }
                },)*
                _ => for offset in (0..end).step_by(wide) {
                    // SAFETY: the caller's promise.
                    unsafe { sum::<V, N>(to, slots, sources, offset) };
                },
            }
        };
    }
    by_count!(2 3 4 5 6);
    end
}

/// `N` vectors at `offset` of the destinations: the sum of what is there `from` these addresses, one at least.
///
/// # Safety
/// All of them and the destinations have that many bytes at `offset`.
#[inline(always)]
unsafe fn sum_of<V: Vector, const N: usize, const S: usize>(to: To, from: &[*mut u8; S], offset: usize) {
    let at = |slot: *mut u8, place: usize| slot.wrapping_add(offset + place * size_of::<V>());
    // SAFETY: the caller's promise.
    unsafe {
        let mut held: [V; N] = core::array::from_fn(|place| V::load(at(from[0], place)));
        for source in &from[1..] {
            for (place, held) in held.iter_mut().enumerate() {
                *held = held.xor(V::load(at(*source, place)));
            }
        }
        to.put(held, offset);
    }
}

/// `N` vectors at `offset` of the destinations: the sum of the sources there.
///
/// # Safety
/// Slots of `sources` are in `slots`; all of them and the destinations have that many bytes at `offset`.
#[inline(always)]
unsafe fn sum<V: Vector, const N: usize>(to: To, slots: &[*mut u8], sources: &[Slot], offset: usize) {
    let at = |slot: *mut u8, place: usize| slot.wrapping_add(offset + place * size_of::<V>());
    // SAFETY: the caller's promise.
    unsafe {
        let read = |slot: Slot| *slots.get_unchecked(slot as usize);
        let [first, rest @ ..] = sources else {
            for to in to.dst.into_iter().chain(to.out) {
                to.add(offset).write_bytes(0, N * size_of::<V>());
            }
            return;
        };
        let first = read(*first);
        let mut held: [V; N] = core::array::from_fn(|place| V::load(at(first, place)));
        for source in rest {
            let source = read(*source);
            for (place, held) in held.iter_mut().enumerate() {
                *held = held.xor(V::load(at(source, place)));
            }
        }
        to.put(held, offset);
    }
}

/// The same where the first sources go to the slots `copies`, too, or `out` has something more.
///
/// # Safety
/// As for [`sum`], of `copies` and `plus` as well; there are no more copies than sources.
#[inline(always)]
unsafe fn sum_and_copy<V: Vector, const N: usize>(
    to: To,
    slots: &[*mut u8],
    sources: &[Slot],
    copies: &[Slot],
    offset: usize,
) {
    let at = |slot: *mut u8, place: usize| slot.wrapping_add(offset + place * size_of::<V>());
    // SAFETY: the caller's promise.
    unsafe {
        let read = |slot: Slot| *slots.get_unchecked(slot as usize);
        let (copied, rest) = sources.split_at_unchecked(copies.len());
        let mut held = [V::zero(); N];
        for (source, copy) in copied.iter().zip(copies) {
            let (source, copy) = (read(*source), read(*copy));
            for (place, held) in held.iter_mut().enumerate() {
                let loaded = V::load(at(source, place));
                loaded.store(at(copy, place));
                *held = held.xor(loaded);
            }
        }
        for source in rest {
            let source = read(*source);
            for (place, held) in held.iter_mut().enumerate() {
                *held = held.xor(V::load(at(source, place)));
            }
        }
        if let Some(dst) = to.dst {
            for (place, held) in held.into_iter().enumerate() {
                held.store(at(dst, place));
            }
        }
        if let Some(plus) = to.plus {
            for (place, held) in held.iter_mut().enumerate() {
                *held = held.xor(V::load(at(plus, place)));
            }
        }
        if let Some(out) = to.out {
            for (place, held) in held.into_iter().enumerate() {
                if to.stream { held.stream(at(out, place)) } else { held.store(at(out, place)) }
            }
        }
    }
}

/// Stores past the caches are done before anything after this.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has it, and it only waits.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// Asks for `len` bytes at `from` to be brought into the second cache (the first has no room for so many
/// misses from memory); changes nothing else.
#[inline(always)]
fn prefetch(from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len).step_by(64) {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `rateless::Decoder::solve` says of its memory.
    #[test]
    fn all_scratch_stays_below_its_bound() {
        let steps =
            |scratch| Steps::new([0, 1, scratch], Vec::new(), Vec::new(), Vec::new(), Vec::new(), None);
        for (second_cache, fetched_up_to) in
            [(1, 1408), (1 << 20, 1408), (2 << 20, 768), (3 << 20, 1152), (1 << 30, 1408)]
        {
            for scratch in 1..=SCRATCH_BYTES / STRIPS.start() {
                let strip = steps(scratch).strip(second_cache);
                assert!(scratch * strip <= SCRATCH_BYTES, "{scratch} slots of {strip}");
                assert_eq!(strip >= FETCHED_STRIP, scratch <= fetched_up_to, "{scratch} slots");
            }
        }
        assert_eq!(SCRATCH_BYTES / STRIPS.start(), 11_264);
        assert_eq!([1 << 20, 2 << 20].map(|second_cache| steps(1408).strip(second_cache)), [2048, 1024]);
    }
}
