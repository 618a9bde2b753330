//! Changing an object that is there without storing it again: some of its bytes (dissertation §4.3.4), its redundancy, the
//! devices it lies on, or, of a parity bucket's, its size.
//!
//! ```text
//!   update   the coded blocks that hold the bytes  ─┐
//!   tune     more blocks, or fewer                  ├─▶ new pieces ─▶ one commit ─▶ what was replaced is freed
//!   leave    blocks for those of some devices      ─┤
//!   resize   segments behind the end, or none      ─┘
//! ```
//!
//! All of them read what they must, write blocks under a new segment's name until the durability rule holds for them and
//! those that stay, and commit a layout that lists both: readers see the object before or after, whole. A client that dies
//! leaves an intent that ends, blocks that are swept, and segments that cannot be changed in place until that end; one whose caller drops it
//! tidies up behind that. Where another writer is first to change the same segments the change is made again on the new version, a few
//! times; what others change of other segments stands beside it.
//!
//! Left out: which blocks an update touches, which are dropped, and where others go (`steadfast_protocol::plan`).

mod bytes;
mod error;
#[cfg(test)]
pub(crate) mod faked;
mod fences;
mod gather;
mod in_place;
mod leave;
mod parts;
mod ranges;
mod resize;
mod session;
mod tune;
mod update;

pub use error::AmendError;
#[cfg(test)]
pub(crate) use parts::tests::found;
pub(crate) use ranges::Grown;
pub use resize::ResizeReport;

use crate::{Client, ClientError, ObjectStat};
use fences::Left;
use std::time::{Duration, Instant};
use steadfast_protocol::{
    Version,
    plan::{Again, Attempts, Unmade},
};

/// What a change of an object took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AmendReport {
    /// The object's version: a new one, unless there was nothing to do.
    pub version: Version,
    /// Whether others have changed other segments of the object meanwhile: it has both.
    pub beside_others: bool,
    /// From the call until the version was committed.
    pub latency: Duration,
    /// K: original blocks of all segments.
    pub originals: u32,
    /// N before: blocks of all segments.
    pub stored_before: u32,
    /// N now.
    pub stored_after: u32,
    /// Blocks read by their indices. Of a segment that was decoded, only the bytes are counted.
    pub read_blocks: u32,
    /// Payload bytes that arrived here.
    pub read_bytes: u64,
    /// Segments that were decoded: blocks were minted, or an old block could not be had.
    pub decoded_segments: u32,
    /// Blocks written.
    pub written_blocks: u32,
    /// Payload bytes of those.
    pub written_bytes: u64,
    /// Of those written: what they hold is as it was, and they were written to make one piece of many small ones.
    pub merged_blocks: u32,
    /// Bytes changed in place, where they lie: a parity segment's (PLR §4).
    pub in_place_bytes: u64,
    /// Blocks that the object has no more, or with other contents.
    pub dropped_blocks: u32,
    /// Payload bytes of those.
    pub freed_bytes: u64,
    /// Of those dropped: blocks on devices that it has left.
    pub left_blocks: u32,
    /// Payload bytes of those.
    pub left_bytes: u64,
}

impl AmendReport {
    /// D = N/K - 1 before (dissertation §5.3.2).
    pub fn redundancy_before(&self) -> f64 {
        f64::from(self.stored_before) / f64::from(self.originals.max(1)) - 1.0
    }

    /// D now.
    pub fn redundancy(&self) -> f64 {
        f64::from(self.stored_after) / f64::from(self.originals.max(1)) - 1.0
    }

    /// Nothing was to be done to an object as found.
    fn unchanged(found: &ObjectStat, start: Instant) -> Self {
        let stored = found.segments.iter().map(|layout| layout.stored_blocks()).sum();
        Self {
            version: found.object.version,
            latency: start.elapsed(),
            originals: found.segments.iter().map(|layout| layout.code.originals).sum(),
            stored_before: stored,
            stored_after: stored,
            ..Self::default()
        }
    }
}

impl Client {
    /// Makes a change of an object, again where another writer was first, its lease ended before it was made, or somebody is awaited who may
    /// have what chunks lack. What `once` leaves fenced is opened again where that ends in an error.
    async fn amend(
        &self,
        (bucket, key): (&str, &str),
        left: &Left<'_>,
        once: impl AsyncFnMut(&Self, ObjectStat) -> Result<AmendReport, AmendError>,
    ) -> Result<AmendReport, AmendError> {
        self.amend_within(self.options.patience, (bucket, key), left, once).await
    }

    /// The same; who is awaited is so for as long as this `patience`.
    async fn amend_within(
        &self,
        patience: Duration,
        (bucket, key): (&str, &str),
        left: &Left<'_>,
        once: impl AsyncFnMut(&Self, ObjectStat) -> Result<AmendReport, AmendError>,
    ) -> Result<AmendReport, AmendError> {
        let made = self.amend_in_turn(patience, (bucket, key), once).await;
        if made.is_err() {
            left.reopen().await;
        }
        made
    }

    async fn amend_in_turn(
        &self,
        patience: Duration,
        (bucket, key): (&str, &str),
        mut once: impl AsyncFnMut(&Self, ObjectStat) -> Result<AmendReport, AmendError>,
    ) -> Result<AmendReport, AmendError> {
        let mut attempts = Attempts::new(self.now(), patience);
        loop {
            let found = self.to_amend(bucket, key).await?;
            let base = found.object.version;
            let error = match once(self, found).await {
                Err(error) => error,
                made => return made,
            };
            // What stores anew what it changes does not wait for devices.
            let why = error.unmade(false);
            match attempts.unmade(self.now(), why) {
                Again::AtOnce => log_unmade((bucket, key), base, why),
                Again::After(pause) => tokio::time::sleep(pause).await,
                Again::Contended { attempts } => return Err(AmendError::Contended { attempts }),
                Again::InPlace(_) | Again::Served(_) | Again::Never => return Err(error),
            }
        }
    }

    /// An object as it is now, and with it where all servers listen.
    async fn to_amend(&self, bucket: &str, key: &str) -> Result<ObjectStat, ClientError> {
        let (found, registry) = tokio::join!(self.stat(bucket, key), self.registry());
        registry?;
        found
    }
}

/// Says why a change of an object is made again at once.
fn log_unmade((bucket, key): (&str, &str), base: Version, why: Unmade) {
    match why {
        Unmade::LeaseOver => tracing::debug!(bucket, key, "the lease of a change ended before it was made"),
        _ => tracing::debug!(bucket, key, %base, "another writer was first"),
    }
}
