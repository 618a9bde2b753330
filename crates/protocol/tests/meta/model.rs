//! Random interleavings of clients against a plain model: what the cores answer is what the model says, and nothing
//! is left behind at the end.

use crate::support::{World, all_freed, commit_of, layout};
use core::time::Duration;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use steadfast_protocol::{
    IntentId, RequestId, SegmentId, Time, Version,
    message::{Change, MetaAnswer, MetaFault, PutBegun, Query, SegmentState},
};

const KEYS: [&str; 5] = ["a", "a/b", "b", "c/d/e", "ф"];

/// What there should be.
#[derive(Default)]
struct Model {
    objects: BTreeMap<String, (Version, u64, PutBegun, Vec<u64>)>,
    intents: BTreeMap<IntentId, (String, PutBegun, Time)>,
    /// Every request still remembered, with its answer and when it was given.
    answered: Vec<(RequestId, Change, Result<MetaAnswer, MetaFault>, Time)>,
    /// Every segment ever named.
    named: Vec<SegmentId>,
}

#[allow(clippy::disallowed_methods, reason = "a test takes its seed from the environment; a core does not")]
fn seed() -> u64 {
    std::env::var("STEADFAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed)
}

#[test]
fn any_interleaving_agrees_with_a_plain_model() {
    let mut counts = BTreeMap::new();
    for round in 0..20 {
        let seed = seed() + round;
        println!("STEADFAST_SEED={seed}");
        interleave(&mut Pcg64Mcg::seed_from_u64(seed), &mut counts);
    }
    println!("coverage: {counts:?}");
    for case in ["commit", "commit late", "replace", "remove", "abort", "expired", "again", "renew", "more"] {
        assert!(counts.get(case).is_some_and(|&count| count > 20), "{case} was hardly visited: {counts:?}");
    }
}

fn interleave(rng: &mut Pcg64Mcg, counts: &mut BTreeMap<&'static str, u32>) {
    let mut world = World::six();
    let mut model = Model::default();
    for step in 0..400 {
        world.pass(Duration::from_millis(u64::from(rng.next_u32() % 1500)));
        step_once(rng, &mut world, &mut model, counts);
        if step % 10 == 0 {
            agree(&world, &model);
        }
    }
    agree(&world, &model);
    // Everybody goes away: only objects, buckets, nodes and counters stay.
    world.pass(Duration::from_secs(3600));
    world.expire_all();
    assert_eq!([0x40, 0x41, 0x42, 0x50, 0x51].map(|tag| world.records(tag)), [0; 5]);
    let segments: usize = model.objects.values().map(|(_, _, _, lengths)| lengths.len()).sum();
    assert_eq!((world.records(0x20), world.records(0x30)), (model.objects.len(), segments));
}

fn step_once(
    rng: &mut Pcg64Mcg,
    world: &mut World,
    model: &mut Model,
    counts: &mut BTreeMap<&'static str, u32>,
) {
    let mut count = |case| *counts.entry(case).or_insert(0) += 1;
    let intent = (!model.intents.is_empty())
        .then(|| *model.intents.keys().nth(rng.next_u32() as usize % model.intents.len()).unwrap());
    let live = intent.is_some_and(|intent| world.now < model.intents[&intent].2);
    let id = world.next_id();
    match (rng.next_u32() % 16, intent) {
        (0..4, _) => {
            let key = KEYS[rng.next_u32() as usize % KEYS.len()].to_owned();
            let segments = rng.next_u32() % 4 + 1;
            let change = Change::BeginPut { bucket: "data".into(), key: key.clone(), segments };
            let answer = world.change_as(id, &change);
            let Ok(MetaAnswer::Begun(begun)) = &answer else { panic!("{answer:?}") };
            assert_eq!(begun.segments.len(), segments as usize);
            assert!(
                begun.segments.iter().all(|segment| !model.named.contains(segment)),
                "a name given twice"
            );
            model.named.extend(&begun.segments);
            model.intents.insert(begun.intent, (key, begun.clone(), world.now + world.terms.lease));
            model.answered.push((id, change, answer, world.now));
        }
        (4..8, Some(intent)) => {
            let (key, begun, _) = model.intents[&intent].clone();
            let lengths: Vec<u64> =
                begun.segments.iter().map(|_| u64::from(rng.next_u32() % (3 << 20)) + 1).collect();
            let change = commit_of(&begun, &lengths);
            let answer = world.change_as(id, &change);
            if live {
                let expected: Vec<_> =
                    model.objects.get(&key).map_or_else(Vec::new, |(_, _, old, lengths)| {
                        old.segments
                            .iter()
                            .zip(lengths)
                            .map(|(&segment, &length)| layout(old, segment, length))
                            .collect()
                    });
                count(if expected.is_empty() { "commit" } else { "replace" });
                let freed = all_freed(&expected, begun.epoch);
                assert_eq!(answer, Ok(MetaAnswer::Committed { version: begun.version, freed }));
                model.intents.remove(&intent);
                model.objects.insert(key, (begun.version, lengths.iter().sum(), begun, lengths));
            } else {
                count("commit late");
                assert_eq!(answer, Err(MetaFault::IntentOver(intent)));
            }
            model.answered.push((id, change, answer, world.now));
        }
        (8, Some(intent)) => {
            count("abort");
            let change = Change::Abort { intent };
            let answer = world.change_as(id, &change);
            assert_eq!(answer, Ok(MetaAnswer::Done));
            model.intents.remove(&intent);
            model.answered.push((id, change, answer, world.now));
        }
        (9, Some(intent)) => {
            let change = Change::Renew { intent };
            let answer = world.change_as(id, &change);
            if live {
                count("renew");
                assert_eq!(answer, Ok(MetaAnswer::Done));
                model.intents.get_mut(&intent).unwrap().2 = world.now + world.terms.lease;
            } else {
                assert_eq!(answer, Err(MetaFault::IntentOver(intent)));
            }
            model.answered.push((id, change, answer, world.now));
        }
        (10, Some(intent)) if live => {
            count("more");
            let change = Change::MoreSegments { intent, segments: 2 };
            let answer = world.change_as(id, &change);
            let Ok(MetaAnswer::Segments(named)) = &answer else { panic!("{answer:?}") };
            assert!(named.len() == 2 && named.iter().all(|segment| !model.named.contains(segment)));
            model.named.extend(named);
            model.intents.get_mut(&intent).unwrap().1.segments.extend(named);
            model.answered.push((id, change, answer, world.now));
        }
        (11 | 12, _) => {
            let key = KEYS[rng.next_u32() as usize % KEYS.len()];
            let change = Change::Remove { bucket: "data".into(), key: key.into() };
            let answer = world.change_as(id, &change);
            match model.objects.remove(key) {
                None => assert!(matches!(answer, Err(MetaFault::NoObject { .. }))),
                Some((_, _, begun, lengths)) => {
                    count("remove");
                    let segments = begun.segments.iter().zip(&lengths);
                    let layouts: Vec<_> =
                        segments.map(|(&segment, &length)| layout(&begun, segment, length)).collect();
                    assert_eq!(answer, Ok(MetaAnswer::Removed { freed: all_freed(&layouts, begun.epoch) }));
                }
            }
            model.answered.push((id, change, answer, world.now));
        }
        (13, _) => {
            let due = model.intents.iter().filter(|(_, (_, _, expires))| *expires <= world.now).count();
            for _ in 0..due {
                count("expired");
            }
            world.expire_all();
            let now = world.now;
            model.intents.retain(|_, (_, _, expires)| *expires > now);
            let kept = world.terms.answers_kept;
            model.answered.retain(|&(_, _, _, at)| now.since(at) < kept);
        }
        (14 | 15, _) if !model.answered.is_empty() => {
            // A client whose answer was lost asks again.
            count("again");
            let (id, change, answer, _) = &model.answered[rng.next_u32() as usize % model.answered.len()];
            let before = world.store.clone();
            assert_eq!(&world.change_as(*id, change), answer);
            assert_eq!(world.store, before);
        }
        _ => {}
    }
}

fn agree(world: &World, model: &Model) {
    let mut listed = Vec::new();
    loop {
        let after = listed.last().map(|(key, _, _): &(String, _, _)| key.clone());
        let query = Query::List { bucket: "data".into(), prefix: String::new(), after, limit: 2 };
        let Ok(MetaAnswer::Page { objects, more }) = world.ask(&query) else { panic!() };
        listed.extend(objects.into_iter().map(|object| (object.key, object.version, object.size)));
        if !more {
            break;
        }
    }
    let expected: Vec<_> =
        model.objects.iter().map(|(key, &(version, size, ..))| (key.clone(), version, size)).collect();
    assert_eq!(listed, expected);
    for (&segment, state) in
        model.named.iter().zip(model.named.chunks(1000).flat_map(|chunk| world.states(chunk, 1)))
    {
        let committed = model.objects.values().any(|(_, _, begun, _)| begun.segments.contains(&segment));
        let pending = model.intents.values().any(|(_, begun, _)| begun.segments.contains(&segment));
        match state {
            SegmentState::Committed { .. } => assert!(committed && !pending),
            SegmentState::Pending => assert!(pending && !committed),
            SegmentState::Gone => assert!(!pending && !committed),
        }
    }
}
