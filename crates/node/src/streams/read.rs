//! Drives one [`ReadStream`]: slices from the lane to the connection, their checksums with them. A stream reads the
//! pieces that it names one after the other, under one admission and one credit.
//!
//! A version of a chunk that changes is not named before it is durable: it would be lost by a crash and stamped again with other bytes, and
//! the reader, who has those of before, could not tell them from what parity has under the same number.

use crate::{
    activity::Kind,
    devices::ServedDevice,
    fault::fault,
    service::{AdmittedRead, Service, gone, indices, lane_priority, operations},
    updates::returned,
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
};
use steadfast_disk::{
    Op, OpError, OpOutput, Priority as LanePriority, device::ReadError, media::MediumError,
};
use steadfast_net::{Event, Opened, Stream, StreamSender};
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch, IndexRanges, ReservationId, SegmentId,
    layout::PIECES_PER_HOLDER_MAX,
    message::{
        self, Fault, NodeAnswer, NodeEvent, NodeFault, NodePush, PAYLOAD_BYTES_MAX, ReadPiece, ReadState,
        Slice, Want,
    },
    serve::{ReadAction, ReadInput, ReadResult, ReadStream, ReaderId, SliceId},
};
use tokio::sync::mpsc;

type Answer = (SliceId, Result<OpOutput, OpError>);

/// A slice that was read, and what its extent held then.
struct Held {
    data: Bytes,
    sums: Vec<u32>,
    state: ReadState,
}

/// Serves a read to its end; a fault is the caller's to answer with.
pub(crate) async fn serve(
    service: &Service,
    opened: &Opened,
    stream: &mut Stream,
    device: DeviceId,
    pieces: Vec<ReadPiece>,
    reservation: Option<ReservationId>,
    reader: ReaderId,
) -> Result<(), Fault> {
    let served = &*service.device(device)?;
    check(&pieces)?;
    let mut early = Vec::new();
    let found = {
        // What it names is held meanwhile: it has a place among the streams for that, too.
        let load = service.load(served, false, reservation);
        let _looking = service.admit_quietly(reader, opened.priority, load)?;
        tokio::select! {
            found = find(service, served, &pieces, opened.epoch) => found?,
            fault = gone(stream, &mut early) => return Err(fault),
        }
    };
    drop(pieces);
    // Whole granules, which divide the largest payload.
    let slice_bytes = found.block_bytes.min(PAYLOAD_BYTES_MAX);
    let load = service.load(served, false, reservation);
    let admitted = service.admit_read(reader, opened.priority, load, slice_bytes)?;
    let slices_max = admitted.ticket.slices_max;
    service.activity.admitted(Kind::Read);
    let (places, blocks) = (found.places, found.blocks);
    let core = ReadStream::new(blocks, found.block_bytes, slice_bytes, slices_max, opened.credit);
    let (answer, answers) = mpsc::unbounded_channel();
    let driver = Driver {
        service,
        served,
        places,
        reservation,
        class: lane_priority(opened.priority),
        lane_stream: service.lane_stream(),
        core,
        admitted,
        charged: BTreeMap::new(),
        held: BTreeMap::new(),
        doubtful: BTreeMap::new(),
        told: ReadState::default(),
        sending: Vec::new(),
        answer,
        answers,
    };
    driver.run(stream, early).await
}

/// Refuses a request that names no pieces, too many, or one twice.
fn check(pieces: &[ReadPiece]) -> Result<(), Fault> {
    if pieces.is_empty() || pieces.len() > PIECES_PER_HOLDER_MAX {
        let given = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        return Err(Fault::Node(NodeFault::Pieces { given }));
    }
    let mut named = BTreeSet::new();
    match pieces.iter().find(|piece| !named.insert(piece.segment)) {
        None => Ok(()),
        Some(twice) => {
            Err(Fault::Node(NodeFault::Invalid(format!("a read names segment {} twice", twice.segment))))
        }
    }
}

/// What a read is to send, and where it lies.
struct Found {
    /// In the order to send: piece after piece, each as it lies.
    blocks: Vec<BlockIndex>,
    places: Places,
    block_bytes: u32,
}

/// The segment that each block is stored under; no block is listed twice.
struct Places(Vec<(IndexRanges, SegmentId)>);

impl Places {
    fn segment_of(&self, index: BlockIndex) -> SegmentId {
        let place = self.0.iter().find(|(blocks, _)| blocks.contains(index));
        place.expect("the stream has only blocks that were found").1
    }
}

/// Finds the pieces, once they may be read. One that is not here is left out: its blocks are gone, as blocks are that its extent has no more.
async fn find(
    service: &Service,
    served: &ServedDevice,
    pieces: &[ReadPiece],
    epoch: Epoch,
) -> Result<Found, Fault> {
    let device = served.id;
    let describe = pieces.iter().map(|piece| Op::Describe { segment: piece.segment });
    let described = operations(service, served, LanePriority::Interactive, describe).await;
    let (mut blocks, mut places, mut known) = (Vec::new(), Vec::new(), IndexRanges::new());
    let mut block_bytes = None;
    for (piece, described) in pieces.iter().zip(described) {
        let extent = match described {
            Ok(OpOutput::Described(Some(extent))) if extent.version == piece.version => extent,
            Ok(OpOutput::Described(_)) => continue,
            Ok(other) => unreachable!("a description answers a description, not {other:?}"),
            Err(error) => return Err(Fault::Node(fault(device, error))),
        };
        returned::before_blocks(service, served, &extent, epoch).await?;
        if *block_bytes.get_or_insert(extent.block_bytes) != extent.block_bytes {
            let detail = format!("segment {} has blocks of another size than the first", piece.segment);
            return Err(Fault::Node(NodeFault::Invalid(detail)));
        }
        let held = indices(&extent.blocks).difference(&known);
        let wanted = match &piece.want {
            Want::All => held,
            Want::Blocks(wanted) => held.intersection(wanted),
        };
        blocks.extend(extent.blocks.iter().flat_map(Clone::clone).filter(|&index| wanted.contains(index)));
        known.insert_all(&wanted);
        places.push((wanted, piece.segment));
    }
    match block_bytes {
        Some(block_bytes) => Ok(Found { blocks, places: Places(places), block_bytes }),
        None => Err(Fault::Node(NodeFault::UnknownSegment { device, segment: pieces[0].segment })),
    }
}

struct Driver<'a> {
    service: &'a Service,
    served: &'a ServedDevice,
    places: Places,
    reservation: Option<ReservationId>,
    class: LanePriority,
    lane_stream: u64,
    core: ReadStream,
    /// What it may hold, charged with what it does; given back with the driver.
    admitted: AdmittedRead<'a>,
    /// Slices that are being read, wait or are being sent: of which blocks, and their bytes.
    charged: BTreeMap<SliceId, (BlockIndex, u32)>,
    /// Slices that were read and wait for their turn.
    held: BTreeMap<SliceId, Held>,
    /// Slices that were read of a chunk that changed, until that is durable.
    doubtful: BTreeMap<SliceId, Held>,
    /// What the reader knows of the chunk that it reads.
    told: ReadState,
    /// Slices that the connection has and may not have sent.
    sending: Vec<SliceId>,
    answer: mpsc::UnboundedSender<Answer>,
    answers: mpsc::UnboundedReceiver<Answer>,
}

impl Drop for Driver<'_> {
    /// A driver that is dropped before its end starts no further I/O either.
    fn drop(&mut self) {
        self.served.paced.cancel(self.lane_stream);
    }
}

impl Driver<'_> {
    async fn run(mut self, stream: &mut Stream, early: Vec<Event>) -> Result<(), Fault> {
        let sender = stream.sender();
        let mut listening = true;
        for event in early {
            self.heard(Some(event), &mut listening)?;
        }
        loop {
            while let Some(action) = self.next_action(&sender) {
                match action {
                    ReadAction::Read { slice, index, offset, length, ahead } => {
                        self.read(slice, index, offset, length, ahead)
                    }
                    ReadAction::Send { slice, index, offset } => self.send(stream, slice, index, offset),
                    ReadAction::Discard { slice } => {
                        self.held.remove(&slice);
                        self.left(slice);
                    }
                    ReadAction::Withdraw => self.served.paced.cancel(self.lane_stream),
                    ReadAction::End(done) => {
                        // Lost: nobody is left to tell.
                        let _ = stream.end(message::encode(&NodeAnswer::Read(done)));
                        // While the connection is full the rest stays charged, and a CANCEL takes it back.
                        if !self.sending.is_empty() {
                            let _ = sender.ready().await;
                        }
                        return Ok(());
                    }
                    ReadAction::Fail(fault) => return Err(fault),
                }
            }
            let now = self.service.now();
            let service = self.service;
            // Before the question, so that what is wanted in between is not missed.
            let wanted = service.memory_wanted.notified();
            let could_yield = self.core.could_yield();
            tokio::select! {
                biased;
                event = stream.recv(), if listening => self.heard(event, &mut listening)?,
                Some(answer) = self.answers.recv() => {
                    self.answered(answer);
                    while let Ok(answer) = self.answers.try_recv() {
                        self.answered(answer);
                    }
                },
                ready = sender.ready(), if !self.sending.is_empty() => {
                    for slice in std::mem::take(&mut self.sending) {
                        self.left(slice);
                        self.core.handle(now, ReadInput::Sent { slice });
                    }
                    if ready.is_err() && std::mem::replace(&mut listening, false) {
                        self.service.activity.cancelled(Kind::Read);
                        self.core.handle(now, ReadInput::Cancel);
                    }
                },
                () = wanted, if could_yield => {
                    // Others that could yield may have made room by now.
                    if service.admission().is_wanted() {
                        self.core.handle(service.now(), ReadInput::Wanted);
                    }
                },
            }
        }
    }

    /// The next action but for reads for which there is no room: they wait for a slice of this stream to leave. Beyond its floor it reads
    /// nothing that the connection would not take either.
    fn next_action(&mut self, sender: &StreamSender) -> Option<ReadAction> {
        if let Some(action) = self.core.poll_but_reads() {
            return Some(action);
        }
        let bytes = self.core.next_read_bytes()?;
        if !self.charged.is_empty() && !sender.is_ready() {
            return None;
        }
        let AdmittedRead { service, ticket } = &mut self.admitted;
        service.admission().slice_read(ticket, bytes).then(|| self.core.poll())?
    }

    /// A slice is not held any more.
    fn left(&mut self, slice: SliceId) {
        if let Some((_, bytes)) = self.charged.remove(&slice) {
            let AdmittedRead { service, ticket } = &mut self.admitted;
            service.admission().slice_left(ticket, bytes);
        }
    }

    fn heard(&mut self, event: Option<Event>, listening: &mut bool) -> Result<(), Fault> {
        let now = self.service.now();
        match event {
            Some(Event::Credit(bytes)) => self.core.handle(now, ReadInput::Credit(bytes)),
            Some(Event::Cancelled | Event::Lost(_)) | None => {
                *listening = false;
                self.service.activity.cancelled(Kind::Read);
                self.core.handle(now, ReadInput::Cancel);
            }
            Some(Event::Data { body, .. }) => match message::decode(&body) {
                Ok(NodePush::Finish) => self.core.handle(now, ReadInput::Finish),
                _ => return Err(Fault::Protocol("a read takes no data".to_owned())),
            },
            Some(Event::End(_) | Event::Failed(_)) => {
                return Err(Fault::Protocol("only this end answers".to_owned()));
            }
        }
        Ok(())
    }

    fn read(&mut self, slice: SliceId, index: BlockIndex, offset: u32, length: u32, ahead: u32) {
        self.charged.insert(slice, (index, length));
        let op = Op::ReadSlice { segment: self.places.segment_of(index), index, offset, len: length, ahead };
        let answer = self.answer.clone();
        // The stream is over: its bytes are not needed.
        let reply = Box::new(move |result| drop(answer.send((slice, result))));
        self.served.paced.submit(self.lane_stream, self.reservation, self.class, op, reply);
    }

    fn send(&mut self, stream: &Stream, slice: SliceId, index: BlockIndex, offset: u32) {
        let Held { data: payload, sums, state } =
            self.held.remove(&slice).expect("a slice that was read is held");
        if state != self.told {
            // Lost: the next event says so, and cancels.
            let _ = stream.send_now(message::encode(&NodeEvent::State(state.clone())), Bytes::new());
            self.told = state;
        }
        self.served.stream_sent_bytes.fetch_add(payload.len() as u64, Relaxed);
        let body = message::encode(&NodeEvent::Slice(Slice { index, offset, sums }));
        // Lost: the next event says so, and cancels.
        let _ = stream.send_now(body, payload);
        self.sending.push(slice);
    }

    /// Makes durable what a slice shows.
    fn settle(&mut self, slice: SliceId, held: Held) {
        self.doubtful.insert(slice, held);
        let answer = self.answer.clone();
        let reply = Box::new(move |result| drop(answer.send((slice, result))));
        self.served.lane.submit(self.lane_stream, LanePriority::Interactive, Op::Barrier, reply);
    }

    fn answered(&mut self, (slice, answer): Answer) {
        let result = match answer {
            Ok(OpOutput::Durable) => {
                let held = self.doubtful.remove(&slice).expect("asked for a slice that was read");
                self.held.insert(slice, held);
                ReadResult::Good
            }
            Ok(OpOutput::Slice { data, sums, state, durable, .. }) => {
                self.served.stream_read_bytes.fetch_add(data.len() as u64, Relaxed);
                let state = state.map_or_else(ReadState::default, |state| ReadState {
                    version: state.version,
                    merged: state.merged,
                    logged: state.logged,
                });
                let held = Held { data, sums, state };
                if !durable && !self.core.is_stopping() {
                    return self.settle(slice, held);
                }
                self.held.insert(slice, held);
                ReadResult::Good
            }
            Ok(other) => unreachable!("a read is answered by a slice, not {other:?}"),
            Err(OpError::Read(ReadError::Corrupt { segment, index, .. })) => {
                self.served.tell_corrupt(segment, index);
                ReadResult::Corrupt
            }
            // The lane counts it, and knows a disk that gives nothing at all.
            Err(error @ OpError::Read(ReadError::Medium(MediumError::Io { .. }))) => {
                let (index, _) = *self.charged.get(&slice).expect("what is being read is charged");
                self.served.tell_corrupt(self.places.segment_of(index), index);
                ReadResult::Unreadable(fault(self.served.id, error))
            }
            Err(OpError::Read(ReadError::NoExtent { .. } | ReadError::NoBlock { .. })) => ReadResult::Gone,
            Err(OpError::Cancelled) => ReadResult::Withdrawn,
            Err(error) => ReadResult::Failed(fault(self.served.id, error)),
        };
        if result != ReadResult::Good {
            self.doubtful.remove(&slice);
            self.left(slice);
        }
        self.core.handle(self.service.now(), ReadInput::ReadDone { slice, result });
    }
}
