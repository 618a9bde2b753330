//! Block arithmetic: rateless codes and the kernels beneath them. No I/O, no clock; randomness only from
//! a named generator seeded by the arguments, so that the same arguments give the same blocks everywhere.
//!
//! - [`rateless`]: the dissertation's improved LT code, the systematic `mix` code, and plain copies behind
//!   one [`rateless::Code`]; encoder, incremental rank, decoder.
//! - [`guide`]: which code to take, what each costs, and errata of the papers.
//! - [`mds`]: Reed-Solomon, Cauchy-Reed-Solomon and row-diagonal parity: encode, reconstruct, parity deltas.
//! - [`kernel`]: XOR and GF(2^8) multiply-accumulate over byte slices.
mod elimination;
pub mod guide;
pub mod kernel;
pub mod mds;
pub mod rateless;
