use super::super::*;
use crate::{Time, message::Access};

const MS: u64 = 1_000_000;

/// Streams take turns; each request takes the device `ms` milliseconds.
fn served(sharing: &mut Sharing, from: u64, streams: u64, requests: u64, ms: u64, access: Access) -> u64 {
    let mut now = from;
    (0..streams).for_each(|stream| sharing.started(Time(now), stream, access));
    for request in 0..requests {
        now += ms * MS;
        let stream = request % streams;
        sharing.finished(Time(now), stream, access, 1_000_000);
        sharing.started(Time(now), stream, access);
    }
    (0..streams).for_each(|stream| sharing.finished(Time(now), stream, access, 0));
    now
}

#[test]
fn throughput_of_many_against_that_of_one() {
    let mut sharing = Sharing::default();
    assert_eq!(sharing.left_ppm(), [0; 4]);
    // 1 MB in 10 ms alone; two streams cost a seek of 2.5 ms each turn, four (and three) one of 10 ms.
    let now = served(&mut sharing, 0, 1, 100, 10, Access::Read);
    let now = served(&mut sharing, now + 5_000 * MS, 2, 80, 12, Access::Read);
    served(&mut sharing, now, 3, 80, 20, Access::Read);
    let [two, four, eight, _] = sharing.left_ppm();
    // The ends, where fewer streams are there than before, and the long idle time in between count for little.
    assert!((800_000..860_000).contains(&two), "{two}");
    assert!((480_000..520_000).contains(&four), "{four}");
    assert_eq!((eight, sharing.streams()), (0, 0));
}

#[test]
fn little_and_mixed_work_tell_nothing() {
    let mut sharing = Sharing::default();
    let now = served(&mut sharing, 0, 1, 5, 10, Access::Write);
    let now = served(&mut sharing, now, 2, 5, 20, Access::Write);
    assert_eq!(sharing.left_ppm(), [0; 4]);
    let now = served(&mut sharing, now, 1, 100, 10, Access::Write);
    // A writer all along beside two readers: neither kind's own throughput is seen.
    sharing.started(Time(now), 99, Access::Write);
    let now = served(&mut sharing, now, 2, 100, 50, Access::Read);
    sharing.finished(Time(now), 99, Access::Write, 1_000_000);
    assert_eq!(sharing.left_ppm(), [0; 4]);
    // A device that sharing does not slow has all of it left.
    served(&mut sharing, now, 2, 100, 5, Access::Write);
    assert_eq!(sharing.left_ppm(), [1_000_000, 0, 0, 0]);
}
