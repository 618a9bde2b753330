//! Blocks put together from slices that come in order.

use crate::BlockIndex;

/// The block that is arriving, if one is.
#[derive(Clone, Debug)]
pub(super) struct Assembly {
    block_bytes: u32,
    granule_bytes: u32,
    /// The block, and how much of it is there.
    begun: Option<(BlockIndex, u32)>,
}

impl Assembly {
    pub(super) fn new(block_bytes: u32, granule_bytes: u32) -> Self {
        Self { block_bytes, granule_bytes, begun: None }
    }

    /// The block that has begun and is not whole.
    pub(super) fn begun(&self) -> Option<BlockIndex> {
        self.begun.map(|(index, _)| index)
    }

    /// How much of that block is there.
    pub(super) fn filled_bytes(&self) -> u32 {
        self.begun.map_or(0, |(_, filled)| filled)
    }

    /// Forgets what has begun.
    pub(super) fn clear(&mut self) {
        self.begun = None;
    }

    /// Takes a slice; whether its block is whole with it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn slice(
        &mut self,
        index: BlockIndex,
        offset: u32,
        bytes: u32,
        sums: u32,
    ) -> Result<bool, String> {
        let (block_bytes, granule_bytes) = (self.block_bytes, self.granule_bytes);
        let filled = match self.begun {
            Some((block, filled)) if block != index => {
                return Err(format!(
                    "block {index} began while block {block} had {filled} of {block_bytes} bytes"
                ));
            }
            Some((_, filled)) => filled,
            None => 0,
        };
        let end = u64::from(offset) + u64::from(bytes);
        let whole = end == u64::from(block_bytes);
        let aligned = offset.is_multiple_of(granule_bytes) && (whole || bytes.is_multiple_of(granule_bytes));
        if offset != filled || bytes == 0 || end > u64::from(block_bytes) || !aligned {
            return Err(format!(
                "slice of {bytes} bytes at {offset} of block {index}: expected whole granules of {granule_bytes} bytes from {filled}, at most to {block_bytes}"
            ));
        }
        if sums != bytes.div_ceil(granule_bytes) {
            return Err(format!("{sums} checksums came with {bytes} bytes of block {index}"));
        }
        self.begun = (!whole).then_some((index, filled + bytes));
        Ok(whole)
    }
}
