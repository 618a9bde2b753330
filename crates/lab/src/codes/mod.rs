//! Experiments on the codes alone: no processes, no payload, only which blocks are enough.

pub mod figures;
pub mod overhead;
pub mod plot;
