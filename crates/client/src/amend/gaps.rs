//! Zeros up to what is written behind the end of a file, and who else may be about to write there.
//!
//! The processes of a parallel program write one file, each its own part of it. Whoever is first with a part far behind the end has a gap
//! before it that the others fill just now; were it stored as zeros, each of n writers would store most of the file. So what is written is
//! stored first. Before the gap is, the object is looked at again for as long as that took: who began at the same time is done by then. As long
//! as the gap becomes smaller in such a time, others are at it.

use super::{AmendError, parts::Becomes, parts::Part, session::Amendment};
use crate::{ClientError, ObjectStat};
use std::time::Duration;
use steadfast_protocol::message::MetaFault;

/// Looks at the object in the time that storing took. Each of those who wait for each other waits for a look in its turn, so by few they
/// would wait for longer than it takes to store zeros.
const LOOKS: u32 = 16;

impl Amendment<'_> {
    /// Those of the gaps that are to be stored as zeros. The others are what somebody has stored there meanwhile, and the amendment is one of
    /// the object as it is by then. Of `own` parts, those at these positions, it has stored segments in `took`.
    ///
    /// # Errors
    /// [`MetaFault::Conflict`] where others have changed what it has changed, too.
    pub(super) async fn await_others(
        &mut self,
        own: &[usize],
        mut gaps: Vec<Part>,
        took: Duration,
    ) -> Result<Vec<Part>, AmendError> {
        let is_written = own.iter().any(|&position| position >= self.found.len());
        let mut looks = 0;
        while is_written && !gaps.is_empty() && looks < LOOKS {
            tokio::time::sleep(took / LOOKS).await;
            looks += 1;
            let (bucket, key) = self.object().clone();
            let now = self.client.stat(&bucket, &key).await?;
            let there = now.segments.len();
            if there <= self.found.len() {
                continue;
            }
            looks = 0;
            if !self.take_in(own, &gaps, &now) {
                let (base, current) = (self.base, Some(now.object.version));
                return Err(ClientError::Refused(MetaFault::Conflict { bucket, key, base, current }).into());
            }
            gaps.retain(|part| part.position >= there);
            self.gap_at(gaps.iter());
        }
        Ok(gaps)
    }

    /// Notes which of its segments hold nothing but zeros.
    pub(super) fn gap_at<'p>(&mut self, gaps: impl Iterator<Item = &'p Part>) {
        self.zeros = gaps.filter_map(|part| u32::try_from(part.position).ok()).collect();
    }

    /// Takes the object as it is now for what the amendment is made from, all but what is its own; whether that can be.
    fn take_in(&mut self, own: &[usize], gaps: &[Part], now: &ObjectStat) -> bool {
        let before = self.found.len();
        let fits = |position: usize| match gaps.iter().find(|part| part.position == position) {
            Some(Part { becomes: Becomes::New(plan), .. }) => plan.length == now.segments[position].length,
            // It lies in a part that is written here, or behind the last one.
            _ => false,
        };
        let stays = |&position: &usize| position >= before || self.found[position] == now.segments[position];
        let alike = (0..before).all(|position| self.found[position].length == now.segments[position].length);
        if !(alike && own.iter().all(stays) && (before..now.segments.len()).all(fits)) {
            return false;
        }
        self.found.clone_from(&now.segments);
        self.layouts.clone_from(&now.segments);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
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
    use steadfast_protocol::{Epoch, SegmentId, plan::Wish};
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
        amendment.gap_at(gaps.iter());
        {
            let mut store = store.lock().unwrap();
            others(&mut store.object);
            store.object.object.version.0 += 1;
        }
        let gaps = amendment.await_others(&own, gaps, Duration::from_millis(1)).await;
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
        assert_eq!(left_of(1, &[at(3), at(6)], grown(2)).await.unwrap().0, [2, 4, 5]);
        // Nobody is at it, or has made it shorter.
        assert_eq!(left_of(2, &[at(4)], |_| {}).await.unwrap().0, [2, 3]);
        assert_eq!(left_of(2, &[at(4)], grown(1)).await.unwrap().0, [2, 3]);
        // One that is changed by others is theirs, whatever this one has changed beside it.
        let changed = |object: &mut ObjectStat| {
            *object = file(4);
            (object.segments[1].segment, object.segments[1].epoch) = (SegmentId(77), Epoch(9));
        };
        let left = left_of(2, &[at(0), at(5)], changed).await.unwrap();
        assert_eq!(left, (vec![4], [1, 77, 3, 4].map(SegmentId).to_vec()));
    }

    #[tokio::test]
    async fn who_finds_what_it_has_written_changed_is_overtaken() {
        type Others = fn(&mut ObjectStat);
        let cases: [(&str, Others); 4] = [
            ("written where it has written", |object| *object = file(6)),
            ("changed where it has changed", |object| {
                *object = file(3);
                object.segments[0].epoch = Epoch(9);
            }),
            ("an end within the gap", |object| {
                *object = file(3);
                object.segments[2].length = 5;
            }),
            ("segments of other lengths", |object| {
                *object = file(3);
                object.segments[1].length = 5;
            }),
        ];
        for (case, others) in cases {
            let error = left_of(2, &[at(0), at(5)], others).await.unwrap_err();
            assert!(error.is_conflict(), "{case}: {error}");
        }
    }
}
