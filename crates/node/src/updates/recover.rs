//! Updates that a device holds and nobody is about: from before a restart, or from before their parity was out of reach. Each
//! such segment's host begins, and levels.

use super::Updates;
use crate::devices::ServedDevice;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use steadfast_disk::{Op, OpOutput, Priority as LanePriority, SegmentId};

/// Between two looks. What is held this long is not on its way.
const AGAIN: Duration = Duration::from_secs(5);

/// Looks for ever.
pub(crate) async fn recover(updates: Arc<Updates>, device: Arc<ServedDevice>) {
    let stream = updates.number();
    let mut before: Option<BTreeSet<SegmentId>> = None;
    loop {
        let held = super::ask(&device, stream, LanePriority::Interactive, Op::Held { segment: None }).await;
        let Ok(OpOutput::HeldSegments(held)) = held else { return };
        let held: BTreeSet<SegmentId> = held.into_iter().collect();
        let waiting =
            held.iter().filter(|segment| before.as_ref().is_none_or(|before| before.contains(segment)));
        for &segment in waiting {
            tracing::debug!(device = %device.id, %segment, "levelling what is held");
            updates.begin(device.clone(), segment);
        }
        before = Some(held);
        tokio::time::sleep(AGAIN).await;
    }
}
