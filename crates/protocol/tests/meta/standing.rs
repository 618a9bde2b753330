//! Devices that leave, and what lies on a device.

use crate::{
    registry::{beat, report},
    support::{World, add_block, drop_block, layout, node_record},
};
use core::time::Duration;
use std::collections::BTreeMap;
use steadfast_protocol::{
    DeviceId, NodeId, SegmentId,
    layout::SegmentLayout,
    message::{
        Change, DeviceHealth, DeviceState, DrainProgress, DrainState, Held, Holding, MetaAnswer, MetaFault,
        Query, Registry, Standing,
    },
    meta::{DEVICES_MAX, Liveness},
    plan,
};

const MIB: u64 = 1 << 20;

fn set(world: &mut World, device: u128, state: DeviceState, arrivals: u64) -> Result<MetaAnswer, MetaFault> {
    world.change(Change::SetDeviceState { device: DeviceId(device), state, arrivals })
}

fn registry(world: &World) -> Registry {
    match world.ask(&Query::Registry) {
        Ok(MetaAnswer::Registry(registry)) => registry,
        other => panic!("{other:?}"),
    }
}

fn page(
    world: &World,
    devices: &[u128],
    after: Option<SegmentId>,
    limit: u32,
) -> (Vec<Held>, Option<SegmentId>) {
    let devices = devices.iter().map(|&device| DeviceId(device)).collect();
    match world.ask(&Query::ObjectsOn { devices, after, limit }) {
        Ok(MetaAnswer::ObjectsOn { held, next }) => (held, next),
        other => panic!("{other:?}"),
    }
}

fn sums(world: &World) -> BTreeMap<u128, Holding> {
    let (mut after, mut sums) = (None, BTreeMap::<u128, Holding>::new());
    loop {
        let Ok(MetaAnswer::Holdings { holdings, next }) = world.ask(&Query::Holdings { after }) else {
            panic!()
        };
        for holding in holdings {
            let sum = sums
                .entry(holding.device.0)
                .or_insert(Holding { device: holding.device, ..Holding::default() });
            sum.segments += holding.segments;
            sum.blocks += holding.blocks;
            sum.bytes += holding.bytes;
        }
        match next {
            Some(_) => after = next,
            None => return sums,
        }
    }
}

#[test]
fn a_draining_device_takes_no_new_data_across_restarts_and_registrations() {
    let mut world = World::six();
    assert_eq!(set(&mut world, 2, DeviceState::Draining, 0), Ok(MetaAnswer::Done));
    assert_eq!(set(&mut world, 2, DeviceState::Draining, 9), Ok(MetaAnswer::Done));
    world.register(&node_record(2, &[2])).unwrap();
    // A restart of the metadata server: only the store stays.
    world.liveness = Liveness::new(world.now, Duration::from_secs(5));
    let seen = registry(&world);
    assert_eq!(seen.standings, [Standing { device: DeviceId(2), arrivals: 0 }]);
    assert_eq!(seen.state(DeviceId(2)), DeviceState::Draining);
    assert!(plan::candidates(&seen).iter().all(|candidate| candidate.device != DeviceId(2)));
    assert_eq!(plan::holders(&seen).len(), 6, "what it holds is served until it leaves");
    assert_eq!(
        world.create("six", "stripe:devices=6"),
        Err(MetaFault::PolicyUnmet { domain: "devices".into(), needed: 6, available: 5 })
    );
    assert_eq!(set(&mut world, 2, DeviceState::Active, 0), Ok(MetaAnswer::Done));
    assert_eq!(plan::candidates(&registry(&world)).len(), 6);
    assert_eq!(world.create("six", "stripe:devices=6"), Ok(MetaAnswer::Done));
    assert_eq!(set(&mut world, 99, DeviceState::Draining, 0), Err(MetaFault::NoDevice(DeviceId(99))));
}

#[test]
fn a_device_is_removed_when_it_drains_and_nothing_came_in_since_the_look() {
    let mut world = World::six();
    let late = world.begin("late", 1);
    assert_eq!(set(&mut world, 1, DeviceState::Removed, 0), Err(MetaFault::DeviceActive(DeviceId(1))));
    set(&mut world, 1, DeviceState::Draining, 0).unwrap();
    // The put had chosen the device before: it commits, and is counted once.
    world.commit(&late, &[64 * MIB]).unwrap();
    let took = MetaFault::DeviceTook { device: DeviceId(1), arrivals: 1 };
    assert_eq!(set(&mut world, 1, DeviceState::Removed, 0), Err(took));
    assert_eq!(registry(&world).standings, [Standing { device: DeviceId(1), arrivals: 1 }]);
    assert_eq!(page(&world, &[1], None, 10).0.len(), 1);
    world.remove("late").unwrap();
    assert_eq!(set(&mut world, 1, DeviceState::Removed, 1), Ok(MetaAnswer::Done));
    assert_eq!(set(&mut world, 1, DeviceState::Removed, 7), Ok(MetaAnswer::Done));
    let gone = MetaFault::DeviceRemoved(DeviceId(1));
    assert_eq!(set(&mut world, 1, DeviceState::Active, 1), Err(gone.clone()));
    // The node with its last device; it cannot come back under this name, nor can a layout list it.
    assert!(registry(&world).nodes.iter().all(|node| node.record.node != NodeId(1)));
    assert!(registry(&world).standings.is_empty());
    assert_eq!(world.register(&node_record(1, &[1])), Err(gone.clone()));
    assert_eq!(world.register(&node_record(1, &[11, 1])), Err(gone));
    let begun = world.begin("new", 1);
    let refused = world.commit(&begun, &[64 * MIB]);
    assert!(matches!(refused, Err(MetaFault::BadLayout(why)) if why.contains("not registered")));
    assert_eq!(world.register(&node_record(1, &[11])), Ok(MetaAnswer::Done));
}

#[test]
fn a_removal_is_refused_where_the_device_was_active_since_the_look() {
    let mut world = World::six();
    let removed = |world: &mut World, arrivals| set(world, 1, DeviceState::Removed, arrivals);
    let arrivals = |world: &World| registry(world).standings[0].arrivals;
    let returns = |world: &mut World| {
        set(world, 1, DeviceState::Active, 0).unwrap();
        world.put("meanwhile", 100);
        set(world, 1, DeviceState::Draining, 0).unwrap();
    };
    set(&mut world, 1, DeviceState::Draining, 0).unwrap();
    let mut looks = vec![arrivals(&world)];
    for _ in 0..3 {
        // One looks; the device returns, with and without what was counted before.
        world.put("late", 100);
        looks.push(arrivals(&world));
        returns(&mut world);
        looks.push(arrivals(&world));
        returns(&mut world);
        for &look in &looks {
            let took = MetaFault::DeviceTook { device: DeviceId(1), arrivals: arrivals(&world) };
            assert_eq!(removed(&mut world, look), Err(took), "looked at {look}");
        }
        looks.push(arrivals(&world));
    }
    assert!(looks.is_sorted_by(|before, after| before < after), "{looks:?}");
    // Saying what it is does not change the count.
    set(&mut world, 1, DeviceState::Draining, 0).unwrap();
    assert_eq!(looks.last(), Some(&arrivals(&world)));
    for key in ["late", "meanwhile"] {
        world.remove(key).unwrap();
    }
    let last = arrivals(&world);
    assert_eq!(removed(&mut world, last), Ok(MetaAnswer::Done));
    assert_eq!([0x62, 0x64].map(|tag| world.records(tag)), [0; 2]);
}

#[test]
fn a_device_that_its_node_names_no_more_is_repaired_and_removed() {
    let mut world = World::six();
    world.register(&node_record(1, &[1, 11])).unwrap();
    let begun = world.begin("k", 1);
    let mut there = layout(&begun, begun.segments[0], 4 * MIB);
    there.holders[0].device = DeviceId(11);
    world.commit_layouts(&begun, &[there.clone()]).unwrap();
    // Its disk is dead, and its server was started without it.
    world.register(&node_record(1, &[1])).unwrap();
    assert!(registry(&world).nodes.iter().all(|node| node.record.node.0 != 11));
    let new = world.begin("new", 1);
    let mut on_it = layout(&new, new.segments[0], 4 * MIB);
    on_it.holders[0].device = DeviceId(11);
    let refused = world.commit_layouts(&new, &[on_it]);
    assert!(matches!(refused, Err(MetaFault::BadLayout(why)) if why.contains("not registered")));

    assert_eq!(set(&mut world, 11, DeviceState::Removed, 0), Err(MetaFault::DeviceActive(DeviceId(11))));
    assert_eq!(set(&mut world, 11, DeviceState::Draining, 0), Ok(MetaAnswer::Done));
    let seen = registry(&world);
    assert_eq!((seen.state(DeviceId(11)), seen.standings[0].arrivals), (DeviceState::Draining, 0));
    let progress = DrainProgress { devices: vec![DeviceId(11)], lost: true, ..DrainProgress::default() };
    let now = world.now;
    assert!(!registry(&world).is_lost(DeviceId(11)));
    world.liveness.drain(now, progress).unwrap();
    assert!(registry(&world).drain(DeviceId(11)).is_some());
    assert!(registry(&world).is_lost(DeviceId(11)));
    let (held, _) = page(&world, &[11], None, 10);
    assert_eq!((held[0].key.as_str(), sums(&world)[&11].segments), ("k", 1));
    let repair = world.amend("k", begun.version, 1, false).unwrap();
    let mut amended = SegmentLayout { epoch: repair.epoch, ..there };
    for index in amended.holders[0].blocks().iter().collect::<Vec<_>>() {
        drop_block(&mut amended, index);
        add_block(&mut amended, &repair, repair.segments[0], 1, index);
    }
    world.commit_layouts(&repair, &[amended]).unwrap();
    assert!(!sums(&world).contains_key(&11));

    assert_eq!(set(&mut world, 11, DeviceState::Removed, 0), Ok(MetaAnswer::Done));
    assert_eq!(registry(&world).standings, []);
    for node in [1, 2] {
        let again = world.register(&node_record(node, &[node, 11]));
        assert_eq!(again, Err(MetaFault::DeviceRemoved(DeviceId(11))));
    }
    assert_eq!(world.records(0x61), 6);
    // The server has lost nothing by it.
    assert_eq!(beat(&mut world, 1, vec![]), Ok(MetaAnswer::Heard { registered: true }));
}

#[test]
fn a_node_that_reports_an_unknown_device_is_told_to_register() {
    let mut world = World::six();
    let told = |world: &mut World, device| {
        beat(world, 3, vec![report(3, DeviceHealth::Ok), report(device, DeviceHealth::Ok)])
    };
    assert_eq!(told(&mut world, 33), Ok(MetaAnswer::Heard { registered: false }));
    world.register(&node_record(3, &[3, 33])).unwrap();
    assert_eq!(told(&mut world, 33), Ok(MetaAnswer::Heard { registered: true }));
    // One that was removed, too: registering tells the node which.
    set(&mut world, 33, DeviceState::Draining, 0).unwrap();
    set(&mut world, 33, DeviceState::Removed, 0).unwrap();
    assert_eq!(told(&mut world, 33), Ok(MetaAnswer::Heard { registered: false }));
    assert_eq!(world.register(&node_record(3, &[3, 33])), Err(MetaFault::DeviceRemoved(DeviceId(33))));
    world.register(&node_record(3, &[3])).unwrap();
    assert_eq!(told(&mut world, 4), Ok(MetaAnswer::Heard { registered: true }));
}

#[test]
fn pages_find_every_segment_on_a_device_and_nothing_else() {
    let mut world = World::six();
    // Copies lie on devices 1 to 3, coded segments on all six.
    for object in 0..150u64 {
        world.put(&format!("small-{object:03}"), 1000 + object);
    }
    let large = world.begin("large", 2);
    world.commit(&large, &[64 * MIB, 5 * MIB]).unwrap();
    world.put("gone", 9 * MIB);
    world.remove("gone").unwrap();
    for (devices, expected) in
        [(&[1][..], 152), (&[5], 2), (&[5, 6], 2), (&[1, 5], 152), (&[77], 0), (&[], 0)]
    {
        for limit in [1, 7, 1000] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let (held, next) = page(&world, devices, after, limit);
                assert!(held.len() <= limit as usize);
                found.extend(held);
                match next {
                    Some(_) => after = next,
                    None => break,
                }
            }
            assert_eq!(found.len(), expected, "{devices:?} in pages of {limit}");
            assert!(found.is_sorted_by_key(|held| held.segment));
        }
    }
    let (held, _) = page(&world, &[5, 6], None, 10);
    let first = &held[0];
    assert_eq!((first.bucket.as_str(), first.key.as_str(), first.length), ("data", "large", 64 * MIB));
    // N = 384 over six devices, blocks of 256 KiB.
    assert_eq!((first.blocks, first.bytes), (128, 128 << 18));
    let sums = sums(&world);
    assert_eq!(sums.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!((sums[&1].segments, sums[&5].segments), (152, 2));
    assert_eq!(sums[&5].bytes, held.iter().map(|held| held.bytes).sum::<u64>() / 2);
    for bad in [
        Query::ObjectsOn { devices: vec![], after: None, limit: 0 },
        Query::ObjectsOn { devices: vec![DeviceId(1); DEVICES_MAX + 1], after: None, limit: 1 },
    ] {
        assert!(matches!(world.ask(&bad), Err(MetaFault::Invalid(_))));
    }
}

#[test]
fn one_look_is_bounded_however_many_segments_there_are() {
    let mut world = World::six();
    let mut last = 0;
    for object in 0..5000u64 {
        last = world.put(&format!("{object}"), 10).segments[0].0;
    }
    // Nothing lies on device 6: the page is empty, and not the last.
    let (held, next) = page(&world, &[6], None, 1000);
    assert!(held.is_empty());
    let next = next.expect("more than one look");
    assert!(next.0 < last);
    assert_eq!(page(&world, &[6], Some(next), 1000), (vec![], None));
    assert_eq!(sums(&world)[&1].segments, 5000);
    assert_eq!(page(&world, &[1], Some(SegmentId(u64::MAX)), 1).1, None);
}

/// What clients say of drains is shown while those go on; it is for whoever watches and is lost with the server's memory.
#[test]
fn drains_are_shown_while_they_go_on() {
    let mut world = World::six();
    let progress = |devices: &[u128], bytes| DrainProgress {
        devices: devices.iter().map(|&device| DeviceId(device)).collect(),
        bytes_before: 100,
        bytes,
        ..DrainProgress::default()
    };
    let shown = |world: &World| -> Vec<(Vec<u128>, u64, u64)> {
        let drains = registry(world).drains.into_iter();
        let drain = |state: DrainState| {
            let devices = state.progress.devices.iter().map(|device| device.0).collect();
            (devices, state.progress.bytes, state.silent_ms)
        };
        drains.map(drain).collect()
    };
    // Of devices that are active nothing is shown, whatever is said.
    let now = world.now;
    assert_eq!(world.liveness.drain(now, progress(&[2, 3, 9], 10)), Ok(MetaAnswer::Done));
    assert!(shown(&world).is_empty());
    set(&mut world, 2, DeviceState::Draining, 0).unwrap();
    set(&mut world, 3, DeviceState::Draining, 0).unwrap();
    world.now = world.now + Duration::from_millis(700);
    assert_eq!(shown(&world), [(vec![2, 3], 10, 700)]);
    assert_eq!(registry(&world).drain(DeviceId(3)).unwrap().progress.share(), 0.1);
    assert!(registry(&world).drain(DeviceId(1)).is_none());
    // A later word of a device takes the place of the earlier one of all that it was about.
    let now = world.now;
    world.liveness.drain(now, progress(&[3], 50)).unwrap();
    assert_eq!(shown(&world), [(vec![3], 50, 0)]);
    set(&mut world, 3, DeviceState::Active, 0).unwrap();
    assert!(shown(&world).is_empty());
    // No devices, and more than there can be: refused. Many of which none is there: bounded.
    let refused = |world: &mut World, count: u128| {
        let all: Vec<u128> = (0..count).collect();
        matches!(world.liveness.drain(now, progress(&all, 0)), Err(MetaFault::Invalid(_)))
    };
    assert!(refused(&mut world, 0) && refused(&mut world, DEVICES_MAX as u128 + 1));
    world.liveness.drain(now, progress(&[2], 7)).unwrap();
    let others: Vec<u128> = (1000..1000 + DEVICES_MAX as u128).collect();
    world.liveness.drain(now, progress(&others, 0)).unwrap();
    assert!(shown(&world).is_empty(), "the oldest word made room");
}

#[test]
fn devices_that_were_removed_are_told_from_others() {
    let mut world = World::six();
    set(&mut world, 1, DeviceState::Draining, 0).unwrap();
    set(&mut world, 1, DeviceState::Removed, 0).unwrap();
    let devices = [1, 2, 99].map(DeviceId).to_vec();
    let removed = world.ask(&Query::RemovedDevices { devices });
    assert_eq!(removed, Ok(MetaAnswer::RemovedDevices(vec![DeviceId(1)])));
    let many = Query::RemovedDevices { devices: vec![DeviceId(1); 1025] };
    assert!(matches!(world.ask(&many), Err(MetaFault::Invalid(_))));
}
