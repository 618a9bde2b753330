//! What reads of parity segments ask for: of (6, 4) in chunks of two blocks, device n holding chunk n.

use super::super::*;
use crate::layout::{CodeSpec, Holder, ParityGeometry};

const MS: u64 = 1_000_000;
const SHAPE: ParityGeometry = ParityGeometry { chunks: 6, data: 4, blocks: 2, block_bytes: 64 << 10 };
/// The same in chunks of sixteen blocks.
const LARGER: ParityGeometry = ParityGeometry { blocks: 16, ..SHAPE };

fn layout(shape: ParityGeometry, length: u64) -> SegmentLayout {
    let holder = |chunk: u32| {
        let (segment, version) = (crate::SegmentId(1), crate::Version(1));
        Holder::whole(DeviceId(chunk.into()), segment, version, shape.blocks_of(chunk).into())
    };
    SegmentLayout {
        segment: crate::SegmentId(1),
        version: crate::Version(1),
        epoch: crate::Epoch(1),
        length,
        code: CodeSpec { kind: shape.code(), originals: shape.originals(), seed: 0 },
        block_bytes: shape.block_bytes,
        granule_bytes: 4096,
        holders: (0..shape.chunks).map(holder).collect(),
    }
}

fn begin(length: u64, rule: RequestRule) -> Box<dyn ReadCore + Send> {
    begin_of(SHAPE, length, rule)
}

fn begin_of(shape: ParityGeometry, length: u64, rule: RequestRule) -> Box<dyn ReadCore + Send> {
    begin_where(shape, length, rule, &Caution::default())
}

/// By what was learned before.
fn begin_where(
    shape: ParityGeometry,
    length: u64,
    rule: RequestRule,
    caution: &Caution,
) -> Box<dyn ReadCore + Send> {
    let layout = layout(shape, length);
    let mut plan = ReadPlan::new(&layout, rule, || 0, |_| (100_000_000, 0));
    plan.late = caution.late(Time(0));
    whole(Time(0), plan, &layout, &"parity".parse().unwrap())
}

fn asked(core: &mut dyn ReadCore) -> Vec<(u128, String)> {
    let opened = core::iter::from_fn(|| core.poll()).filter_map(|action| match action {
        Action::Open { device, want: Want::Blocks(blocks), .. } => Some((device.0, blocks.to_string())),
        Action::Open { device, want: Want::All, .. } => Some((device.0, "all".to_owned())),
        _ => None,
    });
    opened.collect()
}

fn give(core: &mut dyn ReadCore, now: u64, device: u128, index: u32, missing: u32) {
    core.handle(Time(now), Input::Slice { device: DeviceId(device), index, bytes: SHAPE.block_bytes });
    core.handle(Time(now), Input::Block { device: DeviceId(device), index, missing });
}

fn named(opened: &[(u128, &str)]) -> Vec<(u128, String)> {
    opened.iter().map(|(device, blocks)| (*device, (*blocks).to_owned())).collect()
}

#[test]
fn a_healthy_read_asks_for_the_data_and_nothing_behind_it() {
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    assert_eq!(asked(&mut *core), named(&[(0, "0-1"), (1, "2-3"), (2, "4-5"), (3, "6-7")]));
    for index in 0..8 {
        give(&mut *core, MS, (index / 2).into(), index, 7 - index);
    }
    assert_eq!((core.counts().requested_blocks, core.wake_at()), (8, None));
    // 200,000 bytes are four blocks of the first two chunks.
    let mut short = begin(200_000, RequestRule::ADAPTIVE);
    assert_eq!(asked(&mut *short), named(&[(0, "0-1"), (1, "2-3")]));
    assert_eq!(asked(&mut *begin(1, RequestRule::ADAPTIVE)), named(&[(0, "0-0")]));
    // Who asks for everything gets it.
    assert_eq!(asked(&mut *begin(1, RequestRule::All)).len(), 6);
}

#[test]
fn a_lost_device_costs_one_chunk_of_parity_and_two_cost_both() {
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    asked(&mut *core);
    let lost = || Cause::Unreachable("gone".to_owned());
    core.handle(Time(MS), Input::Failed { device: DeviceId(2), cause: lost() });
    assert_eq!(asked(&mut *core), named(&[(4, "8-9")]));
    core.handle(Time(2 * MS), Input::Failed { device: DeviceId(4), cause: lost() });
    assert_eq!(asked(&mut *core), named(&[(5, "10-11")]));
    for (sent, index) in [0, 1, 2, 3, 6, 7, 10].into_iter().enumerate() {
        give(&mut *core, 3 * MS, (index / 2).into(), index, 7 - sent as u32);
    }
    core.handle(Time(4 * MS), Input::Corrupt { device: DeviceId(5), index: 11 });
    assert_eq!(asked(&mut *core), named(&[(2, "5-5")]), "a lost one is tried again");
    // One byte of a lost chunk takes a decode of the segment, and no more.
    let mut byte = begin(1, RequestRule::ADAPTIVE);
    asked(&mut *byte);
    byte.handle(Time(MS), Input::Failed { device: DeviceId(0), cause: lost() });
    assert_eq!(asked(&mut *byte).len(), 4);
}

#[test]
fn a_silent_device_is_stood_in_for_and_so_is_one_that_stands_in() {
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    asked(&mut *core);
    for (sent, device) in [0u32, 1, 3].into_iter().enumerate() {
        for block in 0..2 {
            let missing = 8 - (2 * sent as u32 + block + 1);
            give(&mut *core, MS, device.into(), device * 2 + block, missing);
        }
    }
    let first = core.wake_at().expect("it waits for device 2");
    assert!(first.0 < 50 * MS, "{first:?}");
    core.handle(first, Input::Tick);
    assert_eq!(asked(&mut *core), named(&[(4, "8-9")]));
    let mut second = first;
    let opened = loop {
        let wake = core.wake_at().expect("it waits for device 4");
        assert!(wake > second && wake.0 < 200 * MS, "{wake:?} after {second:?}");
        second = wake;
        core.handle(second, Input::Tick);
        let opened = asked(&mut *core);
        if !opened.is_empty() {
            break opened;
        }
    };
    assert_eq!(opened, named(&[(5, "10-11")]));
    give(&mut *core, second.0 + MS, 4, 8, 1);
    give(&mut *core, second.0 + MS, 5, 11, 0);
    assert_eq!(core.wake_at(), None, "one block of each row was missing");
}

/// All four send a block each millisecond, the last of them one in `slowness`, until that one says nothing from `silent_at` blocks
/// on. Gives what else is asked for, and when.
fn one_of_four(slowness: u64, silent_at: u32) -> (u64, Vec<(u128, String)>) {
    one_of_four_where(slowness, silent_at, &Caution::default())
}

fn one_of_four_where(slowness: u64, silent_at: u32, caution: &Caution) -> (u64, Vec<(u128, String)>) {
    let mut core = begin_where(LARGER, LARGER.capacity_bytes(), RequestRule::ADAPTIVE, caution);
    asked(&mut *core);
    let mut missing = LARGER.originals();
    for ms in 1..1000 {
        for device in 0..4u32 {
            let pace = if device == 3 { slowness } else { 1 };
            let block = (ms / pace) as u32;
            let ends = if device == 3 { silent_at } else { 16 };
            if ms % pace == 0 && (1..=ends).contains(&block) {
                missing -= 1;
                give(&mut *core, ms * MS, device.into(), device * 16 + block - 1, missing);
                if block == 16 {
                    core.handle(Time(ms * MS), Input::Ended { device: DeviceId(device.into()) });
                }
            }
        }
        if core.wake_at().is_some_and(|wake| wake.0 <= ms * MS) {
            core.handle(Time(ms * MS), Input::Tick);
        }
        let opened = asked(&mut *core);
        if !opened.is_empty() || missing == 0 {
            return (ms, opened);
        }
    }
    panic!("{missing} blocks did not come");
}

#[test]
fn only_rows_that_lack_something_are_asked_of_parity() {
    // Eleven of its sixteen came; the others have sent all.
    let (ms, opened) = one_of_four(1, 11);
    assert_eq!(opened, named(&[(4, "75-79")]));
    assert!(ms < 60, "{ms}");
}

/// Others are done and parity is at hand. But what is asked of it now comes at their pace, too.
#[test]
fn a_chunk_that_comes_a_little_later_is_waited_for_and_one_that_comes_much_later_is_not() {
    assert_eq!(one_of_four(2, 16), (32, vec![]));
    let (ms, opened) = one_of_four(6, 16);
    assert!(ms < 40, "{ms}");
    assert!(opened.len() == 1 && opened[0].0 == 4, "{opened:?}");
}

#[test]
fn who_learned_caution_waits_longer() {
    let mut caution = Caution::default();
    // Paid for by what it brought.
    let in_vain = ReadDone { extra_blocks: 16, useful_blocks: 320, ..ReadDone::default() };
    let mut before = 0;
    for _ in 0..4 {
        let (ms, opened) = one_of_four_where(1, 11, &caution);
        assert_eq!(opened, named(&[(4, "75-79")]));
        assert!(ms > before && ms < 200, "{ms} after {before}");
        before = ms;
        caution.learn(Time(0), &in_vain, 1000, &[]);
    }
    assert_eq!(one_of_four_where(6, 16, &caution), (96, vec![]));
}

#[test]
fn what_stood_in_is_counted_and_whether_it_came_first() {
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    asked(&mut *core);
    for (sent, index) in [0, 1, 2, 3, 6, 7].into_iter().enumerate() {
        give(&mut *core, MS, (index / 2).into(), index, 7 - sent as u32);
    }
    assert_eq!(core.counts().extra_blocks, 0);
    let late = core.wake_at().expect("it waits for device 2");
    core.handle(late, Input::Tick);
    assert_eq!(asked(&mut *core), named(&[(4, "8-9")]));
    let counts = |core: &dyn ReadCore| (core.counts().extra_blocks, core.counts().extra_won);
    // Of the first row the original comes before what stands in for it, of the second after it.
    give(&mut *core, late.0 + MS, 2, 4, 1);
    give(&mut *core, late.0 + MS, 4, 8, 1);
    assert_eq!(counts(&*core), (2, 0));
    give(&mut *core, late.0 + MS, 4, 9, 0);
    assert_eq!(counts(&*core), (2, 1));
    // What stands in for a device that is lost is no extra, also beside what stands in for one that is late.
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    asked(&mut *core);
    let cause = Cause::Unreachable("gone".to_owned());
    core.handle(Time(MS), Input::Failed { device: DeviceId(2), cause });
    assert_eq!((asked(&mut *core).len(), counts(&*core)), (1, (0, 0)));
    for (sent, index) in [0, 1, 2, 3, 8, 9].into_iter().enumerate() {
        give(&mut *core, 2 * MS, (index / 2).into(), index, 7 - sent as u32);
    }
    let late = core.wake_at().expect("it waits for device 3");
    core.handle(late, Input::Tick);
    assert_eq!((asked(&mut *core), counts(&*core)), (named(&[(5, "10-11")]), (2, 0)));
    // Lost when another one is late: one of the two chunks is extra.
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    asked(&mut *core);
    for (sent, index) in [0, 1, 2, 3].into_iter().enumerate() {
        give(&mut *core, MS, (index / 2).into(), index, 7 - sent as u32);
    }
    let late = core.wake_at().expect("it waits for devices 2 and 3");
    let cause = Cause::Unreachable("gone".to_owned());
    core.handle(late, Input::Failed { device: DeviceId(2), cause });
    assert_eq!((asked(&mut *core), counts(&*core)), (named(&[(4, "8-9"), (5, "10-11")]), (2, 0)));
}

/// Nobody has answered: what is waited for then is a part of the patience, whatever was learned.
#[test]
fn caution_does_not_multiply_what_nobody_has_seen() {
    let mut caution = Caution::default();
    let woken = |caution: &Caution| {
        let mut core = begin_where(SHAPE, 1, RequestRule::ADAPTIVE, caution);
        asked(&mut *core);
        core.wake_at()
    };
    let before = woken(&caution);
    (0..3).for_each(|_| {
        caution.learn(Time(0), &ReadDone { extra_blocks: 1, ..ReadDone::default() }, 1000, &[])
    });
    assert_eq!(caution.late(Time(0)).factor, 16);
    assert_eq!(woken(&caution), before);
}

/// Where these were late a moment ago.
fn asked_first(length: u64, late: &[u128]) -> Vec<(u128, String)> {
    let devices = late.iter().copied().map(DeviceId).collect();
    asked_first_of(length, Late { devices, ..Late::default() }, |_| 100)
}

/// Of devices known for so many MB/s.
fn asked_first_of(length: u64, late: Late, known: impl Fn(u128) -> u64) -> Vec<(u128, String)> {
    let layout = layout(SHAPE, length);
    let mut plan =
        ReadPlan::new(&layout, RequestRule::ADAPTIVE, || 0, |device| (known(device.0) * 1_000_000, 0));
    plan.late = late;
    asked(&mut *whole(Time(0), plan, &layout, &"parity".parse().unwrap()))
}

#[test]
fn who_was_late_is_not_asked_where_a_decode_can_do_without() {
    let whole = SHAPE.capacity_bytes();
    let without_2 = named(&[(0, "0-1"), (1, "2-3"), (3, "6-7"), (4, "8-9")]);
    assert_eq!(asked_first(whole, &[2]), without_2);
    assert_eq!(asked_first(whole, &[2, 5]), without_2);
    assert_eq!(asked_first(whole, &[2, 77]), without_2, "one that holds nothing of it");
    let by_parity = named(&[(0, "0-1"), (3, "6-7"), (4, "8-9"), (5, "10-11")]);
    assert_eq!(asked_first(whole, &[1, 2]), by_parity);
    assert_eq!(asked_first(whole, &[1, 2, 3]), by_parity, "three cannot be done without");
    let data = named(&[(0, "0-1"), (1, "2-3"), (2, "4-5"), (3, "6-7")]);
    assert_eq!(asked_first(whole, &[4]), data);
    let slow = |speed| move |device| if device == 2 { speed } else { 100 };
    assert_eq!(asked_first_of(whole, Late::default(), slow(24)), without_2);
    assert_eq!(asked_first_of(whole, Late::default(), slow(26)), data);
    assert_eq!(asked_first_of(whole, Late::default(), slow(0)), data, "nothing is known of it");
    assert_eq!(asked_first_of(whole, Late { tries: true, ..Late::default() }, slow(24)), data);
    // Less than a segment is not worth a decode.
    assert_eq!(asked_first(1, &[0]), named(&[(0, "0-0")]));
    assert_eq!(
        asked_first(whole - (64 << 10), &[3]),
        named(&[(0, "0-1"), (1, "2-3"), (2, "4-5"), (3, "6-6")])
    );
}

#[test]
fn what_was_done_without_is_asked_where_another_fails() {
    let layout = layout(SHAPE, SHAPE.capacity_bytes());
    let mut plan = ReadPlan::new(&layout, RequestRule::ADAPTIVE, || 0, |_| (100_000_000, 0));
    plan.late.devices = [DeviceId(1), DeviceId(2)].into();
    let mut core = whole(Time(0), plan, &layout, &"parity".parse().unwrap());
    asked(&mut *core);
    let cause = Cause::Unreachable("gone".to_owned());
    core.handle(Time(MS), Input::Failed { device: DeviceId(4), cause });
    assert_eq!(asked(&mut *core), named(&[(1, "2-3")]));
}

#[test]
fn who_still_owes_what_came_from_others_was_late() {
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    asked(&mut *core);
    for (sent, index) in [0, 1, 2, 3, 6].into_iter().enumerate() {
        give(&mut *core, MS, (index / 2).into(), index, 7 - sent as u32);
    }
    let (mut now, mut opened) = (MS, Vec::new());
    while opened.len() < 2 {
        now = core.wake_at().expect("it waits for devices 2 and 3").0;
        assert!(now < 500 * MS);
        core.handle(Time(now), Input::Tick);
        opened.extend(asked(&mut *core));
    }
    // Device 3 sends what it owes, device 2 does not.
    for (index, missing) in [(7, 2), (8, 1), (9, 0)] {
        give(&mut *core, now + MS, (index / 2).into(), index, missing);
    }
    assert_eq!(core.wake_at(), None);
    assert_eq!(core.late(), [DeviceId(2)]);
}

/// (3, 2), one byte wanted. Its device is lost and tried again for the row that nobody else has; then that row is lost for good,
/// and the wanted block can come as it is.
#[test]
fn what_is_wanted_is_asked_of_who_is_back_when_a_decode_has_become_impossible() {
    let mut core = begin_of(ParityGeometry { chunks: 3, data: 2, ..SHAPE }, 1, RequestRule::ADAPTIVE);
    let broken = |device: u128| {
        let fault = crate::message::NodeFault::Medium { device: DeviceId(device), detail: "EIO".to_owned() };
        let cause = Cause::Fault(crate::message::Fault::Node(fault));
        Input::Failed { device: DeviceId(device), cause }
    };
    assert_eq!(asked(&mut *core), named(&[(0, "0-0")]));
    let cause = Cause::Unreachable("gone".to_owned());
    core.handle(Time(MS), Input::Failed { device: DeviceId(0), cause });
    assert_eq!(asked(&mut *core), named(&[(1, "2-3"), (2, "4-5")]));
    give(&mut *core, 2 * MS, 1, 2, 3);
    core.handle(Time(3 * MS), broken(1));
    assert_eq!(asked(&mut *core), named(&[(0, "1-1")]));
    give(&mut *core, 4 * MS, 2, 4, 2);
    core.handle(Time(5 * MS), broken(2));
    assert_eq!(asked(&mut *core), []);
    give(&mut *core, 6 * MS, 0, 1, 1);
    core.handle(Time(6 * MS), Input::Ended { device: DeviceId(0) });
    assert_eq!(asked(&mut *core), named(&[(0, "0-0")]));
    give(&mut *core, 7 * MS, 0, 0, 1);
    assert_eq!(core.wake_at(), None, "it is over");
}

#[test]
fn a_block_that_comes_twice_counts_once() {
    let mut core = begin(SHAPE.capacity_bytes(), RequestRule::ADAPTIVE);
    asked(&mut *core);
    for (index, missing) in [(0, 7), (0, 7), (2, 6), (4, 5)] {
        give(&mut *core, MS, (index / 2).into(), index, missing);
    }
    let cause = Cause::Unreachable("gone".to_owned());
    core.handle(Time(MS), Input::Failed { device: DeviceId(3), cause });
    assert_eq!(asked(&mut *core), named(&[(4, "8-9")]), "the first row has three");
}
