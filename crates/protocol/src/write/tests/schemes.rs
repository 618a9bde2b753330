//! Stripes and replicas by event lists.

use super::{
    model::{Common, Disk, MS, disk, run, spec, survives_everything},
    *,
};
use steadfast_codes::rateless::Kind;

const STRIPE: Rule = Rule { redundancy: 0.0, tolerate: 0 };

fn actions(core: &mut Writer) -> Vec<Action> {
    std::iter::from_fn(|| core.poll()).collect()
}

fn confirmed(device: u128, index: u32) -> Input {
    Input::Confirmed { device: DeviceId(device), blocks: (index..index + 1).into() }
}

fn push(device: u128, index: u32) -> Action {
    Action::Push { device: DeviceId(device), indices: index..index + 1 }
}

#[test]
fn a_stripe_goes_round_and_waits_for_all() {
    let disks: Vec<Disk> = (0..2).map(|domain| disk(domain, 1.0)).collect();
    let mut core = Writer::new(spec((Kind::Replicated, 5), 4096, STRIPE, &disks, 2), Time(0));
    let open =
        |device, expected_blocks| Action::Open { device: DeviceId(device), expected_blocks, chunk: None };
    assert_eq!(actions(&mut core), [open(0, 3), open(1, 2)]);
    core.handle(Time(1), Input::Credit { device: DeviceId(0), bytes: 2 * 4096 + 100 });
    assert_eq!(actions(&mut core), [push(0, 0), push(0, 2)]);
    core.handle(Time(2), Input::Credit { device: DeviceId(0), bytes: 4096 });
    assert_eq!(actions(&mut core), [push(0, 4)]);
    core.handle(Time(3), Input::Credit { device: DeviceId(1), bytes: 1 << 20 });
    assert_eq!(actions(&mut core), [push(1, 1), push(1, 3)]);
    for (device, index) in [(0, 0), (0, 2), (1, 3)] {
        core.handle(Time(4), confirmed(device, index));
        assert_eq!(actions(&mut core), []);
    }
    // Whoever has all of its blocks is done with.
    core.handle(Time(4), confirmed(0, 4));
    assert_eq!(actions(&mut core), [Action::Finish { device: DeviceId(0) }]);
    core.handle(Time(4), Input::Failed { device: DeviceId(0), cause: FailureKind::Unreachable });
    assert_eq!(actions(&mut core), []);
    core.handle(Time(5), confirmed(1, 1));
    let [Action::Finish { device: DeviceId(1) }, Action::Done(done)] = &actions(&mut core)[..] else {
        panic!("not done")
    };
    assert_eq!((done.stored_blocks, done.wasted_blocks), (5, 0));
    assert_eq!(done.holders[1].blocks, [1, 3].into_iter().collect());
    assert_eq!(core.wake_at(), None);
}

/// Blocks wait for a slow source on the way, and a node that lacks memory refuses who sends nothing: what it took is confirmed.
#[test]
fn a_stripe_that_is_refused_goes_on_behind_what_is_confirmed() {
    let disks: Vec<Disk> = (0..2).map(|domain| disk(domain, 100.0)).collect();
    let mut core = Writer::new(spec((Kind::Replicated, 5), 4096, STRIPE, &disks, 2), Time(0));
    actions(&mut core);
    core.handle(Time(1), Input::Credit { device: DeviceId(0), bytes: 1 << 20 });
    assert_eq!(actions(&mut core), [push(0, 0), push(0, 2), push(0, 4)]);
    core.handle(Time(2), confirmed(0, 0));
    let cause = FailureKind::Refused { retry_after: Duration::from_millis(1) };
    core.handle(Time(3), Input::Failed { device: DeviceId(0), cause });
    assert_eq!(actions(&mut core), []);
    core.handle(Time(MS + 3), Input::Tick);
    assert!(matches!(actions(&mut core)[..], [Action::Open { device: DeviceId(0), .. }]));
    core.handle(Time(2 * MS), Input::Credit { device: DeviceId(0), bytes: 1 << 20 });
    assert_eq!(actions(&mut core), [push(0, 2), push(0, 4)]);
    core.handle(Time(2 * MS), Input::Credit { device: DeviceId(1), bytes: 1 << 20 });
    actions(&mut core);
    for (device, index) in [(1, 1), (1, 3), (0, 2), (0, 4)] {
        core.handle(Time(3 * MS), confirmed(device, index));
    }
    let actions = actions(&mut core);
    let Some(Action::Done(done)) = actions.last() else { panic!("{actions:?}") };
    assert_eq!((done.stored_blocks, done.wasted_blocks), (5, 0));
}

/// Who is refused with nothing on the way yields to others while the source is slow; who is not let in is stood in for.
#[test]
fn nobody_stands_in_for_who_yields() {
    let disks: Vec<Disk> = (0..4).map(|domain| disk(domain, 100.0)).collect();
    let cause = FailureKind::Refused { retry_after: Duration::from_millis(1) };
    let codes = [((Kind::Replicated, 1), Rule { redundancy: 1.0, tolerate: 1 }), ((Kind::Mix, 16), STRIPE)];
    for (code, rule) in codes {
        let used = 2;
        let mut core = Writer::new(spec(code, 4096, rule, &disks, used), Time(0));
        actions(&mut core);
        // It has room for no block: nothing is on the way.
        core.handle(Time(1), Input::Opened { device: DeviceId(0) });
        core.handle(Time(2), Input::Failed { device: DeviceId(0), cause });
        assert_eq!(actions(&mut core), [], "{code:?}: it yields");
        core.handle(Time(MS + 2), Input::Tick);
        assert!(matches!(actions(&mut core)[..], [Action::Open { device: DeviceId(0), .. }]));
        core.handle(Time(MS + 3), Input::Failed { device: DeviceId(0), cause });
        let opened = actions(&mut core);
        assert!(matches!(opened[..], [Action::Open { device: DeviceId(2), .. }]), "{code:?}: {opened:?}");
        // Nor does one yield that has blocks on the way.
        let mut core = Writer::new(spec(code, 4096, rule, &disks, used), Time(0));
        actions(&mut core);
        core.handle(Time(1), Input::Credit { device: DeviceId(0), bytes: 1 << 20 });
        let pushed = actions(&mut core);
        assert!(matches!(pushed[..], [Action::Push { device: DeviceId(0), .. }, ..]), "{code:?}: {pushed:?}");
        core.handle(Time(2), Input::Failed { device: DeviceId(0), cause });
        let opened = actions(&mut core);
        assert!(matches!(opened[..], [Action::Open { device: DeviceId(2), .. }]), "{code:?}: {opened:?}");
    }
}

#[test]
fn a_stripe_is_as_fast_as_its_slowest_and_survives_nothing() {
    let mut disks: Vec<Disk> =
        (0..6).map(|domain| disk(domain, if domain == 3 { 10.0 } else { 100.0 })).collect();
    let outcome = run(spec((Kind::Replicated, 96), 65536, STRIPE, &disks, 6), &disks, Common::default());
    assert!(outcome.result.is_ok());
    let slowest = 16.0 * 65536.0 / 10e6;
    assert!(outcome.at > slowest && outcome.at < slowest * 1.1, "{}", outcome.at);
    disks[2].dies_at = Some(5 * MS);
    let outcome = run(spec((Kind::Replicated, 96), 65536, STRIPE, &disks, 6), &disks, Common::default());
    let broken =
        WriteError::StripeBroken { device: DeviceId(2), cause: FailureKind::Unreachable, devices: 6 };
    assert_eq!(outcome.result, Err(broken));
    disks[2] = disk(2, 0.0);
    let outcome = run(spec((Kind::Replicated, 96), 65536, STRIPE, &disks, 6), &disks, Common::default());
    assert!(matches!(outcome.result, Err(WriteError::Stalled { confirmed: 80, needed: 96, .. })));
}

const COPIES: Rule = Rule { redundancy: 3.0, tolerate: 2 };

#[test]
fn replicas_go_to_distinct_domains() {
    // Two devices in each domain: the second of a domain is passed over.
    let disks: Vec<Disk> = (0..8).map(|device| disk(device / 2, 100.0)).collect();
    let spec = spec((Kind::Replicated, 1), 4096, COPIES, &disks, 8);
    let code = spec.code.clone();
    let outcome = run(spec, &disks, Common::default());
    let done = outcome.result.unwrap();
    let devices: Vec<u128> = done.holders.iter().map(|holder| holder.device.0).collect();
    assert_eq!(devices, [0, 2, 4]);
    assert_eq!((done.stored_blocks, done.pushed_blocks), (3, 3));
    survives_everything(&code, COPIES, &done, &disks);
}

#[test]
fn a_late_or_lost_copy_is_made_elsewhere_under_a_new_index() {
    for lost in [false, true] {
        let mut disks: Vec<Disk> = (0..5).map(|domain| disk(domain, 100.0)).collect();
        disks[1].rate = 0;
        if lost {
            disks[1].dies_at = Some(MS);
        }
        let outcome = run(spec((Kind::Replicated, 1), 4096, COPIES, &disks, 3), &disks, Common::default());
        let done = outcome.result.unwrap();
        let held: Vec<(u128, u32)> = done
            .holders
            .iter()
            .map(|holder| (holder.device.0, holder.blocks.iter().next().unwrap()))
            .collect();
        println!("lost {lost}: {:.2} ms, {held:?}", outcome.at * 1e3);
        assert_eq!(held.iter().map(|&(device, _)| device).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(done.abandoned, [DeviceId(1)]);
        // The others took two round trips; it is late four times that after.
        assert!(outcome.at < 0.015, "{} s", outcome.at);
    }
}

#[test]
fn replicas_without_enough_domains_fail_at_once() {
    let mut disks: Vec<Disk> = (0..3).map(|domain| disk(domain, 100.0)).collect();
    disks[1].room = Some(0);
    let outcome = run(spec((Kind::Replicated, 1), 4096, COPIES, &disks, 3), &disks, Common::default());
    assert!(
        matches!(outcome.result, Err(WriteError::Full { full: 1, needed: 3, .. })),
        "{:?}",
        outcome.result
    );
    disks[1].room = None;
    disks[1].dies_at = Some(0);
    let outcome = run(spec((Kind::Replicated, 1), 4096, COPIES, &disks, 3), &disks, Common::default());
    assert_eq!(
        outcome.result,
        Err(WriteError::NotEnoughDomains { available: 2, needed: 3, failed: 1, devices: 3 })
    );
    let silent: Vec<Disk> = (0..5).map(|domain| disk(domain, 0.0)).collect();
    let outcome = run(spec((Kind::Replicated, 1), 4096, COPIES, &silent, 3), &silent, Common::default());
    assert!(matches!(outcome.result, Err(WriteError::Stalled { confirmed: 0, .. })));
    assert_eq!(outcome.at, PATIENCE.as_secs_f64());
}

#[test]
fn a_source_that_pauses_is_held_against_no_device() {
    let five: Vec<Disk> = (0..5).map(|domain| disk(domain, 100.0)).collect();
    let schemes = [
        ((Kind::Mix, 32), Rule { redundancy: 0.5, tolerate: 1 }),
        ((Kind::Replicated, 4), STRIPE),
        ((Kind::Replicated, 1), COPIES),
    ];
    for (code, rule) in schemes {
        let spec = spec(code, 4096, rule, &five, 4);
        let ended = |originals: u32| {
            let mut core = Writer::new(spec.clone(), Time(0));
            core.handle(Time(0), Input::Arrived { originals: 0 });
            let opened = |actions: &[Action]| {
                actions.iter().filter(|action| matches!(action, Action::Open { .. })).count()
            };
            let first = actions(&mut core);
            for device in 0..4 {
                core.handle(Time(1), Input::Credit { device: DeviceId(device), bytes: 1 << 20 });
            }
            // Blocks were pushed that nobody can have sent: nobody is replaced, nothing has stalled.
            actions(&mut core);
            let long = 10 * u64::try_from(PATIENCE.as_nanos()).unwrap();
            let mut now = 1;
            while now < long {
                now = core.wake_at().map_or(long, |at| at.0.max(now + 1)).min(long);
                core.handle(Time(now), Input::Tick);
                assert_eq!(actions(&mut core), [], "{code:?} at {now}");
            }
            core.handle(Time(now), Input::Arrived { originals });
            let patience = Time(now) + PATIENCE;
            let mut more = 0;
            while now < patience.0 {
                now = core.wake_at().map_or(patience.0, |at| at.0.max(now + 1)).min(patience.0);
                core.handle(Time(now), Input::Tick);
                let then = actions(&mut core);
                more += opened(&then);
                if let Some(Action::Failed(error)) = then.last() {
                    return (opened(&first) + more, now - long, Some(error.clone()));
                }
            }
            (opened(&first) + more, now - long, None)
        };
        // It goes on giving: the devices are waited for no more than before.
        assert_eq!(ended(0).2, None, "{code:?}");
        // That was all of it: from here on they have their time, and no more.
        let (opened, after, error) = ended(code.1);
        assert!(matches!(error, Some(WriteError::Stalled { confirmed: 0, .. })), "{code:?}: {error:?}");
        assert_eq!(u128::from(after), PATIENCE.as_nanos(), "{code:?}, {opened} opened");
    }
}
