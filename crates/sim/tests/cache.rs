//! A storage server's cache: what it saves, what it must not hide.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

use std::time::Duration;
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, SegmentId, Time, Version,
    layout::{CodeKind, CodeSpec, Holder, SegmentLayout},
    read::{self, ReadPlan, RequestRule},
};
use steadfast_sim::{AccessId, Cache, Fault, Link, Outcome, ReadAccess, Setup, Steady, World};

const BLOCK: u32 = 256 << 10;
const K: u32 = 128;
const CONTENTS: u64 = 77;
const SEGMENT: SegmentId = SegmentId(5);
const VERSION: Version = Version(9);
const OBJECT: u64 = K as u64 * BLOCK as u64;

/// Four devices of 50 MB/s on two servers with caches of `cache`, and an object of 32 MiB that lies on them once.
struct Cluster {
    world: World,
    client: u32,
}

impl Cluster {
    fn new(cache: Option<Cache>) -> Self {
        let link = Link::of_round_trip(Duration::from_millis(1));
        let mut world = World::new(Setup::new(1, link));
        for node in 0..2 {
            assert_eq!(world.add_node(), node);
            if let Some(cache) = cache {
                world.set_cache(node, cache);
            }
        }
        for device in 0..4 {
            world.add_device(device / 2, DeviceId(device.into()), Steady::of(50e6));
        }
        world.preload(&Self::layout(), CONTENTS);
        let client = world.add_client();
        Self { world, client }
    }

    fn layout() -> SegmentLayout {
        let holders = (0..4).map(|device| {
            let blocks = (0..K).filter(|index| index % 4 == device).collect::<IndexRanges>();
            Holder::whole(DeviceId(device.into()), SEGMENT, VERSION, blocks)
        });
        SegmentLayout {
            segment: SEGMENT,
            version: VERSION,
            epoch: Epoch(1),
            length: OBJECT,
            code: CodeSpec { kind: CodeKind::Replicated, originals: K, seed: 1 },
            block_bytes: BLOCK,
            granule_bytes: 64 << 10,
            holders: holders.collect(),
        }
    }

    fn begin(&mut self, client: u32) -> AccessId {
        let layout = Self::layout();
        let code = layout.code.code().unwrap();
        let plan = ReadPlan::new(&layout, RequestRule::ADAPTIVE, || code.expected_extra(), |_| (0, 0));
        let kept = layout.clone();
        let policy = "stripe".parse().unwrap();
        let core = Box::new(move |now: Time| read::whole(now, plan, &kept, &policy));
        let (opening, decoding) = (Duration::ZERO, Duration::ZERO);
        let at = self.world.now();
        self.world.read(client, at, ReadAccess { layout, code, contents: CONTENTS, core, opening, decoding })
    }

    /// Reads the object: seconds, bytes read from media, bytes from caches.
    fn read(&mut self) -> (f64, u64, u64) {
        let before = self.moved();
        let access = self.begin(self.client);
        self.world.run();
        let outcome = self.world.outcome(access);
        assert!(matches!(outcome.read, Some(Ok(_))), "{:?}", outcome.read);
        assert_eq!(outcome.sent_bytes, OBJECT);
        let (medium, cached) = self.moved();
        (seconds(outcome), medium - before.0, cached - before.1)
    }

    fn moved(&self) -> (u64, u64) {
        let done = (0..4).map(|device| self.world.done(DeviceId(device)));
        done.fold((0, 0), |(medium, cached), done| (medium + done.read_bytes, cached + done.cached_bytes))
    }
}

fn seconds(outcome: &Outcome) -> f64 {
    outcome.latency().unwrap().as_secs_f64()
}

fn at_once(bytes: u64) -> Option<Cache> {
    Some(Cache { bytes, bytes_per_s: None })
}

/// 32 MiB from four devices of 50 MB/s.
const FROM_MEDIA: f64 = OBJECT as f64 / 200e6;

#[test]
fn what_was_read_is_given_without_the_disks() {
    let mut without = Cluster::new(None);
    let first = without.read();
    assert_eq!(without.read(), first, "nothing is kept where there is no cache");
    let mut cluster = Cluster::new(at_once(32 << 20));
    assert_eq!(cluster.read(), first, "an empty cache changes nothing");
    let (took, medium, cached) = cluster.read();
    assert_eq!((medium, cached), (0, OBJECT));
    // Credit, and so round trips, is all that is left.
    assert!(took < 0.02 && first.0 > FROM_MEDIA, "{took} s after {} s", first.0);
}

#[test]
fn a_cache_gives_no_faster_than_it_can() {
    let mut cluster = Cluster::new(Some(Cache { bytes: 32 << 20, bytes_per_s: Some(400e6) }));
    cluster.read();
    let (took, medium, _) = cluster.read();
    let least = OBJECT as f64 / 800e6;
    assert_eq!(medium, 0);
    assert!((least..least + 0.02).contains(&took), "{took} s, and two caches need {least} s");
}

#[test]
fn a_cache_that_is_too_small_keeps_a_part_or_nothing() {
    // Each server's half of the object is 16 MiB, read in order. In 15 MiB the sets that four lines or fewer want keep them;
    // in 6 MiB every set is wanted by more, and each line is pushed out before it is asked for again.
    let mut cluster = Cluster::new(at_once(15 << 20));
    let (first, ..) = cluster.read();
    let (took, medium, cached) = cluster.read();
    assert_eq!(medium + cached, OBJECT);
    assert!(cached > 0 && medium > 0, "{medium} bytes from media, {cached} from caches");
    assert!(took < first);
    let mut cluster = Cluster::new(at_once(6 << 20));
    cluster.read();
    assert_eq!(cluster.read().2, 0);
}

#[test]
fn two_who_read_the_same_at_once_move_the_disks_once() {
    let mut cluster = Cluster::new(at_once(64 << 20));
    let other = cluster.world.add_client();
    let both = [cluster.begin(cluster.client), cluster.begin(other)];
    cluster.world.run();
    for access in both {
        let took = seconds(cluster.world.outcome(access));
        assert!((FROM_MEDIA..FROM_MEDIA * 1.1).contains(&took), "{took} s");
    }
    assert_eq!(cluster.moved(), (OBJECT, OBJECT));
}

#[test]
fn a_cache_hides_no_fault_and_does_not_outlive_its_server() {
    let mut cluster = Cluster::new(at_once(64 << 20));
    cluster.read();
    let now = cluster.world.now();
    cluster.world.inject(now, Fault::Crash { node: 1 });
    cluster.world.inject(now, Fault::Restart { node: 1 });
    cluster.world.run();
    assert_eq!(cluster.read().1, OBJECT / 2, "the other server's half is still there");
    let (now, device) = (cluster.world.now(), DeviceId(3));
    cluster.world.inject(now, Fault::Corrupt { device, segment: SEGMENT, index: 7 });
    cluster.world.run();
    let access = cluster.begin(cluster.client);
    cluster.world.run();
    assert!(matches!(cluster.world.outcome(access).read, Some(Err(_))), "a stripe has no other copy");
}

#[test]
fn another_disk_has_the_same_bytes_at_its_own_speed() {
    let mut cluster = Cluster::new(None);
    let first = cluster.read();
    (0..4).for_each(|device| cluster.world.set_medium(DeviceId(device), Steady::of(100e6)));
    let (took, medium, _) = cluster.read();
    assert_eq!(medium, first.1);
    assert!((FROM_MEDIA / 2.0..FROM_MEDIA / 2.0 + 0.02).contains(&took), "{took} s after {} s", first.0);
}
