//! The storage server: a driver of the serving cores (`steadfast_protocol::serve`) over lanes and connections.
//!
//! | file | what lives there |
//! |---|---|
//! | [`options`], [`error`] | what a node is started with, and why it does not start or stops |
//! | `identity`, `devices` | one directory is one device: finding, formatting, opening, its lane |
//! | `served`, `roster`, `joining` | the devices of now; those of the last start; how one is added while the node runs |
//! | `node` | starting, running and stopping the whole |
//! | `membership` | registering with the metadata server and heartbeats |
//! | `service` | a request in, its answer out; `streams/` reads and writes |
//! | `paced` | data on its way to a lane: reservations, and whose request goes next |
//! | `chores` | what is done for a device while nobody asks: `sweep` and `reserves` free space, `updates::recover` levels |
//! | `report`, `fault` | measured state; the device's errors as the protocol's faults |
//! | `activity`, `watch` | what was done since the start, and what the admin port shows |
//!
//! Invariants: a node decides nothing that a core could; nothing on the runtime's thread waits for a medium, so a
//! stalled device delays only its own streams; payloads go from socket to lane and back without a copy, but for
//! blocks that came in several slices, which are joined once.

pub mod error;
pub mod options;

mod activity;
mod chores;
mod devices;
mod fault;
mod identity;
mod joining;
mod membership;
mod node;
mod paced;
mod report;
mod reserves;
mod roster;
mod served;
mod service;
mod streams;
mod sweep;
mod updates;
mod watch;

pub use error::NodeError;
pub use node::{Node, run};
pub use options::NodeOptions;
