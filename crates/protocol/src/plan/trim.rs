//! Which blocks to drop where an object is to have a smaller redundancy: the inverse of minting.
//!
//! ```text
//!   device   originals   repair blocks, by index
//!     A      0 1 2 3     24 25 26 27 48 49 ✂ 50 51
//!     B      4 5 6 7     28 29 30 31 ✂ 52 53
//! ```
//!
//! Invariants: originals stay, so ranges are read as before; what stays meets the durability rule with the f promised
//! (all three parts of it); each device keeps its share of the blocks, which was given by speed, unless only a more even
//! spread survives the loss of f domains; the highest indices go first, so that what stays lies in few ranges.
//!
//! Left out: which extents the blocks lie in.

#[cfg(test)]
mod tests;

use crate::{
    DeviceId, IndexRanges,
    durability::{Judge, Need, Rule, Shortfall, Verdict},
    words::{counted, counted_are},
    write::Existing,
};
use std::collections::BTreeSet;
use steadfast_codes::rateless::Code;

/// What stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Blocks that each device keeps, in the order given.
    pub keep: Vec<(DeviceId, IndexRanges)>,
    /// N: blocks that stay.
    pub stored_blocks: u32,
    /// Blocks that are dropped.
    pub dropped_blocks: u32,
    /// The durability rule's verdict on what stays.
    pub verdict: Verdict,
}

/// Why nothing can be dropped.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrimError {
    /// So few blocks would not survive what is promised.
    #[error(
        "a redundancy of {asked} is too small to survive the loss of any {tolerate} failure domains: {smallest:.2} is the \
         smallest {}",
        among(*out_of_reach)
    )]
    BelowTolerance {
        /// D as asked for.
        asked: f64,
        /// The smallest D that survives, rounded up to hundredths.
        smallest: f64,
        /// f.
        tolerate: u32,
        /// Blocks on devices out of reach, which were not counted: with them a smaller D may survive.
        out_of_reach: u32,
    },
    /// All blocks together do not meet the rule: some were lost.
    #[error(
        "{} needed before any can be dropped ({why:?}): devices are out of reach or were lost; tune to a higher redundancy, \
         or bring them back",
        counted_are(blocks, "more block")
    )]
    Unmet {
        /// About how many blocks are missing.
        blocks: u32,
        /// Which part of the rule is not met.
        why: Shortfall,
    },
}

impl TrimError {
    /// The same, where the layout has so many blocks more than were given, on devices out of reach.
    #[must_use]
    pub fn beside(mut self, blocks: u32) -> Self {
        if let Self::BelowTolerance { out_of_reach, .. } = &mut self {
            *out_of_reach = blocks;
        }
        self
    }
}

/// For what a smallest redundancy is the smallest.
fn among(out_of_reach: u32) -> String {
    match out_of_reach {
        0 => "for the devices that hold it".to_owned(),
        blocks => {
            let others = counted(blocks, "other block");
            format!("while devices that hold {others} are out of reach: try again when they are back")
        }
    }
}

/// Chooses what stays of `held` under `rule`, whose D is the one to come. Keeps everything where there are no more blocks
/// than that. Domains are numbered below `domains`; `seed` draws the loss patterns that are tested where not all can be.
/// Blocks on devices out of reach are not `held`: the error is told of them, by [`TrimError::beside`].
///
/// # Errors
/// When so few blocks cannot survive the loss of any f domains, or what is there does not either.
pub fn trim(code: &Code, rule: Rule, domains: u32, held: &[Existing], seed: u64) -> Result<Trim, TrimError> {
    let need = Need::new(code, rule);
    let shares = Shares::new(code, domains, held);
    let total = shares.all();
    let below = |smallest: u32| {
        let d = f64::from(smallest) / f64::from(code.k()) - 1.0;
        let smallest = (d * 100.0).ceil().max(0.0) / 100.0;
        TrimError::BelowTolerance {
            asked: rule.redundancy,
            smallest,
            tolerate: rule.tolerate,
            out_of_reach: 0,
        }
    };
    let Some(smallest) = shares.smallest(need) else {
        // Not even minting on all of these domains alike would make so few enough.
        if let Some(alike) = shares.alike(need).filter(|&alike| need.total < alike) {
            return Err(below(alike));
        }
        let Verdict::Short { blocks, why } = verdict(code, rule, domains, seed, held, &shares.most) else {
            unreachable!("counting is not met by all blocks");
        };
        return Err(TrimError::Unmet { blocks, why });
    };
    if need.total < smallest {
        return Err(below(smallest));
    }
    let mut target = need.total.min(total);
    loop {
        let kept = shares.of(target, need);
        match verdict(code, rule, domains, seed, held, &kept) {
            Verdict::Short { blocks, why } if target == total => {
                return Err(TrimError::Unmet { blocks, why });
            }
            // A rounded share, or a pattern that does not decode: a few blocks more.
            Verdict::Short { blocks, .. } => target = target.saturating_add(blocks.max(1)).min(total),
            verdict => {
                let keep = held.iter().zip(&kept).map(|(held, &count)| (held.device, first(held, count)));
                return Ok(Trim {
                    keep: keep.collect(),
                    stored_blocks: target,
                    dropped_blocks: total - target,
                    verdict,
                });
            }
        }
    }
}

/// The `count` lowest of a device's blocks: originals come first.
fn first(held: &Existing, count: u32) -> IndexRanges {
    let mut left = count;
    let mut kept = IndexRanges::new();
    for range in held.blocks.ranges() {
        let end = range.end.min(range.start.saturating_add(left));
        left -= end - range.start;
        kept.insert_range(range.start..end);
    }
    kept
}

fn verdict(code: &Code, rule: Rule, domains: u32, seed: u64, held: &[Existing], kept: &[u32]) -> Verdict {
    let mut judge = Judge::new(code.clone(), rule, domains, seed);
    for (held, &count) in held.iter().zip(kept) {
        for index in first(held, count).iter() {
            judge.confirm(held.domain, index);
        }
    }
    judge.verdict()
}

/// How many blocks each device has and must keep.
struct Shares {
    domain: Vec<usize>,
    /// Originals of each device.
    least: Vec<u32>,
    /// Blocks of each device.
    most: Vec<u32>,
    domains: usize,
}

impl Shares {
    fn new(code: &Code, domains: u32, held: &[Existing]) -> Self {
        let originals = if code.kind().is_mix() { code.k() } else { 0 };
        let below = |held: &Existing| held.blocks.iter().take_while(|&index| index < originals).count();
        Self {
            domain: held.iter().map(|held| held.domain as usize).collect(),
            least: held.iter().map(|held| u32::try_from(below(held)).expect("at most K")).collect(),
            most: held.iter().map(|held| held.blocks.count()).collect(),
            domains: domains as usize,
        }
    }

    fn all(&self) -> u32 {
        self.most.iter().sum()
    }

    fn loads(&self, kept: &[f64]) -> Vec<f64> {
        let mut loads = vec![0.0; self.domains];
        for (&domain, &blocks) in self.domain.iter().zip(kept) {
            loads[domain] += blocks;
        }
        loads
    }

    /// What each device keeps when no domain may have more than `cap`, but for its originals.
    fn capped(&self, cap: f64) -> Vec<f64> {
        let exact: Vec<f64> = self.most.iter().map(|&most| f64::from(most)).collect();
        let loads = self.loads(&exact);
        let bounds = self.domain.iter().zip(self.least.iter().zip(&exact));
        bounds
            .map(|(&domain, (&least, &most))| {
                let share = if loads[domain] > cap { most * cap / loads[domain] } else { most };
                share.max(f64::from(least))
            })
            .collect()
    }

    /// The fewest blocks that leave enough by counting whatever f domains are lost; none if all do not. A lower cap on the
    /// loads takes from the heaviest first, which count least: what is left falls with the cap, so halving finds it.
    fn smallest(&self, need: Need) -> Option<u32> {
        let enough = |cap: f64| need.missing(&self.loads(&self.capped(cap))).1 < 1e-6;
        let (mut low, mut high) = (0.0, f64::from(self.all()));
        if !enough(high) {
            return None;
        }
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            if enough(middle) { high = middle } else { low = middle }
        }
        let kept: f64 = self.capped(high).iter().sum();
        Some((kept - 1e-6).ceil() as u32)
    }

    /// The fewest blocks that would leave enough if all occupied domains had as many; none where there are too few of them.
    fn alike(&self, need: Need) -> Option<u32> {
        let occupied = self.domain.iter().collect::<BTreeSet<_>>().len();
        let left = occupied.checked_sub(need.tolerate as usize).filter(|&left| left > 0)?;
        Some((f64::from(need.survivors) * occupied as f64 / left as f64).ceil() as u32)
    }

    /// What each device keeps of `target` blocks: its share, or as much more even as the loss of f domains asks for.
    fn of(&self, target: u32, need: Need) -> Vec<u32> {
        let part = f64::from(target) / f64::from(self.all().max(1));
        let alike: Vec<f64> = self.most.iter().map(|&most| f64::from(most) * part).collect();
        let (mut low, mut high) = (0.0, f64::from(self.all()));
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            let kept: f64 = self.capped(middle).iter().sum();
            if kept < f64::from(target) { low = middle } else { high = middle }
        }
        let level = self.capped(high);
        let mut kept = Vec::new();
        for step in 0..=EVENING_STEPS {
            let evened = f64::from(step) / f64::from(EVENING_STEPS);
            let mixed: Vec<f64> =
                alike.iter().zip(&level).map(|(a, b)| a * (1.0 - evened) + b * evened).collect();
            kept = self.rounded(&mixed, target);
            let exact: Vec<f64> = kept.iter().map(|&blocks| f64::from(blocks)).collect();
            if need.missing(&self.loads(&exact)).1 < 0.5 {
                break;
            }
        }
        kept
    }

    /// Whole numbers near `wanted`, within what each device must and can keep, that add up to `target`.
    fn rounded(&self, wanted: &[f64], target: u32) -> Vec<u32> {
        let bounds = self.least.iter().zip(&self.most);
        let mut kept: Vec<u32> = wanted
            .iter()
            .zip(bounds)
            .map(|(&wanted, (&least, &most))| (wanted.round() as u32).clamp(least, most))
            .collect();
        let mut sum: u32 = kept.iter().sum();
        while sum != target {
            let more = sum < target;
            let open = |&device: &usize| {
                if more { kept[device] < self.most[device] } else { kept[device] > self.least[device] }
            };
            let distance =
                |device: usize| (wanted[device] - f64::from(kept[device])) * if more { 1.0 } else { -1.0 };
            let devices = (0..kept.len()).filter(open);
            let Some(device) = devices.max_by(|&a, &b| distance(a).total_cmp(&distance(b))) else { break };
            if more {
                kept[device] += 1;
                sum += 1;
            } else {
                kept[device] -= 1;
                sum -= 1;
            }
        }
        kept
    }
}

/// Steps from shares as they are to shares as even as can be. Picked by eye: an eighth of the way is soon enough.
const EVENING_STEPS: u32 = 8;
