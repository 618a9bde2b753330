//! What a read of chunks, or of a few bytes of them, asked for because others were late, as the client's other reads know of it while
//! it is under way.

use crate::Client;
use std::{
    sync::{
        Arc, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use steadfast_protocol::{
    DeviceId, Time,
    message::{Fault, RefusalReason},
    read::{Cause, Caution, Hedge, ReadDone},
};
use tokio::sync::futures::Notified;

/// Bytes of rows, as whoever gives up what asks for them still sees.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    asked_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Rows {
    /// So many are asked for.
    pub(crate) fn ask(&self, bytes: u64) {
        self.asked_bytes.fetch_add(bytes, Relaxed);
    }

    /// So many have come.
    pub(crate) fn receive(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Relaxed);
    }

    /// So many that were asked for will not.
    pub(crate) fn fail(&self, bytes: u64) {
        self.asked_bytes.fetch_sub(bytes, Relaxed);
    }

    /// What nodes were made to send, unless they heard before that nobody wants it.
    pub(crate) fn asked_bytes(&self) -> u64 {
        self.asked_bytes.load(Relaxed)
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Relaxed)
    }
}

/// Others that are asked for a few bytes in the place of a device that is only late; dropped before they were first, they were in vain.
pub(crate) struct Hedged<'a> {
    client: &'a Client,
    bytes: u64,
    rows: Arc<Rows>,
    /// Of `rows`, what was asked for before them.
    before: u64,
    won: bool,
}

impl<'a> Hedged<'a> {
    /// Where a device that was asked at `asked` is late by now others are to be asked, for so many bytes at most, which `rows` counts.
    ///
    /// # Errors
    /// Else: until when it is waited for; `None`: until it fails. A round trip takes as long as `way`.
    pub(crate) fn begin(
        client: &'a Client,
        (device, asked, way): (DeviceId, Time, Option<Duration>),
        bytes: u64,
        rows: &Arc<Rows>,
    ) -> Result<Self, Option<Instant>> {
        let now = client.now();
        let mut hedge = client.hedge();
        let wait = hedge.wait(now, device, asked, way);
        if wait != Some(Duration::ZERO) {
            return Err(wait.map(|wait| Instant::now() + wait));
        }
        hedge.late(now, device);
        hedge.asked(bytes);
        Ok(Self { client, bytes, rows: Arc::clone(rows), before: rows.asked_bytes(), won: false })
    }

    /// They were first.
    pub(crate) fn won(mut self) {
        self.won = true;
    }
}

impl Drop for Hedged<'_> {
    fn drop(&mut self) {
        let asked = self.rows.asked_bytes().saturating_sub(self.before);
        self.client.hedge().ended(self.bytes, if self.won { 0 } else { asked });
    }
}

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

    pub(crate) fn hedge(&self) -> MutexGuard<'_, Hedge> {
        self.hedge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a node gave nothing: where it is overloaded others are not loaded with what is only late.
    pub(crate) fn heed_refusal(&self, cause: &Cause) {
        if let Cause::Fault(Fault::Refused { reason: RefusalReason::Overloaded, .. }) = cause {
            self.hedge().overloaded(self.now());
        }
    }

    /// Something was asked for, or learned, from now on.
    pub(crate) fn lesson(&self) -> Notified<'_> {
        self.lessons.notified()
    }
}
