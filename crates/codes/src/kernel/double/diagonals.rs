//! Plain and diagonal sums of columns that have more packets than both sums fit registers: the sums stay in the first-level
//! cache, and up to four neighbouring columns at once are added to them, so that each packet is read once and each sum
//! once for all four.
//!
//! ```text
//!   columns c .. c + 3        S[r]     += a[r] + b[r]     + c[r]     + d[r]
//!                             T[c + r] += a[r] + b[r - 1] + c[r - 2] + d[r - 3]      the last rows stay in registers
//! ```
//!
//! T has 2 p places; place p + g is diagonal g again, added in the end. Measured on Sapphire Rapids, share of
//! Reed-Solomon's speed: 16 + 2 from a second-level cache 1.29 (a program of packets 0.77), from memory 0.96 (0.76); 10 + 2
//! from memory 1.10 (both sums in registers 1.05), but from the cache 0.75 (1.1). On Zen 4 10 + 2 from memory has 1.05 so and 1.18 in
//! registers, its reconstruction 0.87 and 0.98: where both sums fit registers, they stay there.
//!
//! Soundness: callers give addresses that [`Double::run`](super::Double::run) has checked.

use core::mem::MaybeUninit;

use super::super::register::Register;
use super::strip::fetch_ahead;

/// The largest prime there is room for.
pub(super) const PRIME_MAX: usize = 17;

/// Columns added at once: so many, of weights that follow one another, from this place on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Places in ascending order of weights.
    pub(super) first: usize,
    pub(super) columns: usize,
    /// Of the first, which is the lowest.
    pub(super) weight: usize,
}

/// Runs of 4, 2 or 1 columns with these descending weights; the runs ascend.
pub(super) fn runs(weights: &[usize]) -> Vec<Run> {
    let weights: Vec<usize> = weights.iter().rev().copied().collect();
    let mut runs = Vec::new();
    let mut first = 0;
    while let Some(&weight) = weights.get(first) {
        let next =
            weights[first..].iter().zip(weight..).take_while(|(has, expected)| **has == *expected).count();
        let columns = if next >= 4 {
            4
        } else if next >= 2 {
            2
        } else {
            1
        };
        runs.push(Run { first, columns, weight });
        first += columns;
    }
    runs
}

/// Sums of a strip: a register of each packet.
#[repr(align(64))]
pub(super) struct Sums(MaybeUninit<[u8; 2 * PRIME_MAX * 64]>);

impl Sums {
    pub(super) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Where the sum of this number is.
    ///
    /// # Safety
    /// There are so many.
    #[inline(always)]
    pub(super) unsafe fn at<R: Register>(&mut self, number: usize) -> *mut u8 {
        debug_assert!(number < 2 * PRIME_MAX && R::BYTES <= 64, "a sum that there is");
        // SAFETY: the caller's promise.
        unsafe { self.0.as_mut_ptr().cast::<u8>().add(number * R::BYTES) }
    }

    /// # Safety
    /// The sum was written; the processor has the tier's instructions.
    #[inline(always)]
    pub(super) unsafe fn get<R: Register>(&self, number: usize) -> R {
        // SAFETY: the caller's promise.
        unsafe { R::load(self.0.as_ptr().cast::<u8>().add(number * R::BYTES)) }
    }

    /// # Safety
    /// There are so many; the processor has the tier's instructions.
    #[inline(always)]
    pub(super) unsafe fn set<R: Register>(&mut self, number: usize, to: R) {
        // SAFETY: the caller's promise.
        unsafe { to.store(self.at::<R>(number)) }
    }
}

/// Both sums of all runs, of columns of `N` packets `stride` apart whose first are at `source(place)`: the plain one of
/// `N` places, the diagonal one of `2 T`, `T = N + 1`, of which those past the returned one are not written. Going `ahead`, what comes
/// later is asked for meanwhile.
///
/// # Safety
/// Runs are as [`runs`] makes them of weights below `T`, every place's packets can be read; the processor has the tier's
/// instructions.
#[inline(always)]
pub(super) unsafe fn add<R: Register, const N: usize, const T: usize>(
    runs: &[Run],
    source: impl Fn(usize) -> *const u8,
    stride: usize,
    ahead: bool,
    [plain, diagonal]: [&mut Sums; 2],
) -> usize {
    assert!(T == N + 1 && T <= PRIME_MAX, "a cyclic ring that has room");
    // SAFETY: the caller's promise; a run that ends with the highest weight ends before place 2 T.
    unsafe {
        let end = runs.last().map_or(T, |run| (run.weight + run.columns + N - 1).max(T));
        let mut rest = runs;
        // The first run, where it is long, is taken for the sums; else all begin with nothing.
        if let [Run { first, columns: 4, weight }, others @ ..] = runs {
            for number in 0..*weight {
                diagonal.set(number, R::zero());
            }
            for number in weight + N + 3..end {
                diagonal.set(number, R::zero());
            }
            let sources = core::array::from_fn(|at| source(first + at));
            columns::<R, N, 4, true>(sources, stride, *weight, ahead, [&mut *plain, &mut *diagonal]);
            rest = others;
        } else {
            (0..N).for_each(|number| plain.set(number, R::zero()));
            (0..end).for_each(|number| diagonal.set(number, R::zero()));
        }
        for run in rest {
            let (weight, sums) = (run.weight, [&mut *plain, &mut *diagonal]);
            let at = |at: usize| source(run.first + at);
            match run.columns {
                4 => columns::<R, N, 4, false>(core::array::from_fn(at), stride, weight, ahead, sums),
                2 => columns::<R, N, 2, false>(core::array::from_fn(at), stride, weight, ahead, sums),
                _ => columns::<R, N, 1, false>(core::array::from_fn(at), stride, weight, ahead, sums),
            }
        }
        end
    }
}

/// `G` columns, at most four, added to the sums, or taken for them where they are the `FIRST`.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
unsafe fn columns<R: Register, const N: usize, const G: usize, const FIRST: bool>(
    sources: [*const u8; G],
    stride: usize,
    weight: usize,
    ahead: bool,
    [plain, diagonal]: [&mut Sums; 2],
) {
    assert!(N + G - 1 < 20, "rows written out");
    // SAFETY: the caller's promise; a prefetch faults at no address.
    unsafe {
        // Of each column its packets of this row, the row before, ..
        let mut last = [[R::zero(); G]; G];
        // Written out: compilers do not unroll as much, and registers have no numbers at run time.
        macro_rules! rows {
            ($($row:literal)*) => {$(
                if $row < N + G - 1 {
                    for column in 0..G {
                        for back in (1..G).rev() {
                            last[column][back] = last[column][back - 1];
                        }
                    }
                    if $row < N {
                        let mut sum = if FIRST { R::zero() } else { plain.get($row) };
                        if ahead {
                            for source in sources {
                                fetch_ahead(source.wrapping_add($row * stride));
                            }
                        }
                        for column in 0..G {
                            last[column][0] = R::load(sources[column].add($row * stride));
                        }
                        let mut column = 0;
                        while column + 1 < G {
                            sum = sum.xor3(last[column][0], last[column + 1][0]);
                            column += 2;
                        }
                        if column < G {
                            sum = sum.xor(last[column][0]);
                        }
                        plain.set($row, sum);
                    }
                    let mut sum = if FIRST { R::zero() } else { diagonal.get(weight + $row) };
                    // Column g's packet of row - g, where there is one.
                    for column in 0..G {
                        if $row >= column && $row < N + column {
                            sum = sum.xor(last[column][column]);
                        }
                    }
                    diagonal.set(weight + $row, sum);
                }
            )*};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18);
    }
}
