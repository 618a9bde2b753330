//! Random interleavings of clients against a plain model: what the cores answer is what the model says, and nothing
//! is left behind at the end.

use crate::support::{World, add_block, base_of, commit_of, drop_block};
use core::time::Duration;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, IntentId, RequestId, SegmentId, Time, Version,
    layout::{Piece, SegmentLayout},
    message::{Change, Freed, MetaAnswer, MetaFault, PutBegun, Query, SegmentState},
    policy::Pledge,
};

/// Each is to be visited often.
const CASES: [&str; 13] = [
    "commit",
    "commit late",
    "replace",
    "remove",
    "abort",
    "expired",
    "again",
    "renew",
    "more",
    "amend",
    "amend again",
    "conflict",
    "beside",
];
const KEYS: [&str; 5] = ["a", "a/b", "b", "c/d/e", "ф"];

/// An object as it should be.
struct Object {
    version: Version,
    contents: Version,
    layouts: Vec<SegmentLayout>,
}

impl Object {
    fn size(&self) -> u64 {
        self.layouts.iter().map(|layout| layout.length).sum()
    }

    /// Every segment that has a record: the coded ones and those that pieces are stored under.
    fn names(&self) -> BTreeSet<SegmentId> {
        let named = |layout: &SegmentLayout| -> Vec<SegmentId> {
            layout.pieces().map(|(_, piece)| piece.segment).chain([layout.segment]).collect()
        };
        self.layouts.iter().flat_map(named).collect()
    }
}

/// A put or an amendment under way.
#[derive(Clone)]
struct Intent {
    key: String,
    begun: PutBegun,
    expires: Time,
    /// What an amendment starts from, its layouts by then, and whether it says to change the bytes.
    base: Option<(Version, Vec<SegmentLayout>, bool)>,
}

/// What there should be.
#[derive(Default)]
struct Model {
    objects: BTreeMap<String, Object>,
    intents: BTreeMap<IntentId, Intent>,
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
    for round in 0..30 {
        let seed = seed() + round;
        println!("STEADFAST_SEED={seed}");
        interleave(&mut Pcg64Mcg::seed_from_u64(seed), &mut counts);
    }
    println!("coverage: {counts:?}");
    for case in CASES {
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
    let segments: usize = model.objects.values().map(|object| object.names().len()).sum();
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
    let live = intent.is_some_and(|intent| world.now < model.intents[&intent].expires);
    let id = world.next_id();
    match (rng.next_u32() % 20, intent) {
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
            let expires = world.now + world.terms.lease;
            model.intents.insert(begun.intent, Intent { key, begun: begun.clone(), expires, base: None });
            model.answered.push((id, change, answer, world.now));
        }
        (16..20, _) => {
            let key = KEYS[rng.next_u32() as usize % KEYS.len()].to_owned();
            let object = model.objects.get(&key);
            // Now and then from a version that it was once, or never.
            let stale = rng.next_u32().is_multiple_of(8);
            let base = object.filter(|_| !stale).map_or(Version(u64::MAX), |object| object.version);
            let rewrites = rng.next_u32().is_multiple_of(2);
            let change =
                Change::BeginAmend { bucket: "data".into(), key: key.clone(), base, segments: 2, rewrites };
            let answer = world.change_as(id, &change);
            match (object, &answer) {
                (None, answer) => assert!(matches!(answer, Err(MetaFault::NoObject { .. }))),
                (Some(object), Err(fault)) => {
                    let (bucket, current) = ("data".to_owned(), Some(object.version));
                    assert!(stale);
                    assert_eq!(fault, &MetaFault::Conflict { bucket, key, base, current });
                }
                (Some(object), Ok(MetaAnswer::Begun(begun))) => {
                    assert!(!stale && object.layouts.iter().all(|layout| layout.epoch < begun.epoch));
                    model.named.extend(&begun.segments);
                    let base = Some((base, object.layouts.clone(), rewrites));
                    let expires = world.now + world.terms.lease;
                    let intent = Intent { key, begun: begun.clone(), expires, base };
                    model.intents.insert(begun.intent, intent);
                }
                (Some(_), other) => panic!("{other:?}"),
            }
            model.answered.push((id, change, answer, world.now));
        }
        (4..8, Some(id_of_intent)) => {
            let intent = model.intents[&id_of_intent].clone();
            let (change, layouts) = commit(rng, &intent);
            let answer = world.change_as(id, &change);
            let before = model.objects.get(&intent.key);
            let base = intent.base.as_ref().map(|&(version, _, rewrites)| (version, rewrites));
            if !live {
                count("commit late");
                assert_eq!(answer, Err(MetaFault::IntentOver(id_of_intent)));
            } else if let Some((base, _)) = base
                && before.is_none_or(|object| object.version != base)
                && beside(&intent, before, &layouts).is_none()
            {
                count("conflict");
                assert!(matches!(answer, Err(MetaFault::Conflict { .. })), "{answer:?}");
            } else {
                let is_beside = base.is_some_and(|(base, _)| before.is_some_and(|now| now.version != base));
                let layouts = if is_beside { beside(&intent, before, &layouts).unwrap() } else { layouts };
                count(match (base, before) {
                    _ if is_beside => "beside",
                    (None, None) => "commit",
                    (None, Some(_)) => "replace",
                    (Some(_), Some(object)) if object.names().len() > object.layouts.len() => "amend again",
                    (Some(_), _) => "amend",
                });
                let old = before.map_or(&[][..], |object| &object.layouts);
                let freed = freed(old, &layouts, intent.begun.epoch);
                let Ok(MetaAnswer::Committed { version, .. }) = answer else { panic!("{answer:?}") };
                match is_beside {
                    true => assert!(model.objects.values().all(|object| object.version < version)),
                    false => assert_eq!(version, intent.begun.version),
                }
                assert_eq!(answer, Ok(MetaAnswer::Committed { version, freed }));
                // What is listed as it was holds what it held, whatever was to be made of it.
                let unchanged = before.is_some_and(|object| object.layouts == layouts);
                let same = base.is_some_and(|(_, rewrites)| !rewrites || unchanged);
                let contents = before.filter(|_| same).map_or(version, |object| object.contents);
                model.intents.remove(&id_of_intent);
                model.objects.insert(intent.key, Object { version, contents, layouts });
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
                model.intents.get_mut(&intent).unwrap().expires = world.now + world.terms.lease;
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
            model.intents.get_mut(&intent).unwrap().begun.segments.extend(named);
            model.answered.push((id, change, answer, world.now));
        }
        (11 | 12, _) => {
            let key = KEYS[rng.next_u32() as usize % KEYS.len()];
            let change = Change::Remove { bucket: "data".into(), key: key.into() };
            let answer = world.change_as(id, &change);
            match model.objects.remove(key) {
                None => assert!(matches!(answer, Err(MetaFault::NoObject { .. }))),
                Some(object) => {
                    count("remove");
                    let freed = freed(&object.layouts, &[], Epoch::default());
                    assert_eq!(answer, Ok(MetaAnswer::Removed { freed }));
                }
            }
            model.answered.push((id, change, answer, world.now));
        }
        (13, _) => {
            let due = model.intents.values().filter(|intent| intent.expires <= world.now).count();
            for _ in 0..due {
                count("expired");
            }
            world.expire_all();
            let now = world.now;
            model.intents.retain(|_, intent| intent.expires > now);
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

/// A commit of an intent: new segments for a put; for an amendment, blocks moved and written anew in some of its base.
fn commit(rng: &mut Pcg64Mcg, intent: &Intent) -> (Change, Vec<SegmentLayout>) {
    let begun = &intent.begun;
    let change = match &intent.base {
        None => {
            let length = |_: &SegmentId| u64::from(rng.next_u32() % (3 << 20)) + 1;
            let lengths: Vec<u64> = begun.segments.iter().map(length).collect();
            commit_of(begun, &lengths)
        }
        Some((_, base, _)) => {
            let mut segments = base.clone();
            for (layout, &name) in segments.iter_mut().zip(&begun.segments) {
                // One of another segment is committed beside it.
                if rng.next_u32().is_multiple_of(3) {
                    continue;
                }
                let moved: Vec<u32> = layout
                    .pieces()
                    .flat_map(|(_, piece)| piece.blocks.iter().collect::<Vec<_>>())
                    .filter(|_| rng.next_u32().is_multiple_of(8))
                    .collect();
                if moved.is_empty() {
                    continue;
                }
                layout.epoch = begun.epoch;
                moved.iter().for_each(|&index| drop_block(layout, index));
                for index in moved {
                    add_block(layout, begun, name, u128::from(rng.next_u32() % 6) + 1, index);
                }
            }
            let size = segments.iter().map(|layout| layout.length).sum();
            let base = Some(base_of(Pledge::default(), base, &segments).into());
            Change::Commit { intent: begun.intent, size, segments, pledge: Pledge::default(), base }
        }
    };
    let Change::Commit { segments, .. } = &change else { unreachable!("made above") };
    let segments = segments.clone();
    (change, segments)
}

/// What an object becomes by an amendment of what it was once, which lists these segments; none where others have changed the same.
fn beside(intent: &Intent, now: Option<&Object>, made: &[SegmentLayout]) -> Option<Vec<SegmentLayout>> {
    let ((_, base, _), now) = (intent.base.as_ref()?, &now?.layouts);
    let starts =
        |layouts: &[SegmentLayout], at: usize| layouts[..at].iter().map(|layout| layout.length).sum::<u64>();
    let mut all = now.clone();
    for at in 0..base.len() {
        let (was, is) = (&base[at], now.get(at)?);
        if made[at] != *was {
            let same = (was.segment, was.epoch, was.length) == (is.segment, is.epoch, is.length);
            all[at] = Some(&made[at]).filter(|_| same && starts(now, at) == starts(base, at))?.clone();
        }
    }
    Some(all)
}

/// What a change leaves to be freed, counted block by block.
fn freed(before: &[SegmentLayout], after: &[SegmentLayout], epoch: Epoch) -> Vec<Freed> {
    let mut freed = Vec::new();
    for layout in before {
        for (device, piece) in layout.pieces() {
            let stays = |index: &u32| {
                let listed = |(at, kept): (_, &Piece)| {
                    at == device && kept.segment == piece.segment && kept.blocks.contains(*index)
                };
                after.iter().any(|layout| layout.pieces().any(listed))
            };
            let keep: IndexRanges = piece.blocks.iter().filter(stays).collect();
            if keep.count() < piece.blocks.count() {
                let epoch = epoch.max(layout.epoch);
                freed.push(Freed { device, segment: piece.segment, keep, epoch });
            }
        }
    }
    freed
}

fn agree(world: &World, model: &Model) {
    let mut listed = Vec::new();
    loop {
        let after = listed.last().map(|(key, ..): &(String, _, _, _)| key.clone());
        let query = Query::List { bucket: "data".into(), prefix: String::new(), after, limit: 2 };
        let Ok(MetaAnswer::Page { objects, more }) = world.ask(&query) else { panic!() };
        listed.extend(
            objects.into_iter().map(|object| (object.key, object.version, object.contents, object.size)),
        );
        if !more {
            break;
        }
    }
    let expected: Vec<_> = model
        .objects
        .iter()
        .map(|(key, object)| (key.clone(), object.version, object.contents, object.size()))
        .collect();
    assert_eq!(listed, expected);
    for (key, object) in &model.objects {
        let Ok(MetaAnswer::Object { segments, .. }) = world.lookup(key) else { panic!("no {key}") };
        assert_eq!(segments, object.layouts);
    }
    let layouts = || model.objects.values().flat_map(|object| &object.layouts);
    let owners: BTreeMap<SegmentId, &SegmentLayout> = layouts()
        .flat_map(|layout| {
            let names = layout.pieces().map(|(_, piece)| piece.segment).chain([layout.segment]);
            names.map(move |name| (name, layout))
        })
        .collect();
    for device in [1, 4] {
        let states = model.named.chunks(1000).flat_map(|chunk| world.states(chunk, device));
        for (segment, state) in model.named.iter().zip(states) {
            let pending = model.intents.values().any(|intent| intent.begun.segments.contains(segment));
            let expected = match owners.get(segment) {
                Some(layout) => {
                    assert!(!pending);
                    let here = layout
                        .pieces()
                        .filter(|(at, piece)| *at == DeviceId(device) && piece.segment == *segment);
                    let keep = here.map(|(_, piece)| piece.blocks.clone()).next().unwrap_or_default();
                    SegmentState::Committed { keep, epoch: layout.epoch }
                }
                None if pending => SegmentState::Pending,
                None => SegmentState::Gone,
            };
            assert_eq!(state, expected, "segment {segment} on device {device}");
        }
    }
}
