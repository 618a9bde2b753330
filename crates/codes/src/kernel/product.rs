//! Many sums of the same slots: `out r = sum of those sources whose bit is set in row r`, by fours (Kronrod's
//! method).
//!
//! ```text
//!   for every register's width of the strip:
//!     for 16 groups of four sources:   table[group] = the sums of all 16 patterns      16 KiB, in the first cache
//!     for every row:                   out ^= table[group][pattern], one load a group
//! ```
//!
//! A row's patterns for those 16 groups are one word, taken apart by shifts: a load of each would wait for the loads of
//! the tables.
//!
//! As single sums the same additions would read the second cache; here only the sources come from there, once. With
//! 113 rows of 113 that is a third of the time.

use super::sums::{Slot, Vector};
use std::ops::Range;

/// Groups whose tables fit the first cache together, with what else goes through it.
const GROUPS: usize = 16;
/// Sources in a group.
const GROUP: usize = 4;
const PATTERNS: usize = 1 << GROUP;
/// Sources whose tables are there together: those of a word.
const WORD: usize = GROUP * GROUPS;
/// Groups whose patterns are taken apart at once.
const STEP: usize = 4;

/// A matrix over GF(2) and the slots it is applied to.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) sources: Vec<Slot>,
    /// One a row; none is a source, no two are the same.
    pub(crate) outs: Vec<Slot>,
    /// [`Product::words`] a row: bit b of word w is the row's bit for source `64 w + b`.
    pub(crate) rows: Vec<u64>,
}

impl Product {
    /// Words a row.
    pub(crate) fn words(sources: usize) -> usize {
        sources.div_ceil(WORD)
    }

    /// # Panics
    /// When it does not read slots below `slots` and write others of `writable`, reads none but writes some, or has not
    /// a row of bits for each: our own broken invariant.
    pub(super) fn check(&self, writable: Range<usize>, slots: usize) {
        let mut seen = vec![false; slots];
        for source in &self.sources {
            assert!((*source as usize) < slots, "a product's source that is no slot");
            seen[*source as usize] = true;
        }
        for out in &self.outs {
            assert!(writable.contains(&(*out as usize)), "a product writes a slot that is no block");
            assert!(!std::mem::replace(&mut seen[*out as usize], true), "a product reads what it writes");
        }
        // Outputs are written with the first group's sums.
        assert!(self.outs.is_empty() || !self.sources.is_empty(), "a product of nothing");
        let words = Self::words(self.sources.len());
        assert_eq!(self.rows.len(), self.outs.len() * words, "a bit a source");
        let last = self.sources.len() % WORD;
        let beyond = |row: &[u64]| last > 0 && row.last().is_some_and(|word| word >> last != 0);
        assert!(!self.rows.chunks_exact(words.max(1)).any(beyond), "a bit of sources that are not there");
    }

    /// Over `len` bytes at these addresses.
    ///
    /// # Safety
    /// `check` has passed for these slots; each has `len` bytes, which nobody else uses; the processor has the
    /// instructions of `V`.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector>(&self, slots: &[*mut u8], len: usize) {
        let mut offset = 0;
        // SAFETY: the caller's promise.
        unsafe {
            let mut tables = [[V::zero(); PATTERNS]; GROUPS];
            while offset + size_of::<V>() <= len {
                self.column(slots, offset, &mut tables);
                offset += size_of::<V>();
            }
            for offset in offset..len {
                self.byte(slots, offset);
            }
        }
    }

    /// One register of every slot.
    ///
    /// # Safety
    /// As for `run`, with a register's bytes at `offset`.
    #[inline(always)]
    unsafe fn column<V: Vector>(
        &self,
        slots: &[*mut u8],
        offset: usize,
        tables: &mut [[V; PATTERNS]; GROUPS],
    ) {
        let words = Self::words(self.sources.len());
        // Plain loops: what is not inlined here is not compiled for the tier.
        // SAFETY: the caller's promise; `check` has seen as many words.
        unsafe {
            for (pass, sources) in self.sources.chunks(WORD).enumerate() {
                for (group, four) in sources.chunks(GROUP).enumerate() {
                    let mut load = [V::zero(); GROUP];
                    for (load, slot) in load.iter_mut().zip(four) {
                        *load = V::load(slots.get_unchecked(*slot as usize).add(offset));
                    }
                    let table = &mut tables[group];
                    for bit in 0..GROUP {
                        for below in 0..1 << bit {
                            table[1 << bit | below] = table[below].xor(load[bit]);
                        }
                    }
                }
                let steps = sources.len().div_ceil(GROUP * STEP);
                for (row, out) in self.outs.iter().enumerate() {
                    let to = slots.get_unchecked(*out as usize).add(offset);
                    let mut sum = if pass == 0 { V::zero() } else { V::load(to) };
                    let mut bits = *self.rows.get_unchecked(row * words + pass);
                    // Groups behind the last have no bits, and every table's first pattern is zero.
                    for step in 0..steps {
                        for group in 0..STEP {
                            let pattern = (bits >> (group * GROUP)) as usize % PATTERNS;
                            sum = sum.xor(*tables.get_unchecked(step * STEP + group).get_unchecked(pattern));
                        }
                        bits >>= STEP * GROUP;
                    }
                    sum.store(to);
                }
            }
        }
    }

    /// One byte of every slot.
    ///
    /// # Safety
    /// As for `run`, with a byte at `offset`.
    unsafe fn byte(&self, slots: &[*mut u8], offset: usize) {
        let words = Self::words(self.sources.len()).max(1);
        // SAFETY: the caller's promise.
        let at = |slot: Slot| unsafe { slots[slot as usize].add(offset) };
        for (out, row) in self.outs.iter().zip(self.rows.chunks_exact(words)) {
            let named = |place: &usize| row[place / WORD] >> (place % WORD) & 1 == 1;
            let sources = (0..self.sources.len()).filter(named);
            // SAFETY: as above.
            unsafe { *at(*out) = sources.fold(0, |sum, place| sum ^ *at(self.sources[place])) };
        }
    }
}
