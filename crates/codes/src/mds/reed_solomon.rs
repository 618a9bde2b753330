//! Systematic Reed-Solomon over GF(2^8) (polynomial 0x11d), k + m at most 255.
//!
//! ```text
//!   parity j = sum over i of c[j][i] * data i
//!
//!              d0  d1  ..  d(k-1)
//!         p0 [ 1   1   ..  1      ]     c[j][i] = r(j) * s(i) / (x(j) + y(i)),   x(j) = k + j,  y(i) = i
//!         p1 [ 1   .   ..  .      ]     r and s chosen so that the first row and column are ones
//! ```
//!
//! Every square submatrix of a Cauchy matrix 1 / (x + y) with distinct x and y is invertible, and scaling rows and
//! columns keeps that; so any k of the k + m chunks give the data. The row of ones makes the first parity plain XOR. No row depends on
//! m: the parity chunks of a code with fewer are the first of one with more.

use super::MdsError;
use crate::elimination;
use crate::kernel::gf256::{inverse, mul};
use crate::kernel::matrix::Matrix;

/// The coefficient of a data chunk in a parity chunk.
pub(super) fn coefficient(k: usize, parity: usize, data: usize) -> u8 {
    let cauchy = |parity: usize, data: usize| inverse((k + parity) as u8 ^ data as u8);
    let row = mul(cauchy(parity, data), inverse(cauchy(parity, 0)));
    let first = mul(cauchy(0, data), inverse(cauchy(0, 0)));
    mul(row, inverse(first))
}

/// How lost chunks follow from others: `wanted = matrix * used`.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    /// Positions in the caller's list of available chunks, one a column.
    pub(super) used: Vec<usize>,
    pub(super) matrix: Matrix,
}

/// Solves for `wanted` from `available` (distinct chunk numbers below k + m, at least k of them).
pub(super) fn solve(k: usize, generator: &Matrix, available: &[usize], wanted: &[usize]) -> Solution {
    // Data first: every chunk of it saves a row to invert. Position in the caller's list by data chunk.
    let mut place = vec![None; k];
    for (position, chunk) in available.iter().enumerate().filter(|(_, chunk)| **chunk < k) {
        place[*chunk] = Some(position);
    }
    let lost: Vec<usize> = (0..k).filter(|data| place[*data].is_none()).collect();
    let mut parities: Vec<(usize, usize)> = available.iter().copied().enumerate().collect();
    parities.retain(|(_, chunk)| *chunk >= k);
    parities.sort_unstable_by_key(|(_, chunk)| *chunk);
    parities.truncate(lost.len());
    // [ A | I ], and once A is reduced what stands in I's place is its inverse.
    let row = |(place, (_, chunk)): (usize, &(usize, usize))| -> Vec<u8> {
        let unit = (0..lost.len()).map(|column| u8::from(column == place));
        lost.iter().map(|data| generator.coefficient(chunk - k, *data)).chain(unit).collect()
    };
    let mut inverted: Vec<Vec<u8>> = parities.iter().enumerate().map(row).collect();
    elimination::reduce(&mut inverted).expect("no square submatrix of the generator is singular");

    // Columns: the data that is there, then the parities used.
    let known: Vec<usize> = (0..k).filter(|data| place[*data].is_some()).collect();
    let positions = known.iter().filter_map(|data| place[*data]).chain(parities.iter().map(|(at, _)| *at));
    let positions: Vec<usize> = positions.collect();
    let data_row = |data: usize| -> Vec<u8> {
        let mut row = vec![0; positions.len()];
        match lost.iter().position(|other| *other == data) {
            None => {
                let column = known.iter().position(|other| *other == data).expect("data is lost or known");
                row[column] = 1;
            }
            // lost = inverted * (parities - generator * known)
            Some(index) => {
                for (parity, factor) in inverted[index][lost.len()..].iter().enumerate() {
                    row[known.len() + parity] = *factor;
                    for (column, other) in known.iter().enumerate() {
                        row[column] ^= mul(*factor, generator.coefficient(parities[parity].1 - k, *other));
                    }
                }
            }
        }
        row
    };
    let rows: Vec<Vec<u8>> = wanted
        .iter()
        .map(|chunk| {
            let mut row = vec![0; positions.len()];
            if *chunk < k {
                row = data_row(*chunk);
            } else if let Some(column) = parities.iter().position(|(_, parity)| parity == chunk) {
                row[known.len() + column] = 1;
            } else {
                for (column, data) in known.iter().enumerate() {
                    row[column] = generator.coefficient(chunk - k, *data);
                }
                for data in &lost {
                    let factor = generator.coefficient(chunk - k, *data);
                    for (sum, term) in row.iter_mut().zip(data_row(*data)) {
                        *sum ^= mul(factor, term);
                    }
                }
            }
            row
        })
        .collect();
    let read: Vec<usize> =
        (0..positions.len()).filter(|column| rows.iter().any(|row| row[*column] != 0)).collect();
    let matrix = Matrix::new(wanted.len(), read.len(), |row, column| rows[row][read[column]]);
    Solution { used: read.into_iter().map(|column| positions[column]).collect(), matrix }
}

/// The generator's parity rows.
pub(super) fn generator(k: usize, m: usize) -> Result<Matrix, MdsError> {
    if k == 0 || m == 0 || k.saturating_add(m) > 255 {
        return Err(MdsError::Parameters { kind: super::Kind::ReedSolomon, k, m });
    }
    Ok(Matrix::new(m, k, |parity, data| coefficient(k, parity, data)))
}
