//! The hidden parity columns of the mix code: S = K/4 of them, every original in three, balanced, and no two
//! originals share two columns (no 4-cycles: without this rare graphs need 60 to 80 % extra blocks).
//!
//! Three columns hold three pairs, so K <= S(S - 1)/6 is necessary; with S = K/4 that is K >= 102, and the
//! construction here succeeds from 128 on. Columns are dealt from shuffled decks, which keeps them balanced; where
//! no free column is left for an original, one that holds a needed pair is taken out and dealt again, as in
//! Stinson's hill climbing for triple systems.

use super::permutation::{generator, shuffle};
use rand_pcg::Pcg64Mcg;

/// Columns an original is in.
pub(crate) const WEIGHT: usize = 3;
/// Attempts with fresh decks; in measurements the first one succeeded for every K tried.
const ATTEMPTS: u64 = 64;
const STREAM_PARITIES: u64 = 2;

/// Which originals each parity column sums, and the reverse.
pub(crate) struct Parities {
    /// The three columns (0..S) of each original.
    of_original: Vec<[u16; WEIGHT]>,
    members: Vec<Vec<u16>>,
}

impl Parities {
    /// S for K originals.
    pub(crate) fn count_for(k: u32) -> u32 {
        k / 4
    }

    /// None when no 4-cycle-free graph was found.
    pub(crate) fn new(k: u32, seed: u64) -> Option<Self> {
        (0..ATTEMPTS).find_map(|attempt| {
            let mut generator = generator(seed, STREAM_PARITIES, attempt);
            Deal::new(k as usize, Self::count_for(k) as usize).run(&mut generator)
        })
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
    /// Bit `a * columns + b`: some original is in both a and b (a = b always set).
    pairs: Vec<u64>,
    of_original: Vec<Option<[u16; WEIGHT]>>,
    deck: Vec<u16>,
}

impl Deal {
    fn new(originals: usize, columns: usize) -> Self {
        let mut deal = Self {
            columns,
            pairs: vec![0; (columns * columns).div_ceil(64)],
            of_original: vec![None; originals],
            deck: Vec::new(),
        };
        for column in 0..columns as u16 {
            deal.set(column, column, true);
        }
        deal
    }

    fn run(mut self, generator: &mut Pcg64Mcg) -> Option<Parities> {
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
        let of_original: Vec<_> = self.of_original.into_iter().collect::<Option<_>>()?;
        let mut members = vec![Vec::new(); self.columns];
        for (original, columns) in of_original.iter().enumerate() {
            for column in columns {
                members[*column as usize].push(original as u16);
            }
        }
        Some(Parities { of_original, members })
    }

    /// A new deck under what is left of the old one, which is dealt first.
    fn refill(&mut self, generator: &mut Pcg64Mcg) {
        let mut fresh: Vec<u16> = (0..self.columns as u16).collect();
        shuffle(&mut fresh, generator);
        fresh.append(&mut self.deck);
        self.deck = fresh;
    }

    fn place(&mut self, original: usize) -> bool {
        let a = self.deck.len() - 1;
        for b in (0..a).rev().filter(|b| !self.together(self.deck[a], self.deck[*b])) {
            let fits = |c: &usize| {
                !self.together(self.deck[a], self.deck[*c]) && !self.together(self.deck[b], self.deck[*c])
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
        self.of_original[original] = Some(columns);
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
