//! Chunks that may have returned with old data: before one that was changed is first read since its device was opened, the nodes of its
//! parity are asked what they hold of it ([`Levels`]).
//!
//! It is a short question, for which no host begins at either end; one begins here where the chunk lacks changes, and brings it forward. So
//! reading many chunks after a restart costs a question to the metadata server and one to each parity node for each of them, once, a few at a
//! time. A host that began for something else answers for its chunk. Parity that stands still is waited for with the first of them alone, and
//! not asked about others beside those that answer, before it is back; what it says later is heard.
//!
//! Before blocks of a parity chunk are first read the other parity chunks' nodes are asked the same: what it had merged with an old image
//! would pass for the newest where the data chunk is late or lost. It is refused while it lacks any; rows of it at given versions are not:
//! who asks for those knows what others hold.
//!
//! No read waits for another one: what is asked for reads no data chunk, and hosts read by their lane. Nor do reads of a given version wait,
//! which is how a state of several chunks is made where one of them is all there is.

use super::{Chunk, Updates, recover::ask_to_level};
use crate::{devices::ServedDevice, service::Service};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use steadfast_disk::ExtentInfo;
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId, Time,
    message::{self, ChunkVersions, Fault, NodeAnswer, NodeFault, NodeRequest, Priority},
    serve::parity_log::{Asked, BeforeRead, ChunkNumber, Levels},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    task::JoinSet,
    time::{sleep, timeout, timeout_at},
};

/// Chunks of a device that parity is asked about at a time. Picked by eye: more than its readers keep busy, and few for those that answer.
const ASKED_AT_A_TIME: usize = 32;
/// Once one parity node has answered the others have so many times as long as it took: each of them has all that was acknowledged, unless
/// it lost some, too, and one that stands still is not to be waited for with every chunk. Picked by eye: one that has to read its log first
/// takes some ten times longer.
const OTHERS_HAVE: u32 = 64;
/// And this part of [`Levels::PATIENCE`] at least. Picked by eye: a rotating disk reads a whole reserve in that time.
const OTHERS_HAVE_PART: u32 = 8;

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

    fn answered(
        &self,
        segment: SegmentId,
        version: u64,
        held: impl IntoIterator<Item = Option<u64>>,
    ) -> bool {
        self.learned(segment, |levels| levels.answered(self.now(), segment, version, held))
    }

    /// A parity chunk lacks what another one has, after a while for it.
    fn lags(&self, segment: SegmentId) {
        self.learned(segment, |levels| levels.lags(self.now(), segment));
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
    until_known(service, device, extent).await
}

/// The same before blocks of it are read by a layout of that epoch, also of parity.
///
/// # Errors
/// As there.
pub(crate) async fn before_blocks(
    service: &Service,
    device: &ServedDevice,
    extent: &ExtentInfo,
    epoch: Epoch,
) -> Result<(), Fault> {
    // Who has ended its changes knows since what each chunk lacks. Parity may lack what was on its way then, for ever; it is read all the
    // same where the others do not make up for that.
    let is_ended = epoch < extent.epoch;
    if extent.changes == 0 && (is_ended || !extent.merged) {
        return Ok(());
    }
    until_known(service, device, extent).await
}

async fn until_known(service: &Service, device: &ServedDevice, extent: &ExtentInfo) -> Result<(), Fault> {
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
        // What has no turn for so long is asked about by whoever reads it next.
        let Ok(turn) = timeout(Levels::HEARD_FOR, device.returned.asking.acquire()).await else { return };
        let turn = turn.expect("it is never closed");
        find_out(&updates, &device, (segment, version), turn).await;
    });
}

/// Asks what the nodes of its parity hold, and tells it in time for whoever reads, and once more with each that answers later. Who is waited
/// for beyond that keeps no other chunk from its turn; and who was waited for in vain a moment ago, with any chunk, is not asked about this
/// one beside others: once that one is back, it is ([`Levels::told`]).
async fn find_out(
    updates: &Arc<Updates>,
    device: &Arc<ServedDevice>,
    (segment, version): (SegmentId, u64),
    turn: SemaphorePermit<'_>,
) {
    let (returned, mut turn) = (&device.returned, Some(turn));
    let begun = tokio::time::Instant::now();
    let patience = begun + Levels::PATIENCE;
    let in_vain = || {
        returned.answered(segment, version, [None]);
    };
    if returned.are_silent(&[Asked::Metadata]) {
        return in_vain();
    }
    let mut looking = pin!(updates.chunk(device.clone(), segment));
    let looked = match timeout_at(patience, &mut looking).await {
        Ok(looked) => looked,
        Err(_) => {
            returned.told(Asked::Metadata, false);
            turn = None;
            looking.await
        }
    };
    returned.told(Asked::Metadata, !matches!(looked, Err(Fault::Refused { .. })));
    let Ok(chunk) = looked else { return in_vain() };
    let parity = &chunk.holders[chunk.shape.data as usize..];
    let others: Vec<DeviceId> = parity.iter().copied().filter(|&holder| holder != device.id).collect();
    if others.is_empty() {
        // Nobody has what the only parity chunk is to be compared with.
        return returned.level(segment);
    }
    let is_to_answer = |holder: &DeviceId| !returned.are_silent(&[Asked::Parity(*holder)]);
    let mut waited_for: BTreeSet<DeviceId> = others.iter().copied().filter(is_to_answer).collect();
    if waited_for.is_empty() {
        return in_vain();
    }
    let (chunk, mut asking) = (Arc::new(chunk), JoinSet::new());
    for &holder in &waited_for {
        let (updates, chunk) = (updates.clone(), chunk.clone());
        asking.spawn(async move { (holder, holds(&updates, &chunk, holder).await) });
    }
    let asked = tokio::time::Instant::now();
    // Where the metadata server took all of that time these had none, and are not silent for it.
    let (mut until, mut held, mut is_told, mut is_in_vain) = (patience, Vec::new(), false, turn.is_none());
    loop {
        let next = match (is_told, is_in_vain) {
            (false, _) => until,
            (true, false) => patience,
            (true, true) => begun + Levels::HEARD_FOR,
        };
        match timeout_at(next, asking.join_next()).await {
            Ok(Some(answer)) => {
                let (holder, said) = answer.expect("asking does not panic");
                waited_for.remove(&holder);
                if said != Err(Unsaid::Silent) {
                    returned.told(Asked::Parity(holder), true);
                }
                if let Ok(holds) = said {
                    held.push(Some(holds));
                    let others_have = OTHERS_HAVE * asked.elapsed();
                    until = until.min(asked + others_have.max(Levels::PATIENCE / OTHERS_HAVE_PART));
                }
                let has_more = said.is_ok_and(|holds| holds > version);
                if !is_told && !waited_for.is_empty() && !has_more {
                    continue;
                }
            }
            // The time of whoever reads.
            Err(_) if !is_told => {}
            Err(_) if !is_in_vain => {
                is_in_vain = true;
                waited_for.iter().for_each(|&holder| returned.told(Asked::Parity(holder), false));
                continue;
            }
            Ok(None) | Err(_) => return,
        }
        is_told = true;
        // Nobody waits for the others: who asks about another chunk is not to wait for them either.
        drop(turn.take());
        let is_data = chunk.number < chunk.shape.data;
        if !is_data && held.iter().flatten().any(|lacks| *lacks > version) {
            tracing::debug!(device = %device.id, %segment, "a parity chunk lacks what another one has");
            return returned.lags(segment);
        }
        let unsaid = std::iter::repeat_n(None, others.len() - held.len());
        if returned.answered(segment, version, held.iter().copied().chain(unsaid)) {
            tracing::debug!(device = %device.id, %segment, "a chunk lacks changes that its parity has");
            return updates.begin(device.clone(), segment);
        }
    }
}

/// Why a node does not say what its chunk holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unsaid {
    /// It cannot tell.
    Fault,
    /// It said nothing.
    Silent,
}

/// What the node of a parity chunk holds of a data chunk; or, of another parity chunk, how many changes it has that this lacks.
async fn holds(updates: &Arc<Updates>, chunk: &Chunk, holder: DeviceId) -> Result<u64, Unsaid> {
    let theirs = versions_at(updates, holder, chunk.segment).await?;
    match chunk.number < chunk.shape.data {
        true => Ok(held_of(&theirs, chunk.number as ChunkNumber)),
        false => lacks(updates, chunk, &theirs).await,
    }
}

fn held_of(versions: &ChunkVersions, number: ChunkNumber) -> u64 {
    let of_it = versions.held.iter().find(|(of, _)| *of == number);
    of_it.map_or(0, |(_, version)| *version)
}

/// How many changes of one data chunk, of those of which it lacks any, a parity chunk here lacks at most that another one has, once it had a
/// while for them: what is on its way to both comes here a little later, and hosts of data chunks send what it lost, if anybody keeps that.
async fn lacks(updates: &Arc<Updates>, chunk: &Chunk, theirs: &ChunkVersions) -> Result<u64, Unsaid> {
    // Doubled each time: half the time of whoever reads in all.
    let first = Levels::PATIENCE / 64;
    let mut pause = first;
    loop {
        let own = versions_at(updates, chunk.device.id, chunk.segment).await.map_err(|_| Unsaid::Fault)?;
        let data = theirs.held.iter().filter(|(of, _)| u32::from(*of) < chunk.shape.data);
        let lacking = data.map(|&(of, version)| (of, version.saturating_sub(held_of(&own, of))));
        let lacking: Vec<(ChunkNumber, u64)> = lacking.filter(|(_, lacks)| *lacks > 0).collect();
        let most = lacking.iter().map(|(_, lacks)| *lacks).max().unwrap_or(0);
        if most == 0 || pause >= Levels::PATIENCE / 2 {
            return Ok(most);
        }
        if pause == first {
            for (of, _) in lacking {
                let (asker, holder) = (updates.clone(), chunk.holders[usize::from(of)]);
                let (segment, epoch) = (chunk.segment, chunk.epoch);
                updates.spawn(async move { ask_to_level(&asker, holder, segment, epoch).await });
            }
        }
        sleep(pause).await;
        pause *= 2;
    }
}

/// What a node says that its chunk holds; one that has no room for the question now is asked again, for as long as answers are heard.
async fn versions_at(
    updates: &Updates,
    holder: DeviceId,
    segment: SegmentId,
) -> Result<ChunkVersions, Unsaid> {
    let mut has_moved = false;
    loop {
        let Some(connection) = updates.peers.connection(holder).await else { return Err(Unsaid::Silent) };
        let request = NodeRequest::ChunkVersions { device: holder, segment };
        let open = Open {
            body: message::encode(&request),
            priority: Priority::Foreground,
            epoch: Epoch(0),
            deadline: Some(Levels::HEARD_FOR),
            credit: 0,
        };
        match connection.call(open).await {
            Ok((body, _)) => {
                return match message::decode(&body) {
                    Ok(NodeAnswer::ChunkVersions(versions)) => Ok(versions),
                    _ => Err(Unsaid::Fault),
                };
            }
            Err(CallError::Fault(Fault::Refused { retry_after_ms, .. })) => {
                sleep(Duration::from_millis(retry_after_ms.max(1).into())).await;
            }
            // Its device may be served elsewhere by now.
            Err(CallError::Fault(Fault::Node(NodeFault::UnknownDevice(_)))) if !has_moved => {
                has_moved = true;
                updates.peers.forget(holder);
            }
            Err(
                CallError::Lost(_)
                | CallError::TimedOut
                | CallError::Fault(Fault::DeadlinePassed | Fault::Cancelled),
            ) => return Err(Unsaid::Silent),
            Err(CallError::Fault(_)) => return Err(Unsaid::Fault),
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
