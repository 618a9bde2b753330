//! When a change of an object is made again that was not made, and when its caller is told.
//!
//! ```text
//!              another writer was first, its lease ended: a few times
//!      ┌───────────────────────────────────────────────────────────┐
//!      ▼                                                           │
//!   attempt ───────────────────────────────────────────────────────┤
//!      ▲                                                           │
//!      └── a pause ◀── whom it waits for may come, in its patience ┴──▶ its caller is told
//! ```
//!
//! Each time that another writer is first that one got further, so among a few writers it is soon one's turn. To wait for somebody takes
//! patience and no attempts: others were not first then, and what follows is counted anew.
//!
//! Left out: what an attempt does, and how it learns that it is in vain.

use crate::Time;
use core::time::Duration;

/// How often a change is begun where others are first.
const ATTEMPTS_MAX: u32 = 12;
/// Between two looks at a cluster in which a device stalls, in which too few serve, or of which somebody is awaited. Picked by eye: about
/// what lies between two heartbeats.
const PAUSE: Duration = Duration::from_millis(500);

/// Why an attempt at a change has not made it, by what is to be done about that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmade {
    /// Another writer was first: it may be made on the new version.
    Overtaken,
    /// The metadata server did not hear of it for as long as its lease: nothing was changed.
    LeaseOver,
    /// Chunks lack changes, and somebody does not answer who may have those.
    LacksChanges,
    /// So few devices can be had that nothing can be stored anew now. A change in place needs none.
    LacksDevices {
        /// Whether there is no plan while a device stalls, which may serve again soon.
        stalled: bool,
    },
    /// Anything else: it would be the same the next time.
    Other,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It is made again.
    AtOnce,
    /// It is made again after this pause, by whatever way there is then.
    After(Duration),
    /// As [`Again::After`], where all of it may be made in place yet, as far as is known now; as [`Again::Never`] where not.
    InPlace(Duration),
    /// As [`Again::After`], once no device stalls any more, or there is no patience left ([`Attempts::has_patience`]): the cluster is
    /// looked at after each such pause.
    Served(Duration),
    /// It ends with its error.
    Never,
    /// Others were first so often.
    Contended {
        /// Attempts since somebody was last waited for.
        attempts: u32,
    },
}

/// The attempts at one change; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    begun: Time,
    patience: Duration,
    /// Whether it is made in place where that can be.
    in_place: bool,
    /// Those that have ended since somebody was last waited for.
    ended: u32,
}

impl Attempts {
    /// At a change that stores anew what it changes, whose caller has so much patience from now on.
    pub fn new(now: Time, patience: Duration) -> Self {
        Self { begun: now, patience, in_place: false, ended: 0 }
    }

    /// At one that is made in place where it can be: others may be first for as long as there is patience, and where it can be made in no
    /// way now it may be in place a little later.
    pub fn in_place(now: Time, patience: Duration) -> Self {
        Self { in_place: true, ..Self::new(now, patience) }
    }

    /// Whether the next one is to make in place what it can. Where another stores the segment anew again and again, a change in place is
    /// always just too late: its turn is the other's.
    pub fn is_next_in_place(&self) -> bool {
        self.in_place && self.ended.is_multiple_of(2)
    }

    /// Whether somebody is waited for yet.
    pub fn has_patience(&self, now: Time) -> bool {
        now.since(self.begun) < self.patience
    }

    /// One has ended so: what follows.
    pub fn unmade(&mut self, now: Time, why: Unmade) -> Again {
        self.ended += 1;
        let (is_one_of_few, has_patience) = (self.ended < ATTEMPTS_MAX, self.has_patience(now));
        let again = match why {
            Unmade::Overtaken if is_one_of_few || self.in_place && has_patience => Again::AtOnce,
            Unmade::Overtaken => Again::Contended { attempts: self.ended },
            Unmade::LeaseOver if is_one_of_few => Again::AtOnce,
            // Open again meanwhile, its chunks are brought forward, too, where somebody has what they lack.
            Unmade::LacksChanges if has_patience => Again::After(PAUSE),
            Unmade::LacksDevices { stalled: true } if self.in_place && has_patience => Again::Served(PAUSE),
            // What was fenced by somebody who is gone is open again then, and whom a parity chunk waits for may come back.
            Unmade::LacksDevices { .. } if self.in_place && has_patience => Again::InPlace(PAUSE),
            Unmade::LeaseOver | Unmade::LacksChanges | Unmade::LacksDevices { .. } | Unmade::Other => {
                Again::Never
            }
        };
        if matches!(again, Again::After(_) | Again::InPlace(_) | Again::Served(_)) {
            self.ended = 0;
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn at(millis: u64) -> Time {
        Time(0) + Duration::from_millis(millis)
    }

    /// Of both kinds, begun at 1 s.
    fn both() -> [Attempts; 2] {
        [Attempts::new(at(1000), PATIENCE), Attempts::in_place(at(1000), PATIENCE)]
    }

    #[test]
    fn somebody_is_awaited_for_as_long_as_there_is_patience() {
        for mut attempts in both() {
            for now in [1000, 1500, 2999] {
                assert_eq!(attempts.unmade(at(now), Unmade::LacksChanges), Again::After(PAUSE));
            }
            assert!(attempts.has_patience(at(2999)) && !attempts.has_patience(at(3000)));
            assert_eq!(attempts.unmade(at(3000), Unmade::LacksChanges), Again::Never);
        }
        let mut has_none = Attempts::new(at(1000), Duration::ZERO);
        assert_eq!(has_none.unmade(at(1000), Unmade::LacksChanges), Again::Never);
    }

    #[test]
    fn others_are_first_a_few_times_and_counted_anew_once_somebody_was_awaited() {
        for mut attempts in both() {
            for now in [1500, 2500] {
                for _ in 1..ATTEMPTS_MAX {
                    assert_eq!(attempts.unmade(at(now), Unmade::Overtaken), Again::AtOnce);
                }
                assert_eq!(attempts.unmade(at(now), Unmade::LacksChanges), Again::After(PAUSE));
            }
            // Also without patience.
            for _ in 1..ATTEMPTS_MAX {
                assert_eq!(attempts.unmade(at(3000), Unmade::Overtaken), Again::AtOnce);
            }
            let contended = Again::Contended { attempts: ATTEMPTS_MAX };
            assert_eq!(attempts.unmade(at(3000), Unmade::Overtaken), contended);
        }
    }

    #[test]
    fn others_may_be_first_for_as_long_as_there_is_patience_where_a_change_is_made_in_place() {
        let [mut anew, mut in_place] = both();
        let overtaken = |attempts: &mut Attempts| {
            let at_once = |_: &u32| attempts.unmade(at(2999), Unmade::Overtaken) == Again::AtOnce;
            (1..100).take_while(at_once).count() as u32
        };
        assert_eq!(overtaken(&mut anew), ATTEMPTS_MAX - 1);
        assert_eq!(overtaken(&mut in_place), 99);
        assert_eq!(in_place.unmade(at(3000), Unmade::Overtaken), Again::Contended { attempts: 100 });
    }

    #[test]
    fn leases_end_a_few_times() {
        for mut attempts in both() {
            for _ in 1..ATTEMPTS_MAX {
                assert_eq!(attempts.unmade(at(1000), Unmade::LeaseOver), Again::AtOnce);
            }
            // Whatever patience there is: the metadata server hears nothing of it.
            assert_eq!(attempts.unmade(at(1000), Unmade::LeaseOver), Again::Never);
        }
    }

    #[test]
    fn where_too_few_devices_serve_a_change_may_be_made_in_place_yet() {
        let [mut anew, mut in_place] = both();
        let lacks = |stalled| Unmade::LacksDevices { stalled };
        assert_eq!(in_place.unmade(at(2999), lacks(false)), Again::InPlace(PAUSE));
        assert_eq!(in_place.unmade(at(2999), lacks(true)), Again::Served(PAUSE));
        assert_eq!(in_place.unmade(at(2999), Unmade::Other), Again::Never);
        for stalled in [false, true] {
            assert_eq!(anew.unmade(at(1000), lacks(stalled)), Again::Never, "it needs them");
            assert_eq!(in_place.unmade(at(3000), lacks(stalled)), Again::Never, "patience is over");
        }
    }

    #[test]
    fn each_second_attempt_is_in_place_and_the_first_after_a_pause() {
        let [mut anew, mut in_place] = both();
        let kinds = |attempts: &mut Attempts, why| -> [bool; 4] {
            [(); 4].map(|()| {
                let is_in_place = attempts.is_next_in_place();
                attempts.unmade(at(1000), why);
                is_in_place
            })
        };
        assert_eq!(kinds(&mut in_place, Unmade::Overtaken), [true, false, true, false]);
        assert_eq!(kinds(&mut in_place, Unmade::LacksChanges), [true; 4]);
        assert_eq!(kinds(&mut anew, Unmade::Overtaken), [false; 4]);
    }
}
