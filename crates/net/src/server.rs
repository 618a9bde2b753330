//! The accept loop: each connection in its own task, so that what one peer does stays with it.
//!
//! Where there are as many as may be, the one that has been without a stream for longest gives way to the newcomer: peers that
//! vanished, or only keep a place, lock nobody out. Where all are in use or not greeted yet, the newcomer is closed.

use crate::{Connected, Lost, Options, Pacing, accept, shared::Shared};
use rustix::process::{Resource, getrlimit};
use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use steadfast_protocol::message::Hello;
use tokio::{
    net::TcpListener,
    task::{self, JoinSet},
    time::sleep,
};

/// The most connections at once, greeted or not. 1024: the usual limit of open files leaves no room for more.
const CONNECTIONS_MAX: usize = 1024;
/// Of the files that the process may have open, those that are no connections of a server: devices, journals, logs, connections to
/// other servers. 256: some of each for tens of devices.
const OTHER_FILES: u64 = 256;
/// Connections that gave way and whose tasks have not ended; with more of them newcomers are closed, so that tasks that do not
/// end pile up no further. 16: a task that is told ends at once.
const ENDING_MAX: usize = 16;
/// How long to rest when the system cannot accept (out of files or memory). 50 ms: long enough not to spin.
const REST: Duration = Duration::from_millis(50);

/// A listening socket.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    pacing: Pacing,
    connections_max: usize,
}

impl Server {
    /// Listens on `address` (`host:port`; port 0 lets the system choose).
    ///
    /// # Errors
    /// The operating system's.
    pub async fn bind(address: &str) -> io::Result<Self> {
        let connections_max = connections_within(getrlimit(Resource::Nofile).current);
        let listener = TcpListener::bind(address).await?;
        Ok(Self { pacing: Pacing::off(&listener), listener, connections_max })
    }

    /// The same with another limit on connections at once; else it is 1024, or less where the process may not open so many files.
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

    /// Accepts, greets and hands each connection to `handler`, for ever. Dropping the future drops the handlers' and closes the
    /// connections: what is queued is sent, and streams that have no answer by then are lost to their openers.
    pub async fn serve<F, Handled>(self, ours: Hello, options: Options, handler: F)
    where
        F: Fn(Connected) -> Handled + Send + Sync + 'static,
        Handled: Future<Output = ()> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let greeted = Arc::new(Greeted::default());
        let mut connections = JoinSet::new();
        // Dropped before the handlers are.
        let _leaving = Leaving(greeted.clone());
        // Each is told once, until an accept went well.
        let (mut full, mut failing) = (false, false);
        loop {
            tokio::select! {
                // Those that ended first, so that a newcomer finds their places.
                biased;
                Some(ended) = connections.join_next_with_id() => {
                    let id = match ended {
                        Ok((id, ())) => id,
                        Err(error) => {
                            if error.is_panic() {
                                tracing::error!(%error, "a connection's handler panicked");
                            }
                            error.id()
                        }
                    };
                    greeted.forget(id);
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((_, from)) if !self.makes_room(connections.len(), &greeted) => {
                        if !std::mem::replace(&mut full, true) {
                            tracing::warn!(%from, limit = self.connections_max, "too many connections: closed");
                        }
                    }
                    Ok((socket, from)) => {
                        (full, failing) = (false, false);
                        self.pacing.settle(&socket);
                        let (handler, ours, options) = (handler.clone(), ours.clone(), options.clone());
                        let greeted = greeted.clone();
                        connections.spawn(async move {
                            match accept(socket, ours, &options).await {
                                Ok(connected) => {
                                    greeted.add(task::id(), connected.connection.watched());
                                    handler(connected).await;
                                }
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
            }
        }
    }

    /// Whether one more may come, where need be in the place of another.
    fn makes_room(&self, connections: usize, greeted: &Greeted) -> bool {
        let ending = greeted.ending();
        connections < self.connections_max + ending || ending < ENDING_MAX && greeted.close_idlest()
    }
}

/// Connections that a process may have which may open so many files; `None` for no limit.
fn connections_within(files_max: Option<u64>) -> usize {
    let files = files_max.unwrap_or(u64::MAX);
    // Where there are few files, half of them.
    let within = files.saturating_sub(OTHER_FILES).max(files / 2);
    usize::try_from(within).unwrap_or(usize::MAX).min(CONNECTIONS_MAX)
}

/// Connections after their HELLO, by their tasks.
#[derive(Default)]
struct Greeted(Mutex<BTreeMap<task::Id, Place>>);

enum Place {
    Held(Weak<Shared>),
    /// It gave way; its task is about to end.
    Ending,
}

/// Has all connections close when the server is dropped, so that none of them says that what its handler had in hand failed.
struct Leaving(Arc<Greeted>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Greeted {
    fn leave(&self) {
        let places = std::mem::take(&mut *self.places());
        for place in places.into_values() {
            if let Place::Held(connection) = place
                && let Some(connection) = connection.upgrade()
            {
                connection.leave();
            }
        }
    }

    fn add(&self, task: task::Id, connection: Weak<Shared>) {
        self.places().insert(task, Place::Held(connection));
    }

    fn forget(&self, task: task::Id) {
        self.places().remove(&task);
    }

    fn ending(&self) -> usize {
        self.places().values().filter(|place| matches!(place, Place::Ending)).count()
    }

    /// Closes the connection that has been without a stream for longest; false where none is without.
    fn close_idlest(&self) -> bool {
        let mut places = self.places();
        let idle = places.iter().filter_map(|(&task, place)| {
            let Place::Held(connection) = place else { return None };
            let connection = connection.upgrade()?;
            Some((connection.idle_since()?, task, connection))
        });
        let Some((_, task, connection)) = idle.min_by_key(|&(since, task, _)| (since, task)) else {
            return false;
        };
        places.insert(task, Place::Ending);
        drop(places);
        connection.fail(Lost::ClosedHere);
        true
    }

    fn places(&self) -> std::sync::MutexGuard<'_, BTreeMap<task::Id, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_others() {
        assert_eq!(connections_within(None), CONNECTIONS_MAX);
        assert_eq!(connections_within(Some(1 << 20)), CONNECTIONS_MAX);
        assert_eq!(connections_within(Some(1024)), 768);
        assert_eq!(connections_within(Some(300)), 150);
    }
}
