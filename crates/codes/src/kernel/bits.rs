//! Rows of bits for elimination over GF(2): bit b of a row is bit `b % 64` of word `b / 64`.

use super::{Tier, tiered};

/// Rows in echelon form: row c, when it is there, has its lowest bit at column c.
#[derive(Clone, Debug)]
pub struct Echelon {
    words: usize,
    /// Bit c: row c is there.
    pivots: Vec<u64>,
    /// Row c in words `c * words..`.
    matrix: Vec<u64>,
    /// The word of each row that has its lowest bit. What a row is reduced by follows from these alone as far as its
    /// word goes, so that they are found from the first cache while the rows themselves are on their way.
    leading: Vec<u64>,
}

impl Echelon {
    /// No rows of `words * 64` columns, of which the first `columns` can have one.
    pub fn new(columns: usize, words: usize) -> Self {
        assert!(columns <= words * 64, "columns of {words} words");
        Self { words, pivots: vec![0; words], matrix: vec![0; columns * words], leading: vec![0; columns] }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.pivots.fill(0);
    }

    /// Row `column`, if it is there.
    pub fn row(&self, column: usize) -> Option<&[u64]> {
        let there = self.pivots[column / 64] >> (column % 64) & 1 == 1;
        there.then(|| &self.matrix[column * self.words..(column + 1) * self.words])
    }

    /// Keeps `row` under its lowest bit, `column`.
    ///
    /// # Panics
    /// When that is not its lowest bit.
    pub fn insert(&mut self, column: usize, row: &[u64]) {
        assert_eq!(lowest(row), Some(column), "a row is kept under its lowest bit");
        self.pivots[column / 64] |= 1 << (column % 64);
        self.leading[column] = row[column / 64];
        self.matrix[column * self.words..(column + 1) * self.words].copy_from_slice(row);
    }

    /// Forgets row `column`.
    pub fn remove(&mut self, column: usize) {
        self.pivots[column / 64] &= !(1 << (column % 64));
    }

    /// Adds rows to `row` until it has no bit at any of their lowest ones.
    ///
    /// # Panics
    /// When `row` has another length.
    pub fn reduce(&self, row: &mut [u64]) {
        assert_eq!(row.len(), self.words, "a row of the same columns");
        reduce_tiered(Tier::detect(), self, row);
    }
}

tiered! { fn reduce_tiered = reduce_body(echelon: &Echelon, row: &mut [u64]) }

#[inline(always)]
fn reduce_body(echelon: &Echelon, row: &mut [u64]) {
    if let Ok(row) = <&mut [u64; HELD]>::try_from(&mut *row) {
        return reduce_held(echelon, row);
    }
    let words = echelon.words;
    for word in 0..words {
        let mut own = row[word];
        loop {
            let hits = own & echelon.pivots[word];
            if hits == 0 {
                break;
            }
            let column = word * 64 + hits.trailing_zeros() as usize;
            own ^= echelon.leading[column];
            // A row's lowest bit is its pivot's, so words before this one are zero in it.
            let other = &echelon.matrix[column * words + word..(column + 1) * words];
            for (a, b) in row[word..].iter_mut().zip(other) {
                *a ^= b;
            }
        }
    }
}

/// Words of a row of 1,024 columns, the usual K.
const HELD: usize = 16;

/// The same with the row in registers while a word's bits go.
#[inline(always)]
fn reduce_held(echelon: &Echelon, row: &mut [u64; HELD]) {
    let (matrix, _) = echelon.matrix.as_chunks::<HELD>();
    for word in 0..HELD {
        let (mut own, mut sum) = (row[word], [0; HELD]);
        loop {
            let hits = own & echelon.pivots[word];
            if hits == 0 {
                break;
            }
            let column = word * 64 + hits.trailing_zeros() as usize;
            own ^= echelon.leading[column];
            for (a, b) in sum.iter_mut().zip(&matrix[column]) {
                *a ^= b;
            }
        }
        row.iter_mut().zip(&sum).for_each(|(a, b)| *a ^= b);
    }
}

/// The lowest bit set, if any.
pub fn lowest(row: &[u64]) -> Option<usize> {
    row.iter().position(|word| *word != 0).map(|word| word * 64 + row[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::bytes;

    /// The rank of rows taken one after the other, and what reduction leaves, against elimination bit by bit.
    #[test]
    fn rows_reduce_like_the_naive_twin() {
        for (seed, columns) in [1usize, 63, 64, 65, 200, 1024].into_iter().enumerate() {
            let words = columns.div_ceil(64);
            let mut echelon = Echelon::new(columns, words);
            let (mut naive, mut rank) = (vec![None::<Vec<bool>>; columns], 0);
            for number in 0..columns + columns.min(200) {
                let drawn = bytes((seed * 1000 + number) as u64, columns);
                // Few bits, so that some rows depend on others.
                let bits: Vec<bool> = drawn.iter().map(|byte| *byte < 12).collect();
                let mut row = vec![0; words];
                bits.iter().enumerate().for_each(|(at, bit)| row[at / 64] |= u64::from(*bit) << (at % 64));
                let mut rest = bits;
                for column in 0..columns {
                    if let (true, Some(other)) = (rest[column], &naive[column]) {
                        rest.iter_mut().zip(other).for_each(|(a, b)| *a ^= b);
                    }
                }
                echelon.reduce(&mut row);
                let reduced: Vec<bool> = (0..columns).map(|at| row[at / 64] >> (at % 64) & 1 == 1).collect();
                assert_eq!(reduced, rest, "{columns} columns, row {number}");
                if let Some(pivot) = lowest(&row) {
                    assert_eq!(echelon.row(pivot), None);
                    echelon.insert(pivot, &row);
                    assert_eq!(echelon.row(pivot), Some(&row[..]));
                    naive[pivot] = Some(rest);
                    rank += 1;
                }
            }
            assert!(rank >= columns * 3 / 4, "{rank} of {columns}");
        }
    }
}
