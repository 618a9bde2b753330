//! Unequal disks, as the dissertation draws them, and the best that any scheme could do with them.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::time::Duration;

pub use steadfast_bench::arrival::TABLE_6_1;

/// One disk of a draw: bytes per second.
pub type Rate = f64;

/// Draws the speeds of `count` disks, in bytes per second; one seed gives one draw (generator: PCG-64-MCG).
pub fn draw(count: usize, seed: u64) -> Vec<Rate> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    // The table has 16 entries: four bits choose one evenly.
    (0..count).map(|_| TABLE_6_1[(random.next_u64() >> 60) as usize] * 1e6).collect()
}

/// The any-K ideal: when the K-th block would arrive if every disk sent its `held` blocks one after the other and
/// nothing else counted. `disks` gives each disk's speed and how many blocks it holds; `None` when they hold fewer
/// than `k`.
pub fn any_k_ideal(
    disks: impl IntoIterator<Item = (Rate, u32)>,
    block_bytes: u32,
    k: u32,
) -> Option<Duration> {
    let mut arrivals: Vec<f64> = disks
        .into_iter()
        .filter(|&(rate, _)| rate > 0.0)
        .flat_map(|(rate, held)| {
            (1..=held).map(move |block| f64::from(block) * f64::from(block_bytes) / rate)
        })
        .collect();
    arrivals.sort_unstable_by(f64::total_cmp);
    arrivals.get(usize::try_from(k.max(1)).ok()? - 1).copied().map(Duration::from_secs_f64)
}

/// The soonest that a write could be acknowledged on disks that all write at full speed from the start: the first
/// moment at which (i) `stored_min` blocks are written and (ii) those outside the `tolerate` heaviest domains are at
/// least `survive_min`. `disks` gives each disk's speed and domain.
pub fn write_limit(
    disks: &[(Rate, usize)],
    block_bytes: u32,
    stored_min: u32,
    survive_min: u32,
    tolerate: usize,
) -> Option<Duration> {
    let domains = disks.iter().map(|&(_, domain)| domain + 1).max()?;
    let holds = |seconds: f64| {
        let mut blocks = vec![0u64; domains];
        for &(rate, domain) in disks {
            // Whole blocks only; rates and times are positive.
            blocks[domain] += (rate * seconds / f64::from(block_bytes)) as u64;
        }
        let total: u64 = blocks.iter().sum();
        blocks.sort_unstable_by(|a, b| b.cmp(a));
        let heaviest: u64 = blocks.iter().take(tolerate).sum();
        total >= stored_min.into() && total - heaviest >= survive_min.into()
    };
    let mut reached = 1e-3;
    while !holds(reached) {
        reached *= 2.0;
        if reached > 1e6 {
            return None;
        }
    }
    let mut missed = 0.0;
    // Forty halvings leave less than a nanosecond of an hour.
    for _ in 0..40 {
        let middle = (missed + reached) / 2.0;
        if holds(middle) { reached = middle } else { missed = middle }
    }
    Some(Duration::from_secs_f64(reached))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_averages_what_the_paper_says() {
        let average = TABLE_6_1.iter().sum::<f64>() / 16.0;
        assert!((average - 14.9).abs() < 0.1, "{average}");
        let drawn = draw(100_000, 1);
        let average = drawn.iter().sum::<f64>() / 100_000.0;
        assert!((average / 1e6 - 14.9).abs() < 0.3, "{average}");
        assert_eq!(draw(64, 7), draw(64, 7));
        assert_ne!(draw(64, 7), draw(64, 8));
    }

    #[test]
    fn ideal_of_equal_disks_is_their_sum() {
        // Six disks of 100 MB/s and 1024 blocks of 64 KiB: 67.1 MB / 600 MB/s = 112 ms.
        let ideal = any_k_ideal([(100e6, 300); 6], 64 << 10, 1024).unwrap();
        assert!((ideal.as_secs_f64() - 0.112).abs() < 0.001, "{ideal:?}");
        assert_eq!(any_k_ideal([(100e6, 100); 6], 64 << 10, 1024), None);
    }

    #[test]
    fn write_limits_of_six_disks() {
        // D = 0.5, f = 2: equal disks 170 ms; one stalled: five thirds of the object over 500 MB/s, 224 ms.
        let equal: Vec<_> = (0..6).map(|disk| (100e6, disk)).collect();
        let limit = write_limit(&equal, 64 << 10, 1536, 1024, 2).unwrap().as_secs_f64();
        assert!((limit - 0.168).abs() < 0.003, "{limit}");
        let mut stalled = equal;
        stalled[3].0 = 0.0;
        let limit = write_limit(&stalled, 64 << 10, 1536, 1024, 2).unwrap().as_secs_f64();
        assert!((limit - 0.224).abs() < 0.003, "{limit}");
    }
}
