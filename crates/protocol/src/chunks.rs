//! Whoever asks for chunks that change in place, one by one: [`Fence`], an end to their updates, and [`Gather`], original blocks of a
//! segment at one state, decoded where data chunks are lost, how often that is tried ([`Guarded`]); of which others may come yet
//! ([`awaited()`]).
//!
//! They serve clients; what nodes do with the questions is [`crate::serve::parity_log`].

mod awaited;
mod fence;
mod gather;
mod guarded;
mod spared;
#[cfg(test)]
mod tests;

pub use awaited::awaited;
pub use fence::Fence;
pub use gather::{Gather, GatherAction, GatherInput};
pub use guarded::Guarded;
pub use spared::spared;
