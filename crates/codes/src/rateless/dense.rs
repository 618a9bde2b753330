//! Codes whose repair rows name every original (mix below K = 128): products of a matrix, as those of an MDS code are.
//!
//! ```text
//!   K blocks, a strip of each     copies side by side              a few blocks at once
//!   [ . . ]  apart by powers  ->  [ . . . . . . . . ]  -- rows -->  [ . . ]
//!     ..     of two                                                   ..
//! ```
//!
//! A list of sums, as `program` writes them, loads and takes apart every source once for each block that it makes; here that is done once
//! for as many blocks as registers hold. Where more are made, the sources are read again for each group of them, from copies: blocks lie a
//! power of two apart, and their strips would take turns in a few sets of every cache. So would copies; they lie a line further apart.

use super::code::{Code, Entry, SPARSE_FROM};
use super::decoder::in_stretches;
use super::plan::Rows;
use super::scratch::Strips;
use crate::elimination;
use crate::kernel::matrix::{Matrix, Mode};
use crate::kernel::{STREAM_FROM, Tier};

/// Bytes of a strip's copies: they stay in the second-level cache, beside what is made of them.
const COPIES: usize = 128 << 10;
/// Bytes of a strip at most: its length counts little from there on, and copies of a few blocks stay in the first cache.
const STRIP_MAX: usize = 4 << 10;
/// Bytes between copies. With none K = 64 and 32 took 3 to 20 % longer on Zen 3 (32 KiB of first cache, 8 ways); two lines did alike.
const GAP: usize = 64;

/// Makes the blocks of `indices` into `out`, all slices being of one length.
pub(super) fn encode(
    code: &Code,
    strips: &mut Strips,
    indices: &[u32],
    originals: &[&[u8]],
    out: &mut [&mut [u8]],
) {
    let (k, mut rows, mut coded) = (originals.len(), Vec::new(), Vec::new());
    for (index, out) in indices.iter().zip(out) {
        match originals.get(*index as usize) {
            Some(original) => out.copy_from_slice(original),
            None => {
                code.row(*index, &mut rows);
                coded.push(&mut **out);
            }
        }
    }
    assert_eq!(rows.len(), coded.len() * k, "a repair row names every original");
    let matrix = Matrix::new(coded.len(), k, |row, column| rows[row * k + column].coefficient);
    let (tier, len) = (Tier::detect(), originals.first().map_or(0, |original| original.len()));
    if matrix.goes_once(tier) {
        return matrix.run(tier, originals, &mut coded, Mode::Set);
    }
    let mode = if coded.len() * len >= STREAM_FROM { Mode::SetPast } else { Mode::Set };
    let mut product = Product::new(&matrix, tier, len, strips);
    let mut parts = Vec::with_capacity(coded.len());
    for start in (0..len).step_by(product.strip) {
        let end = len.min(start + product.strip);
        product.copy(end - start, originals.iter().map(|original| &original[start..end]));
        parts.extend(coded.iter_mut().map(|block| take(block, end - start)));
        product.run(end - start, &mut parts, mode);
        parts.clear();
    }
}

/// Computes the originals that are not among the `k` blocks of these rows, which are of full rank, each in the block of a repair row;
/// where every original is afterwards. With a thread for each of `strips`, one of them here.
pub(super) fn solve(k: usize, rows: &Rows, blocks: &mut [&mut [u8]], strips: &mut [Strips]) -> Vec<u32> {
    let (mut home, mut coded) = (vec![None; k], Vec::new());
    for place in 0..blocks.len() {
        match *rows.kept(place) {
            [Entry { column, coefficient: 1 }] => home[column as usize] = Some(place),
            _ => coded.push(place),
        }
    }
    let lost: Vec<usize> = (0..k).filter(|original| home[*original].is_none()).collect();
    let matrix = solution(rows, &home, &lost, &coded);
    in_stretches(blocks, strips, |strips, parts| solve_part(&matrix, &coded, strips, parts));
    for (original, place) in lost.into_iter().zip(coded) {
        home[original] = Some(place);
    }
    home.into_iter().map(|place| place.expect("as many repair rows as lost originals") as u32).collect()
}

/// The `lost` originals as sums of all blocks, where the others are at `home` and the blocks `coded` have repair rows.
fn solution(rows: &Rows, home: &[Option<usize>], lost: &[usize], coded: &[usize]) -> Matrix {
    // What a row has of the lost ones, and what that adds up to: its payload and the others.
    let equation = |place: &usize| {
        let mut equation = vec![0; lost.len() + home.len()];
        equation[lost.len() + place] = 1;
        for entry in rows.kept(*place) {
            let column = match home[entry.column as usize] {
                Some(block) => lost.len() + block,
                None => lost.binary_search(&entry.column.into()).expect("those without a home are lost"),
            };
            equation[column] = entry.coefficient;
        }
        equation
    };
    let mut equations: Vec<Vec<u8>> = coded.iter().map(equation).collect();
    elimination::reduce(&mut equations).expect("rank is full, so the rows can be solved");
    Matrix::new(lost.len(), home.len(), |row, block| equations[row][lost.len() + block])
}

/// The product with these parts of all blocks, into the parts of those that are `coded`.
fn solve_part(matrix: &Matrix, coded: &[usize], strips: &mut Strips, parts: &mut [&mut [u8]]) {
    let len = parts.first().map_or(0, |part| part.len());
    let mut product = Product::new(matrix, Tier::detect(), len, strips);
    // Of those what is done goes off, and nothing is left in the others' list.
    let mut homes: Vec<&mut [u8]> = coded.iter().map(|place| std::mem::take(&mut parts[*place])).collect();
    let mut outputs = Vec::with_capacity(homes.len());
    for start in (0..len).step_by(product.strip) {
        let end = len.min(start + product.strip);
        let mut written = homes.iter();
        let sources = parts.iter().map(|part| {
            part.get(start..end)
                .unwrap_or_else(|| &written.next().expect("a part that is written")[..end - start])
        });
        product.copy(end - start, sources);
        outputs.extend(homes.iter_mut().map(|home| take(home, end - start)));
        product.run(end - start, &mut outputs, Mode::Set);
        outputs.clear();
    }
}

/// A product of copies.
struct Product<'a> {
    matrix: &'a Matrix,
    tier: Tier,
    /// Bytes of each source that are copied at once at most.
    strip: usize,
    copies: &'a mut [u8],
}

impl<'a> Product<'a> {
    /// Over sources of `len` bytes.
    fn new(matrix: &'a Matrix, tier: Tier, len: usize, strips: &'a mut Strips) -> Self {
        let sources = matrix.sources().max(1);
        let strip = (1 << (COPIES / sources).ilog2()).min(STRIP_MAX).min(len.max(1));
        Self { matrix, tier, strip, copies: strips.bytes_mut(sources * (strip + GAP)) }
    }

    fn copy<'b>(&mut self, len: usize, sources: impl Iterator<Item = &'b [u8]>) {
        for (copy, source) in self.copies.chunks_exact_mut(self.strip + GAP).zip(sources) {
            copy[..len].copy_from_slice(source);
        }
    }

    fn run(&self, len: usize, outputs: &mut [&mut [u8]], mode: Mode) {
        let mut sources: [&[u8]; SPARSE_FROM as usize] = [&[]; SPARSE_FROM as usize];
        for (source, copy) in sources.iter_mut().zip(self.copies.chunks_exact(self.strip + GAP)) {
            *source = &copy[..len];
        }
        self.matrix.run_near(self.tier, &sources[..self.matrix.sources()], outputs, mode);
    }
}

/// Takes the first `len` bytes off a block.
fn take<'a>(block: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    let (part, rest) = std::mem::take(block).split_at_mut(len);
    *block = rest;
    part
}
