//! Updates that a device holds and nobody is about: from before a restart, or from before their parity was out of reach. Each
//! such segment's host begins, and levels.

use super::{Updates, medium};
use crate::devices::ServedDevice;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_disk::{Op, OpOutput, Priority as LanePriority, SegmentId};
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    DeviceId, Epoch,
    message::{self, Fault, NodeFault, NodeRequest, Priority},
};
use tokio::task::JoinSet;

/// Between two looks. A version that is held this long is not on its way.
const AGAIN: Duration = Duration::from_secs(5);
/// Between two attempts at one segment at most: some cannot be levelled before somebody stores them anew.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Segments that are levelled at a time: a node that stands still answers none of its own, and others go on.
const LEVELLED_AT_A_TIME: usize = 16;

/// Segments of which a device holds updates, and the lowest version of those.
type Held = BTreeMap<SegmentId, u64>;

/// Looks for ever.
pub(crate) async fn recover(updates: Arc<Updates>, device: Arc<ServedDevice>) {
    let stream = updates.number();
    let mut before: Option<Held> = None;
    let mut attempts = Attempts::default();
    loop {
        let lane = (stream, LanePriority::Interactive);
        let held = medium::ask(&device, lane, Op::Held { segment: None }).await;
        let Ok(OpOutput::HeldSegments(held)) = held else { return };
        let held: Held = held.into_iter().collect();
        let mut levelling = JoinSet::new();
        for segment in attempts.due(Instant::now(), &held, stuck(before.as_ref(), &held)) {
            while levelling.len() >= LEVELLED_AT_A_TIME {
                levelling.join_next().await;
            }
            tracing::debug!(device = %device.id, %segment, "levelling what is held");
            let (updates, device) = (updates.clone(), device.clone());
            levelling.spawn(async move { level(&updates, &device, segment).await });
        }
        while levelling.join_next().await.is_some() {}
        before = Some(held);
        tokio::time::sleep(AGAIN).await;
    }
}

/// The segments that nobody is about: still held from the same version on as before. What changed is under way: of a segment that
/// is changed all the time something is held whenever one looks. At the first look there is nobody yet.
fn stuck(before: Option<&Held>, held: &Held) -> Vec<SegmentId> {
    let same = |(segment, first): &(&SegmentId, &u64)| {
        before.is_none_or(|before| before.get(segment) == Some(*first))
    };
    held.iter().filter(same).map(|(segment, _)| *segment).collect()
}

/// Attempts to level segments that are held from the same version on: how often that was tried, and when it is again.
#[derive(Default)]
struct Attempts(BTreeMap<SegmentId, (u64, u32, Instant)>);

impl Attempts {
    /// Those of the segments whose turn it is.
    fn due(&mut self, now: Instant, held: &Held, stuck: Vec<SegmentId>) -> Vec<SegmentId> {
        self.0.retain(|segment, (first, ..)| held.get(segment) == Some(first));
        let mut due = stuck;
        due.retain(|segment| {
            let (_, tries, at) = self.0.entry(*segment).or_insert((held[segment], 0, now));
            let is_due = now >= *at;
            if is_due {
                *at = now + AGAIN.saturating_mul(1 << (*tries).min(16)).min(AGAIN_MAX);
                *tries += 1;
            }
            is_due
        });
        due
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
        if matches!(error, CallError::Fault(Fault::Node(NodeFault::UnknownDevice(_)))) {
            // It moved: the next question leads to where it is.
            updates.peers.forget(holder);
        }
        tracing::debug!(device = %holder, %segment, %error, "not asked to level");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_is_changed_all_the_time_is_not_stuck() {
        let held = |held: &[(u64, u64)]| -> Held {
            held.iter().map(|&(segment, first)| (SegmentId(segment), first)).collect()
        };
        let before = held(&[(1, 7), (2, 3), (3, 1)]);
        let now = held(&[(1, 9), (2, 3), (4, 1)]);
        assert_eq!(stuck(Some(&before), &now), [SegmentId(2)]);
        assert_eq!(stuck(None, &now), [SegmentId(1), SegmentId(2), SegmentId(4)], "from before the start");
    }

    #[test]
    fn what_cannot_be_levelled_is_tried_ever_less_often() {
        let (start, segment) = (Instant::now(), SegmentId(1));
        let mut attempts = Attempts::default();
        let tried = |attempts: &mut Attempts, looks: std::ops::Range<u32>, first: u64| -> Vec<u64> {
            let held = Held::from([(segment, first)]);
            let seconds = looks.map(|look| 5 * u64::from(look));
            let due = |second: &u64| {
                !attempts.due(start + Duration::from_secs(*second), &held, vec![segment]).is_empty()
            };
            seconds.filter(due).collect()
        };
        assert_eq!(tried(&mut attempts, 0..60, 7), [0, 5, 15, 35, 75, 135, 195, 255]);
        // Another version of it is another matter.
        assert_eq!(tried(&mut attempts, 60..64, 8), [300, 305, 315]);
    }
}
