//! How long a writer behind the end of an object waits for others to write what lies before that, and what it is left with.
//!
//! The processes of a parallel program write one file, each its own part of it. Whoever is first with a part far behind the end has a gap
//! before it that the others fill just now; were it stored as zeros, each of n writers would store most of the file. So what is written is
//! stored first. Before the gap is, the object is looked at again for as long as that took: who began at the same time is done by then. As
//! long as the gap becomes smaller in such a time, others are at it.
//!
//! ```text
//!   own parts stored ──▶ pause ──▶ look ──▶ others have filled some ──▶ the object as it is now is what this one is made from
//!                          ▲         │                                               │
//!                          │         └── nobody has: the same once more              │
//!                          └─────────┴───────────────────────────────────────────────┘
//!                                    └── not for as long as storing took, or nothing is left ──▶ the rest is stored as zeros
//! ```

use crate::layout::SegmentLayout;
use core::time::Duration;
use std::collections::BTreeMap;

/// Looks at the object in the time that storing took. Each of those who wait for each other waits for a look in its turn, so by few they
/// would wait for longer than it takes to store zeros.
const LOOKS: u32 = 16;

/// The new segments of an amendment that hold nothing but zeros up to what is written behind them; see the module's doc.
#[derive(Clone, Debug)]
pub struct Gaps {
    /// The object's segments, as far as they are what this is made from.
    found: Vec<SegmentLayout>,
    /// Positions of those that it has stored.
    own: Vec<usize>,
    /// Bytes of each that nobody has stored, by position.
    left: BTreeMap<usize, u64>,
    /// Between two looks.
    pause: Duration,
    /// In a row that found nothing new.
    looks: u32,
}

/// What an object as it is now makes of an amendment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing: it is as long as it was, or shorter.
    Nothing,
    /// Others have written some of its gaps: it is made from the object as it is now.
    Filled,
    /// Others have changed what it has changed, too, so that it cannot become a version beside theirs.
    Overtaken,
}

impl Gaps {
    /// Those of an amendment of an object `found` so: it has stored segments at the `own` positions, which `took` so long, and is to have
    /// segments of so many bytes at those of `gaps`.
    pub fn new(
        found: Vec<SegmentLayout>,
        own: Vec<usize>,
        gaps: impl IntoIterator<Item = (usize, u64)>,
        took: Duration,
    ) -> Self {
        let mut gaps = Self { found, own, left: gaps.into_iter().collect(), pause: took / LOOKS, looks: 0 };
        // Bytes are asked for and nothing is written behind them: they are for nobody to fill.
        if !gaps.own.iter().any(|&position| position >= gaps.found.len()) {
            gaps.looks = LOOKS;
        }
        gaps
    }

    /// How long to wait before the object is looked at again; nothing once what is left is to be stored as zeros.
    pub fn pause(&self) -> Option<Duration> {
        (!self.left.is_empty() && self.looks < LOOKS).then_some(self.pause)
    }

    /// Takes the object's segments as they are now.
    pub fn seen(&mut self, now: &[SegmentLayout]) -> Seen {
        self.looks += 1;
        let before = self.found.len();
        if now.len() <= before {
            return Seen::Nothing;
        }
        // Another's lies in a part that is written here, behind the last one, or ends within the gap.
        let fits = |position: usize| self.left.get(&position) == Some(&now[position].length);
        let stays = |&position: &usize| position >= before || self.found[position] == now[position];
        let alike = (0..before).all(|position| self.found[position].length == now[position].length);
        if !(alike && self.own.iter().all(stays) && (before..now.len()).all(fits)) {
            return Seen::Overtaken;
        }
        self.looks = 0;
        self.left = self.left.split_off(&now.len());
        self.found = now.to_vec();
        Seen::Filled
    }

    /// The object's segments that it is made from.
    pub fn found(&self) -> &[SegmentLayout] {
        &self.found
    }

    /// Positions of those that are left, in order.
    pub fn left(&self) -> impl Iterator<Item = usize> {
        self.left.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::layout, *};
    use crate::{Epoch, SegmentId};

    const BYTES: u64 = 1 << 20;

    /// A file of so many whole segments, named from 1 on.
    fn file(segments: u64) -> Vec<SegmentLayout> {
        let segment = |name| SegmentLayout { segment: SegmentId(name), length: BYTES, ..layout(4, &[]) };
        (1..=segments).map(segment).collect()
    }

    /// Of a writer that has found two segments, and stored those at the `own` positions in 16 looks of 10 ms.
    fn gaps(own: &[usize], gaps: &[usize]) -> Gaps {
        let gaps = gaps.iter().map(|&position| (position, BYTES));
        Gaps::new(file(2), own.to_vec(), gaps, Duration::from_millis(160))
    }

    fn left(gaps: &Gaps) -> Vec<usize> {
        gaps.left().collect()
    }

    fn names(gaps: &Gaps) -> Vec<u64> {
        gaps.found().iter().map(|layout| layout.segment.0).collect()
    }

    #[test]
    fn nobody_is_awaited_for_longer_than_storing_took() {
        let mut gaps = gaps(&[5], &[2, 3, 4]);
        for _ in 0..LOOKS {
            assert_eq!(gaps.pause(), Some(Duration::from_millis(10)));
            // Shorter, it is no longer what this was made from; its commit is told so.
            assert_eq!(gaps.seen(&file(gaps.looks as u64 % 3)), Seen::Nothing);
        }
        assert_eq!((gaps.pause(), left(&gaps), names(&gaps)), (None, vec![2, 3, 4], vec![1, 2]));
    }

    #[test]
    fn as_long_as_others_fill_it_the_rest_is_left_to_them() {
        let mut gaps = gaps(&[6], &[2, 3, 4, 5]);
        for (to, rest) in [(3, &[3, 4, 5][..]), (5, &[5])] {
            for _ in 1..LOOKS {
                assert_eq!(gaps.seen(gaps.found().to_vec().as_slice()), Seen::Nothing);
            }
            assert_eq!(gaps.seen(&file(to)), Seen::Filled);
            assert_eq!((left(&gaps), gaps.found()), (rest.to_vec(), &file(to)[..]));
            assert!(gaps.pause().is_some());
        }
        assert_eq!(gaps.seen(&file(6)), Seen::Filled);
        assert_eq!((gaps.pause(), left(&gaps)), (None, vec![]), "nothing is left to wait for");
    }

    #[test]
    fn a_gap_before_nothing_is_stored_at_once() {
        assert_eq!(gaps(&[], &[2, 3]).pause(), None);
        assert_eq!(gaps(&[0, 1], &[2]).pause(), None);
        assert_eq!(gaps(&[3], &[]).pause(), None);
        assert!(gaps(&[0, 3], &[2]).pause().is_some());
    }

    #[test]
    fn what_others_change_beside_it_is_theirs() {
        let mut gaps = gaps(&[0, 5], &[2, 3, 4]);
        let mut now = file(4);
        (now[1].segment, now[1].epoch) = (SegmentId(77), Epoch(9));
        assert_eq!(gaps.seen(&now), Seen::Filled);
        assert_eq!((left(&gaps), names(&gaps)), (vec![4], vec![1, 77, 3, 4]));
    }

    #[test]
    fn who_finds_what_it_has_written_changed_is_overtaken() {
        type Others = fn(&mut Vec<SegmentLayout>);
        let cases: [(&str, Others); 5] = [
            ("written where it has written", |now| *now = file(6)),
            ("written behind that", |now| *now = file(7)),
            ("changed where it has changed", |now| now[0].epoch = Epoch(9)),
            ("an end within the gap", |now| now[2].length = 5),
            ("a segment of another length", |now| now[1].length = 5),
        ];
        for (case, others) in cases {
            let mut gaps = gaps(&[0, 5], &[2, 3, 4]);
            let mut now = file(3);
            others(&mut now);
            assert_eq!(gaps.seen(&now), Seen::Overtaken, "{case}");
            assert_eq!((left(&gaps), names(&gaps)), (vec![2, 3, 4], vec![1, 2]), "{case}");
        }
    }
}
