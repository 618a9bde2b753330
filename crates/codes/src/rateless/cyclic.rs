//! Parity columns for many originals: quasi-cyclic, such that no few originals add up to zero in all of them.
//!
//! The columns are in three classes of q, the originals in blocks of q. Original u of block j is in
//!
//! ```text
//!   column u of class 0,   column u + s(j) of class 1,   column u + t(j) of class 2      (modulo q)
//! ```
//!
//! so a graph is a pair (s, t) for each of its 12 blocks (variant C: 8), of which the last may lack some originals. Each
//! column has one original of each block; no two originals share two columns where all s(j) differ, all t(j), and all
//! t(j) - s(j).
//!
//! *Threes* are originals of which each two share a column: three columns do not see the three together. Four that hold two
//! threes are seen by two columns only, and one draw in 3000 on 64 unequal disks then needs more than 3 %. Columns dealt
//! at random have 250 such fours at K = 1024. Shifts come with few threes: 1 or 2 times q, and no such four.
//!
//! *Light words.* Originals that lie in every column an even number of times add up to zero in all of them. Only rows that
//! hold one of the originals itself tell such a set apart, and of 64 unequal disks a missing original is in none of them
//! with probability 0.35: a set of w is missing and unseen with about 0.15^w. Columns dealt at random have three sets of
//! six (K = 1024), and one draw in 30,000 then needs a fifth more blocks; of eight they have forty, for one in 10^5. In
//! cyclic columns the sets come q at a time, so most draws of (s, t) have none, and finding out takes one set of each q:
//! 2000 sums of originals per column instead of 10^6.
//!
//! *Finding them.* Such a set is pairs of originals that share a column of class 0. A pair is an edge between two columns
//! of class 1, and names two of class 2. Pairs that add up to zero are closed walks over class 1 whose names cancel:
//!
//! ```text
//!   4: two edges alike      6: an edge and a path of two alike      8: two paths of two alike, or two closed ones
//! ```
//!
//! alike meaning the same ends and the same names, moved by any number of columns.

use super::permutation::{below, mix, shuffle};
use rand_pcg::Pcg64Mcg;

/// Draws of shifts among which the one with the fewest light words is taken, unless one without any comes before. At
/// K = 1024 seven in eight have none up to eight; at K = 512 hardly one, but four in five have none up to six.
const TRIES: usize = 4;
/// Draws of a block's shifts, less those that are ruled out, among which the one with the fewest threes is taken.
const CANDIDATES: usize = 64;
/// No name: above every column.
const NONE: usize = usize::MAX;

/// Columns of each original: `classes` q columns for `k` originals.
pub(super) fn deal(k: usize, q: usize, generator: &mut Pcg64Mcg) -> Vec<[u16; 3]> {
    let blocks = k.div_ceil(q);
    let mut best: Option<([usize; 3], Shifts)> = None;
    for _ in 0..TRIES {
        let shifts = Shifts::draw(blocks, q, generator);
        let light = shifts.light();
        if best.as_ref().is_none_or(|(least, _)| light < *least) {
            best = Some((light, shifts));
        }
        if light == [0; 3] {
            break;
        }
    }
    let (_, shifts) = best.expect("there was a try");
    let mut places: Vec<u16> = (0..k as u16).collect();
    shuffle(&mut places, generator);
    places.into_iter().map(|place| shifts.columns(place as usize / q, place as usize % q)).collect()
}

/// (s, t) of each block.
struct Shifts {
    q: usize,
    of_block: Vec<[usize; 2]>,
}

/// A pair of originals that share a column of class 0, the first in column 0 of class 1.
struct Edge {
    /// Blocks of the two originals.
    blocks: [usize; 2],
    /// Column of class 1 that the second is in.
    end: usize,
    /// Columns of class 2.
    names: [usize; 2],
    /// Column of class 0.
    at: usize,
}

impl Shifts {
    /// Shifts such that no two originals share two columns, and few threes share three: each block rules out 3 q of the q^2
    /// pairs, so for 12 blocks there is one from q = 37 on.
    fn draw(blocks: usize, q: usize, generator: &mut Pcg64Mcg) -> Self {
        let mut of_block: Vec<[usize; 2]> = Vec::with_capacity(blocks);
        // How many threes a block with this s, this t, this s - t would make.
        let mut threes = [0; 3].map(|_| vec![0u16; q]);
        for _ in 0..blocks {
            let mut best: Option<(u16, [usize; 2])> = None;
            let mut candidates = 0;
            while candidates < CANDIDATES {
                let [s, t] = [0; 2].map(|_| below(generator, q as u32) as usize);
                let apart = |other: &[usize; 2]| {
                    other[0] != s && other[1] != t && (other[1] + q - other[0]) % q != (t + q - s) % q
                };
                if !of_block.iter().all(apart) {
                    continue;
                }
                candidates += 1;
                let made = threes[0][s] + threes[1][t] + threes[2][(s + q - t) % q];
                if best.is_none_or(|(least, _)| made < least) {
                    best = Some((made, [s, t]));
                }
                if made == 0 {
                    break;
                }
            }
            let (_, added) = best.expect("there was a candidate");
            // Blocks i and j share a column of class 0, j and l one of class 1, i and l one of class 2 where
            // s(j) - s(l) = t(i) - t(l).
            for other in &of_block {
                for [[s, t], [s_other, t_other]] in [[added, *other], [*other, added]] {
                    threes[0][(t + q - t_other + s_other) % q] += 1;
                    threes[1][(s + q - s_other + t_other) % q] += 1;
                    threes[2][(s + q - t_other) % q] += 1;
                }
            }
            of_block.push(added);
        }
        Self { q, of_block }
    }

    fn columns(&self, block: usize, at: usize) -> [u16; 3] {
        let [s, t] = self.of_block[block];
        [at, self.q + (at + s) % self.q, 2 * self.q + (at + t) % self.q].map(|column| column as u16)
    }

    /// `place + by` modulo q; neither is above it.
    fn moved(&self, place: usize, by: usize) -> usize {
        if place + by >= self.q { place + by - self.q } else { place + by }
    }

    fn edges(&self) -> Vec<Edge> {
        let blocks = 0..self.of_block.len();
        let pairs = blocks.clone().flat_map(|from| blocks.clone().map(move |to| [from, to]));
        pairs
            .filter(|[from, to]| from != to)
            .map(|blocks| {
                let [[s, t], [s_to, t_to]] = blocks.map(|block| self.of_block[block]);
                let at = self.moved(0, self.q - s);
                Edge { blocks, end: self.moved(s_to, at), names: [t, t_to].map(|t| self.moved(t, at)), at }
            })
            .collect()
    }

    /// How many sets of four, six and eight originals add up to zero, of each q that are the same but for moving.
    fn light(&self) -> [usize; 3] {
        let edges = self.edges();
        // An end and the names that do not cancel as one number: the XOR of numbers drawn for each.
        let drawn = (1..=2 * self.q as u64).map(mix).collect::<Vec<_>>();
        let (of_name, of_end) = drawn.split_at(self.q);
        let mut alike = Vec::with_capacity(edges.len() * edges.len() / 2);
        let (mut closed, mut found) = (Vec::new(), [0; 3]);
        for edge in &edges {
            // Of a path and its reverse the one that ends in the lower half; in the middle both, which only counts twice.
            let half = |end: usize| 2 * end <= self.q;
            let first = edge.names.map(|name| of_name[name]);
            if half(edge.end) {
                alike.push((of_end[edge.end] ^ first[0] ^ first[1]) << 1);
            }
            // The next pair's first original is another one of the same column.
            for next in edges.iter().filter(|next| next.blocks[0] != edge.blocks[1]) {
                let end = self.moved(edge.end, next.end);
                if end > 0 && half(end) {
                    let second = next.names.map(|name| of_name[self.moved(name, edge.end)]);
                    alike.push((of_end[end] ^ first[0] ^ first[1] ^ second[0] ^ second[1]) << 1 | 1);
                } else if end == 0 && next.blocks[1] != edge.blocks[0] {
                    // It can be walked from each of four originals: here from one of the first block there is.
                    if edge.blocks[0] <= edge.blocks[1].min(next.blocks[0]).min(next.blocks[1]) {
                        closed.push(self.standard(edge, next));
                    }
                }
            }
        }
        keep_repeated(&mut alike);
        alike.sort_unstable();
        for pair in alike.windows(2).filter(|pair| pair[0] >> 1 == pair[1] >> 1) {
            found[(pair[0] & 1) as usize + (pair[1] & 1) as usize] += 1;
        }
        // A closed path may have two originals of that block.
        closed.sort_unstable();
        closed.dedup();
        found[0] += closed.iter().filter(|(names, _)| names[0] == NONE).count();
        found[2] += closed.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
        found
    }

    /// The names that do not cancel and the originals of a closed path, moved to where the names are least.
    fn standard(&self, edge: &Edge, next: &Edge) -> ([usize; 4], [(usize, usize); 4]) {
        let [third, fourth] = next.names.map(|name| self.moved(name, edge.end));
        let names = cancelled([edge.names[0], edge.names[1], third, fourth]);
        let here = names.iter().filter(|name| **name != NONE);
        let moves = here.map(|name| {
            let by = self.q - name;
            let mut moved = names.map(|name| if name == NONE { NONE } else { self.moved(name, by) });
            moved.sort_unstable();
            (moved, by)
        });
        let (names, by) = moves.min().unwrap_or((names, 0));
        let [[a, b], [c, d]] = [edge.blocks, next.blocks];
        let next_at = self.moved(next.at, edge.end);
        let mut originals = [(a, edge.at), (b, edge.at), (c, next_at), (d, next_at)]
            .map(|(block, at)| (block, self.moved(at, by)));
        originals.sort_unstable();
        (names, originals)
    }
}

/// Leaves the numbers out whose first bits no other one has: all but one in ten, which saves sorting them.
fn keep_repeated(numbers: &mut Vec<u64>) {
    let [mut once, mut twice] = [0; 2].map(|_| vec![0u64; 1 << 11]);
    let place = |number: u64| ((number >> 53) as usize, 1 << (number >> 47 & 63));
    for number in &*numbers {
        let (word, bit) = place(*number);
        twice[word] |= once[word] & bit;
        once[word] |= bit;
    }
    numbers.retain(|number| {
        let (word, bit) = place(*number);
        twice[word] & bit != 0
    });
}

/// Names less those that come twice, ascending.
fn cancelled(mut names: [usize; 4]) -> [usize; 4] {
    names.sort_unstable();
    for first in 0..3 {
        if names[first] == names[first + 1] {
            (names[first], names[first + 1]) = (NONE, NONE);
        }
    }
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::super::permutation::generator;
    use super::*;

    /// Columns of all originals of whole blocks.
    fn all(shifts: &Shifts) -> Vec<[u16; 3]> {
        let blocks = 0..shifts.of_block.len();
        blocks.flat_map(|block| (0..shifts.q).map(move |at| shifts.columns(block, at))).collect()
    }

    /// By sums of all sets of up to four: two with the same sum are a word of at most eight.
    fn lightest(columns: &[[u16; 3]]) -> Option<usize> {
        let add =
            |sum: u128, original: usize| columns[original].iter().fold(sum, |sum, column| sum ^ 1 << column);
        let count = columns.len();
        let mut sums: Vec<(u128, usize)> = Vec::new();
        for a in 0..count {
            for b in a + 1..count {
                let two = add(add(0, a), b);
                sums.push((two, 2));
                for c in b + 1..count {
                    let three = add(two, c);
                    sums.push((three, 3));
                    sums.extend((c + 1..count).map(|d| (add(three, d), 4)));
                }
            }
        }
        sums.sort_unstable();
        let alike = sums.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        alike.map(|pair| pair[0].1 + pair[1].1).min()
    }

    #[test]
    fn light_words_are_those_that_trying_all_sets_finds() {
        let drawn = (0..24u64)
            .flat_map(|seed| [(seed, 3, 14), (seed, 5, 13)])
            .map(|(seed, blocks, q)| Shifts::draw(blocks, q, &mut generator(seed, 9, q as u64)));
        // Four that add up to zero are rare: one original of each of these blocks.
        let four = Shifts { q: 13, of_block: vec![[0, 0], [1, 5], [3, 8], [4, 3]] };
        let mut seen = std::collections::BTreeSet::new();
        for shifts in drawn.chain([four]) {
            let found = shifts.light().iter().position(|count| *count > 0).map(|at| 4 + 2 * at);
            assert_eq!(found, lightest(&all(&shifts)), "q = {}: {:?}", shifts.q, shifts.of_block);
            seen.insert(found);
        }
        assert_eq!(seen.len(), 4, "words of four, six and eight originals, and none: {seen:?}");
    }

    #[test]
    fn columns_are_whole_classes_and_no_two_originals_share_two() {
        for (k, q) in [(512, 42), (1000, 83), (1024, 85), (1024, 128), (8192, 682), (8192, 1024)] {
            let columns = deal(k, q, &mut generator(k as u64, 9, 0));
            assert_eq!(columns.len(), k);
            let mut pairs = std::collections::BTreeSet::new();
            let mut loads = vec![0; 3 * q];
            for [a, b, c] in columns {
                assert!(
                    usize::from(a) < q
                        && (q..2 * q).contains(&b.into())
                        && (2 * q..3 * q).contains(&c.into())
                );
                assert!(pairs.insert((a, b)) && pairs.insert((a, c)) && pairs.insert((b, c)), "K = {k}");
                [a, b, c].into_iter().for_each(|column| loads[usize::from(column)] += 1);
            }
            assert!(loads.iter().all(|load| [k / q, k / q + 1].contains(load)), "K = {k}: {loads:?}");
        }
    }
}
