//! A request in, its answer out. Each stream is served by one task; nothing here waits for a medium without also
//! listening to the asker.

use crate::{
    activity::{Activity, Kind},
    devices::{ServedDevice, drop_caches},
    fault::fault,
    joining::Wish,
    report,
    served::Served,
    streams::{ingest, read, write},
    updates::{Updates, rows},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use steadfast_disk::{EmulationSpec, Op, OpError, OpOutput, Priority as LanePriority};
use steadfast_net::{Event, Opened, Stream};
use steadfast_protocol::{
    DeviceId, IndexRanges, ReservationId, Time,
    message::{self, Fault, NodeAnswer, NodeFault, NodeRequest, NodeStatus, Priority, RefusalReason},
    serve::{Admission, Budget, Limits, Load, ReadTicket, ReaderId},
};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, mpsc, oneshot};

/// Bytes of requests that are longer than most, all of which are held at a time: eight of the longest there may be, and each is some times as
/// long once it is understood. Picked by eye, as what readers share.
const REQUESTS_BYTES_MAX: usize = 32 << 20;
/// A request up to this length is like any other: an update of the largest size has half of it.
const REQUEST_BYTES_USUAL: usize = 2 * message::UPDATE_BYTES_MAX as usize;
/// When who sends a longer one is to come again, where there is no room for it. Picked by eye: some requests' time.
const REQUEST_RETRY_MS: u32 = 100;

/// What all streams of a node share.
pub(crate) struct Service {
    pub(crate) devices: Served,
    /// Chunks that change in place.
    pub(crate) updates: Arc<Updates>,
    /// Directories that are to be devices.
    joining: mpsc::Sender<Wish>,
    /// Waiting writers are told when budget comes back.
    pub(crate) budget_freed: Notify,
    /// Those that have it and write nothing are told when a writer finds none.
    pub(crate) budget_wanted: Notify,
    /// Readers that grant nothing are told when another finds no memory.
    pub(crate) memory_wanted: Notify,
    pub(crate) activity: Activity,
    /// Where the admin port listens, once it does.
    pub(crate) admin: OnceLock<String>,
    pub(crate) write_budget_bytes: u64,
    admission: Mutex<Admission>,
    budget: Mutex<Budget>,
    /// For segments whose primary it is: apart from the other, as what is written for them needs that.
    ingest_budget: Mutex<Budget>,
    /// Bytes of long requests.
    requests: Semaphore,
    streams: AtomicU64,
    started: Instant,
}

/// A stream that was admitted; gives its place back when dropped.
pub(crate) struct Admitted<'a> {
    service: &'a Service,
    /// Its connection.
    reader: ReaderId,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.service.admission().closed_of(self.reader);
    }
}

/// A stream that was admitted with memory to read into; gives both back when dropped.
pub(crate) struct AdmittedRead<'a> {
    pub(crate) service: &'a Service,
    pub(crate) ticket: ReadTicket,
}

impl Drop for AdmittedRead<'_> {
    fn drop(&mut self) {
        self.service.admission().read_closed(self.ticket);
    }
}

impl Service {
    pub(crate) fn new(
        devices: Served,
        updates: Arc<Updates>,
        joining: mpsc::Sender<Wish>,
        limits: Limits,
        (write_budget_bytes, ingest_budget_bytes): (u64, u64),
    ) -> Self {
        Self {
            devices,
            updates,
            joining,
            budget_freed: Notify::new(),
            budget_wanted: Notify::new(),
            memory_wanted: Notify::new(),
            activity: Activity::default(),
            admin: OnceLock::new(),
            write_budget_bytes,
            admission: Mutex::new(Admission::new(limits)),
            budget: Mutex::new(Budget::new(write_budget_bytes)),
            ingest_budget: Mutex::new(Budget::new(ingest_budget_bytes)),
            requests: Semaphore::new(REQUESTS_BYTES_MAX),
            streams: AtomicU64::new(1),
            started: Instant::now(),
        }
    }

    /// The cores' time.
    pub(crate) fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    /// A name for a stream at a lane that no other stream has.
    pub(crate) fn lane_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// How busy a device is for a stream, which may have a reservation of it.
    pub(crate) fn load(
        &self,
        device: &ServedDevice,
        writing: bool,
        reservation: Option<ReservationId>,
    ) -> Load {
        let status = device.lane.status();
        let rate = if writing { status.write_bytes_per_s } else { status.read_bytes_per_s };
        let keeps_any = self.devices.all().iter().any(|device| device.paced.keeps_any());
        self.admission().keep_for_reserved(keeps_any);
        Load {
            queued_bytes: status.queued_bytes + device.paced.waiting_bytes(),
            bytes_per_s: rate.unwrap_or(0.0) as u64,
            reserved: reservation.is_some_and(|reservation| device.paced.keeps(reservation)),
        }
    }

    pub(crate) fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ingest_budget(&self) -> MutexGuard<'_, Budget> {
        self.ingest_budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn device(&self, device: DeviceId) -> Result<Arc<ServedDevice>, Fault> {
        self.devices.get(device).ok_or(Fault::Node(NodeFault::UnknownDevice(device)))
    }

    fn admit(&self, reader: ReaderId, priority: Priority, load: Load) -> Result<Admitted<'_>, Fault> {
        let admitted = self.admit_quietly(reader, priority, load)?;
        self.activity.admitted(Kind::Request);
        Ok(admitted)
    }

    /// The same where the caller counts it, or not.
    pub(crate) fn admit_quietly(
        &self,
        reader: ReaderId,
        priority: Priority,
        load: Load,
    ) -> Result<Admitted<'_>, Fault> {
        self.admission().admit_of(reader, priority, load)?;
        Ok(Admitted { service: self, reader })
    }

    /// Admits a stream of a connection, with room for slices of `slice_bytes`.
    pub(crate) fn admit_read(
        &self,
        reader: ReaderId,
        priority: Priority,
        load: Load,
        slice_bytes: u32,
    ) -> Result<AdmittedRead<'_>, Fault> {
        let ticket = self.admission().admit_read_of(reader, priority, load, slice_bytes);
        let ticket = ticket.inspect_err(|_| self.memory_wanted.notify_waiters())?;
        Ok(AdmittedRead { service: self, ticket })
    }

    /// Room for a request that is longer than most, until it is served; nothing is known of it before it is understood.
    fn hold(&self, body_bytes: usize) -> Result<Option<SemaphorePermit<'_>>, Fault> {
        let long = u32::try_from(body_bytes).ok().filter(|_| body_bytes > REQUEST_BYTES_USUAL);
        let full = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: REQUEST_RETRY_MS };
        long.map(|bytes| self.requests.try_acquire_many(bytes)).transpose().map_err(|_| full)
    }

    /// Serves one stream to its end; `reader` names its connection.
    pub(crate) async fn serve(&self, reader: ReaderId, mut opened: Opened, mut stream: Stream) {
        let _held = match self.hold(opened.body.len()) {
            Ok(held) => held,
            Err(fault) => {
                self.activity.refused(&RefusalReason::Overloaded);
                return stream.fail(&fault);
            }
        };
        // A stream may last: what it was opened with is not held that long.
        let (request, reservation) = match request(&std::mem::take(&mut opened.body)) {
            Ok(request) => request,
            Err(error) => return stream.fail(&Fault::Protocol(error.to_string())),
        };
        if moves_data(&request) {
            // What control requests may do here (go on where others are refused, go before them at a device) is not for who moves data.
            opened.priority = opened.priority.max(Priority::Foreground);
        }
        let outcome = match request {
            NodeRequest::Read { device, pieces } => {
                read::serve(self, &opened, &mut stream, device, pieces, reservation, reader).await
            }
            NodeRequest::Write(open) => {
                write::serve(self, &opened, &mut stream, open, reservation, reader).await
            }
            NodeRequest::Ingest(open) => ingest::serve(self, &opened, &mut stream, open, reader).await,
            // As long as the chunk is changed now and then: no place among the streams that come and go.
            NodeRequest::Log { device, segment, chunk } => match self.device(device) {
                Ok(device) => self.updates.log(device, segment, chunk, (&mut stream, opened.credit)).await,
                Err(fault) => Err(fault),
            },
            short => match self.short(&opened, &mut stream, short, reader).await {
                // Lost: the asker knows by itself.
                Ok(answer) => stream.end(message::encode(&answer)).or(Ok(())),
                Err(fault) => {
                    if matches!(fault, Fault::Cancelled) {
                        self.activity.cancelled(Kind::Request);
                    }
                    Err(fault)
                }
            },
        };
        if let Err(fault) = outcome {
            if let Fault::Refused { reason, .. } = &fault {
                self.activity.refused(reason);
            }
            stream.fail(&fault);
        }
    }

    async fn short(
        &self,
        opened: &Opened,
        stream: &mut Stream,
        request: NodeRequest,
        reader: ReaderId,
    ) -> Result<NodeAnswer, Fault> {
        // What moves data is admitted by its own class.
        let _admitted = if moves_data(&request) {
            None
        } else {
            Some(self.admit(reader, Priority::Control, Load::default())?)
        };
        let class = lane_priority(opened.priority);
        match request {
            NodeRequest::Seal { device, segment, keep } => {
                let keep = keep.ranges().to_vec();
                let op = Op::Seal { segment, epoch: opened.epoch, keep };
                self.change(device, opened, stream, class, op).await.map(|_| NodeAnswer::Done)
            }
            NodeRequest::Delete { device, segment } => {
                let op = Op::Delete { segment, epoch: opened.epoch };
                self.change(device, opened, stream, class, op).await.map(|_| NodeAnswer::Done)
            }
            NodeRequest::Describe { device, segment } => {
                let op = Op::Describe { segment };
                match self.change(device, opened, stream, LanePriority::Interactive, op).await? {
                    OpOutput::Described(Some(extent)) => {
                        Ok(NodeAnswer::Described { blocks: indices(&extent.blocks), sealed: extent.sealed })
                    }
                    OpOutput::Described(None) => {
                        Err(Fault::Node(NodeFault::UnknownSegment { device, segment }))
                    }
                    other => unreachable!("a description answers a description, not {other:?}"),
                }
            }
            NodeRequest::Update { device, segment, offset, bytes } => {
                let served = self.device(device)?;
                let _admitted = self.admit(reader, opened.priority, self.load(&served, true, None))?;
                let updating = self.updates.update(served, segment, opened.epoch, offset, bytes);
                let mut early = Vec::new();
                let version = tokio::select! {
                    version = updating => version?,
                    fault = gone(stream, &mut early) => return Err(fault),
                };
                Ok(NodeAnswer::Updated { version })
            }
            NodeRequest::Level { device, segment } => {
                self.updates.begin(self.device(device)?, segment);
                Ok(NodeAnswer::Done)
            }
            NodeRequest::ChunkVersions { device, segment } => {
                let served = self.device(device)?;
                let versions = rows::versions_to_stand_in(self, &served, segment, opened.epoch);
                unless_gone(opened, stream, versions).await.map(NodeAnswer::ChunkVersions)
            }
            NodeRequest::ReadRows(wanted) => {
                let served = self.device(wanted.device)?;
                rows::check(&wanted, opened.credit)?;
                let sender = stream.sender();
                let rows = async {
                    let extent = {
                        let load = self.load(&served, false, None);
                        let _looking = self.admit_quietly(reader, opened.priority, load)?;
                        rows::find(self, &served, &wanted, opened.epoch).await?
                    };
                    let load = self.load(&served, false, None);
                    // All of them are held until the connection takes them.
                    let _admitted = self.admit_read(reader, opened.priority, load, wanted.length)?;
                    self.activity.admitted(Kind::Request);
                    rows::read(self, &served, &sender, &wanted, &extent).await
                };
                unless_gone(opened, stream, rows).await
            }
            NodeRequest::Fence { device, segment } => {
                let served = self.device(device)?;
                let op = Op::Fence { segment, epoch: opened.epoch };
                unless_gone(opened, stream, self.fence(&served, class, op)).await
            }
            NodeRequest::Status => Ok(NodeAnswer::Status(NodeStatus {
                devices: self.devices.all().iter().map(|device| report::device(device)).collect(),
                streams: self.admission().streams().saturating_sub(1),
                resident_bytes: report::resident_bytes(),
            })),
            NodeRequest::Emulate { device, spec } => self.emulate(device, &spec),
            NodeRequest::DropCaches { device } => unless_gone(opened, stream, self.drop_caches(device)).await,
            NodeRequest::Reserve(wish) => {
                let granted = self.device(wish.device)?.paced.reserve(&wish)?;
                for displaced in granted.displaced {
                    tracing::debug!(%displaced, by = %wish.reservation, "a reservation was displaced");
                }
                let lease_ms = u32::try_from(granted.lease.as_millis()).unwrap_or(u32::MAX);
                Ok(NodeAnswer::Reserved { lease_ms })
            }
            NodeRequest::Release { device, reservation } => {
                self.device(device)?.paced.release(reservation);
                Ok(NodeAnswer::Done)
            }
            NodeRequest::AddDevice { dir, capacity_bytes, thick } => {
                // It joins all the same where the asker goes away meanwhile.
                unless_gone(opened, stream, self.add_device(&dir, capacity_bytes, thick)).await
            }
            NodeRequest::Read { .. }
            | NodeRequest::Write(_)
            | NodeRequest::Ingest(_)
            | NodeRequest::Log { .. } => {
                unreachable!("served as streams")
            }
            NodeRequest::UnderReservation { .. } => {
                Err(Fault::Protocol("only a read or a write can use a reservation".to_owned()))
            }
        }
    }

    async fn add_device(
        &self,
        dir: &str,
        capacity_bytes: Option<u64>,
        thick: bool,
    ) -> Result<NodeAnswer, Fault> {
        let (answer, answered) = oneshot::channel();
        let wish = Wish { dir: dir.into(), capacity_bytes, thick, answer };
        let busy = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1000 };
        self.joining.try_send(wish).map_err(|_| busy)?;
        let stopping = Fault::Refused { reason: RefusalReason::NotReady, retry_after_ms: 1000 };
        answered.await.unwrap_or(Err(stopping)).map(|device| NodeAnswer::Added { device })
    }

    fn emulate(&self, device: DeviceId, spec: &str) -> Result<NodeAnswer, Fault> {
        let invalid = |what: String| Fault::Node(NodeFault::Invalid(what));
        let served = self.device(device)?;
        let control = served.emulation.as_ref().ok_or_else(|| {
            invalid(format!("device {device} was not started with emulation: start its node with --emulate"))
        })?;
        let spec: EmulationSpec = spec.parse().map_err(|error| invalid(format!("{error}")))?;
        control.redraw(spec);
        if spec.drive.is_some() {
            // A disk that was slowed is still the one whose speed was seen; this is another disk.
            served.lane.forget_speed();
        }
        served.note_full(false);
        Ok(NodeAnswer::Done)
    }

    async fn drop_caches(&self, device: DeviceId) -> Result<NodeAnswer, Fault> {
        let failed = |detail: String| Fault::Node(NodeFault::Medium { device, detail });
        let dir = self.device(device)?.dir.clone();
        let dropped = tokio::task::spawn_blocking(move || drop_caches(&dir)).await;
        match dropped {
            Ok(Ok(())) => Ok(NodeAnswer::Done),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Refuses older epochs, durably. Where that was done under a later one whoever asks counts on it as well, and that may have been served a
    /// moment ago.
    async fn fence(&self, device: &ServedDevice, class: LanePriority, op: Op) -> Result<NodeAnswer, Fault> {
        let failed = |error| Fault::Node(fault(device.id, error));
        let Err(refused) = operation(self, device, class, op).await.map_err(failed) else {
            return Ok(NodeAnswer::Done);
        };
        if matches!(refused, Fault::Node(NodeFault::StaleEpoch { .. })) {
            operation(self, device, class, Op::Barrier).await.map_err(failed)?;
        }
        Err(refused)
    }

    /// One operation of a lane, unless the asker goes away or its deadline passes first.
    async fn change(
        &self,
        device: DeviceId,
        opened: &Opened,
        stream: &mut Stream,
        class: LanePriority,
        op: Op,
    ) -> Result<OpOutput, Fault> {
        let served = self.device(device)?;
        let answer = async {
            let answer = operation(self, &served, class, op).await;
            answer.map_err(|error| Fault::Node(fault(device, error)))
        };
        unless_gone(opened, stream, answer).await
    }
}

/// The answer to a short request, unless the asker goes away or its deadline passes first: then what it waits for is withdrawn.
async fn unless_gone<T>(
    opened: &Opened,
    stream: &mut Stream,
    answer: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let deadline = opened.deadline.unwrap_or(Duration::MAX);
    // A short request has nothing more to say; whatever comes is not for it.
    let mut early = Vec::new();
    tokio::select! {
        answer = answer => answer,
        fault = gone(stream, &mut early) => Err(fault),
        () = tokio::time::sleep(deadline) => Err(Fault::DeadlinePassed),
    }
}

/// One operation of a lane; dropped, it is withdrawn if it has not begun.
pub(crate) async fn operation(
    service: &Service,
    device: &ServedDevice,
    class: LanePriority,
    op: Op,
) -> Result<OpOutput, OpError> {
    operations(service, device, class, [op]).await.pop().expect("one operation has one result")
}

/// Operations of a lane, all in its queue at once, and their results in their order; dropped, those that have not
/// begun are withdrawn.
pub(crate) async fn operations(
    service: &Service,
    device: &ServedDevice,
    class: LanePriority,
    ops: impl IntoIterator<Item = Op>,
) -> Vec<Result<OpOutput, OpError>> {
    struct Withdraw<'a>(&'a ServedDevice, u64);
    impl Drop for Withdraw<'_> {
        fn drop(&mut self) {
            self.0.lane.cancel(self.1);
        }
    }
    let lane_stream = service.lane_stream();
    let submitted: Vec<_> = ops
        .into_iter()
        .map(|op| {
            let (answer, answered) = oneshot::channel();
            // Nobody listens any more: the answer is not needed.
            let reply = Box::new(move |result| drop(answer.send(result)));
            device.lane.submit(lane_stream, class, op, reply);
            answered
        })
        .collect();
    let withdraw = Withdraw(device, lane_stream);
    let mut results = Vec::with_capacity(submitted.len());
    for answered in submitted {
        results.push(answered.await.unwrap_or(Err(OpError::Closed)));
    }
    std::mem::forget(withdraw);
    results
}

/// Whether a request reads or writes what objects consist of.
fn moves_data(request: &NodeRequest) -> bool {
    matches!(
        request,
        NodeRequest::Read { .. }
            | NodeRequest::Write(_)
            | NodeRequest::Ingest(_)
            | NodeRequest::Update { .. }
            | NodeRequest::ReadRows(_)
    )
}

/// Messages that an asker may send before its stream has begun, grants in a row as one: one end of a write, and a few.
const EARLY_MAX: usize = 16;

/// Returns when the asker cancelled or is gone, with the fault to answer with; what else it said by then is in `early`.
pub(crate) async fn gone(stream: &mut Stream, early: &mut Vec<Event>) -> Fault {
    loop {
        match stream.recv().await {
            Some(Event::Cancelled | Event::Lost(_)) | None => return Fault::Cancelled,
            Some(Event::Credit(more)) if let Some(Event::Credit(bytes)) = early.last_mut() => {
                // What one grant cannot say the connection has refused.
                *bytes = bytes.saturating_add(more);
            }
            Some(_) if early.len() == EARLY_MAX => {
                return Fault::Protocol(format!("more than {EARLY_MAX} messages before the stream began"));
            }
            Some(event) => early.push(event),
        }
    }
}

/// The queue's class for a request's.
pub(crate) fn lane_priority(priority: Priority) -> LanePriority {
    match priority {
        Priority::Control => LanePriority::Interactive,
        Priority::Foreground => LanePriority::Normal,
        Priority::Background => LanePriority::Background,
    }
}

/// The request of an OPEN, and the reservation that it is under.
fn request(body: &[u8]) -> Result<(NodeRequest, Option<ReservationId>), message::BodyError> {
    match message::decode(body)? {
        NodeRequest::UnderReservation { reservation, request } => match message::decode(&request)? {
            stream @ (NodeRequest::Read { .. } | NodeRequest::Write(_)) => Ok((stream, Some(reservation))),
            // Refused as what it is when it is served.
            _ => Ok((NodeRequest::UnderReservation { reservation, request }, None)),
        },
        plain => Ok((plain, None)),
    }
}

/// Ranges as they lie on the medium, as a set.
pub(crate) fn indices(ranges: &[std::ops::Range<u32>]) -> IndexRanges {
    let mut set = IndexRanges::new();
    ranges.iter().for_each(|range| set.insert_range(range.clone()));
    set
}
