//! Chunks that change in place, asked one by one: what their nodes hold, rows of them, and an end to their updates.

mod decoded;
mod direct;
#[cfg(test)]
pub(crate) mod zeros;

pub(crate) use decoded::{Parts, originals};
pub(crate) use direct::direct;

use crate::{Client, GetError, get::SegmentReader, reserve::Reading};
use bytes::BytesMut;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use steadfast_disk::checksum;
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch, SegmentId,
    chunks::{Fence, awaited},
    layout::{ParityGeometry, SegmentLayout},
    message::{self, ChunkVersions, Fault, NodeAnswer, NodeFault, NodeRequest, Priority},
    policy::Policy,
    read::Cause,
    serve::parity_log::VersionsByChunk,
};
use tokio::task::JoinSet;

/// How long a node may take to say something short.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// The part of the time that is left after which one that refuses is asked again at the latest, and the least pause: however long it says,
/// it is asked some more times, as the room that it lacks may be there any moment.
const REFUSED_PART: u32 = 4;
const REFUSED_PAUSE_MIN: Duration = Duration::from_millis(1);

/// What became of the end of a segment's updates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fenced {
    /// Whether any of its chunks may have been changed in place, or may yet be.
    pub(crate) changed: bool,
    /// Devices whose chunks what is read must not be made of: parity that may take differences still, data that lacks some, and data
    /// that leaves and may have some that parity has not.
    pub(crate) without: BTreeSet<DeviceId>,
    /// Devices whose data chunks lack changes that the others do not make up for.
    pub(crate) outdated: Vec<DeviceId>,
    /// Devices of which nothing is read because their nodes do not answer, and which may do so yet.
    pub(crate) awaited: BTreeSet<DeviceId>,
    /// Changes of data chunks that their nodes named and some parity lacks, which does not stand in for them.
    pub(crate) ahead: VersionsByChunk,
    /// The devices of those chunks.
    pub(crate) ahead_on: BTreeSet<DeviceId>,
    /// All changes that data chunks named.
    pub(crate) named: VersionsByChunk,
}

impl Client {
    /// Has nodes refuse changes in place of a segment under epochs before `epoch`: what is read of it from then on, without parity
    /// that could not be told and data that is outdated, is all that was and will be acknowledged. None where so few of them answer
    /// that one could still be. Chunks on devices that are `leaving` are moved, also where nobody knows what they hold.
    pub(crate) async fn fence(
        &self,
        layout: &SegmentLayout,
        epoch: Epoch,
        leaving: &BTreeSet<DeviceId>,
    ) -> Option<Fenced> {
        let Some((shape, holders)) =
            ParityGeometry::of_layout(layout).and_then(|shape| Some((shape, shape.updatable(layout)?)))
        else {
            return Some(Fenced::default());
        };
        let segment = layout.segment;
        let ask = |device| (NodeRequest::Fence { device, segment }, epoch);
        let answers = self.ask_all(&holders, ANSWERS_WITHIN, ask).await;
        let fence = Fence::of(shape, &answers)?;
        let device = |chunk: u32| holders[chunk as usize];
        // Who said nothing would be waited for once more in vain.
        let silent = holders.iter().zip(&answers);
        let silent = silent.filter(|(_, answer)| matches!(answer, Err(Cause::Unreachable(_))));
        let silent: BTreeSet<DeviceId> = silent.map(|(device, _)| *device).collect();
        let said = self.chunk_versions(segment, &holders, (&silent, ANSWERS_WITHIN), |_| Epoch(0)).await;
        let versions: Vec<Option<ChunkVersions>> = said.iter().map(|said| said.clone().ok()).collect();
        let leaves = |chunk: u32| leaving.contains(&device(chunk));
        let changed = fence.changed(&versions, leaves);
        let without = fence.without(&versions, leaves);
        let ahead = fence.ahead(&versions, &without);
        let ahead_on = ahead.keys().map(|&chunk| device(chunk.into())).collect();
        let data = (0..).zip(&versions).take(shape.data as usize);
        let named = data.filter_map(|(chunk, named)| Some((chunk, named.as_ref()?.version))).collect();
        let awaited = awaited(&answers, &said, &without).into_iter().map(device).collect();
        let without: BTreeSet<DeviceId> = without.into_iter().map(device).collect();
        if !without.is_empty() {
            tracing::debug!(%segment, ?without, "read without what is not fenced, lacks changes or may have others");
        }
        let lacking = fence.lacking(&versions).into_iter().map(device);
        let outdated = lacking.filter(|device| !without.contains(device)).collect();
        Some(Fenced { changed, without, outdated, awaited, ahead, ahead_on, named })
    }

    /// Whether nodes refuse changes in place of a segment under its layout's epoch, for somebody who began before `epoch` to store it anew and
    /// not for anybody who did since.
    pub(crate) async fn is_fenced(&self, layout: &SegmentLayout, epoch: Epoch) -> bool {
        let Some(holders) = ParityGeometry::of_layout(layout).and_then(|shape| shape.updatable(layout))
        else {
            return false;
        };
        // Under that epoch a fence ends nothing that the layout has not ended.
        let segment = layout.segment;
        let ask = |device| (NodeRequest::Fence { device, segment }, layout.epoch);
        let answers = self.ask_all(&holders, ANSWERS_WITHIN, ask).await;
        let fenced = answers.iter().filter_map(|answer| match answer {
            Err(Cause::Fault(Fault::Node(NodeFault::StaleEpoch { current, .. }))) => Some(*current),
            _ => None,
        });
        fenced.max().is_some_and(|latest| latest < epoch.0)
    }

    /// All bytes of an object in a parity bucket, decoded as if these devices were lost: what a drill reads.
    ///
    /// # Errors
    /// As for a get with those devices out of reach.
    pub async fn decoded_without(
        &self,
        bucket: &str,
        key: &str,
        devices: &BTreeSet<DeviceId>,
    ) -> Result<Vec<u8>, GetError> {
        let found = self.locate(bucket, key).await?;
        let class = self.options.quality.class();
        let mut bytes = Vec::new();
        for layout in found.segments.iter().filter(|layout| layout.length > 0) {
            let blocks = match changes_in_place(&found.policy, layout) {
                true => {
                    let parts = Parts::whole(layout, self.options.patience, class.priority());
                    originals(self, layout, devices, 0..layout.code.originals, parts).await?.0
                }
                false => {
                    let reading = Reading { excluded: devices.clone(), ..self.reading(class) };
                    let part = 0..layout.length;
                    SegmentReader::new(self, layout, part, &found.policy, None, &reading)?.run().await?
                }
            };
            let begin = bytes.len();
            blocks.iter().for_each(|block| bytes.extend_from_slice(block));
            bytes.truncate(begin + usize::try_from(layout.length).expect("a segment fits memory"));
        }
        Ok(bytes)
    }

    /// What the nodes of all chunks hold, or why they do not say, each asked under its epoch, and again for so long where it has no room for
    /// that; those on devices `excluded` are not asked.
    async fn chunk_versions(
        &self,
        segment: SegmentId,
        holders: &[DeviceId],
        (excluded, room_within): (&BTreeSet<DeviceId>, Duration),
        epoch: impl Fn(&DeviceId) -> Epoch,
    ) -> Vec<Result<ChunkVersions, Cause>> {
        let ask = |device| (NodeRequest::ChunkVersions { device, segment }, epoch(&device));
        let asked: Vec<DeviceId> =
            holders.iter().copied().filter(|device| !excluded.contains(device)).collect();
        let mut answers = self.ask_all(&asked, room_within, ask).await.into_iter();
        let held = |device| {
            let answer = if excluded.contains(device) { None } else { answers.next() };
            match answer {
                Some(Ok(NodeAnswer::ChunkVersions(versions))) => Ok(versions),
                Some(Ok(_)) => Err(Cause::Fault(Fault::Protocol("no versions in the answer".to_owned()))),
                Some(Err(cause)) => Err(cause),
                None => Err(not_asked()),
            }
        };
        holders.iter().map(held).collect()
    }

    /// Asks something of several devices at once, each under an epoch, those again for so long that have no room for it; their answers in
    /// the devices' order.
    async fn ask_all(
        &self,
        devices: &[DeviceId],
        room_within: Duration,
        request: impl Fn(DeviceId) -> (NodeRequest, Epoch),
    ) -> Vec<Result<NodeAnswer, Cause>> {
        let mut asking = JoinSet::new();
        for (place, &device) in devices.iter().enumerate() {
            let (request, epoch) = request(device);
            let (pool, address, body) =
                (self.pool.clone(), self.address_of(device), message::encode(&request));
            asking.spawn(async move {
                let begun = Instant::now();
                let until = begun + ANSWERS_WITHIN;
                let answer = loop {
                    let open = Open {
                        body: body.clone(),
                        priority: Priority::Foreground,
                        epoch,
                        deadline: Some(until.saturating_duration_since(Instant::now())),
                        credit: 0,
                    };
                    let answer = call(&pool, address.clone(), open).await;
                    let Err(Cause::Fault(Fault::Refused { retry_after_ms, .. })) = &answer else {
                        break answer;
                    };
                    let left = room_within.saturating_sub(begun.elapsed());
                    if left <= REFUSED_PAUSE_MIN {
                        break answer;
                    }
                    let pause = Duration::from_millis((*retry_after_ms).into());
                    tokio::time::sleep(pause.min(left / REFUSED_PART).max(REFUSED_PAUSE_MIN)).await;
                };
                if let Err(cause) = &answer {
                    tracing::debug!(%device, %cause, "a chunk's node did not answer");
                }
                (place, answer.map(|(answer, _)| answer))
            });
        }
        let mut answers: Vec<Result<NodeAnswer, Cause>> = devices.iter().map(|_| Err(not_asked())).collect();
        while let Some(answered) = asking.join_next().await {
            let (place, answer) = answered.expect("asking does not panic");
            answers[place] = answer;
        }
        answers
    }
}

fn not_asked() -> Cause {
    Cause::Unreachable("it was not asked".to_owned())
}

/// Whether the chunks of a segment have room for changes in place.
fn changes_in_place(policy: &Policy, layout: &SegmentLayout) -> bool {
    let (Policy::Parity(policy), Some(shape)) = (policy, ParityGeometry::of_layout(layout)) else {
        return false;
    };
    shape.updatable(layout).is_some() && policy.update_bytes_max(shape.chunk_bytes()).is_some()
}

/// Whether granules of a block, from `first` on, are what was stored under the segment's name at this place.
fn intact(layout: &SegmentLayout, index: BlockIndex, first: u32, bytes: &[u8], sums: &[u32]) -> bool {
    let granule = layout.granule_bytes as usize;
    sums.len() == bytes.len().div_ceil(granule)
        && bytes.chunks(granule).zip(sums).zip(first..).all(|((bytes, &sum), granule_number)| {
            let (segment, version) = (layout.segment, layout.version);
            checksum::sum(bytes, &checksum::Tag { segment, version, index, granule_number }) == sum
        })
}

/// One request, its answer and payload; or why there is none.
pub(crate) async fn call(
    pool: &steadfast_net::Pool,
    address: Option<String>,
    open: Open,
) -> Result<(NodeAnswer, BytesMut), Cause> {
    let unreachable = |error: String| Cause::Unreachable(error);
    let address = address.ok_or_else(|| unreachable("no server serves this device".to_owned()))?;
    // A node that does not take the connection costs no more than one that does not answer.
    let within = open.deadline.unwrap_or(ANSWERS_WITHIN);
    let connecting = tokio::time::timeout(within, pool.connection(&address));
    let connection = match connecting.await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(unreachable(error.to_string())),
        Err(_) => return Err(unreachable(format!("{address}: no connection within {} s", within.as_secs()))),
    };
    let (body, payload) = connection.call(open).await.map_err(|error| match error {
        CallError::Fault(fault) => Cause::Fault(fault),
        other => unreachable(other.to_string()),
    })?;
    let answer = message::decode(&body).map_err(|error| Cause::Fault(Fault::Protocol(error.to_string())))?;
    Ok((answer, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::tests::{client, device_of, layout, serving};
    use std::sync::Mutex;
    use steadfast_protocol::message::RefusalReason;

    /// Where a server listens that refuses the first fence of each device, for so long.
    async fn crowded(retry_after_ms: u32) -> String {
        let refused = Mutex::new(BTreeSet::new());
        serving(move |request, stream| match request {
            NodeRequest::Fence { device, .. } if refused.lock().unwrap().insert(device) => {
                stream.fail(&Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms });
            }
            _ => {
                let _ = stream.end(message::encode(&NodeAnswer::Done));
            }
        })
        .await
    }

    #[tokio::test]
    async fn a_node_that_has_no_room_for_a_fence_is_asked_again() {
        // Also one that says that it will have none for as long as it is asked.
        for retry_after_ms in [1, 2000, u32::MAX] {
            let address = crowded(retry_after_ms).await;
            let (client, segment) = (client(&address, Vec::new()), layout().segment);
            let devices: Vec<DeviceId> = (0..4).map(device_of).collect();
            let fence = |device| (NodeRequest::Fence { device, segment }, Epoch(2));
            let answers = client.ask_all(&devices, ANSWERS_WITHIN, fence).await;
            assert!(answers.iter().all(|answer| matches!(answer, Ok(NodeAnswer::Done))), "{answers:?}");
        }
    }
}
