//! A segment handed to its primary: what is asked for, what is answered, and what cannot be.

use super::super::ingest::*;
use crate::{
    DeviceId, IndexRanges, IntentId, SegmentId, Time, Version,
    message::{Fault, IngestOpen, Ingested, NodeFault, Place, RefusalReason},
    read::Cause,
    write::Target,
};
use core::time::Duration;

const BLOCK: u64 = 1 << 20;

/// 4 MiB under (3, 2): chunks of two blocks of 1 MiB; devices 0 to 2, and 3 to spare.
fn open() -> IngestOpen {
    let place = |device: u32| Place { device: DeviceId(device.into()), domain: device };
    IngestOpen {
        segment: SegmentId(7),
        version: Version(1),
        intent: IntentId(1),
        length: 4 << 20,
        policy: "parity:code=rs(3,2),segment=4MiB,update=plr".to_owned(),
        seed: 5,
        domains: 4,
        devices: (0..3).map(place).collect(),
        spares: vec![place(3)],
        patience_ms: 1000,
    }
}

fn stored(devices: [u128; 3]) -> Ingested {
    let chunk =
        |(chunk, device): (u32, u128)| (DeviceId(device), IndexRanges::from(2 * chunk..2 * chunk + 2));
    Ingested {
        holders: (0..).zip(devices).map(chunk).collect(),
        abandoned: vec![DeviceId(1)],
        pushed_blocks: 8,
    }
}

fn actions(core: &mut Offload) -> Vec<OffloadAction> {
    std::iter::from_fn(|| core.poll()).collect()
}

fn pushed() -> Offload {
    let mut core = Offload::new(&open(), Time(0)).unwrap();
    assert_eq!(actions(&mut core), []);
    // Credit for a part of a block is kept until it pays for one.
    core.handle(Time(1), OffloadInput::Credit { bytes: BLOCK + BLOCK / 2 });
    assert_eq!(actions(&mut core), [OffloadAction::Push { indices: 0..1 }]);
    core.handle(Time(2), OffloadInput::Credit { bytes: 9 * BLOCK + BLOCK / 2 });
    assert_eq!(actions(&mut core), [OffloadAction::Push { indices: 1..4 }]);
    core
}

fn setback(core: &mut Offload) -> Setback {
    match &actions(core)[..] {
        [OffloadAction::Failed(setback)] => setback.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_original_goes_once_and_the_layout_is_what_the_primary_says() {
    let mut core = pushed();
    core.handle(Time(3), OffloadInput::Confirmed);
    core.handle(Time(4), OffloadInput::Stored(stored([0, 3, 2])));
    let done = actions(&mut core);
    let [OffloadAction::Done(done)] = &done[..] else { panic!("{done:?}") };
    assert_eq!(done.holders[1].device, DeviceId(3));
    assert_eq!((done.stored_blocks, done.pushed_blocks, &done.abandoned[..]), (6, 8, &[DeviceId(1)][..]));
    assert_eq!(core.wake_at(), None);
}

#[test]
fn an_answer_that_is_no_layout_is_not_taken() {
    let wrong = |answer: Ingested| {
        let mut core = pushed();
        core.handle(Time(4), OffloadInput::Stored(answer));
        assert!(setback(&mut core).for_good);
    };
    // A device that was not planned, one twice, a chunk less, blocks of another chunk, a block less.
    wrong(stored([0, 9, 2]));
    wrong(Ingested { abandoned: vec![DeviceId(1), DeviceId(9)], ..stored([0, 3, 2]) });
    wrong(stored([0, 0, 2]));
    let mut less = stored([0, 1, 2]);
    less.holders.pop();
    wrong(less);
    let mut moved = stored([0, 1, 2]);
    moved.holders.swap(0, 1);
    wrong(moved);
    let mut torn = stored([0, 1, 2]);
    torn.holders[2].1 = IndexRanges::from(4..5);
    wrong(torn);
    // Before it has everything.
    let mut core = Offload::new(&open(), Time(0)).unwrap();
    core.handle(Time(1), OffloadInput::Stored(stored([0, 1, 2])));
    assert!(setback(&mut core).for_good);
}

#[test]
fn a_primary_that_is_busy_is_asked_again_and_one_that_failed_or_is_silent_is_not() {
    let fails = |cause| {
        let mut core = pushed();
        core.handle(Time(4), OffloadInput::Failed(cause));
        let setback = setback(&mut core);
        assert_eq!(setback.pushed_blocks, 4);
        setback.for_good
    };
    let refused = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 9 };
    let others = NodeFault::NotStored { segment: SegmentId(7), detail: "full".to_owned() };
    assert!(!fails(Cause::Fault(refused)) && !fails(Cause::Fault(Fault::Node(others))));
    assert!(fails(Cause::Unreachable("gone".to_owned())) && fails(Cause::Fault(Fault::DeadlinePassed)));
    // The primary itself would have said something by then.
    let mut core = pushed();
    let wake = core.wake_at().unwrap();
    assert_eq!(wake, Time(2) + Duration::from_secs(1));
    core.handle(wake, OffloadInput::Tick);
    assert!(setback(&mut core).why.contains("1000 ms"));
}

#[test]
fn originals_go_as_they_arrive_and_a_slow_source_is_no_silent_primary() {
    let mut core = Offload::new(&open(), Time(0)).unwrap();
    core.handle(Time(0), OffloadInput::Arrived { originals: 1 });
    core.handle(Time(1), OffloadInput::Credit { bytes: 4 * BLOCK });
    assert_eq!(actions(&mut core), [OffloadAction::Push { indices: 0..1 }]);
    // Whatever the source takes.
    let later = Time(0) + Duration::from_secs(60);
    assert_eq!(core.wake_at(), None);
    core.handle(later, OffloadInput::Tick);
    core.handle(later, OffloadInput::Arrived { originals: 3 });
    assert_eq!(actions(&mut core), [OffloadAction::Push { indices: 1..3 }]);
    // The primary may not be as patient: that says nothing of it.
    let mut impatient = core;
    impatient.handle(later, OffloadInput::Failed(Cause::Fault(Fault::DeadlinePassed)));
    assert!(!setback(&mut impatient).for_good);
    let mut core = pushed();
    assert_eq!(core.wake_at(), Some(Time(2) + Duration::from_secs(1)));
    core.handle(Time(5), OffloadInput::Stored(stored([0, 1, 2])));
    assert!(matches!(actions(&mut core)[..], [OffloadAction::Done(_)]));
}

#[test]
fn the_node_of_the_first_chunk_is_asked_until_it_fails() {
    let asked = open();
    let policy = asked.policy.parse().unwrap();
    let mut spec = accept(&asked).unwrap().spec;
    let named = (asked.segment, asked.version, asked.intent);
    let mut primaries = Primaries::default();
    let (made, _) = primaries.ask(named, asked.length, &policy, &spec).unwrap();
    assert_eq!(made, asked);
    let setback = |for_good| Setback { why: String::new(), for_good, pushed_blocks: 0 };
    primaries.set_back(DeviceId(0), &setback(false));
    assert!(primaries.ask(named, asked.length, &policy, &spec).is_some());
    // As many spares as it takes, of however many, and nothing that it would refuse.
    spec.domains = 1000;
    let spare = |domain| Target { device: DeviceId(u128::from(domain)), domain, write_bytes_per_s: 0 };
    spec.spares = (3..1000).map(spare).collect();
    let (made, _) = primaries.ask(named, asked.length, &policy, &spec).unwrap();
    assert!(made.spares.len() == 256 && accept(&made).is_ok());
    assert!(primaries.ask(named, 0, &policy, &spec).is_none());
    primaries.set_back(DeviceId(0), &setback(true));
    assert!(primaries.ask(named, asked.length, &policy, &spec).is_none());
    spec.devices.rotate_left(1);
    assert!(primaries.ask(named, asked.length, &policy, &spec).is_some());
    // Chunks of another size than it would make: of a file that has grown and may go on.
    assert!(primaries.ask(named, asked.length / 4, &policy, &spec).is_none());
    spec.block_bytes /= 2;
    assert!(primaries.ask(named, asked.length, &policy, &spec).is_none());
}

#[test]
fn what_a_primary_is_asked_for_is_checked() {
    let taken = accept(&open()).unwrap();
    assert_eq!((taken.shape.chunks, taken.shape.blocks, taken.spec.devices.len()), (3, 2, 3));
    let refused = |change: fn(&mut IngestOpen)| {
        let mut asked = open();
        change(&mut asked);
        assert!(accept(&asked).is_err(), "{asked:?}");
    };
    refused(|asked| asked.policy = "parity:code=rs(3,9)".to_owned());
    refused(|asked| asked.policy = "rateless".to_owned());
    refused(|asked| asked.length = 0);
    refused(|asked| asked.length = (4 << 20) + 1);
    refused(|asked| asked.devices.truncate(2));
    refused(|asked| asked.devices[1].device = DeviceId(0));
    refused(|asked| asked.spares[0].device = DeviceId(0));
    refused(|asked| asked.devices[1].domain = 0);
    refused(|asked| asked.spares[0].domain = 4);
    refused(|asked| asked.domains = u32::MAX);
    refused(|asked| asked.spares = vec![asked.spares[0]; 300]);
}
