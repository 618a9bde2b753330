//! The one writer: a thread that takes every waiting change into one durable commit and then answers them all.
//!
//! While a commit flushes, further changes queue up; they are the next batch. So one client waits for one commit and
//! sixty-four wait for one or two. Each change runs in a transaction of its own: a refused one leaves nothing in the
//! batch but its answer. Where a batch meets what the disk cannot read, each of its changes is made again by itself: only those fail
//! that need it.
//!
//! Leases are given up after the changes of a batch. Where changes waited for long or were refused, because the store stalled or failed,
//! or the server was stopped for a while, renewals may have been, too: as after a restart, nothing ends for a whole lease from then on.

use crate::{
    MetaError, Store,
    clock::Clock,
    store::{Batch, WriteError},
};
use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use steadfast_protocol::{
    RequestId, Time,
    message::{Change, MetaAnswer, MetaFault, NodeRecord},
    meta::{self, Liveness, Moved, Terms, ViewError},
    policy::Domain,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// The most changes in one commit.
const BATCH_MAX: usize = 512;
/// How often ended leases and old answers are looked for: a put is given up this much late at most, and there is a batch so often.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Changes that may wait before senders do.
const QUEUE_MAX: usize = 1024;
/// How long the writer rests after the store took no changes. Whoever was refused asks again at once, and the database is opened anew after
/// each attempt, for which all readers wait. Picked by eye: ten attempts a second, beside which there is time for many reads.
const RESTS: Duration = Duration::from_millis(100);

/// What came of a change.
pub type Outcome = Result<MetaAnswer, MetaFault>;

/// The part that a long request has of the memory for such; none for a usual one. Given back once nothing has the request any more.
pub(crate) type Held = Option<OwnedSemaphorePermit>;

/// Work for the writer.
#[derive(Debug)]
enum Job {
    Change { arrived: Time, id: RequestId, change: Change, held: Held, answer: oneshot::Sender<Outcome> },
    Expire,
    Stop,
}

/// The sending end of the writer's queue. The writer ends when it is told to or the last sending end is dropped, once
/// it has carried out what was queued before.
#[derive(Clone, Debug)]
pub struct Writer {
    jobs: mpsc::Sender<Job>,
    /// Whether the next batch is to give up what is due.
    due: Arc<AtomicBool>,
    clock: Clock,
}

impl Writer {
    /// Starts the writer's thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(
        store: Arc<Store>,
        terms: Terms,
        clock: Clock,
        liveness: Arc<RwLock<Liveness>>,
    ) -> Result<(Self, thread::JoinHandle<()>), MetaError> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let nobody = Liveness::new(terms.started, Duration::ZERO);
        let due = Arc::new(AtomicBool::new(false));
        let work = Work { store, terms, clock, liveness, nobody, due: Arc::clone(&due), behind: false };
        let started = thread::Builder::new().name("meta-writer".to_owned()).spawn(move || work.run(queue));
        let thread = started.map_err(|source: io::Error| MetaError::Io {
            what: "start the writer thread of",
            path: PathBuf::from("the metadata server"),
            source,
        })?;
        Ok((Self { jobs, due, clock }, thread))
    }

    /// Carries out a change; returns once it is durable.
    ///
    /// # Errors
    /// What stands against it. After [`MetaFault::Store`] its outcome is unknown: ask again under the same id.
    pub async fn change(&self, id: RequestId, change: Change) -> Outcome {
        self.change_held(id, change, None).await
    }

    /// The same for a change that may be a long one: the memory is held until it is carried out, whether its sender waits for that or not.
    pub(crate) async fn change_held(&self, id: RequestId, change: Change, held: Held) -> Outcome {
        let stopping = || MetaFault::Store("the server is stopping".to_owned());
        let (answer, outcome) = oneshot::channel();
        let job = Job::Change { arrived: self.clock.now(), id, change, held, answer };
        self.jobs.send(job).await.map_err(|_| stopping())?;
        outcome.await.map_err(|_| stopping())?
    }

    /// Gives up what is due, with the next batch.
    pub fn expire(&self) {
        self.due.store(true, Ordering::Relaxed);
        // Where the queue is full there is a next batch.
        let _full_or_stopping = self.jobs.try_send(Job::Expire);
    }

    /// Tells the writer to end after what is queued; later changes are refused.
    pub async fn stop(&self) {
        let _stopped_before = self.jobs.send(Job::Stop).await;
    }
}

/// What came of a change, and what devices it brought to others.
type CarriedOut = (Outcome, Vec<Moved>);

struct Work {
    store: Arc<Store>,
    terms: Terms,
    clock: Clock,
    liveness: Arc<RwLock<Liveness>>,
    /// For changes that do not look at who lives: the lock is not held while the store is read.
    nobody: Liveness,
    due: Arc<AtomicBool>,
    /// Whether the last step of expiry left something: each batch then carries another step, so that expiry keeps up
    /// with any load and holds no batch up for long.
    behind: bool,
}

impl Work {
    fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        while let Some(first) = queue.blocking_recv() {
            let mut jobs = vec![first];
            while jobs.len() < BATCH_MAX
                && !matches!(jobs.last(), Some(Job::Stop))
                && let Ok(job) = queue.try_recv()
            {
                jobs.push(job);
            }
            let stop = matches!(jobs.last(), Some(Job::Stop));
            let taken = self.commit(jobs);
            if stop {
                return;
            }
            if !taken {
                thread::sleep(RESTS);
            }
        }
    }

    /// One batch: durable, then answered. Whether the store takes changes.
    fn commit(&mut self, jobs: Vec<Job>) -> bool {
        let now = self.clock.now();
        let waited = |job: &Job| match job {
            Job::Change { arrived, .. } => now.since(*arrived),
            Job::Expire | Job::Stop => Duration::ZERO,
        };
        let waited = jobs.iter().map(waited).max().unwrap_or_default();
        if self.terms.held_up(now, waited, TICK) {
            tracing::warn!(?waited, "changes were held up: no lease ends for a while");
        }
        let expire = self.due.swap(false, Ordering::Relaxed) || self.behind;
        let mut behind = false;
        let outcomes = self.store.write(|batch| {
            let outcomes =
                jobs.iter().map(|job| self.carry_out(batch, now, job)).collect::<Vec<Option<CarriedOut>>>();
            behind = expire && self.expire(batch, now);
            outcomes
        });
        self.behind = behind && outcomes.is_ok();
        let changes = jobs.iter().filter(|job| matches!(job, Job::Change { .. })).count();
        match outcomes {
            Ok(outcomes) => {
                jobs.into_iter().zip(outcomes).for_each(|(job, carried_out)| answer(job, Ok(carried_out)));
                true
            }
            Err(WriteError::Unread(error)) if changes > 1 || expire => {
                tracing::debug!(%error, changes, "a batch of changes met what cannot be read: each by itself");
                self.commit_each(jobs)
            }
            Err(error) => {
                self.terms.failed(self.clock.now());
                tracing::debug!(%error, changes, "a batch of changes failed");
                let unread = matches!(error, WriteError::Unread(_));
                let error = ViewError::from(error);
                jobs.into_iter().for_each(|job| answer(job, Err(&error)));
                unread
            }
        }
    }

    /// Each change of a batch in a commit of its own, until the store takes none: what a batch costs then is not to be paid for each. Whether
    /// it takes changes.
    fn commit_each(&mut self, jobs: Vec<Job>) -> bool {
        let mut unwritten = None;
        for job in jobs.into_iter().filter(|job| matches!(job, Job::Change { .. })) {
            let carried_out = match unwritten.clone() {
                Some(error) => Err(WriteError::Unwritten(error)),
                None => {
                    let now = self.clock.now();
                    self.store.write(|batch| self.carry_out(batch, now, &job))
                }
            };
            match carried_out {
                Ok(carried_out) => answer(job, Ok(carried_out)),
                Err(error) => {
                    self.terms.failed(self.clock.now());
                    if let WriteError::Unwritten(error) = &error {
                        unwritten = Some(error.clone());
                    }
                    answer(job, Err(&error.into()));
                }
            }
        }
        unwritten.is_none()
    }

    fn carry_out(&self, batch: &mut Batch<'_>, now: Time, job: &Job) -> Option<CarriedOut> {
        match job {
            Job::Expire | Job::Stop => None,
            Job::Change { id, change, .. } => {
                let heard = meta::needs_liveness(change)
                    .then(|| self.liveness.read().unwrap_or_else(PoisonError::into_inner).clone());
                let liveness = heard.as_ref().unwrap_or(&self.nobody);
                let (outcome, mut moved) = batch.transact(|txn| {
                    // Before the change, after which they are where they are.
                    let moved = match change {
                        Change::RegisterNode(record) => meta::moved(txn, record).unwrap_or_default(),
                        _ => Vec::new(),
                    };
                    (meta::change(txn, now, &self.terms, liveness, *id, change), moved)
                });
                match (change, &outcome) {
                    (Change::RegisterNode(record), Ok(_)) => {
                        // At once, not after the commit: another node of this batch may claim its devices.
                        self.liveness
                            .write()
                            .unwrap_or_else(PoisonError::into_inner)
                            .registered(now, record.node);
                    }
                    _ => moved.clear(),
                }
                Some((outcome, moved))
            }
        }
    }

    /// One step of expiry; whether more is due.
    fn expire(&self, batch: &mut Batch<'_>, now: Time) -> bool {
        let step = batch.transact(|txn| {
            let step = meta::expire(txn, now, &self.terms);
            if step.is_err() {
                txn.clear();
            }
            step
        });
        match step {
            Ok(step) => step.more,
            Err(error) => {
                tracing::error!(%error, "leases could not be looked through");
                false
            }
        }
    }
}

/// Answers a change, carried out or met by a failure of the store.
fn answer(job: Job, carried_out: Result<Option<CarriedOut>, &ViewError>) {
    let Job::Change { answer, change, held, .. } = job else { return };
    let outcome = match carried_out {
        Ok(Some((outcome, moved))) => {
            if let Change::RegisterNode(record) = change {
                tell_moved(&record, moved);
            }
            outcome
        }
        Ok(None) => return,
        Err(error) => Err(MetaFault::Store(error.to_string())),
    };
    // A client that went away asks again under the same id, or does not care.
    let _gone = answer.send(outcome);
    drop(held);
}

/// Tells whoever runs the cluster, who alone can mend it.
fn tell_moved(record: &NodeRecord, moved: Vec<Moved>) {
    for Moved { domain, devices } in moved {
        let devices = devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let (server, to) = (&record.address, if domain == Domain::Site { "site" } else { "server" });
        tracing::warn!(
            %server,
            to,
            %devices,
            "devices came to a server or site that has others: what was stored apart may be lost together now; `steadfast device \
             drain` of them spreads it anew, and with `--cancel` they take data again afterwards"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::{NodeId, policy::Policy};

    /// The store did nothing for longer than a lease; what renews it had come in time.
    #[test]
    fn a_store_that_stalls_ends_no_lease_whose_renewal_waits() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Duration::from_millis(200);
        let terms = Terms { lease, started: Time(0), ..Terms::default() };
        let (clock, liveness) =
            (Clock::start(), Arc::new(RwLock::new(Liveness::new(Time(0), Duration::from_secs(60)))));
        let store = Arc::new(Store::open(dir.path(), 1 << 20).unwrap());
        let nobody = Liveness::new(terms.started, Duration::ZERO);
        let due = Arc::default();
        let mut work = Work { store, terms, clock, liveness, nobody, due, behind: false };
        let (begun, mut count) = (clock.now(), 0);
        let mut job = |after_ms: u64, change: Change| {
            count += 1;
            let (answer, outcome) = oneshot::channel();
            let id = RequestId { client: 7, count };
            let arrived = begun + Duration::from_millis(after_ms);
            (Job::Change { arrived, id, change, held: None, answer }, outcome)
        };
        let device = (steadfast_protocol::DeviceId(1), 1 << 30);
        let (address, site) = ("127.0.0.1:1".to_owned(), "here".to_owned());
        let record = NodeRecord { node: NodeId(1), cluster: None, address, site, devices: vec![device] };
        let policy: Policy = "stripe".parse().unwrap();
        let (register, _) = job(0, Change::RegisterNode(record));
        let (create, created) = job(0, Change::CreateBucket { bucket: "data".into(), policy });
        let (begin, mut outcome) =
            job(0, Change::BeginPut { bucket: "data".into(), key: "k".into(), segments: 1 });
        work.commit(vec![register, create, begin]);
        assert!(created.blocking_recv().unwrap().is_ok());
        let Ok(MetaAnswer::Begun(put)) = outcome.try_recv().unwrap() else { panic!("it began") };
        thread::sleep(lease + Duration::from_millis(50));
        let intent = put.intent;
        let (renew, mut renewed) = job(150, Change::Renew { intent });
        work.commit(vec![Job::Expire, renew]);
        assert_eq!(renewed.try_recv().unwrap(), Ok(MetaAnswer::Done));
        // Nobody renews it any more.
        thread::sleep(2 * lease);
        work.commit(vec![Job::Expire]);
        let since = clock.now().since(begun).as_millis() as u64;
        let (late, mut refused) = job(since, Change::Renew { intent });
        work.commit(vec![late]);
        assert_eq!(refused.try_recv().unwrap(), Err(MetaFault::IntentOver(intent)));
    }

    /// Readers wait each time that it is opened anew.
    #[test]
    fn a_store_that_takes_no_changes_is_not_tried_all_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path(), 1 << 20).unwrap());
        let liveness = Arc::new(RwLock::new(Liveness::new(Time(0), Duration::from_secs(60))));
        let started = Writer::start(Arc::clone(&store), Terms::default(), Clock::start(), liveness);
        let (writer, _thread) = started.unwrap();
        // Its file is gone, and it has to be opened again.
        let (file, away) = (dir.path().join("meta.redb"), dir.path().join("away"));
        std::fs::rename(&file, &away).unwrap();
        let broken = store.write(|_| panic!("as redb does on a page that it cannot read"));
        assert!(matches!(broken, Err::<(), _>(WriteError::Unread(_))));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let change = |count| {
            let create = Change::Create { bucket: "data".into(), key: "k".into() };
            runtime.block_on(writer.change(RequestId { client: 1, count }, create))
        };
        let began = std::time::Instant::now();
        for count in 0..5 {
            let refused = change(count);
            assert!(matches!(refused, Err(MetaFault::Store(_))), "{refused:?}");
        }
        assert!(began.elapsed() >= 4 * RESTS, "{:?}", began.elapsed());
        std::fs::rename(&away, &file).unwrap();
        assert_eq!(change(5), Err(MetaFault::NoBucket("data".into())), "it is back");
        drop(writer);
    }
}
