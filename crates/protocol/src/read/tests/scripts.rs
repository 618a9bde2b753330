#![allow(clippy::single_range_in_vec_init, reason = "sources take several ranges; some have one")]

use super::super::*;
use crate::message::{NodeFault, RefusalReason};

const MS: u64 = 1_000_000;
const BLOCK: u32 = 64 << 10;

fn device(n: u128) -> DeviceId {
    DeviceId(n)
}

fn source(n: u128, blocks: &[core::ops::Range<u32>], rate: u64) -> Source {
    let mut set = IndexRanges::new();
    blocks.iter().for_each(|range| set.insert_range(range.clone()));
    Source { device: device(n), blocks: set, read_bytes_per_s: rate, queue_length: 0 }
}

fn plan(rule: RequestRule, originals: u32, sources: Vec<Source>) -> ReadPlan {
    ReadPlan {
        sources,
        originals,
        extra_blocks: 0,
        block_bytes: BLOCK,
        rule,
        patience: PATIENCE,
        round_trip: None,
        payload_bytes_max: crate::message::PAYLOAD_BYTES_MAX,
        decoding: None,
        races: true,
        waits: true,
        late: Late::default(),
    }
}

fn drain(core: &mut impl ReadCore) -> Vec<Action> {
    core::iter::from_fn(|| core.poll()).collect()
}

fn give(core: &mut impl ReadCore, now: u64, n: u128, index: u32, missing: u32) -> Vec<Action> {
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

fn lost(n: u128) -> Input {
    Input::Failed { device: device(n), cause: Cause::Unreachable("connection lost".to_owned()) }
}

fn broken(n: u128) -> Input {
    let fault = NodeFault::Medium { device: device(n), detail: "EIO".to_owned() };
    Input::Failed { device: device(n), cause: Cause::Fault(Fault::Node(fault)) }
}

/// Figure 4-2: eight originals in sixteen blocks on four unequal disks; all are asked for all, the first eight to
/// come are enough, the rest is cancelled.
#[test]
fn the_example_of_figure_4_2() {
    let sources = (0..4).map(|n| source(n.into(), &[n * 4..n * 4 + 4], 0)).collect();
    let mut read = Speculative::new(Time(0), plan(RequestRule::All, 8, sources));
    let opened = drain(&mut read);
    assert_eq!(
        asked(&opened),
        [(0, "all"), (1, "all"), (2, "all"), (3, "all")].map(|(n, a)| (n, a.to_owned()))
    );
    // Disk 3 is fastest and sends four, disk 0 two, 1 and 2 one each.
    let arrivals = [(3, 12), (3, 13), (0, 0), (3, 14), (1, 4), (3, 15), (0, 1)];
    for (at, (n, index)) in arrivals.into_iter().enumerate() {
        let actions = give(&mut read, at as u64 * MS, n, index, 7 - at as u32);
        assert!(actions.iter().all(|action| matches!(action, Action::Grant { .. })), "{actions:?}");
    }
    read.handle(Time(8 * MS), Input::Ended { device: device(3) });
    assert_eq!(drain(&mut read), []);
    let last = give(&mut read, 9 * MS, 2, 8, 0);
    let cancels: Vec<_> = last.iter().filter(|action| matches!(action, Action::Cancel { .. })).collect();
    assert_eq!(cancels, [0, 1, 2].map(|n| Action::Cancel { device: device(n) }).iter().collect::<Vec<_>>());
    let done = ReadDone {
        requested_blocks: 16,
        received_blocks: 8,
        received_bytes: 8 * u64::from(BLOCK),
        useful_blocks: 8,
        devices: 4,
        ..ReadDone::default()
    };
    assert_eq!(last.last(), Some(&Action::Done(done)));
    // What was on the way is waste, and counted.
    assert_eq!(give(&mut read, 10 * MS, 0, 2, 0), []);
    assert_eq!(read.counts().received_bytes, 9 * u64::from(BLOCK));
    assert_eq!(read.wake_at(), None);
}

#[test]
fn k_plus_asks_by_speed_and_originals_first() {
    let sources = vec![
        source(1, &[0..40, 100..140], 300_000_000),
        source(2, &[40..60, 140..180], 100_000_000),
        source(3, &[60..64, 180..240], 0),
    ];
    let mut read = Speculative::new(Time(0), plan(RequestRule::KPlus(2), 64, sources));
    // 66 blocks over 300, 100 and an unknown that counts as their mean of 200.
    let expected = [(1, "0-32"), (2, "40-50"), (3, "60-63,180-197")].map(|(n, a)| (n, a.to_owned()));
    assert_eq!(asked(&drain(&mut read)), expected);
    assert_eq!(read.counts().requested_blocks, 66);
}

#[test]
fn a_device_without_enough_blocks_leaves_its_share_to_others() {
    let sources = vec![source(1, &[0..4], 900), source(2, &[4..60], 50), source(3, &[60..120], 50)];
    let mut read = Speculative::new(Time(0), plan(RequestRule::KPlus(0), 20, sources));
    let opened = asked(&drain(&mut read));
    assert_eq!(opened, [(1, "0-3"), (2, "4-11"), (3, "60-67")].map(|(n, a)| (n, a.to_owned())));
}

#[test]
fn k_plus_asks_others_when_a_device_fails() {
    let sources = (1..=3).map(|n| source(n, &[n as u32 * 10..n as u32 * 10 + 10], 100)).collect();
    let mut read = Speculative::new(Time(0), plan(RequestRule::KPlus(1), 11, sources));
    assert_eq!(
        asked(&drain(&mut read)),
        [(1, "10-13"), (2, "20-23"), (3, "30-33")].map(|(n, a)| (n, a.into()))
    );
    read.handle(Time(MS), broken(1));
    // Nobody is idle yet, and 16 blocks can still come.
    assert_eq!(drain(&mut read), []);
    for index in 20..24 {
        assert_eq!(asked(&give(&mut read, 2 * MS, 2, index, 11 - (index - 19))), []);
    }
    read.handle(Time(2 * MS), Input::Ended { device: device(2) });
    // Seven are missing, four are on their way: three and the reserve of one are asked for.
    assert_eq!(asked(&drain(&mut read)), [(2, "24-27".to_owned())]);
}

#[test]
fn blocks_that_bring_nothing_are_replaced() {
    let sources = vec![source(1, &[0..10], 100)];
    let mut read = Speculative::new(Time(0), plan(RequestRule::KPlus(0), 4, sources));
    assert_eq!(asked(&drain(&mut read)), [(1, "0-3".to_owned())]);
    for (index, missing) in [(0, 3), (1, 2), (2, 2), (3, 1)] {
        give(&mut read, MS, 1, index, missing);
    }
    read.handle(Time(MS), Input::Ended { device: device(1) });
    assert_eq!(asked(&drain(&mut read)), [(1, "4-5".to_owned())]);
    assert_eq!(read.counts().useful_blocks, 3);
}

#[test]
fn a_late_device_is_overtaken_after_the_time_others_need_twice() {
    let sources = vec![source(1, &[0..20], 0), source(2, &[20..40], 0)];
    let mut read = Speculative::new(Time(0), plan(RequestRule::KPlus(0), 20, sources));
    assert_eq!(asked(&drain(&mut read)), [(1, "0-9"), (2, "20-29")].map(|(n, a)| (n, a.into())));
    // Device 1 gives a block a millisecond from the first on; device 2 is silent.
    for index in 0..10 {
        assert_eq!(asked(&give(&mut read, u64::from(index + 1) * MS, 1, index, 19 - index)), []);
    }
    read.handle(Time(10 * MS), Input::Ended { device: device(1) });
    assert_eq!(asked(&drain(&mut read)), []);
    // Ten blocks at that pace take 10 ms and 1 ms to begin: late after 22 ms of silence.
    let wake = read.wake_at().unwrap();
    assert_eq!(wake.0.div_ceil(MS), 23);
    read.handle(Time(wake.0 - MS), Input::Tick);
    assert_eq!(asked(&drain(&mut read)), []);
    read.handle(wake, Input::Tick);
    assert_eq!(asked(&drain(&mut read)), [(1, "10-19".to_owned())]);
    let mut last = Vec::new();
    for index in 10..20 {
        last = give(&mut read, wake.0 + u64::from(index) * MS, 1, index, 19 - index);
    }
    // All that was asked for because the other was late came before that.
    let Some(Action::Done(done)) = last.last() else { panic!("{last:?}") };
    assert_eq!((done.requested_blocks, done.extra_blocks, done.extra_won), (30, 10, 10));
}

#[test]
fn not_enough_is_told_at_once() {
    let sources = (0..4).map(|n| source(n.into(), &[n * 4..n * 4 + 4], 0)).collect();
    let mut read = Speculative::new(Time(0), plan(RequestRule::All, 12, sources));
    drain(&mut read);
    read.handle(Time(1), broken(0));
    assert_eq!(drain(&mut read), []);
    read.handle(Time(2), broken(1));
    let actions = drain(&mut read);
    assert_eq!(actions[..2], [2, 3].map(|n| Action::Cancel { device: device(n) }));
    let Action::Failed(error) = &actions[2] else { panic!("{actions:?}") };
    let ReadError::NotEnough { missing: 12, reachable: 8, devices: 4, failed, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(failed.iter().map(|(device, _)| device.0).collect::<Vec<_>>(), [0, 1]);
    let said = error.to_string();
    assert!(
        said.starts_with("12 blocks are needed and only 8 are in reach: 2 of 4 devices failed (first "),
        "{said}"
    );
}

#[test]
fn a_lost_connection_is_tried_again_only_where_it_matters() {
    let sources = || (0..3).map(|n| source(n.into(), &[n * 4..n * 4 + 4], 0)).collect::<Vec<_>>();
    let mut enough = Speculative::new(Time(0), plan(RequestRule::All, 8, sources()));
    drain(&mut enough);
    enough.handle(Time(1), lost(0));
    assert_eq!(drain(&mut enough), []);

    let mut tight = Speculative::new(Time(0), plan(RequestRule::All, 12, sources()));
    drain(&mut tight);
    give(&mut tight, 1, 0, 0, 11);
    tight.handle(Time(1), lost(0));
    assert_eq!(asked(&drain(&mut tight)), [(0, "1-3".to_owned())]);
    // Its server may restart: again after ever longer pauses, and then no more.
    let mut ms = 1;
    for pause_ms in [200, 400, 800, 1600] {
        tight.handle(Time(ms * MS), lost(0));
        assert_eq!(drain(&mut tight), []);
        ms += pause_ms;
        assert_eq!(tight.wake_at(), Some(Time(ms * MS)));
        tight.handle(Time(ms * MS), Input::Tick);
        assert_eq!(asked(&drain(&mut tight)), [(0, "1-3".to_owned())]);
    }
    tight.handle(Time(ms * MS), lost(0));
    assert!(matches!(drain(&mut tight).last(), Some(Action::Failed(ReadError::NotEnough { .. }))));
}

#[test]
fn a_refusal_is_asked_again_when_it_said() {
    let sources = vec![source(1, &[0..4], 0)];
    for rule in [RequestRule::All, RequestRule::KPlus(0)] {
        let mut read = Speculative::new(Time(0), plan(rule, 4, sources.clone()));
        drain(&mut read);
        let fault = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 30 };
        read.handle(Time(0), Input::Failed { device: device(1), cause: Cause::Fault(fault) });
        assert_eq!(drain(&mut read), []);
        assert_eq!(read.wake_at(), Some(Time(30 * MS)));
        read.handle(Time(30 * MS), Input::Tick);
        assert_eq!(asked(&drain(&mut read)), [(1, "0-3".to_owned())], "{rule:?}");
    }
}

#[test]
fn patience_ends_only_a_read_in_which_nothing_arrives() {
    let sources = vec![source(1, &[0..8], 0), source(2, &[8..16], 0)];
    let mut plan = plan(RequestRule::All, 8, sources);
    plan.patience = Duration::from_millis(100);
    let mut read = Speculative::new(Time(0), plan);
    drain(&mut read);
    for step in 1..=5 {
        let at = step * 90 * MS;
        read.handle(Time(at), Input::Tick);
        assert!(drain(&mut read).is_empty(), "it was progressing at {step}");
        give(&mut read, at, 1, step as u32, 8 - step as u32);
    }
    let wake = read.wake_at().unwrap();
    assert_eq!(wake, Time(550 * MS));
    read.handle(wake, Input::Tick);
    let Some(Action::Failed(ReadError::Stalled { missing: 3, silent, .. })) = drain(&mut read).pop() else {
        panic!()
    };
    assert_eq!(silent, [device(1), device(2)]);
}

#[test]
fn a_read_without_holders_fails_at_once() {
    let mut read = Speculative::new(Time(0), plan(RequestRule::KPlus(0), 4, vec![]));
    assert!(matches!(drain(&mut read)[..], [Action::Failed(ReadError::NotEnough { missing: 4, .. })]));
}

#[test]
fn replicas_are_tried_one_after_the_other() {
    let sources = (0..3).map(|n| source(n.into(), &[n..n + 1], 0)).collect();
    let mut read = Speculative::new(Time(0), plan(RequestRule::KPlus(0), 1, sources));
    let mut tried = Vec::new();
    for _ in 0..3 {
        let opened = asked(&drain(&mut read));
        // Only one is needed; the reserve of a second attempt is one more.
        assert!((1..=2).contains(&opened.len()), "{opened:?}");
        for (n, _) in opened {
            tried.push(n);
            read.handle(Time(1), broken(n));
        }
        if tried.len() == 3 {
            break;
        }
    }
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 2]);
    assert!(matches!(drain(&mut read)[..], [Action::Failed(ReadError::NotEnough { missing: 1, .. })]));
}

#[test]
fn striped_asks_each_holder_for_its_blocks_and_tries_once_more() {
    let sources = vec![source(1, &[0..1, 2..3, 4..5], 0), source(2, &[1..2, 3..4], 0)];
    let all = IndexRanges::from(0..5);
    let mut read = Striped::new(Time(0), plan(RequestRule::All, 5, sources), &all);
    assert_eq!(asked(&drain(&mut read)), [(1, "0-0,2-2,4-4"), (2, "1-1,3-3")].map(|(n, a)| (n, a.into())));
    give(&mut read, MS, 1, 0, 0);
    read.handle(Time(2 * MS), lost(1));
    assert_eq!(asked(&drain(&mut read)), [(1, "2-2,4-4".to_owned())]);
    // A damaged block counts as not sent.
    read.handle(Time(3 * MS), Input::Corrupt { device: device(2), index: 1 });
    give(&mut read, 3 * MS, 2, 3, 0);
    read.handle(Time(3 * MS), Input::Ended { device: device(2) });
    assert_eq!(asked(&drain(&mut read)), [(2, "1-1".to_owned())]);
    give(&mut read, 4 * MS, 2, 1, 0);
    read.handle(Time(4 * MS), Input::Ended { device: device(2) });
    give(&mut read, 4 * MS, 1, 2, 0);
    let done = give(&mut read, 4 * MS, 1, 4, 0);
    assert!(matches!(done.last(), Some(Action::Done(ReadDone { useful_blocks: 5, corrupt_blocks: 1, .. }))));
}

#[test]
fn striped_names_the_device_and_what_is_out_of_reach() {
    let sources = vec![source(1, &[0..3], 0), source(2, &[3..6], 0)];
    let mut read = Striped::new(Time(0), plan(RequestRule::All, 6, sources), &IndexRanges::from(0..6));
    drain(&mut read);
    read.handle(Time(1), broken(2));
    assert_eq!(asked(&drain(&mut read)), [(2, "3-5".to_owned())]);
    read.handle(Time(2), broken(2));
    let actions = drain(&mut read);
    assert_eq!(actions[0], Action::Cancel { device: device(1) });
    let Action::Failed(error @ ReadError::OutOfReach { blocks: 3, .. }) = &actions[1] else {
        panic!("{actions:?}")
    };
    assert!(error.to_string().contains("EIO"), "{error}");
}

#[test]
fn striped_reads_a_range_and_knows_what_nobody_holds() {
    let sources = vec![source(1, &[0..3, 9..12], 0), source(2, &[3..6], 0)];
    let range = IndexRanges::from(2..4);
    let mut read = Striped::new(Time(0), plan(RequestRule::All, 6, sources.clone()), &range);
    assert_eq!(asked(&drain(&mut read)), [(1, "2-2"), (2, "3-3")].map(|(n, a)| (n, a.into())));
    let mut read = Striped::new(Time(0), plan(RequestRule::All, 9, sources), &IndexRanges::from(4..9));
    assert_eq!(drain(&mut read), [Action::Failed(ReadError::NoHolder { blocks: 3, first: 6 })]);
}
