//! A request in, its answer out, whatever it came by.

use crate::{
    MetaError, MetaOptions, Store,
    activity::{Activity, Name},
    clock::Clock,
    writer::Writer,
};
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
    thread,
    time::Instant,
};
use steadfast_protocol::{
    ClusterId,
    message::{MetaAnswer, MetaFault, MetaRequest, Query, Registry},
    meta::{self, Liveness, View},
};
use tokio::{sync::Semaphore, task};

/// Reads that run at once; further ones wait. More than the disk's queue needs, few enough to keep memory small.
const READS_MAX: usize = 16;

/// The metadata server without its network.
pub struct Service {
    store: Arc<Store>,
    /// Absent only while this is dropped.
    writer: Option<Writer>,
    /// Absent once joined.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    liveness: Arc<RwLock<Liveness>>,
    clock: Clock,
    reads: Semaphore,
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
        let clock = Clock::start();
        let liveness = Arc::new(RwLock::new(Liveness::new(clock.now(), options.dead_after)));
        let (writer, thread) =
            Writer::start(Arc::clone(&store), options.terms(), clock, Arc::clone(&liveness))?;
        let reads = Semaphore::new(READS_MAX);
        Ok(Self {
            store,
            writer: Some(writer),
            thread: Mutex::new(Some(thread)),
            liveness,
            clock,
            reads,
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
        let (name, since) = (Name::of(&request), Instant::now());
        let mut outcome = self.carry_out(request).await;
        if let Ok(MetaAnswer::Registry(registry)) = &mut outcome {
            registry.admin = self.admin.get().cloned();
        }
        self.activity.answered(name, &outcome, since.elapsed());
        outcome
    }

    async fn carry_out(&self, request: MetaRequest) -> Result<MetaAnswer, MetaFault> {
        match request {
            MetaRequest::Change { id, change } => {
                let writer = self.writer.as_ref().expect("there until the service is dropped");
                writer.change(id, change).await
            }
            MetaRequest::Ask(query) => {
                self.read(move |view, now, liveness| {
                    let liveness = liveness.read().unwrap_or_else(PoisonError::into_inner);
                    meta::ask(view, now, &liveness, &query)
                })
                .await
            }
            MetaRequest::Heartbeat(heartbeat) => {
                self.read(move |view, now, liveness| {
                    let mut liveness = liveness.write().unwrap_or_else(PoisonError::into_inner);
                    meta::heartbeat(view, now, &mut liveness, heartbeat)
                })
                .await
            }
            MetaRequest::Account(accesses) => {
                self.liveness.write().unwrap_or_else(PoisonError::into_inner).account(&accesses);
                Ok(MetaAnswer::Done)
            }
            MetaRequest::Drain(progress) => {
                let mut liveness = self.liveness.write().unwrap_or_else(PoisonError::into_inner);
                liveness.drain(self.clock.now(), progress)
            }
        }
    }

    /// The registry, from a snapshot.
    pub(crate) async fn registry(&self) -> Result<Registry, MetaFault> {
        match self.carry_out(MetaRequest::Ask(Query::Registry)).await? {
            MetaAnswer::Registry(registry) => Ok(registry),
            other => unreachable!("a registry is answered by a registry, not {other:?}"),
        }
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Gives up puts whose lease ended and forgets old answers; to be called about once a second.
    pub fn tick(&self) {
        if let Some(writer) = &self.writer {
            writer.expire();
        }
    }

    /// Carries out every change that was taken, then closes the store: another server may have it. Requests that come
    /// later are refused.
    pub async fn stop(&self) {
        if let Some(writer) = &self.writer {
            writer.stop().await;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let store = Arc::clone(&self.store);
        let closed = task::spawn_blocking(move || {
            join(thread);
            store.close();
        });
        if let Err(error) = closed.await {
            tracing::error!(%error, "the metadata store was not closed");
        }
    }

    /// Reads a snapshot off the async threads.
    async fn read(
        &self,
        body: impl FnOnce(&dyn View, steadfast_protocol::Time, &RwLock<Liveness>) -> Result<MetaAnswer, MetaFault>
        + Send
        + 'static,
    ) -> Result<MetaAnswer, MetaFault> {
        let permit = self.reads.acquire().await.expect("the semaphore is never closed");
        let (store, liveness, now) = (Arc::clone(&self.store), Arc::clone(&self.liveness), self.clock.now());
        let read = task::spawn_blocking(move || store.read(|view| body(view, now, &liveness)));
        let outcome = read.await;
        drop(permit);
        match outcome {
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
