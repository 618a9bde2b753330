//! Products of a matrix over GF(2^8) with a column of byte slices: `outputs[j] = sum of c[j][i] * sources[i]`.
//!
//! ```text
//!              source 0   source 1  ..  source k-1
//!   output 0 [ c[0][0]    c[0][1]   ..  c[0][k-1]   ]     a step: a few registers of every source in turn, the
//!   ..       [                                      ]     outputs' held meanwhile, written once
//!   output m-1
//! ```
//!
//! How the bytes are walked depends on how many there are. Where they lie in the caches (few bytes do, many do not, between
//! the two it is asked, `near`): all sources side by side.
//! Where they do not, and the processor's prefetcher follows all sources: the same, outputs written past the caches
//! (they would be read first otherwise). Where there are more sources than it follows: in blocks, a group of sources
//! at a time (`groups`). Measured on Zen 4 (32 KiB and 1 MiB caches), share of reading speed from memory, 1 MiB
//! slices, side by side against blocks: 8 + 3: 0.87, 0.79; 10 + 4: 0.88, 0.77; 16 + 4: 0.37, 0.65; 32 + 8: 0.21, 0.61.
//! Reading 16 slices and writing 4 past the caches, without any arithmetic, has 0.57 to 0.71. On Zen 5: 8 + 3: 0.92, 0.67; 10 + 4:
//! 0.89, 0.60; 16 + 4 and 32 + 8 in blocks 0.67 and 0.65.
//!
//! Where multiplying takes shuffles, all sources go side by side and nothing past the caches but plain sums: arithmetic and such stores
//! do not overlap. GB/s of data from memory on Zen 3 (avx2; 32 KiB and 512 KiB caches; medians of 9 turns, 1 MiB slices),
//! past the caches and not: 4 + 2: 8.4, 11.0; 8 + 3: 7.8, 9.9; 10 + 4: 6.8, 8.6; 16 + 4 in blocks 6.8, side by side 8.2. XOR alone, 4
//! slices into 2: 15, 11 (all before tables lay in the order of their use, `accumulate`). Nor is it faster from memory there to
//! make 1 to 8 KiB of the outputs in the first-level cache and copy them past it (10 + 4: 0.83 to 1.12 of side by side), to take 4 to 8
//! sources at a time (0.7 to 1.05), to copy the sources first (0.7 to 0.9; 32 + 8 of 64 KiB alone 1.3), or to fetch outputs for
//! writing (0.95 to 1.09). ISA-L 2.30 had 11.5, 7.3, 5.8 and 6.1 in a run of its own.

#[cfg(target_arch = "x86_64")]
use std::{ops::Range, sync::OnceLock};

#[cfg(target_arch = "x86_64")]
use super::difference;
#[cfg(target_arch = "x86_64")]
use super::gf256::Table;
#[cfg(target_arch = "x86_64")]
use super::groups::GROUP;
#[cfg(target_arch = "x86_64")]
use super::steps::{self, Job, Row};
#[cfg(target_arch = "x86_64")]
use super::{STREAM_FROM, near};
use super::{Tier, gf256};

/// Sources the processor's prefetcher follows side by side: on Zen 4 10 measured well, 16 badly.
#[cfg(target_arch = "x86_64")]
const STREAMS: usize = 12;
/// Bytes touched from which outputs below [`STREAM_FROM`] and sources are looked for ([`near`]): outputs go past the caches if neither lie in
/// one. 8 + 3 slices of 64 KiB are encoded at 160 GB/s in the second-level cache of a Zen 5, past it at 110; from memory 4 + 2 of 64 KiB
/// have 0.60 of reading speed, and 0.70 to 0.74 past the caches, 16 + 4 on Zen 4 0.39 and, in blocks, 0.56. Asking takes 20 ns there, a
/// hundredth of such a product, and twice as long as memory does otherwise.
#[cfg(any(target_arch = "x86_64", test))]
pub(super) const ASK_FROM: usize = 256 * 1024;
/// Bytes of a block: sums of eight outputs take half of the first-level cache. 1 KiB and 4 KiB gave the same.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 2048;
/// Bytes that sources are fetched ahead outside blocks, where they are. 16 + 4 slices of 64 KiB on Zen 5: 72 GB/s from the cache and 25
/// from memory, 55 and 21 without; 1024 gave no more. On Zen 3 (avx2) 128 to 384 did alike, more worse.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 256;
/// Bytes of all sources that stay in the first-level cache while several groups of outputs are formed from them.
const PIECE: usize = 16 * 1024;

/// Whether a product replaces its outputs or is added to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `outputs = product`; what outputs held does not count.
    Set,
    /// The same of outputs that nobody reads soon: past the caches where that is no slower.
    SetPast,
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
    /// The same as affine maps.
    #[cfg(target_arch = "x86_64")]
    maps: Vec<u64>,
    /// The same as tables of nibbles: output by output in the groups that are formed at once at tiers that take them, source by source in
    /// a group. Made with the matrix where such a tier is the widest, and else when one is first asked for.
    #[cfg(target_arch = "x86_64")]
    tables: OnceLock<Vec<Table>>,
    #[cfg(target_arch = "x86_64")]
    row: Row,
}

impl Matrix {
    /// A matrix of these coefficients, `coefficient(output, source)`.
    pub fn new(outputs: usize, sources: usize, coefficient: impl Fn(usize, usize) -> u8) -> Self {
        let places = (0..sources).flat_map(|source| (0..outputs).map(move |output| (output, source)));
        let coefficients: Vec<u8> = places.map(|(output, source)| coefficient(output, source)).collect();
        let matrix = Self {
            outputs,
            sources,
            #[cfg(target_arch = "x86_64")]
            maps: coefficients.iter().map(|c| gf256::AFFINE[*c as usize]).collect(),
            #[cfg(target_arch = "x86_64")]
            tables: OnceLock::new(),
            #[cfg(target_arch = "x86_64")]
            row: row(outputs, &coefficients),
            coefficients,
        };
        #[cfg(target_arch = "x86_64")]
        if steps::takes_tables(Tier::detect()) {
            matrix.tables(Tier::detect());
        }
        matrix
    }

    /// Those of all groups, one after the other, at a tier that takes them; others need none.
    #[cfg(target_arch = "x86_64")]
    fn tables(&self, tier: Tier) -> &[Table] {
        if !steps::takes_tables(tier) {
            return &[];
        }
        self.tables.get_or_init(|| {
            let groups = self.outputs.div_ceil(steps::width(tier));
            let mut tables = Vec::with_capacity(self.coefficients.len());
            for [first, last] in (0..groups).map(|group| part(self.outputs, groups, group)) {
                for source in self.coefficients.chunks_exact(self.outputs) {
                    tables.extend(source[first..last].iter().map(|c| gf256::NIBBLES.0[*c as usize]));
                }
            }
            tables
        })
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
    pub(crate) fn coefficient(&self, output: usize, source: usize) -> u8 {
        assert!(output < self.outputs && source < self.sources, "no such place in the matrix");
        self.coefficients[source * self.outputs + output]
    }

    /// Whether a product reads its sources once, however long they are: it has no more outputs than are formed at once.
    pub(crate) fn goes_once(&self, tier: Tier) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.outputs <= steps::width(tier.supported());
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = tier;
            true
        }
    }

    /// The product with `sources`, into `outputs`; allocates nothing, but at a tier narrower than the widest perhaps once. `tier` is
    /// lowered to what the processor has.
    ///
    /// # Panics
    /// When the number of slices is not the matrix's, or their lengths differ.
    pub fn run(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]], mode: Mode) {
        self.run_from(tier, sources, outputs, mode, false);
    }

    /// [`Matrix::run`] of sources that are in the nearest caches.
    ///
    /// # Panics
    /// As [`Matrix::run`].
    pub(crate) fn run_near(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]], mode: Mode) {
        self.run_from(tier, sources, outputs, mode, true);
    }

    fn run_from(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]], mode: Mode, near: bool) {
        assert_eq!((sources.len(), outputs.len()), (self.sources, self.outputs), "slices of the product");
        let Some(len) = outputs.first().map(|output| output.len()) else { return };
        assert!(
            sources.iter().all(|source| source.len() == len)
                && outputs.iter().all(|output| output.len() == len),
            "slices of one length"
        );
        #[cfg(target_arch = "x86_64")]
        if tier.supported() != Tier::Portable {
            return self.run_wide(tier.supported(), sources, outputs, mode, near);
        }
        let _ = (tier, near);
        self.run_portable(sources, outputs, mode);
    }

    /// [`Matrix::run`] at a supported tier that is not the portable one, lengths being checked.
    #[cfg(target_arch = "x86_64")]
    fn run_wide(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]], mode: Mode, near: bool) {
        let len = outputs.first().map_or(0, |output| output.len());
        let touched = (sources.len() + outputs.len()) * len;
        let many = sources.len() > STREAMS;
        let mut far = || outputs.last_mut().is_some_and(|output| near::are_far(sources, output));
        let at_once = steps::multiplies_at_once(tier);
        // No multiplication at all: one parity, or the one chunk that it stands in for.
        let xors = self.outputs == 1 && matches!(self.row, Row::Plain(_));
        let past = mode != Mode::Add && (at_once || xors);
        let much = touched >= STREAM_FROM || mode == Mode::SetPast;
        let stream = past && (much || at_once && touched >= ASK_FROM && far());
        if many && stream && at_once {
            return self.run_blocked(tier, sources, outputs);
        }
        let fetched = if steps::takes_tables(tier) { !near } else { many };
        let ahead = if fetched { AHEAD } else { 0 };
        let mut job = Job { stream, ahead, much, ..self.job(tier, 0..sources.len(), sources, mode) };
        if mode == Mode::Add && matches!(job.row, Row::Complement(_)) {
            // The first output would take what the others held before.
            job.row = Row::Any;
        }
        let (groups, tables) = (self.outputs.div_ceil(steps::width(tier)), self.tables(tier));
        let piece =
            if groups > 1 { (PIECE / sources.len().max(1)).next_multiple_of(512) } else { len.max(1) };
        for start in (0..len).step_by(piece) {
            let end = len.min(start + piece);
            for group in 0..groups {
                let [first, last] = part(self.outputs, groups, group);
                job.tables = tables.get(first * sources.len()..last * sources.len()).unwrap_or(&[]);
                steps::run(tier, &job, first, &mut outputs[first..last], start..end);
            }
        }
        if stream {
            steps::fence();
        }
    }

    /// The columns `range` of the matrix, `sources` being theirs.
    #[cfg(target_arch = "x86_64")]
    fn job<'a>(&'a self, tier: Tier, range: Range<usize>, sources: &'a [&'a [u8]], mode: Mode) -> Job<'a> {
        let here = |ones: usize| ones.saturating_sub(range.start).min(range.len());
        let row = match self.row {
            Row::Plain(ones) => Row::Plain(here(ones)),
            // Formed from all outputs at once, by the last sources.
            Row::Complement(ones) if self.outputs <= steps::width(tier) => {
                if range.end == self.sources {
                    Row::Complement(here(ones))
                } else {
                    Row::Plain(here(ones))
                }
            }
            _ => Row::Any,
        };
        let places = range.start * self.outputs..range.end * self.outputs;
        let (coefficients, maps) = (&self.coefficients[places.clone()], &self.maps[places]);
        let stride = self.outputs;
        Job {
            coefficients,
            maps,
            stride,
            tables: &[],
            row,
            sources,
            mode,
            stream: false,
            ahead: 0,
            much: false,
        }
    }

    /// The product block by block, over groups of sources, the outputs' sums kept in the first-level cache meanwhile, then written
    /// past the caches.
    #[cfg(target_arch = "x86_64")]
    fn run_blocked(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        #[repr(align(64))]
        struct Sums([[u8; BLOCK]; steps::WIDTH_MAX]);
        let mut sums = Sums([[0; BLOCK]; steps::WIDTH_MAX]);
        let len = outputs.first().map_or(0, |output| output.len());
        // Up to where outputs begin at a line, if all do.
        let to_line = |output: &&mut [u8]| output.as_ptr().addr().wrapping_neg() % steps::LINE;
        let head = outputs.first().map_or(0, to_line);
        let direct = outputs.iter().all(|output| to_line(output) == head);
        let head = if direct { head.min(len) } else { 0 };
        let whole = head + (len - head) / steps::LINE * steps::LINE;
        let output_groups = self.outputs.div_ceil(steps::width(tier));
        let source_groups = sources.len().div_ceil(GROUP);
        for group in 0..output_groups {
            let [first, last] = part(self.outputs, output_groups, group);
            let job = self.job(tier, 0..sources.len(), sources, Mode::Set);
            steps::run(tier, &job, first, &mut outputs[first..last], 0..head);
            steps::run(tier, &job, first, &mut outputs[first..last], whole..len);
        }
        for start in (head..whole).step_by(BLOCK) {
            let end = whole.min(start + BLOCK);
            for output_group in 0..output_groups {
                let [first, last] = part(self.outputs, output_groups, output_group);
                let (sums, outputs) = (&mut sums.0[..last - first], &mut outputs[first..last]);
                for source_group in 0..source_groups {
                    let [from, to] = part(sources.len(), source_groups, source_group);
                    let mode = if source_group == 0 { Mode::Set } else { Mode::Add };
                    let job = self.job(tier, from..to, &sources[from..to], mode);
                    let outputs = (direct && to == sources.len()).then_some(&mut *outputs);
                    steps::run_group(tier, &job, first, sums, outputs, start..end);
                }
                if !direct {
                    for (output, sum) in outputs.iter_mut().zip(sums) {
                        steps::copy_past_caches(tier, &mut output[start..end], &sum[..end - start]);
                    }
                }
            }
        }
        steps::fence();
    }

    /// What a source that changed from `old` to `new` adds to every output, in one pass; allocates nothing.
    ///
    /// # Panics
    /// When there is no such source, not one slice for each output, or their lengths differ.
    #[inline(always)]
    pub(crate) fn differences(
        &self,
        tier: Tier,
        source: usize,
        old: &[u8],
        new: &[u8],
        outputs: &mut [&mut [u8]],
    ) {
        assert!(source < self.sources && outputs.len() == self.outputs, "slices of the product");
        let column = source * self.outputs..(source + 1) * self.outputs;
        #[cfg(target_arch = "x86_64")]
        {
            let tier = tier.supported();
            if tier != Tier::Portable {
                let factors = (&self.coefficients[column.clone()], &self.maps[column]);
                return difference::run(tier, factors, old, new, outputs);
            }
        }
        for (output, coefficient) in outputs.iter_mut().zip(&self.coefficients[column]) {
            difference(tier, output, old, new, *coefficient);
        }
    }

    fn run_portable(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]], mode: Mode) {
        let len = outputs.first().map_or(0, |output| output.len());
        let piece = (PIECE / (self.sources + self.outputs)).max(64);
        for start in (0..len).step_by(piece) {
            let range = start..len.min(start + piece);
            for (row, output) in outputs.iter_mut().enumerate() {
                let output = &mut output[range.clone()];
                if mode != Mode::Add {
                    output.fill(0);
                }
                for (column, source) in sources.iter().enumerate() {
                    portable(output, &source[range.clone()], self.coefficients[column * self.outputs + row]);
                }
            }
        }
    }
}

/// What saves multiplications in the first of so many rows.
#[cfg(target_arch = "x86_64")]
fn row(outputs: usize, coefficients: &[u8]) -> Row {
    let ones = |sum: fn(&[u8]) -> u8| {
        let mut columns = coefficients.chunks_exact(outputs.max(1)).map(sum);
        let ones = columns.by_ref().take_while(|sum| *sum == 1).count();
        let rest = coefficients.chunks_exact(outputs.max(1)).skip(ones).all(|column| sum(column) == 0);
        (rest && ones > 0).then_some(ones)
    };
    let whole = |column: &[u8]| column.iter().fold(0, |sum, c| sum ^ c);
    match (ones(|column| column[0]), ones(whole)) {
        (Some(ones), _) => Row::Plain(ones),
        (None, Some(ones)) if outputs > 1 => Row::Complement(ones),
        _ => Row::Any,
    }
}

/// Where part `index` of `parts` begins and ends: as even as can be.
#[cfg(target_arch = "x86_64")]
fn part(total: usize, parts: usize, index: usize) -> [usize; 2] {
    [index, index + 1].map(|index| index * total / parts)
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
        let len = dst.len();
        return steps::run(
            tier.supported(),
            &Job::one_output(&c, &gf256::AFFINE[c as usize], &[src], Mode::Add),
            0,
            &mut [dst],
            0..len,
        );
    }
    let _ = tier;
    portable(dst, src, c);
}

/// `dst = c * (old ^ new)`, slices of one length.
pub(super) fn difference(tier: Tier, dst: &mut [u8], old: &[u8], new: &[u8], c: u8) {
    assert!(dst.len() == old.len() && dst.len() == new.len(), "slices of one length");
    #[cfg(target_arch = "x86_64")]
    if tier.supported() != Tier::Portable {
        let factors: (&[u8], &[u64]) = (&[c], &[gf256::AFFINE[c as usize]]);
        return difference::run(tier.supported(), factors, old, new, &mut [dst]);
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
