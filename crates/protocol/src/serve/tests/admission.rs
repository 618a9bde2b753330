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
fn no_connection_takes_all_places() {
    let mut admission = Admission::new(Limits { streams_max: 30, ..Limits::default() });
    let taken = |admission: &mut Admission, connection, priority| {
        let more = |_: &u32| admission.admit_of(connection, priority, Load::default()).is_ok();
        (0..100).take_while(more).count()
    };
    // Two thirds, of control as of anything else.
    assert_eq!(taken(&mut admission, 1, Priority::Foreground), 20);
    assert_eq!(taken(&mut admission, 1, Priority::Control), 0);
    // What is left, and control up to the half that is the share of each of two.
    assert_eq!(taken(&mut admission, 2, Priority::Foreground), 10);
    assert_eq!(taken(&mut admission, 2, Priority::Control), 5);
    assert_eq!(taken(&mut admission, 3, Priority::Control), 12);
    for (connection, streams) in [(1, 20), (2, 15), (3, 12)] {
        (0..streams).for_each(|_| admission.closed_of(connection));
    }
    assert_eq!(admission.streams(), 0);
    assert_eq!(taken(&mut admission, 3, Priority::Background), 15, "all was given back");
    // Where few are taken everybody has what it asks at a time, however many there are.
    let mut admission = Admission::new(Limits { streams_max: 1024, ..Limits::default() });
    for connection in 0..100 {
        admission.admit_of(connection, Priority::Foreground, Load::default()).unwrap();
    }
    for priority in [Priority::Control, Priority::Foreground] {
        let asked = (0..32).map(|_| admission.admit_of(100, priority, Load::default()));
        assert!(asked.collect::<Result<(), _>>().is_ok(), "{priority:?}");
    }
    // Many connections have a place each all the same.
    let mut admission = Admission::new(Limits { streams_max: 2, ..Limits::default() });
    for connection in 0..10 {
        assert_eq!(taken(&mut admission, connection, Priority::Control), 1, "connection {connection}");
    }
}

/// A place comes back with the next answer; a device whose speed nobody knows may take long.
#[test]
fn who_is_refused_a_place_alone_is_to_come_back_soon() {
    let mut admission = Admission::new(Limits { streams_max: 4, ..Limits::default() });
    let refused = loop {
        if let Err(refused) = admission.admit_of(1, Priority::Control, Load::default()) {
            break refused;
        }
    };
    assert!(matches!(refused, Fault::Refused { retry_after_ms: 5..=100, .. }), "{refused:?}");
    let queued = Load { queued_bytes: 64 << 20, ..Load::default() };
    let refused = admission.admit_of(1, Priority::Foreground, queued);
    assert!(matches!(refused, Err(Fault::Refused { retry_after_ms: 2000, .. })), "{refused:?}");
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
    // One slice of each is set aside, the others are taken while there is room.
    let slices: Vec<usize> = tickets.iter().map(|ticket| ticket.slices_max).collect();
    assert_eq!((slices.len(), slices[0], slices[31]), (32, 4, 1));
    admission.read_closed(tickets.remove(0));
    assert_eq!(admission.streams() as usize, tickets.len());
    assert_eq!(admission.admit_read(Priority::Foreground, load, 256 << 10).unwrap().slices_max, 1);
}

const SLICE: u32 = 256 << 10;

/// All that a connection gets, of streams and of slices for them.
fn take_all(admission: &mut Admission, reader: ReaderId) -> Vec<(ReadTicket, usize)> {
    let mut taken = Vec::new();
    while let Ok(ticket) = admission.admit_read_of(reader, Priority::Foreground, Load::default(), SLICE) {
        taken.push((ticket, 0));
    }
    for (ticket, slices) in &mut taken {
        while *slices < ticket.slices_max && admission.slice_read(ticket, SLICE) {
            *slices += 1;
        }
    }
    taken
}

#[test]
fn no_connection_takes_what_others_need_and_every_stream_has_a_slice() {
    let mut admission = Admission::new(Limits { reading_bytes_max: 32 << 20, ..Limits::default() });
    let mut readers: Vec<_> = (0..8).map(|reader| take_all(&mut admission, reader)).collect();
    let slices: Vec<usize> =
        readers.iter().map(|taken| taken.iter().map(|(_, slices)| slices).sum()).collect();
    // Two thirds of three quarters, what is left of these; then one of what is kept for those who have nothing.
    assert_eq!(slices, [64, 32, 1, 1, 1, 1, 1, 1]);
    assert!(readers.iter().flatten().all(|(_, slices)| *slices >= 1), "{slices:?}");
    // What is given back another takes, up to its share, which is smaller now that there are many.
    for (ticket, slices) in readers.remove(0) {
        let mut ticket = ticket;
        (0..slices).for_each(|_| admission.slice_left(&mut ticket, SLICE));
        admission.read_closed(ticket);
    }
    let more = take_all(&mut admission, 7);
    assert_eq!(more.iter().map(|(_, slices)| slices).sum::<usize>(), 20);
    for (ticket, _) in readers.into_iter().flatten().chain(more) {
        admission.read_closed(ticket);
    }
    assert_eq!(admission.streams(), 0);
    assert_eq!(take_all(&mut admission, 0).len(), 64, "all was given back");
}

#[test]
fn memory_is_wanted_until_there_is_some_for_whoever_found_none() {
    let mut admission = Admission::new(Limits { reading_bytes_max: 1 << 20, ..Limits::default() });
    let open = |admission: &mut Admission, reader| {
        admission.admit_read_of(reader, Priority::Foreground, Load::default(), SLICE)
    };
    let mut floors: Vec<_> = (0..4).map(|reader| open(&mut admission, reader).unwrap()).collect();
    assert!(!admission.is_wanted());
    open(&mut admission, 4).unwrap_err();
    assert!(admission.is_wanted());
    // One is enough.
    admission.read_closed(floors.remove(0));
    assert!(!admission.is_wanted());
    floors.push(open(&mut admission, 4).unwrap());
    assert!(!admission.is_wanted(), "it has some");
}

#[test]
fn a_stream_reads_ahead_while_there_is_room_and_one_slice_ever() {
    let mut admission = Admission::new(Limits { reading_bytes_max: 4 << 20, ..Limits::default() });
    let mut first = admission.admit_read_of(1, Priority::Foreground, Load::default(), SLICE).unwrap();
    let mut ahead = 0;
    while ahead < first.slices_max && admission.slice_read(&mut first, SLICE) {
        ahead += 1;
    }
    assert!(ahead > 1, "{ahead}");
    for reader in 2.. {
        match admission.admit_read_of(reader, Priority::Foreground, Load::default(), SLICE) {
            Ok(mut ticket) => {
                assert!(admission.slice_read(&mut ticket, SLICE));
                admission.slice_left(&mut ticket, SLICE);
                assert!(admission.slice_read(&mut ticket, SLICE));
            }
            Err(Fault::Refused { reason: RefusalReason::Overloaded, .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    (0..ahead).for_each(|_| admission.slice_left(&mut first, SLICE));
    assert!(admission.slice_read(&mut first, SLICE));
    assert!(!admission.slice_read(&mut first, SLICE), "the others have the rest");
    admission.read_closed(first);
}
