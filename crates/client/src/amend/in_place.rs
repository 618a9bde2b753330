//! Changes of a parity segment where its chunks lie, as [`steadfast_protocol::plan::in_place()`] cuts them: sent to the nodes of the data
//! chunks, which see to it that they survive what the bucket promises. The object stays the version that it is.
//!
//! What cannot be changed so is stored anew, by whoever is told that it could not.

use crate::{Client, chunks::call};
use bytes::Bytes;
use std::{
    io,
    time::{Duration, Instant},
};
use steadfast_net::Open;
use steadfast_protocol::{
    layout::SegmentLayout,
    message::{self, Fault, NodeAnswer, NodeRequest, Priority},
    plan::ChunkChange,
    read::Cause,
};
use tokio::task::JoinSet;

/// Changes of one call under way at a time: enough that data nodes flush many together, few enough that their lanes have
/// room for others. Picked by eye.
const PARALLEL: usize = 16;
/// The part of its patience that an access has with nodes here: storing the segment anew is the way around them.
const PATIENCE_PART: u32 = 4;

/// Makes changes of a segment that begins at byte `at` of the object, to what `read` has for the object's bytes; the bytes that
/// were sent, or none where not all of them could be confirmed.
pub(super) async fn change(
    client: &Client,
    layout: &SegmentLayout,
    at: u64,
    changes: Vec<ChunkChange>,
    mut read: impl FnMut(u64, usize) -> io::Result<Bytes>,
) -> io::Result<Option<u64>> {
    let mut under_way: JoinSet<bool> = JoinSet::new();
    let mut sent = 0;
    for change in changes {
        let length = change.within.end - change.within.start;
        // No more than a frame takes.
        let bytes = read(at + change.offset, length as usize)?;
        if under_way.len() >= PARALLEL && !ended_well(&mut under_way).await {
            return Ok(None);
        }
        sent += length;
        send(client, layout, &change, bytes, &mut under_way);
    }
    while !under_way.is_empty() {
        if !ended_well(&mut under_way).await {
            return Ok(None);
        }
    }
    Ok(Some(sent))
}

fn send(
    client: &Client,
    layout: &SegmentLayout,
    change: &ChunkChange,
    bytes: Bytes,
    under_way: &mut JoinSet<bool>,
) {
    let (segment, device, offset) = (layout.segment, change.device, change.within.start);
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

async fn ended_well(under_way: &mut JoinSet<bool>) -> bool {
    match under_way.join_next().await {
        Some(Ok(well)) => well,
        Some(Err(_)) => false,
        None => true,
    }
}
