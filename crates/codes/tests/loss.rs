//! Ranks of many loss patterns at once against one rank test a pattern.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;
use common::*;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, Kind, LossRanks};

/// Up to `most` blocks of the first `n` in each of `count` groups, no block twice.
fn groups(n: u32, count: usize, share: u32, random: &mut Pcg64Mcg) -> Vec<Vec<u32>> {
    let mut groups = vec![Vec::new(); count];
    for index in shuffled((0..n).collect(), random) {
        if random.next_u32() % 100 < share {
            groups[random.next_u32() as usize % count].push(index);
        }
    }
    groups
}

#[test]
fn every_pattern_has_the_rank_that_a_test_of_its_own_gives() {
    let mut random = random();
    let mut short = 0;
    for kind in [Kind::Mix, Kind::MixA, Kind::MixC, LT_HALF, Kind::Replicated] {
        for (k, n, share) in
            [(20, 60, 80), (130, 300, 90), (520, 800, 100), (600, 1300, 55), (700, 1400, 100)]
                .into_iter()
                .chain([(640, 3000, 25)])
        {
            let code = Code::new(kind, k, random.next_u64()).unwrap();
            let groups = groups(n, 9, share, &mut random);
            let views: Vec<&[u32]> = groups.iter().map(Vec::as_slice).collect();
            let mut patterns: Vec<Vec<usize>> = vec![vec![], (0..9).collect(), vec![4, 4]];
            patterns.extend((0..9).map(|a| vec![a]));
            patterns.extend((0..9).flat_map(|a| (0..a).map(move |b| vec![a, b])));
            let lost: Vec<&[usize]> = patterns.iter().map(Vec::as_slice).collect();
            let ranks = LossRanks::new(&code, views.clone());
            for (pattern, rank) in patterns.iter().zip(code.ranks_without(&views, &lost)) {
                let kept = (0..9).filter(|group| !pattern.contains(group));
                let expected = code.rank_of(&mut kept.flat_map(|group| groups[group].iter().copied()));
                assert_eq!(rank, expected, "{code:?}, N about {n}, lost {pattern:?}");
                assert_eq!(ranks.missing_without(pattern) == 0, rank == k);
                assert!(ranks.missing_without(pattern) <= k - rank);
                short += u32::from(rank < k);
            }
        }
    }
    assert!(short > 50, "only {short} patterns left less than K");
}

#[test]
fn a_block_in_two_groups_is_lost_with_both() {
    let code = Code::new(Kind::Mix, 512, 3).unwrap();
    let (a, b): (Vec<u32>, Vec<u32>) = ((0..300).collect(), (200..512).collect());
    let ranks = LossRanks::new(&code, vec![&a, &b]);
    assert_eq!((ranks.without(&[]), ranks.without(&[0]), ranks.without(&[1])), (512, 312, 300));
    assert_eq!(ranks.without(&[0, 1]), 0);
}

/// Where it is asked about more domains than blocks lie in: those hold none.
#[test]
fn losing_a_group_that_is_not_there_loses_nothing() {
    for kind in [Kind::Mix, Kind::Replicated, LT_HALF, Kind::ReedSolomon { data: 8, parity: 4 }] {
        let code = Code::new(kind, 512, 3).unwrap();
        let (a, b): (Vec<u32>, Vec<u32>) = ((0..400).collect(), (400..768).collect());
        let ranks = LossRanks::new(&code, vec![&a, &b]);
        for (strange, known) in [(&[2][..], &[][..]), (&[usize::MAX, 0], &[0]), (&[7, 1, 2, 1], &[1])] {
            assert_eq!(ranks.without(strange), ranks.without(known), "{kind:?} {strange:?}");
            assert_eq!(ranks.missing_without(strange), ranks.missing_without(known), "{kind:?} {strange:?}");
            assert_eq!(code.ranks_without(&[&a, &b], &[strange]), [ranks.without(known)]);
        }
        assert_eq!(LossRanks::<Vec<u32>>::new(&code, Vec::new()).without(&[0]), 0);
    }
}
