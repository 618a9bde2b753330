//! One shared connection for each address, made when first needed and again when lost.
//!
//! Callers that come while an attempt runs share it. It goes on when they give up, and ends with the pool: also accesses that
//! have no time to wait for a machine that is gone find that it is. After a failed attempt the address is left alone for a while
//! (200 ms, doubling to 2 s) and callers get that failure at once: a dead node neither costs each request a
//! time-out nor sees a storm of connects when it comes back.

use crate::{ConnectError, Connection, Lost, Options, connect};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use steadfast_protocol::message::Hello;
use tokio::{
    sync::{Mutex as AsyncMutex, oneshot},
    task::JoinSet,
    time::Instant,
};

/// The first pause after a failure. 200 ms: shorter than a person notices, longer than a burst of requests.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// The longest pause. 2 s: a node that is back is found about as fast as a person can look.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Connections by address; clones share them. The peers cannot open streams on them.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ours: Hello,
    options: Options,
    slots: Mutex<BTreeMap<String, Arc<AsyncMutex<Slot>>>>,
    attempts: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Fresh,
    Open(Connection),
    Failed {
        error: ConnectError,
        pause: Duration,
        at: Instant,
        until: Instant,
    },
}

impl Pool {
    /// An empty pool; every connection says `ours` and has `options`.
    pub fn new(ours: Hello, options: Options) -> Self {
        let (slots, attempts) = Default::default();
        Self { inner: Arc::new(Inner { ours, options, slots, attempts }) }
    }

    /// The connection to `address` (`host:port`), made if there is none that lives.
    ///
    /// # Errors
    /// When it cannot be made, or could not a moment ago.
    pub async fn connection(&self, address: &str) -> Result<Connection, ConnectError> {
        self.connected(address, true).await
    }

    /// The same by a new attempt where there is no connection that lives, however short ago one failed: for who has been told
    /// that, and cannot do without. One that fails while others wait for theirs is theirs as well.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn connection_after_all(&self, address: &str) -> Result<Connection, ConnectError> {
        self.connected(address, false).await
    }

    async fn connected(&self, address: &str, heeds_pause: bool) -> Result<Connection, ConnectError> {
        let (slot, asked) = (self.slot(address), Instant::now());
        // The attempt holds the lock; whoever waits for it then finds its outcome.
        let mut slot = slot.lock_owned().await;
        let pause = match &*slot {
            Slot::Open(connection) if connection.lost().is_none() => return Ok(connection.clone()),
            Slot::Failed { error, at, until, .. }
                if *at >= asked || heeds_pause && Instant::now() < *until =>
            {
                return Err(error.clone());
            }
            Slot::Failed { pause, .. } => (*pause * 2).min(PAUSE_MAX),
            Slot::Fresh | Slot::Open(_) => PAUSE_MIN,
        };
        let (tell, told) = oneshot::channel();
        let (address, ours, options) =
            (address.to_owned(), self.inner.ours.clone(), self.inner.options.clone());
        self.attempt(async move {
            let outcome = connect(&address, ours, &options).await.map(|connected| connected.connection);
            *slot = match outcome.clone() {
                Ok(connection) => Slot::Open(connection),
                Err(error) => {
                    let at = Instant::now();
                    Slot::Failed { error, pause, at, until: at + pause }
                }
            };
            // Whoever asked may have given up.
            let _ = tell.send(outcome);
        });
        told.await.unwrap_or(Err(ConnectError::Lost(Lost::ClosedHere)))
    }

    fn attempt(&self, attempt: impl Future<Output = ()> + Send + 'static) {
        let mut attempts = self.inner.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        while attempts.try_join_next().is_some() {}
        attempts.spawn(attempt);
    }

    /// The way to `address` and back ([`Connection::way`]), where there is a connection: none is made.
    pub fn way(&self, address: &str) -> Option<Duration> {
        let slot = self.slots().get(address).cloned()?;
        match &*slot.try_lock().ok()? {
            Slot::Open(connection) => connection.way(),
            Slot::Fresh | Slot::Failed { .. } => None,
        }
    }

    /// Forgets the connection to `address`; streams on it go on.
    pub fn forget(&self, address: &str) {
        self.slots().remove(address);
    }

    fn slot(&self, address: &str) -> Arc<AsyncMutex<Slot>> {
        let mut slots = self.slots();
        match slots.get(address) {
            Some(slot) => slot.clone(),
            None => slots.entry(address.to_owned()).or_default().clone(),
        }
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<AsyncMutex<Slot>>>> {
        self.inner.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
