//! What must hold: every byte that is read is one that may be there, and any four of the chunks give all.

use super::{
    Counts, K, M, Progress, Storm, Update, below,
    node::{CHUNK_BYTES, of_row},
    reader::Reader,
};
use anyhow::{Context, Result, anyhow, ensure};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

impl Storm {
    /// Every byte is one that may be there, and any four chunks give all.
    pub(super) fn check(&mut self, counts: &mut Counts) -> Result<()> {
        ensure!(
            self.updates.iter().all(|update| update.progress != Progress::Sent),
            "an update has no answer"
        );
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        for chunk in 0..K {
            let content = self.data[chunk].disk.content()?;
            self.compare(chunk, &content)?;
            counts.bytes_compared += content.len() as u64;
            chunks.push(content);
        }
        for number in 0..M {
            chunks.push(self.parity[number].current()?);
        }
        for first in 0..K + M {
            for second in first + 1..K + M {
                let left = (0..K + M).filter(|chunk| *chunk != first && *chunk != second);
                let left: Vec<(usize, &[u8])> = left.map(|chunk| (chunk, &chunks[chunk][..])).collect();
                let mut decoded = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
                let [one, two] = &mut decoded;
                self.code.reconstruct(&left, &mut [(first, one), (second, two)])?;
                ensure!(
                    decoded[0] == chunks[first] && decoded[1] == chunks[second],
                    "without chunks {first} and {second} the others decode to something else"
                );
                counts.bytes_compared += 2 * CHUNK_BYTES as u64;
            }
        }
        chunks.truncate(K);
        // What a reader finds without two of them, too.
        let without: BTreeSet<usize> =
            (0..M).map(|_| below(&mut self.random, (K + M) as u64) as usize).collect();
        let read = self.read_at_rest(without.clone(), counts)?;
        ensure!(read == chunks, "without {without:?} a reader finds something else");
        for chunk in 0..K {
            self.base[chunk] = self.data[chunk].core.as_ref().context("up")?.committed();
        }
        self.model = chunks;
        self.updates.clear();
        Ok(())
    }

    /// Compares a chunk with what was acknowledged since the last look, in the order of versions.
    fn compare(&self, chunk: usize, content: &[u8]) -> Result<()> {
        let mut newest: Vec<(u64, u8)> = self.model[chunk].iter().map(|byte| (0, *byte)).collect();
        for update in self.updates_of(chunk) {
            let Progress::Acked(version) = update.progress else { continue };
            for (newest, byte) in newest[update.offset..].iter_mut().zip(&update.bytes) {
                if version > newest.0 {
                    *newest = (version, *byte);
                }
            }
        }
        let mut wrong: Vec<bool> =
            newest.iter().zip(content).map(|((_, expected), byte)| expected != byte).collect();
        for update in self.updates_of(chunk) {
            // One that never got a version never happened.
            let Progress::Unanswered(Some(version)) = update.progress else { continue };
            for (at, byte) in (update.offset..).zip(&update.bytes) {
                if version > newest[at].0 && content[at] == *byte {
                    wrong[at] = false;
                }
            }
        }
        match wrong.iter().position(|wrong| *wrong) {
            None => Ok(()),
            Some(at) => Err(anyhow!(
                "byte {at} of chunk {chunk} is {}, not {} of version {}",
                content[at],
                newest[at].1,
                newest[at].0
            )),
        }
    }

    /// Compares what a reader has of a row with what its chunks were at the versions that it was given, which are no older than what had
    /// been acknowledged when it began.
    pub(super) fn judge_row(
        &self,
        reader: &mut Reader,
        row: u32,
        wanted: &[u32],
        lost: &[u32],
        counts: &mut Counts,
    ) -> Result<()> {
        let range = of_row(row);
        let range = range.start as usize..range.end as usize;
        let mut decoded: Vec<(usize, Vec<u8>)> =
            lost.iter().map(|chunk| (*chunk as usize, vec![0; range.len()])).collect();
        if !lost.is_empty() {
            let available: Vec<(usize, &[u8])> =
                reader.rows.iter().map(|(chunk, bytes)| (*chunk as usize, &bytes[..])).collect();
            let mut outputs: Vec<(usize, &mut [u8])> =
                decoded.iter_mut().map(|(chunk, bytes)| (*chunk, &mut bytes[..])).collect();
            self.code.reconstruct(&available, &mut outputs)?;
            counts.rows_decoded += lost.len() as u64;
        }
        for &chunk in wanted {
            let number = chunk as usize;
            let of_lost = || decoded.iter().find(|(of, _)| *of == number).map(|(_, bytes)| bytes);
            let bytes = reader.rows.get(&chunk).or_else(of_lost).context("it is there or decoded")?;
            let version = *reader.state.get(&(chunk as u16)).context("its version is known")?;
            let acked = reader.acked[number];
            ensure!(
                version >= acked,
                "chunk {chunk} is read at version {version}, and {acked} was done before"
            );
            let expected = self.content_at(number, version, range.clone())?;
            ensure!(*bytes == expected, "chunk {chunk} is not read as its version {version} was");
            counts.bytes_compared += range.len() as u64;
            reader.contents[number][range.clone()].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// The last version of each data chunk that was acknowledged.
    pub(super) fn acked(&self) -> Vec<u64> {
        let acked = |update: &Update| match update.progress {
            Progress::Acked(version) => Some(version),
            _ => None,
        };
        let last = |chunk| self.updates_of(chunk).filter_map(acked).max().unwrap_or(0);
        (0..K).map(|chunk| last(chunk).max(self.base[chunk])).collect()
    }

    /// Bytes of a chunk as they were with so many updates.
    fn content_at(&self, chunk: usize, version: u64, range: Range<usize>) -> Result<Vec<u8>> {
        let stamped = self.updates_of(chunk).filter_map(|update| Some((update.version?, update)));
        // Of two that got the same version the first was lost before anybody knew of it.
        let stamped: BTreeMap<u64, &Update> = stamped.filter(|(of, _)| *of <= version).collect();
        let base = self.base[chunk];
        ensure!(
            base + stamped.len() as u64 == version,
            "chunk {chunk} is read at version {version}: {base} and {} since were stamped",
            stamped.len()
        );
        let mut content = self.model[chunk][range.clone()].to_vec();
        for update in stamped.values() {
            let end = update.offset + update.bytes.len();
            let (from, to) = (update.offset.max(range.start), end.min(range.end));
            if from < to {
                let new = &update.bytes[from - update.offset..to - update.offset];
                content[from - range.start..to - range.start].copy_from_slice(new);
            }
        }
        Ok(content)
    }

    fn updates_of(&self, chunk: usize) -> impl Iterator<Item = &Update> {
        self.updates.iter().filter(move |update| update.chunk == chunk)
    }
}
