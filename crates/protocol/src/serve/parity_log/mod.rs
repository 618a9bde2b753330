//! Updates of erasure-coded chunks: in-place data, differences logged beside the parity chunk (Chan et al., *Parity
//! Logging with Reserved Space*, FAST '14, §4 and §5.2; design.md, decision 8).
//!
//! | core | where it runs | what it does |
//! |---|---|---|
//! | [`DataChunk`] | the data chunk's node | orders the chunk's updates: stamps updates with versions, has them logged by every live parity node, answers when all of that is durable; levels the logs after a crash |
//! | [`ParityChunk`] | a parity chunk's node | takes each version once, in order; merges committed ones; refuses older epochs |
//! | [`UpdateWindow`] | the data chunk's node | which updates the core is given, and when: what may be uncommitted |
//! | [`Behind`] | a parity chunk's node | how much of a log may lie behind what is not committed |
//! | [`Overwrites`] | a parity chunk's node | the order in which differences go into the chunk at once, and what may be released |
//! | [`Upkeep`] | a parity chunk's node | when a quiet log is merged, whom to ask where it is held up, and when a reserve may shrink |
//! | [`Levels`] | a chunk's node | whether it has all that was acknowledged, before it is read |
//! | [`Inquiry`] | a chunk's node | whom that is asked of, who is waited for how long, and when whoever reads is told |
//! | [`Fold`] | a parity chunk's node | many differences as few, by range |
//! | [`common`], [`take_back`], [`ParityOf`] | a reader, a data chunk's node, a parity chunk's | rows of several chunks at one state |
//!
//! ```text
//!   writer                          data node                    each parity node
//!     │ Update ───────────────────────▶│ old ^ new = difference,      │
//!     │                                │ version v                    │
//!     │                                ├── Difference(v) ────────────▶│ appended to the log
//!     │                                │ redo(v) flushed  ║  in       │ flushed
//!     │                                │                  ║ parallel  │
//!     │                                │◀───────────────── Acked(v) ──┤
//!     │◀─────────────────────── done ──┤                              │
//!     │                                │ old bytes may be overwritten │
//!     │                                ├── committed(v), later ──────▶│ v may be merged
//! ```
//!
//! **What is logged is the difference of the data**, old XOR new, and not the parity delta of the paper: the parity
//! node multiplies it by its coefficient when it merges (§3: `P' = P + γ (D' - D)`, and γ distributes over the fold of
//! many). So all parity nodes log the same bytes; a code whose parity delta is larger than the write (RDP, §6.2) fills the
//! reserve no faster; and any one log is enough to bring data, or another log, forward: `D' = D ^ difference`.
//!
//! **Versions.** A data chunk counts its updates: 1, 2, 3. A version is *committed* when the data node's redo record and
//! the log of every live parity node hold it durably; only then is the writer answered, are old bytes
//! overwritten in place, and may a log merge it. Hence:
//!
//! - what is acknowledged is in place or in a redo record, and in every live parity chunk or its log;
//! - a version that some log holds and the data node lost (both were flushed at the same time) is not committed, so no log
//!   has merged it: whoever levels finds its difference there and brings all forward;
//! - a version that the data node holds and some log lost: its old bytes are still in place, so its difference can be
//!   formed again and is sent again;
//! - each version is one difference for ever: nothing is stamped before all live parity nodes said what they have, and none
//!   takes what an earlier life of the sender had stamped.
//!
//! **The window.** [`UpdateWindow`] lets no more of a data chunk be uncommitted than its part of half a reserve
//! ([`crate::policy::Parity::window_bytes`]), so that what is uncommitted of all chunks fits every log when all else is merged. Else one
//! log could be full of what another has no room for, and the other way round, and nothing would ever be committed. [`Behind`] sees to
//! what is committed and cannot be merged yet.
//!
//! **Room.** What is overwritten in place is held until it is committed, and devices hold only so much. So room for it is reserved on every
//! such parity node before an update is stamped (`rooms`, in [`UpdateWindow`]; [`Overwrites`] is the other end).
//!
//! **No node is the segment's primary** once it is stored. Each data chunk's node orders its own updates, and nothing orders those of different
//! chunks. A degraded read finds one state of all by their versions, and holds nobody up: logs have a chunk at several
//! ([`common`]).
//!
//! **Lives.** A data chunk's core has a session, greater than that of every earlier one under its epoch. A parity node
//! takes differences only of the one that asked last: what a node sent before it lost power, and what it
//! stamped again since, have the same version and other bytes.
//!
//! **Epochs.** A change of who takes part (a node is left out, another takes its place) is a new epoch of the layout. Parity nodes
//! make it durable before they answer under it, and refuse older ones, so that a node that was left out and does not know
//! can commit nothing.
//!
//! The cores hold no bytes: a version or a request names them, the driver keeps them.

mod behind;
mod data;
mod fold;
mod inquiry;
mod levels;
mod overwrites;
mod parity;
mod record;
mod rooms;
mod rows;
mod upkeep;
mod window;

pub use behind::Behind;
pub use data::{DataAction, DataChunk, DataInput, Medium, Refusal, Why, kept_from};
pub use fold::{Fold, Span};
pub use inquiry::{Inquiry, InquiryAction, InquiryInput, Located, Unsaid};
pub use levels::{Asked, BeforeRead, Levels};
pub use overwrites::{Held, Overwrite, Overwrites};
pub use parity::{BrokenLog, Entry, Mode, ParityAction, ParityChunk, ParityInput, ParityState};
pub use record::{Difference, LOG_RECORD_OVERHEAD_BYTES, MalformedDifference, held_bytes};
pub use rows::{ParityOf, VersionsByChunk, common, take_back};
pub use upkeep::{Haste, Shrinking, Upkeep};
pub use window::{Admission, UpdateWindow};

/// Number of a data chunk in its segment: 0 to k - 1.
pub type ChunkNumber = u16;
/// Number of a parity chunk in its segment: 0 to m - 1.
pub type ParityNumber = u16;
