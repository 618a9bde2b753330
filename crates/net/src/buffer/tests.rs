use super::*;

/// What one piece of the store is tested on: a pool of its own, so that tests do not meet.
pub(super) fn pool(bytes_max: usize) -> Kept {
    Kept::new(bytes_max)
}

const LARGEST: usize = SIZES.len() - 1;
const LEN: usize = SIZES[LARGEST];

#[test]
fn a_slab_is_used_again_once_its_buffers_were_dropped_and_not_before() {
    let each = SLAB_BYTES / LEN;
    let mut pool = pool(10 * SLAB_BYTES);
    let fill = |pool: &mut Kept, byte| -> Vec<BytesMut> {
        let taken = (0..each).map(|_| pool.take(LARGEST));
        taken
            .map(|mut buffer| {
                buffer.extend_from_slice(&[byte; LEN]);
                buffer
            })
            .collect()
    };
    let mut first = fill(&mut pool, 1);
    let at: Vec<_> = first.iter().map(|buffer| buffer.as_ptr()).collect();
    let second = fill(&mut pool, 2);
    assert!(second.iter().all(|buffer| !at.contains(&buffer.as_ptr())));
    assert!(first.iter().all(|buffer| buffer.iter().all(|&byte| byte == 1)));
    // A part that somebody still holds keeps the whole.
    let part = first.pop().unwrap().split_to(100).freeze();
    drop(first);
    let third = fill(&mut pool, 3);
    assert!(third.iter().all(|buffer| !at.contains(&buffer.as_ptr())) && part.iter().all(|&byte| byte == 1));
    drop(part);
    let again: Vec<_> = (0..each).map(|_| pool.take(LARGEST)).collect();
    assert!(again.iter().all(|buffer| at.contains(&buffer.as_ptr()) && buffer.is_empty()));
    assert!(second.iter().all(|buffer| buffer.iter().all(|&byte| byte == 2)));
}

#[test]
fn buffers_begin_with_a_page() {
    for mut pool in [pool(0), pool(4 * SLAB_BYTES)] {
        for (class, &size) in SIZES.iter().enumerate() {
            for _ in 0..3 {
                let buffer = pool.take(class);
                assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT) && buffer.capacity() >= size);
            }
        }
    }
}

#[test]
fn every_length_gets_room() {
    for len in [0, 1, SMALL_BYTES - 1, SMALL_BYTES, (64 << 10) + 1, (128 << 10) + 1, LEN, LEN + 1] {
        let buffer = payload_buffer(len);
        assert!(buffer.is_empty() && buffer.capacity() >= len, "{len}");
        assert!(zeroed_buffer(len) == vec![0; len], "{len}");
    }
}

#[test]
fn buffers_lie_side_by_side_in_large_pages() {
    for (class, size) in SIZES.into_iter().enumerate() {
        let mut pool = pool(2 * SLAB_BYTES);
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
    let mut pool = pool(3 * SLAB_BYTES);
    let each = SLAB_BYTES / LEN;
    let held: Vec<_> = (0..5 * each).map(|_| pool.take(LARGEST)).collect();
    assert!(held.iter().all(|buffer| buffer.is_empty() && buffer.capacity() >= LEN));
    let slabs = |pool: &Kept, class: usize| pool.slabs[class].len();
    assert_eq!((slabs(&pool, LARGEST), pool.bytes), (3, 3 * SLAB_BYTES));
    drop(pool.take(0));
    assert_eq!(slabs(&pool, 0), 0, "nothing is free");
    drop(held);
    let small: Vec<_> = (0..2 * SLAB_BYTES / SIZES[0]).map(|_| pool.take(0)).collect();
    assert_eq!((slabs(&pool, 0), slabs(&pool, LARGEST), pool.bytes), (2, 1, 3 * SLAB_BYTES));
    drop(small);
}

#[test]
fn more_is_kept_where_it_is_asked_for() {
    let mut pool = pool(SLAB_BYTES);
    let each = SLAB_BYTES / LEN;
    pool.keep_more(0);
    let held: Vec<_> = (0..3 * each).map(|_| pool.take(LARGEST)).collect();
    assert_eq!(pool.bytes, SLAB_BYTES);
    pool.keep_more(3 * SLAB_BYTES);
    let more: Vec<_> = (0..3 * each).map(|_| pool.take(LARGEST)).collect();
    assert_eq!(pool.bytes, 3 * SLAB_BYTES);
    drop((held, more));
}
