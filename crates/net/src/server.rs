//! The accept loop: each connection in its own task, so that what one peer does stays with it.

use crate::{Connected, Options, accept};
use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};
use steadfast_protocol::message::Hello;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// The most connections at once, greeted or not; more are closed as they come. 1024: the usual limit of open
/// files leaves no room for more.
const CONNECTIONS_MAX: usize = 1024;
/// How long to rest when the system cannot accept (out of files or memory). 50 ms: long enough not to spin.
const REST: Duration = Duration::from_millis(50);

/// A listening socket.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    connections_max: usize,
}

impl Server {
    /// Listens on `address` (`host:port`; port 0 lets the system choose).
    ///
    /// # Errors
    /// The operating system's.
    pub async fn bind(address: &str) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await?, connections_max: CONNECTIONS_MAX })
    }

    /// The same with another limit on connections at once.
    pub fn connections_max(self, connections_max: usize) -> Self {
        Self { connections_max, ..self }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The operating system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts, greets and hands each connection to `handler`, for ever. Dropping the future drops the handlers'.
    pub async fn serve<F, Handled>(self, ours: Hello, options: Options, handler: F)
    where
        F: Fn(Connected) -> Handled + Send + Sync + 'static,
        Handled: Future<Output = ()> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let mut connections = JoinSet::new();
        // Each is told once, until an accept went well.
        let (mut full, mut failing) = (false, false);
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((_, from)) if connections.len() >= self.connections_max => {
                        if !std::mem::replace(&mut full, true) {
                            tracing::warn!(%from, limit = self.connections_max, "too many connections: closed");
                        }
                    }
                    Ok((socket, from)) => {
                        (full, failing) = (false, false);
                        let (handler, ours, options) = (handler.clone(), ours.clone(), options.clone());
                        connections.spawn(async move {
                            match accept(socket, ours, &options).await {
                                Ok(connected) => handler(connected).await,
                                Err(error) => tracing::debug!(%from, %error, "not greeted"),
                            }
                        });
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(%error, "cannot accept");
                        }
                        sleep(REST).await;
                    }
                },
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        tracing::error!(%error, "a connection's handler panicked");
                    }
                }
            }
        }
    }
}
