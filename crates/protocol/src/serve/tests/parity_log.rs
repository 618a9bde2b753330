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
    let mut chunk = DataChunk::new(Medium::Own, 1, 0, 1);
    chunk.handle(DataInput::Configure { epoch: Epoch(1), parities: vec![0, 1] });
    assert_eq!(
        drain(|| chunk.poll()),
        [0, 1].map(|parity| DataAction::Ask { parity, epoch: Epoch(1), session: 1 }),
        "who takes part is asked before anything is stamped"
    );
    chunk.handle(DataInput::Update { request: 100 });
    chunk.handle(DataInput::Versions { parity: 0, epoch: Epoch(1), received: 0 });
    assert_eq!(drain(|| chunk.poll()), []);
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(1), received: 0 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Stage { request: 100 }]);
    chunk
}

#[test]
fn an_update_is_answered_when_every_log_and_the_redo_record_have_it() {
    let mut chunk = serving();
    chunk.handle(DataInput::Staged { request: 100, version: 1 });
    assert_eq!(
        drain(|| chunk.poll()),
        [0, 1].map(|parity| DataAction::Send { parity, version: 1, epoch: Epoch(1), committed: 0 })
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
    assert_eq!(
        drain(|| chunk.poll()),
        [0, 1].map(|parity| DataAction::Tell { parity, epoch: Epoch(1), committed: 1 })
    );
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
    assert_eq!(drain(|| chunk.poll()), [DataAction::Ask { parity: 1, epoch: Epoch(1), session: 1 }]);
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(1), received: 0 });
    assert_eq!(
        drain(|| chunk.poll()),
        [DataAction::Send { parity: 1, version: 1, epoch: Epoch(1), committed: 0 }]
    );
    chunk.handle(DataInput::Acked { parity: 1, through: 1 });
    assert_eq!(drain(|| chunk.poll()).last(), Some(&DataAction::Answer { request: 100, version: 1 }));
    // Its disk was replaced: version 1 is committed, so nobody keeps it.
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(1), received: 0 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Behind { parity: 1 }]);
}

#[test]
fn after_a_restart_the_highest_log_brings_data_and_the_other_log_forward() {
    let mut chunk = DataChunk::new(Medium::Own, 1, 3, 4);
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![0, 1] });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Versions { parity: 0, epoch: Epoch(2), received: 5 });
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(2), received: 4 });
    for version in 4..=5 {
        assert_eq!(drain(|| chunk.poll()), [DataAction::Fetch { parity: 0, version }]);
        chunk.handle(DataInput::Fetched { version });
        assert_eq!(drain(|| chunk.poll()), [DataAction::Adopt { version }]);
        chunk.handle(DataInput::Adopted { version });
    }
    // Version 4 is everywhere by now.
    assert_eq!(
        drain(|| chunk.poll()),
        [
            DataAction::Send { parity: 1, version: 5, epoch: Epoch(2), committed: 0 },
            DataAction::Release { through: 4 }
        ]
    );
    assert_eq!((chunk.staged(), chunk.committed()), (5, 4));
}

#[test]
fn who_is_fenced_answers_nothing_until_the_layout_says_who_takes_part() {
    let mut chunk = serving();
    chunk.handle(DataInput::Staged { request: 100, version: 1 });
    chunk.handle(DataInput::Durable { through: 1 });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Refused {
        parity: 0,
        reason: Refusal::Stale { held: Epoch(1), superseded: false },
    });
    assert_eq!(
        chunk.fenced(),
        None,
        "what was sent under an earlier epoch is refused and says nothing of this one"
    );
    let reason = Refusal::Stale { held: Epoch(2), superseded: false };
    chunk.handle(DataInput::Refused { parity: 0, reason });
    chunk.handle(DataInput::Update { request: 101 });
    assert_eq!(drain(|| chunk.poll()), [100, 101].map(|request| DataAction::Unknown { request }));
    assert_eq!(chunk.fenced(), Some(Why::LaterEpoch));
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![1] });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Ask { parity: 1, epoch: Epoch(2), session: 1 }]);
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(1), received: 0 });
    assert_eq!(drain(|| chunk.poll()), [], "an answer under the earlier epoch");
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(2), received: 0 });
    assert_eq!(
        drain(|| chunk.poll()),
        [DataAction::Send { parity: 1, version: 1, epoch: Epoch(2), committed: 0 }]
    );
}

#[test]
fn a_later_life_is_told_from_a_later_epoch() {
    let mut chunk = serving();
    let reason = Refusal::Stale { held: Epoch(1), superseded: true };
    chunk.handle(DataInput::Refused { parity: 1, reason });
    chunk.handle(DataInput::Staged { request: 100, version: 1 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Unknown { request: 100 }]);
    assert_eq!(chunk.fenced(), Some(Why::LaterLife), "what comes late changes nothing of it");
}

fn difference(reply: u64, epoch: u64, version: u64, committed: u64) -> ParityInput {
    ParityInput::Difference {
        reply,
        epoch: Epoch(epoch),
        session: 1,
        chunk: 0,
        version,
        bytes: 8192,
        committed,
    }
}

/// A parity chunk that was asked under an epoch, which is durable.
fn asked(mode: Mode, state: ParityState, merge_bytes_max: u64, epoch: u64) -> ParityChunk {
    let mut parity = ParityChunk::new(mode, state, merge_bytes_max).unwrap();
    parity.handle(ParityInput::Ask { reply: 0, epoch: Epoch(epoch), session: 1, chunk: 0 });
    parity.handle(ParityInput::Fenced { epoch: Epoch(epoch) });
    drain(|| parity.poll());
    parity
}

/// A second crash before the other log had what was brought forward by the first one.
#[test]
fn what_was_adopted_and_is_kept_no_more_is_fetched_again_for_the_other_log() {
    let mut chunk = DataChunk::new(Medium::Own, 2, 5, 6);
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![0, 1] });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Versions { parity: 0, epoch: Epoch(2), received: 5 });
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(2), received: 4 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Fetch { parity: 0, version: 5 }]);
    chunk.handle(DataInput::Fetched { version: 5 });
    let send = DataAction::Send { parity: 1, version: 5, epoch: Epoch(2), committed: 0 };
    assert_eq!(
        drain(|| chunk.poll()),
        [send, DataAction::Release { through: 4 }],
        "nothing is adopted twice"
    );
}

#[test]
fn an_adoption_under_way_is_waited_for_and_its_source_may_be_lost() {
    let mut chunk = DataChunk::new(Medium::Own, 1, 4, 5);
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![0, 1] });
    chunk.handle(DataInput::Versions { parity: 0, epoch: Epoch(2), received: 5 });
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(2), received: 4 });
    chunk.handle(DataInput::Fetched { version: 5 });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Lost { parity: 0 });
    chunk.handle(DataInput::Connected { parity: 0 });
    chunk.handle(DataInput::Versions { parity: 0, epoch: Epoch(2), received: 5 });
    assert_eq!(drain(|| chunk.poll()), [DataAction::Ask { parity: 0, epoch: Epoch(2), session: 1 }]);
    chunk.handle(DataInput::Adopted { version: 5 });
    let fetched_again = drain(|| chunk.poll());
    assert!(!fetched_again.contains(&DataAction::Adopt { version: 5 }), "{fetched_again:?}");
    assert_eq!(chunk.staged(), 5);
}

#[test]
fn a_chunk_that_lacks_what_the_logs_merged_serves_nothing() {
    let mut chunk = DataChunk::new(Medium::Own, 1, 4, 5);
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![0] });
    chunk.handle(DataInput::Update { request: 1 });
    chunk.handle(DataInput::Versions { parity: 0, epoch: Epoch(2), received: 6 });
    chunk.handle(DataInput::NotFetched { version: 5 });
    let actions = drain(|| chunk.poll());
    assert_eq!(actions[2..], [DataAction::Unknown { request: 1 }, DataAction::Outdated]);
}

/// Each log is merged when its own device rests.
#[test]
fn what_one_log_has_merged_is_fetched_from_another() {
    let mut chunk = DataChunk::new(Medium::Own, 1, 3, 4);
    chunk.handle(DataInput::Configure { epoch: Epoch(2), parities: vec![0, 1] });
    drain(|| chunk.poll());
    chunk.handle(DataInput::Versions { parity: 0, epoch: Epoch(2), received: 6 });
    chunk.handle(DataInput::Versions { parity: 1, epoch: Epoch(2), received: 5 });
    let fetch = |parity, version| DataAction::Fetch { parity, version };
    assert_eq!(drain(|| chunk.poll()), [fetch(0, 4)]);
    chunk.handle(DataInput::NotFetched { version: 4 });
    assert_eq!(drain(|| chunk.poll()), [fetch(1, 4)]);
    let mut nowhere = chunk.clone();
    for version in 4..=5 {
        chunk.handle(DataInput::Fetched { version });
        assert_eq!(drain(|| chunk.poll()), [DataAction::Adopt { version }]);
        chunk.handle(DataInput::Adopted { version });
        // The highest has what the other lacks.
        let next = if version == 4 { fetch(1, 5) } else { fetch(0, 6) };
        assert_eq!(drain(|| chunk.poll()), [next]);
    }
    let mut lost = nowhere.clone();
    nowhere.handle(DataInput::NotFetched { version: 4 });
    assert_eq!(drain(|| nowhere.poll()), [DataAction::Outdated], "nobody has it any more");
    // The one that has merged it is gone meanwhile: it may be brought back with another log.
    lost.handle(DataInput::Lost { parity: 0 });
    lost.handle(DataInput::NotFetched { version: 4 });
    assert_eq!((drain(|| lost.poll()), lost.fenced()), (vec![], None));
    lost.handle(DataInput::Connected { parity: 0 });
    lost.handle(DataInput::Versions { parity: 0, epoch: Epoch(2), received: 6 });
    assert_eq!(drain(|| lost.poll()).last(), Some(&fetch(0, 4)));
}

#[test]
fn each_version_is_taken_once_and_in_order_under_the_latest_epoch_and_life() {
    let mut parity = ParityChunk::new(Mode::Logged, ParityState::default(), 1 << 20).unwrap();
    parity.handle(difference(9, 3, 1, 0));
    let gap = |reply| ParityAction::Refuse { reply, reason: Refusal::Gap };
    let stale = |reply, superseded| {
        let reason = Refusal::Stale { held: Epoch(3), superseded };
        ParityAction::Refuse { reply, reason }
    };
    assert_eq!(
        drain(|| parity.poll()),
        [ParityAction::Fence { epoch: Epoch(3) }, gap(9)],
        "nobody asked yet"
    );
    parity.handle(ParityInput::Ask { reply: 8, epoch: Epoch(3), session: 1, chunk: 0 });
    parity.handle(difference(1, 3, 1, 0));
    let append = |version, sequence, reply| ParityAction::Append { chunk: 0, version, sequence, reply };
    assert_eq!(drain(|| parity.poll()), [append(1, 0, 1)]);
    parity.handle(difference(2, 3, 1, 0));
    parity.handle(difference(3, 3, 3, 0));
    parity.handle(difference(4, 2, 2, 0));
    assert_eq!(drain(|| parity.poll()), [gap(3), stale(4, false)]);
    parity.handle(ParityInput::Appended { chunk: 0, version: 1, sequence: 0, bytes: 8192 });
    assert_eq!(drain(|| parity.poll()), [], "the epoch is not durable yet");
    parity.handle(ParityInput::Fenced { epoch: Epoch(3) });
    let ack = |reply| ParityAction::Ack { reply, chunk: 0, through: 1 };
    assert_eq!(drain(|| parity.poll()), [ack(8), ack(1), ack(2)], "the second time it is not appended");
    // The sender was started anew; what its earlier life sent is still on the way.
    parity.handle(ParityInput::Ask { reply: 5, epoch: Epoch(3), session: 2, chunk: 0 });
    parity.handle(difference(6, 3, 2, 0));
    assert_eq!(drain(|| parity.poll()), [ack(5), stale(6, true)]);
    // Questions of before are refused, and change nothing of who asked last.
    for (reply, epoch, session) in [(7, 3, 1), (8, 2, 2), (9, 2, 9)] {
        parity.handle(ParityInput::Ask { reply, epoch: Epoch(epoch), session, chunk: 0 });
        assert_eq!(drain(|| parity.poll()), [stale(reply, epoch == 3)]);
        assert!(!parity.is_latest(0, Epoch(epoch), session) && parity.is_latest(0, Epoch(3), 2));
    }
}

#[test]
fn only_what_is_committed_is_merged_and_a_full_log_waits_for_that() {
    let entry = |sequence, version| Entry { sequence, chunk: 0, version, bytes: 8192 };
    let log = vec![entry(10, 5), entry(11, 6)];
    let state = ParityState { epoch: Epoch(1), merged: vec![(0, 4)], log, log_next: 12 };
    let mut parity = asked(Mode::Logged, state, 8192, 1);
    parity.handle(ParityInput::MergeDue);
    assert_eq!(drain(|| parity.poll()), [], "nobody said that any of it is committed");
    parity.handle(difference(1, 1, 7, 4));
    let append = ParityAction::Append { chunk: 0, version: 7, sequence: 12, reply: 1 };
    assert_eq!(drain(|| parity.poll()), std::slice::from_ref(&append));
    parity.handle(ParityInput::Full { chunk: 0, version: 7, reply: 1 });
    assert_eq!(drain(|| parity.poll()), []);
    parity.handle(ParityInput::Committed { epoch: Epoch(1), chunk: 0, through: 6 });
    let merge = |sequence, version| ParityAction::Merge {
        sequences: vec![sequence],
        merged: vec![(0, version)],
        log_start: sequence + 1,
    };
    assert_eq!(drain(|| parity.poll()), [merge(10, 5)], "no more at once than it may");
    parity.handle(ParityInput::Merged);
    assert_eq!(
        drain(|| parity.poll()),
        std::slice::from_ref(&append),
        "there may be room before all is merged"
    );
    parity.handle(ParityInput::Full { chunk: 0, version: 7, reply: 1 });
    assert_eq!(drain(|| parity.poll()), [merge(11, 6)], "all that it can while something waits");
    parity.handle(ParityInput::Merged);
    assert_eq!(drain(|| parity.poll()), [append]);
    parity.handle(ParityInput::Appended { chunk: 0, version: 7, sequence: 12, bytes: 8192 });
    assert_eq!(drain(|| parity.poll()), [ParityAction::Ack { reply: 1, chunk: 0, through: 7 }]);
    parity.handle(ParityInput::MergeDue);
    assert_eq!(drain(|| parity.poll()), [], "version 7 is not committed");
    assert_eq!((parity.merged(0), parity.durable(0), parity.log().len()), (6, 7, 1));
}

/// What a merge freed while nothing waited for room is no reason to try again what found none later.
#[test]
fn a_log_that_fills_after_a_merge_is_merged_at_once() {
    let log = vec![Entry { sequence: 0, chunk: 0, version: 1, bytes: 8192 }];
    let state = ParityState { epoch: Epoch(1), merged: vec![], log, log_next: 1 };
    let mut parity = asked(Mode::Logged, state, 1 << 20, 1);
    parity.handle(ParityInput::Committed { epoch: Epoch(1), chunk: 0, through: 1 });
    parity.handle(ParityInput::MergeDue);
    parity.handle(ParityInput::Merged);
    for version in 2..=3 {
        parity.handle(difference(version, 1, version, version - 1));
    }
    parity.handle(ParityInput::Appended { chunk: 0, version: 2, sequence: 1, bytes: 8192 });
    parity.handle(ParityInput::Committed { epoch: Epoch(1), chunk: 0, through: 2 });
    drain(|| parity.poll());
    parity.handle(ParityInput::Full { chunk: 0, version: 3, reply: 3 });
    let merge = ParityAction::Merge { sequences: vec![1], merged: vec![(0, 2)], log_start: 2 };
    assert_eq!(drain(|| parity.poll()), [merge]);
}

/// A large record found no room, the small one behind it would have: without its number it is not taken either.
#[test]
fn no_record_is_in_the_log_without_those_before_it() {
    let entry = Entry { sequence: 3, chunk: 0, version: 1, bytes: 8192 };
    let state = ParityState { epoch: Epoch(1), merged: Vec::new(), log: vec![entry], log_next: 4 };
    let mut parity = asked(Mode::Logged, state, 1 << 20, 1);
    parity.handle(difference(2, 1, 2, 0));
    parity.handle(difference(3, 1, 3, 0));
    let append =
        |version: u64| ParityAction::Append { chunk: 0, version, sequence: version + 2, reply: version };
    assert_eq!(drain(|| parity.poll()), [append(2), append(3)]);
    parity.handle(ParityInput::Full { chunk: 0, version: 2, reply: 2 });
    parity.handle(difference(4, 1, 4, 1));
    let merge = ParityAction::Merge { sequences: vec![3], merged: vec![(0, 1)], log_start: 4 };
    assert_eq!(drain(|| parity.poll()), [merge]);
    parity.handle(ParityInput::Merged);
    assert_eq!(drain(|| parity.poll()), [], "version 3 is not answered yet");
    parity.handle(ParityInput::Full { chunk: 0, version: 3, reply: 3 });
    assert_eq!(drain(|| parity.poll()), [append(2), append(3), append(4)]);
}

/// What waits for room when its sender asks anew was answered to nobody, and must not make the sender wait.
#[test]
fn a_question_does_not_wait_for_room_in_the_log() {
    let entry = Entry { sequence: 0, chunk: 0, version: 1, bytes: 8192 };
    let state = ParityState { epoch: Epoch(1), merged: Vec::new(), log: vec![entry], log_next: 1 };
    let mut parity = asked(Mode::Logged, state, 1 << 20, 1);
    parity.handle(difference(2, 1, 2, 0));
    parity.handle(ParityInput::Full { chunk: 0, version: 2, reply: 2 });
    drain(|| parity.poll());
    parity.handle(ParityInput::Ask { reply: 3, epoch: Epoch(1), session: 1, chunk: 0 });
    let gap = ParityAction::Refuse { reply: 2, reason: Refusal::Gap };
    let ack = ParityAction::Ack { reply: 3, chunk: 0, through: 1 };
    assert_eq!(drain(|| parity.poll()), [gap.clone(), ack.clone()]);
    parity.handle(difference(4, 1, 2, 0));
    let append = ParityAction::Append { chunk: 0, version: 2, sequence: 1, reply: 4 };
    assert_eq!(drain(|| parity.poll()), [append], "the number that was not used is the next");
    // Nor for what is being tried as it asks.
    let state = ParityState { epoch: Epoch(1), merged: Vec::new(), log: vec![entry], log_next: 1 };
    let mut parity = asked(Mode::Logged, state, 1 << 20, 1);
    parity.handle(difference(2, 1, 2, 0));
    parity.handle(ParityInput::Ask { reply: 3, epoch: Epoch(1), session: 1, chunk: 0 });
    drain(|| parity.poll());
    parity.handle(ParityInput::Full { chunk: 0, version: 2, reply: 2 });
    assert_eq!(drain(|| parity.poll()), [gap, ack]);
}

/// What waits to be overwritten with waits for what others release, which may wait for the answer.
#[test]
fn a_question_does_not_wait_for_overwrites_that_were_not_begun() {
    let mut parity = asked(Mode::InPlace, ParityState::default(), 1 << 20, 1);
    for version in 1..=3 {
        parity.handle(difference(version, 1, version, 0));
    }
    parity.handle(ParityInput::Overwritten { chunk: 0, version: 1 });
    drain(|| parity.poll());
    parity.handle(ParityInput::Ask { reply: 9, epoch: Epoch(1), session: 1, chunk: 0 });
    assert!(drain(|| parity.poll()).is_empty() && parity.is_asked(0) && !parity.is_asked(1));
    parity.handle(ParityInput::Withdrawn { chunk: 0, first: 2, count: 2 });
    let gap = |reply| ParityAction::Refuse { reply, reason: Refusal::Gap };
    assert_eq!(
        drain(|| parity.poll()),
        [gap(2), gap(3), ParityAction::Ack { reply: 9, chunk: 0, through: 1 }]
    );
    // Sent again they are taken, and the mode may change once they are in.
    parity.handle(difference(12, 1, 2, 0));
    assert_eq!(drain(|| parity.poll()), [ParityAction::Overwrite { chunk: 0, version: 2, reply: 12 }]);
    parity.handle(ParityInput::Mode(Mode::Logged));
    parity.handle(ParityInput::Overwritten { chunk: 0, version: 2 });
    parity.handle(difference(13, 1, 3, 0));
    let append = ParityAction::Append { chunk: 0, version: 3, sequence: 0, reply: 13 };
    assert_eq!(drain(|| parity.poll()), [ParityAction::Ack { reply: 12, chunk: 0, through: 2 }, append]);
}

#[test]
fn in_place_is_one_step_and_a_log_is_emptied_before_the_mode_changes() {
    let mut parity = asked(Mode::InPlace, ParityState::default(), 1 << 20, 0);
    parity.handle(difference(1, 0, 1, 0));
    assert_eq!(drain(|| parity.poll()), [ParityAction::Overwrite { chunk: 0, version: 1, reply: 1 }]);
    parity.handle(ParityInput::Overwritten { chunk: 0, version: 1 });
    assert_eq!(drain(|| parity.poll()), [ParityAction::Ack { reply: 1, chunk: 0, through: 1 }]);
    parity.handle(ParityInput::Committed { epoch: Epoch(0), chunk: 0, through: 1 });
    assert_eq!(drain(|| parity.poll()), [ParityAction::Release { chunk: 0, through: 1 }]);
    let mut parity = asked(Mode::Logged, ParityState::default(), 1 << 20, 0);
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
    assert_eq!(drain(|| parity.poll()), [ParityAction::Overwrite { chunk: 0, version: 3, reply: 3 }]);
}

#[test]
fn a_log_that_is_not_what_was_written_is_an_error() {
    let entry = |sequence, version| Entry { sequence, chunk: 3, version, bytes: 8192 };
    for (versions, expected) in [([6, 7], 5), ([5, 7], 6), ([5, 5], 6), ([4, 5], 5)] {
        let log = vec![entry(10, versions[0]), entry(11, versions[1])];
        let state = ParityState { epoch: Epoch(1), merged: vec![(3, 4)], log, log_next: 12 };
        let broken = ParityChunk::new(Mode::Logged, state, 8192).unwrap_err();
        assert_eq!((broken.chunk, broken.expected), (3, expected), "{broken}");
    }
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
        let (gap, max) = (rng.next_u64() % 4, 8 + rng.next_u64() % 20);
        let spans = fold.spans(gap, max);
        let within: Vec<_> = spans.iter().flat_map(|span| span.rows.clone()).collect();
        assert_eq!(within, fold.rows(), "each row is in one span");
        for span in &spans {
            let (first, last) = (span.rows.first().unwrap(), span.rows.last().unwrap());
            assert_eq!(span.range, first.start..last.end);
            assert!(span.rows.len() == 1 || span.range.end - span.range.start <= max);
            assert!(span.rows.windows(2).all(|rows| rows[1].start - rows[0].end <= gap));
        }
        for next in spans.windows(2) {
            let apart = next[1].range.start - next[0].range.end > gap;
            assert!(apart || next[1].rows[0].end - next[0].range.start > max, "no more than needed");
        }
    }
}

#[test]
fn what_is_appended_to_a_range_is_not_copied_with_each_record() {
    // Copied each time it would be 80 GB.
    const RECORDS: u64 = 40_000;
    let mut fold = Fold::default();
    for version in 1..=RECORDS {
        let bytes = Bytes::from(vec![version as u8; 150]);
        // Each begins within the one before.
        fold.add(&Difference { chunk: 0, version, offset: version * 100, sums: vec![0], bytes });
    }
    let parts: Vec<_> = fold.parts().map(|(chunk, from, bytes)| (chunk, from, bytes.len() as u64)).collect();
    assert_eq!(parts, [(0, 100, (RECORDS - 1) * 100 + 150)]);
    let (_, _, bytes) = fold.parts().next().unwrap();
    assert_eq!((bytes[99], bytes[100], bytes[150]), (1, 1 ^ 2, 2));
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
