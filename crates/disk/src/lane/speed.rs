//! How fast a device is, measured while it is busy.

use std::time::Duration;

/// Busy time after which an observation counts only 1/e. Picked by eye: a few hundred blocks of a disk, and a
/// changed speed shows within a second of work.
const MEMORY_S: f64 = 0.5;

/// Bytes a busy second, recent ones counting more.
#[derive(Debug, Clone, Copy, Default)]
pub struct Speed {
    bytes: f64,
    seconds: f64,
    outliers: u32,
}

/// An operation so many times slower than the speed known is a stall, which health tells, not a speed ...
const OUTLIER: f64 = 8.0;
/// ... until so many in a row say otherwise.
const OUTLIERS_MAX: u32 = 3;

impl Speed {
    /// `bytes` took the device this long.
    pub fn observe(&mut self, bytes: u64, busy: Duration) {
        let busy = busy.as_secs_f64();
        let expected = self.bytes_per_s().map_or(f64::INFINITY, |speed| bytes as f64 / speed);
        if busy > OUTLIER * expected && self.outliers < OUTLIERS_MAX {
            self.outliers += 1;
            return;
        }
        self.outliers = 0;
        let keep = (-busy / MEMORY_S).exp();
        self.bytes = self.bytes * keep + bytes as f64;
        self.seconds = self.seconds * keep + busy;
    }

    /// The flush behind `bytes` that were observed took this long, where flushes took `usual` so far. It is part of what writing them
    /// costs. One that is so much longer than usual is a stall; the usual time follows by a part of it, so the next like it counts.
    pub fn observe_flush(&mut self, bytes: u64, busy: Duration, usual: Option<Duration>) {
        let busy = busy.as_secs_f64();
        let expected = usual.map_or(f64::INFINITY, |usual| usual.as_secs_f64());
        // Nothing observed: they were written before all was forgotten.
        if busy > OUTLIER * expected || self.bytes == 0.0 {
            return;
        }
        let keep = (-busy / MEMORY_S).exp();
        // Its own bytes are as recent as itself.
        self.bytes = (self.bytes - bytes as f64).max(0.0) * keep + self.bytes.min(bytes as f64);
        self.seconds = self.seconds * keep + busy;
    }

    /// The speed; `None` before anything was observed.
    pub fn bytes_per_s(&self) -> Option<f64> {
        (self.bytes > 0.0 && self.seconds > 0.0).then(|| self.bytes / self.seconds)
    }
}

/// All that a lane measures.
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) read: Speed,
    pub(super) write: Speed,
    pub(super) completed: u64,
    /// Time taken by what somebody waits for.
    pub(super) foreground: Duration,
    service_s: Option<f64>,
    flush_s: Option<f64>,
}

impl Meters {
    /// So many reads or writes took the device this long together.
    pub(super) fn served(&mut self, operations: u64, busy: Duration) {
        self.completed += operations;
        smooth(&mut self.service_s, busy.as_secs_f64() / operations.max(1) as f64);
    }

    /// A flush took so long. It made so many bytes of blocks durable: without any it says nothing of how fast blocks are written.
    pub(super) fn flushed(&mut self, block_bytes: u64, busy: Duration) {
        if block_bytes > 0 {
            let usual = self.flush_time();
            self.write.observe_flush(block_bytes, busy, usual);
        }
        smooth(&mut self.flush_s, busy.as_secs_f64());
    }

    /// The device worked so long, on something that somebody waits for or not.
    pub(super) fn in_foreground(&mut self, foreground: bool, busy: Duration) {
        if foreground {
            self.foreground += busy;
        }
    }

    /// Keeps nothing but what only grows.
    pub(super) fn forget(&mut self) {
        let Self { completed, foreground, .. } = *self;
        *self = Self { completed, foreground, ..Self::default() };
    }

    pub(super) fn service_time(&self) -> Option<Duration> {
        self.service_s.map(Duration::from_secs_f64)
    }

    pub(super) fn flush_time(&self) -> Option<Duration> {
        self.flush_s.map(Duration::from_secs_f64)
    }
}

/// By 1/8, as TCP smooths its round-trip time (RFC 6298).
fn smooth(known: &mut Option<f64>, now: f64) {
    *known = Some(known.map_or(now, |known| known + (now - known) / 8.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_no_speed_but_a_slow_disk_is() {
        let mut speed = Speed::default();
        (0..100).for_each(|_| speed.observe(1 << 20, Duration::from_millis(10)));
        let before = speed.bytes_per_s().unwrap();
        speed.observe(1 << 20, Duration::from_secs(5));
        assert_eq!(speed.bytes_per_s(), Some(before));
        speed.observe(1 << 20, Duration::from_millis(10));
        (0..8).for_each(|_| speed.observe(1 << 20, Duration::from_secs(1)));
        let after = speed.bytes_per_s().unwrap();
        assert!((after / 1048576.0 - 1.0).abs() < 0.3, "{after}");
    }

    const MIB: u64 = 1 << 20;
    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_flush_is_part_of_what_writing_blocks_costs() {
        let mut meters = Meters::default();
        let mut group = |flush| {
            meters.write.observe(MIB, ms(10));
            meters.flushed(MIB, flush);
            meters.write.bytes_per_s().unwrap() / MIB as f64
        };
        let speed = (0..100).map(|_| group(ms(30))).last().unwrap();
        assert!((speed - 25.0).abs() < 1.0, "{speed} MiB/s, and it is 25");
        // A stall is none, ...
        let after = group(ms(5000));
        assert!((after / speed - 1.0).abs() < 0.3, "{after} after a stall, {speed} before");
        // ... and flushes that became slower are no stalls.
        let after = (0..20).map(|_| group(ms(300))).last().unwrap();
        assert!((after / (1000.0 / 310.0) - 1.0).abs() < 0.1, "{after} MiB/s, and it is 3.2");
    }

    #[test]
    fn flushes_without_blocks_leave_the_speed_of_writing_alone() {
        let mut meters = Meters::default();
        meters.flushed(MIB, ms(10));
        assert_eq!(meters.write.bytes_per_s(), None);
        meters.write.observe(MIB, ms(10));
        let before = meters.write.bytes_per_s();
        assert!(before.is_some());
        (0..1000).for_each(|_| meters.flushed(0, ms(10)));
        assert_eq!((meters.write.bytes_per_s(), meters.flush_time()), (before, Some(ms(10))));
    }
}
