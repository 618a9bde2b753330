//! Event lists: what is added, and what is selected when.

use super::*;

fn request(id: u64, stream: u64, class: Priority, kind: Kind, offset: u64) -> Request {
    Request { id: RequestId(id), stream, class, kind, offset, bytes: 10, queued_at_ns: 0 }
}

fn drain(queue: &mut Queue, now_ns: u64) -> Vec<u64> {
    std::iter::from_fn(|| {
        let id = queue.select(now_ns, &NoEstimate)?;
        queue.dispatch(id).map(|r| r.id.0)
    })
    .collect()
}

#[test]
fn classes_first_then_arrival() {
    let mut queue = Queue::new();
    queue.add(request(1, 1, Priority::Background, Kind::Write, 0));
    queue.add(request(2, 2, Priority::Normal, Kind::Write, 0));
    queue.add(request(3, 3, Priority::Interactive, Kind::Write, 0));
    queue.add(request(4, 2, Priority::Normal, Kind::Control, 0));
    let writes = |queue: &Queue| [Priority::Normal, Priority::Background].map(|class| queue.writes(class));
    assert_eq!((queue.len(), queue.bytes(), writes(&queue)), (4, 40, [2, 3]));
    assert_eq!(drain(&mut queue, 0), [3, 2, 4, 1]);
    assert_eq!((queue.is_empty(), queue.bytes(), writes(&queue)), (true, 0, [0, 0]));
}

#[test]
fn reads_of_one_stream_go_by_offset() {
    let mut queue = Queue::new();
    for (id, stream, offset) in [(1, 1, 30), (2, 2, 5), (3, 1, 10), (4, 1, 20), (5, 2, 1)] {
        queue.add(request(id, stream, Priority::Normal, Kind::Read, offset));
    }
    // Streams take their turns by arrival; inside a turn the lowest offset of the stream goes.
    assert_eq!(drain(&mut queue, 0), [3, 5, 4, 1, 2]);
}

#[test]
fn a_held_request_waits_for_its_time() {
    let mut queue = Queue::new();
    queue.add(request(1, 1, Priority::Normal, Kind::Read, 0));
    queue.add(request(2, 1, Priority::Normal, Kind::Read, 1));
    assert!(queue.hold_until(RequestId(1), 100));
    assert!(!queue.hold_until(RequestId(9), 100));
    assert_eq!(drain(&mut queue, 99), [2]);
    assert_eq!((queue.next_ready_ns(), queue.len()), (Some(100), 1));
    assert_eq!(drain(&mut queue, 100), [1]);
    assert_eq!(queue.next_ready_ns(), None);
}

#[test]
fn withdrawn_and_cancelled_requests_are_gone() {
    let mut queue = Queue::new();
    for id in 1..=6 {
        queue.add(request(id, id % 2, Priority::Normal, Kind::Read, id));
    }
    queue.hold_until(RequestId(3), 1000);
    assert_eq!(queue.withdraw(RequestId(2)).map(|r| r.id), Some(RequestId(2)));
    assert_eq!(queue.withdraw(RequestId(2)), None);
    assert_eq!(queue.cancel_stream(1), [RequestId(1), RequestId(3), RequestId(5)]);
    assert_eq!(queue.cancel_stream(1), []);
    assert_eq!(drain(&mut queue, 5000), [4, 6]);
}

#[test]
fn what_is_put_off_for_long_goes_in_between_now_and_then() {
    let second = 1_000_000_000;
    let mut queue = Queue::new();
    queue.add(request(1, 1, Priority::Background, Kind::Write, 0));
    queue.add(request(2, 1, Priority::Background, Kind::Write, 0));
    (10..40).for_each(|id| queue.add(request(id, 2, Priority::Normal, Kind::Write, 0)));
    let next = |queue: &mut Queue, at: u64| {
        let id = queue.select(at, &NoEstimate).unwrap();
        assert_eq!(queue.select(at, &NoEstimate), Some(id), "it stays until it is dispatched");
        queue.dispatch(id);
        id.0
    };
    assert_eq!(next(&mut queue, second / 4), 10);
    assert_eq!(next(&mut queue, second), 1);
    // The other waits again; what somebody waits for goes before it, but not before ordinary data that has waited.
    assert_eq!([second, second + 1, second * 5 / 4].map(|at| next(&mut queue, at)), [11, 12, 13]);
    queue.add(request(3, 3, Priority::Interactive, Kind::Write, 0));
    assert_eq!([2 * second; 3].map(|at| next(&mut queue, at)), [14, 3, 2]);
}

/// Reads of a reservation come as fast as they are served; an update beside them takes several requests, each behind the other.
#[test]
fn what_somebody_waits_for_all_the_time_leaves_the_others_a_little() {
    const STEP: u64 = 1_000_000;
    let mut queue = Queue::new();
    let mut next_id = 10;
    let mut urgent = |queue: &mut Queue| {
        queue.add(request(next_id, 1, Priority::Interactive, Kind::Read, next_id));
        next_id += 1;
    };
    (0..3).for_each(|_| urgent(&mut queue));
    (1..=5).for_each(|id| queue.add(request(id, 2, Priority::Normal, Kind::Write, 0)));
    (6..=7).for_each(|id| queue.add(request(id, 3, Priority::Background, Kind::Write, 0)));
    let mut others = Vec::new();
    for at in (0..20_000).map(|step| step * STEP) {
        let id = queue.select(at, &NoEstimate).unwrap();
        assert_eq!(queue.select(at, &NoEstimate), Some(id), "it stays until it is dispatched");
        queue.dispatch(id);
        match id.0 {
            id @ 1..10 => others.push((at / STEP, id)),
            _ => urgent(&mut queue),
        }
    }
    assert_eq!(others, [(50, 1), (100, 2), (150, 3), (200, 4), (250, 5), (5000, 6), (10_000, 7)]);
}
