//! Changes of a parity segment where its chunks lie (PLR §4): small ones, sent to the nodes of the data chunks, which see to
//! it that they survive what the bucket promises. The object stays the version that it is.
//!
//! What cannot be changed so is stored anew: where a node is out of reach, where chunks were moved, and where so much of a
//! segment changes that this costs less.

use crate::{Client, chunks::call};
use bytes::Bytes;
use core::ops::Range;
use std::{
    io,
    time::{Duration, Instant},
};
use steadfast_net::Open;
use steadfast_protocol::{
    DeviceId, SegmentId,
    layout::{ParityGeometry, SegmentLayout},
    message::{self, Fault, NodeAnswer, NodeRequest, Priority},
    policy::{Parity, Policy},
    read::Cause,
};
use tokio::task::JoinSet;

/// Changes of one call under way at a time: enough that data nodes flush many together, few enough that their lanes have
/// room for others. Picked by eye.
const PARALLEL: usize = 16;
/// The part of its patience that an access has with nodes here: storing the segment anew is the way around them.
const PATIENCE_PART: u32 = 4;
/// A change of more than this part of a segment is cheaper stored anew: in place each byte is read once, and written twice
/// in data (redo, in place) and twice in each parity chunk (log, merge), which reads it once more; anew the rest is read and
/// all n chunks are written. For (6, 4): 9 bytes a byte changed against 2.5 a byte of the segment.
const SHARE_MAX: u64 = 4;

/// How a segment's chunks can be changed.
pub(super) struct InPlace {
    shape: ParityGeometry,
    holders: Vec<DeviceId>,
    bytes_max: u32,
}

impl InPlace {
    /// Whether a change of so many bytes of a segment is to be made in place.
    pub(super) fn of(policy: &Policy, layout: &SegmentLayout, bytes: u64) -> Option<Self> {
        let Policy::Parity(policy) = policy else { return None };
        let policy: &Parity = policy;
        let shape = ParityGeometry::of_layout(layout)?;
        let holders = shape.updatable(layout)?;
        let bytes_max = policy.update_bytes_max(shape.chunk_bytes())?;
        let small = bytes.saturating_mul(SHARE_MAX) <= shape.capacity_bytes();
        small.then_some(Self { shape, holders, bytes_max })
    }

    /// Changes bytes `ranges` of a segment that begins at byte `at` of the object to what `read` has for the object's bytes;
    /// the bytes that were sent, or none where not all of them could be confirmed.
    pub(super) async fn change(
        &self,
        client: &Client,
        layout: &SegmentLayout,
        (at, ranges): (u64, &[Range<u64>]),
        mut read: impl FnMut(u64, usize) -> io::Result<Bytes>,
    ) -> io::Result<Option<u64>> {
        let mut under_way: JoinSet<bool> = JoinSet::new();
        let mut sent = 0;
        for part in ranges.iter().flat_map(|range| self.shape.parts(range.clone())) {
            let device = self.holders[part.chunk as usize];
            let mut from = part.within.start;
            while from < part.within.end {
                // Whole granules but at the ends: none is changed twice.
                let to = ((from + u64::from(self.bytes_max)) / u64::from(self.bytes_max)
                    * u64::from(self.bytes_max))
                .min(part.within.end);
                let bytes = read(at + part.offset + (from - part.within.start), (to - from) as usize)?;
                if under_way.len() >= PARALLEL && !ended_well(&mut under_way).await {
                    return Ok(None);
                }
                sent += bytes.len() as u64;
                self.send(client, layout, device, from, bytes, &mut under_way);
                from = to;
            }
        }
        while !under_way.is_empty() {
            if !ended_well(&mut under_way).await {
                return Ok(None);
            }
        }
        Ok(Some(sent))
    }

    fn send(
        &self,
        client: &Client,
        layout: &SegmentLayout,
        device: DeviceId,
        offset: u64,
        bytes: Bytes,
        under_way: &mut JoinSet<bool>,
    ) {
        let segment: SegmentId = layout.segment;
        let (body, epoch) =
            (message::encode(&NodeRequest::Update { device, segment, offset, bytes }), layout.epoch);
        let (pool, address) = (client.pool.clone(), client.address_of(device));
        let until = Instant::now() + client.options.patience / PATIENCE_PART;
        under_way.spawn(async move {
            loop {
                let deadline = Some(until.saturating_duration_since(Instant::now()));
                let (body, priority) = (body.clone(), Priority::Foreground);
                match call(&pool, address.clone(), Open { body, priority, epoch, deadline, credit: 0 }).await {
                    Ok((NodeAnswer::Updated { .. }, _)) => return true,
                    Ok((other, _)) => {
                        tracing::debug!(%device, %segment, ?other, "an update was answered by something else");
                        return false;
                    }
                    Err(Cause::Fault(Fault::Refused { retry_after_ms, .. })) if Instant::now() < until => {
                        tokio::time::sleep(Duration::from_millis(retry_after_ms.into())).await;
                    }
                    Err(cause) => {
                        tracing::debug!(%device, %segment, %cause, "not changed in place");
                        return false;
                    }
                }
            }
        });
    }
}

async fn ended_well(under_way: &mut JoinSet<bool>) -> bool {
    match under_way.join_next().await {
        Some(Ok(well)) => well,
        Some(Err(_)) => false,
        None => true,
    }
}
