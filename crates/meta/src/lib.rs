//! The metadata server: the metadata cores (`steadfast_protocol::meta`) over redb, with group commit.
//!
//! | file | what lives there |
//! |---|---|
//! | [`store`] | the database: snapshots, atomic batches, coming back after a failure |
//! | `batch`, `file` | its table as the cores see it; its file: locked, made, opened |
//! | [`writer`] | the one writer thread: all waiting changes in one durable commit |
//! | [`service`] | a request in, its answer out, whatever it came by |
//! | [`server`] | the same over the network, with the tick that gives up ended leases |
//! | [`clock`] | the time that leases are counted in |
//! | `activity`, `census`, `watch` | requests and records counted, and what the admin port shows |
//! | `under_way` | what the store has not answered yet |
//! | [`options`] | what a server is started with |
//!
//! Invariants: an answer to a change leaves only after its commit is durable; a request whose answer was lost gives
//! the same answer again, over a crash too; the server answers reads while its disk takes no writes, and all that does not need what
//! its disk cannot read.

mod activity;
mod batch;
mod census;
pub mod clock;
pub mod error;
mod file;
pub mod options;
pub mod server;
pub mod service;
pub mod store;
mod under_way;
mod watch;
pub mod writer;

pub use error::MetaError;
pub use options::MetaOptions;
pub use server::{Meta, run};
pub use service::Service;
pub use store::Store;
