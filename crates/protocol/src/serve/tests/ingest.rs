//! What arrives at a primary: slices in order, memory set aside whole.

use super::super::{Budget, IngestStream};
use crate::{Time, layout::ParityGeometry, message::Fault, policy::Parity};
use core::time::Duration;

const PATIENCE: Duration = Duration::from_secs(1);
const SLICE: u32 = 256 << 10;
const SUMS: u32 = 64;

/// 16 MiB under (6, 4): four data chunks of four blocks of 1 MiB.
fn shape() -> ParityGeometry {
    ParityGeometry::of(&Parity::default(), 16 << 20)
}

fn begun(budget: &mut Budget) -> IngestStream {
    IngestStream::new(Time(0), &shape(), PATIENCE, budget).unwrap().0
}

#[test]
fn memory_is_set_aside_whole_or_refused_and_given_back() {
    let mut budget = Budget::new(50 << 20);
    let (mut first, credit) = IngestStream::new(Time(0), &shape(), PATIENCE, &mut budget).unwrap();
    assert_eq!(credit, 16 << 20);
    let second = IngestStream::new(Time(0), &shape(), PATIENCE, &mut budget);
    assert!(second.is_ok(), "twice 24 MiB fit");
    let third = IngestStream::new(Time(0), &shape(), PATIENCE, &mut budget);
    assert!(matches!(third, Err(Fault::Refused { .. })));
    assert_eq!(budget.set_aside_bytes(), 48 << 20);
    first.leave(&mut budget);
    assert_eq!(budget.set_aside_bytes(), 24 << 20);
    assert!(IngestStream::new(Time(0), &shape(), PATIENCE, &mut budget).is_ok());
}

#[test]
fn small_segments_do_not_take_all_streams() {
    let mut budget = Budget::new(1 << 30);
    let small = ParityGeometry::of(&Parity::default(), 1);
    let taken = (0..1000).take_while(|_| IngestStream::new(Time(0), &small, PATIENCE, &mut budget).is_ok());
    assert_eq!(taken.count(), 64);
}

#[test]
fn blocks_are_whole_in_order_and_silence_ends_it_until_all_is_there() {
    let mut stream = begun(&mut Budget::new(50 << 20));
    for index in 0..16 {
        for slice in 0..4 {
            let now = Time(0) + PATIENCE * (4 * index + slice);
            assert_eq!(
                stream.gives_up_at().unwrap(),
                now + if now == Time(0) { PATIENCE } else { Duration::ZERO }
            );
            assert_eq!(stream.slice(now, index, slice * SLICE, SLICE, SUMS).unwrap(), slice == 3);
        }
    }
    assert_eq!(stream.gives_up_at(), None);
    assert!(stream.slice(Time(0), 16, 0, SLICE, SUMS).is_err(), "there is no such original");
}

#[test]
fn what_does_not_continue_what_came_is_refused() {
    for (index, offset, bytes, sums) in [
        (1, 0, SLICE, SUMS),
        (0, SLICE, SLICE, SUMS),
        (0, 0, 0, 0),
        (0, 0, 2 << 20, 512),
        (0, 0, 5000, 2),
        (0, 0, SLICE, SUMS - 1),
    ] {
        let refused = begun(&mut Budget::new(50 << 20)).slice(Time(0), index, offset, bytes, sums);
        assert!(matches!(refused, Err(Fault::Protocol(_))), "{index} {offset} {bytes} {sums}");
    }
}
