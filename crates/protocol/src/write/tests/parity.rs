//! Chunks of a fixed code by event lists, and under seeded faults.

use super::{
    model::{Common, Disk, Draw, MS, all_patterns_decode, disk, placed, run, spec, survives_everything},
    *,
};
use std::collections::BTreeSet;
use steadfast_codes::rateless::Kind;

/// (3, 2) with chunks of two blocks.
const CODE: (Kind, u32) = (Kind::ReedSolomon { data: 2, parity: 1 }, 4);
const RULE: Rule = Rule { redundancy: 0.5, tolerate: 1 };
const BLOCK: u32 = 4096;
const REFUSED: FailureKind = FailureKind::Refused { retry_after: Duration::from_millis(50) };

fn disks(count: u32) -> Vec<Disk> {
    (0..count).map(|domain| disk(domain, 100.0)).collect()
}

fn actions(core: &mut Writer) -> Vec<Action> {
    std::iter::from_fn(|| core.poll()).collect()
}

fn open(device: u128, chunk: u32) -> Action {
    Action::Open { device: DeviceId(device), expected_blocks: 2, chunk: Some(chunk) }
}

fn push(device: u128, indices: Range<u32>) -> Action {
    Action::Push { device: DeviceId(device), indices }
}

fn credit(core: &mut Writer, now: u64, device: u128, blocks: u64) -> Vec<Action> {
    core.handle(Time(now), Input::Credit { device: DeviceId(device), bytes: blocks * u64::from(BLOCK) });
    actions(core)
}

fn confirm(core: &mut Writer, now: u64, device: u128, blocks: Range<u32>) -> Vec<Action> {
    core.handle(Time(now), Input::Confirmed { device: DeviceId(device), blocks: blocks.into() });
    actions(core)
}

fn fail(core: &mut Writer, now: u64, device: u128, cause: FailureKind) -> Vec<Action> {
    core.handle(Time(now), Input::Failed { device: DeviceId(device), cause });
    actions(core)
}

fn finish(device: u128) -> Action {
    Action::Finish { device: DeviceId(device) }
}

fn done(actions: &[Action]) -> &WriteDone {
    let Some(Action::Done(done)) = actions.last() else { panic!("not done: {actions:?}") };
    done
}

fn held(done: &WriteDone) -> Vec<(u128, String)> {
    done.holders.iter().map(|share| (share.device.0, share.blocks.to_string())).collect()
}

fn named<const N: usize>(held: [(u128, &str); N]) -> Vec<(u128, String)> {
    held.map(|(device, blocks)| (device, blocks.to_owned())).to_vec()
}

/// Of three chunks one may lack: its device is waited for less long, once the others have theirs.
#[test]
fn chunks_that_a_segment_could_be_stored_without_are_given_up_sooner() {
    let second = Duration::from_secs(1);
    let patient = |fewer| WriteSpec { patience: 8 * second, fewer, ..spec(CODE, BLOCK, RULE, &disks(3), 3) };
    let ends_at = |fewer, confirmed: u32| {
        let mut core = Writer::new(patient(fewer), Time(0));
        for device in 0..3 {
            credit(&mut core, 0, device, 9);
        }
        for device in 0..confirmed {
            confirm(&mut core, 1, device.into(), 2 * device..2 * device + 2);
        }
        loop {
            let at = core.wake_at().expect("it waits");
            core.handle(at, Input::Tick);
            if let Some(Action::Failed(error)) = actions(&mut core).last() {
                let silent: Vec<DeviceId> = (confirmed..3).map(|device| DeviceId(device.into())).collect();
                assert_eq!(error.unserved(), silent);
                return (at.0 + 500_000_000) / 1_000_000_000;
            }
        }
    };
    let one = Some(Fewer { chunks: 1, patience: 2 * second });
    assert_eq!((ends_at(None, 2), ends_at(one, 2)), (8, 2));
    // Where two are silent, fewer would not do.
    assert_eq!((ends_at(one, 1), ends_at(one, 0)), (8, 8));
}

#[test]
fn each_device_gets_its_chunk_and_all_must_confirm() {
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(4), 3), Time(0));
    assert_eq!(actions(&mut core), [open(0, 0), open(1, 1), open(2, 2)]);
    assert_eq!(credit(&mut core, 1, 2, 9), [push(2, 4..6)]);
    assert_eq!(credit(&mut core, 1, 0, 1), [push(0, 0..1)]);
    assert_eq!(credit(&mut core, 2, 1, 2), [push(1, 2..4)]);
    assert_eq!(confirm(&mut core, 3, 0, 0..1), []);
    assert_eq!(credit(&mut core, 3, 0, 1), [push(0, 1..2)]);
    // Whoever has all of it is done with: others may wait for the room that its stream holds.
    assert_eq!(confirm(&mut core, 4, 2, 4..6), [finish(2)]);
    assert_eq!(confirm(&mut core, 4, 1, 2..4), [finish(1)]);
    let last = confirm(&mut core, 5, 0, 1..2);
    assert_eq!((&last[0], last.len()), (&finish(0), 2));
    let done = done(&last);
    assert_eq!(held(done), named([(0, "0-1"), (1, "2-3"), (2, "4-5")]));
    assert_eq!((done.stored_blocks, done.wasted_blocks, done.abandoned.len()), (6, 0, 0));
    assert_eq!(done.verdict, Verdict::Holds { patterns_tested: 3, patterns_total: 3 });
    assert_eq!(core.wake_at(), None);
}

/// Three chunks of which two are confirmed within a millisecond.
fn with_one_silent(count: u32, used: usize) -> Writer {
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(count), used), Time(0));
    actions(&mut core);
    for device in 0..3u32 {
        credit(&mut core, 0, device.into(), 2);
    }
    for device in [0u32, 2] {
        let asked = confirm(&mut core, MS, device.into(), device * 2..device * 2 + 2);
        assert_eq!(asked, [finish(device.into())]);
    }
    core
}

#[test]
fn the_chunk_of_a_laggard_goes_to_a_spare_and_whoever_has_it_first_keeps_it() {
    for spare_wins in [true, false] {
        let mut core = with_one_silent(5, 3);
        let wake = core.wake_at().unwrap();
        assert_eq!(wake, Time(200 * MS), "twice a hundred milliseconds at least");
        core.handle(wake, Input::Tick);
        assert_eq!(actions(&mut core), [open(3, 1)]);
        assert_eq!(credit(&mut core, wake.0, 3, 2), [push(3, 2..4)]);
        let (first, other) = if spare_wins { (3, 1) } else { (1, 3) };
        let last = confirm(&mut core, wake.0 + MS, first, 2..4);
        assert!(last.contains(&Action::Cancel { device: DeviceId(other) }), "{last:?}");
        let done = done(&last);
        assert_eq!(held(done)[1], (first, "2-3".to_owned()));
        assert_eq!((done.abandoned.clone(), done.wasted_blocks), (vec![DeviceId(other)], 2));
    }
}

#[test]
fn nobody_lags_while_the_source_is_slow_and_parity_waits_for_all_of_it() {
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(5), 3), Time(0));
    core.handle(Time(0), Input::Arrived { originals: 0 });
    actions(&mut core);
    for device in 0..3 {
        assert_eq!(credit(&mut core, 1, device, 2), []);
    }
    // Much longer than anybody has patience with a device.
    let minute = 60_000 * MS;
    assert_eq!(core.wake_at(), None);
    let arrived = |core: &mut Writer, now: u64, originals: u32| {
        core.handle(Time(now), Input::Arrived { originals });
        actions(core)
    };
    assert_eq!(arrived(&mut core, minute, 1), [push(0, 0..1)]);
    assert_eq!(confirm(&mut core, minute + MS, 0, 0..1), []);
    assert_eq!(core.wake_at(), None);
    assert_eq!(arrived(&mut core, 2 * minute, 3), [push(0, 1..2), push(1, 2..3)]);
    // From here on devices owe something, and one of them too long.
    assert_eq!(confirm(&mut core, 2 * minute + MS, 0, 1..2), [finish(0)]);
    let wake = core.wake_at().unwrap();
    assert_eq!(wake, Time(2 * minute + 200 * MS));
    core.handle(wake, Input::Tick);
    assert_eq!(actions(&mut core), [open(3, 1)]);
    assert_eq!(credit(&mut core, wake.0, 3, 2), [push(3, 2..3)]);
    assert_eq!(confirm(&mut core, wake.0 + MS, 3, 2..3), []);
    assert_eq!(arrived(&mut core, 3 * minute, 4), [push(1, 3..4), push(2, 4..6), push(3, 3..4)]);
    assert_eq!(confirm(&mut core, 3 * minute + MS, 2, 4..6), [finish(2)]);
    let last = confirm(&mut core, 3 * minute + MS, 3, 2..4);
    assert_eq!(held(done(&last)), named([(0, "0-1"), (3, "2-3"), (2, "4-5")]));
}

#[test]
fn who_stands_in_after_a_pause_of_the_source_has_its_time() {
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(5), 3), Time(0));
    core.handle(Time(0), Input::Arrived { originals: 1 });
    actions(&mut core);
    for device in 0..3 {
        credit(&mut core, 1, device, 2);
    }
    assert_eq!(confirm(&mut core, MS, 0, 0..1), []);
    let minute = 60_000 * MS;
    assert_eq!(fail(&mut core, minute, 0, FailureKind::Unreachable), [open(3, 0)]);
    assert_eq!(credit(&mut core, minute + MS, 3, 2), [push(3, 0..1)]);
}

#[test]
fn a_failed_device_is_stood_in_for_until_there_is_no_domain_left() {
    let mut core = with_one_silent(5, 3);
    // What is durable stays so, whatever becomes of the stream.
    assert_eq!(fail(&mut core, 2 * MS, 0, FailureKind::Unreachable), []);
    assert_eq!(fail(&mut core, 2 * MS, 1, FailureKind::Medium), [open(3, 1)]);
    credit(&mut core, 2 * MS, 3, 2);
    // Half of it is none.
    assert_eq!(confirm(&mut core, 3 * MS, 3, 2..3), []);
    assert_eq!(fail(&mut core, 3 * MS, 3, FailureKind::Unreachable), [open(4, 1)]);
    let last = fail(&mut core, 3 * MS, 4, FailureKind::Unreachable);
    let Some(Action::Failed(error)) = last.last() else { panic!("{last:?}") };
    let lost = Some((DeviceId(4), FailureKind::Unreachable));
    assert_eq!(
        *error,
        WriteError::NoPlace { needed: 3, available: 2, lost, failed: [1, 3, 4].map(DeviceId).into() }
    );
    assert!(error.to_string().starts_with("the policy needs 3 failure domains, 2 can be had"), "{error}");
}

#[test]
fn no_two_chunks_share_a_domain() {
    // The spares are the second devices of the first two domains, and one of the third's.
    let mut disks = disks(3);
    disks.extend([disk(0, 100.0), disk(1, 100.0), disk(2, 100.0)]);
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks, 3), Time(0));
    actions(&mut core);
    assert_eq!(fail(&mut core, MS, 1, FailureKind::Full), [open(4, 1)]);
    assert_eq!(fail(&mut core, MS, 2, FailureKind::Protocol), [open(5, 2)]);
    let last = fail(&mut core, MS, 5, FailureKind::Full);
    assert!(matches!(last.last(), Some(Action::Failed(WriteError::Full { full: 2, .. }))), "{last:?}");
}

#[test]
fn a_refusal_is_waited_for_where_nobody_stands_in() {
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(3), 3), Time(0));
    actions(&mut core);
    assert_eq!(fail(&mut core, MS, 1, REFUSED), []);
    assert_eq!(core.wake_at(), Some(Time(51 * MS)));
    core.handle(Time(51 * MS), Input::Tick);
    assert_eq!(actions(&mut core), [open(1, 1)]);
    // What it took of the blocks on the way it has confirmed: the others are sent once more.
    assert_eq!(credit(&mut core, 52 * MS, 1, 2), [push(1, 2..4)]);
    assert_eq!(confirm(&mut core, 53 * MS, 1, 2..3), []);
    assert_eq!(fail(&mut core, 54 * MS, 1, REFUSED), []);
    core.handle(Time(104 * MS), Input::Tick);
    assert_eq!(actions(&mut core), [open(1, 1)]);
    assert_eq!(credit(&mut core, 105 * MS, 1, 1), [push(1, 3..4)]);
    assert_eq!(confirm(&mut core, 106 * MS, 1, 3..4), [finish(1)]);
    // Where there is a spare it gets the chunk too.
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(4), 3), Time(0));
    actions(&mut core);
    assert_eq!(fail(&mut core, MS, 1, REFUSED), [open(3, 1)]);
}

/// One that was refused with nothing on the way, as a node does that lacks memory of a writer whose source is slow: what it took is
/// confirmed. It is opened again.
fn that_yields(count: u32) -> Writer {
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(count), 3), Time(0));
    actions(&mut core);
    assert_eq!(credit(&mut core, MS, 1, 1), [push(1, 2..3)]);
    assert_eq!(confirm(&mut core, 2 * MS, 1, 2..3), []);
    assert_eq!(fail(&mut core, 3 * MS, 1, REFUSED), []);
    core.handle(Time(53 * MS), Input::Tick);
    assert_eq!(actions(&mut core), [open(1, 1)]);
    core
}

#[test]
fn who_is_refused_with_nothing_on_the_way_goes_on_behind_what_it_has() {
    let mut core = that_yields(3);
    assert_eq!(credit(&mut core, 54 * MS, 1, 2), [push(1, 3..4)]);
    assert_eq!(confirm(&mut core, 55 * MS, 1, 3..4), [finish(1)]);
}

/// Nobody needs to stand in for who had nothing to send, but for who is not let in again.
#[test]
fn a_spare_is_opened_for_who_is_refused_again_and_not_for_who_yields() {
    assert_eq!(fail(&mut that_yields(4), 54 * MS, 1, REFUSED), [open(3, 1)]);
}

/// What is on the way when it is refused is to go on, there or elsewhere: that is no yielding.
#[test]
fn a_spare_is_opened_for_who_is_refused_with_blocks_on_the_way() {
    let mut core = Writer::new(spec(CODE, BLOCK, RULE, &disks(4), 3), Time(0));
    actions(&mut core);
    assert_eq!(credit(&mut core, MS, 1, 1), [push(1, 2..3)]);
    assert_eq!(fail(&mut core, 2 * MS, 1, REFUSED), [open(3, 1)]);
}

#[test]
fn silence_without_a_spare_ends_with_patience() {
    let mut core = with_one_silent(3, 3);
    assert_eq!(core.wake_at(), Some(Time(MS) + PATIENCE));
    core.handle(Time(MS) + PATIENCE, Input::Tick);
    let last = actions(&mut core);
    let Some(Action::Failed(WriteError::Stalled { confirmed: 4, needed: 6, silent, .. })) = last.last()
    else {
        panic!("{last:?}")
    };
    assert_eq!(silent[..], [DeviceId(1)]);
}

/// A drain: the chunk of a device that leaves is written elsewhere, the others are left alone.
#[test]
fn an_amendment_writes_the_chunks_wanted_beside_those_that_stay() {
    let mut disks = disks(4);
    let put = spec(CODE, BLOCK, RULE, &disks, 3);
    let existing = [0u32, 2].map(|device| Existing {
        device: DeviceId(device.into()),
        domain: device,
        blocks: (device * 2..device * 2 + 2).into(),
    });
    let given =
        Given { existing: existing.to_vec(), wanted: vec![(DeviceId(1), (2..4).into())], first_new_index: 6 };
    let of = |disks: &[usize]| -> Vec<Target> { disks.iter().map(|&at| targets(&put)[at]).collect() };
    let amended = |devices: &[usize]| WriteSpec {
        devices: of(devices),
        spares: Vec::new(),
        given: given.clone(),
        ..put.clone()
    };
    let mut core = Writer::new(amended(&[0, 2, 3]), Time(0));
    assert_eq!(actions(&mut core), [open(3, 1)]);
    credit(&mut core, MS, 3, 2);
    let last = confirm(&mut core, 2 * MS, 3, 2..4);
    assert_eq!(held(done(&last)), named([(3, "2-3")]));
    // Without a domain of its own it stays where it is.
    let mut core = Writer::new(amended(&[0, 2]), Time(0));
    let last = actions(&mut core);
    let Some(Action::Failed(error)) = last.last() else { panic!("{last:?}") };
    assert_eq!(*error, WriteError::NoPlace { needed: 3, available: 2, lost: None, failed: Vec::new() });
    // Under the model: the other device of the domain that is left will do.
    disks.push(disk(1, 50.0));
    let spec = WriteSpec { domains: 4, ..spec(CODE, BLOCK, RULE, &disks, 5) };
    let spec = WriteSpec { devices: vec![targets(&spec)[4]], spares: Vec::new(), given, ..spec };
    let code = spec.code.clone();
    let outcome = run(spec, &disks, Common::default()).result.unwrap();
    let mut all = placed(&outcome, &disks);
    all.extend([(0, 0), (0, 1), (2, 4), (2, 5)]);
    all_patterns_decode(&code, RULE, &all, &disks);
}

fn targets(spec: &WriteSpec) -> Vec<Target> {
    spec.devices.iter().chain(&spec.spares).copied().collect()
}

/// Stalled, full, dying, slow and refusing devices with and without spares: whole chunks in domains of their own where
/// enough of those are well, a typed error otherwise.
#[test]
fn bad_days_end_in_whole_chunks_or_in_a_typed_error() {
    let seed = seed_or(1_024);
    let (mut stored, mut failed, mut stood_in) = (0, 0, 0);
    for round in 0..300 {
        let mut draw = Draw::new(seed.wrapping_mul(1009).wrapping_add(round));
        let (data, parity) = (1 + draw.below(6) as u32, 1 + draw.below(3) as u32);
        let blocks = 1 + draw.below(4) as u32;
        let chunks = data + parity;
        let nodes = chunks + draw.below(4) as u32;
        let mut well = vec![false; nodes as usize];
        let mut faulty = |node: u32, draw: &mut Draw| {
            let mut disk = disk(node, draw.rate_mb(5.0, 150.0));
            match draw.below(12) {
                0 => disk.rate = 0,
                1 => disk.dies_at = Some(draw.below(60) * MS),
                2 => disk.room = Some(draw.below(4) as u32),
                3 => disk.refuses_until = draw.below(50) * MS,
                _ => well[node as usize] = true,
            }
            disk
        };
        // First one of each node, as the planner has them; then second ones of some.
        let mut disks: Vec<Disk> = (0..nodes).map(|node| faulty(node, &mut draw)).collect();
        for node in 0..nodes {
            if draw.chance(30) {
                disks.push(faulty(node, &mut draw));
            }
        }
        let kind = Kind::ReedSolomon { data, parity };
        let rule = Rule { redundancy: f64::from(parity) / f64::from(data), tolerate: parity };
        let block_bytes = [4096, 65_536, 1 << 20][draw.below(3) as usize];
        let spec = spec((kind, data * blocks), block_bytes, rule, &disks, chunks as usize);
        let code = spec.code.clone();
        let outcome = run(spec, &disks, Common { credit_bytes: 2 << 20, ..Common::default() });
        match outcome.result {
            Ok(done) => {
                stored += 1;
                stood_in += u32::from(!done.abandoned.is_empty());
                survives_everything(&code, rule, &done, &disks);
                assert_eq!(done.holders.len(), chunks as usize);
                let domains: BTreeSet<u32> =
                    done.holders.iter().map(|holder| disks[holder.device.0 as usize].domain).collect();
                assert_eq!(domains.len(), chunks as usize, "round {round}");
                for (chunk, holder) in (0..).zip(&done.holders) {
                    assert_eq!(holder.blocks, (chunk * blocks..(chunk + 1) * blocks).into());
                }
                assert_eq!(done.wasted_blocks, done.pushed_blocks - chunks * blocks);
            }
            Err(error) => {
                failed += 1;
                let enough = well.iter().filter(|well| **well).count() >= chunks as usize;
                assert!(!enough, "round {round}: {error}");
                assert!(
                    matches!(
                        error,
                        WriteError::NoPlace { .. } | WriteError::Full { .. } | WriteError::Stalled { .. }
                    ),
                    "round {round}: {error}"
                );
            }
        }
    }
    println!("{stored} stored, {stood_in} of them with spares, {failed} failed");
    assert!(stored > 100 && failed > 20 && stood_in > 30, "{stored} {failed} {stood_in}");
}
