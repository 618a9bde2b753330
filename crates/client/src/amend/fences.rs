//! What a change of an object has had nodes refuse, and has neither stored anew nor opened again: its segments are listed under an
//! older epoch than their nodes take, so that nobody can change them in place.
//!
//! An amendment that fails says what it has fenced, and where the object is what it began from that is open again at once
//! ([`Change::GiveUp`]). Where another writer was first it is not, since amendments that overtake each other would then go on so for
//! ever. Most begin again and store the same segments anew. What is left when they are through, have failed or were dropped is opened again
//! here, once.

use crate::{Client, ClientError, metadata::Metadata, unexpected};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use steadfast_protocol::{
    Epoch, SegmentId,
    layout::SegmentLayout,
    message::{Change, MetaAnswer, Query},
    serve::parity_log::VersionsByChunk,
};

/// How long a change tries to open again what it has fenced: its caller waits for that. Picked by eye.
const REOPEN_WITHIN: Duration = Duration::from_secs(2);

/// What amendments of one change leave to each other. What is still left when this is dropped is opened again behind the caller.
#[derive(Debug, Default)]
pub(super) struct Left<'a> {
    /// Whose change of which object it is.
    of: Option<(&'a Client, Object)>,
    /// Segments that they have fenced and not replaced, with the latest epoch that they did so under.
    fenced: Mutex<Fences>,
    /// Changes that data chunks of those named.
    named: Mutex<BTreeMap<SegmentId, VersionsByChunk>>,
}

/// An object's bucket and key.
type Object = (String, String);
/// Segments, and the latest epoch that each was fenced under.
type Fences = BTreeMap<SegmentId, Epoch>;

impl<'a> Left<'a> {
    /// Nothing yet, of a change of an object.
    pub(super) fn of(client: &'a Client, (bucket, key): (&str, &str)) -> Self {
        let (fenced, named) = Default::default();
        Self { of: Some((client, (bucket.to_owned(), key.to_owned()))), fenced, named }
    }

    /// Adds those of an amendment, which began after the ones before.
    pub(super) fn add(&self, segments: &BTreeSet<SegmentId>, epoch: Epoch) {
        self.all().extend(segments.iter().map(|&segment| (segment, epoch)));
    }

    /// An amendment has made these of the object's segments: others are gone.
    pub(super) fn committed(&self, layouts: &[SegmentLayout]) {
        let mut all = self.all();
        let still = behind(&all, layouts);
        all.retain(|segment, _| still.contains(segment));
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

    /// The change is over, whatever became of it: what it has left is opened again.
    pub(super) async fn reopen(&self) {
        if let Some((client, object)) = &self.of {
            let fences = self.all().clone();
            reopen(&client.metadata, object, fences).await;
            // Not before: who waits for it may give up.
            self.take();
        }
    }

    /// The same for who does not wait for it, where anything is left.
    pub(super) fn reopening(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (client, object) = self.of.as_ref()?;
        let fences = Some(self.take()).filter(|fences| !fences.is_empty())?;
        let (metadata, object) = (client.metadata_for_later(), object.clone());
        Some(async move { reopen(&metadata, &object, fences).await })
    }

    fn take(&self) -> Fences {
        std::mem::take(&mut *self.all())
    }

    fn all(&self) -> MutexGuard<'_, Fences> {
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if let (Some((client, _)), Some(reopening)) = (&self.of, self.reopening()) {
            client.tidying.later(reopening);
        }
    }
}

/// Those that are listed under an older epoch.
fn behind(fences: &Fences, layouts: &[SegmentLayout]) -> Vec<SegmentId> {
    let behind = |layout: &&SegmentLayout| fences.get(&layout.segment) > Some(&layout.epoch);
    layouts.iter().filter(behind).map(|layout| layout.segment).collect()
}

/// Lists segments of an object under the epoch of an amendment that does nothing else, where they are listed under an older one than they
/// were fenced under. Where another writer is first even so, who changes those segments next stores them anew.
async fn reopen(metadata: &Metadata, (bucket, key): &Object, fences: Fences) {
    if fences.is_empty() {
        return;
    }
    match tokio::time::timeout(REOPEN_WITHIN, open_again(metadata, (bucket, key), &fences)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(bucket, key, %error, "segments stay fenced"),
        Err(_) => tracing::debug!(bucket, key, "segments stay fenced: nobody answers"),
    }
}

async fn open_again(
    metadata: &Metadata,
    (bucket, key): (&str, &str),
    fences: &Fences,
) -> Result<(), ClientError> {
    let (bucket, key) = (bucket.to_owned(), key.to_owned());
    let lookup = Query::Lookup { bucket: bucket.clone(), key: key.clone() };
    let (base, segments) = match metadata.ask(lookup).await? {
        MetaAnswer::Object { object, segments, .. } => (object.version, segments),
        other => return Err(unexpected("Object", &other)),
    };
    let fenced = behind(fences, &segments);
    if fenced.is_empty() {
        return Ok(());
    }
    let begin = Change::BeginAmend { bucket, key, base, segments: 0, rewrites: false };
    match metadata.change(begin).await? {
        MetaAnswer::Begun(begun) => {
            metadata.change(Change::GiveUp { intent: begun.intent, fenced }).await.map(drop)
        }
        other => Err(unexpected("Begun", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        amend::{
            faked::{self, Heard},
            parts::tests::found,
        },
        reserve::tests::client,
    };
    use tokio::sync::mpsc::unbounded_channel;

    #[test]
    fn what_is_listed_under_an_older_epoch_than_it_was_fenced_under_is_left() {
        let left = Left::default();
        let behind = |layouts: &[SegmentLayout]| behind(&left.all(), layouts);
        assert!(behind(&found(&[100, 50]).segments).is_empty());
        let mut layouts = found(&[100, 50, 20]).segments;
        for (name, layout) in (1..).zip(&mut layouts) {
            (layout.segment, layout.epoch) = (SegmentId(name), Epoch(5));
        }
        let names = |names: &[u64]| names.iter().map(|&name| SegmentId(name)).collect::<BTreeSet<_>>();
        left.add(&names(&[1, 2, 9]), Epoch(7));
        left.add(&names(&[2]), Epoch(9));
        assert_eq!(behind(&layouts), [SegmentId(1), SegmentId(2)]);
        // Somebody else has opened one of them again, and the other too early.
        (layouts[0].epoch, layouts[1].epoch) = (Epoch(8), Epoch(8));
        assert_eq!(behind(&layouts), [SegmentId(2)]);
        // What was stored anew is not left to anybody, nor what was dropped.
        left.committed(&layouts);
        assert_eq!(left.all().keys().copied().collect::<Vec<_>>(), [SegmentId(2)]);
        left.committed(&layouts[2..]);
        assert!(left.all().is_empty());
    }

    /// Between two attempts, of which the first was overtaken.
    #[tokio::test]
    async fn what_a_change_leaves_that_is_dropped_is_opened_again_behind_it() {
        let (heard, mut hears) = unbounded_channel();
        let mut client = client("127.0.0.1:1", Vec::new());
        let store = faked::metadata(&mut client, faked::object(3), heard).await;
        let left = Left::of(&client, ("data", "object"));
        left.add(&[SegmentId(1), SegmentId(3), SegmentId(9)].into(), Epoch(7));
        drop(left);
        let heard = faked::settled(&client, &mut hears).await;
        let [Heard::Meta(Change::BeginAmend { segments: 0, .. }), Heard::Meta(Change::GiveUp { fenced, .. })] =
            &heard[..]
        else {
            panic!("{heard:?}")
        };
        assert_eq!(fenced[..], [SegmentId(1), SegmentId(3)]);
        let segments = store.lock().unwrap().object.segments.clone();
        let epochs: Vec<bool> = segments.iter().map(|layout| layout.epoch > Epoch(7)).collect();
        assert_eq!(epochs, [true, false, true]);
        // Nothing is left where it was opened, or where nothing was fenced.
        let left = Left::of(&client, ("data", "object"));
        left.reopen().await;
        left.add(&[SegmentId(1)].into(), Epoch(7));
        left.reopen().await;
        drop(left);
        assert!(faked::settled(&client, &mut hears).await.is_empty());
    }
}
