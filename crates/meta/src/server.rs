//! The metadata server on the network: each stream of each connection is one request, answered by END or FAIL.
//!
//! A change that was taken is carried out even if its opener cancels or goes away: its outcome is kept under its id. A question is not:
//! it is dropped where it waits for its turn.

use crate::{MetaError, MetaOptions, Service, watch::Watched, writer::TICK};
use std::{future::Future, net::SocketAddr, sync::Arc};
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

/// Streams that one peer may have open: bounds the bodies held for it. A client has a few at a time.
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
            let service = Arc::clone(&service);
            move |connected| answer_streams(Arc::clone(&service), connected)
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

async fn answer_streams(service: Arc<Service>, connected: Connected) {
    let Connected { connection: _held, mut incoming, .. } = connected;
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            opened = incoming.next() => match opened {
                Some((opened, stream)) => {
                    streams.spawn(answer(Arc::clone(&service), opened, stream));
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
}

/// Returns once the opener wants no answer any more: it has given up by its deadline and asks again, and the question would be worked
/// beside its repeats.
async fn gone(stream: &mut Stream) {
    while !matches!(stream.recv().await, Some(Event::Cancelled | Event::Lost(_)) | None) {}
}

async fn answer(service: Arc<Service>, opened: Opened, mut stream: Stream) {
    let outcome = match decode::<MetaRequest>(&opened.body) {
        Ok(request) => tokio::select! {
            outcome = service.handle(request) => outcome.map_err(Fault::Meta),
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
