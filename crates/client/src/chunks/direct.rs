//! A few bytes of a segment, straight from the nodes of its data chunks: the granules that hold them and no more (a block, which is
//! what others are asked for, has up to 1 MiB). Where a node is late or lost, the same granules of other chunks stand in, as
//! [`Hedge`] says; the first that comes is taken. What is read so has all that was acknowledged; a change that
//! was not yet may show in one read and not in the next.

use super::{ANSWERS_WITHIN, Parts, call, intact, originals};
use crate::{Client, GetError, ObjectStat, get::parts};
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    sync::{MutexGuard, PoisonError},
    time::Instant,
};
use steadfast_net::Open;
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch,
    chunks::spared,
    layout::{PARITY_GRANULE_BYTES, ParityGeometry, SegmentLayout},
    message::{self, AccessTotals, Fault, NodeAnswer, NodeRequest, Priority, ReadRows, RowsAt},
    read::{Cause, Hedge},
};
use tokio::task::JoinSet;

/// Reads of more are asked for by blocks, with those that stand in for late ones. Picked by eye: what a disk reads in the time
/// that it takes to get there.
const BYTES_MAX: u64 = 256 << 10;

/// Bytes `wanted` of an object, in pieces, asked for in this class; none where they are many, or not to be had so.
pub(crate) async fn direct(
    client: &Client,
    found: &ObjectStat,
    wanted: Range<u64>,
    priority: Priority,
) -> Option<Vec<Bytes>> {
    let length = wanted.end - wanted.start;
    if length > BYTES_MAX {
        return None;
    }
    let (mut pieces, mut done) = (Vec::new(), AccessTotals::default());
    for (layout, part) in parts(found, wanted) {
        pieces.extend(of_segment(client, layout, (part, priority), &mut done).await?);
    }
    let moved = done.received_bytes;
    client.account(&AccessTotals { used_bytes: length, sent_bytes: moved, medium_bytes: moved, ..done });
    Some(pieces)
}

/// A piece of what is wanted, in one block.
struct Piece {
    device: DeviceId,
    index: BlockIndex,
    /// The granules that hold it: bytes of the block.
    granules: Range<u32>,
    /// Where it is in them.
    within: Range<usize>,
}

type StandingIn<'a> = Pin<Box<dyn Future<Output = Result<(Vec<BytesMut>, u64), GetError>> + Send + 'a>>;

/// Bytes `part` of a segment. What it asks for and receives is added to `done`: parts of blocks count as blocks.
async fn of_segment(
    client: &Client,
    layout: &SegmentLayout,
    (part, priority): (Range<u64>, Priority),
    done: &mut AccessTotals,
) -> Option<Vec<Bytes>> {
    let shape = ParityGeometry::of_layout(layout)?;
    let holders = shape.updatable(layout)?;
    let pieces = cut(&shape, &holders, part);
    let begun = Instant::now();
    let mut asked = JoinSet::new();
    for (number, piece) in pieces.iter().enumerate() {
        let open = question(&shape, layout, piece, priority);
        let (pool, address) = (client.pool.clone(), client.address_of(piece.device));
        asked.spawn(async move {
            let answer = call(&pool, address, open).await;
            (number, begun.elapsed(), answer)
        });
    }
    done.requested_blocks += pieces.len() as u64;
    let mut here: Vec<Option<Bytes>> = vec![None; pieces.len()];
    let mut lost = vec![false; pieces.len()];
    // From when on others stand in for each that is not here; none once they have.
    let way = client.pool.way(client.metadata.address());
    let wait = |piece: &Piece| Some(begun + client.hedge().wait(client.now(), piece.device, way));
    let mut due: Vec<Option<Instant>> = pieces.iter().map(wait).collect();
    let mut standing_in: Option<(usize, StandingIn<'_>)> = None;
    // What was asked for where one that was asked for already may come: of any k others. For one that is lost it is no extra.
    let mut extra = 0;
    while here.iter().any(Option::is_none) {
        let next = due.iter().enumerate().filter(|(number, _)| here[*number].is_none());
        let next = next.filter_map(|(number, due)| Some((due.as_ref()?, number))).min();
        let next = next.filter(|_| standing_in.is_none()).map(|(&at, number)| (at, number));
        tokio::select! {
            biased;
            Some(answer) = asked.join_next() => {
                let (number, took, answer) = answer.expect("asking does not panic");
                let piece = &pieces[number];
                if let Err(Cause::Fault(Fault::Refused { .. })) = answer {
                    // It has no room for that now, and is not late. What others would stand in with takes more; who reads as usual waits.
                    return None;
                }
                if let Some(bytes) = checked(layout, piece, answer) {
                    client.hedge().answered(piece.device, took);
                    done.received_bytes += bytes.len() as u64;
                    here[number] = Some(bytes.slice(piece.within.clone()));
                    if standing_in.as_ref().is_some_and(|(of, _)| *of == number) {
                        standing_in = None;
                    }
                } else {
                    lost[number] = true;
                    if due[number].is_some() {
                        client.hedge().late(client.now(), piece.device);
                        due[number] = Some(Instant::now());
                    }
                }
            }
            (number, decoded) = decoded(&mut standing_in), if standing_in.is_some() => {
                standing_in = None;
                // Where that is not to be had either, the node may yet answer.
                if let Ok((mut blocks, bytes)) = decoded && here[number].is_none() {
                    done.received_bytes += bytes;
                    done.extra_won += extra;
                    here[number] = Some(blocks.pop()?.freeze().slice(pieces[number].within.clone()));
                }
            }
            () = tokio::time::sleep_until(next.map_or(begun, |(at, _)| at).into()), if next.is_some() => {
                let (_, number) = next?;
                let piece = &pieces[number];
                tracing::debug!(device = %piece.device, "others stand in for a node that is late or lost");
                client.hedge().late(client.now(), piece.device);
                due[number] = None;
                extra = if lost[number] { 0 } else { u64::from(shape.data) };
                done.requested_blocks += u64::from(shape.data);
                done.extra_blocks += extra;
                let spared = late(client, (&shape, &holders), piece.device);
                standing_in = Some((number, Box::pin(stand_in(client, layout, (piece, priority), spared))));
            }
            else => return None,
        }
    }
    here.into_iter().collect()
}

/// The pieces that bytes `part` of a segment lie in.
fn cut(shape: &ParityGeometry, holders: &[DeviceId], part: Range<u64>) -> Vec<Piece> {
    let (block_bytes, granule) = (u64::from(shape.block_bytes), u64::from(PARITY_GRANULE_BYTES));
    let mut pieces = Vec::new();
    for chunk in shape.parts(part) {
        let mut at = chunk.within.start;
        while at < chunk.within.end {
            let block = at / block_bytes;
            let end = chunk.within.end.min((block + 1) * block_bytes);
            let [from, to] = [at, end].map(|at| at - block * block_bytes);
            let granules = from / granule * granule..to.next_multiple_of(granule);
            let within = (from - granules.start) as usize..(to - granules.start) as usize;
            pieces.push(Piece {
                device: holders[chunk.chunk as usize],
                // Below the segment's blocks, and within one.
                index: shape.blocks_of(chunk.chunk).start + block as u32,
                granules: granules.start as u32..granules.end as u32,
                within,
            });
            at = end;
        }
    }
    pieces
}

fn question(shape: &ParityGeometry, layout: &SegmentLayout, piece: &Piece, priority: Priority) -> Open {
    let row = u64::from(piece.index % shape.blocks);
    let length = piece.granules.end - piece.granules.start;
    let rows = ReadRows {
        device: piece.device,
        segment: layout.segment,
        offset: row * u64::from(shape.block_bytes) + u64::from(piece.granules.start),
        length,
        at: RowsAt::Newest,
    };
    Open {
        body: message::encode(&NodeRequest::ReadRows(rows)),
        priority,
        epoch: Epoch(0),
        deadline: Some(ANSWERS_WITHIN),
        credit: length,
    }
}

/// What a node answered, if it is the granules that were asked for.
fn checked(
    layout: &SegmentLayout,
    piece: &Piece,
    answer: Result<(NodeAnswer, BytesMut), Cause>,
) -> Option<Bytes> {
    let Ok((NodeAnswer::Rows { sums, .. }, bytes)) = answer else { return None };
    let first = piece.granules.start / PARITY_GRANULE_BYTES;
    let whole = bytes.len() == piece.granules.len() && intact(layout, piece.index, first, &bytes, &sums);
    whole.then(|| bytes.freeze())
}

/// The granules of a piece, decoded from those of other chunks.
async fn stand_in(
    client: &Client,
    layout: &SegmentLayout,
    (piece, priority): (&Piece, Priority),
    spared: BTreeSet<DeviceId>,
) -> Result<(Vec<BytesMut>, u64), GetError> {
    // Where parity lacks changes, or says nothing, its own node may yet answer; and who reads as usual then waits for that.
    let parts = Parts {
        within: piece.granules.clone(),
        level: true,
        ..Parts::whole(layout, ANSWERS_WITHIN, priority)
    };
    originals(client, layout, &spared, piece.index..piece.index + 1, parts).await
}

/// Devices that are not asked to stand in for this one: it, and others that are late, as far as the rest suffices.
fn late(
    client: &Client,
    (shape, holders): (&ParityGeometry, &[DeviceId]),
    device: DeviceId,
) -> BTreeSet<DeviceId> {
    let (hedge, now) = (client.hedge(), client.now());
    let others = holders.iter().copied().filter(|&other| other != device);
    let late = others.filter(|&other| hedge.is_late(now, other));
    spared(shape.parity(), [device], late)
}

async fn decoded(
    standing_in: &mut Option<(usize, StandingIn<'_>)>,
) -> (usize, Result<(Vec<BytesMut>, u64), GetError>) {
    match standing_in {
        Some((number, decoding)) => (*number, decoding.await),
        None => core::future::pending().await,
    }
}

impl Client {
    fn hedge(&self) -> MutexGuard<'_, Hedge> {
        self.hedge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chunks::zeros,
        reserve::tests::{client, device_of, layout, serving, serving_opened},
    };
    use std::sync::{Arc, Mutex};
    use steadfast_protocol::message::{ChunkVersions, NodeFault, ReadState, RefusalReason};

    /// Whether nobody was asked to stand in for a node that had no room for what it was asked, which is not late by it.
    async fn is_left_alone() -> bool {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        let address = serving(move |request, stream| {
            told.lock().unwrap().push(request);
            stream.fail(&Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1 });
        })
        .await;
        let client = client(&address, Vec::new());
        client.pool.connection(&address).await.unwrap();
        let (layout, mut done) = (layout(), AccessTotals::default());
        let read = of_segment(&client, &layout, (0..100, Priority::Foreground), &mut done).await;
        assert_eq!((read, done.received_bytes), (None, 0));
        let is_late = client.hedge().is_late(client.now(), device_of(0));
        let asked = asked.lock().unwrap();
        !is_late && matches!(asked[..], [NodeRequest::ReadRows(_)])
    }

    #[tokio::test]
    async fn a_node_without_room_is_not_late_and_nobody_stands_in_for_it() {
        // One of some: where another process has the processor for long every node is late.
        for _ in 0..20 {
            if is_left_alone().await {
                return;
            }
        }
        panic!("others are asked for it each time");
    }

    /// What a read of a few bytes counts where its node says nothing until others are asked, and nobody has anything then; or where it
    /// has nothing to begin with.
    async fn counted(silent: bool) -> AccessTotals {
        let unanswered = Mutex::new(Vec::new());
        let address = serving(move |request, stream| {
            let mut unanswered = unanswered.lock().unwrap();
            unanswered.push(stream);
            if !silent || !matches!(request, NodeRequest::ReadRows(_)) {
                unanswered.drain(..).for_each(|stream| stream.fail(&Fault::Cancelled));
            }
        })
        .await;
        let client = client(&address, Vec::new());
        client.pool.connection(&address).await.unwrap();
        let (layout, mut done) = (layout(), AccessTotals::default());
        assert_eq!(of_segment(&client, &layout, (0..100, Priority::Foreground), &mut done).await, None);
        done
    }

    #[tokio::test]
    async fn what_stands_in_for_a_late_node_is_counted() {
        let (late, lost) = (counted(true).await, counted(false).await);
        // One block, and any two that give it.
        assert_eq!((late.requested_blocks, late.extra_blocks, late.extra_won), (3, 2, 0));
        assert_eq!((lost.requested_blocks, lost.extra_blocks, lost.extra_won), (3, 0, 0));
    }
    /// The chunk that it would stand in for may only be late.
    #[tokio::test]
    async fn parity_that_lacks_changes_stands_in_for_none() {
        // Of versions that it is asked for, and of rows.
        for refuses in [[false; 2], [true, false], [false, true]] {
            let [lost, _, parity, _] = [0, 1, 2, 3].map(device_of);
            let address = serving_opened(move |request, opened, stream| match &request {
                NodeRequest::ChunkVersions { device, .. } if *device != lost => {
                    assert!(
                        *device >= parity || opened.epoch == Epoch(0),
                        "nobody asks what data chunks lack"
                    );
                    if refuses[0] && opened.epoch != Epoch(0) {
                        let (device, segment) = (*device, layout().segment);
                        return stream.fail(&Fault::Node(NodeFault::LacksChanges { device, segment }));
                    }
                    let held = if *device >= parity { vec![(0, 3)] } else { Vec::new() };
                    let versions = NodeAnswer::ChunkVersions(ChunkVersions { version: 0, held });
                    let _ = stream.end(message::encode(&versions));
                }
                NodeRequest::ReadRows(rows) if rows.device != lost => {
                    if refuses[1] && rows.device >= parity && opened.epoch != Epoch(0) {
                        let (device, segment) = (rows.device, rows.segment);
                        return stream.fail(&Fault::Node(NodeFault::LacksChanges { device, segment }));
                    }
                    zeros::serve(&request, ReadState::default(), stream);
                }
                _ => stream.fail(&Fault::Node(NodeFault::UnknownDevice(lost))),
            })
            .await;
            let client = client(&address, Vec::new());
            client.pool.connection(&address).await.unwrap();
            let (layout, mut done) = (layout(), AccessTotals::default());
            let read = of_segment(&client, &layout, (0..100, Priority::Foreground), &mut done).await;
            let expected = (refuses == [false; 2]).then(|| vec![Bytes::from(vec![0; 100])]);
            assert_eq!(read, expected);
        }
    }
}
