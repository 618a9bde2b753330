//! Requests for data on their way to a device's lane. While nothing of the device is reserved they go to it as they come;
//! while something is, they wait here and [`Fair`] says which goes next, so that those who reserved get what they were
//! promised however much others ask for. What the lane holds is then bounded to [`AHEAD`] of work.
//!
//! Locks: `sending` is held while requests go to the lane, so that none of a stream follows its cancellation; `state` is
//! taken inside it and by the lane's answers, never while the lane is called.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    time::{Duration, Instant},
};
use steadfast_disk::{LaneHandle, Op, OpError, OpOutput, Priority as LanePriority};
use steadfast_protocol::{
    ReservationId, Time,
    message::{Access, Fault, ReservationCounts, Reserve},
    serve::{AdmissionPolicy, Capacity, Charge, Fair, Flow, Granted, Reservations, Sharing},
};

/// Takes a lane's answer, on the lane's thread; must not block.
type Reply = Box<dyn FnOnce(Result<OpOutput, OpError>) + Send>;

/// Work that the lane holds while bandwidth is reserved: what a request of a reservation waits for at most, and enough for
/// a rotating disk to order and to flush in groups. Picked by eye.
const AHEAD: Duration = Duration::from_millis(20);
/// The least of it, for slow devices: a request at the device and one behind it.
const AHEAD_BYTES_MIN: u64 = 512 << 10;
/// How old measured speeds may be.
const MEASURED_AGE_MAX: Duration = Duration::from_millis(100);
/// The part of what nobody reserved that background work gets while others want all of it.
const BACKGROUND_PART: f64 = 0.125;
/// What an unmeasured device is taken for where the cost of requests is compared; only their proportion counts.
const UNMEASURED_BYTES_PER_S: u64 = 100_000_000;

/// The way to one device.
pub(crate) struct Paced {
    me: Weak<Paced>,
    lane: LaneHandle,
    started: Instant,
    sending: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    reservations: Reservations,
    capacity: Capacity,
    measured: Option<Instant>,
    fair: Fair,
    sharing: Sharing,
    waiting: BTreeMap<u64, Job>,
    jobs: u64,
}

struct Job {
    stream: u64,
    class: LanePriority,
    access: Access,
    bytes: u64,
    /// What its turn costs, where it waits for one.
    charge: Option<Charge>,
    op: Op,
    reply: Reply,
}

impl Paced {
    pub(crate) fn new(lane: LaneHandle, policy: AdmissionPolicy) -> Arc<Self> {
        let state = State {
            reservations: Reservations::new(policy),
            capacity: Capacity::default(),
            measured: None,
            fair: Fair::default(),
            sharing: Sharing::default(),
            waiting: BTreeMap::new(),
            jobs: 0,
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            lane,
            started: Instant::now(),
            sending: Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// Keeps bandwidth, or renews what is kept.
    pub(crate) fn reserve(&self, wish: &Reserve) -> Result<Granted, Fault> {
        let now = self.now();
        let mut state = self.state();
        state.measured = None;
        self.measure(&mut state);
        let capacity = state.capacity;
        state.reservations.reserve(now, wish, &capacity)
    }

    /// Gives a reservation back.
    pub(crate) fn release(&self, reservation: ReservationId) {
        self.state().reservations.release(reservation);
        self.send_waiting();
    }

    /// Whether a reservation is kept now.
    pub(crate) fn keeps(&self, reservation: ReservationId) -> bool {
        let mut state = self.state();
        state.reservations.expire(self.now());
        let capacity = state.capacity;
        state.reservations.share(reservation, &capacity).is_some()
    }

    /// Whether anything is kept now.
    pub(crate) fn keeps_any(&self) -> bool {
        let mut state = self.state();
        state.reservations.expire(self.now());
        !state.reservations.is_empty()
    }

    /// Bytes per second that are kept now for reads and for writes.
    pub(crate) fn reserved_bytes_per_s(&self) -> (u64, u64) {
        let mut state = self.state();
        state.reservations.expire(self.now());
        let of = |access| state.reservations.reserved_bytes_per_s(access);
        (of(Access::Read), of(Access::Write))
    }

    /// What became of wishes for the device's bandwidth.
    pub(crate) fn reservations(&self) -> ReservationCounts {
        let mut state = self.state();
        state.reservations.expire(self.now());
        state.reservations.counts()
    }

    /// What sharing leaves of the device's speed.
    pub(crate) fn sharing_ppm(&self) -> [u32; 4] {
        self.state().sharing.left_ppm()
    }

    /// Requests that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// Bytes that wait here.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.state().fair.waiting_bytes()
    }

    /// A read or a write of a stream, under its reservation where it has one. The reply is called exactly once.
    pub(crate) fn submit(
        &self,
        stream: u64,
        reservation: Option<ReservationId>,
        class: LanePriority,
        op: Op,
        reply: Reply,
    ) {
        let (access, bytes) = match &op {
            Op::ReadSlice { len, .. } => (Access::Read, u64::from(*len)),
            Op::WriteBlock { pieces, .. } => {
                (Access::Write, pieces.iter().map(|piece| piece.len() as u64).sum())
            }
            other => unreachable!("only data is paced, not {other:?}"),
        };
        let job = Job { stream, class, access, bytes, charge: None, op, reply };
        let now = self.now();
        let direct = {
            let mut state = self.state();
            state.reservations.expire(now);
            if state.reservations.is_empty() && state.waiting.is_empty() {
                state.fair.passed(bytes);
                state.sharing.started(now, stream, access);
                Some(job)
            } else {
                self.measure(&mut state);
                state.wait(reservation, job);
                None
            }
        };
        match direct {
            Some(job) => self.send(job),
            None => self.send_waiting(),
        }
    }

    /// Drops everything of a stream that has not begun; see [`LaneHandle::cancel`].
    pub(crate) fn cancel(&self, stream: u64) {
        let mut dropped = Vec::new();
        {
            let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            {
                let mut state = self.state();
                let of_stream = |(&id, job): (&u64, &Job)| (job.stream == stream).then_some(id);
                let ids: BTreeSet<u64> = state.waiting.iter().filter_map(of_stream).collect();
                if !ids.is_empty() {
                    state.fair.withdraw(|id| ids.contains(&id));
                    dropped.extend(ids.iter().filter_map(|id| state.waiting.remove(id)));
                }
            }
            self.lane.cancel(stream);
        }
        for job in dropped {
            (job.reply)(Err(OpError::Cancelled));
        }
        self.send_waiting();
    }

    fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lane's measured speeds, if the last are old.
    fn measure(&self, state: &mut State) {
        if state.measured.is_some_and(|at| at.elapsed() < MEASURED_AGE_MAX) {
            return;
        }
        let status = self.lane.status();
        state.capacity = Capacity {
            read_bytes_per_s: status.read_bytes_per_s.unwrap_or(0.0) as u64,
            write_bytes_per_s: status.write_bytes_per_s.unwrap_or(0.0) as u64,
            sharing_ppm: state.sharing.left_ppm(),
        };
        state.measured = Some(Instant::now());
    }

    /// Sends what may go to the lane now.
    fn send_waiting(&self) {
        loop {
            let sending = match self.sending.try_lock() {
                Ok(sending) => sending,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // Whoever holds it looks once more when it has let go.
                Err(TryLockError::WouldBlock) => return,
            };
            let mut sent = false;
            while let Some(job) = self.next() {
                self.send(job);
                sent = true;
            }
            drop(sending);
            if !sent && !self.state().may_send() {
                return;
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let now = self.now();
        let mut state = self.state();
        if state.waiting.is_empty() {
            return None;
        }
        state.reservations.expire(now);
        let depth = state.depth_bytes();
        let id = state.fair.next(depth)?;
        let job = state.waiting.remove(&id).expect("what waits for its turn is here");
        state.sharing.started(now, job.stream, job.access);
        Some(job)
    }

    fn send(&self, job: Job) {
        let Job { stream, class, access, bytes, charge, op, reply } = job;
        // Weak: a request in a lane's queue does not keep the lane alive.
        let me = self.me.clone();
        let finished = Box::new(move |result: Result<OpOutput, OpError>| {
            if let Some(me) = me.upgrade() {
                let refunded = charge.filter(|_| matches!(result, Err(OpError::Cancelled)));
                me.finished(stream, (access, bytes), result.is_ok(), refunded);
            }
            reply(result);
        });
        self.lane.submit(stream, class, op, finished);
    }

    fn finished(&self, stream: u64, (access, bytes): (Access, u64), done: bool, refunded: Option<Charge>) {
        let waiting = {
            let mut state = self.state();
            state.fair.finished(bytes);
            refunded.into_iter().for_each(|charge| state.fair.refund(charge));
            state.sharing.finished(self.now(), stream, access, if done { bytes } else { 0 });
            !state.waiting.is_empty()
        };
        if waiting {
            self.send_waiting();
        }
    }
}

impl State {
    fn wait(&mut self, reservation: Option<ReservationId>, mut job: Job) {
        let share = reservation.and_then(|id| Some((id, self.reservations.share(id, &self.capacity)?)));
        let left = self.reservations.share_left(&self.capacity);
        let (flow, weight) = match (share, job.class) {
            (Some((id, share)), _) => (Flow::Reserved(id), share),
            (None, LanePriority::Background) => (Flow::Background, left * BACKGROUND_PART),
            (None, _) => (Flow::BestEffort, left),
        };
        if share.is_some() {
            // A stream has a few requests under way, fewer than the lane holds: behind those it would never be behind its
            // share, and never get it. How much it gets is decided here, before the lane.
            job.class = match job.class {
                LanePriority::Background => LanePriority::Normal,
                _ => LanePriority::Interactive,
            };
        }
        let speed = self.capacity.bytes_per_s(job.access).unwrap_or(UNMEASURED_BYTES_PER_S);
        let cost_s = job.bytes as f64 / speed as f64;
        let id = self.jobs;
        self.jobs += 1;
        // A share may be as small as one byte a second of a fast device.
        job.charge = Some(self.fair.submit(flow, weight.max(1e-6), id, job.bytes, cost_s));
        self.waiting.insert(id, job);
    }

    /// Bytes that the lane may hold.
    fn depth_bytes(&self) -> u64 {
        if self.reservations.is_empty() {
            return u64::MAX;
        }
        let fastest = self.capacity.read_bytes_per_s.max(self.capacity.write_bytes_per_s);
        ((fastest as f64 * AHEAD.as_secs_f64()) as u64).max(AHEAD_BYTES_MIN)
    }

    fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.fair.at_device_bytes() < self.depth_bytes()
    }
}
