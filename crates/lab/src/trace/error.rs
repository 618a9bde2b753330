//! What can be wrong with a trace.

use core::time::Duration;
use std::io;
use thiserror::Error;

/// Why a trace cannot be read, or not further. Lines count from 1; 0 is before the first.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file, or its compression, gave out: a truncated download ends so.
    #[error("the trace cannot be read after line {line}")]
    Read {
        /// The last line that was read whole.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("the trace is empty")]
    Empty,
    /// Its first line is of no known form.
    #[error("a trace that begins with `{text}` is in none of the known forms")]
    Unknown {
        /// The line's beginning.
        text: String,
    },
    /// A line is no text, or has more than 1024 bytes.
    #[error("line {line} is not a line of text of at most 1024 bytes")]
    Text {
        /// Which.
        line: u64,
    },
    /// A line has another number of columns.
    #[error("line {line} has {count} columns instead of {expected}")]
    Columns {
        /// Which.
        line: u64,
        /// As many as it has.
        count: usize,
        /// As many as there should be.
        expected: usize,
    },
    /// A column holds something else.
    #[error("line {line}, column {column}: `{text}` is not {expected}")]
    Column {
        /// The line.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// What is there.
        text: String,
        /// What should be.
        expected: &'static str,
    },
    /// A request came before the one ahead of it.
    #[error("line {line}: the request at {at:?} comes after one at {last:?}")]
    Back {
        /// The line.
        line: u64,
        /// Its time.
        at: Duration,
        /// The time of the request ahead.
        last: Duration,
    },
}
