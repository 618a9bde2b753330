//! Reads and writes on small simulated clusters: the cores that serve data, beside arithmetic.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

use std::time::Duration;
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, SegmentId, Time, Version,
    durability::Rule,
    layout::{CodeKind, CodeSpec, Holder, SegmentLayout},
    plan::Scheme,
    policy::Policy,
    read::{self, ReadError, ReadPlan, RequestRule},
    write::{Given, Target, WriteSpec},
};
use steadfast_sim::{AccessId, Fault, HostId, Link, Outcome, ReadAccess, Setup, Steady, World, WriteAccess};

const BLOCK: u32 = 256 << 10;
const K: u32 = 256;
const CONTENTS: u64 = 77;
const SEGMENT: SegmentId = SegmentId(5);
const VERSION: Version = Version(9);

struct Cluster {
    world: World,
    client: u32,
    rates: Vec<f64>,
}

impl Cluster {
    fn new(seed: u64, rates: &[f64], round_trip: Duration) -> Self {
        let mut world = World::new(Setup::new(seed, Link::of_round_trip(round_trip)));
        for (number, rate) in rates.iter().enumerate() {
            let node = world.add_node();
            world.add_device(node, DeviceId(number as u128), Steady::of(*rate));
        }
        let client = world.add_client();
        Self { world, client, rates: rates.to_vec() }
    }

    fn policy() -> Policy {
        "rateless:redundancy=1,tolerate=2".parse().unwrap()
    }

    fn code(seed: u64) -> CodeSpec {
        CodeSpec { kind: CodeKind::Mix, originals: K, seed }
    }

    /// N = 2 K, dealt in turn.
    fn layout(&self) -> SegmentLayout {
        let devices = self.rates.len() as u32;
        let holders = (0..devices).map(|number| {
            let blocks = (0..2 * K).filter(|index| index % devices == number).collect::<IndexRanges>();
            Holder::whole(DeviceId(number.into()), SEGMENT, VERSION, blocks)
        });
        self.laid(holders.collect(), Self::code(3))
    }

    fn laid(&self, holders: Vec<Holder>, code: CodeSpec) -> SegmentLayout {
        SegmentLayout {
            segment: SEGMENT,
            version: VERSION,
            epoch: Epoch(1),
            length: u64::from(K) * u64::from(BLOCK),
            code,
            block_bytes: BLOCK,
            granule_bytes: 64 << 10,
            holders,
        }
    }

    fn read(&mut self, layout: &SegmentLayout, rule: RequestRule, round_trip: Duration) -> AccessId {
        let code = layout.code.code().unwrap();
        let mut plan = ReadPlan::new(layout, rule, || code.expected_extra(), |_| (0, 0));
        plan.round_trip = Some(round_trip);
        let kept = layout.clone();
        let core = Box::new(move |now: Time| read::whole(now, plan, &kept, &Self::policy()));
        let (opening, decoding) = (Duration::from_millis(5), Duration::ZERO);
        let layout = layout.clone();
        let access = ReadAccess { layout, code, contents: CONTENTS, core, opening, decoding };
        self.world.read(self.client, Time(0), access)
    }

    fn write(&mut self) -> AccessId {
        let target = |(number, _): (usize, &f64)| Target {
            device: DeviceId(number as u128),
            domain: number as u32,
            write_bytes_per_s: 0,
        };
        let spec = WriteSpec {
            scheme: Scheme::Rateless,
            code: Self::code(3).code().unwrap(),
            block_bytes: BLOCK,
            rule: Rule { redundancy: 0.5, tolerate: 2 },
            domains: self.rates.len() as u32,
            devices: self.rates.iter().enumerate().map(target).collect(),
            spares: Vec::new(),
            patience: Duration::from_secs(10),
            seed: 1,
            given: Given::default(),
            fewer: None,
        };
        let (granule_bytes, opening) = (64 << 10, Duration::from_millis(5));
        let access = WriteAccess {
            spec,
            segment: SEGMENT,
            version: VERSION,
            granule_bytes,
            contents: CONTENTS,
            opening,
        };
        self.world.write(self.client, Time(0), access)
    }

    fn outcome(&self, access: AccessId) -> &Outcome {
        self.world.outcome(access)
    }
}

fn millis(outcome: &Outcome) -> f64 {
    outcome.latency().unwrap().as_secs_f64() * 1e3
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_read_takes_what_the_devices_need_together_and_little_more() {
    let rates = [30e6, 60e6, 80e6, 100e6, 120e6, 150e6];
    for (rule, share, waste) in [(RequestRule::All, 1.03, 0.12), (RequestRule::ADAPTIVE, 1.06, 0.05)] {
        let mut cluster = Cluster::new(1, &rates, MS);
        let layout = cluster.layout();
        cluster.world.preload(&layout, CONTENTS);
        let read = cluster.read(&layout, rule, MS);
        cluster.world.run();
        let outcome = cluster.outcome(read);
        let ideal = f64::from(K) * f64::from(BLOCK) / 540e6 * 1e3;
        println!("{rule:?}: {:.1} ms of {ideal:.1}, {} bytes sent", millis(outcome), outcome.sent_bytes);
        assert!(outcome.read.as_ref().unwrap().is_ok());
        assert!((ideal..ideal * share + 6.0).contains(&millis(outcome)), "{rule:?}: {} ms", millis(outcome));
        let overhead = outcome.sent_bytes as f64 / layout.length as f64 - 1.0;
        assert!((0.0..waste).contains(&overhead), "{rule:?}: {overhead}");
        assert_eq!(outcome.sent_bytes, outcome.received_bytes);
        let busy: u64 = (0..6).map(|number| cluster.world.done(DeviceId(number)).read_bytes).sum();
        assert_eq!(busy, outcome.medium_bytes, "what the devices say they did");
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed: u64, rate: f64| {
        let mut cluster = Cluster::new(seed, &[rate, 60e6, 80e6], MS);
        let link = Link { delay: MS, jitter: MS, loss: 0.01 };
        for node in 0..3 {
            cluster.world.network().set_link(HostId::Node(node), HostId::Client(0), link);
        }
        let layout = cluster.layout();
        cluster.world.preload(&layout, CONTENTS);
        let read = cluster.read(&layout, RequestRule::ADAPTIVE, MS);
        cluster.world.run();
        assert!(cluster.outcome(read).read.as_ref().unwrap().is_ok());
        (cluster.world.trace().hash(), millis(cluster.outcome(read)))
    };
    assert_eq!(run(1, 30e6), run(1, 30e6));
    assert_ne!(run(1, 30e6).0, run(2, 30e6).0);
    assert_ne!(run(1, 30e6).0, run(1, 31e6).0);
}

#[test]
fn a_write_is_confirmed_when_the_rule_holds_and_can_be_read_back() {
    let mut cluster = Cluster::new(1, &[100e6, 100e6, 10e6, 100e6, 100e6, 100e6], MS);
    let write = cluster.write();
    cluster.world.run();
    let outcome = cluster.outcome(write);
    // f = 2 of six, one slow: 67.1 MB and 5/3 of it on 510 MB/s: 217 ms.
    println!("{:.1} ms, {} bytes sent", millis(outcome), outcome.sent_bytes);
    assert!((217.0..290.0).contains(&millis(outcome)), "{} ms", millis(outcome));
    let stored = outcome.written.as_ref().unwrap().as_ref().unwrap().clone();
    let sent = outcome.sent_bytes;
    assert!(sent <= u64::from(stored.done.pushed_blocks) * u64::from(BLOCK));
    let holders = stored.done.holders.into_iter().map(|share| share.stored(SEGMENT, VERSION)).collect();
    let layout = cluster.laid(holders, Cluster::code(3));
    let mut reader = cluster;
    let at = reader.world.now();
    let code = layout.code.code().unwrap();
    let plan = ReadPlan::new(&layout, RequestRule::ADAPTIVE, || code.expected_extra(), |_| (0, 0));
    let kept = layout.clone();
    let core = Box::new(move |now: Time| read::whole(now, plan, &kept, &Cluster::policy()));
    let (opening, decoding) = (Duration::ZERO, Duration::ZERO);
    let access = ReadAccess { layout, code, contents: CONTENTS, core, opening, decoding };
    let read = reader.world.read(reader.client, at, access);
    reader.world.run();
    let done = reader.outcome(read).read.as_ref().unwrap().as_ref().unwrap();
    assert_eq!((done.corrupt_blocks, done.devices_failed), (0, 0));
}

#[test]
fn what_was_stored_from_other_bytes_is_found_out() {
    let mut cluster = Cluster::new(1, &[50e6; 6], MS);
    let layout = cluster.layout();
    cluster.world.preload(&layout, CONTENTS + 1);
    let read = cluster.read(&layout, RequestRule::All, MS);
    cluster.world.run();
    let error = cluster.outcome(read).read.as_ref().unwrap().as_ref().unwrap_err();
    assert!(matches!(error, ReadError::NotEnough { .. }), "{error}");
}

#[test]
fn crashes_stalls_cuts_and_flipped_bits_are_lived_with() {
    let mut cluster = Cluster::new(1, &[50e6; 6], MS);
    let layout = cluster.layout();
    cluster.world.preload(&layout, CONTENTS);
    let at = |millis: u64| Time(millis * 1_000_000);
    cluster.world.inject(at(20), Fault::Crash { node: 0 });
    cluster.world.inject(at(40), Fault::Stall { device: DeviceId(1) });
    cluster.world.inject(at(60), Fault::Slow { device: DeviceId(2), factor: 10.0 });
    let (one, other) = (HostId::Client(0), HostId::Node(3));
    cluster.world.inject(at(80), Fault::Cut { one, other });
    for index in layout.holders[4].blocks().iter().take(3) {
        cluster.world.inject(at(0), Fault::Corrupt { device: DeviceId(4), segment: SEGMENT, index });
    }
    cluster.world.inject(at(2000), Fault::Resume { device: DeviceId(1) });
    cluster.world.inject(at(2000), Fault::Mend { one, other });
    let read = cluster.read(&layout, RequestRule::ADAPTIVE, MS);
    cluster.world.run();
    let outcome = cluster.outcome(read);
    let done = outcome.read.as_ref().unwrap().as_ref().unwrap();
    assert!(done.devices_failed >= 1, "{done:?}");
    // Two devices are left whole, each with a third of K, and the others' blocks until they went.
    assert!(millis(outcome) < 2500.0, "{} ms", millis(outcome));
}

#[test]
fn too_many_lost_is_said_once_a_restart_was_waited_for() {
    let mut cluster = Cluster::new(1, &[50e6; 6], MS);
    let layout = cluster.layout();
    cluster.world.preload(&layout, CONTENTS);
    for node in 0..4 {
        cluster.world.inject(Time(0), Fault::Crash { node });
    }
    let read = cluster.read(&layout, RequestRule::ADAPTIVE, MS);
    cluster.world.run();
    let outcome = cluster.outcome(read);
    assert!(matches!(outcome.read, Some(Err(ReadError::NotEnough { .. }))), "{:?}", outcome.read);
    // Three seconds for each, most of them at the same time.
    assert!(millis(outcome) < 6000.0, "{} ms", millis(outcome));
}
