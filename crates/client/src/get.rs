//! Fetching: drives the reading cores over TCP, checks every granule, decodes, hands the bytes over in order.

mod one_state;

use crate::{
    Client, ClientError, GetError, ObjectStat,
    ahead::{Ahead, Arrived},
    decode::{Decoding, SolveError, Verified},
    leaving::{Leaving, Moved},
    memory::Held,
    reserve::Reading,
    stand_ins::StandIns,
};
use bytes::BytesMut;
use std::{
    collections::BTreeSet,
    io::Write,
    ops::Range,
    time::{Duration, Instant},
};
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch, IndexRanges, Time, Version,
    layout::{CodeKind, SegmentLayout},
    message::{AccessTotals, MetaFault, NodeRequest, ReadPiece, Want},
    plan::{Quality, Wish},
    policy::Policy,
    read::{self, Action, Input, Ranged, ReadCore, ReadPlan, Replicas, Striped},
};
use steadfast_transfer::{Event, Streams};

/// Bytes a second that decoding adds up beside a read. A core alone does 20 to 40 GB/s where strips lie in the cache; but beside a read it
/// takes the processor from what still arrives, and the end that any blocks would bring is foreseen by the paces of a moment, of which the
/// fastest are counted on. Six warm servers of one machine of two Zen 3 cores, object of 256 MiB (K = 256 a segment), with 40, 20,
/// 12, 6 and 3 GB/s here: 221, 208, 187, 169 and 182 ms, 1.51, 1.38, 1.24, 1.14 and 1.21 s/GB of all processors, 57, 26, 7, 2 and 2
/// of 1,024 blocks coded. Six unequal disks, or a slow one, are read in the same time with any of them.
const SUMMED_BYTES_PER_S: f64 = 6e9;

/// What a get took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GetReport {
    /// The version read.
    pub version: Version,
    /// Bytes handed over.
    pub size: u64,
    /// From the call until the last byte was ready, without the time that the caller's sink took.
    pub latency: Duration,
    /// Payload bytes that arrived here.
    pub received_bytes: u64,
    /// Payload bytes that storage servers sent, as far as they could be asked (see [`GetReport::io_overhead`]).
    pub sent_bytes: u64,
    /// Payload bytes that storage servers read from their media, as far as they could be asked.
    pub medium_bytes: u64,
    /// Payload bytes that brought the decoder nearer its end.
    pub used_bytes: u64,
    /// Blocks asked for.
    pub requested_blocks: u32,
    /// Blocks asked for although what had been asked for before was enough, because it was late.
    pub extra_blocks: u32,
    /// Those of them that were useful before the ones they stood in for.
    pub extra_won: u32,
    /// Blocks used that are no originals, of a code whose originals need no decoding.
    pub coded_blocks: u32,
    /// Bytes that had to be read: of a range, the blocks that hold it where they can be had singly, else their segments.
    pub segment_bytes: u64,
    /// Blocks that arrived damaged or failed their checksum at the server.
    pub corrupt_blocks: u32,
    /// Devices that failed.
    pub devices_failed: u32,
}

impl GetReport {
    /// Bytes sent over the network beyond the data, as a share of the data (dissertation §6.2.3); none where there are no data.
    pub fn io_overhead(&self) -> f64 {
        if self.segment_bytes == 0 {
            return 0.0;
        }
        let moved = self.sent_bytes.max(self.received_bytes);
        moved as f64 / self.segment_bytes as f64 - 1.0
    }

    /// What is counted of it for whoever watches.
    fn totals(&self) -> AccessTotals {
        AccessTotals {
            used_bytes: self.segment_bytes,
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            medium_bytes: self.medium_bytes,
            requested_blocks: self.requested_blocks.into(),
            extra_blocks: self.extra_blocks.into(),
            extra_won: self.extra_won.into(),
            ..AccessTotals::default()
        }
    }
}

/// How often a get begins again because the object changed under it before the sink was given more. Each time is another version; a
/// key that is replaced faster than it can be read is the caller's to know about.
pub(crate) const CHANGES_MAX: u32 = 3;

/// Events of a segment that are taken before its core is asked again, where so many are here.
const AT_ONCE_MAX: usize = 64;

/// Changes that a get went on after since the sink was given anything: where it gets further its object may be moved as often as it
/// takes, as by a drain of a large file, which commits many times.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    number: u32,
    handed: u64,
}

impl Changes {
    /// Counts one in, by when the sink has `handed` bytes; whether the get may go on after it.
    fn one_more(&mut self, handed: u64) -> bool {
        if handed > self.handed {
            *self = Self { number: 0, handed };
        }
        self.number += 1;
        self.number <= CHANGES_MAX
    }
}

/// A get under way: what was handed over stays so, whatever layout the rest is read by.
struct Access {
    start: Instant,
    wish: Wish,
    /// A round trip to the servers.
    way: Duration,
    range: Option<(u64, Option<u64>)>,
    /// Given to the writing of blocks and back.
    sink: Option<Box<dyn Write + Send>>,
    sink_time: Duration,
    /// Bytes that the sink has.
    handed: u64,
    report: GetReport,
    /// Streams of parts that the sink has.
    leaving: Leaving,
}

impl Access {
    /// First byte wanted, and the one behind the last.
    fn bounds(&self, size: u64) -> Result<(u64, u64), GetError> {
        let (first, last) = self.range.unwrap_or((0, None));
        if self.range.is_some() && first >= size {
            return Err(GetError::Range { first, size });
        }
        Ok((first, last.map_or(size, |last| size.min(last.saturating_add(1)))))
    }
}

/// How one get differs from others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GetOptions {
    /// What it wants of the cluster (bandwidth, latency, accesses); the client's own where it says nothing.
    pub quality: Quality,
}

impl Client {
    /// Fetches an object, or bytes `range.0` to `range.1` of it (both included, counted from 0), into `sink`: one
    /// version, whole. Where it is replaced or moved meanwhile and blocks are gone, the get goes on by the new layout as
    /// long as what the sink has is right for that too.
    ///
    /// # Errors
    /// When it does not exist, too little of it is in reach, or the sink fails. What the sink was given before an
    /// error is right but not whole.
    pub async fn get(
        &self,
        bucket: &str,
        key: &str,
        range: Option<(u64, Option<u64>)>,
        sink: impl Write + Send + 'static,
    ) -> Result<GetReport, GetError> {
        self.get_with(bucket, key, range, sink, &GetOptions::default()).await
    }

    /// As [`Client::get`], with wishes of its own.
    ///
    /// # Errors
    /// As there; [`GetError::Plan`] for a wish that the holders cannot meet, [`GetError::Busy`] for one that they cannot
    /// meet now.
    pub async fn get_with(
        &self,
        bucket: &str,
        key: &str,
        range: Option<(u64, Option<u64>)>,
        sink: impl Write + Send + 'static,
        options: &GetOptions,
    ) -> Result<GetReport, GetError> {
        let start = Instant::now();
        let (sink_time, handed, report, leaving) = Default::default();
        let wish = Wish { quality: options.quality.or(self.options.quality), ..Wish::default() };
        let mut access = Access {
            start,
            wish,
            way: Duration::ZERO,
            range,
            sink: Some(Box::new(sink)),
            sink_time,
            handed,
            report,
            leaving,
        };
        let done = self.get_whole(bucket, key, &mut access).await;
        let Access { mut report, leaving, .. } = access;
        if let Err(error) = done {
            // What was moved for it was moved all the same.
            self.account_settled(leaving, report.totals());
            return Err(error);
        }
        let mut moved = Moved::default();
        leaving.settle(&mut moved).await;
        moved.add_to(&mut report);
        self.account(&AccessTotals { gets: 1, ..report.totals() });
        Ok(report)
    }

    /// Hands over all that is wanted of an object, whatever becomes of it meanwhile.
    async fn get_whole(&self, bucket: &str, key: &str, access: &mut Access) -> Result<(), GetError> {
        let mut found = self.locate(bucket, key).await?;
        access.way = self.metadata.way(access.start.elapsed());
        access.wish.round_trip = access.way;
        let mut changes = Changes::default();
        loop {
            let error = match self.get_version(&found, access).await {
                Ok(()) => break,
                Err(error @ GetError::Read(_)) => error,
                Err(error) => return Err(error),
            };
            let read = Some(access.handed).filter(|&handed| handed > 0);
            found = self.changed(bucket, key, &found, read, error).await?;
            if !changes.one_more(access.handed) {
                let (bucket, key) = (bucket.to_owned(), key.to_owned());
                return Err(GetError::Changed { bucket, key, handed: access.handed });
            }
            tracing::debug!(version = %found.object.version, handed = access.handed, "the object changed: reading on");
        }
        if access.report.latency == Duration::ZERO {
            access.report.latency = access.start.elapsed().saturating_sub(access.sink_time);
        }
        let mut sink = access.sink.take().expect("it is back after every segment");
        tokio::task::spawn_blocking(move || sink.flush())
            .await
            .expect("flushing a sink does not panic")
            .map_err(GetError::Sink)
    }

    /// Where the object's blocks lie, and where their servers listen now; one round trip for both.
    pub(crate) async fn locate(&self, bucket: &str, key: &str) -> Result<ObjectStat, ClientError> {
        let (found, registry) = tokio::join!(self.stat(bucket, key), self.registry());
        registry?;
        found
    }

    /// The object as it is after a read by `before` failed, if this get may go on with it: it is another by now, or its servers listen
    /// elsewhere than was known. What was `read` before holds it to the contents of that.
    pub(crate) async fn changed(
        &self,
        bucket: &str,
        key: &str,
        before: &ObjectStat,
        read: Option<u64>,
        error: GetError,
    ) -> Result<ObjectStat, GetError> {
        let replaced = |handed| GetError::Changed { bucket: bucket.to_owned(), key: key.to_owned(), handed };
        let devices = || before.segments.iter().flat_map(|layout| layout.pieces().map(|(device, _)| device));
        let devices: BTreeSet<DeviceId> = devices().collect();
        let known = self.addresses_of(&devices);
        match self.locate(bucket, key).await {
            Ok(now) if now.object.version == before.object.version => {
                if self.addresses_of(&devices) == known { Err(error) } else { Ok(now) }
            }
            // Other bytes cannot follow those that were read.
            Ok(now) => match read.filter(|_| now.object.contents != before.object.contents) {
                Some(handed) => Err(replaced(handed)),
                None => Ok(now),
            },
            Err(gone @ ClientError::Refused(MetaFault::NoObject { .. })) => {
                Err(read.map_or(gone.into(), replaced))
            }
            // What was wrong first says more.
            Err(_) => Err(error),
        }
    }

    /// Hands over what the sink has not got yet, by the layout found. While a part is decoded and handed over, those behind
    /// it arrive, as far as there is memory for them.
    async fn get_version(&self, found: &ObjectStat, access: &mut Access) -> Result<(), GetError> {
        let (first, end) = access.bounds(found.object.size)?;
        access.report.version = found.object.version;
        access.report.size = end - first.min(end);
        let reading = self.plan_read(found, first.min(end)..end, &access.wish).await?;
        let range = first + access.handed..end;
        tokio::select! {
            done = self.get_parts(found, range, &reading, access) => done,
            never = reading.reserved.renewing() => match never {},
            never = self.following() => match never {},
        }
    }

    async fn get_parts(
        &self,
        found: &ObjectStat,
        range: Range<u64>,
        reading: &Reading,
        access: &mut Access,
    ) -> Result<(), GetError> {
        let way = Some(access.way);
        // Where there is no room for the next part it waits as numbers alone: a reader's patience runs from when it is made, and
        // a sink may take its time.
        let mut waiting = parts(found, range).peekable();
        let mut ahead = Ahead::default();
        let mut in_hand: Option<SegmentReader<'_>> = None;
        loop {
            let in_hand_bytes = in_hand.as_ref().map_or(0, SegmentReader::memory_bytes);
            let room = |(layout, part): &(&SegmentLayout, Range<u64>)| {
                let bytes = Blocks::of(layout, part).memory_bytes;
                ahead.has_room(bytes, in_hand_bytes, self.options.memory_bytes)
            };
            if let Some((layout, part)) = waiting.next_if(room) {
                ahead.begin(SegmentReader::new(self, layout, part, &found.policy, way, reading)?);
                continue;
            }
            let Some(mut reader) = in_hand.take() else {
                let Some(Arrived { reader, outcome, .. }) = ahead.next().await else { return Ok(()) };
                if let Err(error) = outcome {
                    access.leave(reader);
                    return Err(error);
                }
                in_hand = Some(reader);
                continue;
            };
            let handed = tokio::select! {
                handed = access.hand_over(&mut reader) => handed,
                never = ahead.arriving() => match never {},
            };
            let (ready, handed) = match handed {
                Ok(times) => times,
                Err(error) => {
                    access.leave(reader);
                    return Err(error);
                }
            };
            // Only what the read itself waited for is the sink's.
            let since = if ahead.is_empty() { Some(ready) } else { ahead.here_since() };
            let waited = since.map(|since| handed.saturating_duration_since(since.max(ready)));
            access.sink_time += waited.unwrap_or_default();
            access.leave(reader);
        }
    }
}

/// The segments that hold `range` of the object's bytes, each with its part of it, counted from the segment's begin.
pub(crate) fn parts(
    found: &ObjectStat,
    range: Range<u64>,
) -> impl Iterator<Item = (&SegmentLayout, Range<u64>)> {
    let mut at = 0;
    found.segments.iter().filter_map(move |layout| {
        let begin = at;
        at += layout.length;
        let (from, to) = (range.start.max(begin), range.end.min(at));
        (from < to).then(|| (layout, from - begin..to - begin))
    })
}

/// What is read of each segment that holds some of `range`: the originals that are asked for by their indices; none where enough of any
/// blocks are, or where those that are slow are done without.
pub(crate) fn reads(
    found: &ObjectStat,
    range: Range<u64>,
) -> impl Iterator<Item = (&SegmentLayout, Option<IndexRanges>)> {
    let stored = parts(found, range).filter(|(layout, _)| !layout.is_hole());
    stored.map(|(layout, part)| {
        let Blocks { wanted, whole, singly, .. } = Blocks::of(layout, &part);
        (layout, (singly && !whole).then(|| IndexRanges::from(wanted)))
    })
}

impl Access {
    /// Decodes what has arrived and hands it over: when it was ready, and when the sink had it.
    async fn hand_over(&mut self, reader: &mut SegmentReader<'_>) -> Result<(Instant, Instant), GetError> {
        let originals = reader.decode().await?;
        let ready = Instant::now();
        let part = reader.part_of_blocks();
        let sink = self.sink.take().expect("it is back after every segment");
        let block_bytes = u64::from(reader.layout.block_bytes);
        let sink = tokio::task::spawn_blocking(move || hand_over(sink, &originals, block_bytes, part))
            .await
            .expect("writing to a sink does not panic")
            .map_err(GetError::Sink)?;
        let handed = Instant::now();
        self.sink = Some(sink);
        self.handed += reader.part.end - reader.part.start;
        self.report.latency = ready.duration_since(self.start).saturating_sub(self.sink_time);
        self.report.segment_bytes += reader.used_bytes();
        Ok((ready, handed))
    }

    /// A part is done, or has failed. What its late streams moved is counted when they say so.
    fn leave(&mut self, reader: SegmentReader<'_>) {
        reader.add_to(&mut self.report);
        self.leaving.add(reader.streams, self.way);
        let mut moved = Moved::default();
        self.leaving.hear(&mut moved);
        moved.add_to(&mut self.report);
    }
}

/// Writes bytes `part.0..part.1` of what these blocks make.
fn hand_over(
    mut sink: Box<dyn Write + Send>,
    originals: &[BytesMut],
    block_bytes: u64,
    part: (u64, u64),
) -> std::io::Result<Box<dyn Write + Send>> {
    for (at, block) in (0..).step_by(usize::try_from(block_bytes).expect("blocks fit memory")).zip(originals)
    {
        let (from, to) = (part.0.max(at), part.1.min(at + block_bytes));
        if from < to {
            // Both lie within the block, which fits memory.
            sink.write_all(&block[(from - at) as usize..(to - at) as usize])?;
        }
    }
    Ok(sink)
}

/// The blocks of a segment that a part of its bytes takes.
struct Blocks {
    /// The originals that hold it.
    wanted: Range<BlockIndex>,
    /// Whether it is all of the segment's bytes.
    whole: bool,
    /// Whether each original lies on one device as it is.
    striped: bool,
    /// Whether they are asked for by their indices.
    singly: bool,
    /// What they take in memory, unless a range has to be decoded.
    memory_bytes: u64,
}

impl Blocks {
    fn of(layout: &SegmentLayout, part: &Range<u64>) -> Self {
        // A layout that has none is refused when it is read.
        let block_bytes = u64::from(layout.block_bytes).max(1);
        let all = 0..layout.code.originals;
        let chunks = matches!(layout.code.kind, CodeKind::ReedSolomon { .. });
        let whole = *part == (0..layout.length);
        // At most K, as the segment's blocks add up to its length. What a parity segment has no bytes for is not read.
        let wanted = match whole && !chunks {
            true => all.clone(),
            false => (part.start / block_bytes) as u32..part.end.div_ceil(block_bytes) as u32,
        };
        let copied = layout.code.kind == CodeKind::Replicated;
        let striped = copied && layout.code.originals == layout.stored_blocks();
        let systematic =
            chunks || matches!(layout.code.kind, CodeKind::Mix | CodeKind::MixA | CodeKind::MixC);
        let singly = wanted != all && (copied || systematic);
        let blocks = u64::from(wanted.end.saturating_sub(wanted.start));
        let memory_bytes = if singly { blocks.saturating_mul(block_bytes) } else { layout.length };
        Self { wanted, whole, striped, singly, memory_bytes }
    }
}

/// One segment being read, or a part of it.
pub(crate) struct SegmentReader<'a> {
    client: &'a Client,
    layout: &'a SegmentLayout,
    reading: &'a Reading,
    /// Bytes of the segment that are wanted.
    part: Range<u64>,
    /// The originals that hold them.
    wanted: Range<BlockIndex>,
    /// What it takes, unless a range has to be decoded.
    memory_bytes: u64,
    _memory: Option<Held>,
    core: Box<dyn ReadCore + Send>,
    decoding: Decoding,
    /// Where chunks are read.
    stand_ins: Option<StandIns<'a>>,
    /// Devices whose chunks lack changes that parity has.
    lacking: BTreeSet<DeviceId>,
    streams: Streams,
    start: Instant,
    moved: Moved,
}

impl<'a> SegmentReader<'a> {
    /// A read of bytes `part` of a segment, which are not none.
    pub(crate) fn new(
        client: &'a Client,
        layout: &'a SegmentLayout,
        part: Range<u64>,
        policy: &Policy,
        way: Option<Duration>,
        reading: &'a Reading,
    ) -> Result<Self, GetError> {
        let unusable = |detail: String| GetError::Layout { segment: Box::new(layout.clone()), detail };
        if !(1..=steadfast_protocol::layout::BLOCK_BYTES_MAX).contains(&layout.block_bytes)
            || u64::from(layout.block_bytes) * u64::from(layout.code.originals) < layout.length
            || layout.granule_bytes == 0
        {
            return Err(unusable("its pieces do not add up to its length".to_owned()));
        }
        let code = layout.code.code().map_err(|error| unusable(error.to_string()))?;
        let reports = client.read_speeds();
        let seen = |device| match reading.refused.contains(&device) {
            true => (1, 0),
            false => reports.get(&device).copied().unwrap_or((0, 0)),
        };
        let read = SegmentLayout {
            holders: layout
                .holders
                .iter()
                .filter(|holder| !reading.excluded.contains(&holder.device))
                .cloned()
                .collect(),
            ..*layout
        };
        let mut plan = ReadPlan::new(&read, reading.rule, || code.expected_extra(), seen);
        plan.patience = client.options.patience;
        plan.round_trip = way;
        plan.decoding = decoding(layout);
        if in_chunks(layout) {
            plan.late = client.caution().begin(client.now());
        }
        let Blocks { wanted, whole, striped, singly, memory_bytes } = Blocks::of(layout, &part);
        let core: Box<dyn ReadCore + Send> = if singly && striped {
            Box::new(Striped::new(Time(0), plan, &IndexRanges::from(wanted.clone())))
        } else if singly && !whole {
            let wanted = IndexRanges::from(wanted.clone());
            match layout.code.kind {
                CodeKind::ReedSolomon { data, .. } => {
                    Box::new(Ranged::of_chunks(Time(0), plan, wanted, data))
                }
                CodeKind::Replicated => Box::new(Replicas::of(Time(0), plan, wanted)),
                _ => Box::new(Ranged::new(Time(0), plan, wanted)),
            }
        } else {
            read::whole(Time(0), plan, layout, policy)
        };
        let streams = Streams::new(reading.reserved.priority());
        let decoding = Decoding::start(&code, layout, wanted.clone(), reading.least.clone());
        Ok(Self {
            part,
            wanted,
            memory_bytes,
            _memory: client.memory.hold(memory_bytes),
            client,
            layout,
            reading,
            core,
            decoding,
            stand_ins: in_chunks(layout).then(|| StandIns::none(client, layout.block_bytes)),
            lacking: BTreeSet::new(),
            streams,
            start: Instant::now(),
            moved: Moved::default(),
        })
    }

    /// What it takes, unless a range has to be decoded.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Payload bytes that it has from devices when it is done, unless a range has to be decoded.
    fn used_bytes(&self) -> u64 {
        if self.layout.is_hole() { 0 } else { self.memory_bytes }
    }

    /// Whether a device said that its chunk lacks changes that parity has.
    pub(crate) fn lacks_changes(&self) -> bool {
        !self.lacking.is_empty()
    }

    /// Payload bytes that arrived so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.moved.received_bytes
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// Reads and decodes: the originals that hold the part.
    pub(crate) async fn run(&mut self) -> Result<Vec<BytesMut>, GetError> {
        self.arrive().await?;
        self.decode().await
    }

    /// Reads until enough is here: at once where nobody stores anything of it.
    pub(crate) async fn arrive(&mut self) -> Result<(), GetError> {
        if self.layout.is_hole() {
            return Ok(());
        }
        loop {
            let lesson = self.client.lesson();
            self.heed();
            while let Some(action) = self.core.poll() {
                match action {
                    Action::Open { device, want, credit_bytes } => self.open(device, want, credit_bytes),
                    Action::Grant { device, bytes } => self.streams.grant(device, bytes),
                    Action::Finish { device } => self.streams.finish(device),
                    Action::Cancel { device } => self.streams.cancel(device),
                    Action::Done(_) => {
                        self.stand_ins.iter_mut().for_each(StandIns::end);
                        return Ok(());
                    }
                    Action::Failed(error) if self.reading.as_it_is && !self.lacking.is_empty() => {
                        let (segment, on) = (self.layout.segment, &self.lacking);
                        tracing::warn!(%segment, ?on, %error, "chunks lack changes that others do not make up for");
                        return Ok(());
                    }
                    Action::Failed(error) => return Err(error.into()),
                }
            }
            let wake_at = self.core.wake_at().map(|at| self.start + Duration::from_nanos(at.0));
            tokio::select! {
                biased;
                () = lesson, if self.stand_ins.is_some() => {}
                verified = self.decoding.next() => self.verified(verified),
                event = self.streams.next(wake_at) => self.take(event),
            }
            // What else is here: the worker then has it as one piece of work, and the core is asked once.
            for _ in 0..AT_ONCE_MAX {
                if let Some(verified) = self.decoding.try_next() {
                    self.verified(verified);
                } else if let Some(event) = self.streams.try_next() {
                    self.take(Some(event));
                } else {
                    break;
                }
            }
        }
    }

    /// Goes by what other reads of the client have asked for and learned.
    fn heed(&mut self) {
        if let Some(stand_ins) = &mut self.stand_ins {
            let factor = stand_ins.tell(&self.core.counts());
            self.core.heed(self.now(), factor);
        }
    }

    fn open(&mut self, device: DeviceId, want: Want, credit_bytes: u32) {
        let holder = self.layout.holder(device).expect("the core opens devices of the layout");
        let request = NodeRequest::Read { device, pieces: ReadPiece::wanted(holder, &want) };
        let request = self.reading.reserved.under(device, request);
        let address = self.client.address_of(device);
        // By no layout: parity gives what it has, whatever it lacks.
        let epoch = if self.reading.ended { Epoch(0) } else { self.layout.epoch };
        self.streams.open(&self.client.pool, device, address, &request, epoch, credit_bytes, None);
    }

    /// Tells the core what happened on a stream; what a stream ends with waits its turn behind the stream's blocks.
    fn take(&mut self, event: Option<(DeviceId, Event)>) {
        let now = self.now();
        match event {
            None => self.core.handle(now, Input::Tick),
            Some((device, Event::Opened)) => self.core.handle(now, Input::Opened { device }),
            Some((device, Event::Slice { slice, payload })) => {
                self.moved.received_bytes += payload.len() as u64;
                self.decoding.slice(device, slice, payload);
            }
            Some((device, last @ (Event::Ended(_) | Event::Failed(_)))) => {
                // Here and not when its turn comes: the read may be over by then.
                if let Event::Ended(answer) = &last {
                    self.moved.ended(answer);
                }
                self.decoding.last(device, last);
            }
            // A storage server confirms nothing to a reader and needs no credit from it.
            Some((device, Event::State(state))) => self.decoding.state(device, state),
            Some((_, Event::Confirmed(_) | Event::Credit(_))) => {}
        }
    }

    /// Tells the core what the decoder found.
    fn verified(&mut self, verified: Verified) {
        let now = self.now();
        if let Verified::Failed { device, cause } = &verified
            && cause.lacks_changes()
        {
            self.lacking.insert(*device);
        }
        let input = match verified {
            Verified::Slice { device, index, bytes } => Input::Slice { device, index, bytes },
            Verified::Block { device, index, missing } => Input::Block { device, index, missing },
            Verified::Corrupt { device, index } => Input::Corrupt { device, index },
            Verified::Ended { device } => Input::Ended { device },
            Verified::Failed { device, cause } => Input::Failed { device, cause },
        };
        self.core.handle(now, input);
    }

    /// The part's bytes, counted from the begin of its first block.
    pub(crate) fn part_of_blocks(&self) -> (u64, u64) {
        let begin = u64::from(self.wanted.start) * u64::from(self.layout.block_bytes);
        (self.part.start - begin, self.part.end - begin)
    }

    /// The originals that hold the part, once enough is here.
    pub(crate) async fn decode(&mut self) -> Result<Vec<BytesMut>, GetError> {
        if self.layout.is_hole() {
            let zeros = |_| BytesMut::zeroed(self.layout.block_bytes as usize);
            return Ok(self.wanted.clone().map(zeros).collect());
        }
        let threads = match self.client.options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let arrived = self.start.elapsed();
        let originals = self.decoding.solve(threads, self.wanted.clone()).await;
        tracing::debug!(segment = %self.layout.segment, ?arrived, decoded = ?self.start.elapsed(), "enough blocks");
        match originals {
            Ok(originals) => {
                if in_chunks(self.layout) {
                    let (done, late) = (self.core.counts(), self.core.late());
                    let (now, block_bytes) = (self.client.now(), self.layout.block_bytes);
                    self.client.learn(|caution| caution.learn(now, &done, block_bytes, &late));
                }
                Ok(originals)
            }
            Err(SolveError::Decode(error)) if self.lacking.is_empty() => {
                Err(GetError::Layout { segment: Box::new(self.layout.clone()), detail: error.to_string() })
            }
            // Where too little came, what lacks changes is read as it is.
            Err(SolveError::Mixed | SolveError::Decode(_)) => {
                let (done, now) = (self.core.counts(), self.client.now());
                self.client.learn(|caution| caution.mixed(now, &done, self.layout.block_bytes));
                tracing::debug!(segment = %self.layout.segment, "its chunks changed meanwhile: read at one state");
                let (originals, bytes) = self.at_one_state().await?;
                self.moved.received_bytes += bytes;
                Ok(originals)
            }
        }
    }

    /// Tells the cluster what this part of an open object moved, once its servers have said so; a round trip takes as long as `way`.
    /// Nobody waits for that. Of a part that could not be had nothing is `used`.
    pub(crate) fn account(self, used: bool, way: Duration) {
        let counts = self.core.counts();
        let done = AccessTotals {
            used_bytes: if used { self.used_bytes() } else { 0 },
            received_bytes: self.moved.received_bytes,
            sent_bytes: self.moved.sent_bytes,
            medium_bytes: self.moved.medium_bytes,
            requested_blocks: counts.requested_blocks.into(),
            extra_blocks: counts.extra_blocks.into(),
            extra_won: counts.extra_won.into(),
            ..AccessTotals::default()
        };
        let mut leaving = Leaving::default();
        leaving.add(self.streams, way);
        self.client.account_settled(leaving, done);
    }

    /// Adds what this read moved.
    fn add_to(&self, report: &mut GetReport) {
        let counts = self.core.counts();
        self.moved.add_to(report);
        report.corrupt_blocks += counts.corrupt_blocks;
        report.used_bytes += u64::from(counts.useful_blocks) * u64::from(self.layout.block_bytes);
        report.requested_blocks += counts.requested_blocks;
        report.extra_blocks += counts.extra_blocks;
        report.extra_won += counts.extra_won;
        report.coded_blocks += counts.coded_blocks;
        report.devices_failed = report.devices_failed.max(counts.devices_failed);
    }
}

/// Whether each device holds a chunk of the segment.
fn in_chunks(layout: &SegmentLayout) -> bool {
    matches!(layout.code.kind, CodeKind::ReedSolomon { .. })
}

/// What it costs to do without originals; none where a code has none.
fn decoding(layout: &SegmentLayout) -> Option<read::Decoding> {
    let seconds =
        |blocks: f64| Duration::from_secs_f64(blocks * f64::from(layout.block_bytes) / SUMMED_BYTES_PER_S);
    layout.code.effort().map(|effort| read::Decoding {
        alone: seconds(effort.alone),
        first: seconds(effort.first),
        each: seconds(effort.each),
    })
}

#[cfg(test)]
mod tests;
