//! The field GF(2^8) = `GF(2)[x] / (x^8 + x^4 + x^3 + x^2 + 1)` (0x11d) and `dst ^= c * src` over slices.
//!
//! The wide tiers multiply as `lanes` says. The portable one needs no table: the product is the sum, over the bits
//! set in a source byte, of the constant times that power of x; compilers turn eight masked XORs into good code.

use super::{Tier, matrix, xor};

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

/// Multiplication by each constant as an 8 by 8 bit matrix in the order of `VGF2P8AFFINEQB`: the row that gives bit b
/// of the product is byte 7 - b.
pub(super) static AFFINE: [u64; 256] = affine();

const fn affine() -> [u64; 256] {
    let mut all = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut bit = 0;
        while bit < 8 {
            let column = mul_const(c as u8, 1 << bit);
            let mut row = 0;
            while row < 8 {
                if column & (1 << row) != 0 {
                    all[c] |= 1 << (8 * (7 - row) + bit);
                }
                row += 1;
            }
            bit += 1;
        }
        c += 1;
    }
    all
}

/// Products of a constant with 0..16, then with 0, 16, .. 240.
pub(super) type Table = [u8; 32];
/// Those of each constant.
#[repr(align(64))]
pub(super) struct Nibbles(pub(super) [Table; 256]);
pub(super) static NIBBLES: Nibbles = nibbles();

const fn nibbles() -> Nibbles {
    let mut all = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            all[c][nibble] = mul_const(c as u8, nibble as u8);
            all[c][16 + nibble] = mul_const(c as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        c += 1;
    }
    Nibbles(all)
}

const fn mul_const(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.0[TABLES.1[a as usize] as usize + TABLES.1[b as usize] as usize]
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
pub(crate) fn inverse(a: u8) -> u8 {
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
    scale_at(Tier::detect(), dst, c);
}

/// [`mul_acc`] at a given tier.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub(crate) fn mul_acc_at(tier: Tier, dst: &mut [u8], src: &[u8], c: u8) {
    assert_eq!(src.len(), dst.len(), "GF(256) multiply-accumulate of slices of different lengths");
    match c {
        0 => {}
        1 => xor::fused(tier, dst, &[src], false),
        _ => matrix::mul_acc(tier, dst, src, c),
    }
}

/// [`scale`] at a given tier.
#[inline]
pub(crate) fn scale_at(tier: Tier, dst: &mut [u8], c: u8) {
    match c {
        0 => dst.fill(0),
        1 => {}
        _ => matrix::scale(tier, dst, c),
    }
}

/// `dst = c * (old ^ new)`: what a change from `old` to `new` adds to a sum where it has coefficient c.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub(crate) fn difference_at(tier: Tier, dst: &mut [u8], old: &[u8], new: &[u8], c: u8) {
    assert!(
        old.len() == dst.len() && new.len() == dst.len(),
        "GF(256) difference of slices of different lengths"
    );
    match c {
        0 => dst.fill(0),
        1 => xor::fused(tier, dst, &[old, new], true),
        _ => matrix::difference(tier, dst, old, new, c),
    }
}

/// c, c x, c x^2, .. c x^7.
#[inline]
pub(super) fn powers(c: u8) -> [u8; 8] {
    core::array::from_fn(|bit| mul(c, 1 << bit))
}

#[inline(always)]
pub(super) fn product(byte: u8, powers: &[u8; 8]) -> u8 {
    let mut sum = 0;
    for (bit, power) in powers.iter().enumerate() {
        sum ^= if byte & (1 << bit) != 0 { *power } else { 0 };
    }
    sum
}
