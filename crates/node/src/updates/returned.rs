//! Chunks that may have returned with old data: before one that was changed is first read since its device was opened, the nodes of its
//! parity are asked what they hold of it ([`Levels`] says when, [`Inquiry`] whom, and who is waited for how long).
//!
//! It is a short question, for which no host begins at either end; one begins here where the chunk lacks changes, and brings it forward. So
//! reading many chunks after a restart costs a question to the metadata server and one to each parity node for each of them, once, a few at a
//! time. A host that began for something else answers for its chunk. Who stands still is waited for with the first of them alone, and
//! not asked about others beside those that answer, before it is back; what it says later is heard.
//!
//! Before a parity chunk is first read, or a little after changes first came to its log ([`look_ahead`]), the nodes of all other chunks are asked
//! the same: what it had merged with an old image
//! would pass for the newest where the data chunk is late or lost. It is refused while it lacks any. Not so for who reads by no layout (epoch
//! 0): who has ended its changes and knows what each chunk lacks since, or for whom there is nothing else.
//!
//! No read waits for another one: what is asked for reads no data chunk, and hosts read by their lane. Nor do reads of a data chunk at a given
//! version wait, which is how a state of several chunks is made where one of them is all there is.

use super::{Chunk, Updates, recover::ask_to_level};
use crate::{devices::ServedDevice, service::Service};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use steadfast_disk::ExtentInfo;
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId, Time,
    message::{self, ChunkVersions, Fault, NodeAnswer, NodeFault, NodeRequest, Priority},
    serve::parity_log::{BeforeRead, Inquiry, InquiryAction, InquiryInput, Levels, Located, Unsaid},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Who has no room for a question is asked again after this at most, however much later it would like that: whoever reads waits for ten times
/// as long. Picked by eye.
const REFUSED_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Parity chunks of a device that others are asked about before anybody reads them, at a time. Picked by eye: nobody waits for it.
const LOOKS_AHEAD: usize = 2;

/// What is known of a device's chunks.
pub(crate) struct Returned {
    known: Mutex<Known>,
    asking: Arc<Semaphore>,
    looking_ahead: Arc<Semaphore>,
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
        Self {
            known: Mutex::default(),
            asking: Arc::new(Semaphore::new(Inquiry::AT_A_TIME)),
            looking_ahead: Arc::new(Semaphore::new(LOOKS_AHEAD)),
            started: Instant::now(),
        }
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

    /// Begins to ask about a chunk that is at `version`, and what is to be done first. Whoever waited for its turn does so no longer, and hears
    /// how long it waits yet.
    fn inquire(&self, segment: SegmentId, version: u64) -> (Inquiry, Vec<InquiryAction>) {
        let mut known = self.lock();
        known.waited_for.remove(&segment);
        let mut inquiry = Inquiry::new(self.now(), &mut known.levels, segment, version);
        let actions = known.actions_of(&mut inquiry, segment);
        (inquiry, actions)
    }

    /// Tells an inquiry what happened, and what is to be done then.
    fn tell(&self, inquiry: &mut Inquiry, segment: SegmentId, input: InquiryInput) -> Vec<InquiryAction> {
        let mut known = self.lock();
        inquiry.handle(self.now(), &mut known.levels, input);
        known.actions_of(inquiry, segment)
    }

    /// Has the core learn something of a chunk, and wakes who waits for that.
    fn learned<R>(&self, segment: SegmentId, learn: impl FnOnce(&mut Levels) -> R) -> R {
        let mut known = self.lock();
        known.waited_for.remove(&segment);
        learn(&mut known.levels)
    }

    /// What is known.
    #[cfg(test)]
    pub(super) fn levels(&self) -> Levels {
        self.lock().levels.clone()
    }

    fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// What an inquiry about a chunk wants done; wakes who waits for what it has learned.
    fn actions_of(&mut self, inquiry: &mut Inquiry, segment: SegmentId) -> Vec<InquiryAction> {
        let actions: Vec<InquiryAction> = std::iter::from_fn(|| inquiry.poll()).collect();
        if actions.iter().any(|action| matches!(action, InquiryAction::Learned { .. })) {
            self.waited_for.remove(&segment);
        }
        actions
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
    if extent.changes == 0 && (takes_what_is_there(epoch) || !extent.merged) {
        return Ok(());
    }
    until_known(service, device, extent).await
}

/// The same before a parity chunk says what it holds, or rows of it are read, to stand in for others: what it has of changes shows in them
/// also where that is in its log alone, and what it lacks also where it has none.
///
/// # Errors
/// As there.
pub(crate) async fn before_standing_in(
    service: &Service,
    device: &ServedDevice,
    extent: &ExtentInfo,
    epoch: Epoch,
) -> Result<(), Fault> {
    match takes_what_is_there(epoch) {
        true => Ok(()),
        false => until_known(service, device, extent).await,
    }
}

/// Whether whoever reads knows what parity lacks. Where changes were ended that may be what was on its way then, for ever; it is read all the
/// same where the others do not make up for that. Another one's fence tells nobody else what it has found.
fn takes_what_is_there(epoch: Epoch) -> bool {
    epoch == Epoch(0)
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

/// Has others asked about a parity chunk that changes come to, before anybody reads it: when it is to stand in for one that stands still, the
/// node of that one answers no more.
/// Whoever reads has the other turns; where all of these are taken it says so.
pub(super) fn look_ahead(updates: &Arc<Updates>, device: &Arc<ServedDevice>, segment: SegmentId) -> bool {
    let Ok(turn) = Arc::clone(&device.returned.looking_ahead).try_acquire_owned() else { return false };
    if device.returned.before_read(segment).0 == BeforeRead::Ask {
        let (updates, device) = (Arc::clone(updates), Arc::clone(device));
        let asker = Arc::clone(&updates);
        updates.spawn(async move { find_out(&asker, &device, (segment, 0), turn).await });
    }
    true
}

/// Has the nodes asked that know what it is to have, whatever becomes of whoever reads.
fn ask(service: &Service, device: DeviceId, segment: SegmentId, version: u64) {
    // One that is not served any more is not read for long either.
    let Ok(device) = service.device(device) else { return };
    let updates = service.updates.clone();
    service.updates.spawn(async move {
        // What has no turn for so long is asked about by whoever reads it next.
        let turn = Arc::clone(&device.returned.asking).acquire_owned();
        let Ok(turn) = timeout(Levels::HEARD_FOR, turn).await else { return };
        let turn = turn.expect("it is never closed");
        find_out(&updates, &device, (segment, version), turn).await;
    });
}

/// Drives one inquiry to its end, which gives up what was asked and not answered by then.
async fn find_out(
    updates: &Arc<Updates>,
    device: &Arc<ServedDevice>,
    (segment, version): (SegmentId, u64),
    turn: OwnedSemaphorePermit,
) {
    let (id, returned, mut turn) = (device.id, &device.returned, Some(turn));
    let (mut inquiry, mut actions) = returned.inquire(segment, version);
    let mut asking = JoinSet::new();
    loop {
        for action in actions {
            let (updates, device) = (updates.clone(), device.clone());
            match action {
                InquiryAction::Locate => {
                    asking.spawn(async move {
                        let located = located(&updates, device, segment).await;
                        Heard::Input(InquiryInput::Located(located))
                    });
                }
                InquiryAction::AskVersions { device: holder } => {
                    asking.spawn(versions_of(updates, holder, segment, Duration::ZERO));
                }
                InquiryAction::AskOwn => {
                    asking.spawn(async move {
                        loop {
                            match versions_at(&updates, id, segment).await {
                                Ok(held) => return Heard::Input(InquiryInput::Own { held }),
                                Err(NoRoom { pause }) => sleep(pause).await,
                            }
                        }
                    });
                }
                InquiryAction::Level { device: holder, epoch } => {
                    let asker = updates.clone();
                    updates.spawn(async move { ask_to_level(&asker, holder, segment, epoch).await });
                }
                InquiryAction::GiveTurn => drop(turn.take()),
                InquiryAction::Learned { lags: true } => {
                    tracing::debug!(device = %id, %segment, "a parity chunk lacks what another chunk has");
                }
                InquiryAction::Learned { lags: false } => {}
                InquiryAction::BringForward => {
                    tracing::debug!(device = %id, %segment, "a chunk lacks changes that its parity has");
                    updates.begin(device, segment);
                }
                InquiryAction::Over => return,
            }
        }
        let within = inquiry.wake_at().map(|at| at.since(returned.now()));
        let input = match first(&mut asking, within).await {
            Heard::Input(input) => input,
            Heard::Refused { holder, pause } => {
                asking.spawn(versions_of(updates.clone(), holder, segment, pause));
                InquiryInput::Refused { device: holder }
            }
        };
        actions = returned.tell(&mut inquiry, segment, input);
    }
}

/// What comes of what an inquiry wants done.
enum Heard {
    Input(InquiryInput),
    /// The node of another chunk has no room for the question, and is to be asked again after this pause.
    Refused {
        holder: DeviceId,
        pause: Duration,
    },
}

/// The first answer that is there within this time, or that there is none.
async fn first(asking: &mut JoinSet<Heard>, within: Option<Duration>) -> Heard {
    let answer = async {
        match asking.join_next().await {
            Some(answer) => answer.expect("asking does not panic"),
            // All have answered, and one of them is to be asked again.
            None => std::future::pending().await,
        }
    };
    match within {
        Some(within) => timeout(within, answer).await.unwrap_or(Heard::Input(InquiryInput::Tick)),
        None => answer.await,
    }
}

/// Where the chunks of a segment lie of which a device has one.
async fn located(
    updates: &Updates,
    device: Arc<ServedDevice>,
    segment: SegmentId,
) -> Result<Located, Unsaid> {
    match updates.chunk(device, segment).await {
        Ok(Chunk { epoch, shape, number, holders, .. }) => Ok(Located { epoch, shape, number, holders }),
        Err(Fault::Refused { .. }) => Err(Unsaid::Silent),
        Err(_) => Err(Unsaid::Fault),
    }
}

/// Asks the node of another chunk what that holds, after a pause.
async fn versions_of(updates: Arc<Updates>, holder: DeviceId, segment: SegmentId, after: Duration) -> Heard {
    sleep(after).await;
    match versions_at(&updates, holder, segment).await {
        Ok(held) => Heard::Input(InquiryInput::Versions { device: holder, held }),
        Err(NoRoom { pause }) => Heard::Refused { holder, pause },
    }
}

/// A node has no room for a question now, and is to be asked again after this pause.
struct NoRoom {
    pause: Duration,
}

/// What a node says that its chunk holds, where it has room for the question.
async fn versions_at(
    updates: &Updates,
    holder: DeviceId,
    segment: SegmentId,
) -> Result<Result<ChunkVersions, Unsaid>, NoRoom> {
    let mut has_moved = false;
    loop {
        let Some(connection) = updates.peers.connection(holder).await else { return Ok(Err(Unsaid::Silent)) };
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
                return Ok(match message::decode(&body) {
                    Ok(NodeAnswer::ChunkVersions(versions)) => Ok(versions),
                    _ => Err(Unsaid::Fault),
                });
            }
            Err(CallError::Fault(Fault::Refused { retry_after_ms, .. })) => {
                let wished = Duration::from_millis(retry_after_ms.max(1).into());
                return Err(NoRoom { pause: wished.min(REFUSED_PAUSE_MAX) });
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
            ) => return Ok(Err(Unsaid::Silent)),
            Err(CallError::Fault(_)) => return Ok(Err(Unsaid::Fault)),
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

    /// Else they would wait for the others' answers for as long as a turn may take.
    #[test]
    fn who_waits_for_a_turn_hears_when_it_comes() {
        let (returned, segment) = (Returned::default(), SegmentId(7));
        assert_eq!(returned.before_read(segment).0, BeforeRead::Ask);
        let (first, turn) = returned.before_read(segment);
        let BeforeRead::Wait { until } = first else { panic!("nobody was asked: {first:?}") };
        let _inquiry = returned.inquire(segment, 4);
        assert!(turn.expect("it is waited for").has_changed().is_err(), "its sender is gone");
        let next = returned.before_read(segment).0;
        assert!(matches!(next, BeforeRead::Wait { until: sooner } if sooner < until), "{next:?}");
    }
}
