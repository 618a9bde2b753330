//! Blocks with payload: taken as they arrive, solved in the buffers they came in.
//!
//! ```text
//!   push .. push ──(missing() == 0)──> solve ──> K originals
//!     └─ hands back a block that adds nothing
//! ```
//!
//! *Folding* takes work off the end: in the caller's idle time [`Decoder::advance`] adds originals that are here already
//! into the repair rows and into the parity columns' constraint rows, so that [`Decoder::solve`] finds shorter rows. A
//! row's payload and its entries always agree: the sum of what the entries name is the payload. [`Decoder::push`] reads
//! no payload: for a caller without idle time what it would fold costs four times as much as the same sums in `solve`,
//! where the strips lie in the cache.
//!
//! Invariants: a mix decoder keeps at most K buffers, and at most [`FOLDED_BYTES_MAX`] of constraint sums beside
//! them; the originals are computed in the kept buffers, with a few strips of scratch a thread; originals that
//! arrived are not touched.

use super::code::{Code, Entry};
use super::dense;
use super::plan::{Rows, plan};
use super::rank::{Push, RankTracker};
use super::scratch::Scratch;
use crate::kernel::{Tier, xor};
use std::ops::Range;
use std::sync::PoisonError;

/// Constraint sums are kept when they take at most this, so that a reader stays within its segment, its windows and 66 MiB.
/// A segment of 256 MiB still folds with A and B: their K/4 columns, rounded up to a multiple of three, and blocks rounded
/// up so that K of them hold it take up to 65.1 MiB. C has half as many columns more and folds up to 176 MiB.
const FOLDED_BYTES_MAX: usize = 66 << 20;
/// Constraint rows are folded from half of K blocks on, once enough coded ones are among them, and again whenever this part of K has come as originals
/// since. Picked by eye: a round costs about 3 reads an original, and a quarter as many for each one after.
const FOLD_AGAIN: u32 = 16;

/// Why a block or a solve was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The block has not the decoder's block length.
    #[error("block {index} has {given} bytes, the others {expected}")]
    BlockLength {
        /// Index of the block.
        index: u32,
        /// Its length, bytes.
        given: usize,
        /// The decoder's, bytes.
        expected: usize,
    },
    /// The block is none of those that [`Decoder::expecting`] names, or the code has none of that index.
    #[error("block {index} is not one of those stored")]
    Stranger {
        /// Index of the block.
        index: u32,
    },
    /// A block of this index is here with other bytes: one of the two is wrong.
    #[error("block {index} came before with other bytes")]
    Contradiction {
        /// Index of the block.
        index: u32,
    },
    /// The blocks do not give all originals yet.
    #[error("at least {missing} more blocks are needed")]
    Missing {
        /// Lower bound on the blocks to come.
        missing: u32,
    },
}

/// Collects blocks of one segment in buffers of type `B`.
pub struct Decoder<B> {
    code: Code,
    tracker: RankTracker,
    block_len: usize,
    expected: Option<Range<u32>>,
    blocks: Vec<B>,
    /// The index of each kept block.
    indices: Vec<u32>,
    /// Rows of the kept blocks, then those of the parity columns' constraints; less what was folded.
    rows: Rows,
    /// Payload of the constraint rows that were folded, the first ones.
    sums: Vec<B>,
    /// The kept block that is each original.
    original: Vec<Option<u32>>,
    originals_here: u32,
    /// Originals that were here when the round of folding began.
    originals_folded: u32,
    /// The kept block whose row is to be folded next.
    next_row: usize,
    /// The constraint to fold next.
    next_fold: usize,
    /// Constraints are folded from so many coded blocks on: below, [`Decoder::solve`] does without most of them, and without any where
    /// the originals come as they are.
    fold_from: u32,
    folds: bool,
    /// Originals added into rows so far.
    folded: u64,
    /// Memory of [`Decoder::push`] and [`Decoder::solve_with`], empty between calls.
    row: Vec<Entry>,
    taken: Vec<Option<B>>,
}

impl<B: AsMut<[u8]> + AsRef<[u8]>> Decoder<B> {
    /// No blocks yet; every block has `block_len` bytes.
    pub fn new(code: &Code, block_len: usize) -> Self {
        Self {
            code: code.clone(),
            tracker: RankTracker::new(code),
            block_len,
            expected: None,
            blocks: Vec::with_capacity(code.k() as usize),
            indices: Vec::with_capacity(code.k() as usize),
            rows: Rows::new(code),
            sums: Vec::new(),
            original: vec![None; code.k() as usize],
            originals_here: 0,
            originals_folded: 0,
            next_row: 0,
            next_fold: 0,
            fold_from: fold_from(code),
            folds: folds(code, block_len),
            folded: 0,
            row: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// No blocks again, of this or another code, and every index expected: a decoder for the next segment that keeps
    /// its memory. Buffers still held are dropped.
    pub fn reset(&mut self, code: &Code, block_len: usize) {
        self.code = code.clone();
        self.block_len = block_len;
        self.expected = None;
        (self.fold_from, self.folds) = (fold_from(code), folds(code, block_len));
        self.clear();
    }

    /// No blocks again, of the same segment.
    fn clear(&mut self) {
        self.tracker.reset(&self.code);
        self.blocks.clear();
        self.indices.clear();
        self.rows.reset(&self.code);
        self.sums.clear();
        self.original.clear();
        self.original.resize(self.code.k() as usize, None);
        (self.originals_here, self.originals_folded, self.folded) = (0, 0, 0);
        (self.next_row, self.next_fold) = (0, 0);
    }

    /// Refuses blocks outside `indices`. Without this every index is a block of the code, up to [`Code::end`].
    pub fn expecting(mut self, indices: Range<u32>) -> Self {
        self.expected = Some(indices);
        self
    }

    /// Takes block `index`; hands it back when it adds nothing. After an error the decoder is as it was before.
    ///
    /// A block that came before is compared with the one kept, and is a [`DecodeError::Contradiction`] when it differs;
    /// the first one stays. Bytes that are wrong in a block of another index are not found: any K blocks of full rank
    /// are right for some originals, so blocks are to be authenticated before they come here.
    ///
    /// # Errors
    /// Another length than the decoder's, an index that is not expected, another block of this index.
    pub fn push(&mut self, index: u32, mut block: B) -> Result<(Push, Option<B>), DecodeError> {
        let given = block.as_ref().len();
        if given != self.block_len {
            return Err(DecodeError::BlockLength { index, given, expected: self.block_len });
        }
        if self.expected.as_ref().is_some_and(|expected| !expected.contains(&index))
            || self.code.end().is_some_and(|end| index >= end)
        {
            return Err(DecodeError::Stranger { index });
        }
        let push = self.tracker.push(index);
        if push == Push::Duplicate && self.contradicts(index, block.as_mut()) {
            return Err(DecodeError::Contradiction { index });
        }
        if push != Push::Innovative {
            return Ok((push, Some(block)));
        }
        let row = self.tracker.row();
        // With one data chunk a parity chunk has the same bytes, as far as they are of one state: whoever asks for what came as it is
        // must not be given what was computed.
        let of_parity = self.code.stripes().is_some() && index >= self.code.k();
        if let [Entry { column, coefficient: 1 }] = *row
            && !of_parity
        {
            self.original[column as usize].get_or_insert(self.blocks.len() as u32);
            self.originals_here += 1;
        }
        self.rows.keep(row);
        self.indices.push(index);
        self.blocks.push(block);
        Ok((push, None))
    }

    /// Whether the kept block `index`, as it came, differs from `block`, which is the same again afterwards. A block
    /// that was handed back cannot be compared.
    fn contradicts(&mut self, index: u32, block: &mut [u8]) -> bool {
        let Some(kept) = self.indices.iter().position(|other| *other == index) else { return false };
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        self.code.row(index, &mut row);
        // What was folded into the kept one is added here as well.
        self.add_folded(kept, &row, block);
        let differs = self.blocks[kept].as_ref() != &*block;
        self.add_folded(kept, &row, block);
        self.row = row;
        differs
    }

    /// Adds to `block` the originals that were folded into block `kept`, whose row was `row`.
    fn add_folded(&self, kept: usize, row: &[Entry], block: &mut [u8]) {
        let (rest, mut adding) = (self.rows.kept(kept), Adding::to(block));
        for gone in row.iter().filter(|entry| !rest.contains(entry)) {
            if let Some(original) = self.original(u32::from(gone.column)) {
                adding.add(original.as_ref());
            }
        }
        adding.finish();
    }

    /// Does one piece of work (a few sums over one block) that shortens [`Decoder::solve`], for a caller with nothing
    /// else to do; `false` when there is none now. `memory` gives a buffer for a sum: of so many bytes, whatever they
    /// hold.
    ///
    /// # Panics
    /// When `memory` gives another length than it was asked for; the decoder is as it was before.
    pub fn advance(&mut self, memory: impl FnOnce(usize) -> B) -> bool {
        if !self.folds {
            return false;
        }
        while self.next_row < self.blocks.len() {
            self.next_row += 1;
            if self.fold_kept(self.next_row - 1) {
                return true;
            }
        }
        let coded = self.blocks.len() - self.originals_here as usize;
        if self.tracker.rank() < self.code.k() / 2 || coded < self.fold_from as usize {
            return false;
        }
        let mut next = self.next_fold;
        if next == self.code.parity_count() {
            // Another round once it finds something: originals that came since.
            if self.originals_here < self.originals_folded + self.code.k() / FOLD_AGAIN {
                return false;
            }
            next = 0;
        }
        if next == self.sums.len() {
            // Whatever the caller does here, nothing has changed yet.
            let mut sum = memory(self.block_len);
            assert_eq!(sum.as_ref().len(), self.block_len, "memory for a sum is as long as a block");
            sum.as_mut().fill(0);
            self.sums.push(sum);
        }
        if next == 0 {
            self.originals_folded = self.originals_here;
        }
        self.next_fold = next + 1;
        let (original, blocks) = (&self.original, &self.blocks);
        let mut adding = Adding::to(self.sums[next].as_mut());
        self.rows.constraint(next).retain(|entry| {
            let block = original.get(entry.column as usize).copied().flatten();
            block.into_iter().for_each(|block| adding.add(blocks[block as usize].as_ref()));
            block.is_none()
        });
        self.folded += adding.finish();
        true
    }

    /// Adds the originals of a kept block's row that are here into its payload, and takes them out of the row; whether
    /// there were any.
    fn fold_kept(&mut self, block: usize) -> bool {
        let original = &self.original;
        let here = |entry: &Entry| {
            let other = original.get(entry.column as usize).copied().flatten()? as usize;
            (other != block).then_some(other)
        };
        if !self.rows.kept(block).iter().any(|entry| here(entry).is_some()) {
            return false;
        }
        let (before, rest) = self.blocks.split_at_mut(block);
        let (own, after) = rest.split_first_mut().expect("a block that is kept");
        let mut adding = Adding::to(own.as_mut());
        self.rows.fold(block, |entry| {
            let other = here(entry);
            let place = other
                .map(|other| other.checked_sub(block + 1).map_or_else(|| &before[other], |at| &after[at]));
            place.into_iter().for_each(|original| adding.add(original.as_ref()));
            other.is_some()
        });
        self.folded += adding.finish();
        true
    }

    /// Slices read so far by folding: what [`Decoder::cost`] does not count because it is done. 0 again once there are no
    /// blocks.
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// Dimensions known, 0 to K; for LT the originals that peeling recovers.
    pub fn rank(&self) -> u32 {
        self.tracker.rank()
    }

    /// A lower bound on the further blocks needed; 0 exactly when [`Decoder::solve`] succeeds. K again after
    /// [`Decoder::solve_with`], which leaves no blocks.
    pub fn missing(&self) -> u32 {
        self.tracker.missing()
    }

    /// Buffers held.
    pub fn kept(&self) -> usize {
        self.blocks.len()
    }

    /// Original `original`, if it arrived as it is.
    pub fn original(&self, original: u32) -> Option<&B> {
        let block = (*self.original.get(original as usize)?)?;
        Some(&self.blocks[block as usize])
    }

    /// Originals `range` in order, in the buffers they came in; `None` unless all of them arrived as they are.
    pub fn into_originals(self, range: Range<u32>) -> Option<Vec<B>> {
        if range.end > self.code.k() && !range.is_empty() {
            return None;
        }
        self.into_those_here(range).into_iter().collect()
    }

    /// The same of each that arrived as it is, and `None` for the others; of those below K, whatever the range.
    pub fn into_those_here(self, range: Range<u32>) -> Vec<Option<B>> {
        let range = range.start..range.end.min(self.code.k());
        let mut blocks: Vec<Option<B>> = self.blocks.into_iter().map(Some).collect();
        let here = range.map(|original| {
            let block = self.original.get(original as usize).copied().flatten()?;
            blocks[block as usize].take()
        });
        here.collect()
    }
}

impl<B: AsMut<[u8]> + AsRef<[u8]> + Send> Decoder<B> {
    /// The K originals in order, each in one of the kept buffers. Uses up to `threads` threads, the caller's among
    /// them, and no more than a block has stretches of 4 KiB; each computes its own stretch of every block. Nothing is computed
    /// when the originals came as they are.
    ///
    /// Memory: the blocks stay where they are; the plan takes some 100 bytes a row and unknown, and each thread a strip
    /// for each of the scratch sums that [`Decoder::cost`] counts, together 2.75 MiB at most: 2 KiB or more for each of
    /// up to 1,408 sums, shorter strips for more, down to 256 bytes for 11,264.
    ///
    /// # Errors
    /// [`DecodeError::Missing`] when the blocks do not give all originals.
    pub fn solve(mut self, threads: usize) -> Result<Vec<B>, DecodeError> {
        let mut originals = Vec::new();
        self.solve_kept(&mut Scratch::new(), threads, &mut originals)?;
        Ok(originals)
    }

    /// [`Decoder::solve`] in memory that stays for the next call, originals appended to `out`. Afterwards the decoder is as
    /// it was before the first block: it has none, [`Decoder::missing`] is K, and it takes those of the same segment until
    /// it is [`Decoder::reset`]. After an error nothing has changed.
    ///
    /// From the second segment of a shape on [`Decoder::push`] and [`Decoder::advance`] allocate nothing (for mix), and
    /// this allocates the plan alone: some hundred pieces, together below 1 MiB at K = 1024, whatever the blocks' length;
    /// nothing when the originals came as they are. Further threads take what starting them does, and a list of the blocks for each
    /// stretch. Chunks of a fixed code are solved with a few lists for every 16 KiB of a row.
    ///
    /// # Errors
    /// [`DecodeError::Missing`] when the blocks do not give all originals.
    pub fn solve_with(
        &mut self,
        scratch: &mut Scratch,
        threads: usize,
        out: &mut Vec<B>,
    ) -> Result<(), DecodeError> {
        self.solve_kept(scratch, threads, out)?;
        self.clear();
        Ok(())
    }

    /// [`Decoder::solve_with`] but that what is known of the blocks stays: to be cleared before anything else.
    fn solve_kept(
        &mut self,
        scratch: &mut Scratch,
        threads: usize,
        out: &mut Vec<B>,
    ) -> Result<(), DecodeError> {
        let missing = self.tracker.missing();
        if missing > 0 || self.blocks.is_empty() {
            return Err(DecodeError::Missing { missing: missing.max(1) });
        }
        out.reserve(self.code.k() as usize);
        self.taken.clear();
        if self.originals_here == self.code.k() {
            self.taken.extend(self.blocks.drain(..).map(Some));
            let home = self.original.iter().map(|block| block.expect("every original is here"));
            let taken = &mut self.taken;
            out.extend(home.map(|block| taken[block as usize].take().expect("a block is one original")));
            self.taken.clear();
            return Ok(());
        }
        let threads = threads.clamp(1, stretches_max(self.block_len));
        let mut slots = scratch.take_unique();
        slots.extend(self.blocks.iter_mut().map(AsMut::as_mut));
        let home = if let Some(stripes) = self.code.stripes() {
            stripes.solve(&self.indices, &mut slots, threads)
        } else if self.code.is_dense() {
            dense::solve(self.code.k() as usize, &self.rows, &mut slots, scratch.strips(threads))
        } else {
            let plan = plan(&self.code, &self.rows, self.sums.len())
                .expect("rank is full, so the rows can be solved");
            slots.extend(self.sums.iter_mut().map(AsMut::as_mut));
            let (program, tier, whole) = (&plan.program, Tier::detect(), self.block_len);
            if !program.is_empty() {
                in_stretches(&mut slots, scratch.strips(threads), |strips, part| {
                    program.run_part(tier, strips, &[], part, whole);
                });
            }
            plan.home
        };
        scratch.keep_unique(slots);
        self.taken.extend(self.blocks.drain(..).map(Some));
        let taken = &mut self.taken;
        let home = home.iter().map(|block| taken[*block as usize].take());
        out.extend(home.map(|block| block.expect("each original has a buffer of its own")));
        self.taken.clear();
        Ok(())
    }

    /// Size of the program [`Decoder::solve`] would run: columns set aside, slices read and scratch strips. For
    /// measurements; costs the symbolic phase. Dense rows are no program: every lost original reads all blocks.
    pub fn cost(&self) -> Option<(usize, usize, usize)> {
        if self.code.is_dense() {
            let (k, lost) = (self.code.k() as usize, (self.code.k() - self.originals_here) as usize);
            let copies = if lost == 0 { 0 } else { k };
            return (self.tracker.missing() == 0).then_some((0, lost * k, copies));
        }
        let plan = plan(&self.code, &self.rows, self.sums.len())?;
        Some((plan.inactive, plan.program.reads(), plan.program.scratch()))
    }
}

/// Blocks that are added into a payload, as many at once as one pass takes.
struct Adding<'a> {
    payload: &'a mut [u8],
    waiting: [&'a [u8]; xor::FUSED_MAX],
    count: usize,
    added: u64,
}

impl<'a> Adding<'a> {
    fn to(payload: &'a mut [u8]) -> Self {
        Self { payload, waiting: [&[]; xor::FUSED_MAX], count: 0, added: 0 }
    }

    fn add(&mut self, block: &'a [u8]) {
        self.waiting[self.count] = block;
        self.count += 1;
        self.added += 1;
        if self.count == self.waiting.len() {
            xor::xor_many(self.payload, &self.waiting);
            self.count = 0;
        }
    }

    /// How many were added.
    fn finish(self) -> u64 {
        xor::xor_many(self.payload, &self.waiting[..self.count]);
        self.added
    }
}

/// Stretches are multiples of this, so that no two threads write one cache line.
const STRETCH_ALIGN: usize = 4096;
/// Stretches for each thread: a thread that is held up, or started late, leaves some to the others.
const STRETCHES: usize = 4;

/// Coded blocks from which on the constraints are worth their sums.
fn fold_from(code: &Code) -> u32 {
    code.kind().effort(code.k()).map_or(0, |effort| effort.first_pays_from())
}

/// Whether originals are added into rows before the end. Codes without parity columns have short rows or dense ones;
/// coefficients would cost more than they save.
fn folds(code: &Code, block_len: usize) -> bool {
    let parities = code.parity_count();
    parities > 0 && code.is_binary() && parities.saturating_mul(block_len) <= FOLDED_BYTES_MAX
}

/// Does `work` on all parts, whichever is next, in a thread for each of `states`, the first one's here. Threads that the system
/// refuses are not missed: the others do all there is.
#[expect(
    clippy::disallowed_types,
    reason = "which thread takes a part shows in no byte, and none is left when this returns"
)]
fn share<S: Send, T: Send>(parts: Vec<T>, states: &mut [S], work: impl Fn(&mut S, T) + Sync) {
    let Some((own, others)) = states.split_first_mut() else { return };
    let parts = std::sync::Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let all = |state: &mut S| {
        while let Some(part) = next() {
            work(state, part);
        }
    };
    let all = &all;
    std::thread::scope(|scope| {
        for state in others {
            if std::thread::Builder::new().spawn_scoped(scope, move || all(state)).is_err() {
                break;
            }
        }
        all(own);
    });
}

/// Does `work` on stretches of all `blocks`, in a thread for each of `states`, one of them here.
pub(super) fn in_stretches<S: Send>(
    blocks: &mut [&mut [u8]],
    states: &mut [S],
    work: impl Fn(&mut S, &mut [&mut [u8]]) + Sync,
) {
    let few = states.len() <= 1 || blocks.first().is_none_or(|block| block.len() <= STRETCH_ALIGN);
    if let [own, ..] = states
        && few
    {
        return work(own, blocks);
    }
    let parts = stretches(blocks, states.len().saturating_mul(STRETCHES));
    let threads = states.len().min(parts.len());
    share(parts, &mut states[..threads], |state, mut part| work(state, &mut part));
}

/// Stretches that a block has at most, one at least: further threads would have nothing to do, and a state each all the same.
fn stretches_max(block_len: usize) -> usize {
    block_len.div_ceil(STRETCH_ALIGN).max(1)
}

/// All `blocks` in at most so many stretches.
fn stretches<'a>(blocks: &mut [&'a mut [u8]], count: usize) -> Vec<Vec<&'a mut [u8]>> {
    let block_len = blocks.first().map_or(0, |block| block.len());
    let stretch = block_len.div_ceil(count).next_multiple_of(STRETCH_ALIGN);
    let lens = (0..block_len).step_by(stretch.max(1)).map(|start| stretch.min(block_len - start));
    lens.map(|len| cut(blocks, len)).collect()
}

/// Takes the first `stretch` bytes off all blocks.
fn cut<'a>(blocks: &mut [&'a mut [u8]], stretch: usize) -> Vec<&'a mut [u8]> {
    let off = |block: &mut &'a mut [u8]| {
        let (part, tail) = std::mem::take(block).split_at_mut(stretch);
        *block = tail;
        part
    };
    blocks.iter_mut().map(off).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn segments_of_256_mib_are_folded() {
        let kib = |kind, k, kib: usize| folds(&Code::new(kind, k, 1).unwrap(), kib << 10);
        // K/4 columns are rounded up to 258, 129 and 132.
        for kind in [Kind::Mix, Kind::MixA] {
            assert!(kib(kind, 1024, 256) && kib(kind, 512, 512) && kib(kind, 520, 505), "{kind:?}");
            assert!(!kib(kind, 1024, 512) && !kib(kind, 512, 600), "{kind:?}");
        }
        assert!(kib(Kind::MixC, 1024, 176) && !kib(Kind::MixC, 1024, 177));
        // Coefficients, and no parity columns at all.
        assert!(!kib(Kind::Mix, 511, 1) && !kib(Kind::Mix, 16, 1) && !kib(Kind::Replicated, 600, 1));
    }
}
