//! The lease of a put or an amendment, kept alive while it is made, and with it what else goes stale meanwhile.

use crate::{Client, ClientError, reserve::Reserved};
use core::convert::Infallible;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use steadfast_protocol::{IntentId, message::MetaFault};

/// Whether the version of a put or an amendment was asked for: without an answer it may be there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Committing(Arc<AtomicBool>);

impl Committing {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The lease and the reservations of a put or an amendment, and its sight of the cluster.
pub(crate) struct Lease<'a> {
    pub(crate) client: &'a Client,
    pub(crate) intent: IntentId,
    pub(crate) lease_ms: u32,
    pub(crate) reserved: Arc<Reserved>,
    pub(crate) committing: Committing,
}

impl Lease<'_> {
    /// Keeps all of them for as long as `work` takes.
    ///
    /// # Errors
    /// As `work`; that the lease is over, as soon as that is known, where `work` did not ask for its commit before.
    pub(crate) async fn during<T, E: From<ClientError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let alongside = async {
            tokio::select! {
                never = self.reserved.renewing() => never,
                never = self.client.following() => never,
            }
        };
        unless_lost(work, self.renewed(), alongside, &self.committing).await
    }

    /// Renews the lease. Ends when it is lost: nothing can be committed under it any more.
    async fn renewed(&self) -> ClientError {
        let intent = self.intent;
        let lease = Duration::from_millis(self.lease_ms.into());
        let mut pause = lease / 3;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.client.metadata.renew(intent).await {
                Err(lost @ ClientError::Refused(MetaFault::IntentOver(_))) => return lost,
                // It has taken its time already: the lease runs.
                Err(error) => {
                    tracing::debug!(%error, "the lease was not renewed");
                    lease / 30
                }
                Ok(_) => lease / 3,
            };
        }
    }
}

async fn unless_lost<T, E: From<ClientError>>(
    work: impl Future<Output = Result<T, E>>,
    renewed: impl Future<Output = ClientError>,
    alongside: impl Future<Output = Infallible>,
    committing: &Committing,
) -> Result<T, E> {
    tokio::pin!(work);
    let lost = tokio::select! {
        done = &mut work => return done,
        lost = renewed => lost,
        never = alongside => match never {},
    };
    // A commit that was asked for ends the lease, too: its own answer says how.
    if committing.has_begun() { work.await } else { Err(lost.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::{pending, ready};

    fn lost() -> ClientError {
        ClientError::Refused(MetaFault::IntentOver(IntentId(1)))
    }

    #[tokio::test]
    async fn a_lost_lease_ends_what_was_not_to_be_committed_yet() {
        let committing = Committing::default();
        let working = pending::<Result<(), ClientError>>();
        let ended = unless_lost(working, ready(lost()), pending(), &committing).await;
        assert!(matches!(ended, Err(ClientError::Refused(MetaFault::IntentOver(_)))), "{ended:?}");
    }

    #[tokio::test]
    async fn the_commit_says_how_it_ended() {
        let committing = Committing::default();
        let asked = committing.clone();
        let working = async {
            asked.begin();
            tokio::task::yield_now().await;
            Ok::<_, ClientError>(7)
        };
        // Not lost before the work has begun.
        let renewed = async {
            while !committing.has_begun() {
                tokio::task::yield_now().await;
            }
            lost()
        };
        assert_eq!(unless_lost(working, renewed, pending(), &committing).await.unwrap(), 7);
    }
}
