//! Updates that a device holds and nobody is about: from before a restart, or from before their parity was out of reach. Each
//! such segment's host begins, and levels.

use super::{Updates, medium};
use crate::devices::ServedDevice;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use steadfast_disk::{Op, OpOutput, Priority as LanePriority, SegmentId};
use steadfast_net::Open;
use steadfast_protocol::{
    DeviceId, Epoch,
    message::{self, NodeRequest, Priority},
};

/// Between two looks. What is held this long is not on its way.
const AGAIN: Duration = Duration::from_secs(5);

/// Looks for ever.
pub(crate) async fn recover(updates: Arc<Updates>, device: Arc<ServedDevice>) {
    let stream = updates.number();
    let mut before: Option<BTreeSet<SegmentId>> = None;
    loop {
        let lane = (stream, LanePriority::Interactive);
        let held = medium::ask(&device, lane, Op::Held { segment: None }).await;
        let Ok(OpOutput::HeldSegments(held)) = held else { return };
        let held: BTreeSet<SegmentId> = held.into_iter().collect();
        let waiting =
            held.iter().filter(|segment| before.as_ref().is_none_or(|before| before.contains(segment)));
        for &segment in waiting {
            tracing::debug!(device = %device.id, %segment, "levelling what is held");
            level(&updates, &device, segment).await;
        }
        before = Some(held);
        tokio::time::sleep(AGAIN).await;
    }
}

/// A data chunk levels itself; of a parity chunk the nodes of all data chunks are asked to.
async fn level(updates: &Arc<Updates>, device: &Arc<ServedDevice>, segment: SegmentId) {
    // One that is gone, or was moved, is freed by the sweep.
    let Ok(chunk) = updates.chunk(device.clone(), segment).await else { return };
    if chunk.number < chunk.shape.data {
        return updates.begin(device.clone(), segment);
    }
    for &holder in &chunk.holders[..chunk.shape.data as usize] {
        ask_to_level(updates, holder, segment, chunk.epoch).await;
    }
}

/// Asks the node of a data chunk to bring it and its parity to the same versions.
pub(super) async fn ask_to_level(updates: &Updates, holder: DeviceId, segment: SegmentId, epoch: Epoch) {
    let Some(connection) = updates.peers.connection(holder).await else { return };
    let request = NodeRequest::Level { device: holder, segment };
    let (body, deadline) = (message::encode(&request), Some(AGAIN));
    let open = Open { body, priority: Priority::Background, epoch, deadline, credit: 0 };
    if let Err(error) = connection.call(open).await {
        tracing::debug!(device = %holder, %segment, %error, "not asked to level");
    }
}
