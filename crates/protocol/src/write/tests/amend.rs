//! Writes that amend: what exists counts, what is wanted is written first, and no more is minted than the rule lacks.

use super::{
    model::{
        Common, Disk, Draw, MS, Outcome, all_patterns_decode, disk, placed, run, spec, survives_everything,
    },
    *,
};
use std::collections::BTreeSet;
use steadfast_codes::rateless::Kind;

const BLOCK: u32 = 64 << 10;
const SIX: Rule = Rule { redundancy: 0.5, tolerate: 2 };

fn six() -> Vec<Disk> {
    (0..6).map(|domain| disk(domain, 100.0)).collect()
}

/// A put of K blocks under `rule`, and what it placed.
fn stored(code: (Kind, u32), rule: Rule, disks: &[Disk]) -> (WriteSpec, Vec<Existing>) {
    let spec = spec(code, BLOCK, rule, disks, disks.len());
    let done = run(spec.clone(), disks, Common::default()).result.unwrap();
    let existing = |holder: &Share| Existing {
        device: holder.device,
        domain: disks[holder.device.0 as usize].domain,
        blocks: holder.blocks.clone(),
    };
    (spec, done.holders.iter().map(existing).collect())
}

fn highest(existing: &[Existing]) -> u32 {
    existing.iter().flat_map(|existing| existing.blocks.iter()).max().map_or(0, |index| index + 1)
}

/// An amendment of what a put placed, with `wanted` of it to be rewritten where it is.
fn amendment(put: &WriteSpec, existing: &[Existing], wanted: &BTreeSet<u32>) -> WriteSpec {
    let (mut keep, mut rewrite) = (Vec::new(), Vec::new());
    for held in existing {
        let (out, stays): (Vec<u32>, Vec<u32>) = held.blocks.iter().partition(|index| wanted.contains(index));
        keep.push(Existing { blocks: stays.into_iter().collect(), ..held.clone() });
        rewrite.push((held.device, out.into_iter().collect()));
    }
    let given = Given { existing: keep, wanted: rewrite, first_new_index: highest(existing) };
    WriteSpec { scheme: Scheme::Rateless, given, ..put.clone() }
}

/// What exists and what was written, by failure domain; of devices that are not `lost`.
fn together(spec: &WriteSpec, outcome: &Outcome, disks: &[Disk], lost: &[u32]) -> Vec<(u32, u32)> {
    let existing = spec.given.existing.iter();
    let old = existing.flat_map(|held| held.blocks.iter().map(|index| (held.domain, index)));
    let new = placed(outcome.result.as_ref().unwrap(), disks);
    old.chain(new).filter(|(domain, _)| !lost.contains(domain)).collect()
}

fn all_wanted_are_listed(spec: &WriteSpec, outcome: &Outcome) {
    let done = outcome.result.as_ref().unwrap();
    let listed: BTreeSet<u32> = done.holders.iter().flat_map(|holder| holder.blocks.iter()).collect();
    let wanted: BTreeSet<u32> = spec.given.wanted.iter().flat_map(|(_, blocks)| blocks.iter()).collect();
    assert!(wanted.is_subset(&listed), "{:?} are missing", wanted.difference(&listed).collect::<Vec<_>>());
}

#[test]
fn a_rule_that_holds_is_done_at_once() {
    let disks = six();
    let (put, existing) = stored((Kind::Mix, 512), SIX, &disks);
    let outcome = run(amendment(&put, &existing, &BTreeSet::new()), &disks, Common::default());
    let done = outcome.result.unwrap();
    assert_eq!((done.stored_blocks, done.pushed_blocks, outcome.opened), (0, 0, 0));
    assert!(done.holders.is_empty() && done.verdict.holds());
}

#[test]
fn a_higher_redundancy_mints_what_is_lacking() {
    let disks = six();
    let (put, existing) = stored((Kind::Mix, 512), SIX, &disks);
    let before: u32 = existing.iter().map(|held| held.blocks.count()).sum();
    for redundancy in [0.6, 1.0, 3.0] {
        let rule = Rule { redundancy, tolerate: 2 };
        let mut spec = amendment(&put, &existing, &BTreeSet::new());
        spec.rule = rule;
        let outcome = run(spec.clone(), &disks, Common::default());
        let all = together(&spec, &outcome, &disks, &[]);
        all_patterns_decode(&spec.code, rule, &all, &disks);
        let done = outcome.result.unwrap();
        println!(
            "D = {redundancy}: {before} and {} blocks, {} wasted",
            done.stored_blocks, done.wasted_blocks
        );
        let lacking = (512.0 * (1.0 + redundancy)) as u32 - before;
        assert!(done.stored_blocks >= lacking && done.stored_blocks <= lacking + 8);
        assert!(done.wasted_blocks <= 8, "{} wasted", done.wasted_blocks);
    }
}

#[test]
fn an_update_writes_what_is_touched_and_nothing_else() {
    let disks = six();
    let rule = Rule { redundancy: 3.0, tolerate: 2 };
    let (put, existing) = stored((Kind::Mix, 1024), rule, &disks);
    let touched: BTreeSet<u32> = put.code.touched_by(300, 0..highest(&existing)).into_iter().collect();
    let spec = amendment(&put, &existing, &touched);
    let outcome = run(spec.clone(), &disks, Common::default());
    all_wanted_are_listed(&spec, &outcome);
    all_patterns_decode(&spec.code, rule, &together(&spec, &outcome, &disks, &[]), &disks);
    let done = outcome.result.unwrap();
    println!("{} of {} blocks in {:.1} ms", done.pushed_blocks, highest(&existing), outcome.at * 1e3);
    let stored: u32 = spec.given.wanted.iter().map(|(_, blocks)| blocks.count()).sum();
    assert_eq!((done.pushed_blocks, done.stored_blocks, done.wasted_blocks), (stored, stored, 0));
    // Every block went to the device that had it.
    for (device, blocks) in &spec.given.wanted {
        let holder = done.holders.iter().find(|holder| holder.device == *device);
        assert_eq!(holder.map_or(0, |holder| holder.blocks.count()), blocks.count());
    }
}

/// Copies that a drain moves, whatever devices do meanwhile: beyond the wanted ones and what is lost again nothing is minted that makes
/// nothing safer.
#[test]
fn no_domain_is_given_a_second_copy_while_others_are_waited_for() {
    const K: u32 = 80;
    let rule = Rule { redundancy: 2.0, tolerate: 2 };
    let mut most = 0;
    for case in 0..300 {
        let mut draw = Draw::new(case);
        let leaving = 6;
        let disks: Vec<Disk> = (0..6)
            .map(|domain| {
                let usual = disk(domain, draw.rate_mb(20.0, 200.0));
                match draw.below(4) {
                    0 => Disk { refuses_until: draw.below(3000) * MS, ..usual },
                    1 => Disk { fades: Some((draw.below(20) as u32, 0.5)), ..usual },
                    2 => Disk { stalls_after: Some(draw.below(30) as u32), ..usual },
                    _ => usual,
                }
            })
            .collect();
        let mut held = vec![IndexRanges::new(); 7];
        let mut wanted = vec![IndexRanges::new(); 6];
        for original in 0..K {
            let first = draw.below(7) as u32;
            for copy in 0..3 {
                let domain = (first + copy) % 7;
                if domain == leaving {
                    let home = (0..6).find(|home| (0..3).all(|copy| (first + copy) % 7 != *home));
                    wanted[home.unwrap() as usize].insert(copy * K + original);
                } else {
                    held[domain as usize].insert(copy * K + original);
                }
            }
        }
        let existing = (0..6).map(|domain: u32| {
            let blocks = held[domain as usize].clone();
            Existing { device: DeviceId(domain.into()), domain, blocks }
        });
        let wanted = wanted.into_iter().zip(0..).map(|(blocks, device)| (DeviceId(device), blocks));
        let given = Given { existing: existing.collect(), wanted: wanted.collect(), first_new_index: 3 * K };
        let put = spec((Kind::Replicated, K), BLOCK, rule, &disks, disks.len());
        let amended = WriteSpec { scheme: Scheme::Rateless, given, ..put };
        let outcome = run(amended.clone(), &disks, Common::default());
        // Four may be all that have none of what is wanted.
        let ends = |disk: &&Disk| disk.stalls_after.is_some() || disk.fades.is_some();
        if disks.iter().filter(ends).count() >= 4 && outcome.result.is_err() {
            continue;
        }
        assert!(outcome.result.is_ok(), "case {case}: {:?}", outcome.result);
        all_wanted_are_listed(&amended, &outcome);
        all_patterns_decode(&amended.code, rule, &together(&amended, &outcome, &disks, &[]), &disks);
        most = most.max(outcome.pushed);
    }
    println!("{most} pushed at most");
    // Three of each original are there when nothing goes wrong, and on six domains there is no room for more than three others.
    assert!(most <= 3 * K, "{most} pushed");
}

#[test]
fn what_a_lost_device_was_to_have_goes_to_others_and_its_own_is_made_up_for() {
    for (name, change) in [
        ("dead", Disk { dies_at: Some(0), ..disk(3, 100.0) }),
        ("dies early", Disk { dies_at: Some(2 * MS), ..disk(3, 100.0) }),
        ("stalls", disk(3, 0.0)),
        ("full", Disk { room: Some(1), ..disk(3, 100.0) }),
        ("refuses", Disk { refuses_until: 400 * MS, ..disk(3, 100.0) }),
    ] {
        let mut disks = six();
        let (put, existing) = stored((Kind::Mix, 512), SIX, &disks);
        let touched: BTreeSet<u32> = (0..highest(&existing)).filter(|index| index % 9 == 4).collect();
        disks[3] = change;
        let spec = amendment(&put, &existing, &touched);
        let outcome = run(spec.clone(), &disks, Common::default());
        assert!(outcome.result.is_ok(), "{name}: {:?}", outcome.result);
        all_wanted_are_listed(&spec, &outcome);
        let lost: &[u32] = if change.dies_at.is_some() { &[3] } else { &[] };
        all_patterns_decode(&spec.code, SIX, &together(&spec, &outcome, &disks, lost), &disks);
        println!("{name}: {} pushed in {:.0} ms", outcome.pushed, outcome.at * 1e3);
        // A device that is only slow is given up after its silence, not waited for.
        assert!(outcome.at < 1.0, "{name}: {} s", outcome.at);
    }
}

/// A device is emptied: the originals it has keep their index, everything else is minted.
#[test]
fn a_drained_device_is_made_up_for() {
    for (kind, k, rule) in [
        (Kind::Mix, 512, SIX),
        (Kind::Mix, 60, SIX),
        // A stripe: all of its blocks are wanted.
        (Kind::Replicated, 60, Rule { redundancy: 0.0, tolerate: 0 }),
    ] {
        let disks = six();
        let (put, existing) = stored((kind, k), rule, &disks);
        let gone = existing.iter().position(|held| held.device == DeviceId(2)).unwrap();
        let mut rest = existing.clone();
        let drained = rest.remove(gone);
        let originals: IndexRanges = drained.blocks.iter().filter(|&index| index < k).collect();
        let given = Given {
            existing: rest,
            wanted: vec![(drained.device, originals)],
            first_new_index: highest(&existing),
        };
        let mut spec = WriteSpec { scheme: Scheme::Rateless, given, ..put };
        spec.devices.retain(|target| target.device != drained.device);
        let outcome = run(spec.clone(), &disks, Common::default());
        all_wanted_are_listed(&spec, &outcome);
        let all = together(&spec, &outcome, &disks, &[]);
        all_patterns_decode(&spec.code, rule, &all, &disks);
        assert!(all.iter().all(|&(domain, _)| domain != 2));
        assert!((0..k).all(|original| all.iter().any(|&(_, index)| index == original)));
        println!("{kind:?}, K = {k}: {} of {} blocks moved", outcome.pushed, highest(&existing));
    }
}

/// Devices leave one after the other, each is empty when it is back: the object stays about as large as five devices need it, and
/// is spread over all five.
#[test]
fn turns_of_drains_do_not_let_an_object_grow() {
    let k = 512;
    for rates in [[100.0; 6], [30.0, 60.0, 80.0, 100.0, 120.0, 150.0]] {
        let disks: Vec<Disk> = (0..6).map(|domain| disk(domain, rates[domain as usize])).collect();
        let (put, mut held) = stored((Kind::Mix, k), SIX, &disks);
        let before: u32 = held.iter().map(|existing| existing.blocks.count()).sum();
        let mut rule = SIX;
        let (mut most, mut next) = (0, highest(&held));
        for turn in 0..18 {
            let gone = DeviceId(turn % 6);
            let (drained, rest): (Vec<Existing>, Vec<Existing>) =
                held.into_iter().partition(|existing| existing.device == gone);
            let none = Existing { device: gone, domain: gone.0 as u32, blocks: IndexRanges::new() };
            let drained = drained.into_iter().next().unwrap_or(none);
            let originals: IndexRanges = drained.blocks.iter().filter(|&index| index < k).collect();
            let stored = |held: &[Existing]| held.iter().map(|existing| existing.blocks.count()).sum::<u32>();
            // As an object that leaves has it: what it has is what it is to have.
            let all = stored(&rest) + drained.blocks.count();
            rule.redundancy = (f64::from(all) / f64::from(k) * 100.0 - 100.0).floor() / 100.0;
            let given = Given { existing: rest, wanted: vec![(gone, originals)], first_new_index: next };
            let mut spec = WriteSpec { rule, given, ..put.clone() };
            spec.devices.retain(|target| target.device != gone);
            let outcome = run(spec.clone(), &disks, Common::default());
            all_wanted_are_listed(&spec, &outcome);
            let done = outcome.result.unwrap();
            held = spec.given.existing;
            for share in done.holders {
                next = next.max(share.blocks.iter().max().map_or(0, |index| index + 1));
                match held.iter_mut().find(|existing| existing.device == share.device) {
                    Some(existing) => existing.blocks.insert_all(&share.blocks),
                    None => held.push(Existing {
                        device: share.device,
                        domain: disks[share.device.0 as usize].domain,
                        blocks: share.blocks,
                    }),
                }
            }
            most = most.max(stored(&held));
        }
        let each: Vec<u32> = held.iter().map(|existing| existing.blocks.count()).collect();
        println!("{before} blocks before, {most} at the most, in the end {each:?}");
        // Five devices of which two are lost have to hold five thirds of K, those of unequal speeds and of unlucky draws a little more.
        assert!(most < k * 19 / 10, "{most} of {before}");
        assert!(each.len() == 5 && each.iter().all(|&blocks| 6 * blocks > most), "{each:?}");
    }
}

/// Nothing is known of any device, little is granted at first, and the one that is empty is slow to begin.
#[test]
fn a_device_that_begins_late_is_filled_up_all_the_same() {
    let k = 512;
    let disks: Vec<Disk> = (0..6).map(|domain| disk(domain, 100.0)).collect();
    let (put, existing) = stored((Kind::Mix, k), SIX, &disks[..5]);
    let given = Given { existing, wanted: Vec::new(), first_new_index: 4 * k };
    let devices = spec((Kind::Mix, k), BLOCK, SIX, &disks, 6).devices;
    let mut spec = WriteSpec { domains: 6, devices, given, ..put };
    spec.rule.redundancy = 1.1;
    let mut late = disks.clone();
    late[5].refuses_until = 5 * MS;
    let outcome =
        run(spec.clone(), &late, Common { credit_bytes: 2 * u64::from(BLOCK), ..Common::default() });
    let done = outcome.result.unwrap();
    let of = |device| done.holders.iter().find(|share| share.device == DeviceId(device));
    let empty = of(5).map_or(0, |share| share.blocks.count());
    println!("{empty} of {} blocks", done.stored_blocks);
    assert!(empty > 120, "{empty} of {}", done.stored_blocks);
}

/// A device gives far less than it is known for: it gets less, and the others do not wait for it.
#[test]
fn a_device_that_turns_out_slow_is_not_waited_for() {
    let k = 512;
    let mut disks: Vec<Disk> = (0..6).map(|domain| disk(domain, 100.0)).collect();
    let (put, mut existing) = stored((Kind::Mix, k), SIX, &disks);
    let gone = existing.iter().position(|held| held.device == DeviceId(2)).unwrap();
    let first_new_index = highest(&existing);
    existing.remove(gone);
    let given = Given { existing, wanted: Vec::new(), first_new_index };
    let mut spec = WriteSpec { given, ..put };
    for target in &mut spec.devices {
        target.write_bytes_per_s = 100_000_000;
    }
    let even = run(spec.clone(), &disks, Common::default());
    disks[2] = disk(2, 5.0);
    let slow = run(spec.clone(), &disks, Common::default());
    println!("{:.0} ms, and {:.0} ms with one at a twentieth", even.at * 1e3, slow.at * 1e3);
    all_patterns_decode(&spec.code, SIX, &together(&spec, &slow, &disks, &[]), &disks);
    assert!(slow.at < 5.0 * even.at, "{} s, else {}", slow.at, even.at);
}

#[test]
fn too_few_domains_refuse_an_amendment() {
    let disks: Vec<Disk> = (0..3).map(|domain| disk(domain, 100.0)).collect();
    let (put, existing) = stored((Kind::Mix, 130), SIX, &disks);
    let mut rest = existing.clone();
    let drained = rest.pop().unwrap();
    let given = Given { existing: rest, wanted: Vec::new(), first_new_index: highest(&existing) };
    let mut spec = WriteSpec { given, ..put };
    spec.devices.retain(|target| target.device != drained.device);
    let outcome = run(spec, &disks, Common::default());
    assert!(matches!(outcome.result, Err(WriteError::NotEnoughDomains { .. })), "{:?}", outcome.result);
}

/// Seeded amendments of every kind on seeded bad days: done whenever enough devices are sound, with every promise kept.
#[test]
fn bad_days_of_amendments() {
    let seed = seed_or(434);
    let (mut done, mut failed, mut minted) = (0, 0, 0);
    for round in 0..200 {
        let mut draw = Draw::new(seed.wrapping_mul(1009).wrapping_add(round));
        let nodes = 4 + draw.below(5) as u32;
        let f = draw.below(3) as u32;
        let sound: Vec<Disk> = (0..nodes).map(|node| disk(node, draw.rate_mb(5.0, 150.0))).collect();
        let k = [20, 130, 300][draw.below(3) as usize];
        let rule = Rule { redundancy: [0.0, 0.5, 1.0][draw.below(3) as usize], tolerate: f };
        let (put, existing) = stored((Kind::Mix, k), rule, &sound);
        let share = draw.below(30);
        let touched: BTreeSet<u32> = (0..highest(&existing)).filter(|_| draw.chance(share)).collect();
        let mut disks = sound.clone();
        for disk in &mut disks {
            match draw.below(12) {
                0 => disk.rate = 0,
                1 => disk.dies_at = Some(draw.below(30) * MS),
                2 => disk.room = Some(draw.below(8) as u32),
                3 => disk.refuses_until = draw.below(50) * MS,
                _ => {}
            }
        }
        let mut spec = amendment(&put, &existing, &touched);
        spec.rule.redundancy += [0.0, 0.0, 0.3][draw.below(3) as usize];
        // Some devices are only turned to when others fail.
        let spares = draw.below(u64::from(nodes) / 2) as usize;
        spec.spares = spec.devices.split_off(spec.devices.len() - spares);
        let group = [1, 8, usize::MAX][draw.below(3) as usize];
        let common = Common { flush_ns: draw.below(2) * MS, group, ..Common::default() };
        let outcome = run(spec.clone(), &disks, common);
        let well = |disk: &&Disk| disk.rate > 0 && disk.dies_at.is_none() && disk.room.is_none();
        match &outcome.result {
            Ok(amended) => {
                done += 1;
                all_wanted_are_listed(&spec, &outcome);
                all_patterns_decode(&spec.code, spec.rule, &together(&spec, &outcome, &disks, &[]), &disks);
                assert_eq!(amended.pushed_blocks, outcome.pushed);
                minted += u32::from(
                    amended
                        .holders
                        .iter()
                        .any(|holder| holder.blocks.iter().any(|index| index >= spec.given.first_new_index)),
                );
            }
            Err(error) => {
                failed += 1;
                let sound = disks.iter().filter(well).count() as u32;
                assert!(sound <= f, "round {round}: {error}; {disks:?}, {:?}", spec.given);
            }
        }
    }
    println!("{done} done, {minted} of them minted, {failed} failed");
    assert!(done > 150 && minted > 20);
}

#[test]
fn the_same_events_give_the_same_amendment() {
    let disks = six();
    let (put, existing) = stored((Kind::Mix, 512), SIX, &disks);
    let touched: BTreeSet<u32> = (0..highest(&existing)).filter(|index| index % 5 == 0).collect();
    let mut unwell = disks.clone();
    unwell[1].dies_at = Some(3 * MS);
    let trace = || run(amendment(&put, &existing, &touched), &unwell, Common::default()).trace;
    assert_eq!(trace(), trace());
    survives_everything(&put.code, SIX, &run(put.clone(), &disks, Common::default()).result.unwrap(), &disks);
}
