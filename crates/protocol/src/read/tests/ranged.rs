//! Golden scripts of the ranged read: six devices that hold sixteen originals each in turn, and repair blocks.

use super::super::*;
use crate::message::{NodeFault, RefusalReason};

const MS: u64 = 1_000_000;
const BLOCK: u32 = 64 << 10;
/// K: 96 originals on six devices, in runs of 16.
const K: u32 = 96;

fn device(n: u128) -> DeviceId {
    DeviceId(n)
}

/// Device n holds originals 16 n to 16 n + 15 and as many repair blocks as half of that.
fn six(rate: u64) -> ReadPlan {
    let layout = SegmentLayout {
        segment: crate::SegmentId(1),
        version: crate::Version(1),
        epoch: crate::Epoch(1),
        length: u64::from(K) * u64::from(BLOCK),
        code: crate::layout::CodeSpec { kind: crate::layout::CodeKind::Mix, originals: K, seed: 0 },
        block_bytes: BLOCK,
        granule_bytes: BLOCK,
        holders: (0..6).map(holder).collect(),
    };
    ReadPlan::new(&layout, RequestRule::All, || 0, |_| (rate, 0))
}

fn holder(n: u32) -> crate::layout::Holder {
    let mut blocks = IndexRanges::from(n * 16..n * 16 + 16);
    blocks.insert_range(K + n * 8..K + n * 8 + 8);
    crate::layout::Holder::whole(device(n.into()), crate::SegmentId(1), crate::Version(1), blocks)
}

fn drain(core: &mut Ranged) -> Vec<Action> {
    core::iter::from_fn(|| core.poll()).collect()
}

fn give(core: &mut Ranged, now: u64, n: u128, index: u32, missing: u32) -> Vec<Action> {
    core.handle(Time(now), Input::Slice { device: device(n), index, bytes: BLOCK });
    core.handle(Time(now), Input::Block { device: device(n), index, missing });
    drain(core)
}

fn asked(actions: &[Action]) -> Vec<(u128, String)> {
    let opens = actions.iter().filter_map(|action| match action {
        Action::Open { device, want: Want::Blocks(blocks), .. } => Some((device.0, blocks.to_string())),
        Action::Open { device, want: Want::All, .. } => Some((device.0, "all".to_owned())),
        _ => None,
    });
    opens.collect()
}

fn begin(plan: ReadPlan, wanted: core::ops::Range<u32>) -> (Ranged, Vec<(u128, String)>) {
    let mut read = Ranged::new(Time(0), plan, IndexRanges::from(wanted));
    let opened = asked(&drain(&mut read));
    (read, opened)
}

fn named<const N: usize>(opens: [(u128, &str); N]) -> Vec<(u128, String)> {
    opens.map(|(n, blocks)| (n, blocks.to_owned())).into()
}

fn lost(n: u128) -> Input {
    Input::Failed { device: device(n), cause: Cause::Unreachable("connection lost".to_owned()) }
}

fn broken(n: u128) -> Input {
    let fault = NodeFault::Medium { device: device(n), detail: "EIO".to_owned() };
    Input::Failed { device: device(n), cause: Cause::Fault(Fault::Node(fault)) }
}

#[test]
fn only_the_originals_of_the_range_are_asked_for() {
    let (mut read, opened) = begin(six(0), 14..18);
    assert_eq!(opened, named([(0, "14-15"), (1, "16-17")]));
    for (at, (n, index)) in (1..).zip([(1, 16), (0, 14), (1, 17)]) {
        assert_eq!(asked(&give(&mut read, at * MS, n, index, K - at as u32)), []);
    }
    read.handle(Time(3 * MS), Input::Ended { device: device(1) });
    let last = give(&mut read, 4 * MS, 0, 15, K - 4);
    let done = ReadDone {
        requested_blocks: 4,
        received_blocks: 4,
        received_bytes: 4 * u64::from(BLOCK),
        useful_blocks: 4,
        devices: 2,
        ..ReadDone::default()
    };
    // Device 0 has sent everything, and will say that it is done.
    assert_eq!(last, [Action::Done(done)]);
    assert!(!read.falls_back() && read.wake_at().is_none());
}

#[test]
fn an_empty_range_is_there_at_once() {
    let mut read = Ranged::new(Time(0), six(0), IndexRanges::new());
    assert_eq!(drain(&mut read), [Action::Done(ReadDone::default())]);
}

#[test]
fn a_device_that_fails_is_replaced_by_a_decode_with_what_came() {
    let (mut read, _) = begin(six(0), 14..18);
    give(&mut read, MS, 0, 14, K - 1);
    read.handle(Time(2 * MS), broken(1));
    // All that the idle ones have; device 0 is still at the range.
    let all = [(2, "32-47,112-119"), (3, "48-63,120-127"), (4, "64-79,128-135"), (5, "80-95,136-143")];
    assert_eq!(asked(&drain(&mut read)), named(all));
    assert!(read.falls_back());
    give(&mut read, 3 * MS, 0, 15, K - 2);
    read.handle(Time(3 * MS), Input::Ended { device: device(0) });
    // What came of the range counts: block 14 and 15 are not asked again.
    assert_eq!(asked(&drain(&mut read)), named([(0, "0-13,96-103")]));
    let mut missing = K - 2;
    for index in (32..96).chain(112..142) {
        let n = if index < K { u128::from(index / 16) } else { u128::from((index - K) / 8) };
        missing -= 1;
        let actions = give(&mut read, 4 * MS, n, index, missing);
        let done = actions.iter().find(|action| matches!(action, Action::Done(_)));
        assert_eq!(done.is_some(), missing == 0, "{index} {missing}");
        if missing == 0 {
            assert!(matches!(actions[..], [Action::Cancel { .. }, .., Action::Done(_)]));
        }
    }
    assert_eq!((missing, read.counts().devices_failed), (0, 1));
}

#[test]
fn a_damaged_original_is_decoded() {
    let (mut read, _) = begin(six(0), 0..2);
    give(&mut read, MS, 0, 0, K - 1);
    read.handle(Time(MS), Input::Corrupt { device: device(0), index: 1 });
    let opens = asked(&drain(&mut read));
    assert_eq!(opens.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    read.handle(Time(MS), Input::Ended { device: device(0) });
    assert_eq!(asked(&drain(&mut read)), named([(0, "2-15,96-103")]));
}

#[test]
fn an_original_that_nobody_holds_is_decoded_from_the_start() {
    let mut plan = six(0);
    plan.sources[0].blocks.remove(3);
    let (read, opened) = begin(plan.clone(), 2..4);
    // Device 0 is asked for its part of the range first.
    assert_eq!(opened[0], (0, "2-2".to_owned()));
    assert!(opened.len() == 6 && read.falls_back());
    let (read, opened) = begin(plan, 3..4);
    assert!(opened.len() == 6 && read.falls_back());
    assert_eq!(opened[0], (0, "0-2,4-15,96-103".to_owned()));
}

/// Five devices of 100 MB/s need 12.6 ms for 96 blocks of 64 KiB; an answer was seen to take 2 ms.
#[test]
fn a_silent_device_is_given_twice_the_time_that_a_decode_would_take() {
    let (mut read, _) = begin(six(100_000_000), 15..18);
    give(&mut read, 2 * MS, 0, 15, K - 1);
    read.handle(Time(2 * MS), Input::Ended { device: device(0) });
    assert_eq!(asked(&drain(&mut read)), []);
    let wake = read.wake_at().expect("it waits for device 1");
    assert!((24 * MS..40 * MS).contains(&wake.0), "{wake:?}");
    read.handle(Time(wake.0 - MS), Input::Tick);
    assert_eq!(asked(&drain(&mut read)), []);
    read.handle(wake, Input::Tick);
    let opened = asked(&drain(&mut read));
    assert_eq!(opened.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 2, 3, 4, 5]);
    // The silent one may still win.
    give(&mut read, wake.0 + MS, 1, 16, K - 2);
    let last = give(&mut read, wake.0 + MS, 1, 17, K - 3);
    assert!(matches!(last.last(), Some(Action::Done(ReadDone { useful_blocks: 3, .. }))), "{last:?}");
}

/// A decode would take 12.6 ms, and those asked for it pause as device 1 did for 26.
#[test]
fn where_others_pause_for_long_a_silent_device_is_given_longer() {
    let (mut read, opened) = begin(six(100_000_000), 14..19);
    assert_eq!(opened, named([(0, "14-15"), (1, "16-18")]));
    give(&mut read, 2 * MS, 0, 14, K - 1);
    give(&mut read, 2 * MS, 1, 16, K - 2);
    give(&mut read, 28 * MS, 1, 17, K - 3);
    assert_eq!(asked(&give(&mut read, 30 * MS, 1, 18, K - 4)), []);
    read.handle(Time(30 * MS), Input::Ended { device: device(1) });
    let wake = read.wake_at().expect("it waits for device 0");
    assert!((75 * MS..95 * MS).contains(&wake.0), "{wake:?}");
    read.handle(Time(wake.0 - MS), Input::Tick);
    assert_eq!(asked(&drain(&mut read)), []);
    read.handle(wake, Input::Tick);
    assert!(read.falls_back());
}

#[test]
fn a_device_that_moves_is_judged_by_its_pace() {
    // Eight blocks from one device; the others would need some 13 ms for a decode.
    let (mut read, opened) = begin(six(100_000_000), 0..8);
    assert_eq!(opened, named([(0, "0-7")]));
    // A block each millisecond is soon enough.
    for index in 0..2 {
        assert_eq!(asked(&give(&mut read, (u64::from(index) + 1) * MS, 0, index, K - 1 - index)), []);
    }
    // Three in thirteen milliseconds: the last five need 30, however short it was silent.
    let opened = asked(&give(&mut read, 13 * MS, 0, 2, K - 3));
    assert_eq!(opened.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

#[test]
fn no_decode_is_begun_that_cannot_succeed() {
    let mut plan = six(100_000_000);
    plan.sources.truncate(4);
    // Four devices hold 96 blocks: enough with all of them, too few without one.
    let (mut read, opened) = begin(plan, 0..2);
    assert_eq!(opened, named([(0, "0-1")]));
    read.handle(Time(5_000 * MS), Input::Tick);
    assert_eq!(asked(&drain(&mut read)), []);
    // A lost connection is all the more tried again.
    read.handle(Time(5_001 * MS), lost(0));
    assert_eq!(asked(&drain(&mut read)), named([(0, "0-1")]));
    let mut ms = 5_002;
    for pause_ms in [200, 400, 800, 1600] {
        read.handle(Time(ms * MS), lost(0));
        assert_eq!(asked(&drain(&mut read)), []);
        ms += pause_ms;
        read.handle(Time(ms * MS), Input::Tick);
        assert_eq!(asked(&drain(&mut read)), named([(0, "0-1")]));
    }
    read.handle(Time(ms * MS), lost(0));
    let Some(Action::Failed(error)) = drain(&mut read).pop() else { panic!("it goes on") };
    assert!(matches!(error, ReadError::NotEnough { missing: K, reachable: 72, .. }), "{error}");
}

fn refused(n: u128, reason: RefusalReason, retry_after_ms: u32) -> Input {
    let cause = Cause::Fault(Fault::Refused { reason, retry_after_ms });
    Input::Failed { device: device(n), cause }
}

/// A decode takes 1.3 s, and its answer 0.6. A server that starts is waited for up to twice as long; where servers have no room nobody
/// is asked for more, unless it would be for half of the patience.
#[test]
fn a_refusal_is_waited_for_where_that_is_shorter_than_a_decode() {
    for (reason, retry_after_ms, waits) in [
        (RefusalReason::NotReady, 5, true),
        (RefusalReason::NotReady, 4_000, false),
        (RefusalReason::Overloaded, 5, true),
        (RefusalReason::Overloaded, 4_000, true),
        (RefusalReason::Overloaded, 60_000, false),
    ] {
        let (mut read, _) = begin(six(1_000_000), 0..2);
        read.handle(Time(MS), refused(0, reason, retry_after_ms));
        assert_eq!(asked(&drain(&mut read)).is_empty(), waits, "{reason}: {retry_after_ms} ms");
        if waits {
            let again = Time((1 + u64::from(retry_after_ms)) * MS);
            assert_eq!(read.wake_at(), Some(again));
            read.handle(again, Input::Tick);
            assert_eq!(asked(&drain(&mut read)), named([(0, "0-1")]));
        }
    }
}

/// A decode would take 15 ms, and 96 blocks of servers of which one has no room for two.
#[test]
fn where_servers_are_overloaded_nobody_is_asked_for_everything() {
    let (mut read, _) = begin(six(100_000_000), 14..18);
    give(&mut read, 2 * MS, 0, 14, K - 1);
    give(&mut read, 2 * MS, 0, 15, K - 2);
    read.handle(Time(2 * MS), Input::Ended { device: device(0) });
    let mut now = 3 * MS;
    read.handle(Time(now), refused(1, RefusalReason::Overloaded, 400));
    assert_eq!(asked(&drain(&mut read)), []);
    for _ in 0..11 {
        assert_eq!(read.wake_at(), Some(Time(now + 400 * MS)));
        read.handle(Time(now + 399 * MS), Input::Tick);
        assert_eq!(asked(&drain(&mut read)), []);
        now += 400 * MS;
        read.handle(Time(now), Input::Tick);
        assert_eq!(asked(&drain(&mut read)), named([(1, "16-17")]));
        read.handle(Time(now), refused(1, RefusalReason::Overloaded, 400));
        assert_eq!(asked(&drain(&mut read)), []);
    }
    // Once more would be for half of the patience.
    now += 400 * MS;
    read.handle(Time(now), Input::Tick);
    drain(&mut read);
    read.handle(Time(now), refused(1, RefusalReason::Overloaded, 400));
    assert!(read.falls_back() && !asked(&drain(&mut read)).is_empty());
    // Where queues were long to begin with, a silent server is given longer.
    let silence = |queue_length| {
        let mut plan = six(100_000_000);
        plan.sources.iter_mut().for_each(|source| source.queue_length = queue_length);
        let (mut read, _) = begin(plan, 15..18);
        give(&mut read, 2 * MS, 0, 15, K - 1);
        read.handle(Time(2 * MS), Input::Ended { device: device(0) });
        read.wake_at().expect("it waits for device 1").0
    };
    let (usual, busy) = (silence(7), silence(8));
    assert!(usual < 40 * MS && (190 * MS..320 * MS).contains(&busy), "{usual} {busy} ns");
    // Of whom nobody has heard is given much as it is.
    let mut plan = six(100_000_000);
    plan.sources.iter_mut().for_each(|source| source.queue_length = 8);
    let (read, _) = begin(plan, 15..18);
    let unheard = read.wake_at().expect("it waits for both").0;
    assert!(unheard < 2000 * MS, "{unheard} ns");
}

#[test]
fn patience_ends_a_read_in_which_nothing_arrives() {
    let (mut read, _) = begin(six(100), 0..2);
    let mut now = Time(0);
    let last = loop {
        let wake = read.wake_at().expect("a read that goes on");
        assert!(wake > now, "it wakes for nothing at {now:?}");
        now = wake;
        read.handle(now, Input::Tick);
        if let Some(last) = drain(&mut read).pop()
            && !matches!(last, Action::Open { .. })
        {
            break last;
        }
    };
    assert_eq!(now, Time(0) + PATIENCE);
    assert!(matches!(last, Action::Failed(ReadError::Stalled { missing: 2, .. })), "{last:?}");
}

#[test]
fn coded_blocks_that_came_in_vain_won_nothing() {
    let late = || {
        let (mut read, _) = begin(six(100_000_000), 0..16);
        let mut now = MS;
        give(&mut read, now, 0, 0, K - 1);
        while !read.falls_back() {
            now = read.wake_at().expect("it waits for device 0").0;
            read.handle(Time(now), Input::Tick);
        }
        drain(&mut read);
        for (came, index) in (96..100).enumerate() {
            give(&mut read, now, 0, index, K - 2 - came as u32);
        }
        (1..6u32).for_each(|n| {
            give(&mut read, now, n.into(), n * 16, K - 5 - n);
        });
        (read, now)
    };
    // The originals come as they are after all.
    let (mut read, now) = late();
    for index in 1..16 {
        give(&mut read, now + MS, 0, index, K - 10 - index);
    }
    let counts = read.counts();
    assert_eq!((read.wake_at(), counts.extra_won), (None, 0));
    assert!(counts.extra_blocks > K, "{counts:?}");
    // The decoder has enough before they do.
    let (mut read, now) = late();
    give(&mut read, now + MS, 1, 17, 0);
    assert_eq!(read.wake_at(), None);
    assert!(read.counts().extra_won > 5, "{:?}", read.counts());
}
