use super::*;

/// What one piece of the store is tested on: a pool of its own, so that tests do not meet.
fn pool(bytes_max: usize) -> Kept {
    Kept { shelves: Default::default(), slabs: None, bytes: 0, bytes_max }
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
fn buffers_begin_with_a_page() {
    for mut pool in [pool(0), pool(10 * LEN), slab_pool(0), slab_pool(4 * SLAB_BYTES)] {
        for (class, &size) in SIZES.iter().enumerate() {
            for _ in 0..3 {
                let buffer = pool.take(class);
                assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT) && buffer.capacity() >= size);
            }
        }
    }
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

/// One that works on segments.
fn slab_pool(bytes_max: usize) -> Kept {
    let mut pool = pool(0);
    pool.keep_more(bytes_max);
    pool
}

#[test]
fn buffers_of_segments_lie_side_by_side_in_large_pages() {
    for (class, size) in SIZES.into_iter().enumerate() {
        let mut pool = slab_pool(2 * SLAB_BYTES);
        let mut held: Vec<_> = (0..SLAB_BYTES / size).map(|_| pool.take(class)).collect();
        let slab = held[0].as_ptr().addr();
        assert!(slab.is_multiple_of(SLAB_BYTES));
        for (place, buffer) in held.iter_mut().enumerate() {
            assert_eq!((buffer.as_ptr().addr(), buffer.capacity()), (slab + place * size, size));
            buffer.resize(size, place as u8);
        }
        let whole = |(place, buffer): (usize, &BytesMut)| buffer.iter().all(|&byte| byte == place as u8);
        assert!(held.iter().enumerate().all(whole));
        // Another slab while one buffer of the first is held, then the first again.
        let last = held.pop().unwrap();
        drop(held);
        let next = pool.take(class);
        assert_ne!(next.as_ptr().addr(), slab);
        drop(last);
        let others: Vec<_> = (1..SLAB_BYTES / size).map(|_| pool.take(class)).collect();
        let again = pool.take(class);
        assert!(again.is_empty() && again.as_ptr().addr() == slab, "{size}");
        assert_eq!(pool.bytes, 2 * SLAB_BYTES);
        drop((next, others));
    }
}

#[test]
fn slabs_of_another_size_make_room_and_what_does_not_fit_is_not_kept() {
    let mut pool = slab_pool(3 * SLAB_BYTES);
    let each = SLAB_BYTES / LEN;
    let held: Vec<_> = (0..5 * each).map(|_| pool.take(LARGEST)).collect();
    assert!(held.iter().all(|buffer| buffer.is_empty() && buffer.capacity() >= LEN));
    let slabs = |pool: &Kept, class: usize| pool.slabs.as_ref().unwrap()[class].len();
    assert_eq!((slabs(&pool, LARGEST), pool.bytes), (3, 3 * SLAB_BYTES));
    drop(pool.take(0));
    assert_eq!(slabs(&pool, 0), 0, "nothing is free");
    drop(held);
    let small: Vec<_> = (0..2 * SLAB_BYTES / SIZES[0]).map(|_| pool.take(0)).collect();
    assert_eq!((slabs(&pool, 0), slabs(&pool, LARGEST), pool.bytes), (2, 1, 3 * SLAB_BYTES));
    drop(small);
}
