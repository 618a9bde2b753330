//! The hidden parity columns of the mix code: S = K/4 (C: 3K/8) of them, every original in three, balanced, and no two
//! originals share two columns (no 4-cycles: without this rare graphs need 60 to 80 % extra blocks).
//!
//! From [`CLASSES_FROM`] originals on the columns are in three classes, every original in one column of each
//! ([`cyclic`]), S being rounded up to a multiple of three. The columns of a class have no original
//! in common, so columns taken from one class in a row cover as many originals as they can.
//!
//! Below, columns are dealt from shuffled decks, which keeps them balanced. Three columns hold three pairs, so
//! K <= S(S - 1)/6 is necessary; with S = K/4 that is K >= 102, and the construction here succeeds from 128 on.
//! Where no free column is left for an original, one that holds a needed pair is taken out and dealt again, as in
//! Stinson's hill climbing for triple systems. *No Pasch configuration* is made where it can be helped: four originals on
//! six columns, each column in two of them, add up to zero in every parity, so that only rows that hold one of the
//! four itself tell them apart.

use super::cyclic;
use super::permutation::{generator, shuffle};
use rand_pcg::Pcg64Mcg;

/// Columns an original is in.
pub(crate) const WEIGHT: usize = 3;
/// Attempts with fresh decks; in measurements the first one succeeded for every K tried.
const ATTEMPTS: u64 = 64;
/// Classes and cyclic columns from here on: with S = K/4 three classes leave (S/3)^2 pairs for K originals, 3.5 K of them
/// here, too few below 200.
pub(crate) const CLASSES_FROM: u32 = 512;
const STREAM_PARITIES: u64 = 2;

/// Which originals each parity column sums, and the reverse.
pub(crate) struct Parities {
    /// The three columns (0..S) of each original.
    of_original: Vec<[u16; WEIGHT]>,
    members: Vec<Vec<u16>>,
    class_ends: Vec<usize>,
}

impl Parities {
    /// `columns` of them over `k` originals; None when no 4-cycle-free graph was found.
    pub(crate) fn new(k: u32, columns: u32, seed: u64) -> Option<Self> {
        let (k, columns) = (k as usize, columns as usize);
        if k >= CLASSES_FROM as usize {
            let class = columns.div_ceil(WEIGHT);
            let mut generator = generator(seed, STREAM_PARITIES, 0);
            let of_original = cyclic::deal(k, class, &mut generator);
            let class_ends = (1..=WEIGHT).map(|classes| classes * class).collect();
            return Some(Self::of(of_original, class_ends));
        }
        let of_original = (0..ATTEMPTS).find_map(|attempt| {
            let mut generator = generator(seed, STREAM_PARITIES, attempt);
            Deal::new(k, columns).run(&mut generator)
        });
        Some(Self::of(of_original?, vec![columns]))
    }

    fn of(of_original: Vec<[u16; WEIGHT]>, class_ends: Vec<usize>) -> Self {
        let count = class_ends.last().copied().unwrap_or(0);
        let mut members = vec![Vec::with_capacity(WEIGHT * of_original.len() / count.max(1) + 2); count];
        for (original, columns) in of_original.iter().enumerate() {
            columns.iter().for_each(|column| members[usize::from(*column)].push(original as u16));
        }
        Self { of_original, members, class_ends }
    }

    /// Where the classes of columns end, ascending, the last at S; one class where there are none.
    pub(crate) fn class_ends(&self) -> &[usize] {
        &self.class_ends
    }

    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn of_original(&self, original: u32) -> &[u16; WEIGHT] {
        &self.of_original[original as usize]
    }

    pub(crate) fn members(&self, parity: usize) -> &[u16] {
        &self.members[parity]
    }
}

/// One attempt at dealing.
struct Deal {
    columns: usize,
    /// Bit `a * columns + b`: no original more may be in both a and b, since one is or they are the same.
    pairs: Vec<u64>,
    of_original: Vec<Option<[u16; WEIGHT]>>,
    held_by: Vec<Vec<u16>>,
    deck: Vec<u16>,
}

impl Deal {
    fn new(originals: usize, columns: usize) -> Self {
        let mut deal = Self {
            columns,
            pairs: vec![0; (columns * columns).div_ceil(64)],
            of_original: vec![None; originals],
            held_by: vec![Vec::with_capacity(WEIGHT * originals / columns.max(1) + 2); columns],
            deck: Vec::new(),
        };
        (0..columns as u16).for_each(|column| deal.set(column, column, true));
        deal
    }

    fn run(mut self, generator: &mut Pcg64Mcg) -> Option<Vec<[u16; WEIGHT]>> {
        let mut queue: Vec<usize> = (0..self.of_original.len()).rev().collect();
        // Each eviction frees two pairs and takes three; 64 a original never came near in measurements.
        let mut steps = 64 * queue.len();
        while let Some(original) = queue.pop() {
            steps = steps.checked_sub(1)?;
            if self.deck.len() < WEIGHT {
                self.refill(generator);
            }
            if self.place(original) {
                continue;
            }
            self.refill(generator);
            if !self.place(original) {
                queue.push(self.evict_for(original)?);
            }
        }
        self.of_original.into_iter().collect()
    }

    /// A new deck under what is left of the old one, which is dealt first.
    fn refill(&mut self, generator: &mut Pcg64Mcg) {
        let mut fresh: Vec<u16> = (0..self.columns as u16).collect();
        shuffle(&mut fresh, generator);
        fresh.append(&mut self.deck);
        self.deck = fresh;
    }

    fn place(&mut self, original: usize) -> bool {
        // A Pasch configuration is put up with rather than a deal that fails.
        self.place_where(original, true) || self.place_where(original, false)
    }

    fn place_where(&mut self, original: usize, no_pasch: bool) -> bool {
        let a = self.deck.len() - 1;
        for b in (0..a).rev().filter(|b| !self.together(self.deck[a], self.deck[*b])) {
            let fits = |c: &usize| {
                let columns = [self.deck[a], self.deck[b], self.deck[*c]];
                let apart = !self.together(columns[0], columns[2]) && !self.together(columns[1], columns[2]);
                apart && !(no_pasch && self.completes_pasch(columns))
            };
            if let Some(c) = (0..b).rev().find(fits) {
                let columns = [self.deck[a], self.deck[b], self.deck[c]];
                for place in [a, b, c] {
                    self.deck.remove(place);
                }
                self.hold(original, columns);
                return true;
            }
        }
        false
    }

    /// Places `original` on the deck's top column a and two columns b, c that another original holds; that one is
    /// returned to be dealt again, its third column back on the deck, so every column's load is as before.
    fn evict_for(&mut self, original: usize) -> Option<usize> {
        let a = self.deck.pop()?;
        let (victim, columns) = self.of_original.iter().enumerate().find_map(|(other, held)| {
            let held = (*held)?;
            let free = |n: usize| !self.together(a, held[n]);
            let (b, c) = [(0, 1), (1, 2), (0, 2)].into_iter().find(|(b, c)| free(*b) && free(*c))?;
            Some((other, [held[b], held[c], held[3 - b - c]]))
        })?;
        self.of_original[victim] = None;
        for column in columns {
            self.held_by[column as usize].retain(|original| usize::from(*original) != victim);
        }
        for (x, y) in [(0, 1), (0, 2), (1, 2)] {
            self.set(columns[x], columns[y], false);
        }
        let third = self.deck.len() / 2;
        self.deck.insert(third, columns[2]);
        self.hold(original, [a, columns[0], columns[1]]);
        Some(victim)
    }

    fn hold(&mut self, original: usize, columns: [u16; WEIGHT]) {
        for (x, y) in [(0, 1), (0, 2), (1, 2)] {
            self.set(columns[x], columns[y], true);
        }
        for column in columns {
            self.held_by[column as usize].push(original as u16);
        }
        self.of_original[original] = Some(columns);
    }

    /// Whether an original in a, b, c would make a Pasch configuration: with originals in {a, d, e}, {b, d, f} and
    /// {c, e, f}.
    fn completes_pasch(&self, [a, b, c]: [u16; WEIGHT]) -> bool {
        self.held_by[a as usize].iter().any(|original| {
            let Some(held) = self.of_original[*original as usize] else { return false };
            let [d, e] = match held {
                [first, y, z] if first == a => [y, z],
                [x, second, z] if second == a => [x, z],
                [x, y, _] => [x, y],
            };
            [(d, e), (e, d)].into_iter().any(|(d, e)| {
                self.together(b, d) && self.together(c, e) && {
                    let f = self.third(b, d);
                    f.is_some() && f == self.third(c, e)
                }
            })
        })
    }

    /// The third column of the original in both, if there is one.
    fn third(&self, a: u16, b: u16) -> Option<u16> {
        self.held_by[a as usize].iter().find_map(|original| {
            let held = self.of_original[*original as usize]?;
            held.contains(&b).then(|| held[0] ^ held[1] ^ held[2] ^ a ^ b)
        })
    }

    fn together(&self, a: u16, b: u16) -> bool {
        let bit = a as usize * self.columns + b as usize;
        self.pairs[bit / 64] >> (bit % 64) & 1 == 1
    }

    fn set(&mut self, a: u16, b: u16, together: bool) {
        for (a, b) in [(a, b), (b, a)] {
            let bit = a as usize * self.columns + b as usize;
            let mask = 1 << (bit % 64);
            if together { self.pairs[bit / 64] |= mask } else { self.pairs[bit / 64] &= !mask }
        }
    }
}
