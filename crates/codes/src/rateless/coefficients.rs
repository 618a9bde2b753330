//! A matrix of coefficients by rows: how every column depends on the unknowns, and how each unknown is summed.

use crate::kernel::bits::{Lane, lanes, ones};

/// Rows of `width` coefficients.
pub(super) struct Coefficients {
    /// How many of each row are not zero.
    weights: Vec<u32>,
    of: Of,
}

enum Of {
    /// Over GF(2): so many lanes of bits a row.
    Bits { lanes: usize, rows: Vec<Lane> },
    /// Over GF(256): so many bytes a row.
    Bytes { width: usize, rows: Vec<u8> },
}

impl Coefficients {
    /// `rows` over GF(2), [`lanes`]`(width)` each.
    pub(super) fn bits(width: usize, rows: Vec<Lane>) -> Self {
        let lanes = lanes(width);
        let weight = |row: &[Lane]| row.as_flattened().iter().map(|word| word.count_ones()).sum();
        Self { weights: rows.chunks_exact(lanes).map(weight).collect(), of: Of::Bits { lanes, rows } }
    }

    /// `rows` over GF(256).
    pub(super) fn bytes(width: usize, rows: Vec<u8>) -> Self {
        let weight = |row: &[u8]| row.iter().map(|value| u32::from(*value != 0)).sum();
        Self { weights: rows.chunks_exact(width.max(1)).map(weight).collect(), of: Of::Bytes { width, rows } }
    }

    /// How many of `row` are not zero; none where there are no unknowns.
    pub(super) fn weight(&self, row: usize) -> usize {
        self.weights.get(row).map_or(0, |weight| *weight as usize)
    }

    /// Calls `f` with those, their places first.
    pub(super) fn each(&self, row: usize, mut f: impl FnMut(usize, u8)) {
        match &self.of {
            Of::Bits { lanes, rows } => {
                let words = rows[row * lanes..][..*lanes].as_flattened().iter().enumerate();
                words.for_each(|(at, word)| ones(*word).for_each(|bit| f(at * 64 + bit, 1)));
            }
            Of::Bytes { width, rows } => {
                let values = rows[row * width..][..*width].iter().enumerate();
                values.filter(|(_, value)| **value != 0).for_each(|(place, value)| f(place, *value));
            }
        }
    }

    /// The bits of `row` and zeroes behind; None over GF(256).
    pub(super) fn row_of_bits(&self, row: usize) -> Option<&[u64]> {
        match &self.of {
            Of::Bits { lanes, rows } => Some(rows[row * lanes..][..*lanes].as_flattened()),
            Of::Bytes { .. } => None,
        }
    }
}
