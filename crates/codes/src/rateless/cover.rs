//! Which originals the rows hold that are likely on one disk, so that further rows can add the others.
//!
//! A disk that sends all it has while others send nothing brings rows that follow one another, or lie a fixed stride
//! apart. An original that is missing is found only if some row holds it: each fast disk that holds nothing of it
//! leaves it to the others. So a row takes the columns, and the originals of its own, that bring its two groups
//! most of what they do not hold yet.

use super::mix::Parities;
use std::sync::Arc;

/// Rows that follow one another on a disk: what a writer hands out at a time.
const RUN: u32 = 16;

/// What every group of rows holds: K/16 groups of runs and as many of strides, each of 16 rows in every K.
pub(crate) struct Cover {
    parities: Arc<Parities>,
    k: usize,
    groups: usize,
    /// Whether group g holds original i, at g K + i.
    held: Vec<bool>,
    /// How many originals parity column c would add to group g, at g S + c.
    gains: Vec<u16>,
}

impl Cover {
    /// No rows yet, of a code of `k` originals, at least 16.
    pub(crate) fn new(k: u32, parities: Arc<Parities>) -> Self {
        let (k, groups) = (k as usize, (k / RUN) as usize);
        let members = (0..parities.count()).map(|column| parities.members(column).len() as u16);
        let gains = members.collect::<Vec<_>>().repeat(2 * groups);
        Self { parities, k, groups, held: vec![false; 2 * groups * k], gains }
    }

    /// The group of runs and the group of strides that row `number` is in.
    pub(crate) fn groups_of(&self, number: u32) -> [usize; 2] {
        [(number / RUN) as usize % self.groups, self.groups + number as usize % self.groups]
    }

    /// How many originals a column would add to both groups: asked for dozens of columns before one is taken.
    pub(crate) fn gain(&self, [one, other]: [usize; 2]) -> impl Fn(u16) -> u16 {
        let (k, count) = (self.k, self.parities.count());
        let held = [one, other].map(|group| &self.held[group * k..][..k]);
        let gains = [one, other].map(|group| &self.gains[group * count..][..count]);
        move |column| match usize::from(column).checked_sub(k) {
            None => held.map(|held| u16::from(!held[usize::from(column)])).into_iter().sum(),
            Some(parity) => gains[0][parity] + gains[1][parity],
        }
    }

    /// A row of these groups has `column`.
    pub(crate) fn add(&mut self, groups: [usize; 2], column: u16) {
        let (parities, own) = (&self.parities, [column]);
        let members = match usize::from(column).checked_sub(self.k) {
            None => own.as_slice(),
            Some(parity) => parities.members(parity),
        };
        for group in groups {
            for member in members {
                if !std::mem::replace(&mut self.held[group * self.k + usize::from(*member)], true) {
                    for parity in parities.of_original(u32::from(*member)) {
                        self.gains[group * parities.count() + usize::from(*parity)] -= 1;
                    }
                }
            }
        }
    }
}
