//! Registers of bytes and the ways to multiply all of them by one element of GF(2^8): what the loops of `matrix` are
//! written over. Each implementation belongs to one tier and is used only inside functions compiled for it.
//!
//! - GFNI: multiplication by a constant is linear over GF(2), so it is an 8 by 8 bit matrix, which
//!   `VGF2P8AFFINEQB` applies to every byte.
//! - Shuffles: the product is the sum of the products of the two nibbles, each looked up in a table of 16 bytes.
#![cfg(target_arch = "x86_64")]

use core::arch::x86_64::*;

use super::gf256::{NIBBLES, Table};
use super::register::Register;

/// A register of bytes that multiplies.
///
/// # Safety
/// Every method: the processor has the tier's instructions.
pub(super) trait Lanes: Register {
    /// A constant, ready to multiply by.
    type Factor: Copy;
    /// Whether it multiplies by affine maps, in one instruction.
    const AFFINE: bool;
    /// Whether sources are taken two at a time, and in blocks ones are not multiplied by: worth its many copies of the loops
    /// only where multiplication is as fast as that.
    const PAIRS: bool;
    /// Whether products of many steps read their constants from lists of tables in the order of their use ([`Lanes::tabled`]), not by
    /// their places among all: that took two instructions each.
    const TABLED: bool;
    /// A register, ready to be multiplied by several constants.
    type Split: Copy;
    /// The constant at a place in a list of them, given as they are and as affine maps.
    ///
    /// # Safety
    /// Both lists reach that far.
    unsafe fn factor(coefficients: &[u8], maps: &[u64], at: usize) -> Self::Factor;
    /// The constant of these tables, where they are taken.
    ///
    /// # Safety
    /// A table can be read there.
    unsafe fn tabled(table: *const Table) -> Self::Factor;
    unsafe fn split(self) -> Self::Split;
    unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self;
}

macro_rules! common {
    ($register:ident, $zero:ident, $load:ident, $store:ident, $stream:ident, $xor:ident) => {
        const BYTES: usize = size_of::<$register>();
        const REGISTERS: usize = if size_of::<$register>() == 64 { 32 } else { 16 };
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { $zero() })
        }
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { $load(from.cast()) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { $store(to.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { $stream(to.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { $xor(self.0, other.0) })
        }
    };
}

macro_rules! affine {
    ($(#[$doc:meta])* $name:ident, $register:ident, $zero:ident, $load:ident, $store:ident, $stream:ident, $xor:ident,
     $broadcast:ident, $affine:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name($register);
        impl Register for $name {
            common!($register, $zero, $load, $store, $stream, $xor);
        }
        impl Lanes for $name {
            const AFFINE: bool = true;
            const PAIRS: bool = Self::REGISTERS > 16;
            const TABLED: bool = false;
            type Factor = $register;
            type Split = Self;
            #[inline(always)]
            unsafe fn factor(_: &[u8], maps: &[u64], at: usize) -> $register {
                // SAFETY: the caller's promise.
                unsafe { $broadcast(*maps.get_unchecked(at) as i64) }
            }
            #[inline(always)]
            unsafe fn tabled(_: *const Table) -> $register {
                unreachable!("affine maps need no tables")
            }
            #[inline(always)]
            unsafe fn split(self) -> Self {
                self
            }
            #[inline(always)]
            unsafe fn times(split: Self, factor: $register) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { $affine::<0>(split.0, factor) })
            }
        }
    };
}

macro_rules! shuffle {
    ($(#[$doc:meta])* $name:ident, $register:ident, $zero:ident, $load:ident, $store:ident, $stream:ident, $xor:ident,
     $table:expr, $mask:expr, $and:ident, $shift:ident, $shuffle:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name($register);
        impl Register for $name {
            common!($register, $zero, $load, $store, $stream, $xor);
        }
        impl Lanes for $name {
            const AFFINE: bool = false;
            const PAIRS: bool = false;
            const TABLED: bool = Self::REGISTERS == 16;
            type Factor = [$register; 2];
            type Split = [$register; 2];
            #[inline(always)]
            unsafe fn factor(coefficients: &[u8], _: &[u64], at: usize) -> [$register; 2] {
                // SAFETY: the caller's promise.
                unsafe { Self::tabled(&NIBBLES.0[*coefficients.get_unchecked(at) as usize]) }
            }
            #[inline(always)]
            unsafe fn tabled(table: *const Table) -> [$register; 2] {
                // SAFETY: the caller's promise; a table has two halves of 16 bytes each.
                unsafe {
                    let halves: *const __m128i = table.cast();
                    [$table(_mm_loadu_si128(halves)), $table(_mm_loadu_si128(halves.add(1)))]
                }
            }
            #[inline(always)]
            unsafe fn split(self) -> [$register; 2] {
                // SAFETY: the caller's promise.
                unsafe { [$and(self.0, $mask), $and($shift::<4>(self.0), $mask)] }
            }
            #[inline(always)]
            unsafe fn times([low, high]: [$register; 2], factor: [$register; 2]) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { $xor($shuffle(factor[0], low), $shuffle(factor[1], high)) })
            }
        }
    };
}

affine!(
    /// 64 bytes, affine maps.
    Affine512, __m512i, _mm512_setzero_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_xor_si512, _mm512_set1_epi64, _mm512_gf2p8affine_epi64_epi8
);
affine!(
    /// 32 bytes, affine maps.
    Affine256, __m256i, _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256,
    _mm256_xor_si256, _mm256_set1_epi64x, _mm256_gf2p8affine_epi64_epi8
);
shuffle!(
    /// 64 bytes, shuffles.
    Shuffle512, __m512i, _mm512_setzero_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_xor_si512, _mm512_broadcast_i32x4, _mm512_set1_epi8(15), _mm512_and_si512, _mm512_srli_epi16,
    _mm512_shuffle_epi8
);
shuffle!(
    /// 32 bytes, shuffles.
    Shuffle256, __m256i, _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256,
    _mm256_xor_si256, _mm256_broadcastsi128_si256, _mm256_set1_epi8(15), _mm256_and_si256, _mm256_srli_epi16,
    _mm256_shuffle_epi8
);
shuffle!(
    /// 16 bytes, shuffles.
    Shuffle128, __m128i, _mm_setzero_si128, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
    core::convert::identity, _mm_set1_epi8(15), _mm_and_si128, _mm_srli_epi16, _mm_shuffle_epi8
);
