//! Contenders taken in turns, so that whatever else the machine does hits all of them alike.

use crate::arrival::shuffled;
use anyhow::{Context, Result};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// What the orders of all rounds follow from. Picked by eye: of a few small numbers one with which no two of five contenders follow one
/// another more than seven times in sixteen rounds.
const ORDERS: u64 = 4;

/// Which time is counted.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Processor time of the calling thread: other work on the machine costs only what it takes out of the caches.
    Thread,
    /// Time on the wall, for work on several threads.
    Wall,
}

impl Clock {
    fn now(self) -> Timespec {
        clock_gettime(match self {
            Clock::Thread => ClockId::ThreadCPUTime,
            Clock::Wall => ClockId::Monotonic,
        })
    }

    /// Seconds that `work` takes.
    pub fn seconds<T>(self, work: impl FnOnce() -> T) -> (f64, T) {
        let start = self.now();
        let done = work();
        let end = self.now();
        let seconds = (end.tv_sec - start.tv_sec) as f64 + (end.tv_nsec - start.tv_nsec) as f64 / 1e9;
        (seconds, done)
    }
}

/// The median of the rounds, and how far they lay apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    /// Distance between the quartiles as a share of the median.
    pub(crate) spread: f64,
}

impl Figure {
    /// # Panics
    /// Of no samples.
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (samples.len() - 1) as f64;
            let (low, high) = (samples[place.floor() as usize], samples[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Self { median: at(0.5), spread: (at(0.75) - at(0.25)) / at(0.5) }
    }
}

/// One turn over the bytes of `C`: the rate or time reached.
type Turn<'a, C> = Box<dyn FnMut(&mut C) -> Result<f64> + 'a>;

/// Something that is measured: ours, a rival or a limit.
pub(crate) struct Contender<'a, C> {
    pub(crate) name: String,
    turn: Turn<'a, C>,
}

impl<'a, C> Contender<'a, C> {
    pub(crate) fn new(name: impl Into<String>, turn: impl FnMut(&mut C) -> Result<f64> + 'a) -> Self {
        Self { name: name.into(), turn: Box::new(turn) }
    }
}

/// Runs `rounds` rounds, every contender once in each, after one that is not counted. Each round has an order of its own, so
/// that nobody mostly follows the same neighbour, and pays for what that one has left to be written back.
pub(crate) fn in_turns<C>(
    rounds: usize,
    contenders: &mut [Contender<'_, C>],
    context: &mut C,
) -> Result<Vec<Figure>> {
    let count = contenders.len();
    let mut samples = vec![Vec::with_capacity(rounds); count];
    let mut random = Pcg64Mcg::seed_from_u64(ORDERS);
    for round in 0..=rounds {
        for at in shuffled((0..count as u32).collect(), &mut random) {
            let at = at as usize;
            let contender = &mut contenders[at];
            let sample = (contender.turn)(context).with_context(|| contender.name.clone())?;
            if round > 0 {
                samples[at].push(sample);
            }
        }
    }
    Ok(samples.into_iter().map(Figure::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_of_turns_taken_one_after_the_other() {
        let mut contenders = ["a", "b"].map(|name| {
            let mut turns = 0;
            Contender::new(name, move |said: &mut Vec<&str>| {
                said.push(name);
                turns += 1;
                Ok(f64::from(turns))
            })
        });
        let mut said = Vec::new();
        let figures = in_turns(5, &mut contenders, &mut said).unwrap();
        // The first turn does not count: 2, 3, 4, 5, 6.
        assert_eq!(figures, [Figure { median: 4.0, spread: 0.5 }; 2]);
        let first = |name: &str| said.chunks(2).filter(|round| round[0] == name && round[1] != name).count();
        assert_eq!(first("a") + first("b"), 6, "a round has a turn of each: {said:?}");
        assert!(first("a") > 0 && first("b") > 0, "{said:?}");
        assert_eq!(said.len(), 12);
    }

    #[test]
    fn nobody_mostly_follows_the_same_neighbour() {
        let mut contenders = [0usize, 1, 2, 3, 4].map(|name| {
            Contender::new(name.to_string(), move |said: &mut Vec<usize>| {
                said.push(name);
                Ok(1.0)
            })
        });
        let mut said = Vec::new();
        in_turns(16, &mut contenders, &mut said).unwrap();
        for pair in (0..5usize).flat_map(|one| (0..5usize).map(move |other| [one, other])) {
            let times = said.windows(2).filter(|turns| **turns == pair).count();
            assert!(times <= 8, "{pair:?}, {times} times in 16 rounds");
        }
    }

    #[test]
    fn work_takes_time_on_both_clocks() {
        for clock in [Clock::Thread, Clock::Wall] {
            let (seconds, sum) = clock.seconds(|| (0..1_000_000u64).map(std::hint::black_box).sum::<u64>());
            assert!(seconds > 0.0, "{clock:?}");
            assert_eq!(sum, 499_999_500_000);
        }
    }
}
