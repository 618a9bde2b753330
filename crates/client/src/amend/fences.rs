//! What a change of an object has had nodes refuse, and has neither stored anew nor opened again: its segments are listed under an
//! older epoch than their nodes take, so that nobody can change them in place.
//!
//! An amendment that fails says what it has fenced, and where the object is what it began from that is open again at once
//! ([`Change::GiveUp`]). Where another writer was first it is not, since amendments that overtake each other would then go on so for
//! ever. Most begin again and store the same segments anew. Where that ends in an error, what is left is opened again here, once.

use crate::{Client, unexpected};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use steadfast_protocol::{
    Epoch, SegmentId,
    layout::SegmentLayout,
    message::{Change, MetaAnswer},
    serve::parity_log::VersionsByChunk,
};

/// How long a change that failed tries to open again what it has fenced: its caller waits for the error. Picked by eye.
const REOPEN_WITHIN: Duration = Duration::from_secs(2);

/// What amendments of one change leave to each other.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Segments that they have fenced and not replaced, with the latest epoch that they did so under.
    fenced: Mutex<BTreeMap<SegmentId, Epoch>>,
    /// Changes that data chunks of those named.
    named: Mutex<BTreeMap<SegmentId, VersionsByChunk>>,
}

impl Left {
    /// Adds those of an amendment, which began after the ones before.
    pub(super) fn add(&self, segments: &BTreeSet<SegmentId>, epoch: Epoch) {
        self.all().extend(segments.iter().map(|&segment| (segment, epoch)));
    }

    /// Those that are listed under an older epoch.
    fn behind(&self, layouts: &[SegmentLayout]) -> Vec<SegmentId> {
        let all = self.all();
        let behind = |layout: &&SegmentLayout| all.get(&layout.segment) > Some(&layout.epoch);
        layouts.iter().filter(behind).map(|layout| layout.segment).collect()
    }

    /// Adds what data chunks of a segment named; what they have named so far. One that is late now has that all the same.
    pub(super) fn named(&self, segment: SegmentId, named: &VersionsByChunk) -> VersionsByChunk {
        let mut all = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let of_segment = all.entry(segment).or_default();
        for (&chunk, &version) in named {
            let known = of_segment.entry(chunk).or_default();
            *known = version.max(*known);
        }
        of_segment.clone()
    }

    fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<SegmentId, Epoch>> {
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// A change of an object has failed: what it has left is listed under the epoch of an amendment that does nothing else. Where another
    /// writer is first even so, who changes those segments next stores them anew.
    pub(super) async fn reopen(&self, (bucket, key): (&str, &str), left: &Left) {
        if left.is_empty() {
            return;
        }
        let reopening = async {
            let found = self.stat(bucket, key).await?;
            let fenced = left.behind(&found.segments);
            if fenced.is_empty() {
                return Ok(());
            }
            let begin = Change::BeginAmend {
                bucket: bucket.to_owned(),
                key: key.to_owned(),
                base: found.object.version,
                segments: 0,
                rewrites: false,
            };
            match self.metadata.change(begin).await? {
                MetaAnswer::Begun(begun) => {
                    let ending = Change::GiveUp { intent: begun.intent, fenced };
                    self.metadata.change(ending).await.map(drop)
                }
                other => Err(unexpected("Begun", &other)),
            }
        };
        match tokio::time::timeout(REOPEN_WITHIN, reopening).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(bucket, key, %error, "segments stay fenced"),
            Err(_) => tracing::debug!(bucket, key, "segments stay fenced: nobody answers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amend::parts::tests::found;

    #[test]
    fn what_is_listed_under_an_older_epoch_than_it_was_fenced_under_is_left() {
        let left = Left::default();
        assert!(left.is_empty() && left.behind(&found(&[100, 50]).segments).is_empty());
        let mut layouts = found(&[100, 50, 20]).segments;
        for (name, layout) in (1..).zip(&mut layouts) {
            (layout.segment, layout.epoch) = (SegmentId(name), Epoch(5));
        }
        let names = |names: &[u64]| names.iter().map(|&name| SegmentId(name)).collect::<BTreeSet<_>>();
        left.add(&names(&[1, 2, 9]), Epoch(7));
        left.add(&names(&[2]), Epoch(9));
        assert_eq!(left.behind(&layouts), [SegmentId(1), SegmentId(2)]);
        // Somebody else has opened one of them again, and the other too early.
        (layouts[0].epoch, layouts[1].epoch) = (Epoch(8), Epoch(8));
        assert_eq!(left.behind(&layouts), [SegmentId(2)]);
    }
}
