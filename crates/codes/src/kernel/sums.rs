//! Straight-line sums over block-sized slots, run strip by strip so that what is reused stays in the cache.
//!
//! ```text
//!   slots   [ inputs, read only | blocks, read and written | scratch, one strip each ]
//!   op      dst = scale * dst + sum of coefficient * source
//! ```
//!
//! The whole list of ops runs inside one tier's function: with strips of 1 KiB an op touches some 4 KiB, and choosing
//! a kernel for each would cost more than the sum. An op's sum is held in registers over all its sources, so that
//! the destination is written once. Blocks are fetched into the cache a few ops before their first use in a strip,
//! since the processor's own prefetcher stops at every page and each strip lies in another.
//!
//! Soundness: [`Steps::new`] checks every slot number, and that an op's destination is neither an input nor one of
//! its sources; [`Steps::run`] checks the slots' count and lengths, and borrows them all for as long as it runs.

use super::{Tier, gf256};

/// Bytes of every slot worked on at once where slots are read again and again: 1,600 slots of it stay within a
/// second-level cache of 1 to 2 MiB.
const STRIP_REUSED: usize = 1024;
/// The same where most slots are read once: memory likes longer stretches.
const STRIP_STREAMED: usize = 4096;
/// Slots read side by side where they are streamed.
const STREAMS: usize = 8;
/// Reads of a slot from which it counts as read again and again.
const REUSED_FROM: usize = 2;
/// Ops between a block's prefetch and its use; measured flat from 4 to 32.
const AHEAD: usize = 8;

pub(crate) type Slot = u32;

/// `dst = scale * dst + sum of coefficient * source`, the sources by their places in the program's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) dst: Slot,
    /// 0 sets, 1 adds.
    pub(crate) scale: u8,
    /// Sources `start..ones` have coefficient one, `ones..end` others.
    pub(crate) start: u32,
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
    /// One a source.
    coefficients: Vec<u8>,
    /// Most slots are read more than once.
    reused: bool,
    /// Inputs and blocks in the order of their first use in a strip, with the op that is.
    first_uses: Vec<(u32, Slot)>,
}

impl Steps {
    /// Checks the ops.
    ///
    /// # Panics
    /// When an op names a slot that is not there, or writes an input or one of its own sources: our own broken
    /// invariant.
    pub(crate) fn new(
        [inputs, blocks, scratch]: [usize; 3],
        ops: Vec<Op>,
        sources: Vec<Slot>,
        coefficients: Vec<u8>,
    ) -> Self {
        let slots = inputs + blocks + scratch;
        assert_eq!(sources.len(), coefficients.len(), "a coefficient a source");
        assert!(sources.iter().all(|slot| (*slot as usize) < slots), "a source that is no slot");
        let mut used = vec![false; inputs + blocks];
        let mut first_uses = Vec::new();
        for (at, op) in ops.iter().enumerate() {
            let all = &sources[op.start as usize..op.end as usize];
            assert!((op.start..=op.end).contains(&op.ones), "an op's sources are two ranges");
            assert!((inputs..slots).contains(&(op.dst as usize)), "an op writes a slot that is no block");
            assert!(!all.contains(&op.dst), "an op reads its destination");
            for slot in all.iter().chain([&op.dst]) {
                if used.get(*slot as usize) == Some(&false) {
                    used[*slot as usize] = true;
                    first_uses.push((at as u32, *slot));
                }
            }
        }
        let reused = sources.len() >= REUSED_FROM * first_uses.len();
        Self { inputs, blocks, scratch, ops, sources, coefficients, reused, first_uses }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Slices read per run over one block length: for measurements.
    pub(crate) fn reads(&self) -> usize {
        self.sources.len()
    }

    /// Scratch slots, one strip each.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Runs over `blocks`, all of one length, with inputs of at least that length.
    ///
    /// # Panics
    /// When slots are missing or of the wrong length.
    pub(crate) fn run(&self, tier: Tier, inputs: &[&[u8]], blocks: &mut [&mut [u8]]) {
        assert_eq!((inputs.len(), blocks.len()), (self.inputs, self.blocks), "slots of the program");
        let len = blocks.first().map_or(0, |block| block.len());
        assert!(
            inputs.iter().all(|input| input.len() >= len) && blocks.iter().all(|block| block.len() == len),
            "slots of one length"
        );
        if len == 0 || self.ops.is_empty() {
            return;
        }
        let strip = if self.reused { STRIP_REUSED } else { STRIP_STREAMED };
        let mut scratch = vec![0; self.scratch * strip];
        let inputs = inputs.iter().map(|input| input.as_ptr().cast_mut());
        let starts: Vec<*mut u8> = inputs.chain(blocks.iter_mut().map(|block| block.as_mut_ptr())).collect();
        let mut slots = starts.clone();
        slots.extend(scratch.chunks_exact_mut(strip).map(<[u8]>::as_mut_ptr));
        for start in (0..len).step_by(strip) {
            for (slot, first) in slots.iter_mut().zip(&starts) {
                *slot = first.wrapping_add(start);
            }
            run_strip(tier, self, &slots, strip.min(len - start));
        }
    }
}

/// One strip of `len` bytes, at these addresses, through all ops.
fn run_strip(tier: Tier, steps: &Steps, slots: &[*mut u8], len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m256i, __m512i};

        #[target_feature(enable = "avx2")]
        fn avx2(tier: Tier, steps: &Steps, slots: &[*mut u8], len: usize) {
            strip_body::<__m256i>(tier, steps, slots, len);
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn avx512(tier: Tier, steps: &Steps, slots: &[*mut u8], len: usize) {
            strip_body::<__m512i>(tier, steps, slots, len);
        }
        match tier.supported() {
            // SAFETY: `supported` gives only tiers whose instructions this processor has.
            tier @ (Tier::Avx512 | Tier::Avx512Gfni) => return unsafe { avx512(tier, steps, slots, len) },
            // SAFETY: as above.
            tier @ (Tier::Avx2 | Tier::Avx2Gfni) => return unsafe { avx2(tier, steps, slots, len) },
            Tier::Ssse3 | Tier::Portable => {}
        }
    }
    strip_body::<[u64; 2]>(tier, steps, slots, len);
}

/// What fits one register of a tier.
trait Vector: Copy {
    /// # Safety
    /// As many bytes as the vector has can be read at `from`; the processor has the tier's instructions.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// As many bytes as the vector has can be written at `to`; the processor has the tier's instructions.
    unsafe fn store(self, to: *mut u8);
    /// # Safety
    /// The processor has the tier's instructions.
    unsafe fn xor(self, other: Self) -> Self;
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
    unsafe fn xor(self, other: Self) -> Self {
        [self[0] ^ other[0], self[1] ^ other[1]]
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($vector:ident, $load:ident, $store:ident, $xor:ident) => {
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
            unsafe fn xor(self, other: Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { core::arch::x86_64::$xor(self, other) }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
vector!(__m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256);
#[cfg(target_arch = "x86_64")]
vector!(__m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_xor_si512);

/// Registers that hold a sum while its sources are added: half of what the tiers have.
const HELD: usize = 8;

#[inline(always)]
fn strip_body<V: Vector>(tier: Tier, steps: &Steps, slots: &[*mut u8], len: usize) {
    // Memory's own prefetcher does better where long stretches are read once.
    let prefetched = if steps.reused { &steps.first_uses[..] } else { &[] };
    let mut first_uses = prefetched.iter().peekable();
    for (at, op) in steps.ops.iter().enumerate() {
        while let Some((_, slot)) = first_uses.next_if(|(first, _)| *first as usize <= at + AHEAD) {
            prefetch(slots[*slot as usize], len);
        }
        let dst = slots[op.dst as usize];
        if op.scale > 1 {
            // SAFETY: `run` borrows `len` bytes at every slot, this one uniquely.
            let whole = unsafe { core::slice::from_raw_parts_mut(dst, len) };
            gf256::scale_at(tier, whole, op.scale);
        }
        let ones = &steps.sources[op.start as usize..op.ones as usize];
        let (mut first, group) = (true, if steps.reused { ones.len() } else { STREAMS });
        for ones in ones.chunks(group.max(1)).chain(ones.is_empty().then_some(ones)) {
            let (mut offset, set) = (0, op.scale == 0 && first);
            first = false;
            // SAFETY: `run` borrows `len` bytes at every slot, `Steps::new` has checked the slot numbers and that
            // `dst` is none of the sources; each call stays within `len`. The tier's function runs this body.
            unsafe {
                let wide = HELD * size_of::<V>();
                while steps.reused && offset + wide <= len {
                    sum::<V, HELD>(dst, slots, ones, offset, set);
                    offset += wide;
                }
                while offset + size_of::<V>() <= len {
                    sum::<V, 1>(dst, slots, ones, offset, set);
                    offset += size_of::<V>();
                }
                for offset in offset..len {
                    let own = if set { 0 } else { *dst.add(offset) };
                    *dst.add(offset) =
                        ones.iter().fold(own, |sum, slot| sum ^ *slots[*slot as usize].add(offset));
                }
            }
        }
        for place in op.ones as usize..op.end as usize {
            let source = slots[steps.sources[place] as usize];
            // SAFETY: as above; two slots never overlap, since one of them is borrowed uniquely.
            let (out, source) = unsafe {
                (core::slice::from_raw_parts_mut(dst, len), core::slice::from_raw_parts(source, len))
            };
            gf256::mul_acc_at(tier, out, source, steps.coefficients[place]);
        }
    }
}

/// `N` vectors at `offset` of the destination: the sum of the sources there, plus what is there unless `set`.
///
/// # Safety
/// Slots of `sources` are in `slots`; all of them and `dst` have that many bytes at `offset`; `dst` is no source.
#[inline(always)]
unsafe fn sum<V: Vector, const N: usize>(
    dst: *mut u8,
    slots: &[*mut u8],
    sources: &[Slot],
    offset: usize,
    set: bool,
) {
    let at = |slot: *mut u8, place: usize| slot.wrapping_add(offset + place * size_of::<V>());
    // SAFETY: the caller's promise.
    unsafe {
        let read = |slot: Slot| *slots.get_unchecked(slot as usize);
        let (first, rest) = match sources {
            [first, rest @ ..] if set => (read(*first), rest),
            [] if set => {
                dst.add(offset).write_bytes(0, N * size_of::<V>());
                return;
            }
            _ => (dst, sources),
        };
        let mut held: [V; N] = core::array::from_fn(|place| V::load(at(first, place)));
        for source in rest {
            let source = read(*source);
            for (place, held) in held.iter_mut().enumerate() {
                *held = held.xor(V::load(at(source, place)));
            }
        }
        for (place, held) in held.into_iter().enumerate() {
            held.store(at(dst, place));
        }
    }
}

/// Asks for `len` bytes at `from` to be brought into the first cache; changes nothing else.
#[inline(always)]
fn prefetch(from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len).step_by(64) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len);
}
