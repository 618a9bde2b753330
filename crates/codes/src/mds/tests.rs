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

#[test]
fn codes_of_packets_with_a_kernel_allocate_nothing_once_they_are_planned() {
    for kind in [Kind::Cauchy, Kind::Rdp] {
        let code = Code::new(kind, 10, 2).unwrap();
        let plan = code.plan(&Vec::from_iter(2..12), &[0, 1]).unwrap();
        let len = 64 * code.chunk_multiple() * 3;
        let data = vec![vec![7u8; len]; 10];
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0u8; len]; 2];
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        let mut lost = vec![vec![1u8; len]; 2];
        let mut lost: Vec<&mut [u8]> = lost.iter_mut().map(Vec::as_mut_slice).collect();
        let mut delta = vec![0u8; len];
        // The processor is asked once what it can do.
        code.encode(&data, &mut parity).unwrap();
        let before = allocations();
        code.encode(&data, &mut parity).unwrap();
        let all = [&data[2..], &[&*parity[0], &*parity[1]]].concat();
        let gathered = allocations();
        assert_eq!(gathered - before, 1, "the test's own list");
        plan.run(&all, &mut lost).unwrap();
        // Blocks in part at both ends, whole ones between.
        for range in [0..1500, 3..1400, 100..163] {
            let (old, new) = (&data[9][range.clone()], &data[8][range.clone()]);
            let ranges = code.delta_ranges(9, range.clone(), len, 1).unwrap();
            let out = &mut delta[..ranges.total()];
            code.delta(9, range.start, len, old, new, 1, out).unwrap();
            apply(&ranges, out, parity[1]).unwrap();
        }
        assert_eq!(allocations(), gathered, "{kind:?}");
    }
}
