//! The plan's second step over GF(2), in words of bits: how columns depend on the unknowns, and the inverse. What
//! [`Solver`] does byte by byte for codes with coefficients.

use super::code::Entry;
use super::plan::{Column, Dependence, Inverse, Solver};

/// Dependence of every peeled column and the inverse of the rows left; None when they have not full rank.
pub(super) fn binary(solver: &Solver, left: &[u32]) -> Option<(Dependence, Inverse)> {
    let width = solver.inactive.len();
    if width == 0 {
        let none = Dependence::Bits { width, words: 0, of: Vec::new() };
        return Some((none, Inverse { rows: left.to_vec(), matrix: Vec::new() }));
    }
    let words = width.div_ceil(64);
    let mut bits = vec![0u64; solver.columns.len() * words];
    for (unknown, column) in solver.inactive.iter().enumerate() {
        bits[*column as usize * words + unknown / 64] |= 1 << (unknown % 64);
    }
    let mut vector = vec![0u64; words];
    for (row, column) in &solver.order {
        vector.fill(0);
        let others = solver.row(*row).iter().filter(|entry| entry.column != *column);
        others.for_each(|entry| add(&mut vector, of(&bits, words, entry)));
        bits[*column as usize * words..][..words].copy_from_slice(&vector);
    }
    debug_assert!(
        solver.columns.iter().zip(bits.chunks(words)).all(|(column, bits)| {
            !matches!(column, Column::Known(_)) || bits.iter().all(|word| *word == 0)
        })
    );
    let inverse = invert(solver, left, width, words, &bits)?;
    Some((Dependence::Bits { width, words, of: bits }, inverse))
}

/// Gauss-Jordan on [ A | I ], both parts from a word of their own on.
fn invert(solver: &Solver, left: &[u32], width: usize, words: usize, bits: &[u64]) -> Option<Inverse> {
    let stride = words + left.len().div_ceil(64);
    let mut rows = vec![0u64; left.len() * stride];
    for ((place, row), sum) in left.iter().enumerate().zip(rows.chunks_exact_mut(stride)) {
        solver.row(*row).iter().for_each(|entry| add(&mut sum[..words], of(bits, words, entry)));
        sum[words + place / 64] |= 1 << (place % 64);
    }
    let mut pivot = vec![0u64; stride];
    for column in 0..width {
        let (word, mask) = (column / 64, 1u64 << (column % 64));
        let found = (column..left.len()).find(|row| rows[row * stride + word] & mask != 0)?;
        pivot.copy_from_slice(&rows[found * stride..(found + 1) * stride]);
        rows.copy_within(column * stride..(column + 1) * stride, found * stride);
        rows[column * stride..(column + 1) * stride].copy_from_slice(&pivot);
        for (place, row) in rows.chunks_exact_mut(stride).enumerate() {
            if row[word] & mask != 0 && place != column {
                add(&mut row[word..], &pivot[word..]);
            }
        }
    }
    let mut matrix = Vec::with_capacity(width * left.len());
    for row in rows.chunks_exact(stride).take(width) {
        matrix.extend(bytes(&row[words..], left.len()));
    }
    Some(Inverse { rows: left.to_vec(), matrix })
}

fn of<'a>(bits: &'a [u64], words: usize, entry: &Entry) -> &'a [u64] {
    &bits[entry.column as usize * words..][..words]
}

fn add(row: &mut [u64], other: &[u64]) {
    row.iter_mut().zip(other).for_each(|(a, b)| *a ^= b);
}

/// The first `count` bits, a byte each.
fn bytes(bits: &[u64], count: usize) -> impl Iterator<Item = u8> {
    (0..count).map(|bit| (bits[bit / 64] >> (bit % 64) & 1) as u8)
}
