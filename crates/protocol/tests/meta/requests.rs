//! Each request takes effect once, and its answer is kept.

use crate::support::{World, commit_of};
use core::time::Duration;
use steadfast_protocol::{
    RequestId,
    message::{Change, MetaAnswer, MetaFault},
    meta::{self, MemoryStore, Txn, View, ViewError},
};

#[test]
fn the_same_id_answers_the_same_and_changes_nothing() {
    let mut world = World::six();
    let begin = Change::BeginPut { bucket: "data".into(), key: "k".into(), segments: 2 };
    let id = world.next_id();
    let first = world.change_as(id, &begin);
    let after = world.store.clone();
    assert_eq!(world.change_as(id, &begin), first);
    assert_eq!(world.store, after);
    let Ok(MetaAnswer::Begun(begun)) = first else { panic!() };
    let commit = commit_of(&begun, &[10, 20]);
    let id = world.next_id();
    let committed = world.change_as(id, &commit);
    assert!(committed.is_ok());
    world.put("k", 5);
    // The put is over and its version replaced, yet the answer stands.
    assert_eq!(world.change_as(id, &commit), committed);
}

#[test]
fn a_refusal_stands_for_its_id_too() {
    let mut world = World::six();
    let remove = Change::Remove { bucket: "data".into(), key: "k".into() };
    let id = world.next_id();
    let refused = world.change_as(id, &remove);
    assert!(matches!(refused, Err(MetaFault::NoObject { .. })));
    world.put("k", 5);
    // A late copy of the refused request must not remove what was put since.
    assert_eq!(world.change_as(id, &remove), refused);
    assert!(world.lookup("k").is_ok());
}

#[test]
fn another_request_under_a_known_id_is_refused_and_the_first_stands() {
    let mut world = World::six();
    let id = world.next_id();
    let begin = |key: &str| Change::BeginPut { bucket: "data".into(), key: key.into(), segments: 1 };
    let first = world.change_as(id, &begin("a"));
    assert!(matches!(world.change_as(id, &begin("b")), Err(MetaFault::Invalid(_))));
    assert_eq!(world.change_as(id, &begin("a")), first);
    let other_client = RequestId { client: 8, ..id };
    assert!(world.change_as(other_client, &begin("b")).is_ok());
}

/// A store that stalls now and then ends no lease meanwhile; answers do not pile up for that.
#[test]
fn answers_are_forgotten_though_the_store_holds_changes_up() {
    let mut world = World::six();
    world.put("k", 5);
    for _ in 0..4 {
        world.pass(world.terms.answers_kept / 3);
        assert!(world.terms.held_up(world.now, world.terms.lease, Duration::from_secs(1)));
    }
    world.expire_all();
    assert_eq!([0x50, 0x51].map(|tag| world.records(tag)), [0; 2]);
}

#[test]
fn answers_are_forgotten_after_their_time_in_bounded_steps() {
    let mut world = World::six();
    world.expire_all();
    let before = world.records(0x50);
    for put in 0..1500 {
        world.begin(&format!("k{put}"), 0);
    }
    assert_eq!(world.records(0x50), before + 1500);
    world.pass(Duration::from_secs(599));
    assert_eq!(world.expire().answers, 0);
    world.pass(Duration::from_secs(1));
    let step = world.expire();
    assert_eq!((step.answers, step.more), (1024, true));
    world.expire_all();
    assert_eq!((world.records(0x50), world.records(0x51)), (0, 0));
}

/// A store that fails at the n-th read.
struct Failing<'s> {
    store: &'s MemoryStore,
    reads_left: core::cell::Cell<u32>,
}

impl Failing<'_> {
    fn read(&self) -> Result<(), ViewError> {
        let left = self.reads_left.get();
        self.reads_left.set(left.saturating_sub(1));
        if left == 0 { Err(ViewError::Failed("planted".into())) } else { Ok(()) }
    }
}

impl View for Failing<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ViewError> {
        self.read()?;
        self.store.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, ViewError> {
        self.read()?;
        self.store.scan(from, to, limit)
    }
}

#[test]
fn a_store_that_fails_at_any_read_gives_a_typed_error_and_no_writes() {
    let mut world = World::six();
    let put = world.put("k", 5);
    let begun = world.begin("k", 1);
    let amend = world.amend("k", put.version, 1, true).unwrap();
    let changes = [
        Change::CreateBucket { bucket: "new".into(), policy: "stripe".parse().unwrap() },
        Change::BeginPut { bucket: "data".into(), key: "x".into(), segments: 3 },
        Change::MoreSegments { intent: begun.intent, segments: 1 },
        Change::Renew { intent: begun.intent },
        commit_of(&begun, &[10]),
        Change::Abort { intent: begun.intent },
        Change::GiveUp { intent: amend.intent, fenced: put.segments },
        Change::Remove { bucket: "data".into(), key: "k".into() },
        Change::RegisterNode(crate::support::node_record(1, &[1, 8])),
    ];
    for change in &changes {
        let id = world.next_id();
        let mut failures = 0;
        for reads in 0.. {
            let store = Failing { store: &world.store, reads_left: reads.into() };
            let mut txn = Txn::new(&store);
            match meta::change(&mut txn, world.now, &world.terms, &world.liveness, id, change) {
                Err(MetaFault::Store(text)) => {
                    assert!(text.contains("planted"));
                    assert!(txn.into_writes().is_empty());
                    failures += 1;
                }
                done => {
                    assert!(done.is_ok(), "{change:?}: {done:?}");
                    break;
                }
            }
        }
        assert!(failures > 0);
    }
}

#[test]
fn damaged_records_give_typed_errors() {
    let mut world = World::six();
    world.put("k", 5);
    let entries: Vec<_> = world.store.entries().map(|(key, value)| (key.clone(), value.clone())).collect();
    for (key, value) in entries.iter().filter(|(_, value)| !value.is_empty()) {
        for damage in [vec![], vec![0xff; 3], value[..value.len() - 1].to_vec()] {
            let mut damaged = world.store.clone();
            damaged.apply([(key.clone(), Some(damage))].into());
            core::mem::swap(&mut world.store, &mut damaged);
            // Whatever is asked: an answer or a typed refusal, never a panic.
            let _ = world.lookup("k");
            let _ = world.remove("k");
            let _ = world.ask(&steadfast_protocol::message::Query::Buckets);
            let _ = world.ask(&steadfast_protocol::message::Query::Registry);
            let _ = world.create("new", "stripe");
            world.pass(Duration::from_secs(700));
            let (_, _) = meta::transact(&world.store, |txn| meta::expire(txn, world.now, &world.terms));
            core::mem::swap(&mut world.store, &mut damaged);
        }
    }
}
