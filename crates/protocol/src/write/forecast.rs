//! When a rateless write will be done if every device keeps its pace, and up to where each domain's blocks count by then.
//!
//! The rule asks for survivors of the loss of the f largest domains, so what a fast domain holds beyond the largest of the others
//! is stored in vain; and where speeds are alike the others would be there a moment later. A write that waits for that moment, a
//! tenth of its time at most, stores less: six devices of one speed that take turns at being ahead, as servers of one disk do, end
//! near 1.57 K at D = 0.5 and f = 2 instead of 1.65 K. Where one device is far behind nothing is gained by waiting, nor where the write
//! is done when (1 + D) K are there.
//!
//! Left out: which device gets the next run (`rateless`), and what a device's pace is (`lane`).

use super::lane::Course;
use crate::durability::Need;

/// How much longer a write may take to store less, as a share of its time so far and to come. Picked by eye: what devices of one kind
/// differ by, less than a person notices.
const WAIT_SHARE: f64 = 0.1;
/// And the share of blocks that must not be stored for such a share of time. Picked by eye: six devices of 30 to 150 MB/s store 0.06 less for
/// 0.1, five of 100 and one of 10 MB/s 0.003, and are not held back.
const WORTH: f64 = 0.25;
/// No domain is held back where D is not exceeded by more.
const LITTLE: f64 = 1.01;
/// Steps of a search by halves: to one part in 4,096.
const HALVINGS: u32 = 12;
/// Seconds beyond which nothing is foreseen.
const FORESEEN: f64 = 1e5;

/// See the module's head.
pub(super) struct Forecast<'a> {
    need: &'a Need,
    /// Confirmed blocks of each domain.
    confirmed: &'a [f64],
    /// Devices by the domain they are in.
    courses: Vec<(usize, Course)>,
    /// What each domain has whatever it is held to.
    given: Vec<f64>,
}

/// How far domains are held back.
pub(super) struct Hold {
    /// Blocks of which none is to have more.
    pub(super) most: f64,
    /// Seconds for which the others are waited for at the most; none where it is not for them.
    pub(super) waits: Option<f64>,
    /// Blocks that each has, with those in flight that will count.
    pub(super) given: Vec<f64>,
}

impl<'a> Forecast<'a> {
    pub(super) fn new(
        need: &'a Need,
        confirmed: &'a [f64],
        courses: impl Iterator<Item = (usize, Course)>,
    ) -> Self {
        Self { need, confirmed, courses: courses.collect(), given: confirmed.to_vec() }
    }

    /// Confirmed blocks of each domain in so many seconds, where none is given more once it has `most`.
    fn loads_in(&self, seconds: f64, most: f64) -> Vec<f64> {
        let mut loads = self.confirmed.to_vec();
        for (domain, course) in &self.courses {
            loads[*domain] += course.confirmed_in(seconds);
        }
        for (load, given) in loads.iter_mut().zip(&self.given) {
            *load = load.min(given.max(most));
        }
        loads
    }

    /// Blocks that counting lacks now, with what devices are done with and have not told.
    pub(super) fn lacking(&self) -> f64 {
        let (total, survivors) = self.need.missing(&self.loads_in(0.0, f64::INFINITY));
        total.max(survivors)
    }

    /// Seconds until the rule holds by counting, where no domain is given more once it has `most`; infinite when it never does.
    pub(super) fn holds_in(&self, most: f64) -> f64 {
        let met = |seconds: f64| {
            let loads = self.loads_in(seconds, most);
            // Where no loss is provided for, all domains are as one.
            if self.need.tolerate == 0 { self.need.met(&[loads.iter().sum()]) } else { self.need.met(&loads) }
        };
        let mut late = 1e-4;
        while !met(late) {
            late *= 2.0;
            if late > FORESEEN {
                return f64::INFINITY;
            }
        }
        first(0.0, late, met)
    }

    /// How far to hold domains back, `spent` seconds after the write began, when devices are trusted as far as they are punctual; `left`:
    /// seconds until which others may still be waited for, where that has begun. None where the rule is not foreseen to hold at all.
    pub(super) fn hold(&mut self, spent: f64, left: Option<f64>) -> Option<Hold> {
        let courses = self.courses.iter().map(|&(domain, course)| (domain, course.doubted())).collect();
        let mut doubted = Self { courses, given: self.confirmed.to_vec(), ..*self };
        let done_in = doubted.holds_in(f64::INFINITY);
        if done_in.is_infinite() {
            return None;
        }
        let latest = done_in + WAIT_SHARE * (spent + done_in);
        let latest = left.map_or(latest, |left| latest.min(left.max(done_in)));
        for (domain, course) in &doubted.courses {
            doubted.given[*domain] += course.in_flight_in(latest);
        }
        self.given.clone_from(&doubted.given);
        let (most, for_others) = doubted.most(spent, done_in, latest);
        // Until they are there, or should be.
        Some(Hold { most, waits: for_others.then_some(latest), given: doubted.given })
    }

    /// The most for any domain, and whether others are waited for; `done_in`: seconds until the rule holds when none is held back.
    fn most(&self, spent: f64, done_in: f64, latest: f64) -> (f64, bool) {
        let blocks = |seconds: f64, most: f64| self.loads_in(seconds, most).iter().sum::<f64>();
        if blocks(done_in, f64::INFINITY) < LITTLE * f64::from(self.need.total) {
            return (f64::INFINITY, false);
        }
        let at_once = self.least_most(done_in, done_in);
        let waiting = self.least_most(latest, done_in);
        let waits = self.holds_in(waiting);
        let (all, fewer) = (blocks(done_in, at_once), blocks(waits, waiting));
        let later = (waits - done_in) / (spent + done_in);
        let worth = latest > done_in && (all - fewer) / all > later * WORTH;
        (if worth { waiting } else { at_once }, worth)
    }

    /// The least that domains may be held to so that survivors are there in `survive_in` seconds. What D asks for is waited for in
    /// no case: it is as many blocks wherever they are.
    fn least_most(&self, survive_in: f64, done_in: f64) -> f64 {
        let highest = self.loads_in(survive_in, f64::INFINITY).into_iter().fold(0.0, f64::max);
        first(0.0, highest, |most| {
            self.need.missing(&self.loads_in(survive_in, most)).1 < 0.5
                && self.need.missing(&self.loads_in(done_in, most)).0 < 0.5
        })
    }
}

/// Where `holds` begins to, if it does at `late`.
pub(super) fn first(mut early: f64, mut late: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = early.midpoint(late);
        if holds(middle) { late = middle } else { early = middle }
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need = Need { total: 768, survivors: 512, tolerate: 2 };
    const SPENT: f64 = 1.2;

    fn held(confirmed: &[f64], courses: impl Iterator<Item = Course>, need: &Need) -> Hold {
        Forecast::new(need, confirmed, courses.enumerate()).hold(SPENT, None).expect("it is foreseen")
    }

    /// What no domain has more of where none waits.
    fn at_once(confirmed: &[f64], paces: &[f64]) -> f64 {
        let courses = paces.iter().map(|&pace| Course::steady(pace, 10.0, 1.0));
        let forecast = Forecast::new(&NEED, confirmed, courses.enumerate());
        let done_in = forecast.holds_in(f64::INFINITY);
        forecast.least_most(done_in, done_in)
    }

    #[test]
    fn devices_of_one_speed_wait_for_each_other() {
        let confirmed = [70.0, 90.0, 110.0, 125.0, 128.0, 128.0];
        let steady = || (0..6).map(|_| Course::steady(100.0, 2.0, 1.0));
        let hold = held(&confirmed, steady(), &NEED);
        let without = at_once(&confirmed, &[100.0; 6]);
        assert!(hold.most >= 128.0 && hold.most < without - 10.0, "{} of {without}", hold.most);
        assert_eq!(hold.given[0], 72.0, "what is in flight counts");
        assert!(hold.waits.is_some_and(|waits| waits > 0.4 && waits < 0.5), "{:?}", hold.waits);
        // The time to wait is over.
        let courses = (0..6).map(|_| Course::steady(100.0, 2.0, 1.0)).enumerate();
        let over = Forecast::new(&NEED, &confirmed, courses).hold(SPENT, Some(0.0)).unwrap();
        assert!((over.most - without).abs() < 0.5 && over.waits.is_none(), "{}", over.most);
        // The first two owe what they were to confirm: nobody knows when the others may stop.
        let late = held(
            &confirmed,
            (0..6).map(|at| Course::steady(100.0, 2.0, if at < 2 { 0.02 } else { 1.0 })),
            &NEED,
        );
        assert!(late.most > hold.most + 10.0, "{} of {}", late.most, hold.most);
        assert!(late.given[0] < 72.0, "it does not come in time");
    }

    #[test]
    fn one_that_is_far_behind_is_not_waited_for() {
        let confirmed = [12.0, 120.0, 120.0, 120.0, 120.0, 120.0];
        let paces = [10.0, 100.0, 100.0, 100.0, 100.0, 100.0];
        let hold = held(&confirmed, paces.iter().map(|&pace| Course::steady(pace, 10.0, 1.0)), &NEED);
        assert!((hold.most - at_once(&confirmed, &paces)).abs() < 0.1, "{}", hold.most);
    }

    #[test]
    fn what_d_asks_for_is_not_waited_for() {
        let many = Need { total: 768, survivors: 512, tolerate: 1 };
        let confirmed: Vec<f64> = (0..16).map(|at| 30.0 + f64::from(at)).collect();
        let hold = held(&confirmed, (0..16).map(|at| Course::steady(50.0 + f64::from(at), 5.0, 1.0)), &many);
        assert_eq!(hold.most, f64::INFINITY);
    }

    #[test]
    fn what_never_comes_is_not_foreseen() {
        let silent = (0..6).map(|_| Course::steady(0.0, 0.0, 1.0)).enumerate();
        assert!(Forecast::new(&NEED, &[0.0; 6], silent).hold(SPENT, None).is_none());
    }
}
