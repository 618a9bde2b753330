use super::*;

/// What a peer sends without reading anything must not fill the memory.
#[test]
fn a_stream_that_is_cancelled_again_and_again_is_purged_once() {
    let shared = Shared::new(false, Options::default());
    let arrives = |kind, stream| {
        let arrived = shared.arrived(Header::new(kind, stream), &mut Vec::new());
        assert!(arrived.is_ok());
    };
    for stream in [1, 3] {
        arrives(FrameKind::Open, stream);
        // Somebody serves it, and has not answered.
        assert!(shared.poll_incoming(Waker::noop()).is_ready());
        for _ in 0..1000 {
            arrives(FrameKind::Cancel, stream);
        }
    }
    assert_eq!(shared.lock().purged.len(), 2);
}

/// The server answered, dropped its handles, and nobody has written any of it when the caller gives up.
#[test]
fn what_is_queued_before_an_end_is_dropped_by_a_cancel() {
    let shared = Shared::new(false, Options::default());
    let arrives = |kind| assert!(shared.arrived(Header::new(kind, 1), &mut Vec::new()).is_ok());
    arrives(FrameKind::Open);
    assert!(shared.poll_incoming(Waker::noop()).is_ready());
    shared.data(1, Vec::new(), Bytes::from_static(&[7; 4096])).unwrap();
    shared.finish(1, Ok(Vec::new())).unwrap();
    shared.release(1);
    assert!(shared.lock().lanes.bulk_bytes() >= 4096);
    arrives(FrameKind::Cancel);
    assert_eq!(shared.lock().lanes.bulk_bytes(), 0);
    let sent = shared.lock().lanes.pop().expect("its END");
    assert_eq!((sent.header.kind, sent.header.stream), (FrameKind::End, 1));
    let purged = shared.lock().purged.len();
    arrives(FrameKind::Cancel);
    assert_eq!(shared.lock().purged.len(), purged, "nothing is queued any more");
}
