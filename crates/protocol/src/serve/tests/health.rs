use super::super::*;
use crate::message::DeviceHealth;
use core::time::Duration;

#[test]
fn the_worst_fact_counts_and_slow_is_not_stalled() {
    let well = HealthFacts { longest_free_bytes: 1 << 30, ..HealthFacts::default() };
    let ms = |ms| Some(Duration::from_millis(ms));
    assert_eq!(health(&well), DeviceHealth::Ok);
    assert_eq!(health(&HealthFacts { in_flight: ms(200), service_time: ms(1), ..well }), DeviceHealth::Ok);
    assert_eq!(
        health(&HealthFacts { in_flight: ms(300), service_time: ms(1), ..well }),
        DeviceHealth::Stalled
    );
    // 256 KiB at 0.52 MB/s take half a second: honest, only slow.
    assert_eq!(health(&HealthFacts { in_flight: ms(2000), service_time: ms(500), ..well }), DeviceHealth::Ok);
    assert_eq!(
        health(&HealthFacts { in_flight: ms(9000), service_time: ms(500), ..well }),
        DeviceHealth::Stalled
    );
    assert_eq!(health(&HealthFacts { in_flight: ms(1500), ..well }), DeviceHealth::Ok);
    // A flush takes along what others wrote; what its device's usual request takes says nothing of it.
    let flush = HealthFacts { flushing: true, service_time: ms(1), flush_time: ms(20), ..well };
    assert_eq!(health(&HealthFacts { in_flight: ms(1900), ..flush }), DeviceHealth::Ok);
    assert_eq!(health(&HealthFacts { in_flight: ms(2100), ..flush }), DeviceHealth::Stalled);
    assert_eq!(health(&HealthFacts { in_flight: ms(2100), flush_time: ms(150), ..flush }), DeviceHealth::Ok);
    assert_eq!(
        health(&HealthFacts { in_flight: ms(2500), flush_time: ms(150), ..flush }),
        DeviceHealth::Stalled
    );
    assert_eq!(health(&HealthFacts { longest_free_bytes: 1000, ..well }), DeviceHealth::Full);
    assert_eq!(health(&HealthFacts { refused_as_full: ms(100), ..well }), DeviceHealth::Full);
    assert_eq!(health(&HealthFacts { refused_as_full: ms(9000), ..well }), DeviceHealth::Ok);
    let failed = HealthFacts { failed: true, in_flight: ms(9000), ..well };
    assert_eq!(health(&failed), DeviceHealth::Failed);
    assert_eq!(health(&HealthFacts { reads_fail: true, ..well }), DeviceHealth::Failed);
}
