//! Originals of a segment whose chunks change while it is read, or of which some are lost: all at one state
//! ([`steadfast_protocol::serve::parity_log::common`]), with what parity logs hold.

use super::{call, intact};
use crate::{Client, GetError};
use bytes::BytesMut;
use core::ops::Range;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use steadfast_net::Open;
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch,
    layout::{ParityGeometry, SegmentLayout},
    message::{self, Fault, NodeAnswer, NodeFault, NodeRequest, Priority, ReadRows, RowsAt},
    read::{Cause, ReadError},
    serve::parity_log::{ChunkNumber, VersionsByChunk, common},
};
use tokio::task::JoinSet;

/// How often nodes are asked for a common state: each time another was committed and merged, within some milliseconds.
const ATTEMPTS_MAX: u32 = 16;
/// A chunk that failed so often is left out; so often too few answer before that is said.
const FAILURES_MAX: u32 = 2;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The original blocks `wanted` of a segment, and how many bytes were received for them. Nothing is read of devices
/// `excluded`.
///
/// # Errors
/// When too few of its chunks can be had, or it changes faster than a common state is found.
pub(crate) async fn originals(
    client: &Client,
    layout: &SegmentLayout,
    excluded: &BTreeSet<DeviceId>,
    wanted: Range<BlockIndex>,
) -> Result<(Vec<BytesMut>, u64), GetError> {
    let unusable =
        |detail: &str| GetError::Layout { segment: Box::new(layout.clone()), detail: detail.to_owned() };
    let found = ParityGeometry::of_layout(layout).and_then(|shape| Some((shape, shape.updatable(layout)?)));
    let (shape, holders) = found.ok_or_else(|| unusable("its chunks do not fit each other"))?;
    let (received, failed, short) = Default::default();
    let mut gather = Gather { client, layout, excluded, shape, holders, received, failed, short };
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        // From the newest state; and from the oldest that all have, where parity will never get the newest.
        let newest = attempt % 2 == 0;
        if let Some(originals) = gather.attempt(wanted.clone(), newest).await? {
            return Ok((originals, gather.received));
        }
    }
    Err(gather.not_enough(wanted.end - wanted.start))
}

struct Gather<'a> {
    client: &'a Client,
    layout: &'a SegmentLayout,
    excluded: &'a BTreeSet<DeviceId>,
    shape: ParityGeometry,
    holders: Vec<DeviceId>,
    received: u64,
    /// How often a chunk could not be read although its node had answered, and why last.
    failed: BTreeMap<u32, (u32, Cause)>,
    /// How often too few chunks were to be had.
    short: u32,
}

impl Gather<'_> {
    /// One common state, and all blocks at it; none where it was gone before they were read.
    async fn attempt(
        &mut self,
        wanted: Range<BlockIndex>,
        newest: bool,
    ) -> Result<Option<Vec<BytesMut>>, GetError> {
        let shape = self.shape;
        let versions = self.client.chunk_versions(self.layout.segment, &self.holders).await;
        let lives = |chunk: &u32| {
            let failed = self.failed.get(chunk).map_or(0, |(times, _)| *times);
            versions[*chunk as usize].is_some()
                && failed < FAILURES_MAX
                && !self.excluded.contains(&self.holders[*chunk as usize])
        };
        let data: Vec<u32> = (0..shape.data).filter(lives).collect();
        let lost = shape.data as usize - data.len();
        let parity: Vec<u32> = (shape.data..shape.chunks).filter(lives).take(lost).collect();
        if parity.len() < lost {
            self.short += 1;
            return if self.short < FAILURES_MAX {
                Ok(None)
            } else {
                Err(self.not_enough(wanted.end - wanted.start))
            };
        }
        let of = |chunk: &u32| versions[*chunk as usize].as_ref().expect("it lives");
        let held: Vec<VersionsByChunk> =
            parity.iter().map(|chunk| of(chunk).held.iter().copied().collect()).collect();
        let named = data.iter().map(|chunk| (*chunk as ChunkNumber, of(chunk).version));
        let oldest = common(named, &held, shape.data as ChunkNumber);
        let mut originals: BTreeMap<BlockIndex, BytesMut> = BTreeMap::new();
        for row in 0..shape.blocks {
            let asked: Vec<u32> =
                (0..shape.data).filter(|chunk| wanted.contains(&(chunk * shape.blocks + row))).collect();
            let missing: Vec<u32> = asked.iter().copied().filter(|chunk| !data.contains(chunk)).collect();
            if asked.is_empty() {
                continue;
            }
            let sources = if missing.is_empty() { &asked } else { &data };
            let at = |chunk: ChunkNumber| match newest || missing.is_empty() {
                true => RowsAt::Newest,
                false => RowsAt::Data(oldest.get(&chunk).copied().unwrap_or(0)),
            };
            let Some(read) =
                self.row(row, sources.iter().map(|&chunk| (chunk, at(chunk as ChunkNumber)))).await
            else {
                return Ok(None);
            };
            // What parity is to hold: just what the data shows, and of the lost what all of it has.
            let mut state = oldest.clone();
            state.extend(read.iter().map(|(chunk, version, _)| (*chunk as ChunkNumber, *version)));
            let mut blocks: Vec<(u32, BytesMut)> =
                read.into_iter().map(|(chunk, _, block)| (chunk, block)).collect();
            if !missing.is_empty() {
                let of_parity = |chunk: u32| RowsAt::Parity {
                    data: shape.data as u16,
                    parity: shape.parity() as u16,
                    number: (chunk - shape.data) as u16,
                    versions: state.iter().map(|(chunk, version)| (*chunk, *version)).collect(),
                };
                let Some(read) = self.row(row, parity.iter().map(|&chunk| (chunk, of_parity(chunk)))).await
                else {
                    return Ok(None);
                };
                blocks.extend(read.into_iter().map(|(chunk, _, block)| (chunk, block)));
            }
            let mut decoded: Vec<BytesMut> =
                missing.iter().map(|_| BytesMut::zeroed(shape.block_bytes as usize)).collect();
            if !missing.is_empty() {
                let available: Vec<(usize, &[u8])> =
                    blocks.iter().map(|(chunk, block)| (*chunk as usize, &block[..])).collect();
                let mut outputs: Vec<(usize, &mut [u8])> = missing
                    .iter()
                    .zip(&mut decoded)
                    .map(|(chunk, block)| (*chunk as usize, &mut block[..]))
                    .collect();
                let code = shape.chunk_code().map_err(|error| self.unusable(error.to_string()))?;
                code.reconstruct(&available, &mut outputs)
                    .map_err(|error| self.unusable(error.to_string()))?;
            }
            for (chunk, block) in blocks.into_iter().chain(missing.into_iter().zip(decoded)) {
                if asked.contains(&chunk) {
                    originals.insert(chunk * shape.blocks + row, block);
                }
            }
        }
        Ok(Some(originals.into_values().collect()))
    }

    /// One block of each of these chunks, at those states, and the version that it shows; none where one of them cannot be had
    /// so.
    async fn row(
        &mut self,
        row: u32,
        chunks: impl Iterator<Item = (u32, RowsAt)>,
    ) -> Option<Vec<(u32, u64, BytesMut)>> {
        let shape = self.shape;
        let mut reading = JoinSet::new();
        for (chunk, at) in chunks {
            let device = self.holders[chunk as usize];
            let request = NodeRequest::ReadRows(ReadRows {
                device,
                segment: self.layout.segment,
                offset: u64::from(row) * u64::from(shape.block_bytes),
                length: shape.block_bytes,
                at,
            });
            let open = Open {
                body: message::encode(&request),
                priority: Priority::Foreground,
                epoch: Epoch(0),
                deadline: Some(self.client.options.patience),
                credit: shape.block_bytes,
            };
            let (pool, address) = (self.client.pool.clone(), self.client.address_of(device));
            reading.spawn(async move { (chunk, call(&pool, address, open).await) });
        }
        let mut blocks = Vec::new();
        let mut all = true;
        while let Some(read) = reading.join_next().await {
            match read.expect("reading does not panic") {
                (chunk, Ok((NodeAnswer::Rows { version, sums }, block))) => {
                    self.received += block.len() as u64;
                    let index = chunk * shape.blocks + row;
                    if block.len() == shape.block_bytes as usize
                        && intact(self.layout, index, 0, &block, &sums)
                    {
                        blocks.push((chunk, version, block));
                    } else {
                        self.fail(chunk, Cause::Fault(Fault::Protocol("rows arrived damaged".to_owned())));
                        all = false;
                    }
                }
                (chunk, Ok(_)) => {
                    self.fail(chunk, Cause::Fault(Fault::Protocol("no rows in the answer".to_owned())));
                    all = false;
                }
                (chunk, Err(cause)) => {
                    tracing::debug!(chunk, %cause, "no rows at a common state");
                    // One that went on is asked again; one that is gone or damaged is left out.
                    if !matches!(
                        cause,
                        Cause::Fault(Fault::Node(NodeFault::Overtaken { .. }) | Fault::Refused { .. })
                    ) {
                        self.fail(chunk, cause);
                    }
                    all = false;
                }
            }
        }
        all.then_some(blocks)
    }

    fn fail(&mut self, chunk: u32, cause: Cause) {
        let times = self.failed.get(&chunk).map_or(0, |(times, _)| *times);
        self.failed.insert(chunk, (times + 1, cause));
    }

    fn unusable(&self, detail: String) -> GetError {
        GetError::Layout { segment: Box::new(self.layout.clone()), detail }
    }

    fn not_enough(&self, missing: u32) -> GetError {
        let failed =
            self.failed.iter().map(|(chunk, (_, cause))| (self.holders[*chunk as usize], cause.clone()));
        GetError::Read(ReadError::NotEnough {
            missing,
            originals: self.shape.originals(),
            reachable: 0,
            devices: self.shape.chunks,
            failed: failed.collect(),
        })
    }
}
