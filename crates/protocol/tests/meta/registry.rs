//! Storage servers: whose devices, who lives.

use crate::support::{CLUSTER, DEAD_AFTER, World, node_record};
use core::time::Duration;
use steadfast_protocol::{
    ClusterId, DeviceId, NodeId,
    message::{
        BODY_BYTES_MAX, DeviceHealth, DeviceReport, Heartbeat, MetaAnswer, MetaFault, NodeRecord, NodeState,
        Query, encode,
    },
    meta::{self, DEVICES_MAX, DEVICES_PER_NODE_MAX, Liveness},
};

fn nodes(world: &World) -> Vec<NodeState> {
    match world.ask(&Query::Registry) {
        Ok(MetaAnswer::Registry(registry)) => {
            assert_eq!(registry.cluster, CLUSTER);
            registry.nodes
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn report(device: u128, health: DeviceHealth) -> DeviceReport {
    DeviceReport {
        device: DeviceId(device),
        health,
        capacity_bytes: 1 << 40,
        free_bytes: 1 << 39,
        read_bytes_per_s: 100_000_000,
        write_bytes_per_s: 90_000_000,
        queue_length: 0,
        extents: 0,
        fragments: 0,
        corrupt_blocks: 0,
        medium_read_bytes: 0,
        medium_written_bytes: 0,
        overruns_ppm: 0,
        activity: Default::default(),
        reserved_read_bytes_per_s: 0,
        reserved_write_bytes_per_s: 0,
        sharing_ppm: [0; 4],
    }
}

pub(crate) fn beat(
    world: &mut World,
    node: u128,
    devices: Vec<DeviceReport>,
) -> Result<MetaAnswer, MetaFault> {
    let heartbeat = Heartbeat { node: NodeId(node), devices, activity: Default::default() };
    meta::heartbeat(&world.store, world.now, &mut world.liveness, heartbeat)
}

#[test]
fn a_silent_node_is_dead_and_a_heartbeat_brings_it_back() {
    let mut world = World::six();
    world.pass(Duration::from_secs(4));
    assert_eq!(
        beat(&mut world, 2, vec![report(2, DeviceHealth::Ok)]),
        Ok(MetaAnswer::Heard { registered: true })
    );
    world.pass(Duration::from_secs(4));
    let states = nodes(&world);
    assert_eq!(
        states.iter().map(|state| state.alive).collect::<Vec<_>>(),
        [false, true, false, false, false, false]
    );
    assert_eq!((states[0].silent_ms, states[1].silent_ms), (Some(8000), Some(4000)));
    assert_eq!(states[1].devices, [report(2, DeviceHealth::Ok)]);
    beat(&mut world, 1, vec![]).unwrap();
    assert!(nodes(&world)[0].alive);
}

#[test]
fn only_registered_nodes_are_remembered_and_only_for_their_devices() {
    let mut world = World::six();
    let before = world.liveness.clone();
    assert_eq!(beat(&mut world, 99, vec![]), Ok(MetaAnswer::Heard { registered: false }));
    assert_eq!(world.liveness, before);
    let reports =
        vec![report(3, DeviceHealth::Ok), report(1, DeviceHealth::Failed), report(3, DeviceHealth::Failed)];
    beat(&mut world, 3, reports).unwrap();
    assert_eq!(nodes(&world)[2].devices, [report(3, DeviceHealth::Ok)]);
}

#[test]
fn a_sign_of_life_that_the_store_was_slow_to_vouch_for_does_not_take_the_place_of_a_later_one() {
    let mut world = World::six();
    let heartbeat = |health| Heartbeat {
        node: NodeId(2),
        devices: vec![report(2, health)],
        activity: Default::default(),
    };
    let vouched = meta::vouched(&world.store, heartbeat(DeviceHealth::Ok)).unwrap().unwrap();
    let came = world.now;
    world.pass(Duration::from_secs(1));
    beat(&mut world, 2, heartbeat(DeviceHealth::Failed).devices).unwrap();
    world.liveness.heard(came, vouched);
    let state = &nodes(&world)[1];
    assert_eq!((state.devices[0].health, state.silent_ms), (DeviceHealth::Failed, Some(0)));
}

#[test]
fn after_a_restart_nodes_have_as_long_to_be_heard_as_they_may_be_silent() {
    let mut world = World::six();
    world.liveness = Liveness::new(world.now, DEAD_AFTER);
    assert!(nodes(&world).iter().all(|state| state.alive && state.silent_ms.is_none()));
    world.pass(DEAD_AFTER);
    assert!(nodes(&world).iter().all(|state| !state.alive));
}

/// Whoever was silent only because nobody listened does not count as dead.
#[test]
fn a_server_that_stood_still_gives_nodes_as_long_as_after_a_restart() {
    let mut world = World::six();
    world.pass(Duration::from_secs(20));
    assert!(nodes(&world).iter().all(|state| !state.alive));
    world.liveness.stood_still(world.now);
    world.pass(Duration::from_millis(100));
    assert!(nodes(&world).iter().all(|state| state.alive && state.silent_ms == Some(20_100)));
    world.pass(Duration::from_millis(4800));
    beat(&mut world, 2, vec![]).unwrap();
    world.pass(Duration::from_millis(100));
    let alive: Vec<bool> = nodes(&world).iter().map(|state| state.alive).collect();
    assert_eq!(alive, [false, true, false, false, false, false]);
}

#[test]
fn devices_of_another_cluster_are_refused() {
    let mut world = World::six();
    let theirs = ClusterId(0xbad);
    let foreign = NodeRecord { cluster: Some(theirs), ..node_record(7, &[7]) };
    assert_eq!(world.register(&foreign), Err(MetaFault::ForeignCluster { ours: CLUSTER, theirs }));
    let own = NodeRecord { cluster: Some(CLUSTER), ..node_record(7, &[7]) };
    assert_eq!(world.register(&own), Ok(MetaAnswer::Done));
    assert_eq!(nodes(&world)[6].record, own);
}

#[test]
fn a_device_moves_only_from_a_node_that_is_silent() {
    let mut world = World::six();
    let taken = MetaFault::DeviceTaken { device: DeviceId(1), node: NodeId(1) };
    assert_eq!(world.register(&node_record(7, &[7, 1])), Err(taken.clone()));
    assert_eq!(nodes(&world).len(), 6);
    // Right after a restart the server cannot tell: refused still.
    world.liveness = Liveness::new(world.now, DEAD_AFTER);
    assert_eq!(world.register(&node_record(7, &[7, 1])), Err(taken));
    world.pass(DEAD_AFTER);
    assert_eq!(world.register(&node_record(7, &[7, 1])), Ok(MetaAnswer::Done));
    let states = nodes(&world);
    assert!(states.iter().all(|state| state.record.node != NodeId(1)), "silent and without devices");
    assert_eq!(states[5].record.devices.len(), 2);
    // Nothing is left of it: should it come back, it registers anew. One that is silent and has devices stays known.
    assert_eq!(beat(&mut world, 1, vec![]), Ok(MetaAnswer::Heard { registered: false }));
    assert_eq!(beat(&mut world, 2, vec![]), Ok(MetaAnswer::Heard { registered: true }));
    // The old node comes back and finds its device taken.
    assert_eq!(
        world.register(&node_record(1, &[1])),
        Err(MetaFault::DeviceTaken { device: DeviceId(1), node: NodeId(7) })
    );
}

#[test]
fn registering_again_replaces_and_devices_left_out_are_free() {
    let mut world = World::six();
    assert_eq!(world.register(&node_record(1, &[1, 11, 12])), Ok(MetaAnswer::Done));
    assert_eq!(world.register(&node_record(1, &[12])), Ok(MetaAnswer::Done));
    assert_eq!(world.register(&node_record(2, &[2, 1, 11])), Ok(MetaAnswer::Done));
    let states = nodes(&world);
    assert_eq!(states[0].record.devices, [(DeviceId(12), 1 << 40)]);
    assert_eq!(world.records(0x61), 8);
}

#[test]
fn a_device_that_was_left_out_is_known_until_a_node_has_it_again() {
    let mut world = World::six();
    world.register(&node_record(1, &[1, 11])).unwrap();
    world.register(&node_record(1, &[1])).unwrap();
    let missing = |world: &World| match world.ask(&Query::Registry) {
        Ok(MetaAnswer::Registry(registry)) => registry.missing,
        other => panic!("{other:?}"),
    };
    assert_eq!(missing(&world), [(DeviceId(11), NodeId(1))]);
    // It is added again while the server runs.
    let both = || vec![report(1, DeviceHealth::Ok), report(11, DeviceHealth::Ok)];
    assert_eq!(beat(&mut world, 1, both()), Ok(MetaAnswer::Heard { registered: false }));
    world.register(&node_record(1, &[1, 11])).unwrap();
    assert_eq!(beat(&mut world, 1, both()), Ok(MetaAnswer::Heard { registered: true }));
    assert_eq!(missing(&world), []);
    // Another server has the disk now: the first still lives, and does not name it.
    world.register(&node_record(1, &[1])).unwrap();
    world.register(&node_record(2, &[2, 11])).unwrap();
    let taken = MetaFault::DeviceTaken { device: DeviceId(11), node: NodeId(2) };
    assert_eq!(world.register(&node_record(1, &[1, 11])), Err(taken));
    assert_eq!(beat(&mut world, 1, both()), Ok(MetaAnswer::Heard { registered: true }));
    assert_eq!(nodes(&world)[0].devices, [report(1, DeviceHealth::Ok)]);
    assert_eq!(missing(&world), []);
}

#[test]
fn a_node_that_brings_new_devices_each_time_does_not_fill_the_store() {
    let mut world = World::six();
    let size = DEVICES_PER_NODE_MAX as u128;
    for start in 1..=DEVICES_MAX as u128 / size + 3 {
        let devices: Vec<u128> = (0..size).map(|device| start * 1000 + device).collect();
        assert_eq!(world.register(&node_record(1, &devices)), Ok(MetaAnswer::Done));
    }
    // Those of the other five, its own, and as many again as a cluster has at most.
    assert!(world.records(0x61) <= 5 + DEVICES_PER_NODE_MAX + DEVICES_MAX, "{}", world.records(0x61));
    assert_eq!(nodes(&world)[0].record.devices.len(), DEVICES_PER_NODE_MAX);
}

/// Everybody asks for the registry: one that no frame holds would end the cluster.
#[test]
fn nodes_with_long_names_are_refused_before_no_answer_holds_them() {
    let mut world = World::six();
    let long = |node: u128| NodeRecord {
        address: format!("{node:0>255}"),
        site: "s".repeat(255),
        ..node_record(node, &[node * 100])
    };
    let refused = (100..3000).find_map(|node| world.register(&long(node)).err());
    assert!(
        matches!(refused, Some(MetaFault::Invalid(ref detail)) if detail.contains("choose shorter ones"))
    );
    let answer = world.ask(&Query::Registry).unwrap();
    assert!(encode(&answer).len() < BODY_BYTES_MAX as usize / 4, "{}", encode(&answer).len());
    // A node that is there may come again.
    assert_eq!(world.register(&long(100)), Ok(MetaAnswer::Done));
}

#[test]
fn a_failed_device_does_not_count_for_a_policy() {
    let mut world = World::six();
    beat(&mut world, 1, vec![report(1, DeviceHealth::Failed)]).unwrap();
    assert_eq!(
        world.create("six", "stripe:devices=6"),
        Err(MetaFault::PolicyUnmet { domain: "devices".into(), needed: 6, available: 5 })
    );
    beat(&mut world, 1, vec![report(1, DeviceHealth::Ok)]).unwrap();
    assert_eq!(world.create("six", "stripe:devices=6"), Ok(MetaAnswer::Done));
}

#[test]
fn records_beyond_their_bounds_are_refused() {
    let mut world = World::six();
    let many: Vec<u128> = (100..=100 + DEVICES_PER_NODE_MAX as u128).collect();
    for bad in [
        node_record(7, &many),
        node_record(7, &[7, 7]),
        NodeRecord { address: "a".repeat(256), ..node_record(7, &[7]) },
        NodeRecord { address: String::new(), ..node_record(7, &[7]) },
        NodeRecord { site: "s".repeat(256), ..node_record(7, &[7]) },
        NodeRecord { address: "\x1b[2J:1".to_owned(), ..node_record(7, &[7]) },
        NodeRecord { site: "a\nb".to_owned(), ..node_record(7, &[7]) },
    ] {
        assert!(matches!(world.register(&bad), Err(MetaFault::Invalid(_))));
    }
    assert_eq!(nodes(&world).len(), 6);
}

/// As when a disk is moved to another machine, and names the server there.
#[test]
fn a_live_server_loses_neither_its_name_nor_its_other_devices_to_one_that_has_a_disk_of_it() {
    let mut world = World::six();
    assert_eq!(world.register(&node_record(1, &[1, 11])), Ok(MetaAnswer::Done));
    let at = |address: &str, devices: &[u128]| {
        let record = node_record(1, devices);
        steadfast_protocol::message::NodeRecord { address: address.to_owned(), ..record }
    };
    let taken =
        MetaFault::NodeTaken { node: NodeId(1), address: node_record(1, &[]).address, device: DeviceId(11) };
    assert_eq!(world.register(&at("elsewhere:1", &[1, 77])), Err(taken.clone()));
    // It may itself go on with fewer, and come back elsewhere with as many or more.
    assert_eq!(world.register(&node_record(1, &[1])), Ok(MetaAnswer::Done));
    assert_eq!(world.register(&node_record(1, &[1, 11])), Ok(MetaAnswer::Done));
    assert_eq!(world.register(&at("elsewhere:1", &[1, 11, 12])), Ok(MetaAnswer::Done));
    assert_eq!(world.register(&node_record(1, &[1, 11, 12])), Ok(MetaAnswer::Done));
    // Silent for long enough it is taken to be gone: a disk of it may be dead.
    world.pass(Duration::from_secs(4));
    assert!(matches!(world.register(&at("elsewhere:1", &[1])), Err(MetaFault::NodeTaken { .. })));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.register(&at("elsewhere:1", &[1])), Ok(MetaAnswer::Done));
}

/// As when a virtual machine is cloned with its disks while it runs.
#[test]
fn a_copy_of_a_server_that_runs_does_not_take_its_name_and_one_started_again_elsewhere_does() {
    let mut world = World::six();
    let at = |address: &str| NodeRecord { address: address.to_owned(), ..node_record(1, &[1]) };
    let (here, there) = (at("here:1"), at("there:1"));
    world.register(&here).unwrap();
    let taken = MetaFault::NodeTaken { node: NodeId(1), address: here.address.clone(), device: DeviceId(1) };
    let beats = |world: &mut World| assert!(beat(world, 1, vec![report(1, DeviceHealth::Ok)]).is_ok());
    // It says that it lives twice a second; the copy tries again and again.
    for _ in 0..20 {
        beats(&mut world);
        world.pass(Duration::from_millis(500));
        assert_eq!(world.register(&there), Err(taken.clone()));
        assert_eq!(nodes(&world)[0].record.address, here.address);
        world.pass(Duration::from_millis(1));
    }
    // It may itself register anew.
    assert_eq!(world.register(&here), Ok(MetaAnswer::Done));
    beats(&mut world);
    assert_eq!(world.register(&there), Err(taken.clone()));
    // It was killed, and is started again at another port: it asks again after 2 s.
    world.pass(Duration::from_secs(2));
    assert_eq!(world.register(&there), Ok(MetaAnswer::Done));
    // Of the new one nothing was heard so far, and what was heard of the one before is void.
    assert_eq!(world.register(&here), Ok(MetaAnswer::Done));
    // Or it is known at once that it has ended, until it is heard after all.
    beats(&mut world);
    world.liveness.left(NodeId(1));
    assert!(nodes(&world)[0].alive);
    beats(&mut world);
    assert_eq!(world.register(&there), Err(taken));
    world.liveness.left(NodeId(1));
    assert_eq!(world.register(&there), Ok(MetaAnswer::Done));
}
