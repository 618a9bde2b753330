//! Benchmarks of the libraries themselves, beside their rivals and the machine's limits.
//!
//! | room | what lives there |
//! |---|---|
//! | [`codes`] | the block arithmetic: what `steadfast bench codes` runs |
//! | [`arrival`], [`reception`] | orders in which blocks come to a reader, and how many it needs then |
//! | [`rivals`] | other libraries behind one interface; compiled in by the feature of that name |
//! | `measure` | contenders taken in turns, medians, processor time |
//! | `memory` | the bytes worked on, from memory or from the cache |

#![deny(unsafe_code)]

pub mod arrival;
pub mod codes;
mod measure;
mod memory;
pub mod reception;
pub mod rivals;

pub use measure::Clock;
