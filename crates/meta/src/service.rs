//! A request in, its answer out, whatever it came by.

use crate::{
    MetaError, MetaOptions, Store,
    activity::{Activity, Name},
    clock::Clock,
    writer::{Held, TICK, Writer},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
    thread,
    time::{Duration, Instant},
};
use steadfast_protocol::{
    ClusterId, NodeId, Time,
    message::{
        Change, DeviceState, DrainPhase, Fault, Heartbeat, MetaAnswer, MetaFault, MetaRequest, Query,
        RefusalReason, Registry,
    },
    meta::{self, ClientReports, Liveness, Looked, Registered, View},
};
use tokio::{sync::Semaphore, task, time::timeout};

/// Reads that run at once; further ones wait. More than the disk's queue needs, few enough to keep memory small.
const READS_MAX: usize = 16;

/// Heartbeats that are looked at at once, beside reads: storage servers are heard however many clients ask, and some reads may hang on a
/// sick disk while what a heartbeat needs is in memory.
const HEARTBEATS_MAX: usize = 4;

/// Questions of sweeps that are looked at at once, beside reads: every device of a cluster asks about all that it holds, a thousand
/// records at a time, and no client is to wait for that.
const SWEEPS_MAX: usize = 2;

/// Looks through many records that run at once, beside reads: a listing or a drain goes through all that there are, a page at a time, and
/// nobody's lookup is to wait for many of those.
const SCANS_MAX: usize = 4;

/// Bytes of requests that are longer than most, all of which are held at a time: eight of the longest there may be, and each is some times as
/// long once it is understood. As storage servers have it.
const REQUESTS_BYTES_MAX: usize = 32 << 20;

/// A request up to this length is like any other: a commit of some hundred layouts, and all that storage servers ask for.
const REQUEST_BYTES_USUAL: usize = 128 << 10;

/// When who sends a longer one is to come again, where there is no room for it. Picked by eye: some commits' time.
const REQUEST_RETRY_MS: u32 = 100;

/// Who has not run, or has had no answer of its store, for so long could not hear storage servers: some of their signs of life, which come
/// once a second, are missing.
const STILL_AFTER: Duration = TICK.saturating_mul(2);

/// How long a stop waits for a disk that does not answer: what was taken and has no answer is asked again. Picked by eye: a commit on a
/// busy disk takes tens of milliseconds, and whoever tells a server to stop kills it soon after.
const STOPS_WITHIN: Duration = Duration::from_secs(3);

/// What is only remembered. No lock is held while the store is read: however slow its disk is, storage servers are heard
/// and clients' reports taken, but for that of a drain's end, beside which goes what is registered.
struct Memory {
    liveness: Arc<RwLock<Liveness>>,
    reports: Mutex<ClientReports>,
    /// What was registered when the store was read last, and as of which number ([`Store::registrations`]).
    registered: Mutex<Option<(u64, Arc<Registered>)>>,
    /// When the server last ticked.
    ticked: Mutex<Option<Time>>,
    /// The connection by which each storage server was heard last, while that is there.
    beats: Mutex<BTreeMap<NodeId, u64>>,
}

impl Memory {
    /// The server runs at `now`, at its tick or between two of them. Where it stood still (stopped, or its machine was), it is no node's
    /// silence that nobody was heard meanwhile.
    fn runs(&self, now: Time, ticks: bool) {
        let mut ticked = self.ticked.lock().unwrap_or_else(PoisonError::into_inner);
        let still = ticked.is_some_and(|ticked| self.held_up(ticked, now));
        if ticks || still {
            *ticked = Some(now);
        }
    }

    /// Nobody was heard from `since` until `now`; whether that is so long that nobody's silence counts.
    fn held_up(&self, since: Time, now: Time) -> bool {
        let still = now.since(since);
        if still > STILL_AFTER {
            tracing::warn!(?still, "no storage server could be heard: none counts as dead for a while");
            self.liveness.write().unwrap_or_else(PoisonError::into_inner).stood_still(now);
        }
        still > STILL_AFTER
    }

    fn ask(&self, view: &dyn View, now: Time, query: &Query) -> Result<MetaAnswer, MetaFault> {
        Ok(match meta::look(view, query)? {
            Looked::Answer(answer) => answer,
            Looked::Registered(registered) => self.report(now, &registered),
        })
    }

    fn report(&self, now: Time, registered: &Registered) -> MetaAnswer {
        // The first question after a standstill may come before the tick.
        self.runs(now, false);
        let reports = self.reports().clone();
        let liveness = self.liveness.read().unwrap_or_else(PoisonError::into_inner);
        registered.report(now, &liveness, &reports)
    }

    /// Reads what is registered, and keeps it as of this number.
    fn read_registered(&self, view: &dyn View, as_of: u64) -> Result<Arc<Registered>, MetaFault> {
        match meta::look(view, &Query::Registry)? {
            Looked::Registered(registered) => {
                let registered = Arc::new(registered);
                *self.registered() = Some((as_of, Arc::clone(&registered)));
                Ok(registered)
            }
            Looked::Answer(other) => unreachable!("a registry is what is registered, not {other:?}"),
        }
    }

    fn registered(&self) -> MutexGuard<'_, Option<(u64, Arc<Registered>)>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heartbeat(
        &self,
        view: &dyn View,
        now: Time,
        heartbeat: Heartbeat,
        by: Option<u64>,
    ) -> Result<MetaAnswer, MetaFault> {
        let vouched = meta::vouched(view, heartbeat)?;
        let registered = vouched.is_some();
        if let Some(heartbeat) = vouched {
            let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
            beats.extend(by.map(|by| (heartbeat.node, by)));
            self.liveness.write().unwrap_or_else(PoisonError::into_inner).heard(now, heartbeat);
        }
        Ok(MetaAnswer::Heard { registered })
    }

    /// A connection of a storage server is over. Where it was heard by it last, it has ended, as far as is known: the kernel closes what a
    /// process leaves, and one that lives is heard again at once by another.
    fn disconnected(&self, node: NodeId, by: u64) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        if beats.get(&node) == Some(&by) {
            beats.remove(&node);
            self.liveness.write().unwrap_or_else(PoisonError::into_inner).left(node);
        }
    }

    fn reports(&self) -> MutexGuard<'_, ClientReports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a request came.
#[derive(Debug, Default)]
pub(crate) struct Came {
    /// By which connection, if by any.
    pub(crate) connection: Option<u64>,
    pub(crate) held: Held,
}

/// The metadata server without its network.
pub struct Service {
    store: Arc<Store>,
    /// Absent only while this is dropped.
    writer: Option<Writer>,
    /// Absent once joined.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    memory: Arc<Memory>,
    clock: Clock,
    /// A read has its permit until it is over, also where nobody waits for it any more.
    reads: Arc<Semaphore>,
    heartbeats: Arc<Semaphore>,
    sweeps: Arc<Semaphore>,
    scans: Arc<Semaphore>,
    /// Bytes of long requests.
    requests: Arc<Semaphore>,
    pub(crate) activity: Activity,
    /// Where the admin port listens, once it does.
    pub(crate) admin: OnceLock<String>,
}

impl Service {
    /// Opens the store and starts the writer.
    ///
    /// # Errors
    /// When the store cannot be opened or the system refuses a thread.
    pub fn open(options: &MetaOptions) -> Result<Self, MetaError> {
        let store = Arc::new(Store::open(&options.dir, options.cache_bytes)?);
        if options.restored {
            store.skip_ahead()?;
        }
        let clock = Clock::start();
        let started = clock.now();
        let liveness = Arc::new(RwLock::new(Liveness::new(started, options.dead_after)));
        let (writer, thread) =
            Writer::start(Arc::clone(&store), options.terms(started), clock, Arc::clone(&liveness))?;
        let reads = Arc::new(Semaphore::new(READS_MAX));
        let heartbeats = Arc::new(Semaphore::new(HEARTBEATS_MAX));
        let sweeps = Arc::new(Semaphore::new(SWEEPS_MAX));
        let scans = Arc::new(Semaphore::new(SCANS_MAX));
        let requests = Arc::new(Semaphore::new(REQUESTS_BYTES_MAX));
        let (reports, registered, ticked, beats) = Default::default();
        let memory = Arc::new(Memory { liveness, reports, registered, ticked, beats });
        Ok(Self {
            store,
            writer: Some(writer),
            thread: Mutex::new(Some(thread)),
            memory,
            clock,
            reads,
            heartbeats,
            sweeps,
            scans,
            requests,
            activity: Activity::default(),
            admin: OnceLock::new(),
        })
    }

    /// The cluster served.
    pub fn cluster(&self) -> ClusterId {
        self.store.cluster()
    }

    /// Answers one request. A change is durable before its answer.
    ///
    /// # Errors
    /// What stands against the request.
    pub async fn handle(&self, request: MetaRequest) -> Result<MetaAnswer, MetaFault> {
        self.handle_from(request, Came::default()).await
    }

    /// The same for one that came so.
    pub(crate) async fn handle_from(
        &self,
        request: MetaRequest,
        came: Came,
    ) -> Result<MetaAnswer, MetaFault> {
        let (name, since) = (Name::of(&request), Instant::now());
        let mut outcome = self.carry_out(request, came).await;
        if let Ok(MetaAnswer::Registry(registry)) = &mut outcome {
            registry.admin = self.admin.get().cloned();
        }
        self.activity.answered(name, &outcome, since.elapsed());
        outcome
    }

    /// The part of the memory for long requests that one of so many bytes has until it is answered: before it is understood, for it takes
    /// some times as much then.
    ///
    /// # Errors
    /// A refusal while others have it all.
    pub(crate) fn hold(&self, body_bytes: usize) -> Result<Held, Fault> {
        let long = u32::try_from(body_bytes).ok().filter(|_| body_bytes > REQUEST_BYTES_USUAL);
        let full = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: REQUEST_RETRY_MS };
        let held = long.map(|bytes| Arc::clone(&self.requests).try_acquire_many_owned(bytes));
        held.transpose().map_err(|_| full)
    }

    /// Bytes of long requests for which there is room.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.requests.available_permits()
    }

    /// A connection of a storage server is over.
    pub(crate) fn disconnected(&self, node: NodeId, connection: u64) {
        self.memory.disconnected(node, connection);
    }

    async fn carry_out(&self, request: MetaRequest, came: Came) -> Result<MetaAnswer, MetaFault> {
        let Came { connection, held } = came;
        match request {
            MetaRequest::Change { id, change } => {
                if meta::needs_liveness(&change) {
                    self.memory.runs(self.clock.now(), false);
                }
                let writer = self.writer.as_ref().expect("there until the service is dropped");
                let (active, served) = match &change {
                    Change::SetDeviceState { device, state: DeviceState::Active, .. } => {
                        (Some(*device), Vec::new())
                    }
                    Change::RegisterNode(record) => (None, record.devices.clone()),
                    _ => (None, Vec::new()),
                };
                let outcome = writer.change_held(id, change, held).await;
                if outcome.is_ok() {
                    let mut reports = self.memory.reports();
                    active.into_iter().for_each(|device| reports.takes_data(device));
                    reports.are_back(&served);
                }
                outcome
            }
            MetaRequest::Ask(Query::Registry) => {
                let registered = self.registered().await?;
                Ok(self.memory.report(self.clock.now(), &registered))
            }
            MetaRequest::Ask(query) => {
                let permits = match query {
                    Query::SegmentStates { .. } => &self.sweeps,
                    Query::List { .. }
                    | Query::ObjectsOn { .. }
                    | Query::Holdings { .. }
                    | Query::Degraded { .. } => &self.scans,
                    _ => &self.reads,
                };
                let ask = move |view: &dyn View, now, memory: &Memory| {
                    let _until_answered = &held;
                    memory.ask(view, now, &query)
                };
                self.read(permits, ask).await
            }
            MetaRequest::Heartbeat(heartbeat) => {
                let clock = self.clock;
                let heard = move |view: &dyn View, came, memory: &Memory| {
                    let heard = memory.heartbeat(view, came, heartbeat.clone(), connection);
                    // Where the store hung no other was heard, either.
                    memory.held_up(came, clock.now());
                    heard
                };
                self.read(&self.heartbeats, heard).await
            }
            MetaRequest::Account(accesses) => {
                self.memory.reports().account(&accesses);
                Ok(MetaAnswer::Done)
            }
            MetaRequest::Drain(progress) => {
                // What commits on its devices from now on it has not moved.
                let over = progress.phase == DrainPhase::Over;
                let registered = if over { self.registered().await.ok() } else { None };
                let standings = registered.as_ref().map_or(&[][..], |registered| registered.standings());
                self.memory.reports().drain(self.clock.now(), progress, standings)
            }
        }
    }

    /// What is registered: as it was read last, until that changes, for every access of every client asks for it.
    async fn registered(&self) -> Result<Arc<Registered>, MetaFault> {
        // Had before the snapshot is taken: what changes in between has what is kept out of date at once.
        let as_of = self.store.registrations();
        let kept = self.memory.registered().as_ref().filter(|(of, _)| *of == as_of).cloned();
        match kept {
            Some((_, registered)) => Ok(registered),
            None => self.read(&self.reads, move |view, _, memory| memory.read_registered(view, as_of)).await,
        }
    }

    /// The registry, from a snapshot.
    pub(crate) async fn registry(&self) -> Result<Registry, MetaFault> {
        match self.carry_out(MetaRequest::Ask(Query::Registry), Came::default()).await? {
            MetaAnswer::Registry(registry) => Ok(registry),
            other => unreachable!("a registry is answered by a registry, not {other:?}"),
        }
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Gives up puts whose lease ended, forgets old answers and sees whether the server stood still; to be called about once a second.
    pub fn tick(&self) {
        self.memory.runs(self.clock.now(), true);
        if let Some(writer) = &self.writer {
            writer.expire();
        }
    }

    /// Carries out every change that was taken, then closes the store: another server may have it. Requests that come
    /// later are refused. A disk that does not answer within a few seconds is left behind.
    pub async fn stop(&self) {
        self.stop_then(async {}).await;
    }

    /// The same; `leave` comes between the two: the store that is closed is asked nothing any more.
    pub(crate) async fn stop_then(&self, leave: impl Future<Output = ()>) {
        let stopping = async {
            if let Some(writer) = &self.writer {
                writer.stop().await;
            }
            let thread = self.take_thread();
            let joined = task::spawn_blocking(move || join(thread)).await;
            leave.await;
            let store = Arc::clone(&self.store);
            joined.and(task::spawn_blocking(move || store.close()).await)
        };
        match timeout(STOPS_WITHIN, stopping).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the metadata store was not closed"),
            Err(_) => {
                // Nobody is to wait for it any more.
                drop(self.take_thread());
                tracing::warn!("the disk of the metadata store does not answer: left behind");
            }
        }
    }

    fn take_thread(&self) -> Option<thread::JoinHandle<()>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reads a snapshot off the async threads, with one of so many permits.
    async fn read<R: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        body: impl Fn(&dyn View, Time, &Memory) -> Result<R, MetaFault> + Send + 'static,
    ) -> Result<R, MetaFault> {
        let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
        let (store, memory, now) = (Arc::clone(&self.store), Arc::clone(&self.memory), self.clock.now());
        let read = task::spawn_blocking(move || {
            let outcome = store.read(|view| body(view, now, &memory));
            drop(permit);
            outcome
        });
        match read.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(MetaFault::Store(format!("a read was cut short: {error}"))),
        }
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("cluster", &self.cluster()).finish_non_exhaustive()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The writer ends once nobody can send to it.
        self.writer = None;
        join(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn join(thread: Option<thread::JoinHandle<()>>) {
    if let Some(thread) = thread
        && thread.join().is_err()
    {
        tracing::error!("the metadata writer ended by a panic");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use steadfast_protocol::{
        DeviceId, NodeId, RequestId, SegmentId,
        message::{AccessTotals, DrainProgress, NodeRecord},
        meta::ViewError,
    };

    /// Longer than any machine takes that is not stuck.
    const LONG: Duration = Duration::from_secs(60);

    fn service(dir: &std::path::Path) -> Service {
        Service::open(&MetaOptions::new(dir, "127.0.0.1:0")).expect("an empty directory")
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(future)
    }

    /// A store whose disk does not answer until somebody lets it.
    struct Stuck {
        asked: mpsc::Sender<()>,
        go_on: mpsc::Receiver<()>,
    }

    impl View for Stuck {
        fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, ViewError> {
            self.asked.send(()).expect("somebody waits");
            // Whoever was to let it go on has failed, then.
            let _ = self.go_on.recv();
            Err(ViewError::Failed("it was stuck".to_owned()))
        }

        fn scan(&self, from: &[u8], _: &[u8], _: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, ViewError> {
            self.get(from).map(|_| Vec::new())
        }
    }

    #[test]
    fn no_lock_is_held_while_the_store_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = Arc::new(service(dir.path()));
        type Read = fn(&Memory, &dyn View) -> Result<MetaAnswer, MetaFault>;
        let reads: [Read; 2] = [
            |memory, view| memory.ask(view, Time(0), &Query::Registry),
            |memory, view| {
                let (node, devices, activity) = (NodeId(1), Vec::new(), Default::default());
                memory.heartbeat(view, Time(0), Heartbeat { node, devices, activity }, None)
            },
        ];
        for read in reads {
            let ((asked, is_asked), (let_go, go_on)) = (mpsc::channel(), mpsc::channel());
            let memory = Arc::clone(&service.memory);
            let reading = thread::spawn(move || read(&memory, &Stuck { asked, go_on }));
            is_asked.recv_timeout(LONG).expect("the store is read");
            let (done, is_done) = mpsc::channel();
            let service = Arc::clone(&service);
            let telling = thread::spawn(move || {
                let progress = DrainProgress { devices: vec![DeviceId(1)], ..DrainProgress::default() };
                let told = block_on(async {
                    [
                        service.handle(MetaRequest::Account(AccessTotals::default())).await,
                        service.handle(MetaRequest::Drain(progress)).await,
                    ]
                });
                let heard = service.memory.liveness.try_write().is_ok();
                done.send((told, heard)).expect("somebody waits");
            });
            let told = is_done.recv_timeout(LONG);
            let_go.send(()).expect("the read waits");
            assert_eq!(told, Ok(([Ok(MetaAnswer::Done), Ok(MetaAnswer::Done)], true)));
            telling.join().expect("it has told");
            assert!(matches!(reading.join().expect("it ends"), Err(MetaFault::Store(_))));
        }
    }

    #[test]
    fn storage_servers_are_heard_while_every_read_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = service(dir.path());
        block_on(async {
            let _hanging = service.reads.acquire_many(READS_MAX as u32).await.expect("all are free");
            let heartbeat = Heartbeat { node: NodeId(1), devices: Vec::new(), activity: Default::default() };
            let heard = timeout(LONG, service.handle(MetaRequest::Heartbeat(heartbeat))).await;
            assert_eq!(heard, Ok(Ok(MetaAnswer::Heard { registered: false })));
        });
    }

    #[test]
    fn sweeps_and_clients_do_not_wait_for_each_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = service(dir.path());
        let states = || Query::SegmentStates { segments: vec![SegmentId(1)], device: DeviceId(1) };
        block_on(async {
            let ask = async |query| timeout(LONG, service.handle(MetaRequest::Ask(query))).await;
            let clients = service.reads.acquire_many(READS_MAX as u32).await.expect("all are free");
            assert!(matches!(ask(states()).await, Ok(Ok(MetaAnswer::SegmentStates(_)))));
            drop(clients);
            let _sweeps = service.sweeps.acquire_many(SWEEPS_MAX as u32).await.expect("all are free");
            assert!(matches!(ask(Query::Buckets).await, Ok(Ok(MetaAnswer::Buckets(_)))));
        });
    }

    #[test]
    fn lookups_do_not_wait_for_listings_and_looks_of_drains() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = service(dir.path());
        block_on(async {
            let ask = async |query| timeout(LONG, service.handle(MetaRequest::Ask(query))).await;
            let scans = service.scans.acquire_many(SCANS_MAX as u32).await.expect("all are free");
            assert!(matches!(ask(Query::Buckets).await, Ok(Ok(MetaAnswer::Buckets(_)))));
            drop(scans);
            let _lookups = service.reads.acquire_many(READS_MAX as u32).await.expect("all are free");
            let (bucket, prefix) = ("data".to_owned(), String::new());
            let list = Query::List { bucket, prefix, after: None, limit: 1 };
            let objects_on = Query::ObjectsOn { devices: vec![DeviceId(1)], after: None, limit: 1 };
            let degraded = Query::Degraded { after: None, limit: 1 };
            for look in [list, objects_on, degraded, Query::Holdings { after: None }] {
                // There is no such bucket, and nothing in it.
                assert!(matches!(ask(look).await, Ok(Ok(_) | Err(MetaFault::NoBucket(_)))));
            }
        });
    }

    #[test]
    fn no_question_after_a_standstill_finds_nodes_dead_that_nobody_could_hear() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = service(dir.path());
        let (address, site) = ("127.0.0.1:1".to_owned(), String::new());
        let record =
            NodeRecord { node: NodeId(1), cluster: None, address, site, devices: vec![(DeviceId(1), 9)] };
        let (id, change) = (RequestId { client: 1, count: 1 }, Change::RegisterNode(record));
        let registered = block_on(async {
            assert_eq!(service.handle(MetaRequest::Change { id, change }).await, Ok(MetaAnswer::Done));
            service.registered().await.expect("it is read")
        });
        let memory = &service.memory;
        let is_alive = |now| match memory.report(now, &registered) {
            MetaAnswer::Registry(registry) => registry.nodes[0].alive,
            other => panic!("{other:?}"),
        };
        let later = |seconds: u64| service.clock.now() + Duration::from_secs(seconds);
        let (ticked, on) = (later(0), later(20));
        memory.runs(ticked, true);
        assert!(is_alive(on));
        // It is silent from here on.
        for second in 1..=5 {
            memory.runs(on + Duration::from_secs(second), true);
        }
        assert!(!is_alive(on + Duration::from_secs(5)));
        // A store that hangs lets no sign of life through.
        assert!(memory.held_up(on, on + Duration::from_secs(6)) && is_alive(on + Duration::from_secs(6)));
    }

    /// A process that was killed leaves no connection; one that is copied has its own.
    #[test]
    fn a_server_whose_connection_has_ended_may_be_elsewhere_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = service(dir.path());
        let mut count = 0;
        let mut register = |port: u16| {
            count += 1;
            let (address, site) = (format!("127.0.0.1:{port}"), String::new());
            let devices = vec![(DeviceId(1), 9)];
            let record = NodeRecord { node: NodeId(1), cluster: None, address, site, devices };
            let (id, change) = (RequestId { client: 1, count }, Change::RegisterNode(record));
            block_on(service.handle(MetaRequest::Change { id, change }))
        };
        let beat = |connection| {
            let heartbeat = Heartbeat { node: NodeId(1), devices: Vec::new(), activity: Default::default() };
            let came = Came { connection: Some(connection), held: None };
            let heard = block_on(service.handle_from(MetaRequest::Heartbeat(heartbeat), came));
            assert_eq!(heard, Ok(MetaAnswer::Heard { registered: true }));
        };
        assert_eq!(register(1), Ok(MetaAnswer::Done));
        beat(7);
        service.disconnected(NodeId(1), 7);
        assert_eq!(register(2), Ok(MetaAnswer::Done));
        // That of another, or one by which it is heard no more, says nothing.
        beat(8);
        beat(9);
        let known = || service.memory.liveness.read().expect("no panic").clone();
        let as_heard = known();
        service.disconnected(NodeId(1), 8);
        service.disconnected(NodeId(2), 9);
        assert_eq!(known(), as_heard);
        service.disconnected(NodeId(1), 9);
        assert_ne!(known(), as_heard);
        assert!(service.memory.beats.lock().expect("no panic").is_empty());
        assert_eq!(register(3), Ok(MetaAnswer::Done));
    }

    #[test]
    fn a_stop_does_not_wait_for_a_disk_that_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = service(dir.path());
        let store = Arc::clone(&service.store);
        let ((begun, has_begun), (let_go, go_on)) = (mpsc::channel(), mpsc::channel::<()>());
        let hanging = thread::spawn(move || {
            store.write(|_| {
                begun.send(()).expect("somebody waits");
                // Whoever was to let it go on has failed, then.
                let _ = go_on.recv();
            })
        });
        has_begun.recv_timeout(LONG).expect("it begins");
        let stopped = block_on(async {
            let stopped = timeout(LONG, service.stop()).await;
            let_go.send(()).expect("it hangs");
            stopped
        });
        assert!(stopped.is_ok(), "it waits");
        assert!(hanging.join().expect("it ends").is_ok());
    }

    #[test]
    fn the_registry_is_read_from_the_store_no_more_often_than_it_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = service(dir.path());
        block_on(async {
            let nodes = async || match service.registry().await {
                Ok(registry) => registry.nodes.len(),
                other => panic!("{other:?}"),
            };
            assert_eq!(nodes().await, 0);
            let hanging = service.reads.acquire_many(READS_MAX as u32).await.expect("all are free");
            assert_eq!(timeout(LONG, nodes()).await, Ok(0));
            drop(hanging);
            let (address, site) = ("127.0.0.1:1".to_owned(), String::new());
            let record =
                NodeRecord { node: NodeId(1), cluster: None, address, site, devices: vec![(DeviceId(1), 9)] };
            let (id, change) = (RequestId { client: 1, count: 1 }, Change::RegisterNode(record));
            let registered = service.handle(MetaRequest::Change { id, change }).await;
            assert_eq!((registered, nodes().await), (Ok(MetaAnswer::Done), 1));
        });
    }

    #[test]
    fn a_read_that_nobody_waits_for_any_more_has_its_permit_until_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let service = Arc::new(service(dir.path()));
        block_on(async {
            let ((begun, has_begun), (let_go, go_on)) = (mpsc::channel(), mpsc::channel());
            let reading = {
                let service = Arc::clone(&service);
                task::spawn(async move {
                    let body = move |_: &dyn View, _, _: &Memory| {
                        begun.send(()).expect("somebody waits");
                        let _ = go_on.recv();
                        Ok(MetaAnswer::Done)
                    };
                    service.read(&service.reads, body).await
                })
            };
            let begins = task::spawn_blocking(move || has_begun.recv_timeout(LONG));
            begins.await.expect("no panic").expect("the read begins");
            reading.abort();
            assert!(reading.await.expect_err("its connection is closed").is_cancelled());
            assert_eq!(service.reads.available_permits(), READS_MAX - 1);
            let_go.send(()).expect("the read goes on");
            let all = timeout(LONG, service.reads.acquire_many(READS_MAX as u32)).await;
            assert!(all.is_ok(), "the permit comes back");
        });
    }
}
