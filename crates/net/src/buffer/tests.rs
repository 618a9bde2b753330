use super::*;
use steadfast_protocol::message::PAYLOAD_BYTES_MAX;

const LEN: usize = PAYLOAD_BYTES_MAX as usize;

#[test]
fn a_buffer_is_used_again_once_it_was_dropped_and_not_before() {
    let mut first = payload_buffer(LEN);
    first.extend_from_slice(&[1; LEN]);
    let at = first.as_ptr();
    let mut second = payload_buffer(LEN);
    assert_ne!(second.as_ptr(), at);
    second.extend_from_slice(&[2; LEN]);
    assert!(first.iter().all(|&byte| byte == 1));
    // A part that somebody still holds keeps the whole.
    let part = first.split_to(100).freeze();
    drop(first);
    assert_ne!(payload_buffer(LEN).as_ptr(), at);
    drop(part);
    let reused = (0..LOOKED_AT).map(|_| payload_buffer(LEN)).find(|buffer| buffer.as_ptr() == at);
    let reused = reused.expect("the buffer came free");
    assert!(reused.is_empty() && reused.capacity() >= LEN);
    assert!(second.iter().all(|&byte| byte == 2));
}

#[test]
fn however_many_are_held_few_are_kept() {
    let held: Vec<_> = (0..3 * KEPT_MAX).map(|_| payload_buffer(LEN)).collect();
    assert!(held.iter().all(|buffer| buffer.is_empty() && buffer.capacity() >= LEN));
    KEPT.with_borrow(|kept| assert_eq!(kept[2].len(), KEPT_MAX));
}

#[test]
fn every_length_gets_room() {
    for len in [0, 1, SMALL_BYTES - 1, SMALL_BYTES, (64 << 10) + 1, (128 << 10) + 1, LEN, LEN + 1] {
        let buffer = payload_buffer(len);
        assert!(buffer.is_empty() && buffer.capacity() >= len, "{len}");
    }
}
