//! Many differences as few: what a merge XORs into the parity chunk (§4.2.2).
//!
//! Differences of the same bytes add up (XOR), so that a hot granule is multiplied and written once, however often it was
//! updated. Ranges stay apart where nothing was changed between them: what no record touched is neither read nor written.

use super::{ChunkNumber, Difference};
use core::ops::Range;
use std::collections::BTreeMap;

/// Differences by data chunk and place; see the module's doc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fold {
    /// Disjoint, untouching ranges of each data chunk, by their start.
    chunks: BTreeMap<ChunkNumber, BTreeMap<u64, Vec<u8>>>,
}

impl Fold {
    /// Adds one more.
    pub fn add(&mut self, difference: &Difference) {
        let ranges = self.chunks.entry(difference.chunk).or_default();
        let (start, end) = (difference.offset, difference.offset + difference.bytes.len() as u64);
        // Whatever overlaps or touches becomes one range with it.
        let touching: Vec<u64> = ranges
            .range(..=end)
            .rev()
            .take_while(|(from, bytes)| *from + bytes.len() as u64 >= start)
            .map(|(from, _)| *from)
            .collect();
        if let [only] = touching[..]
            && let Some(bytes) = ranges.get_mut(&only)
            && only <= start
        {
            // It grows at its end: records that were appended one after the other are not copied with each of them.
            let length = bytes.len().max((end - only) as usize);
            bytes.resize(length, 0);
            return xor(bytes, (start - only) as usize, &difference.bytes);
        }
        let parts: Vec<(u64, Vec<u8>)> =
            touching.into_iter().filter_map(|from| Some((from, ranges.remove(&from)?))).collect();
        let from = parts.iter().map(|(from, _)| *from).min().unwrap_or(start).min(start);
        let to = parts.iter().map(|(from, bytes)| from + bytes.len() as u64).max().unwrap_or(end).max(end);
        let mut whole = vec![0; (to - from) as usize];
        for (part, bytes) in &parts {
            xor(&mut whole, (part - from) as usize, bytes);
        }
        xor(&mut whole, (start - from) as usize, &difference.bytes);
        ranges.insert(from, whole);
    }

    /// The folded differences: data chunk, first byte within it, bytes.
    pub fn parts(&self) -> impl Iterator<Item = (ChunkNumber, u64, &[u8])> {
        self.chunks
            .iter()
            .flat_map(|(chunk, ranges)| ranges.iter().map(|(from, bytes)| (*chunk, *from, &bytes[..])))
    }

    /// The rows that any of them changes, ascending, untouching.
    pub fn rows(&self) -> Vec<Range<u64>> {
        let mut rows: Vec<Range<u64>> =
            self.parts().map(|(_, from, bytes)| from..from + bytes.len() as u64).collect();
        rows.sort_unstable_by_key(|range| range.start);
        rows.dedup_by(|next, last| {
            let one = next.start <= last.end;
            if one {
                last.end = last.end.max(next.end);
            }
            one
        });
        rows
    }

    /// [`Fold::rows`] in spans to read at once: rows that lie at most `gap_bytes` apart are in one, up to `bytes_max` of it.
    pub fn spans(&self, gap_bytes: u64, bytes_max: u64) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for row in self.rows() {
            match spans.last_mut() {
                Some(span)
                    if row.start - span.range.end <= gap_bytes && row.end - span.range.start <= bytes_max =>
                {
                    span.range.end = row.end;
                    span.rows.push(row);
                }
                _ => spans.push(Span { range: row.clone(), rows: vec![row] }),
            }
        }
        spans
    }
}

/// Rows that are read at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// From the first row's begin to the last one's end.
    pub range: Range<u64>,
    /// The rows, ascending.
    pub rows: Vec<Range<u64>>,
}

fn xor(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].iter_mut().zip(bytes).for_each(|(into, byte)| *into ^= byte);
}
