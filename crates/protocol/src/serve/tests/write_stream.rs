use super::super::*;
use super::rng;
use crate::{
    BlockIndex, DeviceId, IndexRanges, IntentId, SegmentId, Time, Version,
    message::{Fault, NodeFault, RefusalReason, WriteOpen},
};
use rand_core::Rng;

const KIB: u32 = 1024;
const MIB: u64 = 1 << 20;

fn open(block_bytes: u32, expected_blocks: u32) -> WriteOpen {
    WriteOpen {
        device: DeviceId(1),
        segment: SegmentId(2),
        version: Version(3),
        intent: IntentId(4),
        block_bytes,
        granule_bytes: 64 * KIB,
        expected_blocks,
        reserve_bytes: None,
    }
}

fn begin(open: &WriteOpen, budget: &mut Budget) -> WriteStream {
    WriteStream::new(Time(0), open, IndexRanges::new(), 0, budget).unwrap()
}

fn drain(stream: &mut WriteStream) -> Vec<WriteAction> {
    core::iter::from_fn(|| stream.poll()).collect()
}

fn drain_but_grants(stream: &mut WriteStream) -> Vec<WriteAction> {
    drain(stream).into_iter().filter(|action| !matches!(action, WriteAction::Grant(_))).collect()
}

fn slice(index: u32, offset: u32, bytes: u32) -> WriteInput {
    WriteInput::Slice { index, offset, bytes, sums: bytes.div_ceil(64 * KIB) }
}

fn durable(index: u32) -> WriteInput {
    WriteInput::Written { index, result: Ok(()) }
}

#[test]
fn blocks_are_written_whole_and_confirmed_in_ranges() {
    let mut budget = Budget::new(64 * MIB);
    let mut stream = begin(&open(128 * KIB, 100), &mut budget);
    // More than its floor when it has begun to send.
    assert_eq!(drain(&mut stream), [WriteAction::Grant(128 * KIB)]);
    for index in 8..11 {
        stream.handle(Time(1), slice(index, 0, 64 * KIB), &mut budget);
        let granted = if index == 8 { vec![WriteAction::Grant(384 * KIB)] } else { Vec::new() };
        assert_eq!(drain(&mut stream), granted);
        stream.handle(Time(1), slice(index, 64 * KIB, 64 * KIB), &mut budget);
        assert_eq!(drain(&mut stream), [WriteAction::Write { index }]);
    }
    for index in [8, 10, 9] {
        stream.handle(Time(2), durable(index), &mut budget);
    }
    let actions = drain(&mut stream);
    assert!(matches!(actions[0], WriteAction::Grant(_)), "{actions:?}");
    assert_eq!(actions.last(), Some(&WriteAction::Confirm { blocks: IndexRanges::from(8..11) }));
    stream.handle(Time(3), WriteInput::Finish, &mut budget);
    assert_eq!(drain(&mut stream), [WriteAction::End { blocks: IndexRanges::from(8..11) }]);
    assert_eq!((budget.used_bytes(), budget.streams()), (0, 0));
}

#[test]
fn the_end_waits_for_what_is_being_written_and_confirms_first() {
    let mut budget = Budget::new(64 * MIB);
    let mut stream = begin(&open(64 * KIB, 10), &mut budget);
    drain(&mut stream);
    stream.handle(Time(1), slice(0, 0, 64 * KIB), &mut budget);
    assert_eq!(drain_but_grants(&mut stream), [WriteAction::Write { index: 0 }]);
    stream.handle(Time(1), WriteInput::Finish, &mut budget);
    assert_eq!(drain(&mut stream), []);
    stream.handle(Time(2), durable(0), &mut budget);
    let blocks = IndexRanges::from(0..1);
    assert_eq!(
        drain(&mut stream),
        [WriteAction::Confirm { blocks: blocks.clone() }, WriteAction::End { blocks }]
    );
}

#[test]
fn writers_that_break_the_rules_are_told_which() {
    let k64 = 64 * KIB;
    let cases: Vec<(Vec<WriteInput>, &str)> = vec![
        (vec![slice(0, 0, 65 * KIB)], "whole granules"),
        (vec![slice(0, k64, k64)], "from 0"),
        (vec![slice(0, 0, k64), slice(0, 0, k64)], "from 65536"),
        (vec![slice(0, 0, k64), slice(1, 0, k64)], "block 1 began while block 0"),
        (vec![slice(0, 0, k64), slice(0, k64, 128 * KIB)], "at most to 131072"),
        (vec![slice(0, 0, 0)], "slice of 0 bytes"),
        (vec![slice(0, 0, 128 * KIB), slice(0, 0, k64)], "never reused"),
        (vec![slice(5, 0, k64)], "never reused"),
        (vec![slice(0, 0, 1 << 30)], "bytes of credit"),
        (vec![slice(0, u32::MAX, k64)], "whole granules"),
        (vec![WriteInput::Slice { index: 0, offset: 0, bytes: k64, sums: 3 }], "3 checksums"),
        (vec![slice(0, 0, k64), WriteInput::Finish], "Finish came in block 0"),
    ];
    for (inputs, says) in cases {
        let mut budget = Budget::new(64 * MIB);
        let held = IndexRanges::from(5..6);
        let mut stream = WriteStream::new(Time(0), &open(128 * KIB, 10), held, 0, &mut budget).unwrap();
        for input in inputs {
            stream.handle(Time(1), input, &mut budget);
        }
        stream.handle(Time(1), WriteInput::Tick, &mut budget);
        let last = drain(&mut stream).pop();
        let Some(WriteAction::Fail(Fault::Protocol(text))) = &last else { panic!("{says}: {last:?}") };
        assert!(text.contains(says), "{text:?} does not say {says:?}");
        assert_eq!(budget.used_bytes(), 0);
    }
    for (block, granule) in [(0, 4096), (2 << 20, 4096), (4096, 3000), (4096, 1 << 20), (4096, 0)] {
        let bad = WriteOpen { granule_bytes: granule, ..open(block, 1) };
        let opened = WriteStream::new(Time(0), &bad, IndexRanges::new(), 0, &mut Budget::new(64 * MIB));
        assert!(matches!(opened, Err(Fault::Protocol(_))), "{block} {granule}");
    }
}

#[test]
fn a_damaged_slice_and_a_full_device_end_the_stream() {
    let mut budget = Budget::new(64 * MIB);
    let mut stream = begin(&open(64 * KIB, 10), &mut budget);
    drain(&mut stream);
    stream.handle(Time(1), WriteInput::Damaged { index: 3 }, &mut budget);
    let fault = Fault::Node(NodeFault::Damaged { index: 3 });
    assert_eq!(drain(&mut stream), [WriteAction::Fail(fault)]);

    let mut stream = begin(&open(64 * KIB, 100), &mut budget);
    drain(&mut stream);
    for index in 0..3 {
        stream.handle(Time(1), slice(index, 0, 64 * KIB), &mut budget);
    }
    assert_eq!(drain_but_grants(&mut stream).len(), 3);
    stream.handle(Time(1), durable(0), &mut budget);
    let full = NodeFault::Full(DeviceId(1));
    stream.handle(Time(1), WriteInput::Written { index: 1, result: Err(full.clone()) }, &mut budget);
    stream.handle(Time(1), WriteInput::Written { index: 2, result: Err(full.clone()) }, &mut budget);
    // What is durable is confirmed before the fault: the writer may keep it.
    let actions = drain(&mut stream);
    let confirmed = WriteAction::Confirm { blocks: IndexRanges::from(0..1) };
    assert_eq!(actions[actions.len() - 2..], [confirmed, WriteAction::Fail(Fault::Node(full))]);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn cancel_withdraws_and_answers_with_what_is_durable() {
    let mut budget = Budget::new(64 * MIB);
    let mut stream = begin(&open(64 * KIB, 10), &mut budget);
    drain(&mut stream);
    stream.handle(Time(1), slice(0, 0, 64 * KIB), &mut budget);
    assert_eq!(drain_but_grants(&mut stream), [WriteAction::Write { index: 0 }]);
    // This one's write was not carried out yet when the cancel came: it never is.
    stream.handle(Time(1), slice(1, 0, 64 * KIB), &mut budget);
    stream.handle(Time(1), WriteInput::Cancel, &mut budget);
    assert_eq!(drain(&mut stream), [WriteAction::Withdraw]);
    stream.handle(Time(1), slice(2, 0, 64 * KIB), &mut budget);
    stream.handle(Time(2), durable(0), &mut budget);
    let blocks = IndexRanges::from(0..1);
    assert_eq!(
        drain(&mut stream),
        [WriteAction::Confirm { blocks: blocks.clone() }, WriteAction::End { blocks }]
    );
}

#[test]
fn the_window_is_a_share_of_what_is_expected_and_follows_the_device() {
    let mut budget = Budget::new(64 * MIB);
    // 100 MB/s with 20 ms from a block's arrival until it is durable: twice 2 MB in the end, from 256 KiB.
    let granted = |expected: u32| {
        let mut budget = Budget::new(64 * MIB);
        let mut stream = begin(&open(64 * KIB, expected), &mut budget);
        let mut pending = std::collections::VecDeque::new();
        let (mut credit, mut index, mut now, mut most) = (0u64, 0, 0u64, 0u64);
        for _ in 0..3000 {
            for action in drain(&mut stream) {
                if let WriteAction::Grant(bytes) = action {
                    credit += u64::from(bytes);
                }
            }
            most = most.max(budget.used_bytes());
            if credit >= 65536 {
                credit -= 65536;
                stream.handle(Time(now), slice(index, 0, 64 * KIB), &mut budget);
                pending.push_back((now + 20_000_000, index));
                index += 1;
            }
            now += 655_360;
            while pending.front().is_some_and(|&(at, _)| at <= now) {
                let (_, index) = pending.pop_front().unwrap();
                stream.handle(Time(now), durable(index), &mut budget);
            }
        }
        most
    };
    let large = granted(10_000);
    assert!((3 * MIB..5 * MIB).contains(&large), "{large}");
    assert_eq!(granted(100), 25 * 64 * u64::from(KIB));
    assert_eq!(granted(1), 128 * u64::from(KIB));
    drop(begin(&open(64 * KIB, 1), &mut budget));
}

/// What a block costs beside its bytes is not under the budget: of the smallest, too, no more than so many are on the way.
#[test]
fn blocks_on_the_way_are_few_however_small_they_are() {
    for reserve_bytes in [None, Some(0)] {
        let mut budget = Budget::new(64 << 10);
        let mut stream = begin(&WriteOpen { reserve_bytes, ..open(1, u32::MAX) }, &mut budget);
        let (mut next, mut most) = (0, 0);
        // All that is granted is sent at once, and durable one round later: the window doubles each time.
        for round in 0..16 {
            let now = Time(round * 1_000_000);
            for index in next - stream.writing() as u32..next {
                stream.handle(now, durable(index), &mut budget);
            }
            loop {
                let granted = drain(&mut stream).into_iter().map(|action| match action {
                    WriteAction::Grant(bytes) => bytes,
                    _ => 0,
                });
                let granted: u32 = granted.sum();
                if granted == 0 {
                    break;
                }
                for index in next..next + granted {
                    stream.handle(now, slice(index, 0, 1), &mut budget);
                }
                next += granted;
            }
            most = most.max(stream.writing());
        }
        assert!((256..=1024).contains(&most), "{most} blocks on the way, {reserve_bytes:?}");
        stream.abandon(&mut budget);
    }
}

#[test]
fn many_streams_share_one_budget_and_none_starves() {
    let mut budget = Budget::new(8 * MIB);
    let mut streams = Vec::new();
    let refused = loop {
        match WriteStream::new(Time(0), &open(1 << 20, 1000), IndexRanges::new(), 100 * MIB, &mut budget) {
            Ok(stream) => streams.push((stream, 0u64, 0u32, 0u32)),
            Err(fault) => break fault,
        }
        assert!(budget.used_bytes() <= 8 * MIB);
    };
    assert!(matches!(refused, Fault::Refused { reason: RefusalReason::Overloaded, .. }));
    assert!(streams.len() >= 3, "{}", streams.len());
    // In turn, each takes what it is granted; all make progress.
    for step in 0..400 {
        for (stream, credit, filled, index) in &mut streams {
            stream.handle(Time(step), WriteInput::Tick, &mut budget);
            let mut writes = Vec::new();
            while let Some(action) = stream.poll() {
                match action {
                    WriteAction::Grant(bytes) => *credit += u64::from(bytes),
                    WriteAction::Write { index } => writes.push(index),
                    WriteAction::Confirm { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            if *credit >= 256 << 10 {
                *credit -= 256 << 10;
                stream.handle(Time(step), slice(*index, *filled, 256 * KIB), &mut budget);
                *filled += 256 * KIB;
                if *filled == 1 << 20 {
                    (*filled, *index) = (0, *index + 1);
                }
            }
            while let Some(action) = stream.poll() {
                match action {
                    WriteAction::Grant(bytes) => *credit += u64::from(bytes),
                    WriteAction::Write { index } => writes.push(index),
                    _ => {}
                }
            }
            for index in writes {
                stream.handle(Time(step), durable(index), &mut budget);
            }
            assert!(budget.used_bytes() <= 8 * MIB, "{}", budget.used_bytes());
        }
    }
    for (_, _, _, index) in &streams {
        assert!(*index > 50, "a stream starved: {index} blocks");
    }
}

/// Seeded schedules: whatever comes when, credit is not exceeded, nothing is confirmed before it is durable, the
/// end names exactly what is durable, and all budget comes back.
#[test]
fn promises_hold_under_any_schedule() {
    let (mut cancelled, mut finished) = (0, 0);
    for case in 0..1000 {
        let mut rng = rng(case);
        let block = 64 * KIB * (1 + rng.next_u32() % 8);
        let mut budget = Budget::new(4 * MIB + u64::from(rng.next_u32() % 8) * MIB);
        let mut stream = begin(&open(block, 1 + rng.next_u32() % 60), &mut budget);
        let blocks = rng.next_u32() % 40;
        let stop_at = rng.next_u32() % 600;
        let (mut credit, mut index, mut offset, mut is_finished, mut is_cancelled) =
            (0u64, 0, 0, false, false);
        let mut writing: Vec<u32> = Vec::new();
        let (mut made, mut confirmed) = (IndexRanges::new(), IndexRanges::new());
        let mut end = None;
        for step in 0..20_000u64 {
            while let Some(action) = stream.poll() {
                assert!(end.is_none(), "case {case}: {action:?} after the end");
                match action {
                    WriteAction::Grant(bytes) => credit += u64::from(bytes),
                    WriteAction::Write { index } => {
                        assert!(!is_cancelled, "case {case}: a write after cancel");
                        writing.push(index);
                    }
                    WriteAction::Confirm { blocks } => {
                        for index in blocks.iter() {
                            assert!(
                                made.contains(index) && confirmed.insert(index),
                                "case {case}: block {index}"
                            );
                        }
                    }
                    WriteAction::Withdraw => assert!(is_cancelled),
                    WriteAction::End { blocks } => end = Some(blocks),
                    WriteAction::Fail(fault) => panic!("case {case}: {fault}"),
                }
            }
            if end.is_some() {
                break;
            }
            let now = Time(step * 100_000);
            if step == u64::from(stop_at) && case % 2 == 0 {
                is_cancelled = true;
                stream.handle(now, WriteInput::Cancel, &mut budget);
                continue;
            }
            match rng.next_u32() % 3 {
                0 if index < blocks && !is_cancelled => {
                    let bytes = (64 * KIB * (1 + rng.next_u32() % 4)).min(block - offset);
                    if credit >= u64::from(bytes) {
                        credit -= u64::from(bytes);
                        stream.handle(now, slice(index, offset, bytes), &mut budget);
                        offset += bytes;
                        if offset == block {
                            (offset, index) = (0, index + 1);
                        }
                    }
                }
                1 if !writing.is_empty() => {
                    let index = writing.swap_remove(rng.next_u32() as usize % writing.len());
                    made.insert(index);
                    stream.handle(now, durable(index), &mut budget);
                }
                2 if index == blocks && !is_finished && !is_cancelled => {
                    is_finished = true;
                    stream.handle(now, WriteInput::Finish, &mut budget);
                }
                _ => {}
            }
        }
        let end = end.unwrap_or_else(|| panic!("case {case}: the stream never ended"));
        assert_eq!(end, made, "case {case}");
        assert_eq!(confirmed, made, "case {case}");
        assert_eq!((budget.used_bytes(), budget.streams()), (0, 0));
        if is_cancelled {
            cancelled += 1;
        } else {
            finished += 1;
            assert_eq!(made.count(), blocks);
        }
    }
    assert!(cancelled > 100 && finished > 100, "{cancelled} {finished}");
}

#[test]
fn who_has_sent_nothing_has_its_floor_alone() {
    let mut budget = Budget::new(8 * MIB);
    let mut idle: Vec<_> = (0..32).map(|_| begin(&open(128 * KIB, 1000), &mut budget)).collect();
    assert_eq!(budget.used_bytes(), 4 * MIB);
    // The next has the rest for itself, but a part for whoever comes after it.
    let mut stream = begin(&open(128 * KIB, 1000), &mut budget);
    stream.handle(Time(1), slice(0, 0, 64 * KIB), &mut budget);
    let granted = drain(&mut stream).into_iter().map(|action| match action {
        WriteAction::Grant(bytes) => bytes,
        other => panic!("{other:?}"),
    });
    assert!(granted.sum::<u32>() > 128 * KIB);
    idle.iter_mut().for_each(|stream| stream.abandon(&mut budget));
    stream.abandon(&mut budget);
    assert_eq!((budget.used_bytes(), budget.streams()), (0, 0));
}

/// Sources that stall, and a writer that finds no room: those give way that write nothing.
#[test]
fn silent_writers_give_way_to_those_that_find_no_room() {
    const SECOND: u64 = 1_000_000_000;
    let block = 256 * KIB;
    let mut budget = Budget::new(6 * u64::from(block));
    let newcomer =
        |budget: &mut Budget| WriteStream::new(Time(0), &open(block, 1000), IndexRanges::new(), 0, budget);
    let mut silent: Vec<WriteStream> = Vec::new();
    while let Ok(mut stream) = newcomer(&mut budget) {
        stream.handle(Time(SECOND), slice(0, 0, 64 * KIB), &mut budget);
        silent.push(stream);
    }
    assert!(silent.len() >= 2 && silent.iter().all(WriteStream::could_yield));
    // The first is busy again: what it has is being written.
    silent[0].handle(Time(SECOND), slice(0, 64 * KIB, 192 * KIB), &mut budget);
    assert!(!silent[0].could_yield());
    let mut tick = |stream: &mut WriteStream, now: u64| {
        stream.handle(Time(now), WriteInput::Tick, &mut budget);
        let actions = drain_but_grants(stream);
        actions.into_iter().find(|action| !matches!(action, WriteAction::Write { .. }))
    };
    // Not before it is long silent.
    assert_eq!(tick(&mut silent[1], 3 * SECOND - 1), None);
    assert_eq!(tick(&mut silent[0], 9 * SECOND), None, "it writes");
    let given = tick(&mut silent[1], 3 * SECOND);
    let refused =
        matches!(given, Some(WriteAction::Fail(Fault::Refused { reason: RefusalReason::Overloaded, .. })));
    assert!(refused, "{given:?}");
    assert!(newcomer(&mut budget).is_ok(), "there is room");
    // Nobody lacks any now: a silence is no offence.
    for stream in &mut silent[2..] {
        stream.handle(Time(99 * SECOND), WriteInput::Tick, &mut budget);
        assert_eq!(drain_but_grants(stream), []);
    }
}

/// Streams that were opened and never heard hold their floors, and these alone may be all there is.
#[test]
fn writers_that_never_begin_give_way_too() {
    const SECOND: u64 = 1_000_000_000;
    let block = 256 * KIB;
    let mut budget = Budget::new(2 * u64::from(block));
    let mut silent = [0; 2].map(|_| begin(&open(block, 10), &mut budget));
    let newcomer =
        |budget: &mut Budget| WriteStream::new(Time(SECOND), &open(block, 10), IndexRanges::new(), 0, budget);
    let refused = |fault: &Fault| matches!(fault, Fault::Refused { reason: RefusalReason::Overloaded, .. });
    assert!(newcomer(&mut budget).is_err_and(|fault| refused(&fault)), "floors are all there is");
    let tick = |stream: &mut WriteStream, now: u64, budget: &mut Budget| {
        stream.handle(Time(now), WriteInput::Tick, budget);
        drain_but_grants(stream)
    };
    assert_eq!(tick(&mut silent[0], 2 * SECOND - 1, &mut budget), []);
    let given = tick(&mut silent[0], 2 * SECOND, &mut budget);
    assert!(matches!(&given[..], [WriteAction::Fail(fault)] if refused(fault)), "{given:?}");
    assert!(newcomer(&mut budget).is_ok(), "there is room");
    assert_eq!(tick(&mut silent[1], 99 * SECOND, &mut budget), [], "nobody lacks any now");
}

/// A device may take long to begin a segment; its writer cannot have been silent meanwhile.
#[test]
fn silence_counts_from_when_a_writer_hears_of_its_credit() {
    let at = |millis: u64| Time(millis * 1_000_000);
    let block = 256 * KIB;
    let mut budget = Budget::new(u64::from(block));
    let mut stream = begin(&open(block, 10), &mut budget);
    assert!(WriteStream::new(at(0), &open(block, 10), IndexRanges::new(), 0, &mut budget).is_err());
    stream.begin(at(5_000), IndexRanges::new());
    for (millis, given_up) in [(5_100, false), (6_999, false), (7_000, true)] {
        stream.handle(at(millis), WriteInput::Tick, &mut budget);
        assert_eq!(!drain_but_grants(&mut stream).is_empty(), given_up, "at {millis} ms");
    }
}

/// The largest number is the end of a range of blocks, never a block's.
#[test]
fn a_block_of_the_largest_number_is_refused() {
    let mut budget = Budget::new(10 << 20);
    let mut stream = begin(&open(64 * KIB, 10), &mut budget);
    stream.handle(Time(0), slice(BlockIndex::MAX, 0, 64 * KIB), &mut budget);
    let told = drain_but_grants(&mut stream);
    assert!(matches!(&told[..], [WriteAction::Fail(Fault::Protocol(_))]), "{told:?}");
    assert_eq!((budget.used_bytes(), budget.streams()), (0, 0));
}
