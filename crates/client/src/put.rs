//! Storing: reads the source, drives the writing cores over TCP, encodes what they ask for, commits, seals.

use crate::{
    Client, ClientError, PutError,
    feed::{Feed, Ready},
    maker::Maker,
    reserve::Reserved,
    source::Pieces,
    stream::{Event, Streams},
    turns::Turns,
    unexpected,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use steadfast_protocol::{
    DeviceId, Epoch, IntentId, SegmentId, Time, Version,
    durability::Rule,
    layout::SegmentLayout,
    message::{
        Access, AccessTotals, Change, Freed, MetaAnswer, NodeAnswer, NodeRequest, PutBegun, WriteOpen,
    },
    plan::{Plan, Quality, Scheme, Wanted, Wish},
    policy::Policy,
    read::Cause,
    write::{Action, FailureKind, Given, Input, WriteDone, WriteError, WriteSpec, Writer},
};

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
    /// Payload bytes of all blocks that were sent.
    pub sent_bytes: u64,
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
    /// Nothing is visible then, and the space comes back.
    pub async fn put(
        &self,
        bucket: &str,
        key: &str,
        source: impl Read + Send + 'static,
        size: Option<u64>,
    ) -> Result<PutReport, PutError> {
        self.put_with(bucket, key, source, size, &PutOptions::default()).await
    }

    /// As [`Client::put`], with wishes of its own.
    ///
    /// # Errors
    /// As there; [`PutError::Plan`] for a wish that the cluster cannot meet, [`PutError::Busy`] for one that it cannot
    /// meet now.
    pub async fn put_with(
        &self,
        bucket: &str,
        key: &str,
        source: impl Read + Send + 'static,
        size: Option<u64>,
        options: &PutOptions,
    ) -> Result<PutReport, PutError> {
        let start = Instant::now();
        let segments = size.map_or(1, |size| size.div_ceil(self.options.segment_bytes()).max(1));
        let begin = Change::BeginPut {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            segments: u32::try_from(segments).unwrap_or(u32::MAX),
        };
        // One round trip for both.
        let (begun, registry) = tokio::join!(self.metadata.change(begin), self.registry());
        let begun = match begun? {
            MetaAnswer::Begun(begun) => begun,
            other => return Err(unexpected("Begun", &other).into()),
        };
        registry?;
        let wish = Wish { quality: options.quality.or(self.options.quality), round_trip: start.elapsed() };
        let mut put = Put {
            wish,
            reserved: Reserved::new(
                self,
                Access::Write,
                wish.quality,
                size.unwrap_or(self.options.segment_bytes()),
            ),
            client: self,
            stored: Mutex::new(Stored {
                report: PutReport { version: begun.version, ..PutReport::default() },
                ..Stored::default()
            }),
            begun,
        };
        let done = put.run(source, size, start).await;
        put.reserved.give_back();
        let Put { stored, begun, .. } = put;
        let stored = stored.into_inner().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(freed) => {
                let report = PutReport { latency: start.elapsed(), ..stored.report };
                self.seal(&stored, begun.epoch);
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
                let unknown = matches!(error, PutError::Metadata(ClientError::Unknown { .. }));
                self.give_up(begun.intent, begun.epoch, &stored.touched, unknown).await;
                Err(error)
            }
        }
    }

    /// Tidies up after a put or an amendment that failed, for a while. Where the commit's own answer was lost (`unknown`)
    /// the version may be there: nothing is freed.
    pub(crate) async fn give_up(
        &self,
        intent: IntentId,
        epoch: Epoch,
        touched: &BTreeSet<(DeviceId, SegmentId)>,
        unknown: bool,
    ) {
        if unknown {
            return;
        }
        let giving_up = async {
            let _ = self.metadata.change(Change::Abort { intent }).await;
            self.delete(touched.iter().map(|&(device, segment)| (device, segment, epoch)));
        };
        let _ = tokio::time::timeout(GIVE_UP, giving_up).await;
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

    fn delete(&self, blocks: impl IntoIterator<Item = (DeviceId, SegmentId, Epoch)>) {
        let requests = blocks
            .into_iter()
            .map(|(device, segment, epoch)| (device, NodeRequest::Delete { device, segment }, epoch));
        self.tell_all(requests.collect());
    }

    /// Tells each device's server, all at once, and waits for none.
    pub(crate) fn tell_all(&self, requests: Vec<(DeviceId, NodeRequest, Epoch)>) {
        let addressed = requests
            .into_iter()
            .filter_map(|(device, request, epoch)| Some((self.address_of(device)?, request, epoch)));
        self.tidying.tell(&self.pool, addressed.collect());
    }
}

/// One put, from its intent to its commit.
struct Put<'a> {
    client: &'a Client,
    wish: Wish,
    reserved: Arc<Reserved>,
    begun: PutBegun,
    stored: Mutex<Stored>,
}

/// What a put has stored so far.
#[derive(Default)]
struct Stored {
    /// Where anything was written: to be freed when the put is given up.
    touched: BTreeSet<(DeviceId, SegmentId)>,
    /// Of the segments that are done, by where they begin in the object.
    layouts: BTreeMap<u64, SegmentLayout>,
    report: PutReport,
}

impl Put<'_> {
    /// Stores every segment and commits; what the version it replaced leaves to be freed.
    async fn run(
        &mut self,
        source: impl Read + Send + 'static,
        size: Option<u64>,
        start: Instant,
    ) -> Result<Vec<Freed>, PutError> {
        self.begun.policy = self.wish.quality.policy(&self.begun.policy)?;
        let renewing = renew(self.client, self.begun.intent, self.begun.lease_ms);
        let reserved = Arc::clone(&self.reserved);
        let storing = async {
            self.store(Feed::new(self.client, &self.begun, Pieces::new(source), size)).await?;
            tracing::debug!(elapsed = ?start.elapsed(), "stored; committing");
            let commit = {
                let stored = self.stored();
                let segments = stored.layouts.values().cloned().collect();
                Change::Commit { intent: self.begun.intent, size: stored.report.size, segments }
            };
            match self.client.metadata.change(commit).await? {
                MetaAnswer::Committed { freed, .. } => Ok(freed),
                other => Err(unexpected("Committed", &other).into()),
            }
        };
        tokio::select! {
            stored = storing => stored,
            never = renewing => match never {},
            never = reserved.renewing() => match never {},
        }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores every segment, small ones side by side. While they are written the next is read and encoded, where there is
    /// memory for it.
    async fn store(&self, feed: Feed<'_>) -> Result<(), PutError> {
        let alone = self.wish.quality.wants_pace();
        let turns = &Turns::new(feed, self.client.options.memory_bytes, alone);
        let one_by_one = async || -> Result<(), PutError> {
            while let Some(turn) = turns.next().await? {
                self.store_segment(&turn.ready).await?;
            }
            Ok(())
        };
        // As many as are stored at a time (`turns`), and one that reads ahead.
        tokio::try_join!(one_by_one(), one_by_one(), one_by_one(), one_by_one(), one_by_one())?;
        Ok(())
    }

    async fn store_segment(&self, ready: &Ready) -> Result<(), PutError> {
        let Ready { segment, maker, spec, code, .. } = ready;
        let policy = self.begun.policy;
        let name = maker.segment;
        let plan = self.choose(ready.spread_bytes, name, segment.scheme).await?;
        let (devices, spares) = plan.targets();
        let write = WriteSpec {
            scheme: segment.scheme,
            code: code.clone(),
            block_bytes: segment.geometry.block_bytes,
            rule: Rule::of(&policy),
            domains: plan.domains,
            devices,
            spares,
            patience: self.client.options.patience,
            seed: spec.seed,
            given: Given::default(),
        };
        let writer = SegmentWriter {
            client: self.client,
            maker: Arc::clone(maker),
            core: Writer::new(write, Time(0)),
            streams: Streams::new(),
            reserved: Arc::clone(&self.reserved),
            policy: self.begun.policy,
            epoch: self.begun.epoch,
            intent: self.begun.intent,
            start: Instant::now(),
        };
        let done = writer
            .run(|device| {
                self.stored().touched.insert((device, name));
            })
            .await?;
        let mut stored = self.stored();
        let block_bytes = u64::from(segment.geometry.block_bytes);
        stored.report.size += segment.length;
        stored.report.stored_bytes += u64::from(done.stored_blocks) * block_bytes;
        stored.report.sent_bytes += u64::from(done.pushed_blocks) * block_bytes;
        let layout = SegmentLayout {
            segment: name,
            version: self.begun.version,
            epoch: self.begun.epoch,
            length: segment.length,
            code: *spec,
            block_bytes: segment.geometry.block_bytes,
            granule_bytes: segment.geometry.granule_bytes,
            holders: done.holders.into_iter().map(|share| share.stored(name, self.begun.version)).collect(),
        };
        stored.layouts.insert(segment.offset, layout);
        Ok(())
    }

    async fn choose(&self, length: u64, name: SegmentId, scheme: Scheme) -> Result<Plan, PutError> {
        // The segments of most objects lie on the same devices; chunks go to others each time.
        let turn = if scheme == Scheme::Parity { name.0.rotate_left(32) } else { 0 };
        let wanted = Wanted {
            policy: self.begun.policy,
            length,
            bandwidth_bytes_per_s: self.client.options.bandwidth_bytes_per_s,
            seed: self.client.seed ^ self.begun.version.0 ^ turn,
        };
        Ok(self.client.plan_write(&self.reserved, &wanted, &self.wish, &BTreeSet::new()).await?)
    }
}

/// Keeps the put's lease alive while it runs.
pub(crate) async fn renew(client: &Client, intent: IntentId, lease_ms: u32) -> core::convert::Infallible {
    loop {
        tokio::time::sleep(Duration::from_millis(u64::from(lease_ms) / 3)).await;
        // A lost lease shows at the commit.
        let _ = client.metadata.change(Change::Renew { intent }).await;
    }
}

/// One segment being written.
pub(crate) struct SegmentWriter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) maker: Arc<Maker>,
    pub(crate) core: Writer,
    pub(crate) streams: Streams,
    pub(crate) reserved: Arc<Reserved>,
    pub(crate) policy: Policy,
    pub(crate) epoch: Epoch,
    pub(crate) intent: IntentId,
    pub(crate) start: Instant,
}

impl SegmentWriter<'_> {
    /// Writes until the core is done; says of each device that it writes there.
    pub(crate) async fn run(mut self, mut touch: impl FnMut(DeviceId)) -> Result<WriteDone, WriteError> {
        self.streams.priority = self.reserved.priority();
        loop {
            while let Some(action) = self.core.poll() {
                match action {
                    Action::Open { device, expected_blocks, chunk } => {
                        touch(device);
                        self.open(device, expected_blocks, chunk);
                    }
                    Action::Push { device, indices } => self.streams.push(device, indices),
                    Action::Finish { device } => self.streams.finish(device),
                    Action::Cancel { device } => self.streams.cancel(device),
                    Action::Done(done) => return Ok(done),
                    Action::Failed(error) => return Err(error),
                }
            }
            let wake_at = self.core.wake_at().map(|at| self.start + Duration::from_nanos(at.0));
            let event = self.streams.next(wake_at).await;
            if let Some((device, Event::Failed(cause))) = &event {
                tracing::debug!(%device, %cause, "a write stream failed");
            }
            let now = Time(self.start.elapsed().as_nanos() as u64);
            let input = event.map_or(Some(Input::Tick), |(device, event)| input(device, event));
            if let Some(input) = input {
                self.core.handle(now, input);
            }
        }
    }

    fn open(&mut self, device: DeviceId, expected_blocks: u32, chunk: Option<u32>) {
        let chunk_bytes = u64::from(expected_blocks) * u64::from(self.maker.geometry.block_bytes);
        let reserve_bytes = match (&self.policy, chunk) {
            (Policy::Parity(policy), Some(chunk)) => policy.kept_beside(chunk, chunk_bytes),
            _ => None,
        };
        let request = NodeRequest::Write(WriteOpen {
            device,
            segment: self.maker.segment,
            version: self.maker.version,
            intent: self.intent,
            block_bytes: self.maker.geometry.block_bytes,
            granule_bytes: self.maker.geometry.granule_bytes,
            expected_blocks,
            reserve_bytes,
        });
        let request = self.reserved.under(device, request);
        let address = self.client.address_of(device);
        let maker = Some(Arc::clone(&self.maker));
        self.streams.open(&self.client.pool, device, address, &request, self.epoch, 0, maker);
    }
}

/// What the core is told of an event.
fn input(device: DeviceId, event: Event) -> Option<Input> {
    Some(match event {
        Event::Opened => Input::Opened { device },
        Event::Credit(bytes) => Input::Credit { device, bytes: bytes.into() },
        Event::Confirmed(blocks) | Event::Ended(NodeAnswer::Written { blocks }) => {
            Input::Confirmed { device, blocks }
        }
        Event::Ended(_) => Input::Failed { device, cause: FailureKind::Protocol },
        Event::Failed(Cause::Unreachable(_)) => Input::Failed { device, cause: FailureKind::Unreachable },
        Event::Failed(Cause::Fault(fault)) => Input::Failed { device, cause: FailureKind::from(&fault) },
        Event::Slice { .. } | Event::State(_) => return None,
    })
}
