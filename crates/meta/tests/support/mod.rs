//! What the tests share: a cluster of six devices, objects of one small segment, and requests by name.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{future::Future, path::Path};
use steadfast_meta::{MetaOptions, Service};
use steadfast_protocol::{
    DeviceId, IndexRanges, NodeId, RequestId,
    layout::{CodeKind, CodeSpec, Holder, SegmentLayout},
    message::{Change, MetaAnswer, MetaFault, MetaRequest, NodeRecord, ObjectRecord, PutBegun, Query},
    policy::Pledge,
};

pub(crate) const BUCKET: &str = "data";

pub(crate) fn options(dir: &Path) -> MetaOptions {
    MetaOptions { cache_bytes: 16 << 20, ..MetaOptions::new(dir, "127.0.0.1:0") }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn node(node: u128) -> NodeRecord {
    NodeRecord {
        node: NodeId(node),
        cluster: None,
        address: format!("127.0.0.1:{}", 7000 + node),
        site: String::new(),
        devices: vec![(DeviceId(node), 1 << 40)],
    }
}

/// Six nodes of a device each, and the bucket.
pub(crate) fn setup() -> Vec<Change> {
    let mut changes: Vec<Change> = (1..=6).map(|number| Change::RegisterNode(node(number))).collect();
    changes.push(Change::CreateBucket { bucket: BUCKET.into(), policy: "rateless".parse().unwrap() });
    changes
}

pub(crate) async fn set_up(service: &Service) {
    for (count, change) in (0..).zip(setup()) {
        assert_eq!(ask(service, RequestId { client: 0, count }, change).await, Ok(MetaAnswer::Done));
    }
}

pub(crate) async fn ask(service: &Service, id: RequestId, change: Change) -> Result<MetaAnswer, MetaFault> {
    service.handle(MetaRequest::Change { id, change }).await
}

pub(crate) async fn query(service: &Service, query: Query) -> Result<MetaAnswer, MetaFault> {
    service.handle(MetaRequest::Ask(query)).await
}

pub(crate) fn begin(key: &str) -> Change {
    Change::BeginPut { bucket: BUCKET.into(), key: key.into(), segments: 1 }
}

/// Three replicas of a small object.
pub(crate) fn commit(begun: &PutBegun, size: u32) -> Change {
    let holder = |index: u32| {
        let blocks = IndexRanges::from(index..index + 1);
        Holder::whole(DeviceId(u128::from(index) + 1), begun.segments[0], begun.version, blocks)
    };
    let layout = SegmentLayout {
        segment: begun.segments[0],
        version: begun.version,
        epoch: begun.epoch,
        length: size.into(),
        code: CodeSpec { kind: CodeKind::Replicated, originals: 1, seed: 0 },
        block_bytes: size.max(1),
        granule_bytes: 4096,
        holders: (0..3).map(holder).collect(),
    };
    Change::Commit {
        intent: begun.intent,
        size: size.into(),
        segments: vec![layout],
        pledge: Pledge::default(),
        base: None,
    }
}

pub(crate) fn begun(answer: Result<MetaAnswer, MetaFault>) -> PutBegun {
    match answer {
        Ok(MetaAnswer::Begun(begun)) => begun,
        other => panic!("the put did not begin: {other:?}"),
    }
}

pub(crate) async fn lookup(service: &Service, key: &str) -> Result<MetaAnswer, MetaFault> {
    query(service, Query::Lookup { bucket: BUCKET.into(), key: key.into() }).await
}

/// All objects, by pages of `limit`.
pub(crate) async fn list(service: &Service, prefix: &str, limit: u32) -> Vec<ObjectRecord> {
    let mut listed: Vec<ObjectRecord> = Vec::new();
    loop {
        let after = listed.last().map(|object| object.key.clone());
        let page = Query::List { bucket: BUCKET.into(), prefix: prefix.into(), after, limit };
        match query(service, page).await {
            Ok(MetaAnswer::Page { objects, more }) => {
                assert!(objects.len() <= limit as usize && (!more || !objects.is_empty()));
                listed.extend(objects);
                if !more {
                    return listed;
                }
            }
            other => panic!("no page: {other:?}"),
        }
    }
}

/// The seed of a randomised test, printed.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed);
    println!("STEADFAST_SEED={seed}");
    seed
}
