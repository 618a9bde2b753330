//! What an access leaves to be done once it has answered: seals and deletions, told to the storage servers in the
//! background. All of it is hygiene: what is never told, the sweep makes good.

use crate::ClientError;
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use steadfast_net::{Open, Pool};
use steadfast_protocol::{
    Epoch,
    message::{self, AccessTotals, MetaRequest, NodeAnswer, NodeRequest, Priority},
};
use tokio::{sync::oneshot, task::JoinSet, time::timeout};

/// How long a storage server may take over a short request before it counts as gone; picked by eye: a device in the
/// middle of a long request answers control requests from its server, not from its queue.
const NODE_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// How often a busy client says what it did. A person who watches sees no difference.
const ACCOUNT_EVERY: Duration = Duration::from_secs(1);

/// A short request to the storage server at an address, under an epoch.
pub(crate) type Told = (String, NodeRequest, Epoch);

/// Requests under way that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Tidying {
    tasks: Mutex<JoinSet<()>>,
    accounts: Mutex<Accounts>,
    /// Ends with what the metadata server was told last.
    told: Mutex<Option<oneshot::Receiver<()>>>,
}

/// What accesses did and the metadata server was not told yet.
#[derive(Debug, Default)]
struct Accounts {
    untold: AccessTotals,
    told_at: Option<Instant>,
}

impl Tidying {
    /// Sends these requests; failures are left to the sweep.
    pub(crate) fn tell(&self, pool: &Pool, requests: Vec<Told>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        for (address, request, epoch) in requests {
            let pool = pool.clone();
            tasks.spawn(async move {
                if let Err(error) = ask(&pool, &address, &request, epoch).await {
                    tracing::debug!(%error, "left to the sweep");
                }
            });
        }
    }

    /// Adds what an access did; tells the metadata server at once or with those of the next moment. A report that is
    /// lost is not sent again: it is for whoever watches.
    pub(crate) fn account(&self, pool: &Pool, metadata: &str, done: &AccessTotals) {
        let untold = {
            let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
            accounts.untold.add(done);
            if accounts.told_at.is_some_and(|at| at.elapsed() < ACCOUNT_EVERY) {
                return;
            }
            accounts.told_at = Some(Instant::now());
            std::mem::take(&mut accounts.untold)
        };
        self.tell_metadata(pool, metadata, &MetaRequest::Account(untold));
    }

    /// Tells the metadata server what it was not told yet.
    pub(crate) fn close_accounts(&self, pool: &Pool, metadata: &str) {
        let untold = {
            let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut accounts.untold)
        };
        if untold != AccessTotals::default() {
            self.tell_metadata(pool, metadata, &MetaRequest::Account(untold));
        }
    }

    /// Tells the metadata server something for whoever watches, after what it was told before; what is lost is not sent
    /// again.
    pub(crate) fn tell_metadata(&self, pool: &Pool, metadata: &str, told: &MetaRequest) {
        let (pool, metadata, body) = (pool.clone(), metadata.to_owned(), message::encode(told));
        let (ends, ended) = oneshot::channel();
        let before = self.told.lock().unwrap_or_else(PoisonError::into_inner).replace(ended);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            // Dropped at the end, whatever that is.
            let _ends: oneshot::Sender<()> = ends;
            if let Some(before) = before {
                let _ = timeout(NODE_ANSWERS_WITHIN, before).await;
            }
            let Ok(connection) = pool.connection(&metadata).await else { return };
            let deadline = Some(NODE_ANSWERS_WITHIN);
            let open = Open { body, priority: Priority::Background, deadline, ..Open::default() };
            if let Err(error) = connection.call(open).await {
                tracing::debug!(%error, "what was told was not taken");
            }
        });
    }

    /// Waits for what was told before, at most so long.
    pub(crate) async fn settled(&self, within: Duration) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(within, all).await.is_err() {
            // They go on for as long as the runtime does.
            tasks.detach_all();
        }
    }
}

/// Asks a storage server something short.
pub(crate) async fn ask(
    pool: &Pool,
    address: &str,
    request: &NodeRequest,
    epoch: Epoch,
) -> Result<NodeAnswer, ClientError> {
    let failed = |cause: String| ClientError::Node { address: address.to_owned(), cause };
    let connection = pool.connection(address).await.map_err(|error| failed(error.to_string()))?;
    let open = Open {
        body: message::encode(request),
        priority: Priority::Control,
        epoch,
        deadline: Some(NODE_ANSWERS_WITHIN),
        credit: 0,
    };
    let (body, _) = connection.call(open).await.map_err(|error| failed(error.to_string()))?;
    message::decode(&body).map_err(|error| failed(error.to_string()))
}
