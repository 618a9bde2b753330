//! Lines of a text that nobody has checked yet: of bounded length, counted.

use super::TraceError;
use std::io::{BufRead, Read};

/// Bytes of a line, at most. The longest of the known traces has 95; what is longer is no trace.
const LINE_BYTES_MAX: usize = 1024;

pub(super) struct Lines<R> {
    input: R,
    number: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, number: 0, buffer: Vec::new() }
    }

    /// The number of the last line given, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line and its number, without what ends it.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &str)>, TraceError> {
        self.buffer.clear();
        // One byte more than fits, and the line's end.
        let mut bounded = (&mut self.input).take(LINE_BYTES_MAX as u64 + 2);
        let read = bounded.read_until(b'\n', &mut self.buffer);
        read.map_err(|source| TraceError::Read { line: self.number, source })?;
        if self.buffer.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        match core::str::from_utf8(text) {
            Ok(text) if text.len() <= LINE_BYTES_MAX => Ok(Some((self.number, text))),
            _ => Err(TraceError::Text { line: self.number }),
        }
    }
}
