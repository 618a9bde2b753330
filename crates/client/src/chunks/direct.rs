//! A few bytes of a segment, straight from the nodes of its data chunks: the granules that hold them and no more (a block, which is
//! what others are asked for, has up to 1 MiB). Where a node is late or lost, the same granules of other chunks stand in, as
//! [`Hedge`](steadfast_protocol::read::Hedge) says; the first that comes is taken. What is read so has all that was acknowledged; a
//! change that was not yet may show in one read and not in the next.

use super::{ANSWERS_WITHIN, Parts, call, decoded::counted, intact};
use crate::{
    Client, GetError, ObjectStat,
    get::parts,
    leaving::Leaving,
    stand_ins::{Hedged, Rows},
};
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use std::{collections::BTreeSet, future::Future, pin::Pin, sync::Arc, time::Instant};
use steadfast_net::Open;
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch,
    chunks::spared,
    layout::{PARITY_GRANULE_BYTES, ParityGeometry, SegmentLayout},
    message::{self, AccessTotals, Fault, NodeAnswer, NodeFault, NodeRequest, Priority, ReadRows, RowsAt},
    read::Cause,
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
        let Some(of_part) = of_segment(client, layout, (part, priority), &mut done).await else {
            // What was moved for it was moved all the same.
            client.account_settled(Leaving::default(), done);
            return None;
        };
        pieces.extend(of_part);
    }
    client.account(&AccessTotals { used_bytes: length, ..done });
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

type Decoding<'a> = Pin<Box<dyn Future<Output = Result<Vec<BytesMut>, GetError>> + Send + 'a>>;

/// Others that stand in for a node.
struct StandIn<'a> {
    /// The number of the piece.
    of: usize,
    /// Where the node is only late; for one that is lost they are no extra.
    hedged: Option<Hedged<'a>>,
    decoding: Decoding<'a>,
}

/// Bytes `part` of a segment. What it asks for and receives is added to `done`, whatever comes of it: parts of blocks count as blocks.
async fn of_segment(
    client: &Client,
    layout: &SegmentLayout,
    (part, priority): (Range<u64>, Priority),
    done: &mut AccessTotals,
) -> Option<Vec<Bytes>> {
    let rows = Arc::new(Rows::default());
    let read = of_nodes(client, layout, (part, priority), done, &rows).await;
    // Also what was in vain.
    count(done, rows.received_bytes(), rows.asked_bytes());
    read
}

/// Counts bytes that came here, of those that nodes were made to send: what they say of that is not waited for.
fn count(done: &mut AccessTotals, received_bytes: u64, sent_bytes: u64) {
    done.received_bytes += received_bytes;
    done.sent_bytes += sent_bytes;
    done.medium_bytes += sent_bytes;
}

/// The same, but that what stands in is counted in `rows`.
async fn of_nodes(
    client: &Client,
    layout: &SegmentLayout,
    (part, priority): (Range<u64>, Priority),
    done: &mut AccessTotals,
    rows: &Arc<Rows>,
) -> Option<Vec<Bytes>> {
    let shape = ParityGeometry::of_layout(layout)?;
    let holders = shape.updatable(layout)?;
    let pieces = cut(&shape, &holders, part);
    let (begun, asked_at) = (Instant::now(), client.now());
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
    let mut stood_in_for = vec![false; pieces.len()];
    // From when on others stand in for each that is not here, unless the wait has become longer by then; none once they have, or where
    // it is waited for until it fails.
    let way = client.pool.way(client.metadata.address());
    let due = |piece: &Piece| {
        let wait = client.hedge().wait(client.now(), piece.device, asked_at, way);
        wait.map(|wait| Instant::now() + wait)
    };
    let mut due: Vec<Option<Instant>> = pieces.iter().map(due).collect();
    let mut standing_in: Option<StandIn<'_>> = None;
    while here.iter().any(Option::is_none) {
        let next = due.iter().enumerate().filter(|(number, _)| here[*number].is_none());
        let next = next.filter_map(|(number, due)| Some((due.as_ref()?, number))).min();
        let next = next.filter(|_| standing_in.is_none()).map(|(&at, number)| (at, number));
        tokio::select! {
            biased;
            Some(answer) = asked.join_next() => {
                let (number, took, answer) = answer.expect("asking does not panic");
                let piece = &pieces[number];
                if let Err(cause @ Cause::Fault(Fault::Refused { .. })) = &answer {
                    // It has no room for that now, and is not late. What others would stand in with takes more; who reads as usual waits.
                    client.heed_refusal(cause);
                    return None;
                }
                if let Err(Cause::Fault(Fault::Node(NodeFault::UnknownSegment { .. }))) = &answer {
                    // It has failed at nothing: the segment was stored anew elsewhere, or a chunk of it has gone astray. Who reads as usual
                    // decodes around that one, and fails where it is all of them: then the object is looked up.
                    return None;
                }
                if let Some(bytes) = checked(layout, piece, answer) {
                    client.hedge().answered(piece.device, took);
                    count(done, bytes.len() as u64, bytes.len() as u64);
                    here[number] = Some(bytes.slice(piece.within.clone()));
                    if standing_in.as_ref().is_some_and(|stand_in| stand_in.of == number) {
                        standing_in = None;
                        client.hedge().came_first(piece.device);
                    }
                } else {
                    lost[number] = true;
                    client.hedge().failed(client.now(), piece.device);
                    if !stood_in_for[number] {
                        due[number] = Some(Instant::now());
                    }
                }
            }
            decoded = decoded(&mut standing_in), if standing_in.is_some() => {
                let StandIn { of: number, hedged, .. } = standing_in.take()?;
                // Where that is not to be had either, the node may yet answer.
                if let Ok(mut blocks) = decoded && here[number].is_none() {
                    here[number] = Some(blocks.pop()?.freeze().slice(pieces[number].within.clone()));
                    if let Some(hedged) = hedged {
                        done.extra_won += u64::from(shape.data);
                        hedged.won();
                    }
                }
            }
            () = tokio::time::sleep_until(next.map_or(begun, |(at, _)| at).into()), if next.is_some() => {
                let (_, number) = next?;
                let piece = &pieces[number];
                let hedged = if lost[number] {
                    None
                } else {
                    // Of any k others.
                    let bytes = u64::from(shape.data) * piece.granules.len() as u64;
                    match Hedged::begin(client, (piece.device, asked_at, way), bytes, rows) {
                        Ok(hedged) => Some(hedged),
                        Err(later) => {
                            due[number] = later;
                            continue;
                        }
                    }
                };
                tracing::debug!(device = %piece.device, "others stand in for a node that is late or lost");
                due[number] = None;
                stood_in_for[number] = true;
                done.requested_blocks += u64::from(shape.data);
                done.extra_blocks += if hedged.is_some() { u64::from(shape.data) } else { 0 };
                let spared = late(client, (&shape, &holders), piece.device);
                let decoding = stand_in(client, layout, (piece, priority), (spared, Arc::clone(rows)));
                standing_in = Some(StandIn { of: number, hedged, decoding: Box::pin(decoding) });
            }
            else => return None,
        }
    }
    client.hedge().brought(pieces.iter().map(|piece| piece.granules.len() as u64).sum());
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
    (spared, rows): (BTreeSet<DeviceId>, Arc<Rows>),
) -> Result<Vec<BytesMut>, GetError> {
    // Where parity lacks changes, or says nothing, its own node may yet answer; and who reads as usual then waits for that.
    let parts = Parts {
        within: piece.granules.clone(),
        level: true,
        ..Parts::whole(layout, ANSWERS_WITHIN, priority)
    };
    counted(client, layout, &spared, piece.index..piece.index + 1, (parts, &rows)).await
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

async fn decoded(standing_in: &mut Option<StandIn<'_>>) -> Result<Vec<BytesMut>, GetError> {
    match standing_in {
        Some(stand_in) => stand_in.decoding.as_mut().await,
        None => core::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chunks::zeros,
        reserve::tests::{client, device_of, layout, serving, serving_opened},
    };
    use std::{sync::Mutex, time::Duration};
    use steadfast_net::Stream;
    use steadfast_protocol::{
        Time,
        message::{ChunkVersions, ReadState, RefusalReason},
        read::{Hedge, RequestRule},
    };

    /// Whether nobody was asked to stand in for a node that answered so, which is not late by it, nor for others that are slow for so long.
    async fn is_left_alone(fault: &Fault, for_at_least: Duration) -> bool {
        let (asked, fault) = (Arc::new(Mutex::new(Vec::new())), fault.clone());
        let told = Arc::clone(&asked);
        let address = serving(move |request, stream| {
            told.lock().unwrap().push(request);
            stream.fail(&fault);
        })
        .await;
        let client = client(&address, Vec::new());
        client.pool.connection(&address).await.unwrap();
        let (layout, mut done) = (layout(), AccessTotals::default());
        let read = of_segment(&client, &layout, (0..100, Priority::Foreground), &mut done).await;
        assert_eq!((read, done.received_bytes), (None, 0));
        let other = client.hedge().wait(Time(0), device_of(1), Time(0), None);
        assert!(other >= Some(for_at_least), "nor does anybody for others that are slow");
        let is_late = client.hedge().is_late(client.now(), device_of(0));
        let asked = asked.lock().unwrap();
        !is_late && matches!(asked[..], [NodeRequest::ReadRows(_)])
    }

    /// Whether it is so once of some times: where another process has the processor for long every node is late.
    async fn is_left_alone_once(fault: Fault, for_at_least: Duration) -> bool {
        for _ in 0..20 {
            if is_left_alone(&fault, for_at_least).await {
                return true;
            }
        }
        false
    }

    #[tokio::test]
    async fn a_node_without_room_is_not_late_and_nobody_stands_in_for_it() {
        let refused = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1 };
        assert!(
            is_left_alone_once(refused, Duration::from_secs(1)).await,
            "others are asked for it each time"
        );
    }

    /// Another client has stored the segment anew.
    #[tokio::test]
    async fn a_node_that_has_no_such_segment_any_more_has_not_failed() {
        let (device, segment) = (device_of(0), layout().segment);
        let unknown = Fault::Node(NodeFault::UnknownSegment { device, segment });
        assert!(is_left_alone_once(unknown, Duration::ZERO).await, "others are asked for it each time");
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

    const GRANULE: u64 = PARITY_GRANULE_BYTES as u64;

    fn versions(device: DeviceId, stream: Stream) {
        let held = if device >= device_of(2) { vec![(0, 3)] } else { Vec::new() };
        let versions = NodeAnswer::ChunkVersions(ChunkVersions { version: 0, held });
        let _ = stream.end(message::encode(&versions));
    }

    /// Reads a few bytes of the first chunk, of which the hedge has left one byte that it may spend; what that counts, and whether the
    /// budget is spent then.
    async fn read_with_little_left(address: &str) -> (AccessTotals, Client, bool) {
        let client = client(address, Vec::new());
        client.pool.connection(address).await.unwrap();
        client.hedge().ended(0, (1 << 20) - 1);
        let (layout, mut done) = (layout(), AccessTotals::default());
        let read = of_segment(&client, &layout, (0..100, Priority::Foreground), &mut done).await;
        assert_eq!(read, Some(vec![Bytes::from(vec![0; 100])]));
        // Nobody is late or overloaded any more.
        let later = Time(u64::MAX / 2);
        let spent = client.hedge().clone();
        let mut paid = spent.clone();
        paid.brought(1 << 30);
        let [spent, paid] = [spent, paid].map(|hedge| hedge.wait(later, device_of(1), later, None));
        (done, client, spent > paid)
    }

    #[tokio::test]
    async fn what_stood_in_in_vain_is_counted_and_spent() {
        // The node answers once another is asked for rows, and that says nothing.
        let waiting = Mutex::new(Vec::new());
        let address = serving(move |request, stream| match &request {
            NodeRequest::ChunkVersions { device, .. } => versions(*device, stream),
            _ => {
                let mut waiting = waiting.lock().unwrap();
                waiting.push((request, stream));
                if waiting.len() == 2 {
                    let (request, stream) = waiting.remove(0);
                    zeros::serve(&request, ReadState::default(), stream);
                }
            }
        })
        .await;
        let (done, client, spent) = read_with_little_left(&address).await;
        assert_eq!((done.requested_blocks, done.extra_blocks, done.extra_won), (3, 2, 0));
        assert_eq!([done.received_bytes, done.sent_bytes, done.medium_bytes], [1, 2, 2].map(|n| n * GRANULE));
        assert!(spent);
        assert!(!client.hedge().is_late(client.now(), device_of(0)), "others were no sooner");
    }

    #[tokio::test]
    async fn what_stood_in_first_costs_nothing_and_heeds_refusals() {
        let (silent, refused) = (Mutex::new(Vec::new()), Mutex::new(BTreeSet::new()));
        let address = serving(move |request, stream| match &request {
            NodeRequest::ChunkVersions { device, .. } => versions(*device, stream),
            NodeRequest::ReadRows(rows) if rows.device == device_of(0) => silent.lock().unwrap().push(stream),
            NodeRequest::ReadRows(rows) if refused.lock().unwrap().insert(rows.device) => {
                stream.fail(&Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1 });
            }
            _ => zeros::serve(&request, ReadState::default(), stream),
        })
        .await;
        let (done, client, spent) = read_with_little_left(&address).await;
        assert_eq!((done.requested_blocks, done.extra_blocks, done.extra_won), (3, 2, 2));
        assert!(done.received_bytes >= 2 * GRANULE);
        let sent = [done.sent_bytes, done.medium_bytes];
        assert_eq!(sent, [done.received_bytes; 2], "nobody sent what it refused");
        assert!(!spent);
        let other = client.hedge().wait(Time(0), device_of(1), Time(0), None);
        assert!(other >= Some(Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn where_nothing_may_be_in_vain_a_slow_node_is_waited_for() {
        let address = serving(|request, stream| {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(200)).await;
                zeros::serve(&request, ReadState::default(), stream);
            });
        })
        .await;
        let client = client(&address, Vec::new());
        client.pool.connection(&address).await.unwrap();
        *client.hedge() = Hedge::new(RequestRule::Adaptive { waste_percent: 0 });
        let (layout, mut done) = (layout(), AccessTotals::default());
        let read = of_segment(&client, &layout, (0..100, Priority::Foreground), &mut done).await;
        assert_eq!(read, Some(vec![Bytes::from(vec![0; 100])]));
        assert_eq!((done.requested_blocks, done.extra_blocks), (1, 0));
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
