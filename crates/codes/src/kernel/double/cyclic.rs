//! Row-diagonal parity's ring: p packets modulo x^p - 1, of which a column has p - 1.
//!
//! How far a column's packets are turned is written out for each weight, so that nothing moves from register to register, and two
//! neighbouring columns are added at once:
//!
//! ```text
//!   columns w, w + 1      S[r]     += a[r] + b[r]
//!                         T[w + r] += a[r] + b[r - 1]        places of T modulo p
//! ```
//!
//! On Sapphire Rapids 10 + 2 and 4 + 2 have 1.1 times Reed-Solomon's speed from the second cache; by Horner's rule, which moves all
//! of T for every column, 0.82 and 0.97.

use super::super::register::Register;
use super::diagonals::{self, Sums};
use super::strip::{APART, FETCHED, NONE, Out, Strip, Weigh, fetch_ahead};
use super::{Double, Finish, Job, Link, PACKET};

pub(super) struct Cyclic;

impl<R: Register, const N: usize, const T: usize> Weigh<R, N, T> for Cyclic {
    #[inline(always)]
    unsafe fn change(strip: &Strip) -> bool {
        let Finish::Update { column, .. } = strip.finish() else { return false };
        // SAFETY: the strip's promises.
        unsafe { update::<R, N, T>(strip, column) };
        true
    }

    #[inline(always)]
    unsafe fn add<const WAY: u8>(strip: &Strip, plain: &mut [R; N], weighted: &mut [R; T]) {
        // SAFETY: the strip's promises.
        unsafe { columns::<R, N, T, WAY>(strip, plain, weighted) }
    }

    #[inline(always)]
    unsafe fn finish(strip: &Strip, plain: &[R; N], weighted: &[R; T]) {
        // SAFETY: the strip's promises.
        unsafe {
            if let Finish::Column { column, .. } = strip.finish()
                && column + 1 == T
            {
                // The row parity: row r of it is on diagonal r - 1.
                let out = strip.out();
                for row in 0..N {
                    out.write::<R>(0, row, plain[row]);
                    let other = if row + 1 < N { weighted[row].xor(plain[row + 1]) } else { weighted[row] };
                    out.write::<R>(1, row, other);
                }
                return;
            }
            let (mut kept, mut diagonals) = (Sums::new(), Sums::new());
            (0..N).for_each(|at| kept.set(at, plain[at]));
            (0..T).for_each(|at| diagonals.set(at, weighted[at]));
            from_sums::<R, N, T>(strip, &kept, &diagonals);
        }
    }
}

/// Adds all columns of the strip to both sums.
///
/// # Safety
/// The strip's promises hold, no weight is above `N`; the processor has the tier's instructions.
#[inline(always)]
unsafe fn columns<R: Register, const N: usize, const T: usize, const WAY: u8>(
    strip: &Strip,
    plain: &mut [R; N],
    weighted: &mut [R; T],
) {
    // Written out: places in registers have to be known when this is compiled.
    macro_rules! pairs {
        ($($weight:literal)*) => {$(
            if $weight < T {
                let [a, b] = [strip.columns[$weight], strip.columns[$weight + 1]];
                // SAFETY: the caller's promise.
                unsafe {
                    match (a.is_null(), b.is_null()) {
                        (false, false) => {
                            let from = [a.add(strip.start), b.add(strip.start)];
                            pair::<R, N, T, $weight, WAY>(from, strip.stride, plain, weighted);
                        }
                        (false, true) => one::<R, N, T, $weight, WAY>(a.add(strip.start), strip.stride, plain, weighted),
                        (true, false) => {
                            one::<R, N, T, { $weight + 1 }, WAY>(b.add(strip.start), strip.stride, plain, weighted);
                        }
                        (true, true) => {}
                    }
                }
            }
        )*};
    }
    pairs!(0 2 4 6 8 10 12 14 16);
}

/// Columns of weights `W` and `W + 1`.
///
/// # Safety
/// As for [`columns`].
#[inline(always)]
unsafe fn pair<R: Register, const N: usize, const T: usize, const W: usize, const WAY: u8>(
    from: [*const u8; 2],
    stride: usize,
    plain: &mut [R; N],
    weighted: &mut [R; T],
) {
    // SAFETY: the caller's promise; a prefetch faults at no address.
    unsafe {
        let mut before = R::zero();
        macro_rules! rows {
            ($($row:literal)*) => {$(
                if $row < N {
                    if WAY == FETCHED {
                        fetch_ahead(from[0].wrapping_add($row * stride));
                        fetch_ahead(from[1].wrapping_add($row * stride));
                    }
                    let [a, b] = [R::load(from[0].add($row * stride)), R::load(from[1].add($row * stride))];
                    if WAY != APART {
                        plain[$row] = plain[$row].xor3(a, b);
                    }
                    let place = ($row + W) % T;
                    weighted[place] = if $row == 0 { weighted[place].xor(a) } else { weighted[place].xor3(a, before) };
                    before = b;
                }
            )*};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        let place = (N + W) % T;
        weighted[place] = weighted[place].xor(before);
    }
}

/// The column of weight `W`.
///
/// # Safety
/// As for [`columns`].
#[inline(always)]
unsafe fn one<R: Register, const N: usize, const T: usize, const W: usize, const WAY: u8>(
    from: *const u8,
    stride: usize,
    plain: &mut [R; N],
    weighted: &mut [R; T],
) {
    // SAFETY: the caller's promise; a prefetch faults at no address.
    unsafe {
        macro_rules! rows {
            ($($row:literal)*) => {$(
                if $row < N {
                    if WAY == FETCHED {
                        fetch_ahead(from.wrapping_add($row * stride));
                    }
                    let packet = R::load(from.add($row * stride));
                    if WAY != APART {
                        plain[$row] = plain[$row].xor(packet);
                    }
                    weighted[($row + W) % T] = weighted[($row + W) % T].xor(packet);
                }
            )*};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
}

/// All whole blocks of a ring whose sums are kept out of registers.
///
/// # Safety
/// As for [`blocks::run`](super::blocks::run); the processor has the instructions of `R`, the ring has `N` packets and `T` coefficients.
#[inline(always)]
pub(super) unsafe fn spilled<R: Register, const N: usize, const T: usize>(job: &Job) {
    let whole = job.len / (N * PACKET) * (N * PACKET);
    // SAFETY: the caller's promise; blocks end at `len`, and `Double::run` has looked every source up.
    unsafe {
        let strips =
            (0..whole).step_by(N * PACKET).flat_map(|block| (block..block + PACKET).step_by(R::BYTES));
        for start in strips {
            let strip = Strip { job, columns: &NONE, start, stride: PACKET };
            if <Cyclic as Weigh<R, N, T>>::change(&strip) {
                continue;
            }
            let out = strip.out();
            let (mut sum, mut weighted) = (Sums::new(), Sums::new());
            let Double { columns, runs, .. } = job.double;
            let source = |place: usize| {
                let column = columns.get_unchecked(columns.len() - 1 - place);
                strip.source(column.source)
            };
            let end = diagonals::add::<R, N, T>(runs, source, PACKET, job.large, [&mut sum, &mut weighted]);
            match job.double.finish {
                // The row parity, nothing else: row r of it is on diagonal r - 1.
                Finish::Column { column, .. } if column + 1 == T => {
                    for row in 0..N {
                        let own: R = sum.get(row);
                        out.write::<R>(0, row, own);
                        let mut other: R = weighted.get(row);
                        if row + T < end {
                            other = other.xor(weighted.get(row + T));
                        }
                        out.write::<R>(1, row, if row + 1 < N { other.xor(sum.get(row + 1)) } else { other });
                    }
                }
                _ => {
                    for number in T..end {
                        let both = weighted.get::<R>(number - T).xor(weighted.get(number));
                        weighted.set(number - T, both);
                    }
                    if let Some(place) = job.double.others[1] {
                        let from = job.sources.get_unchecked(place).as_ptr().add(start);
                        for row in 0..N {
                            weighted.set(row, weighted.get::<R>(row).xor(R::load(from.add(row * PACKET))));
                        }
                    }
                    from_sums::<R, N, T>(&strip, &sum, &weighted);
                }
            }
        }
    }
}

/// What is made of both sums but [`update`].
///
/// # Safety
/// The strip's promises hold; all `N` and `T` sums are there; the processor has the tier's instructions.
#[inline(always)]
unsafe fn from_sums<R: Register, const N: usize, const T: usize>(strip: &Strip, sum: &Sums, weighted: &Sums) {
    let out = strip.out();
    // SAFETY: the caller's promise.
    unsafe {
        match strip.finish() {
            Finish::Column { column, .. } => {
                for row in 0..N {
                    let own: R = sum.get(row);
                    out.write::<R>(0, row, own);
                    let on = row + T - column;
                    let on = if on >= T { on - T } else { on };
                    let other: R = weighted.get(row);
                    out.write::<R>(1, row, if on < N { other.xor(sum.get(on)) } else { other });
                }
            }
            Finish::Chain { .. } => chain::<R>(&strip.job.double.links, sum, weighted, &out),
            _ => unreachable!("`Double::new` takes only a finish of the ring"),
        }
    }
}

/// A change of a column: it counts on the column's own diagonal and, by the row parity, on the one before.
///
/// # Safety
/// As for [`columns`].
#[inline(always)]
unsafe fn update<R: Register, const N: usize, const T: usize>(strip: &Strip, column: usize) {
    // SAFETY: the caller's promise; an update has two sources.
    unsafe {
        let (mut kept, out) = (Sums::new(), strip.out());
        let [old, new] = [0, 1].map(|at| {
            let place = strip.job.double.columns.get_unchecked(at).source;
            strip.source(place)
        });
        for row in 0..N {
            let at = row * strip.stride;
            kept.set(row, R::load(old.add(at)).xor(R::load(new.add(at))));
        }
        if out.to[0].is_some() {
            for row in 0..N {
                out.write::<R>(0, row, kept.get(row));
            }
        }
        // Past the last row there is nothing.
        kept.set(N, R::zero());
        for row in 0..N {
            let on = row + T - column;
            let on = if on >= T { on - T } else { on };
            out.write::<R>(1, row, kept.get::<R>(on).xor(kept.get(row + 1)));
        }
    }
}

/// Two columns from their sums S and diagonals T.
///
/// # Safety
/// The outputs have those packets, both sums are there; the processor has the tier's instructions.
#[inline(always)]
unsafe fn chain<R: Register>(links: &[Link], sum: &Sums, diagonals: &Sums, out: &Out) {
    // SAFETY: the caller's promise; rows and diagonals of links are below p - 1.
    unsafe {
        let mut found = R::zero();
        for link in links {
            let diagonal = diagonals.get(link.diagonal);
            let packet = if link.first { diagonal } else { found.xor(diagonal) };
            out.write::<R>(link.one, link.row, packet);
            found = packet.xor(sum.get(link.row));
            out.write::<R>(link.other, link.row, found);
        }
    }
}
