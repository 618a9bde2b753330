//! What can be wrong with a request to an MDS code.

use super::Kind;

/// A request that a code refuses. Nothing has been written to the caller's buffers when one is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MdsError {
    /// There is no code of that shape.
    #[error("no {kind:?} code has {k} data and {m} parity chunks")]
    Parameters {
        /// The kind asked for.
        kind: Kind,
        /// Data chunks asked for.
        k: usize,
        /// Parity chunks asked for.
        m: usize,
    },
    /// A list has too few or too many slices.
    #[error("{given} slices given where {expected} belong")]
    Count {
        /// Slices given.
        given: usize,
        /// Slices the request needs.
        expected: usize,
    },
    /// A slice is not as long as the others, or as the request says.
    #[error("a slice of {given} bytes where {expected} belong")]
    Length {
        /// Bytes of the slice.
        given: usize,
        /// Bytes it should have.
        expected: usize,
    },
    /// A chunk's length does not divide into the code's packets.
    #[error("chunks of {length} bytes do not divide into {multiple} packets")]
    Multiple {
        /// Bytes of a chunk.
        length: usize,
        /// What they must be a multiple of.
        multiple: usize,
    },
    /// A chunk is said to be longer than any slice can be.
    #[error("chunks of {length} bytes: no slice is longer than {}", isize::MAX)]
    TooLong {
        /// Bytes of a chunk.
        length: usize,
    },
    /// A chunk number is not below k + m, or a data or parity index not below k or m.
    #[error("chunk {chunk} of a list of {count}")]
    NoSuchChunk {
        /// The number given.
        chunk: usize,
        /// How many there are.
        count: usize,
    },
    /// A chunk is named twice in one list.
    #[error("chunk {chunk} is given twice")]
    Duplicate {
        /// Its number.
        chunk: usize,
    },
    /// Fewer chunks than k are there.
    #[error("{given} chunks are there, {needed} are needed")]
    TooFew {
        /// Chunks given.
        given: usize,
        /// k.
        needed: usize,
    },
    /// A range of bytes is reversed or leaves its chunk.
    #[error("bytes {start}..{end} of a chunk of {length}")]
    Range {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes of the chunk.
        length: usize,
    },
    /// A list of ranges is not ascending, or two of its ranges overlap.
    #[error("ranges overlap or are out of order at byte {at}")]
    Overlap {
        /// Where the offending range starts.
        at: usize,
    },
}
