//! How many blocks each failure domain is to hold once a write that amends is done.
//!
//! A put's blocks are spread by who takes them faster, and a put evens that out by waiting a little (`forecast`). A write that amends finds
//! blocks that lie somewhere already: were its own spread as if nothing did, a device that is empty, because it was drained and came back
//! or is new, would get its part of those few and no more, and the f largest domains would grow with every disk that leaves, and N with
//! them. So it fills up from below, like water: by as many blocks as the rule lacks, where they count most.
//!
//! Invariant: no domain is given more than its level while others can take what is lacking.
//!
//! Left out: who is trusted to take blocks, and what happens when it does not (`rateless`).

use super::forecast::first;
use crate::durability::Need;

/// A device that is slower by more gets less. Picked by eye: speeds as measured of six devices on one disk differ by a third.
const SLOWER: f64 = 2.0;
/// Fewer blocks by less are not worth giving fast devices less.
const FEWER: f64 = 1.01;
/// The level beyond which the rule is not to be met.
const HIGHEST: f64 = 1e9;

/// A device that takes blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taker {
    /// Its failure domain.
    pub(super) domain: usize,
    /// In any unit; none where nobody knows: as fast as the others are on average.
    pub(super) speed: Option<f64>,
}

/// What each is to have in the end.
#[derive(Clone, Debug)]
pub(super) struct Levels {
    /// Blocks of each domain.
    loads: Vec<f64>,
    /// What each domain has, with what it was given.
    given: Vec<f64>,
    /// The speed of all takers of each domain.
    speeds: Vec<f64>,
    usual: f64,
}

impl Levels {
    /// What domains are brought to that are `given` so many blocks already, where at least `homeless` are to be added and `takers` can take
    /// some. None where no number of blocks meets `need`.
    ///
    /// By their speeds, as for a put, so that all of them serve a read for the same time; but where that would take noticeably more blocks,
    /// because what the f fastest hold beyond the next is lost with them, they get no more than that one, nor do others less that are only
    /// somewhat slower.
    pub(super) fn new(need: &Need, given: Vec<f64>, takers: &[Taker], homeless: f64) -> Option<Self> {
        let known = takers.iter().filter_map(|taker| taker.speed);
        let usual = match known.clone().count() {
            0 => 1.0,
            count => known.sum::<f64>() / count as f64,
        };
        let mut speeds = vec![0.0; given.len()];
        takers.iter().for_each(|taker| speeds[taker.domain] += taker.speed.unwrap_or(usual));
        let mut fastest: Vec<f64> = speeds.iter().copied().filter(|&speed| speed > 0.0).collect();
        fastest.sort_unstable_by(|a, b| b.total_cmp(a));
        let next = *fastest.get(need.tolerate as usize).or(fastest.last())?;
        let by_speed = level(need, &given, |at| speeds[at] / next, homeless)?;
        let capped = level(need, &given, |at| (SLOWER * speeds[at] / next).min(1.0), homeless)?;
        let blocks = |loads: &[f64]| loads.iter().sum::<f64>();
        let loads = if blocks(&by_speed) <= FEWER * blocks(&capped) { by_speed } else { capped };
        Some(Self { loads, given, speeds, usual })
    }

    /// What each domain has, with what it was given.
    pub(super) fn given(&self) -> &[f64] {
        &self.given
    }

    /// Blocks that a domain may still be given, when it has `given`.
    pub(super) fn room(&self, domain: usize, given: f64) -> u32 {
        (self.loads[domain].ceil() - given).max(0.0) as u32
    }

    /// A taker's part of what its domain is to be given.
    pub(super) fn share(&self, taker: Taker) -> u32 {
        let Taker { domain, speed } = taker;
        let part = speed.unwrap_or(self.usual) / self.speeds[domain].max(1e-9);
        (f64::from(self.room(domain, self.given[domain])) * part.min(1.0)).ceil() as u32
    }
}

/// The least loads that do, where domain `at` is brought to `share(at)` of a level.
fn level(need: &Need, given: &[f64], share: impl Fn(usize) -> f64, homeless: f64) -> Option<Vec<f64>> {
    let filled = |level: f64| -> Vec<f64> {
        given
            .iter()
            .enumerate()
            .map(|(at, &given)| match share(at) {
                share if share > 0.0 => given.max(level * share),
                _ => given,
            })
            .collect()
    };
    let before: f64 = given.iter().sum();
    let enough = |level: f64| {
        let loads = filled(level);
        // Half a block of tolerance, as `need` has.
        loads.iter().sum::<f64>() - before > homeless - 0.5 && need.met(&loads)
    };
    let mut high = 1.0;
    while !enough(high) {
        high *= 2.0;
        if high > HIGHEST {
            return None;
        }
    }
    Some(filled(first(0.0, high, enough)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need = Need { total: 768, survivors: 512, tolerate: 2 };

    /// One taker a domain, none of speed 0.
    fn levels(need: &Need, given: &[f64], speeds: &[f64], homeless: f64) -> Option<Vec<f64>> {
        let takers = speeds.iter().enumerate().filter(|(_, speed)| **speed > 0.0);
        let takers: Vec<Taker> =
            takers.map(|(domain, &speed)| Taker { domain, speed: Some(speed) }).collect();
        Levels::new(need, given.to_vec(), &takers, homeless).map(|levels| levels.loads)
    }

    fn close(loads: &[f64], expected: &[f64]) {
        let near = |(load, expected): (&f64, &f64)| (load - expected).abs() < 1.0;
        assert!(loads.iter().zip(expected).all(near), "{loads:?}, not {expected:?}");
    }

    #[test]
    fn the_emptiest_are_filled_first() {
        let given = [128.0, 128.0, 128.0, 128.0, 128.0, 0.0];
        close(&levels(&NEED, &given, &[1.0; 6], 0.0).unwrap(), &[128.0; 6]);
        // One that takes none: the others are brought to a third of the survivors each.
        let without = levels(&NEED, &given, &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0], 0.0).unwrap();
        close(&without, &[512.0 / 3.0, 512.0 / 3.0, 512.0 / 3.0, 512.0 / 3.0, 512.0 / 3.0, 0.0]);
    }

    #[test]
    fn what_is_to_be_written_anyway_has_room() {
        let given = [128.0, 128.0, 128.0, 128.0, 128.0, 100.0];
        let room = |need, given: &[f64]| levels(need, given, &[1.0; 6], 50.0).unwrap().iter().sum::<f64>();
        assert!((room(&NEED, &given) - 790.0).abs() < 1.0, "{}", room(&NEED, &given));
        // Also where the rule lacks nothing, and where no loss is provided for.
        assert!((room(&NEED, &[150.0; 6]) - 950.0).abs() < 1.0);
        let stripe = Need { total: 60, survivors: 60, tolerate: 0 };
        close(&levels(&stripe, &[10.0, 0.0], &[1.0; 2], 50.0).unwrap(), &[30.0; 2]);
    }

    #[test]
    fn slow_ones_get_less_and_fast_ones_no_more_than_counts() {
        let slow = levels(&NEED, &[0.0; 6], &[10.0, 100.0, 100.0, 100.0, 100.0, 100.0], 0.0).unwrap();
        assert!(slow[0] < 40.0 && slow[1] > 150.0, "{slow:?}");
        // Two that are twice as fast: what they hold beyond the others is lost with them.
        let fast = levels(&NEED, &[0.0; 6], &[200.0, 200.0, 100.0, 100.0, 100.0, 100.0], 0.0).unwrap();
        close(&fast, &[128.0; 6]);
        // Where D asks for more than survivors do, they hold twice as many.
        let many = Need { total: 2048, ..NEED };
        let by_speed = levels(&many, &[0.0; 6], &[200.0, 200.0, 100.0, 100.0, 100.0, 100.0], 0.0).unwrap();
        close(&by_speed, &[512.0, 512.0, 256.0, 256.0, 256.0, 256.0]);
    }

    #[test]
    fn devices_that_nobody_knows_are_as_fast_as_the_others() {
        let given = vec![142.0, 142.0, 142.0, 142.0, 2.0];
        let need = Need { total: 853, survivors: 520, tolerate: 2 };
        let measured = |domain: usize| Taker { domain, speed: (domain < 3).then_some(1e8) };
        let takers: Vec<Taker> = (0..5).map(measured).collect();
        let levels = Levels::new(&need, given, &takers, 0.0).unwrap();
        close(&levels.loads, &[520.0 / 3.0; 5]);
        let shares: Vec<u32> = takers.iter().map(|&taker| levels.share(taker)).collect();
        assert_eq!(shares, [32, 32, 32, 32, 172]);
    }

    #[test]
    fn devices_of_a_domain_share_what_it_is_to_have() {
        let of = |domain, speed| Taker { domain, speed: Some(speed) };
        let takers = [of(0, 100.0), of(0, 50.0), of(1, 150.0), of(2, 150.0)];
        let need = Need { total: 300, survivors: 100, tolerate: 1 };
        let levels = Levels::new(&need, vec![0.0; 3], &takers, 0.0).unwrap();
        assert_eq!(takers.map(|taker| levels.share(taker)), [67, 34, 100, 100]);
        assert_eq!((levels.room(0, 40.0), levels.room(0, 400.0)), (60, 0));
    }

    #[test]
    fn what_cannot_be_met_has_no_level() {
        assert_eq!(levels(&NEED, &[500.0, 500.0, 0.0], &[0.0, 0.0, 0.0], 0.0), None);
        assert_eq!(levels(&NEED, &[100.0; 2], &[1.0; 2], 0.0), None, "two domains, of which two may be lost");
    }
}
