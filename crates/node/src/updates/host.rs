//! What the hosts of data chunks and of parity chunks have in common: how they begin and end.

use super::{Chunk, Hosts, Updates, medium, not_in_place};
use crate::devices::ServedDevice;
use std::sync::Arc;
use steadfast_disk::Priority as LanePriority;
use steadfast_protocol::{SegmentId, message::Fault};
use tokio::sync::mpsc;

/// Serves one chunk.
pub(super) trait Host: Sized + Send + 'static {
    /// What it hears.
    type Event: Send + 'static;

    /// What is over when it ends, as a log says it.
    const ENDS: &'static str;

    /// Those of its kind.
    fn hosts(updates: &Updates) -> &Hosts<Self::Event>;

    /// Finds out what is to be known; `sender` is for answers to the host itself.
    ///
    /// # Errors
    /// Where the chunk cannot be served.
    fn begin(
        updates: &Arc<Updates>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        sender: mpsc::UnboundedSender<Self::Event>,
    ) -> impl Future<Output = Result<Self, Fault>> + Send;

    /// Serves until nothing is to be done (`None`; it has left then) or it cannot go on.
    fn serve(
        &mut self,
        updates: &Arc<Updates>,
        events: &mut mpsc::UnboundedReceiver<Self::Event>,
    ) -> impl Future<Output = Option<Fault>> + Send;

    /// It cannot go on: says why to whoever waits, and waits for what it began.
    fn end(
        self,
        why: &Fault,
        events: &mut mpsc::UnboundedReceiver<Self::Event>,
    ) -> impl Future<Output = ()> + Send;

    /// Says why it ended to who came too late.
    fn turn_away(event: Self::Event, why: &Fault);
}

/// Serves a chunk until nothing is to be done, or it cannot be.
pub(super) async fn run<H: Host>(
    updates: Arc<Updates>,
    device: Arc<ServedDevice>,
    segment: SegmentId,
    mut events: mpsc::UnboundedReceiver<H::Event>,
    sender: mpsc::UnboundedSender<H::Event>,
) {
    let id = device.id;
    let ended = match H::begin(&updates, device, segment, sender).await {
        Ok(mut host) => match host.serve(&updates, &mut events).await {
            None => return,
            Some(why) => {
                host.end(&why, &mut events).await;
                why
            }
        },
        Err(fault) => fault,
    };
    tracing::debug!(device = %id, %segment, %ended, "{}", H::ENDS);
    H::hosts(&updates).remove(id, segment, &mut events);
    while let Ok(event) = events.try_recv() {
        H::turn_away(event, &ended);
    }
}

/// Where the chunk lies, once what was done to it before is durable: what a host finds there counts as that.
///
/// # Errors
/// Where it is not the kind of chunk asked for.
pub(super) async fn chunk(
    updates: &Updates,
    device: Arc<ServedDevice>,
    segment: SegmentId,
    is_parity: bool,
) -> Result<(Chunk, u64), Fault> {
    let chunk = updates.chunk(device, segment).await?;
    match (chunk.number >= chunk.shape.data, is_parity) {
        (true, false) => return Err(not_in_place(segment, "this device has a parity chunk of it")),
        (false, true) => return Err(not_in_place(segment, "this device has a data chunk of it")),
        (true, true) | (false, false) => {}
    }
    let stream = updates.number();
    medium::settle(&chunk.device, (stream, LanePriority::Normal)).await?;
    Ok((chunk, stream))
}
