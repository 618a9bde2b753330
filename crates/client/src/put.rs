//! Storing: reads the source, drives the writing cores over TCP, encodes what they ask for, commits, seals.

use crate::{
    Client, PutError,
    feed::{Feed, Ready},
    fresh_seed,
    lease::{Committing, Lease},
    metadata::Metadata,
    reserve::{Reserved, Reserving},
    source::{Pieces, Source},
    tidy,
    turns::{Turn, Turns},
    unexpected,
};
use core::future::ready;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId, Version,
    durability::Rule,
    layout::{CodeSpec, SegmentLayout, Share},
    message::{self, Access, AccessTotals, Change, Freed, MetaAnswer, NodeRequest, PutBegun},
    meta::{LAYOUTS_BYTES_MAX, SEGMENTS_PER_PUT_MAX, SEGMENTS_PER_REQUEST_MAX},
    plan::{self, Dealt, Plan, PlanError, Quality, Scheme, TooLong, Wanted, Wish, file_bytes_max},
    policy::Policy,
    write::{
        Given, WriteSpec,
        ingest::{Offloaded, Primaries, Setback},
    },
};
use steadfast_transfer::{Maker, SegmentWriter};
use tokio::sync::oneshot;

/// How long a put that failed tries to say so; its lease makes good what is late.
const GIVE_UP: Duration = Duration::from_secs(2);

/// What a put took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PutReport {
    /// The version made.
    pub version: Version,
    /// Bytes in the object.
    pub size: u64,
    /// From the call until the version was committed.
    pub latency: Duration,
    /// Payload bytes of the blocks that the layout lists.
    pub stored_bytes: u64,
    /// Payload bytes of all blocks that this client sent.
    pub sent_bytes: u64,
    /// Bytes of the object that a node encoded and distributed.
    pub offloaded_bytes: u64,
    /// Segments with fewer chunks than the bucket promises: too few failure domains served.
    pub degraded_segments: u64,
}

/// How one put differs from others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PutOptions {
    /// What it wants of the cluster; the client's and the bucket's own where it says nothing.
    pub quality: Quality,
}

impl Client {
    /// Stores what `source` gives as an object, visible as a whole once this returns. `size` is the number of bytes,
    /// where it is known: then reading, encoding and sending go on at once.
    ///
    /// # Errors
    /// Nothing is visible then, and the space comes back. But where the commit has no answer that can be understood
    /// ([`Unknown`](crate::ClientError::Unknown), [`Protocol`](crate::ClientError::Protocol)) the whole object may be visible.
    pub async fn put(
        &self,
        bucket: &str,
        key: &str,
        source: impl Source,
        size: Option<u64>,
    ) -> Result<PutReport, PutError> {
        self.put_with(bucket, key, source, size, &PutOptions::default()).await
    }

    /// As [`Client::put`], with wishes of its own.
    ///
    /// # Errors
    /// As there; [`PutError::Plan`] for a wish that the cluster cannot meet, and for any latency where `size` is not known,
    /// [`PutError::Busy`] for one that it cannot meet now.
    pub async fn put_with(
        &self,
        bucket: &str,
        key: &str,
        source: impl Source,
        size: Option<u64>,
        options: &PutOptions,
    ) -> Result<PutReport, PutError> {
        let start = Instant::now();
        let quality = options.quality.or(self.options.quality);
        if size.is_none() && quality.latency.is_some() {
            return Err(PlanError::Unforeseen {
                wish: "latency",
                access: "a put of which nobody knows how long it is",
                instead: "wish for a bandwidth, or put a file",
            }
            .into());
        }
        let segment_bytes = self.options.segment_bytes_of(size);
        let segments = size.map_or(1, |size| size.div_ceil(segment_bytes).max(1));
        let begin = Change::BeginPut {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            // More are named as they are needed.
            segments: u32::try_from(segments).unwrap_or(u32::MAX).min(SEGMENTS_PER_REQUEST_MAX),
        };
        // One round trip for both.
        let (begun, registry) = tokio::join!(self.metadata.change(begin), self.registry());
        let begun = match begun? {
            MetaAnswer::Begun(begun) => begun,
            other => return Err(unexpected("Begun", &other).into()),
        };
        let round_trip = self.metadata.way(start.elapsed());
        let wish = Wish { quality, round_trip };
        let mut put = Put {
            wish,
            reserved: Reserved::new(self, Access::Write, wish.quality, size.unwrap_or(segment_bytes)),
            client: self,
            size,
            stored: Mutex::new(Stored {
                report: PutReport { version: begun.version, ..PutReport::default() },
                ..Stored::default()
            }),
            begun,
            committing: Committing::default(),
            primaries: Mutex::default(),
            dealt: Mutex::default(),
            is_over: false,
        };
        if let Err(error) = registry {
            // Else its bucket is in use for as long as its lease.
            put.give_up().await;
            return Err(error.into());
        }
        let done = put.run(source, size, start).await;
        put.reserved.give_back();
        match done {
            Ok(freed) => {
                put.is_over = true;
                let stored = std::mem::take(&mut *put.stored());
                let report = PutReport { latency: start.elapsed(), ..stored.report };
                self.seal(&stored, put.begun.epoch);
                self.free(freed);
                self.account(&AccessTotals {
                    puts: 1,
                    put_bytes: report.size,
                    put_sent_bytes: report.sent_bytes,
                    ..AccessTotals::default()
                });
                Ok(report)
            }
            Err(error) => {
                let asked =
                    |error: &PutError| matches!(error, PutError::Metadata(error) if error.leaves_unknown());
                // Of one that may be there nothing is freed.
                if put.committing.has_begun() && asked(&error) {
                    put.is_over = true;
                } else {
                    put.give_up().await;
                }
                Err(error)
            }
        }
    }

    /// Ends a put or an amendment that failed, or whose caller has dropped it, by this change, and tidies up after it, for a while and
    /// whether or not anybody waits for it; then does what is to follow. What it wrote is freed only where it is certain that no version has
    /// it: else the metadata server knows, and the devices free it when they ask. Who waits hears when it is over, or was not for so long.
    pub(crate) fn give_up<F: Future<Output = ()> + Send + 'static>(
        &self,
        ending: Change,
        epoch: Epoch,
        touched: &BTreeSet<(DeviceId, SegmentId)>,
        following: F,
    ) -> impl Future<Output = ()> + use<F> {
        let deletes =
            touched.iter().map(|&(device, segment)| (device, NodeRequest::Delete { device, segment }, epoch));
        let deletes = self.addressed(deletes);
        let (pool, metadata) = (self.pool.clone(), self.metadata_for_later());
        let (ends, ended) = oneshot::channel();
        self.tidying.later(async move {
            let ending = tokio::time::timeout(GIVE_UP, metadata.change(ending)).await;
            let _ = ends.send(());
            let freeing = async {
                // One that is over already may have ended by a commit whose answer was lost.
                if matches!(ending, Ok(Ok(MetaAnswer::Done))) {
                    tidy::tell(&pool, deletes).await;
                }
            };
            tokio::join!(freeing, following);
        });
        async {
            // Ended without a word where no runtime is left.
            let _ = ended.await;
        }
    }

    /// A handle to the metadata server for what goes on when this client's caller waits no more: under ids of its own.
    pub(crate) fn metadata_for_later(&self) -> Metadata {
        Metadata::new(self.metadata.address(), self.pool.clone(), fresh_seed(), GIVE_UP)
    }

    /// Frees what the layouts of a put do not list and marks the rest as committed.
    fn seal(&self, stored: &Stored, epoch: Epoch) {
        let mut requests = Vec::new();
        let mut kept = BTreeSet::new();
        for (device, piece) in stored.layouts.values().flat_map(SegmentLayout::pieces) {
            let (segment, keep) = (piece.segment, piece.blocks.clone());
            kept.insert((device, segment));
            requests.push((device, NodeRequest::Seal { device, segment, keep }, epoch));
        }
        for &(device, segment) in stored.touched.difference(&kept) {
            requests.push((device, NodeRequest::Delete { device, segment }, epoch));
        }
        self.tell_all(requests);
    }

    /// Frees what a change of layout left, on every device that can be reached, behind the answer.
    pub(crate) fn free(&self, freed: Vec<Freed>) {
        let request = |Freed { device, segment, keep, epoch }| {
            let request = if keep.is_empty() {
                NodeRequest::Delete { device, segment }
            } else {
                NodeRequest::Seal { device, segment, keep }
            };
            (device, request, epoch)
        };
        self.tell_all(freed.into_iter().map(request).collect());
    }

    /// Tells each device's server, and waits for none.
    pub(crate) fn tell_all(&self, requests: Vec<(DeviceId, NodeRequest, Epoch)>) {
        self.tidying.tell(&self.pool, self.addressed(requests));
    }

    /// The same requests by where the devices' servers listen, as far as is known.
    fn addressed(
        &self,
        requests: impl IntoIterator<Item = (DeviceId, NodeRequest, Epoch)>,
    ) -> Vec<tidy::Told> {
        let addressed = requests
            .into_iter()
            .filter_map(|(device, request, epoch)| Some((self.address_of(device)?, request, epoch)));
        addressed.collect()
    }
}

/// One put, from its intent to its commit.
struct Put<'a> {
    client: &'a Client,
    /// As announced, where it was.
    size: Option<u64>,
    wish: Wish,
    reserved: Arc<Reserved>,
    begun: PutBegun,
    committing: Committing,
    stored: Mutex<Stored>,
    primaries: Mutex<Primaries>,
    dealt: Mutex<Dealt>,
    /// Nothing is to be given up any more.
    is_over: bool,
}

impl Drop for Put<'_> {
    /// One that is dropped half-way is given up all the same, unless it may be there.
    fn drop(&mut self) {
        if !self.is_over && !self.committing.has_begun() {
            drop(self.give_up());
        }
    }
}

/// What a put has stored so far.
#[derive(Default)]
struct Stored {
    /// Where anything was written: to be freed when the put is given up.
    touched: BTreeSet<(DeviceId, SegmentId)>,
    /// Of the segments that are done, by where they begin in the object.
    layouts: BTreeMap<u64, SegmentLayout>,
    /// Bytes of those in a message.
    layouts_bytes: u64,
    report: PutReport,
}

impl Put<'_> {
    /// Ends it without its version, behind whoever waits for that.
    fn give_up(&mut self) -> impl Future<Output = ()> + use<> {
        self.is_over = true;
        let ending = Change::Abort { intent: self.begun.intent };
        self.client.give_up(ending, self.begun.epoch, &self.stored().touched, ready(()))
    }

    /// Stores every segment and commits; what the version it replaced leaves to be freed.
    async fn run(
        &mut self,
        source: impl Source,
        size: Option<u64>,
        start: Instant,
    ) -> Result<Vec<Freed>, PutError> {
        self.begun.policy = self.wish.quality.policy(&self.begun.policy)?;
        self.check_size()?;
        let lease = Lease {
            client: self.client,
            intent: self.begun.intent,
            lease_ms: self.begun.lease_ms,
            reserved: Arc::clone(&self.reserved),
            committing: self.committing.clone(),
        };
        let storing = async {
            let source = Pieces::new(source);
            let offloads = self.client.offloads(&self.reserved);
            self.store(Feed::new(self.client, &self.begun, source, size, offloads)).await?;
            tracing::debug!(elapsed = ?start.elapsed(), "stored; committing");
            self.committing.begin();
            let commit = {
                let stored = self.stored();
                let segments = stored.layouts.values().cloned().collect();
                Change::Commit {
                    intent: self.begun.intent,
                    size: stored.report.size,
                    segments,
                    pledge: self.wish.quality.pledge(),
                    base: None,
                }
            };
            match self.client.metadata.change_under(self.begun.lease_ms, commit).await? {
                MetaAnswer::Committed { freed, .. } => Ok(freed),
                other => Err(unexpected("Committed", &other).into()),
            }
        };
        lease.during(storing).await
    }

    /// Refuses what is larger than an object can be before a byte of it is read.
    fn check_size(&self) -> Result<(), PutError> {
        let Some(size) = self.size else { return Ok(()) };
        if let Policy::Parity(policy) = &self.begun.policy {
            let most = file_bytes_max(policy);
            return if size > most { Err(TooLong { size, most }.into()) } else { Ok(()) };
        }
        let segment_bytes = self.client.options.segment_bytes_of(Some(size));
        let most = u64::from(SEGMENTS_PER_PUT_MAX) * segment_bytes;
        if size > most { Err(PutError::Size { size, most }) } else { Ok(()) }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores every segment, small ones side by side. While they are written half of the next is read, where there is memory
    /// for it.
    async fn store(&self, feed: Feed<'_>) -> Result<(), PutError> {
        let alone = self.wish.quality.wants_pace();
        let turns = &Turns::new(feed, self.client.options.memory_bytes, alone);
        let one_by_one = async || -> Result<(), PutError> {
            while let Some(turn) = turns.next().await? {
                self.store_segment(&turn).await?;
            }
            Ok(())
        };
        // As many as are stored at a time (`turns`), and one that reads ahead or whose end nobody waits for.
        tokio::try_join!(one_by_one(), one_by_one(), one_by_one(), one_by_one(), one_by_one())?;
        Ok(())
    }

    async fn store_segment(&self, turn: &Turn<'_>) -> Result<(), PutError> {
        let mut maker = Arc::clone(&turn.ready.maker);
        let (mut failed, mut tried, by) = (None, BTreeSet::new(), (&self.begun.policy, &self.wish));
        loop {
            let plan = match self.choose(&turn.ready, maker.segment, &tried).await {
                // What failed says more than that there is no way around it.
                Err(error) => return Err(failed.unwrap_or(error)),
                Ok(plan) => plan,
            };
            let error = match self.store_by(turn, plan, &maker).await {
                Err(PutError::Write(error)) => error,
                done => return done,
            };
            if !self.client.may_go_without(by, &error, &mut tried).await {
                return Err(error.into());
            }
            tracing::debug!(segment = %maker.segment, %error, "stored anew without the devices that failed");
            maker = Arc::new(maker.renamed(self.another_name().await?));
            failed = Some(error.into());
        }
    }

    async fn store_by(&self, turn: &Turn<'_>, plan: Plan, maker: &Arc<Maker>) -> Result<(), PutError> {
        let ready = &*turn.ready;
        let policy = plan.policy;
        let segment = ready.segment.under(&policy);
        let (spec, code) = ready.code_of(&segment)?;
        let (devices, spares) = plan.targets();
        let write = WriteSpec {
            scheme: segment.scheme,
            code,
            block_bytes: segment.geometry.block_bytes,
            rule: Rule::of(&policy),
            domains: plan.domains,
            devices,
            spares,
            patience: self.client.options.patience,
            seed: spec.seed,
            given: Given::default(),
            fewer: plan.fewer(self.client.options.patience, &self.wish),
        };
        let mut maker = Arc::clone(maker);
        match self.hand_over(ready, &maker, &policy, &write).await {
            Some(Ok(offloaded)) => {
                self.sent(ready, segment.geometry.originals);
                return self.keep(ready, (maker.segment, spec), offloaded.holders, offloaded.stored_blocks);
            }
            Some(Err(setback)) => {
                let (segment, why) = (maker.segment, setback.why);
                tracing::debug!(%segment, why, "stored by the client, not by a primary");
                self.sent(ready, setback.pushed_blocks);
                // What the primary may still do is done under the old name.
                maker = Arc::new(maker.renamed(self.another_name().await?));
            }
            None => {}
        }
        let name = maker.segment;
        let writer = SegmentWriter {
            route: Reserving { client: self.client, reserved: &self.reserved },
            pool: self.client.pool.clone(),
            maker,
            policy,
            epoch: self.begun.epoch,
            intent: self.begun.intent,
        };
        let touch = |device| {
            self.stored().touched.insert((device, name));
        };
        let done = writer.run(write, touch, |_| {}, || turn.ends()).await?;
        self.sent(ready, done.pushed_blocks);
        self.keep(ready, (name, spec), done.holders, done.stored_blocks)
    }

    /// A segment is stored so, under this name and by this code.
    ///
    /// # Errors
    /// Where the layouts, those to come as long as those so far, are more than an object may have: not at the commit, when all of it was
    /// sent.
    fn keep(
        &self,
        ready: &Ready,
        (name, code): (SegmentId, CodeSpec),
        holders: Vec<Share>,
        blocks: u32,
    ) -> Result<(), PutError> {
        let segment = &ready.segment;
        let version = self.begun.version;
        let layout = SegmentLayout {
            segment: name,
            version,
            epoch: self.begun.epoch,
            length: segment.length,
            code,
            block_bytes: segment.geometry.block_bytes,
            granule_bytes: segment.geometry.granule_bytes,
            holders: holders.into_iter().map(|share| share.stored(name, version)).collect(),
        };
        let mut stored = self.stored();
        stored.report.size += segment.length;
        stored.report.stored_bytes += u64::from(blocks) * u64::from(segment.geometry.block_bytes);
        stored.report.degraded_segments += u64::from(layout.missing_chunks(&self.begun.policy) > 0);
        stored.layouts_bytes += message::encode(&layout).len() as u64;
        stored.layouts.insert(segment.offset, layout);
        let (done, bytes) = (stored.report.size, stored.layouts_bytes);
        let size = self.size.unwrap_or(done);
        match plan::beyond_layouts(bytes, done, size) {
            Some(bytes) => Err(PutError::Layouts { size, bytes, most: LAYOUTS_BYTES_MAX as u64 }),
            None => Ok(()),
        }
    }

    /// Hands a segment to a node; none where there is none to ask.
    async fn hand_over(
        &self,
        ready: &Ready,
        maker: &Arc<Maker>,
        policy: &Policy,
        write: &WriteSpec,
    ) -> Option<Result<Offloaded, Setback>> {
        if !self.client.offloads(&self.reserved) {
            return None;
        }
        let name = maker.segment;
        let touched = |devices: BTreeSet<DeviceId>| {
            let mut stored = self.stored();
            stored.touched.retain(|(_, of)| *of != name);
            stored.touched.extend(devices.into_iter().map(|device| (device, name)));
        };
        let what = (ready.segment.length, policy, write);
        let under = (self.begun.intent, self.begun.epoch, self.reserved.priority());
        let done = self.client.hand_over(&self.primaries, maker, what, under, touched).await?;
        if done.is_ok() {
            self.stored().report.offloaded_bytes += ready.segment.length;
        }
        Some(done)
    }

    /// So many blocks of a segment were sent by this client.
    fn sent(&self, ready: &Ready, blocks: u32) {
        let bytes = u64::from(blocks) * u64::from(ready.segment.geometry.block_bytes);
        self.stored().report.sent_bytes += bytes;
    }

    async fn another_name(&self) -> Result<SegmentId, PutError> {
        let more = Change::MoreSegments { intent: self.begun.intent, segments: 1 };
        match self.client.metadata.change_under(self.begun.lease_ms, more).await? {
            MetaAnswer::Segments(names) if !names.is_empty() => Ok(names[0]),
            other => Err(unexpected("Segments", &other).into()),
        }
    }

    async fn choose(
        &self,
        ready: &Ready,
        name: SegmentId,
        without: &BTreeSet<DeviceId>,
    ) -> Result<Plan, PutError> {
        let (length, scheme, geometry) = (ready.spread_bytes, ready.segment.scheme, ready.segment.geometry);
        // What is wished for is the whole object's, whose segments are stored one after the other then. Padding is stored, too.
        let padded = u64::from(geometry.block_bytes) * u64::from(geometry.originals);
        let of = (length.max(padded), self.size.unwrap_or(length));
        let wish = self.wish.part(of.0, of.1);
        // The segments of most objects lie on the same devices; chunks go to others each time.
        let turn = if scheme == Scheme::Parity { name.0.rotate_left(32) } else { 0 };
        let wanted = Wanted {
            policy: self.begun.policy,
            length,
            bandwidth_bytes_per_s: self.client.options.bandwidth_bytes_per_s,
            seed: self.client.seed ^ self.begun.version.0 ^ turn,
        };
        let dealt = || self.dealt.lock().unwrap_or_else(PoisonError::into_inner);
        let before = dealt().clone();
        let planned = self.client.plan_write(&self.reserved, &wanted, &wish, without, &before).await;
        let mut plan = planned.map_err(|denied| denied.of_whole(of, &self.wish))?;
        if let Policy::Parity(policy) = &self.begun.policy {
            dealt().deal(&mut plan, policy.data());
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        amend::faked::{self, Heard},
        reserve::tests::client,
        source::Memory,
    };
    use bytes::Bytes;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    /// A client of a cluster whose storage servers confirm nothing.
    async fn silent() -> (Client, UnboundedReceiver<Heard>) {
        let (heard, hears) = unbounded_channel();
        let mut client = client(&faked::node(heard.clone()).await, Vec::new());
        faked::metadata(&mut client, faked::object(1), heard).await;
        (client, hears)
    }

    #[tokio::test]
    async fn one_that_is_dropped_half_way_is_given_up_and_what_it_wrote_is_deleted() {
        let (client, mut hears) = silent().await;
        let source = Memory(Bytes::from(vec![7; 6 << 20]));
        let mut written = BTreeSet::new();
        let under_way = async {
            // Two segments, of four chunks each.
            while written.len() < 8 {
                if let Heard::Node(NodeRequest::Write(open)) = hears.recv().await.unwrap() {
                    written.insert((open.device, open.segment));
                }
            }
        };
        tokio::select! {
            put = client.put("data", "object", source, Some(6 << 20)) => panic!("nothing was confirmed: {put:?}"),
            () = under_way => {}
        }
        let heard = faked::settled(&client, &mut hears).await;
        let aborts = heard.iter().filter(|heard| matches!(heard, Heard::Meta(Change::Abort { .. }))).count();
        assert_eq!(aborts, 1, "{heard:?}");
        let deleted = faked::deleted(&heard);
        assert!(deleted.is_superset(&written), "{deleted:?}, {written:?}");
    }

    /// Its commit was asked for.
    #[tokio::test]
    async fn of_one_that_may_be_there_nothing_is_deleted() {
        let (client, mut hears) = silent().await;
        for has_begun in [false, true] {
            let begin = Change::BeginPut { bucket: "data".to_owned(), key: "object".to_owned(), segments: 1 };
            let MetaAnswer::Begun(begun) = client.metadata.change(begin).await.unwrap() else { panic!() };
            let quality = Quality::default();
            let touched = [(DeviceId(10), begun.segments[0])].into();
            let put = Put {
                client: &client,
                size: None,
                wish: Wish::default(),
                reserved: Reserved::new(&client, Access::Write, quality, 1),
                begun,
                committing: Committing::default(),
                stored: Mutex::new(Stored { touched, ..Stored::default() }),
                primaries: Mutex::default(),
                dealt: Mutex::default(),
                is_over: false,
            };
            if has_begun {
                put.committing.begin();
            }
            drop(put);
            let heard = faked::settled(&client, &mut hears).await;
            let deletes = heard.iter().filter(|heard| matches!(heard, Heard::Node(_))).count();
            let ends =
                heard.iter().filter(|heard| matches!(heard, Heard::Meta(Change::Abort { .. }))).count();
            assert_eq!((ends, deletes), if has_begun { (0, 0) } else { (1, 1) }, "{heard:?}");
        }
    }

    /// Nobody is left who could say so.
    #[test]
    fn one_that_is_dropped_without_a_runtime_is_left_to_its_lease() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (client, mut hears) = runtime.block_on(silent());
        let source = Memory(Bytes::from(vec![7; 1 << 20]));
        {
            let mut put = core::pin::pin!(client.put("data", "object", source, Some(1 << 20)));
            runtime.block_on(async {
                tokio::select! {
                    put = &mut put => panic!("nothing was confirmed: {put:?}"),
                    () = async {
                        while !matches!(hears.recv().await, Some(Heard::Node(NodeRequest::Write(_)))) {}
                    } => {}
                }
            });
        }
        let heard = runtime.block_on(faked::settled(&client, &mut hears));
        assert!(!heard.iter().any(|heard| matches!(heard, Heard::Meta(Change::Abort { .. }))), "{heard:?}");
    }
}
