//! Reads blocks by their indices, without decoding: each from the device that holds it, checked like every other.

use crate::{Client, GetError, reserve::Reserved};
use bytes::BytesMut;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use steadfast_disk::checksum;
use steadfast_net::payload_buffer;
use steadfast_protocol::{
    BlockIndex, DeviceId, IndexRanges, Time,
    layout::{Piece, SegmentLayout},
    message::{NodeRequest, ReadPiece, Slice},
    read::{Action, Input, ReadCore, ReadPlan, Striped},
};
use steadfast_transfer::{Event, Streams};

/// The part of its patience that an access has with silent devices here: decoding is the way around them, and a device
/// that is written to is given up after as much.
const PATIENCE_PART: u32 = 4;

/// The blocks `wanted` of a segment, each asked for under its device's reservation where it has one.
///
/// # Errors
/// When one of them cannot be had from its device.
pub(super) async fn gather(
    client: &Client,
    layout: &SegmentLayout,
    wanted: &IndexRanges,
    reserved: &Reserved,
) -> Result<BTreeMap<BlockIndex, BytesMut>, GetError> {
    let reports = client.read_speeds();
    let seen = |device| reports.get(&device).copied().unwrap_or((0, 0));
    let mut plan = ReadPlan::new(layout, client.options.request, || 0, seen);
    plan.patience = client.options.patience / PATIENCE_PART;
    // Decoding is the way around a server that is away.
    plan.waits = false;
    let streams = Streams::new(reserved.priority());
    let gathering = Gathering {
        client,
        layout,
        wanted,
        reserved,
        core: Striped::new(Time(0), plan, wanted),
        streams,
        start: Instant::now(),
        partial: BTreeMap::new(),
        blocks: BTreeMap::new(),
    };
    gathering.run().await
}

struct Gathering<'a> {
    client: &'a Client,
    layout: &'a SegmentLayout,
    wanted: &'a IndexRanges,
    reserved: &'a Reserved,
    core: Striped,
    streams: Streams,
    start: Instant,
    /// Blocks of which not all slices have arrived.
    partial: BTreeMap<(DeviceId, BlockIndex), BytesMut>,
    blocks: BTreeMap<BlockIndex, BytesMut>,
}

impl Gathering<'_> {
    async fn run(mut self) -> Result<BTreeMap<BlockIndex, BytesMut>, GetError> {
        loop {
            while let Some(action) = self.core.poll() {
                match action {
                    Action::Open { device, credit_bytes, .. } => self.open(device, credit_bytes),
                    Action::Grant { device, bytes } => self.streams.grant(device, bytes),
                    Action::Finish { device } => self.streams.finish(device),
                    Action::Cancel { device } => self.streams.cancel(device),
                    Action::Done(_) => return Ok(self.blocks),
                    Action::Failed(error) => return Err(error.into()),
                }
            }
            let wake_at = self.core.wake_at().map(|at| self.start + Duration::from_nanos(at.0));
            let event = self.streams.next(wake_at).await;
            let now = Time(self.start.elapsed().as_nanos() as u64);
            match event {
                None => self.core.handle(now, Input::Tick),
                Some((device, Event::Opened)) => self.core.handle(now, Input::Opened { device }),
                Some((device, Event::Slice { slice, payload })) => self.slice(now, device, &slice, payload),
                Some((device, Event::Ended(_))) => self.core.handle(now, Input::Ended { device }),
                Some((device, Event::Failed(cause))) => {
                    self.core.handle(now, Input::Failed { device, cause })
                }
                // A storage server confirms nothing to a reader and needs no credit from it.
                Some((_, Event::Confirmed(_) | Event::Credit(_) | Event::State(_))) => {}
            }
        }
    }

    fn open(&mut self, device: DeviceId, credit_bytes: u32) {
        let holder = self.layout.holder(device).expect("the core opens devices of the layout");
        let missing = |piece: &Piece| -> IndexRanges {
            let wanted = piece.blocks.intersection(self.wanted);
            wanted.iter().filter(|index| !self.blocks.contains_key(index)).collect()
        };
        let pieces = holder.pieces.iter().map(|piece| (piece, missing(piece)));
        let pieces = pieces.filter(|(_, blocks)| !blocks.is_empty()).map(|(piece, blocks)| ReadPiece {
            segment: piece.segment,
            version: piece.version,
            want: steadfast_protocol::message::Want::Blocks(blocks),
        });
        let request = NodeRequest::Read { device, pieces: pieces.collect() };
        let request = self.reserved.under(device, request);
        let (address, epoch) = (self.client.address_of(device), self.layout.epoch);
        self.streams.open(&self.client.pool, device, address, &request, epoch, credit_bytes, None);
    }

    fn slice(&mut self, now: Time, device: DeviceId, slice: &Slice, payload: BytesMut) {
        let (index, block_bytes) = (slice.index, self.layout.block_bytes as usize);
        let bytes = u32::try_from(payload.len()).expect("a frame's payload is at most 256 KiB");
        self.core.handle(now, Input::Slice { device, index, bytes });
        // A stream that ended within a block is followed by one that begins it anew.
        let before = self.partial.remove(&(device, index)).filter(|_| slice.offset > 0);
        let in_order = before.as_ref().map_or(0, BytesMut::len) == slice.offset as usize;
        let fits = slice.offset as usize + payload.len() <= block_bytes;
        if !in_order || !fits || !self.intact(device, slice, &payload) {
            return self.core.handle(now, Input::Corrupt { device, index });
        }
        let mut block = before.unwrap_or_else(|| payload_buffer(block_bytes));
        block.extend_from_slice(&payload);
        if block.len() < block_bytes {
            self.partial.insert((device, index), block);
            return;
        }
        self.blocks.insert(index, block);
        let missing =
            self.wanted.count().saturating_sub(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX));
        self.core.handle(now, Input::Block { device, index, missing });
    }

    /// Whether the device is to hold the block, and every granule of the slice is what was stored under its piece's name.
    fn intact(&self, device: DeviceId, slice: &Slice, payload: &[u8]) -> bool {
        let holder = self.layout.holder(device);
        let Some(piece) = holder.and_then(|holder| holder.piece_of(slice.index)) else { return false };
        let granule_bytes = self.layout.granule_bytes;
        let granule = granule_bytes as usize;
        let first = slice.offset / granule_bytes;
        slice.offset.is_multiple_of(granule_bytes)
            && self.wanted.contains(slice.index)
            && slice.sums.len() == payload.len().div_ceil(granule)
            && payload.chunks(granule).zip(&slice.sums).zip(first..).all(|((bytes, &sum), granule_number)| {
                let (segment, version) = (piece.segment, piece.version);
                let tag = checksum::Tag { segment, version, index: slice.index, granule_number };
                checksum::sum(bytes, &tag) == sum
            })
    }
}
