//! Scripts of the update cores, and their parts against plain models; every order of events is
//! `lab run codfs/checker`'s.

use super::super::parity_log::*;
use super::rng;
use crate::Epoch;
use bytes::Bytes;
use rand_core::Rng;

fn drain<A>(poll: impl FnMut() -> Option<A>) -> Vec<A> {
    core::iter::from_fn(poll).collect()
}

/// A chunk at version 0 that serves under epoch 1, with two empty logs.
fn serving() -> DataChunk {
    let mut chunk = DataChunk::new(Medium::Own, 0, 1);
    chunk.handle(DataInput::Configure { epoch: Epoch(1), parities: vec![0, 1] });
    assert_eq!(
        drain(|| chunk.poll()),
        [0, 1].map(|parity| DataAction::Ask { parity, epoch: Epoch(1) }),
        "who takes part is asked before anything is stamped"
    );
    chunk.handle(DataInput::Update { request: 100 });
    chunk.handle(DataInput::Versions { parity: 0, received: 0 });
    assert_eq!(drain(|| chunk.poll()), []);
    chunk.handle(DataInput::Versions { parity: 1, received: 0 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Stage { request: 100 }]);
    chunk
}

#[test]
fn an_update_is_answered_when_every_log_and_the_redo_record_have_it() {
    let mut chunk = serving();
    chunk.handle(DataInput::Staged { request: 100, version: 1 });
    assert_eq!(
        drain(|| chunk.poll()),
        [0, 1].map(|parity| DataAction::Send { parity, version: 1, committed: 0 })
    );
    chunk.handle(DataInput::Acked { parity: 1, through: 1 });
    chunk.handle(DataInput::Durable { through: 1 });
    assert_eq!(drain(|| chunk.poll()), []);
    chunk.handle(DataInput::Acked { parity: 0, through: 1 });
    assert_eq!(
        drain(|| chunk.poll()),
        [DataAction::Release { through: 1 }, DataAction::Answer { request: 100, version: 1 }]
    );
    assert!(!chunk.is_idle(), "the logs do not know yet");
    chunk.handle(DataInput::Tick);
    assert_eq!(drain(|| chunk.poll()), [0, 1].map(|parity| DataAction::Tell { parity, committed: 1 }));
    assert!(chunk.is_idle());
}

#[test]
fn a_log_that_came_back_gets_what_it_lost_and_one_that_lost_more_is_behind() {
    let mut chunk = serving();
    chunk.handle(DataInput::Staged { request: 100, version: 1 });
    chunk.handle(DataInput::Durable { through: 1 });
    chunk.handle(DataInput::Acked { parity: 0, through: 1 });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Lost { parity: 1 });
    chunk.handle(DataInput::Acked { parity: 1, through: 1 });
    assert_eq!(drain(|| chunk.poll()), [], "an answer of the lost connection proves nothing");
    chunk.handle(DataInput::Connected { parity: 1 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Ask { parity: 1, epoch: Epoch(1) }]);
    chunk.handle(DataInput::Versions { parity: 1, received: 0 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Send { parity: 1, version: 1, committed: 0 }]);
    chunk.handle(DataInput::Acked { parity: 1, through: 1 });
    assert_eq!(drain(|| chunk.poll()).last(), Some(&DataAction::Answer { request: 100, version: 1 }));
    // Its disk was replaced: version 1 is committed, so nobody keeps it.
    chunk.handle(DataInput::Versions { parity: 1, received: 0 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Behind { parity: 1 }]);
}

#[test]
fn after_a_restart_the_highest_log_brings_data_and_the_other_log_forward() {
    let mut chunk = DataChunk::new(Medium::Own, 3, 4);
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![0, 1] });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Versions { parity: 0, received: 5 });
    chunk.handle(DataInput::Versions { parity: 1, received: 4 });
    for version in 4..=5 {
        assert_eq!(drain(|| chunk.poll()), [DataAction::Fetch { parity: 0, version }]);
        chunk.handle(DataInput::Fetched { version });
        assert_eq!(drain(|| chunk.poll()), [DataAction::Adopt { version }]);
        chunk.handle(DataInput::Adopted { version });
    }
    // Version 4 is everywhere by now.
    assert_eq!(
        drain(|| chunk.poll()),
        [DataAction::Send { parity: 1, version: 5, committed: 3 }, DataAction::Release { through: 4 }]
    );
    assert_eq!((chunk.staged(), chunk.committed()), (5, 4));
}

#[test]
fn who_is_fenced_answers_nothing_until_the_layout_says_who_takes_part() {
    let mut chunk = serving();
    chunk.handle(DataInput::Staged { request: 100, version: 1 });
    chunk.handle(DataInput::Durable { through: 1 });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Refused { parity: 0, reason: Refusal::Stale });
    chunk.handle(DataInput::Update { request: 101 });
    assert_eq!(drain(|| chunk.poll()), [100, 101].map(|request| DataAction::Unknown { request }));
    assert!(chunk.is_fenced());
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![1] });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Ask { parity: 1, epoch: Epoch(2) }]);
    chunk.handle(DataInput::Versions { parity: 1, received: 0 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Send { parity: 1, version: 1, committed: 0 }]);
}

#[test]
fn a_stand_in_levels_the_logs_and_adopts_nothing() {
    let mut chunk = DataChunk::new(Medium::StandIn, 0, 1);
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![0, 1] });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Versions { parity: 1, received: 7 });
    chunk.handle(DataInput::Versions { parity: 0, received: 6 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Fetch { parity: 1, version: 7 }]);
    chunk.handle(DataInput::Fetched { version: 7 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Send { parity: 0, version: 7, committed: 6 }]);
    chunk.handle(DataInput::Acked { parity: 0, through: 7 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Release { through: 7 }]);
}

fn difference(reply: u64, epoch: u64, version: u64, committed: u64) -> ParityInput {
    ParityInput::Difference { reply, epoch: Epoch(epoch), chunk: 0, version, committed }
}

#[test]
fn each_version_is_taken_once_and_in_order_under_the_latest_epoch() {
    let mut parity = ParityChunk::new(Mode::Logged, ParityState::default(), 1 << 20);
    parity.handle(difference(1, 3, 1, 0));
    let append = ParityAction::Append { chunk: 0, version: 1 };
    assert_eq!(drain(|| parity.poll()), [ParityAction::Fence { epoch: Epoch(3) }, append]);
    parity.handle(difference(2, 3, 1, 0));
    parity.handle(difference(3, 3, 3, 0));
    parity.handle(difference(4, 2, 2, 0));
    assert_eq!(
        drain(|| parity.poll()),
        [
            ParityAction::Refuse { reply: 3, reason: Refusal::Gap { expected: 2 } },
            ParityAction::Refuse { reply: 4, reason: Refusal::Stale },
        ]
    );
    parity.handle(ParityInput::Appended { chunk: 0, version: 1, sequence: 0, bytes: 8192 });
    assert_eq!(drain(|| parity.poll()), [], "the epoch is not durable yet");
    parity.handle(ParityInput::Fenced { epoch: Epoch(3) });
    let ack = |reply| ParityAction::Ack { reply, chunk: 0, through: 1 };
    assert_eq!(drain(|| parity.poll()), [ack(1), ack(2)], "the second time it is not appended");
}

#[test]
fn only_what_is_committed_is_merged_and_a_full_log_waits_for_that() {
    let entry = |sequence, version| Entry { sequence, chunk: 0, version, bytes: 8192 };
    let state = ParityState { epoch: Epoch(1), merged: vec![(0, 4)], log: vec![entry(10, 5), entry(11, 6)] };
    let mut parity = ParityChunk::new(Mode::Logged, state, 8192);
    parity.handle(ParityInput::MergeDue);
    assert_eq!(drain(|| parity.poll()), [], "nobody said that any of it is committed");
    parity.handle(difference(1, 1, 7, 4));
    assert_eq!(drain(|| parity.poll()), [ParityAction::Append { chunk: 0, version: 7 }]);
    parity.handle(ParityInput::Full { chunk: 0, version: 7 });
    assert_eq!(drain(|| parity.poll()), []);
    parity.handle(ParityInput::Committed { epoch: Epoch(1), chunk: 0, through: 6 });
    let merge = |sequence, version| ParityAction::Merge {
        sequences: vec![sequence],
        merged: vec![(0, version)],
        log_start: sequence + 1,
    };
    assert_eq!(drain(|| parity.poll()), [merge(10, 5)], "no more at once than it may");
    parity.handle(ParityInput::Merged);
    assert_eq!(drain(|| parity.poll()), [ParityAction::Append { chunk: 0, version: 7 }]);
    parity.handle(ParityInput::Appended { chunk: 0, version: 7, sequence: 12, bytes: 8192 });
    assert_eq!(drain(|| parity.poll()), [ParityAction::Ack { reply: 1, chunk: 0, through: 7 }]);
    parity.handle(ParityInput::MergeDue);
    assert_eq!(drain(|| parity.poll()), [merge(11, 6)]);
    parity.handle(ParityInput::Merged);
    parity.handle(ParityInput::MergeDue);
    assert_eq!(drain(|| parity.poll()), [], "version 7 is not committed");
    assert_eq!((parity.merged(0), parity.durable(0), parity.log().len()), (6, 7, 1));
}

#[test]
fn in_place_is_one_step_and_a_log_is_emptied_before_the_mode_changes() {
    let mut parity = ParityChunk::new(Mode::InPlace, ParityState::default(), 1 << 20);
    parity.handle(difference(1, 0, 1, 0));
    assert_eq!(drain(|| parity.poll()), [ParityAction::Overwrite { chunk: 0, version: 1 }]);
    parity.handle(ParityInput::Overwritten { chunk: 0, version: 1 });
    assert_eq!(drain(|| parity.poll()), [ParityAction::Ack { reply: 1, chunk: 0, through: 1 }]);
    parity.handle(ParityInput::Committed { epoch: Epoch(0), chunk: 0, through: 1 });
    assert_eq!(drain(|| parity.poll()), [ParityAction::Release { chunk: 0, through: 1 }]);
    let mut parity = ParityChunk::new(Mode::Logged, ParityState::default(), 1 << 20);
    parity.handle(difference(1, 0, 1, 0));
    parity.handle(ParityInput::Mode(Mode::InPlace));
    parity.handle(difference(2, 0, 2, 0));
    drain(|| parity.poll());
    for version in 1..=2 {
        let sequence = version - 1;
        parity.handle(ParityInput::Appended { chunk: 0, version, sequence, bytes: 8192 });
    }
    parity.handle(ParityInput::Committed { epoch: Epoch(0), chunk: 0, through: 2 });
    parity.handle(ParityInput::MergeDue);
    parity.handle(ParityInput::Merged);
    drain(|| parity.poll());
    parity.handle(difference(3, 0, 3, 2));
    assert_eq!(drain(|| parity.poll()), [ParityAction::Overwrite { chunk: 0, version: 3 }]);
}

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
