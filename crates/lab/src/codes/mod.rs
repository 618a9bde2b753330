//! Experiments on the codes alone: no processes, no payload, only which blocks are enough.

pub mod arrival;
pub mod overhead;
