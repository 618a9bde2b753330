//! The server without its network: group commit, listings, leases, and stores that are not what they should be.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod support;

use std::{collections::BTreeSet, fs, os::unix::fs::FileExt, sync::Arc, time::Duration};
use steadfast_meta::{MetaError, MetaOptions, Service};
use steadfast_protocol::{
    ClusterId, DeviceId, NodeId, RequestId,
    message::{
        Change, DeviceState, DrainPhase, DrainProgress, Heartbeat, LIST_PAGE_MAX, MetaAnswer, MetaFault,
        MetaRequest, Query, SegmentState,
    },
    policy::Pledge,
};
use support::{ask, begin, begun, block_on, commit, list, lookup, node, options, query, set_up};

#[test]
fn a_listing_of_twenty_thousand_keys_in_pages_equals_the_model() {
    const WRITERS: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(Service::open(&options(dir.path())).unwrap());
    block_on(async {
        set_up(&service).await;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let service = Arc::clone(&service);
                tokio::spawn(async move {
                    let client = u128::from(writer) + 1;
                    for object in 0..100u64 {
                        let id = |step| RequestId { client, count: object * 2 + step };
                        let put = begun(ask(&service, id(0), begin(&key(writer, object))).await);
                        ask(&service, id(1), commit(&put, object as u32)).await.unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        let mut expected: Vec<(String, u64)> = (0..WRITERS)
            .flat_map(|writer| (0..100).map(move |object| (key(writer, object), object)))
            .collect();
        expected.sort_unstable();
        let shown = |objects: Vec<steadfast_protocol::message::ObjectRecord>| -> Vec<(String, u64)> {
            objects.into_iter().map(|object| (object.key, object.size)).collect()
        };
        assert_eq!(shown(list(&service, "", LIST_PAGE_MAX).await), expected);
        assert_eq!(shown(list(&service, "", 333).await), expected);
        expected.retain(|(key, _)| key.starts_with("dir-3/"));
        assert!(expected.len() > 2000);
        assert_eq!(shown(list(&service, "dir-3/", 100).await), expected);
    });
}

/// Pages while others insert, replace and remove around every boundary: what stays is listed once, in order, and every
/// page is within its limit.
#[test]
fn pages_are_whole_and_in_order_while_others_insert_and_remove() {
    const STAYING: u64 = 5_000;
    const PAGE: u32 = 97;
    let staying = |object: u64| format!("{object:06}");
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(Service::open(&options(dir.path())).unwrap());
    block_on(async {
        set_up(&service).await;
        let put = async |client: u128, count: u64, key: &str| {
            let id = |step| RequestId { client, count: count * 2 + step };
            let put = begun(ask(&service, id(0), begin(key)).await);
            ask(&service, id(1), commit(&put, 1)).await.unwrap();
        };
        let writers = (0..50u64).map(|writer| {
            let service = Arc::clone(&service);
            tokio::spawn(async move {
                for count in 0..STAYING / 50 {
                    let id = |step| RequestId { client: u128::from(writer) + 1, count: count * 2 + step };
                    let put = begun(ask(&service, id(0), begin(&staying(count * 50 + writer))).await);
                    ask(&service, id(1), commit(&put, 1)).await.unwrap();
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        let (mut listed, mut changed): (Vec<String>, u64) = (Vec::new(), 0);
        loop {
            let after = listed.last().cloned();
            // Beside the boundary: behind it, before it, and gone again; and one that stays is replaced.
            let beside = |by: &str| format!("{}{by}", after.as_deref().unwrap_or("000000"));
            put(1000, changed, &beside("-passing")).await;
            put(1000, changed + 1, &beside("-coming")).await;
            put(1000, changed + 2, &staying(changed * 31 % STAYING)).await;
            let key = beside("-passing");
            let remove = Change::Remove { bucket: support::BUCKET.into(), key };
            ask(&service, RequestId { client: 1001, count: changed }, remove).await.unwrap();
            changed += 3;
            let page =
                Query::List { bucket: support::BUCKET.into(), prefix: String::new(), after, limit: PAGE };
            let Ok(MetaAnswer::Page { objects, more }) = query(&service, page).await else {
                panic!("no page")
            };
            assert!(objects.len() <= PAGE as usize && (!more || !objects.is_empty()));
            listed.extend(objects.into_iter().map(|object| object.key));
            if !more {
                break;
            }
        }
        assert!(listed.is_sorted_by(|a, b| a < b), "in order, and none twice");
        assert!(changed > 150 && listed.iter().all(|key| !key.contains("passing")));
        listed.retain(|key| !key.contains('-'));
        assert_eq!(listed, (0..STAYING).map(staying).collect::<Vec<_>>());
    });
}

fn key(writer: u64, object: u64) -> String {
    format!("dir-{}/{}-{}", object % 7, writer * 7919 % 1000, object)
}

#[test]
fn a_store_is_kept_over_a_clean_stop() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let service = Service::open(&options(dir.path())).unwrap();
        set_up(&service).await;
        let put = begun(ask(&service, id(1), begin("a")).await);
        let committed = ask(&service, id(2), commit(&put, 5)).await;
        let cluster = service.cluster();
        service.stop().await;
        assert!(matches!(lookup(&service, "a").await, Err(MetaFault::Store(_))));
        assert!(matches!(ask(&service, id(3), begin("b")).await, Err(MetaFault::Store(_))));
        // The first still exists, but has let the directory go.
        let again = Service::open(&options(dir.path())).unwrap();
        assert_eq!(again.cluster(), cluster);
        assert_eq!(ask(&again, id(2), commit(&put, 5)).await, committed);
        assert!(lookup(&again, "a").await.is_ok());
        service.stop().await;
    });
}

/// What was named since a copy was made is named no more, and given up.
#[test]
fn a_store_that_was_put_back_from_a_copy_goes_on_above_what_was_named_since() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    block_on(async {
        let service = Service::open(&options(dir.path())).unwrap();
        set_up(&service).await;
        let kept = begun(ask(&service, id(1), begin("a")).await);
        ask(&service, id(2), commit(&kept, 5)).await.unwrap();
        service.stop().await;
        drop(service);
        let file = |dir: &std::path::Path| dir.join("meta.redb");
        std::fs::copy(file(dir.path()), file(copy.path())).unwrap();
        let service = Service::open(&options(dir.path())).unwrap();
        let since = begun(ask(&service, id(3), begin("b")).await);
        ask(&service, id(4), commit(&since, 5)).await.unwrap();
        service.stop().await;
        let restored = MetaOptions { restored: true, ..options(copy.path()) };
        let service = Service::open(&restored).unwrap();
        assert!(lookup(&service, "a").await.is_ok() && lookup(&service, "b").await.is_err());
        let next = begun(ask(&service, id(5), begin("b")).await);
        assert!(next.segments[0] > since.segments[0] && next.epoch > since.epoch);
        assert!(next.version > since.version && next.intent > since.intent);
        let segments = [&kept.segments[..], &since.segments].concat();
        let query = Query::SegmentStates { segments, device: DeviceId(1) };
        let answer = service.handle(MetaRequest::Ask(query)).await;
        let Ok(MetaAnswer::SegmentStates(states)) = answer else { panic!("{answer:?}") };
        assert!(matches!(states[0], SegmentState::Committed { .. }));
        assert!(states[kept.segments.len()..].iter().all(|state| *state == SegmentState::Gone));
        service.stop().await;
    });
}

fn id(count: u64) -> RequestId {
    RequestId { client: 1, count }
}

#[test]
fn two_servers_cannot_have_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Service::open(&options(dir.path())).unwrap();
    match Service::open(&options(dir.path())) {
        Err(error @ MetaError::InUse { .. }) => {
            assert!(error.to_string().contains("another metadata server"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_that_are_not_ours_are_named_and_left_alone() {
    let text = b"this is some other program's file".repeat(1000);
    for content in [&b""[..], b"red", &text] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meta.redb");
        fs::write(&path, content).unwrap();
        match Service::open(&options(dir.path())) {
            Err(error @ MetaError::Foreign { .. }) => {
                assert!(error.to_string().contains("move the file away"))
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    // A redb file of another program.
    let dir = tempfile::tempdir().unwrap();
    drop(redb::Database::create(dir.path().join("meta.redb")).unwrap());
    assert!(matches!(Service::open(&options(dir.path())), Err(MetaError::Foreign { .. })));
}

#[test]
fn damaged_stores_give_typed_errors() {
    let whole = tempfile::tempdir().unwrap();
    block_on(async {
        let service = Service::open(&options(whole.path())).unwrap();
        set_up(&service).await;
        service.stop().await;
    });
    let content = fs::read(whole.path().join("meta.redb")).unwrap();
    let open = |content: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("meta.redb"), content).unwrap();
        Service::open(&options(dir.path())).map(drop)
    };
    assert!(open(&content).is_ok());
    let mut zeroed = content.clone();
    zeroed[512..].fill(0);
    let mut flipped = content.clone();
    flipped[9..320].iter_mut().for_each(|byte| *byte ^= 0xa5);
    for (case, damaged) in
        [("short", &content[..content.len() / 3]), ("zeroed", &zeroed), ("header", &flipped)]
    {
        match open(damaged) {
            Err(error @ (MetaError::Damaged { .. } | MetaError::Foreign { .. } | MetaError::Io { .. })) => {
                println!("{case}: {error}");
            }
            other => panic!("{case}: {other:?}"),
        }
    }
}

#[test]
fn a_damaged_record_is_refused_and_the_server_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let service = Service::open(&options(dir.path())).unwrap();
        set_up(&service).await;
        for (count, key) in [(1, "damaged-key"), (3, "whole-key")] {
            let put = begun(ask(&service, id(count), begin(key)).await);
            ask(&service, id(count + 1), commit(&put, 5)).await.unwrap();
        }
        service.stop().await;
    });
    let path = dir.path().join("meta.redb");
    let mut content = fs::read(&path).unwrap();
    // In the owner's key inside the segment's record and wherever else the name stands in a value.
    let places: Vec<usize> =
        (0..content.len() - 11).filter(|&at| &content[at..at + 11] == b"damaged-key").collect();
    assert!(!places.is_empty());
    for at in places {
        // Keys of records keep their order; their checksums no longer hold.
        content[at + 10] = b'z';
    }
    fs::write(&path, content).unwrap();
    let service = Service::open(&options(dir.path())).unwrap();
    block_on(async {
        assert!(matches!(lookup(&service, "damaged-kez").await, Err(MetaFault::Store(_))));
        assert!(matches!(lookup(&service, "whole-key").await, Ok(MetaAnswer::Object { .. })));
        assert!(ask(&service, id(9), begin("more")).await.is_ok());
    });
}

/// So many objects, put by many at a time.
async fn put_objects(service: &Arc<Service>, objects: u64) {
    let writers = (0..50).map(|writer| {
        let service = Arc::clone(service);
        tokio::spawn(async move {
            for object in (0..objects).filter(|object| object % 50 == writer) {
                let id = |step| RequestId { client: 99, count: object * 2 + step };
                let put = begun(ask(&service, id(0), begin(&numbered(object))).await);
                ask(&service, id(1), commit(&put, 5)).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

fn numbered(object: u64) -> String {
    format!("object-{object:06}")
}

/// One that keeps next to nothing of its file in memory.
fn small(dir: &std::path::Path) -> MetaOptions {
    MetaOptions { cache_bytes: 16 << 10, ..options(dir) }
}

/// redb takes no request after one that failed. As when a disk cannot read a sector once.
#[test]
fn a_read_that_failed_fails_no_other() {
    const OBJECTS: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let service = Arc::new(Service::open(&options(dir.path())).unwrap());
        set_up(&service).await;
        put_objects(&service, OBJECTS).await;
        service.stop().await;
        drop(service);
        let service = Service::open(&small(dir.path())).unwrap();
        let file = fs::File::options().read(true).write(true).open(dir.path().join("meta.redb")).unwrap();
        let bytes = file.metadata().unwrap().len();
        let kept = bytes / 2;
        let mut half = vec![0; (bytes - kept) as usize];
        for changes in [false, true] {
            file.read_exact_at(&mut half, kept).unwrap();
            file.set_len(kept).unwrap();
            let mut failed = None;
            for object in 0..OBJECTS {
                let key = numbered(object);
                let outcome = match changes {
                    false => lookup(&service, &key).await,
                    true => {
                        let remove = Change::Remove { bucket: support::BUCKET.into(), key };
                        ask(&service, id(object), remove).await
                    }
                };
                if outcome.is_err() {
                    failed = Some((object, outcome));
                    break;
                }
            }
            file.set_len(bytes).unwrap();
            file.write_all_at(&half, kept).unwrap();
            let (first, outcome) = failed.expect("not all of it is in memory");
            assert!(matches!(outcome, Err(MetaFault::Store(_))), "{outcome:?}");
            if changes {
                // A change has it opened again before it is refused, in vain so far: the next one does. There is one a second.
                begun(ask(&service, id(OBJECTS), begin("another")).await);
            }
            for object in first..OBJECTS {
                let found = lookup(&service, &numbered(object)).await;
                assert!(found.is_ok(), "{object}, after {first}: {found:?}");
            }
        }
        service.stop().await;
    });
}

/// As when a disk never reads a sector again: a page that no database wrote is met each time.
#[test]
fn what_cannot_be_read_fails_only_those_that_need_it() {
    const OBJECTS: u64 = 500;
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let service = Arc::new(Service::open(&options(dir.path())).unwrap());
        set_up(&service).await;
        put_objects(&service, OBJECTS).await;
        service.stop().await;
    });
    let path = dir.path().join("meta.redb");
    let whole = fs::read(&path).unwrap();
    let key = format!("data\0{}", numbered(250)).into_bytes();
    let places = (0..whole.len() - key.len()).filter(|&at| whole[at..].starts_with(&key));
    let pages: BTreeSet<usize> = places.map(|at| at / 4096 * 4096).collect();
    block_on(async {
        // Others have it as it was before, or of old in what they do not use; one has its record, and what is beside it.
        let mut found = None;
        for page in pages {
            let mut content = whole.clone();
            // A leaf of the tree as before, for a build that checks itself goes through all of that when it opens a store.
            content[page + 1..page + 4096].fill(0xff);
            fs::write(&path, &content).unwrap();
            let Ok(service) = Service::open(&small(dir.path())) else { continue };
            if matches!(lookup(&service, &numbered(250)).await, Err(MetaFault::Store(_))) {
                found = Some(Arc::new(service));
                break;
            }
        }
        let service = found.expect("it lies somewhere");
        for _ in 0..2 {
            let mut lost = Vec::new();
            for object in 0..OBJECTS {
                match lookup(&service, &numbered(object)).await {
                    Ok(_) => {}
                    Err(MetaFault::Store(_)) => lost.push(object),
                    other => panic!("{other:?}"),
                }
            }
            assert!(lost.contains(&250) && lost.len() < 100, "{lost:?}");
        }
        // Changes in one batch, one of which needs it.
        let changes = (0..64).map(|number| {
            let service = Arc::clone(&service);
            let key = if number == 40 { numbered(250) } else { format!("new-{number}") };
            let change = if number == 40 {
                Change::Remove { bucket: support::BUCKET.into(), key }
            } else {
                begin(&key)
            };
            tokio::spawn(async move { ask(&service, id(10_000 + number), change).await })
        });
        for (number, change) in changes.collect::<Vec<_>>().into_iter().enumerate() {
            let outcome = change.await.unwrap();
            match number {
                40 => assert!(matches!(outcome, Err(MetaFault::Store(_))), "{outcome:?}"),
                _ => drop(begun(outcome)),
            }
        }
        service.stop().await;
    });
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    match Service::open(&options(&file)) {
        Err(error @ MetaError::Io { .. }) => assert!(error.to_string().contains("file"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ended_leases_and_old_answers_go_at_the_tick() {
    let dir = tempfile::tempdir().unwrap();
    let terms = MetaOptions { lease: Duration::ZERO, answers_kept: Duration::ZERO, ..options(dir.path()) };
    let service = Service::open(&terms).unwrap();
    block_on(async {
        set_up(&service).await;
        let put = begun(ask(&service, id(1), begin("a")).await);
        let states = Query::SegmentStates { segments: put.segments.clone(), device: DeviceId(1) };
        assert_eq!(
            query(&service, states.clone()).await,
            Ok(MetaAnswer::SegmentStates(vec![SegmentState::Pending]))
        );
        assert_eq!(ask(&service, id(2), commit(&put, 5)).await, Err(MetaFault::IntentOver(put.intent)));
        service.tick();
        // Queued behind the tick: once answered, the tick is done.
        let renewed = ask(&service, id(3), Change::Renew { intent: put.intent }).await;
        assert_eq!(renewed, Err(MetaFault::IntentOver(put.intent)));
        assert_eq!(query(&service, states).await, Ok(MetaAnswer::SegmentStates(vec![SegmentState::Gone])));
        // Forgotten, so taken for new.
        assert_ne!(begun(ask(&service, id(1), begin("a")).await).intent, put.intent);
    });
}

#[test]
fn expiry_that_is_behind_goes_on_with_each_batch() {
    let dir = tempfile::tempdir().unwrap();
    let terms = MetaOptions { answers_kept: Duration::ZERO, ..options(dir.path()) };
    let service = Arc::new(Service::open(&terms).unwrap());
    block_on(async {
        set_up(&service).await;
        let all: Vec<_> = (0..3000u64)
            .map(|number| {
                let service = Arc::clone(&service);
                tokio::spawn(async move { begun(ask(&service, id(number), begin("k")).await).intent })
            })
            .collect();
        let mut intents = Vec::new();
        for one in all {
            intents.push(one.await.unwrap());
        }
        // One tick starts it; each of these is a batch of its own, and a step of at least a thousand.
        service.tick();
        for number in 3000..3004 {
            begun(ask(&service, id(number), begin("k")).await);
        }
        for number in [0u64, 1500, 2999] {
            let again = begun(ask(&service, id(number), begin("k")).await);
            assert!(!intents.contains(&again.intent), "the answer to request {number} is still kept");
        }
    });
}

#[test]
fn a_refused_change_leaves_nothing_among_others_of_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(Service::open(&options(dir.path())).unwrap());
    block_on(async {
        set_up(&service).await;
        let changes: Vec<_> = (0..200u64)
            .map(|number| {
                let service = Arc::clone(&service);
                // Every other one is refused after it has looked around.
                let change = if number % 2 == 0 {
                    begin(&format!("k{number}"))
                } else {
                    Change::Commit {
                        intent: steadfast_protocol::IntentId(10_000 + number),
                        size: 1,
                        segments: vec![],
                        pledge: Pledge::default(),
                        base: None,
                    }
                };
                tokio::spawn(async move { ask(&service, id(number), change).await })
            })
            .collect();
        let mut intents = Vec::new();
        for (number, change) in changes.into_iter().enumerate() {
            match change.await.unwrap() {
                Ok(MetaAnswer::Begun(begun)) => intents.push(begun.intent),
                Err(MetaFault::IntentOver(_)) => assert_eq!(number % 2, 1),
                other => panic!("{other:?}"),
            }
        }
        intents.sort_unstable();
        intents.dedup();
        assert_eq!(intents.len(), 100);
        assert!(list(&service, "", 10).await.is_empty());
    });
}

/// It is not read from the store each time.
#[test]
fn the_registry_is_as_the_last_change_left_it() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::open(&options(dir.path())).unwrap();
    block_on(async {
        set_up(&service).await;
        let registry = async || match query(&service, Query::Registry).await {
            Ok(MetaAnswer::Registry(registry)) => registry,
            other => panic!("{other:?}"),
        };
        let set = async |count, state, arrivals| {
            let change = Change::SetDeviceState { device: DeviceId(1), state, arrivals };
            ask(&service, id(count), change).await
        };
        assert!(registry().await.standings.is_empty());
        // Begun before the device drains, committed after it is empty.
        let late = begun(ask(&service, id(1), begin("late")).await);
        set(2, DeviceState::Draining, 0).await.unwrap();
        assert_eq!(registry().await.standings.len(), 1);
        let phase = DrainPhase::Over;
        let progress = DrainProgress { devices: vec![DeviceId(1)], phase, ..DrainProgress::default() };
        service.handle(MetaRequest::Drain(progress)).await.unwrap();
        assert_eq!(registry().await.drains[0].progress.phase, DrainPhase::Over);
        ask(&service, id(3), commit(&late, 5)).await.unwrap();
        let after = registry().await;
        assert_eq!((after.standings[0].arrivals, after.drains[0].progress.phase), (1, DrainPhase::Moving));
        set(4, DeviceState::Active, 0).await.unwrap();
        assert!(registry().await.standings.is_empty());
        // What was said of that drain is not said of another.
        set(5, DeviceState::Draining, 0).await.unwrap();
        let again = registry().await;
        assert_eq!((again.standings.len(), again.drains.len()), (1, 0));
        // A device that was given up for lost, and is served all the same.
        let devices = vec![DeviceId(1)];
        let progress = DrainProgress { devices, lost: true, ..DrainProgress::default() };
        service.handle(MetaRequest::Drain(progress)).await.unwrap();
        let lost = registry().await;
        assert!(lost.is_lost(DeviceId(1)));
        let mut records = lost.nodes.iter().map(|node| &node.record);
        let record = records.find(|record| record.devices[0].0 == DeviceId(1)).unwrap().clone();
        ask(&service, id(7), Change::RegisterNode(record)).await.unwrap();
        let back = registry().await;
        assert!(!back.is_lost(DeviceId(1)) && back.standings.len() == 1);
        let mut moved = node(6);
        moved.address = "127.0.0.1:1".to_owned();
        ask(&service, id(6), Change::RegisterNode(moved)).await.unwrap();
        assert_eq!(registry().await.nodes[5].record.address, "127.0.0.1:1");
    });
}

#[test]
fn heartbeats_and_registration_go_together() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::open(&options(dir.path())).unwrap();
    block_on(async {
        let beat = || {
            MetaRequest::Heartbeat(Heartbeat {
                node: NodeId(1),
                devices: vec![],
                activity: Default::default(),
            })
        };
        assert_eq!(service.handle(beat()).await, Ok(MetaAnswer::Heard { registered: false }));
        assert_eq!(ask(&service, id(1), Change::RegisterNode(node(1))).await, Ok(MetaAnswer::Done));
        assert_eq!(service.handle(beat()).await, Ok(MetaAnswer::Heard { registered: true }));
        let Ok(MetaAnswer::Registry(registry)) = query(&service, Query::Registry).await else { panic!() };
        assert_eq!((registry.cluster, registry.nodes.len()), (service.cluster(), 1));
        assert!(registry.nodes[0].alive && registry.nodes[0].silent_ms.is_some());
        let mut foreign = node(2);
        foreign.cluster = Some(ClusterId(1));
        let refused = ask(&service, id(2), Change::RegisterNode(foreign)).await;
        assert_eq!(refused, Err(MetaFault::ForeignCluster { ours: service.cluster(), theirs: ClusterId(1) }));
        // At once, in the same batch or not: a device that a live node has is taken.
        let mut thief = node(3);
        thief.devices = node(1).devices;
        let refused = ask(&service, id(3), Change::RegisterNode(thief)).await;
        assert_eq!(refused, Err(MetaFault::DeviceTaken { device: DeviceId(1), node: NodeId(1) }));
    });
}
