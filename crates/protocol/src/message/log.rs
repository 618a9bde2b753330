//! Messages between the node of a data chunk and that of a parity chunk: the differences of updates and what becomes of
//! them ([`crate::serve::parity_log`]).
//!
//! ```text
//!   data chunk's node                                parity chunk's node
//!     │ OPEN  NodeRequest::Log ────────────────────────────▶│
//!     │◀───────────────────────────────── Welcome, CREDIT ──│
//!     │ Ask ───────────────────────────────────────────────▶│  its epoch and life are the latest from here on
//!     │◀───────────────────────────────────────── Versions ─│
//!     │ Reserve ───────────────────────────────────────────▶│  only where differences are held in place
//!     │◀───────────────────────────────────────── Reserved ─│
//!     │ Difference + record ───────────────────────────────▶│  appended, flushed
//!     │◀─────────────────────────────────── Acked, CREDIT ──│
//!     │ Committed ─────────────────────────────────────────▶│  may be merged
//! ```

use crate::{Epoch, serve::parity_log::Refusal};
use serde::{Deserialize, Serialize};

/// The most bytes of one [`Update`](super::NodeRequest::Update): a record with them fits one frame, and a small journal
/// takes several. Longer ones are sent in parts.
pub const UPDATE_BYTES_MAX: u32 = 64 << 10;

/// To the parity chunk's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogPush {
    /// Which version is the last that is durable there.
    Ask {
        /// The sender's epoch.
        epoch: Epoch,
        /// The sender's life.
        session: u64,
    },
    /// A difference; its record is the payload.
    Difference {
        /// The sender's epoch.
        epoch: Epoch,
        /// The sender's life.
        session: u64,
        /// The data chunk's version with it.
        version: u64,
        /// The last version that is committed.
        committed: u64,
    },
    /// What is committed.
    Committed {
        /// The sender's epoch.
        epoch: Epoch,
        /// The last version that is.
        through: u64,
    },
    /// Send a record of the log, as soon as twice [`UPDATE_BYTES_MAX`] are granted and those that were asked for before are sent.
    Fetch {
        /// The version that it is of.
        version: u64,
    },
    /// Keep room for differences that are to come, where they are held; answered by [`LogEvent::Reserved`]. Kept until they come, it is
    /// given back, somebody [asks](LogPush::Ask), or the stream ends.
    Reserve {
        /// Bytes of room, at least.
        least: u64,
        /// And at most.
        bytes: u64,
    },
    /// So much of that is not needed.
    GiveBack {
        /// Bytes of room.
        bytes: u64,
    },
}

/// From the parity chunk's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogEvent {
    /// The stream is served.
    Welcome {
        /// Bytes of records of this data chunk that may be uncommitted at a time: so many of every data chunk fit the log.
        window_bytes: u64,
        /// Whether differences go into the chunk at once, and held: then room is [reserved](LogPush::Reserve) before an update is stamped.
        in_place: bool,
    },
    /// The answer to [`LogPush::Ask`].
    Versions {
        /// The epoch that was asked under.
        epoch: Epoch,
        /// The last version that is durable.
        received: u64,
    },
    /// Everything up to here is durable.
    Acked {
        /// The last such version.
        through: u64,
    },
    /// A difference, or a question, was not taken.
    Refused {
        /// Why.
        reason: Refusal,
    },
    /// The record asked for; it is the payload.
    Record {
        /// The version that it is of.
        version: u64,
    },
    /// The log does not have that record.
    NotHeld {
        /// The version asked for.
        version: u64,
    },
    /// The answer to [`LogPush::Reserve`], but where somebody asked meanwhile.
    Reserved {
        /// Bytes of room that are kept; 0: there is too little.
        bytes: u64,
    },
    /// What was sent waits behind a change of another data chunk whose node is gone, or stands still, before it said what is committed: it
    /// may never be durable here.
    HeldUp,
}
