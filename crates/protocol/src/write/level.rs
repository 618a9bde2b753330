//! How many blocks each failure domain is to hold once a write that amends is done.
//!
//! A put's blocks are spread by who takes them faster, and a put evens that out by waiting a little (`forecast`). A write that amends finds
//! blocks that lie somewhere already: were its own spread as if nothing did, a device that is empty, because it was drained and came back
//! or is new, would get its part of those few and no more, and the f largest domains would grow with every disk that leaves, and N with
//! them. So it fills up from below, like water: by as many blocks as the rule lacks, where they count most.
//!
//! Invariant: no domain is given more while another that can take blocks is further below its level.
//!
//! Left out: who is trusted to take them, and what happens when it does not (`rateless`).

use super::forecast::{LITTLE, first};
use crate::durability::Need;

/// A device that is slower by more gets less. Picked by eye.
const SLOWER: f64 = 2.0;
/// The level beyond which the rule is not to be met.
const HIGHEST: f64 = 1e9;

/// The blocks that each domain is to hold, when they are `given` so many already, can take more at `speeds` (in any unit; zero where none
/// takes any) and `homeless` blocks at least are to be added. None where no number of blocks meets `need`.
///
/// By their speeds, as for a put, so that all of them serve a read for the same time; but where that would take noticeably more blocks,
/// because what the f fastest hold beyond the next is lost with them, they get no more than that one, nor do others less that are only
/// somewhat slower: speeds as measured of six devices on one disk differ by a third.
pub(super) fn levels(need: &Need, given: &[f64], speeds: &[f64], homeless: f64) -> Option<Vec<f64>> {
    let mut fastest: Vec<f64> = speeds.iter().copied().filter(|&speed| speed > 0.0).collect();
    fastest.sort_unstable_by(|a, b| b.total_cmp(a));
    let next = *fastest.get(need.tolerate as usize).or(fastest.last())?;
    let by_speed = level(need, given, |at| speeds[at] / next, homeless)?;
    let capped = level(need, given, |at| (SLOWER * speeds[at] / next).min(1.0), homeless)?;
    let blocks = |loads: &[f64]| loads.iter().sum::<f64>();
    Some(if blocks(&by_speed) <= LITTLE * blocks(&capped) { by_speed } else { capped })
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
        let room: f64 = levels(&NEED, &given, &[1.0; 6], 50.0).unwrap().iter().sum();
        assert!((room - 790.0).abs() < 1.0, "{room}");
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
    fn what_cannot_be_met_has_no_level() {
        assert_eq!(levels(&NEED, &[500.0, 500.0, 0.0], &[0.0, 0.0, 0.0], 0.0), None);
        assert_eq!(levels(&NEED, &[100.0; 2], &[1.0; 2], 0.0), None, "two domains, of which two may be lost");
    }
}
