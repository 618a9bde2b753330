//! How much of a log may lie behind a difference that is not committed: what one data chunk may take there, so that two full logs never
//! wait for each other.
//!
//! A difference of one data chunk is in log A, and its message to log B is late; one of another chunk is in B, and late at A. A third
//! chunk goes on, and what it commits cannot be merged behind the two: without a bound it fills both logs, and neither of the first two
//! ever has room in the other one.
//!
//! The rule: behind the first record that is not committed a log takes what leaves every data chunk its window of what may be
//! uncommitted, and beyond that of each chunk no more than this window ([`Behind::takes`]).
//!
//! Why that is enough: let each of some differences be the first in one log and without room in the next one around. Of two neighbours
//! somewhere in this circle the one that is to be logged was stamped before the head that it waits behind was logged. All that its chunk
//! has behind that head was logged later still, so it was not committed when the difference was stamped, and with it takes no more than
//! the window that it was admitted by: it is taken. What is taken has room once all before the first uncommitted record is merged: so it may
//! wait for that, and counts as lying there while it does.

use super::{ChunkNumber, LOG_RECORD_OVERHEAD_BYTES, record};
use crate::message::UPDATE_BYTES_MAX;

/// Of a ring that is not empty this much stays free.
const PAGE_BYTES: u64 = 4096;

/// The bound of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Behind {
    /// Bytes that any chunk's records may take there.
    of_all: u64,
    /// Bytes that the records of one chunk may take there beyond that.
    of_one: u64,
}

impl Behind {
    /// Of a log in a reserve beside parity of `data` data chunks, each of which may have `window_bytes` uncommitted.
    pub fn of(reserve_bytes: u64, window_bytes: u64, data: u32) -> Self {
        // The largest that is admitted, once: where it does not fit before the reserve's end, that end is lost.
        let record = u64::from(UPDATE_BYTES_MAX).saturating_add(LOG_RECORD_OVERHEAD_BYTES).min(window_bytes);
        let windows = window_bytes.saturating_mul(data.into());
        let of_all = reserve_bytes.saturating_sub(windows).saturating_sub(record.saturating_add(PAGE_BYTES));
        Self { of_all, of_one: window_bytes }
    }

    /// Of a log without end.
    pub(super) fn unbounded() -> Self {
        Self { of_all: u64::MAX, of_one: u64::MAX }
    }

    /// Whether so many bytes have room wherever they lie.
    pub(super) fn takes_any(&self, logged_bytes: u64) -> bool {
        logged_bytes <= self.of_all
    }

    /// Whether a record of a chunk is taken where these lie behind what is not committed.
    pub(super) fn takes(
        &self,
        there: impl IntoIterator<Item = (ChunkNumber, u32)>,
        (chunk, bytes): (ChunkNumber, u32),
    ) -> bool {
        let (mut of_all, mut of_one) = (0, 0);
        for (of, bytes) in there {
            let bytes = record::logged_bytes(bytes as usize);
            of_all += bytes;
            of_one += if of == chunk { bytes } else { 0 };
        }
        let bytes = record::logged_bytes(bytes as usize);
        of_all == 0 || of_all.saturating_add(bytes) <= self.of_all || of_one + bytes <= self.of_one
    }
}
