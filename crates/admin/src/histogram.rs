//! Durations counted in buckets that double, without a lock.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper bound of the first bucket: below it lies what memory answers.
const FIRST: Duration = Duration::from_micros(100);
/// Buckets with a bound; the last one's is 26 s, beyond which every wait has ended.
const BOUNDED: usize = 19;

/// How many durations fell into each bucket since the server started, and their sum.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDED + 1],
    nanoseconds: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) sum_seconds: f64,
    pub(crate) count: u64,
    /// Upper bound in seconds, and how many fell between it and the one before.
    pub(crate) buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let bucket = (0..BOUNDED).find(|&bucket| took <= bound(bucket)).unwrap_or(BOUNDED);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        let bounds = (0..BOUNDED).map(|bucket| bound(bucket).as_micros() as f64 / 1e6).chain([f64::INFINITY]);
        Snapshot {
            sum_seconds: Duration::from_nanos(self.nanoseconds.load(Relaxed)).as_secs_f64(),
            // Of the same loads as the buckets, so that the last bucket and the count agree.
            count: counts.iter().sum(),
            buckets: bounds.zip(counts).collect(),
        }
    }
}

fn bound(bucket: usize) -> Duration {
    FIRST * (1 << bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_one_bucket() {
        let histogram = Histogram::default();
        for took in [Duration::ZERO, FIRST, FIRST + Duration::from_nanos(1), Duration::from_secs(3600)] {
            histogram.observe(took);
        }
        let snapshot = histogram.snapshot();
        let counts: Vec<u64> = snapshot.buckets.iter().map(|&(_, count)| count).collect();
        assert_eq!((counts[0], counts[1], counts[BOUNDED]), (2, 1, 1));
        assert_eq!(snapshot.count, 4);
        assert!((snapshot.sum_seconds - 3600.0002).abs() < 1e-3, "{}", snapshot.sum_seconds);
    }
}
