//! Accesses by name: what a client asks of the metadata server before it reads a segment, and around a write of one. One
//! request keeps its id until an answer comes, however often it has to be asked, as the real client's does.

use crate::{client::MakeNamed, message::StreamId, random::mix};
use core::time::Duration;
use steadfast_protocol::{
    Epoch, IntentId, RequestId, SegmentId, Version,
    layout::{CodeSpec, SegmentLayout},
    message::{Change, MetaAnswer, MetaFault, MetaRequest, PutBegun, Query},
    policy::Pledge,
    question::Question,
    write::{WriteDone, WriteSpec},
};

/// The read of an object of one segment by its name.
pub struct GetAccess {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// What its bytes are made from.
    pub contents: u64,
    /// The core, made when the layout is known.
    pub core: MakeNamed,
    /// From the last block needed until the bytes are there.
    pub decoding: Duration,
}

/// The write of an object of one segment by its name.
pub struct PutAccess {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Bytes of the object.
    pub length: u64,
    /// Its code as the layout names it.
    pub code: CodeSpec,
    /// How it is written, and where to.
    pub spec: WriteSpec,
    /// Bytes under one checksum.
    pub granule_bytes: u32,
    /// What its bytes are made from.
    pub contents: u64,
}

/// Why an access by name came to nothing before or after its blocks moved.
#[derive(Clone, Debug, PartialEq)]
pub enum Refused {
    /// The metadata server says so.
    Fault(MetaFault),
    /// It did not answer.
    Unanswered,
    /// It answered what this client cannot use.
    Unusable(String),
}

/// What a client waits to be told.
pub(crate) struct Asking {
    pub(crate) request: MetaRequest,
    /// The stream that it was asked on last, while that is open.
    pub(crate) stream: Option<StreamId>,
    /// Since it was first asked.
    pub(crate) question: Option<Question>,
    pub(crate) then: Then,
}

/// What it does then.
pub(crate) enum Then {
    /// Reads.
    Get(GetAccess),
    /// Writes.
    Put(Box<PutAccess>),
    /// Says that it is stored.
    Committed(SegmentId, WriteDone),
    /// Nothing: an answer came.
    Over,
}

/// What a write that was begun by name is committed with.
pub(crate) struct Commit {
    pub(crate) intent: IntentId,
    version: Version,
    epoch: Epoch,
    segment: SegmentId,
    length: u64,
    code: CodeSpec,
    block_bytes: u32,
    granule_bytes: u32,
}

impl Asking {
    fn new(request: MetaRequest, then: Then) -> Self {
        Self { request, stream: None, question: None, then }
    }

    pub(crate) fn get(access: GetAccess) -> Self {
        let (bucket, key) = (access.bucket.clone(), access.key.clone());
        Self::new(MetaRequest::Ask(Query::Lookup { bucket, key }), Then::Get(access))
    }

    pub(crate) fn put(number: u64, access: PutAccess) -> Self {
        let (bucket, key) = (access.bucket.clone(), access.key.clone());
        let change = Change::BeginPut { bucket, key, segments: 1 };
        Self::new(MetaRequest::Change { id: id(number, 0), change }, Then::Put(Box::new(access)))
    }

    pub(crate) fn commit(number: u64, commit: &Commit, done: WriteDone) -> Self {
        let change = Change::Commit {
            intent: commit.intent,
            size: commit.length,
            segments: vec![commit.layout(&done)],
            pledge: Pledge::default(),
            base: None,
        };
        let then = Then::Committed(commit.segment, done);
        Self::new(MetaRequest::Change { id: id(number, 1), change }, then)
    }
}

/// The name of the `count`th change of an access: no two accesses of a world share one.
fn id(access: u64, count: u64) -> RequestId {
    RequestId { client: u128::from(mix(access)) << 64 | u128::from(access), count }
}

impl Commit {
    /// # Errors
    /// When the put was given no segment.
    pub(crate) fn of(begun: &PutBegun, put: &PutAccess) -> Result<Self, Refused> {
        let segment = begun.segments.first().copied();
        Ok(Self {
            intent: begun.intent,
            version: begun.version,
            epoch: begun.epoch,
            segment: segment.ok_or_else(|| Refused::Unusable("a put of no segment".to_owned()))?,
            length: put.length,
            code: put.code,
            block_bytes: put.spec.block_bytes,
            granule_bytes: put.granule_bytes,
        })
    }

    pub(crate) fn segment(&self) -> (SegmentId, Version, Epoch) {
        (self.segment, self.version, self.epoch)
    }

    fn layout(&self, done: &WriteDone) -> SegmentLayout {
        let stored =
            |share: &steadfast_protocol::layout::Share| share.clone().stored(self.segment, self.version);
        SegmentLayout {
            segment: self.segment,
            version: self.version,
            epoch: self.epoch,
            length: self.length,
            code: self.code,
            block_bytes: self.block_bytes,
            granule_bytes: self.granule_bytes,
            holders: done.holders.iter().map(stored).collect(),
        }
    }
}

/// The one segment of an object that was looked up.
///
/// # Errors
/// When it has none, or several.
pub(crate) fn only(segments: Vec<SegmentLayout>) -> Result<SegmentLayout, Refused> {
    let several = |segments: Vec<SegmentLayout>| {
        Refused::Unusable(format!("an object of {} segments: one is read here", segments.len()))
    };
    <[SegmentLayout; 1]>::try_from(segments).map(|[layout]| layout).map_err(several)
}

/// An answer that nobody asked for.
pub(crate) fn unexpected(answer: &MetaAnswer) -> Refused {
    Refused::Unusable(format!("{answer:?}"))
}
