//! What a read of chunks asked for because others were late, as the client's other reads know of it while it is under way.

use crate::Client;
use std::sync::{MutexGuard, PoisonError};
use steadfast_protocol::read::{Caution, ReadDone};
use tokio::sync::futures::Notified;

/// Of one read; dropped, nothing of it is under way.
pub(crate) struct StandIns<'a> {
    client: &'a Client,
    block_bytes: u32,
    bytes: u64,
}

impl<'a> StandIns<'a> {
    /// A read of blocks of so many bytes that has asked for nothing of the kind.
    pub(crate) fn none(client: &'a Client, block_bytes: u32) -> Self {
        Self { client, block_bytes, bytes: 0 }
    }

    /// Tells the others how much it is by now; how late is late to this read.
    pub(crate) fn tell(&mut self, counts: &ReadDone) -> u32 {
        let bytes = u64::from(counts.extra_blocks) * u64::from(self.block_bytes);
        let more = bytes.saturating_sub(self.bytes);
        let mut caution = self.client.caution();
        if more > 0 {
            caution.asked(more);
            self.bytes = bytes;
            self.client.lessons.notify_waiters();
        }
        caution.factor_beside(self.client.now(), self.bytes)
    }

    /// Enough has come, or never will: nothing of it is under way any more.
    pub(crate) fn end(&mut self) {
        if self.bytes > 0 {
            self.client.caution().ended(std::mem::take(&mut self.bytes));
            self.client.lessons.notify_waiters();
        }
    }
}

impl Drop for StandIns<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Client {
    /// What came of a read of chunks, as `learn` takes it.
    pub(crate) fn learn(&self, learn: impl FnOnce(&mut Caution)) {
        learn(&mut self.caution());
        self.lessons.notify_waiters();
    }

    pub(crate) fn caution(&self) -> MutexGuard<'_, Caution> {
        self.caution.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was asked for, or learned, from now on.
    pub(crate) fn lesson(&self) -> Notified<'_> {
        self.lessons.notified()
    }
}
