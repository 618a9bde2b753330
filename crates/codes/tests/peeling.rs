//! LT against a peeler written from the text: repeat until nothing changes (dissertation §2.3, belief propagation).

#![allow(clippy::unwrap_used, reason = "a test or a measurement fails by panicking")]

mod common;
use common::*;
use rand_core::Rng;
use std::collections::BTreeSet;
use steadfast_codes::rateless::{Code, Decoder, Kind, Push, RankTracker};

fn peel(rows: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let mut known = BTreeSet::new();
    loop {
        let before = known.len();
        for row in rows {
            let mut open = row.difference(&known);
            if let (Some(only), None) = (open.next().copied(), open.next()) {
                known.insert(only);
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

#[test]
fn rank_is_what_peeling_recovers_at_every_prefix() {
    let mut random = random();
    for kind in [LT_HALF, LT_TENTH, Kind::Lt { c: 0.05, delta: 0.5 }, Kind::Replicated] {
        for k in [1, 2, 3, 10, 60, 150] {
            let code = Code::new(kind, k, random.next_u64()).unwrap();
            let order = shuffled((0..6 * k).collect(), &mut random);
            let originals = payload(k, 7, &mut random);
            let blocks = encode(&code, &order, &originals);
            let mut tracker = RankTracker::new(&code);
            let mut decoder = Decoder::new(&code, 7);
            let mut rows = Vec::new();
            for (index, block) in order.into_iter().zip(blocks) {
                let row = code.generator_row(index).into_iter().enumerate();
                let row: BTreeSet<usize> = row.filter(|(_, c)| *c != 0).map(|(column, _)| column).collect();
                let redundant = row.is_subset(&peel(&rows));
                rows.push(row);
                let known = peel(&rows);
                assert_eq!(tracker.push(index), if redundant { Push::Redundant } else { Push::Innovative });
                assert_eq!(
                    decoder.push(index, block).unwrap().1.is_some(),
                    redundant,
                    "redundant is handed back"
                );
                assert_eq!(tracker.rank() as usize, known.len(), "{code:?} after block {index}");
                assert_eq!(tracker.missing() == 0, known.len() == k as usize);
                if tracker.missing() == 0 {
                    break;
                }
            }
            if decoder.missing() == 0 {
                assert!(decoder.solve(1).unwrap() == originals, "{code:?}");
            } else {
                assert!(kind != LT_HALF && kind != LT_TENTH, "{code:?}: 6 K blocks were not enough");
            }
        }
    }
}
