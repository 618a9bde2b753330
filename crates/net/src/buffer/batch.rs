//! Memory of many blocks that are made at once, whatever it holds.
//!
//! Who makes blocks writes every byte of them, into memory that must hold something before. Zeros for it cost as much as the sums that took
//! their place: 4 of the 70 parts of a put's processor time, which went from 2.69 to 2.51 s/GB with this. So this memory is zero because the
//! system gave it so, and comes back here whole, with what is in it, once the last of its blocks is gone. (Buffers that a
//! socket is read into come back as mere room.)
//!
//! ```text
//!   arena, mapped at once: [ .. | large page | large page | .. ]
//!                                   │ untouched ──taken──▶ blocks ──the last one dropped──▶ idle ──taken──▶ blocks
//!                                   └──◀── given back to the system: too much is kept ──────┘
//! ```

use super::{ALIGNMENT, Kept, kept};
use crate::huge::{HUGE_PAGE_BYTES, discard, huge_pages_of};
use bytes::{Bytes, BytesMut};

/// Bytes of a piece: one page.
const PIECE_BYTES: usize = HUGE_PAGE_BYTES;
/// Pieces of an arena. With one more, wherever it begins, that is above the 32 MiB from which on the allocator maps memory by itself, always:
/// zeros that nobody had to write, and nothing is held of what was given back.
const ARENA_PIECES: usize = 16;

/// Room for blocks of one length.
pub struct Batch {
    pieces: Vec<Piece>,
    blocks: usize,
    block_bytes: usize,
}

impl Batch {
    /// For `blocks` of `block_bytes` each. They begin with a page, and hold anything.
    pub fn new(blocks: usize, block_bytes: usize) -> Self {
        let stride = stride(block_bytes);
        let each = (PIECE_BYTES / stride).max(1);
        let piece = |blocks: usize| match blocks * stride {
            // What would leave half of a piece empty has memory of its own.
            bytes if bytes > PIECE_BYTES || bytes <= PIECE_BYTES / 2 => Piece::alone(bytes),
            _ => Piece(kept().batch.take(), Home::Kept),
        };
        let pieces = (0..blocks).step_by(each).map(|first| piece(each.min(blocks - first)));
        Self { pieces: pieces.collect(), blocks, block_bytes }
    }

    /// The blocks, to be written.
    pub fn blocks(&mut self) -> Vec<&mut [u8]> {
        let (stride, len) = (stride(self.block_bytes), self.block_bytes);
        let blocks = self.pieces.iter_mut().flat_map(|piece| piece.bytes().chunks_exact_mut(stride));
        blocks.take(self.blocks).map(|block| &mut block[..len]).collect()
    }

    /// The blocks, as they are now.
    pub fn freeze(self) -> Vec<Bytes> {
        let (stride, len) = (stride(self.block_bytes), self.block_bytes);
        let cut = |piece: Piece| {
            let whole = Bytes::from_owner(piece);
            (0..whole.len() / stride).map(move |block| whole.slice(block * stride..block * stride + len))
        };
        self.pieces.into_iter().flat_map(cut).take(self.blocks).collect()
    }
}

/// From one block to the next, bytes.
fn stride(block_bytes: usize) -> usize {
    block_bytes.max(1).next_multiple_of(ALIGNMENT)
}

/// Memory of some blocks, until the last of them is dropped.
struct Piece(BytesMut, Home);

/// Where a piece goes then.
enum Home {
    Kept,
    Allocator,
}

impl Piece {
    fn alone(bytes: usize) -> Self {
        let mut memory = BytesMut::zeroed(bytes + ALIGNMENT);
        let mut memory = memory.split_off(memory.as_ptr().align_offset(ALIGNMENT));
        memory.truncate(bytes);
        Self(memory, Home::Allocator)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Home::Kept = self.1 {
            kept().take_back(std::mem::take(&mut self.0));
        }
    }
}

/// Pieces that nobody uses.
pub(super) struct Pieces {
    /// As their blocks left them.
    idle: Vec<BytesMut>,
    /// The system has their memory.
    untouched: Vec<BytesMut>,
}

impl Pieces {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self { idle: Vec::new(), untouched: Vec::new() }
    }

    /// One that was used before, if there is one.
    fn take(&mut self) -> BytesMut {
        if let Some(piece) = self.idle.pop() {
            return piece;
        }
        if self.untouched.is_empty() {
            self.untouched = arena();
        }
        self.untouched.pop().expect("an arena has pieces")
    }

    /// Bytes of those that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.idle.len() * PIECE_BYTES
    }

    /// Gives one that is kept back to the system; whether there was one.
    pub(super) fn give_one_back(&mut self) -> bool {
        let Some(mut piece) = self.idle.pop() else { return false };
        discard(&mut piece[..]);
        self.untouched.push(piece);
        true
    }

    /// Gives all of them back. Those in use come back here.
    pub(super) fn release(&mut self) {
        while self.give_one_back() {}
        self.untouched.clear();
    }
}

impl Kept {
    /// A piece that nobody uses any more: kept, if that is no more than may be.
    fn take_back(&mut self, piece: BytesMut) {
        self.batch.idle.push(piece);
        if self.bytes + self.ahead.bytes() + self.batch.bytes() > self.bytes_max {
            self.batch.give_one_back();
        }
    }
}

fn arena() -> Vec<BytesMut> {
    let mut memory = BytesMut::zeroed((ARENA_PIECES + 1) * PIECE_BYTES);
    let mut rest = memory.split_off(memory.as_ptr().align_offset(HUGE_PAGE_BYTES));
    huge_pages_of(&mut rest);
    (0..ARENA_PIECES).map(|_| rest.split_to(PIECE_BYTES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{slabs, tests::pool};

    const LENGTHS: [usize; 6] = [1, 4096, 5000, 256 << 10, 700_416, PIECE_BYTES + 1];

    #[test]
    fn blocks_are_those_that_were_written() {
        for len in LENGTHS {
            for count in [0, 1, 2, 3, 9, 17] {
                let mut batch = Batch::new(count, len);
                let mut blocks = batch.blocks();
                assert_eq!(blocks.len(), count);
                for (number, block) in blocks.iter_mut().enumerate() {
                    assert!(block.as_ptr().addr().is_multiple_of(ALIGNMENT));
                    assert_eq!(block.len(), len);
                    block.fill(number as u8 + 1);
                }
                let blocks = batch.freeze();
                assert_eq!(blocks.len(), count);
                let is_whole = |(number, block): (usize, &Bytes)| {
                    block.len() == len && block.iter().all(|&byte| byte == number as u8 + 1)
                };
                assert!(blocks.iter().enumerate().all(is_whole), "{count} of {len}");
            }
        }
    }

    #[test]
    fn pieces_come_back_with_what_is_in_them_and_no_more_than_may_be_kept_stay() {
        let mut pool = pool(2 * PIECE_BYTES);
        let mut taken: Vec<BytesMut> = (0..3).map(|_| pool.batch.take()).collect();
        for piece in &mut taken {
            assert!(piece.len() == PIECE_BYTES && piece.as_ptr().addr().is_multiple_of(PIECE_BYTES));
            assert!(piece.iter().all(|&byte| byte == 0), "new memory");
            piece.fill(7);
        }
        taken.into_iter().for_each(|piece| pool.take_back(piece));
        assert_eq!(pool.batch.bytes(), 2 * PIECE_BYTES);
        let kept: Vec<BytesMut> = (0..2).map(|_| pool.batch.take()).collect();
        assert!(kept.iter().all(|piece| piece.iter().all(|&byte| byte == 7)));
        let given_back = pool.batch.take();
        assert!(given_back.iter().all(|&byte| byte == 0));
        // Others have all that may be kept.
        pool.bytes = 2 * PIECE_BYTES;
        pool.take_back(given_back);
        assert_eq!(pool.batch.bytes(), 0);
        pool.bytes = PIECE_BYTES;
        kept.into_iter().for_each(|piece| pool.take_back(piece));
        assert_eq!(pool.batch.bytes(), PIECE_BYTES);
        // So has what was touched ahead.
        pool.bytes = 0;
        pool.ahead.add(slabs::fresh());
        let both: Vec<BytesMut> = (0..2).map(|_| pool.batch.take()).collect();
        both.into_iter().for_each(|piece| pool.take_back(piece));
        assert_eq!(pool.batch.bytes(), PIECE_BYTES);
        pool.batch.release();
        assert!(pool.batch.bytes() == 0 && pool.batch.untouched.is_empty());
    }

    #[test]
    fn pieces_make_room_for_buffers() {
        let mut pool = pool(2 * PIECE_BYTES);
        let pieces: Vec<BytesMut> = (0..2).map(|_| pool.batch.take()).collect();
        pieces.into_iter().for_each(|piece| pool.take_back(piece));
        drop(pool.take(0));
        assert_eq!((pool.bytes, pool.batch.bytes()), (PIECE_BYTES, PIECE_BYTES));
    }
}
