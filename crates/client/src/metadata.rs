//! The client's side of the metadata server: every change is asked under one id until an answer comes.

use crate::ClientError;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use steadfast_net::{CallError, Lost, Open, Pool};
use steadfast_protocol::{
    Epoch, IntentId, RequestId, Time,
    message::{self, Change, Fault, MetaAnswer, MetaFault, MetaRequest, Priority, Query, Role},
    question::{ATTEMPT, Next, Question},
};

/// A handle to the metadata server.
#[derive(Debug)]
pub(crate) struct Metadata {
    address: String,
    pool: Pool,
    client: u128,
    count: AtomicU64,
    /// How long its client waits for a server that has answered before.
    patience: Duration,
    answered: AtomicBool,
}

impl Metadata {
    pub(crate) fn new(address: &str, pool: Pool, seed: u64, patience: Duration) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let client = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        let (count, answered) = Default::default();
        Self { address: address.to_owned(), pool, client, count, patience, answered }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The way to the server and back, after an answer that took `asked`: as long at most, and less where it was connected anew or is
    /// busy.
    pub(crate) fn way(&self, asked: Duration) -> Duration {
        self.pool.way(&self.address).map_or(asked, |way| way.min(asked))
    }

    /// Makes a change, exactly once however often the answer is lost.
    pub(crate) async fn change(&self, change: Change) -> Result<MetaAnswer, ClientError> {
        self.change_by(self.question(), change).await
    }

    /// The same for an intent whose lease takes so long: a server that is away for less has it live when it is back, and all that was
    /// stored under it is worth waiting for.
    pub(crate) async fn change_under(
        &self,
        lease_ms: u32,
        change: Change,
    ) -> Result<MetaAnswer, ClientError> {
        let span = self.patience.max(Duration::from_millis(lease_ms.into()));
        self.change_by(Question::lasting(Time(0), span), change).await
    }

    /// Renews an intent's lease, or soon says that nobody answered: an answer that is kept under an old id renews nothing.
    pub(crate) async fn renew(&self, intent: IntentId) -> Result<MetaAnswer, ClientError> {
        self.change_by(Question::new(Time(0)), Change::Renew { intent }).await
    }

    /// Asks a question.
    pub(crate) async fn ask(&self, query: Query) -> Result<MetaAnswer, ClientError> {
        self.request(&MetaRequest::Ask(query), false, self.question()).await
    }

    /// Asked for as long as the client has patience; not where no server may ever have been.
    fn question(&self) -> Question {
        match self.answered.load(Ordering::Relaxed) {
            true => Question::lasting(Time(0), self.patience),
            false => Question::new(Time(0)),
        }
    }

    async fn change_by(&self, question: Question, change: Change) -> Result<MetaAnswer, ClientError> {
        let id = RequestId { client: self.client, count: self.count.fetch_add(1, Ordering::Relaxed) };
        self.request(&MetaRequest::Change { id, change }, true, question).await
    }

    async fn request(
        &self,
        request: &MetaRequest,
        changes: bool,
        question: Question,
    ) -> Result<MetaAnswer, ClientError> {
        let body = message::encode(request);
        let start = Instant::now();
        // Whether a server may have taken the request: its answer, not its work, may be what was lost.
        let mut sent = false;
        // Since when all attempts were answered.
        let mut undone_since = None;
        loop {
            let (cause, refused) = match self.attempt(body.clone(), changes, &mut sent).await {
                Ok(answer) => {
                    self.answered.store(true, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Again(cause)) => (Cause::Lost(cause), None),
                Err(Attempt::Undone(fault)) => (Cause::Undone(fault), None),
                Err(Attempt::Refused(retry_after)) => {
                    (Cause::Lost("refused for now".to_owned()), Some(retry_after))
                }
            };
            let now = Time(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let next = match cause {
                Cause::Undone(_) => question.undone(now, *undone_since.get_or_insert(now)),
                Cause::Lost(_) => {
                    undone_since = None;
                    question.failed(now, refused)
                }
            };
            match next {
                Next::Again(pause) => tokio::time::sleep(pause).await,
                Next::GiveUp(waited) => {
                    let address = self.address.clone();
                    return Err(match cause {
                        Cause::Undone(fault) => ClientError::Refused(fault),
                        Cause::Lost(_) if changes && sent => ClientError::Unknown { address, waited },
                        Cause::Lost(cause) => ClientError::Unreachable { address, cause },
                    });
                }
            }
        }
    }

    async fn attempt(&self, body: Vec<u8>, changes: bool, sent: &mut bool) -> Result<MetaAnswer, Attempt> {
        let connection =
            self.pool.connection(&self.address).await.map_err(|error| Attempt::Again(error.to_string()))?;
        if connection.peer() != Role::Meta {
            // The next attempt looks anew, should a metadata server listen there by then.
            self.pool.forget(&self.address);
            return Err(if changes && *sent {
                // What was asked before may have been done.
                Attempt::Again("a storage server answers there".to_owned())
            } else {
                Attempt::Final(ClientError::NotMeta { address: self.address.clone() })
            });
        }
        *sent = true;
        let open =
            Open { body, priority: Priority::Control, epoch: Epoch(0), deadline: Some(ATTEMPT), credit: 0 };
        match connection.call(open).await {
            Ok((body, _)) => message::decode(&body)
                .map_err(|error| Attempt::Final(ClientError::Protocol(error.to_string()))),
            Err(CallError::Fault(Fault::Refused { retry_after_ms, .. })) => {
                Err(Attempt::Refused(Duration::from_millis(retry_after_ms.into())))
            }
            // Its store may have it, or not: the same id tells.
            Err(CallError::Fault(Fault::Meta(fault @ MetaFault::Store(_)))) if changes => {
                Err(Attempt::Undone(fault))
            }
            Err(CallError::Fault(fault)) => Err(Attempt::Final(fault.into())),
            Err(CallError::Lost(Lost::TooLong { body_bytes, .. })) => {
                Err(Attempt::Final(ClientError::TooLarge { bytes: body_bytes }))
            }
            Err(error) => Err(Attempt::Again(error.to_string())),
        }
    }
}

/// Why the last attempt had no answer that counts.
enum Cause {
    Lost(String),
    Undone(MetaFault),
}

/// How an attempt failed.
enum Attempt {
    Final(ClientError),
    Again(String),
    /// The server could not carry it out, or could not tell that it did.
    Undone(MetaFault),
    Refused(Duration),
}
