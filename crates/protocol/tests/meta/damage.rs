//! One damaged record stops nothing but what it is about.

use crate::{
    registry::beat,
    support::{World, node_record},
};
use core::cell::RefCell;
use steadfast_protocol::{
    DeviceId, NodeId, SegmentId,
    message::{MetaAnswer, MetaFault, Query, SegmentState},
    meta::{
        self, MemoryStore, View, ViewError,
        view::{Key, Value},
    },
};

/// What a driver would say in its log.
struct Watched<'s> {
    store: &'s MemoryStore,
    left_out: RefCell<Vec<Key>>,
}

impl View for Watched<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, ViewError> {
        self.store.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Key, Value)>, ViewError> {
        self.store.scan(from, to, limit)
    }

    fn left_out(&self, key: &[u8], _: &ViewError) {
        self.left_out.borrow_mut().push(key.to_vec());
    }
}

/// The answer, and the records that it was given without.
fn watched(world: &World, query: &Query) -> (Result<MetaAnswer, MetaFault>, Vec<Key>) {
    let view = Watched { store: &world.store, left_out: RefCell::default() };
    let answer = meta::ask(&view, world.now, &world.liveness, query);
    (answer, view.left_out.into_inner())
}

fn key(tag: u8, name: &[u8]) -> Key {
    [&[tag], name].concat()
}

fn segment_key(tag: u8, segment: SegmentId) -> Key {
    key(tag, &segment.0.to_be_bytes())
}

#[test]
fn a_damaged_put_is_given_up_and_holds_up_no_other_lease_and_no_answer() {
    let mut world = World::six();
    let damaged = world.begin("damaged", 3);
    let other = world.begin("other", 2);
    world.spoil(&key(0x40, &damaged.intent.0.to_be_bytes()));
    let all = [&damaged.segments[..], &other.segments].concat();
    assert_eq!(world.states(&all, 1), vec![SegmentState::Pending; 5]);
    world.pass(world.terms.lease);
    assert_eq!(world.expire().intents, 2);
    assert_eq!([0x40, 0x41, 0x42].map(|tag| world.records(tag)), [0; 3]);
    assert_eq!(world.states(&all, 1), vec![SegmentState::Gone; 5]);
    world.pass(world.terms.answers_kept);
    world.expire_all();
    assert_eq!([0x50, 0x51].map(|tag| world.records(tag)), [0; 2]);
}

#[test]
fn a_sweep_goes_on_past_damaged_records() {
    let mut world = World::six();
    let [damaged, whole] = ["damaged", "whole"].map(|key| world.put(key, 100).segments[0]);
    let pending = world.begin("pending", 1).segments[0];
    let damaged_grant = world.begin("damaged grant", 1).segments[0];
    world.spoil(&segment_key(0x30, damaged));
    world.spoil(&segment_key(0x42, damaged_grant));
    let segments = vec![damaged, whole, damaged_grant, pending];
    let query = Query::SegmentStates { segments, device: DeviceId(1) };
    let (Ok(MetaAnswer::SegmentStates(states)), left_out) = watched(&world, &query) else { panic!() };
    assert_eq!([&states[0], &states[2], &states[3]], [&SegmentState::Pending; 3]);
    assert!(matches!(&states[1], SegmentState::Committed { keep, .. } if !keep.is_empty()));
    assert_eq!(left_out, [damaged, damaged_grant].map(|segment| segment_key(0x30, segment)));
}

#[test]
fn a_node_registers_over_its_damaged_record() {
    let mut world = World::six();
    let spoiled = key(0x60, &1u128.to_be_bytes());
    world.spoil(&spoiled);
    let nodes = |world: &World| {
        let (Ok(MetaAnswer::Registry(registry)), left_out) = watched(world, &Query::Registry) else {
            panic!()
        };
        (registry.nodes.into_iter().map(|node| node.record.node.0).collect::<Vec<_>>(), left_out)
    };
    assert_eq!(nodes(&world), (vec![2, 3, 4, 5, 6], vec![spoiled]));
    // Others come and go, and buckets are made.
    assert_eq!(world.register(&node_record(2, &[2, 22])), Ok(MetaAnswer::Done));
    assert_eq!(world.create("five", "stripe:devices=5"), Ok(MetaAnswer::Done));
    // Its device is still its own, for it lives.
    let taken = MetaFault::DeviceTaken { device: DeviceId(1), node: NodeId(1) };
    assert_eq!(world.register(&node_record(7, &[7, 1])), Err(taken));
    let begun = world.begin("k", 1);
    assert!(world.commit(&begun, &[100]).is_ok(), "what it confirmed before counts");
    assert_eq!(beat(&mut world, 1, vec![]), Ok(MetaAnswer::Heard { registered: false }));
    assert_eq!(world.register(&node_record(1, &[1])), Ok(MetaAnswer::Done));
    assert_eq!(nodes(&world), (vec![1, 2, 3, 4, 5, 6], vec![]));
    assert_eq!(beat(&mut world, 1, vec![]), Ok(MetaAnswer::Heard { registered: true }));
}
