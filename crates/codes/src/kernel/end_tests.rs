//! Every kernel at every length up to four lines, each at every place in a line, on slices that end where their allocations end: the
//! address sanitizer sees a byte that is read or written past them. How many slices there are goes round. What is written in front of
//! outputs, and behind them without a sanitizer, is looked for in the other tests, around longer ones.

use super::matrix::{Matrix, Mode};
use super::tests::{Ending, bytes, naive_mul};
use super::{Tier, gf256, xor};

/// Bytes of the longest slices: four lines, and one more.
const LEN_MAX: usize = 257;

/// Calls `check` with every tier, every length, and every number of bytes in front of what it works on.
fn everywhere(check: impl Fn(Tier, usize, usize)) {
    for &tier in Tier::available() {
        for len in 0..=LEN_MAX {
            (0..64).for_each(|shift| check(tier, len, shift));
        }
    }
}

/// Slices of the longest length, which shorter ones are the beginnings of.
fn contents(count: usize) -> Vec<Vec<u8>> {
    (0..count as u64).map(|seed| bytes(seed + 1, LEN_MAX)).collect()
}

/// The first `len` bytes of each, each at another place.
fn placed(contents: &[Vec<u8>], len: usize, shift: usize) -> Vec<Ending> {
    let places = contents.iter().zip((shift..).step_by(7));
    places.map(|(content, place)| Ending::new(&content[..len], place % 64)).collect()
}

fn views(sources: &[Ending]) -> Vec<&[u8]> {
    sources.iter().map(Ending::view).collect()
}

fn views_mut(outputs: &mut [Ending]) -> Vec<&mut [u8]> {
    outputs.iter_mut().map(Ending::view_mut).collect()
}

fn is_zero(output: &Ending) -> bool {
    output.view().iter().all(|byte| *byte == 0)
}

#[test]
fn sums_end_where_their_slices_do() {
    // One more than are fused.
    let contents = contents(xor::FUSED_MAX + 1);
    let sums: Vec<Vec<u8>> = (0..=contents.len())
        .map(|count| {
            let sum = |at: usize| contents[..count].iter().fold(0, |sum, content| sum ^ content[at]);
            (0..LEN_MAX).map(sum).collect()
        })
        .collect();
    let before = bytes(99, LEN_MAX);
    everywhere(|tier, len, shift| {
        let count = 1 + (len + shift) % contents.len();
        let (sources, expected) = (placed(&contents[..count], len, shift), &sums[count][..len]);
        let mut out = Ending::new(&before[..len], 63 - shift);
        xor::fused(tier, out.view_mut(), &views(&sources), true);
        assert!(out.view() == expected, "{tier:?}, {count} sources of {len} bytes behind {shift}");
        // What was set once is added once more.
        xor::fused(tier, out.view_mut(), &views(&sources), false);
        assert!(is_zero(&out), "{tier:?}, {count} sources of {len} bytes behind {shift}, added");
        if tier == Tier::detect() && count > 1 {
            let mut outputs = placed(&contents[..3], len, 63 - shift);
            xor::set_all(&mut views_mut(&mut outputs), sources[0].view(), sources[1].view());
            let right = |output: &Ending| output.view() == &sums[2][..len];
            assert!(outputs.iter().all(right), "two sources of {len} bytes behind {shift} into three");
        }
    });
}

#[test]
fn products_end_where_their_slices_do() {
    /// Outputs, sources: bodies of every height, more sources than go side by side, and more outputs than are formed at once.
    const SHAPES: [[usize; 2]; 12] =
        [[1, 1], [1, 2], [1, 5], [2, 2], [2, 10], [3, 4], [4, 13], [5, 3], [6, 7], [8, 3], [9, 2], [1, 13]];
    let contents = contents(13);
    let matrices: Vec<(Matrix, Vec<Vec<u8>>)> = SHAPES
        .iter()
        .map(|&[outputs, sources]| {
            let random = bytes((outputs * sources) as u64, outputs * sources);
            // First rows of ones alone are made otherwise.
            let plain = (outputs + sources).is_multiple_of(2);
            let coefficient = |output: usize, source: usize| match output {
                0 if plain => 1,
                _ => random[output * sources + source],
            };
            let product = |output: usize, at: usize| {
                let products = contents.iter().take(sources).enumerate();
                products.fold(0, |sum, (n, content)| sum ^ naive_mul(coefficient(output, n), content[at]))
            };
            let naive = (0..outputs).map(|output| (0..LEN_MAX).map(|at| product(output, at)).collect());
            (Matrix::new(outputs, sources, coefficient), naive.collect())
        })
        .collect();
    everywhere(|tier, len, shift| {
        let (matrix, naive) = &matrices[(len + shift) % matrices.len()];
        let sources = placed(&contents[..matrix.sources()], len, shift);
        let mut outputs = placed(&contents[..matrix.outputs()], len, 63 - shift);
        let mode = if shift % 3 == 0 { Mode::SetPast } else { Mode::Set };
        matrix.run(tier, &views(&sources), &mut views_mut(&mut outputs), mode);
        let right = outputs.iter().zip(naive).all(|(output, naive)| output.view() == &naive[..len]);
        let shape = [matrix.outputs(), matrix.sources()];
        assert!(right, "{tier:?}, {shape:?} of {len} bytes behind {shift}, {mode:?}");
        matrix.run(tier, &views(&sources), &mut views_mut(&mut outputs), Mode::Add);
        assert!(outputs.iter().all(is_zero), "{tier:?}, {shape:?} of {len} bytes behind {shift}, added");
    });
}

#[test]
fn one_factor_at_a_time_ends_where_the_slices_do() {
    const FACTORS: [u8; 5] = [0, 1, 2, 0x8e, 255];
    let [old, new] = [bytes(1, LEN_MAX), bytes(2, LEN_MAX)];
    let change: Vec<u8> = old.iter().zip(&new).map(|(old, new)| old ^ new).collect();
    let times = |c: u8, content: &[u8]| content.iter().map(|byte| naive_mul(c, *byte)).collect::<Vec<u8>>();
    let expected = FACTORS.map(|c| {
        let difference = times(c, &change);
        let scaled = times(c, &difference);
        (difference, scaled)
    });
    everywhere(|tier, len, shift| {
        let place = (len + shift) % FACTORS.len();
        let (c, (difference, scaled)) = (FACTORS[place], &expected[place]);
        let [from, to] =
            [(&old, shift), (&new, 63 - shift)].map(|(content, shift)| Ending::new(&content[..len], shift));
        let mut out = Ending::new(&old[..len], (shift + 9) % 64);
        gf256::difference_at(tier, out.view_mut(), from.view(), to.view(), c);
        assert!(out.view() == &difference[..len], "{tier:?}, {len} bytes behind {shift}, change times {c}");
        gf256::scale_at(tier, out.view_mut(), c);
        assert!(out.view() == &scaled[..len], "{tier:?}, {len} bytes behind {shift}, scaled by {c}");
        let product = Ending::new(&difference[..len], shift);
        gf256::mul_acc_at(tier, out.view_mut(), product.view(), c);
        assert!(is_zero(&out), "{tier:?}, {len} bytes behind {shift}, added {c} times");
    });
}

#[test]
fn differences_of_all_outputs_end_where_their_slices_do() {
    let [old, new] = [bytes(1, LEN_MAX), bytes(2, LEN_MAX)];
    let change: Vec<u8> = old.iter().zip(&new).map(|(old, new)| old ^ new).collect();
    // Outputs of a pass, those of two, and one in a third; the first counts once, as the first parity's.
    let coefficients: Vec<u8> = [1].into_iter().chain(bytes(5, 8)).collect();
    let naive: Vec<Vec<u8>> =
        coefficients.iter().map(|c| change.iter().map(|byte| naive_mul(*c, *byte)).collect()).collect();
    let matrices: Vec<Matrix> = (1..=coefficients.len())
        .map(|outputs| Matrix::new(outputs, 1, |output, _| coefficients[output]))
        .collect();
    let before = contents(coefficients.len());
    everywhere(|tier, len, shift| {
        let matrix = &matrices[(len + shift) % matrices.len()];
        let [from, to] =
            [(&old, shift), (&new, 63 - shift)].map(|(content, shift)| Ending::new(&content[..len], shift));
        let mut outputs = placed(&before[..matrix.outputs()], len, 5 * shift);
        matrix.differences(tier, 0, from.view(), to.view(), &mut views_mut(&mut outputs));
        let right = outputs.iter().zip(&naive).all(|(output, naive)| output.view() == &naive[..len]);
        assert!(right, "{tier:?}, {} differences of {len} bytes behind {shift}", matrix.outputs());
    });
}
