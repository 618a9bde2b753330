//! Drives one [`WriteStream`]: slices from the connection, joined to blocks, to the lane; confirmations back.
//!
//! The checksums of slices are verified as they arrive, while the processor's cache still has what came from the socket: the lane's
//! thread would fetch all of it again. Blocks of which a slice did not match are left to the device, which refuses them.

use crate::{
    activity::Kind,
    devices::ServedDevice,
    fault::{fault, write_fault},
    service::{Service, gone, indices, lane_priority, operation},
};
use bytes::{Bytes, BytesMut};
use steadfast_disk::{
    ExtentSpec, Granule, Op, OpError, OpOutput, Priority as LanePriority, Updates, checksum,
    device::CreateError,
};
use steadfast_net::{Event, Opened, Stream};
use steadfast_protocol::{
    BlockIndex, Epoch, IndexRanges, ReservationId,
    message::{self, Fault, NodeAnswer, NodeEvent, NodeFault, NodePush, WriteOpen},
    serve::{ReaderId, WriteAction, WriteInput, WriteStream},
};
use tokio::sync::mpsc;

type Answer = (BlockIndex, Result<OpOutput, OpError>);

/// Serves a write to its end; a fault is the caller's to answer with.
pub(crate) async fn serve(
    service: &Service,
    opened: &Opened,
    stream: &mut Stream,
    open: WriteOpen,
    reservation: Option<ReservationId>,
    reader: ReaderId,
) -> Result<(), Fault> {
    let served = &*service.device(open.device)?;
    let load = service.load(served, true, reservation);
    let _admitted = service.admit_quietly(reader, opened.priority, load)?;
    service.activity.admitted(Kind::Write);
    // Before the extent: a stream that finds no room leaves none.
    let nothing = IndexRanges::new();
    let core = WriteStream::new(service.now(), &open, nothing, load.bytes_per_s, &mut service.budget());
    let core = core.inspect_err(|_| service.budget_wanted.notify_waiters())?;
    let (answer, answers) = mpsc::unbounded_channel();
    let mut driver = Driver {
        service,
        served,
        epoch: opened.epoch,
        reservation,
        class: lane_priority(opened.priority),
        lane_stream: service.lane_stream(),
        open,
        core,
        arriving: Arriving::default(),
        answer,
        answers,
    };
    let mut early = Vec::new();
    let held = tokio::select! {
        held = create(service, served, opened.epoch, &driver.open) => held?,
        fault = gone(stream, &mut early) => {
            service.activity.cancelled(Kind::Write);
            return Err(fault);
        }
    };
    driver.core.begin(service.now(), held);
    driver.run(stream, early).await
}

/// Makes the extent, or finds it; gives the blocks it holds.
async fn create(
    service: &Service,
    served: &ServedDevice,
    epoch: Epoch,
    open: &WriteOpen,
) -> Result<IndexRanges, Fault> {
    let granule = Granule::new(open.granule_bytes).map_err(|error| Fault::Protocol(error.to_string()))?;
    let spec = ExtentSpec {
        segment: open.segment,
        version: open.version,
        epoch,
        block_bytes: open.block_bytes,
        granule,
        expected_blocks: open.expected_blocks,
        updates: open.reserve_bytes.map(|reserve_bytes| Updates { reserve_bytes }),
    };
    let make = |spec| operation(service, served, LanePriority::Interactive, Op::CreateExtent(spec));
    let made = match make(spec).await {
        // A chunk on so small a device is stored anew where it changes.
        Err(OpError::Create(CreateError::JournalTooSmall { .. })) => {
            make(ExtentSpec { updates: None, ..spec }).await
        }
        made => made,
    };
    match made {
        Ok(OpOutput::Created(extent)) => Ok(indices(&extent.blocks)),
        Ok(other) => unreachable!("a creation answers with the extent, not {other:?}"),
        Err(error) => {
            let fault = fault(served.id, error);
            if matches!(fault, NodeFault::Full(_)) {
                served.note_full(true);
            }
            Err(Fault::Node(fault))
        }
    }
}

/// Slices of the block that is arriving, and their checksums.
struct Arriving {
    pieces: Vec<Bytes>,
    sums: Vec<u32>,
    /// The slices match them.
    intact: bool,
}

impl Default for Arriving {
    fn default() -> Self {
        Self { pieces: Vec::new(), sums: Vec::new(), intact: true }
    }
}

impl Arriving {
    /// Keeps a slice that the core has judged: one that it did not take made it stop, and then nothing is kept. Checksums are not
    /// under the stream's credit.
    fn judged(
        &mut self,
        core: &WriteStream,
        open: &WriteOpen,
        index: BlockIndex,
        payload: Bytes,
        sums: Vec<u32>,
    ) {
        if core.is_stopping() {
            return *self = Self::default();
        }
        let granule = Granule::new(open.granule_bytes).expect("the extent was made with it");
        let first = self.sums.len() as u32;
        self.intact &=
            checksum::verify(&payload, granule, open.segment, open.version, index, first, &sums).is_ok();
        self.pieces.push(payload);
        self.sums.extend(sums);
    }
}

struct Driver<'a> {
    service: &'a Service,
    served: &'a ServedDevice,
    epoch: Epoch,
    reservation: Option<ReservationId>,
    class: LanePriority,
    lane_stream: u64,
    open: WriteOpen,
    core: WriteStream,
    arriving: Arriving,
    answer: mpsc::UnboundedSender<Answer>,
    answers: mpsc::UnboundedReceiver<Answer>,
}

impl Driver<'_> {
    async fn run(mut self, stream: &mut Stream, early: Vec<Event>) -> Result<(), Fault> {
        let mut listening = true;
        for event in early {
            self.heard(Some(event), &mut listening);
        }
        loop {
            while let Some(action) = self.core.poll() {
                match action {
                    WriteAction::Grant(bytes) => drop(stream.grant(bytes)),
                    WriteAction::Write { index } => self.write(index),
                    WriteAction::Confirm { blocks } => {
                        let body = message::encode(&NodeEvent::Confirmed { blocks });
                        // Lost: the next event says so, and cancels.
                        let _ = stream.send_now(body, Bytes::new());
                    }
                    WriteAction::Withdraw => self.served.paced.cancel(self.lane_stream),
                    WriteAction::End { blocks } => {
                        // Lost: nobody is left to tell; the sweep finds what was written.
                        let _ = stream.end(message::encode(&NodeAnswer::Written { blocks }));
                        return Ok(());
                    }
                    WriteAction::Fail(fault) => return Err(fault),
                }
            }
            // Before the question, so that what is freed in between is not missed.
            let service = self.service;
            let freed = service.budget_freed.notified();
            let wanted = service.budget_wanted.notified();
            let (starved, could_yield) = (self.core.is_starved(), self.core.could_yield());
            tokio::select! {
                biased;
                Some(answer) = self.answers.recv() => {
                    self.answered(answer);
                    while let Ok(answer) = self.answers.try_recv() {
                        self.answered(answer);
                    }
                },
                event = stream.recv(), if listening => self.heard(event, &mut listening),
                () = freed, if starved => self.tell(WriteInput::Tick),
                () = wanted, if could_yield => self.tell(WriteInput::Tick),
            }
        }
    }

    fn heard(&mut self, event: Option<Event>, listening: &mut bool) {
        match event {
            Some(Event::Data { body, payload }) => self.pushed(&body, payload),
            Some(Event::Credit(_)) => {}
            Some(Event::Cancelled | Event::Lost(_) | Event::End(_) | Event::Failed(_)) | None => {
                *listening = false;
                self.service.activity.cancelled(Kind::Write);
                self.tell(WriteInput::Cancel);
            }
        }
    }

    fn pushed(&mut self, body: &[u8], payload: BytesMut) {
        match message::decode::<NodePush>(body) {
            Ok(NodePush::Slice(slice)) => {
                let bytes = u32::try_from(payload.len()).expect("a payload fits a frame");
                let sums = u32::try_from(slice.sums.len()).unwrap_or(u32::MAX);
                self.tell(WriteInput::Slice { index: slice.index, offset: slice.offset, bytes, sums });
                self.arriving.judged(&self.core, &self.open, slice.index, payload.freeze(), slice.sums);
            }
            Ok(NodePush::Finish) => self.tell(WriteInput::Finish),
            Ok(NodePush::Log(_)) => {
                self.tell(WriteInput::Violation { what: "a write takes no differences".to_owned() });
            }
            Err(error) => self.tell(WriteInput::Violation { what: error.to_string() }),
        }
    }

    fn write(&mut self, index: BlockIndex) {
        // As they came: a slice is whole granules, and its buffer page-aligned.
        let Arriving { pieces, sums, intact } = std::mem::take(&mut self.arriving);
        let checked = intact.then_some(self.open.version);
        let (segment, more) = (self.open.segment, self.core.expects_more());
        let op = Op::WriteBlock { segment, epoch: self.epoch, index, pieces, sums, checked, more };
        let answer = self.answer.clone();
        // The stream is over: nobody waits for the confirmation.
        let reply = Box::new(move |result| drop(answer.send((index, result))));
        self.served.paced.submit(self.lane_stream, self.reservation, self.class, op, reply);
    }

    fn answered(&mut self, (index, answer): Answer) {
        let result = match answer {
            Ok(_) => Ok(()),
            Err(error) => Err(write_fault(self.served.id, index, error)),
        };
        match &result {
            Ok(()) => self.served.note_full(false),
            Err(NodeFault::Full(_)) => self.served.note_full(true),
            Err(_) => {}
        }
        self.tell(WriteInput::Written { index, result });
    }

    fn tell(&mut self, input: WriteInput) {
        let now = self.service.now();
        let mut budget = self.service.budget();
        let before = budget.used_bytes();
        self.core.handle(now, input, &mut budget);
        if self.core.is_stopping() {
            self.arriving = Arriving::default();
        }
        if budget.used_bytes() < before {
            self.service.budget_freed.notify_waiters();
        }
    }
}

impl Drop for Driver<'_> {
    /// A driver that is dropped before its end starts no further I/O and gives its budget back.
    fn drop(&mut self) {
        self.served.paced.cancel(self.lane_stream);
        self.core.abandon(&mut self.service.budget());
        self.service.budget_freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;
    use steadfast_protocol::{DeviceId, IntentId, SegmentId, Time, Version, serve::Budget};

    const GRANULE: u32 = 64 << 10;

    fn open() -> WriteOpen {
        WriteOpen {
            device: DeviceId(1),
            segment: SegmentId(1),
            version: Version(1),
            intent: IntentId(1),
            block_bytes: 2 * GRANULE,
            granule_bytes: GRANULE,
            expected_blocks: 16,
            reserve_bytes: None,
        }
    }

    #[test]
    fn what_the_core_did_not_take_is_not_kept() {
        let open = open();
        let mut budget = Budget::new(1 << 20);
        let mut core = WriteStream::new(Time(0), &open, IndexRanges::new(), 0, &mut budget).unwrap();
        let mut arriving = Arriving::default();
        let mut slice = |core: &mut WriteStream, offset, sums: Vec<u32>| {
            let input = WriteInput::Slice { index: 0, offset, bytes: GRANULE, sums: sums.len() as u32 };
            core.handle(Time(0), input, &mut budget);
            arriving.judged(core, &open, 0, Bytes::from(vec![0; GRANULE as usize]), sums);
            (arriving.pieces.len(), arriving.sums.len())
        };
        assert_eq!(slice(&mut core, 0, vec![7]), (1, 1));
        // Not the rest of the block, and more checksums than any has.
        for _ in 0..3 {
            assert_eq!(slice(&mut core, 0, vec![7; 100_000]), (0, 0));
        }
        assert!(core.is_stopping());
    }

    #[test]
    fn a_block_is_intact_if_each_of_its_slices_is() {
        let open = open();
        let block: Bytes = (0..2 * GRANULE).map(|at| (at / 7) as u8).collect::<Vec<_>>().into();
        let granule = Granule::new(GRANULE).unwrap();
        let good = checksum::sums(&block, granule, open.segment, open.version, 3);
        let elsewhere = checksum::sums(&block, granule, open.segment, open.version, 4);
        for (sums, intact) in [
            ([good[0], good[1]], true),
            ([good[0] ^ 1, good[1]], false),
            ([good[0], good[1] ^ 1], false),
            ([good[1], good[0]], false),
            ([elsewhere[0], elsewhere[1]], false),
        ] {
            let mut budget = Budget::new(1 << 20);
            let core = WriteStream::new(Time(0), &open, IndexRanges::new(), 0, &mut budget).unwrap();
            let mut arriving = Arriving::default();
            for (slice, sum) in block.chunks(GRANULE as usize).zip(sums) {
                arriving.judged(&core, &open, 3, Bytes::copy_from_slice(slice), vec![sum]);
            }
            assert_eq!(arriving.intact, intact);
        }
    }
}
