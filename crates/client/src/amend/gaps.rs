//! Zeros up to what is written behind the end of a file, and others who may be about to write there: looks at the object for
//! [`plan::Gaps`].

use super::{
    AmendError,
    parts::{Becomes, Part},
    session::Amendment,
};
use crate::ClientError;
use std::time::Duration;
use steadfast_protocol::{
    message::MetaFault,
    plan::{self, Seen},
};

impl Amendment<'_> {
    /// Those of the gaps that are to be stored as zeros. The others are what somebody has stored there meanwhile, and the amendment is one of
    /// the object as it is by then. Of `own` parts, those at these positions, it has stored segments in `took`.
    ///
    /// # Errors
    /// [`MetaFault::Conflict`] where others have changed what it has changed, too.
    pub(super) async fn await_others(
        &mut self,
        own: Vec<usize>,
        mut parts: Vec<Part>,
        took: Duration,
    ) -> Result<Vec<Part>, AmendError> {
        let lengths = parts.iter().filter_map(|part| match &part.becomes {
            Becomes::New(plan) => Some((part.position, plan.length)),
            Becomes::Same | Becomes::Longer(_) => None,
        });
        let mut gaps = plan::Gaps::new(self.found.clone(), own, lengths, took);
        while let Some(pause) = gaps.pause() {
            tokio::time::sleep(pause).await;
            let (bucket, key) = self.object().clone();
            let now = self.client.stat(&bucket, &key).await?;
            match gaps.seen(&now.segments) {
                Seen::Nothing => {}
                Seen::Filled => {
                    self.found = gaps.found().to_vec();
                    self.layouts.clone_from(&self.found);
                    self.gap_at(gaps.left());
                }
                Seen::Overtaken => {
                    let (base, current) = (self.base, Some(now.object.version));
                    return Err(
                        ClientError::Refused(MetaFault::Conflict { bucket, key, base, current }).into()
                    );
                }
            }
        }
        parts.retain(|part| gaps.left().any(|position| position == part.position));
        Ok(parts)
    }

    /// Notes which of its segments hold nothing but zeros.
    pub(super) fn gap_at(&mut self, positions: impl Iterator<Item = usize>) {
        self.zeros = positions.filter_map(|position| u32::try_from(position).ok()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ObjectStat,
        amend::{
            faked::{self, Store},
            fences::Left,
            parts::{Ranges, parts},
        },
        reserve::tests::client,
    };
    use bytes::Bytes;
    use std::{
        sync::{Arc, Mutex},
        time::Instant,
    };
    use steadfast_protocol::{SegmentId, plan::Wish};
    use tokio::sync::mpsc::unbounded_channel;

    const MIB: u64 = 1 << 20;

    /// A file of so many whole segments, named from 1 on.
    fn file(segments: u64) -> ObjectStat {
        let mut object = faked::object(segments);
        object.segments.iter_mut().for_each(|layout| layout.length = MIB);
        object.object.size = segments * MIB;
        object
    }

    /// What somebody who writes these ranges of a file of `segments` is left with where that is another by now.
    async fn left_of(
        segments: u64,
        ranges: &Ranges,
        others: impl FnOnce(&mut ObjectStat),
    ) -> Result<(Vec<usize>, Vec<SegmentId>), AmendError> {
        let (heard, _hears) = unbounded_channel();
        let mut client = client("127.0.0.1:1", Vec::new());
        let store: Arc<Mutex<Store>> = faked::metadata(&mut client, file(segments), heard).await;
        let left = Left::default();
        let (all, _) = parts(&file(segments), ranges, 0)?;
        let (gaps, own): (Vec<Part>, Vec<Part>) = all.into_iter().partition(Part::is_gap);
        let own: Vec<usize> = own.iter().map(|part| part.position).collect();
        let (object, of) = (("data", "object"), (1, true));
        let mut amendment =
            Amendment::begin(&client, &left, object, file(segments), of, (Wish::default(), 0)).await?;
        amendment.gap_at(gaps.iter().map(|part| part.position));
        {
            let mut store = store.lock().unwrap();
            others(&mut store.object);
            store.object.object.version.0 += 1;
        }
        let gaps = amendment.await_others(own, gaps, Duration::from_millis(1)).await;
        if let Ok(gaps) = &gaps {
            let listed: Vec<u32> = gaps.iter().map(|part| part.position as u32).collect();
            assert_eq!(amendment.zeros.iter().collect::<Vec<_>>(), listed);
        }
        let names = amendment.layouts.iter().map(|layout| layout.segment).collect();
        amendment.end(Instant::now(), Ok(None)).await?;
        Ok((gaps?.iter().map(|part| part.position).collect(), names))
    }

    fn at(position: u64) -> (u64, Bytes) {
        (position * MIB, Bytes::from_static(&[7; 100]))
    }

    #[tokio::test]
    async fn what_others_have_written_by_then_is_no_gap() {
        let grown = |to: u64| move |object: &mut ObjectStat| *object = file(to);
        let left = left_of(1, &[at(5)], grown(3)).await.unwrap();
        assert_eq!(left, (vec![3, 4], [1, 2, 3].map(SegmentId).to_vec()));
        let left = left_of(1, &[at(5)], grown(5)).await.unwrap();
        assert_eq!(left, (vec![], [1, 2, 3, 4, 5].map(SegmentId).to_vec()));
        // Nobody is at it.
        let left = left_of(2, &[at(4)], |_| {}).await.unwrap();
        assert_eq!(left, (vec![2, 3], [1, 2].map(SegmentId).to_vec()));
    }

    #[tokio::test]
    async fn who_finds_what_it_has_written_changed_is_overtaken() {
        let error = left_of(2, &[at(0), at(5)], |object| *object = file(6)).await.unwrap_err();
        assert!(error.is_conflict(), "{error}");
    }
}
