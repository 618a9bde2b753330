//! One source into the sums of several outputs, where multiplying takes so many registers that the order counts.
//!
//! Of 16 registers eight hold the sums of four outputs, four the nibbles of two registers of the source. So each output's two
//! tables are loaded, used for both and forgotten: with the tables of all outputs held, most sums went through memory.
//!
//! At tiers of 16 registers they lie in the order of their use, so that a load is all that one takes: 45 instructions for four outputs,
//! where some 57 looked them up among those of all constants. GB/s of data on Zen 3 (avx2), old and new in turn, slices of 8 KiB in the
//! caches and of 1 MiB from memory: 4 + 2: 23.9 and 29.7, 13.1 and 13.8; 8 + 3: 11.9 and 15.0, 10.0 and 11.1; 10 + 4: 8.5 and 11.3, 8.7 and
//! 9.8; 16 + 4: 10.3 and 11.8, 8.7 both; 32 + 8: 5.1 and 5.5, 4.3 and 4.7.
#![cfg(target_arch = "x86_64")]

use super::gf256::Table;
use super::lanes::Lanes;

/// Registers of a source whose nibbles are held.
const AT_ONCE: usize = 2;

/// How the first output's sum takes a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// Times its coefficient.
    Product,
    /// As it is.
    Plain,
    /// Not at all.
    Nothing,
}

/// Adds `U` registers at `from` to the sums. No closures here: what the compiler does not inline of them is not compiled for the tier, and
/// each load is a call then.
///
/// # Safety
/// So many registers are there; the lists, one of coefficients as they are and one of the same as affine maps, reach as far as the
/// outputs, or where the tier takes tables there is one for each output; the processor has the tier's instructions.
#[inline(always)]
pub(super) unsafe fn accumulate<L: Lanes, const M: usize, const U: usize>(
    from: *const u8,
    (coefficients, maps): (&[u8], &[u64]),
    tables: *const Table,
    first: First,
    sums: &mut [[L; U]; M],
) {
    let multiplied = usize::from(first != First::Product);
    // SAFETY: the caller's promise.
    unsafe {
        for at in (0..U).step_by(AT_ONCE) {
            let end = if at + AT_ONCE < U { at + AT_ONCE } else { U };
            let mut split = [L::zero().split(); AT_ONCE];
            for place in at..end {
                let loaded = L::load(from.add(place * L::BYTES));
                if first == First::Plain {
                    sums[0][place] = sums[0][place].xor(loaded);
                }
                split[place - at] = loaded.split();
            }
            for (output, sums) in sums.iter_mut().enumerate().skip(multiplied) {
                let factor = if L::TABLED {
                    L::tabled(tables.add(output))
                } else {
                    L::factor(coefficients, maps, output)
                };
                for place in at..end {
                    sums[place] = sums[place].xor(L::times(split[place - at], factor));
                }
            }
        }
    }
}
