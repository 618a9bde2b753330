//! What several tests use: a seed, payload, arrivals, and GF(256) from its definition.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part of what they share")]

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, Kind};

pub(crate) const LT_HALF: Kind = Kind::Lt { c: 1.0, delta: 0.5 };
pub(crate) const LT_TENTH: Kind = Kind::Lt { c: 1.0, delta: 0.1 };

/// The generator of a test: from STEADFAST_SEED when set, else fixed; printed either way.
#[allow(clippy::disallowed_methods, reason = "a test may be told its seed")]
pub(crate) fn random() -> Pcg64Mcg {
    let seed = std::env::var("STEADFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20261120);
    println!("STEADFAST_SEED={seed}");
    Pcg64Mcg::seed_from_u64(seed)
}

pub(crate) fn shuffled(mut items: Vec<u32>, random: &mut Pcg64Mcg) -> Vec<u32> {
    for last in (1..items.len()).rev() {
        items.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
    items
}

pub(crate) fn payload(k: u32, len: usize, random: &mut Pcg64Mcg) -> Vec<Vec<u8>> {
    (0..k)
        .map(|_| {
            let mut block = vec![0; len];
            random.fill_bytes(&mut block);
            block
        })
        .collect()
}

pub(crate) fn encode(code: &Code, indices: &[u32], originals: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
    let mut blocks = vec![vec![0xee; originals[0].len()]; indices.len()];
    let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(indices, &views, &mut out).unwrap();
    blocks
}

/// The field by tables of its own, from the definition: x^8 = x^4 + x^3 + x^2 + 1.
pub(crate) struct Field {
    products: Vec<u8>,
    inverses: [u8; 256],
}

impl Field {
    pub(crate) fn new() -> Self {
        let mut field = Field { products: vec![0; 65536], inverses: [0; 256] };
        for a in 0..256usize {
            for b in 0..256usize {
                let mut sum = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0, |sum, bit| sum ^ a << bit);
                for bit in (8..15).rev() {
                    if sum >> bit & 1 == 1 {
                        sum ^= 0x11d << (bit - 8);
                    }
                }
                field.products[a * 256 + b] = sum as u8;
                if sum == 1 {
                    field.inverses[a] = b as u8;
                }
            }
        }
        field
    }

    pub(crate) fn mul(&self, a: u8, b: u8) -> u8 {
        self.products[a as usize * 256 + b as usize]
    }

    pub(crate) fn inverse(&self, a: u8) -> u8 {
        self.inverses[a as usize]
    }

    /// The combination of `originals` that `row` names.
    pub(crate) fn combine(&self, row: &[u8], originals: &[Vec<u8>]) -> Vec<u8> {
        let mut sum = vec![0; originals[0].len()];
        for (c, original) in row.iter().zip(originals).filter(|(c, _)| **c != 0) {
            sum.iter_mut().zip(original).for_each(|(a, b)| *a ^= self.mul(*c, *b));
        }
        sum
    }
}

/// Gaussian elimination on the whole generator matrix with payload, one row at a time.
pub(crate) struct Naive {
    field: Field,
    /// By pivot column: coefficients and payload, zero before the pivot, one at it.
    rows: Vec<Option<(Vec<u8>, Vec<u8>)>>,
}

impl Naive {
    pub(crate) fn new(k: u32) -> Self {
        Naive { field: Field::new(), rows: vec![None; k as usize] }
    }

    pub(crate) fn push(&mut self, mut row: Vec<u8>, mut block: Vec<u8>) -> bool {
        for column in 0..row.len() {
            let factor = row[column];
            if factor == 0 {
                continue;
            }
            let Some((echelon, payload)) = &self.rows[column] else {
                let scale = self.field.inverse(factor);
                row.iter_mut().chain(&mut block).for_each(|value| *value = self.field.mul(scale, *value));
                self.rows[column] = Some((row, block));
                return true;
            };
            for (a, b) in row[column..].iter_mut().zip(&echelon[column..]) {
                *a ^= self.field.mul(factor, *b);
            }
            block.iter_mut().zip(payload).for_each(|(a, b)| *a ^= self.field.mul(factor, *b));
        }
        false
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rows.iter().flatten().count() as u32
    }

    pub(crate) fn solve(self) -> Vec<Vec<u8>> {
        let mut originals: Vec<Vec<u8>> = Vec::new();
        for row in self.rows.into_iter().rev() {
            let (row, mut block) = row.unwrap();
            for (c, known) in row.iter().rev().zip(&originals) {
                block.iter_mut().zip(known).for_each(|(a, b)| *a ^= self.field.mul(*c, *b));
            }
            originals.push(block);
        }
        originals.reverse();
        originals
    }
}
