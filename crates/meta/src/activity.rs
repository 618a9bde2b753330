//! What a metadata server did since it started: requests by kind and outcome, and how long they took.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use steadfast_admin::{Histogram, Page};
use steadfast_protocol::message::{Change, MetaAnswer, MetaFault, MetaRequest, Query};

/// Counts of requests.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// By kind and outcome.
    requests: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    changes: Histogram,
    queries: Histogram,
    heartbeats: Histogram,
}

/// What a request is, before it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    class: Class,
    kind: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Change,
    Query,
    Heartbeat,
}

impl Name {
    pub(crate) fn of(request: &MetaRequest) -> Self {
        let (class, kind) = match request {
            MetaRequest::Change { change, .. } => (Class::Change, change_name(change)),
            MetaRequest::Ask(query) => (Class::Query, query_name(query)),
            MetaRequest::Heartbeat(_) => (Class::Heartbeat, "heartbeat"),
            MetaRequest::Account(_) => (Class::Heartbeat, "account"),
            MetaRequest::Drain(_) => (Class::Heartbeat, "drain"),
        };
        Self { class, kind }
    }
}

fn change_name(change: &Change) -> &'static str {
    match change {
        Change::CreateBucket { .. } => "create_bucket",
        Change::BeginPut { .. } => "begin_put",
        Change::MoreSegments { .. } => "more_segments",
        Change::Renew { .. } => "renew",
        Change::Commit { .. } => "commit",
        Change::Abort { .. } => "abort",
        Change::Remove { .. } => "remove",
        Change::RegisterNode(_) => "register_node",
        Change::BeginAmend { .. } => "begin_amend",
        Change::SetDeviceState { .. } => "set_device_state",
        Change::Create { .. } => "create",
        Change::Grow { .. } => "grow",
        Change::RemoveBucket { .. } => "remove_bucket",
        Change::GiveUp { .. } => "give_up",
    }
}

fn query_name(query: &Query) -> &'static str {
    match query {
        Query::Lookup { .. } => "lookup",
        Query::List { .. } => "list",
        Query::Bucket { .. } => "bucket",
        Query::Buckets => "buckets",
        Query::Registry => "registry",
        Query::SegmentStates { .. } => "segment_states",
        Query::Layout { .. } => "layout",
        Query::ObjectsOn { .. } => "objects_on",
        Query::Holdings { .. } => "holdings",
        Query::Degraded { .. } => "degraded",
        Query::RemovedDevices { .. } => "removed_devices",
    }
}

impl Activity {
    /// A request was answered.
    pub(crate) fn answered(&self, name: Name, outcome: &Result<MetaAnswer, MetaFault>, took: Duration) {
        let outcome = match outcome {
            Ok(_) => "ok",
            Err(MetaFault::Store(_)) => "failed",
            Err(_) => "refused",
        };
        *self
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry((name.kind, outcome))
            .or_default() += 1;
        let histogram = match name.class {
            Class::Change => &self.changes,
            Class::Query => &self.queries,
            Class::Heartbeat => &self.heartbeats,
        };
        histogram.observe(took);
    }

    pub(crate) fn show(&self, page: &mut Page) {
        let requests = page.counter("meta_requests", "Requests answered, by kind and outcome");
        for (&(kind, outcome), &count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter()
        {
            requests.whole(&[("kind", kind), ("outcome", outcome)], count);
        }
        let took = page.histogram("meta_request_seconds", "From a request's arrival to its answer");
        took.durations(&[("class", "change")], &self.changes);
        took.durations(&[("class", "query")], &self.queries);
        took.durations(&[("class", "heartbeat")], &self.heartbeats);
    }
}
