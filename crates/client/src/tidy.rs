//! What an access leaves to be done once it has answered, or its caller has dropped it: seals and deletions, told to the storage servers in
//! the background, and the end of what is not to be committed. All of it is hygiene: what is never told, leases and the sweep make good.

use crate::ClientError;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use steadfast_net::{CallError, ConnectError, Open, Pool};
use steadfast_protocol::{
    Epoch,
    message::{self, AccessTotals, MetaRequest, NodeAnswer, NodeRequest, Priority},
};
use tokio::{runtime::Handle, sync::oneshot, task::JoinSet, time::timeout};

/// How long a storage server may take over a short request before it counts as gone; picked by eye: a device in the
/// middle of a long request answers control requests from its server, not from its queue.
const NODE_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Requests of one access that a storage server is asked at a time: a large object has a thousand and more for each, which would keep others
/// out of the room that a server has for short requests, and could be more than a connection has streams for. Picked by eye: enough that its
/// devices flush many together.
const AT_A_TIME: usize = 32;

/// How often a busy client says what it did. A person who watches sees no difference.
const ACCOUNT_EVERY: Duration = Duration::from_secs(1);

/// A short request to the storage server at an address, under an epoch.
pub(crate) type Told = (String, NodeRequest, Epoch);

/// Requests under way that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Tidying {
    tasks: Mutex<JoinSet<()>>,
    accounts: Mutex<Accounts>,
    /// Accesses that are over and will be accounted for.
    accounting: Mutex<JoinSet<()>>,
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
    /// Sends these requests, to each server some at a time; failures are left to the sweep.
    pub(crate) fn tell(&self, pool: &Pool, requests: Vec<Told>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        for telling in telling(pool, requests) {
            tasks.spawn(telling);
        }
    }

    /// Has something else done that nobody waits for; not where no runtime is left to do it.
    pub(crate) fn later(&self, task: impl Future<Output = ()> + Send + 'static) {
        if Handle::try_current().is_err() {
            return;
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
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

    /// Has an access accounted for once all is known of it, which nobody waits for.
    pub(crate) fn account_later(&self, accounting: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.accounting.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(accounting);
    }

    /// Waits until what is over was accounted for, at most so long.
    pub(crate) async fn accounted(&self, within: Duration) {
        all_of(&self.accounting, within).await;
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
        all_of(&self.tasks, within).await;
    }
}

/// Sends requests as [`Tidying::tell`] does, and waits for all of them.
pub(crate) async fn tell(pool: &Pool, requests: Vec<Told>) {
    let mut tasks: JoinSet<()> = telling(pool, requests).collect();
    while tasks.join_next().await.is_some() {}
}

/// What sends requests, to each server some at a time.
fn telling(
    pool: &Pool,
    requests: Vec<Told>,
) -> impl Iterator<Item = impl Future<Output = ()> + Send + 'static> {
    let mut by_address: BTreeMap<String, Vec<(NodeRequest, Epoch)>> = BTreeMap::new();
    for (address, request, epoch) in requests {
        by_address.entry(address).or_default().push((request, epoch));
    }
    by_address.into_iter().map(move |(address, requests)| {
        let pool = pool.clone();
        some_at_a_time(requests.into_iter().map(move |(request, epoch)| {
            let (pool, address) = (pool.clone(), address.clone());
            async move {
                match call(&pool, &address, &request, epoch).await {
                    Ok(_) => true,
                    Err(error) => {
                        tracing::debug!(%address, %error, "left to the sweep");
                        matches!(error, Unasked::Call(CallError::Fault(_)))
                    }
                }
            }
        }))
    })
}

/// Waits for all of them, at most so long.
async fn all_of(tasks: &Mutex<JoinSet<()>>, within: Duration) {
    let tasks = std::mem::take(&mut *tasks.lock().unwrap_or_else(PoisonError::into_inner));
    let mut tasks = WaitedFor(tasks);
    let all = async { while tasks.0.join_next().await.is_some() {} };
    // Later or never all the same.
    let _ = timeout(within, all).await;
}

/// Requests that somebody waits for, and that go on for as long as the runtime does where that ends.
struct WaitedFor(JoinSet<()>);

impl Drop for WaitedFor {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

/// Makes requests to one server in their order, some at a time, each of which tells whether it was heard. Where a whole lot of them in a row
/// was not, the others are not made: each would take as long as a server may take to answer.
async fn some_at_a_time<F: Future<Output = bool> + Send + 'static>(requests: impl Iterator<Item = F>) {
    let (mut asking, mut unheard) = (JoinSet::new(), 0);
    for request in requests {
        if asking.len() >= AT_A_TIME {
            let heard = asking.join_next().await.is_some_and(|heard| heard.unwrap_or(false));
            unheard = if heard { 0 } else { unheard + 1 };
            if unheard >= AT_A_TIME {
                break;
            }
        }
        asking.spawn(request);
    }
    while asking.join_next().await.is_some() {}
}

/// Asks a storage server something short.
pub(crate) async fn ask(
    pool: &Pool,
    address: &str,
    request: &NodeRequest,
    epoch: Epoch,
) -> Result<NodeAnswer, ClientError> {
    let failed = |cause: String| ClientError::Node { address: address.to_owned(), cause };
    let body = call(pool, address, request, epoch).await.map_err(|error| failed(error.to_string()))?;
    message::decode(&body).map_err(|error| failed(error.to_string()))
}

/// Why a storage server gave no answer.
#[derive(Debug, thiserror::Error)]
enum Unasked {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(#[from] CallError),
}

async fn call(pool: &Pool, address: &str, request: &NodeRequest, epoch: Epoch) -> Result<Vec<u8>, Unasked> {
    let connection = pool.connection(address).await?;
    let open = Open {
        body: message::encode(request),
        priority: Priority::Control,
        epoch,
        deadline: Some(NODE_ANSWERS_WITHIN),
        credit: 0,
    };
    Ok(connection.call(open).await?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    /// So many requests that are `heard` or not: how many were made, and how many at a time.
    async fn made(requests: usize, heard: bool) -> (usize, usize) {
        let counts = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let counted = Arc::clone(&counts);
        some_at_a_time((0..requests).map(move |_| {
            let counts = Arc::clone(&counted);
            async move {
                let [made, now, most] = &*counts;
                made.fetch_add(1, Ordering::Relaxed);
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
                now.fetch_sub(1, Ordering::Relaxed);
                heard
            }
        }))
        .await;
        let [made, now, most] = &*counts;
        assert_eq!(now.load(Ordering::Relaxed), 0, "it waits for all");
        (made.load(Ordering::Relaxed), most.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_asked_some_at_a_time() {
        assert_eq!(made(3, true).await, (3, 3));
        assert_eq!(made(1000, true).await, (1000, AT_A_TIME));
        // One that hears none is left alone.
        let (few, _) = made(1000, false).await;
        assert!(few < 3 * AT_A_TIME, "{few}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_any_more_goes_on() {
        let tidying = Tidying::default();
        let (done, mut told) = oneshot::channel();
        tidying.tasks.lock().unwrap().spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            done.send(()).unwrap();
        });
        let waiting = tidying.settled(Duration::from_secs(60));
        assert!(timeout(Duration::from_secs(1), waiting).await.is_err());
        assert!(told.try_recv().is_err());
        told.await.unwrap();
    }
}
