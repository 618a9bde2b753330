//! The one writer: a thread that takes every waiting change into one durable commit and then answers them all.
//!
//! While a commit flushes, further changes queue up; they are the next batch. So one client waits for one commit and
//! sixty-four wait for one or two. Each change runs in a transaction of its own: a refused one leaves nothing in the
//! batch but its answer.
//!
//! Leases are given up after the changes of a batch. Where changes waited for long or were refused, because the store stalled or failed,
//! or the server was stopped for a while, renewals may have been, too: as after a restart, nothing ends for a whole lease from then on.

use crate::{MetaError, Store, clock::Clock, store::Batch};
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
    meta::{self, Liveness, Moved, Terms},
    policy::Domain,
};
use tokio::sync::{mpsc, oneshot};

/// The most changes in one commit.
const BATCH_MAX: usize = 512;
/// How often ended leases and old answers are looked for: a put is given up this much late at most, and there is a batch so often.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Changes that may wait before senders do.
const QUEUE_MAX: usize = 1024;

/// What came of a change.
pub type Outcome = Result<MetaAnswer, MetaFault>;

/// Work for the writer.
#[derive(Debug)]
enum Job {
    Change { arrived: Time, id: RequestId, change: Change, answer: oneshot::Sender<Outcome> },
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
        let stopping = || MetaFault::Store("the server is stopping".to_owned());
        let (answer, outcome) = oneshot::channel();
        let job = Job::Change { arrived: self.clock.now(), id, change, answer };
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
            self.commit(jobs);
            if stop {
                return;
            }
        }
    }

    /// One batch: durable, then answered.
    fn commit(&mut self, jobs: Vec<Job>) {
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
        self.behind = behind;
        match outcomes {
            Ok(outcomes) => {
                for (job, carried_out) in jobs.into_iter().zip(outcomes) {
                    if let (Job::Change { answer, change, .. }, Some((outcome, moved))) = (job, carried_out) {
                        if let Change::RegisterNode(record) = change {
                            tell_moved(&record, moved);
                        }
                        // A client that went away asks again under the same id, or does not care.
                        let _gone = answer.send(outcome);
                    }
                }
            }
            Err(error) => {
                self.terms.failed(self.clock.now());
                tracing::debug!(%error, changes = jobs.len(), "a batch of changes failed");
                for job in jobs {
                    if let Job::Change { answer, .. } = job {
                        let _gone = answer.send(Err(MetaFault::Store(error.to_string())));
                    }
                }
            }
        }
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
            (Job::Change { arrived: begun + Duration::from_millis(after_ms), id, change, answer }, outcome)
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
}
