//! How a client behaves, as the command line says it.

use clap::Args;
use std::time::Duration;
use steadfast_client::{Ingest, Options};

/// How an access goes; the configuration file's `[client]` says it for good.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Client")]
pub(crate) struct Tuning {
    /// Seconds that an access waits while nothing at all moves; for a metadata server that went away 10 to 300, and with what is being
    /// stored its lease at least [default: 10]
    #[arg(long, env = "STEADFAST_PATIENCE", value_name = "SECONDS", hide_short_help = true,
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) patience: Option<u32>,
    /// Threads that decode; 0 for as many as the machine has [default: 0]
    #[arg(long, env = "STEADFAST_THREADS", value_name = "N", hide_short_help = true,
        value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) threads: Option<u16>,
    /// Who encodes the segments that are stored whole under the policy `parity`: `client`, or `primary`, a node of each segment, for clients behind a
    /// slow link [default: client]
    #[arg(long, env = "STEADFAST_INGEST", value_name = "WHO", hide_short_help = true)]
    pub(crate) ingest: Option<Ingest>,
}

impl Tuning {
    pub(crate) fn options(&self) -> Options {
        let usual = Options::default();
        Options {
            patience: self.patience.map_or(usual.patience, |seconds| Duration::from_secs(seconds.into())),
            ingest: self.ingest.unwrap_or(usual.ingest),
            threads: self.threads.map_or(usual.threads, usize::from),
            ..usual
        }
    }
}
