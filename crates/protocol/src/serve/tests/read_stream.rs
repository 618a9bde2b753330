use super::super::*;
use super::rng;
use crate::{
    DeviceId, Time,
    message::{Fault, NodeFault, ReadDone},
};
use rand_core::Rng;
use std::collections::BTreeMap;

const KIB: u32 = 1024;

/// The actions that wait; what is to be fetched behind a slice has its own test.
fn drain(stream: &mut ReadStream) -> Vec<ReadAction> {
    let mut actions: Vec<ReadAction> = core::iter::from_fn(|| stream.poll()).collect();
    for action in &mut actions {
        if let ReadAction::Read { ahead, .. } = action {
            *ahead = 0;
        }
    }
    actions
}

fn read(slice: SliceId, index: u32, offset: u32, length: u32) -> ReadAction {
    ReadAction::Read { slice, index, offset, length, ahead: 0 }
}

fn done(slice: SliceId, result: ReadResult) -> ReadInput {
    ReadInput::ReadDone { slice, result }
}

#[test]
fn blocks_go_out_in_the_order_they_lie_within_credit() {
    let mut stream = ReadStream::new(vec![7, 3], 100 * KIB, 64 * KIB, 2, 128 * KIB);
    assert_eq!(drain(&mut stream), [read(0, 7, 0, 64 * KIB), read(1, 7, 64 * KIB, 36 * KIB)]);
    // Out of order from the medium, in order on the wire.
    stream.handle(Time(0), done(1, ReadResult::Good));
    assert_eq!(drain(&mut stream), []);
    stream.handle(Time(0), done(0, ReadResult::Good));
    let send = |slice, index, offset| ReadAction::Send { slice, index, offset };
    assert_eq!(drain(&mut stream), [send(0, 7, 0), send(1, 7, 64 * KIB)]);
    // Room, but 28 KiB of credit are not enough for a slice.
    stream.handle(Time(0), ReadInput::Sent { slice: 0 });
    stream.handle(Time(0), ReadInput::Sent { slice: 1 });
    assert_eq!(drain(&mut stream), []);
    stream.handle(Time(0), ReadInput::Credit(72 * KIB));
    assert_eq!(drain(&mut stream), [read(2, 3, 0, 64 * KIB), read(3, 3, 64 * KIB, 36 * KIB)]);
    stream.handle(Time(0), done(2, ReadResult::Good));
    stream.handle(Time(0), done(3, ReadResult::Good));
    let all = u64::from(200 * KIB);
    let end = ReadDone { medium_bytes: all, sent_bytes: all, corrupt_blocks: 0 };
    assert_eq!(drain(&mut stream), [send(2, 3, 0), send(3, 3, 64 * KIB), ReadAction::End(end)]);
}

#[test]
fn a_corrupt_block_is_skipped_and_its_credit_serves_the_next() {
    let mut stream = ReadStream::new(vec![0, 1], 128 * KIB, 64 * KIB, 2, 128 * KIB);
    assert_eq!(drain(&mut stream).len(), 2);
    stream.handle(Time(0), done(1, ReadResult::Corrupt));
    assert_eq!(drain(&mut stream), []);
    stream.handle(Time(0), done(0, ReadResult::Good));
    let next = [ReadAction::Discard { slice: 0 }, read(2, 1, 0, 64 * KIB), read(3, 1, 64 * KIB, 64 * KIB)];
    assert_eq!(drain(&mut stream), next);
    stream.handle(Time(0), done(2, ReadResult::Good));
    stream.handle(Time(0), done(3, ReadResult::Good));
    let end = ReadDone { medium_bytes: 256 << 10, sent_bytes: 128 << 10, corrupt_blocks: 1 };
    assert_eq!(drain(&mut stream).last(), Some(&ReadAction::End(end)));
}

#[test]
fn corruption_in_the_first_slice_leaves_the_rest_unread() {
    let mut stream = ReadStream::new(vec![0, 1], 256 * KIB, 64 * KIB, 1, 1 << 20);
    drain(&mut stream);
    stream.handle(Time(0), done(0, ReadResult::Corrupt));
    assert_eq!(drain(&mut stream), [read(1, 1, 0, 64 * KIB)]);
}

#[test]
fn a_failing_medium_ends_the_stream_with_its_words() {
    let fault = NodeFault::Medium { device: DeviceId(1), detail: "EIO".to_owned() };
    let mut stream = ReadStream::new(vec![0, 1], 64 * KIB, 64 * KIB, 2, 1 << 20);
    drain(&mut stream);
    stream.handle(Time(0), done(0, ReadResult::Failed(fault.clone())));
    assert_eq!(drain(&mut stream), [ReadAction::Withdraw]);
    stream.handle(Time(0), done(1, ReadResult::Withdrawn));
    assert_eq!(drain(&mut stream), [ReadAction::Fail(Fault::Node(fault))]);
}

#[test]
fn what_the_medium_does_not_give_is_skipped_and_too_much_of_it_ends_the_stream() {
    let fault = || NodeFault::Medium { device: DeviceId(1), detail: "EIO".to_owned() };
    let mut stream = ReadStream::new(vec![0, 1], 64 * KIB, 64 * KIB, 2, 1 << 20);
    drain(&mut stream);
    stream.handle(Time(0), done(0, ReadResult::Unreadable(fault())));
    assert_eq!(drain(&mut stream), []);
    stream.handle(Time(0), done(1, ReadResult::Good));
    let bytes = u64::from(64 * KIB);
    let end = ReadDone { medium_bytes: bytes, sent_bytes: bytes, corrupt_blocks: 1 };
    assert_eq!(
        drain(&mut stream),
        [ReadAction::Send { slice: 1, index: 1, offset: 0 }, ReadAction::End(end)]
    );

    // Eight blocks, however many of the two slices of each.
    let mut stream = ReadStream::new((0..20).collect(), 128 * KIB, 64 * KIB, 2, 4 << 20);
    assert_eq!(drain(&mut stream).len(), 2);
    for slice in 0..16 {
        stream.handle(Time(0), done(slice, ReadResult::Unreadable(fault())));
        let next = slice + 2;
        let (index, offset) = ((next / 2) as u32, (next % 2) as u32 * 64 * KIB);
        assert_eq!(drain(&mut stream), [read(next, index, offset, 64 * KIB)]);
    }
    stream.handle(Time(0), done(16, ReadResult::Unreadable(fault())));
    assert_eq!(drain(&mut stream), [ReadAction::Withdraw]);
    stream.handle(Time(0), done(17, ReadResult::Withdrawn));
    assert_eq!(drain(&mut stream), [ReadAction::Fail(Fault::Node(fault()))]);
}

#[test]
fn a_stream_that_is_granted_nothing_ends_where_others_find_no_room_for_long() {
    let second = |seconds: u64| Time(seconds * 1_000_000_000);
    let mut stream = ReadStream::new(vec![0, 1], 64 * KIB, 64 * KIB, 2, 64 * KIB);
    assert_eq!(drain(&mut stream), [read(0, 0, 0, 64 * KIB)]);
    // It waits for its device, which is no silence.
    (0..9).for_each(|seconds| stream.handle(second(seconds), ReadInput::Wanted));
    stream.handle(second(9), done(0, ReadResult::Good));
    assert_eq!(drain(&mut stream), [ReadAction::Send { slice: 0, index: 0, offset: 0 }]);
    stream.handle(second(9), ReadInput::Sent { slice: 0 });
    assert!(stream.could_yield());
    stream.handle(second(20), ReadInput::Wanted);
    // Less than a slice is nothing.
    stream.handle(second(21), ReadInput::Credit(KIB));
    stream.handle(second(21), ReadInput::Wanted);
    assert_eq!(drain(&mut stream), []);
    stream.handle(second(22), ReadInput::Wanted);
    assert!(matches!(drain(&mut stream)[..], [ReadAction::Fail(Fault::Refused { .. })]));
    assert!(!stream.could_yield());

    let mut stream = ReadStream::new(vec![0, 1], 64 * KIB, 64 * KIB, 1, 0);
    stream.handle(second(0), ReadInput::Wanted);
    stream.handle(second(1), ReadInput::Credit(64 * KIB));
    stream.handle(second(5), ReadInput::Wanted);
    assert_eq!(drain(&mut stream), [read(0, 0, 0, 64 * KIB)]);
}

#[test]
fn nothing_wanted_ends_at_once() {
    let mut stream = ReadStream::new(vec![], 64 * KIB, 64 * KIB, 2, 0);
    assert_eq!(drain(&mut stream), [ReadAction::End(ReadDone::default())]);
}

#[test]
fn finishing_sends_what_is_being_read_and_nothing_of_a_block_cut_short() {
    let block = 128 * KIB;
    let mut stream = ReadStream::new(vec![4, 5, 6], block, 64 * KIB, 4, 3 * block);
    assert_eq!(drain(&mut stream).len(), 4);
    stream.handle(Time(0), done(0, ReadResult::Good));
    stream.handle(Time(0), done(1, ReadResult::Good));
    let send = |slice, index, offset| ReadAction::Send { slice, index, offset };
    assert_eq!(drain(&mut stream), [send(0, 4, 0), send(1, 4, 64 * KIB)]);
    stream.handle(Time(0), ReadInput::Sent { slice: 0 });
    assert_eq!(drain(&mut stream), [read(4, 6, 0, 64 * KIB)]);
    // Block 5 is on the medium; of block 6 only a part was asked for.
    stream.handle(Time(0), ReadInput::Finish);
    assert_eq!(drain(&mut stream), [ReadAction::Withdraw]);
    stream.handle(Time(0), done(4, ReadResult::Withdrawn));
    stream.handle(Time(0), done(2, ReadResult::Good));
    stream.handle(Time(0), done(3, ReadResult::Good));
    let sent = u64::from(2 * block);
    let end = ReadAction::End(ReadDone { medium_bytes: sent, sent_bytes: sent, corrupt_blocks: 0 });
    assert_eq!(drain(&mut stream), [send(2, 5, 0), send(3, 5, 64 * KIB), end]);

    // The second half of the block waits: the first is not sent either.
    let mut stream = ReadStream::new(vec![4], block, 64 * KIB, 4, block);
    assert_eq!(drain(&mut stream).len(), 2);
    stream.handle(Time(0), ReadInput::Finish);
    stream.handle(Time(0), done(1, ReadResult::Withdrawn));
    stream.handle(Time(0), done(0, ReadResult::Good));
    let end = ReadAction::End(ReadDone { medium_bytes: 64 << 10, sent_bytes: 0, corrupt_blocks: 0 });
    assert_eq!(drain(&mut stream), [ReadAction::Withdraw, ReadAction::Discard { slice: 0 }, end]);
}

/// What the reads of a stream of these blocks, of 768 KiB in slices of 256 KiB, have fetched behind themselves, in KiB.
fn fetched(blocks: Vec<u32>) -> Vec<u32> {
    let mut stream = ReadStream::new(blocks, 768 * KIB, 256 * KIB, 64, 64 << 20);
    let ahead = core::iter::from_fn(|| stream.poll()).map(|action| match action {
        ReadAction::Read { ahead, .. } => ahead / KIB,
        other => panic!("{other:?}"),
    });
    ahead.collect()
}

#[test]
fn what_follows_is_fetched_in_turn_and_nothing_that_the_stream_does_not_want() {
    // 2 MiB behind the first slice, and 2 MiB again where less than 1 MiB of them is left, up to the end.
    let many = fetched((4..12).collect());
    let refill = [2048, 0, 0, 0, 0];
    assert_eq!(many, [&refill[..], &refill, &refill, &refill, &[0; 4]].concat());
    // The end of a stream, blocks that others lie between, a single slice.
    assert_eq!(fetched(vec![7]), [512, 0, 0]);
    assert_eq!(fetched(vec![7, 9]), [512, 0, 0, 512, 0, 0]);
    assert_eq!(fetched(vec![9, 8]), [512, 0, 0, 512, 0, 0]);
    let mut small = ReadStream::new(vec![3], 64 * KIB, 64 * KIB, 1, 64 * KIB);
    assert_eq!(small.poll(), Some(read(0, 3, 0, 64 * KIB)));
}

/// Seeded schedules: completions in any order, corrupt blocks, slow connections, finish and cancel at any point.
#[test]
fn promises_hold_under_any_schedule() {
    let (mut cancelled, mut finished, mut ended, mut skipped) = (0, 0, 0, 0);
    for case in 0..2000 {
        let mut rng = rng(case);
        let block = 1 + rng.next_u32() % (300 * KIB);
        let slice = 64 * KIB * (1 + rng.next_u32() % 4);
        let slices_max = 1 + rng.next_u32() as usize % 4;
        let blocks: Vec<u32> = (0..rng.next_u32() % 12).map(|n| n * 3).collect();
        let corrupt: Vec<u32> = blocks.iter().copied().filter(|_| rng.next_u32().is_multiple_of(5)).collect();
        let mut credit = u64::from(rng.next_u32() % (600 * KIB));
        let cancel_at = rng.next_u32() % 80;
        let finish_at = if case % 3 == 0 { rng.next_u32() % 60 } else { u32::MAX };
        let mut stream = ReadStream::new(blocks.clone(), block, slice, slices_max, credit as u32);
        let mut reading: Vec<(SliceId, u32, u32, u32)> = Vec::new();
        let mut held: BTreeMap<SliceId, (u32, u32, u32)> = BTreeMap::new();
        let mut sending: Vec<SliceId> = Vec::new();
        let mut wire: Vec<(u32, u32, u32)> = Vec::new();
        let (mut is_finished, mut is_cancelled, mut over, mut medium) = (false, false, None, 0u64);
        for step in 0..10_000 {
            while let Some(action) = stream.poll() {
                assert!(over.is_none(), "case {case}: {action:?} after the end");
                match action {
                    ReadAction::Read { slice, index, offset, length, ahead: _ } => {
                        assert!(!is_cancelled && !is_finished, "case {case}: a read after cancel or finish");
                        reading.push((slice, index, offset, length));
                    }
                    ReadAction::Send { slice, index, offset } => {
                        assert!(!is_cancelled, "case {case}: sent after cancel");
                        let (read_index, read_offset, length) =
                            held.remove(&slice).expect("sent once, when read");
                        assert_eq!((index, offset), (read_index, read_offset));
                        credit = credit.checked_sub(length.into()).expect("beyond the credit");
                        wire.push((index, offset, length));
                        sending.push(slice);
                    }
                    ReadAction::Discard { slice } => assert!(held.remove(&slice).is_some()),
                    ReadAction::Withdraw => {
                        assert!(is_cancelled || is_finished);
                        let from = reading.len().min(rng.next_u32() as usize % 3);
                        for (slice, ..) in reading.drain(from..) {
                            stream.handle(Time(step.into()), done(slice, ReadResult::Withdrawn));
                        }
                    }
                    ReadAction::End(done) => over = Some(done),
                    ReadAction::Fail(fault) => panic!("case {case}: {fault}"),
                }
                assert!(
                    reading.len() + held.len() + sending.len() <= slices_max,
                    "case {case}: holds too many"
                );
            }
            if over.is_some() {
                break;
            }
            if step == finish_at {
                is_finished = true;
                stream.handle(Time(step.into()), ReadInput::Finish);
                continue;
            }
            if step == cancel_at {
                is_cancelled = true;
                stream.handle(Time(step.into()), ReadInput::Cancel);
                continue;
            }
            match rng.next_u32() % 4 {
                0 if !reading.is_empty() => {
                    let (slice, index, offset, length) =
                        reading.remove(rng.next_u32() as usize % reading.len());
                    // Damage is in the last byte of the block.
                    let bad = corrupt.contains(&index) && offset + length == block;
                    medium += u64::from(length);
                    if !bad {
                        held.insert(slice, (index, offset, length));
                    }
                    let result = if bad { ReadResult::Corrupt } else { ReadResult::Good };
                    stream.handle(Time(step.into()), done(slice, result));
                }
                1 if !sending.is_empty() => {
                    let slice = sending.remove(0);
                    stream.handle(Time(step.into()), ReadInput::Sent { slice });
                }
                2 => {
                    let more = rng.next_u32() % (200 * KIB);
                    credit += u64::from(more);
                    stream.handle(Time(step.into()), ReadInput::Credit(more));
                }
                _ => {}
            }
        }
        let done = over.expect("every stream ends");
        assert!(held.is_empty() && reading.is_empty(), "case {case}: bytes left behind");
        assert_eq!(done.medium_bytes, medium);
        assert_eq!(done.sent_bytes, wire.iter().map(|slice| u64::from(slice.2)).sum::<u64>());
        // On the wire: a prefix of every block in order; whole unless damaged or cancelled.
        let mut expected = Vec::new();
        for &index in &blocks {
            let mut offset = 0;
            while offset < block {
                let length = slice.min(block - offset);
                expected.push((index, offset, length));
                offset += length;
            }
        }
        let mut from = 0;
        for sent in &wire {
            let position = expected[from..].iter().position(|slice| slice == sent);
            let position = position.unwrap_or_else(|| panic!("case {case}: {sent:?} twice or out of order"));
            let passed_over = &expected[from..from + position];
            assert!(
                is_finished || passed_over.iter().all(|slice| corrupt.contains(&slice.0)),
                "case {case}: {passed_over:?} lost"
            );
            from += position + 1;
        }
        if is_cancelled {
            cancelled += 1;
        } else if is_finished {
            finished += 1;
        } else {
            ended += 1;
            assert!(expected[from..].iter().all(|slice| corrupt.contains(&slice.0)));
            assert_eq!(done.corrupt_blocks as usize, corrupt.len());
            skipped += corrupt.len();
        }
    }
    assert!(
        cancelled > 200 && finished > 200 && ended > 200 && skipped > 200,
        "{cancelled} {finished} {ended} {skipped}"
    );
}
