//! What the hosts of data chunks and of parity chunks have in common: how they begin and end, and on which thread they run.
//!
//! A host is a task, but what its device's lane answers it hears on the lane's thread, and acts upon there: what it sends next is on its
//! way without a wake-up of the runtime's thread, of which an update would wait for two. One thread at a time is with a host; a lane
//! that finds another there leaves the answer, and the other sees to it before it goes.

use super::{Chunk, Hosts, Updates, medium, not_in_place};
use crate::devices::ServedDevice;
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use steadfast_disk::{LaneHandle, Op, OpError, OpOutput, Priority as LanePriority};
use steadfast_protocol::{DeviceId, SegmentId, message::Fault};
use tokio::sync::{Notify, mpsc};

/// Serves one chunk.
pub(super) trait Host: Sized + Send + 'static {
    /// What it hears.
    type Event: Send + 'static;
    /// What it asks the lane.
    type Asked: Send + 'static;

    /// What is over when it ends, as a log says it.
    const ENDS: &'static str;

    /// Those of its kind.
    fn hosts(updates: &Updates) -> &Hosts<Self::Event>;

    /// Finds out what is to be known; `sender` is for answers to the host itself, `lane` for questions to its lane.
    ///
    /// # Errors
    /// Where the chunk cannot be served.
    fn begin(
        updates: &Arc<Updates>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        sender: mpsc::UnboundedSender<Self::Event>,
        lane: Lane<Self>,
    ) -> impl Future<Output = Result<Self, Fault>> + Send;

    /// Hears what the lane says. On any thread; must not block.
    fn answered(&mut self, asked: Self::Asked, answer: Result<OpOutput, OpError>);

    /// Does what is to be done. On any thread; must not block.
    fn carry_out(&mut self, updates: &Arc<Updates>);

    /// Whether it cannot go on.
    fn is_over(&self) -> bool;

    /// Serves until nothing is to be done (`None`; it has left then) or it cannot go on.
    fn serve(
        running: &Running<Self>,
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

/// What the lane was asked, and what it says.
type Answer<H> = (<H as Host>::Asked, Result<OpOutput, OpError>);

/// A host, and who may be with it.
pub(super) struct Running<H: Host> {
    pub(super) updates: Arc<Updates>,
    /// `None` before it has begun and once it ends.
    host: Mutex<Option<H>>,
    /// In the order of the lane, which nobody has seen to.
    answers: Mutex<VecDeque<Answer<H>>>,
    /// It cannot go on, and its task is to end it.
    pub(super) over: Notify,
}

impl<H: Host> Running<H> {
    pub(super) fn new(updates: Arc<Updates>) -> Self {
        Self { updates, host: Mutex::new(None), answers: Mutex::default(), over: Notify::new() }
    }

    /// It has begun.
    pub(super) fn put(&self, host: H) {
        *self.host.lock().expect("nobody was with it yet") = Some(host);
    }

    /// Its task ends it: what is answered from now on nobody hears.
    fn take(&self) -> H {
        let taken = self.host.lock().expect("a host that broke an invariant serves no more").take();
        taken.expect("its task alone takes it")
    }

    /// Does something with the host, and then what is to be done.
    ///
    /// # Panics
    /// Where the host has broken an invariant before, on whatever thread.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut H) -> R) -> R {
        let mut host = self.host.lock().expect("a host that broke an invariant serves no more");
        let serving = host.as_mut().expect("its task has it serve, and ends it");
        let result = act(serving);
        serving.carry_out(&self.updates);
        drop(host);
        self.see_to_answers();
        result
    }

    /// The lane said this. Whoever brings it does not wait for another that is with the host.
    pub(super) fn answered(&self, asked: H::Asked, answer: Result<OpOutput, OpError>) {
        self.waiting().push_back((asked, answer));
        // A broken invariant is the host's end, which its task says, and not the lane's.
        if catch_unwind(AssertUnwindSafe(|| self.see_to_answers())).is_err() {
            self.over.notify_one();
        }
    }

    /// Gives the host its answers, unless another thread is with it, which does when it goes.
    fn see_to_answers(&self) {
        loop {
            let Ok(mut host) = self.host.try_lock() else { return };
            let Some(serving) = host.as_mut() else { return };
            while let Some((asked, answer)) = self.next_answer() {
                serving.answered(asked, answer);
                serving.carry_out(&self.updates);
            }
            let over = serving.is_over();
            drop(host);
            if over {
                self.over.notify_one();
            }
            // One that came while the lock was held: whoever brought it has gone.
            if self.waiting().is_empty() {
                return;
            }
        }
    }

    fn next_answer(&self) -> Option<Answer<H>> {
        self.waiting().pop_front()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Answer<H>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a host asks its lane. What is answered after the host has ended nobody hears.
pub(super) struct Lane<H: Host> {
    lane: LaneHandle,
    running: Weak<Running<H>>,
}

impl<H: Host> Lane<H> {
    pub(super) fn ask(&self, stream: u64, asked: H::Asked, op: Op) {
        let running = self.running.clone();
        let reply = Box::new(move |answer| {
            if let Some(running) = Weak::upgrade(&running) {
                running.answered(asked, answer);
            }
        });
        self.lane.submit(stream, LanePriority::Normal, op, reply);
    }
}

/// A host's place among those of its kind. It is left whatever becomes of the host: one that broke an invariant counts no more among
/// those that there may be.
struct Place<H: Host> {
    updates: Arc<Updates>,
    device: DeviceId,
    segment: SegmentId,
    events: mpsc::UnboundedReceiver<H::Event>,
}

impl<H: Host> Place<H> {
    /// Leaves it, unless another has it by now.
    fn leave(&mut self) {
        H::hosts(&self.updates).remove(self.device, self.segment, &mut self.events);
    }
}

impl<H: Host> Drop for Place<H> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Serves a chunk until nothing is to be done, or it cannot be.
pub(super) async fn run<H: Host>(
    updates: Arc<Updates>,
    device: Arc<ServedDevice>,
    segment: SegmentId,
    events: mpsc::UnboundedReceiver<H::Event>,
    sender: mpsc::UnboundedSender<H::Event>,
) {
    let id = device.id;
    let mut place = Place::<H> { updates: updates.clone(), device: id, segment, events };
    let running = Arc::new(Running::new(updates.clone()));
    let lane = Lane { lane: device.lane.clone(), running: Arc::downgrade(&running) };
    let ended = match H::begin(&updates, device, segment, sender, lane).await {
        Ok(host) => {
            running.put(host);
            let why = H::serve(&running, &mut place.events).await;
            let host = running.take();
            match why {
                None => return,
                Some(why) => {
                    host.end(&why, &mut place.events).await;
                    why
                }
            }
        }
        Err(fault) => fault,
    };
    tracing::debug!(device = %id, %segment, %ended, "{}", H::ENDS);
    place.leave();
    while let Ok(event) = place.events.try_recv() {
        H::turn_away(event, &ended);
    }
}

/// Where the chunk lies, once what was done to it before is durable: what a host finds on the device counts as that. Both are asked for at
/// once, and a host asks what it finds beside: whoever makes the first update of a chunk waits for all of it.
///
/// # Errors
/// Where it is not the kind of chunk asked for.
pub(super) async fn chunk(
    updates: &Updates,
    device: &Arc<ServedDevice>,
    segment: SegmentId,
    is_parity: bool,
    asking: medium::Lane,
) -> Result<Chunk, Fault> {
    let (chunk, settled) =
        tokio::join!(updates.chunk(device.clone(), segment), medium::settle(device, asking));
    let chunk = chunk?;
    match (chunk.number >= chunk.shape.data, is_parity) {
        (true, false) => return Err(not_in_place(segment, "this device has a parity chunk of it")),
        (false, true) => return Err(not_in_place(segment, "this device has a data chunk of it")),
        (true, true) | (false, false) => {}
    }
    settled?;
    Ok(chunk)
}
