//! Products at every tier against sums taken byte by byte.

use super::matrix::{Matrix, Mode};
use super::tests::{Ending, bytes, naive_mul};
use super::{Tier, gf256};

/// Around every output, to be found unchanged.
const GUARD: usize = 64;

/// One product of `len` bytes. Outputs start `shift` bytes (output `j` another `j * skew`) after a multiple of 64, sources as many into
/// allocations that end with them.
fn check(tier: Tier, [outputs, inputs]: [usize; 2], len: usize, shift: usize, skew: usize, mode: Mode) {
    let coefficients = bytes(len as u64 + 5, outputs * inputs);
    check_of(&coefficients, tier, [outputs, inputs], len, shift, skew, mode);
}

/// The same for a matrix of these coefficients, row by row.
fn check_of(
    coefficients: &[u8],
    tier: Tier,
    [outputs, inputs]: [usize; 2],
    len: usize,
    shift: usize,
    skew: usize,
    mode: Mode,
) {
    let matrix = Matrix::new(outputs, inputs, |output, source| coefficients[output * inputs + source]);
    let room = len + 3 * GUARD + outputs * skew;
    let start = |memory: &[u8], more: usize| memory.as_ptr().align_offset(64) + (shift + more) % 64;
    let sources: Vec<Ending> =
        (0..inputs as u64).map(|seed| Ending::new(&bytes(seed + 1, len), shift % 64)).collect();
    let views: Vec<&[u8]> = sources.iter().map(Ending::view).collect();
    let before: Vec<Vec<u8>> = (0..outputs as u64).map(|seed| bytes(seed + 77, room)).collect();
    let mut memory: Vec<Vec<u8>> = before.clone();
    let starts: Vec<usize> = memory.iter().enumerate().map(|(j, memory)| start(memory, j * skew)).collect();
    {
        let mut slices: Vec<&mut [u8]> =
            memory.iter_mut().zip(&starts).map(|(memory, start)| &mut memory[*start..][..len]).collect();
        matrix.run(tier, &views, &mut slices, mode);
    }
    let tables: Vec<[u8; 256]> =
        coefficients.iter().map(|c| std::array::from_fn(|byte| naive_mul(*c, byte as u8))).collect();
    for (row, (memory, before)) in memory.iter().zip(&before).enumerate() {
        let mut naive = before.clone();
        for (at, byte) in naive[starts[row]..][..len].iter_mut().enumerate() {
            let own = if mode == Mode::Add { *byte } else { 0 };
            let tables = &tables[row * inputs..];
            *byte = views.iter().zip(tables).fold(own, |sum, (view, table)| sum ^ table[view[at] as usize]);
        }
        assert!(
            *memory == naive,
            "{tier:?}, {outputs} x {inputs}, {len} bytes at {shift} + {skew} each, {mode:?}, output {row}"
        );
    }
}

#[test]
fn every_tier_multiplies_like_the_naive_twin_at_every_alignment() {
    for &tier in Tier::available() {
        for shift in 0..64 {
            for len in [1, 63 + shift, 190 + 7 * shift] {
                let mode = if shift % 2 == 0 { Mode::Set } else { Mode::Add };
                check(tier, [1 + shift % 5, 1 + shift % 7], len, shift, 0, mode);
            }
        }
    }
}

#[test]
fn every_tier_multiplies_by_matrices_of_every_height() {
    for &tier in Tier::available() {
        for outputs in 1..=19 {
            check(tier, [outputs, 3], 1029, outputs, outputs % 3, Mode::Set);
            check(tier, [outputs, 14], 300, outputs, 0, Mode::Add);
        }
        check(tier, [0, 3], 100, 0, 0, Mode::Set);
        check(tier, [3, 0], 100, 0, 0, Mode::Set);
        check(tier, [3, 2], 0, 0, 0, Mode::Set);
        check(tier, [2, 253], 130, 1, 0, Mode::Set);
        check(tier, [9, 64], 2048, 0, 0, Mode::SetPast);
        check(tier, [17, 100], 1029, 3, 7, Mode::SetPast);
    }
}

/// Sources with a body of the loop each, all of them, and one more.
#[test]
fn every_tier_multiplies_by_matrices_of_every_width() {
    for &tier in Tier::available() {
        for inputs in 1..=18 {
            for outputs in [1, 2, 3, 4, 5, 8, 9] {
                check(tier, [outputs, inputs], 1029, inputs, 0, Mode::Set);
            }
        }
    }
}

/// Bytes of slices of which so many outputs and sources together go past the caches.
fn streamed([outputs, inputs]: [usize; 2]) -> usize {
    super::STREAM_FROM / (outputs + inputs) + 77
}

#[test]
fn every_tier_writes_past_the_caches_what_the_naive_twin_does() {
    for &tier in Tier::available() {
        // Past the caches, side by side: outputs aligned, aligned alike, and not alike.
        for (shift, skew) in [(0, 0), (17, 0), (3, 5)] {
            check(tier, [2, 4], streamed([2, 4]), shift, skew, Mode::Set);
        }
        // In blocks.
        check(tier, [3, 13], streamed([3, 13]), 16, 0, Mode::Set);
        check(tier, [9, 20], streamed([9, 20]), 1, 7, Mode::Set);
        check(tier, [4, 16], streamed([4, 16]), 5, 0, Mode::Set);
    }
}

/// Rows without a multiplication go past the caches at every tier, with few and many sources, of which some may count for nothing; so do
/// rows of ones in front of others, and the sum of all, where sources have a body of the loop each.
#[test]
fn every_tier_saves_multiplications_side_by_side_like_the_naive_twin() {
    for &tier in Tier::available() {
        for (inputs, ones) in [(4, 4), (10, 3), (12, 12), (16, 16), (30, 29)] {
            let row: Vec<u8> = (0..inputs).map(|source| u8::from(source < ones)).collect();
            for (shift, mode) in
                [(0, Mode::Set), (3, Mode::Set), (0, Mode::SetPast), (5, Mode::SetPast), (1, Mode::Add)]
            {
                check_of(&row, tier, [1, inputs], streamed([1, inputs]), shift, 0, mode);
                check_of(&row, tier, [1, inputs], 1029, shift, 0, mode);
            }
        }
        for (outputs, inputs, ones) in [(2, 4, 4), (4, 10, 10), (3, 12, 5), (4, 16, 16), (6, 9, 9)] {
            for complement in [false, true] {
                let coefficients = saving(outputs, inputs, ones, complement);
                for mode in [Mode::Set, Mode::SetPast, Mode::Add] {
                    check_of(&coefficients, tier, [outputs, inputs], 1029, 3, 0, mode);
                }
            }
        }
    }
}

/// Coefficients of which the first row, or the sum of all, is so many ones and then zeros.
fn saving(outputs: usize, inputs: usize, ones: usize, complement: bool) -> Vec<u8> {
    let mut coefficients = bytes(7, outputs * inputs);
    for source in 0..inputs {
        let others = (1..outputs).map(|output| coefficients[output * inputs + source]);
        let others = others.fold(0, |sum, c| sum ^ c);
        coefficients[source] = u8::from(source < ones) ^ if complement { others } else { 0 };
    }
    coefficients
}

/// What is asked about a byte of the outputs changes nothing, and nothing at all is asked where they are added to. Whatever the answer is.
#[test]
fn every_tier_asks_where_outputs_lie_and_makes_the_same_of_them() {
    let len = |slices: usize| super::matrix::ASK_FROM / slices + 77;
    for &tier in Tier::available() {
        for (shift, skew, mode) in
            [(0, 0, Mode::Set), (3, 0, Mode::Set), (2, 5, Mode::Set), (0, 0, Mode::Add)]
        {
            check(tier, [2, 3], len(5), shift, skew, mode);
            #[cfg(target_arch = "x86_64")]
            for far in [true, false] {
                super::near::tests::ANSWER.set(Some(far));
                check(tier, [2, 3], len(5), shift, skew, mode);
                check(tier, [3, 13], len(16), shift, skew, mode);
                super::near::tests::ANSWER.set(None);
            }
        }
    }
}

/// Groups of which all, none or some sources count once in the first output, or in the sum of all.
#[test]
fn every_tier_saves_multiplications_in_blocks_like_the_naive_twin() {
    for &tier in Tier::available() {
        for (outputs, inputs, ones) in [(4, 17, 17), (4, 17, 9), (3, 25, 3), (8, 14, 7), (2, 24, 16)] {
            for complement in [false, true] {
                let coefficients = saving(outputs, inputs, ones, complement);
                let len = streamed([outputs, inputs]);
                check_of(&coefficients, tier, [outputs, inputs], len, 3, 0, Mode::Set);
            }
        }
    }
}

#[test]
fn every_tier_scales_and_takes_differences_like_the_naive_twin() {
    for &tier in Tier::available() {
        for len in [0, 1, 31, 64, 130, 1024, 2500] {
            for c in [0, 1, 2, 3, 0x1d, 0x8e, 255] {
                let (old, new) = (bytes(1, len), bytes(2, len));
                let mut out = bytes(3, len);
                gf256::difference_at(tier, &mut out, &old, &new, c);
                let naive: Vec<u8> = old.iter().zip(&new).map(|(old, new)| naive_mul(c, old ^ new)).collect();
                assert!(out == naive, "{tier:?}, {len} bytes, difference times {c}");
                gf256::scale_at(tier, &mut out, c);
                let naive: Vec<u8> = naive.iter().map(|byte| naive_mul(c, *byte)).collect();
                assert!(out == naive, "{tier:?}, {len} bytes, scaled by {c}");
            }
        }
    }
}

#[test]
fn every_tier_takes_differences_of_all_outputs_at_every_alignment() {
    for &tier in Tier::available() {
        for shift in 0..64 {
            let (outputs, len) = (1 + shift % 9, [0, 63 + shift, 257 + 7 * shift][shift % 3]);
            let mut coefficients = bytes(shift as u64, outputs);
            if shift % 2 == 0 {
                // As the first parity has.
                coefficients[0] = 1;
            }
            let matrix = Matrix::new(outputs, 2, |output, source| coefficients[output] * source as u8);
            let [old, new] =
                [(1, shift), (2, 63 - shift)].map(|(seed, shift)| Ending::new(&bytes(seed, len), shift));
            let [old, new] = [old.view(), new.view()];
            let before: Vec<Vec<u8>> = (0..outputs as u64).map(|seed| bytes(seed + 9, len + 64)).collect();
            let mut memory = before.clone();
            let place = |output: usize| (shift * 5 + output) % 64;
            let mut views: Vec<&mut [u8]> =
                memory.iter_mut().enumerate().map(|(n, out)| &mut out[place(n)..][..len]).collect();
            matrix.differences(tier, 1, old, new, &mut views);
            for (output, (memory, mut naive)) in memory.iter().zip(before).enumerate() {
                for (at, byte) in naive[place(output)..][..len].iter_mut().enumerate() {
                    *byte = naive_mul(coefficients[output], old[at] ^ new[at]);
                }
                assert!(*memory == naive, "{tier:?}, {len} bytes at {shift}, output {output} of {outputs}");
            }
        }
    }
}

#[test]
fn slices_that_do_not_fit_the_matrix_are_refused() {
    let refused = |sources: &[&[u8]], lens: &[usize]| {
        let mut outputs: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        let sources = sources.to_vec();
        std::panic::catch_unwind(move || {
            let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            Matrix::new(2, 2, |_, _| 3).run(Tier::detect(), &sources, &mut outputs, Mode::Set);
        })
        .is_err()
    };
    let four = [0u8; 4];
    assert!(!refused(&[&four, &four], &[4, 4]));
    assert!(refused(&[&four], &[4, 4]), "too few sources");
    assert!(refused(&[&four, &four], &[4]), "too few outputs");
    assert!(refused(&[&four, &four[..3]], &[4, 4]), "a short source");
    assert!(refused(&[&four, &four], &[4, 5]), "a long output");
}
