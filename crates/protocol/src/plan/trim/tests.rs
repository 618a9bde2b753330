use super::*;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use steadfast_codes::rateless::Kind;

fn mix(k: u32) -> Code {
    Code::new(Kind::Mix, k, 11).unwrap()
}

/// Blocks 0 to `blocks` in runs of `run` on devices that take turns by `weights`; device i in domain `domains[i]`.
fn held(blocks: u32, run: u32, weights: &[u32], domains: &[u32]) -> Vec<Existing> {
    let turns: Vec<usize> =
        weights.iter().enumerate().flat_map(|(device, &weight)| vec![device; weight as usize]).collect();
    let mut held: Vec<Existing> = domains
        .iter()
        .enumerate()
        .map(|(device, &domain)| Existing {
            device: DeviceId(device as u128),
            domain,
            blocks: IndexRanges::new(),
        })
        .collect();
    for (turn, start) in (0..blocks).step_by(run as usize).enumerate() {
        let device = turns[(turn * 7) % turns.len()];
        held[device].blocks.insert_range(start..blocks.min(start + run));
    }
    held
}

/// Every pattern, asked of the code directly; what was given stays a superset and originals stay whole.
fn check(code: &Code, rule: Rule, held: &[Existing], trim: &Trim) {
    let mut placed = Vec::new();
    for (held, (device, keep)) in held.iter().zip(&trim.keep) {
        assert_eq!(held.device, *device);
        assert!(keep.iter().all(|index| held.blocks.contains(index)));
        assert!(held.blocks.iter().filter(|&index| index < code.k()).all(|index| keep.contains(index)));
        placed.extend(keep.iter().map(|index| (held.domain, index)));
    }
    assert_eq!(placed.len(), trim.stored_blocks as usize);
    let before: u32 = held.iter().map(|held| held.blocks.count()).sum();
    assert_eq!(trim.stored_blocks + trim.dropped_blocks, before);
    assert!(f64::from(trim.stored_blocks) >= f64::from(code.k()) * (1.0 + rule.redundancy) - 1e-6);
    let domains: u32 = held.iter().map(|held| held.domain + 1).max().unwrap();
    for mask in (0u32..1 << domains).filter(|mask| mask.count_ones() == rule.tolerate) {
        let mut left = placed.iter().filter(|(domain, _)| mask >> domain & 1 == 0).map(|&(_, index)| index);
        assert!(code.decodes(&mut left), "the loss of domains {mask:b} is fatal");
    }
}

#[test]
fn drops_the_highest_indices_evenly() {
    let code = mix(512);
    let held = held(2048, 8, &[1; 6], &[0, 1, 2, 3, 4, 5]);
    let rule = Rule { redundancy: 1.0, tolerate: 2 };
    let trim = trim(&code, rule, 6, &held, 1).unwrap();
    check(&code, rule, &held, &trim);
    assert_eq!((trim.stored_blocks, trim.dropped_blocks), (1024, 1024));
    for (held, (_, keep)) in held.iter().zip(&trim.keep) {
        let half = f64::from(held.blocks.count()) / 2.0;
        assert!((f64::from(keep.count()) - half).abs() <= 1.0);
        let highest = keep.iter().max().unwrap();
        assert!(held.blocks.iter().filter(|index| !keep.contains(*index)).all(|index| index > highest));
    }
}

#[test]
fn fast_devices_keep_their_share() {
    let code = mix(512);
    let held = held(2048, 4, &[1, 2, 3, 4, 5, 6], &[0, 1, 2, 3, 4, 5]);
    let rule = Rule { redundancy: 1.5, tolerate: 1 };
    let trim = trim(&code, rule, 6, &held, 1).unwrap();
    check(&code, rule, &held, &trim);
    let part = f64::from(trim.stored_blocks) / 2048.0;
    for (held, (_, keep)) in held.iter().zip(&trim.keep) {
        assert!((f64::from(keep.count()) - part * f64::from(held.blocks.count())).abs() <= 1.0);
    }
}

#[test]
fn shares_become_more_even_where_f_asks_for_it() {
    // Two domains have two thirds of all: at D = 1 in these shares their loss would leave two thirds of K.
    let code = mix(512);
    let held = held(2560, 8, &[4, 4, 1, 1, 1, 1], &[0, 1, 2, 3, 4, 5]);
    let rule = Rule { redundancy: 1.0, tolerate: 2 };
    let trim = trim(&code, rule, 6, &held, 1).unwrap();
    check(&code, rule, &held, &trim);
    assert!(trim.stored_blocks <= 1024 + 8, "{}", trim.stored_blocks);
}

#[test]
fn below_what_f_needs_is_refused_with_what_is_possible() {
    let code = mix(512);
    let held = held(2048, 8, &[1; 6], &[0, 1, 2, 3, 4, 5]);
    let asked = |redundancy| trim(&code, Rule { redundancy, tolerate: 2 }, 6, &held, 1);
    let error = asked(0.2).unwrap_err();
    // 6 domains less 2: half as much again as K and the guard of 2 %.
    let TrimError::BelowTolerance { smallest, tolerate: 2, .. } = error else { panic!("{error:?}") };
    assert!((0.53..=0.54).contains(&smallest), "{smallest}");
    assert!(error.to_string().contains("0.2") && error.to_string().contains("0.5"), "{error}");
    let rule = Rule { redundancy: smallest, tolerate: 2 };
    check(&code, rule, &held, &trim(&code, rule, 6, &held, 1).unwrap());
    assert!(asked(smallest - 0.02).is_err());
}

#[test]
fn what_is_not_there_cannot_be_dropped() {
    let code = mix(200);
    let held = held(400, 8, &[1; 6], &[0, 1, 2, 3, 4, 5]);
    // More than is there: everything stays, and the rule's own answer is given.
    let rule = Rule { redundancy: 3.0, tolerate: 2 };
    assert!(matches!(
        trim(&code, rule, 6, &held, 1),
        Err(TrimError::Unmet { blocks: 400, why: Shortfall::Redundancy { confirmed: 400, needed: 800 } })
    ));
    // Two devices of three are not enough for f = 2.
    let rule = Rule { redundancy: 0.5, tolerate: 2 };
    assert!(matches!(trim(&code, rule, 6, &held[..2], 1), Err(TrimError::Unmet { .. })));
    // Four of six have 267 of 400: minting would make up for the lost ones, but not within D = 0.5.
    let error = trim(&code, rule, 6, &held[..4], 1).unwrap_err();
    let alone = matches!(error, TrimError::BelowTolerance { smallest: 1.04, out_of_reach: 0, .. });
    assert!(alone, "{error:?}");
    assert!(error.to_string().ends_with("1.04 is the smallest for the devices that hold it"), "{error}");
    // The other two are out of reach, and would do with it.
    let said = error.beside(133).to_string();
    let why = "1.04 is the smallest while devices that hold 133 other blocks are out of reach";
    assert!(said.contains(why) && said.ends_with("try again when they are back"), "{said}");
    let rule = Rule { redundancy: 1.04, tolerate: 2 };
    assert!(matches!(trim(&code, rule, 6, &held[..4], 1), Err(TrimError::Unmet { .. })));
}

/// Whether all blocks together leave enough by counting.
fn all_meet(code: &Code, rule: Rule, domains: u32, held: &[Existing]) -> bool {
    Shares::new(code, domains, held).smallest(Need::new(code, rule)).is_some()
}

/// Seeded devices, domains, speeds and targets: either every promise is kept, or the smallest D that is named is right.
#[test]
fn seeded_trims_keep_their_promises() {
    let (mut kept, mut refused) = (0, 0);
    for round in 0..60u64 {
        let mut random = Pcg64Mcg::new(u128::from(round) << 64 | 0x7219);
        let mut below = |limit: u64| random.next_u64() % limit;
        let k = [16, 60, 130, 300][below(4) as usize];
        let domains = 3 + below(5) as u32;
        let of: Vec<u32> = (0..domains).flat_map(|domain| vec![domain; 1 + below(2) as usize]).collect();
        let weights: Vec<u32> = of.iter().map(|_| 1 + below(6) as u32).collect();
        let code = mix(k);
        let held = held(k * (2 + below(3) as u32), 1 + below(8) as u32, &weights, &of);
        let rule = Rule { redundancy: below(150) as f64 / 100.0, tolerate: below(3) as u32 };
        match trim(&code, rule, domains, &held, round) {
            Ok(trim) => {
                kept += 1;
                check(&code, rule, &held, &trim);
            }
            Err(TrimError::BelowTolerance { smallest, .. }) if all_meet(&code, rule, domains, &held) => {
                refused += 1;
                let rule = Rule { redundancy: smallest, ..rule };
                let possible = trim(&code, rule, domains, &held, round)
                    .unwrap_or_else(|error| panic!("round {round}: {error}"));
                check(&code, rule, &held, &possible);
            }
            Err(_) => {
                // All blocks together fail by counting or decoding.
                let all: Vec<u32> = held.iter().map(|held| held.blocks.count()).collect();
                assert!(!verdict(&code, rule, domains, round, &held, &all).holds());
            }
        }
    }
    let distinct: BTreeSet<u32> = [kept, refused].into();
    println!("{kept} trimmed, {refused} refused");
    assert!(kept > 20 && refused > 5 && !distinct.contains(&0));
}
