//! The metadata server on the network: each stream of each connection is one request, answered by END or FAIL.
//!
//! A change that was taken is carried out even if its opener cancels or goes away: its outcome is kept under its id. A question is not:
//! it is dropped where it waits for its turn.

use crate::{MetaError, MetaOptions, Service, service::Came, watch::Watched, writer::TICK};
use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use steadfast_admin::Admin;
use steadfast_net::{Connected, Event, Opened, Options, Server, Stream};
use steadfast_protocol::{
    ClusterId,
    message::{Fault, Hello, MetaRequest, Role, VERSION, decode, encode},
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval},
};

/// Streams that one peer may have open. A client has a few at a time; the bytes of long requests are bounded for all of them together
/// ([`Service::hold`]).
const STREAMS_MAX: usize = 256;

/// A running metadata server. Dropping it stops the network at once; [`stop`](Self::stop) also waits for the store.
#[derive(Debug)]
pub struct Meta {
    address: SocketAddr,
    service: Arc<Service>,
    serving: JoinHandle<()>,
    ticking: JoinHandle<()>,
    admin: Option<Admin>,
}

impl Meta {
    /// Opens the store, listens and serves, on the current runtime (which needs its time and network drivers).
    ///
    /// # Errors
    /// When the store cannot be opened or the address cannot be listened on.
    pub async fn start(options: &MetaOptions) -> Result<Self, MetaError> {
        let cannot_listen = |error: std::io::Error| MetaError::Listen {
            address: options.listen.clone(),
            detail: error.to_string(),
        };
        // The store first: whoever finds the port open finds a server that answers.
        let service = {
            let options = options.clone();
            let opened = tokio::task::spawn_blocking(move || Service::open(&options)).await;
            Arc::new(opened.map_err(|_| MetaError::Stopping)??)
        };
        let server = Server::bind(&options.listen).await.map_err(cannot_listen)?;
        let address = server.local_addr().map_err(cannot_listen)?;
        let hello =
            Hello { version: VERSION, features: 0, role: Role::Meta, cluster: Some(service.cluster()) };
        let handler = {
            let (service, connections) = (Arc::clone(&service), AtomicU64::new(0));
            move |connected| {
                let connection = connections.fetch_add(1, Ordering::Relaxed);
                answer_streams(Arc::clone(&service), connected, connection)
            }
        };
        let net = Options { streams_max: STREAMS_MAX, ..options.net.clone() };
        let serving = tokio::spawn(server.serve(hello, net, handler));
        let ticking = tokio::spawn(tick(Arc::clone(&service)));
        let admin = match options.admin {
            Some(at) => {
                let admin = Admin::start(at, Arc::new(Watched(Arc::clone(&service)))).await;
                let admin = admin.map_err(|error| MetaError::Listen {
                    address: at.to_string(),
                    detail: error.to_string(),
                })?;
                let _first = service.admin.set(admin.address().to_string());
                Some(admin)
            }
            None => None,
        };
        tracing::info!(%address, cluster = %service.cluster(), "metadata server ready");
        Ok(Self { address, service, serving, ticking, admin })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its admin port listens, if it has one.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    /// The cluster it governs.
    pub fn cluster(&self) -> ClusterId {
        self.service.cluster()
    }

    /// Carries out every change that was taken, closes the connections and then the store. A disk that does not answer within a few
    /// seconds is left behind.
    pub async fn stop(mut self) {
        let serving = &mut self.serving;
        let leave = async {
            serving.abort();
            let _aborted = serving.await;
        };
        self.service.stop_then(leave).await;
    }
}

impl Drop for Meta {
    fn drop(&mut self) {
        self.serving.abort();
        self.ticking.abort();
    }
}

/// Runs a metadata server until `shutdown` completes. `ready` is told where it listens.
///
/// # Errors
/// As [`Meta::start`].
pub async fn run(
    options: &MetaOptions,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), MetaError> {
    let meta = Meta::start(options).await?;
    ready(meta.address());
    shutdown.await;
    meta.stop().await;
    Ok(())
}

async fn tick(service: Arc<Service>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        service.tick();
    }
}

async fn answer_streams(service: Arc<Service>, connected: Connected, connection: u64) {
    let Connected { connection: _held, mut incoming, peer } = connected;
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            opened = incoming.next() => match opened {
                Some((opened, stream)) => {
                    streams.spawn(answer(Arc::clone(&service), connection, opened, stream));
                }
                None => break,
            },
            Some(ended) = streams.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    tracing::error!(%error, "a request's handler panicked");
                }
            }
        }
    }
    if let Role::Node(node) = peer.role {
        service.disconnected(node, connection);
    }
}

/// Returns once the opener wants no answer any more: it has given up by its deadline and asks again, and the question would be worked
/// beside its repeats.
async fn gone(stream: &mut Stream) {
    while !matches!(stream.recv().await, Some(Event::Cancelled | Event::Lost(_)) | None) {}
}

async fn answer(service: Arc<Service>, connection: u64, mut opened: Opened, mut stream: Stream) {
    let held = match service.hold(opened.body.len()) {
        Ok(held) => held,
        Err(fault) => return stream.fail(&fault),
    };
    let came = Came { connection: Some(connection), held };
    // What it was encoded as is not needed beside what it says.
    let request = decode::<MetaRequest>(&std::mem::take(&mut opened.body));
    let outcome = match request {
        Ok(request) => tokio::select! {
            outcome = service.handle_from(request, came) => outcome.map_err(Fault::Meta),
            () = gone(&mut stream) => Err(Fault::Cancelled),
        },
        Err(error) => Err(Fault::Protocol(error.to_string())),
    };
    match outcome {
        Ok(answer) => {
            // Whoever is gone asks again; an answer too long for a frame has been refused to the opener as such.
            if let Err(lost) = stream.end(encode(&answer)) {
                tracing::debug!(%lost, "an answer was not taken");
            }
        }
        Err(fault) => stream.fail(&fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread, time::Duration};
    use steadfast_net::{CallError, Connection, Open, connect};
    use steadfast_protocol::{
        RequestId,
        message::{Change, MetaAnswer, MetaFault, RefusalReason},
    };

    /// Longer than any machine takes that is not stuck.
    const LONG: Duration = Duration::from_secs(60);

    async fn put(connection: Connection, count: u64, key_bytes: usize) -> Result<MetaAnswer, CallError> {
        let (bucket, key) = ("data".to_owned(), "k".repeat(key_bytes));
        let change = Change::BeginPut { bucket, key, segments: 1 };
        let body = encode(&MetaRequest::Change { id: RequestId { client: 5, count }, change });
        let open = Open { body, deadline: Some(LONG), ..Open::default() };
        connection.call(open).await.map(|(body, _)| decode(&body).expect("an answer"))
    }

    async fn eventually(what: &str, is_so: impl Fn() -> bool) {
        let so = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(LONG, so).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    /// As when the disk hangs, and many ask for much.
    #[tokio::test]
    async fn long_requests_have_so_much_memory_together_until_they_are_carried_out() {
        const LONGEST: usize = 4_000_000;
        let dir = tempfile::tempdir().expect("a directory");
        let meta = Meta::start(&MetaOptions::new(dir.path(), "127.0.0.1:0")).await.expect("it starts");
        let service = Arc::clone(&meta.service);
        let all = service.room();
        let ((begun, has_begun), (let_go, go_on)) = (mpsc::channel(), mpsc::channel::<()>());
        let store = Arc::clone(service.store());
        let hanging = thread::spawn(move || {
            store.write(|_| {
                begun.send(()).expect("somebody waits");
                // Whoever was to let it go on has failed, then.
                let _ = go_on.recv();
            })
        });
        has_begun.recv_timeout(LONG).expect("it begins");
        let hello = Hello { version: VERSION, features: 0, role: Role::Client, cluster: None };
        let address = meta.address().to_string();
        let connection = connect(&address, hello, &Options::default()).await.expect("it listens").connection;
        let put = |count, bytes| put(connection.clone(), count, bytes);
        let long: Vec<_> = (0..8).map(|count| tokio::spawn(put(count, LONGEST))).collect();
        eventually("eight are taken", || service.room() <= all - 8 * LONGEST).await;
        let refused =
            CallError::Fault(Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 100 });
        assert_eq!(put(8, LONGEST).await, Err(refused.clone()));
        // Others are taken.
        let short = tokio::spawn(put(9, 1000));
        // The changes wait for their turn though nobody waits for them any more.
        long.iter().for_each(|call| call.abort());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(put(10, LONGEST).await, Err(refused));
        let_go.send(()).expect("it hangs");
        assert!(hanging.join().expect("no panic").is_ok());
        assert_eq!(
            short.await.expect("no panic"),
            Err(CallError::Fault(Fault::Meta(MetaFault::NoBucket("data".to_owned()))))
        );
        eventually("they are carried out", || service.room() == all).await;
        let long = put(11, LONGEST).await;
        assert!(matches!(long, Err(CallError::Fault(Fault::Meta(MetaFault::BadName { .. })))), "taken");
        meta.stop().await;
    }
}
