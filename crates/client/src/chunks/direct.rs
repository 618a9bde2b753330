//! A few bytes of a segment, straight from the nodes of its data chunks: the granules that hold them and no more. A block, which is
//! what others are asked for, has up to 1 MiB.

use super::{call, intact};
use crate::{Client, ObjectStat, get::parts};
use bytes::Bytes;
use core::ops::Range;
use std::time::Duration;
use steadfast_net::Open;
use steadfast_protocol::{
    Epoch,
    layout::{PARITY_GRANULE_BYTES, ParityGeometry, SegmentLayout},
    message::{self, AccessTotals, NodeAnswer, NodeRequest, Priority, ReadRows, RowsAt},
};
use tokio::task::JoinSet;

/// Reads of more are asked for by blocks, with those that stand in for late ones. Picked by eye: what a disk reads in the time
/// that it takes to get there.
const BYTES_MAX: u64 = 256 << 10;
/// A node that takes so long is left to the reads that know their way around it. Picked by eye: many times what a loaded disk
/// takes.
const WITHIN: Duration = Duration::from_millis(250);

/// Bytes `wanted` of an object, in pieces; none where they are many, or not to be had so.
pub(crate) async fn direct(client: &Client, found: &ObjectStat, wanted: Range<u64>) -> Option<Vec<Bytes>> {
    let length = wanted.end - wanted.start;
    if length > BYTES_MAX {
        return None;
    }
    let mut pieces = Vec::new();
    for (layout, part) in parts(found, wanted) {
        pieces.extend(of_segment(client, layout, part).await?);
    }
    client.account(&AccessTotals {
        used_bytes: length,
        received_bytes: length,
        sent_bytes: length,
        medium_bytes: length,
        ..AccessTotals::default()
    });
    Some(pieces)
}

async fn of_segment(client: &Client, layout: &SegmentLayout, part: Range<u64>) -> Option<Vec<Bytes>> {
    let shape = ParityGeometry::of_layout(layout)?;
    let holders = shape.updatable(layout)?;
    let (block_bytes, granule) = (u64::from(shape.block_bytes), u64::from(PARITY_GRANULE_BYTES));
    let mut reading = JoinSet::new();
    let mut count = 0;
    for chunk in shape.parts(part) {
        let mut at = chunk.within.start;
        while at < chunk.within.end {
            let end = chunk.within.end.min((at / block_bytes + 1) * block_bytes);
            let whole = at / granule * granule..end.next_multiple_of(granule);
            let index = shape.blocks_of(chunk.chunk).start + u32::try_from(at / block_bytes).ok()?;
            let length = u32::try_from(whole.end - whole.start).ok()?;
            let device = holders[chunk.chunk as usize];
            let (segment, offset) = (layout.segment, whole.start);
            let request =
                NodeRequest::ReadRows(ReadRows { device, segment, offset, length, at: RowsAt::Newest });
            let open = Open {
                body: message::encode(&request),
                priority: Priority::Foreground,
                epoch: Epoch(0),
                deadline: Some(WITHIN),
                credit: length,
            };
            let (pool, address, number) = (client.pool.clone(), client.address_of(device), count);
            let within = (at - whole.start) as usize..(end - whole.start) as usize;
            let first = u32::try_from(whole.start % block_bytes / granule).ok()?;
            reading.spawn(async move { (number, index, first, within, call(&pool, address, open).await) });
            (at, count) = (end, count + 1);
        }
    }
    let mut pieces = vec![Bytes::new(); count];
    while let Some(read) = reading.join_next().await {
        let (number, index, first, within, answer) = read.ok()?;
        let (NodeAnswer::Rows { sums, .. }, bytes) = answer.ok()? else { return None };
        if bytes.len() < within.end || !intact(layout, index, first, &bytes, &sums) {
            return None;
        }
        pieces[number] = bytes.freeze().slice(within);
    }
    Some(pieces)
}
