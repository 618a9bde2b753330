//! Rows of bits for elimination over GF(2): bit b of a row is bit `b % 64` of word `b / 64`.

use super::{Tier, dispatch::tiered};

/// Rows in echelon form: row c, when it is there, has its lowest bit at column c.
///
/// Within the word of that bit a row has no other row's lowest bit. So the rows that a word is reduced by are known from the
/// word at once, and their sum waits for memory only, not for one row after the other (a third off the rank of
/// K = 1024).
#[derive(Clone, Debug)]
pub(crate) struct Echelon {
    words: usize,
    /// Bit c: row c is there.
    pivots: Vec<u64>,
    /// Row c in words `c * words..`.
    matrix: Vec<u64>,
    /// The word of each row that has its lowest bit.
    leading: Vec<u64>,
}

impl Echelon {
    /// No rows of `words * 64` columns, of which the first `columns` can have one.
    pub(crate) fn new(columns: usize, words: usize) -> Self {
        assert!(columns <= words * 64, "columns of {words} words");
        Self { words, pivots: vec![0; words], matrix: vec![0; columns * words], leading: vec![0; columns] }
    }

    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        self.pivots.fill(0);
    }

    /// Row `column`, if it is there.
    pub(crate) fn row(&self, column: usize) -> Option<&[u64]> {
        let there = self.pivots[column / 64] >> (column % 64) & 1 == 1;
        there.then(|| &self.matrix[column * self.words..(column + 1) * self.words])
    }

    /// Keeps `row`, which [`reduce`](Self::reduce) has reduced, under its lowest bit, `column`.
    ///
    /// # Panics
    /// When that is not its lowest bit, or the word of that bit has another row's lowest one.
    pub(crate) fn insert(&mut self, column: usize, row: &[u64]) {
        assert_eq!(lowest(row), Some(column), "a row is kept under its lowest bit");
        assert_eq!(row[column / 64] & self.pivots[column / 64], 0, "a row is reduced before it is kept");
        insert_tiered(Tier::detect(), self, column, row);
    }

    /// Forgets row `column`.
    pub(crate) fn remove(&mut self, column: usize) {
        self.pivots[column / 64] &= !(1 << (column % 64));
    }

    /// Adds rows to `row` until it has no bit at any of their lowest ones.
    ///
    /// # Panics
    /// When `row` has another length.
    pub(crate) fn reduce(&self, row: &mut [u64]) {
        assert_eq!(row.len(), self.words, "a row of the same columns");
        reduce_tiered(Tier::detect(), self, row);
    }
}

tiered! { fn insert_tiered = insert_body(echelon: &mut Echelon, column: usize, row: &[u64]) }

#[inline(always)]
fn insert_body(echelon: &mut Echelon, column: usize, row: &[u64]) {
    let (words, word, bit) = (echelon.words, column / 64, column % 64);
    // Rows are looked through without a branch on each: half of them have the bit, and none can tell which.
    let end = (word * 64 + bit).min(echelon.leading.len());
    let having = echelon.leading[word * 64..end].iter().enumerate();
    let having = having.fold(0, |all, (at, leading)| all | (leading >> bit & 1) << at);
    for before in ones(having & echelon.pivots[word]).map(|at| word * 64 + at) {
        echelon.leading[before] ^= row[word];
        let other = &mut echelon.matrix[before * words..(before + 1) * words];
        if let (Ok(other), Ok(row)) =
            (<&mut [u64; HELD]>::try_from(&mut *other), <&[u64; HELD]>::try_from(row))
        {
            other.iter_mut().zip(row).for_each(|(a, b)| *a ^= b);
        } else {
            other[word..].iter_mut().zip(&row[word..]).for_each(|(a, b)| *a ^= b);
        }
    }
    echelon.pivots[word] |= 1 << bit;
    echelon.leading[column] = row[word];
    echelon.matrix[column * words..(column + 1) * words].copy_from_slice(row);
}

tiered! { fn reduce_tiered = reduce_body(echelon: &Echelon, row: &mut [u64]) }

#[inline(always)]
fn reduce_body(echelon: &Echelon, row: &mut [u64]) {
    if let Ok(row) = <&mut [u64; HELD]>::try_from(&mut *row) {
        let (matrix, _) = echelon.matrix.as_chunks::<HELD>();
        // A row's lowest bit is its pivot's, so words before that one are zero in it.
        for (word, pivots) in echelon.pivots.iter().enumerate() {
            let hits = row[word] & pivots;
            let rows = matrix.get(word * 64..).unwrap_or_default();
            if word < HELD / 2 {
                add_rows::<0>(row, rows, hits);
            } else {
                add_rows::<{ HELD / 2 }>(row, rows, hits);
            }
        }
        return;
    }
    let words = echelon.words;
    for (word, pivots) in echelon.pivots.iter().enumerate() {
        for column in ones(row[word] & pivots).map(|bit| word * 64 + bit) {
            let other = &echelon.matrix[column * words + word..(column + 1) * words];
            row[word..].iter_mut().zip(other).for_each(|(a, b)| *a ^= b);
        }
    }
}

/// Words of a row of 1,024 columns, the usual K.
const HELD: usize = 16;

/// Adds the rows that `hits` names, which are zero before word `FROM`, summed in registers.
#[inline(always)]
fn add_rows<const FROM: usize>(row: &mut [u64; HELD], matrix: &[[u64; HELD]], hits: u64) {
    let mut sum = [0; HELD];
    for bit in ones(hits) {
        sum[FROM..].iter_mut().zip(&matrix[bit][FROM..]).for_each(|(a, b)| *a ^= b);
    }
    row[FROM..].iter_mut().zip(&sum[FROM..]).for_each(|(a, b)| *a ^= b);
}

/// The places of the bits set, lowest first.
#[inline(always)]
pub(crate) fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let place = word.trailing_zeros() as usize;
        word &= word - 1;
        Some(place)
    })
}

/// So many words of a row are worked on at once.
pub(crate) type Lane = [u64; 4];

/// Lanes of a row of so many bits; one at least.
pub(crate) fn lanes(bits: usize) -> usize {
    bits.div_ceil(64 * size_of::<Lane>() / 8).max(1)
}

/// Inverts a matrix over GF(2) by Gauss and Jordan. Of each row, `lanes` of them, the first `width` bits are its coefficients;
/// all others are zero, and there are `width` of them from word `width.div_ceil(64)` on, for the inverse.
///
/// Gives the rows that the inverse is of, `width` of them, by their numbers before: row r of the inverse, where row r is, has bit c
/// when it adds the c-th. None when the rows have not full rank.
pub(crate) fn invert(width: usize, lanes: usize, rows: &mut [Lane]) -> Option<Vec<u32>> {
    assert!(2 * width.div_ceil(64) <= 4 * lanes, "no room for the inverse of {width} columns");
    invert_tiered(Tier::detect(), width, lanes, rows)
}

tiered! { fn invert_tiered = invert_body(width: usize, lanes: usize, rows: &mut [Lane]) -> Option<Vec<u32>> }

#[inline(always)]
fn invert_body(width: usize, lanes: usize, rows: &mut [Lane]) -> Option<Vec<u32>> {
    let mut numbers: Vec<u32> = (0..(rows.len() / lanes) as u32).collect();
    let mut pivot = vec![Lane::default(); lanes];
    for column in 0..width {
        let (lane, word, bit) = (column / 256, column / 64 % 4, column % 64);
        let found = (column..numbers.len()).find(|row| rows[row * lanes + lane][word] >> bit & 1 == 1)?;
        numbers.swap(column, found);
        // The pivot's own row is out of the way while it is added to all that have the column, without a branch on each.
        pivot.copy_from_slice(&rows[found * lanes..][..lanes]);
        rows.copy_within(column * lanes..(column + 1) * lanes, found * lanes);
        rows[column * lanes..][..lanes].fill(Lane::default());
        let inverse = width.div_ceil(64) * 64 + column;
        pivot[inverse / 256][inverse / 64 % 4] |= 1 << (inverse % 64);
        for row in rows.chunks_exact_mut(lanes) {
            let mask = 0u64.wrapping_sub(row[lane][word] >> bit & 1);
            for (row, pivot) in row[lane..].iter_mut().zip(&pivot[lane..]) {
                *row = std::array::from_fn(|word| row[word] ^ pivot[word] & mask);
            }
        }
        rows[column * lanes..][..lanes].copy_from_slice(&pivot);
    }
    numbers.truncate(width);
    Some(numbers)
}

/// The lowest bit set, if any.
pub(crate) fn lowest(row: &[u64]) -> Option<usize> {
    row.iter().position(|word| *word != 0).map(|word| word * 64 + row[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::bytes;

    /// The rank of rows taken one after the other, and what reduction leaves, against elimination bit by bit.
    #[test]
    fn rows_reduce_like_the_naive_twin() {
        for (seed, columns) in [1usize, 63, 64, 65, 200, 1000, 1024].into_iter().enumerate() {
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

    /// Inverses of drawn matrices, with rows more than columns and without: their product with the rows they name is the
    /// identity.
    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        let mut inverted = 0;
        for (seed, width) in [1usize, 2, 63, 64, 65, 118, 128, 129, 200, 300].into_iter().enumerate() {
            for more in [0, 1, 5] {
                let (count, words) = (width + more, width.div_ceil(64));
                let lanes = lanes(2 * words * 64);
                let drawn = bytes((seed * 10 + more) as u64, count * width);
                let bit = |row: usize, column: usize| drawn[row * width + column] & 1 == 1;
                let mut rows = vec![Lane::default(); count * lanes];
                for (number, row) in rows.chunks_exact_mut(lanes).enumerate() {
                    let row = row.as_flattened_mut();
                    (0..width).for_each(|at| row[at / 64] |= u64::from(bit(number, at)) << (at % 64));
                }
                let Some(numbers) = invert(width, lanes, &mut rows) else { continue };
                inverted += 1;
                for (place, row) in rows.chunks_exact(lanes).take(width).enumerate() {
                    let inverse = &row.as_flattened()[words..];
                    let adds: Vec<usize> =
                        (0..width).filter(|at| inverse[at / 64] >> (at % 64) & 1 == 1).collect();
                    for column in 0..width {
                        let sum = adds.iter().fold(false, |sum, at| sum ^ bit(numbers[*at] as usize, column));
                        assert_eq!(sum, place == column, "width {width}, row {place}, column {column}");
                    }
                }
            }
        }
        assert!(inverted >= 15, "{inverted} of 30 drawn matrices have full rank");
    }

    #[test]
    fn a_matrix_without_full_rank_has_no_inverse() {
        let mut rows = vec![[0b011, 0, 0, 0], [0b110, 0, 0, 0], [0b101, 0, 0, 0]];
        assert_eq!(invert(3, 1, &mut rows), None);
        assert_eq!(invert(1, 1, &mut []), None);
    }
}
