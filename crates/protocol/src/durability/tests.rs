use super::*;
use crate::{
    Epoch, SegmentId, Version,
    layout::{CodeKind, CodeSpec, GRANULE_BYTES, Holder},
};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

const RULE: Rule = Rule { redundancy: 0.5, tolerate: 2 };

fn mix(k: u32) -> Code {
    Code::new(Kind::Mix, k, 5).unwrap()
}

/// Confirms `indices` over `domains` in turn; gives the number after which the rule holds.
fn confirm_until_holds(judge: &mut Judge, domains: u32, limit: u32) -> u32 {
    for index in 0..limit {
        judge.confirm(index % domains, index);
        if judge.counted().is_none() && judge.verdict().holds() {
            return index + 1;
        }
    }
    panic!("not after {limit} blocks: {:?}", judge.verdict());
}

#[test]
fn each_part_of_the_rule_says_what_is_missing() {
    let code = mix(100);
    assert_eq!(code.guard(), 2);
    let mut judge = Judge::new(code, RULE, 6, 1);
    let short = |blocks, why| Verdict::Short { blocks, why };
    assert_eq!(judge.verdict(), short(150, Shortfall::Redundancy { confirmed: 0, needed: 150 }));
    // Two domains hold everything: as many blocks as one likes are not enough.
    for index in 0..300 {
        judge.confirm(index % 2, index);
    }
    assert_eq!(judge.verdict(), short(102, Shortfall::Survivors { confirmed: 0, needed: 102 }));
    for index in 300..402 {
        judge.confirm(2 + index % 4, index);
    }
    assert_eq!(judge.verdict(), Verdict::Holds { patterns_tested: 15, patterns_total: 15 });

    let mut judge = Judge::new(mix(100), Rule { redundancy: 3.0, tolerate: 1 }, 6, 1);
    for index in 0..390 {
        judge.confirm(index % 6, index);
    }
    assert_eq!(judge.verdict(), short(10, Shortfall::Redundancy { confirmed: 390, needed: 400 }));
}

#[test]
fn counting_alone_is_not_enough() {
    // The same block again and again, under other indices: a stripe's block i is original i mod K.
    let code = Code::new(Kind::Replicated, 4, 0).unwrap();
    let mut judge = Judge::new(code, Rule { redundancy: 0.0, tolerate: 1 }, 3, 1);
    for index in 0..12 {
        // Original 0 lies on domain 0 only.
        judge.confirm(if index % 4 == 0 { 0 } else { 1 + index % 2 }, index);
    }
    assert_eq!(judge.counted(), None);
    match judge.verdict() {
        Verdict::Short { why: Shortfall::Rank { lost, missing }, blocks } => {
            assert!(missing >= 1 && blocks > missing && lost.len() == 1);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_index_counts_once_wherever_it_was_confirmed() {
    let mut judge = Judge::new(mix(20), RULE, 4, 1);
    assert!(judge.confirm(0, 7));
    assert!(!judge.confirm(1, 7));
    assert_eq!((judge.confirmed(), judge.loads()), (1, &[1, 0, 0, 0][..]));
}

#[test]
fn replicas_need_distinct_domains_and_no_redundancy() {
    let code = Code::new(Kind::Replicated, 1, 0).unwrap();
    let mut judge = Judge::new(code, Rule { redundancy: 3.0, tolerate: 2 }, 4, 1);
    for (domain, index, holds) in [(0, 0, false), (1, 1, false), (1, 2, false), (3, 3, true)] {
        judge.confirm(domain, index);
        assert_eq!(judge.verdict().holds(), holds, "copy {index}");
    }
}

#[test]
fn a_stripe_needs_every_original() {
    let code = Code::new(Kind::Replicated, 10, 0).unwrap();
    let mut judge = Judge::new(code, Rule { redundancy: 0.0, tolerate: 0 }, 3, 1);
    for index in 0..10 {
        assert!(!judge.verdict().holds());
        judge.confirm(index % 3, index);
    }
    assert_eq!(judge.verdict(), Verdict::Holds { patterns_tested: 1, patterns_total: 1 });
}

#[test]
fn a_judge_agrees_with_the_naive_test_on_every_pattern() {
    for k in [30, 128, 600] {
        let code = mix(k);
        let mut random = Pcg64Mcg::new(u128::from(k) << 64 | 77);
        let mut judge = Judge::new(code.clone(), RULE, 7, 1);
        let mut placed = Vec::new();
        let (mut index, mut agreed) = (0, 0);
        loop {
            // Uneven domains, some blocks never confirmed.
            let domain = (random.next_u64() % 28) as u32;
            let domain = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6]
                [domain as usize];
            index += 1 + u32::from(random.next_u64().is_multiple_of(5));
            placed.push((domain, index));
            judge.confirm(domain, index);
            if judge.counted().is_some() {
                continue;
            }
            let mut every = true;
            for mask in (0u32..1 << 7).filter(|mask| mask.count_ones() == 2) {
                let mut left =
                    placed.iter().filter(|(domain, _)| mask >> domain & 1 == 0).map(|&(_, index)| index);
                every &= code.decodes(&mut left);
            }
            assert_eq!(judge.verdict().holds(), every, "K = {k}, N = {}", placed.len());
            agreed += 1;
            if every {
                break;
            }
        }
        println!("K = {k}: holds at N = {}, asked {agreed} times", placed.len());
    }
}

#[test]
fn many_patterns_are_sampled_with_the_heaviest_among_them() {
    let mut judge = Judge::new(mix(1024), RULE, 64, 9);
    // 64 devices as domains: 2016 patterns.
    let n = confirm_until_holds(&mut judge, 64, 4000);
    let Verdict::Holds { patterns_tested, patterns_total } = judge.verdict() else { panic!() };
    assert_eq!(patterns_total, 2016);
    assert!((PATTERNS_SAMPLED..PATTERNS_SAMPLED + 16).contains(&patterns_tested), "{patterns_tested}");
    assert_eq!(n, 1536);
    let share = judge.verdict().residual_share();
    assert!(share > 0.0 && share < 0.03, "{share}");
    // A domain that turns heavy late is among the tested.
    for index in 0..400 {
        judge.confirm(63, 10_000 + index);
        judge.confirm(5, 20_000 + index);
    }
    assert!(judge.verdict().holds());
    assert!(judge.patterns.iter().any(|pattern| pattern.lost == [5, 63]));
}

/// As tunes, updates and drains confirm, device after device: when the early round begins, 18 of 24 domains have blocks.
#[test]
fn a_domain_that_is_confirmed_last_is_among_the_lost() {
    let (domains, each) = (24, 17);
    for seed in 0..4 {
        let mut judge = Judge::new(mix(256), RULE, domains, seed);
        for domain in 0..domains {
            for block in 0..each {
                judge.confirm(domain, domain * each + block);
            }
        }
        let verdict = judge.verdict();
        let Verdict::Holds { patterns_tested, patterns_total: 276 } = verdict else { panic!("{verdict:?}") };
        assert!((PATTERNS_SAMPLED..PATTERNS_SAMPLED + 4).contains(&patterns_tested), "{patterns_tested}");
        // The heaviest beside them, which are always among the tested, are the first three.
        for domain in 3..domains {
            let losing = judge.patterns.iter().filter(|pattern| pattern.lost.contains(&domain)).count();
            assert!(losing > 0, "seed {seed}: no pattern loses domain {domain}");
        }
    }
}

/// A pattern that was found not to decode is not forgotten when others are drawn.
#[test]
fn what_failed_is_tested_again_with_further_domains() {
    let mut judge = Judge::new(mix(64), Rule { redundancy: 0.0, tolerate: 2 }, 30, 9);
    for index in 0..240 {
        judge.confirm(index % 24, index);
    }
    assert!(judge.verdict().holds());
    // As if it had not.
    judge.patterns[0].missing = 1;
    let lost = judge.patterns[0].lost.clone();
    for domain in 24..30 {
        judge.confirm(domain, 1000 + domain);
        judge.cover();
        let kept = judge.patterns.iter().find(|pattern| pattern.lost == lost).unwrap();
        assert_eq!(kept.missing, 1, "{domain}");
    }
    // Enough blocks are there: it decodes when it is asked again.
    assert!(judge.verdict().holds());
}

#[test]
fn sixteen_domains_of_two_are_all_tested() {
    let mut judge = Judge::new(mix(1024), RULE, 16, 9);
    confirm_until_holds(&mut judge, 16, 4000);
    assert_eq!(judge.verdict(), Verdict::Holds { patterns_tested: 120, patterns_total: 120 });
    assert_eq!(judge.verdict().residual_share(), 0.0);
}

#[test]
fn combinations_are_counted_up_to_the_largest_number() {
    for (domains, tolerate, expected) in
        [(6, 2, 15), (16, 2, 120), (64, 2, 2016), (5, 0, 1), (3, 3, 1), (2, 5, 1)]
    {
        assert_eq!(patterns::combinations(domains, tolerate), expected);
    }
    assert_eq!(patterns::combinations(1 << 20, 16), u64::MAX);
}

#[test]
fn a_layout_is_judged_as_it_stands() {
    let holder = |device: u32| {
        let blocks = (device * 30..device * 30 + 30).into();
        Holder::whole(DeviceId(device.into()), SegmentId(1), Version(1), blocks)
    };
    let layout = SegmentLayout {
        segment: SegmentId(1),
        version: Version(1),
        epoch: Epoch(1),
        length: 100 * 65536,
        code: CodeSpec { kind: CodeKind::Mix, originals: 100, seed: 3 },
        block_bytes: 65536,
        granule_bytes: GRANULE_BYTES,
        holders: (0..6).map(holder).collect(),
    };
    let domain = |device: DeviceId| Some(device.0 as u32 * 1000);
    assert!(judge_layout(&layout, RULE, domain, 1).unwrap().holds());
    let one_lost = |device: DeviceId| (device.0 != 2).then_some(device.0 as u32);
    assert!(!judge_layout(&layout, RULE, one_lost, 1).unwrap().holds());
    let one_fewer = Rule { redundancy: 0.5, tolerate: 1 };
    assert!(judge_layout(&layout, one_fewer, one_lost, 1).unwrap().holds());
    // Two devices of one node are lost together.
    let paired = |device: DeviceId| Some(device.0 as u32 / 2);
    assert!(!judge_layout(&layout, RULE, paired, 1).unwrap().holds());
    let nowhere = judge_layout(&layout, RULE, |_| None, 1).unwrap();
    assert!(!nowhere.holds());
    let damaged = SegmentLayout { code: CodeSpec { originals: 0, ..layout.code }, ..layout };
    assert!(judge_layout(&damaged, RULE, domain, 1).is_err());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]

    /// One rank test for each pattern, from nothing, gives the same verdicts: at the margin, where counting has just
    /// been met, block by block until the rule holds.
    #[test]
    fn verdicts_equal_those_of_independent_rank_tests(
        kind in 0usize..5, k in 8u32..600, tolerate in 1u32..=3, more in 2u32..6, share in 40u64..100, seed: u64,
    ) {
        let lt = Kind::Lt { c: 1.0, delta: 0.5 };
        let kind = [Kind::Mix, Kind::MixA, Kind::MixC, lt, Kind::Replicated][kind];
        let Ok(code) = Code::new(kind, k, seed) else { return Ok(()) };
        let domains = tolerate + more;
        let mut random = Pcg64Mcg::new(u128::from(seed) << 64 | 5);
        let mut judge = Judge::new(code.clone(), Rule { redundancy: 0.0, tolerate }, domains, seed);
        let (mut placed, mut asked, mut index) = (Vec::new(), 0, 0);
        while asked < 6 && index < 12 * k {
            // The first domain holds about twice as much as another; some blocks are never confirmed.
            let domain = (random.next_u64() % u64::from(domains + 1)) as u32 % domains;
            if random.next_u64() % 100 < share {
                placed.push((domain, index));
                judge.confirm(domain, index);
            }
            index += 1;
            if judge.counted().is_some() {
                continue;
            }
            asked += 1;
            let patterns = (0u32..1 << domains).filter(|mask| mask.count_ones() == tolerate);
            let ranks = patterns.map(|mask| {
                let left = placed.iter().filter(|(domain, _)| mask >> domain & 1 == 0);
                code.rank_of(&mut left.map(|&(_, index)| index))
            });
            let least = ranks.min().expect("there are patterns");
            match judge.verdict() {
                Verdict::Holds { patterns_tested, patterns_total } => {
                    proptest::prop_assert_eq!((least, u64::from(patterns_tested)), (k, patterns_total));
                    break;
                }
                Verdict::Short { why: Shortfall::Rank { missing, .. }, .. } => {
                    proptest::prop_assert!(least < k && (1..=k - least).contains(&missing));
                    proptest::prop_assert!(kind == lt || missing == k - least, "{missing}, rank {least} of {k}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
