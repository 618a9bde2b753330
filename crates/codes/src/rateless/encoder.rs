//! Blocks of given indices.
//!
//! A repair block is a few originals and parity columns. A parity column that several of the wanted blocks share
//! is summed once a strip into scratch; one wanted once is summed in place. A writer that mints blocks in runs can
//! keep the parity columns' payload instead ([`Encoder::prepare`]): K/4 blocks of memory (C: 3K/8), and a block of B then costs
//! 4.9 XORs among the first K repair blocks and 2.5 later, instead of 43 on average. What is kept borrows the originals that it was made
//! of, and encodes no others: a block of some originals and the columns of others decodes to neither.

use super::code::{Code, Entry};
use super::dense;
use super::program::{Builder, Home, Program, Source};
use super::scratch::{Scratch, Strips};
use crate::kernel::Tier;

/// Why blocks could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The number of originals is not K.
    #[error("{given} originals given to a code of {expected}")]
    OriginalCount {
        /// What was given.
        given: usize,
        /// K.
        expected: usize,
    },
    /// Not one output for each index.
    #[error("{given} output blocks given for {expected} indices")]
    OutputCount {
        /// Outputs.
        given: usize,
        /// Indices.
        expected: usize,
    },
    /// A block, or memory for a parity column, has another length than the first original.
    #[error("a block of {given} bytes among blocks of {expected}: pad the last original")]
    BlockLength {
        /// Its length, bytes.
        given: usize,
        /// Length of original 0, bytes.
        expected: usize,
    },
    /// A run goes past the largest index, or the code has no such block.
    #[error("a run of {count} blocks from index {first} goes past the last one")]
    IndexRange {
        /// First index.
        first: u32,
        /// Blocks.
        count: usize,
    },
}

/// Makes blocks of one [`Code`] from whatever originals come with the call.
#[derive(Clone)]
pub struct Encoder {
    code: Code,
}

/// Makes blocks of one [`Code`] and of the originals that it borrows, whose parity columns it keeps in buffers of type `B`:
/// [`Encoder::prepare`].
#[derive(Clone)]
pub struct Prepared<'a, B = Vec<u8>> {
    encoder: Encoder,
    originals: &'a [&'a [u8]],
    /// Payload of the parity columns.
    columns: Vec<B>,
}

impl Encoder {
    /// An encoder over this code.
    pub fn new(code: &Code) -> Self {
        Self { code: code.clone() }
    }

    /// Sums the parity columns of `originals`, for an encoder of these; K/4 blocks of memory (C: 3K/8), which `memory` gives: so many
    /// bytes each time, whatever they hold.
    ///
    /// # Errors
    /// Not K originals, originals of several lengths, memory of another length than was asked for.
    pub fn prepare<'a, B: AsRef<[u8]> + AsMut<[u8]>>(
        &self,
        originals: &'a [&'a [u8]],
        mut memory: impl FnMut(usize) -> B,
    ) -> Result<Prepared<'a, B>, EncodeError> {
        let block_len = self.check(originals)?;
        let parities = self.code.parity_count();
        let mut columns: Vec<B> = (0..parities).map(|_| memory(block_len)).collect();
        if let Some(wrong) = columns.iter().map(|column| column.as_ref().len()).find(|len| *len != block_len)
        {
            return Err(EncodeError::BlockLength { given: wrong, expected: block_len });
        }
        let mut builder = Builder::new(originals.len(), parities).for_encoder();
        let sums =
            (0..parities).map(|parity| (builder.sum(self.members(parity)), Home::Block(parity as u32)));
        let sums: Vec<_> = sums.collect();
        let mut blocks: Vec<&mut [u8]> = columns.iter_mut().map(AsMut::as_mut).collect();
        builder.finish(&sums).0.run(Tier::detect(), &mut Strips::default(), originals, &mut blocks);
        Ok(Prepared { encoder: self.clone(), originals, columns })
    }

    /// Blocks `first_index..first_index + out.len()`.
    ///
    /// # Errors
    /// As for [`Encoder::encode`], and a run that goes past the largest index; nothing is written then.
    pub fn encode_run(
        &self,
        first_index: u32,
        originals: &[&[u8]],
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        self.encode_run_with(&mut Scratch::new(), first_index, originals, out)
    }

    /// [`Encoder::encode_run`] in memory that stays for the next call.
    ///
    /// # Errors
    /// As for [`Encoder::encode_run`].
    pub fn encode_run_with(
        &self,
        scratch: &mut Scratch,
        first_index: u32,
        originals: &[&[u8]],
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        self.encode_with(scratch, &run(first_index, out.len())?, originals, out)
    }

    /// The blocks of `indices` into `out`, in that order; see [`Code::encode`].
    ///
    /// # Errors
    /// As for [`Code::encode`].
    pub fn encode(
        &self,
        indices: &[u32],
        originals: &[&[u8]],
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        self.encode_with(&mut Scratch::new(), indices, originals, out)
    }

    /// [`Encoder::encode`] in memory that stays for the next call: from the second one of a size on, only the list of
    /// sums is allocated, in pieces of up to a few dozen bytes for each of them; of a fixed code the plan of every row, below K = 128
    /// some thirteen bytes for every coefficient of a repair row.
    ///
    /// # Errors
    /// As for [`Code::encode`].
    pub fn encode_with(
        &self,
        scratch: &mut Scratch,
        indices: &[u32],
        originals: &[&[u8]],
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        self.make::<Vec<u8>>(scratch, indices, originals, None, out)
    }

    /// The blocks of `indices`, with the payload of the parity columns of these originals where it is kept.
    fn make<B: AsRef<[u8]>>(
        &self,
        scratch: &mut Scratch,
        indices: &[u32],
        originals: &[&[u8]],
        columns: Option<&[B]>,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let expected = self.check(originals)?;
        if out.len() != indices.len() {
            return Err(EncodeError::OutputCount { given: out.len(), expected: indices.len() });
        }
        if let Some(wrong) = out.iter().find(|block| block.len() != expected) {
            return Err(EncodeError::BlockLength { given: wrong.len(), expected });
        }
        if let Some(stripes) = self.code.stripes() {
            if let Some(first) = indices.iter().copied().find(|index| *index >= stripes.end()) {
                return Err(EncodeError::IndexRange { first, count: 1 });
            }
            stripes.encode(indices, originals, out);
            return Ok(());
        }
        if self.code.is_dense() {
            dense::encode(&self.code, &mut scratch.strips(1)[0], indices, originals, out);
            return Ok(());
        }
        let program = self.program(indices, columns.is_some());
        let Some(columns) = columns else {
            program.run(Tier::detect(), &mut scratch.strips(1)[0], originals, out);
            return Ok(());
        };
        let mut inputs = scratch.take_shared();
        inputs.extend(originals);
        inputs.extend(columns.iter().map(AsRef::as_ref));
        program.run(Tier::detect(), &mut scratch.strips(1)[0], &inputs, out);
        scratch.keep_shared(inputs);
        Ok(())
    }

    fn check(&self, originals: &[&[u8]]) -> Result<usize, EncodeError> {
        let expected = self.code.k() as usize;
        if originals.len() != expected {
            return Err(EncodeError::OriginalCount { given: originals.len(), expected });
        }
        let expected = originals[0].len();
        match originals.iter().find(|original| original.len() != expected) {
            Some(wrong) => Err(EncodeError::BlockLength { given: wrong.len(), expected }),
            None => Ok(expected),
        }
    }

    fn members(&self, parity: usize) -> impl Iterator<Item = Source> {
        let members = self.code.parity_members(parity).iter();
        members.map(|member| Source { value: u32::from(*member), coefficient: 1 })
    }

    /// Inputs are the originals, then the parity columns when `prepared`.
    fn program(&self, indices: &[u32], prepared: bool) -> Program {
        let (k, parities) = (self.code.k() as usize, self.code.parity_count());
        let mut rows: Vec<Entry> = Vec::new();
        let mut ends = Vec::with_capacity(indices.len());
        for index in indices {
            self.code.row(*index, &mut rows);
            ends.push(rows.len());
        }
        let inputs = if prepared { k + parities } else { k };
        let mut builder = Builder::new(inputs, indices.len()).for_encoder();
        // Where a parity column's sum lies; None: summed in place.
        let mut sums: Vec<Option<u32>> = vec![None; parities];
        if prepared {
            sums = (0..parities).map(|parity| Some((k + parity) as u32)).collect();
        } else {
            let mut uses = vec![0; parities];
            for entry in rows.iter().filter(|entry| entry.column as usize >= k) {
                // A coefficient is applied once to a sum rather than to every member.
                uses[entry.column as usize - k] += if entry.coefficient == 1 { 1 } else { 2 };
            }
            for (parity, sum) in sums.iter_mut().enumerate().filter(|(parity, _)| uses[*parity] > 1) {
                *sum = Some(builder.sum(self.members(parity)));
            }
        }
        let (mut start, mut made) = (0, Vec::with_capacity(indices.len()));
        for (place, end) in ends.into_iter().enumerate() {
            let mut sources = Vec::new();
            for Entry { column, coefficient } in rows[start..end].iter().copied() {
                let column = column as usize;
                match column.checked_sub(k).map(|parity| (parity, sums[parity])) {
                    None => sources.push(Source { value: column as u32, coefficient }),
                    Some((_, Some(value))) => sources.push(Source { value, coefficient }),
                    Some((parity, None)) => sources.extend(self.members(parity)),
                }
            }
            made.push((builder.sum(sources), Home::Block(place as u32)));
            start = end;
        }
        builder.finish(&made).0
    }
}

impl<B: AsRef<[u8]>> Prepared<'_, B> {
    /// Blocks `first_index..first_index + out.len()` of the originals.
    ///
    /// # Errors
    /// Outputs of another length than the originals, a run that goes past the largest index or the code's last one; nothing is written
    /// then.
    pub fn encode_run(&self, first_index: u32, out: &mut [&mut [u8]]) -> Result<(), EncodeError> {
        self.encode_run_with(&mut Scratch::new(), first_index, out)
    }

    /// [`Prepared::encode_run`] in memory that stays for the next call.
    ///
    /// # Errors
    /// As for [`Prepared::encode_run`].
    pub fn encode_run_with(
        &self,
        scratch: &mut Scratch,
        first_index: u32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let indices = run(first_index, out.len())?;
        self.encoder.make(scratch, &indices, self.originals, Some(self.columns.as_slice()), out)
    }
}

/// The indices of a run of so many blocks.
fn run(first: u32, count: usize) -> Result<Vec<u32>, EncodeError> {
    let past = EncodeError::IndexRange { first, count };
    let more = u32::try_from(count).map_err(|_| past)?.saturating_sub(1);
    let last = first.checked_add(more).ok_or(past)?;
    Ok(if count == 0 { Vec::new() } else { (first..=last).collect() })
}
