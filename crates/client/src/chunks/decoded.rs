//! Originals of a segment whose chunks change while it is read, or of which some are lost: all at one state
//! ([`steadfast_protocol::serve::parity_log::common`]), with what parity logs hold.

use super::call;
use crate::{Client, GetError};
use bytes::BytesMut;
use core::ops::Range;
use std::{collections::BTreeMap, time::Duration};
use steadfast_disk::checksum;
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
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The original blocks `wanted` of a segment, and how many bytes were received for them.
///
/// # Errors
/// When too few of its chunks can be had, or it changes faster than a common state is found.
pub(crate) async fn originals(
    client: &Client,
    layout: &SegmentLayout,
    wanted: Range<BlockIndex>,
) -> Result<(Vec<BytesMut>, u64), GetError> {
    let unusable =
        |detail: &str| GetError::Layout { segment: Box::new(layout.clone()), detail: detail.to_owned() };
    let found = ParityGeometry::of_layout(layout).and_then(|shape| Some((shape, shape.updatable(layout)?)));
    let (shape, holders) = found.ok_or_else(|| unusable("its chunks do not fit each other"))?;
    let mut gather = Gather { client, layout, shape, holders, received: 0, failed: BTreeMap::new() };
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        if let Some(originals) = gather.attempt(wanted.clone()).await? {
            return Ok((originals, gather.received));
        }
    }
    Err(gather.not_enough(wanted.end - wanted.start))
}

struct Gather<'a> {
    client: &'a Client,
    layout: &'a SegmentLayout,
    shape: ParityGeometry,
    holders: Vec<DeviceId>,
    received: u64,
    /// Chunks that could not be read although their node had answered, and why.
    failed: BTreeMap<u32, Cause>,
}

impl Gather<'_> {
    /// One common state, and all blocks at it; none where it was gone before they were read.
    async fn attempt(&mut self, wanted: Range<BlockIndex>) -> Result<Option<Vec<BytesMut>>, GetError> {
        let shape = self.shape;
        let versions = self.client.chunk_versions(self.layout.segment, &self.holders).await;
        let lives = |chunk: &u32| versions[*chunk as usize].is_some() && !self.failed.contains_key(chunk);
        let data: Vec<u32> = (0..shape.data).filter(lives).collect();
        let lost = shape.data as usize - data.len();
        let parity: Vec<u32> = (shape.data..shape.chunks).filter(lives).take(lost).collect();
        if parity.len() < lost {
            return Err(self.not_enough(wanted.end - wanted.start));
        }
        let of = |chunk: &u32| versions[*chunk as usize].as_ref().expect("it lives");
        let held: Vec<VersionsByChunk> =
            parity.iter().map(|chunk| of(chunk).held.iter().copied().collect()).collect();
        let newest = data.iter().map(|chunk| (*chunk as ChunkNumber, of(chunk).version));
        let state = common(newest, &held, shape.data as ChunkNumber);
        let mut originals: BTreeMap<BlockIndex, BytesMut> = BTreeMap::new();
        for row in 0..shape.blocks {
            let asked: Vec<u32> =
                (0..shape.data).filter(|chunk| wanted.contains(&(chunk * shape.blocks + row))).collect();
            let missing: Vec<u32> = asked.iter().copied().filter(|chunk| !data.contains(chunk)).collect();
            let sources: Vec<u32> = match missing.is_empty() {
                true => asked.clone(),
                false => data.iter().chain(&parity).copied().collect(),
            };
            if sources.is_empty() {
                continue;
            }
            let Some(blocks) = self.row(row, &sources, &state).await else { return Ok(None) };
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

    /// One block of each of these chunks, at that state; none where one of them cannot be had so.
    async fn row(
        &mut self,
        row: u32,
        chunks: &[u32],
        state: &VersionsByChunk,
    ) -> Option<Vec<(u32, BytesMut)>> {
        let shape = self.shape;
        let mut reading = JoinSet::new();
        for &chunk in chunks {
            let device = self.holders[chunk as usize];
            let at = match chunk.checked_sub(shape.data) {
                None => RowsAt::Data(state.get(&(chunk as ChunkNumber)).copied().unwrap_or(0)),
                Some(number) => RowsAt::Parity {
                    data: shape.data as u16,
                    parity: shape.parity() as u16,
                    number: number as u16,
                    versions: state.iter().map(|(chunk, version)| (*chunk, *version)).collect(),
                },
            };
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
                (chunk, Ok((NodeAnswer::Rows { sums }, block))) => {
                    self.received += block.len() as u64;
                    if self.intact(chunk * shape.blocks + row, &block, &sums) {
                        blocks.push((chunk, block));
                    } else {
                        self.failed
                            .insert(chunk, Cause::Fault(Fault::Protocol("rows arrived damaged".to_owned())));
                        all = false;
                    }
                }
                (chunk, Ok(_)) => {
                    self.failed
                        .insert(chunk, Cause::Fault(Fault::Protocol("no rows in the answer".to_owned())));
                    all = false;
                }
                (chunk, Err(cause)) => {
                    tracing::debug!(chunk, %cause, "no rows at a common state");
                    // One that went on is asked again; one that is gone or damaged is left out.
                    if !matches!(
                        cause,
                        Cause::Fault(Fault::Node(NodeFault::Overtaken { .. }) | Fault::Refused { .. })
                    ) {
                        self.failed.insert(chunk, cause);
                    }
                    all = false;
                }
            }
        }
        all.then_some(blocks)
    }

    fn intact(&self, index: BlockIndex, block: &[u8], sums: &[u32]) -> bool {
        let granule = self.layout.granule_bytes as usize;
        block.len() == self.shape.block_bytes as usize
            && sums.len() == block.len().div_ceil(granule)
            && block.chunks(granule).zip(sums).zip(0..).all(|((bytes, &sum), granule_number)| {
                let (segment, version) = (self.layout.segment, self.layout.version);
                checksum::sum(bytes, &checksum::Tag { segment, version, index, granule_number }) == sum
            })
    }

    fn unusable(&self, detail: String) -> GetError {
        GetError::Layout { segment: Box::new(self.layout.clone()), detail }
    }

    fn not_enough(&self, missing: u32) -> GetError {
        let failed = self.failed.iter().map(|(chunk, cause)| (self.holders[*chunk as usize], cause.clone()));
        GetError::Read(ReadError::NotEnough {
            missing,
            originals: self.shape.originals(),
            reachable: 0,
            devices: self.shape.chunks,
            failed: failed.collect(),
        })
    }
}
