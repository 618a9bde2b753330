use super::*;
use crate::{
    ClusterId,
    layout::{BLOCK_BYTES_MAX, CodeKind, SEGMENT_BYTES_MAX},
    message::{DeviceReport, NodeRecord, NodeState, Registry},
};
use std::collections::{BTreeMap, BTreeSet};

mod parity;
mod resize;
mod wishes;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn cluster(nodes: u32, devices: u32) -> Vec<Candidate> {
    (0..nodes * devices)
        .map(|device| Candidate {
            device: DeviceId((100 + device).into()),
            node: NodeId((device / devices).into()),
            site: format!("site{}", device / devices % 2),
            free_bytes: 100 * GIB,
            queue_length: 0,
            read_bytes_per_s: 100_000_000,
            write_bytes_per_s: 100_000_000,
            alive: true,
            health: DeviceHealth::Ok,
            reserved_read_bytes_per_s: 0,
            reserved_write_bytes_per_s: 0,
            sharing_ppm: [0; 4],
            refused: false,
            given: 0,
        })
        .collect()
}

fn wanted(text: &str, length: u64) -> Wanted {
    Wanted { policy: policy(text), length, bandwidth_bytes_per_s: None, seed: 1 }
}

fn in_domains(plan: &Plan) -> BTreeMap<u32, usize> {
    let mut held = BTreeMap::new();
    for planned in &plan.devices {
        assert!(planned.domain < plan.domains);
        *held.entry(planned.domain).or_default() += 1;
    }
    held
}

#[test]
fn the_number_follows_the_wanted_bandwidth() {
    // §5.3.1: disks of 20 MB/s, a client of 1.2 GB/s: "about 64 disks" (60 by the division).
    let mut disks = cluster(20, 4);
    disks.iter_mut().for_each(|disk| disk.write_bytes_per_s = 20_000_000);
    let wish = Wanted { bandwidth_bytes_per_s: Some(1_200_000_000), ..wanted("rateless", GIB) };
    assert_eq!(choose(&disks, &wish).unwrap().devices.len(), 60);
    let small = Wanted { bandwidth_bytes_per_s: Some(1), ..wish };
    // f = 2 and D = 0.5 fit six domains without storing more than D asks for.
    assert_eq!(choose(&disks, &small).unwrap().devices.len(), 6);
    assert_eq!(choose(&disks, &wanted("rateless", GIB)).unwrap().devices.len(), 64);
    assert_eq!(choose(&disks, &wanted("rateless:devices=10", GIB)).unwrap().devices.len(), 10);
    // 2 MiB are 32 blocks, 48 with D: four for each of twelve devices.
    let plan = choose(&disks, &wanted("rateless", 2 * MIB)).unwrap();
    assert_eq!((plan.devices.len(), plan.spares.len()), (12, 12 + 2 * 2 + 8));
}

#[test]
fn a_large_cluster_lends_a_put_a_few_spares() {
    for (policy, devices, f) in [("rateless", 64, 2), ("rateless:tolerate=1", 64, 1), ("parity", 6, 2)] {
        let plan = choose(&cluster(1000, 1), &wanted(policy, GIB.min(16 * MIB * devices))).unwrap();
        assert_eq!(plan.devices.len() as u64, devices, "{policy}");
        assert_eq!(plan.spares.len() as u64, devices + 2 * f + 8, "{policy}");
        // Numbered without those that are left out.
        assert_eq!(plan.domains as usize, plan.devices.len() + plan.spares.len());
    }
    // Of few nodes with many devices the others first.
    let plan = choose(&cluster(20, 50), &wanted("rateless:devices=10", GIB)).unwrap();
    let nodes: BTreeSet<NodeId> =
        plan.devices.iter().chain(&plan.spares).map(|planned| planned.node).collect();
    assert_eq!((plan.spares.len(), nodes.len()), (10 + 2 * 2 + 8, 20));
}

#[test]
fn domains_and_sites_take_turns() {
    let disks = cluster(8, 4);
    let plan = choose(&disks, &wanted("rateless:devices=12", GIB)).unwrap();
    let held = in_domains(&plan);
    assert_eq!(held.len(), 8);
    assert!(held.values().all(|&devices| devices <= 2), "{held:?}");
    let plan = choose(&disks, &wanted("rateless:devices=6,domain=device", GIB)).unwrap();
    let nodes: BTreeSet<NodeId> = plan.devices.iter().map(|planned| planned.node).collect();
    assert_eq!((nodes.len(), in_domains(&plan).len()), (6, 6));
    let sites = |plan: &Plan| plan.devices.iter().filter(|planned| planned.node.0 % 2 == 0).count();
    assert_eq!(sites(&plan), 3);
    let plan = choose(&disks, &wanted("rateless:devices=6,domain=site,tolerate=1", GIB)).unwrap();
    assert_eq!(in_domains(&plan).values().copied().collect::<Vec<_>>(), [3, 3]);
}

#[test]
fn devices_that_stall_are_chosen_only_where_others_are_too_few() {
    let mut disks = cluster(6, 1);
    let chosen = |disks: &[Candidate]| {
        let plan = choose(disks, &wanted("rateless:tolerate=2", GIB))?;
        let all = plan.devices.iter().chain(&plan.spares);
        Ok::<_, PlanError>(all.map(|planned| planned.node.0).collect::<Vec<_>>())
    };
    disks[0].health = DeviceHealth::Stalled;
    disks[1].health = DeviceHealth::Failed;
    let mut healthy = chosen(&disks).unwrap();
    healthy.sort_unstable();
    assert_eq!(healthy, [2, 3, 4, 5]);
    // Two can take data for sure, three are needed: those two come first, and the failed one never.
    disks[2].health = DeviceHealth::Stalled;
    disks[3].health = DeviceHealth::Stalled;
    let mut all = chosen(&disks).unwrap();
    all[..2].sort_unstable();
    all[2..].sort_unstable();
    assert_eq!(all, [4, 5, 0, 2, 3]);
    disks[0].free_bytes = 0;
    disks[2].free_bytes = 0;
    disks[3].alive = false;
    assert!(matches!(chosen(&disks), Err(PlanError::Unmet { needed: 3, available: 2, .. })));
}

#[test]
fn the_loaded_the_slow_and_the_nearly_full_come_last() {
    let mut disks = cluster(10, 1);
    disks[0].queue_length = 40;
    disks[1].write_bytes_per_s = 5_000_000;
    disks[2].free_bytes = 20 * GIB;
    disks[3].alive = false;
    disks[4].health = DeviceHealth::Stalled;
    disks[5].health = DeviceHealth::Failed;
    disks[6].health = DeviceHealth::Full;
    let plan = choose(&disks, &wanted("rateless:tolerate=1,devices=3", GIB)).unwrap();
    let chosen: BTreeSet<u128> = plan.devices.iter().map(|planned| planned.device.0 - 100).collect();
    assert_eq!(chosen, BTreeSet::from([7, 8, 9]));
    let spares: Vec<u128> = plan.spares.iter().map(|planned| planned.device.0 - 100).collect();
    assert_eq!(spares, [2, 0, 1]);
}

#[test]
fn seeds_mix_equals_and_shares_follow_speed() {
    let mut disks = cluster(40, 1);
    let first = |seed| {
        let wish = Wanted { seed, ..wanted("rateless:devices=8", GIB) };
        choose(&disks, &wish).unwrap().devices.iter().map(|planned| planned.device).collect::<BTreeSet<_>>()
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
    disks.truncate(6);
    disks[1].write_bytes_per_s = 50_000_000;
    disks[2].write_bytes_per_s = 0;
    let plan = choose(&disks, &wanted("rateless", GIB)).unwrap();
    let share =
        |device: u128| plan.devices.iter().find(|planned| planned.device.0 == 100 + device).unwrap().share;
    assert!((plan.devices.iter().map(|planned| planned.share).sum::<f64>() - 1.0).abs() < 1e-9);
    // An unknown speed counts as the median of the known.
    assert!((share(2) - share(0)).abs() < 1e-9 && (share(1) - 0.5 * share(0)).abs() < 1e-9);
}

#[test]
fn errors_say_how_many_are_missing() {
    let mut disks = cluster(4, 2);
    let unmet = |domain, needed, available| Err(PlanError::Unmet { domain, needed, available });
    assert_eq!(choose(&disks, &wanted("rateless:tolerate=4", GIB)), unmet("nodes", 5, 4));
    assert_eq!(choose(&disks, &wanted("rateless:tolerate=2,domain=site", GIB)), unmet("sites", 3, 2));
    disks.iter_mut().take(4).for_each(|disk| disk.alive = false);
    let error = choose(&disks, &wanted("rateless", GIB)).unwrap_err();
    assert_eq!(error, PlanError::Unmet { domain: "nodes", needed: 3, available: 2 });
    assert!(error.to_string().contains("1 missing"), "{error}");
    // Small ones too: f + 1 copies.
    assert_eq!(choose(&disks, &wanted("rateless", 10)), unmet("nodes", 3, 2));
    assert_eq!(choose(&[], &wanted("stripe", 10)), unmet("devices", 1, 0));
}

#[test]
fn room_is_asked_for_with_redundancy() {
    let mut disks = cluster(6, 1);
    disks.iter_mut().for_each(|disk| disk.free_bytes = 200 * MIB);
    assert!(choose(&disks, &wanted("rateless", 700 * MIB)).is_ok());
    let error = choose(&disks, &wanted("rateless", 900 * MIB)).unwrap_err();
    assert_eq!(error, PlanError::Space { needed_bytes: 1350 * MIB, free_bytes: 1200 * MIB });
    disks.iter_mut().for_each(|disk| disk.health = DeviceHealth::Full);
    assert!(matches!(choose(&disks, &wanted("rateless", MIB)), Err(PlanError::Space { free_bytes: 0, .. })));
    // One that cannot hold its share of a stripe is passed over.
    let mut disks = cluster(6, 1);
    disks[3].free_bytes = 10 * MIB;
    let plan = choose(&disks, &wanted("stripe", 600 * MIB)).unwrap();
    assert_eq!(plan.devices.len(), 5);
    assert!(plan.devices.iter().all(|planned| planned.device.0 != 103));
}

#[test]
fn small_objects_are_planned_for_copies() {
    let plan = choose(&cluster(8, 2), &wanted("rateless", 1000)).unwrap();
    assert_eq!((plan.devices.len(), in_domains(&plan).len(), plan.spares.len()), (3, 3, 13));
    let (devices, spares) = plan.targets();
    assert_eq!((devices.len(), spares.len()), (3, 13));
}

pub(crate) fn registry(nodes: u32, devices: u32) -> Registry {
    let node = |node: u32| NodeState {
        record: NodeRecord {
            node: NodeId(node.into()),
            cluster: None,
            address: String::new(),
            site: "here".into(),
            devices: (0..devices).map(|device| (DeviceId((node * 100 + device).into()), 5 * GIB)).collect(),
        },
        alive: node != 0,
        silent_ms: None,
        devices: vec![DeviceReport {
            device: DeviceId((node * 100).into()),
            health: DeviceHealth::Stalled,
            capacity_bytes: 5 * GIB,
            free_bytes: GIB,
            read_bytes_per_s: 7,
            write_bytes_per_s: 8,
            queue_length: 9,
            extents: 0,
            fragments: 0,
            corrupt_blocks: 0,
            medium_read_bytes: 0,
            medium_written_bytes: 0,
            overruns_ppm: 0,
            activity: Default::default(),
            reserved_read_bytes_per_s: 0,
            reserved_write_bytes_per_s: 0,
            sharing_ppm: [0; 4],
        }],
        activity: Default::default(),
    };
    Registry { cluster: ClusterId(1), nodes: (0..nodes).map(node).collect(), ..Registry::default() }
}

#[test]
fn a_registry_gives_candidates_and_says_what_is_feasible() {
    let registry = registry(3, 2);
    let all = candidates(&registry);
    assert_eq!(all.len(), 6);
    assert!(!all[0].alive && all[2].alive);
    assert_eq!((all[2].health, all[2].free_bytes, all[2].queue_length), (DeviceHealth::Stalled, GIB, 9));
    // Not reported yet: as registered.
    assert_eq!((all[3].health, all[3].free_bytes, all[3].write_bytes_per_s), (DeviceHealth::Ok, 5 * GIB, 0));
    let asked = |text: &str| feasible(&policy(text), &registry);
    let unmet = |domain, needed, available| Err(PlanError::Unmet { domain, needed, available });
    assert_eq!(asked("rateless"), Ok(()));
    assert_eq!(asked("rateless:tolerate=3"), unmet("nodes", 4, 3));
    assert_eq!(asked("rateless:devices=7"), unmet("devices", 7, 6));
    assert_eq!(asked("rateless:tolerate=6,domain=device"), unmet("devices", 7, 6));
    assert_eq!(asked("rateless:tolerate=1,domain=site"), unmet("sites", 2, 1));
    assert_eq!(asked("stripe:devices=6"), Ok(()));
}

#[test]
fn a_block_is_as_large_as_leaves_enough_of_them() {
    let shape = |length: u64| {
        let geometry = crate::layout::Geometry::coded(length);
        (geometry.block_bytes >> 10, geometry.originals)
    };
    assert_eq!(shape(1), (64, 1));
    assert_eq!(shape(MIB), (64, 16));
    assert_eq!(shape(32 * MIB - 1), (64, 512));
    assert_eq!(shape(32 * MIB), (128, 256), "what a block costs hardly depends on its size");
    assert_eq!(shape(64 * MIB - 1), (128, 512));
    assert_eq!(shape(64 * MIB), (256, 256));
    assert_eq!(shape(128 * MIB), (256, 512));
    assert_eq!(shape(256 * MIB + 1), (512, 513));
    assert_eq!(shape(256 * MIB), (256, 1024));
    assert_eq!(shape(GIB), (1024, 1024));
}

#[test]
fn objects_are_cut_without_gaps_and_without_slivers() {
    let rateless = policy("rateless");
    for length in [MIB, 3 * MIB + 1, GIB - 1, GIB, GIB + 1, 2 * GIB - 1, 2 * GIB, 2 * GIB + 1, 5 * GIB + 77] {
        for policy in [rateless, policy("stripe")] {
            let cut = segments(length, &policy);
            let mut offset = 0;
            for segment in &cut {
                assert_eq!(segment.offset, offset);
                assert!(segment.length > 0 && segment.length <= SEGMENT_BYTES_MAX);
                assert_eq!(segment.geometry, crate::layout::Geometry::coded(segment.length));
                offset += segment.length;
            }
            assert_eq!(offset, length);
            if let [.., before, last] = &cut[..] {
                assert!(before.length - last.length <= 2 * u64::from(BLOCK_BYTES_MAX), "{length}: {cut:?}");
            }
        }
    }
    assert_eq!(segments(5 * GIB, &rateless).len(), 5);
}

#[test]
fn small_objects_are_one_replica_and_stripes_never_are() {
    for length in [0, 1, MIB - 1] {
        let [segment] = segments(length, &policy("rateless"))[..] else { panic!("one segment") };
        assert_eq!((segment.scheme, segment.code), (Scheme::Replicated, CodeKind::Replicated));
        assert_eq!((segment.geometry.originals, u64::from(segment.geometry.block_bytes)), (1, length.max(1)));
        let [segment] = segments(length, &policy("stripe"))[..] else { panic!("one segment") };
        assert_eq!((segment.scheme, segment.length), (Scheme::Striped, length));
    }
    assert_eq!(segments(MIB, &policy("rateless"))[0].scheme, Scheme::Rateless);
}

#[test]
fn a_segment_makes_its_code_and_the_layouts_words_for_it() {
    for text in ["rateless", "rateless:lt", "stripe"] {
        let segment = segments(64 * MIB, &policy(text))[0];
        let (spec, code) = segment.code(99, 3.0).unwrap();
        assert_eq!((spec.originals, code.k()), (256, 256));
        assert_eq!(spec.code().unwrap().seed(), code.seed());
        // LT: what is stored at D decodes (§5.2.3).
        assert!(code.decodes(&mut (0..1024)));
    }
}
