//! Original blocks of a segment whose chunks change while it is read, or of which some are lost: drives
//! [`steadfast_protocol::chunks::Gather`] and decodes what it gathers.

use super::{call, intact};
use crate::{Client, GetError, stand_ins::Rows};
use bytes::BytesMut;
use core::ops::Range;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use steadfast_net::Open;
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch,
    chunks::{Gather, GatherAction, GatherInput},
    layout::{ParityGeometry, SegmentLayout},
    message::{self, ChunkVersions, Fault, NodeAnswer, NodeRequest, Priority, ReadRows, RowsAt},
    read::Cause,
    serve::parity_log::VersionsByChunk,
};
use tokio::task::JoinSet;

/// What is read of each block.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// Bytes of the block, whole granules.
    pub(crate) within: Range<u32>,
    /// How long a node may take for it.
    pub(crate) patience: Duration,
    /// The class of the questions.
    pub(crate) priority: Priority,
    /// Whether what lacks changes is read as it is where the others do not make up for it.
    pub(crate) as_it_is: bool,
    /// Whether parity that lacks changes is not read in any case, as far as its node knows: what it would stand in for may only be late.
    pub(crate) level: bool,
    /// Changes of data chunks that parity is to have at least where it stands in for them.
    pub(crate) least: VersionsByChunk,
}

impl Parts {
    /// All of it, as it can be had.
    pub(crate) fn whole(layout: &SegmentLayout, patience: Duration, priority: Priority) -> Self {
        let (within, least) = (0..layout.block_bytes, VersionsByChunk::new());
        Self { within, patience, priority, as_it_is: true, level: false, least }
    }

    fn len(&self) -> usize {
        self.within.len()
    }

    /// Under which it is asked for: under 0 parity gives what it has, whatever it lacks.
    fn epoch(&self, layout: &SegmentLayout) -> Epoch {
        if self.level { layout.epoch } else { Epoch(0) }
    }
}

/// The original blocks `wanted` of a segment, or the same part of each of them, and how many bytes were received for them.
/// Nothing is asked of devices `excluded`.
///
/// # Errors
/// When too few of its chunks can be had, or it changes faster than a common state is found.
pub(crate) async fn originals(
    client: &Client,
    layout: &SegmentLayout,
    excluded: &BTreeSet<DeviceId>,
    wanted: Range<BlockIndex>,
    parts: Parts,
) -> Result<(Vec<BytesMut>, u64), GetError> {
    let rows = Rows::default();
    let originals = counted(client, layout, excluded, wanted, (parts, &rows)).await?;
    Ok((originals, rows.received_bytes()))
}

/// The same; what it asks for and receives is counted as it does.
///
/// # Errors
/// As there.
pub(crate) async fn counted(
    client: &Client,
    layout: &SegmentLayout,
    excluded: &BTreeSet<DeviceId>,
    wanted: Range<BlockIndex>,
    (parts, rows): (Parts, &Rows),
) -> Result<Vec<BytesMut>, GetError> {
    let found = ParityGeometry::of_layout(layout).and_then(|shape| Some((shape, shape.updatable(layout)?)));
    let (shape, holders) = found.ok_or_else(|| unusable(layout, "its chunks do not fit each other"))?;
    let core = Gather::new(shape, &holders, excluded, wanted).at_least(parts.least.clone());
    let mut core = if parts.as_it_is { core } else { core.up_to_date() };
    let mut reading = JoinSet::new();
    // Of the row in hand, by chunk; and what is done, by index.
    let mut blocks: BTreeMap<u32, BytesMut> = BTreeMap::new();
    let mut originals: BTreeMap<BlockIndex, BytesMut> = BTreeMap::new();
    loop {
        while let Some(action) = core.poll() {
            match action {
                GatherAction::AskVersions { after } => {
                    blocks.clear();
                    originals.clear();
                    tokio::time::sleep(after).await;
                    let epoch = |device: &DeviceId| {
                        let data = &holders[..shape.data as usize];
                        if data.contains(device) { Epoch(0) } else { parts.epoch(layout) }
                    };
                    let asked = Instant::now();
                    // Who has no room is asked again by the core, which knows who can be done without.
                    let once = (excluded, Duration::ZERO);
                    let versions = client.chunk_versions(layout.segment, &holders, once, epoch).await;
                    let took = asked.elapsed();
                    for (chunk, held) in (0..).zip(versions) {
                        if let Err(cause) = &held {
                            client.heed_refusal(cause);
                        }
                        core.handle(said(chunk, held, took));
                    }
                }
                GatherAction::Read { chunk, row, at } => {
                    let device = holders[chunk as usize];
                    let (open, address) =
                        (question(layout, &parts, device, row, at), client.address_of(device));
                    let pool = client.pool.clone();
                    rows.ask(parts.len() as u64);
                    reading.spawn(async move { (chunk, row, call(&pool, address, open).await) });
                }
                GatherAction::Row { row, wanted, lost } => {
                    let read = core::mem::take(&mut blocks);
                    let decoded = decode(layout, (&shape, parts.len()), &read, &lost)?;
                    let of_row = read.into_iter().chain(lost.into_iter().zip(decoded));
                    let wanted = of_row.filter(|(chunk, _)| wanted.contains(chunk));
                    originals.extend(wanted.map(|(chunk, block)| (chunk * shape.blocks + row, block)));
                }
                GatherAction::Done => return Ok(originals.into_values().collect()),
                GatherAction::Failed(error) => return Err(GetError::Read(error)),
            }
        }
        let read = reading.join_next().await.expect("rows were asked for, or it would be over");
        let (chunk, row, answer) = read.expect("reading does not panic");
        match &answer {
            Ok((_, block)) => rows.receive(block.len() as u64),
            Err(cause) => {
                rows.fail(parts.len() as u64);
                client.heed_refusal(cause);
            }
        }
        core.handle(match checked(layout, (&shape, &parts), (chunk, row), answer) {
            Ok((version, block)) => {
                blocks.insert(chunk, block);
                GatherInput::Row { chunk, version }
            }
            Err(cause) => {
                tracing::debug!(chunk, %cause, "no rows at a common state");
                GatherInput::Failed { chunk, cause }
            }
        });
    }
}

/// What a node's answer to the question for its versions says, which took so long with those of all others.
fn said(chunk: u32, held: Result<ChunkVersions, Cause>, took: Duration) -> GatherInput {
    match held {
        Err(cause) if cause.lacks_changes() => GatherInput::Lacks { chunk, cause },
        Err(Cause::Fault(Fault::Refused { retry_after_ms, .. })) => {
            // Where another says nothing each question takes as long as that is waited for: there are no more of them than there is time for.
            let after = Duration::from_millis(retry_after_ms.into()).max(took);
            GatherInput::Busy { chunk, after }
        }
        held => GatherInput::Versions { chunk, held: held.ok() },
    }
}

fn question(layout: &SegmentLayout, parts: &Parts, device: DeviceId, row: u32, at: RowsAt) -> Open {
    let Range { start, end } = parts.within;
    let length = end - start;
    let offset = u64::from(row) * u64::from(layout.block_bytes) + u64::from(start);
    let request = ReadRows { device, segment: layout.segment, offset, length, at };
    Open {
        body: message::encode(&NodeRequest::ReadRows(request)),
        priority: parts.priority,
        epoch: parts.epoch(layout),
        deadline: Some(parts.patience),
        credit: length,
    }
}

/// A block, or the part of it, that arrived whole and intact, and the version that it shows.
fn checked(
    layout: &SegmentLayout,
    (shape, parts): (&ParityGeometry, &Parts),
    (chunk, row): (u32, u32),
    answer: Result<(NodeAnswer, BytesMut), Cause>,
) -> Result<(u64, BytesMut), Cause> {
    let broken = |detail: &str| Cause::Fault(Fault::Protocol(detail.to_owned()));
    let (NodeAnswer::Rows { version, sums }, block) = answer? else {
        return Err(broken("no rows in the answer"));
    };
    let whole = block.len() == parts.len();
    let first = parts.within.start / layout.granule_bytes;
    if !whole || !intact(layout, chunk * shape.blocks + row, first, &block, &sums) {
        return Err(broken("rows arrived damaged"));
    }
    Ok((version, block))
}

/// The blocks of the chunks `lost`, of those of the same row that were read.
fn decode(
    layout: &SegmentLayout,
    (shape, length): (&ParityGeometry, usize),
    read: &BTreeMap<u32, BytesMut>,
    lost: &[u32],
) -> Result<Vec<BytesMut>, GetError> {
    let mut decoded: Vec<BytesMut> = lost.iter().map(|_| BytesMut::zeroed(length)).collect();
    if lost.is_empty() {
        return Ok(decoded);
    }
    let available: Vec<(usize, &[u8])> =
        read.iter().map(|(chunk, block)| (*chunk as usize, &block[..])).collect();
    let mut outputs: Vec<(usize, &mut [u8])> =
        lost.iter().zip(&mut decoded).map(|(chunk, block)| (*chunk as usize, &mut block[..])).collect();
    let code = shape.chunk_code().map_err(|error| unusable(layout, error))?;
    code.reconstruct(&available, &mut outputs).map_err(|error| unusable(layout, error))?;
    Ok(decoded)
}

fn unusable(layout: &SegmentLayout, detail: impl ToString) -> GetError {
    GetError::Layout { segment: Box::new(layout.clone()), detail: detail.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chunks::zeros,
        reserve::tests::{client, device_of, layout, serving},
    };
    use std::sync::Mutex;
    use steadfast_protocol::message::{ReadState, RefusalReason};

    #[tokio::test]
    async fn a_node_that_has_no_room_to_say_what_it_holds_is_asked_again() {
        let refusals = Mutex::new(1);
        let address = serving(move |request, stream| {
            let NodeRequest::ChunkVersions { device, .. } = &request else {
                return zeros::serve(&request, ReadState::default(), stream);
            };
            let mut refusals = refusals.lock().unwrap();
            if *device == device_of(0) && *refusals > 0 {
                *refusals -= 1;
                let reason = RefusalReason::Overloaded;
                return stream.fail(&Fault::Refused { reason, retry_after_ms: 2000 });
            }
            let _ = stream.end(message::encode(&NodeAnswer::ChunkVersions(ChunkVersions::default())));
        })
        .await;
        let (client, layout) = (client(&address, Vec::new()), layout());
        // Nothing makes up for it.
        let parity = [2, 3].map(device_of).into();
        let parts = Parts::whole(&layout, Duration::from_secs(5), Priority::Foreground);
        let read = originals(&client, &layout, &parity, 0..layout.code.originals, parts).await;
        assert_eq!(read.map(|(blocks, _)| blocks.len()).unwrap(), layout.code.originals as usize);
    }

    #[test]
    fn who_has_no_room_is_asked_again_no_sooner_than_the_last_question_took() {
        let refused = |retry_after_ms| {
            Err(Cause::Fault(Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms }))
        };
        for (says_ms, took_ms, after_ms) in [(100, 3, 100), (100, 2000, 2000)] {
            let after = Duration::from_millis(after_ms);
            let said = said(1, refused(says_ms), Duration::from_millis(took_ms));
            assert_eq!(said, GatherInput::Busy { chunk: 1, after });
        }
        let unreachable = Err(Cause::Unreachable("its node is down".to_owned()));
        assert_eq!(said(1, unreachable, Duration::ZERO), GatherInput::Versions { chunk: 1, held: None });
    }

    #[test]
    fn what_stands_in_for_others_that_may_only_be_late_is_asked_for_by_the_layout() {
        let layout = layout();
        let parts = Parts::whole(&layout, Duration::from_secs(1), Priority::Foreground);
        let epoch = |parts: &Parts| question(&layout, parts, device_of(2), 0, RowsAt::Newest).epoch;
        assert_eq!(epoch(&parts), Epoch(0));
        assert_eq!(epoch(&Parts { level: true, ..parts }), layout.epoch);
    }
}
