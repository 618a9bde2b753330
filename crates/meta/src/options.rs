//! What a metadata server is started with.

use std::{net::SocketAddr, path::PathBuf, time::Duration};
use steadfast_protocol::{Time, meta::Terms};

/// What a metadata server is started with.
#[derive(Clone, Debug)]
pub struct MetaOptions {
    /// Its directory; made if absent.
    pub dir: PathBuf,
    /// Whether what is there was put back from an older copy.
    pub restored: bool,
    /// Where it listens (`host:port`; port 0 takes a free one).
    pub listen: String,
    /// Where the admin port listens (`/metrics`, `/healthz`); none when absent.
    pub admin: Option<SocketAddr>,
    /// A put is given up this long after it was begun or last renewed.
    pub lease: Duration,
    /// A storage server counts as dead once silent for this long.
    pub dead_after: Duration,
    /// The answer to a change is kept this long for a client that asks again.
    pub answers_kept: Duration,
    /// Memory for the database's pages, in bytes.
    pub cache_bytes: usize,
    /// Timing and limits of connections.
    pub net: steadfast_net::Options,
}

/// Pages of the upper tree levels of a million objects, several times over.
const CACHE_BYTES: usize = 64 << 20;

impl MetaOptions {
    /// The usual terms: [`Terms::default`], dead after 5 s (five heartbeats of a second), 64 MiB of cache.
    pub fn new(dir: impl Into<PathBuf>, listen: impl Into<String>) -> Self {
        let Terms { lease, answers_kept, .. } = Terms::default();
        Self {
            dir: dir.into(),
            restored: false,
            listen: listen.into(),
            admin: None,
            lease,
            dead_after: Duration::from_secs(5),
            answers_kept,
            cache_bytes: CACHE_BYTES,
            net: steadfast_net::Options::default(),
        }
    }

    /// The terms of the metadata cores, for a server that starts now.
    pub fn terms(&self, started: Time) -> Terms {
        Terms {
            lease: self.lease,
            answers_kept: self.answers_kept,
            started,
            running_since: started,
            turned: started,
        }
    }
}
