//! Rows of a chunk at given versions, for whoever decodes: by operations of the lane alone, so that updates go on.

use super::{
    medium::{self, held, log_for_reader, overtaken},
    returned,
};
use crate::{
    devices::ServedDevice,
    fault::fault,
    service::{Service, operation},
};
use bytes::Bytes;
use std::time::Duration;
use steadfast_disk::{
    ExtentInfo, Granule, Op, OpError, OpOutput, Priority as LanePriority, checksum, device::UpdateError,
};
use steadfast_net::StreamSender;
use steadfast_protocol::{
    BlockIndex, Epoch, SegmentId,
    layout::BLOCK_BYTES_MAX,
    message::{ChunkVersions, Fault, NodeAnswer, NodeFault, PAYLOAD_BYTES_MAX, ReadRows, RowsAt},
    serve::parity_log::{ParityOf, VersionsByChunk, take_back},
};

const CLASS: LanePriority = LanePriority::Normal;
/// How often, and how long, differences are waited for that parity lacks yet: an update takes some milliseconds.
const WAITS: u32 = 5;
const WAIT: Duration = Duration::from_millis(4);

/// Which versions a device holds of a chunk.
pub(crate) async fn versions(
    service: &Service,
    device: &ServedDevice,
    segment: SegmentId,
) -> Result<ChunkVersions, Fault> {
    let op = Op::DescribeUpdates { segment };
    if let Err(OpError::Update(UpdateError::NotUpdatable { .. })) =
        operation(service, device, CLASS, op).await
    {
        // It never changes.
        return Ok(ChunkVersions::default());
    }
    let (info, held) = medium::versions(device, (service.lane_stream(), CLASS), segment).await?;
    if !info.durable {
        durable(service, device).await?;
    }
    Ok(ChunkVersions { version: info.version, held: held.into_iter().collect() })
}

/// Waits until what was read is durable: a version that is named is not lost and stamped again with other bytes, which parity
/// would show under the same number. What is durable already is not to wait for what others change, nor for a device that only reads.
async fn durable(service: &Service, device: &ServedDevice) -> Result<(), Fault> {
    match operation(service, device, CLASS, Op::Barrier).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Fault::Node(fault(device.id, error))),
    }
}

/// Refuses a question for more rows than a block has, or than the asker takes.
pub(crate) fn check(wanted: &ReadRows, credit: u32) -> Result<(), Fault> {
    if wanted.length == 0 || wanted.length > BLOCK_BYTES_MAX || wanted.length > credit {
        return Err(invalid("rows are asked for a block at a time at most, and granted"));
    }
    Ok(())
}

fn invalid(detail: &str) -> Fault {
    Fault::Node(NodeFault::Invalid(detail.to_owned()))
}

/// Which versions a device holds of a chunk; of a parity chunk that is to stand in for others by a layout of that epoch, once it may. What
/// it held before it was brought forward nobody is told then, who could ask for rows of that once it may be read.
pub(crate) async fn versions_to_stand_in(
    service: &Service,
    device: &ServedDevice,
    segment: SegmentId,
    epoch: Epoch,
) -> Result<ChunkVersions, Fault> {
    if epoch != Epoch(0) {
        let extent = described(service, device, segment).await?;
        returned::before_standing_in(service, device, &extent, epoch).await?;
    }
    versions(service, device, segment).await
}

async fn described(
    service: &Service,
    device: &ServedDevice,
    segment: SegmentId,
) -> Result<ExtentInfo, Fault> {
    match operation(service, device, CLASS, Op::Describe { segment }).await {
        Ok(OpOutput::Described(Some(extent))) => Ok(extent),
        Ok(OpOutput::Described(None)) => {
            Err(Fault::Node(NodeFault::UnknownSegment { device: device.id, segment }))
        }
        Ok(other) => unreachable!("a description answers a description, not {other:?}"),
        Err(error) => Err(Fault::Node(fault(device.id, error))),
    }
}

/// Finds the chunk, once the rows may be read by a layout of that epoch: nothing is held for them meanwhile.
pub(crate) async fn find(
    service: &Service,
    device: &ServedDevice,
    wanted: &ReadRows,
    epoch: Epoch,
) -> Result<ExtentInfo, Fault> {
    let extent = described(service, device, wanted.segment).await?;
    match &wanted.at {
        RowsAt::Newest => returned::before_read(service, device, &extent).await?,
        RowsAt::Data(_) => {}
        RowsAt::Parity { .. } => returned::before_standing_in(service, device, &extent, epoch).await?,
    }
    Ok(extent)
}

/// Sends rows as they were at the versions asked for, of a chunk that was found.
pub(crate) async fn read(
    service: &Service,
    device: &ServedDevice,
    stream: &StreamSender,
    wanted: &ReadRows,
    extent: &ExtentInfo,
) -> Result<NodeAnswer, Fault> {
    let segment = wanted.segment;
    let block_bytes = u64::from(extent.block_bytes);
    let end = wanted
        .offset
        .checked_add(u64::from(wanted.length) - 1)
        .ok_or_else(|| invalid("rows beyond any chunk"))?;
    let (first, last) = (wanted.offset / block_bytes, end / block_bytes);
    let granule = u64::from(extent.granule.bytes());
    if first != last
        || !wanted.offset.is_multiple_of(granule)
        || !u64::from(wanted.length).is_multiple_of(granule)
    {
        return Err(invalid("rows are whole granules within one block"));
    }
    let begin = extent.blocks.first().map_or(0, |range| range.start);
    let index = u32::try_from(first).ok().and_then(|block| begin.checked_add(block));
    let index = index.ok_or_else(|| invalid("rows beyond any chunk"))?;
    let (bytes, version) = match &wanted.at {
        RowsAt::Newest => data(service, device, wanted, index, None).await?,
        RowsAt::Data(version) => data(service, device, wanted, index, Some(*version)).await?,
        RowsAt::Parity { data, parity, number, versions } => {
            let chunk_bytes = extent.block_count() * block_bytes;
            let of = ParityOf::new(*data, *parity, *number, chunk_bytes);
            let of = of.map_err(|error| invalid(&error.to_string()))?;
            let versions = versions.iter().copied().collect();
            let mut rows = parity_rows(service, device, wanted, &of, &versions).await;
            for _ in 0..WAITS {
                if !matches!(rows, Err(Fault::Node(NodeFault::Overtaken { .. }))) {
                    break;
                }
                // What the data shows may be on its way here.
                tokio::time::sleep(WAIT).await;
                rows = parity_rows(service, device, wanted, &of, &versions).await;
            }
            (rows?, 0)
        }
    };
    let granule_first =
        u32::try_from(wanted.offset % block_bytes / granule).expect("a block has few granules");
    let sums = sums(&bytes, extent.granule, segment, extent.version, index, granule_first);
    let bytes = Bytes::from(bytes);
    for at in (0..bytes.len()).step_by(PAYLOAD_BYTES_MAX as usize) {
        let part = bytes.slice(at..bytes.len().min(at + PAYLOAD_BYTES_MAX as usize));
        if stream.send(Vec::new(), part).await.is_err() {
            return Err(Fault::Cancelled);
        }
    }
    Ok(NodeAnswer::Rows { version, sums })
}

fn sums(
    bytes: &[u8],
    granule: Granule,
    segment: SegmentId,
    version: steadfast_protocol::Version,
    index: u32,
    first: u32,
) -> Vec<u32> {
    let granules = bytes.chunks(granule.bytes() as usize).zip(first..);
    let tag = |granule_number| checksum::Tag { segment, version, index, granule_number };
    granules.map(|(bytes, number)| checksum::sum(bytes, &tag(number))).collect()
}

/// Rows of a data chunk within block `index`, and the version that they show: as they are, or less what is newer than asked for.
async fn data(
    service: &Service,
    device: &ServedDevice,
    wanted: &ReadRows,
    index: BlockIndex,
    version: Option<u64>,
) -> Result<(Vec<u8>, u64), Fault> {
    let failed = |error| Fault::Node(fault(device.id, error));
    let (segment, len) = (wanted.segment, wanted.length);
    let (mut bytes, now, is_durable) = match operation(
        service,
        device,
        CLASS,
        Op::ReadChunk { segment, offset: wanted.offset, len },
    )
    .await
    {
        Ok(OpOutput::Chunk { data, state, durable, .. }) => (data.to_vec(), state.version, durable),
        Err(OpError::Update(UpdateError::NotUpdatable { .. })) => {
            (never_updated(service, device, wanted, index).await?, 0, true)
        }
        Ok(other) => unreachable!("rows are answered by rows, not {other:?}"),
        Err(error) => return Err(failed(error)),
    };
    if version.is_none() && !is_durable {
        durable(service, device).await?;
    }
    let version = version.unwrap_or(now);
    if now == version {
        return Ok((bytes, version));
    }
    let held = held(device, (service.lane_stream(), CLASS), segment).await?;
    let held = held.iter().map(|staged| (staged.version, staged.offset, &staged.difference[..]));
    match take_back(&mut bytes, wanted.offset, (now, version), held) {
        true => Ok((bytes, version)),
        false => Err(overtaken(device.id, segment)),
    }
}

/// Rows of a chunk on a device that is too small for updates.
async fn never_updated(
    service: &Service,
    device: &ServedDevice,
    wanted: &ReadRows,
    index: BlockIndex,
) -> Result<Vec<u8>, Fault> {
    let op = Op::Describe { segment: wanted.segment };
    let block_bytes = match operation(service, device, CLASS, op).await {
        Ok(OpOutput::Described(Some(extent))) => u64::from(extent.block_bytes),
        _ => return Err(overtaken(device.id, wanted.segment)),
    };
    let offset = (wanted.offset % block_bytes) as u32;
    let op = Op::ReadSlice { segment: wanted.segment, index, offset, len: wanted.length, ahead: 0 };
    match operation(service, device, CLASS, op).await {
        Ok(OpOutput::Slice { data, .. }) => Ok(data.to_vec()),
        Ok(other) => unreachable!("a read is answered by a slice, not {other:?}"),
        Err(error) => Err(Fault::Node(fault(device.id, error))),
    }
}

/// Rows of a parity chunk: as they are, and what its log has up to the versions asked for.
async fn parity_rows(
    service: &Service,
    device: &ServedDevice,
    wanted: &ReadRows,
    of: &ParityOf,
    versions: &VersionsByChunk,
) -> Result<Vec<u8>, Fault> {
    let failed = |error| Fault::Node(fault(device.id, error));
    let segment = wanted.segment;
    // The log first: what is merged between the two is then seen in the chunk, and is told.
    let lane = (service.lane_stream(), CLASS);
    let (info, log, _one_of_few) = log_for_reader(device, lane, segment, |difference| difference).await?;
    let op = Op::ReadChunk { segment, offset: wanted.offset, len: wanted.length };
    let (bytes, state) = match operation(service, device, CLASS, op).await.map_err(failed)? {
        OpOutput::Chunk { data, state, .. } => (data, state),
        other => unreachable!("rows are answered by rows, not {other:?}"),
    };
    // With no log there is nothing that could have gone into the chunk unseen: what it holds is told with it.
    if !log.is_empty() && state.merged != info.merged {
        return Err(overtaken(device.id, segment));
    }
    let mut bytes = bytes.to_vec();
    let mut merged: VersionsByChunk = state.merged.into_iter().collect();
    if merged.iter().any(|(chunk, version)| version > versions.get(chunk).unwrap_or(&0)) {
        // Overwritten in place: what is newer is taken back, where it is still held.
        let held = held(device, (service.lane_stream(), CLASS), segment).await?;
        for (chunk, version) in &mut merged {
            let wanted_version = versions.get(chunk).copied().unwrap_or(0).min(*version);
            let of_chunk = held.iter().filter_map(|staged| {
                let (of, version) = staged.of?;
                (of == *chunk).then_some((version, staged.offset, &staged.difference[..]))
            });
            if !take_back(&mut bytes, wanted.offset, (*version, wanted_version), of_chunk) {
                return Err(overtaken(device.id, segment));
            }
            *version = wanted_version;
        }
    }
    let brought = of.bring(&mut bytes, wanted.offset, &merged, &log, versions);
    match brought.map_err(|error| super::not_in_place(segment, error))? {
        true => Ok(bytes),
        false => Err(overtaken(device.id, segment)),
    }
}
