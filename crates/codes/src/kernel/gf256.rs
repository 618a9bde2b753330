//! The field GF(2^8) = `GF(2)[x] / (x^8 + x^4 + x^3 + x^2 + 1)` (0x11d) and `dst ^= c * src` over slices.
//!
//! The slice kernel needs no table: the product is the sum, over the bits set in a source byte, of the
//! constant times that power of x. Eight masked XORs a byte vector is what compilers turn into good code at any
//! register width.

use super::{Tier, tiered, xor};

const POLYNOMIAL: u16 = 0x11d;
const TABLES: ([u8; 512], [u8; 256]) = tables();

const fn tables() -> ([u8; 512], [u8; 256]) {
    let (mut exp, mut log) = ([0u8; 512], [0u8; 256]);
    let (mut value, mut power) = (1u16, 0);
    while power < 255 {
        exp[power] = value as u8;
        exp[power + 255] = value as u8;
        log[value as usize] = power as u8;
        value <<= 1;
        if value & 0x100 != 0 {
            value ^= POLYNOMIAL;
        }
        power += 1;
    }
    (exp, log)
}

/// The product of two field elements.
#[inline]
pub fn mul(a: u8, b: u8) -> u8 {
    static EXP: [u8; 512] = TABLES.0;
    static LOG: [u8; 256] = TABLES.1;
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// The inverse of a field element.
///
/// # Panics
/// For zero, which has none.
#[inline]
pub fn inverse(a: u8) -> u8 {
    assert_ne!(a, 0, "zero has no inverse");
    TABLES.0[255 - TABLES.1[a as usize] as usize]
}

/// `dst ^= c * src`.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn mul_acc(dst: &mut [u8], src: &[u8], c: u8) {
    mul_acc_at(Tier::detect(), dst, src, c);
}

/// `dst = c * dst`.
#[inline]
pub fn scale(dst: &mut [u8], c: u8) {
    if c != 1 {
        scale_tiered(Tier::detect(), dst, powers(c));
    }
}

/// [`mul_acc`] at a given tier.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn mul_acc_at(tier: Tier, dst: &mut [u8], src: &[u8], c: u8) {
    assert_eq!(src.len(), dst.len(), "GF(256) multiply-accumulate of slices of different lengths");
    match c {
        0 => {}
        1 => xor::fused(tier, dst, &[src], false),
        _ => mul_acc_tiered(tier, dst, src, powers(c)),
    }
}

/// c, c x, c x^2, .. c x^7.
#[inline]
pub(super) fn powers(c: u8) -> [u8; 8] {
    core::array::from_fn(|bit| mul(c, 1 << bit))
}

tiered! { fn mul_acc_tiered = mul_acc_body(dst: &mut [u8], src: &[u8], powers: [u8; 8]) }
tiered! { fn scale_tiered = scale_body(dst: &mut [u8], powers: [u8; 8]) }

#[inline(always)]
fn product(byte: u8, powers: &[u8; 8]) -> u8 {
    let mut sum = 0;
    for (bit, power) in powers.iter().enumerate() {
        sum ^= if byte & (1 << bit) != 0 { *power } else { 0 };
    }
    sum
}

#[inline(always)]
pub(super) fn mul_acc_body(dst: &mut [u8], src: &[u8], powers: [u8; 8]) {
    for (out, byte) in dst.iter_mut().zip(src) {
        *out ^= product(*byte, &powers);
    }
}

#[inline(always)]
pub(super) fn scale_body(dst: &mut [u8], powers: [u8; 8]) {
    for out in dst.iter_mut() {
        *out = product(*out, &powers);
    }
}
