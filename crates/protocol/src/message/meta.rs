//! Messages of the metadata server. Every request that changes something carries a [`RequestId`], stored with the
//! change: asked again after a lost answer it gives the same answer (a time-out means *unknown*).

use super::{
    AccessTotals, DeviceState, DrainProgress, DrainState, Held, Holding, NodeActivity, Standing,
    node::DeviceReport,
};
use crate::{
    ClusterId, DeviceId, Epoch, IndexRanges, IntentId, NodeId, RequestId, SegmentId, Time, Version,
    layout::SegmentLayout,
    policy::{Pledge, Policy},
    words::counted_of,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most missing devices that a [`Registry`] names.
pub const MISSING_SHOWN_MAX: usize = 256;
/// The most devices that one [`Query::RemovedDevices`] asks about.
pub const REMOVED_MAX: usize = 1024;
/// The most segments that an [`AmendBase`] lists: with those of as many layouts as an object can have they fit into one request.
pub const REPLACED_MAX: usize = 8192;
/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// The longest bucket name in bytes.
pub const BUCKET_BYTES_MAX: usize = 63;
/// The most entries one page of a listing has.
pub const LIST_PAGE_MAX: u32 = 1000;
/// The most segments one [`Query::SegmentStates`] asks about.
pub const SEGMENT_STATES_MAX: usize = 1024;
/// Once an answer to [`Query::SegmentStates`] has states of so many bytes, it says [`SegmentState::Pending`] of the rest: one
/// more, which may take as many as a whole layout, and that still fit into it.
pub const SEGMENT_STATES_BYTES_MAX: usize = 192 << 10;

/// What a stream to the metadata server asks; the body of its OPEN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MetaRequest {
    /// Changes something, exactly once for each id.
    Change {
        /// Names the request for good.
        id: RequestId,
        /// What to change.
        change: Change,
    },
    /// Changes nothing.
    Ask(Query),
    /// A storage server's sign of life; changes only what is measured.
    Heartbeat(Heartbeat),
    /// What a client did since it last said; changes only what is counted. Answered by [`MetaAnswer::Done`].
    Account(AccessTotals),
    /// How far a drain is; changes only what is shown. Answered by [`MetaAnswer::Done`].
    Drain(DrainProgress),
}

/// Requests that change metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// Makes a bucket. Refused with [`MetaFault::PolicyUnmet`] where the cluster cannot meet its policy.
    CreateBucket {
        /// Its name.
        bucket: String,
        /// Its policy.
        policy: Policy,
    },
    /// Begins a put: names a version and segments, and keeps them until the lease ends.
    BeginPut {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// How many segments to name now.
        segments: u32,
    },
    /// Names more segments for a put that has begun.
    MoreSegments {
        /// The put.
        intent: IntentId,
        /// How many.
        segments: u32,
    },
    /// Keeps a put's lease alive.
    Renew {
        /// The put.
        intent: IntentId,
    },
    /// Makes the version of a put or an amendment visible, whole, in place of the one before.
    Commit {
        /// The put or amendment.
        intent: IntentId,
        /// Bytes in the object.
        size: u64,
        /// Its segments in order, confirmed blocks only.
        segments: Vec<SegmentLayout>,
        /// What it promises beyond its bucket; an amendment's comes on top of what the object promises already.
        pledge: Pledge,
        /// What an amendment was made from: where others have changed the object since, it is committed beside what they did, as far as
        /// that was in other places. None for a put, which needs nothing of what it replaces.
        base: Option<Box<AmendBase>>,
    },
    /// Gives a put up, or an amendment of which it is not known what it has fenced ([`Change::GiveUp`]): any segment may be.
    Abort {
        /// The put or amendment.
        intent: IntentId,
    },
    /// Removes an object.
    Remove {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// Registers a storage server and its devices; done at every start.
    RegisterNode(NodeRecord),
    /// Begins to change an object without rewriting it: names a version and segments for new pieces, like a put; renewed,
    /// committed and aborted like one. The commit lists all segments of the object: unchanged ones as they are, changed
    /// ones under the new epoch with pieces of the base version (as much of them as stays) and new ones. Refused with
    /// [`MetaFault::Conflict`] where the object's version is not `base`, unless it has only grown in place since; and at the commit
    /// where others have changed since what this one changes, or it makes the object shorter and they have changed anything.
    BeginAmend {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// The version it starts from.
        base: Version,
        /// How many segments to name now.
        segments: u32,
        /// Whether the object's bytes change; if not, its [`ObjectRecord::contents`] stay, and readers go on. So they do where the
        /// commit lists all segments as they are but for their epochs.
        rewrites: bool,
    },
    /// Makes a device active or draining, or removes it, which only a draining one can be that holds nothing. Refused
    /// with [`MetaFault::DeviceTook`] where puts have stored on it since the sender looked.
    SetDeviceState {
        /// The device.
        device: DeviceId,
        /// What it is to be.
        state: DeviceState,
        /// [`Standing::arrivals`] as it was when the sender began to look at what the device holds; only for a removal.
        arrivals: u64,
    },
    /// Makes an empty object without segments in a bucket of policy `parity`, where there is none of that key; answered by
    /// [`MetaAnswer::Committed`] with the version that is there now.
    Create {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// Counts bytes in that were written in place behind the end of a file's last segment, whose chunks have room for them:
    /// the same layout with another length, under a new version of the object whose `contents` stay. Refused with
    /// [`MetaFault::Conflict`] where the object's version is not `base`.
    Grow {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// The version whose last segment has the bytes.
        base: Version,
        /// Bytes that the object has with them.
        size: u64,
    },
    /// Removes a bucket without objects, into which no put is under way.
    RemoveBucket {
        /// The bucket.
        bucket: String,
    },
    /// Gives an amendment up that has had nodes refuse changes in place of some segments
    /// ([`NodeRequest::Fence`](super::NodeRequest::Fence)), and of no others. Where the object is the version that it began from, those
    /// are listed under its epoch from then on, so that they can be changed in place again: in another version, whose `contents` stay.
    GiveUp {
        /// The amendment.
        intent: IntentId,
        /// Those segments.
        fenced: Vec<SegmentId>,
    },
}

/// The object that an amendment was made from, as far as it takes to see whether others have changed the same of it since. Positions are
/// those of segments in the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmendBase {
    /// What it promised beyond its bucket.
    pub pledge: Pledge,
    /// How many segments it had; what the amendment lists behind those is new.
    pub segments: u32,
    /// Those that the amendment has changed; at most [`REPLACED_MAX`].
    pub replaced: BTreeMap<u32, ReplacedSegment>,
}

/// A segment that an amendment has changed, as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedSegment {
    /// Its name.
    pub segment: SegmentId,
    /// The epoch it was listed under.
    pub epoch: Epoch,
    /// Bytes that it had.
    pub length: u64,
}

impl From<&SegmentLayout> for ReplacedSegment {
    fn from(layout: &SegmentLayout) -> Self {
        Self { segment: layout.segment, epoch: layout.epoch, length: layout.length }
    }
}

/// Requests that change nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// An object and where its segments lie.
    Lookup {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// A page of keys in byte order.
    List {
        /// The bucket.
        bucket: String,
        /// Only keys that begin so.
        prefix: String,
        /// Only keys after this one.
        after: Option<String>,
        /// At most this many, at most [`LIST_PAGE_MAX`].
        limit: u32,
    },
    /// A bucket.
    Bucket {
        /// Its name.
        bucket: String,
    },
    /// All buckets.
    Buckets,
    /// Storage servers and devices, as last heard of.
    Registry,
    /// What became of segments; at most [`SEGMENT_STATES_MAX`]. Storage servers sweep with this. [`SEGMENT_STATES_BYTES_MAX`]
    /// says where an answer ends: the rest is to be asked about again.
    SegmentStates {
        /// The segments, each once.
        segments: Vec<SegmentId>,
        /// The device that asks.
        device: DeviceId,
    },
    /// Where a coded segment lies. Storage servers that change chunks of it in place ask this.
    Layout {
        /// The segment.
        segment: SegmentId,
    },
    /// A page of the segments that have blocks on some devices, in the order of their names. A bounded look: a page may
    /// be empty and not be the last.
    ObjectsOn {
        /// The devices.
        devices: Vec<DeviceId>,
        /// Only segments after this one.
        after: Option<SegmentId>,
        /// At most this many, at most [`OBJECTS_ON_PAGE_MAX`](super::OBJECTS_ON_PAGE_MAX).
        limit: u32,
    },
    /// What every device holds of the next segments, summed up. A bounded look, like a page of [`Query::ObjectsOn`].
    Holdings {
        /// Only segments after this one.
        after: Option<SegmentId>,
    },
    /// A page of the segments that have fewer chunks than their buckets' codes, in the order of their names.
    Degraded {
        /// Only segments after this one.
        after: Option<SegmentId>,
        /// At most this many, at most [`OBJECTS_ON_PAGE_MAX`](super::OBJECTS_ON_PAGE_MAX).
        limit: u32,
    },
    /// Which devices were removed from the cluster; at most [`REMOVED_MAX`]. A storage server that lacks some asks this.
    RemovedDevices {
        /// Those that are asked about.
        devices: Vec<DeviceId>,
    },
}

/// END from the metadata server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MetaAnswer {
    /// The change is durable and had nothing to say.
    Done,
    /// A put has begun.
    Begun(PutBegun),
    /// More segments were named.
    Segments(Vec<SegmentId>),
    /// A version was committed.
    Committed {
        /// It: that of the put or the amendment, or another where an amendment was committed beside changes of others.
        version: Version,
        /// What the version before it has no more, and what was stored and is not listed, for the client to free; the sweep makes good
        /// what it does not.
        freed: Vec<Freed>,
    },
    /// An object was removed.
    Removed {
        /// Where it lay, for the client to free; the sweep makes good what it does not.
        freed: Vec<Freed>,
    },
    /// An object.
    Object {
        /// Its record.
        object: ObjectRecord,
        /// Its segments in order.
        segments: Vec<SegmentLayout>,
        /// The policy of its bucket, which says how replicas are read.
        policy: Policy,
    },
    /// Where a coded segment lies; absent where no object has it.
    Layout(Option<SegmentLayout>),
    /// A page of a listing.
    Page {
        /// Objects in byte order of their keys.
        objects: Vec<ObjectRecord>,
        /// Whether more follow the last.
        more: bool,
    },
    /// A bucket.
    Bucket(BucketRecord),
    /// All buckets.
    Buckets(Vec<BucketRecord>),
    /// Storage servers and devices.
    Registry(Registry),
    /// What became of segments, in the order asked.
    SegmentStates(Vec<SegmentState>),
    /// A heartbeat was taken, or the node must register (again).
    Heard {
        /// Whether the node is known.
        registered: bool,
    },
    /// Segments that have blocks on the devices asked about; or that are degraded, and what they lack.
    ObjectsOn {
        /// They, in the order of their names.
        held: Vec<Held>,
        /// Where to go on; absent where that was all.
        next: Option<SegmentId>,
    },
    /// What devices hold of the segments looked at.
    Holdings {
        /// By device; those that hold nothing are left out.
        holdings: Vec<Holding>,
        /// Where to go on; absent where that was all.
        next: Option<SegmentId>,
    },
    /// Those of the devices asked about that were removed.
    RemovedDevices(Vec<DeviceId>),
}

/// What a change of layout leaves to be freed on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// The device.
    pub device: DeviceId,
    /// The segment stored there.
    pub segment: SegmentId,
    /// Blocks of it that are still listed: it is to be sealed with these. Deleted whole where there are none.
    pub keep: IndexRanges,
    /// The epoch to do it under.
    pub epoch: Epoch,
}

/// A put or an amendment that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutBegun {
    /// The put.
    pub intent: IntentId,
    /// The version it will make.
    pub version: Version,
    /// The epoch its layouts carry.
    pub epoch: Epoch,
    /// Names for its segments.
    pub segments: Vec<SegmentId>,
    /// The bucket's policy.
    pub policy: Policy,
    /// The put is given up unless renewed or committed within this many milliseconds.
    pub lease_ms: u32,
}

/// An object as listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// Its key.
    pub key: String,
    /// Bytes in it.
    pub size: u64,
    /// Its version; every commit makes another.
    pub version: Version,
    /// The version that last changed bytes that were there: two versions of equal contents read the same, as far as both go.
    pub contents: Version,
    /// When it was committed, by the metadata server's clock (Unix epoch).
    pub committed: Time,
    /// Its segments in order.
    pub segments: Vec<SegmentId>,
    /// What it promises beyond its bucket.
    pub pledge: Pledge,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// Its name.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// When it was made, by the metadata server's clock (Unix epoch).
    pub created: Time,
}

/// A storage server as it registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: NodeId,
    /// The cluster its devices were formatted for; absent when all are new.
    pub cluster: Option<ClusterId>,
    /// Where it listens (`host:port`).
    pub address: String,
    /// Its site, for buckets that spread over sites.
    pub site: String,
    /// Its devices and their capacities in bytes.
    pub devices: Vec<(DeviceId, u64)>,
}

/// A storage server's sign of life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The node.
    pub node: NodeId,
    /// Its devices, measured.
    pub devices: Vec<DeviceReport>,
    /// What it did, for whoever watches.
    pub activity: NodeActivity,
}

/// What the metadata server knows of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Registry {
    /// The cluster.
    pub cluster: ClusterId,
    /// Every registered storage server.
    pub nodes: Vec<NodeState>,
    /// Where the metadata server's admin port listens (`host:port`), if it has one.
    pub admin: Option<String>,
    /// What clients did since the metadata server started, as far as they said.
    pub accesses: AccessTotals,
    /// Registered devices that are draining.
    pub standings: Vec<Standing>,
    /// Drains of those, as far as their clients said since the metadata server started.
    pub drains: Vec<DrainState>,
    /// Devices that no node registers any more and that were not removed, the first [`MISSING_SHOWN_MAX`] of them, and the node that was
    /// the last to register each. They may hold data.
    pub missing: Vec<(DeviceId, NodeId)>,
}

impl Registry {
    /// What a registered device is to do.
    pub fn state(&self, device: DeviceId) -> DeviceState {
        let draining = self.standings.iter().any(|standing| standing.device == device);
        if draining { DeviceState::Draining } else { DeviceState::Active }
    }

    /// The drain that a registered device is in, if one was heard of.
    pub fn drain(&self, device: DeviceId) -> Option<&DrainState> {
        self.drains.iter().find(|drain| drain.progress.devices.contains(&device))
    }

    /// Whether somebody has said that a device does not come back.
    pub fn is_lost(&self, device: DeviceId) -> bool {
        self.drain(device).is_some_and(|drain| drain.progress.lost)
    }
}

/// A registered storage server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    /// As it registered.
    pub record: NodeRecord,
    /// Whether it was heard of lately.
    pub alive: bool,
    /// Milliseconds since it was last heard of; absent if not since the metadata server started.
    pub silent_ms: Option<u64>,
    /// Its devices as last measured.
    pub devices: Vec<DeviceReport>,
    /// What it did since it started, for whoever watches.
    pub activity: NodeActivity,
}

/// What became of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentState {
    /// Its put may still commit; or nobody can say now.
    Pending,
    /// It is part of an object; the asking device is to keep these blocks.
    Committed {
        /// Blocks the layout lists on that device.
        keep: IndexRanges,
        /// The layout's epoch.
        epoch: Epoch,
    },
    /// No object has it and none ever will.
    Gone,
}

/// Why the metadata server could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum MetaFault {
    /// A name that is not allowed.
    #[error("{name:?} is not a valid {what}: {reason}")]
    BadName {
        /// `bucket name` or `key`.
        what: String,
        /// As given, shortened.
        name: String,
        /// The rule it breaks.
        reason: String,
    },
    /// No such bucket.
    #[error("no bucket named {0:?}; `steadfast bucket create` makes one")]
    NoBucket(String),
    /// The bucket exists already.
    #[error("bucket {0:?} exists already")]
    BucketExists(String),
    /// No such object.
    #[error("no object {key:?} in bucket {bucket:?}")]
    NoObject {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// The cluster has too few failure domains or devices for the policy.
    #[error("policy needs {} but the cluster has {available}: {} missing", counted_of(*needed, domain), needed.saturating_sub(*available))]
    PolicyUnmet {
        /// `nodes`, `devices` or `sites`.
        domain: String,
        /// How many the policy needs.
        needed: u32,
        /// How many there are.
        available: u32,
    },
    /// The put was given up: its lease ended, or it was aborted or committed before.
    #[error("put {0} is over: its lease ended or it was given up; begin again")]
    IntentOver(IntentId),
    /// A layout that cannot be committed.
    #[error("layout refused: {0}")]
    BadLayout(String),
    /// A node of another cluster.
    #[error("this is cluster {ours}, the device belongs to cluster {theirs}")]
    ForeignCluster {
        /// This cluster.
        ours: ClusterId,
        /// The device's.
        theirs: ClusterId,
    },
    /// A device is registered by another live node.
    #[error(
        "device {device} is served by storage server {node}: stop that, or start one of them without the disk"
    )]
    DeviceTaken {
        /// The device.
        device: DeviceId,
        /// The node that serves it.
        node: NodeId,
    },
    /// A request outside its limits.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The server's own store failed.
    #[error("the metadata store failed: {0}")]
    Store(String),
    /// An amendment of an object that is another by now.
    #[error("{bucket}/{key} changed since version {base} ({}): read it again", match current {
        Some(current) => format!("it is version {current} now"),
        None => "it was removed".to_owned(),
    })]
    Conflict {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// The version it was to start from.
        base: Version,
        /// The object's version; absent where it was removed.
        current: Option<Version>,
    },
    /// No device of this name is registered.
    #[error("no device {0} is registered; `steadfast device ls` names them")]
    NoDevice(DeviceId),
    /// A device that was removed for good.
    #[error(
        "device {0} was removed from the cluster and what it held lies elsewhere; to use the disk again, empty its \
         directory and add it anew with `steadfast device add`"
    )]
    DeviceRemoved(DeviceId),
    /// A device that cannot be removed as it is.
    #[error(
        "device {0} takes data: `steadfast device drain {0}` moves what it holds, then it can be removed"
    )]
    DeviceActive(DeviceId),
    /// A put that had chosen a draining device has stored on it since the sender looked, or it was active for a while.
    #[error("device {device} took data since: look again (late puts counted: {arrivals})")]
    DeviceTook {
        /// The device.
        device: DeviceId,
        /// [`Standing::arrivals`] now.
        arrivals: u64,
    },
    /// A bucket that has objects is not removed.
    #[error("bucket {0:?} has objects: `steadfast ls {0}` lists them, `steadfast rm` removes each")]
    BucketNotEmpty(String),
    /// Nor one into which puts are under way.
    #[error("puts into bucket {0:?} are under way: try again once they are over")]
    BucketInUse(String),
    /// A live storage server of this name serves other devices, elsewhere.
    #[error(
        "storage server {node} is up at {address} and serves device {device} besides: was a disk of it moved here? Start it again \
         without that disk, and this one with `--rename`"
    )]
    NodeTaken {
        /// Their name.
        node: NodeId,
        /// Where the live one listens.
        address: String,
        /// A device that it alone serves.
        device: DeviceId,
    },
}
