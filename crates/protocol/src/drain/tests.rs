//! A drain against a cluster of names: what lies on the devices, and what others do to it meanwhile.

use super::*;
use crate::Time;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const LIMITS: Limits = Limits { objects_max: 3, bytes_max: 100, keep_going: false, looks_max: None };

fn name(key: u64) -> ObjectName {
    ObjectName { bucket: "data".to_owned(), key: format!("{key}") }
}

fn held(segment: u64, key: u64, length: u64) -> Held {
    let ObjectName { bucket, key } = name(key);
    Held { bucket, key, segment: SegmentId(segment), length, blocks: 2, bytes: 20 }
}

/// What lies on the devices, by segment.
struct Model {
    there: BTreeMap<u64, Held>,
    arrivals: u64,
    page: usize,
}

impl Model {
    fn page(&self, after: Option<SegmentId>) -> Input {
        let from = after.map_or(0, |after| after.0 + 1);
        let held: Vec<Held> =
            self.there.range(from..).take(self.page).map(|(_, held)| held.clone()).collect();
        let more = self.there.range(from..).count() > held.len();
        let next = held.last().map(|last| last.segment).filter(|_| more);
        Input::Page { held, next }
    }

    fn moved(&mut self, object: &ObjectName) -> Outcome {
        let mine = |held: &Held| (&held.bucket, &held.key) == (&object.bucket, &object.key);
        let blocks: u64 =
            self.there.values().filter(|held| mine(held)).map(|held| u64::from(held.blocks)).sum();
        self.there.retain(|_, held| !mine(held));
        if blocks == 0 { Outcome::Gone } else { Outcome::Moved { blocks, bytes: blocks * 10 } }
    }
}

#[test]
fn everything_leaves_whatever_is_written_meanwhile() {
    for seed in 0..200 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut below = |bound: u64| random.next_u64() % bound;
        let there = (0..40).map(|segment| (segment, held(segment, segment / 3, 10 + segment))).collect();
        let mut model = Model { there, arrivals: 0, page: 7 };
        let mut drain = Drain::new(LIMITS);
        let (mut running, mut late, mut before) = (Vec::new(), 5u64, 0);
        'drain: loop {
            while let Some(action) = drain.poll() {
                match action {
                    Action::Count => drain.handle(Input::Arrivals(model.arrivals)),
                    Action::Look { after } => drain.handle(model.page(after)),
                    Action::Move(object) => {
                        assert!(!running.contains(&object), "seed {seed}: {object} is moved twice at a time");
                        running.push(object);
                    }
                    Action::Done if model.arrivals == before => break 'drain,
                    // A put came in behind its back after it had counted: a removal would be refused, and it begins anew.
                    Action::Done => {
                        assert!(drain.totals().stuck.is_empty());
                        (drain, before) = (Drain::new(LIMITS), model.arrivals);
                    }
                }
                assert!(running.len() <= LIMITS.objects_max);
                // A put that began before the drain commits, anywhere in the order of names.
                if late > 0 && below(10) == 0 {
                    late -= 1;
                    model.arrivals += 1;
                    let segment = 100 - late * 20;
                    model.there.insert(segment, held(segment, 900 + segment, 5));
                }
            }
            if !running.is_empty() {
                let object = running.swap_remove(below(running.len() as u64) as usize);
                let outcome = if below(5) == 0 { Outcome::Busy } else { model.moved(&object) };
                drain.handle(Input::Over { object, outcome });
            }
        }
        assert!(running.is_empty());
        assert!(model.there.is_empty(), "seed {seed}: {:?} are left", model.there.keys());
        assert!(drain.totals().stuck.is_empty());
        assert_eq!(drain.totals().bytes, drain.totals().blocks * 10);
    }
}

#[test]
fn memory_is_bounded_and_a_large_object_goes_alone() {
    let there = [held(1, 1, 60), held(2, 2, 60), held(3, 3, 500), held(4, 4, 10)];
    let mut drain = Drain::new(LIMITS);
    assert_eq!(drain.poll(), Some(Action::Count));
    drain.handle(Input::Arrivals(0));
    assert_eq!(drain.poll(), Some(Action::Look { after: None }));
    assert_eq!(drain.poll(), None);
    drain.handle(Input::Page { held: there.to_vec(), next: None });
    let gone =
        |drain: &mut Drain, key| drain.handle(Input::Over { object: name(key), outcome: Outcome::Gone });
    for key in [1, 2, 3, 4] {
        assert_eq!(drain.poll(), Some(Action::Move(name(key))));
        assert_eq!(drain.poll(), None, "nothing beside {key}");
        gone(&mut drain, key);
    }
    // Found something, so it looks again.
    assert_eq!(drain.poll(), Some(Action::Count));
}

fn last_copy() -> Stuck {
    Stuck { kind: StuckKind::NoRoom, why: "the last copy".to_owned() }
}

#[test]
fn what_cannot_be_moved_stops_it_or_is_told_at_the_end() {
    for keep_going in [false, true] {
        let there = (0..9).map(|segment| (segment, held(segment, segment, 10))).collect();
        let mut model = Model { there, arrivals: 0, page: 4 };
        let mut drain = Drain::new(Limits { keep_going, objects_max: 1, ..LIMITS });
        let mut begun = 0;
        loop {
            match drain.poll() {
                Some(Action::Count) => drain.handle(Input::Arrivals(0)),
                Some(Action::Look { after }) => drain.handle(model.page(after)),
                Some(Action::Move(object)) => {
                    begun += 1;
                    let outcome = match object.key.as_str() {
                        "2" => Outcome::Stuck(last_copy()),
                        "5" => Outcome::Busy,
                        _ => model.moved(&object),
                    };
                    drain.handle(Input::Over { object, outcome });
                }
                Some(Action::Done) => break,
                None => panic!("it waits for nothing"),
            }
            assert!(begun < 100, "it goes on for ever");
        }
        let totals = drain.totals();
        assert_eq!(totals.stuck[&name(2)], last_copy());
        assert!(totals.stuck.get(&name(5)).is_none_or(|stuck| stuck.kind == StuckKind::Busy));
        assert_eq!((totals.objects, totals.stuck.len()), if keep_going { (7, 2) } else { (2, 1) });
        assert_eq!(begun, if keep_going { 7 + 1 + BUSY_MAX } else { 3 });
    }
}

/// What is degraded may become more all the time: each look finds another object.
#[test]
fn bounded_looks_end_whatever_others_do() {
    for looks in 1..5 {
        let mut drain = Drain::new(Limits { looks_max: Some(looks), ..LIMITS });
        let mut moved = 0;
        loop {
            match drain.poll().expect("nothing is under way") {
                Action::Count => drain.handle(Input::Arrivals(0)),
                Action::Look { .. } => {
                    let held = vec![held(moved, moved, 10)];
                    drain.handle(Input::Page { held, next: None });
                }
                Action::Move(object) => {
                    moved += 1;
                    drain.handle(Input::Over { object, outcome: Outcome::Moved { blocks: 1, bytes: 1 } });
                }
                Action::Done => break,
            }
        }
        assert_eq!((moved, drain.totals().looks), (looks, looks));
        assert!(drain.totals().more, "the last look found some");
    }
}

/// Those that cannot be moved are found first, and the first of them take all the time each time.
#[test]
fn what_begins_where_another_was_cut_short_comes_to_everything() {
    let there = (0..12).map(|segment| (segment, held(segment, segment, 10))).collect();
    let (mut model, mut reached) = (Model { there, arrivals: 0, page: 4 }, None);
    for _ in 0..6 {
        let mut drain = Drain::after(Limits { objects_max: 1, keep_going: true, ..LIMITS }, reached);
        let mut begun = 0;
        loop {
            match drain.poll().expect("nothing is under way") {
                Action::Count => drain.handle(Input::Arrivals(0)),
                Action::Look { after } => drain.handle(model.page(after)),
                Action::Move(object) => {
                    let is_stuck = (0..6).any(|key| object == name(key));
                    let outcome = if is_stuck { Outcome::Stuck(last_copy()) } else { model.moved(&object) };
                    drain.handle(Input::Over { object, outcome });
                    begun += 1;
                    if begun == 2 {
                        drain.handle(Input::Enough);
                    }
                }
                Action::Done => break,
            }
        }
        reached = drain.totals().reached;
    }
    assert_eq!(model.there.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    // One that is not cut short has been at everything all the same.
    let mut drain = Drain::after(LIMITS, Some(SegmentId(8)));
    let mut looks = Vec::new();
    while looks.len() < 2 {
        match drain.poll().expect("nothing is under way") {
            Action::Count => drain.handle(Input::Arrivals(0)),
            Action::Look { after } => {
                looks.push(after);
                drain.handle(Input::Page { held: Vec::new(), next: None });
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(looks, [Some(SegmentId(8)), None]);
}

/// Whatever it was about to do by then.
#[test]
fn what_is_told_that_it_is_enough_begins_nothing_more() {
    for told_at in 0..80 {
        let there = (0..12).map(|segment| (segment, held(segment, segment, 10))).collect();
        let mut model = Model { there, arrivals: 0, page: 4 };
        let mut drain = Drain::new(Limits { objects_max: 2, ..LIMITS });
        let (mut under_way, mut step) = (VecDeque::new(), 0);
        loop {
            if step == told_at {
                drain.handle(Input::Enough);
            }
            step += 1;
            match drain.poll() {
                Some(Action::Done) => break,
                Some(action) => {
                    assert!(step <= told_at, "{action:?} was begun, {told_at}");
                    under_way.push_back(action);
                }
                None => match under_way.pop_front().expect("it waits for something") {
                    Action::Count => drain.handle(Input::Arrivals(0)),
                    Action::Look { after } => drain.handle(model.page(after)),
                    Action::Move(object) => {
                        let outcome = model.moved(&object);
                        drain.handle(Input::Over { object, outcome });
                    }
                    Action::Done => unreachable!("it was over then"),
                },
            }
            assert!(step < 500, "it goes on for ever, {told_at}");
        }
        assert!(under_way.is_empty(), "{under_way:?} is not over, {told_at}");
        assert!(drain.totals().more || model.there.is_empty(), "{told_at}");
    }
}

#[test]
fn the_first_bucket_that_could_not_keep_its_promise_is_named() {
    // Four nodes of two devices each, one of them down: it may come back.
    let registry = plan::tests::registry(4, 2);
    let bucket = |(name, policy): (&str, &str)| BucketRecord {
        name: name.to_owned(),
        policy: policy.parse().unwrap(),
        created: Time(0),
    };
    let buckets = [
        ("never kept", "rateless:tolerate=9"),
        ("one", "rateless:tolerate=1"),
        ("another", "rateless:tolerate=1,redundancy=3"),
        ("all devices", "rateless:tolerate=1,devices=8"),
        ("all nodes", "rateless:tolerate=3"),
    ]
    .map(bucket);
    let refused = |buckets: &[BucketRecord], devices: &[u128]| {
        let leaving = devices.iter().map(|&device| DeviceId(device)).collect();
        match check(&registry, buckets, &[], &leaving) {
            Ok(()) => None,
            Err(Refusal::Policy { bucket, .. }) => Some(bucket),
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(refused(&buckets, &[200]).as_deref(), Some("all devices"));
    let without = [&buckets[..3], &buckets[4..]].concat();
    assert_eq!(refused(&without, &[200]), None);
    assert_eq!(refused(&without, &[200, 201]).as_deref(), Some("all nodes"));
    assert_eq!(refused(&buckets[..3], &[200, 201, 300]), None);
}
