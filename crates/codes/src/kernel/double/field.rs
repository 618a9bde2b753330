//! Cauchy-Reed-Solomon's ring: 8 packets are the bits of elements of GF(2^8).
//!
//! T is formed by Horner's rule, columns in descending order of their weights: `T = x^(difference of weights) * T + d_c`. Two columns
//! are read at once, so that the plain sum takes one addition of three for both.

use super::super::register::Register;
use super::strip::{APART, FETCHED, Out, Strip, Weigh, fetch_ahead};
use super::{Column, Combination, Finish};

/// Packets of a block.
const N: usize = 8;

pub(super) struct Field;

impl<R: Register> Weigh<R, N, N> for Field {
    #[inline(always)]
    unsafe fn change(strip: &Strip) -> bool {
        let Finish::Combine(pair) = strip.finish() else { return false };
        if pair.iter().flatten().any(|one| one.a == 0 || one.b != 0) {
            return false;
        }
        // SAFETY: the strip's promises.
        unsafe {
            let mut sum = [R::zero(); N];
            for column in &strip.job.double.columns {
                strip.add_to(&mut sum, column.source);
            }
            if let Some(place) = strip.job.double.others[0] {
                strip.add_to(&mut sum, place);
            }
            multiples(pair, &sum, &strip.out());
        }
        true
    }

    #[inline(always)]
    unsafe fn add<const WAY: u8>(strip: &Strip, plain: &mut [R; N], weighted: &mut [R; N]) {
        // SAFETY: the strip's promises.
        unsafe {
            let mut at = 0;
            let mut columns = &strip.job.double.columns[..];
            // Processors recognise a stream by the instruction that reads it, so every pair of as many columns as stripes have
            // has a body of its own: 16 + 2 on Zen 4 0.94 of Reed-Solomon's speed, 0.83 by one body for all; reconstructed 0.85, 0.70.
            macro_rules! bodies {
                ($($body:literal)*) => {$(
                    let _body = $body;
                    if let [first, second, others @ ..] = columns {
                        at = pair::<R, WAY>(strip, at, [*first, *second], plain, weighted);
                        columns = others;
                    }
                )*};
            }
            if WAY == FETCHED {
                bodies!(0 1 2 3 4 5 6 7);
            }
            while let [first, second, others @ ..] = columns {
                at = pair::<R, WAY>(strip, at, [*first, *second], plain, weighted);
                columns = others;
            }
            if let [column] = columns {
                let from = strip.source(column.source);
                raise(weighted, at, *column);
                for row in 0..N {
                    let packet = R::load(from.add(row * strip.stride));
                    if WAY != APART {
                        plain[row] = plain[row].xor(packet);
                    }
                    if WAY == FETCHED {
                        fetch_ahead(from.wrapping_add(row * strip.stride));
                    }
                    weighted[row] = weighted[row].xor(packet);
                }
                at = column.weight;
            }
            // The sum of all columns has been multiplied down to the last one's weight only.
            for _ in 0..at {
                *weighted = times_x(*weighted);
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(strip: &Strip, plain: &[R; N], weighted: &[R; N]) {
        let Finish::Combine(pair) = strip.finish() else {
            unreachable!("`Double::new` takes only a finish of the ring")
        };
        // SAFETY: the strip's promises.
        unsafe { combine(pair, plain, weighted, &strip.out()) }
    }
}

/// Adds two columns to both sums, of which the weighted one is multiplied down to weight `at`; returns to which it is then.
///
/// # Safety
/// The strip's promises hold; the processor has the tier's instructions.
#[inline(always)]
unsafe fn pair<R: Register, const WAY: u8>(
    strip: &Strip,
    at: usize,
    [first, second]: [Column; 2],
    plain: &mut [R; N],
    weighted: &mut [R; N],
) -> usize {
    // SAFETY: the caller's promise; a prefetch faults at no address.
    unsafe {
        let [a, b] = [strip.source(first.source), strip.source(second.source)];
        raise(weighted, at, first);
        for row in 0..N {
            let packet = R::load(a.add(row * strip.stride));
            if WAY != APART {
                plain[row] = plain[row].xor3(packet, R::load(b.add(row * strip.stride)));
            }
            if WAY == FETCHED {
                fetch_ahead(a.wrapping_add(row * strip.stride));
                fetch_ahead(b.wrapping_add(row * strip.stride));
            }
            weighted[row] = weighted[row].xor(packet);
        }
        raise(weighted, first.weight, second);
        strip.add_to(weighted, second.source);
        second.weight
    }
}

/// Multiplies the sum of the columns down to weight `from` by what the next column's weight is below that.
///
/// # Safety
/// The processor has the tier's instructions.
#[inline(always)]
unsafe fn raise<R: Register>(weighted: &mut [R; N], from: usize, next: Column) {
    // SAFETY: the caller's promise.
    unsafe {
        for _ in next.weight + 1..from {
            *weighted = times_x(*weighted);
        }
        // Multiplying nothing before the first column costs nothing worth a branch.
        *weighted = times_x(*weighted);
    }
}

/// # Safety
/// The processor has the tier's instructions.
#[inline(always)]
unsafe fn times_x<R: Register>([a, b, c, d, e, f, g, h]: [R; N]) -> [R; N] {
    // x^8 = x^4 + x^3 + x^2 + 1. SAFETY: the caller's promise.
    unsafe { [h, a, b.xor(h), c.xor(h), d.xor(h), e, f, g] }
}

/// # Safety
/// The processor has the tier's instructions.
#[inline(always)]
unsafe fn add_all<R: Register>(to: &mut [R; N], other: &[R; N]) {
    for (to, other) in to.iter_mut().zip(other) {
        // SAFETY: the caller's promise.
        *to = unsafe { to.xor(*other) };
    }
}

/// `a S` for each, of which none is zero.
///
/// # Safety
/// The outputs have those packets; the processor has the tier's instructions.
#[inline(always)]
unsafe fn multiples<R: Register>(pair: [Option<Combination>; 2], sum: &[R; N], out: &Out) {
    // SAFETY: the caller's promise.
    unsafe {
        for (place, one) in pair.into_iter().enumerate() {
            let Some(Combination { a, .. }) = one else { continue };
            let highest = 7 - a.leading_zeros();
            let mut made = *sum;
            for bit in (0..highest).rev() {
                made = times_x(made);
                if a >> bit & 1 != 0 {
                    add_all(&mut made, sum);
                }
            }
            for (row, made) in made.iter().enumerate() {
                out.write::<R>(place, row, *made);
            }
        }
    }
}

/// # Safety
/// As for [`multiples`].
#[inline(always)]
unsafe fn combine<R: Register>(pair: [Option<Combination>; 2], sum: &[R; N], weighted: &[R; N], out: &Out) {
    // SAFETY: the caller's promise.
    unsafe {
        // Any pair of coefficients may be wanted, so that none of them can stand for an output that nobody wants.
        if matches!(pair[0], None | Some(Combination { a: 1, b: 0, .. }))
            && matches!(pair[1], None | Some(Combination { a: 0, b: 1, .. }))
        {
            // Encoding; an output that nobody wants is none.
            for row in 0..N {
                out.write::<R>(0, row, sum[row]);
                out.write::<R>(1, row, weighted[row]);
            }
            return;
        }
        let mut before = None;
        for (place, one) in pair.into_iter().enumerate() {
            let Some(Combination { a, b, .. }) = one else { continue };
            let mut made = [R::zero(); N];
            match (a, b, before) {
                (1, 0, _) => made = *sum,
                (0, 1, _) => made = *weighted,
                // The second of two lost chunks: all that lacks in S but the first.
                (_, _, Some((first_a, first_b, first))) if (first_a ^ 1, first_b) == (a, b) => {
                    made = first;
                    add_all(&mut made, sum);
                }
                _ => {
                    // From the highest bit there is.
                    for bit in (0..8 - (a | b).leading_zeros()).rev() {
                        made = times_x(made);
                        match (a >> bit & 1 != 0, b >> bit & 1 != 0) {
                            (true, true) => {
                                for row in 0..N {
                                    made[row] = made[row].xor3(sum[row], weighted[row]);
                                }
                            }
                            (true, false) => add_all(&mut made, sum),
                            (false, true) => add_all(&mut made, weighted),
                            (false, false) => {}
                        }
                    }
                }
            }
            for (row, packet) in made.iter().enumerate() {
                out.write::<R>(place, row, *packet);
            }
            before = Some((a, b, made));
        }
    }
}
