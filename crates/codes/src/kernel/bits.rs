//! Rows of bits for elimination over GF(2): bit b of a row is bit `b % 64` of word `b / 64`.

use super::{Tier, tiered};

/// Reduces `row` by the echelon rows in `matrix`: row c of the matrix (words `c * row.len()..`) is present
/// when bit c of `pivots` is set, and then has its lowest bit at c. Afterwards no bit of `row` is at a pivot.
///
/// # Panics
/// When `pivots` is not as long as `row`, or a present row lies outside `matrix`.
pub fn reduce(row: &mut [u64], matrix: &[u64], pivots: &[u64]) {
    assert_eq!(row.len(), pivots.len(), "one pivot bit a column");
    reduce_tiered(Tier::detect(), row, matrix, pivots);
}

tiered! { fn reduce_tiered = reduce_body(row: &mut [u64], matrix: &[u64], pivots: &[u64]) }

#[inline(always)]
fn reduce_body(row: &mut [u64], matrix: &[u64], pivots: &[u64]) {
    let words = row.len();
    for word in 0..words {
        loop {
            let hits = row[word] & pivots[word];
            if hits == 0 {
                break;
            }
            let column = word * 64 + hits.trailing_zeros() as usize;
            // A row's lowest bit is its pivot's, so words before this one are zero in it.
            let echelon = &matrix[column * words + word..(column + 1) * words];
            for (a, b) in row[word..].iter_mut().zip(echelon) {
                *a ^= b;
            }
        }
    }
}

/// The lowest bit set, if any.
pub fn lowest(row: &[u64]) -> Option<usize> {
    row.iter().position(|word| *word != 0).map(|word| word * 64 + row[word].trailing_zeros() as usize)
}
