//! Loss patterns of the rank test: which there are, which are tested, and how far each has read.

use super::{Judge, PATTERNS_MAX, PATTERNS_SAMPLED};
use crate::BlockIndex;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, RankTracker};

/// Pushes that one confirmation pays for, per pattern. A pattern reads a block for every block confirmed; more than
/// one lets patterns that were made late catch up well before counting is met.
const PUSHES_PER_CONFIRMATION: usize = 4;

/// One loss pattern and the rank of what it leaves.
///
/// ```text
///   reading ──(rank = K)──▶ decoded
/// ```
pub(super) struct Pattern {
    lost: Vec<u32>,
    /// Position in the log of confirmations up to which survivors were pushed.
    read: usize,
    /// Absent before the first push and, to free its memory, once rank K was reached.
    tracker: Option<RankTracker>,
    decoded: bool,
}

impl Pattern {
    pub(super) fn new(mut lost: Vec<u32>) -> Self {
        lost.sort_unstable();
        Self { lost, read: 0, tracker: None, decoded: false }
    }

    pub(super) fn lost(&self) -> &[u32] {
        &self.lost
    }

    /// Blocks that it misses at least; zero when what it leaves decodes.
    pub(super) fn missing(&self, code: &Code) -> u32 {
        if self.decoded { 0 } else { self.tracker.as_ref().map_or(code.k(), RankTracker::missing).max(1) }
    }

    /// Pushes at most `budget` survivors further; gives the pushes made.
    pub(super) fn read_on(&mut self, code: &Code, log: &[(u32, BlockIndex)], budget: u32) -> u32 {
        let mut pushed = 0;
        if self.decoded {
            return pushed;
        }
        let tracker = self.tracker.get_or_insert_with(|| RankTracker::new(code));
        while pushed < budget && self.read < log.len() {
            let (domain, index) = log[self.read];
            self.read += 1;
            if self.lost.binary_search(&domain).is_ok() {
                continue;
            }
            tracker.push(index);
            pushed += 1;
            if tracker.missing() == 0 {
                self.decoded = true;
                self.tracker = None;
                break;
            }
        }
        pushed
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
    /// Lets every pattern read a little further; the tests begin once half of what decodes is confirmed, when the
    /// domains that take part are known.
    pub(super) fn test_some(&mut self) {
        if self.log.len() < self.code.k() as usize / 2 {
            return;
        }
        self.cover();
        let mut budget = PUSHES_PER_CONFIRMATION * self.patterns.len();
        for _ in 0..self.patterns.len() {
            self.turn = (self.turn + 1) % self.patterns.len();
            let step = u32::try_from(budget.min(PUSHES_PER_CONFIRMATION)).expect("at most a few");
            budget -= self.patterns[self.turn].read_on(&self.code, &self.log, step) as usize;
        }
    }

    /// Makes patterns for domains that were occupied since the last time. Patterns stay valid as domains are added.
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
