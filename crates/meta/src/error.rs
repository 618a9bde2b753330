//! Why a metadata server could not start or go on.

use std::{io, path::PathBuf};

/// Why a metadata server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// Another server runs on the directory.
    #[error("{} is in use by another metadata server: stop it, or choose another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The database file is not one of ours.
    #[error(
        "{} is not a Steadfast metadata store ({detail}): move the file away to start an empty cluster, or name the \
         right directory", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The database file is ours but cannot be read whole.
    #[error(
        "{} is damaged ({detail}): put it back from a copy that was made while no server ran on it, and start once with \
         `--restored`; what was stored since then is given up", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the database says.
        detail: String,
    },
    /// The database is of another build.
    #[error("{}: {detail}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {detail}")]
    Listen {
        /// The address.
        address: String,
        /// The system's words.
        detail: String,
    },
    /// The server is stopping, or its writer thread could not be started.
    #[error("the metadata server is stopping")]
    Stopping,
}
