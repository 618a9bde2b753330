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
