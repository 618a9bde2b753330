//! The plan's second step over GF(2), in lanes of bits: how columns depend on the unknowns, and the inverse. What
//! [`Solver`] does byte by byte for codes with coefficients.

use super::code::Entry;
use super::coefficients::Coefficients;
use super::plan::{Inverse, Solver};
use crate::kernel::bits::{self, Lane, lanes};

/// Dependence of every column and the inverse of the rows left; None when they have not full rank.
pub(super) fn binary(solver: &Solver, left: &[u32]) -> Option<(Coefficients, Inverse)> {
    let width = solver.inactive.len();
    if width == 0 {
        let none = || Coefficients::bits(0, Vec::new());
        return Some((none(), Inverse { rows: Vec::new(), matrix: none() }));
    }
    let lanes = lanes(width);
    let mut rows = vec![Lane::default(); solver.columns.len() * lanes];
    for (unknown, column) in solver.inactive.iter().enumerate() {
        rows[*column as usize * lanes..][..lanes].as_flattened_mut()[unknown / 64] |= 1 << (unknown % 64);
    }
    for (row, column) in &solver.order {
        for lane in 0..lanes {
            // The column's own lane is zero until now.
            rows[*column as usize * lanes + lane] = sum(&rows, lanes, lane, solver.row(*row));
        }
    }
    let inverse = invert(solver, left, width, &rows)?;
    Some((Coefficients::bits(width, rows), inverse))
}

fn invert(solver: &Solver, left: &[u32], width: usize, dependence: &[Lane]) -> Option<Inverse> {
    let (words, narrow) = (width.div_ceil(64), lanes(width));
    let wide = lanes(2 * words * 64);
    let mut rows = vec![Lane::default(); left.len() * wide];
    for (row, to) in left.iter().zip(rows.chunks_exact_mut(wide)) {
        for (lane, to) in to.iter_mut().take(narrow).enumerate() {
            *to = sum(dependence, narrow, lane, solver.row(*row));
        }
    }
    let numbers = bits::invert(width, wide, &mut rows)?;
    let mut matrix = vec![Lane::default(); width * narrow];
    for (row, to) in rows.chunks_exact(wide).zip(matrix.chunks_exact_mut(narrow)) {
        to.as_flattened_mut()[..words].copy_from_slice(&row.as_flattened()[words..2 * words]);
    }
    let rows = numbers.into_iter().map(|number| left[number as usize]).collect();
    Some(Inverse { rows, matrix: Coefficients::bits(width, matrix) })
}

/// One lane of the sum of what the entries' columns depend on.
fn sum(rows: &[Lane], lanes: usize, lane: usize, entries: &[Entry]) -> Lane {
    entries.iter().fold(Lane::default(), |sum, entry| {
        let other = &rows[entry.column as usize * lanes + lane];
        std::array::from_fn(|word| sum[word] ^ other[word])
    })
}
