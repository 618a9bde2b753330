//! What a node tells a reader: which versions it has of its chunk, and rows at given ones; as `steadfast_node` does.

use super::{DataNode, ParityNode, SEGMENT, of_row};
use anyhow::{Context, Result};
use steadfast_protocol::{
    message::ChunkVersions,
    serve::parity_log::{Difference, VersionsByChunk, take_back},
};

impl DataNode {
    /// To be named once it is durable.
    pub(in super::super) fn versions(&mut self) -> Result<ChunkVersions> {
        Ok(ChunkVersions { version: self.version()?, held: Vec::new() })
    }

    fn version(&mut self) -> Result<u64> {
        Ok(self.disk.device()?.updates(SEGMENT).context("describe")?.version)
    }

    /// A row as it is, to be given once that is durable, and its version.
    pub(in super::super) fn newest(&mut self, row: u32) -> Result<(u64, Vec<u8>)> {
        Ok((self.version()?, self.disk.read(of_row(row))?))
    }

    /// A row as it was, where what came since is still held.
    pub(in super::super) fn at(&mut self, row: u32, version: u64) -> Result<Option<Vec<u8>>> {
        let (now, mut bytes) = self.newest(row)?;
        let held = self.disk.held()?;
        let held = held.iter().map(|staged| (staged.version, staged.offset, &staged.difference[..]));
        Ok(take_back(&mut bytes, of_row(row).start, (now, version), held).then_some(bytes))
    }
}

impl ParityNode {
    /// To be named once it is durable.
    pub(in super::super) fn versions(&mut self) -> Result<ChunkVersions> {
        let (merged, log) = self.merged_and_log()?;
        let mut held = merged;
        held.extend(log.iter().map(|difference| (difference.chunk, difference.version)));
        Ok(ChunkVersions { version: 0, held: held.into_iter().collect() })
    }

    fn merged_and_log(&mut self) -> Result<(VersionsByChunk, Vec<Difference>)> {
        let info = self.disk.device()?.updates(SEGMENT).context("describe")?;
        let log = info.log.iter().map(|entry| self.record(entry.sequence)).collect::<Result<_>>()?;
        Ok((info.merged.into_iter().collect(), log))
    }

    /// A row at these versions of the data chunks, where it can be had.
    pub(in super::super) fn at(&mut self, row: u32, versions: &VersionsByChunk) -> Result<Option<Vec<u8>>> {
        let (mut merged, log) = self.merged_and_log()?;
        let start = of_row(row).start;
        let mut bytes = self.disk.read(of_row(row))?;
        if merged.iter().any(|(chunk, version)| version > versions.get(chunk).unwrap_or(&0)) {
            // Overwritten in place: what is newer is taken back, where it is still held.
            let held = self.disk.held()?;
            for (chunk, version) in &mut merged {
                let wanted = versions.get(chunk).copied().unwrap_or(0).min(*version);
                let of_chunk = held.iter().filter_map(|staged| {
                    let (of, version) = staged.of?;
                    (of == *chunk).then_some((version, staged.offset, &staged.difference[..]))
                });
                if !take_back(&mut bytes, start, (*version, wanted), of_chunk) {
                    return Ok(None);
                }
                *version = wanted;
            }
        }
        Ok(self.of.bring(&mut bytes, start, &merged, &log, versions)?.then_some(bytes))
    }
}
