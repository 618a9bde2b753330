//! The crash-safe index of a device, inside its own linear space.
//!
//! # On the medium (format version 2; all numbers little endian)
//!
//! ```text
//! byte 0               superblock, first copy (one 4 KiB page)
//! 4096                 checkpoint slot 0        (C bytes: capacity/128, from 64 KiB to 256 MiB)
//! 4096 + C             checkpoint slot 1
//! 4096 + 2C            journal ring             (J bytes: capacity/256, from 64 KiB to 16 MiB)
//! 4096 + 2C + J        extents: ranges of [table of checksums | slots | reserve], in units of 4 KiB
//! capacity - 4096      superblock, second copy
//!
//! superblock:  0 magic "STEADDSK"    8 format version u32    12 crc32c u32 of 16..96    16 cluster u128
//!   32 device u128    48 capacity u64    56 C u64    64 J u64    72 flags u64 (1: thick)    80 zero
//! ```
//!
//! Checkpoints, frames, records and a reserve's log have their byte maps where they are written: `checkpoint` and
//! `mend`, `journal`, `record`, `log`. Version 2 added extents that change in place, and their redo, to version 1.
//!
//! # Why it survives
//!
//! A group commit writes block data, the pages of checksum tables and one journal frame, then flushes *once*.
//! Before that flush returns any subset of the three may be on the medium:
//!
//! - no frame: the blocks do not exist; their slots are free;
//! - a frame without the data or the checksums: the blocks fail their checksums, which are seeded with what
//!   they are; the open checks exactly the blocks of frames that were not known to be flushed, and
//!   forgets those that fail;
//! - space that a record frees is used again only after the record was flushed, so nothing durable is ever
//!   overwritten by something that may vanish.
//!
//! A change in place is first a redo record in a flushed frame, then bytes in place, then forgotten by a checkpoint:
//! see `device::update`.
//!
//! Journal and checkpoint space are reserved by the format, and growth of the index is refused before a
//! checkpoint could outgrow its slot, so a full device can always delete.

pub(crate) mod checkpoint;
mod codec;
mod extent;
pub(crate) mod journal;
pub(crate) mod log;
mod mend;
mod record;
mod state;
pub(crate) mod superblock;
mod updating;

pub use codec::Malformed;
pub use extent::{BLOCK_BYTES_MAX, Extent, ExtentRange, Run};
pub(crate) use extent::{Place, RUNS_MAX};
pub use record::Record;
pub use state::Index;
pub use superblock::Superblock;
pub(crate) use updating::MERGED;
pub use updating::{LogStart, Updating};

/// The format this program writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 2;

/// Bytes of the journal ring that updates need: updates of 128 KiB, a quarter of the ring, which is the largest delta
/// of PLR's traces (FAST'14, §5), and several of them between checkpoints.
pub const UPDATES_JOURNAL_MIN: u64 = 512 << 10;
