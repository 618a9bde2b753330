//! Row-diagonal parity (Corbett et al., "Row-Diagonal Parity for Double Disk Failure Correction", FAST 2004): two
//! parity chunks, XOR alone, and the fewest XORs there can be when k = p - 1 or p - 2.
//!
//! p is a prime above k; a chunk is p - 1 packets; columns k to p - 2 are imagined zeros, column p - 1 is the row
//! parity P. Packet (row, column) lies on diagonal (row + column) mod p; diagonal p - 1 is not stored.
//!
//! ```text
//!   p = 5       d0 d1 d2 d3 P  | Q        P[row] = sum over data of the row
//!   row 0        0  1  2  3  4 | 0        Q[diagonal] = sum over data *and P* of the diagonal
//!   row 1        1  2  3  4  0 | 1
//!   row 2        2  3  4  0  1 | 2
//!   row 3        3  4  0  1  2 | 3
//! ```
//!
//! Whatever two chunks are lost, some row or diagonal lacks only one packet, and finding it leaves another such one
//! (section 4 of the paper): decoding is peeling.

use super::MdsError;
use super::packets::{Sum, Unit};
use crate::kernel::double::PRIMES;

/// The smallest prime above k, at least 3.
pub(super) fn prime(k: usize, m: usize) -> Result<usize, MdsError> {
    if k == 0 || m != 2 || k > super::CHUNKS_MAX - 2 {
        return Err(MdsError::Parameters { kind: super::Kind::Rdp, k, m });
    }
    let is_prime = |n: &usize| (2..*n).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    Ok((k.max(2) + 1..).find(is_prime).expect("there is a prime above every number"))
}

/// Whether the kernel of two parities has this prime: up to 17, which is k up to 16.
pub(super) fn has_kernel(prime: usize) -> bool {
    PRIMES.contains(&prime)
}

/// The sums that are zero, as (chunk, packet): each row with P, each stored diagonal with Q.
fn equations(k: usize, p: usize) -> Vec<Vec<[usize; 2]>> {
    let rows = (0..p - 1).map(|row| (0..=k).map(|chunk| [chunk, row]).collect());
    let diagonals = (0..p - 1).map(|diagonal| {
        let columns = (0..k).map(|chunk| [chunk, chunk]).chain([[k, p - 1]]);
        let on = columns.map(|[chunk, column]| [chunk, (diagonal + p - column) % p]);
        on.filter(|[_, row]| *row < p - 1).chain([[k + 1, diagonal]]).collect()
    });
    rows.chain(diagonals).collect()
}

/// Sums for all packets of chunks that `unit` does not call sources, each over ones known by then.
pub(super) fn sums(k: usize, p: usize, unit: impl Fn(usize, usize) -> Unit) -> Vec<Sum> {
    let equations = equations(k, p);
    let index = |[chunk, packet]: [usize; 2]| chunk * (p - 1) + packet;
    let mut known = vec![false; (k + 2) * (p - 1)];
    let mut contain = vec![Vec::new(); known.len()];
    for (number, equation) in equations.iter().enumerate() {
        for &[chunk, packet] in equation {
            known[index([chunk, packet])] = matches!(unit(chunk, packet), Unit::Source(..));
            contain[index([chunk, packet])].push(number);
        }
    }
    let mut lacking: Vec<usize> = equations
        .iter()
        .map(|equation| equation.iter().filter(|place| !known[index(**place)]).count())
        .collect();
    let mut ready: Vec<usize> = (0..equations.len()).rev().filter(|number| lacking[*number] == 1).collect();
    let mut sums = Vec::new();
    while let Some(number) = ready.pop() {
        let equation = &equations[number];
        let Some(found) = equation.iter().find(|place| !known[index(**place)]) else { continue };
        let terms = equation.iter().filter(|place| *place != found);
        sums.push((unit(found[0], found[1]), terms.map(|place| unit(place[0], place[1])).collect()));
        known[index(*found)] = true;
        for &other in &contain[index(*found)] {
            lacking[other] -= 1;
            if lacking[other] == 1 {
                ready.push(other);
            }
        }
    }
    assert!(known.iter().all(|known| *known), "row-diagonal parity peels when at most two chunks are lost");
    sums
}

/// The packets of the diagonal parity in which packet `row` of data chunk `data` counts: on its own diagonal, and on that
/// of its row's parity.
pub(super) fn touched(p: usize, data: usize, row: usize) -> impl Iterator<Item = usize> {
    [(row + data) % p, (row + p - 1) % p].into_iter().filter(move |diagonal| *diagonal < p - 1)
}
