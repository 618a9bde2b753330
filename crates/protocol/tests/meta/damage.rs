//! One damaged record stops nothing but what it is about.

use crate::{
    registry::beat,
    support::{World, add_block, drop_block, node_record},
};
use core::cell::RefCell;
use steadfast_protocol::{
    DeviceId, NodeId, RequestId, SegmentId,
    message::{Change, DeviceState, MetaAnswer, MetaFault, Query, SegmentState},
    meta::{
        self, MemoryStore, Txn, View, ViewError, transact,
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

fn object_key(name: &str) -> Key {
    key(0x20, &[b"data\0", name.as_bytes()].concat())
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

/// Whoever drains or repairs looks at all segments; what cannot be read of one holds nobody up.
#[test]
fn looks_at_what_devices_hold_go_on_past_a_damaged_segment() {
    let mut world = World::six();
    let [damaged, whole] = ["damaged", "whole"].map(|key| world.put(key, 100).segments[0]);
    world.spoil(&segment_key(0x30, damaged));
    let devices = (1..=6).map(DeviceId).collect();
    let (Ok(MetaAnswer::ObjectsOn { held, next: None }), left_out) =
        watched(&world, &Query::ObjectsOn { devices, after: None, limit: 10 })
    else {
        panic!()
    };
    assert_eq!(held.iter().map(|held| held.segment).collect::<Vec<_>>(), [whole]);
    assert_eq!(left_out, [segment_key(0x30, damaged)]);
    let Ok(MetaAnswer::Holdings { holdings, next: None }) = world.ask(&Query::Holdings { after: None })
    else {
        panic!()
    };
    assert!(!holdings.is_empty() && holdings.iter().all(|holding| holding.segments == 1));
}

#[test]
fn listings_leave_out_damaged_objects_and_buckets() {
    let mut world = World::six();
    ["a", "b", "c"].into_iter().for_each(|key| drop(world.put(key, 100)));
    assert_eq!(world.create("other", "stripe"), Ok(MetaAnswer::Done));
    world.spoil(&object_key("b"));
    let list = Query::List { bucket: "data".into(), prefix: String::new(), after: None, limit: 2 };
    let (Ok(MetaAnswer::Page { objects, more: false }), left_out) = watched(&world, &list) else { panic!() };
    assert_eq!(objects.into_iter().map(|object| object.key).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(left_out, [object_key("b")]);
    world.spoil(&key(0x10, b"other"));
    let Ok(MetaAnswer::Buckets(buckets)) = world.ask(&Query::Buckets) else { panic!() };
    assert_eq!(buckets.into_iter().map(|bucket| bucket.name).collect::<Vec<_>>(), ["data"]);
}

/// What is known of its segments goes with it, and the sweep frees the rest.
#[test]
fn an_object_of_which_a_segment_is_damaged_is_replaced_and_removed() {
    for replaced in [true, false] {
        let mut world = World::six();
        let segment = world.put("k", 100).segments[0];
        world.spoil(&segment_key(0x30, segment));
        assert!(world.lookup("k").is_err());
        if replaced {
            world.put("k", 200);
            assert!(world.lookup("k").is_ok());
        } else {
            assert_eq!(world.remove("k"), Ok(MetaAnswer::Removed { freed: vec![] }));
        }
        assert_eq!(world.states(&[segment], 1), [SegmentState::Gone]);
    }
}

/// What it listed is found by the segments' own records, and freed by the sweep.
#[test]
fn an_object_whose_record_is_damaged_is_replaced_and_removed() {
    for replaced in [true, false] {
        let mut world = World::six();
        let [segment, other] = ["k", "other"].map(|key| world.put(key, 100).segments[0]);
        world.spoil(&object_key("k"));
        assert!(world.lookup("k").is_err());
        let remove_bucket = Change::RemoveBucket { bucket: "data".into() };
        if replaced {
            let put = world.put("k", 200);
            assert_eq!((world.object("k").0.version, world.object("k").0.size), (put.version, 200));
        } else {
            assert_eq!(world.remove("k"), Ok(MetaAnswer::Removed { freed: vec![] }));
            assert!(matches!(world.lookup("k"), Err(MetaFault::NoObject { .. })));
        }
        world.expire_all();
        assert_eq!((world.states(&[segment], 1), world.records(0x21)), (vec![SegmentState::Gone], 0));
        assert!(matches!(world.states(&[other], 1)[..], [SegmentState::Committed { .. }]));
        if replaced {
            assert_eq!(world.object("k").1.len(), 1, "what it lists now stays");
        } else {
            world.remove("other").unwrap();
            assert_eq!(world.change(remove_bucket), Ok(MetaAnswer::Done));
        }
    }
}

/// An amendment keeps parts of what it begins from: there is nothing to keep.
#[test]
fn an_amendment_of_an_object_whose_record_is_damaged_is_refused() {
    let mut world = World::six();
    let put = world.put("k", 4 << 20);
    let begun = world.amend("k", put.version, 0, true).unwrap();
    let mut layouts = world.object("k").1;
    drop_block(&mut layouts[0], 5);
    layouts[0].epoch = begun.epoch;
    world.spoil(&object_key("k"));
    assert!(matches!(world.commit_layouts(&begun, &layouts), Err(MetaFault::Store(_))));
    assert!(matches!(world.lookup("k"), Err(MetaFault::Store(_))), "and nothing of it is gone");
}

/// Its pieces lie under names of their own, which refer to it.
#[test]
fn pieces_of_a_damaged_segment_go_with_its_object() {
    let mut world = World::six();
    let put = world.put("k", 4 << 20);
    let begun = world.amend("k", put.version, 1, true).unwrap();
    let mut layouts = world.object("k").1;
    layouts[0].epoch = begun.epoch;
    drop_block(&mut layouts[0], 5);
    add_block(&mut layouts[0], &begun, begun.segments[0], 6, 5);
    world.commit_layouts(&begun, &layouts).unwrap();
    let names = [put.segments[0], begun.segments[0]];
    world.spoil(&segment_key(0x30, names[0]));
    assert_eq!(world.states(&names, 6), [SegmentState::Pending, SegmentState::Pending]);
    assert!(world.remove("k").is_ok());
    assert_eq!(world.states(&names, 6), [SegmentState::Gone, SegmentState::Gone]);
}

#[test]
fn a_device_whose_standing_is_damaged_drains_and_can_be_told_anything() {
    let mut world = World::six();
    let device = DeviceId(1);
    let set =
        |world: &mut World, state, arrivals| world.change(Change::SetDeviceState { device, state, arrivals });
    let arrivals = |world: &World| {
        let Ok(MetaAnswer::Registry(registry)) = world.ask(&Query::Registry) else { panic!() };
        registry.standings.iter().find(|standing| standing.device == device).map(|standing| standing.arrivals)
    };
    set(&mut world, DeviceState::Draining, 0).unwrap();
    world.spoil(&key(0x62, &device.0.to_be_bytes()));
    let looked = arrivals(&world).expect("it drains");
    // A commit stores on it meanwhile: who looked before is refused.
    world.put("k", 100);
    assert!(matches!(set(&mut world, DeviceState::Removed, looked), Err(MetaFault::DeviceTook { .. })));
    assert!(arrivals(&world).expect("it drains") > looked);
    world.spoil(&key(0x62, &device.0.to_be_bytes()));
    set(&mut world, DeviceState::Active, 0).unwrap();
    assert_eq!(arrivals(&world), None);
    world.spoil(&key(0x64, &device.0.to_be_bytes()));
    set(&mut world, DeviceState::Draining, 0).unwrap();
    let looked = arrivals(&world).expect("it drains");
    assert_eq!(set(&mut world, DeviceState::Removed, looked), Ok(MetaAnswer::Done));
}

/// What it says of the bucket's policy is lost; what the bucket holds is not.
#[test]
fn a_bucket_whose_record_is_damaged_is_made_again_over_it_with_what_it_holds() {
    let mut world = World::six();
    world.put("k", 100);
    let counters = |world: &World| world.store.get(&[0x01]).unwrap();
    let (before, record) = (counters(&world), key(0x10, b"data"));
    assert_eq!(world.create("data", "rateless"), Err(MetaFault::BucketExists("data".into())));
    world.spoil(&record);
    assert!(world.lookup("k").is_err() && world.remove("k").is_err());
    let view = Watched { store: &world.store, left_out: RefCell::default() };
    let create = Change::CreateBucket { bucket: "data".into(), policy: "rateless".parse().unwrap() };
    let (id, liveness) = (RequestId { client: 9, count: 1 }, &world.liveness);
    let made = meta::change(&mut Txn::new(&view), world.now, &world.terms, liveness, id, &create);
    assert_eq!((made, view.left_out.into_inner()), (Ok(MetaAnswer::Done), vec![record.clone()]));
    assert_eq!(world.change(create), Ok(MetaAnswer::Done));
    assert!(world.lookup("k").is_ok());
    // It is no further bucket: the count of them is as before, and ends with it.
    assert_eq!(counters(&world), before);
    world.remove("k").unwrap();
    assert_eq!(world.change(Change::RemoveBucket { bucket: "data".into() }), Ok(MetaAnswer::Done));
    // Nor is a policy that nothing meets taken because of that.
    world.create("data", "rateless").unwrap();
    world.spoil(&record);
    assert!(matches!(world.create("data", "stripe:devices=9"), Err(MetaFault::PolicyUnmet { .. })));
}

/// One that another build wrote is whole, and is nobody's to write over.
#[test]
fn a_bucket_of_an_unknown_format_is_left_alone() {
    let mut world = World::six();
    let record = key(0x10, b"data");
    let mut value = world.store.get(&record).unwrap().unwrap();
    value[0] += 1;
    world.store.apply([(record.clone(), Some(value.clone()))].into());
    assert_eq!(world.create("data", "rateless"), Err(MetaFault::BucketExists("data".into())));
    assert_eq!(world.store.get(&record), Ok(Some(value)));
}

/// A store that was put back, and does not say what it has given out: nothing of that is given out again.
#[test]
fn a_store_put_back_whose_counters_are_damaged_goes_on_above_all_that_there_is() {
    let mut world = World::six();
    assert_eq!(world.create("other", "stripe"), Ok(MetaAnswer::Done));
    let stored = world.put("k", 100);
    let pending = world.begin("pending", 7);
    let counters = vec![0x01];
    let whole = world.store.get(&counters).unwrap();
    world.spoil(&counters);
    assert!(world.change(Change::BeginPut { bucket: "data".into(), key: "l".into(), segments: 1 }).is_err());
    // A record whose key is damaged would name any number.
    let wrong = [segment_key(0x30, SegmentId(u64::MAX - 9)), key(0x42, b"short")];
    let value = world.store.get(&segment_key(0x30, stored.segments[0])).unwrap();
    world.store.apply([(wrong[0].clone(), value), (wrong[1].clone(), Some(vec![1]))].into());
    let view = Watched { store: &world.store, left_out: RefCell::default() };
    let (skipped, writes) = transact(&view, meta::skip_ahead);
    assert_eq!(skipped, Ok(()));
    assert_eq!(view.left_out.into_inner(), [std::slice::from_ref(&counters), &wrong[..]].concat());
    world.store.apply(writes);
    world.store.apply(wrong.map(|key| (key, None)).into());
    let next = world.begin("l", 1);
    let above = pending.segments[6].0 + (1 << 48);
    assert_eq!((next.segments[0].0, next.intent.0), (above + 1, above + 1));
    assert_eq!((next.version.0, next.epoch.0), (above + 1, above + 1));
    assert!(world.commit(&next, &[100]).is_ok() && world.lookup("k").is_ok());
    // Buckets are counted: as many may be removed and made as before.
    assert_eq!(world.change(Change::RemoveBucket { bucket: "other".into() }), Ok(MetaAnswer::Done));
    // What was given since the copy was made is gone; what is under way is not.
    let segments = [SegmentId(above - 5), pending.segments[0], stored.segments[0]];
    let states = world.states(&segments, 1);
    assert_eq!(states[..2], [SegmentState::Gone, SegmentState::Pending]);
    assert!(matches!(states[2], SegmentState::Committed { .. }));
    // Whole ones are not looked past, however the store is put back.
    world.store.apply([(counters, whole)].into());
    let (skipped, writes) = transact(&world.store, meta::skip_ahead);
    assert_eq!(skipped, Ok(()));
    world.store.apply(writes);
    assert_eq!(world.begin("m", 1).segments[0].0, pending.segments[6].0 + (1 << 40) + 1);
}
