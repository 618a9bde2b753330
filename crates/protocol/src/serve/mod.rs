//! Cores of a storage server: one stream of blocks under credit and cancel, admission, and the sweep.
//!
//! | core | what it does |
//! |---|---|
//! | [`ReadStream`] | sends the blocks of a segment in the order they lie, within credit, until done or cancelled |
//! | [`WriteStream`] | takes blocks, grants credit from one shared [`Budget`], confirms what is durable |
//! | [`IngestStream`] | takes a whole segment that is to be distributed |
//! | [`Admission`] | decides whether a new stream is taken (design.md, decision 13) |
//! | [`Reservations`] | bandwidth of a device kept for accesses, until given back or the lease ends |
//! | [`Reserve`] | how much space each parity chunk's log has, and what is given back when |
//! | [`Fair`] | whose request goes to a device next while bandwidth of it is reserved |
//! | [`Sharing`] | what it costs a device to be shared |
//! | [`health()`] | how a device is, from what its lane says |
//! | [`Lull`] | whether a device has time for what nobody waits for |
//! | [`parity_log`] | updates of erasure-coded chunks: versions, logs beside the parity chunk, merges, rows at one state |
//! | [`Taken`] | what a server does whose name, or a device of its, another has |
//! | [`Sweep`] | finds what writers left behind, and seals, trims or deletes it |
//!
//! They hold no payload: slices and blocks have names, the driver keeps their bytes. They choose no device and know
//! no policy.

mod admission;
mod assembly;
mod budget;
mod fair;
mod health;
mod ingest;
mod lull;
pub mod parity_log;
mod read_stream;
mod reservations;
mod reserve;
mod sharing;
mod sweep;
mod taken;
#[cfg(test)]
mod tests;
mod write_stream;

pub use admission::{Admission, AdmissionPolicy, AdmissionPolicyError, Limits, Load, ReadTicket, ReaderId};
pub use budget::Budget;
pub use fair::{Charge, Fair, Flow};
pub use health::{HealthFacts, health};
pub use ingest::IngestStream;
pub use lull::Lull;
pub use read_stream::{ReadAction, ReadInput, ReadResult, ReadStream, SliceId};
pub(crate) use reservations::efficiency;
pub use reservations::{BEST_EFFORT_SHARE, Capacity, Granted, LEASE_MAX, RESERVATIONS_MAX, Reservations};
pub use reserve::{
    DELTA_BYTES_MIN, LOOK_MAX, PERIOD, RESERVE_FIRST_BYTES, Reserve, ReserveAction, ReserveError,
    ReserveInput, ReserveOptions, ReservePolicy, ReserveUse, ReservedChunk, SMOOTHING, UTILITY_FIRST,
};
pub use sharing::Sharing;
pub use sweep::{ExtentFacts, Sweep, SweepAction, SweepInput, SweepOptions, SweepTotals};
pub use taken::{OnRefusal, Taken};
pub use write_stream::{WriteAction, WriteInput, WriteStream};
