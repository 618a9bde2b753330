//! For how long who has objects moved or completed begins any: until all are, or for a time, as of a [`Turn`](super::Turn).
//!
//! ```text
//!              the time     as much again
//!          ├──────────────┼──────────────┤
//!          ├ moved ┬ moved ┤
//!          ├ stuck ┬ moved ┬ moved ┤
//!          ├ stuck ┬ stuck ┬ stuck ┬ stuck ┤
//! ```
//!
//! What cannot be moved takes nothing of the time for others, as far as those whose turn is next are not kept company for long.
//!
//! Invariants: something is begun in any case; nothing else after twice the time.

use super::Outcome;
use crate::Time;
use core::time::Duration;

/// The time in which objects are begun; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// When nothing more is begun, and when that is at the latest; absent where all are.
    ends: Option<(Time, Time)>,
    /// When the last object was.
    begun: Option<Time>,
}

impl Allotment {
    /// From now on for so long; for as long as it takes where absent.
    pub fn new(now: Time, span: Option<Duration>) -> Self {
        Self { ends: span.map(|span| (now + span, now + span + span)), begun: None }
    }

    /// When nothing more is to be begun, also of an object that is under way, as far as is known now; absent where all is.
    pub fn until(&self) -> Option<Time> {
        self.ends.map(|(until, _)| until)
    }

    /// Whether no further object is to be begun.
    pub fn is_over(&self, now: Time) -> bool {
        self.begun.is_some() && self.until().is_some_and(|until| now >= until)
    }

    /// An object is begun.
    pub fn begin(&mut self, now: Time) {
        self.begun = Some(now);
    }

    /// What became of an object. Where several are moved at a time, the one begun last says how long it took.
    pub fn end(&mut self, now: Time, outcome: &Outcome) {
        let is_stuck = matches!(outcome, Outcome::Stuck(_));
        if let (true, Some((until, latest)), Some(begun)) = (is_stuck, &mut self.ends, self.begun) {
            *until = (*until + now.since(begun)).min(*latest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stuck, StuckKind},
        *,
    };

    const SPAN: Duration = Duration::from_secs(4);
    const MOVED: Outcome = Outcome::Moved { blocks: 1, bytes: 1 };

    fn stuck() -> Outcome {
        Outcome::Stuck(Stuck { kind: StuckKind::NoRoom, why: "the last copy".to_owned() })
    }

    /// When each object is begun, one after the other: they take so many seconds, and are moved or stuck.
    fn begun(span: Option<Duration>, objects: &[(u64, bool)]) -> Vec<u64> {
        let second = |seconds: u64| Time(0) + Duration::from_secs(seconds);
        let (mut allotment, mut now, mut begun) = (Allotment::new(second(10), span), 10, Vec::new());
        for &(takes, is_moved) in objects {
            if allotment.is_over(second(now)) {
                break;
            }
            allotment.begin(second(now));
            begun.push(now - 10);
            now += takes;
            allotment.end(second(now), &if is_moved { MOVED } else { stuck() });
        }
        begun
    }

    #[test]
    fn what_is_moved_takes_the_time_and_what_is_stuck_none_of_it_up_to_twice_that() {
        let span = Some(SPAN);
        assert_eq!(begun(span, &[(1, true); 9]), [0, 1, 2, 3]);
        assert_eq!(begun(span, &[(1, false), (2, true), (1, false), (2, true), (1, true)]), [0, 1, 3, 4]);
        // However many are.
        assert_eq!(begun(span, &[(1, false); 99]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(begun(span, &[(3, false); 99]), [0, 3, 6]);
        // And however long one takes.
        assert_eq!(begun(span, &[(60, false), (1, true)]), [0]);
    }

    #[test]
    fn something_is_begun_in_any_case() {
        for is_moved in [false, true] {
            assert_eq!(begun(Some(Duration::ZERO), &[(1, is_moved); 3]), [0]);
        }
    }

    #[test]
    fn without_a_time_all_are_begun() {
        assert_eq!(begun(None, &[(60, false); 99]).len(), 99);
        assert_eq!(Allotment::new(Time(7), None).until(), None);
    }

    #[test]
    fn what_is_stuck_makes_the_end_later_by_as_long_as_it_took() {
        let second = |seconds: u64| Time(0) + Duration::from_secs(seconds);
        let mut allotment = Allotment::new(second(10), Some(SPAN));
        assert_eq!(allotment.until(), Some(second(14)));
        allotment.begin(second(11));
        allotment.end(second(13), &stuck());
        assert_eq!(allotment.until(), Some(second(16)));
        allotment.end(second(60), &stuck());
        assert_eq!(allotment.until(), Some(second(18)));
    }
}
