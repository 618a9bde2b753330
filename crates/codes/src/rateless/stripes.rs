//! A fixed code behind the indices of a rateless one: stripes of an MDS code (CodFS §3, PLR §3), side by side in chunks.
//!
//! ```text
//!              block 0 .. c-1    c .. 2c-1         (k-1)c ..    kc ..          up to nc
//!   row 0        o0               oc         ...                 p0
//!   row 1        o1               oc+1       ...                 p1
//!   ..           ..               ..                             ..
//!                data chunk 0     data chunk 1     chunk k-1     parity chunk 0 ..
//! ```
//!
//! K = k c originals, c blocks a chunk; block r of parity chunk p is that of [`mds`] over block r of every data
//! chunk, with the same coefficients, so that deltas made there are right here. Invariants: rows share nothing; any k
//! blocks of a row give it, fewer give no more of it than they are; there is no block from n c on.

use super::code::{CodeError, Entry};
use super::decoder::in_stretches;
use crate::mds::{self, Reconstruction};
use std::collections::BTreeMap;

/// Bytes of each block that are solved at once: the sources of a row stay in the second-level cache.
const STRIP: usize = 16 * 1024;

/// The code of every row, and how many rows there are.
#[derive(Debug)]
pub(crate) struct Stripes {
    code: mds::Code,
    blocks: u32,
}

/// A row that lost something.
struct Lost {
    plan: Reconstruction,
    /// The kept blocks it has, in the plan's order.
    sources: Vec<usize>,
    /// The kept blocks whose buffers get what was lost.
    homes: Vec<usize>,
}

impl Stripes {
    /// `data` and `parity` chunks for `k` originals.
    pub(crate) fn new(data: u32, parity: u32, k: u32) -> Result<Self, CodeError> {
        let shape = CodeError::Chunks { data, parity, k };
        let code = mds::Code::new(mds::Kind::ReedSolomon, data as usize, parity as usize);
        match code {
            Ok(code) if k.is_multiple_of(data) => Ok(Self { code, blocks: k / data }),
            _ => Err(shape),
        }
    }

    fn data(&self) -> u32 {
        self.code.k() as u32
    }

    /// The first index that is no block's.
    pub(crate) fn end(&self) -> u32 {
        (self.data() + self.code.m() as u32) * self.blocks
    }

    /// Rows: blocks of a chunk.
    pub(crate) fn rows(&self) -> u32 {
        self.blocks
    }

    /// The row of a block, if there is such a block.
    pub(crate) fn row_of(&self, index: u32) -> Option<u32> {
        (index < self.end()).then(|| index % self.blocks)
    }

    /// Blocks that give a row.
    pub(crate) fn enough(&self) -> u32 {
        self.data()
    }

    /// Appends the entries of a parity block; none for an index that is no block's.
    pub(crate) fn parity_row(&self, index: u32, row: &mut Vec<Entry>) {
        let Some(own) = self.row_of(index) else { return };
        let Some(parity) = (index / self.blocks).checked_sub(self.data()) else { return };
        row.extend((0..self.data()).map(|data| Entry {
            column: (data * self.blocks + own) as u16,
            coefficient: self.code.coefficient(parity as usize, data as usize),
        }));
    }

    /// Makes the blocks of `indices`, all of them below [`Stripes::end`], from originals of the same length: each row's
    /// parity blocks in one pass over it.
    pub(crate) fn encode(&self, indices: &[u32], originals: &[&[u8]], out: &mut [&mut [u8]]) {
        let data: Vec<usize> = (0..self.code.k()).collect();
        let mut rows: BTreeMap<u32, Vec<(usize, &mut [u8])>> = BTreeMap::new();
        for (index, out) in indices.iter().zip(out) {
            match originals.get(*index as usize) {
                Some(original) => out.copy_from_slice(original),
                None => rows
                    .entry(index % self.blocks)
                    .or_default()
                    .push(((index / self.blocks) as usize, &mut **out)),
            }
        }
        for (row, mut wanted) in rows {
            let sources: Vec<&[u8]> =
                (0..self.data()).map(|data| originals[(data * self.blocks + row) as usize]).collect();
            // A block that is asked for twice is in none of the passes of the other.
            wanted.sort_by_key(|(chunk, _)| *chunk);
            while !wanted.is_empty() {
                let (mut chunks, mut outputs, mut again) = (Vec::new(), Vec::new(), Vec::new());
                for (chunk, out) in wanted {
                    if chunks.last() == Some(&chunk) {
                        again.push((chunk, out));
                    } else {
                        chunks.push(chunk);
                        outputs.push(out);
                    }
                }
                let plan = self.code.plan(&data, &chunks).expect("distinct chunks, from all of the data");
                plan.run(&sources, &mut outputs).expect("as many blocks of one length as the plan has");
                wanted = again;
            }
        }
    }

    /// Computes the originals that are not among the blocks `indices`, which give all: k of each row. The places of all
    /// originals afterwards; a lost one takes a parity block's of its row. `threads` is one at least.
    pub(crate) fn solve(&self, indices: &[u32], blocks: &mut [&mut [u8]], threads: usize) -> Vec<u32> {
        let mut home = vec![u32::MAX; (self.data() * self.blocks) as usize];
        let mut rows: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.blocks as usize];
        for (place, index) in indices.iter().enumerate() {
            if let Some(home) = home.get_mut(*index as usize) {
                *home = place as u32;
            }
            rows[(index % self.blocks) as usize].push(((index / self.blocks) as usize, place));
        }
        let mut lost = Vec::new();
        for (row, held) in rows.iter().enumerate() {
            let original = |chunk: usize| chunk * self.blocks as usize + row;
            let wanted: Vec<usize> =
                (0..self.code.k()).filter(|&chunk| home[original(chunk)] == u32::MAX).collect();
            if wanted.is_empty() {
                continue;
            }
            let (chunks, sources): (Vec<usize>, Vec<usize>) = held.iter().copied().unzip();
            let parities = held.iter().filter(|(chunk, _)| *chunk >= self.code.k());
            let homes: Vec<usize> = parities.map(|(_, place)| *place).collect();
            for (chunk, place) in wanted.iter().zip(&homes) {
                home[original(*chunk)] = *place as u32;
            }
            let plan = self.code.plan(&chunks, &wanted).expect("k distinct blocks of every row are here");
            lost.push(Lost { plan, sources, homes });
        }
        in_stretches(blocks, &mut vec![(); threads], |(), parts| {
            lost.iter().for_each(|row| row.solve(parts));
        });
        home
    }
}

impl Lost {
    /// Solves it in these parts of all blocks.
    fn solve(&self, parts: &mut [&mut [u8]]) {
        let length = parts.first().map_or(0, |part| part.len());
        let mut formed = vec![0; self.homes.len() * STRIP.min(length)];
        for start in (0..length).step_by(STRIP) {
            let strip = start..length.min(start + STRIP);
            let sources: Vec<&[u8]> =
                self.sources.iter().map(|place| &parts[*place][strip.clone()]).collect();
            let mut outputs: Vec<&mut [u8]> = formed.chunks_exact_mut(strip.len()).collect();
            outputs.truncate(self.homes.len());
            self.plan.run(&sources, &mut outputs).expect("as many blocks of one length as the plan has");
            for (place, formed) in self.homes.iter().zip(formed.chunks_exact(strip.len())) {
                parts[*place][strip.clone()].copy_from_slice(formed);
            }
        }
    }
}
