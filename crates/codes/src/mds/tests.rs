use super::*;
use crate::kernel::counting::allocations;

#[test]
fn reed_solomon_allocates_nothing_once_it_is_planned() {
    for (k, m, len) in [(4, 2, 1000), (20, 3, 130_000)] {
        let code = Code::new(Kind::ReedSolomon, k, m).unwrap();
        let plan = code.plan(&Vec::from_iter(m..k + m), &[0]).unwrap();
        let data = vec![vec![7u8; len]; k];
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0u8; len]; m];
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        let mut out = vec![0u8; len];
        let mut delta = vec![0u8; len];
        // The processor is asked once what it can do.
        code.encode(&data, &mut parity).unwrap();
        let before = allocations();
        code.encode(&data, &mut parity).unwrap();
        let all = [&data[m..], &[&*parity[0]; 3][..m]].concat();
        let gathered = allocations();
        assert_eq!(gathered - before, 1, "the test's own list");
        plan.run(&all, &mut [&mut out]).unwrap();
        let ranges = code.delta(0, 0, len, data[0], data[1], 1, &mut delta).unwrap();
        apply(&ranges, &delta, parity[1]).unwrap();
        assert_eq!(allocations(), gathered);
    }
}

/// A segment may be stored with fewer parity chunks than its code has: they are the first of them.
#[test]
fn a_parity_chunk_is_the_same_however_many_there_are() {
    for (k, m) in [(1, 3), (4, 2), (4, 4), (10, 4), (32, 8)] {
        let len = 1000;
        let data: Vec<Vec<u8>> = (0..k).map(|chunk| vec![chunk as u8 * 7 + 3; len]).collect();
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let parity = |m: usize| {
            let mut parity = vec![vec![0u8; len]; m];
            let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            Code::new(Kind::ReedSolomon, k, m).unwrap().encode(&data, &mut out).unwrap();
            parity
        };
        let all = parity(m);
        for fewer in 1..m {
            assert_eq!(parity(fewer), all[..fewer], "{k} and {fewer} of {m}");
        }
    }
}

/// Every operation with the caller's buffers; Reed-Solomon in pieces, codes with a kernel, and such as run a program.
#[test]
fn nothing_is_allocated_with_the_callers_buffers() {
    let shapes = [
        (Kind::ReedSolomon, 10, 4),
        (Kind::ReedSolomon, 3, 200),
        (Kind::Cauchy, 10, 2),
        (Kind::Cauchy, 6, 3),
        (Kind::Cauchy, 4, 40),
        (Kind::Rdp, 10, 2),
        (Kind::Rdp, 16, 2),
        (Kind::Rdp, 60, 2),
    ];
    for (kind, k, m) in shapes {
        let code = Code::new(kind, k, m).unwrap();
        let lost = m.min(2);
        let kept = Vec::from_iter(lost..k + lost);
        // The second list names a chunk that is there.
        let plans = [code.plan(&kept, &[0, 1]).unwrap(), code.plan(&kept, &[0, k]).unwrap()];
        let len = 64 * code.chunk_multiple() * 3 + 5 * code.chunk_multiple();
        let data: Vec<Vec<u8>> = (0..k).map(|chunk| vec![chunk as u8 + 7; len]).collect();
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0u8; len]; m];
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        let mut out = vec![vec![1u8; len]; 2];
        let mut out: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
        let (mut delta, mut both, mut folded) = (vec![0u8; len], vec![0u8; len], Vec::with_capacity(len));
        // The processor is asked once what it can do.
        code.encode(&data, &mut parity).unwrap();
        let before = allocations();
        code.encode(&data, &mut parity).unwrap();
        code.encode_strips(&data, &mut parity, |_, _, _| {}).unwrap();
        assert_eq!(allocations(), before, "{kind:?} {k} + {m}: encode");
        let copies: Vec<Vec<u8>> = parity.iter().map(|chunk| chunk.to_vec()).collect();
        let copies: Vec<&[u8]> = copies.iter().map(Vec::as_slice).collect();
        let all = [&data[lost..], &copies[..lost]].concat();

        let before = allocations();
        for plan in &plans {
            plan.run(&all, &mut out).unwrap();
        }
        assert_eq!(allocations(), before, "{kind:?} {k} + {m}: reconstruct");
        assert!(*out[0] == *data[0]);
        assert!(*out[1] == *all[k - lost], "a copy");

        // Blocks in part at both ends, of which the plan is asked again and again.
        let range = len / 3..len / 2;
        let read = code.source_range(len, range.clone()).unwrap();
        let parts: Vec<&[u8]> = all.iter().map(|chunk| &chunk[read.clone()]).collect();
        let mut made = [vec![1u8; range.len()], vec![1u8; range.len()]];
        let mut made = made.each_mut().map(Vec::as_mut_slice);
        let mut scratch = Vec::with_capacity(2 * read.len());
        let before = allocations();
        for plan in &plans {
            plan.run_range(len, range.clone(), &parts, &mut scratch, &mut made).unwrap();
        }
        assert_eq!(allocations(), before, "{kind:?} {k} + {m}: reconstruct a range");
        assert!(*made[0] == data[0][range.clone()]);
        assert!(*made[1] == all[k - lost][range.clone()], "a copy");

        let before = allocations();
        assert!(code.verify(&data, &copies).unwrap());
        assert_eq!(allocations(), before, "{kind:?} {k} + {m}: verify");

        // Blocks in part at both ends, whole ones between.
        let mut writes = vec![0..64, 3..100, 100..163];
        if kind != Kind::Rdp || k < 13 {
            writes.push(3..len - 5);
        }
        for range in writes {
            let before = allocations();
            let (old, new) = (&data[k - 1][range.clone()], &data[0][range.clone()]);
            let ranges = code.delta_ranges(k - 1, range.clone(), len, m - 1).unwrap();
            let first = &mut delta[..ranges.total()];
            code.delta(k - 1, range.start, len, old, new, m - 1, first).unwrap();
            apply(&ranges, first, parity[m - 1]).unwrap();
            if m == 2 {
                let p = code.delta_ranges(k - 1, range.clone(), len, 0).unwrap().total();
                let (p, q) = (&mut out[0][..p], &mut both[..ranges.total()]);
                code.deltas(k - 1, range.start, len, old, new, &mut [p, q]).unwrap();
                assert!(*first == both[..ranges.total()]);
            }
            let sum = fold_into(&[(&ranges, &*first), (&ranges, &*first)], &mut folded).unwrap();
            assert_eq!(allocations(), before, "{kind:?} {k} + {m}: a delta of {range:?}");
            assert!(sum == ranges && folded.iter().all(|byte| *byte == 0), "twice the same is nothing");
        }
    }
}

/// What the guide's table says of them; a one in a row of bits is a packet that is read, of eight a chunk.
#[test]
fn codes_of_packets_read_what_the_guide_says() {
    for (k, range) in [(4, [1.7, 2.2]), (32, [2.8, 3.1])] {
        let mut reads = Vec::new();
        for m in [3, 4] {
            let sums = cauchy::sums(&cauchy::generator(k, m).unwrap(), &Vec::from_iter(0..k));
            let read_for = |parity: usize| {
                let own = |(unit, _): &&Sum| matches!(unit, Unit::Output(output, _) if *output == parity);
                let packets: usize = sums.iter().filter(own).map(|(_, terms)| terms.len()).sum();
                packets as f64 / (8 * k) as f64
            };
            assert_eq!(read_for(0), 1.0, "{k} + {m}");
            reads.extend((1..m).map(read_for));
        }
        let tenths = |read: f64| (10.0 * read).round() / 10.0;
        let [least, most] = [f64::min, f64::max].map(|of| reads.iter().copied().reduce(of).unwrap());
        assert_eq!([least, most].map(tenths), range, "k = {k}: {reads:?}");
    }
    // One pass over k chunks, whether it makes both parity chunks or up to two that were lost.
    for (kind, k) in [(Kind::Cauchy, 4), (Kind::Cauchy, 32), (Kind::Rdp, 10), (Kind::Rdp, 16)] {
        let code = Code::new(kind, k, 2).unwrap();
        let (Engine::Cauchy(_, encode) | Engine::Rdp { encode, .. }) = &code.engine else {
            panic!("{kind:?} is of packets");
        };
        assert!(matches!(encode, Encoder::Double(_)), "{kind:?} {k} + 2");
        for lost in [&[1][..], &[0, 1][..]] {
            let available: Vec<usize> = (0..k + 2).filter(|chunk| !lost.contains(chunk)).collect();
            let plan = code.plan(&available, lost).unwrap();
            assert!(!matches!(plan.method, Method::Packets { .. }), "{kind:?} {k} + 2");
            assert_eq!(plan.used().len(), k, "{kind:?} {k} + 2 without {lost:?}");
        }
    }
}
