//! The allocator against a naive twin that keeps one flag a unit.

mod common;

use std::ops::Range;

use common::{below, random, seed};
use steadfast_disk::allocator::Allocator;

struct Naive(Vec<bool>);

impl Naive {
    fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (unit, _) in (0u64..).zip(&self.0).filter(|(_, free)| **free) {
            match runs.last_mut() {
                Some(last) if last.end == unit => last.end += 1,
                _ => runs.push(unit..unit + 1),
            }
        }
        runs
    }

    fn set(&mut self, range: &Range<u64>, free: bool) {
        for unit in range.clone() {
            assert_ne!(self.0[unit as usize], free, "unit {unit} of {range:?}");
            self.0[unit as usize] = free;
        }
    }
}

#[test]
fn agrees_with_the_naive_twin() {
    let seed = seed();
    for round in 0..40 {
        let mut random = random(seed + round);
        let units = 1 + below(&mut random, 300);
        let mut naive = Naive(vec![true; units as usize]);
        let mut allocator = Allocator::new(0..units);
        let mut held: Vec<Range<u64>> = Vec::new();
        for _ in 0..400 {
            let longest = naive.runs().iter().map(|r| r.end - r.start).max().unwrap_or(0);
            match below(&mut random, 5) {
                0 | 1 => {
                    let least = 1 + below(&mut random, 20);
                    let wanted = least + below(&mut random, 30);
                    let after = held.last().filter(|_| below(&mut random, 2) == 0).map(|r| r.end);
                    let taken = allocator.take(wanted, least, after);
                    let whole = naive.runs().iter().filter(|r| r.end - r.start >= wanted).count() > 0;
                    match taken {
                        None => assert!(longest < least, "least {least}, longest {longest}"),
                        Some(range) => {
                            let length = range.end - range.start;
                            assert!(length >= least && length <= wanted);
                            assert_eq!(length, if whole { wanted } else { longest.min(wanted) });
                            if let Some(at) = after
                                && naive.runs().iter().any(|r| r.start == at && r.end - r.start >= wanted)
                            {
                                assert_eq!(range.start, at, "grows where it can");
                            }
                            naive.set(&range, false);
                            held.push(range);
                        }
                    }
                }
                2 => {
                    let start = below(&mut random, units);
                    let range = start..(start + 1 + below(&mut random, 8)).min(units);
                    let free = range.clone().all(|u| naive.0[u as usize]);
                    assert_eq!(allocator.reserve(range.clone()), free);
                    if free {
                        naive.set(&range, false);
                        held.push(range);
                    }
                }
                _ if !held.is_empty() => {
                    let at = below(&mut random, held.len() as u64) as usize;
                    let range = held.swap_remove(at);
                    // In two parts, so that releases need not mirror what was taken.
                    let middle = range.start + below(&mut random, range.end - range.start);
                    for part in [middle..range.end, range.start..middle] {
                        allocator.release(part.clone());
                        naive.set(&part, true);
                    }
                }
                _ => {}
            }
            let runs = naive.runs();
            assert!(allocator.runs().eq(runs.iter().cloned()));
            assert_eq!(allocator.fragments(), runs.len());
            assert_eq!(allocator.free_units(), naive.0.iter().filter(|f| **f).count() as u64);
            assert_eq!(allocator.longest(), runs.iter().map(|r| r.end - r.start).max().unwrap_or(0));
        }
    }
}

#[test]
fn takes_the_smallest_run_that_fits() {
    let mut allocator = Allocator::new(0..100);
    for used in [10..11, 31..32, 40..41] {
        assert!(allocator.reserve(used));
    }
    // Runs: 0..10, 11..31, 32..40, 41..100.
    assert_eq!(allocator.take(8, 1, None), Some(32..40));
    assert_eq!(allocator.take(15, 1, None), Some(11..26));
    assert_eq!(allocator.take(200, 50, None), Some(41..100));
    assert_eq!(allocator.take(20, 11, None), None);
}

#[test]
fn what_was_given_up_is_not_free_once_it_is_released() {
    let mut allocator = Allocator::new(0..100);
    assert_eq!(allocator.take(50, 50, None), Some(0..50));
    [10..12, 12..13, 49..50].into_iter().for_each(|units| allocator.give_up(units));
    let given_up = [9..10, 9..11, 12..14, 13..49, 48..60].map(|units| allocator.is_given_up(&units));
    assert_eq!(given_up, [false, true, true, false, true]);
    // In parts that end anywhere.
    for part in [5..11, 0..5, 11..50] {
        allocator.release(part);
    }
    assert!(allocator.runs().eq([0..10, 13..49, 50..100]));
    assert_eq!((allocator.free_units(), allocator.capacity_units()), (96, 100));
}

#[test]
#[should_panic(expected = "partly free already")]
fn a_double_release_is_our_own_error() {
    let mut allocator = Allocator::new(0..10);
    allocator.take(5, 5, None);
    allocator.release(0..5);
    allocator.release(4..5);
}
