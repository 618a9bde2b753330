//! The segments of a put before they are written: cut from the source and named. The next one is begun while one is written, as
//! far as memory allows: half of it is read, and it is encoded once its turn has come.

use crate::{
    Client, ClientError, PutError,
    memory::Held,
    source::{self, Pieces, ReadEnd},
    unexpected,
};
use std::{collections::VecDeque, sync::Arc};
use steadfast_codes::rateless::{Code, CodeError};
use steadfast_disk::Granule;
use steadfast_protocol::{
    IntentId, SegmentId, Version,
    durability::Rule,
    layout::{CodeKind, CodeSpec, Geometry},
    message::{Change, MetaAnswer, PutBegun},
    meta::SEGMENTS_PER_REQUEST_MAX,
    plan::{self, Scheme, SegmentPlan},
    policy::Policy,
};
use steadfast_transfer::{Maker, Originals};
use tokio::{sync::oneshot, task::JoinHandle};

/// The segments of one put, in order.
pub(crate) struct Feed<'a> {
    client: &'a Client,
    intent: IntentId,
    lease_ms: u32,
    version: Version,
    policy: Policy,
    /// Chunks are encoded by a node.
    offloads: bool,
    /// Segments named and not used yet.
    names: VecDeque<SegmentId>,
    source: Source,
    /// As announced, where it was.
    size: Option<u64>,
    /// Segments of a known size that were not begun.
    planned: VecDeque<SegmentPlan>,
    /// Bytes of the segments begun.
    begun_bytes: u64,
}

/// Where the source is.
enum Source {
    /// Between two segments.
    Here(Pieces),
    /// Giving the segment that begins at this byte.
    Giving(u64, JoinHandle<Result<Pieces, ReadEnd>>),
    /// At its end.
    Ended,
}

/// What comes after the segments so far.
pub(crate) enum Next {
    /// A segment, whose bytes may still be arriving from the source.
    Segment(Box<Ready>),
    /// One that needs more memory than there is now.
    TooLarge,
    /// Nothing.
    End,
}

/// A segment that can be written.
pub(crate) struct Ready {
    pub(crate) segment: SegmentPlan,
    pub(crate) maker: Arc<Maker>,
    pub(crate) spec: CodeSpec,
    pub(crate) code: Code,
    /// What is spread over the devices that are chosen for it, in bytes.
    pub(crate) spread_bytes: u64,
    /// Its blocks are encoded here.
    encodes: bool,
    /// To be told when its turn comes, where its source is read until then.
    turn: Option<oneshot::Sender<()>>,
    preparing: Option<JoinHandle<()>>,
    _memory: Option<Held>,
}

impl Ready {
    /// The code of the segment as it is planned to be stored: its own, unless it gets fewer parity chunks.
    pub(crate) fn code_of(&self, planned: &SegmentPlan) -> Result<(CodeSpec, Code), ClientError> {
        if planned.code == self.segment.code {
            return Ok((self.spec, self.code.clone()));
        }
        planned.code(self.spec.seed, 0.0).map_err(|error| no_code(planned, &error))
    }

    /// Its turn has come: the rest of it is read, and its first coded blocks are minted while originals are sent. Waiting for them at
    /// the first one left every device idle for 25 of 230 ms (64 MiB on six devices); minted sooner, they take memory that those of
    /// the segment before are still in.
    pub(crate) fn begin(&mut self) {
        if let Some(turn) = self.turn.take() {
            // A source that has ended does not listen.
            let _ = turn.send(());
        }
        let ahead = Arc::clone(&self.maker);
        self.preparing = self.encodes.then(|| tokio::spawn(async move { ahead.prepare_ahead().await }));
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(preparing) = &self.preparing {
            preparing.abort();
        }
    }
}

impl<'a> Feed<'a> {
    /// The segments of what `source` gives, `size` bytes where that is known; `offloads`: chunks are encoded by a node.
    pub(crate) fn new(
        client: &'a Client,
        begun: &PutBegun,
        source: Pieces,
        size: Option<u64>,
        offloads: bool,
    ) -> Self {
        let segment_bytes = client.options.segment_bytes_of(size);
        let planned = size.map(|size| plan::segments_of(segment_bytes, size, &begun.policy));
        Self {
            client,
            intent: begun.intent,
            lease_ms: begun.lease_ms,
            version: begun.version,
            policy: begun.policy,
            offloads,
            names: begun.segments.clone().into(),
            source: Source::Here(source),
            size,
            planned: planned.unwrap_or_default().into(),
            begun_bytes: 0,
        }
    }

    /// The next segment, if it fits `room_bytes`.
    ///
    /// # Errors
    /// Also that of the source in the segment before, which explains why that one cannot be written.
    pub(crate) async fn next(&mut self, room_bytes: u64) -> Result<Next, PutError> {
        let source = match std::mem::replace(&mut self.source, Source::Ended) {
            Source::Here(source) => source,
            Source::Giving(from, giving) => match giving.await.expect("reading a source does not panic") {
                Ok(source) => source,
                Err(ReadEnd::Source(error)) => return Err(PutError::Source(error)),
                Err(ReadEnd::Length(read)) => return Err(self.wrong_length(from + read)),
                // The put has failed where that is so.
                Err(ReadEnd::GivenUp) => return Err(PutError::Source(std::io::Error::other("given up"))),
            },
            Source::Ended => return Ok(Next::End),
        };
        match self.size {
            Some(size) => self.next_of_known(source, size, room_bytes).await,
            None => self.next_of_unknown(source, room_bytes).await,
        }
    }

    fn wrong_length(&self, given: u64) -> PutError {
        PutError::SourceLength { announced: self.size.unwrap_or(given), given }
    }

    async fn next_of_known(&mut self, source: Pieces, size: u64, room_bytes: u64) -> Result<Next, PutError> {
        // What may come behind the bytes announced is not waited for: a connection can stay open for ever.
        let Some(segment) = self.planned.front() else { return Ok(Next::End) };
        if segment.length > room_bytes {
            self.source = Source::Here(source);
            return Ok(Next::TooLarge);
        }
        let segment = self.planned.pop_front().expect("it was looked at");
        let Geometry { block_bytes, originals, granule_bytes, .. } = segment.geometry;
        let memory = self.client.memory.hold(self.blocks_bytes(segment.length));
        let granule = match segment.code {
            CodeKind::Lt { .. } => None,
            _ => Some(Granule::new(granule_bytes).expect("the layout's own granules are valid")),
        };
        let (turn, comes) = oneshot::channel();
        let (blocks, giving) = source::read(source, segment.length, block_bytes, originals, granule, comes);
        self.source = Source::Giving(segment.offset, giving);
        self.ready(segment, blocks, Some(turn), memory, size).await
    }

    /// Of a source whose end is not known: read whole before its blocks are cut.
    async fn next_of_unknown(&mut self, source: Pieces, room_bytes: u64) -> Result<Next, PutError> {
        let most = self.segment_bytes();
        if most > room_bytes {
            self.source = Source::Here(source);
            return Ok(Next::TooLarge);
        }
        let (taken, source) = source::take(source, most).await;
        let (taken, more) = taken.map_err(PutError::Source)?;
        let length: u64 = taken.iter().map(|piece| piece.len() as u64).sum();
        // Only a whole object can be small enough for replicas: a last short segment stays coded.
        let segment = if self.begun_bytes == 0 {
            plan::segments(length, &self.policy)[0]
        } else {
            plan::following(most, self.begun_bytes, length, &self.policy)
        };
        if more {
            self.source = Source::Here(source);
        }
        let Geometry { block_bytes, originals, .. } = segment.geometry;
        let memory = self.client.memory.hold(self.blocks_bytes(length));
        let blocks = Originals::whole(taken, block_bytes, originals);
        self.ready(segment, blocks, None, memory, length).await
    }

    async fn ready(
        &mut self,
        segment: SegmentPlan,
        originals: Arc<Originals>,
        turn: Option<oneshot::Sender<()>>,
        memory: Option<Held>,
        object_bytes: u64,
    ) -> Result<Next, PutError> {
        self.begun_bytes += segment.length;
        let name = self.name().await?;
        let redundancy = Rule::of(&self.policy).redundancy;
        let (spec, code) =
            segment.code(self.client.seed ^ name.0, redundancy).map_err(|error| no_code(&segment, &error))?;
        let (geometry, version) = (segment.geometry, self.version);
        let maker = Maker::new((name, version), geometry, &code, spec, originals, redundancy, 0);
        let maker = Arc::new(maker);
        let encodes = !self.offloads || segment.scheme != Scheme::Parity;
        let spread_bytes = match segment.scheme {
            // Each segment is on devices of its own.
            Scheme::Parity => segment.length,
            _ => object_bytes.min(self.client.options.segment_bytes_of(self.size)),
        };
        let ready = Ready {
            segment,
            maker,
            spec,
            code,
            spread_bytes,
            encodes,
            turn,
            preparing: None,
            _memory: memory,
        };
        Ok(Next::Segment(Box::new(ready)))
    }

    /// Bytes of a segment's blocks, as many as the policy asks for.
    fn blocks_bytes(&self, segment_bytes: u64) -> u64 {
        (segment_bytes as f64 * (1.0 + Rule::of(&self.policy).redundancy)) as u64
    }

    /// Bytes of the largest segments.
    fn segment_bytes(&self) -> u64 {
        plan::segment_bytes(&self.policy, self.client.options.segment_bytes_of(self.size))
    }

    async fn name(&mut self) -> Result<SegmentId, ClientError> {
        if let Some(name) = self.names.pop_front() {
            return Ok(name);
        }
        // All that are known of, within what one request may name; else a few at a time: an endless source asks seldom.
        let known = u32::try_from(self.planned.len()).unwrap_or(u32::MAX).saturating_add(1);
        let segments = known.clamp(4, SEGMENTS_PER_REQUEST_MAX);
        let more = Change::MoreSegments { intent: self.intent, segments };
        match self.client.metadata.change_under(self.lease_ms, more).await? {
            MetaAnswer::Segments(names) => {
                self.names.extend(names);
                self.names.pop_front().ok_or_else(|| ClientError::Protocol("no segment was named".to_owned()))
            }
            other => Err(unexpected("Segments", &other)),
        }
    }
}

/// A segment as planned has no code.
pub(crate) fn no_code(planned: &SegmentPlan, error: &CodeError) -> ClientError {
    ClientError::Protocol(format!("no code for K = {}: {error}", planned.geometry.originals))
}
