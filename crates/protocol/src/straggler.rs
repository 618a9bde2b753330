//! Which devices are stragglers, for whoever looks at a cluster.
//!
//! A device is judged by its peers' pace, never by a time: how many times slower it is than the median of those whose
//! pace is known. What is normal on a fast cluster is then a straggler's pace nowhere else (traps 14).

/// So many times slower than the median is a straggler. Disks of one model differ by less than two (zones,
/// fragmentation) and those of three generations by about three, which is no fault of any of them; a disk that ails is
/// ten times slower. Picked by eye.
pub const RATIO: f64 = 4.0;
/// With fewer peers of known pace there is no saying who is slow.
pub const PEERS_MIN: usize = 3;

/// How a device does, as measured; 0 where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Reading speed while busy, in bytes per second.
    pub read_bytes_per_s: u64,
    /// Writing speed while busy, in bytes per second.
    pub write_bytes_per_s: u64,
    /// Time of one operation in nanoseconds.
    pub service_ns: u64,
}

/// How many times slower than the median each device is, where that makes it a straggler.
pub fn straggling(devices: &[Pace]) -> Vec<Option<f64>> {
    let read = median(devices.iter().map(|pace| pace.read_bytes_per_s));
    let write = median(devices.iter().map(|pace| pace.write_bytes_per_s));
    let service = median(devices.iter().map(|pace| pace.service_ns));
    let judge = |pace: &Pace| {
        let by_speed =
            slower(read, pace.read_bytes_per_s).into_iter().chain(slower(write, pace.write_bytes_per_s));
        let by_speed = by_speed.reduce(f64::max);
        let by_time = slower(pace.service_ns, service);
        // A device that moves larger pieces than the others takes longer for each, one that moves smaller ones gives fewer bytes a
        // second: a slow one does both, whatever it is asked for.
        let worst = match (by_speed, by_time) {
            (Some(by_speed), Some(by_time)) => by_speed.min(by_time),
            (either, or) => either.or(or)?,
        };
        (worst >= RATIO).then_some(worst)
    };
    devices.iter().map(judge).collect()
}

/// How often `part` goes into `whole`, where both are known.
fn slower(whole: u64, part: u64) -> Option<f64> {
    (whole > 0 && part > 0).then(|| whole as f64 / part as f64)
}

/// The median of what is known; 0 where too little is.
fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut known: Vec<u64> = values.filter(|&value| value > 0).collect();
    known.sort_unstable();
    if known.len() < PEERS_MIN {
        return 0;
    }
    known[(known.len() - 1) / 2].midpoint(known[known.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(rates: &[u64]) -> Vec<Pace> {
        rates.iter().map(|&read_bytes_per_s| Pace { read_bytes_per_s, ..Pace::default() }).collect()
    }

    #[test]
    fn one_slow_disk_of_six_at_any_scale() {
        for scale in [1, 1000, 1_000_000_000] {
            let rates = [100, 110, 90, 100, 10, 120].map(|rate| rate * scale);
            let found = straggling(&reading(&rates));
            assert_eq!(
                found.iter().map(Option::is_some).collect::<Vec<_>>(),
                [false, false, false, false, true, false]
            );
            assert!((found[4].unwrap() - 10.0).abs() < 1e-9);
        }
    }

    #[test]
    fn unequal_is_not_straggling_and_unknown_is_not_slow() {
        assert!(straggling(&reading(&[30, 60, 80, 0, 100, 120, 150])).iter().all(Option::is_none));
        assert!(straggling(&reading(&[100, 1])).iter().all(Option::is_none), "no majority to judge by");
    }

    #[test]
    fn speed_and_time_have_to_agree_where_both_are_known() {
        let mut devices = vec![Pace { service_ns: 1000, ..Pace::default() }; 4];
        devices[2].service_ns = 5000;
        assert_eq!(straggling(&devices), [None, None, Some(5.0), None]);
        for device in &mut devices {
            device.write_bytes_per_s = 100;
        }
        // As fast as the others, or nearly: it writes larger blocks.
        assert_eq!(straggling(&devices), [None; 4]);
        devices[2].write_bytes_per_s = 90;
        assert_eq!(straggling(&devices), [None; 4]);
        devices[2].write_bytes_per_s = 10;
        assert_eq!(straggling(&devices), [None, None, Some(5.0), None]);
        // As quick, and a tenth of the bytes: its blocks are small.
        devices[2].service_ns = 1000;
        assert_eq!(straggling(&devices), [None; 4]);
    }
}
