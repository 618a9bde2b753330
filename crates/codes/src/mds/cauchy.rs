//! Cauchy-Reed-Solomon: the arithmetic of GF(2^8) as XORs of packets (Blömer et al., "An XOR-Based Erasure-Resilient
//! Coding Scheme", 1995).
//!
//! A chunk is 8 packets, bit a of "elements" that lie across them; multiplying by a constant is an 8 by 8 bit matrix
//! over the packets. The coefficients are chosen so that these matrices have few ones (Plank and Xu, "Optimizing
//! Cauchy Reed-Solomon Codes for Fault-Tolerant Network Storage Applications", NCA 2006):
//!
//! - m = 1: all ones.
//! - m = 2: ones, then powers of x; two rows need only be distinct in every column. Elements of fewer ones would do with
//!   fewer XORs in a schedule, but sums of powers need no schedule at all: Horner's rule takes two XORs a word of data
//!   whatever k is, and packets of one line of the caches ([`kernel::double`](crate::kernel::double)).
//! - otherwise: a Cauchy matrix with columns scaled so that the first row is ones and each other row divided by
//!   whichever element leaves fewest ones, its points y chosen for few ones given points x; the best of several x.

use super::packets::{Sum, Unit};
use super::{CHUNKS_MAX, Kind, MdsError};
use crate::kernel::gf256::{inverse, mul};
use crate::kernel::matrix::Matrix;

/// Packets in a chunk: the bits of an element.
pub(super) const PACKETS: usize = 8;
/// Sets of points tried; more than some dozens gain under 1 % (picked by eye).
const TRIES: u64 = 32;

/// x to this power.
pub(super) fn power(exponent: usize) -> u8 {
    (0..exponent % 255).fold(1, |product, _| mul(product, 2))
}

/// Ones in the bit matrix of multiplication by `c`.
fn ones(c: u8) -> u32 {
    (0..PACKETS).map(|bit| mul(c, 1 << bit).count_ones()).sum()
}

/// The generator's parity rows.
pub(super) fn generator(k: usize, m: usize) -> Result<Matrix, MdsError> {
    if k == 0 || m == 0 || k.saturating_add(m) > CHUNKS_MAX {
        return Err(MdsError::Parameters { kind: Kind::Cauchy, k, m });
    }
    if m <= 2 {
        return Ok(Matrix::new(m, k, |parity, data| if parity == 0 { 1 } else { power(data) }));
    }
    // What a scale leaves of each element: tens of millions are looked up for a large code.
    let scaled: Vec<[u8; 256]> =
        (0..=255).map(|by| std::array::from_fn(|element| ones(mul(by, element as u8)) as u8)).collect();
    let tries = (0..TRIES).map(|seed| attempt(k, m, seed, &scaled));
    let (_, rows) = tries.min_by_key(|(weight, _)| *weight).expect("there is at least one try");
    Ok(Matrix::new(m, k, |parity, data| rows[parity][data]))
}

/// Rows from one set of points x, and their ones; `scaled[by][element]` is the ones of their product.
fn attempt(k: usize, m: usize, seed: u64, scaled: &[[u8; 256]]) -> (u32, Vec<Vec<u8>>) {
    // The first try takes 0..m; the others shuffle by a multiplicative generator.
    let mut points: Vec<u8> = (0..=255).collect();
    let mut state = seed;
    for at in (1..points.len()).rev().take_while(|_| seed > 0) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        points.swap(at, (state >> 33) as usize % (at + 1));
    }
    let (x, rest) = points.split_at(m);
    let mut scales = vec![1u8; m];
    let entry = |y: u8, row: usize| mul(x[0] ^ y, inverse(x[row] ^ y));
    let mut chosen = rest.to_vec();
    // Columns for the scales, scales for the columns; settles in a round or two.
    for _ in 0..2 {
        let mut all = rest.to_vec();
        all.sort_by_cached_key(|y| {
            let column = scales.iter().enumerate();
            let weight =
                column.map(|(row, scale)| u32::from(scaled[*scale as usize][entry(*y, row) as usize]));
            (weight.sum::<u32>(), *y)
        });
        all.truncate(k);
        chosen = all;
        for (row, scale) in scales.iter_mut().enumerate() {
            let entries: Vec<u8> = chosen.iter().map(|y| entry(*y, row)).collect();
            let weight = |by: u8| -> u32 {
                let scaled = &scaled[by as usize];
                entries.iter().map(|element| u32::from(scaled[*element as usize])).sum()
            };
            *scale = (1..=255).min_by_key(|by| weight(*by)).expect("there are elements");
        }
    }
    let row = |row: usize| chosen.iter().map(|y| mul(scales[row], entry(*y, row))).collect();
    let rows: Vec<Vec<u8>> = (0..m).map(row).collect();
    (rows.iter().flatten().map(|element| u32::from(scaled[1][*element as usize])).sum(), rows)
}

/// The sums of a product with this matrix, from the sources at `used` in the caller's list.
pub(super) fn sums(matrix: &Matrix, used: &[usize]) -> Vec<Sum> {
    let rows = (0..matrix.outputs()).flat_map(|output| (0..PACKETS).map(move |bit| (output, bit)));
    rows.map(|(output, bit)| {
        let sources = (0..matrix.sources()).flat_map(|source| {
            let c = matrix.coefficient(output, source);
            let set = (0..PACKETS).filter(move |power| mul(c, 1 << power) & (1 << bit) != 0);
            set.map(move |power| Unit::Source(used[source], power))
        });
        (Unit::Output(output, bit), sources.collect())
    })
    .collect()
}

/// The packets of a parity chunk in which packet `packet` of a data chunk with this coefficient counts.
pub(super) fn touched(coefficient: u8, packet: usize) -> impl Iterator<Item = usize> {
    let product = mul(coefficient, 1 << packet);
    (0..PACKETS).filter(move |bit| product & (1 << bit) != 0)
}
