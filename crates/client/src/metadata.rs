//! The client's side of the metadata server: every change is asked under one id until an answer comes. Whoever waits for that is told what
//! for.

use crate::ClientError;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};
use steadfast_net::{CallError, Lost, Open, Pool};
use steadfast_protocol::{
    Epoch, IntentId, RequestId, Time,
    message::{self, Change, Fault, MetaAnswer, MetaFault, MetaRequest, Priority, Query, Role},
    question::{ATTEMPT, Next, Question},
};
use tokio::time::Instant;

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
    away: Away,
}

impl Metadata {
    pub(crate) fn new(address: &str, pool: Pool, seed: u64, patience: Duration) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let client = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        let (count, answered, away) = Default::default();
        Self { address: address.to_owned(), pool, client, count, patience, answered, away }
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
                    self.is_back();
                    return Ok(answer);
                }
                Err(Attempt::Final(error)) => {
                    if !matches!(error, ClientError::NotMeta { .. }) {
                        self.is_back();
                    }
                    return Err(error);
                }
                Err(Attempt::Again(cause)) => (Cause::Lost(cause), None),
                Err(Attempt::Undone(fault)) => (Cause::Undone(fault), None),
                Err(Attempt::Refused(retry_after)) => {
                    (Cause::Lost("refused for now".to_owned()), Some(retry_after))
                }
            };
            let waited = start.elapsed();
            if self.away.failed(waited) {
                self.tell_away(&cause, waited);
            }
            let now = Time(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
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
                    // The error says so, and who asks again may have to be told again.
                    self.away.over();
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

    /// Whoever started a program would take its silence for a program that hangs.
    fn tell_away(&self, cause: &Cause, waited: Duration) {
        let (address, waited_s) = (&self.address, waited.as_secs());
        match cause {
            Cause::Lost(cause) => tracing::warn!(
                address,
                cause,
                waited_s,
                "the metadata server does not answer: it is waited for, and asked again until it does"
            ),
            Cause::Undone(fault) => tracing::warn!(
                address,
                cause = %fault,
                waited_s,
                "the metadata server cannot store a change: it is asked again until it can"
            ),
        }
    }

    fn is_back(&self) {
        if self.away.over() {
            tracing::warn!(address = self.address, "the metadata server answers again");
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

/// Whether it was told that the server is away: once for all that ask meanwhile.
#[derive(Debug, Default)]
struct Away(AtomicBool);

impl Away {
    /// An attempt has failed, so long after its question was asked for the first time. Whether that is to be told: what is over within the
    /// time of an attempt is nothing to worry about.
    fn failed(&self, waited: Duration) -> bool {
        waited >= ATTEMPT && !self.0.swap(true, Ordering::Relaxed)
    }

    /// Nothing is waited for any more. Whether it was told that something is.
    fn over(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use steadfast_net::Server;
    use steadfast_protocol::message::{Hello, VERSION};
    use tracing::field::{Field, Visit};

    /// What a person is warned of in here.
    #[derive(Clone, Default)]
    struct Warnings(Arc<Mutex<Vec<String>>>);

    impl Warnings {
        fn told(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }
    }

    struct Said(String);

    impl Visit for Said {
        fn record_debug(&mut self, field: &Field, value: &dyn core::fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
                && metadata.target() == module_path!().trim_end_matches("::tests")
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut said = Said(String::new());
            event.record(&mut said);
            self.0.lock().unwrap().push(said.0);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    fn hello(role: Role) -> Hello {
        Hello { version: VERSION, features: 0, role, cluster: None }
    }

    /// Commands that wait for it say nothing else meanwhile.
    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_metadata_server_that_is_away_is_told_so_once_and_when_it_is_back() {
        let warnings = Warnings::default();
        // With a single subscriber the thread that comes to a place first says whether any event of it counts: another test's has none.
        let _second = tracing::Dispatch::new(Warnings::default());
        let _first = tracing::subscriber::set_default(warnings.clone());
        let port = Server::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap().to_string();
        drop(port);
        let pool = Pool::new(hello(Role::Client), steadfast_net::Options::default());
        let metadata = Metadata::new(&address, pool, 1, Duration::from_secs(300));
        metadata.answered.store(true, Ordering::Relaxed);
        let none = MetaAnswer::Buckets(Vec::new());
        let asked = async { tokio::join!(metadata.ask(Query::Buckets), metadata.ask(Query::Buckets)) };
        let back = async {
            // Its time passes while nothing else is to be done.
            tokio::time::sleep(ATTEMPT - Duration::from_millis(100)).await;
            assert!(warnings.told().is_empty());
            tokio::time::sleep(Duration::from_secs(100)).await;
            let away = warnings.told();
            assert!(matches!(&away[..], [away] if away.contains("does not answer")), "{away:?}");
            tokio::time::resume();
            let server = Server::bind(&address).await.unwrap();
            let serving =
                server.serve(hello(Role::Meta), steadfast_net::Options::default(), |connected| async {
                    let mut incoming = connected.incoming;
                    while let Some((_, stream)) = incoming.next().await {
                        stream.end(message::encode(&MetaAnswer::Buckets(Vec::new()))).unwrap();
                    }
                });
            serving.await
        };
        tokio::select! {
            (one, other) = asked => assert_eq!((one.unwrap(), other.unwrap()), (none.clone(), none)),
            _ = back => panic!("it serves for ever"),
        }
        let told = warnings.told();
        assert!(matches!(&told[..], [_, back] if back.contains("answers again")), "{told:?}");
    }

    #[test]
    fn what_is_over_soon_is_not_told_and_another_time_is_told_again() {
        let away = Away::default();
        assert!(!away.failed(Duration::from_millis(50)) && !away.over());
        assert!(away.failed(ATTEMPT) && !away.failed(2 * ATTEMPT), "once for all that ask");
        assert!(away.over() && !away.over());
        assert!(away.failed(ATTEMPT));
    }
}
