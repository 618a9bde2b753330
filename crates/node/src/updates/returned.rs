//! Data chunks that may have returned with old data: before one that was changed is first read since its device was opened, the nodes of its
//! parity are asked what they hold of it ([`Levels`]).
//!
//! It is a short question, for which no host begins at either end; one begins here where the chunk lacks changes, and brings it forward. So
//! reading many chunks after a restart costs a question to the metadata server and one to each parity node for each of them, once, a few at a
//! time. A host that began for something else answers for its chunk. Parity that stands still is waited for with the first of them alone.
//!
//! No read waits for another one: what is asked for reads no data chunk, and hosts read by their lane. Nor do reads of a given version wait,
//! which is how a state of several chunks is made where one of them is all there is.

use super::{Chunk, Updates};
use crate::{devices::ServedDevice, service::Service};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use steadfast_disk::ExtentInfo;
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId, Time,
    message::{self, Fault, NodeAnswer, NodeFault, NodeRequest, Priority},
    serve::parity_log::{Asked, BeforeRead, ChunkNumber, Levels},
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout, timeout_at},
};

/// Chunks of a device that parity is asked about at a time. Picked by eye: more than its readers keep busy, and few for those that answer.
const ASKED_AT_A_TIME: usize = 32;
/// Once one parity node has answered the others have so many times as long as it took: each of them has all that was acknowledged, unless
/// it lost some, too, and one that stands still is not to be waited for with every chunk. Picked by eye: one that has to read its log first
/// takes some ten times longer.
const OTHERS_HAVE: u32 = 64;

/// What is known of a device's chunks.
pub(crate) struct Returned {
    known: Mutex<Known>,
    asking: Semaphore,
    started: Instant,
}

#[derive(Default)]
struct Known {
    levels: Levels,
    /// Dropped once something is learned of a chunk that is waited for: that wakes who reads it, and nobody else.
    waited_for: BTreeMap<SegmentId, watch::Sender<()>>,
}

impl Default for Returned {
    fn default() -> Self {
        Self { known: Mutex::default(), asking: Semaphore::new(ASKED_AT_A_TIME), started: Instant::now() }
    }
}

impl Returned {
    /// A chunk's host says that it has all that parity has.
    pub(super) fn level(&self, segment: SegmentId) {
        self.learned(segment, |levels| levels.level(segment));
    }

    /// A chunk's host says that nobody keeps what it lacks.
    pub(super) fn outdated(&self, chunk: &Chunk) {
        let (device, segment) = (chunk.device.id, chunk.segment);
        tracing::warn!(%device, %segment, "a chunk lacks changes that its parity has: its disk lost them. It is read from the others");
        self.learned(segment, |levels| levels.outdated(segment));
    }

    /// What is to be done first, and what ends a wait. Under one lock: nothing that is learned from then on is missed.
    fn before_read(&self, segment: SegmentId) -> (BeforeRead, Option<watch::Receiver<()>>) {
        let mut known = self.lock();
        let known = &mut *known;
        let first = known.levels.before_read(self.now(), segment);
        match first {
            BeforeRead::Wait { .. } => {
                (first, Some(known.waited_for.entry(segment).or_default().subscribe()))
            }
            _ => {
                known.waited_for.remove(&segment);
                (first, None)
            }
        }
    }

    fn answered(&self, segment: SegmentId, version: u64, held: Vec<Option<u64>>) -> bool {
        self.learned(segment, |levels| levels.answered(self.now(), segment, version, held))
    }

    /// Has the core learn something of a chunk, and wakes who waits for that.
    fn learned<R>(&self, segment: SegmentId, learn: impl FnOnce(&mut Levels) -> R) -> R {
        let mut known = self.lock();
        known.waited_for.remove(&segment);
        learn(&mut known.levels)
    }

    fn are_silent(&self, whom: &[Asked]) -> bool {
        self.lock().levels.are_silent(self.now(), whom)
    }

    fn told(&self, who: Asked, something: bool) {
        self.lock().levels.told(self.now(), who, something);
    }

    fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns once an extent may be read as the newest; waits a bounded time.
///
/// # Errors
/// [`NodeFault::LacksChanges`] where it lacks some, and is not brought forward by then.
pub(crate) async fn before_read(
    service: &Service,
    device: &ServedDevice,
    extent: &ExtentInfo,
) -> Result<(), Fault> {
    if extent.changes == 0 {
        return Ok(());
    }
    let (returned, segment) = (&device.returned, extent.segment);
    loop {
        let (first, learned) = returned.before_read(segment);
        match first {
            BeforeRead::Serve => return Ok(()),
            BeforeRead::Ask => ask(service, device.id, segment, extent.changes),
            BeforeRead::Wait { until } => {
                let mut learned = learned.expect("what ends a wait comes with it");
                // Whatever it was, or the time.
                let _ = timeout(until.since(returned.now()), learned.changed()).await;
            }
            BeforeRead::Refuse => {
                let device = device.id;
                return Err(Fault::Node(NodeFault::LacksChanges { device, segment }));
            }
        }
    }
}

/// Has the nodes of its parity asked, whatever becomes of whoever reads.
fn ask(service: &Service, device: DeviceId, segment: SegmentId, version: u64) {
    // One that is not served any more is not read for long either.
    let Ok(device) = service.device(device) else { return };
    let updates = service.updates.clone();
    service.updates.spawn(async move {
        let held = match timeout(Levels::PATIENCE, device.returned.asking.acquire()).await {
            Ok(one_of_few) => {
                let _one_of_few = one_of_few.expect("it is never closed");
                held(&updates, &device, segment).await
            }
            // Nobody waits for it any more, and those that are asked for by then are not to stand behind it.
            Err(_) => Vec::new(),
        };
        if device.returned.answered(segment, version, held) {
            tracing::debug!(device = %device.id, %segment, "a chunk lacks changes that its parity has");
            updates.begin(device, segment);
        }
    });
}

/// What the nodes of its parity chunks hold of a data chunk, of those that say so in time.
async fn held(updates: &Arc<Updates>, device: &Arc<ServedDevice>, segment: SegmentId) -> Vec<Option<u64>> {
    let begun = tokio::time::Instant::now();
    let mut until = begun + Levels::PATIENCE;
    let returned = &device.returned;
    if returned.are_silent(&[Asked::Metadata]) {
        return Vec::new();
    }
    let chunk = timeout_at(until, updates.chunk(device.clone(), segment)).await;
    returned.told(Asked::Metadata, !matches!(chunk, Err(_) | Ok(Err(Fault::Refused { .. }))));
    let Ok(Ok(chunk)) = chunk else { return Vec::new() };
    if chunk.number >= chunk.shape.data {
        return Vec::new();
    }
    let holders = &chunk.holders[chunk.shape.data as usize..];
    let whom: Vec<Asked> = holders.iter().map(|&holder| Asked::Parity(holder)).collect();
    if returned.are_silent(&whom) {
        return Vec::new();
    }
    let mut asking = JoinSet::new();
    for &holder in holders {
        let (updates, number) = (updates.clone(), chunk.number as ChunkNumber);
        asking.spawn(async move { (holder, held_at(&updates, holder, segment, number).await) });
    }
    let asked = tokio::time::Instant::now();
    let mut silent: BTreeSet<Asked> = whom.into_iter().collect();
    let mut held = Vec::new();
    let is_late = loop {
        let (holder, said) = match timeout_at(until, asking.join_next()).await {
            Ok(Some(answer)) => answer.expect("asking does not panic"),
            Ok(None) => break false,
            Err(_) => break true,
        };
        if !matches!(said, Said::Nothing) {
            silent.remove(&Asked::Parity(holder));
            returned.told(Asked::Parity(holder), true);
        }
        if let Said::Held(version) = said {
            until = until.min(asked + OTHERS_HAVE * asked.elapsed());
            held.push(Some(version));
        }
    };
    // Beside one that answered the others had less time, and who cannot be reached costs none.
    if is_late && held.is_empty() {
        silent.into_iter().for_each(|who| returned.told(who, false));
    }
    held
}

/// What the node of a parity chunk says of a data chunk.
enum Said {
    /// It holds this version of it.
    Held(u64),
    /// It cannot tell.
    Fault,
    Nothing,
}

/// What the node of a parity chunk holds of a data chunk; one that has no room for the question now is asked again, for as long as the
/// caller waits.
async fn held_at(updates: &Updates, holder: DeviceId, segment: SegmentId, number: ChunkNumber) -> Said {
    loop {
        let Some(connection) = updates.peers.connection(holder).await else { return Said::Nothing };
        let request = NodeRequest::ChunkVersions { device: holder, segment };
        let open = Open {
            body: message::encode(&request),
            priority: Priority::Foreground,
            epoch: Epoch(0),
            deadline: Some(Levels::PATIENCE),
            credit: 0,
        };
        match connection.call(open).await {
            Ok((body, _)) => {
                let Ok(NodeAnswer::ChunkVersions(versions)) = message::decode(&body) else {
                    return Said::Fault;
                };
                let of_it = versions.held.iter().find(|(of, _)| *of == number);
                return Said::Held(of_it.map_or(0, |(_, version)| *version));
            }
            Err(CallError::Fault(Fault::Refused { retry_after_ms, .. })) => {
                sleep(Duration::from_millis(retry_after_ms.max(1).into())).await;
            }
            Err(
                CallError::Lost(_)
                | CallError::TimedOut
                | CallError::Fault(Fault::DeadlinePassed | Fault::Cancelled),
            ) => return Said::Nothing,
            Err(CallError::Fault(_)) => return Said::Fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_chunk_is_woken_by_what_is_learned_of_that_one_alone() {
        let returned = Returned::default();
        let [learned, other] = [SegmentId(7), SegmentId(8)].map(|segment| {
            assert_eq!(returned.before_read(segment).0, BeforeRead::Ask);
            returned.before_read(segment).1.expect("it is waited for")
        });
        returned.level(SegmentId(7));
        assert!(learned.has_changed().is_err(), "its sender is gone");
        assert!(other.has_changed().is_ok_and(|changed| !changed));
    }
}
