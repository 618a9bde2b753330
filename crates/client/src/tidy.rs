//! What an access leaves to be done once it has answered: seals and deletions, told to the storage servers in the
//! background. All of it is hygiene: what is never told, the sweep makes good.

use crate::ClientError;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use steadfast_net::{Open, Pool};
use steadfast_protocol::{
    Epoch,
    message::{self, NodeAnswer, NodeRequest, Priority},
};
use tokio::task::JoinSet;

/// How long a storage server may take over a short request before it counts as gone; picked by eye: a device in the
/// middle of a long request answers control requests from its server, not from its queue.
const NODE_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// A short request to the storage server at an address, under an epoch.
pub(crate) type Told = (String, NodeRequest, Epoch);

/// Requests under way that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Tidying {
    tasks: Mutex<JoinSet<()>>,
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

    /// Waits for what was told before, at most so long.
    pub(crate) async fn settled(&self, within: Duration) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(within, all).await.is_err() {
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
