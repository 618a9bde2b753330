use super::*;

/// What one piece of the store is tested on: a pool of its own, so that tests do not meet.
fn pool(bytes_max: usize) -> Kept {
    Kept { shelves: Default::default(), bytes: 0, bytes_max }
}

const LARGEST: usize = SIZES.len() - 1;
const LEN: usize = SIZES[LARGEST];

#[test]
fn a_buffer_is_used_again_once_it_was_dropped_and_not_before() {
    let mut pool = pool(10 * LEN);
    let mut first = pool.take(LARGEST);
    first.extend_from_slice(&[1; LEN]);
    let at = first.as_ptr();
    let mut second = pool.take(LARGEST);
    assert_ne!(second.as_ptr(), at);
    second.extend_from_slice(&[2; LEN]);
    assert!(first.iter().all(|&byte| byte == 1));
    // A part that somebody still holds keeps the whole.
    let part = first.split_to(100).freeze();
    drop(first);
    assert_ne!(pool.take(LARGEST).as_ptr(), at);
    drop(part);
    let reused = (0..LOOKED_AT).map(|_| pool.take(LARGEST)).find(|buffer| buffer.as_ptr() == at);
    let reused = reused.expect("the buffer came free");
    assert!(reused.is_empty() && reused.capacity() >= LEN);
    assert!(second.iter().all(|&byte| byte == 2));
}

#[test]
fn however_many_are_held_few_are_kept() {
    let mut pool = pool(5 * LEN + 1);
    let held: Vec<_> = (0..20).map(|_| pool.take(LARGEST)).collect();
    assert!(held.iter().all(|buffer| buffer.is_empty() && buffer.capacity() >= LEN));
    assert_eq!((pool.shelves[LARGEST].len(), pool.bytes), (5, 5 * LEN));
}

#[test]
fn buffers_of_another_size_make_room_when_they_are_free() {
    let mut pool = pool(4 * LEN);
    let held: Vec<_> = (0..4).map(|_| pool.take(LARGEST)).collect();
    let small = SIZES[0];
    drop(pool.take(0));
    assert_eq!((pool.shelves[0].len(), pool.bytes), (0, 4 * LEN), "nothing is free");
    drop(held);
    let held: Vec<_> = (0..3 * LEN / small).map(|_| pool.take(0)).collect();
    assert_eq!((pool.shelves[0].len(), pool.shelves[LARGEST].len()), (held.len(), 1));
    assert_eq!(pool.bytes, 4 * LEN);
}

#[test]
fn every_length_gets_room() {
    for len in [0, 1, SMALL_BYTES - 1, SMALL_BYTES, (64 << 10) + 1, (128 << 10) + 1, LEN, LEN + 1] {
        let buffer = payload_buffer(len);
        assert!(buffer.is_empty() && buffer.capacity() >= len, "{len}");
        assert!(zeroed_buffer(len) == vec![0; len], "{len}");
    }
}
