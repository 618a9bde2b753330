//! Chunks that change in place, asked one by one: what their nodes hold, rows of them, and an end to their updates.

mod decoded;

pub(crate) use decoded::originals;

use crate::Client;
use bytes::BytesMut;
use std::time::Duration;
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId,
    layout::{ParityGeometry, SegmentLayout},
    message::{self, ChunkVersions, Fault, NodeAnswer, NodeRequest, Priority},
    read::Cause,
};
use tokio::task::JoinSet;

/// How long a node may take to say something short.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// What became of the end of a segment's updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fenced {
    /// Whether any of its chunks may have been changed in place before.
    pub(crate) changed: bool,
}

impl Client {
    /// Has nodes refuse changes in place of a segment under epochs before `epoch`: what is read of it from then on is all
    /// that was and will be acknowledged. None where so few of them answer that one could still be.
    pub(crate) async fn fence(&self, layout: &SegmentLayout, epoch: Epoch) -> Option<Fenced> {
        let Some((shape, holders)) =
            ParityGeometry::of_layout(layout).and_then(|shape| Some((shape, shape.updatable(layout)?)))
        else {
            return Some(Fenced { changed: false });
        };
        let segment = layout.segment;
        let fence = |device| NodeRequest::Fence { device, segment };
        let fenced = self.ask_all(&holders, epoch, fence).await;
        let is_fenced = |chunk: u32| matches!(fenced[chunk as usize], Some(NodeAnswer::Done));
        // An update takes its data node and every parity node.
        let (mut data, mut parity) = (0..shape.data, shape.data..shape.chunks);
        if !(parity.any(is_fenced) || data.all(is_fenced)) {
            return None;
        }
        let versions = self.chunk_versions(segment, &holders).await;
        // Of those that do not answer nobody knows.
        let unchanged =
            |held: &ChunkVersions| held.version == 0 && held.held.iter().all(|(_, version)| *version == 0);
        let told = versions.iter().all(|held| held.as_ref().is_some_and(unchanged));
        let any_parity = shape.data..shape.chunks;
        let by_parity =
            any_parity.into_iter().any(|chunk| versions[chunk as usize].as_ref().is_some_and(unchanged));
        let none_seen = versions.iter().flatten().all(unchanged);
        Some(Fenced { changed: !(told || by_parity && none_seen) })
    }

    /// What the nodes of all chunks hold; none of those that do not answer.
    async fn chunk_versions(&self, segment: SegmentId, holders: &[DeviceId]) -> Vec<Option<ChunkVersions>> {
        let ask = |device| NodeRequest::ChunkVersions { device, segment };
        let answers = self.ask_all(holders, Epoch(0), ask).await;
        let versions = answers.into_iter().map(|answer| match answer {
            Some(NodeAnswer::ChunkVersions(versions)) => Some(versions),
            _ => None,
        });
        versions.collect()
    }

    /// Asks the same of several devices at once; their answers in the devices' order.
    async fn ask_all(
        &self,
        devices: &[DeviceId],
        epoch: Epoch,
        request: impl Fn(DeviceId) -> NodeRequest,
    ) -> Vec<Option<NodeAnswer>> {
        let mut asking = JoinSet::new();
        for (place, &device) in devices.iter().enumerate() {
            let (pool, address, body) =
                (self.pool.clone(), self.address_of(device), message::encode(&request(device)));
            asking.spawn(async move {
                let open = Open {
                    body,
                    priority: Priority::Foreground,
                    epoch,
                    deadline: Some(ANSWERS_WITHIN),
                    credit: 0,
                };
                let answer = call(&pool, address, open).await;
                if let Err(cause) = &answer {
                    tracing::debug!(%device, %cause, "a chunk's node did not answer");
                }
                (place, answer.ok().map(|(answer, _)| answer))
            });
        }
        let mut answers = vec![None; devices.len()];
        while let Some(answered) = asking.join_next().await {
            let (place, answer) = answered.expect("asking does not panic");
            answers[place] = answer;
        }
        answers
    }
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
