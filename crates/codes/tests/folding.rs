//! Work done ahead of the end changes nothing but the time: every mixture of pushes and folds gives the same bytes.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use rand_core::Rng;
use steadfast_codes::rateless::{Code, Decoder, Kind};

#[test]
fn folding_at_any_moment_gives_the_same_originals() {
    let mut random = common::random();
    let seed = random.next_u64();
    for (round, k) in [512u32, 600, 1024, 1024, 1024].into_iter().enumerate() {
        let code = Code::new(Kind::Mix, k, seed.wrapping_add(round as u64)).unwrap();
        let originals: Vec<Vec<u8>> = (0..k)
            .map(|_| {
                let mut block = vec![0; 96];
                random.fill_bytes(&mut block);
                block
            })
            .collect();
        let views: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
        let mut order: Vec<u32> = (0..3 * k).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, random.next_u64() as usize % (place + 1));
        }
        let mut decoder = Decoder::new(&code, 96);
        let mut folded = 0;
        for index in order {
            let mut block = vec![0; 96];
            code.encode(&[index], &views, &mut [&mut block]).unwrap();
            decoder.push(index, block).unwrap();
            // No idle time in the first round, some in the second, all there is in the others.
            let idle = [0, 1, 3, 1000, 1000][round];
            folded += (0..random.next_u64() % (idle + 1))
                // Memory holds whatever was there before.
                .take_while(|_| decoder.advance(|len| vec![0xa5; len]))
                .count();
            if decoder.missing() == 0 {
                break;
            }
        }
        assert!(round == 0 || folded >= 64, "only {folded} constraints were folded in round {round}");
        assert!(decoder.solve(2).unwrap() == originals, "round {round}");
    }
}

#[test]
fn memory_of_another_length_leaves_the_decoder_as_it_was() {
    let mut random = common::random();
    let code = Code::new(Kind::Mix, 600, 5).unwrap();
    let originals = common::payload(600, 96, &mut random);
    // Coded blocks come before half of all are here.
    let order: Vec<u32> = (300..1400).collect();
    let mut decoder = Decoder::new(&code, 96);
    let (mut refused, mut folded) = (0, 0);
    for (index, block) in order.iter().zip(common::encode(&code, &order, &originals)) {
        decoder.push(*index, block).unwrap();
        if decoder.rank() == 400 {
            for len in [0, 95, 97] {
                // Originals go into the coded blocks' rows first, which takes no memory.
                let call = std::panic::AssertUnwindSafe(|| while decoder.advance(|_| vec![0; len]) {});
                refused += u32::from(std::panic::catch_unwind(call).is_err());
            }
            folded += u32::from(decoder.advance(|len| vec![1; len]));
        }
    }
    assert!(refused >= 3 && folded > 0, "{refused} refused, {folded} folded");
    assert!(decoder.solve(1).unwrap() == originals);
}

/// Sums of constraints are worth their cost from some coded blocks on, and a read that needs none pays for none.
#[test]
fn nothing_is_summed_while_hardly_any_coded_block_came() {
    let mut random = common::random();
    let k = 600;
    let code = Code::new(Kind::Mix, k, 5).unwrap();
    let originals = common::payload(k, 96, &mut random);
    let pays_from = Kind::Mix.effort(k).unwrap().first_pays_from();
    assert!((10..100).contains(&pays_from), "{pays_from}");
    for coded in [0, pays_from - 1, pays_from] {
        let mut decoder = Decoder::new(&code, 96);
        let mut sums = 0;
        // Coded ones first: an original that is in their rows is no sum of a constraint.
        let order: Vec<u32> = (k..k + coded).chain(0..k).collect();
        for (index, block) in order.iter().zip(common::encode(&code, &order, &originals)) {
            decoder.push(*index, block).unwrap();
            let asked = |len| {
                sums += 1;
                vec![0; len]
            };
            decoder.advance(asked);
        }
        while decoder.advance(|len| vec![0; len]) {}
        assert_eq!(sums > 0, coded >= pays_from, "{coded} coded blocks");
        if coded == 0 {
            assert_eq!(decoder.folded(), 0);
        }
        assert!(decoder.solve(1).unwrap() == originals);
    }
}
