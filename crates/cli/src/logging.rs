//! What programs say on standard error: one line an event, as text or as JSON.

use std::io::{self, IsTerminal};
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// How an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs: one object a line
    Json,
}

impl Format {
    /// As the command line names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Reads which events are let through.
///
/// # Errors
/// When it is no filter.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(text)
}

/// Begins to log what `filter` lets through; without one, what `usual` does.
///
/// # Errors
/// When the filter is none.
pub(crate) fn start(format: Format, filter: Option<&str>, usual: &str) -> anyhow::Result<()> {
    let filter = self::filter(filter.unwrap_or(usual)).map_err(|error| {
        anyhow::anyhow!(
            "the log filter is wrong: {error}; write a level such as `info`, or `info,steadfast_node=debug`"
        )
    })?;
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    match format {
        Format::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        Format::Json => log.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}
