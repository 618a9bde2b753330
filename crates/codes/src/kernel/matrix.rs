//! Products of a matrix over GF(2^8) with a column of byte slices: `outputs[j] = sum of c[j][i] * sources[i]`.
//!
//! ```text
//!              source 0   source 1  ..  source k-1
//!   output 0 [ c[0][0]    c[0][1]   ..  c[0][k-1]   ]     a step: U registers of every source in turn, M outputs
//!   ..       [                                      ]     held in M * U registers meanwhile, written once
//!   output m-1
//! ```
//!
//! Where everything touched is more than the caches hold, outputs are written past the caches (they would be read
//! first otherwise) and sources are fetched ahead: the processor's own prefetcher follows only some streams, and
//! stops at every page.

#[cfg(target_arch = "x86_64")]
use super::lanes::{Affine256, Affine512, Lanes, Shuffle128, Shuffle256, Shuffle512};
use super::{Tier, gf256};

/// Bytes touched by one product from which its outputs go past the caches: half of the smallest second-level cache
/// we run on.
const STREAM_FROM: usize = 512 * 1024;
/// Bytes the sources of a step are fetched ahead when streaming; 512 to 2048 measured alike.
const AHEAD: usize = 1024;
/// Bytes of all sources that stay in the first-level cache while several groups of outputs are formed from them.
const PIECE: usize = 16 * 1024;

/// Whether a product replaces its outputs or is added to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `outputs = product`; outputs are not read.
    Set,
    /// `outputs ^= product`.
    Add,
}

/// An m by k matrix of coefficients in the order the kernels read them. Made once, used for any number of products.
#[derive(Clone, Debug)]
pub struct Matrix {
    outputs: usize,
    sources: usize,
    /// `c[j][i]` at `i * outputs + j`.
    coefficients: Vec<u8>,
}

impl Matrix {
    /// A matrix of these coefficients, `coefficient(output, source)`.
    pub fn new(outputs: usize, sources: usize, coefficient: impl Fn(usize, usize) -> u8) -> Self {
        let places = (0..sources).flat_map(|source| (0..outputs).map(move |output| (output, source)));
        let coefficients = places.map(|(output, source)| coefficient(output, source)).collect();
        Self { outputs, sources, coefficients }
    }

    /// Rows: slices written by a product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns: slices read by a product.
    pub fn sources(&self) -> usize {
        self.sources
    }

    /// The coefficient of a source in an output.
    ///
    /// # Panics
    /// When there is no such output or source.
    pub fn coefficient(&self, output: usize, source: usize) -> u8 {
        assert!(output < self.outputs && source < self.sources, "no such place in the matrix");
        self.coefficients[source * self.outputs + output]
    }

    /// The product with `sources`, into `outputs`; allocates nothing. `tier` is lowered to what the processor has.
    ///
    /// # Panics
    /// When the number of slices is not the matrix's, or their lengths differ.
    pub fn run(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]], mode: Mode) {
        assert_eq!((sources.len(), outputs.len()), (self.sources, self.outputs), "slices of the product");
        let Some(len) = outputs.first().map(|output| output.len()) else { return };
        assert!(
            sources.iter().all(|source| source.len() == len)
                && outputs.iter().all(|output| output.len() == len),
            "slices of one length"
        );
        #[cfg(target_arch = "x86_64")]
        {
            let stream = mode == Mode::Set && (sources.len() + outputs.len()) * len >= STREAM_FROM;
            let width = if tier.supported() >= Tier::Avx512 { 8 } else { 4 };
            let groups = self.outputs.div_ceil(width);
            let piece =
                if groups > 1 { (PIECE / sources.len().max(1)).next_multiple_of(512) } else { len.max(1) };
            let job = Job { coefficients: &self.coefficients, stride: self.outputs, sources, mode, stream };
            if tier.supported() != Tier::Portable {
                let mut start = 0;
                while start < len {
                    let end = len.min(start + piece);
                    for group in 0..groups {
                        let [first, last] = [group, group + 1].map(|group| group * self.outputs / groups);
                        run_group(tier.supported(), &job, first, &mut outputs[first..last], start, end);
                    }
                    start = end;
                }
                if stream {
                    // SAFETY: every x86-64 processor has the instruction; it orders the streamed stores.
                    unsafe { core::arch::x86_64::_mm_sfence() };
                }
                return;
            }
        }
        let _ = tier;
        self.run_portable(sources, outputs, mode);
    }

    fn run_portable(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]], mode: Mode) {
        let len = outputs.first().map_or(0, |output| output.len());
        let piece = (PIECE / (self.sources + self.outputs)).max(64);
        for start in (0..len).step_by(piece) {
            let range = start..len.min(start + piece);
            for (row, output) in outputs.iter_mut().enumerate() {
                let output = &mut output[range.clone()];
                if mode == Mode::Set {
                    output.fill(0);
                }
                for (column, source) in sources.iter().enumerate() {
                    portable(output, &source[range.clone()], self.coefficients[column * self.outputs + row]);
                }
            }
        }
    }
}

fn portable(dst: &mut [u8], src: &[u8], c: u8) {
    match c {
        0 => {}
        1 => dst.iter_mut().zip(src).for_each(|(out, byte)| *out ^= byte),
        _ => {
            let powers = gf256::powers(c);
            dst.iter_mut().zip(src).for_each(|(out, byte)| *out ^= gf256::product(*byte, &powers));
        }
    }
}

/// `dst ^= c * src`, slices of one length.
pub(super) fn mul_acc(tier: Tier, dst: &mut [u8], src: &[u8], c: u8) {
    assert_eq!(dst.len(), src.len(), "slices of one length");
    #[cfg(target_arch = "x86_64")]
    if tier.supported() != Tier::Portable {
        let job = Job { coefficients: &[c], stride: 1, sources: &[src], mode: Mode::Add, stream: false };
        let len = dst.len();
        return run_group(tier.supported(), &job, 0, &mut [dst], 0, len);
    }
    let _ = tier;
    portable(dst, src, c);
}

/// `dst = c * (old ^ new)`, slices of one length.
pub(super) fn difference(tier: Tier, dst: &mut [u8], old: &[u8], new: &[u8], c: u8) {
    assert!(dst.len() == old.len() && dst.len() == new.len(), "slices of one length");
    #[cfg(target_arch = "x86_64")]
    if tier.supported() != Tier::Portable {
        let job =
            Job { coefficients: &[c, c], stride: 1, sources: &[old, new], mode: Mode::Set, stream: false };
        let len = dst.len();
        return run_group(tier.supported(), &job, 0, &mut [dst], 0, len);
    }
    let _ = tier;
    let powers = gf256::powers(c);
    for ((out, old), new) in dst.iter_mut().zip(old).zip(new) {
        *out = gf256::product(old ^ new, &powers);
    }
}

/// `dst = c * dst`.
pub(super) fn scale(tier: Tier, dst: &mut [u8], c: u8) {
    // c * x = x + (c + 1) * x, and a step reads all of its sources before it writes. The copy keeps the borrow of
    // the destination unique.
    let mut copy = [0; 1024];
    for piece in dst.chunks_mut(copy.len()) {
        let copy = &mut copy[..piece.len()];
        copy.copy_from_slice(piece);
        mul_acc(tier, piece, copy, c ^ 1);
    }
}

/// What all steps of a product share.
#[cfg(target_arch = "x86_64")]
struct Job<'a> {
    coefficients: &'a [u8],
    stride: usize,
    sources: &'a [&'a [u8]],
    mode: Mode,
    stream: bool,
}

/// Bytes `start..end` of some neighbouring outputs, of which `first` is the number of the first one. `tier` is not
/// the portable one and has been found supported.
#[cfg(target_arch = "x86_64")]
fn run_group(tier: Tier, job: &Job, first: usize, outputs: &mut [&mut [u8]], start: usize, end: usize) {
    assert!(job.coefficients.len() >= job.sources.len() * job.stride && first + outputs.len() <= job.stride);
    assert!(job.sources.iter().all(|source| source.len() >= end), "sources reach the end");
    assert!(start <= end && outputs.iter().all(|output| output.len() >= end), "outputs reach the end");
    #[target_feature(enable = "ssse3")]
    fn ssse3(job: &Job, first: usize, outputs: &mut [&mut [u8]], start: usize, end: usize) {
        // SAFETY: the lengths were checked by `run_group`; the tier is this function's.
        unsafe { sized::<Shuffle128, 2>(job, first, outputs, start, end) }
    }
    #[target_feature(enable = "avx2")]
    fn avx2(job: &Job, first: usize, outputs: &mut [&mut [u8]], start: usize, end: usize) {
        // SAFETY: as above.
        unsafe { sized::<Shuffle256, 2>(job, first, outputs, start, end) }
    }
    #[target_feature(enable = "avx2,gfni")]
    fn avx2_gfni(job: &Job, first: usize, outputs: &mut [&mut [u8]], start: usize, end: usize) {
        // SAFETY: as above.
        unsafe { sized::<Affine256, 2>(job, first, outputs, start, end) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn avx512(job: &Job, first: usize, outputs: &mut [&mut [u8]], start: usize, end: usize) {
        // SAFETY: as above.
        unsafe { sized::<Shuffle512, 2>(job, first, outputs, start, end) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
    fn avx512_gfni(job: &Job, first: usize, outputs: &mut [&mut [u8]], start: usize, end: usize) {
        // SAFETY: as above.
        unsafe { sized::<Affine512, 2>(job, first, outputs, start, end) }
    }
    // SAFETY: the caller has found the tier's instructions supported.
    unsafe {
        match tier {
            Tier::Portable => unreachable!("the portable tier has its own loop"),
            Tier::Ssse3 => ssse3(job, first, outputs, start, end),
            Tier::Avx2 => avx2(job, first, outputs, start, end),
            Tier::Avx2Gfni => avx2_gfni(job, first, outputs, start, end),
            Tier::Avx512 => avx512(job, first, outputs, start, end),
            Tier::Avx512Gfni => avx512_gfni(job, first, outputs, start, end),
        }
    }
}

/// # Safety
/// As [`run_group`] checks; the processor has the tier's instructions.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sized<L: Lanes, const U: usize>(
    job: &Job,
    first: usize,
    outputs: &mut [&mut [u8]],
    start: usize,
    end: usize,
) {
    macro_rules! exactly {
        ($outputs:literal) => {{
            let mut dst = [core::ptr::null_mut(); $outputs];
            for (dst, output) in dst.iter_mut().zip(outputs) {
                *dst = output.as_mut_ptr();
            }
            // SAFETY: the caller's promise.
            unsafe { range::<L, $outputs, U>(job, first, dst, start, end) }
        }};
    }
    match outputs.len() {
        0 => {}
        1 => exactly!(1),
        2 => exactly!(2),
        3 => exactly!(3),
        4 => exactly!(4),
        5 => exactly!(5),
        6 => exactly!(6),
        7 => exactly!(7),
        8 => exactly!(8),
        _ => unreachable!("groups of at most eight"),
    }
}

/// # Safety
/// As [`run_group`] checks, `dst` being the addresses of `M` outputs; the processor has the tier's instructions.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn range<L: Lanes, const M: usize, const U: usize>(
    job: &Job,
    first: usize,
    dst: [*mut u8; M],
    start: usize,
    end: usize,
) {
    // SAFETY: `first + M <= stride`, checked by `run_group`; all offsets below end at `end` or before it.
    unsafe {
        let coefficients = job.coefficients.as_ptr().wrapping_add(first);
        let mut offset = start;
        let misaligned = |offset: usize| dst.map(|dst| (dst.addr() + offset) % L::BYTES);
        let head = misaligned(offset)[0];
        let stream = job.stream && misaligned(offset).iter().all(|other| *other == head);
        if stream && head != 0 && end - offset >= 2 * L::BYTES {
            // Written twice, up to the register's boundary: streaming is only ever a replacement.
            step::<L, M, 1, false, false>(job, coefficients, dst, offset);
            offset += L::BYTES - head;
        }
        if stream {
            while offset + U * L::BYTES <= end {
                step::<L, M, U, true, true>(job, coefficients, dst, offset);
                offset += U * L::BYTES;
            }
        } else if job.stream {
            while offset + U * L::BYTES <= end {
                step::<L, M, U, false, true>(job, coefficients, dst, offset);
                offset += U * L::BYTES;
            }
        } else {
            while offset + U * L::BYTES <= end {
                step::<L, M, U, false, false>(job, coefficients, dst, offset);
                offset += U * L::BYTES;
            }
        }
        while offset + L::BYTES <= end {
            step::<L, M, 1, false, false>(job, coefficients, dst, offset);
            offset += L::BYTES;
        }
        if offset < end {
            tail::<L, M>(job, coefficients, dst, offset, end - offset);
        }
    }
}

/// `U` registers at `offset` of every source into as many of each output.
///
/// # Safety
/// All sources and outputs reach so far; `coefficients` has `M` for every source, `stride` apart; the processor has
/// the tier's instructions; where `STREAM`, outputs are at multiples of a register there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn step<L: Lanes, const M: usize, const U: usize, const STREAM: bool, const FETCH: bool>(
    job: &Job,
    coefficients: *const u8,
    dst: [*mut u8; M],
    offset: usize,
) {
    // SAFETY: the caller's promise; a prefetch faults at no address.
    unsafe {
        let mut sums = [[L::zero(); U]; M];
        if job.mode == Mode::Add {
            for (sums, dst) in sums.iter_mut().zip(dst) {
                for (place, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load(dst.add(offset + place * L::BYTES));
                }
            }
        }
        let mut coefficients = coefficients;
        for source in job.sources {
            let from = source.as_ptr().add(offset);
            if FETCH {
                for line in 0..(U * L::BYTES).div_ceil(64) {
                    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + line * 64).cast());
                }
            }
            let mut split = [L::zero().split(); U];
            for (place, split) in split.iter_mut().enumerate() {
                *split = L::load(from.add(place * L::BYTES)).split();
            }
            for (output, sums) in sums.iter_mut().enumerate() {
                let factor = L::factor(*coefficients.add(output));
                for (sum, split) in sums.iter_mut().zip(split) {
                    *sum = sum.xor(L::times(split, factor));
                }
            }
            coefficients = coefficients.wrapping_add(job.stride);
        }
        for (sums, dst) in sums.iter().zip(dst) {
            for (place, sum) in sums.iter().enumerate() {
                let to = dst.add(offset + place * L::BYTES);
                if STREAM { sum.stream(to) } else { sum.store(to) }
            }
        }
    }
}

/// The last `len` bytes, fewer than a register.
///
/// # Safety
/// As for [`step`], with `len` bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn tail<L: Lanes, const M: usize>(
    job: &Job,
    coefficients: *const u8,
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
                buffer.as_mut_ptr().copy_from_nonoverlapping(dst.add(offset), len);
                *sum = L::load(buffer.as_ptr());
            }
        }
        for (index, source) in job.sources.iter().enumerate() {
            buffer.as_mut_ptr().copy_from_nonoverlapping(source.as_ptr().add(offset), len);
            let split = L::load(buffer.as_ptr()).split();
            for (output, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(L::times(split, L::factor(*coefficients.add(index * job.stride + output))));
            }
        }
        for (sum, dst) in sums.iter().zip(dst) {
            sum.store(buffer.as_mut_ptr());
            dst.add(offset).copy_from_nonoverlapping(buffer.as_ptr(), len);
        }
    }
}
