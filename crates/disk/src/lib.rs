//! One device: a linear space, its extents, checksums, index, queue and media.
//!
//! ```text
//! lane      a thread that owns one device and serves its queue; group commit; cancel; measured speed
//! queue     which request is next (no I/O)
//! device    extents of blocks: create, write, flush, read, seal, delete; updates in place; recovery
//! index     superblock, checkpoints, journal, logs in reserves: what survives a crash
//! model     times of a rotating disk and its neighbours, for the simulator and emulated media (no I/O)
//! allocator the free map (no I/O)
//! media     file, memory, emulated, crash image
//! checksum, buffer, ids
//! ```
//!
//! The crate knows no network and no policy. Only [`lane`] starts threads.

pub mod allocator;
pub mod buffer;
pub mod checksum;
#[doc(hidden)]
pub mod conformance;
pub mod device;
pub mod ids;
pub mod index;
pub mod lane;
pub mod media;
pub mod model;
pub mod queue;

pub use buffer::{AlignedBuf, BufferPool};
pub use checksum::{Granule, Mismatch, Tag};
pub use device::{Device, ExtentInfo, ExtentSpec, FormatOptions, Updates, Usage};
pub use ids::{BlockIndex, ClusterId, DeviceId, Epoch, SegmentId, Version};
pub use lane::{Lane, LaneConfig, LaneHandle, LaneStatus, Op, OpError, OpOutput};
pub use media::{EmulatedMedium, EmulationControl, EmulationSpec, FileMedium, Medium, MemoryMedium};
pub use queue::{Priority, RequestId};
