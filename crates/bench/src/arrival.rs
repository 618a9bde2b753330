//! The orders in which the blocks of one segment reach a reader. N is 4 K as in the dissertation's evaluation.

use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

/// Disk bandwidths in MB/s for in-disk layouts with blocking factors 8 to 1024 sectors: first with random, then
/// with sequential accesses (dissertation Table 6-1). Drawn evenly, as in §6.2.6: on average 14.9 MB/s.
pub const TABLE_6_1: [f64; 16] =
    [0.52, 0.76, 1.3, 2.5, 4.7, 8.3, 14.3, 21.4, 3.6, 6.9, 9.3, 12.7, 16.8, 29.8, 53.0, 53.0];
/// N as a multiple of K.
pub const STORED: u32 = 4;
/// Disks of [`Arrival::Disks`] and [`Arrival::Striped`] (§6.2.1: 64 of 128).
pub const DISKS: u32 = 64;
/// The longest run of indices that a disk holds in [`Arrival::Disks`]; our writer hands them out in runs of 8 to 16.
const RUN_MAX: u32 = 16;

/// One way for blocks to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Any order.
    Random,
    /// 64 disks with speeds drawn from Table 6-1, all started at once, each sending its originals and then its repair
    /// blocks in ascending order. Both were dealt to the disks in runs of K/64, at most 16.
    Disks,
    /// The same with block i on disk i mod 64.
    Striped,
    /// All originals but so many, drawn at random, then repair blocks.
    Missing {
        /// Originals that do not come.
        originals: u32,
        /// Repair blocks come in ascending order, as where few are stored; else any of the N.
        ascending: bool,
    },
}

impl Arrival {
    /// The name used in cases.
    pub fn name(self) -> String {
        match self {
            Arrival::Random => "random".to_owned(),
            Arrival::Disks => "disks".to_owned(),
            Arrival::Striped => "striped".to_owned(),
            Arrival::Missing { originals, ascending } => {
                format!("missing-{originals}-{}", if ascending { "ascending" } else { "random" })
            }
        }
    }

    /// One draw: block indices in order of arrival.
    pub fn draw(self, k: u32, random: &mut Pcg64Mcg) -> Vec<u32> {
        match self {
            Arrival::Random => shuffled((0..STORED * k).collect(), random),
            Arrival::Disks => from_disks(k, (k / DISKS).clamp(1, RUN_MAX), random),
            Arrival::Striped => from_disks(k, 1, random),
            Arrival::Missing { originals, ascending } => {
                let mut order = shuffled((0..k).collect(), random);
                order.truncate(k.saturating_sub(originals) as usize);
                let repair = (k..STORED * k).collect();
                order.extend(if ascending { repair } else { shuffled(repair, random) });
                order
            }
        }
    }
}

fn from_disks(k: u32, run: u32, random: &mut Pcg64Mcg) -> Vec<u32> {
    let mut held = vec![Vec::new(); DISKS as usize];
    for index in 0..STORED * k {
        // Originals and repair blocks are dealt apart, each from the first disk on.
        let place = if index < k { index } else { index - k };
        held[(place / run % DISKS) as usize].push(index);
    }
    let mut arrivals = Vec::with_capacity((STORED * k) as usize);
    for held in held {
        let rate = TABLE_6_1[(random.next_u64() >> 60) as usize];
        // Equal disks do not answer in step: less than one block of the fastest sets their order.
        let lead = f64::from(random.next_u32()) / 4_294_967_296.0 / 53.0;
        arrivals
            .extend(held.into_iter().zip(1u32..).map(|(index, nth)| (f64::from(nth) / rate + lead, index)));
    }
    arrivals.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    arrivals.into_iter().map(|(_, index)| index).collect()
}

/// These in any order.
pub(crate) fn shuffled(mut items: Vec<u32>, random: &mut Pcg64Mcg) -> Vec<u32> {
    for last in (1..items.len()).rev() {
        items.swap(last, ((u64::from(random.next_u32()) * (last as u64 + 1)) >> 32) as usize);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    #[test]
    fn every_block_arrives_once_and_disks_send_originals_first() {
        let mut random = Pcg64Mcg::seed_from_u64(3);
        for k in [16, 100, 128, 1024] {
            let missing = Arrival::Missing { originals: 8, ascending: true };
            for arrival in [Arrival::Random, Arrival::Disks, Arrival::Striped, missing] {
                let order = arrival.draw(k, &mut random);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                sorted.dedup();
                let absent = if arrival == missing { 8 } else { 0 };
                assert_eq!((order.len(), sorted.len()), ((4 * k - absent) as usize, sorted.len()));
                assert_eq!(sorted.len(), (4 * k - absent) as usize);
                if arrival == Arrival::Striped {
                    for disk in 0..DISKS.min(k) {
                        let sent = order.iter().filter(|index| {
                            (if **index < k { **index } else { **index - k }) % DISKS == disk
                        });
                        assert!(sent.clone().is_sorted(), "K = {k}, disk {disk}: {sent:?}");
                    }
                }
            }
        }
    }
}
