//! One metadata server without a driver: a store in memory, a clock that tests move, request ids by counting.

use core::time::Duration;
use std::collections::BTreeMap;
use steadfast_protocol::{
    ClusterId, DeviceId, Epoch, IndexRanges, IntentId, NodeId, RequestId, SegmentId, Time, Version,
    layout::{
        CodeKind, CodeSpec, Geometry, Holder, ParityGeometry, Piece, REPLICATED_BELOW_BYTES, SegmentLayout,
    },
    message::{
        AmendBase, Change, Freed, MetaAnswer, MetaFault, NodeRecord, ObjectRecord, PutBegun, Query,
        SegmentState,
    },
    meta::{self, Expired, Liveness, MemoryStore, Terms, Txn, View, transact},
    policy::Pledge,
};

pub(crate) const CLUSTER: ClusterId = ClusterId(0xc1);
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(5);

pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) liveness: Liveness,
    pub(crate) now: Time,
    pub(crate) terms: Terms,
    requests: u64,
    /// What amendments began from.
    bases: BTreeMap<IntentId, (Pledge, Vec<SegmentLayout>)>,
}

impl World {
    /// An empty cluster.
    pub(crate) fn empty() -> Self {
        let mut store = MemoryStore::new();
        let (cluster, writes) = transact(&store, |txn| meta::establish(txn, CLUSTER));
        assert_eq!(cluster, Ok(CLUSTER));
        store.apply(writes);
        let now = Time(1_000_000_000_000_000);
        let (liveness, terms) = (Liveness::new(now, DEAD_AFTER), Terms::default());
        Self { store, liveness, now, terms, requests: 0, bases: BTreeMap::new() }
    }

    /// Six nodes of one device each, and a bucket `data` of the default policy.
    pub(crate) fn six() -> Self {
        let mut world = Self::empty();
        for node in 1..=6 {
            assert_eq!(world.register(&node_record(node, &[node])), Ok(MetaAnswer::Done));
        }
        assert_eq!(world.create("data", "rateless"), Ok(MetaAnswer::Done));
        world
    }

    pub(crate) fn next_id(&mut self) -> RequestId {
        self.requests += 1;
        RequestId { client: 7, count: self.requests }
    }

    pub(crate) fn change(&mut self, change: Change) -> Result<MetaAnswer, MetaFault> {
        let id = self.next_id();
        self.change_as(id, &change)
    }

    pub(crate) fn change_as(&mut self, id: RequestId, change: &Change) -> Result<MetaAnswer, MetaFault> {
        let body = |txn: &mut Txn<'_>| meta::change(txn, self.now, &self.terms, &self.liveness, id, change);
        let (answer, writes) = transact(&self.store, body);
        // Re-runnable: the same transaction over the same view gives the same answer and the same writes.
        assert_eq!((&answer, &writes), (&transact(&self.store, body).0, &transact(&self.store, body).1));
        if !meta::needs_liveness(change) {
            let nobody = Liveness::new(Time(0), Duration::ZERO);
            let body = |txn: &mut Txn<'_>| meta::change(txn, self.now, &self.terms, &nobody, id, change);
            assert_eq!((&answer, &writes), (&transact(&self.store, body).0, &transact(&self.store, body).1));
        }
        self.store.apply(writes);
        answer
    }

    pub(crate) fn register(&mut self, record: &NodeRecord) -> Result<MetaAnswer, MetaFault> {
        let answer = self.change(Change::RegisterNode(record.clone()));
        if answer.is_ok() {
            self.liveness.registered(self.now, record.node);
        }
        answer
    }

    pub(crate) fn create(&mut self, bucket: &str, policy: &str) -> Result<MetaAnswer, MetaFault> {
        self.change(Change::CreateBucket { bucket: bucket.into(), policy: policy.parse().unwrap() })
    }

    pub(crate) fn begin(&mut self, key: &str, segments: u32) -> PutBegun {
        match self.change(Change::BeginPut { bucket: "data".into(), key: key.into(), segments }) {
            Ok(MetaAnswer::Begun(begun)) => begun,
            other => panic!("put of {key} did not begin: {other:?}"),
        }
    }

    pub(crate) fn commit(&mut self, begun: &PutBegun, lengths: &[u64]) -> Result<MetaAnswer, MetaFault> {
        self.change(commit_of(begun, lengths))
    }

    pub(crate) fn amend(
        &mut self,
        key: &str,
        base: Version,
        segments: u32,
        rewrites: bool,
    ) -> Result<PutBegun, MetaFault> {
        let (bucket, name) = ("data".into(), key.into());
        match self.change(Change::BeginAmend { bucket, key: name, base, segments, rewrites })? {
            MetaAnswer::Begun(begun) => {
                let (object, layouts) = self.object(key);
                self.bases.insert(begun.intent, (object.pledge, layouts));
                Ok(begun)
            }
            other => panic!("an amendment does not begin with {other:?}"),
        }
    }

    /// Commits these layouts, of an amendment beside what others have done.
    pub(crate) fn commit_layouts(
        &mut self,
        begun: &PutBegun,
        segments: &[SegmentLayout],
    ) -> Result<MetaAnswer, MetaFault> {
        let size = segments.iter().map(|layout| layout.length).sum();
        let base =
            self.bases.get(&begun.intent).map(|(pledge, base)| base_of(*pledge, base, segments).into());
        self.change(Change::Commit {
            intent: begun.intent,
            size,
            segments: segments.to_vec(),
            pledge: Pledge::default(),
            base,
        })
    }

    /// An object's record and its layouts.
    pub(crate) fn object(&self, key: &str) -> (ObjectRecord, Vec<SegmentLayout>) {
        match self.lookup(key) {
            Ok(MetaAnswer::Object { object, segments, .. }) => (object, segments),
            other => panic!("no {key}: {other:?}"),
        }
    }

    /// Puts an object of one segment.
    pub(crate) fn put(&mut self, key: &str, length: u64) -> PutBegun {
        let begun = self.begin(key, 1);
        self.commit(&begun, &[length]).unwrap();
        begun
    }

    pub(crate) fn remove(&mut self, key: &str) -> Result<MetaAnswer, MetaFault> {
        self.change(Change::Remove { bucket: "data".into(), key: key.into() })
    }

    pub(crate) fn ask(&self, query: &Query) -> Result<MetaAnswer, MetaFault> {
        meta::ask(&self.store, self.now, &self.liveness, query)
    }

    pub(crate) fn lookup(&self, key: &str) -> Result<MetaAnswer, MetaFault> {
        self.ask(&Query::Lookup { bucket: "data".into(), key: key.into() })
    }

    pub(crate) fn states(&self, segments: &[SegmentId], device: u128) -> Vec<SegmentState> {
        match self.ask(&Query::SegmentStates { segments: segments.to_vec(), device: DeviceId(device) }) {
            Ok(MetaAnswer::SegmentStates(states)) => states,
            other => panic!("no states: {other:?}"),
        }
    }

    /// A restart of the server when its clock says this: only the store stays.
    pub(crate) fn restart(&mut self, at: Time) {
        (self.now, self.terms.started, self.terms.running_since) = (at, at, at);
        self.liveness = Liveness::new(at, DEAD_AFTER);
    }

    /// Damages the record at `key`.
    pub(crate) fn spoil(&mut self, key: &[u8]) {
        let mut value = self.store.get(key).unwrap().expect("there is a record");
        *value.last_mut().unwrap() ^= 1;
        self.store.apply([(key.to_vec(), Some(value))].into());
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    /// One step of expiry.
    pub(crate) fn expire(&mut self) -> Expired {
        let (step, writes) = transact(&self.store, |txn| meta::expire(txn, self.now, &self.terms));
        self.store.apply(writes);
        step.unwrap()
    }

    /// Steps of expiry until nothing is due.
    pub(crate) fn expire_all(&mut self) {
        while self.expire().more {}
    }

    /// Records whose keys begin with `tag`.
    pub(crate) fn records(&self, tag: u8) -> usize {
        self.store.entries().filter(|(key, _)| key.first() == Some(&tag)).count()
    }
}

/// A segment of a writer, each chunk whole on a device, from 1 on.
pub(crate) fn chunked(
    begun: &PutBegun,
    segment: SegmentId,
    shape: ParityGeometry,
    length: u64,
) -> SegmentLayout {
    let holder = |chunk: u32| {
        let device = DeviceId(u128::from(chunk) + 1);
        Holder::whole(device, segment, begun.version, shape.blocks_of(chunk).into())
    };
    SegmentLayout {
        segment,
        version: begun.version,
        epoch: begun.epoch,
        length,
        code: CodeSpec { kind: shape.code(), originals: shape.originals(), seed: 0 },
        block_bytes: shape.block_bytes,
        granule_bytes: shape.geometry().granule_bytes,
        holders: (0..shape.chunks).map(holder).collect(),
    }
}

pub(crate) fn node_record(node: u128, devices: &[u128]) -> NodeRecord {
    NodeRecord {
        node: NodeId(node),
        cluster: None,
        address: format!("127.0.0.1:{}", 7000 + node),
        site: format!("site{}", node % 2),
        devices: devices.iter().map(|&device| (DeviceId(device), 1 << 40)).collect(),
    }
}

/// A layout as a writer makes it: K blocks and half as many again, in turn over the devices 1 to 6.
pub(crate) fn layout(begun: &PutBegun, segment: SegmentId, length: u64) -> SegmentLayout {
    let small = length < REPLICATED_BELOW_BYTES;
    let geometry = if small { Geometry::replicated(length) } else { Geometry::coded(length) };
    let stored = if small { 3 } else { geometry.originals + geometry.originals / 2 };
    let share = |device: u32| (0..stored).filter(|index| index % 6 == device).collect::<IndexRanges>();
    let holders = (0..6).map(|device| holder(begun, segment, device, share(device)));
    SegmentLayout {
        segment,
        version: begun.version,
        epoch: begun.epoch,
        length,
        code: CodeSpec {
            kind: if small { CodeKind::Replicated } else { CodeKind::Mix },
            originals: geometry.originals,
            seed: segment.0,
        },
        block_bytes: geometry.block_bytes,
        granule_bytes: geometry.granule_bytes,
        holders: holders.filter(|holder| holder.count() > 0).collect(),
    }
}

/// What the device after this many holds of a segment of a put.
pub(crate) fn holder(begun: &PutBegun, segment: SegmentId, device: u32, blocks: IndexRanges) -> Holder {
    Holder::whole(DeviceId(u128::from(device) + 1), segment, begun.version, blocks)
}

/// What there is to be freed once these layouts are gone; `epoch` is that of the change where it is later.
pub(crate) fn all_freed<'l>(
    layouts: impl IntoIterator<Item = &'l SegmentLayout>,
    epoch: Epoch,
) -> Vec<Freed> {
    let mut freed = Vec::new();
    for layout in layouts {
        freed.extend(layout.pieces().map(|(device, piece)| Freed {
            device,
            segment: piece.segment,
            keep: IndexRanges::new(),
            epoch: epoch.max(layout.epoch),
        }));
    }
    freed
}

/// Takes a block out of the layout, and its piece and holder where it was the last of them.
pub(crate) fn drop_block(layout: &mut SegmentLayout, index: u32) {
    for holder in &mut layout.holders {
        for piece in &mut holder.pieces {
            piece.blocks.remove(index);
        }
        holder.pieces.retain(|piece| !piece.blocks.is_empty());
    }
    layout.holders.retain(|holder| !holder.pieces.is_empty());
}

/// Lists a block under a new name on a device.
pub(crate) fn add_block(
    layout: &mut SegmentLayout,
    begun: &PutBegun,
    segment: SegmentId,
    device: u128,
    index: u32,
) {
    let (device, version) = (DeviceId(device), begun.version);
    let at = match layout.holders.iter().position(|holder| holder.device == device) {
        Some(at) => at,
        None => {
            layout.holders.push(Holder { device, pieces: Vec::new() });
            layout.holders.len() - 1
        }
    };
    let pieces = &mut layout.holders[at].pieces;
    match pieces.iter_mut().find(|piece| piece.segment == segment) {
        Some(piece) => assert!(piece.blocks.insert(index)),
        None => pieces.push(Piece { segment, version, blocks: [index].into_iter().collect() }),
    }
}

pub(crate) fn commit_of(begun: &PutBegun, lengths: &[u64]) -> Change {
    let segments =
        begun.segments.iter().zip(lengths).map(|(&segment, &length)| layout(begun, segment, length));
    Change::Commit {
        intent: begun.intent,
        size: lengths.iter().sum(),
        segments: segments.collect(),
        pledge: Pledge::default(),
        base: None,
    }
}

/// What an amendment says that was made from these segments and lists those.
pub(crate) fn base_of(pledge: Pledge, base: &[SegmentLayout], segments: &[SegmentLayout]) -> AmendBase {
    let pairs = (0..).zip(base.iter().zip(segments));
    let replaced =
        pairs.filter(|(_, (was, is))| was != is).map(|(position, (was, _))| (position, was.into()));
    AmendBase { pledge, segments: base.len() as u32, replaced: replaced.collect() }
}
