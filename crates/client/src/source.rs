//! The bytes of a put: read ahead in pieces by a thread of their own, cut into original blocks.

use bytes::{Bytes, BytesMut};
use std::{
    io::{self, Read},
    sync::{Arc, OnceLock},
};
use steadfast_net::zeroed_buffer;
use steadfast_protocol::layout::BLOCK_BYTES_MAX;
use tokio::sync::watch;

/// Bytes read at a time while the size of blocks is not known: the largest one.
const PIECE_BYTES: usize = BLOCK_BYTES_MAX as usize;

/// A source that gives pieces of the bytes asked for, the last one shorter.
pub(crate) struct Pieces {
    source: Box<dyn Read + Send>,
    /// A piece read to find out whether there is more.
    peeked: Option<Bytes>,
}

impl Pieces {
    pub(crate) fn new(source: impl Read + Send + 'static) -> Self {
        Self { source: Box::new(source), peeked: None }
    }

    /// The next piece of `bytes`; empty at the end.
    fn next(&mut self, bytes: usize) -> io::Result<Bytes> {
        if let Some(piece) = self.peeked.take() {
            return Ok(piece);
        }
        let mut piece = zeroed_buffer(bytes);
        let mut filled = 0;
        while filled < bytes {
            match self.source.read(&mut piece[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        piece.truncate(filled);
        Ok(piece.freeze())
    }

    /// Reads at most `bytes_max` (whole pieces) and says whether the source goes on behind them.
    pub(crate) fn take(&mut self, bytes_max: u64) -> io::Result<(Vec<Bytes>, bool)> {
        let mut pieces = Vec::new();
        let mut taken = 0;
        while taken < bytes_max {
            let piece = self.next(PIECE_BYTES)?;
            if piece.is_empty() {
                return Ok((pieces, false));
            }
            taken += piece.len() as u64;
            pieces.push(piece);
        }
        let ahead = self.next(PIECE_BYTES)?;
        let more = !ahead.is_empty();
        self.peeked = more.then_some(ahead);
        Ok((pieces, more))
    }
}

/// The K original blocks of a segment while they are being read: block i is there once `filled` is above i.
pub(crate) struct Originals {
    blocks: Vec<OnceLock<Bytes>>,
    filled: watch::Receiver<Filled>,
}

/// How far the reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// So many blocks are there.
    Blocks(u32),
    /// The source failed or ended early: the rest never comes.
    Failed,
}

impl Originals {
    /// K originals that are not known and never will be.
    pub(crate) fn none(originals: u32) -> Arc<Self> {
        let (_, filled) = watch::channel(Filled::Failed);
        Arc::new(Self { blocks: (0..originals).map(|_| OnceLock::new()).collect(), filled })
    }

    /// Cuts `pieces` of a segment whose every byte is there.
    pub(crate) fn whole(pieces: Vec<Bytes>, block_bytes: u32, originals: u32) -> Arc<Self> {
        let (progress, filled) = watch::channel(Filled::Blocks(0));
        let segment = Self { blocks: (0..originals).map(|_| OnceLock::new()).collect(), filled };
        let (mut at, mut begun) = (0, None);
        for piece in pieces {
            at = segment.go_on(piece, block_bytes as usize, at, &mut begun);
        }
        if let Some((block, _)) = begun {
            at = segment.set(at, block.freeze());
        }
        segment.pad(block_bytes, at);
        progress.send_replace(Filled::Blocks(originals));
        Arc::new(segment)
    }

    /// Reads a segment of `length` bytes on a thread of its own; the second value gives the source back, where the next
    /// segment begins, or says why it failed.
    pub(crate) fn read(
        mut source: Pieces,
        length: u64,
        block_bytes: u32,
        originals: u32,
    ) -> (Arc<Self>, tokio::task::JoinHandle<Result<Pieces, ReadEnd>>) {
        let (progress, filled) = watch::channel(Filled::Blocks(0));
        let segment = Arc::new(Self { blocks: (0..originals).map(|_| OnceLock::new()).collect(), filled });
        let shared = Arc::clone(&segment);
        let reading = tokio::task::spawn_blocking(move || {
            // Each block in a buffer of its own: of the size that reads of such objects leave behind.
            let (mut at, mut read) = (0, 0);
            while read < length {
                // What lies behind the segment is the next one's, or one byte too many: the caller looks.
                let wanted = usize::try_from(length - read).unwrap_or(usize::MAX).min(block_bytes as usize);
                let piece = match source.next(wanted) {
                    Ok(piece) => piece,
                    Err(error) => {
                        progress.send_replace(Filled::Failed);
                        return Err(ReadEnd::Source(error));
                    }
                };
                read += piece.len() as u64;
                if piece.len() < wanted {
                    progress.send_replace(Filled::Failed);
                    return Err(ReadEnd::Length(read));
                }
                at = shared.cut(&piece, block_bytes, at);
                progress.send_replace(Filled::Blocks(at));
            }
            shared.pad(block_bytes, at);
            progress.send_replace(Filled::Blocks(originals));
            Ok(source)
        });
        (segment, reading)
    }

    /// Cuts a piece into blocks from block `at` on, of which some bytes may have `begun`; the block after the last whole
    /// one. Blocks that do not divide pieces begin in one and end in the next.
    fn go_on(
        &self,
        mut piece: Bytes,
        block_bytes: usize,
        mut at: u32,
        begun: &mut Option<(BytesMut, usize)>,
    ) -> u32 {
        while !piece.is_empty() {
            if begun.is_none() && piece.len() >= block_bytes {
                at = self.set(at, piece.split_to(block_bytes));
                continue;
            }
            let (mut block, filled) = begun.take().unwrap_or_else(|| (zeroed_buffer(block_bytes), 0));
            let more = piece.split_to(piece.len().min(block_bytes - filled));
            block[filled..filled + more.len()].copy_from_slice(&more);
            if filled + more.len() == block_bytes {
                at = self.set(at, block.freeze());
            } else {
                *begun = Some((block, filled + more.len()));
            }
        }
        at
    }

    /// Block `at` is there; the one after it.
    fn set(&self, at: u32, block: Bytes) -> u32 {
        self.blocks[at as usize].set(block).expect("each block is cut once");
        at + 1
    }

    /// Cuts a piece into blocks from block `at` on; the block after the last one cut.
    fn cut(&self, piece: &Bytes, block_bytes: u32, at: u32) -> u32 {
        let block_bytes = block_bytes as usize;
        let mut next = at;
        for start in (0..piece.len()).step_by(block_bytes) {
            let end = piece.len().min(start + block_bytes);
            let block = if end - start == block_bytes {
                piece.slice(start..end)
            } else {
                let mut padded = zeroed_buffer(block_bytes);
                padded[..end - start].copy_from_slice(&piece[start..end]);
                padded.freeze()
            };
            next = self.set(next, block);
        }
        next
    }

    /// Zero blocks from `at` on: an empty object has one.
    fn pad(&self, block_bytes: u32, at: u32) {
        for block in &self.blocks[at as usize..] {
            block.set(zeroed_buffer(block_bytes as usize).freeze()).expect("each block is cut once");
        }
    }

    /// K.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("at most K_MAX blocks")
    }

    /// Waits until the first `count` blocks are there; `false` if they never will be.
    pub(crate) async fn wait_for(&self, count: u32) -> bool {
        let mut filled = self.filled.clone();
        let reached = filled.wait_for(|filled| match *filled {
            Filled::Blocks(blocks) => blocks >= count,
            Filled::Failed => true,
        });
        match reached.await {
            Ok(filled) => *filled != Filled::Failed,
            // The reading thread is gone; what it said last holds.
            Err(_) => matches!(*self.filled.borrow(), Filled::Blocks(blocks) if blocks >= count),
        }
    }

    /// A block that is there.
    pub(crate) fn block(&self, index: u32) -> &Bytes {
        self.blocks[index as usize].get().expect("waited for before")
    }

    /// All blocks, once all are there.
    pub(crate) fn all(&self) -> Vec<&[u8]> {
        (0..self.count()).map(|index| &self.block(index)[..]).collect()
    }
}

/// Why a segment could not be read from its source.
pub(crate) enum ReadEnd {
    /// The source failed.
    Source(io::Error),
    /// It gave so many bytes of the segment, not as many as announced.
    Length(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_the_source_does() {
        for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            let bytes = vec![7u8; length];
            let mut pieces = Pieces::new(io::Cursor::new(bytes));
            let (taken, more) = pieces.take(2 * PIECE_BYTES as u64).unwrap();
            let sum: usize = taken.iter().map(Bytes::len).sum();
            assert_eq!(sum, length.min(2 * PIECE_BYTES));
            assert_eq!(more, length > 2 * PIECE_BYTES);
        }
    }

    #[tokio::test]
    async fn a_segment_is_cut_and_padded() {
        let length = PIECE_BYTES + 70_000;
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let block_bytes = 64 << 10;
        let originals = u32::try_from(length.div_ceil(block_bytes)).unwrap();
        let pieces = Pieces::new(io::Cursor::new(bytes.clone()));
        let (segment, reading) = Originals::read(pieces, length as u64, block_bytes as u32, originals);
        assert!(segment.wait_for(originals).await);
        assert!(reading.await.unwrap().is_ok());
        let mut joined = segment.all().concat();
        assert!(joined[length..].iter().all(|&byte| byte == 0));
        joined.truncate(length);
        assert_eq!(joined, bytes);
    }

    #[tokio::test]
    async fn a_source_that_changed_its_length_is_told() {
        let read = |given, announced: u64| {
            let pieces = Pieces::new(io::Cursor::new(vec![1u8; given]));
            let originals = u32::try_from(announced.div_ceil(65_536)).unwrap();
            Originals::read(pieces, announced, 65_536, originals)
        };
        let (segment, reading) = read(100_000, 200_000);
        assert!(!segment.wait_for(4).await);
        assert!(matches!(reading.await.unwrap(), Err(ReadEnd::Length(100_000))));
        let (segment, reading) = read(200_000, 100_000);
        assert!(segment.wait_for(2).await);
        let Ok(mut rest) = reading.await.unwrap() else { panic!("the segment is there") };
        assert!(rest.take(0).unwrap().1, "there is more");
    }

    #[test]
    fn blocks_need_not_divide_pieces() {
        let bytes: Vec<u8> = (0..2_500_000).map(|at| (at % 251) as u8).collect();
        let block_bytes = 700_416;
        for piece in [1 << 20, 700_416, 100_000, 2_500_000] {
            let pieces = bytes.chunks(piece).map(|piece| Bytes::from(piece.to_vec())).collect();
            let joined = Originals::whole(pieces, block_bytes, 5).all().concat();
            assert!(joined[..bytes.len()] == bytes && joined[bytes.len()..].iter().all(|&byte| byte == 0));
        }
    }
}
