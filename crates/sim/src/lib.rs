//! The simulated driver: the cores that serve data, under a discrete-event engine instead of sockets, disks and clocks.
//!
//! ```text
//!   Setup ──▶ World ──────────────────────────────────────────────┐
//!             │  ClientHost ──messages──▶ Network ──▶ NodeHost     │
//!             │  read and write cores                 stream cores │
//!             │      ▲                                   │         │
//!             │      └───────────── Engine ◀── Device ◀──┘         │
//!             └────────────────────────────────────────────────────┘
//! ```
//!
//! | room | what lives there |
//! |---|---|
//! | [`engine`] | events in the order of time, ties in the order they were scheduled |
//! | [`random`] | one stream of random numbers for each entity and purpose |
//! | [`network`] | hosts, links and connections: delay, bandwidth, jitter, loss, cuts |
//! | [`message`] | what travels: the protocol's own messages, and payload as a fingerprint of its bytes |
//! | [`device`] | a disk: the lane's queue over a [`device::Medium`] that says how long a transfer takes |
//! | [`cache`] | a storage server's cache of file data |
//! | `node` | a storage server: stream cores, admission, write budget |
//! | `meta` | the metadata server: the governing cores over a store in memory |
//! | `client`, [`ask`] | a client: read and write cores; what it asks of the metadata server before and after |
//! | [`fault`] | what goes wrong, and when |
//! | [`trace`] | every message as it was sent, and the hash of them all |
//! | [`world`] | all of these together |
//!
//! Nothing here knows a scheme: cores come as values, made by `protocol` from a layout or a plan. One run is a function of
//! its [`world::Setup`], bit for bit; its [`trace::Trace`] proves it.

pub mod ask;
pub mod cache;
pub mod device;
pub mod engine;
pub mod fault;
pub mod message;
pub mod network;
pub mod random;
pub mod trace;
pub mod world;

mod client;
mod meta;
mod node;

pub use ask::{GetAccess, PutAccess, Refused};
pub use cache::Cache;
pub use client::{AccessId, MakeNamed, MakeRead, Outcome, ReadAccess, Stored, WriteAccess};
pub use device::{Medium, Steady};
pub use fault::Fault;
pub use network::{HostId, Link};
pub use trace::{Damage, Record};
pub use world::{Setup, World};
