//! Rows of chunks at given versions: what a degraded read decodes.
//!
//! A gather has to see one state of several chunks while updates go on. Nobody is held up for it: the log is where earlier and
//! later states are. A parity node adds to its chunk just the differences up to the versions asked for; a data node takes back
//! what it has staged beyond. From the last committed version to the newest both can be had, so the lowest versions that any of
//! the nodes names are a state that all of them give. Where more was committed, released or merged in between, the question is
//! asked again. What a log brought back to a data node after a crash counts as staged there: another log may lack it.

use super::{ChunkNumber, Difference, Fold};
use core::ops::Range;
use std::collections::BTreeMap;
use steadfast_codes::{
    kernel::xor::xor,
    mds::{self, MdsError},
};

/// Versions of data chunks.
pub type VersionsByChunk = BTreeMap<ChunkNumber, u64>;

/// A parity chunk among others.
#[derive(Clone, Debug)]
pub struct ParityOf {
    code: mds::Code,
    number: usize,
    chunk_bytes: usize,
}

impl ParityOf {
    /// Parity chunk `number` of a segment of Reed-Solomon chunks of `chunk_bytes`: so many of data, so many of parity.
    ///
    /// # Errors
    /// For more chunks than the codes have, and one that is not among them.
    pub fn new(data: u16, parity: u16, number: u16, chunk_bytes: u64) -> Result<Self, MdsError> {
        if number >= parity {
            let (chunk, count) =
                (usize::from(data) + usize::from(number), usize::from(data) + usize::from(parity));
            return Err(MdsError::NoSuchChunk { chunk, count });
        }
        let code = mds::Code::new(mds::Kind::ReedSolomon, data.into(), parity.into())?;
        Ok(Self { code, number: number.into(), chunk_bytes: chunk_bytes as usize })
    }

    /// XORs what folded differences make of this parity chunk into `bytes`, its rows from `start` on.
    ///
    /// # Errors
    /// Differences of chunks that the code does not have, or beyond the chunk's end; `bytes` are unspecified then.
    pub fn add(&self, fold: &Fold, start: u64, bytes: &mut [u8]) -> Result<(), MdsError> {
        let end = start + bytes.len() as u64;
        for (chunk, from, difference) in fold.parts() {
            let to = from + difference.len() as u64;
            let (within_from, within_to) = (from.max(start), to.min(end));
            if within_from >= within_to {
                continue;
            }
            let part = &difference[(within_from - from) as usize..(within_to - from) as usize];
            let (old, mut product) = (vec![0; part.len()], vec![0; part.len()]);
            let (chunk, from) = (usize::from(chunk), within_from as usize);
            self.code.delta(chunk, from, self.chunk_bytes, &old, part, self.number, &mut product)?;
            let at = (within_from - start) as usize;
            xor(&mut bytes[at..at + product.len()], &product);
        }
        Ok(())
    }

    /// What a difference makes of this parity chunk, to be XORed into the same bytes of it.
    ///
    /// # Errors
    /// As [`ParityOf::add`].
    pub fn product(&self, difference: &Difference) -> Result<Vec<u8>, MdsError> {
        let (old, mut product) = (vec![0; difference.bytes.len()], vec![0; difference.bytes.len()]);
        let (chunk, from) = (usize::from(difference.chunk), difference.offset as usize);
        self.code.delta(chunk, from, self.chunk_bytes, &old, &difference.bytes, self.number, &mut product)?;
        Ok(product)
    }

    /// The difference of a data chunk that made `product`: with nothing else changed, what the chunk must be.
    ///
    /// # Errors
    /// A chunk that the code does not have.
    pub fn difference(&self, chunk: ChunkNumber, product: &[u8]) -> Result<Vec<u8>, MdsError> {
        let nothing = vec![0; product.len()];
        let mut available: Vec<(usize, &[u8])> = (0..self.code.k())
            .filter(|other| *other != usize::from(chunk))
            .map(|other| (other, &nothing[..]))
            .collect();
        available.push((self.code.k() + self.number, product));
        let mut difference = vec![0; product.len()];
        self.code.reconstruct(&available, &mut [(chunk.into(), &mut difference[..])])?;
        Ok(difference)
    }

    /// Makes rows of the chunk, from `start` on, those at the versions `wanted`: `merged` is what they are at, and `log` the
    /// differences beyond. Whether it could be done: not where the chunk is beyond those versions, or behind them.
    ///
    /// # Errors
    /// As [`ParityOf::add`].
    pub fn bring(
        &self,
        bytes: &mut [u8],
        start: u64,
        merged: &VersionsByChunk,
        log: &[Difference],
        wanted: &VersionsByChunk,
    ) -> Result<bool, MdsError> {
        let version = |of: &VersionsByChunk, chunk: ChunkNumber| of.get(&chunk).copied().unwrap_or(0);
        if merged.iter().any(|(chunk, merged)| *merged > version(wanted, *chunk)) {
            return Ok(false);
        }
        let mut reached = merged.clone();
        let mut fold = Fold::default();
        for difference in log {
            if difference.version <= version(wanted, difference.chunk) {
                reached.insert(difference.chunk, difference.version);
                fold.add(difference);
            }
        }
        if wanted.iter().any(|(chunk, wanted)| *wanted > version(&reached, *chunk)) {
            return Ok(false);
        }
        self.add(&fold, start, bytes)?;
        Ok(true)
    }
}

/// Takes rows of a data chunk, from `start` on, back from version `from` to version `to`: `held` are differences of its newest
/// versions. Whether it could be done: not where one that it takes is gone, or where the chunk is behind.
pub fn take_back<'a>(
    bytes: &mut [u8],
    start: u64,
    (from, to): (u64, u64),
    held: impl IntoIterator<Item = (u64, u64, &'a [u8])>,
) -> bool {
    let rows = start..start + bytes.len() as u64;
    let mut lacking = from.checked_sub(to);
    for (version, offset, difference) in held {
        if version > to && version <= from {
            lacking = lacking.map(|lacking| lacking - 1);
            let of = offset..offset + difference.len() as u64;
            if let Some(part) = overlap(&rows, &of) {
                let source = &difference[(part.start - of.start) as usize..(part.end - of.start) as usize];
                xor(&mut bytes[(part.start - start) as usize..(part.end - start) as usize], source);
            }
        }
    }
    lacking == Some(0)
}

/// The state that all who were asked can give: for each data chunk the lowest version that any of them names. `data` are the
/// versions that data nodes have, `parity` those that each parity node holds.
pub fn common<'a>(
    data: impl IntoIterator<Item = (ChunkNumber, u64)>,
    parity: impl IntoIterator<Item = &'a VersionsByChunk> + Clone,
    chunks: ChunkNumber,
) -> VersionsByChunk {
    let data: VersionsByChunk = data.into_iter().collect();
    let lowest = |chunk: ChunkNumber| {
        let named = parity.clone().into_iter().map(|held| held.get(&chunk).copied().unwrap_or(0));
        named.chain(data.get(&chunk).copied()).min().unwrap_or(0)
    };
    (0..chunks).map(|chunk| (chunk, lowest(chunk))).collect()
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    (start < end).then_some(start..end)
}
