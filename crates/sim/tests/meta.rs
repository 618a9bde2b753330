//! Objects by name: the governing cores under the simulator, whatever becomes of the metadata server meanwhile.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

use std::time::Duration;
use steadfast_protocol::{
    DeviceId, Time,
    durability::Rule,
    layout::{CodeKind, CodeSpec, SegmentLayout},
    message::{MetaAnswer, MetaFault, Query},
    plan::Scheme,
    policy::Policy,
    read::{self, ReadPlan, RequestRule},
    write::{Given, Target, WriteSpec},
};
use steadfast_sim::{
    AccessId, Fault, GetAccess, HostId, Link, Outcome, PutAccess, Refused, Setup, Steady, World,
};

// 64 MiB in blocks of the size that many round trips show by.
const BLOCK: u32 = 64 << 10;
const K: u32 = 1024;
const CONTENTS: u64 = 77;
const RATE: f64 = 100e6;
const SERVICE: Duration = Duration::from_millis(5);
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// Six storage servers of one device each, a metadata server and a client.
fn world(seed: u64) -> (World, u32) {
    let mut world = World::new(Setup::new(seed, Link::of_round_trip(ROUND_TRIP)));
    for number in 0..6 {
        let node = world.add_node();
        world.add_device(node, DeviceId(number), Steady::of(RATE));
    }
    world.add_meta(SERVICE).unwrap();
    let policy = "rateless:redundancy=0.5,tolerate=2,domain=device".parse().unwrap();
    world.create_bucket("bucket", policy).unwrap();
    let client = world.add_client();
    (world, client)
}

fn put(world: &mut World, client: u32, at: Time, seed: u64) -> AccessId {
    let code = CodeSpec { kind: CodeKind::Mix, originals: K, seed };
    let target =
        |number: u32| Target { device: DeviceId(number.into()), domain: number, write_bytes_per_s: 0 };
    let spec = WriteSpec {
        scheme: Scheme::Rateless,
        code: code.code().unwrap(),
        block_bytes: BLOCK,
        rule: Rule { redundancy: 0.5, tolerate: 2 },
        domains: 6,
        devices: (0..6).map(target).collect(),
        spares: Vec::new(),
        patience: Duration::from_secs(10),
        seed,
        given: Given::default(),
        fewer: None,
    };
    let access = PutAccess {
        bucket: "bucket".to_owned(),
        key: "key".to_owned(),
        length: u64::from(K) * u64::from(BLOCK),
        code,
        spec,
        granule_bytes: 64 << 10,
        contents: CONTENTS,
    };
    world.put(client, at, access)
}

fn get(world: &mut World, client: u32, at: Time, key: &str) -> AccessId {
    let core = |now: Time, layout: &SegmentLayout, policy: &Policy| {
        let extra = || layout.code.code().unwrap().expected_extra();
        let plan = ReadPlan::new(layout, RequestRule::ADAPTIVE, extra, |_| (0, 0));
        read::whole(now, plan, layout, policy)
    };
    let access = GetAccess {
        bucket: "bucket".to_owned(),
        key: key.to_owned(),
        contents: CONTENTS,
        core: Box::new(core),
        decoding: Duration::ZERO,
    };
    world.get(client, at, access)
}

fn millis(outcome: &Outcome) -> f64 {
    outcome.latency().unwrap().as_secs_f64() * 1e3
}

fn seconds(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

fn keys(world: &mut World) -> usize {
    let query = Query::List { bucket: "bucket".to_owned(), prefix: String::new(), after: None, limit: 10 };
    match world.ask(query).unwrap() {
        MetaAnswer::Page { objects, more: false } => objects.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_put_by_name_is_found_by_name_and_comes_back() {
    let run = || {
        let (mut world, client) = world(1);
        let written = put(&mut world, client, Time(0), 3);
        let read = get(&mut world, client, seconds(5), "key");
        world.run();
        let (written, read) = (world.outcome(written).clone(), world.outcome(read).clone());
        assert_eq!(keys(&mut world), 1);
        (written, read, world.trace().hash())
    };
    let (written, read, hash) = run();
    assert!(matches!(written.written, Some(Ok(_))), "{written:?}");
    assert!(written.committed.is_some() && written.refused.is_none());
    assert!(matches!(read.read, Some(Ok(_))), "{read:?}");
    // A begin and a commit of 5 ms each, two round trips, and what the disks take: 1.5 K blocks by six of 100 MB/s.
    let moved = f64::from(K) * f64::from(BLOCK) / (6.0 * RATE) * 1e3;
    assert!((12.0 + 1.4 * moved..12.0 + 1.8 * moved).contains(&millis(&written)), "{} ms", millis(&written));
    assert!((6.0 + moved..6.0 + 1.25 * moved).contains(&millis(&read)), "{} ms", millis(&read));
    assert_eq!(hash, run().2);
}

#[test]
fn a_name_that_is_not_there_is_refused_and_no_device_is_asked() {
    let (mut world, client) = world(1);
    let read = get(&mut world, client, Time(0), "nothing");
    world.run();
    let outcome = world.outcome(read);
    assert!(
        matches!(&outcome.refused, Some(Refused::Fault(MetaFault::NoObject { .. }))),
        "{:?}",
        outcome.refused
    );
    assert!(millis(outcome) < 7.0 && outcome.medium_bytes == 0);
}

/// Wherever in a put the metadata server dies, or its answers are lost, the put is committed once when it is back.
#[test]
fn a_put_survives_a_metadata_server_that_dies_or_is_cut_off_at_any_time() {
    let whole = {
        let (mut world, client) = world(1);
        let written = put(&mut world, client, Time(0), 3);
        world.run();
        world.outcome(written).latency().unwrap().as_nanos() as u64
    };
    let mut again = 0;
    for step in 0..40 {
        let at = Time(whole * step / 39);
        for cut in [false, true] {
            let (mut world, client) = world(1);
            let written = put(&mut world, client, Time(0), 3);
            let hosts = (HostId::Client(client), HostId::Meta);
            let (fault, over) = match cut {
                false => (Fault::CrashMeta, Fault::RestartMeta),
                true => {
                    let (one, other) = hosts;
                    (Fault::Cut { one, other }, Fault::Mend { one, other })
                }
            };
            world.inject(at, fault);
            world.inject(at + Duration::from_millis(700), over);
            let read = get(&mut world, client, seconds(10), "key");
            world.run();
            let (written, read) = (world.outcome(written).clone(), world.outcome(read).clone());
            assert!(matches!(written.written, Some(Ok(_))), "at {at:?}, cut {cut}: {written:?}");
            assert!(matches!(read.read, Some(Ok(_))), "at {at:?}, cut {cut}: {read:?}");
            assert_eq!(keys(&mut world), 1);
            again += u32::from(written.latency().unwrap() > Duration::from_millis(900));
            let query = Query::Lookup { bucket: "bucket".to_owned(), key: "key".to_owned() };
            let Ok(MetaAnswer::Object { object, .. }) = world.ask(query) else { panic!("it was there") };
            assert_eq!(Some(object.version), written.committed, "at {at:?}, cut {cut}");
        }
    }
    assert!(again >= 4, "{again} of 80 had to ask again");
}

#[test]
fn a_metadata_server_that_stays_away_is_given_up() {
    let (mut world, client) = world(1);
    world.inject(Time(0), Fault::CrashMeta);
    let read = get(&mut world, client, Time(1), "key");
    world.run();
    assert_eq!(world.outcome(read).refused, Some(Refused::Unanswered));
}
