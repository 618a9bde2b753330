//! Whether the blocks at hand are enough, kept up as they arrive, without payload.
//!
//! Mix: an echelon form over the originals, parity columns resolved; exact. A column whose original is known is
//! masked out of every later row, so arrivals with many originals cost little. Over GF(2) rows are bits, over
//! GF(256) bytes. LT: the peeling decoder's state (each row its open degree and the XOR of its open columns), so
//! the rank is what peeling recovers. Stripes of an MDS code: how many blocks each row has, which is exact there. Invariant: `missing() == 0` exactly when every original can be computed.

use super::code::{Code, Entry};
use super::stripes::Stripes;
use crate::kernel::{bits, gf256};

/// What a block was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// It adds to what can be computed (for LT: it may yet).
    Innovative,
    /// Everything in it follows from the blocks before.
    Redundant,
    /// A block of this index came before.
    Duplicate,
}

/// The rank of a growing set of block indices.
#[derive(Clone)]
pub struct RankTracker {
    code: Code,
    seen: Seen,
    rank: u32,
    kept: u32,
    row: Vec<Entry>,
    state: State,
}

#[derive(Clone)]
enum State {
    Peeling(Peeling),
    Binary(Binary),
    Bytes(Bytes),
    Stripes(Held),
}

impl RankTracker {
    /// No blocks yet.
    pub fn new(code: &Code) -> Self {
        let k = code.k() as usize;
        let state = if let Some(stripes) = code.stripes() {
            State::Stripes(Held(vec![0; stripes.rows() as usize]))
        } else if code.peels() {
            State::Peeling(Peeling {
                recovered: vec![false; k],
                rows_of: vec![Vec::new(); k],
                rows: Vec::new(),
            })
        } else if code.is_binary() {
            let words = k.div_ceil(64);
            let none = vec![0; words];
            State::Binary(Binary {
                known: none.clone(),
                scratch: none,
                echelon: bits::Echelon::new(k, words),
            })
        } else {
            State::Bytes(Bytes {
                known: vec![false; k],
                pivots: vec![false; k],
                scratch: vec![0; k.next_multiple_of(REGISTER)],
                matrix: vec![0; k * k.next_multiple_of(REGISTER)],
            })
        };
        Self { code: code.clone(), seen: Seen::new(k), rank: 0, kept: 0, row: Vec::new(), state }
    }

    /// No blocks again, of this or another code; what memory fits is kept.
    pub fn reset(&mut self, code: &Code) {
        if self.code.k() != code.k()
            || self.code.peels() != code.peels()
            || self.code.is_binary() != code.is_binary()
            || self.code.stripes().map(Stripes::rows) != code.stripes().map(Stripes::rows)
        {
            *self = Self::new(code);
            return;
        }
        self.code = code.clone();
        self.seen.low.fill(0);
        self.seen.high.clear();
        (self.rank, self.kept) = (0, 0);
        match &mut self.state {
            State::Peeling(peeling) => {
                peeling.recovered.fill(false);
                peeling.rows_of.iter_mut().for_each(Vec::clear);
                peeling.rows.clear();
            }
            State::Binary(binary) => {
                binary.known.fill(0);
                binary.echelon.clear();
            }
            State::Bytes(bytes) => {
                bytes.known.fill(false);
                bytes.pivots.fill(false);
            }
            State::Stripes(held) => held.0.fill(0),
        }
    }

    /// Adds block `index` and says what it was worth.
    pub fn push(&mut self, index: u32) -> Push {
        if !self.seen.insert(index) {
            return Push::Duplicate;
        }
        if self.rank == self.code.k() {
            return Push::Redundant;
        }
        self.row.clear();
        self.code.row(index, &mut self.row);
        let innovative = match &mut self.state {
            State::Peeling(peeling) => peeling.push(&self.row, &mut self.rank),
            State::Binary(binary) => binary.push(&self.code, &self.row, &mut self.rank),
            State::Bytes(bytes) => bytes.push(&self.code, &self.row, &mut self.rank),
            State::Stripes(held) => held.push(&self.code, index, &mut self.rank),
        };
        if innovative {
            self.kept += 1;
            Push::Innovative
        } else {
            Push::Redundant
        }
    }

    /// The row of the block pushed last, if it was innovative.
    pub(super) fn row(&self) -> &[Entry] {
        &self.row
    }

    /// Dimensions known, 0 to K; for LT the originals recovered.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// A lower bound on the further blocks needed; 0 exactly when all originals can be computed. For LT a single
    /// block can set off a whole cascade, so the bound is K less the blocks that were worth something, at least 1.
    pub fn missing(&self) -> u32 {
        let open = self.code.k() - self.rank;
        if matches!(self.state, State::Peeling(_)) && open > 0 {
            return self.code.k().saturating_sub(self.kept).max(1);
        }
        open
    }

    /// K.
    pub fn k(&self) -> u32 {
        self.code.k()
    }
}

/// Indices pushed before: a bitmap for the usual ones, a list for those far out.
#[derive(Clone)]
struct Seen {
    low: Vec<u64>,
    /// Ascending. Few (a reader has not many more than K blocks), and its memory stays for the next segment.
    high: Vec<u32>,
}

impl Seen {
    fn new(k: usize) -> Self {
        // 8 K bits cover N at the usual redundancies; the rest go to the list.
        Self { low: vec![0; (8 * k).div_ceil(64)], high: Vec::new() }
    }

    fn insert(&mut self, index: u32) -> bool {
        let Some(word) = self.low.get_mut(index as usize / 64) else {
            let place = self.high.binary_search(&index);
            place.err().inspect(|place| self.high.insert(*place, index));
            return place.is_err();
        };
        let mask = 1 << (index % 64);
        let new = *word & mask == 0;
        *word |= mask;
        new
    }
}

#[derive(Clone)]
struct Peeling {
    recovered: Vec<bool>,
    /// Open rows that contain each column not yet recovered.
    rows_of: Vec<Vec<u32>>,
    /// Open degree and XOR of the open columns.
    rows: Vec<(u32, u16)>,
}

impl Peeling {
    fn push(&mut self, row: &[Entry], rank: &mut u32) -> bool {
        let number = self.rows.len() as u32;
        let (mut degree, mut sum) = (0, 0);
        for entry in row.iter().filter(|entry| !self.recovered[entry.column as usize]) {
            degree += 1;
            sum ^= entry.column;
        }
        match degree {
            0 => return false,
            1 => self.recover(sum, rank),
            _ => {
                self.rows.push((degree, sum));
                for entry in row.iter().filter(|entry| !self.recovered[entry.column as usize]) {
                    self.rows_of[entry.column as usize].push(number);
                }
            }
        }
        true
    }

    fn recover(&mut self, column: u16, rank: &mut u32) {
        let mut ready = vec![column];
        while let Some(column) = ready.pop() {
            if std::mem::replace(&mut self.recovered[column as usize], true) {
                continue;
            }
            *rank += 1;
            for row in std::mem::take(&mut self.rows_of[column as usize]) {
                let (degree, sum) = &mut self.rows[row as usize];
                *degree -= 1;
                *sum ^= column;
                if *degree == 1 {
                    ready.push(*sum);
                }
            }
        }
    }
}

/// Blocks that count of each row of stripes.
#[derive(Clone)]
struct Held(Vec<u32>);

impl Held {
    fn push(&mut self, code: &Code, index: u32, rank: &mut u32) -> bool {
        let stripes = code.stripes().expect("counted for a code of stripes only");
        let Some(row) = stripes.row_of(index) else { return false };
        let held = &mut self.0[row as usize];
        let innovative = *held < stripes.enough();
        *held += u32::from(innovative);
        *rank += u32::from(innovative);
        innovative
    }
}

/// Echelon form over GF(2).
#[derive(Clone)]
struct Binary {
    known: Vec<u64>,
    scratch: Vec<u64>,
    echelon: bits::Echelon,
}

impl Binary {
    fn push(&mut self, code: &Code, row: &[Entry], rank: &mut u32) -> bool {
        self.scratch.fill(0);
        if let [unit] = row {
            let column = unit.column as usize;
            let (word, mask) = (column / 64, 1u64 << (column % 64));
            if self.known[word] & mask != 0 {
                return false;
            }
            self.known[word] |= mask;
            let Some(old) = self.echelon.row(column) else {
                *rank += 1;
                return true;
            };
            // The unit row takes the pivot's place; the old row less this column is pushed on.
            self.scratch.copy_from_slice(old);
            self.echelon.remove(column);
        } else {
            let scratch = &mut self.scratch;
            code.resolve(row, |column, _| scratch[column as usize / 64] ^= 1 << (column % 64));
        }
        self.mask_known();
        self.echelon.reduce(&mut self.scratch);
        self.mask_known();
        let Some(pivot) = bits::lowest(&self.scratch) else { return false };
        self.echelon.insert(pivot, &self.scratch);
        *rank += 1;
        true
    }

    fn mask_known(&mut self) {
        self.scratch.iter_mut().zip(&self.known).for_each(|(bits, known)| *bits &= !known);
    }
}

/// Bytes that the widest tier works on at once: rows are as many registers, so that no part of one is left to be copied to and fro.
const REGISTER: usize = 64;

/// Echelon form over GF(256); row c of `matrix` is zero before c and one at c when `pivots[c]`. Rows are zero from K on.
#[derive(Clone)]
struct Bytes {
    known: Vec<bool>,
    pivots: Vec<bool>,
    scratch: Vec<u8>,
    matrix: Vec<u8>,
}

impl Bytes {
    fn push(&mut self, code: &Code, row: &[Entry], rank: &mut u32) -> bool {
        let (k, stride) = (self.known.len(), self.scratch.len());
        self.scratch.fill(0);
        if let [unit] = row {
            let column = unit.column as usize;
            if std::mem::replace(&mut self.known[column], true) {
                return false;
            }
            if !std::mem::replace(&mut self.pivots[column], false) {
                *rank += 1;
                return true;
            }
            self.scratch.copy_from_slice(&self.matrix[column * stride..][..stride]);
        } else {
            let scratch = &mut self.scratch;
            code.resolve(row, |column, coefficient| scratch[column as usize] ^= coefficient);
        }
        let mut pivot = None;
        for column in 0..k {
            let value = self.scratch[column];
            if value == 0 || self.known[column] {
                continue;
            }
            if self.pivots[column] {
                // From the register that the pivot is in: what comes before it there is zero.
                let from = column / REGISTER * REGISTER;
                let echelon = &self.matrix[column * stride..][from..stride];
                gf256::mul_acc(&mut self.scratch[from..], echelon, value);
            } else {
                pivot = pivot.or(Some(column));
            }
        }
        let Some(pivot) = pivot else { return false };
        for (value, known) in self.scratch.iter_mut().zip(&self.known) {
            if *known {
                *value = 0;
            }
        }
        let lead = self.scratch[pivot];
        gf256::scale(&mut self.scratch, gf256::inverse(lead));
        self.pivots[pivot] = true;
        self.matrix[pivot * stride..][..stride].copy_from_slice(&self.scratch);
        *rank += 1;
        true
    }
}
