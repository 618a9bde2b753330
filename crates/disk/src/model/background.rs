//! Requests of other users of a disk: the competitive load of §6.2.6.
//!
//! Arrivals are a Poisson process: the times between them are exponentially distributed around the interval.
//! Sizes are exponentially distributed too, "about 50 sectors on average", in whole sectors from 1 to
//! [`SECTORS_MAX`]. Places are uniform over a region of the disk, reads throughout.
//!
//! Why a region: the dissertation says that requests every 6 ms keep the disk 93 % busy, so one takes 5.6 ms.
//! Uniform over the disk it would take 12.7 ms of positioning alone, and the queue would grow for ever. Half
//! a rotation and 50 sectors take 4.7 ms; what is left for a seek is less than the shortest one. The requests lie
//! within few cylinders then; [`REGION_BYTES`] is fitted to the 93 %, and the bandwidths that Figure 6-5's text
//! gives for the foreground follow from it (see [`crate::model::measure`]).

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::{
    mechanics::{Geometry, Request, SECTOR_BYTES},
    mix, scale,
};

/// Mean size of a request in sectors (§6.2.6).
pub const SECTORS_MEAN: u32 = 50;

/// Largest request in sectors: the largest blocking factor.
pub const SECTORS_MAX: u32 = 1024;

/// Bytes that the requests of one disk spread over.
pub const REGION_BYTES: u64 = 16 << 20;

/// How others use a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Mean time between arrivals.
    pub interval_ns: u64,
    /// Mean size in sectors.
    pub sectors: u32,
    /// Bytes of the region that the requests fall in.
    pub region_bytes: u64,
    /// Seed of the region's place, the times, sizes and places.
    pub seed: u64,
}

impl Load {
    /// The dissertation's load with requests about every `interval_ns`.
    pub fn every(interval_ns: u64, seed: u64) -> Load {
        Load { interval_ns, sectors: SECTORS_MEAN, region_bytes: REGION_BYTES, seed }
    }
}

/// The requests of a [`Load`] in the order of their times, made one by one.
#[derive(Debug, Clone)]
pub struct Background {
    random: Pcg64,
    interval_ns: u64,
    sectors: u32,
    first: u64,
    region_sectors: u64,
    next_ns: u64,
}

const REGION_SALT: u64 = 0xba_c46e;

impl Background {
    /// The load on a disk, from time 0 on. A region beyond the disk counts as the disk.
    pub fn new(load: &Load, disk: &Geometry) -> Background {
        let region_sectors = (load.region_bytes / SECTOR_BYTES).clamp(1, disk.sectors());
        let mut background = Background {
            random: Pcg64::seed_from_u64(load.seed),
            interval_ns: load.interval_ns.max(1),
            sectors: load.sectors.max(1),
            first: scale(mix(load.seed, REGION_SALT), disk.sectors() - region_sectors + 1),
            region_sectors,
            next_ns: 0,
        };
        background.skip_to(0);
        background
    }

    /// When the next request arrives.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Takes the next request and makes the one after it.
    pub fn take(&mut self) -> (u64, Request) {
        let at_ns = self.next_ns;
        // Rounding up adds half a sector to the mean.
        let mean = f64::from(self.sectors) - 0.5;
        let sectors = (self.exponential() * mean) as u64 + 1;
        let sectors = sectors.min(u64::from(SECTORS_MAX)).min(self.region_sectors);
        let lba = self.first + scale(self.random.next_u64(), self.region_sectors - sectors + 1);
        self.skip_to(at_ns);
        (at_ns, Request { lba, sectors: sectors as u32, write: false })
    }

    /// Leaves out what would have arrived before `now_ns`. The process has no memory: what follows is as if it
    /// had not been left out.
    pub fn skip_to(&mut self, now_ns: u64) {
        let gap_ns = (self.exponential() * self.interval_ns as f64) as u64;
        self.next_ns = now_ns.saturating_add(gap_ns);
    }

    /// Exponentially distributed with mean 1, by comparisons alone (von Neumann 1951): the same on every
    /// machine, as a logarithm is not.
    fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.random.next_u64();
            let (mut last, mut run) = (first, 1u32);
            loop {
                let next = self.random.next_u64();
                if next >= last {
                    break;
                }
                last = next;
                run += 1;
            }
            if run % 2 == 1 {
                return whole + (first >> 11) as f64 / (1u64 << 53) as f64;
            }
            whole += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::mechanics::Mechanics;

    #[test]
    fn times_and_sizes_are_exponential_around_their_means() {
        let disk = Mechanics::ata_7200();
        let mut load = Background::new(&Load::every(6_000_000, 3), disk.geometry());
        let (mut gaps, mut sizes, mut last) = (Vec::new(), Vec::new(), 0);
        for _ in 0..100_000 {
            let (at, request) = load.take();
            assert!(at >= last, "in order of time");
            assert!((1..=SECTORS_MAX).contains(&request.sectors));
            assert!(request.lba >= load.first);
            assert!(request.lba + u64::from(request.sectors) <= load.first + load.region_sectors);
            gaps.push((at - last) as f64 / 6e6);
            sizes.push(f64::from(request.sectors) / 50.0);
            last = at;
        }
        for values in [gaps, sizes] {
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let square = values.iter().map(|v| v * v).sum::<f64>() / n;
            // Mean 1, second moment 2, a share of 1/e above the mean.
            assert!((mean - 1.0).abs() < 0.02, "{mean}");
            assert!((square - 2.0).abs() < 0.08, "{square}");
            let above = values.iter().filter(|v| **v > 1.0).count() as f64 / n;
            assert!((above - (-1f64).exp()).abs() < 0.01, "{above}");
        }
    }
}
