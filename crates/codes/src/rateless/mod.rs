//! Rateless codes: K originals, an endless sequence of blocks, and (nearly) any K of them give the originals
//! back (dissertation §2.2 and §5.2.3).
//!
//! ```text
//!              originals 0..K                parity columns K..K+S (never stored)
//!            +---------------------------+------------------+
//!  block i   | 1 at i                    |                  |  i < K: the original itself
//!  block K+j | 2 or 3 coefficients       | 5 to 1 there     |  repair rows, j = 0, 1, ..
//!            +---------------------------+------------------+
//!  0       = | 3 of every column's ones  | identity         |  constraint rows, S of them
//!            +---------------------------+------------------+
//! ```
//!
//! That is [`Kind::Mix`] from K = 128 (variant B; [`Kind::MixA`] and [`Kind::MixC`] have other numbers of columns): 3 or
//! 4 parity columns in the first K repair rows, one more each below K = 512, and 1 in all later ones.
//! Below it a repair row is dense over the originals, S = 0, and any K of the first 256 blocks decode. In
//! [`Kind::Lt`] every row is a repair row over originals with a robust soliton degree, S = 0. [`Kind::ReedSolomon`] has an
//! end: stripes of an MDS code, which what reads and writes blocks takes like the others.
//!
//! - [`Code`]: the graph of a segment; rows of any index from `(kind, k, seed)`.
//! - [`Encoder`]: blocks of given indices; [`Prepared`]: of originals whose parity columns are kept.
//! - [`RankTracker`]: whether indices are enough, without payload. Exact for Mix; peeling for LT.
//! - [`LossRanks`]: the rank that each of many loss patterns leaves.
//! - [`Decoder`]: takes blocks as they arrive, gives the originals in the buffers they arrived in.
//! - [`Effort`]: what a decode takes, foreseen.
//! - [`Scratch`]: memory kept from one solve or encode to the next.

mod code;
mod coefficients;
mod cover;
mod cyclic;
mod decoder;
mod dense;
mod effort;
mod encoder;
mod loss;
mod mix;
mod permutation;
mod plan;
mod program;
mod rank;
mod rows;
mod scratch;
mod soliton;
mod stripes;
mod unknowns;

#[cfg(test)]
mod allocations;

pub use code::{Code, CodeError, Delta, K_MAX, Kind};
pub use decoder::{DecodeError, Decoder};
pub use effort::Effort;
pub use encoder::{EncodeError, Encoder, Prepared};
pub use loss::LossRanks;
pub use rank::{Push, RankTracker};
pub use scratch::Scratch;
