//! Bucket names, keys, policies, listing.

use crate::support::{World, node_record};
use core::time::Duration;
use steadfast_protocol::{
    message::{Change, MetaAnswer, MetaFault, Query},
    meta::names::{check_bucket, check_key},
    policy::{Domain, Parity, ParityCode, ParityUpdate, Policy, Rateless, RatelessCode},
};

#[test]
fn bucket_names_are_taken_and_refused_by_the_rule() {
    for good in ["abc", "a-b", "a.b", "0a0", &"a".repeat(63)] {
        assert_eq!(check_bucket(good), Ok(()), "{good}");
    }
    for (bad, part) in [
        ("", "0 bytes"),
        ("ab", "2 bytes"),
        (&*"a".repeat(64), "64 bytes"),
        ("Abc", "lower-case"),
        ("a_b", "lower-case"),
        ("a/b", "lower-case"),
        ("a\0b", "lower-case"),
        ("bücket", "lower-case"),
        ("-ab", "begin and end"),
        ("ab-", "begin and end"),
        (".ab", "begin and end"),
        ("ab.", "begin and end"),
    ] {
        let error = check_bucket(bad).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("bucket name"), "{bad:?}: {error}");
    }
}

#[test]
fn keys_are_taken_and_refused_by_the_rule() {
    for good in ["a", "a/b", "a b", "...", ".a/b..", "ключ/値", &"k".repeat(1024)] {
        assert_eq!(check_key(good), Ok(()), "{good}");
    }
    for (bad, part) in [
        ("", "0 bytes"),
        (&*"k".repeat(1025), "1025 bytes"),
        ("a\0", "NUL"),
        ("/a", "begin or end"),
        ("a/", "begin or end"),
        ("a//b", "begin or end"),
        (".", "`.`"),
        ("..", "`..`"),
        ("a/../b", "`..`"),
        ("a/.", "`.`"),
    ] {
        let error = check_key(bad).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("valid key"), "{bad:?}: {error}");
        assert!(error.len() < 300, "{error}");
    }
}

#[test]
fn every_request_checks_its_names() {
    let mut world = World::six();
    let before = world.store.clone();
    for (bucket, key) in [("data", "/a"), ("Data", "a")] {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        for change in [
            Change::BeginPut { bucket: bucket.clone(), key: key.clone(), segments: 1 },
            Change::Remove { bucket: bucket.clone(), key: key.clone() },
        ] {
            assert!(matches!(world.change(change), Err(MetaFault::BadName { .. })));
        }
        assert!(matches!(world.ask(&Query::Lookup { bucket, key }), Err(MetaFault::BadName { .. })));
    }
    assert!(matches!(world.create("X", "stripe"), Err(MetaFault::BadName { .. })));
    // Refusals leave their answers and nothing else.
    let kept = |world: &World| [0x01, 0x10, 0x20, 0x30, 0x40, 0x41, 0x42].map(|tag| world.records(tag));
    let after = kept(&world);
    world.store = before;
    assert_eq!(after, kept(&world));
}

#[test]
fn unknown_buckets_and_objects_are_named() {
    let mut world = World::six();
    let begin = Change::BeginPut { bucket: "other".into(), key: "k".into(), segments: 1 };
    assert_eq!(world.change(begin), Err(MetaFault::NoBucket("other".into())));
    let absent = MetaFault::NoObject { bucket: "data".into(), key: "k".into() };
    assert_eq!(world.lookup("k"), Err(absent.clone()));
    assert_eq!(world.remove("k"), Err(absent));
    assert_eq!(world.create("data", "stripe"), Err(MetaFault::BucketExists("data".into())));
    assert!(matches!(world.ask(&Query::Bucket { bucket: "none".into() }), Err(MetaFault::NoBucket(_))));
}

#[test]
fn a_bucket_goes_when_it_is_empty_and_no_put_into_it_is_under_way() {
    let mut world = World::six();
    let remove = |bucket: &str| Change::RemoveBucket { bucket: bucket.to_owned() };
    let gone = || MetaFault::NoBucket("data".into());
    assert_eq!(world.change(remove("none")), Err(MetaFault::NoBucket("none".into())));
    assert!(matches!(world.change(remove("X")), Err(MetaFault::BadName { .. })));
    let begun = world.begin("k", 1);
    world.commit(&begun, &[7]).unwrap();
    // Another's objects are not its own, nor is its name another's.
    world.create("data-2", "stripe").unwrap();
    assert_eq!(world.change(remove("data")), Err(MetaFault::BucketNotEmpty("data".into())));
    assert_eq!(world.change(remove("data-2")), Ok(MetaAnswer::Done));
    let late = world.begin("late", 1);
    world.remove("k").unwrap();
    assert_eq!(world.change(remove("data")), Err(MetaFault::BucketInUse("data".into())));
    // Its lease ends, whether or not anybody looks at it.
    world.pass(world.terms.lease + Duration::from_millis(1));
    let id = world.next_id();
    assert_eq!(world.change_as(id, &remove("data")), Ok(MetaAnswer::Done));
    assert_eq!(world.change_as(id, &remove("data")), Ok(MetaAnswer::Done), "asked again");
    assert_eq!(world.commit(&late, &[7]), Err(MetaFault::IntentOver(late.intent)));
    assert_eq!(world.lookup("k"), Err(gone()));
    assert_eq!(world.change(remove("data")), Err(gone()));
    assert_eq!(world.ask(&Query::Buckets), Ok(MetaAnswer::Buckets(Vec::new())));
    // Its name is free again, and nothing of before is in it.
    world.register(&node_record(1, &[1])).unwrap();
    world.create("data", "stripe").unwrap();
    assert!(matches!(world.lookup("k"), Err(MetaFault::NoObject { .. })));
    // Leases go on where the store was held up; not that of a put that was planned for the bucket before.
    assert!(world.terms.held_up(world.now, world.terms.lease, Duration::from_secs(1)));
    assert_eq!(world.commit(&late, &[7]), Err(MetaFault::IntentOver(late.intent)));
}

#[test]
fn policies_are_refused_where_the_cluster_cannot_meet_them() {
    let mut world = World::six();
    let unmet = |domain: &str, needed, available| {
        Err(MetaFault::PolicyUnmet { domain: domain.to_owned(), needed, available })
    };
    assert_eq!(world.create("b1x", "rateless:tolerate=6"), unmet("nodes", 7, 6));
    assert_eq!(world.create("b2x", "rateless:tolerate=2,domain=site"), unmet("sites", 3, 2));
    assert_eq!(world.create("b3x", "rateless:tolerate=6,domain=device"), unmet("devices", 7, 6));
    assert_eq!(world.create("b4x", "stripe:devices=7"), unmet("devices", 7, 6));
    assert_eq!(world.create("b5x", "rateless:tolerate=1,domain=site"), Ok(MetaAnswer::Done));
    assert_eq!(world.create("b6x", "stripe:devices=6"), Ok(MetaAnswer::Done));
    // A domain for each chunk, not only for those that may be lost.
    assert_eq!(world.create("b9x", "parity:code=rs(7,6)"), unmet("nodes", 7, 6));
    assert_eq!(world.create("b10", "parity:code=rs(6,4)"), Ok(MetaAnswer::Done));
    // Silent nodes do not count.
    world.pass(Duration::from_secs(60));
    assert_eq!(world.create("b7x", "rateless"), unmet("nodes", 3, 0));
    assert_eq!(World::empty().create("b8x", "stripe"), {
        // Nobody registered: none available whatever the grace.
        unmet("devices", 1, 0)
    });
}

#[test]
fn policies_off_the_wire_are_within_the_bounds_of_their_text() {
    let mut world = World::six();
    let base = Rateless::default();
    for policy in [
        Rateless { redundancy: f64::NAN, ..base },
        Rateless { redundancy: -1.0, ..base },
        Rateless { redundancy: f64::INFINITY, ..base },
        Rateless { tolerate: u32::MAX, ..base },
        Rateless { devices: Some(0), ..base },
        Rateless { domain: Domain::Site, code: RatelessCode::Lt { c: 0.0, delta: 0.5 }, ..base },
        Rateless { code: RatelessCode::Lt { c: 1.0, delta: f64::NAN }, ..base },
    ] {
        let change = Change::CreateBucket { bucket: "new".into(), policy: Policy::Rateless(policy) };
        assert!(matches!(world.change(change), Err(MetaFault::Invalid(_))), "{policy:?}");
    }
    let base = Parity::default();
    let code = |chunks, data| ParityCode::ReedSolomon { chunks, data };
    for policy in [
        Parity { code: code(4, 0), ..base },
        Parity { code: code(4, 5), ..base },
        Parity { code: code(u32::MAX, 1), ..base },
        Parity { segment_bytes: 0, ..base },
        Parity { segment_bytes: u64::MAX, ..base },
        Parity { reserve_bytes: Some(5), ..base },
        Parity { reserve_bytes: Some(0), update: ParityUpdate::Fo, ..base },
    ] {
        let change = Change::CreateBucket { bucket: "new".into(), policy: Policy::Parity(policy) };
        assert!(matches!(world.change(change), Err(MetaFault::Invalid(_))), "{policy:?}");
    }
}

#[test]
fn a_listing_goes_in_byte_order_by_pages() {
    let mut world = World::six();
    for key in ["b", "a/2", "a/10", "a", "aa", "é", "a/1", "z/z"] {
        world.put(key, 10);
    }
    let page = |prefix: &str, after: Option<&str>, limit| {
        let query =
            Query::List { bucket: "data".into(), prefix: prefix.into(), after: after.map(Into::into), limit };
        match world.ask(&query) {
            Ok(MetaAnswer::Page { objects, more }) => {
                (objects.into_iter().map(|object| object.key).collect::<Vec<_>>(), more)
            }
            other => panic!("{other:?}"),
        }
    };
    let keys = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>();
    assert_eq!(page("", None, 1000), (keys(&["a", "a/1", "a/10", "a/2", "aa", "b", "z/z", "é"]), false));
    assert_eq!(page("", None, 8), (keys(&["a", "a/1", "a/10", "a/2", "aa", "b", "z/z", "é"]), false));
    assert_eq!(page("", Some("a/10"), 2), (keys(&["a/2", "aa"]), true));
    assert_eq!(page("a/", None, 1000), (keys(&["a/1", "a/10", "a/2"]), false));
    assert_eq!(page("a/", Some("a"), 1), (keys(&["a/1"]), true));
    assert_eq!(page("a/", Some("a/2"), 9), (keys(&[]), false));
    assert_eq!(page("a/", Some("b"), 9), (keys(&[]), false));
    assert_eq!(page("é", None, 9), (keys(&["é"]), false));
    assert_eq!(page("none", None, 9), (keys(&[]), false));
    for (prefix, after, limit) in
        [("", None, 0), (&*"p".repeat(1025), None, 1), ("", Some("p".repeat(1025)), 1)]
    {
        let query = Query::List { bucket: "data".into(), prefix: prefix.into(), after, limit };
        assert!(matches!(world.ask(&query), Err(MetaFault::Invalid(_))));
    }
}

#[test]
fn buckets_do_not_see_each_other() {
    let mut world = World::six();
    // Names of which one begins with the other.
    assert_eq!(world.create("data.x", "stripe"), Ok(MetaAnswer::Done));
    world.put("x", 1);
    let query = Query::List { bucket: "data.x".into(), prefix: String::new(), after: None, limit: 10 };
    assert_eq!(world.ask(&query), Ok(MetaAnswer::Page { objects: vec![], more: false }));
    match world.ask(&Query::Buckets) {
        Ok(MetaAnswer::Buckets(buckets)) => {
            assert_eq!(buckets.iter().map(|bucket| &*bucket.name).collect::<Vec<_>>(), ["data", "data.x"]);
        }
        other => panic!("{other:?}"),
    }
}
