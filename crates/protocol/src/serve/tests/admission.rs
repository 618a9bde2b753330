use super::super::*;
use crate::message::{Fault, Priority, RefusalReason};

#[test]
fn background_is_shed_first_and_control_never() {
    let mut admission =
        Admission::new(Limits { streams_max: 4, queued_bytes_max: 1 << 20, ..Limits::default() });
    let idle = Load::default();
    for _ in 0..2 {
        admission.admit(Priority::Background, idle).unwrap();
    }
    assert!(admission.admit(Priority::Background, idle).is_err());
    for _ in 0..2 {
        admission.admit(Priority::Foreground, idle).unwrap();
    }
    assert!(admission.admit(Priority::Foreground, idle).is_err());
    admission.admit(Priority::Control, idle).unwrap();
    assert_eq!(admission.streams(), 5);
    for _ in 0..2 {
        admission.closed();
    }
    admission.admit(Priority::Foreground, idle).unwrap();
}

#[test]
fn a_full_queue_says_when_it_is_worked_off() {
    let mut admission =
        Admission::new(Limits { streams_max: 100, queued_bytes_max: 64 << 20, ..Limits::default() });
    let retry = |admission: &mut Admission, queued_bytes, bytes_per_s| match admission
        .admit(Priority::Foreground, Load { queued_bytes, bytes_per_s, reserved: false })
    {
        Err(Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms }) => Some(retry_after_ms),
        Ok(()) => None,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(retry(&mut admission, 63 << 20, 1), None);
    // 64 MiB, of which half must go, at 100 MiB/s.
    assert_eq!(retry(&mut admission, 64 << 20, 100 << 20), Some(320));
    assert_eq!(retry(&mut admission, 64 << 20, u64::MAX), Some(5));
    assert_eq!(retry(&mut admission, 64 << 20, 1), Some(2000));
    assert_eq!(retry(&mut admission, 64 << 20, 0), Some(2000));
}

#[test]
fn read_streams_share_their_memory_and_the_last_are_refused() {
    let mut admission = Admission::new(Limits { reading_bytes_max: 8 << 20, ..Limits::default() });
    let load = Load { queued_bytes: 0, bytes_per_s: 100 << 20, reserved: false };
    let mut tickets = Vec::new();
    let refused = loop {
        match admission.admit_read(Priority::Foreground, load, 256 << 10) {
            Ok(ticket) => tickets.push(ticket),
            Err(fault) => break fault,
        }
    };
    assert!(matches!(refused, Fault::Refused { retry_after_ms: 40, .. }), "{refused:?}");
    let slices: Vec<usize> = tickets.iter().map(|ticket| ticket.slices_max).collect();
    assert_eq!(slices.iter().sum::<usize>(), 32);
    assert_eq!((slices[0], slices[slices.len() - 1]), (4, 1));
    admission.read_closed(tickets.remove(0));
    assert_eq!(admission.streams() as usize, tickets.len());
    assert_eq!(admission.admit_read(Priority::Foreground, load, 256 << 10).unwrap().slices_max, 1);
}
