//! Ranks of what many loss patterns leave, which share nearly all of their work.
//!
//! Let A have the blocks' generator rows, and L span its left null space: every combination of blocks that adds up to
//! zero. Losing the blocks S leaves rank
//!
//! ```text
//!   rank(A without S) = rank(A) - |S| + rank(L restricted to the columns S)
//! ```
//!
//! since the combinations that stay are those with no part in S. L is found once; a pattern costs an elimination over
//! |S| bits, which ends as soon as it has full rank, instead of one over K.
//!
//! A repair block is a sum of originals. Where all of those are among the blocks, it and they are a member of L at
//! once; only originals that are not make elimination necessary:
//!
//! ```text
//!   row of L   [ absent originals | group 0 | group 1 | .. ]      each part starts at a word
//! ```
//!
//! A rank test of the pattern alone, [`Code::rank_of`], eliminates over the originals that are absent or lost, and wins
//! where these are few; each pattern takes the shorter way. Over GF(256) and for peeling there is only that one.

use super::code::Code;
use crate::kernel::bits;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

/// The shared way is taken where originals absent or lost are at least so many times the blocks lost. Measured at
/// K = 1024, N of 1.5 to 4 K: the two cost the same at ratios of 2 to 4.
const SHARED_FROM: usize = 3;

/// Blocks in groups that are lost together (a disk, a failure domain), and the rank that is left. `G` holds the indices
/// of one group: `&[u32]`, or `Vec<u32>` to keep them.
pub struct LossRanks<G> {
    code: Code,
    groups: Vec<G>,
    /// Originals in each group.
    originals: Vec<usize>,
    /// Made when a pattern first takes that way; None where there is none.
    shared: OnceLock<Option<Shared>>,
}

/// What the patterns over GF(2) share.
struct Shared {
    /// rank(A).
    rank: u32,
    /// Words of a row.
    words: usize,
    /// Each group's words.
    parts: Vec<Range<usize>>,
    /// The rows of L, one after the other.
    null: Vec<u64>,
}

impl Code {
    /// The rank that is left ([`Code::rank_of`]) when the groups of each pattern are lost: `groups` are the blocks by
    /// what they are lost with, a pattern is a list of groups. At K = 1024 some 0.1 ms a pattern
    /// where most originals are among the blocks, up to 1 ms where hardly any is. A group that is not there holds no blocks: losing it
    /// changes nothing.
    pub fn ranks_without(&self, groups: &[&[u32]], patterns: &[&[usize]]) -> Vec<u32> {
        let ranks = LossRanks::new(self, groups.to_vec());
        patterns.iter().map(|lost| ranks.without(lost)).collect()
    }
}

impl<G: AsRef<[u32]>> LossRanks<G> {
    /// The blocks of each group; work that patterns share is done when it is first needed.
    pub fn new(code: &Code, groups: Vec<G>) -> Self {
        let originals = |group: &G| group.as_ref().iter().filter(|index| **index < code.k()).count();
        let originals = groups.iter().map(originals).collect();
        Self { code: code.clone(), groups, originals, shared: OnceLock::new() }
    }

    /// The rank left without the groups `lost`. Naming one twice changes nothing, nor does one that is not there: it holds no blocks.
    pub fn without(&self, lost: &[usize]) -> u32 {
        let lost = self.distinct(lost);
        let blocks: usize = lost.iter().map(|group| self.groups[*group].as_ref().len()).sum();
        let there: usize = self.originals.iter().sum();
        let gone = lost.iter().map(|group| self.originals[*group]).sum::<usize>()
            + (self.code.k() as usize).saturating_sub(there);
        let linear = self.code.is_binary() && !self.code.peels();
        if linear
            && gone >= SHARED_FROM * blocks
            && let Some(shared) = self.shared.get_or_init(|| Shared::new(&self.code, &self.views()))
        {
            return shared.without(blocks, &lost);
        }
        self.code.rank_of(&mut self.left(&lost))
    }

    /// A lower bound on the further blocks needed without the groups `lost`; 0 exactly when what is left decodes. For LT
    /// not K less the rank: see [`RankTracker::missing`](super::RankTracker::missing). Groups that are not there change nothing.
    pub fn missing_without(&self, lost: &[usize]) -> u32 {
        if !self.code.peels() {
            return self.code.k() - self.without(lost);
        }
        self.code.track(&mut self.left(&self.distinct(lost))).missing()
    }

    /// Those of `lost` that there are, each once, ascending.
    fn distinct(&self, lost: &[usize]) -> Vec<usize> {
        let mut there: Vec<usize> = lost.iter().copied().filter(|group| *group < self.groups.len()).collect();
        there.sort_unstable();
        there.dedup();
        there
    }

    fn views(&self) -> Vec<&[u32]> {
        self.groups.iter().map(AsRef::as_ref).collect()
    }

    /// The blocks outside the groups `lost`, which are in ascending order.
    fn left(&self, lost: &[usize]) -> impl Iterator<Item = u32> {
        let kept = (0..self.groups.len()).filter(|group| lost.binary_search(group).is_err());
        kept.flat_map(|group| self.groups[group].as_ref().iter().copied())
    }
}

impl Shared {
    /// None when a block is named twice: losing one of them does not lose it.
    fn new(code: &Code, groups: &[&[u32]]) -> Option<Self> {
        let k = code.k();
        let mut places = BTreeMap::new();
        let count: usize = groups.iter().map(|group| group.len()).sum();
        let here = groups.iter().flat_map(|group| group.iter()).filter(|index| **index < k).count();
        let absent_words = (k as usize).saturating_sub(here).div_ceil(64);
        let (mut words, mut parts) = (absent_words, Vec::with_capacity(groups.len()));
        for group in groups {
            places.extend(group.iter().zip(64 * words..).map(|(index, place)| (*index, place)));
            parts.push(words..words + group.len().div_ceil(64));
            words += group.len().div_ceil(64);
        }
        if places.len() != count {
            return None;
        }
        // Where each original's bit is.
        let mut absent = 0;
        let originals: Vec<usize> = (0..k)
            .map(|original| {
                places.get(&original).copied().unwrap_or_else(|| {
                    absent += 1;
                    absent - 1
                })
            })
            .collect();
        let mut null = Vec::new();
        // Echelon rows over the absent originals: the one whose lowest bit is there.
        let mut pivots: Vec<Option<Vec<u64>>> = vec![None; absent];
        let (mut entries, mut row) = (Vec::new(), vec![0u64; words]);
        let mut rank = here as u32;
        for (index, place) in places.range(k..) {
            entries.clear();
            code.row(*index, &mut entries);
            row.fill(0);
            row[place / 64] |= 1 << (place % 64);
            code.resolve(&entries, |original, _| {
                let bit = originals[original as usize];
                row[bit / 64] ^= 1 << (bit % 64);
            });
            let mut word = 0;
            // An echelon row is zero before its pivot's word, so no earlier word comes back.
            let innovative = loop {
                if word == absent_words {
                    break false;
                }
                if row[word] == 0 {
                    word += 1;
                    continue;
                }
                let bit = 64 * word + row[word].trailing_zeros() as usize;
                let Some(echelon) = &pivots[bit] else {
                    pivots[bit] = Some(row.clone());
                    break true;
                };
                row[word..].iter_mut().zip(&echelon[word..]).for_each(|(a, b)| *a ^= b);
            };
            if innovative {
                rank += 1;
            } else {
                null.extend_from_slice(&row);
            }
        }
        Some(Self { rank, words, parts, null })
    }

    /// The rank left without the `size` blocks of the groups `lost`.
    fn without(&self, size: usize, lost: &[usize]) -> u32 {
        let width: usize = lost.iter().map(|group| self.parts[*group].len()).sum();
        let mut echelon = bits::Echelon::new(64 * width, width);
        let (mut row, mut rank) = (Vec::with_capacity(width), 0);
        for null in self.null.chunks_exact(self.words) {
            if rank == size {
                break;
            }
            row.clear();
            for group in lost {
                row.extend_from_slice(&null[self.parts[*group].clone()]);
            }
            echelon.reduce(&mut row);
            if let Some(pivot) = bits::lowest(&row) {
                echelon.insert(pivot, &row);
                rank += 1;
            }
        }
        self.rank - (size - rank) as u32
    }
}
