//! The loss patterns of the rank test: which are tested, and which of them are known to decode.

use super::{Judge, PATTERNS_MAX, PATTERNS_SAMPLED};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::LossRanks;

/// Patterns that one confirmation pays for in the early round: some 0.1 to 1 ms, and several hundred patterns between
/// 16 domains' survivors being enough and their total.
const PATTERNS_PER_CONFIRMATION: usize = 4;

/// The tests that are made while confirmations still come.
pub(super) struct Early {
    /// Over the blocks confirmed when the round began.
    ranks: LossRanks<Vec<u32>>,
    /// Patterns tested, from the first.
    tested: usize,
}

/// One loss pattern and what its last test gave.
pub(super) struct Pattern {
    /// The domains lost, ascending.
    pub(super) lost: Vec<u32>,
    /// Blocks that what it leaves misses at least; zero once that decodes.
    pub(super) missing: u32,
}

impl Pattern {
    fn new(mut lost: Vec<u32>) -> Self {
        lost.sort_unstable();
        // Not tested yet: as good as nothing there.
        Self { lost, missing: u32::MAX }
    }

    /// Whether its last test failed.
    fn is_short(&self) -> bool {
        self.missing > 0 && self.missing < u32::MAX
    }

    /// The domains lost as positions.
    fn groups(&self) -> Vec<usize> {
        self.lost.iter().map(|&domain| domain as usize).collect()
    }
}

/// How many patterns of `tolerate` among `domains` there are, up to `u64::MAX`.
pub(super) fn combinations(domains: usize, tolerate: u32) -> u64 {
    let (n, f) = (domains as u128, u128::from(tolerate));
    if f >= n {
        return 1;
    }
    let mut product: u128 = 1;
    for step in 0..f {
        // Exact: the product of any i + 1 consecutive numbers divides by (i + 1)!.
        product = product * (n - step) / (step + 1);
        if product > u128::from(u64::MAX) {
            return u64::MAX;
        }
    }
    u64::try_from(product).expect("checked in every step")
}

impl Judge {
    /// Tests a few patterns on the blocks that were here when the early round began; the round begins once there are
    /// enough of them for nearly every pattern to decode.
    pub(super) fn test_some(&mut self) {
        let Some(early) = &self.early else {
            if self.confirmed() >= self.early_from && self.survivors() >= self.early_from {
                self.cover();
                self.early = Some(Early { ranks: LossRanks::new(&self.code, self.held.clone()), tested: 0 });
            }
            return;
        };
        let end = (early.tested + PATTERNS_PER_CONFIRMATION).min(self.patterns.len());
        for pattern in &mut self.patterns[early.tested..end] {
            pattern.missing = early.ranks.missing_without(&pattern.groups());
        }
        self.early = Some(Early { tested: end, ..self.early.take().expect("as above") });
    }

    /// Tests every pattern that is not known to decode, all on the work that they share.
    pub(super) fn test_all(&mut self) {
        if self.patterns.iter().all(|pattern| pattern.missing == 0) {
            return;
        }
        let held: Vec<&[u32]> = self.held.iter().map(Vec::as_slice).collect();
        let ranks = LossRanks::new(&self.code, held);
        for pattern in self.patterns.iter_mut().filter(|pattern| pattern.missing > 0) {
            pattern.missing = ranks.missing_without(&pattern.groups());
        }
    }

    /// Makes patterns for domains that were occupied since the last time. Results stay valid as domains are added.
    pub(super) fn cover(&mut self) {
        let occupied = self.loads.iter().filter(|&&load| load > 0).count();
        if occupied == self.covered.len() && !self.patterns.is_empty() {
            return;
        }
        let domains =
            (0..self.loads.len() as u32).filter(|&domain| self.loads[domain as usize] > 0).collect();
        let fresh: Vec<u32> = std::mem::replace(&mut self.covered, domains);
        let f = self.need.tolerate as usize;
        if self.covered.len() <= f {
            // Everything is lost: part 2 of the rule refuses long before a rank test.
            self.patterns = vec![Pattern::new(self.covered.clone())];
            return;
        }
        let known = |patterns: &[Pattern], lost: &[u32]| patterns.iter().any(|pattern| pattern.lost == lost);
        self.patterns.retain(|pattern| pattern.lost.len() == f);
        if combinations(self.covered.len(), self.need.tolerate) <= PATTERNS_MAX.into() {
            let covered = self.covered.clone();
            each_choice(&covered, f, &mut |lost| {
                // A pattern among domains that were covered before exists already.
                let old = !fresh.is_empty() && lost.iter().all(|domain| fresh.binary_search(domain).is_ok());
                if !old || !known(&self.patterns, lost) {
                    self.patterns.push(Pattern::new(lost.to_vec()));
                }
            });
            return;
        }
        // Drawn anew from all domains: of those drawn before none has a domain that came since, and what the sample says of the
        // patterns that are not tested holds only where each was as likely as any other.
        let before = std::mem::take(&mut self.patterns);
        let mut random = Pcg64Mcg::new(u128::from(self.seed) << 64 | 0xcafe_f00d_d15e_a5e5);
        while self.patterns.len() < PATTERNS_SAMPLED as usize {
            let mut pool = self.covered.clone();
            let mut lost: Vec<u32> =
                (0..f).map(|_| pool.swap_remove((random.next_u64() % pool.len() as u64) as usize)).collect();
            lost.sort_unstable();
            if !known(&self.patterns, &lost) {
                self.patterns.push(Pattern::new(lost));
            }
        }
        // What was found out stays so: that one decodes, and, as long as nothing else is shown, that one does not.
        for old in before {
            match self.patterns.iter_mut().find(|pattern| pattern.lost == old.lost) {
                Some(drawn) => drawn.missing = old.missing,
                None if old.is_short() => self.patterns.push(old),
                None => {}
            }
        }
    }

    /// Where patterns are sampled: adds those of the heaviest domains as they now stand, which only the end shows.
    pub(super) fn cover_heaviest(&mut self) {
        let f = self.need.tolerate as usize;
        if combinations(self.covered.len(), self.need.tolerate) <= PATTERNS_MAX.into() {
            return;
        }
        let mut by_load = self.covered.clone();
        by_load.sort_by_key(|&domain| (std::cmp::Reverse(self.loads[domain as usize]), domain));
        // The f heaviest, and each of them exchanged for the next heaviest: the f + 1 patterns that leave least.
        by_load.truncate(f + 1);
        by_load.sort_unstable();
        for spared in 0..by_load.len() {
            let mut lost = by_load.clone();
            lost.remove(spared);
            if !self.patterns.iter().any(|pattern| pattern.lost == lost) {
                self.patterns.push(Pattern::new(lost));
            }
        }
    }
}

/// Calls `visit` with every choice of `count` of `from`, in lexicographic order.
fn each_choice(from: &[u32], count: usize, visit: &mut impl FnMut(&[u32])) {
    fn go(from: &[u32], count: usize, chosen: &mut Vec<u32>, visit: &mut impl FnMut(&[u32])) {
        if count == 0 {
            visit(chosen);
            return;
        }
        for first in 0..=from.len().saturating_sub(count) {
            if let Some(&domain) = from.get(first) {
                chosen.push(domain);
                go(&from[first + 1..], count - 1, chosen, visit);
                chosen.pop();
            }
        }
    }
    go(from, count, &mut Vec::new(), visit);
}
