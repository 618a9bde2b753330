//! Gauss-Jordan over GF(2^8).

use crate::kernel::gf256;

/// Reduces the first `rows.len()` columns of `rows` to the identity: what stands behind them is then the product of
/// those columns' inverse with what stood there. `None` where they have none; rows are of no use then.
pub(crate) fn reduce(rows: &mut [Vec<u8>]) -> Option<()> {
    for column in 0..rows.len() {
        let pivot = (column..rows.len()).find(|row| rows[*row][column] != 0)?;
        rows.swap(column, pivot);
        let mut pivot = std::mem::take(&mut rows[column]);
        let lead = pivot[column];
        gf256::scale(&mut pivot[column..], gf256::inverse(lead));
        for row in rows.iter_mut().filter(|row| !row.is_empty()) {
            let factor = row[column];
            gf256::mul_acc(&mut row[column..], &pivot[column..], factor);
        }
        rows[column] = pivot;
    }
    Some(())
}
