//! The update cores' parts against plain models. Their order of events is `lab run codfs/checker`'s, their work on devices
//! that lose power `lab run codfs/storm`'s.

use super::super::parity_log::*;
use super::rng;
use bytes::Bytes;
use rand_core::Rng;

#[test]
fn a_gather_is_alone_on_its_rows_and_does_not_starve() {
    let mut locks = Locks::default();
    let (first, granted) = locks.acquire(0..10, Purpose::Update);
    assert!(granted);
    let (second, granted) = locks.acquire(5..15, Purpose::Update);
    assert!(granted, "updates go beside each other");
    let (gather, granted) = locks.acquire(8..12, Purpose::Gather);
    assert!(!granted);
    let (apart, granted) = locks.acquire(20..30, Purpose::Gather);
    assert!(granted);
    let (behind, granted) = locks.acquire(0..10, Purpose::Update);
    assert!(!granted, "it came after the gather");
    assert_eq!(locks.release(first), []);
    assert_eq!(locks.release(second), [gather]);
    assert_eq!(locks.release(gather), [behind]);
    assert_eq!(locks.release(behind), []);
    assert_eq!(locks.release(apart), []);
    assert!(locks.is_empty());
}

#[test]
fn waiting_for_rows_can_be_given_up() {
    let mut locks = Locks::default();
    let (held, _) = locks.acquire(0..10, Purpose::Update);
    let (gather, _) = locks.acquire(0..10, Purpose::Gather);
    let (behind, _) = locks.acquire(0..10, Purpose::Update);
    assert_eq!(locks.release(gather), [behind]);
    locks.release(held);
    locks.release(behind);
    assert!(locks.is_empty());
}

#[test]
fn a_fold_is_the_sum_of_its_differences() {
    const LENGTH: usize = 64;
    for case in 0..200 {
        let mut rng = rng(case);
        let mut fold = Fold::default();
        let mut model = [[0u8; LENGTH]; 3];
        let mut touched = [[false; LENGTH]; 3];
        for _ in 0..rng.next_u32() % 20 {
            let chunk = rng.next_u32() as usize % 3;
            let from = rng.next_u32() as usize % LENGTH;
            let length = 1 + rng.next_u32() as usize % (LENGTH - from).min(12);
            let bytes: Vec<u8> = (0..length).map(|_| rng.next_u32() as u8).collect();
            for (at, byte) in (from..).zip(&bytes) {
                model[chunk][at] ^= byte;
                touched[chunk][at] = true;
            }
            let (chunk, offset) = (chunk as u16, from as u64);
            fold.add(&Difference { chunk, version: 1, offset, sums: vec![0], bytes: bytes.into() });
        }
        let mut folded = [[0u8; LENGTH]; 3];
        let mut ranges = [[false; LENGTH]; 3];
        for (chunk, from, bytes) in fold.parts() {
            let (chunk, from) = (chunk as usize, from as usize);
            assert!(!ranges[chunk][from.saturating_sub(1)..from + bytes.len()].contains(&true), "apart");
            ranges[chunk][from..from + bytes.len()].fill(true);
            folded[chunk][from..from + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!((folded, ranges), (model, touched));
        let mut rows = [false; LENGTH];
        fold.rows().into_iter().for_each(|row| rows[row.start as usize..row.end as usize].fill(true));
        let any: [bool; LENGTH] = core::array::from_fn(|at| touched.iter().any(|chunk| chunk[at]));
        assert_eq!(rows, any);
    }
}

#[test]
fn records_are_read_back_and_others_refused() {
    let bytes = Bytes::from(vec![7u8; 8192]);
    let whole = Difference { chunk: 3, version: 1 << 40, offset: 12 << 20, sums: vec![1, u32::MAX], bytes };
    let record = whole.encode();
    assert_eq!(Difference::decode(&record), Ok(whole));
    for length in [0, 23, 24, 31, 32, 33] {
        assert!(Difference::decode(&record.slice(..length)).is_err(), "{length}");
    }
    for case in 0..500 {
        let mut rng = rng(case);
        let noise: Vec<u8> = (0..rng.next_u32() % 64).map(|_| rng.next_u32() as u8).collect();
        // An error or a record, never a panic.
        let _ = Difference::decode(&noise.into());
    }
}
