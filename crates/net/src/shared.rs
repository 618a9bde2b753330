//! What the handles and the two tasks of a connection share: the table of streams and what waits on it.
//!
//! One short lock guards it; nobody awaits or wakes anybody while holding it. What is being written has a lock of its own, taken
//! before the other. The life of a stream here:
//!
//! ```text
//!           open() / OPEN arrives
//!                   ▼
//!                 Open ── CANCEL sent or received ──▶ Cancelled (its DATA purged, no more is taken)
//!                   │                                     │
//!                   └── END or FAIL sent or received ◀────┘
//!                                   ▼
//!                               Finished ── handles dropped ──▶ forgotten: late frames are ignored
//! ```
//!
//! Invariants: `credit` of a stream is what was granted less what arrived; a peer that exceeds it, sends on a
//! stream never opened, or queues messages faster than they are taken loses the connection; memory held for a
//! peer is bounded by the credit granted plus [`QUEUE_BYTES_MAX`] a stream and [`QUEUES_BYTES_MAX`] in all.

use crate::{
    Event, Lost, Opened, Options, Violation,
    counters::{Counting, add},
    hand::Hand,
    lanes::{Lanes, OutFrame},
    parser::ParseError,
};
use bytes::{Bytes, BytesMut};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};
use steadfast_protocol::{
    Epoch,
    message::{self, Fault, FrameKind, Header, HeaderError, Priority, RefusalReason},
};
use tokio::{sync::Notify, task::AbortHandle, time::Instant};

#[cfg(test)]
mod tests;

/// Bytes of messages beyond their payload that may wait on one stream: two bodies of the greatest length. Each
/// 64 KiB of payload waiting allows another 4 KiB, far more than a slice's own body.
const QUEUE_BYTES_MAX: usize = 2 * message::BODY_BYTES_MAX as usize;
/// The same over all streams of a connection, requests not yet taken included.
const QUEUES_BYTES_MAX: usize = 8 * QUEUE_BYTES_MAX;
/// Bytes that wait to be sent to a peer, answers of streams that are over included, from which it is refused more streams: it asks and does
/// not read. Twice what a node reads ahead for all of its readers.
const UNSENT_BYTES_MAX: usize = 64 << 20;
/// What one queued message costs besides its body: the event and its share of the queue, rounded up.
const EVENT_BYTES: usize = 128;
/// An answer of at most so many bytes is taken however much waits: 4,096 streams of one peer have 16 MiB of them.
const SHORT_BYTES: usize = 4 << 10;
/// Control frames that may wait for a peer that does not read: an answer to each of the streams it may have
/// open, many times over.
const CONTROL_FRAMES_MAX: usize = 64 << 10;
/// When to ask again after a refusal for too many streams. 100 ms: some requests' time. Picked by eye.
const RETRY_AFTER_MS: u32 = 100;

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) counting: Counting,
    /// Something to send, or closing.
    pub(crate) to_send: Notify,
    /// Fewer bytes wait than the bound.
    pub(crate) room: Notify,
    /// Nobody holds the connection any more.
    pub(crate) closing: Notify,
    /// Locked before the state where both are.
    pub(crate) hand: Mutex<Hand>,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) lanes: Lanes,
    /// Nobody holds it any more, or whoever served it stops: what is queued is sent, and then it closes.
    pub(crate) closing: bool,
    pub(crate) lost: Option<Lost>,
    /// Streams purged since the writer last looked, each once however often a peer that does not read cancels it.
    pub(crate) purged: BTreeSet<u64>,
    pub(crate) tasks: Vec<AbortHandle>,
    /// Whether this end connected: its ids are odd.
    connector: bool,
    last_ours: u64,
    last_theirs: u64,
    streams: BTreeMap<u64, Entry>,
    ours_open: usize,
    theirs_open: usize,
    /// Sum of `queued_bytes` and of the bodies of `incoming`.
    queued_bytes: usize,
    incoming: VecDeque<(u64, Opened)>,
    incoming_waker: Option<Waker>,
    accepting: bool,
    pong_queued: bool,
    /// When a stream was last begun or ended.
    used_at: Instant,
}

struct Entry {
    ours: bool,
    priority: Priority,
    epoch: Epoch,
    /// Payload bytes the peer may still send.
    credit: u64,
    cancelled: bool,
    finished: bool,
    /// The last event was taken.
    over: bool,
    events: VecDeque<Event>,
    queued_bytes: usize,
    queued_payload_bytes: usize,
    waker: Option<Waker>,
}

/// What the reader does with the payload of the frame whose head it gave.
pub(crate) enum Verdict {
    /// The frame was dealt with; it has no payload.
    Done,
    /// Read the payload and deliver it.
    Take,
    /// Read the payload and drop it.
    Discard,
}

/// What became of an OPEN that arrived.
enum Opening {
    /// It is for whom to wake.
    Taken(Option<Waker>),
    Refused,
}

/// Keeps a connection alive: dropped with the last handle, it lets the queued frames go out and closes.
pub(crate) struct Owner(pub(crate) Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Shared {
    pub(crate) fn new(connector: bool, options: Options) -> Self {
        let state = State {
            lanes: Lanes::default(),
            closing: false,
            lost: None,
            purged: BTreeSet::new(),
            tasks: Vec::new(),
            connector,
            last_ours: 0,
            last_theirs: 0,
            streams: BTreeMap::new(),
            ours_open: 0,
            theirs_open: 0,
            queued_bytes: 0,
            incoming: VecDeque::new(),
            incoming_waker: None,
            accepting: true,
            pong_queued: false,
            used_at: Instant::now(),
        };
        Self {
            options,
            counting: Counting::default(),
            to_send: Notify::new(),
            room: Notify::new(),
            closing: Notify::new(),
            hand: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// The state. A panic elsewhere while it was held cannot leave it half changed in a way that matters more
    /// than closing every stream properly does.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is on its way into the socket. After a panic as before: the connection ends with the first frame that is cut.
    pub(crate) fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the queued frames go out and closes, whoever holds a stream still. From here on only what was done is answered.
    pub(crate) fn leave(&self) {
        self.lock().closing = true;
        self.to_send.notify_one();
        self.closing.notify_one();
    }

    /// Ends the connection: every stream, sender and waiter learns of it. The first reason stays.
    pub(crate) fn fail(&self, lost: Lost) {
        let mut wakers = Vec::new();
        let tasks;
        {
            let mut state = self.lock();
            if state.lost.is_some() {
                return;
            }
            tracing::debug!(reason = %lost, streams = state.streams.len(), "connection over");
            state.lost = Some(lost);
            state.lanes = Lanes::default();
            tasks = std::mem::take(&mut state.tasks);
            wakers.extend(state.incoming_waker.take());
            wakers.extend(state.streams.values_mut().filter_map(|entry| entry.waker.take()));
        }
        wakers.into_iter().for_each(Waker::wake);
        self.room.notify_waiters();
        *self.hand() = Hand::default();
        self.to_send.notify_one();
        tasks.iter().for_each(AbortHandle::abort);
    }

    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lock().lost.clone()
    }

    /// Opens a stream of this end.
    pub(crate) fn open(
        &self,
        body: Vec<u8>,
        priority: Priority,
        epoch: Epoch,
        deadline: Option<Duration>,
        credit: u32,
    ) -> Result<u64, Lost> {
        check_lengths(body.len(), 0)?;
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let stream = match (state.last_ours, state.connector) {
            (0, true) => 1,
            (0, false) => 2,
            (last, _) => last + 2,
        };
        state.last_ours = stream;
        state.ours_open += 1;
        state.streams.insert(stream, Entry::new(true, priority, epoch, u64::from(credit)));
        let header = Header {
            priority,
            epoch,
            deadline_us: deadline.map_or(0, deadline_us),
            credit,
            ..Header::new(FrameKind::Open, stream)
        };
        state.lanes.push_control(OutFrame::new(header, body, Bytes::new()));
        drop(state);
        self.wake_writer();
        Ok(stream)
    }

    /// Queues DATA. What is sent on a stream that is cancelled or finished is dropped.
    pub(crate) fn data(&self, stream: u64, body: Vec<u8>, payload: Bytes) -> Result<(), Lost> {
        check_lengths(body.len(), payload.len())?;
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let Some(entry) = state.streams.get(&stream).filter(|entry| !entry.cancelled && !entry.finished)
        else {
            add(&self.counting.payload_bytes_purged, payload.len());
            return Ok(());
        };
        let header =
            Header { priority: entry.priority, epoch: entry.epoch, ..Header::new(FrameKind::Data, stream) };
        state.lanes.push_bulk(OutFrame::new(header, body, payload));
        drop(state);
        self.wake_writer();
        Ok(())
    }

    /// Whether fewer bytes are queued than the bound, and the connection lives.
    pub(crate) fn is_ready(&self) -> bool {
        let state = self.lock();
        state.lost.is_none() && state.lanes.bulk_bytes() < self.options.unsent_bytes_max
    }

    /// Waits until fewer bytes are queued than the bound.
    pub(crate) async fn ready(&self) -> Result<(), Lost> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let state = self.lock();
                if let Some(lost) = &state.lost {
                    return Err(lost.clone());
                }
                if state.lanes.bulk_bytes() < self.options.unsent_bytes_max {
                    return Ok(());
                }
            }
            room.await;
        }
    }

    /// Grants credit; gives the amount granted, less than asked where a frame could not hold the sum.
    pub(crate) fn grant(&self, stream: u64, bytes: u32) -> u32 {
        let mut state = self.lock();
        let Some(entry) = state.streams.get_mut(&stream).filter(|entry| !entry.finished) else { return 0 };
        let room = u64::from(u32::MAX).saturating_sub(entry.credit);
        let granted = bytes.min(u32::try_from(room).unwrap_or(u32::MAX));
        if granted > 0 {
            entry.credit += u64::from(granted);
            state.lanes.push_credit(stream, granted);
            drop(state);
            self.wake_writer();
        }
        granted
    }

    /// Cancels a stream that this end opened.
    pub(crate) fn cancel(&self, stream: u64) {
        let mut state = self.lock();
        let Some(entry) = state.streams.get_mut(&stream) else { return };
        if entry.finished || entry.cancelled {
            return;
        }
        entry.cancelled = true;
        self.purge(&mut state, stream);
        state.lanes.push_control(OutFrame::bare(FrameKind::Cancel, stream));
        drop(state);
        self.wake_writer();
    }

    /// Answers a stream that the peer opened, once; later answers are dropped.
    pub(crate) fn finish(&self, stream: u64, answer: Result<Vec<u8>, &Fault>) -> Result<(), Lost> {
        let (answer, result) = match answer {
            Ok(body) => match check_lengths(body.len(), 0) {
                Ok(()) => ((FrameKind::End, body), Ok(())),
                Err(too_long) => (fault_body(&Fault::Protocol(too_long.to_string())), Err(too_long)),
            },
            Err(fault) => (fault_body(fault), Ok(())),
        };
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        state.finish_theirs(stream, answer);
        drop(state);
        self.wake_writer();
        result
    }

    /// Forgets a stream whose handles are gone: cancels it, or answers that nobody will.
    pub(crate) fn release(&self, stream: u64) {
        let mut state = self.lock();
        let Some(entry) = state.streams.get(&stream) else { return };
        if !entry.finished && state.lost.is_none() {
            if entry.ours {
                if !entry.cancelled {
                    self.purge(&mut state, stream);
                    state.lanes.push_control(OutFrame::bare(FrameKind::Cancel, stream));
                }
            } else {
                let fault = match entry.cancelled {
                    true => Fault::Cancelled,
                    false => Fault::Protocol("the request was dropped without an answer".into()),
                };
                state.finish_theirs(stream, fault_body(&fault));
            }
        }
        let events = state.forget(stream);
        drop(state);
        drop(events);
        self.wake_writer();
    }

    /// Takes the next event of a stream; `None` in `Ready` when there will be none.
    pub(crate) fn poll_event(&self, stream: u64, waker: &Waker) -> std::task::Poll<Option<Event>> {
        use std::task::Poll::{Pending, Ready};
        let mut state = self.lock();
        let state = &mut *state;
        let entry = state.streams.get_mut(&stream).expect("a stream with a handle is in the table");
        if entry.over {
            return Ready(None);
        }
        if let Some(event) = entry.events.pop_front() {
            let (bytes, payload_bytes) = event.cost();
            entry.queued_bytes -= bytes;
            entry.queued_payload_bytes -= payload_bytes;
            state.queued_bytes -= bytes;
            entry.over = matches!(event, Event::End(_) | Event::Failed(_));
            return Ready(Some(event));
        }
        if entry.finished {
            entry.over = true;
            return Ready(None);
        }
        if let Some(lost) = &state.lost {
            entry.over = true;
            return Ready(Some(Event::Lost(lost.clone())));
        }
        entry.waker = Some(waker.clone());
        Pending
    }

    /// Takes the next stream the peer opened; `None` in `Ready` once the connection is lost.
    pub(crate) fn poll_incoming(&self, waker: &Waker) -> std::task::Poll<Option<(u64, Opened)>> {
        use std::task::Poll::{Pending, Ready};
        let mut state = self.lock();
        if let Some((stream, opened)) = state.incoming.pop_front() {
            state.queued_bytes -= opened.body.len() + EVENT_BYTES;
            return Ready(Some((stream, opened)));
        }
        if state.lost.is_some() {
            return Ready(None);
        }
        state.incoming_waker = Some(waker.clone());
        Pending
    }

    /// This end takes no streams any more.
    pub(crate) fn stop_accepting(&self) {
        let mut state = self.lock();
        state.accepting = false;
        while let Some((stream, opened)) = state.incoming.pop_front() {
            state.queued_bytes -= opened.body.len() + EVENT_BYTES;
            state.finish_theirs(stream, refused(RefusalReason::NotReady));
            state.forget(stream);
        }
        drop(state);
        self.wake_writer();
    }

    /// Queues a PING if a stream is open, or `idle` connections are to be asked, too; says whether it did.
    pub(crate) fn ping(&self, idle: bool) -> bool {
        let mut state = self.lock();
        let asks = idle || state.streams_open() > 0;
        if asks {
            state.lanes.push_control(OutFrame::bare(FrameKind::Ping, 0));
            drop(state);
            self.wake_writer();
        }
        asks
    }

    /// Whether the peer connected.
    pub(crate) fn accepted(&self) -> bool {
        !self.lock().connector
    }

    /// Since when no stream is open; `None` while one is, and once the connection is over.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.streams_open() == 0 && state.lost.is_none()).then_some(state.used_at)
    }

    /// Deals with the head of a frame that arrived.
    pub(crate) fn arrived(&self, header: Header, body: &mut Vec<u8>) -> Result<Verdict, Lost> {
        let mut state = self.lock();
        let mut send = true;
        let mut verdict = Verdict::Done;
        let woken = match header.kind {
            FrameKind::Hello => unreachable!("the parser takes one HELLO, before streams"),
            FrameKind::Ping => {
                // One answer for all the pings that arrived since the last was sent.
                if !std::mem::replace(&mut state.pong_queued, true) {
                    state.lanes.push_control(OutFrame::bare(FrameKind::Pong, 0));
                }
                None
            }
            FrameKind::Pong => None,
            FrameKind::Open => {
                match state.opened(&header, std::mem::take(body), self.options.streams_max)? {
                    Opening::Taken(waker) => waker,
                    Opening::Refused => {
                        add(&self.counting.streams_refused, 1);
                        None
                    }
                }
            }
            FrameKind::Cancel => {
                let (known, waker) = state.cancelled(header.stream)?;
                if known {
                    self.purge(&mut state, header.stream);
                }
                waker
            }
            FrameKind::Data => {
                send = false;
                verdict = state.admit(&header)?;
                None
            }
            FrameKind::Credit | FrameKind::End | FrameKind::Fail => {
                send = false;
                state.told(&header, std::mem::take(body))?
            }
        };
        let frames = state.lanes.control_frames();
        let room = state.lanes.bulk_bytes() < self.options.unsent_bytes_max;
        drop(state);
        if room && matches!(header.kind, FrameKind::End | FrameKind::Fail) {
            // What was queued on the stream is gone, and the writer may have no reason to look.
            self.room.notify_waiters();
        }
        if frames > CONTROL_FRAMES_MAX {
            return Err(Lost::Backlog { frames });
        }
        if let Some(waker) = woken {
            waker.wake();
        }
        if send {
            self.wake_writer();
        }
        Ok(verdict)
    }

    /// Gives a stream the DATA that was admitted; dropped if its handles went meanwhile.
    pub(crate) fn deliver(&self, stream: u64, body: Vec<u8>, payload: BytesMut) -> Result<(), Lost> {
        let payload_bytes = payload.len();
        let mut state = self.lock();
        if !state.streams.contains_key(&stream) {
            add(&self.counting.payload_bytes_discarded, payload_bytes);
            return Ok(());
        }
        let waker = state.queue(stream, Event::Data { body, payload })?;
        drop(state);
        add(&self.counting.payload_bytes_received, payload_bytes);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    fn purge(&self, state: &mut State, stream: u64) {
        let payload_bytes = state.lanes.purge(stream);
        state.purged.insert(stream);
        add(&self.counting.payload_bytes_purged, payload_bytes);
        if state.lanes.bulk_bytes() < self.options.unsent_bytes_max {
            self.room.notify_waiters();
        }
    }
}

impl State {
    fn streams_open(&self) -> usize {
        self.ours_open + self.theirs_open
    }

    /// The writer took the PONG.
    pub(crate) fn pong_sent(&mut self) {
        self.pong_queued = false;
    }

    fn opened(&mut self, header: &Header, body: Vec<u8>, streams_max: usize) -> Result<Opening, Violation> {
        let Header { stream, priority, epoch, credit, .. } = *header;
        let odd = !self.connector;
        if (stream % 2 == 1) != odd || stream <= self.last_theirs {
            return Err(Violation::StreamId { stream, odd, last: self.last_theirs });
        }
        self.last_theirs = stream;
        let bytes = body.len() + EVENT_BYTES;
        let refusal = if !self.accepting {
            Some(RefusalReason::NotReady)
        } else if self.theirs_open >= streams_max
            || self.queued_bytes + bytes > QUEUES_BYTES_MAX
            || self.lanes.unsent_bytes() > UNSENT_BYTES_MAX
        {
            Some(RefusalReason::Overloaded)
        } else {
            None
        };
        if let Some(reason) = refusal {
            if !self.closing {
                let (kind, body) = refused(reason);
                self.lanes.push_control(OutFrame::new(Header::new(kind, stream), body, Bytes::new()));
            }
            return Ok(Opening::Refused);
        }
        self.theirs_open += 1;
        self.queued_bytes += bytes;
        self.streams.insert(stream, Entry::new(false, priority, epoch, 0));
        let deadline = (header.deadline_us > 0).then(|| Duration::from_micros(u64::from(header.deadline_us)));
        self.incoming.push_back((stream, Opened { body, priority, epoch, deadline, credit }));
        Ok(Opening::Taken(self.incoming_waker.take()))
    }

    /// A CANCEL arrived: whether the stream is here, and whom to wake.
    fn cancelled(&mut self, stream: u64) -> Result<(bool, Option<Waker>), Lost> {
        self.check_known(stream)?;
        let Some(entry) = self.streams.get_mut(&stream) else {
            // Its END was given and its handles are gone: what is queued before that END need not be sent.
            return Ok((self.lanes.has(stream), None));
        };
        if entry.ours {
            return Err(Lost::Violation(Violation::WrongEnd { stream, by_opener: false }));
        }
        if entry.cancelled || entry.finished {
            // What is queued behind an END already given is dropped all the same.
            return Ok((true, None));
        }
        entry.cancelled = true;
        if let Some(at) = self.incoming.iter().position(|(other, _)| *other == stream) {
            if let Some((_, opened)) = self.incoming.remove(at) {
                self.queued_bytes -= opened.body.len() + EVENT_BYTES;
            }
            self.finish_theirs(stream, fault_body(&Fault::Cancelled));
            self.forget(stream);
            return Ok((false, None));
        }
        Ok((true, self.queue(stream, Event::Cancelled)?))
    }

    /// DATA arrives: counts it against the stream's credit.
    fn admit(&mut self, header: &Header) -> Result<Verdict, Violation> {
        let Header { stream, payload_bytes, .. } = *header;
        self.check_known(stream)?;
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(Verdict::Discard) };
        if entry.finished {
            return Ok(Verdict::Discard);
        }
        if u64::from(payload_bytes) > entry.credit {
            return Err(Violation::Credit { stream, payload_bytes, credit: entry.credit });
        }
        entry.credit -= u64::from(payload_bytes);
        // The opener of a cancelled stream sends no more; what it does send is not for us to hold.
        Ok(if entry.cancelled && !entry.ours { Verdict::Discard } else { Verdict::Take })
    }

    /// CREDIT, END or FAIL arrived.
    fn told(&mut self, header: &Header, body: Vec<u8>) -> Result<Option<Waker>, Violation> {
        let stream = header.stream;
        self.check_known(stream)?;
        let last = header.kind != FrameKind::Credit;
        if last && self.is_theirs(stream) {
            return Err(Violation::WrongEnd { stream, by_opener: true });
        }
        let Some(entry) = self.streams.get_mut(&stream).filter(|entry| !entry.finished) else {
            return Ok(None);
        };
        let event = match header.kind {
            FrameKind::End => Event::End(body),
            FrameKind::Fail => match message::decode(&body) {
                Ok(fault) => Event::Failed(fault),
                Err(_) => return Err(Violation::Fault { stream }),
            },
            _ => {
                if let Some(Event::Credit(waiting)) = entry.events.back_mut() {
                    *waiting =
                        waiting.checked_add(header.credit).ok_or(Violation::CreditOverflow { stream })?;
                    return Ok(None);
                }
                Event::Credit(header.credit)
            }
        };
        let waker = self.queue(stream, event)?;
        if last {
            // Only now: of a flood the loss of the connection is what its taker hears.
            self.streams.get_mut(&stream).expect("looked up under the same lock").finished = true;
            self.ours_open -= 1;
            self.used_at = Instant::now();
            // Nobody takes what is still queued for it.
            self.lanes.purge(stream);
            self.purged.insert(stream);
        }
        Ok(waker)
    }

    fn queue(&mut self, stream: u64, event: Event) -> Result<Option<Waker>, Violation> {
        let entry = self.streams.get_mut(&stream).expect("looked up under the same lock");
        let (bytes, payload_bytes) = event.cost();
        entry.queued_bytes += bytes;
        entry.queued_payload_bytes += payload_bytes;
        self.queued_bytes += bytes;
        let limit_bytes = QUEUE_BYTES_MAX + entry.queued_payload_bytes / 16;
        if entry.queued_bytes > limit_bytes {
            return Err(Violation::Flood { stream, queued_bytes: entry.queued_bytes, limit_bytes });
        }
        let limit_bytes = QUEUES_BYTES_MAX + entry.queued_payload_bytes / 16;
        if self.queued_bytes > limit_bytes {
            return Err(Violation::Flood { stream, queued_bytes: self.queued_bytes, limit_bytes });
        }
        entry.events.push_back(event);
        Ok(entry.waker.take())
    }

    fn finish_theirs(&mut self, stream: u64, (mut kind, mut body): (FrameKind, Vec<u8>)) {
        let Some(entry) = self.streams.get_mut(&stream).filter(|entry| !entry.finished) else { return };
        assert!(!entry.ours, "only the acceptor answers a stream");
        entry.finished = true;
        // Of a peer that asks for much before it reads anything; it may ask again.
        if body.len() > SHORT_BYTES && self.lanes.unsent_bytes() > UNSENT_BYTES_MAX {
            (kind, body) = refused(RefusalReason::Overloaded);
        }
        let header = Header { priority: entry.priority, epoch: entry.epoch, ..Header::new(kind, stream) };
        self.theirs_open -= 1;
        self.used_at = Instant::now();
        if self.closing && kind == FrameKind::Fail {
            // It was not the request that failed: its opener learns by the loss of the connection that this end is gone.
            return;
        }
        self.lanes.push_last(OutFrame::new(header, body, Bytes::new()));
    }

    /// Takes a stream out of the table and gives its events, to be dropped without the lock.
    fn forget(&mut self, stream: u64) -> Option<VecDeque<Event>> {
        let entry = self.streams.remove(&stream)?;
        if !entry.finished {
            *if entry.ours { &mut self.ours_open } else { &mut self.theirs_open } -= 1;
            self.used_at = Instant::now();
        }
        self.queued_bytes -= entry.queued_bytes;
        Some(entry.events)
    }

    fn is_theirs(&self, stream: u64) -> bool {
        (stream % 2 == 1) != self.connector
    }

    fn check_known(&self, stream: u64) -> Result<(), Violation> {
        let last = if self.is_theirs(stream) { self.last_theirs } else { self.last_ours };
        if stream <= last { Ok(()) } else { Err(Violation::NeverOpened { stream }) }
    }
}

impl Entry {
    fn new(ours: bool, priority: Priority, epoch: Epoch, credit: u64) -> Self {
        Self {
            ours,
            priority,
            epoch,
            credit,
            cancelled: false,
            finished: false,
            over: false,
            events: VecDeque::new(),
            queued_bytes: 0,
            queued_payload_bytes: 0,
            waker: None,
        }
    }
}

impl Event {
    /// Bytes it holds beyond payload, and of payload.
    fn cost(&self) -> (usize, usize) {
        match self {
            Event::Data { body, payload } => (EVENT_BYTES + body.len(), payload.len()),
            Event::End(body) => (EVENT_BYTES + body.len(), 0),
            Event::Credit(_) | Event::Cancelled | Event::Failed(_) | Event::Lost(_) => (EVENT_BYTES, 0),
        }
    }
}

impl From<Violation> for Lost {
    fn from(violation: Violation) -> Self {
        Lost::Violation(violation)
    }
}

impl From<ParseError> for Lost {
    fn from(error: ParseError) -> Self {
        Lost::Violation(Violation::Parse(error))
    }
}

impl From<HeaderError> for Lost {
    fn from(error: HeaderError) -> Self {
        ParseError::Header(error).into()
    }
}

fn check_lengths(body_bytes: usize, payload_bytes: usize) -> Result<(), Lost> {
    let fits = body_bytes <= message::BODY_BYTES_MAX as usize
        && payload_bytes <= message::PAYLOAD_BYTES_MAX as usize;
    if fits { Ok(()) } else { Err(Lost::TooLong { body_bytes, payload_bytes }) }
}

/// At least 1: zero on the wire means none. Beyond 71 minutes it says 71 minutes.
fn deadline_us(deadline: Duration) -> u32 {
    u32::try_from(deadline.as_micros()).unwrap_or(u32::MAX).max(1)
}

fn fault_body(fault: &Fault) -> (FrameKind, Vec<u8>) {
    (FrameKind::Fail, message::encode(fault))
}

fn refused(reason: RefusalReason) -> (FrameKind, Vec<u8>) {
    fault_body(&Fault::Refused { reason, retry_after_ms: RETRY_AFTER_MS })
}
