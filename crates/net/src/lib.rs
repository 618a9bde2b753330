//! The framed protocol on TCP: connections, streams, credit, cancel, and a link that can delay and limit.
//!
//! This crate moves frames (`steadfast_protocol::message`) and knows nothing of what they ask: no policy, no
//! request type, no retry. It gives four promises to the crates above it:
//!
//! - **one stream never holds another**: control frames go before bulk ones, bulk is served round robin;
//! - **a cancelled stream stops at once**: its DATA frames that the kernel does not have yet are dropped;
//! - **nobody waits for ever**: every wait ends by an answer, a fault, or [`Lost`];
//! - **no peer can hurt**: lengths are checked before memory is taken, what a peer sends beyond its credit or
//!   outside the protocol closes that connection and no other.
//!
//! ```text
//!  Stream ──▶ lanes (control, then round robin) ──▶ link (delay, rate) ──▶ socket      writer task, or a thread outside the runtime
//!  Stream ◀── events of the stream ◀── credit, limits ◀── parser ◀──────── socket      reader task
//! ```
//!
//! Futures are `Send`; nothing here starts a thread, and one current-thread runtime is enough.
//! Left out: encryption of the wire, and who may ask what.

pub mod link;
pub mod parser;

mod buffer;
mod connection;
mod counters;
mod error;
mod hand;
mod handshake;
mod huge;
mod lanes;
mod options;
mod pacing;
mod pool;
mod reader;
mod server;
mod shared;
mod stream;
mod tap;
mod unacknowledged;
mod writer;

pub use buffer::{Batch, keep_buffers, payload_buffer, release_buffers, zeroed_buffer};
pub use connection::{Connection, Incoming, Open, Opened};
pub use counters::Counters;
pub use error::{CallError, ConnectError, Lost, Violation};
pub use handshake::{Connected, accept, connect};
pub use huge::{HUGE_PAGE_BYTES, huge_pages};
pub use link::Link;
pub use options::Options;
pub use pacing::Pacing;
pub use pool::Pool;
pub use server::Server;
pub use stream::{Event, Stream, StreamReceiver, StreamSender};
pub use tap::{Tap, Tapped};
