use super::super::*;
use super::rng;
use crate::{
    DeviceId, ReservationId, Time,
    message::{Access, Fault, NodeFault, Priority, RefusalReason, ReservationCounts, Reserve},
};
use core::time::Duration;
use rand_core::Rng;
use std::collections::BTreeMap;

const MB: u64 = 1_000_000;
const DISK: Capacity =
    Capacity { read_bytes_per_s: 100 * MB, write_bytes_per_s: 50 * MB, sharing_ppm: [0; 4] };

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn wish(reservation: u128, access: Access, bytes_per_s: u64) -> Reserve {
    let reservation = ReservationId(reservation);
    Reserve { device: DeviceId(1), reservation, access, bytes_per_s, lease_ms: 1000, background: false }
}

fn refused(answer: Result<Granted, Fault>) -> (RefusalReason, u32) {
    match answer {
        Err(Fault::Refused { reason, retry_after_ms }) => (reason, retry_after_ms),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_kept_is_a_share_of_the_devices_time() {
    let mut kept = Reservations::new(AdmissionPolicy::Capacity);
    // 40 of 100 MB/s read and 25 of 50 MB/s written are 0.9 of the time: all that may be reserved.
    kept.reserve(at(0), &wish(1, Access::Read, 40 * MB), &DISK).unwrap();
    kept.reserve(at(100), &wish(2, Access::Write, 25 * MB), &DISK).unwrap();
    assert_eq!(kept.reserved_bytes_per_s(Access::Read), 40 * MB);
    assert_eq!(kept.reserved_bytes_per_s(Access::Write), 25 * MB);
    assert_eq!(kept.share(ReservationId(2), &DISK), Some(0.5));
    assert!((kept.share_left(&DISK) - 0.1).abs() < 1e-9);
    let more = kept.reserve(at(100), &wish(3, Access::Read, MB), &DISK);
    // The first lease ends at 1000.
    assert_eq!(refused(more), (RefusalReason::Reserved, 900));
    // Both must end for this one, and no lease end helps the next.
    assert_eq!(
        refused(kept.reserve(at(100), &wish(3, Access::Read, 80 * MB), &DISK)),
        (RefusalReason::Reserved, 1000)
    );
    assert_eq!(
        refused(kept.reserve(at(100), &wish(3, Access::Write, 46 * MB), &DISK)).0,
        RefusalReason::NoCapacity
    );
    kept.release(ReservationId(1));
    kept.reserve(at(100), &wish(3, Access::Read, 40 * MB), &DISK).unwrap();
    let nothing = kept.reserve(at(100), &wish(4, Access::Read, 0), &DISK);
    assert!(matches!(nothing, Err(Fault::Node(NodeFault::Invalid(_)))));
}

#[test]
fn a_dead_clients_reservation_ends_with_its_lease() {
    let mut kept = Reservations::new(AdmissionPolicy::Capacity);
    kept.reserve(at(0), &wish(1, Access::Read, 90 * MB), &DISK).unwrap();
    assert_eq!(kept.wake_at(), Some(at(1000)));
    // Renewed once, then silent.
    kept.reserve(at(400), &wish(1, Access::Read, 90 * MB), &DISK).unwrap();
    assert_eq!(refused(kept.reserve(at(1399), &wish(2, Access::Read, MB), &DISK)).1, 5);
    kept.expire(at(1399));
    assert!(!kept.is_empty());
    kept.reserve(at(1400), &wish(2, Access::Read, 90 * MB), &DISK).unwrap();
    assert_eq!(kept.share(ReservationId(1), &DISK), None);
    // However long it wants it, it gets a minute; however short, a quarter of a second.
    let long = Reserve { lease_ms: u32::MAX, ..wish(2, Access::Read, 90 * MB) };
    assert_eq!(kept.reserve(at(1400), &long, &DISK).unwrap().lease, LEASE_MAX);
    let short = Reserve { lease_ms: 0, ..long };
    assert_eq!(kept.reserve(at(1400), &short, &DISK).unwrap().lease, Duration::from_millis(250));
    kept.expire(at(1650));
    assert!(kept.is_empty());
    let counts = ReservationCounts { granted: 2, refused: 1, expired: 2, ..ReservationCounts::default() };
    assert_eq!(kept.counts(), counts);
}

#[test]
fn asked_again_it_is_renewed_and_a_promise_outlives_a_new_measurement() {
    let mut kept = Reservations::new(AdmissionPolicy::Capacity);
    kept.reserve(at(0), &wish(1, Access::Read, 60 * MB), &DISK).unwrap();
    // The answer was lost: the same again is the same reservation.
    kept.reserve(at(10), &wish(1, Access::Read, 60 * MB), &DISK).unwrap();
    assert_eq!(kept.reserved_bytes_per_s(Access::Read), 60 * MB);
    // More than there is: refused, and what was kept stays.
    let own = kept.reserve(at(20), &wish(1, Access::Read, 95 * MB), &DISK);
    assert_eq!(refused(own).0, RefusalReason::NoCapacity);
    assert_eq!(kept.reserved_bytes_per_s(Access::Read), 60 * MB);
    kept.reserve(at(20), &wish(1, Access::Read, 80 * MB), &DISK).unwrap();
    assert_eq!(kept.reserved_bytes_per_s(Access::Read), 80 * MB);
    let slower = Capacity { read_bytes_per_s: 40 * MB, ..DISK };
    kept.reserve(at(30), &wish(1, Access::Read, 80 * MB), &slower).unwrap();
    assert_eq!(refused(kept.reserve(at(30), &wish(2, Access::Read, MB), &slower)).0, RefusalReason::Reserved);
}

#[test]
fn sharing_costs_what_was_measured() {
    // Two streams get 80 % of the throughput of one, four 50 %.
    let rotating = Capacity { sharing_ppm: [800_000, 500_000, 0, 0], ..DISK };
    for (streams, left) in [(1, 1.0), (2, 0.8), (3, 0.65), (4, 0.5), (40, 0.5)] {
        assert!((rotating.efficiency(streams) - left).abs() < 1e-9, "{streams}");
    }
    let mut kept = Reservations::new(AdmissionPolicy::Capacity);
    let reserve =
        |kept: &mut Reservations, id| kept.reserve(at(0), &wish(id, Access::Read, 35 * MB), &rotating);
    reserve(&mut kept, 1).unwrap();
    reserve(&mut kept, 2).unwrap();
    // 70 are 0.8 - 0.1 of the disk; on a device without positioning there would be room for 20 more.
    assert_eq!(
        refused(kept.reserve(at(0), &wish(3, Access::Read, MB), &rotating)).0,
        RefusalReason::Reserved
    );
    kept.reserve(at(0), &wish(3, Access::Read, 20 * MB), &DISK).unwrap();
}

#[test]
fn an_unmeasured_device_takes_one_at_a_time() {
    let mut kept = Reservations::new(AdmissionPolicy::Capacity);
    let unknown = Capacity::default();
    kept.reserve(at(0), &wish(1, Access::Write, u64::MAX), &unknown).unwrap();
    assert_eq!(
        refused(kept.reserve(at(0), &wish(2, Access::Write, 1), &unknown)),
        (RefusalReason::Reserved, 200)
    );
    kept.release(ReservationId(1));
    kept.reserve(at(0), &wish(2, Access::Write, 1), &unknown).unwrap();
    // Speeds of one kind stand in for the other.
    let reads = Capacity { write_bytes_per_s: 0, ..DISK };
    kept.reserve(at(0), &wish(3, Access::Write, 80 * MB), &reads).unwrap();
}

#[test]
fn priority_takes_from_the_background_no_more_than_it_needs() {
    let background = |id, rate| Reserve { background: true, ..wish(id, Access::Read, rate) };
    let mut kept = Reservations::new(AdmissionPolicy::Priority);
    for id in 1..=3 {
        kept.reserve(at(0), &background(id, 30 * MB), &DISK).unwrap();
    }
    // Equals displace nobody.
    assert_eq!(refused(kept.reserve(at(0), &background(9, MB), &DISK)).0, RefusalReason::Reserved);
    // The latest goes first, and its renewal is refused.
    let granted = kept.reserve(at(0), &wish(4, Access::Read, 20 * MB), &DISK).unwrap();
    assert_eq!(granted.displaced, [ReservationId(3)]);
    assert_eq!(refused(kept.reserve(at(10), &background(3, 30 * MB), &DISK)).0, RefusalReason::Reserved);
    // What cannot be had displaces nobody.
    assert_eq!(
        refused(kept.reserve(at(10), &wish(5, Access::Read, 75 * MB), &DISK)).0,
        RefusalReason::Reserved
    );
    assert_eq!(kept.reserved_bytes_per_s(Access::Read), 80 * MB);
    let granted = kept.reserve(at(10), &wish(5, Access::Read, 70 * MB), &DISK).unwrap();
    assert_eq!(granted.displaced, [ReservationId(2), ReservationId(1)]);
    let counts = ReservationCounts { held: 2, granted: 5, refused: 3, displaced: 3, ..Default::default() };
    assert_eq!(kept.counts(), counts);
    // By capacity the first to come stays, whoever comes.
    let mut kept = Reservations::new(AdmissionPolicy::Capacity);
    kept.reserve(at(0), &background(1, 90 * MB), &DISK).unwrap();
    assert_eq!(refused(kept.reserve(at(0), &wish(2, Access::Read, MB), &DISK)).0, RefusalReason::Reserved);
    // Open keeps nothing.
    let mut kept = Reservations::new(AdmissionPolicy::Open);
    kept.reserve(at(0), &wish(1, Access::Read, u64::MAX), &DISK).unwrap();
    assert!(kept.is_empty());
}

/// The latest go first; one that was too little, and still has room where an earlier one went, need not have gone.
#[test]
fn what_would_make_no_room_is_not_displaced_in_vain() {
    let background = |id, rate| Reserve { background: true, ..wish(id, Access::Read, rate) };
    let mut kept = Reservations::new(AdmissionPolicy::Priority);
    for (id, rate) in [(1, 10 * MB), (2, 50 * MB), (3, 5 * MB), (4, 20 * MB)] {
        kept.reserve(at(0), &background(id, rate), &DISK).unwrap();
    }
    // 90 MB/s may be reserved: beside 60 of them the first has room, and the third where the second went.
    let granted = kept.reserve(at(0), &wish(5, Access::Read, 60 * MB), &DISK).unwrap();
    assert_eq!(granted.displaced, [ReservationId(4), ReservationId(2)]);
    assert_eq!(kept.reserved_bytes_per_s(Access::Read), 75 * MB);
    let counts = ReservationCounts { held: 3, granted: 5, displaced: 2, ..Default::default() };
    assert_eq!(kept.counts(), counts);
    // Who stays is as late as before: whoever comes after goes first.
    kept.reserve(at(0), &background(6, 10 * MB), &DISK).unwrap();
    let granted = kept.reserve(at(0), &wish(7, Access::Read, 12 * MB), &DISK).unwrap();
    assert_eq!(granted.displaced, [ReservationId(6)]);
}

#[test]
fn the_number_of_reservations_is_bounded() {
    let mut kept = Reservations::new(AdmissionPolicy::Capacity);
    for id in 0..RESERVATIONS_MAX {
        kept.reserve(at(0), &wish(id as u128, Access::Read, 1), &DISK).unwrap();
    }
    let more = kept.reserve(at(1), &wish(u128::MAX, Access::Read, 1), &DISK);
    assert_eq!(refused(more), (RefusalReason::Overloaded, 999));
    kept.reserve(at(1), &wish(7, Access::Read, 1), &DISK).unwrap();
}

/// Whatever clients do, what is granted never exceeds what the device gives, and a refusal's time is right: nothing less
/// is enough when nobody renews, and the time told is.
#[test]
fn granted_never_exceeds_capacity_and_retry_times_are_right() {
    for case in 0..300 {
        let mut random = rng(case);
        let mut draw = |n: u64| random.next_u64() % n;
        let priority = draw(2) == 0;
        let policy = if priority { AdmissionPolicy::Priority } else { AdmissionPolicy::Capacity };
        let capacity = Capacity { sharing_ppm: [900_000, 700_000, 0, 400_000], ..DISK };
        let mut kept = Reservations::new(policy);
        let (mut now, mut asked) = (0, BTreeMap::new());
        for _ in 0..200 {
            now += draw(120);
            let access = if draw(2) == 0 { Access::Read } else { Access::Write };
            let ask = Reserve {
                lease_ms: 250 + draw(1000) as u32,
                background: draw(3) == 0,
                ..wish(draw(12).into(), access, 1 + draw(60 * MB))
            };
            match draw(4) {
                0 => kept.release(ask.reservation),
                _ => {
                    let before = kept.clone();
                    match kept.reserve(at(now), &ask, &capacity) {
                        Ok(granted) => {
                            assert!(priority || granted.displaced.is_empty());
                            asked.insert(ask.reservation, ask);
                            for displaced in granted.displaced {
                                let again = kept.clone().reserve(at(now), &asked[&displaced], &capacity);
                                assert!(again.is_err(), "case {case}: {displaced} would have had room");
                            }
                        }
                        Err(Fault::Refused { reason: RefusalReason::Reserved, retry_after_ms }) => {
                            // Alone at the node from here on, as if it were new.
                            let mut later = before.clone();
                            later.release(ask.reservation);
                            let then = now + u64::from(retry_after_ms);
                            later.reserve(at(then), &ask, &capacity).unwrap();
                            if retry_after_ms > 5 {
                                let mut sooner = before.clone();
                                sooner.release(ask.reservation);
                                assert!(sooner.reserve(at(then - 1), &ask, &capacity).is_err());
                            }
                        }
                        Err(fault) => assert!(matches!(fault, Fault::Refused { .. }), "{fault}"),
                    }
                }
            }
            kept.expire(at(now));
            let held: Vec<f64> = (0..12).filter_map(|id| kept.share(ReservationId(id), &capacity)).collect();
            let given = capacity.efficiency(held.len()) - BEST_EFFORT_SHARE;
            assert!(held.iter().sum::<f64>() <= given + 1e-6, "case {case}: {held:?} of {given}");
            // Each that was granted is there or ended in one way.
            let counts = kept.counts();
            assert_eq!(counts.held, held.len() as u64, "case {case}");
            let ended = counts.given_back + counts.expired + counts.displaced;
            assert_eq!(counts.granted, counts.held + ended, "case {case}: {counts:?}");
        }
    }
}

#[test]
fn a_reserved_stream_is_taken_where_others_are_refused() {
    let limits = Limits { streams_max: 2, queued_bytes_max: 1 << 20, reading_bytes_max: 4 << 20 };
    let mut admission = Admission::new(limits);
    admission.keep_for_reserved(true);
    let busy = Load { queued_bytes: 2 << 20, bytes_per_s: MB, reserved: false };
    assert!(admission.admit(Priority::Foreground, busy).is_err());
    let reserved = Load { reserved: true, ..busy };
    admission.admit(Priority::Foreground, reserved).unwrap();
    admission.closed();
    // A quarter of the memory for reads is left to those who reserved.
    let idle = Load::default();
    let mut admission = Admission::new(Limits { streams_max: 100, ..limits });
    admission.keep_for_reserved(true);
    let mut tickets = Vec::new();
    while let Ok(ticket) = admission.admit_read(Priority::Foreground, idle, 256 << 10) {
        tickets.push(ticket);
    }
    assert_eq!(tickets.len(), 12);
    let ticket =
        admission.admit_read(Priority::Foreground, Load { reserved: true, ..idle }, 256 << 10).unwrap();
    admission.read_closed(ticket);
    admission.keep_for_reserved(false);
    let ticket = admission.admit_read(Priority::Foreground, idle, 256 << 10).unwrap();
    admission.read_closed(ticket);
}
