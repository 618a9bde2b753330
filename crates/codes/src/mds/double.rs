//! Codes of two parities in one pass: what to read and how to finish, for Cauchy-Reed-Solomon with the rows 1 and x^i
//! and for row-diagonal parity. See [`kernel::double`](crate::kernel::double) for the sums S and T.
//!
//! With data a (and b) lost, S of all else that is there and P, T of all else that is there and Q:
//!
//! ```text
//!   lost    from       Cauchy                                          row-diagonal
//!   a       P          a = S                                           a = S
//!   a       Q          a = x^-a T,  P = S + x^-a T                     chain of a and P
//!   a, b    P, Q       a = (x^b S + T) / (x^a + x^b),  b = S + a       chain of a and b
//!   a, Q    P          a = S,  Q = T + x^a S                           the same, S moved round by a
//! ```

use super::cauchy;
use crate::kernel::double::{Column, Combination, Double, Finish, PRIMES, Ring};
use crate::kernel::gf256::{inverse, mul};

/// How to compute what is wanted, where that is in one pass.
#[derive(Clone, Debug)]
pub(super) enum Pass {
    /// The XOR of the sources at these places.
    Sum(Vec<usize>),
    /// Both sums.
    Double(Double),
}

/// Places of chunks in the caller's lists.
struct Places {
    /// By chunk.
    available: Vec<Option<usize>>,
    wanted: Vec<Option<usize>>,
}

impl Places {
    /// `None` where a wanted chunk is there already, or nothing is wanted.
    fn new(chunks: usize, available: &[usize], wanted: &[usize]) -> Option<Self> {
        let place = |list: &[usize]| -> Vec<Option<usize>> {
            (0..chunks).map(|chunk| list.iter().position(|other| *other == chunk)).collect()
        };
        let fine = !wanted.is_empty() && wanted.iter().all(|chunk| !available.contains(chunk));
        fine.then(|| Self { available: place(available), wanted: place(wanted) })
    }

    /// Those of `chunks` that are not there.
    fn lost(&self, chunks: std::ops::Range<usize>) -> Vec<usize> {
        chunks.filter(|chunk| self.available[*chunk].is_none()).collect()
    }

    fn columns(&self, chunks: std::ops::Range<usize>, weight: impl Fn(usize) -> usize) -> Vec<Column> {
        let there = chunks.filter_map(|chunk| self.available[chunk].map(|source| (chunk, source)));
        there.map(|(chunk, source)| Column { source, weight: weight(chunk) }).collect()
    }
}

/// The way to `wanted` from `available` in Cauchy-Reed-Solomon code k + 2.
pub(super) fn cauchy(k: usize, available: &[usize], wanted: &[usize]) -> Option<Pass> {
    let places = Places::new(k + 2, available, wanted)?;
    let [p, q] = [places.available[k], places.available[k + 1]];
    let lost = places.lost(0..k);
    // Row 1 alone.
    if lost.len() + usize::from(p.is_none()) == 1 && places.wanted[k + 1].is_none() {
        return Some(Pass::Sum(places.available[..=k].iter().copied().flatten().collect()));
    }
    let combination = |chunk: usize, a, b| places.wanted[chunk].map(|output| Combination { output, a, b });
    let power = cauchy::power;
    let (others, pair) = match *lost {
        [] => ([None, None], [combination(k, 1, 0), combination(k + 1, 0, 1)]),
        [a] if p.is_some() => ([p, None], [combination(a, 1, 0), combination(k + 1, power(a), 1)]),
        [a] => {
            let back = inverse(power(a));
            ([None, q], [combination(a, 0, back), combination(k, 1, back)])
        }
        [a, b] => {
            let back = inverse(power(a) ^ power(b));
            let first = combination(a, mul(power(b), back), back);
            ([p, q], [first, combination(b, mul(power(a), back), back)])
        }
        _ => unreachable!("k of k + 2 chunks are there"),
    };
    let columns = places.columns(0..k, |chunk| chunk);
    Some(Pass::Double(Double::new(Ring::Field, columns, others, Finish::Combine(pair))))
}

/// The way to `wanted` from `available` in row-diagonal parity of k data chunks and prime p; `None` where the kernels do
/// not have the prime either.
pub(super) fn rdp(k: usize, p: usize, available: &[usize], wanted: &[usize]) -> Option<Pass> {
    let places = Places::new(k + 2, available, wanted)?;
    // The row parity is column p - 1.
    let column = |chunk: usize| if chunk == k { p - 1 } else { chunk };
    let lost = places.lost(0..k + 1);
    let [weighted, q] = [places.wanted[k + 1], places.available[k + 1]];
    if lost.len() == 1 && weighted.is_none() {
        return Some(Pass::Sum(places.available[..=k].iter().copied().flatten().collect()));
    }
    if !PRIMES.contains(&p) {
        return None;
    }
    let (last, finish) = match *lost {
        // S is zero then, whichever column it is taken for.
        [] => (None, Finish::Column { column: p - 1, sum: None, weighted }),
        [one] => (None, Finish::Column { column: column(one), sum: places.wanted[one], weighted }),
        [x, y] => {
            let outputs = [places.wanted[x], places.wanted[y]];
            (q, Finish::Chain { columns: [column(x), column(y)], outputs })
        }
        _ => unreachable!("k of k + 2 chunks are there"),
    };
    let columns = places.columns(0..k + 1, column);
    Some(Pass::Double(Double::new(Ring::Cyclic(p), columns, [None, last], finish)))
}

/// What changing data chunk `data` adds to Q, or to `both` P and Q, over whole blocks: sources are the old and the new
/// bytes.
pub(super) fn update(ring: Ring, data: usize, both: bool) -> Double {
    // S is the change, T of no use.
    let columns = [0, 1].map(|source| Column { source, weight: source });
    let (sum, weighted) = (both.then_some(0), usize::from(both));
    let finish = match ring {
        Ring::Field => Finish::Combine([
            sum.map(|output| Combination { output, a: 1, b: 0 }),
            Some(Combination { output: weighted, a: cauchy::power(data), b: 0 }),
        ]),
        Ring::Cyclic(_) => Finish::Update { column: data, sum, weighted },
    };
    Double::new(ring, columns.to_vec(), [None, None], finish)
}
