//! The steps products are made of: a few registers of every source into a few of each output, at one tier.
#![cfg(target_arch = "x86_64")]

use std::ops::Range;
use std::slice;

use super::Tier;
use super::accumulate::{First, accumulate};
use super::dispatch::by_tier;
use super::gf256::{NIBBLES, Table};
use super::groups;
use super::lanes::Lanes;
use super::matrix::Mode;

/// Bytes of a line of the caches.
pub(super) const LINE: usize = 64;
/// Outputs formed at once at most.
pub(super) const WIDTH_MAX: usize = 8;

/// The same of tiers of 16 registers.
const NARROW_WIDTH_MAX: usize = 4;

/// Outputs formed at once at a tier: their sums, two registers each, fit half of the registers there are.
pub(super) fn width(tier: Tier) -> usize {
    if tier >= Tier::Avx512 { WIDTH_MAX } else { NARROW_WIDTH_MAX }
}

/// Whether the tier multiplies a register in one instruction: a product is as fast as memory then.
pub(super) fn multiplies_at_once(tier: Tier) -> bool {
    matches!(tier, Tier::Avx2Gfni | Tier::Avx512Gfni)
}

/// Whether the tier takes tables of the coefficients in the order of their use ([`Job::tables`]): those with 16 registers that multiply by
/// shuffles.
pub(super) fn takes_tables(tier: Tier) -> bool {
    matches!(tier, Tier::Ssse3 | Tier::Avx2)
}

/// What all steps of a product share.
pub(super) struct Job<'a> {
    /// `stride` for each source, one of them for each output.
    pub(super) coefficients: &'a [u8],
    /// The same as affine maps ([`AFFINE`](super::gf256::AFFINE)).
    pub(super) maps: &'a [u64],
    pub(super) stride: usize,
    /// At tiers that take them: those of the outputs that are formed, source by source.
    pub(super) tables: &'a [Table],
    /// What is known of the first output's coefficients; counts only where the outputs begin with the first one.
    pub(super) row: Row,
    pub(super) sources: &'a [&'a [u8]],
    pub(super) mode: Mode,
    /// Outputs go past the caches, where all are aligned alike.
    pub(super) stream: bool,
    /// Sources are fetched so many bytes ahead of where they are read, where not 0; at tiers that take tables not those that have a body
    /// of the loop each.
    pub(super) ahead: usize,
    /// More is touched than the caches hold.
    pub(super) much: bool,
}

/// What is known of the coefficients of the first output, which saves its multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// Nothing.
    Any,
    /// So many ones, then zeros.
    Plain(usize),
    /// So many ones, then zeros, are the sum of *all* outputs' coefficients.
    Complement(usize),
}

impl<'a> Job<'a> {
    /// One source into one output.
    pub(super) fn one_output(
        coefficient: &'a u8,
        map: &'a u64,
        sources: &'a [&'a [u8]; 1],
        mode: Mode,
    ) -> Self {
        let (coefficients, maps) = (slice::from_ref(coefficient), slice::from_ref(map));
        let tables = slice::from_ref(&NIBBLES.0[*coefficient as usize]);
        let row = Row::Any;
        Self {
            coefficients,
            maps,
            stride: 1,
            tables,
            row,
            sources,
            mode,
            stream: false,
            ahead: 0,
            much: false,
        }
    }

    /// Coefficients and maps of a source, from the output `first` on.
    ///
    /// # Safety
    /// There is such a source and such an output.
    #[inline(always)]
    unsafe fn factors(&self, source: usize, first: usize) -> (&[u8], &[u64]) {
        let at = source * self.stride + first;
        // SAFETY: the caller's promise.
        unsafe { (self.coefficients.get_unchecked(at..), self.maps.get_unchecked(at..)) }
    }

    /// Fetches what comes later of a source of which `U` registers are read here, where that is wanted.
    #[inline(always)]
    fn fetch<const U: usize>(&self, register: usize, from: *const u8) {
        if self.ahead > 0 {
            for line in (0..U * register).step_by(LINE) {
                super::xor::fetch(from.wrapping_add(self.ahead + line));
            }
        }
    }

    fn check(&self, tier: Tier, first: usize, outputs: usize, range: &Range<usize>) {
        assert!(tier.is_supported() && tier != Tier::Portable, "a tier with registers");
        assert!(first + outputs <= self.stride && outputs <= width(tier), "outputs of the product");
        let places = self.sources.len() * self.stride;
        assert!(
            self.coefficients.len() >= places && self.maps.len() >= places,
            "a coefficient for every place"
        );
        assert!(
            !takes_tables(tier) || self.tables.len() >= self.sources.len() * outputs,
            "a table for every place"
        );
        assert!(self.sources.iter().all(|source| source.len() >= range.end), "sources reach the end");
        assert!(range.start <= range.end, "a range of bytes");
    }
}

/// Bytes `range` of neighbouring outputs, of which `first` is the number of the first one.
///
/// # Panics
/// When a slice does not reach that far, there are more outputs than the tier is wide, or it is the portable one or not supported.
pub(super) fn run(tier: Tier, job: &Job, first: usize, outputs: &mut [&mut [u8]], range: Range<usize>) {
    job.check(tier, first, outputs.len(), &range);
    assert!(outputs.iter().all(|output| output.len() >= range.end), "outputs reach the end");
    let mut dst = [core::ptr::null_mut(); WIDTH_MAX];
    for (dst, output) in dst.iter_mut().zip(outputs.iter_mut()) {
        *dst = output.as_mut_ptr();
    }
    macro_rules! at_once {
        ($($count:literal)*) => {
            match outputs.len() {
                0 => {}
                // SAFETY: checked just now; outputs are borrowed uniquely.
                $($count => unsafe {
                    run_at::<$count>(tier, job, first, core::array::from_fn(|place| dst[place]), range)
                },)*
                _ => unreachable!("at most as many outputs as the tier is wide"),
            }
        };
    }
    at_once!(1 2 3 4 5 6 7 8);
}

/// Whole lines `range` of a group of sources, into blocks that hold the range from their beginning, or past the caches to `outputs`,
/// which begin at lines there. Where the job adds, blocks hold the sums of the groups before.
///
/// # Panics
/// When a slice does not reach that far, the range is not whole lines, or the tier is the portable one or not supported.
pub(super) fn run_group<const LEN: usize>(
    tier: Tier,
    job: &Job,
    first: usize,
    blocks: &mut [[u8; LEN]],
    outputs: Option<&mut [&mut [u8]]>,
    range: Range<usize>,
) {
    job.check(tier, first, blocks.len(), &range);
    assert!(range.len() <= LEN && range.len().is_multiple_of(LINE), "blocks hold whole lines of the range");
    let mut after = [core::ptr::null_mut(); WIDTH_MAX];
    for (after, block) in after.iter_mut().zip(blocks.iter_mut()) {
        *after = block.as_mut_ptr().wrapping_sub(range.start);
    }
    let before = (job.mode == Mode::Add).then(|| after.map(<*mut u8>::cast_const));
    let stream = outputs.is_some();
    if let Some(outputs) = outputs {
        assert_eq!(outputs.len(), blocks.len(), "a block for each output");
        for (after, output) in after.iter_mut().zip(outputs) {
            let start = output[range.clone()].as_ptr().addr();
            assert!(start.is_multiple_of(LINE), "outputs at lines");
            *after = output.as_mut_ptr();
        }
    }
    let task = groups::Task {
        coefficients: job.coefficients,
        maps: job.maps,
        stride: job.stride,
        first,
        row: job.row,
        sources: job.sources,
        outputs: blocks.len(),
        range,
        before,
        after,
        stream,
    };
    // SAFETY: checked just now; every address formed from the range lies in its block or output, borrowed uniquely.
    unsafe { groups::run(tier, &task) }
}

/// Waits until what was written past the caches is visible like other writes.
pub(super) fn fence() {
    // SAFETY: every x86-64 processor has the instruction; it changes no memory.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

/// Copies `from` over `to`, past the caches.
///
/// # Panics
/// When the lengths differ, or the tier is not supported.
pub(super) fn copy_past_caches(tier: Tier, to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "slices of one length");
    // Whole lines, whatever the register: half a line past the caches waits for the other half.
    let head = to.as_ptr().align_offset(64).min(to.len());
    to[..head].copy_from_slice(&from[..head]);
    let (to, from) = (&mut to[head..], &from[head..]);
    let wide = to.len() / 64 * 64;
    assert!(tier.is_supported() && tier != Tier::Portable, "a tier with registers");
    // SAFETY: the tier is supported; `wide` bytes are in both slices, and `to` begins at a line.
    unsafe { copy_at(tier, to.as_mut_ptr(), from.as_ptr(), wide) }
    to[wide..].copy_from_slice(&from[wide..]);
}

by_tier! {
    /// # Safety
    /// What [`Job::check`] checks of `M` outputs; at each address, outputs can be written over `range`.
    unsafe fn run_at = sized [const M: usize] [M] (job: &Job, first: usize, dst: [*mut u8; M], range: Range<usize>)
}
by_tier! {
    /// # Safety
    /// The tier is supported; `len` bytes, a multiple of 64, can be copied; `to` is a multiple of 64.
    unsafe fn copy_at = copy(to: *mut u8, from: *const u8, len: usize)
}

/// # Safety
/// As for [`copy_at`]; the processor has the tier's instructions.
#[inline(always)]
unsafe fn copy<L: Lanes>(to: *mut u8, from: *const u8, len: usize) {
    for offset in (0..len).step_by(L::BYTES) {
        // SAFETY: the caller's promise.
        unsafe { L::load(from.add(offset)).stream(to.add(offset)) };
    }
}

/// As many registers of each source at a time as there are for so many outputs.
///
/// # Safety
/// As [`run_at`] asks; the processor has the tier's instructions.
#[inline(always)]
unsafe fn sized<L: Lanes, const M: usize>(job: &Job, first: usize, dst: [*mut u8; M], range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe {
        // Constants, so that what a tier does not do is not compiled for it.
        if const { M <= 2 || L::REGISTERS > 16 && M <= 4 } {
            exact::<L, M, 4>(job, first, dst, range)
        } else if const { M <= if L::REGISTERS > 16 { WIDTH_MAX } else { NARROW_WIDTH_MAX } } {
            exact::<L, M, 2>(job, first, dst, range)
        } else {
            unreachable!("as many outputs as the tier is wide")
        }
    }
}

/// # Safety
/// As [`run_at`] asks, `dst` being the addresses of `M` outputs; the processor has the tier's instructions.
#[inline(always)]
unsafe fn exact<L: Lanes, const M: usize, const U: usize>(
    job: &Job,
    first: usize,
    dst: [*mut u8; M],
    range: Range<usize>,
) {
    let Range { start, end } = range;
    // SAFETY: `first + M <= stride`, the caller's promise; all offsets below end at `end` or before it.
    unsafe {
        let mut offset = start;
        let misaligned = |offset: usize| dst.map(|dst| (dst.addr() + offset) % L::BYTES);
        let head = misaligned(offset)[0];
        let stream = job.stream && misaligned(offset).iter().all(|other| *other == head);
        if stream && head != 0 && end - offset >= 2 * L::BYTES {
            // Written twice, up to the register's boundary: streaming is only ever a replacement.
            step::<L, M, 1>(job, first, dst, offset, false);
            offset += L::BYTES - head;
        }
        while offset + U * L::BYTES <= end {
            step::<L, M, U>(job, first, dst, offset, stream);
            offset += U * L::BYTES;
        }
        while offset + L::BYTES <= end {
            step::<L, M, 1>(job, first, dst, offset, false);
            offset += L::BYTES;
        }
        if offset < end {
            tail::<L, M>(job, first, dst, offset, end - offset);
        }
    }
}

/// `U` registers at `offset` of every source into as many of each output.
///
/// # Safety
/// All sources and outputs reach so far; the job has coefficients of `M` outputs from the `first` on, and where the tier takes tables
/// those of just these outputs; the processor has the tier's instructions; where `stream`, outputs are at multiples of a register there.
#[inline(always)]
unsafe fn step<L: Lanes, const M: usize, const U: usize>(
    job: &Job,
    first: usize,
    dst: [*mut u8; M],
    offset: usize,
    stream: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::zero(); U]; M];
        if job.mode == Mode::Add {
            for (sums, dst) in sums.iter_mut().zip(dst) {
                for (place, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load(dst.wrapping_add(offset + place * L::BYTES));
                }
            }
        }
        let all = job.sources.len();
        match job.row {
            Row::Plain(ones) | Row::Complement(ones) if first == 0 => {
                if L::PAIRS {
                    columns::<L, M, U, PLAIN>(job, first, 0..ones, offset, &mut sums);
                    columns::<L, M, U, NOTHING>(job, first, ones..all, offset, &mut sums);
                } else if L::TABLED && ones == all {
                    alone::<L, M, U, PLAIN>(job, first, ones, offset, &mut sums);
                } else {
                    alone::<L, M, U, SPLIT>(job, first, ones, offset, &mut sums);
                }
                if let (Row::Complement(_), [complement, others @ ..]) = (job.row, &mut sums[..]) {
                    for other in others {
                        for (sum, other) in complement.iter_mut().zip(other) {
                            *sum = sum.xor(*other);
                        }
                    }
                }
            }
            _ if L::PAIRS => columns::<L, M, U, PRODUCT>(job, first, 0..all, offset, &mut sums),
            _ => alone::<L, M, U, PRODUCT>(job, first, 0, offset, &mut sums),
        }
        for (sums, dst) in sums.iter().zip(dst) {
            for (place, sum) in sums.iter().enumerate() {
                let to = dst.wrapping_add(offset + place * L::BYTES);
                if stream { sum.stream(to) } else { sum.store(to) }
            }
        }
    }
}

/// How the first output's sum takes a source: times its coefficient, as it is, or not at all.
const PRODUCT: u8 = 0;
const PLAIN: u8 = 1;
const NOTHING: u8 = 2;

/// Sources that have a copy of the loop's body each, where several registers are taken at a time. Processors recognise a stream by
/// the instruction that reads it: with one body for all, 8 + 3 slices of 1 MiB were encoded at 0.36 of reading speed on Zen 5,
/// with these at 0.9.
const BODIES: usize = 16;
const _: () = assert!(BODIES == 16, "as many bodies as `columns` has");

/// Adds sources `range` to the sums, two at a time: a sum takes both products in one instruction.
///
/// # Safety
/// As for [`step`]; the range is one of the job's sources.
#[inline(always)]
unsafe fn columns<L: Lanes, const M: usize, const U: usize, const FIRST: u8>(
    job: &Job,
    first: usize,
    range: Range<usize>,
    offset: usize,
    sums: &mut [[L; U]; M],
) {
    // SAFETY: the caller's promise; indices are below the range's end.
    unsafe {
        let mut index = range.start;
        if U == 1 {
            while index + 2 <= range.end {
                pair::<L, M, U, FIRST>(job, first, index, offset, sums);
                index += 2;
            }
            if index < range.end {
                single::<L, M, U, FIRST>(job, first, index, offset, sums);
            }
            return;
        }
        while index < range.end {
            let count = range.end - index;
            macro_rules! bodies {
                ($($at:literal)*) => {$(
                    if $at + 1 < count {
                        pair::<L, M, U, FIRST>(job, first, index + $at, offset, sums);
                    } else if $at < count {
                        single::<L, M, U, FIRST>(job, first, index + $at, offset, sums);
                    }
                )*};
            }
            bodies!(0 2 4 6 8 10 12 14);
            index += BODIES;
        }
    }
}

/// Adds two sources, of which `index` is the first.
///
/// # Safety
/// As for [`step`]; there are both.
#[inline(always)]
unsafe fn pair<L: Lanes, const M: usize, const U: usize, const FIRST: u8>(
    job: &Job,
    first: usize,
    index: usize,
    offset: usize,
    sums: &mut [[L; U]; M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b] = [source::<L, U>(job, index, offset), source::<L, U>(job, index + 1, offset)];
        let [split_a, split_b] = [a.map(|a| a.split()), b.map(|b| b.split())];
        let [of_a, of_b] = [job.factors(index, first), job.factors(index + 1, first)];
        for (output, sums) in sums.iter_mut().enumerate() {
            if output > 0 || FIRST == PRODUCT {
                let [factor_a, factor_b] = [of_a, of_b].map(|(plain, maps)| L::factor(plain, maps, output));
                for (place, sum) in sums.iter_mut().enumerate() {
                    let product = L::times(split_a[place], factor_a);
                    *sum = sum.xor3(product, L::times(split_b[place], factor_b));
                }
            } else if FIRST == PLAIN {
                for (place, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.xor3(a[place], b[place]);
                }
            }
        }
    }
}

/// Adds one source.
///
/// # Safety
/// As for [`step`]; there is such a source.
#[inline(always)]
unsafe fn single<L: Lanes, const M: usize, const U: usize, const FIRST: u8>(
    job: &Job,
    first: usize,
    index: usize,
    offset: usize,
    sums: &mut [[L; U]; M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let a = source::<L, U>(job, index, offset);
        let split = a.map(|a| a.split());
        let (coefficients, maps) = job.factors(index, first);
        for (output, sums) in sums.iter_mut().enumerate() {
            if output > 0 || FIRST == PRODUCT {
                let factor = L::factor(coefficients, maps, output);
                for (sum, split) in sums.iter_mut().zip(split) {
                    *sum = sum.xor(L::times(split, factor));
                }
            } else if FIRST == PLAIN {
                for (sum, a) in sums.iter_mut().zip(a) {
                    *sum = sum.xor(a);
                }
            }
        }
    }
}

/// The same where sources are taken one at a time, if there are no more: one body for all is faster in the caches with more of them
/// (16 + 4: avx2 22 GB/s, 15 with bodies). From memory, 10 + 4 on Zen 3: 8.8 GB/s with bodies, 6.3 without and nothing fetched ahead.
const BODIES_ALONE: usize = 12;
const _: () = assert!(BODIES_ALONE == 12, "as many bodies as `alone` has");

/// How sources are added to the first output's sum: times their coefficients, as they are, or the first ones as they are and the others
/// not at all.
const SPLIT: u8 = 3;

/// Adds all sources to the sums, one at a time: to the first output's as `FIRST` says, of which the first `ones` count.
///
/// # Safety
/// As for [`step`].
#[inline(always)]
unsafe fn alone<L: Lanes, const M: usize, const U: usize, const FIRST: u8>(
    job: &Job,
    first: usize,
    ones: usize,
    offset: usize,
    sums: &mut [[L; U]; M],
) {
    let count = job.sources.len();
    // One body for all. Several outputs that are all multiplied for have it: mostly they come behind the first few, whose sources are in
    // the first cache by then. Where several slices are made from memory without a row of ones they pay for that.
    let mut looped = U == 1 || M > 1 && FIRST == PRODUCT || count > BODIES_ALONE;
    if L::TABLED {
        // In bodies of four outputs the compiler wants more registers than there are. GB/s on Zen 3 (avx2) of 10 + 4 slices in the caches
        // and of 1 MiB from memory: 9.7 and 10.7 with bodies, 12.0 and 9.3 without.
        looped |= M == NARROW_WIDTH_MAX && !job.much;
    }
    macro_rules! body {
        ($at:expr, $fetch:expr) => {{
            let at = $at;
            let from = job.sources.get_unchecked(at).as_ptr().add(offset);
            let how = match FIRST {
                PRODUCT => First::Product,
                PLAIN => First::Plain,
                _ if at < ones => First::Plain,
                _ => First::Nothing,
            };
            if L::TABLED {
                if $fetch {
                    job.fetch::<U>(L::BYTES, from);
                }
                accumulate(from, (&[], &[]), job.tables.as_ptr().add(at * M), how, sums);
            } else {
                job.fetch::<U>(L::BYTES, from);
                accumulate(from, job.factors(at, first), core::ptr::null(), how, sums);
            }
        }};
    }
    // SAFETY: the caller's promise; there are as many sources, and at a tier that takes tables as many for each as outputs.
    unsafe {
        if looped {
            for at in 0..count {
                body!(at, U > 1);
            }
            return;
        }
        macro_rules! bodies {
            ($($at:literal)*) => {$( if $at < count { body!($at, false) } )*};
        }
        bodies!(0 1 2 3 4 5 6 7 8 9 10 11);
    }
}

/// `U` registers of a source, and what comes later of it fetched where the job says so.
///
/// # Safety
/// As for [`step`]; there is such a source.
#[inline(always)]
unsafe fn source<L: Lanes, const U: usize>(job: &Job, index: usize, offset: usize) -> [L; U] {
    // SAFETY: the caller's promise.
    unsafe {
        let from = job.sources.get_unchecked(index).as_ptr().add(offset);
        job.fetch::<U>(L::BYTES, from);
        core::array::from_fn(|place| L::load(from.add(place * L::BYTES)))
    }
}

/// The last `len` bytes, fewer than a register.
///
/// # Safety
/// As for [`step`], with `len` bytes.
#[inline(always)]
unsafe fn tail<L: Lanes, const M: usize>(
    job: &Job,
    first: usize,
    dst: [*mut u8; M],
    offset: usize,
    len: usize,
) {
    // SAFETY: the caller's promise; buffers are as long as the widest register.
    unsafe {
        let mut buffer = [0u8; 64];
        let mut sums = [L::zero(); M];
        if job.mode == Mode::Add {
            for (sum, dst) in sums.iter_mut().zip(dst) {
                buffer.as_mut_ptr().copy_from_nonoverlapping(dst.wrapping_add(offset), len);
                *sum = L::load(buffer.as_ptr());
            }
        }
        let ones = match job.row {
            Row::Plain(ones) | Row::Complement(ones) if first == 0 => Some(ones),
            _ => None,
        };
        for (index, source) in job.sources.iter().enumerate() {
            buffer.as_mut_ptr().copy_from_nonoverlapping(source.as_ptr().add(offset), len);
            let loaded = L::load(buffer.as_ptr());
            let split = loaded.split();
            for (output, sum) in sums.iter_mut().enumerate() {
                match ones {
                    Some(ones) if output == 0 && index < ones => *sum = sum.xor(loaded),
                    Some(_) if output == 0 => {}
                    _ => {
                        let at = index * job.stride + first + output;
                        *sum = sum.xor(L::times(split, L::factor(job.coefficients, job.maps, at)));
                    }
                }
            }
        }
        if let (Row::Complement(_), Some(_), [complement, others @ ..]) = (job.row, ones, &mut sums[..]) {
            for other in others {
                *complement = complement.xor(*other);
            }
        }
        for (sum, dst) in sums.iter().zip(dst) {
            sum.store(buffer.as_mut_ptr());
            dst.wrapping_add(offset).copy_from_nonoverlapping(buffer.as_ptr(), len);
        }
    }
}
