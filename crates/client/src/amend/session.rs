//! One amendment of an object: its intent, the blocks it writes, its commit, and what is tidied up after it.

mod made;
mod storing;

use super::{AmendError, AmendReport, fences::Left};
use crate::{
    Client, ClientError, GetError, ObjectStat,
    chunks::Fenced,
    get::SegmentReader,
    lease::{Committing, Lease},
    reserve::{Reading, Reserved, Reserving},
    unexpected,
};
use bytes::{Bytes, BytesMut};
use core::{future::ready, ops::Range, pin::Pin, task::Poll};
use made::Made;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use steadfast_codes::rateless::Code;
use steadfast_protocol::{
    BlockIndex, DeviceId, SegmentId, Version,
    durability::{Need, Rule},
    layout::{CodeKind, Geometry, ParityGeometry, SegmentLayout, Share},
    message::{
        Access, AccessTotals, AmendBase, Change, DeviceHealth, Freed, MetaAnswer, MetaFault, NodeRequest,
        PutBegun, REPLACED_MAX, ReplacedSegment,
    },
    meta::SEGMENTS_PER_REQUEST_MAX,
    plan::{self, Part, Places, PlanError, Quality, Replaced, Scheme, SegmentPlan, Wanted, Wish},
    policy::{Pledge, Policy},
    write::{Given, Target, WriteDone, WriteSpec, ingest::Primaries},
};
use steadfast_transfer::{Maker, Originals, SegmentWriter};

/// Segments named at a time beyond those asked for at the beginning.
const MORE_SEGMENTS: u32 = 4;
/// Segments that are fenced at a time: each takes two questions to the nodes of its chunks. Picked by eye.
const FENCES_AT_A_TIME: usize = 16;

/// An amendment under way. Several segments may be read and written by it at a time.
pub(super) struct Amendment<'a> {
    pub(super) client: &'a Client,
    pub(super) begun: PutBegun,
    /// What it has done so far.
    made: Mutex<Made>,
    primaries: Mutex<Primaries>,
    /// The object's bucket and key.
    object: (String, String),
    /// What it promises beyond its bucket.
    pub(super) pledge: Pledge,
    /// The version it starts from.
    pub(super) base: Version,
    /// Bytes in the object as it is to be.
    pub(super) size: u64,
    /// The object's segments as they are to be.
    pub(super) layouts: Vec<SegmentLayout>,
    /// What is wished for, and what the object promises.
    pub(super) wish: Wish,
    /// What is wished for.
    asked: Quality,
    pub(super) reserved: Arc<Reserved>,
    /// The object's segments as they were found.
    pub(super) found: Vec<SegmentLayout>,
    /// Where segments are noted that it has fenced, if it fails.
    left: &'a Left<'a>,
    /// Devices that do not come back, as who makes this knows, beside those of which the registry says so: what they had is not waited for.
    pub(super) gone: BTreeSet<DeviceId>,
    committing: Committing,
    /// Nothing is to be given up any more.
    is_over: bool,
}

/// What blocks are made from.
pub(super) enum Contents {
    /// All that are to be written are here; others cannot be made.
    Blocks(BTreeMap<BlockIndex, Bytes>),
    /// Any can be made.
    Originals(Arc<Originals>),
}

/// A segment's blocks that were written, under which name.
pub(super) struct Written {
    pub(super) name: SegmentId,
    pub(super) shares: Vec<Share>,
}

impl<'a> Amendment<'a> {
    /// Begins to amend an object as found; `segments` of it will be (more names are asked for as they are used). `wish` is for `length`
    /// bytes; what the object promises is wished for, too. What it has fenced when it fails may be `left` so.
    pub(super) async fn begin(
        client: &'a Client,
        left: &'a Left<'a>,
        (bucket, key): (&str, &str),
        found: ObjectStat,
        (segments, rewrites): (usize, bool),
        (wish, length): (Wish, u64),
    ) -> Result<Self, AmendError> {
        let begin = Change::BeginAmend {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            base: found.object.version,
            segments: u32::try_from(segments).unwrap_or(u32::MAX).min(SEGMENTS_PER_REQUEST_MAX),
            rewrites,
        };
        let begun = match client.metadata.change(begin).await? {
            MetaAnswer::Begun(begun) => begun,
            other => return Err(unexpected("Begun", &other).into()),
        };
        let report = AmendReport {
            version: begun.version,
            originals: found.segments.iter().map(|layout| layout.code.originals).sum(),
            stored_before: found.segments.iter().map(SegmentLayout::stored_blocks).sum(),
            ..AmendReport::default()
        };
        let names = begun.segments.clone().into();
        Ok(Self {
            client,
            begun,
            made: Mutex::new(Made { names, report, ..Made::default() }),
            primaries: Mutex::default(),
            object: (bucket.to_owned(), key.to_owned()),
            base: found.object.version,
            size: found.object.size,
            pledge: found.object.pledge,
            found: found.segments.clone(),
            layouts: found.segments,
            wish: Wish { quality: wish.quality.under(client.to_be_had(found.object.pledge)), ..wish },
            asked: wish.quality,
            reserved: Reserved::new(client, Access::Write, wish.quality, length),
            left,
            gone: BTreeSet::new(),
            committing: Committing::default(),
            is_over: false,
        })
    }

    /// The object's bucket and key.
    pub(super) fn object(&self) -> &(String, String) {
        &self.object
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the report.
    pub(super) fn count(&self, add: impl FnOnce(&mut AmendReport)) {
        add(&mut self.made().report);
    }

    /// Runs `work` under the lease, commits and tidies up; gives everything up where that fails, and where `work` says
    /// that there was nothing to do.
    pub(super) async fn finish(
        mut self,
        start: Instant,
        work: impl AsyncFnOnce(&mut Self) -> Result<bool, AmendError>,
    ) -> Result<AmendReport, AmendError> {
        let lease = self.lease();
        let committing = async {
            self.take_policy()?;
            if work(&mut self).await? { self.commit().await.map(Some) } else { Ok(None) }
        };
        let committed = lease.during(committing).await;
        self.end(start, committed).await
    }

    /// What keeps it alive while it is made.
    pub(super) fn lease(&self) -> Lease<'a> {
        Lease {
            client: self.client,
            intent: self.begun.intent,
            lease_ms: self.begun.lease_ms,
            reserved: Arc::clone(&self.reserved),
            committing: self.committing.clone(),
        }
    }

    /// Takes what is wished for into the policy that it is made by.
    ///
    /// # Errors
    /// For a wish that the bucket has not, also where the object promises more.
    pub(super) fn take_policy(&mut self) -> Result<(), PlanError> {
        self.asked.policy(&self.begun.policy)?;
        self.begun.policy = self.wish.quality.policy(&self.begun.policy)?;
        Ok(())
    }

    /// Tidies up after it was committed, or after there was nothing to do; gives everything up where it failed.
    pub(super) async fn end(
        mut self,
        start: Instant,
        committed: Result<Option<Vec<Freed>>, AmendError>,
    ) -> Result<AmendReport, AmendError> {
        self.reserved.give_back();
        let (latency, sent_bytes) = (start.elapsed(), self.made().sent_bytes);
        let stored_after = self.layouts.iter().map(SegmentLayout::stored_blocks).sum();
        let report = AmendReport { latency, stored_after, ..self.made().report };
        match committed {
            Ok(Some(freed)) => {
                self.is_over = true;
                self.left.committed(&self.layouts);
                self.tidy(freed);
                self.client.account(&AccessTotals {
                    amends: 1,
                    amend_received_bytes: report.read_bytes,
                    amend_sent_bytes: sent_bytes,
                    ..AccessTotals::default()
                });
                Ok(report)
            }
            Ok(None) => {
                self.give_up().await;
                Ok(AmendReport { version: self.base, ..report })
            }
            Err(error) => {
                let error = match error {
                    AmendError::Metadata(ClientError::Refused(MetaFault::IntentOver(_)))
                        if !self.committing.has_begun() =>
                    {
                        AmendError::LeaseOver
                    }
                    error => self.unless_overtaken(error).await,
                };
                let asked = |error: &AmendError| matches!(error, AmendError::Metadata(error) if error.leaves_unknown());
                // Of one that may be there nothing is freed, and what it has fenced is opened again with the end of its lease.
                if self.committing.has_begun() && asked(&error) {
                    self.is_over = true;
                } else {
                    self.left.add(&self.made().fenced, self.begun.epoch);
                    self.give_up().await;
                    if let AmendError::LacksChanges { segment, .. } = &error {
                        self.level(*segment);
                    }
                }
                Err(error)
            }
        }
    }

    /// Has chunks brought forward that lack changes, as far as anybody answers who has those: no node begins with that by a fence, and
    /// they are read by nobody. In vain before the segment is open again.
    fn level(&self, segment: SegmentId) {
        let level = |device| (device, NodeRequest::Level { device, segment }, self.begun.epoch);
        self.client.tell_all(self.ended(segment).outdated.into_iter().map(level).collect());
    }

    /// Ends it without a version of its own, behind whoever waits for that: what was fenced is listed as it was under its epoch, so that it
    /// can be changed in place again, unless another writer was first.
    fn give_up(&mut self) -> impl Future<Output = ()> + use<> {
        self.end_then(ready(()))
    }

    /// The same; then this is done.
    fn end_then<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        following: F,
    ) -> impl Future<Output = ()> + use<F> {
        self.is_over = true;
        let made = self.made();
        let fenced = made.fenced.iter().copied().collect();
        let ending = Change::GiveUp { intent: self.begun.intent, fenced };
        self.client.give_up(ending, self.begun.epoch, &made.touched, following)
    }

    /// How a segment is read since it was fenced.
    fn ended(&self, segment: SegmentId) -> Fenced {
        self.made().ended.get(&segment).cloned().unwrap_or_default()
    }

    /// The error, or that another writer was first, where that explains it: what was to be read may have been replaced meanwhile. Asked
    /// before a version of our own tells the same ([`Self::give_up`]).
    async fn unless_overtaken(&self, error: AmendError) -> AmendError {
        if !matches!(error, AmendError::Read(_) | AmendError::LacksChanges { .. }) {
            return error;
        }
        let (bucket, key) = self.object();
        match self.client.stat(bucket, key).await {
            // A growth in place is another version, and nothing of what was to be read.
            Ok(now) if only_grown(&self.found, &now.segments) => error,
            Ok(now) => {
                let (bucket, key) = self.object.clone();
                let current = Some(now.object.version);
                ClientError::Refused(MetaFault::Conflict { bucket, key, base: self.base, current }).into()
            }
            Err(error) => error.into(),
        }
    }

    pub(super) async fn commit(&mut self) -> Result<Vec<Freed>, AmendError> {
        self.committing.begin();
        let commit = Change::Commit {
            intent: self.begun.intent,
            size: self.size,
            segments: self.layouts.clone(),
            pledge: Pledge::default(),
            base: self.made_from(),
        };
        match self.client.metadata.change_under(self.begun.lease_ms, commit).await? {
            MetaAnswer::Committed { version, freed } => {
                let beside_others = version != self.begun.version;
                self.count(|report| (report.version, report.beside_others) = (version, beside_others));
                Ok(freed)
            }
            other => Err(unexpected("Committed", &other).into()),
        }
    }

    /// What it was made from, by which it is committed where others have changed other segments meanwhile. Nothing where that would be more
    /// than can be told.
    fn made_from(&self) -> Option<Box<AmendBase>> {
        let pairs = (0..).zip(self.found.iter().zip(&self.layouts));
        let replaced =
            pairs.filter(|(_, (was, is))| was != is).map(|(position, (was, _))| (position, was.into()));
        let replaced: BTreeMap<u32, ReplacedSegment> = replaced.collect();
        let segments = u32::try_from(self.found.len()).ok().filter(|_| replaced.len() <= REPLACED_MAX)?;
        Some(AmendBase { pledge: self.pledge, segments, replaced }.into())
    }

    /// Seals what was written, frees what is not listed (any more).
    fn tidy(&self, freed: Vec<Freed>) {
        let made = self.made();
        let mut requests = Vec::new();
        let mut kept = BTreeSet::new();
        let gone = freed.iter().filter(|freed| freed.keep.is_empty()).map(|freed| freed.segment);
        let gone: BTreeSet<SegmentId> = gone.collect();
        for (device, piece) in self.layouts.iter().flat_map(SegmentLayout::pieces) {
            let (segment, keep) = (piece.segment, piece.blocks.clone());
            if made.used.contains(&segment) && !gone.contains(&segment) {
                kept.insert((device, segment));
                requests.push((device, NodeRequest::Seal { device, segment, keep }, self.begun.epoch));
            }
        }
        for &(device, segment) in made.touched.difference(&kept) {
            requests.push((device, NodeRequest::Delete { device, segment }, self.begun.epoch));
        }
        self.client.tell_all(requests);
        self.client.free(freed);
    }

    /// Holes of a file, as planned, in order.
    pub(super) async fn holes(&self, plans: &[&SegmentPlan]) -> Result<Vec<SegmentLayout>, ClientError> {
        let mut holes = Vec::with_capacity(plans.len());
        for (number, plan) in plans.iter().enumerate() {
            let left = u32::try_from(plans.len() - number).unwrap_or(u32::MAX);
            holes.push(plan.hole((self.name_of(left).await?, self.begun.version, self.begun.epoch)));
        }
        Ok(holes)
    }

    async fn name(&self) -> Result<SegmentId, ClientError> {
        self.name_of(MORE_SEGMENTS).await
    }

    /// A name; so many will be used.
    async fn name_of(&self, segments: u32) -> Result<SegmentId, ClientError> {
        let named = self.made().names.pop_front();
        if let Some(name) = named {
            return Ok(name);
        }
        let segments = segments.min(SEGMENTS_PER_REQUEST_MAX);
        let more = Change::MoreSegments { intent: self.begun.intent, segments };
        match self.client.metadata.change_under(self.begun.lease_ms, more).await? {
            MetaAnswer::Segments(names) => {
                let mut names = names.into_iter();
                let first = names.next();
                self.made().names.extend(names);
                first.ok_or_else(|| ClientError::Protocol("no segment was named".to_owned()))
            }
            other => Err(unexpected("Segments", &other)),
        }
    }

    /// The devices as last heard of, without those to be left.
    pub(super) fn places(&self, leaving: &BTreeSet<DeviceId>, layout: &SegmentLayout) -> Places {
        let candidates = self.client.candidates();
        Places::new(&candidates, (&self.begun.policy, self.pledge.sites), leaving, layout.block_bytes)
    }

    /// Whether a segment of chunks finds devices, as far as is known: asked before it is fenced, as [`Client::check_devices`] says. Where it
    /// does not and somebody who is gone has fenced it, that ends with this amendment: changed in place it needs none.
    ///
    /// # Errors
    /// What is missing.
    pub(super) async fn check_devices(&self, layout: &SegmentLayout) -> Result<(), PlanError> {
        let checked = self.client.check_devices(&self.begun.policy, layout.length, &self.wish);
        if checked.is_err() && self.client.is_fenced(layout, self.begun.epoch).await {
            self.made().fenced.insert(layout.segment);
        }
        checked
    }

    /// Ends changes in place of a segment that is to be replaced, or of which chunks are `leaving`; whether there were any.
    pub(super) async fn fence(
        &self,
        layout: &SegmentLayout,
        leaving: &BTreeSet<DeviceId>,
    ) -> Result<bool, AmendError> {
        self.made().fenced.insert(layout.segment);
        match self.client.fence(layout, self.begun.epoch, leaving).await {
            Some(mut ended) => {
                let is_gone = |device: &DeviceId| self.gone.contains(device) || self.client.is_lost(*device);
                ended.awaited.retain(|device| !is_gone(device));
                let shape = ParityGeometry::of_layout(layout);
                let holders = shape.and_then(|shape| shape.updatable(layout)).unwrap_or_default();
                for (chunk, version) in self.left.named(layout.segment, &ended.named) {
                    let device =
                        holders.get(usize::from(chunk)).filter(|device| ended.awaited.contains(device));
                    // It is late only: what it has is not given up for what parity has.
                    if let Some(&device) = device {
                        ended.ahead.insert(chunk, version);
                        ended.ahead_on.insert(device);
                    }
                }
                let changed = ended.changed;
                self.made().ended.insert(layout.segment, ended);
                Ok(changed)
            }
            None => Err(AmendError::Unfenced { segment: layout.segment }),
        }
    }

    /// Ends changes in place of segments that are dropped, some of them at a time: what is acknowledged of them later would be
    /// lost.
    pub(super) async fn fence_dropped(&self, dropped: &[SegmentLayout]) -> Result<(), AmendError> {
        let (client, epoch, none) = (self.client, self.begun.epoch, BTreeSet::new());
        let stored: Vec<&SegmentLayout> = dropped.iter().filter(|layout| !layout.is_hole()).collect();
        for lot in stored.chunks(FENCES_AT_A_TIME) {
            self.made().fenced.extend(lot.iter().map(|layout| layout.segment));
            let fencing = lot.iter().map(|layout| client.fence(layout, epoch, &none)).collect();
            for (layout, fenced) in lot.iter().zip(all(fencing).await) {
                if fenced.is_none() {
                    return Err(AmendError::Unfenced { segment: layout.segment });
                }
            }
        }
        Ok(())
    }

    /// The original blocks of a segment, decoded.
    pub(super) async fn decode(&self, layout: &SegmentLayout) -> Result<Vec<BytesMut>, AmendError> {
        let originals = self.decode_part(layout, 0..layout.length).await?;
        self.count(|report| report.decoded_segments += 1);
        Ok(originals)
    }

    /// The original blocks that hold a part of a segment, which is not empty. What a chunk lacks is given up by storing it so: not while
    /// somebody is awaited who may make up for it.
    pub(super) async fn decode_part(
        &self,
        layout: &SegmentLayout,
        part: Range<u64>,
    ) -> Result<Vec<BytesMut>, AmendError> {
        match self.read_ended(layout, part.clone()).await {
            // One that has changes which parity lacks may be gone since it was fenced. Then it does not name them once more, and parity
            // stands in for it.
            Err(AmendError::Read(GetError::Read(error)))
                if !self.ended(layout.segment).ahead_on.is_empty() =>
            {
                tracing::debug!(segment = %layout.segment, %error, "fenced and read once more");
                // It was changed: all of it is stored anew, whichever chunks leave.
                self.fence(layout, &BTreeSet::new()).await?;
                let Fenced { ahead_on, awaited, .. } = self.ended(layout.segment);
                let (is_ahead, is_late) = (!ahead_on.is_empty(), !ahead_on.is_disjoint(&awaited));
                let (segment, awaited) = (layout.segment, ahead_on.union(&awaited).copied().collect());
                let lacks_changes = AmendError::LacksChanges { segment, awaited };
                if is_late {
                    return Err(lacks_changes);
                }
                match self.read_ended(layout, part).await {
                    Err(AmendError::Read(GetError::Read(_))) if is_ahead => Err(lacks_changes),
                    read => read,
                }
            }
            read => read,
        }
    }

    /// The same, by what its fence has found.
    async fn read_ended(
        &self,
        layout: &SegmentLayout,
        part: Range<u64>,
    ) -> Result<Vec<BytesMut>, AmendError> {
        let segment = layout.segment;
        let Fenced { outdated, awaited, without: excluded, ahead: least, .. } = self.ended(segment);
        let as_it_is = awaited.is_empty();
        let lacks_changes =
            || AmendError::LacksChanges { segment, awaited: awaited.iter().copied().collect() };
        if !outdated.is_empty() {
            if !as_it_is {
                tracing::debug!(%segment, ?outdated, ?awaited, "not read while others may have what these lack");
                return Err(lacks_changes());
            }
            tracing::warn!(%segment, ?outdated, "more chunks lack changes than the others make up for: those changes are lost");
        }
        let (refused, reserved) = (self.made().refused.clone(), Arc::clone(&self.reserved));
        let rule = self.client.options.request;
        let reading = Reading { rule, refused, excluded, as_it_is, ended: true, least, reserved };
        let way = self.client.pool.way(self.client.metadata.address());
        let mut reader = SegmentReader::new(self.client, layout, part, &self.begun.policy, way, &reading)?;
        let read = reader.run().await;
        let originals = match read {
            Err(GetError::Read(error)) if !as_it_is && reader.lacks_changes() => {
                tracing::debug!(%segment, %error, ?awaited, "not decoded while others may have what chunks lack");
                return Err(lacks_changes());
            }
            read => read?,
        };
        self.count(|report| report.read_bytes += reader.received_bytes());
        Ok(originals)
    }

    /// Writes blocks of a segment that is there, until `rule` holds for them and those given; none when a block would be
    /// needed that `contents` do not have.
    pub(super) async fn write(
        &self,
        layout: &SegmentLayout,
        rule: Rule,
        places: &Places,
        given: Given,
        contents: Contents,
    ) -> Result<Option<Written>, AmendError> {
        let code = code(layout)?;
        let refused = self.made().refused.clone();
        let willing = |targets: Vec<Target>| -> Vec<Target> {
            targets.into_iter().filter(|target| !refused.contains(&target.device)).collect()
        };
        let (devices, spares) = places.targets(layout, &given.existing);
        let (devices, spares) = (willing(devices), willing(spares));
        if devices.is_empty() {
            let (needed, available) = (rule.tolerate + 1, 0);
            return Err(PlanError::Unmet { domain: "devices", needed, available }.into());
        }
        let (devices, spares) = plan::only_needed(&given, &Need::new(&code, rule), devices, spares);
        let first_new = given.first_new_index;
        let spec = WriteSpec {
            scheme: match layout.code.kind {
                CodeKind::ReedSolomon { .. } => Scheme::Parity,
                _ => Scheme::Rateless,
            },
            code: code.clone(),
            block_bytes: layout.block_bytes,
            rule,
            domains: places.domains,
            devices,
            spares,
            patience: self.client.options.patience,
            seed: self.client.seed ^ layout.segment.0,
            given,
            fewer: None,
        };
        let geometry = Geometry {
            block_bytes: layout.block_bytes,
            originals: layout.code.originals,
            granule_bytes: layout.granule_bytes,
        };
        let name = self.name().await?;
        let (ready, originals) = match contents {
            Contents::Blocks(ready) => (Some(ready), Originals::none(geometry.originals)),
            Contents::Originals(originals) => (None, originals),
        };
        let version = self.begun.version;
        let maker =
            Maker::new((name, version), geometry, &code, layout.code, originals, rule.redundancy, first_new);
        let maker = Arc::new(match ready {
            Some(ready) => maker.only(ready),
            None => maker,
        });
        let done = tokio::select! {
            biased;
            done = self.run_writer(spec, Arc::clone(&maker), self.begun.policy) => done?,
            () = maker.lacking() => return Ok(None),
        };
        self.wrote(done.pushed_blocks, layout.block_bytes);
        Ok(Some(Written { name, shares: done.holders }))
    }

    /// Counts a segment that the object has no more.
    pub(super) fn dropped(&self, layout: &SegmentLayout) {
        let (blocks, block_bytes) = (layout.stored_blocks(), u64::from(layout.block_bytes));
        self.count(|report| {
            report.dropped_blocks += blocks;
            report.freed_bytes += u64::from(blocks) * block_bytes;
        });
    }

    async fn run_writer(
        &self,
        spec: WriteSpec,
        maker: Arc<Maker>,
        policy: Policy,
    ) -> Result<WriteDone, AmendError> {
        let segment = maker.segment;
        self.made().used.insert(segment);
        let writer = SegmentWriter {
            route: Reserving { client: self.client, reserved: &self.reserved },
            pool: self.client.pool.clone(),
            maker,
            policy,
            epoch: self.begun.epoch,
            intent: self.begun.intent,
        };
        let touch = |device| {
            self.made().touched.insert((device, segment));
        };
        Ok(writer.run(spec, touch, |_| {}, || {}).await?)
    }

    /// So many blocks were written, by this client.
    fn wrote(&self, blocks: u32, block_bytes: u32) {
        let bytes = u64::from(blocks) * u64::from(block_bytes);
        let mut made = self.made();
        made.sent_bytes += bytes;
        made.report.written_blocks += blocks;
        made.report.written_bytes += bytes;
    }

    /// The layout as it is to be: without what is replaced, with what was written.
    pub(super) fn amended(
        &self,
        layout: &SegmentLayout,
        replaced: &Replaced,
        written: &Written,
    ) -> SegmentLayout {
        let dropped = replaced.dropped.count();
        self.count(|report| {
            report.dropped_blocks += dropped;
            report.merged_blocks += replaced.merged.count();
            report.freed_bytes += u64::from(dropped) * u64::from(layout.block_bytes);
        });
        let name = (written.name, self.begun.version);
        plan::amended(layout, self.begun.epoch, &replaced.all(), name, &written.shares)
    }

    /// Has the devices keep the bandwidth wished for, where it is, for a change of `length` bytes that takes `parts`.
    pub(super) async fn keep(&self, parts: &[Part], length: u64, wish: &Wish) -> Result<(), AmendError> {
        let refused = self.client.plan_change(&self.reserved, parts, length, wish).await?;
        self.made().refused = refused;
        Ok(())
    }
}

impl Drop for Amendment<'_> {
    /// One that is dropped half-way is given up all the same, unless it may be there. Nobody begins again then and stores anew what this one
    /// has fenced, or one before it, where another writer was first.
    fn drop(&mut self) {
        if self.is_over || self.committing.has_begun() {
            return;
        }
        self.left.add(&self.made().fenced, self.begun.epoch);
        let reopening = self.left.reopening();
        drop(self.end_then(async {
            if let Some(reopening) = reopening {
                reopening.await;
            }
        }));
    }
}

impl Client {
    /// What an object promises, on as many sites as have a device that takes data.
    pub(super) fn to_be_had(&self, pledge: Pledge) -> Pledge {
        plan::to_be_had(pledge, &self.candidates())
    }

    /// Whether somebody has said that a device does not come back, as last heard of.
    fn is_lost(&self, device: DeviceId) -> bool {
        self.registry.lock().expect("never poisoned: no panic while held").is_lost(device)
    }

    /// The devices as last heard of.
    fn candidates(&self) -> Vec<plan::Candidate> {
        plan::candidates(&self.registry.lock().expect("never poisoned: no panic while held"))
    }

    /// Whether a segment of `length` bytes finds devices, as far as is known: asked before it is fenced, since one that is fenced in vain is
    /// changed in place by nobody for a while, and others find it so.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn check_devices(&self, policy: &Policy, length: u64, wish: &Wish) -> Result<(), PlanError> {
        let wanted = Wanted { policy: *policy, length, bandwidth_bytes_per_s: None, seed: 0 };
        plan::choose_for(&self.candidates(), &wanted, wish).map(drop)
    }

    /// Whether a segment of chunks can be stored so that it tolerates so many failures, as far as is known: none of its devices stalls.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn has_devices_for(
        &self,
        policy: &Policy,
        length: u64,
        tolerate: u32,
    ) -> Result<(), PlanError> {
        let wanted = Wanted { policy: *policy, length, bandwidth_bytes_per_s: None, seed: 0 };
        let mut serving = self.candidates();
        serving.retain(|candidate| candidate.health != DeviceHealth::Stalled);
        plan::choose_for(&serving, &wanted, &tolerating(tolerate)).map(drop)
    }
}

/// Whether these segments are the same but for bytes that the last one has gained.
fn only_grown(before: &[SegmentLayout], now: &[SegmentLayout]) -> bool {
    let (Some((was, others)), Some((is, others_now))) = (before.split_last(), now.split_last()) else {
        return before.is_empty() && now.is_empty();
    };
    others == others_now
        && was.length <= is.length
        && SegmentLayout { length: is.length, ..was.clone() } == *is
}

/// The wish for a segment that tolerates so many failures at least.
pub(super) fn tolerating(tolerate: u32) -> Wish {
    let quality = Quality { tolerate: Some(tolerate), ..Quality::default() };
    Wish { quality, ..Wish::default() }
}

/// The code of a layout.
pub(super) fn code(layout: &SegmentLayout) -> Result<Code, AmendError> {
    let unusable = |detail: String| GetError::Layout { segment: Box::new(layout.clone()), detail };
    layout.code.code().map_err(|error| unusable(error.to_string()).into())
}

/// What all of these come to, in their order; all are under way at once.
async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut waiting: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    core::future::poll_fn(move |context| {
        for (future, done) in waiting.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => Poll::Ready(done.iter_mut().filter_map(Option::take).collect()),
            false => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests;
