//! The one function that decides whether confirmed blocks may be acknowledged. Writes, repair, status and the
//! simulator ask the same [`Judge`].
//!
//! The rule, for K originals, redundancy D and any f failure domains lost:
//!
//! 1. N is at least (1 + D) K (dissertation §5.3.2);
//! 2. N less the f largest domains is at least K and the code's guard;
//! 3. a *rank test* passes: what each loss pattern leaves decodes. Every pattern is tested when there are at most
//!    [`PATTERNS_MAX`]; otherwise the heaviest and seeded others, and [`Verdict::residual_share`] states what is left.
//!
//! Counting alone is not durability for a sparse code: 1 and 2 are cheap and asked first, 3 has the last word.
//!
//! Invariants: blocks are only ever added, so a pattern that once decoded stays decoded and is not tested again; an
//! index counts once, wherever it was confirmed; a pattern of fewer domains than f is never worse than one of f, so only
//! patterns of f occupied domains are tested. Where few originals are stored all patterns
//! of a round share their work ([`LossRanks`](steadfast_codes::rateless::LossRanks)). An early round is spread over the confirmations from when part 2 nearly holds,
//! which with redundancy to spare is well before part 1 does: the last confirmation then finds little left to test.
//!
//! Left out: how the missing blocks are made (`write`), and losing a confirmed block again (make a new judge).

mod patterns;
#[cfg(test)]
mod tests;

use crate::{BlockIndex, DeviceId, IndexRanges, layout::SegmentLayout, policy::Policy};
use patterns::{Early, Pattern};
use steadfast_codes::rateless::{Code, CodeError, Kind};

/// Loss patterns up to which every one is tested. Measured at K = 1024 and N = 1536 (a segment of
/// 1 GiB): 6 ms for the 120 of 16 domains and f = 2, 45 ms for the 220 of 12 domains and f = 3.
pub const PATTERNS_MAX: u32 = 256;
/// Patterns tested where there are more than [`PATTERNS_MAX`]: the heaviest, then seeded others.
pub const PATTERNS_SAMPLED: u32 = 128;

/// What a segment must withstand before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// D: blocks stored beyond K, as a share of K. Not asked of replicas and stripes (see [`Judge::new`]).
    pub redundancy: f64,
    /// f: failure domains whose loss it survives.
    pub tolerate: u32,
}

/// Whether what is confirmed may be acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Holds {
        /// Loss patterns whose survivors were shown to decode.
        patterns_tested: u32,
        /// Loss patterns there are; counted up to [`u64::MAX`].
        patterns_total: u64,
    },
    /// Not yet.
    Short {
        /// About this many more blocks, on domains that are not among the f largest, would do.
        blocks: u32,
        /// Which part of the rule is not met.
        why: Shortfall,
    },
}

/// The part of the rule that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortfall {
    /// Part 1: too few blocks in all.
    Redundancy {
        /// N confirmed.
        confirmed: u32,
        /// (1 + D) K.
        needed: u32,
    },
    /// Part 2: too few blocks outside the f largest domains.
    Survivors {
        /// Blocks outside the f largest domains.
        confirmed: u32,
        /// K and the guard.
        needed: u32,
    },
    /// Part 3: the survivors of a loss pattern do not decode, although there are enough of them.
    Rank {
        /// The domains lost in the worst such pattern.
        lost: Vec<u32>,
        /// A lower bound on the blocks that it misses.
        missing: u32,
    },
}

/// Takes confirmations and says when they may be acknowledged.
pub struct Judge {
    code: Code,
    need: Need,
    seed: u64,
    /// The confirmed indices of each domain.
    held: Vec<Vec<BlockIndex>>,
    seen: IndexRanges,
    loads: Vec<u32>,
    patterns: Vec<Pattern>,
    /// Occupied domains the patterns were made for; empty before the tests begin.
    covered: Vec<u32>,
    /// Survivors from which the early round is worth its while; no number once a verdict was asked for.
    early_from: u32,
    early: Option<Early>,
}

/// Parts 1 and 2 of the rule as numbers: what counting asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// (1 + D) K: blocks in all.
    pub total: u32,
    /// K and the guard: blocks outside the f largest domains.
    pub survivors: u32,
    /// f.
    pub tolerate: u32,
}

impl Need {
    /// What counting asks for under `rule` with `code`. Replicas and stripes ([`Kind::Replicated`]) have neither D
    /// nor a guard: f + 1 copies, or every block once, are all that is asked.
    pub fn new(code: &Code, rule: Rule) -> Self {
        let (k, replicated) = (code.k(), code.kind() == Kind::Replicated);
        let redundancy = if replicated { 0.0 } else { rule.redundancy.max(0.0) };
        let guard = if replicated { 0 } else { code.guard() };
        // Rounded up, less the error of D's binary form: D = 0.1 of K = 10 is 11, not 12.
        let total = (f64::from(k) * (1.0 + redundancy) - 1e-6).ceil() as u32;
        Self { total: total.max(k), survivors: k + guard, tolerate: rule.tolerate }
    }

    /// Blocks missing for part 1 and for part 2 when the domains hold `loads`; blocks, zero where met.
    pub fn missing(&self, loads: &[f64]) -> (f64, f64) {
        let all: f64 = loads.iter().sum();
        let largest = largest_sum(loads, self.tolerate);
        ((f64::from(self.total) - all).max(0.0), (f64::from(self.survivors) - (all - largest)).max(0.0))
    }

    /// Whether parts 1 and 2 hold when the domains hold `loads` blocks.
    pub fn met(&self, loads: &[f64]) -> bool {
        // Half a block of tolerance: loads are whole numbers, or a forecast of them.
        let (total, survivors) = self.missing(loads);
        total < 0.5 && survivors < 0.5
    }
}

/// The sum of the `count` largest of `loads`.
fn largest_sum(loads: &[f64], count: u32) -> f64 {
    let count = (count as usize).min(loads.len());
    if count == 0 {
        return 0.0;
    }
    let mut sorted = loads.to_vec();
    sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    sorted[..count].iter().sum()
}

impl Verdict {
    /// Whether it may be acknowledged.
    pub fn holds(&self) -> bool {
        matches!(self, Verdict::Holds { .. })
    }

    /// The residual risk of the rank test: the largest share of loss patterns that may fail to decode, at 95 %
    /// confidence, after so many seeded ones were tested without failure. Zero when all were, one when short.
    pub fn residual_share(&self) -> f64 {
        match *self {
            Verdict::Holds { patterns_tested, patterns_total }
                if u64::from(patterns_tested) >= patterns_total =>
            {
                0.0
            }
            Verdict::Holds { patterns_tested, .. } => {
                1.0 - 0.05f64.powf(1.0 / f64::from(patterns_tested.max(1)))
            }
            Verdict::Short { .. } => 1.0,
        }
    }
}

impl Rule {
    /// The rule of a bucket's policy.
    pub fn of(policy: &Policy) -> Self {
        match policy {
            Policy::Rateless(rateless) => {
                Self { redundancy: rateless.redundancy, tolerate: rateless.tolerate }
            }
            Policy::Parity(parity) => {
                let redundancy = f64::from(parity.parity()) / f64::from(parity.data().max(1));
                Self { redundancy, tolerate: parity.parity() }
            }
            Policy::Stripe(_) | Policy::Replicated(_) => {
                Self { redundancy: f64::from(policy.tolerate()), tolerate: policy.tolerate() }
            }
        }
    }
}

impl Judge {
    /// A judge over `domains` failure domains, numbered from 0. `seed` draws the loss patterns that are tested where
    /// not all can be. Replicas and stripes ([`Kind::Replicated`]) are not asked for D: their copies are.
    pub fn new(code: Code, rule: Rule, domains: u32, seed: u64) -> Self {
        let need = Need::new(&code, rule);
        // Most patterns decode with what is expected, nearly all with the guard.
        let early_from = (code.k() + code.expected_extra()).midpoint(need.survivors);
        Self {
            code,
            need,
            seed,
            held: vec![Vec::new(); domains as usize],
            seen: IndexRanges::new(),
            loads: vec![0; domains as usize],
            patterns: Vec::new(),
            covered: Vec::new(),
            early_from,
            early: None,
        }
    }

    /// Takes one durable block on a device of `domain`; `false` when the index was confirmed before.
    ///
    /// # Panics
    /// When `domain` is not below the number of domains given to [`Judge::new`].
    pub fn confirm(&mut self, domain: u32, index: BlockIndex) -> bool {
        assert!((domain as usize) < self.loads.len(), "domain {domain} of {}", self.loads.len());
        if !self.seen.insert(index) {
            return false;
        }
        self.held[domain as usize].push(index);
        self.loads[domain as usize] += 1;
        if self.code.kind() != Kind::Replicated {
            self.test_some();
        }
        true
    }

    /// What counting asks for.
    pub fn need(&self) -> Need {
        self.need
    }

    /// Confirmed blocks of a domain, in the order of their confirmations.
    pub fn held(&self, domain: u32) -> &[BlockIndex] {
        &self.held[domain as usize]
    }

    /// Confirmed blocks of each domain.
    pub fn loads(&self) -> &[u32] {
        &self.loads
    }

    /// N: confirmed blocks.
    pub fn confirmed(&self) -> u32 {
        self.seen.count()
    }

    /// Parts 1 and 2 alone: `None` when counting is met.
    pub fn counted(&self) -> Option<Verdict> {
        let confirmed = self.confirmed();
        let loads: Vec<f64> = self.loads.iter().map(|&load| f64::from(load)).collect();
        let (total, survivors) = self.need.missing(&loads);
        if survivors > 0.0 && survivors >= total {
            let needed = self.need.survivors;
            let short = survivors as u32;
            let why = Shortfall::Survivors { confirmed: needed - short, needed };
            return Some(Verdict::Short { blocks: short, why });
        }
        (total > 0.0).then_some(Verdict::Short {
            blocks: total as u32,
            why: Shortfall::Redundancy { confirmed, needed: self.need.total },
        })
    }

    /// Blocks outside the f largest domains.
    fn survivors(&self) -> u32 {
        let loads: Vec<f64> = self.loads.iter().map(|&load| f64::from(load)).collect();
        self.confirmed() - largest_sum(&loads, self.need.tolerate) as u32
    }

    /// Whether what was confirmed so far may be acknowledged. Finishes the rank tests when counting is met.
    pub fn verdict(&mut self) -> Verdict {
        if let Some(short) = self.counted() {
            return short;
        }
        let occupied = self.loads.iter().filter(|&&load| load > 0).count();
        let patterns = patterns::combinations(occupied, self.need.tolerate);
        if self.code.kind() == Kind::Replicated && patterns > PATTERNS_MAX.into() {
            return self.copies(patterns);
        }
        self.cover();
        self.cover_heaviest();
        // The early round is over, and patterns have changed their order.
        self.early = None;
        self.early_from = u32::MAX;
        self.test_all();
        let mut worst: Option<(u32, usize)> = None;
        for (position, pattern) in self.patterns.iter().enumerate() {
            if pattern.missing > worst.map_or(0, |(most, _)| most) {
                worst = Some((pattern.missing, position));
            }
        }
        match worst {
            None => Verdict::Holds {
                patterns_tested: u32::try_from(self.patterns.len()).expect("a bounded number of patterns"),
                patterns_total: patterns::combinations(self.covered.len(), self.need.tolerate),
            },
            Some((missing, position)) => Verdict::Short {
                // One beyond the bound: a block drawn at random adds rank more often than not, never surely.
                blocks: missing + 1,
                why: Shortfall::Rank { lost: self.patterns[position].lost.clone(), missing },
            },
        }
    }

    /// Copies need no rank test: a loss pattern is fatal just when it holds every copy of some original, so looking at
    /// each original once covers every one of the `patterns_total`.
    fn copies(&self, patterns_total: u64) -> Verdict {
        let mut domains_of: Vec<Vec<u32>> = vec![Vec::new(); self.code.k() as usize];
        for (domain, held) in (0..).zip(&self.held) {
            for index in held {
                let domains = &mut domains_of[(index % self.code.k()) as usize];
                if domains.last() != Some(&domain) {
                    domains.push(domain);
                }
            }
        }
        let lost = |domains: &&Vec<u32>| domains.len() <= self.need.tolerate as usize;
        // By the domains they lie in: what one pattern takes with it.
        let mut fatal: Vec<&Vec<u32>> = domains_of.iter().filter(lost).collect();
        fatal.sort();
        let worst = fatal.chunk_by(|a, b| a == b).max_by_key(|alike| alike.len());
        match worst {
            Some(alike) => {
                let missing = u32::try_from(alike.len()).expect("at most K");
                let lost = alike[0].clone();
                Verdict::Short { blocks: missing + 1, why: Shortfall::Rank { lost, missing } }
            }
            None => {
                let patterns_tested = u32::try_from(patterns_total).unwrap_or(u32::MAX);
                Verdict::Holds { patterns_tested, patterns_total }
            }
        }
    }
}

/// Judges a layout as it stands: `domain_of` gives the failure domain of a device, `None` for one that is lost.
///
/// # Errors
/// When the layout's code cannot be made: a damaged or newer server wrote it.
pub fn judge_layout(
    layout: &SegmentLayout,
    rule: Rule,
    domain_of: impl Fn(DeviceId) -> Option<u32>,
    seed: u64,
) -> Result<Verdict, CodeError> {
    let placed: Vec<(u32, IndexRanges)> = layout
        .holders
        .iter()
        .filter_map(|holder| Some((domain_of(holder.device)?, holder.blocks())))
        .collect();
    // Domains are renumbered densely: the caller's numbers may be any.
    let mut names: Vec<u32> = placed.iter().map(|(domain, _)| *domain).collect();
    names.sort_unstable();
    names.dedup();
    let domains = u32::try_from(names.len()).expect("fewer domains than 2^32");
    let mut judge = Judge::new(layout.code.code()?, rule, domains, seed);
    for (domain, blocks) in placed {
        let dense = names.binary_search(&domain).expect("every name was listed");
        for index in blocks.iter() {
            judge.confirm(u32::try_from(dense).expect("below domains"), index);
        }
    }
    Ok(judge.verdict())
}
