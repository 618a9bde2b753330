//! Chunks: how objects are cut for them, and where they go.

use super::*;

const DEFAULT: &str = "parity";
const FIVE: &str = "parity:least=5";

#[test]
fn each_chunk_is_in_a_domain_of_its_own_and_spares_of_others_come_first() {
    let disks = cluster(8, 2);
    for seed in 0..40 {
        let plan = choose(&disks, &Wanted { seed, ..wanted(DEFAULT, 16 * MIB) }).unwrap();
        assert_eq!((plan.devices.len(), in_domains(&plan).len(), plan.spares.len()), (6, 6, 10));
        let used: BTreeSet<u32> = plan.devices.iter().map(|planned| planned.domain).collect();
        assert!(plan.spares[..2].iter().all(|spare| !used.contains(&spare.domain)));
        assert!(plan.devices.iter().all(|planned| (planned.share - 1.0 / 6.0).abs() < 1e-9));
    }
    let sites = choose(&disks, &wanted("parity:code=rs(2,1),domain=site", 5)).unwrap();
    assert_eq!((sites.devices.len(), in_domains(&sites).len()), (2, 2));
    let devices = choose(&disks, &wanted("parity:code=rs(12,8),domain=device", 5)).unwrap();
    assert_eq!(in_domains(&devices).len(), 12);
}

/// 600 segments on eight equal nodes, and on eight of which one is half as fast and one is nearly full.
#[test]
fn segments_spread_over_devices_and_chunks_over_their_roles() {
    let mut disks = cluster(8, 1);
    let dealt = |disks: &[Candidate]| {
        let (mut data, mut parity) = (BTreeMap::new(), BTreeMap::new());
        for seed in 0..600 {
            let plan = choose(disks, &Wanted { seed, ..wanted(DEFAULT, 16 * MIB) }).unwrap();
            for (chunk, planned) in plan.devices.iter().enumerate() {
                let role = if chunk < 4 { &mut data } else { &mut parity };
                *role.entry(planned.device.0 - 100).or_insert(0u32) += 1;
            }
        }
        (data, parity)
    };
    let (data, parity) = dealt(&disks);
    // 300 and 150 each.
    assert!(data.values().all(|&chunks| (230..370).contains(&chunks)), "{data:?}");
    assert!(parity.values().all(|&chunks| (110..190).contains(&chunks)), "{parity:?}");
    disks[0].write_bytes_per_s /= 2;
    disks[1].free_bytes = 9 * MIB;
    let (data, parity) = dealt(&disks);
    let of = |device| data[&device] + parity[&device];
    assert!((50..350).contains(&of(0)), "the slow one had {} of 600", of(0));
    assert!((50..450).contains(&of(1)), "the full one had {} of 600", of(1));
    assert!((2..8).all(|device| of(device) > 430), "{data:?} {parity:?}");
}

/// On as many nodes as there are chunks, and on two more, of which one is half as fast: a device has data as often as others have of
/// what it is chosen for.
#[test]
fn the_data_chunks_of_an_object_are_spread_evenly() {
    for nodes in [6, 8] {
        let mut disks = cluster(nodes, 1);
        if nodes == 8 {
            disks[0].write_bytes_per_s /= 2;
        }
        // How far the device that is furthest off has more or less data than its share, in chunks.
        let off = |deals: bool| {
            let (mut dealt, mut chunks) = (Dealt::default(), BTreeMap::new());
            for seed in 0..48 {
                let mut plan = choose(&disks, &Wanted { seed, ..wanted(DEFAULT, 16 * MIB) }).unwrap();
                let devices =
                    |plan: &Plan| plan.devices.iter().map(|one| one.device).collect::<BTreeSet<_>>();
                let before = devices(&plan);
                if deals {
                    dealt.deal(&mut plan, 4);
                }
                assert_eq!(devices(&plan), before);
                for (chunk, planned) in plan.devices.iter().enumerate() {
                    let (data, all) = chunks.entry(planned.device).or_insert((0, 0));
                    *data += i32::from(chunk < 4);
                    *all += 1;
                }
            }
            chunks.values().map(|(data, all)| (3 * data - 2 * all).abs()).max().unwrap() / 3
        };
        let (by_chance, dealt) = (off(false), off(true));
        assert!(dealt <= 2 && by_chance > 2, "{nodes}: {by_chance} {dealt}");
    }
}

/// Sixteen segments on eight devices, of which all are equal, one is half or a fourth as fast, or has work waiting.
#[test]
fn the_chunks_of_an_object_are_spread_by_speed() {
    for (slower, queue, expected) in [(1, 0, 12..13), (2, 0, 5..8), (4, 0, 0..2), (1, 4, 9..12)] {
        let mut disks = cluster(8, 1);
        disks[3].write_bytes_per_s /= slower;
        disks[3].queue_length = queue;
        let (mut dealt, mut chunks) = (Dealt::default(), BTreeMap::new());
        for seed in 0..16 {
            let told: Vec<Candidate> = disks.iter().cloned().map(|disk| dealt.given(disk)).collect();
            let mut plan = choose(&told, &Wanted { seed, ..wanted(DEFAULT, 16 * MIB) }).unwrap();
            dealt.deal(&mut plan, 4);
            plan.devices.iter().for_each(|one| *chunks.entry(one.device).or_insert(0u32) += 1);
        }
        let slow = chunks.remove(&disks[3].device).unwrap_or(0);
        assert!(expected.contains(&slow), "{slower}: {slow}");
        let (least, most) = (chunks.values().min().unwrap(), chunks.values().max().unwrap());
        // Sites take turns too: the three others of the one where a device is not chosen have more than the four of the other.
        let even = if slow < 2 { 4 } else { 2 };
        assert!(most - least <= even, "{slower}: {chunks:?}");
    }
}

#[test]
fn room_is_asked_for_with_the_reserve() {
    let mut disks = cluster(6, 1);
    disks[2].free_bytes = 8 * MIB - 1;
    let wish = |text| wanted(text, 16 * MIB);
    let short = choose(&disks, &wish(DEFAULT)).unwrap_err();
    assert_eq!(short, PlanError::Room { domain: "nodes", needed: 6, available: 5, bytes: 8 * MIB });
    for text in ["parity:reserve=0", "parity:update=fo", "parity:reserve=1MiB", "parity:code=rs(5,4)"] {
        assert!(choose(&disks, &wish(text)).is_ok(), "{text}");
    }
    assert!(choose(&disks, &wanted(DEFAULT, MIB)).is_ok());
}

#[test]
fn domains_are_counted_by_chunks() {
    let disks = cluster(5, 4);
    let unmet = |domain, needed, available| PlanError::Unmet { domain, needed, available };
    assert_eq!(choose(&disks, &wanted(DEFAULT, 1)), Err(unmet("nodes", 6, 5)));
    // Where five will do, but not for who wants to tolerate two.
    assert_eq!(choose(&cluster(4, 4), &wanted(FIVE, 1)), Err(unmet("nodes", 5, 4)));
    let quality = Quality { tolerate: Some(2), ..Quality::default() };
    let strict = Wish { quality, round_trip: Duration::ZERO };
    assert_eq!(choose_for(&disks, &wanted(FIVE, 1), &strict), Err(unmet("nodes", 6, 5)));
    let wide = wanted("parity:code=rs(21,20),domain=device", 1);
    assert_eq!(choose(&disks, &wide), Err(unmet("devices", 21, 20)));
    let registry = registry(5, 2);
    let asked = |text: &str| feasible(&policy(text), &registry);
    assert_eq!(asked(DEFAULT), Err(unmet("nodes", 6, 5)));
    assert_eq!(asked("parity:code=rs(5,3)"), Ok(()));
}

/// Six nodes, of which some do not serve.
#[test]
fn while_too_few_nodes_serve_a_segment_has_fewer_parity_chunks() {
    let planned = |ill: &[(usize, DeviceHealth)], dead: &[usize]| {
        let mut disks = cluster(6, 1);
        ill.iter().for_each(|&(disk, health)| disks[disk].health = health);
        dead.iter().for_each(|&disk| disks[disk].alive = false);
        let plan = choose(&disks, &wanted(FIVE, 16 * MIB))?;
        let lies_on_dead =
            plan.devices.iter().any(|one| dead.iter().any(|&at| disks[at].device == one.device));
        assert!(!lies_on_dead && plan.devices.len() == plan.policy.domains() as usize, "{plan:?}");
        let fewer = plan.fewer(Duration::from_secs(8), &Wish::default());
        Ok((plan.devices.len(), plan.stalled, fewer.map(|fewer| (fewer.chunks, fewer.patience.as_secs()))))
    };
    use DeviceHealth::{Failed, Full, Stalled};
    assert_eq!(planned(&[], &[]), Ok((6, false, Some((1, 4)))));
    assert_eq!(planned(&[], &[3]), Ok((5, false, None)));
    assert_eq!(planned(&[(2, Failed)], &[]), Ok((5, false, None)));
    // A stall may pass; where another node is dead, the others are not held up by it as long as they are enough.
    assert_eq!(planned(&[(2, Stalled)], &[]), Ok((6, true, Some((1, 2)))));
    assert_eq!(planned(&[(2, Stalled)], &[3]), Ok((5, true, None)));
    let unmet = PlanError::Unmet { domain: "nodes", needed: 5, available: 4 };
    assert_eq!(planned(&[(2, Failed)], &[3]), Err(unmet));
    // What a full one lacks is room: fewer chunks would hide that.
    assert!(matches!(planned(&[(2, Full)], &[]), Err(PlanError::Room { .. } | PlanError::Space { .. })));
    assert!(matches!(planned(&[(2, Full)], &[3]), Err(PlanError::Room { .. } | PlanError::Space { .. })));
}

#[test]
fn a_segment_has_no_fewer_chunks_than_its_bucket_wants() {
    for (policy, nodes, chunks) in [
        ("parity:code=rs(6,3)", 5, None),
        ("parity:code=rs(6,3),least=5", 5, Some(5)),
        ("parity:code=rs(6,3),least=5", 4, None),
        ("parity:code=rs(6,3),least=4", 4, Some(4)),
        ("parity:code=rs(6,3),least=4", 3, None),
    ] {
        let wanted = wanted(policy, MIB);
        let plan = choose(&cluster(nodes, 2), &wanted);
        assert_eq!(plan.as_ref().ok().map(|plan| plan.policy.domains()), chunks, "{policy} on {nodes}");
        let segment = segments(MIB, &wanted.policy)[0];
        if let (Ok(plan), Some(chunks)) = (plan, chunks) {
            let fewer = segment.under(&plan.policy);
            assert_eq!(fewer.code, CodeKind::ReedSolomon { data: 3, parity: chunks - 3 });
            assert_eq!(fewer.geometry, segment.geometry);
            // As a primary is told it.
            assert_eq!(plan.policy.to_string().parse(), Ok(plan.policy));
        }
    }
}

#[test]
fn wishes_are_met_or_refused() {
    let bucket = policy(DEFAULT);
    let under = |wish: &str| wish.parse::<Quality>().unwrap().policy(&bucket);
    assert_eq!(under("bandwidth=1MB"), Ok(bucket));
    assert_eq!(under("tolerate=2"), Ok(bucket), "all chunks, not fewer");
    assert!(matches!(under("tolerate=1"), Err(PlanError::BelowBucket { .. })));
    let five = policy(FIVE);
    let both = ["tolerate=1", "tolerate=2"].map(|wish| wish.parse::<Quality>().unwrap().policy(&five));
    assert_eq!(both, [Ok(five), Ok(five)]);
    for wish in ["devices=8", "sites=2", "redundancy=1", "tolerate=3", "tolerate=2,sites=7"] {
        assert!(matches!(under(wish), Err(PlanError::Unsupported { .. })), "{wish}");
    }
    let disks = cluster(8, 1);
    let quality = "bandwidth=100MB".parse().unwrap();
    let wish = Wish { quality, round_trip: Duration::ZERO };
    let plan = choose_for(&disks, &wanted(DEFAULT, 16 * MIB), &wish).unwrap();
    assert_eq!(plan.devices.len(), 6);
    // A half more than is wished for, in six parts, and a tenth of headroom.
    assert!(plan.devices.iter().all(|one| (27_000_000..28_000_000).contains(&one.reserve_bytes_per_s)));
    let wish = Wish { quality: "bandwidth=1GB".parse().unwrap(), ..wish };
    let refused = choose_for(&disks, &wanted(DEFAULT, 16 * MIB), &wish);
    assert!(matches!(refused, Err(PlanError::Bandwidth { .. })), "{refused:?}");
}

#[test]
fn objects_are_cut_at_the_policys_segments() {
    let parity = policy("parity:code=rs(9,6),segment=4MiB");
    for length in [0, 1, 4096, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 33 * MIB + 5] {
        let cut = segments_of(MIB, length, &parity);
        assert_eq!(cut, segments(length, &parity));
        assert_eq!(cut.len() as u64, length.div_ceil(4 * MIB).max(1));
        let mut offset = 0;
        for (place, segment) in cut.iter().enumerate() {
            assert_eq!((segment.offset, segment.scheme), (offset, Scheme::Parity));
            assert!(segment.length == 4 * MIB || place + 1 == cut.len());
            assert_eq!(segment.code, CodeKind::ReedSolomon { data: 6, parity: 3 });
            let (spec, code) = segment.code(9, 0.5).unwrap();
            assert_eq!((spec.code().unwrap().end(), code.k()), (code.end(), segment.geometry.originals));
            offset += segment.length;
        }
        assert_eq!(offset, length);
        // A source without an announced end is cut alike.
        let last = cut.last().unwrap();
        assert_eq!(following(GIB, last.offset, last.length, &parity), *last);
    }
    assert_eq!((segment_bytes(&parity, GIB), segment_bytes(&policy("rateless"), GIB)), (4 * MIB, GIB));
}
