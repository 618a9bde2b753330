//! A segment whose primary this node is: its originals arrive, go on to the devices of the data chunks, and are encoded
//! (CodFS §5.3; the protocol is in [`steadfast_protocol::write::ingest`]).
//!
//! What arrives is checked before it is used: parity made of wrong bytes would agree with nothing. Chunks for devices of this
//! node go the same way as all others, through its own port.

use crate::{
    activity::Kind,
    service::{Service, gone},
};
use bytes::BytesMut;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use steadfast_disk::{Granule, checksum};
use steadfast_net::{Event as NetEvent, Opened, Stream, payload_buffer};
use steadfast_protocol::{
    DeviceId, Time,
    layout::{Geometry, PARITY_GRANULE_BYTES},
    message::{
        self, Fault, IngestOpen, Ingested, NodeAnswer, NodeEvent, NodeFault, NodePush, Priority, Slice,
    },
    policy::Policy,
    serve::{IngestStream, Load, ReaderId},
    write::{
        WriteDone, WriteError,
        ingest::{Accepted, accept},
    },
};
use steadfast_transfer::{Arriving, Event, Maker, Originals, Route, SegmentWriter};
use tokio::{sync::mpsc, task::JoinHandle};

/// Takes a segment and stores it; a fault is the caller's to answer with.
pub(crate) async fn serve(
    service: &Service,
    opened: &Opened,
    stream: &mut Stream,
    open: IngestOpen,
    reader: ReaderId,
) -> Result<(), Fault> {
    let accepted = accept(&open).map_err(|what| Fault::Node(NodeFault::Invalid(what)))?;
    let _admitted = service.admit_quietly(reader, opened.priority, Load::default())?;
    service.activity.admitted(Kind::Ingest);
    let taken = Taken::new(service, &accepted)?;
    let devices = open.devices.iter().chain(&open.spares).map(|place| place.device);
    let mut early = Vec::new();
    let addresses = tokio::select! {
        addresses = service.updates.addresses(devices.collect()) => addresses,
        fault = gone(stream, &mut early) => {
            service.activity.cancelled(Kind::Ingest);
            return Err(fault);
        }
    };
    let shape = accepted.shape;
    let (originals, arriving) = Originals::arriving(shape.block_bytes, shape.originals());
    let redundancy = accepted.spec.rule.redundancy;
    let maker = Maker::new(
        (open.segment, open.version),
        shape.geometry(),
        &accepted.spec.code,
        accepted.code,
        originals,
        redundancy,
        0,
    );
    let maker = Arc::new(maker);
    let ahead = Arc::clone(&maker);
    let _preparing = Preparing(tokio::spawn(async move { ahead.prepare_ahead().await }));
    let writer = SegmentWriter {
        route: Nodes { addresses, priority: opened.priority },
        pool: service.updates.pool().clone(),
        maker,
        policy: Policy::Parity(accepted.policy),
        epoch: opened.epoch,
        intent: open.intent,
    };
    let mut arrival = Arrival::new(&open, shape.geometry(), arriving, taken);
    for event in early {
        // What may be said before anything is granted.
        if let NetEvent::Data { body, payload } = event {
            arrival.heard(&body, &payload)?;
        }
    }
    // Lost: the writer is told so by the stream's next event.
    let _ = stream.grant(arrival.taken.credit_bytes);
    let (confirm, mut confirmed) = mpsc::unbounded_channel();
    let said = |event: &Event| {
        if let Event::Confirmed(blocks) = event {
            let _ = confirm.send(blocks.clone());
        }
    };
    let mut writing = std::pin::pin!(writer.run(accepted.spec, |_| {}, said, || {}));
    loop {
        let give_up = arrival.patience_left();
        tokio::select! {
            biased;
            Some(blocks) = confirmed.recv() => {
                let body = message::encode(&NodeEvent::Confirmed { blocks });
                let _ = stream.send_now(body, bytes::Bytes::new());
            }
            done = &mut writing => return answer(service, stream, &open, done),
            event = stream.recv() => match event {
                Some(NetEvent::Data { body, payload }) => arrival.heard(&body, &payload)?,
                Some(NetEvent::Credit(_)) => {}
                // What was begun ends with the streams of the writer; the client deletes what it left.
                _ => {
                    service.activity.cancelled(Kind::Ingest);
                    return Err(Fault::Cancelled);
                }
            },
            () = tokio::time::sleep(give_up.unwrap_or_default()), if give_up.is_some() => {
                return Err(Fault::DeadlinePassed);
            }
        }
    }
}

fn answer(
    service: &Service,
    stream: &mut Stream,
    open: &IngestOpen,
    done: Result<WriteDone, WriteError>,
) -> Result<(), Fault> {
    let done = done.map_err(|error| {
        // Some of them may be served elsewhere by now.
        service.updates.forget(open.devices.iter().chain(&open.spares).map(|place| place.device));
        Fault::Node(NodeFault::NotStored { segment: open.segment, detail: error.to_string() })
    })?;
    service.updates.forget(done.abandoned.iter().copied());
    let ingested = Ingested {
        holders: done.holders.into_iter().map(|share| (share.device, share.blocks)).collect(),
        abandoned: done.abandoned,
        pushed_blocks: done.pushed_blocks,
    };
    // Lost: nobody is left to tell; the sweep finds what was written.
    let _ = stream.end(message::encode(&NodeAnswer::Ingested(ingested)));
    Ok(())
}

/// The other nodes, as the writer reaches them.
struct Nodes {
    addresses: BTreeMap<DeviceId, String>,
    priority: Priority,
}

impl Route for Nodes {
    fn address(&self, device: DeviceId) -> Option<String> {
        self.addresses.get(&device).cloned()
    }

    fn priority(&self) -> Priority {
        self.priority
    }
}

/// Encoding ahead of what is asked for, until dropped.
struct Preparing(JoinHandle<()>);

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The memory that a segment takes; given back when dropped.
struct Taken<'a> {
    service: &'a Service,
    core: IngestStream,
    credit_bytes: u32,
}

impl<'a> Taken<'a> {
    fn new(service: &'a Service, accepted: &Accepted) -> Result<Self, Fault> {
        let (shape, patience) = (&accepted.shape, accepted.spec.patience);
        let mut budget = service.ingest_budget();
        let (core, credit_bytes) = IngestStream::new(service.now(), shape, patience, &mut budget)?;
        Ok(Self { service, core, credit_bytes })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.core.leave(&mut self.service.ingest_budget());
    }
}

/// The originals on their way in.
struct Arrival<'a> {
    open: &'a IngestOpen,
    geometry: Geometry,
    granule: Granule,
    taken: Taken<'a>,
    arriving: Arriving,
    /// What came of the block that has begun, and its granules' plain CRCs.
    block: BytesMut,
    crcs: Vec<u32>,
}

impl<'a> Arrival<'a> {
    fn new(open: &'a IngestOpen, geometry: Geometry, arriving: Arriving, taken: Taken<'a>) -> Self {
        let granule = Granule::new(PARITY_GRANULE_BYTES).expect("it is one of those allowed");
        Self { open, geometry, granule, taken, arriving, block: BytesMut::new(), crcs: Vec::new() }
    }

    fn heard(&mut self, body: &[u8], payload: &[u8]) -> Result<(), Fault> {
        let push = message::decode(body).map_err(|error| Fault::Protocol(error.to_string()))?;
        let NodePush::Slice(Slice { index, offset, mut sums }) = push else {
            return Err(Fault::Protocol("a segment is handed over in slices, and nothing else".to_owned()));
        };
        let bytes = u32::try_from(payload.len()).expect("a payload fits a frame");
        let count = u32::try_from(sums.len()).unwrap_or(u32::MAX);
        let now = self.taken.service.now();
        let whole = self.taken.core.slice(now, index, offset, bytes, count)?;
        let first = offset / self.granule.bytes();
        let IngestOpen { segment, version, .. } = *self.open;
        checksum::verify(payload, self.granule, segment, version, index, first, &sums)
            .map_err(|_| Fault::Node(NodeFault::Damaged { index }))?;
        if offset == 0 {
            self.block = payload_buffer(self.geometry.block_bytes as usize);
        }
        assert_eq!(self.block.len(), offset as usize, "slices of a block come one after the other");
        self.block.extend_from_slice(payload);
        checksum::tag(&mut sums, segment, version, index, first);
        self.crcs.append(&mut sums);
        if whole {
            let (block, crcs) = (std::mem::take(&mut self.block), std::mem::take(&mut self.crcs));
            self.arriving.checked(block.freeze(), crcs);
        }
        Ok(())
    }

    /// How long it may be until something comes; none once all is there.
    fn patience_left(&self) -> Option<Duration> {
        let until: Time = self.taken.core.gives_up_at()?;
        Some(until.since(self.taken.service.now()))
    }
}
