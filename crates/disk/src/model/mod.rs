//! Models of a disk for the simulator and for emulated media: no I/O, no clock, no randomness of their own.
//!
//! ```text
//! spec        what a modelled disk is, as text; drawn as the dissertation draws it
//! drive       one disk with its queue: transfers in, times out
//!   placement   which sectors hold a byte range: blocking factor, sequential or not
//!   background  requests of others
//!   waiting     what waits at it, and which is served next
//!   mechanics   heads, platters, buffer: one request's time
//! cache       the filer's cache in front of eight disks
//! measure     what Table 6-1 and Figure 6-5 measure
//! ```
//!
//! Chapter 6.2 of the RobuSTore dissertation describes them. All times are absolute nanoseconds of the driver's
//! clock, from 0 on; a model never goes back. Every random choice follows from a seed: the same calls give
//! the same times on every machine (only exactly rounded floating-point operations are used).

pub mod background;
pub mod cache;
pub mod drive;
pub mod measure;
pub mod mechanics;
pub mod placement;
pub mod spec;
mod waiting;

pub use background::{Background, Load};
pub use cache::FileCache;
pub use drive::{Drive, Policy};
pub use mechanics::{ATA_7200, DiskParameters, Geometry, Mechanics};
pub use placement::{Layout, Placement};
pub use spec::{DriveModel, DriveSpec, DriveSpecError};

/// A well mixed number from a seed and an index (the output function of SplitMix64).
#[inline]
pub(crate) fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Evenly from `0..n` out of 64 random bits.
#[inline]
pub(crate) fn scale(bits: u64, n: u64) -> u64 {
    ((u128::from(bits) * u128::from(n)) >> 64) as u64
}
