//! Changes of a parity segment where its chunks lie, as [`steadfast_protocol::plan::in_place()`] cuts them: sent to the nodes of the data
//! chunks, which see to it that they survive what the bucket promises. The object stays the version that it is.
//!
//! What cannot be changed so is stored anew, by whoever is told that it could not. That costs a whole segment, so a change that takes
//! long waits for its answer as long as its patience lasts, where [`steadfast_protocol::plan::worth_waiting()`] says so.

use crate::{Client, chunks::call};
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    io,
    time::{Duration, Instant},
};
use steadfast_net::Open;
use steadfast_protocol::{
    DeviceId,
    layout::SegmentLayout,
    message::{self, Fault, NodeAnswer, NodeFault, NodeRequest, Priority},
    plan::{ChunkChange, worth_waiting},
    read::Cause,
};
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

/// Changes of one call under way at a time: enough that data nodes flush many together, few enough that their lanes have
/// room for others. Picked by eye.
const PARALLEL: usize = 16;
/// The part of its patience in which nothing is confirmed after which an access looks whether its devices serve: storing the segment
/// anew is the way around those that do not.
const PATIENCE_PART: u32 = 4;
/// How often a node that was behind the layout is asked again, and how long it has for that: it looks the layout up. Picked by eye, far below
/// what storing a segment anew takes.
const BEHIND_MAX: u32 = 4;
const BEHIND_PAUSE: Duration = Duration::from_millis(20);
/// How often it looks from then on.
const LOOK: Duration = Duration::from_secs(1);

/// Makes changes of a segment that begins at byte `at` of the object, in this class, to what `read` has for the object's bytes; the bytes
/// that were sent, or none where not all of them could be confirmed.
pub(super) async fn change<R: Future<Output = io::Result<Bytes>>>(
    client: &Client,
    (layout, priority): (&SegmentLayout, Priority),
    at: u64,
    changes: Vec<ChunkChange>,
    read: impl Fn(u64, usize) -> R,
) -> io::Result<Option<u64>> {
    let mut under_way = UnderWay::new(client, layout, priority);
    let mut sent = 0;
    for change in changes {
        let length = change.within.end - change.within.start;
        // No more than a frame takes.
        let bytes = read(at + change.offset, length as usize).await?;
        if under_way.calls.len() >= PARALLEL && !under_way.ended_well().await {
            return Ok(None);
        }
        sent += length;
        under_way.send(&change, bytes);
    }
    while !under_way.calls.is_empty() {
        if !under_way.ended_well().await {
            return Ok(None);
        }
    }
    Ok(Some(sent))
}

/// Whether changes of a segment that could not be made in place may be yet, as far as is known: asked where it cannot be stored anew.
/// What they wait for (a chunk's server that is to say what it has committed, an end of others' fences) may come.
pub(super) fn worth_another_try(client: &Client, layout: &SegmentLayout, changes: &[ChunkChange]) -> bool {
    let own: Vec<DeviceId> = changes.iter().map(|change| change.device).collect();
    let registry = client.registry.lock().expect("never poisoned: no panic while held");
    worth_waiting(&registry, layout, &own)
}

/// Changes that were sent and not all confirmed.
struct UnderWay<'a> {
    client: &'a Client,
    layout: &'a SegmentLayout,
    priority: Priority,
    /// Whom they were sent to.
    devices: BTreeSet<DeviceId>,
    calls: JoinSet<bool>,
    look: Interval,
}

impl<'a> UnderWay<'a> {
    fn new(client: &'a Client, layout: &'a SegmentLayout, priority: Priority) -> Self {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.reset_after(client.options.patience / PATIENCE_PART);
        Self { client, layout, priority, devices: BTreeSet::new(), calls: JoinSet::new(), look }
    }

    fn send(&mut self, change: &ChunkChange, bytes: Bytes) {
        let (client, epoch) = (self.client, self.layout.epoch);
        let (segment, device, offset) = (self.layout.segment, change.device, change.within.start);
        let body = message::encode(&NodeRequest::Update { device, segment, offset, bytes });
        let (pool, address) = (client.pool.clone(), client.address_of(device));
        let (until, priority) = (Instant::now() + client.options.patience, self.priority);
        self.devices.insert(device);
        self.calls.spawn(async move {
            let mut behind = 0;
            loop {
                let deadline = Some(until.saturating_duration_since(Instant::now()));
                let body = body.clone();
                match call(&pool, address.clone(), Open { body, priority, epoch, deadline, credit: 0 }).await {
                    Ok((NodeAnswer::Updated { .. }, _)) => return true,
                    Ok((other, _)) => {
                        tracing::debug!(%device, %segment, ?other, "an update was answered by something else");
                        return false;
                    }
                    Err(Cause::Fault(Fault::Refused { retry_after_ms, .. })) if Instant::now() < until => {
                        // However long it says: patience is the client's.
                        let again = Instant::now() + Duration::from_millis(retry_after_ms.into());
                        tokio::time::sleep_until(again.min(until).into()).await;
                    }
                    // It served the chunk by an older layout and does so no more: whoever serves it next knows this one.
                    Err(Cause::Fault(Fault::Node(NodeFault::StaleEpoch { given, current })))
                        if given < epoch.0 && current == epoch.0 && behind < BEHIND_MAX =>
                    {
                        behind += 1;
                        tokio::time::sleep(BEHIND_PAUSE).await;
                    }
                    Err(cause) => {
                        tracing::debug!(%device, %segment, %cause, "not changed in place");
                        return false;
                    }
                }
            }
        });
    }

    /// Whether the next of them that ends is confirmed. Not so where that takes long and is not worth waiting for.
    async fn ended_well(&mut self) -> bool {
        let Self { client, layout, devices, calls, look, .. } = self;
        loop {
            // A metadata server that does not answer holds up nothing, and nothing else is known then.
            let looked = async {
                look.tick().await;
                let own: Vec<DeviceId> = devices.iter().copied().collect();
                client.registry().await.is_ok_and(|registry| !worth_waiting(&registry, layout, &own))
            };
            tokio::select! {
                biased;
                ended = calls.join_next() => {
                    look.reset_after(client.options.patience / PATIENCE_PART);
                    return ended.is_none_or(|well| well.unwrap_or(false));
                }
                hopeless = looked => if hopeless {
                    tracing::debug!(segment = %layout.segment, "a device does not serve: not changed in place");
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::tests::{client, device_of, layout};
    use steadfast_protocol::message::DeviceHealth;

    #[tokio::test]
    async fn a_change_is_tried_again_where_its_own_device_and_all_of_parity_serve() {
        let (client, layout) = (client("127.0.0.1:1", Vec::new()), layout());
        let changes = [ChunkChange { device: device_of(0), within: 0..1, offset: 0 }];
        let worth_with = |device: usize, health: DeviceHealth| {
            client.registry.lock().unwrap().nodes[0].devices[device].health = health;
            worth_another_try(&client, &layout, &changes)
        };
        assert!(worth_with(1, DeviceHealth::Failed), "another data chunk's");
        assert!(!worth_with(2, DeviceHealth::Failed), "parity");
        assert!(worth_with(2, DeviceHealth::Ok));
        assert!(!worth_with(0, DeviceHealth::Failed), "its own");
    }
}
